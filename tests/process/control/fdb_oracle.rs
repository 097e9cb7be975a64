//! The forwarding table by Open vSwitch's own tests: what it learns, what is static, what is
//! flushed and what a full table leaves to each port. Where this switch differs is listed; the list
//! is exact.

mod steps;

use std::collections::BTreeMap;

use base::frame::MacAddr;
use base::limits::{FDB_RESERVED_PER_PORT, FDB_RESERVED_PER_SEGMENT};
use switch::fdb::{Fdb, FdbConfig};
use testkit::SOON;
use testkit::openvswitch;

use super::*;
use steps::{Mac, Row, Step};

/// How long nothing may come where nothing must.
const QUIET: Duration = Duration::from_millis(20);

/// Tests that are run against the switch, with their steps.
const TESTS: [(&str, usize); 3] =
    [("MAC learning", 14), ("static-mac add/del/flush", 58), ("static-mac mac moves", 11)];

/// Where this switch differs.
const DIFFERENT: [&str; 2] = [
    // A port that goes takes its addresses with it in its own bridge. The other switch forgets the
    // same address in each.
    "MAC learning: br1 has 50:54:00:00:00:06 on 4 too",
    // A static address is a port's until it is taken from that.
    "static-mac mac moves: 50:54:00:00:00:00 is not given to 2 before it is taken from 1",
];

fn text_of(mac: Mac) -> String {
    mac.map(|octet| format!("{octet:02x}")).join(":")
}

/// A switch with the ports of a test, each of them a guest.
struct Subject {
    lab: Lab,
    title: &'static str,
    /// Each port's bridge, and its number here.
    ports: BTreeMap<u16, (String, usize)>,
    vms: BTreeMap<u16, Vm>,
    different: Vec<String>,
    frames: u8,
}

impl Subject {
    fn new(title: &'static str, steps: &[Step]) -> Subject {
        let mut ports = BTreeMap::new();
        for step in steps {
            if let Step::Ports { bridge, ports: list } = step {
                // Each bridge has a port of its own.
                let own = if bridge == "br0" { 100 } else { 101 };
                for port in list.iter().chain([&own]) {
                    let here = ports.len();
                    ports.insert(*port, (bridge.clone(), here));
                }
            }
        }
        let mut keys = vec![String::new(); ports.len()];
        ports.values().for_each(|(bridge, at)| keys[*at] = format!(",bridge={bridge}"));
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let lab = Lab::with_ports(&keys, &[]);
        let guest = |(port, (_, at)): (&u16, &(String, usize))| {
            (*port, Vm::connect(&lab.d.socket(*at), VmConfig::new(*at as u8)))
        };
        let vms = ports.iter().map(guest).collect();
        Subject { lab, title, ports, vms, different: Vec::new(), frames: 0 }
    }

    fn name(&self, port: u16) -> String {
        format!("p{}", self.ports[&port].1)
    }

    fn differs(&mut self, how: String) {
        self.different.push(format!("{}: {how}", self.title));
    }

    fn run(&mut self, step: &Step) {
        match step {
            Step::Ports { .. } => {}
            Step::Frame { from, src, dst, to } => {
                let got = self.send(*from, *src, *dst);
                let mut to = to.clone().unwrap_or_else(|| got.clone());
                to.sort_unstable();
                assert_eq!(got, to, "{}: {step:?}", self.title);
            }
            Step::Add { port, mac } => self.add(*port, *mac),
            Step::Delete { mac } => drop(self.lab.done(&["fdb", "del", &text_of(*mac)])),
            Step::Flush => drop(self.lab.done(&["fdb", "flush"])),
            Step::DeletePort(port) => {
                let name = self.name(*port);
                self.lab.done(&["port", "del", &name]);
                self.vms.remove(port);
            }
            Step::Table { bridge, rows } => self.compare(bridge, rows),
            Step::Gone(mac) => {
                assert!(self.table("br0").iter().all(|row| row.1 != *mac), "{step:?}");
            }
            Step::Statics(count) => {
                let statics = self.table("br0").iter().filter(|row| row.2).count();
                assert_eq!(statics, *count, "{}", self.title);
            }
            Step::Foreign(count) => {
                let foreign = self.lab.d.counters().sum(None, "", "learn_static");
                assert_eq!(foreign, *count, "{}", self.title);
            }
        }
    }

