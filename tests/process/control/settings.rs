//! Settings of ports that serve: which change at once, which with the next front-end, and what
//! that is to guests.

use serde_json::{Value, json};
use testkit::frontend::Frontend;
use testkit::host;
use testkit::proc::{Dir, wait_for};
use testkit::vm::{Vm, VmConfig};

use super::commands::talk;
use super::{LOST, Lab};

/// The port as the switch tells it.
fn shown(lab: &Lab, name: &str) -> Value {
    lab.json(&["port", "show", name])["port"].clone()
}

#[test]
fn some_settings_change_under_a_guest() {
    let lab = Lab::new(2, &[]);
    let bystanders = lab.bystanders();
    lab.done(&["port", "add", "vm2", "mtu=1500", "mac=02:00:00:00:00:01"]);
    lab.done(&["port", "add", "vm3"]);
    let mut vms =
        [2, 3].map(|id| Vm::connect(&lab.socket(&format!("vm{id}.sock")), VmConfig::new(id)));
    let [two, three] = &mut vms;
    talk(two, three, 50);
    let changed = lab.done(&["port", "set", "vm2", "mtu=9000", "flood=off"]);
    assert_eq!(changed, "flood on -> off   now\nmtu 1500 -> 9000  now\n");
    let port = shown(&lab, "vm2");
    assert_eq!(
        (&port["mtu"], &port["flood"], &port["pending"]),
        (&json!(9000), &json!("off"), &json!([]))
    );
    talk(three, two, 50);
    // A frame of 200 bytes is too big now, and fits again.
    lab.done(&["port", "set", "vm2", "mtu=100"]);
    let drops = || shown(&lab, "vm2")["out"]["drops"]["too_big"].as_u64().unwrap_or(0);
    let mut frame = [&two.mac()[..], &three.mac(), &[0x88, 0xb5]].concat();
    frame.resize(200, 0);
    three.tx[0].send_waiting(&frame, LOST);
    assert!(wait_for(LOST, || drops() == 1), "{}", drops());
    assert_eq!(lab.done(&["port", "set", "vm2", "mtu="]), "mtu 100 -> -  now\n");
    talk(three, two, 50);
    for _ in 0..20 {
        lab.done(&["port", "set", "p0", "mtu=9000", "flood=off", "mac=02:00:00:00:00:07"]);
        lab.done(&["port", "set", "p0", "mtu=", "flood=", "mac="]);
    }
    lab.done(&["port", "set", "vm2", "mac=02:00:00:00:00:02"]);
    let told = lab.done(&["fdb", "show", "--port=vm2"]);
    assert!(told.contains("00:02  vm2   static") && !told.contains("00:01"), "{told}");
    assert_eq!(lab.done(&["port", "set", "vm2", "mac=02:00:00:00:00:02"]), "");
    assert!(vms.iter_mut().all(|vm| vm.fe.still_served()));
    bystanders.finish();
    lab.d.stop();
}

