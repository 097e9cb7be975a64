//! The table as bytes: what one process hands to the next.
//!
//! ```text
//! magic (8 bytes), version (4), number of ports (4)
//! for each port: length of its name (1), name, number of connections (4), connections
//! a connection: local address (16), remote address (16), ports (2 + 2), VLAN (2), protocol (1),
//!     flags (1), state (1), zero (1), ticks until its time-out (4)
//! sum of all bytes before (8)
//! ```
//!
//! Numbers are little-endian. The rules of a connection are not written: the first packet asks the
//! rules of the new process whether the connection may go on. One error makes the reader refuse the
//! whole table.
//!
//! The flags `BY_FIRST` and `WAS_OPEN` came later. A version without them writes zeros there, and
//! refuses a table with a connection that has one of them: after a downgrade such a table is lost.

use std::collections::BTreeMap;

use super::super::super::fdb::Tick;
use super::key::{Key, Parts, Place};
use super::quota::List;
use super::slots::{Owner, SlotRef};
use super::state::{Ending, Event, State};
use super::{Connection, Connections};
use base::frame::fold::{PI, fold};
use base::limits::{MAX_NAME_LEN, MAX_PORTS};

const MAGIC: &[u8; 8] = b"VSWCONNS";
/// Version of the format.
pub const FORMAT_VERSION: u32 = 1;
const ENTRY: usize = 46;
const SUM: usize = 8;

const V6: u8 = 1;
const ASKS: u8 = 1 << 1;
const OUT: u8 = 1 << 2;
const REPLIED: u8 = 1 << 3;
const ASSURED: u8 = 1 << 4;
const BY_FIRST: u8 = 1 << 5;
const WAS_OPEN: u8 = 1 << 6;

/// Connections of names that no port has, or no port has yet.
#[derive(Debug, Default)]
pub struct Orphans {
    /// Time from which the connections' time-outs count.
    read_at: Tick,
    of: BTreeMap<String, Vec<Connection>>,
}

impl Orphans {
    /// True if there are no connections.
    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
    }
}

/// The reason why bytes are not accepted as a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Damaged {
    /// The bytes are no table.
    #[error("no table of connections")]
    Magic,
    /// The table is of another version of this program.
    #[error("a table of connections of version {0}, not {FORMAT_VERSION}")]
    Version(u32),
    /// The bytes are not those that were written.
    #[error("a damaged table of connections: {0}")]
    Content(&'static str),
}

const SHORT: Damaged = Damaged::Content("it ends too early");

/// Sums bytes; finds damage, not intent.
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let words = words.iter().chain([&last]).map(|word| u64::from_le_bytes(*word));
    words.fold(bytes.len() as u64, |sum, word| fold(sum ^ word ^ PI[0], PI[1]))
}

/// Returns a dump with the sum of its bytes.
#[cfg(test)]
pub fn resum(bytes: &[u8]) -> Vec<u8> {
    let body = &bytes[..bytes.len() - SUM];
    [body, &sum(body).to_le_bytes()].concat()
}

impl Connections {
    /// Returns all connections as bytes. `name` returns the name of a port; the connections of a
    /// port without a name are left out.
    pub fn dump(&self, now: Tick, name: impl Fn(u16) -> Option<String>) -> Vec<u8> {
        let mut entries = self.entries(None, now);
        entries.sort_unstable_by_key(|entry| entry.parts.port);
        let named = |entries: &[Connection]| name(entries.first()?.parts.port);
        let ports = entries.chunk_by(|a, b| a.parts.port == b.parts.port);
        let ports: Vec<_> = ports.filter_map(|all| Some((named(all)?, all))).collect();
        let mut bytes = MAGIC.to_vec();
        bytes.extend(FORMAT_VERSION.to_le_bytes());
        bytes.extend((ports.len() as u32).to_le_bytes());
        for (name, entries) in ports {
            bytes.push(name.len() as u8);
            bytes.extend(name.as_bytes());
            bytes.extend((entries.len() as u32).to_le_bytes());
            entries.iter().for_each(|entry| write(entry, &mut bytes));
        }
        bytes.extend(sum(&bytes).to_le_bytes());
        bytes
    }

    /// Adds the connections of a dump that was read at `now`. `port` returns the port of a name.
    /// The connections beyond the limits of the table are left out. Returns the number of
    /// connections that were added, and the connections of other names, for [`Connections::adopt`];
    /// after an error nothing is added.
    pub fn load(
        &self,
        bytes: &[u8],
        now: Tick,
        port: impl Fn(&str) -> Option<u16>,
    ) -> Result<(usize, Orphans), Damaged> {
        let mut orphans = Orphans { read_at: now, of: read(bytes)? };
        let names: Vec<_> = orphans.of.keys().cloned().collect();
        let known = names.iter().filter_map(|name| Some((name, port(name)?)));
        let added = known.map(|(name, port)| self.adopt(&mut orphans, name, port)).sum();
        Ok((added, orphans))
    }

    /// Adds the connections of a name to a port that has the name. Returns their number.
    pub fn adopt(&self, orphans: &mut Orphans, name: &str, port: u16) -> usize {
        let entries = orphans.of.remove(name).unwrap_or_default();
        let of_port = entries.into_iter().map(|mut entry| {
            entry.parts.port = port;
            entry
        });
        of_port.filter(|entry| self.restore(entry, orphans.read_at)).count()
    }

