//! A guest behind a guard cannot take, free or use up leases of others, of DHCP and DHCPv6, with
//! real servers behind a TAP. Each attack is tried from a port without a guard too, where the
//! attack succeeds.

use std::fs::{self, File};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use testkit::host::{in_namespace, ip};
use testkit::proc::{Daemon, Dir, wait_for};
use testkit::stream::Peer;
use testkit::{SOON, skip};

const UPLINK: &str = "vio0";
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// How long an answer may take that is not to come; answers that come are waited for longer.
const NEVER: Duration = Duration::from_millis(400);
/// As many identifiers as a port may have, `GUARD_DHCP_CLIENTS`.
const IDENTIFIERS: usize = 8;

/// Message types of DHCP, and of DHCPv6.
const DISCOVER: u8 = 1;
const REQUEST: u8 = 3;
const RELEASE: u8 = 7;
const SOLICIT_6: u8 = 1;
const REQUEST_6: u8 = 3;
const RELEASE_6: u8 = 8;

/// Options of DHCP, and of DHCPv6.
const REQUESTED: u8 = 50;
const SERVER_ID: u8 = 54;
const CLIENT_ID: u8 = 61;
const CLIENT_ID_6: u16 = 1;
const SERVER_ID_6: u16 = 2;
const IA_NA: u16 = 3;
const IA_ADDRESS: u16 = 5;

fn option(code: u8, value: &[u8]) -> Vec<u8> {
    [&[code, value.len() as u8], value].concat()
}

fn option_6(code: u16, value: &[u8]) -> Vec<u8> {
    [&code.to_be_bytes()[..], &(value.len() as u16).to_be_bytes(), value].concat()
}

/// The sum of all 16-bit words, for the checksum of UDP over IPv6.
fn checksum(parts: &[&[u8]]) -> u16 {
    let bytes = parts.concat();
    let words =
        bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | *word.get(1).unwrap_or(&0) as u32);
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

/// A guest that speaks DHCP byte by byte.
struct Station {
    peer: Peer,
    number: u8,
    transaction: u8,
}

impl Station {
    fn mac(&self) -> [u8; 6] {
        mac_of(self.number)
    }

