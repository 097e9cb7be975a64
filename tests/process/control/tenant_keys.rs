//! Every key of a tenant is in `port show`, has a sentence of `trace` and a series of the metrics:
//! frames are traced and sent between ports with the key, and counted as the trace says. A key that
//! is not here fails, too.

use std::collections::BTreeSet;

use api::config::{Effect, KEYS, Kind};
use testkit::vm::mac_of;

use super::*;

/// Keys of a port that are no tenant's.
const OTHERS: [&str; 4] = ["admin", "label", "mtu", "worker"];
const BROADCAST: [u8; 6] = [0xff; 6];
const PEER: [u8; 6] = [0x02, 0x56, 0x53, 0, 0, 1];
const UNKNOWN: [u8; 6] = [0x02, 0x56, 0x53, 0, 0, 77];
const LLDP: [u8; 6] = [1, 0x80, 0xc2, 0, 0, 14];
const GROUP: [u8; 6] = [1, 0, 0x5e, 1, 1, 1];
/// A query counts for ports that came some seconds before it, by whole seconds.
const ATTACHED: Duration = Duration::from_millis(2_100);

/// What port p0 sends, and what becomes of it.
struct Case {
    keys: &'static [&'static str],
    /// Keys of p0 and p1, and further arguments; p2 is a port of no keys.
    ports: [&'static str; 2],
    extra: &'static [&'static str],
    /// Port p0 has sent from this address before.
    before: Option<u8>,
    /// Where frames go, what is behind their addresses, and what a trace is given of that.
    dst: [u8; 6],
    rest: &'static [u8],
    given: &'static str,
    count: usize,
    sentence: &'static str,
    series: &'static str,
}

/// A frame to all.
const PLAIN: Case = Case {
    keys: &[],
    ports: ["", ""],
    extra: &[],
    before: None,
    dst: BROADCAST,
    rest: &[0x88, 0xb5],
    given: "",
    count: 1,
    sentence: "",
    series: "",
};

const TAGGED: Case = Case { rest: &[0x81, 0, 0, 20, 0x88, 0xb5], given: "vlan=20", ..PLAIN };

/// From 10.0.0.9 to 239.1.1.1.
const IP: &[u8] = &[8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 253, 0, 0, 10, 0, 0, 9, 239, 1, 1, 1];

