//! What a front-end did so far, as far as that explains why its guest has no network: mistakes in
//! its configuration that it does not see or does not say.

use super::message::Request;

/// The course of one session.
#[derive(Debug, Default)]
pub struct Course {
    /// It handed over guest memory, usable or not.
    memory: bool,
    /// It said where a ring is.
    addresses: bool,
    /// It asked how many queue pairs there are.
    asked: bool,
    /// It set up or enabled a ring.
    rings: bool,
    told: bool,
}

/// A guest whose rings cannot be found: QEMU shares nothing, sends no table, and goes on.
const NO_MEMORY: &str = "the front-end starts rings and has sent no guest memory: it is not \
     shared. QEMU: -object memory-backend-memfd,id=mem,size=SIZE,share=on and memory-backend=mem \
     at -machine";

impl Course {
    /// Takes note of a request; what there is to say about it, once in a session.
    pub fn note(&mut self, request: &Request) -> Option<&'static str> {
        match request {
            Request::SetMemTable(regions) => self.memory |= !regions.is_empty(),
            Request::AddMemReg(..) => self.memory = true,
            Request::GetQueueNum => self.asked = true,
            Request::SetVringNum { .. } | Request::SetVringEnable { .. } => self.rings = true,
            Request::SetVringAddr(_) => (self.rings, self.addresses) = (true, true),
            Request::SetVringKick { .. } => {
                self.rings = true;
                if self.addresses && !self.memory && !self.told {
                    self.told = true;
                    return Some(NO_MEMORY);
                }
            }
            _ => {}
        }
        None
    }

    /// True if it left as one does that wants more queue pairs than it was told of.
    pub fn wanted_more(&self) -> bool {
        self.asked && !self.rings
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::VringAddr;
    use super::*;

    fn addresses() -> Request {
        let (flags, descriptor, used, available, log) = (0, 0, 0, 0, 0);
        Request::SetVringAddr(VringAddr { index: 0, flags, descriptor, used, available, log })
    }

    fn kick() -> Request {
        Request::SetVringKick { index: 0, file: None }
    }

    #[test]
    fn rings_without_memory_are_told_once() {
        let mut course = Course::default();
        assert!([kick(), addresses()].iter().all(|request| course.note(request).is_none()));
        assert!(course.note(&kick()).is_some_and(|text| text.contains("share=on")));
        assert!(course.note(&kick()).is_none());
    }

    #[test]
    fn an_empty_table_is_no_memory() {
        let mut course = Course::default();
        course.note(&Request::SetMemTable(Vec::new()));
        course.note(&addresses());
        assert!(course.note(&kick()).is_some());
    }

    #[test]
    fn only_one_that_asked_and_touched_no_ring_wanted_more() {
        let mut course = Course::default();
        assert!(!course.wanted_more());
        course.note(&Request::GetQueueNum);
        course.note(&Request::SetVringCall { index: 0, file: None });
        assert!(course.wanted_more(), "QEMU sets up interrupts before it looks at the answer");
        course.note(&Request::SetVringEnable { index: 0, enable: false });
        assert!(!course.wanted_more());
    }
}
