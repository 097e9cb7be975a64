//! Guests and front-ends that come, do something for a while, and go. Some keep to the rules, most
//! do not. What they do is drawn from a seed; when, is up to the machine.
//!
//! A connection that keeps to the protocol must be served, whoever was on the port before. One that
//! does not may be closed at any moment.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use testkit::Rng;
use testkit::frontend::{Frontend, Result, feat, message, req};
use testkit::hostile::{
    BAD_CHAINS, FIELDS, Field, Target, bad_chain, flip, offer, raw_avail, raw_avail_idx, raw_desc,
};
use testkit::ring::{DESC_NEXT, Ring, Seg};
use testkit::sys::{self, EventFd};
use testkit::vm::{Vm, VmConfig, mac_of, tag_of};
use testkit::vnet::Header;

use super::shared::{PAIRS, PORTS, Shared};

const SOON: Duration = Duration::from_secs(10);
/// Name of the test that a guest's own process runs, and where it finds its socket and seed.
pub const PROCESS: &str = "a_guest_of_its_own";
pub const PROCESS_SOCKET: &str = "VIOSWITCH_SOAK_SOCKET";
pub const PROCESS_SEED: &str = "VIOSWITCH_SOAK_SEED";

pub struct Other<'s> {
    pub id: u8,
    pub path: PathBuf,
    pub rng: Rng,
    pub shared: &'s Shared,
    frame: Vec<u8>,
}

/// Longer than a port stays closed after its front-end was dropped.
const CLOSED_FOR: Duration = Duration::from_secs(30);

