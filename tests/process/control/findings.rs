//! What the switch finds wrong itself: by `doctor`, `why`, `health`, the metrics, and `doctor
//! --watch`, each fault made on a switch that serves.

use std::process::{Child, Stdio};
use std::sync::mpsc::Receiver;
use std::time::Instant;

use testkit::host::{Host, in_namespace, ip};
use testkit::skip;

use super::commands::talk;
use super::*;

/// Port and code of what a doctor finds, but for a busy machine.
pub fn found(lab: &Lab) -> Vec<(String, String)> {
    let all = found_of_all(lab).into_iter();
    all.filter(|(_, code)| code != "worker-starved").collect()
}

/// All findings of a doctor, with what each test has and what depends on the machine.
pub fn found_of_all(lab: &Lab) -> Vec<(String, String)> {
    let output = lab.ctl(&["--json", "doctor"]);
    let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let findings = told["findings"].as_array().expect("findings");
    let word = |finding: &Value, key: &str| finding[key].as_str().unwrap_or("").to_owned();
    findings
        .iter()
        .for_each(|one| remedies::check(&lab.path, &word(one, "code"), &word(one, "command")));
    findings.iter().map(|one| (word(one, "port"), word(one, "code"))).collect()
}

/// Waits until a doctor finds this, and nothing else; the finding, as the switch tells it.
fn is_found(lab: &Lab, port: &str, code: &str) -> Value {
    let expected = [(port.to_owned(), code.to_owned())];
    let mut last = Vec::new();
    let all = wait_for(LOST, || {
        last = found(lab);
        last == expected
    });
    assert!(all, "{last:?} and not {expected:?}\n{}", lab.d.log());
    told(lab, code)
}

/// A finding as the switch tells it.
fn told(lab: &Lab, code: &str) -> Value {
    let call = json!({"method": format!("{INTERFACE}.GetFindings"), "more": true});
    let mut client = lab.client();
    client.ask(&call);
    let mut all = Vec::new();
    loop {
        let answer = client.answer().expect("an answer");
        all.extend(answer["parameters"]["findings"].as_array().expect("findings").clone());
        if answer["continues"] != true {
            break;
        }
    }
    let one = all.iter().find(|one| one["code"] == code);
    one.unwrap_or_else(|| panic!("no {code} in {all:?}")).clone()
}

/// The series of a finding in the metrics.
fn is_measured(lab: &Lab, port: &str, code: &str) {
    let text = lab.done(&["metrics"]);
    let series = format!("vioswitch_finding{{code=\"{code}\",port=\"{port}\"}} 1");
    assert!(text.lines().any(|line| line == series), "no {series} in {text}");
}

fn connect(lab: &Lab, id: u8) -> Vm {
    Vm::connect(&lab.d.socket(id.into()), VmConfig::new(id))
}

/// A broadcast with this source.
fn announce(vm: &mut Vm, source: [u8; 6]) {
    let frame = [&[0xff; 6][..], &source, &[0x88, 0xb5], &[0; 46]].concat();
    vm.tx[0].send_waiting(&frame, LOST);
    vm.tx[0].drain(LOST);
}

/// What `why` finds in the way: findings, and the steps of frames that do not arrive; its exit
/// status agrees.
pub fn why(lab: &Lab, from: &str, to: &str) -> Vec<String> {
    let output = lab.ctl(&["--json", "why", from, to]);
    let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let words = |one: &Value, keys: &[&str]| {
        let all: Vec<&str> = keys.iter().filter_map(|key| one[key].as_str()).collect();
        all.join(": ")
    };
    let findings = told["findings"].as_array().expect("findings");
    let findings = findings.iter().map(|one| words(one, &["code", "port", "cause", "command"]));
    let traces = told["traces"].as_array().expect("traces").iter();
    let traces = traces.filter(|one| one["passes"] == false).map(|one| {
        let steps = one["steps"].as_array().expect("steps").iter();
        let steps: Vec<&str> = steps.map(|step| step.as_str().expect("text")).collect();
        format!("{}: {}", words(one, &["from", "to", "verdict"]), steps.join("; "))
    });
    let problems: Vec<String> = findings.chain(traces).collect();
    assert_eq!(output.status.code(), Some(i32::from(!problems.is_empty())), "{told}");
    problems
}

