//! What libvirt's hook does for a domain: no domain waits for it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use testkit::proc::Dir;
use testkit::skip;

const HOOK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/libvirt/qemu");
/// Far more than the two seconds, and far less than what hangs.
const LONG: Duration = Duration::from_secs(60);

/// What stands for the client: it writes down what it is asked; `there` exists, and `stuck` hangs.
const CLIENT: &str = "#!/bin/sh
echo \"$*\" >>\"$CALLS\"
case $3 in there) exit 1 ;; stuck) exec sleep 300 ;; esac
";

fn interface(path: &str, mode: &str, more: &str) -> String {
    format!(
        "    <interface type='vhostuser'>\n      <mac address='52:54:00:00:00:01'/>\n      <source \
         type='unix' path='{path}' mode='{mode}'/>\n      {more}\n    </interface>\n"
    )
}

/// Gives the hook a domain for each of these operations; what the client was asked.
fn run(dir: &Path, interfaces: &str, operations: &str) -> String {
    let calls = dir.join("calls");
    fs::write(&calls, "").expect("write");
    fs::write(dir.join("xml"), format!("<domain>\n{interfaces}</domain>\n")).expect("write");
    let client = dir.join("vioswitchctl");
    fs::write(&client, CLIENT).expect("write");
    fs::set_permissions(&client, fs::Permissions::from_mode(0o755)).expect("mode");
    let script = format!(
        "mount -t tmpfs tmpfs /run && for operation in {operations}; do \
         {HOOK} vm1 $operation begin - <{} || exit; done",
        dir.join("xml").display()
    );
    let path = format!("{}:{}", dir.display(), std::env::var("PATH").expect("PATH"));
    let mut hook = Command::new("unshare");
    hook.args(["--mount", "sh", "-c", &script]).env("PATH", path).env("CALLS", &calls);
    let output = hook.output().expect("unshare");
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    fs::read_to_string(calls).expect("read")
}

#[test]
fn it_adds_what_is_missing_and_takes_away_what_it_added() {
    if testkit::skips_without_mounts() {
        return;
    }
    // SAFETY: plain system call.
    if unsafe { libc::geteuid() } != 0 {
        return skip("needs root, for a /run of its own");
    }
    let dir = Dir::new();
    let all = [
        interface("/run/vioswitch/a.sock", "client", "<driver name='x' queues='4'/>"),
        interface("/run/vioswitch/there.sock", "client", ""),
        interface("/run/vioswitch/plug/b", "server", ""),
        interface("/run/vioswitch/$(reboot).sock", "client", ""),
        interface("/run/elsewhere/c.sock", "client", ""),
        interface("/run/vioswitch/d.sock", "client", ""),
    ];
    let calls = run(dir.path(), &all.concat(), "prepare start started stopped release release");
    let wanted = "port add a queues=4 socket-group=kvm --transient
port add there queues=1 socket-group=kvm --transient
port add d queues=1 socket-group=kvm --transient
port del a
port del d
";
    assert_eq!(calls, wanted);
    // Without an interface of ours nobody is asked.
    assert_eq!(run(dir.path(), &all[2], "prepare release"), "");
}

#[test]
fn a_switch_that_hangs_holds_up_no_domain() {
    if testkit::skips_without_mounts() {
        return;
    }
    // SAFETY: plain system call.
    if unsafe { libc::geteuid() } != 0 {
        return skip("needs root, for a /run of its own");
    }
    let dir = Dir::new();
    let began = Instant::now();
    let stuck = interface("/run/vioswitch/stuck.sock", "client", "");
    assert_eq!(run(dir.path(), &stuck, "prepare release").lines().count(), 1);
    assert!(began.elapsed() < LONG, "{:?}", began.elapsed());
}
