//! Bytes as choices: what a target does follows from its input, front to back.
//!
//! An input that has ended goes on as zeros, so every prefix of an input is one too, and a target
//! ends its loops by [`Input::is_empty`].

/// What is left of an input.
pub struct Input<'a> {
    bytes: &'a [u8],
}

impl<'a> Input<'a> {
    /// All of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Input<'a> {
        Input { bytes }
    }

    /// True at the end.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let taken = self.bytes(N);
        out[..taken.len()].copy_from_slice(taken);
        out
    }

    pub fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// A bit of chance: true for odd bytes.
    pub fn flag(&mut self) -> bool {
        self.u8() & 1 == 1
    }

    /// A number below `end`, which is not 0 and at most 65,536.
    pub fn below(&mut self, end: usize) -> usize {
        if end <= 256 { usize::from(self.u8()) % end } else { usize::from(self.u16()) % end }
    }

    /// One of `values`.
    pub fn choose<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    /// The next `len` bytes, or fewer at the end.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.bytes.split_at(len.min(self.bytes.len()));
        self.bytes = rest;
        taken
    }

    /// Everything left.
    pub fn rest(&mut self) -> &'a [u8] {
        self.bytes(self.bytes.len())
    }
}
