//! DHCP (RFC 2131, 2132): a port without a server sends only clients' messages, each for itself.
//!
//! A server finds a client's lease by the client identifier (option 61), or by the hardware address
//! if the message has no identifier. A server answers to the subnet of a relay (`giaddr`, RFC
//! 3046). The guard therefore reads a client's message as far as servers do, and refuses a message
//! that two servers may read differently: a message without an end option, with an option twice
//! (RFC 3396), or with options in the fields `sname` and `file` (option 52).

use core::net::Ipv4Addr;

use super::{Refused, Rule, Sent};
use base::frame::MacAddr;

/// UDP ports.
const SERVER: u16 = 67;
const CLIENT: u16 = 68;

/// Bytes of the header of UDP.
const UDP_HEADER: usize = 8;

/// Offsets in a message (RFC 2131 section 2).
const HARDWARE: usize = 1;
const HOPS: usize = 3;
const CLIENT_IP: usize = 12;
const RELAY_IP: usize = 24;
const CLIENT_MAC: usize = 28;
const COOKIE: usize = 236;
const OPTIONS: usize = 240;

const BOOT_REQUEST: u8 = 1;
/// Ethernet, with addresses of six bytes.
const ETHERNET: u16 = 0x0106;
/// The four bytes in front of the options (RFC 2131 section 3).
const MAGIC: [u8; 4] = [99, 130, 83, 99];

/// Options (RFC 2132, 3046).
const PAD: u8 = 0;
const REQUESTED_IP: u8 = 50;
const OVERLOAD: u8 = 52;
const MESSAGE_TYPE: u8 = 53;
const CLIENT_ID: u8 = 61;
const RELAY_AGENT: u8 = 82;
const END: u8 = 255;

/// Message types that a client sends (RFC 2132 section 9.6).
const DISCOVER: u8 = 1;
const REQUEST: u8 = 3;
const DECLINE: u8 = 4;
const RELEASE: u8 = 7;
const INFORM: u8 = 8;

/// Kinds of client identifiers: hardware type Ethernet (RFC 2132 section 9.14); an identity
/// association and a DUID (RFC 4361 section 6.1).
const ID_OF_ETHERNET: u8 = 1;
const ID_OF_DUID: u8 = 255;

/// A UDP datagram, or its first fragment.
#[derive(Clone, Copy)]
pub(crate) struct Datagram {
    /// Offset of the UDP header in the frame.
    pub(crate) at: usize,
    /// The datagram is not a fragment.
    pub(crate) whole: bool,
}

impl Datagram {
    /// Returns the payload: private bytes that no checksum offload overwrites. Refuses a fragment,
    /// a packet that is cut into several datagrams, and a payload that ends beyond the frame.
    pub(crate) fn payload<'a>(self, frame: &Sent<'a>) -> Result<&'a [u8], Refused> {
        if !self.whole || frame.is_cut {
            return Err(Rule::Headers.alone());
        }
        let len = usize::from(frame.u16(self.at + 4)?);
        let payload = len.checked_sub(UDP_HEADER).ok_or(Rule::Headers.alone())?;
        frame.message(self.at + UDP_HEADER, payload)
    }
}

/// Checks a datagram over IPv4. Returns true if the sender is a client, which may have no address
/// yet.
#[inline]
pub fn check(frame: &Sent<'_>, datagram: Datagram) -> Result<bool, Refused> {
    let (from, to) = (frame.u16(datagram.at)?, frame.u16(datagram.at + 2)?);
    if from != SERVER && to != CLIENT && to != SERVER {
        return Ok(false);
    }
    if frame.rules.servers.dhcp {
        return Ok(from == CLIENT && to == SERVER);
    }
    if from == SERVER || to == CLIENT {
        return Err(Rule::Server.alone());
    }
    client(frame, datagram)?;
    Ok(from == CLIENT)
}

