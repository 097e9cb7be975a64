//! Tests sockets and program with the kernel, at one end of a veth pair.

use testkit::host::{Host, in_namespace, ip};
use testkit::proc::wait_for;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

use super::*;
use crate::frame_io::{FrameBatch, FrameInbox, FrameIo, Transfer};
use crate::testns;
use base::limits::{BURST_FRAMES, XDP_CHUNK, XDP_RECEIVE_FRAMES, XDP_SEND_FRAMES, XDP_SHORT_CHUNK};

const SOON: std::time::Duration = std::time::Duration::from_secs(3);
const MODES: [Mode; 2] = [Mode::Native, Mode::Generic];

fn pair() {
    ip("link add wire type veth peer name peer");
    ip("link set peer up");
    ip("link set wire up");
}

fn frame(mark: u32, len: usize) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    frame.extend(mark.to_be_bytes());
    frame.resize(len, mark as u8);
    frame
}

/// Sends frames as one batch.
fn send(queue: &XdpQueue, frames: &[Vec<u8>]) -> Vec<Transfer> {
    let frames: Vec<_> = frames.iter().map(|frame| [&[0; 12][..], frame].concat()).collect();
    FrameBatch::flushed(queue, &frames)
}

/// Takes the received frames; returns the number of frames that the kernel lost.
fn take(queue: &XdpQueue, frames: &mut Vec<Vec<u8>>) -> u64 {
    let mut lost = 0;
    loop {
        let mut count = 0;
        let taken = queue.take(&mut |at, len| {
            // SAFETY: the frame belongs to this process until the next call.
            frames.push(unsafe { std::slice::from_raw_parts(at, len as usize) }.to_vec());
            count += 1;
            true
        });
        assert!(count <= BURST_FRAMES);
        lost += taken.lost;
        if !taken.more {
            return lost;
        }
    }
}

/// Enough frames pass that every entry of each ring is used several times.
#[test]
fn frames_pass_both_ways_in_order() {
    for mode in MODES {
        in_namespace(|| {
            pair();
            let xdp = open("wire", 1, mode).unwrap();
            assert_eq!((xdp.mode, xdp.link.kind.as_str()), (mode, "veth"));
            let (queue, host) = (&xdp.queues[0], Host::open("peer"));
            let mut mark = 0;
            for round in 0..4 * XDP_SEND_FRAMES as usize / BURST_FRAMES {
                let frames: Vec<_> =
                    (0..BURST_FRAMES).map(|n| frame(mark + n as u32, 60 + n + round)).collect();
                mark += BURST_FRAMES as u32;
                let sent = send(queue, &frames);
                let all = frames.iter().map(|frame| Transfer::Done(12 + frame.len()));
                assert_eq!(sent, all.collect::<Vec<_>>());
                for frame in &frames {
                    assert!(host.receive(SOON).as_ref() == Some(frame));
                }
            }
            for round in 0..3 * XDP_RECEIVE_FRAMES / 100 {
                let frames: Vec<_> = (0..100).map(|n| frame(round * 100 + n, 60)).collect();
                frames.iter().for_each(|frame| host.send(frame));
                let mut came = Vec::new();
                assert!(wait_for(SOON, || {
                    assert_eq!(take(queue, &mut came), 0);
                    came.len() >= 100
                }));
                assert!(came == frames);
            }
            host.send(&frame(7, 60));
            let mut buffer = [9; 200];
            assert!(wait_for(SOON, || queue.read(&mut buffer) == Transfer::Done(72)));
            assert!(buffer[..12] == [0; 12] && buffer[12..72] == frame(7, 60));
            assert_eq!(queue.read(&mut buffer), Transfer::WouldBlock);
        });
    }
}

/// As many frames as chunks wait; further frames are lost and counted, and later frames are not
/// lost.
#[test]
fn frames_that_find_no_room_are_counted() {
    for mode in MODES {
        in_namespace(|| {
            pair();
            let xdp = open("wire", 1, mode).unwrap();
            let (queue, host) = (&xdp.queues[0], Host::open("peer"));
            let more = 2_000;
            for n in 0..XDP_RECEIVE_FRAMES + more {
                host.send(&frame(n, 60));
                if n % 50 == 0 {
                    // The veth pair itself has room for few frames.
                    std::thread::sleep(std::time::Duration::from_micros(500));
                }
            }
            // The queue reads the kernel's statistics once a second.
            std::thread::sleep(std::time::Duration::from_millis(1_100));
            let mut came = Vec::new();
            let lost = take(queue, &mut came);
            assert_eq!(came.len(), XDP_RECEIVE_FRAMES as usize, "{mode:?}");
            // On a busy machine the veth pair loses some frames first.
            assert!((1..=u64::from(more)).contains(&lost), "{mode:?}: {lost}");
            assert!(came.is_sorted(), "out of order");
            host.send(&frame(1, 60));
            came.clear();
            assert!(wait_for(SOON, || {
                take(queue, &mut came);
                !came.is_empty()
            }));
            assert!(came == [frame(1, 60)]);
        });
    }
}

