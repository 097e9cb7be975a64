//! Limits of guards.

/// A frame that is read as a whole, a client's message of DHCP or one of IGMP or MLD: an Ethernet
/// frame with an IP packet of 1,500 bytes and two VLAN tags. Longer messages of a client are
/// refused, longer reports of groups not read.
pub const MAX_MESSAGE_LEN: usize = 1500 + 14 + 8;

/// Identifiers of DHCP clients behind a port with a guard, beside link-layer addresses. A guest has
/// one of DHCP, and one or two of DHCPv6; a server keeps a lease for each.
pub const GUARD_DHCP_CLIENTS: usize = 8;

/// Hours for which a port keeps the identifier of a DHCP client that is not seen any more: longer
/// than servers lease addresses by default (dnsmasq and Kea 1 hour, ISC 12 hours).
pub const GUARD_DHCP_HOURS: u64 = 24;

/// Identity associations in one message of a DHCPv6 client; a client has one for each kind.
pub const GUARD_DHCPV6_ASSOCIATIONS: usize = 8;
