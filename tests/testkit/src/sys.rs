//! The few system calls the test front-end needs and std has no word for: eventfd, memfd, poll,
//! and one message with descriptors over a UNIX socket. Safe wrappers over `libc`; every wait has
//! a limit, so that a broken daemon fails a test and never hangs it.

use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// `Ok(value)` of a call that answers -1 on error.
fn cvt(ret: libc::c_int) -> io::Result<libc::c_int> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

/// A non-blocking eventfd, as a VMM makes them for kicks and calls.
pub struct EventFd(OwnedFd);

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl EventFd {
    pub fn new() -> EventFd {
        EventFd::with_flags(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)
    }

    /// With chosen flags: a hostile front-end hands out blocking ones.
    pub fn with_flags(flags: libc::c_int) -> EventFd {
        // SAFETY: plain system call, no memory involved.
        let fd = cvt(unsafe { libc::eventfd(0, flags) }).expect("eventfd");
        // SAFETY: the descriptor is new and nobody else owns it.
        EventFd(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Adds `n` to the counter. An EAGAIN (counter full) is as good as signalled.
    pub fn write(&self, n: u64) {
        let bytes = n.to_ne_bytes();
        // SAFETY: the buffer is 8 readable bytes.
        let ret = unsafe { libc::write(self.raw(), bytes.as_ptr().cast(), 8) };
        if ret < 0 {
            let e = io::Error::last_os_error();
            assert_eq!(e.kind(), io::ErrorKind::WouldBlock, "eventfd write: {e}");
        }
    }

    /// The counter, set back to 0; 0 if nobody signalled.
    pub fn take(&self) -> u64 {
        let mut bytes = [0u8; 8];
        // SAFETY: the buffer is 8 writable bytes.
        let ret = unsafe { libc::read(self.raw(), bytes.as_mut_ptr().cast(), 8) };
        if ret == 8 { u64::from_ne_bytes(bytes) } else { 0 }
    }

    /// Waits until signalled and clears it; false if the time is over.
    pub fn wait(&self, timeout: Duration) -> bool {
        poll_in(&[self.raw()], timeout) && self.take() > 0
    }

    pub fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub fn into_fd(self) -> OwnedFd {
        self.0
    }
}

/// Watchers of an eventfd, all of which are woken by each write to it.
pub struct Crowd(Vec<OwnedFd>);

impl Crowd {
    /// So many. An epoll set watches a description once for each number it has; a number that was
    /// closed goes on counting while the description lives.
    pub fn around(fd: &EventFd, count: usize) -> Crowd {
        Crowd::around_any(fd.raw(), count)
    }

    /// The same of any descriptor.
    pub fn around_any(fd: RawFd, count: usize) -> Crowd {
        Crowd::with(fd, count, libc::EPOLLIN as u32)
    }

    /// So many that a write wakes only if nobody before them waits ([`Gate`]).
    pub fn behind(_gate: &Gate, fd: &EventFd, count: usize) -> Crowd {
        Crowd::with(fd.raw(), count, (libc::EPOLLIN | libc::EPOLLEXCLUSIVE) as u32)
    }

    fn with(fd: RawFd, count: usize, events: u32) -> Crowd {
        const EACH: usize = 10_000;
        raise_nofile();
        let sets = (0..count.div_ceil(EACH)).map(|i| {
            // SAFETY: plain system call, no memory involved.
            let set = cvt(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }).expect("epoll");
            let mut event = libc::epoll_event { events, u64: 0 };
            let mut number = 5_000;
            for _ in 0..EACH.min(count - i * EACH) {
                // SAFETY: the number is the first from there on that nobody uses, and given back;
                // `event` is readable.
                unsafe {
                    number = cvt(libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, number)).expect("dup");
                    cvt(libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, number, &mut event))
                        .expect("epoll_ctl");
                    libc::close(number);
                }
                number += 1;
            }
            // SAFETY: the descriptor is new and nobody else owns it.
            unsafe { OwnedFd::from_raw_fd(set) }
        });
        Crowd(sets.collect())
    }

    /// As many as make a write last so long, and how long it then is.
    pub fn slowing(fd: &EventFd, wanted: Duration) -> (Crowd, Duration) {
        const STEP: usize = 250;
        let write = || {
            let begun = Instant::now();
            fd.write(1);
            begun.elapsed()
        };
        let mut crowd = Crowd(Vec::new());
        loop {
            crowd.join(Crowd::around(fd, STEP));
            let mut took: Vec<_> = (0..15).map(|_| write()).collect();
            took.sort();
            if took[7] >= wanted {
                return (crowd, took[7]);
            }
        }
    }

    /// More of them.
    pub fn join(&mut self, more: Crowd) {
        self.0.extend(more.0);
    }
}

