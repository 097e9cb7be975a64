//! What a session tells of itself, for people who look for a fault.
//!
//! The session is asked, and not looked into: only it may read where the guest's rings stand, as a
//! guest's memory can make a reader wait, and only it pays for that then. Who asks waits for no
//! session.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sys::waker::Waker;

/// One session, as it is now.
#[derive(Debug, Clone, Default)]
pub struct SessionFacts {
    /// Virtio features that were acknowledged.
    pub features: u64,
    /// Features of the vhost-user protocol that were.
    pub protocol: u64,
    /// The guest's memory, by its addresses.
    pub regions: Vec<RegionFacts>,
    /// The rings, by their index.
    pub rings: Vec<RingFacts>,
}

/// A region of a guest's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionFacts {
    /// Guest-physical address of its first byte.
    pub gpa: u64,
    /// Bytes.
    pub len: u64,
    /// What it lies in.
    pub backing: &'static str,
    /// Bytes of a page of that; 0 if it is not mapped.
    pub page: u64,
}

/// A ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingFacts {
    /// Descriptors; 0 before that is said.
    pub size: u16,
    /// It was started, and not stopped since.
    pub started: bool,
    /// It was, and has no memory now.
    pub standing: bool,
    /// The front-end lets frames cross it.
    pub enabled: bool,
    /// Left alone after an error of the driver; unknown while another thread has the ring.
    pub broken: Option<bool>,
    /// It is polled, as the front-end gave no kick descriptor.
    pub polled: bool,
    /// Descriptor chains that the driver made available and that were not given back.
    pub available: Option<u16>,
}

/// Where questions to a session and its answers meet.
#[derive(Debug, Default)]
pub struct Inspection(Mutex<Desk>);

#[derive(Debug, Default)]
struct Desk {
    /// Numbers questions.
    asked: u64,
    /// The question up to which the facts are an answer.
    answered: u64,
    facts: Option<SessionFacts>,
    /// Who waits for them.
    waker: Option<Arc<Waker>>,
}

impl Inspection {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks; the number of the question. The session has to be called then.
    pub fn ask(&self, waker: &Arc<Waker>) -> u64 {
        let mut desk = self.desk();
        desk.asked += 1;
        desk.waker = Some(Arc::clone(waker));
        desk.asked
    }

    /// The answer to a question, or a later one's, if it is there.
    pub fn answer(&self, question: u64) -> Option<SessionFacts> {
        let desk = self.desk();
        desk.facts.clone().filter(|_| desk.answered >= question)
    }

    /// True if there is a question without an answer.
    pub fn is_asked(&self) -> bool {
        let desk = self.desk();
        desk.asked > desk.answered
    }

    /// Answers all questions so far.
    pub fn tell(&self, facts: SessionFacts) {
        let mut desk = self.desk();
        desk.answered = desk.asked;
        desk.facts = Some(facts);
        let waker = desk.waker.take();
        drop(desk);
        waker.iter().for_each(|waker| waker.wake());
    }

    /// Forgets an answer: the session is over.
    pub fn clear(&self) {
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
