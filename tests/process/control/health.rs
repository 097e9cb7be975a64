//! What the switch lacks: `status`, `health`, the metrics and the events report it by its code, and
//! the switch tries again until it has it.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixListener;

use testkit::host::{Host, in_namespace, ip};

use super::commands::talk;
use super::kept::Kept;
use super::reload::Filed;
use super::unconfirmed::crash;
use super::*;

/// How many reasons of this code the metrics have, and `status` as many.
fn count(lab: &Lab, code: &str) -> u64 {
    // Between two looks something may have changed.
    let agreed = (0..3).find_map(|_| {
        let (counted, told) = looks(lab, code);
        (counted == told).then_some(counted)
    });
    agreed.unwrap_or_else(|| panic!("{code}: {:?}", looks(lab, code)))
}

fn looks(lab: &Lab, code: &str) -> (u64, u64) {
    let series = format!("vioswitch_degraded{{reason=\"{code}\"}} ");
    let text = lab.done(&["metrics"]);
    let line = text.lines().find_map(|line| line.strip_prefix(series.as_str()));
    let counted = line.unwrap_or_else(|| panic!("no {series}: {text}")).parse().expect("a number");
    let status = lab.json(&["status"]);
    let all = status["degradations"].as_array().expect("degradations").iter();
    let told = all.filter(|one| one["code"] == code).inspect(|one| {
        let text = one["text"].as_str().expect("a text");
        let since = one["since"].as_u64().expect("a time");
        assert!(!text.is_empty() && since > 1_600_000_000_000_000, "{one}");
    });
    (counted, told.count() as u64)
}

/// `health` agrees with the metrics.
fn is_healthy(lab: &Lab) -> bool {
    let output = lab.ctl(&["--json", "health"]);
    let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let all = lab.json(&["status"])["degradations"].clone();
    assert_eq!(output.status.success(), told["health"] == "healthy", "{told}");
    told["health"] == "healthy" && all == json!([])
}

fn heals(lab: &Lab) {
    assert!(wait_for(LOST, || is_healthy(lab)), "{}\n{}", lab.done(&["status"]), lab.d.log());
}

/// The events of a kind, by their ports.
fn ports_of(lab: &Lab, kind: &str) -> Vec<Value> {
    let lines = lab.done(&["--json", "events", "--since=all"]);
    let events = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    events.filter(|event| event["kind"] == kind).map(|event| event["port"].clone()).collect()
}

#[test]
fn metrics_are_served_once_their_address_can_be_had() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = taken.local_addr().expect("address");
    let lab = Lab::new(1, &[&format!("--metrics={address}")]);
    assert_eq!((count(&lab, "metrics"), is_healthy(&lab)), (1, false));
    let told = lab.done(&["status"]);
    assert!(told.contains("metrics: cannot listen at"), "{told}");
    assert_eq!(ports_of(&lab, "degraded"), [Value::Null]);
    drop(Vm::connect(&lab.d.socket(0), VmConfig::new(0)));
    drop(taken);
    heals(&lab);
    assert_eq!((count(&lab, "metrics"), ports_of(&lab, "recovered")), (0, vec![Value::Null]));
    let mut socket = std::net::TcpStream::connect(address).expect("it listens");
    socket.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("send");
    let mut text = String::new();
    socket.read_to_string(&mut text).expect("an answer");
    assert!(text.contains("vioswitch_degraded{reason=\"metrics\"} 0"), "{text}");
    lab.d.stop();
    // What came late ends with the rest.
    assert!(TcpListener::bind(address).is_ok());
}

#[test]
fn a_directory_of_ports_by_plug_that_is_made_late_is_looked_at() {
    let dir = Dir::new();
    let plug = dir.path().join("plug");
    let lab = Lab::new(1, &[&format!("--plug={}", plug.display())]);
    // It is known at once, not some time after the start.
    assert_eq!((count(&lab, "plug"), is_healthy(&lab)), (1, false));
    assert!(lab.d.log().contains("degraded, plug "), "{}", lab.d.log());
    fs::create_dir(&plug).expect("mkdir");
    heals(&lab);
    assert_eq!(ports_of(&lab, "recovered"), [Value::Null]);
    let _socket = UnixListener::bind(plug.join("vm9")).expect("bind");
    assert!(wait_for(LOST, || lab.ctl(&["port", "show", "vm9"]).status.success()));
    fs::remove_dir_all(&plug).expect("remove");
    assert!(wait_for(LOST, || count(&lab, "plug") == 1), "{}", lab.d.log());
    lab.d.stop();
}

