//! Decodes a vhost-user message: header, body and descriptors become a typed [`Payload`]. The
//! protocol is QEMU's `docs/interop/vhost-user.rst`.
//!
//! A [`HeaderError`] means that the next message's start is unknown: the connection is over. After
//! a [`BadMessage`] the stream is at the start of the next message: the session may refuse the
//! message and go on. The table in `decode.rs` has each body's layout and number of descriptors.
//! Wherever decoding stops, the message's descriptors are dropped, and so closed.
//!
//! Decoding checks the form of a message only. Ring indices, addresses, sizes and sums of region
//! fields are checked where they are used.

use std::fmt;
use std::os::fd::OwnedFd;

use vhost::vhost_user::message::{FrontendReq, VhostUserHeaderFlag};

use base::frame::MacAddr;
use base::limits::{MAX_MESSAGE_BODY, MAX_MESSAGE_FILES};
use base::words::counted;

mod decode;

/// Bytes of a message header: request, flags and body size, each a u32 in native byte order.
pub(crate) const HEADER_BYTES: usize = 12;

/// The protocol's only version, in the two lowest flag bits.
const VERSION: u32 = 1;

/// Flags of every reply: version 1 and the reply bit, nothing else. DPDK compares all 32 bits.
pub(crate) const REPLY_FLAGS: u32 = VERSION | VhostUserHeaderFlag::REPLY.bits();

/// A request code as received, known or not. Prints as the protocol's name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Code(pub u32);

impl Code {
    /// Returns the request of this code, if the protocol (as of the `vhost` crate) has one.
    pub(crate) fn known(self) -> Option<FrontendReq> {
        FrontendReq::try_from(self.0).ok()
    }
}

impl From<FrontendReq> for Code {
    fn from(request: FrontendReq) -> Code {
        Code(request.into())
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known() {
            Some(request) => write!(f, "{request:?}"),
            None => write!(f, "request {}", self.0),
        }
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A header after which the start of the next message is unknown: the request's code, and its flags
/// or the length of its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The version bits are not 1: another protocol, or not the start of a message.
    #[error("{0}: flags {1:#x} are not of version 1")]
    Version(Code, u32),
    /// A reply, although this back-end sends no requests.
    #[error("{0}: a reply to a question never asked (flags {1:#x})")]
    Reply(Code, u32),
    /// Flag bits without a defined meaning.
    #[error("{0}: reserved bits in flags {1:#x}")]
    Reserved(Code, u32),
    /// A body longer than [`MAX_MESSAGE_BODY`].
    #[error("{0}: a body of {1} bytes, the limit is {MAX_MESSAGE_BODY}")]
    BodyTooLong(Code, u32),
}

/// A valid message header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The request's code.
    pub code: Code,
    /// The front-end set `NEED_REPLY`.
    pub need_reply: bool,
    /// Bytes of body, at most [`MAX_MESSAGE_BODY`].
    pub size: usize,
}

impl Head {
    /// Parses a header.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Head, HeaderError> {
        let [code, flags, size] = [0, 4, 8].map(|at| u32_at(bytes, at));
        let code = Code(code);
        if flags & VhostUserHeaderFlag::VERSION.bits() != VERSION {
            return Err(HeaderError::Version(code, flags));
        }
        if flags & VhostUserHeaderFlag::RESERVED_BITS.bits() != 0 {
            return Err(HeaderError::Reserved(code, flags));
        }
        if flags & VhostUserHeaderFlag::REPLY.bits() != 0 {
            return Err(HeaderError::Reply(code, flags));
        }
        let need_reply = flags & VhostUserHeaderFlag::NEED_REPLY.bits() != 0;
        match usize::try_from(size) {
            Ok(size) if size <= MAX_MESSAGE_BODY => Ok(Head { code, need_reply, size }),
            _ => Err(HeaderError::BodyTooLong(code, size)),
        }
    }

    /// True if the request has a reply of its own.
    pub(crate) fn has_answer(&self) -> bool {
        decode::has_answer(self.code)
    }

    /// True if the front-end asked for an acknowledgement and the request has no reply of its own,
    /// which would stand for one. Valid only if `REPLY_ACK` is negotiated, which the session
    /// checks.
    pub(crate) fn wants_ack(&self) -> bool {
        self.need_reply && !self.has_answer()
    }
}

