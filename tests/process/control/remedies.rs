//! Remedies that errors, findings and tables print are commands that work as printed.
//!
//! The source itself says which remedies there are (`sources`): each string literal with a command
//! of a program in it. The program that a command names parses the command, at a switch and in a
//! network namespace of the test. Each remedy is run in the state that prints the remedy
//! (`remedies.txt`, `mistakes.txt`), or stands in [`ELSEWHERE`] with the test that runs it, or the
//! reason that nothing can run it here. QEMU takes the options for it (`qemu`).

mod qemu;
mod sources;

use testkit::host::{in_namespace, ip};

use super::transcripts::{Desk, Part, parts, proposes};
use super::*;
use sources::{commands, literals};

const TABLE: &str = include_str!("remedies.txt");

/// The command with values in the place of the words to be filled in.
fn filled(command: &str) -> String {
    let values = [
        ("NAME", "vm9"),
        ("NUMBER", "1500"),
        ("RATE", "1gbit"),
        ("VLAN", "10"),
        ("LIST", "10"),
        ("KEY=VALUE", "mtu=1500"),
        ("IFNAME", "dummy9"),
        ("PEER", "dummy9"),
        ("BRIDGE", "br9"),
        ("ADDRESS", "192.0.2.1/24"),
        ("USER", "root"),
        ("libvirt-qemu", "root"),
        ("FILE", "/dev/null"),
        ("PATH", "/run/vm9.sock"),
    ];
    let value = |word: &str| values.iter().find(|(name, _)| *name == word).map(|(_, value)| *value);
    let fill = |word: &str| match value(word) {
        Some(value) => value.to_owned(),
        None => match word.split_once('=') {
            Some(("mac", "ADDRESS")) => "mac=02:00:00:00:00:99".to_owned(),
            Some(("addresses", "ADDRESS")) => "addresses=192.0.2.1".to_owned(),
            Some(("trunk" | "native", "LIST" | "VLAN")) => {
                word.replace("LIST", "10").replace("VLAN", "10")
            }
            Some(("--port" | "socket", _)) => word.replace("PATH", "/run/vm9.sock"),
            Some((key, name)) => format!("{key}={}", value(name).unwrap_or(name)),
            _ => word.to_owned(),
        },
    };
    let line = command.replace("NAME NAME", "vm1 vm2").replace("--cpus LIST", "--cpus 0");
    line.split(' ').map(fill).collect::<Vec<_>>().join(" ")
}

/// A switch, interfaces and a bridge for commands that are parsed only.
fn bench() -> Desk {
    ip("link add dummy9 type veth peer name eth0");
    ip("link add br9 type bridge");
    Desk::new()
}

/// Has the program that a command names parse the command; what is wrong.
fn parse(desk: &Desk, command: &str) -> Result<(), String> {
    let line = filled(command);
    let is_left = |word: &str| {
        word.len() > 3
            && word.chars().all(|c| c.is_ascii_uppercase())
            && !["ACCEPT", "FORWARD", "DOCKER", "USER"].contains(&word)
    };
    if let Some(left) = line.split(|c: char| !c.is_alphanumeric()).find(|word| is_left(word)) {
        return Err(format!("{left} is not filled in"));
    }
    let run = |line: &str| desk.run(&format!("timeout 3 {line}"));
    let has = |text: &str, words: &[&str]| words.iter().any(|word| text.contains(word));
    let program = line.split(' ').next().unwrap_or_default();
    let ((status, said), is_wrong) = match program {
        "vioswitchctl" => {
            desk.run("vioswitchctl port add vm9 --may-exist");
            let told = run(&line);
            let is_wrong = told.0 == 2;
            (told, is_wrong)
        }
        "vioswitchd" => {
            let control = if line.contains("--control") { "" } else { "--control $D/other.sock" };
            let told = run(&format!("{line} {control} --check"));
            let is_wrong = told.0 == 2;
            (told, is_wrong)
        }
        "ip" | "tc" | "ethtool" | "iptables" => {
            let told = run(&line);
            let signs = [
                "Usage",
                "garbage",
                "nknown",
                "not found",
                "wrong",
                "Bad arg",
                "bad comm",
                "followed by",
            ];
            let is_wrong = has(&told.1, &signs);
            (told, is_wrong)
        }
        "journalctl" => {
            let told = run(&format!("{line} --no-pager --lines=0"));
            let is_wrong = has(&told.1, &["nrecognized", "nvalid", "nknown"]);
            (told, is_wrong)
        }
        // These change the host. Their verbs are in what they print of themselves.
        "systemctl" | "networkctl" => {
            let verb = line.split(' ').nth(1).unwrap_or_default();
            let told = run(&format!("{program} --help"));
            let is_wrong = !told.1.split_whitespace().any(|word| word == verb);
            (told, is_wrong)
        }
        _ => {
            let output = Command::new("sh").args(["-n", "-c", &line]).output().expect("sh");
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            ((output.status.code().unwrap_or(-1), text), !output.status.success())
        }
    };
    if is_wrong { Err(format!("{line}\n({status})\n{said}")) } else { Ok(()) }
}

