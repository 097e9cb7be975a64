//! Opens TAP interfaces: creates an interface, or attaches to an existing one, whose settings stay.
//! An interface that the switch creates ends with its last queue.
//!
//! This file relies on these facts of the driver (`drivers/net/tun.c`):
//! - TUNSETIFF returns EINVAL for an interface that is no TAP, and for a TAP whose `multi_queue`
//!   differs from the request; EBUSY only if a single-queue TAP has a user.
//! - A multi-queue TAP accepts queues from any process, and they do not change its flags. So
//!   netlink reports how many queues are attached, and the flags are read after attaching.
//! - The header size belongs to the interface and outlives the descriptor.
//! - A name with a `%d` is a pattern, and an empty name lets the kernel choose: both are refused
//!   here.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use vmm_sys_util::ioctl::{ioctl_with_mut_ref, ioctl_with_ref, ioctl_with_val};

use super::descriptor;
use super::netlink::{self, Link, NetlinkError};
pub use super::tap_io::TapQueue;
use base::frame::{Offloads, VNET_HDR_LEN};
use base::limits::MAX_TAP_QUEUES;

/// Request numbers of `linux/if_tun.h`. The size in a number is the size in the C declaration, not
/// the size of the argument.
mod ioctls {
    use vmm_sys_util::{ioctl_ior_nr, ioctl_iow_nr};

    const TUN: u32 = b'T' as u32;
    ioctl_iow_nr!(TUNSETIFF, TUN, 202, libc::c_int);
    ioctl_iow_nr!(TUNSETOFFLOAD, TUN, 208, libc::c_uint);
    ioctl_ior_nr!(TUNGETIFF, TUN, 210, libc::c_uint);
    ioctl_iow_nr!(TUNSETVNETHDRSZ, TUN, 216, libc::c_int);
    ioctl_iow_nr!(TUNSETVNETLE, TUN, 220, libc::c_int);
    #[cfg(test)]
    ioctl_iow_nr!(TUNSETQUEUE, TUN, 217, libc::c_int);
    #[cfg(test)]
    ioctl_iow_nr!(TUNSETPERSIST, TUN, 203, libc::c_int);
}

/// Bits of TUNSETOFFLOAD, `linux/if_tun.h`.
const TUN_F: [(Offloads, libc::c_uint); 6] = [
    (Offloads::CSUM, 0x01),
    (Offloads::TSO4, 0x02),
    (Offloads::TSO6, 0x04),
    (Offloads::ECN, 0x08),
    (Offloads::USO4, 0x20),
    (Offloads::USO6, 0x40),
];

/// The clone device of the TUN/TAP driver.
pub const CLONE_DEVICE: &str = "/dev/net/tun";

/// The action if no interface has the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// Create the interface, which ends with its last queue.
    Create,
    /// Fail: the administrator creates the interface.
    Fail,
}

/// An opened TAP.
#[derive(Debug)]
pub struct Tap {
    /// The interface right after attaching. The interface may be renamed, changed or deleted at any
    /// time: call [`netlink::link_by_index`] for its present state.
    pub link: Link,
    /// True if the switch created the interface, and so brings it up.
    pub created: bool,
    /// Offloads that the kernel accepts and delivers.
    pub offloads: Offloads,
    /// The attached queues.
    pub queues: Vec<TapQueue>,
}

