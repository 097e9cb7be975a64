//! What the tests of this program share: a small guest, the states of its conversation, and the
//! invariants that hold after each case.

use testkit::frontend::{Acks, FLAG_NEED_REPLY, Frontend, VERSION, feat, req, state_body};
use testkit::mem::RegionSpec;
use testkit::proc::{Daemon, Usage, wait_for};
use testkit::rx::RxConfig;
use testkit::tx::{Layout, TxConfig};
use testkit::vm::{Guest, Vm, VmConfig};

pub use testkit::SOON;

/// A guest that is made and brought up quickly: 4 MiB, rings of 16.
pub fn small(id: u8) -> VmConfig {
    let mut cfg = VmConfig::new(id);
    cfg.regions = vec![RegionSpec::new(0, 2 << 20), RegionSpec::new(4 << 30, 2 << 20)];
    (cfg.size, cfg.tx_size) = (16, 16);
    cfg.rx = RxConfig::plain(16, 1526);
    cfg.tx = TxConfig { layouts: vec![Layout::One], buffers: 16, max_frame: 1514, indirect: false };
    cfg
}

/// How far a conversation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Fresh,
    Negotiated,
    Memory,
    Configured,
    Running,
    Stopped,
    Refused,
}

pub const STAGES: [Stage; 7] = [
    Stage::Fresh,
    Stage::Negotiated,
    Stage::Memory,
    Stage::Configured,
    Stage::Running,
    Stage::Stopped,
    Stage::Refused,
];

pub fn connect(d: &Daemon, port: usize) -> Frontend {
    Frontend::connect(&d.socket(port), SOON).expect("connect")
}

/// A front-end at `stage` with this guest.
pub fn at_stage(d: &Daemon, port: usize, guest: &Guest, stage: Stage) -> Frontend {
    let mut fe = connect(d, port);
    enter(&mut fe, guest, stage);
    fe
}

fn enter(fe: &mut Frontend, guest: &Guest, stage: Stage) {
    if stage == Stage::Fresh {
        return;
    }
    guest.negotiate(fe).expect("negotiate");
    fe.set_features(guest.cfg.features | feat::PROTOCOL_FEATURES).expect("features");
    if stage == Stage::Negotiated {
        return;
    }
    guest.share_memory(fe).expect("memory");
    if stage == Stage::Memory {
        return;
    }
    for ring in guest.rings() {
        fe.set_vring_num(ring.index, ring.size.into()).expect("num");
        fe.set_vring_addr(&ring.addr(&guest.mem, 0)).expect("addr");
        if stage != Stage::Configured {
            fe.set_vring_fd(req::SET_VRING_KICK, ring.index, Some(ring.kick.raw())).expect("kick");
            fe.set_vring_enable(ring.index, true).expect("enable");
        }
    }
    match stage {
        Stage::Stopped => guest.stop(fe).expect("stop"),
        Stage::Refused => {
            let body = state_body(0, 200);
            fe.send(req::SET_VRING_NUM, VERSION | FLAG_NEED_REPLY, &body, &[]).expect("sent");
            assert!(fe.ack(req::SET_VRING_NUM).is_err(), "a ring of 200 (P13)");
        }
        _ => {}
    }
}

/// A daemon whose last port is for the hostile; what it holds when nobody is there.
pub struct Lab {
    pub d: Daemon,
    pub evil: usize,
    idle: Usage,
    rss: u64,
}

impl Lab {
    pub fn new(ports: usize) -> Lab {
        let d = Daemon::with(ports, &[]);
        let lab = Lab { evil: ports - 1, idle: d.usage(), rss: 0, d };
        // What is allocated once is there after a guest, a refusal and a strange descriptor.
        for stage in STAGES {
            drop(at_stage(&lab.d, lab.evil, &Guest::new(small(9)), stage));
        }
        lab.serves();
        let idle = lab.d.settled_usage();
        Lab { rss: rss_kib(&lab.d), idle, ..lab }
    }

    /// A whole guest still comes up, on the port of the hostile, and gets its answers.
    pub fn serves(&self) {
        let mut vm = Vm::connect(&self.d.socket(self.evil), small(9));
        vm.stop();
        assert!(vm.fe.leave(SOON), "not closed");
    }

    /// I6: when all have left, nothing is left of them. Of mappings those of guests count; some
    /// more are heap arenas and the stacks of threads that have ended, which glibc keeps: two for
    /// each of 64 closers, and two for each of 16 arenas.
    pub fn nothing_left(&self) {
        let same = |usage: Usage| {
            (usage.fds, usage.threads) == (self.idle.fds, self.idle.threads)
                && usage.mappings <= self.idle.mappings + 160
                && shared_mappings(&self.d) == 0
        };
        let settled = wait_for(SOON, || same(self.d.usage()));
        let usage = self.d.usage();
        let shared = shared_mappings(&self.d);
        assert!(settled, "I6: {usage:?}, before {:?}, of guests: {shared}", self.idle);
        let rss = rss_kib(&self.d);
        assert!(rss <= self.rss + 1024, "I6: {rss} KiB resident, {} before", self.rss);
    }

    /// The last word: the next is served, nothing is left, and the daemon ends as it should.
    pub fn finish(self) {
        self.serves();
        self.nothing_left();
        self.d.stop();
    }
}

/// Memory of guests that the daemon maps.
pub fn shared_mappings(d: &Daemon) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", d.pid())).unwrap_or_default();
    maps.lines().filter(|line| line.contains("memfd:")).count()
}

/// Private memory of the daemon that is resident, in KiB.
pub fn rss_kib(d: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", d.pid())).expect("status");
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).expect("RssAnon");
    line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number")
}

/// Acknowledgements on each request.
pub fn acked(d: &Daemon, port: usize) -> Frontend {
    let mut fe = connect(d, port);
    let offered = fe.get_protocol_features().expect("features");
    fe.set_protocol_features(offered).expect("set");
    fe.acks = Acks::Always;
    fe
}
