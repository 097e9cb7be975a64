//! File systems that never answer: a client that requests a look at such directories of other users
//! learns that, and all other clients are served.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::time::Instant;

use testkit::{silent, skip};

use super::reload::Filed;
use super::*;

/// Runs a test that may mount file systems.
pub(super) fn with_mounts(test: impl FnOnce() + Send + 'static) {
    let own = || match silent::own_mounts() {
        true => test(),
        false => skip("needs mounts of its own"),
    };
    std::thread::spawn(own).join().expect("what is told above");
}

/// A port whose socket lies in a directory over which nobody answers.
fn port_in(lab: &Lab, name: &str) -> Option<(OwnedFd, PathBuf)> {
    let directory = lab.socket(&format!("of-{name}"));
    std::fs::create_dir(&directory).expect("create");
    lab.done(&["port", "add", name, &format!("socket={}", directory.join("sock").display())]);
    Some((silent::mount(&directory, 0, libc::S_IFDIR)?, directory))
}

/// There is one thread for each path, and nothing is left of them.
#[test]
fn a_socket_in_a_directory_that_never_answers_holds_up_nobody() {
    with_mounts(|| {
        let lab = Lab::new(2, &[]);
        let bystanders = lab.bystanders();
        let mut kept = Vec::new();
        for name in ["hangs", "hangs2"] {
            let Some(server) = port_in(&lab, name) else {
                return skip("FUSE cannot be mounted");
            };
            kept.push(server);
        }
        let before = lab.d.settled_usage().threads;
        let ask = |name| {
            let mut client = lab.client();
            let call = format!("{INTERFACE}.GetPortDetails");
            client.ask(&json!({"method": call, "parameters": {"name": name}}));
            client
        };
        // All clients there may be beside these ask, and go on asking.
        for _ in 0..2 {
            // Those of the round before have left their places.
            assert!(wait_for(LOST, || lab.client().count("connected") == 1));
            let mut waiting: Vec<Client> = (0..20).map(|_| ask("hangs")).collect();
            waiting.extend((0..2).map(|_| ask("hangs2")));
            let began = Instant::now();
            let status = lab.client().call("GetStatus", json!({}));
            assert!(status["error"].is_null(), "{status}");
            let other = ask("p0").answer().expect("an answer");
            assert_eq!(other["parameters"]["socket"]["mode"], "0660", "{other}");
            assert_eq!(other["parameters"]["socket"].get("answers"), None, "{other}");
            for client in &mut waiting {
                let told = client.answer().expect("an answer");
                let socket = &told["parameters"]["socket"];
                assert_eq!((&socket["answers"], socket.get("mode")), (&json!(false), None));
                assert_eq!(told["parameters"]["port"]["state"], "listening", "{told}");
            }
            assert!(began.elapsed() < LOST, "{:?}", began.elapsed());
            // One for each path, however many ask.
            assert!(lab.d.usage().threads <= before + 2, "{:?}", lab.d.usage());
        }
        let shown = lab.done(&["port", "show", "hangs"]);
        assert!(shown.contains("sock (its file system does not answer)"), "{shown}");
        let doctor = String::from_utf8(lab.ctl(&["doctor"]).stdout).expect("UTF-8");
        assert!(doctor.contains("sock: its file system does not answer"), "{doctor}");
        assert!(!doctor.contains("socket-missing"), "{doctor}");
        for (server, directory) in kept {
            drop(server);
            silent::unmount(&directory);
        }
        // They end when their file systems do.
        assert!(wait_for(LOST, || lab.d.usage().threads <= before), "{:?}", lab.d.usage());
        let shown = lab.done(&["port", "show", "hangs"]);
        assert!(shown.contains("sock mode 0660"), "{shown}");
        bystanders.finish();
        lab.d.stop();
    });
}

/// While the switch waits for as many file systems as it may, it says of other sockets that it did
/// not look, and not that they do not answer.
#[test]
fn what_cannot_be_looked_at_is_not_said_to_be_silent() {
    with_mounts(|| {
        let lab = Lab::new(1, &[]);
        let names: Vec<String> = (0..16).map(|n| format!("hangs{n}")).collect();
        let mut kept = Vec::new();
        for name in &names {
            let Some(server) = port_in(&lab, name) else {
                return skip("FUSE cannot be mounted");
            };
            kept.push(server);
        }
        let mut clients: Vec<Client> = names
            .iter()
            .map(|name| {
                let mut client = lab.client();
                let call = format!("{INTERFACE}.GetPortDetails");
                client.ask(&json!({"method": call, "parameters": {"name": name}}));
                client
            })
            .collect();
        for client in &mut clients {
            let told = client.answer().expect("an answer");
            assert_eq!(told["parameters"]["socket"]["answers"], false, "{told}");
        }
        let told = lab.client().call("GetPortDetails", json!({"name": "p0"}));
        let socket = &told["parameters"]["socket"];
        assert_eq!((&socket["looked_at"], socket.get("answers")), (&json!(false), None), "{told}");
        let shown = lab.done(&["port", "show", "p0"]);
        assert!(shown.contains("(not examined: the switch waits for"), "{shown}");
        for (server, directory) in kept {
            drop(server);
            silent::unmount(&directory);
        }
        let seen = || lab.done(&["port", "show", "p0"]).contains(" mode 0660");
        assert!(wait_for(LOST, seen), "{}", lab.done(&["port", "show", "p0"]));
        lab.d.stop();
    });
}

