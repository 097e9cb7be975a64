//! Failures: one line that says what went wrong and what to do next, and the exit status.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

use api::wire::{Fault, SWITCH, ServiceError, SwitchError};
use base::words::quote;
use serde_json::{Value, json};

use crate::values::DEFAULT_CONTROL;

const REFUSED: u8 = 1;
const USAGE: u8 = 2;
const NO_SWITCH: u8 = 3;
const NOT_PERMITTED: u8 = 4;

/// A directory that exists where systemd is the init process: sd_booted(3).
const SYSTEMD: &str = "/run/systemd/system";
/// Directories of units.
const UNITS: [&str; 4] =
    ["/etc/systemd/system", SYSTEMD, "/usr/lib/systemd/system", "/lib/systemd/system"];

/// Returns the command that starts a switch with this control socket: the start of the unit if
/// systemd has the unit and the control socket is the default socket, otherwise the daemon's
/// command line.
fn start(control: &Path) -> String {
    let has_unit =
        || UNITS.iter().any(|units| Path::new(units).join("vioswitchd.service").exists());
    match control == Path::new(DEFAULT_CONTROL) && Path::new(SYSTEMD).is_dir() && has_unit() {
        true => "systemctl start vioswitchd".to_owned(),
        false => start_by_hand(control),
    }
}

/// Returns the command that starts a switch with this control socket without systemd.
pub(crate) fn start_by_hand(control: &Path) -> String {
    let quoted = |path: &Path| quote(&path.display().to_string());
    let directory = control.parent().filter(|directory| !directory.exists());
    let directory = directory.filter(|directory| !directory.as_os_str().is_empty());
    let make = directory.map(|directory| format!("mkdir -p {} && ", quoted(directory)));
    format!("{}vioswitchd --control {}", make.unwrap_or_default(), quoted(control))
}

/// A command that was not carried out.
#[derive(Debug)]
pub struct Failure {
    /// The exit status.
    pub(crate) status: u8,
    /// Reason and remedy, in one line.
    pub(crate) text: String,
    /// Name of the error if the switch answered with an error, otherwise empty.
    error: String,
}

impl Failure {
    fn new(status: u8, text: String) -> Failure {
        Failure { status, text, error: String::new() }
    }

    /// Returns the failure of an invalid command line.
    pub(crate) fn usage(text: String) -> Failure {
        Failure::new(USAGE, text)
    }

    /// Returns the failure of a command that could not be carried out.
    pub(crate) fn refused(text: String) -> Failure {
        Failure::new(REFUSED, text)
    }

    /// Replaces the text by a longer text that `tell` makes of the text.
    pub(crate) fn told_as(mut self, tell: impl FnOnce(&str) -> String) -> Failure {
        self.text = tell(&self.text);
        self
    }

    /// Returns the failure for programs. The code is the error's name without its interface, or a
    /// word for the exit status.
    pub(crate) fn json(&self) -> Value {
        let code = match (self.error.rsplit('.').next(), self.status) {
            (Some(name), _) if !name.is_empty() => name,
            (_, USAGE) => "Usage",
            (_, NO_SWITCH) => "NoSwitch",
            (_, NOT_PERMITTED) => "NotPermitted",
            _ => "Refused",
        };
        json!({"code": code, "message": self.text, "status": self.status})
    }

    /// Returns the failure of an operation on a file; `what` names the operation.
    pub(crate) fn file(what: &str, path: &Path, error: &io::Error) -> Failure {
        let path = path.display();
        match error.kind() {
            ErrorKind::PermissionDenied => {
                Failure::new(NOT_PERMITTED, format!("permission denied at {path}: use sudo"))
            }
            _ => Failure::refused(format!("cannot {what} {path}: {error}")),
        }
    }

    /// Returns the failure of an operation on a file of an ordinary user: root is no remedy.
    pub(crate) fn users_file(what: &str, path: &Path, error: &io::Error) -> Failure {
        let is_denied = error.kind() == ErrorKind::PermissionDenied;
        let status = if is_denied { NOT_PERMITTED } else { REFUSED };
        Failure::new(status, format!("cannot {what} {}: {error}", path.display()))
    }

