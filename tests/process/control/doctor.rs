//! `vioswitchctl doctor`: faults that are made on a real switch, and on the host, are found by
//! their codes, each where it is, and nothing else is.

use std::collections::BTreeSet;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::process::{Child, Stdio};

use testkit::frontend::{Frontend, feat};
use testkit::host::{in_namespace, ip};
use testkit::huge_pages::HugePages;
use testkit::mem::RegionSpec;
use testkit::packet::{Ask, Kind, Packet, payload};
use testkit::sys;
use testkit::vm::Guest;
use testkit::{hostile, skip};

use super::*;

/// Codes with the port each is about; none for the switch and the host.
pub(super) type Codes = BTreeSet<(String, String)>;

/// What a doctor said.
fn read(control: &Path, output: &Output) -> Codes {
    let text = String::from_utf8_lossy(&output.stdout);
    let told: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{output:?}"));
    let findings = told["findings"].as_array().expect("findings");
    let word = |finding: &Value, key: &str| finding[key].as_str().unwrap_or("").to_owned();
    for finding in findings {
        assert!(!word(finding, "cause").is_empty() && !word(finding, "command").is_empty());
        remedies::check(control, &word(finding, "code"), &word(finding, "command"));
    }
    let failed = findings.iter().any(|finding| finding["level"] == "fail");
    assert_eq!(output.status.code(), Some(i32::from(failed)), "{text}");
    findings.iter().map(|finding| (word(finding, "port"), word(finding, "code"))).collect()
}

/// What the machine's other work does to a switch at rest is no fault of the test's.
const BUSY: &str = "worker-starved";

pub(super) fn doctor(lab: &Lab) -> Codes {
    let mut found = read(&lab.path, &lab.ctl(&["--json", "doctor"]));
    found.retain(|(_, code)| code != BUSY);
    found
}

pub(super) fn codes(expected: &[(&str, &str)]) -> Codes {
    expected.iter().map(|(port, code)| ((*port).to_owned(), (*code).to_owned())).collect()
}

/// A process that is stopped with the value.
pub(super) struct Process(Child);

impl Process {
    pub(super) fn start(command: &mut Command) -> Process {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Process(command.spawn().expect("start"))
    }

    /// One of this user and group that has a socket in its command line, as a front-end that is to
    /// connect.
    fn naming(socket: &Path, user: u32, group: u32) -> Process {
        let ids = [format!("--reuid={user}"), format!("--regid={group}")];
        let mut command = Command::new("setpriv");
        Process::waiting(command.args(ids).arg("--clear-groups"), "", socket)
    }

