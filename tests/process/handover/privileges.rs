//! A daemon without CAP_NET_ADMIN: as the installed unit has it: which TAPs it gets, and what it
//! says where it gets none.

use super::*;

/// The daemon's user, whom TAPs belong to that are made for it.
const USER: &str = "65534";

/// Runs the shell of the service as root without the capability to make TAPs.
fn without_capability() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-net_admin", "--inh-caps=-net_admin", "sh"]);
    command
}

/// What the one before has made is gone on with by a process that could not have made it: a new
/// version's unit may have fewer capabilities.
#[test]
fn a_tap_that_was_made_with_more_privileges_goes_on() {
    in_namespace(|| {
        let args: Vec<String> = ["--tap".into(), "up,ifname=vio0,mtu=1400".into()].into();
        let mut service = Service::new();
        service.start(&args);
        let index = index_of("vio0");
        service.stop();
        let told = service.log().len();
        service.start_in(without_capability(), &args);
        assert_eq!(index_of("vio0"), index, "another interface");
        let log = service.log()[told..].to_owned();
        assert!(log.contains("kept interface vio0") && !log.contains(" WARN"), "{log}");
        Host::open("vio0").send(&[&[0xff; 6][..], &[2, 0, 0, 0, 0, 9], &[0x88; 48]].concat());
        assert!(wait_for(SOON, || came_in(&service) >= 1));
        service.stop();
    });
}

/// A TAP of the daemon's user is all that is needed; a queue that somebody left there is told of.
#[test]
fn a_tap_of_the_daemons_user_needs_no_capability() {
    in_namespace(|| {
        ip(&format!("tuntap add dev vio0 mode tap multi_queue vnet_hdr user {USER}"));
        ip("link set vio0 up");
        let run = |args: &[&str]| {
            let dir = Dir::new();
            let program = dir.path().join("vioswitchd");
            testkit::proc::copy_program(env!("CARGO_BIN_EXE_vioswitchd"), &program);
            let log = File::create(dir.path().join("log")).expect("log");
            let mut command = Command::new("setpriv");
            command.args(["--reuid", USER, "--regid", USER, "--clear-groups"]).arg(&program);
            command.args(args).env("RUST_LOG", "info").stdin(Stdio::null()).stderr(log);
            (command.spawn().expect("setpriv"), dir)
        };
        let log = |dir: &Dir| fs::read_to_string(dir.path().join("log")).expect("log");

        for (qdisc, told) in [("noqueue", false), ("pfifo", true)] {
            let line = format!("tc qdisc replace dev vio0 root {qdisc}");
            let done = Command::new("sh").args(["-c", &line]).status().expect("tc");
            assert!(done.success(), "{line}");
            let (mut child, dir) = run(&["--tap", "up,ifname=vio0,queues=2"]);
            assert!(wait_for(SOON, || log(&dir).contains("ready: ")), "{}", log(&dir));
            assert!(log(&dir).contains("attached to interface vio0"), "{}", log(&dir));
            let advised = log(&dir).contains("tc qdisc replace dev vio0 root noqueue");
            assert_eq!(advised, told, "{}", log(&dir));
            assert!(ip("link show vio0").contains("LOWER_UP"));
            assert!(sys::kill(child.id(), libc::SIGTERM));
            assert!(child.wait().expect("wait").success());
        }

        let (mut child, dir) = run(&["--tap", "up,ifname=vio1"]);
        let status = ends_within(&mut child, SOON).expect("an end");
        assert_eq!(status.code(), Some(1), "{}", log(&dir));
        assert!(log(&dir).contains("interface vio1: not permitted without CAP_NET_ADMIN"));
    });
}