    fn address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, 50 + self.number)
    }

    fn link_local(&self) -> Ipv6Addr {
        link_local(self.number)
    }

    /// Sends a message with these options; `giaddr` and `ciaddr` are zero if unspecified.
    fn send(&mut self, kind: u8, options: &[Vec<u8>], relay: Ipv4Addr, client: Ipv4Addr) {
        self.transaction += 1;
        let mut message = vec![0; 236];
        message[..3].copy_from_slice(&[1, 1, 6]);
        message[7] = self.transaction;
        message[10] = 0x80;
        message[12..16].copy_from_slice(&client.octets());
        message[24..28].copy_from_slice(&relay.octets());
        message[28..34].copy_from_slice(&self.mac());
        message.extend([99, 130, 83, 99, 53, 1, kind]);
        message.extend(options.concat());
        message.push(255);
        let (from, to) = match client.is_unspecified() {
            true => (Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST),
            false => (self.address(), SERVER),
        };
        let udp = [68, 67, 8 + message.len() as u16, 0].map(u16::to_be_bytes).concat();
        let mut header = vec![0x45, 0, 0, 0, 0, 1, 0, 0, 64, 17, 0, 0];
        header[2..4].copy_from_slice(&(28 + message.len() as u16).to_be_bytes());
        header.extend([from.octets(), to.octets()].concat());
        let sum = checksum(&[&header]);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        let ethernet = [&[0xff; 6][..], &self.mac(), &[8, 0]].concat();
        self.peer.send(&[ethernet, header, udp, message].concat());
    }

    /// The address in the server's next answer, if one comes.
    fn answer(&mut self, limit: Duration) -> Option<Ipv4Addr> {
        let end = Instant::now() + limit;
        loop {
            let frame = self.peer.receive(end.saturating_duration_since(Instant::now()))?;
            let is_answer = frame.len() > 280
                && frame[12..14] == [8, 0]
                && frame[23] == 17
                && frame[36..38] == [0, 68]
                && frame[49] == self.transaction
                && frame[70..76] == self.mac();
            if is_answer {
                return Some(Ipv4Addr::new(frame[58], frame[59], frame[60], frame[61]));
            }
        }
    }

    /// Asks for an address by this identifier, and takes what is offered.
    fn lease(&mut self, identifier: &[u8], limit: Duration) -> Option<Ipv4Addr> {
        let none = Ipv4Addr::UNSPECIFIED;
        let id = option(CLIENT_ID, identifier);
        self.send(DISCOVER, std::slice::from_ref(&id), none, none);
        let offered = self.answer(limit)?;
        let [address, server] = [(REQUESTED, offered), (SERVER_ID, SERVER)]
            .map(|(code, address)| option(code, &address.octets()));
        self.send(REQUEST, &[id, address, server], none, none);
        self.answer(limit)
    }

    /// Gives an address back by this identifier.
    fn release(&mut self, identifier: &[u8], address: Ipv4Addr) {
        let options = [option(CLIENT_ID, identifier), option(SERVER_ID, &SERVER.octets())];
        self.send(RELEASE, &options, Ipv4Addr::UNSPECIFIED, address);
    }

    /// Sends a message of DHCPv6.
    fn send_6(&mut self, kind: u8, options: &[Vec<u8>]) {
        self.transaction += 1;
        let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
        let message = [&[kind, 0, 0, self.transaction][..], &options.concat()].concat();
        let len = 8 + message.len() as u16;
        let mut udp = [546, 547, len, 0].map(u16::to_be_bytes).concat();
        udp.extend(message);
        let ends = [self.link_local().octets(), group.octets()].concat();
        let sum = checksum(&[&ends, &u32::from(len).to_be_bytes(), &[0, 0, 0, 17], &udp]);
        udp[6..8].copy_from_slice(&sum.to_be_bytes());
        let header = [&[0x60, 0, 0, 0][..], &len.to_be_bytes(), &[17, 1], &ends].concat();
        let ethernet = [&[0x33, 0x33, 0, 1, 0, 2][..], &self.mac(), &[0x86, 0xdd]].concat();
        self.peer.send(&[ethernet, header, udp].concat());
    }

    /// The options of the server's next answer, if one comes.
    fn answer_6(&mut self, limit: Duration) -> Option<Vec<(u16, Vec<u8>)>> {
        let end = Instant::now() + limit;
        loop {
            let frame = self.peer.receive(end.saturating_duration_since(Instant::now()))?;
            let is_answer = frame.len() > 66
                && frame[12..14] == [0x86, 0xdd]
                && frame[20] == 17
                && frame[56..58] == [2, 0x22]
                && frame[65] == self.transaction;
            if is_answer {
                return Some(options_6(&frame[66..]));
            }
        }
    }

    /// Asks for an address by this DUID, and takes what is offered: the address, and the server's
    /// DUID.
    fn lease_6(&mut self, duid: &[u8], limit: Duration) -> Option<(Ipv6Addr, Vec<u8>)> {
        let (id, ia) = (option_6(CLIENT_ID_6, duid), option_6(IA_NA, &[0; 12]));
        self.send_6(SOLICIT_6, &[id.clone(), ia]);
        let (offered, server) = leased(&self.answer_6(limit)?)?;
        let ia = association(offered);
        self.send_6(REQUEST_6, &[id, option_6(SERVER_ID_6, &server), ia]);
        leased(&self.answer_6(limit)?)
    }

    fn release_6(&mut self, duid: &[u8], server: &[u8], address: Ipv6Addr) {
        let ids = [option_6(CLIENT_ID_6, duid), option_6(SERVER_ID_6, server)].concat();
        self.send_6(RELEASE_6, &[ids, association(address)]);
    }
}

/// An identity association with an address.
fn association(address: Ipv6Addr) -> Vec<u8> {
    let lease = option_6(IA_ADDRESS, &[&address.octets()[..], &[0; 8]].concat());
    option_6(IA_NA, &[&[0; 12][..], &lease].concat())
}

