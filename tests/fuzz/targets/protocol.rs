//! Any conversations of front-ends: one to three, with real sessions and workers; each session
//! ends, replies come in order, nothing stays behind, and every copy of a frame is counted.
//!
//! A conversation is a sequence of messages, sound ones, changed ones and any bytes, with any
//! descriptors, in between of which the front-end writes its memory, kicks, shortens its file,
//! and leaves. Whatever it says: the session ends when the front-end is gone, nothing panics,
//! replies come in the order of the questions, and afterwards the port is as before: no descriptor,
//! no mapping, no address, no ring, and every copy of a frame accounted for.
//!
//! Sessions and workers are threads, so the same input may take another course each time. What is
//! checked holds for every course.

mod peer;
mod world;

use std::thread;
use std::time::Duration;

use super::input::Input;
use peer::Peer;
use world::{PORTS, World};

/// Steps of an input at most; each reply not read yet takes room in a socket.
const STEPS: usize = 120;

/// The target.
pub fn run(data: &[u8]) {
    let world = World::get();
    let mut input = Input::new(data);
    let before = world.at_rest();
    thread::scope(|scope| {
        let mut peers: Vec<Option<Peer<'_>>> = (0..PORTS).map(|_| None).collect();
        for _ in 0..STEPS {
            if input.is_empty() {
                break;
            }
            let code = input.u8();
            let port = usize::from(code >> 6) % PORTS;
            match (&mut peers[port], code & 0x3f) {
                (none @ None, _) => *none = Some(Peer::connect(scope, &world, port)),
                (some, 0) => drop(some.take()),
                (_, 1) => thread::sleep(Duration::from_micros(200)),
                (Some(peer), step) => peer.step(step, &mut input),
            }
        }
    });
    world.assert_rest(&before);
}
