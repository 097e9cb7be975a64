//! Time in which CPUs wake up while frames come.

use std::fmt;

use super::raw::{Setting, Value, quote};
use super::value::{kind, number};
use base::limits::MAX_LATENCY_MICROS;

/// A value of `latency`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Latency {
    /// The kernel chooses.
    #[default]
    Normal,
    /// Longest time in microseconds; with 0 the CPUs do not sleep.
    Within(u16),
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Latency::Normal => f.write_str("normal"),
            Latency::Within(0) => f.write_str("low"),
            Latency::Within(micros) => micros.fmt(f),
        }
    }
}

/// Reads the value of `latency`.
pub(super) fn latency(setting: &Setting) -> Result<Latency, String> {
    match &setting.value {
        Value::Word(word) | Value::Text(word) if word == "normal" => Ok(Latency::Normal),
        Value::Word(word) | Value::Text(word) if word == "low" => Ok(Latency::Within(0)),
        Value::Word(_) | Value::Integer(_) => {
            let micros = number(setting, 1, MAX_LATENCY_MICROS.into());
            micros.map(Latency::Within).map_err(|_| wrong(setting))
        }
        _ => Err(wrong(setting)),
    }
}

fn wrong(setting: &Setting) -> String {
    let found = match &setting.value {
        Value::Word(word) | Value::Text(word) => quote(word),
        Value::Integer(number) => number.to_string(),
        other => kind(other).to_owned(),
    };
    let rule = format!("normal, low or microseconds from 1 to {MAX_LATENCY_MICROS}");
    format!("{} must be {rule}, not {found}", setting.key)
}
