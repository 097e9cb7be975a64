//! Any arguments and files: a configuration, a text, or bounded complaints, each of one printable
//! line; entries written both ways mean the same on the command line and in the file.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;

use api::config::{CliAction, Config, Endpoint, Entry, Kept, Kind, Machine, Request, UsageError};
use base::limits;
use sys::fs::memfd;

use super::input::Input;

/// What values are put together from.
const WORDS: &str = "a|b|,|socket=|/s|mac=|52:54:00:00:00:01|queues=|ifname=|mode=|client|mtu=|0|\
                     9|-|1|offload=|off|=|true|socket-mode=|socket-group=|\u{2028}|\n|'|\"|[|]| |é";

const MACHINE: Machine<'static> = Machine { cpus: 4, allowed: &[0, 1, 2, 5] };

/// The target.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    match input.below(4) {
        0 => any_arguments(&mut input),
        1 => any_file(&mut input),
        2 => arguments_of_words(&mut input),
        _ => both_ways(&mut input),
    }
}

/// Arguments, separated by zeros.
fn any_arguments(input: &mut Input<'_>) {
    let args: Vec<OsString> =
        input.rest().split(|&b| b == 0).map(|arg| OsString::from_vec(arg.to_vec())).collect();
    // What a file of the machine says is no matter of this input.
    if args.iter().any(|arg| arg.as_encoded_bytes().starts_with(b"--c")) {
        return;
    }
    judge(&parse(args));
}

fn any_file(input: &mut Input<'_>) {
    let bytes = input.rest();
    judge(&parse_file(bytes, &[]));
    let Ok(text) = str::from_utf8(bytes) else { return };
    let Ok(kept) = Kept::read(text) else { return };
    // What is understood is written, and understood again.
    let again = Kept::read(&kept.text()).unwrap_or_else(|why| panic!("{why}: {text}"));
    assert_eq!((again.added, again.overrides), (kept.added, kept.overrides), "{text}");
    assert!(kept.unread.iter().all(|unread| !unread.why.chars().any(char::is_control)));
}

/// Options and keys as they should be, values of any bytes.
fn arguments_of_words(input: &mut Input<'_>) {
    let words: Vec<&str> = WORDS.split('|').collect();
    let (mut args, mut file) = (Vec::new(), String::new());
    while !input.is_empty() {
        let option = input.choose(&[
            "--port",
            "--tap",
            "--socket-path",
            "--fd",
            "--workers",
            "--cpus",
            "--poll",
            "--age",
            "--control",
            "--uplink-to-uplink",
        ]);
        let mut value = String::new();
        for _ in 0..input.below(6) {
            value += input.choose(&words);
        }
        if input.flag() {
            args.push(format!("{option}={value}"));
        } else {
            let _ = writeln!(file, "{} = {value}", &option[2..]);
        }
    }
    judge(&parse_file(file.as_bytes(), &args));
}

/// What a command line comes to with the files that it names.
#[derive(Debug, PartialEq)]
enum Action {
    Run(Config),
    Check(Config),
    Print(String),
}

/// Parses `args` behind the program's name.
fn parse(args: Vec<OsString>) -> Result<Action, UsageError> {
    let args = std::iter::once(OsString::from("vioswitchd")).chain(args);
    let request = match Request::read(args, MACHINE)? {
        CliAction::Print(text) => return Ok(Action::Print(text)),
        CliAction::Request(request) => request,
    };
    let config = request.lay_over(&request.texts()?)?;
    Ok(if request.check { Action::Check(config) } else { Action::Run(config) })
}

/// Parses `args` and a file of these bytes.
fn parse_file(bytes: &[u8], args: &[String]) -> Result<Action, UsageError> {
    let file = File::from(memfd("fuzz", bytes.len() as u64).expect("memfd"));
    file.write_all_at(bytes, 0).expect("memfd");
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let args = ["--config".to_owned(), path].into_iter().chain(args.iter().cloned());
    parse(args.map(OsString::from).collect())
}

fn judge(answer: &Result<Action, UsageError>) {
    match answer {
        Ok(Action::Run(config) | Action::Check(config)) => check(config),
        Ok(Action::Print(text)) => assert!(!text.is_empty()),
        Err(error) => {
            assert!(!error.lines.is_empty());
            assert!(error.lines.len() <= limits::MAX_CONFIG_ERRORS + 1);
            for line in &error.lines {
                assert!(!line.is_empty());
                assert!(!line.chars().any(char::is_control), "{line:?}");
                assert!(line.chars().count() < 4096, "{} characters", line.len());
            }
        }
    }
}

