//! `vioswitchctl capture`: prints passing frames as lines, or writes a pcapng file.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use api::wire::{self, Direction, Instruction, Packet, Packets};
use base::words::counted;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use clap::Args;
use jiff::Timestamp;

use crate::client::{Client, NextPart};
use crate::failure::Failure;
use crate::output::say;
use crate::pcapng::{Frame, Writer};

/// Name of standard output for `-w`.
const STDOUT: &str = "-";

/// Capture frames where they enter (in) and leave (out) the switch
///
/// Ends with --count, with ^C, or when the last of the ports is deleted.
#[derive(Debug, Args)]
pub struct Capture {
    /// Ports; by default all ports
    ports: Vec<String>,
    /// Only dropped frames, with the reason
    #[arg(long)]
    drops: bool,
    /// Only frames that match this expression of pcap-filter(7), which tcpdump compiles
    #[arg(long, value_name = "EXPRESSION")]
    filter: Option<String>,
    /// Keep at most BYTES bytes of each frame
    #[arg(long, value_name = "BYTES", default_value_t = 65_557,
          value_parser = clap::value_parser!(u32).range(1..=65_557))]
    snaplen: u32,
    /// End after N frames
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Write pcapng to FILE; - stands for standard output
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
}

/// Longest time after ^C for frames that are still on their way.
const LAST: Duration = Duration::from_millis(100);

/// Destination of the frames.
enum Output {
    Lines(io::Stdout),
    /// Packets as JSON, a line for each packet.
    Json(io::Stdout),
    Pcapng(Box<Writer<BufWriter<Box<dyn Write>>>>),
}

impl Capture {
    /// Runs the capture to its end.
    pub(crate) fn run(&self, client: &mut Client, json: bool) -> Result<(), Failure> {
        let filter = self.filter.as_deref().map(compile).transpose()?;
        let request = wire::Capture {
            ports: Some(self.ports.clone()),
            drops: Some(self.drops),
            filter,
            snaplen: Some(self.snaplen.into()),
        };
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(|e| cannot(&e))?;
        }
        client.begin(&request)?;
        // The switch answers once the capture has begun, or refuses; after a refusal no file is
        // created.
        if matches!(client.next::<Packets>(&stop)?, NextPart::Nothing) {
            return Ok(());
        }
        let mut output = self.open(json)?;
        say("capturing, end with ^C");
        let (mut told, mut lost) = (0, 0);
        let ended = self.write_all(client, &stop, &mut output, &mut told, &mut lost);
        if let Output::Pcapng(writer) = output {
            writer.finish(lost).map_err(|error| cannot(&error))?;
        }
        ended?;
        say(&format!("{} captured, {lost} lost", counted(told, "frame")));
        Ok(())
    }

    fn open(&self, json: bool) -> Result<Output, Failure> {
        let Some(path) = &self.write else {
            let stdout = io::stdout();
            return Ok(if json { Output::Json(stdout) } else { Output::Lines(stdout) });
        };
        let file: Box<dyn Write> = if path == Path::new(STDOUT) {
            if io::stdout().is_terminal() {
                let text = "-w - writes binary data: redirect the output, such as | tshark -r -";
                return Err(Failure::usage(text.to_owned()));
            }
            Box::new(io::stdout())
        } else {
            let file = File::create(path);
            Box::new(file.map_err(|e| Failure::refused(format!("{}: {e}", path.display())))?)
        };
        let mut writer = Writer::new(BufWriter::new(file), self.snaplen).map_err(|e| cannot(&e))?;
        // A file without frames still names the ports.
        for port in &self.ports {
            writer.interface(port).map_err(|error| cannot(&error))?;
        }
        writer.flush().map_err(|error| cannot(&error))?;
        Ok(Output::Pcapng(Box::new(writer)))
    }

    fn write_all(
        &self,
        client: &mut Client,
        stop: &AtomicBool,
        output: &mut Output,
        told: &mut u64,
        lost: &mut u64,
    ) -> Result<(), Failure> {
        let most = self.count.unwrap_or(u64::MAX);
        // Frames may pass without an end: after ^C the client waits for earlier frames only.
        let mut end = None;
        while *told < most && end.is_none_or(|end| Instant::now() < end) {
            let NextPart::Part(part, more) = client.next::<Packets>(stop)? else { break };
            if stop.load(Ordering::Relaxed) {
                end.get_or_insert_with(|| Instant::now() + LAST);
            }
            let mut now_lost = part.lost;
            *lost += now_lost;
            for packet in
                part.packets.iter().take(usize::try_from(most - *told).unwrap_or(usize::MAX))
            {
                *told += 1;
                match output.write(packet, std::mem::take(&mut now_lost)) {
                    // The reader of the output has seen enough.
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                    written => written.map_err(|error| cannot(&error))?,
                }
            }
            output.flush().map_err(|error| cannot(&error))?;
            if !more {
                break;
            }
        }
        Ok(())
    }
}

