//! Advice about queueing in front of an uplink. Looks and answers; changes and logs nothing.
//!
//! A host should not queue for its guests: a queue in front of the TAP adds delay, hides the
//! receiver's back-pressure, and most kinds put one lock around all senders. With receive packet
//! steering (RPS) or several hardware receive queues (RSS), frames for the guests come from many
//! CPUs at once and meet at that lock.
//!
//! Kernel facts (`net/core/dev.c`, `net/sched`):
//! - `noqueue` has no enqueue function: `__dev_queue_xmit` calls the driver at once, and tun is
//!   lockless itself (LLTX).
//! - `pfifo_fast` is lockless (TCQ_F_NOLOCK) since Linux 4.16. Every other kind is entered under
//!   the lock of its root.
//! - `mq` and `mqprio` have no lock but one child per transmit queue, each with its own. tun
//!   chooses the queue by flow, not by CPU, so several CPUs still meet at one child. A NIC chooses
//!   it by CPU (XPS), so there children hardly see more than one.
//! - RPS is on where a receive queue's `rps_cpus` is not zero. Frames that came in through one
//!   port of a bridge leave through another, so the uplink's neighbours in its bridge count too.

use std::fmt;
use std::fs;
use std::path::Path;

use super::netlink::{self, NetlinkError, Qdisc, ROOT};
use crate::limits::{ADVICE_MAX_NEIGHBOURS, ADVICE_MAX_RX_QUEUES};

/// Where the kernel describes interfaces.
const SYSFS: &str = "/sys/class/net";

/// What spreads the frames of an interface over CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// Receive packet steering, in software.
    Rps,
    /// Several receive queues of a NIC.
    Rss,
}

/// One thing the administrator should know; its text is a complete line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Advice {
    /// The uplink has a queueing discipline.
    Queues {
        /// The uplink.
        ifname: String,
        /// Kind of its root queueing discipline.
        kind: String,
    },
    /// Frames spread over CPUs meet at a lock.
    LockedSpread {
        /// Where the lock is.
        ifname: String,
        /// Kind of the queueing discipline it belongs to.
        kind: String,
        /// Where frames are spread.
        source: String,
        /// By what.
        spread: Spread,
    },
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Advice::Queues { ifname, kind } => {
                write!(f, "{ifname} queues for its guests ({kind}); run: {}", tc_line(ifname))
            }
            Advice::LockedSpread { ifname, kind, source, spread } => {
                let spread = match spread {
                    Spread::Rps => "RPS",
                    Spread::Rss => "RSS",
                };
                write!(
                    f,
                    "{spread} on {source} spreads frames over CPUs that then contend for the lock \
                     of {kind} on {ifname}; run: {}",
                    tc_line(ifname)
                )
            }
        }
    }
}

/// The command that takes the queue away.
pub fn tc_line(ifname: &str) -> String {
    format!("tc qdisc replace dev {ifname} root noqueue")
}

/// What to say about the uplink with this interface number. Empty if it has no queue, or if the
/// interface is gone.
pub fn uplink_advice(index: u32) -> Result<Vec<Advice>, NetlinkError> {
    advice_from(Path::new(SYSFS), index)
}

fn advice_from(sysfs: &Path, index: u32) -> Result<Vec<Advice>, NetlinkError> {
    let Some(link) = netlink::link_by_index(index)? else { return Ok(Vec::new()) };
    let mut advice = Vec::new();
    if !matches!(link.qdisc.as_str(), "noqueue" | "noop") {
        advice.push(Advice::Queues { ifname: link.name.clone(), kind: link.qdisc });
    }
    let mut names = vec![link.name];
    names.extend(neighbours(sysfs, &names[0]));
    let Some((source, spread)) = names.iter().find_map(|name| Some((name, spread(sysfs, name)?)))
    else {
        return Ok(advice);
    };
    for (i, ifname) in names.iter().enumerate() {
        if let Some(kind) = locking_kind(ifname, i == 0)? {
            let (ifname, source) = (ifname.clone(), source.clone());
            advice.push(Advice::LockedSpread { ifname, kind, source, spread });
        }
    }
    Ok(advice)
}

/// The locking queueing discipline of an interface, if it has one.
fn locking_kind(ifname: &str, children: bool) -> Result<Option<String>, NetlinkError> {
    let Some(link) = netlink::link_by_name(ifname)? else { return Ok(None) };
    let multi_queue = matches!(link.qdisc.as_str(), "mq" | "mqprio");
    if !(multi_queue && children) {
        return Ok(locks(&link.qdisc).then_some(link.qdisc));
    }
    Ok(locking_child(&netlink::qdiscs(link.index)?))
}

