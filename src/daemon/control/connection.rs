//! One client: reads calls and writes answers, within bounds. No function here waits.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use serde_json::Value;
use vmm_sys_util::epoll::EventSet;

use super::parts::Stream;
use base::limits::{
    CONTROL_MESSAGE_BYTES, CONTROL_MESSAGE_TIMEOUT, CONTROL_READ_BYTES, CONTROL_STREAM_BYTES,
    CONTROL_UNREAD_BYTES,
};
use datapath::guard::client_socket::{ClientSocket, ReadError};
use sys::{scm, unix_socket};

/// The reason why a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Closed {
    /// The client has its answers, or wants them no more.
    #[error("it left")]
    Left,
    /// The client sent bytes that are no call.
    #[error("no varlink call")]
    Malformed,
    /// The client sent descriptors, which no call has.
    #[error("it sent descriptors")]
    Descriptors,
    /// The client sent more bytes of a message than a message may have.
    #[error("a message of more than {CONTROL_MESSAGE_BYTES} bytes")]
    TooLong,
    /// The client did not send the rest of a message in time.
    #[error("half a message for {CONTROL_MESSAGE_TIMEOUT:?}")]
    TooSlow,
    /// The client asks and does not read the answers.
    #[error("{CONTROL_UNREAD_BYTES} bytes of replies unread")]
    Unread,
}

/// The process at the other end of a connection, as of its connect(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caller {
    /// Process number; 0 if the process lives outside our PID namespace.
    pub(crate) pid: i32,
    /// User number.
    pub(crate) uid: u32,
    /// Number of the process's first group.
    pub(crate) gid: u32,
}

/// The rank of a client. Places are kept for the ranks above the lowest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// A client that may look.
    Viewer,
    /// A client that may change the switch.
    Admin,
    /// Root.
    Root,
}

/// The state of a client whose answer waits for something to happen in the switch.
#[derive(Debug, Clone, Copy)]
pub struct Idle {
    /// The end of the wait; none if the wait has no limit.
    pub(crate) until: Option<Instant>,
}

/// The bytes that a client sent.
#[derive(Default)]
struct Input {
    /// Bytes that came and are not yet read as a message.
    bytes: Vec<u8>,
    /// True if the client sends no more bytes.
    ended: bool,
    /// The time since which the bytes have had a part of a message.
    since: Option<Instant>,
}

impl Input {
    /// Reads bytes from the socket, up to a bound.
    fn read(&mut self, socket: &ClientSocket) -> Result<(), Closed> {
        let mut chunk = [0; CONTROL_READ_BYTES];
        match socket.read(&mut chunk) {
            Ok(0) => self.ended = true,
            Ok(count) => self.bytes.extend_from_slice(&chunk[..count]),
            Err(ReadError::Io(error)) if is_passing(&error) => {}
            Err(ReadError::Io(_)) => return Err(Closed::Left),
            Err(ReadError::Descriptors) => return Err(Closed::Descriptors),
        }
        Ok(())
    }

    fn end_of_message(&self) -> Option<usize> {
        self.bytes.iter().position(|byte| *byte == 0)
    }

    /// Takes the first whole message, without its end; none if only a part has come.
    fn take_message(&mut self) -> Result<Option<Vec<u8>>, Closed> {
        let end = self.end_of_message();
        if end.unwrap_or(self.bytes.len()) > CONTROL_MESSAGE_BYTES {
            return Err(Closed::TooLong);
        }
        let Some(end) = end else {
            if !self.bytes.is_empty() {
                self.since.get_or_insert_with(Instant::now);
            }
            return Ok(None);
        };
        let rest = self.bytes.split_off(end + 1);
        let mut message = std::mem::replace(&mut self.bytes, rest);
        message.truncate(end);
        self.since = None;
        Ok(Some(message))
    }
}

/// The bytes that wait to be written to a client.
#[derive(Default)]
struct Output {
    /// Bytes for the client; the socket has taken the bytes before `written`.
    bytes: Vec<u8>,
    written: usize,
}

impl Output {
    /// Queues an answer.
    fn push(&mut self, answer: &Value) -> Result<(), Closed> {
        self.bytes.drain(..std::mem::take(&mut self.written));
        serde_json::to_writer(&mut self.bytes, answer).map_err(|_| Closed::Left)?;
        self.bytes.push(0);
        Ok(())
    }

