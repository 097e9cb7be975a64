//! `--latency`: keeps CPUs, while frames come, to idle states that CPUs leave soon.
//!
//! A worker without frames sleeps, and so does its CPU: the deeper the CPU sleeps, the later it
//! processes the next frame. A thread holds a [`WakeupRequest`] from the moment at which a worker
//! wakes up until no frame came for [`LATENCY_LOOK`]. To wake this thread, a worker makes one
//! system call, at most once in each pause of that length; frames cost nothing. While the workers
//! sleep, the thread requests nothing and has no timer.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::{Background, Daemon};
use api::config;
use base::limits::{LATENCY_LOOK, LATENCY_STOP_TIMEOUT};
use datapath::worker::{Helper, Workers};
use sys::threads::{lock, pause};
use sys::wakeup::{DEVICE, WakeupRequest};

impl Daemon {
    /// Returns how soon CPUs are to wake up while frames come.
    pub(crate) fn latency(&self) -> config::Latency {
        self.started.latency
    }
}

/// Opens the device.
pub(super) fn open(device: &Path) -> Result<WakeupRequest, String> {
    WakeupRequest::open(device)
        .map_err(|error| format!("latency: cannot open {}: {error}", device.display()))
}

/// Starts the thread that holds the request, if the configuration asks for it.
pub(crate) fn start_latency(daemon: &Arc<Mutex<Daemon>>) -> Result<Option<Background>, String> {
    let (latency, workers) = {
        let daemon = lock(daemon);
        (daemon.latency(), Arc::clone(&daemon.context.workers))
    };
    let config::Latency::Within(micros) = latency else { return Ok(None) };
    let mut request = open(Path::new(DEVICE))?;
    let run = move |stopping: &AtomicBool| {
        if let Err(error) = run(&mut request, micros, &workers, stopping) {
            log::error!("latency: cannot write to {DEVICE}: {error}");
        }
    };
    let thread = Background::start("latency", LATENCY_STOP_TIMEOUT, run);
    thread.map(Some).map_err(|error| format!("latency: no thread: {error}"))
}

/// Holds the request while frames come, until `stopping`.
fn run(
    request: &mut WakeupRequest,
    micros: u16,
    workers: &Workers,
    stopping: &AtomicBool,
) -> io::Result<()> {
    workers.have_helper(Helper::Latency);
    let frames = || workers.handles().iter().map(|handle| handle.stats.frames.get()).sum::<u64>();
    let mut seen = frames();
    loop {
        let woken = workers.park_while_asleep(Helper::Latency, stopping);
        if stopping.load(Ordering::Acquire) {
            return Ok(());
        }
        if !woken && frames() == seen {
            // A worker is awake for another reason than frames.
            pause(LATENCY_LOOK, stopping);
            continue;
        }
        request.hold(micros)?;
        loop {
            let before = frames();
            if !pause(LATENCY_LOOK, stopping) || frames() == before {
                break;
            }
        }
        request.release()?;
        seen = frames();
    }
}
