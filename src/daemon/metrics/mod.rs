//! Metrics: counters and states in the format of Prometheus, for the control socket and, on a
//! separate thread, for clients that ask by HTTP.
//!
//! * `text` the families and their series, made in parts;
//! * `http` requests and the head of an answer;
//! * `peer` the peer that asks.
//!
//! Rules: the thread `metrics` serves all scrapers and waits for no scraper. `limits/metrics.rs`
//! bounds the cost of a scraper: connections, a request's bytes and time, the time to read an
//! answer. If all places are taken, the peer with most places gives one up: the place of the
//! connection over which no byte has gone for the longest time. So a scraper that asks and reads is
//! served whatever others do. Every client that can connect sees the metrics.

mod http;
mod peer;
mod text;

use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rustix::net::{SendFlags, SocketFlags, accept_with, send};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

use crate::Daemon;
use api::config::MetricsSocket;
use base::limits::{
    ACCEPT_RETRY_MIN, CONTROL_STOP_TIMEOUT, DEFAULT_SOCKET_MODE, METRICS_ACCEPTS,
    METRICS_CONNECTIONS, METRICS_HEAD_BYTES, METRICS_HEAD_TIMEOUT, METRICS_PART_BYTES,
    METRICS_READ_TIMEOUT,
};
use datapath::guard::client_socket::{ClientSocket, ReadError};
use datapath::guard::disposal;
use datapath::vhost_user::socket::{Access, Listener, SocketError};
use http::ParsedRequest;
use peer::Peer;
use sys::descriptor;
use sys::poll;
use sys::service::Service;
use sys::threads::lock;
use sys::unix_socket;
pub use text::Health;
pub(crate) use text::Scrape;

/// Tokens of the epoll set; scrapers are numbered from `FIRST` on.
const LISTENER: u64 = 0;
const STOP: u64 = 1;
const FIRST: u64 = 2;

/// The reason why metrics cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// The socket's file cannot be made.
    #[error("metrics: {0}")]
    Socket(#[from] SocketError),
    /// The switch cannot listen at the address.
    #[error("metrics: cannot listen at {0}: {1}")]
    Listen(MetricsSocket, io::Error),
    /// The service manager gave no socket for metrics.
    #[error("metrics: the service manager passed no listening socket named 'metrics'")]
    NoneInherited,
    /// A thread or descriptor cannot be had.
    #[error("metrics: {0}")]
    Io(#[from] io::Error),
}

/// The socket that scrapers connect to. Dropping the socket removes a file that this process made.
type Listening = Box<dyn AsFd + Send>;

fn open(socket: &MetricsSocket, inherited: Option<OwnedFd>) -> Result<Listening, MetricsError> {
    match socket {
        MetricsSocket::Unix(path) => {
            let access = Access { mode: DEFAULT_SOCKET_MODE, group: None };
            let listener = Listener::bind(path, access)?;
            // A scraper may send before its connection is accepted.
            unix_socket::refuse_descriptors(listener.as_fd());
            Ok(Box::new(listener))
        }
        MetricsSocket::Ip(address) => {
            let opened = TcpListener::bind(address).and_then(|listener| {
                listener.set_nonblocking(true)?;
                Ok(Box::new(listener) as Listening)
            });
            opened.map_err(|error| MetricsError::Listen(socket.clone(), error))
        }
        MetricsSocket::Inherited => {
            let fd = inherited.ok_or(MetricsError::NoneInherited)?;
            if !unix_socket::listens(fd.as_fd()).unwrap_or(false) {
                return Err(MetricsError::NoneInherited);
            }
            descriptor::set_nonblocking(fd.as_fd())?;
            unix_socket::refuse_descriptors(fd.as_fd());
            Ok(Box::new(fd))
        }
    }
}

fn accept(listener: BorrowedFd<'_>) -> io::Result<ClientSocket> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(ClientSocket::new(accept_with(listener, flags)?))
}

/// Opens the socket and serves scrapers.
pub fn start(socket: &MetricsSocket, daemon: &Arc<Mutex<Daemon>>) -> Result<Service, MetricsError> {
    let inherited = lock(daemon).take_metrics_socket();
    let listener = open(socket, inherited)?;
    let daemon = Arc::clone(daemon);
    let serve = move |stop: &EventFd| Server::new(listener.as_fd(), stop, &daemon)?.run();
    Ok(Service::start("metrics", CONTROL_STOP_TIMEOUT, serve)?)
}

/// A scraper that is connected.
struct Scraper {
    socket: ClientSocket,
    peer: Peer,
    state: State,
    /// The time at which the last byte came from the scraper or went to it.
    moved: Instant,
    /// The time at which the scraper is disconnected.
    end: Instant,
}

enum State {
    /// The scraper asks: the bytes of its request so far.
    Asks(Vec<u8>),
    /// The scraper reads: bytes of its answer, the place of the first unread byte, and the parts
    /// that follow.
    Reads(Vec<u8>, usize, Option<Box<Scrape>>),
}

/// All scrapers.
struct Server<'a> {
    listener: BorrowedFd<'a>,
    stop: &'a EventFd,
    daemon: &'a Mutex<Daemon>,
    epoll: Epoll,
    places: [Option<Scraper>; METRICS_CONNECTIONS],
}