#[test]
fn a_port_without_a_directory_for_its_socket_comes_when_there_is_one() {
    let dir = Dir::new();
    let (late, path) = (dir.path().join("late"), dir.path().join("late/p1"));
    let stream = dir.path().join("late/s1");
    let mut lab = Lab::new(
        1,
        &[
            &format!("--port=p1,socket={},mac=02:00:00:00:00:09", path.display()),
            &format!("--stream=s1,socket={}", stream.display()),
        ],
    );
    assert_eq!((count(&lab, "port-left-out"), is_healthy(&lab)), (2, false));
    assert_eq!(ports_of(&lab, "degraded"), ["p1", "s1"]);
    let state = |lab: &Lab, name: &str| lab.json(&["port", "show", name])["port"]["state"].clone();
    assert_eq!(["p1", "s1"].map(|name| state(&lab, name)), ["left_out", "left_out"]);
    assert!(lab.fails(&["port", "wait", "p1", "--for=listening", "--timeout=50ms"]).0 == 1);
    let why = lab.ctl(&["why", "p0", "p1"]);
    let told = String::from_utf8_lossy(&why.stdout).into_owned();
    assert!(
        why.status.code() == Some(1) && told.contains("not to 'p1': it has no socket"),
        "{told}"
    );
    // What it is to be may change meanwhile.
    lab.done(&["port", "set", "p1", "mtu=9000"]);
    fs::create_dir(&late).expect("mkdir");
    heals(&lab);
    let mut back = ports_of(&lab, "recovered");
    back.sort_by_key(Value::to_string);
    assert_eq!(back, ["p1", "s1"]);
    assert!(lab.d.log().contains("port p1: in service now, after "), "{}", lab.d.log());
    let port = lab.json(&["port", "show", "p1"])["port"].clone();
    assert_eq!((&port["state"], &port["mtu"]), (&json!("listening"), &json!(9000)));
    assert!(lab.done(&["fdb", "show"]).contains("02:00:00:00:00:09  p1"));
    let mut p0 = Vm::connect(&lab.d.socket(0), VmConfig::new(0));
    let mut p1 = Vm::connect(&path, VmConfig::new(1));
    talk(&mut p0, &mut p1, 100);
    UnixStream::connect(&stream).expect("the stream listens");
    // As any other port it can be deleted, and its socket goes.
    lab.done(&["port", "del", "p1"]);
    assert!(!path.exists());
    lab.d.signal(libc::SIGTERM);
    assert!(lab.d.exit_status(LOST).success() && !stream.exists(), "{}", lab.d.log());
}

#[test]
fn a_tap_that_cannot_be_had_costs_no_port_and_comes_when_it_can() {
    if !is_root() {
        return testkit::skip("network namespaces need root");
    }
    in_namespace(|| {
        ip("tuntap add t0 mode tun");
        let mut lab = Lab::new(2, &["--tap=up,ifname=t0", "--workers=2"]);
        assert_eq!((count(&lab, "tap-left-out"), is_healthy(&lab)), (1, false));
        assert_eq!(ports_of(&lab, "degraded"), ["up"]);
        assert_eq!(lab.json(&["port", "show", "up"])["port"]["state"], "left_out");
        let broadcast = ["trace", "p0", "src=02:00:00:00:00:09", "dst=ff:ff:ff:ff:ff:ff"];
        assert!(lab.done(&broadcast).contains("not to 'up': it has no interface"));
        let told = lab.done(&["status"]);
        assert!(told.contains("tap up: interface t0: exists and is not a TAP"), "{told}");
        let bystanders = lab.bystanders();
        std::thread::sleep(Duration::from_secs(2));
        ip("link delete t0");
        heals(&lab);
        assert_eq!(ports_of(&lab, "recovered"), ["up"]);
        bystanders.finish();
        // It serves: what a guest sends goes out there.
        let host = Host::open("t0");
        let mut vm = Vm::connect(&lab.d.socket(0), VmConfig::new(0));
        let frame = [&[0xff; 6][..], &vm.mac(), &[0x88, 0xb5], &[7; 46]].concat();
        vm.tx[0].send_waiting(&frame, LOST);
        let came = wait_for(LOST, || host.receive(LOST).is_some_and(|got| got == frame));
        assert!(came, "{}", lab.d.log());
        // It is looked after as any other: lost, it comes back.
        ip("link delete t0");
        let state = || lab.json(&["port", "show", "up"])["port"]["state"].clone();
        assert!(wait_for(LOST, || ports_of(&lab, "interface_back").len() == 1), "{}", state());
        lab.done(&["tap", "del", "up"]);
        assert!(wait_for(LOST, || testkit::host::index_of("t0").is_none()));
        lab.d.signal(libc::SIGTERM);
        assert!(lab.d.exit_status(LOST).success(), "{}", lab.d.log());
    });
}

