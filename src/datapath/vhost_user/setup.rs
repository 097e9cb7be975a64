//! Tracks how far a front-end has set up its device, to explain why a guest has no network:
//! mistakes in the front-end's configuration that the front-end does not report.

use vhost::vhost_user::message::FrontendReq;

use super::message::Payload;

/// The steps that the front-end of one session has taken so far.
#[derive(Debug, Default)]
pub(crate) struct Setup {
    /// The front-end sent guest memory, usable or not.
    memory: bool,
    /// The front-end set the address of a ring.
    addresses: bool,
    /// The front-end asked for the number of queue pairs.
    asked: bool,
    /// The front-end set up or enabled a ring.
    rings: bool,
    /// The missing memory was reported.
    reported: bool,
}

/// Report for rings without memory: QEMU shares no memory, sends no table, and goes on.
const NO_MEMORY: &str = "the front-end starts rings and has sent no guest memory: it is not \
     shared. QEMU: -object memory-backend-memfd,id=mem,size=SIZE,share=on and memory-backend=mem \
     at -machine";

impl Setup {
    /// Notes a request. Returns a problem to report, once in a session.
    pub(crate) fn note(&mut self, request: FrontendReq, payload: &Payload) -> Option<&'static str> {
        use FrontendReq as R;
        match (request, payload) {
            (R::SET_MEM_TABLE, Payload::Table(regions)) => self.memory |= !regions.is_empty(),
            (R::ADD_MEM_REG, _) => self.memory = true,
            (R::GET_QUEUE_NUM, _) => self.asked = true,
            (R::SET_VRING_NUM | R::SET_VRING_ENABLE, _) => self.rings = true,
            (R::SET_VRING_ADDR, _) => (self.rings, self.addresses) = (true, true),
            (R::SET_VRING_KICK, _) => {
                self.rings = true;
                if self.addresses && !self.memory && !self.reported {
                    self.reported = true;
                    return Some(NO_MEMORY);
                }
            }
            _ => {}
        }
        None
    }

    /// True if the front-end behaved like one that wants more queue pairs than it was offered.
    pub(crate) fn wanted_more(&self) -> bool {
        self.asked && !self.rings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use FrontendReq as R;

    #[test]
    fn rings_without_memory_are_reported_once() {
        let mut setup = Setup::default();
        let mut note = |request| setup.note(request, &Payload::None);
        assert!([R::SET_VRING_KICK, R::SET_VRING_ADDR].into_iter().all(|r| note(r).is_none()));
        assert!(note(R::SET_VRING_KICK).is_some_and(|text| text.contains("share=on")));
        assert!(note(R::SET_VRING_KICK).is_none());
    }

    #[test]
    fn an_empty_table_is_no_memory() {
        let mut setup = Setup::default();
        setup.note(R::SET_MEM_TABLE, &Payload::Table(Vec::new()));
        setup.note(R::SET_VRING_ADDR, &Payload::None);
        assert!(setup.note(R::SET_VRING_KICK, &Payload::None).is_some());
    }

    #[test]
    fn only_one_that_asked_and_touched_no_ring_wanted_more() {
        let mut setup = Setup::default();
        assert!(!setup.wanted_more());
        setup.note(R::GET_QUEUE_NUM, &Payload::None);
        setup.note(R::SET_VRING_CALL, &Payload::Notifier(0, None));
        assert!(setup.wanted_more(), "QEMU sets up interrupts before it looks at the answer");
        setup.note(R::SET_VRING_ENABLE, &Payload::Ring(0, 0));
        assert!(!setup.wanted_more());
    }
}
