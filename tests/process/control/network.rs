//! `vioswitchctl network`: what it writes, and what it leaves alone. On a host with systemd, and
//! with a guest: scripts/network-demo.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use testkit::host::{in_namespace, ip};

use super::*;

/// A directory that stands for the root of a system.
struct System(Dir);

impl System {
    fn new() -> System {
        System(Dir::new())
    }

    fn run(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vioswitchctl"));
        command.arg("network").args(words).arg("--root").arg(self.0.path());
        command.output().expect("vioswitchctl")
    }

    fn done(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(output.status.success() && output.stderr.is_empty(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    fn fails(&self, words: &[&str]) -> (i32, String) {
        failure(self.run(words))
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path.trim_start_matches('/'))
    }

    /// All files and links, with what they say or where they lead.
    fn files(&self) -> Vec<(PathBuf, String)> {
        let (mut dirs, mut files) = (vec![self.0.path().to_owned()], Vec::new());
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).expect("directory") {
                let (path, kind) =
                    entry.map(|e| (e.path(), e.file_type().expect("type"))).expect("e");
                if kind.is_dir() {
                    dirs.push(path);
                } else if kind.is_symlink() {
                    let to = fs::read_link(&path).expect("link").display().to_string();
                    files.push((path, to));
                } else {
                    let text = fs::read_to_string(&path).expect("text");
                    files.push((path, text));
                }
            }
        }
        files.sort();
        files
    }
}

const LAN: [&str; 4] = ["lan", "--nat", "10.77.0.1/24", "--dhcp"];

