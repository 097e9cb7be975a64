//! One front-end's connection: whole messages in, replies out, no wait without a limit.
//!
//! * A message is 12 header bytes, then the announced number of body bytes. Descriptors may come
//!   only with the first bytes of the header.
//! * Waiting for a message's first byte has no limit. From then on the whole message must arrive by
//!   one absolute deadline, in any number of pieces. The front-end must read a reply by a deadline
//!   too.
//! * [`disposal`] closes descriptors that come elsewhere or lie unread at the end.
//! * Every wait ends at once when the stop eventfd is written.
//! * After any [`WireError`] the connection is unusable: drop the connection.
//!
//! The codec does not depend on the socket's blocking mode, which other owners can change.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vhost::vhost_user::message::VhostUserU64;
use vm_memory::ByteValued;
use vmm_sys_util::eventfd::EventFd;

use crate::guard::disposal::{self, Guarded};
use crate::port::SessionWaker;
use crate::vhost_user::message::{Code, HEADER_BYTES, Head, HeaderError, Message, reply_header};
use base::limits::{MAX_HELD_FILES, MAX_MESSAGE_FILES, MESSAGE_TIMEOUT, REPLY_TIMEOUT};
use sys::eventfd::is_readable;
use sys::poll::{Interest, Wake, wait_for_any, wait_for_either};
use sys::scm;

/// Outcome of waiting for the next message.
#[derive(Debug)]
pub enum Incoming {
    /// A whole message.
    Message(Message),
    /// Another front-end has connected to the port's socket; reported once.
    OtherFrontEnd,
    /// Another thread asks the session for facts.
    Called,
    /// The front-end closed the connection between two messages.
    Closed,
    /// The stop eventfd was written.
    Stopped,
}

/// Why the connection is over.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The header is invalid, so the start of the next message is unknown.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// More descriptors than a message may carry.
    #[error("more than {MAX_MESSAGE_FILES} descriptors with one message")]
    TooManyFiles,
    /// The kernel could not install the descriptors of a message.
    #[error("descriptors were lost: this process has too many open (RLIMIT_NOFILE)")]
    FilesLost,
    /// Descriptors came in the middle of a message.
    #[error("descriptors in the middle of a message")]
    StrayFiles,
    /// The front-end closed the connection inside a message.
    #[error("connection closed in the middle of a message")]
    Truncated,
    /// The front-end began a message and did not finish it in time.
    #[error("message not complete after {0:?}")]
    MessageTimeout(Duration),
    /// The front-end does not read its replies.
    #[error("reply not taken within {0:?}")]
    ReplyTimeout(Duration),
    /// The stop eventfd was written while a reply was waiting for room.
    #[error("stopped")]
    Stopped,
    /// Too many received files wait to be closed.
    #[error("more than {MAX_HELD_FILES} descriptors came whose closing lasts")]
    HeldUp,
    /// Another thread ended the session, see [`Connection::leave`].
    #[error("dropped")]
    Dropped,
    /// A system call failed.
    #[error("socket error: {0}")]
    Io(#[from] io::Error),
}

/// The back-end's end of one connection to a front-end.
#[derive(Debug)]
pub struct Connection {
    socket: Guarded<UnixStream>,
    stop: Arc<EventFd>,
    leave: Arc<SessionWaker>,
    /// Another thread called the session while a message was arriving.
    called: Cell<bool>,
    /// The socket that the next front-end connects to.
    listener: Option<Arc<Guarded<UnixListener>>>,
    message_timeout: Duration,
    reply_timeout: Duration,
}

impl Connection {
    /// Makes a connection over `socket` that ends when `stop` is written. The connection never
    /// reads `stop`, so any number of connections can share `stop`; nobody else may read `stop`
    /// meanwhile.
    pub fn new(
        socket: impl Into<Guarded<UnixStream>>,
        stop: Arc<EventFd>,
    ) -> io::Result<Connection> {
        let (socket, leave) = (socket.into(), Arc::new(SessionWaker::new()?));
        let (message_timeout, reply_timeout) = (MESSAGE_TIMEOUT, REPLY_TIMEOUT);
        let (called, listener) = (Cell::new(false), None);
        Ok(Connection { socket, stop, leave, called, listener, message_timeout, reply_timeout })
    }

    /// Also reports [`Incoming::OtherFrontEnd`] when another front-end connects to `listener`.
    pub fn with_listener(mut self, listener: Option<Arc<Guarded<UnixListener>>>) -> Connection {
        self.listener = listener;
        self
    }

    /// Returns the handle by which another thread calls the session, or ends it with
    /// [`WireError::Dropped`].
    pub(crate) fn leave(&self) -> &Arc<SessionWaker> {
        &self.leave
    }

    /// Waits for the next message and reads all of it.
    pub fn receive(&mut self) -> Result<Incoming, WireError> {
        if disposal::is_held_up() {
            return Err(WireError::HeldUp);
        }
        match self.receive_next() {
            Err(WireError::Stopped) => Ok(Incoming::Stopped),
            received => received,
        }
    }

    fn receive_next(&mut self) -> Result<Incoming, WireError> {
        if let Some(incoming) = self.wait_for_first()? {
            return Ok(incoming);
        }
        Ok(self.receive_message()?.map_or(Incoming::Closed, Incoming::Message))
    }

