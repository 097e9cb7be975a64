//! Parses a rule.
//!
//! A text is split into words by blanks; a comma is a word of its own, wherever blanks stand around
//! it. Each function below reads the words of one part of the rule.

use std::str::FromStr;

use super::{
    Address, End, FilterRule, ICMP_TYPES, ICMP6_TYPES, Message, PROTOCOLS, Ports, Protocol,
    RuleError,
};
use crate::filter::{Direction, Span, Verdict};
use base::limits::{MAX_NAME_LEN, MAX_RULE_BYTES, MAX_RULE_ITEMS};
use base::words::Words;

const OPTIONS: &str = "from, to, log or stateless";
/// What may stand behind the addresses and behind the ports of each end.
const BEHIND_FROM: [&str; 2] = [
    "port, to, log, stateless or the end of the rule",
    "to, log, stateless or the end of the rule",
];
const BEHIND_TO: [&str; 2] =
    ["port, log, stateless or the end of the rule", "log, stateless or the end of the rule"];

impl FromStr for FilterRule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<FilterRule, RuleError> {
        if text.len() > MAX_RULE_BYTES {
            return Err(RuleError::TooLong);
        }
        let mut words = Reader::new(text);
        let mut rule = FilterRule {
            direction: words.one_of::<Direction>("in or out")?,
            verdict: words.one_of::<Verdict>("accept, drop or reject")?,
            protocols: Vec::new(),
            from: End::default(),
            to: End::default(),
            log: false,
            stateless: false,
        };
        if !matches!(words.peek(), None | Some("from" | "to" | "log" | "stateless")) {
            rule.protocols = words.list(true, protocol)?;
        }
        if words.skip("from") {
            rule.from = end(&mut words, BEHIND_FROM)?;
        }
        if words.skip("to") {
            rule.to = end(&mut words, BEHIND_TO)?;
        }
        while let Some(word) = words.next() {
            let option = match word {
                "log" => &mut rule.log,
                "stateless" => &mut rule.stateless,
                _ => return Err(RuleError::word(word, words.expected)),
            };
            if std::mem::replace(option, true) {
                return Err(RuleError::word(word, "each option once"));
            }
            words.expected = "log, stateless or the end of the rule";
        }
        check(&rule)?;
        Ok(rule)
    }
}

/// Checks what the parts of a rule ask of each other.
fn check(rule: &FilterRule) -> Result<(), RuleError> {
    if !(rule.from.ports.is_empty() && rule.to.ports.is_empty()) {
        let other = rule.protocols.iter().find(|protocol| !protocol.has_ports());
        let protocol = match other {
            Some(other) => other.to_string(),
            None if rule.protocols.is_empty() => "any".to_owned(),
            None => return Ok(()),
        };
        return Err(RuleError::NoPorts { protocol });
    }
    match rule.stateless && rule.verdict != Verdict::Accept {
        true => Err(RuleError::Stateless),
        false => Ok(()),
    }
}

/// Reads one end of a packet's way; something must follow `from` and `to`.
fn end(words: &mut Reader<'_>, behind: [&'static str; 2]) -> Result<End, RuleError> {
    let mut end = End::default();
    let [behind_addresses, behind_ports] = behind;
    if words.peek() != Some("port") {
        end.addresses = words.list(true, address)?;
        words.expected = behind_addresses;
    }
    if words.skip("port") {
        end.ports = words.list(false, ports)?;
        words.expected = behind_ports;
    }
    Ok(end)
}

impl FromStr for Protocol {
    type Err = RuleError;

    /// Reads a protocol as a rule has it.
    fn from_str(word: &str) -> Result<Protocol, RuleError> {
        protocol(word)
    }
}

fn protocol(word: &str) -> Result<Protocol, RuleError> {
    let (name, message) = word.split_once(':').map_or((word, None), |(n, m)| (n, Some(m)));
    let named = PROTOCOLS.iter().find(|(known, _)| *known == name).map(|(_, protocol)| *protocol);
    match (named, message) {
        (Some(protocol), None) => Ok(protocol),
        (Some(Protocol::Icmp(_)), Some(text)) => {
            self::message(word, text, ICMP_TYPES).map(|message| Protocol::Icmp(Some(message)))
        }
        (Some(Protocol::Icmp6(_)), Some(text)) => {
            self::message(word, text, ICMP6_TYPES).map(|message| Protocol::Icmp6(Some(message)))
        }
        (None, None) => {
            let expected = "a protocol (tcp, udp, sctp, icmp, icmp6 or a number), or ".to_owned();
            let number = number(word).ok_or_else(|| RuleError::word(word, expected + OPTIONS))?;
            // A name says which version of IP; a number is read as the name.
            let named = PROTOCOLS.iter().find(|(_, known)| known.number() == number);
            Ok(named.map_or(Protocol::Number(number), |(_, protocol)| *protocol))
        }
        _ => Err(RuleError::word(word, "a type behind icmp: or icmp6: alone")),
    }
}

