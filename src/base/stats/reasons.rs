//! The reasons for a drop: one table of names, sentences and advice, for logs, metrics, the control
//! socket, findings, traces and `docs/counters.md`.
//!
//! The sentence about a reason is about one frame, as a trace shows the sentence, and about all
//! frames of a counter: places such as `{port:the sending port}` have the name of a port in a
//! trace, and otherwise their default. A reason that is the state of a port has the sentence of
//! [`PortState`].

use super::{Direction, PortState};
use crate::words::fill;

macro_rules! drop_reasons {
    ($($name:ident, $text:literal, $place:literal, $sentence:expr, $advice:literal;)*) => {
        /// Reason why the switch dropped a frame, or a copy of a frame.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum DropReason { $(#[doc = concat!("Counted as `", $text, "`.")] $name,)* }

        impl DropReason {
            /// All reasons, in the order of their discriminants.
            pub const ALL: &'static [DropReason] = &[$(DropReason::$name,)*];

            /// Returns the name in logs and metrics.
            pub const fn name(self) -> &'static str {
                match self { $(DropReason::$name => $text,)* }
            }

            /// Returns the places where the reason is counted: lines `in` or `out` of a queue, or
            /// the line of the port.
            const fn place(self) -> &'static str {
                match self { $(DropReason::$name => $place,)* }
            }

            /// Returns the sentence about the reason, with places for facts.
            pub const fn sentence(self) -> &'static str {
                match self { $(DropReason::$name => $sentence,)* }
            }

            /// Returns the advice to an operator.
            pub const fn advice(self) -> &'static str {
                match self { $(DropReason::$name => $advice,)* }
            }
        }
    };
}

