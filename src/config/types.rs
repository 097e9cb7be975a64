//! Types of keys: what a value looks like, how it is read, and how it is written.

use std::os::fd::RawFd;
use std::path::PathBuf;

use super::amount::{FloodRates, rate, rate_word, size, size_word, storm, storm_word};
use super::entries::Shared;
use super::keys::Kind;
use super::raw::Setting;
use super::value::{
    group, inherited_socket, interface_name, label, number, one_of, permissions, port_name, prefix,
    protocols, socket_path, station_address, text as text_of, vlan_set,
};
use crate::frame::offload::Offloads;
use crate::frame::{MacAddr, Prefix};
use crate::limits;
use crate::limits::MAX_VLAN;
use crate::switch::mirror::Way;
use crate::switch::port_security::Servers;
use crate::switch::segment::VlanId;
use crate::switch::vlan::VlanSet;
use crate::switch::{Rate, ReservedSet, Size};
use crate::sys::tap_ring::Io;

/// A type whose values are `T`.
pub(super) struct Type<T: 'static> {
    pub(super) form: fn(Kind) -> String,
    pub(super) read: fn(&Setting, Kind) -> Result<T, String>,
    pub(super) word: fn(&T) -> String,
    /// Its values are numbers, or may be.
    pub(super) is_number: bool,
    /// Only one port may have a value.
    pub(super) claims: Option<Shared>,
    /// It is shown wherever a port is.
    pub(super) is_shown: bool,
    /// A value may have commas.
    pub(super) has_commas: bool,
}

/// Where a key's values are: one, one or none, or several.
pub(super) trait Slot<T: 'static> {
    const IS_LIST: bool = false;
    fn put(&mut self, one: T) -> Result<(), String>;
    fn all(&self) -> impl Iterator<Item = &T>;
}

impl<T: 'static> Slot<T> for T {
    fn put(&mut self, one: T) -> Result<(), String> {
        *self = one;
        Ok(())
    }
    fn all(&self) -> impl Iterator<Item = &T> {
        std::iter::once(self)
    }
}

impl<T: 'static> Slot<T> for Option<T> {
    fn put(&mut self, one: T) -> Result<(), String> {
        *self = Some(one);
        Ok(())
    }
    fn all(&self) -> impl Iterator<Item = &T> {
        self.iter()
    }
}

/// What there may be a list of.
pub(super) trait Listed: 'static {
    /// How many, and of what.
    const MOST: (usize, &'static str);
}

impl Listed for MacAddr {
    const MOST: (usize, &'static str) = (limits::MAX_STATIC_MACS, "mac addresses");
}

impl Listed for AllowedMac {
    const MOST: (usize, &'static str) = (limits::MAX_ALLOWED, "allowed-macs");
}

impl Listed for Prefix {
    const MOST: (usize, &'static str) = (limits::MAX_ALLOWED, "allowed-ips");
}

impl Listed for Server {
    const MOST: (usize, &'static str) = (limits::MAX_ALLOWED, "servers");
}

impl<T: Listed> Slot<T> for Vec<T> {
    const IS_LIST: bool = true;
    fn put(&mut self, one: T) -> Result<(), String> {
        let (most, what) = T::MOST;
        if self.len() == most {
            return Err(format!("more than {most} {what}"));
        }
        self.push(one);
        Ok(())
    }
    fn all(&self) -> impl Iterator<Item = &T> {
        self.iter()
    }
}

pub(super) const fn is_list<T, S: Slot<T>>(_: &Type<T>) -> bool {
    S::IS_LIST
}

/// The values there, as they are written.
pub(super) fn words_of<T, S: Slot<T>>(of: &Type<T>, slot: &S) -> Vec<String> {
    slot.all().map(of.word).collect()
}

/// A type of whose values each has a word.
pub(super) trait Words: Copy + PartialEq + 'static {
    const WORDS: &'static [(&'static str, Self)];

    /// The words that a kind of ports takes.
    fn of(_: Kind) -> Vec<(&'static str, Self)> {
        Self::WORDS.to_vec()
    }
}

const fn words<T: Words>() -> Type<T> {
    text(
        |kind| T::of(kind).iter().map(|(word, _)| *word).collect::<Vec<_>>().join("|"),
        |setting, kind| one_of(setting, &T::of(kind)),
        |value| {
            let found = T::WORDS.iter().find(|(_, other)| other == value);
            found.map_or("", |(word, _)| word).to_owned()
        },
    )
}

/// A type whose values are described by a word for them.
const fn text<T>(
    form: fn(Kind) -> String,
    read: fn(&Setting, Kind) -> Result<T, String>,
    word: fn(&T) -> String,
) -> Type<T> {
    Type { form, read, word, is_number: false, claims: None, is_shown: false, has_commas: false }
}

/// A type of whose values each is one port's.
const fn claimed<T>(claims: Shared, of: Type<T>) -> Type<T> {
    Type { claims: Some(claims), ..of }
}

/// A type of what is shown wherever a port is.
const fn shown<T>(of: Type<T>) -> Type<T> {
    Type { is_shown: true, ..of }
}

/// A whole number from one to another.
const fn numbers<T: ToString>(
    form: fn(Kind) -> String,
    read: fn(&Setting, Kind) -> Result<T, String>,
) -> Type<T> {
    Type { is_number: true, ..text(form, read, T::to_string) }
}

fn range((min, max): (u64, u64)) -> String {
    format!("{min} to {max}")
}

fn read_in<T: TryFrom<u64>>(setting: &Setting, (min, max): (u64, u64)) -> Result<T, String> {
    number(setting, min, max)
}

fn queues(kind: Kind) -> (u64, u64) {
    let most = if kind == Kind::Tap { limits::MAX_TAP_QUEUES } else { limits::MAX_QUEUE_PAIRS };
    (1, most.into())
}

fn mtu(kind: Kind) -> (u64, u64) {
    let most = if kind == Kind::Tap { limits::MAX_TAP_MTU } else { limits::MAX_CARRIED_MTU };
    (limits::MIN_MTU, most)
}

/// What becomes of a port's socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// It is listened on.
    Server,
    /// It is connected to.
    Client,
}

