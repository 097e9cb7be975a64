//! Open vSwitch's own datapath, with dummy devices. What it does with a frame is asked of its
//! `ofproto/trace`, which learns as a frame would, and answers when that is done.

use std::fs::File;
use std::io::{BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use testkit::SOON;
use testkit::openvswitch::{self, Running, lacks};
use testkit::proc::{Dir, wait_for};

use super::{Copies, Frame, Keys, SLOTS, Switch, Tag};

const PROGRAMS: [&str; 2] = ["ovsdb-server", "ovs-vswitchd"];
/// Where a process of the package has its files.
const PLACES: [&str; 3] = ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR"];
/// The number of slot 0 in the datapath, which takes it from the device's name.
const FIRST: u8 = 10;

/// What is missing to run it.
pub fn missing() -> Option<String> {
    let lacks = lacks(&PROGRAMS)?;
    Some(format!("needs Debian's package openvswitch-switch: no {lacks}"))
}

/// A command that has its files in the directory.
fn command(program: &str, dir: &Path) -> Command {
    openvswitch::command(program, &PLACES, dir)
}

pub struct Ovs {
    control: UnixStream,
    replies: BufReader<UnixStream>,
    requests: u64,
    /// Those that talk to others stand first.
    _running: Vec<Running>,
    dir: Dir,
}

impl Ovs {
    pub fn start() -> Ovs {
        let dir = Dir::new();
        let schema = "/usr/share/openvswitch/vswitch.ovsschema";
        done("ovsdb-tool", dir.path(), &format!("create local {schema}"));
        let mut running = Vec::new();
        let mut start = |program: &str, words: &str, socket: &str| {
            let log = File::create(dir.path().join(program)).expect("a log");
            let mut command = command(program, dir.path());
            command.args(words.split(' ')).stdout(Stdio::null()).stderr(log);
            running.insert(0, Running(command.spawn().expect(program)));
            let up = wait_for(SOON, || UnixStream::connect(dir.path().join(socket)).is_ok());
            assert!(up, "{program}: {:?}", std::fs::read_to_string(dir.path().join(program)));
        };
        start("ovsdb-server", "--remote=punix:db --unixctl=server local", "db");
        done("ovs-vsctl", dir.path(), "--db=unix:db --no-wait init");
        let dummy = "unix:db --enable-dummy=override --disable-system --unixctl=control";
        start("ovs-vswitchd", dummy, "control");
        let bridge = "--db=unix:db add-br br0 -- set bridge br0 datapath-type=dummy \
                      fail-mode=standalone other-config:hwaddr=aa:55:aa:55:00:00";
        done("ovs-vsctl", dir.path(), bridge);
        let control = UnixStream::connect(dir.path().join("control")).expect("its control socket");
        control.set_read_timeout(Some(SOON)).expect("a limit");
        let replies = BufReader::new(control.try_clone().expect("a descriptor"));
        Ovs { control, replies, requests: 0, _running: running, dir }
    }

    fn ask(&mut self, method: &str, params: &[&str]) -> String {
        self.requests += 1;
        let request = json!({ "id": self.requests, "method": method, "params": params });
        self.control.write_all(request.to_string().as_bytes()).expect("a request");
        let mut replies = serde_json::Deserializer::from_reader(&mut self.replies).into_iter();
        let reply: Value = replies.next().expect("a reply").expect("JSON");
        assert!(reply["error"].is_null(), "{method} {params:?}: {reply}");
        reply["result"].as_str().unwrap_or_default().to_owned()
    }

    fn set(&self, words: &str) {
        done("ovs-vsctl", self.dir.path(), &format!("--db=unix:db {words}"));
    }
}

/// Runs a command to its end.
fn done(program: &str, dir: &Path, words: &str) {
    let output = command(program, dir).args(words.split_whitespace()).output().expect(program);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {words}: {error}");
}

/// The name of a device.
fn name(port: u8) -> String {
    format!("q{}", FIRST + port)
}

/// The columns of a port.
fn columns(keys: &Keys) -> String {
    let list = keys.tagged.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
    let mode = match (keys.untagged, keys.is_access()) {
        (Some(vlan), true) => format!("vlan_mode=access tag={vlan}"),
        (Some(vlan), false) => format!("vlan_mode=native-untagged tag={vlan} trunks={list}"),
        (None, _) => format!("vlan_mode=trunk trunks={list}"),
    };
    format!("{mode} protected={}", keys.isolated)
}

impl Switch for Ovs {
    fn add(&mut self, port: u8, keys: &Keys) {
        let (name, columns) = (name(port), columns(keys));
        self.set(&format!(
            "add-port br0 {name} -- set interface {name} type=dummy -- set port {name} {columns}"
        ));
    }

    fn delete(&mut self, port: u8) {
        self.set(&format!("del-port br0 {}", name(port)));
    }

    fn change(&mut self, port: u8, _: &Keys, keys: &Keys) {
        let (name, columns) = (name(port), columns(keys));
        self.set(&format!(
            "clear port {name} tag -- clear port {name} trunks -- set port {name} {columns}"
        ));
        self.ask("fdb/flush", &["br0"]);
    }

    fn flush(&mut self) {
        self.ask("fdb/flush", &["br0"]);
    }

    fn send(&mut self, port: u8, frame: &Frame) -> Copies {
        let mac = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
        let (to, from) = (mac(frame.to), mac(frame.from));
        let kind = match frame.tag {
            None => "eth_type(0x88b5)".to_owned(),
            Some((vlan, priority)) => {
                format!("eth_type(0x8100),vlan(vid={vlan},pcp={priority}),encap(eth_type(0x88b5))")
            }
        };
        let flow = format!("in_port({}),eth(src={from},dst={to}),{kind}", FIRST + port);
        let told = self.ask("ofproto/trace", &["ovs-dummy", &flow, "-generate"]);
        let actions = told.lines().find_map(|line| line.strip_prefix("Datapath actions: "));
        copies(actions.unwrap_or_else(|| panic!("no actions: {told}")), frame.tag)
    }
}

/// What actions do with a frame.
fn copies(actions: &str, tag: Option<Tag>) -> Copies {
    let (mut copies, mut tag, mut rest) = (Copies::new(), tag, actions);
    while !rest.is_empty() {
        let close = rest.find('(').filter(|at| rest.find(',').is_none_or(|comma| *at < comma));
        let end = match close {
            Some(_) => rest.find(')').expect("an end") + 1,
            None => rest.find(',').unwrap_or(rest.len()),
        };
        let (action, behind) = rest.split_at(end);
        rest = behind.strip_prefix(',').unwrap_or(behind);
        if let Ok(number) = action.parse::<u8>() {
            // The bridge has a device of its own.
            if let Some(port) = number.checked_sub(FIRST).filter(|port| *port < SLOTS) {
                assert!(copies.insert(port, tag).is_none(), "twice: {actions}");
            }
        } else if action == "pop_vlan" {
            tag = None;
        } else if let Some(words) = action.strip_prefix("push_vlan(") {
            let number = |key: &str| {
                let word = words.split_once(key).expect(key).1;
                word.split([',', ')']).next().expect("a word").parse::<u16>().expect("a number")
            };
            tag = Some((number("vid="), number("pcp=") as u8));
        } else {
            assert_eq!(action, "drop", "{actions}");
        }
    }
    copies
}
