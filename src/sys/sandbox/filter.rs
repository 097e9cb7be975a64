//! The filter of system calls (seccomp(2)): the allowed calls and arguments, and the handling of
//! others.
//!
//! The filter has three programs; the kernel takes the strictest result of the three:
//!
//! * The first kills the process for [`FATAL`] calls, and for memory that is made executable.
//! * The second returns ENOSYS from `clone3`, whose flags lie in memory that no filter can read:
//!   libcs then call `clone`, whose flags are in a register.
//! * The third allows the lists of `calls`, and raises SIGSYS for all other calls (`trap`).
//!
//! Calls of the data path are allowed with any arguments. The kernel (Linux 5.11) notes these calls
//! in a bitmap when a program is installed and runs no program for them, so the length and order of
//! the programs cost the data path nothing.

use std::collections::BTreeMap;
use std::str::FromStr;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, apply_filter_all_threads,
};
use syscalls::Sysno;

use super::allowed::Allowed;
use super::calls::{ALWAYS, ELSEWHERE, FATAL, MUSL, TAP, XDP};

/// Allowed commands of bpf(2): create a map, update a map, load a program, create a link.
const BPF_COMMANDS: [u64; 4] = [0, 2, 5, 28];
/// Flags for new namespaces; `CLONE_NEWTIME` has no bit in a `clone`.
const NAMESPACES: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32 as u64;
/// Set-user-ID and set-group-ID bits of a file's mode.
const SET_ID: u64 = (libc::S_ISUID | libc::S_ISGID) as u64;
/// The user or group number for "unchanged" in chown(2).
const SAME_OWNER: u64 = u32::MAX as u64;
/// `PR_SET_VMA`: newer libcs name their mappings.
const SET_VMA: u64 = 0x5356_4d41;

/// The rules of a program: call numbers, each with the arguments that match; a call without rules
/// matches with any arguments.
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// The compiled programs, in the order of installation.
pub struct Filter {
    programs: [BpfProgram; 3],
    allowed: usize,
}

impl Filter {
    /// Compiles the programs.
    pub(crate) fn new(allowed: &Allowed) -> Result<Filter, BackendError> {
        let (allow, trap) = (SeccompAction::Allow, SeccompAction::Trap);
        let nosys = SeccompAction::Errno(libc::ENOSYS as u32);
        let clone3 = numbers(&["clone3"]);
        let rules = rules(allowed)?;
        let count = rules.len();
        let programs = [
            compile(fatal_rules(allowed)?, allow.clone(), SeccompAction::KillProcess)?,
            compile(clone3, allow.clone(), nosys)?,
            // Installed last, because this program forbids the installation of others.
            compile(rules, trap, allow)?,
        ];
        Ok(Filter { programs, allowed: count })
    }

    /// Returns the number of allowed system calls on this architecture.
    pub(crate) fn allowed(&self) -> usize {
        self.allowed
    }

    /// Installs the programs in every thread of the process.
    pub(crate) fn install(&self) -> Result<(), seccompiler::Error> {
        self.programs.iter().try_for_each(|program| apply_filter_all_threads(program))
    }
}

fn compile(
    rules: Rules,
    otherwise: SeccompAction,
    matching: SeccompAction,
) -> Result<BpfProgram, BackendError> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    SeccompFilter::new(rules, otherwise, matching, arch)?.try_into()
}

/// Returns the names of the allowed calls, for all architectures.
pub fn names(allowed: &Allowed) -> impl Iterator<Item = &'static str> + use<> {
    let of = |list: &'static [&'static str], wanted: bool| list.iter().filter(move |_| wanted);
    let always = [ALWAYS, ELSEWHERE, MUSL].into_iter().flat_map(move |list| of(list, true));
    always.chain(of(TAP, allowed.taps)).chain(of(XDP, allowed.xdps)).copied()
}

/// Requests of ioctl(2) that affect another process: TIOCSTI, TIOCLINUX, FIOSETOWN, SIOCSPGRP and
/// FIOASYNC (asm-generic/ioctls.h, sockios.h). The type of libc's constants differs between libcs.
const IOCTLS_OF_OTHERS: [u64; 5] = [0x5412, 0x541c, 0x8901, 0x8902, 0x5452];

/// Allowed commands of fcntl(2); F_SETOWN and F_SETSIG are forbidden.
const FCNTLS: [libc::c_int; 11] = [
    libc::F_DUPFD,
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
    libc::F_SETLK,
    libc::F_OFD_SETLK,
    libc::F_ADD_SEALS,
    libc::F_GET_SEALS,
    libc::F_GETLK,
];

/// Returns rules for calls with any arguments.
fn numbers(names: &[&str]) -> Rules {
    let number = |name: &&str| Some((i64::from(Sysno::from_str(name).ok()?.id()), Vec::new()));
    names.iter().filter_map(number).collect()
}

/// Restricts a call, if it is in `rules`, to arguments that match one of the rules `to`.
fn narrow(rules: &mut Rules, name: &str, to: Vec<SeccompRule>) {
    for number in numbers(&[name]).into_keys() {
        if let Some(place) = rules.get_mut(&number) {
            place.clone_from(&to);
        }
    }
}

/// Returns a condition on the lower 32 bits of an argument: the kernel ignores the upper bits of an
/// `int`.
fn word(at: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(at, SeccompCmpArgLen::Dword, operator, value)
}

/// Returns a rule for each value that an argument may have.
fn one_of(at: u8, values: &[u64]) -> Result<Vec<SeccompRule>, BackendError> {
    let rule = |value: &u64| SeccompRule::new(vec![word(at, SeccompCmpOp::Eq, *value)?]);
    values.iter().map(rule).collect()
}

