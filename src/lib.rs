//! vioswitch: a vhost-user-net back-end for many VMs with an L2 learning switch inside.
#![cfg(target_os = "linux")]

pub mod config;
pub mod daemon;
pub mod frame;
pub mod limits;
pub mod memory;
pub mod port;
pub mod ring;
pub mod stats;
pub mod switch;
pub mod sys;
pub mod vhost_user;
pub mod worker;
