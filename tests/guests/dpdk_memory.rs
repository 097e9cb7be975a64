//! A DPDK process that plugs and unplugs memory while frames flow between its two virtio-user
//! ports: builds `dpdk_memory.c` with DPDK's own flags, runs it, reads its counts.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::lab::Lab;
use super::need_program;
use super::testpmd::{Backing, VirtioUser, eal_arguments};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/guests/dpdk_memory.c");

/// What a port of the process counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortSaw {
    /// Changes of the process's memory, each a new table for the port.
    pub changes: u64,
    /// Frames sent.
    pub sent: u64,
    /// Frames received.
    pub received: u64,
    /// Numbers that were left out before one that came.
    pub lost: u64,
    /// Frames that came twice or too late.
    pub disordered: u64,
    /// Frames that were not for this port, or not of the other one.
    pub foreign: u64,
    /// Frames with another content.
    pub corrupt: u64,
    /// Longest time between two bursts that came.
    pub gap: Duration,
}

/// `Err` says what is missing to build it.
pub fn available() -> Result<(), String> {
    super::testpmd::available()?;
    for program in ["cc", "pkg-config"] {
        need_program(program)?;
    }
    let found = Command::new("pkg-config").args(["--exists", "libdpdk"]).status();
    match found {
        Ok(status) if status.success() => Ok(()),
        _ => Err("DPDK's headers (libdpdk-dev) are not installed".into()),
    }
}

fn build(lab: &Lab) -> PathBuf {
    let program = lab.path("dpdk_memory");
    let target = program.display();
    let flags = "$(pkg-config --cflags --libs libdpdk)";
    lab.sh(&format!("cc -O2 -Wall -Wextra -Werror -o {target} {SOURCE} {flags}"));
    program
}

/// Changes the memory `rounds` times, plugged in and out each time; what both ports saw.
pub fn run(lab: &Lab, ports: &[VirtioUser; 2], rounds: u64) -> [PortSaw; 2] {
    let program = build(lab);
    // Each wait inside is bounded; this ends a process that hangs in the driver.
    let limit = (60 + 5 * rounds).to_string();
    let out = Command::new("timeout")
        .args(["--signal=KILL", &limit])
        .args(["setpriv", "--pdeathsig", "KILL"])
        .arg(program)
        .args(eal_arguments("memory", Backing::Huge, ports, 1))
        .args(["--", &rounds.to_string()])
        .env("RUNTIME_DIRECTORY", lab.path(""))
        .env("XDG_RUNTIME_DIR", lab.path(""))
        .stdin(Stdio::null())
        .output()
        .expect("run dpdk_memory");
    let said = String::from_utf8_lossy(&out.stdout);
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{}: {said}{errors}", out.status);
    let saw: Vec<PortSaw> =
        said.lines().filter(|line| line.starts_with("port ")).map(parse).collect();
    saw.try_into().unwrap_or_else(|_| panic!("counts of two ports in {said}"))
}

fn parse(line: &str) -> PortSaw {
    let words: Vec<&str> = line.split_whitespace().collect();
    let get = |name: &str| -> u64 {
        let at = words.iter().position(|&word| word == name).expect(name);
        words[at + 1].parse().expect("a number")
    };
    PortSaw {
        changes: get("changes"),
        sent: get("sent"),
        received: get("received"),
        lost: get("lost"),
        disordered: get("disordered"),
        foreign: get("foreign"),
        corrupt: get("corrupt"),
        gap: Duration::from_micros(get("gap_us")),
    }
}
