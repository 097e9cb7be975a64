//! The files under scripts/ that describe the daemon to others agree with it.

use super::*;

const EXAMPLE: &str = include_str!("../../../../scripts/systemd/vioswitch.toml");
const ATTACH: &str = include_str!("../../../../docs/attach.md");
const UNIT: &str = include_str!("../../../../scripts/systemd/vioswitchd.service");
const TMPFILES: &str = include_str!("../../../../scripts/systemd/vioswitch.tmpfiles");
const PLUG_MOUNT: &str = include_str!("../../../../scripts/systemd/run-vioswitch-plug.mount");
const DESCRIPTION: &str = include_str!("../../../../scripts/vhost-user/50-vioswitchd.json");

/// Runs a line of the unit, on a copy of the example.
fn start_as_installed(example: &str) -> Config {
    let file = Scratch::new(example);
    let line = UNIT.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let line = line.replace("/etc/vioswitch/vioswitch.toml", file.path());
    match from_args(line.split(' '), CPUS) {
        Ok(Action::Run(config)) => config,
        other => panic!("{other:?}"),
    }
}

/// Switches settings on that are off in the example: lines that begin with # and no blank.
fn switched_on(example: &str, keys: &[&str]) -> String {
    let is_on = |rest: &&str| {
        let key = rest.split(' ').next().unwrap_or_default();
        rest.starts_with("[[")
            || rest.starts_with(char::is_alphabetic) && (keys == [""] || keys.contains(&key))
    };
    let lines = example.lines().map(|line| line.strip_prefix('#').filter(is_on).unwrap_or(line));
    lines.flat_map(|line| [line, "\n"]).collect()
}

#[test]
fn the_example_is_taken_and_its_remarks_are_the_defaults() {
    // A package starts an empty switch.
    let plain = start_as_installed(EXAMPLE);
    assert!(plain.ports.is_empty());
    let mut expected =
        start_as_installed(&switched_on(EXAMPLE, &["name", "socket", "ifname", "from", "to"]));
    assert_eq!(expected.summary(), "1 port, 1 tap, 1 xdp uplink, 1 stream, 1 vduse device");
    // This machine may have no such group.
    let here = EXAMPLE.replace("\"kvm\"", "\"root\"").replace("\"adm\"", "\"root\"");
    // A port is an access port or a trunk.
    let here = here.replace("#vlan = 10\n", "");
    let all = start_as_installed(&switched_on(&here, &[""]));
    expected.cpus = vec![2, 3];
    let path = PathBuf::from("/run/vioswitch/control.sock");
    let control = Control { path, group: None, admins: None, capture: None };
    assert_eq!(expected.control.as_ref(), Some(&control));
    let group = Some(0);
    expected.control = Some(Control { group, admins: group, capture: group, ..control });
    expected.metrics = Some(MetricsSocket::Inherited);
    assert_eq!(expected.plug.as_deref(), Some("/run/vioswitch/plug".as_ref()));
    for settings in all.ports.iter().map(|entry| &entry.settings).chain([&all.template]) {
        let kind = settings.kind;
        for key in kind.keys().filter(|key| !key.is_required() && key.name != "vlan") {
            let (said, default) = ((key.format)(settings).concat(), key.default(kind));
            assert!(said == default || default.is_empty() && !said.is_empty(), "{}", key.name);
        }
    }
    (expected.ports, expected.template) = (all.ports.clone(), all.template.clone());
    expected.words.clone_from(&all.words);
    // Warnings about lists of addresses without a guard.
    expected.warnings.clone_from(&all.warnings);
    assert_eq!(all, expected);
}

/// A small system has not even `/bin/kill`.
#[test]
fn the_unit_runs_nothing_but_what_is_installed_with_it() {
    let lines = UNIT.lines().filter(|line| line.starts_with("Exec"));
    let programs: Vec<&str> =
        lines.map(|line| line.split(['=', ' ']).nth(1).expect("a program")).collect();
    assert_eq!(programs, ["/usr/bin/vioswitchd", "/usr/bin/vioswitchctl"]);
}

/// QEMU 10.2 no longer knows `reconnect=`, and refuses to start with it.
#[test]
fn examples_for_qemu_suit_its_present_releases() {
    let (new, old) = (ATTACH.find("reconnect-ms=200"), ATTACH.find("reconnect=1"));
    assert!(new.is_some() && new < old, "{new:?} {old:?}");
    for line in ATTACH.lines().filter(|line| line.contains("reconnect=1")) {
        assert!(line.contains("before 9.2"), "{line}");
    }
}

#[test]
fn qemu_is_told_the_type_that_the_daemon_prints() {
    assert!(DESCRIPTION.contains("\"type\": \"net\""));
    let Ok(Action::Print(json)) = run(&["--print-capabilities"]) else { panic!("no answer") };
    assert!(json.contains("\"type\":\"net\""));
}

#[test]
fn sockets_of_the_example_are_where_the_unit_makes_a_directory() {
    assert!(UNIT.contains("\nRuntimeDirectory=vioswitch\n"));
    assert!(TMPFILES.contains("\nd /run/vioswitch/plug 3770 vioswitch kvm\n"));
    for line in ["Where=/run/vioswitch/plug", "Options=mode=3770,uid=vioswitch,gid=kvm,size=1m"] {
        assert!(PLUG_MOUNT.contains(&format!("\n{line}")), "{line}");
    }
    for word in ["After", "Wants"] {
        assert!(UNIT.contains(&format!("\n{word}=run-vioswitch-plug.mount\n")), "{word}");
    }
    let config =
        start_as_installed(&switched_on(EXAMPLE, &["name", "socket", "ifname", "from", "to"]));
    for port in config.of(Kind::Port).chain(config.of(Kind::Stream)) {
        let path = port.socket.as_deref().expect("a socket");
        assert_eq!(path.parent(), Some("/run/vioswitch".as_ref()));
    }
}
