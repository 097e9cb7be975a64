//! Reports changes of interfaces: a netlink socket in the group of links (rtnetlink(7)).
//!
//! This file relies on these facts of the kernel (`net/core/rtnetlink.c`,
//! `net/netlink/af_netlink.c`):
//! - The kernel sends a message after each change took effect, in the order of the changes, with
//!   all attributes of the interface. A bridge's port is reported a second time as a bridge port,
//!   with the same MTU.
//! - The kernel sends the message to the network namespace of the interface. A socket belongs for
//!   ever to the namespace of the thread that made it.
//! - A message that does not fit the socket's buffer is lost. The next call reports the loss
//!   (ENOBUFS) before it returns older messages that are still in the buffer. So messages after a
//!   loss are useless, and the reader begins again with another socket.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use vmm_sys_util::eventfd::EventFd;

use super::netlink::{self, BUFFER_LEN, LinkNews, NetlinkError};
use super::poll::{Interest, Wake, wait};

/// RTNLGRP_LINK as a bit (`RTMGRP_LINK`).
const LINKS: u32 = 1;

/// The result of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// All changes, if any, were passed on.
    Changes,
    /// Changes were lost for lack of room. The caller subscribes again, then queries the state.
    Lost,
    /// The stop request.
    Stop,
}

/// A subscription to changes of interfaces.
#[derive(Debug)]
pub struct LinkEvents {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl LinkEvents {
    /// Subscribes to the links in the network namespace of the calling thread.
    pub fn subscribe() -> Result<LinkEvents, NetlinkError> {
        let socket = netlink::socket()?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, LINKS)).map_err(io::Error::from)?;
        Ok(LinkEvents { socket, buffer: vec![0; BUFFER_LEN] })
    }

    /// Waits for the next changes, without a limit, and calls `each` for every interface with news.
    pub fn wait(
        &mut self,
        stop: &EventFd,
        each: impl FnMut(LinkNews),
    ) -> Result<Heard, NetlinkError> {
        if wait(self.socket.as_fd(), Interest::Read, stop, None)? == Wake::Stop {
            return Ok(Heard::Stop);
        }
        match netlink::receive_from_kernel(&self.socket, &mut self.buffer) {
            Ok(None) => Ok(Heard::Changes),
            Ok(Some(len)) => match self.buffer.get(..len) {
                Some(datagram) if netlink::links_in(datagram, each).is_some() => Ok(Heard::Changes),
                // The datagram is longer than the kernel's messages, or malformed.
                _ => Ok(Heard::Lost),
            },
            Err(error) if error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error()) => {
                Ok(Heard::Lost)
            }
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::time::Instant;

    use rustix::net::sockopt::set_socket_recv_buffer_size;

    use crate::netlink::Link;
    use crate::poll::is_ready_by;
    use crate::tap::{self, Missing, Tap};
    use crate::testns;
    use base::frame::Offloads;

    fn stop() -> EventFd {
        EventFd::new(libc::EFD_NONBLOCK).unwrap()
    }

    fn create(name: &str) -> Tap {
        tap::open(name, 1, Offloads::NONE, Missing::Create).unwrap()
    }

    /// Waits until no changes are left; returns the last MTU of each interface, and the last
    /// result.
    fn hear(events: &mut LinkEvents) -> (BTreeMap<u32, u32>, Heard) {
        let (mut mtus, stop) = (BTreeMap::new(), stop());
        // Stops only when no message is left, because a stop request takes precedence.
        loop {
            let now = Instant::now();
            if !is_ready_by(events.socket.as_fd(), Interest::Read, now).unwrap() {
                stop.write(1).unwrap();
            }
            let told = |news| {
                if let LinkNews::Is(Link { index, mtu, .. }) = news {
                    mtus.insert(index, mtu);
                }
            };
            match events.wait(&stop, told).unwrap() {
                Heard::Changes => {}
                end => return (mtus, end),
            }
        }
    }

    #[test]
    fn changes_are_told_under_any_name_until_the_interface_goes() {
        testns::run(|| {
            let mut events = LinkEvents::subscribe().unwrap();
            let (one, two) = (create("le0"), create("le1"));
            let (a, b) = (one.link.index, two.link.index);
            assert_eq!(hear(&mut events), ([(a, 1500), (b, 1500)].into(), Heard::Stop));
            for mtu in [68, 9000, 65_521] {
                netlink::set_mtu(a, mtu).unwrap();
                assert_eq!(hear(&mut events).0, [(a, mtu)].into());
            }
            let name = (libc::IFLA_IFNAME, &b"other0\0"[..]);
            netlink::modify(libc::RTM_NEWLINK, a, None, &[name]).unwrap();
            netlink::set_mtu(b, 1400).unwrap();
            assert_eq!(hear(&mut events).0, [(a, 65_521), (b, 1400)].into());
            // Closing deletes the interface, which must not be reported as another MTU.
            drop(one);
            assert!(hear(&mut events).0.get(&a).is_none_or(|&mtu| mtu == 65_521));
            // A subscription works without privilege too.
            testns::without_privilege(|| {
                let mut events = LinkEvents::subscribe().unwrap();
                assert_eq!(hear(&mut events), (BTreeMap::new(), Heard::Stop));
            });
        });
    }

    #[test]
    fn a_full_buffer_is_told_before_what_is_in_it() {
        testns::run(|| {
            let mut events = LinkEvents::subscribe().unwrap();
            set_socket_recv_buffer_size(&events.socket, 0).unwrap();
            let tap = create("le0");
            for round in 0..100 {
                netlink::set_mtu(tap.link.index, 1000 + round).unwrap();
            }
            let told = |mtus: BTreeMap<u32, u32>| mtus.into_values().collect::<Vec<_>>();
            assert_eq!(hear(&mut events), (BTreeMap::new(), Heard::Lost));
            // The lost messages are missing, and the remaining messages are too old.
            assert_ne!(told(hear(&mut events).0), [1099]);
            let mut events = LinkEvents::subscribe().unwrap();
            netlink::set_mtu(tap.link.index, 1500).unwrap();
            assert_eq!(told(hear(&mut events).0), [1500]);
        });
    }

    #[test]
    fn a_stop_request_wins() {
        let mut events = LinkEvents::subscribe().unwrap();
        let stop = stop();
        stop.write(1).unwrap();
        let heard = events.wait(&stop, |_| panic!("nothing may be told"));
        assert_eq!(heard.unwrap(), Heard::Stop);
    }
}
