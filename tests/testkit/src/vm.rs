//! A test guest: memory, queue pairs, and the order in which a front-end brings them up.
//!
//! [`Guest`] is what survives a lost connection, as a VM survives its switch; [`Vm`] adds the
//! connection.

use std::ops::{Deref, DerefMut};
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::SOON;
use super::frontend::{Acks, Frontend, Result, feat, proto, req};
use super::mem::{GuestMem, RegionSpec};
use super::ring::{Ring, RingMode};
use super::rx::{RxConfig, RxRing};
use super::sys;
use super::tx::{Layout, TxConfig, TxRing};

/// What SET_VRING_BASE is given when a ring starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Base {
    /// The used index, as QEMU on a reconnect.
    Used,
    /// The avail index, as cloud-hypervisor on a restore.
    Avail,
}

#[derive(Clone, Debug)]
pub struct VmConfig {
    /// 0 to 15; makes the MAC address and the poison.
    pub id: u8,
    /// Virtio features to acknowledge (PROTOCOL_FEATURES is added).
    pub features: u64,
    pub protocol: u64,
    /// Ring size; TX rings may have their own.
    pub size: u16,
    pub tx_size: u16,
    pub pairs: usize,
    pub regions: Vec<RegionSpec>,
    pub rx: RxConfig,
    pub tx: TxConfig,
    pub acks: Acks,
    /// ADD_MEM_REG, else SET_MEM_TABLE.
    pub mem_slots: bool,
    pub base: Base,
}

/// The features of a modern Linux guest, offloads apart.
pub const MODERN: u64 = feat::VERSION_1 | feat::MRG_RXBUF | feat::INDIRECT | feat::EVENT_IDX;
/// Room for a 64 KiB packet in one receive buffer (5.1.6.3.1).
pub const LARGE_BUFFER: u32 = 65_562;
const PROTOCOL: u64 =
    proto::MQ | proto::REPLY_ACK | proto::CONFIGURE_MEM_SLOTS | proto::NET_MTU | proto::RARP;

impl VmConfig {
    /// Two regions with a hole between, as a PC's memory has.
    pub fn new(id: u8) -> VmConfig {
        VmConfig {
            id,
            features: MODERN,
            protocol: PROTOCOL,
            size: 256,
            tx_size: 256,
            pairs: 1,
            regions: vec![RegionSpec::new(0, 32 << 20), RegionSpec::new(4 << 30, 32 << 20)],
            rx: RxConfig::plain(256, 1526),
            tx: TxConfig {
                layouts: vec![Layout::One],
                buffers: 256,
                max_frame: 1514,
                indirect: false,
            },
            acks: Acks::Never,
            mem_slots: true,
            base: Base::Used,
        }
    }

    /// A guest with some of [`feat::OFFLOADS`]: its receive buffers are what 5.1.6.3.1 asks of a
    /// driver with them, large ones as Linux's chains of pages or in one piece.
    pub fn with_offloads(id: u8, offloads: u64, mergeable: bool) -> VmConfig {
        let mut cfg = VmConfig::new(id);
        cfg.features |= offloads;
        cfg.tx.buffers = 64;
        cfg.tx.max_frame = LARGE_BUFFER;
        if !mergeable {
            cfg.features &= !feat::MRG_RXBUF;
            if offloads & feat::GUEST_LARGE != 0 {
                cfg.rx.layouts = large_layouts();
                cfg.rx.indirect = true;
            }
        }
        cfg
    }

    /// 12 bytes with VERSION_1 or MRG_RXBUF, else 10 (5.1.6.1).
    pub fn header_len(&self) -> usize {
        if self.features & (feat::VERSION_1 | feat::MRG_RXBUF) != 0 { 12 } else { 10 }
    }
}

/// Receive buffers totalling [`LARGE_BUFFER`].
fn large_layouts() -> Vec<Vec<u32>> {
    let header_apart = vec![12, LARGE_BUFFER - 12];
    let mut pages = vec![12];
    pages.extend([4096; 16]);
    pages.push(LARGE_BUFFER - pages.iter().sum::<u32>());
    vec![vec![LARGE_BUFFER], header_apart, pages]
}

