//! A system call that lasts in one port's session: by a tracer (strace): others do not wait.
//!
//! So does `EPOLL_CTL` while a crowd is woken through the kick descriptor that it is about. That
//! spins in the kernel with interrupts off, so on two processors there is none left to see who else
//! waits; a call that sleeps instead takes nothing from anybody but what is locked meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::injected::{Tracer, missing};
use crate::process::Process;
use testkit::frontend::{Acks, req};
use testkit::proc::Dir;
use testkit::skip;
use testkit::sys::EventFd;

const EVIL: usize = 2;
const OTHER: usize = 3;
const DELAY: Duration = Duration::from_millis(100);
/// Each is one call to end watching the old descriptor, and one for the new one, at least.
const SWAPS: u32 = 6;

/// Kick descriptors that are slow to watch, of a port that replaces them all the time: another
/// port's session answers meanwhile. Only the calls of the former's thread are made slow, so who
/// waits for them waits for what that thread has locked.
#[test]
fn slow_epoll_calls_hold_up_their_own_session() {
    if let Some(reason) = missing() {
        return skip(&reason);
    }
    // One for each swap if they wait, every time; a busy machine adds some now and then.
    let few = |slow: usize| slow < SWAPS as usize / 2;
    assert!((0..3).any(|_| few(slow_answers())), "answers waited for another port's calls");
}

/// How many answers of another session took as long as a slow call.
fn slow_answers() -> usize {
    let dir = Dir::new();
    let mut d = Process::start(4, &["--workers", "2"], |_| {});
    d.ready();
    let (mut evil, mut other) = (d.connect(EVIL), d.connect(OTHER));
    let kicks: Vec<EventFd> = (0..SWAPS).map(|_| EventFd::new()).collect();
    let [thread] = d.threads(&format!("port-{EVIL}"))[..] else { panic!("{}", d.log()) };
    let change = format!("delay_enter={}", DELAY.as_micros());
    let tracer = Tracer::attach(thread, "epoll_ctl", &change, dir.path());
    let over = AtomicBool::new(false);
    let (took, mut answers) = std::thread::scope(|s| {
        let swapper = s.spawn(|| {
            let began = Instant::now();
            evil.fe.acks = Acks::Never;
            for kick in &kicks {
                evil.fe.set_vring_fd(req::SET_VRING_KICK, 1, Some(kick.raw())).expect("kick");
            }
            evil.settle();
            over.store(true, Ordering::Relaxed);
            began.elapsed()
        });
        other.fe.acks = Acks::Always;
        let mut answers = Vec::new();
        while !over.load(Ordering::Relaxed) {
            let began = Instant::now();
            let kick = other.guest.tx[0].ring.kick.raw();
            other.fe.set_vring_enable(1, true).expect("enable");
            answers.push(began.elapsed());
            let began = Instant::now();
            other.fe.set_vring_fd(req::SET_VRING_KICK, 1, Some(kick)).expect("kick");
            answers.push(began.elapsed());
        }
        (swapper.join().expect("swapper"), answers)
    });
    assert!(tracer.detach(), "no call was slow");
    assert!(took >= SWAPS * DELAY, "{SWAPS} swaps in {took:?}");
    answers.sort();
    let slow = answers.iter().filter(|took| **took >= DELAY / 2).count();
    println!(
        "{SWAPS} swaps took {took:.1?}; of {} answers of another session {slow} took {:.0?} and \
         more, the longest {:.1?}",
        answers.len(),
        DELAY / 2,
        answers[answers.len() - 1]
    );
    drop((evil, other));
    d.stop();
    slow
}
