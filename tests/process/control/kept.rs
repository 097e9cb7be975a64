//! What clients add and change stays: however the switch ends, and beside each configuration.

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
        self.state.path().join("ports.toml")
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
    kept.lab.done(&["port", "add", "t1", "--transient"]);
    let port = |name: &str, origin: &str, mtu: Value| (name.to_owned(), origin.to_owned(), mtu);
    let text = fs::read_to_string(kept.file()).expect("the file");
    assert!(text.starts_with("# vioswitchd writes this file") && !text.contains("t1"), "{text}");
    let transient = port("t1", "transient", Value::Null);
    assert!(kept.ports().contains(&transient), "{:?}", kept.ports());
    kept.lab.done(&["port", "set", "t1", "mtu=1400"]);
    kept.lab.done(&["fdb", "add", "02:00:00:00:00:07", "t1"]);
    assert_eq!(fs::read_to_string(kept.file()).expect("the file"), text);
    let expected = [
        port("p0", "config", Value::Null),
        port("r1", "kept", json!(9000)),
        port("r2", "kept", Value::Null),
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
    kept.lab.d.forget_port(1);
    kept.crash();
    expected_after(&kept);
    kept.stop_and_start();
    expected_after(&kept);
    // A client's port in the place of a deleted one of the command line is no port of that.
    kept.lab.done(&["port", "add", "p1", "mtu=1400"]);
    for _ in 0..2 {
        kept.crash();
        assert!(kept.ports().contains(&port("p1", "kept", json!(1400))), "{:?}", kept.ports());
        assert_eq!(kept.degraded(), "[]");
    }
    // What was deleted of the configuration comes back on request.
    let (status, line) = kept.lab.fails(&["port", "reset", "p1"]);
    assert!(status == 1 && line.contains("vioswitchctl port del p1"), "{line}");
    kept.lab.done(&["port", "del", "p1"]);
    kept.lab.done(&["port", "reset", "p1"]);
    assert!(kept.ports().contains(&port("p1", "config", Value::Null)), "{:?}", kept.ports());
    UnixStream::connect(kept.lab.d.socket(1)).expect("it listens");
    let (status, line) = kept.lab.fails(&["port", "reset", "p1"]);
    assert!(status == 1 && line.contains("nothing is kept of port 'p1'"), "{line}");
    kept.lab.d.stop();
}

