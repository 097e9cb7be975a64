//! One port of the real switch: a guest, its front-end, and what this side knows of its rings.

use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::Arc;

use testkit::frontend::{Frontend, feat, req};
use testkit::hostile::{BAD_CHAINS, BadChain, bad_chain, offer, raw_avail, raw_avail_idx};
use testkit::mem::{GuestMem, RegionSpec};
use testkit::proc::wait_for;
use testkit::ring::{Ring, Seg};
use testkit::rx::{Poison, RxConfig};
use testkit::sys;
use testkit::tx::Layout;
use testkit::vm::{MODERN, Vm, VmConfig};
use testkit::vnet::Header;

use super::op::{LONGEST, Make};

pub use testkit::SOON;

/// Where memory is plugged in.
const PLUGGED: RegionSpec =
    RegionSpec { gpa: 16 << 30, len: 1 << 20, uva: 0x7d00_0000_0000, offset: 0 };

/// A frame that was shown to the switch.
#[derive(Clone, Debug)]
pub struct Sent {
    pub bytes: Vec<u8>,
    /// The switch must refuse its header.
    pub refused: bool,
    /// What an MTU is compared with.
    pub size: usize,
    /// What each receiver gets, by the features it acknowledged.
    pub packet: Option<(testkit::packet::Packet, testkit::packet::Ask)>,
}

pub struct Side {
    pub started: bool,
    pub enabled: bool,
    /// Index or heads are nonsense: nothing works before the ring is emptied.
    pub corrupt: bool,
}

pub struct Station {
    id: u8,
    path: PathBuf,
    pub vm: Option<Vm>,
    pub connected: bool,
    pub rx: Side,
    pub tx: Side,
    /// The transmit ring was disabled while it ran: what is shown is discarded.
    pub discards: bool,
    /// The receive ring has held buffers since it was started and enabled.
    pub held: bool,
    /// The switch has found the receive ring broken.
    pub broken: bool,
    /// Frames in a transmit ring that nobody takes them from.
    pub pending: Vec<Sent>,
    /// The receive ring ran out of buffers: senders have to share it, which drops frames too.
    pub scarce: bool,
    /// Free receive buffers before the operation.
    pub free: usize,
    extra: Option<Arc<GuestMem>>,
    plugged: bool,
}

impl Station {
    pub fn new(id: usize, path: PathBuf) -> Station {
        let side = || Side { started: false, enabled: false, corrupt: false };
        Station {
            id: id as u8,
            path,
            vm: None,
            connected: false,
            rx: side(),
            tx: side(),
            discards: false,
            held: false,
            broken: false,
            pending: Vec::new(),
            scarce: false,
            free: 0,
            extra: None,
            plugged: false,
        }
    }

    fn side(&mut self, tx: bool) -> &mut Side {
        if tx { &mut self.tx } else { &mut self.rx }
    }

    pub fn vm(&mut self) -> &mut Vm {
        self.vm.as_mut().expect("a guest")
    }

    pub fn features(&self) -> u64 {
        self.vm.as_ref().map_or(0, |vm| vm.cfg.features)
    }

    pub fn may_receive(&self) -> bool {
        self.connected && self.rx.started && self.rx.enabled && self.held
    }

    pub fn is_empty(&self) -> bool {
        self.connected && self.rx.started && self.rx.enabled && !self.held && !self.broken
    }

    pub fn may_send(&self) -> bool {
        self.connected && self.tx.started && self.tx.enabled && !self.tx.corrupt
    }

    /// Buffers that a frame of `len` bytes takes; none if it cannot fit in any number.
    pub fn need(&self, len: usize) -> Option<usize> {
        let vm = self.vm.as_ref().expect("a guest");
        let (len, capacity) = (len + vm.cfg.header_len(), vm.rx[0].min_capacity() as usize);
        match vm.cfg.features & feat::MRG_RXBUF {
            0 => (len <= capacity).then_some(1),
            _ => Some(len.div_ceil(capacity)),
        }
    }

