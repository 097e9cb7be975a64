//! `hostpath`: traffic of the host's stack by an interface of the switch, and what the traffic
//! costs. `scripts/bench --cases vduse` runs it beside a TAP and beside a VDUSE device.
//!
//! `udp` and `ping` have a guest behind another port of the switch, which sends each packet back;
//! `tcp` has a receiver in another network namespace, behind an interface of the same kind. A line
//! says what a frame costs: a frame there and back, or 1,448 bytes of a stream.
//!
//! Costs are the scheduler's times of threads, in nanoseconds. Under QEMU's `-icount shift=0` a
//! nanosecond is an instruction.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

use clap::{Parser, Subcommand};

mod costs;
mod echo;

use costs::{Costs, Sample};

/// Datagrams under way at most.
const WINDOW: u64 = 32;
/// Bytes of payload in a full segment with timestamps.
const SEGMENT: u64 = 1448;
/// Bytes of a write and of a read.
const CHUNK: usize = 128 << 10;
/// Bytes of IPv4's and UDP's header with Ethernet's.
const HEADERS: usize = 42;
/// Bytes of payload of a ping, and the pause before each.
const PING: usize = 56;
const PAUSE: Duration = Duration::from_millis(5);
const PATIENCE: Duration = Duration::from_secs(10);

/// Measures what traffic of the host by an interface of the switch costs
#[derive(Debug, Parser)]
#[command(name = "hostpath")]
struct Options {
    /// The switch's process
    #[arg(long)]
    pid: u32,
    #[command(subcommand)]
    traffic: Traffic,
}

#[derive(Debug, Subcommand)]
enum Traffic {
    /// Datagrams of frames of LEN bytes to the guest and back
    Udp { socket: PathBuf, to: IpAddr, len: usize, frames: u64 },
    /// Datagrams one by one, with a pause of 5 ms before each
    Ping { socket: PathBuf, to: IpAddr, frames: u64 },
    /// A stream into the network namespace of this name
    Tcp { netns: String, to: IpAddr, segments: u64 },
}

fn main() -> ExitCode {
    let options = Options::parse();
    match measure(&options) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("hostpath: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> io::Result<Costs> {
    let pid = options.pid;
    match &options.traffic {
        Traffic::Udp { socket, to, len, frames } => {
            let load = Load { len: len.saturating_sub(HEADERS), window: WINDOW, pause: None };
            echoed(pid, socket, *to, &load, *frames)
        }
        Traffic::Ping { socket, to, frames } => {
            let load = Load { len: PING, window: 1, pause: Some(PAUSE) };
            echoed(pid, socket, *to, &load, *frames)
        }
        Traffic::Tcp { netns, to, segments } => stream(pid, netns, *to, *segments),
    }
}

/// How datagrams are sent.
struct Load {
    /// Bytes of payload.
    len: usize,
    /// Datagrams under way at most.
    window: u64,
    /// Pause before each window.
    pause: Option<Duration>,
}

/// Measures datagrams to the guest and back.
fn echoed(pid: u32, guest: &Path, to: IpAddr, load: &Load, frames: u64) -> io::Result<Costs> {
    echo::beside(guest, |thread| {
        let socket = connected(to)?;
        rounds(&socket, load, frames / 10)?;
        let before = Sample::take(pid, thread)?;
        rounds(&socket, load, frames)?;
        Ok(Sample::take(pid, thread)?.since(&before, frames))
    })
}

/// Returns a socket of UDP's port for nothing (9) of an address.
fn connected(to: IpAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(SocketAddr::new(to, 9))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(socket)
}

/// Sends so many datagrams and receives them, a window at a time.
fn rounds(socket: &UdpSocket, load: &Load, frames: u64) -> io::Result<()> {
    let (payload, mut received) = (vec![0x5a; load.len], vec![0; load.len + 1]);
    let mut left = frames;
    while left > 0 {
        load.pause.into_iter().for_each(std::thread::sleep);
        let now = load.window.min(left);
        for _ in 0..now {
            socket.send(&payload)?;
        }
        for _ in 0..now {
            if socket.recv(&mut received)? != payload.len() {
                return Err(io::Error::other("a datagram came back with another length"));
            }
        }
        left -= now;
    }
    Ok(())
}

/// Measures a stream from here to a thread in another network namespace.
fn stream(pid: u32, netns: &str, to: IpAddr, segments: u64) -> io::Result<Costs> {
    let (namespace, listening) = (File::open(format!("/run/netns/{netns}"))?, mpsc::channel());
    let (tell, told) = listening;
    // Ends with the stream.
    std::thread::spawn(move || match listen(&namespace, to) {
        Ok(listener) => {
            let _ = tell.send(listener.local_addr());
            let mut bytes = vec![0; CHUNK];
            if let Ok((mut stream, _)) = listener.accept() {
                while stream.read(&mut bytes).is_ok_and(|len| len > 0) {}
            }
        }
        Err(error) => drop(tell.send(Err(error))),
    });
    let mut stream = TcpStream::connect(told.recv().map_err(io::Error::other)??)?;
    let bytes = vec![0x5a; CHUNK];
    let mut write = |segments: u64| -> io::Result<()> {
        let chunks = (segments * SEGMENT).div_ceil(CHUNK as u64);
        (0..chunks).try_for_each(|_| stream.write_all(&bytes))
    };
    write(segments / 10)?;
    let before = Sample::take(pid, None)?;
    write(segments)?;
    Ok(Sample::take(pid, None)?.since(&before, segments))
}

/// Moves this thread to a network namespace, and listens there.
fn listen(namespace: &File, to: IpAddr) -> io::Result<TcpListener> {
    // SAFETY: a plain system call, which changes the network namespace of this thread alone.
    match unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } {
        0 => TcpListener::bind((to, 0)),
        _ => Err(io::Error::last_os_error()),
    }
}
