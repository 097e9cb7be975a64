//! `vioswitchctl lan`: the network of an ordinary user, with programs of the host. Real guests:
//! scripts/demo --rootless.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;

use rustix::process::Signal;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use testkit::host::{in_namespace, ip};
use testkit::proc::ends_within;
use testkit::{skip, sys};

use super::*;

/// A user with a runtime directory, and programs that the user may run.
struct User(Dir);

impl User {
    fn new() -> User {
        let dir = Dir::new();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("mode");
        let beside = |name: &str| dir.path().join(name);
        copy_program(testkit::proc::program(), &beside("vioswitchd"));
        copy_program(env!("CARGO_BIN_EXE_vioswitchctl"), &beside("vioswitchctl"));
        fs::create_dir(beside("runtime")).expect("create");
        chown(beside("runtime"), Some(VIEWER), Some(VIEWER)).expect("chown");
        // As where AppArmor confines pasta: the kernel does not end pasta with its parent.
        let pasta = "#!/bin/sh\nPATH=${PATH#*:}\nexec setpriv --pdeathsig clear pasta \"$@\"\n";
        fs::create_dir(beside("bin")).expect("create");
        fs::write(beside("bin/pasta"), pasta).expect("write");
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(beside("bin/pasta"), mode).expect("mode");
        User(dir)
    }

    /// The place of the network's files.
    fn place(&self) -> PathBuf {
        self.0.path().join("runtime/vioswitch-lan")
    }

    fn program(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.uid(VIEWER).gid(VIEWER).current_dir("/");
        command.env("XDG_RUNTIME_DIR", self.0.path().join("runtime"));
        let (own, others) = (self.0.path().join("bin"), std::env::var("PATH").expect("PATH"));
        command.env("PATH", format!("{}:{others}", own.display()));
        command
    }

    fn ctl(&self, words: &[&str]) -> Output {
        let program = self.0.path().join("vioswitchctl").display().to_string();
        self.program(&program).arg("lan").args(words).output().expect("vioswitchctl")
    }

    fn done(&self, words: &[&str]) -> String {
        let output = self.ctl(words);
        assert!(output.status.success(), "{words:?}: {output:?}\n{}", self.log());
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    fn fails(&self, words: &[&str]) -> (i32, String) {
        failure(self.ctl(words))
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.done(&["status", "--json"])).expect("JSON")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.place().join("log")).unwrap_or_default()
    }

    /// Listens in the user's namespace.
    fn listen(&self, at: &str) -> TcpListener {
        let (holder, at) = (self.status()["namespace"].clone(), at.to_owned());
        let listen = move || {
            let net = File::open(format!("/proc/{holder}/ns/net")).expect("namespace");
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(net.as_fd(), kind).expect("setns");
            TcpListener::bind(at).expect("bind")
        };
        std::thread::spawn(listen).join().expect("a listener")
    }

    /// The process that keeps the network.
    fn keeper(&self) -> u32 {
        let holder = self.status()["namespace"].as_u64().expect("a number");
        stat(holder as u32).expect("the holder").0
    }
}

impl Drop for User {
    fn drop(&mut self) {
        // What stands for QEMU ends, so that nothing stays after a test that failed.
        let _ = File::create(self.0.path().join("runtime/end"));
        self.ctl(&["stop", "--force"]);
    }
}

/// The parent and the session of a process.
fn stat(pid: u32) -> Option<(u32, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut words = stat.rsplit_once(") ")?.1.split(' ');
    let state = words.next()?;
    let (parent, session) = (words.next()?.parse().ok()?, words.nth(1)?.parse().ok()?);
    (state != "Z").then_some((parent, session))
}

/// The number of processes of a session.
fn members(session: u32) -> usize {
    let all = fs::read_dir("/proc").expect("proc").filter_map(|entry| {
        let name = entry.ok()?.file_name();
        stat(name.to_str()?.parse().ok()?)
    });
    all.filter(|(_, of)| *of == session).count()
}

/// Runs a test in a host of its own, with a way out to nowhere, unless programs are missing.
fn on_host(test: impl FnOnce() + Send) {
    for program in ["pasta", "dnsmasq", "nft"] {
        if let Err(error) = Command::new(program).arg("--version").output()
            && error.kind() == ErrorKind::NotFound
        {
            return skip(&format!("needs {program}"));
        }
    }
    in_namespace(|| {
        ip("link set lo up");
        ip("link add eth0 type veth peer name eth1");
        ip("addr add 192.0.2.2/24 dev eth0");
        ip("link set eth0 up");
        ip("link set eth1 up");
        ip("route add default via 192.0.2.1");
        test();
    });
}

