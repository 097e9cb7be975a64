//! A trace is what happens to the frame.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use testkit::SOON;
use testkit::vm::mac_of;

use super::tenant_keys::{ask, igmp};
use super::*;

const BROADCAST: [u8; 6] = [0xff; 6];

fn text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn frame(to: [u8; 6], from: [u8; 6], len: usize) -> Vec<u8> {
    let mut frame = vec![0; len];
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&from);
    frame
}

/// Drops by their reason, and frames out, of port `name`.
fn counts(lab: &Lab, name: &str) -> (Value, Value, u64) {
    let port = &lab.client().call("GetPort", json!({"name": name}))["parameters"]["port"];
    let out = port["out"]["frames"].as_u64().expect("a number");
    (port["in"]["drops"].clone(), port["out"]["drops"].clone(), out)
}

/// For all kinds of addresses and ports.
#[test]
fn a_trace_says_what_becomes_of_a_frame() {
    let lab = Lab::with_ports(&["", ",mtu=1000", ""], &[]);
    let mut vms = [0, 1].map(|id| Vm::connect(&lab.d.socket(id.into()), VmConfig::new(id)));
    let mut send = |from: usize, bytes: &[u8]| {
        assert!(vms[from].tx[0].send(bytes));
        vms[from].tx[0].drain(SOON);
        vms[1 - from].rx[0].take(64, Duration::ZERO);
    };
    send(1, &frame(BROADCAST, mac_of(1), 60));
    let reserved = [1, 0x80, 0xc2, 0, 0, 1];
    for (to, from, len, reason, reaches) in [
        (mac_of(1), mac_of(0), 98, "", true),
        (mac_of(1), mac_of(0), 1014, "", true),
        (mac_of(1), mac_of(0), 1015, "too_big", false),
        (BROADCAST, mac_of(0), 60, "port_down", true),
        (mac_of(7), mac_of(0), 60, "port_down", true),
        (mac_of(7), mac_of(0), 1500, "too_big", false),
        (mac_of(0), mac_of(0), 60, "hairpin", false),
        (reserved, mac_of(0), 60, "reserved", false),
        (mac_of(1), BROADCAST, 60, "bad_source", false),
        (mac_of(1), mac_of(8), 60, "", true),
    ] {
        let parameters = json!({
            "port": "p0", "src": text(from), "dst": text(to), "len": len,
        });
        let answer = lab.client().call("Trace", parameters);
        let told = &answer["parameters"];
        assert_eq!(told["reason"].as_str().unwrap_or(""), reason, "{told}");
        assert_eq!(told["ports"] == json!(["p1"]), reaches, "{told}");
        assert!(told["steps"].as_array().expect("steps").len() >= 2, "{told}");
        // Whom nobody takes frames for is not even asked: a flood passes it by.
        let dropped = |drops: &Value| drops[reason].as_u64().unwrap_or(0);
        let (came, p1) = (counts(&lab, "p0").0, counts(&lab, "p1"));
        send(0, &frame(to, from, len));
        let (came_after, p1_after) = (counts(&lab, "p0").0, counts(&lab, "p1"));
        assert_eq!(p1_after.2 - p1.2, u64::from(reaches), "{told}");
        if !reason.is_empty() && reason != "port_down" {
            let before = dropped(&came) + dropped(&p1.1);
            assert_eq!(dropped(&came_after) + dropped(&p1_after.1), before + 1, "{told}");
        }
    }
    let text =
        lab.done(&["trace", "p0", &format!("src={}", text(mac_of(0))), "dst=ff:ff:ff:ff:ff:ff"]);
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    assert_eq!(
        lines,
        [
            "in on 'p0'",
            "02:56:53:00:00:00 is known here",
            "ff:ff:ff:ff:ff:ff is a group's address: the frame is flooded",
            "out to 'p1'",
            "not to 'p2': no front-end is connected to it",
            "it reaches 'p1'",
        ]
    );
    for (args, status) in [
        (&["trace", "p0", "src=1", "dst=ff:ff:ff:ff:ff:ff"][..], 2),
        (&["trace", "p0", "source=02:00:00:00:00:01"], 2),
        (&["trace", "p0", "to=p0"], 2),
        (&["trace", "p0", "to=p9"], 1),
        (&["trace", "p9", "src=02:00:00:00:00:01", "dst=02:00:00:00:00:02"], 1),
    ] {
        assert_eq!(lab.fails(args).0, status, "{args:?}");
    }
}

