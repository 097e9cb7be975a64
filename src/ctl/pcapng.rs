//! Writes captured frames as a pcapng file: draft-ietf-opsawg-pcapng.
//!
//! Each port is an interface. A frame's flags hold the direction, a frame's comment holds the
//! reason of a drop, and a frame's drop count holds the number of frames lost before the frame.

use std::io::{self, Write};

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const ETHERNET: u16 = 1;
/// Time stamps are in nanoseconds.
const RESOLUTION: u8 = 9;

// Options.
const COMMENT: u16 = 1;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;
const EPB_DROPCOUNT: u16 = 4;
const ISB_IFDROP: u16 = 5;

/// A frame to write.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    /// Port at which the frame was captured.
    pub(crate) port: &'a str,
    /// True if the frame goes from the port into the switch.
    pub(crate) inbound: bool,
    /// Time of the frame, in nanoseconds since 1970.
    pub(crate) time: u64,
    /// Bytes of the whole frame.
    pub(crate) length: u32,
    /// First bytes of the frame.
    pub(crate) data: &'a [u8],
    /// Reason why the switch dropped the frame.
    pub(crate) dropped: Option<&'a str>,
}

/// A pcapng file that is being written.
pub struct Writer<W: Write> {
    to: W,
    snaplen: u32,
    /// Names of the interfaces, by their numbers.
    interfaces: Vec<String>,
    /// Time stamp of the last frame.
    time: u64,
}

impl<W: Write> Writer<W> {
    /// Writes the beginning of a file.
    pub(crate) fn new(to: W, snaplen: u32) -> io::Result<Writer<W>> {
        let mut writer = Writer { to, snaplen, interfaces: Vec::new(), time: 0 };
        let mut body = Vec::new();
        body.extend(BYTE_ORDER.to_le_bytes());
        body.extend([1, 0, 0, 0]);
        // The length of the section is not known.
        body.extend(u64::MAX.to_le_bytes());
        let program = concat!("vioswitchctl ", env!("CARGO_PKG_VERSION"));
        option(&mut body, SHB_USERAPPL, program.as_bytes());
        writer.block(SECTION, body)?;
        Ok(writer)
    }

    /// Returns the number of a port's interface. The first call for a port writes the description
    /// of the interface.
    pub(crate) fn interface(&mut self, port: &str) -> io::Result<u32> {
        if let Some(known) = self.interfaces.iter().position(|name| name == port) {
            return Ok(known as u32);
        }
        let mut body = Vec::new();
        body.extend(ETHERNET.to_le_bytes());
        body.extend([0, 0]);
        body.extend(self.snaplen.to_le_bytes());
        option(&mut body, IF_NAME, port.as_bytes());
        option(&mut body, IF_TSRESOL, &[RESOLUTION]);
        self.block(INTERFACE, body)?;
        self.interfaces.push(port.to_owned());
        Ok(self.interfaces.len() as u32 - 1)
    }

    /// Writes a frame, before which `lost` frames were lost.
    pub(crate) fn frame(&mut self, frame: &Frame<'_>, lost: u64) -> io::Result<()> {
        let interface = self.interface(frame.port)?;
        self.time = frame.time;
        let mut body = Vec::new();
        body.extend(interface.to_le_bytes());
        timestamp(&mut body, frame.time);
        body.extend((frame.data.len() as u32).to_le_bytes());
        body.extend(frame.length.to_le_bytes());
        body.extend(frame.data);
        pad(&mut body);
        let direction: u32 = if frame.inbound { 1 } else { 2 };
        option(&mut body, EPB_FLAGS, &direction.to_le_bytes());
        if lost > 0 {
            option(&mut body, EPB_DROPCOUNT, &lost.to_le_bytes());
        }
        if let Some(reason) = frame.dropped {
            option(&mut body, COMMENT, format!("dropped: {reason}").as_bytes());
        }
        self.block(PACKET, body)
    }

    /// Flushes the output.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }

    /// Ends the file. The statistics of the first interface get `lost` as the number of lost
    /// frames.
    pub(crate) fn finish(mut self, lost: u64) -> io::Result<()> {
        if !self.interfaces.is_empty() {
            let mut body = Vec::new();
            body.extend(0u32.to_le_bytes());
            timestamp(&mut body, self.time);
            option(&mut body, ISB_IFDROP, &lost.to_le_bytes());
            self.block(STATISTICS, body)?;
        }
        self.flush()
    }

    /// Writes a block with its length before and after the body, and ends the block's options.
    fn block(&mut self, kind: u32, mut body: Vec<u8>) -> io::Result<()> {
        // opt_endofopt: each block here has options.
        body.extend([0; 4]);
        let len = (body.len() as u32 + 12).to_le_bytes();
        self.to.write_all(&[&kind.to_le_bytes()[..], &len, &body, &len].concat())
    }
}

fn timestamp(body: &mut Vec<u8>, time: u64) {
    body.extend(((time >> 32) as u32).to_le_bytes());
    body.extend((time as u32).to_le_bytes());
}

fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    body.extend(code.to_le_bytes());
    body.extend((value.len() as u16).to_le_bytes());
    body.extend(value);
    pad(body);
}

/// Pads a body: each part of a block begins at a multiple of four bytes.
fn pad(body: &mut Vec<u8>) {
    body.resize(body.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_whole() {
        let mut file = Vec::new();
        let mut writer = Writer::new(&mut file, 96).unwrap();
        let frame = Frame {
            port: "vm1",
            inbound: true,
            time: 1 << 40,
            length: 60,
            data: &[1, 2, 3],
            dropped: Some("no_buffer"),
        };
        writer.frame(&frame, 0).unwrap();
        writer.frame(&Frame { port: "uplink", dropped: None, ..frame }, 7).unwrap();
        writer.frame(&frame, 0).unwrap();
        writer.finish(7).unwrap();
        let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
        let (mut at, mut kinds) = (0, Vec::new());
        while at < file.len() {
            let len = word(at + 4) as usize;
            assert_eq!((len % 4, word(at + len - 4) as usize), (0, len), "at {at}");
            kinds.push(word(at));
            at += len;
        }
        assert_eq!(at, file.len());
        let all = [SECTION, INTERFACE, PACKET, INTERFACE, PACKET, PACKET, STATISTICS];
        assert_eq!(kinds, all);
        let text = String::from_utf8_lossy(&file);
        assert!(text.contains("dropped: no_buffer") && text.contains("uplink"));
    }
}
