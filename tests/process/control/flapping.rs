//! An address that flaps stays with the port that had it first, and says so wherever it is looked
//! for.

use base::limits::FDB_HOLD_SECONDS;
use testkit::SOON;
use testkit::vm::mac_of;

use super::*;

fn text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn send(vm: &mut Vm, to: [u8; 6], from: [u8; 6]) {
    let mut frame = vec![0; 60];
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&from);
    assert!(vm.tx[0].send(&frame));
    vm.tx[0].drain(SOON);
}

/// How many frames a guest has got.
fn got(vm: &mut Vm) -> usize {
    vm.rx[0].take(64, Duration::from_millis(50)).len()
}

#[test]
fn an_address_that_flaps_is_held_and_named_with_both_ports() {
    let lab = Lab::new(3, &[]);
    let mut vms = [0, 1, 2].map(|id| Vm::connect(&lab.d.socket(id.into()), VmConfig::new(id)));
    let (victim, asker) = (mac_of(0), mac_of(2));
    send(&mut vms[2], [0xff; 6], asker);
    // The attacker answers each of its frames with one from its address, and has the last word.
    for _ in 0..20 {
        send(&mut vms[0], asker, victim);
        send(&mut vms[1], asker, victim);
    }
    vms.iter_mut().for_each(|vm| _ = got(vm));
    let shown = lab.json(&["fdb", "show", "p0"]);
    let entry = shown["addresses"].as_array().expect("addresses").iter();
    let entry = entry.clone().find(|one| one["mac"] == text(victim)).expect("an entry");
    assert_eq!((&entry["port"], &entry["held"]), (&json!("p0"), &json!(true)), "{entry}");
    assert!(lab.done(&["fdb", "show"]).contains(" s held"));

    // Answers reach the victim; the attacker's frames pass all the same.
    send(&mut vms[2], victim, asker);
    assert_eq!([0, 1].map(|at| got(&mut vms[at])), [1, 0]);
    send(&mut vms[1], asker, victim);
    assert_eq!(got(&mut vms[2]), 1);
    let addresses = [format!("src={}", text(victim)), format!("dst={}", text(asker))];
    let mut trace = String::new();
    let is_held = || {
        // It is held while the victim sends.
        send(&mut vms[0], asker, victim);
        trace = lab.done(&["trace", "p1", &addresses[0], &addresses[1]]);
        trace.contains("flaps between ports, and is held on 'p0' for a while")
    };
    assert!(wait_for(SOON, is_held), "{trace}");
    assert!(trace.contains("it reaches 'p2'"), "{trace}");

    let held = lab.event("mac_held");
    let told = ["port", "mac", "at"].map(|key| held[key].as_str().unwrap_or("").to_owned());
    assert_eq!(told, ["p1".to_owned(), text(victim), "p0".to_owned()], "{held}");
    let count = lab.json(&["port", "show", "p1"])["learn_held"].as_u64().expect("a number");
    assert!(count >= 10, "{count}");
    let metrics = lab.done(&["metrics"]);
    let series = "vioswitch_port_learn_held_total{port=\"p1\"}";
    assert!(metrics.lines().any(|line| line.starts_with(series)), "{metrics}");

    // Then it is learned as any other; the event comes once.
    std::thread::sleep(Duration::from_secs(u64::from(FDB_HOLD_SECONDS) + 1));
    send(&mut vms[1], asker, victim);
    send(&mut vms[2], victim, asker);
    assert_eq!([0, 1].map(|at| got(&mut vms[at])), [0, 1]);
    let events = lab.events();
    let events = events.iter().filter(|event| event["kind"] == "mac_held").count();
    assert!(events <= 2, "{events}");
    lab.d.stop();
}

