//! Where the guard differs from OVN's port security, and why.

use super::frames::{Frame, Profile};
use Direction::{Laxer, Stricter};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Frames are dropped here and pass there.
    Stricter,
    /// They pass here and are dropped there: never one with an address of another.
    Laxer,
}

/// A kind of difference.
pub struct Entry {
    pub direction: Direction,
    pub why: &'static str,
    /// True for frames that it is about.
    of: fn(Profile, &Frame) -> bool,
}

impl Entry {
    pub fn applies(&self, direction: Direction, profile: Profile, frame: &Frame) -> bool {
        let allowed = direction == Stricter || !frame.spoofs;
        self.direction == direction && allowed && (self.of)(profile, frame)
    }
}

/// The first one that applies counts.
pub const LIST: [Entry; 20] = [
    Entry {
        direction: Stricter,
        why: "no server of DHCP, DHCPv6 or router advertisements without allow-server",
        of: |_, frame| frame.is(&["dhcp-server", "dhcpv6-server", "router"]),
    },
    Entry {
        direction: Stricter,
        why: "OVN reads no RARP of a port without IP addresses",
        of: |profile, frame| profile.is_free() && frame.is(&["rarp"]),
    },
    Entry {
        direction: Stricter,
        why: "OVN compares no hardware address of DHCP",
        of: |_, frame| frame.is(&["dhcp"]) && frame.spoofs,
    },
    Entry {
        direction: Stricter,
        why: "DHCP in a fragment, where the hardware address may not be",
        of: |_, frame| frame.is(&["dhcp-fragment"]),
    },
    Entry {
        direction: Stricter,
        why: "IP behind LLC and SNAP, which receivers read or not (CVE-2021-27853)",
        of: |_, frame| frame.is(&["snap"]),
    },
    Entry {
        direction: Stricter,
        why: "other types than IP and ARP need `ethertypes`; OVN passes them of a port without IP \
              addresses",
        of: |profile, frame| profile.is_free() && frame.is(&["ethertype"]),
    },
    Entry {
        direction: Stricter,
        why: "a frame that ends before what is checked",
        of: |_, frame| frame.is(&["cut"]),
    },
    Entry {
        direction: Stricter,
        why: "a header of IP with another version, or that does not hold what it must",
        of: |_, frame| frame.is(&["form"]),
    },
    Entry {
        direction: Stricter,
        why: "neighbour discovery, DHCPv6 and chains of headers in fragments (RFC 6980, 7112)",
        of: |_, frame| frame.is(&["headers"]),
    },
    Entry {
        direction: Stricter,
        why: "options of neighbour discovery that do not add up to the message",
        of: |_, frame| frame.is(&["option-length"]),
    },
    Entry {
        direction: Stricter,
        why: "OVN 23.03 compares link-layer addresses of neighbours' solicitations at hop limit \
              225 only, of routers' and inverse ones never, of advertisements the target's at 255",
        of: |_, frame| {
            let unread = frame.is(&["na"]) && frame.is(&["hop-limit", "other-option"]);
            frame.spoofs && (frame.is(&["ns", "rs", "inverse"]) || unread)
        },
    },
    Entry {
        direction: Stricter,
        why: "from :: a guest looks for addresses of its own only, and gives no link-layer address",
        of: |_, frame| frame.is(&["unspecified"]) && frame.is(&["ns"]),
    },
    Entry {
        direction: Laxer,
        why: "in no VLAN a tag is payload; behind it the same is checked",
        of: |_, frame| frame.is(&["tag"]),
    },
    Entry {
        direction: Laxer,
        why: "with IP addresses OVN passes IPv4, IPv6 and ARP alone",
        of: |profile, frame| !profile.is_free() && frame.is(&["rarp"]),
    },
    Entry {
        direction: Laxer,
        why: "an ARP probe for an address of its own (RFC 5227)",
        of: |profile, frame| profile.v4 && frame.is(&["probe"]),
    },
    Entry {
        direction: Laxer,
        why: "any link-local address (RFC 7217), not only the one made from the MAC address",
        of: |_, frame| frame.is(&["other-link-local"]),
    },
    Entry {
        direction: Laxer,
        why: "OVN 23.03 wants hop limit 225 of a neighbour's advertisement for a link-local \
              address, and for any of a port without IP addresses",
        of: |profile, frame| {
            frame.is(&["na"]) && (profile.is_free() || frame.is(&["about-link-local"]))
        },
    },
    Entry {
        direction: Laxer,
        why: "an advertisement of its own with two options of a kind, of which Open vSwitch reads \
              none, or with a code, which receivers drop (RFC 4861)",
        of: |_, frame| frame.is(&["na"]) && frame.is(&["two-options", "code"]),
    },
    Entry {
        direction: Laxer,
        why: "from :: to a group: routers' solicitations (RFC 4861), the end of listening and \
              groups of a wider scope than the link (RFC 2710)",
        of: |_, frame| frame.is(&["unspecified"]) && frame.is(&["ns", "rs", "mld"]),
    },
    Entry {
        direction: Laxer,
        why: "with its own source, but cut or of a wrong length: OVN reads no source of it, its \
              receiver drops it",
        of: |_, frame| frame.is(&["cut", "form"]),
    },
];
