//! A port with a guard sends what its owner may send, and nothing else, to any receiver, and says
//! so wherever it is looked for; one that only logs sends all of it.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use testkit::vm::mac_of;

use super::*;

const OWN: [u8; 6] = [0x02, 0x56, 0x53, 0, 0, 0];
const OTHER: [u8; 6] = [0x02, 0x56, 0x53, 0, 0, 9];
const OWN_IP: [u8; 4] = [10, 0, 0, 1];
const OTHER_IP: [u8; 4] = [10, 0, 0, 9];

/// A frame to all.
fn frame(from: [u8; 6], ethertype: u16, rest: &[u8]) -> Vec<u8> {
    [&[0xff; 6], &from, &ethertype.to_be_bytes()[..], rest].concat()
}

fn arp(mac: [u8; 6], ip: [u8; 4]) -> Vec<u8> {
    [&[0, 1, 8, 0, 6, 4, 0, 1], &mac[..], &ip, &[0; 6], &[10, 0, 0, 2], &[0; 18]].concat()
}

fn ipv4(from: [u8; 4], proto: u8, rest: &[u8]) -> Vec<u8> {
    let len = (20 + rest.len()) as u16;
    let mut packet = vec![0x45, 0, 0, 0, 0, 1, 0, 0, 64, proto, 0, 0];
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    packet.extend([&from, &[255; 4], rest].concat());
    packet
}

/// What a DHCP client without an address sends; the hardware address is behind 64 bytes.
fn discover(chaddr: [u8; 6]) -> Vec<u8> {
    let mut datagram = vec![0; 8 + 240];
    datagram[..8].copy_from_slice(&[0, 68, 0, 67, 0, 249, 0, 0]);
    datagram[244..].copy_from_slice(&[99, 130, 83, 99]);
    datagram.push(255);
    datagram[8..11].copy_from_slice(&[1, 1, 6]);
    datagram[36..42].copy_from_slice(&chaddr);
    frame(OWN, 0x0800, &ipv4([0; 4], 17, &datagram))
}

/// A neighbour's advertisement of fd00::1 or the like, with its link-layer address, which ends at
/// byte 86.
fn advertisement(target: u8, mac: [u8; 6]) -> Vec<u8> {
    let mut address = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let mut packet = [&[0x60, 0, 0, 0, 0, 32, 58, 255], &address[..], &[0xff; 16]].concat();
    address[15] = target;
    packet.extend([&[136, 0, 0, 0, 0, 0, 0, 0], &address[..], &[2, 1], &mac].concat());
    frame(OWN, 0x86dd, &packet)
}

/// What a router sends.
fn router() -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, 24, 58, 255, 0xfe, 0x80];
    packet.resize(40, 0);
    packet.extend([&[134, 0][..], &[0; 14], &[1, 1], &OWN].concat());
    frame(OWN, 0x86dd, &packet)
}

/// What may be sent.
fn honest() -> Vec<Vec<u8>> {
    vec![
        frame(OWN, 0x0806, &arp(OWN, OWN_IP)),
        frame(OWN, 0x0800, &ipv4(OWN_IP, 6, &[5; 200])),
        discover(OWN),
        advertisement(1, OWN),
        frame(OWN, 0x0800, &ipv4(OWN_IP, 17, &[6; 40])),
    ]
}

/// What may not, with the rule that it breaks.
fn spoofed() -> Vec<(&'static str, Vec<u8>)> {
    let tagged = [&[0, 5], &0x0806_u16.to_be_bytes()[..], &arp(OWN, OTHER_IP)].concat();
    vec![
        ("mac", frame(OTHER, 0x88b5, &[6; 46])),
        ("arp", frame(OWN, 0x0806, &arp(OWN, OTHER_IP))),
        ("arp", frame(OWN, 0x0806, &arp(OTHER, OWN_IP))),
        ("arp", frame(OWN, 0x8100, &tagged)),
        ("ip", frame(OWN, 0x0800, &ipv4(OTHER_IP, 6, &[5; 200]))),
        ("dhcp", discover(OTHER)),
        ("nd", advertisement(9, OWN)),
        ("nd", advertisement(1, OTHER)),
        ("server", router()),
        ("headers", frame(OWN, 0x0806, &[0; 8])),
        ("ethertype", frame(OWN, 0x88b5, &[6; 46])),
    ]
}

/// Both, one after another, so that a burst has frames of each kind.
fn mixed() -> Vec<Vec<u8>> {
    let (mut honest, mut all) = (honest().into_iter(), Vec::new());
    for (_, frame) in spoofed() {
        all.extend(honest.next());
        all.push(frame);
    }
    all
}

struct Pair {
    lab: Lab,
    vms: [Vm; 2],
}

impl Pair {
    fn new(keys: &str) -> Pair {
        let lab = Lab::with_ports(&[keys, ""], &[]);
        let vms = [0, 1].map(|id| Vm::connect(&lab.d.socket(id.into()), VmConfig::new(id)));
        Pair { lab, vms }
    }

