//! The sandbox: what a process can no longer do once it is in it, in threads of before and after;
//! and that what a switch does for itself goes on.
//!
//! A test has this program run again, as [`child`], which enters the very sandbox of the daemon.

// A static program loads no library.
#[cfg(target_env = "gnu")]
mod told;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::mpsc;
use std::time::Duration;

use sys::sandbox::{self, Allowed, Use};
use testkit::host::in_namespace;
use testkit::proc::{Daemon, Dir, wait_for};

#[cfg(target_env = "gnu")]
use super::lab::{Process, port};

/// What the child is to do.
const TASK: &str = "VIOSWITCH_SANDBOX_TASK";
/// A directory that the child may use.
const PLACE: &str = "VIOSWITCH_SANDBOX_PLACE";
const SOON: Duration = Duration::from_secs(20);

/// Calls with zeros for arguments that no switch makes.
const REFUSED: [(&str, libc::c_long); 24] = [
    ("mount", libc::SYS_mount),
    ("umount2", libc::SYS_umount2),
    ("setns", libc::SYS_setns),
    ("unshare", libc::SYS_unshare),
    ("kill", libc::SYS_kill),
    ("process_vm_readv", libc::SYS_process_vm_readv),
    ("keyctl", libc::SYS_keyctl),
    ("add_key", libc::SYS_add_key),
    ("perf_event_open", libc::SYS_perf_event_open),
    ("userfaultfd", libc::SYS_userfaultfd),
    ("swapon", libc::SYS_swapon),
    ("reboot", libc::SYS_reboot),
    ("sethostname", libc::SYS_sethostname),
    ("chroot", libc::SYS_chroot),
    ("pivot_root", libc::SYS_pivot_root),
    ("setuid", libc::SYS_setuid),
    ("personality", libc::SYS_personality),
    ("open_by_handle_at", libc::SYS_open_by_handle_at),
    ("mknodat", libc::SYS_mknodat),
    ("symlinkat", libc::SYS_symlinkat),
    ("clock_settime", libc::SYS_clock_settime),
    ("pidfd_open", libc::SYS_pidfd_open),
    ("seccomp", libc::SYS_seccomp),
    ("io_uring_setup", libc::SYS_io_uring_setup),
];

/// Calls that a switch makes, with arguments that it never has.
const NARROWED: [(&str, libc::c_long, [libc::c_long; 3]); 8] = [
    ("socket", libc::SYS_socket, [libc::AF_INET as i64, libc::SOCK_DGRAM as i64, 0]),
    ("clone", libc::SYS_clone, [libc::SIGCHLD as i64, 0, 0]),
    ("tgkill", libc::SYS_tgkill, [1, 1, 0]),
    ("tkill", libc::SYS_tkill, [1, 0, 0]),
    ("fcntl", libc::SYS_fcntl, [0, libc::F_SETOWN as i64, 1]),
    ("ioctl", libc::SYS_ioctl, [0, 0x5452, 0]),
    ("ioctl", libc::SYS_ioctl, [0, libc::TIOCSTI as i64, 0]),
    ("prctl", libc::SYS_prctl, [libc::PR_SET_DUMPABLE as i64, 1, 0]),
];

/// Calls that end the process.
const FATAL: [(&str, libc::c_long, [libc::c_long; 3]); 12] = [
    ("execve", libc::SYS_execve, [0; 3]),
    ("execveat", libc::SYS_execveat, [0; 3]),
    ("ptrace", libc::SYS_ptrace, [0; 3]),
    ("bpf", libc::SYS_bpf, [0; 3]),
    ("init_module", libc::SYS_init_module, [0; 3]),
    ("finit_module", libc::SYS_finit_module, [0; 3]),
    ("delete_module", libc::SYS_delete_module, [0; 3]),
    ("kexec_load", libc::SYS_kexec_load, [0; 3]),
    ("kexec_file_load", libc::SYS_kexec_file_load, [0; 3]),
    ("mmap", libc::SYS_mmap, [0, 4096, libc::PROT_EXEC as i64]),
    ("mprotect", libc::SYS_mprotect, [0, 4096, libc::PROT_EXEC as i64]),
    ("pkey_mprotect", libc::SYS_pkey_mprotect, [0, 4096, libc::PROT_EXEC as i64]),
];