    /// Returns the failure to connect to a control socket.
    pub(crate) fn connect(path: &Path, error: &io::Error) -> Failure {
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                let start = start(path);
                let text = format!("no switch at {}: {start}, or --control PATH", path.display());
                Failure::new(NO_SWITCH, text)
            }
            ErrorKind::PermissionDenied => {
                let instead = "use sudo, or join the group that the socket belongs to";
                let text = format!("permission denied at {}: {instead}", path.display());
                Failure::new(NOT_PERMITTED, text)
            }
            _ => Failure::new(NO_SWITCH, format!("cannot connect to {}: {error}", path.display())),
        }
    }

    /// Returns the failure for a switch that has ended and that no other switch has replaced within
    /// `waited`.
    pub(crate) fn ended(path: &Path, waited: Duration) -> Failure {
        let (path, seconds) = (path.display(), waited.as_secs());
        let text = format!("the switch at {path} has ended, and none started within {seconds} s");
        Failure::new(NO_SWITCH, text)
    }

    /// Returns the failure for a control socket's path at which something other than a switch
    /// listens.
    pub(crate) fn no_switch(text: String) -> Failure {
        Failure::new(NO_SWITCH, text)
    }

    /// Returns the failure for a connection that ended or on which the switch does not answer.
    pub(crate) fn silence(error: Option<&io::Error>) -> Failure {
        let text = match error {
            Some(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                "the switch does not answer; see its log".to_owned()
            }
            Some(error) => format!("the connection to the switch failed: {error}"),
            None => "the switch closed the connection; see its log".to_owned(),
        };
        Failure::new(NO_SWITCH, text)
    }

    /// Returns the failure for a switch of another version: the switch lacks a method, or this
    /// program cannot read an answer.
    pub(crate) fn other_version() -> Failure {
        Failure::refused(
            "the versions of this program and of the switch differ: see vioswitchctl version"
                .to_owned(),
        )
    }

    /// Returns the failure for a call that the switch refused.
    pub(crate) fn answered(answer: Value) -> Failure {
        let error = answer["error"].as_str().unwrap_or_default().to_owned();
        let meant = |nearest: &Option<String>| match nearest {
            None => String::new(),
            Some(nearest) => format!(", did you mean '{nearest}'?"),
        };
        let (status, text) = match Fault::read(answer.clone()) {
            Some(Fault::Switch(error)) => match error {
                SwitchError::PortBeingRemoved { name } => {
                    (REFUSED, format!("port '{name}' is being removed: try again when it is gone"))
                }
                SwitchError::PortExists { name, origin } => {
                    let text = format!("port '{name}' exists (origin {origin})");
                    (REFUSED, format!("{text}; --may-exist accepts it"))
                }
                SwitchError::NoSuchPort { name, nearest: None } => {
                    (REFUSED, format!("there is no port '{name}'; see vioswitchctl port list"))
                }
                SwitchError::NoSuchPort { name, nearest } => {
                    (REFUSED, format!("there is no port '{name}'{}", meant(&nearest)))
                }
                SwitchError::InvalidParameter { wanted, .. } => (USAGE, wanted),
                SwitchError::TimedOut { state } => {
                    let text = format!("timed out: the port is still {state}");
                    (REFUSED, text + "; see vioswitchctl port show, and the log of its VM")
                }
                SwitchError::NotPermitted { wanted } => {
                    (NOT_PERMITTED, format!("only {wanted} may do this: use sudo"))
                }
                SwitchError::BadConfig { errors } => {
                    (REFUSED, format!("nothing has changed: {}", errors.join("; ")))
                }
                SwitchError::Refused { reason } => (REFUSED, reason),
            },
            Some(Fault::Service(ServiceError::InvalidParameter { parameter, nearest })) => {
                let text = "is unknown, missing or of the wrong type";
                (USAGE, format!("parameter '{parameter}' {text}{}", meant(&nearest)))
            }
            Some(Fault::Service(ServiceError::MethodNotFound { .. })) => {
                (REFUSED, Failure::other_version().text)
            }
            _ => (REFUSED, format!("{error} {}", answer["parameters"])),
        };
        // A switch sends no control characters; another program at the socket might.
        let text = text.chars().filter(|c| !c.is_control()).collect();
        Failure { status, text, error }
    }

    /// True if no switch answered, as while a switch restarts.
    pub(crate) fn is_absence(&self) -> bool {
        self.status == NO_SWITCH
    }

    /// True if the switch answered with the error of this name from the switch's own interface.
    pub(crate) fn is(&self, name: &str) -> bool {
        self.error.strip_prefix(SWITCH).is_some_and(|rest| rest.strip_prefix('.') == Some(name))
    }
}
