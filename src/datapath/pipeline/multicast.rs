//! Multicast snooping on the data path: the ports that a group's frame reaches, and learning from
//! reports and queries.
//!
//! All frames of a burst are searched for IGMP and MLD messages before the first frame is
//! forwarded. The search ignores the Ethernet destination, because a receiver recognizes a message
//! by its IP headers. Bytes that are read become private, and are delivered from the private copy
//! ([`Burst::headers`], [`Burst::message`]). A burst may be given back to its ring and taken again,
//! so a message is noted only when its frame is known to stay.

use core::net::IpAddr;

use super::screen::admit;
use crate::port::{Port, PortTable};
use crate::ring::{Burst, Frame};
use base::frame::ethernet;
use base::frame::multicast::{self, Message, Part, Refused};
use base::frame::offload::NEEDS_CSUM;
use base::limits::BURST_FRAMES;
use base::stats::DropReason;
use switch::multicast::reach;
use switch::{Limited, Noted, Reach, Segment, Snooping};

// One bit for each frame.
const _: () = assert!(BURST_FRAMES <= u64::BITS as usize);

/// Frames of a burst that concern snooping, as bits of their indices.
#[derive(Debug, Default)]
pub(crate) struct Snooped {
    /// Reports, for ports with routers, and queries, for all ports.
    reports: u64,
    queries: u64,
    /// Messages to drop: from queriers where none is permitted, and malformed messages.
    no_querier: u64,
    malformed: u64,
    /// Messages that are noted when their frames stay, and frames of limited groups.
    messages: u64,
    limited: u64,
    /// The last group and its limit: most bursts are one stream.
    last: Option<((Segment, IpAddr), Option<Limited>)>,
}

impl Snooped {
    /// Begins a burst from `port`, and finds its messages if snooping is on. Returns the messages
    /// to drop, as bits of their frames' indices.
    #[inline(never)]
    pub(crate) fn find(&mut self, burst: &mut Burst, ports: &PortTable, port: &Port) -> u64 {
        *self = Snooped::default();
        let policy = ports.policy(port.id);
        if ports.snooping().is_none() || !policy.forwards || policy.observes {
            return 0;
        }
        let may_query = policy.may_route(port.kind());
        let may_be = |frame: &Frame| u64::from(multicast::may_be_message(&frame.snapshot));
        let frames = burst.frames().iter().rev();
        let mut left = frames.fold(0, |bits, frame| bits << 1 | may_be(frame));
        while left != 0 {
            self.look(burst, left.trailing_zeros() as usize, may_query);
            left &= left - 1;
        }
        self.no_querier | self.malformed
    }

    #[inline(never)]
    fn look(&mut self, burst: &mut Burst, index: usize, may_query: bool) {
        let bits = match read(burst, index, |message| reach(&message, may_query)) {
            Ok(None | Some(Reach::Members(_))) => return,
            Ok(Some(Reach::Routers)) => &mut self.reports,
            Ok(Some(Reach::All)) => &mut self.queries,
            Err(DropReason::Querier) => &mut self.no_querier,
            Err(_) => &mut self.malformed,
        };
        *bits |= 1 << index;
    }

    /// Returns why frame `index` is dropped. `guards` has the bits of frames that port security
    /// refused, `filters` those that the port's filter refused; the frame is one of these, or
    /// snooping refused the frame.
    #[cold]
    pub(crate) fn refused(&self, index: usize, guards: u64, filters: u64) -> DropReason {
        match (guards >> index & 1, filters >> index & 1, self.no_querier >> index & 1) {
            (1, ..) => DropReason::Guard,
            (_, 1, _) => DropReason::Filter,
            (.., 1) => DropReason::Querier,
            _ => DropReason::Membership,
        }
    }

    /// Returns the ports that frame `index` of the burst reaches.
    #[inline(never)]
    pub(crate) fn reach(
        &mut self,
        snooping: Option<&Snooping>,
        frame: &Frame,
        index: usize,
        segment: Segment,
        now: u32,
    ) -> Reach {
        let Some(snooping) = snooping else { return Reach::All };
        let (bit, is_of_vlan) =
            (1 << index, multicast::is_of_vlan(&frame.snapshot, segment.vlan()));
        if (self.reports | self.queries) & bit != 0 {
            // A message with another VLAN tag is from other hosts, and is not noted.
            self.messages |= if is_of_vlan { bit } else { 0 };
            return if self.reports & bit != 0 { Reach::Routers } else { Reach::All };
        }
        let to = ethernet::destination(&frame.snapshot);
        if !matches!(to.0, [1, 0, 0x5e, ..] | [0x33, 0x33, ..]) || !is_of_vlan {
            return Reach::All;
        }
        let Some(group) = multicast::group(&frame.snapshot, frame.len) else { return Reach::All };
        let known = self.last.filter(|(of, _)| *of == (segment, group));
        let (_, limited) = *self.last.insert(
            known.unwrap_or_else(|| ((segment, group), snooping.limited(segment, group, now))),
        );
        self.limited |= u64::from(limited.is_some()) << index;
        limited.map_or(Reach::All, Reach::Members)
    }

    /// Notes the messages, and counts the frames of limited groups, of the frames that stay in the
    /// burst.
    #[inline(never)]
    pub(crate) fn note(
        &mut self,
        snooping: &Snooping,
        burst: &mut Burst,
        (ports, port): (&PortTable, &Port),
        now: u32,
    ) {
        let Snooped { messages, limited, .. } = std::mem::take(self);
        if messages | limited == 0 {
            return;
        }
        let frames = burst.frames().len();
        let count = |bits: u64| (0..frames).filter(move |at| bits >> at & 1 != 0);
        port.stats.multicast_limited.add_shared(count(limited).count() as u64);
        for index in count(messages) {
            note_message(snooping, burst, index, (ports, port), now);
        }
    }
}

