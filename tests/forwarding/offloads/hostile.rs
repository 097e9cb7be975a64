//! Hostile offload headers: whatever a guest writes into the virtio-net header, or changes while
//! the switch looks at it, receivers and the kernel only ever get what is promised to them,
//! everything is counted, and guests beside it go on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::lab::{SOON, Sent, Stop, Work, connect, delivered, exchange, introduce};
use testkit::Rng;
use testkit::frontend::feat;
use testkit::host::{HEADER_LEN, Host, in_namespace};
use testkit::hostile::{offer, raw_desc};
use testkit::mem::Span;
use testkit::packet::{Ask, Kind, Packet, payload, verify_received};
use testkit::proc::{Daemon, wait_for};
use testkit::ring::{DESC_NEXT, Seg};
use testkit::vm::Vm;
use testkit::vnet::{Header, NEEDS_CSUM};

/// The hostile sender, a receiver with all offloads, and one without any.
const EVIL: u8 = 0;
const ABLE: u8 = 1;
const SIMPLE: u8 = 2;
const BROADCAST: [u8; 6] = [0xff; 6];

/// The three guests, and the host behind a TAP, where every hostile frame is flooded to.
struct Victims {
    d: Daemon,
    evil: Vm,
    able: Vm,
    simple: Vm,
    host: Host,
    /// Frames that the hostile guest has sent, all others' included.
    sent: u64,
}

impl Victims {
    fn new() -> Victims {
        let d = Daemon::with(3, &["--tap", "up,ifname=tap0"]);
        let mut evil = connect(&d, EVIL, feat::OFFLOADS, true);
        let mut able = connect(&d, ABLE, feat::OFFLOADS, true);
        let mut simple = connect(&d, SIMPLE, 0, false);
        let host = Host::open_with_headers("tap0");
        introduce(&mut [&mut evil, &mut able, &mut simple]);
        host.drain();
        Victims { d, evil, able, simple, host, sent: 1 }
    }

    /// Takes what came of frames made from `frame`, and checks it.
    fn check(&mut self, frame: &[u8], what: &dyn Fn() -> String) {
        for vm in [&mut self.able, &mut self.simple] {
            // The header was checked on the way, against the features.
            for (header, got) in vm.rx[0].take(usize::MAX, Duration::ZERO) {
                check_frame(&header, &got, frame, what);
            }
        }
        while let Some(got) = self.host.receive(Duration::ZERO) {
            assert!(got.len() > HEADER_LEN + 14, "{}: the host got {got:02x?}", what());
        }
    }

    /// Honest traffic passes as ever, and the books balance.
    fn finish(mut self) {
        let mut work = Work::default();
        for to in [&mut self.able, &mut self.simple] {
            let before = Work::counted(&self.d.counters(), &format!("p{}", to.cfg.id));
            for kind in Kind::plain() {
                let all = Sent::all(kind, feat::OFFLOADS, self.evil.mac(), to.mac());
                self.sent += all.len() as u64;
                exchange(&mut self.evil, to, &all, &mut work);
            }
            let after = Work::counted(&self.d.counters(), &format!("p{}", to.cfg.id));
            assert_eq!(after.since(before), work);
            work = Work::default();
        }
        let c = self.d.counters();
        c.balance();
        let counted = |key| c.sum(Some("p0"), "in", key);
        assert_eq!(counted("frames"), self.sent, "{c:#?}");
        assert!(counted("drop.bad_offload") > 0, "{c:#?}");
        // Each frame let in asked for a copy each to two guests and the TAP, or, those of the end,
        // to one guest.
        for vm in [&self.able, &self.simple] {
            let port = format!("p{}", vm.cfg.id);
            assert_eq!(vm.rx[0].frames, delivered(&c, &port), "{port}: {c:#?}");
        }
        // What we let pass the kernel finds in order, too.
        assert_eq!(c.sum(Some("up"), "out", "drop.tap_rejected"), 0, "{c:#?}");
        assert!(self.able.no_errors() && self.simple.no_errors());
        self.d.stop();
    }
}

/// A frame that came of `sent` is that, or a complete packet, or one that its receiver can
/// complete.
fn check_frame(header: &Header, got: &[u8], sent: &[u8], what: &dyn Fn() -> String) {
    let plain = header.flags & NEEDS_CSUM == 0;
    if (plain && got == sent) || verify_received(header, got).is_ok() {
        return;
    }
    let why = verify_received(header, got);
    // Without IP there are no headers to be in order; the sum stays within the frame.
    let no_ip = sent[12..14] == [8, 6] && got.len() == sent.len();
    assert!(no_ip, "{}: {why:?}, {header:?}, {} bytes: {got:02x?}", what(), got.len());
}

