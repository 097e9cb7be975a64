//! One front-end: its end of the socket, its memory, and what it does next.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{Scope, ScopedJoinHandle};

use base::frame::Offloads;
use datapath::vhost_user::codec::Connection;
use datapath::vhost_user::features;
use datapath::vhost_user::session::Session;
use switch::PortId;
use sys::fs::memfd;
use vmm_sys_util::eventfd::EventFd;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

use super::super::input::Input;
use super::super::packet::Packet;
use super::world::World;

/// By which its mappings are found in /proc/self/maps.
pub const FILE_NAME: &str = "fuzz-front-end";
const MEMORY: u64 = 0x2_0000;
const GPA: u64 = 0x10_0000;
const USER: u64 = 0x7f00_0000_0000;
/// Each ring has so much of the memory's first half; its parts stand at these offsets.
const RING: u64 = 0x2000;
const AVAIL: u64 = 0x800;
const USED: u64 = 0x1000;
const DATA: u64 = 5 * RING;

/// Message codes of vhost-user.rst.
mod code {
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
    pub const GET_MAX_MEM_SLOTS: u32 = 36;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
}

/// Version 1, and with an answer wanted.
const FLAGS: u32 = 1;
const NEED_REPLY: u32 = 1 | 8;

pub struct Peer<'s> {
    port: usize,
    socket: UnixStream,
    session: Option<ScopedJoinHandle<'s, ()>>,
    memory: File,
    kicks: Vec<EventFd>,
    calls: Vec<EventFd>,
    /// Codes sent whose answers may still come; none once bytes were sent that are no message.
    asked: Option<VecDeque<u32>>,
    /// Bytes of answers not looked at yet.
    answers: Vec<u8>,
    /// Rings whose size is known here.
    size: u16,
}

impl<'s> Peer<'s> {
    /// Connects to a port, whose session runs in a thread of its own.
    pub fn connect<'e>(scope: &'s Scope<'s, 'e>, world: &'e World, port: usize) -> Peer<'s> {
        let (socket, theirs) = UnixStream::pair().expect("sockets");
        socket.set_nonblocking(true).expect("socket");
        let stop = Arc::new(EventFd::new(libc::EFD_NONBLOCK).expect("eventfd"));
        let session = scope.spawn(move || {
            let connection = Connection::new(theirs, stop).expect("an eventfd");
            let (context, account) = (&world.context, &world.accounts[port]);
            let port = &world.ports[port as PortId];
            let session = Session::new(context, port, account, connection);
            // How it ends is the front-end's affair; that it ends is what matters.
            let _ = session.expect("a guest's port").serve();
        });
        let eventfds = || (0..5).map(|_| EventFd::new(libc::EFD_NONBLOCK).expect("eventfd"));
        Peer {
            port,
            socket,
            session: Some(session),
            memory: File::from(memfd(FILE_NAME, MEMORY).expect("memfd")),
            kicks: eventfds().collect(),
            calls: eventfds().collect(),
            asked: Some(VecDeque::new()),
            answers: Vec::new(),
            size: 16,
        }
    }

    /// The next thing this front-end does.
    pub fn step(&mut self, step: u8, input: &mut Input<'_>) {
        match step {
            2 => self.any_bytes(input),
            3..=7 => self.any_message(input),
            8..=13 => self.sound_message(input),
            14..=19 => self.open(input),
            20..=27 => self.ring(input),
            28..=39 => self.frame(input),
            40..=49 => self.buffers(input),
            50..=54 => self.poke(input),
            55..=57 => self.kick(input),
            58 => {
                let len = input.choose(&[0, 0x1000, 0x9000, MEMORY]);
                self.memory.set_len(len).expect("memfd");
            }
            59 => self.block_calls(),
            60 => drop(self.calls[input.below(5)].read()),
            _ => self.stop(input),
        }
        self.read_answers();
    }

