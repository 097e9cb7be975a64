//! A VDUSE device's thread: serves the kernel's driver, for the life of the daemon.
//!
//! The device and its interface stay when the daemon ends, and the next daemon takes them over. A
//! port that is deleted takes its interface along, also if nothing serves the port.
//!
//! The kernel gives a device up that does not answer for 30 s. Somebody answers at all times: the
//! session, and between two sessions the thread itself. The thread replaces a device that the
//! kernel has given up.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use vmm_sys_util::eventfd::EventFd;

use super::port_thread::{PortThread, contained, pause_after_harm};
use api::config;
use base::frame::MacAddr;
use base::limits::{ACCEPT_RETRY_MAX, CLOSE_TIMEOUT_MILLIS, REMOVE_ATTEMPTS, REMOVE_PAUSE};
use datapath::events::What;
use datapath::port::Port;
use datapath::vduse::Session;
use datapath::vhost_user::features;
use datapath::vhost_user::session::End;
use sys::eventfd::is_readable;
use sys::poll::{self, Wake};
use sys::random;
use sys::threads::run_again_after_panic;
use sys::vduse::interface::{self, Wanted};
use sys::vduse::{Device, Properties, Served, VduseError};

/// A device that is open. A new device is removed on drop, unless a thread serves the device.
#[derive(Debug)]
pub(crate) struct OpenDevice {
    device: Option<Device>,
    wanted: config::VduseDevice,
    /// True if no earlier process has left the device.
    is_new: bool,
}

impl OpenDevice {
    /// Removes the device, also if an earlier process left the device: the port is deleted.
    pub(crate) fn discard(self) {
        let name = self.wanted.name.clone();
        remove_surely(&name, self.keep());
    }

    fn keep(mut self) -> Option<Arc<Device>> {
        self.device.take().map(Arc::new)
    }
}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        if let Some(device) = self.device.take_if(|_| self.is_new) {
            // Once: the caller may hold the daemon.
            if let Err(error) = remove(Arc::new(device)) {
                log::error!("port {}: {error}", self.wanted.name);
            }
        }
    }
}

/// Opens a device and connects it with the kernel's driver; the driver has made the interface when
/// this returns. A device that an earlier process left keeps its properties and its interface.
pub(crate) fn open(wanted: &config::VduseDevice) -> Result<OpenDevice, VduseError> {
    let config::VduseDevice { name, ifname, netns, ring_size, offload, mac, mtu } = wanted;
    let failed = |error| VduseError::Io("choose an address", error);
    let mac = mac.map_or_else(random_mac, Ok).map_err(failed)?;
    let (device, is_new) = Device::open(&Properties {
        name: name.clone(),
        features: features::of_vduse(offload.send, offload.receive, mtu.is_some()),
        mac,
        mtu: mtu.unwrap_or_default(),
        ring_size: *ring_size,
    })?;
    let place = Wanted { ifname: ifname.clone(), netns: netns.clone() };
    let attached = device.answer_during(|| interface::attach(name, &place));
    // Removes a new device if the device could not be attached.
    let opened = OpenDevice { device: Some(device), wanted: wanted.clone(), is_new };
    if !attached.map_err(|error| VduseError::Io("serve the device", error))?? {
        log::info!(
            "port {name}: took the interface of an earlier process over as it is; for other \
             ifname, netns, offload, ring-size, mac or mtu: vioswitchctl vduse del {name}, and \
             add it again"
        );
    }
    Ok(opened)
}

/// Returns a locally administered address by chance.
fn random_mac() -> std::io::Result<MacAddr> {
    let [chance, _] = random::key()?;
    let mut bytes = [0; 6];
    bytes.copy_from_slice(&chance.to_ne_bytes()[..6]);
    bytes[0] = bytes[0] & 0xfc | 2;
    Ok(MacAddr(bytes))
}

/// Serves the driver until the port's thread is stopped, and removes the device of a deleted port.
pub(crate) fn serve(opened: OpenDevice, thread: &PortThread) {
    let PortThread { running, stop, .. } = thread;
    let (name, wanted) = (running.port().name.clone(), opened.wanted.clone());
    let mut device = opened.keep();
    let stopped = || is_readable(stop.as_raw_fd());
    run_again_after_panic(&format!("port {name}: its thread"), stopped, || {
        loop {
            let ended = device.as_ref().and_then(|device| converse(thread, device));
            let port = running.port();
            if ended == Some(End::Stopped) || rest(device.as_deref(), &port, stop) == Wake::Stop {
                return;
            }
            if device.as_deref().is_none_or(Device::is_broken) {
                // Closed before: the kernel has one process open a device.
                drop(device.take());
                device = reopen(&wanted, &port);
            }
        }
    });
    if running.port().life.deleted.load(Ordering::Acquire) {
        remove_surely(&name, device);
    }
}

/// Pauses after a session that failed, and answers meanwhile.
fn rest(device: Option<&Device>, port: &Port, stop: &EventFd) -> Wake {
    let end = Instant::now() + pause_after_harm(port).unwrap_or(ACCEPT_RETRY_MAX);
    let answered = device.and_then(|device| device.answer_until(stop, Some(end)).ok());
    answered.unwrap_or_else(|| poll::pause(stop, end).unwrap_or(Wake::TimedOut))
}

/// Replaces a device that the kernel has given up; none if the device cannot be had now.
fn reopen(wanted: &config::VduseDevice, port: &Port) -> Option<Arc<Device>> {
    match open(wanted) {
        Ok(opened) => opened.keep(),
        Err(error) => {
            if port.reports.log.allow() {
                log::error!("port {}: {error}", port.name);
            }
            None
        }
    }
}

/// Removes the device that an earlier process has left for a port, if there is one.
pub(crate) fn remove_left(name: &str) {
    remove_surely(name, None);
}

/// Removes the device of a deleted port and its interface. Tries several times: another process
/// may hold the device or the kernel's lock of the network configuration for a while.
fn remove_surely(name: &str, mut device: Option<Arc<Device>>) {
    for attempt in 1..=REMOVE_ATTEMPTS {
        let removed = match device.take() {
            Some(device) => remove(device),
            None => Device::left(name).and_then(|left| left.map(Arc::new).map_or(Ok(()), remove)),
        };
        match removed {
            Ok(()) => return,
            Err(error) if attempt == REMOVE_ATTEMPTS => {
                log::error!("port {name}: {error}; its interface may be left: vdpa dev del {name}")
            }
            Err(_) => std::thread::sleep(REMOVE_PAUSE),
        }
    }
}

/// Removes a device and its interface.
fn remove(device: Arc<Device>) -> Result<(), VduseError> {
    let detached = device.answer_during(|| interface::detach(device.name()));
    detached.map_err(|error| VduseError::Io("serve the device", error))??;
    let mut device = device;
    // A worker may hold the device for the last signals of a turn.
    for _ in 0..CLOSE_TIMEOUT_MILLIS {
        match Arc::try_unwrap(device) {
            Ok(device) => return device.destroy(),
            Err(held) => device = held,
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(VduseError::InUse(device.name().to_owned()))
}

/// Serves one session, and contains an error or panic that ends the session.
fn converse(thread: &PortThread, device: &Arc<Device>) -> Option<End> {
    let PortThread { running, account, context, stop } = thread;
    let port = &running.port();
    let served: Arc<dyn Served> = Arc::clone(device) as _;
    let talk = || Session::new(context, port, account, served, stop)?.serve();
    contained(port, talk, What::Disconnected, |why| What::DisconnectedBy { why })
}