/// True if a connection to the host's port gets through to the listener.
fn passes(port: u16, listener: &TcpListener) -> bool {
    let Ok(mut client) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    client.write_all(b"question").expect("write");
    let (mut served, _) = listener.accept().expect("accept");
    let mut got = [0; 8];
    served.read_exact(&mut got).expect("read");
    served.write_all(b"answer").expect("write");
    drop(served);
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("read");
    &got == b"question" && answer == "answer"
}

#[test]
fn a_user_has_one_network_and_nothing_stays() {
    on_host(|| {
        let user = User::new();
        let none = "you have no network here: vioswitchctl lan";
        assert_eq!(user.fails(&["status"]), (3, none.to_owned()));
        let (status, told) = user.fails(&["status", "--control", "/run/other.sock"]);
        assert!(status == 2 && told.contains("leave out --control"), "{told}");
        let told = user.done(&[]);
        assert!(told.contains("10.78.0.1/24") && told.contains("connected"), "{told}");
        let (keeper, before) = (user.keeper(), user.status());
        assert_eq!(before["host_loopback"], false);
        user.done(&[]);
        user.done(&["--nat", "10.78.0.1/24"]);
        let (_, told) = user.fails(&["--nat", "10.79.0.1/24"]);
        assert!(told.contains("other options"), "{told}");
        assert_eq!(user.status()["services"], before["services"]);
        let mode = fs::metadata(user.place()).expect("directory").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        assert!(members(keeper) >= 5, "{}", members(keeper));
        user.done(&["stop"]);
        assert!(!user.place().exists());
        // The keeper itself is about to end.
        assert!(wait_for(LOST, || members(keeper) == 0), "{} left", members(keeper));
        user.done(&["stop"]);
        let taken = user.fails(&["--nat", "192.0.2.1/24"]);
        let wanted = "192.0.2.1/24 overlaps 192.0.2.2/24 of interface eth0: choose another \
                      network, by --nat";
        assert_eq!(taken, (1, wanted.to_owned()));
        let (status, told) = user.fails(&["--nat", "169.254.78.9/24"]);
        assert!(status == 2 && told.contains("outside of 169.254.78.0/24"), "{told}");
    });
}

/// In a unit, whose PATH may lack the directories of dnsmasq and nft, and until the directory goes
/// with the user's last session.
#[test]
fn a_unit_keeps_the_network_until_the_directory_goes() {
    on_host(|| {
        let user = User::new();
        let program = user.0.path().join("vioswitchctl").display().to_string();
        let mut command = user.program(&program);
        command.args(["lan", "--foreground"]).env("PATH", "/usr/bin:/bin");
        let mut unit = command.spawn().expect("vioswitchctl");
        let is_up = || user.ctl(&["status"]).status.success();
        let is_gone = |unit: &mut std::process::Child| unit.try_wait().expect("wait").is_some();
        assert!(wait_for(LOST, || is_up() || is_gone(&mut unit)) && is_up(), "{}", user.log());
        fs::remove_dir_all(user.place()).expect("remove");
        assert!(wait_for(LOST * 2, || is_gone(&mut unit)));
        assert!(unit.wait().expect("wait").success() && !user.place().exists());
    });
}

/// A laptop moves from a network with IPv6 alone to one with both.
#[test]
fn a_host_that_gets_ipv4_later_has_a_way_out_by_it() {
    on_host(|| {
        let ipv6 = "/proc/sys/net/ipv6/conf/eth0/disable_ipv6";
        if fs::write(ipv6, "0").is_err() {
            return skip("needs IPv6");
        }
        ip("route del default");
        ip("addr add 2001:db8::2/64 dev eth0 nodad");
        ip("-6 route add default via 2001:db8::1");
        let user = User::new();
        user.done(&[]);
        let holder = user.status()["namespace"].clone();
        let routes = || fs::read_to_string(format!("/proc/{holder}/net/route")).expect("routes");
        let has_ipv4 = || routes().lines().any(|line| line.starts_with("outside\t00000000\t"));
        assert!(!has_ipv4(), "{}", routes());
        ip("route add default via 192.0.2.1");
        assert!(wait_for(LOST * 2, has_ipv4), "{}\n{}", routes(), user.log());
    });
}

