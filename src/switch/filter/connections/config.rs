//! Configuration of the table.

use base::limits::{MAX_CONNECTIONS, MAX_CONNECTIONS_PER_PORT, RESERVED_CONNECTIONS_PER_PORT};

/// Configuration of a table. Has no `Debug`, since the key is secret.
#[derive(Clone, Copy)]
pub struct ConnectionsConfig {
    /// Connections of all ports; a full table still takes reserved ones.
    pub max_entries: u32,
    /// Connections of one port.
    pub max_per_port: u32,
    /// Connections that a port may have although the table is full.
    pub reserved_per_port: u32,
    /// Number of ports; port numbers are below it.
    pub ports: usize,
    /// Secret key of the hash: random per table in service, fixed in tests.
    pub key: [u64; 4],
}

impl ConnectionsConfig {
    /// Makes a configuration with the switch's limits.
    pub fn limited(ports: usize, key: [u64; 4]) -> ConnectionsConfig {
        ConnectionsConfig {
            max_entries: MAX_CONNECTIONS,
            max_per_port: MAX_CONNECTIONS_PER_PORT,
            reserved_per_port: RESERVED_CONNECTIONS_PER_PORT,
            ports,
            key,
        }
    }
}
