//! Filters between real Linux stacks: what a rule accepts passes with its replies and errors, what
//! none accepts does not, and a reload changes all of it at once.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use testkit::SOON;
use testkit::host::in_namespace;
use testkit::proc::{Daemon, Dir, wait_for};
use testkit::relay::{INTERFACE, Stack};
use testkit::stream::Peer;

const MACS: [&str; 2] = ["52:54:00:66:00:01", "52:54:00:66:00:02"];

/// A server that answers each connection to its port with one line.
const SERVER: &str = "
import socket, sys
s = socket.create_server(('::', int(sys.argv[1])), family=socket.AF_INET6, dualstack_ipv6=True)
while True:
    c, _ = s.accept()
    c.sendall(b'hello')
    c.close()
";

/// A client that fails unless the server's line comes.
const CLIENT: &str = "
import socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 1)
s.settimeout(1)
sys.exit(0 if s.recv(9) == b'hello' else 1)
";

/// Prints the errors that a connection and a datagram get.
const ERRORS: &str = "
import errno, socket, sys
errors = []
for kind in socket.SOCK_STREAM, socket.SOCK_DGRAM:
    family = socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET
    s = socket.socket(family, kind)
    s.settimeout(2)
    try:
        s.connect((sys.argv[1], int(sys.argv[2])))
        s.send(b'x')
        s.recv(9)
    except OSError as error:
        errors.append(errno.errorcode.get(error.errno, str(error)))
print(*errors)
";

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Two stacks, `a` and `b`, of which `b` has a filter.
struct Lab {
    d: Daemon,
    stacks: [Stack; 2],
    config: std::path::PathBuf,
    _dir: Dir,
}

impl Lab {
    fn new(filter: &str) -> Lab {
        let dir = Dir::new();
        let config = dir.path().join("switch.toml");
        fs::write(&config, document(&dir, filter)).expect("a file");
        let d = Daemon::with(0, &["--config", &config.display().to_string()]);
        let sockets = [0, 1].map(|n| dir.path().join(format!("s{n}")));
        assert!(wait_for(SOON, || sockets.iter().all(|path| path.exists())), "{}", d.log());
        let stacks = [0, 1].map(|n| Stack::attach(&sockets[n], MACS[n]));
        for (n, stack) in stacks.iter().enumerate() {
            stack.sh(&format!(
                "ip address add 10.66.0.{0}/24 dev {INTERFACE}; \
                 ip address add fd66::{0}/64 dev {INTERFACE} nodad; ip link set lo up; \
                 ip link set {INTERFACE} up",
                n + 1
            ));
        }
        Lab { d, stacks, config, _dir: dir }
    }

    fn serve(&self, stack: usize, port: &str) -> Running {
        let mut command = self.stacks[stack].command("/usr/bin/python3");
        command.args(["-c", SERVER, port]).stdin(Stdio::null());
        Running(command.spawn().expect("start a server"))
    }

    fn connects(&self, from: usize, to: &str, port: &str) -> bool {
        let mut command: Command = self.stacks[from].command("/usr/bin/python3");
        command.args(["-c", CLIENT, to, port]).stderr(Stdio::null());
        command.status().expect("start a client").success()
    }

