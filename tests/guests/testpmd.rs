//! DPDK's `dpdk-testpmd` with virtio-user ports, driven through its console.
//!
//! The console echoes what it reads, so a remark marks the end of the output of the command before
//! it. Which addresses its frames carry (22.11, `app/test-pmd/txonly.c`; the first burst of the
//! other modes is made by the same code): source is the port's own address, destination the port's
//! `--eth-peer`, or 02:00:00:00:00:NN for port NN if none is given. `io` forwards what port 0
//! received through port 1 and the other way round, unchanged: since a frame only ever comes back
//! to where it left, every address stays on its port.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::lab::Lab;
use super::{need_program, tail};

/// For a command of the console, start-up included: EAL maps and zeroes its memory first.
const CONSOLE_LIMIT: Duration = Duration::from_secs(60);

/// Huge pages for two processes with [`MBUFS`] buffers each and EAL's own tables.
pub const HUGE_PAGES: u64 = 128;

/// Packet buffers: a few rings full. More would only be more memory to map.
const MBUFS: u32 = 8192;

/// Copies of the remark that ends an answer: each port may report a change of its link meanwhile.
const MARKS: usize = 4;

/// Where testpmd's memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// 2 MiB huge pages; one file per segment list, since a front-end sends few descriptors.
    Huge,
    /// Ordinary pages in one memfd.
    NoHuge,
}

/// `Err` says what the tests with DPDK lack.
pub fn available() -> Result<(), String> {
    for program in ["dpdk-testpmd", "stdbuf", "setpriv"] {
        need_program(program)?;
    }
    Ok(())
}

/// One virtio-user port.
#[derive(Clone, Debug)]
pub struct VirtioUser {
    /// The daemon's socket, or with `server=1` among the options, testpmd's.
    pub socket: PathBuf,
    /// Last byte of its address 52:54:00:88:00:xx.
    pub number: u8,
    /// Device options such as `,mrg_rxbuf=0`.
    pub options: &'static str,
}

impl VirtioUser {
    /// Its address.
    pub fn mac(&self) -> String {
        mac(self.number)
    }
}

fn mac(number: u8) -> String {
    format!("52:54:00:88:00:{number:02x}")
}

/// How a testpmd is started.
#[derive(Clone, Debug)]
pub struct TestpmdSpec {
    /// Names its files.
    pub name: &'static str,
    /// Its ports, in the order of their numbers.
    pub ports: Vec<VirtioUser>,
    /// Queue pairs of each.
    pub queues: u16,
    /// Its memory.
    pub backing: Backing,
    /// Forwarding mode at the start.
    pub forward: &'static str,
    /// `--eth-peer` of each port, as the number of a [`VirtioUser`]; empty for testpmd's own.
    pub peers: Vec<u8>,
}

/// A running testpmd.
pub struct Testpmd {
    name: &'static str,
    child: Child,
    console: ChildStdin,
    output: Receiver<String>,
    log: PathBuf,
    heard: Vec<String>,
    marks: u32,
}

/// What testpmd counted on one port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCount {
    /// Frames received.
    pub rx: u64,
    /// Frames sent.
    pub tx: u64,
    /// Receive and transmit errors, missed frames and failed buffer allocations together.
    pub errors: u64,
}

