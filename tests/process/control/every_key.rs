//! Each key of each kind of entries, with a value that is not its default, has the same value in
//! `list`, `show`, `--json` and `config show`, and `trace` goes by it. A key that has no value here
//! fails.

use std::collections::BTreeSet;
use std::fs;

use api::config::{KEYS, Kind};
use testkit::host::{in_namespace, ip, veth_up};
use testkit::proc::Dir;

use super::*;

type Keys = &'static [(&'static str, &'static str)];

/// Keys that every kind of ports has; those of one kind are beside them.
const COMMON: Keys = &[
    ("flood", "off"),
    ("isolated", "on"),
    ("learn", "off"),
    ("max-addresses", "7"),
    ("multicast-router", "off"),
    ("mtu", "1400"),
    ("rate-in", "10mbit"),
    ("burst-in", "64kib"),
    ("rate-out", "20mbit"),
    ("burst-out", "128kib"),
    ("storm", "bcast:1kpps"),
    ("pass", "lldp"),
    ("filter", "web"),
    ("bridge", "blue"),
    ("vlan", "10"),
    ("label", "seven"),
];
/// Keys that do not go with those above.
const TRUNK: Keys = &[("trunk", "10,20-29"), ("native", "30"), ("admin", "down")];
const SOCKET: Keys =
    &[("socket-mode", "0620"), ("socket-group", "65533"), ("mac", "02:00:00:00:00:01")];
const GUARD: Keys = &[("guard", "log"), ("allow-server", "dhcp"), ("ethertypes", "0x88b5")];
const LISTS: Keys = &[("allowed-macs", "vrrp"), ("allowed-ips", "10.0.0.5")];
const VM: Keys = &[
    ("queues", "2"),
    ("offload", "csum"),
    ("platform", "on"),
    ("worker", "0"),
    ("memory", "prealloc"),
];
const TAP: Keys = &[("queues", "2"), ("offload", "csum"), ("io", "write"), ("coalesce", "off")];
const MIRROR: Keys =
    &[("from", "p0"), ("to", "p1"), ("dir", "in"), ("vlan", "10"), ("snaplen", "96")];

/// What `trace` says of a frame from the first port, and of one from the port with [`TRUNK`].
const TRACED: [&str; 5] = [
    "VLAN 10 of bridge 'blue'",
    "learn=off",
    "rate-in is 10mbit",
    "bursts of 64kib",
    "bcast:1kpps",
];
const TRACED_DOWN: &str = "admin";

/// The two ports of a kind, with all its keys between them but the name.
fn ports(kind: Kind) -> [Vec<(&'static str, &'static str)>; 2] {
    let (own, other): (&[Keys], &[Keys]) = match kind {
        Kind::Port => (&[VM, SOCKET, GUARD, LISTS], &[&[("mode", "client")]]),
        Kind::Stream => (&[SOCKET, GUARD, LISTS], &[&[("mode", "client"), ("type", "dgram")]]),
        Kind::Tap => (
            &[TAP, &[("ifname", "ektap0"), ("mac", "02:00:00:00:00:02")]],
            &[&[("ifname", "ektap1")]],
        ),
        _ => (
            &[
                &[("queues", "2"), ("mode", "generic"), ("ifname", "ekxdp0")],
                &[("mac", "02:00:00:00:00:03")],
            ],
            &[&[("ifname", "ekxdp1")]],
        ),
    };
    [[own, &[COMMON]].concat().concat(), [other, &[TRUNK]].concat().concat()]
}

/// The cell of a row in the column of a key, if there is such a column.
fn cell(table: &str, name: &str, key: &str) -> Option<String> {
    let mut lines = table.lines();
    let title = format!(" {} ", lines.next()?);
    let at = title.find(&format!(" {} ", key.to_uppercase()))?;
    let row = lines.find(|line| line.split_whitespace().next() == Some(name))?;
    row.get(at..)?.split_whitespace().next().map(str::to_owned)
}

/// The value of a key in `--json port show`.
fn in_json(shown: &Value, key: &str) -> String {
    let field = match key {
        "socket" => &shown["socket"]["path"],
        "ifname" => &shown["port"]["interface"],
        key => &shown["port"][key.replace('-', "_")],
    };
    let named = |all: &Value| {
        let one = all.as_array()?.iter().find(|one| one["key"] == *key)?.clone();
        Some(one["values"].as_array()?.iter().filter_map(Value::as_str).collect())
    };
    let others = || named(&shown["settings"]).or_else(|| named(&shown["lists"]));
    match field {
        Value::String(word) => word.clone(),
        Value::Null => others().unwrap_or_default(),
        other => other.to_string(),
    }
}

