//! Messages in any state: malformed, with the wrong descriptors, out of range. A refusal is a NACK
//! and the conversation goes on, or the connection is closed; the daemon stays, nothing leaks, and
//! the next front-end is served.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use testkit::frontend::{
    Acks, Error, FLAG_NEED_REPLY, Frontend, Result, VERSION, VringAddr, feat, message, proto,
    region_body, req, state_body,
};
use testkit::mem::RegionSpec;
use testkit::proc::{Daemon, wait_for};
use testkit::sys::{self, EventFd};
use testkit::vm::{Vm, VmConfig};
use testkit::{Rng, SOON};

fn connect(d: &Daemon) -> Frontend {
    Frontend::connect(&d.socket(0), SOON).expect("connect")
}

/// A front-end that negotiated acknowledgements and nothing else.
fn acked(d: &Daemon) -> Frontend {
    let mut fe = connect(d);
    fe.get_features().expect("features");
    let protocol = proto::REPLY_ACK | proto::MQ | proto::CONFIGURE_MEM_SLOTS;
    fe.set_protocol_features(protocol).expect("set");
    fe.acks = Acks::Always;
    fe
}

fn assert_nack(what: &str, r: Result<()>) {
    assert!(matches!(r, Err(Error::Nack(_))), "{what}: {r:?}");
}

/// NACK, or the connection is closed: both are refusals.
fn assert_refused(what: &str, r: Result<()>) {
    assert!(matches!(r, Err(Error::Nack(_) | Error::Closed)), "{what}: {r:?}");
}

/// A whole guest still comes up and gets an answer.
fn serves(d: &Daemon) {
    let mut vm = Vm::connect(&d.socket(0), VmConfig::new(0));
    vm.stop();
}

/// Invariant: ENABLE, CALL, GET_VRING_BASE and the rest arrive in any state, before features too.
#[test]
fn ring_messages_before_features() {
    let d = Daemon::with(1, &[]);
    let mut fe = connect(&d);
    let (kick, call, err) = (EventFd::new(), EventFd::new(), EventFd::new());
    for index in [0, 1] {
        fe.set_vring_enable(index, true).expect("enable");
        fe.set_vring_fd(req::SET_VRING_CALL, index, Some(call.raw())).expect("call");
        fe.set_vring_fd(req::SET_VRING_ERR, index, Some(err.raw())).expect("err");
        assert_eq!(fe.get_vring_base(index).expect("base"), 0);
        fe.set_vring_enable(index, false).expect("disable");
        fe.set_vring_num(index, 256).expect("num");
        fe.set_vring_base(index, 7).expect("base");
        fe.set_vring_fd(req::SET_VRING_KICK, index, Some(kick.raw())).expect("kick");
        fe.set_vring_fd(req::SET_VRING_KICK, index, None).expect("no kick");
        fe.set_vring_fd(req::SET_VRING_CALL, index, None).expect("no call");
    }
    fe.send_rarp([2, 0, 0, 0, 0, 1]).expect("rarp");
    fe.set_owner().expect("owner");
    fe.request(req::RESET_OWNER, &[], &[]).expect("reset owner");
    fe.get_features().expect("still connected");
    // DPDK's virtio-user as a server opens with this on each reconnect, without SET_OWNER.
    fe.get_vring_base(0).expect("base again");
    drop(fe);
    serves(&d);
    d.stop();
}

/// A new call fd is written once on arrival: the guest may have missed a signal of a daemon that
/// died between publishing and signalling.
#[test]
fn a_new_call_is_signalled_once() {
    let d = Daemon::with(1, &[]);
    let mut fe = connect(&d);
    let call = EventFd::new();
    fe.set_vring_fd(req::SET_VRING_CALL, 0, Some(call.raw())).expect("call");
    assert!(call.wait(SOON), "not signalled");
    d.stop();
}

