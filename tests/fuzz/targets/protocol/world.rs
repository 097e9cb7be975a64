//! The switch that front-ends meet: made once for the process, without a daemon around it.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use base::frame::Offloads;
use base::stats::QueueStats;
use datapath::guard::BlockedWriterWatch;
use datapath::guard::sigbus;
use datapath::port::{Port, PortConfig, PortTable, Ports};
use datapath::vhost_user::session::{Account, Context, Ledger};
use datapath::worker::{Shared, Workers};
use switch::{Fdb, FdbConfig, Rules};

use super::peer::FILE_NAME;

pub const PORTS: usize = 3;
/// Queue pairs of each port.
const PAIRS: u16 = 2;
/// How long what a session began may take to end: a worker's last turn, a watchdog's look.
const PATIENCE: Duration = Duration::from_secs(20);

pub struct World {
    pub context: Context,
    pub ports: Arc<PortTable>,
    /// One of each port.
    pub accounts: Vec<Arc<Account>>,
}

/// What must be the same before and after.
pub struct Rest {
    descriptors: usize,
    panics: u64,
}

impl World {
    /// The switch, for one input at a time.
    pub fn get() -> MutexGuard<'static, World> {
        static WORLD: OnceLock<Mutex<World>> = OnceLock::new();
        let world = WORLD.get_or_init(|| Mutex::new(World::new()));
        world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn new() -> World {
        // As the daemon does at its start: what this opens is nobody's input.
        sigbus::install().expect("sigbus");
        let offers = [Offloads::ALL, Offloads::CSUM, Offloads::NONE];
        let ports = (0u16..).zip(offers).map(|(id, offload)| {
            let mtu = (id == 2).then_some(1500);
            let config = PortConfig { send: offload, offload, ..PortConfig::default() };
            let port = Port::guest(id, &format!("vm{id}"), PAIRS).with(config);
            port.mtu.configure(mtu);
            Arc::new(port)
        });
        let ports = Arc::new(Ports::new(ports.collect()));
        let config = FdbConfig {
            max_entries: 64,
            max_per_port: 16,
            reserved_per_port: 2,
            max_per_segment: u32::MAX,
            reserved_per_segment: 0,
            age_seconds: 1,
            damping: true,
            ports: PORTS,
            key: [1, 2],
        };
        let fdb = Arc::new(Fdb::new(config));
        let watch = Arc::new(BlockedWriterWatch::start().expect("watch"));
        let shared = Shared {
            ports: Arc::clone(&ports),
            fdb: Arc::clone(&fdb),
            rules: Rules { uplink_to_uplink: false },
            poll: false,
            watch: Arc::clone(&watch),
        };
        let workers = Arc::new(Workers::start(2, &[], &shared).expect("workers"));
        let ledger = Arc::new(Ledger::default());
        let accounts = (0..PORTS).map(|_| ledger.open().expect("a port's part")).collect();
        World { context: Context { fdb, workers, watch }, ports: ports.present(), accounts }
    }

    fn queues(&self) -> impl Iterator<Item = (&QueueStats, bool)> {
        self.ports.iter().filter_map(|port| port.as_guest()).flat_map(|guest| {
            let sent = guest.tx.iter().map(|queue| (&queue.stats, true));
            sent.chain(guest.rx.iter().map(|queue| (&queue.stats, false)))
        })
    }

    fn panics(&self) -> u64 {
        self.ports.iter().map(|port| port.stats.panics.get()).sum()
    }

    /// Before the first front-end comes.
    pub fn at_rest(&self) -> Rest {
        Rest { descriptors: descriptors(), panics: self.panics() }
    }

    /// After the last one has left.
    pub fn assert_rest(&self, before: &Rest) {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.unrest(before) {
                None => return,
                Some(what) if Instant::now() >= end => panic!("{what}"),
                Some(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    fn unrest(&self, before: &Rest) -> Option<String> {
        // A worker contains its panics and counts them; a session's would have ended the scope.
        assert_eq!(self.panics(), before.panics, "a worker panicked");
        for port in self.ports.iter() {
            let guest = port.as_guest()?;
            assert!(!guest.is_attached(), "{}", port.name);
            assert_eq!(guest.active(), 0, "{} takes frames", port.name);
            for queue in guest.queues() {
                assert!(queue.quiet(|vring, _| vring.ring.is_none()), "{} has a ring", port.name);
            }
            assert_eq!(self.context.fdb.port_len(port.id), 0, "{} has addresses", port.name);
        }
        let open = descriptors();
        if open > before.descriptors {
            return Some(format!("{open} descriptors instead of {}", before.descriptors));
        }
        let maps = fs::read_to_string("/proc/self/maps").expect("maps");
        if maps.contains(FILE_NAME) {
            return Some("a front-end's memory is still mapped".into());
        }
        let (mut asked, mut settled) = (0, 0);
        for (stats, sent) in self.queues() {
            asked += stats.copies.get();
            settled += if sent { 0 } else { stats.frames.get() + stats.drops.total() };
        }
        for port in self.ports.iter() {
            asked += port.stats.announced.copies.get() + port.stats.copies.get();
            settled += port.stats.drops.total();
        }
        (asked != settled).then(|| format!("{asked} copies, {settled} settled"))
    }
}

/// Descriptors of this process.
fn descriptors() -> usize {
    let open = fs::read_dir(PathBuf::from("/proc/self/fd")).expect("proc");
    open.count()
}
