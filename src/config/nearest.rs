//! The word that a mistyped one may stand for.

/// Letters of a longer word are not compared.
const MAX_CHARS: usize = 64;

/// The known word that takes the fewest letters to be changed, put in or left out; none if that is
/// more than a third of them.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    let length = word.chars().count();
    if length > MAX_CHARS {
        return None;
    }
    let most = (length / 3).max(1);
    let measured = known.map(|other| (strsim::levenshtein(&word, &other.to_lowercase()), other));
    measured.filter(|(distance, _)| *distance <= most).min_by_key(|(n, _)| *n).map(|(_, w)| w)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_found_and_another_word_is_not() {
        let known = ["ListPorts", "GetPort", "AddPort", "DeletePort"];
        let near = |word: &str| nearest(word, known.iter().copied());
        assert_eq!(near("listports"), Some("ListPorts"));
        assert_eq!(near("AdPort"), Some("AddPort"));
        assert_eq!(near("DeletPort"), Some("DeletePort"));
        assert_eq!(near("Capture"), None);
        assert_eq!((near(""), near(&"x".repeat(10_000))), (None, None));
        assert_eq!(nearest("vm2", ["vm1", "vm11"].into_iter()), Some("vm1"));
    }
}
