//! docs/tenants.md, typed: each command of its transcripts, on the host and in Linux guests of two
//! tenants that have the same addresses, and each line that it is said to answer.

use std::time::Instant;

use crate::lab::{Lab, port};
use crate::vm::{Attach, Qemu, SOON, Vm, VmSpec};
use crate::{beside_another, can_make_network, progress, skip, wait_for};

const PAGE: &str = include_str!("../../docs/tenants.md");
/// The ports there with the number of the guest at each, from which its addresses follow.
const GUESTS: [(&str, u8); 4] = [("red1", 1), ("red2", 2), ("blue1", 1), ("blue2", 2)];

/// A command of the page: the guest that it is typed in, or none for the host, and what it answers.
struct Typed {
    guest: Option<&'static str>,
    command: &'static str,
    answers: Vec<&'static str>,
}

/// All commands, in their order.
fn transcript() -> Vec<Typed> {
    let mut all: Vec<Typed> = Vec::new();
    for block in PAGE.split("```console\n").skip(1) {
        let (block, _) = block.split_once("```").expect("the end of a block");
        for line in block.lines() {
            let (prompt, command) = line.split_once("# ").unwrap_or(("no prompt", line));
            let guest = GUESTS.iter().find(|(name, _)| *name == prompt).map(|(name, _)| *name);
            if guest.is_some() || prompt.is_empty() {
                all.push(Typed { guest, command, answers: Vec::new() });
            } else {
                all.last_mut().expect("a command before an answer").answers.push(line);
            }
        }
    }
    all
}

/// Whether a line that was said has these words in this order.
fn says(said: &str, words: &str) -> bool {
    said.lines().any(|line| {
        let mut line = line.split_whitespace();
        words.split_whitespace().all(|word| line.any(|other| other == word))
    })
}

/// The switch, and the guests as they come.
struct Site {
    lab: Lab,
    qemu: Qemu,
    guests: Vec<(&'static str, Vm)>,
}

impl Site {
    fn start() -> Option<Site> {
        let qemu = match can_make_network().and(Qemu::system()) {
            Ok(qemu) => qemu,
            Err(missing) => {
                skip(&missing);
                return None;
            }
        };
        let mut lab = Lab::new("tenants");
        let control = format!("--control={}", lab.path("control.sock").display());
        // What is there beside the tenants, so that the daemon is seen to have started.
        let other = port("other", &lab.path("other.sock"), "");
        lab.start_daemon(&[&other[..], &[control]].concat());
        Some(Site { lab, qemu, guests: Vec::new() })
    }

    /// Guests start as soon as their ports are there.
    fn boot(&mut self) {
        let start = Instant::now();
        for (name, number) in GUESTS {
            let socket = self.lab.path(&format!("{name}.sock"));
            let attach = Attach::Connects;
            let spec = VmSpec { name, number, socket, attach, pairs: 1, device: "" };
            self.guests.push((name, Vm::start(&self.lab, &self.qemu, &spec)));
        }
        self.guests.iter_mut().for_each(|(_, vm)| vm.wait_ready());
        progress(&format!("four guests up after {:.1} s", start.elapsed().as_secs_f32()));
    }

    /// What a command says, and whether it succeeded.
    fn run(&mut self, Typed { guest, command, .. }: &Typed) -> (bool, String) {
        if let Some(guest) = guest {
            let vm = self.guests.iter_mut().find(|(name, _)| name == guest);
            let (status, said) = vm.expect("a guest").1.run(command, SOON);
            return (status == 0, said);
        }
        let mut words = command.split_whitespace();
        assert_eq!(words.next(), Some("vioswitchctl"), "{command}");
        let output = self
            .lab
            .in_netns(env!("CARGO_BIN_EXE_vioswitchctl"))
            .env("VIOSWITCH_CONTROL", self.lab.path("control.sock"))
            .args(words)
            .output()
            .expect("vioswitchctl");
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).expect("UTF-8"))
    }

    /// Types it until it says what the page has it say; what has no answer there must succeed.
    fn typed(&mut self, line: &Typed) {
        let last = std::cell::RefCell::new(String::new());
        let what =
            format!("{}# {} to say {:?}", line.guest.unwrap_or(""), line.command, line.answers);
        let report = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_for(&what, SOON, || {
                let (done, said) = self.run(line);
                // "…" stands for lines that the page leaves out.
                let mut wanted = line.answers.iter().filter(|words| **words != "…");
                let all = wanted.all(|words| says(&said, words));
                last.replace(said);
                (all && (done || !line.answers.is_empty())).then_some(())
            });
        }));
        assert!(report.is_ok(), "{what}, and not:\n{}", last.take());
    }
}

#[test]
#[ignore = "full"]
fn the_page_is_true() {
    let _beside = beside_another();
    let Some(mut site) = Site::start() else {
        return;
    };
    let all = transcript();
    assert!(all.len() > 20 && all.iter().any(|line| line.guest.is_some()), "{}", all.len());
    for line in &all {
        if line.guest.is_some() && site.guests.is_empty() {
            site.boot();
        }
        site.typed(line);
        progress(line.command);
    }
    site.guests.clear();
    site.lab.counters_at_rest().assert_balanced();
    site.lab.stop_daemon();
}