#[test]
fn unknown_messages_are_refused_politely() {
    let d = Daemon::with(1, &[]);
    let mut fe = acked(&d);
    // Requests we do not serve, and codes nobody has given a meaning.
    // (Those with an answer of their own are left out: how to refuse them is a matter of taste.)
    for code in [21, 22, 23, 25, 26, 27, 28, 33, 34, 35, 39, 41, 42, 43, 99, 0x7fff_ffff] {
        assert_nack(&format!("code {code}"), fe.request_acked(code, &[0; 8], &[]));
    }
    fe.get_features().expect("still connected");
    // Without NEED_REPLY there is nothing to say.
    fe.send(99, VERSION, &[1, 2, 3], &[]).expect("sent");
    fe.get_features().expect("still connected, and in step");
    d.stop();
}

#[test]
fn ring_sizes_are_checked() {
    let d = Daemon::with(1, &[]);
    let mut fe = acked(&d);
    for num in [0, 3, 200, 257, 32769, 65535, 65536, 1 << 31, u32::MAX] {
        assert_nack(&format!("size {num}"), fe.set_vring_num(0, num));
    }
    for shift in 1..=15 {
        fe.set_vring_num(0, 1 << shift).expect("a power of two");
    }
    d.stop();
}

#[test]
fn ring_indices_are_checked() {
    let d = Daemon::with(1, &[]);
    let mut fe = acked(&d);
    let call = EventFd::new();
    for index in [5u32, 64, 255, 256, 65536, u32::MAX] {
        assert_nack("num", fe.set_vring_num(index, 256));
        assert_nack("base", fe.set_vring_base(index, 0));
        assert_nack("enable", fe.set_vring_enable(index, true));
        assert_nack("addr", fe.set_vring_addr(&VringAddr { index, ..VringAddr::default() }));
        if index <= 255 {
            assert_nack("call", fe.set_vring_fd(req::SET_VRING_CALL, index, Some(call.raw())));
        }
    }
    fe.get_features().expect("still connected");
    d.stop();
}

/// cloud-hypervisor counts vrings, QEMU and DPDK pairs: 2 × pairs serves all.
#[test]
fn queue_numbers() {
    for (keys, vrings) in [("", 2), (",queues=4", 8), (",queues=16", 32)] {
        let d = Daemon::with_ports(&[keys], &[]);
        assert_eq!(connect(&d).get_queue_num().expect("number"), vrings, "port{keys}");
        d.stop();
    }
}

/// `platform=on`: QEMU refuses `iommu_platform=on` where a back-end does not offer
/// ACCESS_PLATFORM and BACKEND_REQ. The channel it then hands over is taken and closed.
#[test]
fn a_platform_is_offered_where_it_is_asked_for() {
    let platform = |(features, protocol): (u64, u64)| {
        (features & feat::ACCESS_PLATFORM != 0, protocol & proto::BACKEND_REQ != 0)
    };
    let d = Daemon::with_ports(&[",platform=on", ""], &[]);
    for (port, expected) in [(0, true), (1, false)] {
        let mut fe = Frontend::connect(&d.socket(port), SOON).expect("connect");
        let offer = (fe.get_features().expect("features"), fe.get_protocol_features().expect("p"));
        assert_eq!(platform(offer), (expected, expected), "port {port}");
        fe.set_protocol_features(offer.1).expect("acknowledge");
        fe.acks = Acks::Always;
        let (mut ours, theirs) = UnixStream::pair().expect("socket pair");
        let taken = fe.request(req::SET_BACKEND_REQ_FD, &[], &[theirs.as_raw_fd()]);
        drop(theirs);
        if expected {
            taken.expect("taken")
        } else {
            assert_nack("a channel", taken)
        }
        ours.set_read_timeout(Some(SOON)).expect("limit");
        assert_eq!(ours.read(&mut [0]).expect("closed by the daemon"), 0);
    }
    serves(&d);
    d.stop();
}

