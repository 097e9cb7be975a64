//! Explains an invalid command line in one line: the error, and the command that the user perhaps
//! meant. A user can run a proposed command as printed, except for words in capitals.

use std::ffi::OsString;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use api::config::{first_line, nearest, shell_word};

use crate::args::command;
use crate::complete;

const PROGRAM: &str = "vioswitchctl";
/// Most letters of a wrong word that the line shows again.
const MAX_CHARS: usize = 80;

/// Commands of other programs, each with a command of vioswitchctl. A word in capitals stands for
/// any word, and for itself if the user gave no word. Further words are kept, except words that `*`
/// stands for.
const HABITS: &[(&str, &str)] = &[
    // ovs-vsctl, ovs-ofctl, ovs-appctl
    ("add-port BRIDGE NAME", "port add NAME"),
    ("del-port BRIDGE NAME", "port del NAME"),
    ("add-br BRIDGE", "port add NAME bridge=BRIDGE"),
    ("list-ports *", "port list"),
    ("list-br *", "port list"),
    ("list-ifaces *", "port list"),
    ("set-port NAME", "port set NAME"),
    ("dump-flows *", "fdb show"),
    ("dump-ports *", "stats"),
    ("fdb/show *", "fdb show"),
    ("fdb/flush *", "fdb flush"),
    ("mdb/show *", "mdb show"),
    ("ofproto/trace BRIDGE", "trace NAME src=MAC dst=MAC"),
    // brctl, bridge, ip
    ("addif BRIDGE NAME", "port add NAME"),
    ("delif BRIDGE NAME", "port del NAME"),
    ("addbr BRIDGE", "port add NAME bridge=BRIDGE"),
    ("showmacs *", "fdb show"),
    ("link set NAME up", "port set NAME admin=up"),
    ("link set NAME down", "port set NAME admin=down"),
    ("link set", "port set"),
    ("link add", "port add"),
    ("link del", "port del"),
    ("link show NAME", "port show NAME"),
    ("link *", "port list"),
    ("vlan *", "port list"),
    ("neigh *", "fdb show"),
    ("addr *", "fdb show"),
    ("monitor *", "events --follow"),
    // nmcli, virsh
    ("con *", "port list"),
    ("connection *", "port list"),
    ("device *", "port list"),
    ("domiflist *", "port list"),
    ("net-list *", "port list"),
    ("iface-list *", "port list"),
    ("domifstat DOMAIN NAME", "port show NAME"),
    ("attach-interface *", "attach NAME --libvirt"),
    ("dumpxml NAME", "attach NAME --libvirt"),
    ("detach-interface *", "port del NAME"),
    ("undefine", "port del"),
    // people
    ("ports *", "port list"),
    ("macs *", "fdb show"),
    ("addresses *", "fdb show"),
    ("tcpdump", "capture"),
    ("dump", "capture"),
    ("template *", "config show"),
    ("templates *", "config show"),
    ("counters *", "stats"),
    ("statistics *", "stats"),
    ("logs *", "events"),
    ("log *", "events"),
    ("watch *", "top"),
    ("ping", "why"),
    ("explain", "why"),
    ("diagnose *", "doctor"),
    ("check *", "doctor"),
    ("info *", "status"),
];

/// Other words for the commands of a group.
const VERBS: [(&str, &[&str]); 5] = [
    ("add", &["new", "create", "define"]),
    ("del", &["destroy", "drop", "unset"]),
    ("set", &["modify", "update", "edit", "change", "mod"]),
    ("show", &["list", "ls", "get", "info", "details", "dump"]),
    ("flush", &["clear", "reset", "purge"]),
];

/// Returns the line for a command line without a command.
pub(crate) fn no_command(args: &[OsString]) -> String {
    format!("a command is missing, see {}", Line::of(args).help())
}

/// Returns clap's error, which has several lines, as one line.
pub fn line(error: &clap::Error, args: &[OsString]) -> String {
    let line = Line::of(args);
    let word = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.clone()),
        _ => None,
    };
    if let (ErrorKind::InvalidSubcommand, Some(wrong)) =
        (error.kind(), word(ContextKind::InvalidSubcommand))
    {
        return line.no_such_command(&wrong, slip(&wrong, error));
    }
    if let (ErrorKind::MissingRequiredArgument, Some(ContextValue::Strings(missing))) =
        (error.kind(), error.get(ContextKind::InvalidArg))
    {
        let (path, missing) = (line.path.join(" "), missing.join(" "));
        let names = match missing.contains("<NAME>") {
            true => "vioswitchctl port list shows the names; ",
            false => "",
        };
        return format!("{path} needs {missing}: {names}see {}", line.help());
    }
    let text = first_line(error);
    let meant = word(ContextKind::InvalidArg)
        .and_then(|option| line.key(&option))
        .or_else(|| word(ContextKind::SuggestedArg));
    match meant {
        Some(meant) => format!("{text}, did you mean '{meant}'?"),
        None => format!("{text}, see {}", line.help()),
    }
}

