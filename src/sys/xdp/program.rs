//! The BPF program (bpf(2)) that redirects an interface's frames to sockets: six instructions,
//! written here, so that nothing is compiled or read from a file.
//!
//! The program looks up a frame's queue in a map of sockets and redirects the frame to the socket.
//! A frame of a queue without a socket goes to the host, as without the program.
//!
//! A BPF link attaches the program. Program and map end when the last descriptor of the link is
//! closed, also when the process is killed, and no other process can replace the program.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::sandbox;

// Commands and types of linux/bpf.h.
const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_TYPE_XDP: u32 = 37;
/// The helper `bpf_redirect_map`.
const REDIRECT_MAP: i32 = 51;
/// The action `XDP_PASS`: the frame goes to the host.
const PASS: i32 = 2;
/// Offset of `rx_queue_index` in `struct xdp_md`.
const RX_QUEUE_INDEX: i16 = 16;
// Flags of linux/if_link.h: the mode of an attachment.
const FLAG_GENERIC: u32 = 1 << 1;
const FLAG_NATIVE: u32 = 1 << 2;

/// The place where an interface runs the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// In the driver, or in the kernel if the driver cannot run the program.
    #[default]
    Auto,
    /// In the driver, before the kernel makes an sk_buff of the frame.
    Native,
    /// In the kernel, behind the driver: every interface can.
    Generic,
}

/// `union bpf_attr`, as long as the longest command here needs; unset fields are zero.
struct Attr([u8; 128]);

impl Attr {
    fn new() -> Attr {
        Attr([0; 128])
    }

    fn with(mut self, at: usize, bytes: &[u8]) -> Attr {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    fn number(self, at: usize, number: u32) -> Attr {
        self.with(at, &number.to_ne_bytes())
    }

    fn fd(self, at: usize, fd: BorrowedFd<'_>) -> Attr {
        self.number(at, fd.as_raw_fd() as u32)
    }

    fn pointer<T>(self, at: usize, to: *const T) -> Attr {
        self.with(at, &(to as usize as u64).to_ne_bytes())
    }

    /// Calls bpf(2); returns a descriptor, or zero.
    ///
    /// # Safety
    ///
    /// The pointers in the attributes lead to memory that is readable for the length that the
    /// command reads.
    unsafe fn call(&mut self, command: libc::c_int) -> io::Result<libc::c_int> {
        if !sandbox::permits_bpf() {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        let (at, len) = (self.0.as_mut_ptr(), self.0.len() as libc::c_uint);
        // SAFETY: `at` has `len` bytes; the caller promises that the pointers are valid.
        let answer = unsafe { libc::syscall(libc::SYS_bpf, command, at, len) };
        if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer as libc::c_int) }
    }

    /// Calls bpf(2) with a command that makes a descriptor.
    ///
    /// # Safety
    ///
    /// The requirements of [`Attr::call`] hold, and the command returns a new descriptor.
    unsafe fn open(&mut self, command: libc::c_int) -> io::Result<OwnedFd> {
        // SAFETY: the caller promises valid pointers; only this value owns the new descriptor.
        unsafe { self.call(command).map(|fd| OwnedFd::from_raw_fd(fd)) }
    }
}

/// `struct bpf_insn`: operation, registers, offset, constant.
fn instruction(code: u8, to: u8, from: u8, offset: i16, constant: i32) -> [u8; 8] {
    // Two bit fields, whose order is the byte order.
    let registers = if cfg!(target_endian = "little") { from << 4 | to } else { to << 4 | from };
    let (offset, constant) = (offset.to_ne_bytes(), constant.to_ne_bytes());
    let mut bytes = [code, registers, offset[0], offset[1], 0, 0, 0, 0];
    bytes[4..].copy_from_slice(&constant);
    bytes
}

/// Returns the program for the sockets in this map.
fn program(map: BorrowedFd<'_>) -> [[u8; 8]; 6] {
    [
        // r2 = context->rx_queue_index
        instruction(0x61, 2, 1, RX_QUEUE_INDEX, 0),
        // r1 = map, in two instructions: source register 1 (BPF_PSEUDO_MAP_FD) marks a descriptor
        instruction(0x18, 1, 1, 0, map.as_raw_fd()),
        instruction(0, 0, 0, 0, 0),
        // r3 = XDP_PASS, the action for a queue without a socket
        instruction(0xb7, 3, 0, 0, PASS),
        // r0 = bpf_redirect_map(r1, r2, r3)
        instruction(0x85, 0, 0, 0, REDIRECT_MAP),
        // return r0
        instruction(0x95, 0, 0, 0, 0),
    ]
}

/// The sockets of an interface by its queues.
#[derive(Debug)]
pub(super) struct Sockets(OwnedFd);

impl Sockets {
    /// Makes an empty map for `queues` queues.
    pub(super) fn new(queues: u32) -> io::Result<Sockets> {
        let mut attr = Attr::new()
            .number(0, MAP_TYPE_XSKMAP)
            .number(4, size_of::<u32>() as u32)
            .number(8, size_of::<u32>() as u32)
            .number(12, queues);
        // SAFETY: there are no pointers.
        unsafe { attr.open(MAP_CREATE) }.map(Sockets)
    }

    /// Redirects the frames of `queue` to `socket`, which is bound to the queue.
    pub(super) fn enter(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let value = socket.as_raw_fd() as u32;
        let mut attr = Attr::new()
            .fd(0, self.0.as_fd())
            .pointer(8, &raw const queue)
            .pointer(16, &raw const value);
        // SAFETY: key and value are four bytes each, and live here.
        unsafe { attr.call(MAP_UPDATE_ELEM) }.map(drop)
    }

    /// Loads the program for the map.
    pub(super) fn load(&self) -> io::Result<OwnedFd> {
        let code = program(self.0.as_fd());
        let licence = c"BSD-3-Clause";
        let mut attr = Attr::new()
            .number(0, PROG_TYPE_XDP)
            .number(4, code.len() as u32)
            .pointer(8, code.as_ptr())
            .pointer(16, licence.as_ptr())
            .with(48, b"vioswitch_xdp")
            .number(68, ATTACH_TYPE_XDP);
        // SAFETY: code and licence live here.
        unsafe { attr.open(PROG_LOAD) }
    }
}

/// Attaches a program to an interface until the returned descriptor is closed.
pub(super) fn attach(program: BorrowedFd<'_>, interface: u32, mode: Mode) -> io::Result<OwnedFd> {
    let flags = if mode == Mode::Native { FLAG_NATIVE } else { FLAG_GENERIC };
    let mut attr = Attr::new()
        .fd(0, program)
        .number(4, interface)
        .number(8, ATTACH_TYPE_XDP)
        .number(12, flags);
    // SAFETY: there are no pointers.
    unsafe { attr.open(LINK_CREATE) }
}