fn options_6(mut bytes: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let mut options = Vec::new();
    while let Some((header, rest)) = bytes.split_first_chunk::<4>() {
        let len = usize::from(u16::from_be_bytes([header[2], header[3]])).min(rest.len());
        options.push((u16::from_be_bytes([header[0], header[1]]), rest[..len].to_vec()));
        bytes = &rest[len..];
    }
    options
}

/// The address that an answer gives, and the server's DUID.
fn leased(options: &[(u16, Vec<u8>)]) -> Option<(Ipv6Addr, Vec<u8>)> {
    let value = |code| options.iter().find(|(known, _)| *known == code).map(|(_, value)| value);
    let inner = options_6(value(IA_NA)?.get(12..)?);
    let (_, lease) = inner.iter().find(|(code, _)| *code == IA_ADDRESS)?;
    Some((Ipv6Addr::from(*lease.first_chunk::<16>()?), value(SERVER_ID_6)?.clone()))
}

fn mac_of(number: u8) -> [u8; 6] {
    [0x52, 0x54, 0, 0x77, 0, number]
}

fn link_local(number: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0x77, number.into())
}

/// The identifiers of a client that are made of its link-layer address.
fn id_of(number: u8) -> Vec<u8> {
    [&[1], &mac_of(number)[..]].concat()
}

fn duid_of(number: u8) -> Vec<u8> {
    [&[0, 3, 0, 1], &mac_of(number)[..]].concat()
}

/// A server that ends with the test.
struct Server {
    child: Child,
    dir: PathBuf,
    /// A file with the leases, and whether a line of the file is that of a lease in force.
    leases: (PathBuf, fn(&str) -> bool),
}

impl Server {
    fn start(mut command: Command, dir: PathBuf, leases: (PathBuf, fn(&str) -> bool)) -> Server {
        let log = File::create(dir.join("server")).expect("a log");
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
        Server { child: command.spawn().expect("start a server"), dir, leases }
    }

