//! The configuration is read again while the switch runs; what that would do, what it does, and
//! what becomes of a bad one.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::json;
use testkit::SOON;
use testkit::proc::{Dir, wait_for};
use testkit::vm::{Vm, VmConfig};

use super::commands::talk;
use super::{INTERFACE, LOST, Lab};

/// A switch with a file, and where that is.
pub(super) struct Filed {
    pub(super) lab: Lab,
    pub(super) etc: Dir,
}

impl Filed {
    pub(super) fn new(ports: usize, entries: &[(&str, &str)], extra: &[&str]) -> Filed {
        let etc = Dir::new();
        let config = format!("--config={}", etc.path().join("vioswitch.toml").display());
        write(&etc, entries);
        let lab = Lab::new(ports, &[&[config.as_str()], extra].concat());
        Filed { lab, etc }
    }

    pub(super) fn write(&self, entries: &[(&str, &str)]) {
        write(&self.etc, entries);
    }

    pub(super) fn names(&self) -> Vec<String> {
        let list = self.lab.json(&["port", "list"]);
        let ports = list["ports"].as_array().expect("ports").iter();
        let mut names: Vec<String> =
            ports.map(|port| port["name"].as_str().expect("a name").to_owned()).collect();
        names.sort();
        names
    }

    pub(super) fn degraded(&self) -> String {
        self.lab.json(&["status"])["degraded"].to_string()
    }
}

/// Ports of these names, with further keys, in the file of a directory.
fn write(etc: &Dir, entries: &[(&str, &str)]) {
    let entry = |(name, more): &(&str, &str)| {
        let socket = etc.path().join(name);
        format!("[[port]]\nname = \"{name}\"\nsocket = \"{}\"\n{more}\n", socket.display())
    };
    let text: String = entries.iter().map(entry).collect();
    fs::write(etc.path().join("vioswitch.toml"), text).expect("write");
}

/// Each has what the other one had, without a moment in which a frame goes to both.
#[test]
fn two_ports_exchange_their_addresses() {
    let macs = ["mac = \"02:00:00:00:00:0a\"", "mac = \"02:00:00:00:00:0b\""];
    let filed = Filed::new(1, &[("f1", macs[0]), ("f2", macs[1])], &[]);
    filed.write(&[("f1", macs[1]), ("f2", macs[0])]);
    let done = filed.lab.done(&["config", "reload"]);
    assert!(done.ends_with("reloaded: 0 added, 2 changed, 0 deleted\n"), "{done}");
    for (port, mac) in [("f1", "02:00:00:00:00:0b"), ("f2", "02:00:00:00:00:0a")] {
        let shown = filed.lab.done(&["fdb", "show", port]);
        assert!(shown.contains(mac) && shown.matches("02:00").count() == 1, "{port}: {shown}");
    }
    filed.lab.d.stop();
}

