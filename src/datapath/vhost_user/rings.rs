//! Applies a session's requests to the rings of its port.
//!
//! A ring starts when everything it needs is known: size, addresses that lie in memory, and a kick
//! descriptor (or the front-end's message that there is none). A ring stops at `GET_VRING_BASE`,
//! and needs a new address and a new kick to start again, in either order. While its memory is away
//! a ring stands still (`memory`). The base that a front-end sets is stored and reported, never
//! used: a start takes both indices from the used ring, which is right for every front-end as long
//! as no chain is half done.
//!
//! Every change of a running ring takes the ring's lock, which makes the ring quiet: one ring at a
//! time, transmit before receive. No ring lock is held across a map, an unmap or a reply.

pub mod facts;
mod memory;
mod vduse;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::context::Context;
use super::descriptors;
use super::features;
use super::message::VringAddr;
use super::refusal::Refusal;
use crate::guard::{BlockedWriterWatch, SignalResult};
use crate::memory::{DirtyLog, MemTable};
use crate::port::{Discard, Eviction, GuestPort, Port, Queue, QueueRef, Tx, TxState, Vring};
use crate::ring::split::{RingLog, check_size};
use crate::ring::{CallFd, Position, RingConfig, SplitRing};
use crate::worker::kick::KickFd;
use crate::worker::{Token, Workers};
use base::limits::{CLOSE_TIMEOUT_MILLIS, DRAIN_MILLIS};
use sys::clock;

/// How the driver kicks a ring.
#[derive(Debug, Default)]
enum Kick {
    /// No kick message yet: the ring cannot start.
    #[default]
    Unknown,
    /// No kicks: the worker polls the ring.
    Poll,
    /// Kicks arrive by an eventfd, which the ring's worker watches.
    Fd(Arc<KickFd>),
}

/// State of a ring.
#[derive(Debug, Default, Clone, Copy)]
enum Life {
    /// Not started yet, or stopped by `GET_VRING_BASE`.
    #[default]
    Stopped,
    /// A worker serves the ring.
    Running {
        /// Features acknowledged when the ring started.
        features: u64,
    },
    /// The front-end took the ring's memory away. The ring keeps everything else, in the port's
    /// [`Vring`] too, and goes on when a region contains the ring again.
    MemoryGone {
        /// Features acknowledged when the ring started.
        features: u64,
        /// Position of the ring; `None` if the front-end has set other addresses since.
        at: Option<Position>,
    },
}

/// The settings of one ring.
#[derive(Debug, Default)]
struct Ring {
    size: u16,
    addr: Option<VringAddr>,
    base: u16,
    kick: Kick,
    call: Option<Arc<CallFd>>,
    err: Option<Arc<CallFd>>,
    /// Value of the last `SET_VRING_ENABLE`.
    enable: Option<bool>,
    life: Life,
}

impl Ring {
    fn is_started(&self) -> bool {
        !matches!(self.life, Life::Stopped)
    }
}

/// The rings of one session.
pub struct Rings<'a> {
    port: &'a Port,
    guest: &'a GuestPort,
    workers: &'a Workers,
    watch: &'a BlockedWriterWatch,
    rings: Vec<Ring>,
    /// Number of this session.
    session: u64,
    /// Replaced call and error descriptors that a worker may still signal.
    retired: Vec<Arc<CallFd>>,
    /// Rings are enabled unless disabled, because protocol features were not acknowledged.
    implicit_enable: bool,
    /// The driver may use several queue pairs.
    multi_queue: bool,
}

impl<'a> Rings<'a> {
    /// Makes the rings of a session; none is set up.
    pub(crate) fn new(context: &'a Context, port: &'a Port, guest: &'a GuestPort) -> Rings<'a> {
        // One more than the port serves: a control queue, which the front-end serves itself but may
        // mention in requests.
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
            multi_queue: false,
        }
    }

    /// True if a ring runs, or would run if its memory were there.
    pub(crate) fn any_started(&self) -> bool {
        self.rings.iter().any(Ring::is_started)
    }

    /// Returns the number of queue pairs for which the port has rings.
    pub(crate) fn pairs(&self) -> usize {
        self.guest.tx.len()
    }

