//! The first bytes of a frame, and what stands in the way of reading them.

use core::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Deref;

use super::{AllowedMacs, PortSecurity, Rule, Violation};
use base::frame::MacAddr;
use base::limits::{MAX_HEADERS_LEN, MAX_MESSAGE_LEN};

/// Why a frame may not be sent, or not yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The first [`MAX_HEADERS_LEN`] bytes of the frame are needed to say.
    Short,
    /// All bytes of the frame, which has at most [`MAX_MESSAGE_LEN`], are needed to say.
    Whole,
    /// It breaks a rule.
    Broken(Violation),
}

/// The first bytes of a frame, and what becomes of them on their way.
#[derive(Clone, Copy, Debug)]
pub struct Headers<'a> {
    /// Private bytes: the first [`MAX_HEADERS_LEN`], or all if the frame is shorter; or fewer, and
    /// then the answer may be [`Refused::Short`].
    pub bytes: &'a [u8],
    /// Private bytes: all of the frame; or none, and then the answer may be [`Refused::Whole`].
    pub whole: &'a [u8],
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
    /// Notes a DHCP client's identifier; false if the port has had too many.
    pub(super) clients: &'a dyn Fn(&[&[u8]]) -> bool,
}

impl<'a> Sent<'a> {
    /// Returns true if a link-layer address inside the frame is one of the port.
    pub(super) fn is_own(&self, mac: MacAddr) -> bool {
        self.rules.macs.allow_inside(mac, self.source)
    }

    /// Returns true if a virtual router may be behind the port.
    pub(super) fn may_have_virtual_router(&self) -> bool {
        let vrrp_mac = matches!(self.rules.macs, AllowedMacs::Only { vrrp: true, .. });
        self.rules.servers.vrrp || vrrp_mac
    }

    /// Notes the identifier of a DHCP client behind the port, if the port may have one more.
    pub(super) fn note_client(&self, identifier: &[&[u8]]) -> Result<(), Refused> {
        if (self.clients)(identifier) { Ok(()) } else { Err(Rule::Dhcp.alone()) }
    }

    /// Returns `len` bytes from `at`, however far into the frame.
    pub(super) fn message(&self, at: usize, len: usize) -> Result<&'a [u8], Refused> {
        let frame: &'a Headers<'a> = self.headers;
        if at + len > frame.len || frame.len > MAX_MESSAGE_LEN || frame.is_overwritten(at, len) {
            return Err(Rule::Headers.alone());
        }
        let bytes = [frame.bytes, frame.whole].into_iter().find_map(|all| all.get(at..at + len));
        bytes.ok_or(Refused::Whole)
    }
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
