//! Any bytes at the control socket: in one piece or two, the thread lives, each answer is a varlink
//! message with a known error or with parameters, each call that wants one gets one that is the
//! last, in the order of the calls up to the first message that is none, and what clients may not
//! add is not there afterwards.
//!
//! A daemon and its control thread serve all inputs, in a network namespace of their own where that
//! is permitted. Its two ports are there before each input, and no other port is.

use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::config::{CliAction, Config, Machine, Request, Settings, Texts};
use daemon::control::ControlSocket;
use daemon::{Daemon, NewPort, Reloader};
use serde_json::{Map, Value, json};
use sys::service::Service;

use super::input::Input;

/// For any answer but one that waits for a port.
const PATIENCE: Duration = Duration::from_secs(20);
/// For that: the client leaves then.
const IMPATIENCE: Duration = Duration::from_millis(5);

const ERRORS: [&str; 12] = [
    "org.varlink.service.InterfaceNotFound",
    "org.varlink.service.MethodNotFound",
    "org.varlink.service.InvalidParameter",
    "org.varlink.service.ExpectedMore",
    "io.vioswitch.Switch.InvalidParameter",
    "io.vioswitch.Switch.PortBeingRemoved",
    "io.vioswitch.Switch.PortExists",
    "io.vioswitch.Switch.NoSuchPort",
    "io.vioswitch.Switch.NotPermitted",
    "io.vioswitch.Switch.Refused",
    "io.vioswitch.Switch.BadConfig",
    "io.vioswitch.Switch.TimedOut",
];

/// How the answers ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Whole,
    /// The thread had not read all when it closed.
    Reset,
    /// They have not.
    Late,
}

struct World {
    daemon: Arc<Mutex<Daemon>>,
    directory: PathBuf,
    ports: Vec<Settings>,
    /// Connected from the start on: a panic of the thread would end that.
    witness: UnixStream,
    control: Service,
}

static WORLD: Mutex<Option<World>> = Mutex::new(None);

/// No input follows: nothing of the daemon is left.
#[allow(dead_code, reason = "libFuzzer tells nobody of its end")]
pub fn close() {
    let world = WORLD.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(World { daemon, directory, control, .. }) = world {
        control.stop();
        daemon.lock().expect("no panic").stop();
        assert_eq!(fs::read_dir(&directory).expect("directory").count(), 0, "files are left");
        fs::remove_dir(&directory).expect("directory");
    }
}

/// The target.
pub fn run(data: &[u8]) {
    let mut world = WORLD.lock().unwrap_or_else(PoisonError::into_inner);
    let world = world.get_or_insert_with(World::new);
    let mut input = Input::new(data);
    let halves = input.flag();
    let said = input.bytes(data.len());
    let calls = calls(said);
    // Sockets are made nowhere but where they are by default.
    if calls.iter().any(|call| call.parameters.get("socket").is_some_and(Value::is_string)) {
        return;
    }
    let waits = calls.iter().any(|call| call.method.ends_with(".WaitForPort"));
    let (answers, end) = world.ask(said, halves, if waits { IMPATIENCE } else { PATIENCE });
    assert!(end != End::Late || waits, "no end of the answers to {}", said.escape_ascii());
    judge(&calls, &answers, end);
    world.tidy();
}

