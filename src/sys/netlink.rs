//! The rtnetlink requests of an uplink: read an interface, bring it up, set its MTU and its
//! queueing discipline (rtnetlink(7), `linux/rtnetlink.h`, `linux/if_link.h`).
//!
//! Each request has its own socket, so that a late answer cannot be taken for the next answer.
//! Replies are bounded in time and number, must come from the kernel, and are parsed with checked
//! slices only.
//!
//! Rule: a worker never calls this module. The kernel handles a request inside `send`, under the
//! lock of the whole network configuration (RTNL), which another process may hold for a while.

pub(crate) mod vdpa;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::poll::{Interest, is_ready_by};
use base::frame::MacAddr;
use base::limits::{NETLINK_MAX_MESSAGES, NETLINK_TIMEOUT_MILLIS};

// Constants of linux/if_link.h and linux/if_tun.h that libc lacks.
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_INFO_SLAVE_KIND: u16 = 4;
const IFLA_BR_VLAN_FILTERING: u16 = 7;
const IFLA_TUN_TYPE: u16 = 3;
const IFLA_TUN_VNET_HDR: u16 = 5;
const IFLA_TUN_PERSIST: u16 = 6;
const IFLA_TUN_MULTI_QUEUE: u16 = 7;
const IFLA_TUN_NUM_QUEUES: u16 = 8;

/// Parent of the root queueing discipline (`TC_H_ROOT`).
const ROOT: u32 = 0xffff_ffff;

/// Sequence number of every request; a constant, because each request has its own socket.
const SEQUENCE: u32 = 1;
/// `struct nlmsghdr`: length, type, flags, sequence, port.
const HEADER_LEN: usize = 16;
/// `struct ifinfomsg`
const IFINFO_LEN: usize = 16;
/// `struct tcmsg`
const TCMSG_LEN: usize = 20;
/// Bytes of the receive buffer: the kernel fills datagrams of a dump up to 32 KiB, and no single
/// message is longer.
pub(super) const BUFFER_LEN: usize = 32 * 1024;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// CAP_NET_ADMIN is missing in the user namespace that owns the network namespace.
    #[error("not permitted")]
    Permission,
    /// The kernel refused the request, with this errno.
    #[error("refused by the kernel: {}", io::Error::from_raw_os_error(*.0))]
    Refused(i32),
    /// A socket call failed.
    #[error("netlink socket: {0}")]
    Socket(#[from] io::Error),
    /// No complete answer in [`NETLINK_TIMEOUT_MILLIS`].
    #[error("no answer from the kernel")]
    Timeout,
    /// The answer cannot be parsed, or has more than [`NETLINK_MAX_MESSAGES`] messages.
    #[error("unexpected answer from the kernel")]
    Malformed,
}

/// The TUN/TAP driver's properties of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TunInfo {
    /// True for a TAP (Ethernet frames), false for a TUN (IP packets).
    pub(crate) tap: bool,
    /// The interface was created with `multi_queue`.
    pub(crate) multi_queue: bool,
    /// Frames carry a virtio-net header.
    pub(crate) vnet_hdr: bool,
    /// The interface outlives the descriptors attached to it.
    pub(crate) persistent: bool,
    /// Descriptors attached, by any process; only known if `multi_queue`, else 0.
    pub(crate) queues: u32,
}

/// One network interface.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Link {
    /// Interface index; does not change when the interface is renamed.
    pub index: u32,
    /// Name at the time of asking.
    pub name: String,
    /// Hardware address; zero if the interface has no address of six bytes.
    pub mac: MacAddr,
    /// Largest payload in bytes, Ethernet header not counted.
    pub mtu: u32,
    /// Administratively up (IFF_UP).
    pub up: bool,
    /// Kind of the root queueing discipline; `noop` while the interface was never up.
    pub qdisc: String,
    /// Driver kind such as `tun` or `bridge`; empty for most hardware.
    pub kind: String,
    /// Interface index of the bridge that the interface is a port of.
    pub bridge: Option<u32>,
    /// True for a bridge with VLAN filtering.
    pub filters_vlans: bool,
    /// Properties of a TUN or TAP; only for kind `tun`.
    pub tun: Option<TunInfo>,
}

