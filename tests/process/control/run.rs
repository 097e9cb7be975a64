//! `vioswitchctl run` and signals: with a script in QEMU's place. `tests/guests/attach.rs` has real
//! machines.

use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::process::{Child, Stdio};
use std::sync::mpsc;

use rustix::process::Signal;
use testkit::proc::ends_within;
use testkit::sys;

use super::*;

const INT: i32 = Signal::INT.as_raw();
const TERM: i32 = Signal::TERM.as_raw();
const CONT: i32 = Signal::CONT.as_raw();
const STOP: i32 = Signal::STOP.as_raw();

/// Writes down each signal that it gets, and ends with status 7 by SIGTERM.
const SCRIPT: &str = "#!/bin/sh
[ \"$1\" = --version ] && exec echo 'QEMU emulator version 8.2.0'
trap 'echo int >>\"$0.log\"' INT
trap 'echo term >>\"$0.log\"; kill $!; exit 7' TERM
sleep 60 &
echo begins >>\"$0.log\"
while :; do wait; done
";

/// The script and what it has written down.
struct Machine(PathBuf);

impl Machine {
    fn new(lab: &Lab) -> Machine {
        let path = lab.socket("qemu");
        std::fs::write(&path, SCRIPT).expect("write");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("mode");
        Machine(path)
    }

    fn log(&self) -> Vec<String> {
        let path = format!("{}.log", self.0.display());
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn waits_for(&self, lines: usize) {
        assert!(wait_for(LOST, || self.log().len() >= lines), "{:?}", self.log());
    }
}

fn ports(lab: &Lab) -> String {
    lab.done(&["port", "list", "--names"])
}

/// What a terminal sends comes to QEMU once, and so does what another process sends.
#[test]
fn a_signal_comes_to_qemu_once() {
    let lab = Lab::new(0, &[]);
    let machine = Machine::new(&lab);
    let (mut keys, name, _side) = super::top::terminal(24, 80);
    let mut command = Command::new("setsid");
    command.arg("--ctty").arg(env!("CARGO_BIN_EXE_vioswitchctl")).arg("--control").arg(&lab.path);
    command.args(["run", "vm1", "--"]).arg(&machine.0);
    let stdio = || Stdio::from(super::top::open(&name));
    let child = command.stdin(stdio()).stdout(stdio()).stderr(stdio()).spawn();
    let mut child = child.expect("setsid");
    machine.waits_for(1);
    assert_eq!(ports(&lab), "vm1\n");
    assert!(sys::kill(child.id(), INT));
    machine.waits_for(2);
    // So that two of one kind are two: this one's copy waits until QEMU has had its own.
    assert!(sys::kill(child.id(), STOP));
    assert!(wait_for(LOST, || sys::stands_still(child.id())));
    keys.write_all(b"\x03").expect("a key");
    machine.waits_for(3);
    assert!(sys::kill(child.id(), CONT));
    assert!(wait_for(LOST, || !sys::stands_still(child.id())));
    assert!(sys::kill(child.id(), TERM));
    let status = ends_within(&mut child, LOST).expect("its end");
    assert_eq!(status.code(), Some(7));
    assert_eq!(machine.log(), ["begins", "int", "int", "term"]);
    assert_eq!(ports(&lab), "");
    lab.d.stop();
}

/// A machine has no front-end before QEMU connects: a second one does not share its port.
#[test]
fn a_port_has_one_machine_at_a_time() {
    let lab = Lab::new(0, &[]);
    let machine = Machine::new(&lab);
    let qemu = machine.0.display().to_string();
    let mut first = Command::new(env!("CARGO_BIN_EXE_vioswitchctl"));
    first.arg("--control").arg(&lab.path).args(["run", "vm1", "--", &qemu]);
    let mut first = first.spawn().expect("vioswitchctl");
    machine.waits_for(1);
    let (status, told) = lab.fails(&["run", "vm1", "--", &qemu]);
    assert_eq!(status, 1, "{told}");
    assert!(
        told.contains(&format!("port 'vm1' is of a machine that pid {} runs", first.id())),
        "{told}"
    );
    assert_eq!(machine.log().len(), 1, "a second machine began");
    assert!(sys::kill(first.id(), TERM));
    assert_eq!(ends_within(&mut first, LOST).expect("its end").code(), Some(7));
    assert_eq!(ports(&lab), "");
    lab.d.stop();
}

/// Passes one client's calls on to the switch. The client is interrupted when a port was added,
/// before it hears of that.
fn interrupting(lab: &Lab, client: mpsc::Receiver<u32>) -> PathBuf {
    let path = lab.socket("slow");
    let (listener, switch) = (UnixListener::bind(&path).expect("bind"), lab.path.clone());
    std::thread::spawn(move || {
        for connection in listener.incoming().map_while(Result::ok) {
            let mut server = UnixStream::connect(&switch).expect("connect");
            let answers = BufReader::new(server.try_clone().expect("clone"));
            let mut calls = connection.try_clone().expect("clone");
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut calls, &mut server);
                let _ = server.shutdown(Shutdown::Write);
            });
            let mut connection = connection;
            for answer in answers.split(0).map_while(Result::ok) {
                if let Ok(pid) = client.try_recv() {
                    assert!(sys::kill(pid, INT));
                }
                let _ = connection.write_all(&[&answer[..], b"\0"].concat());
            }
        }
    });
    path
}

#[test]
fn an_early_interrupt_leaves_no_port() {
    let lab = Lab::new(0, &[]);
    let machine = Machine::new(&lab);
    let (tell, told) = mpsc::channel();
    let path = interrupting(&lab, told);
    // It connects when its number is known.
    let script = "read go; exec \"$0\" \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_vioswitchctl"), "--control"]).arg(path);
    command.args(["run", "vm1", "--"]).arg(&machine.0).stdin(Stdio::piped());
    let mut child: Child = command.spawn().expect("sh");
    tell.send(child.id()).expect("a receiver");
    child.stdin.take().expect("a pipe").write_all(b"\n").expect("write");
    let status = ends_within(&mut child, LOST).expect("its end");
    assert_eq!(ports(&lab), "", "a port is left behind");
    assert_eq!((status.code(), machine.log().len()), (Some(130), 0));
    lab.d.stop();
}
