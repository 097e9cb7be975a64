//! The journal's native protocol: an entry is a datagram of fields, each a line `NAME=value`, or a
//! name and the length of a value of several lines (systemd, "Native Journal Protocol").
//!
//! Only the log's thread sends, so that a journal that hangs blocks no other thread (`queue.rs`).
//! An entry that the journal's socket does not take goes to standard error, which leads to the
//! journal too: each line of the entry behind its priority (sd-daemon(3)).

use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use log::Level;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sendto, socket_with,
};

use super::queue::{Sink, said_lost, write_all};

const SOCKET: &str = "/run/systemd/journal/socket";
const IDENTIFIER: &str = "vioswitchd";
/// Bytes before each entry in the queue: length of the rest, priority, length of the text.
const HEAD: usize = 4 + 1 + 4;

/// A line of the log, for the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Level of the line.
    pub level: Level,
    /// The message, for people.
    pub text: String,
    /// Fields for programs: names and values.
    pub fields: Vec<(String, String)>,
}

impl Entry {
    /// Encodes the entry for the queue: its text apart from its fields.
    pub(crate) fn encoded(&self) -> Vec<u8> {
        let mut out = vec![0; HEAD];
        out.extend_from_slice(self.text.as_bytes());
        for (name, value) in &self.fields {
            push_field(&mut out, name, value.as_bytes());
        }
        let length = |count: usize| u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes();
        let all = length(out.len() - 4);
        out[..4].copy_from_slice(&all);
        out[4] = priority(self.level);
        out[5..HEAD].copy_from_slice(&length(self.text.len()));
        out
    }
}

/// A queued entry: priority, text, and the fields as they are sent.
type Queued<'a> = (u8, &'a [u8], &'a [u8]);

/// Splits the first entry off `queued`; `None` if the entry is not whole.
fn decoded(queued: &[u8]) -> Option<(Queued<'_>, &[u8])> {
    let (length, rest) = queued.split_first_chunk::<4>()?;
    let (entry, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    let (priority, entry) = entry.split_first()?;
    let (length, entry) = entry.split_first_chunk::<4>()?;
    let (text, fields) = entry.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    Some(((*priority, text, fields), rest))
}

/// Returns the priority of syslog(3) as a digit.
fn priority(level: Level) -> u8 {
    match level {
        Level::Error => b'3',
        Level::Warn => b'4',
        Level::Info => b'6',
        Level::Debug | Level::Trace => b'7',
    }
}

/// Formats `text` for standard error, each line behind its priority.
pub(crate) fn prefixed(level: Level, text: &str) -> String {
    String::from_utf8_lossy(&with_priority(priority(level), text.as_bytes())).into_owned()
}

fn with_priority(priority: u8, text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 4);
    for line in text.split(|byte| *byte == b'\n') {
        out.extend_from_slice(&[b'<', priority, b'>']);
        out.extend_from_slice(line);
        out.push(b'\n');
    }
    out
}

fn push_field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    if value.contains(&b'\n') {
        out.push(b'\n');
        out.extend_from_slice(&(value.len() as u64).to_le_bytes());
    } else {
        out.push(b'=');
    }
    out.extend_from_slice(value);
    out.push(b'\n');
}

/// A connection to the journal.
pub(crate) struct Journal<W> {
    socket: Option<OwnedFd>,
    path: PathBuf,
    /// Standard error, for entries that the socket does not take.
    instead: W,
}

impl<W: Write> Journal<W> {
    /// Opens the system's journal; entries that its socket does not take go to `instead`.
    pub(crate) fn new(instead: W) -> Journal<W> {
        Journal::at(Path::new(SOCKET), instead)
    }

    fn at(path: &Path, instead: W) -> Journal<W> {
        let (kind, flags) = (SocketType::DGRAM, SocketFlags::CLOEXEC);
        let socket = socket_with(AddressFamily::UNIX, kind, flags, None).ok();
        Journal { socket, path: path.to_owned(), instead }
    }