/// Returns the interface with this name, if there is one.
pub(crate) fn link_by_name(name: &str) -> Result<Option<Link>, NetlinkError> {
    let mut request = Request::new(libc::RTM_GETLINK, 0, &ifinfo(0, 0, 0));
    request.attribute(libc::IFLA_IFNAME, &[name.as_bytes(), b"\0"].concat());
    query_link(&request)
}

/// Returns the interface with this index, if there is one.
pub fn link_by_index(index: u32) -> Result<Option<Link>, NetlinkError> {
    query_link(&Request::new(libc::RTM_GETLINK, 0, &ifinfo(index, 0, 0)))
}

/// Brings an interface up.
pub fn set_up(index: u32) -> Result<(), NetlinkError> {
    let up = libc::IFF_UP as u32;
    exchange(&Request::new(libc::RTM_NEWLINK, 0, &ifinfo(index, up, up)), |_, _| ())
}

/// Sets an interface's MTU. An MTU out of the driver's range is [`NetlinkError::Refused`] with
/// EINVAL.
pub fn set_mtu(index: u32, mtu: u32) -> Result<(), NetlinkError> {
    let mut request = Request::new(libc::RTM_NEWLINK, 0, &ifinfo(index, 0, 0));
    request.attribute(libc::IFLA_MTU, &mtu.to_ne_bytes());
    exchange(&request, |_, _| ())
}

/// Replaces the root queueing discipline of an interface, on all its queues, by `noqueue`. Kernels
/// before Linux 4.3 refuse that.
pub fn set_noqueue(index: u32) -> Result<(), NetlinkError> {
    set_root_qdisc(index, "noqueue")
}

/// Replaces the root queueing discipline by kind `kind` with its default options.
fn set_root_qdisc(index: u32, kind: &str) -> Result<(), NetlinkError> {
    let flags = (libc::NLM_F_CREATE | libc::NLM_F_REPLACE) as u16;
    let mut request = Request::new(libc::RTM_NEWQDISC, flags, &tcmsg(index, ROOT));
    request.attribute(libc::TCA_KIND, &[kind.as_bytes(), b"\0"].concat());
    exchange(&request, |_, _| ())
}

