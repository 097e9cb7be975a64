//! Writes and reads the state that a process hands to its successor: the learned addresses and the
//! counters.
//!
//! The state is text with one fact a line, so that releases understand each other as far as they
//! can: a reader passes over a line that it does not know, and a line for a deleted port. The
//! first line names the version; a reader takes nothing of another version. Seconds are those of
//! the machine's monotonic clock, which no restart of the daemon resets. Behind the port stands the
//! VLAN, if any.
//!
//! ```text
//! vioswitch-state 1
//! address 52:54:00:00:00:01 4711 vm1
//! address 52:54:00:00:00:01 4712 up 20
//! counter vm1 in.0 frames 815
//! ```

use std::collections::HashMap;
use std::fmt::Write;

use base::frame::MacAddr;
use base::stats::Counter;
use datapath::port::{Port, PortTable};
use switch::{Entry, EntryAge, Fdb, PortId, Station};

const FIRST_LINE: &str = "vioswitch-state 1";

/// The number of addresses and counters that were taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Restored {
    /// Learned addresses.
    pub(crate) addresses: usize,
    /// Counters that were not 0.
    pub(crate) counters: usize,
}

/// Returns the state of second `now` as text.
pub fn write(ports: &PortTable, addresses: &[Entry], now: u32) -> String {
    let mut text = format!("{FIRST_LINE}\n");
    for entry in addresses {
        let (EntryAge::Idle(idle), Some(port)) = (entry.age, ports.get(entry.port)) else {
            continue;
        };
        let seen = now.saturating_sub(idle);
        let Station { segment, mac } = entry.station;
        let vlan = match segment.vlan() {
            0 => String::new(),
            vlan => format!(" {vlan}"),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "address {mac} {seen} {}{vlan}", port.name);
    }
    for port in ports.iter() {
        each_counter(port, &mut |part, name, counter| {
            if counter.get() > 0 {
                let _ = writeln!(text, "counter {} {part} {name} {}", port.name, counter.get());
            }
        });
    }
    text
}

/// Takes over the state of an earlier process, before any address is learned or frame counted;
/// `None` if the state is of another version. Skips addresses that the table does not take, for its
/// limits or the configuration's own entries.
pub fn restore(text: &str, ports: &PortTable, fdb: &Fdb, now: u32) -> Option<Restored> {
    let mut lines = text.lines();
    if lines.next() != Some(FIRST_LINE) {
        return None;
    }
    let ids: HashMap<&str, PortId> = ports.iter().map(|p| (p.name.as_str(), p.id)).collect();
    let mut counters = HashMap::new();
    let mut restored = Restored { addresses: 0, counters: 0 };
    for line in lines {
        let mut words = line.split(' ');
        match [(); 5].map(|()| words.next().unwrap_or_default()) {
            ["address", mac, seen, port, vlan] => {
                let known = mac.parse::<MacAddr>().ok().zip(seen.parse::<u32>().ok());
                if let (Some((mac, seen)), Some(&port)) = (known, ids.get(port)) {
                    let segment = ports.policy(port).segment(vlan.parse().unwrap_or(0));
                    // The port may be in another VLAN now, or learn no more.
                    let learned = ports.policy(port).is_member(segment)
                        && ports.policy(port).learns
                        && fdb.learn(Station::new(segment, mac), port, seen.min(now)).is_in_table();
                    restored.addresses += usize::from(learned);
                }
            }
            ["counter", port, part, name, value] => {
                if let Ok(value) = value.parse::<u64>() {
                    counters.insert((port, part.to_owned(), name.to_owned()), value);
                }
            }
            _ => {}
        }
    }
    for port in ports.iter() {
        each_counter(port, &mut |part, name, counter| {
            let key = (port.name.as_str(), part.to_owned(), name.to_owned());
            if let Some(value) = counters.get(&key) {
                counter.add(*value);
                restored.counters += 1;
            }
        });
    }
    Some(restored)
}

/// Adds the counters of a port to the port that comes in its place. Counters of queues that the new
/// port lacks are added to its first queue.
pub fn carry(before: &Port, after: &Port) {
    let mut counted = HashMap::new();
    each_counter(before, &mut |part, name, counter| {
        if counter.get() > 0 {
            counted.insert((part.to_owned(), name.to_owned()), counter.get());
        }
    });
    // The addition is shared: workers may count frames for the port meanwhile.
    let mut add = |exact: bool| {
        each_counter(after, &mut |part, name, counter| {
            if exact {
                let count = counted.remove(&(part.to_owned(), name.to_owned()));
                counter.add_shared(count.unwrap_or(0));
            } else if let Some(direction) = part.strip_suffix(".0") {
                let beyond = |(of, named): &(String, String)| {
                    named == name && of.split_once('.').is_some_and(|(of, _)| of == direction)
                };
                let count: u64 = counted.extract_if(|key, _| beyond(key)).map(|(_, n)| n).sum();
                counter.add_shared(count);
            }
        });
    };
    add(true);
    add(false);
    after.life.lineage.complete();
}

