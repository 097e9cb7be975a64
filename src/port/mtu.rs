//! The longest frame a port takes.
//!
//! For a VM it is the smaller of what the configuration and its front-end say, for an uplink what
//! its interface has. That may change at any time and nobody tells, so whoever sends there asks
//! again once a second; an idle switch asks nothing.
//!
//! A length here counts the Ethernet header and no VLAN tag (IEEE Std 802.3-2018 clause 3.2.7: tags
//! are no part of the payload).

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::limits::MIN_FRAME_LEN;
use crate::sys::link_mtu::LinkMtu;

/// More than any frame has.
pub const NO_LIMIT: u32 = u32::MAX;
/// In place of a second: there is no interface to ask.
const NEVER: u32 = u32::MAX;

/// A port's MTU.
#[derive(Debug)]
pub struct Mtu {
    /// What the configuration says, in bytes.
    pub configured: Option<u16>,
    /// MTU and Ethernet header.
    max_len: AtomicU32,
    /// The second in which the interface was asked last.
    asked: AtomicU32,
    link: Mutex<Option<LinkMtu>>,
}

impl Mtu {
    /// What the configuration says is all that is known.
    pub fn new(configured: Option<u16>) -> Mtu {
        let mtu = Mtu {
            configured,
            max_len: AtomicU32::new(NO_LIMIT),
            asked: AtomicU32::new(NEVER),
            link: Mutex::default(),
        };
        mtu.set(configured.map(u32::from));
        mtu
    }

    fn set(&self, mtu: Option<u32>) {
        let len = mtu.map_or(NO_LIMIT, |mtu| mtu.saturating_add(MIN_FRAME_LEN));
        self.max_len.store(len, Ordering::Relaxed);
    }

    /// The MTU in bytes, as it was when last heard of.
    pub fn get(&self) -> Option<u32> {
        let len = self.max_len.load(Ordering::Relaxed);
        (len != NO_LIMIT).then(|| len - MIN_FRAME_LEN)
    }

    /// What a VM's front-end says, or that it has left.
    pub fn agree(&self, said: Option<u16>) {
        self.set(self.configured.into_iter().chain(said).min().map(u32::from));
    }

    /// Takes an interface's MTU from now on, and learns what it is.
    pub fn follow(&self, link: LinkMtu) {
        let mut place = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        self.ask(place.insert(link));
        self.asked.store(0, Ordering::Relaxed);
    }

    /// Length of the longest frame, if it has no tags. `now` is the present second.
    #[inline(always)]
    pub fn max_len(&self, now: u32) -> u32 {
        let asked = self.asked.load(Ordering::Relaxed);
        if asked != now && asked != NEVER {
            self.ask_again(now);
        }
        self.max_len.load(Ordering::Relaxed)
    }

    #[cold]
    #[inline(never)]
    fn ask_again(&self, now: u32) {
        // One of the workers does it. It does not wait for a new interface to be put here either.
        if self.asked.swap(now, Ordering::Relaxed) != now
            && let Ok(link) = self.link.try_lock()
        {
            link.iter().for_each(|link| self.ask(link));
        }
    }

    /// An interface that is gone keeps what it had.
    fn ask(&self, link: &LinkMtu) {
        if let Ok(mtu) = link.get() {
            self.set(Some(mtu));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Offloads;
    use crate::sys::netlink;
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
            assert_eq!((mtu.get(), mtu.max_len(7)), (configured.map(u32::from), before));
            mtu.agree(said);
            assert_eq!(mtu.get(), both);
            assert_eq!(mtu.max_len(8), both.map_or(u32::MAX, |mtu| mtu + 14));
            mtu.agree(None);
            assert_eq!(mtu.max_len(8), before);
        }
    }

    #[test]
    fn an_interface_is_asked_once_a_second() {
        testns::run(|| {
            let tap = tap::open("mt0", 1, Offloads::NONE, Missing::Create).unwrap();
            let index = tap.link.index;
            let mtu = Mtu::new(Some(9000));
            mtu.follow(LinkMtu::new(index).unwrap());
            assert_eq!(mtu.max_len(5), 1514);
            netlink::set_mtu(index, 576).unwrap();
            assert_eq!(mtu.max_len(5), 1514, "the same second");
            assert_eq!((mtu.max_len(6), mtu.get()), (590, Some(576)));
            drop(tap);
            assert_eq!(mtu.max_len(7), 590, "gone");
            let tap = tap::open("mt0", 1, Offloads::NONE, Missing::Create).unwrap();
            assert_eq!(mtu.max_len(8), 590, "another of the same name");
            mtu.follow(LinkMtu::new(tap.link.index).unwrap());
            assert_eq!(mtu.max_len(8), 1514);
        });
    }
}