    /// Sends one message; what the socket does not take is lost, and with it the stream.
    fn send(&mut self, code: u32, flags: u32, body: &[u8], files: &[RawFd]) {
        let size = body.len() as u32;
        let header = [code, flags, size].map(u32::to_ne_bytes).concat();
        self.send_bytes(&[&header, body].concat(), files);
        if let Some(asked) = &mut self.asked {
            asked.push_back(code);
        }
    }

    fn send_bytes(&mut self, bytes: &[u8], files: &[RawFd]) {
        // A session that has ended reads no more.
        let sent = self.socket.send_with_fds(&[bytes], files).unwrap_or(0);
        if sent != bytes.len() {
            self.asked = None;
        }
    }

    fn any_bytes(&mut self, input: &mut Input<'_>) {
        let len = 1 + input.below(40);
        let files = self.files(input);
        self.asked = None;
        self.send_bytes(input.bytes(len), &numbers(&files));
    }

    /// Any code with a body of any length, or with one byte of a good one changed.
    fn any_message(&mut self, input: &mut Input<'_>) {
        let code = input.below(48) as u32;
        let flags = input.choose(&[FLAGS, NEED_REPLY, NEED_REPLY, 0, 5, 0xffff_ffff]);
        let len = input.choose(&[8, 0, 16, 32, 40, 72, 4, 1, 12]);
        let mut body = input.bytes(len).to_vec();
        body.resize(len, 0);
        let files = self.files(input);
        if flags & !8 != 1 {
            self.asked = None;
        }
        self.send(code, flags, &body, &numbers(&files));
    }

    /// Descriptors of all kinds.
    fn files(&self, input: &mut Input<'_>) -> Vec<OwnedFd> {
        let count = match input.u8() {
            0..=99 => 0,
            100..=199 => 1,
            200..=250 => 2,
            251..=253 => 8,
            254 => 32,
            _ => 33,
        };
        let kind = input.below(8);
        (0..count).filter_map(|_| self.file(kind).ok()).collect()
    }

    fn file(&self, kind: usize) -> io::Result<OwnedFd> {
        let file = match kind {
            0 => File::open("/dev/null")?,
            1 => File::open("/proc/self/exe")?,
            2 => return Ok(UnixStream::pair()?.0.into()),
            3 => return Ok(io::pipe()?.1.into()),
            4 => File::from(memfd(FILE_NAME, 100)?),
            5 => self.memory.try_clone()?,
            _ => return eventfd(&self.calls[0]),
        };
        Ok(file.into())
    }

