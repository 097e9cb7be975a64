//! What clients can do and what the switch answers.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::frontend::Frontend;
use testkit::proc::{self, Dir, wait_for};
use testkit::traffic::{self, Stream, To};
use testkit::vm::{Vm, VmConfig};
use testkit::{rounds, skip};

use varlink::OrgVarlinkServiceInterface;

use super::{INTERFACE, LOST, Lab, failure, is_root};

/// Sends `count` frames from one guest to another, all of which arrive in order.
pub(super) fn talk(from: &mut Vm, to: &mut Vm, count: u32) {
    let stream = Stream { sender: from.cfg.id, queue: 0, to: To::Vm(to.cfg.id), flow: 0 };
    let (mut frame, source) = (Vec::new(), from.mac());
    for n in 0..count {
        traffic::build(&stream, n, 200, &mut frame);
        from.tx[0].send_waiting(&frame, LOST);
    }
    let (mut come, end) = (0, Instant::now() + LOST);
    while come < count {
        to.rx[0].recv(64, |_, frame| {
            if frame[6..12] == source {
                let (_, n) = traffic::parse(frame).expect("a whole frame");
                assert_eq!(n, come, "lost, doubled or overtaken");
                come += 1;
            }
        });
        assert!(Instant::now() < end, "{come} of {count} came");
        to.rx[0].wait(Duration::from_millis(1));
    }
}

/// One life of a port: added, attached, talking both ways, deleted.
fn live(lab: &Lab) {
    let sockets = ["vm2", "vm3"].map(|name| lab.socket(&format!("{name}.sock")));
    lab.done(&["port", "add", "vm2", "mtu=1500"]);
    let socket = format!("socket={}", sockets[1].display());
    lab.done(&["port", "add", "vm3", &socket, "mac=02:00:00:00:00:77"]);
    assert_eq!(lab.json(&["port", "show", "vm2"])["port"]["state"], "listening");
    let mut fe = Frontend::connect(&sockets[0], LOST).expect("connect");
    assert!(fe.get_features().is_ok());
    assert_eq!(lab.json(&["port", "show", "vm2"])["port"]["state"], "negotiating");
    assert!(fe.leave(LOST));
    let mut vms = [2, 3].map(|id| Vm::connect(&sockets[usize::from(id) - 2], VmConfig::new(id)));
    let [two, three] = &mut vms;
    talk(two, three, 100);
    talk(three, two, 100);
    let port = &lab.json(&["port", "show", "vm2"])["port"];
    assert_eq!((&port["state"], &port["mtu"]), (&json!("attached"), &json!(1500)));
    assert_eq!(port["front_end"]["pid"], std::process::id());
    assert_eq!((&port["in"]["frames"], &port["attaches"]), (&json!(100), &json!(2)));
    assert!(port["out"]["frames"].as_u64() >= Some(100), "{port}");
    let addresses = lab.done(&["fdb", "show", "--port", "vm3"]);
    assert_eq!(addresses.lines().count(), 3, "its own and the configured one: {addresses}");
    assert!(addresses.contains("02:00:00:00:00:77  vm3   static"), "{addresses}");
    assert_eq!(lab.done(&["fdb", "flush", "--port", "vm2"]), "1 address forgotten\n");
    for (name, (vm, socket)) in ["vm2", "vm3"].iter().zip(vms.iter_mut().zip(&sockets)) {
        assert_eq!(lab.done(&["port", "del", name]), "");
        assert!(vm.fe.closed_within(LOST) && !socket.exists());
    }
}

/// 10 times: ports are added, attached, talk and are deleted, beside a pair that loses nothing; no
/// descriptor or thread is left.
#[test]
fn ports_come_and_go_by_the_client() {
    let lab = Lab::new(2, &["--workers=2"]);
    let bystanders = lab.bystanders();
    (0..3).for_each(|_| live(&lab));
    let before = lab.d.settled_usage();
    (0..rounds(10, 50, 500)).for_each(|_| live(&lab));
    // Stacks, and up to eight arenas for each CPU, that the C library keeps.
    let now = lab.d.settled_usage();
    assert!(now.fds <= before.fds && now.threads <= before.threads, "{before:?} {now:?}");
    assert!(now.mappings <= before.mappings + 48, "{before:?} {now:?}");
    bystanders.finish();
    assert_eq!(lab.json(&["port", "list"])["ports"].as_array().unwrap().len(), 2);
    lab.d.stop();
    assert!(!lab.path.exists(), "the control socket is left behind");
}

