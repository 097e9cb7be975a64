//! A bare loop of system calls beside the switch: what the kernel alone costs.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use testkit::sys;

use super::{BYTES, HEADER, RING, ROOM, SOON, tune, under_way};

/// TUNSETIFF and TUNSETVNETHDRSZ of linux/if_tun.h.
const TUNSETIFF: libc::Ioctl = 0x4004_54ca;
const TUNSETVNETHDRSZ: libc::Ioctl = 0x4004_54d8;

/// A TAP set up as the switch sets up its own, and nothing else around it.
pub struct Bare {
    tap: File,
    /// [`RING`] buffers, shared as a guest's are, with a frame in each.
    mem: *mut u8,
}

// SAFETY: the memory is never unmapped, and only the kernel accesses it after the filling.
unsafe impl Sync for Bare {}

impl Bare {
    pub fn open(ifname: &str, bytes: &[u8]) -> Bare {
        let mut options = OpenOptions::new();
        let tap = options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
        let tap = tap.open("/dev/net/tun").expect("open /dev/net/tun");
        // SAFETY: all-zero bytes are a valid `ifreq`.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(ifname.bytes()) {
            *to = from as libc::c_char;
        }
        let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        request.ifr_ifru.ifru_flags = flags as libc::c_short;
        let header = HEADER as libc::c_int;
        // SAFETY: both read, and the first writes, a value of the type given, which lives here.
        unsafe {
            assert_eq!(libc::ioctl(tap.as_raw_fd(), TUNSETIFF, &mut request), 0);
            assert_eq!(libc::ioctl(tap.as_raw_fd(), TUNSETVNETHDRSZ, &header), 0);
        }
        tune(ifname);
        let mem = sys::map_shared(&sys::memfd(BYTES), 0, BYTES);
        for i in 0..RING {
            // SAFETY: a buffer is longer than a header and the longest frame.
            unsafe { mem.add(i * ROOM).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        }
        Bare { tap, mem }
    }

    /// The buffer of frame `i` among frames of `len` bytes.
    fn buffer(&self, i: usize, len: usize) -> *mut u8 {
        self.mem.wrapping_add(i % under_way(len) * ROOM)
    }

    /// Writes `frames` frames, header and frame apart.
    pub fn writev(&self, len: usize, frames: usize) {
        let header = [0u8; HEADER];
        for i in 0..frames {
            let at = self.buffer(i, len).wrapping_add(HEADER);
            let header = libc::iovec { iov_base: header.as_ptr() as _, iov_len: HEADER };
            let pieces = [header, libc::iovec { iov_base: at.cast(), iov_len: len }];
            // SAFETY: both pieces are readable for their lengths.
            let n = unsafe { libc::writev(self.tap.as_raw_fd(), pieces.as_ptr(), 2) };
            assert_eq!(n, (HEADER + len) as isize);
        }
    }

    /// Writes `frames` frames in one piece each.
    pub fn write(&self, len: usize, frames: usize) {
        for i in 0..frames {
            let at = self.buffer(i, len);
            // SAFETY: the piece is readable for its length.
            let n = unsafe { libc::write(self.tap.as_raw_fd(), at.cast(), HEADER + len) };
            assert_eq!(n, (HEADER + len) as isize);
        }
    }

    /// Reads until there is nothing left, after waiting for something; answers the frames.
    pub fn read_all(&self, len: usize) -> usize {
        assert!(sys::poll_in(&[self.tap.as_raw_fd()], SOON), "nothing came");
        for n in 0.. {
            let at = self.buffer(n, len);
            // SAFETY: the piece is writable for its length.
            if unsafe { libc::read(self.tap.as_raw_fd(), at.cast(), ROOM) } < 0 {
                return n;
            }
        }
        unreachable!("the loop has no end of its own");
    }
}
