//! Sessions with a test in the kernel's place, whose driver has its rings and its bounce area in
//! one file.

use super::*;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;

use crate::guard::BlockedWriterWatch;
use crate::memory::Ledger;
use crate::port::{PortConfig, Ports};
use crate::worker::{Shared, Workers};
use switch::{Fdb, FdbConfig, Rules};
use sys::fs::memfd;
use sys::threads::lock;
use sys::vduse::Memory;

/// First address behind the bounce area: that of the first ring.
const RINGS_AT: u64 = 0x1_0000;
/// Bytes of a ring's three parts.
const RING_BYTES: u64 = 0x4000;
/// Address behind the rings.
const END: u64 = RINGS_AT + RINGS as u64 * RING_BYTES;
/// Address of a frame with its header in the bounce area.
const FRAME: u64 = 0x1000;
const FRAME_LEN: u32 = 72;
const TRANSMIT: u32 = 1;
const RING_SIZE: u16 = 64;
/// Status of a driver that is ready.
const READY: Request = Request::Status(0xf);
const PATIENCE: Duration = Duration::from_secs(20);

/// The kernel.
#[derive(Debug)]
struct Kernel {
    /// Has a byte for each message.
    near: UnixStream,
    far: UnixStream,
    file: File,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    messages: VecDeque<Message>,
    answers: Vec<(u32, Answer)>,
    /// Number of the last message.
    last: u32,
    /// The bounce area and the rings are taken away.
    is_taken: bool,
    /// The driver has set its rings up.
    is_set_up: bool,
    /// Kick of the transmit ring.
    kick: Option<File>,
    /// The next kick of this ring cannot be set.
    failing: Option<u32>,
    given_up: bool,
    /// The session was told that the device is given up.
    is_told: bool,
}

impl AsFd for Kernel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.near.as_fd()
    }
}

