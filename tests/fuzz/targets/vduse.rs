//! Any bytes of the kernel's requests to a VDUSE device: too few are none, and enough are what the
//! plainest reading says.

use sys::vduse::{Message, REQUEST_BYTES, Request};

/// The target.
pub fn run(data: &[u8]) {
    let message = Message::parse(data);
    assert_eq!(message.is_some(), data.len() >= REQUEST_BYTES, "{} bytes", data.len());
    let Some(Message { id, request }) = message else { return };
    let number = |at: usize, len: usize| {
        let bytes = data[at..at + len].iter().rev();
        bytes.fold(0u64, |number, byte| number << 8 | u64::from(*byte))
    };
    assert_eq!(u64::from(id), number(4, 4));
    match (number(0, 4), request) {
        (0, Request::RingState(ring)) => assert_eq!(u64::from(ring), number(24, 4)),
        (1, Request::Status(status)) => assert_eq!(u64::from(status), number(24, 1)),
        (2, Request::Memory(start, last)) => {
            assert_eq!((start, last), (number(24, 8), number(32, 8)));
        }
        (kind, Request::Unknown(other)) => assert!(kind > 2 && kind == u64::from(other)),
        (kind, other) => panic!("{kind} is read as {other:?}"),
    }
}
