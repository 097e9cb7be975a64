//! `vioswitchctl run`: keeps a port for as long as a QEMU runs.
//!
//! The port exists before QEMU starts. The port goes after QEMU has ended, and before this program
//! ends. If this program is killed (SIGKILL), QEMU runs on, and the port stays for QEMU.

mod arguments;
mod child;
mod reservation;

use std::path::Path;
use std::time::{Duration, Instant};

use api::config::Kind;
use api::wire::GetPort;
use base::words::quote;
use clap::Args;

use crate::attach::wanted::VmPort;
use crate::client::Client;
use crate::failure::Failure;
use crate::output::say;
use crate::qemu::{self, Version};
use crate::requests::{delete, new_port};
use crate::values::DEFAULT_CONTROL;
use child::Signals;
use reservation::Reservation;

/// Longest time that this program waits for a restarting switch to delete the port.
const RESTART: Duration = Duration::from_secs(10);
/// Pause between two attempts to delete the port.
const STEP: Duration = Duration::from_millis(200);

/// Address of a card for which the command line has no address.
const QEMU_MAC: &str = "52:54:00:12:34:56";

/// Add a port, run QEMU with it, and delete the port when QEMU ends
///
/// Appends the arguments that QEMU's command line lacks: shared memory, chardev, netdev and device.
/// Uses and keeps an existing port that has the given settings. Forwards signals to QEMU, except
/// signals that a terminal sends to both processes. The exit status is QEMU's, or 128 plus the
/// number of the signal that ended QEMU.
#[derive(Debug, Args)]
pub struct Run {
    name: String,
    /// {keys}
    #[arg(value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// QEMU's program and its arguments, after --
    #[arg(value_name = "QEMU", last = true, required = true)]
    command: Vec<String>,
}

/// Gets the address of the card that QEMU is about to have.
pub(crate) type NoteMac<'a> = &'a dyn Fn(&str) -> Result<(), Failure>;

impl Run {
    /// Runs QEMU and returns QEMU's exit status. The port ends with the process of the switch.
    pub(crate) fn run(&self, control: &Path) -> Result<u8, Failure> {
        self.run_with(control, true, &|_| Ok(()))
    }

    /// Runs QEMU as `run` does, with a port that survives the process of the switch.
    pub(crate) fn run_kept(&self, control: &Path, note: NoteMac) -> Result<u8, Failure> {
        self.run_with(control, false, note)
    }

    /// Returns the name of the port.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn run_with(&self, control: &Path, transient: bool, note: NoteMac) -> Result<u8, Failure> {
        let (program, _) = self.command()?;
        let version = Version::of(program).ok_or_else(|| {
            let text = format!("{program} does not answer as QEMU, and run starts only QEMU");
            Failure::usage(text)
        })?;
        let mut client = Client::connect(control)?;
        let _reservation = Reservation::of(&self.name, control)?;
        // The program catches signals before the port exists, because a signal would leave the port
        // behind.
        let signals = Signals::catch()?;
        let made = self.claim(&mut client, control, transient)?;
        let outcome = self.start(client, signals, version, note);
        if made {
            self.give_back(control, transient);
        }
        outcome
    }

    fn start(
        &self,
        mut client: Client,
        signals: Signals,
        version: Version,
        note: NoteMac,
    ) -> Result<u8, Failure> {
        let (program, given) = self.command()?;
        let port = VmPort::ask(&mut client, &self.name)?;
        // The connection ends before QEMU runs, because the switch has room for few clients.
        drop(client);
        let missing = arguments::missing(&port, program, version, given);
        let missing = missing.map_err(Failure::usage)?;
        let words = [given, &missing].concat();
        note(&card_address(&words, &port.socket))?;
        signals.run(program, words.iter())
    }

    fn command(&self) -> Result<(&String, &[String]), Failure> {
        let missing = || Failure::usage("QEMU's command line is missing behind --".to_owned());
        self.command.split_first().ok_or_else(missing)
    }

    /// Adds the port, or accepts an existing port without a front-end. Returns true if the port is
    /// to go with QEMU.
    fn claim(&self, client: &mut Client, control: &Path, transient: bool) -> Result<bool, Failure> {
        let new =
            |may_exist| new_port(Kind::Port, &self.name, &self.settings, may_exist, transient);
        match client.call(&new(false)?) {
            Ok(_) => return Ok(true),
            Err(failure) if failure.is("PortExists") => {}
            Err(failure) => return Err(failure),
        }
        if !self.settings.is_empty() {
            client.call(&new(true)?)?;
        }
        let name = &self.name;
        let port = client.call(&GetPort { name: name.clone() })?.port;
        if let Some(who) = port.front_end {
            let text = format!("port '{name}' has a front-end, pid {}", who.pid);
            return Err(Failure::refused(format!("{text}: each machine needs a port of its own")));
        }
        // An earlier run may have left the port behind. A run that keeps its port takes over such a
        // port.
        if !transient && port.origin.as_str() == "kept" {
            return Ok(true);
        }
        if ["kept", "transient"].contains(&port.origin.as_str()) {
            let text =
                format!("port '{name}' existed before and stays: vioswitchctl port del {name}");
            say(&(text + &of_switch(control)));
        }
        Ok(false)
    }

    fn give_back(&self, control: &Path, transient: bool) {
        let end = Instant::now() + RESTART;
        loop {
            let deleted = Client::connect(control)
                .and_then(|mut client| delete(&mut client, &self.name, None, true));
            let Err(failure) = deleted else { return };
            // A kept port goes with the switch's directory.
            if !transient && !control.parent().is_some_and(Path::exists) {
                return;
            }
            if !failure.is_absence() || Instant::now() >= end {
                let name = &self.name;
                let why = failure.text;
                let text = format!("port '{name}' stays: {why}; vioswitchctl port del {name}");
                return say(&(text + &of_switch(control)));
            }
            std::thread::sleep(STEP);
        }
    }
}

/// Returns the option that names the switch to a command, unless the switch is the default switch.
fn of_switch(control: &Path) -> String {
    match control == Path::new(DEFAULT_CONTROL) {
        true => String::new(),
        false => format!(" --control {}", quote(&control.display().to_string())),
    }
}

/// Returns the address of the card behind the port's socket on QEMU's command line.
fn card_address(words: &[String], socket: &str) -> String {
    let items = qemu::items(words);
    let device = qemu::card(&items, socket).and_then(|card| card.device);
    let given = device.and_then(|device| device.get("mac").or_else(|| device.get("macaddr")));
    given.unwrap_or(QEMU_MAC).to_owned()
}
