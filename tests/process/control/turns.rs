//! Clients that ask without a pause and read every answer: they take turns, and root and
//! administrators wait for none of them.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use testkit::skip;

use super::*;

const PORTS: usize = 300;
/// As many of them as there are places for.
const VIEWERS: usize = 24;
/// What one of them waits for, at most, beside what a busy machine adds.
const LONGEST: Duration = Duration::from_millis(200);
/// Calls that each client has under way.
const PIPELINED: usize = 100;

/// Clients that may look, each with a hundred calls under way.
struct Crowd {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<u64>>,
}

impl Crowd {
    fn begin(lab: &Lab) -> Crowd {
        let over = Arc::new(AtomicBool::new(false));
        let clients = lab.clients_of(VIEWERS, VIEWER, &[]);
        let threads = clients.into_iter().map(|client| {
            let over = Arc::clone(&over);
            thread::spawn(move || ask_until(&over, client))
        });
        Crowd { threads: threads.collect(), over }
    }

    /// How many parts of answers each had.
    fn end(self) -> Vec<u64> {
        self.over.store(true, Ordering::Release);
        self.threads.into_iter().map(|thread| thread.join().expect("a viewer")).collect()
    }
}

/// Asks for what is long, and for the next when an answer is over; how many parts came.
fn ask_until(over: &AtomicBool, Client(mut socket): Client) -> u64 {
    let call = |n: usize| {
        let method = ["ListPorts", "GetConfig", "GetMetrics"][n % 3];
        format!("{{\"method\":\"{INTERFACE}.{method}\",\"more\":true}}\0")
    };
    let first: String = (0..PIPELINED).map(call).collect();
    socket.get_mut().write_all(first.as_bytes()).expect("send");
    let (mut answers, mut parts, mut message) = (0, 0, Vec::new());
    while !over.load(Ordering::Acquire) {
        message.clear();
        socket.read_until(0, &mut message).expect("a part");
        assert!(!message.is_empty(), "it is closed");
        parts += 1;
        if !message.starts_with(b"{\"continues\":true") {
            socket.get_mut().write_all(call(answers).as_bytes()).expect("send");
            answers += 1;
        }
    }
    parts
}

/// The longest wait of a client whose calls come every few milliseconds: time in which neither it
/// nor the thread that answers stood ready without a CPU.
fn waits(lab: &Lab, mut connect: impl FnMut() -> Client) -> Duration {
    let ready = |thread: &Path| {
        let stat = fs::read_to_string(thread.join("schedstat")).expect("schedstat");
        let nanos = stat.split(' ').nth(1).and_then(|nanos| nanos.parse().ok());
        Duration::from_nanos(nanos.expect("nanoseconds"))
    };
    let (own, control) = (Path::new("/proc/thread-self"), lab.d.thread("control"));
    let without_cpu = || ready(own) + ready(&control);
    let mut longest = Duration::ZERO;
    let mut client = connect();
    for round in 0..30 {
        if round % 2 == 0 {
            // It is let in while it asks.
            client = connect();
        }
        let (began, before) = (Instant::now(), without_cpu());
        let status = client.call("GetStatus", json!({}));
        let waited = began.elapsed().saturating_sub(without_cpu() - before);
        assert_eq!(status["parameters"]["ports"], PORTS, "{status}");
        longest = longest.max(waited);
        thread::sleep(Duration::from_millis(3));
    }
    longest
}

/// 24 clients ask for long answers of 300 ports without a pause. A client of root's or an
/// administrator's waits for less than 0.2 s (20 s and more before clients took turns), beside the
/// time in which it or the thread has no CPU.
#[test]
fn nobody_who_runs_the_host_waits_for_those_who_look() {
    if !is_root() {
        return skip("needs root to be several users");
    }
    let lab = Lab::new(PORTS, &["--control-group=65534", "--control-admin-group=65533"]);
    let alone = waits(&lab, || lab.client());
    let crowd = Crowd::begin(&lab);
    let root = waits(&lab, || lab.client());
    let admin = waits(&lab, || lab.clients_of(1, ADMIN, &[65533]).remove(0));
    let answers = crowd.end();
    println!("alone {alone:?}, root {root:?}, an administrator {admin:?}; answers {answers:?}");
    assert!(root < LONGEST && admin < LONGEST, "root {root:?}, an administrator {admin:?}");
    // All have turns.
    assert!(answers.iter().all(|count| *count > 0), "{answers:?}");
    lab.d.stop();
}

/// A client of root that asks without a pause leaves others a part of the time.
#[test]
fn those_who_look_are_served_beside_root() {
    if !is_root() {
        return skip("needs root to be several users");
    }
    let lab = Lab::new(PORTS, &["--control-group=65534"]);
    let over = Arc::new(AtomicBool::new(false));
    let busy: Vec<_> = (0..4)
        .map(|_| {
            let (over, client) = (Arc::clone(&over), lab.client());
            thread::spawn(move || ask_until(&over, client))
        })
        .collect();
    let waited = waits(&lab, || lab.clients_of(1, VIEWER, &[]).remove(0));
    over.store(true, Ordering::Release);
    busy.into_iter().for_each(|thread| assert!(thread.join().expect("root") > 0));
    println!("one who may look: {waited:?}");
    assert!(waited < LONGEST, "{waited:?}");
    lab.d.stop();
}