/// Files of a configuration are read and compared beside all others.
#[test]
fn a_comparison_with_files_that_never_answer_holds_up_nobody() {
    with_mounts(|| {
        let filed = Filed::new(1, &[("f1", "")], &[]);
        let lab = &filed.lab;
        let diff = || {
            let mut client = lab.client();
            client.ask(&json!({"method": format!("{INTERFACE}.DiffConfig"), "more": true}));
            client
        };
        assert_eq!(diff().answer().expect("an answer")["parameters"]["steps"], json!([]));
        let before = lab.d.settled_usage().threads;
        let Some(server) = silent::mount(filed.etc.path(), 0, libc::S_IFDIR) else {
            return skip("FUSE cannot be mounted");
        };
        let mut waiting: Vec<Client> = (0..8).map(|_| diff()).collect();
        let status = lab.client().call("GetStatus", json!({}));
        assert!(status["error"].is_null(), "{status}");
        waiting.iter().for_each(|client| {
            let soon = Some(Duration::from_millis(20));
            client.0.get_ref().set_read_timeout(soon).expect("timeout");
        });
        assert_eq!(waiting[0].0.fill_buf().expect_err("nothing").kind(), ErrorKind::WouldBlock);
        assert!(lab.d.usage().threads <= before + 1, "{:?}", lab.d.usage());
        drop(server);
        for client in &mut waiting {
            client.0.get_ref().set_read_timeout(Some(LOST)).expect("timeout");
            let told = client.answer().expect("an answer");
            assert_eq!(told["error"], format!("{INTERFACE}.BadConfig"), "{told}");
        }
        silent::unmount(filed.etc.path());
        assert_eq!(diff().answer().expect("an answer")["parameters"]["steps"], json!([]));
        filed.lab.d.stop();
    });
}

/// A call, and how long it took.
fn timed(lab: &Lab, method: &str, parameters: serde_json::Value) -> (serde_json::Value, Duration) {
    let mut client = lab.client();
    let began = Instant::now();
    (client.call(method, parameters), began.elapsed())
}

/// Root looks at the switch and changes it beside a call that is under way: it is answered at once.
fn others_are_served(lab: &Lab, while_at: &str) {
    for (method, parameters) in [
        ("GetStatus", json!({})),
        ("GetPort", json!({"name": "p0"})),
        ("Set", json!({"name": "p0", "mtu": 1500})),
    ] {
        let (told, took) = timed(lab, method, parameters);
        assert!(told["error"].is_null(), "{told}");
        assert!(took < Duration::from_millis(200), "{method} beside {while_at}: {took:?}");
    }
}

/// Ports and streams that are to have their sockets in a directory that never answers: the one who
/// asks is told so, with the path, and all others are served meanwhile.
#[test]
fn a_port_that_is_added_where_no_file_answers_holds_up_nobody() {
    with_mounts(|| {
        let lab = Lab::new(2, &[]);
        let bystanders = lab.bystanders();
        others_are_served(&lab, "nothing");
        let before = lab.d.settled_usage();
        let directory = lab.socket("silent");
        std::fs::create_dir(&directory).expect("create");
        let Some(server) = silent::mount(&directory, 0, libc::S_IFDIR) else {
            return skip("FUSE cannot be mounted");
        };
        // It is silent when the socket is opened, or before, when the path is followed.
        for (kind, name, file) in
            [("port", "a", "sock"), ("stream", "b", "deep/sock"), ("port", "c", "deep/sock")]
        {
            let path = directory.join(file);
            let mut client = lab.client();
            let call = json!({"kind": kind, "name": name, "socket": path});
            let began = Instant::now();
            client.ask(&json!({"method": format!("{INTERFACE}.Add"), "parameters": call}));
            others_are_served(&lab, name);
            let told = client.answer().expect("an answer");
            assert!(began.elapsed() < Duration::from_secs(2), "{name}: {:?}", began.elapsed());
            let text = told["parameters"]["reason"].as_str().unwrap_or_default();
            assert!(text.contains(path.to_str().expect("UTF-8")), "{told}");
            assert!(text.contains("does not answer"), "{told}");
            assert!(!lab.client().call("GetPort", json!({"name": name}))["error"].is_null());
        }
        // One for each path, however often it is asked for.
        assert!(lab.d.usage().threads <= before.threads + 2, "{:?}", lab.d.usage());
        drop(server);
        silent::unmount(&directory);
        // What was refused does not come later, and leaves nothing.
        assert!(wait_for(LOST, || lab.d.usage().threads <= before.threads), "{:?}", lab.d.usage());
        assert_eq!(lab.json(&["port", "list"])["ports"].as_array().map(Vec::len), Some(2));
        assert_eq!(std::fs::read_dir(&directory).expect("a directory").count(), 0);
        lab.done(&["port", "add", "a", &format!("socket={}", directory.join("a").display())]);
        bystanders.finish();
        lab.d.stop();
    });
}