    fn dnsmasq(dir: PathBuf) -> Server {
        let leases = dir.join("leases");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "dnsmasq", "--no-daemon", "--conf-file=/dev/null"]);
        command.args(["--port=0", "--user=root", "--bind-dynamic", "--log-dhcp", "--no-ping"]);
        command.args(["--dhcp-authoritative", "--dhcp-range=10.77.0.20,10.77.0.40,10m"]);
        command.args(["--dhcp-range=fd77::20,fd77::40,64,10m"]);
        command.arg(format!("--interface={UPLINK}"));
        command.arg(format!("--dhcp-leasefile={}", leases.display()));
        Server::start(command, dir, (leases, |_| true))
    }

    /// Kea, which reads DHCP from a raw socket.
    fn kea(dir: PathBuf, version: u8) -> Server {
        let (leases, config) = (dir.join("leases"), dir.join("kea.conf"));
        let (subnet, pool, more) = match version {
            4 => ("10.77.0.0/24", "10.77.0.20 - 10.77.0.40", "\"authoritative\": true,".to_owned()),
            _ => (
                "fd77::/64",
                "fd77::20 - fd77::40",
                "\"server-id\": { \"type\": \"LL\", \"persist\": false },".to_owned(),
            ),
        };
        let text = format!(
            "{{ \"Dhcp{version}\": {{ {more} \"valid-lifetime\": 600, \
             \"interfaces-config\": {{ \"interfaces\": [ \"{UPLINK}\" ] }}, \
             \"lease-database\": {{ \"type\": \"memfile\", \"name\": \"{}\" }}, \
             \"subnet{version}\": [ {{ \"subnet\": \"{subnet}\", \"interface\": \"{UPLINK}\", \
             \"pools\": [ {{ \"pool\": \"{pool}\" }} ] }} ] }} }}",
            leases.display()
        );
        fs::write(&config, text).expect("a configuration");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", &format!("kea-dhcp{version}"), "-c"]).arg(config);
        command.env("KEA_PIDFILE_DIR", &dir).env("KEA_LOCKFILE_DIR", &dir);
        // A lease that was given back is valid for 0 s: the fourth value, or the third of IPv6.
        let is_valid: fn(&str) -> bool = match version {
            4 => |line| line.split(',').nth(3) != Some("0"),
            _ => |line| line.split(',').nth(2) != Some("0"),
        };
        Server::start(command, dir, (leases, is_valid))
    }

    /// True if the address is leased: its last line counts.
    fn leases(&self, address: impl ToString) -> bool {
        let (address, text) = (address.to_string(), fs::read_to_string(&self.leases.0));
        let text = text.unwrap_or_default();
        let is_word = |line: &&str| line.split([' ', ',']).any(|word| word == address);
        text.lines().rfind(is_word).is_some_and(self.leases.1)
    }

    fn said(&self) -> String {
        fs::read_to_string(self.dir.join("server")).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A switch with two guarded streams and one without a guard.
struct Lab {
    d: Daemon,
    dir: Dir,
    stations: [Station; 3],
}

const VICTIM: usize = 0;
const ATTACKER: usize = 1;
const UNGUARDED: usize = 2;

impl Lab {
    fn new() -> Lab {
        let dir = Dir::new();
        let streams = [0, 1, 2].map(|n: u8| {
            let guard = match usize::from(n) {
                UNGUARDED => String::new(),
                _ => format!(
                    ",guard=on,mac=52:54:00:77:00:{n:02x},allowed-ips=10.77.0.5{n},{}",
                    "10.77.0.20/30,fd77::20/124"
                ),
            };
            format!("--stream=c{n},socket={}{guard}", dir.path().join(format!("c{n}")).display())
        });
        let args = [&streams[..], &[format!("--tap=up,ifname={UPLINK}")]].concat();
        let d = Daemon::with(0, &args.iter().map(String::as_str).collect::<Vec<_>>());
        // Kea binds to the link-local address once, so the address is usable at once.
        for (key, value) in [("accept_dad", "0"), ("disable_ipv6", "0")] {
            let file = format!("/proc/sys/net/ipv6/conf/{UPLINK}/{key}");
            assert!(wait_for(SOON, || fs::write(&file, value).is_ok()), "{}", d.log());
        }
        ip(&format!("address add {SERVER}/24 dev {UPLINK}"));
        ip(&format!("address add fd77::1/64 dev {UPLINK} nodad"));
        ip(&format!("link set {UPLINK} up"));
        let stations = [0, 1, 2].map(|number| {
            let peer = Peer::connect(&dir.path().join(format!("c{number}")));
            // A server answers to its clients' link-local addresses.
            let [_, _, _, _, _, last] = mac_of(number);
            ip(&format!(
                "neighbour replace {} lladdr 52:54:00:77:00:{last:02x} dev {UPLINK}",
                link_local(number)
            ));
            Station { peer, number, transaction: 0 }
        });
        Lab { d, dir, stations }
    }

    /// Frames of the attacker that broke a rule.
    fn refused(&self, rule: &str) -> u64 {
        self.d.counters().get("c1", rule)
    }
}

fn with(programs: &[&str], server: fn(PathBuf) -> Server, test: fn(Lab, Server)) {
    for program in programs {
        let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
        if !found.is_ok_and(|output| output.status.success()) {
            return skip(&format!("needs {program}"));
        }
    }
    in_namespace(|| {
        let lab = Lab::new();
        let server = server(lab.dir.path().to_owned());
        test(lab, server);
    });
}

fn leases_are_safe(mut lab: Lab, server: Server) {
    let mut address = None;
    let has = |station: &mut Station, address: &mut Option<Ipv4Addr>| {
        *address = station.lease(&id_of(0), NEVER);
        address.is_some()
    };
    // A server needs some time to start.
    assert!(wait_for(SOON, || has(&mut lab.stations[VICTIM], &mut address)), "{}", server.said());
    let address = address.expect("an address");
    assert!(wait_for(SOON, || server.leases(address)), "{address}: {}", server.said());

    // In the victim's name.
    let attacker = &mut lab.stations[ATTACKER];
    assert_eq!(attacker.lease(&id_of(0), NEVER), None, "{}", server.said());
    attacker.release(&id_of(0), address);
    let none = Ipv4Addr::UNSPECIFIED;
    attacker.send(DISCOVER, &[], Ipv4Addr::new(10, 9, 0, 1), none);
    assert_eq!(attacker.answer(NEVER), None, "it is no relay");
    attacker.send(DISCOVER, &[option(82, &[1, 4, 1, 2, 3, 4])], none, none);
    assert_eq!(attacker.answer(NEVER), None, "nor has it heard from one");
    assert!(lab.refused("guard.dhcp") >= 2 && lab.refused("guard.server") == 2);

    // With many identifiers. The servers' answers show that what was sent before was read.
    let tries = IDENTIFIERS + 3;
    let count = |station: &mut Station| {
        let tries = 0..tries as u8;
        tries.filter(|n| station.lease(&[0, 7, *n, station.number], NEVER * 3).is_some()).count()
    };
    let leased = count(&mut lab.stations[ATTACKER]);
    assert!((1..=IDENTIFIERS).contains(&leased), "{leased} of {tries}: {}", server.said());
    // The server may just write the file anew.
    assert!(wait_for(SOON, || server.leases(address)), "{}", server.said());

    // What happens without a guard.
    let unguarded = &mut lab.stations[UNGUARDED];
    let leased_there = count(unguarded);
    assert!(leased_there > leased.min(IDENTIFIERS - 1), "{leased_there}: {}", server.said());
    unguarded.release(&id_of(0), address);
    // Kea gives an address back to who has both, the identifier and the link-layer address.
    unguarded.number = 0;
    unguarded.release(&id_of(0), address);
    assert!(wait_for(SOON, || !server.leases(address)), "{}", server.said());
}

fn leases_of_ipv6_are_safe(mut lab: Lab, server: Server) {
    let mut lease = None;
    let has = |station: &mut Station, lease: &mut Option<(Ipv6Addr, Vec<u8>)>| {
        *lease = station.lease_6(&duid_of(0), NEVER * 3);
        lease.is_some()
    };
    assert!(wait_for(SOON, || has(&mut lab.stations[VICTIM], &mut lease)), "{}", server.said());
    let (address, id) = lease.expect("a lease");
    assert!(wait_for(SOON, || server.leases(address)), "{address}: {}", server.said());

    let attacker = &mut lab.stations[ATTACKER];
    attacker.release_6(&duid_of(0), &id, address);
    assert_eq!(attacker.lease_6(&duid_of(0), NEVER), None, "{}", server.said());
    assert!(attacker.lease_6(&duid_of(1), NEVER * 10).is_some(), "{}", server.said());
    // The server may just write the file anew.
    assert!(wait_for(SOON, || server.leases(address)), "{}", server.said());
    assert_eq!(lab.refused("guard.dhcp"), 2);

    let unguarded = &mut lab.stations[UNGUARDED];
    unguarded.release_6(&duid_of(0), &id, address);
    assert!(wait_for(SOON, || !server.leases(address)), "{}", server.said());
}

#[test]
#[ignore = "full"]
fn leases_of_dnsmasq_are_safe() {
    with(&["dnsmasq"], Server::dnsmasq, leases_are_safe);
}

#[test]
#[ignore = "full"]
fn leases_of_dnsmasq_for_ipv6_are_safe() {
    with(&["dnsmasq"], Server::dnsmasq, leases_of_ipv6_are_safe);
}

#[test]
#[ignore = "full"]
fn leases_of_kea_are_safe() {
    with(&["kea-dhcp4"], |dir| Server::kea(dir, 4), leases_are_safe);
}

#[test]
#[ignore = "full"]
fn leases_of_kea_for_ipv6_are_safe() {
    with(&["kea-dhcp6"], |dir| Server::kea(dir, 6), leases_of_ipv6_are_safe);
}
