//! `vioswitchctl stats --watch`: prints the rates of all ports.

use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::Client;
use crate::failure::Failure;
use crate::look::{PortRates, ports, rates};
use crate::show;

/// `stats --watch`: prints the rates of all ports again and again until the reader of standard
/// output is gone.
pub fn watch(client: &mut Client, every: Duration, as_json: bool) -> Result<(), Failure> {
    let (mut before, mut began) = (ports(client)?, Instant::now());
    loop {
        std::thread::sleep(every);
        let (after, now) = (ports(client)?, Instant::now());
        let seconds = (now - began).as_secs_f64();
        let rates = after.iter().map(|port| {
            let known = before.iter().find(|old| old.name == port.name).unwrap_or(port);
            PortRates { name: port.name.clone(), rates: rates(known, port, seconds) }
        });
        let rates: Vec<PortRates> = rates.collect();
        let text = match as_json {
            true => json!({"seconds": seconds, "ports": rates}).to_string(),
            false => show::rates(&rates),
        };
        let mut out = std::io::stdout().lock();
        if writeln!(out, "{text}").and_then(|()| out.flush()).is_err() {
            return Ok(());
        }
        (before, began) = (after, now);
    }
}
