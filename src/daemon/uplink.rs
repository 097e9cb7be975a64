//! Attaches uplinks, which are TAPs and interfaces that are reached by XDP, and attaches them again
//! when they are lost.
//!
//! A host should not queue for its VMs: a TAP gets `noqueue`, as a locking qdisc makes all senders
//! wait for each other. Where the kernel forbids the change, the log tells the administrator the
//! command. A TAP that the switch created gets its MTU, is brought up, and is created again when a
//! user deletes it. An interface that the administrator made is left unchanged, and is waited for.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::handover::Handover;
use base::frame::Offloads;
use base::limits::TAP_RETRY_MILLIS;
use base::words::counted;
use datapath::events::What;
use datapath::port::device::{Device, Lost};
use datapath::port::{Backend, DevicePort, Port, PortTable};
use datapath::worker::{Token, Workers};
use sys::holder::Holder;
use sys::netlink::{self, Link};
use sys::tap::{self, Missing, Tap, TapError, TapQueue};
use sys::tap_ring::Io;
use sys::xdp::{self, Mode, Xdp, XdpError};

/// The reason why an uplink cannot be attached.
#[derive(Debug, thiserror::Error)]
pub enum UplinkError {
    /// The interface of this name cannot be opened.
    #[error("interface {0}: {1}")]
    Open(String, OpenError),
    /// An interface that the switch created, of this name, cannot be brought up.
    #[error("cannot bring up {0}: {1}")]
    Up(String, netlink::NetlinkError),
    /// A process has the interface.
    #[error("interface {0}: in use by {1}: give another ifname, or end that process")]
    Held(String, Holder),
    /// The port has no interface.
    #[error("the port is no uplink")]
    NoUplink,
    /// The workers cannot watch the interface.
    #[error("cannot watch the interface: {0}")]
    Watch(#[from] std::io::Error),
}

/// The reason why an interface cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A TAP cannot be opened.
    #[error(transparent)]
    Tap(#[from] TapError),
    /// An interface cannot be opened by XDP.
    #[error(transparent)]
    Xdp(#[from] XdpError),
}

impl UplinkError {
    /// Returns the error with the name of the process that has the interface, if the process can be
    /// seen.
    pub(crate) fn with_holder(self) -> UplinkError {
        match self {
            UplinkError::Open(ifname, OpenError::Tap(TapError::Busy)) => {
                match Holder::of_tap(&ifname) {
                    Some(holder) => UplinkError::Held(ifname, holder),
                    None => UplinkError::Open(ifname, TapError::Busy.into()),
                }
            }
            other => other,
        }
    }

    /// True if the error may pass: a process is attached to the interface, or a TAP with a single
    /// queue exists, which may be about to go.
    pub(crate) fn is_busy(&self) -> bool {
        let UplinkError::Open(_, source) = self else { return false };
        matches!(
            source,
            OpenError::Tap(TapError::Busy | TapError::SingleQueue) | OpenError::Xdp(XdpError::Busy)
        )
    }
}

/// An interface that is open.
struct Opened {
    link: Link,
    /// True if the switch created the interface.
    created: bool,
    /// Offloads that the interface takes and gives.
    offloads: Offloads,
    devices: Vec<Device>,
    /// The reason why the kernel permits no ring for a TAP, or no XDP program in the driver.
    refused: Option<String>,
}

impl Opened {
    /// Returns an open TAP, to whose queues frames are written as the administrator says, and the
    /// kernel permits.
    fn tap(port: &Port, tap: &DevicePort, opened: Tap) -> Opened {
        let Tap { link, created, offloads, mut queues } = opened;
        let refused = prepare_writing(port, tap, &mut queues);
        let devices = queues.into_iter().map(|queue| Arc::new(queue) as Device).collect();
        Opened { link, created, offloads, devices, refused }
    }

    /// Returns an open interface that is reached by XDP.
    fn xdp(port: &Port, opened: Xdp) -> Opened {
        let Xdp { link, mode, why, queues } = opened;
        advise(port, &link, queues.len() as u32);
        if let (Mode::Generic, Some(why)) = (mode, &why) {
            log::info!("xdp {}: the driver of {} runs no program: {why}", port.name, link.name);
        }
        let devices = queues.into_iter().map(|queue| Arc::new(queue) as Device).collect();
        let offloads = Offloads::NONE;
        Opened { link, created: false, offloads, devices, refused: why }
    }
}

/// Warns of changes that an interface makes to received frames, and of frames that it keeps back.
fn advise(port: &Port, link: &Link, queues: u32) {
    let (name, interface) = (&port.name, &link.name);
    if link.kind == "veth" {
        log::info!(
            "xdp {name}: {interface} is one end of a veth pair: frames come whole if its other end \
             has no offloads: ethtool -K PEER tx off"
        );
    } else if xdp::ethtool::strips_tags(interface) {
        log::warn!(
            "xdp {name}: {interface} takes the tags of VLANs out of frames: ethtool -K {interface} \
             rxvlan off"
        );
    }
    let receive = xdp::ethtool::queues(interface).map_or(queues, |(receive, _)| receive);
    if receive > queues {
        log::warn!(
            "xdp {name}: {interface} has {receive} queues, and frames of {} of them go to the \
             host: queues={receive}, or ethtool -L {interface} combined {queues}",
            receive - queues
        );
    }
}

/// Opens an uplink at the start, or takes the `kept` queues; true if the switch created the
/// interface.
pub fn attach(
    port: &Port,
    workers: &Workers,
    kept: Option<Vec<OwnedFd>>,
    handover: &Handover,
) -> Result<bool, UplinkError> {
    let kept = kept.and_then(|queues| adopt(port, queues, handover));
    let how = if kept.is_some() { Some("kept") } else { None };
    let opened = match kept {
        Some(opened) => opened,
        None => open(port, Missing::Create, handover)?,
    };
    let created = opened.created;
    set_up(port, &opened)?;
    log::info!(
        "{} {}: {} interface {} (mac {}, mtu {})",
        port.kind_name(),
        port.name,
        how.unwrap_or(if created { "created" } else { "attached to" }),
        opened.link.name,
        opened.link.mac,
        port.mtu.get().unwrap_or(opened.link.mtu)
    );
    serve(port, opened, workers)?;
    Ok(created)
}

/// Waits for the loss of an uplink and attaches the uplink again, until `stopping`.
pub fn keep(
    port: &Port,
    created: bool,
    workers: &Workers,
    handover: &Handover,
    stopping: &AtomicBool,
) {
    let Some((uplink, ifname)) = port.as_uplink() else { return };
    let kind = port.kind_name();
    let missing = if created { Missing::Create } else { Missing::Fail };
    let stopped = || stopping.load(Ordering::Acquire);
    while !stopped() {
        uplink.wait_lost(stopped);
        let Some(why) = uplink.lost().filter(|_| !stopped()) else { continue };
        match why {
            Lost::Gone => {
                log::warn!(
                    "{kind} {}: interface {ifname} is gone; the switch waits for its return",
                    port.name
                );
                port.reports.events.tell(&port.name, What::InterfaceGone, false);
            }
            Lost::Outgrown => {
                log::info!("{kind} {}: the MTU of {ifname} has grown, opening it anew", port.name);
            }
        }
        let mut told = None;
        while !stopped() {
            // Kept queues of the lost interface, or of an earlier attempt, would look like an
            // interface in use.
            handover.discard_tap(ifname);
            uplink.give_up();
            uplink.close_lost();
            match open(port, missing, handover).and_then(|opened| {
                set_up(port, &opened)?;
                serve(port, opened, workers)
            }) {
                Ok(()) => {
                    log::info!("{kind} {}: attached to interface {} again", port.name, ifname);
                    if why == Lost::Gone {
                        port.reports.events.tell(&port.name, What::InterfaceBack, false);
                    }
                    // Closes queues whose loss no worker had noticed before.
                    uplink.close_lost();
                    break;
                }
                Err(error) => {
                    // The log gets each reason once, not four times a second.
                    let text = error.to_string();
                    if told.as_ref() != Some(&text) {
                        log::warn!("{kind} {}: {text}", port.name);
                        told = Some(text);
                    }
                }
            }
            std::thread::park_timeout(Duration::from_millis(TAP_RETRY_MILLIS));
        }
    }
}

fn open(port: &Port, missing: Missing, handover: &Handover) -> Result<Opened, UplinkError> {
    let (uplink, ifname) = port.as_uplink().ok_or(UplinkError::NoUplink)?;
    let queues = uplink.queues().len() as u16;
    let failed = |source| UplinkError::Open(ifname.to_owned(), source);
    if let Backend::Xdp(_, mode) = uplink.backend {
        let opened = xdp::open(ifname, queues, mode).map_err(|error| failed(error.into()))?;
        return Ok(Opened::xdp(port, opened));
    }
    let opened = tap::open(ifname, queues, port.config.offload, missing);
    let opened = opened.map_err(|error| failed(error.into()))?;
    handover.keep_tap(ifname, &opened.queues);
    Ok(Opened::tap(port, uplink, opened))
}

/// Takes over queues that the process before had; `None` if the queues cannot be used.
fn adopt(port: &Port, queues: Vec<OwnedFd>, handover: &Handover) -> Option<Opened> {
    let (uplink, ifname) = port.as_uplink()?;
    match tap::adopt(queues, ifname, port.config.offload) {
        Ok(opened) => Some(Opened::tap(port, uplink, opened)),
        Err(error) => {
            log::warn!("tap {}: the kept interface cannot be used: {error}", port.name);
            handover.discard_tap(ifname);
            None
        }
    }
}

/// Puts the opened queues into service.
fn serve(port: &Port, opened: Opened, workers: &Workers) -> Result<(), UplinkError> {
    let (uplink, _) = port.as_uplink().ok_or(UplinkError::NoUplink)?;
    let token = |queue: usize| Token::Device(port.id, queue as u16);
    // Queues are watched before they are attached: if a watch fails, the interface must be free for
    // the next attempt.
    for (queue, device) in opened.devices.iter().enumerate() {
        workers.for_device(port, queue).watch(device.as_raw_fd(), token(queue))?;
    }
    uplink.set_refused(opened.refused);
    uplink.attach(opened.devices, opened.offloads);
    // Changes that were reported before the interface was attached are not reported again.
    uplink.look(port.mtu.get());
    port.begin();
    // Workers look for frames that came before the interface was attached.
    for queue in 0..uplink.queues().len() {
        workers.for_device(port, queue).look(token(queue));
    }
    Ok(())
}

/// Sets the way in which frames are written to the queues, as the administrator says and the kernel
/// permits; returns why io_uring is not used.
fn prepare_writing(port: &Port, tap: &DevicePort, queues: &mut [TapQueue]) -> Option<String> {
    if tap.io == Io::Write {
        return None;
    }
    let refused = queues.iter_mut().find_map(|queue| queue.use_ring().err());
    if refused.is_some() {
        // All queues are written alike: the port reports one way for all queues.
        queues.iter_mut().for_each(TapQueue::use_no_ring);
    }
    if let (Io::Uring, Some(why)) = (tap.io, &refused) {
        log::warn!("tap {}: no io_uring ({why}): each frame takes a system call", port.name);
    }
    refused.map(|why| why.to_string())
}

/// Takes an uplink out of service for good. The uplink's reattach thread has ended.
pub fn detach(port: &Port, workers: &Workers, handover: &Handover) {
    let Some((uplink, ifname)) = port.as_uplink() else { return };
    for (queue, device) in uplink.queues().iter().enumerate() {
        if let Some(device) = device.device() {
            workers.for_device(port, queue).unwatch(device.as_raw_fd());
        }
    }
    uplink.give_up();
    uplink.close_lost();
    handover.discard_tap(ifname);
}

/// Warns, in one line, of VMs whose configured MTU exceeds an uplink's MTU: their longer frames do
/// not leave by the uplink.
pub(crate) fn compare_mtus(ports: &PortTable) {
    let uplinks = ports.iter().filter(|port| port.as_uplink().is_some());
    let known = uplinks.filter_map(|uplink| Some((uplink.mtu.get()?, uplink)));
    let Some((least, uplink)) = known.min_by_key(|(mtu, uplink)| (*mtu, &uplink.name)) else {
        return;
    };
    let guests = ports.iter().filter(|port| port.as_guest().is_some());
    let mut longer = guests.filter_map(|port| {
        let mtu = port.mtu.configured().filter(|&mtu| u32::from(mtu) > least)?;
        Some((&port.name, mtu))
    });
    let Some((name, mtu)) = longer.next() else { return };
    let more = match longer.count() {
        0 => String::new(),
        n => format!(", and so do those of {}", counted(n, "more port")),
    };
    let (kind, uplink) = (uplink.kind_name(), &uplink.name);
    log::warn!("port {name}: mtu {mtu} exceeds the {least} of {kind} {uplink}{more}");
}

/// Sets the MTU of an interface that the switch created, compares the MTU of another interface, and
/// begins to follow the MTU.
fn apply_mtu(port: &Port, opened: &Opened) {
    let (link, kind) = (&opened.link, port.kind_name());
    match port.mtu.configured().map(u32::from) {
        // An interface that was taken over has its MTU, and a second change might not be permitted.
        Some(mtu) if opened.created && mtu != link.mtu => {
            if let Err(error) = netlink::set_mtu(link.index, mtu) {
                log::warn!("{kind} {}: cannot set the MTU of {}: {error}", port.name, link.name);
            }
        }
        Some(mtu) if !opened.created && mtu != link.mtu => log::warn!(
            "{kind} {}: {} has an MTU of {}, not {mtu}, and keeps it: ip link set {} mtu {mtu}",
            port.name,
            link.name,
            link.mtu,
            link.name
        ),
        _ => {}
    }
    if let Err(error) = port.mtu.follow(link.index) {
        log::warn!("{kind} {}: cannot ask for its MTU: {error}", port.name);
    }
}

/// Brings up an interface that the switch created, which nobody else would, and sets MTU and
/// queueing discipline, whose problems are logged as advice and are no errors.
fn set_up(port: &Port, opened: &Opened) -> Result<(), UplinkError> {
    let link = &opened.link;
    apply_mtu(port, opened);
    // A process with more privileges may have made an interface that was taken over.
    if opened.created && !link.up {
        netlink::set_up(link.index).map_err(|error| UplinkError::Up(link.name.clone(), error))?;
    }
    if port.kind_name() != "tap" {
        // Frames that are sent by XDP bypass the queueing discipline.
        return Ok(());
    }
    match netlink::set_noqueue(link.index) {
        Err(error) if !matches!(link.qdisc.as_str(), "noqueue" | "noop") => log::warn!(
            "tap {}: {} queues for its guests ({}), and noqueue cannot be set: {error}; run: tc \
             qdisc replace dev {} root noqueue",
            port.name,
            link.name,
            link.qdisc,
            link.name
        ),
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;
    use crate::helpers::start_helper;
    use datapath::guard::BlockedWriterWatch;
    use datapath::port::Ports;
    use datapath::port::device::fake::attach_lost;
    use datapath::worker::Shared;
    use switch::{Fdb, FdbConfig, Rules};

    fn wait_closed(closed: &AtomicU32, count: u32) {
        for _ in 0..1000 {
            if closed.load(Ordering::SeqCst) >= count {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("{} of {count} closed", closed.load(Ordering::SeqCst));
    }

    /// The reattach thread panics while it closes a device. The thread goes on with the next loss,
    /// and takes all queues of the interface out of service although only one was lost.
    #[test]
    fn the_reattach_thread_goes_on_after_a_panic() {
        let port = Arc::new(Port::device(0, "up", DevicePort::tap("no-such-link0", 2)));
        let config = FdbConfig::limited(1, 300, [1, 2]);
        let shared = Shared {
            ports: Arc::new(Ports::new([Arc::clone(&port)].into_iter().collect())),
            fdb: Arc::new(Fdb::new(config)),
            rules: Rules { uplink_to_uplink: false },
            poll: false,
            watch: Arc::new(BlockedWriterWatch::start().unwrap()),
        };
        let workers = Arc::new(Workers::start(1, &[], &shared).unwrap());
        let (tap, _) = port.as_uplink().unwrap();
        let closed = Arc::new(AtomicU32::new(0));
        let lose = |panics: [bool; 2]| {
            attach_lost(tap, &panics, &closed);
            workers.for_device(&port, 0).look(Token::Device(0, 0));
        };
        let stopping = Arc::new(AtomicBool::new(false));
        let keep = {
            let (port, workers) = (Arc::clone(&port), Arc::clone(&workers));
            let stopping = Arc::clone(&stopping);
            move || keep(&port, false, &workers, &Handover::default(), &stopping)
        };
        let reattach = start_helper("reattach".to_owned(), &stopping, keep).unwrap();
        lose([true, false]);
        wait_closed(&closed, 2);
        lose([false, true]);
        wait_closed(&closed, 4);
        lose([false, false]);
        wait_closed(&closed, 6);
        assert!(tap.is_lost() && !tap.is_up());
        assert!(!reattach.is_finished());
        stopping.store(true, Ordering::Release);
        tap.wake();
        reattach.thread().unpark();
        reattach.join().unwrap();
        workers.stop(std::time::Instant::now() + Duration::from_secs(5));
    }
}