    /// Adds a connection that another process tracked; false if it has no room.
    fn restore(&self, entry: &Connection, now: Tick) -> bool {
        let key = Key::new(&entry.parts);
        let sought = self.seek(key, Event::Datagram);
        let home = &sought.home;
        let _guard = self.lock(home.shard);
        let port = key.port();
        if self.slots.find(home, &key, Tick::default()).is_some() || !self.quota.take(port) {
            return false;
        }
        let Some(slot) = self.slots.free(home) else {
            self.quota.give_back(port);
            return false;
        };
        let deadline = Tick::from_bits(now.to_bits().saturating_add(entry.seconds));
        // No rules have generation 0, so the first packet asks the rules.
        let owner = Owner::new(0, 0, now);
        self.write(slot, &sought, owner, (entry.out, entry.state, deadline));
        let before = self.slots.word(slot);
        let after = if entry.replied { before.replied() } else { before };
        let after = after.assured(entry.assured).with_ending(entry.ending);
        // The exchange fails if a packet has changed the word meanwhile; the packet's word is newer
        // and stays.
        let _ = self.slots.exchange(slot, before, after);
        if !entry.assured {
            let list = if entry.state.is_over() { List::Ended } else { List::HalfOpen };
            self.list(port, list, SlotRef::new(slot, before.version()));
        }
        true
    }
}

fn write(entry: &Connection, bytes: &mut Vec<u8>) {
    let Connection { parts, state, seconds, out, replied, assured, ending, .. } = entry;
    bytes.extend(parts.local.address.to_le_bytes());
    bytes.extend(parts.remote.address.to_le_bytes());
    for number in [parts.local.port, parts.remote.port, parts.vlan] {
        bytes.extend(number.to_le_bytes());
    }
    let flags = [
        (parts.v6, V6),
        (parts.asks, ASKS),
        (*out, OUT),
        (*replied, REPLIED),
        (*assured, ASSURED),
        (ending.by_first, BY_FIRST),
        (ending.was_open, WAS_OPEN),
    ];
    let flags = flags.iter().fold(0, |all, (is, flag)| if *is { all | flag } else { all });
    bytes.extend([parts.protocol, flags, *state as u8, 0]);
    bytes.extend(Tick::ticks(*seconds).to_le_bytes());
}

/// Reads all connections, by the names of ports. In the returned connections the field `seconds`
/// has ticks, and the field `port` has no meaning.
fn read(bytes: &[u8]) -> Result<BTreeMap<String, Vec<Connection>>, Damaged> {
    let mut rest = bytes.strip_prefix(MAGIC).ok_or(Damaged::Magic)?;
    let version = u32::from_le_bytes(take(&mut rest)?);
    if version != FORMAT_VERSION {
        return Err(Damaged::Version(version));
    }
    let (body, expected) = bytes.split_last_chunk::<SUM>().ok_or(SHORT)?;
    if sum(body) != u64::from_le_bytes(*expected) {
        return Err(Damaged::Content("its sum is wrong"));
    }
    let mut rest = rest.get(..rest.len().saturating_sub(SUM)).ok_or(SHORT)?;
    let ports = u32::from_le_bytes(take(&mut rest)?);
    if ports as usize > MAX_PORTS {
        return Err(Damaged::Content("it has too many ports"));
    }
    let mut all = BTreeMap::new();
    for _ in 0..ports {
        let [len] = take(&mut rest)?;
        let name = part(&mut rest, len.into())?;
        let name = std::str::from_utf8(name).ok().filter(|name| name.len() <= MAX_NAME_LEN);
        let name = name.ok_or(Damaged::Content("a name is no name of a port"))?;
        let count = u32::from_le_bytes(take(&mut rest)?);
        let mut entries = Vec::new();
        for _ in 0..count {
            entries.push(entry(&take::<ENTRY>(&mut rest)?)?);
        }
        all.insert(name.to_owned(), entries);
    }
    match rest {
        [] => Ok(all),
        _ => Err(Damaged::Content("something follows its end")),
    }
}

fn part<'a>(rest: &mut &'a [u8], len: usize) -> Result<&'a [u8], Damaged> {
    let (part, behind) = rest.split_at_checked(len).ok_or(SHORT)?;
    *rest = behind;
    Ok(part)
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], Damaged> {
    let (part, behind) = rest.split_first_chunk().ok_or(SHORT)?;
    *rest = behind;
    Ok(*part)
}

/// Reads a connection.
fn entry(bytes: &[u8; ENTRY]) -> Result<Connection, Damaged> {
    let wrong = Damaged::Content("a connection is impossible");
    let mut rest = &bytes[..];
    let [local, remote] =
        [u128::from_le_bytes(take(&mut rest)?), u128::from_le_bytes(take(&mut rest)?)];
    let mut number = || take(&mut rest).map(u16::from_le_bytes);
    let [local_port, remote_port, vlan] = [number()?, number()?, number()?];
    let [protocol, flags, state, zero] = take(&mut rest)?;
    let ticks = u32::from_le_bytes(take(&mut rest)?);
    let has = |flag: u8| flags & flag != 0;
    let widths = has(V6) || (local | remote) >> 32 == 0;
    if !widths || vlan > 0xfff || state > 15 || zero != 0 || flags >= WAS_OPEN << 1 {
        return Err(wrong);
    }
    let state = State::from_bits(state.into());
    // The version before may have had longer time-outs.
    let most = Tick::ticks(state.seconds(protocol, has(REPLIED)) + 1);
    Ok(Connection {
        parts: Parts {
            port: 0,
            vlan,
            v6: has(V6),
            protocol,
            asks: has(ASKS),
            local: Place { address: local, port: local_port },
            remote: Place { address: remote, port: remote_port },
        },
        state,
        seconds: ticks.min(most),
        out: has(OUT),
        replied: has(REPLIED),
        assured: has(ASSURED),
        ending: Ending { by_first: has(BY_FIRST), was_open: has(WAS_OPEN) },
        rule: 0,
        generation: 0,
    })
}
