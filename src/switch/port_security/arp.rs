//! ARP (RFC 826, 5227) and RARP (RFC 903).

use super::{Refused, Rule, Sent};

/// Offsets behind the Ethernet header.
const OPERATION: usize = 6;
const SENDER_MAC: usize = 8;
const SENDER_IP: usize = 14;
const TARGET_MAC: usize = 18;
const TARGET_IP: usize = 24;

const REQUEST: u16 = 1;
const REQUEST_REVERSE: u16 = 3;

/// Checks an ARP packet: the sender must be the port's. A sender without an address may probe
/// whether an address of the port is free.
pub fn check(frame: &Sent<'_>, at: usize) -> Result<(), Refused> {
    let sender = sender(frame, at, Rule::Arp)?;
    let from = frame.v4(at + SENDER_IP)?;
    if frame.rules.ips.allow_v4(from) {
        return Ok(());
    }
    let target = frame.v4(at + TARGET_IP)?;
    let probes = from.is_unspecified() && sender == REQUEST;
    match probes {
        true if frame.rules.ips.allow_v4(target) => Ok(()),
        true => Err(frame.rules.ips.refuse_v4(target, Rule::Arp)),
        false => Err(frame.rules.ips.refuse_v4(from, Rule::Arp)),
    }
}

/// Checks a RARP packet: a station may ask for its own address only, as after a migration. The IP
/// addresses must be zero or the port's.
pub(crate) fn check_reverse(frame: &Sent<'_>, at: usize) -> Result<(), Refused> {
    let operation = sender(frame, at, Rule::Rarp)?;
    let target = frame.mac(at + TARGET_MAC)?;
    if operation != REQUEST_REVERSE || !frame.rules.macs.allow_inside(target, frame.source) {
        return Err(Rule::Rarp.of_mac(target));
    }
    for place in [SENDER_IP, TARGET_IP] {
        let address = frame.v4(at + place)?;
        if !address.is_unspecified() && !frame.rules.ips.allow_v4(address) {
            return Err(Rule::Rarp.of_ip(address));
        }
    }
    Ok(())
}

/// Checks hardware type and the sender's link-layer address, as ARP and RARP have them. Returns the
/// operation.
fn sender(frame: &Sent<'_>, at: usize, rule: Rule) -> Result<u16, Refused> {
    // Ethernet and IPv4, with addresses of 6 and 4 bytes.
    let kind = [frame.u16(at)?, frame.u16(at + 2)?, frame.u16(at + 4)?];
    if kind != [1, 0x0800, 0x0604] {
        return Err(Rule::Headers.alone());
    }
    let sender = frame.mac(at + SENDER_MAC)?;
    if !frame.rules.macs.allow_inside(sender, frame.source) {
        return Err(rule.of_mac(sender));
    }
    frame.u16(at + OPERATION)
}
