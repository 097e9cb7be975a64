//! Ports by plug: sockets that appear in the directory of `--plug`, files that are none, and what
//! a user who may make files there can cost.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;

use testkit::frontend::Frontend;
use testkit::net::{Job, Net, Sizes};
use testkit::traffic::To;
use testkit::{silent, skip};

use super::*;

/// A switch and its directory.
pub(super) struct Plugged {
    pub(super) lab: Lab,
    plug: Dir,
}

impl Plugged {
    pub(super) fn new(ports: usize, extra: &[&str]) -> Plugged {
        let plug = Dir::new();
        let option = format!("--plug={}", plug.path().display());
        let lab = Lab::new(ports, &[&[option.as_str()], extra].concat());
        Plugged { lab, plug }
    }

    pub(super) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.plug.path().join(name)
    }

    pub(super) fn listen(&self, name: impl AsRef<Path>) -> UnixListener {
        UnixListener::bind(self.path(name)).expect("bind")
    }

    pub(super) fn ports(&self) -> Vec<String> {
        plugged(&self.lab)
    }

    pub(super) fn comes_to(&self, wanted: &[&str]) {
        let done = wait_for(LOST, || self.ports() == wanted);
        assert!(done, "{:?}, not {wanted:?}\n{}", self.ports(), self.lab.d.log());
    }

    /// Killed, and started again.
    fn restart(&mut self) {
        self.lab.d.kill();
        self.start_again();
    }

    fn start_again(&mut self) {
        self.lab.d.restart();
        let up = wait_for(LOST, || self.lab.ctl(&["status"]).status.success());
        assert!(up, "not back\n{}", self.lab.d.log());
    }

    pub(super) fn says(&self, words: &str) {
        let said = wait_for(LOST, || self.lab.d.log().contains(words));
        assert!(said, "{words}\n{}", self.lab.d.log());
    }
}

/// The names of the ports that came by themselves.
pub(super) fn plugged(lab: &Lab) -> Vec<String> {
    let told = lab.json(&["port", "list"]);
    let ports = told["ports"].as_array().expect("ports").iter();
    let plugged = ports.filter(|port| port["origin"] == "plug");
    let mut names: Vec<String> =
        plugged.map(|port| port["name"].as_str().expect("a name").to_owned()).collect();
    names.sort();
    names
}

/// Closes the connections that wait to be accepted.
fn discard_connections(listener: &UnixListener) {
    listener.set_nonblocking(true).expect("non-blocking");
    while listener.accept().is_ok() {}
    listener.set_nonblocking(false).expect("blocking");
}

fn exchange(listeners: &[UnixListener; 2]) {
    let guest = |id: u8| {
        let front_end = Frontend::accept(&listeners[usize::from(id)], LOST).expect("a switch");
        Vm::attach(front_end, VmConfig::new(id))
    };
    let mut net = Net::new(vec![guest(0), guest(1)]);
    net.announce();
    let job = |from: u8| Job::new(from.into(), To::Vm(1 - from), 200, Sizes::Range(60, 1514));
    net.run(&[job(0), job(1)]);
    net.finish();
}

#[test]
fn a_socket_that_turns_up_is_a_port_until_it_goes() {
    let early = Dir::new();
    let _before = UnixListener::bind(early.path().join("early")).expect("bind");
    let mut p = Plugged::new(0, &[]);
    let listeners = [p.listen("vm1"), p.listen("vm2")];
    p.comes_to(&["vm1", "vm2"]);
    exchange(&listeners);
    let port = p.lab.json(&["port", "show", "vm1"])["port"].clone();
    // SAFETY: plain system call.
    assert_eq!(port["owner"], unsafe { libc::geteuid() });
    let told = p.lab.done(&["port", "show", "vm1"]);
    assert!(told.lines().any(|line| line.split_whitespace().eq(["origin:", "plug"])), "{told}");
    let (status, line) = p.lab.fails(&["port", "add", "vm1"]);
    assert_eq!(
        (status, line.as_str()),
        (1, "port 'vm1' exists (origin plug); --may-exist accepts it")
    );
    // Killed, and started over the same sockets.
    p.lab.d.kill();
    // It had connected again already; a connection of a process that is gone serves no guest.
    listeners.iter().for_each(discard_connections);
    p.start_again();
    p.comes_to(&["vm1", "vm2"]);
    exchange(&listeners);
    fs::remove_file(p.path("vm1")).expect("remove");
    p.comes_to(&["vm2"]);
    // Bound anew it is another port, of which nothing is counted.
    fs::remove_file(p.path("vm2")).expect("remove");
    let again = [p.listen("vm1"), p.listen("vm2")];
    p.comes_to(&["vm1", "vm2"]);
    let added = |log: &str| log.matches("port vm2: added for the socket of uid ").count();
    assert!(wait_for(LOST, || added(&p.lab.d.log()) == 3), "{}", p.lab.d.log());
    assert_eq!(p.lab.json(&["port", "show", "vm2"])["port"]["in"]["frames"], 0);
    exchange(&again);
    fs::remove_dir_all(p.plug.path()).expect("remove");
    p.comes_to(&[]);
    fs::create_dir(p.plug.path()).expect("create");
    let _socket = p.listen("vm3");
    p.comes_to(&["vm3"]);
    p.lab.d.stop();
}

