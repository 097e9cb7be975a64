//! A stream's thread: lets one peer after the other in, or connects to a peer again and again.
//!
//! While a peer is connected, workers handle its frames. The workers report the end of the
//! connection, and this thread closes the connection: its queue may contain descriptors whose
//! closing lasts ([`datapath::guard::disposal`]). Meanwhile other peers that connect wait in the
//! queue of the listening socket.

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vmm_sys_util::eventfd::EventFd;

use super::front_end::{Acceptor, wait_for_closing};
use base::frame::Offloads;
use base::limits::{ACCEPT_RETRY_MAX, CLOSE_TIMEOUT_MILLIS, DROPPED_PAUSE};
use datapath::events::{What, reason};
use datapath::guard::disposal::Guarded;
use datapath::port::device::Device;
use datapath::port::device::datagrams::DatagramLink;
use datapath::port::device::link::{End, Link};
use datapath::port::device::stream::Connection;
use datapath::port::{DevicePort, FrontEnd, Port};
use datapath::vhost_user::socket::{Met, Opened};
use datapath::worker::{Token, Workers};
use sys::eventfd::is_readable;
use sys::poll::{self, Wake};
use sys::threads::run_again_after_panic;
use sys::unix_socket;

/// Serves peers until `stop` is written.
pub fn serve(port: &Port, mut acceptor: Acceptor, workers: &Workers, stop: &EventFd) {
    let Some(device) = port.as_stream() else { return };
    if let Acceptor::Listener(listener) = &acceptor {
        // A peer may send before its connection is accepted.
        unix_socket::refuse_descriptors(listener.as_fd());
    }
    let stopped = || is_readable(stop.as_raw_fd());
    run_again_after_panic(&format!("port {}: its thread", port.name), stopped, || {
        // Releases the connection that a panic left.
        release::<Connection>(device, None);
        while let Some(peer) = meet(&mut acceptor, port, stop) {
            let cost = || Arc::clone(&device.cost);
            let pause = match peer {
                Peer::Stream(socket, peer) => {
                    unix_socket::refuse_descriptors(socket.as_fd());
                    converse(port, Connection::new(socket, cost()), peer, workers, &stopped)
                }
                Peer::Datagrams(met) => {
                    let Met { socket, peer, first, address } = *met;
                    let link = DatagramLink::new(socket, Box::new(address), first, cost());
                    converse(port, link, peer, workers, &stopped)
                }
            };
            // If the wait fails there is no pause: a port without a pause is better than no port.
            if let Some(pause) = pause
                && poll::pause(stop, Instant::now() + pause).is_ok_and(|woken| woken == Wake::Stop)
            {
                return;
            }
            if wait_for_closing(stop) == Wake::Stop {
                return;
            }
        }
    });
}

/// A peer, with the socket that is connected to the peer.
enum Peer {
    Stream(Guarded<UnixStream>, FrontEnd),
    Datagrams(Box<Met>),
}

/// Waits for the next peer; `None` once `stop` is set.
fn meet(acceptor: &mut Acceptor, port: &Port, stop: &EventFd) -> Option<Peer> {
    if let Acceptor::Datagrams(source) = acceptor {
        let met = source.meet(stop, &port.stats.peers_refused);
        return met.map(Box::new).map(Peer::Datagrams);
    }
    match acceptor.meet(stop) {
        Opened::Connection(socket, peer) => Some(Peer::Stream(socket, peer)),
        Opened::Stopped => None,
    }
}

/// Serves one connection, from beginning to end; returns how long the next connection has to wait,
/// if at all.
fn converse<L: Link + 'static>(
    port: &Port,
    connection: L,
    peer: FrontEnd,
    workers: &Workers,
    stopped: &impl Fn() -> bool,
) -> Option<Duration> {
    let device = port.as_stream()?;
    let connection = Arc::new(connection);
    let (worker, token) = (workers.for_device(port, 0), Token::Device(port.id, 0));
    if let Err(error) = worker.watch_both(connection.as_raw_fd(), token) {
        if port.reports.log.allow() {
            log::warn!("port {}: cannot watch the socket: {error}", port.name);
        }
        return Some(ACCEPT_RETRY_MAX);
    }
    device.set_peer(Some(peer));
    port.begin();
    device.attach(vec![Arc::clone(&connection) as Device], Offloads::NONE);
    port.stats.attaches.add_shared(1);
    port.tell(What::Connected { pid: peer.pid, uid: peer.uid });
    // The worker looks for frames that came before it watched the connection.
    worker.look(token);
    let mut look = connection.look();
    while !device.is_lost() && !stopped() && connection.end().is_none() {
        device.wait_lost_for(look, stopped);
        look = connection.look();
    }
    worker.unwatch(connection.as_raw_fd());
    let end = connection.end().cloned();
    release(device, Some(connection));
    workers.forget_memberships(port.id);
    match &end {
        None | Some(End::Left) => port.tell(What::Disconnected),
        Some(why) => {
            port.stats.session_errors.add_shared(1);
            port.tell(What::DisconnectedBy { why: reason(why) });
        }
    }
    if !end.is_some_and(|end| end.is_harmful()) {
        return None;
    }
    port.tell(What::Closed { seconds: DROPPED_PAUSE.as_secs() });
    Some(DROPPED_PAUSE)
}

/// Takes the connection out of service and closes it, as soon as no worker holds it any more.
fn release<L: Link>(device: &DevicePort, connection: Option<Arc<L>>) {
    device.set_peer(None);
    device.give_up();
    let Some(mut connection) = connection else {
        device.close_lost();
        return;
    };
    // `connection` is another reference, so letting go of the device's reference closes nothing.
    device.let_go();
    for _ in 0..CLOSE_TIMEOUT_MILLIS {
        match Arc::try_unwrap(connection) {
            // This thread drops the last reference, which closes the connection.
            Ok(_) => return,
            Err(held) => connection = held,
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