fn one_has(problems: &[String], words: &str) {
    assert!(problems.iter().any(|one| one.contains(words)), "no {words:?} in {problems:?}");
}

fn happened(lab: &Lab, kind: &str) -> bool {
    let lines = lab.done(&["--json", "events", "--since=all"]);
    let mut events = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    events.any(|event| event["kind"] == kind && event["port"] == "up")
}

/// A switch with a port, and an uplink whose interface is up; in a namespace of its own.
fn with_uplink() -> Lab {
    ip("tuntap add t0 mode tap multi_queue vnet_hdr");
    ip("link set t0 up");
    ip("address add 10.9.1.1/24 dev t0");
    Lab::new(1, &["--tap=up,ifname=t0"])
}

#[test]
fn an_interface_that_goes_down_away_and_comes_back_is_told_everywhere() {
    if !is_root() {
        return skip("network namespaces need root");
    }
    in_namespace(|| {
        let lab = with_uplink();
        let mut vm = Vm::connect(&lab.d.socket(0), VmConfig::new(0));
        let broadcast = [&[0xff; 6][..], &vm.mac(), &[0x88, 0xb5], &[0; 46]].concat();
        vm.tx[0].send_waiting(&broadcast, LOST);
        let state = || lab.json(&["port", "show", "up"])["port"]["state"].clone();
        let is = |expected: &str| wait_for(LOST, || state() == expected);
        assert!(is("attached") && lab.ctl(&["health"]).status.success(), "{}", state());

        ip("link set t0 down");
        assert!(is("down"), "{}", state());
        one_has(
            &why(&lab, "p0", "up"),
            "tap-down: up: its interface t0 is down: ip link set t0 up",
        );
        is_measured(&lab, "up", "tap-down");
        let output = lab.ctl(&["health"]);
        let told = String::from_utf8(output.stdout).expect("UTF-8");
        assert!(output.status.code() == Some(1) && told.contains("t0 is down"), "{told}");
        let flood = ["trace", "p0", "src=02:00:00:00:00:09", "dst=ff:ff:ff:ff:ff:ff"];
        let told = lab.done(&flood);
        assert!(told.contains("not to 'up': its interface t0 is down"), "{told}");
        assert!(wait_for(LOST, || happened(&lab, "interface_down")), "no event");
        assert!(!happened(&lab, "interface_up"), "it did not come up yet");

        ip("link set t0 up");
        assert!(is("attached"), "{}", state());
        assert!(wait_for(LOST, || happened(&lab, "interface_up")), "no event");
        assert!(lab.ctl(&["health"]).status.success());
        assert!(!lab.done(&flood).contains("not to 'up'"));

        ip("link delete t0");
        assert!(is("gone"), "{}", state());
        assert!(wait_for(LOST, || happened(&lab, "interface_gone")), "no event");
        assert!(!happened(&lab, "interface_back"), "it is not back yet");
        ip("tuntap add t0 mode tap multi_queue vnet_hdr");
        ip("link set t0 up");
        assert!(is("attached"), "{}", state());
        assert!(wait_for(LOST, || happened(&lab, "interface_back")), "no event");
    });
}

/// Frames for an address go where it is tied to, whoever sends from it.
#[test]
fn an_address_of_another_port_is_found() {
    let lab = Lab::new(3, &[]);
    let mut vms = [0, 1, 2].map(|id| connect(&lab, id));
    vms.iter_mut().for_each(|vm| announce(vm, vm.mac()));
    assert_eq!(found(&lab), []);
    let mac = "02:00:00:00:00:99";
    lab.done(&["fdb", "add", mac, "p1"]);
    announce(&mut vms[0], [2, 0, 0, 0, 0, 0x99]);
    let finding = is_found(&lab, "p0", "address-of-another");
    assert_eq!((&finding["level"], &finding["with"]), (&json!("warn"), &json!(["p1"])));
    let cause = finding["cause"].as_str().expect("a cause");
    assert!(cause.contains(&format!("{mac}, a static address of 'p1'")), "{cause}");
    one_has(&why(&lab, "p0", "p2"), "address-of-another: p0: the port sends from");
    assert_eq!(why(&lab, "p1", "p2").len(), 1, "answers for p0 come there");
    is_measured(&lab, "p0", "address-of-another");
    // The one of two ports that nothing is wrong with.
    remedies::mend(&lab, finding["command"].as_str().expect("a command"), &[]);
    assert!(wait_for(LOST, || found(&lab).is_empty()), "{:?}", found(&lab));
    assert!(why(&lab, "p0", "p2").is_empty());
    lab.d.stop();
}