const CASES: &[Case] = &[
    Case {
        keys: &["bridge"],
        ports: [",bridge=red", ""],
        sentence: "the frame is in bridge 'red'",
        series: r#"in_drops_total{port="p0",reason="no_receiver"} 1"#,
        ..PLAIN
    },
    Case {
        keys: &["vlan"],
        ports: [",vlan=10", ",vlan=20"],
        sentence: "'p0' has vlan=10: a frame with the tag of VLAN 20 does not pass",
        series: r#"in_drops_total{port="p0",reason="vlan"} 1"#,
        ..TAGGED
    },
    Case {
        keys: &["trunk"],
        ports: [",trunk=10", ""],
        sentence: "'p0' has trunk=10 and no native: a frame with the tag of VLAN 20 does not pass",
        series: r#"in_drops_total{port="p0",reason="vlan"} 1"#,
        ..TAGGED
    },
    Case {
        keys: &["native"],
        ports: [",trunk=10,native=30", ",bridge=default,vlan=30"],
        sentence: "the frame is in VLAN 30",
        series: r#"out_frames_total{port="p1"} 1"#,
        ..PLAIN
    },
    Case {
        keys: &["filter"],
        ports: [",filter=web", ""],
        extra: &["--filter=web,default-out=drop"],
        rest: IP,
        sentence: "the filters of 'p0' decide about IP packets",
        series: r#"in_drops_total{port="p0",reason="filter"} 1"#,
        ..PLAIN
    },
    Case {
        keys: &["isolated"],
        ports: [",isolated=on", ",isolated=on"],
        dst: PEER,
        sentence: "'p1' and 'p0' have isolated=on",
        series: r#"in_drops_total{port="p0",reason="isolated"} 1"#,
        ..PLAIN
    },
    Case {
        keys: &["learn"],
        ports: [",learn=off", ""],
        sentence: "is not learned here (learn=off)",
        series: r#"addresses{port="p0"} 0"#,
        ..PLAIN
    },
    Case {
        keys: &["flood"],
        ports: ["", ",flood=off"],
        dst: UNKNOWN,
        sentence: "not to 'p1': it has flood=off",
        series: r#"out_frames_total{port="p1"} 0"#,
        ..PLAIN
    },
    Case {
        keys: &["max-addresses"],
        ports: [",max-addresses=1", ""],
        before: Some(9),
        sentence: "the port has as many as it may (max-addresses)",
        series: r#"learn_refused_total{port="p0"} 1"#,
        ..PLAIN
    },
    Case {
        keys: &["mac"],
        ports: ["", ",mac=02:56:53:00:00:00"],
        sentence: "is configured on 'p1': not learned here, so answers go to that port",
        series: r#"learn_static_total{port="p0"} 1"#,
        ..PLAIN
    },
    Case {
        keys: &["guard", "allowed-macs"],
        ports: [",guard=on,allowed-macs=02:00:00:00:00:05", ""],
        sentence: "guard=on at 'p0': 02:56:53:00:00:00 is not allowed as a source address",
        series: r#"in_drops_total{port="p0",reason="guard"} 1"#,
        ..PLAIN
    },
    Case {
        keys: &["guard", "allowed-ips"],
        ports: [",guard=log,allowed-ips=10.0.0.5", ""],
        rest: IP,
        given: "ip=10.0.0.9",
        sentence: "guard=log at 'p0' counts the frame alone: 10.0.0.9 is not allowed as a source \
                   address",
        series: r#"guard_violations_total{port="p0",rule="ip"} 1"#,
        ..PLAIN
    },
    Case {
        keys: &["allow-server"],
        ports: [",guard=on,allow-server=dhcp,ra", ""],
        rest: IP,
        sentence: "the source addresses are allowed (guard=on, allow-server=dhcp,ra)",
        series: r#"out_frames_total{port="p1"} 1"#,
        ..PLAIN
    },
    Case {
        keys: &["ethertypes"],
        ports: [",guard=on,ethertypes=0x88b5", ""],
        sentence: "the source addresses are allowed (guard=on)",
        series: r#"out_frames_total{port="p1"} 1"#,
        ..PLAIN
    },
    Case {
        keys: &["rate-in", "burst-in"],
        ports: [",rate-in=8kbit,burst-in=1514byte", ""],
        sentence: "rate-in is 8kbit (bursts of 1514byte): frames beyond the rate wait",
        // One that waits is not waited for here: see `rates`.
        series: r#"rate_waits_total{port="p0"} 0"#,
        ..PLAIN
    },
    Case {
        keys: &["rate-out", "burst-out"],
        ports: ["", ",rate-out=8kbit,burst-out=1514byte"],
        count: 100,
        sentence: "out to 'p1', unless its rate-out of 8kbit (bursts of 1514byte) is used up \
                   (rate)",
        series: r#"out_drops_total{port="p1",reason="rate"} "#,
        ..PLAIN
    },
    Case {
        keys: &["storm"],
        ports: [",storm=bcast:1pps", ""],
        count: 100,
        sentence: "the storm limit is bcast:1pps: floods beyond the limit are dropped",
        series: r#"in_drops_total{port="p0",reason="storm"} "#,
        ..PLAIN
    },
    Case {
        keys: &["pass"],
        ports: [",pass=lacp", ""],
        dst: LLDP,
        rest: &[0x88, 0xcc],
        sentence: "'p0' does not pass lldp",
        series: r#"in_drops_total{port="p0",reason="reserved"} 1"#,
        ..PLAIN
    },
    Case {
        keys: &["multicast-router"],
        ports: ["", ",multicast-router=on"],
        extra: &["--multicast-snooping"],
        dst: GROUP,
        rest: IP,
        sentence: "group 239.1.1.1: members, routers, and ports not asked yet are 'p1'",
        series: r#"multicast_limited_total{port="p0"} 1"#,
        ..PLAIN
    },
    Case {
        keys: &["from", "to", "dir", "vlan", "snaplen"],
        extra: &["--mirror=m,from=p0,to=p2,dir=in,vlan=20,snaplen=64"],
        ports: [",trunk=20", ",trunk=20"],
        sentence: "mirror 'm' copies the frame to 'p2', if it is in VLAN 20, 64 bytes at most",
        series: r#"mirror_copies_total{mirror="m"} 1"#,
        ..TAGGED
    },
];

fn frame(dst: [u8; 6], src: [u8; 6], rest: &[u8]) -> Vec<u8> {
    let mut frame = [&dst[..], &src, rest].concat();
    frame.resize(60, 0);
    frame
}

fn send(vm: &mut Vm, frame: &[u8]) {
    vm.tx[0].send_waiting(frame, LOST);
    vm.tx[0].drain(LOST);
}

