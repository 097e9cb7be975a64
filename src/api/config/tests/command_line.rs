//! The command line prints help, takes options and refuses mistakes.

use super::*;
use base::limits;

#[test]
fn printing_needs_no_ports() {
    let json = Ok(Action::Print("{\"type\":\"net\"}\n".into()));
    assert_eq!(run(&["--print-capabilities"]), json);
    // docs/interop/vhost-user.rst: "Other options and arguments should be ignored".
    assert_eq!(run(&["--bogus", "--print-capabilities", "--workers=0"]), json);
    let version = format!("vioswitchd {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(run(&["--version"]), Ok(Action::Print(version)));
}

#[test]
fn help_tells_every_option_and_fits_a_terminal() {
    let Ok(Action::Print(help)) = run(&["--help"]) else { panic!("no help") };
    let options = [
        "config",
        "port",
        "tap",
        "socket-path",
        "fd",
        "workers",
        "cpus",
        "poll",
        "latency",
        "age",
        "control",
        "control-group",
        "control-admin-group",
        "capture-group",
        "metrics",
        "log-level",
        "uplink-to-uplink",
        "plug",
        "check",
        "print-capabilities",
        "version",
    ];
    for option in options {
        assert!(help.contains(&format!("--{option}")), "{option}");
    }
    for text in ["Usage: vioswitchd", "attach of vioswitchctl(8)", "socket-group=", "SIGUSR1"] {
        assert!(help.contains(text), "{text}");
    }
    for line in help.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
}

#[test]
fn figures_in_the_help_are_the_limits() {
    let Ok(Action::Print(help)) = run(&["--help"]) else { panic!("no help") };
    let in_range = |key: &str, least: u64, most: u64| {
        assert!(help.contains(&format!(" {key}={least}..{most} ")), "{key}");
    };
    in_range("queues", 1, limits::MAX_QUEUE_PAIRS.into());
    in_range("queues", 1, limits::MAX_TAP_QUEUES.into());
    in_range("mtu", limits::MIN_MTU, limits::MAX_CARRIED_MTU);
    in_range("mtu", limits::MIN_MTU, limits::MAX_TAP_MTU);
    assert!(help.contains(&format!("[default: 0{:o}]", limits::DEFAULT_SOCKET_MODE)));
    assert!(help.contains(&format!("forgotten [default: {}]", limits::FDB_AGE_SECONDS)));
    let (most, plain) = (limits::AUTO_WORKERS, limits::DEFAULT_WORKERS);
    assert!(help.contains(&format!("each CPU, at most {most} [default: {plain}]")));
}

#[test]
fn errors_of_the_parser_are_one_line_that_names_the_argument() {
    let cases: [(&[&str], &str); 12] = [
        (&["--bogus"], "unexpected argument '--bogus' found, see --help"),
        (&["--prt", "x"], "unexpected argument '--prt' found, did you mean '--port'?"),
        (&["word"], "unexpected argument 'word' found, see --help"),
        (&["-x"], "unexpected argument '-x' found, see --help"),
        (&["--poll", "false"], "unexpected argument 'false' found, write --poll=false"),
        (&["--bo\ngus"], "unexpected argument '--bo gus' found, see --help"),
        (&["--bo\u{1b}[2Jgus"], "unexpected argument '--bogus' found, see --help"),
        (
            &["--config"],
            "a value is required for '--config <FILE>' but none was supplied, see --help",
        ),
        (
            &["--workers"],
            "a value is required for '--workers <N>' but none was supplied, see --help",
        ),
        (
            &["--workers=1", "--workers=2"],
            "the argument '--workers <N>' cannot be used multiple times, see --help",
        ),
        (
            &["--socket-path=/x", "--fd=3"],
            "the argument '--socket-path <PATH>' cannot be used with '--fd <N>', see --help",
        ),
        (
            &["--version=1"],
            "unexpected value '1' for '--version' found; no more were expected, see --help",
        ),
    ];
    for (args, expected) in cases {
        assert_complaint(args, expected);
    }
    assert!(complaint(&[&format!("--{}", "x".repeat(100_000))]).len() < 500);
}

#[test]
fn arguments_must_be_utf8() {
    use std::os::unix::ffi::OsStringExt;
    let bad = OsString::from_vec(b"--port=\xff".to_vec());
    let error = from_args([OsString::from("vioswitchd"), bad], CPUS).unwrap_err();
    assert_eq!(error.lines, ["vioswitchd: argument '--port=\u{fffd}' is not UTF-8"]);
}

#[test]
fn bad_scalars_on_the_command_line() {
    let number = |key: &str, shown: &str, max: &str| {
        format!("--{key} {shown}: {key} must be a number from 1 to {max}, not '{shown}'")
    };
    for bad in ["0", "257", "-1", "+1", "1.5", "x", "0x1", "99999999999999999999"] {
        let expected = number("workers", bad, "256").replacen("must be", "must be auto or", 1);
        assert_complaint(&["--socket-path=/s", "--workers", bad], &expected);
    }
    for bad in ["0", "1000001", "-5", "5s"] {
        assert_complaint(&["--age", bad], &number("age", bad, "1000000"));
    }
    let cases = [
        (
            "--cpus=0-3",
            "--cpus 0-3: cpus '0-3': CPU 1 is not one this process may use, which are 0,2-3,7",
        ),
        ("--cpus=2,2", "--cpus 2,2: cpus '2,2': CPU 2 is given twice"),
        (
            "--cpus=-1",
            "--cpus -1: cpus must be CPU numbers and ranges with commas between, such as 0,2-3, \
             not '-1'",
        ),
        (
            "--latency=fast",
            "--latency fast: latency must be normal, low or microseconds from 1 to 1000, not \
             'fast'",
        ),
        (
            "--latency=1001",
            "--latency 1001: latency must be normal, low or microseconds from 1 to 1000, not \
             '1001'",
        ),
        (
            "--latency=0",
            "--latency 0: latency must be normal, low or microseconds from 1 to 1000, not '0'",
        ),
        ("--poll=yes", "--poll yes: poll must be true or false, not 'yes'"),
        ("--poll=", "--poll '': poll must be true or false, not ''"),
        (
            "--uplink-to-uplink=1",
            "--uplink-to-uplink 1: uplink-to-uplink must be true or false, not '1'",
        ),
        (
            "--metrics=:9434",
            "--metrics :9434: metrics must be ADDRESS:PORT, such as 127.0.0.1:9434 or [::1]:9434, \
             unix:PATH or fd, not ':9434'",
        ),
        ("--metrics=unix:", "--metrics unix:: metrics is empty"),
        (
            "--log-level=x",
            "--log-level x: log-level must be off, error, warn, info, debug or trace, not 'x'",
        ),
        ("--control=", "--control '': control is empty"),
        (
            "--socket-path=/d/",
            "--socket-path /d/: socket-path '/d/' names a directory, not a socket",
        ),
        ("--fd=x", "--fd x: fd must be a number from 0 to 2147483647, not 'x'"),
        ("--fd=1000000", "--fd 1000000: fd 1000000 is not an open socket"),
    ];
    for (arg, expected) in cases {
        assert_complaint(&[arg], expected);
    }
}

#[test]
fn bad_entries_on_the_command_line() {
    let cases = [
        ("a", "socket is missing"),
        ("a,socket", "'socket' is not key=value"),
        ("socket=/s", "the name comes first, before any key=value"),
        ("a,socket=", "socket is empty"),
        ("a,socket=/s,socket=/t", "'socket' is given twice"),
        ("a,name=b,socket=/s", "'name' is given twice"),
        ("a,socket=/s,queues=0", "queues must be a number from 1 to 16, not '0'"),
        ("a,socket=/s,queues=17", "queues must be a number from 1 to 16, not '17'"),
        ("a,socket=/s,mode=peer", "mode must be server or client, not 'peer'"),
        ("a,socket=/s,mode=client,socket-mode=0600", "socket-mode does not go with mode=client"),
        ("a,socket=/s,socket-group=0,mode=client", "socket-group does not go with mode=client"),
        ("a,socket=/s,socket-group=no such", "socket-group 'no such' does not exist"),
        ("a,socket=/s,mac=01:00:5e:00:00:01", "mac '01:00:5e:00:00:01' is a group address"),
        ("a,socket=/s,mac=ff:ff:ff:ff:ff:ff", "mac 'ff:ff:ff:ff:ff:ff' is a group address"),
        (
            "a,socket=/s,mac=00:00:00:00:00:00",
            "mac '00:00:00:00:00:00' is not the address of a station",
        ),
        (
            "a,socket=/s,mac=52:54:00:00:00:01,mac=52-54-00-00-00-01",
            "mac '52:54:00:00:00:01' is given twice",
        ),
        ("a,socket=/s,offload=yes", "offload must be on, send, csum or off, not 'yes'"),
        ("a,socket=/s,offload=false", "offload is not true or false: write offload=off"),
        ("a,socket=/s,offload=true", "offload is not true or false: write offload=on"),
        ("a,socket=~/s", "socket '~/s': ~ is not expanded here: write the whole path, from / on"),
        ("a,socket=/s,offload=on,offload=off", "'offload' is given twice"),
        ("a,socket=/s,memory=some", "memory must be any or prealloc, not 'some'"),
        ("a,socket=/s,mtu=67", "mtu must be a number from 68 to 65535, not '67'"),
        ("a,socket=/s,mtu=65536", "mtu must be a number from 68 to 65535, not '65536'"),
        ("a,socket=/s,platform=true", "platform is not true or false: write platform=on"),
        ("a,socket=/s,flood=no", "flood must be on or off, not 'no'"),
        ("a b,socket=/s", "name 'a b' must be 1 to 64"),
        ("-a,socket=/s", "name '-a' must be 1 to 64"),
        (",socket=/s", "name '' must be 1 to 64"),
        ("a,socket=/s,ifname=x", "'ifname' is a key of tap, xdp, vduse, not of port; vioswitchd"),
        ("a,socket=/s,", "ends in a comma: leave it out, or write it twice if the value ends"),
        ("a,", "ends in a comma: leave it out"),
    ];
    for (value, expected) in cases {
        let line = complaint(&["--port", value]);
        assert!(line.starts_with(&format!("--port {value}: {expected}")), "{value}: {line}");
    }
    for mode in ["", "660x", "0999", "01777", "1777", "00660", "+660", "-1"] {
        let line = complaint(&["--port", &format!("a,socket=/s,socket-mode={mode}")]);
        assert!(line.contains(": socket-mode must be octal digits"), "{line}");
        assert!(line.ends_with(&format!("not '{mode}'")), "{line}");
    }
    for gid in ["4294967295", "99999999999999999999"] {
        let line = complaint(&["--port", &format!("a,socket=/s,socket-group={gid}")]);
        assert!(line.contains("socket-group must be a number from 0 to 4294967294"), "{line}");
    }
    let line = complaint(&["--port=a,socket=/s,mac=5254"]);
    assert!(line.contains("mac '5254': not a MAC address"), "{line}");
}

#[test]
fn bad_taps_on_the_command_line() {
    let names = ["b/r", "a b", "tap%d", "a:1", "..", ".", "t\u{e4}p"];
    for name in names {
        let line = complaint(&["--tap", &format!("up,ifname={name}")]);
        assert!(line.ends_with(&format!(": ifname '{name}' is not an interface name")), "{line}");
    }
    assert!(complaint(&["--tap=up,ifname=a\tb"]).ends_with("'a\\tb' is not an interface name"));
    for name in ["", "sixteen-bytes-xx"] {
        let line = complaint(&["--tap", &format!("up,ifname={name}")]);
        assert!(line.ends_with(&format!("ifname '{name}' must have 1 to 15 bytes")), "{line}");
    }
    assert_eq!(
        settings(&config(&["--tap=up,ifname=fifteen-bytes-x"]))[0].ifname.as_deref(),
        Some("fifteen-bytes-x")
    );
    assert_complaint(&["--tap=up"], "--tap up: ifname is missing: write ifname=IFNAME");
    for queues in ["0", "65"] {
        let arg = format!("up,ifname=t,queues={queues}");
        let rule = "queues must be a number from 1 to 64";
        assert_complaint(&["--tap", &arg], &format!("--tap {arg}: {rule}, not '{queues}'"));
    }
    for mtu in ["0", "65522"] {
        let arg = format!("up,ifname=t,mtu={mtu}");
        let rule = "mtu must be a number from 68 to 65521";
        assert_complaint(&["--tap", &arg], &format!("--tap {arg}: {rule}, not '{mtu}'"));
    }
    assert_complaint(
        &["--tap=up,ifname=t,offload="],
        "--tap up,ifname=t,offload=: offload must be on, csum or off, not ''",
    );
    assert!(complaint(&["--tap=up,ifname=t,guard=on"]).contains("'guard' is a key of "));
    assert_complaint(
        &["--tap=a,ifname=t", "--tap=b,ifname=t"],
        "--tap b,ifname=t: interface 't' is already used by --tap a,ifname=t",
    );
}

#[test]
fn socket_paths_fit_sun_path() {
    let fits = format!("/{}", "x".repeat(106));
    assert_eq!(settings(&config(&["--socket-path", &fits]))[0].endpoint(), server(&fits));
    let line = complaint(&["--socket-path", &format!("{fits}x")]);
    assert!(line.ends_with("has 108 bytes, a socket path at most 107"), "{line}");
    for directory in ["/", ".", "..", "/run/", "/run/.", "/run/.."] {
        assert!(complaint(&["--socket-path", directory]).ends_with("not a socket"), "{directory}");
    }
}

#[test]
fn duplicates_on_the_command_line_name_the_later_argument() {
    let with_mac = |name: &str| format!("--port={name},socket=/{name},mac={MAC}");
    let cases = [
        (["--port=a,socket=/a".to_owned(), "--port=a,socket=/b".to_owned()], "name 'a'"),
        (["--port=a,socket=/a".to_owned(), "--port=b,socket=//a".to_owned()], "socket '//a'"),
        (["--port=a,socket=/a".to_owned(), "--tap=a,ifname=t".to_owned()], "name 'a'"),
        (["--port=port0,socket=/a".to_owned(), "--socket-path=/b".to_owned()], "name 'port0'"),
        ([with_mac("a"), with_mac("b")], "mac '52:54:00:00:00:01'"),
    ];
    for ([first, second], what) in cases {
        let line = complaint(&[&first, &second]);
        assert!(line.contains(&format!(": {what} is already used by --")), "{line}");
    }
    // The file has a port of this name, which either entry could replace.
    let file = "[[port]]\nname='a'\nsocket='/z'\n";
    let error = with_file(file, &["--port=a,socket=/a", "--port=a,socket=/b"]).unwrap_err();
    assert!(error.lines[0].contains("name 'a' is already used by --port a,socket=/a"));
}

#[test]
fn streams_are_told_what_to_write() {
    for (word, expected) in [
        ("net", "--stream net: socket is missing: write socket=PATH"),
        ("socket=/a", "--stream socket=/a: the name comes first"),
        ("n,socket=/a,mode=connect", "mode must be server or client, not 'connect'"),
        ("n,socket=/a,mode=client,socket-mode=0600", "socket-mode does not go with mode=client"),
        ("n,socket=/a,offload=off", "'offload' is a key of port, tap, vduse, template, not of"),
        ("n,socket=/a,mtu=67", "mtu must be a number from 68 to 65535, not '67'"),
        ("n,socket=/a/", "names a directory, not a socket"),
        ("n,socket=/a,sockt=/b", "unknown key 'sockt', did you mean socket=/b? "),
    ] {
        let line = complaint(&["--stream", word]);
        assert!(line.contains(expected), "{word}: {line}");
    }
    let twice = ["--port", "a,socket=/run/x", "--stream", "b,socket=/run//x"];
    assert!(
        complaint(&twice).contains("already used by --port a,socket=/run/x"),
        "{}",
        complaint(&twice)
    );
}

#[test]
fn numbers_of_ports_and_taps_are_limited() {
    let ports = |count: usize| -> Vec<String> {
        (0..count).map(|i| format!("--port=p{i},socket=/p{i}")).collect()
    };
    let taps = |count: usize| -> Vec<String> {
        (0..count).map(|i| format!("--tap=t{i},ifname=t{i}")).collect()
    };
    let check = |all: Vec<String>| -> Result<Config, String> {
        match from_args(std::iter::once("vioswitchd".to_owned()).chain(all), CPUS) {
            Ok(Action::Run(config)) => Ok(config),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string()),
        }
    };
    assert_eq!(check(ports(limits::MAX_PORTS)).unwrap().ports.len(), limits::MAX_PORTS);
    let over = check([ports(limits::MAX_PORTS), taps(1)].concat()).unwrap_err();
    assert!(over.ends_with("--tap t0,ifname=t0: more than 1024 ports, taps and streams"), "{over}");
    assert_eq!(check(taps(limits::MAX_TAPS)).unwrap().ports.len(), limits::MAX_TAPS);
    let over = check(taps(limits::MAX_TAPS + 1)).unwrap_err();
    assert!(over.ends_with("--tap t64,ifname=t64: more than 64 taps"), "{over}");

    let macs = |count: usize| -> String {
        (0..count).map(|i| format!(",mac=52:54:00:00:00:{i:02x}")).collect()
    };
    let port = |count: usize| vec![format!("--port=a,socket=/a{}", macs(count))];
    assert!(check(port(limits::MAX_STATIC_MACS)).is_ok());
    let over = check(port(limits::MAX_STATIC_MACS + 1)).unwrap_err();
    assert!(over.ends_with("more than 64 mac addresses"), "{over}");
}