/// ARP: not IP, so nothing is known of where a checksum may be.
fn arp(src: [u8; 6]) -> Vec<u8> {
    let mut frame = [&BROADCAST[..], &src, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
    frame.resize(100, 0x11);
    frame
}

/// Each field at its limits, with each segmentation type there is and some there are not.
#[test]
fn fields_that_contradict_the_frame() {
    in_namespace(|| {
        let mut v = Victims::new();
        let src = v.evil.mac();
        let mut frames: Vec<(Header, Vec<u8>)> = Kind::plain()
            .map(|kind| {
                let packet = Packet::new(kind, src, BROADCAST, &payload(1, 40));
                packet.sent(Ask::Segments(16))
            })
            .collect();
        frames.push((Header::default(), arp(src)));
        for (good, frame) in &frames {
            for (n, header) in variants(good, frame.len() as u16).into_iter().enumerate() {
                let len = v.evil.cfg.header_len();
                v.evil.tx[0].header = header.bytes(len);
                v.evil.tx[0].queue(frame);
                v.sent += 1;
                // No more than fit the smallest receive ring as segments, most of the time.
                if n % 16 == 15 {
                    v.evil.tx[0].ring.publish();
                    v.evil.tx[0].drain(SOON);
                    v.check(frame, &|| format!("up to {header:?}"));
                }
            }
            v.evil.tx[0].ring.publish();
            v.evil.tx[0].drain(SOON);
            v.check(frame, &|| "last".into());
        }
        v.finish();
    });
}

/// Headers around a good one.
fn variants(good: &Header, len: u16) -> Vec<Header> {
    // The last four are those that every run tries.
    let limits = |good: u16| [good, 1, 0, len - 1, len, u16::MAX];
    let types = [0, 1, 2, 3, 4, 5, 6, 0x80, 0x81, 0x83, 0x84, 0x85, 0xff];
    let all = if testkit::long() { 6 } else { 4 };
    let mut out = Vec::new();
    for gso_type in types {
        for &hdr_len in limits(good.hdr_len).iter().rev().take(all) {
            for csum_start in limits(good.csum_start) {
                for csum_offset in limits(good.csum_offset) {
                    for gso_size in limits(good.gso_size) {
                        let flags = u8::from(out.len() % 8 != 0);
                        out.push(Header {
                            flags,
                            gso_type,
                            hdr_len,
                            gso_size,
                            csum_start,
                            csum_offset,
                            num_buffers: csum_start ^ gso_size,
                        });
                    }
                }
            }
        }
    }
    out
}

/// What another CPU of the guest changes: where, and how many bytes.
#[derive(Clone, Copy, Debug)]
enum Changed {
    /// In the virtio-net header.
    Header(usize, usize),
    /// In the frame.
    Frame(usize, usize),
}

/// The fields that are checked, of a packet whose network header is at `l3` and whose transport
/// header is at `l4`.
fn checked_fields(kind: Kind, l3: usize, l4: usize) -> Vec<Changed> {
    let mut fields = vec![
        Changed::Header(0, 1),
        Changed::Header(1, 1),
        Changed::Header(2, 2),
        Changed::Header(4, 2),
        Changed::Header(6, 2),
        Changed::Header(8, 2),
        Changed::Header(0, 10),
        Changed::Frame(l3 - 2, 2),
        Changed::Frame(l3, 1),
    ];
    if kind.v6 {
        // Payload length; next header, or the length of the first extension header, of which one
        // type may well pass for another.
        let next = if kind.options { l3 + 41 } else { l3 + 6 };
        fields.extend([Changed::Frame(l3 + 4, 2), Changed::Frame(next, 1)]);
    } else {
        // Total length, fragment, protocol.
        fields.extend([(2, 2), (6, 2), (9, 1)].map(|(at, n)| Changed::Frame(l3 + at, n)));
    }
    // Data offset and flags of TCP; length of UDP.
    let (at, n) = if kind.udp { (4, 2) } else { (12, 2) };
    fields.push(Changed::Frame(l4 + at, n));
    fields
}

/// Double fetch: each field changes while the switch reads, checks, and delivers.
#[test]
#[ignore = "full"]
fn fields_change_under_way() {
    in_namespace(|| {
        let mut v = Victims::new();
        let memory = v.evil.guest.mem.alloc_in(0, 1 << 16, 4096);
        let kinds = [
            Kind::default(),
            Kind { udp: true, ..Kind::default() },
            // Headers longer than the first cache line, where other code is at work.
            Kind { tags: 2, v6: true, ..Kind::default() },
            Kind { tags: 1, v6: true, udp: true, options: true, ..Kind::default() },
            Kind { tags: 2, options: true, ..Kind::default() },
        ];
        let rounds = if testkit::long() { 20 } else { 1 };
        for kind in kinds.into_iter().cycle().take(kinds.len() * rounds) {
            let packet = Packet::new(kind, v.evil.mac(), BROADCAST, &payload(2, 3000));
            let (header, frame) = packet.sent(Ask::Segments(1000));
            let l3 = testkit::vnet::network_offset(&frame);
            for field in checked_fields(kind, l3, packet.start) {
                change_under_way(&mut v, &memory, &header, &frame, field);
            }
        }
        restart_tx(&mut v.evil);
        v.finish();
    });
}

/// Stops the hostile guest's TX ring and starts it empty.
fn restart_tx(evil: &mut Vm) {
    evil.fe.get_vring_base(1).expect("base");
    evil.guest.tx[0].reclaim_all();
    evil.guest.start_ring(&mut evil.fe, &evil.guest.tx[0].ring).expect("start");
    evil.settle();
}

/// Sends one frame again and again while one field of it changes.
fn change_under_way(v: &mut Victims, memory: &Span, header: &Header, frame: &[u8], field: Changed) {
    restart_tx(&mut v.evil);
    let (head, data) = (memory.sub(0, 12), memory.sub(64, frame.len()));
    let ring = &v.evil.guest.tx[0].ring;
    // The header alone, the first bytes of the frame, the rest.
    let cut = 300;
    let segs = [
        Seg { gpa: head.gpa(), len: 12 },
        Seg { gpa: data.gpa(), len: cut },
        Seg { gpa: data.gpa() + u64::from(cut), len: frame.len() as u32 - cut },
    ];
    head.write(0, &header.bytes(12));
    data.write(0, frame);
    raw_desc(ring, 0, segs[0], DESC_NEXT, 1);
    raw_desc(ring, 1, segs[1], DESC_NEXT, 2);
    raw_desc(ring, 2, segs[2], 0, 0);
    let (span, at, len) = match field {
        Changed::Header(at, len) => (head, at, len),
        Changed::Frame(at, len) => (data, at, len),
    };
    let stop = &AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(move || flip(&span, at, len, stop));
        let _stop = Stop(stop);
        for _ in 0..60 {
            let ring = &v.evil.guest.tx[0].ring;
            let before = ring.used_idx();
            for _ in 0..8 {
                offer(ring, 0);
                let back = wait_for(SOON, || {
                    ring.used_idx() == ring.avail.index(2).load(Ordering::Relaxed)
                });
                assert!(back, "{field:?}: not completed (I5)");
            }
            v.sent += u64::from(ring.used_idx().wrapping_sub(before));
            check_changed(v, frame, field);
        }
    });
}

