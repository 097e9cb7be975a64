//! Frames of a guest, by a seed: honest ones, those with the address of another in any of the
//! places where there is one, and broken ones.

use std::net::Ipv6Addr;

use testkit::Rng;

const OTHER: u8 = 0x99;
/// Protocols of IP.
const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const FRAGMENT: u8 = 44;
const ICMPV6: u8 = 58;
/// Of a fragment header: one that is not the first.
const LATER: [u8; 6] = [0, 9, 0, 0, 0, 0];

/// A guest's port, and which addresses it may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Profile {
    /// Makes its addresses.
    pub number: u8,
    pub v4: bool,
    pub v6: bool,
}

pub fn mac_of(number: u8) -> [u8; 6] {
    [0x52, 0x54, 0, 0, 0, number]
}

fn v4_of(number: u8) -> [u8; 4] {
    [10, 0, 0, number]
}

fn v6_of(number: u8) -> [u8; 16] {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number.into()).octets()
}

/// The one that follows from the link-layer address (RFC 4291 appendix A).
fn link_local_of(number: u8) -> [u8; 16] {
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0x5054, 0xff, 0xfe00, number.into()).octets()
}

impl Profile {
    /// Any address of IP.
    pub fn is_free(self) -> bool {
        !self.v4 && !self.v6
    }

    pub fn name(self) -> &'static str {
        match (self.v4, self.v6) {
            (false, false) => "free",
            (true, false) => "v4",
            (false, true) => "v6",
            (true, true) => "both",
        }
    }

    pub fn mac(self) -> String {
        mac_of(self.number).map(|octet| format!("{octet:02x}")).join(":")
    }

    pub fn ips(self) -> Vec<String> {
        let v4 = self.v4.then(|| format!("10.0.0.{}", self.number));
        v4.into_iter().chain(self.v6.then(|| format!("fd00::{:x}", self.number))).collect()
    }
}

/// What is special about a frame.
pub type Marks = Vec<&'static str>;

#[derive(Clone, Debug)]
pub struct Frame {
    pub bytes: Vec<u8>,
    pub marks: Marks,
    /// It has an address that is not its port's, as its sender's.
    pub spoofs: bool,
}

impl Frame {
    /// True if it has one of these marks.
    pub fn is(&self, marks: &[&str]) -> bool {
        self.marks.iter().any(|mark| marks.contains(mark))
    }

    /// One that every guest sends, so that it must pass.
    pub fn is_honest(&self) -> bool {
        let usual = ["ns", "na", "about-link-local", "rs", "mld", "dhcp", "other-link-local"];
        !self.spoofs && self.marks.iter().all(|mark| usual.contains(mark))
    }
}

/// Makes one frame.
pub struct Maker<'a> {
    rng: &'a mut Rng,
    profile: Profile,
    marks: Marks,
    spoofs: bool,
    /// Its source of Ethernet does.
    outside: bool,
}

/// A frame that this port may send, whatever else is checked.
pub fn honest(profile: Profile, to: [u8; 6]) -> Vec<u8> {
    let (source, number) = (mac_of(profile.number), profile.number);
    let payload = ipv6(v6_of(number), v6_of(OTHER), 59, &[]);
    let (ethertype, packet) = match profile.v6 {
        true => (0x86dd_u16, payload),
        false => (0x0800, ipv4(v4_of(number), v4_of(OTHER), 253, 0, &[0; 8])),
    };
    [&to[..], &source, &ethertype.to_be_bytes(), &packet].concat()
}

/// Any frame, with a destination of its own.
pub fn any(rng: &mut Rng, profile: Profile, to: [u8; 6]) -> Frame {
    let mut maker = Maker { rng, profile, marks: Marks::new(), spoofs: false, outside: false };
    let source = maker.source();
    let (ethertype, packet) = maker.packet();
    let mut bytes = [&to[..], &source].concat();
    for _ in 0..if maker.one_in(16) { 1 + maker.rng.below(3) } else { 0 } {
        maker.marks.push("tag");
        bytes.extend(*maker.of(&[[0x81, 0, 0, 5], [0x81, 0, 0, 0], [0x88, 0xa8, 0, 5]]));
    }
    bytes.extend(ethertype.to_be_bytes());
    let header = bytes.len();
    bytes.extend(packet);
    if maker.one_in(12) {
        maker.marks.push("cut");
        bytes.truncate(14 + maker.rng.below(bytes.len() as u64 - 14) as usize);
    } else if maker.one_in(2) {
        bytes.resize(bytes.len().max(60), 0);
    }
    // What is cut off is no address.
    let spoofs = maker.outside || (maker.spoofs && bytes.len() > header);
    Frame { bytes, marks: maker.marks, spoofs }
}

