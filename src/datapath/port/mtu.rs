//! The longest frame a port takes.
//!
//! For a VM it is the smaller of what the configuration and its front-end say, for an uplink what
//! its interface has. That may change at any time; the thread that is told of it stores it here,
//! and workers load it. With an interface's MTU come its changes between up and down, and
//! the bridge it is in.
//!
//! A length here counts the Ethernet header and no VLAN tag (IEEE Std 802.3-2018 clause 3.2.7: tags
//! are no part of the payload).

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::limits::MIN_FRAME_LEN;
use sys::netlink::{self, Link, NetlinkError};

/// More than any frame has.
pub const NO_LIMIT: u32 = u32::MAX;

/// A port's MTU.
#[derive(Debug)]
pub struct Mtu {
    /// MTU and Ethernet header.
    max_len: AtomicU32,
    /// The interface that is followed is administratively down.
    link_down: AtomicBool,
    /// The bridge that it is in. Held for a moment, not while the kernel is asked.
    bridge: Mutex<Option<Bridge>>,
    /// Held while the kernel is asked, so that its answer is stored before whatever is heard of a
    /// later change. Not for workers.
    known: Mutex<Known>,
}

/// A bridge of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bridge {
    /// Number of its interface.
    pub index: u32,
    /// Name of that, when it was asked for.
    pub name: Arc<str>,
    /// It keeps VLANs apart.
    pub filters_vlans: bool,
}

/// Where the MTU comes from.
#[derive(Debug, Default)]
struct Known {
    /// What the configuration says, in bytes.
    configured: Option<u16>,
    /// What the front-end says.
    said: Option<u16>,
    /// The number of the interface that is followed.
    link: Option<u32>,
}

impl Mtu {
    /// What the configuration says is all that is known.
    pub fn new(configured: Option<u16>) -> Mtu {
        let mtu = Mtu {
            max_len: AtomicU32::new(NO_LIMIT),
            link_down: AtomicBool::new(false),
            bridge: Mutex::default(),
            known: Mutex::default(),
        };
        mtu.configure(configured);
        mtu
    }

    /// What the configuration says, in bytes.
    pub fn configured(&self) -> Option<u16> {
        self.known().configured
    }

    /// The configuration says something else. Of an interface that is followed it says nothing.
    pub fn configure(&self, configured: Option<u16>) {
        let mut known = self.known();
        known.configured = configured;
        if known.link.is_none() {
            self.settle(&known);
        }
    }

    /// The smaller of what is said counts.
    fn settle(&self, known: &Known) {
        self.set(known.configured.into_iter().chain(known.said).min().map(u32::from));
    }

    fn set(&self, mtu: Option<u32>) {
        let len = mtu.map_or(NO_LIMIT, |mtu| mtu.saturating_add(MIN_FRAME_LEN));
        self.max_len.store(len, Ordering::Relaxed);
    }

    /// The MTU in bytes, as it was when last heard of.
    pub fn get(&self) -> Option<u32> {
        let len = self.max_len();
        (len != NO_LIMIT).then(|| len - MIN_FRAME_LEN)
    }

    /// Length of the longest frame, if it has no tags.
    #[inline(always)]
    pub fn max_len(&self) -> u32 {
        self.max_len.load(Ordering::Relaxed)
    }

