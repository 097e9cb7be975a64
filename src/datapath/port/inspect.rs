//! State of a session, which the session reports for diagnosis.
//!
//! Other threads ask the session and do not read its state. A guest's memory can make a reader
//! wait, so only the session reads the guest's rings, and only the session waits. The asking thread
//! does not wait for the session.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sys::waker::Waker;

/// State of one session.
#[derive(Debug, Clone, Default)]
pub struct SessionFacts {
    /// Acknowledged virtio features.
    pub features: u64,
    /// Acknowledged features of the vhost-user protocol.
    pub protocol: u64,
    /// Regions of the guest's memory, by address.
    pub regions: Vec<RegionFacts>,
    /// Rings, by index.
    pub rings: Vec<RingFacts>,
}

/// A region of a guest's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionFacts {
    /// Guest-physical address of the first byte.
    pub gpa: u64,
    /// Length in bytes.
    pub len: u64,
    /// Kind of the region's file.
    pub backing: &'static str,
    /// Bytes of a page of the file; 0 if the region is not mapped.
    pub page: u64,
}

/// State of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingFacts {
    /// Number of descriptors; 0 before the front-end has set the size.
    pub size: u16,
    /// The ring was started, and not stopped since.
    pub started: bool,
    /// The ring was started, and has no memory now.
    pub no_memory: bool,
    /// The front-end has enabled the ring.
    pub enabled: bool,
    /// The ring is out of service after an error of the driver; none while another thread has the
    /// ring.
    pub broken: Option<bool>,
    /// The ring is polled, since the front-end gave no kick descriptor.
    pub polled: bool,
    /// Descriptor chains that the driver made available and the switch has not given back.
    pub available: Option<u16>,
}

/// Questions to a session, and its answers.
#[derive(Debug, Default)]
pub(crate) struct Inspection(Mutex<Desk>);

#[derive(Debug, Default)]
struct Desk {
    /// Number of the last question.
    asked: u64,
    /// Number of the last question that the facts answer.
    answered: u64,
    facts: Option<SessionFacts>,
    /// Waker of the thread that waits for the facts.
    waker: Option<Arc<Waker>>,
}

impl Inspection {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for the facts and returns the number of the question. The caller then wakes the
    /// session.
    pub(crate) fn ask(&self, waker: &Arc<Waker>) -> u64 {
        let mut desk = self.desk();
        desk.asked += 1;
        desk.waker = Some(Arc::clone(waker));
        desk.asked
    }

    /// Returns the answer to a question, or to a later question, if there is an answer.
    pub(crate) fn answer(&self, question: u64) -> Option<SessionFacts> {
        let desk = self.desk();
        desk.facts.clone().filter(|_| desk.answered >= question)
    }

    /// True if a question has no answer.
    pub(crate) fn is_asked(&self) -> bool {
        let desk = self.desk();
        desk.asked > desk.answered
    }

    /// Answers all questions so far.
    pub(crate) fn tell(&self, facts: SessionFacts) {
        let mut desk = self.desk();
        desk.answered = desk.asked;
        desk.facts = Some(facts);
        let waker = desk.waker.take();
        drop(desk);
        waker.iter().for_each(|waker| waker.wake());
    }

    /// Removes the answer when the session ends.
    pub(crate) fn clear(&self) {
        self.desk().facts = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_one_to_all_questions_before_it() {
        let (inspection, waker) = (Inspection::default(), Arc::new(Waker::new().unwrap()));
        assert!(!inspection.is_asked());
        let [first, second] = [(); 2].map(|()| inspection.ask(&waker));
        assert!(inspection.is_asked() && inspection.answer(first).is_none());
        inspection.tell(SessionFacts { features: 7, ..SessionFacts::default() });
        assert!(!inspection.is_asked());
        for question in [first, second] {
            assert_eq!(inspection.answer(question).unwrap().features, 7);
        }
        let third = inspection.ask(&waker);
        assert!(inspection.answer(third).is_none() && inspection.is_asked());
        inspection.clear();
        assert!(inspection.answer(second).is_none(), "of a session that is over");
    }
}
