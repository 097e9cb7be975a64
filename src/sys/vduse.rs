//! VDUSE: network devices whose driver is the kernel's own `virtio_net`, and whose rings this
//! process serves (Linux's `Documentation/userspace-api/vduse.rst`).
//!
//! A [`Device`] is the file `/dev/vduse/NAME`. The kernel sends [`Message`]s, each of which must be
//! answered in time: the driver waits for the answer. [`interface`] connects the device with the
//! driver, which makes a network interface. The device and its interface outlive the process.
//!
//! The kernel copies the packets of the driver into a bounce area, and out of it. The bounce area
//! and the rings are memory that this process maps ([`Device::memory`]).

mod answer;
pub mod interface;
mod left;
mod message;
mod served;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use vmm_sys_util::ioctl::{ioctl, ioctl_with_mut_ref, ioctl_with_ref};

use super::netlink::NetlinkError;
use super::random;
use base::frame::MacAddr;
pub use left::{mark, marked};
pub use message::{Answer, Message, REQUEST_BYTES, Request};
pub use served::{Memory, RingPlace, Served};

/// Directory of the devices.
pub const DIRECTORY: &str = "/dev/vduse";
/// File that makes and removes devices.
const CONTROL: &str = "/dev/vduse/control";
/// Name in [`DIRECTORY`] that no device can have.
const RESERVED: &str = "control";
/// Rings of a device: receive, transmit.
pub const RINGS: u32 = 2;

/// Bit of the status: the driver is ready.
pub const DRIVER_OK: u8 = 4;
/// Virtio's number of network devices.
const NET_DEVICE: u32 = 1;
/// `VDUSE_NAME_MAX`
const NAME_BYTES: usize = 256;
/// `struct virtio_net_config` up to the MTU.
const CONFIG_BYTES: usize = 12;
/// Offset of the link status in the configuration.
const CONFIG_STATUS: u32 = 6;
/// Alignment of the rings that the driver allocates.
const RING_ALIGN: u32 = 4096;
/// The state of a device whose message was not answered within the kernel's `msg_timeout`: each
/// call on the device fails with EPERM for ever.
const GIVEN_UP: &str = "the kernel has given the device up: nobody answered for 30 s";
/// `VDUSE_ACCESS_RW`
const READ_WRITE: u8 = 3;

/// The ioctls of `linux/vduse.h`.
#[allow(missing_docs, non_snake_case)]
mod ioctls {
    use super::{Create, IotlbEntry, LinkStatus, NAME_BYTES, RingEventfd, RingInfo, RingSetup};
    use vmm_sys_util::{ioctl_io_nr, ioctl_ior_nr, ioctl_iow_nr, ioctl_iowr_nr};

    const VDUSE: libc::c_uint = 0x81;
    ioctl_iow_nr!(SET_API_VERSION, VDUSE, 0x01, u64);
    // The kernel's number has the size of the structure without the configuration behind it.
    ioctl_iow_nr!(CREATE_DEV, VDUSE, 0x02, Create);
    ioctl_iow_nr!(DESTROY_DEV, VDUSE, 0x03, [u8; NAME_BYTES]);
    ioctl_iowr_nr!(IOTLB_GET_FD, VDUSE, 0x10, IotlbEntry);
    ioctl_ior_nr!(DEV_GET_FEATURES, VDUSE, 0x11, u64);
    ioctl_iow_nr!(DEV_SET_CONFIG, VDUSE, 0x12, [u32; 2]);
    ioctl_io_nr!(DEV_INJECT_CONFIG_IRQ, VDUSE, 0x13);
    ioctl_iow_nr!(VQ_SETUP, VDUSE, 0x14, RingSetup);
    ioctl_iowr_nr!(VQ_GET_INFO, VDUSE, 0x15, RingInfo);
    ioctl_iow_nr!(VQ_SETUP_KICKFD, VDUSE, 0x16, RingEventfd);
    ioctl_iow_nr!(VQ_INJECT_IRQ, VDUSE, 0x17, u32);
    const _: () = assert!(size_of::<LinkStatus>() == 12);
}

/// `struct vduse_dev_config` without the configuration.
#[repr(C)]
struct Create {
    name: [u8; NAME_BYTES],
    vendor: u32,
    device: u32,
    features: u64,
    rings: u32,
    align: u32,
    reserved: [u32; 13],
    config_len: u32,
}

/// `struct vduse_dev_config` with the configuration.
#[repr(C)]
struct CreateNet {
    head: Create,
    config: [u8; CONFIG_BYTES],
}

