//! Types of keys: the form of a value, its reader and its writer.

use std::os::fd::RawFd;
use std::path::PathBuf;

use super::amount::{FloodRates, rate, rate_word, size, size_word, storm, storm_word};
use super::claims::Shared;
use super::kind::Kind;
use super::raw::{Setting, Value, quote};
use super::value::{
    group, inherited_socket, interface_name, label, number, one_of, permissions, port_name, prefix,
    protocols, socket_path, station_address, text as text_of, vlan_set, worker, worker_word,
};
use base::frame::offload::Offloads;
use base::frame::{MacAddr, Prefix};
use base::limits;
use base::limits::MAX_VLAN;
use base::words::Words;
use switch::filter::{FilterRule, Span, Verdict};
use switch::mirror::Way;
use switch::port_security::{FIRST_ETHERTYPE, LLC, Servers};
use switch::segment::VlanId;
use switch::vlan::VlanSet;
use switch::{Rate, ReservedSet, Size};
use sys::tap_ring::Io;
use sys::xdp;

/// A type whose values are `T`.
pub(super) struct Type<T: 'static> {
    pub(super) form: fn(Kind) -> String,
    pub(super) read: fn(&Setting, Kind) -> Result<T, String>,
    pub(super) format: fn(&T) -> String,
    /// True if values are numbers, or may be numbers.
    pub(super) is_number: bool,
    /// Kind of the claim, if only one port may have a value.
    pub(super) claims: Option<Shared>,
    /// True if lists, details and metrics show the key.
    pub(super) is_shown: bool,
    /// True if a value may have commas.
    pub(super) has_commas: bool,
}

/// Field for a key's values: one, one or none, or several.
pub(super) trait Slot<T: 'static> {
    const IS_LIST: bool = false;
    fn store(&mut self, one: T) -> Result<(), String>;
    fn values(&self) -> impl Iterator<Item = &T>;
}

impl<T: 'static> Slot<T> for T {
    fn store(&mut self, one: T) -> Result<(), String> {
        *self = one;
        Ok(())
    }
    fn values(&self) -> impl Iterator<Item = &T> {
        std::iter::once(self)
    }
}

impl<T: 'static> Slot<T> for Option<T> {
    fn store(&mut self, one: T) -> Result<(), String> {
        *self = Some(one);
        Ok(())
    }
    fn values(&self) -> impl Iterator<Item = &T> {
        self.iter()
    }
}

/// A type of values for keys with lists.
pub(super) trait Listed: 'static {
    /// Largest number of values, and their noun.
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

