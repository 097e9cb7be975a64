//! Parses each command of this program that a code block of the documents quotes. A reader can copy
//! the commands of docs/tenants.md unchanged.

use std::fs;
use std::path::Path;

use testkit::manual::ROOT;

use crate::args;

/// Mark of a part that the reader fills in, or that the document leaves out.
const LEFT_OUT: char = '…';
/// Words that end a command, before the next command on a line.
const ENDS: [&str; 6] = ["|", "||", "&&", ";", "&", "<"];

/// Returns the lines to type of all code blocks: all lines of a shell's block, otherwise the lines
/// behind a prompt.
fn typed(page: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for (at, block) in page.split("```").enumerate().filter(|(at, _)| at % 2 == 1) {
        let (language, block) = block.split_once('\n').unwrap_or_else(|| panic!("block {at}"));
        let behind_prompt = |line: &str| match language {
            "sh" => Some(line.to_owned()),
            _ => {
                let (prompt, line) =
                    line.split_once(['$', '#']).filter(|(_, l)| l.starts_with(' '))?;
                prompt.chars().all(|c| c.is_ascii_alphanumeric()).then(|| line.to_owned())
            }
        };
        let block = block.replace("\\\n", " ");
        lines.extend(block.lines().filter_map(behind_prompt));
    }
    lines
}

/// Returns the words of a line as a shell splits the line, without its remark, and the line of each
/// `$(…)`.
fn split(line: &str) -> (Vec<String>, Vec<String>) {
    let (mut words, mut inner) = (Vec::new(), Vec::new());
    let (mut word, mut quote) = (None::<String>, None);
    let mut rest = line.chars();
    while let Some(c) = rest.next() {
        match c {
            _ if quote == Some(c) => quote = None,
            '$' if quote != Some('\'') && rest.as_str().starts_with('(') => {
                let (found, after) = rest.as_str()[1..].split_once(')').expect("an end of $(");
                inner.push(found.to_owned());
                word.get_or_insert_default().push('x');
                rest = after.chars();
            }
            _ if quote.is_some() => word.get_or_insert_default().push(c),
            '\'' | '"' => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            '#' if word.is_none() => break,
            ' ' => words.extend(word.take()),
            ';' => {
                words.extend(word.take());
                words.push(";".to_owned());
            }
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    (words, inner)
}

/// Returns the commands of this program in a line, each without the program's name.
fn commands(line: &str) -> Vec<Vec<String>> {
    let (words, inner) = split(line);
    let all = words.split(|word| ENDS.contains(&word.as_str()) || word.starts_with('>'));
    let own = all.filter_map(|words| {
        let words = words.strip_prefix(&["sudo".to_owned()]).unwrap_or(words);
        (words.first()? == "vioswitchctl").then(|| words[1..].to_vec())
    });
    own.chain(inner.iter().flat_map(|line| commands(line))).collect()
}

#[test]
fn quoted_commands_are_parsed() {
    let root = Path::new(ROOT);
    let pages = fs::read_dir(root.join("docs")).expect("docs").map(|page| page.unwrap().path());
    let pages = pages.filter(|page| page.extension().is_some_and(|ending| ending == "md"));
    let (mut found, mut wrong) = (0, Vec::new());
    for page in pages.chain([root.join("README.md")]) {
        let text = fs::read_to_string(&page).expect("a page");
        for line in typed(&text).iter().filter(|line| !line.contains(LEFT_OUT)) {
            for words in commands(line) {
                found += 1;
                let words = ["vioswitchctl".to_owned()].into_iter().chain(words);
                match args::command().try_get_matches_from(words) {
                    Err(error) if error.exit_code() != 0 => {
                        wrong.push(format!("{}: {line}: {error}", page.display()));
                    }
                    _ => {}
                }
            }
        }
    }
    assert!(found > 50, "only {found} commands found: the scan is broken");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_tenants_page_can_be_copied() {
    let page = include_str!("../../docs/tenants.md");
    let lines = typed(page);
    let all: Vec<&String> = lines.iter().filter(|line| line.contains(LEFT_OUT)).collect();
    assert!(all.is_empty(), "{all:?}");
    let guests: Vec<&String> = lines.iter().filter(|line| line.starts_with("qemu-")).collect();
    assert_eq!(guests.len(), 4, "{lines:?}");
    for guest in guests {
        let [attach] = &commands(guest)[..] else { panic!("{guest}") };
        assert!(attach[0] == "attach" && guest.ends_with(" &"), "{guest}");
    }
}

#[test]
fn lines_are_split_as_a_shell_does() {
    let words = |line: &str| {
        commands(line).iter().map(|words| words.join("|")).collect::<Vec<_>>().join(" and ")
    };
    for (line, wanted) in [
        ("vioswitchctl port list    # all", "port|list"),
        ("vioswitchctl port set a label='tenant 7'", "port|set|a|label=tenant 7"),
        ("sudo vioswitchctl --json a | jq .b", "--json|a"),
        ("x $(vioswitchctl attach a --qemu) &", "attach|a|--qemu"),
        ("vioswitchctl a; vioswitchctl b && vioswitchctl c >d", "a and b and c"),
        ("vioswitchctl trace x frame=$(vioswitchctl capture y)", "trace|x|frame=x and capture|y"),
        ("echo 'vioswitchctl a'", ""),
    ] {
        assert_eq!(words(line), wanted, "{line}");
    }
}
