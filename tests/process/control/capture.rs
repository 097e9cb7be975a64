//! Frames that are captured as they pass: what a capture reports, which clients may have it, and
//! what it costs.

use std::process::{Child, Stdio};

use base::limits::CAPTURE_BATCH_PACKETS;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use etherparse::PacketBuilder;
use testkit::SOON;
use testkit::skip;
use testkit::vm::mac_of;

use super::*;

/// `vioswitchctl capture`, running.
pub(super) struct Capturing {
    child: Child,
    said: BufReader<std::process::ChildStderr>,
}

impl Capturing {
    /// It has begun when this returns.
    pub(super) fn start(lab: &Lab, args: &[&str]) -> Capturing {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vioswitchctl"));
        command.arg("--control").arg(&lab.path).arg("capture").args(args);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("vioswitchctl");
        let mut said = BufReader::new(child.stderr.take().expect("pipe"));
        let mut line = String::new();
        said.read_line(&mut line).expect("a line");
        assert_eq!(line, "vioswitchctl: capturing, end with ^C\n");
        Capturing { child, said }
    }

    /// What it printed, and its last line, after ^C.
    fn interrupt(self) -> (String, String) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("kill");
        self.finish()
    }

    pub(super) fn finish(mut self) -> (String, String) {
        let (mut out, mut last) = (String::new(), String::new());
        let stdout = self.child.stdout.as_mut().expect("pipe");
        stdout.read_to_string(&mut out).expect("output");
        self.said.read_line(&mut last).expect("a line");
        assert!(self.child.wait().expect("status").success(), "{last}");
        (out, last)
    }
}

/// A frame of some kind from guest 0.
fn udp(to: [u8; 6], port: u16, payload: &[u8]) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2(mac_of(0), to).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
    let mut frame = Vec::new();
    builder.udp(4000, port).write(&mut frame, payload).expect("a packet");
    frame
}

/// Two guests that know each other's address.
fn two_guests(lab: &Lab) -> [Vm; 2] {
    let mut vms = [0, 1].map(|id| Vm::connect(&lab.d.socket(id.into()), VmConfig::new(id)));
    for from in [0, 1u8] {
        let mut frame = vec![0; 60];
        frame[..6].fill(0xff);
        frame[6..12].copy_from_slice(&mac_of(from));
        assert!(vms[usize::from(from)].tx[0].send(&frame));
        assert_eq!(vms[1 - usize::from(from)].rx[0].take(1, SOON).len(), 1);
    }
    vms
}

/// Sends a frame, and waits until it is dealt with.
fn send(vm: &mut Vm, frame: &[u8]) {
    assert!(vm.tx[0].send(frame));
    vm.tx[0].drain(SOON);
}

