//! Interfaces whose frames are taken and given past the host's network stack, by sockets of AF_XDP
//! (`Documentation/networking/af_xdp.rst`), a socket for each queue.
//!
//! * `program` has the interface give the frames of these queues to the sockets;
//! * `queue` a socket: taking and sending frames;
//! * `ring` its four rings, which are shared with the kernel;
//! * `memory` where the frames are;
//! * `ethtool` what the driver says of the interface.
//!
//! The kernel copies each frame (XDP_COPY): what a driver without copies would keep of the memory,
//! and for how long, is unknown here. Nothing is left at the interface when the last queue is
//! closed. The interface itself is left as it is, but for being promiscuous while a queue is open.

pub mod ethtool;
mod memory;
mod program;
mod queue;
mod ring;

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::netlink::{self, Link, NetlinkError};
use super::tap::is_valid_name;
use base::limits::{MAX_XDP_MTU, MAX_XDP_QUEUES, XDP_CLOSE_MILLIS};
pub use queue::XdpQueue;

/// Where an interface runs the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// In its driver, or in the kernel if it cannot.
    #[default]
    Auto,
    /// In its driver, before the kernel makes more of a frame.
    Native,
    /// In the kernel, after that: any interface can.
    Generic,
}

/// An interface whose frames come to us.
#[derive(Debug)]
pub struct Xdp {
    /// The interface as it was right before.
    pub link: Link,
    /// Where the program runs.
    pub mode: Mode,
    /// Why not in the driver, if [`Mode::Auto`] was wanted.
    pub why: Option<String>,
    /// The sockets.
    pub queues: Vec<XdpQueue>,
}

/// What has frames come: gone when it is dropped.
#[derive(Debug)]
struct Attachment {
    /// The program.
    _link: OwnedFd,
    /// What makes the interface promiscuous: its guests have other addresses than it has.
    _promiscuous: OwnedFd,
}

/// Why frames of an interface cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum XdpError {
    /// Not a name the kernel accepts for one interface.
    #[error("not an interface name (1 to 15 bytes without '/', ':', '%' and white space)")]
    BadName,
    /// More than it has, or than there may be.
    #[error("queues={wanted}, and it has {there}")]
    FewQueues {
        /// What is configured.
        wanted: u16,
        /// What it has.
        there: u32,
    },
    /// Its packets do not fit a chunk.
    #[error("its MTU of {0} exceeds {MAX_XDP_MTU}: ip link set IFNAME mtu {MAX_XDP_MTU}, or a tap")]
    LongMtu(u32),
    /// There is none of this name.
    #[error("no such interface")]
    Absent,
    /// The kernel has no such sockets.
    #[error("this kernel has no AF_XDP (CONFIG_XDP_SOCKETS)")]
    NoSockets,
    /// A capability is missing.
    #[error("not permitted without CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF")]
    Permission,
    /// The memory for frames may not be locked.
    #[error("not permitted to lock 10 MiB of memory for each queue (LimitMEMLOCK=)")]
    Locked,
    /// A program or a socket has it.
    #[error("in use by another XDP program or socket, which ip -details link show names")]
    Busy,
    /// The driver runs no program, or not this one now.
    #[error("its driver runs no XDP program (mode=native): {0}")]
    NotNative(io::Error),
    /// Looking at the interface failed.
    #[error("cannot examine the interface: {0}")]
    Netlink(#[from] NetlinkError),
    /// Any other failure.
    #[error("{call}: {source}")]
    Io {
        /// What was being done.
        call: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl XdpError {
    /// The meaning of an errno of a call.
    fn of(call: &'static str) -> impl Fn(Errno) -> XdpError {
        move |errno| XdpError::from_io(call, errno.into())
    }

    fn from_io(call: &'static str, source: io::Error) -> XdpError {
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => XdpError::Permission,
            Some(libc::EBUSY | libc::EEXIST) => XdpError::Busy,
            Some(libc::EAFNOSUPPORT) => XdpError::NoSockets,
            Some(libc::ENODEV) => XdpError::Absent,
            _ => XdpError::Io { call, source },
        }
    }
}

fn failed(call: &'static str) -> impl Fn(io::Error) -> XdpError {
    move |source| XdpError::from_io(call, source)
}

/// Has the frames of the first `queues` queues of the interface `name` come to us. The kernel is
/// done with what was closed only a moment ago a little later.
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

/// Whether that may be possible, as far as looking shows.
pub fn check(name: &str, queues: u16) -> Result<(), XdpError> {
    match examine(name, queues) {
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The interface, if its frames and queues are such as can be served.
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

/// Attaches the program as it is wanted; where it runs, and why not in the driver.
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

/// Has the interface take frames for all addresses, until the socket is closed, which gets none.
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
    // By libc: rustix has no options of packet sockets.
    // SAFETY: the kernel reads a whole `packet_mreq`.
    let done = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const request).cast(), len)
    };
    if done == 0 { Ok(socket) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests;
