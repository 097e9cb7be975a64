//! The daemon as a service of a real systemd: one of the test's own, in namespaces of its own, with
//! the unit that the project installs.
//!
//! It sees the machine's files read-only, has a `/run` and a `/var/lib` of its own, and knows no
//! other units, so it starts nothing else. Others see its `/run` through `/proc`.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::lab::Lab;
use super::{need_program, tail, wait_for};
use testkit::counters::Counters;
use testkit::proc::copy_program;

const SYSTEMD: &str = "/lib/systemd/systemd";
const UNIT: &str = include_str!("../../scripts/systemd/vioswitchd.service");
/// The installed drop-in with which the daemon makes its TAP itself.
const MAKE_TAPS: &str = include_str!("../../scripts/systemd/make-taps.conf");

/// Makes the first process of the new namespaces a systemd. The argument is what its `/run` begins
/// with. That is in memory, as everywhere: systemd removes no runtime directory from a disk.
const BOOT: &str = "set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=755 tmpfs /var/lib
cp -r \"$1\"/. /run
mount -o remount,bind,ro /
umount -l /sys/fs/cgroup 2>/dev/null || true
mount -t cgroup2 none /sys/fs/cgroup
export container=vioswitch-test SYSTEMD_UNIT_PATH=/run/units SYSTEMD_GENERATOR_PATH=/nonexistent
exec /lib/systemd/systemd --system --unit=test.target --log-target=console </dev/null";

/// The installed unit, but for the program, its arguments and its user.
const DROP_IN: &str = "[Unit]
DefaultDependencies=no
[Service]
User=nobody
Group=nogroup
StandardError=append:/run/log.txt
ExecStart=
ExecStart=/run/vioswitchd";

/// For what systemd is asked to do.
const LIMIT: Duration = Duration::from_secs(20);

/// A systemd and the daemon's unit.
pub struct Service {
    unshare: Child,
    /// Number of its first process, here.
    init: String,
    console: PathBuf,
}

/// What this needs; `Err` says what is missing.
pub fn can_run() -> Result<(), String> {
    for tool in ["unshare", "nsenter", "setpriv", "systemctl"] {
        need_program(tool)?;
    }
    if Path::new(SYSTEMD).exists() { Ok(()) } else { Err(format!("there is no {SYSTEMD}")) }
}

impl Service {
    /// Boots systemd in the lab's network and starts the daemon with these arguments; its runtime
    /// directory is `/run/vioswitch` to it.
    pub fn start(lab: &Lab, args: &[String]) -> Service {
        let files = lab.path("files");
        let write = |name: &str, text: String| {
            let path = files.join("units").join(name);
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("directory");
            std::fs::write(path, text).expect("write");
        };
        write("vioswitchd.service", UNIT.to_owned());
        write("vioswitchd.service.d/test.conf", format!("{DROP_IN} {}\n", args.join(" ")));
        write("vioswitchd.service.d/make-taps.conf", MAKE_TAPS.to_owned());
        write("test.target", "[Unit]\nDefaultDependencies=no\n".to_owned());
        // The unit hides home directories, where the one under test may lie.
        copy_program(testkit::proc::program(), &files.join("vioswitchd"));
        let output = std::fs::File::create(lab.path("console")).expect("console");
        let unshare = lab
            .in_netns("unshare")
            .args(["--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--cgroup"])
            .args(["--uts", "--ipc", "sh", "-c", BOOT, "sh"])
            .arg(&files)
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("console"))
            .stderr(output)
            .spawn()
            .expect("start systemd");
        let console = lab.path("console");
        let mut service = Service { unshare, init: String::new(), console };
        let children = format!("/proc/{0}/task/{0}/children", service.unshare.id());
        service.init = wait_for("systemd", LIMIT, || {
            let child = std::fs::read_to_string(&children).ok()?;
            child.split_whitespace().next().map(str::to_owned)
        });
        wait_for("systemd's socket", LIMIT, || {
            service.run("systemd/private").exists().then_some(())
        });
        wait_for("systemd to answer", LIMIT, || {
            service.try_systemctl(&["start", "test.target"]).is_ok().then_some(())
        });
        service.systemctl(&["start", "vioswitchd"]);
        service
    }

    /// A file of its `/run`.
    fn run(&self, name: &str) -> PathBuf {
        Path::new("/proc").join(&self.init).join("root/run").join(name)
    }

    /// Where a file of the daemon's runtime directory is for others.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.run("vioswitch").join(name)
    }

    fn try_systemctl(&self, words: &[&str]) -> Result<String, String> {
        let out = self.inside("systemctl").args(words).output().expect("run systemctl");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if out.status.success() { Ok(text(&out.stdout)) } else { Err(text(&out.stderr)) }
    }

    /// Asks systemd for something and waits until it is done.
    pub fn systemctl(&self, words: &[&str]) -> String {
        self.try_systemctl(words)
            .unwrap_or_else(|error| panic!("systemctl {words:?}: {error}\n{}", self.log_tail()))
    }

    /// Runs a program where its processes are.
    pub fn inside(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.init, "--mount", "--pid", program]);
        command
    }

    /// Changes the unit's file of settings behind systemd's back.
    pub fn change_unit(&self) {
        let path = self.run("units/vioswitchd.service.d/test.conf");
        let text = std::fs::read_to_string(&path).expect("read") + "\n# another line\n";
        std::fs::write(&path, text).expect("write");
    }

    /// A property of the unit.
    pub fn show(&self, property: &str) -> String {
        let said = self.systemctl(&["show", "vioswitchd", "--value", "-p", property]);
        said.trim().to_owned()
    }

    /// The counters at this moment.
    pub fn counters(&self) -> Counters {
        let before = self.log().len();
        self.systemctl(&["kill", "--kill-who=main", "-s", "USR1", "vioswitchd"]);
        wait_for("the counters in the log", LIMIT, || Counters::complete(&self.log()[before..]))
    }

    /// All that its processes have said.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.run("log.txt")).unwrap_or_default()
    }

    fn log_tail(&self) -> String {
        tail(&self.run("log.txt"), 60) + &tail(&self.console, 20)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the service, end of its log:\n{}", self.log_tail());
        }
        // With it goes systemd, and with that all of its namespace.
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
    }
}
