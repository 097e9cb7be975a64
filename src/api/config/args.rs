//! The command line: options to untyped settings, errors to one line.
//!
//! Values stay words in this file; `validate` types the values of the command line and of files by
//! one set of rules.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, FromArgMatches, Parser};

use super::configuration::{Machine, PROGRAM, UsageError, one_line, usage_error};
use super::kind::Kind;
use super::raw::{
    Complaint, Location, Section, Setting, Source, Value, clip, is_unprintable, quote,
};
use super::request::Request;
use super::scalars::{SCALARS, Scalar};
use super::{claims, entries, validate};
use base::limits;

/// Answer to `--print-capabilities`, by QEMU's docs/interop/vhost-user.rst, "Backend program
/// conventions": one JSON object. The program then ignores all other arguments.
const CAPABILITIES: &str = "{\"type\":\"net\"}\n";
const PRINT_CAPABILITIES: &str = "--print-capabilities";

const EXAMPLES: &str = "\
Examples:
  Two virtual machines and the host's network:
    vioswitchd --port vm1,socket=/run/vioswitch/vm1.sock \\
               --port vm2,socket=/run/vioswitch/vm2.sock --tap up,ifname=tap0

  Without root, with passt as the uplink:
    passt --socket /tmp/passt.sock
    vioswitchd --port vm1,socket=/tmp/vm1.sock \
               --stream net,socket=/tmp/passt.sock,mode=client

The command attach of vioswitchctl(8) prints the arguments of QEMU for a port.

Signals: SIGTERM, SIGINT and SIGQUIT end the switch, SIGUSR1 logs the counters, SIGHUP reads
the files again.
Exit status: 0 after an orderly end, 1 if the switch cannot run, 2 for a bad argument or file.";

/// vhost-user-net back-end for many virtual machines, with a learning switch and a TAP uplink
#[derive(Debug, Parser)]
#[command(name = PROGRAM, bin_name = PROGRAM, version, after_help = EXAMPLES)]
struct Options {
    /// Read a TOML file and conf.d/*.toml beside it; options take precedence
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(flatten)]
    entries: EntryOptions,

    /// Add one port, named port0, that listens on PATH
    #[arg(long, value_name = "PATH", conflicts_with = "fd")]
    socket_path: Option<String>,

    /// Add one port, named port0, on the inherited socket N
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    fd: Option<String>,

    /// Keep changes made while the switch runs in this directory [default: $STATE_DIRECTORY]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,

    /// Refuse to start with a bad file, even if --state-dir has the last good one
    #[arg(long)]
    strict: bool,

    /// Report errors of the configuration and obstacles on this machine, and exit
    #[arg(long)]
    check: bool,

    /// Print the type of the back-end as JSON for management software, and exit
    #[arg(long)]
    print_capabilities: bool,
}

/// The options that add entries, one for each kind; [`lower`] reads their values.
#[derive(Debug)]
struct EntryOptions;

impl FromArgMatches for EntryOptions {
    fn from_arg_matches(_: &ArgMatches) -> Result<EntryOptions, clap::Error> {
        Ok(EntryOptions)
    }

    fn update_from_arg_matches(&mut self, _: &ArgMatches) -> Result<(), clap::Error> {
        Ok(())
    }
}

