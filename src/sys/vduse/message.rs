//! Messages between the kernel and the process behind a device (`struct vduse_dev_request`,
//! `struct vduse_dev_response`). The parser is total: every sequence of bytes is a message or none.

/// Bytes of a request.
pub const REQUEST_BYTES: usize = 152;
/// Bytes of an answer.
pub(super) const ANSWER_BYTES: usize = 152;
/// Offset of the body, behind type or result, number and four reserved words.
const BODY: usize = 24;

const GET_VQ_STATE: u32 = 0;
const SET_STATUS: u32 = 1;
const UPDATE_IOTLB: u32 = 2;

/// A request of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// Number of the request, which the answer repeats.
    pub id: u32,
    /// Content of the request.
    pub request: Request,
}

/// The content of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Return the next index of this ring.
    RingState(u32),
    /// The driver set the device's status to these bits; zero resets the device.
    Status(u8),
    /// The memory from the first to the last address is another memory, or none.
    Memory(u64, u64),
    /// A request of a later version, of this type.
    Unknown(u32),
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The request was carried out.
    Done,
    /// The request was not carried out.
    Failed,
    /// The next index of a ring.
    RingState(u32, u16),
}

impl Message {
    /// Returns the message in `bytes`; none if `bytes` are too few.
    pub fn parse(bytes: &[u8]) -> Option<Message> {
        let bytes: &[u8; REQUEST_BYTES] = bytes.get(..REQUEST_BYTES)?.try_into().ok()?;
        let request = match word(bytes, 0)? {
            GET_VQ_STATE => Request::RingState(word(bytes, BODY)?),
            SET_STATUS => Request::Status(*bytes.get(BODY)?),
            UPDATE_IOTLB => Request::Memory(long(bytes, BODY)?, long(bytes, BODY + 8)?),
            other => Request::Unknown(other),
        };
        Some(Message { id: word(bytes, 4)?, request })
    }

    /// Returns the answer to the message, as the kernel reads it.
    pub(super) fn answer(self, answer: Answer) -> [u8; ANSWER_BYTES] {
        let mut bytes = [0; ANSWER_BYTES];
        bytes[..4].copy_from_slice(&self.id.to_ne_bytes());
        bytes[4..8].copy_from_slice(&u32::from(answer == Answer::Failed).to_ne_bytes());
        if let Answer::RingState(ring, index) = answer {
            bytes[BODY..BODY + 4].copy_from_slice(&ring.to_ne_bytes());
            // The union of the state begins at a multiple of two.
            bytes[BODY + 4..BODY + 6].copy_from_slice(&index.to_ne_bytes());
        }
        bytes
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|chunk| u32::from_ne_bytes(*chunk))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|chunk| u64::from_ne_bytes(*chunk))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = [&kind.to_ne_bytes()[..], &7u32.to_ne_bytes(), &[0; 16], body].concat();
        bytes.resize(REQUEST_BYTES, 0);
        bytes
    }

    #[test]
    fn requests_are_read_as_the_kernel_writes_them() {
        let iotlb = [0x1000u64.to_ne_bytes(), 0x1fffu64.to_ne_bytes()].concat();
        for (kind, body, request) in [
            (0, &1u32.to_ne_bytes()[..], Request::RingState(1)),
            (1, &[0xf][..], Request::Status(0xf)),
            (2, &iotlb, Request::Memory(0x1000, 0x1fff)),
            (3, &[], Request::Unknown(3)),
        ] {
            let read = Message::parse(&message(kind, body));
            assert_eq!(read, Some(Message { id: 7, request }));
        }
    }

    #[test]
    fn a_short_message_is_none() {
        let whole = message(1, &[4]);
        assert!((0..REQUEST_BYTES).all(|len| Message::parse(&whole[..len]).is_none()));
    }

    #[test]
    fn an_answer_repeats_the_number_and_has_the_state_of_its_ring() {
        let asked = Message { id: 0x0102_0304, request: Request::RingState(1) };
        let bytes = asked.answer(Answer::RingState(1, 0x506));
        assert_eq!(word(&bytes, 0), Some(0x0102_0304));
        assert_eq!(
            (word(&bytes, 4), word(&bytes, 24), word(&bytes, 28)),
            (Some(0), Some(1), Some(0x506))
        );
        assert_eq!(word(&asked.answer(Answer::Failed), 4), Some(1));
        assert_eq!(word(&asked.answer(Answer::Done), 4), Some(0));
    }
}