    pub fn capacity(&self) -> usize {
        self.vm.as_ref().map_or(0, |vm| vm.rx[0].min_capacity() as usize)
    }

    /// Connects a new guest, or the same one again; true if it did.
    pub fn attach(&mut self, make: Option<Make>) -> bool {
        if self.connected {
            return false;
        }
        match (make, &mut self.vm) {
            (Some(make), _) => {
                self.pending.clear();
                self.vm = Some(Vm::connect(&self.path, config(self.id, make)));
            }
            (None, Some(vm)) => {
                if self.rx.corrupt || self.tx.corrupt {
                    self.pending.clear();
                    vm.guest.reset_rings();
                }
                vm.reconnect(&self.path);
            }
            (None, None) => return false,
        }
        self.connected = true;
        let side = || Side { started: true, enabled: true, corrupt: false };
        (self.rx, self.tx, self.discards, self.scarce) = (side(), side(), false, false);
        self.held = self.vm().rx[0].ring.in_flight() > 0;
        self.broken = false;
        (self.extra, self.plugged) = (None, false);
        true
    }

    /// The front-end dies.
    pub fn leave(&mut self) {
        self.vm().disconnect();
        self.connected = false;
        (self.rx.started, self.tx.started) = (false, false);
        (self.held, self.broken) = (false, false);
    }

    /// When the next front-end is answered, the one before is gone for good.
    pub fn see_it_gone(&self) -> Frontend {
        let mut next = Frontend::connect(&self.path, SOON).expect("connect");
        next.get_features().expect("the next one is served");
        next
    }

    pub fn stop(&mut self, tx: bool) {
        if !self.connected || !self.side(tx).started {
            return;
        }
        let vm = self.vm.as_mut().expect("connected");
        let index = u32::from(tx);
        let base = vm.fe.get_vring_base(index).expect("base");
        let ring = if tx { &vm.guest.tx[0].ring } else { &vm.guest.rx[0].ring };
        assert_eq!(base, ring.used_idx(), "ring {index}: base (I5)");
        self.side(tx).started = false;
        if !tx {
            self.held = false;
        }
    }

    /// Starts a ring as it stands; true if it did.
    pub fn start(&mut self, tx: bool) -> bool {
        if !self.connected || self.side(tx).started || tx && self.tx.corrupt {
            return false;
        }
        let vm = self.vm.as_mut().expect("connected");
        let ring = if tx { &vm.guest.tx[0].ring } else { &vm.guest.rx[0].ring };
        vm.guest.start_ring(&mut vm.fe, ring).expect("start");
        vm.settle();
        self.side(tx).started = true;
        match tx {
            true => self.discards = false,
            false => {
                (self.broken, self.scarce) = (false, false);
                self.opened();
            }
        }
        true
    }

    /// The receive ring was started, enabled or filled, and the switch has looked at it.
    fn opened(&mut self) {
        let posted = self.vm().rx[0].ring.in_flight() > 0 || self.rx.corrupt;
        self.held |= posted && self.rx.started && self.rx.enabled && !self.broken;
    }

    pub fn enable(&mut self, tx: bool, on: bool) {
        // Frames that wait in a ring that was started disabled are no business of the next kick.
        if !self.connected || tx && !on && !self.pending.is_empty() {
            return;
        }
        let vm = self.vm();
        vm.fe.set_vring_enable(u32::from(tx), on).expect("enable");
        vm.settle();
        self.side(tx).enabled = on;
        match (tx, on) {
            (true, _) => self.discards = !on && self.tx.started,
            (false, true) => self.opened(),
            (false, false) => self.held = false,
        }
    }

    /// KICK and CALL come again.
    pub fn swap(&mut self, tx: bool) {
        if self.connected && self.side(tx).started {
            let vm = self.vm.as_mut().expect("connected");
            let ring = if tx { &vm.guest.tx[0].ring } else { &vm.guest.rx[0].ring };
            for (code, fd) in [(req::SET_VRING_KICK, &ring.kick), (req::SET_VRING_CALL, &ring.call)]
            {
                vm.fe.set_vring_fd(code, ring.index, Some(fd.raw())).expect("swap");
            }
            vm.settle();
        }
    }

