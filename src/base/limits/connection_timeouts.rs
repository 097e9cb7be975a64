//! Time-outs of connections that filters track: values of Linux's `nf_conntrack`. The models of
//! threads use this file, too.

/// Tuning: time-out of a TCP connection after the first SYN.
pub const TCP_SYN_SENT_SECONDS: u32 = 120;
/// Tuning: time-out of a TCP connection after the answer to the first SYN.
pub const TCP_SYN_RECEIVED_SECONDS: u32 = 60;
/// Tuning: time-out of an idle TCP connection.
pub const TCP_ESTABLISHED_SECONDS: u32 = 5 * 86_400;
/// Tuning: time-out of a TCP connection whose beginning was not seen, before the first answer.
pub const TCP_UNANSWERED_SECONDS: u32 = 300;
/// Tuning: time-out of a TCP connection after the first FIN.
pub const TCP_FIN_WAIT_SECONDS: u32 = 120;
/// Tuning: time-out of a TCP connection after the acknowledgement of the first FIN.
pub const TCP_CLOSE_WAIT_SECONDS: u32 = 60;
/// Tuning: time-out of a TCP connection after a FIN of each end.
pub const TCP_LAST_ACK_SECONDS: u32 = 30;
/// Tuning: time for which an ended TCP connection is kept.
pub const TCP_TIME_WAIT_SECONDS: u32 = 120;
/// Tuning: time for which a TCP connection is kept after a reset.
pub const TCP_CLOSED_SECONDS: u32 = 10;
/// Tuning: time-out of an SCTP association that begins or ends.
pub const SCTP_HANDSHAKE_SECONDS: u32 = 3;
/// Tuning: time-out of an idle SCTP association.
pub const SCTP_ESTABLISHED_SECONDS: u32 = 210;
/// Tuning: time-out of an exchange of UDP datagrams, or of an ICMP request.
pub const DATAGRAM_SECONDS: u32 = 30;
/// Tuning: time-out of a stream of UDP datagrams: both ends have sent, and the exchange is at least
/// [`STREAM_AFTER_SECONDS`] old.
pub const DATAGRAM_STREAM_SECONDS: u32 = 120;
/// Tuning: age at which an exchange of UDP datagrams is a stream.
pub const STREAM_AFTER_SECONDS: u32 = 2;
/// Tuning: time-out of packets of other protocols.
pub const OTHER_PROTOCOL_SECONDS: u32 = 600;