    fn ring(&mut self, index: u32) -> Result<&mut Ring, Refusal> {
        self.rings.get_mut(index as usize).ok_or(Refusal::NoRing(index))
    }

    fn is_started(&self, index: usize) -> bool {
        self.rings.get(index).is_some_and(Ring::is_started)
    }

    fn enabled(&self, index: usize) -> bool {
        let said = self.rings[index].enable.unwrap_or(self.implicit_enable);
        said && self.carries_data(index)
    }

    /// A receive queue behind the first pair gets frames only if the driver may use several pairs
    /// and the pair's transmit queue is started. Ring 2 of a driver without `VIRTIO_NET_F_MQ` is
    /// the control queue, as is the ring behind the last pair of a driver with it (virtio 1.2
    /// section 5.1.2), and a front-end may pass the control queue on to the back-end.
    fn carries_data(&self, index: usize) -> bool {
        !is_later_receive(index) || self.multi_queue && self.is_started(index + 1)
    }

    /// Opens or closes a receive queue after a change of its pair or of the features.
    fn reconsider(&mut self, index: usize) {
        if !is_later_receive(index) || !self.is_started(index) {
            return;
        }
        let enabled = self.enabled(index);
        self.with_ring(index, |vring, guest| {
            if enabled && !vring.enabled {
                vring.enabled = true;
                open_receive(vring, guest, index);
            } else if !enabled {
                vring.enabled = false;
                guest.set_active(index / 2, false);
            }
        });
    }

    /// `SET_VRING_NUM`
    pub(crate) fn set_num(&mut self, index: u32, num: u32) -> Result<(), Refusal> {
        let size = check_size(num)?;
        let ring = self.ring(index)?;
        if ring.is_started() && ring.size != size {
            return Err(Refusal::Running(index));
        }
        ring.size = size;
        Ok(())
    }

    /// `SET_VRING_BASE`
    pub(crate) fn set_base(&mut self, index: u32, base: u32) -> Result<(), Refusal> {
        self.ring(index)?.base = base as u16;
        Ok(())
    }

    /// `SET_VRING_KICK`. The worker of a started ring no longer watches the old descriptor.
    pub(crate) fn set_kick(&mut self, index: u32, file: Option<OwnedFd>) -> Result<(), Refusal> {
        self.ring(index)?;
        let kick = match file {
            Some(file) => {
                let kick = KickFd::watch(descriptors::eventfd(file)?, self.port)?;
                Kick::Fd(Arc::new(kick))
            }
            None => Kick::Poll,
        };
        let old = std::mem::replace(&mut self.ring(index)?.kick, kick);
        let set = self.use_kick(index as usize);
        self.unwatch(old);
        // If watching the kick was slow, the session waits as long as the port's signals do.
        let pause = self.guest.signal_cost.left(clock::cycles());
        std::thread::sleep(clock::time_of(pause));
        set
    }

    /// Makes the worker of a started ring watch the ring's new kick instead of the old one.
    fn use_kick(&mut self, index: usize) -> Result<(), Refusal> {
        if self.is_started(index) {
            self.workers.rings().set_kick(self.token(index), self.kick_fd(index))?;
            let kickless = matches!(self.rings[index].kick, Kick::Poll);
            self.with_ring(index, |vring, guest| {
                vring.kickless = kickless;
                open_receive(vring, guest, index);
            });
            // The guest may have kicked the old descriptor after the worker's last read of it.
            self.look(index);
        }
        Ok(())
    }

    /// Releases a kick that no worker watches any more.
    fn unwatch(&self, old: Kick) {
        if let Kick::Fd(kick) = old {
            kick.unwatch(self.port);
        }
    }

    /// `SET_VRING_CALL`. The session signals the new descriptor once: a signal that went to the old
    /// descriptor during the change must not be lost.
    pub(crate) fn set_call(&mut self, index: u32, file: Option<OwnedFd>) -> Result<(), Refusal> {
        let call = self.call_fd(file)?;
        self.use_call(index, call)
    }

    fn use_call(&mut self, index: u32, call: Option<Arc<CallFd>>) -> Result<(), Refusal> {
        let old = std::mem::replace(&mut self.ring(index)?.call, call.clone());
        self.retire(old);
        if let Some(queue) = self.guest.queue(index as usize) {
            queue.set_call(call.clone());
        }
        if let Some(call) = call {
            self.signal(&call);
        }
        Ok(())
    }

