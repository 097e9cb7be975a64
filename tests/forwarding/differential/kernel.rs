//! The kernel's bridge, whose ports are TAPs that the test holds: a frame that is written to one
//! has left by the others when the call returns.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};

use testkit::SOON;
use testkit::host::ip;
use testkit::proc::wait_for;

use super::{Copies, Frame, Keys, SLOTS, Switch};

/// What is missing to run it.
pub fn missing() -> Option<String> {
    let found = Command::new("bridge").arg("-V").output();
    let runs = found.is_ok_and(|output| output.status.success());
    (!runs).then(|| "needs bridge (iproute2)".to_owned())
}

/// A TAP of this name.
pub fn open(name: &str) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
    let tap = options.open("/dev/net/tun").expect("/dev/net/tun");
    // SAFETY: all-zero bytes are a valid ifreq, which TUNSETIFF reads and writes.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = byte as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
        let made = libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF as _, &mut request);
        assert_eq!(made, 0, "TUNSETIFF: {}", std::io::Error::last_os_error());
    }
    tap
}

pub struct Kernel {
    taps: Vec<File>,
    present: Vec<bool>,
}

impl Kernel {
    /// Nothing if VLANs are wanted and it knows none.
    pub fn start(vlans: bool) -> Option<Kernel> {
        let words = if vlans { " vlan_filtering 1 vlan_default_pvid 0" } else { "" };
        let mut command = Command::new("ip");
        command.args("link add br0 type bridge mcast_snooping 0".split(' '));
        command.args(words.split_whitespace()).stderr(Stdio::null());
        if !command.status().expect("run ip").success() {
            return None;
        }
        ip("link set br0 up");
        let taps = (0..SLOTS).map(|slot| open(&format!("k{slot}"))).collect();
        for slot in 0..SLOTS {
            ip(&format!("link set k{slot} up"));
        }
        // A bridge takes a port into service that is up, and is told of that when there is time.
        let is_up = |slot: u8| {
            let state = std::fs::read_to_string(format!("/sys/class/net/k{slot}/operstate"));
            let shown = ip(&format!("-br link show k{slot}"));
            shown.contains("LOWER_UP") && (shown.contains(" UP ") || shown.contains("UNKNOWN"))
                || state.is_ok_and(|state| state.trim() == "up")
        };
        assert!(wait_for(SOON, || (0..SLOTS).all(is_up)), "{}", ip("-br link"));
        Some(Kernel { taps, present: vec![false; SLOTS.into()] })
    }
}

/// Commands of `bridge`, all at once.
fn bridge(lines: &[String]) {
    let mut command = Command::new("bridge");
    let command = command.args(["-batch", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("run bridge");
    let text = lines.join("\n") + "\n";
    child.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("commands");
    let output = child.wait_with_output().expect("bridge");
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

fn vlans(what: &str, port: u8, keys: &Keys) -> Vec<String> {
    let line = |vlan: &u16, words: &str| format!("vlan {what} dev k{port} vid {vlan}{words}");
    let native = if what == "add" { " pvid untagged" } else { "" };
    let tagged = keys.tagged.iter().map(|vlan| line(vlan, ""));
    tagged.chain(keys.untagged.iter().map(|vlan| line(vlan, native))).collect()
}

fn flags(port: u8, keys: &Keys) -> String {
    let on = |is_on: bool| if is_on { "on" } else { "off" };
    let (isolated, learn, flood) = (on(keys.isolated), on(keys.learn), on(keys.flood));
    format!("link set dev k{port} isolated {isolated} learning {learn} flood {flood}")
}

impl Drop for Kernel {
    fn drop(&mut self) {
        ip("link del br0");
    }
}

impl Switch for Kernel {
    fn add(&mut self, port: u8, keys: &Keys) {
        ip(&format!("link set k{port} master br0"));
        let mut lines = vlans("add", port, keys);
        lines.push(flags(port, keys));
        bridge(&lines);
        self.present[usize::from(port)] = true;
    }

    fn delete(&mut self, port: u8) {
        ip(&format!("link set k{port} nomaster"));
        self.present[usize::from(port)] = false;
    }

    fn change(&mut self, port: u8, before: &Keys, keys: &Keys) {
        let mut lines = vlans("del", port, before);
        lines.extend(vlans("add", port, keys));
        lines.push(flags(port, keys));
        bridge(&lines);
        ip(&format!("link set k{port} type bridge_slave fdb_flush"));
    }

    fn flush(&mut self) {
        ip("link set br0 type bridge fdb_flush");
    }

    fn send(&mut self, port: u8, frame: &Frame) -> Copies {
        self.taps[usize::from(port)].write_all(&frame.bytes()).expect("send");
        let (mut copies, mut room) = (Copies::new(), [0; 2048]);
        for (port, tap) in self.taps.iter_mut().enumerate() {
            loop {
                match tap.read(&mut room) {
                    Ok(len) => {
                        assert!(self.present[port], "a frame at a port that is not there");
                        let tag = frame.tag_of(&room[..len]);
                        assert!(copies.insert(port as u8, tag).is_none(), "twice: {frame:?}");
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => panic!("tap: {error}"),
                }
            }
        }
        copies
    }
}
