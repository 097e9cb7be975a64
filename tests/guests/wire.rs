//! A host behind the uplink on a wire that knows no offloads, and a recording of what passes.
//!
//! The TAP becomes a port of a bridge, and a veth pair leads from the bridge to another namespace.
//! With the pair's offloads off, the kernel has to finish every checksum and cut every packet that
//! comes out of the TAP by what the daemon wrote in its virtio-net header, as it would for a
//! network card. In the other direction it merges segments before the TAP (GRO), as after one.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::lab::{Lab, TAP, hold_namespace, in_netns};
use super::wait_for;

/// Addresses of the host behind the wire.
pub const FAR_IP4: &str = "10.99.0.253";
/// The same in IPv6.
pub const FAR_IP6: &str = "fd00:99::fd";

/// How long nothing may have been written before tcpdump is taken to be done.
const SETTLED: Duration = Duration::from_millis(600);

/// Bytes of an Ethernet frame with the guests' MTU of 1500.
const MAX_FRAME: usize = 1514;

/// The wire and the host at its end.
pub struct Wire {
    holder: Child,
    recordings: PathBuf,
}

impl Wire {
    /// Takes the TAP away from the lab's own host and puts it into a bridge.
    pub fn new(lab: &Lab) -> Wire {
        let wire = Wire { holder: hold_namespace(), recordings: lab.path("wire.pcap") };
        lab.sh(&format!(
            "ip addr flush dev {TAP} && ip link add br0 type bridge \
             && ip link set {TAP} master br0 \
             && ip link add wire0 type veth peer name wire1 netns {} \
             && ip link set wire0 master br0 \
             && ethtool -K wire0 tx off tso off gso off gro on >/dev/null \
             && ip link set wire0 up && ip link set br0 up",
            wire.holder.id()
        ));
        let far = format!(
            "ethtool -K wire1 tx off tso off gso off gro off >/dev/null \
             && ip link set lo up && ip link set wire1 up && ip addr add {FAR_IP4}/24 dev wire1 \
             && ip -6 addr add {FAR_IP6}/64 dev wire1 nodad"
        );
        let out = wire.command("sh").args(["-c", &far]).output().expect("run sh");
        let errors = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "`{far}` failed behind the wire: {errors}");
        wire
    }

    /// A command at the wire's end.
    pub fn command(&self, program: &str) -> Command {
        in_netns(Some(&self.holder), program)
    }

    /// Records up to `frames` frames at the wire's end, of both directions.
    pub fn record(&self, frames: u32) -> Recording {
        let log = self.recordings.with_extension("log");
        let child = self
            .command("tcpdump")
            // Buffers for what comes while the guests leave tcpdump no CPU.
            .args(["-i", "wire1", "-n", "-Z", "root", "-B", "16384", "-c", &frames.to_string()])
            // Each frame goes to tcpdump and to the file at once, not by the block each second, so
            // that the file tells when there are no more.
            .args([
                "--immediate-mode",
                "-U",
                "-w",
                self.recordings.to_str().expect("a path"),
                "tcp or udp",
            ])
            .stderr(File::create(&log).expect("create tcpdump's log"))
            .spawn()
            .expect("start tcpdump");
        wait_for("tcpdump", Duration::from_secs(20), || {
            std::fs::read_to_string(&log).ok()?.contains("listening on").then_some(())
        });
        Recording { child, file: self.recordings.clone() }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// A running tcpdump.
pub struct Recording {
    child: Child,
    file: PathBuf,
}

impl Recording {
    /// Waits until tcpdump has written what it has been given: at its end it drops the rest.
    fn settle(&mut self) {
        let size = |file: &PathBuf| std::fs::metadata(file).map_or(0, |data| data.len());
        let mut last = (size(&self.file), Instant::now());
        wait_for("tcpdump to be done", Duration::from_secs(20), || {
            let (now, left) = (size(&self.file), self.child.try_wait().expect("wait"));
            if now != last.0 {
                last = (now, Instant::now());
            }
            (left.is_some() || last.1.elapsed() > SETTLED).then_some(())
        });
    }

    /// Ends the recording. Every checksum in it must be right and no frame larger than the MTU
    /// allows; returns how many frames had a checksum of TCP or UDP.
    pub fn check(mut self) -> usize {
        self.settle();
        // It has left by itself if it had enough.
        let _ = kill_process(Pid::from_child(&self.child), Signal::INT);
        let _ = self.child.wait();
        let read = Command::new("tcpdump")
            .args(["-n", "-e", "-vv", "-r", self.file.to_str().expect("a path")])
            .output()
            .expect("run tcpdump");
        let text = String::from_utf8_lossy(&read.stdout);
        let mut right = 0;
        for line in text.lines() {
            // "(incorrect -> …)" of TCP, "[bad udp cksum …]", "bad cksum …" of IPv4.
            let wrong = ["incorrect", "bad udp cksum", "bad cksum"];
            assert!(!wrong.iter().any(|word| line.contains(word)), "on the wire: {line}");
            assert!(frame_len(line).is_none_or(|len| len <= MAX_FRAME), "on the wire: {line}");
            right += usize::from(line.contains("(correct)") || line.contains("udp sum ok"));
        }
        right
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The frame's length in tcpdump's words about its Ethernet header: `… (0x0800), length 1514: …`.
fn frame_len(line: &str) -> Option<usize> {
    let (_, rest) = line.split_once("ethertype ")?;
    rest.split_once(", length ")?.1.split_once(':')?.0.parse().ok()
}