/// Who acknowledges ACCESS_PLATFORM has a virtual IOMMU: addresses in rings are others than those
/// of the memory regions.
#[test]
fn a_virtual_iommu_is_refused() {
    let d = Daemon::with_ports(&[",platform=on"], &[]);
    let mut fe = acked(&d);
    let offered = fe.get_features().expect("features");
    fe.set_features(offered & !feat::ACCESS_PLATFORM).expect("without");
    assert_refused("with", fe.set_features(offered));
    assert!(fe.get_features().is_err(), "goes on");
    let said = |line: &str| line.contains("WARN") && line.contains("virtual IOMMU");
    assert!(wait_for(SOON, || d.log().lines().any(said)), "{}", d.log());
    serves(&d);
    d.stop();
}

/// What is offered, bit by bit, on any kernel: it must never shrink, as a running guest keeps what
/// it was offered and migrates with it, and nothing without its machinery.
#[test]
fn the_offer() {
    let d = Daemon::with(1, &[]);
    let mut fe = connect(&d);
    let offered = fe.get_features().expect("features");
    let must = feat::VERSION_1
        | feat::MRG_RXBUF
        | feat::INDIRECT
        | feat::EVENT_IDX
        | feat::ANY_LAYOUT
        | feat::MQ
        | feat::NET_MTU
        | feat::GUEST_ANNOUNCE
        | feat::CTRL_VQ
        | feat::IN_ORDER
        | feat::PROTOCOL_FEATURES
        | feat::LOG_ALL;
    assert_eq!(offered & must, must, "{offered:#x}");
    assert_eq!(offered, 0x01c0_0009_7c62_bb8b, "{offered:#x}");
    // ACCESS_PLATFORM, PACKED, RING_RESET, RSC_EXT, RSS, HASH_REPORT; UFO, both ways.
    for bit in [33, 34, 40, 61, 60, 57, 10, 14] {
        assert_eq!(offered >> bit & 1, 0, "bit {bit}");
    }
    let offered = fe.get_protocol_features().expect("protocol features");
    let all = proto::MQ
        | proto::REPLY_ACK
        | proto::LOG_SHMFD
        | proto::RARP
        | proto::NET_MTU
        | proto::CONFIGURE_MEM_SLOTS;
    assert_eq!(offered, all);
    fe.set_protocol_features(offered).expect("acknowledge");
    assert_eq!(fe.get_max_mem_slots().expect("slots"), 509);
    d.stop();
}

/// A NACK of the MTU leaves QEMU's guest with a dead NIC.
#[test]
fn mtus_are_acknowledged() {
    let d = Daemon::with(1, &[]);
    let mut fe = acked(&d);
    for mtu in [68, 1280, 1500, 9000, 65535] {
        fe.net_set_mtu(mtu).expect("acknowledged");
    }
    d.stop();
}

/// Virtio features that were not offered end the conversation.
#[test]
fn features_not_offered_are_refused() {
    let d = Daemon::with(1, &[]);
    let offered = connect(&d).get_features().expect("features");
    for bit in (0..64).filter(|b| offered >> b & 1 == 0) {
        let mut fe = acked(&d);
        assert_refused(&format!("bit {bit}"), fe.set_features(offered | 1 << bit));
    }
    serves(&d);
    d.stop();
}

