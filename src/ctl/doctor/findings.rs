//! Findings of the doctor, as lines and as JSON.

use api::wire::{self, Finding, Level};
use base::words::quote;
use serde_json::Value;

/// True if a finding is about the port `name`.
pub(crate) fn is_about(finding: &Finding, name: &str) -> bool {
    finding.port.iter().chain(&finding.with).any(|port| port == name)
}

/// Returns level, code, port and cause of a finding, in a line.
pub(crate) fn headline(finding: &Finding) -> String {
    let Finding { level, code, port, cause, .. } = finding;
    let about = port.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
    line(&format!("{}  {code}  {about}{cause}", word(*level)))
}

/// Returns a finding, and in a second line the command that removes the fault.
pub(crate) fn finding_lines(finding: &Finding) -> String {
    headline(finding) + &line(&format!("      {}", finding.command))
}

/// Returns a finding as JSON, without `with` if the finding is about one port alone.
pub fn shown(finding: &Finding) -> Value {
    let mut told = wire::json(finding);
    if let (Value::Object(told), true) = (&mut told, finding.with.is_empty()) {
        told.remove("with");
    }
    told
}

/// Findings in the order in which the doctor makes them.
#[derive(Debug, Default)]
pub struct Findings(pub Vec<Finding>);

impl Findings {
    pub fn add(
        &mut self,
        level: Level,
        code: &'static str,
        port: &str,
        cause: String,
        command: &str,
    ) {
        let port = (!port.is_empty()).then(|| port.to_owned());
        let (code, command) = (code.to_owned(), command.to_owned());
        self.0.push(Finding { level, code, port, with: Vec::new(), cause, command });
    }

    /// Adds a warning; `port` is empty for the switch and the host.
    pub fn warn(&mut self, code: &'static str, port: &str, cause: String, command: &str) {
        self.add(Level::Warn, code, port, cause, command);
    }

    pub fn fail(&mut self, code: &'static str, port: &str, cause: String, command: &str) {
        self.add(Level::Fail, code, port, cause, command);
    }
}

/// Returns the words of a command as a reader types the command into a shell. Others may have
/// chosen names among the words.
pub(crate) fn typed(words: &[impl AsRef<str>]) -> String {
    words.iter().map(|word| quote(word.as_ref())).collect::<Vec<_>>().join(" ")
}

pub fn word(level: Level) -> String {
    level.name().to_uppercase()
}

/// Returns a line without control characters, because a process's name or a log's line must not
/// forge a line of the doctor.
pub fn line(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).chain(['\n']).collect()
}