    /// One that does this as `command` has it, and then waits, with a socket in its command line.
    fn waiting(command: &mut Command, first: &str, socket: &Path) -> Process {
        let word = format!("socket,path={}", socket.display());
        let process =
            Process::start(command.args(["sh", "-c", &format!("{first} sleep 60 & wait"), &word]));
        // It has begun to wait when it has a child.
        let children = format!("/proc/{0}/task/{0}/children", process.0.id());
        let waits = || std::fs::read_to_string(&children).is_ok_and(|all| !all.is_empty());
        assert!(wait_for(LOST, waits), "it does not start");
        process
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends frames from ever new addresses, more than a port may have. They are learned, and go no
/// further, as a bridge does not forward there.
fn be_many(from: &mut Vm) {
    let to = [1, 0x80, 0xc2, 0, 0, 0];
    for n in 0u16..4_200 {
        let [high, low] = n.to_be_bytes();
        let mut frame = [&to[..], &[2, 9, 9, 9, high, low], &[0x88, 0xb5]].concat();
        frame.resize(60, 0);
        from.tx[0].send_waiting(&frame, LOST);
    }
    from.tx[0].drain(LOST);
}

/// Sends packets whose checksums are left to the receiver, as many as are no accident.
fn leave_sums(from: &mut Vm, to: &mut Vm) {
    let kind = Kind::plain().next().expect("a kind");
    let packet = Packet::new(kind, from.mac(), to.mac(), &payload(1, 100));
    let (header, frame) = packet.sent(Ask::Sum);
    from.tx[0].header = header.bytes(from.cfg.header_len());
    for _ in 0..12 {
        (0..100).for_each(|_| from.tx[0].send_waiting(&frame, LOST));
        assert_eq!(to.rx[0].take(100, LOST).len(), 100);
    }
}

fn breaks_its_ring(vm: &mut Vm) {
    let ring = &vm.tx[0].ring;
    hostile::raw_avail_idx(ring, ring.avail_idx().wrapping_add(ring.size + 1));
    ring.kick.write(1);
}

/// The first guest sends what the third may not have and the fifth cannot; the second has too many
/// addresses, the fourth breaks its ring.
fn traffic(vms: &mut [Vm]) {
    let [zero, one, two, three, four] = vms else { unreachable!() };
    super::commands::talk(two, zero, 1);
    be_many(one);
    let long = [&two.mac()[..], &zero.mac(), &[8; 1200]].concat();
    zero.tx[0].send_waiting(&long, LOST);
    super::commands::talk(four, zero, 1);
    leave_sums(zero, four);
    breaks_its_ring(three);
}

/// A front-end that shows a driver's features and no memory.
fn without_memory(socket: &Path) -> (Guest, Frontend) {
    let guest = Guest::new(VmConfig::new(9));
    let mut fe = Frontend::connect(socket, LOST).expect("connect");
    guest.negotiate(&mut fe).expect("negotiate");
    fe.set_features(guest.cfg.features | feat::PROTOCOL_FEATURES).expect("features");
    fe.get_features().expect("an answer");
    (guest, fe)
}

/// Gives a guest more huge pages than there are, none of which it has touched. False where the
/// kernel has none at all.
fn want_huge_pages(vm: &mut Vm) -> bool {
    let pages = HugePages::free() + 64;
    let Ok(memory) = sys::huge_memfd(pages << 21) else { return false };
    let region = RegionSpec { gpa: 16 << 30, len: pages << 21, uva: 1 << 46, offset: 0 };
    vm.fe.add_mem_reg(&region, memory.as_raw_fd()).expect("a region of huge pages");
    vm.settle();
    true
}

/// What is found of guests; some of it where there are disks and huge pages alone.
fn of_guests(has_disk: bool, has_huge: bool) -> Codes {
    let mut expected = codes(&[
        // A process names the socket that another one is attached to.
        ("p0", "socket-shared"),
        // 4,200 source addresses.
        ("p1", "fdb-full"),
        // A frame of 1,214 bytes for a port of `mtu=1000`.
        ("p2", "frames-too-long"),
        // An available index beyond the ring.
        ("p3", "ring-broken"),
        // 1,200 packets without a checksum for a guest that wants one.
        ("p4", "offloads-in-software"),
        // A front-end negotiates and stops there.
        ("p5", "ring-never-started"),
        // A front-end sends no memory.
        ("p6", "memory-not-shared"),
        // A region of memory is in a file on a disk.
        ("p7", "memory-on-disk"),
        // The socket is removed.
        ("p8", "socket-missing"),
        // Mode 0600, and a process of `nobody` in its group names it.
        ("p9", "socket-permission"),
        // A region of more huge pages than are free.
        ("p10", "huge-pages-short"),
        // Mode 0700, and a process of `nobody` in the socket's group names it.
        ("x", "socket-directory"),
    ]);
    if !has_huge {
        expected.remove(&("p10".to_owned(), "huge-pages-short".to_owned()));
    }
    if !has_disk {
        expected.remove(&("p7".to_owned(), "memory-on-disk".to_owned()));
    }
    expected
}

/// Runs as printed what mends faults of guests and changes the switch alone.
fn mend_guests(lab: &Lab) {
    let output = lab.ctl(&["--json", "doctor"]);
    let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let findings = told["findings"].as_array().expect("findings");
    for (port, code, values) in [
        ("p0", "socket-shared", ("NAME", "added")),
        ("p1", "fdb-full", ("NAME", "")),
        ("p2", "frames-too-long", ("NUMBER", "9000")),
    ] {
        let one = findings.iter().find(|one| one["port"] == port && one["code"] == code);
        let command = one.and_then(|one| one["command"].as_str()).expect("a command");
        remedies::mend(lab, command, &[values]);
    }
    assert_eq!(lab.json(&["port", "show", "p2"])["port"]["mtu"], 9000);
}

#[test]
fn faults_of_guests_are_found() {
    if !is_root() {
        return skip("other users' processes need root");
    }
    let keys = |n| match n {
        2 => ",mtu=1000",
        9 => ",socket-mode=0600",
        _ => "",
    };
    let ports: Vec<&str> = (0..11).map(keys).collect();
    let lab = Lab::with_ports(&ports, &[]);
    let socket = |n: usize| lab.d.socket(n);
    let mut vms: Vec<Vm> = (0..5u8)
        .map(|id| {
            let cfg = match id {
                0 => VmConfig::with_offloads(0, feat::CSUM, true),
                id => VmConfig::new(id),
            };
            Vm::connect(&socket(id.into()), cfg)
        })
        .collect();
    assert_eq!(doctor(&lab), Codes::new(), "{}", lab.done(&["doctor"]));

    traffic(&mut vms);
    let silent = Guest::new(VmConfig::new(8));
    let mut fe = Frontend::connect(&socket(5), LOST).expect("connect");
    silent.negotiate(&mut fe).expect("negotiate");
    let private = without_memory(&socket(6));
    let mut on_disk = Vm::connect(&socket(7), VmConfig::new(7));
    let disk = std::fs::File::create_new(lab.socket("disk")).expect("a file");
    disk.set_len(1 << 20).expect("a length");
    let has_disk = !sys::on_tmpfs(&disk);
    let hole = RegionSpec { gpa: 8 << 30, len: 1 << 20, uva: 1 << 45, offset: 0 };
    on_disk.fe.add_mem_reg(&hole, disk.as_raw_fd()).expect("a region that is left out");
    on_disk.settle();
    let mut sparse = Vm::connect(&socket(10), VmConfig::new(10));
    let has_huge = want_huge_pages(&mut sparse);
    std::fs::remove_file(socket(8)).expect("remove");
    let closed = lab.socket("closed");
    std::fs::create_dir(&closed).expect("a directory");
    let inside = closed.join("x.sock");
    lab.done(&["port", "add", "x", &format!("socket={}", inside.display()), "socket-mode=0666"]);
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).expect("mode");
    let processes = [
        Process::naming(&socket(9), 65534, 0),
        Process::naming(&inside, 65534, 0),
        Process::naming(&socket(0), 0, 0),
    ];

    let expected = of_guests(has_disk, has_huge);
    let mut found = Codes::new();
    // A process has its words a moment after it was started, and a ring is found broken later too.
    let all = wait_for(LOST, || {
        found = doctor(&lab);
        found == expected
    });
    assert!(all, "{found:?}\n{}", String::from_utf8_lossy(&lab.ctl(&["doctor"]).stdout));
    mend_guests(&lab);
    // Of one port only what is wrong with that.
    let output = read(&lab.path, &lab.ctl(&["--json", "doctor", "p3"]));
    assert!(output.contains(&("p3".to_owned(), "ring-broken".to_owned())), "{output:?}");
    assert!(output.iter().all(|(port, code)| port == "p3" || code == BUSY), "{output:?}");
    drop((processes, private, fe));
    let text = String::from_utf8(lab.ctl(&["doctor", "p4"]).stdout).expect("UTF-8");
    assert!(text.contains("WARN  offloads-in-software  p4: its receiver lacks"), "{text}");
}

/// Anybody may write a socket into a command line, and a container may have another one at the same
/// path: neither is a finding.
#[test]
fn a_command_line_alone_is_no_evidence() {
    if testkit::skips_without_mounts() {
        return;
    }
    let lab = Lab::with_ports(&["", ",socket-mode=0600"], &[]);
    let [attached, closed] = [lab.d.socket(0), lab.d.socket(1)];
    let vm = Vm::connect(&attached, VmConfig::new(0));
    let elsewhere = |first: &str| {
        let mut command = Command::new("unshare");
        Process::waiting(command.arg("--mount"), first, &attached)
    };
    let hidden =
        format!("mount -t tmpfs none {0} && : >{1} &&", lab.d.dir().display(), attached.display());
    let strangers = [
        Process::naming(&attached, 65534, 65534),
        Process::naming(&closed, 65534, 65534),
        elsewhere(&hidden),
    ];
    let output = lab.ctl(&["--json", "doctor"]);
    let mut found = read(&lab.path, &output);
    found.retain(|(_, code)| code != BUSY);
    assert_eq!(found, Codes::new());
    drop(strangers);

    // Of the group, and with the same socket: warned of, and no directory is to be opened to all.
    let others = [Process::naming(&closed, 65534, 0), elsewhere("")];
    let output = lab.ctl(&["--json", "doctor"]);
    let mut found = read(&lab.path, &output);
    found.retain(|(_, code)| code != BUSY);
    assert_eq!(found, codes(&[("p0", "socket-shared"), ("p1", "socket-permission")]));
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !told.contains("chmod"), "{told}");
    drop((others, vm));
    lab.d.stop();
}

