//! Answers of a process that serves no ring of its device: while the device is connected with the
//! driver or separated from it, and between two sessions. The driver waits for each answer, and the
//! kernel gives a device up that does not answer.

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use vmm_sys_util::eventfd::EventFd;

use super::{Answer, Device, Request, Served};
use crate::poll::{self, Interest, Wake};
use base::limits::ANSWER_RETRY;

impl Device {
    /// Answers until `stop` is written, or until `end`. No ring may be served.
    pub fn answer_until(&self, stop: &EventFd, end: Option<Instant>) -> io::Result<Wake> {
        loop {
            match poll::wait(self.as_fd(), Interest::Read, stop, end)? {
                Wake::Ready => self.answer_next()?,
                woken => return Ok(woken),
            }
        }
    }

    fn answer_next(&self) -> io::Result<()> {
        let Some(message) = self.receive()? else { return Ok(()) };
        let answer = match message.request {
            Request::RingState(ring) => Answer::RingState(ring, 0),
            Request::Unknown(_) => Answer::Failed,
            Request::Status(_) | Request::Memory(..) => Answer::Done,
        };
        self.answer(message, answer)
    }

    /// Does `work`, for which the kernel needs answers of this process, on another thread, and
    /// answers meanwhile. No ring may be served.
    pub fn answer_during<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let done = EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?;
        std::thread::scope(|scope| {
            let working = std::thread::Builder::new().name("vdpa".into());
            let working = working.spawn_scoped(scope, || {
                // Written on a panic too: nobody else ends the loop.
                let _done = NotifyOnDrop(&done);
                work()
            })?;
            let mut has_failed = false;
            // Without answers the work would last for the kernel's 30 s.
            while let Err(error) = self.answer_until(&done, None) {
                if !std::mem::replace(&mut has_failed, true) {
                    log::warn!("VDUSE device {}: {error}", self.name());
                }
                let end = Instant::now() + ANSWER_RETRY;
                if poll::pause(&done, end).is_ok_and(|woken| woken == Wake::Stop) {
                    break;
                }
            }
            working.join().map_err(|_| io::Error::other("a thread panicked"))
        })
    }
}

/// Writes an eventfd on drop.
struct NotifyOnDrop<'a>(&'a EventFd);

impl Drop for NotifyOnDrop<'_> {
    fn drop(&mut self) {
        // Fails only if the counter is full, and a full eventfd is readable.
        let _ = self.0.write(1);
    }
}