// Variant, name in the log, places of the count, sentence, advice.
drop_reasons! {
    BadAddress, "bad_address", "in",
    "a transmit descriptor points outside the guest's memory",
    "a broken or hostile driver, or a part of the guest's memory is private: vioswitchctl doctor \
     NAME";

    BadChain, "bad_chain", "in",
    "a loop, too many descriptors, or a malformed indirect table on the transmit ring",
    "a broken or hostile driver";

    BadDirection, "bad_direction", "in",
    "a transmit descriptor that the device may write",
    "a broken or hostile driver";

    TooShort, "too_short", "in",
    "the frame has no room for the virtio-net and Ethernet headers",
    "a broken or hostile driver";

    TooLong, "too_long", "in",
    "the frame is longer than 65,557 bytes",
    "a broken or hostile driver, or peer of a stream";

    BadOffload, "bad_offload", "in, out",
    "the frame's offload was not negotiated, or contradicts the frame's headers",
    "a broken or hostile driver: try offload=off";

    BadSource, "bad_source", "in",
    "{mac:the source address} is zero or a group address",
    "look at the frames of the guest";

    Reserved, "reserved", "in",
    "a bridge must not forward frames for {mac:01:80:c2:00:00:00 to 0f}",
    "nothing, or pass= at both ports";

    Hairpin, "hairpin", "in",
    "{mac:the destination} is behind the port that the frame came from",
    "nothing, if the guest bridges";

    Vlan, "vlan", "in, port",
    "{port:the sending or the receiving port} has {own:other VLANs}: {frame:the frame} does not \
     pass",
    "compare vlan, trunk and native of both ports: vioswitchctl why NAME NAME";

    AdminDown, "admin_down", "in",
    PortState::Disabled.sentence(),
    "vioswitchctl port set NAME admin=up";

    Guard, "guard", "in",
    "guard=on at {port:the sending port}: {why:the sender's addresses are not the port's, the \
     frame is a server's, or its headers cannot be read}",
    "compare the sender's addresses with mac and allowed-ips: vioswitchctl port show NAME";

    Filter, "filter", "in, port",
    "{rule:a rule of the sending port's filters, or of the receiving port's,} drops the packet",
    "compare the packet with the filters of both ports: vioswitchctl port show NAME";

    Observer, "observer", "in",
    "{port:the sending port} gets the copies of {mirror:a mirror}, and nothing else",
    "nothing; its mirrors: vioswitchctl mirror list";

    Mirror, "mirror", "port, out",
    "a mirror's copy: the observer had no free buffer, was not ready, or was in use",
    "larger rings for the observer, a snaplen, or a mirror of one direction";

    UplinkToUplink, "uplink_to_uplink", "in",
    "{port:the receiving port} and {other:the sending port} are uplinks, and uplink-to-uplink is \
     off",
    "--uplink-to-uplink, if the uplinks form no loop";

    Isolated, "isolated", "in",
    "{port:the receiving port} and {other:the sending port} have isolated=on",
    "for one of the ports: vioswitchctl port set NAME isolated=off";

    NoReceiver, "no_receiver", "in",
    "no other port may receive the flood, or is in the group; or a report of a group, and no port \
     has multicast-router=on",
    "nothing";

    Querier, "querier", "in",
    "{port:a port} with multicast-router=off sends a query of IGMP or MLD, or a multicast router's \
     message",
    "if multicast routers may be behind the port: vioswitchctl port set NAME multicast-router=on";

    Membership, "membership", "in",
    "a message of IGMP or MLD is in fragments, malformed, or for another Ethernet address",
    "look at these messages: vioswitchctl capture NAME --drops";

    Disabled, "disabled", "in",
    "the front-end disabled the transmit ring",
    "nothing while a VM is paused or resumed";

    PortDown, "port_down", "port, out",
    // States of a port and of its rings, so no sentence of a state.
    "no front-end is connected, or no enabled receive ring has its memory and ever held a buffer",
    "start the VM, or its network driver";

    NoBuffer, "no_buffer", "out",
    "the receiver had no free buffer, or the sender's share was used up, longer than back-pressure \
     lasts",
    "the receiver is overloaded: larger rings (rx_queue_size=1024), more queue pairs, more CPU";

    SlowMemory, "slow_memory", "out",
    "the receiver's buffers lie on pages that the kernel provides slowly",
    "the VM's memory is sparse or being reclaimed: prealloc=on";

    NoFit, "no_fit", "out",
    "the frame does not fit the receiver's buffers",
    "mergeable buffers for the guest's driver: mrg_rxbuf=on";

    TooBig, "too_big", "port",
    "{packet:the packet is} too long for {mtu:the MTU of the receiving port}",
    "make the MTUs agree: vioswitchctl port set NAME mtu=NUMBER";

    Rate, "rate", "port",
    "rate-out was used up, and the frame could not wait: a flood, a frame from a TAP or stream, of \
     a sender that sends to other ports too, or behind 10 ms of the rate",
    "a higher rate-out or burst-out";

    Storm, "storm", "in",
    "the port's storm limit was used up",
    "a loop, or a guest that scans: vioswitchctl capture NAME; or a higher storm=";

    RingBroken, "ring_broken", "out",
    "the receiver's ring is broken until its driver restarts it",
    "the log says why; reset the guest";

    RingBusy, "ring_busy", "port",
    "another worker or the session held the receiver's ring for too long",
    "the VM's memory is sparse or being reclaimed: prealloc=on; or too few CPUs: fewer workers, \
     and cpus=";

    TapFull, "tap_full", "out",
    "the TAP's queue is full, or the kernel is out of memory",
    "the host is overloaded: tc -s qdisc show dev IFNAME";

    TapDown, "tap_down", "out",
    PortState::Down.sentence(),
    "ip link set IFNAME up";

    TapGone, "tap_gone", "port, out",
    PortState::Gone.sentence(),
    "make the interface again";

    TapRejected, "tap_rejected", "in, out",
    "the kernel refused the frame, on the way to a TAP or from a TAP",
    "nothing, for single frames";

    XdpFull, "xdp_full", "in, out",
    "in: the kernel had no room, or the frame is longer than 3,840 bytes; out: the kernel had no \
     room, or the interface has a full queue or no carrier",
    "in: the worker has too little CPU, or gro and large MTUs beyond the interface; out: ip -s \
     link show IFNAME";

    XdpDown, "xdp_down", "out",
    PortState::Down.sentence(),
    "ip link set IFNAME up";

    XdpGone, "xdp_gone", "port, out",
    PortState::Gone.sentence(),
    "make the interface again";

    XdpRejected, "xdp_rejected", "out",
    "the kernel refused the frame, or the frame is longer than 4,084 bytes",
    "make the MTUs agree: ip link set IFNAME mtu NUMBER";

    StreamFull, "stream_full", "out",
    "64 KiB, or a full queue of datagrams, wait for the stream's peer",
    "the process at the other end is slow, or stopped";

    StreamGone, "stream_gone", "port, out",
    PortState::Listening.sentence(),
    "start the process at the other end";

    FloodBusy, "flood_busy", "in",
    "an earlier flood of the port made no progress for 10 ms, as a receiver's memory made the \
     flood wait",
    "the log names the receiver; memory for this VM: prealloc=on";

    Panicked, "panicked", "in, port",
    "a worker panicked in the middle of the burst",
    "report this bug with the log";
}

