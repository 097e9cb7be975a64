//! A front-end that means harm: messages in every state, descriptors that are not what they should
//! be, silence at the wrong moment, connections without end. The daemon stays, the next front-end
//! is served, nothing is left behind, and the guests beside it notice nothing.
//!
//! `lab` has the states of a conversation and the invariants; `requests` every request in every
//! state, `garbage` random and mutated conversations, `codec` properties of the parser alone;
//! `features` what was not offered; `kicks` and `descriptors` what comes with messages;
//! `slow` those who wait or make wait; `churn` those who come and go.

mod churn;
mod codec;
mod descriptors;
mod features;
mod garbage;
mod kicks;
pub mod lab;
mod requests;
mod slow;
