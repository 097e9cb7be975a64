//! `vioswitchctl top` in a terminal: what is on the screen, and what keys do.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};
use testkit::proc::wait_for;
use testkit::vm::mac_of;

use super::*;

/// A terminal, and `top` in it.
struct Terminal {
    child: Child,
    keys: File,
    /// Our end of the terminal's other side, so that it outlives the program.
    side: OwnedFd,
    screen: Arc<Mutex<vt100::Parser>>,
}

/// A terminal: our end of it, and the name of the other side.
pub(super) fn terminal(rows: u16, columns: u16) -> (File, String, OwnedFd) {
    // Tests in other threads start programs meanwhile.
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags).expect("a terminal");
    grantpt(&master).expect("grantpt");
    unlockpt(&master).expect("unlockpt");
    let name = ptsname(&master, Vec::new()).expect("its name");
    let name = name.into_string().expect("UTF-8");
    let side = OwnedFd::from(open(&name));
    resize(&side, rows, columns);
    (File::from(master), name, side)
}

/// Its other side.
pub(super) fn open(name: &str) -> File {
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(true).open(name).expect("its other side")
}

/// What a command prints in a terminal with so many columns.
pub(super) fn printed(lab: &Lab, args: &[&str], columns: u16) -> String {
    let (mut master, name, side) = terminal(24, columns);
    let mut command = Command::new(env!("CARGO_BIN_EXE_vioswitchctl"));
    command.arg("--control").arg(&lab.path).args(args).stdout(open(&name));
    let mut child = command.spawn().expect("vioswitchctl");
    // It ends with an error when nobody has the other side any more.
    drop((command, side));
    let (mut text, mut bytes) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = master.read(&mut bytes) {
        text.extend_from_slice(&bytes[..count]);
    }
    assert!(child.wait().expect("its end").success());
    String::from_utf8(text).expect("UTF-8").replace("\r\n", "\n")
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Terminal {
    fn start(lab: &Lab, rows: u16, columns: u16) -> Terminal {
        let (keys, name, side) = terminal(rows, columns);
        let screen = Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 0)));
        let mut output = keys.try_clone().expect("a descriptor");
        let shown = Arc::clone(&screen);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                shown.lock().expect("the screen").process(&bytes[..count]);
            }
        });
        // Of a session of its own, so that there is no other terminal.
        let mut command = Command::new("setsid");
        command.arg(env!("CARGO_BIN_EXE_vioswitchctl")).arg("--control").arg(&lab.path);
        command.args(["top", "--every=0.2"]).env("TERM", "xterm-256color");
        let stdio = || Stdio::from(open(&name));
        let child = command.stdin(stdio()).stdout(stdio()).stderr(stdio()).spawn();
        Terminal { child: child.expect("top"), keys, side, screen }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("a key");
    }

    fn text(&self) -> String {
        self.screen.lock().expect("the screen").screen().contents()
    }

    /// Waits until the screen is as it should be.
    fn shows(&self, what: &str, is: impl Fn(&str) -> bool) -> String {
        let shown = wait_for(LOST, || is(&self.text()));
        assert!(shown, "{what}\n{}", self.text());
        self.text()
    }

    /// Resizes the terminal, whose screen is empty until the program draws it anew. A key that is
    /// pressed before may wait for the next one: crossterm's poll reports the size and forgets it.
    fn resize(&mut self, rows: u16, columns: u16) {
        *self.screen.lock().expect("the screen") = vt100::Parser::new(rows, columns, 0);
        resize(&self.side, rows, columns);
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::WINCH).expect("kill");
    }

    /// True if lines are edited, as for a shell.
    fn is_cooked(&self) -> bool {
        let modes = tcgetattr(&self.side).expect("the terminal").local_modes;
        modes.contains(rustix::termios::LocalModes::ICANON)
    }
}

fn resize(side: &OwnedFd, rows: u16, columns: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(side, size).expect("a size");
}

fn line<'a>(text: &'a str, name: &str) -> &'a str {
    text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {text}"))
}

