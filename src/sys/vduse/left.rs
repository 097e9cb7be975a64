//! Devices that an earlier process has left: whose a device is, and whether the device can go on.

use super::{Device, NET_DEVICE, Properties, RINGS, Served, VduseError};
use crate::netlink::NetlinkError;
use crate::netlink::vdpa::{self, Connected, NetConfig};

/// Mark of all switches' devices, in the upper half of a device's vendor.
const MARK: u32 = 0x5653;
/// Why a device is replaced that is connected with no driver: such a device has no interface, and
/// the kernel does not tell its properties.
pub(super) const UNCONNECTED: &str = "an earlier process has not connected the device";

/// Returns the mark by which a switch knows its devices, which is a device's vendor. `number` tells
/// the switches of a machine apart.
pub fn mark(number: u16) -> u32 {
    MARK << 16 | u32::from(number)
}

/// Returns the names of the connected devices that a switch of this mark has left or serves.
pub fn marked(mark: u32) -> Result<Vec<String>, NetlinkError> {
    let all = vdpa::connected()?.into_iter();
    Ok(all.filter(|device| is_ours(device, mark)).map(|device| device.name).collect())
}

fn is_ours(device: &Connected, mark: u32) -> bool {
    device.kind == NET_DEVICE && device.vendor == mark
}

/// Returns the reason why the present device of a name cannot go on as `wanted`, if there is a
/// reason. Returns an error for a device of another program, such as DPDK.
pub(super) fn difference(wanted: &Properties) -> Result<Option<&'static str>, VduseError> {
    let failed = |error| VduseError::Add(wanted.name.clone(), error);
    let Some(device) = vdpa::connected_as(&wanted.name).map_err(failed)? else {
        return Ok(Some(UNCONNECTED));
    };
    if !is_ours(&device, wanted.mark) {
        return Err(VduseError::Foreign(wanted.name.clone()));
    }
    // The kernel tells no configuration until the driver has negotiated features.
    Ok(differs(wanted, device.ring_size, vdpa::config_of(&wanted.name).ok()))
}

impl Device {
    /// False if the device has more or fewer rings than the devices of switches: another program
    /// has made the device, and not connected it yet. The kernel tells nothing else of such a
    /// device.
    pub(super) fn may_be_ours(&self) -> bool {
        let is_missing =
            |index| self.ring(index).is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL));
        !is_missing(RINGS - 1) && is_missing(RINGS) || self.is_broken()
    }
}

/// Returns the first difference of a device.
fn differs(wanted: &Properties, ring_size: u16, config: Option<NetConfig>) -> Option<&'static str> {
    if ring_size != wanted.ring_size {
        return Some("the device has another ring-size");
    }
    let config = config?;
    let others = config.features.map_or(0, |features| features ^ wanted.features);
    if wanted.mac.is_some() && config.mac.is_some() && config.mac != wanted.mac {
        Some("the device has another address")
    } else if others & wanted.choosable != 0 || config.mtu.is_some() && config.mtu != wanted.mtu {
        Some("the device has other offloads, or another MTU")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::frame::MacAddr;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const CSUM: u64 = 1;
    const MTU: u64 = 1 << 3;
    const NEWER: u64 = 1 << 35;

    fn wanted() -> Properties {
        Properties {
            name: "web".into(),
            ifname: "eth0".into(),
            netns: None,
            features: CSUM | MTU | NEWER,
            choosable: CSUM | MTU,
            mac: Some(MAC),
            mtu: Some(1500),
            ring_size: 256,
            mark: mark(7),
        }
    }

    #[test]
    fn a_device_goes_on_that_lacks_only_what_nobody_chose() {
        let config = NetConfig { features: Some(CSUM | MTU), mac: Some(MAC), mtu: Some(1500) };
        assert_eq!(differs(&wanted(), 256, Some(config)), None);
        let any_address = Properties { mac: None, ..wanted() };
        let config = NetConfig { mac: Some(MacAddr([2; 6])), ..config };
        assert_eq!(differs(&any_address, 256, Some(config)), None);
        assert_eq!(differs(&wanted(), 256, None), None);
    }

    #[test]
    fn each_chosen_property_of_a_device_is_compared() {
        let same = NetConfig { features: Some(CSUM | MTU), mac: Some(MAC), mtu: Some(1500) };
        for other in [
            NetConfig { features: Some(MTU), ..same },
            NetConfig { features: Some(CSUM), mtu: None, ..same },
            NetConfig { mac: Some(MacAddr([2; 6])), ..same },
            NetConfig { mtu: Some(9000), ..same },
        ] {
            assert!(differs(&wanted(), 256, Some(other)).is_some(), "{other:?}");
        }
        assert!(differs(&wanted(), 64, Some(same)).is_some());
    }

    #[test]
    fn a_device_of_another_program_or_switch_is_not_ours() {
        let device = |vendor| Connected { kind: NET_DEVICE, vendor, ..Connected::default() };
        assert!(is_ours(&device(mark(7)), mark(7)));
        assert!(!is_ours(&device(mark(8)), mark(7)) && !is_ours(&device(0), mark(7)));
        assert!(!is_ours(&Connected { kind: 2, ..device(mark(7)) }, mark(7)));
    }
}
