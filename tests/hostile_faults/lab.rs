//! The switch in this process, on ports whose TAP is a test's own device, and a logger that panics
//! on a chosen line: ways into a worker's burst and into a session that need no door in the
//! product.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use base::frame::Offloads;
use base::stats::{DropReason, QueueStats};
use datapath::guard::BlockedWriterWatch;
use datapath::port::{DevicePort, Endpoint, Port, PortTable, Ports};
use datapath::vhost_user::codec::Connection;
use datapath::vhost_user::session::{Account, Context, Ledger, Session};
use datapath::worker::{Shared, Token, Workers};
use switch::{Fdb, FdbConfig, Rules};
use sys::frame_io::{FrameBatch, FrameIo, Transfer};
use vmm_sys_util::eventfd::EventFd;

use testkit::frontend::Frontend;
use testkit::net::{Job, Net, Sizes};
use testkit::proc::wait_for;
use testkit::traffic::To;
use testkit::vm::{Vm, VmConfig};

pub use testkit::SOON;

/// The guest that is in trouble; 0 and 1 talk to each other.
pub const EVIL: usize = 2;
/// The TAP's port.
pub const TAP: usize = 3;
/// The station behind the TAP.
pub const HOST: u8 = 9;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a call on the device comes to.
#[derive(Clone, Debug)]
pub enum Answer {
    /// A frame to read, or the one written is taken.
    Frame(Vec<u8>),
    /// The kernel says this.
    Io(Transfer),
    /// So many bytes fewer than were written.
    Short(usize),
    /// A bug of ours.
    Panic,
}

pub const TAKE: Answer = Answer::Frame(Vec::new());

/// A TAP queue whose kernel is this test.
pub struct Fake {
    event: EventFd,
    reads: Mutex<VecDeque<Answer>>,
    idle: Mutex<Answer>,
    write: Mutex<Answer>,
    /// The frames taken, their 12-byte headers before them.
    pub taken: Mutex<Vec<Vec<u8>>>,
    pub read_calls: AtomicU64,
    pub write_calls: AtomicU64,
}

impl Fake {
    fn new() -> Arc<Fake> {
        Arc::new(Fake {
            event: EventFd::new(libc::EFD_NONBLOCK).expect("eventfd"),
            reads: Mutex::default(),
            idle: Mutex::new(Answer::Io(Transfer::WouldBlock)),
            write: Mutex::new(TAKE),
            taken: Mutex::default(),
            read_calls: AtomicU64::new(0),
            write_calls: AtomicU64::new(0),
        })
    }

    /// What reads find, in order.
    pub fn queue(&self, answers: impl IntoIterator<Item = Answer>) {
        lock(&self.reads).extend(answers);
    }

    /// True if all of them were found.
    pub fn is_read(&self) -> bool {
        lock(&self.reads).is_empty()
    }

    /// The event by which a kernel tells of something to read.
    pub fn tell(&self) {
        self.event.write(1).expect("event");
    }

    /// What a read comes to when nothing is queued.
    pub fn idle(&self, answer: Answer) {
        *lock(&self.idle) = answer;
    }

    pub fn on_write(&self, answer: Answer) {
        *lock(&self.write) = answer;
    }

    pub fn left(&self) -> usize {
        lock(&self.reads).len()
    }

    pub fn frames(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut lock(&self.taken))
    }
}

impl AsRawFd for Fake {
    fn as_raw_fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }
}

impl Fake {
    fn write(&self, bytes: &[u8]) -> Transfer {
        self.write_calls.fetch_add(1, Ordering::Relaxed);
        let answer = lock(&self.write).clone();
        match answer {
            Answer::Frame(_) => {
                lock(&self.taken).push(bytes.to_vec());
                Transfer::Done(bytes.len())
            }
            Answer::Io(io) => io,
            Answer::Short(by) => Transfer::Done(bytes.len().saturating_sub(by)),
            Answer::Panic => panic!("injected: write"),
        }
    }
}

impl FrameIo for Fake {
    fn flush(&self, batch: &mut FrameBatch) {
        batch.write_each(|frame| self.write(frame));
    }