/// Bytes of memory that the doctor may have of its own.
const MEMORY: u32 = 64 << 20;

/// The command line of a front-end that is root's: each word of it would cost many times its
/// length.
const LONG: usize = 16 << 20;

/// A command line of 16 MiB costs 64 MiB at most.
#[test]
fn a_long_command_line_costs_no_memory() {
    const HOSTILE: &str = "VIOSWITCH_TEST_HOSTILE";
    if let Some(socket) = std::env::var_os(HOSTILE) {
        let front_end = without_memory(Path::new(&socket));
        sys::lengthen_command_line(LONG);
        // It ends with the test that started it.
        let _ = std::io::stdin().read(&mut [0]);
        drop(front_end);
        return;
    }
    if !is_root() {
        return skip("other users' processes need root");
    }
    let lab = Lab::new(1, &[]);
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    let test = "control::doctor::a_long_command_line_costs_no_memory";
    command.args(["--exact", test, "--nocapture"]).env(HOSTILE, lab.d.socket(0));
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let hostile = Process(command.spawn().expect("start"));
    let line = format!("/proc/{}/cmdline", hostile.0.id());
    let is_long = || {
        let mut begin = [0; 4];
        let read = std::fs::File::open(&line).and_then(|mut file| file.read_exact(&mut begin));
        read.is_ok() && begin == *b"a\0a\0"
    };
    assert!(wait_for(LOST, is_long), "its command line is short");
    let mut doctor = Command::new("prlimit");
    doctor.arg(format!("--data={MEMORY}")).arg(env!("CARGO_BIN_EXE_vioswitchctl"));
    let output = doctor.arg("--control").arg(&lab.path).args(["--json", "doctor"]).output();
    let mut found = read(&lab.path, &output.expect("prlimit"));
    found.retain(|(_, code)| code != BUSY);
    assert_eq!(found, codes(&[("p0", "memory-not-shared")]));
    drop(hostile);
    lab.d.stop();
}

