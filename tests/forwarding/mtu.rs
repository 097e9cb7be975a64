//! Frames too big for where they go: dropped there, by name and with balanced books, and nowhere
//! else. VLAN tags do not count. What is to be segmented is another file's.
//!
//! The uplink's tests need root and `/dev/net/tun`; otherwise each says that it was skipped.

use std::process::Command;
use std::time::Duration;

use testkit::SOON;
use testkit::host::{Host, in_namespace, ip};
use testkit::proc::{Daemon, wait_for};
use testkit::vm::{Vm, VmConfig, mac_of};

const HOST: u8 = 9;
const BROADCAST: [u8; 6] = [0xff; 6];
/// How long nothing may come where nothing must.
const QUIET: Duration = Duration::from_millis(30);
/// An interface's new MTU is told at once, to a thread that a busy machine may keep waiting.
const FOLLOWED: Duration = Duration::from_millis(500);
/// A VLAN tag, and one around it.
const TAG: [u8; 4] = [0x81, 0, 0, 5];
const OUTER: [u8; 4] = [0x88, 0xa8, 0, 6];

/// A frame of `len` bytes with these tags, from one station to another address.
fn frame(dst: [u8; 6], src: u8, tags: &[[u8; 4]], len: usize) -> Vec<u8> {
    let mut frame = [&dst[..], &mac_of(src), &tags.concat(), &[0x88, 0xb5]].concat();
    frame.resize(len, len as u8);
    frame
}

struct Lan {
    d: Daemon,
    vms: Vec<Vm>,
    /// Copies that had to be dropped so far.
    too_big: u64,
}

impl Lan {
    fn new(ports: &[&str], extra: &[&str]) -> Lan {
        let d = Daemon::with_ports(ports, extra);
        let vms = (0..ports.len()).map(|id| Vm::connect(&d.socket(id), config(id))).collect();
        let mut lan = Lan { d, vms, too_big: 0 };
        for id in 0..ports.len() {
            lan.learn(id);
        }
        lan
    }

    /// A guest's broadcast, short enough for everybody.
    fn learn(&mut self, id: usize) {
        let others: Vec<usize> = (0..self.vms.len()).filter(|&other| other != id).collect();
        self.flood(id, &[60], &others.iter().map(|&other| (other, &[60][..])).collect::<Vec<_>>());
    }

    /// One frame to a guest, which gets it or does not.
    fn unicast(&mut self, from: usize, to: usize, tags: &[[u8; 4]], len: usize, passes: bool) {
        let sent = frame(mac_of(to as u8), from as u8, tags, len);
        self.vms[from].tx[0].send_waiting(&sent, SOON);
        self.vms[from].tx[0].drain(SOON);
        let rx = &mut self.vms[to].rx[0];
        if passes {
            assert!(rx.wait(SOON), "{len} bytes, {} tags: missed", tags.len());
            rx.recv(1, |_, got| assert_eq!(got, sent));
        } else {
            self.too_big += 1;
            std::thread::sleep(QUIET);
            rx.recv(1, |_, got| panic!("{} bytes, {} tags came", got.len(), tags.len()));
        }
    }

    /// Broadcasts of these lengths in one burst; `expected` tells who gets which of them.
    fn flood(&mut self, from: usize, lens: &[usize], expected: &[(usize, &[usize])]) {
        let make = |len: usize| frame(BROADCAST, from as u8, &[], len);
        for &len in lens {
            assert!(self.vms[from].tx[0].queue(&make(len)));
        }
        self.vms[from].tx[0].ring.publish();
        self.vms[from].tx[0].drain(SOON);
        for &(to, expected) in expected {
            let mut got = Vec::new();
            wait_for(SOON, || {
                self.vms[to].rx[0].recv(64, |_, frame| got.push(frame.to_vec()));
                got.len() >= expected.len()
            });
            std::thread::sleep(QUIET);
            self.vms[to].rx[0].recv(64, |_, frame| got.push(frame.to_vec()));
            let expected: Vec<_> = expected.iter().map(|&len| make(len)).collect();
            assert!(got == expected, "guest {to}: {:?}", got.iter().map(Vec::len));
            self.too_big += (lens.len() - expected.len()) as u64;
        }
    }