impl Listed for Ethertype {
    const MOST: (usize, &'static str) = (limits::MAX_ALLOWED, "ethertypes");
}

impl Listed for FilterRule {
    const MOST: (usize, &'static str) = (limits::MAX_FILTER_RULES, "rules");
}

impl Listed for Span {
    const MOST: (usize, &'static str) = (limits::MAX_GROUP_ADDRESSES, "addresses");
}

impl Listed for String {
    const MOST: (usize, &'static str) = (limits::MAX_PORTS, "ports");
}

impl<T: Listed> Slot<T> for Vec<T> {
    const IS_LIST: bool = true;
    fn store(&mut self, one: T) -> Result<(), String> {
        let (most, what) = T::MOST;
        if self.len() == most {
            return Err(format!("more than {most} {what}"));
        }
        self.push(one);
        Ok(())
    }
    fn values(&self) -> impl Iterator<Item = &T> {
        self.iter()
    }
}

pub(super) const fn is_list<T, S: Slot<T>>(_: &Type<T>) -> bool {
    S::IS_LIST
}

/// Returns the values of a field, as text.
pub(super) fn formatted<T, S: Slot<T>>(of: &Type<T>, slot: &S) -> Vec<String> {
    slot.values().map(of.format).collect()
}

/// Returns a type whose values each have a word.
const fn words<T: Words>() -> Type<T> {
    text(|_| forms(T::WORDS), |setting, _| one_of(setting, T::WORDS), word_of)
}

/// Returns the words of a type: `on|off`.
fn forms<T>(words: &[(&str, T)]) -> String {
    words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join("|")
}

fn word_of<T: Words>(value: &T) -> String {
    let found = T::WORDS.iter().find(|(_, other)| other == value);
    found.map_or("", |(word, _)| word).to_owned()
}

/// Returns a type whose values one placeholder describes.
const fn text<T>(
    form: fn(Kind) -> String,
    read: fn(&Setting, Kind) -> Result<T, String>,
    format: fn(&T) -> String,
) -> Type<T> {
    Type { form, read, format, is_number: false, claims: None, is_shown: false, has_commas: false }
}

/// Returns the type with [`Type::is_shown`] set.
const fn shown<T>(of: Type<T>) -> Type<T> {
    Type { is_shown: true, ..of }
}

/// Returns a type of whole numbers from a least to a greatest number.
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
    let most = match kind {
        Kind::Tap => limits::MAX_TAP_QUEUES,
        Kind::Xdp => limits::MAX_XDP_QUEUES,
        _ => limits::MAX_QUEUE_PAIRS,
    };
    (1, most.into())
}

fn ring_sizes() -> (u64, u64) {
    let [least, most] = limits::RING_SIZES;
    (least.into(), most.into())
}

fn ring_size(setting: &Setting) -> Result<u16, String> {
    match read_in(setting, ring_sizes())? {
        size if u16::is_power_of_two(size) => Ok(size),
        size => {
            let range = range(ring_sizes());
            Err(format!("{} must be a power of two from {range}, not {size}", setting.key))
        }
    }
}

fn mtu(kind: Kind) -> (u64, u64) {
    let most = match kind {
        Kind::Tap => limits::MAX_TAP_MTU,
        Kind::Xdp => limits::MAX_XDP_MTU,
        _ => limits::MAX_CARRIED_MTU,
    };
    (limits::MIN_MTU, most)
}

base::words! {
    /// Administrative state of a port.
    Admin {
        /// The port forwards.
        Up "up",
        /// The port forwards nothing.
        Down "down",
    }
    /// Part of a VM's memory that must be allocated when the switch maps the memory.
    Memory {
        /// No part.
        Any "any",
        /// All memory.
        Prealloc "prealloc",
    }
    /// Treatment of frames whose sender's addresses are not the port's.
    Guard {
        /// No check.
        Off "off",
        /// Frames are counted.
        Log "log",
        /// Frames are dropped and counted.
        On "on",
    }
    /// A server that may be behind a port with a guard.
    Server {
        /// Server of DHCP.
        Dhcp "dhcp",
        /// Server of DHCPv6.
        Dhcpv6 "dhcpv6",
        /// Router that sends advertisements.
        Ra "ra",
        /// Virtual router.
        Vrrp "vrrp",
    }
}

/// Side that connects a port's socket, or the place where an XDP uplink takes frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The switch listens on the socket.
    Server,
    /// The switch connects to the socket.
    Client,
    /// An XDP uplink takes frames at this place of the interface.
    Xdp(xdp::Mode),
}

impl Mode {
    /// Returns the default mode of a kind.
    pub(crate) fn usual(kind: Kind) -> Mode {
        if kind == Kind::Xdp { Mode::Xdp(xdp::Mode::Auto) } else { Mode::Server }
    }

    /// Returns the place where an XDP uplink takes frames.
    pub fn of_xdp(self) -> xdp::Mode {
        if let Mode::Xdp(mode) = self { mode } else { xdp::Mode::Auto }
    }
}

impl Words for Mode {
    const WORDS: &'static [(&'static str, Mode)] = &[
        ("server", Mode::Server),
        ("client", Mode::Client),
        ("auto", Mode::Xdp(xdp::Mode::Auto)),
        ("native", Mode::Xdp(xdp::Mode::Native)),
        ("generic", Mode::Xdp(xdp::Mode::Generic)),
    ];
}

/// Kind of a stream's socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketType {
    /// A stream socket: each frame follows its length.
    Stream,
    /// A datagram socket: each frame is a datagram.
    Dgram,
}

impl Words for SocketType {
    const WORDS: &'static [(&'static str, SocketType)] =
        &[("stream", SocketType::Stream), ("dgram", SocketType::Dgram)];
}

/// Returns the modes of a kind of ports, with their words.
fn modes(kind: Kind) -> Vec<(&'static str, Mode)> {
    let has = |(_, mode): &(&str, Mode)| matches!(mode, Mode::Xdp(_)) == (kind == Kind::Xdp);
    Mode::WORDS.iter().copied().filter(has).collect()
}

impl Server {
    /// Returns the servers of a list as a set.
    pub(crate) fn all(list: &[Server]) -> Servers {
        let has = |server| list.contains(&server);
        Servers {
            dhcp: has(Server::Dhcp),
            dhcpv6: has(Server::Dhcpv6),
            ra: has(Server::Ra),
            vrrp: has(Server::Vrrp),
        }
    }
}

/// Source addresses of a port with a guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllowedMac {
    /// The addresses of `mac`.
    Own,
    /// The addresses of virtual routers.
    Vrrp,
    /// One address.
    One(MacAddr),
}

