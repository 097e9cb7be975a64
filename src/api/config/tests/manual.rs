//! The manual pages vioswitchd(8) and vioswitch.toml(5), and completions of vioswitchd: made from
//! the options, the keys, and the commented example, and held to them.

use std::fmt::Write;

use clap::{Arg, Command};
use testkit::manual::{DATE, escape, hold_completions, hold_page};

use super::super::args;
use super::super::scalars::outer_keys;
use super::documents::by_kind;
use super::{KEYS, Kind};

const EXAMPLE: &str = include_str!("../../../../scripts/systemd/vioswitch.toml");

/// Parts of the manual page that no option has.
const DAEMON_END: &str = "\
.SH EXIT STATUS
.TP
.B 0
A signal ended the switch, or \\-\\-check found no error.
.TP
.B 1
The switch cannot run: no port can be served and there is no directory of \\-\\-plug, or the
switch got no control socket, thread, memory or descriptor. Or \\-\\-check found an obstacle on
this machine.
.TP
.B 2
An argument, a file or RUST_LOG is wrong. systemd does not start the service again.
.SH ENVIRONMENT
.TP
.B RUST_LOG
Level of the log, also of parts of the program; overrides \\-\\-log\\-level.
.TP
.B STATE_DIRECTORY
Directory in place of \\-\\-state\\-dir; systemd sets this variable.
.TP
.B NOTIFY_SOCKET, LISTEN_FDS, LISTEN_FDNAMES, JOURNAL_STREAM
Set by systemd for readiness and kept descriptors, for sockets, and for the journal.
.SH FILES
.TP
.I /etc/vioswitch/vioswitch.toml, /etc/vioswitch/conf.d/*.toml
The configuration of the service.
.TP
.I /run/vioswitch
Sockets of ports, and the control socket.
.TP
.I /var/lib/vioswitch
.I ports.toml
with added ports and changes, and the configuration that was last in force.
";

/// Last section of the manual page.
const DAEMON_SEE_ALSO: &str = "\
.SH SEE ALSO
.BR vioswitchctl (8),
.BR vioswitch.toml (5)
";

const FILE_HEAD: &str = "\
.SH DESCRIPTION
The TOML file of
.BR \"vioswitchd \\-\\-config\" ,
and the files of the directory
.I conf.d
beside it whose names end in .toml. Options of the command line take precedence.
.BR \"vioswitchd \\-\\-check \\-\\-config FILE\"
reports all errors of the files,
.BR \"vioswitchctl config diff\"
shows the differences from a running switch, and
.BR \"vioswitchctl config reload\"
applies these differences.
.PP
The value beside a key is the default. A key that is marked as an example has no default.
";

const ENTRIES: &str = "\
.SH ENTRIES
Write [[port]] for each network card of a virtual machine, [[tap]] for each interface that leads
to the host, [[xdp]] for each interface whose frames bypass the host's network stack, [[stream]]
for each process that speaks QEMU's \\-netdev stream, and [[mirror]] for each port whose frames are
copied to another port. [template.plug] has keys of ports by plug. A key belongs to port, tap, xdp
and stream unless the text of the key names other entries.
";

const FILE_END: &str = "\
.SH FILES
.TP
.I /etc/vioswitch/vioswitch.toml, /etc/vioswitch/conf.d/*.toml
The configuration of the service.
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

/// Keys that the example lacks, as the example is for services.
const NOT_FOR_SERVICES: [&str; 2] = ["socket-path = \"/run/vm1.sock\"", "fd = 3"];

fn head(name: &str, section: u8, about: &str) -> String {
    let (upper, version) = (name.to_uppercase(), env!("CARGO_PKG_VERSION"));
    let (name, about) = (escape(name), escape(about));
    format!(".TH {upper} {section} {DATE} \"vioswitch {version}\"\n.SH NAME\n{name} \\- {about}\n")
}

/// Adds the paragraphs of an option's help.
fn paragraphs(text: &mut String, help: &str) {
    // The page of the file describes the keys.
    let told = help.split("\n\n").filter(|paragraph| !paragraph.starts_with("  "));
    for (place, paragraph) in told.enumerate() {
        if place > 0 {
            text.push_str(".IP\n");
        }
        let _ = writeln!(text, "{}", escape(paragraph));
    }
}

/// Adds the examples of the help: sentences, and indented commands.
fn examples_of(text: &mut String, examples: &str) {
    text.push_str(".SH EXAMPLES\n");
    for (place, paragraph) in examples.trim_start_matches("Examples:\n").split("\n\n").enumerate() {
        let (told, commands) = paragraph.trim_end().split_once('\n').unwrap_or((paragraph, ""));
        if place > 0 {
            text.push_str(".PP\n");
        }
        let _ = writeln!(text, "{}", escape(told.trim()));
        if !commands.is_empty() {
            let lines: Vec<String> = commands.lines().map(|line| escape(line.trim())).collect();
            let _ = writeln!(text, ".PP\n.nf\n{}\n.fi", lines.join("\n"));
        }
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
             for network interfaces of the host. It needs a port, \\-\\-control or \\-\\-plug.\n\
             .BR vioswitch.toml (5)\ndescribes the keys of entries.\n.SH OPTIONS\n";
    command.get_arguments().for_each(|arg| option(&mut page, arg));
    let after = command.get_after_help().expect("examples").to_string();
    let (examples, after) = after.split_once("\nSignals: ").expect("signals");
    let (signals, _) = after.split_once("\nExit status: ").expect("exit status");
    let signals = escape(&signals.replace('\n', " "));
    let _ = writeln!(page, ".SH SIGNALS\n{signals}");
    page += DAEMON_END;
    examples_of(&mut page, examples);
    hold_page("docs/man/vioswitchd.8", &(page + DAEMON_SEE_ALSO));
}

/// Returns settings outside of entries in the form of files: the settings of the example, and the
/// settings that the example lacks.
fn settings() -> Vec<&'static str> {
    let own = EXAMPLE.lines().take_while(|line| !line.starts_with('['));
    let bare = own.map(|line| line.strip_prefix('#').unwrap_or(line));
    let set = bare.filter(|line| !line.is_empty() && !line.starts_with(' '));
    set.chain(NOT_FOR_SERVICES).collect()
}

/// Panics for a key outside of entries that the page lacks, or that the example has without a
/// comment.
fn check_scalars(settings: &[&str]) {
    let own = |key: &&&str| Kind::named(key).is_none() && **key != "template";
    for key in outer_keys().iter().filter(own) {
        let is_of = |line: &&str| line.split_once(" = ").is_some_and(|(told, _)| told == *key);
        assert!(settings.iter().any(is_of), "{key} is missing");
    }
    let own: Vec<&str> = EXAMPLE.lines().take_while(|line| !line.starts_with('[')).collect();
    for pair in own.windows(2).filter(|pair| settings.contains(&pair[1].trim_start_matches('#'))) {
        assert!(!pair[0].is_empty(), "{} has no comment", pair[1]);
    }
}

/// Adds the keys of entries, each key once with its entries.
fn keys_of_entries(page: &mut String) {
    for key in KEYS.iter().filter(|key| !key.kinds.is_empty()) {
        let kinds = Kind::NAMED.into_iter().filter(|kind| key.kinds.contains(kind));
        let kinds: Vec<&str> = kinds.map(Kind::name).collect();
        let is_default = key.kinds.iter().any(|kind| !key.default(*kind).is_empty());
        let mark = if is_default || key.is_required() { "" } else { " (example)" };
        let setting = escape(&format!("{} = {}{mark}", key.name, key.example));
        let _ = writeln!(page, ".TP\n.B {}", setting.replace('"', "\\(dq"));
        let mut text = key.help.replace('`', "\"");
        let values = by_kind(key, |kind| key.form(kind).replace('|', ", "));
        // A single word adds nothing to the setting above.
        let values = Some(values).filter(|values| values.contains(' '));
        let of_all = Kind::PORTS.into_iter().all(|kind| key.kinds.contains(&kind));
        text += &match values {
            Some(values) if of_all || values.contains(": ") => format!(" {values}."),
            Some(values) => format!(" Of {}: {values}.", kinds.join(", ")),
            None if of_all => String::new(),
            None => format!(" Of {}.", kinds.join(", ")),
        };
        let _ = writeln!(page, "{}", escape(&text));
    }
}

#[test]
fn the_files_page_has_every_key() {
    let mut page = head("vioswitch.toml", 5, "configuration of vioswitchd");
    page += FILE_HEAD;
    // The page of the daemon describes these settings.
    let settings = settings();
    check_scalars(&settings);
    let names = settings.iter().filter_map(|line| Some(line.split_once(" = ")?.0));
    let names = escape(&names.collect::<Vec<_>>().join(", "));
    let _ =
        writeln!(page, ".SH SETTINGS\nThese options of\n.BR vioswitchd (8)\nare keys: {names}.");
    page += ENTRIES;
    keys_of_entries(&mut page);
    hold_page("docs/man/vioswitch.toml.5", &(page + FILE_END));
}

#[test]
fn every_setting_is_an_option() {
    let command = command();
    for key in outer_keys().iter().filter(|key| **key != "template") {
        assert!(command.get_arguments().any(|arg| arg.get_long() == Some(key)), "{key}");
    }
}

#[test]
fn completions_are_made_from_the_options() {
    hold_completions(&args::command());
}
