//! Selects the capabilities that a switch keeps: those for resources that may still be opened. All
//! others are dropped, also for root.

use std::io;

use rustix::thread::{CapabilitySet, capabilities};

use super::allowed::Allowed;

/// TCP ports below this number need CAP_NET_BIND_SERVICE.
const PRIVILEGED_PORTS: u16 = 1024;

const NAMES: &[(CapabilitySet, &str)] = &[
    (CapabilitySet::NET_ADMIN, "net_admin"),
    (CapabilitySet::NET_RAW, "net_raw"),
    (CapabilitySet::BPF, "bpf"),
    (CapabilitySet::IPC_LOCK, "ipc_lock"),
    (CapabilitySet::DAC_OVERRIDE, "dac_override"),
    (CapabilitySet::CHOWN, "chown"),
    (CapabilitySet::FOWNER, "fowner"),
    (CapabilitySet::NET_BIND_SERVICE, "net_bind_service"),
];

/// Returns the permitted capabilities of the process.
pub fn held() -> io::Result<CapabilitySet> {
    Ok(capabilities(None)?.permitted)
}

/// Returns the capabilities that a switch needs.
pub fn wanted(allowed: &Allowed) -> CapabilitySet {
    // With `IPC_LOCK` the memory of a ring or an XDP socket does not count against RLIMIT_MEMLOCK.
    let taps = CapabilitySet::NET_ADMIN | CapabilitySet::IPC_LOCK;
    let low = allowed.tcp.is_some_and(|port| port < PRIVILEGED_PORTS);
    let all = [
        (allowed.taps, taps),
        (allowed.xdps, taps | CapabilitySet::NET_RAW | CapabilitySet::BPF),
        (allowed.connects, CapabilitySet::DAC_OVERRIDE),
        (allowed.groups, CapabilitySet::CHOWN | CapabilitySet::FOWNER),
        (low, CapabilitySet::NET_BIND_SERVICE),
    ];
    let wanted = all.into_iter().filter(|(is_wanted, _)| *is_wanted);
    wanted.fold(CapabilitySet::empty(), |set, (_, more)| set | more)
}

/// Returns the names of the capabilities in a set that a switch may keep.
pub fn names(set: CapabilitySet) -> Vec<&'static str> {
    NAMES.iter().filter(|(one, _)| set.contains(*one)).map(|(_, name)| *name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_keeps_what_it_may_need() {
        let names = |allowed: &Allowed| names(wanted(allowed));
        let none = Allowed::default();
        assert_eq!(names(&none), [""; 0]);
        let taps = Allowed { taps: true, ..none.clone() };
        assert_eq!(names(&taps), ["net_admin", "ipc_lock"]);
        let xdps = Allowed { xdps: true, ..none.clone() };
        assert_eq!(names(&xdps), ["net_admin", "net_raw", "bpf", "ipc_lock"]);
        let sockets = Allowed { connects: true, groups: true, tcp: Some(9434), ..none.clone() };
        assert_eq!(names(&sockets), ["dac_override", "chown", "fowner"]);
        assert_eq!(names(&Allowed { tcp: Some(80), ..none }), ["net_bind_service"]);
    }
}
