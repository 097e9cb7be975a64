//! Remedies that are arguments of QEMU, or commands of its monitor: a QEMU that runs no guest takes
//! them.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use testkit::skip;

use super::sources;

const QEMU: &str = "qemu-system-x86_64";

/// Starts QEMU with these arguments and its guest stopped, and types lines at its monitor.
fn qemu(arguments: &str, lines: &[&str]) -> Output {
    let fixed = ["20", QEMU, "-nodefaults", "-display", "none", "-S", "-monitor", "stdio"];
    let mut command = Command::new("timeout");
    command.args(fixed).args(arguments.split_whitespace());
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().expect("timeout");
    let typed = lines.iter().chain(&["quit"]).map(|line| format!("{line}\n"));
    let typed: String = typed.collect();
    // A QEMU that refuses its arguments reads nothing.
    let _ = child.stdin.take().expect("a pipe").write_all(typed.as_bytes());
    child.wait_with_output().expect("QEMU")
}

#[test]
fn qemu_takes_the_options_that_findings_print() {
    if Command::new(QEMU).arg("--version").output().is_err() {
        return skip("needs qemu-system-x86_64");
    }
    let texts = sources::strings_of("api/diagnosis/of_memory.rs");
    let one = |words: &str| texts.iter().find(|text| text.contains(words)).expect("a remedy");
    let shared = one("-object memory-backend").replace("SIZE", "64M");
    let is_shared = |arguments: &str| {
        let output = qemu(arguments, &["info memdev"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success() && text.contains("share: true")
    };
    assert!(is_shared(&format!("-m 64M {shared}")), "{shared}");
    assert!(!is_shared(&format!("-m 64M {}", shared.replace("share=on", "share=off"))));
    assert!(!is_shared(&format!("-m 64M {}", shared.replace("share=", "shared="))));

    let plugged = one("object_add").replace("SIZE", "128M");
    let words = plugged.split_once("object_add").expect("object_add").1;
    let words = words.split(';').next().expect("a part");
    let (object, device) = words.split_once(" before ").expect("two commands");
    let object = format!("object_add{object}");
    let output =
        qemu("-m 64M,slots=1,maxmem=512M", &[object.as_str(), device, "info memory-devices"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("memdev: /objects/ID"), "{text}");
}
