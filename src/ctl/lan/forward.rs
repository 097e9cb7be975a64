//! A forward: ports of the host whose connections or datagrams go to a virtual machine.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::str::FromStr;

/// Most ports of one forward; each port takes a thread or two.
const MAX_PORTS: u16 = 100;

/// Words of dnsmasq's dhcp-host, the name of the host, and the domain.
const RESERVED: [&str; 4] = ["infinite", "ignore", "host", "lan"];

/// Ports of the host, and the ports of a virtual machine behind these ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortForward {
    /// Address of the host; `None` stands for both loopback addresses.
    address: Option<IpAddr>,
    first: u16,
    last: u16,
    /// Name or address of the virtual machine.
    pub(super) vm: String,
    /// Port of the virtual machine that stands for `first`.
    target: u16,
    pub(super) is_udp: bool,
}

/// A socket that takes connections or datagrams on the host.
pub(super) enum Listening {
    Tcp(TcpListener),
    Udp(UdpSocket),
}

/// True if a virtual machine can have this name in DNS. dnsmasq reads digits with a unit, such as
/// `30m`, as a time.
pub(super) fn is_machine_name(name: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let digits = name.trim_end_matches(['w', 'd', 'h', 'm', 's']);
    let is_time = !digits.is_empty()
        && name.len() <= digits.len() + 1
        && digits.chars().all(|c| c.is_ascii_digit());
    (1..=63).contains(&name.len())
        && name.chars().all(good)
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !is_time
        && !RESERVED.iter().any(|word| word.eq_ignore_ascii_case(name))
}

impl FromStr for PortForward {
    type Err = String;

    /// Reads `[ADDR:]PORT[-PORT]:VM:PORT[-PORT][/udp]`; IPv6 addresses stand in brackets.
    fn from_str(text: &str) -> Result<PortForward, String> {
        let wanted = || {
            "[ADDR:]PORT:VM:PORT with /udp behind for UDP, such as 8080:vm1:80, or ranges such as \
             8000-8009:vm1:8000-8009"
                .to_owned()
        };
        let (rest, is_udp) = match text.rsplit_once('/') {
            Some((rest, "udp")) => (rest, true),
            Some((rest, "tcp")) => (rest, false),
            Some(_) => return Err(wanted()),
            None => (text, false),
        };
        let mut parts = split(rest).ok_or_else(wanted)?;
        let target = parts.pop().and_then(range).ok_or_else(wanted)?;
        let vm = parts.pop().ok_or_else(wanted)?;
        let host = parts.pop().and_then(range).ok_or_else(wanted)?;
        let address = match parts.as_slice() {
            [] => None,
            [one] => Some(one.parse().map_err(|_| wanted())?),
            _ => return Err(wanted()),
        };
        if !is_machine_name(vm) && vm.parse::<IpAddr>().is_err() {
            return Err(wanted());
        }
        let (count, targets) = (host.1 - host.0, target.1 - target.0);
        if targets != 0 && targets != count {
            return Err("both ranges of ports have the same length".to_owned());
        }
        if count >= MAX_PORTS || target.0.checked_add(count).is_none() {
            return Err(format!("at most {MAX_PORTS} ports, each at most 65535"));
        }
        let (first, last) = host;
        Ok(PortForward { address, first, last, vm: vm.to_owned(), target: target.0, is_udp })
    }
}

/// Splits at colons outside of brackets; the parts have no brackets.
fn split(text: &str) -> Option<Vec<&str>> {
    let (mut parts, mut rest) = (Vec::new(), text);
    loop {
        let (part, after) = match rest.strip_prefix('[') {
            Some(inner) => inner.split_once(']')?,
            None => rest.split_at(rest.find(':').unwrap_or(rest.len())),
        };
        parts.push(part);
        match after.strip_prefix(':') {
            Some(more) => rest = more,
            None => return after.is_empty().then_some(parts),
        }
    }
}

/// Reads `PORT` or `PORT-PORT`.
fn range(text: &str) -> Option<(u16, u16)> {
    let port = |text: &str| text.parse().ok().filter(|port| *port > 0);
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (port(first)?, port(last)?);
    (first <= last).then_some((first, last))
}

impl fmt::Display for PortForward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bracketed = |text: &str| match text.contains(':') {
            true => format!("[{text}]"),
            false => text.to_owned(),
        };
        if let Some(address) = self.address {
            write!(f, "{}:", bracketed(&address.to_string()))?;
        }
        let count = self.last - self.first;
        let ports = |first: u16| match count {
            0 => first.to_string(),
            _ => format!("{first}-{}", first + count),
        };
        write!(f, "{}:{}:{}", ports(self.first), bracketed(&self.vm), ports(self.target))?;
        if self.is_udp { f.write_str("/udp") } else { Ok(()) }
    }
}

impl PortForward {
    /// True if the kernel does not let both forwards listen.
    pub(super) fn excludes(&self, other: &PortForward) -> bool {
        let (own, others) = (self.addresses(), other.addresses());
        self.is_udp == other.is_udp
            && self.first <= other.last
            && other.first <= self.last
            && own.iter().any(|one| others.iter().any(|other| overlap(*one, *other)))
    }

    /// Returns the addresses of the host at which the forward listens.
    fn addresses(&self) -> Vec<IpAddr> {
        let loopback = || vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        self.address.map_or_else(loopback, |one| vec![one])
    }