/// The first of an eventfd's exclusive watchers: while somebody waits there, a write wakes nobody
/// of a crowd behind it.
pub struct Gate(OwnedFd);

impl Gate {
    pub fn before(fd: &EventFd) -> Gate {
        let events = (libc::EPOLLIN | libc::EPOLLEXCLUSIVE) as u32;
        let mut event = libc::epoll_event { events, u64: 0 };
        // SAFETY: plain system calls; `event` is readable.
        unsafe {
            let set = cvt(libc::epoll_create1(libc::EPOLL_CLOEXEC)).expect("epoll");
            cvt(libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd.raw(), &mut event)).expect("watch");
            // The descriptor is new and nobody else owns it.
            Gate(OwnedFd::from_raw_fd(set))
        }
    }

    /// Waits for a write; false if the time is over.
    pub fn wait(&self, timeout: Duration) -> bool {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        let millis = timeout.as_millis() as libc::c_int;
        // SAFETY: room for one event, as said.
        unsafe { libc::epoll_wait(self.0.as_raw_fd(), &mut event, 1, millis) == 1 }
    }
}

/// Signals an eventfd of which only the number is at hand.
pub fn signal_raw(fd: RawFd) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: the buffer is 8 readable bytes.
    unsafe { libc::write(fd, one.as_ptr().cast(), 8) };
}

/// Waits until one of the descriptors is readable (or hung up); false if the time is over.
pub fn poll_in(fds: &[RawFd], timeout: Duration) -> bool {
    let mut set: Vec<libc::pollfd> =
        fds.iter().map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    poll_set(&mut set, timeout)
}

/// The same over a set the caller keeps, so that a loop does not allocate.
pub fn poll_set(set: &mut [libc::pollfd], timeout: Duration) -> bool {
    let end = Instant::now() + timeout;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let ts = libc::timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos() as libc::c_long,
        };
        // SAFETY: `set` is a valid slice of pollfd, `ts` outlives the call, no signal mask.
        let ret = unsafe {
            libc::ppoll(set.as_mut_ptr(), set.len() as libc::nfds_t, &ts, std::ptr::null())
        };
        match cvt(ret) {
            Ok(n) => return n > 0,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => panic!("ppoll: {e}"),
        }
    }
}

/// An anonymous file of `len` bytes: guest memory, or a dirty log.
pub fn memfd(len: u64) -> OwnedFd {
    // SAFETY: the name is a NUL-terminated literal.
    let fd = cvt(unsafe { libc::memfd_create(c"test-guest".as_ptr(), libc::MFD_CLOEXEC) });
    // SAFETY: the descriptor is new and nobody else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd.expect("memfd_create")) };
    truncate(&fd, len);
    fd
}

/// The same of huge pages of 2 MiB; `Err` if the kernel has none.
pub fn huge_memfd(len: u64) -> std::io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_HUGETLB | libc::MFD_HUGE_2MB;
    // SAFETY: the name is a NUL-terminated literal.
    let fd = cvt(unsafe { libc::memfd_create(c"test-guest".as_ptr(), flags) })?;
    // SAFETY: the descriptor is new and nobody else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    truncate(&fd, len);
    Ok(fd)
}

/// Sets a file's length: a hostile front-end shrinks its memory under the daemon.
pub fn truncate(fd: &impl AsRawFd, len: u64) {
    // SAFETY: plain system call, no memory involved.
    cvt(unsafe { libc::ftruncate(fd.as_raw_fd(), len as libc::off_t) }).expect("ftruncate");
}