    /// Exactly what had to be dropped was, under its name and at these ports.
    fn finish(self, small: &[&str]) {
        let c = self.d.counters();
        c.balance();
        let at = |port: Option<&str>| c.sum(port, "", "drop.too_big");
        assert_eq!(small.iter().map(|port| at(Some(port))).sum::<u64>(), self.too_big, "{c:#?}");
        assert!(self.too_big > 0);
        let all = c.drops(None, "in") + c.drops(None, "out") + c.drops(None, "");
        assert_eq!(all, self.too_big, "other drops: {c:#?}");
        self.d.stop();
    }
}

fn config(id: usize) -> VmConfig {
    let mut config = VmConfig::new(id as u8);
    config.tx.max_frame = 9200;
    config
}

#[test]
fn what_is_configured_is_the_longest_packet() {
    for workers in ["1", "2"] {
        let mut lan = Lan::new(&["", ",mtu=1500"], &["--workers", workers]);
        for (tags, len, passes) in [
            (&[][..], 1514, true),
            (&[], 1515, false),
            (&[TAG], 1518, true),
            (&[TAG], 1519, false),
            (&[OUTER, TAG], 1522, true),
            (&[OUTER, TAG], 1523, false),
            // A third tag is payload.
            (&[OUTER, TAG, TAG], 1522, true),
            (&[OUTER, TAG, TAG], 1526, false),
            (&[], 9000, false),
            (&[], 60, true),
        ] {
            lan.unicast(0, 1, tags, len, passes);
            // Of the other one nobody said anything.
            lan.unicast(1, 0, tags, len, true);
        }
        lan.finish(&["p1"]);
    }
}

/// The limit is that of the packet, whatever tag comes or goes on its way.
#[test]
fn a_tag_that_is_pushed_or_popped_does_not_count() {
    let keys = [",vlan=5,mtu=1500", ",trunk=5,mtu=1500"];
    let d = Daemon::with_ports(&keys, &[]);
    let mut vms = [0, 1].map(|id| Vm::connect(&d.socket(id), config(id)));
    let mut too_big = [0, 0];
    for (from, dst) in [(0, BROADCAST), (1, BROADCAST), (0, mac_of(1)), (1, mac_of(0))] {
        for packet in [46, 1499, 1500, 1501, 1504, 1505] {
            let forms = [&[][..], &[TAG]];
            let len = |tags: &[[u8; 4]]| 14 + 4 * tags.len() + packet;
            let plain = frame(dst, from as u8, &[], len(&[]));
            let forms = forms.map(|tags| {
                let mut bytes = frame(dst, from as u8, tags, len(tags));
                let payload = bytes.len() - packet;
                bytes[payload..].copy_from_slice(&plain[14..]);
                bytes
            });
            vms[from].tx[0].send_waiting(&forms[from], SOON);
            vms[from].tx[0].drain(SOON);
            let rx = &mut vms[1 - from].rx[0];
            if packet <= 1500 {
                assert!(rx.wait(SOON), "{packet} bytes from {from}: missed");
                rx.recv(1, |_, got| assert!(got == forms[1 - from], "{packet} from {from}"));
            } else {
                too_big[1 - from] += 1;
            }
        }
    }
    std::thread::sleep(QUIET);
    vms.iter_mut().for_each(|vm| _ = vm.rx[0].recv(1, |_, got| panic!("{} bytes", got.len())));
    let c = d.counters();
    c.balance();
    assert_eq!(["p0", "p1"].map(|port| c.sum(Some(port), "", "drop.too_big")), too_big);
    d.stop();
}