/// P1, P7, P8, P11 and their relatives: regions that are not what they claim.
#[test]
fn bad_regions_are_refused() {
    let d = Daemon::with(1, &[]);
    let fd = sys::memfd(1 << 20);
    let disk = disk_file();
    let dead = EventFd::new();
    let at = |gpa, len, uva, offset| RegionSpec { gpa, len, uva, offset };
    let page = 4096;
    let cases: [(&str, RegionSpec, RawFd); 11] = [
        ("larger than its file", at(0, 2 << 20, 0, 0), fd.as_raw_fd()),
        ("one page too large", at(0, (1 << 20) + page, 0, 0), fd.as_raw_fd()),
        ("offset beyond the file", at(0, page, 0, 1 << 20), fd.as_raw_fd()),
        ("offset that wraps", at(0, page, 0, u64::MAX - page + 1), fd.as_raw_fd()),
        ("64 TiB", at(0, 64 << 40, 0, 0), fd.as_raw_fd()),
        ("all of the address space", at(0, u64::MAX, 0, 0), fd.as_raw_fd()),
        ("no length", at(0, 0, 0, 0), fd.as_raw_fd()),
        ("guest address that wraps", at(u64::MAX - page + 1, 2 * page, 0, 0), fd.as_raw_fd()),
        ("user address that wraps", at(0, 2 * page, u64::MAX - page + 1, 0), fd.as_raw_fd()),
        ("a file on disk", at(0, page, 0, 0), disk.as_raw_fd()),
        ("an eventfd", at(0, page, 0, 0), dead.raw()),
    ];
    for (what, r, fd) in &cases {
        assert_refused(what, acked(&d).add_mem_reg(r, *fd));
        assert_refused(what, acked(&d).set_mem_table(&[(*r, *fd)]));
    }
    // Overlapping guest addresses; the first one stays.
    let mut fe = acked(&d);
    let first = at(0, 1 << 19, 1 << 40, 0);
    fe.add_mem_reg(&first, fd.as_raw_fd()).expect("a good region");
    let second = at((1 << 19) - page, page * 2, 2 << 40, 0);
    assert_refused("overlap", fe.add_mem_reg(&second, fd.as_raw_fd()));
    drop(fe);
    serves(&d);
    d.stop();
}

