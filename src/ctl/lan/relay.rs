//! The process behind a forward: listens on the host, and connects from the namespace.
//!
//! The process opens its sockets on the host, and enters the user's namespaces afterwards, before
//! the process has threads. A socket stays in the namespace where the socket was made. Each
//! connection, or client of UDP, takes threads and descriptors, so a forward has a limited number
//! of both: local users and virtual machines may open connections and keep them.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::net::sockopt::set_socket_keepalive;
use rustix::net::{Shutdown as Ways, shutdown};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::forward::{Listening, PortForward};
use super::leases::Known;
use crate::failure::Failure;
use crate::output::say;

/// Most connections, or clients of UDP, of a forward. With two descriptors each, and 200 listening
/// sockets, the process stays below the usual limit of 1024 descriptors.
const MAX_PEERS: usize = 256;
/// Longest wait for a virtual machine that does not answer.
const CONNECT: Duration = Duration::from_secs(10);
/// Interval at which a client of UDP gets the present address of the virtual machine.
const LOOK: Duration = Duration::from_secs(3);
/// Time without datagrams after which a client of UDP is forgotten.
const IDLE: Duration = Duration::from_secs(120);
/// Least time between two lines about connections that fail.
const COMPLAINT: Duration = Duration::from_secs(10);
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
    known: Arc<Known>,
    complaints: Arc<Complaints>,
}

/// Writes why connections fail to the log, at most a line each `COMPLAINT`: local users choose the
/// number of connections.
#[derive(Default)]
struct Complaints(Mutex<Written>);

/// The last line that was written, and the number of later lines that were not.
#[derive(Default)]
struct Written {
    last: Option<Instant>,
    left_out: u64,
}

impl Complaints {
    /// Returns the line to write, if a line may be written now.
    fn line(&self, why: &str, now: Instant) -> Option<String> {
        let mut written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if written.last.is_some_and(|last| now.duration_since(last) < COMPLAINT) {
            written.left_out += 1;
            return None;
        }
        let left_out = std::mem::take(&mut written.left_out);
        written.last = Some(now);
        Some(match left_out {
            0 => why.to_owned(),
            _ => format!("{why} ({left_out} other failures before)"),
        })
    }
}

/// The connections and clients of UDP that one forward has.
#[derive(Clone, Default)]
struct Peers(Arc<AtomicUsize>);

/// Place of one connection or client among the `Peers`.
struct Seat(Peers);

