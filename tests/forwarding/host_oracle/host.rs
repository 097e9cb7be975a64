//! The host: a network stack that believes what it gets, with programs that read what comes for
//! DHCP, virtual routers and routers.

use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Command, Stdio};

use testkit::SOON;
use testkit::host::{index_of, ip};
use testkit::proc::wait_for;

use super::messages::{ANY, Kind, MAGIC, OTHER, Station, VRRP, other_router, prefix};

pub const UPLINK: &str = "vio0";
pub const HOST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub const HOST_6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);
pub const HOST_MAC: [u8; 6] = [0x52, 0x54, 0, 0x77, 0, 1];
/// All systems of a link.
pub const GROUP_4: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);
/// Messages whose effects are looked at together, each about a victim of its own.
pub const SLOTS: usize = 64;

/// A neighbour whose address messages of this slot give as theirs.
pub fn victim(slot: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 1, slot as u8 + 1)
}

/// See [`victim`].
pub fn victim_6(slot: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 1, slot as u16 + 1)
}

/// A message that was sent.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    pub kind: Kind,
    pub slot: usize,
    pub number: u32,
}

/// The numbers of the messages that programs have read.
pub struct Read {
    sockets: Vec<Socket>,
    numbers: HashSet<u32>,
}

impl Read {
    /// By programs with these sockets.
    pub fn by(sockets: Vec<Socket>) -> Read {
        Read { sockets, numbers: HashSet::new() }
    }

    /// Reads all messages that came.
    pub fn update(&mut self) {
        self.sockets.iter().for_each(|socket| socket.read(&mut self.numbers));
    }

    /// Forgets all messages that came.
    pub fn forget(&mut self) {
        self.update();
        self.numbers.clear();
    }

    /// True if a program has read the message of this number.
    pub fn has(&self, number: u32) -> bool {
        self.numbers.contains(&number)
    }

    /// Waits until a program has read the message of this number.
    pub fn wait_for(&mut self, number: u32) {
        let came = wait_for(SOON, || {
            self.update();
            self.has(number)
        });
        assert!(came, "the last message did not come");
    }
}

/// A socket by which a program reads what came.
pub struct Socket {
    fd: OwnedFd,
    /// Whether a packet that came is one that the program reads.
    reads: fn(&[u8]) -> bool,
}

impl Socket {
    pub fn raw(family: i32, protocol: u8) -> Socket {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no memory is involved; the descriptor is owned by nobody else.
        let fd = unsafe {
            let fd = libc::socket(family, kind, protocol.into());
            assert!(fd >= 0, "raw socket: {}", std::io::Error::last_os_error());
            OwnedFd::from_raw_fd(fd)
        };
        Socket { fd, reads: |_| true }
    }

    /// The program reads some packets.
    pub fn for_some(self, reads: fn(&[u8]) -> bool) -> Socket {
        Socket { reads, ..self }
    }

    /// Packets of IPv4 behind an interface's link headers, of which a program reads those of DHCP.
    fn packets() -> Socket {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let protocol = (libc::ETH_P_IP as u16).to_be();
        // SAFETY: no memory is involved; the descriptor is owned by nobody else.
        let fd = unsafe {
            let fd = libc::socket(libc::AF_PACKET, kind, protocol.into());
            assert!(fd >= 0, "packet socket: {}", std::io::Error::last_os_error());
            OwnedFd::from_raw_fd(fd)
        };
        Socket { fd, reads: is_dhcp }
    }

    fn udp(address: &str, port: u16) -> Socket {
        let socket = UdpSocket::bind((address, port)).expect("a port of UDP");
        socket.set_nonblocking(true).expect("not blocking");
        socket.set_broadcast(true).expect("broadcasts");
        Socket { fd: socket.into(), reads: |_| true }
    }