impl<'a> Server<'a> {
    fn new(
        listener: BorrowedFd<'a>,
        stop: &'a EventFd,
        daemon: &'a Mutex<Daemon>,
    ) -> io::Result<Server<'a>> {
        let epoll = Epoll::new()?;
        let watch =
            |fd, data| epoll.ctl(ControlOperation::Add, fd, EpollEvent::new(EventSet::IN, data));
        watch(listener.as_raw_fd(), LISTENER)?;
        watch(stop.as_raw_fd(), STOP)?;
        Ok(Server { listener, stop, daemon, epoll, places: [const { None }; METRICS_CONNECTIONS] })
    }

    fn run(mut self) -> io::Result<()> {
        let mut events = [EpollEvent::default(); FIRST as usize + METRICS_CONNECTIONS];
        loop {
            let count = match self.epoll.wait(self.timeout_millis(), &mut events) {
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => 0,
                Err(error) => return Err(error),
            };
            for event in &events[..count] {
                match event.data() {
                    STOP => return Ok(()),
                    LISTENER => self.accept(),
                    number => self.go_on((number - FIRST) as usize),
                }
            }
            let now = Instant::now();
            for place in 0..self.places.len() {
                if self.places[place].as_ref().is_some_and(|one| one.end <= now) {
                    self.close(place);
                }
            }
        }
    }

    /// Returns the milliseconds until a scraper's time is over; -1 if there is no scraper.
    fn timeout_millis(&self) -> i32 {
        let Some(end) = self.places.iter().flatten().map(|one| one.end).min() else { return -1 };
        let left = end.saturating_duration_since(Instant::now()).as_millis() + 1;
        i32::try_from(left).unwrap_or(i32::MAX)
    }

    fn accept(&mut self) {
        for _ in 0..METRICS_ACCEPTS {
            if disposal::is_held_up() {
                let _ = poll::pause(self.stop, Instant::now() + ACCEPT_RETRY_MIN);
                return;
            }
            match accept(self.listener) {
                Ok(socket) => self.admit(socket),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.raw_os_error() == Some(libc::ECONNABORTED) => {}
                // For want of descriptors or memory, the listener stays readable.
                Err(_) => {
                    let _ = poll::pause(self.stop, Instant::now() + ACCEPT_RETRY_MIN);
                    return;
                }
            }
        }
    }

    /// Gives a scraper a place, if need be the place of another scraper.
    fn admit(&mut self, socket: ClientSocket) {
        let peer = Peer::of(socket.as_fd());
        let free = self.places.iter().position(Option::is_none);
        let Some(place) = free.or_else(|| self.gives_way(peer)) else { return };
        self.close(place);
        let event = EpollEvent::new(EventSet::IN, FIRST + place as u64);
        if self.epoll.ctl(ControlOperation::Add, socket.as_fd().as_raw_fd(), event).is_ok() {
            let (state, moved) = (State::Asks(Vec::new()), Instant::now());
            let end = moved + METRICS_HEAD_TIMEOUT;
            self.places[place] = Some(Scraper { socket, peer, state, moved, end });
        }
    }

    /// Returns the place of the scraper that gives way to one more connection of `comes`.
    fn gives_way(&self, comes: Peer) -> Option<usize> {
        let all = || self.places.iter().flatten();
        let share =
            |peer| all().filter(|one| one.peer == peer).count() + usize::from(peer == comes);
        let most = all().map(|one| share(one.peer)).max()?;
        let those = self.places.iter().enumerate().filter_map(|(place, one)| {
            let one = one.as_ref().filter(|one| share(one.peer) == most)?;
            Some((one.moved, place))
        });
        those.min().map(|(_, place)| place)
    }

    /// Does the work that can be done for a scraper now.
    fn go_on(&mut self, place: usize) {
        if self.listen(place).and_then(|()| self.answer(place)).is_err() {
            self.close(place);
        }
    }

    fn close(&mut self, place: usize) {
        let Some(Scraper { socket, .. }) = self.places[place].take() else { return };
        // While the epoll set has the socket, epoll_wait(2) takes references to it, and the drop of
        // the last reference would run in this thread the work that `disposal` keeps from it.
        let none = EpollEvent::default();
        let _ = self.epoll.ctl(ControlOperation::Delete, socket.as_fd().as_raw_fd(), none);
    }

    /// Reads the bytes of a request that have come, and begins an answer when the request is whole.
    fn listen(&mut self, place: usize) -> io::Result<()> {
        let Some(one) = &mut self.places[place] else { return Ok(()) };
        let State::Asks(head) = &mut one.state else { return Ok(()) };
        if take(&one.socket, head)? {
            one.moved = Instant::now();
        }
        let (out, scrape) = match http::parse(head, head.len() >= METRICS_HEAD_BYTES) {
            ParsedRequest::Unfinished => return Ok(()),
            ParsedRequest::Refused(status, field) => (http::error(status, field), None),
            ParsedRequest::Metrics => {
                let daemon = lock(self.daemon);
                let (view, health) = (daemon.view(), Health::of(&daemon));
                let condition = daemon.condition();
                drop(daemon);
                let findings = view.diagnose(condition);
                (http::head(), Some(Box::new(Scrape::new(&view, &health, &findings))))
            }
        };
        one.state = State::Reads(out, 0, scrape);
        one.end = Instant::now() + METRICS_READ_TIMEOUT;
        let event = EpollEvent::new(EventSet::OUT, FIRST + place as u64);
        self.epoll.ctl(ControlOperation::Modify, one.socket.as_fd().as_raw_fd(), event)
    }

    /// Writes as many bytes of the answer as the scraper takes; an error when the answer is over.
    fn answer(&mut self, place: usize) -> io::Result<()> {
        let Some(Scraper { socket, state, moved, .. }) = &mut self.places[place] else {
            return Ok(());
        };
        let State::Reads(out, at, scrape) = state else { return Ok(()) };
        loop {
            if *at == out.len() {
                match scrape.as_mut().filter(|scrape| !scrape.is_done()) {
                    Some(scrape) => *out = scrape.part(METRICS_PART_BYTES).into_bytes(),
                    None => return Err(ErrorKind::UnexpectedEof.into()),
                }
                *at = 0;
            }
            match send(&*socket, &out[*at..], SendFlags::NOSIGNAL) {
                Ok(count) => (*at, *moved) = (*at + count, Instant::now()),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Reads the bytes of a request that have come, as many as there is room for. False if no bytes
/// have come; an error if no more will come.
fn take(socket: &ClientSocket, head: &mut Vec<u8>) -> io::Result<bool> {
    let mut chunk = [0; 1024];
    let room = METRICS_HEAD_BYTES.saturating_sub(head.len()).min(chunk.len());
    match socket.read(&mut chunk[..room]) {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        Ok(count) => {
            head.extend_from_slice(&chunk[..count]);
            Ok(true)
        }
        Err(ReadError::Io(error))
            if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) =>
        {
            Ok(false)
        }
        Err(error) => Err(io::Error::other(error)),
    }
}
