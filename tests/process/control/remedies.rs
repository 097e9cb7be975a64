//! What mends a fault is a command that works as printed.
//!
//! Every finding that a test of this program has a doctor print goes through [`check`], in the
//! state that prints it: `doctor/tests.rs` has a test expect each code. The advice on drops is read
//! from its table. A command of our own is parsed by `vioswitchctl`, and run here where it keeps
//! changes; ip(8) and tc(8) parse theirs in a network namespace without links. Of other programs,
//! which change the host, a shell reads the line.

use std::fs;
use std::process::Stdio;

use vioswitch::stats::DropReason;

use super::reload::Filed;
use super::*;

/// What a text tells somebody to type: words in capitals are to be filled in.
fn commands(text: &str) -> Vec<String> {
    let text =
        [", ", " && ", ": "].iter().fold(text.to_owned(), |text, end| text.replace(end, "; "));
    let parts = text.split("; ").map(str::trim);
    let parts = parts.map(|part| {
        ["or ", "and "].iter().fold(part, |part, word| part.strip_prefix(word).unwrap_or(part))
    });
    let programs = [
        "vioswitchctl",
        "ip",
        "tc",
        "systemctl",
        "journalctl",
        "iptables",
        "modprobe",
        "ethtool",
        "echo",
    ];
    let is_command =
        |part: &&str| part.split(' ').next().is_some_and(|word| programs.contains(&word));
    parts.filter(is_command).map(str::to_owned).collect()
}

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
        ("BRIDGE", "br9"),
        ("ADDRESS", "192.0.2.1/24"),
        ("FILE", "/dev/null"),
    ];
    let value = |word: &str| values.iter().find(|(name, _)| *name == word).map(|(_, value)| *value);
    let fill = |word: &str| match value(word) {
        Some(value) => value.to_owned(),
        None => match word.split_once('=') {
            Some(("mac", "ADDRESS")) => "mac=02:00:00:00:00:99".to_owned(),
            Some((key, name)) => format!("{key}={}", value(name).unwrap_or(name)),
            _ => word.to_owned(),
        },
    };
    command.split(' ').map(fill).collect::<Vec<_>>().join(" ")
}

fn shell(script: &str) -> Output {
    let control = "/nonexistent/vioswitch";
    let mut command = Command::new("sh");
    command.args(["-c", script]).env("VIOSWITCH_CONTROL", control).stdin(Stdio::null());
    command.output().expect("sh")
}

/// That each command of a remedy is one; `about` is what prints it.
pub fn check(about: &str, remedy: &str) {
    assert!(!remedy.contains("docs/"), "{about}: a package has no docs/ here: {remedy}");
    for command in commands(remedy) {
        let line = filled(&command);
        let left = line.split(|c: char| !c.is_alphanumeric()).find(|word| {
            word.len() > 3
                && word.chars().all(|c| c.is_ascii_uppercase())
                && !["ACCEPT", "FORWARD", "DOCKER", "USER"].contains(word)
        });
        assert_eq!(left, None, "{about}: {command}");
        let output = match line.split(' ').next() {
            Some("vioswitchctl") => {
                let program = env!("CARGO_BIN_EXE_vioswitchctl");
                shell(&line.replacen("vioswitchctl", program, 1))
            }
            Some("ip" | "tc") if is_root() => shell(&format!("unshare --net {line}")),
            _ => Command::new("sh").args(["-n", "-c", &line]).output().expect("sh"),
        };
        // The namespace lacks the interfaces: ip(8) has parsed the line when it looks for them.
        let said = String::from_utf8_lossy(&output.stderr)
            .replace("is wrong: Device does not exist", "does not exist");
        let is_wrong = match line.split(' ').next() {
            // 3: it would have been done, had there been a switch.
            Some("vioswitchctl") => !matches!(output.status.code(), Some(0 | 3)),
            Some("ip" | "tc") => ["Usage", "garbage", "unknown", "Unknown", "not found", "wrong"]
                .iter()
                .any(|word| said.contains(word)),
            _ => !output.status.success(),
        };
        assert!(!is_wrong, "{about}: {command}: {output:?}");
    }
}

