//! One port, TAP or stream by itself, as it is added while the switch runs: the keys, rules and
//! words of the command line and the file.

use super::raw::{Complaint, Kind, Place, Section, Setting, Source, Value};
use super::{Machine, PortConfig, StreamConfig, TapConfig, entries, validate};

/// A value as a program gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Given {
    /// Text, which may stand for a number too, as on the command line.
    Text(String),
    /// A whole number.
    Integer(i64),
    /// A truth value.
    Boolean(bool),
    /// What no key takes, by the name of its type.
    Other(&'static str),
}

/// What is wrong with a setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Wrong {
    /// Its key.
    pub key: String,
    /// What is wrong and what is wanted, in one line.
    pub text: String,
}

/// The settings of a port; `mac` may be given several times.
pub fn port(settings: Vec<(String, Given)>) -> Result<PortConfig, Wrong> {
    match parsed(Kind::Port, settings)? {
        Some(entries::Parsed::Port(port)) => Ok(port),
        _ => Err(unknown()),
    }
}

/// The settings of a TAP.
pub fn tap(settings: Vec<(String, Given)>) -> Result<TapConfig, Wrong> {
    match parsed(Kind::Tap, settings)? {
        Some(entries::Parsed::Tap(tap)) => Ok(tap),
        _ => Err(unknown()),
    }
}

/// The settings of a stream; `mac` may be given several times.
pub fn stream(settings: Vec<(String, Given)>) -> Result<StreamConfig, Wrong> {
    match parsed(Kind::Stream, settings)? {
        Some(entries::Parsed::Stream(stream)) => Ok(stream),
        _ => Err(unknown()),
    }
}

/// Every entry without a complaint is parsed, so this is never said.
fn unknown() -> Wrong {
    Wrong { key: "name".to_owned(), text: "the settings are not understood".to_owned() }
}

fn parsed(kind: Kind, settings: Vec<(String, Given)>) -> Result<Option<entries::Parsed>, Wrong> {
    let settings = settings.into_iter().map(|(key, given)| {
        let value = match given {
            Given::Text(text) => Value::Word(text),
            Given::Integer(number) => Value::Integer(number),
            Given::Boolean(truth) => Value::Boolean(truth),
            Given::Other(kind) => Value::Other(kind),
        };
        let at = Place::Argument(key.clone());
        Setting { key, value, at }
    });
    let section = Section { kind, settings: settings.collect(), at: Place::Command };
    let source = Source { scalars: Vec::new(), sections: vec![section] };
    let checked = validate::source(&source, Machine { cpus: 1, allowed: &[] });
    let twice = entries::conflicts(&checked);
    match checked.complaints.into_iter().chain(twice).next() {
        Some(complaint) => Err(wrong(complaint)),
        None => Ok(checked.entries.into_iter().next().and_then(|entry| entry.parsed)),
    }
}

fn wrong(Complaint { at, text }: Complaint) -> Wrong {
    let key = match at {
        Place::Argument(key) => key,
        // A complaint about the whole begins with what is missing, or too many.
        _ => text.split(' ').next().unwrap_or_default().to_owned(),
    };
    Wrong { key, text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Endpoint;

    fn given(pairs: &[(&str, &str)]) -> Vec<(String, Given)> {
        let text = |(key, word): &(&str, &str)| (key.to_string(), Given::Text(word.to_string()));
        pairs.iter().map(text).collect()
    }

    #[test]
    fn a_port_reads_as_on_the_command_line() {
        let mut settings = given(&[("name", "vm1"), ("socket", "/run/a,b"), ("mtu", "9000")]);
        settings.push(("queues".to_owned(), Given::Integer(4)));
        settings.extend(given(&[("mac", "52:54:00:00:00:01"), ("mac", "52:54:00:00:00:02")]));
        let port = port(settings).unwrap();
        assert_eq!((port.queue_pairs, port.mtu, port.macs.len()), (4, Some(9000), 2));
        assert!(matches!(port.endpoint, Endpoint::Server { path, .. } if path.ends_with("a,b")));
        let tap = tap(given(&[("name", "up"), ("ifname", "tap0"), ("queues", "2")])).unwrap();
        assert_eq!((tap.ifname.as_str(), tap.queues), ("tap0", 2));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_key() {
        let whole = [("name", "a"), ("socket", "/a")];
        for (more, key, words) in [
            (("queues", "17"), "queues", "must be a number from 1 to 16, not '17'"),
            (("queue", "1"), "queue", "unknown key 'queue' (known: name, socket,"),
            (("socket-mode", "9"), "socket-mode", "must be octal digits"),
            (("socket", "/b"), "socket", "'socket' is given twice"),
            (("mac", "01:00:00:00:00:00"), "mac", "is a group address"),
        ] {
            let error = port(given(&[whole[0], whole[1], more])).unwrap_err();
            assert_eq!(error.key, key);
            assert!(error.text.contains(words), "{error}");
        }
        let error = port(given(&[("name", "a")])).unwrap_err();
        assert_eq!((error.key.as_str(), error.text.as_str()), ("socket", "socket is missing"));
        let mut settings = given(&whole);
        settings.push(("offload".to_owned(), Given::Boolean(false)));
        assert!(port(settings).unwrap_err().text.contains("write offload"));
        let error = tap(vec![("name".to_owned(), Given::Other("a list"))]).unwrap_err();
        assert_eq!(error.key, "name");
    }
}