    fn read(&self, buffer: &mut [u8]) -> Transfer {
        self.read_calls.fetch_add(1, Ordering::Relaxed);
        let next = lock(&self.reads).pop_front();
        match next.unwrap_or_else(|| lock(&self.idle).clone()) {
            Answer::Frame(frame) => {
                buffer[..frame.len()].copy_from_slice(&frame);
                Transfer::Done(frame.len())
            }
            Answer::Io(io) => io,
            Answer::Short(len) => Transfer::Done(len),
            Answer::Panic => panic!("injected: read"),
        }
    }
}

/// A frame as a TAP gives it: a header that asks for nothing before it.
pub fn from_tap(frame: &[u8]) -> Answer {
    Answer::Frame([&[0; 12][..], frame].concat())
}

/// A frame of `len` bytes that no checker looks at.
pub fn plain(dst: [u8; 6], src: [u8; 6], mark: u8, len: usize) -> Vec<u8> {
    let mut frame = [&dst[..], &src, &[0x88, 0xb6]].concat();
    frame.resize(len, mark);
    frame
}

/// Three guests' ports and a TAP's, and the threads that serve them.
pub struct Lab {
    pub context: Context,
    pub ports: Arc<PortTable>,
    /// One of each guest's port.
    accounts: Vec<Arc<Account>>,
    pub fake: Arc<Fake>,
    stop: Arc<EventFd>,
    sessions: Vec<JoinHandle<()>>,
}

impl Lab {
    pub fn new(name: &str, workers: usize) -> Lab {
        let guest = |id: u16| Port::guest(id, &format!("{name}{id}"), 2);
        let tap = Port::device(TAP as u16, &format!("{name}-up"), DevicePort::tap("none", 1));
        let ports = (0..TAP as u16).map(guest).chain([tap]).map(Arc::new);
        let ports = Arc::new(Ports::new(ports.collect()));
        let fdb = Fdb::new(FdbConfig {
            max_entries: 1024,
            max_per_port: 256,
            reserved_per_port: 16,
            max_per_segment: u32::MAX,
            reserved_per_segment: 0,
            age_seconds: 300,
            damping: true,
            ports: TAP + 1,
            key: [1, 2],
        });
        let (fdb, watch) = (Arc::new(fdb), Arc::new(BlockedWriterWatch::start().expect("watch")));
        let shared = Shared {
            ports: Arc::clone(&ports),
            fdb: Arc::clone(&fdb),
            rules: Rules { uplink_to_uplink: false },
            poll: false,
            watch: Arc::clone(&watch),
        };
        let workers = Arc::new(Workers::start(workers, &[], &shared).expect("workers"));
        let stop = Arc::new(EventFd::new(libc::EFD_NONBLOCK).expect("eventfd"));
        let ledger = Arc::new(Ledger::default());
        let accounts = (0..TAP).map(|_| ledger.open().expect("a port's part")).collect();
        let (context, ports) = (Context { fdb, workers, watch }, ports.present());
        let (fake, sessions) = (Fake::new(), Vec::new());
        let mut lab = Lab { context, ports, accounts, fake, stop, sessions };
        lab.attach();
        lab
    }

    /// A fresh device, as the uplink's keeper would attach it; the switch knows a station there.
    pub fn attach(&mut self) {
        self.fake = Fake::new();
        let worker = self.context.workers.for_device(self.port(TAP), 0);
        worker.watch(self.fake.as_raw_fd(), Token::Device(TAP as u16, 0)).expect("watch");
        self.tap().attach(vec![Arc::clone(&self.fake) as _], Offloads::ALL);
        let host = testkit::vm::mac_of(HOST);
        self.fake.queue([from_tap(&plain([1, 0, 0x5e, 1, 1, 1], host, 0, 60))]);
        self.fake.tell();
        let learned = || {
            let mac = base::frame::MacAddr(host);
            self.context.fdb.lookup(mac) == Some(TAP as u16)
        };
        assert!(testkit::proc::wait_for(SOON, learned), "the station is not learned");
    }

    pub fn port(&self, id: usize) -> &Port {
        &self.ports[id as u16]
    }

    pub fn tap(&self) -> &DevicePort {
        match &self.port(TAP).endpoint {
            Endpoint::Device(tap) => tap,
            Endpoint::Guest(_) => unreachable!("port {TAP} is the TAP's"),
        }
    }