/// A writable file where the build goes, which is a disk almost everywhere; where it is a tmpfs
/// there is nothing to refuse, and an eventfd stands in.
fn disk_file() -> File {
    let path = format!("{}/memory-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    let open = File::options().read(true).write(true).create_new(true).open(&path);
    let file = open.expect("a file");
    std::fs::remove_file(&path).expect("unlink");
    file.set_len(1 << 20).expect("length");
    if !sys::on_tmpfs(&file) {
        return file;
    }
    eprintln!("{path} lies in memory: disk files as guest memory are not tested");
    File::from(EventFd::new().into_fd())
}

/// Every request with 0, 1, 8, 32 and 33 descriptors: none is leaked, whatever the answer.
#[test]
fn descriptors_do_not_leak() {
    let d = Daemon::with(1, &[]);
    let call = EventFd::new();
    serves(&d);
    let before = d.settled_usage();
    for code in (0..=44).chain([99, u32::MAX]) {
        for count in [0, 1, 8, 32, 33] {
            let fds = vec![call.raw(); count];
            let mut fe = connect(&d);
            let sent = fe.send(code, VERSION | FLAG_NEED_REPLY, &[0; 8], &fds);
            sent.unwrap_or_else(|e| panic!("code {code}, {count} descriptors: {e:?}"));
            // Answered, ignored or closed; a question in its wake shows it was worked on.
            let _ = fe.send(req::GET_FEATURES, VERSION, &[], &[]);
            let _ = fe.reply(req::GET_FEATURES);
        }
    }
    let same = || (d.usage().fds, d.usage().threads) == (before.fds, before.threads);
    assert!(wait_for(SOON, same), "{:?}, before {before:?}", d.usage());
    serves(&d);
    d.stop();
}

/// Headers that no front-end sends: the connection is closed, at once or by the time limit.
#[test]
fn bad_headers_end_the_conversation() {
    let d = Daemon::with(1, &[]);
    let head = |code: u32, flags: u32, size: u32| {
        [code, flags, size].iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>()
    };
    for bytes in [
        head(req::GET_FEATURES, 0, 0),
        head(req::GET_FEATURES, 2, 0),
        head(req::GET_FEATURES, 3, 0),
        head(req::SET_FEATURES, VERSION, u32::MAX),
        head(req::SET_FEATURES, VERSION, 1 << 20),
    ] {
        let mut fe = connect(&d);
        fe.send_raw(&bytes, &[]).expect("sent");
        assert!(fe.closed_within(SOON), "{bytes:02x?}");
    }
    serves(&d);
    d.stop();
}

/// A message may come in pieces, one byte at a time.
#[test]
fn messages_in_pieces() {
    let d = Daemon::with(1, &[]);
    let mut fe = acked(&d);
    let bytes = message(req::SET_VRING_NUM, VERSION | FLAG_NEED_REPLY, &state_body(0, 256));
    for b in &bytes {
        fe.send_raw(std::slice::from_ref(b), &[]).expect("a byte");
        std::thread::sleep(Duration::from_millis(1));
    }
    fe.ack(req::SET_VRING_NUM).expect("whole in the end");
    // And several at once.
    let twice = [bytes.clone(), bytes].concat();
    fe.send_raw(&twice, &[]).expect("two");
    fe.ack(req::SET_VRING_NUM).expect("first");
    fe.ack(req::SET_VRING_NUM).expect("second");
    d.stop();
}

/// Random messages of every code, half of them nearly right; a real guest after each 1000.
#[test]
fn garbage() {
    let d = Daemon::with(1, &[]);
    serves(&d);
    let before = d.settled_usage();
    let mut rng = Rng::new(4);
    let (event, memory) = (EventFd::new(), sys::memfd(1 << 20));
    let rounds = if testkit::long() { 1_000_000 } else { 20_000 };
    let mut fe = acked(&d);
    for i in 1..=rounds {
        let body = garbage_body(&mut rng);
        let fd = if rng.below(2) == 0 { event.raw() } else { memory.as_raw_fd() };
        let fds = vec![fd; [0, 0, 1, 1, 1, 2, 8][rng.below(7) as usize]];
        let code = rng.below(46) as u32;
        if fe.send(code, VERSION, &body, &fds).is_err() {
            fe = acked(&d);
        }
        if i % 1000 == 0 {
            drop(fe);
            serves(&d);
            fe = acked(&d);
        }
    }
    drop(fe);
    let same = || (d.usage().fds, d.usage().threads) == (before.fds, before.threads);
    assert!(wait_for(SOON, same), "{:?}, before {before:?}", d.usage());
    serves(&d);
    d.stop();
}

fn garbage_body(rng: &mut Rng) -> Vec<u8> {
    let edges = [0, 1, 255, 256, 1 << 12, 1 << 20, 1 << 32, 1 << 63, u64::MAX - 4095, u64::MAX];
    let words = rng.below(6) as usize;
    let mut body = Vec::new();
    if rng.below(8) == 0 {
        body.extend_from_slice(&[0; 8]);
        body.extend(region_body(&RegionSpec::new(0, 1 << 20)));
    }
    for _ in 0..words {
        let edge = edges[rng.below(edges.len() as u64) as usize];
        let v = if rng.below(2) == 0 { edge } else { rng.below(512) };
        body.extend_from_slice(&v.to_le_bytes());
    }
    body
}

/// QEMU 7.2 sends every region once per queue pair, both ways. The same region again is no error;
/// other bytes at the same place are.
#[test]
fn regions_come_once_per_queue_pair() {
    let d = Daemon::with(1, &[]);
    let fd = sys::memfd(1 << 20);
    let other = sys::memfd(1 << 20);
    let region = RegionSpec { gpa: 0, len: 1 << 19, uva: 1 << 40, offset: 0 };
    let mut fe = acked(&d);
    for _ in 0..3 {
        fe.add_mem_reg(&region, fd.as_raw_fd()).expect("the same region again");
    }
    assert_refused("another file", fe.add_mem_reg(&region, other.as_raw_fd()));
    for _ in 0..3 {
        fe.rem_mem_reg(&region).expect("removed, or removed already");
    }
    fe.add_mem_reg(&region, other.as_raw_fd()).expect("the place is free now");
    drop(fe);
    serves(&d);
    d.stop();
}
