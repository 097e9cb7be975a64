//! An operator who replaces the thousand rules of a flooded port twenty times a second: a bystander
//! with a filter loses nothing, and waits no longer than beside an operator who does so at another
//! switch.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::connections::{DATAGRAM, fill, keep_sending};
use crate::alone;
use testkit::neighbours::{Lab, While};
use testkit::proc::{Daemon, Dir};
use testkit::shares::{SIZE, receive};

const RULES: usize = 1_000;
const EVERY: Duration = Duration::from_millis(50);
/// Changes of each operator in a test: some seconds.
const CHANGES: u64 = 100;
const BYSTANDERS: &str = "\
[[filter]]
name = \"quiet\"
default-in = \"drop\"
rules = [\"in accept udp to port 5000\"]
";

/// A thousand rules of which the last permits the flood, and `first` in front of others.
fn rules(first: &str) -> Vec<String> {
    let other = |n: usize| {
        let port = 1_000 + n;
        format!("\"in accept udp from 10.9.{}.{} to port {port}\"", n / 250, n % 250)
    };
    let others = (2..RULES).map(other);
    [format!("\"{first}\"")].into_iter().chain(others).chain(["\"in accept udp\"".into()]).collect()
}

/// Calls that change the rules, one after the other.
fn changes() -> [String; 2] {
    ["in drop tcp", "in drop udp to port 9"].map(|first| {
        let rules = rules(first).join(",");
        let parameters = format!("{{\"kind\":\"filter\",\"name\":\"many\",\"rules\":[{rules}]}}");
        format!("{{\"method\":\"io.vioswitch.Switch.Set\",\"parameters\":{parameters}}}\0")
    })
}

/// A file with both filters, and the options of a switch with this file and a control socket.
fn options(dir: &Dir) -> (PathBuf, [String; 2]) {
    let [control, file] = ["control", "filters.toml"].map(|name| dir.path().join(name));
    let rules = rules("in accept tcp").join(",");
    let many = format!("\n[[filter]]\nname = \"many\"\ndefault-in = \"drop\"\nrules = [{rules}]\n");
    fs::write(&file, format!("{BYSTANDERS}{many}")).expect("a file");
    let options =
        [format!("--config={}", file.display()), format!("--control={}", control.display())];
    (control, options)
}

/// Replaces the rules again and again while the flood goes on.
fn replace<'a>(
    control: &'a Path,
    changed: &'a AtomicU64,
    mut flood: impl FnMut(&While<'_>) + Send + 'a,
) -> impl FnMut(&While<'_>) + Send + 'a {
    let mut socket = UnixStream::connect(control).expect("connect");
    let calls = changes();
    move |phase: &While<'_>| {
        thread::scope(|s| {
            s.spawn(|| {
                while phase.on() {
                    let next = Instant::now() + EVERY;
                    let number = changed.fetch_add(1, Ordering::Relaxed);
                    socket.write_all(calls[number as usize % 2].as_bytes()).expect("a call");
                    let answer = answer(&mut socket);
                    assert!(answer.contains("\"changes\":[{"), "{answer}");
                    thread::sleep(next.saturating_duration_since(Instant::now()));
                }
            });
            flood(phase);
        });
    }
}

/// Reads an answer up to its last byte, which is zero.
fn answer(socket: &mut UnixStream) -> String {
    let (mut answer, mut part) = (Vec::new(), [0; 4096]);
    while answer.last() != Some(&0) {
        let count = socket.read(&mut part).expect("an answer");
        assert!(count > 0, "the switch has closed the connection");
        answer.extend(&part[..count]);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn rules_that_change_under_a_flood() {
    let _alone = alone();
    let dirs = [Dir::new(), Dir::new()];
    let [(control, ours), (other, others)] = dirs.each_ref().map(options);
    let [ours, others] = [&ours, &others].map(|both| both.each_ref().map(String::as_str));
    let ports = [",filter=quiet", ",filter=quiet", "", ",filter=many"];
    let mut lab = Lab::with_datagrams(&ports, &ours);
    let elsewhere = Daemon::with_ports(&ports, &others);
    let mut senders = [lab.guest(2, |cfg| cfg.tx_size = SIZE)];
    let mut sinks = [lab.guest(3, |cfg| cfg.size = SIZE)];
    receive(&mut sinks[0]);
    fill(&mut senders[0], sinks[0].mac(), DATAGRAM, true);
    let changed = [AtomicU64::new(0), AtomicU64::new(0)];
    let flooded = |lab: &Lab| lab.d.counters().sum(Some("p3"), "out", "frames");
    loop {
        lab.unharmed(
            "rules that change",
            replace(&other, &changed[0], keep_sending(&senders, &sinks)),
            replace(&control, &changed[1], keep_sending(&senders, &sinks)),
        );
        let counted = changed.each_ref().map(|count| count.load(Ordering::Relaxed));
        println!("{counted:?} changes, {} frames of the flood passed", flooded(&lab));
        if counted.iter().all(|&n| n >= CHANGES) {
            break;
        }
    }
    assert!(flooded(&lab) > u64::from(SIZE), "the flood did not pass");
    drop((senders, sinks));
    elsewhere.stop();
    lab.finish();
}
