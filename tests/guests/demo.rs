//! `scripts/demo --keep`: two guests to play with, a console each, and a clean end. Nothing is left
//! after SIGINT and SIGTERM. `scripts/demo --rootless`: root runs the demo as an ordinary user.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::lab::Lab;
use crate::vm::{BOOT_LIMIT, Qemu, SOON};
use crate::{alone, can_make_network, need_program, progress, skip, wait_for};

/// It may have to compile the programs before.
const START_LIMIT: Duration = Duration::from_secs(900);

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(name)
}

/// The demo while it waits for its end.
struct Demo {
    child: Child,
    log: PathBuf,
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Demo {
    fn start(log: PathBuf) -> Demo {
        let file = File::create(&log).expect("a log");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(script("demo")).arg("--keep");
        command.stdin(Stdio::null()).stdout(file.try_clone().expect("clone")).stderr(file);
        let mut demo = Demo { child: command.spawn().expect("start"), log };
        wait_for("the demo to say how to play", START_LIMIT + BOOT_LIMIT, || {
            let ended = demo.child.try_wait().expect("wait");
            assert!(ended.is_none(), "the demo ended: {}", demo.said());
            demo.said().contains("ping 10.99.0.1\n").then_some(())
        });
        demo
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The words of the first line that has this one, from that on.
    fn words(&self, wanted: &str) -> Vec<String> {
        let said = self.said();
        let line = said.lines().find(|line| line.contains(wanted));
        let line = line.unwrap_or_else(|| panic!("it does not say {wanted}: {said}"));
        let from = line.find(wanted).expect("the word");
        line[from..].split_whitespace().map(str::to_owned).collect()
    }

    /// What a line that it prints does, with more words behind it.
    fn run(&self, words: &[String], more: &[&str]) -> String {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(more).stdin(Stdio::null());
        let output = command.output().expect("run");
        assert!(output.status.success(), "{words:?} {more:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// What a guest's console shows of a line that is typed there.
    fn typed(&self, guest: &str, line: &str, answer: &str) {
        let console = script("lib/console").display().to_string();
        let words: Vec<String> = self.said().lines().map(str::trim).map(str::to_owned).collect();
        let ours = |one: &&String| one.starts_with(&console) && one.contains(guest);
        let words = words.iter().find(ours).expect("a line for the console");
        let mut words = words.split_whitespace();
        let mut command = Command::new(words.next().expect("a program"));
        let shown = self.log.with_extension("console");
        command.args(words).stdin(Stdio::piped()).stdout(File::create(&shown).expect("a file"));
        let mut console = command.spawn().expect("start");
        let mut keys = console.stdin.take().expect("a pipe");
        keys.write_all(line.as_bytes()).expect("type");
        let said = || fs::read(&shown).map(|text| String::from_utf8_lossy(&text).into_owned());
        wait_for(answer, SOON, || said().is_ok_and(|said| said.contains(answer)).then_some(()));
        // Ctrl-], and what is typed behind it stays here.
        keys.write_all(b"\x1dpoweroff -f\n").expect("type");
        let status = wait_for("the console's end", SOON, || console.try_wait().expect("wait"));
        assert!(status.success());
    }
}

/// How many processes have the directory in their command line.
fn processes_with(directory: &Path) -> usize {
    let directory = directory.display().to_string();
    let all = fs::read_dir("/proc").expect("/proc").flatten();
    let lines = all.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).contains(&directory)).count()
}

#[test]
#[ignore = "full"]
fn guests_are_left_to_play_with() {
    let _alone = alone();
    if let Err(missing) = can_make_network().and(Qemu::system().map(drop)) {
        return skip(&missing);
    }
    let lab = Lab::without_network("demo-keep");
    for (n, end) in [Signal::INT, Signal::TERM].into_iter().enumerate() {
        let mut demo = Demo::start(lab.path(&format!("demo-{n}")));
        let said = demo.said();
        let ctl = said.split("alias ctl='").nth(1).and_then(|rest| rest.split('\'').next());
        let ctl: Vec<String> =
            ctl.expect("an alias").split_whitespace().map(str::to_owned).collect();
        let control = PathBuf::from(ctl.last().expect("a socket"));
        if end == Signal::INT {
            demo.typed("vm1.tty", "ping -c 1 10.99.0.2\n", " 0% packet loss");
            demo.typed("vm2.tty", "hostname; echo $((6 * 7))\n", "\n42");
            demo.run(&ctl, &["why", "vm1", "vm2"]);
            demo.run(&ctl, &["doctor"]);
            demo.run(&demo.words("nsenter "), &["-c", "1"]);
        }
        let kill = demo.words("kill ");
        assert_eq!(kill[1], demo.child.id().to_string(), "its own number");
        kill_process(Pid::from_child(&demo.child), end).expect("kill");
        let status = wait_for("its end", SOON, || demo.child.try_wait().expect("wait"));
        assert!(status.success(), "{end:?}: {status} {}", demo.said());
        assert!(demo.said().ends_with("\nended\n"), "{}", demo.said());
        let directory = control.parent().expect("a directory");
        assert!(!directory.exists(), "{} is left behind", directory.display());
        wait_for("all processes to end", SOON, || (processes_with(directory) == 0).then_some(()));
    }
    progress("switch and guests are played with, and gone after SIGINT and SIGTERM");
}

/// The user may not enter a directory of root's.
#[test]
#[ignore = "full"]
fn root_runs_the_rootless_demo_as_nobody() {
    let _alone = alone();
    let programs = ["passt", "dnsmasq", "nft", "curl"];
    let able = can_make_network();
    let able = programs.into_iter().fold(able, |able, one| able.and_then(|()| need_program(one)));
    if let Err(missing) = able.and(Qemu::system().map(drop)) {
        return skip(&missing);
    }
    if !rustix::process::getuid().is_root() {
        return skip("not root");
    }
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(script("demo")).arg("--rootless");
    let output = command.env_remove("SUDO_USER").stdin(Stdio::null()).output().expect("start");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("    as user nobody, files in "), "{said}");
    assert!(said.contains("vm1 to the host through pasta, TCP"), "{said}");
    progress("root runs the network and the guests as nobody");
}
