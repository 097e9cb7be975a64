//! Port security: the frames of a burst that their port may not send.
//!
//! Checked bytes are the delivered bytes. The rules are checked on a frame's snapshot, which is
//! private. If the snapshot is too short, the first [`MAX_HEADERS_LEN`] bytes, or the whole message
//! of a DHCP client, are made private, checked, and delivered from the private copy. A frame that
//! needs more bytes breaks a rule. Completing a checksum on the way writes no byte that the rules
//! read.
//!
//! A burst may be given back to its ring, in whole or in part, and taken again. So violations are
//! counted when it is known which frames stay.
//!
//! [`MAX_HEADERS_LEN`]: base::limits::MAX_HEADERS_LEN

use crate::port::Port;
use crate::ring::Burst;
use base::frame::offload::NEEDS_CSUM;
use base::limits::{BURST_FRAMES, MAX_HEADERS_LEN};
use base::stats::{Counter, GuardStats};
use switch::port_security::{self, Address, Headers, Refused};
use switch::{PortSecurity, Rule, Tick, Violation};

// One bit for each frame.
const _: () = assert!(BURST_FRAMES <= u64::BITS as usize);

/// Violations of rules by the frames of a burst, in the order of the frames.
#[derive(Debug, Default)]
pub(crate) struct Violations {
    /// Index of the frame, and the violation.
    pub(crate) list: Vec<(u8, Violation)>,
}

impl Violations {
    /// Checks all frames of a burst from `port` with `rules`. Returns the frames to drop, as bits
    /// of their indices.
    #[inline(never)]
    pub(crate) fn find(
        &mut self,
        burst: &mut Burst,
        rules: &PortSecurity,
        port: &Port,
        now: Tick,
    ) -> u64 {
        let now = now.second();
        let clients = |identifier: &[&[u8]]| port.observed.dhcp_clients.note(identifier, now);
        let mut refused = 0;
        for index in 0..burst.frames().len() {
            if let Err(violation) = check(burst, index, rules, &clients) {
                self.list.push((index as u8, violation));
                refused |= 1 << index;
            }
        }
        if rules.enforced { refused } else { 0 }
    }

