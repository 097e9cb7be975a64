//! What went wrong, in one line that says what to do next, and the exit status that goes with it.

use std::io::{self, ErrorKind};
use std::path::Path;

use serde_json::{Value, json};

const REFUSED: u8 = 1;
const USAGE: u8 = 2;
const NO_SWITCH: u8 = 3;
const NOT_PERMITTED: u8 = 4;

/// A command that was not carried out.
#[derive(Debug)]
pub struct Failure {
    /// The exit status.
    pub status: u8,
    /// One line.
    pub text: String,
    /// The error's name, if the switch said it.
    error: String,
}

impl Failure {
    fn new(status: u8, text: String) -> Failure {
        Failure { status, text, error: String::new() }
    }

    /// The command makes no sense.
    pub fn usage(text: String) -> Failure {
        Failure::new(USAGE, text)
    }

    /// What there is to say was said.
    pub fn told() -> Failure {
        Failure::new(REFUSED, String::new())
    }

    /// It could not be done.
    pub fn refused(text: String) -> Failure {
        Failure::new(REFUSED, text)
    }

    /// The same, told as a part of something.
    pub fn told_as(mut self, tell: impl FnOnce(&str) -> String) -> Failure {
        self.text = tell(&self.text);
        self
    }

    /// For programs. The code is the error's name without its interface, or the status in a word.
    pub fn json(&self) -> Value {
        let code = match (self.error.rsplit('.').next(), self.status) {
            (Some(name), _) if !name.is_empty() => name,
            (_, USAGE) => "Usage",
            (_, NO_SWITCH) => "NoSwitch",
            (_, NOT_PERMITTED) => "NotPermitted",
            _ => "Refused",
        };
        json!({"code": code, "message": self.text, "status": self.status})
    }

    /// A file cannot be dealt with.
    pub fn file(what: &str, path: &Path, error: &io::Error) -> Failure {
        let path = path.display();
        match error.kind() {
            ErrorKind::PermissionDenied => {
                Failure::new(NOT_PERMITTED, format!("permission denied at {path}: use sudo"))
            }
            _ => Failure::refused(format!("cannot {what} {path}: {error}")),
        }
    }

    /// The socket cannot be connected to.
    pub fn connect(path: &Path, error: &io::Error) -> Failure {
        let path = path.display();
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                let instead = "systemctl start vioswitchd, or --control PATH";
                Failure::new(NO_SWITCH, format!("no switch at {path}: {instead}"))
            }
            ErrorKind::PermissionDenied => {
                let instead = "use sudo, or join the group that the socket belongs to";
                Failure::new(NOT_PERMITTED, format!("permission denied at {path}: {instead}"))
            }
            _ => Failure::new(NO_SWITCH, format!("cannot connect to {path}: {error}")),
        }
    }

    /// The connection ended, or nothing comes.
    pub fn silence(error: Option<&io::Error>) -> Failure {
        let text = match error {
            Some(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                "the switch does not answer; see its log".to_owned()
            }
            Some(error) => format!("the connection to the switch failed: {error}"),
            None => "the switch closed the connection; see its log".to_owned(),
        };
        Failure::new(NO_SWITCH, text)
    }

    /// The switch said no.
    pub fn answered(error: &str, parameters: &Value) -> Failure {
        let word = |key: &str| parameters[key].as_str().unwrap_or_default();
        let meant = match word("nearest") {
            "" => String::new(),
            nearest => format!(", did you mean '{nearest}'?"),
        };
        let (status, text) = match error {
            "io.vioswitch.Switch.PortBeingRemoved" => (
                REFUSED,
                format!("port '{}' is being removed: try again when it is gone", word("name")),
            ),
            "io.vioswitch.Switch.PortExists" => {
                let (name, origin) = (word("name"), word("origin"));
                let text = format!("port '{name}' exists (origin {origin})");
                (REFUSED, format!("{text}; --may-exist accepts it"))
            }
            "io.vioswitch.Switch.NoSuchPort" => {
                let instead =
                    if meant.is_empty() { "; see vioswitchctl port list" } else { &meant };
                (REFUSED, format!("there is no port '{}'{instead}", word("name")))
            }
            "io.vioswitch.Switch.InvalidParameter" => (USAGE, word("wanted").to_owned()),
            "io.vioswitch.Switch.TimedOut" => {
                let text = format!("timed out: the port is still {}", word("state"));
                (REFUSED, text + "; see vioswitchctl port show, and the log of its VM")
            }
            "io.vioswitch.Switch.NotPermitted" => {
                (NOT_PERMITTED, format!("this is for {}: use sudo", word("wanted")))
            }
            "io.vioswitch.Switch.BadConfig" => {
                let errors = parameters["errors"].as_array().into_iter().flatten();
                let errors: Vec<&str> = errors.filter_map(Value::as_str).collect();
                (REFUSED, format!("nothing has changed: {}", errors.join("; ")))
            }
            "io.vioswitch.Switch.Refused" => (REFUSED, word("reason").to_owned()),
            "org.varlink.service.InvalidParameter" => {
                let text = "is unknown, missing or of the wrong type";
                (USAGE, format!("parameter '{}' {text}{meant}", word("parameter")))
            }
            "org.varlink.service.MethodNotFound" => {
                let text = "the switch is of another version, see vioswitchctl status".to_owned();
                (REFUSED, text)
            }
            error => (REFUSED, format!("{error} {parameters}")),
        };
        // The switch does not send any; another program at that socket might.
        let text = text.chars().filter(|c| !c.is_control()).collect();
        Failure { status, text, error: error.to_owned() }
    }

    /// True if there was no switch, as while it restarts.
    pub fn is_absence(&self) -> bool {
        self.status == NO_SWITCH
    }

    /// True if the switch answered with this error.
    pub fn is(&self, interface: &str, name: &str) -> bool {
        self.error.strip_prefix(interface).is_some_and(|rest| rest.strip_prefix('.') == Some(name))
    }
}