    /// What a VM's front-end says, or that it has left.
    pub fn agree(&self, said: Option<u16>) {
        let mut known = self.known();
        known.said = said;
        self.settle(&known);
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the MTU of the interface with this number from now on, and asks what it is.
    pub fn follow(&self, index: u32) -> Result<(), NetlinkError> {
        let mut known = self.known();
        known.link = Some(index);
        self.ask_for(known.link).map(drop)
    }

    /// Gives the interface that is followed another MTU.
    pub fn set_link(&self, mtu: u32) -> Result<(), NetlinkError> {
        let known = self.known();
        if let Some(index) = known.link {
            netlink::set_mtu(index, mtu)?;
        }
        self.ask_for(known.link).map(drop)
    }

    /// Asks again, for what was not heard; true if the interface came up since, false if it went
    /// down. One that is gone keeps what it had.
    pub fn ask(&self) -> Result<Option<bool>, NetlinkError> {
        let known = self.known();
        self.ask_for(known.link)
    }

    /// To be called with the lock held.
    fn ask_for(&self, link: Option<u32>) -> Result<Option<bool>, NetlinkError> {
        let Some(index) = link else { return Ok(None) };
        let Some(found) = netlink::link_by_index(index)? else { return Ok(None) };
        let change = self.take(found.mtu, found.up);
        self.join(found.bridge)?;
        Ok(change)
    }

    fn take(&self, mtu: u32, up: bool) -> Option<bool> {
        self.set(Some(mtu));
        let was_down = self.link_down.swap(!up, Ordering::Relaxed);
        (was_down == up).then_some(up)
    }

    /// The interface is in this bridge now, or in none.
    fn join(&self, index: Option<u32>) -> Result<(), NetlinkError> {
        let found = index.map_or(Ok(None), netlink::link_by_index)?;
        let bridge = found.map(|Link { index, name, filters_vlans, .. }| Bridge {
            index,
            name: name.into(),
            filters_vlans,
        });
        *self.bridge.lock().unwrap_or_else(PoisonError::into_inner) = bridge;
        Ok(())
    }

    /// The bridge that the interface is in, as it was when last heard of.
    pub fn bridge(&self) -> Option<Bridge> {
        self.bridge.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// An interface is like this now, perhaps the one that is followed, or its bridge; true if the
    /// one that is followed came up by it, false if it went down.
    pub fn hear(&self, news: &Link) -> Result<Option<bool>, NetlinkError> {
        let known = self.known();
        let bridge = self.bridge().map(|bridge| bridge.index);
        if known.link != Some(news.index) {
            if bridge == Some(news.index) {
                self.join(bridge)?;
            }
            return Ok(None);
        }
        let change = self.take(news.mtu, news.up);
        if bridge != news.bridge {
            self.join(news.bridge)?;
        }
        Ok(change)
    }

    /// True if the interface that is followed was down when it was last heard of.
    pub fn link_is_down(&self) -> bool {
        self.link_down.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::frame::Offloads;
    use sys::tap::{self, Missing};
    use sys::testns;

    #[test]
    fn a_new_configuration_counts_at_once() {
        let mtu = Mtu::new(Some(1500));
        mtu.agree(Some(4000));
        for (configured, both) in [(Some(9000), 4000), (Some(1400), 1400), (None, 4000)] {
            mtu.configure(configured);
            assert_eq!((mtu.configured(), mtu.get()), (configured, Some(both)));
        }
        mtu.agree(None);
        assert_eq!(mtu.get(), None);
    }

    #[test]
    fn the_smaller_of_both_counts_and_is_forgotten() {
        for (configured, said, both) in [
            (None, None, None),
            (None, Some(1500), Some(1500)),
            (Some(1400), None, Some(1400)),
            (Some(1400), Some(1500), Some(1400)),
            (Some(9000), Some(u16::MAX), Some(9000)),
            (Some(9000), Some(68), Some(68)),
        ] {
            let mtu = Mtu::new(configured);
            let before = configured.map_or(u32::MAX, |mtu| u32::from(mtu) + 14);
            assert_eq!((mtu.get(), mtu.max_len()), (configured.map(u32::from), before));
            mtu.agree(said);
            assert_eq!(mtu.get(), both);
            assert_eq!(mtu.max_len(), both.map_or(u32::MAX, |mtu| mtu + 14));
            mtu.agree(None);
            assert_eq!(mtu.max_len(), before);
        }
    }

    #[test]
    fn an_interface_is_followed_by_its_number() {
        testns::run(|| {
            let tap = tap::open("mt0", 1, Offloads::NONE, Missing::Create).unwrap();
            let index = tap.link.index;
            let mtu = Mtu::new(Some(9000));
            let news = |index, mtu, up| Link { index, mtu, up, ..Link::default() };
            mtu.hear(&news(index, 1234, false)).unwrap();
            assert!(!mtu.link_is_down(), "none is followed yet");
            mtu.ask().unwrap();
            assert_eq!(mtu.get(), Some(9000), "none is followed yet");
            mtu.follow(index).unwrap();
            assert_eq!(mtu.max_len(), 1514);
            netlink::set_mtu(index, 576).unwrap();
            assert_eq!(mtu.max_len(), 1514, "nobody has told");
            assert!(mtu.link_is_down(), "it was never brought up");
            assert_eq!(mtu.hear(&news(index + 1, 68, true)).unwrap(), None);
            assert_eq!(mtu.hear(&news(index, 576, true)).unwrap(), Some(true));
            assert_eq!(mtu.hear(&news(index, 576, true)).unwrap(), None);
            assert_eq!(mtu.ask().unwrap(), Some(false));
            assert_eq!(mtu.ask().unwrap(), None);
            assert_eq!((mtu.max_len(), mtu.get()), (590, Some(576)));
            netlink::set_mtu(index, 1000).unwrap();
            mtu.ask().unwrap();
            assert_eq!(mtu.get(), Some(1000));
            drop(tap);
            mtu.ask().unwrap();
            assert_eq!(mtu.get(), Some(1000), "gone");
            let tap = tap::open("mt0", 1, Offloads::NONE, Missing::Create).unwrap();
            mtu.ask().unwrap();
            assert_eq!(mtu.get(), Some(1000), "another of the same name");
            mtu.follow(tap.link.index).unwrap();
            assert_eq!(mtu.get(), Some(1500));
        });
    }
}