/// A program of this name in a directory, which is a script.
pub(super) fn script(directory: &Path, name: &str, text: &str) {
    let path = directory.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{text}")).expect("write");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("mode");
}

/// No switch answers: it is told how its unit ended, and what it said.
#[test]
fn the_end_of_a_switch_is_told() {
    let dir = Dir::new();
    let said = "LoadState=loaded\nActiveState=failed\nSubState=failed\nResult=exit-code\n\
                ExecMainStatus=2\n";
    script(dir.path(), "systemctl", &format!("printf '{said}'\n"));
    script(dir.path(), "journalctl", "echo 'vioswitch.toml:3: unknown key'\n");
    let path = std::env::var("PATH").expect("PATH");
    let ask = |path: &str, form: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vioswitchctl"));
        command.arg("--control").arg(dir.path().join("gone")).args(form).arg("doctor");
        command.env("PATH", path).output().expect("vioswitchctl")
    };
    let with = format!("{}:{path}", dir.path().display());
    let output = ask(&with, &["--json"]);
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let value: Value = serde_json::from_str(&told).unwrap_or_else(|_| panic!("{output:?}"));
    assert_eq!(
        (output.status.code(), &value["findings"][0]["code"]),
        (Some(3), &json!("switch-absent"))
    );
    for words in ["vioswitchd.service is failed", "exit-code, status 2", "3: unknown key"] {
        assert!(told.contains(words), "{told}");
    }
    // Without systemd there is less to say.
    let empty = Dir::new();
    let output = ask(&empty.path().display().to_string(), &[]);
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.starts_with("FAIL  switch-absent  no switch at "), "{output:?}");
    assert!(told.lines().count() == 2 && !told.contains("OK "), "{told}");
}

