//! Answers to rejected packets: a reset of TCP, or an ICMP error "administratively prohibited".
//!
//! The answer goes back to the sender of the packet, in the name of the packet's destination, with
//! the packet's VLAN tags. Nothing is answered that could be answered to many or begin an exchange
//! of answers: packets to and from groups, errors of ICMP, resets, fragments but the first (RFC
//! 1122 section 3.2.2, RFC 4443 section 2.4).

use super::packet::{Content, Packet, Part, Segment};
use crate::fdb::Tick;
use crate::port_security::Headers;
use base::budget::Budget;
use base::frame::protocol::{ICMPV6, TCP};
use base::frame::{MacAddr, Sum};
use base::limits::{MAX_REJECT_LEN, REJECT_QUOTE};

use super::rule::ICMP;

/// Time to live of answers.
const HOPS: u8 = 64;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// Bounds how often something happens, with a burst at once.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    budget: Budget,
    per_second: u32,
    last: Tick,
}

impl Allowance {
    /// Makes a full allowance.
    pub fn new(per_second: u32, burst: u32) -> Allowance {
        let cap = u64::from(burst) * u64::from(Tick::ticks(1));
        let mut budget = Budget::empty(cap);
        budget.earn(cap);
        Allowance { budget, per_second, last: Tick::default() }
    }

    /// True if the thing may happen at `now`; it is counted then.
    pub fn take(&mut self, now: Tick) -> bool {
        let ticks = now.to_bits().saturating_sub(self.last.to_bits());
        // Workers that share an allowance may read clocks that differ by a tick.
        self.last = self.last.max(now);
        self.budget.earn(u64::from(ticks) * u64::from(self.per_second));
        self.budget.take(Tick::ticks(1).into())
    }
}

/// Writes the answer to a rejected packet; returns its length, or `None` if the packet gets none.
/// `headers` are those that `packet` was read from.
pub fn answer(
    headers: &Headers<'_>,
    packet: &Packet,
    out: &mut [u8; MAX_REJECT_LEN],
) -> Option<usize> {
    if !may_answer(headers, packet) {
        return None;
    }
    let (l3, frame) = (usize::from(packet.l3), headers.bytes);
    out[..6].copy_from_slice(frame.get(6..12)?);
    out[6..12].copy_from_slice(frame.get(..6)?);
    out.get_mut(12..l3)?.copy_from_slice(frame.get(12..l3)?);
    let network = if packet.v6 { 40 } else { 20 };
    let (protocol, body) = match packet.content {
        Content::Tcp(_, segment) => {
            let at = out.get_mut(l3 + network..)?.first_chunk_mut::<20>()?;
            *at = reset(headers, packet, segment)?;
            (TCP, 20)
        }
        _ => {
            let quote = quote(headers, l3, packet.v6)?;
            let at = out.get_mut(l3 + network..l3 + network + 8 + quote.len())?;
            let message = if packet.v6 { [1, 1] } else { [3, 13] };
            at[..8].copy_from_slice(&[message[0], message[1], 0, 0, 0, 0, 0, 0]);
            at[8..].copy_from_slice(quote);
            (if packet.v6 { ICMPV6 } else { ICMP }, 8 + quote.len())
        }
    };
    let end = l3 + network + body;
    finish(out.get_mut(l3..end)?, packet, protocol, network);
    Some(end)
}

fn may_answer(headers: &Headers<'_>, packet: &Packet) -> bool {
    let mac = |at: usize| headers.bytes.get(at..)?.first_chunk().map(|mac| MacAddr(*mac));
    let is_one = |mac: Option<MacAddr>| mac.is_some_and(|mac| mac.is_station());
    let is_group = |address: u128| match packet.v6 {
        true => address >> 120 == 0xff || address == 0,
        false => address >= 0xe000_0000 || address == 0,
    };
    let is_answer = matches!(
        packet.content,
        Content::Tcp(_, Segment::Rst) | Content::Error(..) | Content::Message(_)
    );
    let is_later = matches!(packet.part, Part::Later { .. });
    let stations = is_one(mac(0)) && is_one(mac(6));
    stations && !is_group(packet.from) && !is_group(packet.to) && !is_answer && !is_later
}