    /// Sends frames in one burst, and what arrives of them.
    fn send(&mut self, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let [from, to] = &mut self.vms;
        frames.iter().for_each(|frame| assert!(from.tx[0].queue(frame)));
        from.tx[0].ring.publish();
        from.tx[0].drain(LOST);
        let come = to.rx[0].take(usize::MAX, Duration::ZERO);
        come.into_iter().map(|(_, frame)| frame).collect()
    }

    fn shown(&self) -> Value {
        self.lab.json(&["port", "show", "p0"])
    }

    /// Frames that broke a rule, by rule, and those that were dropped for it.
    fn counted(&self) -> (Value, u64) {
        let shown = self.shown();
        let dropped = shown["port"]["in"]["drops"]["guard"].as_u64().unwrap_or(0);
        (shown["violations"].clone(), dropped)
    }
}

fn keys(guard: &str) -> String {
    format!(",mac=02:56:53:00:00:00,guard={guard},allowed-ips=10.0.0.1,fd00::1")
}

/// So many rounds of [`spoofed`], by rule.
fn rules(rounds: u64) -> Value {
    let mut counts = serde_json::Map::new();
    for (rule, _) in spoofed() {
        let before = counts.get(rule).and_then(Value::as_u64).unwrap_or(0);
        counts.insert(rule.to_owned(), (before + rounds).into());
    }
    counts.into()
}