/// A locally administered address that tells the guest's number.
pub fn mac_of(id: u8) -> [u8; 6] {
    [0x02, 0x56, 0x53, 0, 0, id]
}

/// The eight bytes that mark all memory of one guest, and nothing else on the machine.
pub fn tag_of(id: u8) -> u64 {
    u64::from_le_bytes([0xa5, b'V', b'M', id, 0x5a, !id, b'T', b'g'])
}

pub struct Guest {
    pub cfg: VmConfig,
    pub mem: Arc<GuestMem>,
    pub rx: Vec<RxRing>,
    pub tx: Vec<TxRing>,
}

impl Guest {
    /// Lays the guest out and posts its RX buffers; no back-end is connected yet.
    pub fn new(cfg: VmConfig) -> Guest {
        let mem = GuestMem::new(&cfg.regions);
        let mode = RingMode {
            event_idx: cfg.features & feat::EVENT_IDX != 0,
            in_order: cfg.features & feat::IN_ORDER != 0,
            strict_order: true,
        };
        let (header, tag) = (cfg.header_len(), tag_of(cfg.id));
        let mut guest = Guest { mem, rx: Vec::new(), tx: Vec::new(), cfg };
        for pair in 0..guest.cfg.pairs {
            let cfg = &guest.cfg;
            let rx = Ring::new(&guest.mem, pair, 2 * pair as u32, cfg.size, mode);
            let tx = Ring::new(&guest.mem, pair, 2 * pair as u32 + 1, cfg.tx_size, mode);
            let mut rx = RxRing::new(&guest.mem, rx, &cfg.rx, cfg.features, header, tag);
            rx.post(usize::MAX);
            rx.ring.show();
            guest.rx.push(rx);
            guest.tx.push(TxRing::new(&guest.mem, tx, &cfg.tx, header, tag));
        }
        guest
    }

    pub fn mac(&self) -> [u8; 6] {
        mac_of(self.cfg.id)
    }

    /// All rings in the protocol's numbering: RX 0, TX 1, RX 2, …
    pub fn rings(&self) -> impl Iterator<Item = &Ring> {
        self.rx.iter().zip(&self.tx).flat_map(|(r, t)| [&r.ring, &t.ring])
    }

    /// From the first message to DRIVER_OK, in QEMU's order.
    pub fn bring_up(&self, fe: &mut Frontend) -> Result<()> {
        self.negotiate(fe)?;
        fe.set_features(self.cfg.features | feat::PROTOCOL_FEATURES)?;
        self.start(fe)
    }

    /// What a front-end does when it meets the daemon, guest running or not.
    pub fn negotiate(&self, fe: &mut Frontend) -> Result<()> {
        let offered = fe.get_features()?;
        let want = self.cfg.features | feat::PROTOCOL_FEATURES;
        assert_eq!(want & !offered, 0, "not offered: {:#x}", want & !offered);
        let protocol = fe.get_protocol_features()?;
        let want = self.cfg.protocol;
        assert_eq!(want & !protocol, 0, "not offered: {:#x}", want & !protocol);
        fe.acks = self.cfg.acks;
        fe.set_protocol_features(want)?;
        if want & proto::MQ != 0 {
            let vrings = fe.get_queue_num()?;
            assert!(vrings >= 2 * self.cfg.pairs as u64, "GET_QUEUE_NUM {vrings}");
        }
        if want & proto::CONFIGURE_MEM_SLOTS != 0 {
            assert!(fe.get_max_mem_slots()? >= self.mem.region_count() as u64);
        }
        fe.set_owner()?;
        for ring in self.rings() {
            fe.set_vring_fd(req::SET_VRING_CALL, ring.index, Some(ring.call.raw()))?;
            fe.set_vring_fd(req::SET_VRING_ERR, ring.index, Some(ring.err.raw()))?;
        }
        Ok(())
    }

    /// What a front-end sends when the guest's driver is ready.
    pub fn start(&self, fe: &mut Frontend) -> Result<()> {
        self.share_memory(fe)?;
        self.start_again(fe)
    }

    /// The same when the memory is shared already, as after a stop.
    pub fn start_again(&self, fe: &mut Frontend) -> Result<()> {
        fe.set_features(self.cfg.features | feat::PROTOCOL_FEATURES)?;
        for ring in self.rings() {
            self.start_ring(fe, ring)?;
        }
        for ring in self.rings() {
            fe.set_vring_enable(ring.index, true)?;
        }
        Ok(())
    }

