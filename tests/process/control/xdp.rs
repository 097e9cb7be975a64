//! XDP uplinks are added, changed and deleted: by vioswitchctl, and by a file; what runs is shown,
//! and what was added outlives the process.

use std::fs;

use serde_json::{Value, json};
use testkit::host::{Host, in_namespace, ip, veth_up};
use testkit::proc::{Dir, wait_for};
use testkit::vm::{Vm, VmConfig, mac_of};

use super::{LOST, Lab};

/// The station at the other end.
const FAR: u8 = 9;

/// A veth pair NAME and NAMEp.
fn pair(name: &str, queues: u16) {
    let each = format!("numrxqueues {queues} numtxqueues {queues}");
    ip(&format!("link add {name} {each} type veth peer name {name}p {each}"));
    veth_up([name, &format!("{name}p")]);
}

fn program(interface: &str) -> bool {
    ip(&format!("link show {interface}")).contains(" xdp")
}

fn shown(lab: &Lab, name: &str) -> Value {
    lab.json(&["xdp", "show", name])["port"].clone()
}

fn frame(dst: [u8; 6], src: [u8; 6]) -> Vec<u8> {
    let mut frame = [&dst[..], &src, &[0x88, 0xb6]].concat();
    frame.resize(60, 7);
    frame
}

/// A frame passes each way.
fn meet(vm: &mut Vm, host: &Host) {
    host.drain();
    let there = frame([0xff; 6], vm.mac());
    vm.tx[0].send_waiting(&there, LOST);
    assert_eq!(host.receive(LOST), Some(there));
    let back = frame(vm.mac(), mac_of(FAR));
    host.send(&back);
    assert!(vm.rx[0].take(1, LOST)[0].1 == back);
}

#[test]
fn uplinks_come_and_go_by_the_client() {
    in_namespace(|| {
        pair("wire", 1);
        let lab = Lab::new(1, &[]);
        let mut vm = Vm::connect(&lab.d.socket(0), VmConfig::new(0));
        let mut before = lab.d.settled_usage();
        for round in 0..4 {
            lab.done(&["xdp", "add", "up", "ifname=wire", "mtu=1400", "mode=generic"]);
            let table = lab.done(&["xdp", "list"]);
            let row: Vec<&str> = table.lines().nth(1).expect("a row").split_whitespace().collect();
            assert_eq!(row[..6], ["up", "xdp", "transient", "attached", "1", "1500"]);
            meet(&mut vm, &Host::open("wirep"));
            let port = shown(&lab, "up");
            assert_eq!((&port["in"]["frames"], &port["out"]["frames"]), (&json!(1), &json!(1)));
            assert_eq!((&port["interface"], &port["io"]), (&json!("wire"), &json!("generic")));
            assert_eq!((&port["offloads"], &port["io_refused"]), (&json!([]), &json!(null)));
            assert!(program("wire"));
            assert_eq!(lab.done(&["xdp", "del", "up"]), "");
            assert!(!program("wire"), "the interface is free when it is done");
            if round == 0 {
                before = lab.d.settled_usage();
            }
        }
        let now = lab.d.settled_usage();
        assert!(now.fds <= before.fds && now.threads <= before.threads, "{before:?} {now:?}");
        assert!(now.mappings <= before.mappings + 8, "{before:?} {now:?}");
        assert_eq!(lab.json(&["status"])["xdps"], 0);
        lab.d.stop();
    });
}