/// A command line without the program's name.
struct Line {
    words: Vec<String>,
    /// Commands that the command line names, each inside the command before.
    path: Vec<String>,
    /// Index of the word behind the last command of the path.
    end: usize,
}

impl Line {
    fn of(args: &[OsString]) -> Line {
        let words = args.iter().skip(1).map(|word| word.to_string_lossy().into_owned());
        let words: Vec<String> = words.collect();
        let mut line = Line { words, path: Vec::new(), end: 0 };
        let mut whole = command();
        whole.build();
        let mut place: &Command = &whole;
        let mut has_value = false;
        for (at, word) in line.words.iter().enumerate() {
            if std::mem::take(&mut has_value) {
                continue;
            }
            if let Some(option) = word.strip_prefix("--") {
                let mut known = place.get_arguments();
                let known = known.find(|arg| arg.get_long() == Some(option));
                has_value = known.is_some_and(|arg| arg.get_action().takes_values());
            } else if let Some(inner) = place.find_subcommand(word) {
                line.path.push(word.clone());
                (place, line.end) = (inner, at + 1);
            } else {
                break;
            }
        }
        line
    }

    /// Returns the command that lists the possible words.
    fn help(&self) -> String {
        let path: String = self.path.iter().map(|word| format!(" {word}")).collect();
        format!("{PROGRAM}{path} --help")
    }

    /// Returns the line for `wrong`, which is no command at its place; `near` is a command with a
    /// similar name.
    fn no_such_command(&self, wrong: &str, near: Option<String>) -> String {
        let Some(at) = self.words.iter().skip(self.end).position(|word| word == wrong) else {
            return format!("there is no such command, see {}", self.help());
        };
        let at = self.end + at;
        let path: String = self.path.iter().map(|word| format!("{word} ")).collect();
        let rest: Vec<&str> = self.words[at..].iter().map(String::as_str).collect();
        let group = command();
        let group = self.path.iter().try_fold(&group, |place, word| place.find_subcommand(word));
        let verb = group.filter(|_| !self.path.is_empty()).and_then(|group| verb(group, wrong));
        let of_group = (self.path.is_empty()).then(|| grouped(wrong)).flatten();
        let with_rest = |ours: String| {
            let words = ours.split(' ').chain(rest[1..].iter().copied());
            words.map(str::to_owned).collect()
        };
        let meant = habit(&rest)
            .filter(|_| self.path.is_empty())
            .or_else(|| verb.or(of_group).or(near).map(with_rest));
        let shown: String = wrong.chars().filter(|c| !c.is_control()).take(MAX_CHARS).collect();
        match meant {
            None => format!("there is no command '{path}{shown}', see {}", self.help()),
            Some(meant) => {
                let words = self.words[..at].iter().chain(&meant).map(|word| shell_word(word));
                let words = words.collect::<Vec<_>>().join(" ");
                format!("there is no command '{path}{shown}', did you mean '{PROGRAM} {words}'?")
            }
        }
    }

    /// Returns `queues=2` for `--queues 2` if `queues` is a key of the command.
    fn key(&self, option: &str) -> Option<String> {
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        let at = words.iter().position(|word| word.split('=').next() == Some(option))?;
        let key = format!("{}=", option.strip_prefix("--")?);
        let next = words.get(at + 1).filter(|word| !word.starts_with('-'));
        let value = words[at].split_once('=').map(|(_, value)| value).or(next.copied());
        let known = complete::keys(&words[..at]).contains(&key);
        known.then(|| key + value.unwrap_or_default())
    }
}

/// Returns the words of vioswitchctl for the words of another program.
fn habit(words: &[&str]) -> Option<Vec<String>> {
    let is_any = |word: &str| word.chars().all(|c| c.is_ascii_uppercase());
    HABITS.iter().find_map(|(theirs, ours)| {
        let (theirs, ends) = theirs.strip_suffix(" *").map_or((*theirs, false), |all| (all, true));
        let theirs: Vec<&str> = theirs.split(' ').collect();
        let given = theirs.iter().zip(words);
        let fits = given.clone().all(|(their, word)| is_any(their) || their == word)
            && theirs.iter().skip(words.len()).all(|their| is_any(their));
        let value = |our: &str| given.clone().find(|(their, _)| **their == our && is_any(our));
        let ours = ours.split(' ').map(|our| value(our).map_or(our, |(_, word)| *word));
        let rest = words.iter().skip(theirs.len()).copied().filter(|_| !ends);
        fits.then(|| ours.chain(rest).map(str::to_owned).collect())
    })
}

