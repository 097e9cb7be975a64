//! Open vSwitch, to compare with: its programs, and its tests, whose text is read where Debian's
//! package openvswitch-source has it.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::skip;

const DIRECTORY: &str = "/usr/src/openvswitch";

/// The text of tests/ofproto-dpif.at; without it the test is skipped, which is said.
pub fn tests() -> Option<String> {
    found().map_err(|missing| skip(&missing)).ok()
}

fn found() -> Result<String, String> {
    let missing = || "needs Debian's package openvswitch-source".to_owned();
    let all = std::fs::read_dir(DIRECTORY).map_err(|_| missing())?;
    let is_archive = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().contains(".tar."))
    };
    let path = all.flatten().map(|entry| entry.path()).find(is_archive).ok_or_else(missing)?;
    let mut tar = Command::new("tar");
    tar.arg("-xOf").arg(&path).args(["--wildcards", "*/tests/ofproto-dpif.at"]);
    let output = tar.output().map_err(|error| format!("needs tar: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{} lacks tests/ofproto-dpif.at", path.display())),
    }
}

/// The test of this title.
pub fn section<'t>(text: &'t str, title: &str) -> &'t str {
    let head = format!("AT_SETUP([ofproto-dpif - {title}])");
    let (_, rest) = text.split_once(&head).unwrap_or_else(|| panic!("no test '{title}'"));
    rest.split_once("AT_CLEANUP").expect("its end").0
}

/// Which of these programs cannot be run, if one cannot.
pub fn lacks(programs: &[&'static str]) -> Option<&'static str> {
    let runs = |program: &&&str| {
        let output = Command::new(program).arg("--version").output();
        output.is_ok_and(|output| output.status.success())
    };
    programs.iter().find(|program| !runs(program)).copied()
}

/// A program that ends with the test.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A command that has its files in the directory, as these variables name it, and ends with this
/// thread.
pub fn command(program: &str, variables: &[&str], dir: &Path) -> Command {
    let mut command = Command::new(program);
    let places = variables.iter().map(|variable| (variable, dir));
    command.current_dir(dir).stdin(Stdio::null()).envs(places);
    // SAFETY: prctl is async-signal-safe and touches no memory of the parent.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    command
}