/// Remedies that no table runs, by a part of their text, or all of it behind `=`: the test that
/// runs the remedy, or why nothing does so.
const ELSEWHERE: &[(&str, &str)] = &[
    // Findings of guests: `check` runs what looks, and their tests run what mends.
    ("vioswitchctl port add NAME, and attach one of the two", "control::doctor"),
    ("vioswitchctl attach {name} --qemu; others", "control::doctor"),
    ("vioswitchctl attach {name} --qemu", "control::doctor"),
    ("{name} mode=client; start cloud-hypervisor", "control::doctor"),
    ("QEMU: {QEMU}; others: vioswitchctl attach", "control::doctor"),
    ("in the guest: modprobe virtio_net", "in a guest"),
    ("in the guest: ethtool -K eth0", "in a guest"),
    ("a TAP in its place", "parsed only: AF_XDP is not everywhere"),
    ("vioswitchctl fdb show; vioswitchctl fdb flush", "control::doctor"),
    ("or vioswitchctl fdb del {mac}", "control::findings"),
    ("vioswitchctl fdb add {mac} NAME, the right port", "control::findings"),
    ("vioswitchd --cpus LIST", "parsed only: CPUs of its own are the host's"),
    ("vioswitchctl --control {} doctor", "another switch of this user, whose path is any"),
    ("vioswitchctl port reset {name}", "control::kept"),
    ("vioswitchctl filter add {name} default-in", "parsed only: a file that lost a filter"),
    ("vioswitchctl group add {name} addresses=", "parsed only: a file that lost a group"),
    ("vioswitchctl config show shows what is kept", "control::kept"),
    ("systemctl restart vioswitchd; and report", "process::sandbox::told"),
    // Errors that need another host, another version, or a moment.
    ("of the switch differ: see vioswitchctl version", "parsed only: an older switch"),
    ("degraded: {reasons}, see vioswitchctl status", "control::looking"),
    ("degraded: {count}, see vioswitchctl status", "control::top"),
    ("then run the command again, or vioswitchctl network", "scripts/network-demo"),
    ("then again: vioswitchctl network {name} --remove", "scripts/network-demo"),
    ("network {name} has another manager", "control::network"),
    ("put only the TAP into the bridge", "control::network"),
    ("ip link delete {interface}", "control::network"),
    ("ip address flush dev {nic}; ifup", "a step of network, control::network"),
    ("ip link delete {bridge}", "a step of network, control::network"),
    ("vioswitchctl config reload\n", "a step of network, control::network"),
    ("existed before and stays: vioswitchctl port del", "control::run"),
    ("stays: {why}; vioswitchctl port del", "control::run"),
    ("vioswitchctl doctor --user libvirt-qemu", "scripts/libvirt-demo"),
    ("you have no network here: vioswitchctl lan", "control::lan"),
    ("there is no forward {forward}; see", "control::lan"),
    ("with other options; to stop it: vioswitchctl lan stop", "control::lan"),
    ("runs already; see vioswitchctl lan status", "control::lan"),
    // The log of an uplink past the host's network stack, and of a TAP that refuses.
    ("if its other end has no offloads: ethtool", "parsed only: AF_XDP is not everywhere"),
    ("takes the tags of VLANs out of frames", "parsed only: a network card's"),
    ("frames of {} of them go to the host", "parsed only: a network card's"),
    ("not {mtu}, and keeps it: ip link set", "parsed only: a TAP of another's namespace"),
    ("and noqueue cannot be set: {error}", "parsed only: an old kernel's"),
    ("which ip -details link show names", "parsed only: AF_XDP is not everywhere"),
    // A kernel with VDUSE.
    ("there is no {CONTROL}: modprobe -a vduse", "scripts/lib/selftests/vduse.sh"),
    ("has no interface: modprobe -a virtio_vdpa", "parsed only: a kernel with VDUSE"),
    // The table of drops, each of whose commands is parsed and run at a switch above.
    ("vioswitchctl doctor NAME", "docs/counters.md"),
    ("vioswitchctl why NAME NAME", "docs/counters.md"),
    ("vioswitchctl port set NAME admin=up", "docs/counters.md"),
    ("vioswitchctl port show NAME", "docs/counters.md"),
    ("its mirrors: vioswitchctl mirror list", "docs/counters.md"),
    ("vioswitchctl port set NAME isolated=off", "docs/counters.md"),
    ("vioswitchctl port set NAME multicast-router=on", "docs/counters.md"),
    ("vioswitchctl capture NAME --drops", "docs/counters.md"),
    ("vioswitchctl port set NAME mtu=NUMBER", "docs/counters.md"),
    ("vioswitchctl capture NAME; or a higher", "docs/counters.md"),
    ("overloaded: tc -s qdisc show dev IFNAME", "docs/counters.md"),
    ("ip link set IFNAME up", "docs/counters.md"),
    ("ip -s link show IFNAME", "docs/counters.md"),
    ("agree: ip link set IFNAME mtu NUMBER", "docs/counters.md"),
];

