//! Rates of ports that serve: set while frames wait, shown, and what becomes of waiting frames when
//! their port goes, or its guest stops. Frames wait for 10 ms at most for a rate-out, so that all
//! beyond one as low as here are dropped.

use std::time::{Duration, Instant};

use serde_json::Value;
use testkit::proc::{Dir, wait_for};
use testkit::traffic::{self, Checker, Stream, To};
use testkit::vm::{Vm, VmConfig, mac_of};

use super::{LOST, Lab};

/// So many frames of a kilobyte are sent at once: a burst of 64 KiB, and some that wait. They are
/// so few that the switch sees all that is sent.
const FRAMES: u32 = 74;

/// Longer than a ring must have sent to one receiver alone before its frames may wait.
const ALONE: Duration = Duration::from_millis(15);

fn shown(lab: &Lab, name: &str) -> Value {
    lab.json(&["port", "show", name])["port"].clone()
}

/// Guests 2 and 3 at ports of these keys.
fn guests(lab: &Lab, keys: [&str; 2]) -> [Vm; 2] {
    [2, 3].map(|id| {
        let name = format!("vm{id}");
        let own: Vec<&str> = keys[usize::from(id) - 2].split_whitespace().collect();
        lab.done(&[&["port", "add", &name][..], &own].concat());
        let mut vm = Vm::connect(&lab.socket(&format!("{name}.sock")), VmConfig::new(id));
        let hello = [&[0xff; 6][..], &vm.mac(), &[0x88, 0xb5], &[0; 46]].concat();
        vm.tx[0].send_waiting(&hello, LOST);
        vm.tx[0].drain(LOST);
        vm
    })
}

fn stream() -> Stream {
    Stream { sender: 2, queue: 0, to: To::Vm(3), flow: 0 }
}

/// The receiver's books.
struct Books {
    checker: Checker,
    frames: u32,
    dropped: u32,
}

impl Books {
    /// Sends a frame, which makes the receiver the sender's only one, and all others at once; some
    /// pass, and others wait. The rate is one out of the switch if `out`.
    fn begin(from: &mut Vm, to: &mut Vm, out: bool) -> Books {
        let mut books = Books { checker: Checker::new(3, 1), frames: 0, dropped: 0 };
        let mut frame = Vec::new();
        for n in 0..FRAMES {
            traffic::build(&stream(), n, 1000, &mut frame);
            assert!(from.tx[0].queue(&frame));
            if n == 0 {
                from.tx[0].ring.publish();
                std::thread::sleep(ALONE);
            }
        }
        from.tx[0].ring.publish();
        assert!(wait_for(LOST, || books.receive(to) >= 60), "a burst passes at once");
        std::thread::sleep(Duration::from_millis(300));
        books.receive(to);
        from.tx[0].reclaim();
        let left = from.tx[0].ring.in_flight() as u32;
        books.dropped = FRAMES - books.frames - left;
        let (waiting, dropped) = if out { (0..=0, 4..=14) } else { (4..=14, 0..=0) };
        assert!(waiting.contains(&left) && dropped.contains(&books.dropped), "{left} wait");
        books
    }

    /// Takes what came; how many frames of the stream that makes so far.
    fn receive(&mut self, to: &mut Vm) -> u32 {
        to.rx[0].recv(1024, |_, frame| {
            if frame[6..12] == mac_of(stream().sender) {
                self.checker.accept(0, frame);
                self.frames += 1;
            }
        });
        self.frames
    }

    /// All frames that were not dropped come, in order.
    fn end(mut self, from: &mut Vm, to: &mut Vm) {
        let due = FRAMES - self.dropped;
        let all = wait_for(LOST, || self.receive(to) == due);
        assert!(all, "{} of {due} came", self.frames);
        from.tx[0].drain(LOST);
        if self.dropped == 0 {
            self.checker.complete(&stream(), FRAMES.into());
        }
    }
}

#[test]
fn a_rate_is_changed_while_frames_wait_for_it() {
    let lab = Lab::new(0, &[]);
    for (key, who) in [("rate-in", "vm2"), ("rate-out", "vm3")] {
        let keys = [("vm2", "rate-in"), ("vm3", "rate-out")]
            .map(|of| if of == (who, key) { format!("{key}=8kbit") } else { String::new() });
        let [mut from, mut to] = guests(&lab, [&keys[0], &keys[1]]);
        assert_eq!(shown(&lab, who)[key.replace('-', "_")], "8kbit");
        assert!(lab.done(&["port", "show", who]).contains("8kbit"));
        let books = Books::begin(&mut from, &mut to, key == "rate-out");
        let path = ["trace", "vm2", "src=02:56:53:00:00:02", "dst=02:56:53:00:00:03"];
        let told = lab.done(&path);
        assert!(told.contains(&format!("{key} ")) && told.contains("8kbit"), "{told}");
        if key == "rate-in" {
            let waits = lab.json(&["port", "show", who]).to_string();
            assert!(waits.contains("rate_waits"), "{waits}");
        }
        let changed = lab.done(&["port", "set", who, &format!("{key}=")]);
        assert_eq!(changed, format!("{key} 8kbit -> -  now\n"));
        books.end(&mut from, &mut to);
        drop((from, to));
        lab.done(&["port", "del", "vm2"]);
        lab.done(&["port", "del", "vm3"]);
    }
    lab.d.counters().balance();
    lab.d.stop();
}