/// Ports of the configuration are like others; when the switch ends they all go with it.
#[test]
fn an_empty_switch_gets_its_ports_later() {
    let lab = Lab::new(0, &[]);
    let table = lab.done(&["port", "list"]);
    assert_eq!(table, "NAME  KIND  ORIGIN  STATE  QUEUES  MTU  ADDRESSES  PID\n");
    lab.done(&["port", "add", "b", "queues=2"]);
    lab.done(&["port", "add", "a", "mtu=9000", "mode=client"]);
    let table = lab.done(&["port", "list"]);
    let rows: Vec<Vec<&str>> =
        table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[1], ["b", "port", "transient", "listening", "2", "-", "0", "-"]);
    assert_eq!(rows[2], ["a", "port", "transient", "listening", "1", "9000", "0", "-"]);
    assert!(lab.done(&["status"]).contains("\nhealth:     healthy\n"));
    assert!(lab.done(&["stats"]).contains("WORKER  FRAMES"));
    let socket = lab.socket("b.sock");
    assert!(socket.exists());
    lab.d.stop();
    assert!(!socket.exists());
}

#[test]
fn what_is_not_done_is_told_in_one_line_with_a_status() {
    let lab = Lab::new(1, &[]);
    lab.done(&["port", "add", "vm1"]);
    let inside = lab.d.log();
    for (args, status, words) in [
        (&["port", "add", "vm1"][..], 1, "port 'vm1' exists (origin transient); --may-exist"),
        (&["port", "add", "p0"], 1, "port 'p0' exists (origin config); --may-exist accepts it"),
        (&["port", "del", "vm11"], 1, "there is no port 'vm11', did you mean 'vm1'?"),
        (&["port", "show", "uplink"], 1, "there is no port 'uplink'; see vioswitchctl port list"),
        (&["fdb", "show", "--port", "vm11"], 1, "did you mean 'vm1'?"),
        (&["fdb", "flush", "--port=x9"], 1, "there is no port 'x9'"),
        (&["port", "add", "x", "socket=/no/x"], 1, "there is no directory \"/no\": mkdir"),
        (&["port", "add", "x", "queues=17"], 2, "queues must be a number from 1 to 16, not 17"),
        (&["port", "add", "x", "queue=1"], 2, "unknown key 'queue': write queues=1"),
        (&["port", "add", "x", "socket_mode=9"], 2, "socket-mode must be octal digits"),
        (&["port", "add", "x", "socket=x.sock"], 2, "must be a whole path, from / on"),
        (&["port", "add", "x", "mtu"], 2, "\"mtu\" is not KEY=VALUE"),
        (&["port", "add", "x", "mtu=68", "mtu=69"], 2, "mtu is given twice"),
        (&["port", "add", "/x"], 2, "name '/x' must be 1 to 64 letters"),
        (&["tap", "add", "t"], 2, "ifname is missing"),
        (&["tap", "add", "t", "ifname=a/b"], 2, "ifname 'a/b' is not an interface name"),
        (&["prot", "list"], 2, "there is no command 'prot', did you mean 'vioswitchctl "),
        (&["port", "lst"], 2, " port list'?"),
        (&["status", "--jsn"], 2, "did you mean '--json'?"),
        (&["port"], 2, "a command is missing, see vioswitchctl port --help"),
        (&[], 2, "a command is missing, see vioswitchctl --help"),
    ] {
        let (found, line) = lab.fails(args);
        assert!(found == status && line.contains(words), "{args:?}: {found} {line}");
    }
    lab.done(&["port", "add", "vm1", "--may-exist"]);
    lab.done(&["port", "del", "x", "--if-exists"]);
    assert_eq!(lab.json(&["port", "list"])["ports"].as_array().unwrap().len(), 2, "{inside}");
    let nowhere = Dir::new();
    let path = nowhere.path().join("x");
    let program = || std::process::Command::new(env!("CARGO_BIN_EXE_vioswitchctl"));
    let output = program().arg("--control").arg(&path).arg("status").output().expect("run");
    let (status, line) = failure(output);
    let at = path.display();
    let instead = format!("vioswitchd --control {at}, or --control PATH");
    assert_eq!((status, line), (3, format!("no switch at {at}: {instead}")));
    for args in [&["--help"][..], &["port", "add", "--help"], &["--version"]] {
        assert!(program().args(args).output().expect("run").status.success(), "{args:?}");
    }
    lab.d.stop();
}

