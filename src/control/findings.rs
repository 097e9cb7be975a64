//! What is wrong with the switch, told to clients: by itself, and among the metrics.

use serde_json::{Value, json};

use super::message::{Fault, Parameters};
use super::methods::{Answer, Switch};
use super::parameters::only;
use super::parts::Stream;
use super::reload::List;
use crate::diagnosis::Finding;
use crate::diagnosis::facts::Sender;
use crate::limits::SENDERS_TOLD;
use crate::metrics::{Health, Scrape};

impl Switch {
    /// `GetMetrics`: counters, states, and what is wrong.
    pub(super) fn metrics(&self, parameters: &Parameters) -> Result<Answer, Fault> {
        only(parameters, &[])?;
        let daemon = self.daemon();
        let (health, condition) = (Health::of(&daemon), daemon.condition());
        drop(daemon);
        let scrape = Scrape::new(&self.view, &health, &self.view.diagnose(condition));
        Ok(Answer::Stream(Stream::Metrics(Box::new(scrape))))
    }

    /// `GetFindings`.
    pub(super) fn findings(&self, parameters: &Parameters) -> Result<Answer, Fault> {
        only(parameters, &[])?;
        let condition = self.daemon().condition();
        Ok(Answer::Stream(Stream::Findings(List::new(self.view.diagnose(condition)))))
    }
}

/// A finding, as clients are told.
pub fn finding(finding: &Finding) -> Value {
    let Finding { level, code, port, with, cause, command } = finding;
    let mut told = json!({
        "level": level.name(), "code": code, "with": with, "cause": cause, "command": command,
    });
    if let Some(port) = port {
        told["port"] = port.as_str().into();
    }
    told
}

/// Whose frames found no room at a port.
pub fn senders(all: Vec<Sender>) -> Value {
    let told = all.into_iter().take(SENDERS_TOLD);
    told.map(|Sender { port, frames }| json!({"port": port, "frames": frames})).collect()
}
