//! The host: a network stack that is a member of groups by IGMPv2 and MLDv1, in which members hear
//! each other's reports, with programs that read all other messages.

use std::collections::HashMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use testkit::SOON;
use testkit::host::{index_of, ip};
use testkit::proc::wait_for;

use super::super::host::{HOST, HOST_6, HOST_MAC, Read, Socket, UPLINK, named, set};
use super::super::messages::ANY;
use super::messages::{
    ALL_ROUTERS, ALL_SNOOPERS, Effect, GROUPS, IGMP_ROUTERS, Said, group, group_6, link_group,
};

/// What the kernel knows of a membership.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct State {
    /// The host is going to report.
    is_pending: bool,
    /// The host was the last one to report.
    is_reporter: bool,
}

const IDLE: State = State { is_pending: false, is_reporter: true };

pub struct Member {
    pub read: Read,
    _memberships: UdpSocket,
    _memberships_6: UdpSocket,
}

/// The state of each membership of the host.
fn states() -> HashMap<IpAddr, State> {
    let read = |name: &str| {
        let path = format!("/proc/thread-self/net/{name}");
        fs::read_to_string(&path).expect("the kernel's memberships")
    };
    let mut states = HashMap::new();
    // Interfaces begin a line; their groups have lines of their own.
    for line in read("igmp").lines().filter(|line| line.starts_with('\t')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [group, _, timer, reporter] = words[..] else { continue };
        let group = u32::from_str_radix(group, 16).expect("a group").to_ne_bytes();
        let is_pending = timer.starts_with("1:");
        states.insert(group.into(), State { is_pending, is_reporter: reporter == "1" });
    }
    for line in read("igmp6").lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, name, group, _, flags, ..] = words[..] else { continue };
        if name == UPLINK {
            let group = u128::from_str_radix(group, 16).expect("a group");
            let flags = u32::from_str_radix(flags, 16).expect("flags");
            let state = State { is_pending: flags & 1 != 0, is_reporter: flags & 2 != 0 };
            states.insert(Ipv6Addr::from_bits(group).into(), state);
        }
    }
    states
}

/// Whether a packet of IPv4 has a message about groups.
fn is_igmp(packet: &[u8]) -> bool {
    let header = usize::from(packet.first().copied().unwrap_or_default() & 0xf) * 4;
    matches!(packet.get(header), Some(0x11 | 0x12 | 0x16 | 0x17 | 0x22 | 0x30..=0x32))
}

/// Whether a message of ICMPv6 is one about groups.
fn is_mld(message: &[u8]) -> bool {
    matches!(message.first(), Some(130..=132 | 143 | 151..=153))
}

impl Member {
    /// The host behind the TAP, which is there already.
    pub fn new() -> Member {
        let exists = || index_of(UPLINK).is_some();
        assert!(wait_for(SOON, exists), "no interface {UPLINK}");
        for (name, value) in [
            (format!("ipv6/conf/{UPLINK}/accept_dad"), "0"),
            (format!("ipv6/conf/{UPLINK}/router_solicitations"), "0"),
            (format!("ipv6/conf/{UPLINK}/accept_source_route"), "1"),
            (format!("ipv6/conf/{UPLINK}/force_mld_version"), "1"),
            (format!("ipv6/conf/{UPLINK}/disable_ipv6"), "0"),
            (format!("ipv4/conf/{UPLINK}/force_igmp_version"), "2"),
            (format!("ipv4/conf/{UPLINK}/accept_source_route"), "1"),
            ("ipv4/conf/all/accept_source_route".into(), "1"),
            ("ipv4/conf/all/rp_filter".into(), "0"),
            (format!("ipv4/conf/{UPLINK}/rp_filter"), "0"),
            ("ipv4/igmp_max_memberships".into(), "1000"),
            ("ipv4/ipfrag_time".into(), "1"),
            ("ipv6/ip6frag_time".into(), "1"),
        ] {
            set(&name, value);
        }
        ip(&format!("link set {UPLINK} address {} mtu 9000", named(HOST_MAC)));
        ip(&format!("address add {HOST}/16 dev {UPLINK}"));
        ip(&format!("address add {HOST_6}/64 dev {UPLINK} nodad"));
        ip(&format!("link set {UPLINK} up"));
        let memberships = UdpSocket::bind(("0.0.0.0", 0)).expect("a socket");
        let join = |group: Ipv4Addr| memberships.join_multicast_v4(&group, &HOST);
        let groups = (0..GROUPS).map(group).chain([ALL_ROUTERS, ALL_SNOOPERS, IGMP_ROUTERS]);
        groups.for_each(|group| join(group).expect("a membership"));
        let memberships_6 = UdpSocket::bind(("::", 0)).expect("a socket");
        let index = index_of(UPLINK).expect("the interface");
        let join = |group: Ipv6Addr| memberships_6.join_multicast_v6(&group, index);
        let groups = (0..GROUPS).map(group_6).chain([2, 0x16, 0x6a].map(link_group));
        groups.for_each(|group| join(group).expect("a membership"));
        let sockets = vec![
            Socket::raw(libc::AF_INET, ANY),
            Socket::raw(libc::AF_INET, libc::IPPROTO_IGMP as u8).for_some(is_igmp),
            Socket::raw(libc::AF_INET6, libc::IPPROTO_ICMPV6 as u8).for_some(is_mld),
        ];
        Member { read: Read::by(sockets), _memberships: memberships, _memberships_6: memberships_6 }
    }

    /// Whether the host has answered, and waits for nothing.
    pub fn is_idle(&self) -> bool {
        let states = states();
        let groups = (0..GROUPS).flat_map(|slot| [group(slot).into(), group_6(slot).into()]);
        groups.into_iter().all(|group: IpAddr| states.get(&group) == Some(&IDLE))
    }

    /// Which of these messages the host has obeyed.
    pub fn obeyed(&mut self, said: &[Said]) -> Vec<bool> {
        self.read.update();
        let states = states();
        let obeyed = |one: &Said| {
            let group =
                if one.kind.is_v4() { group(one.slot).into() } else { group_6(one.slot).into() };
            let state = states[&group];
            match one.kind.effect() {
                Effect::Suppressed => !state.is_reporter,
                Effect::Asked => state.is_pending,
                Effect::Read => self.read.has(one.number),
            }
        };
        said.iter().map(obeyed).collect()
    }
}
