//! The daemon's counters as it logs them on SIGUSR1 and at its end, and the balance they must show
//! (I1).
//!
//! `port NAME [queue N in|out|announced] KEY VALUE KEY VALUE …`; drops are keys `drop.REASON`.
//! `worker N KEY VALUE …`; some values are ratios, with a decimal point.

use std::collections::HashMap;
use std::time::Duration;

use super::proc::wait_for;

/// One line.
#[derive(Clone, Debug)]
struct Row {
    port: String,
    /// "in", "out", "announced", or "" for the port's own line.
    side: String,
    /// Of a queue's line.
    queue: Option<u16>,
    values: HashMap<String, u64>,
}

#[derive(Clone, Debug, Default)]
pub struct Counters {
    rows: Vec<Row>,
    /// By the worker's number.
    workers: Vec<HashMap<String, f64>>,
}

/// What the last line of a report begins with.
const END: &str = "] addresses ";

impl Counters {
    /// Reads the counter lines of the last report in a piece of log: it may hold one more, of a
    /// signal that was sent before.
    pub fn parse(log: &str) -> Counters {
        let last = log.rfind(END).and_then(|end| Some(&log[log[..end].rfind(END)? + END.len()..]));
        let lines = || last.unwrap_or(log).lines().filter_map(|l| Some(l.split_once("] ")?.1));
        Counters {
            rows: lines().filter_map(parse_row).collect(),
            workers: lines().filter_map(parse_worker).collect(),
        }
    }

    /// The same; `None` while there is no report that is whole.
    pub fn complete(log: &str) -> Option<Counters> {
        let end = log.rfind(END)?;
        log[end..].contains('\n').then(|| Counters::parse(log))
    }

    /// How many workers reported.
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// A worker's counter; panics if the report has none of this name.
    pub fn worker(&self, index: usize, key: &str) -> f64 {
        let found = self.workers.get(index).and_then(|worker| worker.get(key));
        *found.unwrap_or_else(|| panic!("no {key} of worker {index}: {:?}", self.workers))
    }

    /// Sum of a counter over the queues of one side, of one port or of all.
    pub fn sum(&self, port: Option<&str>, side: &str, key: &str) -> u64 {
        self.side(port, side).filter_map(|r| r.values.get(key)).sum()
    }

    /// Sum of all drops, likewise.
    pub fn drops(&self, port: Option<&str>, side: &str) -> u64 {
        let rows = self.side(port, side).flat_map(|r| &r.values);
        rows.filter(|(k, _)| k.starts_with("drop.")).map(|(_, v)| v).sum()
    }

    /// One counter in few words: `attaches` and `drops` of the port itself, `in frames` and
    /// `out drops` of all queues of a side, `in 1 frames` of one of them. What was not logged is 0.
    pub fn get(&self, port: &str, key: &str) -> u64 {
        let words: Vec<&str> = key.split(' ').collect();
        let (side, queue, name) = match words[..] {
            [name] => ("", None, name),
            [side, name] => (side, None, name),
            [side, queue, name] => (side, Some(queue.parse().expect("a queue")), name),
            _ => panic!("no counter: {key}"),
        };
        let rows = self.side(Some(port), side).filter(|row| queue.is_none() || row.queue == queue);
        let wanted = |key: &str| key == name || name == "drops" && key.starts_with("drop.");
        let values = rows.flat_map(|row| &row.values).filter(|(key, _)| wanted(key));
        values.map(|(_, value)| value).sum()
    }

    /// Every value of the ports' lines: port, side ("" for the port's own line), name, value.
    pub fn each(&self) -> impl Iterator<Item = (&str, &str, &str, u64)> {
        self.rows.iter().flat_map(|r| {
            let (port, side) = (r.port.as_str(), r.side.as_str());
            r.values.iter().map(move |(key, value)| (port, side, key.as_str(), *value))
        })
    }

    fn side<'a>(&'a self, port: Option<&'a str>, side: &'a str) -> impl Iterator<Item = &'a Row> {
        let wanted = move |r: &&Row| r.side == side && port.is_none_or(|p| r.port == p);
        self.rows.iter().filter(wanted)
    }

    /// Copies asked for = frames out + drops on the way out, those without a queue included.
    pub fn balance(&self) {
        let (copies, settled) = self.sides();
        assert_eq!(copies, settled, "copies, frames out + drops (I1): {self:#?}");
    }

    /// The same of a switch that had traffic.
    pub fn assert_balanced(&self) {
        assert!(self.sum(None, "in", "frames") > 0, "nothing was counted at all: {self:#?}");
        self.balance();
    }

    fn sides(&self) -> (u64, u64) {
        let copies: u64 =
            ["in", "announced", ""].iter().map(|side| self.sum(None, side, "copies")).sum();
        let out = self.sum(None, "out", "frames");
        (copies, out + self.drops(None, "out") + self.drops(None, ""))
    }
}

/// Reads until the two sides agree, or a few times in vain: a worker counts a burst after it has
/// delivered it, and may have lost its CPU in between.
pub fn settled(mut read: impl FnMut() -> Counters) -> Counters {
    let mut counters = read();
    for _ in 0..10 {
        let (copies, settled) = counters.sides();
        if copies == settled {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
        counters = read();
    }
    counters
}

/// Reads until traffic rests: two reports 0.2 s apart have the same frames. For 20 s at most.
pub fn at_rest(mut read: impl FnMut() -> Counters) -> Counters {
    let mut last = read();
    let rests = wait_for(Duration::from_secs(20), || {
        std::thread::sleep(Duration::from_millis(200));
        let now = read();
        let same = |side| now.sum(None, side, "frames") == last.sum(None, side, "frames");
        let rests = same("in") && same("out");
        last = now;
        rests
    });
    assert!(rests, "traffic never rests: {last:#?}");
    last
}

fn parse_row(text: &str) -> Option<Row> {
    let mut words: Vec<&str> = text.split_whitespace().collect();
    if words.first() != Some(&"port") || words.len() < 4 {
        return None;
    }
    let port = words[1].to_string();
    let (mut side, mut queue) = (String::new(), None);
    words.drain(..2);
    if words[0] == "queue" {
        queue = Some(words.get(1)?.parse().ok()?);
        side = words.get(2)?.to_string();
        words.drain(..3);
    }
    let value = |p: &[&str]| Some((p.first()?.to_string(), p.get(1)?.parse().ok()?));
    let values: HashMap<String, u64> = words.chunks(2).map(value).collect::<Option<_>>()?;
    Some(Row { port, side, queue, values })
}

fn parse_worker(text: &str) -> Option<HashMap<String, f64>> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let ["worker", _, row @ ..] = &words[..] else { return None };
    let value = |p: &[&str]| Some((p.first()?.to_string(), p.get(1)?.parse().ok()?));
    row.chunks(2).map(value).collect()
}
