//! The origin of a port: the configuration, or a command while the switch runs; and what a port of
//! another origin cannot have.

use std::fs;

use testkit::proc::Dir;

use super::Lab;
use super::reload::Filed;

#[test]
fn each_port_says_who_gave_it() {
    let etc = Dir::new();
    let file = etc.path().join("vioswitch.toml");
    let socket = etc.path().join("f1.sock");
    let text = format!("[[port]]\nname = \"f1\"\nsocket = \"{}\"\n", socket.display());
    fs::write(&file, text).expect("write");
    let lab = Lab::new(1, &[&format!("--config={}", file.display())]);
    lab.done(&["port", "add", "r1"]);
    for (name, origin) in [("f1", "config"), ("p0", "config"), ("r1", "transient")] {
        assert_eq!(lab.json(&["port", "show", name])["port"]["origin"], origin);
        let told = lab.done(&["port", "show", name]);
        assert!(told.lines().any(|line| line.split_whitespace().eq(["origin:", origin])), "{told}");
        let (status, line) = lab.fails(&["port", "add", name]);
        let text = format!("port '{name}' exists (origin {origin}); --may-exist accepts it");
        assert_eq!((status, line), (1, text));
    }
    lab.d.stop();
}

/// A port of the command line that a client deletes and adds again is the client's, for a reload
/// too, until a client deletes it and restores the other one.
#[test]
fn a_port_that_is_added_again_is_the_clients() {
    let filed = Filed::new(2, &[("f1", "")], &[]);
    let lab = &filed.lab;
    let origin = |name: &str| lab.json(&["port", "show", name])["port"]["origin"].clone();
    let own = lab.json(&["port", "show", "p1"])["socket"]["path"].clone();
    let own = format!("socket={}", own.as_str().expect("a path"));
    assert_eq!(origin("p1"), "config");
    lab.done(&["port", "del", "p1"]);
    lab.done(&["port", "add", "p1", &own, "mtu=1400"]);
    assert_eq!(origin("p1"), "transient");
    assert_eq!(lab.done(&["config", "diff"]), "");
    lab.done(&["config", "reload"]);
    assert_eq!(origin("p1"), "transient");
    // So is one that a client adds there of another kind.
    lab.done(&["port", "del", "p1"]);
    lab.done(&["stream", "add", "p1", &own]);
    lab.done(&["config", "reload"]);
    assert_eq!(lab.json(&["stream", "list"])["ports"][0]["origin"], "transient");
    lab.done(&["stream", "del", "p1"]);
    lab.done(&["port", "reset", "p1"]);
    assert_eq!((origin("p1"), lab.done(&["config", "diff"])), ("config".into(), String::new()));
    drop(filed.lab.d);
}

#[test]
fn one_that_may_exist_must_be_the_same() {
    let lab = Lab::new(1, &[]);
    let add = |more: &[&'static str]| -> Vec<&'static str> {
        [&["port", "add", "vm1", "--may-exist"], more].concat()
    };
    for _ in 0..2 {
        lab.done(&add(&["queues=2", "mac=02:00:00:00:00:01"]));
    }
    let (status, line) = lab.fails(&add(&["mtu=9000"]));
    let wanted = "port 'vm1' exists (origin transient) with other settings: queues is 2, not 1, \
                  mac is 02:00:00:00:00:01, not none, mtu is none, not 9000";
    assert_eq!((status, line.as_str()), (1, wanted));
    let (status, line) = lab.fails(&["tap", "add", "vm1", "ifname=t", "--may-exist"]);
    assert_eq!((status, line.as_str()), (1, "\"vm1\" is a port (origin transient)"));
    lab.d.stop();
}

/// As with ports: the same mirror is accepted, and another one is refused with the difference.
#[test]
fn a_mirror_that_may_exist_must_be_the_same() {
    let lab = Lab::new(3, &[]);
    let add = |more: &[&'static str]| -> Vec<&'static str> {
        [&["mirror", "add", "m", "from=p0", "--may-exist"], more].concat()
    };
    for _ in 0..2 {
        lab.done(&add(&["to=p2", "dir=in"]));
    }
    let (status, line) = lab.fails(&add(&["to=p1"]));
    let wanted = "mirror 'm' exists (origin transient) with other settings: to is p2, not p1, dir \
                  is in, not both";
    assert_eq!((status, line.as_str()), (1, wanted));
    let (_, line) = lab.fails(&["mirror", "add", "m", "from=p0", "to=p2", "dir=in"]);
    assert!(line.contains("--may-exist"), "{line}");
    // Its port may have gone since.
    lab.done(&["port", "del", "p0"]);
    lab.done(&add(&["to=p2", "dir=in"]));
    let (_, line) = lab.fails(&["port", "add", "m", "--may-exist"]);
    assert_eq!(line, "\"m\" is a mirror (origin transient)");
    let add = serde_json::json!({"kind": "mirror", "may_exist": true, "name": "m", "from": "p0",
        "to": "p2", "dir": "in"});
    let answer = lab.client().call("Add", add);
    assert_eq!(answer["parameters"], serde_json::json!({}), "{answer}");
    lab.d.stop();
}

/// The control socket has the words of the configuration for kinds.
#[test]
fn the_kind_of_an_answer_is_a_kind_of_a_request() {
    let lab = Lab::new(1, &[]);
    let mut client = lab.client();
    let kind = client.call("GetPort", serde_json::json!({"name": "p0"}));
    let kind = kind["parameters"]["port"]["kind"].clone();
    assert_eq!(kind, "port");
    let mut call = |method: &str, name: &str| {
        client.call(method, serde_json::json!({"kind": kind, "name": name}))["error"].clone()
    };
    for (method, name) in [("Add", "x"), ("Set", "x"), ("Delete", "x"), ("Set", "p0")] {
        assert_eq!(call(method, name), serde_json::Value::Null, "{method} {name}");
    }
    assert_eq!(lab.json(&["config", "show"])["entries"][0]["kind"], kind);
    assert!(lab.done(&["config", "show"]).contains("[[port]]\nname = \"p0\""));
    let set = serde_json::json!({"kind": "vm", "name": "p0"});
    let refused = lab.client().call("Set", set);
    let wanted = "kind must be one of port, tap, xdp, stream, vduse, mirror, filter, group";
    assert_eq!(refused["parameters"]["wanted"], wanted, "{refused}");
    lab.d.stop();
}

/// Two ports that connect to one front-end would each have half of it. Both listening is found
/// out by the socket itself, and told before that as well.
#[test]
fn a_socket_is_one_ports_alone() {
    let lab = Lab::new(0, &[]);
    let client = format!("socket={}", lab.socket("c.sock").display());
    lab.done(&["port", "add", "c1", "mode=client", &client]);
    let spelled = format!("socket={}", lab.socket("./c.sock").display());
    let in_use = format!(
        "socket {} is already used by c1: see vioswitchctl port show c1",
        lab.socket("c.sock").display()
    );
    for more in [&["mode=client"][..], &[]] {
        let args = [&["port", "add", "c2", &spelled], more].concat();
        assert_eq!(lab.fails(&args), (1, in_use.clone()));
    }
    let control = format!("socket={}", lab.path.display());
    let (_, line) = lab.fails(&["port", "add", "c2", &control]);
    assert!(line.ends_with("is already used by the control socket: choose another path"), "{line}");
    lab.done(&["port", "del", "c1"]);
    lab.done(&["port", "add", "c2", "mode=client", &spelled]);
    lab.d.stop();
}
