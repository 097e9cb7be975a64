//! Answers of several parts. A part is made when its client has room for the part, and a turn makes
//! one part.

use std::sync::mpsc::TryRecvError;
use std::time::Instant;

use serde::Serialize;
use serde_json::Value;

use super::switch::Switch;
use api::wire::{self, Fault};
use base::limits::CONTROL_STREAM_BYTES;
use sys::blocking::{NotBegun, Task};

/// An answer of several parts: each call makes the next part.
pub type Stream = Box<dyn FnMut(&Switch) -> Result<Part, Fault>>;

/// Returns an answer that is a list, with at most `most` items in each part.
pub fn list<T: 'static, A: Serialize>(
    items: Vec<T>,
    most: usize,
    answer: impl FnMut(&Switch, Vec<T>) -> A + 'static,
) -> Stream {
    list_by_size(items, most, |_| 0, answer)
}

/// Returns an answer that is a list, with at most `most` items in each part. A part ends when its
/// items have [`CONTROL_STREAM_BYTES`] together.
pub(crate) fn list_by_size<T: 'static, A: Serialize>(
    items: Vec<T>,
    most: usize,
    size: fn(&T) -> usize,
    mut answer: impl FnMut(&Switch, Vec<T>) -> A + 'static,
) -> Stream {
    let mut left = items.into_iter();
    Box::new(move |switch| {
        let (mut part, mut bytes) = (Vec::new(), 0);
        while part.len() < most && bytes < CONTROL_STREAM_BYTES {
            let Some(item) = left.next() else { break };
            bytes += size(&item);
            part.push(item);
        }
        Ok(Part::reply(&answer(switch, part), left.len() > 0))
    })
}

/// Returns the result of a thread's work, if the thread has ended.
pub fn found<T>(begun: &Result<Task<T>, NotBegun>) -> Result<Option<T>, Fault> {
    match begun.as_ref().map(Task::result) {
        Ok(Ok(found)) => Ok(Some(found)),
        Ok(Err(TryRecvError::Disconnected)) => Err(Fault::refused("it panicked; see the log")),
        Ok(Err(TryRecvError::Empty)) | Err(_) => Ok(None),
    }
}

/// Next part of an answer of several parts.
#[derive(Debug)]
pub enum Part {
    /// This part; true if another part follows.
    Reply(Value, bool),
    /// No part until this time, or until an event that the answer waits for.
    Later(Option<Instant>),
}

impl Part {
    /// Returns an answer, or a part of an answer.
    pub(crate) fn reply(answer: &impl Serialize, more: bool) -> Part {
        Part::Reply(wire::json(answer), more)
    }
}