/// The first direct child of the root that locks.
fn locking_child(all: &[Qdisc]) -> Option<String> {
    let major = |number: u32| number >> 16;
    let root = all.iter().find(|qdisc| qdisc.parent == ROOT)?;
    let children = all
        .iter()
        .filter(|qdisc| qdisc.parent != ROOT && major(qdisc.parent) == major(root.handle));
    children.map(|qdisc| &qdisc.kind).find(|kind| locks(kind)).cloned()
}

/// Whether senders take a lock of this kind of queueing discipline.
fn locks(kind: &str) -> bool {
    !matches!(kind, "noqueue" | "noop" | "pfifo_fast" | "mq" | "mqprio")
}

/// The other ports of the bridge that `ifname` is in, at most [`ADVICE_MAX_NEIGHBOURS`].
fn neighbours(sysfs: &Path, ifname: &str) -> Vec<String> {
    let ports = sysfs.join(ifname).join("master/brif");
    names_in(&ports).filter(|name| name != ifname).take(ADVICE_MAX_NEIGHBOURS).collect()
}

/// What spreads frames received by `ifname`, if anything does.
fn spread(sysfs: &Path, ifname: &str) -> Option<Spread> {
    let interface = sysfs.join(ifname);
    let queues = interface.join("queues");
    let receive = names_in(&queues).filter(|name| name.starts_with("rx-"));
    let receive: Vec<_> = receive.take(ADVICE_MAX_RX_QUEUES).collect();
    let steered = |name: &String| {
        // Hexadecimal words with commas between; any digit but zero is a CPU.
        let mask = fs::read_to_string(queues.join(name).join("rps_cpus")).unwrap_or_default();
        mask.chars().any(|c| c.is_ascii_hexdigit() && c != '0')
    };
    if receive.iter().any(steered) {
        return Some(Spread::Rps);
    }
    // Only hardware has a device; the queues of a virtual interface are filled by whoever sends.
    (receive.len() > 1 && interface.join("device").exists()).then_some(Spread::Rss)
}

