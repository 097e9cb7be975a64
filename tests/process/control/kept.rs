//! What is changed while the switch runs outlives it: however it ended.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::proc::{Dir, wait_for};
use testkit::{Rng, rounds};

use super::{INTERFACE, LOST, Lab};

/// A switch that keeps its changes, and the directory where it does.
pub(super) struct Kept {
    pub(super) lab: Lab,
    pub(super) state: Dir,
}

impl Kept {
    pub(super) fn new(ports: usize, extra: &[&str]) -> Kept {
        let state = Dir::new();
        let dir = format!("--state-dir={}", state.path().display());
        let args = [&[dir.as_str()], extra].concat();
        Kept { lab: Lab::new(ports, &args), state }
    }

    pub(super) fn file(&self) -> PathBuf {
        self.state.path().join("runtime.json")
    }

    pub(super) fn start(&mut self) {
        self.lab.d.restart();
        // The socket of before is still there.
        let up = wait_for(LOST, || self.lab.ctl(&["status"]).status.success());
        assert!(up, "no control socket\n{}", self.lab.d.log());
    }

    pub(super) fn crash(&mut self) {
        self.lab.d.kill();
        self.start();
    }

    pub(super) fn stop_and_start(&mut self) {
        self.lab.d.signal(libc::SIGTERM);
        assert!(self.lab.d.exit_status(LOST).success(), "{}", self.lab.d.log());
        self.start();
    }

    /// Name, origin and MTU of each port.
    fn ports(&self) -> Vec<(String, String, Value)> {
        let list = self.lab.json(&["port", "list"]);
        let word = |port: &Value, key: &str| port[key].as_str().expect(key).to_owned();
        let ports = list["ports"].as_array().expect("ports").iter();
        let mut ports: Vec<_> = ports
            .map(|port| (word(port, "name"), word(port, "origin"), port["mtu"].clone()))
            .collect();
        ports.sort_by(|one, other| one.0.cmp(&other.0));
        ports
    }

    fn names(&self) -> Vec<String> {
        self.ports().into_iter().map(|(name, ..)| name).collect()
    }

    pub(super) fn degraded(&self) -> String {
        self.lab.json(&["status"])["degraded"].to_string()
    }
}

#[test]
fn changes_outlive_the_process_however_it_ends() {
    let mut kept = Kept::new(2, &[]);
    let dir = kept.lab.json(&["status"])["state_dir"].clone();
    assert_eq!(dir, kept.state.path().to_str().expect("UTF-8"));
    kept.lab.done(&["port", "add", "r1", "mtu=9000", "queues=2", "mac=02:00:00:00:00:01"]);
    kept.lab.done(&["port", "add", "r2", "mode=client"]);
    kept.lab.done(&["port", "add", "r3"]);
    kept.lab.done(&["port", "del", "r3"]);
    kept.lab.done(&["port", "del", "p1"]);
    let port = |name: &str, origin: &str, mtu: Value| (name.to_owned(), origin.to_owned(), mtu);
    let expected = [
        port("p0", "cli", Value::Null),
        port("r1", "runtime", json!(9000)),
        port("r2", "runtime", Value::Null),
    ];
    // The ports of the command line are waited for when it is started again.
    let expected_after = |kept: &Kept| {
        assert_eq!(kept.ports(), expected);
        assert_eq!(kept.lab.json(&["port", "show", "r1"])["port"]["queues"], 2);
        let addresses = kept.lab.done(&["fdb", "show", "--port=r1"]);
        assert!(addresses.contains("02:00:00:00:00:01  r1    static"), "{addresses}");
        assert_eq!(kept.degraded(), "[]");
        UnixStream::connect(kept.lab.socket("r1.sock")).expect("it listens");
    };
    expected_after(&kept);
    kept.lab.d.forget_port(1);
    kept.crash();
    expected_after(&kept);
    kept.stop_and_start();
    expected_after(&kept);
    // A client's port in the place of a deleted one of the command line is no port of that.
    kept.lab.done(&["port", "add", "p1", "mtu=1400"]);
    for _ in 0..2 {
        kept.crash();
        assert!(kept.ports().contains(&port("p1", "runtime", json!(1400))), "{:?}", kept.ports());
        assert_eq!(kept.degraded(), "[]");
    }
    kept.lab.d.stop();
}

