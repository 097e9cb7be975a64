//! `vioswitchctl attach` and `run` start real front-ends: one prints their arguments, the other
//! starts them itself; `vioswitchctl doctor` finds what is wrong with how one was started.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::lab::{Lab, port, tap};
use crate::service::{self, Service};
use crate::testpmd::{available, socket};
use crate::vm::{BOOT_LIMIT, Qemu, SOON};
use crate::{beside_another, can_make_network, progress, skip, wait_for};

/// Memory of a guest that boots, and of one that does not.
const BOOTS: &str = "192M";
const STANDS: &str = "64M";

/// A switch with a control socket in a network of its own.
struct Bench {
    lab: Lab,
    control: PathBuf,
}

/// A process in a group of its own, as a shell gives it; all of it ends with the value.
struct Machine(Child);

impl Drop for Machine {
    fn drop(&mut self) {
        // Not yet waited for, so the number is still its own.
        if self.0.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

impl Machine {
    fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Its exit status when it has ended.
    fn ended(&mut self) -> Option<i32> {
        let ended = wait_for("its end", SOON, || self.0.try_wait().expect("wait"));
        ended.code()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("kill");
    }

    /// The number of a child that QEMU is.
    fn child(&self) -> u32 {
        let path = format!("/proc/{0}/task/{0}/children", self.pid());
        wait_for("its child", SOON, || {
            let children = std::fs::read_to_string(&path).ok()?;
            children.split_whitespace().next()?.parse().ok()
        })
    }
}

/// Waits until QEMU catches SIGTERM and its like: before, while it sets up, they end it.
fn wait_catching(pid: u32) {
    const TERM: u64 = 1 << (15 - 1);
    wait_for("QEMU to catch signals", SOON, || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?;
        let mask = u64::from_str_radix(mask.trim(), 16).expect("a mask");
        (mask & TERM != 0).then_some(())
    });
}

/// The letter of a process's state.
fn state(pid: u32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let rest = stat.rsplit(')').next().unwrap_or_default();
    rest.split_whitespace().next().unwrap_or_default().to_owned()
}

impl Bench {
    fn new(name: &str, ports: &[[String; 2]], with_tap: bool) -> Bench {
        let mut lab = if with_tap { Lab::new(name) } else { Lab::without_network(name) };
        let control = lab.path("control.sock");
        let mut args = vec!["--control".to_owned(), control.display().to_string()];
        args.extend(ports.iter().flatten().cloned());
        if with_tap {
            args.extend(tap());
        }
        lab.start_daemon(&args);
        if with_tap {
            lab.configure_tap();
        }
        wait_for("the control socket", SOON, || control.exists().then_some(()));
        Bench { lab, control }
    }

    fn client(&self) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", env!("CARGO_BIN_EXE_vioswitchctl"), "--control"]);
        command.arg(&self.control).stdin(Stdio::null());
        command
    }

    fn try_ctl(&self, args: &[&str]) -> Output {
        self.client().args(args).output().expect("vioswitchctl")
    }