/// Runs the service manager of user $1 with the runtime directory $2, and units of $3, in a control
/// group $4 of its own.
const MANAGER: &str = r#"
mkdir -p /run/systemd && mount -t tmpfs none /run/systemd && mkdir /run/systemd/system || exit 77
mount -t cgroup2 none /sys/fs/cgroup && mkdir -p "/sys/fs/cgroup/$4/user" || exit 77
echo $$ >"/sys/fs/cgroup/$4/user/cgroup.procs" && chown -R "$1" "/sys/fs/cgroup/$4" || exit 77
exec unshare --cgroup sh -c 'umount /sys/fs/cgroup || exit 77
mount -t cgroup2 none /sys/fs/cgroup || exit 77
exec env -i XDG_RUNTIME_DIR="$2" XDG_CONFIG_HOME="$3" HOME="$3" PATH="$PATH" \
    setpriv --reuid "$1" --regid "$1" --clear-groups /lib/systemd/systemd --user' sh "$@"
"#;

/// Removes the control group $1, with the groups that the manager made there. There is none if the
/// manager could not start.
const REMOVE: &str = "mount -t cgroup2 none /sys/fs/cgroup || exit 0; \
                      [ ! -d \"/sys/fs/cgroup/$1\" ] || \
                      find \"/sys/fs/cgroup/$1\" -depth -type d -exec rmdir {} +";

fn control_group() -> String {
    format!("vioswitch-test-{}", std::process::id())
}

/// The service manager of a user.
struct Manager<'a> {
    user: &'a User,
    process: std::process::Child,
}

impl Manager<'_> {
    /// Starts the manager with the units of the package, for the programs of the test.
    fn of(user: &User) -> Option<Manager<'_>> {
        let units = user.0.path().join("config/systemd/user");
        fs::create_dir_all(units.join("vioswitch-lan.service.d")).expect("create");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/systemd");
        for unit in ["vioswitch-lan.socket", "vioswitch-lan.service"] {
            fs::copy(source.join(unit), units.join(unit)).expect("copy");
        }
        let own = user.0.path().display();
        let path = std::env::var("PATH").expect("PATH");
        let here = format!(
            "[Service]\nEnvironment=PATH={own}/bin:{path}\nExecStart=\n\
             ExecStart={own}/vioswitchctl lan --foreground\n"
        );
        fs::write(units.join("vioswitch-lan.service.d/here.conf"), here).expect("write");
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", MANAGER, "sh", &VIEWER.to_string()]);
        command.arg(user.0.path().join("runtime")).arg(user.0.path().join("config"));
        command.arg(control_group());
        let mut manager = Manager { user, process: command.spawn().expect("unshare") };
        let answers = || user.program("systemctl").args(["--user", "list-units"]).output();
        let began = wait_for(LOST, || {
            answers().is_ok_and(|output| output.status.success())
                || manager.process.try_wait().is_ok_and(|ended| ended.is_some())
        });
        assert!(began, "no manager");
        match manager.process.try_wait().expect("wait") {
            Some(status) if status.code() == Some(77) => None,
            Some(status) => panic!("the manager ended: {status}"),
            None => Some(manager),
        }
    }

    fn ctl(&self, words: &[&str]) -> String {
        let output = self.user.program("systemctl").arg("--user").args(words).output();
        let output = output.expect("systemctl");
        assert!(output.status.success(), "{words:?}: {output:?}\n{}", self.user.log());
        String::from_utf8(output.stdout).expect("UTF-8").trim().to_owned()
    }

    /// The process of the unit; 0 if the unit does not run.
    fn pid(&self) -> u32 {
        let text = self.ctl(&["show", "--property", "MainPID", "--value", "vioswitch-lan"]);
        text.parse().expect("a number")
    }
}

impl Drop for Manager<'_> {
    fn drop(&mut self) {
        sys::kill(self.process.id(), Signal::TERM.as_raw());
        let _ = ends_within(&mut self.process, LOST);
        let _ = self.process.kill();
        let _ = self.process.wait();
        let mut removal = Command::new("unshare");
        removal.args(["--mount", "sh", "-c", REMOVE, "sh", &control_group()]);
        let removed = wait_for(LOST, || removal.status().is_ok_and(|status| status.success()));
        assert!(removed || std::thread::panicking(), "a control group is left");
    }
}

