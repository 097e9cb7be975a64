//! The manual pages vioswitchd(8) and vioswitch.toml(5), and completions of vioswitchd: made from
//! the options, the keys, and the commented example, and held to them.

use std::fmt::Write;

use clap::{Arg, Command};
use testkit::manual::{DATE, escape, hold_completions, hold_page};

use super::super::args;
use super::super::scalars::SCALAR_KEYS;
use super::documents::by_kind;
use super::{KEYS, Kind};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const EXAMPLE: &str = include_str!("../../../scripts/systemd/vioswitch.toml");

/// What no option says.
const DAEMON_END: &str = "\
.SH ENVIRONMENT
.TP
.B RUST_LOG
the level of the log, also of parts of the program; overrides \\-\\-log\\-level
.TP
.B STATE_DIRECTORY
in place of \\-\\-state\\-dir, set by systemd
.TP
.B NOTIFY_SOCKET, LISTEN_FDS, LISTEN_FDNAMES, JOURNAL_STREAM
set by systemd: readiness and kept descriptors, sockets, the journal
.SH FILES
.TP
.I /etc/vioswitch/vioswitch.toml, /etc/vioswitch/conf.d/*.toml
the configuration of the service
.TP
.I /run/vioswitch
sockets of ports, and the control socket
.TP
.I /var/lib/vioswitch
changes made while the switch runs, and the configuration that was last in force
.SH SEE ALSO
.BR vioswitchctl (8),
.BR vioswitch.toml (5)
";

const FILE_HEAD: &str = "\
.SH DESCRIPTION
A TOML file with the configuration of
.BR vioswitchd (8).
Each key outside of the entries is an option of the command line too, which takes precedence: a
single option replaces the value of the file, and a port, TAP or stream replaces the entry of its
name as a whole.
.PP
The switch reads files of the directory
.I conf.d
beside the file whose names end in .toml after it, in the order of their names. Each key outside of
the entries may be given in one file only. Unknown keys are errors.
.BR \"vioswitchd \\-\\-check \\-\\-config FILE\"
reports all errors with their lines,
.BR \"vioswitchctl config diff\"
shows what differs from a running switch, and SIGHUP or
.BR \"vioswitchctl config reload\"
applies it. A file with an error changes nothing; a start then uses the files that were last in
force.
.PP
A value below is the default, or an example of a key without default.
";

const ENTRIES: &str = "\
.SH ENTRIES
One [[port]] for each network card of a virtual machine, one [[tap]] for each interface of the host,
one [[stream]] for each process that speaks QEMU's \\-netdev stream, such as passt,
one [[mirror]] for frames of a port that are copied to another one. [template.plug]
has the keys that ports by plug share: those of a port except names, sockets and addresses.
";

const FILE_END: &str = "\
.SH FILES
.TP
.I /etc/vioswitch/vioswitch.toml, /etc/vioswitch/conf.d/*.toml
the configuration of the service
.SH EXAMPLES
.nf
workers = 2

[[port]]
name = \"web1\"
socket = \"/run/vioswitch/web1.sock\"
socket\\-group = \"kvm\"
mac = [\"52:54:00:00:00:01\"]

[[tap]]
name = \"uplink\"
ifname = \"vioswitch0\"
.fi
.SH SEE ALSO
.BR vioswitchd (8),
.BR vioswitchctl (8)
";

/// Keys that the example, which is for services, does without.
const NOT_FOR_SERVICES: [(&str, &str, &str); 2] = [
    ("socket-path", "\"/run/vm1.sock\"", "One port, named port0, that listens on this path."),
    ("fd", "3", "One port, named port0, on this inherited socket."),
];

fn head(name: &str, section: u8, about: &str) -> String {
    let (upper, version) = (name.to_uppercase(), env!("CARGO_PKG_VERSION"));
    let (name, about) = (escape(name), escape(about));
    format!(".TH {upper} {section} {DATE} \"vioswitch {version}\"\n.SH NAME\n{name} \\- {about}\n")
}

/// Help of an option: its paragraphs.
fn paragraphs(text: &mut String, help: &str) {
    for (place, paragraph) in help.split("\n\n").enumerate() {
        if place > 0 {
            text.push_str(".IP\n");
        }
        // The keys stand in the page of the file.
        let _ = match paragraph.starts_with("  ") {
            true => writeln!(text, "Keys:\n.BR vioswitch.toml (5)."),
            false => writeln!(text, "{}", escape(paragraph)),
        };
    }
}

fn option(text: &mut String, arg: &Arg) {
    let help = arg.get_long_help().or(arg.get_help()).expect("help").to_string();
    let short = arg.get_short().map(|short| format!("-{short}, ")).unwrap_or_default();
    let _ = writeln!(text, ".TP\n.B {}", escape(&format!("{short}{arg}")));
    paragraphs(text, &help);
}

fn command() -> Command {
    let mut command = args::command();
    command.build();
    command
}

#[test]
fn the_daemons_page_has_every_option() {
    let command = command();
    let mut page = head("vioswitchd", 8, &command.get_about().expect("about").to_string());
    page += ".SH SYNOPSIS\n.B vioswitchd\n.RI [ OPTION ]...\n.SH DESCRIPTION\n\
             An Ethernet switch for virtual machines, which connect by vhost\\-user sockets, and \
             for network interfaces of the host. It needs at least one port, or \\-\\-control or \
             \\-\\-plug.\n.SH OPTIONS\n";
    command.get_arguments().for_each(|arg| option(&mut page, arg));
    let after = command.get_after_help().expect("examples").to_string();
    let after = after.strip_prefix("Examples:\n").expect("examples come first");
    let (examples, after) = after.split_once("\nSignals: ").expect("signals");
    let (signals, status) = after.split_once("\nExit status: ").expect("exit status");
    let (examples, status) = (escape(examples), escape(status));
    let _ = writeln!(page, ".SH EXAMPLES\n.nf\n{examples}\n.fi");
    let signals = escape(&signals.replace('\n', " "));
    let _ = writeln!(page, ".SH SIGNALS\n{signals}\n.SH EXIT STATUS\n{status}");
    hold_page(ROOT, "docs/man/vioswitchd.8", &(page + DAEMON_END));
}

/// What the example says of keys outside of any entry: comment, and lines below that share it.
fn described() -> Vec<(String, Vec<String>)> {
    let mut groups: Vec<(String, Vec<String>)> = Vec::new();
    let (mut comment, mut is_told) = (String::new(), false);
    let own = EXAMPLE.lines().take_while(|line| !line.starts_with('['));
    for line in own {
        let setting = line.trim_start_matches('#');
        if line.is_empty() {
            comment.clear();
            is_told = false;
        } else if setting.is_empty() || setting.starts_with(' ') {
            // The first remark behind a setting is about the next one.
            if std::mem::take(&mut is_told) {
                comment.clear();
            }
            comment += setting;
            comment.push('\n');
        } else {
            match groups.last_mut().filter(|_| is_told) {
                Some((_, lines)) => lines.push(setting.to_owned()),
                None => groups.push((comment.clone(), vec![setting.to_owned()])),
            }
            is_told = true;
        }
    }
    let more = NOT_FOR_SERVICES
        .map(|(key, value, text)| (text.to_owned(), vec![format!("{key} = {value}")]));
    groups.extend(more);
    groups
}

/// Panics for a key outside of any entry that the example does not tell of.
fn check_scalars(groups: &[(String, Vec<String>)]) {
    let own = |key: &&&str| Kind::named(key).is_none() && **key != "template";
    for key in SCALAR_KEYS.iter().filter(own) {
        let tells = |line: &String| line.split_once(" = ").is_some_and(|(told, _)| told == *key);
        let told = groups.iter().any(|(text, lines)| !text.is_empty() && lines.iter().any(tells));
        assert!(told, "{key} stands in no comment of the example");
    }
}

/// Keys as the manual has them.
fn keys(page: &mut String, groups: &[(String, Vec<String>)]) {
    for (text, lines) in groups {
        for (place, line) in lines.iter().enumerate() {
            let request = if place == 0 { ".TP" } else { ".TQ" };
            let _ = writeln!(page, "{request}\n.B {}", escape(line).replace('"', "\\(dq"));
        }
        let _ = writeln!(page, "{}", escape(text));
    }
}

/// The keys of entries, each once with the entries that have it.
fn keys_of_entries(page: &mut String) {
    for key in KEYS.iter().filter(|key| !key.kinds.is_empty()) {
        let kinds = Kind::PORTS.into_iter().filter(|kind| key.kinds.contains(kind));
        let kinds: Vec<&str> = kinds.map(Kind::name).collect();
        let setting = escape(&format!("{} = {}", key.name, key.example));
        let _ = writeln!(page, ".TP\n.B {}", setting.replace('"', "\\(dq"));
        let kinds = kinds.join(", ");
        let values = by_kind(key, |kind| key.form(kind).replace('|', ", "));
        let values = if values.contains(": ") { values } else { format!("Of {kinds}: {values}") };
        let help = key.help.replace('`', "\"");
        let _ = writeln!(page, "{}", escape(&format!("{help} {values}.")));
    }
}

#[test]
fn the_files_page_has_every_key() {
    let mut page = head("vioswitch.toml", 5, "configuration of vioswitchd");
    page += FILE_HEAD;
    page += ".SH SETTINGS\n";
    let groups = described();
    check_scalars(&groups);
    keys(&mut page, &groups);
    page += ENTRIES;
    keys_of_entries(&mut page);
    hold_page(ROOT, "docs/man/vioswitch.toml.5", &(page + FILE_END));
}

#[test]
fn every_setting_is_an_option() {
    let command = command();
    for key in SCALAR_KEYS.iter().filter(|key| **key != "template") {
        assert!(command.get_arguments().any(|arg| arg.get_long() == Some(key)), "{key}");
    }
}

#[test]
fn completions_are_made_from_the_options() {
    hold_completions(ROOT, &args::command());
}