impl Words for AllowedMac {
    const WORDS: &'static [(&'static str, AllowedMac)] =
        &[("own", AllowedMac::Own), ("vrrp", AllowedMac::Vrrp)];
}

impl AllowedMac {
    fn read(setting: &Setting) -> Result<AllowedMac, String> {
        let word = text_of(setting)?;
        match AllowedMac::WORDS.iter().find(|(known, _)| *known == word) {
            Some((_, value)) => Ok(*value),
            None => station_address(setting).map(AllowedMac::One),
        }
    }

    fn word(&self) -> String {
        if let AllowedMac::One(mac) = self { mac.to_string() } else { word_of(self) }
    }
}

/// An EtherType that a guard lets pass, or frames of IEEE 802.2, which have a length in place of
/// the type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ethertype(pub u16);

impl Ethertype {
    /// The word for frames of IEEE 802.2.
    const LLC: &'static str = "llc";

    fn read(setting: &Setting) -> Result<Ethertype, String> {
        let word = text_of(setting)?;
        if word == Ethertype::LLC {
            return Ok(Ethertype(LLC));
        }
        let digits = word.strip_prefix("0x").unwrap_or_default();
        match u16::from_str_radix(digits, 16) {
            Ok(number) if number >= FIRST_ETHERTYPE => Ok(Ethertype(number)),
            _ => Err(format!(
                "{} must be llc or a type from 0x0600 to 0xffff, such as 0x88b5, not {}",
                setting.key,
                quote(word)
            )),
        }
    }

    fn word(&self) -> String {
        match self.0 {
            LLC => Ethertype::LLC.to_owned(),
            number => format!("{number:#06x}"),
        }
    }
}

/// Offloads that a port offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offload {
    /// Offloads that frames of the port may request.
    pub send: Offloads,
    /// Offloads of frames that the port may get.
    pub receive: Offloads,
}

impl Offload {
    /// All offloads in both directions.
    pub(crate) const ON: Offload = Offload { send: Offloads::ALL, receive: Offloads::ALL };
}

impl Words for Offload {
    const WORDS: &'static [(&'static str, Offload)] = &[
        ("on", Offload::ON),
        ("send", Offload { send: Offloads::ALL, receive: Offloads::NONE }),
        ("csum", Offload { send: Offloads::CSUM, receive: Offloads::CSUM }),
        ("off", Offload { send: Offloads::NONE, receive: Offloads::NONE }),
    ];
}

/// Returns the offloads of a kind of ports, with their words. A TAP has equal offloads in both
/// directions.
fn offloads(kind: Kind) -> Vec<(&'static str, Offload)> {
    let has = |(word, _): &(&str, Offload)| kind != Kind::Tap || *word != "send";
    Offload::WORDS.iter().copied().filter(has).collect()
}

/// Names of filters, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterNames(pub(crate) Vec<String>);

impl FilterNames {
    fn read(setting: &Setting) -> Result<FilterNames, String> {
        let all = text_of(setting)?;
        let one = |name: &str| {
            let value = Value::Word(name.trim().to_owned());
            port_name(&Setting { value, ..setting.clone() })
        };
        let names: Vec<String> = all.split(',').map(one).collect::<Result<_, _>>()?;
        match names.len() <= limits::MAX_PORT_FILTERS {
            true => Ok(FilterNames(names)),
            false => Err(format!("more than {} filters", limits::MAX_PORT_FILTERS)),
        }
    }

    fn word(&self) -> String {
        self.0.join(",")
    }
}

/// Reads a rule of a filter.
fn rule(setting: &Setting) -> Result<FilterRule, String> {
    let text = text_of(setting)?;
    text.parse().map_err(|error| format!("rule {}: {error}", quote(text)))
}

/// Reads a range of addresses.
fn span(setting: &Setting) -> Result<Span, String> {
    let text = text_of(setting)?;
    text.parse().map_err(|error| format!("{} is wrong: expected {error}", quote(text)))
}

/// Declares types: name, form, reader, writer and further properties.
macro_rules! types {
    ($($name:ident $type:ty:
        $form:literal, $read:expr, $word:expr $(, $field:ident: $value:expr)*;)*) => {$(
        pub(super) const $name: Type<$type> = Type {
            $($field: $value,)*
            ..text(|_| $form.to_owned(), |setting, _| $read(setting), $word)
        };
    )*};
}

