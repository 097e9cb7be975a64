//! What a case is: descriptors, tables, heads, and what must come of them.

use super::lab::TABLE;
use testkit::ring::{DESC_INDIRECT, DESC_NEXT};

/// A descriptor.
#[derive(Clone, Copy, Debug)]
pub struct D {
    pub at: u64,
    pub len: u32,
    pub flags: u16,
    pub next: u16,
}

/// Bytes of memory: address and length.
pub type Piece = (u64, u32);

/// What must come of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Want {
    /// TX: every head comes back, and is counted under this reason.
    Dropped(&'static str),
    /// TX: every head comes back, and the frame arrives at everybody.
    Forwarded,
    /// RX: every head comes back unused, before those that take the frames.
    Refused,
    /// RX: the frames arrive, in buffers that are filled so far.
    Received(Vec<u32>),
    /// RX: the frames fit nothing, and the buffers stay where they are.
    NoFit,
    /// The ring is given up, no head comes back.
    Broken,
}

/// A case.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    /// Descriptors of the ring.
    pub ring: Vec<(u16, D)>,
    /// Tables in memory.
    pub tables: Vec<(u64, Vec<D>)>,
    pub heads: Vec<u16>,
    /// Where the bytes of the frame lie, header first; those that do not exist are left out.
    pub bytes: Vec<Piece>,
    /// avail.idx, if it is not the number of heads.
    pub idx: Option<u16>,
    /// RX: length of the frame that is sent, if that matters.
    pub sent: Option<usize>,
    pub want: Want,
}

/// These pieces one after another, the first as descriptor `first`.
pub fn chain(pieces: &[Piece], first: u16, flags: u16) -> Vec<D> {
    let last = pieces.len() - 1;
    let descriptor = |(i, &(at, len)): (usize, &Piece)| {
        let flags = if i < last { flags | DESC_NEXT } else { flags };
        D { at, len, flags, next: if i < last { first + i as u16 + 1 } else { 0 } }
    };
    pieces.iter().enumerate().map(descriptor).collect()
}

impl Case {
    /// One head that leads to these descriptors of the ring.
    pub fn of(name: impl Into<String>, ring: Vec<D>, want: Want) -> Case {
        let bytes = ring.iter().map(|d| (d.at, d.len)).collect();
        let ring = ring.into_iter().enumerate().map(|(i, d)| (i as u16, d)).collect();
        let (tables, heads) = (Vec::new(), vec![0]);
        Case { name: name.into(), ring, tables, heads, bytes, idx: None, sent: None, want }
    }

    /// One head that leads to this table.
    pub fn in_table(name: impl Into<String>, table: Vec<D>, want: Want) -> Case {
        let bytes = table.iter().map(|d| (d.at, d.len)).collect();
        let whole = D { at: TABLE, len: 16 * table.len() as u32, flags: DESC_INDIRECT, next: 0 };
        let case = Case::of(name, vec![whole], want);
        Case { tables: vec![(TABLE, table)], bytes, ..case }
    }

    /// Direct descriptors, and the same through a table.
    pub fn both(name: &str, pieces: &[Piece], flags: u16, want: &Want) -> [Case; 2] {
        let descriptors = chain(pieces, 0, flags);
        [
            Case::of(format!("{name}, direct"), descriptors.clone(), want.clone()),
            Case::in_table(format!("{name}, in a table"), descriptors, want.clone()),
        ]
    }

    /// The same head so many times.
    pub fn times(self, n: usize) -> Case {
        let heads = vec![self.heads[0]; n];
        Case { heads, ..self }
    }

    /// RX: the buffers that a frame is merged over.
    pub fn buffers(&self) -> u8 {
        match &self.want {
            Want::Received(lens) => lens.len() as u8,
            _ => 1,
        }
    }

    /// Bytes of the frame, header included.
    pub fn total(&self) -> u64 {
        self.bytes.iter().map(|p| u64::from(p.1)).sum()
    }
}