/// As lines, JSON and pcapng, which tshark reads.
#[test]
fn every_copy_is_told_with_its_way_and_its_end() {
    let lab = Lab::new(3, &[]);
    let mut vms = two_guests(&lab);
    let file = lab.socket("frames.pcapng");
    let file = file.to_str().expect("UTF-8");
    let both = Capturing::start(&lab, &["p0", "p1", "-w", file]);
    let lines = Capturing::start(&lab, &["p1"]);
    let json = Capturing::start(&lab, &["--json", "p0", "--snaplen=100", "--count=4"]);

    let whole = udp(mac_of(1), 53, &[7; 1000]);
    let mut forged = whole.clone();
    forged[6..12].copy_from_slice(&[1, 0, 0, 0, 0, 1]);
    let pause = udp([1, 0x80, 0xc2, 0, 0, 1], 53, &[]);
    let own = udp(mac_of(0), 53, &[]);
    let reasons = ["", "bad_source", "reserved", "hairpin"];
    for frame in [&whole, &forged, &pause, &own] {
        send(&mut vms[0], frame);
    }
    assert_eq!(vms[1].rx[0].take(1, SOON)[0].1, whole);

    let (out, last) = json.finish();
    assert_eq!(last, "vioswitchctl: 4 frames captured, 0 lost\n");
    let told: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for ((told, reason), sent) in told.iter().zip(reasons).zip([&whole, &forged, &pause, &own]) {
        assert_eq!((&told["port"], &told["direction"]), (&json!("p0"), &json!("in")), "{told}");
        assert_eq!(told["length"], sent.len(), "{told}");
        assert_eq!(told["dropped"].as_str().unwrap_or(""), reason, "{told}");
        let data = BASE64_STANDARD.decode(told["data"].as_str().unwrap()).unwrap();
        assert_eq!(data, sent[..sent.len().min(100)], "{told}");
    }

    let (out, last) = lines.interrupt();
    assert_eq!(last, "vioswitchctl: 1 frame captured, 0 lost\n");
    let line = format!(
        " p1 out {} > {}, ethertype 0x0800, length {}\n",
        "02:56:53:00:00:00",
        "02:56:53:00:00:01",
        whole.len()
    );
    assert!(out.ends_with(&line), "{out}");

    let (_, last) = both.interrupt();
    assert_eq!(last, "vioswitchctl: 5 frames captured, 0 lost\n");
    let fields = ["interface_name", "packet_flags_direction", "len", "comment", "cap_len"];
    let Some(rows) = tshark(file, &fields) else { return };
    let len = |frame: &[u8]| frame.len().to_string();
    let row = |port: &str, way: &str, frame: &[u8], reason: &str| -> Vec<String> {
        let why = if reason.is_empty() { String::new() } else { format!("dropped: {reason}") };
        vec![port.to_owned(), way.to_owned(), len(frame), why, len(frame)]
    };
    assert_eq!(
        rows,
        [
            row("p0", "1", &whole, ""),
            row("p1", "2", &whole, ""),
            row("p0", "1", &forged, "bad_source"),
            row("p0", "1", &pause, "reserved"),
            row("p0", "1", &own, "hairpin"),
        ]
    );
}

/// What tshark reads of each frame of a file.
fn tshark(file: &str, fields: &[&str]) -> Option<Vec<Vec<String>>> {
    let mut command = Command::new("tshark");
    command.args(["-r", file, "-T", "fields"]);
    for field in fields {
        command.arg("-e").arg(format!("frame.{field}"));
    }
    let Ok(output) = command.output() else {
        skip("tshark is missing");
        return None;
    };
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    // Versions differ in how they print flags: 0x1, 0x00000001, 1.
    let plain = |word: &str| match word.strip_prefix("0x").map(|hex| u32::from_str_radix(hex, 16)) {
        Some(Ok(number)) => number.to_string(),
        _ => word.to_owned(),
    };
    Some(text.lines().map(|line| line.split('\t').map(plain).collect()).collect())
}

/// Each drop that is counted is told, with its reason, where it was: at the receiver.
#[test]
fn drops_are_told_as_they_are_counted() {
    let lab = Lab::new(3, &["--workers=2"]);
    let mut vms = two_guests(&lab);
    let file = lab.socket("drops.pcapng");
    let file = file.to_str().expect("UTF-8");
    let capturing = Capturing::start(&lab, &["--drops", "-w", file]);
    vms[1].rx[0].hold = true;
    for _ in 0..400 {
        vms[0].tx[0].send_waiting(&udp(mac_of(1), 53, &[1; 100]), SOON);
    }
    vms[0].tx[0].drain(SOON);
    let dropped = || {
        let port = &lab.client().call("GetPort", json!({"name": "p1"}))["parameters"]["port"];
        port["out"]["drops"]["no_buffer"].as_u64().unwrap_or(0)
    };
    let counted = dropped();
    assert!(counted >= 100, "{counted}");
    let (_, last) = capturing.interrupt();
    assert_eq!(last, format!("vioswitchctl: {counted} frames captured, 0 lost\n"));
    let Some(rows) = tshark(file, &["interface_name", "comment"]) else { return };
    assert!(rows.iter().all(|row| *row == ["p1", "dropped: no_buffer"]), "{rows:?}");
}

