//! The requests that connect a VDUSE device with the kernel's driver, and set up the interface that
//! the driver makes (generic netlink family `vdpa`, `linux/vdpa.h`; rtnetlink(7)).
//!
//! The kernel handles a request for a device inside `send`, and the driver sends messages to the
//! device meanwhile: another thread must answer these.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

use rustix::net::netlink::GENERIC;

use base::frame::MacAddr;

use super::{
    IFINFO_LEN, Link, NetlinkError, Request, attributes, exchange, exchange_over, ifinfo,
    parse_link, text, u16_at, u32_at,
};

// Constants of linux/vdpa.h.
const VDPA_CMD_DEV_NEW: u8 = 3;
const VDPA_CMD_DEV_DEL: u8 = 4;
const VDPA_CMD_DEV_GET: u8 = 5;
const VDPA_CMD_DEV_CONFIG_GET: u8 = 6;
const VDPA_ATTR_MGMTDEV_DEV_NAME: u16 = 2;
const VDPA_ATTR_DEV_NAME: u16 = 4;
const VDPA_ATTR_DEV_ID: u16 = 5;
const VDPA_ATTR_DEV_VENDOR_ID: u16 = 6;
const VDPA_ATTR_DEV_MAX_VQ_SIZE: u16 = 8;
const VDPA_ATTR_DEV_NET_CFG_MACADDR: u16 = 10;
const VDPA_ATTR_DEV_NET_CFG_MTU: u16 = 13;
const VDPA_ATTR_VDPA_DEV_SUPPORTED_FEATURES: u16 = 21;
// Constants of linux/genetlink.h and linux/if_link.h that libc lacks.
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const IFLA_PARENT_DEV_NAME: u16 = 56;
const IFLA_PARENT_DEV_BUS_NAME: u16 = 57;
/// Directory of the connected devices, each with its virtio device.
const DEVICES: &str = "/sys/bus/vdpa/devices";
/// Length of `struct genlmsghdr`: command, version, two reserved bytes.
const GENL_LEN: usize = 4;

/// The network namespace of an interface.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Namespace<'a> {
    /// The namespace of a process.
    Process(u32),
    /// An open namespace.
    Open(BorrowedFd<'a>),
}

/// Connects a VDUSE device with the kernel's driver.
pub(crate) fn add(name: &str) -> Result<(), NetlinkError> {
    let mut request = request(VDPA_CMD_DEV_NEW, name)?;
    request.attribute(VDPA_ATTR_MGMTDEV_DEV_NAME, b"vduse\0");
    exchange_over(Some(GENERIC), &request, |_, _| ())
}

/// Separates a VDUSE device from the driver, which removes its interface.
pub(crate) fn delete(name: &str) -> Result<(), NetlinkError> {
    exchange_over(Some(GENERIC), &request(VDPA_CMD_DEV_DEL, name)?, |_, _| ())
}

/// Returns a request about a device.
fn request(command: u8, name: &str) -> Result<Request, NetlinkError> {
    let mut request = Request::new(family()?, 0, &[command, 1, 0, 0]);
    request.attribute(VDPA_ATTR_DEV_NAME, &[name.as_bytes(), b"\0"].concat());
    Ok(request)
}

/// Returns the kernel's number of the family `vdpa`; `Refused` with ENOENT without the module.
fn family() -> Result<u16, NetlinkError> {
    let kind = libc::GENL_ID_CTRL as u16;
    let mut request = Request::new(kind, 0, &[CTRL_CMD_GETFAMILY, 1, 0, 0]);
    request.attribute(CTRL_ATTR_FAMILY_NAME, b"vdpa\0");
    let mut id = None;
    exchange_over(Some(GENERIC), &request, |_, body| id = id.or(family_in(body)))?;
    id.ok_or(NetlinkError::Malformed)
}

fn family_in(body: &[u8]) -> Option<u16> {
    let mut all = attributes(body.get(GENL_LEN..)?);
    all.find(|(kind, _)| *kind == CTRL_ATTR_FAMILY_ID).and_then(|(_, value)| u16_at(value, 0))
}