    /// Keeps a descriptor until no worker holds it, and closes those that no worker holds. Closing
    /// the last reference to an eventfd unregisters all its pollers, which takes 140 ms for 300,000
    /// of them: only the session's own thread may wait that long.
    fn retire(&mut self, old: Option<Arc<CallFd>>) {
        // Reference counts alone would not do: a worker that postponed a signal takes a reference
        // later, and must find either this descriptor or none.
        let retired = std::mem::take(&mut self.retired);
        self.retired = retired.into_iter().filter_map(|call| Arc::try_unwrap(call).err()).collect();
        self.retired.extend(old);
    }

    /// Closes the retired descriptors once workers have released them, at the end of a turn.
    fn close_retired(&mut self) {
        let end = Instant::now() + Duration::from_millis(CLOSE_TIMEOUT_MILLIS.into());
        self.retire(None);
        while !self.retired.is_empty() && Instant::now() < end {
            std::thread::sleep(Duration::from_micros(100));
            self.retire(None);
        }
        self.retired.clear();
    }

    /// Signals `call` from the session's own thread.
    fn signal(&self, call: &CallFd) {
        let sent = self.watch.signal_once(call);
        if matches!(sent, SignalResult::Blocked | SignalResult::ManyWaiters) {
            self.guest.evict(self.session, Eviction::Harmful);
        }
    }

    /// Checks a descriptor to signal through, if the message had one.
    fn call_fd(&self, file: Option<OwnedFd>) -> Result<Option<Arc<CallFd>>, Refusal> {
        let file = file.map(descriptors::eventfd).transpose()?;
        let cost = || Arc::clone(&self.guest.signal_cost);
        Ok(file.map(|file| Arc::new(CallFd::new(file, cost(), self.session))))
    }

    /// `SET_VRING_ERR`
    pub(crate) fn set_err(&mut self, index: u32, file: Option<OwnedFd>) -> Result<(), Refusal> {
        let err = self.call_fd(file)?;
        let old = std::mem::replace(&mut self.ring(index)?.err, err.clone());
        self.retire(old);
        self.with_ring(index as usize, |vring, _| vring.err = err);
        Ok(())
    }

    /// `SET_FEATURES`. Decides whether rings without `SET_VRING_ENABLE` are enabled, which rings
    /// carry data, and the offloads of receive rings.
    pub(crate) fn set_features(&mut self, features: u64) {
        self.implicit_enable = features & features::PROTOCOL_FEATURES == 0;
        let multi_queue = features::multi_queue(features);
        if std::mem::replace(&mut self.multi_queue, multi_queue) != multi_queue {
            (2..self.rings.len()).for_each(|index| self.reconsider(index));
        }
        self.set_offloads(features);
    }

    /// `SET_VRING_ENABLE`
    pub(crate) fn set_enable(&mut self, index: u32, enable: bool) -> Result<(), Refusal> {
        self.ring(index)?.enable = Some(enable);
        let index = index as usize;
        if !self.is_started(index) {
            return Ok(());
        }
        if enable {
            let enabled = self.enabled(index);
            match self.guest.queue(index) {
                Some(QueueRef::Tx(queue)) => {
                    let mut state = queue.quiet();
                    state.vring.enabled = enabled;
                    state.side.gate.discard = Discard::Never;
                }
                Some(QueueRef::Rx(queue)) => {
                    let vring = &mut queue.quiet().vring;
                    vring.enabled = enabled;
                    open_receive(vring, self.guest, index);
                }
                None => {}
            }
            self.look(index);
            Ok(())
        } else {
            self.disable(index)
        }
    }