#[test]
fn changing_is_for_root_and_the_configured_group() {
    if !is_root() {
        return skip("other users' processes need root");
    }
    let lab = Lab::new(1, &["--control-group=65534", "--control-admin-group=65533"]);
    let run = |groups: &str, args: &[&str]| lab.as_nobody(groups, args);
    assert!(run("65534", &["status"]).status.success());
    assert!(run("65534", &["port", "show", "p0"]).status.success());
    for args in [
        &["port", "add", "x"][..],
        &["tap", "add", "x", "ifname=x"],
        &["port", "del", "p0"],
        &["fdb", "flush"],
    ] {
        let (status, line) = failure(run("65534", args));
        let wanted = "only root, user 0 or a member of group 65533 may do this: use sudo";
        assert_eq!((status, line.as_str()), (4, wanted), "{args:?}");
    }
    assert!(run("65534,65533", &["port", "add", "x"]).status.success(), "{}", lab.d.log());
    assert!(lab.d.log().contains("uid 65534 adds \"x\""), "{}", lab.d.log());
    assert!(run("65533,65534", &["port", "del", "x"]).status.success());
    lab.d.stop();

    let lab = Lab::new(1, &[]);
    let (status, line) = failure(lab.as_nobody("65534", &["status"]));
    let wanted = "use sudo, or join the group that the socket belongs to";
    assert_eq!(
        (status, line),
        (4, format!("permission denied at {}: {wanted}", lab.path.display()))
    );
    lab.d.stop();
}

/// A value with this key missing, or one that is not expected.
pub fn same_keys(value: &Value, expected: &[&str], optional: &[&str]) {
    let object = value.as_object().unwrap_or_else(|| panic!("no object: {value}"));
    for key in expected {
        assert!(object.contains_key(*key), "{key} is missing: {value}");
    }
    for key in object.keys() {
        let known = expected.contains(&key.as_str()) || optional.contains(&key.as_str());
        assert!(known, "{key} is not documented: {value}");
    }
}

/// What is always told of a port.
const PORT: [&str; 26] = [
    "name",
    "number",
    "kind",
    "origin",
    "state",
    "queues",
    "offloads",
    "send_offloads",
    "flood",
    "isolated",
    "learn",
    "admin",
    "bridge",
    "guard",
    "worker",
    "pending",
    "addresses",
    "dropped_from",
    "in",
    "out",
    "attaches",
    "session_errors",
    "peers_refused",
    "rings_broken",
    "learn_refused",
    "panics",
];