    /// Stops a ring and starts it empty.
    pub fn restart(&mut self, tx: bool) {
        if !self.connected {
            return;
        }
        let vm = self.vm.as_mut().expect("connected");
        vm.fe.get_vring_base(u32::from(tx)).expect("base");
        let hold = vm.guest.rx[0].hold;
        match tx {
            true => {
                vm.guest.tx[0].reclaim_all();
                self.pending.clear();
            }
            false => {
                let rx = &mut vm.guest.rx[0];
                rx.reclaim_all();
                rx.post(usize::MAX);
                rx.ring.show();
                rx.hold = hold;
                self.held = false;
            }
        }
        let side = self.side(tx);
        (side.started, side.corrupt) = (false, false);
        self.start(tx);
    }

    pub fn hold(&mut self) {
        if let Some(vm) = &mut self.vm {
            vm.rx[0].hold = true;
        }
    }

    /// Posts buffers. If the switch waits for the first ones it is told without a kick, as nobody
    /// could say when that one was heard.
    pub fn refill(&mut self, buffers: usize) {
        if self.vm.is_none() || self.rx.corrupt {
            return;
        }
        let rx = &mut self.vm().rx[0];
        rx.hold = false;
        rx.post(buffers);
        rx.ring.publish();
        if self.connected && self.rx.started && self.rx.enabled && !self.held {
            self.enable(false, true);
        }
    }

    /// Breaks a ring: a transmit ring by an index that it cannot have, a receive ring by heads that
    /// do not exist (an index is only read again when the buffers known of are used up). Of the
    /// latter the switch finds out when it has a frame for it; one that lately had too few buffers
    /// it may leave alone, as they are others' part.
    pub fn break_ring(&mut self, tx: bool) {
        let able = match tx {
            true => self.may_send() && self.pending.is_empty(),
            false => self.may_receive() && self.free > 0 && !self.scarce,
        };
        if !able || self.side(tx).corrupt {
            return;
        }
        let vm = self.vm.as_mut().expect("connected");
        if tx {
            let ring = &vm.guest.tx[0].ring;
            raw_avail_idx(ring, ring.used_idx().wrapping_add(ring.size + 1));
            ring.kick.write(1);
            assert!(sys::poll_in(&[ring.err.raw()], SOON), "a broken ring is not reported");
            ring.err.take();
        } else {
            let ring = &vm.guest.rx[0].ring;
            (0..ring.size).for_each(|slot| raw_avail(ring, slot, ring.size));
        }
        self.side(tx).corrupt = true;
    }

