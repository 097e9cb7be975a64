//! Every request in every state: with sizes, flags, descriptors and values that do not belong
//! there. Whatever the answer, there is one or the connection ends; then the port takes the next
//! front-end, and nothing is left of the one before.

use std::os::fd::{AsRawFd, RawFd};

use super::lab::{Lab, SOON, STAGES, Stage, at_stage, small};
use testkit::frontend::{FLAG_NEED_REPLY, Frontend, VERSION, message, region_body, req};
use testkit::sys::{self, EventFd};
use testkit::vm::Guest;
use testkit::{Rng, long};

/// Codes beyond those of one byte.
const GIANTS: [u32; 8] = [256, 257, 4_096, 65_535, 65_536, 0x7fff_ffff, 0x8000_0000, u32::MAX];
/// Body sizes: those of the requests, their neighbours, and those beyond the limit.
const SIZES: [usize; 14] = [0, 1, 4, 7, 8, 9, 12, 16, 39, 40, 41, 56, 1_032, 4_096];
/// Flags: version 1 with each other bit, and other versions.
const FLAGS: [u32; 10] = [1, 9, 1, 9, 0, 2, 3, 5, 13, 0xffff_fff1];
const COUNTS: [usize; 5] = [0, 1, 8, 32, 33];

/// One message of the cross product.
fn strange(rng: &mut Rng, code: u32, fds: &[RawFd]) -> (Vec<u8>, Vec<RawFd>) {
    let pick = |rng: &mut Rng, n: usize| rng.below(n as u64) as usize;
    let size = SIZES[pick(rng, SIZES.len())];
    let mut body = vec![0; size];
    for word in body.chunks_mut(8) {
        let value = boundary(rng).to_le_bytes();
        word.copy_from_slice(&value[..word.len()]);
    }
    let mut bytes = message(code, FLAGS[pick(rng, FLAGS.len())], &body);
    if rng.below(16) == 0 {
        // A size that is not the body's.
        let said = [0, 1, 4_095, 4_097, 1 << 20, u32::MAX][pick(rng, 6)];
        bytes[8..12].copy_from_slice(&said.to_le_bytes());
    }
    let count = COUNTS[pick(rng, COUNTS.len())];
    (bytes, (0..count).map(|_| fds[pick(rng, fds.len())]).collect())
}

/// Values at which arithmetic goes wrong.
fn boundary(rng: &mut Rng) -> u64 {
    let edges = [0, 1, 2, 3, 16, 255, 256, 257, 4_095, 4_096, 32_768, 65_535, 65_536];
    let at = rng.below(4) as i64 - 2;
    match rng.below(4) {
        0 => edges[rng.below(13) as usize],
        1 => (1u64 << rng.below(64)).wrapping_add_signed(at),
        2 => u64::MAX.wrapping_add_signed(at * 4_096),
        _ => rng.next(),
    }
}

/// Sends a few messages from `stage`, then leaves: the session must come to its end.
fn case(lab: &Lab, guest: &Guest, stage: Stage, messages: &[(Vec<u8>, Vec<RawFd>)]) {
    let mut fe = at_stage(&lab.d, lab.evil, guest, stage);
    for (bytes, fds) in messages {
        if fe.send_raw(bytes, fds).is_err() {
            break;
        }
    }
    let code = u32::from_le_bytes(messages[0].0[..4].try_into().expect("4 bytes"));
    assert!(fe.leave(SOON), "request {code} in {stage:?}: the session hangs");
}

