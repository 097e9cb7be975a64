//! Model of the screen: rates of ports and workers, from two readings of the switch.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use api::wire::{State, Status};

use crate::look::{self, Rates, Stats};

/// Number of rates that the model remembers of each port, for the port's curve.
pub(crate) const HISTORY: usize = 60;
/// Most characters of a filter.
const FILTER_CHARS: usize = 32;

/// Order of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Sort {
    #[default]
    Name,
    In,
    Out,
    Drops,
}

impl Sort {
    /// Returns the order that a key selects.
    pub(crate) fn by_key(key: char) -> Option<Sort> {
        let keys = [('n', Sort::Name), ('i', Sort::In), ('o', Sort::Out), ('d', Sort::Drops)];
        keys.into_iter().find(|(known, _)| *known == key).map(|(_, sort)| sort)
    }
}

/// One port.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Row {
    pub(crate) name: String,
    pub(crate) state: State,
    pub(crate) rates: Rates,
    /// Reason of most drops between the last two readings; empty without a drop.
    pub(crate) reason: String,
    /// Frames per second in both directions, the newest last.
    pub(crate) history: Vec<f64>,
}

impl Row {
    /// Returns the drops per second in both directions.
    pub(crate) fn drops(&self) -> f64 {
        self.rates.r#in.drops + self.rates.out.drops
    }
}

/// A port that is shown alone.
#[derive(Debug)]
pub(crate) struct Detail {
    pub(crate) name: String,
    pub(crate) text: String,
    /// Number of lines that are scrolled out above the screen.
    pub(crate) scroll: u16,
}

/// State that the screen shows.
#[derive(Debug, Default)]
pub struct Model {
    /// Last reading of the switch, and the time of the reading.
    last: Option<(Stats, Instant)>,
    all: Vec<Row>,
    histories: HashMap<String, VecDeque<f64>>,
    /// Status of the switch.
    pub(crate) status: Status,
    /// Share of time in which each worker found frames, from 0 to 1.
    pub(crate) workers: Vec<f64>,
    /// Rows that pass the filter, in order.
    pub(crate) rows: Vec<Row>,
    pub(crate) sort: Sort,
    pub(crate) filter: String,
    /// True while the user types the filter.
    pub(crate) typing: bool,
    /// Index of the chosen row.
    pub(crate) chosen: usize,
    pub(crate) detail: Option<Detail>,
    /// Reason why the last request to the switch failed.
    pub(crate) failure: Option<String>,
}