impl Words for Mode {
    const WORDS: &'static [(&'static str, Mode)] =
        &[("server", Mode::Server), ("client", Mode::Client)];
}

/// What the administrator has a port do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admin {
    /// It forwards.
    Up,
    /// It forwards nothing.
    Down,
}

impl Words for Admin {
    const WORDS: &'static [(&'static str, Admin)] = &[("up", Admin::Up), ("down", Admin::Down)];
}

/// What of a VM's memory must be there when it is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// Nothing.
    Any,
    /// All of it.
    Prealloc,
}

impl Words for Memory {
    const WORDS: &'static [(&'static str, Memory)] =
        &[("any", Memory::Any), ("prealloc", Memory::Prealloc)];
}

impl Words for Io {
    const WORDS: &'static [(&'static str, Io)] =
        &[("auto", Io::Auto), ("uring", Io::Uring), ("write", Io::Write)];
}

/// Whether frames whose sender is not the port's are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    /// No.
    Off,
    /// They are counted.
    Log,
    /// They are dropped.
    On,
}

impl Words for Guard {
    const WORDS: &'static [(&'static str, Guard)] =
        &[("off", Guard::Off), ("log", Guard::Log), ("on", Guard::On)];
}

/// A server that may be behind a port with a guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    /// Of DHCP.
    Dhcp,
    /// Of DHCPv6.
    Dhcpv6,
    /// A router that advertises itself.
    Ra,
}

impl Words for Server {
    const WORDS: &'static [(&'static str, Server)] =
        &[("dhcp", Server::Dhcp), ("dhcpv6", Server::Dhcpv6), ("ra", Server::Ra)];
}

impl Server {
    /// Those of a list.
    pub fn all(list: &[Server]) -> Servers {
        let has = |server| list.contains(&server);
        Servers { dhcp: has(Server::Dhcp), dhcpv6: has(Server::Dhcpv6), ra: has(Server::Ra) }
    }
}

/// Source addresses of a port with a guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllowedMac {
    /// Those of `mac`.
    Own,
    /// Those of virtual routers.
    Vrrp,
    /// This one.
    One(MacAddr),
}

impl AllowedMac {
    const WORDS: [(&'static str, AllowedMac); 2] =
        [("own", AllowedMac::Own), ("vrrp", AllowedMac::Vrrp)];

    fn read(setting: &Setting) -> Result<AllowedMac, String> {
        let word = text_of(setting)?;
        match AllowedMac::WORDS.iter().find(|(known, _)| *known == word) {
            Some((_, value)) => Ok(*value),
            None => station_address(setting).map(AllowedMac::One),
        }
    }

    fn word(&self) -> String {
        match self {
            AllowedMac::One(mac) => mac.to_string(),
            AllowedMac::Own => "own".to_owned(),
            AllowedMac::Vrrp => "vrrp".to_owned(),
        }
    }
}

/// What is offered to what is behind a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offload {
    /// Offloads that its frames may ask for.
    pub send: Offloads,
    /// Offloads that frames may reach it with.
    pub receive: Offloads,
}

impl Offload {
    /// All, in both directions.
    pub const ON: Offload = Offload { send: Offloads::ALL, receive: Offloads::ALL };
}

impl Words for Offload {
    const WORDS: &'static [(&'static str, Offload)] = &[
        ("on", Offload::ON),
        ("send", Offload { send: Offloads::ALL, receive: Offloads::NONE }),
        ("csum", Offload { send: Offloads::CSUM, receive: Offloads::CSUM }),
        ("off", Offload { send: Offloads::NONE, receive: Offloads::NONE }),
    ];

    // With the kernel there is one agreement for both directions.
    fn of(kind: Kind) -> Vec<(&'static str, Offload)> {
        let has = |(word, _): &(&str, Offload)| kind != Kind::Tap || *word != "send";
        Offload::WORDS.iter().copied().filter(has).collect()
    }
}

impl Words for Way {
    const WORDS: &'static [(&'static str, Way)] =
        &[("in", Way::In), ("out", Way::Out), ("both", Way::Both)];
}

