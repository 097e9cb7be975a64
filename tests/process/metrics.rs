//! Metrics by HTTP: with the real daemon: what is answered, by which socket, and what scrapers can
//! cost.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType};
use testkit::bystanders::Bystanders;
use testkit::neighbours::Pair;
use testkit::proc::{Daemon, Dir, wait_for};
use testkit::vm::{Vm, VmConfig};
use testkit::{skip, sys};

const LOST: Duration = Duration::from_secs(20);
const PLACES: usize = 16;

/// A switch that answers at a socket file.
struct Lab {
    d: Daemon,
    path: std::path::PathBuf,
    _dir: Dir,
}

impl Lab {
    fn new(ports: usize, extra: &[&str]) -> Lab {
        let dir = Dir::new();
        let path = dir.path().join("metrics");
        let option = format!("--metrics=unix:{}", path.display());
        let args: Vec<&str> = [option.as_str()].into_iter().chain(extra.iter().copied()).collect();
        let d = Daemon::with(ports, &args);
        assert!(wait_for(LOST, || path.exists()), "no socket\n{}", d.log());
        Lab { d, path, _dir: dir }
    }

    fn connect(&self) -> UnixStream {
        let socket = UnixStream::connect(&self.path).expect("connect");
        socket.set_read_timeout(Some(LOST)).expect("timeout");
        socket
    }

    /// Status and text of an answer.
    fn ask(&self, request: &str) -> (u16, String) {
        let mut socket = self.connect();
        socket.write_all(request.as_bytes()).expect("send");
        answer(&mut socket)
    }

    fn scrape(&self) -> String {
        let (status, text) = self.ask("GET /metrics HTTP/1.1\r\nHost: vioswitch\r\n\r\n");
        assert_eq!(status, 200, "{text}");
        text
    }
}

fn answer(socket: &mut impl Read) -> (u16, String) {
    let mut text = String::new();
    socket.read_to_string(&mut text).expect("an answer");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {text:?}"));
    let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).expect("a status");
    assert!(head.contains("Connection: close"), "{head}");
    (status.parse().expect("a number"), body.to_owned())
}

/// A series' value.
fn value(text: &str, series: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    Some(line.parse().expect("a number"))
}

