//! What a session's requests do to the rings of its port.
//!
//! A ring starts when everything it needs is known: size, addresses that lie in memory, and a kick
//! descriptor (or the front-end's word that there is none). It stops at `GET_VRING_BASE`. The
//! base a front-end sets is remembered and reported, never used: a start takes both indices from
//! the used ring, which is right for every front-end as long as nothing is half done.
//!
//! Everything that changes a running ring takes its lock first, which makes it quiet, one ring at
//! a time, transmit before receive; no ring lock is held across a map, an unmap or a reply.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::descriptors;
use super::features;
use super::message::VringAddr;
use super::session::{Context, Refusal};
use crate::limits::{CLOSE_PATIENCE_MILLIS, DRAIN_MILLIS};
use crate::memory::{DirtyLog, MemTable};
use crate::port::{Eviction, GuestPort, Port, Queue, RingState};
use crate::ring::split::{RingLog, check_size};
use crate::ring::{CallFd, RingConfig, SplitRing};
use crate::sys::eventfd::{BlockedWriterWatch, SignalResult, drain};
use crate::worker::{Token, Workers};

/// How a ring is kicked.
#[derive(Debug, Default)]
enum Kick {
    /// Not said yet: the ring cannot start.
    #[default]
    Unknown,
    /// Never: the ring is to be polled.
    Poll,
    /// Through an eventfd, which the ring's worker watches.
    Fd(Arc<OwnedFd>),
}

/// What is known of one ring.
#[derive(Debug, Default)]
struct Ring {
    size: u16,
    addr: Option<VringAddr>,
    base: u16,
    kick: Kick,
    call: Option<Arc<CallFd>>,
    err: Option<Arc<CallFd>>,
    /// What `SET_VRING_ENABLE` said last, if it came.
    enable: Option<bool>,
    /// A worker serves the ring.
    running: bool,
}

/// The rings of one session.
pub struct Rings<'a> {
    port: &'a Port,
    guest: &'a GuestPort,
    workers: &'a Workers,
    watch: &'a BlockedWriterWatch,
    rings: Vec<Ring>,
    /// The number of this conversation.
    session: u64,
    /// Call and error descriptors that were replaced and may still be signalled by a worker.
    retired: Vec<Arc<CallFd>>,
    /// Rings are enabled unless disabled: protocol features were not acknowledged.
    implicit_enable: bool,
}

