//! Makes the manual page vioswitchctl(8) from the command line's own description, and checks the
//! page in docs/man.

use std::collections::HashMap;
use std::fmt::Write;

use api::config::Kind;
use clap::Command;
use clap_mangen::Man;
use testkit::manual::{DATE, escape, hold_page};

use crate::args;
use crate::values::DELETE;

/// Sections of the manual page that clap does not know.
const END: &str = "\
.SH EXIT STATUS
.TP
.B 0
The command succeeded.
.TP
.B 1
The switch refused the request, a wait timed out, or a file could not be read or written. Also:
health found a fault, doctor has a finding FAIL, or why found an obstacle.
.TP
.B 2
The command line or a parameter is wrong.
.TP
.B 3
No switch answers at the control socket.
.TP
.B 4
The caller may not do this: use sudo, or join the group of the socket.
.PP
The command run exits with QEMU's status.
.SH ENVIRONMENT
.TP
.B VIOSWITCH_CONTROL
Default of
.BR \\-\\-control .
.SH FILES
.TP
.I /run/vioswitch/control.sock
The control socket of the service.
.TP
.I $XDG_RUNTIME_DIR/vioswitch-lan
Sockets, leases and log of the network of lan; otherwise
.IR /tmp/vioswitch-lan-UID .
";

/// Last section of the manual page.
const SEE_ALSO: &str = "\
.SH SEE ALSO
.BR vioswitchd (8),
.BR vioswitch.toml (5)
";

/// Text with which clap_mangen begins each section; the page needs the text once.
const QUOTES: &str = ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n";

/// docs/man has the page that the command line gives; with UPDATE_DOCS the test writes the page.
#[test]
fn the_page_is_made_from_the_command_line() {
    let mut command = args::command();
    command.build();
    let source = concat!("vioswitch ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).section("8").title("VIOSWITCHCTL").date(DATE);
    let man = man.source(source).manual("");
    let mut page = Vec::new();
    man.render_title(&mut page).expect("title");
    man.render_name_section(&mut page).expect("name");
    man.render_synopsis_section(&mut page).expect("synopsis");
    man.render_description_section(&mut page).expect("description");
    man.render_options_section(&mut page).expect("options");
    let mut text = String::from_utf8(page).expect("UTF-8");
    assert!(text.contains(QUOTES));
    text = QUOTES.to_owned() + &text.replace(QUOTES, "") + ".SH COMMANDS\n";
    let (last, others) = DELETE.split_last().expect("words");
    let _ = writeln!(text, "{} and {last} stand for del.", others.join(", "));
    let mut known = HashMap::new();
    each_command(&command, "", &mut |name, inner| describe(&mut text, &mut known, name, inner));
    text += END;
    text += &examples(&command);
    text += SEE_ALSO;
    hold_page("docs/man/vioswitchctl.8", &text);
}

/// Entries of each kind have commands.
#[test]
fn each_kind_has_commands() {
    let command = args::command();
    for kind in Kind::NAMED {
        let group = command.find_subcommand(kind.name()).unwrap_or_else(|| panic!("no {kind}"));
        assert!(group.has_subcommands(), "{kind}");
    }
}

/// Returns the groups with the commands of `port`, each for ports of one kind.
fn as_port() -> Vec<&'static str> {
    Kind::PORTS.iter().filter(|kind| **kind != Kind::Port).map(|kind| kind.name()).collect()
}

/// Calls `visit` with each command that has no subcommand, and the command's name; with the
/// commands of `port` and of [`as_port`] once.
fn each_command(command: &Command, prefix: &str, visit: &mut dyn FnMut(&str, &Command)) {
    let shown = |inner: &&Command| {
        !inner.is_hide_set() && inner.get_name() != "help" && !as_port().contains(&inner.get_name())
    };
    for inner in command.get_subcommands().filter(shown) {
        let name = match inner.get_name() {
            "port" => format!("port|{}", as_port().join("|")),
            name => format!("{prefix}{name}"),
        };
        if inner.has_subcommands() && !inner.is_subcommand_required_set() {
            visit(&name, inner);
        }
        match inner.has_subcommands() {
            true => each_command(inner, &format!("{name} "), visit),
            false => visit(&name, inner),
        }
    }
}

/// Returns the help of an option, with the option's values and default.
fn told(arg: &clap::Arg) -> Option<String> {
    let mut text = arg.get_long_help().or(arg.get_help())?.to_string();
    if !arg.get_action().takes_values() {
        return Some(text);
    }
    let values = arg.get_possible_values().into_iter().map(|value| match value.get_help() {
        Some(help) => format!("{} ({help})", value.get_name()),
        None => value.get_name().to_owned(),
    });
    let values: Vec<String> = values.collect();
    if !values.is_empty() {
        text += &format!(": {}", values.join(", "));
    }
    let defaults = arg.get_default_values().iter().map(|value| value.to_string_lossy());
    let defaults: Vec<String> = defaults.map(Into::into).collect();
    if !defaults.is_empty() {
        text += &format!(" [default: {}]", defaults.join(" "));
    }
    Some(text)
}

/// Returns the section of examples. The program's help begins with the examples, behind its
/// options.
fn examples(command: &Command) -> String {
    let after = command.get_after_help().expect("examples").to_string();
    let (first, _) = after.split_once("\n\n").expect("more than examples");
    let lines = first.strip_prefix("Examples:\n").expect("examples").lines().map(str::trim);
    let lines = lines.map(escape).collect::<Vec<_>>().join("\n");
    format!(".SH EXAMPLES\n.nf\n{lines}\n.fi\n")
}

/// Describes a command; `known` has the options of earlier commands, each with the command's name.
fn describe(text: &mut String, known: &mut HashMap<String, String>, name: &str, command: &Command) {
    let positionals: Vec<String> = command.get_positionals().map(ToString::to_string).collect();
    let _ = writeln!(text, ".SS {name} {}", escape(&positionals.join(" ")));
    let about = command.get_long_about().or(command.get_about());
    let about = about.map(ToString::to_string).unwrap_or_default();
    let paragraphs: Vec<String> = about.split("\n\n").map(escape).collect();
    let _ = writeln!(text, "{}", paragraphs.join("\n.PP\n"));
    let aliases: Vec<&str> = command.get_visible_aliases().collect();
    if !aliases.is_empty() && aliases != DELETE {
        let _ = writeln!(text, ".PP\nAliases: {}.", escape(&aliases.join(", ")));
    }
    let own = command.get_arguments().filter(|arg| !arg.is_global_set() && !arg.is_hide_set());
    // The keys differ by the kind of port: vioswitch.toml(5) has the keys.
    let is_keys = |arg: &&clap::Arg| arg.get_id() == "settings";
    let mut options = String::new();
    for arg in own.filter(|arg| arg.get_id() != "help" && !is_keys(arg)) {
        let Some(help) = told(arg) else { continue };
        let (name, help) = (escape(&arg.to_string()), escape(&help));
        let _ = writeln!(options, ".TP\n.B {name}\n{help}");
    }
    let arguments = options.matches("\n.B <").count();
    match known.get(&options) {
        // The heading names the argument, which an earlier command describes.
        Some(_) if arguments == 1 && options.matches(".TP").count() == 1 => {}
        Some(other) if options.matches(".TP").count() > 1 => {
            let _ = writeln!(text, ".PP\nOptions are those of\n.BR \"{other}\" .");
        }
        _ => *text += &options,
    }
    known.entry(options).or_insert_with(|| name.to_owned());
}