/// promtool reads them too.
#[test]
fn metrics_are_the_counters() {
    let lab = Lab::new(2, &["--workers=2"]);
    let vms = [0, 1].map(|id| Vm::connect(&lab.d.socket(id), VmConfig::new(id as u8)));
    let mut pair = Pair::one_way(vms);
    pair.calibrate();
    pair.talk(Duration::from_millis(50));
    pair.check();
    let (text, counters) = (lab.scrape(), lab.d.counters());
    for (port, way) in [("p0", "in"), ("p1", "out")] {
        for key in ["frames", "bytes"] {
            let told =
                value(&text, &format!("vioswitch_port_{way}_{key}_total{{port=\"{port}\"}}"));
            let counted = counters.sum(Some(port), way, key) as f64;
            assert!(counted > 0.0 && told == Some(counted), "{port} {way} {key}: {told:?}");
        }
    }
    assert_eq!(value(&text, "vioswitch_port_up{port=\"p0\"}"), Some(1.0));
    assert_eq!(value(&text, "vioswitch_ports{kind=\"port\"}"), Some(2.0));
    let busy = value(&text, "vioswitch_worker_busy_seconds_total{worker=\"0\"}");
    assert!(busy.is_some_and(|busy| busy < 1_000.0), "{busy:?}");
    let started = value(&text, "process_start_time_seconds").expect("a start");
    assert!(started > 1.6e9 && started < 1e10, "{started}");
    let mut check = Command::new("promtool");
    check.args(["check", "metrics"]).stdin(std::process::Stdio::piped());
    match check.stderr(std::process::Stdio::piped()).spawn() {
        Err(error) => skip(&format!("promtool: {error}")),
        Ok(mut child) => {
            child.stdin.take().expect("pipe").write_all(text.as_bytes()).expect("promtool");
            let output = child.wait_with_output().expect("promtool");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }
    lab.d.stop();
}

/// By the tests that stand beside them; what they ask for is what there is.
#[test]
fn alerts_fire_when_they_should() {
    let page = include_str!("../../docs/counters.md");
    let rules = include_str!("../../scripts/prometheus/vioswitch.rules.yml");
    let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    let named: Vec<&str> =
        rules.split(word).filter(|word| word.starts_with("vioswitch_")).collect();
    assert!(named.len() > 5, "{named:?}");
    for name in named {
        assert!(page.contains(&format!("`{name}`")), "there is no {name}");
    }
    let mut test = Command::new("promtool");
    let tests = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/prometheus/vioswitch.test.yml");
    match test.args(["test", "rules", tests]).output() {
        Err(error) => skip(&format!("promtool: {error}")),
        Ok(output) => assert!(output.status.success(), "{output:?}"),
    }
}

/// A Prometheus that scrapes a switch; killed when a test panics.
struct Prometheus {
    child: std::process::Child,
    address: std::net::SocketAddr,
    _dir: Dir,
}

impl Prometheus {
    /// None where it is not installed.
    fn start(target: std::net::SocketAddr) -> Option<Prometheus> {
        let (dir, address) = (Dir::new(), free_address());
        let config = dir.path().join("prometheus.yml");
        let text = format!(
            "global: {{scrape_interval: 1s}}\n\
             scrape_configs:\n\
             - {{job_name: vioswitch, static_configs: [{{targets: [\"{target}\"]}}]}}\n"
        );
        std::fs::write(&config, text).expect("write");
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", config.display()));
        command.arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()));
        command.arg(format!("--web.listen-address={address}")).arg("--log.level=error");
        match command.spawn() {
            Err(error) => {
                skip(&format!("prometheus: {error}"));
                None
            }
            Ok(child) => Some(Prometheus { child, address, _dir: dir }),
        }
    }

    /// What it answers to a query; none while it does not answer.
    fn query(&self, query: &str) -> Option<serde_json::Value> {
        let mut socket = TcpStream::connect(self.address).ok()?;
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        // An answer to this version has no chunks.
        let request = format!("GET /api/v1/query?query={encoded} HTTP/1.0\r\n\r\n");
        socket.write_all(request.as_bytes()).ok()?;
        let mut text = String::new();
        socket.read_to_string(&mut text).ok()?;
        let answer: serde_json::Value =
            serde_json::from_str(text.split_once("\r\n\r\n")?.1).ok()?;
        assert_ne!(answer["status"], "error", "{query}: {answer}");
        Some(answer["data"]["result"].clone())
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Of an IP address that no other process uses: another one's connection would take the port.
fn free_address() -> std::net::SocketAddr {
    static LAST: AtomicU8 = AtomicU8::new(0);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let ip = Ipv4Addr::new(127, 1 + high % 254, low, 1 + LAST.fetch_add(1, Ordering::Relaxed));
    let free = std::net::TcpListener::bind((ip, 0)).expect("bind");
    free.local_addr().expect("address")
}

/// Each query of the dashboard is answered with data by a Prometheus that scrapes a switch.
#[test]
#[ignore = "full"]
fn a_prometheus_answers_each_query_of_the_dashboard() {
    let target = free_address();
    let d = Daemon::with(2, &[&format!("--metrics={target}")]);
    let Some(prometheus) = Prometheus::start(target) else { return };
    let mut vms = [0, 1].map(|id| Vm::connect(&d.socket(id), VmConfig::new(id as u8)));
    // Drops in both directions: a reserved address, and a receiver that takes nothing.
    let frame = |to: [u8; 6], from: [u8; 6]| [&to[..], &from, &[0x88, 0xb5], &[0; 46]].concat();
    let macs = [0, 1].map(testkit::vm::mac_of);
    vms[1].tx[0].send_waiting(&frame([0xff; 6], macs[1]), LOST);
    vms[1].tx[0].drain(LOST);
    let mut send = || {
        for to in [macs[1], [0x01, 0x80, 0xc2, 0, 0, 3]] {
            (0..2_000).for_each(|_| vms[0].tx[0].send_waiting(&frame(to, macs[0]), LOST));
        }
    };
    let dashboard = include_str!("../../scripts/prometheus/vioswitch.dashboard.json");
    let dashboard: serde_json::Value = serde_json::from_str(dashboard).expect("JSON");
    let targets = dashboard["panels"].as_array().expect("panels").iter();
    let targets = targets.flat_map(|panel| panel["targets"].as_array().expect("targets"));
    let queries: Vec<String> = targets
        .map(|target| target["expr"].as_str().expect("a query"))
        .map(|query| query.replace("$instance", ".+").replace("$__rate_interval", "1m"))
        .collect();
    assert!(queries.len() > 10, "{queries:?}");
    for query in queries {
        let answered = wait_for(3 * LOST, || {
            send();
            thread::sleep(Duration::from_millis(500));
            let result = prometheus.query(&query);
            result.is_some_and(|result| result.as_array().is_some_and(|all| !all.is_empty()))
        });
        assert!(answered, "no data for {query}\n{}", d.log());
    }
    drop(vms);
    d.stop();
}

#[test]
fn other_requests_are_refused() {
    let lab = Lab::new(1, &[]);
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n", 404),
        ("POST /metrics HTTP/1.1\r\nContent-Length: 1\r\n\r\nx", 405),
        ("\u{16}\u{3}\u{1}\r\n\r\n", 400),
        ("GET /metrics HTTP/9.9\r\n\r\n", 400),
    ] {
        assert_eq!(lab.ask(request).0, status, "{request:?}");
    }
    let long = format!("GET /metrics HTTP/1.1\r\na: {}", "x".repeat(8 << 10));
    assert_eq!(lab.ask(&long[..8 << 10]).0, 431);
    assert!(lab.scrape().contains("vioswitch_build_info{version="));
    let path = lab.path.clone();
    lab.d.stop();
    assert!(!path.exists(), "the socket is left behind");
}

