//! The network interface of a device: connects a device with the driver, names the interface, moves
//! it to a container's network namespace, and removes it again.
//!
//! Each function waits for the driver, which waits for answers of the device's process
//! ([`Device::answer_during`](super::Device::answer_during)).

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use super::{Properties, VduseError};
use crate::netlink::NetlinkError;
use crate::netlink::vdpa::{self, Namespace};

/// Directory of the named network namespaces (ip-netns(8)).
pub const NAMESPACES: &str = "/run/netns";

/// Connects a device with the driver, and sets its interface up. Does nothing to a device that is
/// connected already, and returns false: its interface may have been moved or renamed since, and
/// its network namespace may have no name any more.
pub fn attach(wanted: &Properties) -> Result<bool, VduseError> {
    let device = wanted.name.as_str();
    let namespace = wanted.netns.as_deref().map(namespace).transpose();
    match vdpa::add(device) {
        Ok(()) => {}
        Err(NetlinkError::Refused(libc::EEXIST)) if is_finished(device)? => return Ok(false),
        Err(NetlinkError::Refused(libc::EEXIST)) => {}
        Err(error) => return Err(VduseError::Add(device.to_owned(), error)),
    }
    let set_up = || {
        let namespace = namespace?;
        let failed = |error| VduseError::Interface(wanted.ifname.clone(), error);
        let found = vdpa::interface_of(device).map_err(failed)?;
        let link = found.ok_or_else(|| VduseError::NoInterface(device.to_owned()))?;
        let namespace = namespace.as_ref().map(|one| match one {
            Opened::Process(pid) => Namespace::Process(*pid),
            Opened::Named(file) => Namespace::Open(file.as_fd()),
        });
        vdpa::place(link.index, &wanted.ifname, namespace).map_err(failed)
    };
    // The next attempt would take a half-made interface for a finished one.
    set_up().map(|()| true).inspect_err(|_| drop(vdpa::delete(device)))
}

/// True if the interface of a connected device was set up. A process that was killed may have left
/// an interface that was never up, without its name and place.
fn is_finished(device: &str) -> Result<bool, VduseError> {
    let failed = |error| VduseError::Add(device.to_owned(), error);
    Ok(vdpa::interface_of(device).map_err(failed)?.is_none_or(|link| link.qdisc != "noop"))
}

/// Separates a device from the driver. A device that is not connected is no error.
pub fn detach(device: &str) -> Result<(), VduseError> {
    match vdpa::delete(device) {
        Ok(()) | Err(NetlinkError::Refused(libc::ENODEV)) => Ok(()),
        Err(error) => Err(VduseError::Remove(device.to_owned(), error)),
    }
}

/// A network namespace.
enum Opened {
    Process(u32),
    Named(File),
}

fn namespace(word: &str) -> Result<Opened, VduseError> {
    if let Ok(pid) = word.parse() {
        return Ok(Opened::Process(pid));
    }
    let path: PathBuf = Path::new(NAMESPACES).join(word);
    let file =
        File::open(&path).map_err(|error| VduseError::NoNamespace(word.to_owned(), error))?;
    Ok(Opened::Named(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_a_process_or_a_name() {
        assert!(matches!(namespace("17"), Ok(Opened::Process(17))));
        let error = namespace("no-such").err().map(|error| error.to_string());
        assert!(error.is_some_and(|text| text.contains("no-such")));
    }
}