    /// Reads all that came; the numbers of messages among it.
    pub fn read(&self, numbers: &mut HashSet<u32>) {
        let mut bytes = [0u8; 4096];
        loop {
            // SAFETY: `bytes` is writable for its length.
            let len = unsafe {
                libc::recv(self.fd.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), 0)
            };
            let Ok(len) = usize::try_from(len) else { return };
            if !(self.reads)(&bytes[..len]) {
                continue;
            }
            let found = bytes[..len].windows(8).find(|window| window[..4] == MAGIC);
            if let Some(&[_, _, _, _, a, b, c, d]) = found {
                numbers.insert(u32::from_be_bytes([a, b, c, d]));
            }
        }
    }
}

/// Looks at a packet as the filters of dhclient and Kea do: UDP, no later fragment, the port.
fn is_dhcp(packet: &[u8]) -> bool {
    let port = usize::from(packet.first().copied().unwrap_or_default() & 0xf) * 4 + 2;
    let is_port = packet.get(port..port + 2).is_some_and(|to| matches!(to, [0, 67 | 68]));
    is_port && packet[9] == 17 && packet[6] & 0x1f == 0 && packet[7] == 0
}

pub struct Host {
    stations: Vec<Station>,
    /// Messages since the last reset.
    pub read: Read,
}

pub fn set(path: &str, value: &str) {
    let path = format!("/proc/sys/net/{path}");
    // Some are of a kernel that is newer than the oldest one.
    let _ = fs::write(path, value);
}