/// Takes pages away from a file, which keeps its length.
pub fn punch_hole(fd: RawFd, offset: u64, len: u64) {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: plain system call, no memory involved.
    let ret = unsafe { libc::fallocate(fd, mode, offset as libc::off_t, len as libc::off_t) };
    cvt(ret).expect("fallocate");
}

/// Gives all pages to the first `len` bytes of a file.
pub fn populate(fd: RawFd, len: u64) {
    // SAFETY: plain system call, no memory involved.
    cvt(unsafe { libc::fallocate(fd, 0, 0, len as libc::off_t) }).expect("fallocate");
}

/// Maps `len` bytes of a file shared and writable.
pub fn map_shared(fd: &impl AsRawFd, offset: u64, len: u64) -> *mut u8 {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let off = offset as libc::off_t;
    // SAFETY: a new mapping at an address the kernel chooses overlaps nothing of ours.
    let p = unsafe {
        libc::mmap(std::ptr::null_mut(), len as usize, prot, libc::MAP_SHARED, fd.as_raw_fd(), off)
    };
    assert_ne!(p, libc::MAP_FAILED, "mmap: {}", io::Error::last_os_error());
    p.cast()
}

/// Ends a mapping made by [`map_shared`].
///
/// # Safety
/// Nothing may use the range any more.
pub unsafe fn unmap(host: *mut u8, len: u64) {
    // SAFETY: the caller gives back a whole mapping that nobody uses.
    unsafe { libc::munmap(host.cast(), len as usize) };
}

/// Sends `data` and `fds` in one message; answers how many bytes left.
pub fn send_with_fds(sock: RawFd, data: &[u8], fds: &[RawFd]) -> io::Result<usize> {
    send_flagged(sock, data, fds, 0)
}

/// The same with further flags of sendmsg(2).
pub fn send_flagged(
    sock: RawFd,
    data: &[u8],
    fds: &[RawFd],
    flags: libc::c_int,
) -> io::Result<usize> {
    let mut iov = libc::iovec { iov_base: data.as_ptr() as *mut _, iov_len: data.len() };
    let fd_bytes = std::mem::size_of_val(fds);
    // SAFETY: CMSG_SPACE only computes.
    let space = unsafe { libc::CMSG_SPACE(fd_bytes as u32) } as usize;
    // u64 elements give the control buffer the alignment of cmsghdr.
    let mut control = vec![0u64; space.div_ceil(8)];
    // SAFETY: msghdr is plain data, all zero is its empty value.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = &mut iov;
    msg.msg_iovlen = 1;
    if !fds.is_empty() {
        msg.msg_control = control.as_mut_ptr().cast();
        msg.msg_controllen = space as _;
        // SAFETY: the control buffer holds one header plus `fd_bytes`, by CMSG_SPACE.
        unsafe {
            let c = libc::CMSG_FIRSTHDR(&msg);
            (*c).cmsg_level = libc::SOL_SOCKET;
            (*c).cmsg_type = libc::SCM_RIGHTS;
            (*c).cmsg_len = libc::CMSG_LEN(fd_bytes as u32) as _;
            std::ptr::copy_nonoverlapping(fds.as_ptr().cast(), libc::CMSG_DATA(c), fd_bytes);
        }
    }
    // SAFETY: `msg` points to live buffers of the lengths given.
    let n = unsafe { libc::sendmsg(sock, &msg, libc::MSG_NOSIGNAL | flags) };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) }
}

/// True if a file lives in memory.
pub fn on_tmpfs(fd: &impl AsRawFd) -> bool {
    // SAFETY: statfs is plain data; the kernel fills it in.
    let mut fs: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `fs` is writable and of the right type.
    cvt(unsafe { libc::fstatfs(fd.as_raw_fd(), &mut fs) }).expect("fstatfs");
    fs.f_type == libc::TMPFS_MAGIC as _
}

/// The CPUs this thread may run on.
pub fn cpus() -> Vec<usize> {
    // SAFETY: a CPU set is plain data, all zero is the empty one.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is writable and of the length given.
    let ret = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) };
    cvt(ret).expect("sched_getaffinity");
    // SAFETY: the index stays below the size of the set.
    (0..libc::CPU_SETSIZE as usize).filter(|&i| unsafe { libc::CPU_ISSET(i, &set) }).collect()
}