#[inline(never)]
fn note_message(
    snooping: &Snooping,
    burst: &mut Burst,
    index: usize,
    (ports, port): (&PortTable, &Port),
    now: u32,
) {
    let policy = ports.policy(port.id);
    // Never an error, since the frame was admitted before.
    let Ok(vlan) = admit(policy, &burst.frames()[index]) else { return };
    let segment = policy.segment(vlan);
    let (noted, is_report) = read(burst, index, |message| match message {
        Ok(Some(Message::Query(query))) => (snooping.query(segment, port.id, &query, now), false),
        Ok(Some(Message::Report(report))) if report.is_unread() => (Noted::Full, true),
        Ok(Some(Message::Report(report))) => {
            (snooping.report(segment, port.id, report.joined(), now), true)
        }
        _ => (Noted::Ignored, false),
    });
    port.stats.multicast_messages.add_shared(1);
    match noted {
        Noted::Full | Noted::Busy => port.stats.multicast_refused.add_shared(1),
        Noted::TooMany => port.stats.multicast_too_many.add_shared(1),
        Noted::Yes | Noted::Ignored => return,
    }
    // A report that is not noted leaves the memberships of the port unknown until the next query,
    // so the port counts as new until then. A query that is not noted needs no such step, since no
    // answer is expected.
    if is_report {
        port.begin();
    }
}

/// Reads as much of frame `index` as the parser needs, and passes the result to `says`.
fn read<T>(
    burst: &mut Burst,
    index: usize,
    says: impl FnOnce(Result<Option<Message<'_>>, Refused>) -> T,
) -> T {
    let frame = &burst.frames()[index];
    let (len, request) = (frame.len as usize, frame.request());
    let has_sum = burst.needs_offloads() && request.header.flags & NEEDS_CSUM != 0;
    let sum_at = has_sum.then(|| request.csum_at());
    let mut refused = None;
    // First the snapshot, then the first bytes, then the whole frame.
    for _ in 0..3 {
        let bytes = match refused {
            None => Some(burst.frames()[index].head()),
            Some(Refused::Short) => burst.headers(index),
            _ => burst.message(index),
        };
        let Some(bytes) = bytes else { break };
        match multicast::parse(&Part { bytes, len, sum_at }) {
            Err(more @ (Refused::Short | Refused::Whole)) => refused = Some(more),
            known => return says(known),
        }
    }
    says(Err(Refused::Malformed))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use base::frame::samples;

    use super::*;
    use crate::ring::tests::{DATA, Guest, desc, describe, offer};

    /// A report of IGMPv3 with 60 records, and a report of MLDv1 behind destination options, both
    /// with padding.
    fn frames() -> [Vec<u8>; 2] {
        let records: Vec<u8> = (0..60).flat_map(|n| [4, 0, 0, 0, 239, 1, 1, n]).collect();
        let message = [&[0x22, 0, 0, 0, 0, 0, 0, 60][..], &records].concat();
        let report = samples::igmp([10, 0, 0, 5], [224, 0, 0, 22], &message);
        let group = [0xff05, 0, 0, 0, 0, 0, 0, 7].into();
        let message = [&[131, 0, 0, 0, 0, 0, 0, 0][..], &[0xff, 5], &[0; 13], &[7]].concat();
        let mut hidden = samples::mld([0xfe80, 0, 0, 0, 0, 0, 0, 5].into(), group, &message);
        (hidden[20], hidden[56]) = (60, 1);
        [report, hidden].map(|mut frame| {
            frame.resize(600, 0);
            frame
        })
    }

    /// Address of frame `n` in the guest's memory.
    fn at(n: usize) -> u64 {
        DATA + 0x1000 * n as u64 + 12
    }

    /// The sender rewrites a message that was read before the message is delivered and noted.
    #[test]
    fn what_was_read_is_what_is_delivered_and_noted() {
        let guest = Guest::new();
        let queue = guest.queue();
        let frames = frames();
        for (n, frame) in frames.iter().enumerate() {
            guest.write(at(n), frame);
            describe(&queue, n as u16, &[desc(at(n) - 12, 12 + 600, 0, 0)]);
            offer(&queue, &[n as u16]);
        }
        let mut burst = Burst::default();
        assert_eq!(guest.start(&queue).take(&mut burst, 64), Ok(2));
        let mut snooped = Snooped::default();
        let ports: PortTable = [Arc::new(Port::guest(0, "a", 1))].into_iter().collect();
        assert_eq!(snooped.find(&mut burst, &ports, &ports[0]), 0, "without snooping");
        let ports = ports.with_snooping(Some(Arc::default()));
        assert_eq!(snooped.find(&mut burst, &ports, &ports[0]), 0b10);
        assert_eq!((snooped.reports, snooped.refused(1, 0, 0)), (0b01, DropReason::Membership));
        (0..2).for_each(|n| guest.write(at(n), &[0xee; 600]));
        let mut bytes = vec![0; 700];
        let len = burst.egress(0).copy_beginning(&mut bytes);
        assert_eq!(bytes[..len], frames[0]);
        let joined = read(&mut burst, 0, |message| match message {
            Ok(Some(Message::Report(report))) => report.joined().count(),
            other => panic!("{other:?}"),
        });
        assert_eq!(joined, 60);
        // A second check reads the private copy.
        assert_eq!(Snooped::default().find(&mut burst, &ports, &ports[0]), 0b10);
    }
}
