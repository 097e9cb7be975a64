//! Manual pages and completions, which tests make from what the programs themselves know, and hold
//! the files in the repository to.

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use clap_complete::Shell;

/// The top of the repository.
pub const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Of the manual pages: that of the release.
pub const DATE: &str = "2026-11-23";

const MAX_COLUMNS: usize = 78;

/// Text for roff: backslash and minus are themselves, no line is a request, none is empty.
pub fn escape(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    let lines = text.lines().map(str::trim_end).filter(|line| !line.is_empty());
    let lines = lines.map(|line| match line.starts_with(['.', '\'']) {
        true => format!("\\&{line}"),
        false => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The page with its text in lines as manual pages have them; requests stay whole.
pub fn filled(page: &str) -> String {
    let (mut text, mut column, mut verbatim) = (String::new(), 0, false);
    for line in page.lines().map(str::trim_end) {
        verbatim = (verbatim || line == ".nf") && line != ".fi";
        // What stands behind .TP is the tag of what follows.
        let is_whole = verbatim || line.starts_with(['.', '\'']) || text.ends_with(".TP\n");
        let words: Vec<&str> = match is_whole {
            true => vec![line],
            false => line.split_whitespace().collect(),
        };
        for word in words {
            if column > 0 && (is_whole || column + 1 + word.len() > MAX_COLUMNS) {
                text.push('\n');
                column = 0;
            } else if column > 0 {
                text.push(' ');
                column += 1;
            }
            text += word;
            column += word.len();
        }
        if is_whole {
            text.push('\n');
            column = 0;
        }
    }
    text.trim_end().to_owned() + "\n"
}

/// Panics unless the file, below the repository, has this text; with UPDATE_DOCS it gets it.
pub fn hold(file: &str, text: &str) {
    let path = Path::new(ROOT).join(file);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, text).expect("write");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == text, "{file} is old: UPDATE_DOCS=1 cargo test --lib");
}

/// Holds the table of a page that stands behind a mark, up to an empty line or the end.
pub fn hold_table(file: &str, mark: &str, table: &str) {
    // Other tests of the process may write the same page.
    static WRITING: Mutex<()> = Mutex::new(());
    let _one = WRITING.lock();
    let page = std::fs::read_to_string(Path::new(ROOT).join(file)).expect(file);
    let (head, rest) = page.split_once(mark).unwrap_or_else(|| panic!("{file}: no {mark}"));
    let rest = rest.trim_start_matches('\n');
    let end = rest.find("\n\n").map_or("", |at| &rest[at + 1..]);
    hold(file, &format!("{head}{mark}\n\n{table}{end}"));
}

/// Holds a manual page, of which mandoc has nothing to say either.
pub fn hold_page(file: &str, page: &str) {
    hold(file, &filled(page));
    let mandoc = Command::new("mandoc").arg("-Tlint").arg(Path::new(ROOT).join(file)).output();
    match mandoc {
        Ok(lint) => {
            let said = [lint.stdout, lint.stderr].concat();
            assert!(said.is_empty(), "{}", String::from_utf8_lossy(&said));
        }
        Err(error) => crate::skip(&format!("mandoc: {error}")),
    }
}

/// Holds the completions of a program for each shell.
pub fn hold_completions(command: &clap::Command) {
    let name = command.get_name().to_owned();
    for (shell, file) in [
        (Shell::Bash, format!("{name}.bash")),
        (Shell::Zsh, format!("_{name}")),
        (Shell::Fish, format!("{name}.fish")),
    ] {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut command.clone(), &name, &mut text);
        let text = String::from_utf8(text).expect("UTF-8");
        hold(&format!("scripts/completions/{file}"), &text);
    }
}