    /// Opens the sockets, each with the port of the virtual machine behind the socket. Fails with
    /// the reason if a port is not to be had.
    pub(super) fn listen(&self) -> Result<Vec<(Listening, u16)>, String> {
        let addresses = self.addresses();
        let mut sockets = Vec::new();
        for port in self.first..=self.last {
            for address in &addresses {
                match self.open(SocketAddr::new(*address, port)) {
                    Ok(socket) => sockets.push((socket, self.target + (port - self.first))),
                    // A host may have no IPv6.
                    Err(error) if self.address.is_none() && has_no_address(&error) => {}
                    Err(error) => return Err(reason(*address, port, &error)),
                }
            }
        }
        Ok(sockets)
    }

    fn open(&self, address: SocketAddr) -> io::Result<Listening> {
        match self.is_udp {
            true => UdpSocket::bind(address).map(Listening::Udp),
            false => TcpListener::bind(address).map(Listening::Tcp),
        }
    }
}

/// True if a port cannot be had at both addresses: `::` stands for all addresses, and `0.0.0.0` for
/// all of IPv4.
fn overlap(one: IpAddr, other: IpAddr) -> bool {
    let is_all = |address: IpAddr| address.is_ipv6() && address.is_unspecified();
    let is_any = one.is_unspecified() || other.is_unspecified();
    one == other || is_all(one) || is_all(other) || (is_any && one.is_ipv4() == other.is_ipv4())
}

fn has_no_address(error: &io::Error) -> bool {
    let family = rustix::io::Errno::AFNOSUPPORT.raw_os_error();
    error.kind() == ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(family)
}

fn reason(address: IpAddr, port: u16, error: &io::Error) -> String {
    let socket = SocketAddr::new(address, port);
    match error.kind() {
        ErrorKind::AddrInUse => format!("{socket} is taken by another program"),
        ErrorKind::PermissionDenied => {
            format!("{socket}: ports below net.ipv4.ip_unprivileged_port_start are for root")
        }
        ErrorKind::AddrNotAvailable => format!("{address} is no address of this host"),
        _ => format!("{socket}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwards_are_read_and_written() {
        for text in [
            "8080:vm1:80",
            "5353:vm1:53/udp",
            "8000-8009:vm1:9000-9009",
            "0.0.0.0:8080:vm1:80",
            "[::1]:8080:[fd78::7]:80",
        ] {
            assert_eq!(text.parse::<PortForward>().expect(text).to_string(), text);
        }
        let other = |text: &str| text.parse::<PortForward>().expect(text).to_string();
        assert_eq!(other("8000-8001:vm1:80/tcp"), "8000-8001:vm1:80-81");
        for wrong in [
            "",
            "8080",
            "8080:vm1",
            "0:vm1:80",
            "8080:vm1:0",
            "70000:vm1:80",
            "8080:vm_1:80",
            "8080:vm1:80/sctp",
            "9-8:vm1:80",
            "8000-8009:vm1:80-81",
            "1:2:3:4:5",
            "x:8080:vm1:80",
            "8000-8100:vm1:80",
            "8000-8001:vm1:65535",
            "[::1:8080:vm1:80",
            "8080:vm1:80:",
            "8080:30m:80",
            "8080:Ignore:80",
        ] {
            assert!(wrong.parse::<PortForward>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn words_of_dnsmasq_are_no_names() {
        for name in ["vm1", "7up", "m", "30min", "3-4", "a", "lan1"] {
            assert!(is_machine_name(name), "{name}");
        }
        for name in ["7", "30m", "1w", "infinite", "IGNORE", "host", "lan", "", "-a", "a-", "a.b"] {
            assert!(!is_machine_name(name), "{name}");
        }
    }

    #[test]
    fn forwards_with_a_port_in_common_exclude_each_other() {
        let read = |text: &str| text.parse::<PortForward>().expect(text);
        let one = read("8000-8009:vm1:80");
        for (other, excludes) in [
            ("8009:vm2:80", true),
            ("8010:vm2:80", false),
            ("7990-8050:vm2:80", true),
            ("8005:vm2:80/udp", false),
            ("127.0.0.1:8005:vm2:80", true),
            ("192.0.2.1:8005:vm2:80", false),
            ("0.0.0.0:8005:vm2:80", true),
            ("[::]:8005:vm2:80", true),
            ("[::1]:8005:vm2:80", true),
        ] {
            let other = read(other);
            assert_eq!(
                (one.excludes(&other), other.excludes(&one)),
                (excludes, excludes),
                "{other}"
            );
        }
        let v4 = read("192.0.2.1:80:vm1:80");
        assert!(v4.excludes(&read("[::]:80:vm1:80")) && !v4.excludes(&read("[::1]:80:vm1:80")));
    }

    #[test]
    fn a_taken_port_is_named() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let forward: PortForward = format!("{port}:vm1:80").parse().unwrap();
        let told = forward.listen().map(|_| ()).unwrap_err();
        assert_eq!(told, format!("127.0.0.1:{port} is taken by another program"));
        let forward: PortForward = "192.0.2.99:8080:vm1:80".parse().unwrap();
        let told = forward.listen().map(|_| ()).unwrap_err();
        assert_eq!(told, "192.0.2.99 is no address of this host");
    }
}