#[test]
fn what_is_no_socket_or_has_a_name_that_is_taken_is_refused() {
    let p = Plugged::new(1, &[]);
    let elsewhere = Dir::new();
    let target = UnixListener::bind(elsewhere.path().join("s")).expect("bind");
    target.set_nonblocking(true).expect("non-blocking");
    let squatter = p.listen("p0");
    symlink(elsewhere.path().join("s"), p.path("link")).expect("link");
    fs::write(p.path("file"), "").expect("write");
    let _bad = [p.listen(".hidden"), p.listen("a b\n"), p.listen("x".repeat(65))];
    let _good = p.listen("good");
    p.comes_to(&["good"]);
    for words in [
        r#"plug: "p0" of uid "#,
        r#"is not made a port: the name is taken"#,
        r#"plug: "link" is not made a port: the file is no socket"#,
        r#"plug: "file" is not made a port: the file is no socket"#,
        r#"plug: ".hidden" of uid "#,
        r#"plug: "a b\n" of uid "#,
        "is not made a port: a port's name is 1 to 64 letters",
    ] {
        p.says(words);
    }
    let refused = |p: &Plugged| p.lab.d.log().matches(" is not made a port: ").count();
    std::thread::sleep(Duration::from_millis(2_500));
    assert_eq!(refused(&p), 6, "each is told of once: {}", p.lab.d.log());
    let events = p.lab.done(&["events", "--since", "all"]);
    assert!(events.contains("plug: \"p0\" of uid"), "{events}");
    assert_eq!(
        target.accept().expect_err("the link was followed").kind(),
        std::io::ErrorKind::WouldBlock
    );
    assert_eq!(p.lab.json(&["port", "show", "p0"])["port"]["origin"], "config");
    // The name is free, and whose socket waited for it has the port.
    p.lab.done(&["port", "del", "p0"]);
    p.comes_to(&["good", "p0"]);
    Frontend::accept(&squatter, LOST).expect("a switch");
    // The other way round, a port that is deleted stays away until its socket is made anew.
    p.lab.done(&["port", "del", "good"]);
    std::thread::sleep(Duration::from_millis(2_500));
    assert_eq!(p.ports(), ["p0"]);
    fs::remove_file(p.path("good")).expect("remove");
    let _again = p.listen("good");
    p.comes_to(&["good", "p0"]);
    p.lab.d.stop();
}