impl Testpmd {
    /// Starts it and waits for its prompt, by when all ports are started.
    pub fn start(lab: &Lab, spec: &TestpmdSpec) -> Testpmd {
        let log = lab.path(&format!("{}.testpmd", spec.name));
        let mut command = Command::new("setpriv");
        // Line by line, or a pipe's reader would see answers only when a block is full.
        command.args(["--pdeathsig", "KILL", "stdbuf", "-oL", "dpdk-testpmd"]);
        let mut child = command
            .args(arguments(spec))
            // EAL's runtime files, which it would otherwise leave in a directory of the system.
            .env("RUNTIME_DIRECTORY", lab.path(""))
            .env("XDG_RUNTIME_DIR", lab.path(""))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&log).expect("create testpmd's log"))
            .spawn()
            .expect("start testpmd");
        let console = child.stdin.take().expect("testpmd's standard input");
        let stdout = child.stdout.take().expect("testpmd's standard output");
        let (send, output) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).split(b'\n').map_while(Result::ok) {
                if send.send(String::from_utf8_lossy(&line).trim_end().to_string()).is_err() {
                    break;
                }
            }
        });
        let heard = Vec::new();
        let mut pmd = Testpmd { name: spec.name, child, console, output, log, heard, marks: 0 };
        pmd.ask("show port summary all");
        pmd
    }

    /// Runs a command of the console; its output. A command that testpmd refuses fails the test.
    pub fn ask(&mut self, command: &str) -> String {
        self.marks += 1;
        // A remark, which testpmd repeats and does not answer: what it says unasked may come
        // between anything, so that no line of its own tells where an answer ends. It echoes one
        // character a write, and an event's line has been seen in the middle of one, so that the
        // first whole copy of several counts; the others stand before the next answer.
        let mark = format!("# end-of-answer-{}.", self.marks);
        let marks = format!("{mark}\n").repeat(MARKS);
        write!(self.console, "{command}\n{marks}").expect("testpmd takes a command");
        self.console.flush().expect("testpmd takes a command");
        let from = self.heard.len();
        let end = Instant::now() + CONSOLE_LIMIT;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let Ok(line) = self.output.recv_timeout(left) else {
                let state = self.child.try_wait();
                panic!("{}: no answer to `{command}`: {state:?}", self.name);
            };
            let last = line.contains(&mark);
            self.heard.push(line);
            if last {
                break;
            }
        }
        let answer = self.heard[from..].join("\n");
        let refused = ["Bad arguments", "Command not found", "Please stop", "Fail"];
        let wrong = refused.iter().any(|word| answer.contains(word));
        assert!(!wrong, "{}: `{command}`: {answer}", self.name);
        answer
    }

    /// The counts of each port.
    pub fn counts(&mut self) -> Vec<PortCount> {
        let answer = self.ask("show port stats all");
        let mut counts = Vec::new();
        for line in answer.lines() {
            if line.contains("NIC statistics for port") {
                counts.push(PortCount::default());
            }
            let Some(count) = counts.last_mut() else {
                continue;
            };
            let words: Vec<&str> = line.split_whitespace().collect();
            for pair in words.windows(2) {
                let Ok(value) = pair[1].parse::<u64>() else {
                    continue;
                };
                match pair[0] {
                    "RX-packets:" => count.rx = value,
                    "TX-packets:" => count.tx = value,
                    "RX-missed:" | "RX-errors:" | "RX-nombuf:" | "TX-errors:" => {
                        count.errors += value;
                    }
                    _ => {}
                }
            }
        }
        counts
    }

    /// All that it ever wrote to standard error and output.
    pub fn said(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        log + &self.heard.join("\n")
    }

    /// Leaves in an orderly way, which closes the ports' connections.
    pub fn quit(mut self) {
        writeln!(self.console, "quit").expect("testpmd takes a command");
        let end = Instant::now() + CONSOLE_LIMIT;
        while self.child.try_wait().expect("wait for testpmd").is_none() {
            assert!(Instant::now() < end, "{} does not quit", self.name);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let from = self.heard.len().saturating_sub(50);
            let said = self.heard[from..].join("\n    ");
            eprintln!("--- {}, last answers:\n    {said}", self.name);
            eprintln!("--- {}, standard error:\n{}", self.name, tail(&self.log, 20));
        }
    }
}

/// What every DPDK process of the tests tells EAL: where its memory comes from, and its ports.
pub fn eal_arguments(
    name: &str,
    backing: Backing,
    ports: &[VirtioUser],
    queues: u16,
) -> Vec<String> {
    // Console and forwarding thread share the first two CPUs with the daemon.
    let mut args: Vec<String> = vec!["--lcores".into(), "0@(0,1),1@(0,1)".into()];
    args.extend(["--no-pci", "--no-telemetry"].map(String::from));
    args.push(format!("--file-prefix={name}"));
    args.push("--log-level=pmd.net.virtio.init:info".into());
    match backing {
        // Nothing in hugetlbfs, so that nothing stays there.
        Backing::Huge => args.extend(["--in-memory", "--single-file-segments"].map(String::from)),
        Backing::NoHuge => args.extend(["--no-huge", "-m", "128"].map(String::from)),
    }
    for (i, port) in ports.iter().enumerate() {
        let (socket, options, mac) = (port.socket.display(), port.options, port.mac());
        args.push(format!(
            "--vdev=net_virtio_user{i},path={socket},queues={queues},queue_size=256,\
             mac={mac}{options}"
        ));
    }
    args
}

fn arguments(spec: &TestpmdSpec) -> Vec<String> {
    let mut args = eal_arguments(spec.name, spec.backing, &spec.ports, spec.queues);
    args.extend(["--", "-i", "--no-mlockall", "--nb-cores=1"].map(String::from));
    args.extend([format!("--rxq={}", spec.queues), format!("--txq={}", spec.queues)]);
    args.push(format!("--total-num-mbufs={MBUFS}"));
    args.push(format!("--forward-mode={}", spec.forward));
    for (i, &peer) in spec.peers.iter().enumerate() {
        args.push(format!("--eth-peer={i},{}", mac(peer)));
    }
    args
}

/// Whether a path in testpmd's own words was chosen: see `set_rxtx_funcs` in virtio's PMD.
pub fn used_path(said: &str, path: &str) -> bool {
    said.lines().any(|line| line.contains("virtio: using") && line.contains(path))
}

/// The socket of a port in a lab.
pub fn socket(lab: &Lab, name: &str) -> PathBuf {
    lab.path(Path::new(name).with_extension("sock").to_str().expect("a file name"))
}
