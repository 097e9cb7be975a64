//! A vhost-user front-end, written from the protocol's text (QEMU docs/interop/vhost-user.rst):
//! 12-byte headers, descriptors by SCM_RIGHTS, one method per request, replies under a time limit.
//!
//! It sends what it is told, in any order and state; [`Frontend::send_raw`] sends anything at all.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use super::SOON;
use super::mem::RegionSpec;
use super::sys;

/// Request codes ("Front-end message types").
pub mod req {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const RESET_OWNER: u32 = 4;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_LOG_BASE: u32 = 6;
    pub const SET_LOG_FD: u32 = 7;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SEND_RARP: u32 = 19;
    pub const NET_SET_MTU: u32 = 20;
    pub const SET_BACKEND_REQ_FD: u32 = 21;
    pub const SET_VRING_ENDIAN: u32 = 23;
    pub const GET_CONFIG: u32 = 24;
    pub const GET_MAX_MEM_SLOTS: u32 = 36;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
}

/// Virtio and vhost-user feature bits, as masks.
pub mod feat {
    pub const CSUM: u64 = 1 << 0;
    pub const GUEST_CSUM: u64 = 1 << 1;
    pub const GUEST_TSO4: u64 = 1 << 7;
    pub const GUEST_TSO6: u64 = 1 << 8;
    pub const GUEST_ECN: u64 = 1 << 9;
    pub const HOST_TSO4: u64 = 1 << 11;
    pub const HOST_TSO6: u64 = 1 << 12;
    pub const HOST_ECN: u64 = 1 << 13;
    pub const GUEST_USO4: u64 = 1 << 54;
    pub const GUEST_USO6: u64 = 1 << 55;
    pub const HOST_USO: u64 = 1 << 56;
    pub const NET_MTU: u64 = 1 << 3;
    pub const MRG_RXBUF: u64 = 1 << 15;
    pub const CTRL_VQ: u64 = 1 << 17;
    pub const GUEST_ANNOUNCE: u64 = 1 << 21;
    pub const MQ: u64 = 1 << 22;
    pub const LOG_ALL: u64 = 1 << 26;
    pub const ANY_LAYOUT: u64 = 1 << 27;
    pub const INDIRECT: u64 = 1 << 28;
    pub const EVENT_IDX: u64 = 1 << 29;
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    pub const VERSION_1: u64 = 1 << 32;
    pub const ACCESS_PLATFORM: u64 = 1 << 33;
    pub const IN_ORDER: u64 = 1 << 35;

    /// What a guest may send with.
    pub const HOST_OFFLOADS: u64 = CSUM | HOST_TSO4 | HOST_TSO6 | HOST_ECN | HOST_USO;
    /// What asks for receive buffers of a whole 64 KiB packet (5.1.6.3.1).
    pub const GUEST_LARGE: u64 = GUEST_TSO4 | GUEST_TSO6 | GUEST_USO4 | GUEST_USO6;
    /// What a guest may receive with.
    pub const GUEST_OFFLOADS: u64 = GUEST_CSUM | GUEST_LARGE | GUEST_ECN;
    /// All offloads, both ways.
    pub const OFFLOADS: u64 = HOST_OFFLOADS | GUEST_OFFLOADS;
}

/// Protocol feature bits, as masks.
pub mod proto {
    pub const MQ: u64 = 1 << 0;
    pub const LOG_SHMFD: u64 = 1 << 1;
    pub const RARP: u64 = 1 << 2;
    pub const REPLY_ACK: u64 = 1 << 3;
    pub const NET_MTU: u64 = 1 << 4;
    pub const BACKEND_REQ: u64 = 1 << 5;
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
}

pub const VERSION: u32 = 1;
pub const FLAG_REPLY: u32 = 4;
pub const FLAG_NEED_REPLY: u32 = 8;
/// In the u64 of KICK, CALL and ERR: no descriptor comes along.
pub const NO_FD: u64 = 1 << 8;

#[derive(Debug)]
pub enum Error {
    /// The daemon closed the connection.
    Closed,
    /// No reply within the limit.
    Timeout,
    /// The daemon answered with a non-zero acknowledgement.
    Nack(u64),
    /// A reply that the protocol does not allow here.
    Bad(String),
}

