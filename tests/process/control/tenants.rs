//! Bridges and VLANs at run time: what `port set` moves, what is refused, and how the commands tell
//! where a port and an address are.

use testkit::SOON;
use testkit::host::in_namespace;
use testkit::vm::mac_of;

use super::*;

/// How long nothing may come where nothing must.
const QUIET: Duration = Duration::from_millis(50);
const BROADCAST: [u8; 6] = [0xff; 6];

/// Sends a frame from one guest; whether another one gets it.
fn passes(vms: &mut [Vm], from: usize, to: usize, dst: [u8; 6]) -> bool {
    let mut frame = [&dst[..], &mac_of(from as u8), &[0x88, 0xb5]].concat();
    frame.resize(60, 0);
    vms[from].tx[0].send_waiting(&frame, SOON);
    vms[from].tx[0].drain(SOON);
    std::thread::sleep(QUIET);
    vms[to].rx[0].recv(8, |_, got| assert_eq!(got, frame)) == 1
}

/// Has the addresses of a VLAN of a bridge forgotten; there are so many, and others stay.
fn forgets(lab: &Lab, each: [(&str, u16, usize); 3]) {
    for (bridge, vlan, count) in each {
        let of = [format!("--bridge={bridge}"), format!("--vlan={vlan}")];
        let told = lab.done(&["fdb", "flush", &of[0], &of[1]]);
        assert_eq!(told, format!("{count} addresses forgotten\n"), "{of:?}");
    }
}

