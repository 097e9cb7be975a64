//! Replays recorded vhost-user conversations, message by message, with real memory and real
//! descriptors.
//!
//! A line is `NAME fl=FLAGS fds=COUNT BODY`; the body is a u64 (`0x…`), a vring state (`idx num`),
//! a vring address (`idx flags d u a log`), a memory region (`gpa len uva off`) or bytes in hex.
//! `MARK` lines tell what the user did and are skipped.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use super::frontend::{
    Error, FLAG_NEED_REPLY, Frontend, Result, VERSION, VringAddr, feat, proto, region_body, req,
    state_body,
};
use super::mem::RegionSpec;
use super::sys::{self, EventFd};

/// Bits that the recorded front-ends acknowledged and that come with offloads: CSUM, GUEST_CSUM,
/// GUEST_TSO4, GUEST_TSO6, HOST_TSO4, HOST_TSO6.
pub const OFFLOADS: u64 = 1 << 0 | 1 << 1 | 1 << 7 | 1 << 8 | 1 << 11 | 1 << 12;

/// One recorded message.
#[derive(Clone, Debug)]
pub struct Line {
    pub name: String,
    pub flags: u32,
    pub fds: usize,
    fields: HashMap<String, u64>,
    pub word: Option<u64>,
    bytes: Vec<u8>,
}

/// All messages of a file, comments and marks left out.
pub fn parse(text: &str) -> Vec<Line> {
    text.lines()
        .filter(|l| l.contains(" fl="))
        .map(|l| parse_line(l).unwrap_or_else(|| panic!("transcript line: {l}")))
        .collect()
}

fn parse_line(text: &str) -> Option<Line> {
    let mut words = text.split_whitespace();
    let name = words.next()?.to_string();
    let flags = words.next()?.strip_prefix("fl=")?.parse().ok()?;
    let fds = words.next()?.strip_prefix("fds=")?.parse().ok()?;
    let mut line = Line { name, flags, fds, fields: HashMap::new(), word: None, bytes: Vec::new() };
    for w in words {
        if let Some((key, value)) = w.split_once('=') {
            let radix = if matches!(key, "idx" | "num" | "flags") { 10 } else { 16 };
            line.fields.insert(key.to_string(), u64::from_str_radix(value, radix).ok()?);
        } else if let Some(hex) = w.strip_prefix("0x") {
            line.word = Some(u64::from_str_radix(hex, 16).ok()?);
        } else {
            let byte = |i: usize| u8::from_str_radix(w.get(i..i + 2)?, 16).ok();
            line.bytes = (0..w.len()).step_by(2).map(byte).collect::<Option<_>>()?;
        }
    }
    Some(line)
}

impl Line {
    fn field(&self, key: &str) -> u64 {
        *self.fields.get(key).unwrap_or_else(|| panic!("{}: no {key}", self.name))
    }

    fn index(&self) -> u32 {
        self.field("idx") as u32
    }

    fn region(&self) -> RegionSpec {
        RegionSpec {
            gpa: self.field("gpa"),
            len: self.field("len"),
            uva: self.field("uva"),
            offset: self.field("off"),
        }
    }

    fn ring_addr(&self) -> VringAddr {
        VringAddr {
            index: self.index(),
            flags: self.field("flags") as u32,
            desc: self.field("d"),
            used: self.field("u"),
            avail: self.field("a"),
            log: self.field("log"),
        }
    }
}

fn code_of(name: &str) -> u32 {
    match name {
        "GET_FEATURES" => req::GET_FEATURES,
        "SET_FEATURES" => req::SET_FEATURES,
        "SET_OWNER" => req::SET_OWNER,
        "SET_MEM_TABLE" => req::SET_MEM_TABLE,
        "SET_LOG_BASE" => req::SET_LOG_BASE,
        "SET_VRING_NUM" => req::SET_VRING_NUM,
        "SET_VRING_ADDR" => req::SET_VRING_ADDR,
        "SET_VRING_BASE" => req::SET_VRING_BASE,
        "GET_VRING_BASE" => req::GET_VRING_BASE,
        "SET_VRING_KICK" => req::SET_VRING_KICK,
        "SET_VRING_CALL" => req::SET_VRING_CALL,
        "SET_VRING_ERR" => req::SET_VRING_ERR,
        "GET_PROTOCOL_FEATURES" => req::GET_PROTOCOL_FEATURES,
        "SET_PROTOCOL_FEATURES" => req::SET_PROTOCOL_FEATURES,
        "GET_QUEUE_NUM" => req::GET_QUEUE_NUM,
        "SET_VRING_ENABLE" => req::SET_VRING_ENABLE,
        "SEND_RARP" => req::SEND_RARP,
        "NET_SET_MTU" => req::NET_SET_MTU,
        "SET_BACKEND_REQ_FD" => req::SET_BACKEND_REQ_FD,
        "GET_MAX_MEM_SLOTS" => req::GET_MAX_MEM_SLOTS,
        "ADD_MEM_REG" => req::ADD_MEM_REG,
        other => panic!("transcript: unknown message {other}"),
    }
}

