//! An operator who replaces the thousand rules of a flooded port twenty times a second: a bystander
//! with a filter loses nothing, and waits no longer than beside an operator who does so at another
//! switch.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
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
const CHANGES: u64 = 40;
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

/// At which switch an operator changes rules now.
const NOWHERE: usize = 2;
const END: usize = 3;

/// An operator who changes rules at one of two switches, or pauses.
struct Operator {
    place: AtomicUsize,
    changed: [AtomicU64; 2],
}

impl Operator {
    fn new() -> Operator {
        Operator { place: AtomicUsize::new(NOWHERE), changed: Default::default() }
    }

    /// Works until the end.
    fn work(&self, controls: [&Path; 2]) {
        let connect = |path| UnixStream::connect(path).expect("connect");
        let (mut sockets, calls) = (controls.map(connect), changes());
        loop {
            let (place, next) = (self.place.load(Ordering::Acquire), Instant::now() + EVERY);
            match place {
                END => break,
                NOWHERE => thread::sleep(Duration::from_millis(1)),
                _ => {
                    let number = self.changed[place].fetch_add(1, Ordering::Relaxed);
                    let socket = &mut sockets[place];
                    socket.write_all(calls[number as usize % 2].as_bytes()).expect("a call");
                    let answer = answer(socket);
                    assert!(answer.contains("\"changes\":[{"), "{answer}");
                    thread::sleep(next.saturating_duration_since(Instant::now()));
                }
            }
        }
    }

    /// A flood during which the operator is at this switch.
    fn at<'a>(
        &'a self,
        place: usize,
        mut flood: impl FnMut(&While<'_>) + Send + 'a,
    ) -> impl FnMut(&While<'_>) + Send + 'a {
        move |phase: &While<'_>| {
            self.place.store(place, Ordering::Release);
            flood(phase);
            self.place.store(NOWHERE, Ordering::Release);
        }
    }
}

/// Ends the operator's work, after a panic too.
struct End<'a>(&'a Operator);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.place.store(END, Ordering::Release);
    }
}

/// Reads an answer up to its last byte, which is zero.
pub(super) fn answer(socket: &mut UnixStream) -> String {
    let (mut answer, mut part) = (Vec::new(), [0; 4096]);
    while answer.last() != Some(&0) {
        let count = socket.read(&mut part).expect("an answer");
        assert!(count > 0, "the switch has closed the connection");
        answer.extend(&part[..count]);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
#[ignore = "full"]
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
    let flooded = |lab: &Lab| lab.d.counters().sum(Some("p3"), "out", "frames");
    let operator = Operator::new();
    thread::scope(|s| {
        let _end = End(&operator);
        s.spawn(|| operator.work([&other, &control]));
        loop {
            lab.unharmed(
                "rules that change",
                operator.at(0, keep_sending(&senders, &sinks)),
                operator.at(1, keep_sending(&senders, &sinks)),
            );
            let changed = operator.changed.each_ref().map(|count| count.load(Ordering::Relaxed));
            println!("{changed:?} changes, {} frames of the flood passed", flooded(&lab));
            if changed.iter().all(|&n| n >= CHANGES) {
                break;
            }
        }
    });
    assert!(flooded(&lab) > u64::from(SIZE), "the flood did not pass");
    drop((senders, sinks));
    elsewhere.stop();
    lab.finish();
}