/// A user who is to be a front-end, before there is one.
#[test]
fn a_user_is_told_whether_it_may_connect() {
    let lab = Lab::with_ports(&["", ",socket-mode=0666"], &[]);
    let output = lab.ctl(&["--json", "doctor", "--user", "nobody"]);
    let mut found = read(&lab.path, &output);
    found.retain(|(_, code)| code != BUSY);
    assert_eq!(found, codes(&[("p0", "socket-permission")]));
    let (status, line) = lab.fails(&["doctor", "--user", "no-such-user"]);
    assert!(status == 2 && line.contains("user 'no-such-user'"), "{line}");
    let (status, line) = lab.fails(&["doctor", "p9"]);
    assert!(status == 1 && line.contains("there is no port 'p9'"), "{line}");
    lab.d.stop();
}

/// The doctor with a view of the namespace's own sysfs.
fn doctor_inside(lab: &Lab) -> Codes {
    let mount = "mount -t sysfs none /sys && exec \"$0\" \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", mount, env!("CARGO_BIN_EXE_vioswitchctl"), "--control"]);
    let output = command.arg(&lab.path).args(["--json", "doctor"]).output().expect("unshare");
    let mut found = read(&lab.path, &output);
    found.retain(|(_, code)| code != BUSY);
    found
}

pub(super) fn shell(script: &str) {
    let status = Command::new("unshare").args(["--mount", "sh", "-c", script]).status();
    assert!(status.expect("unshare").success(), "{script}");
}

#[test]
fn faults_of_uplinks_are_found() {
    if testkit::skips_without_mounts() {
        return;
    }
    in_namespace(|| {
        for n in 0..3 {
            ip(&format!("tuntap add t{n} mode tap multi_queue vnet_hdr"));
            ip(&format!("link set t{n} up"));
        }
        ip("link add br0 type bridge");
        ip("link set br0 up");
        ip("link add v0 type veth peer name v1");
        ip("link set v0 master br0 up");
        ip("link set t0 master br0");
        ip("address add 10.9.1.1/24 dev t1");
        ip("address add 10.9.2.1/24 dev t2");
        let taps: Vec<String> = (0..3).map(|n| format!("--tap=up{n},ifname=t{n}")).collect();
        let taps: Vec<&str> = taps.iter().map(String::as_str).collect();
        let lab = Lab::new(0, &taps);
        assert_eq!(doctor_inside(&lab), Codes::new(), "{}", lab.done(&["doctor"]));

        ip("link set v0 mtu 1400");
        ip("link set t0 down");
        ip("link set br0 down");
        shell("tc qdisc replace dev t0 root pfifo");
        let rps = "mount -t sysfs none /sys && echo 1 >/sys/class/net/v0/queues/rx-0/rps_cpus";
        shell(rps);
        shell("echo 1 >/proc/sys/net/bridge/bridge-nf-call-iptables");
        let filter = Command::new("iptables").args(["-P", "FORWARD", "DROP"]).status();
        let filtered = filter.is_ok_and(|status| status.success());
        ip("address flush dev t1");
        ip("link delete t2");
        let mut expected = codes(&[
            // It is set down.
            ("up0", "tap-down"),
            // Its bridge is set down.
            ("up0", "bridge-down"),
            // An interface beside it in the bridge gets an MTU of 1400.
            ("up0", "mtu-differs"),
            // It gets `pfifo`.
            ("up0", "tap-queues"),
            // It has `pfifo`, and RPS is switched on beside it.
            ("up0", "tap-lock"),
            // iptables drops what is forwarded, and `br_netfilter` shows it the frames.
            ("up0", "forward-drop"),
            // Its address is taken away.
            ("up1", "tap-alone"),
            // It is deleted.
            ("up2", "tap-gone"),
        ]);
        if !filtered {
            skip("iptables is missing, or the kernel's part of it");
            expected.remove(&("up0".to_owned(), "forward-drop".to_owned()));
        }
        let mut found = Codes::new();
        let all = wait_for(LOST, || {
            found = doctor_inside(&lab);
            found == expected
        });
        assert!(all, "{found:?}\n{}", String::from_utf8_lossy(&lab.ctl(&["doctor"]).stdout));
        if filtered {
            shell("iptables -I FORWARD -i br0 -o br0 -j ACCEPT");
            expected.remove(&("up0".to_owned(), "forward-drop".to_owned()));
            assert_eq!(doctor_inside(&lab), expected, "what mends it");
        }
        drop(lab);
    });
}

