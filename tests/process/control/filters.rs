//! Filters, groups and connections as objects: added, shown, changed, refused, deleted; kept for
//! the next process and beside a file; counted by rule; and a port's filter while frames pass.

use std::fs;

use base::limits::{CONNECTION_SWEEP_PAUSE, MAX_FILTER_BYTES, MAX_FILTER_RULES};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;
use testkit::proc::{Dir, wait_for};
use testkit::vm::{Vm, VmConfig};

use super::kept::Kept;
use super::reload::Filed;
use super::{LOST, Lab};

/// A datagram of UDP from 10.0.0.FROM to 10.0.0.TO.
fn datagram(from: &Vm, to: &Vm, ends: [u8; 2], ports: [u16; 2]) -> Vec<u8> {
    let mut frame = [&to.mac()[..], &from.mac(), &[8, 0]].concat();
    let mut ip = vec![0x45, 0, 0, 28, 0, 1, 0, 0, 64, 17, 0, 0];
    ends.iter().for_each(|end| ip.extend([10, 0, 0, *end]));
    let words = ip.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    frame.extend(ip);
    ports.iter().for_each(|port| frame.extend(port.to_be_bytes()));
    frame.extend([0, 8, 0, 0]);
    frame.resize(60, 0);
    frame
}

/// Whether a frame of one VM reaches the other.
pub(super) fn passes(vms: &mut [Vm], from: usize, to: usize, frame: &[u8]) -> bool {
    vms[from].tx[0].send_waiting(frame, LOST);
    vms[from].tx[0].drain(LOST);
    std::thread::sleep(std::time::Duration::from_millis(30));
    vms[to].rx[0].recv(9, |_, got| assert_eq!(got, frame)) == 1
}

fn connect(lab: &Lab) -> Vec<Vm> {
    let mut vms: Vec<Vm> =
        (0..2).map(|id| Vm::connect(&lab.d.socket(id.into()), VmConfig::new(id))).collect();
    for (from, to) in [(0, 1), (1, 0)] {
        let hello = [&vms[to].mac()[..], &vms[from].mac(), &[0x88, 0xb5], &[7; 46]].concat();
        passes(&mut vms, from, to, &hello);
    }
    vms
}

fn rows(table: &str) -> Vec<Vec<String>> {
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
    table.lines().skip(1).map(words).collect()
}