    /// Returns the errors that a client of TCP and a client of UDP get at once.
    fn tries(&self, from: usize, to: &str, port: &str) -> String {
        let mut command: Command = self.stacks[from].command("/usr/bin/python3");
        let output = command.args(["-c", ERRORS, to, port]).output().expect("start a client");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn pings(&self, from: usize, to: &str) -> bool {
        self.stacks[from].try_sh(&format!("ping -n -c 1 -W 1 {to}")).status.success()
    }
}

fn document(dir: &Dir, filter: &str) -> String {
    let path = dir.path().display();
    format!(
        "[[stream]]\nname = \"a\"\nsocket = \"{path}/s0\"\n\n\
         [[stream]]\nname = \"b\"\nsocket = \"{path}/s1\"\nfilter = \"web\"\n\n{filter}"
    )
}

const WEB: &str = "\
[[filter]]
name = \"web\"
default-in = \"drop\"
rules = [
  \"in accept tcp from group:peers to port 8080\",
  \"in reject tcp,udp to port 8082 log\",
]

[[group]]
name = \"peers\"
addresses = [\"10.66.0.1\", \"fd66::/64\"]
";

#[test]
fn a_rule_accepts_connections_and_their_replies() {
    in_namespace(|| {
        let lab = Lab::new(WEB);
        let _servers = [lab.serve(1, "8080"), lab.serve(1, "8081"), lab.serve(0, "8080")];
        // The servers take some time to start.
        for address in ["10.66.0.2", "fd66::2"] {
            assert!(wait_for(SOON, || lab.connects(0, address, "8080")), "{}", lab.d.log());
            assert!(!lab.connects(0, address, "8081"), "{address}: no rule");
            assert!(!lab.pings(0, address), "{address}: no rule");
        }
        // Linux has different errors for the prohibition of IPv4 and IPv6.
        for (address, error) in [("10.66.0.2", "EHOSTUNREACH"), ("fd66::2", "EACCES")] {
            assert_eq!(lab.tries(0, address, "8082"), format!("ECONNREFUSED {error}"));
        }
        let told = "port b: filter: in tcp from 10.66.0.1 port ";
        assert!(wait_for(SOON, || lab.d.log().contains(told)), "{}", lab.d.log());
        let told = "to 10.66.0.2 port 8082: refused by rule 2 of filter web";
        assert!(lab.d.log().contains(told), "{}", lab.d.log());
        for address in ["10.66.0.1", "fd66::1"] {
            assert!(wait_for(SOON, || lab.connects(1, address, "8080")), "{}", lab.d.log());
            assert!(lab.pings(1, address), "{address}: the reply");
        }
        let drops = |counters: &testkit::counters::Counters| counters.get("b", "drop.filter");
        assert!(drops(&lab.d.counters()) > 0);
    });
}

#[test]
fn a_reload_changes_the_filter() {
    in_namespace(|| {
        let lab = Lab::new(WEB);
        let _server = lab.serve(1, "8080");
        assert!(wait_for(SOON, || lab.connects(0, "10.66.0.2", "8080")), "{}", lab.d.log());
        let text = fs::read_to_string(&lab.config).expect("a file");
        fs::write(&lab.config, text.replace("to port 8080", "to port 9090")).expect("a file");
        lab.d.signal(libc::SIGHUP);
        assert!(wait_for(SOON, || !lab.connects(0, "10.66.0.2", "8080")), "{}", lab.d.log());
        // A rule that is wrong changes nothing, and says why.
        fs::write(&lab.config, text.replace("accept tcp", "accept tpc")).expect("a file");
        lab.d.signal(libc::SIGHUP);
        assert!(wait_for(SOON, || lab.d.log().contains("'tpc' is wrong")), "{}", lab.d.log());
        assert!(!lab.connects(0, "10.66.0.2", "8080"));
        fs::write(&lab.config, text).expect("a file");
        lab.d.signal(libc::SIGHUP);
        assert!(wait_for(SOON, || lab.connects(0, "10.66.0.2", "8080")), "{}", lab.d.log());
    });
}

/// Three streams: `b` has a filter that rejects all packets to it.
struct Streams {
    d: Daemon,
    a: Peer,
    b: Peer,
    c: Peer,
    _dir: Dir,
}

const STATIONS: [[u8; 6]; 3] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 3]];
const LIMIT: Duration = Duration::from_millis(50);

