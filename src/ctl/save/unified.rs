//! Shows the changes of a text as diff -u does, and as patch takes them.

use similar::TextDiff;

use super::edit::{Edit, apply};

/// The changes of a text that is called `name` now, or that is new; nothing if there are none.
pub fn unified(text: &str, edits: &[Edit], name: &str, is_new: bool) -> String {
    let after = apply(text, edits);
    let before = if is_new { "/dev/null" } else { name };
    TextDiff::from_lines(text, &after).unified_diff().header(before, name).to_string()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn edit(text: &str, what: &str, new: &str) -> Edit {
        let at = text.find(what).unwrap();
        Edit { range: at..at + what.len(), text: new.to_owned() }
    }

    /// diff prints the same of these texts, as it has no choice where each line is there once.
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