/// Checks a message to a server, from a port without a server.
#[inline(never)]
fn client(frame: &Sent<'_>, datagram: Datagram) -> Result<(), Refused> {
    let message = datagram.payload(frame)?;
    let Some((fixed, options)) = message.split_at_checked(OPTIONS) else {
        return Err(Rule::Headers.alone());
    };
    let address = |at: usize| Ipv4Addr::from([0, 1, 2, 3].map(|byte| fixed[at + byte]));
    let is_relayed = fixed[HOPS] != 0 || !address(RELAY_IP).is_unspecified();
    if fixed[0] != BOOT_REQUEST || is_relayed {
        return Err(Rule::Server.alone());
    }
    let mac = MacAddr([0, 1, 2, 3, 4, 5].map(|byte| fixed[CLIENT_MAC + byte]));
    let hardware = u16::from_be_bytes([fixed[HARDWARE], fixed[HARDWARE + 1]]);
    if hardware != ETHERNET || !frame.is_own(mac) {
        return Err(Rule::Dhcp.of_mac(mac));
    }
    if fixed[COOKIE..] != MAGIC {
        return Err(Rule::Headers.alone());
    }
    let options = Options::read(options).ok_or(Rule::Headers.alone())?;
    if options.is_relayed {
        return Err(Rule::Server.alone());
    }
    let claimed = address(CLIENT_IP);
    let may_have = |ip: Ipv4Addr| match ip.is_unspecified() || frame.rules.ips.allow_v4(ip) {
        true => Ok(()),
        false => Err(Rule::Dhcp.of_ip(ip)),
    };
    may_have(claimed)?;
    match options.kind {
        None | Some([DISCOVER | REQUEST | RELEASE | INFORM]) => {}
        Some([DECLINE]) => {
            let declined = options.requested.and_then(|ip| <[u8; 4]>::try_from(ip).ok());
            may_have(declined.ok_or(Rule::Headers.alone())?.into())?;
        }
        Some(_) => return Err(Rule::Server.alone()),
    }
    options.id.map_or(Ok(()), |id| identifier(frame, id))
}

/// Checks a client identifier. A link-layer address in the identifier must be the port's; the
/// number of other identifiers is bounded.
fn identifier(frame: &Sent<'_>, id: &[u8]) -> Result<(), Refused> {
    match *id {
        [ID_OF_ETHERNET, ref mac @ ..] if mac.len() == 6 => {
            let mac = MacAddr([0, 1, 2, 3, 4, 5].map(|byte| mac[byte]));
            return if frame.is_own(mac) { Ok(()) } else { Err(Rule::Dhcp.of_mac(mac)) };
        }
        [ID_OF_DUID, _, _, _, _, ref duid @ ..] => super::dhcpv6::check_duid(frame, duid)?,
        _ => {}
    }
    frame.note_client(&[id])
}

/// The options of a message that decide about a lease.
#[derive(Default)]
struct Options<'a> {
    /// The message type; `None` in a BOOTP message.
    kind: Option<&'a [u8]>,
    /// The client identifier.
    id: Option<&'a [u8]>,
    /// The address that a client asks for, or declines.
    requested: Option<&'a [u8]>,
    /// A relay agent has added its option.
    is_relayed: bool,
}

impl<'a> Options<'a> {
    /// Reads the options up to the end option; `None` if servers may read them differently.
    fn read(mut bytes: &'a [u8]) -> Option<Options<'a>> {
        let mut options = Options::default();
        loop {
            let (&code, rest) = bytes.split_first()?;
            bytes = rest;
            match code {
                PAD => continue,
                END => return Some(options),
                _ => {}
            }
            let (&len, rest) = bytes.split_first()?;
            let (value, rest) = rest.split_at_checked(len.into())?;
            bytes = rest;
            let field = match code {
                MESSAGE_TYPE => &mut options.kind,
                CLIENT_ID => &mut options.id,
                REQUESTED_IP => &mut options.requested,
                RELAY_AGENT => {
                    options.is_relayed = true;
                    continue;
                }
                OVERLOAD => return None,
                _ => continue,
            };
            if field.replace(value).is_some() {
                return None;
            }
        }
    }
}