    /// Disables a ring. Frames that the driver has posted by now are forwarded once; later frames
    /// are discarded on a new kick, unless the front-end enables the ring again soon. A front-end
    /// that pauses its guest in this way may be saving the guest's memory already.
    fn disable(&mut self, index: usize) -> Result<(), Refusal> {
        match self.guest.queue(index) {
            Some(QueueRef::Tx(queue)) => self.disable_transmit(index, queue),
            Some(QueueRef::Rx(queue)) => {
                let mut state = queue.quiet();
                self.guest.set_active(index / 2, false);
                state.vring.enabled = false;
            }
            None => return Ok(()),
        }
        // Clears the kick: a pending kick belongs to the frames just forwarded.
        let (served, token) = (self.workers.rings(), self.token(index));
        served.set_kick(token, None)?;
        let kick = self.kick_fd(index);
        if let Some(kick) = &kick {
            kick.drain();
        }
        Ok(served.set_kick(token, kick)?)
    }

    fn disable_transmit(&self, index: usize, queue: &Queue<Tx>) {
        let mut state = queue.quiet();
        if state.vring.running().is_some_and(|ring| ring.has_work()) {
            state.side.gate.drain_to = state.vring.ring.as_ref().map(SplitRing::avail_idx);
            drop(state);
            self.look(index);
            queue.wait_drained(Duration::from_millis(DRAIN_MILLIS));
            state = queue.quiet();
        }
        let TxState { vring, side, .. } = &mut *state;
        if let Some(ring) = &mut vring.ring {
            // The worker may have suppressed kicks, and without a kick no frame would be discarded.
            let _ = ring.enable_kicks();
        }
        vring.enabled = false;
        (side.gate.drain_to, side.gate.discard) = (None, Discard::OnKick);
    }

    /// Starts or resumes ring `index`, if it can run and does not run yet.
    pub(crate) fn refresh(
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
        let log = log.clone().filter(|_| features & features::LOG_ALL != 0);
        let log = log.map(|log| ring_log(log, &addr));
        let ready = match ring.life {
            Life::Stopped => ring.size != 0 && !memory.is_empty(),
            Life::Running { .. } => false,
            Life::MemoryGone { .. } => return self.resume(index, features, memory, log),
        };
        let Some(queue) = self.guest.queue(index).filter(|_| ready) else {
            return Ok(());
        };
        let config = self.config(index, features);
        let mut started = SplitRing::start(Arc::clone(memory), &config)?;
        started.set_log(log);
        self.run(index, queue, started, features)
    }

    /// Hands a started ring to the data path.
    fn run(
        &mut self,
        index: usize,
        queue: QueueRef<'_>,
        started: SplitRing,
        features: u64,
    ) -> Result<(), Refusal> {
        let ring = &self.rings[index];
        let vring = Vring {
            ring: Some(started),
            session: self.session,
            enabled: self.enabled(index),
            call: ring.call.clone(),
            err: ring.err.clone(),
            kickless: matches!(ring.kick, Kick::Poll),
            ..Vring::default()
        };
        queue.renew(vring, |vring| open_receive(vring, self.guest, index));
        self.rings[index].life = Life::Running { features };
        if let Err(error) = self.workers.rings().serve(self.token(index), self.kick_fd(index)) {
            self.stop(index as u32)?;
            return Err(error.into());
        }
        self.reconsider(index ^ 1);
        log::debug!("port {}: ring {index} started", self.port.name);
        Ok(())
    }

    /// `GET_VRING_BASE`. Stops a ring, started or not, and returns its next index.
    pub(crate) fn stop(&mut self, index: u32) -> Result<u32, Refusal> {
        self.ring(index)?;
        let index = index as usize;
        self.workers.rings().release(self.token(index));
        let (base, owed) = match self.guest.queue(index) {
            Some(QueueRef::Tx(queue)) => {
                let TxState { vring, side, .. } = &mut *queue.quiet();
                side.gate.drain_to = None;
                // A signal that the worker holds back would be lost with the ring.
                let owed = vring.call.clone().filter(|_| side.moderation.release());
                (vring.ring.take().map(|ring| ring.base()), owed)
            }
            Some(QueueRef::Rx(queue)) => {
                let vring = &mut queue.quiet().vring;
                self.guest.set_active(index / 2, false);
                (vring.ring.take().map(|ring| ring.base()), None)
            }
            None => (None, None),
        };
        if let Some(call) = owed {
            self.signal(&call);
        }
        let stood = match self.rings[index].life {
            Life::MemoryGone { at, .. } => at.map(|at| at.base()),
            Life::Stopped | Life::Running { .. } => None,
        };
        self.rings[index].base = base.or(stood).unwrap_or(self.rings[index].base);
        let old = std::mem::take(&mut self.rings[index].kick);
        self.unwatch(old);
        let ring = &mut self.rings[index];
        let base = u32::from(ring.base);
        if !matches!(std::mem::take(&mut ring.life), Life::Stopped) {
            // The driver may use the ring's memory for other data before it sends a new address.
            ring.addr = None;
            self.reconsider(index ^ 1);
            log::debug!("port {}: ring {index} stopped", self.port.name);
        }
        Ok(base)
    }