#[test]
fn the_front_end_may_say_less_and_it_is_forgotten_with_it() {
    let mut lan = Lan::new(&["", ",mtu=9000"], &[]);
    lan.unicast(0, 1, &[], 9014, true);
    lan.unicast(0, 1, &[], 9015, false);
    for (said, most) in [(1500, 1514), (576, 590), (65_535, 9014), (1500, 1514)] {
        lan.vms[1].fe.net_set_mtu(said).expect("sent");
        lan.vms[1].settle();
        lan.unicast(0, 1, &[], most, true);
        lan.unicast(0, 1, &[], most + 1, false);
        lan.unicast(0, 1, &[TAG], most + 4, true);
    }
    let socket = lan.d.socket(1);
    lan.vms[1].reconnect(&socket);
    lan.learn(1);
    lan.unicast(0, 1, &[], 9014, true);
    lan.unicast(0, 1, &[], 9015, false);
    lan.finish(&["p1"]);
}

#[test]
fn of_a_flood_only_the_small_port_loses() {
    for workers in ["1", "2"] {
        let ports = ["", ",mtu=576", "", ",mtu=1500"];
        let mut lan = Lan::new(&ports, &["--workers", workers]);
        let all = [60, 1514, 590, 9000, 591, 1515, 61];
        let small = [60, 590, 61];
        let middle = [60, 1514, 590, 591, 61];
        lan.flood(0, &all, &[(1, &small), (2, &all), (3, &middle)]);
        lan.flood(2, &[1514, 9000], &[(0, &[1514, 9000]), (1, &[]), (3, &[1514])]);
        lan.flood(1, &[9000], &[(0, &[9000]), (2, &[9000]), (3, &[])]);
        lan.finish(&["p1", "p3"]);
    }
}

/// Bursts in which big and small frames alternate keep their order.
#[test]
fn what_fits_of_a_burst_arrives_in_order() {
    let mut lan = Lan::new(&["", ",mtu=1500"], &[]);
    let lens: Vec<usize> = (0..100).map(|i| if i % 3 == 1 { 2000 + i } else { 100 + i }).collect();
    for &len in &lens {
        assert!(lan.vms[0].tx[0].queue(&frame(mac_of(1), 0, &[], len)));
    }
    lan.vms[0].tx[0].ring.publish();
    lan.vms[0].tx[0].drain(SOON);
    let mut got = Vec::new();
    let fitting: Vec<usize> = lens.iter().copied().filter(|&len| len <= 1514).collect();
    wait_for(SOON, || {
        lan.vms[1].rx[0].recv(64, |_, frame| got.push(frame.len()));
        got.len() >= fitting.len()
    });
    assert_eq!(got, fitting);
    lan.too_big += (lens.len() - fitting.len()) as u64;
    lan.finish(&["p1"]);
}

/// A guest and the host's side of the uplink.
struct Uplink {
    d: Daemon,
    vm: Vm,
    host: Host,
    too_big: u64,
}

impl Uplink {
    fn new(keys: &str) -> Uplink {
        let d = Daemon::with(1, &["--tap", &format!("up,ifname=tap0{keys}")]);
        let vm = Vm::connect(&d.socket(0), config(0));
        let host = Host::open("tap0");
        let mut uplink = Uplink { d, vm, host, too_big: 0 };
        uplink.learn();
        uplink
    }

    fn learn(&mut self) {
        self.host.send(&frame(BROADCAST, HOST, &[], 60));
        assert!(self.vm.rx[0].wait(SOON), "the host's broadcast");
        self.vm.rx[0].recv(16, |_, _| {});
    }

    /// Frames of these lengths to the host, by unicast and by broadcast; those of up to `most`
    /// bytes must arrive.
    fn expect(&mut self, most: usize, lens: &[usize]) {
        for dst in [mac_of(HOST), BROADCAST] {
            for &len in lens {
                let sent = frame(dst, 0, &[], len);
                self.vm.tx[0].send_waiting(&sent, SOON);
                if len <= most {
                    assert_eq!(self.host.receive(SOON), Some(sent), "{len} bytes");
                } else {
                    assert_eq!(self.host.receive(QUIET), None, "{len} bytes");
                    self.too_big += 1;
                }
            }
        }
        self.vm.tx[0].drain(SOON);
    }