#[test]
fn without_a_directory_nothing_is_kept_and_that_is_said() {
    let lab = Lab::new(1, &[]);
    assert_eq!(lab.json(&["status"])["state_dir"], Value::Null);
    assert!(lab.done(&["status"]).contains("changes:    transient: there is no --state-dir\n"));
    lab.done(&["port", "add", "r1"]);
    assert_eq!(lab.json(&["port", "show", "r1"])["port"]["origin"], "transient");
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

/// What goes with the process is kept from then on if a client asks for the same to be kept.
#[test]
fn what_may_exist_is_kept_like_what_is_added() {
    let mut kept = Kept::new(2, &[]);
    let port = ["port", "add", "t1", "mtu=1400"];
    let mirror = ["mirror", "add", "m", "from=p0", "to=p1"];
    let origins = |kept: &Kept| {
        let port = kept.lab.json(&["port", "show", "t1"])["port"]["origin"].clone();
        (port, kept.lab.json(&["mirror", "list"])["mirrors"][0]["origin"].clone())
    };
    let is_kept = (json!("kept"), json!("kept"));
    for (more, origin) in [
        (&["--transient"][..], "transient"),
        (&["--transient", "--may-exist"], "transient"),
        (&["--may-exist"], "kept"),
        (&["--transient", "--may-exist"], "kept"),
    ] {
        kept.lab.done(&[&port, more].concat());
        kept.lab.done(&[&mirror, more].concat());
        assert_eq!(origins(&kept), (json!(origin), json!(origin)), "{more:?}");
    }
    kept.crash();
    assert_eq!(origins(&kept), is_kept);
    // A port of the command line gets back nothing that another port has by now.
    let socket = format!("socket={}", kept.lab.d.socket(0).display());
    kept.lab.done(&["mirror", "del", "m"]);
    kept.lab.done(&["port", "del", "p0"]);
    kept.lab.done(&["port", "add", "k1", &socket]);
    let (status, line) = kept.lab.fails(&["port", "reset", "p0"]);
    let words = "is already used by k1: see vioswitchctl port show k1";
    assert!(status == 1 && line.ends_with(words), "{line}");
    assert_eq!(kept.names(), ["k1", "p1", "t1"]);
    kept.lab.d.stop();
}

/// What a version before this one wrote, whose changes ended with the machine's uptime.
#[test]
fn the_file_of_an_earlier_version_is_taken_over() {
    let mut kept = Kept::new(3, &[]);
    kept.lab.d.kill();
    kept.lab.d.forget_port(2);

    let (r1, p1) = (kept.lab.socket("r1.sock"), kept.lab.d.socket(1));
    let old = json!({
        "version": 1, "boot": "00000000-0000-0000-0000-000000000000",
        "changes": [
            {"kind": "port", "name": "r1",
             "now": {"socket": [r1], "mtu": ["1300"], "mac": ["02:00:00:00:00:01"]}},
            {"kind": "port", "name": "p0", "configured": {"mtu": []}, "now": {"mtu": ["1400"]}},
            {"kind": "port", "name": "p1", "configured": {}, "added": true,
             "now": {"socket": [p1], "mtu": ["1500"]}},
            {"kind": "port", "name": "p2", "configured": {}},
        ],
        "addresses": [
            {"mac": "02:00:00:00:00:02", "port": "r1"}, {"mac": "02:00:00:00:00:03", "port": "p0"},
        ],
    });
    let file = kept.state.path().join("runtime.json");
    fs::write(&file, old.to_string()).expect("write");
    for _ in 0..2 {
        kept.crash();
        let port = |name: &str, origin: &str, mtu| (name.to_owned(), origin.to_owned(), json!(mtu));
        let all = [port("p0", "config", 1400), port("p1", "kept", 1500), port("r1", "kept", 1300)];
        assert_eq!((kept.ports(), kept.degraded().as_str()), (all.to_vec(), "[]"));
        let addresses = kept.lab.done(&["fdb", "show"]);
        for (last, name) in [(1, "r1"), (2, "r1"), (3, "p0")] {
            assert!(addresses.contains(&format!("02:00:00:00:00:0{last}  {name}")), "{addresses}");
        }
        assert!(kept.file().exists() && !file.exists());
    }
    // Of the process that was killed.
    fs::remove_file(kept.lab.d.socket(2)).expect("remove");
    kept.lab.d.stop();
}

/// Of a later version's file this one uses what it knows, says what it does not know, and writes
/// that again.
#[test]
fn what_a_later_version_kept_is_not_lost() {
    let mut kept = Kept::new(1, &[]);
    kept.lab.done(&["port", "add", "r1", "mtu=1400"]);
    kept.lab.d.kill();
    let text = fs::read_to_string(kept.file()).expect("read");
    let later = "\n[[gauge]]\nname = \"deny\"\nfrom = \"r1\"\n";
    let text = text.replace("mtu = 1400\n", "mtu = 1400\nspeed = \"high\"\n") + later;
    fs::write(kept.file(), text).expect("write");
    kept.start();
    let of_code = |kept: &Kept| {
        let told = kept.lab.json(&["doctor"]);
        let all = told["findings"].as_array().expect("findings").clone();
        let all = all.into_iter().filter(|one| one["code"] == "kept-without-effect");
        all.map(|one| one["cause"].as_str().expect("a cause").to_owned()).collect::<Vec<_>>()
    };
    let causes = of_code(&kept);
    let words = ["[[port]] 'r1': unknown key 'speed'", "[[gauge]] 'deny': unknown table"];
    for words in words {
        assert!(causes.iter().any(|cause| cause.contains(words)), "{words}: {causes:?}");
        assert!(kept.lab.d.log().contains(words), "{}", kept.lab.d.log());
    }
    assert_eq!((kept.names().len(), kept.lab.ctl(&["health"]).status.code()), (2, Some(0)));
    kept.lab.done(&["port", "set", "r1", "mtu=1300"]);
    let text = fs::read_to_string(kept.file()).expect("read");
    assert!(text.contains("mtu = 1300\nspeed = \"high\"\n") && text.ends_with(later), "{text}");
    for name in ["r1", "deny"] {
        kept.lab.done(&["port", "reset", name]);
    }
    assert_eq!(of_code(&kept), Vec::<String>::new());
    kept.crash();
    assert_eq!((of_code(&kept), kept.names().len()), (Vec::new(), 2));
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
        (&good[..good.len() - 2], "line "),
        ("\u{fffd}\0", "line 1: "),
        ("[[port]\n", "line 1: "),
        (&long, "longer than it may be"),
    ] {
        kept.lab.d.kill();
        fs::write(kept.file(), content).expect("write");
        kept.start();
        let degraded = kept.degraded();
        assert!(degraded.contains("is damaged") && degraded.contains(words), "{degraded}");
        assert_eq!(kept.names(), ["p0"]);
        let aside = fs::read_to_string(kept.file().with_extension("toml.damaged")).expect("aside");
        assert!(aside == content, "{}", &content[..content.len().min(80)]);
        assert!(kept.lab.d.log().contains(words));
    }
    kept.lab.done(&["port", "add", "r1"]);
    kept.crash();
    assert_eq!((kept.names().len(), kept.degraded().as_str()), (2, "[]"));
    // What cannot be kept is not done.
    let _: () = fs::create_dir(kept.state.path().join("ports.toml.new")).expect("mkdir");
    let (status, line) = kept.lab.fails(&["port", "add", "r2"]);
    assert!(status == 1 && line.contains("cannot be kept for the next start"), "{line}");
    assert_eq!(kept.names(), ["p0", "r1"]);
    assert!(!kept.lab.socket("r2.sock").exists());
    for args in [
        &["port", "del", "r1"][..],
        &["port", "set", "r1", "mtu=1400"],
        &["port", "set", "p0", "mtu=1400"],
        &["fdb", "add", "02:00:00:00:00:01", "r1"],
        &["mirror", "add", "m", "from=p0", "to=r1"],
    ] {
        let (_, line) = kept.lab.fails(args);
        assert!(line.starts_with("nothing was changed: the change cannot be kept for"), "{line}");
    }
    assert!(kept.degraded().contains("the last change cannot be kept"), "{}", kept.degraded());
    assert_eq!(kept.lab.json(&["mirror", "list"])["mirrors"], json!([]));
    let mtus: Vec<Value> = kept.ports().into_iter().map(|(_, _, mtu)| mtu).collect();
    assert_eq!((kept.names(), mtus), (vec!["p0".into(), "r1".into()], vec![Value::Null; 2]));
    // A port that ends with the process needs no room.
    kept.lab.done(&["port", "add", "t1", "--transient"]);
    kept.lab.done(&["port", "del", "t1"]);
    fs::remove_dir(kept.state.path().join("ports.toml.new")).expect("rmdir");
    kept.lab.done(&["port", "add", "r2"]);
    assert_eq!(kept.degraded(), "[]");
    kept.lab.d.stop();
}