/// The reason why a TAP cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// The kernel does not accept the name for an interface.
    #[error("not an interface name (1 to 15 bytes without '/', ':', '%' and white space)")]
    BadName,
    /// The number of queues is zero, or exceeds [`MAX_TAP_QUEUES`].
    #[error("between 1 and {MAX_TAP_QUEUES} queues are possible")]
    BadQueues,
    /// `/dev/net/tun` does not exist or has no driver.
    #[error("{CLONE_DEVICE} is missing: load the kernel module tun (modprobe tun)")]
    NoDriver,
    /// The process may not open `/dev/net/tun`, or may not create the interface or attach to it.
    #[error(
        "not permitted without CAP_NET_ADMIN unless it was made for this user: ip tuntap add dev \
         NAME mode tap multi_queue vnet_hdr user USER, or vioswitchctl network"
    )]
    Permission,
    /// Another process is attached to the interface.
    #[error("in use by another process, which grep -l iff: /proc/[0-9]*/fdinfo/* finds as root")]
    Busy,
    /// An interface of another kind has the name, perhaps a TUN, which has no Ethernet.
    #[error("exists and is not a TAP: give another ifname, or use it as xdp")]
    NotTap,
    /// Several queues are configured, and the existing TAP has a single queue.
    #[error("exists with a single queue: recreate it with multi_queue, or use queues=1")]
    SingleQueue,
    /// No interface has the name, and [`Missing::Fail`] was passed; or the interface was deleted
    /// meanwhile.
    #[error("no such interface")]
    Absent,
    /// The kernel lacks a requested offload.
    #[error("this kernel cannot do these offloads")]
    Offload,
    /// Reading the interface by netlink failed.
    #[error("cannot examine the interface: {0}")]
    Netlink(#[from] NetlinkError),
    /// Another call failed.
    #[error("{0}: {1}")]
    Io(&'static str, io::Error),
}

impl TapError {
    fn io(call: &'static str) -> TapError {
        TapError::Io(call, io::Error::last_os_error())
    }
}

/// Returns true for a name that the kernel accepts for an interface (`dev_valid_name`) and does not
/// take for a pattern.
pub(crate) fn is_valid_name(name: &str) -> bool {
    let bad = |c: char| c == '/' || c == ':' || c == '%' || c == '\0' || c.is_ascii_whitespace();
    (1..libc::IFNAMSIZ).contains(&name.len()) && name != "." && name != ".." && !name.contains(bad)
}

/// Opens `queues` queues of the TAP `name`; each frame has a 12-byte header. Switches on the
/// offloads of `wanted` that the kernel has: USO came with Linux 6.2.
pub fn open(name: &str, queues: u16, wanted: Offloads, missing: Missing) -> Result<Tap, TapError> {
    if !is_valid_name(name) {
        return Err(TapError::BadName);
    }
    if !(1..=MAX_TAP_QUEUES).contains(&queues) {
        return Err(TapError::BadQueues);
    }
    let existing = netlink::link_by_name(name)?;
    if existing.is_none() && missing == Missing::Fail {
        return Err(TapError::Absent);
    }
    let multi_queue = match &existing {
        Some(link) => examine(link, queues)?,
        None => queues > 1,
    };
    let opened = (0..queues).map(|_| attach(name, multi_queue));
    let opened: Vec<File> = opened.collect::<Result<_, _>>()?;
    let offloads = configure(&opened[0], wanted)?;
    let link = look_again(&opened[0], opened.len(), existing.as_ref())?;
    let queues = opened.into_iter().map(|file| TapQueue::new(OwnedFd::from(file))).collect();
    Ok(Tap { link, created: existing.is_none(), offloads, queues })
}

/// Checks that `queues` queues of the TAP `name` can be opened, as far as the check can tell
/// without attaching: it does not check permissions on the interface, and accepts a TAP in use.
pub fn check(name: &str, queues: u16) -> Result<(), TapError> {
    open_driver()?;
    match netlink::link_by_name(name)?.map(|link| examine(&link, queues)) {
        None | Some(Ok(_) | Err(TapError::Busy)) => Ok(()),
        Some(Err(error)) => Err(error),
    }
}

/// Returns the name of the TAP behind a descriptor, if the TAP has the frame format used here.
pub fn name_behind(fd: &OwnedFd) -> Option<String> {
    let request = request_of(fd).ok()?;
    let wanted = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    (flags_in(&request) & wanted == wanted).then(|| name_in(&request))
}

/// Takes over all queues of the TAP `name`, which an earlier process of this service opened. A TAP
/// that is not persistent was created by the earlier process: only its queues keep it alive.
pub fn adopt(fds: Vec<OwnedFd>, name: &str, wanted: Offloads) -> Result<Tap, TapError> {
    let link = netlink::link_by_name(name)?.ok_or(TapError::Absent)?;
    for fd in &fds {
        descriptor::set_nonblocking(fd.as_fd()).map_err(|error| TapError::Io("fcntl", error))?;
    }
    let first = fds.first().ok_or(TapError::BadQueues)?;
    let offloads = configure(first, wanted)?;
    let link = look_again(first, fds.len(), Some(&link))?;
    let created = link.tun.is_some_and(|tun| !tun.persistent);
    Ok(Tap { link, created, offloads, queues: fds.into_iter().map(TapQueue::new).collect() })
}

#[cfg(test)]
impl TapQueue {
    /// Returns the interface's present name, or the error ([`libc::EBADFD`]: the interface was
    /// deleted).
    pub(crate) fn ifname(&self) -> io::Result<String> {
        request_of(self).map(|request| name_in(&request))
    }
}

/// Checks that an existing interface can give this process `queues` queues; returns true for
/// IFF_MULTI_QUEUE.
fn examine(link: &Link, queues: u16) -> Result<bool, TapError> {
    match link.tun {
        Some(tun) if tun.tap && tun.queues > 0 => Err(TapError::Busy),
        Some(tun) if tun.tap && !tun.multi_queue && queues > 1 => Err(TapError::SingleQueue),
        Some(tun) if tun.tap => Ok(tun.multi_queue),
        _ => Err(TapError::NotTap),
    }
}

/// Reads the interface after attaching; an error if the interface or its users changed meanwhile.
fn look_again(
    first: &impl AsRawFd,
    queues: usize,
    existing: Option<&Link>,
) -> Result<Link, TapError> {
    let name = request_of(first).map(|request| name_in(&request));
    let name = name.map_err(|_| TapError::Absent)?;
    let link = netlink::link_by_name(&name)?.ok_or(TapError::Absent)?;
    if existing.is_some_and(|existing| existing.index != link.index) {
        // The interface was deleted meanwhile, and attaching created another one, which ends with
        // its queues.
        return Err(TapError::Absent);
    }
    if link.tun.is_some_and(|tun| tun.multi_queue && tun.queues as usize != queues) {
        return Err(TapError::Busy);
    }
    Ok(link)
}

/// Opens the clone device and attaches it to `name`. EINVAL becomes [`TapError::NotTap`].
fn attach(name: &str, multi_queue: bool) -> Result<File, TapError> {
    let file = open_driver()?;
    let multi = if multi_queue { libc::IFF_MULTI_QUEUE } else { 0 };
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | multi;
    let mut request = request_for(name, flags);
    // SAFETY: TUNSETIFF reads and writes a whole `ifreq`, which `request` is.
    if unsafe { ioctl_with_mut_ref(&file, ioctls::TUNSETIFF(), &mut request) } == 0 {
        return Ok(file);
    }
    let source = io::Error::last_os_error();
    Err(match source.raw_os_error() {
        Some(libc::EBUSY | libc::E2BIG) => TapError::Busy,
        Some(libc::EPERM | libc::EACCES) => TapError::Permission,
        Some(libc::EINVAL) => TapError::NotTap,
        _ => TapError::Io("TUNSETIFF", source),
    })
}

/// Opens the clone device, attached to no interface.
fn open_driver() -> Result<File, TapError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
    options.open(CLONE_DEVICE).map_err(|source| match source.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => TapError::NoDriver,
        Some(libc::EACCES | libc::EPERM) => TapError::Permission,
        _ => TapError::Io(CLONE_DEVICE, source),
    })
}

