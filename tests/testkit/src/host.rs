//! The host's side of a TAP: a network namespace of the test's own, `ip` run in it, and a packet
//! socket that sends and receives whole frames on an interface.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::proc::wait_for;
use crate::{skip, sys};

/// A packet socket's receive buffer: a window of frames of 9 KiB with the kernel's overhead.
const BUFFER_BYTES: libc::c_int = 8 << 20;
/// A frame with an IP packet of 64 KiB and the header before it.
const FRAME_ROOM: usize = 65_557 + HEADER_LEN;
/// Bytes of the virtio-net header before each frame, if there is one.
pub const HEADER_LEN: usize = 10;

/// Runs `test` on a thread in a fresh network namespace, which its children inherit and which
/// ends with them. Where that is not permitted the test is skipped, or fails if
/// `VIOSWITCH_REQUIRE=1`.
pub fn in_namespace(test: impl FnOnce() + Send) {
    let missing = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if !std::path::Path::new("/dev/net/tun").exists() {
                return Some("/dev/net/tun is missing (modprobe tun)".to_owned());
            }
            if let Err(error) = Command::new("ip").arg("-V").stdout(Stdio::null()).status() {
                return Some(format!("needs ip (iproute2): {error}"));
            }
            // SAFETY: affects only the calling thread, which was made for it.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                let error = io::Error::last_os_error();
                return Some(format!("needs root for a network namespace: {error}"));
            }
            // Else the kernel would add frames of its own.
            for name in ["all", "default"] {
                let path = format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6");
                let _ = std::fs::write(path, "1");
            }
            test();
            None
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    if let Some(reason) = missing {
        skip(&reason);
    }
}

/// `ip` with these words; panics with its complaint if it fails.
pub fn ip(words: &str) -> String {
    let output = Command::new("ip").args(words.split_whitespace()).output().expect("run ip");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {words}: {complaint}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Sets both ends of a veth pair up. Returns when frames pass: the kernel activates an end some
/// time after it has a carrier, and drops what it is to send until then without an error.
pub fn veth_up(ends: [&str; 2]) {
    ends.iter().for_each(|end| drop(ip(&format!("link set {end} up"))));
    let is_up = |end: &&str| ip(&format!("link show {end}")).contains("state UP");
    let up = wait_for(Duration::from_secs(10), || ends.iter().all(is_up));
    assert!(up, "no carrier: {}", ip("link show"));
}

/// The number of an interface; none if there is no such interface.
pub fn index_of(ifname: &str) -> Option<u32> {
    let name = CString::new(ifname).expect("name");
    // SAFETY: the name is NUL-terminated and outlives the call.
    Some(unsafe { libc::if_nametoindex(name.as_ptr()) }).filter(|&index| index > 0)
}

/// All frames of one interface, from the host's side.
pub struct Host {
    socket: OwnedFd,
    index: u32,
}

impl Host {
    pub fn open(ifname: &str) -> Host {
        Host::open_as(ifname, false)
    }

    /// With a virtio-net header (`PACKET_VNET_HDR`) before each frame sent and received: packets
    /// whose checksum or segmentation is left to somebody else stay as they are.
    pub fn open_with_headers(ifname: &str) -> Host {
        Host::open_as(ifname, true)
    }

    fn open_as(ifname: &str, headers: bool) -> Host {
        let index = index_of(ifname).unwrap_or_else(|| panic!("no interface {ifname}"));
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let protocol = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: no memory is involved; the descriptor is owned by nobody else.
        let socket = unsafe {
            // Without a protocol, so that nothing of other interfaces comes before the bind.
            let fd = libc::socket(libc::AF_PACKET, kind, 0);
            assert!(fd >= 0, "packet socket: {}", io::Error::last_os_error());
            OwnedFd::from_raw_fd(fd)
        };
        let set = |level, option, value: libc::c_int| {
            let len = size_of_val(&value) as libc::socklen_t;
            let at = (&raw const value).cast();
            // SAFETY: `at` points to a live value of `len` bytes.
            let done = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, at, len) };
            assert_eq!(done, 0, "option {option}: {}", io::Error::last_os_error());
        };
        set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, BUFFER_BYTES);
        set(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1);
        set(libc::SOL_PACKET, libc::PACKET_AUXDATA, 1);
        if headers {
            set(libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1);
        }
        // SAFETY: all-zero bytes are a valid sockaddr_ll, which lives across the call.
        unsafe {
            let mut address: libc::sockaddr_ll = std::mem::zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = protocol;
            address.sll_ifindex = index as i32;
            let len = size_of_val(&address) as libc::socklen_t;
            let bound = libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len);
            assert_eq!(bound, 0, "bind: {}", io::Error::last_os_error());
        }
        Host { socket, index }
    }

    /// The interface's number.
    pub fn index(&self) -> u32 {
        self.index
    }

    pub fn try_send(&self, frame: &[u8]) -> io::Result<()> {
        let fd = self.socket.as_raw_fd();
        // SAFETY: `frame` is readable for its length.
        let sent = unsafe { libc::send(fd, frame.as_ptr().cast(), frame.len(), 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    pub fn send(&self, frame: &[u8]) {
        if let Err(error) = self.try_send(frame) {
            panic!("host: {} bytes: {error}", frame.len());
        }
    }

    /// The next frame that came in through the interface; none if there is none within `limit`.
    pub fn receive(&self, limit: Duration) -> Option<Vec<u8>> {
        let fd = self.socket.as_raw_fd();
        let mut frame = vec![0; FRAME_ROOM];
        loop {
            // SAFETY: `frame` is writable for its length.
            let len = unsafe { libc::recv(fd, frame.as_mut_ptr().cast(), frame.len(), 0) };
            if let Ok(len) = usize::try_from(len) {
                frame.truncate(len);
                return Some(frame);
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EAGAIN) if sys::poll_in(&[fd], limit) => {}
                Some(libc::EAGAIN) => return None,
                // Told once when the interface goes down or away.
                Some(libc::ENETDOWN) => {}
                _ => panic!("host: receive: {error}"),
            }
        }
    }

    /// The same with the VLAN tag that the kernel has taken out of it, if it had one.
    pub fn receive_whole(&self, limit: Duration) -> Option<Vec<u8>> {
        let fd = self.socket.as_raw_fd();
        if !sys::poll_in(&[fd], limit) {
            return None;
        }
        let mut frame = vec![0; FRAME_ROOM];
        let mut piece = libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() };
        let mut control = [0u64; 16];
        // SAFETY: all-zero bytes are a valid msghdr; what it points to lives across the call, and
        // control messages are read where CMSG_DATA says.
        let (len, aux) = unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = size_of_val(&control) as _;
            let len = libc::recvmsg(fd, &mut message, 0);
            let first = libc::CMSG_FIRSTHDR(&message);
            let aux = (!first.is_null())
                .then(|| libc::CMSG_DATA(first).cast::<libc::tpacket_auxdata>().read_unaligned());
            (usize::try_from(len).expect("a frame"), aux)
        };
        frame.truncate(len);
        if let Some(aux) = aux.filter(|aux| aux.tp_status & libc::TP_STATUS_VLAN_VALID != 0) {
            let tag = [0x8100u16.to_be_bytes(), aux.tp_vlan_tci.to_be_bytes()].concat();
            frame.splice(12..12, tag);
        }
        Some(frame)
    }

    /// Forgets what has come so far.
    pub fn drain(&self) {
        while self.receive(Duration::ZERO).is_some() {}
    }
}
