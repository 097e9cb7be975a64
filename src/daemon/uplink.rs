//! Attaching TAPs and getting them back.
//!
//! A host should not queue for its VMs: the interface gets `noqueue`, as a locking qdisc makes all
//! senders wait for each other. Where that is not permitted the administrator is told the line that
//! does it. An interface that we created is brought up and created again when somebody deletes it;
//! one that the administrator made is waited for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::Endpoint;
use crate::limits::TAP_RETRY_MILLIS;
use crate::port::tap::Device;
use crate::port::{Port, TapPort};
use crate::sys::netlink;
use crate::sys::qdisc;
use crate::sys::tap::{self, Missing, Tap, TapError};
use crate::worker::{Token, Workers};

/// Why an uplink cannot be attached.
#[derive(Debug, thiserror::Error)]
pub enum UplinkError {
    /// The interface cannot be opened.
    #[error("interface {ifname}: {source}")]
    Open {
        /// Its name.
        ifname: String,
        /// The reason.
        source: TapError,
    },
    /// The data path could not watch it.
    #[error("cannot watch the interface: {0}")]
    Watch(#[from] std::io::Error),
}

/// Opens a TAP at the start; true if the interface was created for it.
pub fn attach(port: &Port, tap: &TapPort, workers: &Workers) -> Result<bool, UplinkError> {
    let opened = open(port, tap, Missing::Create)?;
    let created = opened.created;
    set_up(port, &opened);
    log::info!(
        "tap {}: {} interface {} (mac {}, mtu {})",
        port.name,
        if created { "created" } else { "attached to" },
        opened.link.name,
        opened.link.mac,
        opened.link.mtu
    );
    serve(port, tap, opened, workers)?;
    Ok(created)
}

/// Waits for the loss of a TAP and attaches it again, until `stopping`.
pub fn keep(port: &Port, created: bool, workers: &Workers, stopping: &AtomicBool) {
    let Endpoint::Tap(tap) = &port.endpoint else { return };
    let missing = if created { Missing::Create } else { Missing::Fail };
    let stopped = || stopping.load(Ordering::Acquire);
    while !stopped() {
        tap.wait_lost(stopped);
        if stopped() || !tap.is_lost() {
            continue;
        }
        log::warn!("tap {}: interface {} is gone, waiting for it", port.name, tap.ifname);
        let mut told = None;
        while !stopped() {
            tap.close_lost();
            match open(port, tap, missing).and_then(|opened| {
                set_up(port, &opened);
                serve(port, tap, opened, workers)
            }) {
                Ok(()) => {
                    log::info!("tap {}: attached to interface {} again", port.name, tap.ifname);
                    // Queues whose loss no worker had noticed yet.
                    tap.close_lost();
                    break;
                }
                Err(error) => {
                    // Once per reason, not four times a second.
                    let text = error.to_string();
                    if told.as_ref() != Some(&text) {
                        log::warn!("tap {}: {text}", port.name);
                        told = Some(text);
                    }
                }
            }
            std::thread::park_timeout(Duration::from_millis(TAP_RETRY_MILLIS));
        }
    }
}

fn open(port: &Port, tap: &TapPort, missing: Missing) -> Result<Tap, UplinkError> {
    let queues = tap.queues().len() as u16;
    tap::open(&tap.ifname, queues, port.offload, missing)
        .map_err(|source| UplinkError::Open { ifname: tap.ifname.clone(), source })
}

/// Puts the opened queues into service.
fn serve(port: &Port, tap: &TapPort, opened: Tap, workers: &Workers) -> Result<(), UplinkError> {
    let devices: Vec<Device> = opened.queues.into_iter().map(|q| Arc::new(q) as Device).collect();
    let token = |queue: usize| Token::Tap(port.id, queue as u16);
    // Watched before attached: if that fails the interface must be free for the next attempt.
    for (queue, device) in devices.iter().enumerate() {
        workers.for_tap(queue).watch(device.as_raw_fd(), token(queue))?;
    }
    tap.attach(devices, opened.offloads);
    // What came between is found now.
    for queue in 0..tap.queues().len() {
        workers.for_tap(queue).look(token(queue));
    }
    Ok(())
}

/// Brings up what is ours and sees to the queueing discipline; problems are advice, not errors.
fn set_up(port: &Port, opened: &Tap) {
    let link = &opened.link;
    if opened.created
        && let Err(error) = netlink::set_up(link.index)
    {
        log::warn!("tap {}: cannot bring up {}: {error}", port.name, link.name);
    }
    if let Err(error) = netlink::set_noqueue(link.index) {
        log::debug!("tap {}: cannot set noqueue: {error}", port.name);
    }
    match qdisc::uplink_advice(link.index) {
        Ok(advice) => advice.iter().for_each(|line| log::warn!("tap {}: {line}", port.name)),
        Err(error) => log::debug!("tap {}: cannot examine its queueing: {error}", port.name),
    }
}
