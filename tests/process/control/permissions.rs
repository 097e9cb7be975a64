//! Each method of the interface, called by a user who may only look, and by one who may also
//! capture: looking and capturing succeed, and nothing else changes anything. What these users call
//! in vain succeeds for root.

use serde_json::{Value, json};
use testkit::proc::wait_for;
use testkit::{host, skip};

use super::reload::Filed;
use super::*;

const DESCRIPTION: &str = include_str!("../../../docs/io.vioswitch.Switch.varlink");
const CAPTOR: u32 = 65532;
const GROUPS: [&str; 4] = [
    "--control-group=65534",
    "--control-admin-group=65533",
    "--capture-group=65532",
    "--multicast-snooping",
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum For {
    Looking,
    Capturing,
    Changing,
}

/// A method, what it is for, and parameters: with the first of them it succeeds for root.
struct Case(&'static str, For, Vec<Value>);

/// A name that is none, and a long one.
fn names() -> [Value; 4] {
    [json!("../p0"), json!("p0\u{0}\n\u{1b}[2J"), json!("x".repeat(50_000)), json!(null)]
}

/// The same as parameters of this key.
fn named(key: &str) -> Vec<Value> {
    names().into_iter().map(|name| json!({ key: name })).collect()
}

fn looks() -> Vec<Case> {
    let of = |first: Value, others: Vec<Value>| [vec![first], others].concat();
    let places = || {
        let wrong = [json!({"vlan": 4096}), json!({"vlan": -1}), json!({"vlan": 1e300})];
        of(json!({}), [named("port"), named("bridge"), wrong.to_vec()].concat())
    };
    let traces = [
        json!({"port": "p0", "frame": "AAAA"}),
        json!({"port": "p0", "frame": "////".repeat(12_000)}),
        json!({"port": "p0", "frame": "!"}),
        json!({"port": "p0", "len": u64::MAX}),
        json!({"port": "p0", "to": "p1", "ip": "::", "src": "ff:ff:ff:ff:ff:ff"}),
    ];
    let waits = [
        json!({"name": "p0", "state": "negotiating", "timeout_ms": u64::MAX}),
        json!({"name": "p0", "state": "gone"}),
        json!({"name": "p0", "timeout_ms": -1}),
    ];
    let events = [json!({"since": -1}), json!({"since": u64::MAX, "follow": false})];
    let learned = json!({"port": "p0", "src": "02:00:00:00:00:77", "dst": "02:00:00:00:00:66"});
    let plain = |method| Case(method, For::Looking, vec![json!({}), json!({"name": "p0"})]);
    vec![
        plain("GetStatus"),
        plain("ListPorts"),
        plain("ListMirrors"),
        Case("ListFilters", For::Looking, of(json!({}), [named("name"), named("port")].concat())),
        Case("ListConnections", For::Looking, of(json!({}), named("port"))),
        plain("GetWorkers"),
        plain("GetDropReasons"),
        plain("GetFindings"),
        plain("GetMetrics"),
        plain("GetConfig"),
        Case("GetPort", For::Looking, of(json!({"name": "p0"}), named("name"))),
        Case("GetPortDetails", For::Looking, of(json!({"name": "p0"}), named("name"))),
        Case(
            "WaitForPort",
            For::Looking,
            of(json!({"name": "p0", "state": "listening"}), waits.to_vec()),
        ),
        Case("ListAddresses", For::Looking, places()),
        Case("ListGroups", For::Looking, places()),
        Case("Events", For::Looking, of(json!({"since": 0, "follow": false}), events.to_vec())),
        Case("Trace", For::Looking, of(learned, [traces.to_vec(), named("port")].concat())),
    ]
}

fn captures() -> Case {
    let one = |code: u16| json!({"code": code, "jt": 255, "jf": 255, "k": u32::MAX});
    let hostile = [
        json!({"ports": names()}),
        json!({"filter": vec![one(5); 600]}),
        json!({"filter": [one(0x15)]}),
        json!({"snaplen": u64::MAX, "drops": true}),
    ];
    let first = json!({"ports": ["p0"], "snaplen": 64});
    Case("Capture", For::Capturing, [vec![first], hostile.to_vec()].concat())
}

/// In an order in which each succeeds.
fn changes(lab: &Lab) -> Vec<Case> {
    let socket = lab.socket("evil.sock");
    let of = |method, all: Vec<Value>| Case(method, For::Changing, all);
    let mac = "02:00:00:00:00:55";
    vec![
        of("DiffConfig", vec![json!({}), json!({"name": "p0"})]),
        of(
            "Add",
            vec![
                json!({"name": "evil", "socket": socket}),
                json!({"name": "p0", "may_exist": true}),
                json!({"name": "evil", "socket": "/etc/evil", "socket_mode": "0666"}),
                json!({"name": "evil", "kind": "tap", "ifname": "evil0"}),
                json!({"name": "evil", "kind": "xdp", "ifname": "lo"}),
                json!({"name": "evil", "kind": "stream", "socket": socket}),
                json!({"name": "evil", "kind": "mirror", "from": "p0", "to": "p1"}),
                json!({"name": "evil", "kind": "filter", "rules": ["in accept any"]}),
                json!({"name": "evil", "kind": "group", "addresses": ["::/0"]}),
                json!({"name": "evil", "fd": 0}),
            ],
        ),
        of(
            "Set",
            vec![
                json!({"name": "p1", "mtu": 1400, "guard": "off", "vlan": 7}),
                json!({"name": "p0", "admin": "down"}),
                json!({"name": "p0", "unset": ["mac", "guard", "vlan", "isolated"]}),
                json!({"name": "p0"}),
            ],
        ),
        of("Reset", vec![json!({"name": "p1"}), json!({"name": "p0"}), json!({"name": "m"})]),
        of("AddAddress", vec![json!({"mac": mac, "port": "p1"}), json!({"mac": "x", "port": "p"})]),
        of("DeleteAddress", vec![json!({"mac": mac}), json!({"mac": mac, "port": "p0"})]),
        of("FlushConnections", vec![json!({}), json!({"port": "p0"}), json!({"port": "x"})]),
        of("FlushAddresses", vec![json!({}), json!({"port": "p0"}), json!({"vlan": 0})]),
        of(
            "Delete",
            vec![
                json!({"name": "p1"}),
                json!({"name": "p0", "kind": "port"}),
                json!({"name": "m", "kind": "mirror"}),
            ],
        ),
        of("ReloadConfig", vec![json!({"confirm_seconds": 600}), json!({"confirm_seconds": 0})]),
        of("ConfirmConfig", vec![json!({}), json!({"name": "p0"})]),
    ]
}

fn all(lab: &Lab) -> Vec<Case> {
    let mut all = looks();
    all.push(captures());
    all.extend(changes(lab));
    all
}

/// A user who is not root.
#[derive(Clone, Copy, Debug)]
struct User(u32, &'static [u32]);

const LOOKER: User = User(VIEWER, &[]);
const MAY_CAPTURE: User = User(VIEWER, &[CAPTOR]);

impl User {
    fn client(self, lab: &Lab) -> Client {
        lab.clients_of(1, self.0, self.1).remove(0)
    }

    fn may(self, what: For) -> bool {
        match what {
            For::Looking => true,
            For::Capturing => self.1.contains(&CAPTOR),
            For::Changing => false,
        }
    }
}

/// The first answer to a call.
fn first(client: &mut Client, method: &str, parameters: &Value, more: bool) -> Option<Value> {
    let method = format!("{INTERFACE}.{method}");
    client.try_call(&json!({"method": method, "parameters": parameters, "more": more}))
}

fn error(answer: &Value) -> &str {
    answer["error"].as_str().unwrap_or_default()
}

const DENIED: &str = "io.vioswitch.Switch.NotPermitted";

/// All that a call could have changed.
fn state(lab: &Lab, etc: &Path) -> Value {
    let mut addresses = lab.json(&["fdb", "show"]);
    for address in addresses["addresses"].as_array_mut().expect("addresses") {
        ["age", "idle"].into_iter().for_each(|key| drop(address[key].take()));
    }
    let status = lab.json(&["status"]);
    let status = ["ports", "taps", "xdps", "streams", "addresses", "degraded", "unconfirmed"]
        .map(|key| status[key].clone());
    let files = [lab.dir.path(), lab.d.dir(), etc].map(|directory| {
        let names = std::fs::read_dir(directory).expect("a directory").flatten();
        let mut names: Vec<String> = names.map(|file| format!("{:?}", file.file_name())).collect();
        names.sort();
        names
    });
    json!({
        "config": lab.json(&["config", "show"]),
        "mirrors": lab.json(&["mirror", "list"]),
        "addresses": addresses,
        "status": status,
        "files": files,
    })
}

/// A switch with files that differ from what runs, a mirror and an address that is learned.
fn filed() -> (Filed, Vm) {
    let filed = Filed::new(3, &[("f1", "")], &GROUPS);
    filed.lab.done(&["mirror", "add", "m", "from=p0", "to=p2"]);
    filed.lab.done(&["fdb", "add", "02:00:00:00:00:66", "p1"]);
    let mut vm = Vm::connect(&filed.lab.d.socket(0), VmConfig::new(0));
    let hello = [&[0xff; 6][..], &vm.mac(), &[0x88, 0xb5], &[0; 46]].concat();
    vm.tx[0].send_waiting(&hello, LOST);
    let learned = || filed.lab.json(&["status"])["addresses"] == 2;
    assert!(wait_for(LOST, learned), "{}", filed.lab.done(&["fdb", "show"]));
    filed.write(&[("f1", "mtu = 1400"), ("f2", "")]);
    (filed, vm)
}

/// Calls by one user; what is not permitted is refused whatever else is wrong with it.
fn calls(lab: &Lab, user: User) {
    for Case(method, what, all) in all(lab) {
        for (n, parameters) in all.iter().enumerate() {
            for more in [true, false] {
                let mut client = user.client(lab);
                let answer = first(&mut client, method, parameters, more).expect("an answer");
                let text = format!(
                    "{user:?} {method} {:.200} {:.300}",
                    parameters.to_string(),
                    answer.to_string()
                );
                assert_eq!(error(&answer) == DENIED, !user.may(what), "{text}");
                if n == 0 && more && user.may(what) {
                    assert_eq!(error(&answer), "", "{text}");
                }
            }
            if what == For::Changing {
                // Without an answer, and with something permitted before and behind it.
                let call = |method: &str, parameters: &Value, oneway: bool| {
                    let method = format!("{INTERFACE}.{method}");
                    json!({"method": method, "parameters": parameters, "oneway": oneway})
                };
                let mut client = user.client(lab);
                client.ask(&call("GetStatus", &json!({}), true));
                client.ask(&call(method, parameters, true));
                client.ask(&call("GetStatus", &json!({}), false));
                let answer = client.answer().expect("an answer");
                assert!(answer["parameters"]["version"].is_string(), "{answer}");
            }
        }
    }
}

/// Calls that name a method in another way, or two of them.
fn disguised(lab: &Lab, user: User) {
    let called = |method: &str| json!({"method": method, "parameters": {"name": "p1"}});
    for method in [
        "io.vioswitch.Switch.delete",
        "io.vioswitch.Switch..Delete",
        "io.vioswitch.Switch.Delete ",
        "io.vioswitch.Switch.Delete\u{0}",
        "io.vioswitch.switch.Delete",
        "org.varlink.service.Delete",
        ".Delete",
        "Delete",
        "",
    ] {
        let mut client = user.client(lab);
        let answer = client.try_call(&called(method)).expect("an answer");
        assert!(error(&answer).starts_with("org.varlink.service."), "{method:?}: {answer}");
    }
    let upgrade = json!({"method": format!("{INTERFACE}.Delete"), "upgrade": true});
    assert!(!error(&user.client(lab).try_call(&upgrade).expect("an answer")).is_empty());
    let look = format!("{INTERFACE}.GetStatus");
    for raw in [
        format!(
            r#"{{"method":"{look}","method":"{INTERFACE}.Delete","parameters":{{"name":"p1"}}}}"#
        ),
        format!(
            r#"{{"method":"{INTERFACE}.Delete","parameters":{{"name":"p1"}},"method":"{look}"}}"#
        ),
        format!(
            r#"{{"method":"{look}"}}{{"method":"{INTERFACE}.Delete","parameters":{{"name":"p1"}}}}"#
        ),
    ] {
        let mut client = user.client(lab);
        client.send(&[raw.as_bytes(), b"\0"].concat());
        drop(client.answer());
    }
}

#[test]
fn who_may_look_or_capture_changes_nothing() {
    if !is_root() {
        return skip("needs root to be somebody else");
    }
    host::in_namespace(|| {
        let (filed, vm) = filed();
        let lab = &filed.lab;
        let described = DESCRIPTION.lines().filter_map(|line| line.strip_prefix("method "));
        let mut described: Vec<&str> =
            described.filter_map(|line| line.split('(').next()).collect();
        let mut known: Vec<&str> = all(lab).iter().map(|Case(method, ..)| *method).collect();
        described.sort_unstable();
        known.sort_unstable();
        assert_eq!(described, known, "each method needs a case");
        let before = (state(lab, filed.etc.path()), lab.d.settled_usage());
        for user in [LOOKER, MAY_CAPTURE] {
            calls(lab, user);
            disguised(lab, user);
            assert_eq!(state(lab, filed.etc.path()), before.0, "{user:?}");
        }
        assert_eq!(lab.d.settled_usage(), before.1);
        let log = lab.d.log();
        let told = |word: &str| log.contains(&format!("uid {VIEWER} {word}"));
        assert!(told("captures") && !told("adds") && !told("deletes") && !told("sets"), "{log}");
        // All of it works for who may.
        for Case(method, _, parameters) in all(lab) {
            let mut root = lab.client();
            let answer = first(&mut root, method, &parameters[0], true).expect("an answer");
            assert_eq!(error(&answer), "", "{method}: {answer}");
            if method == "ReloadConfig" {
                // A reload that waits is confirmed by nobody else.
                let waiting = state(lab, filed.etc.path());
                [LOOKER, MAY_CAPTURE].into_iter().for_each(|user| calls(lab, user));
                assert_eq!(state(lab, filed.etc.path()), waiting);
            }
        }
        assert_ne!(state(lab, filed.etc.path()), before.0);
        drop(vm);
    });
}

/// Who is in no group of the socket's cannot connect.
#[test]
fn the_capture_group_alone_opens_no_socket() {
    if !is_root() {
        return skip("needs root to be somebody else");
    }
    let lab = Lab::new(1, &GROUPS);
    let copy = lab.dir.path().join("vioswitchctl");
    copy_program(env!("CARGO_BIN_EXE_vioswitchctl"), &copy);
    for args in [&["status"][..], &["capture", "--count=1"], &["port", "del", "p0"]] {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65532", "--clear-groups"]).arg(&copy);
        let output = command.arg("--control").arg(&lab.path).args(args).output();
        let (status, line) = failure(output.expect("setpriv"));
        assert!(status == 4 && line.starts_with("permission denied at "), "{status} {line}");
    }
    lab.d.stop();
}
