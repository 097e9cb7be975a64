//! The first bytes of a frame, and what stands in the way of reading them.

use core::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Deref;

use super::{PortSecurity, Rule, Violation};
use crate::frame::MacAddr;
use crate::limits::MAX_HEADERS_LEN;

/// Why a frame may not be sent, or not yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// More of the frame's first bytes are needed to say.
    Short,
    /// It breaks a rule.
    Broken(Violation),
}

/// The first bytes of a frame, and what becomes of them on their way.
#[derive(Clone, Copy, Debug)]
pub struct Headers<'a> {
    /// Private bytes: all of the frame, or [`MAX_HEADERS_LEN`], or fewer and then the answer may be
    /// [`Refused::Short`].
    pub bytes: &'a [u8],
    /// Bytes of the whole frame.
    pub len: usize,
    /// Where a checksum is written by whoever delivers or receives the frame.
    pub sum_at: Option<usize>,
    /// It is cut into several packets, of which these bytes are the first.
    pub is_cut: bool,
}

/// A frame beside what is allowed where it comes from.
#[derive(Clone, Copy)]
pub(super) struct Sent<'a> {
    /// The rules of its port.
    pub(super) rules: &'a PortSecurity,
    pub(super) headers: &'a Headers<'a>,
    /// Its source address.
    pub(super) source: MacAddr,
}

impl<'a> Deref for Sent<'a> {
    type Target = Headers<'a>;

    #[inline(always)]
    fn deref(&self) -> &Headers<'a> {
        self.headers
    }
}

impl Headers<'_> {
    /// `N` bytes from `at`.
    #[inline(always)]
    fn take<const N: usize>(&self, at: usize) -> Result<[u8; N], Refused> {
        match self.bytes.get(at..).and_then(<[u8]>::first_chunk::<N>) {
            Some(bytes) if !self.is_overwritten(at, N) => Ok(*bytes),
            Some(_) => Err(Rule::Headers.alone()),
            None => Err(self.missing(at + N)),
        }
    }

    /// The answer for bytes up to `end` that are not here: whether the frame, and what is looked at
    /// of it, goes that far.
    #[cold]
    fn missing(&self, end: usize) -> Refused {
        let ever = end <= self.len.min(MAX_HEADERS_LEN);
        if ever { Refused::Short } else { Rule::Headers.alone() }
    }

    /// True if a checksum, which has two bytes, is written over some of `len` bytes from `at`.
    #[inline(always)]
    fn is_overwritten(&self, at: usize, len: usize) -> bool {
        self.sum_at.is_some_and(|sum| sum < at + len && at < sum + 2)
    }

    /// True if the frame has a byte there.
    pub(super) fn has(&self, at: usize) -> bool {
        at < self.len
    }

    #[inline(always)]
    pub(super) fn u8(&self, at: usize) -> Result<u8, Refused> {
        self.take::<1>(at).map(|[byte]| byte)
    }

    #[inline(always)]
    pub(super) fn u16(&self, at: usize) -> Result<u16, Refused> {
        self.take(at).map(u16::from_be_bytes)
    }

    #[inline(always)]
    pub(super) fn mac(&self, at: usize) -> Result<MacAddr, Refused> {
        self.take(at).map(MacAddr)
    }

    #[inline(always)]
    pub(super) fn v4(&self, at: usize) -> Result<Ipv4Addr, Refused> {
        self.take::<4>(at).map(Ipv4Addr::from)
    }

    #[inline(always)]
    pub(super) fn v6(&self, at: usize) -> Result<Ipv6Addr, Refused> {
        self.take::<16>(at).map(Ipv6Addr::from)
    }
}