#[test]
fn others_wait_for_the_next_front_end() {
    let state = Dir::new();
    let mut lab = Lab::new(1, &[&format!("--state-dir={}", state.path().display())]);
    lab.done(&["port", "add", "vm2", "mac=02:00:00:00:00:01"]);
    lab.done(&["port", "add", "vm3"]);
    let sockets = ["vm2", "vm3"].map(|name| lab.socket(&format!("{name}.sock")));
    let mut three = Vm::connect(&sockets[1], VmConfig::new(3));
    let offer = |lab: &Lab| {
        let mut fe = Frontend::connect(&lab.socket("vm2.sock"), LOST).expect("connect");
        let offer = (fe.get_features().expect("features"), fe.get_queue_num().expect("queues"));
        assert!(fe.leave(LOST));
        offer
    };
    let before = offer(&lab);
    let mut two = Vm::connect(&sockets[0], VmConfig::new(2));
    talk(&mut two, &mut three, 50);
    let keys = ["port", "set", "vm2", "queues=4", "offload=off", "mtu=1500"];
    let when = "when its front-end reconnects";
    let told =
        format!("queues 1 -> 4      {when}\noffload on -> off  {when}\nmtu - -> 1500      now\n");
    assert_eq!(lab.done(&keys), told);
    let port = shown(&lab, "vm2");
    assert_eq!((&port["queues"], &port["mtu"]), (&json!(1), &json!(1500)));
    let wanted = json!({"key": "queues", "from": "1", "to": "4", "effect": "reconnect"});
    assert_eq!((&port["pending"][0], port["pending"].as_array().map(Vec::len)), (&wanted, Some(2)));
    talk(&mut two, &mut three, 50);
    talk(&mut three, &mut two, 50);
    let counted = shown(&lab, "vm2")["in"]["frames"].clone();
    drop(two);
    let after = offer(&lab);
    assert_eq!((before.1 * 4, before.0 & !after.0 != 0), (after.1, true), "{before:?} {after:?}");
    let mut two = Vm::connect(&sockets[0], VmConfig::new(2));
    let port = shown(&lab, "vm2");
    assert_eq!((&port["queues"], &port["mtu"]), (&json!(4), &json!(1500)));
    assert_eq!((&port["pending"], &port["in"]["frames"]), (&json!([]), &counted));
    let addresses = lab.done(&["fdb", "show", "--port=vm2"]);
    assert!(addresses.contains("02:00:00:00:00:01  vm2   static"), "{addresses}");
    talk(&mut two, &mut three, 50);
    talk(&mut three, &mut two, 50);
    // Back to what it is: nothing waits any more.
    lab.done(&["port", "set", "vm2", "queues=2"]);
    lab.done(&["port", "set", "vm2", "queues=4"]);
    assert_eq!(shown(&lab, "vm2")["pending"], json!([]));
    lab.done(&["port", "set", "vm2", "queues=2"]);
    drop((two, three));
    lab.d.kill();
    lab.d.restart();
    assert!(wait_for(LOST, || lab.ctl(&["status"]).status.success()));
    let port = shown(&lab, "vm2");
    assert_eq!((&port["queues"], &port["mtu"]), (&json!(2), &json!(1500)));
    lab.done(&["port", "del", "vm2"]);
    assert!(!sockets[0].exists());
    lab.d.stop();
}

#[test]
fn what_cannot_be_changed_is_said() {
    let lab = Lab::new(1, &[]);
    lab.done(&["port", "add", "vm1", "mac=02:00:00:00:00:01"]);
    lab.done(&["port", "add", "vm2", "mtu=1500"]);
    let socket = format!("socket={}", lab.socket("x").display());
    let anew = |key: &str, given: &str| {
        format!(
            "{key} of port 'vm2' cannot be changed: vioswitchctl port del vm2 && vioswitchctl port \
             add vm2 {given}"
        )
    };
    let own = lab.socket("vm2.sock").display().to_string();
    let other = anew("socket", &format!("{socket} mtu=1500"));
    let mode = anew("socket-mode", &format!("socket={own} socket-mode=0600 mtu=9000"));
    for (args, status, words) in [
        (&["vm2", &socket][..], 1, other.as_str()),
        (&["vm2", "socket-mode=0600", "mtu=9000"], 1, &mode),
        (&["vm2", "mac=02:00:00:00:00:01", "mtu=9000"], 1, "is already used by vm1"),
        (&["vm2", "mtu=9000", "queues=17"], 2, "queues must be a number from 1 to 16"),
        (&["vm2", "mtu=9000", "queue=1"], 2, "unknown key 'queue'"),
        (&["vm2", "mtu=9000", "speed="], 2, "\"speed\" is no key"),
        (&["vm2", "name="], 2, "\"name\" is no key"),
        (&["vm2", "mtu"], 2, "is not KEY=VALUE"),
        (&["vm", "mtu=9000"], 1, "did you mean 'vm1'?"),
        (&["vm2"], 2, "port set needs <KEY=VALUE>...: see vioswitchctl port set"),
    ] {
        let (found, line) = lab.fails(&[&["port", "set"], args].concat());
        assert!(found == status && line.contains(words), "{args:?}: {found} {line}");
    }
    let (_, line) = lab.fails(&["tap", "set", "vm2", "mtu=9000"]);
    assert_eq!(line, "\"vm2\" is a port");
    assert_eq!(shown(&lab, "vm2")["mtu"], 1500, "all of it or nothing");
    lab.d.stop();
}