    fn say(&mut self, priority: u8, text: &[u8], fields: &[u8]) {
        let mut entry = Vec::with_capacity(text.len() + fields.len() + 64);
        push_field(&mut entry, "PRIORITY", &[priority]);
        push_field(&mut entry, "SYSLOG_IDENTIFIER", IDENTIFIER.as_bytes());
        push_field(&mut entry, "MESSAGE", text);
        entry.extend_from_slice(fields);
        if !self.send(&entry) {
            write_all(&mut self.instead, &with_priority(priority, text));
        }
    }

    /// Returns false if the journal does not take the entry: no journal runs, or the entry is too
    /// long.
    fn send(&self, entry: &[u8]) -> bool {
        // The path is resolved for each entry, so that a recreated socket is found.
        let (Some(socket), Ok(address)) = (&self.socket, SocketAddrUnix::new(&self.path)) else {
            return false;
        };
        loop {
            match sendto(socket, entry, SendFlags::NOSIGNAL, &address) {
                Err(Errno::INTR) => {}
                sent => return sent.is_ok(),
            }
        }
    }
}

impl<W: Write + Send + 'static> Sink for Journal<W> {
    fn write(&mut self, mut lines: &[u8]) {
        while let Some(((priority, text, fields), rest)) = decoded(lines) {
            self.say(priority, text, fields);
            lines = rest;
        }
    }

    fn say_lost(&mut self, lost: u64) {
        self.say(priority(Level::Warn), said_lost(lost).as_bytes(), b"");
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    fn entry(level: Level, text: &str, fields: &[(&str, &str)]) -> Vec<u8> {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Entry { level, text: text.to_owned(), fields: fields.iter().map(own).collect() }.encoded()
    }

    #[test]
    fn entries_are_datagrams_of_fields() {
        let dir = std::env::temp_dir().join(format!("vioswitch-journal-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("socket");
        let mut journal = Journal::at(&path, Vec::new());
        journal.write(&entry(Level::Warn, "before\nit is there", &[("A", "1")]));
        assert_eq!(journal.instead, b"<4>before\n<4>it is there\n");
        let socket = UnixDatagram::bind(&path).unwrap();
        let come = || {
            let mut bytes = [0; 4096];
            let count = socket.recv(&mut bytes).unwrap();
            bytes[..count].to_vec()
        };
        let first = entry(Level::Error, "one", &[("MESSAGE_ID", "ab"), ("VIOSWITCH_PORT", "vm1")]);
        let second = entry(Level::Debug, "a\nb", &[("X", "c\nd")]);
        journal.write(&[first, second].concat());
        let head = "SYSLOG_IDENTIFIER=vioswitchd\n";
        let expected =
            format!("PRIORITY=3\n{head}MESSAGE=one\nMESSAGE_ID=ab\nVIOSWITCH_PORT=vm1\n");
        assert_eq!(come(), expected.as_bytes());
        let length = "\u{3}\0\0\0\0\0\0\0";
        let expected = format!("PRIORITY=7\n{head}MESSAGE\n{length}a\nb\nX\n{length}c\nd\n");
        assert_eq!(come(), expected.as_bytes());
        journal.say_lost(7);
        let lost = String::from_utf8(come()).unwrap();
        assert!(lost.starts_with("PRIORITY=4\n") && lost.contains("[7 log lines lost"), "{lost}");
        // The text is longer than a datagram can be.
        let long = "x".repeat(8 << 20);
        journal.instead.clear();
        journal.write(&entry(Level::Info, &long, &[]));
        assert_eq!(journal.instead.len(), long.len() + 4);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn half_an_entry_is_none() {
        let whole = entry(Level::Info, "text", &[("A", "1")]);
        for end in 0..whole.len() {
            assert_eq!(decoded(&whole[..end]), None);
        }
        let queued: Queued<'_> = (b'6', b"text", b"A=1\n");
        assert_eq!(decoded(&whole), Some((queued, &b""[..])));
    }
}
