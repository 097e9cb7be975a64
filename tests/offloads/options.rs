//! `offload=`: what a port offers, and what a TAP agrees upon with its kernel. Whatever it is,
//! everything arrives.

use crate::common::frontend::feat;
use crate::common::packet::{Kind, verify};
use crate::common::proc::Daemon;
use crate::common::vm::{Vm, mac_of};
use crate::common::vnet::{DATA_VALID, Header};
use crate::host::{HEADER_LEN, Host, in_namespace};
use crate::lab::{SOON, Sent, Work, connect, exchange, finish, introduce, send};
use crate::tap::{HOST, from_kernel, introduce_host, kernel_sends, send_out};

/// Values of the option, with what a guest is offered by each.
const VALUES: [(&str, u64); 3] =
    [("on", feat::OFFLOADS), ("csum", feat::CSUM | feat::GUEST_CSUM), ("off", 0)];

#[test]
fn ports_offer_what_they_are_told() {
    let d = Daemon::with_ports(&["", ",offload=on", ",offload=csum", ",offload=off"], &[]);
    let mut all = connect(&d, 0, feat::OFFLOADS, true);
    let mut others: Vec<Vm> =
        (1..).zip(VALUES).map(|(id, (_, features))| connect(&d, id, features, true)).collect();
    let mut vms: Vec<&mut Vm> = others.iter_mut().chain([&mut all]).collect();
    introduce(&mut vms);
    for (vm, (value, features)) in others.iter_mut().zip(VALUES) {
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
            let whole = crate::common::packet::finish(&header, &frame);
            got.extend(verify(&whole).expect("a packet in order").payload);
        }
        assert!(got == sent.packet.payload, "{kind:?} {:?}: payload", sent.ask);
    }
}