#[test]
fn what_is_not_sent_is_not_sent_later() {
    in_namespace(|| {
        pair();
        let xdp = open("wire", 1, Mode::Auto).unwrap();
        let (queue, host) = (&xdp.queues[0], Host::open("peer"));
        let frames: Vec<_> = (0..9).map(|n| frame(n, 60)).collect();
        ip("link set wire down");
        // No chunk is lost.
        for _ in 0..XDP_SEND_FRAMES {
            assert_eq!(send(queue, &frames), [Transfer::Down; 9]);
        }
        ip("link set wire up");
        host.drain();
        assert_eq!(send(queue, &frames), [Transfer::Done(72); 9]);
        for frame in &frames {
            assert!(host.receive(SOON).as_ref() == Some(frame));
        }
        // No carrier: the interface takes frames and drops them.
        ip("link set peer down");
        assert_eq!(send(queue, &frames), [Transfer::WouldBlock; 9]);
        ip("link set peer up");
        host.drain();
        assert_eq!(send(queue, &frames), [Transfer::Done(72); 9]);
        assert!(host.receive(SOON).as_ref() == Some(&frames[0]));
    });
}

/// Each event would cost a call of the waiting thread, in the time of the sending thread.
#[test]
fn what_is_sent_brings_no_event() {
    in_namespace(|| {
        pair();
        let xdp = open("wire", 1, Mode::Auto).unwrap();
        let (queue, events) = (&xdp.queues[0], Epoll::new().unwrap());
        let wanted = EventSet::IN | EventSet::OUT | EventSet::EDGE_TRIGGERED;
        events.ctl(ControlOperation::Add, queue.as_raw_fd(), EpollEvent::new(wanted, 0)).unwrap();
        let next = || {
            let mut event = [EpollEvent::default()];
            (events.wait(100, &mut event).unwrap() == 1).then(|| event[0].event_set())
        };
        while next().is_some() {}
        let host = Host::open("peer");
        for mark in 0..8 {
            assert_eq!(send(queue, &[frame(mark, 60)]), [Transfer::Done(72)]);
            assert_eq!(host.receive(SOON), Some(frame(mark, 60)));
        }
        assert_eq!(next(), None);
        host.send(&frame(9, 60));
        assert!(next().unwrap().contains(EventSet::IN));
    });
}

#[test]
fn lengths_are_checked() {
    in_namespace(|| {
        pair();
        for (mtu, chunk) in [(1500, XDP_SHORT_CHUNK), (1771, XDP_CHUNK)] {
            ip(&format!("link set wire mtu {mtu}"));
            let xdp = open("wire", 1, Mode::Auto).unwrap();
            let refused = Transfer::Rejected(libc::EMSGSIZE);
            // The frames around it pass.
            let lens = [60, 0, 61, chunk - 11, 65_000, 1514];
            let frames = lens.map(|len| vec![0; len]);
            let done = |len: usize| Transfer::Done(12 + len);
            let expected = [done(60), refused, done(61), refused, refused, done(1514)];
            assert_eq!(send(&xdp.queues[0], &frames), expected);
        }
    });
}

#[test]
fn a_larger_mtu_outgrows_short_chunks() {
    in_namespace(|| {
        pair();
        let outgrown = || {
            let xdp = open("wire", 1, Mode::Auto).unwrap();
            [1770, 1771, 3818, 3819].map(|mtu| xdp.queues[0].is_outgrown(mtu))
        };
        assert_eq!(outgrown(), [false, true, true, false]);
        ip("link set wire mtu 1771");
        assert_eq!(outgrown(), [false; 4]);
    });
}

#[test]
fn an_interface_that_is_gone_is_known_by_both_directions() {
    in_namespace(|| {
        pair();
        let xdp = open("wire", 1, Mode::Auto).unwrap();
        let queue = &xdp.queues[0];
        assert!(!queue.is_gone());
        ip("link del wire");
        assert!(queue.is_gone());
        assert_eq!(take(queue, &mut Vec::new()), 0);
        assert_eq!(send(queue, &[frame(1, 60)]), [Transfer::Gone]);
        // The sockets of the deleted interface do not block a new interface.
        pair();
        assert!(open("wire", 1, Mode::Auto).is_ok());
    });
}

#[test]
fn what_cannot_be_had_says_why() {
    in_namespace(|| {
        assert!(matches!(open("wire", 1, Mode::Auto), Err(XdpError::Absent)));
        assert!(matches!(open("a/b", 1, Mode::Auto), Err(XdpError::BadName)));
        pair();
        ip("link add br0 type bridge");
        assert!(matches!(open("br0", 1, Mode::Native), Err(XdpError::NotNative(_))));
        let soft = open("br0", 1, Mode::Auto).unwrap();
        assert!(soft.mode == Mode::Generic && soft.why.is_some());
        let few = open("wire", 2, Mode::Auto).unwrap_err();
        assert!(matches!(few, XdpError::FewQueues { wanted: 2, there: 1 }), "{few}");
        let first = open("wire", 1, Mode::Auto).unwrap();
        assert!(first.why.is_none());
        assert!(matches!(open("wire", 1, Mode::Auto), Err(XdpError::Busy)));
        drop(first);
        testns::without_privilege(|| {
            assert!(matches!(open("wire", 1, Mode::Auto), Err(XdpError::Permission)));
        });
        assert!(check("wire", 1).is_ok());
        ip("link set wire mtu 9000");
        assert!(matches!(check("wire", 1), Err(XdpError::LongMtu(9000))));
    });
}

#[test]
fn drivers_say_what_they_have() {
    in_namespace(|| {
        ip("link add two numrxqueues 2 numtxqueues 2 type veth peer name one");
        assert_eq!(ethtool::queues("two"), Some((2, 2)));
        assert_eq!(ethtool::queues("none"), None);
        assert!(!ethtool::strips_tags("none"));
    });
}
