//! Network namespaces for unit tests: an interface that a test makes ends with the test's thread.

use std::io::{self, Write};
#[cfg(test)]
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Runs `test` on a thread in a fresh network namespace, or [`skip`]s it where that is not
/// permitted.
pub fn run(test: impl FnOnce() + Send) {
    let entered = std::thread::scope(|scope| {
        let result = scope.spawn(|| {
            // SAFETY: affects only the calling thread, which was made for it.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                return Err(io::Error::last_os_error());
            }
            // With IPv6 the kernel would send frames by itself.
            for name in ["all", "default"] {
                let path = format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6");
                let _ = std::fs::write(path, "1");
            }
            test();
            Ok(())
        });
        result.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    if let Err(error) = entered {
        skip(&format!("needs root for a network namespace: {error}"));
    }
}

/// Reports that the test is skipped; fails the test if `VIOSWITCH_REQUIRE=1`.
pub fn skip(reason: &str) {
    let required = std::env::var_os("VIOSWITCH_REQUIRE").is_some_and(|value| value == "1");
    assert!(!required, "{reason}");
    let thread = std::thread::current();
    let line = format!("SKIPPED {}: {reason}\n", thread.name().unwrap_or("?"));
    // The test harness swallows the output of `eprintln` for a test that passes.
    let _ = io::stderr().write_all(line.as_bytes());
}

/// Runs `work` on a thread in this namespace that has dropped all capabilities.
#[cfg(test)]
pub(crate) fn without_privilege(work: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let result = scope.spawn(|| {
            let uid = 65_534u32;
            // Makes the system call directly: libc's setresuid changes all threads of the process.
            // SAFETY: affects only the calling thread, which was made for it.
            let result = unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) };
            assert_eq!(result, 0);
            work();
        });
        result.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// A packet socket, on the kernel's side of a TAP.
#[cfg(test)]
pub struct Packets(OwnedFd);

#[cfg(test)]
impl Packets {
    /// Opens a packet socket on the interface `index`, for frames of one EtherType only.
    pub(crate) fn open(index: u32, ethertype: u16) -> Packets {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let protocol = ethertype.to_be();
        // SAFETY: all-zero bytes are a valid sockaddr_ll; it lives across the call; `fd` is owned
        // by nobody else.
        unsafe {
            let fd = libc::socket(libc::AF_PACKET, kind, i32::from(protocol));
            assert!(fd >= 0, "{}", io::Error::last_os_error());
            let mut address: libc::sockaddr_ll = std::mem::zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = protocol;
            address.sll_ifindex = index as i32;
            let len = size_of_val(&address) as libc::socklen_t;
            assert_eq!(libc::bind(fd, (&raw const address).cast(), len), 0);
            Packets(OwnedFd::from_raw_fd(fd))
        }
    }

    /// Sends a frame.
    pub(crate) fn send(&self, frame: &[u8]) {
        let fd = self.0.as_raw_fd();
        // SAFETY: `frame` is readable for its length.
        let sent = unsafe { libc::send(fd, frame.as_ptr().cast(), frame.len(), 0) };
        assert_eq!(sent, frame.len() as isize, "{}", io::Error::last_os_error());
    }

    /// Returns the next frame from the interface, if there is one.
    pub(crate) fn receive(&self) -> Option<Vec<u8>> {
        let mut frame = vec![0; 70_000];
        // SAFETY: `frame` is writable for its length.
        let len =
            unsafe { libc::recv(self.0.as_raw_fd(), frame.as_mut_ptr().cast(), frame.len(), 0) };
        frame.truncate(usize::try_from(len).ok()?);
        Some(frame)
    }
}