/// In a terminal of 80 by 24, of 50 and of 200 columns: whole columns, drops in red with their
/// reason, a curve, keys that sort, filter and open a port.
#[test]
fn top_shows_rates_and_drops_and_takes_keys() {
    let lab = Lab::new(3, &["--workers=2"]);
    let mut vms = [0, 1].map(|id| Vm::connect(&lab.d.socket(id.into()), VmConfig::new(id)));
    let mut top = Terminal::start(&lab, 24, 80);
    let text = top.shows("all ports", |text| text.contains("p2"));
    assert!(text.starts_with("vioswitch ") && text.contains("3 ports  0 taps"), "{text}");
    assert!(line(&text, "p2").contains("listening") && line(&text, "worker 0").contains(" %"));
    assert!(text.contains("q quit") && text.contains("OUT bit/s"), "{text}");

    // Guest 0 sends to itself, which is dropped, and to nobody known, which guest 1 gets.
    let over = Arc::new(AtomicBool::new(false));
    let talk = thread::spawn({
        let over = Arc::clone(&over);
        move || {
            let mut frame = vec![0; 60];
            frame[6..12].copy_from_slice(&mac_of(0));
            while !over.load(Ordering::Acquire) {
                for to in [mac_of(0), mac_of(9)] {
                    frame[..6].copy_from_slice(&to);
                    vms[0].tx[0].send_waiting(&frame, LOST);
                }
                vms[1].rx[0].take(64, Duration::ZERO);
                thread::sleep(Duration::from_millis(1));
            }
        }
    });
    let text = top.shows("a drop", |text| text.contains("hairpin"));
    assert!(line(&text, "p0").contains("hairpin") && !line(&text, "p2").contains("hairpin"));
    top.shows("a curve", |text| {
        line(text, "p1").contains(['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'])
    });
    let red = |top: &Terminal| {
        let screen = top.screen.lock().expect("the screen");
        let screen = screen.screen();
        let text = screen.contents();
        let row = text.lines().position(|line| line.starts_with("p0"))? as u16;
        let column = text.lines().nth(row.into())?.find("hairpin")? as u16;
        Some(screen.cell(row, column)?.fgcolor() == vt100::Color::Idx(1))
    };
    assert!(wait_for(LOST, || red(&top) == Some(true)), "drops are red\n{}", top.text());

    // Narrow: what matters most is whole. Wide: the curve has the room, and no column is far off.
    top.resize(24, 50);
    let text = top.shows("a narrow table", |text| {
        text.contains("hairpin") && text.contains("q quit") && !text.contains("f/s")
    });
    assert!(text.contains(" address") && text.contains("worker 1"), "{text}");
    assert!(
        text.contains("IN bit/s  OUT bit/s  DROPS/s") || text.contains("DROPS/s REASON"),
        "{text}"
    );
    top.resize(24, 200);
    let text = top.shows("a wide table", |text| {
        let bars = |line: &str| line.chars().filter(|c| ('▁'..='█').contains(c)).count();
        text.contains("OUT f/s") && bars(line(text, "p1")) > 9
    });
    assert!(line(&text, "NAME").find("STATE") < Some(20), "{text}");
    top.resize(24, 80);
    top.shows("as it was", |text| text.contains("OUT bit/s") && text.contains("hairpin"));

    top.press("o");
    top.shows("the busiest receiver first", |text| {
        text.lines().position(|line| line.starts_with("p1")) == Some(3)
    });
    top.press("n/p1");
    top.shows("only one", |text| text.contains("/p1_") && !text.contains("\np0"));
    top.press("\r\r");
    let text = top.shows("a port alone", |text| text.contains("Esc back"));
    assert!(text.contains(" p1 ") && text.contains("attached"), "{text}");
    top.resize(10, 40);
    top.shows("a small screen", |text| text.contains("Esc back") && text.lines().count() <= 10);
    top.press("\u{1b}");
    // Two of these at once are another key.
    top.resize(24, 80);
    top.shows("the table again", |text| text.contains("only */p1/*"));
    top.press("\u{1b}");
    top.shows("all of them", |text| text.contains("\np0") && text.contains("\np2"));

    assert!(!top.is_cooked());
    top.press("q");
    assert!(top.child.wait().expect("status").success());
    assert!(top.is_cooked(), "the terminal is as it was");
    over.store(true, Ordering::Release);
    talk.join().expect("the guests");
}

#[test]
fn top_gives_the_terminal_back_and_outlives_a_switch() {
    let mut lab = Lab::new(1, &[]);
    let mut top = Terminal::start(&lab, 24, 80);
    top.shows("a port", |text| text.contains("p0"));
    lab.d.kill();
    top.shows("what is wrong", |text| text.starts_with("the ") && text.contains(" connection"));
    assert!(top.text().contains("p0"), "what was known is still there");
    lab.d.restart();
    top.shows("the next switch", |text| text.starts_with("vioswitch "));
    let pid = rustix::process::Pid::from_child(&top.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("kill");
    assert!(top.child.wait().expect("status").success());
    assert!(top.is_cooked());
    let (status, line) = lab.fails(&["top"]);
    assert_eq!((status, line.contains("needs a terminal")), (2, true), "{line}");
}

/// A switch that ends and does not come back ends the program: with the status of a switch that is
/// not there, the terminal as it was, and a line below it.
#[test]
fn top_ends_with_the_switch() {
    let lab = Lab::new(1, &[]);
    let mut top = Terminal::start(&lab, 24, 80);
    top.shows("a port", |text| text.contains("p0"));
    assert!(!top.is_cooked());
    lab.d.stop();
    let ended = wait_for(LOST, || top.child.try_wait().expect("status").is_some());
    assert!(ended, "it goes on without a switch\n{}", top.text());
    assert_eq!(top.child.wait().expect("status").code(), Some(3));
    assert!(top.is_cooked(), "the terminal is as it was");
    let text = top.shows("a line", |text| text.contains("has ended"));
    assert!(text.trim_start().starts_with("vioswitchctl: the switch at "), "{text}");
    assert!(!top.screen.lock().expect("the screen").screen().alternate_screen());
}

/// The terminal goes and no signal says so, as after nohup(1): the program ends and does not spin.
#[test]
fn top_ends_with_its_terminal() {
    let lab = Lab::new(1, &[]);
    let (mut master, name, side) = terminal(24, 80);
    let mut command = Command::new("setsid");
    command.arg(env!("CARGO_BIN_EXE_vioswitchctl")).arg("--control").arg(&lab.path);
    command.args(["top", "--every=0.2"]).env("TERM", "xterm-256color").stdin(open(&name));
    let mut child = command.stdout(open(&name)).stderr(Stdio::null()).spawn().expect("top");
    drop((command, side));
    let (mut shown, mut bytes) = (Vec::new(), [0; 4096]);
    while !String::from_utf8_lossy(&shown).contains("listening") {
        let count = master.read(&mut bytes).expect("the screen");
        shown.extend_from_slice(&bytes[..count]);
    }
    drop(master);
    let ended = wait_for(LOST, || child.try_wait().expect("status").is_some());
    let _ = child.kill();
    assert!(ended, "it goes on without a terminal");
}
