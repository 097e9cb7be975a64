//! DHCP (RFC 2131) and DHCPv6 (RFC 8415): no servers, and clients that ask for themselves.

use super::{Refused, Rule, Sent};

/// Ports of UDP.
const SERVER: u16 = 67;
const CLIENT: u16 = 68;
const CLIENT_V6: u16 = 546;
const SERVER_V6: u16 = 547;

/// Offsets behind the header of UDP.
const HARDWARE: usize = 1;
const CLIENT_MAC: usize = 28;
const BOOT_REQUEST: u8 = 1;
/// Ethernet, with addresses of six bytes.
const ETHERNET: u16 = 0x0106;

/// Messages of DHCPv6 that a server or a relay sends: advertise, reply, reconfigure, and both of a
/// relay (RFC 8415 section 7.3).
const OF_SERVERS: [u8; 5] = [2, 7, 10, 12, 13];

const UDP_HEADER: usize = 8;

/// A datagram of UDP, or its first fragment.
#[derive(Clone, Copy)]
pub struct Datagram {
    /// Where it begins.
    pub at: usize,
    /// It is no fragment.
    pub whole: bool,
}

/// A datagram over IPv4; true if a client sends it that may have no address yet.
#[inline]
pub fn check(frame: &Sent<'_>, datagram: Datagram) -> Result<bool, Refused> {
    let (from, to) = (frame.u16(datagram.at)?, frame.u16(datagram.at + 2)?);
    if from == SERVER || to == CLIENT {
        return if frame.rules.servers.dhcp { Ok(false) } else { Err(Rule::Server.alone()) };
    }
    if to == SERVER {
        client(frame, datagram)?;
    }
    Ok(from == CLIENT && to == SERVER)
}

/// What goes to a server.
#[inline(never)]
fn client(frame: &Sent<'_>, Datagram { at, whole }: Datagram) -> Result<(), Refused> {
    // The address may be in another fragment, or in another datagram of one that is cut.
    if !whole || frame.is_cut {
        return Err(Rule::Headers.alone());
    }
    let message = at + UDP_HEADER;
    if frame.u8(message)? != BOOT_REQUEST {
        return if frame.rules.servers.dhcp { Ok(()) } else { Err(Rule::Server.alone()) };
    }
    let mac = frame.mac(message + CLIENT_MAC)?;
    let of_ethernet = frame.u16(message + HARDWARE)? == ETHERNET;
    match of_ethernet && frame.rules.macs.allow_inside(mac, frame.source) {
        true => Ok(()),
        false => Err(Rule::Dhcp.of_mac(mac)),
    }
}

/// A datagram over IPv6. Its clients have an address, and no link-layer address that a server goes
/// by.
#[inline]
pub fn check_v6(frame: &Sent<'_>, datagram: Datagram) -> Result<(), Refused> {
    let (from, to) = (frame.u16(datagram.at)?, frame.u16(datagram.at + 2)?);
    if frame.rules.servers.dhcpv6 {
        return Ok(());
    }
    if from == SERVER_V6 || to == CLIENT_V6 {
        return Err(Rule::Server.alone());
    }
    if to == SERVER_V6 {
        // The kind of message may be in another fragment, or in another datagram.
        if !datagram.whole || frame.is_cut {
            return Err(Rule::Headers.alone());
        }
        if OF_SERVERS.contains(&frame.u8(datagram.at + UDP_HEADER)?) {
            return Err(Rule::Server.alone());
        }
    }
    Ok(())
}