#[test]
fn without_a_directory_nothing_is_kept_and_that_is_said() {
    let lab = Lab::new(1, &[]);
    assert_eq!(lab.json(&["status"])["state_dir"], Value::Null);
    assert!(lab.done(&["status"]).contains("changes:    not kept for the next start"));
    lab.d.stop();
    let lab = Lab::new(1, &["--state-dir=/dev/null/x"]);
    let degraded = lab.json(&["status"])["degraded"].to_string();
    assert!(degraded.contains("changes are not kept: "), "{degraded}");
    lab.done(&["port", "add", "r1"]);
    lab.d.stop();
    // Two processes would write each other's changes over.
    let kept = Kept::new(1, &[]);
    let other = Lab::new(1, &[&format!("--state-dir={}", kept.state.path().display())]);
    let degraded = other.json(&["status"])["degraded"].to_string();
    assert!(degraded.contains("another process has it"), "{degraded}");
    other.d.stop();
    kept.lab.d.stop();
}

#[test]
fn changes_end_with_the_machines_uptime() {
    let mut kept = Kept::new(1, &[]);
    kept.lab.done(&["port", "add", "r1"]);
    kept.lab.d.kill();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("boot id");
    let text = fs::read_to_string(kept.file()).expect("the file of changes");
    assert!(text.contains(boot.trim()), "{text}");
    let other = text.replace(boot.trim(), "00000000-0000-0000-0000-000000000000");
    fs::write(kept.file(), other).expect("write");
    kept.start();
    assert_eq!((kept.names(), kept.degraded()), (vec!["p0".to_owned()], "[]".to_owned()));
    kept.crash();
    assert_eq!(kept.names(), ["p0"], "it is forgotten for good");
    kept.lab.d.stop();
}

/// Nothing that lies there keeps the switch from serving, and it is not lost.
#[test]
fn a_damaged_file_is_put_aside() {
    let mut kept = Kept::new(1, &[]);
    kept.lab.done(&["port", "add", "r1"]);
    let good = fs::read_to_string(kept.file()).expect("the file of changes");
    let long = format!("{good}{}", " ".repeat(33 << 20));
    for (content, words) in [
        ("", "EOF while parsing"),
        (&good[..good.len() / 2], "EOF while parsing"),
        ("\\u{fffd}\\0", "expected"),
        ("{}", "missing field `version`"),
        (&good.replace("\"version\":1", "\"version\":2"), "of another version"),
        (&good.replace("\"queues\":[\"1\"]", "\"queues\":[\"99\"]"), "queues must be"),
        (&good.replace("\"queues\":[\"1\"]", "\"queues\":[1]"), "invalid type: integer"),
        (&good.replace("\"queues\":[\"1\"]", "\"level\":[\"1\"]"), "unknown key 'level'"),
        (&good.replace("\"name\":\"r1\"", "\"name\":\"/r1\""), "must be 1 to 64"),
        (&good.replace("\"kind\":\"port\"", "\"kind\":\"prot\""), "no kind"),
        (&good.replace("\"boot\"", "\"root\""), "missing field `boot`"),
        (&good.replace("\"addresses\"", "\"address\""), "missing field `addresses`"),
        (&long, "longer than it may be"),
    ] {
        kept.lab.d.kill();
        fs::write(kept.file(), content).expect("write");
        kept.start();
        let degraded = kept.degraded();
        assert!(degraded.contains("is damaged") && degraded.contains(words), "{degraded}");
        assert_eq!(kept.names(), ["p0"]);
        let aside = fs::read_to_string(kept.file().with_extension("json.damaged")).expect("aside");
        assert!(aside == content, "{}", &content[..content.len().min(80)]);
        assert!(kept.lab.d.log().contains(words));
    }
    kept.lab.done(&["port", "add", "r1"]);
    kept.crash();
    assert_eq!((kept.names().len(), kept.degraded().as_str()), (2, "[]"));
    // What cannot be kept is not done.
    let _: () = fs::create_dir(kept.state.path().join("runtime.json.new")).expect("mkdir");
    let (status, line) = kept.lab.fails(&["port", "add", "r2"]);
    assert!(status == 1 && line.contains("cannot be kept for the next start"), "{line}");
    assert_eq!(kept.names(), ["p0", "r1"]);
    assert!(!kept.lab.socket("r2.sock").exists());
    let (_, line) = kept.lab.fails(&["port", "del", "r1"]);
    assert!(line.starts_with("done, but it cannot be kept for the next start"), "{line}");
    assert!(kept.degraded().contains("the last change cannot be kept"), "{}", kept.degraded());
    assert_eq!(kept.names(), ["p0"]);
    fs::remove_dir(kept.state.path().join("runtime.json.new")).expect("rmdir");
    kept.lab.done(&["port", "add", "r2"]);
    assert_eq!(kept.degraded(), "[]");
    kept.lab.d.stop();
}