    fn finish(self) {
        let c = self.d.counters();
        c.balance();
        assert_eq!(c.sum(Some("up"), "", "drop.too_big"), self.too_big, "{c:#?}");
        self.d.stop();
    }
}

/// The MTU that the host has for an interface.
fn mtu_of(ifname: &str) -> String {
    let shown = ip(&format!("-o link show {ifname}"));
    let mut words = shown.split_whitespace().skip_while(|&word| word != "mtu");
    words.nth(1).expect("mtu N").to_owned()
}

/// Also when the interface gets another name.
#[test]
fn an_interfaces_mtu_is_followed() {
    in_namespace(|| {
        let mut uplink = Uplink::new("");
        uplink.expect(1514, &[60, 1514, 1515, 9014]);
        for mtu in [9000, 576, 1500] {
            ip(&format!("link set tap0 mtu {mtu}"));
            std::thread::sleep(FOLLOWED);
            uplink.expect(mtu + 14, &[590, 591, 1514, 1515, 9014, 9015]);
        }
        // Under another name it is still the same one.
        ip("link set tap0 down");
        ip("link set tap0 name other0");
        ip("link set other0 mtu 1000 up");
        std::thread::sleep(FOLLOWED);
        uplink.expect(1014, &[1014, 1015]);
        uplink.finish();
    });
}

#[test]
fn an_interface_of_ours_gets_its_mtu_again_and_again() {
    in_namespace(|| {
        let mut uplink = Uplink::new(",mtu=1400");
        assert_eq!(mtu_of("tap0"), "1400");
        assert!(uplink.d.log().contains("mtu 1400)"), "{}", uplink.d.log());
        uplink.expect(1414, &[1414, 1415]);
        ip("link del tap0");
        // Noticed by a write or read; then made again.
        let again = wait_for(SOON, || uplink.d.log().contains("to interface tap0 again"));
        assert!(again, "{}", uplink.d.log());
        assert_eq!(mtu_of("tap0"), "1400");
        uplink.host = Host::open("tap0");
        uplink.learn();
        uplink.expect(1414, &[1414, 1415]);
        uplink.finish();
    });
}

#[test]
fn an_interface_of_the_administrators_keeps_its_mtu() {
    in_namespace(|| {
        ip("tuntap add dev tap0 mode tap");
        ip("link set tap0 mtu 1300 up");
        let mut uplink = Uplink::new(",mtu=1400");
        assert_eq!(mtu_of("tap0"), "1300");
        let log = uplink.d.log();
        let advice = "tap up: tap0 has an MTU of 1300, not 1400, and keeps it: \
                      ip link set tap0 mtu 1400";
        assert_eq!(log.matches(advice).count(), 1, "{log}");
        uplink.expect(1314, &[1314, 1315]);
        assert!(Command::new("ip").args(["link", "set", "tap0", "mtu", "1400"]).status().is_ok());
        std::thread::sleep(FOLLOWED);
        uplink.expect(1414, &[1414, 1415]);
        uplink.finish();
    });
}

#[test]
fn a_port_with_more_than_the_uplink_is_told_once() {
    in_namespace(|| {
        let taps = ["--tap", "big,ifname=tap0,mtu=9000", "--tap", "small,ifname=tap1"];
        for (ports, told) in [
            (&["", ",mtu=1500"][..], None),
            (&["", ",mtu=1501"], Some("port p1: mtu 1501 exceeds the 1500 of tap small\n")),
            (
                &[",mtu=9000", "", ",mtu=2000"],
                Some(
                    "port p0: mtu 9000 exceeds the 1500 of tap small, and so do those of 1 more \
                     port\n",
                ),
            ),
        ] {
            let d = Daemon::with_ports(ports, &taps);
            // Sockets are there before.
            assert!(wait_for(SOON, || d.log().contains("ready: ")), "{}", d.log());
            let log = d.log();
            assert_eq!(log.matches(" exceeds ").count(), usize::from(told.is_some()), "{log}");
            assert!(told.is_none_or(|told| log.contains(told)), "{log}");
            d.stop();
        }
    });
}