#[test]
fn a_network_is_written_listed_changed_and_taken_away() {
    for manager in ["networkd", "dnsmasq"] {
        let system = System::new();
        let all = |words: &[&'static str]| [&LAN[..], &["--manager", manager], words].concat();
        let printed = system.done(&all(&["--print"]));
        assert!(system.files().is_empty(), "--print writes");
        let written = system.done(&all(&[]));
        for (path, text) in system.files() {
            let inside = path.strip_prefix(system.0.path()).expect("inside");
            let head = format!("==> /{}", inside.display());
            assert!(printed.contains(&head) && printed.contains(&text), "{head} in {printed}");
            assert!(written.contains(&path.display().to_string()), "{written}");
        }
        assert_eq!(written.lines().count(), system.files().len());
        // The switch takes what is there for it.
        let main = system.path("/etc/vioswitch/vioswitch.toml");
        fs::write(&main, "").expect("write");
        let check = Command::new(env!("CARGO_BIN_EXE_vioswitchd"))
            .arg("--check")
            .arg("--config")
            .arg(&main)
            .output()
            .expect("vioswitchd");
        if Path::new("/dev/net/tun").exists() {
            assert!(check.status.success(), "{check:?}");
        }
        fs::remove_file(main).expect("remove");

        assert_eq!(system.done(&all(&[])), "", "nothing differs");
        let list = system.run(&["--json"]);
        let list: Value = serde_json::from_slice(&list.stdout).expect("JSON");
        assert_eq!(
            list["networks"],
            json!([{"name": "lan", "interface": "vio-lan", "nat": ["10.77.0.1/24"], "dhcp": true,
                    "manager": manager, "interface_exists": null}])
        );
        let changed = ["lan", "--nat", "10.78.0.1/24", "--manager", manager];
        assert!(!system.done(&changed).is_empty());
        assert!(system.files().iter().all(|(_, text)| !text.contains("10.77.")));
        let other = if manager == "networkd" { "dnsmasq" } else { "networkd" };
        let (status, line) = system.fails(&["lan", "--nat", "10.78.0.1/24", "--manager", other]);
        assert!(status == 1 && line.contains("network lan --remove first"), "{line}");

        system.done(&["wan", "--nat", "10.79.0.1/24", "--manager", other]);
        system.done(&["lan", "--remove"]);
        assert!(system.files().iter().all(|(path, _)| !path.display().to_string().contains("lan")));
        assert!(system.done(&[]).contains("wan"));
        system.done(&["wan", "--remove"]);
        assert!(system.files().is_empty(), "{:?}", system.files());
        let (status, line) = system.fails(&["lan", "--remove"]);
        assert!(status == 1 && line.starts_with("there is no network lan; "), "{line}");
    }
}

/// Others than root read the files, whatever root's habits are.
#[test]
fn files_are_readable_under_any_umask() {
    let system = System::new();
    let mut command = Command::new("sh");
    command.args(["-c", "umask 077; exec \"$0\" network \"$@\""]);
    command.arg(env!("CARGO_BIN_EXE_vioswitchctl")).args(LAN).arg("--root").arg(system.0.path());
    assert!(command.output().expect("sh").status.success());
    let mode =
        |path: &str| fs::metadata(system.path(path)).expect(path).permissions().mode() & 0o777;
    assert_eq!(mode("/etc/systemd/network/10-vioswitch-lan.network"), 0o644);
    assert_eq!(
        (mode("/etc/vioswitch/conf.d"), mode("/etc/vioswitch/conf.d/lan.toml")),
        (0o755, 0o644)
    );
}

#[test]
fn what_others_have_written_is_never_touched() {
    let system = System::new();
    let theirs = system.path("/etc/vioswitch/conf.d/lan.toml");
    fs::create_dir_all(theirs.parent().expect("directory")).expect("directory");
    fs::write(&theirs, "# mine\n").expect("write");
    let (status, line) = system.fails(&LAN);
    assert!(status == 1 && line.contains("lan.toml exists and is not of network lan"), "{line}");
    assert_eq!(system.files().len(), 1);
    assert_eq!(system.fails(&["lan", "--remove"]).0, 1);
    // One that was ours and that somebody has taken over stays, and is told of.
    fs::remove_file(&theirs).expect("remove");
    system.done(&LAN);
    fs::write(&theirs, "# mine\n").expect("write");
    let output = system.run(&["lan", "--remove"]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && told.contains("lan.toml stays"), "{told}");
    assert_eq!(system.files(), [(theirs, "# mine\n".to_owned())]);
}

#[test]
fn what_makes_no_sense_is_refused_in_a_line() {
    let system = System::new();
    for (status, words, told) in [
        (2, &["lan"][..], "--nat ADDR/LEN or --bridge NIC"),
        (2, &["lan", "--nat", "10.77.0.0/24"], "such as 10.77.0.1/24"),
        (2, &["lan", "--nat", "10.0.0.1/8"], "/16 to /30"),
        (2, &["lan", "--nat", "10.77.0.1"], "such as 10.77.0.1/24"),
        (2, &["a-name-too-long", "--nat", "10.77.0.1/24"], "at most 11 letters"),
        (2, &["../x", "--nat", "10.77.0.1/24"], "at most 11 letters"),
        (2, &["lan", "--nat", "10.77.0.1/24", "--nat", "10.78.0.1/24"], "one --nat for each"),
        (2, &["lan", "--nat", "fd77::1/64", "--dhcp"], "--dhcp is for IPv4"),
        (2, &["lan", "--dhcp"], "--nat"),
        (2, &["--remove"], "NETWORK"),
        (2, &["lan", "--nat", "10.77.0.1/24", "--bridge", "eth0"], "cannot be used with"),
        (2, &["lan", "--nat", "10.77.0.1/24", "--manager", "ifupdown"], "is for --bridge"),
        (1, &["lan", "--bridge", "no-such-nic"], "no interface no-such-nic"),
        (1, &["lan", "--bridge", "lo"], "cannot be in a bridge"),
    ] {
        let (found, line) = system.fails(words);
        assert!(found == status && line.contains(told), "{words:?}: {found} {line}");
    }
    assert!(system.files().is_empty());
}

/// Two DHCP servers would answer the same guests.
#[test]
fn a_second_dhcp_server_is_refused() {
    let system = System::new();
    system.done(&LAN);
    let before = system.files();
    let wan = ["wan", "--nat", "10.79.0.1/24", "--dhcp"];
    let (status, line) = system.fails(&wan);
    assert!(
        status == 1 && line.starts_with("network lan serves DHCP to the same guests"),
        "{line}"
    );
    let output = system.run(&[&wan[..], &["--print"]].concat());
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(1) && printed.contains("==> "), "{output:?}");
    assert_eq!(system.files(), before);
    // Itself it is not in the way of, nor of one that has none.
    assert!(system.done(&LAN).is_empty());
    system.done(&["dry", "--nat", "10.80.0.1/24"]);
    system.done(&[&wan[..], &["--second-dhcp"]].concat());
}

