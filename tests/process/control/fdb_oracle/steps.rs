//! Reads Open vSwitch's tests of its MAC table (tests/ofproto-dpif.at): the frames that come in,
//! the changes that are made, and what the table has afterwards.

use testkit::openvswitch;

pub type Mac = [u8; 6];

/// An address of the table, with its port, and whether it is static.
pub type Row = (u16, Mac, bool);

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    Ports {
        bridge: String,
        ports: Vec<u16>,
    },
    /// A frame comes in, and leaves by these ports, if that is said.
    Frame {
        from: u16,
        src: Mac,
        dst: Mac,
        to: Option<Vec<u16>>,
    },
    Add {
        port: u16,
        mac: Mac,
    },
    Delete {
        mac: Mac,
    },
    Flush,
    DeletePort(u16),
    Table {
        bridge: String,
        rows: Vec<Row>,
    },
    Gone(Mac),
    Statics(usize),
    /// Frames that came from a static address of another port.
    Foreign(u64),
}

/// The steps of a test.
pub fn read(text: &str, title: &str) -> Vec<Step> {
    let section = openvswitch::section(text, title);
    let lines = unrolled(section);
    let mut steps = Vec::new();
    let mut lines = lines.iter().map(String::as_str).peekable();
    while let Some(line) = lines.next() {
        if line.starts_with('#') || line.starts_with("dnl") {
            continue;
        }
        let mut statement = line.to_owned();
        let open = |text: &str| text.matches('(').count() > text.matches(')').count();
        while open(&statement) {
            let Some(next) = lines.next() else { break };
            statement += "\n";
            statement += next;
        }
        steps.extend(step(&statement));
    }
    steps
}

/// The lines, those of a loop as often as it runs.
fn unrolled(section: &str) -> Vec<String> {
    let (mut all, mut lines) = (Vec::new(), section.lines());
    while let Some(line) = lines.next() {
        let Some(list) = line.strip_prefix("for i in ") else {
            all.push(line.to_owned());
            continue;
        };
        let list = list.trim_end_matches("; do");
        let body: Vec<&str> = lines.by_ref().take_while(|line| *line != "done").collect();
        for (at, word) in list.split_whitespace().enumerate() {
            // The only arithmetic of these tests.
            let half = (at / 2 + 1).to_string();
            let plain = body.iter().filter(|line| !line.contains("expr $i / 2 + 1"));
            all.extend(plain.map(|line| line.trim().replace("$i", word).replace("$p", &half)));
        }
    }
    all
}

fn step(text: &str) -> Option<Step> {
    let words = |after: &str| -> Option<Vec<&str>> {
        let (_, rest) = text.split_once(after)?;
        Some(rest.split([']', '\n']).next()?.split_whitespace().collect())
    };
    if let Some(words) = words("add_of_ports ") {
        let ports = words[1..].iter().map(|word| number(word)).collect();
        return Some(Step::Ports { bridge: words[0].to_owned(), ports });
    }
    if text.contains("in_port(") {
        return Some(frame(text));
    }
    if let Some(words) = words("fdb/add ") {
        let port = number(words[1].strip_prefix('p')?);
        return Some(Step::Add { port, mac: mac(words[3]) });
    }
    if let Some(words) = words("fdb/del ") {
        return Some(Step::Delete { mac: mac(words[2]) });
    }
    if text.contains("fdb/flush ") {
        return Some(Step::Flush);
    }
    if let Some(words) = words("del-port ") {
        return Some(Step::DeletePort(number(words[0].strip_prefix('p')?)));
    }
    if let Some((_, rest)) = text.split_once("grep \"") {
        return Some(Step::Gone(mac(&rest[..17])));
    }
    if let Some(words) = words("fdb/show ") {
        let rows = text.lines().filter_map(row).collect();
        return Some(Step::Table { bridge: words[0].to_owned(), rows });
    }
    let last = || text.lines().rev().find_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    if text.contains("grep static") {
        return Some(Step::Statics(last()? as usize));
    }
    text.contains("mac_learning_static_none_move").then(last).flatten().map(Step::Foreign)
}

/// Source and destination, zero if it is not said, and the ports where it leaves.
fn frame(text: &str) -> Step {
    let part = |before: &str| {
        let (_, rest) = text.split_once(before)?;
        rest.split([',', ')']).next()
    };
    let from = number(part("in_port(").expect("a port"));
    let src = mac(part("src=").expect("a source"));
    let dst = part("dst=").map_or([0; 6], mac);
    let to = text.contains("OFPROTO_TRACE").then(|| {
        let (_, list) = text.rsplit_once('[').expect("a list");
        list.trim_end_matches([')', ']', ' ']).split(',').map(number).collect()
    });
    Step::Frame { from, src, dst, to }
}

/// Port, VLAN and address, and what is behind them.
fn row(line: &str) -> Option<Row> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let port = words.first()?.parse().ok()?;
    assert_eq!(words[1], "0", "{line}");
    Some((port, mac(words[2]), words.get(3) == Some(&"static")))
}

fn number(word: &str) -> u16 {
    word.trim().parse().unwrap_or_else(|_| panic!("no number: '{word}'"))
}

fn mac(word: &str) -> Mac {
    let octets = word.split(':').map(|octet| u8::from_str_radix(octet, 16).expect(word));
    octets.collect::<Vec<_>>().try_into().expect("six octets")
}
