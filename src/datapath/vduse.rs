//! The session with the kernel's driver behind a VDUSE device ([`sys::vduse`]).
//!
//! The kernel's messages drive the rings of the port as a front-end's requests do
//! ([`crate::vhost_user::rings`]): DRIVER_OK starts the rings that the driver has set up, a reset
//! stops them, and a change of memory is a change of the memory table. A session that begins while
//! the driver runs, after a restart of the switch, takes the rings over: a start takes both indices
//! from `used.idx`.
//!
//! The kernel is trusted: the checks of hostile memory protect from a fault only.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vmm_sys_util::eventfd::EventFd;

use crate::events::What;
use crate::memory::{Account, MemTable};
use crate::port::{Port, SessionFacts, SessionWaker};
use crate::vhost_user::features;
use crate::vhost_user::guest_memory::GuestMemory;
use crate::vhost_user::message::{RegionSpec, VringAddr};
use crate::vhost_user::refusal::Refusal;
use crate::vhost_user::rings::Rings;
use crate::vhost_user::session::{self, Context, End};
use base::frame::offload::Offloads;
use base::limits::{
    BOUNCE_BYTES, FIRST_INTERRUPT_PAUSE, LAST_INTERRUPT_PAUSE, MAX_MEM_SLOTS, START_RETRY,
};
use sys::eventfd::{is_readable, written};
use sys::poll::{Interest, Wake, wait_for_any};
use sys::vduse::{Answer, DRIVER_OK, Message, RINGS, Request, RingPlace, Served};

/// Why a session ended early.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The port is not a guest's.
    #[error("the port has no rings")]
    NoGuest,
    /// A call on the device failed.
    #[error("VDUSE device: {0}")]
    Device(#[from] io::Error),
    /// A worker ended the session.
    #[error("its memory is gone, or its signals delayed others")]
    Dropped,
    /// The driver acknowledged features that the switch does not have.
    #[error("features {0:#x} were not offered")]
    NotOffered(u64),
    /// A ring or memory cannot be used.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// The session with a driver. Dropping it stops the rings and removes the port's addresses; the
/// device stays.
pub struct Session<'a> {
    context: &'a Context,
    port: &'a Port,
    device: Arc<dyn Served>,
    stop: &'a EventFd,
    waker: Arc<SessionWaker>,
    features: u64,
    memory: GuestMemory,
    rings: Rings<'a>,
    /// The link status that the driver has.
    link: Option<bool>,
    /// Time and pause of the next attempt to interrupt the driver.
    interrupt: Option<(Instant, Duration)>,
    /// Time of the next attempt to start the rings of a driver that is ready.
    restart: Option<Instant>,
}

