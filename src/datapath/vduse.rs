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
use std::os::fd::{AsFd, AsRawFd};
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
use base::limits::{FIRST_INTERRUPT_PAUSE, LAST_INTERRUPT_PAUSE, MAX_MEM_SLOTS};
use sys::eventfd::{is_readable, written};
use sys::poll::{Interest, Wake, wait_for_any};
use sys::vduse::{Answer, DRIVER_OK, Device, Message, RINGS, Request, RingPlace};

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
    device: &'a Arc<Device>,
    stop: &'a EventFd,
    waker: Arc<SessionWaker>,
    features: u64,
    memory: GuestMemory,
    rings: Rings<'a>,
    /// The link status that the driver has.
    link: Option<bool>,
    /// Time and pause of the next attempt to interrupt the driver.
    interrupt: Option<(Instant, Duration)>,
}

impl<'a> Session<'a> {
    /// Makes a session on behalf of `port`, which ends when `stop` is written. Mappings are charged
    /// to `account`, the port's account.
    pub fn new(
        context: &'a Context,
        port: &'a Port,
        account: &Arc<Account>,
        device: &'a Arc<Device>,
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
        })
    }

    /// Serves the driver until the daemon stops, or an error ends the session.
    pub fn serve(&mut self) -> Result<End, SessionError> {
        if self.device.ring(0)?.is_some() {
            self.start()?;
        }
        self.tell_link();
        loop {
            let (stops, due) =
                ([self.stop, self.waker.eventfd()], self.interrupt.map(|(at, _)| at));
            match wait_for_any(self.device.as_fd(), Interest::Read, stops, due)? {
                Wake::Stop if is_readable(self.stop.as_raw_fd()) => return Ok(End::Stopped),
                Wake::Stop if self.waker.take() => return Err(SessionError::Dropped),
                Wake::Stop => self.look(),
                Wake::TimedOut => self.interrupt_again(),
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
            Request::Status(_) => self.start().map(|()| Answer::Done),
            Request::Memory(..) => self.renew_memory().map(|()| Answer::Done),
            Request::Unknown(kind) => {
                log::debug!("port {}: unknown VDUSE request {kind}", self.port.name);
                Ok(Answer::Failed)
            }
        };
        let answer = done.unwrap_or_else(|error| {
            if self.port.reports.log.allow() {
                log::error!("port {}: {:?} refused: {error}", self.port.name, message.request);
            }
            Answer::Failed
        });
        self.device.answer(message, answer)
    }

    /// Starts the rings that the driver has set up.
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
            if let Some(place) = self.device.ring(index)?
                && let Err(error) = self.start_ring(index, place)
            {
                self.reset();
                return Err(error.into());
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
        self.rings.set_interrupt(index, self.device)?;
        // Readable from the start: a kick of the driver may have gone to the eventfd of an earlier
        // process.
        let kick = written()?;
        self.device.set_kick(index, kick.as_fd())?;
        self.rings.set_kick(index, Some(kick))?;
        self.rings.refresh(index, self.features, &self.memory.table, &None)
    }

    /// Stops all rings and releases the memory.
    fn reset(&mut self) {
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

impl Drop for Session<'_> {
    fn drop(&mut self) {
        session::end(self.context, self.port, &mut self.rings);
    }
}
