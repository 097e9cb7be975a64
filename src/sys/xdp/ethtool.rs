//! Reads the driver's settings of an interface (SIOCETHTOOL, `linux/ethtool.h`): the number of
//! queues, and VLAN offload. A driver may not report them.

use std::os::fd::AsRawFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::tap::request_for;

const GFLAGS: u32 = 0x25;
const GCHANNELS: u32 = 0x3c;
/// The driver removes VLAN tags from received frames.
const FLAG_RXVLAN: u32 = 1 << 8;

/// `struct ethtool_channels`: command; maximum numbers of receive, send, other and combined
/// channels; present numbers.
type Channels = [u32; 9];

/// Makes a request; the kernel writes the answer over the question. `None` on any error.
fn ask<const N: usize>(interface: &str, mut question: [u32; N]) -> Option<[u32; N]> {
    // A socket of any family passes the request to the network stack.
    let (family, kind) = (AddressFamily::UNIX, SocketType::DGRAM);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).ok()?;
    let mut request = request_for(interface, 0);
    request.ifr_ifru.ifru_data = question.as_mut_ptr().cast();
    // SAFETY: the request and the question live across the call, and the question has the length of
    // its command.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
    (done == 0).then_some(question)
}

/// Returns the numbers of receive and send queues of the interface; `None` if the driver does not
/// report them.
pub fn queues(interface: &str) -> Option<(u32, u32)> {
    let mut question: Channels = [0; 9];
    question[0] = GCHANNELS;
    let [.., receive, send, _, combined] = ask(interface, question)?;
    let (receive, send) = (receive.checked_add(combined)?, send.checked_add(combined)?);
    (receive > 0 && send > 0).then_some((receive, send))
}

/// Returns true if the driver removes VLAN tags before a program sees a frame.
pub fn strips_tags(interface: &str) -> bool {
    ask(interface, [GFLAGS, 0]).is_some_and(|[_, flags]| flags & FLAG_RXVLAN != 0)
}
