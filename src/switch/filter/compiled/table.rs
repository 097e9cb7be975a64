//! The rules of one direction: from the fields of a packet to the first line that matches.

use super::field::{Field, Map, Pages, Ranges, Set, addresses, numbers};
use super::lines::Line;
use super::too_large::TooLarge;
use crate::filter::rule::RuleNumber;

/// The fields of a packet that rules match.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fields {
    /// The packet is of IPv6.
    pub v6: bool,
    /// IP protocol number.
    pub protocol: u8,
    /// Source address as a number.
    pub from: u128,
    /// Destination address as a number.
    pub to: u128,
    /// Source port; 0 without ports.
    pub from_port: u16,
    /// Destination port; type and code of an ICMP message; otherwise 0.
    pub to_port: u16,
}

/// The rules of one direction.
#[derive(Debug)]
pub(super) struct Table {
    v4: Ends<u32>,
    v6: Ends<u128>,
    from_port: Field<Pages>,
    to_port: Field<Pages>,
    /// Rule of each line.
    pub(super) rules: Vec<RuleNumber>,
    pub(super) default: RuleNumber,
}

/// The fields of a version of IP.
#[derive(Debug)]
struct Ends<Address> {
    from: Field<Ranges<Address>>,
    to: Field<Ranges<Address>>,
    protocols: Field<Pages>,
}

impl Table {
    /// Makes the table of a direction's lines.
    pub(super) fn build(lines: &[Line], default: RuleNumber) -> Result<Table, TooLarge> {
        let all = |set: fn(&Line) -> &Set| lines.iter().map(set).collect::<Vec<_>>();
        Ok(Table {
            v4: Ends {
                from: addresses(&all(|line| &line.from[0]), u32::MAX)?,
                to: addresses(&all(|line| &line.to[0]), u32::MAX)?,
                protocols: numbers(&all(|line| &line.protocols[0]))?,
            },
            v6: Ends {
                from: addresses(&all(|line| &line.from[1]), u128::MAX)?,
                to: addresses(&all(|line| &line.to[1]), u128::MAX)?,
                protocols: numbers(&all(|line| &line.protocols[1]))?,
            },
            from_port: numbers(&all(|line| &line.from_port))?,
            to_port: numbers(&all(|line| &line.to_port))?,
            rules: lines.iter().map(|line| line.rule).collect(),
            default,
        })
    }

    /// Returns the first line that matches.
    #[inline]
    pub(super) fn first_match(&self, fields: &Fields) -> Option<usize> {
        let [from, to, protocol] = if fields.v6 {
            self.v6.maps(fields.from, fields.to, fields.protocol)
        } else {
            self.v4.maps(fields.from as u32, fields.to as u32, fields.protocol)
        };
        let ports = [self.from_port.of(fields.from_port), self.to_port.of(fields.to_port)];
        let [from_port, to_port] = ports;
        first_common([from, to, protocol, from_port, to_port])
    }
}

impl<Address: Copy + Ord> Ends<Address> {
    #[inline(always)]
    fn maps(&self, from: Address, to: Address, protocol: u8) -> [Map<'_>; 3] {
        [self.from.of(from), self.to.of(to), self.protocols.of(protocol.into())]
    }
}

/// Returns the first bit that is set in all bitmaps.
#[inline(always)]
fn first_common(maps: [Map<'_>; 5]) -> Option<usize> {
    let mut words = maps.iter().fold(u64::MAX, |all, map| all & map.summary);
    while words != 0 {
        let at = words.trailing_zeros() as usize;
        let word = |map: &Map<'_>| map.words.get(at).copied().unwrap_or(0);
        let lines = maps.iter().fold(u64::MAX, |all, map| all & word(map));
        if lines != 0 {
            return Some(at * 64 + lines.trailing_zeros() as usize);
        }
        words &= words - 1;
    }
    None
}
