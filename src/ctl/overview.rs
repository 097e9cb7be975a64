//! `vioswitchctl show`: prints all ports on one screen, by bridge and VLAN, with their rates.
//!
//! Rates cover the time between two readings of the switch. A narrow terminal has fewer columns:
//! the line of a port is never broken.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use api::config::Kind;
use api::wire::{Address, GetStatus, ListAddresses, Port, State, Status};
use base::words::counted;
use rustix::termios::tcgetwinsize;
use serde::Serialize;
use serde_json::Value;

use crate::client::Client;
use crate::failure::Failure;
use crate::look::{self, Rates};
use crate::output::text;
use crate::show::{bits, human, last, latest};
use crate::span::span;

/// Time between the two readings.
const MOMENT: Duration = Duration::from_millis(500);
/// Bridge of ports that name no bridge.
const DEFAULT: &str = "default";

/// Content of the screen.
#[derive(Debug, Serialize)]
pub(crate) struct Overview {
    #[serde(skip)]
    status: Status,
    pub(crate) version: String,
    /// Seconds since the switch started.
    pub(crate) uptime: u64,
    pub(crate) degraded: Vec<String>,
    /// Seconds that the rates cover.
    pub(crate) seconds: f64,
    pub(crate) bridges: Vec<Bridge>,
}

/// A bridge, with its ports by their VLANs.
#[derive(Debug, Serialize)]
pub struct Bridge {
    pub name: String,
    pub(crate) segments: Vec<Segment>,
}

/// Ports of a bridge that are in the same VLANs.
#[derive(Debug, Serialize)]
pub struct Segment {
    #[serde(flatten)]
    pub vlans: Vlans,
    pub ports: Vec<Line>,
}

/// VLANs of a port; all fields are empty for a port in no VLAN. The order of values is the order of
/// the screen.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Vlans {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trunk: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) vlan: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) native: Option<u64>,
}

/// A port.
#[derive(Debug, Serialize)]
pub struct Line {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) state: State,
    /// One address of the port; a static address, if the port has a static address.
    pub(crate) address: Option<String>,
    pub(crate) addresses: usize,
    pub(crate) rates: Rates,
    /// Dropped frames, in both directions.
    pub(crate) drops: u64,
    /// Seconds since the last drop, if this switch counted a drop.
    pub(crate) drop_age: Option<u64>,
}

/// Returns the overview of the ports of a kind, or of all ports.
pub fn look(client: &mut Client, kind: Option<Kind>) -> Result<Overview, Failure> {
    let (before, after, seconds) = look::twice(MOMENT, || look::of_kind(client, kind))?;
    let status = client.call(&GetStatus {})?;
    let all = ListAddresses { port: None, bridge: None, vlan: None };
    let mut addresses: HashMap<String, Address> = HashMap::new();
    client.parts(&all, |part| {
        for one in part.addresses {
            let is_known = addresses.get(&one.port).is_some_and(|known| known.r#static);
            if one.r#static && !is_known || !addresses.contains_key(&one.port) {
                addresses.insert(one.port.clone(), one);
            }
        }
        true
    })?;
    let mut bridges: BTreeMap<(bool, String), BTreeMap<Vlans, Vec<Line>>> = BTreeMap::new();
    for port in &after {
        let known = before.iter().find(|old| old.number == port.number).unwrap_or(port);
        let bridge = word(port, "bridge").unwrap_or_else(|| DEFAULT.to_owned());
        let segments = bridges.entry((bridge != DEFAULT, bridge)).or_default();
        let address = addresses.remove(&port.name).map(|one| one.mac);
        let rates = look::rates(known, port, seconds);
        segments.entry(Vlans::of(port)).or_default().push(Line::new(port, address, rates));
    }
    let segment = |(vlans, ports)| Segment { vlans, ports };
    let bridge = |((_, name), segments): ((bool, String), BTreeMap<_, _>)| {
        let segments = segments.into_iter().map(segment).collect();
        Bridge { name, segments }
    };
    let (version, uptime, degraded) =
        (status.version.clone(), status.uptime, status.degraded.clone());
    let bridges = bridges.into_iter().map(bridge).collect();
    Ok(Overview { status, version, uptime, degraded, seconds, bridges })
}

