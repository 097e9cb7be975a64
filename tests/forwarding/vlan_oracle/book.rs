//! Reads Open vSwitch's test `VLAN handling` (tests/ofproto-dpif.at): which ports there are, and
//! for each frame that comes in where and as what it leaves.

use std::collections::BTreeMap;

use testkit::openvswitch;

/// The tag of a frame: VLAN and priority.
pub type Tag = (u16, u16);
/// The tags of a frame, the outermost first.
pub type Tags = Vec<Tag>;

/// How a port treats tags, in the words of the other switch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mode {
    Access(u16),
    /// All VLANs without a list.
    Trunk(Option<Vec<u16>>),
    NativeUntagged(u16, Option<Vec<u16>>),
    /// One that this switch does not have.
    LeftOut(String),
}

/// A port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Port {
    pub mode: Mode,
    /// A frame leaves without a tag, unless it has a priority: then with that and VLAN 0.
    pub keeps_priority: bool,
}

/// A frame that comes in by a port, and its copies by the ports where they leave.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    pub from: u16,
    pub tag: Option<Tag>,
    pub copies: BTreeMap<u16, Tags>,
}

#[derive(Debug)]
pub struct Book {
    pub ports: BTreeMap<u16, Port>,
    pub rows: Vec<Row>,
}

/// The port of the bridge itself: a trunk of all VLANs.
const OWN: u16 = 100;

impl Book {
    pub fn read(text: &str) -> Book {
        let section = openvswitch::section(text, "VLAN handling");
        let whole = section.replace("\\\n", " ");
        let mut ports =
            BTreeMap::from([(OWN, Port { mode: Mode::Trunk(None), keeps_priority: false })]);
        for part in whole.split("--").filter(|part| part.contains("add-port br0 ")) {
            let (number, port) = read_port(part);
            assert!(ports.insert(number, port).is_none(), "port {number} comes twice");
        }
        // Lines of a list of words in quotes.
        let lines = section.lines().map(str::trim).filter(|line| line.starts_with('"'));
        let rows = lines.map(|line| read_row(line.trim_matches(['"', '\\', ' ']))).collect();
        Book { ports, rows }
    }
}

fn number(word: &str) -> u16 {
    word.parse().unwrap_or_else(|_| panic!("no number: '{word}'"))
}

fn read_port(part: &str) -> (u16, Port) {
    let (_, part) = part.split_once("add-port br0 ").expect("filtered");
    let mut words = part.split_whitespace();
    let name = words.next().expect("a name");
    let keys: BTreeMap<&str, &str> = words.filter_map(|word| word.split_once('=')).collect();
    let tag = || number(keys["tag"]);
    let trunks = keys.get("trunks").map(|list| list.split(',').map(number).collect());
    let mode = match keys.get("vlan_mode") {
        None if keys.contains_key("tag") => Mode::Access(tag()),
        None => Mode::Trunk(trunks),
        Some(&"native-untagged") => Mode::NativeUntagged(tag(), trunks),
        Some(other) => Mode::LeftOut((*other).to_owned()),
    };
    let keeps_priority = match keys.get("other-config:priority-tags") {
        None => false,
        Some(&"if-nonzero") => true,
        Some(other) => panic!("priority-tags={other}"),
    };
    (number(name.strip_prefix('p').expect("pN")), Port { mode, keeps_priority })
}

/// Port, VLAN or "none", priority, and what is done in turn: an output copies the frame as it is by
/// then.
fn read_row(line: &str) -> Row {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [from, vlan, priority, actions] = &words[..] else { panic!("no row: {line}") };
    let tag = (*vlan != "none").then(|| (number(vlan), number(priority)));
    let (mut tags, mut copies): (Tags, _) = (tag.into_iter().collect(), BTreeMap::new());
    for action in actions_of(actions) {
        match action.as_str() {
            "drop" => {}
            "pop_vlan" => drop(tags.remove(0)),
            push if push.starts_with("push_vlan(") => {
                let of = |key: &str| {
                    let (_, value) = push.split_once(key).unwrap_or_else(|| panic!("{push}"));
                    number(value.split([',', ')']).next().unwrap_or_default())
                };
                tags.insert(0, (of("vid="), of("pcp=")));
            }
            port => drop(copies.insert(number(port), tags.clone())),
        }
    }
    Row { from: number(from), tag, copies }
}

/// The parts of a list, in which a part may have commas between parentheses.
fn actions_of(list: &str) -> Vec<String> {
    let (mut parts, mut depth) = (vec![String::new()], 0);
    for c in list.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        parts.last_mut().expect("one at least").push(c);
    }
    parts
}
