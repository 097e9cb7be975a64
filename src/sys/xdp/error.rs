//! The reasons why an interface cannot be opened.

use std::io;

use rustix::io::Errno;

use crate::netlink::NetlinkError;
use base::limits::MAX_XDP_MTU;

/// The reason why an interface cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum XdpError {
    /// The kernel does not accept the name for an interface.
    #[error("not an interface name (1 to 15 bytes without '/', ':', '%' and white space)")]
    BadName,
    /// The number of queues is zero, or exceeds the interface's queues or the limit.
    #[error("queues={wanted}, and it has {there}")]
    FewQueues {
        /// The configured number of queues.
        wanted: u16,
        /// The number of queues of the interface.
        there: u32,
    },
    /// The interface's packets do not fit a chunk.
    #[error("its MTU of {0} exceeds {MAX_XDP_MTU}: ip link set IFNAME mtu {MAX_XDP_MTU}, or a tap")]
    LongMtu(u32),
    /// No interface has the name.
    #[error("no such interface")]
    Absent,
    /// The kernel has no AF_XDP sockets.
    #[error("this kernel has no AF_XDP (CONFIG_XDP_SOCKETS)")]
    NoSockets,
    /// A capability is missing.
    #[error("not permitted without CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF")]
    Permission,
    /// The process may not lock the memory for frames.
    #[error("not permitted to lock 10 MiB of memory for each queue (LimitMEMLOCK=)")]
    Locked,
    /// Another program or socket uses the interface.
    #[error("in use by another XDP program or socket, which ip -details link show names")]
    Busy,
    /// The driver cannot run this program at present.
    #[error("its driver runs no XDP program (mode=native): {0}")]
    NotNative(io::Error),
    /// Reading the interface by netlink failed.
    #[error("cannot examine the interface: {0}")]
    Netlink(#[from] NetlinkError),
    /// Another call failed.
    #[error("{call}: {source}")]
    Io {
        /// The failed call.
        call: &'static str,
        /// The cause of the failure.
        source: io::Error,
    },
}

impl XdpError {
    /// Returns a converter for the errno of a call.
    pub(super) fn of(call: &'static str) -> impl Fn(Errno) -> XdpError {
        move |errno| XdpError::from_io(call, errno.into())
    }

    pub(super) fn from_io(call: &'static str, source: io::Error) -> XdpError {
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => XdpError::Permission,
            Some(libc::EBUSY | libc::EEXIST) => XdpError::Busy,
            Some(libc::EAFNOSUPPORT) => XdpError::NoSockets,
            Some(libc::ENODEV) => XdpError::Absent,
            _ => XdpError::Io { call, source },
        }
    }
}

/// Returns a converter for the error of a call.
pub(super) fn failed(call: &'static str) -> impl Fn(io::Error) -> XdpError {
    move |source| XdpError::from_io(call, source)
}