/// Passes calls on to a switch, whose version is another one in its answers.
fn of_another_version(lab: &Lab) -> PathBuf {
    let path = lab.socket("older");
    let (listener, switch) = (UnixListener::bind(&path).expect("bind"), lab.path.clone());
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let mut server = UnixStream::connect(&switch).expect("connect");
            let mut calls = client.try_clone().expect("clone");
            let answers = BufReader::new(server.try_clone().expect("clone"));
            std::thread::spawn(move || std::io::copy(&mut calls, &mut server));
            let mut client = client;
            for answer in answers.split(0).map_while(Result::ok) {
                let text = String::from_utf8(answer).expect("UTF-8");
                let own = format!("\"version\":\"{}\"", env!("CARGO_PKG_VERSION"));
                let text = text.replace(&own, "\"version\":\"0.0.0\"");
                if client.write_all(&[text.as_bytes(), b"\0"].concat()).is_err() {
                    break;
                }
            }
        }
    });
    path
}

/// A port's socket is to be in a directory that is not there; the file gets another port, then an
/// unknown key; three loops run on the CPU of a worker that polls; answers have another version.
#[test]
fn faults_of_the_switch_are_found() {
    let dir = Dir::new();
    let file = dir.path().join("switch.toml");
    let port = |name: &str| {
        let socket = dir.path().join(format!("{name}.sock"));
        format!("[[port]]\nname = \"{name}\"\nsocket = \"{}\"\n", socket.display())
    };
    let write = |text: &str| std::fs::write(&file, text).expect("write");
    write(&port("vm1"));
    let config = format!("--config={}", file.display());
    let unserved = ("bad", "socket-missing");
    let missing = "--port=bad,socket=/no/such/directory/x.sock";
    let cpu = sys::cpus()[0].to_string();
    let cpus = format!("--cpus={cpu}");
    let lab = Lab::new(0, &[&config, missing, "--poll", "--workers=1", &cpus]);
    let spinners: Vec<Process> = (0..3)
        .map(|_| {
            let spin = "while :; do :; done";
            Process::start(Command::new("taskset").args(["-c", &cpu, "sh", "-c", spin]))
        })
        .collect();
    write(&(port("vm1") + &port("vm2")));
    let starved = ("", BUSY);
    let mut expected = codes(&[("bad", "degraded"), ("", "config-differs"), starved, unserved]);
    let mut found = Codes::new();
    let all = wait_for(LOST, || {
        found = read(&lab.path, &lab.ctl(&["--json", "doctor"]));
        found == expected
    });
    assert!(all, "{found:?}");
    drop(spinners);

    write("nonsense = 1\n");
    let older = of_another_version(&lab);
    let mut command = Command::new(env!("CARGO_BIN_EXE_vioswitchctl"));
    command.arg("--control").arg(&older).args(["--json", "doctor"]);
    let found = read(older.as_ref(), &command.output().expect("vioswitchctl"));
    expected = codes(&[("bad", "degraded"), ("", "config-bad"), ("", "version-differs"), unserved]);
    assert!(found.is_superset(&expected), "{found:?}");
    assert!(found.difference(&expected).all(|(_, code)| code == starved.1), "{found:?}");
}

/// An upgrade replaces the program under the switch that runs.
#[test]
fn a_program_that_was_replaced_is_found() {
    let dir = Dir::new();
    let [copy, control] = ["vioswitchd", "control"].map(|name| dir.path().join(name));
    copy_program(env!("CARGO_BIN_EXE_vioswitchd"), &copy);
    let switch = Process::start(Command::new(&copy).arg("--control").arg(&control));
    assert!(wait_for(LOST, || control.exists()), "no control socket");
    let ask = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vioswitchctl"));
        command.arg("--control").arg(&control).args(["--json", "doctor"]);
        let mut found = read(&control, &command.output().expect("vioswitchctl"));
        found.retain(|(_, code)| code != BUSY);
        found
    };
    assert_eq!(ask(), Codes::new());
    std::fs::remove_file(&copy).expect("remove");
    assert_eq!(ask(), codes(&[("", "program-replaced")]));
    drop(switch);
}
