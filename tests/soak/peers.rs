//! Peers of streams that come, do something for a while, and go. Some keep to the rules, others end
//! their connection by what they do; the next peer is served.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use testkit::Rng;
use testkit::stream::{Peer, packed};
use testkit::vm::mac_of;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

use super::shared::{PORTS, Shared};

/// Streams beside the guests' ports.
pub const STREAMS: usize = 2;
/// A station behind the first stream; the others follow.
const STATION: u8 = 0xd1;

pub struct Peers<'s> {
    stream: usize,
    path: PathBuf,
    rng: Rng,
    shared: &'s Shared,
}

/// A name, and what is done.
type Episode<'s> = (&'static str, fn(&mut Peers<'s>, Peer));

impl<'s> Peers<'s> {
    const EPISODES: [Episode<'s>; 6] = [
        ("stream talk", Self::talk),
        ("stream silent", Self::never_reads),
        ("stream crumbs", Self::byte_by_byte),
        ("stream torn", Self::leaves_in_a_frame),
        ("stream garbage", Self::garbage),
        ("stream files", Self::descriptors),
    ];

    pub fn new(stream: usize, path: PathBuf, seed: u64, shared: &'s Shared) -> Peers<'s> {
        let rng = Rng::new(seed ^ (0x5700 + stream as u64));
        Peers { stream, path, rng, shared }
    }

    pub fn run(&mut self) {
        while !self.shared.stopping() {
            self.shared.others_rest();
            if self.shared.stopping() {
                break;
            }
            let (name, act) = Self::EPISODES[self.rng.below(6) as usize];
            self.shared.begins((PORTS + self.stream) as u8, name);
            act(self, Peer::connect(&self.path));
            std::thread::sleep(Duration::from_millis(self.rng.below(20)));
        }
    }

    /// A frame to a guest, to a station that nobody has, or to all.
    fn frame(&mut self) -> Vec<u8> {
        let station = STATION + self.stream as u8;
        let dst = match self.rng.below(8) {
            0 => [0xff; 6],
            _ => mac_of(self.rng.below(PORTS as u64 + 2) as u8),
        };
        let mut frame = [&dst[..], &mac_of(station), &[0x88, 0xb5]].concat();
        frame.resize(60 + self.rng.below(1455) as usize, station);
        frame
    }

    fn for_a_while(&mut self, most: u64, mut act: impl FnMut(&mut Self) -> bool) {
        let end = Instant::now() + Duration::from_millis(self.rng.below(most));
        while Instant::now() < end && !self.shared.leave_now() && act(self) {
            std::thread::sleep(Duration::from_micros(200 + self.rng.below(2000)));
        }
    }

    /// All that it sends is taken in, also what is on its way when it leaves.
    fn talk(&mut self, mut peer: Peer) {
        let mut sent = 0;
        self.for_a_while(4_000, |me| {
            for _ in 0..1 + me.rng.below(16) {
                peer.send(&me.frame());
                sent += 1;
            }
            while peer.receive(Duration::from_micros(100)).is_some() && !me.shared.leave_now() {}
            true
        });
        self.shared.stream_frames[self.stream].fetch_add(sent, Ordering::Relaxed);
    }

    fn never_reads(&mut self, mut peer: Peer) {
        peer.send(&self.frame());
        self.for_a_while(4_000, |_| true);
    }

    fn byte_by_byte(&mut self, mut peer: Peer) {
        self.for_a_while(1_000, |me| {
            let bytes = packed(&me.frame()[..60]);
            bytes.iter().all(|byte| peer.socket.write_all(&[*byte]).is_ok())
        });
    }

    fn leaves_in_a_frame(&mut self, mut peer: Peer) {
        let bytes = packed(&self.frame());
        let some = self.rng.below(bytes.len() as u64) as usize;
        peer.write(&bytes[..some]);
    }

    fn garbage(&mut self, mut peer: Peer) {
        self.for_a_while(500, |me| {
            let bytes: Vec<u8> = (0..me.rng.below(2_000)).map(|_| me.rng.next() as u8).collect();
            peer.socket.write_all(&bytes).is_ok()
        });
    }

    fn descriptors(&mut self, peer: Peer) {
        let bytes = packed(&self.frame());
        let file = peer.socket.as_raw_fd();
        // Refused by the kernel since Linux 6.16.
        let _ = peer.socket.send_with_fds(&[&bytes[..]], &[file, file]);
    }
}
