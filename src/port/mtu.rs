//! The longest frame a port takes.
//!
//! For a VM it is the smaller of what the configuration and its front-end say, for an uplink what
//! its interface has. That may change at any time; the thread that is told of it stores it here,
//! and whoever sends loads it.
//!
//! A length here counts the Ethernet header and no VLAN tag (IEEE Std 802.3-2018 clause 3.2.7: tags
//! are no part of the payload).

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::limits::MIN_FRAME_LEN;
use crate::sys::netlink::{self, NetlinkError};

/// More than any frame has.
pub const NO_LIMIT: u32 = u32::MAX;

/// A port's MTU.
#[derive(Debug)]
pub struct Mtu {
    /// What the configuration says, in bytes.
    pub configured: Option<u16>,
    /// MTU and Ethernet header.
    max_len: AtomicU32,
    /// The number of the interface that is followed. Held while the kernel is asked, so that its
    /// answer is stored before whatever is heard of a later change. Not for workers.
    link: Mutex<Option<u32>>,
}

impl Mtu {
    /// What the configuration says is all that is known.
    pub fn new(configured: Option<u16>) -> Mtu {
        let max_len = AtomicU32::new(NO_LIMIT);
        let mtu = Mtu { configured, max_len, link: Mutex::default() };
        mtu.set(configured.map(u32::from));
        mtu
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
        self.set(self.configured.into_iter().chain(said).min().map(u32::from));
    }

    fn link(&self) -> MutexGuard<'_, Option<u32>> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the MTU of the interface with this number from now on, and asks what it is.
    pub fn follow(&self, index: u32) -> Result<(), NetlinkError> {
        let mut link = self.link();
        *link = Some(index);
        self.ask_for(*link)
    }

    /// Asks again, for what was not heard. An interface that is gone keeps what it had.
    pub fn ask(&self) -> Result<(), NetlinkError> {
        self.ask_for(*self.link())
    }

    /// To be called with the lock held.
    fn ask_for(&self, link: Option<u32>) -> Result<(), NetlinkError> {
        if let Some(index) = link
            && let Some(found) = netlink::link_by_index(index)?
        {
            self.set(Some(found.mtu));
        }
        Ok(())
    }

    /// An interface has this MTU now, perhaps the one that is followed.
    pub fn hear(&self, index: u32, mtu: u32) {
        let link = self.link();
        if *link == Some(index) {
            self.set(Some(mtu));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Offloads;
    use crate::sys::tap::{self, Missing};
    use crate::sys::testns;

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
            mtu.hear(index, 1234);
            mtu.ask().unwrap();
            assert_eq!(mtu.get(), Some(9000), "none is followed yet");
            mtu.follow(index).unwrap();
            assert_eq!(mtu.max_len(), 1514);
            netlink::set_mtu(index, 576).unwrap();
            assert_eq!(mtu.max_len(), 1514, "nobody has told");
            mtu.hear(index + 1, 68);
            mtu.hear(index, 576);
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
