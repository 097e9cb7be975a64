//! A front-end that means harm: messages in every state, descriptors that are not what they should
//! be, silence at the wrong moment, connections without end. The daemon stays, the next front-end
//! is served, nothing is left behind, and the guests beside it notice nothing.
//!
//! `lab` has the states of a conversation and the invariants; `requests` every request in every
//! state, `garbage` random and mutated conversations, `codec` properties of the parser alone;
//! `features` what was not offered; `kicks`, `descriptors` and `crowd` what comes with messages;
//! `slow` those who wait or make wait; `churn` those who come and go.

mod common;

#[path = "hostile_protocol/churn.rs"]
mod churn;
#[path = "hostile_protocol/codec.rs"]
mod codec;
#[path = "hostile_protocol/crowd.rs"]
mod crowd;
#[path = "hostile_protocol/descriptors.rs"]
mod descriptors;
#[path = "hostile_protocol/features.rs"]
mod features;
#[path = "hostile_protocol/garbage.rs"]
mod garbage;
#[path = "hostile_protocol/kicks.rs"]
mod kicks;
#[path = "hostile_protocol/lab.rs"]
mod lab;
#[path = "hostile_protocol/requests.rs"]
mod requests;
#[path = "hostile_protocol/slow.rs"]
mod slow;