#[test]
fn a_filter_is_added_shown_changed_and_deleted_while_frames_pass() {
    let lab = Lab::new(2, &[]);
    let mut vms = connect(&lab);
    let [dns, web] = [53, 80].map(|port| datagram(&vms[0], &vms[1], [1, 2], [4000, port]));
    assert!(passes(&mut vms, 0, 1, &dns) && passes(&mut vms, 0, 1, &web));
    lab.done(&["group", "add", "peers", "addresses=10.0.0.1,fd00::/64"]);
    let rules = "rules=in accept udp from group:peers to port 53";
    lab.done(&["filter", "add", "web", "default-in=drop", rules, "rules=in accept icmp"]);
    lab.done(&["port", "set", "p1", "filter=web"]);
    assert!(passes(&mut vms, 0, 1, &dns) && !passes(&mut vms, 0, 1, &web));
    let filter = &rows(&lab.done(&["filter", "list"]))[0];
    assert_eq!(filter.join(" "), "web drop - 2 p1 transient");
    let group = &rows(&lab.done(&["group", "list"]))[0];
    assert_eq!(group.join(" "), "peers 2 - web transient");
    let told = lab.done(&["filter", "show", "web"]);
    assert!(told.contains("1            in accept udp from group:peers to port 53\n"), "{told}");
    let told = lab.done(&["filter", "show", "web", "--counters"]);
    let counted = told.lines().find(|line| line.starts_with("1 ")).expect("a rule");
    assert!(counted.split_whitespace().rev().take(3).eq(["1", "60", "1"]), "{told}");
    let metrics = lab.done(&["metrics"]);
    for line in [
        "\nvioswitch_port_connections{port=\"p1\"} 1\n",
        "\nvioswitch_filter_refused_total{filter=\"web\",rule=\"default-in\"} 1\n",
    ] {
        assert!(metrics.contains(line), "{line}{metrics}");
    }
    assert!(!metrics.contains("vioswitch_port_connections{port=\"p0\"}"), "{metrics}");
    let dropped = told.lines().find(|line| line.starts_with("default-in")).expect("a default");
    assert!(dropped.split_whitespace().rev().take(3).eq(["0", "60", "1"]), "{told}");
    // The running filter stays when a change is wrong.
    let wrong = ["filter", "set", "web", "rules=in acept udp to port 80"];
    let (status, line) = lab.fails(&wrong);
    let wanted = "'acept' is wrong: expected accept, drop or reject";
    assert!(status == 2 && line.contains(wanted), "{status} {line}");
    assert!(passes(&mut vms, 0, 1, &dns) && !passes(&mut vms, 0, 1, &web));
    let told = lab.done(&["filter", "set", "web", "rules=in accept udp to port 80"]);
    assert!(told.contains("rules in accept udp from group:peers to port 53; in accept icmp -> "));
    assert!(!passes(&mut vms, 0, 1, &dns) && passes(&mut vms, 0, 1, &web));
    for (args, words) in [
        (&["filter", "del", "web"][..], "filter 'web' is in use by p1"),
        (&["port", "del", "web"], "filter del web"),
        (&["group", "del", "web"], "filter del web"),
        (&["filter", "del", "p1"], "port del p1"),
        (&["filter", "del", "x"], "there is no filter 'x'"),
        (&["filter", "show", "x"], "there is no filter"),
        (&["filter", "set", "x", "default-in=drop"], "there is no filter 'x'"),
        (&["filter", "set", "p1", "default-in=drop"], "is a port"),
        (&["filter", "add", "web"], "exists"),
        (&["filter", "add", "p1"], "exists"),
        (&["filter", "add", "y", "rules=in accept any from group:no"], "there is no group 'no'"),
        (&["port", "set", "p1", "filter=web,x"], "there is no filter 'x'"),
        (&["group", "show", "x"], "there is no group 'x'"),
    ] {
        let (status, line) = lab.fails(args);
        assert!(status == 1 && line.contains(words), "{args:?}: {status} {line}");
    }
    // The group is in use by no rule any more, and is again.
    lab.done(&["filter", "set", "web", "rules=in accept any from group:peers"]);
    let (_, line) = lab.fails(&["group", "del", "peers"]);
    assert!(line.contains("group 'peers' is in use by web"), "{line}");
    lab.done(&["group", "set", "peers", "addresses=10.0.0.9"]);
    assert!(!passes(&mut vms, 0, 1, &dns));
    lab.done(&["filter", "set", "web", "rules="]);
    lab.done(&["group", "del", "peers"]);
    lab.done(&["port", "set", "p1", "filter="]);
    lab.done(&["filter", "del", "web"]);
    assert!(passes(&mut vms, 0, 1, &dns) && passes(&mut vms, 0, 1, &web));
    lab.d.counters().balance();
    lab.d.stop();
}

