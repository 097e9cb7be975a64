//! Streams are added, changed and deleted: by vioswitchctl, and by a file.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::proc::{Dir, wait_for};
use testkit::stream::Peer;
use testkit::traffic::{self, To};
use testkit::vm::{Vm, VmConfig, mac_of};

use super::{LOST, Lab};

/// The station behind the stream.
const FAR: u8 = 9;
const BROADCAST: [u8; 6] = [0xff; 6];

fn frame(sender: u8, to: To, seq: u32) -> Vec<u8> {
    let mut frame = Vec::new();
    traffic::build(&traffic::Stream { sender, queue: 0, to, flow: 0 }, seq, 200, &mut frame);
    frame
}

/// Both sides learn where the other is, and a frame passes each way.
fn meet(vm: &mut Vm, peer: &mut Peer) {
    let mut hello = [&BROADCAST[..], &mac_of(FAR), &[0x88, 0xb6]].concat();
    hello.resize(60, 1);
    peer.send(&hello);
    let came = vm.rx[0].take(1, LOST);
    assert!(came.len() == 1 && came[0].1[6..12] == mac_of(FAR));
    let there = frame(vm.cfg.id, To::Vm(FAR), 1);
    vm.tx[0].send_waiting(&there, LOST);
    assert_eq!(peer.receive_from(vm.mac(), LOST), Some(there));
    let back = frame(FAR, To::Vm(vm.cfg.id), 1);
    peer.send(&back);
    assert!(vm.rx[0].take(1, LOST)[0].1 == back);
}

fn attached(lab: &Lab, name: &str) -> Value {
    lab.done(&["port", "wait", name, "--timeout=20s"]);
    lab.json(&["stream", "show", name])
}

#[test]
fn streams_come_and_go_by_the_client() {
    let lab = Lab::new(1, &[]);
    let mut vm = Vm::connect(&lab.d.socket(0), VmConfig::new(0));
    let before = lab.d.settled_usage();
    for _ in 0..3 {
        lab.done(&["stream", "add", "net", "mtu=9000"]);
        let path = lab.socket("net.sock");
        assert!(path.exists(), "the default socket");
        let row = |lab: &Lab| {
            let table = lab.done(&["stream", "list"]);
            assert_eq!(table.lines().count(), 2, "{table}");
            table.lines().nth(1).expect("a row").split_whitespace().map(str::to_owned).collect()
        };
        let shown: Vec<String> = row(&lab);
        assert_eq!(shown, ["net", "stream", "transient", "listening", "1", "9000", "0", "-"]);
        let why = String::from_utf8(lab.ctl(&["why", "p0", "net"]).stdout).expect("UTF-8");
        assert!(why.contains("not to 'net': no process is connected to it"), "{why}");
        let (_, line) = lab.fails(&["attach", "net", "--qemu"]);
        assert!(line.contains("-netdev stream"), "{line}");
        let mut peer = Peer::connect(&path);
        let shown = attached(&lab, "net");
        assert_eq!(shown["port"]["front_end"]["pid"], std::process::id());
        assert_eq!(shown["socket"]["mode"], "0660");
        meet(&mut vm, &mut peer);
        let port = &lab.json(&["port", "show", "net"])["port"];
        assert_eq!((&port["in"]["frames"], &port["out"]["frames"]), (&json!(2), &json!(1)));
        assert_eq!(lab.done(&["stream", "del", "net"]), "");
        assert!(peer.closed_within(LOST) && !path.exists());
        assert_eq!(lab.json(&["stream", "list"])["ports"], json!([]));
    }
    let now = lab.d.settled_usage();
    assert!(now.fds <= before.fds && now.threads <= before.threads, "{before:?} {now:?}");
    let events = lab.done(&["--json", "events", "--since=all"]);
    for kind in ["port_added", "attached", "detached", "port_deleted"] {
        assert!(events.matches(&format!("\"{kind}\"")).count() >= 3, "{kind}: {events}");
    }
    assert_eq!(lab.json(&["status"])["streams"], 0);
    lab.d.stop();
}

#[test]
fn settings_of_a_stream_change_while_it_serves() {
    let lab = Lab::new(1, &["--stream=x,socket=/nowhere/x,mode=client"]);
    let path = lab.socket("far");
    let listener = UnixListener::bind(&path).expect("listen");
    lab.done(&["stream", "add", "net", "mode=client", &format!("socket={}", path.display())]);
    let mut vm = Vm::connect(&lab.d.socket(0), VmConfig::new(0));
    let mut peer = Peer::accept(&listener);
    attached(&lab, "net");
    meet(&mut vm, &mut peer);
    let told =
        lab.done(&["stream", "set", "net", "mtu=1000", "flood=off", "mac=02:00:00:00:00:77"]);
    assert_eq!(told.matches(" now").count(), 3, "{told}");
    assert!(lab.done(&["fdb", "show", "--port", "net"]).contains("02:00:00:00:00:77"));
    let (status, line) = lab.fails(&["stream", "set", "net", "mode=server"]);
    assert!(
        status == 1
            && line.contains("vioswitchctl stream del net && vioswitchctl stream add net socket="),
        "{line}"
    );
    for (words, part) in [
        (&["net", "offload=on"][..], "'offload' is a key of port, tap, vduse, template"),
        (&["net", "queues=2"], "'queues' is a key of port, tap, xdp, template, not of stream"),
        (&["other", "mode=client", "socket-mode=0600"], "does not go with mode=client"),
        (&["other", &format!("socket={}", path.display())], "already used by net"),
        (&["p0"], "exists"),
    ] {
        let (_, line) = lab.fails(&[&["stream", "add"], words].concat());
        assert!(line.contains(part), "{line}");
    }
    let (_, line) = lab.fails(&["port", "set", "net", "mtu=1500"]);
    assert!(line.contains("\"net\" is a stream"), "{line}");
    // Looking at what passes, and at what would.
    let trace = lab.done(&["trace", "p0", "src=02:00:00:00:00:01", "dst=02:00:00:00:00:77"]);
    assert!(trace.contains("out to 'net'"), "{trace}");
    let trace = lab.done(&["trace", "p0", "src=02:00:00:00:00:01", "dst=ff:ff:ff:ff:ff:ff"]);
    assert!(trace.contains("no process is connected to it"), "{trace}");
    assert!(lab.done(&["metrics"]).contains("vioswitch_ports{kind=\"stream\"} 2"));
    drop(peer);
    let mut peer = Peer::accept(&listener);
    attached(&lab, "net");
    vm.tx[0].send_waiting(&frame(0, To::Vm(FAR), 2), LOST);
    assert!(peer.receive_from(vm.mac(), LOST).is_some());
    drop((peer, listener));
    fs::remove_file(path).expect("remove");
    lab.d.stop();
}