impl Served for Kernel {
    fn receive(&self) -> io::Result<Option<Message>> {
        let mut state = lock(&self.state);
        if state.given_up {
            state.is_told = true;
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let message = state.messages.pop_front();
        if message.is_some() {
            (&self.near).read_exact(&mut [0])?;
        }
        Ok(message)
    }

    fn answer(&self, message: Message, answer: Answer) -> io::Result<()> {
        lock(&self.state).answers.push((message.id, answer));
        Ok(())
    }

    fn features(&self) -> io::Result<u64> {
        Ok(features::of_vduse(Offloads::ALL, Offloads::ALL, true))
    }

    fn ring(&self, index: u32) -> io::Result<Option<RingPlace>> {
        let at = part(index, 0);
        let place = RingPlace {
            size: RING_SIZE.into(),
            descriptors: at,
            available: part(index, 1),
            used: part(index, 2),
        };
        Ok(lock(&self.state).is_set_up.then_some(place))
    }

    /// The rings only, as before the driver has sent a frame.
    fn memory(&self, from: u64) -> io::Result<Option<Memory>> {
        if from >= END || lock(&self.state).is_taken {
            return Ok(None);
        }
        let file = self.file.try_clone()?.into();
        Ok(Some(Memory { start: RINGS_AT, last: END - 1, offset: RINGS_AT, file }))
    }

    fn set_kick(&self, index: u32, kick: BorrowedFd<'_>) -> io::Result<()> {
        let mut state = lock(&self.state);
        if index == TRANSMIT {
            state.kick = Some(kick.try_clone_to_owned()?.into());
        }
        match state.failing.take_if(|failing| *failing == index) {
            Some(_) => Err(io::ErrorKind::OutOfMemory.into()),
            None => Ok(()),
        }
    }

    fn interrupt(&self, _index: u32) -> io::Result<()> {
        Ok(())
    }

    fn set_link(&self, _up: bool) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the address of the descriptors (0), the available (1) or the used part (2) of a ring.
fn part(ring: u32, part: u64) -> u64 {
    RINGS_AT + u64::from(ring) * RING_BYTES + part * 0x1000
}

impl Kernel {
    fn new() -> Arc<Kernel> {
        let (near, far) = UnixStream::pair().unwrap();
        let file = memfd("vduse", END).unwrap().into();
        Arc::new(Kernel { near, far, file, state: Mutex::default() })
    }

    /// Has the driver make the first frame of the transmit ring available.
    fn send_frame(&self) {
        self.send(0);
    }

    /// Has the driver make a frame of the transmit ring available: frame `number` since the start.
    fn send(&self, number: u16) {
        let slot = number % RING_SIZE;
        let descriptor = [&FRAME.to_le_bytes()[..], &FRAME_LEN.to_le_bytes(), &[0; 4]].concat();
        self.file.write_all_at(&descriptor, part(TRANSMIT, 0) + 16 * u64::from(slot)).unwrap();
        let available = part(TRANSMIT, 1);
        self.file.write_all_at(&slot.to_le_bytes(), available + 4 + 2 * u64::from(slot)).unwrap();
        self.file.write_all_at(&(number + 1).to_le_bytes(), available + 2).unwrap();
        self.kick();
    }

    /// Writes the transmit ring's kick, once the session has set it.
    fn kick(&self) {
        if let Some(mut kick) = lock(&self.state).kick.as_ref() {
            kick.write_all(&1u64.to_ne_bytes()).unwrap();
        }
    }

    /// Returns the index of the used part of the transmit ring.
    fn used(&self) -> u16 {
        let mut bytes = [0; 2];
        self.file.read_exact_at(&mut bytes, part(TRANSMIT, 2) + 2).unwrap();
        u16::from_le_bytes(bytes)
    }

    fn set_up(&self) {
        lock(&self.state).is_set_up = true;
    }

    /// Has the driver forget its rings.
    fn clear(&self) {
        lock(&self.state).is_set_up = false;
        self.file.write_all_at(&vec![0; (END - RINGS_AT) as usize], RINGS_AT).unwrap();
    }

    /// Returns the session's answer to a request.
    fn ask(&self, request: Request) -> Answer {
        let mut state = lock(&self.state);
        state.last += 1;
        let id = state.last;
        state.messages.push_back(Message { id, request });
        (&self.far).write_all(b"x").unwrap();
        drop(state);
        let mut answer = None;
        until(|| {
            let state = lock(&self.state);
            answer = state.answers.iter().find(|(of, _)| *of == id).map(|(_, answer)| *answer);
            answer.is_some()
        });
        answer.unwrap()
    }
}

fn until(mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "too late");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs `test` beside a session; returns the end of the session.
fn beside_a_session(kernel: &Arc<Kernel>, test: impl FnOnce()) -> Result<End, SessionError> {
    let config =
        PortConfig { send: Offloads::ALL, offload: Offloads::ALL, ..PortConfig::default() };
    let port = Arc::new(Port::vduse(0, "web", "eth0").with(config));
    let fdb = Arc::new(Fdb::new(FdbConfig::limited(1, 300, [1, 2])));
    let watch = Arc::new(BlockedWriterWatch::start().unwrap());
    let shared = Shared {
        ports: Arc::new(Ports::new([Arc::clone(&port)].into_iter().collect())),
        fdb: Arc::clone(&fdb),
        rules: Rules { uplink_to_uplink: false },
        poll: false,
        watch: Arc::clone(&watch),
    };
    let workers = Arc::new(Workers::start(1, &[], &shared).unwrap());
    let context = Context { fdb, workers, watch };
    let account = Arc::new(Ledger::default()).open().unwrap();
    let stop = EventFd::new(libc::EFD_NONBLOCK).unwrap();
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let served: Arc<dyn Served> = Arc::clone(kernel) as _;
            Session::new(&context, &port, &account, served, &stop)?.serve()
        });
        // The session has to end also if the test fails.
        let tested = catch_unwind(AssertUnwindSafe(test));
        stop.write(1).unwrap();
        let ended = serving.join().unwrap();
        tested.unwrap_or_else(|panic| resume_unwind(panic));
        ended
    })
}

#[test]
fn a_driver_that_starts_is_served_before_the_kernel_tells_the_bounce_area() {
    let kernel = Kernel::new();
    let ended = beside_a_session(&kernel, || {
        assert_eq!(kernel.ask(Request::Status(0)), Answer::Done);
        kernel.set_up();
        kernel.send_frame();
        assert_eq!(kernel.ask(READY), Answer::Done);
        until(|| kernel.used() == 1);
        assert_eq!(kernel.ask(Request::RingState(TRANSMIT)), Answer::RingState(TRANSMIT, 1));
        assert_eq!(kernel.ask(Request::Unknown(7)), Answer::Failed);
    });
    assert!(matches!(ended, Ok(End::Stopped)), "{ended:?}");
}

#[test]
fn a_running_driver_is_taken_over() {
    let kernel = Kernel::new();
    kernel.set_up();
    kernel.send_frame();
    let ended = beside_a_session(&kernel, || until(|| kernel.used() == 1));
    assert!(matches!(ended, Ok(End::Stopped)), "{ended:?}");
}