impl From<io::Error> for Error {
    fn from(e: io::Error) -> Error {
        match e.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Error::Timeout,
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset => Error::Closed,
            _ => Error::Bad(e.to_string()),
        }
    }
}

pub type Result<T> = std::result::Result<T, Error>;

/// When NEED_REPLY is set on a request that has no reply of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acks {
    /// Never, as without REPLY_ACK.
    Never,
    /// On each, as cloud-hypervisor does.
    Always,
}

/// The bytes of one message.
pub fn message(code: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let mut m = Vec::with_capacity(12 + body.len());
    for word in [code, flags, body.len() as u32] {
        m.extend_from_slice(&word.to_le_bytes());
    }
    m.extend_from_slice(body);
    m
}

/// `struct VhostUserMemoryRegion`.
pub fn region_body(r: &RegionSpec) -> Vec<u8> {
    [r.gpa, r.len, r.uva, r.offset].iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// `struct vhost_vring_state`.
pub fn state_body(index: u32, num: u32) -> Vec<u8> {
    [index, num].iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// `struct vhost_vring_addr`; addresses are front-end addresses, `log` is guest-physical.
#[derive(Clone, Copy, Debug, Default)]
pub struct VringAddr {
    pub index: u32,
    pub flags: u32,
    pub desc: u64,
    pub used: u64,
    pub avail: u64,
    pub log: u64,
}

impl VringAddr {
    pub fn body(&self) -> Vec<u8> {
        let mut b = state_body(self.index, self.flags);
        for v in [self.desc, self.used, self.avail, self.log] {
            b.extend_from_slice(&v.to_le_bytes());
        }
        b
    }
}

pub struct Frontend {
    sock: UnixStream,
    pub acks: Acks,
    /// Acknowledged protocol features.
    pub protocol: u64,
}

impl Frontend {
    /// Connects to a daemon that listens, and tries again until `limit` is over.
    pub fn connect(path: &Path, limit: Duration) -> io::Result<Frontend> {
        let end = Instant::now() + limit;
        loop {
            match UnixStream::connect(path) {
                Ok(sock) => return Ok(Frontend::from_stream(sock)),
                Err(e) if Instant::now() >= end => return Err(e),
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    }

    /// Takes the connection of a daemon in client mode.
    pub fn accept(listener: &UnixListener, limit: Duration) -> io::Result<Frontend> {
        if !sys::poll_in(&[listener.as_raw_fd()], limit) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(Frontend::from_stream(listener.accept()?.0))
    }

    pub fn from_stream(sock: UnixStream) -> Frontend {
        sock.set_read_timeout(Some(SOON)).expect("read timeout");
        sock.set_write_timeout(Some(SOON)).expect("write timeout");
        Frontend { sock, acks: Acks::Never, protocol: 0 }
    }

    /// Any bytes with any descriptors in one sendmsg.
    pub fn send_raw(&mut self, bytes: &[u8], fds: &[RawFd]) -> Result<()> {
        let n = sys::send_with_fds(self.sock.as_raw_fd(), bytes, fds)?;
        Ok(self.sock.write_all(&bytes[n..])?)
    }

    /// The socket, to poll.
    pub fn raw(&self) -> RawFd {
        self.sock.as_raw_fd()
    }

    /// One well-formed message.
    pub fn send(&mut self, code: u32, flags: u32, body: &[u8], fds: &[RawFd]) -> Result<()> {
        self.send_raw(&message(code, flags, body), fds)
    }

    /// Reads one reply to `code` and answers its body. Flags must be exactly VERSION | REPLY:
    /// DPDK's virtio-user refuses anything else.
    pub fn reply(&mut self, code: u32) -> Result<Vec<u8>> {
        let mut head = [0u8; 12];
        self.sock.read_exact(&mut head)?;
        let word = |i: usize| u32::from_le_bytes(head[i..i + 4].try_into().expect("4 bytes"));
        let (got, flags, size) = (word(0), word(4), word(8));
        if got != code || flags != VERSION | FLAG_REPLY || size > 4096 {
            return Err(Error::Bad(format!("to {code}: code {got} flags {flags:#x} size {size}")));
        }
        let mut body = vec![0; size as usize];
        self.sock.read_exact(&mut body)?;
        Ok(body)
    }

    fn reply_u64(&mut self, code: u32) -> Result<u64> {
        let body = self.reply(code)?;
        let bytes: [u8; 8] = body
            .try_into()
            .map_err(|b: Vec<u8>| Error::Bad(format!("{code}: {} bytes", b.len())))?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// A request with a u64 for an answer.
    pub fn get_u64(&mut self, code: u32) -> Result<u64> {
        self.send(code, VERSION | self.ack_flag(), &[], &[])?;
        self.reply_u64(code)
    }

    fn ack_flag(&self) -> u32 {
        let on = self.acks == Acks::Always && self.protocol & proto::REPLY_ACK != 0;
        if on { FLAG_NEED_REPLY } else { 0 }
    }

    /// A request without an answer of its own; waits for the acknowledgement if one was asked for.
    pub fn request(&mut self, code: u32, body: &[u8], fds: &[RawFd]) -> Result<()> {
        let flag = self.ack_flag();
        self.send(code, VERSION | flag, body, fds)?;
        if flag == 0 { Ok(()) } else { self.ack(code) }
    }

    /// The same with NEED_REPLY set whatever the habit.
    pub fn request_acked(&mut self, code: u32, body: &[u8], fds: &[RawFd]) -> Result<()> {
        self.send(code, VERSION | FLAG_NEED_REPLY, body, fds)?;
        self.ack(code)
    }

    /// Reads an acknowledgement: `Err(Nack)` unless it is 0.
    pub fn ack(&mut self, code: u32) -> Result<()> {
        match self.reply_u64(code)? {
            0 => Ok(()),
            n => Err(Error::Nack(n)),
        }
    }

    /// Waits until the daemon closes; false if it still holds the connection after `limit`.
    /// Replies that come meanwhile are skipped.
    pub fn closed_within(&mut self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        let mut buf = [0u8; 512];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if !sys::poll_in(&[self.sock.as_raw_fd()], left) {
                return false;
            }
            match self.sock.read(&mut buf) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return true,
                Err(e) => panic!("read: {e}"),
            }
        }
    }

    /// The same by a clean end: all replies are read, and the daemon has read all requests, or the
    /// connection would be reset.
    pub fn ends_within(&mut self, limit: Duration) -> bool {
        sys::poll_in(&[self.sock.as_raw_fd()], limit) && matches!(self.sock.read(&mut [0]), Ok(0))
    }

    /// Leaves: says that nothing more comes, and waits until the daemon has worked through all that
    /// was sent and closed its end. False if it does not within `limit`.
    pub fn leave(mut self, limit: Duration) -> bool {
        // Fails if it has closed already.
        let _ = self.sock.shutdown(Shutdown::Write);
        self.closed_within(limit)
    }

    /// Whether the daemon still talks to this front-end: it answers, or it has closed. Panics if it
    /// does neither. Replies to earlier messages are skipped.
    pub fn still_served(&mut self) -> bool {
        if self.send(req::GET_FEATURES, VERSION, &[], &[]).is_err() {
            return false;
        }
        loop {
            let mut head = [0u8; 12];
            match self.sock.read_exact(&mut head).map_err(Error::from) {
                Ok(()) => {}
                Err(Error::Closed) => return false,
                Err(e) => panic!("neither an answer nor the end: {e:?}"),
            }
            let word = |i: usize| u32::from_le_bytes(head[i..i + 4].try_into().expect("4 bytes"));
            let mut body = vec![0; word(8).min(4096) as usize];
            if self.sock.read_exact(&mut body).is_err() {
                return false;
            }
            if word(0) == req::GET_FEATURES {
                return true;
            }
        }
    }

    pub fn get_features(&mut self) -> Result<u64> {
        self.get_u64(req::GET_FEATURES)
    }

    pub fn set_features(&mut self, v: u64) -> Result<()> {
        self.request(req::SET_FEATURES, &v.to_le_bytes(), &[])
    }

    pub fn get_protocol_features(&mut self) -> Result<u64> {
        self.get_u64(req::GET_PROTOCOL_FEATURES)
    }

    /// REPLY_ACK counts from the next message on.
    pub fn set_protocol_features(&mut self, v: u64) -> Result<()> {
        self.request(req::SET_PROTOCOL_FEATURES, &v.to_le_bytes(), &[])?;
        self.protocol = v;
        Ok(())
    }

    pub fn set_owner(&mut self) -> Result<()> {
        self.request(req::SET_OWNER, &[], &[])
    }

    pub fn get_queue_num(&mut self) -> Result<u64> {
        self.get_u64(req::GET_QUEUE_NUM)
    }

    pub fn get_max_mem_slots(&mut self) -> Result<u64> {
        self.get_u64(req::GET_MAX_MEM_SLOTS)
    }

    pub fn set_mem_table(&mut self, table: &[(RegionSpec, RawFd)]) -> Result<()> {
        let mut body = state_body(table.len() as u32, 0);
        body.extend(table.iter().flat_map(|(r, _)| region_body(r)));
        let fds: Vec<RawFd> = table.iter().map(|&(_, fd)| fd).collect();
        self.request(req::SET_MEM_TABLE, &body, &fds)
    }

    pub fn add_mem_reg(&mut self, r: &RegionSpec, fd: RawFd) -> Result<()> {
        let mut body = vec![0; 8];
        body.extend(region_body(r));
        self.request(req::ADD_MEM_REG, &body, &[fd])
    }

    pub fn rem_mem_reg(&mut self, r: &RegionSpec) -> Result<()> {
        let mut body = vec![0; 8];
        body.extend(region_body(r));
        self.request(req::REM_MEM_REG, &body, &[])
    }

    /// Always answered when LOG_SHMFD was acknowledged, with NEED_REPLY or without.
    pub fn set_log_base(&mut self, size: u64, offset: u64, fd: RawFd) -> Result<()> {
        let body: Vec<u8> = [size, offset].iter().flat_map(|v| v.to_le_bytes()).collect();
        self.send(req::SET_LOG_BASE, VERSION | self.ack_flag(), &body, &[fd])?;
        self.reply(req::SET_LOG_BASE).map(|_| ())
    }

    pub fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        self.request(req::SET_VRING_NUM, &state_body(index, num), &[])
    }

    pub fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.request(req::SET_VRING_BASE, &state_body(index, base), &[])
    }

    pub fn set_vring_addr(&mut self, addr: &VringAddr) -> Result<()> {
        self.request(req::SET_VRING_ADDR, &addr.body(), &[])
    }

    pub fn set_vring_enable(&mut self, index: u32, on: bool) -> Result<()> {
        self.request(req::SET_VRING_ENABLE, &state_body(index, u32::from(on)), &[])
    }

    /// Stops the ring; answers the base the daemon would go on from.
    pub fn get_vring_base(&mut self, index: u32) -> Result<u16> {
        self.send(req::GET_VRING_BASE, VERSION | self.ack_flag(), &state_body(index, 0), &[])?;
        let body = self.reply(req::GET_VRING_BASE)?;
        if body.len() != 8 || body[..4] != index.to_le_bytes() {
            return Err(Error::Bad(format!("GET_VRING_BASE {index}: {body:02x?}")));
        }
        Ok(u16::from_le_bytes([body[4], body[5]]))
    }

    /// KICK, CALL or ERR (by code); `None` sends the no-descriptor bit.
    pub fn set_vring_fd(&mut self, code: u32, index: u32, fd: Option<RawFd>) -> Result<()> {
        let v = u64::from(index) | if fd.is_none() { NO_FD } else { 0 };
        let fds: Vec<RawFd> = fd.into_iter().collect();
        self.request(code, &v.to_le_bytes(), &fds)
    }

    pub fn net_set_mtu(&mut self, mtu: u64) -> Result<()> {
        self.request(req::NET_SET_MTU, &mtu.to_le_bytes(), &[])
    }

    /// The address travels in the first 6 bytes of the u64.
    pub fn send_rarp(&mut self, mac: [u8; 6]) -> Result<()> {
        let mut body = [0u8; 8];
        body[..6].copy_from_slice(&mac);
        self.request(req::SEND_RARP, &body, &[])
    }
}
