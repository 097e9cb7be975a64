//! Completes a command line for the scripts of shells. `args` defines the commands and options; the
//! running switch names the ports.

use std::path::{Path, PathBuf};

use clap::{Arg, Command};

use crate::client::Client;
use api::config::Kind;
use api::wire::{ConfigEntry, GetConfig};

/// The position that the words of a command line lead to: a command, the number of arguments given
/// to the command, and an option that lacks its value.
struct Cursor<'a> {
    command: &'a Command,
    given: usize,
    option: Option<&'a Arg>,
}

/// Returns a line for each word that may stand last in `words`; the last of `words` may be
/// incomplete. Without a switch the client proposes no port's name.
pub fn run(words: &[String], default: &Path) -> String {
    let command = built();
    // Bash hands over --option=value as three words.
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (last, before) = words.split_last().unwrap_or((&"", &[]));
    let last = if *last == "=" { "" } else { last };
    let before: Vec<&str> = before.iter().copied().filter(|word| *word != "=").collect();
    let found = candidates(&cursor(&command, &before), last, |kind| names(kind, &before, default));
    found.iter().filter(|word| word.starts_with(last)).map(|word| format!("{word}\n")).collect()
}

/// Returns the keys of the command that the words lead to, each key with its `=`.
pub fn keys(words: &[&str]) -> Vec<String> {
    let command = built();
    let positionals = cursor(&command, words).command.get_positionals();
    positionals.flat_map(|arg| values(arg, |_| Vec::new())).collect()
}

/// Returns the definition of the command line, with the options of the whole program among the
/// options of each command.
fn built() -> Command {
    let mut command = crate::args::command();
    command.build();
    command
}

fn cursor<'a>(command: &'a Command, words: &[&str]) -> Cursor<'a> {
    let mut cursor = Cursor { command, given: 0, option: None };
    for word in words {
        if cursor.option.take().is_some() {
            continue;
        }
        if let Some(name) = word.strip_prefix("--") {
            let known = cursor.command.get_arguments().find(|arg| arg.get_long() == Some(name));
            cursor.option = known.filter(|arg| arg.get_action().takes_values());
        } else if let Some(inner) = cursor.command.find_subcommand(word) {
            cursor = Cursor { command: inner, given: 0, option: None };
        } else {
            cursor.given += 1;
        }
    }
    cursor
}

fn candidates(cursor: &Cursor, last: &str, names: impl FnOnce(&str) -> Vec<String>) -> Vec<String> {
    let Cursor { command, given, option } = cursor;
    if let Some(option) = option {
        return values(option, names);
    }
    if last.starts_with('-') {
        let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
        return shown.filter_map(Arg::get_long).map(|long| format!("--{long}")).collect();
    }
    let inner = command.get_subcommands().filter(|inner| !inner.is_hide_set());
    let inner: Vec<&Command> = inner.collect();
    if !inner.is_empty() {
        let names: Vec<&str> = inner.iter().map(|inner| inner.get_name()).collect();
        // An alias completes where no name does, so that each command is proposed once.
        let words = match names.iter().any(|name| name.starts_with(last)) {
            true => names,
            false => inner.iter().flat_map(|inner| inner.get_visible_aliases()).collect(),
        };
        return words.into_iter().map(str::to_owned).collect();
    }
    // The last argument may be repeated.
    let all: Vec<&Arg> = command.get_positionals().collect();
    let wanted = all.get(*given).or(all.last().filter(|arg| arg.get_action().takes_values()));
    wanted.map_or(Vec::new(), |arg| values(arg, names))
}

fn values(arg: &Arg, names: impl FnOnce(&str) -> Vec<String>) -> Vec<String> {
    let possible = arg.get_possible_values();
    if !possible.is_empty() {
        return possible.iter().map(|value| value.get_name().to_owned()).collect();
    }
    match arg.get_value_names().and_then(|names| names.first()).map(|name| name.as_str()) {
        Some(kind @ ("NAME" | "MIRROR" | "FILTER" | "GROUP")) => names(kind),
        // The help of the argument lists the keys.
        Some("KEY=VALUE") => {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            let keys = help.split(',').filter_map(|key| key.split_whitespace().next());
            keys.map(|key| format!("{key}=")).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the names of the entries of a kind; `NAME` stands for all kinds of ports.
fn names(kind: &str, words: &[&str], default: &Path) -> Vec<String> {
    let given = words.iter().position(|word| *word == "--control");
    let path = given.and_then(|at| words.get(at + 1)).map_or(default.to_owned(), PathBuf::from);
    let entries = Client::connect(&path)
        .and_then(|mut client| client.list(&GetConfig {}, |part| part.entries));
    let of = entries.unwrap_or_default().into_iter();
    let is_one = |entry: &ConfigEntry| match Kind::named(&entry.kind) {
        Some(known) if !known.is_port() => known.name().to_uppercase() == kind,
        _ => kind == "NAME",
    };
    of.filter(is_one).map(|entry| entry.name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_has_its_words() {
        for (line, words) in [
            ("po", "port"),
            ("port sh", "show"),
            ("port add x of", "offload="),
            ("port add x queues=1 m", "mode= mac= max-addresses= multicast-router= mtu= memory="),
            ("tap add x i", "ifname= io= isolated="),
            ("port wait x --for a", "attached"),
            ("port wait x --for = l", "listening"),
            ("--control /x port wai", "wait"),
            ("port wait x --ti", "--timeout"),
            ("port list --j", "--json"),
            ("port show ", ""),
            ("port set x m", "mac= max-addresses= multicast-router= mtu= memory="),
            ("add x of", "offload="),
            ("trace x d", "dst= dst_ip= dport="),
            ("lis", ""),
            ("port l", "list"),
            ("port r", "reset"),
            ("fdb l", "list ls"),
            ("port rm x --if", "--if-exists"),
            ("stream remove x --if", "--if-exists"),
            ("rm x --if", "--if-exists"),
            ("complet", ""),
        ] {
            let all: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let found = run(&all, Path::new("/no/such/socket"));
            assert_eq!(found.split_whitespace().collect::<Vec<_>>().join(" "), words, "{line}");
        }
    }
}
