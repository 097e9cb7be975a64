//! The command line of vioswitchctl as people type it: short forms, slips, and what scripts get.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;

use super::*;
use crate::lab::Process;
use crate::sockets::inherit;

const SOURCE: &str = "src=02:00:00:00:00:01";
const DESTINATION: &str = "dst=02:00:00:00:00:02";

/// What is about ports may leave the word out.
#[test]
fn commands_of_ports_need_no_port_before_them() {
    let lab = Lab::new(1, &[]);
    assert_eq!(lab.done(&["list"]), lab.done(&["port", "list"]));
    assert_eq!(lab.done(&["show", "p0"]), lab.done(&["port", "show", "p0"]));
    lab.done(&["add", "vm9", "queues=2"]);
    assert!(lab.done(&["set", "vm9", "mtu=1400"]).contains("mtu - -> 1400  now"));
    lab.done(&["wait", "vm9", "--for=listening"]);
    assert_eq!(lab.done(&["list", "--names"]), "p0\nvm9\n");
    lab.done(&["del", "vm9"]);
    assert_eq!(lab.done(&["fdb", "show", "p0"]), lab.done(&["fdb", "show", "--port", "p0"]));
    assert_eq!(lab.done(&["fdb", "flush", "p0"]), "0 addresses forgotten\n");
    let help = lab.done(&["--help"]);
    assert!(!help.contains("\n  add ") && help.contains("\n  port "), "{help}");
    for (args, words) in [
        (&["reload"][..], " config reload'?"),
        (&["flush"], " fdb flush'?"),
        (&["fdb", "show", "p0", "--port", "p0"], "cannot be used with"),
        (&["del"], "<NAME>"),
    ] {
        let (status, line) = lab.fails(args);
        assert!(status == 2 && line.contains(words), "{args:?}: {status} {line}");
    }
    lab.d.stop();
}

/// Who writes a key as an option is told how it is written.
#[test]
fn an_option_that_is_a_key_is_proposed_as_a_key() {
    let lab = Lab::new(1, &[]);
    for (args, words) in [
        (
            &["port", "add", "vm9", "--queues", "2"][..],
            "'--queues' found, did you mean 'queues=2'?",
        ),
        (&["add", "vm9", "--mtu=1500"], "did you mean 'mtu=1500'?"),
        (&["port", "add", "vm9", "--socket-mode"], "did you mean 'socket-mode='?"),
        (&["port", "set", "p0", "--mtu", "1400"], "did you mean 'mtu=1400'?"),
        (&["tap", "add", "t", "--ifname", "x"], "did you mean 'ifname=x'?"),
        (
            &["port", "add", "vm9", "--nonsense", "2"],
            "'--nonsense' found, see vioswitchctl port add --help",
        ),
        (&["port", "add", "vm9", "--may-exis"], "did you mean '--may-exist'?"),
    ] {
        let (status, line) = lab.fails(args);
        assert!(status == 2 && line.contains(words), "{args:?}: {status} {line}");
    }
    lab.d.stop();
}

#[test]
fn a_trace_names_the_key_that_is_wrong() {
    let lab = Lab::new(1, &[]);
    for (args, words) in [
        (&[SOURCE, DESTINATION, "len=9"][..], "len must be a number from 14 to 65557"),
        (
            &[SOURCE, DESTINATION, "len=x"],
            "parameter 'len' is unknown, missing or of the wrong type",
        ),
        (&[SOURCE], "parameter 'dst' is unknown, missing or of the wrong type"),
        (&[SOURCE, "dst=x"], "dst must be a MAC address, such as 52:54:00:12:34:56"),
        (&[SOURCE, "x9=2"], "parameter 'x9' is unknown, missing or of the wrong type"),
    ] {
        let args: Vec<&str> = ["trace", "p0"].iter().chain(args).copied().collect();
        assert_eq!(lab.fails(&args), (2, words.to_owned()), "{args:?}");
    }
    lab.d.stop();
}

