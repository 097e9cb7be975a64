//! What front-ends and the daemon say to each other: messages, their order, memory that comes and
//! goes, migration, and the conversations of front-ends that others wrote.

mod memory_changes;
mod migration;
mod ports;
mod protocol;
mod reconnect;
mod sessions;
mod stock_frontend;
mod stock_loop;
mod transcripts;
mod wire_descriptors;
