//! The first bytes of a frame, as the checks of port security read them.

use core::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Deref;

use super::rules::{AllowedMacs, PortSecurity, Refused, Rule};
use base::frame::MacAddr;
use base::limits::{MAX_HEADERS_LEN, MAX_MESSAGE_LEN};

/// The first bytes of a frame, and the changes to them on their way.
#[derive(Clone, Copy, Debug)]
pub struct Headers<'a> {
    /// Private bytes: the first [`MAX_HEADERS_LEN`], or the whole frame if it is shorter. With
    /// fewer bytes the answer may be [`Refused::Short`].
    pub bytes: &'a [u8],
    /// Private bytes: the whole frame, or none; with none the answer may be [`Refused::Whole`].
    pub whole: &'a [u8],
    /// Bytes of the whole frame.
    pub len: usize,
    /// Offset at which the switch or the receiver writes a checksum.
    pub sum_at: Option<usize>,
    /// The frame will be cut into several packets; these bytes are the first packet's.
    pub is_cut: bool,
}

/// A frame together with the rules of its port.
#[derive(Clone, Copy)]
pub(super) struct Sent<'a> {
    /// Rules of the port.
    pub(super) rules: &'a PortSecurity,
    pub(super) headers: &'a Headers<'a>,
    /// Source address of the frame.
    pub(super) source: MacAddr,
    /// Notes a DHCP client's identifier; returns false if the port has had too many.
    pub(super) clients: &'a dyn Fn(&[&[u8]]) -> bool,
}

impl<'a> Sent<'a> {
    /// True if a link-layer address inside the frame is the port's.
    pub(super) fn is_own(&self, mac: MacAddr) -> bool {
        self.rules.macs.allow_inside(mac, self.source)
    }

    /// True if a virtual router may be behind the port.
    pub(super) fn may_have_virtual_router(&self) -> bool {
        let vrrp_mac = matches!(self.rules.macs, AllowedMacs::Only { vrrp: true, .. });
        self.rules.servers.vrrp || vrrp_mac
    }

    /// Notes the identifier of a DHCP client behind the port; fails if the port has had too many.
    pub(super) fn note_client(&self, identifier: &[&[u8]]) -> Result<(), Refused> {
        if (self.clients)(identifier) { Ok(()) } else { Err(Rule::Dhcp.alone()) }
    }

    /// Returns `len` bytes from `at`, which may lie beyond the first [`MAX_HEADERS_LEN`].
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
    /// Returns the headers of the packet that ends at `end`: what follows is padding.
    pub(crate) fn until(&self, end: usize) -> Headers<'_> {
        Headers { bytes: self.bytes.get(..end).unwrap_or(self.bytes), len: end, ..*self }
    }

    /// Returns `N` bytes from `at`.
    #[inline(always)]
    fn take<const N: usize>(&self, at: usize) -> Result<[u8; N], Refused> {
        match self.bytes.get(at..).and_then(<[u8]>::first_chunk::<N>) {
            Some(bytes) if !self.is_overwritten(at, N) => Ok(*bytes),
            Some(_) => Err(Rule::Headers.alone()),
            None => Err(self.missing(at + N)),
        }
    }

    /// Returns the answer for bytes up to `end` that are missing: a request for more bytes, or a
    /// refusal if the frame or the examined part of it is shorter.
    #[cold]
    fn missing(&self, end: usize) -> Refused {
        let ever = end <= self.len.min(MAX_HEADERS_LEN);
        if ever { Refused::Short } else { Rule::Headers.alone() }
    }

    /// True if a checksum of two bytes is written over some of the `len` bytes from `at`.
    #[inline(always)]
    fn is_overwritten(&self, at: usize, len: usize) -> bool {
        self.sum_at.is_some_and(|sum| sum < at + len && at < sum + 2)
    }

    #[inline(always)]
    pub(crate) fn u8(&self, at: usize) -> Result<u8, Refused> {
        self.take::<1>(at).map(|[byte]| byte)
    }

    #[inline(always)]
    pub(crate) fn u16(&self, at: usize) -> Result<u16, Refused> {
        self.take(at).map(u16::from_be_bytes)
    }

    #[inline(always)]
    pub(crate) fn mac(&self, at: usize) -> Result<MacAddr, Refused> {
        self.take(at).map(MacAddr)
    }

    #[inline(always)]
    pub(crate) fn v4(&self, at: usize) -> Result<Ipv4Addr, Refused> {
        self.take::<4>(at).map(Ipv4Addr::from)
    }

    #[inline(always)]
    pub(crate) fn v6(&self, at: usize) -> Result<Ipv6Addr, Refused> {
        self.take::<16>(at).map(Ipv6Addr::from)
    }
}