impl Peers {
    /// Takes a place, if any is free.
    fn sit(&self) -> Option<Seat> {
        let seat = Seat(self.clone());
        (self.0.fetch_add(1, Ordering::Relaxed) < MAX_PEERS).then_some(seat)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Target {
    fn address(&self) -> Option<SocketAddr> {
        let address = self.known.address_of(&self.vm, &self.leases);
        address.map(|address| (address, self.port).into())
    }

    /// Writes why a connection, or a client of UDP, does not get through.
    fn complain(&self, why: &str) {
        let why = format!("to {}:{}: {why}", self.vm, self.port);
        if let Some(line) = self.complaints.line(&why, Instant::now()) {
            say(&line);
        }
    }
}

impl Relay {
    /// Serves until the process is killed. Prints "ready" once the ports are open.
    pub(super) fn run(&self) -> Result<(), Failure> {
        let sockets = self.forward.listen().map_err(Failure::refused)?;
        enter(self.holder)
            .map_err(|error| Failure::refused(format!("cannot enter the namespace: {error}")))?;
        // After a restart nobody listens.
        let _ = writeln!(io::stdout(), "ready");
        let peers = Peers::default();
        let leases: Arc<Path> = self.leases.as_path().into();
        let (known, complaints) = (Arc::<Known>::default(), Arc::<Complaints>::default());
        let vm: Arc<str> = self.forward.vm.as_str().into();
        let threads = sockets.into_iter().map(|(socket, port)| {
            let (vm, leases, known) = (vm.clone(), leases.clone(), known.clone());
            let target = Target { vm, port, leases, known, complaints: complaints.clone() };
            let peers = peers.clone();
            spawn(move || match socket {
                Listening::Tcp(listener) => serve_tcp(&listener, &target, &peers),
                Listening::Udp(socket) => serve_udp(&Arc::new(socket), &target, &peers),
            })
        });
        let threads: io::Result<Vec<_>> = threads.collect();
        let threads = threads.map_err(|error| Failure::refused(format!("threads: {error}")))?;
        threads.into_iter().for_each(|thread| drop(thread.join()));
        Ok(())
    }
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

fn serve_tcp(listener: &TcpListener, target: &Target, peers: &Peers) {
    loop {
        let client = match listener.accept() {
            Ok((client, _)) => client,
            Err(error) => {
                target.complain(&format!("cannot accept: {error}"));
                std::thread::sleep(PAUSE);
                continue;
            }
        };
        let Some(seat) = peers.sit() else {
            target.complain(&full());
            continue;
        };
        let own = target.clone();
        let thread = spawn(move || {
            if let Err(error) = carry(client, &own) {
                own.complain(&error.to_string());
            }
            drop(seat);
        });
        if let Err(error) = thread {
            target.complain(&format!("cannot make a thread: {error}"));
        }
    }
}

fn full() -> String {
    format!("the forward has {MAX_PEERS} connections and clients, the most")
}

fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::AddrNotAvailable, "the machine has no address")
}

/// Carries a connection to its end. Both ways end by themselves, as TCP can be half closed. Fails
/// if the connection does not begin.
fn carry(client: TcpStream, target: &Target) -> io::Result<()> {
    let address = target.address().ok_or_else(no_address)?;
    let vm = TcpStream::connect_timeout(&address, CONNECT)?;
    for socket in [&client, &vm] {
        // A peer that vanished ends the connection by and by; small answers go at once.
        let _ = set_socket_keepalive(socket, true);
        let _ = socket.set_nodelay(true);
    }
    let (client, vm) = (Arc::new(client), Arc::new(vm));
    let (client_in, vm_out) = (client.clone(), vm.clone());
    let there = spawn(move || copy(&client_in, &vm_out))?;
    copy(&vm, &client);
    let _ = there.join();
    Ok(())
}

/// Copies bytes until the end of the stream, and passes the end on. A failed read ends both ways,
/// as the sender is gone. A failed write ends this way alone: what the receiver sent before it left
/// is still to be read, such as the refusal of a long request.
fn copy(mut from: &TcpStream, mut to: &TcpStream) {
    let mut buffer = vec![0; CHUNK];
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => return drop(to.shutdown(Shutdown::Write)),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => {
                let _ = from.shutdown(Shutdown::Both);
                return drop(to.shutdown(Shutdown::Both));
            }
        };
        if to.write_all(&buffer[..count]).is_err() {
            return drop(from.shutdown(Shutdown::Read));
        }
    }
}

/// A client of UDP, with the socket that stands for the client in the namespace.
struct Client {
    vm: Arc<UdpSocket>,
    /// Address of the virtual machine that the socket has, and the time of the last look at it.
    address: SocketAddr,
    looked: Instant,
    /// Time of the last datagram of the client.
    last: Instant,
    _seat: Seat,
}

impl Drop for Client {
    fn drop(&mut self) {
        // Wakes the thread that returns answers.
        let _ = shutdown(&self.vm, Ways::Read);
    }
}

/// The clients of a UDP port.
#[derive(Clone, Default)]
struct Clients(Arc<Mutex<HashMap<SocketAddr, Client>>>);