/// Sets header length, byte order and offloads of a newly attached interface; returns the offloads.
fn configure(file: &impl AsRawFd, wanted: Offloads) -> Result<Offloads, TapError> {
    let request = request_of(file).map_err(|error| TapError::Io("TUNGETIFF", error))?;
    let flags = flags_in(&request);
    if flags & libc::IFF_VNET_HDR == 0 {
        // Only the first process to attach sets the flags: another process was faster.
        return Err(TapError::Busy);
    }
    let header = VNET_HDR_LEN as libc::c_int;
    // SAFETY: TUNSETVNETHDRSZ reads one int.
    if unsafe { ioctl_with_ref(file, ioctls::TUNSETVNETHDRSZ(), &header) } != 0 {
        return Err(TapError::io("TUNSETVNETHDRSZ"));
    }
    let little: libc::c_int = 1;
    // On a big-endian host the header would be big-endian by default, but the rings' header is not.
    // SAFETY: TUNSETVNETLE reads one int.
    let refused = unsafe { ioctl_with_ref(file, ioctls::TUNSETVNETLE(), &little) } != 0;
    if refused && cfg!(target_endian = "big") {
        return Err(TapError::io("TUNSETVNETLE"));
    }
    // The kernel accepts USO for both IP versions or for none, and refuses the whole mask for an
    // unknown bit.
    let uso = Offloads::USO4.or(Offloads::USO6);
    match set_offload(file, wanted) {
        Err(TapError::Offload) if !wanted.and(uso).is_empty() => {
            let older = wanted.without(uso);
            set_offload(file, older).map(|()| older)
        }
        result => result.map(|()| wanted),
    }
}