/// A guest moves to another VLAN and bridge under load of its neighbours, its static address with
/// it; an address may be a port's in each.
#[test]
fn ports_move_between_vlans_and_bridges() {
    let mac = "mac=02:00:00:00:00:07";
    let lab = Lab::with_ports(&["", "", ",vlan=10", ",vlan=10"], &[]);
    let bystanders = lab.bystanders();
    let connect = |id: u8| Vm::connect(&lab.d.socket(id.into()), VmConfig::new(id));
    let mut vms: Vec<Vm> = [2, 3].map(connect).into();
    let static_at = |port: &str, words: &str| {
        let told = lab.done(&["fdb", "show", port]);
        let words = format!("02:00:00:00:00:07 {port} {words}");
        told.lines()
            .any(|line| line.split_whitespace().collect::<Vec<_>>().join(" ").starts_with(&words))
    };
    lab.done(&["port", "set", "p2", mac]);
    assert!(static_at("p2", "10 static"), "{}", lab.done(&["fdb", "show"]));
    let pass = |vms: &mut Vec<Vm>, wanted: bool| {
        for (from, to) in [(0, 1), (1, 0)] {
            for dst in [mac_of(to as u8 + 2), BROADCAST] {
                let mut frame = [&dst[..], &mac_of(from as u8 + 2), &[0x88, 0xb5]].concat();
                frame.resize(60, 0);
                vms[from].tx[0].send_waiting(&frame, SOON);
                vms[from].tx[0].drain(SOON);
                let came = || vms[to].rx[0].wait(if wanted { SOON } else { QUIET });
                assert_eq!({ came }(), wanted, "{from} to {to} {dst:02x?}\n{}", lab.d.log());
                vms[to].rx[0].recv(8, |_, got| assert_eq!(got, frame));
            }
        }
    };
    pass(&mut vms, true);
    let shown = lab.json(&["port", "show", "p2"])["port"].clone();
    assert_eq!((&shown["bridge"], &shown["vlan"]), (&json!("default"), &json!(10)));

    assert_eq!(lab.done(&["port", "set", "p2", "vlan=20"]), "vlan 10 -> 20  now\n");
    pass(&mut vms, false);
    assert!(static_at("p2", "20 static"), "{}", lab.done(&["fdb", "show"]));
    let found = lab.ctl(&["why", "p2", "p3"]);
    let text = String::from_utf8(found.stdout).expect("UTF-8");
    assert!(text.contains("not to 'p3': it has vlan=10, 'p2' has vlan=20"), "{text}");
    assert!(super::findings::found(&lab).contains(&("p2".to_owned(), "port-alone".to_owned())));
    // The same address in the other VLAN, and not in the same one.
    lab.done(&["port", "set", "p3", mac]);
    let (status, line) = lab.fails(&["port", "set", "p2", "vlan=10"]);
    assert!(status == 1 && line.contains("02:00:00:00:00:07 is already used by p3"), "{line}");
    lab.done(&["port", "set", "p3", "bridge=blue", "vlan=20"]);
    pass(&mut vms, false);
    lab.done(&["port", "set", "p3", "mac="]);
    lab.done(&["port", "set", "p2", "bridge=blue"]);
    pass(&mut vms, true);
    assert!(static_at("p2", "blue 20 static"), "{}", lab.done(&["fdb", "show"]));
    forgets(&lab, [("blue", 10, 0), ("default", 20, 0), ("blue", 20, 2)]);

    // As one of a client: it goes with the port.
    lab.done(&["fdb", "add", "02:00:00:00:00:08", "p3"]);
    lab.done(&["fdb", "add", "02:00:00:00:00:08", "p0"]);
    let (_, line) = lab.fails(&["fdb", "del", "02:00:00:00:00:08"]);
    assert!(line.contains("is a static address of several ports: name the port"), "{line}");
    lab.done(&["fdb", "del", "02:00:00:00:00:08", "p0"]);
    lab.done(&["port", "set", "p3", "vlan=", "trunk=20-29", "native=21"]);
    let all = lab.json(&["fdb", "show", "--vlan=21", "--bridge=blue"]);
    assert_eq!(all["addresses"][0]["mac"], "02:00:00:00:00:08", "{all}");
    lab.done(&["port", "set", "p3", "native=20", "trunk=20"]);
    pass(&mut vms, true);
    // Learned addresses of a VLAN are forgotten, and no others.
    let of = |flags: &[&str]| {
        let args = [&["fdb", "show"], flags].concat();
        lab.json(&args)["addresses"].as_array().expect("a list").len()
    };
    assert_eq!(of(&["--bridge=blue"]), 4);
    assert_eq!(lab.done(&["fdb", "flush", "--vlan=20"]), "2 addresses forgotten\n");
    assert_eq!((of(&["--bridge=blue"]), of(&["--bridge=default", "--vlan=0"])), (2, 2));
    let (status, line) = lab.fails(&["fdb", "show", "--bridge=red"]);
    assert!(status == 2 && line.contains("bridge must be one that a port names"), "{line}");
    bystanders.finish();
    lab.d.stop();
}

/// A VLAN is not carried by its bridge's uplink, until it is, or until a router has a trunk.
#[test]
fn a_vlan_without_an_uplink_is_found() {
    in_namespace(|| {
        let lab = Lab::with_ports(&[",vlan=10", ",vlan=10", ""], &["--tap=up,ifname=v0,trunk=20"]);
        let is_found = || {
            let all = super::findings::found(&lab);
            all.contains(&("p0".to_owned(), "vlan-without-uplink".to_owned()))
        };
        assert!(is_found(), "{:?}", super::findings::found(&lab));
        lab.done(&["tap", "set", "up", "trunk=10,20"]);
        assert!(!is_found());
        lab.done(&["tap", "set", "up", "trunk=20"]);
        assert!(is_found());
        lab.done(&["port", "set", "p2", "trunk=all", "native=20"]);
        assert!(!is_found(), "a guest may be its router");
        lab.d.stop();
    });
}

