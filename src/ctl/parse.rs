//! Reads the command line of vioswitchctl.

use std::ffi::{OsStr, OsString};

use clap::FromArgMatches;
use clap::error::ErrorKind;
use clap::parser::ValueSource;

use crate::args::{Options, SwitchCommand, command};
use crate::slips;

/// Outcome of a command line without a command to run.
pub enum Outcome {
    /// Text to print before the program ends.
    Print(String),
    /// Line that explains wrong usage.
    Usage(String),
}

/// Reads the arguments, of which the first is the program's name. An option overrides the
/// environment.
pub fn parse(args: &[OsString], control: Option<OsString>) -> Result<Options, Outcome> {
    let matches = command().try_get_matches_from(args);
    let parsed = matches.and_then(|matches| {
        let mut options = Options::from_arg_matches(&matches)?;
        let control = control.filter(|path| !path.is_empty());
        if let (Some(ValueSource::DefaultValue), Some(path)) =
            (matches.value_source("control"), control)
        {
            options.control = path.into();
        }
        let is_given = matches.value_source("control") == Some(ValueSource::CommandLine);
        Ok((options, is_given))
    });
    let (options, is_given) = parsed.map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Outcome::Print(error.to_string()),
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            Outcome::Usage(slips::no_command(args))
        }
        _ => Outcome::Usage(slips::line(&error, args)),
    })?;
    match is_given && matches!(options.command, SwitchCommand::Lan(_)) {
        true => Err(Outcome::Usage("lan has a switch of its own: leave out --control".to_owned())),
        false => Ok(options),
    }
}

/// True if a failure is to be printed as JSON; the command line may be invalid.
pub(crate) fn wants_json(args: &[OsString]) -> bool {
    args.iter().take_while(|word| *word != OsStr::new("--")).any(|word| word == "--json")
}
