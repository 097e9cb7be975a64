//! The states of connections and their time-outs, as Linux's `nf_conntrack` has them.
//!
//! TCP is followed by the flags of its segments, as described by G. van Rooij, "Real stateful TCP
//! packet filtering in IP Filter", SANE 2000, without sequence numbers. The differences to Linux:
//!
//! * Sequence numbers and checksums are not examined. In the place of a sequence number, an ACK
//!   from the end that seemed to send a RST proves that the RST was forged: a real sender of a RST
//!   sends nothing more. The connection is open again then.
//! * An ACK of the end that sent the SYN opens the connection, as an ACK without a connection does:
//!   behind a forged RST and a forged SYN the real connection goes on. Linux drops the ACK.
//! * Data from the end that seemed to send a FIN proves likewise that the FIN was forged, while the
//!   other end has sent no FIN. If the data was only sent again, the FIN of the other end follows,
//!   and counts as the second one.
//! * A FIN that the same end repeats changes nothing, nor does a RST: a burst that goes back to its
//!   ring repeats both. Linux forgets a connection that ends by a RST before any answer; here only
//!   the RST belongs to such a connection.
//! * A SYN to a connection that has ended begins another connection in either direction, if the
//!   rules permit it.
//! * Datagrams of all protocols except ICMP can become a stream.

use base::limits::{
    DATAGRAM_SECONDS, DATAGRAM_STREAM_SECONDS, OTHER_PROTOCOL_SECONDS, SCTP_ESTABLISHED_SECONDS,
    SCTP_HANDSHAKE_SECONDS, TCP_CLOSE_WAIT_SECONDS, TCP_CLOSED_SECONDS, TCP_ESTABLISHED_SECONDS,
    TCP_FIN_WAIT_SECONDS, TCP_LAST_ACK_SECONDS, TCP_SYN_RECEIVED_SECONDS, TCP_SYN_SENT_SECONDS,
    TCP_TIME_WAIT_SECONDS, TCP_UNANSWERED_SECONDS,
};

const UDP: u8 = 17;
const SCTP: u8 = 132;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// Types of chunks of SCTP (RFC 9260 section 3.2) that change the state of an association.
mod chunk {
    pub const INIT: u8 = 1;
    pub const INIT_ACK: u8 = 2;
    pub const HEARTBEAT: u8 = 4;
    pub const HEARTBEAT_ACK: u8 = 5;
    pub const ABORT: u8 = 6;
    pub const SHUTDOWN: u8 = 7;
    pub const SHUTDOWN_ACK: u8 = 8;
    pub const COOKIE_ECHO: u8 = 10;
    pub const COOKIE_ACK: u8 = 11;
    pub const SHUTDOWN_COMPLETE: u8 = 14;
}

/// A segment of TCP, by its flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Segment {
    /// SYN.
    Syn,
    /// SYN and ACK.
    SynAck,
    /// FIN and ACK.
    Fin,
    /// ACK without data.
    Ack,
    /// ACK with data.
    Data,
    /// RST, with ACK or not.
    Rst,
}

/// What a packet does to the state of its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A segment of TCP.
    Tcp(Segment),
    /// A packet of SCTP, by the type of its first chunk.
    Sctp(u8),
    /// A request of ICMP.
    Request,
    /// A reply of ICMP.
    Reply,
    /// A packet of any other protocol.
    Datagram,
}

impl Event {
    /// True for a RST of TCP and an ABORT of SCTP.
    #[inline]
    pub fn is_abort(self) -> bool {
        matches!(self, Event::Tcp(Segment::Rst) | Event::Sctp(chunk::ABORT))
    }
}

/// State of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum State {
    /// TCP: a SYN.
    SynSent,
    /// TCP: a SYN from each end.
    SynSent2,
    /// TCP: a SYN, and a SYN with ACK.
    SynReceived,
    /// TCP: open.
    Established,
    /// TCP: a FIN.
    FinWait,
    /// TCP: the FIN is acknowledged.
    CloseWait,
    /// TCP: a FIN from each end.
    LastAck,
    /// TCP: both are acknowledged.
    TimeWait,
    /// TCP and SCTP: reset or aborted.
    Closed,
    /// Datagrams from one end.
    Unreplied,
    /// Datagrams from each end.
    Replied,
    /// Datagrams from each end for some time.
    Stream,
    /// SCTP: INIT, or its answer.
    CookieWait,
    /// SCTP: the cookie came back.
    CookieEchoed,
    /// SCTP: open.
    Association,
    /// SCTP: the shutdown has begun.
    Shutdown,
}

/// States by number.
pub(super) const STATES: [State; 16] = [
    State::SynSent,
    State::SynSent2,
    State::SynReceived,
    State::Established,
    State::FinWait,
    State::CloseWait,
    State::LastAck,
    State::TimeWait,
    State::Closed,
    State::Unreplied,
    State::Replied,
    State::Stream,
    State::CookieWait,
    State::CookieEchoed,
    State::Association,
    State::Shutdown,
];