#[test]
fn a_wrong_command_is_seen() {
    in_namespace(|| {
        let desk = bench();
        for (wrong, right) in [
            ("vioswitchctl port del and add it anew", "vioswitchctl port del NAME"),
            ("vioswitchctl trace", "vioswitchctl port list"),
            ("vioswitchctl port set NAME mtu=BYTES", "vioswitchctl port set NAME mtu=NUMBER"),
            ("vioswitchctl port set NAME mtuu=1500", "vioswitchctl port set NAME mtu=1500"),
            ("vioswitchd --cpu LIST", "vioswitchd --cpus 0"),
            ("ip link put dummy9 up", "ip link set dummy9 up"),
            ("tc qdisc put dev dummy9 root", "tc qdisc show dev dummy9"),
            ("ethtool -K dummy9 tx of", "ethtool -K dummy9 tx off"),
            ("systemctl begin vioswitchd", "systemctl start vioswitchd"),
            ("echo 'so", "echo so"),
        ] {
            assert!(parse(&desk, wrong).is_err(), "{wrong}");
            assert_eq!(parse(&desk, right), Ok(()));
        }
        desk.stop();
    });
}

#[test]
fn each_command_in_the_source_is_one_of_its_program() {
    in_namespace(|| {
        let desk = bench();
        let (mut wrong, mut count) = (String::new(), 0);
        for literal in literals() {
            let (file, text) = (&literal.file, &literal.text);
            if text.contains("docs/") {
                wrong += &format!("{file}: {text}: a package has no docs/\n");
            }
            for command in literal.commands() {
                count += 1;
                if let Err(why) = parse(&desk, &command) {
                    wrong += &format!("{file}: {text}: {why}\n");
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong}");
        assert!(count > 100, "the scan is broken: {count}");
        desk.stop();
    });
}

#[test]
fn each_remedy_is_run_in_the_state_that_prints_it() {
    in_namespace(|| {
        let desk = Desk::new();
        let (wrong, _) = desk.replay(TABLE);
        assert!(wrong.is_empty(), "the answers are others than in remedies.txt:\n{wrong}");
        desk.stop();
    });
}

/// Whether a table has answers with this remedy, and runs what can be run of the remedy.
fn is_run(literal: &sources::Literal, table: &str) -> bool {
    let (mut left, mut is_last) = (None, false);
    for part in parts(table) {
        match part {
            Part::Typed(_, answer, _) | Part::Found(_, answer) => {
                let answer = answer.join("\n");
                is_last = literal.is_in(&answer);
                if is_last {
                    left.get_or_insert_with(|| runnable(&answer));
                }
            }
            Part::Proposed(line) if is_last => {
                let typed = commands(line);
                let is_typed = |printed: &String| typed.iter().any(|one| proposes(printed, one));
                left.iter_mut().for_each(|left| left.retain(|printed| !is_typed(printed)));
            }
            _ => {}
        }
    }
    left.is_some_and(|left| left.is_empty())
}

/// The commands of an answer that change no more than a switch and a namespace of a test.
fn runnable(answer: &str) -> Vec<String> {
    let programs = ["vioswitchctl", "vioswitchd", "ip", "tc", "ethtool", "mkdir", "getent"];
    let mut all = commands(answer);
    all.retain(|command| programs.contains(&command.split(' ').next().unwrap_or_default()));
    all
}

fn is_listed(literal: &sources::Literal, listed: &str) -> bool {
    match listed.strip_prefix('=') {
        Some(whole) => literal.text == whole,
        None => literal.text.contains(listed),
    }
}

/// A new error or finding with a remedy needs a case.
#[test]
fn each_remedy_of_the_source_has_a_case() {
    let all = literals();
    let mut wrong = String::new();
    for literal in &all {
        // A command that changes the host is parsed only.
        if runnable(&literal.text).is_empty() {
            continue;
        }
        let is_run = [TABLE, super::mistakes::TABLE].iter().any(|table| is_run(literal, table));
        let listed = ELSEWHERE.iter().any(|(text, _)| is_listed(literal, text));
        if is_run == listed {
            let why = if listed { "is run: ELSEWHERE is wrong" } else { "has no case" };
            wrong += &format!("{}: {:?} {why}\n", literal.file, literal.text);
        }
    }
    for (text, _) in ELSEWHERE {
        if !all.iter().any(|literal| is_listed(literal, text)) {
            wrong += &format!("ELSEWHERE: nothing in the source has {text:?}\n");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Runs the commands of the client in a remedy as they are printed, with values for words in
/// capitals.
pub fn mend(lab: &Lab, remedy: &str, values: &[(&str, &str)]) {
    let commands = commands(remedy).into_iter().filter(|one| one.starts_with("vioswitchctl "));
    let mut count = 0;
    for command in commands {
        let line = values.iter().fold(command, |line, (word, value)| line.replace(word, value));
        let output = run_at(&lab.path, &line);
        assert!(output.status.success(), "{line}: {output:?}");
        count += 1;
    }
    assert!(count > 0, "no command: {remedy}");
}

/// Commands of the client that change nothing, and that a finding prints.
const LOOKS: [&str; 7] =
    ["port show", "drops", "doctor", "why", "attach", "fdb show", "config show"];

/// Runs those commands of a finding that change nothing at the switch that told the finding.
pub fn check(control: &Path, about: &str, remedy: &str) {
    for command in commands(remedy) {
        let Some(rest) = command.strip_prefix("vioswitchctl ") else { continue };
        if !LOOKS.iter().any(|look| rest.starts_with(look)) || rest.contains('>') {
            continue;
        }
        let output = run_at(control, &command);
        // 1: a doctor found something, as the doctor did that printed this.
        let wanted = if rest.starts_with("doctor") { &[0, 1][..] } else { &[0] };
        let is_done = output.status.code().is_some_and(|status| wanted.contains(&status));
        assert!(is_done, "{about}: {command}: {output:?}");
    }
}

fn run_at(control: &Path, line: &str) -> Output {
    let program = env!("CARGO_BIN_EXE_vioswitchctl");
    let script = line.replace("vioswitchctl", program);
    let mut command = Command::new("sh");
    command.args(["-c", &script]).env("VIOSWITCH_CONTROL", control).output().expect("sh")
}