#[test]
fn a_reload_does_what_the_diff_says_and_no_more() {
    let before = [("f1", "mtu = 1500"), ("f2", ""), ("old", ""), ("same", "")];
    let filed = Filed::new(2, &before, &[]);
    let lab = &filed.lab;
    let bystanders = lab.bystanders();
    lab.done(&["port", "add", "r1"]);
    let connect = |name: &str, id| Vm::connect(&filed.etc.path().join(name), VmConfig::new(id));
    let (mut one, mut two, mut old) = (connect("f1", 2), connect("f2", 3), connect("old", 4));
    assert_eq!(lab.done(&["config", "diff"]), "");
    filed.write(&[("f1", "mtu = 9000"), ("f2", "queues = 4"), ("new", ""), ("same", "")]);
    let pid = std::process::id();
    let expected = format!(
        "- port old  (origin config)   detaches pid {pid}\n\
         ~ port f1   mtu 1500 -> 9000  now\n\
         ~ port f2   queues 1 -> 4     when its front-end reconnects\n\
         + port new\n"
    );
    assert_eq!(lab.done(&["config", "diff"]), expected);
    assert_eq!(filed.names(), ["f1", "f2", "old", "p0", "p1", "r1", "same"], "diff does nothing");
    let done = lab.done(&["config", "reload"]);
    assert!(done.ends_with("reloaded: 1 added, 2 changed, 1 deleted\n"), "{done}");
    assert_eq!(filed.names(), ["f1", "f2", "new", "p0", "p1", "r1", "same"]);
    assert!(old.fe.closed_within(LOST) && filed.etc.path().join("new").exists());
    assert_eq!(lab.done(&["config", "diff"]), "");
    assert_eq!(lab.json(&["port", "show", "f1"])["port"]["mtu"], 9000);
    assert_eq!(lab.json(&["port", "show", "f2"])["port"]["pending"][0]["key"], "queues");
    talk(&mut one, &mut two, 50);
    talk(&mut two, &mut one, 50);
    // What clients changed stays; a port of the file replaces one of its name.
    lab.done(&["port", "set", "f1", "mtu=1300"]);
    lab.done(&["port", "del", "new"]);
    filed.write(&[("f1", "mtu = 9000"), ("f2", "queues = 4"), ("new", ""), ("r1", "mtu = 1400")]);
    let diff = lab.done(&["config", "diff"]);
    assert!(diff.starts_with("- port same") && diff.contains("~ port r1"), "{diff}");
    assert_eq!(diff.lines().count(), 3, "{diff}");
    lab.done(&["config", "reload"]);
    assert_eq!(filed.names(), ["f1", "f2", "p0", "p1", "r1"]);
    assert_eq!(lab.json(&["port", "show", "f1"])["port"]["mtu"], 1300);
    assert_eq!(lab.json(&["port", "show", "r1"])["port"]["origin"], "config");
    let shown = lab.done(&["config", "show"]);
    assert!(shown.contains("# origin config\n[[port]]\nname = \"r1\"\n"), "{shown}");
    assert!(shown.contains("\nmtu = 1400\n"), "{shown}");
    for name in ["f1", "new"] {
        lab.done(&["port", "reset", name]);
    }
    assert_eq!(filed.names(), ["f1", "f2", "new", "p0", "p1", "r1"]);
    assert_eq!(lab.json(&["port", "show", "f1"])["port"]["mtu"], 9000);
    assert_eq!(lab.done(&["config", "diff"]), "");
    bystanders.finish();
    drop(filed.lab.d);
}

#[test]
fn a_bad_file_changes_nothing_and_is_told_whole() {
    let filed = Filed::new(1, &[("f1", "")], &[]);
    let lab = &filed.lab;
    filed.write(&[("f1", "mtu = 1"), ("f2", "queues = 99")]);
    let at = filed.etc.path().join("vioswitch.toml");
    for args in [&["config", "diff"][..], &["config", "reload"]] {
        let (status, line) = lab.fails(args);
        assert_eq!(status, 1);
        for (number, words) in [(4, "mtu must be"), (8, "queues must be")] {
            assert!(line.contains(&format!("{}:{number}: {words}", at.display())), "{line}");
        }
    }
    lab.d.signal(libc::SIGHUP);
    let told = wait_for(LOST, || lab.d.log().matches(":8: queues must be").count() >= 2);
    assert!(told && lab.d.log().contains("not reloaded: "), "{}", lab.d.log());
    // What can be seen before it is tried, and what only the trial shows.
    fs::write(filed.etc.path().join("taken"), "in the way").expect("write");
    filed.write(&[("f2", ""), ("taken", "")]);
    // The one of the signal is over some time after the log has told of it.
    let mut line = String::new();
    let is_over = wait_for(LOST, || {
        line = lab.fails(&["config", "reload"]).1;
        !line.contains("a reload is under way")
    });
    assert!(is_over, "{line}");
    assert!(line.contains("port taken: ") && line.contains("exists and is not a socket"), "{line}");
    let listener = std::os::unix::net::UnixListener::bind(filed.etc.path().join("busy"));
    filed.write(&[("f2", ""), ("busy", "")]);
    let (_, line) = lab.fails(&["config", "reload"]);
    assert!(line.contains("port busy: ") && line.contains("is in use by "), "{line}");
    drop(listener);
    assert_eq!(filed.names(), ["f1", "p0"]);
    assert!(filed.etc.path().join("f1").exists() && !filed.etc.path().join("f2").exists());
    filed.write(&[("f2", "")]);
    lab.d.signal(libc::SIGHUP);
    assert!(wait_for(LOST, || filed.names() == ["f2", "p0"]), "{}", lab.d.log());
}

/// Each error of a failed reload is one line of the log: the first as the event's.
#[test]
fn each_error_of_a_failed_reload_is_logged_once() {
    let filed = Filed::new(1, &[("f1", "")], &[]);
    for count in 1..=2 {
        filed.write(&[("f1", "mtu = 1"), ("f2", "queues = 99")]);
        let (status, _) = filed.lab.fails(&["config", "reload"]);
        assert_eq!(status, 1);
        let log = filed.lab.d.log();
        for words in [":4: mtu must be", ":8: queues must be"] {
            assert_eq!(log.matches(words).count(), count, "{words}: {log}");
        }
        assert_eq!(log.matches("not reloaded: ").count(), count, "{log}");
    }
    drop(filed.lab.d);
}