    /// A guest at a port, as the daemon has it: after the one before has left.
    pub fn connect(&mut self, id: usize, cfg: VmConfig) -> Vm {
        let free = || self.port(id).as_guest().is_some_and(|guest| !guest.is_attached());
        assert!(wait_for(SOON, free), "port {id} is not left");
        let (near, far) = UnixStream::pair().expect("socket pair");
        let (context, stop) = (self.context.clone(), Arc::clone(&self.stop));
        let (ports, account) = (Arc::clone(&self.ports), Arc::clone(&self.accounts[id]));
        self.sessions.push(std::thread::spawn(move || {
            let connection = Connection::new(near, stop).expect("eventfd");
            let session = Session::new(&context, &ports[id as u16], &account, connection);
            let _ = session.expect("a guest's port").serve();
        }));
        Vm::attach(Frontend::from_stream(far), cfg)
    }

    /// The two honest guests, known to the switch, and the third.
    pub fn guests(&mut self, evil: VmConfig) -> (Net, Vm) {
        let vms = (0..2).map(|id| self.connect(id, VmConfig::new(id as u8))).collect();
        let mut net = Net::new(vms);
        net.announce();
        (net, self.connect(EVIL, evil))
    }

    /// Sum of one counter of all worker threads.
    pub fn turns(&self) -> u64 {
        self.context.workers.handles().iter().map(|handle| handle.stats.turns.get()).sum()
    }

    pub fn panics(&self) -> u64 {
        self.ports.iter().map(|port| port.stats.panics.get()).sum()
    }

    /// All drops of the TAP on the way out, by name.
    pub fn tap_drops(&self, reason: DropReason) -> u64 {
        self.tap().queues()[0].output.drops.get(reason) + self.port(TAP).stats.drops.get(reason)
    }

    /// I1 over the whole switch: every copy asked for is delivered or dropped by name.
    pub fn balance(&self) {
        // A burst is counted after it was delivered.
        wait_for(SOON, || self.sides().0 == self.sides().1);
        let (copies, settled) = self.sides();
        assert_eq!(copies, settled, "copies, frames out and drops (I1)");
    }

    fn sides(&self) -> (u64, u64) {
        let (mut copies, mut settled) = (0, 0);
        let mut outward = |stats: &QueueStats| settled += stats.frames.get() + stats.drops.total();
        for port in self.ports.iter() {
            copies += port.stats.announced.copies.get();
            match &port.endpoint {
                Endpoint::Guest(guest) => {
                    copies += guest.tx.iter().map(|queue| queue.stats.copies.get()).sum::<u64>();
                    guest.rx.iter().for_each(|queue| outward(&queue.stats));
                }
                Endpoint::Device(tap) => {
                    copies +=
                        tap.queues().iter().map(|queue| queue.input.copies.get()).sum::<u64>();
                    tap.queues().iter().for_each(|queue| outward(&queue.output));
                }
            }
        }
        settled += self.ports.iter().map(|port| port.stats.drops.total()).sum::<u64>();
        (copies, settled)
    }

    /// Ends everything; whatever thread died would hang here or before.
    pub fn finish(mut self) {
        self.stop.write(1).expect("stop");
        let end = Instant::now() + SOON;
        sys::threads::join_until(&mut self.sessions, end);
        assert!(self.sessions.is_empty(), "a session does not end");
        self.context.workers.stop(end);
    }
}

/// Honest traffic goes on as if nothing were.
pub fn chat(net: &mut Net, frames: u32) {
    net.run(&[
        Job::new(0, To::Vm(1), frames, Sizes::Range(60, 1514)),
        Job::new(1, To::Vm(0), frames, Sizes::Range(60, 1514)),
    ]);
}

/// Texts that the next log line to hold one panics on, once.
static TRAPS: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Trap;

impl log::Log for Trap {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let text = record.args().to_string();
        let mut traps = lock(&TRAPS);
        let sprung = traps.iter().position(|trap| text.contains(trap));
        if let Some(at) = sprung {
            traps.remove(at);
            drop(traps);
            panic!("injected: {text}");
        }
    }

    fn flush(&self) {}
}

/// The next log line with this text in it panics, in whatever thread writes it.
pub fn trap(text: &str) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::set_logger(&Trap).expect("the only logger");
        log::set_max_level(log::LevelFilter::Trace);
    });
    lock(&TRAPS).push(text.to_owned());
}

/// True if the line came.
pub fn sprung(text: &str) -> bool {
    !lock(&TRAPS).iter().any(|trap| trap == text)
}