fn query_link(request: &Request) -> Result<Option<Link>, NetlinkError> {
    let mut link = None;
    let result = exchange(request, |kind, body| {
        if kind == libc::RTM_NEWLINK {
            link = parse_link(body);
        }
    });
    match result {
        Ok(()) => link.map(Some).ok_or(NetlinkError::Malformed),
        Err(NetlinkError::Refused(libc::ENODEV)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn parse_link(body: &[u8]) -> Option<Link> {
    let mut link = Link {
        index: u32_at(body, 4)?,
        up: u32_at(body, 8)? & libc::IFF_UP as u32 != 0,
        ..Link::default()
    };
    for (kind, value) in attributes(body.get(IFINFO_LEN..)?) {
        match kind {
            libc::IFLA_ADDRESS => link.mac = MacAddr(value.try_into().unwrap_or_default()),
            libc::IFLA_IFNAME => link.name = text(value),
            libc::IFLA_MTU => link.mtu = u32_at(value, 0)?,
            libc::IFLA_QDISC => link.qdisc = text(value),
            libc::IFLA_LINKINFO => parse_link_info(value, &mut link),
            _ => {}
        }
    }
    link.bridge = bridge_of(body);
    Some(link)
}

/// A change of an interface.
#[derive(Debug)]
pub enum LinkNews {
    /// An interface has these properties now.
    Is(Link),
    /// An interface was deleted, or moved to another network namespace.
    Gone,
}

/// Calls `each` for each interface that a datagram describes; `None` if the datagram is malformed.
/// Messages without an MTU are skipped, and so is the message that an interface left its bridge,
/// because another message describes the interface then.
pub(super) fn links_in(mut datagram: &[u8], mut each: impl FnMut(LinkNews)) -> Option<()> {
    while !datagram.is_empty() {
        let (kind, body, rest) = split_message(datagram)?;
        datagram = rest;
        let of_bridge = body.first() == Some(&(libc::AF_BRIDGE as u8));
        if kind == libc::RTM_DELLINK && !of_bridge {
            each(LinkNews::Gone);
        }
        if kind == libc::RTM_NEWLINK
            && let Some(link) = parse_link(body).filter(|link| link.mtu != 0)
        {
            each(LinkNews::Is(link));
        }
    }
    Some(())
}

/// Returns the index of the bridge that an interface is a port of. IFLA_MASTER names a bridge if
/// the message is of family AF_BRIDGE, or if IFLA_INFO_SLAVE_KIND is `bridge`.
fn bridge_of(body: &[u8]) -> Option<u32> {
    let all = || attributes(body.get(IFINFO_LEN..).unwrap_or_default());
    let find = |wanted| all().find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
    let kind = |nested| attributes(nested).find(|(kind, _)| *kind == IFLA_INFO_SLAVE_KIND);
    let told =
        find(libc::IFLA_LINKINFO).and_then(kind).is_some_and(|(_, kind)| text(kind) == "bridge");
    let own = body.first() == Some(&(libc::AF_BRIDGE as u8));
    find(libc::IFLA_MASTER).filter(|_| told || own).and_then(|master| u32_at(master, 0))
}

fn parse_link_info(nested: &[u8], link: &mut Link) {
    // The kind precedes the data, whose meaning depends on the kind.
    for (kind, value) in attributes(nested) {
        match kind {
            IFLA_INFO_KIND => link.kind = text(value),
            IFLA_INFO_DATA if link.kind == "tun" => link.tun = Some(parse_tun(value)),
            IFLA_INFO_DATA if link.kind == "bridge" => {
                let mut of_bridge = attributes(value);
                let filters = of_bridge.find(|(kind, _)| *kind == IFLA_BR_VLAN_FILTERING);
                link.filters_vlans = filters.is_some_and(|(_, flag)| flag.first() == Some(&1));
            }
            _ => {}
        }
    }
}

fn parse_tun(nested: &[u8]) -> TunInfo {
    let mut tun = TunInfo::default();
    for (kind, value) in attributes(nested) {
        let flag = value.first().is_some_and(|byte| *byte != 0);
        match kind {
            IFLA_TUN_TYPE => tun.tap = value.first() == Some(&(libc::IFF_TAP as u8)),
            IFLA_TUN_VNET_HDR => tun.vnet_hdr = flag,
            IFLA_TUN_PERSIST => tun.persistent = flag,
            IFLA_TUN_MULTI_QUEUE => tun.multi_queue = flag,
            IFLA_TUN_NUM_QUEUES => tun.queues = u32_at(value, 0).unwrap_or(0),
            _ => {}
        }
    }
    tun
}

/// Returns a `struct ifinfomsg` for AF_UNSPEC.
fn ifinfo(index: u32, flags: u32, change: u32) -> [u8; IFINFO_LEN] {
    let mut body = [0; IFINFO_LEN];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    body[8..12].copy_from_slice(&flags.to_ne_bytes());
    body[12..16].copy_from_slice(&change.to_ne_bytes());
    body
}

/// Returns a `struct tcmsg` for AF_UNSPEC; the kernel chooses the handle.
fn tcmsg(index: u32, parent: u32) -> [u8; TCMSG_LEN] {
    let mut body = [0; TCMSG_LEN];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    body[12..16].copy_from_slice(&parent.to_ne_bytes());
    body
}

/// Returns the attributes in `bytes` (`struct nlattr`: length with header, type, value, padding to
/// 4), up to the first attribute that does not fit.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16_at(bytes, 0)?);
        // The two upper bits say "nested" and "network byte order".
        let kind = u16_at(bytes, 2)? & 0x3fff;
        let value = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|chunk| u16::from_ne_bytes(*chunk))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|chunk| u32::from_ne_bytes(*chunk))
}

