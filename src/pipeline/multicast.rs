//! Multicast snooping on the data path: which ports a frame of a group reaches, and what is learned
//! from reports and queries.
//!
//! A message is read twice, from a private copy each time: where it goes is decided with the other
//! frames of its burst, and what it says is noted when it is known that the frame stays, as a burst
//! may be given back to its ring and come again. A sender that changes it in between deceives the
//! switch about itself alone.

use core::net::IpAddr;

use super::screen::admit;
use crate::frame::ethernet;
use crate::frame::multicast::{self, Malformed, Message};
use crate::frame::offload::NEEDS_CSUM;
use crate::limits::{BURST_FRAMES, MAX_MEMBERSHIP_MESSAGE_BYTES};
use crate::port::{Port, PortTable};
use crate::ring::Burst;
use crate::switch::{Limited, Noted, Reach, Segment, Snooping};

// A bit for each frame.
const _: () = assert!(BURST_FRAMES <= u64::BITS as usize);

/// What snooping has to do with frames of a burst: bits of their indices.
#[derive(Debug, Default)]
pub struct Snooped {
    messages: u64,
    limited: u64,
    /// The last group, and how its frames are limited: bursts are mostly one stream.
    last: Option<((Segment, IpAddr), Option<Limited>)>,
}

impl Snooped {
    /// Which ports frame `index` of the burst reaches.
    #[inline(never)]
    pub fn reach(
        &mut self,
        snooping: Option<&Snooping>,
        (burst, index): (&Burst, usize),
        (may_query, segment): (bool, Segment),
        now: u32,
    ) -> Reach {
        let Some(snooping) = snooping else { return Reach::All };
        let frame = &burst.frames()[index];
        if !matches!(ethernet::destination(&frame.snapshot).0, [1, 0, 0x5e, ..] | [0x33, 0x33, ..])
        {
            return Reach::All;
        }
        if !multicast::is_of_vlan(&frame.snapshot, segment.vlan()) {
            return Reach::All;
        }
        if multicast::may_be_message(&frame.snapshot) {
            let mut room = [0; MAX_MEMBERSHIP_MESSAGE_BYTES];
            let (bytes, message) = read(burst, index, &mut room);
            self.messages |= u64::from(message != Ok(None)) << index;
            if let Some(reach) = snooping.reach(segment, (bytes, message), may_query, now) {
                return reach;
            }
        }
        let Some(group) = multicast::group(&frame.snapshot, frame.len) else { return Reach::All };
        let known = self.last.filter(|(of, _)| *of == (segment, group));
        let (_, limited) = *self.last.insert(
            known.unwrap_or_else(|| ((segment, group), snooping.limited(segment, group, now))),
        );
        self.limited |= u64::from(limited.is_some()) << index;
        limited.map_or(Reach::All, Reach::Members)
    }

    /// Notes what the messages of a burst say, and counts, as far as its frames stay.
    #[inline(never)]
    pub fn note(
        &mut self,
        snooping: &Snooping,
        burst: &Burst,
        (ports, port): (&PortTable, &Port),
        now: u32,
    ) {
        let Snooped { messages, limited, .. } = std::mem::take(self);
        if messages | limited == 0 {
            return;
        }
        let stays = |at: &usize| *at < burst.frames().len();
        let count =
            |bits: u64| (0..BURST_FRAMES).filter(stays).filter(move |at| bits >> at & 1 != 0);
        port.stats.multicast_limited.add_shared(count(limited).count() as u64);
        for index in count(messages) {
            note_message(snooping, burst, index, (ports, port), now);
        }
    }
}

#[inline(never)]
fn note_message(
    snooping: &Snooping,
    burst: &Burst,
    index: usize,
    (ports, port): (&PortTable, &Port),
    now: u32,
) {
    let (mut room, asked) = ([0; MAX_MEMBERSHIP_MESSAGE_BYTES], ports.policy(port.id));
    // Never an error: the frame came in before.
    let Ok(vlan) = admit(asked, &burst.frames()[index]) else { return };
    let segment = asked.segment(vlan);
    let (_, message) = read(burst, index, &mut room);
    let is_report = matches!(message, Ok(Some(Message::Report(_))));
    let noted = match message {
        Ok(Some(Message::Query(query))) if asked.may_route(port.kind()) => {
            snooping.query(segment, port.id, &query, now)
        }
        Ok(Some(Message::Report(report))) => {
            snooping.report(segment, port.id, report.joined(), now)
        }
        Ok(_) => Noted::Ignored,
        Err(Malformed) => return port.stats.multicast_malformed.add_shared(1),
    };
    port.stats.multicast_messages.add_shared(1);
    match noted {
        Noted::Full | Noted::Busy => port.stats.multicast_refused.add_shared(1),
        Noted::Yes | Noted::Ignored => return,
    }
    // Until it is asked again it is not known what it is a member of. After a query that is not
    // noted nothing is missing: no answer is waited for.
    if is_report {
        port.begin();
    }
}

/// Reads a frame from a private copy.
fn read<'r>(
    burst: &Burst,
    index: usize,
    room: &'r mut [u8; MAX_MEMBERSHIP_MESSAGE_BYTES],
) -> (&'r [u8], Result<Option<Message<'r>>, Malformed>) {
    let len = burst.egress(index as u8).copy_beginning(room);
    let summed = burst.frames()[index].header.flags & NEEDS_CSUM == 0;
    let bytes = &room[..len];
    (bytes, multicast::parse(bytes, summed))
}