impl Model {
    /// Takes over a reading of the switch made at `now`.
    pub(crate) fn update(&mut self, all: Stats, now: Instant) {
        let (before, seconds) = match &self.last {
            Some((before, then)) => (before, (now - *then).as_secs_f64().max(0.001)),
            None => (&all, 1.0),
        };
        let mut rows = Vec::new();
        for port in &all.ports {
            // A port that came since the last reading has had no time to count frames.
            let known = before.ports.iter().find(|old| old.number == port.number).unwrap_or(port);
            let drops = [(&known.r#in, &port.r#in), (&known.out, &port.out)].into_iter();
            let drops = drops.flat_map(|(before, after)| {
                after.drops.iter().map(|(reason, count)| {
                    (count.saturating_sub(before.drops.get(reason).copied().unwrap_or(0)), reason)
                })
            });
            let most = drops.filter(|(more, _)| *more > 0).max_by_key(|(more, _)| *more);
            let (name, rates) = (port.name.clone(), look::rates(known, port, seconds));
            let history = self.histories.entry(name.clone()).or_default();
            if history.len() == HISTORY {
                history.pop_front();
            }
            history.push_back(rates.r#in.frames + rates.out.frames);
            let history = history.iter().copied().collect();
            let (state, reason) = (port.state, most.map(|(_, reason)| reason.clone()));
            rows.push(Row { name, state, rates, reason: reason.unwrap_or_default(), history });
        }
        let busy = look::busy(&before.workers, &all.workers, seconds);
        self.workers = busy;
        self.histories.retain(|name, _| rows.iter().any(|row| row.name == *name));
        self.all = rows;
        self.last = Some((all, now));
        self.arrange();
    }

    /// Filters and sorts the rows again. A chosen port that stays in the rows stays chosen.
    pub(crate) fn arrange(&mut self) {
        let chosen = self.rows.get(self.chosen).map(|row| row.name.clone());
        self.rows =
            self.all.iter().filter(|row| row.name.contains(&self.filter)).cloned().collect();
        let by = |row: &Row| match self.sort {
            Sort::Name => 0.0,
            Sort::In => row.rates.r#in.bytes,
            Sort::Out => row.rates.out.bytes,
            Sort::Drops => row.drops(),
        };
        self.rows.sort_by(|a, b| by(b).total_cmp(&by(a)).then_with(|| a.name.cmp(&b.name)));
        let place = |name| self.rows.iter().position(|row| row.name == name);
        self.chosen = chosen.and_then(place).unwrap_or(0);
    }

    /// Chooses a row below or above, or scrolls the port that is shown alone.
    pub(crate) fn step(&mut self, by: i16) {
        match &mut self.detail {
            Some(detail) => detail.scroll = detail.scroll.saturating_add_signed(by),
            None => {
                let last = self.rows.len().saturating_sub(1);
                self.chosen = self.chosen.saturating_add_signed(by.into()).min(last);
            }
        }
    }

    /// Shows the chosen port alone.
    pub(crate) fn open(&mut self) {
        let chosen = self.rows.get(self.chosen).map(|row| row.name.clone());
        self.detail = chosen.map(|name| Detail { name, text: String::new(), scroll: 0 });
    }

    /// Adds a character to the filter.
    pub(crate) fn type_in(&mut self, c: char) {
        if self.filter.chars().count() < FILTER_CHARS && !c.is_control() {
            self.filter.push(c);
            self.arrange();
        }
    }

    /// Removes the filter's last character.
    pub(crate) fn erase(&mut self) {
        self.filter.pop();
        self.arrange();
    }

    /// Clears the filter, so that all ports are shown.
    pub(crate) fn clear_filter(&mut self) {
        self.typing = false;
        self.filter.clear();
        self.arrange();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    fn look(frames: u64) -> Stats {
        let port = |number: u64, name: &str, frames: u64, drops: u64| {
            json!({
                "number": number, "name": name, "state": "attached",
                "in": {"frames": frames, "bytes": frames * 100, "drops": {"hairpin": drops}},
                "out": {"frames": 0, "bytes": 0, "drops": {"no_buffer": 3 * drops}},
            })
        };
        let ports = json!([port(0, "vm1", frames, 0), port(1, "vm2", 2 * frames, frames)]);
        let workers = json!({"cycles_per_second": 1000, "workers": [{"busy_cycles": frames}]});
        Stats {
            ports: serde_json::from_value(ports).unwrap(),
            workers: serde_json::from_value(workers).unwrap(),
        }
    }

    fn names(model: &Model) -> Vec<&str> {
        model.rows.iter().map(|row| row.name.as_str()).collect()
    }

    #[test]
    fn rates_are_of_the_time_between_two_looks() {
        let (mut model, start) = (Model::default(), Instant::now());
        model.update(look(1000), start);
        assert_eq!((model.rows[0].rates, model.workers[0]), (Rates::default(), 0.0));
        model.update(look(2000), start + Duration::from_secs(2));
        let vm2 = &model.rows[1];
        assert_eq!((vm2.rates.r#in.frames, vm2.rates.r#in.bytes), (1000.0, 100_000.0));
        assert_eq!((vm2.drops(), vm2.reason.as_str()), (2000.0, "no_buffer"));
        assert_eq!((&vm2.history[..], model.workers[0]), (&[0.0, 1000.0][..], 0.5));
        // A restarted switch has lower counters.
        model.update(look(10), start + Duration::from_secs(3));
        assert_eq!(model.rows[1].rates, Rates::default());
        for second in 0..100 {
            model.update(look(10), start + Duration::from_secs(4 + second));
        }
        assert_eq!(model.rows[0].history.len(), HISTORY);
    }

    #[test]
    fn rows_are_sorted_filtered_and_chosen() {
        let (mut model, start) = (Model::default(), Instant::now());
        model.update(look(0), start);
        model.update(look(100), start + Duration::from_secs(1));
        assert_eq!(names(&model), ["vm1", "vm2"]);
        model.step(1);
        model.sort = Sort::Drops;
        model.arrange();
        assert_eq!((names(&model), model.chosen), (vec!["vm2", "vm1"], 0));
        model.step(-5);
        model.step(100);
        assert_eq!(model.chosen, 1);
        model.type_in('2');
        assert_eq!((names(&model), model.chosen), (vec!["vm2"], 0));
        model.type_in('x');
        model.open();
        assert!(names(&model).is_empty() && model.detail.is_none());
        model.erase();
        model.open();
        assert_eq!(model.detail.as_ref().unwrap().name, "vm2");
        (0..100).for_each(|_| model.type_in('y'));
        assert_eq!(model.filter.len(), FILTER_CHARS);
        model.clear_filter();
        assert_eq!(names(&model).len(), 2);
    }
}