impl<'a> Session<'a> {
    /// Makes a session on behalf of `port`, which ends when `stop` is written. Mappings are charged
    /// to `account`, the port's account.
    pub fn new(
        context: &'a Context,
        port: &'a Port,
        account: &Arc<Account>,
        device: Arc<dyn Served>,
        stop: &'a EventFd,
    ) -> Result<Session<'a>, SessionError> {
        let guest = port.as_guest().ok_or(SessionError::NoGuest)?;
        let waker = Arc::new(SessionWaker::new()?);
        guest.attach(Arc::clone(&waker));
        port.stats.attaches.add_shared(1);
        Ok(Session {
            context,
            port,
            device,
            stop,
            waker,
            features: 0,
            memory: GuestMemory::new(account, false),
            rings: Rings::new(context, port, guest),
            link: None,
            interrupt: None,
            restart: None,
        })
    }

    /// Serves the driver until the daemon stops, or an error ends the session.
    pub fn serve(&mut self) -> Result<End, SessionError> {
        if self.is_driver_ready()? {
            self.start_or_retry();
        }
        self.tell_link();
        loop {
            let stops = [self.stop, self.waker.eventfd()];
            let due = self.interrupt.map(|(at, _)| at).into_iter().chain(self.restart).min();
            match wait_for_any(self.device.as_fd(), Interest::Read, stops, due)? {
                Wake::Stop if is_readable(self.stop.as_raw_fd()) => return Ok(End::Stopped),
                Wake::Stop if self.waker.take() => return Err(SessionError::Dropped),
                Wake::Stop => self.look(),
                Wake::TimedOut => self.try_again(),
                Wake::Ready => {
                    if let Some(message) = self.device.receive()? {
                        self.handle(message)?;
                    }
                }
            }
        }
    }

    /// Carries out a request of another thread.
    fn look(&mut self) {
        self.tell_link();
        let Some(guest) = self.port.as_guest() else { return };
        guest.tell(|| SessionFacts {
            features: self.features,
            protocol: 0,
            regions: self.memory.facts(),
            rings: self.rings.facts(&self.memory.table),
        });
    }

    /// True if the driver has set all rings up.
    fn is_driver_ready(&self) -> io::Result<bool> {
        for index in 0..RINGS {
            if self.device.ring(index)?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Does what is due.
    fn try_again(&mut self) {
        let now = Instant::now();
        if self.restart.is_some_and(|at| at <= now) {
            self.start_or_retry();
        }
        if self.interrupt.is_some_and(|(at, _)| at <= now) {
            self.interrupt_again();
        }
    }

    /// Starts the rings of a driver that is ready. After an error the driver stays without a
    /// network until a later attempt.
    fn start_or_retry(&mut self) {
        let started = self.start();
        self.restart = started.is_err().then(|| Instant::now() + START_RETRY);
        if let Err(error) = started {
            // No ring may run on a part of the memory.
            self.reset_rings();
            self.log_refused(&"the driver's start", &error);
        }
    }

    fn log_refused(&self, refused: &dyn std::fmt::Display, error: &SessionError) {
        if self.port.reports.log.allow() {
            log::error!("port {}: {refused} failed: {error}", self.port.name);
        }
    }

    /// Carries out a message and answers it. A message that fails leaves the driver without a
    /// network, and the session waits for the next message.
    fn handle(&mut self, message: Message) -> io::Result<()> {
        log::trace!("port {}: {:?}", self.port.name, message.request);
        let done = match message.request {
            Request::RingState(ring) => Ok(Answer::RingState(ring, self.rings.base(ring))),
            Request::Status(status) if status & DRIVER_OK == 0 => {
                self.reset();
                Ok(Answer::Done)
            }
            Request::Status(_) if self.rings.any_started() => Ok(Answer::Done),
            // The kernel lets no interrupt through for a driver whose start was refused: a later
            // attempt would be in vain.
            Request::Status(_) => {
                self.start_or_retry();
                Ok(Answer::Done)
            }
            Request::Memory(..) => self.renew_memory().map(|()| Answer::Done),
            Request::Unknown(kind) => {
                log::debug!("port {}: unknown VDUSE request {kind}", self.port.name);
                Ok(Answer::Failed)
            }
        };
        let answer = done.unwrap_or_else(|error| {
            self.log_refused(&format_args!("{:?}", message.request), &error);
            Answer::Failed
        });
        self.device.answer(message, answer)
    }

    /// Starts the rings that the driver has set up. After an error some of them may run.
    fn start(&mut self) -> Result<(), SessionError> {
        self.features = self.device.features()?;
        let served = features::of_vduse(Offloads::ALL, Offloads::ALL, true);
        if self.features & !served != 0 {
            return Err(SessionError::NotOffered(self.features & !served));
        }
        self.rings.set_features(self.features);
        let table = self.map()?;
        self.memory.replace(table);
        for index in 0..RINGS {
            if let Some(place) = self.device.ring(index)? {
                self.start_ring(index, place)?;
            }
        }
        let attached = What::DriverReady { features: self.features };
        self.port.reports.events.tell_and_log(&self.port.name, attached);
        // The kernel may not know yet that the driver is ready, and drop the interrupts until then.
        self.interrupt = Some((Instant::now() + FIRST_INTERRUPT_PAUSE, FIRST_INTERRUPT_PAUSE));
        Ok(())
    }

    fn start_ring(&mut self, index: u32, place: RingPlace) -> Result<(), Refusal> {
        let RingPlace { size, descriptors: descriptor, available, used } = place;
        self.rings.set_num(index, size)?;
        let addr = VringAddr { index, flags: 0, descriptor, used, available, log: 0 };
        self.rings.set_addr(addr, &self.memory.table)?;
        self.rings.set_interrupt(index, &self.device)?;
        // Readable from the start: a kick of the driver may have gone to the eventfd of an earlier
        // process.
        let kick = written()?;
        self.device.set_kick(index, kick.as_fd())?;
        self.rings.set_kick(index, Some(kick))?;
        self.rings.refresh(index, self.features, &self.memory.table, &None)
    }

    /// Stops all rings, releases the memory, and waits for the driver.
    fn reset(&mut self) {
        self.restart = None;
        self.reset_rings();
    }

    fn reset_rings(&mut self) {
        for index in (0..RINGS).rev() {
            // Fails only for a ring that the port does not have.
            let _ = self.rings.stop(index);
        }
        self.interrupt = None;
        self.memory.forget();
    }

    /// Maps all memory of the device.
    fn map(&self) -> Result<MemTable, Refusal> {
        let (mut ranges, mut from) = (Vec::new(), Some(0));
        while let Some(next) = from
            && let Some(memory) = self.device.memory(next)?
        {
            if ranges.len() == MAX_MEM_SLOTS {
                return Err(crate::memory::TableError::TooMany.into());
            }
            let (gpa, offset) = (memory.start, memory.offset);
            let len = memory.last.saturating_sub(gpa).saturating_add(1);
            ranges.push((RegionSpec { gpa, len, uva: gpa, offset }, memory.file));
            from = memory.last.checked_add(1).filter(|next| *next > gpa);
        }
        if let Some(area) = bounce_area(ranges.first())? {
            ranges.insert(0, area);
        }
        self.memory.map_vduse(ranges)
    }

    /// Replaces the memory table after a change. The old memory is unmapped when this returns.
    fn renew_memory(&mut self) -> Result<(), SessionError> {
        if !self.rings.any_started() {
            return Ok(());
        }
        // Without the new memory the rings wait for the next change.
        let (old, failed) = match self.map() {
            Ok(table) => (self.memory.replace(table), None),
            Err(error) => (self.memory.forget(), Some(error)),
        };
        self.rings.rebase(&self.memory.table);
        // No ring has the old memory any more, and no lock is held.
        drop(old);
        if let Some(error) = failed {
            return Err(error.into());
        }
        Ok(self.rings.refresh_all(self.features, &self.memory.table, &None)?)
    }

    /// Interrupts the driver for both rings; tries again later if the kernel refuses.
    fn interrupt_again(&mut self) {
        let Some((_, pause)) = self.interrupt else { return };
        let all = (0..RINGS).try_for_each(|ring| self.device.interrupt(ring));
        let pause = (2 * pause).min(LAST_INTERRUPT_PAUSE);
        self.interrupt = all.is_err().then(|| (Instant::now() + pause, pause));
    }

    /// Sets the link status of the interface to the port's administrative state.
    fn tell_link(&mut self) {
        let up = self.port.policy.get().forwards;
        if self.link != Some(up) {
            // Fails to interrupt a driver that is not ready yet, which reads the status later.
            let _ = self.device.set_link(up);
            self.link = Some(up);
        }
    }
}

/// Returns the bounce area at address 0 if the first range lies behind the area. The kernel tells
/// the area only once the driver has sent a frame or posted a buffer, and sends no message then.
/// All ranges lie in one file, at their addresses.
fn bounce_area(first: Option<&(RegionSpec, OwnedFd)>) -> io::Result<Option<(RegionSpec, OwnedFd)>> {
    let behind = first.filter(|(spec, _)| spec.gpa > 0 && spec.offset == spec.gpa);
    let area = behind.map(|(spec, file)| {
        let len = spec.gpa.min(BOUNCE_BYTES);
        Ok((RegionSpec { gpa: 0, len, uva: 0, offset: 0 }, file.try_clone()?))
    });
    area.transpose()
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        session::end(self.context, self.port, &mut self.rings);
    }
}

#[cfg(test)]
mod tests;