/// `struct vduse_iotlb_entry`
#[repr(C)]
#[derive(Default)]
struct IotlbEntry {
    offset: u64,
    start: u64,
    last: u64,
    perm: u8,
}

/// `struct vduse_config_data` with the link status.
#[repr(C)]
struct LinkStatus {
    offset: u32,
    len: u32,
    status: u16,
}

/// `struct vduse_vq_config`
#[repr(C)]
struct RingSetup {
    index: u32,
    max_size: u16,
    reserved: [u16; 13],
}

/// `struct vduse_vq_info`
#[repr(C)]
#[derive(Default)]
struct RingInfo {
    index: u32,
    num: u32,
    desc: u64,
    driver: u64,
    device: u64,
    state: [u16; 4],
    ready: u8,
}

/// `struct vduse_vq_eventfd`
#[repr(C)]
struct RingEventfd {
    index: u32,
    fd: libc::c_int,
}

/// Why a device cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum VduseError {
    /// The kernel has no such devices; the text is the kernel's release.
    #[error(
        "there is no {CONTROL}: modprobe -a vduse virtio_vdpa (Linux 6.9 or newer; this is {0})"
    )]
    NoModule(String),
    /// The process may not use the file.
    #[error(
        "cannot open {0}: not permitted: run the switch as root, and start it again if the module \
         vduse came later"
    )]
    Permission(String),
    /// Another process serves the device.
    #[error("{DIRECTORY}/{0} is in use by another process: choose another name")]
    InUse(String),
    /// The name is that of the control file.
    #[error("the name {RESERVED} is reserved: choose another name")]
    Reserved,
    /// The kernel refuses a network device; the text is the kernel's release.
    #[error("the kernel refuses a VDUSE network device: Linux 6.9 or newer is needed; this is {0}")]
    Refused(String),
    /// A system call failed: the step, and the error.
    #[error("cannot {0}: {1}")]
    Io(&'static str, #[source] io::Error),
    /// The device cannot be connected with the kernel's driver.
    #[error("cannot add vdpa device {0}: {1}")]
    Add(String, #[source] NetlinkError),
    /// The name is that of a device of another program.
    #[error(
        "vdpa device {0} is not of this switch: choose another name, or remove the device: vdpa \
         dev del {0}"
    )]
    Foreign(String),
    /// The name is that of a device of another program, which no driver is connected with.
    #[error("{DIRECTORY}/{0} is a device of another program: choose another name")]
    Others(String),
    /// The device cannot be separated from the kernel's driver.
    #[error("cannot remove vdpa device {0}: {1}")]
    Remove(String, #[source] NetlinkError),
    /// The kernel has given the device up.
    #[error("{DIRECTORY}/{0}: {GIVEN_UP}")]
    Broken(String),
    /// The driver made no interface.
    #[error(
        "vdpa device {0} has no interface: modprobe -a virtio_vdpa virtio_net (a vhost_vdpa that \
         was loaded before takes the device: modprobe -r vhost_vdpa)"
    )]
    NoInterface(String),
    /// There is no network namespace of this name.
    #[error(
        "cannot open /run/netns/{0}: {1}; a switch that was started before the first namespace has \
         to be started again"
    )]
    NoNamespace(String, #[source] io::Error),
    /// The interface cannot be named, moved or brought up.
    #[error("cannot set up interface {0}: {1}")]
    Interface(String, #[source] NetlinkError),
}

/// The properties of a device and its interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Properties {
    /// Name of the device.
    pub name: String,
    /// Name of the interface.
    pub ifname: String,
    /// Network namespace of the interface: the number of a process, or a name; none for the
    /// namespace of this process.
    pub netns: Option<String>,
    /// Virtio features that the driver is offered.
    pub features: u64,
    /// Features that somebody chooses. A device that lacks others goes on after an upgrade.
    pub choosable: u64,
    /// Address of the interface; none for an address by chance.
    pub mac: Option<MacAddr>,
    /// MTU of the interface; none for the driver's default.
    pub mtu: Option<u16>,
    /// Number of descriptors in each ring.
    pub ring_size: u16,
    /// Mark of the switch ([`mark`]).
    pub mark: u32,
}

/// A device that this process serves.
#[derive(Debug)]
pub struct Device {
    file: OwnedFd,
    name: String,
}