/// Which end has ended a connection of TCP, and how far the connection had come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ending {
    /// The end that sent the first packet has sent the first FIN, or the last RST.
    pub by_first: bool,
    /// The handshake was complete when the last RST came. Of an open connection: data came after
    /// the first FIN, from its seeming sender.
    pub was_open: bool,
}

/// The answer of a connection to a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The packet passes, and the connection is in this state.
    To(State),
    /// The packet passes and changes nothing: the answer of the other end will show whether the
    /// packet belongs to the connection.
    Ignored,
    /// The packet cannot belong to the connection.
    Invalid,
    /// The packet begins another connection.
    Again,
}

/// Segments by number.
pub(super) const SEGMENTS: [Segment; 6] =
    [Segment::Syn, Segment::SynAck, Segment::Fin, Segment::Ack, Segment::Data, Segment::Rst];

impl State {
    /// Returns the state of a number below 16.
    #[inline(always)]
    pub const fn from_bits(bits: u64) -> State {
        STATES[bits as usize % STATES.len()]
    }

    /// True if the connection has ended.
    pub const fn is_over(self) -> bool {
        matches!(self, State::TimeWait | State::Closed | State::Shutdown)
    }

    /// True if the connection is open: it makes no room for others once both ends have sent.
    pub const fn is_open(self) -> bool {
        matches!(self, State::Established | State::Association | State::Stream)
    }

