//! Values with a unit: rates, such as `10mbit,5kpps`, and sizes of bursts, such as `64kib`.

use std::ops::RangeInclusive;

use super::raw::{Setting, Value, quote};
use super::value::kind as kind_of;
use base::limits::{BURST_SIZE_BYTES, BURST_SIZE_PACKETS, RATE_BITS, RATE_PACKETS};
use switch::{FloodClass, Limit, Rate, Size};

/// A unit: name, and factor to the smallest unit of its kind.
type Unit = (&'static str, u64);

/// Form of an amount: its units and limits.
struct Form {
    /// Units of both kinds; the units for writing come first.
    units: [&'static [Unit]; 2],
    ranges: [RangeInclusive<u64>; 2],
    examples: &'static str,
    /// Units of other programs, each behind the unit of this program with that meaning.
    others: &'static [(&'static str, &'static [&'static str])],
}

const RATES: Form = Form {
    units: [
        &[("gbit", 1_000_000_000), ("mbit", 1_000_000), ("kbit", 1_000), ("bit", 1)],
        &[("mpps", 1_000_000), ("kpps", 1_000), ("pps", 1)],
    ],
    ranges: [RATE_BITS, RATE_PACKETS],
    examples: "a rate with its unit, such as 10mbit, 5kpps or 10mbit,5kpps",
    others: &[
        ("bit", &["b", "bps", "bits"]),
        ("kbit", &["k", "kb", "kbps", "kbits"]),
        ("mbit", &["", "m", "mb", "mbps", "mbits"]),
        ("gbit", &["g", "gb", "gbps", "gbits"]),
        ("pps", &["p", "pkt", "pkts", "packets"]),
    ],
};

const SIZES: Form = Form {
    units: [
        &[("mb", 1_000_000), ("kb", 1_000), ("mib", 1 << 20), ("kib", 1 << 10), ("byte", 1)],
        &[("kpkt", 1_000), ("pkt", 1)],
    ],
    ranges: [BURST_SIZE_BYTES, BURST_SIZE_PACKETS],
    examples: "a size with its unit, such as 64kib, 100pkt or 64kib,100pkt",
    others: &[
        ("byte", &["", "b", "bytes"]),
        ("kib", &["k"]),
        ("mib", &["m"]),
        ("pkt", &["p", "pkts", "packets"]),
    ],
};

/// Reads the value of `rate-in=` or `rate-out=`.
pub(super) fn rate(setting: &Setting) -> Result<Rate, String> {
    rate_of(setting, &format!("{}=", setting.key))
}

/// Reads a rate; `lead` stands before the rate in a proposed value.
fn rate_of(setting: &Setting, lead: &str) -> Result<Rate, String> {
    RATES.read(setting, lead).map(|[bits, packets]| Rate { bits, packets })
}

/// Returns the text of a rate, as files have the text.
pub(super) fn rate_word(rate: &Rate) -> String {
    RATES.word([rate.bits, rate.packets])
}

/// Returns the text of a limit, with the burst if the burst is set.
pub fn limit_word(limit: &Limit) -> String {
    match size_word(&limit.burst) {
        burst if burst.is_empty() => rate_word(&limit.rate),
        burst => format!("{} (bursts of {burst})", rate_word(&limit.rate)),
    }
}

/// Rates at which frames of each class may be flooded, by the number of the class.
pub(crate) type FloodRates = [Rate; FloodClass::ALL.len()];

/// Reads the value of `storm=`: classes of frames, each with a rate.
pub(super) fn storm(setting: &Setting) -> Result<FloodRates, String> {
    let mut rates = FloodRates::default();
    let classes = FloodClass::ALL.map(FloodClass::name);
    let wrong = |given: &str| {
        let known = classes.join(", ");
        let wanted = format!("CLASS:RATE with classes {known}, such as bcast:1kpps,mcast:1mbit");
        format!("{} must be {wanted}, not {given}", setting.key)
    };
    let (Value::Word(given) | Value::Text(given)) = &setting.value else {
        return Err(wrong("that"));
    };
    for part in given.split(',') {
        let (class, word) = part.split_once(':').ok_or_else(|| wrong(&quote(given)))?;
        let number = classes.iter().position(|known| *known == class);
        let place = number.and_then(|number| rates.get_mut(number));
        let place = place.filter(|place| **place == Rate::default());
        let value = Value::Word(word.to_owned());
        let lead = format!("{}={class}:", setting.key);
        let one = Setting { value, ..setting.clone() };
        *place.ok_or_else(|| wrong(&quote(given)))? = rate_of(&one, &lead)?;
    }
    Ok(rates)
}