/// A name, and what is done.
type Episode<'s> = (&'static str, fn(&mut Other<'s>));

impl<'s> Other<'s> {
    /// What a guest may do, about equally often.
    const EPISODES: [Episode<'s>; 19] = [
        ("talk", Self::talk),
        ("talk", Self::talk),
        ("slow", Self::refill_slowly),
        ("rings", Self::stop_and_start),
        ("offloads", Self::nonsense_headers),
        ("chains", Self::bad_chains),
        ("index", Self::bad_index),
        ("heads", Self::bad_heads),
        ("flip", Self::fields_change),
        ("truncate", Self::truncate),
        ("block", Self::blocking_calls),
        ("half", Self::half_a_message),
        ("garbage", Self::garbage),
        ("flood", Self::many_addresses),
        ("storm", Self::broadcast_storm),
        ("spoof", Self::stolen_addresses),
        ("flap", Self::flap),
        ("killed", Self::killed),
        ("memory", Self::memory_comes_and_goes),
    ];

    pub fn new(id: u8, path: PathBuf, seed: u64, shared: &'s Shared) -> Other<'s> {
        let rng = Rng::new(seed.wrapping_mul(31).wrapping_add(id.into()));
        Other { id, path, rng, shared, frame: Vec::new() }
    }

    pub fn run(&mut self) {
        while !self.shared.stopping() {
            self.shared.others_rest();
            if !self.shared.stopping() {
                let (name, act) =
                    Self::EPISODES[self.rng.below(Self::EPISODES.len() as u64) as usize];
                self.shared.begins(self.id, name);
                act(self);
            }
        }
    }

    /// Some time, short ones more often; over when all shall leave.
    fn for_a_while(&mut self, most: Duration, mut act: impl FnMut(&mut Self) -> bool) {
        let share = 1 + self.rng.below(16) * self.rng.below(16);
        let end = Instant::now() + most * share as u32 / 226;
        while Instant::now() < end && !self.shared.leave_now() {
            if !act(self) {
                break;
            }
            std::thread::sleep(Duration::from_micros(200 + self.rng.below(2000)));
        }
    }

    /// A guest that the switch must serve.
    fn guest(&mut self) -> Vm {
        let mut cfg = VmConfig::new(self.id);
        match self.rng.below(4) {
            0 => cfg.features &= !(feat::MRG_RXBUF | feat::EVENT_IDX),
            1 => cfg = VmConfig::with_offloads(self.id, feat::OFFLOADS, true),
            2 => cfg.rx.layouts = vec![vec![200]],
            _ => {}
        }
        cfg.tx.max_frame = 1514;
        Vm::connect(&self.path, cfg)
    }

    fn any_station(&mut self) -> [u8; 6] {
        match self.rng.below(10) {
            0 => [0xff; 6],
            1 => [0x33, 0x33, 0, 0, 0, 1],
            2 => mac_of(0xe0 + self.rng.below(16) as u8),
            _ => mac_of(self.rng.below(PORTS as u64 + 2) as u8),
        }
    }

    /// A frame full of this guest's tag.
    fn frame(&mut self, dst: [u8; 6], src: [u8; 6], len: usize) -> &[u8] {
        self.frame.clear();
        self.frame.extend_from_slice(&dst);
        self.frame.extend_from_slice(&src);
        self.frame.extend_from_slice(&[0x88, 0xb5]);
        while self.frame.len() < len {
            self.frame.extend_from_slice(&tag_of(self.id).to_le_bytes());
        }
        self.frame.truncate(len);
        &self.frame
    }

    /// Some frames at once, to one station.
    fn burst(&mut self, vm: &mut Vm, most: u64) {
        let (dst, count) = (self.any_station(), 1 + self.rng.below(most));
        for _ in 0..count {
            let len = 60 + self.rng.below(1455) as usize;
            let frame = self.frame(dst, mac_of(self.id), len);
            if !vm.guest.tx[0].queue(frame) {
                break;
            }
        }
        vm.guest.tx[0].ring.publish();
    }

    fn talk(&mut self) {
        let mut vm = self.guest();
        self.for_a_while(Duration::from_secs(4), |me| {
            me.burst(&mut vm, 32);
            vm.guest.rx[0].recv(256, |_, _| {});
            true
        });
        vm.guest.tx[0].drain(SOON);
        if self.rng.below(2) == 0 {
            vm.stop();
        }
    }

    fn refill_slowly(&mut self) {
        let mut vm = self.guest();
        vm.rx[0].hold = true;
        self.for_a_while(Duration::from_secs(4), |me| {
            me.burst(&mut vm, 4);
            vm.guest.rx[0].recv(256, |_, _| {});
            let buffers = me.rng.below(4) as usize;
            vm.guest.rx[0].post(buffers);
            vm.guest.rx[0].ring.publish();
            true
        });
        vm.guest.tx[0].drain(SOON);
    }

    fn stop_and_start(&mut self) {
        let mut vm = self.guest();
        self.for_a_while(Duration::from_secs(2), |me| {
            me.burst(&mut vm, 32);
            vm.guest.rx[0].recv(256, |_, _| {});
            match me.rng.below(3) {
                0 => {
                    vm.stop();
                    vm.start();
                }
                1 => {
                    let index = me.rng.below(2) as u32;
                    vm.fe.set_vring_enable(index, false).expect("disable");
                    vm.fe.set_vring_enable(index, true).expect("enable");
                }
                _ => {
                    let tx = &vm.guest.tx[0].ring;
                    let (kick, call) = (tx.kick.raw(), tx.call.raw());
                    vm.fe.set_vring_fd(req::SET_VRING_KICK, 1, Some(kick)).expect("kick");
                    vm.fe.set_vring_fd(req::SET_VRING_CALL, 1, Some(call)).expect("call");
                }
            }
            true
        });
        vm.settle();
        vm.guest.tx[0].drain(SOON);
    }

    fn nonsense_headers(&mut self) {
        let mut vm = self.guest();
        self.for_a_while(Duration::from_secs(2), |me| {
            let word = |rng: &mut Rng| [0, 1, 14, 34, 54, 1000, 0xffff][rng.below(7) as usize];
            let header = Header {
                flags: me.rng.below(4) as u8,
                gso_type: [0, 1, 3, 4, 5, 0x81][me.rng.below(6) as usize],
                hdr_len: word(&mut me.rng),
                gso_size: word(&mut me.rng),
                csum_start: word(&mut me.rng),
                csum_offset: word(&mut me.rng),
                num_buffers: me.rng.next() as u16,
            };
            let len = vm.cfg.header_len();
            vm.guest.tx[0].header = header.bytes(len);
            me.burst(&mut vm, 8);
            vm.guest.rx[0].recv(256, |_, _| {});
            true
        });
        vm.guest.tx[0].drain(SOON);
    }

    /// Starts a ring that the books know nothing of any more.
    fn restart(vm: &mut Vm) -> Result<()> {
        vm.fe.get_vring_base(1)?;
        vm.guest.tx[0].reclaim_all();
        vm.guest.start_ring(&mut vm.fe, &vm.guest.tx[0].ring)?;
        vm.fe.get_features()?;
        Ok(())
    }

    fn bad_chains(&mut self) {
        let mut vm = self.guest();
        let good = vm.mem.alloc_in(0, 4096, 16);
        let end = vm.cfg.regions[0].gpa + vm.cfg.regions[0].len;
        self.for_a_while(Duration::from_secs(2), |me| {
            if Self::restart(&mut vm).is_err() {
                return false;
            }
            let kind = BAD_CHAINS[me.rng.below(BAD_CHAINS.len() as u64) as usize];
            bad_chain(&vm.guest.tx[0].ring, kind, &good, end);
            (0..me.rng.below(500)).for_each(|_| offer(&vm.guest.tx[0].ring, 0));
            true
        });
    }

    fn bad_index(&mut self) {
        let mut vm = self.guest();
        let tx = self.rng.below(2) == 0;
        self.for_a_while(Duration::from_secs(2), |me| {
            let vm = &mut vm.guest;
            let ring: &Ring = if tx { &vm.tx[0].ring } else { &vm.rx[0].ring };
            raw_avail_idx(ring, me.rng.next() as u16);
            (0..20).for_each(|_| ring.kick.write(1));
            true
        });
    }

    fn bad_heads(&mut self) {
        let mut vm = self.guest();
        let tx = self.rng.below(2) == 0;
        self.for_a_while(Duration::from_secs(2), |me| {
            let vm = &mut vm.guest;
            let ring: &Ring = if tx { &vm.tx[0].ring } else { &vm.rx[0].ring };
            for slot in 0..ring.size {
                // Of those that exist most come again and again.
                raw_avail(ring, slot, me.rng.below(300) as u16);
            }
            raw_avail_idx(ring, ring.used_idx().wrapping_add(ring.size));
            ring.kick.write(1);
            true
        });
    }

    /// A thread changes a field while the switch works on the ring.
    fn fields_change(&mut self) {
        let mut vm = self.guest();
        if Self::restart(&mut vm).is_err() {
            return;
        }
        let memory = vm.mem.alloc_in(0, 4096, 4096);
        let (table, header, data) = (memory.sub(0, 64), memory.sub(64, 12), memory.sub(128, 60));
        let frame = self.frame(mac_of(self.id), mac_of(self.id), 60).to_vec();
        header.write(0, &[0; 12]);
        data.write(0, &frame);
        let ring = &vm.guest.tx[0].ring;
        raw_desc(ring, 0, Seg { gpa: header.gpa(), len: 12 }, DESC_NEXT, 1);
        raw_desc(ring, 1, Seg { gpa: data.gpa(), len: 60 }, 0, 0);
        let (desc, avail, size) = (ring.desc.clone(), ring.avail.clone(), ring.size);
        let target = Target { desc, avail, table, header, size };
        let fields = FIELDS.iter().filter(|field| **field != Field::Table).copied();
        let field = fields.collect::<Vec<_>>()[self.rng.below(7) as usize];
        let stop = &AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let pause = &AtomicBool::new(false);
                    std::thread::scope(|s| {
                        let target = target.clone();
                        s.spawn(move || flip(&target, field, pause));
                        // In slices: it would otherwise use up a CPU that others need.
                        std::thread::sleep(Duration::from_millis(1));
                        pause.store(true, Ordering::Relaxed);
                    });
                    std::thread::sleep(Duration::from_millis(4));
                }
            });
            let ring = &vm.guest.tx[0].ring;
            self.for_a_while(Duration::from_secs(1), |_| {
                (0..8).for_each(|_| offer(ring, 0));
                true
            });
            stop.store(true, Ordering::Relaxed);
        });
    }

    /// Nothing here may touch that memory afterwards either.
    fn truncate(&mut self) {
        let mut vm = self.guest();
        self.burst(&mut vm, 32);
        let (kick, len) = (vm.tx[0].ring.kick.raw(), [0, 4096, 65536][self.rng.below(3) as usize]);
        for (_, fd) in vm.mem.table() {
            sys::truncate(&fd, len);
        }
        self.for_a_while(Duration::from_millis(500), |_| {
            sys::signal_raw(kick);
            true
        });
    }

    /// A call descriptor that is full and blocks: at once, or after the switch has seen to it that
    /// it does not. In that case the port is closed for a while, which the next guest here waits
    /// for.
    fn blocking_calls(&mut self) {
        let mut vm = self.guest();
        let at_once = self.rng.below(4) != 0;
        let call = EventFd::new();
        let fill = || {
            // What is counted already would leave no room for it.
            call.take();
            call.write(u64::MAX - 1);
            sys::set_blocking(&call.as_fd());
        };
        if at_once {
            fill();
        }
        let mut closed = false;
        for index in 0..2 {
            closed |= vm.fe.set_vring_fd(req::SET_VRING_CALL, index, Some(call.raw())).is_err();
        }
        closed |= vm.fe.get_features().is_err();
        if !at_once {
            fill();
        }
        self.for_a_while(Duration::from_secs(1), |me| {
            if !closed {
                me.burst(&mut vm, 8);
                vm.guest.rx[0].ring.arm();
                vm.guest.tx[0].ring.arm();
            }
            closed |= vm.fe.get_features().is_err();
            !closed
        });
        drop(vm);
        if !at_once {
            let mut next = Frontend::connect(&self.path, SOON).expect("connect");
            next.send(req::GET_FEATURES, 1, &[], &[]).expect("sent");
            assert!(sys::poll_in(&[next.raw()], CLOSED_FOR), "not served again");
        }
    }

    fn half_a_message(&mut self) {
        let mut fe = Frontend::connect(&self.path, SOON).expect("connect");
        let whole = message(req::GET_FEATURES, 1, &[0; 8]);
        let half = 1 + self.rng.below(whole.len() as u64 - 1) as usize;
        fe.send_raw(&whole[..half], &[]).expect("sent");
        let limit = Duration::from_millis(self.rng.below(2500));
        fe.closed_within(limit);
    }

    fn garbage(&mut self) {
        let mut fe = Frontend::connect(&self.path, SOON).expect("connect");
        let file = EventFd::new();
        self.for_a_while(Duration::from_millis(500), |me| {
            let rng = &mut me.rng;
            let code = rng.below(45) as u32;
            let flags =
                if rng.below(8) == 0 { rng.next() as u32 } else { 1 + 8 * rng.below(2) as u32 };
            let len = [0, 4, 8, 12, 40, 48, 100, 4096][rng.below(8) as usize];
            let body: Vec<u8> = match rng.below(3) {
                0 => vec![0; len],
                1 => vec![0xff; len],
                _ => (0..len).map(|_| rng.next() as u8).collect(),
            };
            let files = vec![file.raw(); rng.below(4) as usize];
            fe.send(code, flags, &body, &files).is_ok() && !fe.closed_within(Duration::ZERO)
        });
    }

    fn many_addresses(&mut self) {
        let mut vm = self.guest();
        self.for_a_while(Duration::from_secs(2), |me| {
            for _ in 0..64 {
                let n = me.rng.next().to_le_bytes();
                let frame = me.frame(mac_of(me.id), [2, 0xfd, n[0], n[1], n[2], n[3]], 60);
                if !vm.guest.tx[0].queue(frame) {
                    break;
                }
            }
            vm.guest.tx[0].ring.publish();
            vm.guest.rx[0].recv(256, |_, _| {});
            true
        });
        vm.guest.tx[0].drain(SOON);
    }

    fn broadcast_storm(&mut self) {
        let mut vm = self.guest();
        self.for_a_while(Duration::from_millis(500), |me| {
            let frame = me.frame([0xff; 6], mac_of(me.id), 60).to_vec();
            for _ in 0..200 {
                if !vm.guest.tx[0].queue(&frame) {
                    break;
                }
            }
            vm.guest.tx[0].ring.publish();
            vm.guest.rx[0].recv(256, |_, _| {});
            true
        });
        vm.guest.tx[0].drain(SOON);
    }

    /// Source addresses of honest guests, which are static, and of others, which move.
    fn stolen_addresses(&mut self) {
        let mut vm = self.guest();
        self.for_a_while(Duration::from_secs(1), |me| {
            let victim = match me.rng.below(2) {
                0 => me.rng.below(2 * PAIRS as u64),
                _ => me.rng.below(PORTS as u64),
            };
            let dst = me.any_station();
            let frame = me.frame(dst, mac_of(victim as u8), 60);
            vm.guest.tx[0].send(frame);
            vm.guest.rx[0].recv(256, |_, _| {});
            true
        });
        vm.guest.tx[0].drain(SOON);
    }

    fn flap(&mut self) {
        for _ in 0..1 + self.rng.below(15) {
            let mut fe = Frontend::connect(&self.path, SOON).expect("connect");
            match self.rng.below(3) {
                0 => {}
                1 => drop(fe.get_features().expect("served")),
                _ => {
                    let mut vm = self.guest_on(fe);
                    self.burst(&mut vm, 32);
                }
            }
            if self.shared.leave_now() {
                break;
            }
        }
    }

    fn guest_on(&mut self, fe: Frontend) -> Vm {
        Vm::attach(fe, VmConfig::new(self.id))
    }

    /// A guest in a process of its own, which dies.
    fn killed(&mut self) {
        let this = std::env::current_exe().expect("this test");
        let mut guest = Command::new(this)
            .args(["--exact", PROCESS, "--ignored", "--quiet"])
            .env(PROCESS_SOCKET, &self.path)
            .env(PROCESS_SEED, format!("{} {}", self.id, self.rng.next()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a guest's process");
        let end = Duration::from_millis(20 + self.rng.below(1000));
        let began = Instant::now();
        while began.elapsed() < end && !self.shared.leave_now() {
            std::thread::sleep(Duration::from_millis(5));
        }
        guest.kill().expect("kill");
        guest.wait().expect("wait");
    }

    fn memory_comes_and_goes(&mut self) {
        let mut vm = self.guest();
        self.for_a_while(Duration::from_secs(1), |me| {
            let spec = testkit::mem::RegionSpec {
                gpa: 64 << 30,
                len: (1 + me.rng.below(16)) << 21,
                uva: 0x7c00_0000_0000,
                offset: 0,
            };
            let file = sys::memfd(spec.len);
            let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
            vm.fe.add_mem_reg(&spec, fd).expect("add");
            me.burst(&mut vm, 16);
            vm.fe.rem_mem_reg(&spec).expect("remove");
            vm.guest.rx[0].recv(256, |_, _| {});
            true
        });
        vm.settle();
        vm.guest.tx[0].drain(SOON);
    }
}

/// What a guest's own process does until it is killed: it talks. That is for half a minute at most.
pub fn process() {
    let (Ok(path), Ok(words)) = (std::env::var(PROCESS_SOCKET), std::env::var(PROCESS_SEED)) else {
        return;
    };
    let mut words = words.split(' ').map(|word| word.parse().expect("a number"));
    let (id, seed) = (words.next().expect("id"), words.next().expect("seed"));
    let shared = Shared::default();
    let mut guest = Other::new(id as u8, path.into(), seed, &shared);
    let end = Instant::now() + Duration::from_secs(30);
    while Instant::now() < end {
        guest.talk();
    }
}
