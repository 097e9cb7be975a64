//! `doctor --watch`: prints a line for each finding that appears or disappears.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use api::wire::Finding;
use serde_json::{Value, json};

use super::findings::{headline, shown};
use crate::events;
use crate::failure::Failure;
use crate::output::say;

/// Key of a finding, without the cause, because figures in the cause may differ.
type Key = (String, Option<String>, Vec<String>);

/// Examines the switch again and again until the reader of standard output is gone.
pub fn run(
    every: Duration,
    as_json: bool,
    look: impl Fn() -> Result<Vec<Finding>, Failure>,
) -> Result<(), Failure> {
    say("watching, end with ^C");
    let mut known = BTreeMap::new();
    loop {
        let changes = changes(&mut known, look()?);
        // A closed pipe (`| head`) is the reader's choice, not an error.
        if print(&changes, as_json).is_err() {
            return Ok(());
        }
        std::thread::sleep(every);
    }
}

/// Returns the findings that appeared (true), and the findings that disappeared (false) with their
/// last cause.
fn changes(known: &mut BTreeMap<Key, Finding>, found: Vec<Finding>) -> Vec<(bool, Finding)> {
    let key = |one: &Finding| (one.code.clone(), one.port.clone(), one.with.clone());
    let now: BTreeMap<Key, Finding> = found.into_iter().map(|one| (key(&one), one)).collect();
    let gone = known.iter().filter(|(key, _)| !now.contains_key(key));
    let come = now.iter().filter(|(key, _)| !known.contains_key(key));
    let changes = gone.map(|(_, one)| (false, one.clone()));
    let changes = changes.chain(come.map(|(_, one)| (true, one.clone()))).collect();
    *known = now;
    changes
}

fn print(changes: &[(bool, Finding)], as_json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let micros = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
    for (comes, finding) in changes {
        match as_json {
            true => writeln!(out, "{}", as_value(micros, *comes, finding))?,
            false => {
                let sign = if *comes { "+" } else { "-" };
                write!(out, "{} {sign} {}", events::time(micros), headline(finding))?;
            }
        }
    }
    out.flush()
}

fn as_value(micros: u64, comes: bool, finding: &Finding) -> Value {
    let mut told = shown(finding);
    told["time"] = json!(micros);
    told["change"] = if comes { "came" } else { "gone" }.into();
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;

    #[test]
    fn each_finding_comes_once_and_goes_once() {
        let finding = |code: &str, port: &str, cause: &str| Finding {
            level: Level::Warn,
            code: code.to_owned(),
            port: Some(port.to_owned()),
            with: Vec::new(),
            cause: cause.to_owned(),
            command: String::new(),
        };
        let mut known = BTreeMap::new();
        let mut told = |found: &[Finding]| -> Vec<String> {
            let changes = changes(&mut known, found.to_vec());
            let sign = |comes| if comes { "+" } else { "-" };
            let of = |one: &Finding| format!("{} {}", one.code, one.port.as_deref().unwrap());
            changes.iter().map(|(comes, one)| sign(*comes).to_owned() + &of(one)).collect()
        };
        let (a, b) = (finding("x", "a", "1 %"), finding("x", "b", ""));
        assert_eq!(told(&[a.clone(), b.clone()]), ["+x a", "+x b"]);
        assert_eq!(told(&[finding("x", "a", "2 %"), b]), Vec::<String>::new());
        assert_eq!(told(&[finding("y", "a", "")]), ["-x a", "-x b", "+y a"]);
        assert_eq!(told(&[]), ["-y a"]);
        let value = as_value(7, false, &a);
        assert_eq!(
            (&value["change"], &value["code"], &value["time"]),
            (&json!("gone"), &json!("x"), &json!(7),)
        );
    }
}
