//! The kernel's nftables, in the network namespace of this thread: a router between two TAPs that
//! the test holds, with connections tracked by flags alone.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Command, Stdio};

use testkit::SOON;
use testkit::host::ip;
use testkit::proc::wait_for;

use super::Oracle;
use super::flows::Packet;
use super::packets::{Between, Cut, Ip};
use super::rules::{LOCAL, Model};
use crate::differential::kernel::open;

/// A protocol whose packets pass without a rule.
const SENTINEL: u8 = 254;
/// What the test is at either end.
const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x77];
/// The next router towards all others.
const NEXT: [&str; 2] = ["10.66.2.2", "fd66:2::2"];

/// What is missing to run it, in the namespace of this thread.
pub fn missing() -> Option<String> {
    let probe = "table inet probe { chain probe { type filter hook forward priority filter; \
                 ct state established,related ct mark set 1 accept; }\n\
                 chain raw { type filter hook prerouting priority raw; notrack; }\n}";
    let (output, wrote) = match run_nft(probe) {
        Ok(done) => done,
        Err(error) => return Some(format!("needs nft (nftables): {error}")),
    };
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    (!output.status.success() || wrote.is_err())
        .then(|| format!("needs nf_tables, nf_conntrack and nft_ct of the kernel: {error}"))
}

fn run_nft(text: &str) -> std::io::Result<(std::process::Output, std::io::Result<()>)> {
    let mut command = Command::new("nft");
    let command = command.args(["-f", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let wrote = child.stdin.take().expect("a pipe").write_all(text.as_bytes());
    Ok((child.wait_with_output()?, wrote))
}

/// Why a packet passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// The packet is of a connection, or begins one.
    Connection,
    /// A stateless rule accepts the packet.
    Stateless,
}

pub struct Nft {
    /// The VM's, and the others'.
    taps: [File; 2],
    macs: [[u8; 6]; 2],
    sentinels: u32,
    tracked: Tracked,
}

impl Nft {
    pub fn start() -> Nft {
        let set = |path: &str, value: &str| {
            let path = format!("/proc/sys/net/{path}");
            fs::write(&path, value).unwrap_or_else(|error| panic!("{path}: {error}"));
        };
        let taps = ["vm", "net"].map(open);
        for tap in ["vm", "net"] {
            set(&format!("ipv6/conf/{tap}/accept_ra"), "0");
            set(&format!("ipv6/conf/{tap}/addr_gen_mode"), "1");
            set(&format!("ipv6/conf/{tap}/disable_ipv6"), "0");
            set(&format!("ipv4/conf/{tap}/rp_filter"), "0");
            set(&format!("ipv4/conf/{tap}/send_redirects"), "0");
            ip(&format!("link set {tap} up"));
        }
        set("ipv4/conf/all/rp_filter", "0");
        set("ipv4/ip_forward", "1");
        set("ipv6/conf/all/forwarding", "1");
        for (tap, at) in [("vm", 1), ("net", 2)] {
            ip(&format!("address add 10.66.{at}.1/24 dev {tap}"));
            ip(&format!("address add fd66:{at}::1/64 dev {tap} nodad"));
        }
        let mac = PEER_MAC.map(|octet| format!("{octet:02x}")).join(":");
        for (addresses, tap) in [(&LOCAL[..], "vm"), (&NEXT[..], "net")] {
            for address in addresses {
                ip(&format!("neighbour add {address} lladdr {mac} dev {tap} nud permanent"));
            }
        }
        ip(&format!("route add default via {} dev net", NEXT[0]));
        ip(&format!("-6 route add default via {} dev net", NEXT[1]));
        let macs = ["vm", "net"].map(mac_of);
        Nft { taps, macs, sentinels: 0, tracked: Tracked::open() }
    }

    /// Sends a packet; how it arrives at the other end, if it does.
    fn pass_one(&mut self, packet: &Packet) -> Option<By> {
        let from = usize::from(!packet.event.out);
        for part in &packet.parts {
            self.send(from, part);
        }
        let last = self.sentinel(packet.event.out);
        for part in last.parts(Between::Nothing, Cut::Whole, &[0; 8]) {
            self.send(from, &part);
        }
        let mut came = None;
        let done = wait_for(SOON, || {
            while let Some(got) = receive(&mut self.taps[1 - from]) {
                let Some(named) = named(&got) else { continue };
                if named == (packet.ip.from, packet.ip.to, packet.ip.label()) {
                    came = Some(if is_marked(&got) { By::Stateless } else { By::Connection });
                }
                if named == (last.from, last.to, last.label()) {
                    return true;
                }
            }
            false
        });
        assert!(done, "the packet that always passes did not come");
        // What answers there are.
        while receive(&mut self.taps[from]).is_some() {}
        if came == Some(By::Stateless) {
            self.tracked.forget(Some(1));
        }
        came
    }

    fn sentinel(&mut self, out: bool) -> Ip {
        self.sentinels += 1;
        let [near, far] = [LOCAL[0], NEXT[0]].map(|text| text.parse().expect("an address"));
        let (from, to) = if out { (near, far) } else { (far, near) };
        Ip { from, to, protocol: SENTINEL, number: self.sentinels }
    }

    fn send(&mut self, tap: usize, packet: &[u8]) {
        let kind: u16 = if packet[0] >> 4 == 6 { 0x86dd } else { 0x0800 };
        let frame = [&self.macs[tap][..], &PEER_MAC, &kind.to_be_bytes(), packet].concat();
        self.taps[tap].write_all(&frame).expect("send");
    }
}

impl Oracle for Nft {
    fn load(&mut self, model: &Model) {
        let text = model.nft();
        let (output, _) = run_nft(&text).expect("run nft");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}\n{text}");
        self.tracked.forget(None);
        // As this switch: no windows, and a connection may begin in its middle.
        for (name, value) in [("be_liberal", 1), ("ignore_invalid_rst", 1), ("loose", 1)] {
            let path = format!("/proc/sys/net/netfilter/nf_conntrack_tcp_{name}");
            fs::write(&path, value.to_string()).unwrap_or_else(|error| panic!("{path}: {error}"));
        }
    }

    fn pass(&mut self, packets: &[Packet]) -> Vec<Option<By>> {
        packets.iter().map(|packet| self.pass_one(packet)).collect()
    }
}