/// Every code of one byte and some giants, in every state, each with sizes, flags, descriptors and
/// values at random; a hundred of each in the long run.
#[test]
fn every_request_in_every_state() {
    let lab = Lab::new(1);
    let guest = Guest::new(small(1));
    let (event, memory) = (EventFd::new(), sys::memfd(1 << 20));
    let (reader, _writer) = std::io::pipe().expect("pipe");
    let fds = [event.raw(), memory.as_raw_fd(), reader.as_raw_fd(), event.raw()];
    let mut rng = Rng::new(11);
    let rounds = if long() { 100 } else { 1 };
    for round in 0..rounds {
        for stage in STAGES {
            // Those the daemon knows one by one, the rest a handful in one conversation.
            for code in 0..=44u32 {
                let messages: Vec<_> = (0..4).map(|_| strange(&mut rng, code, &fds)).collect();
                case(&lab, &guest, stage, &messages);
            }
            let rest: Vec<u32> = (45..=255).chain(GIANTS).collect();
            for codes in rest.chunks(8) {
                let messages: Vec<_> =
                    codes.iter().map(|&code| strange(&mut rng, code, &fds)).collect();
                case(&lab, &guest, stage, &messages);
            }
        }
        if round % 10 == 9 {
            lab.serves();
            lab.nothing_left();
        }
    }
    lab.finish();
}

/// Leak through the protocol: every request, good or not, with 0, 1, 8, 32 and 33 descriptors of
/// each kind, a hundred times over in the long run.
#[test]
fn leak_through_the_protocol() {
    let lab = Lab::new(1);
    let guest = Guest::new(small(1));
    let (event, memory) = (EventFd::new(), sys::memfd(1 << 20));
    let (reader, _writer) = std::io::pipe().expect("pipe");
    let times = if long() { 100 } else { 2 };
    for code in (0..=44).chain([99, u32::MAX]) {
        for fd in [event.raw(), memory.as_raw_fd(), reader.as_raw_fd()] {
            let mut fe = at_stage(&lab.d, lab.evil, &guest, Stage::Negotiated);
            for count in COUNTS {
                for _ in 0..times {
                    let body = body_of(code, &guest);
                    let fds = vec![fd; count];
                    if fe.send(code, VERSION | FLAG_NEED_REPLY, &body, &fds).is_err() {
                        fe = at_stage(&lab.d, lab.evil, &guest, Stage::Negotiated);
                    }
                }
                if count < 33 && !fe.still_served() {
                    fe = at_stage(&lab.d, lab.evil, &guest, Stage::Negotiated);
                }
            }
            assert!(fe.leave(SOON), "request {code}: the session hangs");
        }
    }
    lab.finish();
}

/// A body that the request takes, for a guest of two regions.
fn body_of(code: u32, guest: &Guest) -> Vec<u8> {
    let regions: Vec<_> = guest.mem.table().into_iter().map(|(region, _)| region).collect();
    let words = |values: &[u64]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    match code {
        req::SET_FEATURES | req::SET_PROTOCOL_FEATURES => words(&[0]),
        req::SET_MEM_TABLE => {
            [words(&[2]), region_body(&regions[0]), region_body(&regions[1])].concat()
        }
        req::ADD_MEM_REG | req::REM_MEM_REG => [words(&[0]), region_body(&regions[0])].concat(),
        req::SET_LOG_BASE => words(&[4_096, 0]),
        req::SET_VRING_NUM => words(&[16 << 32]),
        req::SET_VRING_ADDR => guest.rx[0].ring.addr(&guest.mem, 0).body(),
        req::SET_VRING_ENABLE => words(&[1 << 32]),
        req::SET_VRING_BASE | req::GET_VRING_BASE => words(&[0]),
        req::SET_VRING_KICK | req::SET_VRING_CALL | req::SET_VRING_ERR => words(&[0]),
        req::SEND_RARP => words(&[0x0100_0000_0002]),
        req::NET_SET_MTU => words(&[1500]),
        _ => Vec::new(),
    }
}