#[test]
fn spoofed_frames_are_dropped_counted_and_told_of() {
    assert_eq!((OWN, mac_of(9)), (mac_of(0), OTHER));
    let mut pair = Pair::new(&keys("on"));
    for round in 1..=20 {
        assert_eq!(pair.send(&mixed()), honest(), "round {round}");
    }
    let count = spoofed().len() as u64;
    assert_eq!(pair.counted(), (rules(20), 20 * count));
    let lab = &pair.lab;
    // The source of a refused frame is not learned.
    let addresses = lab.done(&["fdb", "show"]);
    assert!(!addresses.contains("02:56:53:00:00:09"), "{addresses}");
    let event = lab.event("guard_violation");
    assert_eq!((&event["port"], &event["dropped"]), (&json!("p0"), &json!(true)));
    assert!(event["rule"].is_string() && event["frames"].as_u64() > Some(0), "{event}");
    let (rule, text) = (event["rule"].as_str().expect("rule"), event["text"].as_str());
    assert!(text.is_some_and(|text| text.contains(&format!("(rule {rule})"))), "{event}");
    let metrics = lab.done(&["metrics"]);
    let series = "vioswitch_port_guard_violations_total{port=\"p0\",rule=\"arp\"} 60\n";
    assert!(metrics.contains(series), "{metrics}");
    assert!(!metrics.contains("guard_violations_total{port=\"p1\""), "{metrics}");
    let shown = lab.done(&["port", "show", "p0"]);
    for words in ["guard:", "10.0.0.1 fd00::1", "arp 60"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    // For the port alone.
    let [from, to] = &mut pair.vms;
    let other = frame(OTHER, 0x88b5, &[7; 46]);
    to.tx[0].send_waiting(&other, LOST);
    to.tx[0].drain(LOST);
    assert_eq!(from.rx[0].take(1, LOST).len(), 1);
    pair.lab.d.stop();
}

#[test]
fn a_guard_changes_while_frames_flow() {
    let mut pair = Pair::new(&keys("log"));
    let (count, all) = (spoofed().len() as u64, mixed());
    assert_eq!(pair.send(&all), all);
    assert_eq!(pair.counted(), (rules(1), 0));
    let event = pair.lab.event("guard_violation");
    assert_eq!(event["dropped"], false);
    assert_eq!(pair.lab.done(&["port", "set", "p0", "guard=on"]), "guard log -> on  now\n");
    assert_eq!(pair.send(&all), honest());
    assert_eq!(pair.counted(), (rules(2), count));
    pair.lab.done(&["port", "set", "p0", "allow-server=dhcp,ra", "allowed-ips=10.0.0.9"]);
    let allowed = [frame(OWN, 0x0806, &arp(OWN, OTHER_IP))];
    assert_eq!(pair.send(&[all[0].clone(), allowed[0].clone()]), allowed);
    pair.lab.done(&["port", "set", "p0", "allowed-ips="]);
    let served = router();
    assert_eq!(pair.send(std::slice::from_ref(&served)), [served]);
    assert_eq!(pair.lab.done(&["port", "set", "p0", "guard="]), "guard on -> off  now\n");
    let before = pair.counted();
    assert_eq!(pair.send(&all), all);
    assert_eq!(pair.counted(), before);
    pair.lab.d.stop();
}

/// What a trace says is what becomes of the frame.
#[test]
fn a_trace_knows_the_guard() {
    let pair = Pair::new(&keys("on"));
    let trace = |more: &[&str]| {
        let args = [&["trace", "p0", "dst=ff:ff:ff:ff:ff:ff"], more].concat();
        pair.lab.done(&args)
    };
    let own = "src=02:56:53:00:00:00";
    assert!(trace(&[own]).ends_with("it reaches 'p1'\n"));
    for ip in ["ip=10.0.0.1", "ip=fd00::1", "ip=fe80::77"] {
        assert!(trace(&[own, ip]).ends_with("it reaches 'p1'\n"), "{ip}");
    }
    let told = trace(&["src=02:56:53:00:00:09"]);
    let why = "guard=on at 'p0': 02:56:53:00:00:09 is not allowed as a source address";
    assert!(told.contains(why) && told.ends_with("it is dropped: guard\n"), "{told}");
    for ip in ["10.0.0.9", "fd00::9", "0.0.0.0", "::"] {
        let told = trace(&[own, &format!("ip={ip}")]);
        assert!(told.contains(&format!("{ip} is not allowed")), "{told}");
        assert!(told.ends_with("it is dropped: guard\n"), "{told}");
    }
    pair.lab.done(&["port", "set", "p0", "guard=log"]);
    let told = trace(&[own, "ip=10.0.0.9"]);
    assert!(
        told.contains("guard=log at 'p0' counts the frame") && told.ends_with("it reaches 'p1'\n"),
        "{told}"
    );
    let (status, line) = pair.lab.fails(&["trace", "p0", own, "dst=ff:ff:ff:ff:ff:ff", "ip=x"]);
    assert!(status == 1 || status == 2, "{status}");
    assert!(line.contains("ip must be an IP address"), "{line}");
    pair.lab.d.stop();
}

/// What a frame carries is traced if the frame is given, as `capture --json` has it.
#[test]
fn a_trace_of_a_frame_looks_at_what_it_carries() {
    let pair = Pair::new(&keys("on"));
    let trace = |frame: &[u8]| {
        let frame = format!("frame={}", BASE64_STANDARD.encode(frame));
        pair.lab.done(&["trace", "p0", &frame])
    };
    for frame in honest() {
        let told = trace(&frame);
        assert!(told.contains("the frame is allowed (guard=on)"), "{told}");
        assert!(told.ends_with("it reaches 'p1'\n"), "{told}");
    }
    for (rule, frame) in spoofed() {
        let told = trace(&frame);
        let why = match rule {
            "mac" | "ip" => "is not allowed as a source address".to_owned(),
            "server" => "the frame is a server's or router's".to_owned(),
            "ethertype" => "the frame's type is not in ethertypes".to_owned(),
            "headers" => "the headers cannot be read".to_owned(),
            rule => format!("is not allowed inside {}", rule.to_uppercase()),
        };
        assert!(told.contains(&why) && told.ends_with("it is dropped: guard\n"), "{rule}: {told}");
    }
    let cut = BASE64_STANDARD.encode(&discover(OWN)[..64]);
    let told = pair.lab.done(&["trace", "p0", &format!("frame={cut}"), "len=292"]);
    assert!(told.contains("guard=on needs more bytes"), "{told}");
    for (more, wanted) in [
        (&["frame=AAAA"][..], "frame must be 14 to 65557 bytes in base64"),
        (&["frame=//////8CVlMAAAAICAA=", "len=13"], "len must be a number from 14"),
        (&["frame=//////8CVlMAAAAICAA=", "vlan=3"], "vlan is part of frame"),
        (&["frame=//////8CVlMAAAAICAA=", "dst=02:00:00:00:00:01"], "dst is part of frame"),
        (&["src=02:00:00:00:00:01"], "dst"),
    ] {
        let (status, line) = pair.lab.fails(&[&["trace", "p0"], more].concat());
        assert!(status != 0 && line.contains(wanted), "{more:?}: {line}");
    }
    pair.lab.d.stop();
}

/// What the administrator may not have meant stands in the log, once.
#[test]
fn a_list_of_one_version_is_told_of() {
    let lab = Lab::with_ports(&[",guard=on,allowed-ips=10.0.0.1"], &[]);
    let warned = |text: &str| lab.d.log().matches(text).count();
    assert_eq!(warned("port p0: allowed-ips has no address of IPv6"), 1);
    lab.done(&["port", "set", "p0", "label=x"]);
    assert_eq!(warned("port p0: allowed-ips has no address of IPv6"), 1);
    lab.done(&["port", "set", "p0", "allowed-macs=own"]);
    assert_eq!(warned("port p0: allowed-macs=own, and the port has no mac"), 1);
    lab.done(&["port", "add", "vm2", "allowed-ips=10.0.0.2"]);
    assert_eq!(warned("port vm2: allowed-ips has no effect without guard=on"), 1);
    for (keys, wanted) in [
        ("allowed-ips=10.0.0.1/24", "write 10.0.0.0/24"),
        ("allowed-ips=224.0.0.1", "no address of a station"),
        ("allowed-macs=mine", "allowed-macs 'mine': not a MAC address"),
        ("allow-server=dns", "allow-server"),
        ("guard=maybe", "guard"),
    ] {
        let (status, line) = lab.fails(&["port", "add", "vm3", keys]);
        assert!(status != 0 && line.contains(wanted), "{keys}: {line}");
    }
    lab.d.stop();
}