/// Visits every counter of a port, with the part of the port and the counter's name.
fn each_counter(port: &Port, visit: &mut dyn FnMut(&str, &str, &Counter)) {
    port.stats.each(&mut |name, counter| visit("port", name, counter));
    visit("port", "log_suppressed", &port.reports.log.suppressed);
    port.stats.announced.each(&mut |name, counter| visit("announced", name, counter));
    port.each_queue(&mut |direction, index, stats| {
        let part = format!("{}.{index}", direction.name());
        stats.each(&mut |name, counter| visit(&part, name, counter));
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use base::limits::{FDB_MAX_ENTRIES, FDB_MAX_PER_PORT};
    use base::stats::DropReason;
    use datapath::port::DevicePort;
    use switch::{FdbConfig, Membership, PortPolicy, Segment, VlanSet};

    const NOW: u32 = 1000;

    fn ports(names: &[&str]) -> PortTable {
        let guests = names.iter().enumerate();
        let guests = guests.map(|(id, name)| Port::guest(id as PortId, name, 1));
        let tap = Port::device(names.len() as PortId, "up", DevicePort::tap("tap0", 2));
        guests.chain([tap]).map(Arc::new).collect()
    }

    fn table(ports: &PortTable) -> Fdb {
        Fdb::new(FdbConfig {
            max_entries: FDB_MAX_ENTRIES,
            max_per_port: FDB_MAX_PER_PORT,
            reserved_per_port: 16,
            max_per_segment: u32::MAX,
            reserved_per_segment: 0,
            age_seconds: 300,
            damping: true,
            ports: ports.iter().count(),
            key: [1, 2],
        })
    }

    fn mac(last: u8) -> MacAddr {
        format!("52:54:00:00:00:{last:02x}").parse().unwrap()
    }

    #[test]
    fn a_successor_knows_addresses_and_counters_by_the_names_of_ports() {
        let old = ports(&["a", "b", "gone"]);
        let fdb = table(&old);
        for (last, port) in [(1, 0), (2, 1), (3, 2), (4, 3)] {
            fdb.learn(mac(last), port, NOW - u32::from(last));
        }
        fdb.insert_static(mac(9), 0).unwrap();
        for (n, port) in (1..).zip(old.iter()) {
            each_counter(port, &mut |_, _, counter| counter.add(n));
        }
        let text = write(&old, &fdb.entries(NOW), NOW);

        let new = ports(&["new", "b", "a"]);
        let fdb = table(&new);
        let restored = restore(&text, &new, &fdb, NOW + 5).unwrap();
        assert_eq!(restored.addresses, 3);
        let homes = [1, 2, 3, 4, 9].map(|last| fdb.lookup(mac(last)));
        assert_eq!(homes, [Some(2), Some(1), None, Some(3), None]);
        // An address has been idle since it was last seen, not since it was taken over.
        let ages: HashMap<_, _> =
            fdb.entries(NOW + 5).into_iter().map(|entry| (entry.station.mac, entry.age)).collect();
        assert_eq!(ages[&mac(2)], EntryAge::Idle(7));
        let mut seen = 0;
        for (port, n) in new.iter().zip([0, 2, 1, 4]) {
            each_counter(port, &mut |part, name, counter| {
                assert_eq!(counter.get(), n, "{} {part} {name}", port.name);
                seen += usize::from(n > 0);
            });
        }
        assert_eq!(restored.counters, seen);
    }

    /// An address is known in the bridge and VLAN in which it was learned, if its port is a member.
    #[test]
    fn a_successor_knows_vlans() {
        let trunk = |list: &[u16]| {
            let mut tagged = VlanSet::new();
            list.iter().for_each(|vlan| tagged.add(*vlan, *vlan));
            let vlans = Membership::Trunk { tagged, native: None };
            let policy = PortPolicy { vlans, ..PortPolicy::PLAIN };
            let port = Port::guest(0, "a", 1);
            port.policy.set(policy);
            [Arc::new(port)].into_iter().collect::<PortTable>()
        };
        let at = |vlan| Station::new(Segment::new(0, vlan), mac(1));
        let (old, new) = (trunk(&[10, 20]), trunk(&[20, 30]));
        let fdb = table(&old);
        [10, 20].iter().for_each(|vlan| _ = fdb.learn(at(*vlan), 0, NOW));
        let text = write(&old, &fdb.entries(NOW), NOW);
        let fdb = table(&new);
        assert_eq!(restore(&text, &new, &fdb, NOW).map(|all| all.addresses), Some(1));
        assert_eq!([0, 10, 20].map(|vlan| fdb.lookup(at(vlan))), [None, None, Some(0)]);
    }

    #[test]
    fn configuration_outranks_what_was_learned() {
        let ports = ports(&["a", "b"]);
        let fdb = table(&ports);
        fdb.insert_static(mac(1), 1).unwrap();
        let text = format!("{FIRST_LINE}\naddress {} 1 a\n", mac(1));
        let none = Restored { addresses: 0, counters: 0 };
        assert_eq!(restore(&text, &ports, &fdb, NOW), Some(none));
        assert_eq!(fdb.lookup(mac(1)), Some(1));
    }

    #[test]
    fn nonsense_and_other_versions_are_passed_over() {
        let ports = ports(&["a"]);
        let fdb = table(&ports);
        for other in ["", "\n", "vioswitch-state 2\naddress 52:54:00:00:00:01 1 a\n", "\0\0"] {
            assert_eq!(restore(other, &ports, &fdb, NOW), None, "{other:?}");
        }
        let text = format!(
            "{FIRST_LINE}\n\naddress\naddress x 1 a\naddress {mac} -1 a\naddress {mac} 1 nobody\n\
             address 01:00:5e:00:00:01 1 a\ncounter a port attaches\ncounter a port attaches -1\n\
             counter a port attaches 99999999999999999999\ncounter a port unheard_of 1\n\
             future a b c d e f\naddress {mac} 4294967295 a more\n",
            mac = mac(1)
        );
        let restored = restore(&text, &ports, &fdb, NOW).unwrap();
        assert_eq!(restored, Restored { addresses: 1, counters: 0 });
        // An address that was seen in the future counts as seen now.
        assert_eq!(fdb.entries(NOW)[0].age, EntryAge::Idle(0));
        assert_eq!(ports[0].stats.attaches.get(), 0);
        assert_eq!(ports[0].stats.drops.get(DropReason::NoFit), 0);
    }
}
