//! OVN on one host: a logical switch whose guarded ports are dummy devices of Open vSwitch's own
//! datapath. Nothing of it touches the host: databases, sockets and what a port sends are files of
//! a directory, and its programs end with the test.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::SOON;
use testkit::openvswitch::{self, Running, lacks};
use testkit::proc::{Dir, wait_for};

const PROGRAMS: [&str; 4] = ["ovsdb-server", "ovs-vswitchd", "ovn-northd", "ovn-controller"];
/// Where a process of these packages has its files.
const PLACES: [&str; 5] = ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVN_RUNDIR", "OVN_LOGDIR"];
/// Headers of a capture and of a frame in it.
const CAPTURE_HEADER: u64 = 24;
const FRAME_HEADER: usize = 16;
/// The port that gets all frames.
const RECEIVER: &str = "receiver";

/// What is missing to run it.
pub fn missing() -> Option<String> {
    let lacks = lacks(&PROGRAMS)?;
    Some(format!("needs Debian's packages ovn-central and ovn-host: no {lacks}"))
}

/// A command that has its files in the directory.
fn command(program: &str, dir: &Path) -> Command {
    openvswitch::command(program, &PLACES, dir)
}

/// Runs a command to its end.
pub fn done(program: &str, dir: &Path, words: &str) {
    let output = command(program, dir).args(words.split(' ')).output().expect(program);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {words}: {error}");
}

/// What a port was sent.
pub struct Capture {
    file: File,
    /// How much of the file was read.
    read: u64,
}

impl Capture {
    /// Opens what `tx_pcap=NAME` names.
    pub fn open(dir: &Path, name: &str) -> Capture {
        Capture { file: File::open(dir.join(name)).expect("a capture"), read: CAPTURE_HEADER }
    }

    /// The frames since the last look.
    pub fn more(&mut self) -> Vec<Vec<u8>> {
        self.file.seek(SeekFrom::Start(self.read)).expect("seek");
        let (mut bytes, mut frames) = (Vec::new(), Vec::new());
        self.file.read_to_end(&mut bytes).expect("read");
        let mut rest = &bytes[..];
        while let Some((header, behind)) = rest.split_at_checked(FRAME_HEADER) {
            let len = u32::from_le_bytes(header[8..12].try_into().expect("four")) as usize;
            let Some((frame, behind)) = behind.split_at_checked(len) else { break };
            frames.push(frame.to_vec());
            rest = behind;
        }
        self.read += (bytes.len() - rest.len()) as u64;
        frames
    }
}

/// The programs of a switch without ports.
pub struct Programs {
    running: Vec<Running>,
    /// Where frames are handed to a port.
    control: UnixStream,
    replies: BufReader<UnixStream>,
    requests: u64,
    dir: Dir,
}

impl Programs {
    pub fn start() -> Programs {
        let (dir, mut running) = (Dir::new(), Vec::new());
        start_programs(dir.path(), &mut running);
        let control = UnixStream::connect(dir.path().join("control")).expect("its control socket");
        control.set_read_timeout(Some(SOON)).expect("a limit");
        let replies = BufReader::new(control.try_clone().expect("a descriptor"));
        Programs { running, control, replies, requests: 0, dir }
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Runs a command with these words to its end.
    pub fn run(&self, program: &str, words: &[&str]) {
        let output = command(program, self.dir()).args(words).output().expect(program);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {words:?}: {error}");
    }

    /// Asks the switch to do this with each of the words.
    pub fn ask(&mut self, method: &str, all: &[Vec<String>]) {
        let mut requests = Vec::new();
        for words in all {
            self.requests += 1;
            let request = json!({ "id": self.requests, "method": method, "params": words });
            requests.extend(request.to_string().into_bytes());
        }
        self.control.write_all(&requests).expect("requests");
        let replies = serde_json::Deserializer::from_reader(&mut self.replies);
        for reply in replies.into_iter::<Value>().take(all.len()) {
            let reply = reply.expect("a reply");
            assert!(reply["error"].is_null(), "{reply}");
        }
    }

    /// Lets frames, at most a hundred, come in by a port.
    pub fn send(&mut self, port: &str, frames: &[Vec<u8>]) {
        let hex = |frame: &Vec<u8>| frame.iter().map(|byte| format!("{byte:02x}")).collect();
        let words = frames.iter().map(|frame| vec![port.to_owned(), hex(frame)]);
        self.ask("netdev-dummy/receive", &words.collect::<Vec<_>>());
    }

    /// What a port is sent until this frame, which must come.
    pub fn until(&self, last: &Vec<u8>, capture: &mut Capture) -> Vec<Vec<u8>> {
        let (mut got, limit) = (Vec::new(), Instant::now() + SOON);
        while !got.contains(last) {
            let log = || self.log();
            assert!(Instant::now() < limit, "the last frame did not come: {last:02x?}: {}", log());
            std::thread::sleep(Duration::from_micros(50));
            got.extend(capture.more());
        }
        got
    }

    /// What the programs reported.
    fn log(&self) -> String {
        let read = |program| std::fs::read_to_string(self.dir.path().join(program));
        PROGRAMS.map(|program| read(program).unwrap_or_default()).concat()
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        // Those that talk to others go first.
        while self.running.pop().is_some() {}
    }
}

pub struct Ovn {
    programs: Programs,
    receiver: Capture,
}

impl Ovn {
    /// A switch with ports of these names and `port_security`.
    pub fn start(ports: &[(&str, &str)]) -> Ovn {
        let programs = Programs::start();
        let dir = programs.dir();
        for (port, security) in ports {
            add_port(dir, port, "");
            programs.run("ovn-nbctl", &["--db=unix:db", "lsp-set-port-security", port, security]);
        }
        add_port(dir, RECEIVER, " options:tx_pcap=sent");
        let ports = ports.iter().map(|(port, _)| *port);
        wait_for_ports(dir, &ports.chain([RECEIVER]).collect::<Vec<_>>());
        let receiver = Capture::open(dir, "sent");
        Ovn { programs, receiver }
    }

