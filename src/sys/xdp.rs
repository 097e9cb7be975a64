//! Receives and sends the frames of an interface past the host's network stack, by AF_XDP sockets
//! (`Documentation/networking/af_xdp.rst`), two for each queue.
//!
//! * `program` redirects the frames of these queues to the sockets;
//! * `queue` receives and sends the frames of a queue;
//! * `ring` has the rings that the kernel shares;
//! * `memory` has the memory of the frames;
//! * `ethtool` reads the driver's settings of the interface;
//! * `error` has the reasons why an interface cannot be opened.
//!
//! The kernel copies each frame (XDP_COPY): without copies it is unknown which memory a driver
//! keeps, and for how long. When the last queue is closed, nothing is left at the interface. The
//! interface's settings stay, except that the interface is promiscuous while a queue is open.

mod error;
pub mod ethtool;
mod memory;
mod program;
mod queue;
mod ring;

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::netlink::{self, Link};
use super::tap::is_valid_name;
use base::limits::{MAX_XDP_MTU, MAX_XDP_QUEUES, XDP_CLOSE_MILLIS};
pub use error::XdpError;
use error::failed;
pub use program::Mode;
pub(crate) use queue::XdpQueue;

/// An interface whose frames the sockets receive.
#[derive(Debug)]
pub struct Xdp {
    /// The interface right before the sockets were opened.
    pub link: Link,
    /// The place where the program runs.
    pub mode: Mode,
    /// The reason why the program does not run in the driver, with [`Mode::Auto`].
    pub why: Option<String>,
    /// The sockets.
    pub queues: Vec<XdpQueue>,
}

/// The redirection of frames, which ends on drop.
#[derive(Debug)]
struct Attachment {
    /// The BPF link that attaches the program.
    _link: OwnedFd,
    /// The socket that keeps the interface promiscuous, because guests have other addresses than
    /// the interface.
    _promiscuous: OwnedFd,
}

/// Redirects the frames of the first `queues` queues of the interface `name` to sockets. Retries
/// while the interface is busy, because the kernel releases closed sockets and programs some
/// milliseconds late.
pub fn open(name: &str, queues: u16, mode: Mode) -> Result<Xdp, XdpError> {
    for _ in 0..XDP_CLOSE_MILLIS {
        match open_now(name, queues, mode) {
            Err(XdpError::Busy) => std::thread::sleep(Duration::from_millis(1)),
            result => return result,
        }
    }
    open_now(name, queues, mode)
}

fn open_now(name: &str, queues: u16, mode: Mode) -> Result<Xdp, XdpError> {
    let link = examine(name, queues)?;
    let sockets = program::Sockets::new(queues.into()).map_err(failed("bpf map"))?;
    let program = sockets.load().map_err(failed("bpf program"))?;
    let mut opened = Vec::with_capacity(queues.into());
    for queue in 0..u32::from(queues) {
        let socket = XdpQueue::open(&link, queue)?;
        sockets.enter(queue, socket.as_fd()).map_err(failed("bpf map entry"))?;
        opened.push(socket);
    }
    let _promiscuous = promiscuous(link.index).map_err(failed("PACKET_MR_PROMISC"))?;
    let (_link, mode, why) = attach(&program, link.index, mode)?;
    let attachment = Arc::new(Attachment { _link, _promiscuous });
    opened.iter_mut().for_each(|queue| queue.hold(&attachment));
    Ok(Xdp { link, mode, why, queues: opened })
}

/// Checks that `queues` queues of the interface `name` can be opened, as far as the check can tell
/// without opening them.
pub fn check(name: &str, queues: u16) -> Result<(), XdpError> {
    match examine(name, queues) {
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns the interface, if its MTU and number of queues can be served.
fn examine(name: &str, queues: u16) -> Result<Link, XdpError> {
    if !is_valid_name(name) {
        return Err(XdpError::BadName);
    }
    let link = netlink::link_by_name(name)?.ok_or(XdpError::Absent)?;
    if u64::from(link.mtu) > MAX_XDP_MTU {
        return Err(XdpError::LongMtu(link.mtu));
    }
    let there = ethtool::queues(name).map_or(MAX_XDP_QUEUES.into(), |(receive, send)| {
        receive.min(send).min(MAX_XDP_QUEUES.into())
    });
    if queues == 0 || u32::from(queues) > there {
        return Err(XdpError::FewQueues { wanted: queues, there });
    }
    Ok(link)
}

/// Attaches the program in mode `wanted`; returns the link, the mode in use, and the reason why the
/// program does not run in the driver.
fn attach(
    program: &OwnedFd,
    interface: u32,
    wanted: Mode,
) -> Result<(OwnedFd, Mode, Option<String>), XdpError> {
    let mut why = None;
    if wanted != Mode::Generic {
        match program::attach(program.as_fd(), interface, Mode::Native) {
            Ok(link) => return Ok((link, Mode::Native, None)),
            Err(error) => match XdpError::from_io("attach", error) {
                XdpError::Io { source, .. } if wanted == Mode::Auto => {
                    why = Some(source.to_string())
                }
                XdpError::Io { source, .. } => return Err(XdpError::NotNative(source)),
                other => return Err(other),
            },
        }
    }
    let link =
        program::attach(program.as_fd(), interface, Mode::Generic).map_err(failed("attach"))?;
    Ok((link, Mode::Generic, why))
}

/// Makes the interface promiscuous until the returned socket is closed. The socket receives no
/// frames.
fn promiscuous(interface: u32) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
    let request = libc::packet_mreq {
        mr_ifindex: interface as libc::c_int,
        mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    let (level, name) = (libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP);
    let len = size_of_val(&request) as libc::socklen_t;
    // Uses libc: rustix has no options of packet sockets.
    // SAFETY: the kernel reads a whole `packet_mreq`.
    let done = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const request).cast(), len)
    };
    if done == 0 { Ok(socket) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests;