fn call(number: libc::c_long, [a, b, c]: [libc::c_long; 3]) -> (libc::c_long, i32) {
    // SAFETY: the kernel refuses each of these calls, or gives EFAULT for its null pointers.
    let answer = unsafe { libc::syscall(number, a, b, c, 0, 0, 0) };
    (answer, io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

/// This program again, as [`child`] with a task.
fn run(task: &str, place: &Path) -> Output {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args(["--exact", "sandbox::child", "--nocapture", "--test-threads=1"]);
    command.env(TASK, task).env(PLACE, place).env("RUST_BACKTRACE", "1");
    command.output().expect("a child")
}

fn passes(task: &str) {
    let dir = Dir::new();
    let output = run(task, dir.path());
    assert!(output.status.success(), "{task}: {output:?}");
    let told = String::from_utf8_lossy(&output.stdout).contains("did its task");
    assert!(told, "{task}: {output:?}");
}

fn entered(place: &Path) {
    let mut paths = vec![(place.to_owned(), Use::Sockets)];
    paths.extend(sandbox::READ.map(|path| (path.into(), Use::Read)));
    let state = sandbox::enter(Allowed { paths, ..Allowed::default() }).expect("a sandbox");
    assert_eq!(state.lacks(), [""; 0]);
    assert!(state.landlock > 1 && state.system_calls > 50, "{state:?}");
}

/// No test by itself: what runs in the sandbox for one.
#[test]
fn child() {
    let Ok(task) = std::env::var(TASK) else { return };
    let place = PathBuf::from(std::env::var_os(PLACE).expect("a place"));
    match task.as_str() {
        "refused" => in_two_threads(place, refused),
        "files" => in_two_threads(place, files),
        "usual" => {
            entered(&place);
            usual();
        }
        "abort" => {
            entered(&place);
            std::process::abort();
        }
        fatal => {
            entered(&place);
            let (_, number, args) =
                FATAL.into_iter().find(|(name, ..)| *name == fatal).expect("a call");
            call(number, args);
        }
    }
    println!("did its task");
}

/// Does it in a thread that was there when the process was confined, and in a new one.
fn in_two_threads(place: PathBuf, work: fn(&Path)) {
    let (go, wait) = mpsc::channel();
    let own = place.clone();
    let before = std::thread::spawn(move || {
        wait.recv().expect("a word");
        work(&own);
    });
    entered(&place);
    go.send(()).expect("a thread");
    before.join().expect("the thread of before");
    std::thread::spawn(move || work(&place)).join().expect("the new thread");
}

fn counts() -> BTreeMap<String, u64> {
    sandbox::forbidden().into_iter().collect()
}

fn refused(_: &Path) {
    let plain = REFUSED.map(|(name, number)| (name, number, [0; 3]));
    for (name, number, args) in plain.into_iter().chain(NARROWED) {
        let before = counts().get(name).copied().unwrap_or(0);
        for _ in 0..3 {
            assert_eq!(call(number, args), (-1, libc::EPERM), "{name}");
        }
        assert_eq!(counts()[name], before + 3, "{name}");
    }
    // Its flags lie in memory: libcs go on with clone.
    assert_eq!(call(libc::SYS_clone3, [0; 3]), (-1, libc::ENOSYS));
    // What a switch does is allowed.
    assert_eq!(call(libc::SYS_getpid, [0; 3]).0, i64::from(std::process::id()));
    assert!(!counts().contains_key("getpid"));
}

fn files(place: &Path) {
    for path in ["/etc/passwd", "/etc/hostname", "/", "/usr", "/root"] {
        let error = File::open(path).expect_err(path);
        assert_eq!(error.raw_os_error(), Some(libc::EACCES), "{path}");
    }
    for path in ["/tmp/sandbox-escape", "/etc/sandbox-escape"] {
        assert!(File::create(path).is_err(), "{path}");
    }
    let inside = place.join("file");
    fs::write(&inside, "x").expect("write");
    assert_eq!(fs::read(&inside).expect("read"), b"x");
    fs::remove_file(&inside).expect("remove");
    let socket = std::os::unix::net::UnixListener::bind(place.join("socket")).expect("bind");
    drop(socket);
    fs::remove_file(place.join("socket")).expect("remove");
    assert!(fs::read_to_string("/proc/self/status").is_ok());
    modes(&place.join("mode"));
    // TCP: no socket by the filter.
    assert!(std::net::TcpListener::bind("127.0.0.1:0").is_err());
}

/// Modes and groups of files go, as sockets get them; not what has a program run as another user.
fn modes(file: &Path) {
    let made = |mode| {
        let made = File::options().write(true).create_new(true).mode(mode).open(file);
        made.and_then(|_| fs::remove_file(file)).map_err(|error| error.raw_os_error())
    };
    assert_eq!(made(0o755), Ok(()));
    assert_eq!((made(0o4755), made(0o2755)), (Err(Some(libc::EPERM)), Err(Some(libc::EPERM))));
    fs::write(file, "x").expect("write");
    let set = |mode| fs::set_permissions(file, fs::Permissions::from_mode(mode));
    assert!(set(0o660).is_ok());
    // SAFETY: plain system calls.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    assert!(chown(file, None, Some(group)).is_ok());
    for refused in [set(0o4755), set(0o2755), chown(file, Some(user), None)] {
        let error = refused.expect_err("not refused");
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
    }
    fs::remove_file(file).expect("remove");
}

/// What other programs' sandboxes forbade by mistake.
fn usual() {
    // A panic with a trace, caught.
    let panics = || {
        let trace = std::backtrace::Backtrace::force_capture().to_string();
        assert!(trace.contains("usual"), "{trace}");
        panic!("{}", trace.lines().count());
    };
    assert!(std::panic::catch_unwind(panics).is_err());
    assert!(std::thread::spawn(|| panic!("a thread")).join().is_err());
    let many = (0..10_000).map(|n| std::thread::spawn(move || n).join().expect("a thread"));
    assert_eq!(many.sum::<u32>(), 49_995_000);
    let beside: Vec<_> = (0..200)
        .map(|_| std::thread::spawn(|| std::thread::sleep(Duration::from_millis(50))))
        .collect();
    beside.into_iter().for_each(|one| one.join().expect("a thread"));
    for errno in 1..134 {
        assert!(!io::Error::from_raw_os_error(errno).to_string().is_empty());
    }
    // SAFETY: the structure is large enough, and the environment is this thread's alone.
    unsafe {
        let mut time: libc::tm = std::mem::zeroed();
        for zone in ["", "Europe/Berlin", ":/etc/localtime", "CET-1CEST"] {
            std::env::set_var("TZ", zone);
            assert!(!libc::localtime_r(&1_700_000_000, &mut time).is_null());
        }
        let blocks: Vec<Vec<u8>> = (0..1000).map(|n| vec![1; 64 * n]).collect();
        drop(blocks);
        #[cfg(target_env = "gnu")]
        libc::malloc_trim(0);
    }
    let big = vec![1_u8; 64 << 20];
    assert_eq!(big[big.len() - 1], 1);
    drop(big);
    assert!(sys::group::gid_of("root").is_ok());
    assert!(std::time::SystemTime::now().elapsed().is_ok());
    assert_eq!(counts(), BTreeMap::new());
}

#[test]
fn forbidden_calls_are_refused_and_counted_in_threads_of_before_and_after() {
    passes("refused");
}

#[test]
fn files_outside_are_closed_to_threads_of_before_and_after() {
    passes("files");
}

#[test]
fn panics_threads_errors_times_and_memory_work() {
    passes("usual");
}

/// And so it is told from a call that the filter refused.
#[test]
fn an_abort_ends_by_its_own_signal() {
    let output = run("abort", Dir::new().path());
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
}

#[test]
fn new_code_and_what_leads_to_it_ends_the_process() {
    let dir = Dir::new();
    for (name, ..) in FATAL {
        let output = run(name, dir.path());
        assert_eq!(output.status.signal(), Some(libc::SIGSYS), "{name}: {output:?}");
    }
    let listed: BTreeSet<_> = FATAL.iter().map(|(name, ..)| *name).collect();
    assert!(sandbox::FATAL.iter().all(|name| listed.contains(name)), "{listed:?}");
}

fn ask(control: &Path, words: &str) -> Output {
    let mut client = Command::new(env!("CARGO_BIN_EXE_vioswitchctl"));
    client.arg("--control").arg(control).args(words.split(' ')).output().expect("vioswitchctl")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

/// A daemon with a port that is ready, and so in its sandbox.
fn ready(args: &[&str]) -> Daemon {
    let d = Daemon::with_ports(&[""], args);
    assert!(wait_for(SOON, || d.log().contains("ready: ")), "{}", d.log());
    d
}

/// Values of a line of `/proc/PID/status`, of all threads.
fn of_threads(d: &Daemon, line: &str) -> BTreeSet<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", d.pid())).expect("tasks").flatten();
    let status = tasks.filter_map(|task| fs::read_to_string(task.path().join("status")).ok());
    let value = |status: String| {
        let value = status.lines().find_map(|one| one.strip_prefix(line))?;
        Some(value.trim().to_owned())
    };
    status.filter_map(value).collect()
}

#[test]
fn status_says_what_a_switch_is_confined_to() {
    let dir = Dir::new();
    let control = dir.path().join("control");
    let path = control.to_str().expect("UTF-8");
    let d = ready(&["--control", path]);
    let status = said(&ask(&control, "status"));
    let line = status.lines().find(|line| line.starts_with("sandbox:")).expect("a line");
    assert!(line.contains(" on: Landlock ") && line.contains("files, links"), "{line}");
    assert!(line.contains(" system calls; "), "{line}");
    assert!(!d.log().contains("sandbox"), "{}", d.log());
    for (line, value) in [("Seccomp:", "2"), ("NoNewPrivs:", "1")] {
        assert_eq!(of_threads(&d, line), BTreeSet::from([value.to_owned()]), "{line}");
    }
    drop(d);
    let d = ready(&["--control", path, "--sandbox=off"]);
    let status = said(&ask(&control, "status"));
    assert!(status.lines().any(|line| line.split_whitespace().eq(["sandbox:", "off"])), "{status}");
    assert!(d.log().contains("sandbox: off, as configured"), "{}", d.log());
    assert_eq!(of_threads(&d, "Seccomp:"), BTreeSet::from(["0".to_owned()]));
}

#[test]
fn a_port_in_another_directory_is_refused_with_the_reason() {
    let (dir, other) = (Dir::new(), Dir::new());
    let control = dir.path().join("control");
    let path = control.to_str().expect("UTF-8");
    let d = ready(&["--control", path]);
    let add = |name: &str, at: &Path| {
        let socket = at.join(name);
        said(&ask(&control, &format!("port add {name} socket={}", socket.display())))
    };
    let answer = add("far", other.path());
    let rule = "is not one that the sandbox had at the start: choose one of ";
    assert!(
        answer.contains(rule) && answer.contains(&dir.path().display().to_string()),
        "{answer}"
    );
    assert!(!other.path().join("far").exists());
    add("near", dir.path());
    assert!(dir.path().join("near").exists());
    // Below one that it had.
    fs::create_dir(dir.path().join("below")).expect("create");
    add("deep", &dir.path().join("below"));
    assert!(dir.path().join("below/deep").exists());
    assert!(!d.log().contains("was refused"), "{}", d.log());
    drop(d);
    let _d = ready(&["--control", path, "--sandbox=off"]);
    add("far", other.path());
    assert!(other.path().join("far").exists());
}

/// By the start: what may come later decides. Only root has any to drop.
#[test]
fn capabilities_go_with_what_may_come_later() {
    in_namespace(|| {
        let dir = Dir::new();
        let control = dir.path().join("control");
        let path = control.to_str().expect("UTF-8");
        // bpf, ipc_lock, net_raw, net_admin; fowner, dac_override, chown.
        let (uplinks, sockets) = (0x80_0000_7000_u64, 0xb_u64);
        let cases: [(&[&str], u64); 4] = [
            (&[], 0),
            (&["--tap", "up,ifname=sandbox0"], 0x5000),
            (&["--stream", "net,socket=/nonexistent/s,mode=client"], 0x2),
            (&["--control", path], uplinks | sockets),
        ];
        for (args, kept) in cases {
            let d = ready(args);
            let kept = BTreeSet::from([format!("{kept:016x}")]);
            assert_eq!(of_threads(&d, "CapPrm:"), kept, "{args:?}");
            assert_eq!(of_threads(&d, "CapEff:"), kept, "{args:?}");
        }
    });
}

/// The database of groups is read by code of others (NSS).
#[test]
fn a_group_is_found_and_the_log_is_quiet() {
    let dir = Dir::new();
    let control = dir.path().join("control");
    let path = control.to_str().expect("UTF-8");
    let d = ready(&["--control", path]);
    let socket = dir.path().join("g");
    let words = format!("port add g socket={} socket-group=daemon", socket.display());
    let answer = ask(&control, &words);
    assert!(answer.status.success(), "{}", said(&answer));
    d.signal(libc::SIGUSR1);
    assert!(wait_for(SOON, || d.log().contains("] addresses ")));
    assert!(!d.log().contains("was refused"), "{}", d.log());
}
