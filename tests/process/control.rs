//! The control socket and vioswitchctl, with the real daemon: what they do, what they refuse, and
//! what a client can cost.

mod addresses;
mod attach;
mod bounds;
mod capture;
mod command_line;
mod commands;
mod completion;
mod descriptors;
mod details;
mod doctor;
mod doctor_peers;
mod events;
mod every_key;
mod export;
mod fdb_oracle;
mod filters;
mod filters_page;
mod findings;
mod flapping;
mod guard;
mod health;
mod held_up;
mod hung_files;
mod isolation;
mod kept;
mod lan;
mod latency;
mod looking;
mod mirror;
mod mistakes;
mod network;
mod origins;
mod overview;
mod permissions;
mod plug;
mod plug_members;
mod rates;
mod reload;
mod remedies;
mod removing;
mod run;
mod schema;
mod settings;
mod streams;
mod tenant_keys;
mod tenants;
mod top;
mod trace;
mod transcripts;
mod turns;
mod unconfirmed;
mod virtual_routers;
mod wait;
mod why;
mod worker;
mod xdp;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::{Value, json};
use testkit::bystanders::Bystanders;
use testkit::proc::{Daemon, Dir, copy_program, wait_for};
use testkit::vm::{Vm, VmConfig};

const LOST: Duration = Duration::from_secs(20);
const INTERFACE: &str = "io.vioswitch.Switch";
/// Users who are not root: one that is in the control socket's group, 65534, and one that may be in
/// the admin group beside.
const VIEWER: u32 = 65534;
const ADMIN: u32 = 65533;

/// A switch with a control socket, and its client's program.
struct Lab {
    d: Daemon,
    path: PathBuf,
    /// The socket's directory, and a copy of the program that other users may run.
    dir: Dir,
}

impl Lab {
    /// With `ports` ports of the command line.
    fn new(ports: usize, extra: &[&str]) -> Lab {
        Lab::with_ports(&vec![""; ports], extra)
    }

    /// With a port for each of these ends of `--port`.
    fn with_ports(ports: &[&str], extra: &[&str]) -> Lab {
        let dir = Dir::new();
        let path = dir.path().join("control");
        let control = format!("--control={}", path.display());
        let args: Vec<&str> = [control.as_str()].into_iter().chain(extra.iter().copied()).collect();
        let d = Daemon::with_ports(ports, &args);
        // The control socket is there before anything else.
        assert!(wait_for(LOST, || d.log().contains("ready: ")), "it does not start\n{}", d.log());
        Lab { d, path, dir }
    }

    fn ctl(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vioswitchctl"));
        command.arg("--control").arg(&self.path).args(args).output().expect("vioswitchctl")
    }

    /// What a command that succeeds prints.
    fn done(&self, args: &[&str]) -> String {
        let output = self.ctl(args);
        assert!(output.status.success(), "{args:?}: {output:?}\n{}", self.d.log());
        assert!(output.stderr.is_empty(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// The same as JSON.
    fn json(&self, args: &[&str]) -> Value {
        let args: Vec<&str> = ["--json"].into_iter().chain(args.iter().copied()).collect();
        serde_json::from_str(&self.done(&args)).expect("JSON")
    }

    /// The exit status of a command that fails, and its one line.
    fn fails(&self, args: &[&str]) -> (i32, String) {
        failure(self.ctl(args))
    }

    /// Runs vioswitchctl as user 65534 with these groups.
    fn as_nobody(&self, groups: &str, args: &[&str]) -> Output {
        let copy = self.dir.path().join("vioswitchctl");
        if !copy.exists() {
            copy_program(env!("CARGO_BIN_EXE_vioswitchctl"), &copy);
        }
        Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", &format!("--groups={groups}")])
            .arg(&copy)
            .arg("--control")
            .arg(&self.path)
            .args(args)
            .output()
            .expect("setpriv")
    }

    fn client(&self) -> Client {
        Client::connect(&self.path)
    }

    fn clients_of(&self, count: usize, uid: u32, groups: &[u32]) -> Vec<Client> {
        clients_of(&self.path, count, uid, groups)
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Ports 0 and 1 talk, and lose nothing, until they are told to end.
    fn bystanders(&self) -> Bystanders {
        Bystanders::begin(
            [0, 1].map(|id| Vm::connect(&self.d.socket(id.into()), VmConfig::new(id))),
        )
    }
}

/// A failure says one line, and nothing on standard output.
fn failure(output: Output) -> (i32, String) {
    let text = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(output.stdout.is_empty(), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    let line = text.trim_end().strip_prefix("vioswitchctl: ").expect("the program's name");
    (output.status.code().expect("an exit status"), line.to_owned())
}

/// Clients of another user, in group 65534 and in `groups`. Needs root.
fn clients_of(path: &Path, count: usize, uid: u32, groups: &[u32]) -> Vec<Client> {
    let (path, groups) = (path.to_owned(), groups.to_vec());
    // Of one thread alone, by the system calls themselves.
    let connect = move || {
        // SAFETY: plain system calls; `groups` lives across the one that reads it.
        let changed = unsafe {
            libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr())
                | libc::syscall(libc::SYS_setresgid, -1, 65534, -1)
                | libc::syscall(libc::SYS_setresuid, -1, uid, -1)
        };
        assert_eq!(changed, 0);
        (0..count).map(|_| Client::connect(&path)).collect()
    };
    std::thread::spawn(connect).join().expect("another user's clients")
}

/// A client of its own, which shares nothing with vioswitchctl.
struct Client(BufReader<UnixStream>);

impl Client {
    fn connect(path: &Path) -> Client {
        let socket = UnixStream::connect(path).expect("connect");
        socket.set_read_timeout(Some(LOST)).expect("timeout");
        Client(BufReader::new(socket))
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).expect("send");
    }

    fn ask(&mut self, call: &Value) {
        self.send(&[call.to_string().as_bytes(), b"\0"].concat());
    }

    /// The next answer; none if the connection was closed.
    fn answer(&mut self) -> Option<Value> {
        let mut message = Vec::new();
        // What was not read when the other end closed makes a reset of it.
        let read = self.0.read_until(0, &mut message).unwrap_or(0);
        if read == 0 {
            return None;
        }
        assert_eq!(message.pop(), Some(0), "half an answer");
        Some(serde_json::from_slice(&message).expect("JSON"))
    }

    /// The answer to a call; none if the switch is gone.
    fn try_call(&mut self, call: &Value) -> Option<Value> {
        let sent = self.0.get_mut().write_all(&[call.to_string().as_bytes(), b"\0"].concat());
        sent.ok().and_then(|()| self.answer())
    }

    fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.ask(&json!({"method": format!("{INTERFACE}.{method}"), "parameters": parameters}));
        self.answer().expect("an answer")
    }

    /// What the switch counts of its clients.
    fn count(&mut self, key: &str) -> u64 {
        self.call("GetStatus", json!({}))["parameters"]["clients"][key].as_u64().expect(key)
    }

    /// How many clients the switch has, if it lets this one in.
    fn connected(&mut self) -> Option<u64> {
        let call = json!({"method": format!("{INTERFACE}.GetStatus")}).to_string();
        self.0.get_mut().write_all(&[call.as_bytes(), b"\0"].concat()).ok()?;
        self.answer()?["parameters"]["clients"]["connected"].as_u64()
    }

    /// True if the connection is closed in time.
    fn closes(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

fn is_root() -> bool {
    // SAFETY: plain system call.
    unsafe { libc::geteuid() == 0 }
}