    /// A message of the right shape with values at their borders.
    fn sound_message(&mut self, input: &mut Input<'_>) {
        let value = match input.below(6) {
            0 => input.u64(),
            1 => u64::from(input.u8()),
            2 => 1 << (input.u8() % 64),
            3 => features::offer(Offloads::ALL, Offloads::ALL, true).features,
            4 => features::offer(Offloads::ALL, Offloads::ALL, true).protocol,
            _ => u64::MAX - u64::from(input.u8()),
        };
        let index = u32::from(input.u8() % 7);
        let state = [index, value as u32].map(u32::to_ne_bytes).concat();
        let with_file = u64::from(index).to_ne_bytes();
        let file = self.file(input.below(8)).expect("descriptor");
        let files = [file.as_raw_fd()];
        let (code, body, files): (u32, Vec<u8>, &[RawFd]) = match input.below(23) {
            0 => (code::GET_FEATURES, vec![], &[]),
            1 => (code::SET_FEATURES, value.to_ne_bytes().to_vec(), &[]),
            2 => (code::SET_OWNER, vec![], &[]),
            3 => (code::RESET_OWNER, vec![], &[]),
            4 => (code::SET_LOG_BASE, numbers_of(&[value, input.u8().into()]), &files),
            5 => (code::SET_LOG_FD, vec![], &files),
            6 => (code::SET_VRING_NUM, state, &[]),
            7 => (code::SET_VRING_BASE, state, &[]),
            8 => (code::GET_VRING_BASE, state, &[]),
            9 => (code::SET_VRING_ENABLE, state, &[]),
            10 => (code::SET_VRING_KICK, with_file.to_vec(), &files),
            11 => (code::SET_VRING_CALL, with_file.to_vec(), &files),
            12 => (code::SET_VRING_ERR, with_file.to_vec(), &files),
            13 => (code::GET_PROTOCOL_FEATURES, vec![], &[]),
            14 => (code::SET_PROTOCOL_FEATURES, value.to_ne_bytes().to_vec(), &[]),
            15 => (code::GET_QUEUE_NUM, vec![], &[]),
            16 => (code::SEND_RARP, value.to_ne_bytes().to_vec(), &[]),
            17 => (code::NET_SET_MTU, value.to_ne_bytes().to_vec(), &[]),
            18 => (code::GET_MAX_MEM_SLOTS, vec![], &[]),
            19 => (code::ADD_MEM_REG, region(value, MEMORY, value, 0), &files),
            20 => (code::REM_MEM_REG, region(GPA, MEMORY, USER, 0), &[]),
            21 => {
                let no_file = (u64::from(index) | 0x100).to_ne_bytes().to_vec();
                let which = [code::SET_VRING_KICK, code::SET_VRING_CALL, code::SET_VRING_ERR];
                (input.choose(&which), no_file, &[])
            }
            _ => (code::SET_VRING_ADDR, addr(index, value as u32, value, USER, USER, 0), &[]),
        };
        self.send(code, input.choose(&[FLAGS, NEED_REPLY]), &body, files);
    }

    /// Features and memory, with a choice of each.
    fn open(&mut self, input: &mut Input<'_>) {
        let offloads = [Offloads::ALL, Offloads::CSUM, Offloads::NONE][self.port.min(2)];
        let offer = features::offer(offloads, offloads, false);
        // LOG_ALL, MRG_RXBUF, VERSION_1, EVENT_IDX, PROTOCOL_FEATURES, offloads.
        let without = input.choose(&[1 << 26, 0, 1 << 15, 1 << 32 | 1 << 15, 1 << 29, 1 << 30, 3]);
        self.send(code::SET_PROTOCOL_FEATURES, FLAGS, &offer.protocol.to_ne_bytes(), &[]);
        self.send(code::SET_FEATURES, NEED_REPLY, &(offer.features & !without).to_ne_bytes(), &[]);
        let file = self.memory.try_clone().expect("descriptor");
        let files = [file.as_raw_fd(), file.as_raw_fd()];
        // One region or two that meet; in a table or one by one.
        let cut = input.choose(&[0, 0x8000, DATA + 100]);
        let parts = [(0, if cut == 0 { MEMORY } else { cut }), (cut, MEMORY - cut)];
        let parts = &parts[..if cut == 0 { 1 } else { 2 }];
        let regions = parts.iter().map(|&(at, len)| region(GPA + at, len, USER + at, at));
        if input.flag() {
            for region in regions {
                self.send(code::ADD_MEM_REG, FLAGS, &region, &files[..1]);
            }
        } else {
            // A region of a table has no padding in front.
            let table: Vec<u8> = regions.flat_map(|region| region[8..].to_vec()).collect();
            let count = u64::from(parts.len() as u32).to_ne_bytes();
            self.send(
                code::SET_MEM_TABLE,
                FLAGS,
                &[&count[..], &table].concat(),
                &files[..parts.len()],
            );
        }
        if input.u8() > 200 {
            let log = memfd(FILE_NAME, 0x1000).expect("memfd");
            let len = input.choose(&[0x1000, 1, 36]);
            self.send(code::SET_LOG_BASE, FLAGS, &numbers_of(&[len, 0]), &[log.as_raw_fd()]);
        }
    }