/// The units of the package, by the user's real service manager.
#[test]
fn the_first_command_starts_the_unit_of_systemd() {
    if !Path::new("/lib/systemd/systemd").exists() {
        return skip("needs systemd");
    }
    on_host(|| {
        let user = User::new();
        let Some(manager) = Manager::of(&user) else { return skip("needs cgroup2, and mounts") };
        manager.ctl(&["start", "vioswitch-lan.socket"]);
        assert_eq!(manager.pid(), 0, "nobody has asked");
        let status = user.status();
        assert_eq!(status["outside"], true, "{status}\n{}", user.log());
        assert_eq!(user.keeper(), manager.pid());
        assert_eq!(manager.ctl(&["is-active", "vioswitch-lan.service"]), "active");
        user.done(&["forward", "8080:vm1:80"]);
        // A keeper that is killed comes back with what it had.
        let killed = manager.pid();
        assert!(sys::kill(killed, Signal::KILL.as_raw()));
        assert!(wait_for(LOST, || ![0, killed].contains(&manager.pid())), "{}", user.log());
        assert_eq!(user.status()["forwards"][0]["forward"], "8080:vm1:80");
        // The socket is the manager's, and is all that is left.
        user.done(&["stop"]);
        assert!(wait_for(LOST, || manager.pid() == 0));
        let left: Vec<_> = fs::read_dir(user.place()).expect("read").flatten().collect();
        assert_eq!(left.iter().map(|file| file.file_name()).collect::<Vec<_>>(), ["lan.sock"]);
        assert_eq!(user.status()["forwards"], json!([]));
        assert_ne!(manager.pid(), 0);
        manager.ctl(&["stop", "vioswitch-lan.socket", "vioswitch-lan.service"]);
        assert_eq!(manager.pid(), 0);
    });
}

#[test]
fn forwards_come_and_go_while_the_network_runs() {
    on_host(|| {
        let user = User::new();
        user.done(&[]);
        let server = user.listen("10.78.0.1:80");
        user.done(&["forward", "8080-8081:10.78.0.1:80"]);
        user.done(&["forward", "add", "8080-8081:10.78.0.1:80"]);
        assert!(passes(8080, &server));
        let taken = TcpListener::bind("127.0.0.1:8090").expect("bind");
        for (forward, reason) in [
            ("8090:vm1:80", "127.0.0.1:8090 is taken by another program"),
            ("8089-8090:vm1:80", "127.0.0.1:8090 is taken by another program"),
            (
                "80:vm1:80",
                "127.0.0.1:80: ports below net.ipv4.ip_unprivileged_port_start are for root",
            ),
            ("192.0.2.9:8091:vm1:80", "192.0.2.9 is no address of this host"),
            ("8080-8081:vm2:80", "forward 8080-8081:10.78.0.1:80-81 has these ports"),
            ("8081-8082:vm2:80", "forward 8080-8081:10.78.0.1:80-81 has these ports"),
            ("0.0.0.0:8081:vm2:80", "forward 8080-8081:10.78.0.1:80-81 has these ports"),
        ] {
            assert_eq!(user.fails(&["forward", forward]), (1, reason.to_owned()));
        }
        drop(taken);
        // A refused range gives its other ports back.
        TcpListener::bind("127.0.0.1:8089").expect("bind");
        // An upgrade replaces this program.
        let own = user.0.path().join("vioswitchctl");
        fs::remove_file(&own).expect("remove");
        copy_program(env!("CARGO_BIN_EXE_vioswitchctl"), &own);
        user.done(&["forward", "8089:10.78.0.1:80"]);
        user.done(&["forward", "del", "8080-8081:10.78.0.1:80"]);
        assert!(TcpStream::connect("127.0.0.1:8080").is_err());
        let (status, told) = user.fails(&["forward", "del", "8080:10.78.0.1:80"]);
        assert!(status == 1 && told.starts_with("there is no forward"), "{told}");
    });
}