/// Names of a directory's entries; none if it cannot be read.
fn names_in(directory: &Path) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    use crate::frame::Offloads;
    use crate::sys::tap::{self, Missing, Tap};
    use crate::sys::testns;

    /// A directory that looks like `/sys/class/net`; removed on drop.
    struct Sysfs(PathBuf);

    impl Sysfs {
        fn new(test: &str) -> Sysfs {
            let name = format!("vioswitch-{test}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir_all(&path).unwrap();
            Sysfs(path)
        }

        /// An interface with receive queues that have these masks.
        fn interface(&self, ifname: &str, masks: &[&str]) -> PathBuf {
            let path = self.0.join(ifname);
            for (i, mask) in masks.iter().enumerate() {
                let queue = path.join(format!("queues/rx-{i}"));
                fs::create_dir_all(&queue).unwrap();
                fs::write(queue.join("rps_cpus"), mask).unwrap();
            }
            fs::create_dir_all(path.join("queues/tx-0")).unwrap();
            path
        }
    }

    impl Drop for Sysfs {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// A running TAP whose root queueing discipline is `kind`, or the default one.
    fn tap(name: &str, queues: u16, kind: Option<&str>) -> Tap {
        let tap = tap::open(name, queues, Offloads::NONE, Missing::Create).unwrap();
        netlink::set_up(tap.link.index).unwrap();
        if let Some(kind) = kind {
            netlink::set_root_qdisc(tap.link.index, kind).unwrap();
        }
        tap
    }

    fn queues(ifname: &str, kind: &str) -> Advice {
        Advice::Queues { ifname: ifname.into(), kind: kind.into() }
    }

    fn locked(ifname: &str, kind: &str, source: &str, spread: Spread) -> Advice {
        let (ifname, kind, source) = (ifname.into(), kind.into(), source.into());
        Advice::LockedSpread { ifname, kind, source, spread }
    }

    #[test]
    fn an_uplink_without_a_queue_needs_no_advice() {
        testns::run(|| {
            let sysfs = Sysfs::new("none");
            sysfs.interface("t0", &["ffffffff"]);
            let tap = tap("t0", 2, Some("noqueue"));
            assert_eq!(advice_from(&sysfs.0, tap.link.index).unwrap(), []);
            let index = tap.link.index;
            drop(tap);
            assert_eq!(advice_from(&sysfs.0, index).unwrap(), [], "gone");
        });
    }

    #[test]
    fn a_lock_alone_and_steering_alone_are_half_the_trouble() {
        testns::run(|| {
            let sysfs = Sysfs::new("half");
            sysfs.interface("t0", &["00000000,00000000\n"]);
            let locking = tap("t0", 1, Some("pfifo"));
            assert_eq!(advice_from(&sysfs.0, locking.link.index).unwrap(), [queues("t0", "pfifo")]);
            sysfs.interface("t1", &["0", "00000000,00000002\n"]);
            let lockless = tap("t1", 1, Some("pfifo_fast"));
            let expected = [queues("t1", "pfifo_fast")];
            assert_eq!(advice_from(&sysfs.0, lockless.link.index).unwrap(), expected);
        });
    }

    #[test]
    fn steering_that_meets_a_lock_is_told_with_the_command() {
        testns::run(|| {
            let sysfs = Sysfs::new("rps");
            sysfs.interface("t0", &["3"]);
            let tap = tap("t0", 1, Some("pfifo"));
            let advice = advice_from(&sysfs.0, tap.link.index).unwrap();
            let expected = [queues("t0", "pfifo"), locked("t0", "pfifo", "t0", Spread::Rps)];
            assert_eq!(advice, expected);
            for line in advice.iter().map(Advice::to_string) {
                assert!(line.ends_with("tc qdisc replace dev t0 root noqueue"), "{line}");
            }
        });
    }

    #[test]
    fn a_neighbour_in_the_bridge_spreads_for_the_uplink() {
        testns::run(|| {
            let sysfs = Sysfs::new("bridge");
            let uplink = sysfs.interface("t0", &["0"]);
            let nic = sysfs.interface("nic0", &["0", "0"]);
            fs::create_dir_all(nic.join("device")).unwrap();
            for port in ["t0", "nic0"] {
                fs::create_dir_all(uplink.join("master/brif").join(port)).unwrap();
            }
            let tap0 = tap("t0", 1, Some("pfifo"));
            // The neighbour's own lock counts as well.
            let _nic0 = tap("nic0", 1, Some("pfifo"));
            let expected = [
                queues("t0", "pfifo"),
                locked("t0", "pfifo", "nic0", Spread::Rss),
                locked("nic0", "pfifo", "nic0", Spread::Rss),
            ];
            assert_eq!(advice_from(&sysfs.0, tap0.link.index).unwrap(), expected);
        });
    }

    #[test]
    fn children_of_a_multi_queue_root_are_looked_at() {
        testns::run(|| {
            let sysfs = Sysfs::new("mq");
            sysfs.interface("t0", &["3"]);
            let tap = tap("t0", 2, None);
            let children = netlink::qdiscs(tap.link.index).unwrap();
            let default = children.iter().find(|q| q.parent != ROOT).unwrap().kind.clone();
            let mut expected = vec![queues("t0", "mq")];
            // Whatever this host's default is (net.core.default_qdisc).
            if locks(&default) {
                expected.push(locked("t0", &default, "t0", Spread::Rps));
            }
            assert_eq!(advice_from(&sysfs.0, tap.link.index).unwrap(), expected);
        });
        let qdisc = |kind: &str, handle, parent| Qdisc { kind: kind.into(), handle, parent };
        let mut all = vec![qdisc("mq", 0x8001_0000, ROOT), qdisc("pfifo_fast", 0, 0x8001_0001)];
        assert_eq!(locking_child(&all), None);
        // A grandchild is behind its parent's lock and says nothing; ingress is no sender's.
        all.push(qdisc("ingress", 0xffff_0000, 0xffff_fff1));
        assert_eq!(locking_child(&all), None);
        all.push(qdisc("fq_codel", 0, 0x8001_0002));
        assert_eq!(locking_child(&all).as_deref(), Some("fq_codel"));
    }

    #[test]
    fn the_real_sysfs_has_the_files_that_are_looked_for() {
        assert!(Path::new(SYSFS).join("lo/queues/rx-0/rps_cpus").exists());
        assert_eq!(neighbours(Path::new(SYSFS), "lo"), Vec::<String>::new());
        // Loopback on this host is not steered in any sane set-up, and has no device.
        assert_ne!(spread(Path::new(SYSFS), "lo"), Some(Spread::Rss));
    }
}
