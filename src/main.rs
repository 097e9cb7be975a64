//! vioswitchd: arguments to a configuration to a running switch, then wait for a signal.
//!
//! Exit status: 0 after SIGTERM or SIGINT, 2 for a bad argument or configuration file, 1 if the
//! switch cannot start.

use std::io::Write;
use std::process::ExitCode;

use vioswitch::config::{self, Action, Config, Machine};
use vioswitch::daemon::Daemon;
use vioswitch::sys::affinity;
use vioswitch::sys::descriptor::raise_limit;
use vioswitch::sys::log_queue::LogQueue;
use vioswitch::sys::notify::notify;
use vioswitch::sys::signals::{Signal, Signals};
use vioswitch::sys::threads;

fn main() -> ExitCode {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let allowed = affinity::allowed().unwrap_or_default();
    let machine = Machine { cpus, allowed: &allowed };
    let config = match config::from_args(std::env::args_os(), machine) {
        Ok(Action::Run(config)) => config,
        Ok(Action::Print(text)) => {
            // A closed pipe (`--help | head`) is the reader's choice, not an error.
            let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error}");
            return ExitCode::from(2);
        }
    };
    // Before any thread exists, so that all inherit the mask and only this one takes signals.
    let started = Signals::block().and_then(|signals| Ok((signals, start_log()?)));
    let (signals, queue) = match started {
        Ok(started) => started,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let status = match run(&config, &signals) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::error!("{error}");
            ExitCode::FAILURE
        }
    };
    queue.flush();
    status
}

/// Sends log lines, and what a panic has to say, through a queue, so that nobody waits for a
/// reader that hangs.
fn start_log() -> std::io::Result<LogQueue> {
    let queue = LogQueue::start(std::io::stderr())?;
    let lines = queue.clone();
    let default = env_logger::Env::default().default_filter_or("info");
    env_logger::Builder::from_env(default)
        // Its own target is behind a lock, which a thread that waits would hold.
        .target(env_logger::Target::Pipe(Box::new(std::io::sink())))
        .format(move |f, record| {
            let line = format!("[{} {:<5}] {}\n", f.timestamp(), record.level(), record.args());
            lines.push(line.as_bytes());
            Ok(())
        })
        .init();
    threads::report_panics();
    Ok(queue)
}

fn run(config: &Config, signals: &Signals) -> Result<(), Box<dyn std::error::Error>> {
    if let Err(error) = raise_limit() {
        log::warn!("cannot raise the limit of open descriptors: {error}");
    }
    let mut daemon = Daemon::start(config)?;
    tell("READY=1\nSTATUS=all sockets exist");
    log::info!("ready: {} ports, {} taps", config.ports.len(), config.taps.len());
    while signals.wait()? == Signal::Report {
        daemon.report();
    }
    tell("STOPPING=1");
    daemon.stop();
    daemon.report();
    Ok(())
}

/// Tells the service manager, if there is one; it does without if that fails.
fn tell(state: &str) {
    if let Err(error) = notify(state) {
        log::warn!("cannot notify the service manager: {error}");
    }
}