impl AsRawFd for Device {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Device {
    /// Makes a device, or opens the device that an earlier process of the switch has left; returns
    /// true if the device is new. Replaces a device that the kernel has given up, and a device of
    /// other properties.
    pub fn open(properties: &Properties) -> Result<(Device, bool), VduseError> {
        let name = &properties.name;
        if name == RESERVED {
            return Err(VduseError::Reserved);
        }
        let control = control()?;
        let mut created = create(&control, properties)?;
        let other = if created { None } else { left::difference(properties)? };
        if other == Some(left::UNCONNECTED)
            && let Some(device) = Device::left(name)?
            && !device.may_be_ours()
        {
            return Err(VduseError::Others(name.clone()));
        }
        let mut taken = Device::take(properties);
        let why = match &taken {
            Err(VduseError::Broken(_)) => Some(GIVEN_UP),
            Ok(_) => other,
            Err(_) => None,
        };
        if let Some(why) = why.filter(|_| !created) {
            log::warn!("{DIRECTORY}/{name}: {why}; the device and its interface are replaced");
            match taken {
                Ok(device) => device.detach()?,
                // The kernel waits for no answer of a device that the kernel has given up.
                Err(_) => interface::detach(name)?,
            }
            destroy(&control, name)?;
            created = create(&control, properties)?;
            taken = Device::take(properties);
        }
        if created && taken.is_err() {
            // The error counts that keeps the device from being served.
            let _ = destroy(&control, name);
        }
        Ok((taken?, created))
    }

    /// Opens the device that an earlier process has left, if there is one, to remove the device.
    pub fn left(name: &str) -> Result<Option<Device>, VduseError> {
        match open_file(format!("{DIRECTORY}/{name}")) {
            Ok(file) => Ok(Some(Device { file, name: name.to_owned() })),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::BUSY) => Err(VduseError::InUse(name.to_owned())),
            Err(error) => Err(VduseError::Io("open the device", error.into())),
        }
    }

    /// Opens a device, and sets its rings up.
    fn take(Properties { name, ring_size, .. }: &Properties) -> Result<Device, VduseError> {
        let path = format!("{DIRECTORY}/{name}");
        let device = match open_file(&path) {
            Ok(file) => Device { file, name: name.clone() },
            Err(Errno::BUSY) => return Err(VduseError::InUse(name.clone())),
            Err(Errno::ACCESS | Errno::PERM) => return Err(VduseError::Permission(path)),
            Err(error) => return Err(VduseError::Io("open the device", error.into())),
        };
        for index in 0..RINGS {
            let setup = RingSetup { index, max_size: *ring_size, reserved: [0; 13] };
            // SAFETY: the kernel reads one `struct vduse_vq_config`, which lives across the call.
            let done = unsafe { ioctl_with_ref(&device, ioctls::VQ_SETUP(), &setup) };
            outcome(done).map_err(|error| match error.raw_os_error() {
                Some(libc::EPERM) => VduseError::Broken(name.clone()),
                _ => VduseError::Io("set up a ring", error),
            })?;
        }
        Ok(device)
    }

    /// Returns the name of the device.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True if the kernel has given the device up.
    pub fn is_broken(&self) -> bool {
        self.features().is_err_and(|error| error.raw_os_error() == Some(libc::EPERM))
    }

    /// Separates the device from the driver, which removes the interface, and closes the device.
    fn detach(self) -> Result<(), VduseError> {
        let detached = self.answer_during(|| interface::detach(&self.name));
        detached.map_err(|error| VduseError::Io("serve the device", error))?
    }

    /// Removes the device, which must be connected with no driver.
    pub fn destroy(self) -> Result<(), VduseError> {
        let name = self.name.clone();
        drop(self);
        destroy(&control()?, &name)
    }
}