#[test]
fn a_trace_names_the_rule_that_decides() {
    let lab = Lab::new(2, &[]);
    let mut vms = connect(&lab);
    lab.done(&["group", "add", "peers", "addresses=10.0.0.1"]);
    let rule = "rules=in accept udp from group:peers to port 53";
    lab.done(&["filter", "add", "web", "default-in=drop", rule]);
    lab.done(&["filter", "add", "out", "rules=out drop tcp to port 25"]);
    lab.done(&["port", "set", "p1", "filter=web"]);
    lab.done(&["port", "set", "p0", "filter=out"]);
    let traced =
        |more: &[&str]| lab.done(&[&["trace", "p0", "to=p1", "ip=10.0.0.1"], more].concat());
    let told = traced(&["dst_ip=10.0.0.2", "proto=udp", "sport=4000", "dport=53"]);
    for words in [
        "default-out accepts the packet at 'p0'\n",
        "rule 1 of filter web accepts the packet at 'p1'\n",
        "it reaches 'p1'\n",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    let told = traced(&["dst_ip=10.0.0.2", "proto=tcp", "dport=25"]);
    assert!(told.contains("rule 1 of filter out at 'p0' drops the packet\n"), "{told}");
    let told = traced(&["dst_ip=10.0.0.2", "dport=22"]);
    assert!(told.contains("not to 'p1': default-in at 'p1' drops the packet\n"), "{told}");
    assert!(told.contains("it does not reach 'p1'\n"), "{told}");
    let told = traced(&[]);
    assert!(told.contains("the filters of 'p1' decide about IP packets"), "{told}");
    // A known connection, from the other side.
    let ask = datagram(&vms[0], &vms[1], [1, 2], [4000, 53]);
    assert!(passes(&mut vms, 0, 1, &ask));
    let answer = ["ip=10.0.0.2", "dst_ip=10.0.0.1", "proto=udp", "sport=53", "dport=4000"];
    let told = lab.done(&[&["trace", "p1", "to=p0"], &answer[..]].concat());
    let words = "the packet belongs to a connection of 'p1' that rule 1 of filter web accepted\n";
    assert!(told.contains(words), "{told}");
    for (more, words) in [
        (&["dport=22"][..], "need dst_ip"),
        (&["dst_ip=fd00::1"], "both must be of IPv4 or of IPv6"),
        (&["dst_ip=10.0.0.2", "proto=tpc"], "proto must be"),
        (&["dst_ip=10.0.0.2", "dport=65536"], "dport must be a number from 0 to 65535"),
    ] {
        let (status, line) = lab.fails(&[&["trace", "p0", "to=p1", "ip=10.0.0.1"], more].concat());
        assert!(status == 2 && line.contains(words), "{more:?}: {status} {line}");
    }
    lab.d.stop();
}

/// A later fragment whose first fragment has not passed.
#[test]
fn a_trace_drops_a_fragment_without_its_first() {
    let lab = Lab::new(2, &[]);
    let vms = connect(&lab);
    lab.done(&["filter", "add", "web", "rules=in accept udp"]);
    lab.done(&["port", "set", "p1", "filter=web"]);
    let traced = |frame: &[u8]| {
        lab.done(&["trace", "p0", &format!("frame={}", BASE64_STANDARD.encode(frame))])
    };
    let mut frame = datagram(&vms[0], &vms[1], [1, 2], [4000, 53]);
    let told = traced(&frame);
    assert!(told.ends_with("it reaches 'p1'\n"), "{told}");
    // The fragment begins at byte 8 of its packet; the checksum of the header has one less.
    frame[21] = 1;
    frame[25] -= 1;
    let told = traced(&frame);
    let words = "the filter of 'p1' has passed no first fragment of the packet, and";
    assert!(told.contains(words) && !told.contains("it reaches"), "{told}");
    lab.d.stop();
}

#[test]
fn connections_are_shown_and_ended() {
    let lab = Lab::new(2, &[]);
    assert_eq!(rows(&lab.done(&["connections", "show"])), Vec::<Vec<String>>::new());
    assert_eq!(lab.done(&["connections", "flush"]), "0 connections ended\n");
    let mut vms = connect(&lab);
    lab.done(&["filter", "add", "base", "default-in=drop", "default-out=accept"]);
    lab.done(&["filter", "add", "web", "rules=in accept udp to port 53"]);
    lab.done(&["port", "set", "p1", "filter=web,base"]);
    let there = datagram(&vms[0], &vms[1], [1, 2], [4000, 53]);
    let back = datagram(&vms[1], &vms[0], [2, 1], [53, 4000]);
    let out = datagram(&vms[1], &vms[0], [2, 1], [5000, 6000]);
    let answer = datagram(&vms[0], &vms[1], [1, 2], [6000, 5000]);
    assert!(!passes(&mut vms, 0, 1, &answer));
    assert!(passes(&mut vms, 0, 1, &there) && passes(&mut vms, 1, 0, &back));
    assert!(passes(&mut vms, 1, 0, &out) && passes(&mut vms, 0, 1, &answer));
    let told = rows(&lab.done(&["connections", "show", "p1"]));
    let told: Vec<String> = told
        .into_iter()
        .map(|mut row| {
            row.remove(6);
            row.join(" ")
        })
        .collect();
    assert_eq!(
        told,
        [
            "p1 udp 10.0.0.2:53 <- 10.0.0.1:4000 replied web:1",
            "p1 udp 10.0.0.2:5000 -> 10.0.0.1:6000 replied base:default",
        ]
    );
    let all = lab.json(&["connections", "show"]);
    assert_eq!(all["connections"].as_array().expect("a list").len(), 2);
    assert_eq!(lab.json(&["connections", "show", "p0"])["connections"], Value::Array(vec![]));
    assert_eq!(lab.done(&["connections", "flush", "p0"]), "0 connections ended\n");
    assert_eq!(lab.done(&["connections", "flush", "p1"]), "2 connections ended\n");
    assert!(!passes(&mut vms, 0, 1, &answer), "no rule permits the answer alone");
    assert!(lab.fails(&["connections", "show", "x"]).1.contains("no port"));
    lab.d.stop();
}

/// More connections than a part of the answer may have.
#[test]
fn each_connection_is_listed_once() {
    let lab = Lab::new(2, &[]);
    let mut vms = connect(&lab);
    lab.done(&["filter", "add", "all", "rules=in accept udp"]);
    lab.done(&["port", "set", "p1", "filter=all"]);
    for port in 1..=600 {
        let frame = datagram(&vms[0], &vms[1], [1, 2], [port, 53]);
        vms[0].tx[0].send_waiting(&frame, LOST);
        vms[0].tx[0].drain(LOST);
        vms[1].rx[0].recv(9, |_, _| {});
    }
    let all = lab.json(&["connections", "show"]);
    let all = all["connections"].as_array().expect("a list").iter();
    let mut ports: Vec<u64> = all.filter_map(|one| one["remote_port"].as_u64()).collect();
    ports.sort_unstable();
    assert_eq!(ports, (1..=600).collect::<Vec<u64>>());
    assert_eq!(lab.done(&["connections", "flush"]), "600 connections ended\n");
    lab.d.stop();
}

#[test]
fn filters_are_kept_for_the_next_process() {
    let mut kept = Kept::new(1, &[]);
    let lab = &kept.lab;
    lab.done(&["group", "add", "dns", "addresses=10.0.0.53", "ports=p0"]);
    lab.done(&["filter", "add", "web", "default-in=drop", "rules=in accept udp from group:dns"]);
    lab.done(&["filter", "add", "gone", "--transient"]);
    lab.done(&["port", "add", "r1", "filter=web"]);
    lab.done(&["port", "set", "p0", "filter=web"]);
    let before = [lab.json(&["group", "show", "dns"]), lab.json(&["filter", "show", "web"])];
    assert_eq!(before[1]["ports"], serde_json::json!(["p0", "r1"]));
    assert_eq!(before[1]["origin"], "kept");
    kept.crash();
    let lab = &kept.lab;
    let after = [lab.json(&["group", "show", "dns"]), lab.json(&["filter", "show", "web"])];
    assert_eq!(before, after);
    assert!(lab.fails(&["filter", "show", "gone"]).1.contains("there is no filter"));
    let port = lab.json(&["port", "show", "r1"]);
    assert_eq!(port["port"]["filter"], "web");
    assert!(lab.fails(&["filter", "del", "web"]).1.contains("in use by p0, r1"));
    lab.done(&["port", "del", "r1"]);
    lab.done(&["port", "reset", "p0"]);
    lab.done(&["filter", "del", "web"]);
    lab.done(&["group", "del", "dns"]);
    kept.crash();
    assert_eq!(rows(&kept.lab.done(&["filter", "list"])), Vec::<Vec<String>>::new());
    kept.lab.d.stop();
}

/// A client changes and deletes a filter of the file, and takes that back.
#[test]
fn a_filter_of_the_file_is_changed_and_reset() {
    let filter = "[[filter]]\nname = \"web\"\nrules = [\"in accept tcp\"]\n";
    let filed = Filed::new(1, &[("f1", "")], &[]);
    let lab = &filed.lab;
    let path = filed.etc.path().join("vioswitch.toml");
    let with = |filter: &str| {
        let text = fs::read_to_string(&path).expect("a file");
        fs::write(&path, text + filter).expect("a file");
        lab.done(&["config", "reload"])
    };
    let rules = || lab.json(&["filter", "show", "web"])["rules"][0]["rule"].clone();
    assert!(with(filter).contains("+ filter web"));
    assert_eq!(rules(), "in accept tcp");
    lab.done(&["filter", "set", "web", "rules=in accept udp"]);
    assert_eq!(rules(), "in accept udp");
    let told = lab.done(&["config", "show"]);
    assert!(told.contains("until vioswitchctl port reset web: rules"), "{told}");
    lab.done(&["config", "reload"]);
    assert_eq!(rules(), "in accept udp");
    lab.done(&["port", "reset", "web"]);
    assert_eq!(rules(), "in accept tcp");
    lab.done(&["filter", "del", "web"]);
    assert!(lab.fails(&["port", "set", "p0", "filter=web"]).1.contains("there is no filter 'web'"));
    lab.done(&["port", "reset", "web"]);
    lab.done(&["port", "set", "p0", "filter=web"]);
    // A file without a filter that a port names changes nothing.
    filed.write(&[("f1", "")]);
    let (status, line) = lab.fails(&["config", "reload"]);
    let wanted = "port 'p0' names filter 'web', which does not exist";
    assert!(status != 0 && line.contains(wanted), "{line}");
    assert_eq!(rules(), "in accept tcp");
    drop(filed.lab.d);
}

/// What does not fit is refused at once, and changes nothing.
#[test]
fn a_filter_that_does_not_fit_is_refused() {
    let lab = Lab::new(1, &[]);
    let rule = |n: usize| format!("rules=in accept udp to port {}", n + 1);
    let add = |name: &str, rules: &[String]| {
        let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
        lab.ctl(&[&["filter", "add", name], &rules[..]].concat())
    };
    let rules: Vec<String> = (0..MAX_FILTER_RULES).map(rule).collect();
    assert!(add("most", &rules).status.success());
    let told = lab.json(&["filter", "show", "most"]);
    assert_eq!(told["rules"].as_array().expect("rules").len(), MAX_FILTER_RULES);
    let stderr = |output: std::process::Output| {
        assert!(!output.status.success());
        String::from_utf8(output.stderr).expect("UTF-8")
    };
    let more: Vec<String> = (0..=MAX_FILTER_RULES).map(rule).collect();
    assert!(stderr(add("more", &more)).contains("more than 1024 rules"));
    let items = (0..45).map(|n| format!("10.0.{n}.1-10.0.{n}.7")).collect::<Vec<_>>().join(",");
    let long: Vec<String> = (0..230).map(|_| format!("rules=in accept any from {items}")).collect();
    let told = stderr(add("long", &long));
    assert!(told.contains(&format!("at most {MAX_FILTER_BYTES}")), "{told}");
    // Filters that fit alone may not fit together.
    let names: Vec<String> = (0..5).map(|n| format!("most{n}")).collect();
    names.iter().for_each(|name| assert!(add(name, &rules).status.success()));
    let set = |names: &[String]| format!("filter={}", names.join(","));
    lab.done(&["port", "set", "p0", &set(&names[..4])]);
    let (status, line) = lab.fails(&["port", "set", "p0", &set(&names)]);
    assert!(status == 1 && line.contains("too many rules"), "{line}");
    assert!(lab.fails(&["port", "add", "r1", &set(&names)]).1.contains("too many rules"));
    assert_eq!(lab.json(&["port", "show", "p0"])["port"]["filter"], names[..4].join(","));
    lab.done(&["filter", "set", "most4", "rules="]);
    lab.done(&["port", "set", "p0", &set(&names)]);
    let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
    let (_, line) = lab.fails(&[&["filter", "set", "most4"], &rules[..]].concat());
    assert!(line.contains("too many rules"), "{line}");
    lab.d.stop();
}

/// Level and subject of each finding of the doctor about filters.
fn odd(lab: &Lab) -> Vec<String> {
    let output = lab.ctl(&["--json", "doctor"]);
    let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let all = told["findings"].as_array().expect("findings").iter();
    let all = all.filter(|one| one["code"] == "filter-at-odds");
    let word = |one: &Value, key: &str| one[key].as_str().expect(key).to_owned();
    all.map(|one| format!("{} {}", word(one, "level"), word(one, "port"))).collect()
}

/// A file loses a filter that a kept port names: the port's packets are dropped, and the doctor
/// says so.
#[test]
fn a_port_without_its_filter_is_closed() {
    let etc = Dir::new();
    let file = etc.path().join("vioswitch.toml");
    fs::write(&file, "[[filter]]\nname = \"web\"\n").expect("a file");
    let mut kept = Kept::new(2, &[&format!("--config={}", file.display())]);
    kept.lab.done(&["port", "set", "p1", "filter=web"]);
    assert_eq!(odd(&kept.lab), Vec::<String>::new());
    fs::write(&file, "").expect("a file");
    kept.stop_and_start();
    assert_eq!(odd(&kept.lab), ["fail p1"]);
    let mut vms = connect(&kept.lab);
    let frame = datagram(&vms[0], &vms[1], [1, 2], [4000, 53]);
    assert!(!passes(&mut vms, 0, 1, &frame));
    assert!(kept.lab.d.log().contains("port p1: all packets are dropped: no filter 'web'"));
    kept.lab.done(&["filter", "add", "web"]);
    assert!(passes(&mut vms, 0, 1, &frame));
    assert_eq!(odd(&kept.lab), Vec::<String>::new());
    kept.lab.d.stop();
}

#[test]
fn a_check_finds_rules_that_never_match_and_empty_groups() {
    let lab = Lab::new(1, &[]);
    lab.done(&["group", "add", "none"]);
    let rules = ["in accept tcp", "in drop tcp to port 22", "in accept udp from group:none"];
    let rules = rules.map(|rule| format!("rules={rule}"));
    lab.done(&["filter", "add", "web", &rules[0], &rules[1], &rules[2]]);
    let output = lab.ctl(&["filter", "check", "web"]);
    let told = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(output.status.code(), Some(1), "{told}");
    let never = "web: rule 2 never matches: rule 1 of 'web' decides first: in accept tcp\n";
    let none = "web: group 'none' has no addresses: its rules match nothing\n";
    assert!(told.contains(never) && told.contains(none), "{told}");
    assert_eq!(told.lines().count(), 4, "{told}");
    assert_eq!(odd(&lab), ["warn web", "warn web"]);
    // The same of a file, without a switch.
    let dir = Dir::new();
    let path = dir.path().join("web.toml");
    fs::write(&path, lab.done(&["config", "show"])).expect("a file");
    let output = lab.ctl(&["filter", "check", &path.display().to_string()]);
    assert_eq!(String::from_utf8(output.stdout.clone()).expect("UTF-8"), told, "{output:?}");
    lab.done(&["filter", "set", "web", &rules[0]]);
    assert_eq!(lab.done(&["filter", "check", "web"]), "");
    assert_eq!(odd(&lab), Vec::<String>::new());
    assert_eq!(lab.fails(&["filter", "check", "x"]).0, 1);
    let (status, line) = lab.fails(&["filter", "check", "/no/such/file"]);
    assert!(status == 1 && line.contains("/no/such/file"), "{line}");
    lab.d.stop();
}

/// The thread that follows connections does not wake up once the last filter has gone, and works
/// again when a port gets a filter, also a port that comes after its filter.
#[test]
fn without_filters_no_thread_wakes_for_connections() {
    let lab = Lab::new(1, &[]);
    lab.done(&["filter", "add", "base", "default-in=drop"]);
    let wakes = || lab.d.voluntary_switches_of("connections");
    let in_two_pauses = || {
        let before = wakes();
        std::thread::sleep(2 * CONNECTION_SWEEP_PAUSE + CONNECTION_SWEEP_PAUSE / 2);
        wakes() - before
    };
    for (with, without) in [
        (&["port", "set", "p0", "filter=base"], &["port", "set", "p0", "filter="][..]),
        (&["port", "add", "p9", "filter=base"], &["port", "del", "p9"]),
    ] {
        lab.done(with);
        let woken = in_two_pauses();
        assert!(woken >= 2, "{woken} wake-ups with a filter");
        lab.done(without);
        assert!(wait_for(LOST, || in_two_pauses() == 0), "wake-ups without a filter");
    }
    lab.d.stop();
}
