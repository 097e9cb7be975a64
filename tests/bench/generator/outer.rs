//! What the frames of a port have on the wire beside those of the generator's books: bytes behind
//! their addresses, such as a tag or a header of IP, and a group's address in the place of the one
//! of all stations. It is put on in the transmit buffer and taken off in the receive buffer.

use std::ptr::{copy, copy_nonoverlapping};

use super::frame::BROADCAST;

/// Bytes of both addresses.
const ADDRESSES: usize = 12;
const ALL: [u8; 6] = {
    let [a, b, c, d, e, f, ..] = BROADCAST.to_le_bytes();
    [a, b, c, d, e, f]
};

/// Of one port.
#[derive(Clone, Default, Debug)]
pub struct Outer {
    /// Bytes behind the addresses.
    pub head: Vec<u8>,
    /// The group that frames for all go to.
    pub group: Option<[u8; 6]>,
}

impl Outer {
    /// The bytes of text in hexadecimal.
    pub fn bytes(text: &str) -> Option<Vec<u8>> {
        let pair = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
        let is_whole = text.is_ascii() && text.len().is_multiple_of(2);
        (0..text.len()).step_by(2).map(pair).collect::<Option<_>>().filter(|_| is_whole)
    }

    /// True if nothing is to be done.
    #[inline(always)]
    pub fn is_none(&self) -> bool {
        self.head.is_empty() && self.group.is_none()
    }

    /// Bytes that a frame has more.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.head.len()
    }

    /// Makes the frame at `p` of one that begins `len()` bytes behind.
    ///
    /// # Safety
    /// `p` must be writable for `len()` bytes and those of a frame.
    pub unsafe fn put_on(&self, p: *mut u8) {
        // SAFETY: the addresses of the frame are within it, and what is written ends behind them.
        unsafe {
            copy(p.add(self.len()), p, ADDRESSES);
            copy_nonoverlapping(self.head.as_ptr(), p.add(ADDRESSES), self.len());
            self.exchange(p, ALL, self.group.unwrap_or(ALL));
        }
    }

    /// The other way: the frame begins `len()` bytes behind `p` afterwards.
    ///
    /// # Safety
    /// As [`Outer::put_on`].
    pub unsafe fn take_off(&self, p: *mut u8) {
        // SAFETY: as above.
        unsafe {
            self.exchange(p, self.group.unwrap_or(ALL), ALL);
            copy(p, p.add(self.len()), ADDRESSES);
        }
    }

    /// # Safety
    /// `p` must be writable for an address.
    unsafe fn exchange(&self, p: *mut u8, from: [u8; 6], to: [u8; 6]) {
        // SAFETY: the caller vouches for six bytes, and such an array has no alignment.
        unsafe {
            if *p.cast::<[u8; 6]>() == from {
                *p.cast::<[u8; 6]>() = to;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_on_is_taken_off() {
        let group = Some([1, 0, 0x5e, 1, 1, 1]);
        for (head, group) in [("", group), ("8100000a", None), ("0800450102030405060708", group)] {
            let outer = Outer { head: Outer::bytes(head).expect("bytes"), group };
            let len = outer.len();
            let frame: Vec<u8> = [0xff; 6].into_iter().chain(6..60).collect();
            let mut buffer = [vec![0; len], frame.clone()].concat();
            // SAFETY: the vector has all of it, here and below.
            unsafe { outer.put_on(buffer.as_mut_ptr()) };
            assert_eq!(buffer[..6], group.unwrap_or([0xff; 6]));
            assert_eq!(buffer[6..12], frame[6..12]);
            assert_eq!(buffer[12..12 + len], outer.head);
            assert_eq!(buffer[12 + len..], frame[12..]);
            // SAFETY: as above.
            unsafe { outer.take_off(buffer.as_mut_ptr()) };
            assert_eq!(buffer[len..], frame);
        }
        assert!(Outer::bytes("8").is_none() && Outer::bytes("zz").is_none());
    }
}
