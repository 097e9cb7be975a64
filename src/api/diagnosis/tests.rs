//! Each fault of a healthy switch is found by its own code, and by no other code.

use super::facts::{Addresses, Bridge, Degraded, Link, LinkState, Odd, Offloads, Port};
use super::facts::{Recent, Refused, Segment};
use super::history::{Counts, Sender};
use super::*;
use base::frame::MacAddr;
use base::stats::DropReason;

fn mac() -> MacAddr {
    MacAddr([0x52, 0x54, 0, 0, 0, 1])
}

fn guest(name: &str) -> Port {
    // Counts of a healthy switch.
    let counted = Counts { out: 100_000, no_room: 99, moves: 2, ..Counts::default() };
    Port {
        name: name.to_owned(),
        mtu: Some(1500),
        addresses: Addresses { count: 1, ..Addresses::default() },
        offloads: Offloads { frames: 100_000, checksummed: 999, ..Offloads::default() },
        counts: Recent { moment: counted, minute: counted, lately: counted },
        senders: vec![Sender { port: "vm2".to_owned(), frames: 99 }],
        ..Port::default()
    }
}

fn uplink(name: &str, bridge: u32) -> Port {
    let interface = format!("{name}0");
    let bridge = Some(Bridge { index: bridge, name: format!("br{bridge}") });
    Port {
        link: Some(Link { interface, is_tap: true, state: LinkState::Up, bridge }),
        ..guest(name)
    }
}

/// Ports 0 and 1 are guests, 2 and 3 uplinks.
fn healthy() -> Facts {
    let ports = vec![guest("vm1"), guest("vm2"), uplink("up", 1), uplink("away", 2)];
    Facts { ports, addresses: 9, ..Facts::default() }
}

fn vlan(is_shared: bool, is_cut_off: bool) -> Segment {
    Segment { name: "VLAN 10 of bridge 'blue'".to_owned(), is_shared, is_cut_off }
}

