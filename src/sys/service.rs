//! A thread that serves its own clients from the start of the process to its end.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vmm_sys_util::eventfd::EventFd;

use super::eventfd::is_readable;
use super::poll::{self, Wake};
use super::threads::{join_until, run_again_after_panic};
use base::limits::ACCEPT_RETRY_MAX;

/// A running service thread, and its stop eventfd.
pub struct Service {
    thread: JoinHandle<()>,
    stop: Arc<EventFd>,
    patience: Duration,
}

impl Service {
    /// Runs `serve` in a thread called `name`, until the eventfd that `serve` gets becomes
    /// readable. `serve` runs again after a panic, without its clients, because a client may have
    /// caused the panic; and after an error, which means that `serve` cannot wait for clients.
    pub fn start(
        name: &'static str,
        patience: Duration,
        mut serve: impl FnMut(&EventFd) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Service> {
        let stop = Arc::new(EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?);
        let told = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let stopped = || is_readable(told.as_raw_fd());
            run_again_after_panic(&format!("thread {name}"), stopped, || {
                while let Err(error) = serve(&told) {
                    log::warn!("{name}: cannot wait for clients: {error}");
                    let later = Instant::now() + ACCEPT_RETRY_MAX;
                    if poll::pause(&told, later).unwrap_or(Wake::TimedOut) == Wake::Stop {
                        return;
                    }
                }
            });
        })?;
        Ok(Service { thread, stop, patience })
    }

    /// Stops the thread, and waits at most `patience` for its end.
    pub fn stop(self) {
        // Fails only if the eventfd is full, and a full eventfd is readable.
        let _ = self.stop.write(1);
        join_until(&mut vec![self.thread], Instant::now() + self.patience);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn it_goes_on_after_errors_and_panics_until_it_is_told_to_end() {
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&runs);
        let serve = move |stop: &EventFd| match counted.fetch_add(1, Ordering::AcqRel) {
            0 => Err(io::Error::other("none left")),
            1 => panic!("the second run"),
            _ => poll::pause(stop, Instant::now() + Duration::from_secs(60)).map(|_| ()),
        };
        let service = Service::start("test", Duration::from_secs(60), serve).unwrap();
        while runs.load(Ordering::Acquire) < 3 {
            std::thread::yield_now();
        }
        let begin = Instant::now();
        service.stop();
        assert!(begin.elapsed() < Duration::from_secs(60));
        assert_eq!(runs.load(Ordering::Acquire), 3);
    }
}
