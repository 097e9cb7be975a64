//! The session with one front-end.
//!
//! * [`message`] decodes messages; [`codec`] moves them over the socket, with deadlines;
//! * [`socket`] has the sockets on which front-ends connect; [`descriptors`] checks the descriptors
//!   that front-ends send;
//! * [`features`] lists the features that the switch offers;
//! * [`session`] serves the requests, one function per request; [`refusal`] lists the reasons for
//!   which a request is refused;
//! * [`guest_memory`] has the memory and the dirty log of a session; [`rings`] applies requests to
//!   rings.
//!
//! The request loop is this project's own. `vhost`'s `BackendReqHandler` and `vhost-user-backend`
//! refuse `SET_VRING_ENABLE` before `SET_FEATURES`, which QEMU sends for every network device; they
//! close the connection on every handler error, treat `SEND_RARP` and `NET_SET_MTU` as fatal, and
//! accept protocol features that were not offered. A test drives the stock daemon with QEMU's
//! recorded opening and shows the refusal; once the stock daemon accepts the opening, this loop can
//! go.

pub mod codec;
mod context;
pub mod descriptors;
pub mod features;
pub mod guest_memory;
pub mod message;
pub mod refusal;
pub mod rings;
pub mod session;
mod setup;
pub mod socket;