types! {
    NAME String: "NAME", port_name, String::clone, claims: Some(Shared::Name);
    SOCKET PathBuf: "PATH", socket_path, |path| path.to_string_lossy().into_owned(),
        claims: Some(Shared::Socket);
    INTERFACE String: "IFNAME", interface_name, String::clone, claims: Some(Shared::Interface);
    NETNS String: "NAME|PID", port_name, String::clone;
    MAC MacAddr: "MAC", station_address, MacAddr::to_string, claims: Some(Shared::Mac);
    PERMISSIONS u32: "MODE", permissions, |mode| format!("{mode:04o}");
    GROUP u32: "GROUP", group, u32::to_string, is_number: true;
    INHERITED RawFd: "N", inherited_socket, RawFd::to_string, is_number: true;
    PEER String: "NAME", port_name, String::clone;
    BRIDGE String: "BRIDGE", port_name, String::clone, is_shown: true;
    TRUNK VlanSet: "all|VLANS", vlan_set, VlanSet::to_string, is_shown: true, has_commas: true;
    RATE Rate: "RATE", rate, rate_word, is_shown: true, has_commas: true;
    BURST Size: "SIZE", size, size_word, is_shown: true, has_commas: true;
    STORM FloodRates: "CLASS:RATE", storm, storm_word, is_shown: true, has_commas: true;
    PASS ReservedSet: "PROTOCOLS", protocols, ReservedSet::to_string, is_shown: true,
        has_commas: true;
    WORKER Option<u16>: "auto|N", worker, worker_word, is_number: true, is_shown: true;
    FILTER_NAMES FilterNames: "FILTERS", FilterNames::read, FilterNames::word, is_shown: true,
        has_commas: true;
    RULE FilterRule: "RULE", rule, FilterRule::to_string, has_commas: true;
    SPAN Span: "IP[/LENGTH]|IP-IP", span, Span::to_string;
    LABEL String: "TEXT", label, String::clone, is_shown: true;
    ALLOWED_MACS AllowedMac: "own|vrrp|MAC", AllowedMac::read, AllowedMac::word;
    ALLOWED_IPS Prefix: "IP[/LENGTH]", prefix, Prefix::to_string;
    ETHERTYPES Ethertype: "llc|TYPE", Ethertype::read, Ethertype::word;
}

pub(super) const MODE: Type<Mode> =
    text(|kind| forms(&modes(kind)), |setting, kind| one_of(setting, &modes(kind)), word_of);
pub(super) const SOCKET_TYPE: Type<SocketType> = words();
pub(super) const MEMORY: Type<Memory> = words();
pub(super) const IO: Type<Io> = words();
pub(super) const WAY: Type<Way> = words();
pub(super) const VERDICT: Type<Verdict> = words();
pub(super) const ON_OFF: Type<bool> = words();
pub(super) const ALLOW_SERVER: Type<Server> = words();
pub(super) const SWITCHED: Type<bool> = shown(words());
pub(super) const ADMIN: Type<Admin> = shown(words());
pub(super) const GUARD: Type<Guard> = shown(words());
pub(super) const OFFLOAD: Type<Offload> =
    text(|kind| forms(&offloads(kind)), |s, kind| one_of(s, &offloads(kind)), word_of);

pub(super) const QUEUES: Type<u16> = numbers(|k| range(queues(k)), |s, k| read_in(s, queues(k)));
pub(super) const MTU: Type<u16> = numbers(|k| range(mtu(k)), |s, k| read_in(s, mtu(k)));
pub(super) const RING_SIZE: Type<u16> =
    numbers(|_| format!("{}, a power of two", range(ring_sizes())), |s, _| ring_size(s));
pub(super) const SNAPLEN: Type<u32> = numbers(|_| range(SNAPLENS), |s, _| read_in(s, SNAPLENS));
pub(super) const ADDRESSES: Type<u32> =
    shown(numbers(|_| range(ADDRESS_CAPS), |s, _| read_in(s, ADDRESS_CAPS)));
pub(super) const VLAN: Type<VlanId> = shown(numbers(|_| range(VLANS), |s, _| read_in(s, VLANS)));
pub(super) const NATIVE: Type<VlanId> =
    shown(numbers(|_| range((0, VLANS.1)), |s, _| read_in(s, (0, VLANS.1))));
/// Least and greatest length of a frame's copy for a mirror.
const SNAPLENS: (u64, u64) = (limits::MIN_SNAPLEN as u64, limits::MAX_FRAME_LEN as u64);
/// Least and greatest limit of a port's addresses.
const ADDRESS_CAPS: (u64, u64) = (1, limits::FDB_MAX_ENTRIES as u64);
/// Least and greatest identifier of a VLAN.
const VLANS: (u64, u64) = (1, MAX_VLAN as u64);
