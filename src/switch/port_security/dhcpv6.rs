//! DHCPv6 (RFC 8415): a port without a server sends only clients' messages, each for itself.
//!
//! A server finds a client's leases by the client's DUID and the identifiers of the client's
//! identity associations (IAID). A message that does not follow RFC 8415 to its last byte is
//! refused, as two servers may read the message differently.

use core::net::Ipv6Addr;

use super::dhcp::Datagram;
use super::{Refused, Rule, Sent};
use base::frame::MacAddr;
use base::limits::GUARD_DHCPV6_ASSOCIATIONS;

/// UDP ports.
const CLIENT: u16 = 546;
const SERVER: u16 = 547;

/// Message types that a client sends (RFC 8415 section 7.3): solicit, request, confirm, renew,
/// rebind, release, decline, information-request.
const OF_CLIENTS: [u8; 8] = [1, 3, 4, 5, 6, RELEASE, DECLINE, 11];
const RELEASE: u8 = 8;
const DECLINE: u8 = 9;

/// Bytes of message type and transaction identifier.
const MESSAGE_HEADER: usize = 4;

/// Options (RFC 8415 section 21).
const CLIENT_ID: u16 = 1;
const IA_NA: u16 = 3;
const IA_TA: u16 = 4;
const IA_ADDRESS: u16 = 5;
const IA_PD: u16 = 25;
const IA_PREFIX: u16 = 26;

/// Bytes of an IAID.
const IAID: usize = 4;
/// Offsets of an address in [`IA_ADDRESS`], and of a prefix in [`IA_PREFIX`].
const ADDRESS: usize = 0;
const PREFIX: usize = 9;

/// DUIDs with a link-layer address (RFC 8415 sections 11.2, 11.4), and the hardware type Ethernet.
const DUID_LLT: u16 = 1;
const DUID_LL: u16 = 3;
const ETHERNET: u16 = 1;
/// Bytes of the longest DUID (RFC 8415 section 11.1).
const LONGEST_DUID: usize = 130;

/// Checks a datagram over IPv6.
#[inline]
pub fn check(frame: &Sent<'_>, datagram: Datagram) -> Result<(), Refused> {
    let (from, to) = (frame.u16(datagram.at)?, frame.u16(datagram.at + 2)?);
    if frame.rules.servers.dhcpv6 {
        return Ok(());
    }
    if from == SERVER || to == CLIENT {
        return Err(Rule::Server.alone());
    }
    if to == SERVER { client(frame, datagram) } else { Ok(()) }
}

/// Checks a message to a server, from a port without a server.
#[inline(never)]
fn client(frame: &Sent<'_>, datagram: Datagram) -> Result<(), Refused> {
    let message = datagram.payload(frame)?;
    let Some((header, options)) = message.split_at_checked(MESSAGE_HEADER) else {
        return Err(Rule::Headers.alone());
    };
    if !OF_CLIENTS.contains(&header[0]) {
        return Err(Rule::Server.alone());
    }
    let gives_up = matches!(header[0], RELEASE | DECLINE);
    let duid = client_duid(options)?;
    check_duid(frame, duid.unwrap_or_default())?;
    let mut associations = 0;
    for option in Options(options) {
        let (code, value) = option?;
        let Some(header) = association_header(code) else { continue };
        let (header, leases) = value.split_at_checked(header).ok_or(Rule::Headers.alone())?;
        associations += 1;
        if associations > GUARD_DHCPV6_ASSOCIATIONS {
            return Err(Rule::Dhcp.alone());
        }
        if gives_up {
            check_leases(frame, leases)?;
        }
        frame.note_client(&[duid.unwrap_or_default(), &header[..IAID]])?;
    }
    Ok(())
}

/// Returns the length of the header of an identity association; `None` for another option.
fn association_header(code: u16) -> Option<usize> {
    match code {
        IA_NA | IA_PD => Some(IAID + 8),
        IA_TA => Some(IAID),
        _ => None,
    }
}

/// Returns the client's DUID; `None` if there is none, as in some information-requests.
fn client_duid(options: &[u8]) -> Result<Option<&[u8]>, Refused> {
    let mut duid = None;
    for option in Options(options) {
        let (code, value) = option?;
        let is_second = code == CLIENT_ID && duid.replace(value).is_some();
        if is_second || (code == CLIENT_ID && value.len() > LONGEST_DUID) {
            return Err(Rule::Headers.alone());
        }
    }
    Ok(duid)
}

/// Checks a DUID: an Ethernet address in the DUID must be the port's.
pub(crate) fn check_duid(frame: &Sent<'_>, duid: &[u8]) -> Result<(), Refused> {
    let u16_at = |at: usize| Some(u16::from_be_bytes([*duid.get(at)?, *duid.get(at + 1)?]));
    let mac_at = match (u16_at(0), u16_at(2)) {
        (Some(DUID_LLT), Some(ETHERNET)) => 8,
        (Some(DUID_LL), Some(ETHERNET)) => 4,
        _ => return Ok(()),
    };
    let mac = duid.get(mac_at..).and_then(|mac| <[u8; 6]>::try_from(mac).ok()).map(MacAddr);
    let mac = mac.ok_or(Rule::Headers.alone())?;
    if frame.is_own(mac) { Ok(()) } else { Err(Rule::Dhcp.of_mac(mac)) }
}

/// Checks that the addresses and prefixes that a client gives up are the port's.
fn check_leases(frame: &Sent<'_>, leases: &[u8]) -> Result<(), Refused> {
    for option in Options(leases) {
        let (code, value) = option?;
        let at = match code {
            IA_ADDRESS => ADDRESS,
            IA_PREFIX => PREFIX,
            _ => continue,
        };
        let address = value.get(at..).and_then(<[u8]>::first_chunk::<16>);
        let address = Ipv6Addr::from(*address.ok_or(Rule::Headers.alone())?);
        if !frame.rules.ips.allow_v6(address) {
            return Err(Rule::Dhcp.of_ip(address));
        }
    }
    Ok(())
}

/// Iterates over options with their codes; an error for options that end too early.
struct Options<'a>(&'a [u8]);

impl<'a> Iterator for Options<'a> {
    type Item = Result<(u16, &'a [u8]), Refused>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let bytes = std::mem::take(&mut self.0);
        let split = bytes.split_first_chunk::<4>().and_then(|(header, rest)| {
            let [code, len] = [[header[0], header[1]], [header[2], header[3]]];
            let (value, rest) = rest.split_at_checked(u16::from_be_bytes(len).into())?;
            Some((u16::from_be_bytes(code), value, rest))
        });
        let Some((code, value, rest)) = split else {
            return Some(Err(Rule::Headers.alone()));
        };
        self.0 = rest;
        Some(Ok((code, value)))
    }
}