/// A filter chooses what tcpdump chooses of the same frames.
#[test]
fn filters_choose_as_tcpdump_does() {
    if Command::new("tcpdump").arg("--version").output().is_err() {
        return skip("tcpdump is missing");
    }
    let lab = Lab::new(2, &[]);
    let mut vms = two_guests(&lab);
    let frames = samples();
    let all = lab.socket("all.pcapng");
    let all = all.to_str().expect("UTF-8");
    let some = lab.socket("some.pcapng");
    let some = some.to_str().expect("UTF-8");
    for expression in [
        "udp port 53",
        "tcp",
        "arp",
        "ip6",
        "vlan 5",
        "host 10.0.0.1 and not port 80",
        "less 100",
        "ether broadcast or icmp6",
        "tcp[tcpflags] & tcp-syn != 0",
        "ip[8] > 60 and udp[4:2] % 2 = 1",
    ] {
        let everything = Capturing::start(&lab, &["p0", "-w", all]);
        let filtered = Capturing::start(&lab, &["p0", "-w", some, "--filter", expression]);
        for frame in &frames {
            send(&mut vms[0], frame);
        }
        vms[1].rx[0].take(frames.len(), Duration::ZERO);
        let (_, last) = filtered.interrupt();
        let (_, whole) = everything.interrupt();
        assert_eq!(whole, format!("vioswitchctl: {} frames captured, 0 lost\n", frames.len()));
        let by_tcpdump = Command::new("tcpdump").args(["-r", all, "--", expression]).output();
        let chosen = String::from_utf8(by_tcpdump.expect("tcpdump").stdout).expect("UTF-8");
        let chosen = chosen.lines().count();
        let s = if chosen == 1 { "" } else { "s" };
        assert!(chosen > 0 && chosen < frames.len(), "{expression}");
        let line = format!("vioswitchctl: {chosen} frame{s} captured, 0 lost\n");
        assert_eq!(last, line, "{expression}");
    }
    let (status, line) = lab.fails(&["capture", "--filter", "udp prot 53"]);
    assert_eq!(status, 2);
    assert!(line.starts_with("--filter \"udp prot 53\": "), "{line}");
}

fn samples() -> Vec<Vec<u8>> {
    let to = mac_of(1);
    let ethernet = || PacketBuilder::ethernet2(mac_of(0), to);
    let v4 = || ethernet().ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
    let mut all = vec![udp(to, 53, &[0; 7]), udp(to, 54, &[0; 300]), udp([0xff; 6], 67, &[0; 8])];
    let mut add = |write: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = Vec::new();
        write(&mut frame);
        all.push(frame);
    };
    add(&|frame| v4().tcp(4000, 80, 1, 1000).syn().write(frame, &[]).expect("TCP"));
    add(&|frame| v4().tcp(80, 4000, 1, 1000).write(frame, &[1; 500]).expect("TCP"));
    add(&|frame| {
        let v6 = ethernet().ipv6([1; 16], [2; 16], 64);
        v6.icmpv6_echo_request(1, 2).write(frame, &[0; 20]).expect("ICMP");
    });
    add(&|frame| {
        let tagged = ethernet().single_vlan(5.try_into().expect("a VLAN"));
        tagged.ipv4([10, 0, 0, 3], [10, 0, 0, 4], 9).udp(1, 53).write(frame, &[0; 9]).expect("UDP");
    });
    let mut arp = vec![0; 60];
    arp[..6].fill(0xff);
    arp[6..12].copy_from_slice(&mac_of(0));
    arp[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    all.push(arp);
    all
}

/// A client that does not read loses copies, and nobody else loses a frame; there is room for a few
/// captures, which is given back.
#[test]
fn who_does_not_read_loses_copies() {
    let lab = Lab::new(2, &["--workers=2"]);
    let before = lab.d.settled_usage();
    let bystanders = lab.bystanders();
    let begin = json!({"method": format!("{INTERFACE}.Capture"), "parameters": {}, "more": true});
    let mut clients: Vec<Client> = (0..4).map(|_| lab.client()).collect();
    for client in &mut clients {
        client.ask(&begin);
        let first = client.answer().expect("an answer");
        assert_eq!(first["parameters"], json!({"packets": [], "lost": 0}));
    }
    let mut more = lab.client();
    more.ask(&begin);
    assert_eq!(more.answer().expect("an answer")["error"], format!("{INTERFACE}.Refused"));
    // Two copies of each frame, more than there is room for.
    // However slow a loaded machine makes them.
    let passed = || lab.d.counters().sum(None, "in", "frames");
    let mut seen = passed();
    while seen <= CAPTURE_BATCH_PACKETS as u64 {
        let more = wait_for(LOST, || passed() > seen);
        assert!(more, "the bystanders stopped after {seen} frames");
        seen = passed();
    }
    // One of them reads after all, and is told what it missed.
    let end = std::time::Instant::now() + LOST;
    let lost = loop {
        let part = clients[0].answer().expect("an answer");
        match part["parameters"]["lost"].as_u64().expect("a number") {
            0 => assert!(std::time::Instant::now() < end, "nothing was lost"),
            lost => break lost,
        }
    };
    drop(clients);
    println!("{lost} copies were lost");
    let free = || {
        let mut client = lab.client();
        client.ask(&begin);
        client.answer().expect("an answer").get("error").is_none()
    };
    assert!(wait_for(LOST, || free() && free() && free()), "captures outlive their clients");
    bystanders.finish();
    drop(more);
    assert!(wait_for(LOST, || lab.client().count("connected") == 1));
    let after = lab.d.settled_usage();
    assert_eq!((after.threads, after.fds), (before.threads, before.fds));
}