#[test]
fn a_port_whose_listener_died_goes_and_the_file_stays() {
    let p = Plugged::new(0, &[]);
    let alive = p.listen("alive");
    let dead = p.listen("dead");
    p.comes_to(&["alive", "dead"]);
    let _one = Frontend::accept(&alive, LOST).expect("a switch");
    let _other = Frontend::accept(&dead, LOST).expect("a switch");
    drop((dead, _other));
    p.comes_to(&["alive"]);
    assert!(p.path("dead").exists());
    p.says(r#"plug: "dead" of uid "#);
    p.says("the socket has refused connections for 5 s (Connection refused");
    std::thread::sleep(Duration::from_millis(2_500));
    assert_eq!(p.lab.d.log().matches(" is not made a port: ").count(), 1);
    assert_eq!(p.ports(), ["alive"]);
    fs::remove_file(p.path("dead")).expect("remove");
    let _again = p.listen("dead");
    p.comes_to(&["alive", "dead"]);
    p.lab.d.stop();
}

/// A thousand names at once: so many become ports, few are told of, and nobody else is held up.
#[test]
fn a_flood_of_names_is_bounded() {
    let p = Plugged::new(2, &[]);
    let plug = p.plug.path().to_owned();
    let names: Vec<String> = (0..1_000).map(|n| format!("f{n}")).collect();
    for name in &names {
        drop(UnixListener::bind(plug.join(name)).expect("bind"));
    }
    assert!(wait_for(LOST, || p.ports().len() == 128), "{}", p.ports().len());
    // SAFETY: plain system call.
    p.says(&format!("user {} has 128 ports by plug already", unsafe { libc::geteuid() }));
    let mut net =
        Net::new([0, 1].map(|id| Vm::connect(&p.lab.d.socket(id), VmConfig::new(id as u8))).into());
    net.announce();
    let job = |from: u8| Job::new(from.into(), To::Vm(1 - from), 500, Sizes::Range(60, 1514));
    net.run(&[job(0), job(1)]);
    for _ in 0..20 {
        assert!(p.ports().len() <= 128);
        p.lab.done(&["status"]);
    }
    net.finish();
    names.iter().for_each(|name| fs::remove_file(plug.join(name)).expect("remove"));
    p.comes_to(&[]);
    let told = p.lab.d.log().matches(" is not made a port: ").count();
    assert!((1..=20).contains(&told), "{told}");
    let _late = p.listen("late");
    p.comes_to(&["late"]);
    p.lab.d.stop();
}

#[test]
fn a_template_holds_for_ports_that_come_later() {
    let etc = Dir::new();
    let file = etc.path().join("vioswitch.toml");
    let plug = Dir::new();
    let write = |directory: &Path, template: &str, more: &str| {
        let text =
            format!("plug = \"{}\"\n[template.plug]\n{template}\n{more}", directory.display());
        fs::write(&file, text).expect("write");
    };
    write(plug.path(), "queues = 2\nmtu = 1400", "");
    let state = etc.path().join("state");
    let config = format!("--config={}", file.display());
    let lab = Lab::new(0, &[&config, &format!("--state-dir={}", state.display())]);
    let mut p = Plugged { lab, plug };
    let _first = p.listen("vm1");
    p.comes_to(&["vm1"]);
    let shown = |p: &Plugged, name: &str| {
        let port = p.lab.json(&["port", "show", name])["port"].clone();
        (port["queues"].as_u64(), port["mtu"].as_u64())
    };
    assert_eq!(shown(&p, "vm1"), (Some(2), Some(1400)));
    write(p.plug.path(), "queues = 4", "");
    let diff = p.lab.done(&["config", "diff"]);
    assert!(diff.contains("~ template plug  queues 2 -> 4  for ports that come later"), "{diff}");
    let said = p.lab.done(&["config", "reload"]);
    assert!(said.contains("reloaded: 0 added, 2 changed, 0 deleted"), "{said}");
    assert_eq!(p.lab.done(&["config", "diff"]), "");
    // What its machine is started with is known before there is a port.
    let told = p.lab.json(&["attach", "vm9", "--libvirt", "--plug"])["text"].clone();
    let told = told.as_str().expect("a text");
    let source = format!("<source type='unix' path='{}' mode='server'/>", p.path("vm9").display());
    assert!(told.contains(&source) && told.contains("<driver queues='4'/>"), "{told}");
    let _second = p.listen("vm2");
    p.comes_to(&["vm1", "vm2"]);
    assert_eq!((shown(&p, "vm1").0, shown(&p, "vm2")), (Some(2), (Some(4), None)));
    // What is changed by hand, or has an address, is forgotten with the port.
    p.lab.done(&["port", "set", "vm1", "mtu=1300"]);
    p.lab.done(&["fdb", "add", "02:00:00:00:00:07", "vm2"]);
    p.lab.done(&["port", "add", "other"]);
    let kept = fs::read_dir(&state).expect("state").flatten().map(|e| fs::read_to_string(e.path()));
    let kept: String = kept.map(|text| text.expect("text")).collect();
    assert!(kept.contains("other") && !kept.contains("vm1") && !kept.contains("vm2"), "{kept}");
    p.lab.done(&["port", "del", "other"]);
    // A file that has the name takes precedence, and the directory is another one with a restart.
    let elsewhere = Dir::new();
    let port = format!("[[port]]\nname = \"vm1\"\nsocket = \"{}\"", p.lab.socket("vm1").display());
    write(elsewhere.path(), "queues = 4", &port);
    let diff = p.lab.done(&["config", "diff"]);
    assert!(diff.contains("~ switch") && diff.contains("with a restart"), "{diff}");
    p.lab.done(&["config", "reload"]);
    p.comes_to(&["vm2"]);
    assert_eq!(p.lab.json(&["port", "show", "vm1"])["port"]["origin"], "config");
    let _third = p.listen("vm3");
    p.comes_to(&["vm2", "vm3"]);
    // It is there with the next start, and nothing of the old one's ports.
    p.restart();
    let _fourth = UnixListener::bind(elsewhere.path().join("vm4")).expect("bind");
    p.comes_to(&["vm4"]);
    assert!(!p.lab.d.log().contains("left out"), "{}", p.lab.d.log());
    p.lab.d.stop();
}

/// Who has only the group, as QEMU has, makes ports, and stands there with his number. A directory
/// in which anybody could take his place is none.
#[test]
fn whose_socket_it_is_and_where() {
    let p = Plugged::new(0, &[]);
    if is_root() {
        let elsewhere = Dir::new();
        let socket = elsewhere.path().join("vm1");
        let _listening = UnixListener::bind(&socket).expect("bind");
        std::os::unix::fs::chown(&socket, Some(64_055), None).expect("chown");
        fs::rename(&socket, p.path("vm1")).expect("rename");
        p.comes_to(&["vm1"]);
        assert_eq!(p.lab.json(&["port", "show", "vm1"])["port"]["owner"], 64_055);
        p.says("port vm1: added for the socket of uid 64055");
    }
    p.lab.d.stop();
    let open = Dir::new();
    fs::set_permissions(open.path(), fs::Permissions::from_mode(0o777)).expect("mode");
    let _in_vain = UnixListener::bind(open.path().join("vm1")).expect("bind");
    let option = format!("--plug={}", open.path().display());
    let lab = Lab::new(0, &[&option]);
    let p = Plugged { lab, plug: open };
    p.says("may be written to by everybody");
    assert!(p.ports().is_empty());
    let health = || String::from_utf8(p.lab.ctl(&["health"]).stdout).expect("UTF-8");
    let told = wait_for(LOST, || health().contains("may be written to by everybody"));
    assert!(told, "{}", health());
    fs::set_permissions(p.plug.path(), fs::Permissions::from_mode(0o2770)).expect("mode");
    p.comes_to(&["vm1"]);
    p.lab.done(&["health"]);
    p.lab.d.stop();
}

/// A user mounts FUSE over files of the directory: root is refused there (EACCES), or waits for a
/// server that does not answer.
#[test]
fn a_file_that_cannot_be_looked_at_holds_up_no_other() {
    let held = || {
        if !silent::own_mounts() {
            return skip("needs mounts of its own");
        }
        let p = Plugged::new(0, &[]);
        let (one, _masked) = (p.listen("vm1"), p.listen("waits"));
        let directory = |name| {
            fs::create_dir(p.path(name)).expect("create");
            p.path(name)
        };
        p.comes_to(&["vm1", "waits"]);
        p.lab.done(&["port", "del", "waits"]);
        let Some(_theirs) = silent::mount(&directory("theirs"), 65_534, libc::S_IFDIR) else {
            return skip("FUSE cannot be mounted");
        };
        let _silent = silent::mount(&directory("silent"), 0, libc::S_IFDIR).expect("mount");
        let over_port = silent::mount(&p.path("vm1"), 65_534, libc::S_IFSOCK).expect("mount");
        let over_file = silent::mount(&p.path("waits"), 65_534, libc::S_IFSOCK).expect("mount");
        let two = p.listen("vm2");
        p.comes_to(&["vm1", "vm2"]);
        p.says(r#"plug: "theirs" is not made a port: the file is no socket"#);
        p.says(r#"plug: "silent" is not made a port: the file is no socket"#);
        p.says(r#"plug: "waits" is not made a port: the file cannot be examined: Permission"#);
        p.lab.done(&["health"]);
        exchange(&[one, two]);
        drop(over_file);
        silent::unmount(&p.path("waits"));
        p.comes_to(&["vm1", "vm2", "waits"]);
        drop(over_port);
        silent::unmount(&p.path("vm1"));
        p.lab.d.stop();
    };
    std::thread::spawn(held).join().expect("what is told above");
}

/// Sockets that sort first, of users who would have all places: each has a bound, and after a
/// restart the ports come again that there were.
#[test]
fn many_sockets_of_others_take_no_port_that_there_is() {
    if !is_root() {
        return skip("needs root to be several users");
    }
    let mut p = Plugged::new(0, &[]);
    let elsewhere = Dir::new();
    let crowd = |letter: &str, uid: u32| -> Vec<UnixListener> {
        let all = (0..150).map(|n| {
            let name = format!("{letter}{n:03}");
            let made = elsewhere.path().join(&name);
            let socket = UnixListener::bind(&made).expect("bind");
            chown(&made, Some(uid), None).expect("chown");
            fs::rename(&made, p.path(&name)).expect("rename");
            socket
        });
        all.collect()
    };
    let names: Vec<String> = (0..10).map(|n| format!("vm{n}")).collect();
    let of = |p: &Plugged, letter: &str| -> Vec<String> {
        p.ports().into_iter().filter(|name| name.starts_with(letter)).collect()
    };
    let _machines: Vec<_> = names.iter().map(|name| p.listen(name)).collect();
    assert!(wait_for(LOST, || p.ports() == names), "{:?}", p.ports());
    let _first = crowd("a", 65_533);
    assert!(wait_for(LOST, || of(&p, "a").len() == 128), "{}", of(&p, "a").len());
    p.says("user 65533 has 128 ports by plug already");
    let _eleventh = p.listen("wm");
    assert!(wait_for(LOST, || of(&p, "wm").len() == 1), "{:?}", p.ports());
    let _second = crowd("b", 65_532);
    assert!(wait_for(LOST, || p.ports().len() == 256), "{}", p.ports().len());
    let before = p.ports();
    p.restart();
    assert!(wait_for(LOST, || p.ports().len() == 256), "{}", p.ports().len());
    assert_eq!(p.ports(), before);
    p.lab.d.stop();
}

/// A mirror outlives its observer: whoever takes the name of that one by a socket gets no copies.
#[test]
fn a_socket_with_the_name_of_an_observer_gets_no_copies() {
    let mut p = Plugged::new(2, &["--mirror=m,from=p0,to=ids"]);
    let squatter = p.listen("ids");
    let _good = p.listen("good");
    p.comes_to(&["good"]);
    p.says(r#"port 'ids' would get the copies of mirror 'm'"#);
    let ids = p.lab.socket("ids.sock");
    p.lab.done(&["port", "add", "ids", &format!("socket={}", ids.display())]);
    let active = |p: &Plugged| p.lab.json(&["mirror", "list"])["mirrors"][0]["active"] == true;
    assert!(active(&p));
    // While it is away, and in the next process.
    p.lab.done(&["port", "del", "ids"]);
    std::thread::sleep(Duration::from_millis(2_500));
    assert!(p.ports() == ["good"] && !active(&p), "{:?}", p.ports());
    p.restart();
    p.comes_to(&["good"]);
    assert!(!active(&p));
    squatter.set_nonblocking(true).expect("non-blocking");
    assert!(squatter.accept().is_err(), "the switch connected to it");
    // Neither does one that was there before its mirror.
    let (status, line) = p.lab.fails(&["mirror", "add", "n", "from=p0", "to=good"]);
    assert!(status == 1 && line.contains("port 'good' is by plug"), "{status} {line}");
    p.lab.done(&["mirror", "add", "n", "from=good", "to=p1"]);
    // Without the mirror it is a name like others.
    p.lab.done(&["mirror", "del", "m"]);
    p.comes_to(&["good", "ids"]);
    p.lab.d.stop();
}