/// Switches `offloads` on and all other offloads off, for the whole interface.
fn set_offload(file: &impl AsRawFd, offloads: Offloads) -> Result<(), TapError> {
    let bits = TUN_F.iter().filter(|(offload, _)| offloads.has(*offload));
    let mask = bits.fold(0, |mask, (_, bit)| mask | bit);
    // SAFETY: TUNSETOFFLOAD takes its argument by value.
    if unsafe { ioctl_with_val(file, ioctls::TUNSETOFFLOAD(), mask.into()) } == 0 {
        return Ok(());
    }
    let source = io::Error::last_os_error();
    Err(match source.raw_os_error() {
        Some(libc::EINVAL) => TapError::Offload,
        _ => TapError::Io("TUNSETOFFLOAD", source),
    })
}

/// Makes an `ifreq` for a name that [`is_valid_name`] accepts.
pub(super) fn request_for(name: &str, flags: libc::c_int) -> libc::ifreq {
    // SAFETY: all-zero bytes are a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // The flag bits fill the 16 bits of the field; the sign means nothing.
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    request
}

/// Calls TUNGETIFF: name and flags of the interface behind a queue.
fn request_of(file: &impl AsRawFd) -> io::Result<libc::ifreq> {
    let mut request = request_for("", 0);
    // SAFETY: TUNGETIFF writes a whole `ifreq`, which `request` is.
    match unsafe { ioctl_with_mut_ref(file, ioctls::TUNGETIFF(), &mut request) } {
        0 => Ok(request),
        _ => Err(io::Error::last_os_error()),
    }
}

fn name_in(request: &libc::ifreq) -> String {
    let bytes = request.ifr_name.iter().take_while(|c| **c != 0).map(|c| *c as u8);
    String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
}

