//! vioswitchd: reads the arguments and the configuration, starts the switch, and waits for a
//! signal.
//!
//! Exit status: 0 after SIGTERM, SIGINT or SIGQUIT, 2 for a bad argument, configuration file or
//! `RUST_LOG`, 1 if the switch cannot start.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use crate::control::ControlSocket;
use crate::degraded::{Code, Degradation};
use crate::metrics;
use crate::{Background, Daemon, Reloader, Services, StateStore};
use api::config::{CliAction, Config, Machine, Request, Texts, UsageError};
use datapath::events::{Kind, What, reason};
use sys::affinity;
use sys::descriptor::raise_limit;
use sys::logging::{self, Log, LogError};
use sys::notify::notify;
use sys::sandbox;
use sys::service::Service;
use sys::signals::{Signal, Signals};
use sys::threads::lock;

/// Exit status for errors that another start does not mend.
const BAD_USAGE: u8 = 2;

/// Runs vioswitchd with the arguments of the process.
pub fn main() -> ExitCode {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let allowed = affinity::allowed().unwrap_or_default();
    let machine = Machine { cpus, allowed: &allowed };
    let request = match Request::read(std::env::args_os(), machine) {
        Ok(CliAction::Request(request)) => request,
        Ok(CliAction::Print(text)) => {
            // A closed pipe (`--help | head`) is the reader's choice, not an error.
            let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
            return ExitCode::SUCCESS;
        }
        Err(error) => return give_up(&error.to_string(), ExitCode::from(BAD_USAGE)),
    };
    let files = request.texts().and_then(|texts| Ok((request.lay_over(&texts)?, Some(texts))));
    match &files {
        Ok((config, _)) if request.check => return check(config),
        Err(error) if request.check || request.strict || state_dir(&request).is_none() => {
            return give_up(&error.to_string(), ExitCode::from(BAD_USAGE));
        }
        _ => {}
    }
    let level = files.as_ref().map_or(log::LevelFilter::Info, |(config, _)| config.log_level);
    // Signals are blocked before any thread exists: all threads inherit the mask, and only this
    // thread takes signals.
    sandbox::unblock();
    let signals = match Signals::block() {
        Ok(signals) => signals,
        Err(error) => return give_up(&format!("cannot start: {error}"), ExitCode::FAILURE),
    };
    let log = match Log::start(level) {
        Ok(log) => log,
        Err(error @ LogError::Filter(_)) => {
            return give_up(&error.to_string(), ExitCode::from(BAD_USAGE));
        }
        Err(error) => return give_up(&error.to_string(), ExitCode::FAILURE),
    };
    let mut store = StateStore::open(state_dir(&request).as_deref());
    let files = files.map(|found| before_unconfirmed(&request, &mut store, found));
    let (config, texts) = match files.or_else(|error| last(&request, &mut store, error)) {
        Ok(found) => found,
        Err(error) => return give_up(&error.to_string(), ExitCode::from(BAD_USAGE)),
    };
    let status = match run(request, (&config, texts), store, &signals, &log) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log.error(&error);
            ExitCode::FAILURE
        }
    };
    log.flush();
    status
}

/// Writes the error to stderr, where there is no log yet.
fn give_up(why: &str, status: ExitCode) -> ExitCode {
    let _ = std::io::stderr().write_all(logging::plain_error(why).as_bytes());
    status
}

/// Checks whether `config` could run on this machine, and prints the result.
fn check(config: &Config) -> ExitCode {
    for warning in &config.warnings {
        let _ = std::io::stderr()
            .write_all(logging::plain_error(&format!("warning: {warning}")).as_bytes());
    }
    if let Err(error) = logging::check_filter_variable() {
        return give_up(&error.to_string(), ExitCode::from(BAD_USAGE));
    }
    let found = crate::check(config);
    if !found.is_empty() {
        return give_up(&found.join("\n"), ExitCode::FAILURE);
    }
    let _ = writeln!(std::io::stdout(), "valid: {}", config.summary());
    ExitCode::SUCCESS
}

