//! The process behind a forward: listens on the host, and connects from the namespace.
//!
//! The process opens its sockets on the host, and enters the user's namespaces afterwards, before
//! the process has threads. A socket stays in the namespace where the socket was made. Each
//! connection, or client of UDP, takes threads, so the number of both is limited: local users and
//! virtual machines may open connections and keep them.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::net::sockopt::set_socket_keepalive;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::forward::{Listening, PortForward};
use super::leases;
use crate::failure::Failure;

/// Most connections, or clients of UDP, of a port.
const MAX_PEERS: usize = 256;
/// Longest wait for a virtual machine that does not answer.
const CONNECT: Duration = Duration::from_secs(10);
/// Time without datagrams after which a client of UDP is forgotten.
const IDLE: Duration = Duration::from_secs(120);
/// Pause after a failed accept, as when the process is out of descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// Stack of a thread, in bytes; buffers are on the heap.
const STACK: usize = 128 << 10;
/// Bytes that are read at once.
const CHUNK: usize = 64 << 10;

/// Carry one forward; for the process that keeps the network
#[derive(Debug, Args)]
pub struct Relay {
    #[arg(value_parser = clap::value_parser!(PortForward))]
    forward: PortForward,
    /// Process whose namespaces the relay enters
    holder: u32,
    leases: PathBuf,
}

/// Where connections go: a port of a virtual machine, by its present lease.
#[derive(Clone)]
struct Target {
    vm: Arc<str>,
    port: u16,
    leases: Arc<Path>,
}

impl Target {
    fn address(&self) -> Option<SocketAddr> {
        leases::address_of(&self.vm, &self.leases).map(|address| (address, self.port).into())
    }
}

impl Relay {
    /// Serves until the process is killed. Prints "ready", or why the ports are not to be had.
    pub(super) fn run(&self) -> Result<(), Failure> {
        let sockets = match self.forward.listen() {
            Ok(sockets) => sockets,
            Err(reason) => return tell(&reason),
        };
        if let Err(error) = enter(self.holder) {
            return tell(&format!("cannot enter the namespace: {error}"));
        }
        tell("ready")?;
        let leases: Arc<Path> = self.leases.as_path().into();
        let vm: Arc<str> = self.forward.vm.as_str().into();
        let threads = sockets.into_iter().map(|(socket, port)| {
            let target = Target { vm: vm.clone(), port, leases: leases.clone() };
            spawn(move || match socket {
                Listening::Tcp(listener) => serve_tcp(&listener, &target),
                Listening::Udp(socket) => serve_udp(&Arc::new(socket), &target),
            })
        });
        let threads: io::Result<Vec<_>> = threads.collect();
        let threads = threads.map_err(|error| Failure::refused(format!("threads: {error}")))?;
        threads.into_iter().for_each(|thread| drop(thread.join()));
        Ok(())
    }
}

fn tell(line: &str) -> Result<(), Failure> {
    let told = writeln!(io::stdout(), "{line}");
    told.map_err(|error| Failure::refused(format!("standard output: {error}")))
}

fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<std::thread::JoinHandle<()>> {
    Builder::new().stack_size(STACK).spawn(work)
}

/// Enters the user and network namespaces of a process; the caller has no other thread.
fn enter(holder: u32) -> io::Result<()> {
    let open = |name| File::open(format!("/proc/{holder}/ns/{name}"));
    let (user, net) = (open("user")?, open("net")?);
    move_into_link_name_space(user.as_fd(), Some(LinkNameSpaceType::User))?;
    Ok(move_into_link_name_space(net.as_fd(), Some(LinkNameSpaceType::Network))?)
}

fn serve_tcp(listener: &TcpListener, target: &Target) {
    let present = Arc::new(());
    loop {
        let Ok((client, _)) = listener.accept() else {
            std::thread::sleep(PAUSE);
            continue;
        };
        if Arc::strong_count(&present) > MAX_PEERS {
            continue;
        }
        let (target, present) = (target.clone(), present.clone());
        // Without a thread the connection ends.
        let _ = spawn(move || {
            carry(&client, &target);
            drop(present);
        });
    }
}

/// Carries a connection to its end. Both ways end by themselves, as TCP can be half closed.
fn carry(client: &TcpStream, target: &Target) {
    let Some(address) = target.address() else { return };
    let Ok(vm) = TcpStream::connect_timeout(&address, CONNECT) else { return };
    for socket in [client, &vm] {
        // A peer that vanished ends the connection by and by; small answers go at once.
        let _ = set_socket_keepalive(socket, true);
        let _ = socket.set_nodelay(true);
    }
    let (Ok(client_in), Ok(vm_out)) = (client.try_clone(), vm.try_clone()) else { return };
    let Ok(there) = spawn(move || copy(&client_in, &vm_out)) else { return };
    copy(&vm, client);
    let _ = there.join();
}