/// Returns the text of a NUL-terminated name.
fn text(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

/// A request under construction.
struct Request(Vec<u8>);

impl Request {
    fn new(kind: u16, flags: u16, body: &[u8]) -> Request {
        // NLM_F_ACK: success and failure both end in a message.
        let flags = flags | (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(SEQUENCE.to_ne_bytes());
        bytes.extend(0u32.to_ne_bytes());
        bytes.extend(body);
        Request(bytes)
    }

    /// Appends an attribute. Values are names and numbers, far below the limit of 64 KiB.
    fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.0.extend((4 + value.len() as u16).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    /// Returns the complete message.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.0.clone();
        let len = bytes.len() as u32;
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        bytes
    }
}

/// Sends a request and calls `each` with type and body of every message of the answer.
fn exchange(request: &Request, each: impl FnMut(u16, &[u8])) -> Result<(), NetlinkError> {
    exchange_over(None, request, each)
}

/// Sends a request over a netlink protocol, NETLINK_ROUTE for `None`, and calls `each` with type
/// and body of every message of the answer.
fn exchange_over(
    protocol: Option<Protocol>,
    request: &Request,
    mut each: impl FnMut(u16, &[u8]),
) -> Result<(), NetlinkError> {
    let deadline = Instant::now() + Duration::from_millis(NETLINK_TIMEOUT_MILLIS);
    let socket = send(protocol, &request.bytes())?;
    let mut buffer = vec![0; BUFFER_LEN];
    let mut budget = NETLINK_MAX_MESSAGES;
    loop {
        let mut datagram = receive(&socket, &mut buffer, deadline)?;
        while !datagram.is_empty() {
            budget = budget.checked_sub(1).ok_or(NetlinkError::Malformed)?;
            let (kind, body, rest) = split_message(datagram).ok_or(NetlinkError::Malformed)?;
            datagram = rest;
            match i32::from(kind) {
                libc::NLMSG_NOOP => {}
                libc::NLMSG_DONE => return Ok(()),
                libc::NLMSG_ERROR => return outcome(body),
                _ => each(kind, body),
            }
        }
    }
}

/// Returns type and body of the first message, and the bytes behind the message.
fn split_message(datagram: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let len = u32_at(datagram, 0)? as usize;
    let body = datagram.get(HEADER_LEN..len)?;
    let next = len.checked_next_multiple_of(4)?;
    Some((u16_at(datagram, 4)?, body, datagram.get(next..).unwrap_or_default()))
}

/// Converts the body of an NLMSG_ERROR: a negative errno, or zero for an acknowledgement.
fn outcome(body: &[u8]) -> Result<(), NetlinkError> {
    match u32_at(body, 0).map(u32::cast_signed).ok_or(NetlinkError::Malformed)?.wrapping_neg() {
        0 => Ok(()),
        libc::EPERM | libc::EACCES => Err(NetlinkError::Permission),
        errno => Err(NetlinkError::Refused(errno)),
    }
}

/// Sends `message` to the kernel; returns the socket that the answer comes to.
fn send(protocol: Option<Protocol>, message: &[u8]) -> Result<OwnedFd, NetlinkError> {
    let socket = socket_of(protocol)?;
    // A message without an address goes to the kernel.
    rustix::net::send(&socket, message, SendFlags::empty()).map_err(io::Error::from)?;
    Ok(socket)
}

/// Makes a netlink socket in no multicast group.
pub(super) fn socket() -> io::Result<OwnedFd> {
    socket_of(None)
}

fn socket_of(protocol: Option<Protocol>) -> io::Result<OwnedFd> {
    let (family, flags) = (AddressFamily::NETLINK, SocketFlags::CLOEXEC);
    // No protocol means number 0, NETLINK_ROUTE.
    Ok(rustix::net::socket_with(family, SocketType::RAW, flags, protocol)?)
}

/// Returns the next datagram from the kernel.
fn receive<'a>(
    socket: &OwnedFd,
    buffer: &'a mut [u8],
    deadline: Instant,
) -> Result<&'a [u8], NetlinkError> {
    loop {
        if !is_ready_by(socket.as_fd(), Interest::Read, deadline)? {
            return Err(NetlinkError::Timeout);
        }
        if let Some(len) = receive_from_kernel(socket, buffer)? {
            return buffer.get(..len).ok_or(NetlinkError::Malformed);
        }
    }
}