#[test]
fn a_wrong_command_is_seen() {
    let fails = |remedy: &str| std::panic::catch_unwind(|| check("a control", remedy)).is_err();
    assert!(fails("vioswitchctl port del and add it anew"));
    assert!(fails("vioswitchctl trace"));
    assert!(fails("vioswitchctl port set NAME mtu=BYTES"));
    assert!(fails("make the MTUs agree: see docs/configuration.md"));
    assert!(fails("echo 'so"));
    assert!(!is_root() || fails("ip link put eth0 up"));
    assert!(!fails("vioswitchctl port set NAME mtu=NUMBER, and the same MTU in guests"));
    assert_eq!(
        commands("one; or vioswitchctl a b && ip c, and tc d"),
        ["vioswitchctl a b", "ip c", "tc d"]
    );
}

#[test]
fn advice_on_drops_is_commands_that_exist() {
    let mut count = 0;
    for reason in DropReason::ALL {
        check(reason.name(), reason.advice());
        count += commands(reason.advice()).len();
    }
    assert!(count > 8, "the scan is broken: {count}");
}

/// The command of a finding of this switch.
fn command(lab: &Lab, code: &str) -> Option<String> {
    let told = lab.json(&["doctor"]);
    let findings = told["findings"].as_array().expect("findings");
    let one = findings.iter().find(|one| one["code"] == code)?;
    Some(one["command"].as_str().expect("a command").to_owned())
}

/// Runs a command as it is printed, by the switch's own control socket.
fn run(lab: &Lab, line: &str) -> Output {
    let program = env!("CARGO_BIN_EXE_vioswitchctl");
    let script = line.replace("vioswitchctl", program);
    let mut command = Command::new("sh");
    command.args(["-c", &script]).env("VIOSWITCH_CONTROL", &lab.path).output().expect("sh")
}

/// What a switch without a directory for its changes says of them, beside a file and without one.
#[test]
fn what_keeps_changes_does_so_as_printed() {
    // A file in another place than the usual one, of which `config save` says how to name it.
    let filed = Filed::new(0, &[("f1", "")], &[]);
    let lab = &filed.lab;
    lab.done(&["port", "set", "f1", "mtu=9000"]);
    let (_, refused) = lab.fails(&["config", "save"]);
    let (_, printed) = refused.split_once(": ").expect("a command");
    let told = command(lab, "not-kept").expect("not-kept");
    assert_eq!(printed, told);
    let output = run(lab, &told);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(command(lab, "not-kept"), None);
    drop(filed.lab.d);

    // As README starts it.
    let lab = Lab::new(2, &[]);
    let socket = format!("socket={}", lab.socket("r1.sock").display());
    lab.done(&["port", "add", "r1", &socket, "queues=2", "mac=02:00:00:00:00:01"]);
    lab.done(&["fdb", "add", "02:00:00:00:00:02", "r1"]);
    lab.done(&["fdb", "add", "02:00:00:00:00:03", "p0"]);
    lab.done(&["port", "set", "p0", "label=it's \"7\"", "mtu=9000"]);
    lab.done(&["port", "del", "p1"]);
    lab.done(&["mirror", "add", "m1", "from=p0", "to=r1"]);
    let told = command(&lab, "not-kept").expect("not-kept");
    let (show, start) = told.split_once("; ").expect("two steps");
    assert!(
        start.starts_with("then start vioswitchd with --config FILE in place of --port"),
        "{told}"
    );
    let (_, refused) = lab.fails(&["config", "save"]);
    assert!(refused.contains(show), "{refused} and {show}");
    let etc = Dir::new();
    let file = etc.path().join("new.toml");
    let output = run(&lab, &show.replace("FILE", &file.display().to_string()));
    assert!(output.status.success(), "{output:?}");
    let in_force = |lab: &Lab| {
        let told = lab.done(&["config", "show"]);
        let lines = told.lines().filter(|line| !line.starts_with('#')).map(str::to_owned);
        lines.collect::<Vec<String>>()
    };
    let before = in_force(&lab);
    // The directory of this switch's sockets goes with the switch.
    let sockets = lab.d.dir().display().to_string();
    let moved = |text: &str| text.replace(&sockets, &etc.path().display().to_string());
    lab.d.stop();
    let written = fs::read_to_string(&file).expect("read");
    fs::write(&file, moved(&written)).expect("write");
    let lab = Lab::new(0, &[&format!("--config={}", file.display())]);
    let before: Vec<String> = before.iter().map(|line| moved(line)).collect();
    assert_eq!(in_force(&lab), before, "{written}");
    assert_eq!(command(&lab, "not-kept"), None);
    lab.d.stop();
}