    /// Everything a ring needs to start.
    fn ring(&mut self, input: &mut Input<'_>) {
        let index = input.below(5) as u32;
        self.size = input.choose(&[16, 64, 1, 4]);
        let at = USER + RING * u64::from(index);
        let state = |value: u32| [index, value].map(u32::to_ne_bytes).concat();
        let number = u64::from(index).to_ne_bytes();
        let kick = eventfd(&self.kicks[index as usize]).expect("descriptor");
        let call = eventfd(&self.calls[index as usize]).expect("descriptor");
        let flags = u32::from(input.u8() > 200);
        self.send(code::SET_VRING_NUM, FLAGS, &state(self.size.into()), &[]);
        let log = GPA + RING * u64::from(index) + USED;
        let addr = addr(index, flags, at, at + USED, at + AVAIL, log);
        self.send(code::SET_VRING_ADDR, FLAGS, &addr, &[]);
        self.send(code::SET_VRING_CALL, FLAGS, &number, &[call.as_raw_fd()]);
        self.send(code::SET_VRING_KICK, FLAGS, &number, &[kick.as_raw_fd()]);
        if input.u8() > 20 {
            self.send(code::SET_VRING_ENABLE, FLAGS, &state(1), &[]);
        }
    }

    /// Puts a frame into a transmit ring: mostly a sound one.
    fn frame(&mut self, input: &mut Input<'_>) {
        let ring = if input.u8() < 200 { 1 } else { 3 };
        let size = input.choose(&[0, 200, 1448]);
        let mut packet = Packet::from_input(input, 4000);
        let destination = input.choose(&[0xff, 0, 1, 2, 3]);
        let destination = match destination {
            0xff => [0xff; 6],
            port => [2, 0, 0, 0, 1, port],
        };
        packet.frame[..6].copy_from_slice(&destination);
        packet.frame[6..12].copy_from_slice(&[2, 0, 0, 0, 1, self.port as u8]);
        let header = packet.asking(size).to_bytes();
        if input.u8() > 240 {
            packet.frame.truncate(12 + usize::from(input.u8()));
        }
        let bytes = [&header[..if input.u8() > 230 { 10 } else { 12 }], &packet.frame].concat();
        let at = DATA + 0x2000 * u64::from(input.u8() % 8);
        self.write(at, &bytes);
        self.offer(ring, at, bytes.len() as u32, 0, input);
        let _ = self.kicks[ring as usize].write(1);
    }

    /// Posts receive buffers.
    fn buffers(&mut self, input: &mut Input<'_>) {
        let ring = if input.u8() < 200 { 0 } else { 2 };
        let len = input.choose(&[2048, 128, 13, 0x10000]);
        for i in 0..1 + input.below(16) as u64 {
            self.offer(ring, DATA + (i * 2048) % 0x1_4000, len, 2, input);
        }
        let _ = self.kicks[ring as usize].write(1);
    }

    /// Makes one buffer available.
    fn offer(&mut self, ring: u64, at: u64, len: u32, flags: u16, input: &mut Input<'_>) {
        let base = RING * ring;
        let mut idx = [0; 2];
        let _ = self.memory.read_at(&mut idx, base + AVAIL + 2);
        let idx = u16::from_le_bytes(idx);
        let slot = u64::from(idx % self.size);
        let mut desc = (GPA + at).to_le_bytes().to_vec();
        desc.extend(len.to_le_bytes());
        desc.extend(flags.to_le_bytes());
        desc.extend([0, 0]);
        self.write(base + 16 * slot, &desc);
        self.write(base + AVAIL + 4 + 2 * slot, &(slot as u16).to_le_bytes());
        let step = if input.u8() == 255 { input.u16() } else { 1 };
        self.write(base + AVAIL + 2, &idx.wrapping_add(step).to_le_bytes());
    }

    fn poke(&mut self, input: &mut Input<'_>) {
        let at = u64::from(input.u16()) % (5 * RING);
        let len = 1 + input.below(16);
        self.write(at, input.bytes(len));
    }

