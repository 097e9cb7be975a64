//! `vioswitchctl run`: keeps a port for as long as a QEMU runs.
//!
//! The port exists before QEMU starts. The port goes after QEMU has ended, and before this program
//! ends. If this program is killed (SIGKILL), QEMU runs on, and the port stays for QEMU.

mod arguments;
mod child;

use std::path::Path;
use std::time::{Duration, Instant};

use api::config::Kind;
use api::wire::GetPort;
use clap::Args;

use crate::attach::wanted::VmPort;
use crate::client::Client;
use crate::failure::Failure;
use crate::output::say;
use crate::qemu::Version;
use crate::requests::{delete, new_port};
use child::Signals;

/// Longest time that this program waits for a restarting switch to delete the port.
const RESTART: Duration = Duration::from_secs(10);
/// Pause between two attempts to delete the port.
const STEP: Duration = Duration::from_millis(200);

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

impl Run {
    /// Runs QEMU and returns QEMU's exit status.
    pub(crate) fn run(&self, control: &Path) -> Result<u8, Failure> {
        let Some((program, given)) = self.command.split_first() else {
            return Err(Failure::usage("QEMU's command line is missing behind --".to_owned()));
        };
        let version = Version::of(program).ok_or_else(|| {
            let text =
                format!("{program} does not say that it is a QEMU: run starts no other program");
            Failure::usage(text)
        })?;
        let mut client = Client::connect(control)?;
        // The program catches signals before the port exists, because a signal would leave the port
        // behind.
        let signals = Signals::catch()?;
        let made = self.claim(&mut client)?;
        let outcome = self.start(client, signals, program, version, given);
        if made {
            self.give_back(control);
        }
        outcome
    }

    fn start(
        &self,
        mut client: Client,
        signals: Signals,
        program: &str,
        version: Version,
        given: &[String],
    ) -> Result<u8, Failure> {
        let port = VmPort::ask(&mut client, &self.name)?;
        // The connection ends before QEMU runs, because the switch has room for few clients.
        drop(client);
        let missing = arguments::missing(&port, program, version, given);
        let missing = missing.map_err(Failure::usage)?;
        signals.run(program, given.iter().chain(&missing))
    }

    /// Adds the port, or accepts an existing port without a front-end. Returns true if the port was
    /// added.
    fn claim(&self, client: &mut Client) -> Result<bool, Failure> {
        let new = |may_exist| new_port(Kind::Port, &self.name, &self.settings, may_exist, true);
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
        // An earlier run may have left the port behind.
        if ["kept", "transient"].contains(&port.origin.as_str()) {
            say(&format!(
                "port '{name}' was there already and stays: vioswitchctl port del {name}"
            ));
        }
        Ok(false)
    }

    fn give_back(&self, control: &Path) {
        let end = Instant::now() + RESTART;
        loop {
            let deleted = Client::connect(control)
                .and_then(|mut client| delete(&mut client, &self.name, None, true));
            let Err(failure) = deleted else { return };
            if !failure.is_absence() || Instant::now() >= end {
                let name = &self.name;
                let why = failure.text;
                return say(&format!("port '{name}' stays: {why}; vioswitchctl port del {name}"));
            }
            std::thread::sleep(STEP);
        }
    }
}