impl clap::Args for EntryOptions {
    fn augment_args(command: Command) -> Command {
        command.args(Kind::NAMED.map(|kind| {
            let (form, help) = kind.option();
            let option = Arg::new(kind.name()).long(kind.name()).value_name(form);
            let option = option.action(ArgAction::Append).allow_hyphen_values(true);
            let short = help.split("\n\n").next().unwrap_or_default();
            option.help(short).long_help(help.replace("{keys}", &kind.help()))
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        EntryOptions::augment_args(command)
    }
}

/// Returns the options with their help.
pub(super) fn command() -> Command {
    Options::command().args(SCALARS.iter().map(Scalar::option))
}

/// Action that the command line requests.
#[derive(Debug)]
pub enum CliAction {
    /// A configuration, to be run or checked.
    Request(Box<Request>),
    /// Print this to standard output and exit with status 0.
    Print(String),
}

impl Request {
    /// Reads the command line `args`, which begins with the program's name, for `machine`.
    pub fn read<I>(args: I, machine: Machine<'_>) -> Result<CliAction, UsageError>
    where
        I: IntoIterator,
        I::Item: Into<OsString>,
    {
        parse(args.into_iter().map(Into::into).collect(), machine)
    }
}

/// Reads `args`, which begin with the program's name.
pub(super) fn parse(args: Vec<OsString>, machine: Machine<'_>) -> Result<CliAction, UsageError> {
    if args.iter().skip(1).any(|arg| arg == PRINT_CAPABILITIES) {
        return Ok(CliAction::Print(CAPABILITIES.to_owned()));
    }
    if let Some(bad) = args.iter().skip(1).find(|arg| arg.to_str().is_none()) {
        let text = format!("argument {} is not UTF-8", quote(&bad.to_string_lossy()));
        return Err(usage_error(&text));
    }
    let mistaken = separate_truth(&args);
    let matches = command().try_get_matches_from(args);
    match matches.and_then(|all| Ok((Options::from_arg_matches(&all)?, all))) {
        Ok((options, matches)) => {
            lower(options, &matches, machine).map(|request| CliAction::Request(Box::new(request)))
        }
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                Ok(CliAction::Print(error.to_string()))
            }
            ErrorKind::UnknownArgument if mistaken.is_some() => {
                Err(usage_error(&mistaken.unwrap_or_default()))
            }
            _ => Err(usage_error(&summary(&error))),
        },
    }
}

/// Returns the complaint about `--poll true`: a boolean must be part of its option's word, as the
/// option may stand alone.
fn separate_truth(args: &[OsString]) -> Option<String> {
    let words: Vec<&str> = args.iter().filter_map(|arg| arg.to_str()).collect();
    words.windows(2).find_map(|pair| match pair {
        [
            option @ ("--poll"
            | "--uplink-to-uplink"
            | "--mac-flap-damping"
            | "--multicast-snooping"),
            truth @ ("true" | "false"),
        ] => Some(format!("unexpected argument '{truth}' found, write {option}={truth}")),
        _ => None,
    })
}

/// Returns the first paragraph of clap's error, in one line.
pub fn first_line(error: &clap::Error) -> String {
    let rendered = error.to_string();
    let first = rendered.split("\n\n").next().unwrap_or_default();
    let first = first.strip_prefix("error: ").unwrap_or(first);
    let mut line = first.split_whitespace().collect::<Vec<_>>().join(" ");
    line.retain(|c| !is_unprintable(c));
    clip(&line, 4 * limits::MAX_QUOTED_CHARS)
}

/// Returns the first line of clap's error, with clap's best suggestion.
fn summary(error: &clap::Error) -> String {
    let line = first_line(error);
    match error.get(ContextKind::SuggestedArg) {
        Some(ContextValue::String(option)) => format!("{line}, did you mean '{option}'?"),
        _ => line + ", see --help",
    }
}

/// Makes settings of the options, and checks the settings. The first malformed `--port`, `--tap`,
/// `--xdp` or `--stream` is the error.
fn lower(
    options: Options,
    matches: &ArgMatches,
    Machine { cpus, allowed }: Machine<'_>,
) -> Result<Request, UsageError> {
    let mut source = Source::default();
    for kind in Kind::NAMED {
        for text in matches.get_many::<String>(kind.name()).into_iter().flatten() {
            source.sections.push(section(kind, text)?);
        }
    }
    let mut scalar = |key: &str, word: Option<&String>| {
        if let Some(word) = word {
            let at = Location::argument(&format!("--{key}"), word);
            let value = Value::Word(word.clone());
            source.scalars.push(Setting { key: key.to_owned(), value, at });
        }
    };
    scalar("socket-path", options.socket_path.as_ref());
    scalar("fd", options.fd.as_ref());
    SCALARS.iter().for_each(|one| scalar(one.name, matches.get_one(one.name)));
    let over = validate::source(&source, Machine { cpus, allowed });
    one_line(&over.complaints)?;
    one_line(&entries::conflicts(&over, &claims::place))?;
    let Options { config: file, check, strict, state_dir, .. } = options;
    let allowed = allowed.to_vec();
    Ok(Request { file, over, cpus, allowed, check, strict, state_dir })
}

/// Reads one `NAME,key=value,…`.
fn section(kind: Kind, text: &str) -> Result<Section, UsageError> {
    let at = Location::argument(&format!("--{kind}"), text);
    let mut settings = Vec::new();
    for (place, part) in split_commas(text).into_iter().enumerate() {
        let (key, word) = match (place, part.split_once('=')) {
            (0, None) => ("name", part.as_str()),
            (0, Some(_)) => {
                let text = "the name comes first, before any key=value";
                return Err(usage_error(&Complaint::new(&at, text).to_string()));
            }
            (_, Some(pair)) => pair,
            (_, None) if !part.is_empty() && goes_on(kind, settings.last_mut(), &part) => continue,
            (_, None) => {
                let text = match part.as_str() {
                    "" => {
                        "ends in a comma: leave it out, or write it twice if the value ends in one"
                            .to_owned()
                    }
                    part => format!("{} is not key=value", quote(part)),
                };
                return Err(usage_error(&Complaint::new(&at, text).to_string()));
            }
        };
        let (key, value) = (key.to_owned(), Value::Word(word.to_owned()));
        settings.push(Setting { key, value, at: at.clone() });
    }
    Ok(Section { kind, settings, at })
}

/// Adds a part to the preceding value, if this value may have commas.
fn goes_on(kind: Kind, before: Option<&mut Setting>, part: &str) -> bool {
    match before {
        Some(Setting { key, value: Value::Word(word), .. })
            if kind.key(key).is_some_and(|key| key.has_commas || key.is_list) =>
        {
            *word += ",";
            *word += part;
            true
        }
        _ => false,
    }
}

/// Splits a text at commas; two commas in a row are one comma of a value, as on QEMU's command
/// line.
pub fn split_commas(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let doubled = c == ',' && chars.next_if_eq(&',').is_some();
        match (c, parts.last_mut()) {
            (',', _) if !doubled => parts.push(String::new()),
            (_, Some(part)) => part.push(c),
            (_, None) => {}
        }
    }
    parts
}