#[test]
fn what_runs_is_shown_and_settings_change() {
    in_namespace(|| {
        pair("wire", 1);
        ip("link add br0 type bridge");
        ip("link set br0 up");
        let lab = Lab::new(1, &["--xdp=up,ifname=wire", "--xdp=soft,ifname=br0"]);
        let port = shown(&lab, "soft");
        assert_eq!(port["io"], "generic");
        let why = port["io_refused"].as_str().expect("a reason").to_owned();
        let groups = json!([
            {"io": "native", "why": "mode=auto, and its driver can", "taps": 1, "names": ["up"]},
            {"io": "generic", "why": why, "taps": 1, "names": ["soft"]},
        ]);
        let status = lab.json(&["status"]);
        assert_eq!((&status["tap_writes"], &status["xdps"]), (&groups, &json!(2)));
        let told = lab.done(&["status"]);
        assert!(told.contains("native: 1 (up); mode=auto, and its driver can\n"), "{told}");
        let told = lab.done(&["xdp", "set", "up", "flood=off", "learn=off"]);
        assert_eq!(told.matches(" now").count(), 2, "{told}");
        for (args, part) in [
            (
                &["xdp", "set", "up", "mode=generic"][..],
                "mode of xdp 'up' cannot be changed: vioswitchctl xdp del",
            ),
            (
                &["xdp", "set", "up", "queues=2"],
                "queues of xdp 'up' cannot be changed: vioswitchctl xdp",
            ),
            (&["xdp", "add", "x", "ifname=wire"], "already used by up"),
            (&["xdp", "add", "x", "ifname=none"], "interface none: no such interface"),
            (
                &["xdp", "add", "x", "ifname=wire", "mtu=4000"],
                "mtu must be a number from 68 to 3818",
            ),
            (&["tap", "set", "up", "mtu=1500"], "\"up\" is a xdp"),
            (&["attach", "up", "--qemu"], "an XDP uplink: no virtual machine's port"),
        ] {
            let (_, line) = lab.fails(args);
            assert!(line.contains(part), "{args:?}: {line}");
        }
        ip("link set wire down");
        assert!(wait_for(LOST, || shown(&lab, "up")["state"] == "down"));
        let told = lab.done(&["trace", "p0", "src=02:00:00:00:00:01", "dst=ff:ff:ff:ff:ff:ff"]);
        assert!(told.contains("not to 'up': its interface wire is down"), "{told}");
        let found = || String::from_utf8(lab.ctl(&["doctor"]).stdout).expect("UTF-8");
        assert!(wait_for(LOST, || found().contains("tap-down")), "{}", found());
        assert!(lab.done(&["metrics"]).contains("vioswitch_ports{kind=\"xdp\"} 2"));
        lab.d.stop();
        assert!(!program("wire"));
    });
}

/// `[[xdp]]` of a file: what stands there is served, and a reload does what differs.
#[test]
fn a_file_has_xdp_uplinks() {
    in_namespace(|| {
        pair("wa", 2);
        pair("wb", 1);
        let etc = Dir::new();
        let file = etc.path().join("vioswitch.toml");
        let write = |entries: &[(&str, &str)]| {
            let entry = |(name, more): &(&str, &str)| {
                format!("[[xdp]]\nname = \"{name}\"\nifname = \"{name}\"\n{more}\n")
            };
            fs::write(&file, entries.iter().map(entry).collect::<String>()).expect("write");
        };
        write(&[("wa", "queues = 1\nmode = \"native\"")]);
        let lab = Lab::new(0, &[&format!("--config={}", file.display())]);
        let told = lab.done(&["config", "show"]);
        assert!(told.contains("[[xdp]]\nname = \"wa\"\n") && told.contains("mode = \"native\""));
        assert!(
            lab.d.log().contains("xdp wa: wa has 2 queues, and frames of 1 of them go to the host")
        );
        write(&[("wa", "queues = 2\nmtu = 1300"), ("wb", "")]);
        let diff = lab.done(&["config", "diff"]);
        assert!(diff.contains("+ xdp wb"), "{diff}");
        lab.done(&["config", "reload"]);
        for (name, queues) in [("wa", 2), ("wb", 1)] {
            let port = shown(&lab, name);
            assert_eq!((&port["queues"], &port["state"]), (&json!(queues), &json!("attached")));
            assert!(program(name));
        }
        write(&[("wb", "")]);
        lab.done(&["config", "reload"]);
        assert!(wait_for(LOST, || !program("wa")) && program("wb"));
        lab.d.stop();
    });
}

/// What was added is there again, also where its interface comes later.
#[test]
fn an_uplink_outlives_the_process() {
    in_namespace(|| {
        pair("wire", 1);
        let state = Dir::new();
        let mut lab = Lab::new(1, &[&format!("--state-dir={}", state.path().display())]);
        lab.done(&["xdp", "add", "up", "ifname=wire", "mode=native"]);
        lab.d.kill();
        lab.d.restart();
        assert!(wait_for(LOST, || lab.ctl(&["xdp", "show", "up"]).status.success()));
        assert!(wait_for(LOST, || shown(&lab, "up")["state"] == "attached"), "{}", lab.d.log());
        let mut vm = Vm::connect(&lab.d.socket(0), VmConfig::new(0));
        meet(&mut vm, &Host::open("wirep"));
        drop(vm);
        lab.d.kill();
        ip("link del wire");
        lab.d.restart();
        assert!(wait_for(LOST, || lab.ctl(&["xdp", "show", "up"]).status.success()));
        assert_eq!(shown(&lab, "up")["state"], "left_out");
        pair("wire", 1);
        assert!(wait_for(LOST, || shown(&lab, "up")["state"] == "attached"), "{}", lab.d.log());
        lab.d.stop();
    });
}