fn flags_in(request: &libc::ifreq) -> libc::c_int {
    // SAFETY: TUNGETIFF and `request_for` fill this member of the union.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    libc::c_int::from(flags as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame_io::{FrameBatch, Transfer};
    use crate::testns;

    /// Makes a persistent interface, as `ip tuntap add` does. The interface ends with the
    /// namespace.
    fn persist(name: &str, flags: libc::c_int) {
        let file = OpenOptions::new().read(true).write(true).open(CLONE_DEVICE).unwrap();
        let mut request = request_for(name, flags | libc::IFF_NO_PI);
        // SAFETY: a whole `ifreq`, and an argument by value.
        unsafe {
            assert_eq!(ioctl_with_mut_ref(&file, ioctls::TUNSETIFF(), &mut request), 0);
            assert_eq!(ioctl_with_val(&file, ioctls::TUNSETPERSIST(), 1), 0);
        }
    }

    fn refusal(name: &str, queues: u16) -> TapError {
        open(name, queues, Offloads::NONE, Missing::Create).unwrap_err()
    }

    #[test]
    fn only_names_of_one_interface_are_accepted() {
        for good in ["t", "vio-up.0", "a23456789012345", "ä"] {
            assert!(is_valid_name(good), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "a b", "a:b", "tap%d", "a234567890123456", "a\0", "a\t"] {
            assert!(!is_valid_name(bad), "{bad}");
            assert!(matches!(refusal(bad, 1), TapError::BadName), "{bad}");
        }
        assert!(matches!(refusal("t0", 0), TapError::BadQueues));
        assert!(matches!(refusal("t0", MAX_TAP_QUEUES + 1), TapError::BadQueues));
    }

    #[test]
    fn a_missing_interface_is_created_and_goes_with_its_queues() {
        testns::run(|| {
            for queues in [1, 4] {
                assert!(matches!(
                    open("t0", 1, Offloads::NONE, Missing::Fail),
                    Err(TapError::Absent)
                ));
                let tap = open("t0", queues, Offloads::NONE, Missing::Create).unwrap();
                assert!(tap.created && !tap.link.up && tap.link.mac.is_station());
                assert_eq!((tap.link.mtu, tap.link.name.as_str()), (1500, "t0"));
                assert_eq!(tap.queues.len(), usize::from(queues));
                let tun = tap.link.tun.unwrap();
                assert!(tun.tap && tun.vnet_hdr && !tun.persistent);
                assert_eq!(tun.multi_queue, queues > 1);
                assert!(queues == 1 || tun.queues == u32::from(queues));
                netlink::set_up(tap.link.index).unwrap();
                assert!(netlink::link_by_index(tap.link.index).unwrap().unwrap().up);
                drop(tap);
                assert_eq!(netlink::link_by_name("t0").unwrap(), None);
            }
        });
    }

    #[test]
    fn existing_interfaces_are_attached_with_the_flags_they_have() {
        testns::run(|| {
            persist("single", libc::IFF_TAP);
            persist("multi", libc::IFF_TAP | libc::IFF_MULTI_QUEUE);
            for (name, queues) in [("single", 1), ("multi", 1), ("multi", 3), ("single", 1)] {
                let tap = open(name, queues, Offloads::NONE, Missing::Fail).unwrap();
                assert!(!tap.created && tap.link.tun.unwrap().vnet_hdr, "{name}");
                assert!(matches!(refusal(name, 1), TapError::Busy), "{name}");
                assert_eq!(tap.queues[0].ifname().unwrap(), name);
            }
            assert!(matches!(refusal("single", 2), TapError::SingleQueue));
        });
    }

    #[test]
    fn an_interface_made_with_napi_serves_us_without() {
        // The NAPI flag belongs to each queue: with the flag a write to a detached queue is EBUSY,
        // and each write costs 0.4 µs more.
        testns::run(|| {
            persist("napi", libc::IFF_TAP | libc::IFF_MULTI_QUEUE | libc::IFF_NAPI);
            let tap = open("napi", 2, Offloads::NONE, Missing::Fail).unwrap();
            netlink::set_up(tap.link.index).unwrap();
            let request = request_for("", libc::IFF_DETACH_QUEUE);
            // SAFETY: TUNSETQUEUE reads a whole `ifreq`.
            let done = unsafe { ioctl_with_ref(&tap.queues[1], ioctls::TUNSETQUEUE(), &request) };
            assert_eq!(done, 0);
            for queue in &tap.queues {
                assert_eq!(FrameBatch::flushed(queue, &[vec![0; 72]]), [Transfer::Done(72)]);
            }
        });
    }

    #[test]
    fn other_interfaces_of_the_name_are_refused() {
        testns::run(|| {
            persist("tun0", libc::IFF_TUN);
            for queues in [1, 2] {
                assert!(matches!(refusal("lo", queues), TapError::NotTap));
                assert!(matches!(refusal("tun0", queues), TapError::NotTap));
            }
        });
    }

    #[test]
    fn lacking_privilege_is_named() {
        testns::run(|| {
            persist("theirs", libc::IFF_TAP);
            testns::without_privilege(|| {
                assert!(matches!(refusal("mine", 1), TapError::Permission));
                assert!(netlink::link_by_name("mine").unwrap().is_none());
            });
        });
    }

    #[test]
    fn offloads_are_those_that_the_kernel_has() {
        testns::run(|| {
            let uso = Offloads::USO4.or(Offloads::USO6);
            let tso = Offloads::CSUM.or(Offloads::TSO4);
            for (at, wanted) in [Offloads::ALL, Offloads::NONE, Offloads::CSUM, tso, uso.or(tso)]
                .into_iter()
                .enumerate()
            {
                let tap = open(&format!("t{at}"), 1, wanted, Missing::Create).unwrap();
                let older = wanted.without(uso);
                assert!(tap.offloads == wanted || tap.offloads == older, "{wanted:?}");
                // The offloads without those that an older kernel refuses.
                assert!(set_offload(&tap.queues[0], tap.offloads).is_ok());
            }
        });
    }

    #[test]
    fn a_queue_follows_its_interface_through_renaming_and_knows_when_it_is_gone() {
        testns::run(|| {
            let tap = open("t0", 1, Offloads::NONE, Missing::Create).unwrap();
            let index = tap.link.index;
            let name = (libc::IFLA_IFNAME, &b"renamed\0"[..]);
            netlink::modify(libc::RTM_NEWLINK, index, None, &[name]).unwrap();
            assert_eq!(tap.queues[0].ifname().unwrap(), "renamed");
            netlink::modify(libc::RTM_DELLINK, index, None, &[]).unwrap();
            let gone = tap.queues[0].ifname().unwrap_err();
            assert_eq!(gone.raw_os_error(), Some(libc::EBADFD));
            // The old descriptor does not block a new interface.
            assert!(open("t0", 1, Offloads::NONE, Missing::Create).unwrap().created);
        });
    }
}