/// What is printed and would be refused has the status of what is refused.
#[test]
fn an_overlap_is_told_of_by_the_status_of_print() {
    in_namespace(|| {
        ip("link add d0 type bridge");
        ip("address add 10.77.0.9/24 dev d0");
        ip("link set d0 up");
        let print = |nat: &str| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_vioswitchctl"));
            command.args(["network", "lan", "--manager", "networkd", "--print", "--nat", nat]);
            let output = command.output().expect("vioswitchctl");
            assert!(String::from_utf8_lossy(&output.stdout).starts_with("==> "), "{output:?}");
            output.status.code()
        };
        assert_eq!((print("10.77.0.1/24"), print("10.78.0.1/24")), (Some(1), Some(0)));
    });
}

/// A systemctl that writes down what it is asked, and stops nothing while there is a file `stuck`.
const SYSTEMCTL: &str = "echo \"$*\" >>$LAB/log
case $1 in
stop) [ ! -e $LAB/stuck ] || { echo stuck >&2; exit 1; } ;;
is-active) [ -e $LAB/stuck ] ;;
esac
";

/// What runs is stopped before the files go by which it is known, and can be stopped again.
#[test]
fn what_cannot_be_stopped_keeps_its_files() {
    if testkit::skips_without_mounts() {
        return;
    }
    for manager in ["networkd", "dnsmasq"] {
        let (system, lab) = (System::new(), Dir::new());
        system.done(&[&LAN[..], &["--manager", manager]].concat());
        let before = system.files();
        let stuck = lab.path().join("stuck");
        fs::write(&stuck, "").expect("write");
        super::doctor::script(lab.path(), "systemctl", SYSTEMCTL);
        super::doctor::script(lab.path(), "networkctl", "exit 0\n");
        super::doctor::script(lab.path(), "ip", "echo \"ip $*\" >>$LAB/log\n");
        let path = std::env::var("PATH").expect("PATH");
        let path = format!("{}:{path}", lab.path().display());
        let remove = || {
            let mut command = Command::new("unshare");
            let mount = "mount --bind \"$0\" /etc && exec \"$@\"";
            command.args(["--mount", "sh", "-c", mount]).arg(system.path("etc"));
            command.arg(env!("CARGO_BIN_EXE_vioswitchctl")).arg("--control");
            command.arg(lab.path().join("none")).args(["network", "lan", "--remove"]);
            command.env("PATH", &path).env("LAB", lab.path()).output().expect("unshare")
        };
        let (status, line) = failure(remove());
        assert!(status == 1 && line.contains("stuck") && line.ends_with("--remove"), "{line}");
        assert_eq!(system.files(), before, "{manager}");
        fs::remove_file(stuck).expect("remove");
        let output = remove();
        assert!(output.status.success(), "{output:?}");
        assert!(system.files().is_empty(), "{:?}", system.files());
        let log = fs::read_to_string(lab.path().join("log")).expect("log");
        for words in ["stop vioswitch-forward@vio-lan\n", "ip link delete vio-lan\n"] {
            assert!(log.contains(words), "{log}");
        }
    }
}

/// An ordinary user is told what to do, and nothing is left half done.
#[test]
fn who_may_not_write_is_told_so() {
    let lab = Lab::new(1, &[]);
    if !is_root() {
        return testkit::skip("needs root to be somebody else");
    }
    let root = Dir::new();
    let etc = root.path().join("etc");
    fs::create_dir(&etc).expect("directory");
    let root = root.path().to_str().expect("UTF-8");
    let (status, line) =
        failure(lab.as_nobody("65534", &[&["network"], &LAN[..], &["--root", root]].concat()));
    assert!(status == 4 && line.ends_with("use sudo"), "{status} {line}");
    assert_eq!(fs::read_dir(etc).expect("directory").count(), 0);
}
