//! The system calls that the switch makes once it is ready, by name: the only source of the filter.
//! A test compares the lists with the table of the calls of each kind of thread
//! (`tests/process/system_calls.md`), and the table with a traced switch.
//!
//! The names are those of x86-64. A name that another architecture lacks has no number there, and
//! is left out; [`ELSEWHERE`] has the calls that replace it.

/// Calls of every switch.
pub const ALWAYS: &[&str] = &[
    // Data path, by frequency: the calls of each worker's turn.
    "read",
    "write",
    "writev",
    "epoll_wait",
    "futex",
    "sendto",
    "recvmsg",
    "recvfrom",
    "getsockopt",
    "sched_yield",
    "pread64",
    "preadv2",
    "poll",
    "ppoll",
    // Threads, memory, signals.
    "brk",
    "clock_gettime",
    "clock_nanosleep",
    "clone",
    "clone3",
    "exit",
    "exit_group",
    "getpid",
    "getrandom",
    "getrusage",
    "gettid",
    "madvise",
    "mmap",
    "mprotect",
    "mremap",
    "munmap",
    "prctl",
    "restart_syscall",
    "rseq",
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
    "sched_getaffinity",
    "sched_setaffinity",
    "set_robust_list",
    "sigaltstack",
    "tgkill",
    "timer_create",
    "timer_delete",
    "timer_settime",
    "uname",
    // Descriptors and files.
    "chmod",
    "chown",
    "close",
    "epoll_create1",
    "epoll_ctl",
    "eventfd2",
    "fallocate",
    "fchmodat",
    "fchownat",
    "fcntl",
    "flock",
    "fstat",
    "fstatfs",
    "fsync",
    "ftruncate",
    "getcwd",
    "getdents64",
    "getegid",
    "geteuid",
    "inotify_add_watch",
    "inotify_init1",
    "ioctl",
    "link",
    "linkat",
    "lseek",
    "memfd_create",
    "mkdir",
    "mkdirat",
    "newfstatat",
    "openat",
    "pipe2",
    "readlink",
    "readlinkat",
    "rename",
    "rmdir",
    "statx",
    "unlink",
    "unlinkat",
    // Sockets.
    "accept4",
    "bind",
    "connect",
    "getpeername",
    "listen",
    "sendmsg",
    "setsockopt",
    "shutdown",
    "socket",
    // A thread that the kernel held up while the other threads confined themselves makes these
    // calls later.
    "capset",
    "landlock_restrict_self",
];

/// Further calls of a switch that may have TAPs.
pub const TAP: &[&str] = &["io_uring_setup", "io_uring_register", "io_uring_enter"];

/// Further calls of a switch that may have XDP uplinks.
pub const XDP: &[&str] = &["bpf"];

/// Calls that other architectures and libcs make in place of calls in the lists above.
pub const ELSEWHERE: &[&str] = &[
    "epoll_pwait",
    "faccessat",
    "faccessat2",
    "fchmod",
    "fchmodat2",
    "fchown",
    "getgid",
    "getuid",
    "readv",
    "renameat",
    "renameat2",
];

/// Calls that only musl makes, in place of newer calls; `tkill` is for abort(3).
pub(crate) const MUSL: &[&str] = if cfg!(target_env = "musl") { &MUSL_CALLS } else { &[] };
const MUSL_CALLS: [&str; 4] = ["lstat", "open", "stat", "tkill"];

/// Calls that end the process: they start another program, load code, load kernel code, or read
/// other processes' memory. No code of the switch makes these calls, so a process that does was
/// taken over.
pub const FATAL: &[&str] = &[
    "bpf",
    "delete_module",
    "execve",
    "execveat",
    "finit_module",
    "init_module",
    "kexec_file_load",
    "kexec_load",
    "ptrace",
];
