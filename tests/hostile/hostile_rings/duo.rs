//! Two hostile guests of one owner beside two honest ones: the first sends to the second, and
//! either may do with its memory what it likes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::lab::{SOON, chat, counters};
use testkit::frontend::VringAddr;
use testkit::mem::{GuestMem, RegionSpec, Span};
use testkit::net::Net;
use testkit::proc::{Daemon, wait_for};
use testkit::ring::{Ring, RingMode};
use testkit::rx::RxRing;
use testkit::tx::TxRing;
use testkit::vm::{Guest, Vm, VmConfig, tag_of};

/// Their numbers; 0 and 1 are honest.
pub const SENDER: u8 = 2;
pub const SINK: u8 = 3;

/// Ends a thread that changes memory, panic or not.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub struct Duo {
    pub d: Daemon,
    pub net: Net,
    pub sender: Vm,
    pub sink: Vm,
}

fn config(id: u8, features: u64) -> VmConfig {
    let mut cfg = VmConfig::new(id);
    cfg.features = features;
    cfg.regions = vec![RegionSpec::new(0, 2 << 20), RegionSpec::new(4 << 30, 2 << 20)];
    cfg.rx.buffers = 64;
    cfg.tx.buffers = 64;
    cfg
}

/// A guest in memory that another one has, too.
fn guest_in(mem: &Arc<GuestMem>, cfg: VmConfig) -> Guest {
    let mode = RingMode { event_idx: true, in_order: false, strict_order: true };
    let (header, tag) = (cfg.header_len(), tag_of(cfg.id));
    let rx = Ring::new(mem, 1, 0, cfg.size, mode);
    let tx = Ring::new(mem, 1, 1, cfg.tx_size, mode);
    let mut rx = RxRing::new(mem, rx, &cfg.rx, cfg.features, header, tag);
    rx.post(usize::MAX);
    rx.ring.show();
    let tx = TxRing::new(mem, tx, &cfg.tx, header, tag);
    Guest { mem: Arc::clone(mem), rx: vec![rx], tx: vec![tx], cfg }
}

impl Duo {
    /// With `shared` both have the same memory.
    pub fn new(features: u64, shared: bool) -> Duo {
        let d = Daemon::with(4, &["--workers", "2"]);
        let net = Net::connect(&d, 2, |c| c);
        let sender = Vm::connect(&d.socket(SENDER.into()), config(SENDER, features));
        let cfg = config(SINK, features);
        let guest = if shared { guest_in(&sender.mem, cfg) } else { Guest::new(cfg) };
        let path = d.socket(SINK.into());
        let fe = testkit::frontend::Frontend::connect(&path, SOON).expect("connect");
        let mut sink = Vm { fe, guest };
        sink.guest.bring_up(&mut sink.fe).expect("bring up");
        sink.settle();
        let mut duo = Duo { d, net, sender, sink };
        duo.introduce();
        duo
    }

    /// The switch learns where both are, without a frame for anybody else.
    fn introduce(&mut self) {
        for _ in 0..2 {
            let (to, from) = (self.sink.mac(), self.sender.mac());
            // A reserved address is learned from and not forwarded.
            let reserved = [0x01, 0x80, 0xc2, 0, 0, 0x0e];
            self.sink.tx[0].send_waiting(&frame(reserved, to), SOON);
            self.sender.tx[0].send_waiting(&frame(reserved, from), SOON);
        }
        self.sink.tx[0].drain(SOON);
        self.sender.tx[0].drain(SOON);
    }

    /// A frame from the sender to the sink.
    pub fn frame(&self) -> Vec<u8> {
        frame(self.sink.mac(), self.sender.mac())
    }

    /// Memory of one of them that nothing else lies in.
    pub fn alloc(vm: &Vm, len: u64) -> Span {
        vm.guest.mem.alloc_in(0, len, 4096)
    }