/// Programs rely on these: none of them goes.
#[test]
fn the_json_of_each_command_has_its_keys() {
    let lab = Lab::new(2, &[]);
    let bystanders = lab.bystanders();
    bystanders.finish();
    let status = lab.json(&["status"]);
    let keys = ["version", "pid", "uptime", "workers", "ports", "taps", "addresses", "degraded"];
    let more = ["streams", "events", "plug", "config", "state_dir", "clients", "unconfirmed"];
    let more = [&more[..], &["degradations", "latency", "tap_writes", "xdps", "vduses", "sandbox"]]
        .concat();
    same_keys(&status, &[&keys[..], &more].concat(), &[]);
    assert_eq!((&status["pid"], &status["ports"]), (&json!(lab.d.pid()), &json!(2)));
    let keys = ["connected", "accepted", "refused", "malformed", "too_long", "too_slow", "unread"];
    same_keys(&status["clients"], &keys, &[]);
    assert_eq!(status["clients"]["connected"], 1);
    let [list, show] = [&["port", "list"][..], &["port", "show", "p0"]].map(|args| lab.json(args));
    same_keys(&list, &["ports"], &[]);
    let keys = [
        "port",
        "rings",
        "learn_static",
        "learn_held",
        "rate_waits",
        "log_suppressed",
        "lists",
        "settings",
        "violations",
        "watched_by",
        "observes",
    ];
    same_keys(&show, &keys, &["socket", "command", "session"]);
    let stats = lab.json(&["stats"]);
    same_keys(&stats, &["ports", "workers", "cycles_per_second"], &[]);
    for port in [&list["ports"][0], &show["port"], &stats["ports"][0]] {
        let vlans = ["vlan", "trunk", "native"];
        let rates = ["rate_in", "burst_in", "rate_out", "burst_out"];
        let optional = ["mtu", "front_end", "interface", "io", "io_refused", "label"];
        same_keys(port, &PORT, &[&optional[..], &vlans, &rates].concat());
        same_keys(&port["in"], &["frames", "bytes", "drops", "drop_ages"], &[]);
        assert!(port["in"]["frames"].as_u64() > Some(0), "{port}");
    }
    let worker = [
        "number",
        "turns",
        "busy_turns",
        "busy_cycles",
        "idle_cycles",
        "bursts",
        "frames",
        "wakeups",
        "empty_wakeups",
        "spins_found",
        "spins_empty",
        "signals",
        "signals_suppressed",
        "signals_failed",
        "lock_misses",
        "lock_parks",
        "moves",
        "stalls",
    ];
    same_keys(&stats["workers"][0], &worker, &[]);
    let mac = "mac=02:00:00:00:00:99";
    same_keys(&lab.json(&["port", "add", "x", mac]), &["number", "socket"], &[]);
    let addresses = lab.json(&["fdb", "show", "--port", "x"]);
    same_keys(&addresses, &["addresses"], &[]);
    same_keys(&addresses["addresses"][0], &["mac", "port", "static", "origin"], &[]);
    same_keys(&lab.json(&["fdb", "flush"]), &["flushed"], &[]);
    assert_eq!(lab.json(&["port", "del", "x"]), json!({}));
    lab.d.stop();
}

/// Many ports and addresses come in parts, each once and in order.
#[test]
fn long_answers_come_in_parts() {
    let lab = Lab::new(0, &[]);
    let mut client = lab.client();
    for n in 0..40 {
        let macs: Vec<String> = (0..20).map(|m| format!("02:00:00:00:{n:02x}:{m:02x}")).collect();
        let answer = client.call("Add", json!({"name": format!("p{n}"), "mac": macs}));
        assert_eq!(answer["parameters"]["number"], n, "{answer}");
    }
    let mut parts = |method: &str, key: &str| {
        client.ask(&json!({"method": format!("{INTERFACE}.{method}"), "more": true}));
        let (mut all, mut parts) = (Vec::new(), 0);
        loop {
            let answer = client.answer().expect("an answer");
            all.extend(answer["parameters"][key].as_array().expect(key).iter().cloned());
            parts += 1;
            if answer["continues"] != true {
                return (all, parts);
            }
        }
    };
    let (ports, count) = parts("ListPorts", "ports");
    let numbers: Vec<u64> = ports.iter().map(|port| port["number"].as_u64().unwrap()).collect();
    assert_eq!((numbers, count), ((0..40).collect(), 3));
    let (addresses, count) = parts("ListAddresses", "addresses");
    let macs: Vec<&str> = addresses.iter().map(|entry| entry["mac"].as_str().unwrap()).collect();
    assert!(macs.is_sorted() && macs.len() == 800 && count == 4, "{count} {macs:?}");
    lab.d.stop();
}