fn cannot(error: &io::Error) -> Failure {
    Failure::refused(format!("cannot write the capture: {error}"))
}

impl Output {
    /// Writes one packet, before which `lost` packets were lost.
    fn write(&mut self, packet: &Packet, lost: u64) -> io::Result<()> {
        let data = BASE64_STANDARD.decode(&packet.data).unwrap_or_default();
        let frame = Frame {
            port: &packet.port,
            inbound: packet.direction == Direction::In,
            time: packet.time,
            length: u32::try_from(packet.length).unwrap_or(u32::MAX),
            data: &data,
            dropped: packet.dropped.as_deref(),
        };
        match self {
            Output::Json(to) => writeln!(to, "{}", wire::json(packet)),
            Output::Lines(to) => writeln!(to, "{}", line(&frame)),
            Output::Pcapng(writer) => writer.frame(&frame, lost),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Output::Lines(to) | Output::Json(to) => to.flush(),
            Output::Pcapng(writer) => writer.flush(),
        }
    }
}

/// Returns a frame as one line: time (UTC), port, direction, addresses, type, length, and the
/// reason of a drop.
fn line(frame: &Frame<'_>) -> String {
    let time = Timestamp::from_nanosecond(frame.time.into()).unwrap_or(Timestamp::MAX);
    let (time, port) = (time.strftime("%H:%M:%S.%6f"), frame.port);
    let way = if frame.inbound { "in" } else { "out" };
    let mut line = format!("{time} {port} {way:3} ");
    match frame.data.first_chunk::<14>() {
        Some(header) => {
            let mac = |at: usize| {
                let bytes = header[at..at + 6].iter().map(|byte| format!("{byte:02x}"));
                bytes.collect::<Vec<_>>().join(":")
            };
            let (from, to, kind) = (mac(6), mac(0), u16::from_be_bytes([header[12], header[13]]));
            line += &format!("{from} > {to}, ethertype {kind:#06x}, length {}", frame.length);
        }
        None => line += &format!("length {}", frame.length),
    }
    match frame.dropped {
        Some(reason) => format!("{line}, dropped: {reason}"),
        None => line,
    }
}

/// Returns the program that tcpdump makes of an expression, for the switch.
fn compile(expression: &str) -> Result<Vec<Instruction>, Failure> {
    let output = Command::new("tcpdump").args(["-ddd", "-y", "EN10MB", "--", expression]).output();
    let output = output.map_err(|error| {
        Failure::refused(format!("--filter needs tcpdump, which compiles it: {error}"))
    })?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        // The last line of tcpdump says what is wrong.
        let line = text.lines().last().unwrap_or("no reason").replace("tcpdump: ", "");
        return Err(Failure::usage(format!("--filter {expression:?}: {line}; see pcap-filter(7)")));
    }
    program(&String::from_utf8_lossy(&output.stdout))
        .ok_or_else(|| Failure::refused("tcpdump did not print a program".to_owned()))
}

/// Reads the output of `tcpdump -ddd`: the number of instructions, then an instruction on each
/// line.
fn program(text: &str) -> Option<Vec<Instruction>> {
    let mut lines = text.lines();
    let count: usize = lines.next()?.trim().parse().ok()?;
    let instruction = |line: &str| {
        let mut words = line.split(' ');
        let instruction = Instruction {
            code: words.next()?.parse().ok()?,
            jt: words.next()?.parse().ok()?,
            jf: words.next()?.parse().ok()?,
            k: words.next()?.parse().ok()?,
        };
        words.next().is_none().then_some(instruction)
    };
    let all: Option<Vec<Instruction>> = lines.map(instruction).collect();
    all.filter(|all| all.len() == count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_read() {
        let read = program("2\n40 0 0 12\n6 0 0 262144\n").unwrap();
        assert_eq!(read[0], Instruction { code: 40, jt: 0, jf: 0, k: 12 });
        assert_eq!(read.len(), 2);
        for bad in ["", "1\n", "1\n6 0 0\n", "2\n6 0 0 0\n", "x\n"] {
            assert_eq!(program(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_frame_is_one_line() {
        let mut data = [2; 60];
        data[..12].copy_from_slice(&[255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 1]);
        data[12..14].copy_from_slice(&[8, 6]);
        let frame = Frame {
            port: "vm1",
            inbound: true,
            time: 86_400_000_000_000 * 3 + 3_723_000_004_999,
            length: 60,
            data: &data,
            dropped: Some("hairpin"),
        };
        assert_eq!(
            line(&frame),
            "01:02:03.000004 vm1 in  02:00:00:00:00:01 > ff:ff:ff:ff:ff:ff, ethertype 0x0806, \
             length 60, dropped: hairpin"
        );
        let none = Frame { data: &[], length: 0, inbound: false, dropped: None, ..frame };
        assert_eq!(line(&none), "01:02:03.000004 vm1 out length 0");
    }
}
