//! Sends findings to clients: as answers, and among the metrics.

use super::methods::Answer;
use super::parts::{Part, list};
use super::switch::Switch;
use crate::metrics::{Health, Scrape};
use api::diagnosis;
use api::diagnosis::history::Sender;
use api::wire;
use base::limits::{CONTROL_PORTS_A_REPLY, METRICS_PART_BYTES, SENDERS_TOLD};

impl Switch {
    /// Answers `GetMetrics`: counters, states and findings.
    pub(super) fn metrics(&self) -> Answer {
        let daemon = self.daemon();
        let (health, condition) = (Health::of(&daemon), daemon.condition());
        drop(daemon);
        let mut scrape = Scrape::new(&self.view, &health, &self.view.diagnose(condition));
        Answer::parts(move |_| {
            let text = scrape.part(METRICS_PART_BYTES);
            Ok(Part::reply(&wire::Metrics { text }, !scrape.is_done()))
        })
    }

    /// Answers `GetFindings`.
    pub(super) fn findings(&self) -> Answer {
        let condition = self.daemon().condition();
        let found = self.view.diagnose(condition).into_iter().map(finding).collect();
        let answer = |_: &Switch, findings| wire::Findings { findings };
        Answer::Stream(list(found, CONTROL_PORTS_A_REPLY, answer))
    }
}

fn finding(finding: diagnosis::Finding) -> wire::Finding {
    let diagnosis::Finding { level, code, port, with, cause, command } = finding;
    wire::Finding { level, code: code.to_owned(), port, with, cause, command }
}

/// Returns the ports whose frames found no room at another port.
pub fn senders(all: Vec<Sender>) -> Vec<wire::Sender> {
    let told = all.into_iter().take(SENDERS_TOLD);
    told.map(|Sender { port, frames }| wire::Sender { port, frames }).collect()
}