/// What is wrong with a call is told by a typed error, with the nearest name where there is one.
#[test]
fn a_wrong_call_gets_a_typed_error() {
    let lab = Lab::new(1, &[]);
    let mut client = lab.client();
    let service = "org.varlink.service";
    let own = |name: &str| format!("{INTERFACE}.{name}");
    let with = |name: &str, parameters: Value| (own(name), parameters);
    for ((method, parameters), error, words) in [
        (with("GetStats", json!({})), "MethodNotFound", "\"nearest\":\"GetStatus\""),
        (with("Nonsense", json!({})), "MethodNotFound", "Nonsense"),
        (("x".into(), json!({})), "MethodNotFound", "x"),
        (("io.vioswitch.Swich.GetStatus".into(), json!({})), "InterfaceNotFound", "Swich"),
        (("org.varlink.service.GetInf".into(), json!({})), "MethodNotFound", "GetInfo"),
        (with("GetStatus", json!({"a": 1})), "InvalidParameter", "\"parameter\":\"a\""),
        (with("ListPorts", json!({"name": "p0"})), "InvalidParameter", "name"),
        (with("ListPorts", json!({})), "ExpectedMore", ""),
        (with("ListAddresses", json!({})), "ExpectedMore", ""),
        (with("ListAddresses", json!({"prt": "p0"})), "InvalidParameter", "\"nearest\":\"port\""),
        (with("ListAddresses", json!({"port": 1})), "InvalidParameter", "port"),
        (with("GetPort", json!({})), "InvalidParameter", "name"),
        (with("GetPort", json!({"name": []})), "InvalidParameter", "name"),
        (with("GetPort", json!({"name": "p0", "nam": 1})), "InvalidParameter", "nearest"),
        (with("GetWorkers", json!({"x": null})), "InvalidParameter", "x"),
        (with("Delete", json!({})), "InvalidParameter", "name"),
        (with("Delete", json!({"name": "p0", "force": true})), "InvalidParameter", "force"),
        (with("FlushAddresses", json!({"port": false})), "InvalidParameter", "port"),
        (with("Add", json!({})), "InvalidParameter", "name"),
        (with("Add", json!({"kind": "tap", "name": 1})), "InvalidParameter", "name"),
    ] {
        client.ask(&json!({"method": method, "parameters": parameters}));
        let answer = client.answer().expect("an answer");
        assert_eq!(answer["error"], format!("{service}.{error}"), "{method} {parameters}");
        assert!(answer.to_string().contains(words), "{answer}");
    }
    for (method, parameters, field, value) in [
        ("Add", json!({"name": "x", "mac": [1]}), "mac", "[1]"),
        ("Add", json!({"name": "x", "queues": 1.5}), "queues", "1.5"),
        ("Add", json!({"name": "x", "offload": false}), "offload", "false"),
        ("Add", json!({"name": "x", "socket_mode": "9"}), "socket_mode", "9"),
        ("Add", json!({"name": "x", "nonsense": {}}), "nonsense", "{}"),
        ("Add", json!({"name": "x", "socket": "y".repeat(200)}), "socket", "yyy"),
        ("Add", json!({"kind": "tap", "name": "x", "ifname": "t", "queues": 65}), "queues", "65"),
    ] {
        let answer = client.call(method, parameters);
        assert_eq!(answer["error"], own("InvalidParameter"), "{answer}");
        let told = &answer["parameters"];
        assert_eq!(told["field"], field, "{answer}");
        assert!(told["value"].as_str().unwrap().starts_with(value), "{answer}");
        assert!(!told["wanted"].as_str().unwrap().is_empty(), "{answer}");
    }
    assert_eq!(client.call("Add", json!({"name": "p0"}))["error"], own("PortExists"));
    let taken = json!({"name": "x", "socket": lab.d.socket(0)});
    assert_eq!(client.call("Add", taken)["error"], own("Refused"));
    assert_eq!(client.call("Delete", json!({"name": "x"}))["error"], own("NoSuchPort"));
    client.ask(&json!({"method": own("GetStatus"), "upgrade": true}));
    assert_eq!(client.answer().unwrap()["error"], "org.varlink.service.InvalidParameter");
    // No answer is wanted, and the next call's is the next one.
    client.ask(&json!({"method": own("Nonsense"), "oneway": true}));
    client.ask(&json!({"method": own("Delete"), "oneway": true, "parameters": {"name": "p0"}}));
    client.ask(&json!({"method": "org.varlink.service.GetInfo"}));
    let info = client.answer().expect("an answer");
    assert_eq!(info["parameters"]["interfaces"], json!([service, INTERFACE]));
    let gone = || lab.json(&["port", "list"])["ports"] == json!([]);
    assert!(wait_for(LOST, gone), "the port stays");
    let ask = json!({"method": "org.varlink.service.GetInterfaceDescription",
                     "parameters": {"interface": INTERFACE}});
    client.ask(&ask);
    let described = client.answer().expect("an answer");
    let text = include_str!("../../../docs/io.vioswitch.Switch.varlink");
    assert_eq!(described["parameters"]["description"], text);
    lab.d.stop();
}