fn run(
    request: Box<Request>,
    (config, texts): (&Config, Option<Texts>),
    store: StateStore,
    signals: &Signals,
    log: &Log,
) -> Result<(), Box<dyn std::error::Error>> {
    if let Err(error) = raise_limit() {
        log::warn!("cannot raise the limit of open descriptors: {error}");
    }
    config.warnings.iter().for_each(|warning| log::warn!("{warning}"));
    // The control socket comes first: a second daemon with this socket ends here and changes
    // nothing.
    let control = config.control.as_ref().map(ControlSocket::bind).transpose()?;
    let daemon = Arc::new(Mutex::new(Daemon::start_keeping(config, store)?));
    if let Some(texts) = &texts {
        lock(&daemon).keep_files(texts);
    }
    let file = request.file().map(Path::to_owned);
    let reloader = Arc::new(Reloader::new(&daemon, request));
    let mut services = Services::new(&daemon);
    // The guests' network does not depend on the services: a service that fails ends no start.
    let latency = services.start(Code::Latency, crate::start_latency);
    let start_plug = |daemon: &_| crate::start_plug(daemon).map_err(|e| format!("plug: {e}"));
    let plug = services.start(Code::Plug, start_plug);
    let control = control.map(|socket| socket.serve(&daemon, &reloader)).transpose()?;
    let socket = config.metrics.clone();
    let metrics = services.start(Code::Metrics, move |daemon| {
        socket.as_ref().map(|socket| metrics::start(socket, daemon)).transpose()
    });
    // A failure ends the start, so the thread `retry` starts before the service manager is told.
    let status = lock(&daemon).status_line();
    let retry = services.retry(status)?;
    lock(&daemon).confine(file.as_deref(), texts.as_ref())?;
    say_ready(&lock(&daemon), log);
    loop {
        match signals.wait()? {
            Signal::SIGTERM | Signal::SIGINT | Signal::SIGQUIT => break,
            Signal::SIGUSR1 => lock(&daemon).report(),
            Signal::SIGHUP => {
                let begun = reloader.begin_or_repeat();
                begun.unwrap_or_else(|busy| log::warn!("SIGHUP: {busy}"));
            }
            Signal::SIGUSR2 => log::warn!("SIGUSR2 is ignored; SIGUSR1 logs the counters"),
            _ => {}
        }
    }
    notify_manager("STOPPING=1");
    // The thread `retry` ends first, so that no port and no service starts any more.
    retry.stop();
    let services = [plug.take().flatten(), control, metrics.take().flatten()];
    services.into_iter().flatten().for_each(Service::stop);
    latency.take().flatten().into_iter().for_each(Background::stop);
    let mut daemon = lock(&daemon);
    daemon.stop();
    daemon.report();
    sandbox::log();
    Ok(())
}

/// Returns the configuration that was last in force, in place of a configuration with errors. A
/// host that starts with the earlier network is better off than a host without a network.
fn last(
    request: &Request,
    store: &mut StateStore,
    error: UsageError,
) -> Result<(Config, Option<Texts>), UsageError> {
    let Some(config) = store.last_files().and_then(|texts| request.lay_over(&texts).ok()) else {
        return Err(error);
    };
    store.refuse(&error.lines);
    Ok((config, None))
}

/// Returns the configuration that was in force before an unconfirmed reload, if an earlier process
/// reloaded these files and no client confirmed the reload; otherwise returns the configuration of
/// the files. `--strict` has no effect here, as it concerns errors, and the files have no errors.
fn before_unconfirmed(
    request: &Request,
    store: &mut StateStore,
    (config, texts): (Config, Option<Texts>),
) -> (Config, Option<Texts>) {
    if !texts.as_ref().is_some_and(|texts| store.are_unconfirmed(texts)) {
        return (config, texts);
    }
    match store.last_files().and_then(|last| request.lay_over(&last).ok()) {
        Some(before) => {
            store.not_confirmed();
            (before, None)
        }
        None => (config, texts),
    }
}

/// Returns the directory that keeps changes, from the command line, or else from the service
/// manager.
fn state_dir(request: &Request) -> Option<PathBuf> {
    let given = request.state_dir.clone();
    given.or_else(|| std::env::split_paths(&std::env::var_os("STATE_DIRECTORY")?).next())
}

/// Reports that the switch is ready, and all degradations.
fn say_ready(daemon: &Daemon, log: &Log) {
    let events = daemon.events();
    for Degradation { code, subject, text, .. } in daemon.degradations() {
        let why = match code {
            Code::PortLeftOut | Code::TapLeftOut => {
                format!("{text}; the switch leaves the port out and tries again")
            }
            Code::Metrics | Code::Plug | Code::Latency => format!("{text}; going on without it"),
            // The event and the log line of the finding came earlier.
            _ => {
                events.keep(None, 0, What::Degraded { why: reason(&text) });
                continue;
            }
        };
        let event = What::Degraded { why: reason(&why) };
        log.error_with(&values(&event), &why);
        events.keep(subject.as_deref(), 0, event);
    }
    let (summary, status) = (daemon.summary(), daemon.status_line());
    notify_manager(&format!("READY=1\nSTATUS={status}"));
    match daemon.shortfall() {
        None => events.tell(What::Ready { summary }),
        Some(degraded) => {
            let event = What::Ready { summary: format!("{summary}, {degraded}") };
            let Kind { name, message_id } = event.kind();
            log::warn!(message_id, event = name; "{event}");
            events.keep(None, 0, event);
        }
    }
}

/// Returns the fields that the journal gets beside an event's text.
fn values(event: &What) -> [(&'static str, &'static str); 2] {
    let Kind { name, message_id } = event.kind();
    [("message_id", message_id), ("event", name)]
}

/// Tells the service manager the state, if there is a service manager; logs an error and goes on.
fn notify_manager(state: &str) {
    if let Err(error) = notify(state) {
        log::warn!("cannot notify the service manager: {error}");
    }
}