#[test]
fn ports_go_while_frames_wait_for_a_rate() {
    let lab = Lab::new(2, &[]);
    let bystanders = lab.bystanders();
    for (keys, goes) in [
        (["rate-in=8kbit", ""], "vm2"),
        (["", "rate-out=8kbit"], "vm3"),
        (["rate-in=8kbit", ""], "vm3"),
        (["", "rate-out=8kbit"], "vm2"),
    ] {
        let [mut from, mut to] = guests(&lab, keys);
        drop(Books::begin(&mut from, &mut to, keys[0].is_empty()));
        let start = Instant::now();
        lab.done(&["port", "del", goes]);
        assert!(start.elapsed() < Duration::from_secs(5), "{keys:?} {goes}");
        if goes == "vm3" && !keys[1].is_empty() {
            // Nothing holds them back any more.
            from.tx[0].drain(LOST);
        }
        drop((from, to));
        let stays = if goes == "vm2" { "vm3" } else { "vm2" };
        lab.done(&["port", "del", stays]);
    }
    bystanders.finish();
    lab.d.stop();
}

/// Its rings are given back at once, and what waited there goes on with the next start.
#[test]
fn a_guest_stops_while_its_frames_wait_for_a_rate() {
    let lab = Lab::new(0, &[]);
    for keys in [["rate-in=8kbit", ""], ["", "rate-out=8kbit"]] {
        let [mut from, mut to] = guests(&lab, keys);
        let books = Books::begin(&mut from, &mut to, keys[0].is_empty());
        let start = Instant::now();
        from.stop();
        assert!(start.elapsed() < Duration::from_secs(2), "{keys:?}: {:?}", start.elapsed());
        lab.done(&["port", "set", "vm2", "rate-in="]);
        lab.done(&["port", "set", "vm3", "rate-out="]);
        from.start();
        books.end(&mut from, &mut to);
        drop((from, to));
        lab.done(&["port", "del", "vm2"]);
        lab.done(&["port", "del", "vm3"]);
    }
    lab.d.counters().balance();
    lab.d.stop();
}

/// Disabled and enabled again, as cloud-hypervisor pauses and resumes.
#[test]
fn a_ring_is_disabled_while_its_frames_wait_for_a_rate() {
    let lab = Lab::new(0, &[]);
    let [mut from, mut to] = guests(&lab, ["rate-in=8kbit", ""]);
    let books = Books::begin(&mut from, &mut to, false);
    let ring = from.tx[0].ring.index;
    let start = Instant::now();
    from.fe.set_vring_enable(ring, false).expect("disable");
    from.settle();
    assert!(start.elapsed() < Duration::from_millis(400), "{:?}", start.elapsed());
    from.fe.set_vring_enable(ring, true).expect("enable");
    from.settle();
    lab.done(&["port", "set", "vm2", "rate-in="]);
    books.end(&mut from, &mut to);
    drop((from, to));
    lab.d.counters().balance();
    lab.d.stop();
}

/// Set at run time, shown, traced, counted where drops are, and taken away again.
#[test]
fn a_storm_limit_is_seen_and_changed() {
    let lab = Lab::new(2, &[]);
    let mut vms = [0, 1].map(|id| Vm::connect(&lab.d.socket(id.into()), VmConfig::new(id)));
    let mut storm = |count: u32| {
        let frame = [&[0xff; 6][..], &mac_of(0), &[0x88, 0xb5], &[0; 46]].concat();
        for _ in 0..count {
            vms[0].tx[0].send_waiting(&frame, LOST);
            vms[0].tx[0].drain(LOST);
            vms[1].rx[0].recv(64, |_, _| {});
        }
    };
    let path = ["trace", "p0", "src=02:56:53:00:00:00", "dst=ff:ff:ff:ff:ff:ff"];
    storm(500);
    assert!(!lab.done(&path).contains("storm"));
    let changed = lab.done(&["port", "set", "p0", "storm=mcast:1kpps,bcast:1pps"]);
    assert_eq!(changed, "storm - -> bcast:1pps,mcast:1kpps  now\n");
    assert!(lab.done(&["port", "show", "p0"]).contains("bcast:1pps,mcast:1kpps"));
    let told = lab.done(&path);
    assert!(told.contains("the storm limit is bcast:1pps: floods beyond"), "{told}");
    storm(500);
    let dropped = lab.d.counters().get("p0", "in drop.storm");
    assert!((400..=436).contains(&dropped), "{dropped}");
    assert!(lab.done(&["drops", "p0"]).contains("storm"));
    lab.done(&["port", "set", "p0", "storm="]);
    storm(500);
    assert_eq!(lab.d.counters().get("p0", "in drop.storm"), dropped);
    drop(vms);
    lab.d.counters().balance();
    lab.d.stop();
}

#[test]
fn what_is_no_rate_is_refused_with_its_key() {
    let lab = Lab::new(1, &[]);
    for (word, key) in [
        ("rate-in=10", "did you mean rate-in=10mbit? (units: pps, kpps, mpps, bit,"),
        ("rate-out=1kbit", "rate-out must be from 8kbit to 1000gbit"),
        ("burst-in=100", "burst-in must be a size with its unit, such as 64kib"),
        ("storm=bcast:100", "did you mean storm=bcast:100mbit?"),
        ("storm=1kpps", "storm must be CLASS:RATE with classes bcast, mcast, unknown"),
    ] {
        let (status, line) = lab.fails(&["port", "set", "p0", word]);
        assert!(status == 2 && line.contains(key), "{status} {line}");
    }
    let dir = Dir::new();
    let socket = dir.path().join("s").display().to_string();
    let port = format!("--port=a,socket={socket},rate-in=10");
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_vioswitchd")).arg(port).output();
    let output = output.expect("vioswitchd");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("did you mean rate-in=10mbit?"), "{said}");
    lab.d.stop();
}