fn mac_of(tap: &str) -> [u8; 6] {
    let shown = ip(&format!("-br link show {tap}"));
    let text = shown.split_whitespace().nth(2).expect("an address");
    let octets = text.split(':').map(|octet| u8::from_str_radix(octet, 16).expect("an octet"));
    octets.collect::<Vec<_>>().try_into().expect("six octets")
}

/// The next packet of IP.
fn receive(tap: &mut File) -> Option<Vec<u8>> {
    let mut room = [0; 2048];
    match tap.read(&mut room) {
        Ok(len) => Some(room[14..len].to_vec()),
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        Err(error) => panic!("tap: {error}"),
    }
}

/// True if a rule without a connection has decided.
fn is_marked(packet: &[u8]) -> bool {
    let class = match packet[0] >> 4 {
        4 => packet[1],
        _ => packet[0] << 4 | packet[1] >> 4,
    };
    class == 8 << 2
}

/// Source, destination and number of a packet; none of another protocol than IP.
fn named(packet: &[u8]) -> Option<(IpAddr, IpAddr, u32)> {
    let v4 = |at: usize| Some(IpAddr::from(*packet.get(at..)?.first_chunk::<4>()?));
    let v6 = |at: usize| Some(IpAddr::from(*packet.get(at..)?.first_chunk::<16>()?));
    match packet.first()? >> 4 {
        4 => Some((v4(12)?, v4(16)?, u16::from_be_bytes([packet[4], packet[5]]).into())),
        6 => {
            let first = u32::from_be_bytes(*packet.first_chunk()?);
            Some((v6(8)?, v6(24)?, first & 0xf_ffff))
        }
        _ => None,
    }
}

/// The kernel's table of connections, by its netlink socket.
struct Tracked(OwnedFd);

impl Tracked {
    fn open() -> Tracked {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: no memory is involved; the descriptor is owned by nobody else.
        let socket = unsafe {
            let fd = libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_NETFILTER);
            assert!(fd >= 0, "netlink: {}", std::io::Error::last_os_error());
            OwnedFd::from_raw_fd(fd)
        };
        Tracked(socket)
    }

    /// Removes all connections, or those with a mark.
    fn forget(&self, mark: Option<u32>) {
        const DELETE: u16 = 1 << 8 | 2;
        const MARK: u16 = 8;
        const MARK_MASK: u16 = 21;
        let attribute = |kind: u16, value: u32| {
            [&8u16.to_ne_bytes()[..], &kind.to_ne_bytes(), &value.to_be_bytes()].concat()
        };
        let marks = mark.map(|mark| [(MARK, mark), (MARK_MASK, !0)]).into_iter().flatten();
        let attributes: Vec<u8> = marks.flat_map(|(kind, value)| attribute(kind, value)).collect();
        let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
        let mut message = (16 + 4 + attributes.len() as u32).to_ne_bytes().to_vec();
        message.extend([DELETE, flags].map(u16::to_ne_bytes).concat());
        message.extend([0; 8]);
        // Of either version of IP.
        message.extend([0; 4]);
        message.extend(attributes);
        let (fd, mut answer) = (self.0.as_raw_fd(), [0u8; 64]);
        // SAFETY: both are readable or writable for their lengths.
        let len = unsafe {
            libc::send(fd, message.as_ptr().cast(), message.len(), 0);
            libc::recv(fd, answer.as_mut_ptr().cast(), answer.len(), 0)
        };
        let code = i32::from_ne_bytes(answer[16..20].try_into().expect("four bytes"));
        assert!(len >= 20 && code == 0, "conntrack: {len} bytes, error {code}");
    }
}