/// Returns the text of flood rates, as files have the text.
pub(crate) fn storm_word(rates: &FloodRates) -> String {
    let given = FloodClass::ALL.iter().zip(rates).filter(|(_, rate)| **rate != Rate::default());
    let words = given.map(|(class, rate)| format!("{}:{}", class.name(), rate_word(rate)));
    words.collect::<Vec<_>>().join(",")
}

/// Reads the value of `burst-in=` or `burst-out=`.
pub(super) fn size(setting: &Setting) -> Result<Size, String> {
    let lead = format!("{}=", setting.key);
    SIZES.read(setting, &lead).map(|[bytes, packets]| Size { bytes, packets })
}

/// Returns the text of an amount, as files have the text.
pub(super) fn size_word(size: &Size) -> String {
    SIZES.word([size.bytes, size.packets])
}

impl Form {
    /// Finds a unit of this program by its name in small letters.
    fn known(&self, unit: &str) -> Option<(usize, Unit)> {
        let of = |kind: usize| self.units[kind].iter().find(|(name, _)| *name == unit);
        (0..2).find_map(|kind| Some((kind, *of(kind)?)))
    }

    /// Returns `given` with units of this program in place of units of other programs; none if the
    /// result is no amount.
    fn meant(&self, given: &str) -> Option<String> {
        let part = |part: &str| {
            let digits = part.bytes().take_while(u8::is_ascii_digit).count();
            let (number, unit) = part.split_at(digits);
            let unit = unit.trim().trim_end_matches("/s").to_ascii_lowercase();
            let other = || self.others.iter().find(|(_, all)| all.contains(&unit.as_str()));
            let known = self.known(&unit).map(|(_, (name, _))| name);
            let unit = known.or_else(|| other().map(|(name, _)| *name))?;
            let (kind, (_, factor)) = self.known(unit)?;
            let amount = number.parse::<u64>().ok()?.saturating_mul(factor);
            self.ranges[kind].contains(&amount).then(|| format!("{number}{unit}"))
        };
        given.split(',').map(part).collect::<Option<Vec<_>>>().map(|parts| parts.join(","))
    }

    /// Reads the amounts of both kinds; an amount that is not given is 0. `lead` stands before a
    /// proposed value.
    fn read(&self, setting: &Setting, lead: &str) -> Result<[u64; 2], String> {
        let wrong = |given: &str| {
            let all = self.units.concat();
            let units: Vec<&str> = all.iter().rev().map(|(name, _)| *name).collect();
            let (key, wanted, units) = (&setting.key, self.examples, units.join(", "));
            let shown = quote(given);
            match self.meant(given).filter(|meant| *meant != given) {
                Some(meant) => {
                    let what = "has no unit that there is";
                    format!("{key} {shown} {what}, did you mean {lead}{meant}? (units: {units})")
                }
                None => format!("{key} must be {wanted} (units: {units}), not {shown}"),
            }
        };
        let given = match &setting.value {
            Value::Word(word) | Value::Text(word) => word.clone(),
            Value::Integer(number) => number.to_string(),
            other => {
                return Err(format!(
                    "{} must be {}, not {}",
                    setting.key,
                    self.examples,
                    kind_of(other)
                ));
            }
        };
        let mut amounts = [0; 2];
        for part in given.split(',') {
            let digits = part.bytes().take_while(u8::is_ascii_digit).count();
            let (number, unit) = part.split_at(digits);
            let unit = unit.to_ascii_lowercase();
            let (Some((kind, (_, factor))), Ok(number)) =
                (self.known(&unit), number.parse::<u64>())
            else {
                return Err(wrong(&given));
            };
            let range = &self.ranges[kind];
            let amount = number.saturating_mul(factor);
            if !range.contains(&amount) {
                let (least, most) = (self.one(kind, *range.start()), self.one(kind, *range.end()));
                let part = quote(part);
                return Err(format!("{} must be from {least} to {most}, not {part}", setting.key));
            }
            if amounts[kind] != 0 {
                return Err(wrong(&given));
            }
            amounts[kind] = amount;
        }
        Ok(amounts)
    }

    /// Returns the text of one amount, in the largest unit that makes the amount a whole number.
    fn one(&self, kind: usize, amount: u64) -> String {
        let whole = self.units[kind].iter().find(|(_, factor)| amount.is_multiple_of(*factor));
        whole.map_or(String::new(), |(name, factor)| format!("{}{name}", amount / factor))
    }

