//! What a client can cost: nothing grows, and two guests beside it lose nothing.

use std::fs;
use std::io::Write;
use std::os::unix::fs::chown;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use base::limits::{MAX_MIRRORS, MAX_STREAMS, MAX_TAPS};
use serde_json::json;
use testkit::frontend::Frontend;
use testkit::host::in_namespace;
use testkit::proc::{Dir, Usage, copy_program, wait_for};
use testkit::{rounds, skip};

use super::{ADMIN, Client, INTERFACE, LOST, Lab, VIEWER, clients_of, is_root};
use crate::lab::Process;

const MESSAGE_BYTES: usize = 256 << 10;
const PLACES: usize = 32;
const FOR_ROOT: usize = 4;
const FOR_ADMINS: usize = 4;
/// Lines of the log that there may be at once.
const LOG_BURST: usize = 4;

/// A call of exactly so many bytes.
fn call_of(bytes: usize) -> Vec<u8> {
    let call = json!({"method": format!("{INTERFACE}.GetStatus"), "parameters": {}}).to_string();
    [" ".repeat(bytes - call.len()).as_bytes(), call.as_bytes(), b"\0"].concat()
}

/// Half messages, long ones, and what is no call: the connection is closed and counted.
#[test]
fn messages_are_bounded_in_size_and_time() {
    let lab = Lab::new(2, &["--workers=2"]);
    let bystanders = lab.bystanders();
    let mut watcher = lab.client();
    let before = lab.d.settled_usage();
    let mut client = lab.client();
    client.send(&call_of(MESSAGE_BYTES));
    assert!(client.answer().expect("an answer")["parameters"]["version"].is_string());
    client.send(&call_of(MESSAGE_BYTES + 1));
    assert!(client.closes() && watcher.count("too_long") == 1);
    // Without an end, so that only its length tells.
    let mut client = lab.client();
    client.send(&vec![b' '; MESSAGE_BYTES + 1]);
    assert!(client.closes() && watcher.count("too_long") == 2);
    for bad in [&b"hello\0"[..], b"\0", b"{}\0", b"[1,2]\0", b"{\"method\":\"\xff\"}\0"] {
        let mut client = lab.client();
        client.send(bad);
        assert!(client.closes(), "{bad:?}");
    }
    let mut client = lab.client();
    client.send(&[b"[".repeat(50_000), b"\0".to_vec()].concat());
    assert!(client.closes() && watcher.count("malformed") == 6);
    // Byte by byte is no way to stay: what counts is when it began.
    let start = Instant::now();
    let mut client = lab.client();
    let slow = loop {
        let sent = client.0.get_mut().write_all(b" ");
        let waited = start.elapsed();
        if sent.is_err() {
            break waited;
        }
        assert!(waited < LOST, "half a message for {waited:?}");
        thread::sleep(Duration::from_millis(50));
    };
    assert!(slow >= Duration::from_millis(1_900), "closed after {slow:?}");
    assert_eq!(watcher.count("too_slow"), 1);
    // Silence is no half message.
    assert_eq!(watcher.count("connected"), 1);
    assert_eq!(lab.d.settled_usage(), before);
    bystanders.finish();
    drop(watcher);
    lab.d.stop();
}

/// Whatever clients do, the switch writes a line a second about them, and a few more at first.
#[test]
fn log_lines_about_clients_are_few() {
    let lab = Lab::new(1, &[]);
    let start = Instant::now();
    let count = rounds(200, 1_000, 10_000);
    for _ in 0..count {
        let mut client = lab.client();
        client.send(b"hello\0");
        assert!(client.closes());
    }
    let allowed = LOG_BURST + start.elapsed().as_secs() as usize + 1;
    assert_eq!(lab.client().count("malformed"), count);
    let log = lab.d.log();
    let lines = log.lines().filter(|line| line.contains("control: ")).count();
    assert!((LOG_BURST..=allowed).contains(&lines), "{lines} lines, {allowed} allowed: {log}");
    lab.d.stop();
}