/// Receives a datagram and returns its length, which may exceed `buffer`; `None` if there is no
/// datagram, or the datagram is not from the kernel. Never waits.
pub(super) fn receive_from_kernel(
    socket: &OwnedFd,
    buffer: &mut [u8],
) -> io::Result<Option<usize>> {
    let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
    let (_, len, from) = match rustix::net::recvfrom(socket, buffer, flags) {
        Ok(received) => received,
        Err(Errno::WOULDBLOCK | Errno::INTR) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // Processes can send to this socket too; the kernel's port is 0.
    let from = from.and_then(|from| SocketAddrNetlink::try_from(from).ok());
    Ok(from.is_some_and(|from| from.pid() == 0).then_some(len))
}

/// Changes an interface (RTM_NEWLINK), or deletes it (RTM_DELLINK), for tests.
#[cfg(test)]
pub(super) fn modify(
    kind: u16,
    index: u32,
    up: Option<bool>,
    attributes: &[(u16, &[u8])],
) -> Result<(), NetlinkError> {
    let change = up.map_or(0, |_| libc::IFF_UP as u32);
    let flags = if up == Some(true) { change } else { 0 };
    let mut request = Request::new(kind, 0, &ifinfo(index, flags, change));
    for (kind, value) in attributes {
        request.attribute(*kind, value);
    }
    exchange(&request, |_, _| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tap::{self, Missing};
    use crate::testns;
    use base::frame::Offloads;

    #[test]
    fn the_loopback_interface_is_described_without_privilege() {
        let lo = link_by_name("lo").unwrap().unwrap();
        assert_eq!((lo.index, lo.name.as_str(), lo.qdisc.as_str()), (1, "lo", "noqueue"));
        assert_eq!((lo.mtu, lo.mac, lo.tun), (65536, MacAddr([0; 6]), None));
        assert_eq!(link_by_index(1).unwrap().unwrap(), lo);
        assert_eq!(link_by_name("nosuchif").unwrap(), None);
        assert_eq!(link_by_index(0x7fff_fff0).unwrap(), None);
    }

    #[test]
    fn noqueue_replaces_whatever_is_there() {
        testns::run(|| {
            for queues in [1, 2] {
                let tap = tap::open("nq0", queues, Offloads::NONE, Missing::Create).unwrap();
                let index = tap.link.index;
                let kind = || link_by_index(index).unwrap().unwrap().qdisc;
                assert_eq!(kind(), "noop", "never up");
                // A discipline that was set before the first "up" is not replaced by the default
                // discipline.
                set_noqueue(index).unwrap();
                set_up(index).unwrap();
                assert_eq!(kind(), "noqueue");
                for other in ["pfifo", "tbf_no_such_thing", "pfifo_fast"] {
                    match set_root_qdisc(index, other) {
                        Ok(()) => assert_eq!(kind(), other),
                        Err(error) => assert!(matches!(error, NetlinkError::Refused(_)), "{error}"),
                    }
                    set_noqueue(index).unwrap();
                    assert_eq!(kind(), "noqueue");
                }
            }
        });
    }

    #[test]
    fn a_refusal_is_named() {
        testns::run(|| {
            assert!(matches!(set_up(4711), Err(NetlinkError::Refused(libc::ENODEV))));
            testns::without_privilege(|| {
                assert!(matches!(set_noqueue(1), Err(NetlinkError::Permission)));
                assert!(matches!(set_up(1), Err(NetlinkError::Permission)));
            });
        });
    }

    #[test]
    fn garbage_from_the_socket_is_an_error_not_a_panic() {
        let mut bytes = [0u8; 64];
        for len in 0..64u32 {
            for cut in 0..bytes.len() {
                bytes[..4].copy_from_slice(&len.to_ne_bytes());
                let _ = split_message(&bytes[..cut]);
                let _ = parse_link(&bytes[..cut]);
                let _ = links_in(&bytes[..cut], |_| ());
                assert!(attributes(&bytes[..cut]).count() <= 16);
            }
        }
        assert!(split_message(&u32::MAX.to_ne_bytes()).is_none());
        assert!(matches!(outcome(&[]), Err(NetlinkError::Malformed)));
        assert!(matches!(outcome(&[0, 0, 0, 0x80]), Err(NetlinkError::Refused(_))));
    }
}