impl Clients {
    fn lock(&self) -> MutexGuard<'_, HashMap<SocketAddr, Client>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the socket of a client, unless the virtual machine has another address now.
    fn find(&self, client: SocketAddr, target: &Target) -> Option<Arc<UdpSocket>> {
        let mut all = self.lock();
        let known = all.get_mut(&client)?;
        known.last = Instant::now();
        if known.looked.elapsed() >= LOOK {
            known.looked = known.last;
            if target.address().is_some_and(|address| address != known.address) {
                all.remove(&client);
                return None;
            }
        }
        Some(known.vm.clone())
    }

    /// Takes a place among the peers, if need be from the client that was silent longest.
    fn sit(&self, peers: &Peers) -> Option<Seat> {
        peers.sit().or_else(|| {
            let mut all = self.lock();
            let oldest =
                all.iter().min_by_key(|(_, known)| known.last).map(|(client, _)| *client)?;
            all.remove(&oldest);
            peers.sit()
        })
    }

    /// Forgets a client that has been silent for long. Returns true if the socket is no client's.
    fn forget(&self, client: SocketAddr, vm: &Arc<UdpSocket>) -> bool {
        let mut all = self.lock();
        let Some(known) = all.get(&client).filter(|known| Arc::ptr_eq(&known.vm, vm)) else {
            return true;
        };
        let is_idle = known.last.elapsed() >= IDLE;
        if is_idle {
            all.remove(&client);
        }
        is_idle
    }
}