/// A program that asks for JSON gets it for a failure too: on standard error, in one line.
#[test]
fn failures_are_json_for_programs() {
    let lab = Lab::new(1, &[]);
    for (args, status, code, words) in [
        (&["--json", "port", "show", "x"][..], 1, "NoSuchPort", "there is no port 'x'"),
        (&["port", "add", "p0", "--json"], 1, "PortExists", "port 'p0' exists"),
        (&["--json", "port", "add", "x", "mtu=1"], 2, "InvalidParameter", "mtu must be"),
        (&["--json", "prot"], 2, "Usage", " port'?"),
        (&["port", "add", "x", "mtu", "--json"], 2, "Usage", "is not KEY=VALUE"),
        (&["--json", "--control", "/no/such", "status"], 3, "NoSwitch", "no switch at /no/such"),
    ] {
        let output = match args.contains(&"--control") {
            true => Command::new(env!("CARGO_BIN_EXE_vioswitchctl")).args(args).output().unwrap(),
            false => lab.ctl(args),
        };
        assert!(output.stdout.is_empty(), "{args:?}: {output:?}");
        let told: Value = serde_json::from_slice(&output.stderr).expect("JSON");
        assert_eq!(told["status"], status, "{args:?}: {told}");
        assert_eq!((output.status.code(), &told["code"]), (Some(status), &json!(code)), "{told}");
        assert!(told["message"].as_str().unwrap().contains(words), "{told}");
        assert_eq!(told.as_object().unwrap().len(), 3, "{told}");
    }
    // What stands behind -- is another program's.
    let (_, line) = lab.fails(&["run", "p0", "--", "--json"]);
    assert!(!line.contains('{'), "{line}");
    lab.d.stop();
}

#[test]
fn the_environment_names_the_control_socket() {
    let lab = Lab::new(2, &[]);
    let run = |value: &Path, args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vioswitchctl"));
        command.env("VIOSWITCH_CONTROL", value).args(args).output().expect("vioswitchctl")
    };
    let names = |output: Output| String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(names(run(&lab.path, &["port", "list", "--names"])), "p0\np1\n");
    assert_eq!(names(run(&lab.path, &["complete", "--", "port", "show", "p"])), "p0\np1\n");
    let other = lab.socket("other");
    let (status, line) = failure(run(&other, &["status"]));
    assert!(status == 3 && line.contains(&other.display().to_string()), "{line}");
    let option = format!("--control={}", lab.path.display());
    for args in [&[&option, "port", "list", "--names"][..], &["port", "list", "--names", &option]] {
        assert_eq!(names(run(&other, args)), "p0\np1\n");
    }
    // Set to nothing it says nothing.
    let (status, line) = failure(run(Path::new(""), &["status"]));
    assert!(status != 2, "{line}");
    lab.d.stop();
}

/// There is nothing to read again: neither success nor an error about a file.
#[test]
fn a_reload_without_a_file_says_so() {
    let lab = Lab::new(1, &[]);
    for args in
        [&["config", "reload"][..], &["config", "reload", "--confirm=60"], &["config", "diff"]]
    {
        let wanted = "vioswitchd was started without --config, so there is no file to reload";
        assert_eq!(lab.fails(args), (1, wanted.to_owned()), "{args:?}");
    }
    let (status, line) = lab.fails(&["config", "confirm"]);
    assert!(status == 1 && line.contains("no reload waits"), "nothing has begun: {line}");
    lab.d.stop();
}

#[test]
fn a_port_that_is_added_tells_its_socket() {
    let lab = Lab::new(1, &[]);
    let default = lab.socket("vm3.sock");
    assert_eq!(lab.done(&["port", "add", "vm3"]), format!("{}\n", default.display()));
    let other = format!("socket={}", lab.socket("other").display());
    assert_eq!(
        lab.done(&["port", "add", "vm4", &other, "--wait=listening"]),
        format!("{}\n", lab.socket("other").display())
    );
    // Where the one that is there has it, asked for or not.
    assert_eq!(
        lab.json(&["port", "add", "vm4", "--may-exist"]),
        json!({"number": 2, "socket": lab.socket("other")})
    );
    let stream = lab.json(&["stream", "add", "net"]);
    assert_eq!(stream, json!({"number": 3, "socket": lab.socket("net.sock")}));
    lab.d.stop();
}

/// Such a port comes from the command line alone: no file or later process could say it again.
#[test]
fn a_port_on_an_inherited_descriptor_says_why_it_cannot_be_changed() {
    let dir = Dir::new();
    let listener = UnixListener::bind(dir.path().join("ours")).expect("bind");
    let (fd, path) = (listener.as_raw_fd(), dir.path().join("control"));
    let args = [format!("--fd={fd}"), format!("--control={}", path.display())];
    let mut d = Process::start(dir, &args, |command| inherit(command, fd));
    d.wait_ready();
    let ctl = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vioswitchctl"));
        command.arg("--control").arg(&path).args(args).output().expect("vioswitchctl")
    };
    for setting in ["mtu=1400", "queues=2", "mtu=", "socket=/tmp/x"] {
        let (status, line) = failure(ctl(&["port", "set", "port0", setting]));
        let wanted = "port 'port0' cannot be changed: it has an inherited descriptor (--fd); \
                      start vioswitchd with --port port0,socket=PATH";
        assert_eq!((status, line.as_str()), (1, wanted), "{setting}");
    }
    d.stop(libc::SIGTERM, &[]);
}
