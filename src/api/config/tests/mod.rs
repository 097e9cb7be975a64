//! Tests through [`from_args`], the way the daemon calls it: `precedence` which value holds, and
//! `command_line` and `file` every kind of error with the argument or the line it names.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

mod command_line;
mod documents;
mod file;
mod manual;
mod packaging;
mod precedence;
mod several;

const CPUS: Machine<'_> = Machine { cpus: 4, allowed: &[0, 2, 3, 7] };
const MAC: &str = "52:54:00:00:00:01";

/// Action that the command line requests, with the files that it names.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Action {
    Run(Config),
    Check(Config),
    Print(String),
}

/// Reads the command line `args`, which begins with the program's name, and its files, for
/// `machine`.
fn from_args<I>(args: I, machine: Machine<'_>) -> Result<Action, UsageError>
where
    I: IntoIterator,
    I::Item: Into<OsString>,
{
    let request = match Request::read(args, machine)? {
        CliAction::Print(text) => return Ok(Action::Print(text)),
        CliAction::Request(request) => request,
    };
    let config = request.lay_over(&request.texts()?)?;
    Ok(if request.check { Action::Check(config) } else { Action::Run(config) })
}

fn run(args: &[&str]) -> Result<Action, UsageError> {
    from_args(std::iter::once("vioswitchd").chain(args.iter().copied()), CPUS)
}

fn config(args: &[&str]) -> Config {
    match run(args) {
        Ok(Action::Run(config)) => config,
        other => panic!("{args:?}: {other:?}"),
    }
}

/// Returns the line about bad `args`, without the program's name.
fn complaint(args: &[&str]) -> String {
    let error = run(args).expect_err(&format!("{args:?}"));
    assert_eq!(error.lines.len(), 1, "{args:?}: {error:?}");
    assert!(!error.lines[0].contains(['\n', '\r']), "{error:?}");
    error.lines[0].strip_prefix("vioswitchd: ").unwrap_or(&error.lines[0]).to_owned()
}

fn assert_complaint(args: &[&str], expected: &str) {
    assert_eq!(complaint(args), expected, "{args:?}");
}

/// A file that is gone when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new(content: impl AsRef<[u8]>) -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("vioswitch-config-{}-{count}.toml", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, content).unwrap();
        Scratch(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns the configuration of a file and arguments.
fn with_file(content: &str, args: &[&str]) -> Result<Action, UsageError> {
    let file = Scratch::new(content);
    let all: Vec<&str> =
        ["--config", file.path()].into_iter().chain(args.iter().copied()).collect();
    run(&all)
}

fn good_file(content: &str, args: &[&str]) -> Config {
    match with_file(content, args) {
        Ok(Action::Run(config)) => config,
        other => panic!("{content}: {other:?}"),
    }
}

/// Returns the settings of all ports.
fn settings(config: &Config) -> Vec<&Settings> {
    config.ports.iter().map(|entry| &entry.settings).collect()
}

fn server(path: &str) -> Option<Endpoint> {
    Some(Endpoint::Server { path: path.into(), mode: 0o660, group: None })
}
