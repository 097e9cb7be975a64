//! What a member of the group of the `--plug` directory can do with names there: hard links, swaps
//! between the examination of a socket and the connection to it, odd bytes; and how soon a
//! directory that was made anew is noticed.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use base::limits::PLUG_LOOK;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use testkit::{rounds, skip};

use super::plug::{Plugged, plugged};
use super::*;

const MEMBER: u32 = 65533;
const GROUP: u32 = 65534;

/// Runs `work` in a thread of a user who has the directory's group alone.
fn as_member<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let member = scope.spawn(|| {
            // SAFETY: plain system calls, of this thread alone.
            let changed = unsafe {
                libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>())
                    | libc::syscall(libc::SYS_setresgid, GROUP, GROUP, GROUP)
                    | libc::syscall(libc::SYS_setresuid, MEMBER, MEMBER, MEMBER)
            };
            assert_eq!(changed, 0);
            work()
        });
        member.join().expect("the member")
    })
}

/// A switch whose directory has the mode of the installed one.
fn shared(ports: usize) -> Plugged {
    let p = Plugged::new(ports, &[]);
    chown(p.path(""), None, Some(GROUP)).expect("chown");
    fs::set_permissions(p.path(""), fs::Permissions::from_mode(0o3770)).expect("mode");
    p
}

/// A socket that only root may connect to, elsewhere.
fn guarded(directory: &Dir) -> UnixListener {
    let path = directory.path().join("victim");
    let victim = UnixListener::bind(&path).expect("bind");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("mode");
    victim.set_nonblocking(true).expect("non-blocking");
    victim
}

/// Nobody has connected.
fn is_untouched(listener: &UnixListener) -> bool {
    listener.accept().is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

/// The kernel lets a user link others' sockets where `fs.protected_hardlinks` is 0; here root does.
#[test]
fn a_hard_link_to_another_socket_makes_no_port() {
    if !is_root() {
        return skip("needs root to be a member");
    }
    let p = shared(1);
    let elsewhere = Dir::new();
    let victim = guarded(&elsewhere);
    let _own = as_member(|| p.listen("own"));
    p.comes_to(&["own"]);
    as_member(|| fs::hard_link(p.path("own"), p.path("own2"))).expect("link");
    let by_member = as_member(|| fs::hard_link(elsewhere.path().join("victim"), p.path("m")));
    println!("a member's link to another's socket: {by_member:?}");
    let link = |to: &Path, name: &str| fs::hard_link(to, p.path(name)).expect("link");
    link(&elsewhere.path().join("victim"), "stolen");
    link(&p.lab.path, "control");
    link(&p.lab.d.socket(0), "another");
    let _good = p.listen("good");
    p.comes_to(&["good", "own"]);
    for name in ["own2", "stolen", "control", "another"] {
        p.says(&format!("plug: \"{name}\" of uid "));
    }
    p.says("is not made a port: the socket has a second name (hard link), and may belong to");
    std::thread::sleep(PLUG_LOOK + PLUG_LOOK / 4);
    assert_eq!(p.ports(), ["good", "own"], "{}", p.lab.d.log());
    assert!(is_untouched(&victim), "the link was connected to");
    assert_eq!(p.lab.client().count("connected"), 1);
    assert!(!p.lab.d.log().contains("port p0: front-end connected"), "{}", p.lab.d.log());
    // With one name it is a socket like others.
    fs::remove_file(elsewhere.path().join("victim")).expect("remove");
    p.comes_to(&["good", "own", "stolen"]);
    assert!(wait_for(LOST, || victim.accept().is_ok()), "{}", p.lab.d.log());
    p.lab.d.stop();
}

/// Swaps what is at two names.
fn exchange(one: &Path, other: &Path) {
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).expect("exchange");
}

/// A member's sockets, links and names change places without a pause until `stop` is set. Returns
/// how many of its sockets the switch connected to.
fn swap(p: &Plugged, victim: &Path, stop: &AtomicBool) -> usize {
    let (race, decoy, other) = (p.path("race"), p.path("decoy"), p.path("other"));
    let mut met = 0;
    let mut n = 0u64;
    while !stop.load(Ordering::Relaxed) {
        let listeners = [p.listen("race"), p.listen("other")];
        symlink(victim, &decoy).expect("link");
        for _ in 0..40 {
            exchange(&race, &decoy);
            n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            std::thread::sleep(Duration::from_micros(n >> 53));
            // Another socket takes the place of the examined one, and a link that of the other.
            fs::rename(&race, p.path(".hidden")).expect("rename");
            exchange(&decoy, &other);
            fs::rename(p.path(".hidden"), &race).expect("rename");
        }
        for listener in listeners {
            listener.set_nonblocking(true).expect("non-blocking");
            met += usize::from(listener.accept().is_ok());
        }
        for path in [&race, &decoy, &other] {
            fs::remove_file(path).expect("remove");
        }
    }
    met
}