/// The administrator's word ends a hold.
#[test]
fn what_is_flushed_or_static_is_held_no_longer() {
    let lab = Lab::new(2, &[]);
    let mut vms = [0, 1].map(|id| Vm::connect(&lab.d.socket(id.into()), VmConfig::new(id)));
    let at = |lab: &Lab| {
        let shown = lab.json(&["fdb", "show"]);
        let all = shown["addresses"].as_array().expect("addresses");
        let one = all.iter().find(|one| one["mac"] == text(mac_of(9))).expect("an entry");
        (one["port"].as_str().expect("a port").to_owned(), one["held"] == true)
    };
    let flap = |vms: &mut [Vm; 2]| {
        for n in 0..40 {
            send(&mut vms[n % 2], [0xff; 6], mac_of(9));
        }
    };
    flap(&mut vms);
    assert_eq!(at(&lab), ("p0".to_owned(), true));
    lab.done(&["fdb", "flush"]);
    send(&mut vms[1], [0xff; 6], mac_of(9));
    assert_eq!(at(&lab), ("p1".to_owned(), false));
    flap(&mut vms);
    assert_eq!(at(&lab), ("p1".to_owned(), true));
    lab.done(&["fdb", "add", &text(mac_of(9)), "p0"]);
    assert_eq!(at(&lab), ("p0".to_owned(), false));
    lab.d.stop();
}

/// Both send from these addresses until all are held at the first port; then the second one sends
/// alone, or both do. How long until the first of them is at the second port, if that comes before
/// the hold would end by itself.
fn until_followed(count: u8, both: bool) -> Option<Duration> {
    let lab = Lab::new(2, &[]);
    let mut vms = [0, 1].map(|id| Vm::connect(&lab.d.socket(id.into()), VmConfig::new(id)));
    let macs: Vec<[u8; 6]> = (0..count).map(|n| [2, 0x77, 0, 0, 0, n]).collect();
    let at = |port: &str, held: bool| {
        let shown = lab.json(&["fdb", "show", port]);
        let all = shown["addresses"].as_array().expect("addresses").iter();
        let all = all.filter(|one| macs.iter().any(|mac| one["mac"] == text(*mac)));
        all.filter(|one| !held || one["held"] == true).count()
    };
    let mut round = |who: &[usize]| {
        for mac in &macs {
            who.iter().for_each(|n| send(&mut vms[*n], [0xff; 6], *mac));
        }
        who.iter().for_each(|n| _ = vms[*n].rx[0].take(256, Duration::ZERO));
    };
    let held = || {
        (0..10).for_each(|_| round(&[0, 1]));
        at("p0", true) == macs.len()
    };
    assert!(wait_for(SOON, held), "{}", lab.done(&["fdb", "show"]));
    let begun = std::time::Instant::now();
    let mut seen = None;
    while seen.is_none() && begun.elapsed() < Duration::from_secs(u64::from(FDB_HOLD_SECONDS) / 2) {
        round(if both { &[0, 1] } else { &[1] });
        std::thread::sleep(Duration::from_millis(50));
        seen = (at("p1", false) == macs.len()).then(|| begun.elapsed());
    }
    lab.d.stop();
    seen
}

#[test]
fn an_address_follows_once_the_port_that_has_it_is_silent() {
    for count in [1, 20] {
        let followed = until_followed(count, false).expect("half of a hold is long enough");
        println!("{count} after {followed:?}");
        assert!(followed >= Duration::from_millis(950), "it is held for a second: {followed:?}");
    }
    assert_eq!(until_followed(1, true), None, "both send");
}

#[test]
fn without_damping_no_address_is_held() {
    let lab = Lab::new(2, &["--mac-flap-damping=false"]);
    let mut vms = [0, 1].map(|id| Vm::connect(&lab.d.socket(id.into()), VmConfig::new(id)));
    for n in 0..40 {
        send(&mut vms[n % 2], [0xff; 6], mac_of(9));
    }
    let shown = lab.json(&["fdb", "show", "p1"]);
    let entry = shown["addresses"].as_array().expect("addresses").iter();
    let entry = entry.clone().find(|one| one["mac"] == text(mac_of(9))).expect("an entry");
    assert!(entry.get("held").is_none(), "{entry}");
    assert_eq!(lab.d.counters().get("p0", "learn_held"), 0);
    lab.d.stop();
}