/// Two guests have one address, or frames circulate.
#[test]
fn an_address_that_moves_again_and_again_is_found() {
    let lab = Lab::new(3, &[]);
    let mut vms = [0, 1, 2].map(|id| connect(&lab, id));
    vms.iter_mut().for_each(|vm| announce(vm, vm.mac()));
    // A guest that migrates, and comes back, is none.
    let mac = [2, 0, 0, 0, 0, 0x77];
    for at in [0, 1, 0] {
        announce(&mut vms[at], mac);
    }
    std::thread::sleep(Duration::from_millis(2_500));
    assert_eq!(found(&lab), []);
    // Three times each way within a minute.
    for at in [1, 0, 1, 0] {
        announce(&mut vms[at], mac);
        std::thread::sleep(Duration::from_millis(600));
    }
    let finding = is_found(&lab, "p0", "address-moving");
    assert_eq!(finding["with"], json!(["p1"]), "{finding}");
    assert!(finding["cause"].as_str().expect("a cause").contains("02:00:00:00:00:77 moves"));
    let moves = "address-moving: p0: 02:00:00:00:00:77 moves between this port and";
    one_has(&why(&lab, "p1", "p2"), moves);
    is_measured(&lab, "p0", "address-moving");
    // As often within a second: the port that does not keep it is told of.
    for at in [1, 0].repeat(10) {
        announce(&mut vms[at], mac);
    }
    let finding = is_found(&lab, "p1", "address-moving");
    assert_eq!(finding["with"], json!(["p0"]), "{finding}");
    let cause = finding["cause"].as_str().expect("a cause");
    let flaps = "77 flaps between this port and 'p0': it is held at 'p0' now";
    assert!(cause.contains(flaps), "{cause}");
    let flaps = "address-moving: p1: 02:00:00:00:00:77 flaps between this port and";
    one_has(&why(&lab, "p0", "p2"), flaps);
    is_measured(&lab, "p1", "address-moving");
    remedies::mend(&lab, finding["command"].as_str().expect("a command"), &[("NAME", "p0")]);
    lab.d.stop();
}

/// A receiver that takes a tenth of what two senders bring: who they are is told.
#[test]
fn an_overloaded_receiver_is_found_with_its_senders() {
    let lab = Lab::new(4, &[]);
    let mut vms = [0, 1, 2, 3].map(|id| connect(&lab, id));
    vms.iter_mut().for_each(|vm| announce(vm, vm.mac()));
    let [one, two, three, receiver] = &mut vms;
    assert_eq!(found(&lab), []);
    let to = receiver.mac();
    let send = |from: &mut Vm, count: u32| {
        let frame = [&to[..], &from.mac(), &[0x88, 0xb5], &[0; 46]].concat();
        (0..count).for_each(|_| from.tx[0].send_waiting(&frame, LOST));
        from.tx[0].drain(LOST);
    };
    // Its buffers are used up, and then nothing is taken.
    let end = Instant::now() + LOST;
    let finding = loop {
        send(one, 3_000);
        send(two, 600);
        receiver.rx[0].recv(64, |_, _| ());
        let now = found(&lab);
        if now == [("p3".to_owned(), "receiver-overloaded".to_owned())] {
            break told(&lab, "receiver-overloaded");
        }
        assert!(now.is_empty() && Instant::now() < end, "{now:?}");
    };
    let cause = finding["cause"].as_str().expect("a cause");
    let (first, second) = (cause.find("'p0'").expect("p0"), cause.find("'p1'").expect("p1"));
    assert!(first < second && !cause.contains("'p2'"), "{cause}");
    one_has(&why(&lab, "p2", "p3"), "receiver-overloaded: p3: the receiver takes frames");
    is_measured(&lab, "p3", "receiver-overloaded");
    // By the command, too: for each receiver, its senders.
    let told = lab.json(&["drops", "p3"]);
    let senders = told["senders"].as_array().expect("senders");
    let of = |n: usize| (senders[n]["port"].clone(), senders[n]["from"].clone());
    assert_eq!((of(0), of(1)), ((json!("p3"), json!("p0")), (json!("p3"), json!("p1"))), "{told}");
    assert!(senders[0]["share"].as_f64() > Some(0.5), "{told}");
    let table = lab.done(&["drops"]);
    let heading = "senders whose frames found no room lately:\nPORT  FROM  FRAMES  SHARE\np3    \
        p0 ";
    assert!(table.contains(heading), "{table}");
    assert_eq!(lab.json(&["drops", "p0"])["senders"], json!([]));
    // When it keeps up again it is over.
    let mut quiet = || {
        while receiver.rx[0].recv(64, |_, _| ()) > 0 {}
        talk(three, receiver, 200);
        found(&lab).is_empty()
    };
    assert!(wait_for(2 * LOST, &mut quiet), "{:?}", found(&lab));
    lab.d.stop();
}

