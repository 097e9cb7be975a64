//! Lengths of time for people, in words.

use base::words::counted;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// Returns a time of `seconds` in the two largest units: `5 s`, `3 min 20 s`, `4 h 5 min`, `3 days
/// 4 h`.
pub fn span(seconds: u64) -> String {
    let units = [
        (counted(seconds / DAY, "day"), seconds / DAY),
        (format!("{} h", seconds % DAY / HOUR), seconds % DAY / HOUR),
        (format!("{} min", seconds % HOUR / MINUTE), seconds % HOUR / MINUTE),
        (format!("{} s", seconds % MINUTE), seconds % MINUTE),
    ];
    let first = units.iter().position(|(_, count)| *count > 0).unwrap_or(units.len() - 1);
    let told = units[first..].iter().take(2).filter(|(_, count)| *count > 0);
    let told: Vec<&str> = told.map(|(text, _)| text.as_str()).collect();
    if told.is_empty() { "0 s".to_owned() } else { told.join(" ") }
}

/// Returns how long ago an event was, in one unit: `just now`, `12 s ago`, `2 days ago`.
pub fn ago(seconds: u64) -> String {
    let (count, unit) = match seconds {
        0..=1 => return "just now".to_owned(),
        _ if seconds < 2 * MINUTE => (seconds, "s"),
        _ if seconds < 2 * HOUR => (seconds / MINUTE, "min"),
        _ if seconds < DAY => (seconds / HOUR, "h"),
        _ => return format!("{} ago", counted(seconds / DAY, "day")),
    };
    format!("{count} {unit} ago")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_two_units_at_most() {
        for (seconds, text) in [
            (0, "0 s"),
            (59, "59 s"),
            (60, "1 min"),
            (200, "3 min 20 s"),
            (3_600, "1 h"),
            (3_659, "1 h"),
            (14_700, "4 h 5 min"),
            (86_400, "1 day"),
            (3 * 86_400 + 4 * 3_600 + 59, "3 days 4 h"),
            (3 * 86_400 + 59 * 60, "3 days"),
        ] {
            assert_eq!(span(seconds), text);
        }
    }

    #[test]
    fn what_was_long_ago_does_not_look_current() {
        for (seconds, text) in [
            (0, "just now"),
            (2, "2 s ago"),
            (119, "119 s ago"),
            (120, "2 min ago"),
            (7_200, "2 h ago"),
            (86_399, "23 h ago"),
            (86_400, "1 day ago"),
            (172_800, "2 days ago"),
        ] {
            assert_eq!(ago(seconds), text);
        }
    }
}
