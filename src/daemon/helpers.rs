//! Threads beside the threads of ports, such as the threads of ageing, of retries and of the link
//! monitor. They hold nothing that a guest sees.
//!
//! Each thread has a name, goes on after a panic, and ends when its flag `stopping` is set and the
//! thread is woken.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use vmm_sys_util::eventfd::EventFd;

use super::link_monitor;
use datapath::port::Ports;
use sys::threads::{join_until, run_again_after_panic};

/// The threads that a daemon starts beside the threads of its ports.
#[derive(Default)]
pub(crate) struct Helpers {
    /// Set when the daemon begins to stop.
    stopping: Arc<AtomicBool>,
    /// Ends the thread that follows interfaces; none before the first uplink.
    link_monitor: Option<Arc<EventFd>>,
    threads: Vec<JoinHandle<()>>,
    /// The thread that tries again and goes on with removals, which [`Background`] ends.
    retrier: Option<Thread>,
}

impl Helpers {
    /// Starts a thread that does `work` until the daemon stops. Returns the thread, to be woken.
    pub(crate) fn start(
        &mut self,
        name: &str,
        mut work: impl FnMut(&AtomicBool) + Send + 'static,
    ) -> io::Result<Thread> {
        let stopping = Arc::clone(&self.stopping);
        let work = move || work(&stopping);
        let helper = start_helper(name.to_owned(), &self.stopping, work)?;
        let thread = helper.thread().clone();
        self.threads.push(helper);
        Ok(thread)
    }

    /// Starts the thread that follows the interfaces of uplinks, unless the thread runs.
    pub(crate) fn monitor_links(&mut self, ports: &Arc<Ports>) -> io::Result<()> {
        if self.link_monitor.is_none() {
            let stop = Arc::new(EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?);
            let (stopped, ports) = (Arc::clone(&stop), Arc::clone(ports));
            self.start("link-monitor", move |_| link_monitor::run(&ports, &stopped))?;
            self.link_monitor = Some(stop);
        }
        Ok(())
    }

    /// Notes the thread `retry`, which [`Helpers::wake_retrier`] wakes.
    pub(crate) fn set_retrier(&mut self, thread: Thread) {
        self.retrier = Some(thread);
    }

    /// Wakes the thread `retry`: a port is to be removed.
    pub(crate) fn wake_retrier(&self) {
        self.retrier.iter().for_each(Thread::unpark);
    }

    /// True once the daemon has begun to stop.
    pub(crate) fn are_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Begins to stop: no port and no service starts any more.
    pub(crate) fn begin_stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Wakes all threads that [`Helpers::join`] waits for, so that they see that the daemon stops.
    pub(crate) fn wake(&self) {
        // A write fails only if the counter is full, and a full eventfd is readable.
        self.link_monitor.iter().for_each(|stop| drop(stop.write(1)));
        self.threads.iter().for_each(|helper| helper.thread().unpark());
    }

    /// Waits until all threads have ended, no longer than until `end`.
    pub(crate) fn join(&mut self, end: Instant) {
        join_until(&mut self.threads, end);
    }
}

/// A thread beside the threads of ports, which ends before they do.
pub struct Background {
    thread: JoinHandle<()>,
    stopping: Arc<AtomicBool>,
    patience: Duration,
}

impl Background {
    /// Starts a thread that does `work` until [`Background::stop`], which waits for the thread's
    /// end no longer than `patience`.
    pub(crate) fn start(
        name: &str,
        patience: Duration,
        mut work: impl FnMut(&AtomicBool) + Send + 'static,
    ) -> io::Result<Background> {
        let stopping = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stopping);
        let thread = start_helper(name.to_owned(), &stopping, move || work(&stopped))?;
        Ok(Background { thread, stopping, patience })
    }

    /// Returns the thread, for others to wake.
    pub(crate) fn thread(&self) -> &Thread {
        self.thread.thread()
    }

    /// Ends the thread, and waits for its end no longer than `patience`.
    pub(crate) fn stop(self) {
        self.stopping.store(true, Ordering::Release);
        self.thread().unpark();
        join_until(&mut vec![self.thread], Instant::now() + self.patience);
    }
}

/// Starts a thread that goes on after a panic, until `stopping`.
pub(crate) fn start_helper(
    name: String,
    stopping: &Arc<AtomicBool>,
    work: impl FnMut() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let (what, stopping) = (format!("thread {name}"), Arc::clone(stopping));
    let stopped = move || stopping.load(Ordering::Acquire);
    let builder = std::thread::Builder::new().name(name);
    builder.spawn(move || run_again_after_panic(&what, stopped, work))
}
