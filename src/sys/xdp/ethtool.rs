//! What the driver of an interface says of its queues, and of what it does to frames before a
//! program sees them (SIOCETHTOOL, `linux/ethtool.h`). A driver that does not say leaves it open.

use std::os::fd::AsRawFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::tap::request_for;

const GFLAGS: u32 = 0x25;
const GCHANNELS: u32 = 0x3c;
/// A tag of a VLAN is taken out of a frame on its way in.
const FLAG_RXVLAN: u32 = 1 << 8;

/// `struct ethtool_channels`: command; the most of receiving, sending, other and combined; those
/// now.
type Channels = [u32; 9];

/// Makes a request in which the kernel writes its answer over the question.
fn ask<const N: usize>(interface: &str, mut question: [u32; N]) -> Option<[u32; N]> {
    // Any socket passes the request on to the network.
    let (family, kind) = (AddressFamily::UNIX, SocketType::DGRAM);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).ok()?;
    let mut request = request_for(interface, 0);
    request.ifr_ifru.ifru_data = question.as_mut_ptr().cast();
    // SAFETY: the request lives here, and so does what it leads to, of the length that the command
    // has.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
    (done == 0).then_some(question)
}

/// How many queues the interface has now, for receiving and for sending.
pub fn queues(interface: &str) -> Option<(u32, u32)> {
    let mut question: Channels = [0; 9];
    question[0] = GCHANNELS;
    let [.., receive, send, _, combined] = ask(interface, question)?;
    let (receive, send) = (receive.checked_add(combined)?, send.checked_add(combined)?);
    (receive > 0 && send > 0).then_some((receive, send))
}

/// True if tags of VLANs do not reach a program.
pub fn strips_tags(interface: &str) -> bool {
    ask(interface, [GFLAGS, 0]).is_some_and(|[_, flags]| flags & FLAG_RXVLAN != 0)
}