    /// Returns the name that Linux's conntrack gives the state, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            State::SynSent => "syn-sent",
            State::SynSent2 => "syn-sent2",
            State::SynReceived => "syn-recv",
            State::Established | State::Association => "established",
            State::FinWait => "fin-wait",
            State::CloseWait => "close-wait",
            State::LastAck => "last-ack",
            State::TimeWait => "time-wait",
            State::Closed => "closed",
            State::Unreplied => "unreplied",
            State::Replied => "replied",
            State::Stream => "stream",
            State::CookieWait => "cookie-wait",
            State::CookieEchoed => "cookie-echoed",
            State::Shutdown => "shutdown",
        }
    }

    /// Returns the time-out in seconds; `replied`: a packet of each end was seen.
    #[inline]
    pub const fn seconds(self, protocol: u8, replied: bool) -> u32 {
        match self {
            State::SynSent | State::SynSent2 => TCP_SYN_SENT_SECONDS,
            State::SynReceived => TCP_SYN_RECEIVED_SECONDS,
            State::Established if replied => TCP_ESTABLISHED_SECONDS,
            State::Established => TCP_UNANSWERED_SECONDS,
            State::FinWait => TCP_FIN_WAIT_SECONDS,
            State::CloseWait => TCP_CLOSE_WAIT_SECONDS,
            State::LastAck => TCP_LAST_ACK_SECONDS,
            State::TimeWait => TCP_TIME_WAIT_SECONDS,
            State::Closed => TCP_CLOSED_SECONDS,
            State::CookieWait | State::CookieEchoed | State::Shutdown => SCTP_HANDSHAKE_SECONDS,
            State::Association => SCTP_ESTABLISHED_SECONDS,
            State::Unreplied | State::Replied | State::Stream => match protocol {
                UDP if matches!(self, State::Stream) => DATAGRAM_STREAM_SECONDS,
                UDP | ICMP | ICMPV6 | SCTP => DATAGRAM_SECONDS,
                _ => OTHER_PROTOCOL_SECONDS,
            },
        }
    }

    /// Returns the state after the first packet of a connection; `None` if the packet cannot begin
    /// one. An ACK continues a TCP connection that began before the filter.
    pub fn first(event: Event) -> Option<State> {
        match event {
            Event::Tcp(Segment::Syn) => Some(State::SynSent),
            Event::Tcp(Segment::Ack | Segment::Data) => Some(State::Established),
            Event::Sctp(chunk::INIT) => Some(State::CookieWait),
            Event::Sctp(chunk::HEARTBEAT) | Event::Request | Event::Datagram => {
                Some(State::Unreplied)
            }
            Event::Tcp(_) | Event::Sctp(_) | Event::Reply => None,
        }
    }

    /// Returns the answer to a packet, and how the connection has ended by then. `first`: the
    /// packet is from the end that sent the first one. `old`: the connection has existed for
    /// [`base::limits::STREAM_AFTER_SECONDS`]. `ending` is what the call for the packet before
    /// returned.
    #[inline]
    pub fn step(self, event: Event, first: bool, old: bool, ending: Ending) -> (Step, Ending) {
        let step = match event {
            Event::Tcp(segment) => return self.step_tcp(segment, first, ending),
            Event::Sctp(chunk) => self.next_sctp(chunk, first),
            Event::Request => Step::To(self),
            Event::Reply => Step::To(State::Replied),
            Event::Datagram => Step::To(match self {
                State::Unreplied if first => State::Unreplied,
                State::Replied if old => State::Stream,
                State::Stream => State::Stream,
                _ => State::Replied,
            }),
        };
        (step, ending)
    }

    /// Returns what [`State::step`] returns for a segment of TCP.
    pub(super) const fn step_tcp(
        self,
        segment: Segment,
        first: bool,
        ending: Ending,
    ) -> (Step, Ending) {
        let step = self.next_tcp(segment, first, ending);
        match step {
            Step::To(next) => (step, self.ending(next, segment, first, ending)),
            _ => (step, ending),
        }
    }

    /// Returns how a connection in this state ends by a segment that moves it to `next`; `before`
    /// if the segment ends nothing.
    const fn ending(self, next: State, segment: Segment, first: bool, before: Ending) -> Ending {
        use State::{CloseWait, Closed, Established, FinWait, LastAck, TimeWait};
        match (segment, next) {
            (Segment::Rst, Closed) => Ending {
                by_first: first,
                was_open: match self {
                    Closed => before.was_open,
                    Established | FinWait | CloseWait | LastAck | TimeWait => true,
                    _ => false,
                },
            },
            (Segment::Fin, FinWait) => Ending { by_first: first, was_open: false },
            (Segment::Data, Established) if matches!(self, FinWait | CloseWait) => {
                Ending { by_first: before.by_first, was_open: true }
            }
            (Segment::Ack | Segment::Data, Established) if matches!(self, Closed) => {
                Ending { by_first: false, was_open: false }
            }
            _ => before,
        }
    }

    const fn next_tcp(self, segment: Segment, first: bool, ending: Ending) -> Step {
        use State::{
            CloseWait, Closed, Established, FinWait, LastAck, SynReceived, SynSent, SynSent2,
            TimeWait,
        };
        let segment = match (segment, self) {
            // The FIN was forged: see the head of the file.
            (Segment::Data, FinWait | CloseWait) if first == ending.by_first => {
                return Step::To(Established);
            }
            (Segment::Data, _) => Segment::Ack,
            _ => segment,
        };
        match (segment, self) {
            (Segment::Rst, _) => Step::To(Closed),
            (Segment::Syn, TimeWait | Closed) => Step::Again,
            (Segment::Syn, SynSent | SynSent2) if first => Step::To(self),
            (Segment::Syn, SynSent | SynSent2) => Step::To(SynSent2),
            (Segment::Syn, _) if first => Step::Ignored,
            (Segment::Syn, _) => Step::Invalid,
            (Segment::SynAck, SynSent2) => Step::To(SynReceived),
            (Segment::SynAck, SynReceived) if first => Step::To(self),
            (Segment::SynAck, _) if first => Step::Invalid,
            (Segment::SynAck, SynSent) => Step::To(SynReceived),
            (Segment::SynAck, _) => Step::Ignored,
            (Segment::Fin, SynSent | SynSent2) => Step::Invalid,
            // A FIN of the other end came before, and data after that FIN.
            (Segment::Fin, Established) if ending.was_open && first != ending.by_first => {
                Step::To(LastAck)
            }
            (Segment::Fin, SynReceived | Established) => Step::To(FinWait),
            // The FIN again.
            (Segment::Fin, FinWait | CloseWait) if first == ending.by_first => Step::To(self),
            (Segment::Fin, FinWait | CloseWait | LastAck) => Step::To(LastAck),
            // The SYN was forged: see the head of the file.
            (Segment::Ack, SynSent) if first => Step::To(Established),
            (Segment::Ack, SynSent2) if first => Step::Invalid,
            (Segment::Ack, SynSent | SynSent2) => Step::Ignored,
            (Segment::Ack, SynReceived) if first => Step::To(Established),
            (Segment::Ack, FinWait) => Step::To(CloseWait),
            (Segment::Ack, LastAck) => Step::To(TimeWait),
            // The RST was forged: see the head of the file.
            (Segment::Ack, Closed) if ending.was_open && first == ending.by_first => {
                Step::To(Established)
            }
            (Segment::Fin | Segment::Ack | Segment::Data, _) => Step::To(self),
        }
    }

    fn next_sctp(self, chunk: u8, first: bool) -> Step {
        use State::{Association, Closed, CookieEchoed, CookieWait, Shutdown, Unreplied};
        Step::To(match (chunk, self) {
            (chunk::INIT, Closed | Shutdown) => return Step::Again,
            (chunk::ABORT, _) => Closed,
            (chunk::INIT, Unreplied) if first => CookieWait,
            (chunk::HEARTBEAT_ACK, Unreplied) if !first => Association,
            (chunk::INIT_ACK, Unreplied) => return Step::Invalid,
            (chunk::COOKIE_ECHO, CookieWait) if first => CookieEchoed,
            (chunk::COOKIE_ACK, CookieEchoed) if !first => Association,
            (chunk::SHUTDOWN | chunk::SHUTDOWN_ACK, Association) => Shutdown,
            (chunk::SHUTDOWN_COMPLETE, Shutdown) => Closed,
            _ => self,
        })
    }
}