impl Streams {
    fn new() -> Streams {
        let dir = Dir::new();
        let socket = |name: &str| dir.path().join(name);
        let stream = |name: &str, keys: &str| {
            format!("--stream={name},socket={}{keys}", socket(name).display())
        };
        let args = [
            "--filter=f,default-in=reject".to_owned(),
            stream("a", ""),
            stream("b", ",filter=f"),
            stream("c", ""),
        ];
        let d = Daemon::with(0, &args.iter().map(String::as_str).collect::<Vec<_>>());
        let exist = || ["a", "b", "c"].iter().all(|name| socket(name).exists());
        assert!(wait_for(SOON, exist), "{}", d.log());
        let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| Peer::connect(&socket(name)));
        assert!(wait_for(SOON, || {
            a.send(&arp(STATIONS[0]));
            b.receive_from(STATIONS[0], LIMIT).is_some()
                && c.receive_from(STATIONS[0], LIMIT).is_some()
        }));
        for (peer, mac) in [(&mut b, STATIONS[1]), (&mut c, STATIONS[2])] {
            assert!(wait_for(SOON, || {
                peer.send(&arp(mac));
                a.receive_from(mac, LIMIT).is_some()
            }));
        }
        for peer in [&mut a, &mut b, &mut c] {
            while peer.receive(LIMIT).is_some() {}
        }
        Streams { d, a, b, c, _dir: dir }
    }
}

fn arp(from: [u8; 6]) -> Vec<u8> {
    let mut frame = [[0xff; 6], from].concat();
    frame.extend([8, 6]);
    frame.resize(60, 0);
    frame
}

/// A SYN from `a` to port 22 of a station.
fn syn(to: [u8; 6], port: u16) -> Vec<u8> {
    let mut frame = [to, STATIONS[0]].concat();
    frame.extend([8, 0, 0x45, 0, 0, 40, 0, 7, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend(port.to_be_bytes());
    frame.extend([0, 22, 0, 0, 0, 9, 0, 0, 0, 0, 0x50, 2, 1, 0, 0, 0, 0, 0]);
    frame.resize(60, 0);
    frame
}

/// A port may cause 50 answers at once and 100 a second; only the sender gets the answers.
#[test]
fn answers_to_rejected_packets_are_limited() {
    let Streams { d, mut a, mut b, mut c, _dir } = Streams::new();
    let begun = Instant::now();
    for port in 0..400 {
        a.send(&syn(STATIONS[1], port));
    }
    let mut answers = 0;
    while let Some(frame) = a.receive_from(STATIONS[1], Duration::from_millis(500)) {
        assert_eq!((frame[23], frame[47]), (6, 0x14), "a reset");
        answers += 1;
    }
    // All frames were judged before the last wait began.
    let most = 50 + 100 * (begun.elapsed().as_secs() + 1);
    assert!((50..=most).contains(&answers), "{answers} answers, at most {most}");
    let others = b.receive(LIMIT).is_none() && c.receive(LIMIT).is_none();
    assert!(others, "another port gets neither packet nor answer");
    let counters = d.counters();
    assert_eq!(counters.get("b", "drop.filter"), 400);
    counters.assert_balanced();
}

/// A port that is not the destination could otherwise reset a connection; and an answer must not
/// wait for the next burst, which is another port's.
#[test]
fn no_port_answers_a_packet_that_is_flooded() {
    let Streams { d, mut a, mut b, mut c, _dir } = Streams::new();
    let unknown = [2, 0, 0, 0, 0, 9];
    for port in 0..10 {
        a.send(&syn(unknown, port));
        assert!(c.receive_from(STATIONS[0], SOON).is_some(), "flooded");
        // The next bursts.
        c.send(&arp(STATIONS[2]));
        assert!(a.receive(SOON).is_some_and(|frame| frame == arp(STATIONS[2])), "no answer");
        assert!(b.receive(SOON).is_some_and(|frame| frame == arp(STATIONS[2])));
        a.send(&arp(STATIONS[0]));
        for peer in [&mut b, &mut c] {
            assert!(peer.receive(SOON).is_some_and(|frame| frame == arp(STATIONS[0])));
        }
    }
    assert_eq!(d.counters().get("b", "drop.filter"), 10);
}