impl World {
    fn new() -> World {
        // SAFETY: of this thread, and of those that it will start.
        unsafe { libc::unshare(libc::CLONE_NEWNET) };
        let directory =
            std::env::temp_dir().join(format!("vioswitch-fuzz-control-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("directory");
        let path = |name: &str| directory.join(name).display().to_string();
        let args = [
            "vioswitchd".to_owned(),
            format!("--port=vm0,socket={}", path("vm0")),
            format!("--port=vm1,socket={}", path("vm1")),
            format!("--control={}", path("control")),
        ];
        let config = parse(&args);
        let daemon = Daemon::start(&config).expect("start");
        let daemon = Arc::new(Mutex::new(daemon));
        let settings = config.control.as_ref().expect("a control socket");
        let request = match Request::read(&args, Machine { cpus: 1, allowed: &[0] }) {
            Ok(CliAction::Request(request)) => request,
            other => panic!("{other:?}"),
        };
        let reloader = Arc::new(Reloader::new(&daemon, request));
        let control = ControlSocket::bind(settings)
            .and_then(|socket| socket.serve(&daemon, &reloader))
            .expect("start");
        let witness = UnixStream::connect(directory.join("control")).expect("connect");
        let ports = config.ports.iter().map(|entry| entry.settings.clone()).collect();
        World { daemon, directory, ports, witness, control }
    }

    /// All that is answered, and how that ended.
    fn ask(&self, said: &[u8], halves: bool, patience: Duration) -> (Vec<u8>, End) {
        let mut client = UnixStream::connect(self.directory.join("control")).expect("connect");
        client.set_read_timeout(Some(patience)).expect("limit");
        client.set_write_timeout(Some(PATIENCE)).expect("limit");
        let (first, second) = said.split_at(if halves { said.len() / 2 } else { 0 });
        // It may have closed by now.
        let _ = client.write_all(first).and_then(|()| client.write_all(second));
        let _ = client.shutdown(Shutdown::Write);
        let mut answers = Vec::new();
        let end = match client.read_to_end(&mut answers) {
            Ok(_) => End::Whole,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => End::Reset,
            Err(_) => End::Late,
        };
        (answers, end)
    }

    /// The switch is as it was before, and the thread that was there then still serves.
    fn tidy(&self) {
        let mut witness = &self.witness;
        let call = json!({"method": "io.vioswitch.Switch.GetStatus"}).to_string();
        witness.set_read_timeout(Some(PATIENCE)).expect("limit");
        witness.write_all(&[call.as_bytes(), &[0]].concat()).expect("the thread has panicked");
        let mut answer = Vec::new();
        while !answer.ends_with(&[0]) {
            let mut byte = [0; 4096];
            let count = witness.read(&mut byte).expect("answered");
            assert!(count > 0, "the thread has panicked");
            answer.extend(&byte[..count]);
        }
        let mut daemon = self.daemon.lock().unwrap_or_else(PoisonError::into_inner);
        let names: Vec<String> = daemon.ports().iter().map(|port| port.name.clone()).collect();
        let ours = |name: &str| self.ports.iter().any(|port| port.name == name);
        for name in names.iter().filter(|name| !ours(name)) {
            // Another thread may be at it.
            let _ = daemon.remove_port(name);
        }
        for port in self.ports.iter().filter(|port| !names.contains(&port.name)) {
            daemon.add(&NewPort::Kept(port.clone())).expect("added again");
        }
        let left = fs::read_dir(&self.directory).expect("directory").flatten();
        let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
        assert!(left.len() <= 3, "files are left: {left:?}");
    }
}

fn parse(args: &[String]) -> Config {
    match Request::read(args, Machine { cpus: 1, allowed: &[0] }) {
        Ok(CliAction::Request(request)) => request.lay_over(&Texts::default()).expect("valid"),
        other => panic!("{other:?}"),
    }
}

struct Call {
    method: String,
    parameters: Map<String, Value>,
    more: bool,
    oneway: bool,
}

/// The calls before the first message that is none, read in the plainest way.
fn calls(said: &[u8]) -> Vec<Call> {
    let mut calls = Vec::new();
    let whole = said.iter().rposition(|byte| *byte == 0).map_or(&[][..], |end| &said[..end]);
    if said.contains(&0) {
        for message in whole.split(|byte| *byte == 0) {
            let Ok(Value::Object(call)) = serde_json::from_slice(message) else { break };
            let Some(call) = one(call) else { break };
            calls.push(call);
        }
    }
    calls
}

fn one(mut call: Map<String, Value>) -> Option<Call> {
    let flag = |name: &str| match call.get(name) {
        None | Some(Value::Null) => Some(false),
        Some(value) => value.as_bool(),
    };
    let (more, oneway, _) = (flag("more")?, flag("oneway")?, flag("upgrade")?);
    let parameters = match call.remove("parameters") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(parameters)) => parameters,
        Some(_) => return None,
    };
    let method = call.get("method")?.as_str()?.to_owned();
    Some(Call { method, parameters, more, oneway })
}

fn judge(calls: &[Call], answers: &[u8], end: End) {
    let mut wanted = calls.iter().filter(|call| !call.oneway);
    let mut call = None;
    for answer in answers.split_inclusive(|byte| *byte == 0) {
        let Some(text) = answer.strip_suffix(&[0]) else {
            assert!(end == End::Late, "half an answer");
            return;
        };
        let answer: Value = serde_json::from_slice(text).expect("an answer is JSON");
        let now = call.take().or_else(|| wanted.next()).expect("an answer that nobody asked for");
        assert!(answer["parameters"].is_object(), "{answer}");
        let error = &answer["error"];
        if !error.is_null() {
            assert!(ERRORS.iter().any(|known| error == known), "{answer}");
            assert!(text.len() < 4096, "{} bytes of {error}", text.len());
        }
        if answer["continues"] == true {
            assert!(now.more && error.is_null(), "{}: {answer}", now.method);
            call = Some(now);
        }
    }
    let left = wanted.count() + usize::from(call.is_some());
    assert!(end != End::Whole || left == 0, "{left} calls without a last answer");
}
