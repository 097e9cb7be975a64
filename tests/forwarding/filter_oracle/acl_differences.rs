//! Where filters differ from OVN's ACLs over the tracking of connections of Open vSwitch 3.1, and
//! why.

use super::differences::{Case, Direction::Laxer, Direction::Stricter, Entry, MESSAGES};
use super::flows::{About, SENSELESS, What};
use super::packets::{ACK, FIN, RST, SYN, URG};

impl Case<'_> {
    /// True for a segment of the end that did not begin.
    fn is_second(&self) -> bool {
        self.segment().is_some_and(|(first, _)| !first)
    }

    /// True if no SYN and ACK has answered the SYN of a connection.
    fn is_unanswered(&self) -> bool {
        let past = self.past();
        let answers = |&(first, flags): &(bool, u8)| !first && flags & SYN != 0 && flags & ACK != 0;
        past.first().is_some_and(|(_, flags)| flags & SYN != 0) && !past.iter().any(answers)
    }
}

/// The first one that applies counts.
pub const LIST: &[Entry] = &[
    MESSAGES,
    Entry {
        direction: Laxer,
        why: "Open vSwitch misses the connection of some errors of ICMPv6",
        of: |case| {
            let is_error = matches!(case.packet.event.what, What::Error(_, About::Flow));
            is_error && case.packet.ip.from.is_ipv6()
        },
    },
    Entry {
        direction: Laxer,
        why: "a query of ICMP may have a code; Open vSwitch tracks none of those",
        of: |case| {
            let what = case.packet.event.what;
            matches!(what, What::Request(code) | What::Reply(code) if code != 0)
        },
    },
    Entry {
        direction: Stricter,
        why: "a SYN with ACK of the end that began is not of an open connection",
        of: |case| case.has(SYN | ACK) && !case.is_second(),
    },
    Entry {
        direction: Stricter,
        why: "a reset before any answer removes the connection",
        of: |case| case.is_reset_unanswered(),
    },
    Entry {
        direction: Laxer,
        why: "the urgent flag is not looked at; Open vSwitch refuses it without ACK",
        of: |case| case.has(URG) && !case.has(ACK),
    },
    Entry {
        direction: Stricter,
        why: "urgent data in a SYN with ACK, or in a reset, has no meaning",
        of: |case| case.has(URG) && (case.has(SYN) || case.has(RST)),
    },
    Entry {
        direction: Laxer,
        why: "both ends may begin at once",
        of: |case| case.has(SYN) && case.is_second() && case.is_unanswered(),
    },
    Entry {
        direction: Stricter,
        why: "a SYN of the end that did not begin is not of an open connection",
        of: |case| case.has(SYN) && case.is_second() && !case.is_unanswered(),
    },
    Entry {
        direction: Stricter,
        why: "a FIN or a reset begins no connection",
        of: |case| (case.has(FIN) || case.has(RST)) && case.flow.began_out().is_none(),
    },
    Entry {
        direction: Stricter,
        why: "segments with senseless flags are dropped",
        of: |case| case.segment().is_some_and(|(_, flags)| SENSELESS.contains(&flags)),
    },
    Entry {
        direction: Stricter,
        why: "a SYN is answered before its connection goes on",
        of: |case| case.segment().is_some() && case.is_unanswered(),
    },
];
