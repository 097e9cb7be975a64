//! What `offload=` offers: on a port, and on a TAP with its kernel. Whatever it is, everything
//! arrives.

use super::lab::{SOON, Sent, Work, connect, exchange, finish, introduce, send};
use super::tap::{HOST, from_kernel, introduce_host, kernel_sends, send_out};
use testkit::frontend::feat;
use testkit::host::{HEADER_LEN, Host, in_namespace};
use testkit::packet::{Kind, verify};
use testkit::proc::Daemon;
use testkit::vm::{Vm, mac_of};
use testkit::vnet::{DATA_VALID, Header};

/// Values of a port's option, with what its guest is offered by each.
const OF_PORTS: [(&str, u64); 4] = [VALUES[0], ("send", feat::HOST_OFFLOADS), VALUES[1], VALUES[2]];

/// Those that a TAP has too.
const VALUES: [(&str, u64); 3] =
    [("on", feat::OFFLOADS), ("csum", feat::CSUM | feat::GUEST_CSUM), ("off", 0)];

#[test]
fn ports_offer_what_they_are_told() {
    let keys = OF_PORTS.map(|(value, _)| format!(",offload={value}"));
    let [on, send, csum, off] = keys.each_ref().map(String::as_str);
    let d = Daemon::with_ports(&["", on, send, csum, off], &[]);
    let mut all = connect(&d, 0, feat::OFFLOADS, true);
    let mut others: Vec<Vm> =
        (1..).zip(OF_PORTS).map(|(id, (_, features))| connect(&d, id, features, true)).collect();
    let mut vms: Vec<&mut Vm> = others.iter_mut().chain([&mut all]).collect();
    introduce(&mut vms);
    for (vm, (value, features)) in others.iter_mut().zip(OF_PORTS) {
        let offered = vm.fe.get_features().expect("answer") & feat::OFFLOADS;
        assert_eq!(offered, features, "offload={value}");
        let mut work = Work::default();
        for kind in Kind::plain() {
            let there = Sent::all(kind, feat::OFFLOADS, all.mac(), vm.mac());
            exchange(&mut all, vm, &there, &mut work);
            let back = Sent::all(kind, features, vm.mac(), all.mac());
            exchange(vm, &mut all, &back, &mut Work::default());
        }
        let port = format!("p{}", vm.cfg.id);
        assert_eq!(Work::counted(&d.counters(), &port), work, "offload={value}");
    }
    others.push(all);
    finish(d, others);
}

/// A front-end takes offloads from its guest, and gives them back, while the rings run: what comes
/// from then on is as it says. Header and event indices stay those that the rings started with, so
/// the words that would change them are ignored.
#[test]
fn a_running_guest_gets_what_its_front_end_said_last() {
    let d = Daemon::with(2, &[]);
    let mut from = connect(&d, 0, feat::OFFLOADS, true);
    let mut to = connect(&d, 1, feat::OFFLOADS, true);
    introduce(&mut [&mut from, &mut to]);
    let all = to.cfg.features;
    let mut work = Work::default();
    for receive in [feat::GUEST_OFFLOADS, 0, feat::GUEST_CSUM, feat::GUEST_OFFLOADS] {
        to.cfg.features = all & !feat::GUEST_OFFLOADS | receive;
        let said = to.cfg.features & !feat::EVENT_IDX;
        to.fe.set_features(said | feat::PROTOCOL_FEATURES).expect("set");
        to.settle();
        for kind in Kind::plain() {
            let there = Sent::all(kind, feat::OFFLOADS, from.mac(), to.mac());
            exchange(&mut from, &mut to, &there, &mut work);
            // What it sends may ask for offloads as before.
            let back = Sent::all(kind, feat::OFFLOADS, to.mac(), from.mac());
            exchange(&mut to, &mut from, &back, &mut Work::default());
        }
        assert_eq!(Work::counted(&d.counters(), "p1"), work, "after {receive:#x}");
    }
    finish(d, vec![from, to]);
}

/// The host's side of a TAP gets what was agreed upon, and so do guests.
#[test]
fn taps_agree_on_what_they_are_told() {
    in_namespace(|| {
        for (value, features) in VALUES {
            let d = Daemon::with(2, &["--tap", &format!("up,ifname=tap0,offload={value}")]);
            let mut vms = vec![connect(&d, 0, feat::OFFLOADS, true), connect(&d, 1, 0, false)];
            let host = Host::open_with_headers("tap0");
            let mut both: Vec<&mut Vm> = vms.iter_mut().collect();
            introduce(&mut both);
            introduce_host(&host, &mut vms);
            let mut work = Work::default();
            for kind in Kind::plain() {
                to_kernel(&mut vms[0], &host, kind, features, &mut work);
                for vm in &mut vms {
                    from_kernel_to(&host, vm, kind);
                }
            }
            assert_eq!(Work::counted(&d.counters(), "up"), work, "offload={value}");
            finish(d, vms);
        }
    });
}

/// A guest's packets as a receiver with these features has to get them, but that the kernel
/// finishes checksums of segments itself.
fn to_kernel(vm: &mut Vm, host: &Host, kind: Kind, features: u64, work: &mut Work) {
    for sent in Sent::all(kind, feat::OFFLOADS, vm.mac(), mac_of(HOST)) {
        let (header, frame) = sent.packet.sent(sent.ask);
        send(vm, &header, &frame);
        let expected = sent.packet.received(sent.ask, features);
        work.add(sent.ask, &expected);
        let left = |(header, frame): (Header, Vec<u8>)| match header.flags {
            DATA_VALID => sent.packet.unfinished(frame),
            _ => (header, frame),
        };
        for (i, (want_header, want)) in expected.into_iter().map(left).enumerate() {
            let what = format!("{kind:?} {:?} frame {i}", sent.ask);
            let got = host.receive(SOON).unwrap_or_else(|| panic!("missing: {what}"));
            assert_eq!(from_kernel(&got), Header { hdr_len: 0, ..want_header }, "{what}");
            assert!(got[HEADER_LEN..] == want, "{what}: bytes");
        }
    }
}

/// The kernel's packets: who cut them is the same to the guest, but all has to come.
fn from_kernel_to(host: &Host, vm: &mut Vm, kind: Kind) {
    for sent in Sent::all(kind, feat::OFFLOADS, mac_of(HOST), vm.mac()) {
        if !kernel_sends(&sent) {
            continue;
        }
        let (header, frame) = sent.packet.sent(sent.ask);
        send_out(host, &header, &frame);
        let mut got: Vec<u8> = Vec::new();
        while got.len() < sent.packet.payload.len() {
            let next = vm.rx[0].take(1, SOON).pop();
            let (header, frame) =
                next.unwrap_or_else(|| panic!("{kind:?} {:?}: {} bytes came", sent.ask, got.len()));
            let whole = testkit::packet::finish(&header, &frame);
            got.extend(verify(&whole).expect("a packet in order").payload);
        }
        assert!(got == sent.packet.payload, "{kind:?} {:?}: payload", sent.ask);
    }
}