/// Widths of the fields of a body, in bytes.
fn fields(code: u32) -> &'static [usize] {
    match code {
        req::SET_MEM_TABLE => &[4, 4, 8, 8, 8, 8, 8, 8, 8, 8],
        req::ADD_MEM_REG | req::REM_MEM_REG => &[8, 8, 8, 8, 8],
        req::SET_LOG_BASE => &[8, 8],
        req::SET_VRING_NUM | req::SET_VRING_BASE => &[4, 4],
        req::GET_VRING_BASE | req::SET_VRING_ENABLE => &[4, 4],
        req::SET_VRING_ADDR => &[4, 4, 8, 8, 8, 8],
        _ => &[8],
    }
}

/// Requests with numbers in their bodies.
const NUMBERED: [u32; 16] = [
    req::SET_FEATURES,
    req::SET_MEM_TABLE,
    req::SET_LOG_BASE,
    req::SET_VRING_NUM,
    req::SET_VRING_ADDR,
    req::SET_VRING_BASE,
    req::GET_VRING_BASE,
    req::SET_VRING_KICK,
    req::SET_VRING_CALL,
    req::SET_VRING_ERR,
    req::SET_PROTOCOL_FEATURES,
    req::SET_VRING_ENABLE,
    req::SEND_RARP,
    req::NET_SET_MTU,
    req::ADD_MEM_REG,
    req::REM_MEM_REG,
];

/// Message arithmetic: boundary values in each number of each body, one at a time and two at a
/// time, in messages that are good otherwise; 10,000 of them. Arithmetic that wraps would panic
/// here (overflow checks are on), which `Daemon::stop` looks for.
#[test]
fn message_arithmetic() {
    let lab = Lab::new(1);
    let guest = Guest::new(small(1));
    let (event, memory) = (EventFd::new(), sys::memfd(4 << 20));
    let mut rng = Rng::new(5);
    let total = if long() { 100_000 } else { 10_000 };
    let (mut sent, mut closed) = (0, 0);
    let stages = [Stage::Negotiated, Stage::Configured, Stage::Running];
    let mut fe = at_stage(&lab.d, lab.evil, &guest, stages[0]);
    while sent < total {
        for code in NUMBERED {
            let (mut body, mut at) = (body_of(code, &guest), 0);
            let widths = fields(code);
            let chosen = [rng.below(widths.len() as u64), rng.below(2 * widths.len() as u64)];
            for (i, &width) in widths.iter().enumerate() {
                if chosen.contains(&(i as u64)) {
                    let value = near(&mut rng, &body[at..at + width]).to_le_bytes();
                    body[at..at + width].copy_from_slice(&value[..width]);
                }
                at += width;
            }
            let fds: &[RawFd] = match code {
                req::SET_MEM_TABLE => &[memory.as_raw_fd(); 2],
                req::ADD_MEM_REG | req::SET_LOG_BASE => &[memory.as_raw_fd()],
                req::SET_VRING_KICK | req::SET_VRING_CALL | req::SET_VRING_ERR => &[event.raw()],
                _ => &[],
            };
            sent += 1;
            if !answered(&mut fe, code, &body, fds) {
                closed += 1;
                let stage = stages[rng.below(3) as usize];
                fe = at_stage(&lab.d, lab.evil, &guest, stage);
            }
        }
    }
    assert!(closed > 100, "bits that were not offered close: {closed}");
    assert!(fe.leave(SOON));
    lab.finish();
}

/// A boundary value, or one beside the good value of the field.
fn near(rng: &mut Rng, good: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes[..good.len()].copy_from_slice(good);
    let good = u64::from_le_bytes(bytes);
    match rng.below(3) {
        0 => good.wrapping_add_signed(rng.below(5) as i64 - 2),
        1 => good.wrapping_add_signed((rng.below(3) as i64 - 1) * 4_096),
        _ => boundary(rng),
    }
}

/// True if the daemon goes on with the conversation after this message.
fn answered(fe: &mut Frontend, code: u32, body: &[u8], fds: &[RawFd]) -> bool {
    let flags = VERSION | FLAG_NEED_REPLY;
    fe.send(code, flags, body, fds).is_ok() && fe.still_served()
}