/// What the daemon relies on.
fn check(config: &Config) {
    let mut names = HashSet::new();
    let mut sockets = HashSet::new();
    let mut macs = HashSet::new();
    let mut interfaces = HashSet::new();
    for Entry { settings: port, .. } in &config.ports {
        assert!(names.insert(&port.name), "{}", port.name);
        assert!(!port.name.is_empty() && port.name.len() <= limits::MAX_NAME_LEN);
        let uplink = matches!(port.kind, Kind::Tap | Kind::Xdp);
        let most = match port.kind {
            Kind::Tap => limits::MAX_TAP_QUEUES,
            Kind::Xdp => limits::MAX_XDP_QUEUES,
            _ => limits::MAX_QUEUE_PAIRS,
        };
        assert!((1..=most).contains(&port.queues));
        assert!(port.mac.len() <= limits::MAX_STATIC_MACS);
        assert!(port.mac.iter().all(|mac| mac.is_station() && macs.insert(*mac)));
        assert!(port.mtu.is_none_or(|mtu| u64::from(mtu) >= limits::MIN_MTU));
        match port.endpoint() {
            Some(Endpoint::Server { path, mode, .. }) => {
                assert!(mode <= 0o777);
                assert!(sockets.insert(path));
            }
            Some(Endpoint::Client { path }) => assert!(sockets.insert(path)),
            Some(Endpoint::Datagrams { path, server }) => {
                assert!(server.is_none_or(|(mode, _)| mode <= 0o777));
                assert!(sockets.insert(path));
            }
            Some(Endpoint::Fd(_)) => {}
            Some(Endpoint::Vduse(device)) => {
                let scope = device.netns.clone().unwrap_or_default();
                assert!(interfaces.insert((scope, device.ifname.clone())));
            }
            None => {
                let ifname = port.ifname.as_ref().expect("an interface");
                assert!(uplink && interfaces.insert((String::new(), ifname.clone())));
                assert!((1..=limits::MAX_IFNAME_LEN).contains(&ifname.len()));
            }
        }
    }
    assert!(sockets.iter().all(|path| path.as_os_str().len() <= limits::MAX_SOCKET_PATH));
    if let Some(control) = &config.control {
        assert!(!sockets.contains(&control.path));
    }
    assert!((1..=limits::MAX_WORKERS).contains(&config.workers));
    assert!(config.cpus.iter().all(|cpu| MACHINE.allowed.contains(cpu)));
    assert!((1..=limits::MAX_AGE_SECONDS).contains(&config.age_seconds));
}

/// Entries and settings of the same words, once as arguments and once in a file.
fn both_ways(input: &mut Input<'_>) {
    let (mut args, mut file) = (Vec::new(), String::new());
    let count = input.below(5);
    for (key, values) in [
        ("workers", ["1", "4", "5", "0"]),
        ("age", ["1", "300", "1000000", "1000001"]),
        ("poll", ["true", "false", "1", ""]),
        ("latency", ["normal", "low", "20", "1001"]),
        ("uplink-to-uplink", ["true", "false", "no", "True"]),
        ("control", ["/c", "/s0", "", "/c/"]),
    ] {
        if input.flag() {
            let value = input.choose(&values);
            args.push(format!("--{key}={value}"));
            let bare = matches!(value, "true" | "false") || value.parse::<u32>().is_ok();
            let quote = if bare { "" } else { "\"" };
            let _ = writeln!(file, "{key} = {quote}{value}{quote}");
        }
    }
    let (mut sections, mut entries) = (String::new(), Vec::new());
    for number in 0..count {
        let port = input.flag();
        let kind = if port { "port" } else { "tap" };
        let name = input.choose(&["a", "b", "vm-1", "x.y_z", "-x", "é", "0"]);
        let _ = writeln!(sections, "[[{kind}]]\nname = \"{name}\"");
        let mut entry = name.to_owned();
        let mut set = |key: &str, value: &str, bare: bool| {
            let _ = write!(entry, ",{key}={}", value.replace(',', ",,"));
            let quote = if bare { "" } else { "\"" };
            let _ = writeln!(sections, "{key} = {quote}{value}{quote}");
        };
        let path = ["/s0", "/s1", "/a,b", "/", "", "relative"];
        if port {
            set("socket", input.choose(&path), false);
        } else {
            set("ifname", input.choose(&["tap0", "t%d", "..", "a/b", "abcdefghijklmnop"]), false);
        }
        if input.flag() {
            set("queues", &(number + input.below(20)).to_string(), true);
        }
        if input.flag() {
            set("mtu", &input.u16().to_string(), true);
        }
        if input.flag() {
            set("offload", input.choose(&["on", "off", "csum", "maybe"]), false);
        }
        if port && input.flag() {
            set("mode", input.choose(&["server", "client", ""]), false);
        }
        if port && input.flag() {
            set("socket-mode", input.choose(&["0660", "777", "1777", "8", "00777"]), false);
        }
        if port && input.flag() {
            let macs = ["52:54:00:00:00:01", "52:54:00:00:00:02", "01:00:00:00:00:00", "1"];
            set("mac", input.choose(&macs), false);
        }
        // The order of both kinds among each other is not kept, that of each kind is.
        entries.push((!port, format!("--{kind}={entry}")));
    }
    entries.sort_by_key(|entry| entry.0);
    args.extend(entries.into_iter().map(|entry| entry.1));
    let told = parse(args.iter().map(OsString::from).collect());
    let written = parse_file((file + &sections).as_bytes(), &[]);
    judge(&told);
    judge(&written);
    agree(told, written, &args);
}

/// Both are refused, or both mean the same.
fn agree(
    told: Result<Action, UsageError>,
    written: Result<Action, UsageError>,
    args: &[impl std::fmt::Debug],
) {
    match (told, written) {
        (Ok(told), Ok(written)) => assert_eq!(told, written, "{args:?}"),
        (Err(_), Err(_)) => {}
        (told, written) => panic!("{args:?}: {told:?}, but from a file {written:?}"),
    }
}
