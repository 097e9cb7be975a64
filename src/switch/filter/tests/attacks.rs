//! Packets of an attacker who knows a connection, and clocks that step.

use super::*;

const VM: &str = "10.0.0.1";
const PEER: &str = "10.0.0.2";
const WEB: &[&str] = &["in accept tcp to port 80", "out accept udp,tcp"];

fn to_vm(to: u16, flags: u8) -> Vec<u8> {
    tcp((PEER, 4000), (VM, to), flags)
}

fn from_vm(port: u16, flags: u8) -> Vec<u8> {
    tcp((VM, port), (PEER, 4000), flags)
}

fn open(port: &Port) {
    assert!(port.passes(&to_vm(80, SYN), In));
    assert!(port.passes(&from_vm(80, SYN | ACK), Out));
    assert!(port.passes(&to_vm(80, ACK), In));
}

/// Without sequence numbers a forger who knows both ends can put another connection in the place of
/// one: the ends' next packets pass in spite of that, and it lasts as long as before. No rule
/// permits what the VM sends.
#[test]
fn a_forged_reset_and_syn_stop_no_connection() {
    for forged in [&[RST, SYN][..], &[RST | ACK, SYN, SYN], &[FIN | ACK, RST, SYN, RST, SYN]] {
        let mut port = Port::new(&["in accept tcp to port 80"]);
        open(&port);
        forged.iter().for_each(|flags| assert!(port.passes(&to_vm(80, *flags), In)));
        // Linux answers a SYN in the window by an ACK (RFC 5961).
        assert!(port.passes(&from_vm(80, ACK), Out), "{forged:x?}");
        assert!(port.passes(&to_vm(80, ACK), In), "{forged:x?}");
        assert!(port.passes(&from_vm(80, ACK), Out) && port.passes(&to_vm(80, ACK), In));
        port.wait(86_400);
        assert!(port.passes(&from_vm(80, ACK), Out), "{forged:x?}");
    }
}

/// No packet of a forger at the peer's end of a connection that the VM began lets others in.
#[test]
fn forged_packets_of_a_connection_begin_no_other() {
    for forged in [RST, FIN | ACK, ACK, SYN | ACK] {
        let port = Port::new(WEB);
        assert!(port.passes(&from_vm(9, SYN), Out) && port.passes(&to_vm(9, SYN | ACK), In));
        assert!(port.passes(&from_vm(9, ACK), Out));
        for _ in 0..3 {
            assert!(port.passes(&to_vm(9, forged), In), "{forged:x}");
            assert!(!port.passes(&to_vm(9, SYN), In), "{forged:x}");
            assert_eq!(port.refused(&to_vm(10, forged), In), Some(Cause::Rule));
        }
        assert!(port.passes(&from_vm(9, ACK), Out) && port.passes(&to_vm(9, ACK), In));
    }
}

/// Returns a segment with a byte of data.
pub(super) fn data(mut segment: Vec<u8>) -> Vec<u8> {
    segment.push(7);
    let len = u16::try_from(segment.len() - 14).expect("a short packet");
    segment[16..18].copy_from_slice(&len.to_be_bytes());
    segment
}

/// After a forged FIN the first data of its seeming sender opens the connection again, in which the
/// other end has acknowledged the FIN or has not. A real FIN's sender acknowledges, no more.
#[test]
fn a_forged_fin_stops_no_connection_that_goes_on() {
    for answers in 0..3 {
        let mut port = Port::new(&["out accept tcp"]);
        assert!(port.passes(&from_vm(9, SYN), Out) && port.passes(&to_vm(9, SYN | ACK), In));
        assert!(port.passes(&from_vm(9, ACK), Out));
        assert!(port.passes(&to_vm(9, FIN | ACK), In));
        for _ in 0..answers {
            assert!(port.passes(&data(from_vm(9, ACK)), Out) && port.passes(&to_vm(9, ACK), In));
        }
        assert!(port.passes(&data(to_vm(9, ACK)), In));
        port.wait(86_400);
        assert!(port.passes(&to_vm(9, ACK), In), "{answers}");
    }
}

/// Data that is sent again after a real FIN does not keep a connection that both ends close.
#[test]
fn data_that_is_sent_again_ends_with_its_connection() {
    let mut port = Port::new(&["out accept tcp"]);
    assert!(port.passes(&from_vm(9, SYN), Out) && port.passes(&to_vm(9, SYN | ACK), In));
    assert!(port.passes(&from_vm(9, ACK), Out) && port.passes(&to_vm(9, FIN | ACK), In));
    assert!(port.passes(&data(to_vm(9, ACK)), In) && port.passes(&from_vm(9, FIN | ACK), Out));
    assert!(port.passes(&to_vm(9, ACK), In));
    assert_eq!(port.connections.entries(None, port.now)[0].state.name(), "time-wait");
    port.wait(130);
    assert!(!port.passes(&to_vm(9, ACK), In));
}

/// Data that one end sends after the FIN of the other end keeps a half-closed connection, and not
/// for longer than Linux does.
#[test]
fn a_real_fin_ends_a_connection() {
    let mut port = Port::new(&["out accept tcp"]);
    assert!(port.passes(&from_vm(9, SYN), Out) && port.passes(&to_vm(9, SYN | ACK), In));
    assert!(port.passes(&from_vm(9, ACK), Out) && port.passes(&from_vm(9, FIN | ACK), Out));
    for _ in 0..3 {
        port.wait(50);
        assert!(port.passes(&data(to_vm(9, ACK)), In) && port.passes(&from_vm(9, ACK), Out));
    }
    port.wait(70);
    assert!(!port.passes(&to_vm(9, ACK), In));
}