/// A link-layer address as `ip` writes it.
pub fn named(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// Runs `ip` with these lines; what it says.
fn batch(options: &[&str], lines: &str) -> String {
    let mut command = Command::new("ip");
    command.args(options).args(["-force", "-batch", "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("run ip");
    let mut input = child.stdin.take().expect("its input");
    input.write_all(lines.as_bytes()).expect("its input");
    drop(input);
    let output = child.wait_with_output().expect("run ip");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

impl Host {
    /// The host behind the TAP, which is there already, with routes by these stations.
    pub fn new(stations: &[Station]) -> Host {
        let key = |name: &str| format!("ipv6/conf/{UPLINK}/{name}");
        let exists = || index_of(UPLINK).is_some();
        assert!(wait_for(SOON, exists), "no interface {UPLINK}");
        ip(&format!("link set {UPLINK} address {}", named(HOST_MAC)));
        for (name, value) in [
            ("accept_dad", "0"),
            ("router_solicitations", "0"),
            ("disable_ipv6", "0"),
            ("accept_ra", "1"),
            ("accept_redirects", "1"),
            ("accept_source_route", "1"),
            ("accept_untracked_na", "1"),
            // Believes fragments of neighbour discovery, which RFC 6980 forbids.
            ("suppress_frag_ndisc", "0"),
        ] {
            set(&key(name), value);
        }
        for name in ["all", UPLINK] {
            for (name, value) in [
                (format!("ipv4/conf/{name}/rp_filter"), "0"),
                (format!("ipv4/conf/{name}/accept_redirects"), "1"),
                (format!("ipv4/conf/{name}/secure_redirects"), "0"),
                (format!("ipv4/conf/{name}/accept_source_route"), "1"),
                (format!("ipv4/conf/{name}/arp_accept"), "1"),
                (format!("ipv4/neigh/{name}/locktime"), "0"),
                (format!("ipv6/neigh/{name}/locktime"), "0"),
            ] {
                set(&name, value);
            }
        }
        set("ipv4/ipfrag_time", "1");
        set("ipv6/ip6frag_time", "1");
        ip(&format!("address add {HOST}/16 dev {UPLINK}"));
        ip(&format!("address add {HOST_6}/64 dev {UPLINK} nodad"));
        ip(&format!("link set {UPLINK} up"));
        for station in stations {
            let (number, via) = (station.number, station.v4());
            ip(&format!("route add {number}.0.0.0/8 via {via} dev {UPLINK}"));
            let (to, via) = (station.routed_6(0), station.link_local());
            ip(&format!("route add {to}/48 via {via} dev {UPLINK}"));
        }
        let sockets = vec![
            Socket::raw(libc::AF_INET, ANY),
            Socket::raw(libc::AF_INET, VRRP),
            Socket::raw(libc::AF_INET, libc::IPPROTO_ICMP as u8),
            Socket::raw(libc::AF_INET, libc::IPPROTO_IGMP as u8),
            Socket::raw(libc::AF_INET6, ANY),
            Socket::raw(libc::AF_INET6, VRRP),
            Socket::raw(libc::AF_INET6, libc::IPPROTO_ICMPV6 as u8),
            Socket::packets(),
            Socket::udp("0.0.0.0", 67),
            Socket::udp("0.0.0.0", 68),
            Socket::udp("0.0.0.0", 1985),
            Socket::udp("::", 546),
            Socket::udp("::", 547),
        ];
        Host { stations: stations.to_vec(), read: Read::by(sockets) }
    }

    /// Forgets what messages have told: the victims are where they belong.
    pub fn reset(&mut self) {
        let mut lines = String::new();
        let mut add = |address: IpAddr, mac: &str| {
            let rest = format!("lladdr {mac} dev {UPLINK} nud stale");
            lines += &format!("neighbour replace {address} {rest}\n");
        };
        for slot in 0..SLOTS {
            add(victim(slot).into(), "02:00:00:00:00:fe");
            add(victim_6(slot).into(), "02:00:00:00:00:fe");
            for station in &self.stations {
                add(station.v4_of(slot).into(), &named(station.mac()));
                add(station.v6_of(slot).into(), &named(station.mac()));
            }
        }
        batch(&[], &lines);
        batch(&["-6"], "route flush root 2001:db9::/32\n");
        self.read.forget();
    }

    /// Which of these messages of a station the host has obeyed.
    pub fn obeyed(&mut self, station: Station, sent: &[Sent]) -> Vec<bool> {
        self.read.update();
        let neighbours = ip(&format!("neighbour show dev {UPLINK}"));
        let (own, other) = (named(station.mac()), named(OTHER.mac()));
        let is_at = |address: IpAddr, mac: &str| {
            let begin = format!("{address} lladdr {mac} ");
            neighbours.lines().any(|line| line.starts_with(&begin))
        };
        let prefixes = ip(&format!("-6 route show dev {UPLINK}"));
        let of = |kind| sent.iter().filter(move |one| one.kind == kind);
        let asks = of(Kind::Redirect4)
            .map(|one| format!("route get {}\n", station.routed(one.number)))
            .chain(
                of(Kind::Redirect6)
                    .map(|one| format!("route get {}\n", station.routed_6(one.number))),
            );
        let routes = batch(&[], &asks.collect::<String>());
        let leads = |to: String, via: String| {
            let is = |line: &str| {
                let words: Vec<&str> = line.split(' ').collect();
                words[0] == to && words.windows(2).any(|pair| pair == ["via", &via])
            };
            routes.lines().any(is)
        };
        let obeyed = |one: &Sent| match one.kind {
            Kind::ArpReply | Kind::ArpRequest => is_at(victim(one.slot).into(), &own),
            Kind::ArpOtherMac => is_at(station.v4_of(one.slot).into(), &other),
            Kind::Solicitation | Kind::Advertisement => is_at(victim_6(one.slot).into(), &own),
            Kind::AdvertisementOtherMac => is_at(station.v6_of(one.slot).into(), &other),
            Kind::RouterAdvertisement => prefixes.contains(&format!("{}/64 ", prefix(one.number))),
            Kind::Redirect4 => {
                leads(station.routed(one.number).to_string(), victim(one.slot).to_string())
            }
            Kind::Redirect6 => {
                leads(station.routed_6(one.number).to_string(), other_router(one.slot).to_string())
            }
            _ => self.read.has(one.number),
        };
        sent.iter().map(obeyed).collect()
    }
}