    fn kick(&mut self, input: &mut Input<'_>) {
        let kick = &self.kicks[input.below(5)];
        match input.below(3) {
            // The front-end drains it itself.
            0 => drop(kick.read()),
            _ => drop(kick.write(1)),
        }
    }

    /// The writer of a signal may block from now on.
    fn block_calls(&mut self) {
        for call in &self.calls {
            let _ = call.write(u64::MAX - 1);
            // SAFETY: F_SETFL touches no memory.
            unsafe { libc::fcntl(call.as_raw_fd(), libc::F_SETFL, 0) };
        }
        // They are not read here any more, or this thread would block.
        self.calls = (0..5).map(|_| EventFd::new(libc::EFD_NONBLOCK).expect("eventfd")).collect();
    }

    fn stop(&mut self, input: &mut Input<'_>) {
        let index = input.below(5) as u32;
        let state = [index, 0].map(u32::to_ne_bytes).concat();
        let code = input.choose(&[code::GET_VRING_BASE, code::SET_VRING_ENABLE]);
        self.send(code, NEED_REPLY, &state, &[]);
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        let room = MEMORY.saturating_sub(at) as usize;
        // A file that was shortened grows again; its mappings do not care.
        let _ = self.memory.write_all_at(&bytes[..bytes.len().min(room)], at);
    }

    /// Looks at what has been answered so far.
    fn read_answers(&mut self) {
        let mut bytes = [0; 1024];
        while let Ok(n @ 1..) = (&self.socket).read(&mut bytes) {
            self.answers.extend_from_slice(&bytes[..n]);
        }
        while let Some((header, rest)) = self.answers.split_first_chunk::<12>() {
            let [code, flags, size] = std::array::from_fn(|i| {
                u32::from_ne_bytes(header[4 * i..][..4].try_into().expect("four"))
            });
            assert_eq!(flags, 5, "flags of the answer to {code}");
            let expected = if code == code::SET_LOG_BASE { 16 } else { 8 };
            assert_eq!(size, expected, "size of the answer to {code}");
            if rest.len() < size as usize {
                return;
            }
            if let Some(asked) = &mut self.asked {
                let place = asked.iter().position(|&asked| asked == code);
                let place = place.unwrap_or_else(|| panic!("an answer to {code}, not asked for"));
                asked.drain(..=place);
            }
            self.answers.drain(..12 + size as usize);
        }
    }
}

impl Drop for Peer<'_> {
    /// The front-end leaves; its session ends by that alone.
    fn drop(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Write);
        if let Some(session) = self.session.take() {
            // While it ends its answers are read, as it would wait for room.
            while !session.is_finished() && !std::thread::panicking() {
                self.read_answers();
                std::thread::sleep(std::time::Duration::from_micros(20));
            }
            if !std::thread::panicking() {
                session.join().expect("a session panicked");
                self.read_answers();
                assert!(self.answers.is_empty(), "half an answer");
            }
        }
    }
}

fn eventfd(of: &EventFd) -> io::Result<OwnedFd> {
    // SAFETY: `of` keeps the descriptor open meanwhile.
    unsafe { BorrowedFd::borrow_raw(of.as_raw_fd()) }.try_clone_to_owned()
}

fn numbers(files: &[OwnedFd]) -> Vec<RawFd> {
    files.iter().map(AsRawFd::as_raw_fd).collect()
}

fn numbers_of(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

/// Body of `ADD_MEM_REG`.
fn region(gpa: u64, len: u64, user: u64, offset: u64) -> Vec<u8> {
    numbers_of(&[0, gpa, len, user, offset])
}

/// Body of `SET_VRING_ADDR`.
fn addr(index: u32, flags: u32, desc: u64, used: u64, avail: u64, log: u64) -> Vec<u8> {
    let first = [index, flags].map(u32::to_ne_bytes).concat();
    [first, numbers_of(&[desc, used, avail, log])].concat()
}