impl<'a> Rings<'a> {
    /// No ring set up.
    pub fn new(context: &'a Context, port: &'a Port, guest: &'a GuestPort) -> Rings<'a> {
        // One more than the port serves: a control queue, which front-ends keep to themselves
        // but may mention.
        let count = 2 * guest.tx.len() + 1;
        Rings {
            port,
            guest,
            workers: &context.workers,
            watch: &context.watch,
            rings: (0..count).map(|_| Ring::default()).collect(),
            session: guest.session().unwrap_or(0),
            retired: Vec::new(),
            implicit_enable: true,
        }
    }

    /// Queue pairs the port has rings for.
    pub fn pairs(&self) -> usize {
        self.guest.tx.len()
    }

    fn ring(&mut self, index: u32) -> Result<&mut Ring, Refusal> {
        self.rings.get_mut(index as usize).ok_or(Refusal::NoRing(index))
    }

    fn is_running(&self, index: usize) -> bool {
        self.rings.get(index).is_some_and(|ring| ring.running)
    }

    fn enabled(&self, index: usize) -> bool {
        self.rings[index].enable.unwrap_or(self.implicit_enable)
    }

    /// `SET_VRING_NUM`
    pub fn set_num(&mut self, index: u32, num: u32) -> Result<(), Refusal> {
        let size = check_size(num)?;
        let running = self.is_running(index as usize);
        let ring = self.ring(index)?;
        if running && ring.size != size {
            return Err(Refusal::Running(index));
        }
        ring.size = size;
        Ok(())
    }

    /// `SET_VRING_BASE`
    pub fn set_base(&mut self, index: u32, base: u32) -> Result<(), Refusal> {
        self.ring(index)?.base = base as u16;
        Ok(())
    }

    /// `SET_VRING_ADDR`; on a running ring it changes addresses and the log flag only.
    pub fn set_addr(&mut self, addr: VringAddr, memory: &Arc<MemTable>) -> Result<(), Refusal> {
        if addr.flags & !1 != 0 {
            return Err(Refusal::Flags(addr.flags));
        }
        self.ring(addr.index)?.addr = Some(addr);
        let index = addr.index as usize;
        if self.is_running(index) {
            let config = self.config(index, 0);
            self.with_ring(index, |state, _| {
                let Some(ring) = &mut state.ring else {
                    return Ok(());
                };
                ring.rebase(Arc::clone(memory), &config)?;
                let log = ring.take_log().map(|log| ring_log(log.log, &addr));
                ring.set_log(log);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// `SET_VRING_KICK`; on a running ring the old descriptor is watched no longer.
    pub fn set_kick(&mut self, index: u32, file: Option<OwnedFd>) -> Result<(), Refusal> {
        let kick = match file {
            Some(file) => Kick::Fd(Arc::new(descriptors::eventfd(file)?)),
            None => Kick::Poll,
        };
        self.ring(index)?.kick = kick;
        let index = index as usize;
        if self.is_running(index) {
            self.workers.rings().set_kick(self.token(index), self.kick_fd(index))?;
            // A kick may have gone to the old descriptor after its last event was taken.
            self.look(index);
        }
        Ok(())
    }

    /// `SET_VRING_CALL`. The new descriptor is written once: a signal that went to the old one
    /// while it was replaced must not be lost.
    pub fn set_call(&mut self, index: u32, file: Option<OwnedFd>) -> Result<(), Refusal> {
        let call = self.call_fd(index, file)?;
        let old = std::mem::replace(&mut self.ring(index)?.call, call.clone());
        self.retire(old);
        self.with_ring(index as usize, |state, _| {
            state.call = call.clone();
            Ok(())
        })?;
        if let Some(call) = call {
            self.signal(&call);
        }
        Ok(())
    }

    /// Keeps a descriptor until no worker has it any more, and closes those that none has. The last
    /// reference to an eventfd unregisters all its pollers when it is closed, 140 ms for 300,000 of
    /// them: that is this thread's to wait for and nobody else's.
    fn retire(&mut self, old: Option<Arc<CallFd>>) {
        // Not by counting: a worker that has put a signal off takes a reference when its time has
        // come, and must find either this one or none.
        let retired = std::mem::take(&mut self.retired);
        self.retired = retired.into_iter().filter_map(|call| Arc::try_unwrap(call).err()).collect();
        self.retired.extend(old);
    }

    /// Closes what is left, when workers have let go of it; they do at the end of a turn.
    fn close_retired(&mut self) {
        let patience = Instant::now() + Duration::from_millis(CLOSE_PATIENCE_MILLIS.into());
        self.retire(None);
        while !self.retired.is_empty() && Instant::now() < patience {
            std::thread::sleep(Duration::from_micros(100));
            self.retire(None);
        }
        self.retired.clear();
    }

    /// Signals from the session's own thread.
    fn signal(&self, call: &CallFd) {
        let sent = self.watch.signal_once(call);
        if matches!(sent, SignalResult::Blocked | SignalResult::Crowded) {
            self.guest.evict(self.session, Eviction::Harmful);
        }
    }

    /// A descriptor to signal through, if one came.
    fn call_fd(&self, index: u32, file: Option<OwnedFd>) -> Result<Option<Arc<CallFd>>, Refusal> {
        let file = file.map(descriptors::eventfd).transpose()?;
        Ok(file.map(|file| {
            Arc::new(CallFd::new(file, self.guest.signal_cost(index as usize), self.session))
        }))
    }

    /// `SET_VRING_ERR`
    pub fn set_err(&mut self, index: u32, file: Option<OwnedFd>) -> Result<(), Refusal> {
        let err = self.call_fd(index, file)?;
        let old = std::mem::replace(&mut self.ring(index)?.err, err.clone());
        self.retire(old);
        self.with_ring(index as usize, |state, _| {
            state.err = err;
            Ok(())
        })
    }

    /// Whether rings that were never enabled nor disabled are enabled.
    pub fn set_implicit_enable(&mut self, implicit: bool) {
        self.implicit_enable = implicit;
    }

    /// `SET_VRING_ENABLE`
    pub fn set_enable(&mut self, index: u32, enable: bool) -> Result<(), Refusal> {
        self.ring(index)?.enable = Some(enable);
        let index = index as usize;
        if !self.is_running(index) {
            return Ok(());
        }
        if enable {
            self.with_ring(index, |state, guest| {
                state.enabled = true;
                state.discard = false;
                open_receive(state, guest, index);
                Ok(())
            })?;
            self.look(index);
            Ok(())
        } else {
            self.disable(index)
        }
    }

    /// Disables a ring: what the driver has posted by now is forwarded once, later frames are
    /// discarded unless it is enabled again soon, and only on a new kick; a front-end that pauses
    /// its guest this way may be saving the memory already.
    fn disable(&mut self, index: usize) -> Result<(), Refusal> {
        let Some((queue, transmit)) = self.guest.queue(index) else {
            return Ok(());
        };
        let mut state = queue.quiet();
        if transmit {
            let left = state.running().is_some_and(|ring| ring.has_work());
            if left {
                state.drain_to = state.ring.as_ref().map(SplitRing::avail_idx);
                drop(state);
                self.look(index);
                queue.wait_drained(Duration::from_millis(DRAIN_MILLIS));
                state = queue.quiet();
            }
            state.drain_to = None;
            if let Some(ring) = &mut state.ring {
                // The worker may have suppressed them; without a kick nothing would be discarded.
                let _ = ring.enable_kicks();
            }
        } else {
            self.guest.set_active(index / 2, false);
        }
        state.enabled = false;
        state.discard = transmit;
        state.discard_from = None;
        drop(state);
        // Clear the kick: one that is still counted belongs to the frames just forwarded.
        let (served, token) = (self.workers.rings(), self.token(index));
        served.set_kick(token, None)?;
        let kick = self.kick_fd(index);
        if let Some(fd) = &kick {
            drain(fd.as_raw_fd());
        }
        Ok(served.set_kick(token, kick)?)
    }

    /// Starts ring `index` if it can be and is not.
    pub fn refresh(
        &mut self,
        index: u32,
        features: u64,
        memory: &Arc<MemTable>,
        log: &Option<Arc<DirtyLog>>,
    ) -> Result<(), Refusal> {
        self.ring(index)?;
        let index = index as usize;
        let ring = &self.rings[index];
        let (Some(addr), false) = (ring.addr, matches!(ring.kick, Kick::Unknown)) else {
            return Ok(());
        };
        let ready = ring.size != 0 && !memory.is_empty() && !ring.running;
        let Some((queue, _)) = self.guest.queue(index).filter(|_| ready) else {
            return Ok(());
        };
        let config = self.config(index, features);
        let mut started = SplitRing::start(Arc::clone(memory), &config)?;
        let log = log.clone().filter(|_| features & features::LOG_ALL != 0);
        started.set_log(log.map(|log| ring_log(log, &addr)));
        self.run(index, queue, started)
    }

    /// Hands a started ring to the data path.
    fn run(&mut self, index: usize, queue: &Queue, started: SplitRing) -> Result<(), Refusal> {
        let ring = &self.rings[index];
        let mut state = queue.quiet();
        let new = RingState {
            ring: Some(started),
            session: self.session,
            enabled: self.enabled(index),
            call: ring.call.clone(),
            err: ring.err.clone(),
            kickless: matches!(ring.kick, Kick::Poll),
            ..RingState::default()
        };
        let old = std::mem::replace(&mut *state, new);
        open_receive(&mut state, self.guest, index);
        drop(state);
        drop(old);
        self.rings[index].running = true;
        if let Err(error) = self.workers.rings().serve(self.token(index), self.kick_fd(index)) {
            self.stop_ring(index as u32)?;
            return Err(error.into());
        }
        log::debug!("port {}: ring {index} started", self.port.name);
        Ok(())
    }

    /// Starts every ring that can be started now, after memory has changed. Fails where that was
    /// for want of means: nothing would start the ring later.
    pub fn refresh_all(
        &mut self,
        features: u64,
        memory: &Arc<MemTable>,
        log: &Option<Arc<DirtyLog>>,
    ) -> Result<(), Refusal> {
        for index in 0..self.rings.len() as u32 {
            // A ring whose addresses are in no region yet may get them with the next region.
            match self.refresh(index, features, memory, log) {
                Err(refusal) if refusal.is_for_want_of_means() => return Err(refusal),
                _ => {}
            }
        }
        Ok(())
    }

    /// `GET_VRING_BASE`: stops a ring, running or not, and returns its next index.
    pub fn stop(&mut self, index: u32) -> Result<u32, Refusal> {
        let base = self.stop_ring(index)?;
        self.workers.rings().rebalance();
        Ok(base)
    }

    fn stop_ring(&mut self, index: u32) -> Result<u32, Refusal> {
        self.ring(index)?;
        let index = index as usize;
        self.workers.rings().release(self.token(index));
        if let Some((queue, transmit)) = self.guest.queue(index) {
            let mut state = queue.quiet();
            if let Some(ring) = state.ring.take() {
                self.rings[index].base = ring.base();
            }
            state.drain_to = None;
            if !transmit {
                self.guest.set_active(index / 2, false);
            }
            // What the worker holds back would be forgotten with the ring.
            let owed = state.call.clone().filter(|_| state.moderation.release(false));
            drop(state);
            if let Some(call) = owed {
                self.signal(&call);
            }
        }
        if std::mem::take(&mut self.rings[index].running) {
            log::debug!("port {}: ring {index} stopped", self.port.name);
        }
        self.rings[index].kick = Kick::Unknown;
        Ok(u32::from(self.rings[index].base))
    }

    /// Stops everything, transmit before receive, and lets go of all descriptors.
    pub fn stop_all(&mut self) {
        let count = self.rings.len();
        for index in (1..count).step_by(2).chain((0..count).step_by(2)) {
            let _ = self.stop_ring(index as u32);
            if let Some((queue, _)) = self.guest.queue(index) {
                let mut state = queue.quiet();
                let old = std::mem::take(&mut *state);
                drop(state);
                drop(old);
            }
            let Ring { call, err, .. } = std::mem::take(&mut self.rings[index]);
            self.retire(call);
            self.retire(err);
        }
        self.workers.rings().rebalance();
        self.close_retired();
    }

    /// Moves every running ring to another memory table. A ring that has no place there is broken.
    pub fn rebase(&mut self, memory: &Arc<MemTable>) {
        let count = self.rings.len();
        for index in (1..count).step_by(2).chain((0..count).step_by(2)) {
            if !self.is_running(index) {
                continue;
            }
            let config = self.config(index, 0);
            let moved = self.with_ring(index, |state, guest| {
                let Some(ring) = &mut state.ring else {
                    return Ok(());
                };
                let moved = ring.rebase(Arc::clone(memory), &config);
                if moved.is_err() {
                    // It must not keep the old table mapped.
                    state.ring = None;
                    if index % 2 == 0 {
                        guest.set_active(index / 2, false);
                    }
                }
                Ok(moved?)
            });
            if let Err(refusal) = moved {
                let _ = self.stop(index as u32);
                if self.port.log.allow() {
                    log::warn!("port {}: ring {index} stopped: {refusal}", self.port.name);
                }
            }
        }
    }

    /// Switches logging of every ring.
    pub fn set_log(&mut self, log: Option<Arc<DirtyLog>>) {
        for index in 0..self.rings.len() {
            let addr = self.rings[index].addr;
            let log = log.clone().zip(addr).map(|(log, addr)| ring_log(log, &addr));
            let _ = self.with_ring(index, |state, _| {
                if let Some(ring) = &mut state.ring {
                    ring.set_log(log);
                }
                Ok(())
            });
        }
    }

    /// The configuration of a ring; size and addresses must be known.
    fn config(&self, index: usize, features: u64) -> RingConfig {
        let ring = &self.rings[index];
        let (desc, avail, used) =
            ring.addr.map_or((0, 0, 0), |a| (a.descriptor, a.available, a.used));
        RingConfig {
            size: ring.size,
            desc,
            avail,
            used,
            event_idx: features::event_idx(features),
            header_len: features::header_len(features),
            mergeable: features::mergeable(features),
            offloads: match index % 2 {
                0 => features::takes(features),
                _ => features::may_ask(features),
            },
        }
    }

    /// Runs `change` on a ring's state while it is quiet; nothing if the port does not serve it.
    fn with_ring(
        &self,
        index: usize,
        change: impl FnOnce(&mut RingState, &GuestPort) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        match self.guest.queue(index) {
            Some((queue, _)) => change(&mut queue.quiet(), self.guest),
            None => Ok(()),
        }
    }

    /// Rings are numbered in pairs, receive first (virtio 1.2 section 5.1.2).
    fn token(&self, index: usize) -> Token {
        let queue = (index / 2) as u16;
        if index % 2 == 1 {
            Token::Transmit(self.port.id, queue)
        } else {
            Token::Receive(self.port.id, queue)
        }
    }

    /// Makes the ring's worker look at it once: on enable nobody may have kicked.
    fn look(&self, index: usize) {
        self.workers.rings().look(self.token(index));
    }

    fn kick_fd(&self, index: usize) -> Option<Arc<OwnedFd>> {
        match &self.rings[index].kick {
            Kick::Fd(fd) => Some(Arc::clone(fd)),
            Kick::Unknown | Kick::Poll => None,
        }
    }
}

/// An enabled receive ring takes frames as soon as it holds buffers; until then its kick tells.
fn open_receive(state: &mut RingState, guest: &GuestPort, index: usize) {
    if index % 2 == 1 {
        return;
    }
    let Some(ring) = state.running() else { return };
    if ring.has_work() || ring.enable_kicks() {
        ring.suppress_kicks();
        guest.set_active(index / 2, true);
    }
}

fn ring_log(log: Arc<DirtyLog>, addr: &VringAddr) -> RingLog {
    RingLog { log, used_gpa: (addr.flags & 1 != 0).then_some(addr.log) }
}