#[test]
fn an_address_of_the_host_or_of_the_service_manager_is_as_good() {
    // Some other process may take the port in between; another one will do then.
    let mut tries = (0..10).map(|_| {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = free.local_addr().expect("address");
        drop(free);
        let d = Daemon::with(1, &[&format!("--metrics={address}")]);
        let mut socket = TcpStream::connect(address).ok()?;
        socket.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("send");
        let (status, text) = answer(&mut socket);
        d.stop();
        (status == 200 && text.contains("vioswitch_port_up{port=\"p0\"} 0")).then_some(())
    });
    assert!(tries.any(|told| told.is_some()), "no answer");
    // What cannot be had does not keep guests waiting.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = taken.local_addr().expect("address");
    for (option, said) in [
        (format!("--metrics={address}"), "metrics: cannot listen at"),
        ("--metrics=fd".to_owned(), "metrics: the service manager passed no listening"),
    ] {
        let d = Daemon::with(1, &[&option]);
        let told = wait_for(LOST, || d.log().contains("; going on without it"));
        assert!(told && d.log().contains(said), "{}", d.log());
        drop(Vm::connect(&d.socket(0), VmConfig::new(0)));
        d.stop();
    }
}

/// Slow ones, silent ones, endless heads, a thousand connections: nothing grows, a scraper that
/// asks is answered, and two guests lose nothing.
#[test]
fn hostile_scrapers_cost_nobody_anything() {
    let lab = Lab::new(2, &["--workers=2"]);
    let vms = [0, 1].map(|id| Vm::connect(&lab.d.socket(id), VmConfig::new(id as u8)));
    let bystanders = Bystanders::begin(vms);
    lab.scrape();
    let before = lab.d.settled_usage();
    // Silent ones make way.
    let mut crowd: Vec<UnixStream> = Vec::new();
    for n in 0..1_000 {
        let mut socket = lab.connect();
        if n % 2 == 0 {
            // One that was closed already does not take it.
            let _ = socket.write_all(b"GET /metr");
        }
        crowd.push(socket);
        if n % 100 == 99 {
            assert!(lab.scrape().contains("vioswitch_port_up"));
        }
    }
    let most = lab.d.usage().fds;
    assert!(most <= before.fds + PLACES, "{most} descriptors, {before:?}");
    drop(crowd);
    // Byte by byte is no way to stay.
    let (mut slow, start) = (lab.connect(), Instant::now());
    while slow.write_all(b"x").is_ok() {
        assert!(start.elapsed() < LOST, "half a request for {:?}", start.elapsed());
        thread::sleep(Duration::from_millis(50));
    }
    assert!(start.elapsed() >= Duration::from_millis(1_900), "{:?}", start.elapsed());
    // Those who ask and do not read are let go of.
    let deaf: Vec<UnixStream> = (0..4 * PLACES)
        .map(|_| {
            let mut socket = lab.connect();
            let _ = socket.write_all(b"GET /metrics HTTP/1.1\r\n\r\n");
            socket
        })
        .collect();
    assert!(lab.scrape().contains("vioswitch_port_up"));
    drop(deaf);
    assert!(wait_for(LOST, || lab.d.usage() == before), "{before:?} {:?}", lab.d.usage());
    bystanders.finish();
    lab.d.stop();
}