/// A signal that comes while the files are being read again is no lost one.
#[test]
fn the_last_of_many_signals_counts() {
    let filed = Filed::new(1, &[("f0", "")], &[]);
    for round in 1..=100u64 {
        // Each pair of signals so far apart that the second may come at any moment of a reload.
        for half in ["a", "b"] {
            filed.write(&[(&format!("f{round}{half}"), "")]);
            filed.lab.d.signal(libc::SIGHUP);
            std::thread::sleep(Duration::from_micros(30 * round));
        }
        let last = format!("f{round}b");
        let names = || filed.names() == [last.as_str(), "p0"];
        assert!(wait_for(SOON, names), "{last}\n{}", filed.lab.d.log());
    }
}

#[test]
fn what_is_not_confirmed_goes_back() {
    let filed = Filed::new(1, &[("f1", "mtu = 1500"), ("f2", "")], &[]);
    let lab = &filed.lab;
    assert_eq!(
        lab.fails(&["config", "confirm"]),
        (1, "no reload waits to be confirmed".to_owned())
    );
    filed.write(&[("f1", "mtu = 9000"), ("f3", "")]);
    let told = lab.done(&["config", "reload", "--confirm=1"]);
    let returns = "the old configuration returns in 1 s unless you run vioswitchctl config confirm";
    assert!(told.trim_end().ends_with(returns), "{told}");
    assert_eq!(filed.names(), ["f1", "f3", "p0"]);
    let (_, line) = lab.fails(&["config", "reload"]);
    assert_eq!(line, "a reload is under way, or waits for config confirm");
    let back = || filed.names() == ["f1", "f2", "p0"];
    assert!(wait_for(LOST, back), "{}", lab.d.log());
    assert_eq!(lab.json(&["port", "show", "f1"])["port"]["mtu"], 1500);
    assert!(wait_for(LOST, || lab.d.log().contains("not confirmed in 1 s")));
    // The files say otherwise, for as long as they are not reloaded.
    let degraded =
        || filed.degraded().contains("not confirmed, and the earlier configuration runs");
    assert!(wait_for(LOST, degraded), "{}", filed.degraded());
    assert_eq!(lab.ctl(&["health"]).status.code(), Some(1));
    let free = || lab.ctl(&["config", "reload", "--confirm=60"]).status.success();
    assert!(wait_for(LOST, free), "{}", lab.d.log());
    lab.done(&["config", "confirm"]);
    assert_eq!(filed.names(), ["f1", "f3", "p0"]);
    assert_eq!((lab.done(&["config", "diff"]).as_str(), filed.degraded().as_str()), ("", "[]"));
}

#[test]
fn a_bad_file_at_the_start_costs_no_network() {
    let state = Dir::new();
    let dir = format!("--state-dir={}", state.path().display());
    let mut filed = Filed::new(1, &[("f1", "mtu = 1500")], &[&dir]);
    let again = |filed: &mut Filed| {
        filed.lab.d.kill();
        filed.lab.d.restart();
        let up = wait_for(LOST, || filed.lab.ctl(&["status"]).status.success());
        assert!(up, "{}", filed.lab.d.log());
    };
    filed.write(&[("f1", "mtu = 1"), ("f2", "")]);
    again(&mut filed);
    assert_eq!(filed.names(), ["f1", "p0"]);
    assert_eq!(filed.lab.json(&["port", "show", "f1"])["port"]["mtu"], 1500);
    let degraded = filed.degraded();
    assert!(degraded.contains("the configuration has errors"), "{degraded}");
    assert!(degraded.contains("vioswitch.toml:4: mtu must be"), "{degraded}");
    let (_, line) = filed.lab.fails(&["config", "diff"]);
    assert!(line.contains(":4: mtu must be"), "{line}");
    filed.write(&[("f1", ""), ("f2", "")]);
    filed.lab.done(&["config", "reload"]);
    assert_eq!((filed.names().len(), filed.degraded().as_str()), (3, "[]"));
    // What was reloaded is what runs in the place of a bad file.
    fs::remove_file(filed.etc.path().join("vioswitch.toml")).expect("remove");
    again(&mut filed);
    assert_eq!(filed.names(), ["f1", "f2", "p0"]);
    assert!(filed.degraded().contains("No such file"), "{}", filed.degraded());
    filed.lab.d.kill();
    let config = format!("--config={}", filed.etc.path().join("vioswitch.toml").display());
    for args in [&[dir.as_str(), "--strict"][..], &[]] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_vioswitchd"));
        let output = command.arg(&config).args(args).output().expect("run");
        assert_eq!(output.status.code(), Some(2), "{args:?}");
    }
}

