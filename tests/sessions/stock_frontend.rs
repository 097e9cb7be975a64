//! The rust-vmm front-end (`vhost::vhost_user::Frontend`) drives the daemon: a second, independent
//! opinion on the messages, with acknowledgements on every request. It can follow the order of a
//! front-end that sets features first, as cloud-hypervisor does.

use std::os::fd::{AsFd, FromRawFd, IntoRawFd};

use testkit::SOON;
use testkit::proc::Daemon;
use testkit::ring::Ring;
use testkit::vm::{Guest, Vm, VmConfig};
use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

/// The same eventfd in the type the crate wants.
fn event(fd: &impl AsFd) -> EventFd {
    let copy = fd.as_fd().try_clone_to_owned().expect("dup");
    // SAFETY: the descriptor is a fresh duplicate that nobody else owns.
    unsafe { EventFd::from_raw_fd(copy.into_raw_fd()) }
}

fn regions(guest: &Guest) -> Vec<VhostUserMemoryRegionInfo> {
    let info = |(r, fd): (testkit::mem::RegionSpec, i32)| VhostUserMemoryRegionInfo {
        guest_phys_addr: r.gpa,
        memory_size: r.len,
        userspace_addr: r.uva,
        mmap_offset: r.offset,
        mmap_handle: fd,
    };
    guest.mem.table().into_iter().map(info).collect()
}

fn start_ring(fe: &mut Frontend, guest: &Guest, ring: &Ring) {
    let index = ring.index as usize;
    let addr = ring.addr(&guest.mem, 0);
    let config = VringConfigData {
        queue_max_size: ring.size,
        queue_size: ring.size,
        flags: 0,
        desc_table_addr: addr.desc,
        used_ring_addr: addr.used,
        avail_ring_addr: addr.avail,
        log_addr: None,
    };
    fe.set_vring_num(index, ring.size).expect("num");
    fe.set_vring_addr(index, &config).expect("addr");
    fe.set_vring_base(index, 0).expect("base");
    fe.set_vring_call(index, &event(&ring.call)).expect("call");
    fe.set_vring_kick(index, &event(&ring.kick)).expect("kick");
    fe.set_vring_err(index, &event(&ring.err)).expect("err");
}

/// Brings a guest up by the crate's calls alone.
fn bring_up(d: &Daemon, guest: &Guest, slots: bool) -> Frontend {
    let mut fe = Frontend::connect(d.socket(0), 2).expect("connect");
    fe.set_owner().expect("owner");
    let offered = fe.get_features().expect("features");
    let protocol = fe.get_protocol_features().expect("protocol features");
    let wanted = VhostUserProtocolFeatures::MQ
        | VhostUserProtocolFeatures::REPLY_ACK
        | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS;
    assert!(protocol.contains(wanted), "{protocol:?}");
    fe.set_protocol_features(wanted).expect("protocol features");
    fe.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    assert_eq!(fe.get_queue_num().expect("queue number"), 2);
    let features = guest.cfg.features | 1 << 30;
    assert_eq!(features & !offered, 0);
    fe.set_features(features).expect("features");
    if slots {
        assert!(fe.get_max_mem_slots().expect("slots") >= 2);
        for region in regions(guest) {
            fe.add_mem_region(&region).expect("region");
        }
    } else {
        fe.set_mem_table(&regions(guest)).expect("table");
    }
    guest.rings().for_each(|r| start_ring(&mut fe, guest, r));
    (0..2).for_each(|i| fe.set_vring_enable(i, true).expect("enable"));
    fe
}

/// Memory comes by slots and by table.
#[test]
fn the_rust_vmm_front_end_brings_a_guest_up() {
    let d = Daemon::with(2, &[]);
    let mut peer = Vm::connect(&d.socket(1), VmConfig::new(1));
    for slots in [true, false] {
        let mut guest = Guest::new(VmConfig::new(0));
        let fe = bring_up(&d, &guest, slots);
        for i in 0..100u8 {
            let there = [&peer.mac()[..], &guest.mac(), &[0x88, 0xb5], &[i; 60]].concat();
            assert!(guest.tx[0].send(&there));
            assert!(peer.rx[0].wait(SOON));
            assert_eq!(peer.rx[0].recv(2, |_, f| assert_eq!(f, there)), 1);
            let back = [&guest.mac()[..], &peer.mac(), &[0x88, 0xb5], &[i; 60]].concat();
            assert!(peer.tx[0].send(&back));
            assert!(guest.rx[0].wait(SOON));
            assert_eq!(guest.rx[0].recv(2, |_, f| assert_eq!(f, back)), 1);
        }
        for ring in guest.rings() {
            let base = fe.get_vring_base(ring.index as usize).expect("base");
            assert_eq!(base, u32::from(ring.used_idx()));
        }
    }
    drop(peer);
    d.stop();
}
