//! A Linux guest under QEMU on one of the daemon's ports, which runs commands for the test.
//!
//! The guest is what `scripts/guest-image` built. Its console goes to a file; its second serial
//! port is QEMU's standard input and output and carries commands (protocol in
//! `scripts/lib/guest-init`), so a test can talk to the guest with no network up. QMP is for what
//! only the machine's owner can do: pull the cable, press reset.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::lab::Lab;
use super::{need_program, tail, wait_for};

/// From power-on to the first command. A guest under TCG takes 3 s on an idle machine and ten
/// times that on a busy one.
pub const BOOT_LIMIT: Duration = Duration::from_secs(90);

/// What a guest has, of which Linux leaves 77 MiB.
pub const MEMORY_KIB: u32 = 192 << 10;

/// What a guest may grow to by hot-plugged memory.
const MAX_MEMORY: &str = "1G";

/// `maxcpus` at least. QEMU's emulator omits memory barriers from the code of a machine that can
/// have one CPU only (before 8.1 all of them, see its commit c914d46d0a64). Then the driver may
/// miss that the switch asks for a kick while the switch misses its frame, and the ring stands
/// still.
const MAXCPUS: u16 = 2;

/// Waits until somebody listens on iperf3's port, 5201.
pub const LISTENING: &str = "until grep -q ':1451 .* 0A ' /proc/self/net/tcp6; do sleep 0.1; done";
/// For a command that does no waiting of its own.
pub const SOON: Duration = Duration::from_secs(30);

/// What a guest of a failed test tells about itself.
const CONFESSION: &str =
    "ip addr; ip neigh; ip -6 neigh; cat /proc/net/dev; cat /proc/net/igmp6; ethtool -S eth0";

/// A QEMU of this machine and how it runs.
#[derive(Clone, Debug)]
pub struct Qemu {
    program: PathBuf,
    major: u32,
    /// `7.2.22`
    version: String,
    accel: String,
    kernel: PathBuf,
    initrd: PathBuf,
}

impl Qemu {
    /// The distribution's QEMU, 7.2 on Debian 12; `Err` says what is missing.
    pub fn system() -> Result<Qemu, String> {
        need_program("qemu-system-x86_64")?;
        Qemu::new(PathBuf::from("qemu-system-x86_64"), "guest")
    }

    /// QEMU 10.0 and a kernel of its time, as `scripts/guest-image --qemu10` unpacked them.
    pub fn backported() -> Result<Qemu, String> {
        Qemu::new(target().join("qemu10/qemu-system-x86_64"), "guest10")
    }

    fn new(program: PathBuf, guest: &str) -> Result<Qemu, String> {
        let guest = target().join(guest);
        let (kernel, initrd) = (guest.join("vmlinux"), guest.join("initrd.gz"));
        if !kernel.is_file() || !initrd.is_file() {
            return Err("there is no guest: run scripts/guest-image --qemu10".into());
        }
        let version = Command::new(&program)
            .arg("--version")
            .output()
            .map_err(|e| format!("{} does not run: {e}", program.display()))?;
        let version = String::from_utf8_lossy(&version.stdout).into_owned();
        let version = version.split_once("version ").and_then(|(_, rest)| rest.split(' ').next());
        let version = version.map(|word| word.trim().to_owned()).unwrap_or_default();
        let major = version.split('.').next().and_then(|number| number.parse().ok());
        let major = major.ok_or_else(|| format!("{} tells no version", program.display()))?;
        let accel = accelerator()?;
        Ok(Qemu { program, major, version, accel, kernel, initrd })
    }

