//! The daemon's counters, read from its log, and the books they must balance.
//!
//! One block is a line per port (`port NAME addresses N …`), one per queue that ever did anything
//! (`port NAME queue I in|out|announced frames N bytes N copies N …`), each a row of names and
//! numbers, and at last `addresses N`.

use std::collections::BTreeMap;

/// One block, with a port's queues added up and each by itself.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// By port and by name; names of queue counters carry their direction: `in frames`, and the
    /// same with the queue's number: `in 1 frames`.
    ports: BTreeMap<String, BTreeMap<String, u64>>,
}

impl Counters {
    /// Reads the block in `log`; `None` while it is not complete.
    pub fn parse(log: &str) -> Option<Counters> {
        let mut counters = Counters::default();
        for line in log.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let [.., "addresses", count] = words[..]
                && !words.contains(&"port")
                && count.parse::<u64>().is_ok()
            {
                return Some(counters);
            }
            if let Some(at) = words.iter().position(|&word| word == "port") {
                counters.add_line(&words[at + 1..]);
            }
        }
        None
    }

    fn add_line(&mut self, words: &[&str]) {
        let (name, direction, queue, row) = match words {
            [name, "queue", queue, direction, row @ ..] => {
                (name, format!("{direction} "), Some(queue), row)
            }
            [name, row @ ..] => (name, String::new(), None, row),
            [] => return,
        };
        for pair in row.chunks_exact(2) {
            let Ok(value) = pair[1].parse::<u64>() else {
                return;
            };
            let port = self.ports.entry((*name).to_string()).or_default();
            *port.entry(format!("{direction}{}", pair[0])).or_default() += value;
            if let Some(queue) = queue {
                port.insert(format!("{direction}{queue} {}", pair[0]), value);
            }
            if pair[0].starts_with("drop.") {
                *port.entry(format!("{direction}drops")).or_default() += value;
            }
        }
    }

    /// A port's counter; one that was not logged is 0.
    pub fn get(&self, port: &str, key: &str) -> u64 {
        self.ports.get(port).and_then(|p| p.get(key)).copied().unwrap_or(0)
    }

    /// A counter's sum over all ports.
    pub fn total(&self, key: &str) -> u64 {
        self.ports.values().filter_map(|p| p.get(key)).sum()
    }

    /// No frame vanished: every copy that was asked for was delivered or dropped with a reason.
    /// Exact once traffic rests.
    pub fn assert_balanced(&self) {
        let asked = self.total("in copies") + self.total("announced copies");
        let dropped = self.total("out drops") + self.total("drops");
        let delivered = self.total("out frames");
        assert_eq!(asked, delivered + dropped, "copies asked for and accounted for: {self:#?}");
        assert!(self.total("in frames") > 0, "nothing was counted at all: {self:#?}");
    }
}