    pub fn share_memory(&self, fe: &mut Frontend) -> Result<()> {
        if !self.cfg.mem_slots {
            return fe.set_mem_table(&self.mem.table());
        }
        self.mem.table().iter().try_for_each(|(r, fd)| fe.add_mem_reg(r, *fd))
    }

    /// NUM, BASE, ADDR, KICK, CALL of one ring.
    pub fn start_ring(&self, fe: &mut Frontend, ring: &Ring) -> Result<()> {
        let base = match self.cfg.base {
            Base::Used => ring.used_idx(),
            Base::Avail => ring.avail_idx(),
        };
        fe.set_vring_num(ring.index, u32::from(ring.size))?;
        fe.set_vring_base(ring.index, u32::from(base))?;
        fe.set_vring_addr(&ring.addr(&self.mem, 0))?;
        fe.set_vring_fd(req::SET_VRING_KICK, ring.index, Some(ring.kick.raw()))?;
        fe.set_vring_fd(req::SET_VRING_CALL, ring.index, Some(ring.call.raw()))
    }

    /// Stops every ring as QEMU does. The daemon has nothing half done: base is the used index.
    pub fn stop(&self, fe: &mut Frontend) -> Result<()> {
        for ring in self.rings() {
            let base = fe.get_vring_base(ring.index)?;
            assert_eq!(base, ring.used_idx(), "ring {}: base", ring.index);
        }
        Ok(())
    }

    /// The guest's driver starts anew: empty rings, all buffers its own again.
    pub fn reset_rings(&mut self) {
        for rx in &mut self.rx {
            rx.reclaim_all();
            rx.post(usize::MAX);
            rx.ring.show();
        }
        self.tx.iter_mut().for_each(TxRing::reclaim_all);
    }

    /// Descriptors to sleep on for anything to happen on the RX rings.
    pub fn rx_calls(&self) -> impl Iterator<Item = RawFd> {
        self.rx.iter().map(|r| r.ring.call.raw())
    }

    /// True if no ring reported an error through its err fd.
    pub fn no_errors(&self) -> bool {
        self.rings().all(|r| !sys::poll_in(&[r.err.raw()], Duration::ZERO))
    }
}

/// A guest with its connection.
pub struct Vm {
    pub fe: Frontend,
    pub guest: Guest,
}

impl Vm {
    /// Connects to a listening daemon and brings the guest up.
    pub fn connect(path: &Path, cfg: VmConfig) -> Vm {
        Vm::attach(Frontend::connect(path, SOON).expect("connect"), cfg)
    }

    pub fn attach(fe: Frontend, cfg: VmConfig) -> Vm {
        let mut vm = Vm { fe, guest: Guest::new(cfg) };
        vm.guest.bring_up(&mut vm.fe).expect("bring up");
        vm.settle();
        vm
    }

    /// The front-end dies; the guest's memory stays as it is.
    pub fn disconnect(&mut self) {
        let (dead, _) = UnixStream::pair().expect("socket pair");
        self.fe = Frontend::from_stream(dead);
    }

    /// Connects the same guest, rings as they are, to a daemon anew.
    pub fn reconnect(&mut self, path: &Path) {
        self.fe = Frontend::connect(path, SOON).expect("connect");
        self.guest.bring_up(&mut self.fe).expect("bring up");
        self.settle();
    }

    /// Waits until the daemon has worked through all that was sent: it answers in order.
    pub fn settle(&mut self) {
        self.fe.get_features().expect("daemon answers");
    }

    /// After [`Vm::stop`].
    pub fn start(&mut self) {
        self.guest.start_again(&mut self.fe).expect("start");
        self.settle();
    }

    pub fn stop(&mut self) {
        self.guest.stop(&mut self.fe).expect("stop");
    }
}

impl Deref for Vm {
    type Target = Guest;
    fn deref(&self) -> &Guest {
        &self.guest
    }
}

impl DerefMut for Vm {
    fn deref_mut(&mut self) -> &mut Guest {
        &mut self.guest
    }
}