/// Binds a thread (0: this one) to some CPUs.
pub fn pin(thread: libc::pid_t, cpus: &[usize]) {
    // SAFETY: a CPU set is plain data, all zero is the empty one.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the numbers came from `cpus` and lie in the set.
    cpus.iter().for_each(|&cpu| unsafe { libc::CPU_SET(cpu, &mut set) });
    // SAFETY: `set` is readable and of the length given.
    cvt(unsafe { libc::sched_setaffinity(thread, size_of_val(&set), &set) }).expect("affinity");
}

/// CPU time that a process has used so far, to the moment (clock_getcpuclockid(3)).
pub fn cpu_time(pid: u32) -> Duration {
    let mut clock = 0;
    // SAFETY: both are writable and of the right type.
    let found = unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &mut clock) };
    assert_eq!(found, 0, "no CPU clock of process {pid}");
    clock_time(clock)
}

/// CPU time of this thread.
pub fn own_cpu_time() -> Duration {
    clock_time(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn clock_time(clock: libc::clockid_t) -> Duration {
    // SAFETY: timespec is plain data; the kernel fills it in.
    let mut ts: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: `ts` is writable and of the right type.
    cvt(unsafe { libc::clock_gettime(clock, &mut ts) }).expect("clock_gettime");
    Duration::new(ts.tv_sec as u64, ts.tv_nsec as u32)
}

/// True if every thread of a process has been stopped by a signal.
pub fn stands_still(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    threads.flatten().all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    })
}

/// From now on the calling thread, and what it starts, find no `SO_PASSRIGHTS`: as on a kernel
/// before 6.16, which lets anybody send descriptors to any socket. Needs root.
pub fn forget_passrights() {
    const SO_PASSRIGHTS: u32 = 83;
    let step = |code: u32, k: u32, jf: u8| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let (load, equal) = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, libc::BPF_JMP | libc::BPF_JEQ);
    let number = std::mem::offset_of!(libc::seccomp_data, nr) as u32;
    // Of the third argument; its lower half where the bytes of a number begin with it.
    let option = std::mem::offset_of!(libc::seccomp_data, args) as u32 + 16;
    let option = option + if cfg!(target_endian = "big") { 4 } else { 0 };
    let mut program = [
        step(load, number, 0),
        step(equal | libc::BPF_K, libc::SYS_setsockopt as u32, 3),
        step(load, option, 0),
        step(equal | libc::BPF_K, SO_PASSRIGHTS, 1),
        step(libc::BPF_RET, libc::SECCOMP_RET_ERRNO | libc::ENOPROTOOPT as u32, 0),
        step(libc::BPF_RET, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: `program` and what it points to live across the call, which copies both.
    let done = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program)
    };
    cvt(done as libc::c_int).expect("seccomp");
}

/// Sends a signal to one process.
pub fn kill(pid: u32, signal: libc::c_int) -> bool {
    // SAFETY: plain system call, no memory involved.
    unsafe { libc::kill(pid as libc::pid_t, signal) == 0 }
}

/// Gives this process so many bytes of command line, of words of one letter. Any process may do so
/// where the kernel can restore processes.
pub fn lengthen_command_line(bytes: usize) {
    let words: &'static mut [u8] = Box::leak(b"a\0".repeat(bytes / 2).into_boxed_slice());
    let range = words.as_ptr_range();
    let stat = std::fs::read_to_string("/proc/self/stat").expect("stat");
    let (_, rest) = stat.rsplit_once(") ").expect("a name");
    let fields: Vec<u64> = rest.split(' ').map(|word| word.trim().parse().unwrap_or(0)).collect();
    // proc(5) counts from one, and with the two fields before.
    let field = |number: usize| fields[number - 3];
    // SAFETY: changes nothing.
    let brk = unsafe { libc::sbrk(0) } as u64;
    // No auxiliary vector of its own, and the program as it is.
    let (auxv, sizes) = (0, u64::from(u32::MAX) << 32);
    // struct prctl_mm_map, as the kernel's headers have it for 64 bits and little-endian.
    let [code, data, heap] = [[26, 27], [45, 46], [47, 0]].map(|pair| {
        pair.map(|at| match at {
            0 => brk,
            at => field(at),
        })
    });
    let words = [range.start as u64, range.end as u64];
    let ends = [auxv, sizes];
    let rest = [field(50), field(51)];
    let map = [&code[..], &data, &heap, &[field(28)], &words, &rest, &ends].concat();
    // SAFETY: the array is of the length given; what it names is mapped and stays so.
    let set = unsafe {
        libc::prctl(libc::PR_SET_MM, libc::PR_SET_MM_MAP, map.as_ptr(), size_of_val(&map[..]), 0)
    };
    cvt(set).expect("prctl(PR_SET_MM_MAP)");
}

