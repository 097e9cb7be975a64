//! Asking for the MTU of an interface without waiting for anybody: for workers, which must not use
//! netlink.
//!
//! Facts of the kernel (`net/core/dev_ioctl.c`) that this file is shaped by:
//! - SIOCGIFMTU reads under RCU, without the lock of the network configuration. But it takes a
//!   name, and for one that does not exist it has `modprobe` look for a driver first (`dev_load`).
//!   An interface is renamed or deleted at any time, so its number is turned into its present name
//!   each time; an error there ends the question.
//! - SIOCGIFNAME waits for nothing but another interface's renaming just then.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use vmm_sys_util::ioctl::ioctl_with_mut_ref;

/// Whom to ask for one interface's MTU.
#[derive(Debug)]
pub struct LinkMtu {
    /// Any socket will do; this kind needs no protocol that a kernel may lack.
    socket: OwnedFd,
    index: libc::c_int,
}

impl LinkMtu {
    /// For the interface with this number in the caller's network namespace, which need not exist.
    pub fn new(index: u32) -> io::Result<LinkMtu> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
        // SAFETY: socket touches no memory.
        let fd = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` was just created and is owned by nobody else.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(LinkMtu { socket, index: index.cast_signed() })
    }

    /// The MTU in bytes; ENODEV if the interface is not there any more.
    pub fn get(&self) -> io::Result<u32> {
        // SAFETY: all-zero bytes are a valid `ifreq`.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        request.ifr_ifru.ifru_ifindex = self.index;
        // SAFETY: SIOCGIFNAME reads and writes a whole `ifreq`, which `request` is.
        if unsafe { ioctl_with_mut_ref(&self.socket, libc::SIOCGIFNAME, &mut request) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: so does SIOCGIFMTU.
        if unsafe { ioctl_with_mut_ref(&self.socket, libc::SIOCGIFMTU, &mut request) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: SIOCGIFMTU has set this member, and every bit pattern is a number.
        Ok(unsafe { request.ifr_ifru.ifru_mtu }.cast_unsigned())
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
    fn the_mtu_is_that_of_the_moment_under_any_name() {
        testns::run(|| {
            let tap = tap::open("mt0", 1, Offloads::NONE, Missing::Create).unwrap();
            let index = tap.link.index;
            let mtu = LinkMtu::new(index).unwrap();
            assert_eq!(mtu.get().unwrap(), 1500);
            for value in [68, 9000, 65_521, 1500] {
                netlink::set_mtu(index, value).unwrap();
                assert_eq!(mtu.get().unwrap(), value);
                testns::without_privilege(|| assert_eq!(mtu.get().unwrap(), value));
            }
            let name = (libc::IFLA_IFNAME, &b"other0\0"[..]);
            netlink::modify(libc::RTM_NEWLINK, index, None, &[name]).unwrap();
            assert_eq!(mtu.get().unwrap(), 1500);
            drop(tap);
            assert_eq!(mtu.get().unwrap_err().raw_os_error(), Some(libc::ENODEV));
        });
    }
}
