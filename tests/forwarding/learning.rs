//! Where a frame goes: learning, flooding, moves, static entries, reserved and invalid addresses.
//! Few frames, each with its exact set of receivers.

use std::time::Duration;

use testkit::SOON;
use testkit::frontend::Frontend;
use testkit::proc::Daemon;
use testkit::vm::{Vm, VmConfig, mac_of};

const BROADCAST: [u8; 6] = [0xff; 6];
/// How long nothing may come where nothing must: hundreds of times what a frame takes.
const QUIET: Duration = Duration::from_millis(30);

/// A switch with as many guests as ports.
struct Lan {
    d: Daemon,
    vms: Vec<Option<Vm>>,
    count: u8,
}

impl Lan {
    fn new(ports: &[&str], extra: &[&str]) -> Lan {
        let d = Daemon::with_ports(ports, extra);
        let vms = (0..ports.len()).map(|i| Some(attach(&d, i))).collect();
        Lan { d, vms, count: 0 }
    }

    fn of(n: usize) -> Lan {
        Lan::new(&vec![""; n], &[])
    }

    /// Sends one frame from a port and checks that exactly `to` receive it, unchanged and once.
    fn expect(&mut self, from: usize, dst: [u8; 6], src: [u8; 6], to: &[usize]) {
        self.count = self.count.wrapping_add(1);
        let mut frame = [&dst[..], &src, &[0x88, 0xb5]].concat();
        frame.resize(60 + self.count as usize, self.count);
        self.expect_raw(from, &frame, to);
    }

    fn expect_raw(&mut self, from: usize, frame: &[u8], to: &[usize]) {
        let sender = self.vms[from].as_mut().expect("attached");
        assert!(sender.tx[0].send(frame));
        sender.tx[0].drain(SOON);
        for &i in to {
            let rx = &mut self.vms[i].as_mut().expect("attached").rx[0];
            assert!(rx.wait(SOON), "port {i} missed {:02x?}", &frame[..12]);
            rx.recv(1, |_, got| assert_eq!(got, frame, "port {i}"));
        }
        std::thread::sleep(QUIET);
        for (i, vm) in self.vms.iter_mut().enumerate() {
            let Some(vm) = vm else { continue };
            let n = vm.rx[0].recv(16, |_, got| {
                eprintln!("port {i}: {} bytes {:02x?}", got.len(), &got[..14.min(got.len())]);
            });
            assert_eq!(n, 0, "port {i} got what is not for it");
        }
    }

    /// A port's own address, learned by a broadcast of its guest.
    fn learn(&mut self, port: usize) {
        let others: Vec<usize> =
            (0..self.vms.len()).filter(|&i| i != port && self.vms[i].is_some()).collect();
        self.expect(port, BROADCAST, mac_of(port as u8), &others);
    }
}

fn attach(d: &Daemon, port: usize) -> Vm {
    Vm::connect(&d.socket(port), VmConfig::new(port as u8))
}

#[test]
fn unknown_floods_until_learned() {
    let mut lan = Lan::of(4);
    lan.expect(0, mac_of(2), mac_of(0), &[1, 2, 3]);
    // The flooded frame taught where 0 is; its answer teaches where 2 is.
    lan.expect(2, mac_of(0), mac_of(2), &[0]);
    lan.expect(0, mac_of(2), mac_of(0), &[2]);
    lan.expect(1, mac_of(2), mac_of(1), &[2]);
    lan.d.stop();
}

#[test]
fn broadcast_and_multicast_reach_all_others() {
    let mut lan = Lan::of(4);
    for dst in [BROADCAST, [1, 0, 0x5e, 0, 0, 1], [0x33, 0x33, 0, 0, 0, 1]] {
        lan.expect(1, dst, mac_of(1), &[0, 2, 3]);
    }
    lan.d.stop();
}

