//! Ports that are deleted while their threads hang: the removal continues by itself.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use testkit::{silent, skip};

use super::hung_files::with_mounts;
use super::reload::Filed;
use super::*;

const MAC: &str = "52:54:00:00:00:07";

/// A directory in which the threads of ports hang from the time on when it is mounted over, until
/// they are let go.
struct Trap {
    directory: PathBuf,
    server: Option<OwnedFd>,
}

impl Trap {
    fn new(lab: &Lab) -> Trap {
        let directory = lab.socket("hangs");
        fs::create_dir(&directory).expect("create");
        Trap { directory, server: None }
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// False where nothing can be mounted.
    fn close(&mut self) -> bool {
        self.server = silent::mount(&self.directory, 0, libc::S_IFDIR);
        if self.server.is_none() {
            skip("FUSE cannot be mounted");
        }
        self.server.is_some()
    }

    fn let_go(&mut self) {
        drop(self.server.take());
        silent::unmount(&self.directory);
    }
}

fn state(lab: &Lab, name: &str) -> Option<String> {
    let list = lab.json(&["port", "list"]);
    let ports = list["ports"].as_array().expect("ports").iter();
    let mut states = ports.filter(|port| port["name"] == name).map(|port| port["state"].clone());
    states.next().map(|state| state.as_str().expect("a state").to_owned())
}

fn codes(lab: &Lab) -> Vec<(String, String)> {
    let status = lab.json(&["status"]);
    let all = status["degradations"].as_array().expect("reasons").iter();
    let word = |one: &Value, key: &str| one[key].as_str().unwrap_or_default().to_owned();
    all.map(|one| (word(one, "code"), word(one, "subject"))).collect()
}

/// The port listens and is connected to all the while. Its address is free at once, its name and
/// socket as soon as its thread ends, and no call is needed for that.
#[test]
fn a_removal_that_lasts_goes_on_by_itself() {
    with_mounts(|| {
        let state_dir = Dir::new();
        let kept = format!("--state-dir={}", state_dir.path().display());
        let lab = Lab::new(2, &[&kept]);
        let bystanders = lab.bystanders();
        let mut trap = Trap::new(&lab);
        let socket = format!("socket={}", trap.socket("x").display());
        let mac = format!("mac={MAC}");
        lab.done(&["port", "add", "x", &socket, &mac]);
        let _front_end = UnixStream::connect(trap.socket("x")).expect("connect");
        if !trap.close() {
            return;
        }
        let began = Instant::now();
        let told = lab.done(&["port", "del", "x"]);
        assert!(told.contains("the removal continues"), "{told}");
        assert!(began.elapsed() < LOST, "{:?}", began.elapsed());
        assert_eq!(state(&lab, "x").as_deref(), Some("removing"));
        assert_eq!(codes(&lab), [("port-being-removed".to_owned(), "x".to_owned())]);
        let status = lab.done(&["status"]);
        assert!(status.contains("port x is being removed"), "{status}");
        let health = String::from_utf8(lab.ctl(&["health"]).stdout).expect("UTF-8");
        assert!(health.contains("port x is being removed"), "{health}");
        // What is written down is what is to be.
        let file = fs::read_to_string(state_dir.path().join("ports.toml")).expect("read");
        assert!(!file.contains("\"x\""), "{file}");
        // Its name is not free, and that is said with a name for programs. Its address is.
        let other = format!("socket={}", lab.socket("other").display());
        let call = json!({"name": "x", "socket": lab.socket("other").display().to_string()});
        let refused = lab.client().call("Add", call);
        assert_eq!(refused["error"], format!("{INTERFACE}.PortBeingRemoved"), "{refused}");
        lab.done(&["port", "add", "y", &other, &mac]);
        assert!(lab.done(&["fdb", "show", "y"]).contains(MAC));
        lab.done(&["port", "del", "y"]);
        for args in [&["port", "set", "x", "mtu=1400"][..], &["fdb", "add", MAC, "x"]] {
            assert!(lab.fails(args).1.contains("is being removed"), "{args:?}");
        }
        // Again is as good, and not waited for.
        assert!(lab.done(&["port", "del", "x"]).contains("the removal continues"));
        trap.let_go();
        let gone = wait_for(LOST, || lab.d.log().contains("port x: removed"));
        assert!(gone, "{}", lab.d.log());
        assert_eq!((state(&lab, "x"), codes(&lab)), (None, Vec::new()));
        // Its file is stale: it could not be removed from a file system that had died.
        // The workers may need a moment more.
        let add = || lab.ctl(&["port", "add", "x", &socket, &mac]).status.success();
        assert!(wait_for(LOST, add), "{}", lab.d.log());
        assert_eq!(state(&lab, "x").as_deref(), Some("listening"));
        bystanders.finish();
        lab.d.stop();
    });
}

/// A reload deletes one such port, makes another one anew and gives the address of the first to a
/// third: it is done, and the port that is made anew comes when the one before is gone.
#[test]
fn a_reload_goes_on_without_a_thread_that_hangs() {
    with_mounts(|| {
        let filed = Filed::new(1, &[], &[]);
        let lab = &filed.lab;
        let mut trap = Trap::new(lab);
        let entry = |name: &str, socket: &std::path::Path, more: &str| {
            format!("[[port]]\nname = \"{name}\"\nsocket = \"{}\"\n{more}\n", socket.display())
        };
        let mac = format!("mac = \"{MAC}\"");
        let write = |text: String| {
            fs::write(filed.etc.path().join("vioswitch.toml"), text).expect("write");
        };
        write(entry("goes", &trap.socket("goes"), &mac) + &entry("anew", &trap.socket("anew"), ""));
        lab.done(&["config", "reload"]);
        let _front_ends =
            ["goes", "anew"].map(|name| UnixStream::connect(trap.socket(name)).expect("connect"));
        if !trap.close() {
            return;
        }
        let [anew, third] = ["anew", "third"].map(|name| lab.socket(name));
        write(entry("anew", &anew, "") + &entry("third", &third, &mac));
        let told = lab.done(&["config", "reload"]);
        assert!(told.ends_with("reloaded: 1 added, 1 changed, 1 deleted\n"), "{told}");
        assert_eq!(filed.names(), ["anew", "goes", "p0", "third"]);
        let [anew_is, goes_is] = ["anew", "goes"].map(|name| state(lab, name));
        assert_eq!([anew_is.as_deref(), goes_is.as_deref()], [Some("removing"); 2]);
        let degraded = filed.degraded();
        assert!(degraded.contains("port anew waits until the removed port"), "{degraded}");
        let shown = lab.done(&["fdb", "show"]);
        assert!(shown.contains(MAC) && shown.contains("third"), "{shown}");
        // What is in force is what the files say.
        assert_eq!(lab.done(&["config", "diff"]), "");
        trap.let_go();
        assert!(wait_for(LOST, || anew.exists() && third.exists()), "{}", lab.d.log());
        assert!(wait_for(LOST, || codes(lab).is_empty()), "{:?}", codes(lab));
        assert_eq!(filed.names(), ["anew", "p0", "third"]);
        filed.lab.d.stop();
    });
}

/// A reload waits for the thread of a port that it removes. Meanwhile clients add, change and
/// delete ports as ever, and the reload leaves what they did alone.
#[test]
fn clients_change_the_switch_while_a_reload_waits() {
    with_mounts(|| {
        let filed = Filed::new(1, &[("f1", "")], &[]);
        let lab = &filed.lab;
        let mut trap = Trap::new(lab);
        let file = filed.etc.path().join("vioswitch.toml");
        let text = fs::read_to_string(&file).expect("read");
        let goes = format!(
            "[[port]]\nname = \"goes\"\nsocket = \"{}\"\nmac = \"{MAC}\"\n",
            trap.socket("goes").display()
        );
        fs::write(&file, text + &goes).expect("write");
        lab.done(&["config", "reload"]);
        let _front_end = UnixStream::connect(trap.socket("goes")).expect("connect");
        if !trap.close() {
            return;
        }
        filed.write(&[("f1", ""), ("f2", "")]);
        let mut client = lab.client();
        client.ask(&json!({"method": format!("{INTERFACE}.ReloadConfig")}));
        assert!(wait_for(LOST, || state(lab, "goes").as_deref() == Some("removing")));
        let mac = format!("mac={MAC}");
        lab.done(&["port", "add", "y", &mac]);
        lab.done(&["port", "set", "y", "mtu=1400"]);
        lab.done(&["port", "del", "y"]);
        lab.done(&["port", "add", "z", &mac]);
        lab.done(&["port", "set", "f1", "mtu=1400"]);
        lab.done(&["port", "del", "f1"]);
        trap.let_go();
        let told = client.answer().expect("an answer");
        assert!(told.get("error").is_none(), "{told}");
        assert_eq!(filed.names(), ["f2", "p0", "z"]);
        assert!(lab.done(&["fdb", "show", "z"]).contains(MAC));
        assert_eq!(lab.done(&["config", "diff"]), "", "what clients changed stays changed");
        filed.lab.d.stop();
    });
}
