//! What a reason for a drop means, and what to do: the table of docs/counters.md, which is part of
//! the program, so that there is one text.

const PAGE: &str = include_str!("../../../docs/counters.md");

/// Meaning and advice of a reason in one direction.
pub fn find(reason: &str, direction: &str) -> Option<(String, String)> {
    rows().find_map(|[place, name, meaning, advice]| {
        // What a port drops before it has chosen a queue counts as out.
        let here = place.split(", ").any(|place| match place {
            "port" => direction == "out",
            place => place == direction,
        });
        (here && name.trim_matches('`') == reason).then(|| (plain(meaning), plain(advice)))
    })
}

/// The rows of the table below the heading "Drops".
fn rows() -> impl Iterator<Item = [&'static str; 4]> {
    let section = PAGE.split_once("\n## Drops\n").map_or("", |(_, rest)| rest);
    let section = section.split("\n## ").next().unwrap_or_default();
    section.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.strip_suffix(" |")?.splitn(4, " | ");
        Some([cells.next()?, cells.next()?, cells.next()?, cells.next()?])
    })
}

/// Without the marks of Markdown: of a link its text, of code the code.
fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once('[') {
        let Some((words, after)) = link.split_once("](") else { break };
        let Some((_, after)) = after.split_once(')') else { break };
        out.push_str(before);
        out.push_str(words);
        rest = after;
    }
    out.push_str(rest);
    out.replace('`', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_of_the_page_is_found_where_it_is_counted() {
        let all: Vec<_> = rows().filter(|row| row[1].starts_with('`')).collect();
        assert!(all.len() > 20, "the table was not found: {all:?}");
        for [place, name, ..] in all {
            for direction in place.replace("port", "out").split(", ") {
                let (meaning, advice) = find(name.trim_matches('`'), direction).expect(name);
                let marks = |text: &str| text.contains(['`', '[', ']', '|']);
                assert!(!meaning.is_empty() && !marks(&meaning), "{name}: {meaning}");
                assert!(!advice.is_empty() && !marks(&advice), "{name}: {advice}");
                assert!(advice != "the same", "{name}: not to be understood alone");
            }
        }
        assert_eq!(find("no_such", "in"), None);
        assert_eq!(find("no_buffer", "in"), None);
    }
}
