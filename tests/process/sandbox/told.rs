//! The switch tells what its sandbox refused and lacks, and no thread goes on outside of it: by a
//! library that is loaded into a real daemon, whose thread makes calls, cannot be confined, or is
//! held up; or which answers as another kernel does.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::time::Instant;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter};

use super::*;
use crate::lab::plain;

/// Starts a thread that waits as `TEST_HOLD` says, makes the system call of the file `TEST_GO`
/// three times, and writes to `TEST_OUT` whether a file outside can be opened. While `TEST_FAIL`
/// exists, no thread but the first one gets into a Landlock domain. `TEST_LANDLOCK` is the version
/// of Landlock that the kernel seems to have.
const LIBRARY: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static long (*real)(long, ...);

static int is_there(const char *name) {
    const char *path = getenv(name);
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0) close(fd);
    return fd >= 0;
}

long syscall(long number, ...) {
    long a[6];
    __builtin_va_list list;
    __builtin_va_start(list, number);
    for (int i = 0; i < 6; i++) a[i] = __builtin_va_arg(list, long);
    __builtin_va_end(list);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "syscall");
    const char *version = getenv("TEST_LANDLOCK");
    if (number == SYS_landlock_create_ruleset && version && a[2] == 1) return atoi(version);
    if (number == SYS_landlock_restrict_self && gettid() != getpid() && is_there("TEST_FAIL")) {
        errno = ENOMEM;
        return -1;
    }
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

static void wait_for_go(void) {
    for (int i = 0; i < 60000 && !is_there("TEST_GO"); i++) usleep(1000);
}

static void *thread(void *unused) {
    if (getenv("TEST_HOLD")) {
        /* Until the child has ended the kernel wakes this thread for nothing. */
        if (vfork() == 0) {
            wait_for_go();
            _exit(0);
        }
    } else {
        wait_for_go();
    }
    int is_open = open("/etc/hostname", O_RDONLY | O_CLOEXEC) >= 0;
    FILE *out = fopen(getenv("TEST_OUT"), "we");
    for (int i = 0; i < 3; i++) syscall(SYS_swapon, 0, 0);
    if (out) {
        fprintf(out, is_open ? "open" : "closed");
        fclose(out);
    }
    return unused;
}

__attribute__((constructor)) static void start(void) {
    pthread_t id;
    unsetenv("LD_PRELOAD");
    pthread_create(&id, 0, thread, 0);
}
"#;

/// A daemon with the library.
struct Stage {
    d: Process,
    control: PathBuf,
}

impl Stage {
    /// Starts it as `prepare` says, in a directory that has the file `fail` if no other thread can
    /// be confined.
    fn new(fails: bool, prepare: impl FnOnce(&mut Command) -> &mut Command) -> Stage {
        let dir = Dir::new();
        let place = |name: &str| dir.path().join(name);
        let (source, library) = (place("library.c"), place("library.so"));
        fs::write(&source, LIBRARY).expect("write");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-pthread", "-o"]).arg(&library).arg(&source);
        assert!(compiler.arg("-ldl").status().expect("cc, as for this crate").success());
        if fails {
            fs::write(place("fail"), "").expect("write");
        }
        let control = place("control");
        let args = [format!("--control={}", control.display()), port(dir.path(), "p0", "")];
        let variables = [("TEST_GO", "go"), ("TEST_OUT", "out"), ("TEST_FAIL", "fail")];
        let variables = variables.map(|(name, file)| (name, place(file)));
        let d = Process::start(dir, &args, |command| {
            prepare(command.envs(variables).env("LD_PRELOAD", library))
        });
        Stage { d, control }
    }

    fn go(&self) {
        fs::write(self.d.path("go"), "").expect("write");
    }

    /// What the library's thread found of a file outside.
    fn found(&self) -> String {
        let read = || fs::read_to_string(self.d.path("out")).unwrap_or_default();
        assert!(wait_for(SOON, || !read().is_empty()), "{}", self.d.log());
        read()
    }

    fn lines(&self, of: &str) -> usize {
        self.d.log().lines().filter(|line| line.contains(of)).count()
    }

    fn status(&self) -> String {
        let status = said(&ask(&self.control, "status"));
        status.lines().find(|line| line.starts_with("sandbox:")).expect("a line").to_owned()
    }
}

/// In the log once, among the metrics, as a finding, in the status.
#[test]
fn a_refused_call_is_told_everywhere() {
    let mut stage = Stage::new(false, plain);
    stage.d.wait_ready();
    let doctor = || said(&ask(&stage.control, "doctor"));
    assert!(!doctor().contains("sandbox-refused"), "{}", doctor());
    stage.go();
    assert_eq!(stage.found(), "closed");
    let metrics = said(&ask(&stage.control, "metrics"));
    for line in [
        "# TYPE vioswitch_sandbox_refused_total counter",
        "vioswitch_sandbox_refused_total{call=\"swapon\"} 3",
        "vioswitch_finding{code=\"sandbox-refused\",port=\"\"} 1",
    ] {
        assert!(metrics.lines().any(|one| one == line), "{line}\n{metrics}");
    }
    let doctor = doctor();
    let finding = "WARN  sandbox-refused  the sandbox refused system calls: swapon (3): ";
    assert!(doctor.contains(finding), "{doctor}");
    assert!(doctor.contains("systemctl restart vioswitchd; and report"), "{doctor}");
    assert!(stage.status().contains("; refused swapon: 3"), "{}", stage.status());
    assert!(wait_for(SOON, || stage.lines("swapon was refused") > 0), "{}", stage.d.log());
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(stage.lines("was refused"), 1, "{}", stage.d.log());
    stage.d.stop(libc::SIGTERM, &["p0"]);
}