#[test]
fn a_start_that_fails_is_tried_again_and_messages_are_answered_meanwhile() {
    for taken_over in [false, true] {
        let kernel = Kernel::new();
        lock(&kernel.state).failing = Some(TRANSMIT);
        kernel.send_frame();
        if taken_over {
            kernel.set_up();
        }
        let ended = beside_a_session(&kernel, || {
            if !taken_over {
                kernel.set_up();
                assert_eq!(kernel.ask(READY), Answer::Done);
            }
            assert_eq!(kernel.ask(Request::RingState(0)), Answer::RingState(0, 0));
            until(|| kernel.used() == 1);
        });
        assert!(matches!(ended, Ok(End::Stopped)), "{ended:?}");
    }
}

#[test]
fn a_driver_that_was_reset_starts_again() {
    let kernel = Kernel::new();
    let ended = beside_a_session(&kernel, || {
        for _ in 0..2 {
            kernel.set_up();
            kernel.send_frame();
            assert_eq!(kernel.ask(READY), Answer::Done);
            until(|| kernel.used() == 1);
            assert_eq!(kernel.ask(Request::Memory(0, u64::MAX)), Answer::Done);
            assert_eq!(kernel.ask(Request::Status(0)), Answer::Done);
            kernel.clear();
        }
    });
    assert!(matches!(ended, Ok(End::Stopped)), "{ended:?}");
}

#[test]
fn a_device_that_the_kernel_has_given_up_ends_the_session() {
    let kernel = Kernel::new();
    let ended = beside_a_session(&kernel, || {
        lock(&kernel.state).given_up = true;
        (&kernel.far).write_all(b"x").unwrap();
        until(|| lock(&kernel.state).is_told);
    });
    assert!(matches!(ended, Err(SessionError::Device(_))), "{ended:?}");
}

#[test]
fn no_frame_is_lost_while_the_kernel_changes_the_memory() {
    const FRAMES: u16 = 1000;
    let kernel = Kernel::new();
    let ended = beside_a_session(&kernel, || {
        kernel.set_up();
        assert_eq!(kernel.ask(READY), Answer::Done);
        for number in 0..FRAMES {
            kernel.send(number);
            if number % 4 == 0 {
                assert_eq!(kernel.ask(Request::Memory(0, u64::MAX)), Answer::Done);
            }
            until(|| number - kernel.used().min(number) < RING_SIZE - 1);
        }
        until(|| kernel.used() == FRAMES);
    });
    assert!(matches!(ended, Ok(End::Stopped)), "{ended:?}");
}

#[test]
fn rings_whose_memory_was_taken_go_on_with_other_memory() {
    let kernel = Kernel::new();
    let ended = beside_a_session(&kernel, || {
        kernel.set_up();
        kernel.send(0);
        assert_eq!(kernel.ask(READY), Answer::Done);
        until(|| kernel.used() == 1);
        for number in 1..20 {
            lock(&kernel.state).is_taken = true;
            kernel.ask(Request::Memory(0, u64::MAX));
            kernel.send(number);
            // Answers come in time, whatever the rings wait for.
            assert_eq!(kernel.ask(Request::Unknown(7)), Answer::Failed);
            assert_eq!(kernel.used(), number);
            lock(&kernel.state).is_taken = false;
            assert_eq!(kernel.ask(Request::Memory(0, u64::MAX)), Answer::Done);
            until(|| kernel.used() == number + 1);
        }
    });
    assert!(matches!(ended, Ok(End::Stopped)), "{ended:?}");
}

/// A driver's index that no driver writes costs the driver its network, and nobody else: messages
/// are answered, and a reset heals the rings.
#[test]
fn an_index_that_is_none_breaks_the_ring_until_a_reset() {
    let kernel = Kernel::new();
    let ended = beside_a_session(&kernel, || {
        kernel.set_up();
        kernel.send(RING_SIZE * 2);
        assert_eq!(kernel.ask(READY), Answer::Done);
        assert_eq!(kernel.ask(Request::Memory(0, u64::MAX)), Answer::Done);
        assert_eq!(kernel.ask(Request::Status(0)), Answer::Done);
        assert_eq!(kernel.used(), 0);
        kernel.clear();
        kernel.set_up();
        kernel.send(0);
        assert_eq!(kernel.ask(READY), Answer::Done);
        until(|| kernel.used() == 1);
    });
    assert!(matches!(ended, Ok(End::Stopped)), "{ended:?}");
}
