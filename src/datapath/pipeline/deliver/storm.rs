//! Storm control: limits the floods of a port to the rates of the port's `storm`. The limit is
//! applied when no frame of the burst can go back to its ring any more, so that each frame counts
//! once.

use super::Delivery;
use crate::pipeline::plan::Plan;
use crate::ring::Burst;
use base::frame::ethernet;
use base::stats::DropReason;
use switch::FloodClass;

impl Delivery<'_> {
    /// Drops the flooded frames that exceed the rates.
    #[cold]
    pub(super) fn limit_floods(&mut self, burst: &Burst, plan: &mut Plan) {
        let Some(port) = self.backpressure.ports.get(self.backpressure.from) else { return };
        for class in FloodClass::ALL {
            let metered = &port.rates.floods[class as usize];
            if !metered.is_on() {
                continue;
            }
            // Frames are dropped while another thread holds the meter.
            let mut state = metered.lock();
            let meter = state.as_mut().map(|state| &mut state.meter);
            let mut room = meter.map(|meter| meter.room(None, false, self.backpressure.now));
            plan.drop_floods(DropReason::Storm, |at| {
                let frame = &burst.frames()[usize::from(at)];
                if FloodClass::of(ethernet::destination(&frame.snapshot)) != class {
                    return true;
                }
                let load = frame.load();
                room.as_mut().is_some_and(|room| {
                    let fits = room.fits(load);
                    if fits {
                        room.take(load);
                    }
                    fits
                })
            });
            if let (Some(state), Some(room)) = (&mut state, &room) {
                state.meter.spend(room);
            }
        }
    }
}