impl DropReason {
    /// Returns the meaning of a counter of the reason.
    pub fn meaning(self) -> String {
        fill(self.sentence(), |place| self.fact(place).map(str::to_owned))
    }

    /// Returns the words that a counter of the reason has in the sentence about a state, if they
    /// are not the state's own.
    fn fact(self, place: &str) -> Option<&'static str> {
        use DropReason as Is;
        Some(match (self, place) {
            (Is::AdminDown, "port") => "the sending or the receiving port",
            (Is::TapDown | Is::TapGone, "its") => "the TAP's",
            (Is::XdpDown | Is::XdpGone, "its") => "the XDP uplink's",
            (Is::StreamGone, "peer") => "process",
            (Is::StreamGone, "port") => "the stream",
            _ => return None,
        })
    }

    /// Returns true if no healthy guest causes drops of the reason, and no finding other than
    /// `frames-refused` covers these drops.
    pub const fn is_refusal(self) -> bool {
        use DropReason as Is;
        let is_broken = matches!(self, Is::BadOffload | Is::BadChain | Is::BadDirection);
        let is_odd = matches!(self, Is::BadSource | Is::TooShort | Is::TooLong | Is::NoFit);
        is_broken || is_odd || matches!(self, Is::Guard | Is::Storm)
    }

    /// Returns true if the receiver takes frames slower than they arrive.
    pub const fn is_want_of_room(self) -> bool {
        let full =
            matches!(self, DropReason::TapFull | DropReason::XdpFull | DropReason::StreamFull);
        full || matches!(self, DropReason::NoBuffer)
    }

    /// Returns true if a port counts drops of this reason in this direction. Frames dropped before
    /// a queue is chosen count as out.
    pub fn is_counted(self, way: Direction) -> bool {
        let mut places = self.place().split(", ");
        places.any(|place| place == way.name() || (place == "port" && way == Direction::Out))
    }
}

#[cfg(test)]
mod tests {
    use testkit::manual::hold_table;

    use super::*;

    const FROM: &str = "<!-- UPDATE_DOCS: src/base/stats/reasons.rs -->";

    #[test]
    fn names_are_unique_and_indices_match() {
        for (i, &a) in DropReason::ALL.iter().enumerate() {
            assert_eq!(a as usize, i);
            assert!(DropReason::ALL[..i].iter().all(|b| b.name() != a.name()));
            assert!(Direction::ALL.iter().any(|way| a.is_counted(*way)), "{a:?}");
        }
    }

    #[test]
    fn the_page_of_counters_has_the_table() {
        let mut made = "drop (where) | meaning | what to do\n---|---|---\n".to_owned();
        for reason in DropReason::ALL {
            let (place, name) = (reason.place(), reason.name());
            let (meaning, advice) = (reason.meaning(), reason.advice());
            made += &format!("`{name}` ({place}) | {meaning} | {advice}\n");
        }
        hold_table("docs/counters.md", FROM, &made);
    }
}