#[test]
fn the_switch_is_not_ready_while_a_thread_is_outside() {
    let mut stage = Stage::new(true, plain);
    assert!(wait_for(SOON, || stage.control.exists()), "{}", stage.d.log());
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(stage.lines("ready: "), 0, "{}", stage.d.log());
    fs::remove_file(stage.d.path("fail")).expect("remove");
    stage.d.wait_ready();
    assert!(stage.status().contains(" on: Landlock "), "{}", stage.status());
    stage.go();
    assert_eq!(stage.found(), "closed");
}

#[test]
#[ignore = "full"]
fn a_start_fails_that_leaves_a_thread_outside() {
    let mut stage = Stage::new(true, plain);
    let status = stage.d.ended(2 * SOON);
    let log = stage.d.log();
    assert_eq!((status.code(), stage.lines("ready: ")), (Some(1), 0), "{log}");
    assert!(log.contains("cannot enter the sandbox: thread "), "{log}");
    assert!(log.contains(" is outside: Cannot allocate memory"), "{log}");
}

/// The kernel may never let it go: guests do not wait for it.
#[test]
fn a_thread_that_the_kernel_holds_up_is_confined_before_it_goes_on() {
    let mut stage = Stage::new(false, |command| command.env("TEST_HOLD", "1"));
    let begun = Instant::now();
    stage.d.wait_ready();
    assert!(begun.elapsed() > Duration::from_secs(1), "nothing held it up");
    let waits = "incomplete: 1 threads wait for the kernel to confine them";
    assert_eq!(stage.lines(waits), 1, "{}", stage.d.log());
    assert!(stage.status().contains(" incomplete: Landlock "), "{}", stage.status());
    // It cannot be confined even then.
    fs::write(stage.d.path("fail"), "").expect("write");
    stage.go();
    let waits = "ERROR] sandbox: 1 threads wait to be confined: Cannot allocate memory";
    assert!(wait_for(SOON, || stage.lines(waits) == 1), "{}", stage.d.log());
    assert!(!stage.d.path("out").exists(), "it goes on");
    fs::remove_file(stage.d.path("fail")).expect("remove");
    assert_eq!(stage.found(), "closed");
    assert!(stage.status().contains(" on: Landlock "), "{}", stage.status());
}

/// Older kernels cover less; what has no new sockets is not used at all.
#[test]
fn each_version_of_landlock_is_used_as_far_as_it_goes() {
    let covers = [
        "incomplete: no Landlock",
        "on: Landlock 2 (files, links)",
        "on: Landlock 3 (files, links, truncation)",
        "on: Landlock 4 (files, links, truncation, TCP)",
        "on: Landlock 5 (files, links, truncation, TCP, device ioctls)",
    ];
    // SAFETY: with this flag, for the version, the kernel reads no memory.
    let real = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, 0, 0, 1) };
    for (version, covers) in (1..=real).zip(covers) {
        let version = version.to_string();
        let mut stage = Stage::new(false, |command| command.env("TEST_LANDLOCK", &version));
        stage.d.wait_ready();
        let status = stage.status();
        assert!(status.contains(&format!(" {covers}; ")), "{version}: {status}");
        let is_told = stage.lines("sandbox: incomplete: landlock: version 1 permits no") == 1;
        assert_eq!(is_told, version == "1", "{}", stage.d.log());
        stage.go();
        assert_eq!(stage.found(), if is_told { "open" } else { "closed" });
        assert!(stage.status().contains("; refused swapon: 3"), "{}", stage.status());
        stage.d.stop(libc::SIGTERM, &["p0"]);
    }
}

/// Has a kernel without Landlock answer: built without it (ENOSYS), or started without it.
fn without_landlock(command: &mut Command, errno: libc::c_int) -> &mut Command {
    let calls = [libc::SYS_landlock_create_ruleset, libc::SYS_landlock_restrict_self];
    let rules = calls.map(|call| (call, Vec::new())).into();
    let arch = TargetArch::try_from(std::env::consts::ARCH).expect("an architecture");
    let (allow, refuse) = (SeccompAction::Allow, SeccompAction::Errno(errno as u32));
    let filter = SeccompFilter::new(rules, allow, refuse, arch).expect("a filter");
    let program: BpfProgram = filter.try_into().expect("a program");
    // SAFETY: two system calls, which read the program alone.
    unsafe { command.pre_exec(move || apply_filter(&program).map_err(io::Error::other)) }
}

#[test]
fn without_landlock_the_rest_confines_and_the_lack_is_told() {
    for (errno, why) in
        [(libc::ENOSYS, "Function not implemented"), (libc::EOPNOTSUPP, "Operation not supported")]
    {
        let mut stage = Stage::new(false, |command| without_landlock(command, errno));
        stage.d.wait_ready();
        let status = stage.status();
        assert!(status.contains(" incomplete: no Landlock; "), "{status}");
        assert!(status.contains(&format!("; landlock: {why}")), "{status}");
        let warning = format!("sandbox: incomplete: landlock: {why}");
        assert_eq!(stage.lines(&warning), 1, "{}", stage.d.log());
        // Any directory serves, and the filter stays.
        let other = Dir::new();
        let words = format!("port add far socket={}", other.path().join("far").display());
        assert!(ask(&stage.control, &words).status.success());
        stage.go();
        assert_eq!(stage.found(), "open");
        assert!(stage.status().contains("; refused swapon: 3"), "{}", stage.status());
        stage.d.stop(libc::SIGTERM, &["p0"]);
    }
}
