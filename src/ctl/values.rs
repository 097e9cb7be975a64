//! Values of options, other words for commands, and the default control socket.

use std::time::Duration;

use api::wire;
use clap::ValueEnum;
use clap::builder::PossibleValue;

/// Other words for `show` where `show` prints a list.
pub(crate) const LIST: [&str; 2] = ["list", "ls"];
/// Other words for `del`, from ip(8), ovs-vsctl(8) and virsh(1).
pub(crate) const DELETE: [&str; 3] = ["rm", "remove", "delete"];

/// Path of the control socket unless an option or the environment names another path.
pub(crate) const DEFAULT_CONTROL: &str = "/run/vioswitch/control.sock";

/// State of a port that the switch can wait for.
#[derive(Debug, Clone, Copy)]
pub struct State(wire::State);

impl State {
    /// Returns the switch's name of the state.
    pub fn name(self) -> String {
        self.0.name().to_owned()
    }
}

/// Returns the word for a value of an option.
pub fn word(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

impl ValueEnum for State {
    fn value_variants<'a>() -> &'a [State] {
        const ALL: [State; 3] =
            [State(wire::AWAITED[0].0), State(wire::AWAITED[1].0), State(wire::AWAITED[2].0)];
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (state, more) = wire::AWAITED.iter().find(|(state, _)| *state == self.0)?;
        // A wait also ends in a later state, which the sentences about the states rule out.
        let help = match state {
            wire::State::Listening => "the socket listens",
            wire::State::Negotiating => "a front-end is connected",
            _ => "frames pass; up means the same",
        };
        Some(PossibleValue::new(state.name()).aliases(more.iter()).help(help))
    }
}

/// Reads `500ms`, `30s`, `5m` or `1h`, at most a day; a number without a unit is seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: Option<f64> = digits.parse().ok();
    let factor = match &text[digits.len()..] {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => f64::NAN,
    };
    let seconds = number.map(|number| number * factor);
    let seconds = seconds.filter(|seconds| (0.001..=86_400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "a time such as 500ms, 30s or 5m".to_owned())
}
