//! What guests say to each other: pings, and iperf3 with what its reports are worth.

use std::time::Duration;

use super::vm::Vm;

/// A guest reaches an address: no question is lost, not even the first to a new neighbour.
pub fn pings(vm: &mut Vm, address: &str) {
    if let Err(said) = try_pings(vm, address) {
        panic!("ping {address}: {said}");
    }
}

/// Three answers to three questions, or what ping said.
pub fn try_pings(vm: &mut Vm, address: &str) -> Result<(), String> {
    let ping = format!("ping -c 3 -i 0.2 -W 8 {address}");
    let (_, said) = vm.run(&ping, Duration::from_secs(40));
    if said.contains("3 packets received") { Ok(()) } else { Err(said) }
}

/// Whether one question to an address gets an answer.
pub fn answers(vm: &mut Vm, address: &str) -> bool {
    vm.run(&format!("ping -c 1 -W 2 {address}"), Duration::from_secs(15)).0 == 0
}

/// What iperf3 found out.
#[derive(Debug)]
pub struct Iperf {
    /// Received, kbit/s.
    pub rate: f64,
    /// Share of lost datagrams in percent, for UDP.
    pub lost: Option<f64>,
    /// What the receiver got in each whole second, kbit/s. Empty if the receiver is the other
    /// side and the options lack `--get-server-output`.
    pub seconds: Vec<f64>,
}

/// Runs iperf3 in `client` against `address`, where a server waits.
pub fn iperf(client: &mut Vm, address: &str, options: &str) -> Iperf {
    let command = format!("iperf3 -c {address} -f k --connect-timeout 10000 {options}");
    let said = client.ok_within(&command, Duration::from_secs(60));
    report(&said, options)
}

fn report(said: &str, options: &str) -> Iperf {
    let line = said
        .lines()
        .rfind(|line| line.ends_with("receiver"))
        .unwrap_or_else(|| panic!("iperf3 has no result: {said}"));
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words.iter().position(|&w| w == "Kbits/sec").expect("a rate");
    let rate = words[at - 1].parse().expect("a rate");
    let lost = words.iter().find_map(|w| w.strip_prefix('(')?.strip_suffix("%)")?.parse().ok());
    let receiver = if options.split_whitespace().any(|option| option == "-R") {
        said
    } else {
        said.split_once("Server output:").map_or("", |(_, server)| server)
    };
    Iperf { rate, lost, seconds: receiver.lines().filter_map(second).collect() }
}

/// The rate in a line about one second: `[  5]   1.00-2.00   sec  … 167000 Kbits/sec …`. A shorter
/// one is what was left at the end, a longer one the summary.
fn second(line: &str) -> Option<f64> {
    let mut words = line.split_once(']')?.1.split_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let length = to.parse::<f64>().ok()? - from.parse::<f64>().ok()?;
    if !(0.8..1.2).contains(&length) || line.ends_with("receiver") || line.ends_with("sender") {
        return None;
    }
    let words: Vec<&str> = words.collect();
    let at = words.iter().position(|&word| word == "Kbits/sec")?;
    words[at - 1].parse().ok()
}
