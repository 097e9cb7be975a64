//! The guard of a port: which frames of a burst may not be sent from there.
//!
//! What is checked is what is delivered. The rules are asked about a frame's snapshot, which is
//! private; where that is too short for an answer, about the first [`MAX_HEADERS_LEN`] bytes, which
//! are made private before they are looked at, and delivered from there. A frame that needs more
//! breaks a rule. A checksum that is finished on the way is written where nothing was read.
//!
//! A burst may be given back to its ring, in whole or in part, and comes again: what its frames
//! broke is counted when it is known which of them stay.
//!
//! [`MAX_HEADERS_LEN`]: crate::limits::MAX_HEADERS_LEN

use crate::frame::offload::NEEDS_CSUM;
use crate::limits::BURST_FRAMES;
use crate::port::Port;
use crate::ring::Burst;
use crate::stats::{Counter, GuardStats};
use crate::switch::port_security::{self, Address, Headers, Refused};
use crate::switch::{PortSecurity, Rule, Violation};

// A bit for each frame.
const _: () = assert!(BURST_FRAMES <= u64::BITS as usize);

/// What frames of a burst broke a rule, in their order.
#[derive(Debug, Default)]
pub struct Violations(Vec<(u8, Violation)>);

impl Violations {
    /// True if none did.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Looks at all frames of a burst from a port with these rules; a bit for each that is to be
    /// dropped.
    #[inline(never)]
    pub fn find(&mut self, burst: &mut Burst, rules: &PortSecurity) -> u64 {
        let mut refused = 0;
        for index in 0..burst.frames().len() {
            if let Err(violation) = check(burst, index, rules) {
                self.0.push((index as u8, violation));
                refused |= 1 << index;
            }
        }
        if rules.enforced { refused } else { 0 }
    }

    /// Counts those of the first `frames` frames at the port, and forgets all.
    #[cold]
    #[inline(never)]
    pub fn count(&mut self, frames: usize, port: &Port) {
        for (_, violation) in self.0.drain(..).filter(|(at, _)| usize::from(*at) < frames) {
            counter(&port.stats.guard, violation.rule).add_shared(1);
            port.last_seen.note_violation(violation);
        }
    }
}

fn counter(stats: &GuardStats, rule: Rule) -> &Counter {
    match rule {
        Rule::Mac => &stats.mac,
        Rule::Ip => &stats.ip,
        Rule::Arp => &stats.arp,
        Rule::Rarp => &stats.rarp,
        Rule::Nd => &stats.nd,
        Rule::Dhcp => &stats.dhcp,
        Rule::Server => &stats.server,
        Rule::Headers => &stats.headers,
    }
}

/// Whether frame `index` may be sent.
#[inline]
fn check(burst: &mut Burst, index: usize, rules: &PortSecurity) -> Result<(), Violation> {
    let frame = &burst.frames()[index];
    let request = frame.request();
    let asks = burst.needs_offloads();
    let sum_at = (asks && request.header.flags & NEEDS_CSUM != 0).then(|| request.csum_at());
    let known = Headers {
        bytes: frame.head(),
        len: frame.len as usize,
        sum_at,
        is_cut: asks && request.is_gso(),
    };
    match port_security::check(rules, &known) {
        Ok(()) => Ok(()),
        Err(Refused::Broken(violation)) => Err(violation),
        Err(Refused::Short) => {
            let Headers { len, is_cut, .. } = known;
            check_more(burst, index, rules, (len, sum_at, is_cut))
        }
    }
}

