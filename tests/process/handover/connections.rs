//! Connections that filters track go on behind a restart.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use testkit::SOON;
use testkit::proc::wait_for;
use testkit::stream::Peer;

use super::Service;

const VM: [u8; 6] = [0x52, 0x54, 0, 0x77, 0, 1];
const PEER: [u8; 6] = [0x52, 0x54, 0, 0x77, 0, 2];
const SYN: u8 = 2;
const ACK: u8 = 16;

/// Makes a segment between port `port` of the VM and port 22 of the peer.
fn segment(from_vm: bool, port: u16, flags: u8) -> Vec<u8> {
    let (macs, hosts, ports) = match from_vm {
        true => ([PEER, VM], [1, 2], [port, 22]),
        false => ([VM, PEER], [2, 1], [22, port]),
    };
    let mut frame = macs.concat();
    frame.extend([8, 0, 0x45, 0, 0, 40, 0, 7, 0, 0, 64, 6, 0, 0]);
    hosts.iter().for_each(|host| frame.extend([10, 0, 0, *host]));
    ports.iter().for_each(|port| frame.extend(port.to_be_bytes()));
    frame.extend([0, 0, 0, 9, 0, 0, 0, 5, 0x50, flags, 1, 0, 0, 0, 0, 0]);
    frame.resize(60, 0);
    frame
}

/// The switch with a VM, whose filter lets nothing in but answers, and with a peer of the VM.
struct Lab {
    service: Service,
    args: Vec<String>,
}

impl Lab {
    fn new() -> Lab {
        let service = Service::new();
        let stream = |name: &str, keys: &str| {
            format!("--stream={name},socket={}{keys}", service.path(name).display())
        };
        let args = vec![
            "--filter=web,default-in=drop".to_owned(),
            stream("pvm", ",filter=web"),
            stream("ppeer", ""),
            format!("--control={}", service.path("control").display()),
        ];
        Lab { service, args }
    }

    /// Starts a process; returns the VM and the peer, which the switch knows.
    fn start(&mut self) -> (Peer, Peer) {
        self.service.start(&self.args);
        self.connect()
    }

    fn connect(&self) -> (Peer, Peer) {
        let mut vm = Peer::connect(&self.service.path("pvm"));
        let mut peer = Peer::connect(&self.service.path("ppeer"));
        // ARP is not filtered.
        let arp = |from: [u8; 6]| {
            let mut frame = [[0xff; 6], from].concat();
            frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
            frame.resize(60, 0);
            frame
        };
        // A port takes frames some time after its peer is connected.
        let limit = Duration::from_millis(50);
        assert!(wait_for(SOON, || {
            vm.send(&arp(VM));
            peer.receive_from(VM, limit).is_some()
        }));
        assert!(wait_for(SOON, || {
            peer.send(&arp(PEER));
            vm.receive_from(PEER, limit).is_some()
        }));
        while peer.receive(limit).is_some() {}
        (vm, peer)
    }
}

fn open(vm: &mut Peer, peer: &mut Peer, port: u16) {
    vm.send(&segment(true, port, SYN));
    assert!(peer.receive_from(VM, SOON).is_some());
    peer.send(&segment(false, port, SYN | ACK));
    assert!(vm.receive_from(PEER, SOON).is_some());
    vm.send(&segment(true, port, ACK));
    assert!(peer.receive_from(VM, SOON).is_some());
}

/// Sends a segment of the peer on each port; returns the ports of those that reach the VM.
fn reached(vm: &mut Peer, peer: &mut Peer, ports: &[u16]) -> Vec<u16> {
    for port in ports {
        peer.send(&segment(false, *port, ACK));
    }
    // The last frame comes through the same ring.
    let mut frame = [[0xff; 6], PEER].concat();
    frame.extend([8, 6]);
    frame.resize(60, 0);
    peer.send(&frame);
    let mut got = Vec::new();
    while let Some(frame) = vm.receive_from(PEER, SOON) {
        if frame[12..14] == [8, 6] {
            return got;
        }
        got.push(u16::from_be_bytes([frame[36], frame[37]]));
    }
    panic!("the frame without a filter did not come");
}

#[test]
fn connections_go_on_after_a_restart() {
    let mut lab = Lab::new();
    let (mut vm, mut peer) = lab.start();
    open(&mut vm, &mut peer, 4000);
    assert_eq!(reached(&mut vm, &mut peer, &[4000, 4001]), [4000]);
    for _ in 0..2 {
        lab.service.stop();
        (vm, peer) = lab.start();
        assert_eq!(reached(&mut vm, &mut peer, &[4001, 4000]), [4000]);
    }
    let log = lab.service.log();
    assert_eq!(log.matches("taken over from the process before: 1 connection").count(), 2, "{log}");
    lab.service.stop();
}

/// The next rules do not permit what the rules before did.
#[test]
fn the_rules_of_the_next_process_decide_about_a_connection() {
    let mut lab = Lab::new();
    let (mut vm, mut peer) = lab.start();
    open(&mut vm, &mut peer, 4000);
    lab.service.stop();
    lab.args[0] += ",default-out=drop";
    (vm, peer) = lab.start();
    assert!(reached(&mut vm, &mut peer, &[4000]).is_empty());
    lab.service.stop();
}

#[test]
fn a_damaged_table_adds_no_connection() {
    let mut lab = Lab::new();
    let (mut vm, mut peer) = lab.start();
    open(&mut vm, &mut peer, 4000);
    lab.service.stop();
    let kept = lab.service.manager.remove("connections").pop().expect("a descriptor");
    let file = File::from(kept);
    let mut byte = [0];
    file.read_exact_at(&mut byte, 40).expect("read");
    file.write_all_at(&[byte[0] ^ 1], 40).expect("write");
    lab.service.manager.add("connections", file.into());
    (vm, peer) = lab.start();
    let log = lab.service.log();
    assert!(log.contains("the process before left a damaged table of connections"), "{log}");
    assert!(reached(&mut vm, &mut peer, &[4000]).is_empty());
    lab.service.stop();
}

/// A port of the next process that a client adds, as libvirt's hook does.
#[test]
fn connections_wait_for_a_port_that_is_added_later() {
    let mut lab = Lab::new();
    let (mut vm, mut peer) = lab.start();
    open(&mut vm, &mut peer, 4000);
    lab.service.stop();
    let vm_port = lab.args.remove(1);
    lab.service.start(&lab.args);
    let keys = vm_port.split_once('=').expect("a port").1.split(',').map(str::to_owned);
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_vioswitchctl"));
    command.arg("--control").arg(lab.service.path("control")).args(["stream", "add"]).args(keys);
    let done = command.output().expect("run vioswitchctl");
    assert!(done.status.success(), "{done:?}");
    (vm, peer) = lab.connect();
    assert_eq!(reached(&mut vm, &mut peer, &[4001, 4000]), [4000]);
    lab.service.stop();
}