fn serve_udp(socket: &Arc<UdpSocket>, target: &Target, peers: &Peers) {
    let clients = Clients::default();
    let mut buffer = vec![0; CHUNK];
    loop {
        let Ok((count, client)) = socket.recv_from(&mut buffer) else {
            std::thread::sleep(PAUSE);
            continue;
        };
        let known = clients.find(client, target);
        let vm = known.or_else(|| begin(socket, client, target, &clients, peers));
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
    peers: &Peers,
) -> Option<Arc<UdpSocket>> {
    let made = connect(client, target, clients, peers);
    let vm = made.map_err(|error| target.complain(&error.to_string())).ok()?;
    let (answers, to, all) = (vm.clone(), socket.clone(), clients.clone());
    if let Err(error) = spawn(move || return_answers(&answers, &to, client, &all)) {
        target.complain(&format!("cannot make a thread: {error}"));
        clients.lock().remove(&client);
    }
    Some(vm)
}

/// Makes the socket for a client, and notes the client.
fn connect(
    client: SocketAddr,
    target: &Target,
    clients: &Clients,
    peers: &Peers,
) -> io::Result<Arc<UdpSocket>> {
    let address = target.address().ok_or_else(no_address)?;
    let seat = clients.sit(peers).ok_or_else(|| io::Error::other(full()))?;
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let vm = Arc::new(UdpSocket::bind(any)?);
    vm.connect(address)?;
    vm.set_read_timeout(Some(IDLE))?;
    let now = Instant::now();
    let known = Client { vm: vm.clone(), address, looked: now, last: now, _seat: seat };
    clients.lock().insert(client, known);
    Ok(vm)
}

fn return_answers(vm: &Arc<UdpSocket>, socket: &UdpSocket, client: SocketAddr, all: &Clients) {
    let mut buffer = vec![0; CHUNK];
    loop {
        match vm.recv(&mut buffer) {
            // An empty datagram, or the end of the client.
            Ok(0) if all.forget(client, vm) => return,
            // A datagram may be lost.
            Ok(count) => drop(socket.send_to(&buffer[..count], client)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if all.forget(client, vm) {
                    return;
                }
            }
            // The virtual machine has no such service yet.
            Err(_) => {
                if all.forget(client, vm) {
                    return;
                }
                std::thread::sleep(PAUSE);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    fn target(port: u16) -> Target {
        of("127.0.0.1", port, Path::new("/"))
    }

    fn of(vm: &str, port: u16, leases: &Path) -> Target {
        let (known, complaints) = (Arc::default(), Arc::default());
        Target { vm: vm.into(), port, leases: leases.into(), known, complaints }
    }

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    /// A server refuses a request and leaves without reading the request; the client gets the
    /// refusal.
    #[test]
    fn the_last_answer_of_a_server_that_left_arrives() {
        let (mut asker, client) = pair();
        let (vm, mut server) = pair();
        (&vm).write_all(b"request").unwrap();
        server.peek(&mut [0]).unwrap();
        server.write_all(b"refused").unwrap();
        // The kernel resets a connection whose bytes nobody has read.
        drop(server);
        asker.write_all(b"more").unwrap();
        asker.set_read_timeout(Some(CONNECT)).unwrap();
        let mut reset = [PollFd::new(&vm, PollFlags::empty())];
        assert!(poll(&mut reset, None).is_ok() && !reset[0].revents().is_empty());
        copy(&client, &vm);
        copy(&vm, &client);
        let mut got = String::new();
        asker.read_to_string(&mut got).unwrap();
        assert_eq!(got, "refused");
    }

    #[test]
    fn failures_are_written_now_and_then() {
        let (complaints, now) = (Complaints::default(), Instant::now());
        assert_eq!(complaints.line("one", now).as_deref(), Some("one"));
        assert_eq!(complaints.line("two", now + COMPLAINT / 2), None);
        let told = complaints.line("three", now + COMPLAINT);
        assert_eq!(told.as_deref(), Some("three (1 other failures before)"));
    }

    /// The client closes its side first, and still gets all that the server sends.
    #[test]
    fn a_half_closed_connection_carries_the_answer() {
        let (server, listener) =
            (TcpListener::bind("127.0.0.1:0"), TcpListener::bind("127.0.0.1:0"));
        let (server, listener) = (server.unwrap(), listener.unwrap());
        let to = target(server.local_addr().unwrap().port());
        let at = listener.local_addr().unwrap();
        spawn(move || serve_tcp(&listener, &to, &Peers::default())).unwrap();
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
        spawn(move || serve_udp(&socket, &to, &Peers::default())).unwrap();
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

    /// A forward of a range has one limit for all ports, and room for a new client of UDP comes
    /// from the oldest.
    #[test]
    fn a_forward_has_a_limited_number_of_peers() {
        let (peers, clients) = (Peers::default(), Clients::default());
        let mut seats: Vec<_> = (1..MAX_PEERS).map(|_| peers.sit().expect("a seat")).collect();
        let bind = || UdpSocket::bind("127.0.0.1:0").unwrap();
        let (vm, socket) = (bind(), Arc::new(bind()));
        let to = target(vm.local_addr().unwrap().port());
        let client = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        assert!(begin(&socket, client(1), &to, &clients, &peers).is_some());
        assert!(peers.sit().is_none());
        assert!(begin(&socket, client(2), &to, &clients, &peers).is_some());
        assert!(clients.find(client(1), &to).is_none() && clients.find(client(2), &to).is_some());
        seats.pop();
        assert!(peers.sit().is_some());
    }

    /// A client that goes on sending reaches the machine's new address.
    #[test]
    fn a_client_of_udp_follows_the_lease() {
        let path = std::env::temp_dir().join(format!("vioswitchctl-relay-{}", std::process::id()));
        let lease =
            |address| std::fs::write(&path, format!("1 52:54:00:00:00:01 {address} vm1 *\n"));
        lease("127.0.0.2").unwrap();
        let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap());
        let to = of("vm1", 9, &path);
        let (clients, peers) = (Clients::default(), Peers::default());
        let client = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        begin(&socket, client, &to, &clients, &peers).expect("a socket");
        lease("127.0.0.3").unwrap();
        assert!(clients.find(client, &to).is_some());
        clients.lock().get_mut(&client).unwrap().looked -= LOOK;
        assert!(clients.find(client, &to).is_none());
        let vm = begin(&socket, client, &to, &clients, &peers).expect("a socket");
        assert_eq!(vm.peer_addr().unwrap().to_string(), "127.0.0.3:9");
        std::fs::remove_file(&path).unwrap();
    }
}
