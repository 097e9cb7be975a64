//! This switch, with a VM behind a port with filters, and another one that has none.

use std::collections::HashSet;
use std::fs;

use testkit::SOON;
use testkit::proc::{Daemon, Dir, wait_for};
use testkit::vm::{Vm, VmConfig, mac_of};

use super::flows::Packet;
use super::rules::Model;

pub struct Ours {
    d: Daemon,
    /// The one with filters, and the other.
    guests: [Vm; 2],
    sentinels: u32,
    _dir: Dir,
}

impl Ours {
    pub fn start(model: &Model) -> Ours {
        let dir = Dir::new();
        let [vm, net] = [0, 1].map(|n| dir.path().join(format!("s{n}")));
        let text = format!(
            "[[port]]\nname = \"vm\"\nsocket = \"{}\"\nfilter = \"a,b\"\n\n\
             [[port]]\nname = \"net\"\nsocket = \"{}\"\n\n{}",
            vm.display(),
            net.display(),
            model.ours()
        );
        let config = dir.path().join("switch.toml");
        fs::write(&config, text).expect("a file");
        let d = Daemon::with(0, &["--config", &config.display().to_string()]);
        let sockets = [vm, net];
        let up = wait_for(SOON, || sockets.iter().all(|path| path.exists()));
        assert!(up, "{}\n{}", d.log(), model.ours());
        let guests = [0, 1].map(|n| Vm::connect(&sockets[n], VmConfig::new(n as u8)));
        Ours { d, guests, sentinels: 0, _dir: dir }
    }

    /// Sends packets of one direction; which of them arrive with all their parts.
    pub fn pass(&mut self, packets: &[Packet]) -> Vec<bool> {
        let from = usize::from(!packets[0].event.out);
        let frames: Vec<Vec<Vec<u8>>> = packets
            .iter()
            .map(|packet| packet.parts.iter().map(|part| frame(from, part)).collect())
            .collect();
        self.sentinels += 1;
        let last = question(from, self.sentinels);
        let ring = &mut self.guests[from].tx[0];
        for frame in frames.iter().flatten().chain([&last]) {
            assert!(ring.queue(frame), "no room");
        }
        ring.ring.publish();
        ring.drain(SOON);
        let mut got = HashSet::new();
        while !got.contains(&last) {
            let came = self.guests[1 - from].rx[0].take(1, SOON);
            assert!(!came.is_empty(), "the frame that always passes did not come");
            got.extend(came.into_iter().map(|(_, frame)| frame));
        }
        // What answers there are.
        self.guests[from].rx[0].recv(usize::MAX, |_, _| {});
        frames.iter().map(|parts| parts.iter().all(|part| got.contains(part))).collect()
    }

    pub fn stop(self) {
        let Ours { d, guests, .. } = self;
        drop(guests);
        d.stop();
    }
}

/// A question of ARP: no filter stops one.
pub fn question(from: usize, number: u32) -> Vec<u8> {
    let mac = mac_of(from as u8);
    let head = [&mac_of(1 - from as u8)[..], &mac, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
    let mut frame = [&head[..], &mac, &[0; 4], &[0; 6], &number.to_be_bytes()].concat();
    frame.resize(60, 0);
    frame
}

/// A frame with a packet from the VM (0) or from the other (1).
pub fn frame(from: usize, packet: &[u8]) -> Vec<u8> {
    let kind: u16 = if packet[0] >> 4 == 6 { 0x86dd } else { 0x0800 };
    let macs = [mac_of(1 - from as u8), mac_of(from as u8)].concat();
    let mut frame = [&macs[..], &kind.to_be_bytes(), packet].concat();
    frame.resize(frame.len().max(60), 0);
    frame
}