/// A port whose name, socket or address the files have by now has no effect: that is found, the
/// port is not lost, and a command ends it. What was changed at a port of the files stays.
#[test]
fn the_configuration_wins_over_what_was_added() {
    let etc = Dir::new();
    let file = etc.path().join("vioswitch.toml");
    let entry = |name: &str, file: &str, more: &str| {
        let socket = etc.path().join(file);
        format!("[[port]]\nname = \"{name}\"\nsocket = \"{}\"\n{more}\n", socket.display())
    };
    let before = entry("f1", "f1", "") + &entry("f4", "f4", "");
    fs::write(&file, &before).expect("write");
    let mut kept = Kept::new(1, &[&format!("--config={}", file.display())]);
    let socket = |name: &str| format!("socket={}", etc.path().join(name).display());
    kept.lab.done(&["port", "add", "r1"]);
    kept.lab.done(&["port", "add", "r2", &socket("f2")]);
    kept.lab.done(&["port", "add", "r3", "mac=02:00:00:00:00:03"]);
    kept.lab.done(&["port", "del", "f1"]);
    kept.lab.done(&["port", "set", "f4", "mtu=1200"]);
    let text = fs::read_to_string(kept.file()).expect("read");
    kept.crash();
    assert_eq!(kept.names(), ["f4", "p0", "r1", "r2", "r3"]);
    kept.lab.d.kill();
    let more = entry("f1", "f1", "mtu = 1400")
        + &entry("r1", "r1", "mtu = 1300")
        + &entry("f2", "f2", "")
        + &entry("f3", "f3", "mac = \"02:00:00:00:00:03\"")
        + &entry("f4", "f4", "mtu = 1500\nqueues = 2");
    fs::write(&file, more).expect("write");
    kept.start();
    let found = |kept: &Kept| -> Vec<(String, String, String)> {
        let told = kept.lab.json(&["doctor"]);
        let all = told["findings"].as_array().expect("findings").iter();
        let all = all.filter(|one| one["code"] == "kept-without-effect");
        let word = |one: &Value, key: &str| one[key].as_str().unwrap_or("").to_owned();
        all.map(|one| (word(one, "port"), word(one, "cause"), word(one, "command"))).collect()
    };
    for _ in 0..2 {
        assert_eq!(kept.names(), ["f2", "f3", "f4", "p0", "r1"]);
        let port = |name: &str| kept.lab.json(&["port", "show", name])["port"].clone();
        assert_eq!((&port("r1")["origin"], &port("r1")["mtu"]), (&json!("config"), &json!(1300)));
        assert_eq!((&port("f4")["queues"], &port("f4")["mtu"]), (&json!(2), &json!(1200)));
        let all = found(&kept);
        for (name, words) in [
            ("r1", "the configuration has port 'r1' too, and the configuration's port is in force"),
            ("r2", "is already used by f2: see vioswitchctl port show f2"),
            ("r3", "mac 02:00:00:00:00:03 is already used by f3: see vioswitchctl port show f3"),
        ] {
            let one = all.iter().find(|(port, ..)| port == name).expect(name);
            assert!(one.1.contains(words), "{one:?}");
            assert_eq!(one.2, format!("vioswitchctl port reset {name}"));
        }
        assert_eq!((all.len(), kept.degraded().as_str()), (3, "[]"));
        assert_eq!(fs::read_to_string(kept.file()).expect("read"), text);
        let shown = kept.lab.done(&["config", "show"]);
        for words in [
            "\n# origin config; until vioswitchctl port reset f4: mtu\n[[port]]\nname = \"f4\"\n",
            "\n# origin config; not in force: deleted\n# [[port]]\n# name = \"f1\"\n",
            "\n# origin kept; not in force: the configuration has port 'r1' too",
        ] {
            assert!(shown.contains(words), "{words}: {shown}");
        }
        kept.crash();
    }
    kept.lab.done(&["port", "reset", "r1"]);
    assert_eq!(kept.lab.done(&["port", "reset", "f4"]), "mtu 1200 -> 1500  now\n");
    kept.lab.done(&["port", "reset", "f1"]);
    assert_eq!((kept.names().len(), found(&kept).len()), (6, 2));
    // Where nothing is in the way any more they are in force again, by a reload too.
    fs::write(&file, before).expect("write");
    kept.lab.done(&["config", "reload"]);
    assert_eq!(kept.names(), ["f1", "f4", "p0", "r2", "r3"]);
    kept.crash();
    assert_eq!((kept.names().len(), found(&kept).len()), (5, 0));
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
            let (method, parameters) = match (known.contains_key(&name), rng.below(2)) {
                (true, 0) => ("Delete", json!({"name": name})),
                (true, _) => ("Set", json!({"name": name, "mtu": mtu})),
                (false, _) => ("Add", json!({"name": name, "mtu": mtu})),
            };
            let call = json!({"method": format!("{INTERFACE}.{method}"), "parameters": parameters});
            let Some(answer) = client.try_call(&call) else { break (name, mtu, method) };
            assert!(answer.get("error").is_none(), "{answer}");
            changes += 1;
            match method {
                "Delete" => drop(known.remove(&name)),
                _ => drop(known.insert(name, mtu)),
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
        let (name, mtu, method) = asked;
        between += usize::from(found.get(&name) != known.get(&name));
        match found.get(&name) {
            Some(&there) => {
                let is_new = there == mtu && method != "Delete";
                assert!(is_new || known.get(&name) == Some(&there), "{name}: {there}");
                known.insert(name, there);
            }
            None => {
                assert!(method == "Delete" || !known.contains_key(&name), "{name}");
                known.remove(&name);
            }
        }
        assert_eq!(found, known);
        assert_eq!(kept.degraded(), "[]");
    }
    println!("{changes} changes were kept, {between} that nobody was told of");
    assert!(changes > 0);
    kept.lab.d.stop();
}

