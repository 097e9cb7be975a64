//! Limits of guards.

/// Longest frame that is read whole: a client's DHCP message, or a message of IGMP or MLD, in an
/// Ethernet frame with an IP packet of 1,500 bytes and two VLAN tags. A guard refuses longer
/// messages of a client; snooping does not read longer reports of groups.
pub const MAX_MESSAGE_LEN: usize = 1500 + 14 + 8;

/// Identifiers of DHCP clients behind a port with a guard, beside link-layer addresses. A guest has
/// one identifier of DHCP, and one or two of DHCPv6; a server keeps a lease for each identifier.
pub const GUARD_DHCP_CLIENTS: usize = 8;

/// Hours for which a port keeps the identifier of an absent DHCP client: longer than servers lease
/// addresses by default (dnsmasq and Kea 1 hour, ISC 12 hours).
pub const GUARD_DHCP_HOURS: u64 = 24;

/// Identity associations in one message of a DHCPv6 client; a client has one association for each
/// kind.
pub const GUARD_DHCPV6_ASSOCIATIONS: usize = 8;
