//! A queue of a device as a source.

use std::sync::MutexGuard;

use super::{BurstContext, BurstGuard, Origin, Pipeline, Source};
use crate::pipeline::flood::is_stuck;
use crate::port::device::{Bounds, Reading};
use crate::port::{DevicePort, DeviceQueue, Endpoint, Polled, Port, PortTable};
use base::frame::Offloads;
use base::stats::WorkerStats;
use switch::{PortId, SourceMemo};

/// A queue of a device, locked by the worker that reads the queue.
struct DeviceInput<'p> {
    port: &'p Port,
    device: &'p DevicePort,
    queue: &'p DeviceQueue,
    reading: MutexGuard<'p, Reading>,
    bounds: Bounds,
    /// Next step of the worker after this burst.
    next: Polled,
}

impl Pipeline {
    /// Reads and forwards one burst of a queue of a device.
    pub(crate) fn device_burst(
        &mut self,
        ports: &PortTable,
        id: PortId,
        index: usize,
        stats: &WorkerStats,
    ) -> Polled {
        let Some(port) = ports.get(id) else { return Polled::Unavailable };
        let Endpoint::Device(device) = &port.endpoint else { return Polled::Unavailable };
        let Some(queue) = device.queues().get(index) else { return Polled::Unavailable };
        self.stalls.at_nothing();
        let Some(mut reading) = queue.reading() else { return self.retry() };
        let is_waiting = |taken_at| !is_stuck(taken_at, self.time.cycle);
        if queue.floods.taken_at().is_some_and(is_waiting) {
            // A frame cannot go back to its device, so the device is read after the end of its
            // flood.
            return self.retry();
        }
        if queue.floods.owes() {
            self.account.collect(&mut reading.deficit, &queue.input, queue.floods.take_owed());
        }
        if self.account.throttles(&mut reading.deficit) {
            return Polled::Throttled;
        }
        let bounds = match port.rates.input.is_on() {
            true => match self.limit_device(port, &mut reading) {
                Ok(bounds) => bounds,
                Err(next) => return next,
            },
            false => Bounds::default(),
        };
        let next = Polled::Empty;
        let input = DeviceInput { port, device, queue, reading, bounds, next };
        self.forward(ports, input, stats)
    }
}

impl<'p> Source<'p> for DeviceInput<'p> {
    fn origin(&self) -> Origin<'p> {
        Origin { port: self.port, counters: &self.queue.input, floods: Some(&self.queue.floods) }
    }

    fn memo(&mut self) -> &mut SourceMemo {
        &mut self.reading.source
    }

    fn take(&mut self, on: &mut Pipeline, context: &mut BurstContext) -> Result<(), Polled> {
        let burst = &mut context.burst;
        let bounds = Bounds { end: on.account.reading_ends(), ..self.bounds };
        let state = self.queue.receive(&mut on.reader, burst, self.device, bounds);
        // The kernel forwards frames from outside, whose offload requests are checked like those of
        // a guest.
        burst.examine(Offloads::ALL, true);
        if self.bounds.room.is_some() {
            on.charge_device(self.port, self.bounds, &mut self.reading, burst);
        }
        let taken = burst.taken() > 0;
        self.next = match state {
            Polled::Empty if taken => Polled::Drained,
            Polled::RetryNow if taken => Polled::More,
            Polled::RetryNow => on.retry(),
            next => next,
        };
        if !taken {
            on.account.charge(&mut self.reading.deficit, &self.queue.input, None);
            return Err(self.next);
        }
        on.signals.note_sender(self.port.id);
        Ok(())
    }

    fn complete(
        &mut self,
        on: &mut Pipeline,
        guard: BurstGuard<'_>,
        stats: &WorkerStats,
        _: Polled,
    ) -> Polled {
        stats.bursts.add(1);
        stats.frames.add(guard.burst.taken() as u64);
        guard.finish();
        on.reader.release();
        let more = Some(self.next == Polled::More);
        on.account.charge(&mut self.reading.deficit, &self.queue.input, more);
        self.next
    }
}
