//! The wall clock jumps by a day: ten times, either way; what ages does so by the time that passed.
//!
//! The machine's clock is not the test's to set, and a time namespace shifts the other clocks. So
//! the daemon runs with a library before the others that adds to CLOCK_REALTIME what a shared file
//! says. The log's time stamps prove that it is in effect. What goes past the C library, the
//! kernel's own waits, is held by a look at the source: nothing there asks for a wall clock.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::lab::{SOON, plain};
use crate::process::Process;
use testkit::proc::{Dir, wait_for};
use testkit::skip;
use testkit::vm::Vm;

const SHIM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static volatile long *offset;
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void start(void) {
    real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int fd = open(getenv("TEST_CLOCK"), O_RDONLY | O_CLOEXEC);
    offset = mmap(0, 8, PROT_READ, MAP_SHARED, fd, 0);
}
int clock_gettime(clockid_t id, struct timespec *at) {
    if (!real) start();
    int done = real(id, at);
    if (done == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += *offset;
    return done;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"#;

/// Seconds in which an address is forgotten: the daemon's sweeps are half a second apart then.
const AGE: u64 = 4;
const DAY: i64 = 86_400;

/// Builds the library; none if there is no compiler, which building this crate takes as well.
fn shim(dir: &Path) -> Option<PathBuf> {
    let (source, library) = (dir.join("clock.c"), dir.join("clock.so"));
    std::fs::write(&source, SHIM).expect("source");
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).arg("-ldl");
    let built = command.status().ok()?.success();
    assert!(built, "cc fails");
    Some(library)
}

/// Known addresses, and the day in the time stamp of the line that says so.
fn addresses(d: &Process) -> (u64, String) {
    let counters = d.log().len();
    d.counters();
    let log = d.log();
    let line = log[counters..].lines().find(|line| line.contains("] addresses ")).expect("line");
    let count = line.rsplit(' ').next().and_then(|n| n.parse().ok()).expect("number");
    (count, line[1..11].to_owned())
}

#[test]
#[ignore = "full"]
fn the_wall_clock_jumps() {
    let files = Dir::new();
    let Some(library) = shim(files.path()) else {
        return skip("needs a C compiler (cc)");
    };
    let clock = files.path().join("offset");
    std::fs::write(&clock, 0i64.to_ne_bytes()).expect("clock");
    let clock = std::fs::File::options().write(true).open(&clock).expect("clock");
    let age = AGE.to_string();
    let mut d = Process::start(2, &["--age", &age], |command| {
        command.env("LD_PRELOAD", &library).env("TEST_CLOCK", files.path().join("offset"));
    });
    d.ready();
    let mut vm: Vm = d.connect(0);
    let other = d.connect(1);
    let rounds = if testkit::long() { 10 } else { 2 };
    let mut days = Vec::new();
    for round in 0..rounds {
        let source = [2, 0, 0, 0, 1, round];
        vm.tx[0].send_waiting(&plain([0xff; 6], source, 0, 60), SOON);
        vm.tx[0].drain(SOON);
        let learned = Instant::now();
        let (count, day) = addresses(&d);
        assert_eq!(count, 1);
        days.push(day);
        // A jump at once, and back in the middle of its time.
        let jump = if round % 2 == 0 { DAY } else { -DAY };
        clock.write_all_at(&jump.to_ne_bytes(), 0).expect("jump");
        while learned.elapsed() < Duration::from_secs(AGE - 1) {
            let (count, day) = addresses(&d);
            let early = learned.elapsed();
            assert!(count == 1 || early >= Duration::from_secs(AGE - 1), "gone after {early:?}");
            days.push(day);
            std::thread::sleep(Duration::from_millis(200));
        }
        // Seconds are counted whole, sweeps are half a second apart, and machines are busy.
        let gone = wait_for(Duration::from_secs(AGE), || addresses(&d).0 == 0);
        assert!(gone, "still known after {:?}", learned.elapsed());
        clock.write_all_at(&0i64.to_ne_bytes(), 0).expect("jump back");
    }
    days.sort();
    days.dedup();
    assert!(days.len() >= 3, "the shifted clock was not seen: {days:?}");
    drop((vm, other));
    d.stop();
}

/// What no library can shift: waits in the kernel and clocks read without libc. No source file
/// names a wall clock but to say when something happened, so there is none to ask; the log's own is
/// env_logger's.
#[test]
fn no_wall_clock_decides() {
    const TOLD: [&str; 9] = [
        "sys/clock.rs: ClockId::Realtime",
        "sys/clock.rs: wall_nanos",
        "datapath/events.rs: wall_nanos",
        "daemon/lib.rs: wall_nanos",
        "daemon/degraded.rs: wall_nanos",
        "daemon/removal.rs: wall_nanos",
        "ctl/doctor/watch.rs: SystemTime",
        "ctl/doctor/watch.rs: UNIX_EPOCH",
        "datapath/pipeline/burst/observe.rs: wall_nanos",
    ];
    const WALL: [&str; 11] = [
        "wall_nanos",
        "SystemTime",
        "UNIX_EPOCH",
        "CLOCK_REALTIME",
        "CLOCK_TAI",
        "ClockId::Realtime",
        "ClockId::Tai",
        "gettimeofday",
        "libc::time(",
        "TFD_TIMER",
        "FUTEX_CLOCK_REALTIME",
    ];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut directories = vec![root.clone()];
    let (mut files, mut found) = (0, Vec::new());
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).expect("source").flatten() {
            let path = entry.path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                files += 1;
                let text = std::fs::read_to_string(&path).expect("source");
                let named = WALL.iter().filter(|word| text.contains(**word));
                let path = path.strip_prefix(&root).expect("below src");
                found.extend(named.map(|word| format!("{}: {word}", path.display())));
            }
        }
    }
    assert!(files > 50, "{files} source files");
    found.retain(|found| !TOLD.contains(&found.as_str()));
    assert!(found.is_empty(), "{found:#?}");
}
