//! Front-ends, and the daemon, die and come back; the guests' rings stay as they were.

use testkit::net::{Job, Net, Sizes};
use testkit::proc::Daemon;
use testkit::traffic::To;
use testkit::vm::Base;

/// The guest's front-end dies and comes back, its rings as they were. What it had shown and what
/// it shows meanwhile is sent; its RX buffers are all used again.
fn reconnect_keeps_rings(base: Base) {
    let d = Daemon::with(2, &[]);
    let mut net = Net::connect(&d, 2, |mut c| {
        c.base = base;
        c
    });
    for round in 0..50 {
        net.send_only(&Job::new(0, To::Vm(1), 1 + round % 40, Sizes::Range(60, 1514)));
        let path = d.socket(0);
        net.vms[0].disconnect();
        net.send_only(&Job::new(0, To::Vm(1), 3, Sizes::Fixed(60)));
        net.vms[0].reconnect(&path);
        net.run(&[Job::new(1, To::Vm(0), 20, Sizes::Range(60, 1514))]);
    }
    net.finish();
    drop(net);
    d.stop();
}

#[test]
fn reconnect_with_the_used_index() {
    reconnect_keeps_rings(Base::Used);
}

/// cloud-hypervisor's base is the avail index, which would skip every posted RX buffer.
#[test]
fn reconnect_with_the_avail_index() {
    reconnect_keeps_rings(Base::Avail);
}

/// The daemon is killed and started again; the guests come back with their rings. Nothing was on
/// the way, so nothing is lost and nothing comes twice.
#[test]
fn guests_survive_a_killed_daemon() {
    let mut d = Daemon::with(2, &[]);
    let mut net = Net::connect(&d, 2, |c| c);
    let both = [
        Job::new(0, To::Vm(1), 500, Sizes::Range(60, 1514)),
        Job::new(1, To::Vm(0), 500, Sizes::Range(60, 1514)),
    ];
    for _ in 0..5 {
        net.run(&both);
        d.kill();
        // Stale sockets of the dead daemon are replaced.
        d.restart();
        net.vms[1].reconnect(&d.socket(1));
        net.vms[0].reconnect(&d.socket(0));
        net.announce();
        net.run(&both);
    }
    net.finish();
    drop(net);
    d.stop();
}