impl Words for bool {
    const WORDS: &'static [(&'static str, bool)] = &[("on", true), ("off", false)];
}

pub(super) const NAME: Type<String> =
    claimed(Shared::Name, text(|_| "NAME".to_owned(), |s, _| port_name(s), String::clone));
pub(super) const SOCKET: Type<PathBuf> = claimed(
    Shared::Socket,
    text(|_| "PATH".to_owned(), |s, _| socket_path(s), |path| path.to_string_lossy().into_owned()),
);
pub(super) const INTERFACE: Type<String> = claimed(
    Shared::Interface,
    text(|_| "IFNAME".to_owned(), |s, _| interface_name(s), String::clone),
);
pub(super) const MAC: Type<MacAddr> =
    claimed(Shared::Mac, text(|_| "MAC".to_owned(), |s, _| station_address(s), MacAddr::to_string));
pub(super) const PERMISSIONS: Type<u32> =
    text(|_| "MODE".to_owned(), |s, _| permissions(s), |mode| format!("{mode:04o}"));
pub(super) const GROUP: Type<u32> = numbers(|_| "GROUP".to_owned(), |s, _| group(s));
pub(super) const INHERITED: Type<RawFd> = numbers(|_| "N".to_owned(), |s, _| inherited_socket(s));
pub(super) const QUEUES: Type<u16> = numbers(|k| range(queues(k)), |s, k| read_in(s, queues(k)));
pub(super) const MTU: Type<u16> = numbers(|k| range(mtu(k)), |s, k| read_in(s, mtu(k)));
pub(super) const MODE: Type<Mode> = words();
pub(super) const MEMORY: Type<Memory> = words();
pub(super) const IO: Type<Io> = words();
pub(super) const OFFLOAD: Type<Offload> = words();
pub(super) const PEER: Type<String> =
    text(|_| "NAME".to_owned(), |s, _| port_name(s), String::clone);
pub(super) const WAY: Type<Way> = words();
pub(super) const SNAPLEN: Type<u32> =
    numbers(|_| range(SNAPLENS), |s, _| number(s, SNAPLENS.0, SNAPLENS.1));
/// What the beginnings may be that a mirror copies.
const SNAPLENS: (u64, u64) = (limits::MIN_SNAPLEN as u64, limits::MAX_FRAME_LEN as u64);
pub(super) const ON_OFF: Type<bool> = words();
pub(super) const FLOOD: Type<bool> = shown(words());
pub(super) const SWITCHED: Type<bool> = shown(words());
pub(super) const ADDRESSES: Type<u32> =
    shown(numbers(|_| range(ADDRESS_CAPS), |s, _| read_in(s, ADDRESS_CAPS)));
/// How many addresses a port may be limited to.
const ADDRESS_CAPS: (u64, u64) = (1, limits::FDB_MAX_ENTRIES as u64);
pub(super) const ADMIN: Type<Admin> = shown(words());
pub(super) const BRIDGE: Type<String> =
    shown(text(|_| "BRIDGE".to_owned(), |s, _| port_name(s), String::clone));
pub(super) const VLAN: Type<VlanId> = shown(numbers(|_| range(VLANS), |s, _| read_in(s, VLANS)));
pub(super) const NATIVE: Type<VlanId> =
    shown(numbers(|_| range((0, VLANS.1)), |s, _| read_in(s, (0, VLANS.1))));
pub(super) const TRUNK: Type<VlanSet> = Type {
    has_commas: true,
    ..shown(text(|_| "all|VLANS".to_owned(), |s, _| vlan_set(s), VlanSet::to_string))
};
/// What the identifiers of VLANs may be.
const VLANS: (u64, u64) = (1, MAX_VLAN as u64);
pub(super) const RATE: Type<Rate> =
    Type { has_commas: true, ..shown(text(|_| "RATE".to_owned(), |s, _| rate(s), rate_word)) };
pub(super) const BURST: Type<Size> =
    Type { has_commas: true, ..shown(text(|_| "SIZE".to_owned(), |s, _| size(s), size_word)) };
pub(super) const STORM: Type<FloodRates> = Type {
    has_commas: true,
    ..shown(text(|_| "CLASS:RATE".to_owned(), |s, _| storm(s), storm_word))
};
pub(super) const PASS: Type<ReservedSet> = Type {
    has_commas: true,
    ..shown(text(|_| "PROTOCOLS".to_owned(), |s, _| protocols(s), ReservedSet::to_string))
};
pub(super) const LABEL: Type<String> =
    shown(text(|_| "TEXT".to_owned(), |s, _| label(s), String::clone));
pub(super) const GUARD: Type<Guard> = shown(words());
pub(super) const ALLOWED_MACS: Type<AllowedMac> =
    text(|_| "own|vrrp|MAC".to_owned(), |s, _| AllowedMac::read(s), AllowedMac::word);
pub(super) const ALLOWED_IPS: Type<Prefix> =
    text(|_| "IP[/LENGTH]".to_owned(), |s, _| prefix(s), Prefix::to_string);
pub(super) const ALLOW_SERVER: Type<Server> = words();
