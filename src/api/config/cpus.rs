//! `cpus`: a list of CPUs in the form of taskset(1), checked against the CPUs that the process may
//! use.

use super::raw::{Setting, Value, clip, quote};
use super::value::text;
use base::limits::MAX_QUOTED_CHARS;

/// Returns the CPUs of a list such as `0,2-3`. The order of the list is the order of the workers.
pub(super) fn cpu_list(setting: &Setting, allowed: &[usize]) -> Result<Vec<usize>, String> {
    let number;
    let list = match &setting.value {
        Value::Integer(cpu) => {
            number = cpu.to_string();
            &number
        }
        Value::Other("a list") => {
            let example = setting.shown("0,2-3");
            return Err(format!("{} must be a string: write {example}", setting.key));
        }
        _ => text(setting)?,
    };
    let mut cpus = Vec::new();
    for part in list.split(',') {
        let Some((first, last)) = range(part.trim()) else {
            let rule = "must be CPU numbers and ranges with commas between, such as 0,2-3";
            return Err(format!("{} {rule}, not {}", setting.key, quote(list)));
        };
        // The first CPU that is not allowed ends the loop, so a huge range costs no time.
        for cpu in first..=last {
            if !allowed.contains(&cpu) {
                let known = clip(&ranges(allowed), MAX_QUOTED_CHARS);
                let text = format!("CPU {cpu} is not one this process may use, which are {known}");
                return Err(format!("{} {}: {text}", setting.key, quote(list)));
            }
            if cpus.contains(&cpu) {
                return Err(format!("{} {}: CPU {cpu} is given twice", setting.key, quote(list)));
            }
            cpus.push(cpu);
        }
    }
    Ok(cpus)
}

/// Reads `N` or `N-M`, with M not below N.
fn range(part: &str) -> Option<(usize, usize)> {
    let number = |word: &str| {
        let plain = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
        if plain { word.parse().ok() } else { None }
    };
    let (first, last) = match part.split_once('-') {
        Some((first, last)) => (number(first)?, number(last)?),
        None => (number(part)?, number(part)?),
    };
    (first <= last).then_some((first, last))
}

/// Returns ascending numbers as a list with ranges.
fn ranges(cpus: &[usize]) -> String {
    let runs = cpus.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [first, .., last] => format!("{first}-{last}"),
        run => run.iter().map(usize::to_string).collect(),
    });
    runs.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::super::raw::Location;
    use super::*;

    const ALLOWED: &[usize] = &[0, 2, 3, 4, 7];

    fn list(word: &str) -> Result<Vec<usize>, String> {
        let value = Value::Word(word.to_owned());
        cpu_list(&Setting { key: "cpus".to_owned(), value, at: Location::Command }, ALLOWED)
    }

    #[test]
    fn lists_are_taken_in_their_order() {
        assert_eq!(list("0").unwrap(), [0]);
        assert_eq!(list("7,2-4").unwrap(), [7, 2, 3, 4]);
        assert_eq!(list("3-3, 0").unwrap(), [3, 0]);
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for bad in ["", ",", "0,", "a", "-1", "0-", "4-2", "0-2-4", "0x1", "+1", "0;2", "0-6:2"] {
            let rule = "cpus must be CPU numbers and ranges with commas between, such as 0,2-3";
            assert_eq!(list(bad).unwrap_err(), format!("{rule}, not '{bad}'"));
        }
        assert!(list("99999999999999999999999").is_err());
    }

    #[test]
    fn only_allowed_cpus_and_each_once() {
        let which = "is not one this process may use, which are 0,2-4,7";
        assert_eq!(list("2,5").unwrap_err(), format!("cpus '2,5': CPU 5 {which}"));
        let wide = "0-18446744073709551615";
        assert_eq!(list(wide).unwrap_err(), format!("cpus '{wide}': CPU 1 {which}"));
        assert_eq!(list("2-4,3").unwrap_err(), "cpus '2-4,3': CPU 3 is given twice");
    }
}