/// Returns the bytes of the packet at `l3` that an error quotes.
fn quote<'a>(headers: &Headers<'a>, l3: usize, v6: bool) -> Option<&'a [u8]> {
    let at = if v6 { l3 + 4 } else { l3 + 2 };
    let total = usize::from(headers.u16(at).ok()?) + if v6 { 40 } else { 0 };
    let packet = headers.bytes.get(l3..)?;
    Some(&packet[..packet.len().min(total).min(REJECT_QUOTE)])
}

/// Returns a reset of TCP without checksum (RFC 9293 section 3.10.7.1).
fn reset(headers: &Headers<'_>, packet: &Packet, segment: Segment) -> Option<[u8; 20]> {
    let at = usize::from(packet.l4);
    let tcp: &[u8; 20] = headers.bytes.get(at..)?.first_chunk()?;
    let number = |at: usize| u32::from_be_bytes([tcp[at], tcp[at + 1], tcp[at + 2], tcp[at + 3]]);
    let mut reset = [0; 20];
    reset[..2].copy_from_slice(&tcp[2..4]);
    reset[2..4].copy_from_slice(&tcp[..2]);
    reset[12] = 5 << 4;
    if segment == Segment::Syn {
        // Not acknowledged by anybody, so the answer acknowledges: SYN and data.
        let data = payload(headers, packet)?.checked_sub(usize::from(tcp[12] >> 4) * 4)?;
        let next = number(4).wrapping_add(1).wrapping_add(data as u32);
        reset[8..12].copy_from_slice(&next.to_be_bytes());
        reset[13] = RST | ACK;
    } else {
        reset[4..8].copy_from_slice(&tcp[8..12]);
        reset[13] = RST;
    }
    Some(reset)
}

/// Returns the bytes behind the headers of IP.
fn payload(headers: &Headers<'_>, packet: &Packet) -> Option<usize> {
    let (l3, l4) = (usize::from(packet.l3), usize::from(packet.l4));
    let end = match packet.v6 {
        true => l3 + 40 + usize::from(headers.u16(l3 + 4).ok()?),
        false => l3 + usize::from(headers.u16(l3 + 2).ok()?),
    };
    end.checked_sub(l4)
}

/// Writes the IP header of an answer, and the checksum of the message behind.
fn finish(ip: &mut [u8], packet: &Packet, protocol: u8, network: usize) {
    let len = ip.len();
    // From the packet's destination to the packet's source.
    let (from, to) = (packet.to, packet.from);
    if packet.v6 {
        ip[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 0, protocol, HOPS]);
        ip[4..6].copy_from_slice(&((len - network) as u16).to_be_bytes());
        ip[8..24].copy_from_slice(&from.to_be_bytes());
        ip[24..40].copy_from_slice(&to.to_be_bytes());
    } else {
        // Not to be fragmented, so without an identification (RFC 6864).
        ip[..12].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, HOPS, protocol, 0, 0]);
        ip[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        ip[12..16].copy_from_slice(&(from as u32).to_be_bytes());
        ip[16..20].copy_from_slice(&(to as u32).to_be_bytes());
        let sum = Sum::of(&ip[..20]).header_checksum();
        ip[10..12].copy_from_slice(&sum);
    }
    let sum_at = network + if protocol == TCP { 16 } else { 2 };
    let addresses = if packet.v6 { &ip[8..40] } else { &ip[12..20] };
    let pseudo = Sum::of(addresses).word(protocol.into()).word((len - network) as u16);
    // ICMP for IPv4 has no pseudo-header.
    let pseudo = if protocol == ICMP { Sum::ZERO } else { pseudo };
    let sum = pseudo.plus(Sum::of(&ip[network..])).checksum();
    ip[sum_at..sum_at + 2].copy_from_slice(&sum);
}
