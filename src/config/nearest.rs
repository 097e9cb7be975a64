//! What somebody who mistyped a word may have meant.

/// Letters of a longer word are not compared.
const MAX_CHARS: usize = 64;

/// The known word that takes the fewest letters to be changed, put in or left out; none if that is
/// more than a third of them.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word: Vec<char> = word.to_lowercase().chars().take(MAX_CHARS + 1).collect();
    if word.len() > MAX_CHARS {
        return None;
    }
    let most = (word.len() / 3).max(1);
    let candidates = known.filter(|other| other.len().abs_diff(word.len()) <= most);
    let measured = candidates.map(|other| (distance(&word, other), other));
    measured.filter(|(distance, _)| *distance <= most).min_by_key(|(n, _)| *n).map(|(_, w)| w)
}

/// The distance of Levenshtein, row by row.
fn distance(word: &[char], other: &str) -> usize {
    let mut row: Vec<usize> = (0..=word.len()).collect();
    for (i, letter) in other.to_lowercase().chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, own) in word.iter().enumerate() {
            let changed = diagonal + usize::from(*own != letter);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[word.len()]
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