/// A connected device.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Connected {
    pub(crate) name: String,
    /// Virtio's number of the kind of device.
    pub(crate) kind: u32,
    /// Number by which the device's maker marked the device.
    pub(crate) vendor: u32,
    /// Descriptors of each ring.
    pub(crate) ring_size: u16,
}

/// The configuration of a connected network device.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NetConfig {
    /// Virtio features that the driver is offered; none before Linux 6.1.
    pub(crate) features: Option<u64>,
    pub(crate) mac: Option<MacAddr>,
    pub(crate) mtu: Option<u16>,
}

/// Returns all connected devices; none without the module.
pub(crate) fn connected() -> Result<Vec<Connected>, NetlinkError> {
    let family = match family() {
        Err(NetlinkError::Refused(libc::ENOENT)) => return Ok(Vec::new()),
        family => family?,
    };
    let flags = libc::NLM_F_DUMP as u16;
    let (request, mut all) =
        (Request::new(family, flags, &[VDPA_CMD_DEV_GET, 1, 0, 0]), Vec::new());
    exchange_over(Some(GENERIC), &request, |_, body| all.extend(connected_in(body)))?;
    Ok(all)
}

/// Returns the connected device of a name; none if no device of the name is connected.
pub(crate) fn connected_as(name: &str) -> Result<Option<Connected>, NetlinkError> {
    let mut found = None;
    let asked = exchange_over(Some(GENERIC), &request(VDPA_CMD_DEV_GET, name)?, |_, body| {
        found = found.take().or(connected_in(body));
    });
    match asked {
        Err(NetlinkError::Refused(libc::ENODEV)) => Ok(None),
        asked => asked.map(|()| found),
    }
}

/// Returns the configuration of a connected network device; fails until the driver has negotiated
/// features.
pub(crate) fn config_of(name: &str) -> Result<NetConfig, NetlinkError> {
    let mut config = None;
    exchange_over(Some(GENERIC), &request(VDPA_CMD_DEV_CONFIG_GET, name)?, |_, body| {
        config = config.or(config_in(body));
    })?;
    config.ok_or(NetlinkError::Malformed)
}

fn connected_in(body: &[u8]) -> Option<Connected> {
    let mut found = Connected::default();
    for (kind, value) in attributes(body.get(GENL_LEN..)?) {
        match kind {
            VDPA_ATTR_DEV_NAME => found.name = text(value),
            VDPA_ATTR_DEV_ID => found.kind = u32_at(value, 0)?,
            VDPA_ATTR_DEV_VENDOR_ID => found.vendor = u32_at(value, 0)?,
            VDPA_ATTR_DEV_MAX_VQ_SIZE => found.ring_size = u16_at(value, 0)?,
            _ => {}
        }
    }
    (!found.name.is_empty()).then_some(found)
}

fn config_in(body: &[u8]) -> Option<NetConfig> {
    let mut found = NetConfig::default();
    for (kind, value) in attributes(body.get(GENL_LEN..)?) {
        match kind {
            VDPA_ATTR_VDPA_DEV_SUPPORTED_FEATURES => {
                found.features = value.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
            }
            VDPA_ATTR_DEV_NET_CFG_MACADDR => found.mac = value.first_chunk().map(|m| MacAddr(*m)),
            VDPA_ATTR_DEV_NET_CFG_MTU => found.mtu = u16_at(value, 0),
            _ => {}
        }
    }
    Some(found)
}

/// Returns the interface of a connected device, if it is in the present network namespace.
pub(crate) fn interface_of(device: &str) -> Result<Option<Link>, NetlinkError> {
    let request = Request::new(libc::RTM_GETLINK, libc::NLM_F_DUMP as u16, &ifinfo(0, 0, 0));
    let (directory, mut found) = (Path::new(DEVICES).join(device), None);
    exchange(&request, |kind, body| {
        let is_of_device = || virtio_device(body).is_some_and(|name| directory.join(name).exists());
        if kind == libc::RTM_NEWLINK && is_of_device() {
            found = found.take().or(parse_link(body));
        }
    })?;
    Ok(found)
}

/// Returns the name of an interface's virtio device, if the interface has one.
fn virtio_device(body: &[u8]) -> Option<String> {
    let all = || attributes(body.get(IFINFO_LEN..).unwrap_or_default());
    let find = |wanted| all().find(|(kind, _)| *kind == wanted).map(|(_, value)| text(value));
    find(IFLA_PARENT_DEV_NAME)
        .filter(|_| find(IFLA_PARENT_DEV_BUS_NAME).as_deref() == Some("virtio"))
}