fn at(port: &mut Port, bits: u32) {
    port.now = Tick::from_bits(bits);
}

/// A clock that goes back keeps what is known, for as long as the time that it then tells.
#[test]
fn a_clock_that_goes_back_ends_no_connection() {
    let now = Tick::from(1_000_000).to_bits();
    let mut port = Port::new(WEB);
    at(&mut port, now);
    open(&port);
    let sent = udp((VM, 5000), (PEER, 53));
    let reply = udp((PEER, 53), (VM, 5000));
    let part = |word: u16| {
        let mut part = sent.clone();
        part[20..22].copy_from_slice(&word.to_be_bytes());
        part
    };
    assert!(port.passes(&sent, Out) && port.passes(&part(0x2000), Out));
    for back in [1, 100, now / 2, now - 1, now] {
        at(&mut port, now - back);
        assert!(port.passes(&from_vm(80, ACK), Out) && port.passes(&to_vm(80, ACK), In), "{back}");
        assert!(port.passes(&sent, Out) && port.passes(&reply, In), "{back}");
        assert!(port.passes(&part(2), Out), "{back}");
        assert_eq!(port.refused(&to_vm(22, SYN), In), Some(Cause::Rule));
        assert_eq!(port.refused(&part(2), In), Some(Cause::Fragment));
        let begun = tcp((PEER, 4001), (VM, 80), SYN);
        assert!(port.passes(&begun, In), "{back}");
    }
}

/// A clock that goes far ahead ends connections; others begin, and none passes without a rule. When
/// the clock is right again, the port still has its room.
#[test]
fn a_clock_that_goes_far_ahead_opens_nothing() {
    let now = Tick::from(1_000).to_bits();
    for far in [now + 8 * 6 * 86_400, u32::MAX / 2, u32::MAX - 1, u32::MAX] {
        let mut port = Port::new(&["out accept tcp,udp"]);
        at(&mut port, now);
        let (sent, reply) = (udp((VM, 5000), (PEER, 53)), udp((PEER, 53), (VM, 5000)));
        assert!(port.passes(&sent, Out) && port.passes(&reply, In));
        at(&mut port, far);
        assert_eq!(port.refused(&reply, In), Some(Cause::Rule), "{far}");
        assert!(port.passes(&sent, Out) && port.passes(&reply, In), "{far}");
        let max = CONFIG.max_per_port as usize;
        for n in 0..2 * max as u16 {
            assert!(port.passes(&tcp((VM, 1000 + n), (PEER, 80), SYN), Out), "{far} {n}");
            assert!(port.connections.port_len(0) <= max);
        }
        at(&mut port, now);
        assert_eq!(port.refused(&udp((PEER, 54), (VM, 5000)), In), Some(Cause::Rule), "{far}");
        for n in 0..2 * max as u16 {
            assert!(port.passes(&tcp((VM, 3000 + n), (PEER, 80), SYN), Out), "{far} {n}");
        }
        assert!(port.passes(&sent, Out) && port.passes(&reply, In), "{far}");
        assert!(port.connections.port_len(0) <= max);
    }
}

/// The clock is another one at each packet: no packet passes whose connection was never permitted.
#[test]
fn a_clock_that_steps_at_each_packet_lets_in_nothing_more() {
    let mut port = Port::new(&["out accept udp to port 53"]);
    let mut random = Random(5);
    let (mut asked, mut passed) = ([false; 16], 0);
    let times = [0, 1, 8_000, 8_001, 8_300, 90_000, u32::MAX / 2, u32::MAX - 1, u32::MAX];
    for step in 0..20_000 {
        at(&mut port, random.choose(&times).saturating_add(random.below(300) as u32));
        let n = random.below(asked.len());
        let (own, dns) = ((VM, 5000 + n as u16), (PEER, 53));
        match random.below(4) {
            0 if n.is_multiple_of(2) => {
                assert!(port.passes(&udp(own, dns), Out), "step {step}");
                asked[n] = true;
            }
            1 => assert!(!port.passes(&udp(own, (PEER, 54)), Out), "step {step}"),
            _ => {
                let passes = port.passes(&udp(dns, own), In);
                assert!(!passes || asked[n], "step {step}: a reply to nothing");
                passed += usize::from(passes);
            }
        }
        assert!(port.connections.port_len(0) <= asked.len() / 2);
    }
    assert!(passed > 1000, "{passed}");
}

/// Each reset lists the connection as one that has ended, and a full list forgets its oldest ones.
#[test]
#[cfg_attr(miri, ignore = "thousands of packets, no other access to memory than in other tests")]
fn forged_resets_without_end_stop_no_connection() {
    let port = Port::new(&["out accept tcp"]);
    let others = |flags| tcp((PEER, 22), (VM, 5000), flags);
    assert!(port.passes(&from_vm(9, SYN), Out) && port.passes(&to_vm(9, SYN | ACK), In));
    assert!(port.passes(&from_vm(9, ACK), Out));
    let other = tcp((VM, 5000), (PEER, 22), SYN);
    assert!(port.passes(&other, Out) && port.passes(&others(SYN | ACK), In));
    assert!(port.passes(&tcp((VM, 5000), (PEER, 22), ACK), Out));
    assert!(port.passes(&to_vm(9, RST), In));
    for n in 0..2 * base::limits::MAX_HALF_OPEN_PER_PORT {
        assert!(port.passes(&others(RST), In) && port.passes(&others(ACK), In), "{n}");
    }
    assert!(port.passes(&others(RST), In) && port.passes(&others(ACK), In));
    assert!(port.passes(&to_vm(9, ACK), In) && port.passes(&from_vm(9, ACK), Out));
}