#[test]
fn a_client_that_never_reads_is_closed() {
    let lab = Lab::new(2, &["--workers=2"]);
    let bystanders = lab.bystanders();
    let mut watcher = lab.client();
    let before = lab.d.settled_usage();
    let mut deaf = UnixStream::connect(&lab.path).expect("connect");
    deaf.set_write_timeout(Some(LOST)).expect("timeout");
    let call = [json!({"method": "x"}).to_string().as_bytes(), b"\0"].concat().repeat(1_000);
    let start = Instant::now();
    while deaf.write_all(&call).is_ok() {
        assert!(start.elapsed() < LOST, "it may ask for ever");
    }
    assert_eq!(watcher.count("unread"), 1);
    // An answer of many parts stands still until it is read.
    for n in 0..64 {
        let macs: Vec<String> = (0..64).map(|m| format!("02:00:00:00:{n:02x}:{m:02x}")).collect();
        watcher.call("Add", json!({"name": format!("x{n}"), "mac": macs}));
    }
    let list = json!({"method": format!("{INTERFACE}.ListAddresses"), "more": true}).to_string();
    let mut clients: Vec<Client> = (0..8).map(|_| lab.client()).collect();
    clients.iter_mut().for_each(|client| client.send(&[list.as_bytes(), b"\0"].concat()));
    assert!(watcher.call("GetStatus", json!({}))["parameters"]["addresses"].as_u64() > Some(4_000));
    let mut told = 0;
    while let Some(answer) = clients[0].answer() {
        told += answer["parameters"]["addresses"].as_array().expect("addresses").len();
        if answer["continues"] != true {
            break;
        }
    }
    assert!(told > 64 * 64, "{told}");
    drop(clients);
    for n in 0..64 {
        let answer = watcher.call("Delete", json!({"name": format!("x{n}")}));
        assert!(answer["error"].is_null(), "{answer}");
    }
    // A thread that has ended is counted until it gets a CPU for the last time.
    let no_more = |now: Usage| now.fds <= before.fds && now.threads <= before.threads;
    let gone = wait_for(LOST, || no_more(lab.d.usage()));
    assert!(gone, "{before:?} {:?} {:?}", lab.d.usage(), lab.d.thread_names());
    bystanders.finish();
    lab.d.stop();
}

#[test]
fn connections_are_bounded_and_a_few_are_kept_for_admins_and_root() {
    let groups = ["--control-group=65534", "--control-admin-group=65533"];
    let lab = Lab::new(2, &["--workers=2", groups[0], groups[1]]);
    let bystanders = lab.bystanders();
    let before = lab.d.settled_usage();
    let mut clients: Vec<Client> = Vec::new();
    for _ in 0..PLACES {
        clients.push(lab.client());
        let answer = clients.last_mut().expect("a client").call("GetStatus", json!({}));
        assert!(answer["error"].is_null(), "{answer}");
    }
    assert!(lab.client().closes(), "one more");
    assert_eq!(clients[0].count("refused"), 1);
    assert_eq!(clients[0].count("connected"), PLACES as u64);
    clients.clear();
    assert!(wait_for(LOST, || lab.client().connected() == Some(1)));
    if is_root() {
        let mut others = lab.clients_of(PLACES - FOR_ROOT - FOR_ADMINS, VIEWER, &[]);
        for client in &mut others {
            assert!(client.call("GetStatus", json!({}))["error"].is_null());
            let refused = client.call("Add", json!({"name": "x"}));
            assert_eq!(refused["error"], format!("{INTERFACE}.NotPermitted"));
        }
        assert!(lab.clients_of(1, VIEWER, &[])[0].closes(), "one more");
        let mut admins = lab.clients_of(FOR_ADMINS, ADMIN, &[65533]);
        for client in &mut admins {
            assert!(client.call("FlushAddresses", json!({}))["error"].is_null());
        }
        assert!(lab.clients_of(1, ADMIN, &[65533])[0].closes(), "one more of the admin group");
        others.extend(admins);
        assert_eq!(lab.client().count("connected"), others.len() as u64 + 1);
    } else {
        skip("another user's connections need root");
    }
    assert!(wait_for(LOST, || lab.client().connected() == Some(1)));
    assert_eq!(lab.d.settled_usage(), before);
    bystanders.finish();
    lab.d.stop();
}

/// What `systemctl reload` asks for, as the daemon's user.
#[test]
fn the_daemons_user_reloads_beside_idle_clients() {
    if !is_root() {
        return skip("another user's daemon needs root");
    }
    let dir = Dir::new();
    let program = dir.path().join("vioswitchd");
    copy_program(testkit::proc::program(), &program);
    let (config, path) = (dir.path().join("vioswitch.toml"), dir.path().join("control"));
    let port = format!("[[port]]\nname = \"f1\"\nsocket = \"{}/f1\"\n", dir.path().display());
    fs::write(&config, port).expect("write");
    chown(dir.path(), Some(ADMIN), Some(65534)).expect("chown");
    let log = fs::File::create(dir.path().join("log")).expect("log");
    let options =
        [format!("--config={}", config.display()), format!("--control={}", path.display())];
    let mut command = Command::new(&program);
    command.args(options).env("RUST_LOG", "info").stderr(log).uid(ADMIN).gid(65534);
    let mut daemon = Process { child: command.spawn().expect("start"), dir };
    daemon.wait_ready();
    let mut idle = clients_of(&path, PLACES - FOR_ROOT, VIEWER, &[]);
    let is_served = |client: &mut Client| client.connected().is_some();
    let served = idle.iter_mut().map(is_served).filter(|served| *served).count();
    assert_eq!(served, PLACES - FOR_ROOT - FOR_ADMINS);
    let mut own = clients_of(&path, 1, ADMIN, &[]).remove(0);
    let done = own.call("ReloadConfig", json!({}));
    assert_eq!(done["parameters"]["summary"], "0 added, 0 changed, 0 deleted", "{done}");
    drop((idle, own));
    daemon.stop(libc::SIGTERM, &["f1", "control"]);
}