/// A group address cannot send, nor can zero; neither may enter the table.
#[test]
fn invalid_sources_are_dropped() {
    let mut lan = Lan::of(3);
    (0..3).for_each(|i| lan.learn(i));
    for src in [BROADCAST, [1, 0, 0x5e, 0, 0, 1], [0; 6], [3, 0, 0, 0, 0, 1]] {
        lan.expect(0, mac_of(1), src, &[]);
        lan.expect(0, BROADCAST, src, &[]);
        // Not learned: a frame to it still floods.
        lan.expect(1, src, mac_of(1), &[0, 2]);
    }
    lan.d.stop();
}

/// 802.1Q, 8.6.3: 01:80:c2:00:00:00 to 0f stay on their link. 10 is an ordinary group.
#[test]
fn reserved_addresses_are_not_forwarded() {
    let mut lan = Lan::of(3);
    for last in 0..=0x0f {
        lan.expect(0, [1, 0x80, 0xc2, 0, 0, last], mac_of(0), &[]);
    }
    lan.expect(0, [1, 0x80, 0xc2, 0, 0, 0x10], mac_of(0), &[1, 2]);
    lan.expect(0, [1, 0x80, 0xc2, 0, 1, 0], mac_of(0), &[1, 2]);
    lan.d.stop();
}

/// A frame for an address on the sender's own port has arrived already.
#[test]
fn hairpin_is_filtered() {
    let mut lan = Lan::of(3);
    lan.learn(0);
    lan.expect(0, mac_of(0), mac_of(0), &[]);
    // A second address behind the same port, as with nested guests.
    lan.expect(0, BROADCAST, mac_of(9), &[1, 2]);
    lan.expect(0, mac_of(9), mac_of(0), &[]);
    lan.expect(0, mac_of(0), mac_of(9), &[]);
    lan.expect(1, mac_of(9), mac_of(1), &[0]);
    lan.d.stop();
}

#[test]
fn an_address_moves_with_its_guest() {
    let mut lan = Lan::of(3);
    lan.expect(0, BROADCAST, mac_of(9), &[1, 2]);
    lan.expect(2, mac_of(9), mac_of(2), &[0]);
    lan.expect(1, BROADCAST, mac_of(9), &[0, 2]);
    lan.expect(2, mac_of(9), mac_of(2), &[1]);
    lan.expect(0, mac_of(9), mac_of(0), &[1]);
    lan.d.stop();
}

/// `mac=` binds an address to a port: known before it speaks, and never learned elsewhere.
#[test]
fn a_static_address_stays() {
    let mac = "02:56:53:00:00:01";
    assert_eq!(mac_of(1), [2, 0x56, 0x53, 0, 0, 1]);
    let mut lan = Lan::new(&["", &format!(",mac={mac}"), ""], &[]);
    lan.expect(0, mac_of(1), mac_of(0), &[1]);
    // Port 2 pretends to be it. Whether that frame is forwarded is policy; the table must hold.
    let forged = [&BROADCAST[..], &mac_of(1), &[0x88, 0xb5], &[7; 50]].concat();
    let thief = lan.vms[2].as_mut().expect("attached");
    assert!(thief.tx[0].send(&forged));
    thief.tx[0].drain(SOON);
    std::thread::sleep(QUIET);
    for vm in lan.vms.iter_mut().flatten() {
        vm.rx[0].recv(4, |_, got| assert_eq!(got, forged));
    }
    lan.expect(0, mac_of(1), mac_of(0), &[1]);
    // It never filters what its own port sends.
    lan.expect(1, mac_of(0), mac_of(9), &[0]);
    lan.expect(0, mac_of(9), mac_of(0), &[1]);
    lan.d.stop();
}