/// TAPs in one bridge, seen by what the kernel says of them.
#[test]
fn two_uplinks_in_one_bridge_are_found() {
    if !is_root() {
        return skip("network namespaces need root");
    }
    in_namespace(|| {
        // What the kernel sends by itself would come round.
        std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").expect("no IPv6");
        for n in 0..2 {
            ip(&format!("tuntap add t{n} mode tap multi_queue vnet_hdr"));
            ip(&format!("link set t{n} up"));
            ip(&format!("address add 10.9.{n}.1/24 dev t{n}"));
            ip(&format!("link add br{n} type bridge"));
            ip(&format!("link set br{n} up"));
        }
        let taps = ["--tap=up0,ifname=t0", "--tap=up1,ifname=t1"];
        let lab = Lab::new(1, &taps);
        let _vm = connect(&lab, 0);
        assert_eq!(found(&lab), []);
        ip("link set t0 master br0");
        ip("link set t1 master br1");
        assert_eq!(found(&lab), []);
        ip("link set t1 master br0");
        let finding = is_found(&lab, "up0", "uplinks-in-one-bridge");
        assert_eq!((&finding["level"], &finding["with"]), (&json!("warn"), &json!(["up1"])));
        let cause = finding["cause"].as_str().expect("a cause");
        assert!(cause.contains("t0 and t1 are in one bridge, br0"), "{cause}");
        one_has(&why(&lab, "p0", "up1"), "uplinks-in-one-bridge: up0: ");
        is_measured(&lab, "up0", "uplinks-in-one-bridge");
        // VLANs may keep the two apart, where the kernel can do that.
        let filter = |on| {
            let words = ["link", "set", "br0", "type", "bridge", "vlan_filtering", on];
            Command::new("ip").args(words).output().is_ok_and(|output| output.status.success())
        };
        if filter("1") {
            assert!(wait_for(LOST, || found(&lab).is_empty()), "{:?}", found(&lab));
            assert!(filter("0"));
            is_found(&lab, "up0", "uplinks-in-one-bridge");
        }
        ip("link set t1 nomaster");
        assert!(wait_for(LOST, || found(&lab).is_empty()), "{:?}", found(&lab));
        drop(lab);

        // With frames between uplinks it is a loop. A bridge may have its ports already.
        ip("link set t1 master br0");
        let lab = Lab::new(1, &[&taps[..], &["--uplink-to-uplink"]].concat());
        let finding = is_found(&lab, "up0", "uplinks-in-one-bridge");
        assert_eq!(finding["level"], "fail", "{finding}");
        let output = lab.ctl(&["health"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.code() == Some(1) && text.contains("frames circulate"), "{text}");
        drop(lab);
    });
}

/// What fills the table may be behind a TAP, which has no limit of its own.
#[test]
fn a_table_that_an_uplink_fills_is_found() {
    if !is_root() {
        return skip("network namespaces need root");
    }
    in_namespace(|| {
        let lab = with_uplink();
        let mut vm = connect(&lab, 0);
        let own = vm.mac();
        announce(&mut vm, own);
        assert_eq!(found(&lab), []);
        // Learned, and kept from going on, as a bridge does not forward there.
        let (host, mut next) = (Host::open("t0"), 0u32);
        let to = [1, 0x80, 0xc2, 0, 0, 0];
        let full = wait_for(4 * LOST, || {
            for _ in 0..5_000 {
                next += 1;
                let [_, a, b, c] = next.to_be_bytes();
                let frame = [&to[..], &[2, 7, 7, a, b, c], &[0x88, 0xb5], &[0; 46]].concat();
                // The interface's queue may be full.
                let _ = host.try_send(&frame);
            }
            !found(&lab).is_empty()
        });
        assert!(full, "{next} addresses, {}", lab.done(&["status"]));
        let finding = is_found(&lab, "up", "fdb-full");
        let cause = finding["cause"].as_str().expect("a cause");
        assert!(cause.contains("of 65536, most of them behind 'up'"), "{cause}");
        drop(lab);
    });
}

/// A client that watches, and the lines that it prints.
struct Watching(Child, Receiver<String>);

impl Watching {
    fn begin(lab: &Lab, form: &[&str]) -> Watching {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vioswitchctl"));
        command.arg("--control").arg(&lab.path).args(form).args(["doctor", "--watch", "100ms"]);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("vioswitchctl");
        let out = BufReader::new(child.stdout.take().expect("a pipe"));
        let (tell, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            out.lines().map_while(Result::ok).try_for_each(|line| tell.send(line))
        });
        Watching(child, lines)
    }

    /// The next line that is not about the machine's other work.
    fn line(&mut self) -> String {
        loop {
            let line = self.1.recv_timeout(LOST).expect("a line");
            if !line.contains("worker-starved") {
                return line;
            }
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn findings_are_watched_as_they_come_and_go() {
    let state = Dir::new();
    let lab = Lab::new(2, &[&format!("--state-dir={}", state.path().display())]);
    let mut vms = [0, 1].map(|id| connect(&lab, id));
    let (mut people, mut programs) =
        (Watching::begin(&lab, &[]), Watching::begin(&lab, &["--json"]));
    lab.done(&["fdb", "add", "02:00:00:00:00:99", "p1"]);
    announce(&mut vms[0], [2, 0, 0, 0, 0, 0x99]);
    let line = people.line();
    assert!(line.contains("Z + WARN  address-of-another  p0: the port sends from 02:"), "{line}");
    let object: Value = serde_json::from_str(&programs.line()).expect("an object");
    assert_eq!(
        (&object["change"], &object["code"]),
        (&json!("came"), &json!("address-of-another"))
    );
    assert!(object["time"].as_u64() > Some(1_600_000_000_000_000), "{object}");
    lab.done(&["fdb", "del", "02:00:00:00:00:99"]);
    let line = people.line();
    assert!(line.contains("Z - WARN  address-of-another  p0: "), "{line}");
    let object: Value = serde_json::from_str(&programs.line()).expect("an object");
    assert_eq!(object["change"], "gone", "{object}");
    // The end of the switch is one, too.
    lab.d.stop();
    let line = people.line();
    assert!(line.contains("Z + FAIL  switch-absent  no switch at"), "{line}");
}

/// Addresses stand for the ports where they live.
#[test]
fn why_takes_addresses() {
    let lab = Lab::with_ports(&["", ",mtu=1000"], &[]);
    let mut vms = [0, 1].map(|id| connect(&lab, id));
    vms.iter_mut().for_each(|vm| announce(vm, vm.mac()));
    announce(&mut vms[0], [2, 0, 0, 0, 0, 0x55]);
    let shown = lab.json(&["fdb", "show", "p1"]);
    let theirs = shown["addresses"][0]["mac"].as_str().expect("an address").to_owned();
    let long = "p0: p1: it does not reach 'p1'";
    for (from, to) in [("02:00:00:00:00:55", theirs.as_str()), ("p0", &theirs.to_uppercase())] {
        let problems = why(&lab, from, to);
        assert!(problems.len() == 1 && problems[0].starts_with(long), "{problems:?}");
        // Of a port that has several any is taken.
        let source = if from == "p0" { "is known here" } else { "02:00:00:00:00:55 is known here" };
        assert!(problems[0].contains(source), "{problems:?}");
    }
    let (status, line) = lab.fails(&["why", "p0", "02:00:00:00:00:66"]);
    assert!(status == 1 && line.contains("no port has the address 02:00:00:00:00:66"), "{line}");
    let (status, line) = lab.fails(&["why", "p0", "02:00:00:00:00:55"]);
    assert!(status == 1 && line.contains("are both behind 'p0'"), "{line}");
    lab.d.stop();
}

/// A port that is administratively down forwards nothing, in either direction, keeps its front-end,
/// and says so wherever somebody looks.
#[test]
fn a_port_that_is_down_forwards_nothing_and_says_so() {
    let lab = Lab::new(2, &[]);
    let mut vms = [0, 1].map(|id| Vm::connect(&lab.d.socket(id), VmConfig::new(id as u8)));
    let [one, two] = &mut vms;
    let shown = |name: &str| lab.json(&["port", "show", name])["port"].clone();
    talk(one, two, 50);
    talk(two, one, 50);
    let frame = |to: [u8; 6], from: [u8; 6]| [&to[..], &from, &[0x88, 0xb5], &[7; 46]].concat();
    let drops = |name: &str| shown(name)["in"]["drops"]["admin_down"].as_u64().unwrap_or(0);
    assert_eq!(lab.done(&["port", "set", "p1", "admin=down"]), "admin up -> down  now\n");
    // For it, to its address and to all, and from it.
    let out = shown("p1")["out"]["frames"].clone();
    let [first, second] = [one.mac(), two.mac()];
    one.tx[0].send_waiting(&frame(second, first), LOST);
    two.tx[0].send_waiting(&frame(first, second), LOST);
    two.tx[0].send_waiting(&frame([0xff; 6], second), LOST);
    one.tx[0].send_waiting(&frame([0xff; 6], first), LOST);
    assert!(wait_for(LOST, || (drops("p0"), drops("p1")) == (1, 2)), "{}", lab.done(&["stats"]));
    assert_eq!(shown("p1")["out"]["frames"], out);
    let port = shown("p1");
    assert_eq!((&port["state"], &port["admin"]), (&json!("disabled"), &json!("down")));
    let list = lab.done(&["port", "list"]);
    assert!(list.lines().next().is_some_and(|title| title.ends_with("ADMIN")), "{list}");
    let spelled = |mac: [u8; 6]| mac.map(|octet| format!("{octet:02x}")).join(":");
    let (to, from) = (spelled(second), spelled(first));
    let told = lab.done(&["trace", "p0", &format!("src={from}"), &format!("dst={to}")]);
    assert!(told.contains("it is dropped: admin_down"), "{told}");
    let told = lab.done(&["trace", "p1", &format!("src={to}"), &format!("dst={from}")]);
    assert!(told.contains("it is dropped: admin_down"), "{told}");
    let finding = is_found(&lab, "p1", "port-disabled");
    assert_eq!(finding["command"], "vioswitchctl port set p1 admin=up");
    one_has(&why(&lab, "p0", "p1"), "administratively down");
    assert_eq!(lab.done(&["port", "set", "p1", "admin="]), "admin down -> up  now\n");
    talk(one, two, 50);
    assert!(vms.iter_mut().all(|vm| vm.fe.still_served()));
    lab.d.stop();
}

/// A combination of keys that makes a key ineffective is found, and its command mends it.
#[test]
fn settings_at_odds_are_found() {
    let lab = Lab::new(1, &[]);
    for (odd, back) in [
        (&["burst-in=64kib", "rate-in="][..], "rate-in=1mbit"),
        (&["learn=off", "flood=off"], ""),
        (&["learn=off", "max-addresses=7"], ""),
    ] {
        lab.done(&[&["port", "set", "p0"], odd].concat());
        let finding = is_found(&lab, "p0", "settings-at-odds");
        let command = finding["command"].as_str().expect("a command").replace("RATE", "1mbit");
        assert!(command.ends_with(back), "{command}");
        let words: Vec<&str> = command.split(' ').collect();
        assert_eq!(words[0], "vioswitchctl");
        lab.done(&words[1..]);
        assert_eq!(found(&lab), [], "{command}");
        lab.done(&["port", "set", "p0", "learn=", "flood=", "max-addresses=", "burst-in="]);
    }
    lab.d.stop();
}