#[test]
fn programs_that_die_come_back() {
    on_host(|| {
        let user = User::new();
        user.done(&[]);
        let server = user.listen("10.78.0.1:80");
        user.done(&["forward", "8080:10.78.0.1:80"]);
        let services = |status: &Value| status["services"].as_array().expect("services").clone();
        let before = user.status();
        for service in services(&before) {
            assert!(sys::kill(service["pid"].as_u64().expect("pid") as u32, libc::SIGKILL));
        }
        let is_back = || {
            let now = user.status();
            let all = services(&now);
            all.iter().all(|one| one["restarts"] == 1 && one["pid"].is_u64())
                && now["outside"] == true
        };
        assert!(wait_for(LOST, || user.ctl(&["status"]).status.success()), "{}", user.log());
        assert!(wait_for(LOST, is_back), "{}\n{}", user.status(), user.log());
        assert_eq!(user.status()["namespace"], before["namespace"]);
        assert!(passes(8080, &server));
    });
}

/// Nothing outlives the keeper; the next start finds stale sockets, and the forwards.
#[test]
fn a_killed_keeper_leaves_no_process() {
    on_host(|| {
        let user = User::new();
        user.done(&[]);
        user.done(&["forward", "8080:10.78.0.1:80"]);
        let keeper = user.keeper();
        assert!(members(keeper) >= 6, "{}", members(keeper));
        assert!(sys::kill(keeper, libc::SIGKILL));
        assert!(wait_for(LOST, || members(keeper) == 0), "{} left", members(keeper));
        assert_eq!(user.fails(&["status"]).0, 3);
        assert!(user.place().join("control.sock").exists());
        let taken = TcpListener::bind("127.0.0.1:8080").expect("bind");
        user.done(&[]);
        let forward = || user.status()["forwards"][0].clone();
        let reason = "127.0.0.1:8080 is taken by another program";
        let waits = || forward()["running"] == false && forward()["last_line"] == reason;
        assert!(wait_for(LOST, waits), "{}", forward());
        drop(taken);
        let server = user.listen("10.78.0.1:80");
        assert!(wait_for(LOST, || passes(8080, &server)), "{}", forward());
        // By a signal, as of systemd: names and forwards stay.
        let keeper = user.keeper();
        assert!(sys::kill(keeper, libc::SIGTERM));
        assert!(wait_for(LOST, || members(keeper) == 0), "{} left", members(keeper));
        assert!(user.place().join("forwards").exists());
        user.done(&["stop"]);
        assert!(!user.place().exists());
    });
}