#[test]
fn the_configuration_wins_over_what_was_added() {
    let etc = Dir::new();
    let file = etc.path().join("vioswitch.toml");
    let entry = |name: &str, file: &str, more: &str| {
        let socket = etc.path().join(file);
        format!("[[port]]\nname = \"{name}\"\nsocket = \"{}\"\n{more}\n", socket.display())
    };
    fs::write(&file, entry("f1", "f1", "")).expect("write");
    let mut kept = Kept::new(1, &[&format!("--config={}", file.display())]);
    let socket = |name: &str| format!("socket={}", etc.path().join(name).display());
    kept.lab.done(&["port", "add", "r1"]);
    kept.lab.done(&["port", "add", "r2", &socket("f2")]);
    kept.lab.done(&["port", "add", "r3", "mac=02:00:00:00:00:03"]);
    kept.lab.done(&["port", "del", "f1"]);
    kept.crash();
    assert_eq!(kept.names(), ["p0", "r1", "r2", "r3"]);
    kept.lab.d.kill();
    let more = entry("f1", "f1", "mtu = 1400")
        + &entry("r1", "r1", "mtu = 1300")
        + &entry("f2", "f2", "")
        + &entry("f3", "f3", "mac = \"02:00:00:00:00:03\"");
    fs::write(&file, more).expect("write");
    kept.start();
    assert_eq!(kept.names(), ["f1", "f2", "f3", "p0", "r1"]);
    assert_eq!(kept.lab.json(&["port", "show", "r1"])["port"]["origin"], "file");
    let degraded = kept.degraded();
    for words in [
        "port f1: the configuration (origin file) has changed since and is in force",
        "port r1: the configuration (origin file) has changed since and is in force",
        "port r2: is left out: socket ",
        "port r3: is left out: mac 02:00:00:00:00:03 is already used by f3: see vioswitchctl \
         port show f3",
    ] {
        assert!(degraded.contains(words), "{words}: {degraded}");
    }
    kept.crash();
    assert_eq!(kept.degraded(), "[]", "what was left out is forgotten");
    kept.lab.d.stop();
}

