//! `worker=`: which worker serves a port's rings, by the command line, a file and while it serves;
//! what is shown; and what asks for a worker that there is not.

use std::collections::BTreeSet;
use std::fs;

use super::commands::talk;
use super::*;

/// The workers of a port's rings.
fn workers(lab: &Lab, port: &str) -> BTreeSet<u64> {
    let shown = lab.json(&["port", "show", port]);
    let rings = shown["rings"].as_array().expect("rings").iter();
    rings.filter_map(|ring| ring["worker"].as_u64()).collect()
}

#[test]
fn a_port_has_the_worker_that_is_chosen_for_it() {
    let lab = Lab::with_ports(&[",worker=1", ",worker=1", "", ""], &["--workers=2"]);
    let mut vms = [0, 1].map(|id: u8| Vm::connect(&lab.d.socket(id.into()), VmConfig::new(id)));
    let [a, b] = &mut vms;
    let both = |a: &mut Vm, b: &mut Vm| {
        talk(a, b, 200);
        talk(b, a, 200);
    };
    both(a, b);
    let first = BTreeSet::from([1]);
    assert_eq!(["p0", "p1"].map(|port| workers(&lab, port)), [first.clone(), first.clone()]);
    // Others go where there is less to do, and none of these moves for them.
    let others = [2, 3].map(|id: u8| Vm::connect(&lab.d.socket(id.into()), VmConfig::new(id)));
    both(a, b);
    assert_eq!(["p2", "p3"].map(|port| workers(&lab, port)), [0, 0].map(|n| BTreeSet::from([n])));
    assert_eq!(["p0", "p1"].map(|port| workers(&lab, port)), [first.clone(), first]);
    // While frames pass: none is lost, doubled or overtaken.
    for worker in [0, 1].into_iter().cycle().take(20) {
        let told = lab.done(&["port", "set", "p0", &format!("worker={worker}")]);
        assert_eq!(told, format!("worker {} -> {worker}  now\n", 1 - worker));
        both(a, b);
        assert!(wait_for(LOST, || workers(&lab, "p0") == BTreeSet::from([worker])));
    }
    let metrics = lab.done(&["metrics"]);
    let info = |line: &&str| line.starts_with("vioswitch_port_info{port=\"p0\"");
    let line = metrics.lines().find(info).expect("port_info");
    assert!(line.contains(",worker=\"1\""), "{line}");
    assert_eq!(lab.json(&["port", "list"])["ports"][1]["worker"], "1");
    assert_eq!(lab.done(&["port", "set", "p0", "worker=auto"]), "worker 1 -> auto  now\n");
    assert_eq!(lab.json(&["port", "show", "p2"])["port"]["worker"], "auto");
    both(a, b);
    drop((vms, others));
    lab.d.stop();
}

#[test]
fn a_worker_that_there_is_not_is_an_error() {
    let lab = Lab::new(1, &["--workers=2"]);
    let wanted = "worker must be auto or below workers (2), not 2";
    for args in [["port", "add", "x", "worker=2"], ["port", "set", "p0", "worker=2"]] {
        let (status, line) = lab.fails(&args);
        assert_eq!(status, 2, "{line}");
        assert!(line.contains(wanted), "{line}");
    }
    let (_, line) = lab.fails(&["port", "set", "p0", "worker=many"]);
    assert!(line.contains("worker must be auto or a number from 0 to 255, not 'many'"), "{line}");
    assert_eq!(lab.json(&["port", "show", "p0"])["port"]["worker"], "auto");
    lab.d.stop();

    let dir = Dir::new();
    let file = dir.path().join("config.toml");
    let port = "[[port]]\nname = 'a'\nsocket = '/nonexistent/a'\nworker = 2\n";
    let config = file.display().to_string();
    let run = |text: &str, args: &[&str]| {
        fs::write(&file, text).expect("write");
        let output =
            Command::new(env!("CARGO_BIN_EXE_vioswitchd")).args(args).output().expect("vioswitchd");
        (output.status.code(), String::from_utf8(output.stderr).expect("UTF-8"))
    };
    let given = ["--workers=2", "--port=a,socket=/nonexistent/a,worker=2"];
    let template = "workers = 2\nplug = '/run/plug'\n[template.plug]\nworker = 2\n";
    for (text, args) in [
        ("", &given[..]),
        (port, &["--config", &config, "--workers=2"]),
        (template, &["--config", &config, "--check"]),
    ] {
        let (status, said) = run(text, args);
        assert_eq!((status, said.lines().count()), (Some(2), 1), "{said}");
        assert!(said.contains(wanted), "{said}");
    }
    // With a third one it fails for want of the directory.
    assert_eq!(run(port, &["--config", &config, "--workers=3"]).0, Some(1));
}

/// More workers come with a restart: until then a reload does not ask for them.
#[test]
fn a_reload_asks_for_no_worker_that_comes_with_a_restart() {
    let dir = Dir::new();
    let file = dir.path().join("config.toml");
    let port = |worker: &str| {
        let socket = dir.path().join("a.sock");
        format!("[[port]]\nname = 'a'\nsocket = '{}'\nworker = {worker}\n", socket.display())
    };
    fs::write(&file, format!("workers = 2\n{}", port("1"))).expect("write");
    let lab = Lab::with_ports(&[], &[&format!("--config={}", file.display())]);
    let shown = || lab.json(&["port", "show", "a"])["port"]["worker"].clone();
    assert_eq!(shown(), "1");
    fs::write(&file, format!("workers = 4\n{}", port("3"))).expect("write");
    let (_, line) = lab.fails(&["config", "reload"]);
    assert!(line.contains("port a: worker must be auto or below workers (2), not 3"), "{line}");
    assert_eq!(shown(), "1");
    fs::write(&file, format!("workers = 4\n{}", port("'auto'"))).expect("write");
    lab.done(&["config", "reload"]);
    assert_eq!(shown(), "auto");
    lab.d.stop();
}
