//! Tables of command lines with their answers, and a switch that the lines are typed at.
//!
//! A line of a table begins with a sign:
//! `$` a command line; below the line the exit status, and what the command prints
//! `=` of that answer the object, the cause and the next command
//! `?` the code of a finding that a doctor is waited for to print, and below it the two lines
//! `!` the code of a finding that a doctor is waited for to print no longer
//! `>` what the last answer proposes, with values for its words in capitals; the line succeeds
//! `+` a command line that prepares what follows; the line succeeds
//! `@` the control socket of the switch for the lines that follow
//! `#` a comment
//! In an answer a line `...` stands for any lines, and ` ...` for the rest of a line.

use std::cell::RefCell;
use std::fmt::Write;

use testkit::proc::copy_program;

use super::*;
use crate::lab::{Process, plain};

/// A part of a table.
pub enum Part<'t> {
    Prepare(&'t str),
    /// A command line, its answer, and where the object, the cause and the next command are in it.
    Typed(&'t str, Vec<&'t str>, Vec<&'t str>),
    /// The code of a finding, and its lines.
    Found(&'t str, Vec<&'t str>),
    Gone(&'t str),
    Proposed(&'t str),
    At(&'t str),
}

pub fn parts(table: &str) -> Vec<Part<'_>> {
    let mut all = Vec::new();
    for line in table.lines() {
        let (sign, rest) = line.split_once(' ').unwrap_or((line, ""));
        match (sign, all.last_mut()) {
            ("$", _) => all.push(Part::Typed(rest, Vec::new(), Vec::new())),
            ("+", _) => all.push(Part::Prepare(rest)),
            (">", _) => all.push(Part::Proposed(rest)),
            ("?", _) => all.push(Part::Found(rest, Vec::new())),
            ("!", _) => all.push(Part::Gone(rest)),
            ("@", _) => all.push(Part::At(rest)),
            ("", Some(Part::Found(_, answer))) if !rest.is_empty() => answer.push(line),
            ("#" | "", _) => {}
            ("=", Some(Part::Typed(_, _, parts))) => parts.extend(rest.split(" | ")),
            (_, Some(Part::Typed(_, answer, _) | Part::Found(_, answer))) => answer.push(line),
            _ => panic!("the sign of a line is unknown: {line}"),
        }
    }
    all
}

/// A switch with the ports vm1 and vm2 and the TAP up, in a directory that is `$D` in a table.
pub struct Desk {
    pub d: Process,
    /// The control socket of the switch that is asked.
    control: RefCell<PathBuf>,
}

impl Desk {
    pub fn new() -> Desk {
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
        let control = RefCell::new(d.dir.path().join("control.sock"));
        Desk { d, control }
    }

    /// Runs a line as a shell does: its exit status, and what it prints.
    pub fn run(&self, line: &str) -> (i32, String) {
        let dir = self.d.dir.path();
        let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", dir.display());
        let mut command = Command::new("timeout");
        command.args(["20", "sh", "-c", line]).current_dir(dir).env("D", dir).env("PATH", path);
        command.env("VIOSWITCH_CONTROL", &*self.control.borrow()).env_remove("RUST_LOG");
        let output = command.stdin(std::process::Stdio::null()).output().expect("sh");
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8(text).expect("UTF-8");
        let text = text.replace(&dir.display().to_string(), "$D");
        let pid = self.d.child.id();
        let text = text.replace(&format!("pid {pid})"), "pid $PID)");
        let text = text.replace(&format!("kill {pid},"), "kill $PID,");
        let lines = text.lines().map(|line| match line.split_once("Z ERROR] ") {
            Some((_, said)) => format!("[ERROR] {said}\n"),
            None => format!("{line}\n"),
        });
        (output.status.code().unwrap_or(-1), lines.collect())
    }

    /// The two lines of a finding; nothing if a doctor does not print the finding.
    fn finding(&self, code: &str) -> String {
        let told = self.run("vioswitchctl doctor").1;
        let lines: Vec<&str> = told.lines().collect();
        let is_it = |line: &&str| line.split("  ").nth(1) == Some(code);
        let at = lines.iter().position(is_it);
        at.map(|at| {
            format!("{}\n", lines[at..].iter().take(2).copied().collect::<Vec<_>>().join("\n"))
        })
        .unwrap_or_default()
    }

    /// Runs what an answer proposes. What goes on until somebody ends it is ended.
    fn propose(&self, line: &str) -> (i32, String) {
        if !line.contains("vioswitchd ") && !line.ends_with("--watch") {
            return self.run(line);
        }
        let (status, text) = self.run(&format!("timeout 2 sh -c '{line}'"));
        // 124: it ran for all the time.
        if status == 124 { (0, text) } else { (-1, text) }
    }

    /// Types a table; what is other than in the table, and how many lines were typed.
    pub fn replay(&self, table: &str) -> (String, usize) {
        let (mut wrong, mut count, mut last) = (String::new(), 0, String::new());
        for part in parts(table) {
            match part {
                Part::Prepare(line) => {
                    let (status, text) = self.run(line);
                    assert_eq!(status, 0, "{line}\n{text}\n{wrong}");
                }
                Part::At(path) => {
                    let dir = self.d.dir.path().display().to_string();
                    self.control.replace(path.replace("$D", &dir).into());
                }
                Part::Proposed(line) => {
                    let (status, text) = self.propose(line);
                    if status != 0 || !proposes(&last, line) {
                        writeln!(wrong, "> {line}\n({status})\n{text}").unwrap();
                    }
                }
                Part::Found(code, answer) => {
                    count += 1;
                    let is_there = || is_as(&self.finding(code), &answer);
                    if !wait_for(LOST, is_there) {
                        let told = self.run("vioswitchctl doctor").1;
                        writeln!(wrong, "? {code}\n{told}").unwrap();
                    }
                    last = answer.join("\n");
                }
                Part::Gone(code) => {
                    if !wait_for(LOST, || self.finding(code).is_empty()) {
                        writeln!(wrong, "! {code}\n{}", self.finding(code)).unwrap();
                    }
                }
                Part::Typed(line, answer, parts) => {
                    count += 1;
                    let (status, text) = self.run(line);
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
        (wrong, count)
    }

    pub fn stop(self) {
        self.d.stop(libc::SIGTERM, &["vm1.sock", "vm2.sock", "control.sock"]);
    }
}

/// Whether `text` is what `wanted` says.
fn is_as(text: &str, wanted: &[&str]) -> bool {
    let lines: Vec<&str> = text.lines().collect();
    let fits = |line: &str, wanted: &str| match wanted.strip_suffix(" ...") {
        Some(begin) => line.starts_with(begin),
        None => line == wanted,
    };
    let fit = |lines: &[&str], wanted: &[&str]| {
        lines.len() == wanted.len() && lines.iter().zip(wanted).all(|(line, one)| fits(line, one))
    };
    match wanted.iter().position(|line| *line == "...") {
        None => fit(&lines, wanted),
        Some(at) => {
            let (before, after) = (&wanted[..at], &wanted[at + 1..]);
            lines.len() >= before.len() + after.len()
                && fit(&lines[..at], before)
                && fit(&lines[lines.len() - after.len()..], after)
        }
    }
}

/// Whether an answer has these words one after the other, each as it is or as a word in capitals,
/// which stands for any.
pub fn proposes(answer: &str, line: &str) -> bool {
    let is_for_any = |word: &str| word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase());
    let is_one = |printed: &str, typed: &str| {
        let printed = printed.trim_end_matches([';', ',', ':', '\'', '?']);
        let printed = printed.trim_start_matches('\'');
        let typed = typed.trim_end_matches([';', ',']);
        match printed.split_once('=') {
            _ if printed == typed || is_for_any(printed) => true,
            Some(("KEY", "VALUE")) => typed.contains('='),
            Some((key, value)) if is_for_any(value) => typed.split('=').next() == Some(key),
            _ => false,
        }
    };
    let printed: Vec<&str> = answer.split_whitespace().collect();
    let typed: Vec<&str> = line.split_whitespace().collect();
    printed
        .windows(typed.len())
        .any(|words| words.iter().zip(&typed).all(|(printed, typed)| is_one(printed, typed)))
}