/// True if `needle` occurs in `hay` (`memmem`: tests scan whole guest memories for it).
pub fn contains(hay: &[u8], needle: &[u8]) -> bool {
    // SAFETY: both slices are valid for their lengths.
    let p = unsafe {
        libc::memmem(hay.as_ptr().cast(), hay.len(), needle.as_ptr().cast(), needle.len())
    };
    !p.is_null()
}

/// Takes an eventfd's counter, of which only the number is at hand; never waits.
pub fn drain_raw(fd: RawFd) {
    let mut count = 0u64;
    let iov = libc::iovec { iov_base: (&raw mut count).cast(), iov_len: 8 };
    // SAFETY: the vector describes 8 writable bytes.
    unsafe { libc::preadv2(fd, &iov, 1, -1, libc::RWF_NOWAIT) };
}

/// Takes `O_NONBLOCK` away from everybody who holds the same description.
pub fn set_blocking(fd: &impl AsFd) {
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: the calls touch no memory.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(fd, libc::F_SETFL, flags & !libc::O_NONBLOCK);
    }
}

/// A descriptor made by a system call that returns one.
pub fn made(fd: libc::c_int) -> OwnedFd {
    let fd = cvt(fd).expect("a descriptor");
    // SAFETY: the callers hand over a descriptor that is new and nobody else's.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Lets this process open as many descriptors as it may.
pub fn raise_nofile() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is live and writable, then readable, across the calls.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
    }
}

/// A TCP socket whose last close waits for ten minutes: what was sent is never read (SO_LINGER).
/// The other end has to be kept.
pub fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    // Small ones, as there may be hundreds.
    let small: libc::c_int = 4096;
    set(listener.as_raw_fd(), libc::SO_RCVBUF, &small);
    let mut near = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let (far, _) = listener.accept().expect("accept");
    set(near.as_raw_fd(), libc::SO_SNDBUF, &small);
    near.set_nonblocking(true).expect("nonblocking");
    while near.write(&[0; 65536]).is_ok() {}
    let linger = libc::linger { l_onoff: 1, l_linger: 600 };
    set(near.as_raw_fd(), libc::SO_LINGER, &linger);
    (near.into(), far)
}

/// Sets an option of a socket; `T` is what the kernel reads.
fn set<T>(socket: RawFd, option: libc::c_int, value: &T) {
    let len = size_of::<T>() as libc::socklen_t;
    let from = std::ptr::from_ref(value).cast();
    // SAFETY: `from` points to `len` readable bytes.
    let done = unsafe { libc::setsockopt(socket, libc::SOL_SOCKET, option, from, len) };
    assert_eq!(done, 0, "setsockopt: {}", io::Error::last_os_error());
}

/// A TCP socket that is not connected yet has segments of so many bytes at most, whatever the
/// interface would carry; the kernel keeps so many of them.
pub fn limit_segments(socket: &impl AsRawFd, bytes: libc::c_int) {
    let (level, option) = (libc::IPPROTO_TCP, libc::TCP_MAXSEG);
    let len = size_of_val(&bytes) as libc::socklen_t;
    let from = (&raw const bytes).cast();
    // SAFETY: `from` points to a live value of `len` bytes.
    cvt(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, from, len) }).expect("MSS");
}