/// What a client added and an administrator then wrote into the file is the file's: at a start and
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
    assert_eq!((kept.degraded().as_str(), origin(&kept, "r1")), ("[]", json!("config")));
    assert_eq!(kept.lab.done(&["config", "diff"]), "");
    // Nothing of them is kept twice.
    let text = fs::read_to_string(kept.file()).expect("read");
    assert!(text.lines().all(|line| line.starts_with('#')), "{text}");
    // One more, and a reload: its front-end stays.
    kept.lab.done(&["port", "del", "r1"]);
    add(&kept, "r1");
    let r2 = format!("socket={}", etc.path().join("r2").display());
    kept.lab.done(&["port", "add", "r2", &r2]);
    let mut guest = testkit::vm::Vm::connect(&etc.path().join("r2"), testkit::vm::VmConfig::new(2));
    let all = entry("f1", changed) + &entry("r1", added) + &entry("r2", "");
    fs::write(&file, all).expect("write");
    kept.lab.done(&["config", "reload"]);
    assert_eq!((kept.degraded().as_str(), origin(&kept, "r2")), ("[]", json!("config")));
    assert!(!guest.fe.closed_within(Duration::from_millis(50)));
    kept.crash();
    assert_eq!((kept.degraded().as_str(), origin(&kept, "r2")), ("[]", json!("config")));
    kept.lab.d.stop();
}
