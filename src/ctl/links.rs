//! Reads the fields that vioswitchctl uses from the output of ip(8) and tc(8) of iproute2.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::tool;

/// An interface.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Link {
    pub(crate) ifindex: u32,
    pub ifname: String,
    /// Name of the other end of a veth pair, if the other end is in the same namespace.
    pub link: Option<String>,
    /// Number of the other end of a veth pair, if the other end is in another namespace.
    pub(crate) link_index: Option<u32>,
    pub(crate) link_netnsid: Option<i64>,
    pub(crate) linkinfo: Info,
    /// Description of an XDP program that takes the interface's frames.
    pub xdp: Option<serde_json::Value>,
    /// Name of the bridge that the interface is in.
    pub master: Option<String>,
    pub(crate) link_type: String,
    /// Device of the interface, such as `virtio0`; empty without `-details`.
    pub(crate) parentdev: String,
    /// Hardware address of the interface.
    pub address: String,
    pub mtu: u64,
    pub flags: Vec<String>,
    pub qdisc: String,
    pub(crate) addr_info: Vec<Address>,
}

/// Kind of an interface.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Info {
    pub(crate) info_kind: String,
}

/// An address of an interface.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Address {
    pub(crate) local: String,
    pub(crate) prefixlen: u8,
    pub(crate) scope: String,
    /// True if the address is leased.
    pub(crate) dynamic: bool,
}

/// A route.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Route {
    pub(crate) dst: String,
    pub(crate) dev: String,
    pub(crate) gateway: Option<String>,
}

/// A queueing discipline.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Qdisc {
    pub(crate) kind: String,
    pub(crate) handle: String,
    pub(crate) parent: Option<String>,
    pub(crate) root: bool,
}

/// Returns the list that a program prints as JSON.
pub fn ask<T: DeserializeOwned>(words: &[&str]) -> Option<Vec<T>> {
    serde_json::from_str(&tool::output(words)?).ok()
}

/// Returns the interface of this name.
pub fn named<'l>(links: &'l [Link], name: &str) -> Option<&'l Link> {
    links.iter().find(|link| link.ifname == name)
}
