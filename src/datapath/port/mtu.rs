//! The MTU of a port.
//!
//! The MTU of a VM's port is the smaller of the configured MTU and the MTU that the front-end
//! reports. The MTU of an uplink is that of its interface, which may change at any time: the thread
//! that receives the kernel's message stores the new MTU, and workers load it. The thread also
//! stores whether the interface is up, and its bridge.
//!
//! Lengths include the Ethernet header, and no VLAN tag (IEEE Std 802.3-2018 clause 3.2.7: tags are
//! no part of the payload).

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::limits::MIN_FRAME_LEN;
use sys::netlink::{self, Link, NetlinkError};

/// Longer than any frame.
pub(crate) const NO_LIMIT: u32 = u32::MAX;

/// A port's MTU.
#[derive(Debug)]
pub struct Mtu {
    /// MTU plus the length of the Ethernet header.
    max_len: AtomicU32,
    /// The followed interface is administratively down.
    link_down: AtomicBool,
    /// The bridge of the followed interface. Locked for a moment, not during calls to the kernel.
    bridge: Mutex<Option<Bridge>>,
    /// Locked during calls to the kernel, so that the kernel's answer is stored before a message
    /// about a later change. Not for workers.
    known: Mutex<Known>,
}

/// A bridge of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bridge {
    /// Number of the bridge's interface.
    pub index: u32,
    /// Name of the bridge's interface, at the time of the last request.
    pub name: Arc<str>,
    /// The bridge filters VLANs.
    pub filters_vlans: bool,
}

/// The sources of the MTU.
#[derive(Debug, Default)]
struct Known {
    /// Configured MTU in bytes.
    configured: Option<u16>,
    /// MTU that the front-end reports, in bytes.
    said: Option<u16>,
    /// Number of the followed interface.
    link: Option<u32>,
}

impl Mtu {
    /// Creates an MTU from the configured MTU alone.
    pub(crate) fn new(configured: Option<u16>) -> Mtu {
        let mtu = Mtu {
            max_len: AtomicU32::new(NO_LIMIT),
            link_down: AtomicBool::new(false),
            bridge: Mutex::default(),
            known: Mutex::default(),
        };
        mtu.configure(configured);
        mtu
    }

    /// Returns the configured MTU in bytes.
    pub fn configured(&self) -> Option<u16> {
        self.known().configured
    }

    /// Sets the configured MTU, which has no effect if an interface is followed.
    pub fn configure(&self, configured: Option<u16>) {
        let mut known = self.known();
        known.configured = configured;
        if known.link.is_none() {
            self.settle(&known);
        }
    }

    /// Sets the smaller of the configured and the reported MTU.
    fn settle(&self, known: &Known) {
        self.set(known.configured.into_iter().chain(known.said).min().map(u32::from));
    }

    fn set(&self, mtu: Option<u32>) {
        let len = mtu.map_or(NO_LIMIT, |mtu| mtu.saturating_add(MIN_FRAME_LEN));
        self.max_len.store(len, Ordering::Relaxed);
    }

    /// Returns the last known MTU in bytes; none without a limit.
    pub fn get(&self) -> Option<u32> {
        let len = self.max_len();
        (len != NO_LIMIT).then(|| len - MIN_FRAME_LEN)
    }

    /// Returns the length of the longest frame without tags.
    #[inline(always)]
    pub fn max_len(&self) -> u32 {
        self.max_len.load(Ordering::Relaxed)
    }

    /// Sets the MTU that a VM's front-end reports, or none when the front-end has left.
    pub(crate) fn agree(&self, said: Option<u16>) {
        let mut known = self.known();
        known.said = said;
        self.settle(&known);
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows the MTU of the interface with number `index`, and asks the kernel for the MTU.
    pub fn follow(&self, index: u32) -> Result<(), NetlinkError> {
        let mut known = self.known();
        known.link = Some(index);
        self.ask_for(known.link).map(drop)
    }

    /// Sets the MTU of the followed interface.
    pub fn set_link(&self, mtu: u32) -> Result<(), NetlinkError> {
        let known = self.known();
        if let Some(index) = known.link {
            netlink::set_mtu(index, mtu)?;
        }
        self.ask_for(known.link).map(drop)
    }

    /// Asks the kernel again, for changes without a message. True if the interface came up since,
    /// false if it went down. If the interface is gone, the last MTU stays.
    pub fn ask(&self) -> Result<Option<bool>, NetlinkError> {
        let known = self.known();
        self.ask_for(known.link)
    }

    /// Asks the kernel. Called with the lock held.
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

    /// Records the bridge of the interface, or none.
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

    /// Returns the last known bridge of the interface.
    pub fn bridge(&self) -> Option<Bridge> {
        self.bridge.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Processes the kernel's message about an interface: the followed interface, its bridge, or
    /// any other. True if the followed interface came up, false if it went down.
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

    /// True if the followed interface was down at the last message.
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