impl Served for Device {
    fn receive(&self) -> io::Result<Option<Message>> {
        let mut bytes = [0; REQUEST_BYTES];
        match rustix::io::read(&self.file, &mut bytes) {
            Ok(len) => match Message::parse(&bytes[..len]) {
                Some(message) => Ok(Some(message)),
                None => Err(io::ErrorKind::InvalidData.into()),
            },
            // The file is readable for ever then, without a message.
            Err(Errno::AGAIN | Errno::INTR) if self.is_broken() => Err(io::Error::other(GIVEN_UP)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn answer(&self, message: Message, answer: Answer) -> io::Result<()> {
        match rustix::io::write(&self.file, &message.answer(answer)) {
            Ok(_) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn features(&self) -> io::Result<u64> {
        let mut features = 0u64;
        // SAFETY: the kernel writes a `u64`, which lives across the call.
        let done = unsafe { ioctl_with_mut_ref(self, ioctls::DEV_GET_FEATURES(), &mut features) };
        outcome(done).map(|_| features)
    }

    fn ring(&self, index: u32) -> io::Result<Option<RingPlace>> {
        let mut info = RingInfo { index, ..RingInfo::default() };
        // SAFETY: the kernel reads and writes one `struct vduse_vq_info`, which lives across the
        // call.
        outcome(unsafe { ioctl_with_mut_ref(self, ioctls::VQ_GET_INFO(), &mut info) })?;
        let RingInfo { num: size, desc: descriptors, driver: available, device: used, .. } = info;
        Ok((info.ready != 0).then_some(RingPlace { size, descriptors, available, used }))
    }

    fn memory(&self, from: u64) -> io::Result<Option<Memory>> {
        let mut entry = IotlbEntry { start: from, last: u64::MAX, ..IotlbEntry::default() };
        // SAFETY: the kernel reads and writes one `struct vduse_iotlb_entry`, which lives across
        // the call.
        let done = unsafe { ioctl_with_mut_ref(self, ioctls::IOTLB_GET_FD(), &mut entry) };
        let number = match outcome(done) {
            Ok(number) => number,
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return Ok(None),
            Err(error) => return Err(error),
        };
        // SAFETY: the kernel has just made the descriptor for this process, and nothing else has
        // its number.
        let file = unsafe { OwnedFd::from_raw_fd(number) };
        let IotlbEntry { offset, start, last, perm } = entry;
        if perm != READ_WRITE {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "memory is read-only"));
        }
        Ok(Some(Memory { start, last, offset, file }))
    }

    fn set_kick(&self, index: u32, kick: BorrowedFd<'_>) -> io::Result<()> {
        let kick = RingEventfd { index, fd: kick.as_raw_fd() };
        // SAFETY: the kernel reads one `struct vduse_vq_eventfd`, which lives across the call, and
        // takes a reference of its own to the eventfd.
        outcome(unsafe { ioctl_with_ref(self, ioctls::VQ_SETUP_KICKFD(), &kick) }).map(drop)
    }

    fn interrupt(&self, index: u32) -> io::Result<()> {
        // SAFETY: the kernel reads a `u32`, which lives across the call.
        outcome(unsafe { ioctl_with_ref(self, ioctls::VQ_INJECT_IRQ(), &index) }).map(drop)
    }

    fn set_link(&self, up: bool) -> io::Result<()> {
        let status = LinkStatus { offset: CONFIG_STATUS, len: 2, status: up.into() };
        // SAFETY: the kernel reads the structure and the `len` bytes behind it, which live across
        // the call.
        outcome(unsafe { ioctl_with_ref(self, ioctls::DEV_SET_CONFIG(), &status) })?;
        // SAFETY: the call has no argument.
        outcome(unsafe { ioctl(self, ioctls::DEV_INJECT_CONFIG_IRQ()) }).map(drop)
    }
}

/// Removes a device that no process has open, and that is connected with no driver.
fn destroy(control: &File, name: &str) -> Result<(), VduseError> {
    // SAFETY: the kernel reads `VDUSE_NAME_MAX` bytes, which live across the call.
    let done = unsafe { ioctl_with_ref(control, ioctls::DESTROY_DEV(), &padded(name)) };
    outcome(done).map(drop).map_err(|error| VduseError::Io("remove the device", error))
}

/// Opens the file that makes and removes devices.
fn control() -> Result<File, VduseError> {
    match open_file(CONTROL) {
        Ok(file) => {
            // SAFETY: the kernel reads a `u64`, which lives across the call.
            let done = unsafe { ioctl_with_ref(&file, ioctls::SET_API_VERSION(), &0u64) };
            outcome(done).map_err(|error| VduseError::Io("agree about VDUSE's version", error))?;
            Ok(file.into())
        }
        Err(Errno::NOENT | Errno::NODEV | Errno::NXIO) => Err(VduseError::NoModule(release())),
        Err(Errno::ACCESS | Errno::PERM) => Err(VduseError::Permission(CONTROL.to_owned())),
        Err(error) => Err(VduseError::Io("open /dev/vduse/control", error.into())),
    }
}

fn open_file(path: impl AsRef<Path>) -> Result<OwnedFd, Errno> {
    open(path.as_ref(), OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())
}

/// Makes a device; returns false if the device exists.
fn create(control: &File, properties: &Properties) -> Result<bool, VduseError> {
    let create = create_net(properties)?;
    // SAFETY: the kernel reads the structure and the `config_len` bytes behind it, which live
    // across the call.
    match outcome(unsafe { ioctl_with_ref(control, ioctls::CREATE_DEV(), &create) }) {
        Ok(_) => Ok(true),
        Err(error) => match error.raw_os_error() {
            Some(libc::EEXIST) => Ok(false),
            Some(libc::EPERM) => Err(VduseError::Permission(CONTROL.to_owned())),
            Some(libc::EINVAL) => Err(VduseError::Refused(release())),
            _ => Err(VduseError::Io("make the device", error)),
        },
    }
}

fn create_net(properties: &Properties) -> Result<CreateNet, VduseError> {
    let Properties { name, features, mac, mtu, mark, .. } = properties;
    let failed = |error| VduseError::Io("choose an address", error);
    let mac = mac.map_or_else(random_mac, Ok).map_err(failed)?;
    let mut config = [0; CONFIG_BYTES];
    config[..6].copy_from_slice(&mac.0);
    // Link up; one pair of queues.
    (config[CONFIG_STATUS as usize], config[8]) = (1, 1);
    config[10..].copy_from_slice(&mtu.unwrap_or_default().to_le_bytes());
    let head = Create {
        name: padded(name),
        vendor: *mark,
        device: NET_DEVICE,
        features: *features,
        rings: RINGS,
        align: RING_ALIGN,
        reserved: [0; 13],
        config_len: CONFIG_BYTES as u32,
    };
    Ok(CreateNet { head, config })
}

/// Returns a locally administered address by chance.
fn random_mac() -> io::Result<MacAddr> {
    let [chance, _] = random::key()?;
    let mut bytes = [0; 6];
    bytes.copy_from_slice(&chance.to_ne_bytes()[..6]);
    bytes[0] = bytes[0] & 0xfc | 2;
    Ok(MacAddr(bytes))
}

/// Returns a name with zeros behind it. Names of ports are shorter.
fn padded(name: &str) -> [u8; NAME_BYTES] {
    let mut bytes = [0; NAME_BYTES];
    let len = name.len().min(NAME_BYTES - 1);
    bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
    bytes
}

/// Returns the kernel's release, such as `6.12.9`.
fn release() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    text.trim().to_owned()
}

fn outcome(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn properties() -> Properties {
        Properties {
            name: "vio0".into(),
            ifname: "eth0".into(),
            netns: None,
            features: 1 << 33,
            choosable: 0,
            mac: Some(MacAddr([2, 0, 0, 0, 0, 1])),
            mtu: Some(9000),
            ring_size: 256,
            mark: mark(1),
        }
    }

    #[test]
    fn structures_and_requests_are_those_of_the_kernel() {
        let sizes = [size_of::<Create>(), size_of::<IotlbEntry>(), size_of::<RingSetup>()];
        assert_eq!(sizes, [336, 32, 32]);
        assert_eq!((size_of::<RingInfo>(), size_of::<RingEventfd>()), (48, 8));
        assert_eq!(std::mem::offset_of!(CreateNet, config), 336);
        let numbers = [
            ioctls::SET_API_VERSION(),
            ioctls::CREATE_DEV(),
            ioctls::DESTROY_DEV(),
            ioctls::IOTLB_GET_FD(),
            ioctls::DEV_GET_FEATURES(),
            ioctls::DEV_SET_CONFIG(),
            ioctls::DEV_INJECT_CONFIG_IRQ(),
            ioctls::VQ_SETUP(),
            ioctls::VQ_GET_INFO(),
            ioctls::VQ_SETUP_KICKFD(),
            ioctls::VQ_INJECT_IRQ(),
        ];
        // Printed by a C program that includes linux/vduse.h.
        let kernels: [u64; 11] = [
            0x4008_8101,
            0x4150_8102,
            0x4100_8103,
            0xc020_8110,
            0x8008_8111,
            0x4008_8112,
            0x8113,
            0x4020_8114,
            0xc030_8115,
            0x4008_8116,
            0x4004_8117,
        ];
        assert_eq!(numbers, kernels);
    }

    #[test]
    fn a_new_device_has_its_configuration_behind_its_properties() {
        let CreateNet { head, config } = create_net(&properties()).unwrap();
        assert_eq!(&head.name[..5], b"vio0\0");
        assert_eq!(config, [2, 0, 0, 0, 0, 1, 1, 0, 1, 0, 0x28, 0x23]);
    }

    #[test]
    fn the_name_of_the_control_file_is_refused() {
        let reserved = Properties { name: RESERVED.into(), ..properties() };
        assert!(matches!(Device::open(&reserved), Err(VduseError::Reserved)));
    }

    #[test]
    fn a_missing_module_is_named_with_the_kernel() {
        let text = VduseError::NoModule("6.1.0".into()).to_string();
        assert!(text.contains("vduse") && text.contains("6.9") && text.contains("6.1.0"), "{text}");
    }
}
