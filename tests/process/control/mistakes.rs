//! Each mistake in `mistakes.txt` gets the answer that stands there: the object, the cause and the
//! next command. What the answer proposes works as it is printed.

use std::fmt::Write;

use testkit::host;
use testkit::proc::copy_program;

use super::*;
use crate::lab::{Process, plain};

const TABLE: &str = include_str!("mistakes.txt");
/// So many were collected; none is lost.
const MISTAKES: usize = 63;

/// A line of the table.
enum Line<'t> {
    /// Prepares what follows.
    Prepare(&'t str),
    /// A mistake, its answer, and where the object, the cause and the next command are in it.
    Mistake(&'t str, Vec<&'t str>, Vec<&'t str>),
    /// What the answer proposes.
    Proposed(&'t str),
}

fn lines() -> Vec<Line<'static>> {
    let mut all = Vec::new();
    for line in TABLE.lines() {
        let (sign, rest) = line.split_once(' ').unwrap_or((line, ""));
        match (sign, all.last_mut()) {
            ("$", _) => all.push(Line::Mistake(rest, Vec::new(), Vec::new())),
            ("+", _) => all.push(Line::Prepare(rest)),
            (">", _) => all.push(Line::Proposed(rest)),
            // Comments.
            ("#" | "", _) => {}
            ("=", Some(Line::Mistake(_, _, parts))) => parts.extend(rest.split(" | ")),
            (_, Some(Line::Mistake(_, answer, _))) => answer.push(line),
            _ => panic!("mistakes.txt: {line}"),
        }
    }
    all
}

/// A switch with the ports vm1 and vm2 and the TAP up, in a directory that is `$D` in the table.
struct Desk {
    d: Process,
}

impl Desk {
    fn new() -> Desk {
        let dir = Dir::new();
        let at = |name: &str| dir.path().join(name).display().to_string();
        for program in ["vioswitchd", "vioswitchctl"] {
            let from = Path::new(env!("CARGO_BIN_EXE_vioswitchctl")).with_file_name(program);
            copy_program(from, &dir.path().join(program));
        }
        let args = [
            format!("--control={}", at("control.sock")),
            format!("--metrics=unix:{}", at("metrics.sock")),
            format!("--port=vm1,socket={}", at("vm1.sock")),
            format!("--port=vm2,socket={}", at("vm2.sock")),
            "--tap=up,ifname=vio0".to_owned(),
        ];
        let mut d = Process::start(dir, &args, plain);
        d.wait_ready();
        Desk { d }
    }

    /// Runs a line as a shell does: its exit status, and what it prints.
    fn run(&self, line: &str) -> (i32, String) {
        let dir = self.d.dir.path();
        let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", dir.display());
        let mut command = Command::new("timeout");
        command.args(["20", "sh", "-c", line]).current_dir(dir).env("D", dir).env("PATH", path);
        command.env("VIOSWITCH_CONTROL", dir.join("control.sock")).env_remove("RUST_LOG");
        let output = command.stdin(std::process::Stdio::null()).output().expect("sh");
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8(text).expect("UTF-8");
        let text = text.replace(&dir.display().to_string(), "$D");
        let text = text.replace(&format!("pid {})", self.d.child.id()), "pid $PID)");
        let lines = text.lines().map(|line| match line.split_once("Z ERROR] ") {
            Some((_, said)) => format!("[ERROR] {said}\n"),
            None => format!("{line}\n"),
        });
        (output.status.code().unwrap_or(-1), lines.collect())
    }
}

/// Whether `text` is what `wanted` says; a line `...` stands for any others.
fn is_as(text: &str, wanted: &[&str]) -> bool {
    let lines: Vec<&str> = text.lines().collect();
    match wanted.iter().position(|line| *line == "...") {
        None => lines == wanted,
        Some(at) => {
            let (before, after) = (&wanted[..at], &wanted[at + 1..]);
            lines.len() >= wanted.len() - 1 && lines.starts_with(before) && lines.ends_with(after)
        }
    }
}

#[test]
fn each_mistake_is_answered_with_object_cause_and_next_command() {
    host::in_namespace(|| {
        let desk = Desk::new();
        let (mut wrong, mut count, mut last) = (String::new(), 0, String::new());
        for line in lines() {
            match line {
                Line::Prepare(line) => {
                    let (status, text) = desk.run(line);
                    assert_eq!(status, 0, "{line}\n{text}");
                }
                Line::Proposed(line) => {
                    let (status, text) = desk.run(line);
                    if status != 0 || !last.contains(line) {
                        writeln!(wrong, "> {line}\n({status})\n{text}").unwrap();
                    }
                }
                Line::Mistake(line, answer, parts) => {
                    count += 1;
                    let (status, text) = desk.run(line);
                    let text = format!("({status})\n{text}");
                    let has_parts = status == 0 || parts.len() == 3;
                    let found = parts.iter().all(|part| text.contains(part));
                    if !is_as(&text, &answer) || !has_parts || !found {
                        writeln!(wrong, "$ {line}\n{text}= {}", parts.join(" | ")).unwrap();
                    }
                    last = text;
                }
            }
        }
        assert!(wrong.is_empty(), "the answers are others than in mistakes.txt:\n{wrong}");
        assert!(count >= MISTAKES, "{count}");
        desk.d.stop(libc::SIGTERM, &["vm1.sock", "vm2.sock", "control.sock"]);
    });
}