/// Each bad value names its key and what it wants.
#[test]
fn bad_values_name_their_keys() {
    let lab = Lab::with_ports(&["", ",vlan=10"], &[]);
    for (given, wanted) in [
        (&["vlan=0"][..], "vlan must be a number from 1 to 4094, not 0"),
        (&["vlan=4095"], "vlan must be a number from 1 to 4094, not 4095"),
        (&["vlan=ten"], "vlan must be a number from 1 to 4094"),
        (&["trunk=10,20-19"], "trunk must be all, or VLANs from 1 to 4094 such as 10,20-29"),
        (&["trunk=0"], "trunk must be all"),
        (&["trunk="], ""),
        (&["native=4095"], "native must be a number from 0 to 4094"),
        (&["bridge=.a"], "bridge '.a' must be 1 to"),
        (&["vlan=10", "trunk=20"], "vlan does not go with trunk"),
        (&["vlan=10", "native=20"], "vlan does not go with native"),
        (&["native=10"], "for an access port of VLAN 10 write vlan=10"),
        (&["native=0"], "leave it out: a port without vlan and trunk is in no VLAN"),
    ] {
        let args = [&["port", "set", "p0"], given].concat();
        if wanted.is_empty() {
            lab.done(&args);
            continue;
        }
        let (status, line) = lab.fails(&args);
        assert!(status == 2 && line.contains(wanted), "{given:?}: {status} {line}");
    }
    for bad in ["vlan=0", "vlan=10,trunk=20", "trunk=10,x", "bridge="] {
        let port = format!("a,socket=/tmp/never,{bad}");
        let output = Command::new(testkit::proc::program()).args(["--port", &port]).output();
        let output = output.expect("vioswitchd");
        let line = String::from_utf8_lossy(&output.stderr);
        let key = bad.split('=').next().expect("a key");
        assert!(output.status.code() == Some(2) && line.contains(key), "{bad}: {line}");
    }
    lab.d.stop();
}

/// What `trace` says of a frame is what becomes of it.
#[test]
fn a_trace_tells_of_vlans() {
    let keys = ["", ",vlan=10", ",vlan=20", ",trunk=10,20", ",bridge=blue,vlan=10"];
    let lab = Lab::with_ports(&keys, &[]);
    let connect = |id| Vm::connect(&lab.d.socket(usize::from(id)), VmConfig::new(id));
    let mut vms: Vec<Vm> = (0..5).map(connect).collect();
    assert!(!passes(&mut vms, 1, 0, BROADCAST));
    let trace = |port: &str, vlan: &str| {
        let src = format!("src={}", mac_of(1).map(|byte| format!("{byte:02x}")).join(":"));
        let given = ["trace", port, &src, "dst=ff:ff:ff:ff:ff:ff", vlan];
        let args: Vec<&str> = given.into_iter().filter(|word| !word.is_empty()).collect();
        lab.json(&args)
    };
    for (port, vlan, ports, sentence) in [
        ("p1", "", json!(["p3"]), "the frame is in VLAN 10"),
        (
            "p1",
            "vlan=20",
            json!([]),
            "'p1' has vlan=10: a frame with the tag of VLAN 20 does not pass",
        ),
        ("p1", "vlan=0", json!(["p3"]), "out to 'p3' with another tag"),
        ("p3", "vlan=20", json!(["p2"]), "out to 'p2' without its tag"),
        (
            "p3",
            "vlan=30",
            json!([]),
            "'p3' has trunk=10,20 and no native: a frame with the tag of VLAN 30",
        ),
        ("p3", "", json!([]), "no native: a frame without a tag"),
        ("p0", "vlan=10", json!([]), "is flooded"),
    ] {
        let told = trace(port, vlan);
        assert_eq!(told["ports"], ports, "{port} {vlan}: {told}");
        let steps = told["steps"].as_array().expect("steps");
        let has = |step: &Value| step.as_str().is_some_and(|step| step.contains(sentence));
        assert!(steps.iter().any(has), "{port} {vlan}: {told}");
    }
    let told = trace("p1", "vlan=20");
    assert_eq!(
        (&told["reason"], &told["verdict"]),
        (&json!("vlan"), &json!("it is dropped: vlan"))
    );
    lab.d.stop();
}