/// Returns the value of a key of a port; `None` for an empty value.
fn word(port: &Port, key: &str) -> Option<String> {
    match port.keys.0.get(key)? {
        Value::String(word) if word.is_empty() || word == "-" => None,
        Value::String(word) => Some(word.clone()),
        Value::Null => None,
        other => Some(other.to_string()),
    }
}

impl Vlans {
    fn of(port: &Port) -> Vlans {
        let number = |key: &str| word(port, key).and_then(|word| word.parse().ok());
        Vlans { trunk: word(port, "trunk"), vlan: number("vlan"), native: number("native") }
    }

    /// Returns the words for the title of a group.
    fn told(&self) -> String {
        let native = self.native.map_or_else(String::new, |vlan| format!(", native {vlan}"));
        match (&self.trunk, self.vlan) {
            (Some(trunk), _) => format!("trunk {}{native}", text(trunk)),
            (None, Some(vlan)) => format!("VLAN {vlan}{native}"),
            (None, None) if self.native.is_some() => native[2..].to_owned(),
            (None, None) => "no VLAN".to_owned(),
        }
    }
}

impl Line {
    fn new(port: &Port, address: Option<String>, rates: Rates) -> Line {
        let both = [&port.r#in, &port.out];
        Line {
            name: port.name.clone(),
            kind: port.kind.clone(),
            state: port.state,
            address,
            addresses: port.addresses,
            rates,
            drops: both.iter().flat_map(|traffic| traffic.drops.values()).sum(),
            drop_age: both.iter().filter_map(|traffic| latest(traffic)).min(),
        }
    }

    fn address(&self) -> String {
        match (&self.address, self.addresses) {
            (None, 0) => "-".to_owned(),
            (None, count) => counted(count, "address"),
            (Some(address), 0 | 1) => text(address),
            (Some(address), count) => format!("{} +{}", text(address), count - 1),
        }
    }
}

/// A column: its title, its cell, and its rank. A narrow terminal has the columns of a high rank.
struct Column {
    title: &'static str,
    is_number: bool,
    rank: u8,
    cell: fn(&Line) -> String,
}

const fn column(
    title: &'static str,
    is_number: bool,
    rank: u8,
    cell: fn(&Line) -> String,
) -> Column {
    Column { title, is_number, rank, cell }
}

const COLUMNS: [Column; 9] = [
    column("  PORT", false, 9, |line| format!("  {}", text(&line.name))),
    column("KIND", false, 2, |line| text(&line.kind)),
    column("STATE", false, 8, |line| line.state.to_string()),
    column("ADDRESS", false, 5, Line::address),
    column("IN f/s", true, 1, |line| rate(human(line.rates.r#in.frames))),
    column("IN bit/s", true, 7, |line| rate(bits(line.rates.r#in.bytes))),
    column("OUT f/s", true, 1, |line| rate(human(line.rates.out.frames))),
    column("OUT bit/s", true, 7, |line| rate(bits(line.rates.out.bytes))),
    // The age keeps old drops from looking current.
    column("DROPS", false, 6, |line| match line.drops {
        0 => "-".to_owned(),
        count => format!("{count}, {}", last(line.drop_age)),
    }),
];

fn rate(number: String) -> String {
    if number == "0 " { "-".to_owned() } else { number.trim_end().to_owned() }
}

/// Returns the screen, at most as wide as the terminal.
pub fn show(overview: &Overview) -> String {
    let size = tcgetwinsize(std::io::stdout()).ok().map(|size| usize::from(size.ws_col));
    fitted(overview, size.filter(|columns| *columns > 0).unwrap_or(usize::MAX))
}

fn fitted(overview: &Overview, width: usize) -> String {
    let groups = || {
        let bridges = overview.bridges.iter();
        bridges.flat_map(|bridge| bridge.segments.iter().map(move |segment| (bridge, segment)))
    };
    let lines: Vec<&Line> = groups().flat_map(|(_, segment)| &segment.ports).collect();
    let columns = fitting(&lines, width);
    let row = |cells: &dyn Fn(&Column) -> String| {
        let cells = columns.iter().map(|(column, width)| match column.is_number {
            true => format!("{:>width$}", cells(column), width = *width),
            false => format!("{:<width$}", cells(column), width = *width),
        });
        cells.collect::<Vec<_>>().join("  ")
    };
    let mut told = head(overview, lines.len());
    if !lines.is_empty() {
        told.push(row(&|column| column.title.to_owned()));
    }
    for (bridge, Segment { vlans, ports }) in groups() {
        let ports_there = counted(ports.len(), "port");
        told.push(format!("bridge {}, {}: {ports_there}", text(&bridge.name), vlans.told()));
        told.extend(ports.iter().map(|line| row(&|column| (column.cell)(line))));
    }
    told.iter().map(|line| cut(line.trim_end(), width) + "\n").collect()
}

/// Returns `vioswitch 0.1.0, up 3 days 4 h, 5 ports, 12 addresses: healthy`, or two lines if the
/// switch is degraded.
fn head(overview: &Overview, ports: usize) -> Vec<String> {
    let (ports, addresses) =
        (counted(ports, "port"), counted(overview.status.addresses, "address"));
    let (version, up) = (text(&overview.version), span(overview.uptime));
    let first = format!("vioswitch {version}, up {up}, {ports}, {addresses}");
    match overview.degraded.len() {
        0 => vec![first + ": healthy"],
        count => {
            let reasons = counted(count, "reason");
            vec![first, format!("degraded: {reasons}, see vioswitchctl status")]
        }
    }
}

/// Returns the columns that fit, each with its width.
fn fitting(lines: &[&Line], width: usize) -> Vec<(&'static Column, usize)> {
    let widths = COLUMNS.iter().map(|column| {
        let cells = lines.iter().map(|line| (column.cell)(line).chars().count());
        (column, cells.chain([column.title.len()]).max().unwrap_or(0))
    });
    let mut columns: Vec<(&Column, usize)> = widths.collect();
    while columns.len() > 1 && columns.iter().map(|(_, width)| width + 2).sum::<usize>() - 2 > width
    {
        let least = columns.iter().map(|(column, _)| column.rank).min().unwrap_or(0);
        columns.retain(|(column, _)| column.rank > least);
    }
    columns
}

/// Returns a line of at most `width` characters; a line that is cut ends in `…`.
fn cut(line: &str, width: usize) -> String {
    if line.chars().count() <= width {
        return line.to_owned();
    }
    line.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::look::Rate;

    fn line(name: &str, state: State) -> Line {
        let busy = Rate { frames: 1_000.0, bytes: 125_000.0, drops: 0.0 };
        Line {
            name: name.to_owned(),
            kind: "port".to_owned(),
            state,
            address: Some("52:54:00:00:00:01".to_owned()),
            addresses: 3,
            rates: Rates { r#in: busy, out: Rate::default() },
            drops: 12,
            drop_age: Some(172_800),
        }
    }

    fn overview(ports: usize) -> Overview {
        let names = (0..ports).map(|n| format!("vm{n}"));
        let ports = names.map(|name| line(&name, State::Attached)).collect();
        let red = Vlans { vlan: Some(10), ..Vlans::default() };
        let up = Vlans { trunk: Some("10,20-29".to_owned()), native: Some(1), vlan: None };
        let segment = |vlans, ports| Segment { vlans, ports };
        let default = [
            segment(Vlans::default(), ports),
            segment(red, vec![line("red", State::Negotiating)]),
            segment(up, vec![line("uplink", State::Down)]),
        ];
        Overview {
            status: Status { addresses: 1, ..Status::default() },
            version: "0.1.0".to_owned(),
            uptime: 100,
            degraded: vec![],
            seconds: 0.5,
            bridges: vec![Bridge { name: DEFAULT.to_owned(), segments: default.into() }],
        }
    }

    #[test]
    fn ports_are_below_their_bridge_and_vlan() {
        let told = fitted(&overview(2), usize::MAX);
        let lines: Vec<String> = told
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        let of = |name: &str, state: &str| {
            format!("{name} port {state} 52:54:00:00:00:01 +2 1.00 K 1.00 M - - 12, 2 days ago")
        };
        assert_eq!(
            lines,
            [
                "vioswitch 0.1.0, up 1 min 40 s, 4 ports, 1 address: healthy".to_owned(),
                "PORT KIND STATE ADDRESS IN f/s IN bit/s OUT f/s OUT bit/s DROPS".to_owned(),
                "bridge default, no VLAN: 2 ports".to_owned(),
                of("vm0", "attached"),
                of("vm1", "attached"),
                "bridge default, VLAN 10: 1 port".to_owned(),
                of("red", "negotiating"),
                "bridge default, trunk 10,20-29, native 1: 1 port".to_owned(),
                of("uplink", "down"),
            ]
        );
    }

    /// Each port has one line, however narrow the terminal; columns of a low rank go first.
    #[test]
    fn the_screen_fits_the_terminal() {
        let all = overview(100);
        let columns = "PORT STATE ADDRESS IN bit/s OUT bit/s DROPS";
        for (width, title, first) in [
            (120, "PORT KIND STATE ADDRESS IN f/s IN bit/s OUT f/s OUT bit/s DROPS", "vm99"),
            (80, columns, "vm99"),
            (60, "PORT STATE IN bit/s OUT bit/s DROPS", "vm99"),
            (40, "PORT STATE", "vm99"),
            (5, "PO…", "vm…"),
        ] {
            let told = fitted(&all, width);
            assert_eq!(told.lines().count(), 107, "{told}");
            let fits = |line: &str| line.chars().count() <= width;
            assert!(told.lines().all(fits), "{width}: {told}");
            let words = |line: usize| {
                let line = told.lines().nth(line).expect("a line");
                line.split_whitespace().collect::<Vec<_>>().join(" ")
            };
            assert_eq!(words(1), title, "{width}");
            assert!(words(102).starts_with(first), "{width}: {told}");
        }
        let mut degraded = overview(1);
        degraded.degraded = vec!["a".to_owned()];
        assert!(fitted(&degraded, 80).contains("\ndegraded: 1 reason, see vioswitchctl status\n"));
    }

    /// The text of an answer does not steer the terminal.
    #[test]
    fn texts_of_the_switch_are_escaped() {
        let mut all = overview(0);
        let bad = "a\u{1b}[2J\n\r\u{9b}b";
        let vlans = Vlans { trunk: Some(bad.to_owned()), ..Vlans::default() };
        let mut one = line(bad, State::Attached);
        (one.kind, one.address) = (bad.to_owned(), Some(bad.to_owned()));
        let segments = vec![Segment { vlans, ports: vec![one] }];
        all.bridges.push(Bridge { name: bad.to_owned(), segments });
        (all.version, all.degraded) = (bad.to_owned(), vec![bad.to_owned()]);
        let told = fitted(&all, usize::MAX);
        assert!(told.chars().all(|c| !c.is_control() || c == '\n'), "{told:?}");
        assert_eq!(told.matches("a[2Jb").count(), 6, "{told:?}");
    }

    #[test]
    fn keys_say_where_a_port_is() {
        let of = |keys: Value| {
            let port: Port = serde_json::from_value(keys).expect("a port");
            Vlans::of(&port).told()
        };
        for (keys, told) in [
            (json!({}), "no VLAN"),
            (json!({"vlan": 10}), "VLAN 10"),
            (json!({"vlan": "10"}), "VLAN 10"),
            (json!({"trunk": "10,20"}), "trunk 10,20"),
            (json!({"trunk": "all", "native": 0}), "trunk all, native 0"),
            (json!({"native": 7}), "native 7"),
        ] {
            assert_eq!(of(keys.clone()), told, "{keys}");
        }
    }
}