/// The value of a key in the lines `KEY<between>VALUE` of an entry.
fn in_lines(text: &str, key: &str, between: &str) -> String {
    let begin = format!("{key}{between}");
    let line = text.lines().find_map(|line| line.strip_prefix(&begin)).unwrap_or_default();
    let rest = line.trim().trim_start_matches('[').trim_end_matches(']');
    rest.trim_matches('"').to_owned()
}

/// The entry of a name in `config show`.
fn entry(config: &str, kind: Kind, name: &str) -> String {
    let begin = format!("[[{}]]\nname = \"{name}\"\n", kind.name());
    let at = config.find(&begin).unwrap_or_else(|| panic!("{begin}: {config}"));
    config[at..].split("\n\n").next().unwrap_or_default().to_owned()
}

fn check(lab: &Lab, kind: Kind, name: &str, keys: &[(&str, &str)]) {
    let word = kind.name();
    let list = lab.done(&[word, "list"]);
    let shown = lab.json(&[word, "show", name]);
    let text = lab.done(&[word, "show", name]);
    let config = entry(&lab.done(&["config", "show"]), kind, name);
    assert_eq!(shown["port"]["kind"], kind.name());
    for (key, value) in keys {
        let known = kind.key(key).unwrap_or_else(|| panic!("{kind} has no key {key}"));
        assert_ne!(known.default(kind), *value, "{key} of a {kind} has its default");
        assert_eq!(in_json(&shown, key), *value, "{kind} {key}: {shown}");
        let row = if *key == "ifname" { "interface" } else { key };
        let told = in_lines(&text, row, ":");
        let told = told.strip_suffix(" (missing)").unwrap_or(&told);
        let told = if *key == "socket" { told.split(' ').next().unwrap_or_default() } else { told };
        assert_eq!(told, *value, "{kind} {key}: {text}");
        assert_eq!(in_lines(&config, key, " = "), *value, "{kind} {key}: {config}");
        let cell = cell(&list, name, key);
        assert!(cell.is_some() || !known.is_shown, "{kind} {key} has no column: {list}");
        assert!(cell.is_none_or(|cell| cell == *value), "{kind} {key}: {list}");
    }
    // Keys of other kinds are not there.
    for key in KEYS.iter().filter(|key| key.is_shown && !key.kinds.contains(&kind)) {
        assert_eq!(in_lines(&text, key.name, ":"), "", "{kind}: {text}");
    }
}

/// Adds both ports of a kind, and looks at them.
fn add(lab: &Lab, kind: Kind) {
    lab.done(&["filter", "add", "web", "--may-exist"]);
    let mut tried = BTreeSet::from(["name"]);
    for (keys, more) in ports(kind).iter().zip(["a", "b"]) {
        let name = format!("{}-{more}", kind.name());
        let socket = lab.socket(&format!("{name}.sock")).display().to_string();
        let mut keys = keys.clone();
        if kind.key("socket").is_some() {
            keys.push(("socket", &socket));
        }
        tried.extend(keys.iter().map(|(key, _)| *key).filter_map(|key| Some(kind.key(key)?.name)));
        let given: Vec<String> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let given: Vec<&str> = given.iter().map(String::as_str).collect();
        lab.done(&[&[kind.name(), "add", &name], &given[..]].concat());
        check(lab, kind, &name, &keys);
        let frame = ["src=02:00:00:00:00:09", "dst=ff:ff:ff:ff:ff:ff"];
        let trace = lab.done(&["trace", &name, frame[0], frame[1]]);
        match more {
            "a" => TRACED.iter().for_each(|said| assert!(trace.contains(said), "{said}: {trace}")),
            _ => assert!(trace.contains(TRACED_DOWN), "{trace}"),
        }
    }
    let all: BTreeSet<&str> = kind.keys().map(|key| key.name).collect();
    assert_eq!(all, tried, "keys of a {kind}");
}

#[test]
fn each_key_of_a_port_is_told_everywhere() {
    // Each has the same static address.
    for kind in [Kind::Port, Kind::Stream] {
        let lab = Lab::new(1, &["--multicast-snooping"]);
        add(&lab, kind);
        lab.d.stop();
    }
}

#[test]
fn each_key_of_an_uplink_is_told_everywhere() {
    in_namespace(|| {
        for name in ["ekxdp0", "ekxdp1"] {
            let each = "numrxqueues 2 numtxqueues 2";
            ip(&format!("link add {name} {each} type veth peer name {name}p {each}"));
            veth_up([name, &format!("{name}p")]);
            ip(&format!("link set {name} mtu 1400"));
        }
        let lab = Lab::new(1, &["--multicast-snooping"]);
        add(&lab, Kind::Tap);
        add(&lab, Kind::Xdp);
        lab.d.stop();
    });
}

