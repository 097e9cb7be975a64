//! System calls behind safe interfaces. Plain calls go through rustix, which needs no `unsafe`. A
//! call that rustix lacks, or makes differently from the need here, goes through libc, and a
//! comment gives the reason. `unsafe` is confined to these calls and to the guest pointers of
//! `memory`, `ring` and `port`.

// `testkit` sets signals, umask and environment as the tests expect.
#[cfg(test)]
use testkit as _;

pub mod affinity;
pub mod blocking;
pub mod clock;
pub mod descriptor;
pub mod eventfd;
pub mod footprint;
pub mod frame_io;
pub mod fs;
pub mod group;
pub mod holder;
pub mod inherited;
pub mod link_events;
pub mod logging;
pub mod netlink;
pub mod notify;
pub mod pages;
pub mod poll;
pub mod prefetch;
pub mod random;
pub mod sandbox;
pub mod scm;
pub mod service;
pub mod signals;
pub mod state_dir;
pub mod tap;
pub(crate) mod tap_io;
pub mod tap_ring;
#[cfg(any(test, feature = "test-utils"))]
pub mod testns;
pub mod threads;
pub mod unix_socket;
pub mod usage;
pub mod vduse;
pub mod waker;
pub mod wakeup;
pub mod watched_dir;
pub mod xdp;