/// A message of IGMP about 239.1.1.1 or all groups: sums of both headers are what is left of ones.
pub fn igmp(to: [u8; 4], message: &[u8]) -> Vec<u8> {
    let sum = |bytes: &[u8]| {
        let words = bytes.chunks(2).map(|two| u32::from(u16::from_be_bytes([two[0], two[1]])));
        let sum: u32 = words.sum();
        (!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes()
    };
    let mut message = message.to_vec();
    let right = sum(&message);
    message[2..4].copy_from_slice(&right);
    let mut header = vec![0x45, 0, 0, 20 + message.len() as u8, 0, 0, 0, 0, 1, 2, 0, 0];
    header.extend([10, 0, 0, 1].iter().chain(&to));
    let right = sum(&header);
    header[10..12].copy_from_slice(&right);
    frame([1, 0, 0x5e, to[1], to[2], to[3]], PEER, &[&[8, 0][..], &header, &message].concat())
}

/// Port p1 asks who is a member, and is one itself.
pub fn ask(vm: &mut Vm) {
    std::thread::sleep(ATTACHED);
    send(vm, &igmp([224, 0, 0, 1], &[0x11, 0, 0, 0, 0, 0, 0, 0, 2, 125, 0, 0]));
    send(vm, &igmp([239, 1, 1, 1], &[0x16, 0, 0, 0, 239, 1, 1, 1]));
}

/// Whether a key with this value is anywhere in an answer.
fn shows(answer: &Value, key: &str, wanted: &str) -> bool {
    let is_it = |value: &Value| match value {
        Value::Array(all) => all.iter().any(|one| one == wanted),
        one => one.as_str().map_or_else(|| one.to_string(), str::to_owned) == wanted,
    };
    match answer {
        Value::Object(all) => {
            // Keys that are lists are together: {"key": …, "values": …}.
            let is_list = all.get("key").is_some_and(|name| *name == *key.replace('_', "-"));
            let is_named = |name: &str| name == key || is_list && name == "values";
            let mut all = all.iter();
            all.any(|(name, value)| is_named(name) && is_it(value) || shows(value, key, wanted))
        }
        Value::Array(all) => all.iter().any(|one| shows(one, key, wanted)),
        _ => false,
    }
}

fn check(case: &Case) {
    let lab = Lab::with_ports(&[case.ports[0], case.ports[1], ""], case.extra);
    let mut vms: Vec<Vm> =
        (0..3).map(|id| Vm::connect(&lab.d.socket(id.into()), VmConfig::new(id))).collect();
    // Where p1 is is known.
    send(&mut vms[1], &frame(BROADCAST, PEER, &[0x88, 0xb5]));
    if let Some(number) = case.before {
        send(&mut vms[0], &frame(BROADCAST, mac_of(number), &[0x88, 0xb5]));
    }
    if case.keys == ["multicast-router"] {
        ask(&mut vms[1]);
    }
    let text = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
    let (src, dst) = (format!("src={}", text(mac_of(0))), format!("dst={}", text(case.dst)));
    let words = ["trace", "p0", &src, &dst, case.given];
    let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
    // Not before hosts had the time to answer a query.
    let says = || lab.done(&words).contains(case.sentence);
    assert!(wait_for(LOST, says), "{:?}: {}", case.keys, lab.done(&words));
    for _ in 0..case.count {
        send(&mut vms[0], &frame(case.dst, mac_of(0), case.rest));
    }
    for (port, keys) in ["p0", "p1"].iter().zip(case.ports) {
        let shown = lab.json(&["port", "show", port]);
        for (key, value) in keys.split(',').filter_map(|word| word.split_once('=')) {
            assert!(shows(&shown, &key.replace('-', "_"), value), "{key}={value}: {shown}");
        }
    }
    let metrics = lab.done(&["metrics"]);
    let is_it = |line: &str| {
        let line = line.strip_prefix("vioswitch_").unwrap_or_default();
        line.strip_prefix("port_").unwrap_or(line).starts_with(case.series)
    };
    assert!(metrics.lines().any(is_it), "{:?}: {}\n{metrics}", case.keys, case.series);
    lab.d.stop();
}

#[test]
fn each_key_is_traced_and_counted() {
    let kinds = [Kind::Port, Kind::Tap, Kind::Stream, Kind::Mirror];
    let now = kinds.iter().flat_map(|kind| {
        KEYS.iter().filter(|key| key.kinds.contains(kind) && key.effect(*kind) == Effect::Now)
    });
    let all: BTreeSet<&str> = now.map(|key| key.name).collect();
    let all = &all - &OTHERS.into();
    let tried: BTreeSet<&str> = CASES.iter().flat_map(|case| case.keys).copied().collect();
    assert_eq!(all, tried);
    for cases in CASES.chunks(6) {
        std::thread::scope(|scope| cases.iter().for_each(|case| _ = scope.spawn(|| check(case))));
    }
}