/// Ports of which the metrics are more than a socket holds.
const MANY: usize = 400;
/// Connections that ask and never read, of which there are always so many.
const DEAF: usize = 40;
const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\n\r\n";

/// Has so many connections that ask and never read, each for a while, until it is over.
fn storm<S: Write>(over: &AtomicBool, connect: impl Fn() -> std::io::Result<S>) {
    let mut deaf = VecDeque::new();
    while !over.load(Ordering::Acquire) {
        // A full switch closes it.
        if let Ok(mut socket) = connect() {
            let _ = socket.write_all(REQUEST);
            deaf.push_back(socket);
        }
        if deaf.len() > DEAF {
            deaf.pop_front();
        }
    }
}

/// Scrapes again and again beside a storm that takes all places.
fn each_scrape_is_answered(
    d: &Daemon,
    storm: impl FnOnce(&AtomicBool) + Send,
    scrape: impl Fn() -> String,
) {
    let (over, before) = (AtomicBool::new(false), d.settled_usage().fds);
    thread::scope(|scope| {
        scope.spawn(|| storm(&over));
        let full = wait_for(LOST, || d.usage().fds >= before + PLACES);
        over.store(!full, Ordering::Release);
        assert!(full, "they do not take all places");
        let told = (0..22).map(|_| scrape()).filter(|text| text.ends_with('\n')).count();
        over.store(true, Ordering::Release);
        assert_eq!(told, 22, "scrapes that were answered whole");
    });
}

/// What comes of an answer, however it ends.
fn whatever_comes(socket: &mut (impl Read + Write)) -> String {
    let mut text = Vec::new();
    let _ = socket.write_all(REQUEST).and_then(|()| socket.read_to_end(&mut text));
    let text = String::from_utf8_lossy(&text).into_owned();
    // The last family of the last worker.
    let whole = text.lines().last().is_some_and(|line| line.starts_with("vioswitch_worker_spins_"));
    if whole { text } else { String::new() }
}

/// Those of the same user: who has taken nothing for longest makes way. It has 22 of 22 answers
/// beside 40 that do not read.
#[test]
fn a_scraper_that_reads_is_served_beside_those_who_do_not() {
    let lab = Lab::new(MANY, &[]);
    let before = lab.d.settled_usage().fds;
    let deaf: Vec<UnixStream> = (0..DEAF)
        .map(|_| {
            let mut socket = lab.connect();
            let _ = socket.write_all(REQUEST);
            socket
        })
        .collect();
    assert!(wait_for(LOST, || lab.d.usage().fds >= before + PLACES), "they are not served");
    for _ in 0..22 {
        assert!(!whatever_comes(&mut lab.connect()).is_empty(), "no answer");
    }
    drop(deaf);
    lab.d.stop();
}

/// Those of another user come without a pause, and share their places among themselves.
#[test]
fn no_other_user_takes_the_place_of_one_who_reads() {
    if !rustix::process::geteuid().is_root() {
        return skip("needs root to be several users");
    }
    let lab = Lab::new(MANY, &[]);
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(&lab.path, open).expect("mode");
    let others = |over: &AtomicBool| {
        // SAFETY: a plain system call with numbers, for this thread alone.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, -1, 65534, -1) }, 0);
        storm(over, || UnixStream::connect(&lab.path));
    };
    each_scrape_is_answered(&lab.d, others, || whatever_comes(&mut lab.connect()));
    lab.d.stop();
}

/// The same by TCP, where addresses are told apart.
#[test]
fn no_other_address_takes_the_place_of_one_that_reads() {
    let address = free_address();
    let d = Daemon::with(MANY, &[&format!("--metrics={address}")]);
    let from = |host: u8| {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
        // So that what it does not read waits at the other end, and little of it in the kernel.
        rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 4096)?;
        sys::limit_segments(&socket, 536);
        rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, host), 0))?;
        rustix::net::connect(&socket, &address)?;
        Ok(TcpStream::from(socket))
    };
    assert!(wait_for(LOST, || from(1).is_ok()), "{}", d.log());
    each_scrape_is_answered(
        &d,
        |over| storm(over, || from(2)),
        || whatever_comes(&mut from(1).expect("connect")),
    );
    d.stop();
}
