//! Past the host's network stack there are no offloads: what guests leave to others leaves the
//! switch whole, and what a peer leaves to others comes as it is.

use std::process::Command;

use super::lab::{LEVELS, SOON, Sent, Work, connect, finish, introduce, send};
use super::tap::{HOST, introduce_host, send_out};
use testkit::host::{HEADER_LEN, Host, in_namespace, ip, veth_up};
use testkit::packet::{Kind, verify};
use testkit::proc::Daemon;
use testkit::skip;
use testkit::vm::{Vm, mac_of};
use testkit::vnet::Header;

/// A switch at one end of a veth pair, guests of each level, and the other end.
fn lab() -> (Daemon, Vec<Vm>, Host) {
    ip("link add wire type veth peer name peer");
    veth_up(["wire", "peer"]);
    let d = Daemon::with(3, &["--xdp", "up,ifname=wire"]);
    let mut vms: Vec<Vm> =
        (0..).zip(LEVELS).map(|(id, level)| connect(&d, id, level.features(), true)).collect();
    let mut all: Vec<&mut Vm> = vms.iter_mut().collect();
    introduce(&mut all);
    let host = Host::open_with_headers("peer");
    introduce_host(&host, &mut vms);
    (d, vms, host)
}

/// Segments and checksums are those of a receiver that can nothing, to the byte and in order.
#[test]
fn guests_to_a_wire() {
    in_namespace(|| {
        let (d, mut vms, host) = lab();
        let mut work = Work::default();
        // The kernel takes VLAN tags out of what a packet socket gets to see.
        let kinds: Vec<Kind> = Kind::all().filter(|k| k.tags == 0).collect();
        for from in &mut vms {
            for &kind in &kinds {
                for sent in Sent::all(kind, from.cfg.features, from.mac(), mac_of(HOST)) {
                    let (header, frame) = sent.packet.sent(sent.ask);
                    send(from, &header, &frame);
                    let expected = sent.packet.received(sent.ask, 0);
                    work.add(sent.ask, &expected);
                    let what = format!("{kind:?} {:?} {}", sent.ask, sent.packet.payload.len());
                    for (_, want) in &expected {
                        let got = host.receive(SOON).unwrap_or_else(|| panic!("missing: {what}"));
                        let (header, frame) = got.split_at(HEADER_LEN);
                        assert_eq!(Header::parse(header).gso_type, 0, "{what}");
                        assert!(frame == want, "{what}: {} of {} bytes", frame.len(), want.len());
                    }
                }
            }
        }
        assert_eq!(Work::counted(&d.counters(), "up"), work);
        finish(d, vms);
    });
}

/// Bursts of packets that are cut and of short frames between them keep their order, and cost a
/// system call for many segments.
#[test]
fn segments_and_frames_in_one_burst() {
    in_namespace(|| {
        let (d, mut vms, host) = lab();
        let from = &mut vms[0];
        let kind = Kind::plain().find(|kind| !kind.udp).expect("TCP");
        let mut packets = Sent::all(kind, from.cfg.features, from.mac(), mac_of(HOST));
        packets.retain(|sent| sent.packet.payload.len() < 20_000);
        let mut work = Work::default();
        for _ in 0..20 {
            for sent in &packets {
                let (header, frame) = sent.packet.sent(sent.ask);
                from.tx[0].header = header.bytes(from.cfg.header_len());
                assert!(from.tx[0].queue(&frame));
            }
            from.tx[0].ring.publish();
            for sent in &packets {
                let expected = sent.packet.received(sent.ask, 0);
                work.add(sent.ask, &expected);
                for (_, want) in &expected {
                    let got = host.receive(SOON).expect("a frame");
                    assert!(got[HEADER_LEN..] == *want, "{:?}: other bytes", sent.ask);
                }
            }
            from.tx[0].drain(SOON);
        }
        assert_eq!(Work::counted(&d.counters(), "up"), work);
        finish(d, vms);
    });
}

/// A peer that is told to leave nothing to others sends frames that every guest can take.
#[test]
fn a_peer_without_offloads_to_guests() {
    if Command::new("ethtool").arg("--version").output().is_err() {
        return skip("needs ethtool");
    }
    in_namespace(|| {
        let (d, mut vms, host) = lab();
        let off = "-K peer tx off tso off gso off txvlan off";
        let run = Command::new("ethtool").args(off.split(' ')).output().expect("run ethtool");
        assert!(run.status.success(), "ethtool: {}", String::from_utf8_lossy(&run.stderr));
        for to in &mut vms {
            for kind in Kind::plain() {
                let mut packets = Sent::all(kind, u64::MAX, mac_of(HOST), to.mac());
                // Whole in the end, whatever the sender left to its interface.
                packets.retain(super::tap::kernel_sends);
                for sent in &packets {
                    let (header, frame) = sent.packet.sent(sent.ask);
                    send_out(&host, &header, &frame);
                    let (mut got, what) = (Vec::<u8>::new(), format!("{kind:?} {:?}", sent.ask));
                    while got.len() < sent.packet.payload.len() {
                        let (header, frame) = to.rx[0]
                            .take(1, SOON)
                            .pop()
                            .unwrap_or_else(|| panic!("{what}: missing"));
                        assert_eq!((header.flags, header.gso_type), (0, 0), "{what}");
                        let parts = verify(&frame).unwrap_or_else(|e| panic!("{what}: {e}"));
                        got.extend(parts.payload);
                    }
                    assert!(got == sent.packet.payload, "{what}: payload");
                }
            }
        }
        finish(d, vms);
    });
}