    /// Lets frames, at most a hundred, come in by a port; what the receiver gets of them. The last
    /// one must be among it.
    pub fn pass(&mut self, port: &str, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        self.programs.send(port, frames);
        let last = frames.last().expect("a frame");
        self.programs.until(last, &mut self.receiver)
    }
}

/// Waits until all of it is in force.
pub fn wait_for_ports(dir: &Path, ports: &[&str]) {
    for port in ports {
        let wait = "--db=unix:db --timeout=30 wait-until Logical_Switch_Port";
        done("ovn-nbctl", dir, &format!("{wait} {port} up=true"));
    }
    done("ovn-nbctl", dir, "--db=unix:db --timeout=30 --wait=hv sync");
}

fn start_programs(dir: &Path, running: &mut Vec<Running>) {
    let schemas = [
        ("local", "/usr/share/openvswitch/vswitch.ovsschema"),
        ("north", "/usr/share/ovn/ovn-nb.ovsschema"),
        ("south", "/usr/share/ovn/ovn-sb.ovsschema"),
    ];
    for (database, schema) in schemas {
        done("ovsdb-tool", dir, &format!("create {database} {schema}"));
    }
    let mut start = |program: &str, words: &str, socket: &str| {
        let log = File::create(dir.join(program)).expect("a log");
        let mut command = command(program, dir);
        command.args(words.split(' ')).stdout(Stdio::null()).stderr(log);
        running.push(Running(command.spawn().expect(program)));
        let up = wait_for(SOON, || UnixStream::connect(dir.join(socket)).is_ok());
        assert!(up, "{program}: {:?}", std::fs::read_to_string(dir.join(program)));
    };
    let databases = "--remote=punix:db --unixctl=server local north south";
    start("ovsdb-server", databases, "db");
    done("ovs-vsctl", dir, "--db=unix:db --no-wait init");
    let dummy = "unix:db --enable-dummy=override --disable-system --unixctl=control";
    start("ovs-vswitchd", dummy, "control");
    let north = "--ovnnb-db=unix:db --ovnsb-db=unix:db --unixctl=northd";
    start("ovn-northd", north, "northd");
    let chassis = "--db=unix:db set open . external-ids:system-id=chassis \
                   external-ids:ovn-remote=unix:db external-ids:ovn-encap-type=geneve \
                   external-ids:ovn-encap-ip=127.0.0.1 -- add-br br-int -- set bridge br-int \
                   datapath-type=dummy fail-mode=secure";
    done("ovs-vsctl", dir, chassis);
    start("ovn-controller", "unix:db", "db");
    done("ovn-nbctl", dir, "--db=unix:db ls-add switch");
}

/// A port whose addresses are not known, so that it gets frames for any.
pub fn add_port(dir: &Path, port: &str, options: &str) {
    let logical = "--db=unix:db lsp-add switch";
    done("ovn-nbctl", dir, &format!("{logical} {port} -- lsp-set-addresses {port} unknown"));
    let add = format!("--db=unix:db add-port br-int {port} -- set interface {port} type=dummy");
    done("ovs-vsctl", dir, &format!("{add} external_ids:iface-id={port}{options}"));
}