    /// Sends a frame; the ports that get it.
    fn send(&mut self, from: u16, src: Mac, dst: Mac) -> Vec<u16> {
        self.frames += 1;
        let mut frame = [&dst[..], &src, &[0x88, 0xb5, self.frames]].concat();
        frame.resize(60, 0);
        let sender = self.vms.get_mut(&from).expect("a guest");
        sender.tx[0].send_waiting(&frame, SOON);
        sender.tx[0].drain(SOON);
        std::thread::sleep(QUIET);
        let mut got = Vec::new();
        for (port, vm) in &mut self.vms {
            let count = vm.rx[0].recv(8, |_, came| assert_eq!(came, frame));
            got.extend((count > 0).then_some(*port));
            assert!(count < 2, "{port} got it twice");
        }
        got
    }

    fn add(&mut self, port: u16, mac: Mac) {
        let (name, word) = (self.name(port), text_of(mac));
        let output = self.lab.ctl(&["fdb", "add", &word, &name]);
        if output.status.success() {
            return;
        }
        let line = String::from_utf8_lossy(&output.stderr);
        assert!(line.contains("is a static address of port"), "{line}");
        let row = self.table("br0").into_iter().find(|row| row.1 == mac).expect("known");
        self.differs(format!("{word} is not given to {port} before it is taken from {}", row.0));
        self.lab.done(&["fdb", "del", &word]);
        self.lab.done(&["fdb", "add", &word, &name]);
    }

    fn table(&self, bridge: &str) -> Vec<Row> {
        let all = self.lab.json(&["fdb", "show", &format!("--bridge={bridge}")]);
        let row = |address: &Value| {
            let name = address["port"].as_str().expect("a port");
            let here = |(_, place): &(&u16, &(String, usize))| format!("p{}", place.1) == name;
            let port = *self.ports.iter().find(here).expect("a port of ours").0;
            let octets = address["mac"].as_str().expect("an address").split(':');
            let octets = octets.map(|octet| u8::from_str_radix(octet, 16).expect("an octet"));
            let mac = octets.collect::<Vec<u8>>().try_into().expect("six octets");
            (port, mac, address["static"] == json!(true))
        };
        let mut rows: Vec<Row> =
            all["addresses"].as_array().expect("a list").iter().map(row).collect();
        rows.sort_unstable();
        rows
    }

    /// All that the other switch knows is known here.
    fn compare(&mut self, bridge: &str, rows: &[Row]) {
        let ours = self.table(bridge);
        let missing: Vec<&Row> = rows.iter().filter(|row| !ours.contains(row)).collect();
        assert!(missing.is_empty(), "{}: {bridge} lacks {missing:?}: {ours:?}", self.title);
        for (port, mac, _) in ours.iter().filter(|row| !rows.contains(row)) {
            self.differs(format!("{bridge} has {} on {port} too", text_of(*mac)));
        }
    }
}

#[test]
fn addresses_live_where_open_vswitch_says() {
    let Some(text) = openvswitch::tests() else { return };
    let mut different = Vec::new();
    for (title, count) in TESTS {
        let steps = steps::read(&text, title);
        assert_eq!(steps.len(), count, "{title}: {steps:#?}");
        let mut subject = Subject::new(title, &steps);
        steps.iter().for_each(|step| subject.run(step));
        different.append(&mut subject.different);
        subject.lab.d.stop();
    }
    assert_eq!(different, DIFFERENT);
}

/// A full table of ten addresses: the other switch takes the oldest one from the port that has
/// most; this one keeps a reserve for each port, so that nothing has to be taken from any. A port
/// that comes late has as many addresses as there at least, and so has each of the others.
#[test]
fn a_full_table_is_as_fair_as_open_vswitch_is() {
    let Some(text) = openvswitch::tests() else { return };
    let steps = steps::read(&text, "MAC table overflow fairness");
    let fdb = Fdb::new(FdbConfig {
        max_entries: 10,
        max_per_port: 10,
        reserved_per_port: FDB_RESERVED_PER_PORT,
        max_per_segment: 10,
        reserved_per_segment: FDB_RESERVED_PER_SEGMENT,
        age_seconds: 300,
        damping: true,
        ports: 10,
        key: [1, 2],
    });
    let (mut frames, mut tables) = (0, 0);
    for step in &steps {
        match step {
            Step::Frame { from, src, .. } => {
                frames += 1;
                fdb.learn(MacAddr(*src), *from, frames);
            }
            Step::Table { rows, .. } => {
                tables += 1;
                for port in 1..=6 {
                    let theirs = rows.iter().filter(|row| row.0 == port).count();
                    let ours = fdb.port_len(port);
                    assert!(ours >= theirs, "port {port}: {ours}, there {theirs}");
                }
            }
            Step::Ports { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((frames, tables), (26, 2), "{steps:#?}");
}
