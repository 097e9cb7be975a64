//! A Linux network stack behind a stream of the switch: an interface in a network namespace of its
//! own, and a thread that carries its frames to the stream's socket and back. What runs there is a
//! guest to the switch, without a machine around it.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::host::ip;
use crate::stream::{Peer, packed};

/// The interface's name.
pub const INTERFACE: &str = "eth0";
/// A packet of 64 KiB and its Ethernet header.
const LONGEST_FRAME: usize = 65_550;
/// How soon the threads see that they shall end.
const TICK: Duration = Duration::from_millis(20);

/// A namespace with an interface that is attached to a stream.
pub struct Stack {
    holder: Child,
    ends: Arc<AtomicBool>,
    relays: Vec<JoinHandle<()>>,
}

impl Stack {
    /// Attaches an interface with this address, down, to the stream that listens at `path`.
    pub fn attach(path: &Path, mac: &str) -> Stack {
        let holder = hold_namespace();
        let tap = Arc::new(tap_in(&holder, mac));
        let ends = Arc::new(AtomicBool::new(false));
        let peer = Peer::connect(path);
        let socket = peer.socket.try_clone().expect("clone the socket");
        let relays = vec![
            std::thread::spawn({
                let (tap, ends) = (tap.clone(), ends.clone());
                move || up(&tap, socket, &ends)
            }),
            std::thread::spawn({
                let ends = ends.clone();
                move || down(peer, &tap, &ends)
            }),
        ];
        Stack { holder, ends, relays }
    }

    /// A command that runs there and ends with the test.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("setpriv");
        let holder = self.holder.id().to_string();
        command.args(["--pdeathsig", "KILL", "nsenter", "--net", "--target", &holder, program]);
        command.stdin(Stdio::null());
        command
    }

    /// keepalived with this configuration, and with files in a directory that end with a number.
    ///
    /// keepalived must not use the system's log (-G): on a machine without a system log each line
    /// goes to the console, which may take 2 ms. Routers of twenty addresses write so much that the
    /// packets come too late that keep the other router from being master.
    pub fn keepalived(&self, dir: &Path, number: usize, config: &str) -> Command {
        let path = |name: &str| dir.join(format!("{name}{number}"));
        std::fs::write(path("keepalived.conf"), config).expect("a configuration");
        let mut command = self.command("keepalived");
        command.args(["-n", "-l", "-G", "-P", "-D", "-f"]).arg(path("keepalived.conf"));
        command.arg("-p").arg(path("keepalived.pid")).arg("-r").arg(path("vrrp.pid"));
        command
    }

    /// What a shell says there, and how it ends.
    pub fn try_sh(&self, script: &str) -> Output {
        self.command("sh").args(["-ec", script]).output().expect("run a shell")
    }

    /// What a shell says there; panics if it fails.
    pub fn sh(&self, script: &str) -> String {
        let output = self.try_sh(script);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script}: {said}{complaint}");
        said
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        for relay in self.relays.drain(..) {
            let _ = relay.join();
        }
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// A process in a network namespace of its own, which ends with the test.
fn hold_namespace() -> Child {
    let mut unshare = Command::new("setpriv");
    unshare.args(["--pdeathsig", "KILL", "unshare", "--net", "sh", "-c", "echo; exec sleep inf"]);
    let mut holder = unshare
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("start the process that holds the namespace");
    let mut line = [0];
    let said = holder.stdout.as_mut().expect("its output").read_exact(&mut line);
    said.expect("the process that holds the namespace");
    holder
}

/// A TAP in the namespace of a process.
fn tap_in(holder: &Child, mac: &str) -> File {
    let namespace = File::open(format!("/proc/{}/ns/net", holder.id())).expect("the namespace");
    std::thread::scope(|scope| {
        let inside = scope.spawn(|| {
            // SAFETY: affects only the calling thread, which was made for it.
            let entered = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
            assert_eq!(entered, 0, "setns: {}", std::io::Error::last_os_error());
            let tap = File::options().read(true).write(true).open("/dev/net/tun").expect("TUN");
            // SAFETY: all-zero bytes are a valid ifreq, which TUNSETIFF reads and writes.
            unsafe {
                let mut request: libc::ifreq = std::mem::zeroed();
                for (to, from) in request.ifr_name.iter_mut().zip(INTERFACE.bytes()) {
                    *to = from as libc::c_char;
                }
                request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
                let made = libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF as _, &mut request);
                assert_eq!(made, 0, "TUNSETIFF: {}", std::io::Error::last_os_error());
            }
            ip(&format!("link set {INTERFACE} address {mac}"));
            tap
        });
        inside.join().expect("a TAP in a namespace")
    })
}

/// From the interface to the switch.
fn up(tap: &File, mut socket: UnixStream, ends: &AtomicBool) {
    let mut frame = vec![0; LONGEST_FRAME];
    while !ends.load(Ordering::Relaxed) {
        if !crate::sys::poll_in(&[tap.as_raw_fd()], TICK) {
            continue;
        }
        let mut from = tap;
        match from.read(&mut frame) {
            Ok(len) => {
                if socket.write_all(&packed(&frame[..len])).is_err() {
                    return;
                }
            }
            // The interface is down.
            Err(_) => std::thread::sleep(TICK),
        }
    }
}

/// From the switch to the interface.
fn down(mut peer: Peer, tap: &File, ends: &AtomicBool) {
    while !ends.load(Ordering::Relaxed) {
        let Some(frame) = peer.receive(TICK) else {
            continue;
        };
        let mut to = tap;
        if let Err(error) = to.write_all(&frame) {
            // EIO: it is down.
            let is_down = error.raw_os_error() == Some(libc::EIO);
            assert!(is_down || error.kind() == ErrorKind::WouldBlock, "TAP: {error}");
        }
    }
}