    /// Stops all rings, transmit before receive, and releases all descriptors.
    pub(crate) fn stop_all(&mut self) {
        let count = self.rings.len();
        for index in (1..count).step_by(2).chain((0..count).step_by(2)) {
            let _ = self.stop(index as u32);
            if let Some(queue) = self.guest.queue(index) {
                queue.renew(Vring::default(), |_| ());
            }
            let Ring { call, err, .. } = std::mem::take(&mut self.rings[index]);
            self.retire(call);
            self.retire(err);
        }
        self.close_retired();
    }

    /// Applies the offloads that are acknowledged now to running receive rings. Rings keep all
    /// other features that they started with: both sides use the header length and the event
    /// indices, and the guest has posted frames to send under the features it knew then.
    fn set_offloads(&mut self, features: u64) {
        for index in (0..self.rings.len()).step_by(2) {
            self.with_running(index, |ring| ring.set_offloads(features::takes(features)));
        }
    }

    /// Switches dirty logging of every ring on, off or to another log.
    pub(crate) fn set_log(&mut self, log: Option<Arc<DirtyLog>>) {
        for index in 0..self.rings.len() {
            let addr = self.rings[index].addr;
            let log = log.clone().zip(addr).map(|(log, addr)| ring_log(log, &addr));
            self.with_running(index, |ring| ring.set_log(log));
        }
    }

    /// Returns the configuration of a ring; size and addresses must be known.
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

    /// Runs `change` on a ring while the ring is quiet; does nothing if the port does not serve it.
    fn with_ring(&self, index: usize, change: impl FnOnce(&mut Vring, &GuestPort)) {
        if let Some(queue) = self.guest.queue(index) {
            queue.quiet(|vring, _| change(vring, self.guest));
        }
    }

    /// Runs `change` on a ring that runs, while the ring is quiet.
    fn with_running(&self, index: usize, change: impl FnOnce(&mut SplitRing)) {
        self.with_ring(index, |vring, _| {
            if let Some(ring) = &mut vring.ring {
                change(ring);
            }
        });
    }

    /// Returns the worker's token of a ring. Rings are numbered in pairs, receive first (virtio 1.2
    /// section 5.1.2).
    fn token(&self, index: usize) -> Token {
        let queue = (index / 2) as u16;
        if index % 2 == 1 {
            Token::Transmit(self.port.id, queue)
        } else {
            Token::Receive(self.port.id, queue)
        }
    }

    /// Makes the ring's worker look at the ring once: the guest may not kick after an enable.
    fn look(&self, index: usize) {
        self.workers.rings().look(self.token(index));
    }

    fn kick_fd(&self, index: usize) -> Option<Arc<KickFd>> {
        match &self.rings[index].kick {
            Kick::Fd(kick) => Some(Arc::clone(kick)),
            Kick::Unknown | Kick::Poll => None,
        }
    }
}

/// True for a receive queue behind the first pair.
fn is_later_receive(index: usize) -> bool {
    index >= 2 && index.is_multiple_of(2)
}

/// Makes an enabled receive ring take frames as soon as the ring holds buffers. An empty ring waits
/// for its kick, if it has one.
fn open_receive(vring: &mut Vring, guest: &GuestPort, index: usize) {
    if index % 2 == 1 {
        return;
    }
    let kickless = vring.kickless;
    let Some(ring) = vring.running() else { return };
    if kickless || ring.has_work() || ring.enable_kicks() {
        ring.suppress_kicks();
        guest.set_active(index / 2, true);
    }
}

fn ring_log(log: Arc<DirtyLog>, addr: &VringAddr) -> RingLog {
    RingLog { log, used_gpa: (addr.flags & 1 != 0).then_some(addr.log) }
}