/// A change that one process asks for and another one kills.
#[test]
fn each_port_is_whole_or_absent_after_a_kill() {
    let mut kept = Kept::new(1, &[]);
    let mut rng = Rng::new(7);
    // What was acknowledged: the MTU by the port's name.
    let mut known: BTreeMap<String, u64> = BTreeMap::new();
    let (mut changes, mut between) = (0, 0);
    for _ in 0..rounds(20, 200, 1000) {
        let mut client = kept.lab.client();
        let limit = Duration::from_micros(rng.below(50_000));
        let pid = kept.lab.d.pid();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(limit);
            assert!(testkit::sys::kill(pid, libc::SIGKILL));
        });
        let asked = loop {
            let name = format!("r{}", rng.below(8));
            let mtu = 1000 + rng.below(1000);
            let (method, parameters) = match known.contains_key(&name) {
                true => ("Delete", json!({"name": name})),
                false => ("Add", json!({"name": name, "mtu": mtu})),
            };
            let call = json!({"method": format!("{INTERFACE}.{method}"), "parameters": parameters});
            let Some(answer) = client.try_call(&call) else { break (name, mtu) };
            assert!(answer.get("error").is_none(), "{answer}");
            changes += 1;
            if known.remove(&name).is_none() {
                known.insert(name, mtu);
            }
        };
        killer.join().expect("killed");
        kept.lab.d.kill();
        kept.start();
        let mut found: BTreeMap<String, u64> = BTreeMap::new();
        for (name, _, mtu) in kept.ports().into_iter().filter(|(name, ..)| name != "p0") {
            UnixStream::connect(kept.lab.socket(&format!("{name}.sock"))).expect("it listens");
            found.insert(name, mtu.as_u64().expect("its MTU"));
        }
        // Nobody was told how the last one ended.
        let (name, mtu) = asked;
        between += usize::from(found.get(&name) != known.get(&name));
        match found.get(&name) {
            Some(&there) => {
                assert_eq!(there, *known.get(&name).unwrap_or(&mtu), "{name}");
                known.insert(name, there);
            }
            None => drop(known.remove(&name)),
        }
        assert_eq!(found, known);
        assert_eq!(kept.degraded(), "[]");
    }
    println!("{changes} changes were kept, {between} that nobody was told of");
    assert!(changes > 0);
    kept.lab.d.stop();
}

/// What was added while the switch ran and then written into the file is the file's: at a start and
/// with a reload, without a word, and without a disconnection.
#[test]
fn what_is_put_into_the_file_as_it_is_becomes_the_files() {
    let etc = Dir::new();
    let file = etc.path().join("vioswitch.toml");
    let entry = |name: &str, more: &str| {
        let socket = etc.path().join(name);
        format!("[[port]]\nname = \"{name}\"\nsocket = \"{}\"\n{more}\n", socket.display())
    };
    fs::write(&file, entry("f1", "")).expect("write");
    let mut kept = Kept::new(1, &[&format!("--config={}", file.display())]);
    let add = |kept: &Kept, name: &str| {
        let socket = format!("socket={}", etc.path().join(name).display());
        kept.lab.done(&["port", "add", name, &socket, "mtu=1400", "mac=02:00:00:00:00:01"]);
    };
    add(&kept, "r1");
    kept.lab.done(&["port", "set", "f1", "mtu=1300"]);
    kept.lab.done(&["fdb", "add", "02:00:00:00:00:02", "f1"]);
    kept.lab.d.kill();
    let changed = "mtu = 1300\nmac = \"02:00:00:00:00:02\"";
    let added = "mtu = 1400\nmac = \"02:00:00:00:00:01\"";
    fs::write(&file, entry("f1", changed) + &entry("r1", added)).expect("write");
    kept.start();
    let origin =
        |kept: &Kept, name: &str| kept.lab.json(&["port", "show", name])["port"]["origin"].clone();
    assert_eq!((kept.degraded().as_str(), origin(&kept, "r1")), ("[]", json!("file")));
    assert_eq!(kept.lab.done(&["config", "diff"]), "");
    // One more, and a reload: its front-end stays.
    kept.lab.done(&["port", "del", "r1"]);
    add(&kept, "r1");
    let r2 = format!("socket={}", etc.path().join("r2").display());
    kept.lab.done(&["port", "add", "r2", &r2]);
    let mut guest = testkit::vm::Vm::connect(&etc.path().join("r2"), testkit::vm::VmConfig::new(2));
    let all = entry("f1", changed) + &entry("r1", added) + &entry("r2", "");
    fs::write(&file, all).expect("write");
    kept.lab.done(&["config", "reload"]);
    assert_eq!((kept.degraded().as_str(), origin(&kept, "r2")), ("[]", json!("file")));
    assert!(!guest.fe.closed_within(Duration::from_millis(50)));
    kept.crash();
    assert_eq!((kept.degraded().as_str(), origin(&kept, "r2")), ("[]", json!("file")));
    kept.lab.d.stop();
}
