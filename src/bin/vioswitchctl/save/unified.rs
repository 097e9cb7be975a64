//! What is changed in a text, as diff -u shows it and patch takes it.

use std::fmt::Write;

use super::edit::{Edit, line_end, line_start};

/// Lines before and behind a change that are shown with it.
const CONTEXT: usize = 3;

/// Lines that go, from the one of this number on, counted from 0, and those that come instead.
#[derive(Debug)]
struct Hunk<'t> {
    at: usize,
    gone: Vec<&'t str>,
    come: Vec<String>,
}

/// The changes of a text that is called `name` now, or that is new.
pub fn unified(text: &str, edits: &[Edit], name: &str, is_new: bool) -> String {
    let hunks = hunks(text, edits);
    if hunks.is_empty() {
        return String::new();
    }
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let old = if is_new { "/dev/null" } else { name };
    let mut out = format!("--- {old}\n+++ {name}\n");
    let mut moved = 0isize;
    // Those whose contexts touch are shown together.
    for group in hunks.chunk_by(|one, other| one.at + one.gone.len() + 2 * CONTEXT >= other.at) {
        moved += show(&mut out, &lines, group, moved);
    }
    out
}

/// Shows changes near each other; how many lines more there are by them.
fn show(out: &mut String, lines: &[&str], group: &[Hunk<'_>], moved: isize) -> isize {
    let (Some(first), Some(last)) = (group.first(), group.last()) else { return 0 };
    let begin = first.at.saturating_sub(CONTEXT);
    let end = (last.at + last.gone.len() + CONTEXT).min(lines.len());
    let (gone, come) = group
        .iter()
        .fold((0, 0), |(gone, come), hunk| (gone + hunk.gone.len(), come + hunk.come.len()));
    let more = come.cast_signed() - gone.cast_signed();
    let count = end - begin;
    let new = begin.saturating_add_signed(moved);
    let new_count = count.saturating_add_signed(more);
    let _ = writeln!(out, "@@ -{} +{} @@", place(begin, count), place(new, new_count));
    let mut at = begin;
    for hunk in group {
        lines[at..hunk.at].iter().for_each(|line| put(out, ' ', line));
        hunk.gone.iter().for_each(|line| put(out, '-', line));
        hunk.come.iter().for_each(|line| put(out, '+', line));
        at = hunk.at + hunk.gone.len();
    }
    lines[at..end].iter().for_each(|line| put(out, ' ', line));
    more
}

/// Lines as a range: counted from 1; of none, the one before.
fn place(begin: usize, count: usize) -> String {
    match count {
        0 => format!("{begin},0"),
        1 => format!("{}", begin + 1),
        count => format!("{},{count}", begin + 1),
    }
}

fn put(out: &mut String, sign: char, line: &str) {
    out.push(sign);
    out.push_str(line);
    if !line.ends_with('\n') {
        out.push_str("\n\\ No newline at end of file\n");
    }
}

/// The changed lines, from the first to the last.
fn hunks<'t>(text: &'t str, edits: &[Edit]) -> Vec<Hunk<'t>> {
    let mut edits: Vec<&Edit> = edits.iter().collect();
    edits.sort_by_key(|edit| edit.range.start);
    let mut hunks = Vec::new();
    let mut rest = edits.as_slice();
    while let Some(first) = rest.first() {
        let start = line_start(text, first.range.start);
        let mut end = behind(text, first);
        let mut count = 1;
        // All that change the same lines.
        while let Some(next) = rest.get(count).filter(|next| next.range.start < end) {
            end = end.max(behind(text, next));
            count += 1;
        }
        let (mut new, mut at) = (String::new(), start);
        for edit in &rest[..count] {
            new += &text[at..edit.range.start];
            new += &edit.text;
            at = edit.range.end;
        }
        new += &text[at..end];
        rest = &rest[count..];
        let before = text[..start].matches('\n').count();
        hunks.extend(trimmed(before, &text[start..end], &new));
    }
    hunks
}

/// The first byte behind the lines that an edit changes.
fn behind(text: &str, edit: &Edit) -> usize {
    let end = edit.range.end;
    let whole = edit.range.start < end && text[..end].ends_with('\n');
    if whole { end } else { line_end(text, end) }
}

/// Without the lines at either end that are the same.
fn trimmed<'t>(at: usize, old: &'t str, new: &str) -> Option<Hunk<'t>> {
    let old: Vec<&str> = old.split_inclusive('\n').collect();
    let new: Vec<&str> = new.split_inclusive('\n').collect();
    let same = old.iter().zip(&new).take_while(|(one, other)| one == other).count();
    let (old, new) = (&old[same..], &new[same..]);
    let pairs = old.iter().rev().zip(new.iter().rev());
    let end = pairs.take_while(|(one, other)| one == other).count();
    let (old, new) = (&old[..old.len() - end], &new[..new.len() - end]);
    let come = new.iter().map(|line| (*line).to_owned()).collect();
    (!old.is_empty() || !new.is_empty()).then(|| Hunk { at: at + same, gone: old.to_vec(), come })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::super::edit::apply;
    use super::*;

    fn edit(text: &str, what: &str, new: &str) -> Edit {
        let at = text.find(what).unwrap();
        Edit { range: at..at + what.len(), text: new.to_owned() }
    }

    /// What diff says of the same texts, which has no choice where each line is there once.
    #[test]
    fn it_is_what_diff_says() {
        let lines = |n: usize, end: &str| {
            let all: Vec<String> = (0..n).map(|n| format!("line {n}.")).collect();
            all.join("\n") + end
        };
        let (long, open) = (lines(40, "\n"), lines(9, ""));
        let cases = [
            (&long, vec![edit(&long, "e 20.", "")]),
            (&long, vec![edit(&long, "line 0.\n", ""), edit(&long, "e 39.", "e x")]),
            (&long, vec![edit(&long, "5.\n", "5.\nnew\n"), edit(&long, "e 12.", "e x")]),
            (&long, vec![edit(&long, "5.\n", "5.\nnew\n"), edit(&long, "e 13.", "e x")]),
            (&long, vec![edit(&long, "line 5.\nline 6.\n", ""), edit(&long, "e 30.", "e\nx")]),
            (&long, vec![edit(&long, "ine 7", "INE 7"), edit(&long, ".\nline 8", "!\nline 8")]),
            (&long, vec![Edit { range: long.len()..long.len(), text: "\nend\n".to_owned() }]),
            (&open, vec![Edit { range: open.len()..open.len(), text: "\n\nend\n".to_owned() }]),
            (&open, vec![edit(&open, "line 2.\n", "")]),
            (&open, vec![]),
        ];
        let root = std::env::temp_dir().join(format!("vioswitchctl-diff-{}", std::process::id()));
        let (old, new) = (root.with_extension("old"), root.with_extension("new"));
        for (text, edits) in cases {
            std::fs::write(&old, text).unwrap();
            std::fs::write(&new, apply(text, &edits)).unwrap();
            let labels = ["-u", "--label", "f", "--label", "f"];
            let diff = Command::new("diff").args(labels).args([&old, &new]).output().unwrap();
            let wanted = String::from_utf8(diff.stdout).unwrap();
            assert_eq!(unified(text, &edits, "f", false), wanted);
        }
        let added = unified("", &[Edit { range: 0..0, text: "a\nb\n".to_owned() }], "f", true);
        assert_eq!(added, "--- /dev/null\n+++ f\n@@ -0,0 +1,2 @@\n+a\n+b\n");
        let _ = (std::fs::remove_file(old), std::fs::remove_file(new));
    }
}