#[test]
fn what_takes_the_place_of_an_examined_socket_is_not_connected_to() {
    if !is_root() {
        return skip("needs root to be a member");
    }
    let p = shared(2);
    let elsewhere = Dir::new();
    let victim = guarded(&elsewhere);
    let before = p.lab.d.settled_usage();
    let bystanders = p.lab.bystanders();
    let stop = AtomicBool::new(false);
    let met = std::thread::scope(|scope| {
        let victim = elsewhere.path().join("victim");
        let (p, stop) = (&p, &stop);
        let member = scope.spawn(move || as_member(|| swap(p, &victim, stop)));
        let end = Instant::now() + Duration::from_secs(rounds(6, 20, 300));
        while Instant::now() < end && !member.is_finished() {
            assert!(p.ports().len() <= 3, "{:?}", p.ports());
        }
        stop.store(true, Ordering::Relaxed);
        member.join().expect("the member")
    });
    println!("the switch connected to {met} of the member's sockets");
    assert!(met > 0, "it connected to none, so nothing was swapped in time");
    assert!(is_untouched(&victim), "it connected to what a link led to");
    bystanders.finish();
    let good = p.listen("good");
    p.comes_to(&["good"]);
    let told = p.lab.d.log().matches(" is not made a port: ").count();
    assert!(told <= 16 + rounds(6, 20, 300) as usize, "{told}");
    fs::remove_file(p.path("good")).expect("remove");
    p.comes_to(&[]);
    drop(good);
    let after = p.lab.d.settled_usage();
    assert_eq!((after.threads, after.fds), (before.threads, before.fds));
    p.lab.d.stop();
}

/// Names that a terminal, a log, a command line or a path would take for something else.
#[test]
fn names_of_odd_bytes_make_no_ports_and_are_written_in_plain_letters() {
    if !is_root() {
        return skip("needs root to be a member");
    }
    let p = shared(1);
    let long = "x".repeat(255);
    let names: [&[u8]; 14] = [
        b"\xff\xfe",
        b"a\nport p0: gone",
        b"\x1b[31mred\x1b]0;title\x07",
        b"-rf",
        b"..x",
        b"%s%n",
        "vm\u{202e}1".as_bytes(),
        "\u{ff41}".as_bytes(),
        b"vm1 ",
        b"~root",
        b"\"];\\",
        b"a\tb\r",
        b"\x7f",
        long.as_bytes(),
    ];
    let _sockets = as_member(|| {
        names.map(|name| {
            let socket = p.listen("new");
            fs::rename(p.path("new"), p.path(OsStr::from_bytes(name))).expect("rename");
            socket
        })
    });
    let _good = p.listen("good");
    p.comes_to(&["good"]);
    let refused = || p.lab.d.log().matches(": a port's name is 1 to 64 letters").count();
    assert!(wait_for(LOST, || refused() >= names.len()), "{}\n{}", refused(), p.lab.d.log());
    assert_eq!(p.ports(), ["good"]);
    let plain = |text: &str| text.chars().all(|c| c == '\n' || c == ' ' || c.is_ascii_graphic());
    let events = p.lab.done(&["events", "--since", "all"]);
    let log = p.lab.d.log();
    for text in [&log, &events, &p.lab.done(&["status"]), &p.lab.done(&["port", "list"])] {
        let odd = text.lines().find(|line| !plain(&line.replace('\u{ff41}', "")));
        assert_eq!(odd, None);
    }
    assert!(!log.lines().any(|line| line.starts_with("port p0: gone")), "{log}");
    let lines = p.lab.done(&["--json", "events", "--since", "all"]);
    let told = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    assert!(told.filter(|event| event["kind"] == "plug_refused").count() >= names.len());
    p.lab.d.stop();
}

/// Where a directory that is made anew gets the number of the one before it, if anywhere.
fn reused_number() -> Option<Dir> {
    use std::os::unix::fs::MetadataExt;
    let parent = Dir::new();
    let path = parent.path().join("plug");
    let made = || {
        fs::create_dir(&path).expect("create");
        let number = fs::metadata(&path).expect("metadata").ino();
        fs::remove_dir(&path).expect("remove");
        number
    };
    (made() == made()).then_some(parent)
}

/// The time until a socket of this name is a port.
fn until_port(lab: &Lab, plug: &Path, name: &str) -> Duration {
    let began = Instant::now();
    let _socket = UnixListener::bind(plug.join(name)).expect("bind");
    assert!(wait_for(LOST, || plugged(lab) == [name]), "{name}: lost\n{}", lab.d.log());
    let took = began.elapsed();
    fs::remove_file(plug.join(name)).expect("remove");
    assert!(wait_for(LOST, || plugged(lab).is_empty()), "{:?}", plugged(lab));
    took
}

/// A directory that the kernel watches no longer, and whose successor has its number, is noticed as
/// soon as a socket in one that stands, but for the pause of a look without an event.
#[test]
fn a_directory_that_is_made_anew_is_noticed_soon() {
    let Some(parent) = reused_number() else {
        return skip("a new directory has another number here");
    };
    let plug = parent.path().join("plug");
    fs::create_dir(&plug).expect("create");
    let lab = Lab::new(0, &[&format!("--plug={}", plug.display())]);
    let (mut standing, mut anew) = (Duration::ZERO, Duration::ZERO);
    for n in 0..rounds(3, 6, 60) {
        standing = standing.max(until_port(&lab, &plug, &format!("s{n}")));
        // A look begins with a file; what follows in its pause is seen by the next one.
        fs::write(plug.join("file"), "").expect("write");
        fs::remove_file(plug.join("file")).expect("remove");
        std::thread::sleep(Duration::from_millis(20));
        fs::remove_dir(&plug).expect("remove");
        fs::create_dir(&plug).expect("create");
        std::thread::sleep(Duration::from_millis(300));
        anew = anew.max(until_port(&lab, &plug, &format!("a{n}")));
    }
    println!("longest times: {standing:.0?} where it stands, {anew:.0?} made anew");
    assert!(anew <= PLUG_LOOK + 4 * standing, "{anew:?}, {standing:?} where it stands");
    lab.d.stop();
}