fn ipv4(from: [u8; 4], to: [u8; 4], protocol: u8, fragment: u16, rest: &[u8]) -> Vec<u8> {
    let len = (20 + rest.len()) as u16;
    let mut packet = [&[0x45, 0][..], &len.to_be_bytes(), &[0, 1]].concat();
    packet.extend(fragment.to_be_bytes());
    packet.extend([64, protocol, 0, 0]);
    packet.extend([&from[..], &to, rest].concat());
    packet
}

fn ipv6(from: [u8; 16], to: [u8; 16], next: u8, rest: &[u8]) -> Vec<u8> {
    let len = (rest.len() as u16).to_be_bytes();
    [&[0x60, 0, 0, 0], &len[..], &[next, 255], &from, &to, rest].concat()
}

fn udp(from: u16, to: u16, rest: &[u8]) -> Vec<u8> {
    let words = [from, to, 8 + rest.len() as u16, 0];
    [&words.map(u16::to_be_bytes).concat()[..], rest].concat()
}

/// A group, of the link or a wider one.
fn group(scope: u8, last: u8) -> [u8; 16] {
    Ipv6Addr::new(0xff00 | u16::from(scope), 0, 0, 0, 0, 0, 0, last.into()).octets()
}

impl Maker<'_> {
    fn one_in(&mut self, n: u64) -> bool {
        self.rng.below(n) == 0
    }

    fn of<'t, T>(&mut self, list: &'t [T]) -> &'t T {
        &list[self.rng.below(list.len() as u64) as usize]
    }

    fn own(&self) -> [u8; 6] {
        mac_of(self.profile.number)
    }

    /// Of Ethernet.
    fn source(&mut self) -> [u8; 6] {
        if !self.one_in(12) {
            return self.own();
        }
        (self.spoofs, self.outside) = (true, true);
        let mut group = self.own();
        group[0] |= 1;
        *self.of(&[mac_of(OTHER), group, [0xff; 6]])
    }

    /// The sender's inside a frame.
    fn mac(&mut self) -> [u8; 6] {
        let other = self.one_in(4);
        self.spoofs |= other;
        if other { mac_of(OTHER) } else { self.own() }
    }

    fn v4(&mut self) -> [u8; 4] {
        let other = self.one_in(5);
        self.spoofs |= !self.profile.is_free() && (other || !self.profile.v4);
        if other { v4_of(OTHER) } else { v4_of(self.profile.number) }
    }

    /// True for a source of IPv6 that is not the port's.
    fn is_foreign(&self, from: [u8; 16]) -> bool {
        !self.profile.is_free() && (from == v6_of(OTHER) || !self.profile.v6)
    }

    fn v6(&mut self) -> [u8; 16] {
        let number = self.profile.number;
        let address = match self.rng.below(8) {
            0 => v6_of(OTHER),
            1 | 2 => link_local_of(number),
            3 => {
                self.marks.push("other-link-local");
                Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, number.into()).octets()
            }
            _ => v6_of(number),
        };
        self.spoofs |= self.is_foreign(address);
        address
    }

    /// An ethertype and what stands behind it.
    fn packet(&mut self) -> (u16, Vec<u8>) {
        match self.rng.below(16) {
            0..=2 => (0x0806, self.arp()),
            3 => (0x8035, self.rarp()),
            4 => self.other(),
            5 | 6 => (0x0800, self.any_ipv4()),
            7 => (0x0800, self.dhcp_client()),
            8 => (0x0800, self.dhcp_server()),
            9 => (0x86dd, self.any_ipv6()),
            10..=12 => (0x86dd, self.discovery()),
            13 => (0x86dd, self.listener()),
            14 => (0x86dd, self.dhcpv6()),
            _ => (0x86dd, self.router()),
        }
    }

    fn arp(&mut self) -> Vec<u8> {
        let kind: &[u8; 6] = match self.one_in(8) {
            true => {
                self.marks.push("form");
                self.of(&[[0, 6, 8, 0, 6, 4], [0, 1, 8, 0, 8, 4], [0, 1, 0x86, 0xdd, 6, 4]])
            }
            false => &[0, 1, 8, 0, 6, 4],
        };
        let operation = *self.of(&[1, 1, 1, 2, 2, 2, 3, 9]);
        let (mac, from) = (self.mac(), self.v4_or_none("probe"));
        let (number, target) = (self.profile.number, *self.of(&[[0; 6], mac_of(OTHER)]));
        let to = *self.of(&[v4_of(number), v4_of(OTHER)]);
        [&kind[..], &[0, operation], &mac, &from, &target, &to].concat()
    }

    fn v4_or_none(&mut self, mark: &'static str) -> [u8; 4] {
        if !self.one_in(3) {
            return self.v4();
        }
        self.marks.push(mark);
        [0; 4]
    }

    fn rarp(&mut self) -> Vec<u8> {
        self.marks.push("rarp");
        let operation = *self.of(&[3, 3, 3, 4, 1]);
        let (mac, from) = (self.mac(), self.v4_or_none("none"));
        let (target, to) = (self.mac(), self.v4_or_none("none"));
        [&[0, 1, 8, 0, 6, 4, 0, operation][..], &mac, &from, &target, &to].concat()
    }

    /// No protocol with an address, or one that hides behind LLC.
    fn other(&mut self) -> (u16, Vec<u8>) {
        if self.one_in(2) {
            self.marks.push("ethertype");
            return (*self.of(&[0x88b5, 0x88cc, 0x8847, 0x8863]), vec![0x20; 46]);
        }
        self.marks.push("snap");
        let packet = self.any_ipv4();
        let inside = [&[0xaa, 0xaa, 3, 0, 0, 0, 8, 0][..], &packet].concat();
        (inside.len() as u16, inside)
    }

    fn any_ipv4(&mut self) -> Vec<u8> {
        let from = self.v4();
        let protocol = *self.of(&[ICMP, TCP, UDP, UDP, 2, 50, 132]);
        let fragment = *self.of(&[0, 0, 0, 0x4000, 0x2000, 0x2003, 7]);
        let rest = match protocol {
            UDP => udp(5000, 53, &[0; 20]),
            _ => vec![8; 28],
        };
        let mut packet = ipv4(from, v4_of(OTHER), protocol, fragment, &rest);
        self.break_ipv4(&mut packet);
        packet
    }

    fn break_ipv4(&mut self, packet: &mut [u8]) {
        if !self.one_in(8) {
            return;
        }
        self.marks.push("form");
        match self.rng.below(4) {
            0 => packet[0] = *self.of(&[0x65, 0x44, 0x40, 0x55]),
            1 => packet[0] = 0x4f,
            2 => packet[2..4].copy_from_slice(&1500u16.to_be_bytes()),
            _ => packet[2..4].copy_from_slice(&19u16.to_be_bytes()),
        }
    }

    fn dhcp(&mut self, operation: u8, mac: [u8; 6]) -> Vec<u8> {
        let mut message = vec![0; 240];
        message[..3].copy_from_slice(&[operation, 1, 6]);
        message[28..34].copy_from_slice(&mac);
        message[236..].copy_from_slice(&[99, 130, 83, 99]);
        message.push(255);
        message
    }

    fn dhcp_client(&mut self) -> Vec<u8> {
        self.marks.push("dhcp");
        let mac = self.mac();
        let message = self.dhcp(1, mac);
        let from = self.v4_or_none("none");
        let to = *self.of(&[[255; 4], [255; 4], v4_of(OTHER)]);
        let fragment = *self.of(&[0, 0, 0, 0, 0x2000]);
        if fragment != 0 {
            self.marks.push("dhcp-fragment");
        }
        let port = *self.of(&[68, 68, 68, 1068]);
        ipv4(from, to, UDP, fragment, &udp(port, 67, &message))
    }

    fn dhcp_server(&mut self) -> Vec<u8> {
        self.marks.push("dhcp-server");
        let (from, to) = *self.of(&[(67, 68), (67, 67), (4011, 68), (68, 67)]);
        let message = self.dhcp(2, mac_of(OTHER));
        let source = self.v4();
        ipv4(source, [255; 4], UDP, 0, &udp(from, to, &message))
    }

    /// A packet with some headers between, of which another protocol may be.
    fn with_headers(
        &mut self,
        from: [u8; 16],
        to: [u8; 16],
        protocol: u8,
        rest: Vec<u8>,
    ) -> Vec<u8> {
        let (mut next, mut body) = (protocol, rest);
        for _ in 0..if self.one_in(4) { 1 + self.rng.below(2) } else { 0 } {
            self.marks.push("headers");
            let number = *self.of(&[0, 43, 51, 60, FRAGMENT, FRAGMENT, 135, 140]);
            let content = match number {
                FRAGMENT => *self.of(&[[0; 6], [0, 1, 0, 0, 0, 0], LATER]),
                _ => [1, 4, 0, 0, 0, 0],
            };
            if content == LATER {
                // What stands behind it is no header.
                self.spoofs = self.outside || self.is_foreign(from);
            }
            body = [&[next, 0], &content[..], &body].concat();
            next = number;
        }
        let mut packet = ipv6(from, to, next, &body);
        if self.one_in(16) {
            self.marks.push("form");
            match self.rng.below(3) {
                0 => packet[0] = 0x40,
                1 => packet[4..6].copy_from_slice(&1000u16.to_be_bytes()),
                _ => packet[4..6].copy_from_slice(&4u16.to_be_bytes()),
            }
        }
        packet
    }

    fn any_ipv6(&mut self) -> Vec<u8> {
        let from = self.v6();
        let (protocol, rest) = match self.rng.below(3) {
            0 => (UDP, udp(5000, 53, &[0; 20])),
            1 => (TCP, vec![8; 28]),
            _ => (ICMPV6, [&[128, 0, 0, 0][..], &[1; 24]].concat()),
        };
        self.with_headers(from, v6_of(OTHER), protocol, rest)
    }

    /// Link-layer addresses of neighbour discovery.
    fn options(&mut self, usual: u8) -> Vec<u8> {
        let mut options = Vec::new();
        let count = *self.of(&[0, 1, 1, 1, 1, 2]);
        self.marks.extend((count == 2).then_some("two-options"));
        for _ in 0..count {
            let kind = if self.one_in(8) { *self.of(&[1, 2, 5]) } else { usual };
            self.marks.extend((kind != usual).then_some("other-option"));
            if self.one_in(12) {
                // Of no length, of more than there is, and a longer one.
                self.marks.push("option-length");
                options.extend([kind, *self.of(&[0, 2, 200])]);
                options.extend(self.own());
                options.extend([0; 8]);
                continue;
            }
            let mac = if kind == 5 { [0, 0, 0, 0, 5, 220] } else { self.mac() };
            options.extend([kind, 1]);
            options.extend(mac);
        }
        options
    }

    /// The packet's source, which may be none.
    fn v6_or_none(&mut self) -> [u8; 16] {
        if !self.one_in(4) {
            return self.v6();
        }
        self.marks.push("unspecified");
        [0; 16]
    }

    fn icmp(&mut self, kind: u8, from: [u8; 16], to: [u8; 16], rest: &[u8]) -> Vec<u8> {
        let code = if self.one_in(16) { 1 } else { 0 };
        if code == 1 {
            self.marks.push("code");
        }
        let message = [&[kind, code, 0, 0], rest].concat();
        let mut packet = self.with_headers(from, to, ICMPV6, message);
        if self.one_in(8) {
            self.marks.push("hop-limit");
            packet[7] = *self.of(&[64, 1, 225]);
        }
        packet
    }

    /// Solicitations and advertisements of neighbours.
    fn discovery(&mut self) -> Vec<u8> {
        let from = self.v6_or_none();
        if self.one_in(2) {
            self.marks.push("ns");
            let number = self.profile.number;
            let targets = [v6_of(number), link_local_of(number), v6_of(OTHER)];
            let target = *self.of(&targets);
            let to = *self.of(&[group(2, 1), group(2, 1), group(5, 1), v6_of(OTHER)]);
            let options = if self.one_in(3) { Vec::new() } else { self.options(1) };
            return self.icmp(135, from, to, &[&[0; 4], &target[..], &options].concat());
        }
        self.marks.push("na");
        let target = self.v6();
        if target.starts_with(&[0xfe, 0x80]) {
            self.marks.push("about-link-local");
        }
        let options = self.options(2);
        self.icmp(136, from, group(2, 1), &[&[0x20, 0, 0, 0], &target[..], &options].concat())
    }

    fn listener(&mut self) -> Vec<u8> {
        self.marks.push("mld");
        let (kind, from) = (*self.of(&[131, 132, 143]), self.v6_or_none());
        let to = *self.of(&[group(2, 0x16), group(2, 0x16), group(5, 9), v6_of(OTHER)]);
        self.icmp(kind, from, to, &[0; 24])
    }

    fn dhcpv6(&mut self) -> Vec<u8> {
        let from = self.v6();
        let (ports, kind) = *self.of(&[((546, 547), 1), ((546, 547), 3), ((547, 546), 2)]);
        if ports.0 == 547 {
            self.marks.push("dhcpv6-server");
        }
        let message = udp(ports.0, ports.1, &[&[kind, 0, 0, 1][..], &[0; 20]].concat());
        self.with_headers(from, group(2, 2), UDP, message)
    }

    fn router(&mut self) -> Vec<u8> {
        let from = self.v6_or_none();
        let kind = *self.of(&[133, 133, 134, 134, 137, 141, 142]);
        let (mark, len, usual) = match kind {
            133 => ("rs", 4, 1),
            134 => ("router", 12, 1),
            137 => ("router", 36, 2),
            _ => ("inverse", 4, 1),
        };
        self.marks.push(mark);
        let to = *self.of(&[group(2, 2), group(2, 2), v6_of(OTHER)]);
        let options = self.options(usual);
        self.icmp(kind, from, to, &[&vec![0; len], &options[..]].concat())
    }
}