    fn ctl(&self, args: &[&str]) -> String {
        let output = self.try_ctl(args);
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The words that `attach` prints.
    fn words(&self, args: &[&str]) -> Vec<String> {
        let text = self.ctl(&[&["attach"], args].concat());
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn wait(&self, name: &str, state: &str) {
        wait_for("the port", SOON, || (!self.is_gone(name)).then_some(()));
        self.ctl(&["port", "wait", name, "--for", state, "--timeout=90s"]);
    }

    /// The codes of what is wrong with a port.
    fn codes(&self, name: &str) -> Vec<String> {
        let output = self.try_ctl(&["--json", "doctor", name]);
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let findings = told["findings"].as_array().expect("findings").iter();
        let own = findings.filter(|finding| finding["port"] == name);
        own.map(|finding| finding["code"].as_str().expect("a code").to_owned()).collect()
    }

    /// A guest that booted answers the host.
    fn ping(&self, address: &str) {
        wait_for("an answer", BOOT_LIMIT, || {
            let ping = ["-c", "1", "-W", "1", address];
            let answer = self.lab.in_netns("ping").args(ping).output().expect("ping");
            answer.status.success().then_some(())
        });
    }

    fn is_gone(&self, name: &str) -> bool {
        !self.ctl(&["port", "list", "--names"]).lines().any(|line| line == name)
    }
}

/// A machine of nothing but what is put on its command line.
fn bare(qemu: &Qemu) -> Vec<String> {
    let words = ["-nodefaults", "-no-user-config", "-display", "none", "-accel"];
    let mut words: Vec<String> = words.map(str::to_owned).into();
    words.push(qemu.accel().to_owned());
    words
}

fn start(mut command: Command) -> Machine {
    Machine(command.process_group(0).spawn().expect("start"))
}

/// A guest boots with what `attach` prints and answers; a machine that listens is connected to.
fn attached(name: &str, qemu: Result<Qemu, String>) {
    let _beside = beside_another();
    let qemu = match can_make_network().and(qemu) {
        Ok(qemu) => qemu,
        Err(missing) => return skip(&missing),
    };
    let places = Lab::without_network(&format!("{name}-paths"));
    let paths = ["vm1", "vm2"].map(|port| socket(&places, port));
    let ports = [
        port("vm1", &paths[0], ",queues=2,mac=52:54:00:99:00:01,mtu=1500"),
        port("vm2", &paths[1], ",mode=client"),
    ];
    let bench = Bench::new(name, &ports, true);
    let version = qemu.version();
    let form = ["--qemu", "--qemu-version", version];
    let emulated: &[&str] = if qemu.accel() == "kvm" { &[] } else { &["--emulated"] };
    let print =
        |port: &str, mem: &str| bench.words(&[&[port, "--mem", mem][..], &form, emulated].concat());
    let mut command = qemu.command();
    command.args(bare(&qemu)).args(["-smp", "2"]).args(qemu.boot("10.99.0.1/24"));
    let _vm1 = start({
        command.args(print("vm1", BOOTS));
        command
    });
    let mut command = qemu.command();
    command.args(bare(&qemu)).arg("-S").args(print("vm2", STANDS));
    let _vm2 = start(command);
    bench.wait("vm2", "negotiating");
    bench.wait("vm1", "attached");
    bench.ping("10.99.0.1");
    let told = bench.ctl(&["--json", "port", "show", "vm1"]);
    let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!((&told["port"]["queues"], &told["port"]["mtu"]), (&2.into(), &1500.into()));
    assert_eq!(bench.codes("vm1"), Vec::<String>::new(), "attached as it was told");
    progress(&format!("QEMU {version} starts with what is printed for it, and its guest answers"));
}

/// A guest boots with it and answers.
#[test]
#[ignore = "full"]
fn attach_starts_qemu_7() {
    attached("attach-7", Qemu::system());
}

#[test]
fn attach_starts_qemu_10() {
    attached("attach-10", Qemu::backported());
}

#[test]
fn attach_starts_dpdk() {
    let _beside = beside_another();
    if let Err(missing) = available() {
        return skip(&missing);
    }
    let lab = Lab::without_network("attach-paths");
    let bench = Bench::new("attach-dpdk", &[port("vm1", &socket(&lab, "vm1"), ",queues=2")], false);
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "dpdk-testpmd", "--no-telemetry"]);
    // More than is free in huge pages.
    command.args(bench.words(&["vm1", "--dpdk", "--mem=256"]));
    command.args(["--", "-i", "--no-mlockall", "--total-num-mbufs=4096", "--rxq=2", "--txq=2"]);
    command.env("RUNTIME_DIRECTORY", lab.path("")).env("XDG_RUNTIME_DIR", lab.path(""));
    let _testpmd = start({
        // Its console is open and silent.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    });
    bench.wait("vm1", "attached");
}

/// The port is there as long as QEMU is; signals and the exit status are passed on.
fn ran(name: &str, qemu: Result<Qemu, String>) {
    let _beside = beside_another();
    let qemu = match can_make_network().and(qemu) {
        Ok(qemu) => qemu,
        Err(missing) => return skip(&missing),
    };
    let bench = Bench::new(name, &[], true);
    let run = |settings: &[&str], words: &[String]| {
        let mut command = bench.client();
        command.args(["run", "vm1"]).args(settings).arg("--").arg(qemu.program()).args(words);
        start(command)
    };
    let guest = [bare(&qemu), vec!["-m".to_owned(), BOOTS.to_owned()], qemu.boot("10.99.0.1/24")];
    let mut machine = run(&["mtu=1500"], &guest.concat());
    bench.wait("vm1", "attached");
    bench.ping("10.99.0.1");
    // Another one of the same name does not get in its way.
    let mut second = run(&[], &bare(&qemu));
    assert_eq!(second.ended(), Some(1));
    let both = [machine.pid(), machine.child()];
    machine.signal(Signal::TSTP);
    wait_for("both to stop", SOON, || both.iter().all(|pid| state(*pid) == "T").then_some(()));
    machine.signal(Signal::CONT);
    wait_for("both to go on", SOON, || both.iter().all(|pid| state(*pid) != "T").then_some(()));
    machine.signal(Signal::TERM);
    assert_eq!(machine.ended(), Some(0), "QEMU leaves in good order");
    assert!(bench.is_gone("vm1"), "a port is left behind");

    // Without a guest: what ends QEMU, and what is told of it.
    let still = [bare(&qemu), vec!["-S".to_owned(), "-m".to_owned(), STANDS.to_owned()]].concat();
    for (signal, status) in [(Signal::INT, 0), (Signal::HUP, 0), (Signal::KILL, 137)] {
        let mut machine = run(&["queues=2"], &still);
        bench.wait("vm1", "negotiating");
        wait_catching(machine.child());
        match signal {
            Signal::KILL => {
                let child = Pid::from_raw(machine.child() as i32).expect("a number");
                kill_process(child, signal).expect("kill");
            }
            signal => machine.signal(signal),
        }
        assert_eq!(machine.ended(), Some(status), "{signal:?}");
        assert!(bench.is_gone("vm1"), "{signal:?}: a port is left behind");
    }
    let mut machine = run(&[], &["-no-such-option".to_owned()]);
    assert_eq!(machine.ended(), Some(1));
    assert!(bench.is_gone("vm1"));
    // A port that was there is used as it is, and stays.
    bench.ctl(&["port", "add", "vm1", "queues=2"]);
    let mut machine = run(&["queues=2"], &still);
    bench.wait("vm1", "negotiating");
    wait_catching(machine.child());
    machine.signal(Signal::TERM);
    assert_eq!(machine.ended(), Some(0));
    assert!(!bench.is_gone("vm1"));
    let mut machine = run(&["queues=3"], &still);
    assert_eq!(machine.ended(), Some(1), "another port than is wanted");
    progress(&format!("QEMU {} runs on ports of its own", qemu.version()));
}

/// A guest boots on a port that comes and goes with it; signals stop it, let it go on and end it;
/// the exit status is QEMU's; a port that was there before stays.
#[test]
fn run_starts_qemu_7() {
    ran("run-7", Qemu::system());
}

#[test]
#[ignore = "full"]
fn run_starts_qemu_10() {
    ran("run-10", Qemu::backported());
}

/// Each QEMU is started with one mistake, and stands still: `doctor` finds it by its code.
#[test]
fn mistakes_in_a_command_line_are_found() {
    let _beside = beside_another();
    let qemu = match Qemu::system() {
        Ok(qemu) => qemu,
        Err(missing) => return skip(&missing),
    };
    let lab = Lab::without_network("doctor-paths");
    let paths = [0, 1, 2, 3].map(|n| lab.path(&format!("vm{n}.sock")));
    let names = ["vm0", "vm1", "vm2", "vm3"];
    let ports: Vec<_> =
        names.iter().zip(&paths).map(|(name, path)| port(name, path, ",queues=2")).collect();
    let bench = Bench::new("doctor-qemu", &ports, false);
    let shared = format!("-object memory-backend-memfd,id=mem,size={STANDS},share=on");
    let shared = format!("{shared} -machine memory-backend=mem");
    let cards = [
        ("vm0", "", ",reconnect=1", ",mq=on", "memory-not-shared"),
        ("vm1", &shared, "", ",mq=on", "no-reconnect"),
        ("vm2", &shared, ",reconnect=1", "", "queues-unused"),
        ("vm3", &shared, ",reconnect=1", ",mq=on,vectors=3", "vectors-few"),
    ];
    let machines: Vec<Machine> = cards
        .iter()
        .zip(&paths)
        .map(|((_, memory, chardev, device, _), path)| {
            let line = format!(
                "-S -m {STANDS} {memory} -chardev socket,id=c,path={}{chardev} -netdev \
                 vhost-user,id=n,chardev=c,queues=2 -device virtio-net-pci,netdev=n{device}",
                path.display()
            );
            let mut command = qemu.command();
            command.args(bare(&qemu)).args(line.split_whitespace());
            start(command)
        })
        .collect();
    for (name, _, _, _, code) in cards {
        bench.wait(name, "negotiating");
        let found = bench.codes(name);
        assert!(found.iter().any(|one| one == code), "{name}: {found:?}");
        // Nobody's driver has started yet.
        let others = found.iter().filter(|one| *one != code && *one != "ring-never-started");
        assert_eq!(others.count(), 0, "{name}: {found:?}");
    }
    drop(machines);
}

/// A unit that is not as it was installed, and one that systemd has not read yet.
#[test]
#[ignore = "full"]
fn drop_ins_of_the_unit_are_found() {
    let _beside = beside_another();
    if let Err(missing) = can_make_network().and(service::can_run()) {
        return skip(&missing);
    }
    let lab = Lab::new("doctor-unit");
    let control = "/run/vioswitch/control.sock";
    let service = Service::start(&lab, &["--control".to_owned(), control.to_owned()]);
    let ask = || {
        let mut client = service.inside(env!("CARGO_BIN_EXE_vioswitchctl"));
        let output = client.args(["--json", "doctor"]).output().expect("vioswitchctl");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let told = ask();
    assert!(told.contains("\"unit-overridden\"") && told.contains("test.conf"), "{told}");
    assert!(!told.contains("make-taps.conf"), "what the documentation wants is no fault: {told}");
    assert!(!told.contains("\"unit-stale\""), "{told}");
    service.change_unit();
    wait_for("the change to be found", SOON, || ask().contains("\"unit-stale\"").then_some(()));
    drop(service);
}