/// The same with all that is looked at of a frame.
#[inline(never)]
fn check_more(
    burst: &mut Burst,
    index: usize,
    rules: &PortSecurity,
    (len, sum_at, is_cut): (usize, Option<usize>, bool),
) -> Result<(), Violation> {
    let unreadable = Violation { rule: Rule::Headers, address: Address::None };
    // Never none: there is room for one more piece of each frame.
    let bytes = burst.headers(index).ok_or(unreadable)?;
    match port_security::check(rules, &Headers { bytes, len, sum_at, is_cut }) {
        Ok(()) => Ok(()),
        Err(Refused::Broken(violation)) => Err(violation),
        Err(Refused::Short) => Err(unreadable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::MacAddr;
    use crate::ring::tests::{DATA, Guest, desc, describe, offer};
    use crate::switch::port_security::{AllowedIps, AllowedMacs, Servers};

    const OWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const OTHER: MacAddr = MacAddr([2; 6]);

    fn rules() -> PortSecurity {
        PortSecurity {
            enforced: true,
            macs: AllowedMacs::Only { list: [OWN].into(), vrrp: false },
            ips: AllowedIps::new(&[]),
            servers: Servers::default(),
        }
    }

    /// A DHCP client's message, whose hardware address is behind the snapshot.
    fn discover(chaddr: MacAddr) -> Vec<u8> {
        let mut frame = vec![0; 300];
        frame[..6].fill(0xff);
        frame[6..12].copy_from_slice(&OWN.0);
        frame[12..15].copy_from_slice(&[8, 0, 0x45]);
        (frame[23], frame[35], frame[37]) = (17, 68, 67);
        frame[30..34].fill(0xff);
        frame[42..45].copy_from_slice(&[1, 1, 6]);
        frame[70..76].copy_from_slice(&chaddr.0);
        frame
    }

    /// Where the guest has frame `n`.
    fn at(n: usize) -> u64 {
        DATA + 0x1000 * n as u64 + 12
    }

    /// Takes messages of clients with these addresses from a guest's ring.
    fn take(guest: &Guest, clients: &[MacAddr]) -> Burst {
        let queue = guest.queue();
        for (n, chaddr) in clients.iter().enumerate() {
            guest.write(at(n), &discover(*chaddr));
            describe(&queue, n as u16, &[desc(at(n) - 12, 12 + 300, 0, 0)]);
            offer(&queue, &[n as u16]);
        }
        let mut burst = Burst::default();
        assert_eq!(guest.start(&queue).take(&mut burst, 64), Ok(clients.len()));
        burst
    }

    fn delivered(burst: &Burst, index: u8) -> Vec<u8> {
        let mut bytes = vec![0; 400];
        let len = burst.egress(index).copy_beginning(&mut bytes);
        bytes.truncate(len);
        bytes
    }

    /// The sender rewrites what was checked before it is delivered.
    #[test]
    fn what_was_checked_is_what_is_delivered() {
        let guest = Guest::new();
        let mut burst = take(&guest, &[OWN, OTHER, OWN]);
        let mut violations = Violations::default();
        assert_eq!(violations.find(&mut burst, &rules()), 0b010);
        (0..3).for_each(|n| guest.write(at(n), &[0xee; 300]));
        for index in [0, 2] {
            let sent = delivered(&burst, index);
            assert_eq!(sent.len(), 300);
            assert_eq!(sent[..256], discover(OWN)[..256], "frame {index}");
            assert_eq!(sent[256..], [0xee; 44], "the rest is not read before");
        }
        // Looked at again, the copy is what counts.
        assert_eq!(Violations::default().find(&mut burst, &rules()), 0b010);
        assert_eq!(delivered(&burst, 0)[..256], discover(OWN)[..256]);
    }

    #[test]
    fn what_is_given_back_is_not_counted() {
        let (guest, port) = (Guest::new(), Port::guest(0, "a", 1));
        let mut burst = take(&guest, &[OTHER, OWN, MacAddr([4; 6])]);
        let log = PortSecurity { enforced: false, ..rules() };
        let mut violations = Violations::default();
        assert_eq!(violations.find(&mut burst, &log), 0, "counted, and not dropped");
        violations.count(2, &port);
        assert!(violations.is_empty());
        assert_eq!((port.stats.guard.dhcp.get(), port.stats.guard.total()), (1, 1));
        let violation = Violation { rule: Rule::Dhcp, address: Address::Mac(OTHER) };
        assert_eq!(port.last_seen.violation(), Some(violation));
    }
}