/// Returns a rule by which the bits of `mask` in an argument must equal `value`.
fn bits(at: u8, mask: u64, value: u64) -> Result<Vec<SeccompRule>, BackendError> {
    Ok(vec![SeccompRule::new(vec![word(at, SeccompCmpOp::MaskedEq(mask), value)?])?])
}

/// Returns the rules for allowed calls.
fn rules(allowed: &Allowed) -> Result<Rules, BackendError> {
    let mut rules = numbers(&names(allowed).collect::<Vec<_>>());
    let mut families = vec![libc::AF_UNIX, libc::AF_NETLINK];
    families.extend(allowed.xdps.then_some([libc::AF_XDP, libc::AF_PACKET]).into_iter().flatten());
    families.extend(allowed.tcp.map(|_| [libc::AF_INET, libc::AF_INET6]).into_iter().flatten());
    let families: Vec<u64> = families.into_iter().map(|family| family as u64).collect();
    narrow(&mut rules, "socket", one_of(0, &families)?);
    // `clone` may make threads, but no processes or namespaces.
    let thread = libc::CLONE_THREAD as u64;
    narrow(&mut rules, "clone", bits(0, thread | NAMESPACES, thread)?);
    // The process may signal its own threads only. tkill(2) reaches threads of any process, so it
    // may send SIGABRT only.
    narrow(&mut rules, "tgkill", one_of(0, &[std::process::id().into()])?);
    narrow(&mut rules, "tkill", one_of(1, &[libc::SIGABRT as u64])?);
    let options = [libc::PR_SET_NAME, libc::PR_GET_NAME, libc::PR_SET_NO_NEW_PRIVS];
    let options = options.map(|option| option as u64);
    narrow(&mut rules, "prctl", one_of(0, &[&options[..], &[SET_VMA]].concat())?);
    // No ioctl that types on the terminal of the switch's parent, and none that has the kernel
    // signal another process when a descriptor is ready.
    let not = |request: &u64| word(1, SeccompCmpOp::Ne, *request);
    let others = IOCTLS_OF_OTHERS.iter().map(not).collect::<Result<_, _>>()?;
    narrow(&mut rules, "ioctl", vec![SeccompRule::new(others)?]);
    let commands = FCNTLS.map(|command| command as u64);
    narrow(&mut rules, "fcntl", one_of(1, &commands)?);
    narrow(&mut rules, "bpf", one_of(0, &BPF_COMMANDS)?);
    narrow_files(&mut rules)?;
    Ok(rules)
}

/// Restricts modes and owners of files, which Landlock does not cover: the switch can make no
/// program set-user-ID or set-group-ID, and can change no owner.
fn narrow_files(rules: &mut Rules) -> Result<(), BackendError> {
    for (name, mode) in [("fchmod", 1), ("chmod", 1), ("fchmodat", 2), ("fchmodat2", 2)] {
        narrow(rules, name, bits(mode, SET_ID, 0)?);
    }
    for (name, owner) in [("fchown", 1), ("chown", 1), ("fchownat", 2)] {
        narrow(rules, name, one_of(owner, &[SAME_OWNER])?);
    }
    // The mode counts only if a file is made, and may be anything otherwise.
    let makes = (libc::O_CREAT | libc::O_TMPFILE & !libc::O_DIRECTORY) as u64;
    for (name, flags) in [("open", 1), ("openat", 2)] {
        narrow(rules, name, [bits(flags, makes, 0)?, bits(flags + 1, SET_ID, 0)?].concat());
    }
    Ok(())
}

/// Returns the rules for calls that kill the process.
fn fatal_rules(allowed: &Allowed) -> Result<Rules, BackendError> {
    let mut rules = numbers(FATAL);
    if allowed.xdps {
        let not = |command: &u64| word(0, SeccompCmpOp::Ne, *command);
        let others = BPF_COMMANDS.iter().map(not).collect::<Result<_, _>>()?;
        narrow(&mut rules, "bpf", vec![SeccompRule::new(others)?]);
    }
    let executable = libc::PROT_EXEC as u64;
    for name in ["mmap", "mprotect", "pkey_mprotect"] {
        for number in numbers(&[name]).into_keys() {
            rules.insert(number, bits(2, executable, executable)?);
        }
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_of_the_lists_has_a_number_and_both_architectures_a_filter() {
        if cfg!(target_arch = "x86_64") {
            for name in [ALWAYS, MUSL, TAP, XDP, FATAL].concat() {
                assert!(Sysno::from_str(name).is_ok(), "{name}");
            }
        }
        let allowed = Allowed { taps: true, xdps: true, ..Allowed::default() };
        for arch in [TargetArch::x86_64, TargetArch::aarch64] {
            let (trap, allow) = (SeccompAction::Trap, SeccompAction::Allow);
            let filter = SeccompFilter::new(rules(&allowed).unwrap(), trap, allow, arch).unwrap();
            let program: BpfProgram = filter.try_into().unwrap();
            assert!(program.len() > ALWAYS.len());
        }
    }

    #[test]
    fn what_a_switch_cannot_have_is_not_allowed() {
        let has = |allowed: &Allowed, name| names(allowed).any(|one| one == name);
        let none = Allowed::default();
        assert!(!has(&none, "bpf") && !has(&none, "io_uring_setup") && has(&none, "read"));
        let taps = Allowed { taps: true, ..none.clone() };
        assert!(has(&taps, "io_uring_setup") && !has(&taps, "bpf"));
        assert!(has(&Allowed { xdps: true, ..none }, "bpf"));
        let all = [ALWAYS, TAP, XDP, ELSEWHERE, MUSL].concat();
        let different = all.iter().collect::<std::collections::BTreeSet<_>>().len();
        assert_eq!(different, all.len(), "a call is listed twice");
    }
}
