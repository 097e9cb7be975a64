//! The reason why rules cannot be compiled.

use base::limits::MAX_FILTER_LINES;

/// The reason why rules cannot be compiled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TooLarge {
    /// The filters of a port have too many rules.
    #[error("too many rules: {0} lines for one direction, at most {MAX_FILTER_LINES}")]
    Lines(usize),
    /// The rules have too many different addresses.
    #[error("too many addresses in too many rules: use fewer rules with groups")]
    Words,
}