/// A switch whose control socket cannot be had does not start: one that another switch has, or in a
/// directory that is missing.
#[test]
fn without_its_control_socket_a_switch_does_not_start() {
    let lab = Lab::new(1, &[]);
    let dir = Dir::new();
    let missing = dir.path().join("no/control");
    for (path, text) in [(&lab.path, "is in use by "), (&missing, "mkdir -p")] {
        let port = format!("--port=p0,socket={}", dir.path().join("p0").display());
        let args = [format!("--control={}", path.display()), port];
        let child = Command::new(proc::program()).args(args).stderr(Stdio::piped()).spawn();
        let mut child = child.expect("it starts");
        let ended = proc::ends_within(&mut child, LOST);
        let _ = child.kill();
        let log = child.wait_with_output().expect("its end").stderr;
        let log = String::from_utf8_lossy(&log);
        assert_eq!(ended.and_then(|status| status.code()), Some(1), "{log}");
        assert!(log.contains("control: ") && log.contains(text), "{log}");
        assert!(!dir.path().join("p0").exists(), "it has touched its ports");
    }
    assert_eq!(lab.json(&["port", "list"])["ports"][0]["name"], "p0");
    lab.d.stop();
}

/// Another implementation of the protocol reads what we write.
#[test]
fn the_varlink_crate_understands_the_switch() {
    let lab = Lab::new(40, &[]);
    let address = format!("unix:{}", lab.path.display());
    let connection = varlink::Connection::with_address(&address).expect("connect");
    let mut service = varlink::OrgVarlinkServiceClient::new(Arc::clone(&connection));
    let info = service.get_info().expect("info");
    assert_eq!(info.interfaces, ["org.varlink.service", INTERFACE]);
    for interface in ["org.varlink.service", INTERFACE] {
        let described = service.get_interface_description(interface).expect("a description");
        let text = described.description.expect("text");
        assert!(text.contains(&format!("interface {interface}\n")), "{text}");
    }
    type Method = varlink::MethodCall<Value, Value, varlink::Error>;
    let method = |name: &str, parameters: Value| {
        Method::new(Arc::clone(&connection), format!("{INTERFACE}.{name}"), parameters)
    };
    let status = method("GetStatus", json!({})).call().expect("a status");
    assert_eq!(status["pid"], lab.d.pid());
    let added = method("Add", json!({"name": "x", "queues": 2})).call().expect("added");
    assert_eq!(added["number"], 40);
    let mut list = method("ListPorts", json!({}));
    let parts = list.more().expect("several parts");
    let ports = parts.flat_map(|part| part.expect("a part")["ports"].as_array().cloned().unwrap());
    assert_eq!(ports.count(), 41);
    let error = method("GetPort", json!({"name": "y"})).call().expect_err("no such port");
    assert!(format!("{error:?}").contains("io.vioswitch.Switch.NoSuchPort"), "{error:?}");
    let error = method("Nonsense", json!({})).call().expect_err("no such method");
    let kind = error.kind();
    assert!(matches!(kind, varlink::ErrorKind::MethodNotFound(_)), "{kind:?}");
    drop((service, connection));
    lab.d.stop();
}