/// `[[stream]]` of a file: what stands there is served, and a reload does what differs.
#[test]
fn a_file_has_streams() {
    let etc = Dir::new();
    let write = |names: &[(&str, &str)]| {
        let text: String = names.iter().map(|(name, more)| entry(etc.path(), name, more)).collect();
        fs::write(etc.path().join("vioswitch.toml"), text).expect("write");
    };
    write(&[("a", "mtu = 1500"), ("b", "")]);
    let config = format!("--config={}", etc.path().join("vioswitch.toml").display());
    let lab = Lab::new(0, &[&config]);
    let shown = lab.done(&["config", "show"]);
    assert!(
        shown.contains("[[stream]]\nname = \"a\"\n") && shown.contains("mtu = 1500"),
        "{shown}"
    );
    let mut peer = Peer::connect(&etc.path().join("b"));
    attached(&lab, "b");
    write(&[("a", "mtu = 9000"), ("c", "flood = \"off\"")]);
    let diff = lab.done(&["config", "diff"]);
    assert!(diff.contains("- stream b") && diff.contains("detaches pid"), "{diff}");
    assert!(diff.contains("~ stream a  mtu 1500 -> 9000  now"), "{diff}");
    assert!(diff.contains("+ stream c"), "{diff}");
    let done = lab.done(&["config", "reload"]);
    assert!(done.ends_with("reloaded: 1 added, 1 changed, 1 deleted\n"), "{done}");
    assert!(peer.closed_within(LOST) && !etc.path().join("b").exists());
    let mut peer = Peer::connect(&etc.path().join("c"));
    attached(&lab, "c");
    assert!(!peer.closed_within(Duration::from_millis(10)));
    drop(peer);
    lab.d.stop();
}

fn entry(etc: &Path, name: &str, more: &str) -> String {
    let socket = etc.join(name);
    format!("[[stream]]\nname = \"{name}\"\nsocket = \"{}\"\n{more}\n", socket.display())
}

/// What was added outlives the process, and connects again.
#[test]
fn a_stream_that_was_added_is_there_after_a_restart() {
    let state = Dir::new();
    let far = Dir::new();
    let path = far.path().join("far");
    let listener = UnixListener::bind(&path).expect("listen");
    let mut lab = Lab::new(1, &[&format!("--state-dir={}", state.path().display())]);
    lab.done(&["stream", "add", "net", "mode=client", &format!("socket={}", path.display())]);
    let mut peer = Peer::accept(&listener);
    attached(&lab, "net");
    lab.d.kill();
    assert!(peer.closed_within(LOST));
    lab.d.restart();
    let mut peer = Peer::accept(&listener);
    assert!(wait_for(LOST, || lab.ctl(&["status"]).status.success()), "{}", lab.d.log());
    assert_eq!(attached(&lab, "net")["port"]["origin"], "kept");
    let mut vm = Vm::connect(&lab.d.socket(0), VmConfig::new(0));
    meet(&mut vm, &mut peer);
    lab.d.stop();
}

/// An address that is a setting of a stream is taken from its settings, and each kind is deleted by
/// its own command.
#[test]
fn an_address_leaves_a_stream_and_a_command_deletes_its_own_kind() {
    let lab = Lab::new(1, &["--stream=net,socket=/nowhere/net,mode=client,mac=02:00:00:00:00:77"]);
    let vm = Vm::connect(&lab.d.socket(0), VmConfig::new(0));
    lab.done(&["port", "wait", "p0", "--timeout=20s"]);
    lab.done(&["fdb", "del", "02:00:00:00:00:77"]);
    let shown = lab.done(&["fdb", "show", "--port=net"]);
    assert!(!shown.contains("02:00:00:00:00:77"), "{shown}");
    let shown = lab.done(&["config", "show"]);
    assert!(!shown.contains("02:00:00:00:00:77"), "{shown}");
    for (kind, name, is) in
        [("tap", "p0", "port"), ("stream", "p0", "port"), ("tap", "net", "stream")]
    {
        for more in [&[][..], &["--if-exists"]] {
            let (status, line) = lab.fails(&[&[kind, "del", name], more].concat());
            let told = format!("'{name}' is a {is}, not a {kind}: {is} del {name} deletes it");
            assert_eq!((status, line), (1, told));
        }
    }
    assert_eq!(lab.json(&["port", "show", "p0"])["port"]["state"], "attached");
    let (status, line) = lab.fails(&["tap", "del", "nothing"]);
    assert!(status == 1 && line.contains("nothing"), "{line}");
    // All are ports: `port del` is for each of them.
    lab.done(&["port", "del", "net"]);
    lab.done(&["port", "del", "p0"]);
    drop(vm);
}