/// Filters run in the workers' time, and have a share of it. What they have no time for is lost to
/// the capture, with a count; the network loses nothing, and neither does another capture.
#[test]
fn long_filters_lose_copies() {
    let lab = Lab::new(3, &[]);
    let mut third = Vm::connect(&lab.d.socket(2), VmConfig::new(2));
    let begin = |parameters: Value| {
        let mut client = lab.client();
        let method = format!("{INTERFACE}.Capture");
        client.ask(&json!({"method": method, "parameters": parameters, "more": true}));
        let first = client.answer().expect("an answer");
        assert_eq!(first["parameters"], json!({"packets": [], "lost": 0}));
        client
    };
    let one = |code: u16| json!({"code": code, "jt": 0, "jf": 0, "k": 0});
    // It adds 511 times, and accepts nothing.
    let mut filter = vec![one(4); 511];
    filter.push(one(6));
    let mut long: Vec<Client> = (0..3).map(|_| begin(json!({"filter": filter}))).collect();
    let mut quiet = begin(json!({"ports": ["p2"]}));
    let bystanders = lab.bystanders();
    for client in &mut long {
        let part = client.answer().expect("an answer");
        assert_eq!(part["parameters"]["packets"], json!([]));
        assert!(part["parameters"]["lost"].as_u64().expect("a number") > 0, "{part}");
    }
    // It goes no further.
    let mut pause = vec![0; 60];
    pause[..6].copy_from_slice(&[1, 0x80, 0xc2, 0, 0, 1]);
    pause[6..12].copy_from_slice(&mac_of(2));
    send(&mut third, &pause);
    let part = quiet.answer().expect("an answer");
    assert_eq!(part["parameters"]["lost"], 0, "{part}");
    assert_eq!(part["parameters"]["packets"].as_array().expect("packets").len(), 1, "{part}");
    bystanders.finish();
    lab.d.stop();
}

/// Copies that are told of, and that are lost, until there are `all`.
fn copies(client: &mut Client, all: u64) -> [u64; 2] {
    let mut seen = [0, 0];
    while seen.iter().sum::<u64>() < all {
        let part = client.answer().expect("an answer")["parameters"].take();
        seen[0] += part["packets"].as_array().expect("packets").len() as u64;
        seen[1] += part["lost"].as_u64().expect("a number");
    }
    seen
}