    /// The same with a guest that has these programs of this machine besides.
    pub fn with_programs(self, lab: &Lab, programs: &[&str]) -> Qemu {
        let (dir, initrd) = (lab.path("programs"), lab.path("initrd.gz"));
        let (root, result, old) = (dir.display(), initrd.display(), self.initrd.display());
        lab.sh(&format!(
            "set -e; mkdir -p {root}/bin
             for name in {}; do
                 program=$(command -v $name)
                 cp -L $program {root}/bin/
                 for file in $(ldd $program | grep -oE '/[^ ]+'); do
                     mkdir -p {root}${{file%/*}}
                     cp -L $file {root}$file
                 done
             done
             cd {root}; find . | cpio --quiet -o -H newc | gzip -1 | cat {old} - >{result}",
            programs.join(" ")
        ));
        Qemu { initrd, ..self }
    }

    /// The same with a guest that has its kernel's modules for NFS besides.
    pub fn with_nfs(self, lab: &Lab) -> Qemu {
        let (modules, initrd) = (self.kernel.with_file_name("nfs.gz"), lab.path("nfs.gz"));
        let (modules, result, old) = (modules.display(), initrd.display(), self.initrd.display());
        lab.sh(&format!("cat {old} {modules} >{result}"));
        Qemu { initrd, ..self }
    }

    /// A machine with this network card behind the socket at `path` and with no memory that it
    /// shares, which boots the guest; it dies with the test.
    pub fn unshared(&self, path: &Path, netdev: &str, nic: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(&self.program);
        command.args(["-nodefaults", "-no-user-config", "-display", "none", "-m", "256"]);
        command.args(["-accel", &self.accel, "-machine", "pc", "-append", "panic=-1 quiet"]);
        command.arg("-kernel").arg(&self.kernel).arg("-initrd").arg(&self.initrd);
        command.args(["-chardev", &format!("socket,id=port,path={}", path.display())]);
        command.args(["-netdev", &format!("vhost-user,id=net,chardev=port{netdev}")]);
        command.args(["-device", nic]).stdin(Stdio::null());
        command
    }

    /// Its program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The program, to be started with any arguments; it dies with the test.
    pub fn command(&self) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(&self.program);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    /// Its version, such as 7.2.22.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// `kvm` or `tcg`
    pub fn accel(&self) -> &str {
        &self.accel
    }

    /// What boots the guest with this address.
    pub fn boot(&self, ip4: &str) -> Vec<String> {
        let append = format!("panic=-1 quiet mitigations=off no_timer_check ip4={ip4}");
        let words = [
            ("-kernel", self.kernel.display().to_string()),
            ("-initrd", self.initrd.display().to_string()),
            ("-append", append),
            // It ends without the two that it expects.
            ("-serial", "null".to_owned()),
            ("-serial", "null".to_owned()),
            ("-cpu", if self.accel == "kvm" { "host" } else { "max" }.to_owned()),
        ];
        words.into_iter().flat_map(|(option, value)| [option.to_owned(), value]).collect()
    }

    /// QEMU before 8 crashes by itself under TCG when a vhost-user-net device uses MSI-X.
    fn without_msix(&self) -> bool {
        self.major < 8 && self.accel == "tcg"
    }
}

/// The project's target directory, where scripts put what they build. Cargo's own may be elsewhere.
fn target() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target")
}

/// The program of that name in the guests, for the host's side of a test.
pub fn datagrams() -> PathBuf {
    target().join("guest/datagrams")
}

/// `kvm` or `tcg`: the script that built the guest finds out by booting it.
fn accelerator() -> Result<String, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/guest-image");
    let out = Command::new(script)
        .arg("--accel")
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("scripts/guest-image does not run: {e}"))?;
    let answer = String::from_utf8_lossy(&out.stdout).trim().to_string();
    if out.status.success() && (answer == "kvm" || answer == "tcg") {
        Ok(answer)
    } else {
        Err(format!("scripts/guest-image --accel failed: {answer}"))
    }
}

/// How a machine and its port meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    /// vhost-user; the daemon listens.
    Connects,
    /// vhost-user; QEMU listens.
    Listens,
    /// `-netdev stream`, with memory of QEMU's own; the daemon listens.
    Stream,
}

/// One virtual machine's shape.
#[derive(Clone, Debug)]
pub struct VmSpec {
    /// Also the name of its files.
    pub name: &'static str,
    /// Last part of its addresses: MAC 52:54:00:99:00:xx, 10.99.0.xx/24, fd00:99::xx/64.
    pub number: u8,
    /// The port's socket.
    pub socket: PathBuf,
    /// Who listens there, and what is spoken.
    pub attach: Attach,
    /// Queue pairs, and virtual CPUs to use them.
    pub pairs: u16,
    /// Further options of the network device, each after a comma.
    pub device: &'static str,
}

impl VmSpec {
    /// The guest's IPv4 address.
    pub fn ip4(&self) -> String {
        format!("10.99.0.{}", self.number)
    }

    /// The guest's IPv6 address.
    pub fn ip6(&self) -> String {
        format!("fd00:99::{}", self.number)
    }

    /// The network card: a driver and its options.
    pub fn nic(&self, qemu: &Qemu) -> String {
        let (pairs, number, more) = (self.pairs, self.number, self.device);
        let vectors = if qemu.without_msix() { 0 } else { 2 * pairs + 2 };
        let multi = if pairs > 1 { ",mq=on" } else { "" };
        format!(
            "virtio-net-pci,id=nic,netdev=net,mac=52:54:00:99:00:{number:02x},romfile=,\
             vectors={vectors}{multi}{more}"
        )
    }

    fn arguments(&self, qemu: &Qemu, kib: u32, console: &Path, qmp: &Path) -> Vec<String> {
        let pairs = self.pairs;
        let server = match (self.attach, qemu.major) {
            (Attach::Listens, _) => ",server=on",
            (_, ..9) => ",reconnect=1",
            (_, _) => ",reconnect-ms=200",
        };
        let cpu = if qemu.accel == "kvm" { "host" } else { "max" };
        let socket = self.socket.display();
        let (share, chardev, netdev) = match self.attach {
            Attach::Stream => (
                "off",
                "null,id=port".to_owned(),
                format!("stream,id=net,server=off,addr.type=unix,addr.path={socket}"),
            ),
            _ => (
                "on",
                format!("socket,id=port,path={socket}{server}"),
                format!("vhost-user,id=net,chardev=port,queues={pairs}"),
            ),
        };
        // Memory that the guest uses cannot be taken from it again.
        let append = format!(
            "console=ttyS0 panic=-1 quiet mitigations=off no_timer_check \
             memhp_default_state=offline ip4={}/24 ip6={}/64",
            self.ip4(),
            self.ip6()
        );
        let options = [
            ("accel", qemu.accel.clone()),
            ("cpu", cpu.into()),
            ("smp", format!("{pairs},maxcpus={}", pairs.max(MAXCPUS))),
            ("m", format!("{kib}K,slots=4,maxmem={MAX_MEMORY}")),
            ("object", format!("memory-backend-memfd,id=mem,size={kib}K,share={share}")),
            ("machine", "pc,memory-backend=mem".into()),
            ("display", "none".into()),
            ("serial", format!("file:{}", console.display())),
            ("chardev", "stdio,id=commands,signal=off".into()),
            ("serial", "chardev:commands".into()),
            ("qmp", format!("unix:{},server=on,wait=off", qmp.display())),
            ("chardev", chardev),
            ("netdev", netdev),
            ("device", self.nic(qemu)),
            ("kernel", qemu.kernel.display().to_string()),
            ("initrd", qemu.initrd.display().to_string()),
            ("append", append),
        ];
        let switches = ["-nodefaults", "-no-user-config"].map(String::from);
        let pairs = options.into_iter().flat_map(|(name, value)| [format!("-{name}"), value]);
        switches.into_iter().chain(pairs).collect()
    }
}

/// A running guest.
pub struct Vm {
    /// Its shape.
    pub spec: VmSpec,
    child: Child,
    commands: ChildStdin,
    replies: Receiver<String>,
    console: PathBuf,
    qemu_log: PathBuf,
    qmp: PathBuf,
    next_id: u32,
    heard: Vec<String>,
}

impl Vm {
    /// Powers the machine on; [`Vm::wait_ready`] waits for it.
    pub fn start(lab: &Lab, qemu: &Qemu, spec: &VmSpec) -> Vm {
        Vm::launch(lab, qemu, spec, MEMORY_KIB, &[])
    }

    /// The same with other memory than most guests have.
    pub fn start_with(kib: u32, lab: &Lab, qemu: &Qemu, spec: &VmSpec) -> Vm {
        Vm::launch(lab, qemu, spec, kib, &[])
    }

    /// The same with further options of QEMU's; of one that is given twice the last counts.
    pub fn start_with_options(lab: &Lab, qemu: &Qemu, spec: &VmSpec, options: &[&str]) -> Vm {
        Vm::launch(lab, qemu, spec, MEMORY_KIB, options)
    }

    /// An empty machine that waits for a guest to migrate into it, attached to its port already.
    pub fn incoming(kib: u32, lab: &Lab, qemu: &Qemu, spec: &VmSpec) -> Vm {
        let mut vm = Vm::launch(lab, qemu, spec, kib, &["-incoming", "defer"]);
        wait_for("QEMU to wait for a guest", SOON, || {
            let left = vm.child.try_wait().expect("wait for QEMU");
            assert!(left.is_none(), "{} left at once: {left:?}", spec.name);
            UnixStream::connect(&vm.qmp).ok()
        });
        vm
    }

    fn launch(lab: &Lab, qemu: &Qemu, spec: &VmSpec, kib: u32, more: &[&str]) -> Vm {
        let file = |suffix: &str| lab.path(&format!("{}{suffix}", spec.name));
        let (console, qemu_log, qmp) = (file(".console"), file(".qemu"), file(".qmp"));
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(&qemu.program)
            .args(spec.arguments(qemu, kib, &console, &qmp))
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&qemu_log).expect("create QEMU's log"))
            .spawn()
            .expect("start QEMU");
        let commands = child.stdin.take().expect("QEMU's standard input");
        let output = child.stdout.take().expect("QEMU's standard output");
        let (send, replies) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                if send.send(String::from_utf8_lossy(&line).trim_end().to_string()).is_err() {
                    break;
                }
            }
        });
        let (spec, heard) = (spec.clone(), Vec::new());
        Vm { spec, child, commands, replies, console, qemu_log, qmp, next_id: 0, heard }
    }

    /// Waits until the guest takes commands: after power-on, and again after each reset.
    pub fn wait_ready(&mut self) {
        self.wait_line("VS ready", BOOT_LIMIT);
    }

    /// Runs a command in the guest: its exit status and output.
    pub fn run(&mut self, command: &str, limit: Duration) -> (i32, String) {
        self.next_id += 1;
        let id = self.next_id;
        self.send(&format!("{id} {command}"));
        let (text, end) = (format!("VS {id} | "), format!("VS {id} exit "));
        let from = self.heard.len();
        let last = self.wait_line(&end, limit);
        let status = last[end.len()..].parse().expect("an exit status");
        let output = self.heard[from..].iter().filter_map(|line| line.strip_prefix(&text));
        (status, output.flat_map(|line| [line, "\n"]).collect())
    }

    /// Runs a command that must succeed within [`SOON`]; its output.
    pub fn ok(&mut self, command: &str) -> String {
        self.ok_within(command, SOON)
    }

    /// Runs a command that must succeed; its output.
    pub fn ok_within(&mut self, command: &str, limit: Duration) -> String {
        let (status, output) = self.run(command, limit);
        let name = self.spec.name;
        assert!(status == 0, "`{command}` ended with {status} in {name}:\n{output}");
        output
    }

    /// Has iperf3 serve, and waits until it does: it listens after it went to the background.
    pub fn serve(&mut self) {
        self.ok(&format!("iperf3 -s -D -f k; {LISTENING}"));
    }

    /// Sends a command whose end the guest will not live to report.
    pub fn last_words(&mut self, command: &str) {
        self.send(&format!("0 {command}"));
    }

    /// One QMP command, such as `"execute":"system_reset"`; panics unless QEMU accepts it.
    pub fn qmp(&self, command: &str) {
        let answer = self.try_qmp(command);
        assert!(answer.starts_with("{\"return\""), "QMP {command}: {answer}");
    }

    /// The same; what QEMU answers, be it an error.
    pub fn try_qmp(&self, command: &str) -> String {
        let stream = UnixStream::connect(&self.qmp).expect("connect to QMP");
        stream.set_read_timeout(Some(SOON)).expect("set a time limit");
        let mut writer = stream.try_clone().expect("clone the QMP connection");
        let mut lines = BufReader::new(stream).lines();
        let mut answer = |wanted: &[&str]| {
            // Events come in between; they carry neither word as a key.
            lines
                .by_ref()
                .map(|line| line.expect("an answer from QMP"))
                .find(|line| wanted.iter().any(|key| line.starts_with(&format!("{{\"{key}\""))))
                .expect("QMP closed the connection")
        };
        answer(&["QMP"]);
        let mut ask = |request: &str| {
            writeln!(writer, "{{{request}}}").expect("write to QMP");
            answer(&["return", "error"])
        };
        ask("\"execute\":\"qmp_capabilities\"");
        ask(command)
    }

    /// SIGKILL, as the kernel's out-of-memory killer would send it, and the machine anew.
    pub fn power_cycle(&mut self, lab: &Lab, qemu: &Qemu) {
        self.kill();
        *self = Vm::start(lab, qemu, &self.spec);
    }

    /// The machine goes in good order, and its port gets free.
    pub fn quit(&mut self) {
        self.qmp(r#""execute":"quit""#);
        let status = wait_for("QEMU to leave", SOON, || self.child.try_wait().expect("wait"));
        assert!(status.success(), "{}'s QEMU left with {status}", self.spec.name);
    }

    /// The machine goes, unless it has gone by itself.
    pub fn kill(&mut self) {
        self.child.kill().expect("kill QEMU");
        self.child.wait().expect("wait for QEMU");
    }

    fn send(&mut self, line: &str) {
        writeln!(self.commands, "{line}").expect("QEMU takes a command");
        self.commands.flush().expect("QEMU takes a command");
    }

    /// Reads on until a line begins with `start`; panics when the time is over or QEMU gone.
    fn wait_line(&mut self, start: &str, limit: Duration) -> String {
        let (name, end) = (self.spec.name, Instant::now() + limit);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.replies.recv_timeout(left) {
                Ok(line) => {
                    self.heard.push(line.clone());
                    if line.starts_with(start) {
                        return line;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    panic!("{name} did not say `{start}` within {limit:?}");
                }
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("{name}'s QEMU left: {:?}", self.child.wait());
                }
            }
        }
    }
}

impl Vm {
    /// Asks a guest of a failed test for its view of the network; a dead one stays silent.
    fn confess(&mut self) {
        let _ = writeln!(self.commands, "0 {CONFESSION}");
        let _ = self.commands.flush();
        let end = Instant::now() + Duration::from_secs(3);
        while let Ok(line) =
            self.replies.recv_timeout(end.saturating_duration_since(Instant::now()))
        {
            let last = line.starts_with("VS 0 exit");
            self.heard.push(line);
            if last {
                break;
            }
        }
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.confess();
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let name = self.spec.name;
            let from = self.heard.len().saturating_sub(90);
            eprintln!("--- {name}, last answers:\n    {}", self.heard[from..].join("\n    "));
            eprintln!("--- {name}, end of its console:\n{}", tail(&self.console, 30));
            eprintln!("--- {name}, QEMU:\n{}", tail(&self.qemu_log, 20));
        }
    }
}
