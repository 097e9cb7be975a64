//! Events and what watching them can cost: what the switch reports of ports, front-ends, addresses
//! and drops, and what a client that watches can cost.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::atomic::Ordering;

use testkit::vm::mac_of;

use super::commands::same_keys;
use super::*;

/// A frame from one station to an address.
fn frame(to: [u8; 6], from: u8) -> Vec<u8> {
    let mut frame = [&to[..], &mac_of(from), &[0x88, 0xb5]].concat();
    frame.resize(60, 0);
    frame
}

impl Lab {
    /// All events that are kept.
    pub fn events(&self) -> Vec<Value> {
        let text = self.done(&["--json", "events"]);
        text.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect()
    }

    /// Waits for an event of this kind, the last one there is.
    pub(super) fn event(&self, kind: &str) -> Value {
        let mut found = None;
        let came = wait_for(LOST, || {
            found = self.events().into_iter().rev().find(|event| event["kind"] == kind);
            found.is_some()
        });
        assert!(came, "no {kind}: {:?}\n{}", self.events(), self.d.log());
        found.expect("came")
    }
}

#[test]
fn a_life_of_a_port_is_told() {
    let lab = Lab::new(1, &[]);
    // The control socket answers a moment before.
    lab.event("ready");
    lab.done(&["port", "add", "vm1"]);
    let vm = Vm::connect(&lab.socket("vm1.sock"), VmConfig::new(1));
    let attached = lab.event("attached");
    assert_eq!(attached["port"], "vm1");
    assert_eq!(attached["pid"], std::process::id());
    let features = attached["features"].as_u64().expect("features");
    assert!(features & 1 << 32 != 0, "VERSION_1 is not in {features:#x}");
    // A driver that says that there is more than its ring holds.
    vm.tx[0].ring.avail.index(2).store(40_000, Ordering::Release);
    vm.tx[0].ring.kick.write(1);
    let broken = lab.event("ring_broken");
    assert_eq!((&broken["port"], &broken["ring"]), (&json!("vm1"), &json!(1)));
    assert!(broken["text"].as_str().expect("text").contains(broken["why"].as_str().expect("why")));
    drop(vm);
    assert_eq!(lab.event("detached")["port"], "vm1");
    lab.done(&["port", "del", "vm1"]);
    let events = lab.events();
    let kinds: Vec<&str> = events.iter().map(|event| event["kind"].as_str().unwrap()).collect();
    assert_eq!(
        kinds,
        ["ready", "port_added", "attached", "ring_broken", "detached", "port_deleted"]
    );
    for event in &events {
        let optional = ["port", "why", "pid", "uid", "features", "ring"];
        same_keys(event, &["sequence", "time", "monotonic", "kind", "text"], &optional);
    }
    for (n, pair) in events.windows(2).enumerate() {
        assert_eq!(pair[0]["sequence"], n + 1);
        assert!(pair[0]["monotonic"].as_u64() <= pair[1]["monotonic"].as_u64());
    }
    // The log has the same, and people are shown it.
    let (log, shown) = (lab.d.log(), lab.done(&["events"]));
    for event in &events[1..] {
        let line = format!("port vm1: {}", event["text"].as_str().unwrap());
        assert!(log.contains(&line), "{line}\n{log}");
        assert!(shown.contains(&line["port ".len()..]), "{line}\n{shown}");
    }
    let after = lab.done(&["events", "--since", "4"]);
    assert_eq!(after.lines().count(), 2, "{after}");
    assert_eq!(lab.done(&["events", "--since", "6"]), "");
    assert_eq!(lab.done(&["events", "--since", "7"]), shown, "of an earlier switch");
    assert_eq!(lab.fails(&["events", "--since", "x"]).0, 2);
    lab.d.stop();
}