/// A port whose directory stopped answering after it was added can be changed, and its socket's
/// path is no other one's.
#[test]
fn a_port_is_changed_where_no_file_answers() {
    with_mounts(|| {
        let lab = Lab::new(1, &[]);
        let directory = lab.socket("silent");
        std::fs::create_dir_all(directory.join("deep")).expect("create");
        let socket = format!("socket={}", directory.join("deep/sock").display());
        lab.done(&["port", "add", "hangs", &socket]);
        let Some(server) = silent::mount(&directory, 0, libc::S_IFDIR) else {
            return skip("FUSE cannot be mounted");
        };
        let quick = Duration::from_millis(200);
        let (told, took) = timed(&lab, "Set", json!({"name": "hangs", "mtu": 1400}));
        assert_eq!(told["parameters"]["changes"][0]["to"], "1400", "{told}");
        assert!(took < quick, "{took:?}");
        let other = json!({"name": "hangs", "socket": directory.join("other")});
        let (told, took) = timed(&lab, "Set", other);
        let text = told["parameters"]["reason"].as_str().unwrap_or_default();
        assert!(text.contains("socket of port 'hangs' cannot be changed"), "{told}");
        assert!(took < quick, "{took:?}");
        others_are_served(&lab, "nothing");
        drop(server);
        silent::unmount(&directory);
        let socket = format!("socket={}", directory.join("deep/./sock").display());
        let told = lab.fails(&["port", "add", "second", &socket]).1;
        assert!(told.contains("is already used by hangs"), "{told}");
        lab.d.stop();
    });
}

/// A configuration names such a directory: the reload fails that adds a port there, and others do
/// what they are to beside a port that is there already.
#[test]
fn a_reload_with_a_socket_where_no_file_answers_holds_up_nobody() {
    with_mounts(|| {
        let filed = Filed::new(2, &[("f1", "")], &[]);
        let lab = &filed.lab;
        let bystanders = lab.bystanders();
        let directory = filed.etc.path().join("silent");
        std::fs::create_dir_all(directory.join("deep")).expect("create");
        let file = filed.etc.path().join("vioswitch.toml");
        let write = |sockets: &[&str]| {
            let entries: Vec<(&str, &str)> = sockets.iter().map(|socket| (*socket, "")).collect();
            filed.write(&entries);
            let text = std::fs::read_to_string(&file).expect("read");
            let text = text.replace("name = \"silent/deep/", "name = \"");
            std::fs::write(&file, text).expect("write");
        };
        write(&["f1", "silent/deep/old"]);
        lab.done(&["config", "reload"]);
        let Some(server) = silent::mount(&directory, 0, libc::S_IFDIR) else {
            return skip("FUSE cannot be mounted");
        };
        write(&["f1", "silent/deep/old", "silent/deep/f2"]);
        let mut client = lab.client();
        let began = Instant::now();
        client.ask(&json!({"method": format!("{INTERFACE}.ReloadConfig")}));
        while began.elapsed() < Duration::from_millis(500) {
            others_are_served(lab, "a reload");
        }
        let told = client.answer().expect("an answer");
        assert_eq!(told["error"], format!("{INTERFACE}.BadConfig"), "{told}");
        assert!(told.to_string().contains("silent/deep/f2"), "{told}");
        assert!(told.to_string().contains("does not answer"), "{told}");
        assert!(began.elapsed() < LOST, "{:?}", began.elapsed());
        write(&["f1", "silent/deep/old", "f3"]);
        let done = lab.done(&["config", "reload"]);
        assert!(done.ends_with("reloaded: 1 added, 0 changed, 0 deleted\n"), "{done}");
        drop(server);
        silent::unmount(&directory);
        bystanders.finish();
        filed.lab.d.stop();
    });
}