/// Copies bytes until the end of the stream, and passes the end on. An error ends both ways.
fn copy(mut from: &TcpStream, mut to: &TcpStream) {
    let mut buffer = vec![0; CHUNK];
    loop {
        let copied = from.read(&mut buffer).and_then(|count| {
            to.write_all(&buffer[..count])?;
            Ok(count)
        });
        match copied {
            Ok(0) => return drop(to.shutdown(Shutdown::Write)),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => {
                let _ = from.shutdown(Shutdown::Both);
                return drop(to.shutdown(Shutdown::Both));
            }
        }
    }
}

/// Sockets to the virtual machine, one for each client, with the time of the last datagram.
type Clients = Arc<Mutex<HashMap<SocketAddr, (Arc<UdpSocket>, Instant)>>>;

fn serve_udp(socket: &Arc<UdpSocket>, target: &Target) {
    let clients = Clients::default();
    let mut buffer = vec![0; CHUNK];
    loop {
        let Ok((count, client)) = socket.recv_from(&mut buffer) else {
            std::thread::sleep(PAUSE);
            continue;
        };
        let mut all = clients.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.get_mut(&client).map(|(vm, last)| {
            *last = Instant::now();
            vm.clone()
        });
        let room = all.len() < MAX_PEERS;
        drop(all);
        let vm = known.or_else(|| match room {
            true => begin(socket, client, target, &clients),
            false => None,
        });
        // A datagram may be lost.
        let _ = vm.map(|vm| vm.send(&buffer[..count]));
    }
}

/// Makes the socket for a client, and starts the thread that returns answers to the client.
fn begin(
    socket: &Arc<UdpSocket>,
    client: SocketAddr,
    target: &Target,
    clients: &Clients,
) -> Option<Arc<UdpSocket>> {
    let address = target.address()?;
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let vm = Arc::new(UdpSocket::bind(any).ok()?);
    vm.connect(address).ok()?;
    vm.set_read_timeout(Some(IDLE)).ok()?;
    let (answers, to, all) = (vm.clone(), socket.clone(), clients.clone());
    spawn(move || return_answers(&answers, &to, client, &all)).ok()?;
    let mut all = clients.lock().unwrap_or_else(PoisonError::into_inner);
    all.insert(client, (vm.clone(), Instant::now()));
    Some(vm)
}

fn return_answers(vm: &UdpSocket, socket: &UdpSocket, client: SocketAddr, clients: &Clients) {
    let mut buffer = vec![0; CHUNK];
    loop {
        match vm.recv(&mut buffer) {
            // A datagram may be lost.
            Ok(count) => drop(socket.send_to(&buffer[..count], client)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut all = clients.lock().unwrap_or_else(PoisonError::into_inner);
                let is_idle = all.get(&client).is_none_or(|(_, last)| last.elapsed() >= IDLE);
                if is_idle {
                    all.remove(&client);
                    return;
                }
            }
            // The virtual machine has no such service yet.
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(port: u16) -> Target {
        Target { vm: "127.0.0.1".into(), port, leases: Path::new("/").into() }
    }

    /// The client closes its side first, and still gets all that the server sends.
    #[test]
    fn a_half_closed_connection_carries_the_answer() {
        let (server, listener) =
            (TcpListener::bind("127.0.0.1:0"), TcpListener::bind("127.0.0.1:0"));
        let (server, listener) = (server.unwrap(), listener.unwrap());
        let to = target(server.local_addr().unwrap().port());
        let at = listener.local_addr().unwrap();
        spawn(move || serve_tcp(&listener, &to)).unwrap();
        let mut client = TcpStream::connect(at).unwrap();
        client.write_all(b"question").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let (mut vm, _) = server.accept().unwrap();
        let mut question = String::new();
        vm.read_to_string(&mut question).unwrap();
        let answer = vec![7; 1 << 20];
        vm.write_all(&answer).unwrap();
        drop(vm);
        let mut got = Vec::new();
        client.read_to_end(&mut got).unwrap();
        assert_eq!((question.as_str(), got == answer), ("question", true));
    }

    /// Each client gets the answers to its own datagrams.
    #[test]
    fn answers_of_udp_go_to_the_asker() {
        let bind = || UdpSocket::bind("127.0.0.1:0").unwrap();
        let (vm, socket, clients) = (bind(), Arc::new(bind()), [bind(), bind()]);
        let (at, to) = (socket.local_addr().unwrap(), target(vm.local_addr().unwrap().port()));
        spawn(move || serve_udp(&socket, &to)).unwrap();
        let mut buffer = [0; 16];
        for (number, client) in clients.iter().enumerate() {
            client.send_to(&[number as u8], at).unwrap();
            let (count, from) = vm.recv_from(&mut buffer).unwrap();
            assert_eq!(&buffer[..count], &[number as u8]);
            vm.send_to(&[10 + number as u8], from).unwrap();
        }
        for (number, client) in clients.iter().enumerate() {
            let (count, from) = client.recv_from(&mut buffer).unwrap();
            assert_eq!((&buffer[..count], from), (&[10 + number as u8][..], at));
        }
    }
}