/// What the daemon under test must answer.
pub struct Replay {
    pub fe: Frontend,
    /// What GET_QUEUE_NUM must say: vrings.
    pub vrings: u64,
    /// Send all as recorded, protocol features that were not offered included.
    pub verbatim: bool,
    pub offered: u64,
    files: Vec<OwnedFd>,
    events: Vec<EventFd>,
}

impl Replay {
    pub fn new(fe: Frontend, vrings: u64) -> Replay {
        let (files, events) = (Vec::new(), Vec::new());
        Replay { fe, vrings, verbatim: false, offered: 0, files, events }
    }

    /// Sends one line and checks its reply.
    pub fn step(&mut self, l: &Line) -> Result<()> {
        let code = code_of(&l.name);
        if code == req::SET_BACKEND_REQ_FD && !self.verbatim {
            return Ok(());
        }
        let body = self.body(code, l);
        let fds: Vec<RawFd> = (0..l.fds).map(|_| self.descriptor(code, l)).collect();
        self.fe.send(code, l.flags, &body, &fds)?;
        match code {
            req::GET_FEATURES => self.offered = self.u64_reply(code)?,
            req::GET_PROTOCOL_FEATURES => self.check_protocol(code)?,
            req::GET_QUEUE_NUM => assert_eq!(self.u64_reply(code)?, self.vrings),
            req::GET_MAX_MEM_SLOTS => assert!(self.u64_reply(code)? >= 2),
            req::GET_VRING_BASE => {
                let reply = self.fe.reply(code)?;
                assert_eq!(reply, state_body(l.index(), 0), "no ring has moved");
            }
            // Answered whenever LOG_SHMFD was acknowledged.
            req::SET_LOG_BASE => drop(self.fe.reply(code)?),
            _ if l.flags & FLAG_NEED_REPLY != 0 => self.fe.ack(code)?,
            _ => {}
        }
        Ok(())
    }

    fn u64_reply(&mut self, code: u32) -> Result<u64> {
        let body = self.fe.reply(code)?;
        let bytes = body.try_into().map_err(|_| Error::Bad(format!("reply to {code}")))?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn check_protocol(&mut self, code: u32) -> Result<()> {
        let offered = self.u64_reply(code)?;
        let must = proto::MQ | proto::LOG_SHMFD | proto::RARP | proto::REPLY_ACK | proto::NET_MTU;
        assert_eq!(offered & must, must, "protocol features {offered:#x}");
        assert_ne!(offered & proto::CONFIGURE_MEM_SLOTS, 0);
        Ok(())
    }

    fn body(&mut self, code: u32, l: &Line) -> Vec<u8> {
        match code {
            req::SET_FEATURES => {
                let want = l.word.expect("features");
                let missing = want & !self.offered & !OFFLOADS;
                assert_eq!(missing, 0, "recorded guests need what is not offered: {missing:#x}");
                (want & (self.offered | feat::PROTOCOL_FEATURES)).to_le_bytes().to_vec()
            }
            req::SET_PROTOCOL_FEATURES => {
                let not_ours = if self.verbatim { 0 } else { proto::BACKEND_REQ };
                (l.word.expect("features") & !not_ours).to_le_bytes().to_vec()
            }
            req::SET_MEM_TABLE => [state_body(1, 0), region_body(&l.region())].concat(),
            req::ADD_MEM_REG => [vec![0; 8], region_body(&l.region())].concat(),
            req::SET_VRING_ADDR => l.ring_addr().body(),
            req::SET_LOG_BASE => l.bytes.clone(),
            req::SET_VRING_NUM
            | req::SET_VRING_BASE
            | req::GET_VRING_BASE
            | req::SET_VRING_ENABLE => state_body(l.index(), l.field("num") as u32),
            _ => l.word.map(|w| w.to_le_bytes().to_vec()).unwrap_or_default(),
        }
    }

    /// Memory for regions and logs, eventfds for the rest; all kept until the end.
    fn descriptor(&mut self, code: u32, l: &Line) -> RawFd {
        match code {
            req::SET_MEM_TABLE | req::ADD_MEM_REG => {
                let r = l.region();
                self.keep(sys::memfd(r.offset + r.len))
            }
            req::SET_LOG_BASE => {
                let size: [u8; 8] = l.bytes[..8].try_into().expect("size");
                self.keep(sys::memfd(u64::from_le_bytes(size)))
            }
            _ => {
                self.events.push(EventFd::new());
                self.events[self.events.len() - 1].raw()
            }
        }
    }

    fn keep(&mut self, file: OwnedFd) -> RawFd {
        self.files.push(file);
        self.files[self.files.len() - 1].as_raw_fd()
    }

    /// Sends a GET_FEATURES of its own: the daemon is still there and in step.
    pub fn alive(&mut self) -> Result<u64> {
        self.fe.send(req::GET_FEATURES, VERSION, &[], &[])?;
        self.offered = self.u64_reply(req::GET_FEATURES)?;
        Ok(self.offered)
    }
}