#[test]
fn each_key_of_a_mirror_is_told_everywhere() {
    let lab = Lab::new(2, &[]);
    let given: Vec<String> = MIRROR.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let given: Vec<&str> = given.iter().map(String::as_str).collect();
    let add = [&["mirror", "add", "m"], &given[..]].concat();
    lab.done(&add);
    let (list, all) = (lab.done(&["mirror", "list"]), lab.json(&["mirror", "list"]));
    let config = entry(&lab.done(&["config", "show"]), Kind::Mirror, "m");
    for (key, value) in MIRROR {
        assert_ne!(Kind::Mirror.key(key).expect(key).default(Kind::Mirror), *value);
        assert_eq!(cell(&list, "m", key).as_deref(), Some(*value), "{key}: {list}");
        let field = &all["mirrors"][0][key];
        let told = field.as_str().map_or_else(|| field.to_string(), str::to_owned);
        assert_eq!(told, *value, "{key}: {all}");
        assert_eq!(in_lines(&config, key, " = "), *value, "{key}: {config}");
    }
    let tried = MIRROR.iter().map(|(key, _)| *key).chain(["name"]);
    assert_eq!(tried.collect::<BTreeSet<_>>(), Kind::Mirror.keys().map(|key| key.name).collect());
    lab.d.stop();
}

#[test]
fn each_key_of_a_filter_and_of_a_group_is_told() {
    let lab = Lab::new(1, &[]);
    const GROUP: Keys = &[("addresses", "10.0.0.53"), ("ports", "p0")];
    const FILTER: Keys = &[
        ("default-in", "drop"),
        ("default-out", "reject"),
        ("rules", "in accept udp from group:dns port 53 log"),
    ];
    for (kind, keys) in [(Kind::Group, GROUP), (Kind::Filter, FILTER)] {
        let name = if kind == Kind::Group { "dns" } else { "web" };
        let given: Vec<String> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let given: Vec<&str> = given.iter().map(String::as_str).collect();
        lab.done(&[&[kind.name(), "add", name], &given[..]].concat());
        let shown = lab.done(&[kind.name(), "show", name]);
        let config = entry(&lab.done(&["config", "show"]), kind, name);
        for (key, value) in keys {
            assert_ne!(kind.key(key).expect(key).default(kind), *value);
            assert!(shown.contains(value), "{key}: {shown}");
            assert_eq!(in_lines(&config, key, " = "), *value, "{key}: {config}");
        }
        let tried = keys.iter().map(|(key, _)| *key).chain(["name"]);
        assert_eq!(tried.collect::<BTreeSet<_>>(), kind.keys().map(|key| key.name).collect());
    }
    lab.d.stop();
}

#[test]
fn each_key_of_the_template_is_told() {
    let etc = Dir::new();
    let [first, second] = ports(Kind::Port);
    let keys = || first.iter().chain(&second).filter(|(key, _)| Kind::Template.key(key).is_some());
    let mut tried = BTreeSet::new();
    for trunk in [false, true] {
        let is_of =
            |key: &str| trunk && key != "vlan" || !trunk && !["trunk", "native"].contains(&key);
        let keys: Vec<_> = keys().filter(|(key, _)| is_of(key)).collect();
        let line = |(key, value): &&(&str, &str)| match value.parse::<u32>() {
            Ok(number) => format!("{key} = {number}\n"),
            Err(_) if ["allow-server", "ethertypes"].contains(key) => {
                format!("{key} = [\"{value}\"]\n")
            }
            Err(_) => format!("{key} = \"{value}\"\n"),
        };
        let lines: String = keys.iter().map(line).collect();
        let file = etc.path().join("vioswitch.toml");
        let plug = etc.path().join("plug");
        fs::create_dir_all(&plug).expect("a directory");
        let filter = "[[filter]]\nname = \"web\"\n";
        let text = format!("plug = \"{}\"\n{filter}[template.plug]\n{lines}", plug.display());
        fs::write(&file, text).expect("write");
        let lab = Lab::new(1, &[&format!("--config={}", file.display())]);
        let told = lab.json(&["status"])["plug"]["keys"].clone();
        let all = told.as_array().expect("keys");
        for (key, value) in keys {
            let known = Kind::Template.key(key).expect(key);
            assert_ne!(known.default(Kind::Template), *value, "{key}");
            let one = all.iter().find(|one| one["key"] == **key);
            let one = one.unwrap_or_else(|| panic!("{key}: {told}"));
            assert_eq!(one["values"], json!([value]), "{key}");
            tried.insert(known.name);
        }
        lab.d.stop();
    }
    assert_eq!(tried, Kind::Template.keys().map(|key| key.name).collect());
}