type Fault = (&'static str, fn(&mut Facts));

const FAULTS: [Fault; 27] = [
    ("degraded", |facts| {
        let why = "port vm2: in use".to_owned();
        let port = Some("vm2".to_owned());
        facts.condition.degraded.push(Degraded { code: "degraded", port, why });
    }),
    ("kept-without-effect", |facts| {
        let [port, cause] = ["vm2", "no effect"].map(str::to_owned);
        let command = "vioswitchctl port reset vm2".to_owned();
        facts.condition.unused.push(Odd { port, with: Vec::new(), cause, command });
    }),
    ("ring-broken", |facts| facts.ports[0].guest.broken = vec![0, 3]),
    ("receiver-overloaded", |facts| facts.ports[0].counts.moment.no_room = 6_000),
    ("receiver-overloaded", |facts| facts.ports[2].counts.moment.no_room = 6_000),
    ("frames-too-long", |facts| facts.ports[1].counts.lately.too_big = 1),
    ("offloads-in-software", |facts| facts.ports[0].offloads.segmented = 1),
    ("fdb-full", |facts| facts.ports[0].counts.lately.learn_refused = 1),
    ("fdb-full", |facts| facts.ports[2].counts.lately.learn_refused = 1),
    ("address-of-another", |facts| {
        facts.ports[0].counts.minute.learn_static = 1;
        facts.ports[0].addresses.foreign = Some((mac(), "vm2".to_owned()));
    }),
    ("port-alone", |facts| facts.ports[0].segment = Some(vlan(false, true))),
    ("vlan-without-uplink", |facts| {
        for port in [0, 1] {
            facts.ports[port].segment = Some(vlan(true, true));
        }
    }),
    ("address-moving", |facts| {
        for (at, from) in [(0, "vm2"), (1, "vm1")] {
            facts.ports[at].counts.minute.moves = 3;
            facts.ports[at].addresses.moved = Some((mac(), from.to_owned()));
        }
    }),
    ("tap-gone", |facts| state(facts, LinkState::Gone)),
    ("tap-down", |facts| state(facts, LinkState::Down)),
    ("uplinks-in-one-bridge", |facts| facts.ports[3] = uplink("away", 1)),
    ("uplinks-in-one-bridge", |facts| {
        facts.uplink_to_uplink = true;
        facts.ports[3] = uplink("away", 1);
    }),
    ("port-disabled", |facts| facts.ports[0].is_disabled = true),
    ("address-moving", |facts| {
        for (at, from) in [(0, "vm2"), (1, "vm1")] {
            facts.ports[at].counts.minute.moves = 3;
            facts.ports[at].addresses.moved = Some((mac(), from.to_owned()));
        }
        facts.ports[1].counts.minute.learn_held = 1;
        facts.ports[1].addresses.held = Some((mac(), "vm1".to_owned(), true));
    }),
    ("memory-not-shared", |facts| facts.ports[0].guest.memory_faults.missing = true),
    ("memory-not-shared", |facts| {
        (
            facts.ports[0].guest.memory_faults.missing,
            facts.ports[0].guest.memory_faults.all_on_disk,
        ) = (true, true);
    }),
    ("memory-on-disk", |facts| {
        (facts.ports[0].guest.memory_faults.on_disk, facts.ports[0].guest.memory_faults.outside) =
            (1 << 30, 9);
    }),
    ("memory-partly-shared", |facts| facts.ports[0].guest.memory_faults.outside = 7),
    ("memory-partly-shared", |facts| facts.ports[0].counts.lately.bad_buffers = 1),
    ("frames-refused", |facts| {
        let violation = Some("10.0.0.9 is not allowed as a source address".to_owned());
        let reason = DropReason::Guard;
        facts.ports[1].refused = Some(Refused { reason, frames: 3, violation });
    }),
    ("settings-at-odds", |facts| {
        let cause = "burst-in has no effect without rate-in".to_owned();
        let command = "vioswitchctl port set vm1 burst-in=".to_owned();
        let with = vec!["vm2".to_owned()];
        facts.condition.odd.push(Odd { port: "vm1".to_owned(), with, cause, command });
    }),
    ("sandbox-refused", |facts| {
        facts.condition.refused_calls = vec![("swapon".to_owned(), 3)];
    }),
];

fn state(facts: &mut Facts, state: LinkState) {
    facts.ports[2].link.as_mut().expect("an uplink").state = state;
}

fn found(fault: fn(&mut Facts)) -> Vec<Finding> {
    let mut facts = healthy();
    fault(&mut facts);
    judge(&facts)
}

#[test]
fn a_healthy_switch_has_no_finding() {
    assert_eq!(judge(&healthy()), []);
}

#[test]
fn each_fault_is_found_by_its_own_code() {
    for (code, fault) in FAULTS {
        let found = found(fault);
        assert_eq!(found.len(), 1, "{code}: {found:?}");
        let Finding { code: told, cause, command, .. } = &found[0];
        assert!(*told == code && !cause.is_empty() && !command.is_empty(), "{found:?}");
    }
    for Code { name, .. } in CODES {
        assert!(FAULTS.iter().any(|(code, _)| code == name), "no fault is {name}");
        assert_eq!(CODES.iter().filter(|code| code.name == *name).count(), 1, "{name}");
    }
}

/// The kernel permits nearly all characters in the name of an interface.
#[test]
fn the_name_of_an_interface_is_never_a_command() {
    let commands = |state| {
        let mut facts = healthy();
        let link = facts.ports[2].link.as_mut().expect("an uplink");
        (link.interface, link.state) = (";reboot;".to_owned(), state);
        judge(&facts)[0].command.clone()
    };
    assert_eq!(commands(LinkState::Down), "ip link set ';reboot;' up");
    let made = commands(LinkState::Gone);
    assert!(made.starts_with("ip tuntap add dev ';reboot;' mode tap"), "{made}");
    assert!(made.ends_with("&& ip link set ';reboot;' up"), "{made}");
}

#[test]
fn a_finding_names_those_it_is_about() {
    let cause = |at: usize| found(FAULTS[at].1)[0].cause.clone();
    assert!(cause(3).contains("5 % of the frames for the port"), "{}", cause(3));
    assert!(cause(3).contains("100 % from 'vm2'"), "{}", cause(3));
    let moving = &found(FAULTS[12].1)[0];
    assert_eq!((moving.port.as_deref(), &moving.with[..]), (Some("vm1"), &["vm2".to_owned()][..]));
    assert!(moving.cause.contains("6 moves") && moving.cause.contains("52:54:00:00:00:01"));
    let held = &found(FAULTS[18].1)[0];
    assert_eq!((held.port.as_deref(), &held.with[..]), (Some("vm2"), &["vm1".to_owned()][..]));
    assert!(held.cause.contains("it is held at 'vm1' now"), "{held:?}");
    let foreign = &found(FAULTS[9].1)[0];
    assert!(foreign.cause.contains("52:54:00:00:00:01, a static address of 'vm2'"), "{foreign:?}");
    let (bridge, looped) = (&found(FAULTS[15].1)[0], &found(FAULTS[16].1)[0]);
    assert!(bridge.cause.contains("up0 and away0 are in one bridge, br1"), "{bridge:?}");
    assert_eq!((bridge.level, looped.level), (Level::Warn, Level::Fail));
    let cut_off = &found(FAULTS[11].1)[0];
    let said = (cut_off.port.as_deref(), &cut_off.with[..]);
    assert_eq!(said, (Some("vm1"), &["vm2".to_owned()][..]), "{cut_off:?}");
    let refused = &found(FAULTS[24].1)[0];
    assert!(refused.cause.contains("the switch dropped 3 frames lately (guard)"), "{refused:?}");
    assert!(
        refused.cause.ends_with("the last one: 10.0.0.9 is not allowed as a source address"),
        "{refused:?}"
    );
    assert!(refused.command.ends_with("vioswitchctl port show vm2"), "{refused:?}");
    let (none, disk) = (&found(FAULTS[19].1)[0], &found(FAULTS[20].1)[0]);
    assert!(none.cause.contains("shares no memory") && disk.cause.contains("on a disk"));
    let full = found(|facts| {
        facts.ports[1].counts.lately.learn_refused = 7;
        (facts.ports[2].addresses.count, facts.addresses) = (65_000, 65_536);
    });
    assert!(full[0].cause.contains("most of them behind 'up', 65000"), "{full:?}");
    let full = found(|facts| {
        facts.ports[1].counts.lately.learn_refused = 7;
        (facts.ports[1].addresses.count, facts.ports[1].addresses.is_full) = (4096, true);
    });
    assert!(full[0].cause.contains("has reached its limit, 4096"), "{full:?}");
}

#[test]
fn one_thing_is_singular() {
    let faults: [Fault; 4] = [
        ("cut 1 packet into 1 segment and finished 1000 checksums", |facts| {
            let all = Offloads { frames: 1001, segmented: 1, segments: 1, checksummed: 1000 };
            facts.ports[0].offloads = all;
        }),
        ("1 frame was too long", |facts| facts.ports[1].counts.lately.too_big = 1),
        ("dropped 1 frame lately", |facts| {
            let reason = DropReason::Guard;
            facts.ports[1].refused = Some(Refused { reason, frames: 1, violation: None });
        }),
        ("1 buffer of its guest", |facts| facts.ports[0].guest.memory_faults.outside = 1),
    ];
    for (words, fault) in faults {
        assert!(found(fault).iter().any(|one| one.cause.contains(words)), "{words}");
    }
}

/// A state that only looks like a fault has no finding.
#[test]
fn what_is_no_fault_is_no_finding() {
    let harmless: [fn(&mut Facts); 7] = [
        |facts| facts.ports[0].segment = Some(vlan(true, false)),
        // All addresses behind an uplink move to the other uplink, once.
        |facts| {
            facts.ports[3].counts.minute.moves = 4_000;
            facts.ports[3].addresses.moved = Some((mac(), "up".to_owned()));
        },
        // A guest migrates there and back.
        |facts| {
            for (at, from) in [(0, "up"), (2, "vm1")] {
                facts.ports[at].addresses.moved = Some((mac(), from.to_owned()));
            }
        },
        // Some of a million.
        |facts| {
            facts.ports[0].counts.moment =
                Counts { out: 1_000_000, no_room: 5_000, ..healthy_counts() }
        },
        // An address that was static at another port when it was seen, and is not static any more.
        |facts| facts.ports[0].counts.minute.learn_static = 1,
        // The interface is down: no frame returns through it.
        |facts| {
            facts.ports[3] = uplink("away", 1);
            facts.ports[3].link = None;
        },
        |facts| facts.ports[0].addresses.moved = Some((mac(), "vm1".to_owned())),
    ];
    for (n, change) in harmless.into_iter().enumerate() {
        assert_eq!(found(change), [], "{n}");
    }
}

fn healthy_counts() -> Counts {
    guest("").counts.moment
}

#[test]
fn the_worst_comes_first_and_there_is_an_end() {
    let all = found(|facts| {
        facts.ports = (0..300).map(|n| guest(&format!("p{n}"))).collect();
        facts.ports.iter_mut().for_each(|port| port.counts.lately.too_big = 1);
        facts.ports[299].guest.broken = vec![1];
    });
    assert_eq!((all[0].code, all[1].code, all.len()), ("ring-broken", "frames-too-long", 256));
}