#[test]
fn drops_and_moving_addresses_are_told() {
    let lab = Lab::new(3, &[]);
    let mut vms = [0, 1].map(|id| Vm::connect(&lab.d.socket(id.into()), VmConfig::new(id)));
    // Address 7 moves to and fro with each frame.
    for _ in 0..50 {
        for vm in &mut vms {
            vm.tx[0].send_waiting(&frame([0xff; 6], 7), LOST);
            vm.tx[0].drain(LOST);
        }
    }
    let moved = lab.event("mac_moved");
    assert_eq!(moved["mac"], show(mac_of(7)));
    assert!(moved["from"] == "p0" || moved["from"] == "p1", "{moved}");
    let moves = lab.events().iter().filter(|event| event["kind"] == "mac_moved").count();
    assert!(moves <= 2, "one in ten seconds and port, not {moves}");
    // Frames that go nowhere, for a moment.
    let reserved = [0x01, 0x80, 0xc2, 0, 0, 3];
    (0..20).for_each(|_| vms[0].tx[0].send_waiting(&frame(reserved, 0), LOST));
    let began = lab.event("drops_began");
    let told = |event: &Value| {
        ["port", "direction", "reason"].map(|key| event[key].as_str().expect(key).to_owned())
    };
    assert_eq!(told(&began), ["p0", "in", "reserved"]);
    let ended = lab.event("drops_ended");
    assert_eq!(told(&ended), told(&began));
    assert_eq!(ended["frames"], 20);
    let waited = ended["time"].as_u64().unwrap() - began["time"].as_u64().unwrap();
    assert!(waited >= 3_000_000, "over after {waited} us");
    drop(vms);
    lab.d.stop();
}

fn show(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

#[test]
fn who_follows_is_told_as_it_happens() {
    let lab = Lab::new(1, &[]);
    let mut follower = Command::new(env!("CARGO_BIN_EXE_vioswitchctl"));
    follower.arg("--control").arg(&lab.path).args(["events", "-f"]);
    let mut follower = follower.stdout(Stdio::piped()).spawn().expect("vioswitchctl");
    let mut said = BufReader::new(follower.stdout.take().expect("pipe")).lines();
    let mut next = || said.next().expect("a line").expect("UTF-8");
    assert!(next().ends_with("ready: 1 port, 0 taps"));
    let mut client = lab.client();
    client.ask(&json!({"method": format!("{INTERFACE}.Events"), "more": true}));
    for n in 0..3 {
        let name = format!("x{n}");
        lab.done(&["port", "add", &name]);
        assert!(next().ends_with(&format!("{name}: added")));
        let part = client.answer().expect("a part");
        assert_eq!(part["parameters"]["events"][0]["port"], name, "{part}");
        assert_eq!(part["continues"], true);
    }
    // The end of the switch ends it.
    lab.d.stop();
    assert_eq!(follower.wait().expect("follower").code(), Some(3));
    assert!(client.closes());
}

/// Those who ask for events and never read them hold up nobody, and cost no memory.
#[test]
fn who_does_not_read_is_told_what_was_lost() {
    let lab = Lab::new(2, &["--workers=2"]);
    let bystanders = lab.bystanders();
    let before = lab.d.settled_usage();
    let mut deaf: Vec<Client> = (0..16).map(|_| lab.client()).collect();
    let method = format!("{INTERFACE}.Events");
    let call = json!({"method": method, "more": true, "parameters": {"since": 0}});
    deaf.iter_mut().for_each(|client| client.ask(&call));
    let mut client = lab.client();
    for n in 0..testkit::rounds(200, 1_500, 5_000) {
        let name = format!("x{n}");
        assert!(client.call("Add", json!({"name": name}))["error"].is_null());
        assert!(client.call("Delete", json!({"name": name}))["error"].is_null());
    }
    let last = client.call("GetStatus", json!({}))["parameters"]["events"].as_u64().unwrap();
    assert!(last > 400);
    // What they are told has no gap that they are not told of.
    let mut expected = 1;
    while expected <= last {
        let part = deaf[0].answer().expect("a part");
        expected += part["parameters"]["lost"].as_u64().unwrap_or(0);
        for event in part["parameters"]["events"].as_array().expect("events") {
            assert_eq!(event["sequence"], expected);
            expected += 1;
        }
    }
    drop((deaf, client));
    assert!(wait_for(LOST, || lab.client().count("connected") == 1));
    let now = lab.d.settled_usage();
    assert!(now.fds <= before.fds && now.threads <= before.threads, "{before:?} {now:?}");
    bystanders.finish();
    lab.d.stop();
}
