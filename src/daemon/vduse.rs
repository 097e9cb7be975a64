//! A VDUSE device's thread: serves the kernel's driver, for the life of the daemon.
//!
//! The device and its interface stay when the daemon ends, and the next daemon takes them over. A
//! port that is deleted takes its interface along, also if nothing serves the port.
//!
//! The kernel gives a device up that does not answer for 30 s. Somebody answers at all times: the
//! session, and between two sessions the thread itself. The thread replaces a device that the
//! kernel has given up.

use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use vmm_sys_util::eventfd::EventFd;

use super::port_thread::{PortThread, contained, pause_after_harm};
use api::config;
use base::limits::{ACCEPT_RETRY_MAX, CLOSE_TIMEOUT_MILLIS, REMOVE_ATTEMPTS, REMOVE_PAUSE};
use datapath::events::What;
use datapath::port::{Port, Ports};
use datapath::vduse::Session;
use datapath::vhost_user::features;
use datapath::vhost_user::session::End;
use sys::eventfd::is_readable;
use sys::poll::{self, Wake};
use sys::threads::run_again_after_panic;
use sys::vduse::interface;
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
        let Some(device) = self.device.take_if(|_| self.is_new) else { return };
        let name = self.wanted.name.clone();
        // On a thread of its own: the caller may hold the daemon, and the removal waits for the
        // kernel.
        let thread = std::thread::Builder::new().name("vdpa-removal".into());
        let removal = move || remove_surely(&name, Some(Arc::new(device)));
        if let Err(error) = thread.spawn(removal) {
            let name = &self.wanted.name;
            log::error!("port {name}: {error}; its interface may be left: vdpa dev del {name}");
        }
    }
}

/// Opens a device and connects it with the kernel's driver; the driver has made the interface when
/// this returns. A device that an earlier process left keeps its interface if the device has the
/// wanted properties, and is replaced otherwise.
pub(crate) fn open(wanted: &config::VduseDevice) -> Result<OpenDevice, VduseError> {
    let properties = properties(wanted);
    let name = &wanted.name;
    let (device, is_new) = Device::open(&properties)?;
    let attached = device.answer_during(|| interface::attach(&properties));
    let attached = attached.map_err(|error| VduseError::Io("serve the device", error));
    let attached = match attached.and_then(|attached| attached) {
        Ok(attached) => attached,
        Err(error) => {
            if is_new && let Err(second) = remove(Arc::new(device)) {
                log::error!("port {name}: {second}");
            }
            return Err(error);
        }
    };
    let opened = OpenDevice { device: Some(device), wanted: wanted.clone(), is_new };
    if !attached {
        log::info!(
            "port {name}: took the interface of an earlier process over, with its present name \
             and network namespace"
        );
    }
    Ok(opened)
}

fn properties(wanted: &config::VduseDevice) -> Properties {
    let config::VduseDevice { name, ifname, netns, ring_size, offload, mac, mtu } = wanted;
    Properties {
        name: name.clone(),
        ifname: ifname.clone(),
        netns: netns.clone(),
        features: features::of_vduse(offload.send, offload.receive, mtu.is_some()),
        choosable: features::choosable_of_vduse(),
        mac: *mac,
        mtu: *mtu,
        ring_size: *ring_size,
        mark: sys::vduse::mark(NUMBER.load(Ordering::Relaxed)),
    }
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

/// Number of this switch in the mark of its devices.
static NUMBER: AtomicU16 = AtomicU16::new(0);

/// Numbers this switch by the path of its control socket, which differs among the switches of a
/// machine and stays when a switch starts again.
pub(crate) fn number(control: Option<&Path>) {
    let bytes = control.map_or(&[][..], |path| path.as_os_str().as_bytes());
    // FNV-1a, folded.
    let hash = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    let hash = bytes.iter().fold(0x811c_9dc5, hash);
    NUMBER.store((hash >> 16 ^ hash) as u16, Ordering::Relaxed);
}

/// Removes the devices of an earlier process that no port is for: their ports were removed from the
/// configuration while the switch was not running.
pub(crate) fn remove_unused(ports: &Ports) {
    let mark = sys::vduse::mark(NUMBER.load(Ordering::Relaxed));
    match sys::vduse::marked(mark) {
        Ok(names) => {
            for name in names.iter().filter(|name| ports.present().named(name).is_none()) {
                log::info!("VDUSE device {name}: no port is for it any more; it is removed");
                remove_left(name);
            }
        }
        Err(error) => log::debug!("the devices of an earlier process are not known: {error}"),
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
