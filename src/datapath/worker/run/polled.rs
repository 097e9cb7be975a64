//! Devices whose frames arrive in shared memory, as with XDP. A look at such a device needs no
//! system call, so a worker polls the device like a ring. The kernel would report each frame to the
//! epoll set, so a worker removes the device from the set while it polls the device.

use super::Worker;
use crate::port::{DeviceQueue, Endpoint};
use crate::worker::Token;

impl Worker {
    fn device_queue(&self, token: Token) -> Option<&DeviceQueue> {
        let Token::Device(id, queue) = token else { return None };
        match &self.ports.get(id)?.endpoint {
            Endpoint::Device(device) => device.queues().get(usize::from(queue)),
            Endpoint::Guest(_) => None,
        }
    }

    /// True for a ring, and for a device that can be polled.
    pub(super) fn can_poll(&self, token: Token) -> bool {
        self.device_queue(token).is_none_or(DeviceQueue::is_polled)
    }

    /// Stops the events of a device that the worker polls anyway.
    #[cold]
    pub(super) fn unwatch(&self, token: Token) {
        let Some(queue) = self.device_queue(token) else { return };
        let polled = queue.device().filter(|device| device.inbox().is_some());
        let Some(device) = polled else { return };
        self.served.handle.unwatch(device.as_raw_fd());
        // Set last: a thread that is stuck before this line does not undo the work of a reserve,
        // and looks at all devices when it continues.
        queue.set_unwatched(true);
    }

    /// Starts the events of a device that will not be polled. If the device has frames, the first
    /// event comes at once. False if the device cannot be watched.
    pub(super) fn watch_again(&self, token: Token) -> bool {
        let Some(queue) = self.device_queue(token) else { return true };
        if !queue.is_unwatched() {
            return true;
        }
        let Some(device) = queue.device() else { return true };
        let watched = self.served.handle.watch(device.as_raw_fd(), token).is_ok();
        queue.set_unwatched(!watched);
        watched
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::sync::Arc;

    use super::super::tests::{broadcast, input, worker};
    use super::*;
    use crate::port::device::{Device, fake::Fake};
    use crate::port::{DevicePort, Port};
    use base::frame::Offloads;
    use sys::xdp::Mode;

    const TOKEN: Token = Token::Device(1, 0);

    /// Returns a worker that has just read the first frame of a device with events.
    fn reading(uplink: &Arc<Fake>) -> Worker {
        let mut worker = worker();
        let port = DevicePort::xdp("x0", 1, Mode::Auto);
        port.attach(vec![Arc::clone(uplink) as Device], Offloads::NONE);
        worker.present.add(Arc::new(Port::device(1, "x0", port)));
        worker.refresh();
        worker.served.handle.watch(uplink.as_raw_fd(), TOKEN).unwrap();
        uplink.queue(&broadcast());
        worker.take_events();
        assert!(worker.ready.contains(TOKEN) && worker.turn());
        assert_eq!(input(&worker, 1).frames.get(), 1);
        worker
    }

    fn is_unwatched(worker: &Worker) -> bool {
        worker.device_queue(TOKEN).unwrap().is_unwatched()
    }

    /// Runs turns until the worker stops polling the device.
    fn rest(worker: &mut Worker) {
        for _ in 0..1_000 {
            let found = worker.turn();
            worker.after_turn(found);
            if worker.ready.is_empty() {
                return;
            }
        }
        panic!("it is looked at for ever");
    }

    #[test]
    fn a_device_that_is_polled_brings_no_events() {
        let uplink = Fake::with_events(true);
        let mut worker = reading(&uplink);
        assert!(!is_unwatched(&worker), "its first event was of use");
        uplink.queue(&broadcast());
        worker.take_events();
        assert!(is_unwatched(&worker));
        uplink.queue(&broadcast());
        assert_eq!(worker.wait_for_events(0), 0);
        rest(&mut worker);
        assert_eq!(input(&worker, 1).frames.get(), 3);
        assert!(!is_unwatched(&worker));
        uplink.queue(&broadcast());
        worker.take_events();
        assert!(worker.ready.contains(TOKEN) && worker.turn(), "its events come again");
    }

    /// A frame that comes between the last look and the start of the watch is found, too.
    #[test]
    fn a_frame_that_comes_while_a_device_is_armed_brings_an_event() {
        let uplink = Fake::with_events(true);
        let mut worker = reading(&uplink);
        worker.unwatch(TOKEN);
        uplink.queue(&broadcast());
        assert!(worker.watch_again(TOKEN) && !is_unwatched(&worker));
        worker.ready.take();
        worker.take_events();
        assert!(worker.ready.contains(TOKEN) && worker.turn());
    }

    #[test]
    fn a_device_that_is_read_by_system_calls_stays_watched() {
        let uplink = Fake::with_events(false);
        let mut worker = reading(&uplink);
        uplink.queue(&broadcast());
        worker.take_events();
        assert!(!is_unwatched(&worker) && !worker.can_poll(TOKEN));
        rest(&mut worker);
        assert_eq!(input(&worker, 1).frames.get(), 2);
    }

    /// After a thread was stuck while it unwatched a device, the device's events come again.
    #[test]
    fn a_worker_that_looks_at_all_devices_watches_them_again() {
        let uplink = Fake::with_events(true);
        let mut worker = reading(&uplink);
        worker.unwatch(TOKEN);
        worker.recover();
        rest(&mut worker);
        assert!(!is_unwatched(&worker));
    }
}