/// A missing front-end, a silent guest, an MTU.
#[test]
fn why_finds_what_is_in_the_way() {
    let lab = Lab::with_ports(&["", ",mtu=1000"], &[]);
    let why = || super::findings::why(&lab, "p0", "p1");
    let found = why();
    assert_eq!(found.len(), 2, "{found:?}");
    let said = "p0: p1: nothing comes from 'p0': in on 'p0': no front-end is connected to it";
    assert!(found[0].starts_with(said), "{found:?}");

    let mut vms = [0, 1].map(|id| Vm::connect(&lab.d.socket(id.into()), VmConfig::new(id)));
    let found = why();
    assert!(found[1].contains("in on 'p1': its guest has sent no frame yet"), "{found:?}");

    for from in [0, 1u8] {
        let vm = &mut vms[usize::from(from)];
        assert!(vm.tx[0].send(&frame(BROADCAST, mac_of(from), 60)));
        vm.tx[0].drain(SOON);
    }
    let found = why();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("p0: p1: it does not reach 'p1'"), "{found:?}");
    let said = "not to 'p1': 1514 bytes are too long for an MTU of 1000";
    assert!(found[0].ends_with(said), "{found:?}");

    vms[0].tx[0].send(&frame(mac_of(1), mac_of(0), 1200));
    vms[0].tx[0].drain(SOON);
    let output = lab.ctl(&["why", "p0", "p1"]);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(text.contains("a frame of 1514 bytes from 'p0' to 'p1':\n  in on 'p0'\n"), "{text}");
    assert!(output.stderr.is_empty());
    // Without the limit there is nothing.
    lab.done(&["port", "add", "wide", &format!("socket={}", lab.socket("w").display())]);
    let mut wide = Vm::connect(&lab.socket("w"), VmConfig::new(5));
    assert!(wide.tx[0].send(&frame(BROADCAST, mac_of(5), 60)));
    wide.tx[0].drain(SOON);
    let text = lab.done(&["why", "p0", "wide"]);
    let first = text.lines().next().expect("a line");
    assert_eq!(first, "nothing in the switch is in the way between 'p0' and 'wide'", "{text}");
}

/// Where reports and queries of multicast go is traced if the frame is given.
#[test]
fn a_trace_of_a_frame_knows_what_snooping_does() {
    let lab = Lab::with_ports(&["", ",multicast-router=on", ""], &["--multicast-snooping"]);
    let mut vms = [0, 1, 2].map(|id| Vm::connect(&lab.d.socket(id.into()), VmConfig::new(id)));
    let trace = |port: &str, frame: &[u8]| {
        let frame = format!("frame={}", BASE64_STANDARD.encode(frame));
        lab.done(&["trace", port, &frame])
    };
    let report = igmp([239, 1, 1, 1], &[0x16, 0, 0, 0, 239, 1, 1, 1]);
    let query = igmp([224, 0, 0, 1], &[0x11, 0, 0, 0, 0, 0, 0, 0, 2, 125, 0, 0]);
    let told = trace("p0", &report);
    assert!(
        told.contains("the frame is a report of IGMP or MLD, which is for multicast"),
        "{told}"
    );
    assert!(told.contains("not to 'p2': no multicast router is there"), "{told}");
    assert!(told.ends_with("it reaches 'p1'\n"), "{told}");
    let told = trace("p0", &query);
    assert!(told.contains("'p0' with multicast-router=off sends a query"), "{told}");
    assert!(told.ends_with("it is dropped: querier\n"), "{told}");
    let hidden = [&[0xff; 6], &query[6..]].concat();
    let told = trace("p1", &hidden);
    assert!(told.contains("a message of IGMP or MLD is in fragments, malformed"), "{told}");
    assert!(told.ends_with("it is dropped: membership\n"), "{told}");
    ask(&mut vms[1]);
    assert!(trace("p1", &query).ends_with("it reaches 2 ports\n"));
    // A frame of the group itself, once hosts had the time to answer.
    let mut frame = igmp([239, 1, 1, 1], &[0; 30]);
    frame[23] = 17;
    let limited = || trace("p0", &frame).contains("group 239.1.1.1: members, routers");
    assert!(wait_for(SOON, limited), "{}", trace("p0", &frame));
    let told = trace("p0", &frame);
    assert!(told.contains("not to 'p2': it is no member of the group"), "{told}");
    lab.d.stop();
}

/// Of a reserved address a trace takes the protocol that it is mostly for.
#[test]
fn a_trace_says_which_port_does_not_pass_a_protocol() {
    let lab = Lab::with_ports(&["", "", ""], &[]);
    let vms = [0, 1, 2].map(|id| Vm::connect(&lab.d.socket(id.into()), VmConfig::new(id)));
    let src = format!("src={}", text(mac_of(0)));
    let trace =
        |last: &str| lab.done(&["trace", "p0", &src, &format!("dst=01:80:c2:00:00:{last}")]);
    let has = |told: &str, sentence: &str| assert!(told.contains(sentence), "{sentence}: {told}");
    let told = trace("0e");
    has(&told, "because of its address 01:80:c2:00:00:0e: 'p0' does not pass lldp");
    has(&told, "it is dropped: reserved");
    let changed = lab.done(&["port", "set", "p0", "pass=stp,lldp"]);
    assert_eq!(changed, "pass - -> lldp,stp  now\n");
    lab.done(&["port", "set", "p1", "pass=lldp"]);
    let told = trace("0e");
    has(&told, "the frame is flooded to the ports that pass its protocol");
    has(&told, "not to 'p2': it does not pass lldp");
    has(&told, "it reaches 'p1'");
    has(&trace("00"), "it is dropped: no_receiver");
    has(&trace("02"), "'p0' does not pass lacp");
    has(&trace("01"), "it is dropped: reserved");
    assert_eq!(lab.json(&["port", "show", "p1"])["port"]["pass"], json!("lldp"));
    let complaint = "pass must be some of lldp,lacp,stp, not 'pause'";
    let refused = lab.fails(&["port", "set", "p1", "pass=pause"]);
    assert!(refused.0 == 2 && refused.1.contains(complaint), "{refused:?}");
    lab.done(&["port", "set", "p0", "pass="]);
    has(&trace("0e"), "it is dropped: reserved");
    drop(vms);
    lab.d.stop();
}