    /// Offers malformed chains, waits until they came back and starts the ring anew. Answers the
    /// reason for which each must be dropped.
    pub fn bad_chains(&mut self, kind: usize, count: u16) -> Option<&'static str> {
        if !self.may_send() || !self.pending.is_empty() {
            return None;
        }
        self.restart(true);
        let guest = &self.vm().guest;
        let kind = BAD_CHAINS[kind % BAD_CHAINS.len()];
        let good = guest.mem.alloc_in(0, 64, 16);
        bad_chain(
            &guest.tx[0].ring,
            kind,
            &good,
            guest.cfg.regions[0].gpa + guest.cfg.regions[0].len,
        );
        let ring = &guest.tx[0].ring;
        (0..count).for_each(|_| offer(ring, 0));
        let back = wait_for(SOON, || ring.used_idx() == count);
        assert!(back, "{kind:?}: {} of {count} came back (I5)", ring.used_idx());
        self.restart(true);
        Some(reason(kind))
    }

    pub fn plug(&mut self, plug: bool) {
        if !self.connected || self.plugged == plug {
            return;
        }
        if plug {
            self.extra = Some(GuestMem::new(&[PLUGGED]));
            let memory = self.extra.as_ref().expect("just made");
            let fd: RawFd = memory.table()[0].1;
            self.vm.as_mut().expect("connected").fe.add_mem_reg(&PLUGGED, fd).expect("plug");
        } else {
            self.vm().fe.rem_mem_reg(&PLUGGED).expect("unplug");
        }
        self.vm().settle();
        self.plugged = plug;
    }

    /// Sends a frame out of memory that is plugged in (true), or was.
    pub fn send_plugged(&mut self, frame: &[u8]) -> Option<bool> {
        if !self.may_send() || !self.pending.is_empty() {
            return None;
        }
        let memory = self.extra.clone()?;
        let vm = self.vm.as_mut().expect("connected");
        let mut bytes = vec![0; vm.cfg.header_len()];
        bytes.extend_from_slice(frame);
        memory.span(PLUGGED.gpa, bytes.len() as u64).write(0, &bytes);
        let ring = &mut vm.guest.tx[0].ring;
        let whole = Seg { gpa: PLUGGED.gpa, len: bytes.len() as u32 };
        assert!(ring.add(&[whole], false, None, 0), "an empty ring");
        ring.publish();
        assert!(ring.wait(SOON), "a frame of plugged memory does not come back (I5)");
        assert_eq!(ring.pop_used().map(|used| used.1), Some(0));
        Some(self.plugged)
    }

    /// Shows frames to the switch; true if it works through them now.
    pub fn send(&mut self, header: Header, frames: &[Sent]) -> bool {
        let vm = self.vm.as_mut().expect("a guest");
        let tx = &mut vm.guest.tx[0];
        tx.header = header.bytes(tx.header.len());
        for frame in frames {
            assert!(tx.queue(&frame.bytes), "no room in an empty ring");
        }
        tx.ring.publish();
        self.connected && self.tx.started && (self.tx.enabled || self.discards)
    }

    /// Waits until the switch has given back all that was shown: it has delivered it then.
    pub fn drain(&mut self) {
        self.vm().tx[0].drain(SOON);
    }

    /// All frames that came.
    pub fn receive(&mut self) -> Vec<(Header, Vec<u8>)> {
        let mut frames = Vec::new();
        if let Some(vm) = &mut self.vm {
            vm.guest.rx[0].recv(usize::MAX, |header, frame| {
                frames.push((Header::parse(header).request(), frame.to_vec()));
            });
        }
        frames
    }

    pub fn ring(&mut self, tx: bool) -> &Ring {
        let vm = self.vm();
        if tx { &vm.guest.tx[0].ring } else { &vm.guest.rx[0].ring }
    }
}

fn config(id: u8, make: Make) -> VmConfig {
    let mut cfg = match make {
        Make::Offloads => VmConfig::with_offloads(id, feat::OFFLOADS, true),
        _ => VmConfig::new(id),
    };
    cfg.tx.buffers = 64;
    cfg.tx.max_frame = LONGEST as u32;
    cfg.tx.indirect = true;
    cfg.rx.poison = Poison::Full;
    match make {
        Make::Modern | Make::Offloads => {}
        Make::Legacy => {
            cfg.features = feat::INDIRECT;
            cfg.rx = RxConfig::plain(128, 1526);
            cfg.tx.layouts = vec![Layout::HeaderApart];
        }
        Make::Crumbs => {
            cfg.features = MODERN & !feat::EVENT_IDX;
            cfg.rx.layouts = vec![vec![100]];
            cfg.tx.layouts = vec![Layout::Pieces(17), Layout::Random { max: 9 }];
        }
        Make::Small => {
            cfg.features |= feat::IN_ORDER;
            (cfg.size, cfg.rx.buffers) = (16, 16);
        }
    }
    cfg
}

/// What a malformed chain counts as.
fn reason(kind: BadChain) -> &'static str {
    match kind {
        BadChain::Hole | BadChain::PastEnd | BadChain::Wraps | BadChain::TableHole => "bad_address",
        BadChain::Short(_) => "too_short",
        BadChain::WrongDirection => "bad_direction",
        _ => "bad_chain",
    }
}
