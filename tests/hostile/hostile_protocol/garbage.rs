//! Conversations that go wrong: those of an honest front-end with messages changed, left out,
//! doubled, moved and torn, and noise between them. It knows the states: most of what is sent is
//! good enough to be carried out.

use std::os::fd::{AsRawFd, RawFd};

use super::lab::{Lab, SOON, connect, small};
use testkit::frontend::{
    FLAG_NEED_REPLY, VERSION, feat, message, proto, region_body, req, state_body,
};
use testkit::sys::{self, EventFd};
use testkit::vm::Guest;
use testkit::{Rng, long};

type Sent = (Vec<u8>, Vec<RawFd>);

/// What an honest front-end sends from its first message to its last, acknowledgements included.
fn honest(guest: &Guest) -> Vec<Sent> {
    let mut all: Vec<Sent> = Vec::new();
    let mut say = |code: u32, body: &[u8], fds: &[RawFd]| {
        all.push((message(code, VERSION | FLAG_NEED_REPLY, body), fds.to_vec()));
    };
    let features = guest.cfg.features | feat::PROTOCOL_FEATURES | feat::LOG_ALL;
    let protocol = proto::MQ | proto::REPLY_ACK | proto::LOG_SHMFD | proto::CONFIGURE_MEM_SLOTS;
    say(req::GET_FEATURES, &[], &[]);
    say(req::SET_PROTOCOL_FEATURES, &protocol.to_le_bytes(), &[]);
    say(req::SET_OWNER, &[], &[]);
    say(req::SET_FEATURES, &features.to_le_bytes(), &[]);
    for (region, fd) in guest.mem.table() {
        say(req::ADD_MEM_REG, &[vec![0; 8], region_body(&region)].concat(), &[fd]);
    }
    for pass in 0..2 {
        for ring in guest.rings() {
            let (index, at) = (ring.index, u64::from(ring.index).to_le_bytes());
            say(req::SET_VRING_NUM, &state_body(index, ring.size.into()), &[]);
            say(req::SET_VRING_BASE, &state_body(index, 0), &[]);
            say(req::SET_VRING_ADDR, &ring.addr(&guest.mem, 1).body(), &[]);
            say(req::SET_VRING_KICK, &at, &[ring.kick.raw()]);
            say(req::SET_VRING_CALL, &at, &[ring.call.raw()]);
            say(req::SET_VRING_ERR, &at, &[ring.err.raw()]);
            say(req::SET_VRING_ENABLE, &state_body(index, 1), &[]);
        }
        if pass == 0 {
            let table: Vec<_> = guest.mem.table();
            let regions = table.iter().flat_map(|(region, _)| region_body(region));
            let body = state_body(table.len() as u32, 0).into_iter().chain(regions);
            let fds: Vec<RawFd> = table.iter().map(|&(_, fd)| fd).collect();
            say(req::SET_MEM_TABLE, &body.collect::<Vec<u8>>(), &fds);
            say(req::SET_LOG_BASE, &[4096u64.to_le_bytes(), [0; 8]].concat(), &fds[..1]);
        }
        for ring in guest.rings() {
            say(req::GET_VRING_BASE, &state_body(ring.index, 0), &[]);
        }
    }
    all
}

/// Changes one thing of a conversation.
fn mutate(rng: &mut Rng, all: &mut Vec<Sent>, fds: &[RawFd]) {
    let at = rng.below(all.len() as u64) as usize;
    let other = rng.below(all.len() as u64) as usize;
    if all[at].0.len() < 12 {
        // Torn before.
        return;
    }
    match rng.below(12) {
        0 => drop(all.remove(at)),
        1 => all.insert(other, all[at].clone()),
        2 => all.swap(at, other),
        // Another request with this body, or with these descriptors.
        3 => all[at].0[..4].copy_from_slice(&(rng.below(46) as u32).to_le_bytes()),
        4 => all[at].1 = all[other].1.clone(),
        5 => all[at].1.push(fds[rng.below(fds.len() as u64) as usize]),
        6 => all[at].1.clear(),
        // A bit of the body, a byte of the header, the size.
        7..=9 => {
            let bytes = &mut all[at].0;
            let bit = rng.below(8 * bytes.len() as u64 - 96 + 1) as usize + 95;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        10 => {
            let byte = rng.below(12) as usize;
            all[at].0[byte] = rng.next() as u8;
        }
        _ => {
            let keep = rng.below(all[at].0.len() as u64) as usize;
            all[at].0.truncate(keep.max(1));
        }
    }
}

/// A million messages in the long run; a guest comes up and works after each thousand.
#[test]
fn garbage_that_knows_the_states() {
    let lab = Lab::new(1);
    let guest = Guest::new(small(1));
    let (event, memory) = (EventFd::new(), sys::memfd(1 << 20));
    let (_reader, writer) = std::io::pipe().expect("pipe");
    let fds = [event.raw(), memory.as_raw_fd(), writer.as_raw_fd(), guest.mem.table()[0].1];
    let script = honest(&guest);
    let mut rng = Rng::new(21);
    let total = if long() { 1_000_000 } else { 30_000 };
    let (mut sent, mut served, mut whole, mut all) = (0, 0, 0, 0);
    while sent < total {
        let mut talk = script.clone();
        for _ in 0..rng.below(4) {
            mutate(&mut rng, &mut talk, &fds);
        }
        let mut fe = connect(&lab.d, lab.evil);
        let said = talk.iter().take_while(|(bytes, fds)| fe.send_raw(bytes, fds).is_ok()).count();
        (sent, all) = (sent + said, all + 1);
        whole += u32::from(said == talk.len());
        assert!(fe.leave(SOON), "the session hangs after {talk:?}");
        if sent / 1000 > served {
            served = sent / 1000;
            lab.serves();
        }
    }
    assert!(whole > all / 3, "only {whole} of {all} conversations were heard to their end");
    lab.finish();
}