/// A port that disconnects takes its addresses with it: they flood again.
#[test]
fn addresses_leave_with_their_port() {
    let mut lan = Lan::of(4);
    (0..4).for_each(|i| lan.learn(i));
    lan.expect(0, mac_of(3), mac_of(0), &[3]);
    lan.vms[3] = None;
    // The daemon notices by itself; until then the frame goes to the dead port and is counted.
    std::thread::sleep(QUIET);
    lan.expect(0, mac_of(3), mac_of(0), &[1, 2]);
    lan.vms[3] = Some(attach(&lan.d, 3));
    lan.expect(0, mac_of(3), mac_of(0), &[1, 2, 3]);
    lan.expect(3, mac_of(0), mac_of(3), &[0]);
    lan.expect(0, mac_of(3), mac_of(0), &[3]);
    lan.d.stop();
}

/// An announcement that a worker has not sent when its front-end leaves teaches nothing any more.
/// About one race in fifteen was lost without the rule, so 160 of them.
#[test]
fn announcements_leave_with_their_port() {
    let d = Daemon::with(8, &[]);
    for round in 0..20 {
        for port in 0..8 {
            let mut fe = Frontend::connect(&d.socket(port), SOON).expect("connect");
            fe.send_rarp(mac_of(port as u8)).expect("sent");
        }
        std::thread::sleep(QUIET);
        d.counters();
        let log = d.log();
        let addresses = log.lines().rev().find_map(|line| line.split_once("] addresses "));
        assert_eq!(addresses.map(|line| line.1), Some("0"), "round {round}");
    }
    d.stop();
}

/// `--age`: an address that is silent for longer floods again.
#[test]
fn addresses_age() {
    let mut lan = Lan::new(&["", "", ""], &["--age", "1"]);
    lan.learn(1);
    lan.expect(0, mac_of(1), mac_of(0), &[1]);
    std::thread::sleep(Duration::from_millis(3200));
    lan.expect(0, mac_of(1), mac_of(0), &[1, 2]);
    lan.d.stop();
}

/// SEND_RARP: the announcement goes out as if the guest had sent it, and its address is learned.
#[test]
fn rarp_is_sent_and_learned() {
    let mut lan = Lan::of(3);
    lan.vms[1].as_mut().expect("attached").fe.send_rarp(mac_of(9)).expect("sent");
    for i in [0, 2] {
        let rx = &mut lan.vms[i].as_mut().expect("attached").rx[0];
        assert!(rx.wait(SOON), "port {i}: no RARP");
        rx.recv(1, |_, f| {
            assert_eq!(f[..6], BROADCAST);
            assert_eq!(f[6..12], mac_of(9));
            // RFC 903: EtherType 0x8035, request reverse (3), both hardware addresses ours.
            assert_eq!(f[12..22], [0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
            assert_eq!(f[22..28], mac_of(9));
            assert_eq!(f[32..38], mac_of(9));
        });
    }
    lan.expect(0, mac_of(9), mac_of(0), &[1]);
    lan.d.stop();
}

/// Less than an Ethernet header is no frame; its buffer comes back all the same.
#[test]
fn runts_are_dropped() {
    let mut lan = Lan::of(3);
    let whole = [&BROADCAST[..], &mac_of(0), &[0x88, 0xb5]].concat();
    for len in 0..14 {
        lan.expect_raw(0, &whole[..len], &[]);
    }
    lan.expect_raw(0, &whole, &[1, 2]);
    lan.d.stop();
}

/// A front-end that is connected but has no driver running receives nothing and holds up nobody.
#[test]
fn an_idle_front_end_is_no_receiver() {
    let d = Daemon::with(3, &[]);
    let mut idle = Frontend::connect(&d.socket(2), SOON).expect("connect");
    idle.get_features().expect("answers");
    let vms = vec![Some(attach(&d, 0)), Some(attach(&d, 1)), None];
    let mut lan = Lan { d, vms, count: 0 };
    lan.expect(0, BROADCAST, mac_of(0), &[1]);
    lan.expect(1, mac_of(9), mac_of(1), &[0]);
    lan.expect(1, mac_of(0), mac_of(1), &[0]);
    lan.d.stop();
}