/// Whole frames may have any header field wrong, as they were not checked unless they asked for
/// something; segments have to be in order.
fn check_changed(v: &mut Victims, frame: &[u8], field: Changed) {
    for vm in [&mut v.able, &mut v.simple] {
        for (header, got) in vm.rx[0].take(usize::MAX, Duration::ZERO) {
            let whole = got.len() == frame.len();
            let sound = whole || verify_received(&header, &got).is_ok();
            let why = verify_received(&header, &got);
            assert!(sound, "{field:?}: {why:?}: {header:?} {:02x?}", &got[..got.len().min(128)]);
        }
    }
    while let Some(got) = v.host.receive(Duration::ZERO) {
        let (header, got) = got.split_at(HEADER_LEN);
        let header = Header::parse(header);
        // The kernel shows packet sockets no outer VLAN tag. What would be more datagrams than it
        // takes at once arrives cut.
        let whole = [0, 4].contains(&(frame.len().wrapping_sub(got.len())));
        let why = verify_received(&header, got);
        let sound = whole || why.is_ok();
        assert!(sound, "{field:?}: {why:?}: {header:?} {:02x?}", &got[..got.len().min(128)]);
    }
}

/// Changes `len` bytes between their good value and others until told to stop; leaves the good
/// one.
fn flip(span: &Span, at: usize, len: usize, stop: &AtomicBool) {
    let mut rng = Rng::new((at * 16 + len) as u64);
    let good = span.read(at, len);
    while !stop.load(Ordering::Relaxed) {
        let mut bad = rng.next().to_le_bytes().repeat(2);
        bad.truncate(len);
        // Often something near the good value, or something small.
        match rng.below(16) {
            0..=7 => {
                bad.copy_from_slice(&good);
                bad[rng.below(len as u64) as usize] ^= 1 << rng.below(8);
            }
            8 => bad[1..].fill(0),
            _ => {}
        }
        span.write(at, &bad);
        (0..rng.below(64)).for_each(|_| std::hint::spin_loop());
        span.write(at, &good);
        (0..rng.below(64)).for_each(|_| std::hint::spin_loop());
    }
}