/// What ports of these names have in the file: an MTU, and the first ones so many addresses that a
/// client may not leave unread what is told of their change.
fn keys(names: &[String], mtu: &str, macs: u8) -> Vec<String> {
    let mac = |n: usize, last: u8| {
        let [high, low] = (n as u16).to_be_bytes();
        format!("\"02:{macs:02x}:00:{high:02x}:{low:02x}:{last:02x}\"")
    };
    let more = |n: usize| match n {
        0..256 => {
            let all: Vec<String> = (0..60).map(|last| mac(n, last)).collect();
            format!("{mtu}\nmac = [{}]", all.join(", "))
        }
        _ => mtu.to_owned(),
    };
    (0..names.len()).map(more).collect()
}

fn entries<'a>(names: &'a [String], keys: &'a [String]) -> Vec<(&'a str, &'a str)> {
    names.iter().map(String::as_str).zip(keys.iter().map(String::as_str)).collect()
}

/// Counted, and told: the machine may be slow.
#[test]
fn a_thousand_ports_start_reload_and_are_told() {
    let names: Vec<String> = (0..1023).map(|n| format!("f{n:04}{}", "x".repeat(45))).collect();
    let [plain, long, other] =
        [("", 1), ("mtu = 9000", 1), ("mtu = 9001", 2)].map(|(mtu, macs)| keys(&names, mtu, macs));
    let begin = Instant::now();
    let filed = Filed::new(1, &entries(&names, &plain), &[]);
    let up = begin.elapsed();
    let timed = |args: &[&str]| {
        let begin = Instant::now();
        let said = filed.lab.done(args);
        (said, begin.elapsed())
    };
    let (status, looked) = timed(&["status"]);
    assert!(status.contains("ports:      1024\n"), "{status}");
    let idle = filed.lab.d.settled_usage();
    let resident = filed.lab.d.private_kib();
    println!("1024 idle ports: {idle:?}, {resident} KiB");
    // A thread and two descriptors each: its socket, and what ends the thread.
    assert!(idle.threads <= 1024 + 16 && idle.fds <= 2 * 1024 + 32, "{idle:?}");
    assert!(resident < 64 << 10, "{resident} KiB");
    filed.write(&entries(&names, &long));
    let (said, changed) = timed(&["config", "reload"]);
    assert!(said.ends_with("and 767 more\nreloaded: 0 added, 1023 changed, 0 deleted\n"), "{said}");
    // One that reads late gets a whole answer too.
    filed.write(&entries(&names, &other));
    let mut late = filed.lab.client();
    late.ask(&json!({"method": format!("{INTERFACE}.ReloadConfig")}));
    let done = || filed.lab.done(&["config", "diff"]).is_empty();
    assert!(wait_for(LOST, done), "{}", filed.lab.d.log());
    let answer = late.answer().expect("the connection stays");
    let (told, suppressed) = (&answer["parameters"]["steps"], &answer["parameters"]["suppressed"]);
    let told = told.as_array().expect("steps").len() as u64;
    assert!(told > 10 && answer.to_string().len() < 128 << 10, "{told}");
    assert_eq!(told + suppressed.as_u64().expect("how many more"), 1023);
    filed.write(&entries(&names, &other)[..512]);
    let (said, removed) = timed(&["config", "reload"]);
    assert!(said.ends_with("reloaded: 0 added, 0 changed, 511 deleted\n"));
    filed.write(&entries(&names, &other));
    let (said, added) = timed(&["config", "reload"]);
    assert!(said.ends_with("reloaded: 511 added, 0 changed, 0 deleted\n"));
    println!(
        "1024 ports: start {up:?}, status {looked:?}, 1023 changed {changed:?}, 511 deleted \
         {removed:?}, 511 added {added:?}"
    );
    let each = [up, looked, changed, removed, added];
    assert!(each.iter().all(|took| *took < Duration::from_secs(20)), "{each:?}");
}