/// Returns the header of a reply with a body of `size` bytes.
pub(crate) fn reply_header(code: Code, size: u32) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    let words = [code.0, REPLY_FLAGS, size];
    for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// A descriptor that came with a message; `None` if the descriptor was a disk file and is closed
/// already.
pub type Passed = Option<OwnedFd>;

/// One message as received: a valid header, the whole body, and the descriptors.
#[derive(Debug)]
pub struct Message {
    /// The header.
    pub head: Head,
    /// The body, `head.size` bytes.
    pub body: Vec<u8>,
    /// The descriptors, at most [`MAX_MESSAGE_FILES`], each close-on-exec.
    pub files: Vec<Passed>,
}

/// One region of guest memory as a front-end describes the region. Unchecked; sums may wrap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionSpec {
    /// Guest-physical address of the first byte.
    pub(crate) gpa: u64,
    /// Length in bytes.
    pub(crate) len: u64,
    /// Address of the first byte in the front-end's process; ring addresses are such addresses.
    pub(crate) uva: u64,
    /// Offset of the first byte in the file.
    pub(crate) offset: u64,
}

/// Addresses of a ring in the front-end's process. Unchecked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VringAddr {
    /// Ring index.
    pub(crate) index: u32,
    /// Bit 0: log writes to the used ring.
    pub(crate) flags: u32,
    /// Address of the descriptor table.
    pub(crate) descriptor: u64,
    /// Address of the used ring.
    pub(crate) used: u64,
    /// Address of the available ring.
    pub(crate) available: u64,
    /// Guest-physical address of the used ring, for the dirty log.
    pub(crate) log: u64,
}

/// Content of a well-formed message, without its code. Values are as received.
#[derive(Debug)]
pub enum Payload {
    /// Nothing; a descriptor that came with `SET_LOG_FD` is closed.
    None,
    /// Features, an MTU, or a link-layer address.
    Number(u64),
    /// A ring's index, and its size, its base, or 1 to enable the ring.
    Ring(u32, u32),
    /// The addresses of a ring.
    Address(VringAddr),
    /// A ring's index, and a descriptor for kicks, calls or errors. `None`: poll the ring, or do
    /// not signal.
    Notifier(u32, Option<OwnedFd>),
    /// The whole memory table; at most [`MAX_MESSAGE_FILES`] regions, possibly none.
    Table(Vec<(RegionSpec, Passed)>),
    /// One region; with `ADD_MEM_REG` also the region's file.
    Region(RegionSpec, Passed),
    /// The dirty log's file, the log's offset in the file, and the log's size in bytes.
    Log(OwnedFd, u64, u64),
}

/// A message whose body or descriptors do not match its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadMessage {
    /// The body's length differs from the request's.
    #[error("{code}: a body of {} instead of {expected}", counted(.got, "byte"))]
    BodySize {
        /// The request.
        code: Code,
        /// Bytes that the request calls for.
        expected: usize,
        /// Bytes received.
        got: usize,
    },
    /// More or fewer descriptors than the request calls for.
    #[error("{code}: {} instead of {expected}", counted(.got, "descriptor"))]
    FileCount {
        /// The request.
        code: Code,
        /// Descriptors that the request calls for.
        expected: usize,
        /// Descriptors received.
        got: usize,
    },
    /// A memory table with more regions than one message may carry descriptors.
    #[error("{0}: {1} regions, the limit is {MAX_MESSAGE_FILES}")]
    TooManyRegions(Code, u32),
    /// A value that the protocol does not define.
    #[error("{0}: undefined value {1:#x}")]
    Value(Code, u64),
}

/// Returns the address in the value of `SEND_RARP`: the value's first six bytes in memory, in any
/// byte order.
pub(crate) fn address_in(value: u64) -> MacAddr {
    let [a, b, c, d, e, f, ..] = value.to_ne_bytes();
    MacAddr([a, b, c, d, e, f])
}

/// Returns the native-endian u32 at `at`; 0 beyond the end, which the callers rule out.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(<[u8]>::first_chunk);
    word.map_or(0, |word| u32::from_ne_bytes(*word))
}

#[cfg(test)]
mod tests;