/// A machine has its name in DNS before it starts, and its port while it runs.
#[test]
fn a_machine_has_a_name_and_a_port() {
    const SCRIPT: &str = "#!/bin/sh
[ \"$1\" = --version ] && exec echo 'QEMU emulator version 8.2.0'
[ \"$1\" = once ] && exit 9
echo \"$*\" >\"$XDG_RUNTIME_DIR/words\"
while [ ! -e \"$XDG_RUNTIME_DIR/end\" ]; do sleep 0.05; done
exit 7
";
    on_host(|| {
        let user = User::new();
        let (qemu, runtime) = (user.0.path().join("qemu"), user.0.path().join("runtime"));
        fs::write(&qemu, SCRIPT).expect("write");
        fs::set_permissions(&qemu, fs::Permissions::from_mode(0o755)).expect("mode");
        let qemu = qemu.to_str().expect("UTF-8");
        for name in ["vm_1", "30m", "ignore", "host"] {
            let (status, told) = user.fails(&["run", name, "--", qemu]);
            assert!(status == 2 && told.contains("no name of a machine"), "{told}");
        }
        let program = user.0.path().join("vioswitchctl").display().to_string();
        let mut command = user.program(&program);
        let mut run = command.args(["lan", "run", "vm1", "--", qemu]).spawn().expect("run");
        let words = || fs::read_to_string(runtime.join("words")).unwrap_or_default();
        assert!(wait_for(LOST, || words().ends_with('\n')), "{}", user.log());
        let noted = fs::read_to_string(user.place().join("hosts/vm1")).expect("a name");
        let mac = noted.strip_suffix(",vm1\n").expect("an address");
        let words = words();
        assert!(words.contains(&format!("mac={mac}")), "{words}");
        assert_eq!(user.status()["vms"][0]["mac"], mac);
        // The switch knows no front-end yet, and has the port.
        let (status, told) = user.fails(&["run", "vm1", "--", qemu, "once"]);
        assert!(status == 1 && told.starts_with("'vm1' runs already: "), "{status}: {told}");
        // The port comes back with the switch.
        let pid = |service: usize| user.status()["services"][service]["pid"].as_u64();
        let (switch, elsewhere) = (user.0.path().join("vioswitchd"), user.0.path().join("later"));
        fs::rename(&switch, &elsewhere).expect("rename");
        assert!(sys::kill(pid(0).expect("pid") as u32, libc::SIGKILL));
        assert!(wait_for(LOST, || pid(0).is_none()));
        let told = user.done(&["status"]);
        assert!(told.contains("restarting; see") && told.contains("connected"), "{told}");
        let (status, told) = user.fails(&["stop"]);
        assert!(status == 1 && told.contains("--force"), "{told}");
        fs::rename(&elsewhere, &switch).expect("rename");
        let is_back =
            || user.ctl(&["status"]).status.success() && user.status()["vms"][0]["name"] == "vm1";
        assert!(wait_for(LOST, is_back), "{}", user.log());
        File::create(runtime.join("end")).expect("create");
        assert_eq!(run.wait().expect("wait").code(), Some(7));
        assert_eq!(user.status()["vms"], json!([]));
        // What earlier runs left behind: a port, and another name of the card.
        let control = user.place().join("control.sock").display().to_string();
        let mut command = user.program(&program);
        command.args(["--control", &control, "port", "add", "vm1"]);
        assert!(command.output().expect("vioswitchctl").status.success());
        let (old, dnsmasq) = (user.place().join("hosts/old"), pid(1));
        fs::write(&old, format!("{mac},old\n")).expect("write");
        assert_eq!(user.ctl(&["run", "vm1", "--", qemu]).status.code(), Some(7));
        assert_eq!(user.status()["vms"], json!([]));
        assert!(!old.exists() && wait_for(LOST, || pid(1).is_some() && pid(1) != dnsmasq));
    });
}

/// A program that hangs costs a limited wait, and does not stay.
#[test]
fn a_namespace_that_is_not_ready_is_given_up() {
    on_host(|| {
        let user = User::new();
        let nft = user.0.path().join("bin/nft");
        let pid = user.0.path().join("runtime/pid");
        fs::write(&nft, format!("#!/bin/sh\necho $$ >{}\nexec sleep 600\n", pid.display()))
            .expect("write");
        fs::set_permissions(&nft, fs::Permissions::from_mode(0o755)).expect("mode");
        let (status, told) = user.fails(&[]);
        assert_eq!((status, told.as_str()), (1, "the namespace is not ready after 10 s"));
        let pid = fs::read_to_string(pid).expect("pid").trim().parse().expect("a number");
        assert!(wait_for(LOST, || stat(pid).is_none()) && !user.place().exists());
    });
}

#[test]
fn a_host_that_cannot_is_told_why() {
    on_host(|| {
        let user = User::new();
        let program = user.0.path().join("vioswitchctl").display().to_string();
        // Root of the host.
        let told = failure(Command::new(&program).arg("lan").output().expect("vioswitchctl"));
        assert!(told.0 == 1 && told.1.contains("runuser -u USER -- vioswitchctl lan"), "{told:?}");
        let line = format!("echo 0 >/proc/sys/user/max_user_namespaces; exec {program} lan");
        let mut command = user.program("unshare");
        let command =
            command.args(["--user", "--map-current-user", "--keep-caps", "sh", "-c", &line]);
        let told = failure(command.output().expect("unshare"));
        let remedy =
            "(user.max_user_namespaces is 0); as root: sysctl user.max_user_namespaces=10000";
        assert!(told.0 == 1 && told.1.ends_with(remedy), "{told:?}");
        let mut command = user.program(&program);
        let told = failure(command.env("PATH", "/nowhere").arg("lan").output().expect("run"));
        assert!(told.1.starts_with("programs are missing (pasta, "), "{told:?}");
        assert!(told.1.contains("): apt install passt "), "{told:?}");
        assert!(!user.place().exists());
        // Another user's, where all may write.
        let other = user.0.path().join("other");
        fs::create_dir(&other).expect("create");
        symlink(&other, user.place()).expect("link");
        let (status, told) = user.fails(&[]);
        assert!(status == 1 && told.contains("is not a directory of yours alone"), "{told}");
        fs::remove_file(user.place()).expect("remove");
    });
}