    fn unread(&self) -> usize {
        self.bytes.len() - self.written
    }

    /// Writes as many bytes as the socket takes.
    fn flush(&mut self, socket: &ClientSocket) -> Result<(), Closed> {
        while self.unread() > 0 {
            match scm::send(socket.as_fd(), &self.bytes[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_passing(&error) => return Ok(()),
                Err(_) => return Err(Closed::Left),
            }
        }
        // The buffer's memory is released; the next answer allocates memory.
        *self = Output::default();
        Ok(())
    }
}

/// A client that is connected.
pub struct Connection {
    socket: ClientSocket,
    /// The process at the other end.
    pub(crate) caller: Caller,
    /// The rank, which decides which places the client may take.
    pub(crate) rank: Rank,
    /// Distinguishes the client from other clients that had its place.
    pub(crate) number: u64,
    input: Input,
    output: Output,
    /// An answer of several parts, which goes on as the client reads.
    pub(crate) stream: Option<Stream>,
    /// Set while the answer has no next part.
    pub(crate) idle: Option<Idle>,
    /// True while a call that takes its time is carried out; the next call waits.
    pub(crate) busy: bool,
    /// True if no process would read an answer.
    pub(crate) hung_up: bool,
    /// Events that the epoll set waits for.
    pub(crate) watched: EventSet,
}

impl Connection {
    /// Returns the connection of an accepted socket.
    pub(crate) fn new(socket: UnixStream, number: u64) -> io::Result<Connection> {
        let socket = ClientSocket::new(socket);
        let who = unix_socket::peer_credentials(socket.as_fd())?;
        let caller = Caller { pid: who.pid, uid: who.uid, gid: who.gid };
        Ok(Connection {
            socket,
            caller,
            rank: Rank::Viewer,
            number,
            input: Input::default(),
            output: Output::default(),
            stream: None,
            idle: None,
            busy: false,
            hung_up: false,
            watched: EventSet::IN,
        })
    }

    /// Returns the next whole message, without its end; none while a call is being answered. Reads
    /// bytes from the socket, up to a bound, if the input has no whole message yet.
    pub(crate) fn message(&mut self) -> Result<Option<Vec<u8>>, Closed> {
        if self.is_answering() {
            return Ok(None);
        }
        if self.input.end_of_message().is_none() && !self.input.ended {
            self.input.read(&self.socket)?;
        }
        self.input.take_message()
    }

    fn is_answering(&self) -> bool {
        self.busy || self.stream.is_some()
    }

    fn wants_more(&self) -> bool {
        !self.input.ended && !self.is_answering()
    }

    /// True if the next part of an answer may be made.
    pub(crate) fn takes_a_part(&self) -> bool {
        self.stream.is_some() && self.idle.is_none() && self.output.unread() < CONTROL_STREAM_BYTES
    }

    /// True if the switch can go on with the client before anything happens.
    pub(crate) fn is_ready(&self) -> bool {
        self.takes_a_part() || (!self.is_answering() && self.input.end_of_message().is_some())
    }

    /// Returns the time at which a part of a message is waited for no longer.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.input.since.filter(|_| self.wants_more()).map(|since| since + CONTROL_MESSAGE_TIMEOUT)
    }

    /// Queues an answer.
    pub(crate) fn push(&mut self, answer: &Value) -> Result<(), Closed> {
        self.output.push(answer)?;
        // Bytes that the socket takes need not be kept.
        self.flush()?;
        if self.output.unread() > CONTROL_UNREAD_BYTES { Err(Closed::Unread) } else { Ok(()) }
    }

    /// Writes as many bytes as the socket takes.
    pub(crate) fn flush(&mut self) -> Result<(), Closed> {
        self.output.flush(&self.socket)
    }

    /// Returns an error if nothing is left to do for the client.
    pub(crate) fn check(&self) -> Result<(), Closed> {
        let over = self.input.ended && !self.is_answering() && self.output.unread() == 0;
        let gone = self.hung_up && !self.wants_more();
        if over || gone { Err(Closed::Left) } else { Ok(()) }
    }

    /// Returns the events to wait for.
    pub(crate) fn interest(&self) -> EventSet {
        let mut events = EventSet::empty();
        if self.wants_more() {
            events |= EventSet::IN;
        }
        if self.output.unread() > 0 {
            events |= EventSet::OUT;
        }
        events
    }
}

/// True if the error passes without an action.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Connection {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