/// Moves an interface to a network namespace, names it, and brings it up.
pub(crate) fn place(
    index: u32,
    name: &str,
    namespace: Option<Namespace<'_>>,
) -> Result<(), NetlinkError> {
    let up = libc::IFF_UP as u32;
    let mut request = Request::new(libc::RTM_SETLINK, 0, &ifinfo(index, up, up));
    request.attribute(libc::IFLA_IFNAME, &[name.as_bytes(), b"\0"].concat());
    match namespace {
        Some(Namespace::Process(pid)) => {
            request.attribute(libc::IFLA_NET_NS_PID, &pid.to_ne_bytes());
        }
        Some(Namespace::Open(file)) => {
            request.attribute(libc::IFLA_NET_NS_FD, &file.as_raw_fd().to_ne_bytes());
        }
        None => {}
    }
    exchange(&request, |_, _| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::link_by_name;
    use crate::tap::{self, Missing};
    use crate::testns;
    use base::frame::Offloads;

    #[test]
    fn a_device_that_is_not_there_is_refused_with_or_without_the_module() {
        for done in [add("nosuch"), delete("nosuch")] {
            assert!(matches!(done, Err(NetlinkError::Refused(_) | NetlinkError::Permission)));
        }
    }

    #[test]
    fn garbage_has_no_family_and_is_of_no_virtio_device() {
        let bytes: Vec<u8> = (0..=255).collect();
        for len in 0..bytes.len() {
            let _ = (family_in(&bytes[..len]), virtio_device(&bytes[..len]));
            let _ = (connected_in(&bytes[..len]), config_in(&bytes[..len]));
        }
        let body = [&[0; GENL_LEN][..], &[6, 0, 1, 0, 0x19, 0, 0, 0]].concat();
        assert_eq!(family_in(&body), Some(u16::from_ne_bytes([0x19, 0])));
    }

    #[test]
    fn a_device_and_its_configuration_are_read_as_the_kernel_writes_them() {
        let mut made = Request(vec![0; GENL_LEN]);
        made.attribute(VDPA_ATTR_DEV_NAME, b"web\0");
        made.attribute(VDPA_ATTR_DEV_ID, &1u32.to_ne_bytes());
        made.attribute(VDPA_ATTR_DEV_VENDOR_ID, &0x5653_0017u32.to_ne_bytes());
        made.attribute(VDPA_ATTR_DEV_MAX_VQ_SIZE, &256u16.to_ne_bytes());
        made.attribute(VDPA_ATTR_DEV_NET_CFG_MACADDR, &[2, 0, 0, 0, 0, 1]);
        made.attribute(VDPA_ATTR_DEV_NET_CFG_MTU, &9000u16.to_ne_bytes());
        made.attribute(VDPA_ATTR_VDPA_DEV_SUPPORTED_FEATURES, &(1u64 << 33).to_ne_bytes());
        let device = Connected { name: "web".into(), kind: 1, vendor: 0x5653_0017, ring_size: 256 };
        assert_eq!(connected_in(&made.0), Some(device));
        let mac = Some(MacAddr([2, 0, 0, 0, 0, 1]));
        let config = NetConfig { features: Some(1 << 33), mac, mtu: Some(9000) };
        assert_eq!(config_in(&made.0), Some(config));
    }

    #[test]
    fn an_interface_gets_its_name_and_is_brought_up() {
        testns::run(|| {
            let tap = tap::open("v0", 1, Offloads::NONE, Missing::Create).unwrap();
            assert!(interface_of("v0").unwrap().is_none(), "a TAP is no virtio device");
            place(tap.link.index, "container0", None).unwrap();
            let link = link_by_name("container0").unwrap().unwrap();
            assert_eq!((link.index, link.up), (tap.link.index, true));
            let gone = place(tap.link.index, "x", Some(Namespace::Process(u32::MAX >> 1)));
            assert!(matches!(gone, Err(NetlinkError::Refused(_))), "{gone:?}");
        });
    }
}