    fn word(&self, amounts: [u64; 2]) -> String {
        let given = (0..2).filter(|kind| amounts[*kind] != 0);
        given.map(|kind| self.one(kind, amounts[kind])).collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::raw::Location;

    fn setting(key: &str, value: Value) -> Setting {
        Setting { key: key.to_owned(), value, at: Location::Command }
    }

    fn rate_of(word: &str) -> Result<Rate, String> {
        rate(&setting("rate-in", Value::Word(word.to_owned())))
    }

    fn size_of(word: &str) -> Result<Size, String> {
        size(&setting("burst-in", Value::Word(word.to_owned())))
    }

    #[test]
    fn amounts_are_read_and_written_the_same() {
        for (word, bits, packets) in [
            ("10mbit", 10_000_000, 0),
            ("5kpps", 0, 5_000),
            ("10mbit,5kpps", 10_000_000, 5_000),
            ("1001kbit,1pps", 1_001_000, 1),
            ("9999bit", 9_999, 0),
            ("1000gbit", 1_000_000_000_000, 0),
        ] {
            let rate = rate_of(word).expect(word);
            assert_eq!(rate, Rate { bits, packets }, "{word}");
            assert_eq!(rate_word(&rate), word);
        }
        assert_eq!(rate_word(&rate_of("5000PPS,1000Kbit").unwrap()), "1mbit,5kpps");
        for (word, bytes, packets) in
            [("64kib", 65_536, 0), ("100kb,3kpkt", 100_000, 3_000), ("1514byte", 1_514, 0)]
        {
            let size = size_of(word).expect(word);
            assert_eq!(size, Size { bytes, packets }, "{word}");
            assert_eq!(size_word(&size), word);
        }
    }

    #[test]
    fn limits_of_storms_are_read_and_written_the_same() {
        let of = |word: &str| storm(&setting("storm", Value::Word(word.to_owned())));
        for word in ["bcast:1kpps", "bcast:1kpps,mcast:10mbit,unknown:5pps", "unknown:1gbit"] {
            assert_eq!(storm_word(&of(word).expect(word)), word);
        }
        assert_eq!(
            storm_word(&of("unknown:1mbit,bcast:1pps").unwrap()),
            "bcast:1pps,unknown:1mbit"
        );
        for word in ["", "1kpps", "bcast", "all:1kpps", "bcast:1kpps,bcast:2kpps", "bcast:1kpps,"] {
            let error = of(word).expect_err(word);
            assert!(error.starts_with("storm must be CLASS:RATE with classes bcast,"), "{error}");
        }
        let error = of("bcast:10").unwrap_err();
        assert!(error.contains("did you mean storm=bcast:10mbit?"), "{error}");
        let error = of("bcast:1.5").unwrap_err();
        assert!(error.starts_with("storm must be a rate with its unit"), "{error}");
    }

    #[test]
    fn what_is_no_amount_is_refused_with_its_key_and_what_it_wants() {
        for word in [
            "0",
            "",
            ",",
            "mbit",
            "-1mbit",
            "1.5mbit",
            "10mbit,",
            "1mbit,9kbit",
            "0x10mbit",
            "99999999999999999999mbit",
            "٣mbit",
        ] {
            let error = rate_of(word).expect_err(word);
            let start = "rate-in must be a rate with its unit, such as 10mbit, 5kpps";
            assert!(error.starts_with(start), "{word}: {error}");
        }
        for (word, meant) in [
            ("10", "10mbit"),
            ("10 mbit", "10mbit"),
            ("10mb", "10mbit"),
            ("100M", "100mbit"),
            ("100Mbps", "100mbit"),
            ("1Gbit/s,5kpps", "1gbit,5kpps"),
            ("500pkts", "500pps"),
        ] {
            let error = rate_of(word).expect_err(word);
            let start = format!("rate-in '{word}' has no unit that there is");
            let rest = format!(", did you mean rate-in={meant}? ");
            assert!(error.starts_with(&(start + &rest)), "{word}: {error}");
            assert!(rate_of(meant).is_ok());
        }
        for word in ["1kbit", "0mbit", "1001gbit", "0pps", "18446744073709551615gbit", "1001mpps"] {
            let error = rate_of(word).expect_err(word);
            assert!(error.starts_with("rate-in must be from "), "{word}: {error}");
        }
        assert_eq!(
            rate_of("7kbit").unwrap_err(),
            "rate-in must be from 8kbit to 1000gbit, not '7kbit'"
        );
        let error = size_of("1514").unwrap_err();
        assert!(error.contains("did you mean burst-in=1514byte?"), "{error}");
        for word in ["100", "10kbit", "1513byte", "2000mb", "0pkt"] {
            assert!(size_of(word).expect_err(word).starts_with("burst-in must be "), "{word}");
        }
        let error = rate(&setting("rate-out", Value::Integer(10))).unwrap_err();
        assert!(error.contains("did you mean rate-out=10mbit?"), "{error}");
    }
}