/// Reads a type of ICMP: a name, or a number with or without a code.
fn message(word: &str, text: &str, types: &[(&str, u8)]) -> Result<Message, RuleError> {
    if let Some((_, kind)) = types.iter().find(|(name, _)| *name == text) {
        return Ok(Message { kind: *kind, code: None });
    }
    let (kind, code) = text.split_once('/').map_or((text, None), |(k, c)| (k, Some(c)));
    let wrong = || {
        let names: Vec<_> = types.iter().map(|(name, _)| *name).collect();
        RuleError::word(word, format!("a type: TYPE or TYPE/CODE, or {}", names.join(", ")))
    };
    let kind = number(kind).ok_or_else(wrong)?;
    let code = code.map(|code| number(code).ok_or_else(wrong)).transpose()?;
    Ok(Message { kind, code })
}

fn address(word: &str) -> Result<Address, RuleError> {
    match word.strip_prefix("group:") {
        Some(name) if is_name(name) => Ok(Address::Group(name.to_owned())),
        Some(_) => Err(RuleError::word(word, "a group's name behind group:")),
        None => match word.parse::<Span>() {
            Ok(span) => Ok(Address::Span(span)),
            Err(error) => Err(RuleError::span(word, &error)),
        },
    }
}

/// True for a name of a group: letters, digits and `-_.`, as names of ports have them.
pub(in crate::filter) fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=MAX_NAME_LEN).contains(&name.len()) && name.bytes().all(plain)
}

fn ports(word: &str) -> Result<Ports, RuleError> {
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    let ports = number(first).zip(number(last)).map(|(first, last)| Ports { first, last });
    ports
        .filter(|ports| ports.first <= ports.last)
        .ok_or_else(|| RuleError::word(word, "a port from 0 to 65535, or a range such as 80-89"))
}

/// Reads a decimal number without sign.
fn number<T: FromStr>(text: &str) -> Option<T> {
    let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_decimal)
}

/// The words of a rule.
struct Reader<'a> {
    rest: &'a str,
    /// What may stand where the reader is, for an error.
    expected: &'static str,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str) -> Reader<'a> {
        Reader { rest: text.trim_ascii_start(), expected: OPTIONS }
    }

    /// Returns the next word, which stays.
    fn peek(&self) -> Option<&'a str> {
        let is_end = |c: char| c.is_ascii_whitespace() || c == ',';
        match self.rest.chars().next()? {
            ',' => Some(","),
            _ => self.rest.split(is_end).next(),
        }
    }

    fn next(&mut self) -> Option<&'a str> {
        let word = self.peek()?;
        self.rest = self.rest[word.len()..].trim_ascii_start();
        Some(word)
    }

    /// Reads the word if it is the next.
    fn skip(&mut self, word: &str) -> bool {
        let is_next = self.peek() == Some(word);
        if is_next {
            self.next();
        }
        is_next
    }

    fn word(&mut self, expected: &str) -> Result<&'a str, RuleError> {
        self.next().ok_or_else(|| RuleError::End { expected: expected.to_owned() })
    }

    fn one_of<T: Words>(&mut self, expected: &str) -> Result<T, RuleError> {
        let word = self.word(expected)?;
        let known = T::WORDS.iter().find(|(known, _)| *known == word);
        known.map(|(_, value)| *value).ok_or_else(|| RuleError::word(word, expected))
    }

    /// Reads a list; `any` alone, where allowed, is the empty list.
    fn list<T>(
        &mut self,
        may_be_any: bool,
        item: fn(&str) -> Result<T, RuleError>,
    ) -> Result<Vec<T>, RuleError> {
        if may_be_any && self.skip("any") {
            return Ok(Vec::new());
        }
        let mut items = Vec::new();
        loop {
            let word = self.word("an item of a list")?;
            if items.len() == MAX_RULE_ITEMS {
                return Err(RuleError::LongList { word: word.escape_debug().to_string() });
            }
            items.push(item(word)?);
            if !self.skip(",") {
                return Ok(items);
            }
        }
    }
}