/// 1,000 of them.
#[test]
fn connections_after_each_other_leave_nothing() {
    let lab = Lab::new(2, &["--workers=2"]);
    let bystanders = lab.bystanders();
    assert!(lab.client().count("connected") == 1);
    let before = lab.d.settled_usage();
    let count = rounds(1_000, 5_000, 50_000);
    for n in 0..count {
        let mut client = lab.client();
        match n % 4 {
            0 => drop(client),
            1 => client.send(b"{\"method\":\"half"),
            2 => client.ask(&json!({"method": format!("{INTERFACE}.ListPorts"), "more": true})),
            _ => assert!(client.count("accepted") > n),
        }
    }
    assert!(wait_for(LOST, || lab.client().connected() == Some(1)));
    assert_eq!(lab.d.settled_usage(), before);
    bystanders.finish();
    lab.d.stop();
}

/// A port whose front-end does not let go holds up nobody: neither other clients nor the end.
#[test]
fn nobody_waits_for_a_port_that_is_being_removed() {
    let lab = Lab::new(2, &[]);
    let fe = Frontend::connect(&lab.d.socket(0), LOST).expect("connect");
    let mut clients: Vec<Client> = (0..8).map(|_| lab.client()).collect();
    // All want the same port gone; whoever asks meanwhile is served.
    let call = json!({"method": format!("{INTERFACE}.Delete"), "parameters": {"name": "p0"}});
    clients.iter_mut().for_each(|client| client.ask(&call));
    assert!(lab.client().call("GetStatus", json!({}))["error"].is_null());
    let answers: Vec<_> = clients.iter_mut().map(|client| client.answer().unwrap()).collect();
    let done = answers.iter().filter(|answer| answer["parameters"] == json!({})).count();
    let unknown = format!("{INTERFACE}.NoSuchPort");
    assert!(done > 0 && answers.iter().all(|a| a["error"].is_null() || a["error"] == unknown));
    assert!(!lab.d.socket(0).exists() && lab.d.socket(1).exists());
    drop(fe);
    // Ended in the middle of a removal, and with clients that are connected.
    let call = json!({"method": format!("{INTERFACE}.Delete"), "parameters": {"name": "p1"}});
    clients[0].ask(&call);
    lab.d.stop();
    assert!(clients[1].closes());
}

/// The switch has a limit for the ports of each kind, whatever other ports there are, and a port
/// that is deleted makes room.
#[test]
fn a_kind_has_so_many_ports_and_no_more() {
    in_namespace(|| {
        let lab = Lab::new(2, &[]);
        let mut client = lab.client();
        for (kind, most, keys) in [
            ("stream", MAX_STREAMS, json!({})),
            ("tap", MAX_TAPS, json!({"ifname": "forty"})),
            ("mirror", MAX_MIRRORS, json!({"from": "p0", "to": "p1"})),
        ] {
            let mut add = |n: usize| {
                let mut parameters = keys.clone();
                parameters["kind"] = kind.into();
                parameters["name"] = format!("{kind}{n}").into();
                if let Some(ifname) = keys["ifname"].as_str() {
                    parameters["ifname"] = format!("{ifname}{n}").into();
                }
                client.call("Add", parameters)
            };
            for n in 0..most {
                let answer = add(n);
                assert!(answer["error"].is_null(), "{kind} {n}: {answer}");
            }
            let refused = add(most);
            let reason = format!("there are {most} {kind}s already");
            assert_eq!(refused["parameters"]["reason"], reason, "{refused}");
            lab.done(&[kind, "del", &format!("{kind}0")]);
            let answer = add(most);
            assert!(answer["error"].is_null(), "{kind}: {answer}");
            lab.done(&["port", "add", &format!("beside-{kind}")]);
        }
        // The kernel takes a while to close so many interfaces.
        drop(lab);
    });
}