#[test]
fn a_taps_mtu_is_the_interfaces() {
    host::in_namespace(|| {
        let lab = Lab::new(1, &["--tap=up,ifname=vset0"]);
        assert_eq!(lab.done(&["tap", "set", "up", "mtu=1400"]), "mtu - -> 1400  now\n");
        assert_eq!(shown(&lab, "up")["mtu"], 1400);
        assert!(host::ip("link show vset0").contains("mtu 1400"));
        assert_eq!(lab.done(&["tap", "set", "up", "flood=off"]), "flood on -> off  now\n");
        assert_eq!(shown(&lab, "up")["flood"], "off");
        let (status, line) = lab.fails(&["tap", "set", "up", "queues=2"]);
        let fixed = "queues of tap 'up' cannot be changed: vioswitchctl tap del up && ";
        assert!(status == 1 && line.starts_with(fixed), "{line}");
        lab.d.stop();
    });
}

#[test]
fn how_a_taps_frames_are_written_is_shown() {
    host::in_namespace(|| {
        let lab = Lab::new(1, &["--tap=up,ifname=vset0", "--tap=plain,ifname=vset1,io=write"]);
        lab.done(&["tap", "add", "more", "ifname=vset2", "io=uring", "queues=2"]);
        for (name, io) in [("up", "uring"), ("plain", "write"), ("more", "uring"), ("p0", "")] {
            let port = shown(&lab, name);
            assert_eq!(port["io"].as_str().unwrap_or_default(), io, "{port}");
            assert_eq!(port["io_refused"], json!(null), "{port}");
        }
        let told = lab.done(&["tap", "show", "more"]);
        assert!(told.lines().any(|line| line.split_whitespace().eq(["io:", "uring"])), "{told}");
        // A group for each way and reason.
        let permitted = "io=auto, and the kernel permits it";
        let groups = json!([
            {"io": "uring", "why": permitted, "taps": 1, "names": ["up"]},
            {"io": "write", "why": "io=write", "taps": 1, "names": ["plain"]},
            {"io": "uring", "why": "io=uring", "taps": 1, "names": ["more"]},
        ]);
        assert_eq!(lab.json(&["status"])["tap_writes"], groups);
        let told = lab.done(&["status"]);
        assert!(told.contains(&format!("uring: 1 (up); {permitted}\n")), "{told}");
        let (status, line) = lab.fails(&["tap", "add", "x", "ifname=vset3", "io=fast"]);
        let wrong = "io must be auto, uring or write, not 'fast'";
        assert!(status != 0 && line.contains(wrong), "{line}");
        lab.d.stop();
    });
}

/// A text of the administrator's own is wherever a port is shown.
#[test]
fn a_label_is_in_lists_details_events_and_metrics() {
    let lab = Lab::with_ports(&[",label=tenant 7", ""], &[]);
    lab.done(&["port", "add", "vm2", "label=a \"b\\c"]);
    let of = |name: &str| shown(&lab, name)["label"].clone();
    assert_eq!(
        (of("p0"), of("p1"), of("vm2")),
        (json!("tenant 7"), json!(null), json!("a \"b\\c"))
    );
    let list = lab.done(&["port", "list"]);
    let lines: Vec<&str> = list.lines().collect();
    assert!(lines[0].ends_with("LABEL") && lines[1].ends_with("tenant 7"), "{list}");
    // What is nowhere set has no column.
    assert!(!list.contains("FLOOD"), "{list}");
    assert!(
        lab.done(&["port", "show", "p0"]).lines().any(|line| {
            line.split_whitespace().collect::<Vec<_>>() == ["label:", "tenant", "7"]
        })
    );
    let metrics = lab.done(&["metrics"]);
    for (port, label) in [("p0", "tenant 7"), ("vm2", "a \\\"b\\\\c")] {
        let info = format!("vioswitch_port_info{{port=\"{port}\",kind=\"port\",");
        let line = metrics.lines().find(|line| line.starts_with(&info)).expect("info");
        assert!(line.contains(&format!(",label=\"{label}\"")), "{line}");
    }
    let events = lab.done(&["--json", "events", "--since=all"]);
    let of_vm2 = |event: &Value| event["port"] == "vm2" && event["label"] == "a \"b\\c";
    assert!(events.lines().any(|line| of_vm2(&serde_json::from_str(line).expect("JSON"))));
    assert_eq!(lab.done(&["port", "set", "vm2", "label="]), "label a \"b\\c -> -  now\n");
    assert_eq!(of("vm2"), json!(null));
    for bad in ["a\nb".to_owned(), "x".repeat(65)] {
        let (status, line) = lab.fails(&["port", "set", "vm2", &format!("label={bad}")]);
        assert_eq!(status, 2);
        assert!(line.contains("must be 1 to 64 printable characters"), "{line}");
    }
    lab.d.stop();
}