/// Nothing to serve is no start, a TAP alone or not.
#[test]
fn a_tap_alone_that_cannot_be_had_is_no_start() {
    let dir = Dir::new();
    let control = format!("--control={}", dir.path().join("control").display());
    let output = Command::new(env!("CARGO_BIN_EXE_vioswitchd"))
        .args([control.as_str(), "--tap=up,ifname=lo"])
        .output()
        .expect("vioswitchd");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[test]
fn what_is_left_out_and_deleted_or_changed_is_tried_no_more() {
    let etc = Dir::new();
    let far = |name: &str| etc.path().join("far").join(name);
    let write = |entries: &[(&str, String)]| {
        let entry = |(name, path): &(&str, String)| {
            format!("[[port]]\nname = \"{name}\"\nsocket = \"{path}\"\n")
        };
        let text: String = entries.iter().map(entry).collect();
        fs::write(etc.path().join("vioswitch.toml"), text).expect("write");
    };
    let path = |name: &str| far(name).display().to_string();
    write(&[("f1", path("f1")), ("f2", path("f2")), ("f3", path("f3"))]);
    let config = format!("--config={}", etc.path().join("vioswitch.toml").display());
    let lab = Lab::new(1, &[&config]);
    assert_eq!(count(&lab, "port-left-out"), 3);
    let near = etc.path().join("f1");
    write(&[("f1", near.display().to_string()), ("f3", path("f3"))]);
    lab.done(&["config", "reload"]);
    assert!(near.exists());
    assert_eq!(count(&lab, "port-left-out"), 1);
    lab.done(&["port", "del", "f3"]);
    assert!(is_healthy(&lab));
    fs::create_dir(far("")).expect("mkdir");
    // Longer than anything that had failed so far would have waited.
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(fs::read_dir(far("")).expect("read").count(), 0, "{}", lab.d.log());
    assert_eq!(ports_of(&lab, "recovered").len(), 0);
    lab.d.stop();
}

#[test]
fn what_is_not_kept_and_what_runs_in_the_place_of_bad_files_is_counted() {
    let lab = Lab::new(1, &["--state-dir=/dev/null/x"]);
    assert_eq!((count(&lab, "changes-not-kept"), is_healthy(&lab)), (1, false));
    lab.d.stop();

    let mut kept = Kept::new(1, &[]);
    assert!(is_healthy(&kept.lab));
    let in_the_way = kept.state.path().join("ports.toml.new");
    kept.lab.done(&["port", "add", "r1"]);
    fs::create_dir(&in_the_way).expect("mkdir");
    assert_eq!(kept.lab.fails(&["port", "del", "r1"]).0, 1);
    assert_eq!(count(&kept.lab, "changes-not-kept"), 1);
    fs::remove_dir(&in_the_way).expect("rmdir");
    kept.lab.done(&["port", "add", "r2"]);
    assert!(is_healthy(&kept.lab));
    kept.lab.d.kill();
    fs::write(kept.file(), "{").expect("write");
    kept.start();
    assert_eq!(count(&kept.lab, "state-file-damaged"), 1);
    kept.lab.d.stop();

    let state = Dir::new();
    let option = format!("--state-dir={}", state.path().display());
    let mut filed = Filed::new(1, &[("f1", "")], &[&option]);
    assert!(is_healthy(&filed.lab));
    filed.write(&[("f1", "mtu = 1")]);
    crash(&mut filed);
    assert!(count(&filed.lab, "last-good-configuration") > 0 && !is_healthy(&filed.lab));
    filed.write(&[("f1", "")]);
    filed.lab.done(&["config", "reload"]);
    assert_eq!(count(&filed.lab, "last-good-configuration"), 0);
    let waits = |lab: &Lab| {
        let text = lab.done(&["metrics"]);
        text.contains("\nvioswitch_reload_unconfirmed 1\n")
    };
    assert!(!waits(&filed.lab));
    filed.write(&[("f1", "mtu = 9000")]);
    filed.lab.done(&["config", "reload", "--confirm=1"]);
    assert!(waits(&filed.lab));
    assert!(wait_for(LOST, || count(&filed.lab, "reload-not-confirmed") == 1));
    assert!(!waits(&filed.lab));
    filed.lab.d.stop();
}

/// A reload that fails has to bring back what had no socket before.
#[test]
fn what_was_left_out_is_so_again_after_a_reload_that_fails() {
    // The first port has the sandbox keep the directory open for sockets.
    let filed = Filed::new(1, &[("f0", "")], &[]);
    let (lab, etc) = (&filed.lab, filed.etc.path());
    let write = |entries: &[(&str, &str)]| {
        let entry = |(name, path): &(&str, &str)| {
            let path = etc.join(path);
            format!("[[port]]\nname = \"{name}\"\nsocket = \"{}\"\n", path.display())
        };
        let text: String = entries.iter().map(entry).collect();
        fs::write(etc.join("vioswitch.toml"), text).expect("write");
    };
    let far = etc.join("far");
    fs::create_dir(&far).expect("mkdir");
    write(&[("f1", "far/f1")]);
    lab.done(&["config", "reload"]);
    assert!(is_healthy(lab));
    fs::remove_dir_all(&far).expect("remove");
    let _taken = UnixListener::bind(etc.join("taken")).expect("bind");
    write(&[("f1", "f1"), ("f2", "taken")]);
    let (status, line) = lab.fails(&["config", "reload"]);
    assert!(status == 1 && line.contains("is in use by "), "{line}");
    assert!(filed.names().contains(&"f1".to_owned()), "{line}\n{}", lab.d.log());
    assert_eq!((count(lab, "port-left-out"), is_healthy(lab)), (1, false));
    assert_eq!(lab.json(&["port", "show", "f1"])["port"]["state"], "left_out");
    fs::create_dir(&far).expect("mkdir");
    heals(lab);
    assert!(far.join("f1").exists() && !etc.join("f1").exists());
    drop(Vm::connect(&far.join("f1"), VmConfig::new(1)));
}

/// A try that a file system holds up, here by the lock that a bind takes, holds up no client; a
/// port that is deleted meanwhile goes when it is over, and leaves nothing.
#[test]
fn a_try_that_lasts_holds_up_no_client_and_no_removal() {
    let dir = Dir::new();
    let (late, made) = (dir.path().join("late"), dir.path().join("made"));
    let lab = Lab::new(1, &[&format!("--port=p1,socket={}", late.join("p1").display())]);
    fs::create_dir(&made).expect("mkdir");
    let name = ".vioswitch.lock";
    let lock = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(made.join(name))
        .expect("a lock's file");
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("flock");
    fs::rename(&made, &late).expect("rename");
    let fds = format!("/proc/{}/fd", lab.d.pid());
    let is_tried = || {
        let all = fs::read_dir(&fds).expect("descriptors").flatten();
        let links = all.filter_map(|entry| fs::read_link(entry.path()).ok());
        { links }.any(|path| path == late.join(name))
    };
    let mut client = lab.client();
    // A try lasts for a second, and a busy machine may keep this thread waiting for longer.
    let mut answered = || {
        assert!(wait_for(LOST, is_tried), "{}", lab.d.log());
        let answer = client.call("GetStatus", json!({}))["parameters"].clone();
        is_tried().then_some(answer)
    };
    let status = (0..10).find_map(|_| answered()).expect("an answer before a try is over");
    assert_eq!(status["degradations"][0]["subject"], "p1", "{status}");
    let answer = client.call("Delete", json!({"name": "p1"}));
    assert!(answer["error"].is_null(), "{answer}");
    assert!(!is_tried() && !late.join("p1").exists(), "{}", lab.d.log());
    assert!(is_healthy(&lab) && !lab.ctl(&["port", "show", "p1"]).status.success());
    lab.d.stop();
}
