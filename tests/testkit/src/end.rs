//! What is behind a port, whatever its kind: something that frames are sent from and come to.

use std::time::Duration;

use crate::SOON;
use crate::host::Host;
use crate::stream::Peer;
use crate::vm::Vm;

pub enum End {
    Guest(Box<Vm>),
    Host(Host),
    Peer(Peer),
}

impl End {
    pub fn send(&mut self, frame: &[u8]) {
        match self {
            End::Guest(vm) => {
                vm.tx[0].send_waiting(frame, SOON);
                vm.tx[0].drain(SOON);
            }
            End::Host(host) => host.send(frame),
            End::Peer(peer) => peer.send(frame),
        }
    }

    /// The next frame, with its VLAN tag.
    pub fn receive(&mut self, limit: Duration) -> Option<Vec<u8>> {
        match self {
            End::Host(host) => host.receive_whole(limit),
            End::Peer(peer) => peer.receive(limit),
            End::Guest(vm) => {
                let mut got = None;
                vm.rx[0].wait(limit);
                vm.rx[0].recv(1, |_, frame| got = Some(frame.to_vec()));
                got
            }
        }
    }
}
