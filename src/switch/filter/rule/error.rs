//! The reasons why a text is no rule: the wrong word, and what was expected.

use base::limits::{MAX_RULE_BYTES, MAX_RULE_ITEMS};

use super::super::span::SpanError;

/// The reason why a text is not accepted as a rule.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RuleError {
    /// A word is not what the language has at its place.
    #[error("'{word}' is wrong: expected {expected}")]
    Word {
        /// The wrong word.
        word: String,
        /// What may stand at its place.
        expected: String,
    },
    /// The rule ends too early.
    #[error("the rule ends where {expected} is expected")]
    End {
        /// What is missing.
        expected: String,
    },
    /// Ports are given, and a protocol has none.
    #[error("'port' needs the protocols tcp, udp or sctp, not {protocol}")]
    NoPorts {
        /// The protocol, or `any`.
        protocol: String,
    },
    /// A list is too long.
    #[error("'{word}' is one item too many: a list has up to {MAX_RULE_ITEMS}; use a group")]
    LongList {
        /// The first item beyond the limit.
        word: String,
    },
    /// The text is too long.
    #[error("the rule has more than {MAX_RULE_BYTES} bytes")]
    TooLong,
    /// `stateless` is given, and the verdict is not `accept`.
    #[error("'stateless' needs the verdict accept: nothing else begins a connection")]
    Stateless,
}

impl RuleError {
    pub(super) fn word(word: &str, expected: impl Into<String>) -> RuleError {
        // An error is one line that a terminal can show.
        RuleError::Word { word: word.escape_debug().to_string(), expected: expected.into() }
    }

    pub(super) fn span(word: &str, error: &SpanError) -> RuleError {
        let or = match error {
            SpanError::Malformed => ", or group:NAME",
            _ => "",
        };
        RuleError::word(word, format!("{error}{or}"))
    }
}