    /// Counts the violations of the first `frames` frames at the port, and empties the list.
    #[cold]
    #[inline(never)]
    pub(crate) fn count(&mut self, frames: usize, port: &Port) {
        for (_, violation) in self.list.drain(..).filter(|(at, _)| usize::from(*at) < frames) {
            counter(&port.stats.guard, violation.rule).add_shared(1);
            if violation.rule != Rule::Version {
                port.observed.last_seen.note_violation(violation);
            }
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
        Rule::Ethertype => &stats.ethertype,
        Rule::Version => &stats.version,
    }
}

/// Function that notes the identifier of a DHCP client; false if the port has had too many clients.
type Clients<'a> = &'a dyn Fn(&[&[u8]]) -> bool;

/// Checks whether frame `index` may be sent.
#[inline]
fn check(
    burst: &mut Burst,
    index: usize,
    rules: &PortSecurity,
    clients: Clients<'_>,
) -> Result<(), Violation> {
    let frame = &burst.frames()[index];
    let request = frame.request();
    let asks = burst.needs_offloads();
    let sum_at = (asks && request.header.flags & NEEDS_CSUM != 0).then(|| request.csum_at());
    let known = Headers {
        bytes: frame.head(),
        whole: &[],
        len: frame.len as usize,
        sum_at,
        is_cut: asks && request.is_gso(),
    };
    let refused = match port_security::check(rules, &known, clients) {
        Ok(()) => return Ok(()),
        Err(Refused::Broken(violation)) => return Err(violation),
        Err(refused) => refused,
    };
    let Headers { len, is_cut, .. } = known;
    let none = Headers { bytes: &[], whole: &[], len, sum_at, is_cut };
    check_more(burst, index, rules, clients, none, refused)
}

/// Checks a frame with more of its bytes, as long as the result asks for more.
#[inline(never)]
fn check_more(
    burst: &mut Burst,
    index: usize,
    rules: &PortSecurity,
    clients: Clients<'_>,
    frame: Headers<'static>,
    mut refused: Refused,
) -> Result<(), Violation> {
    let unreadable = Violation { rule: Rule::Headers, address: Address::None };
    // First the first bytes, then the whole message.
    for _ in 0..2 {
        // Never none: a burst has room for one more piece of each frame, and messages are short.
        let (bytes, whole) = match refused {
            Refused::Broken(violation) => return Err(violation),
            Refused::Short => (burst.headers(index).ok_or(unreadable)?, &[][..]),
            Refused::Whole => {
                let whole = burst.message(index).ok_or(unreadable)?;
                (&whole[..whole.len().min(MAX_HEADERS_LEN)], whole)
            }
        };
        match port_security::check(rules, &Headers { bytes, whole, ..frame }, clients) {
            Ok(()) => return Ok(()),
            Err(again) => refused = again,
        }
    }
    match refused {
        Refused::Broken(violation) => Err(violation),
        _ => Err(unreadable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::tests::{DATA, Guest, desc, describe, offer};
    use base::frame::MacAddr;
    use base::limits::GUARD_DHCP_CLIENTS;
    use switch::port_security::{AllowedIps, AllowedMacs, Servers};

    const OWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const OTHER: MacAddr = MacAddr([2; 6]);

    fn rules() -> PortSecurity {
        PortSecurity {
            enforced: true,
            macs: AllowedMacs::Only { list: [OWN].into(), vrrp: false },
            ips: AllowedIps::new(&[]),
            servers: Servers::default(),
            ethertypes: Box::default(),
        }
    }

    /// A DHCP client's message of 300 bytes, whose hardware address is behind the snapshot.
    fn discover(chaddr: MacAddr) -> Vec<u8> {
        let mut frame = vec![0; 300];
        frame[..6].fill(0xff);
        frame[6..12].copy_from_slice(&OWN.0);
        frame[12..15].copy_from_slice(&[8, 0, 0x45]);
        (frame[23], frame[35], frame[37]) = (17, 68, 67);
        frame[30..34].fill(0xff);
        frame[38..40].copy_from_slice(&266u16.to_be_bytes());
        frame[42..45].copy_from_slice(&[1, 1, 6]);
        frame[70..76].copy_from_slice(&chaddr.0);
        frame[278..286].copy_from_slice(&[99, 130, 83, 99, 53, 1, 1, 255]);
        frame
    }

    /// A neighbour advertisement whose link-layer address is behind the snapshot, with 200 bytes of
    /// padding.
    fn advertisement(mac: MacAddr) -> Vec<u8> {
        let mut frame = vec![0; 300];
        frame[..6].fill(0xff);
        frame[6..12].copy_from_slice(&OWN.0);
        frame[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
        (frame[19], frame[20], frame[54]) = (32, 58, 136);
        frame[78..80].copy_from_slice(&[2, 1]);
        frame[80..86].copy_from_slice(&mac.0);
        frame
    }

    /// Address of frame `n` in the guest's memory.
    fn at(n: usize) -> u64 {
        DATA + 0x1000 * n as u64 + 12
    }

    /// Takes `frames`, of 300 bytes each, from a guest's ring.
    fn take(guest: &Guest, frames: &[Vec<u8>]) -> Burst {
        let queue = guest.queue();
        for (n, frame) in frames.iter().enumerate() {
            guest.write(at(n), frame);
            describe(&queue, n as u16, &[desc(at(n) - 12, 12 + 300, 0, 0)]);
            offer(&queue, &[n as u16]);
        }
        let mut burst = Burst::default();
        assert_eq!(guest.start(&queue).take(&mut burst, 64), Ok(frames.len()));
        burst
    }

    fn delivered(burst: &Burst, index: u8) -> Vec<u8> {
        let mut bytes = vec![0; 400];
        let len = burst.egress(index).copy_beginning(&mut bytes);
        bytes.truncate(len);
        bytes
    }

    /// The sender rewrites a frame that was checked before the frame is delivered.
    #[test]
    fn what_was_checked_is_what_is_delivered() {
        let (guest, port) = (Guest::new(), Port::guest(0, "a", 1));
        let frames = [OWN, OTHER, OWN].map(advertisement);
        let mut burst = take(&guest, &frames);
        let mut violations = Violations::default();
        assert_eq!(violations.find(&mut burst, &rules(), &port, Tick::default()), 0b010);
        (0..3).for_each(|n| guest.write(at(n), &[0xee; 300]));
        for index in [0, 2] {
            let sent = delivered(&burst, index);
            assert_eq!(sent.len(), 300);
            assert_eq!(sent[..256], frames[0][..256], "frame {index}");
            assert_eq!(sent[256..], [0xee; 44], "the rest is not read before");
        }
        // A second check reads the private copy.
        assert_eq!(Violations::default().find(&mut burst, &rules(), &port, Tick::default()), 0b010);
        assert_eq!(delivered(&burst, 0)[..256], frames[0][..256]);
    }

    /// All of a DHCP client's message was checked.
    #[test]
    fn all_of_a_message_is_what_was_checked() {
        let (guest, port) = (Guest::new(), Port::guest(0, "a", 1));
        let frames = [discover(OWN), advertisement(OWN), discover(OTHER), discover(OWN)];
        let mut burst = take(&guest, &frames);
        for round in 0..3 {
            let refused = Violations::default().find(&mut burst, &rules(), &port, Tick::default());
            assert_eq!(refused, 0b100, "round {round}");
            (0..4).for_each(|n| guest.write(at(n), &[0xee; 300]));
            for index in [0, 3] {
                assert_eq!(delivered(&burst, index), frames[0], "frame {index}, round {round}");
            }
            assert_eq!(delivered(&burst, 1)[..256], frames[1][..256]);
        }
        assert_eq!(burst.headers(0), Some(&frames[0][..256]), "of the copy");
        assert_eq!(burst.message(1).map(|frame| &frame[..256]), Some(&frames[1][..256]));
        assert_eq!(delivered(&burst, 1)[..256], frames[1][..256]);
    }

    #[test]
    fn a_port_has_a_limited_number_of_dhcp_clients() {
        let (guest, port) = (Guest::new(), Port::guest(0, "a", 1));
        let frames: Vec<_> = (0..12)
            .map(|n| {
                let mut frame = discover(OWN);
                frame[282..290].copy_from_slice(&[53, 1, 1, 61, 2, 0, n, 255]);
                frame
            })
            .collect();
        let mut burst = take(&guest, &frames);
        let find =
            |burst: &mut Burst| Violations::default().find(burst, &rules(), &port, Tick::default());
        let refused = !0 << GUARD_DHCP_CLIENTS & 0xfff;
        assert_eq!(find(&mut burst), refused);
        assert_eq!(find(&mut burst), refused, "given back, and taken again");
    }

    #[test]
    fn what_is_given_back_is_not_counted() {
        let (guest, port) = (Guest::new(), Port::guest(0, "a", 1));
        let mut burst = take(&guest, &[OTHER, OWN, MacAddr([4; 6])].map(discover));
        let log = PortSecurity { enforced: false, ..rules() };
        let mut violations = Violations::default();
        let refused = violations.find(&mut burst, &log, &port, Tick::default());
        assert_eq!(refused, 0, "counted, and not dropped");
        violations.count(2, &port);
        assert!(violations.list.is_empty());
        assert_eq!((port.stats.guard.dhcp.get(), port.stats.guard.told()), (1, 1));
        let violation = Violation { rule: Rule::Dhcp, address: Address::Mac(OTHER) };
        assert_eq!(port.observed.last_seen.violation(), Some(violation));
    }
}