    /// Stops all rings of the pair: what it sent has arrived by then.
    pub fn stop(&mut self) {
        for vm in [&mut self.sender, &mut self.sink] {
            for index in [1, 0] {
                vm.fe.get_vring_base(index).expect("base");
            }
        }
    }

    /// Starts all rings of the pair anew, empty and where they belong.
    pub fn restart(&mut self) {
        self.stop();
        for vm in [&mut self.sink, &mut self.sender] {
            vm.guest.reset_rings();
            for ring in vm.guest.rings() {
                ring.err.take();
                vm.guest.start_ring(&mut vm.fe, ring).expect("start");
            }
            vm.fe.get_features().expect("settled");
        }
    }

    /// The pair keeps to the rules for once.
    pub fn works(&mut self, name: &str) {
        self.restart();
        let frame = self.frame();
        for _ in 0..20 {
            self.sender.tx[0].send_waiting(&frame, SOON);
        }
        self.sender.tx[0].drain(SOON);
        let got = self.sink.rx[0].take(20, SOON);
        assert_eq!(got.len(), 20, "{name}: good frames");
        assert!(got.iter().all(|(_, got)| *got == frame), "{name}: good frames");
    }

    /// Nobody's memory has a word of another's (I4), all is accounted for (I1), and the daemon
    /// leaves in order.
    pub fn finish(mut self) {
        chat(&mut self.net, 200);
        std::thread::sleep(Duration::from_millis(10));
        counters(&self.d).balance();
        let Duo { d, mut net, sender, sink } = self;
        for (id, vm) in net.vms.iter().enumerate() {
            for evil in [SENDER, SINK] {
                let found = vm.mem.contains(&tag_of(evil).to_le_bytes());
                assert!(!found, "memory of guest {id} has bytes of {evil} (I4)");
            }
            for evil in [&sender, &sink] {
                let found = evil.mem.contains(&tag_of(id as u8).to_le_bytes());
                assert!(!found, "memory of guest {} has bytes of {id} (I4)", evil.cfg.id);
            }
        }
        drop(sender);
        drop(sink);
        chat(&mut net, 100);
        net.finish();
        drop(net);
        d.stop();
    }
}

fn frame(to: [u8; 6], from: [u8; 6]) -> Vec<u8> {
    let mut frame = [&to[..], &from, &[0x88, 0xb5]].concat();
    while frame.len() < 400 {
        frame.extend(tag_of(SENDER).to_le_bytes());
    }
    frame
}

/// Stops a ring and starts it at these guest-physical addresses.
pub fn start_at(vm: &mut Vm, tx: bool, [desc, avail, used]: [u64; 3]) {
    vm.fe.get_vring_base(u32::from(tx)).expect("base");
    let Vm { fe, guest } = vm;
    let ring = if tx { &guest.tx[0].ring } else { &guest.rx[0].ring };
    ring.err.take();
    let uva = |gpa| guest.mem.uva(gpa);
    let (desc, avail, used) = (uva(desc), uva(avail), uva(used));
    let addr = VringAddr { index: ring.index, flags: 0, desc, used, avail, log: 0 };
    use testkit::frontend::req::{SET_VRING_CALL, SET_VRING_KICK};
    fe.set_vring_num(ring.index, u32::from(ring.size)).expect("num");
    fe.set_vring_base(ring.index, 0).expect("base");
    fe.set_vring_addr(&addr).expect("addr");
    fe.set_vring_fd(SET_VRING_KICK, ring.index, Some(ring.kick.raw())).expect("kick");
    fe.set_vring_fd(SET_VRING_CALL, ring.index, Some(ring.call.raw())).expect("call");
    fe.get_features().expect("settled");
}

/// Waits until a ring has given back what was offered, or was reported broken.
pub fn settled(ring: &Ring, name: &str) -> bool {
    let mut broken = false;
    let done = wait_for(SOON, || {
        broken = super::lab::Lab::is_broken(ring);
        broken || ring.used_idx() == ring.avail.index(2).load(Ordering::Relaxed)
    });
    assert!(done, "{name}: heads missing (I5)");
    broken
}
