//! A guest that sends each packet of IPv4 back to its sender.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use testkit::frontend::feat;
use testkit::vm::{Vm, VmConfig};

/// Longest sleep of the guest, after which it looks whether it is to end.
const LOOK: Duration = Duration::from_millis(200);
/// Number of the guest, which makes its address 02:56:53:00:00:01.
const GUEST: u8 = 1;

/// Runs `work` beside the guest, with the number of the guest's thread.
pub fn beside<T>(socket: &Path, work: impl FnOnce(Option<u32>) -> io::Result<T>) -> io::Result<T> {
    let (ready, is_ready) = mpsc::channel();
    let stopped = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut config = VmConfig::new(GUEST);
            config.features |= feat::CSUM | feat::GUEST_CSUM;
            let mut vm = Vm::connect(socket, config);
            // SAFETY: a system call without arguments.
            let _ = ready.send(unsafe { libc::gettid() } as u32);
            while !stopped.load(Ordering::Relaxed) {
                serve(&mut vm);
            }
        });
        let guest = is_ready.recv().map_err(io::Error::other)?;
        let done = work(Some(guest));
        stopped.store(true, Ordering::Relaxed);
        done
    })
}

/// Sleeps until frames come, and sends them back.
fn serve(vm: &mut Vm) {
    let (rx, tx) = (&mut vm.guest.rx[0], &mut vm.guest.tx[0]);
    if !rx.wait(LOOK) {
        return;
    }
    rx.recv(usize::MAX, |header, frame| {
        if let Some(frame) = turned(frame) {
            tx.header.copy_from_slice(header);
            // `num_buffers` is the receiver's.
            tx.header[10..].fill(0);
            tx.queue(&frame);
        }
    });
    tx.ring.publish();
}

/// Returns a packet with the places of sender and receiver changed, which leaves its checksums.
fn turned(frame: &[u8]) -> Option<Vec<u8>> {
    if frame.get(12..14)? != [8, 0] || frame.len() < 42 {
        return None;
    }
    let mut turned = frame.to_vec();
    for (at, len) in [(0, 6), (26, 4), (34, 2)] {
        let (first, second) = turned[at..at + 2 * len].split_at_mut(len);
        first.swap_with_slice(second);
    }
    Some(turned)
}