/// Each copy is told of or counted as lost, where filters take more time than there is: frames that
/// come and go, those of one port, and drops. A mirror of the same frames loses none.
#[test]
fn each_copy_is_told_of_or_counted_as_lost() {
    const FRAMES: u64 = 1_600;
    let lab = Lab::new(3, &["--mirror=m,from=p0,to=p2,dir=in"]);
    let mut observer = Vm::connect(&lab.d.socket(2), VmConfig::new(2));
    let mut vms = two_guests(&lab);
    let before = observer.rx[0].take(1, SOON).len() as u64;
    let one = |code: u16, k: u32| json!({"code": code, "jt": 0, "jf": 0, "k": k});
    let filter = [vec![one(0x20, 14); 511], vec![one(6, u32::MAX)]].concat();
    let begin = |mut parameters: Value| {
        parameters["filter"] = json!(filter);
        let mut client = lab.client();
        let method = format!("{INTERFACE}.Capture");
        client.ask(&json!({"method": method, "parameters": parameters, "more": true}));
        client.answer().expect("an answer");
        client
    };
    let mut clients = [json!({}), json!({"ports": ["p1"]}), json!({"drops": true})].map(begin);
    let (whole, reserved) = (udp(mac_of(1), 53, &[7; 1000]), udp([1, 0x80, 0xc2, 0, 0, 1], 1, &[]));
    let (mut mirrored, mut whole_copies) = (0, 0);
    for n in 0..FRAMES {
        vms[0].tx[0].send_waiting(if n % 10 == 0 { &reserved } else { &whole }, SOON);
        if n % 40 == 39 {
            assert_eq!(vms[1].rx[0].take(36, SOON).len(), 36);
            let copies = observer.rx[0].take(40, SOON);
            mirrored += copies.len() as u64;
            whole_copies += copies.iter().filter(|(_, frame)| *frame == whole).count() as u64;
        }
    }
    let drops = FRAMES / 10;
    let arrived = FRAMES - drops;
    for (client, all) in clients.iter_mut().zip([FRAMES + arrived, arrived, drops]) {
        let [told, lost] = copies(client, all);
        println!("{told} copies, {lost} lost");
        assert_eq!(told + lost, all);
        // How many are lost is the machine's to say.
        assert!(told > 0, "{told} and {lost} of {all}");
    }
    assert_eq!((before, mirrored, whole_copies), (1, FRAMES, arrived));
    lab.d.stop();
}

/// For root and `capture-group`.
#[test]
fn frames_are_for_few() {
    let lab = Lab::new(1, &["--control-group=65534", "--capture-group=65533"]);
    if !is_root() {
        return skip("needs root to be somebody else");
    }
    std::os::unix::fs::chown(&lab.path, None, Some(65534)).expect("chown");
    let (status, line) = failure(lab.as_nobody("65534", &["capture", "--count=1"]));
    assert_eq!((status, line.contains("a member of group 65533")), (4, true), "{line}");
    let begin = json!({"method": format!("{INTERFACE}.Capture"), "parameters": {}});
    let mut client = lab.client();
    client.ask(&begin);
    assert_eq!(client.answer().expect("an answer")["error"], "org.varlink.service.ExpectedMore");
    let more = |parameters: Value| {
        let mut client = lab.client();
        let method = format!("{INTERFACE}.Capture");
        client.ask(&json!({"method": method, "parameters": parameters, "more": true}));
        client.answer().expect("an answer")["error"].as_str().unwrap_or("none").to_owned()
    };
    for (parameters, error) in [
        (json!({"ports": ["p7"]}), format!("{INTERFACE}.NoSuchPort")),
        (json!({"snaplen": 0}), format!("{INTERFACE}.InvalidParameter")),
        (json!({"filter": []}), format!("{INTERFACE}.InvalidParameter")),
        (
            json!({"filter": [{"code": 5, "jt": 0, "jf": 0, "k": 9}]}),
            format!("{INTERFACE}.InvalidParameter"),
        ),
        (json!({"filter": [1]}), "org.varlink.service.InvalidParameter".to_owned()),
        (json!({"ports": "p0"}), "org.varlink.service.InvalidParameter".to_owned()),
        (json!({"prots": []}), "org.varlink.service.InvalidParameter".to_owned()),
    ] {
        assert_eq!(more(parameters.clone()), error, "{parameters}");
    }
}

/// It ends with the last of its ports, and does not go on with another one of the same number.
#[test]
fn a_capture_ends_with_its_ports() {
    let lab = Lab::new(2, &[]);
    let capturing = Capturing::start(&lab, &["p0"]);
    lab.done(&["port", "del", "p0"]);
    let (out, last) = capturing.finish();
    assert_eq!((out.as_str(), last.as_str()), ("", "vioswitchctl: 0 frames captured, 0 lost\n"));
    let all = Capturing::start(&lab, &[]);
    let socket = lab.socket("new.sock");
    lab.done(&["port", "add", "new", &format!("socket={}", socket.display())]);
    let mut vm = Vm::connect(&socket, VmConfig::new(5));
    send(&mut vm, &udp([0xff; 6], 1, &[]));
    let (out, _) = all.interrupt();
    assert!(out.contains(" new in "), "{out}");
}
