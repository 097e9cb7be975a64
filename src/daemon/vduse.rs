//! A VDUSE device's thread: serves the kernel's driver, for the life of the daemon.
//!
//! The device and its interface stay when the daemon ends, and the next daemon takes them over. A
//! port that is deleted takes its interface along.

use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::front_end::{PortThread, rest};
use api::config;
use base::frame::MacAddr;
use base::limits::{ACCEPT_RETRY_MAX, CLOSE_TIMEOUT_MILLIS};
use datapath::events::{What, reason};
use datapath::vduse::Session;
use datapath::vhost_user::features;
use datapath::vhost_user::session::End;
use sys::eventfd::is_readable;
use sys::poll::{self, Wake};
use sys::random;
use sys::threads::run_again_after_panic;
use sys::vduse::interface::{self, Wanted};
use sys::vduse::{Device, Properties, VduseError};

/// Opens a device and connects it with the kernel's driver; the driver has made the interface when
/// this returns. A device that an earlier process left keeps its properties and its interface.
pub(crate) fn open(wanted: &config::VduseDevice) -> Result<Device, VduseError> {
    let config::VduseDevice { name, ifname, netns, ring_size, offload, mac, mtu } = wanted;
    let failed = |error| VduseError::Io("choose an address", error);
    let mac = mac.map_or_else(any_address, Ok).map_err(failed)?;
    let (device, created) = Device::open(&Properties {
        name: name.clone(),
        features: features::of_vduse(offload.send, offload.receive, mtu.is_some()),
        mac,
        mtu: mtu.unwrap_or_default(),
        ring_size: *ring_size,
    })?;
    let place = Wanted { ifname: ifname.clone(), netns: netns.clone() };
    let attached = device.answer_during(|| interface::attach(name, mac, &place));
    let attached = attached.map_err(|error| VduseError::Io("serve the device", error));
    match attached.and_then(|attached| attached) {
        Ok(()) => Ok(device),
        Err(error) if created => {
            // Without the device the next attempt begins anew; the first error counts.
            let _ = device.destroy();
            Err(error)
        }
        Err(error) => Err(error),
    }
}

/// Returns a locally administered address by chance.
fn any_address() -> std::io::Result<MacAddr> {
    let [chance, _] = random::key()?;
    let mut bytes = [0; 6];
    bytes.copy_from_slice(&chance.to_ne_bytes()[..6]);
    bytes[0] = bytes[0] & 0xfc | 2;
    Ok(MacAddr(bytes))
}

/// Serves the driver until the port's thread is stopped, and removes the device of a deleted port.
pub(crate) fn serve(device: Device, thread: &PortThread) {
    let PortThread { running, stop, .. } = thread;
    let (name, device) = (running.port().name.clone(), Arc::new(device));
    let stopped = || is_readable(stop.as_raw_fd());
    run_again_after_panic(&format!("port {name}: its thread"), stopped, || {
        while converse(thread, &device) != Some(End::Stopped) {
            // A driver whose session failed is asked again after a while.
            let pause = rest(&running.port(), stop) == Wake::Stop
                || poll::pause(stop, Instant::now() + ACCEPT_RETRY_MAX)
                    .is_ok_and(|woken| woken == Wake::Stop);
            if pause {
                return;
            }
        }
    });
    if running.port().life.deleted.load(Ordering::Acquire)
        && let Err(error) = remove(device)
    {
        log::error!("port {name}: {error}: vdpa dev del {name}");
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
    let talk = || Session::new(context, port, account, device, stop)?.serve();
    let (end, detached) = match catch_unwind(AssertUnwindSafe(talk)) {
        Ok(Ok(end)) => (Some(end), What::Disconnected),
        Ok(Err(error)) => {
            port.stats.session_errors.add_shared(1);
            (None, What::DisconnectedBy { why: reason(error) })
        }
        Err(_) => {
            port.stats.panics.add_shared(1);
            (None, What::DetachedByPanic { why: "its session panicked and was contained" })
        }
    };
    port.tell(detached);
    end
}