/// Returns the best of clap's proposals of which `wrong` is a slip; clap also proposes words that
/// are less near.
fn slip(wrong: &str, error: &clap::Error) -> Option<String> {
    let Some(ContextValue::Strings(names)) = error.get(ContextKind::SuggestedSubcommand) else {
        return None;
    };
    // clap puts the best proposal last.
    names.iter().rfind(|name| nearest(wrong, std::iter::once(name.as_str())).is_some()).cloned()
}

/// Returns the command of a group that another word stands for.
fn verb(group: &Command, word: &str) -> Option<String> {
    let mut known = VERBS.iter().filter(|(_, others)| others.contains(&word));
    known.find_map(|(ours, _)| group.find_subcommand(ours)).map(|ours| ours.get_name().to_owned())
}

/// Returns `config reload` for `reload`.
fn grouped(inner: &str) -> Option<String> {
    let command = command();
    let mut groups = command.get_subcommands().filter(|group| !group.is_hide_set());
    let group = groups.find(|group| group.find_subcommand(inner).is_some())?;
    Some(format!("{} {inner}", group.get_name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(words: &str) -> String {
        let args = [PROGRAM].into_iter().chain(words.split(' ')).map(Into::into);
        let args: Vec<OsString> = args.collect();
        let error = command().try_get_matches_from(&args).expect_err(words);
        line(&error, &args)
    }

    /// Each proposal for the words of other programs is a command.
    #[test]
    fn each_habit_stands_for_a_command() {
        for (theirs, ours) in HABITS {
            let text = answer(theirs.trim_end_matches(" *"));
            let wanted = format!("did you mean '{PROGRAM} {ours}'?");
            assert!(text.starts_with("there is no command '") && text.ends_with(&wanted), "{text}");
            // A proposal lacks nothing except words that people have to add.
            let args = [PROGRAM].into_iter().chain(ours.split(' '));
            if let Err(error) = command().try_get_matches_from(args) {
                assert_eq!(error.kind(), ErrorKind::MissingRequiredArgument, "{ours}: {error}");
            }
        }
    }

    /// For each other word of a command, a group has the command and lacks the other word.
    #[test]
    fn no_other_word_is_a_command_in_all_groups() {
        let whole = command();
        for (ours, others) in VERBS {
            let groups =
                || whole.get_subcommands().filter(|one| one.find_subcommand(ours).is_some());
            for other in others {
                let is_known = |group: &Command| group.find_subcommand(other).is_some();
                assert!(!groups().all(is_known), "{other} of {ours} is a command everywhere");
            }
        }
    }

    #[test]
    fn what_is_proposed_keeps_the_other_words() {
        for (words, wanted) in [
            ("add-port br0 vm9", "'vioswitchctl port add vm9'?"),
            ("add-port br0 vm9 tag=10", "'vioswitchctl port add vm9 tag=10'?"),
            ("--control /c --json prot show x", "'vioswitchctl --control /c --json port show x'?"),
            ("dump-flows br0", "'vioswitchctl fdb show'?"),
            ("port create vm9 queues=2", "'vioswitchctl port add vm9 queues=2'?"),
            ("port create vm9 label=a;b", "'vioswitchctl port add vm9 'label=a;b''?"),
            ("fdb get vm1", "'vioswitchctl fdb show vm1'?"),
            ("reload --confirm 9", "'vioswitchctl config reload --confirm 9'?"),
            ("link set vm1 down", "'vioswitchctl port set vm1 admin=down'?"),
            ("delte vm1", "'vioswitchctl delete vm1'?"),
            ("rename vm1 vm2", "there is no command 'rename', see vioswitchctl --help"),
            ("xyz", "there is no command 'xyz', see vioswitchctl --help"),
            ("port xyz", "there is no command 'port xyz', see vioswitchctl port --help"),
            ("port set vm1", "port set needs <KEY=VALUE>...: see vioswitchctl port set --help"),
            ("status --x", "see vioswitchctl status --help"),
        ] {
            let text = answer(words);
            assert!(text.ends_with(wanted), "{words}: {text}");
        }
        let whole = no_command(&[PROGRAM.into(), "port".into()]);
        assert_eq!(whole, "a command is missing, see vioswitchctl port --help");
    }
}