    /// Replies with one number, as to `GET_FEATURES` and `GET_QUEUE_NUM`.
    pub(crate) fn reply_u64(&mut self, code: Code, value: u64) -> Result<(), WireError> {
        self.reply(code, VhostUserU64::new(value))
    }

    /// Acknowledges a request that asked for an acknowledgement ([`Head::wants_ack`]): 0 if the
    /// request was done, another number if not. Only with `REPLY_ACK` negotiated.
    pub(crate) fn ack(&mut self, code: Code, done: bool) -> Result<(), WireError> {
        self.reply_u64(code, u64::from(!done))
    }

    /// Waits for a message, for another front-end or for a call; `None` for a message.
    fn wait_for_first(&mut self) -> Result<Option<Incoming>, WireError> {
        let stops = [&*self.stop, self.leave.eventfd()];
        match &self.listener {
            // Reports a call that came during the last message.
            _ if self.called.get() => {}
            Some(listener) => {
                if wait_for_either(self.socket.as_fd(), listener.as_fd(), stops)? {
                    self.listener = None;
                    return Ok(Some(Incoming::OtherFrontEnd));
                }
                self.check_stops()?;
            }
            None => {
                self.wait(Interest::Read, None)?;
            }
        }
        Ok(self.called.take().then_some(Incoming::Called))
    }

    /// Reads a message; `None` if the front-end left between two messages.
    fn receive_message(&self) -> Result<Option<Message>, WireError> {
        let mut header = [0; HEADER_BYTES];
        let mut files = Handed(Vec::new());
        let got = loop {
            self.wait(Interest::Read, None)?;
            match scm::receive(self.socket.as_fd(), &mut header, &mut files.0) {
                Ok(_) if files.0.len() > MAX_MESSAGE_FILES => return Err(WireError::TooManyFiles),
                Ok(got) if got.files_lost => return Err(WireError::FilesLost),
                Ok(got) if got.bytes == 0 => return Ok(None),
                Ok(got) => break got.bytes,
                // The front-end died without reading the last reply, which is no different from
                // leaving.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => retry(error)?,
            }
        };
        let deadline = Instant::now() + self.message_timeout;
        self.fill(&mut header[got..], deadline)?;
        let head = Head::parse(&header)?;
        let mut body = vec![0; head.size];
        self.fill(&mut body, deadline)?;
        Ok(Some(Message {
            head,
            body,
            files: std::mem::take(&mut files.0).into_iter().map(Some).collect(),
        }))
    }

    /// Fills `buffer` with the bytes that continue a message.
    fn fill(&self, mut buffer: &mut [u8], deadline: Instant) -> Result<(), WireError> {
        while !buffer.is_empty() {
            // After the deadline only bytes that have already arrived are read, a few thousand at
            // most: a front-end gains nothing, and a message that lies ready is not lost if this
            // process slept (stopped by a debugger, for example).
            if self.wait(Interest::Read, Some(deadline))? == Wake::TimedOut {
                return Err(WireError::MessageTimeout(self.message_timeout));
            }
            let mut stray = Handed(Vec::new());
            match scm::receive(self.socket.as_fd(), buffer, &mut stray.0) {
                Ok(got) if got.files_lost || !stray.0.is_empty() => {
                    return Err(WireError::StrayFiles);
                }
                Ok(got) if got.bytes == 0 => return Err(WireError::Truncated),
                Ok(got) => buffer = &mut buffer[got.bytes..],
                Err(error) => retry(error)?,
            }
        }
        Ok(())
    }

    /// Sends one reply, in one piece unless the socket is nearly full.
    pub(crate) fn reply<T: ByteValued>(&mut self, code: Code, body: T) -> Result<(), WireError> {
        let header = reply_header(code, size_of::<T>() as u32);
        let message = [&header, body.as_slice()].concat();
        let deadline = Instant::now() + self.reply_timeout;
        let mut rest = &message[..];
        while !rest.is_empty() {
            match scm::send(self.socket.as_fd(), rest) {
                Ok(sent) => rest = &rest[sent..],
                Err(error) => {
                    retry(error)?;
                    if self.wait(Interest::Write, Some(deadline))? == Wake::TimedOut {
                        return Err(WireError::ReplyTimeout(self.reply_timeout));
                    }
                }
            }
        }
        Ok(())
    }

    /// Waits for the socket; [`Wake::Stop`] means that the session was called.
    fn wait(&self, interest: Interest, deadline: Option<Instant>) -> Result<Wake, WireError> {
        let stops = [&*self.stop, self.leave.eventfd()];
        let wake = wait_for_any(self.socket.as_fd(), interest, stops, deadline)?;
        if wake == Wake::Stop {
            self.check_stops()?;
        }
        Ok(wake)
    }

    /// Fails if the session is to end, and notes a call.
    fn check_stops(&self) -> Result<(), WireError> {
        if is_readable(self.stop.as_raw_fd()) {
            return Err(WireError::Stopped);
        }
        if is_readable(self.leave.as_raw_fd()) {
            if self.leave.take() {
                return Err(WireError::Dropped);
            }
            self.called.set(true);
        }
        Ok(())
    }
}

/// Descriptors of a message that is not complete; closed on drop.
struct Handed(Vec<OwnedFd>);

impl Drop for Handed {
    fn drop(&mut self) {
        disposal::close(std::mem::take(&mut self.0));
    }
}

/// Returns errors other than "wait and try again".
fn retry(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests;
