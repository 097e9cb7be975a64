//! Defaults, equal settings of both sources, and the precedence of the command line.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;

use super::*;
use base::frame::offload::Offloads;
use switch::PortPolicy;

/// Returns a TAP with defaults.
fn tap(name: &str, ifname: &str) -> Settings {
    let (name, ifname) = (name.into(), Some(ifname.into()));
    Settings { name, ifname, ..Settings::new(Kind::Tap) }
}

/// Returns a port with defaults.
fn port(name: &str, socket: &str) -> Settings {
    let (name, socket) = (name.into(), Some(socket.into()));
    Settings { name, socket, ..Settings::new(Kind::Port) }
}

#[test]
fn defaults() {
    let ports = [port("vm1", "/run/vm1"), tap("up", "tap0")];
    let expected = Config {
        ports: ports.map(|settings| Entry::new(settings, Origin::Config)).into(),
        workers: 1,
        cpus: vec![],
        poll: false,
        latency: Latency::Normal,
        age_seconds: 300,
        control: None,
        metrics: None,
        log_level: log::LevelFilter::Info,
        uplink_to_uplink: false,
        mac_flap_damping: true,
        sandbox: true,
        multicast_snooping: false,
        plug: None,
        template: Settings::new(Kind::Template),
        warnings: vec![],
        words: config(&["--port=a,socket=/a"]).words,
    };
    let plain = Settings { kind: Kind::Port, ..Settings::new(Kind::Template) };
    assert_eq!(plain, Settings::new(Kind::Port));
    let Settings { queues, offload, socket_mode, mac, flood, memory, .. } = plain;
    assert_eq!((queues, offload, socket_mode), (1, Offload::ON, 0o660));
    assert!(mac.is_empty() && flood && memory == Memory::Any);
    assert_eq!(config(&["--port", "vm1,socket=/run/vm1", "--tap", "up,ifname=tap0"]), expected);
    let file = "[[port]]\nname='vm1'\nsocket='/run/vm1'\n[[tap]]\nname='up'\nifname='tap0'\n";
    assert_eq!(good_file(file, &[]), expected);
}

/// Returns the configuration of a command line with every option.
fn everything() -> Config {
    config(&[
        "--port",
        "vm1,socket=/run/a,,b,socket-mode=0600,socket-group=root,queues=16,mac=52:54:00:00:00:01,\
         mac=52-54-00-00-00-02,offload=csum,mtu=9000,memory=prealloc",
        "--port=vm2,socket=c.sock,mode=client,offload=off",
        "--port=vm3,socket=/d,mode=server,socket-group=65534",
        "--tap=up,ifname=tap0,queues=4,offload=off,mtu=1400",
        "--tap=up2,ifname=tap1",
        "--workers=4",
        "--cpus=3,0",
        "--poll",
        "--age=1",
        "--control=/run/control",
        "--control-group=root",
        "--control-admin-group=65534",
        "--capture-group=65533",
        "--metrics=[::1]:9434",
        "--log-level=Debug",
        "--uplink-to-uplink",
    ])
}

#[test]
fn everything_given_reads_the_same_from_arguments_and_file() {
    let args = everything();
    let file = "
        workers = 4
        cpus = '3,0'
        poll = true
        age = 1
        control = '/run/control'
        control-group = 'root'
        control-admin-group = 65534
        capture-group = 65533
        log-level = 'debug'
        metrics = '[::1]:9434'
        uplink-to-uplink = true
        [[port]]
        name = 'vm1'
        socket = '/run/a,b'
        socket-mode = '0600'
        socket-group = 'root'
        queues = 16
        mac = ['52:54:00:00:00:01', '52:54:00:00:00:02']
        offload = 'csum'
        mtu = 9000
        memory = 'prealloc'
        [[port]]
        name = 'vm2'
        socket = 'c.sock'
        mode = 'client'
        offload = 'off'
        [[port]]
        name = 'vm3'
        socket = '/d'
        mode = 'server'
        socket-group = 65534
        [[tap]]
        name = 'up'
        ifname = 'tap0'
        queues = 4
        offload = 'off'
        mtu = 1400
        [[tap]]
        name = 'up2'
        ifname = 'tap1'
    ";
    assert_eq!(good_file(file, &[]), args);
    let first = Endpoint::Server { path: "/run/a,b".into(), mode: 0o600, group: Some(0) };
    let ports = settings(&args);
    assert_eq!(ports[0].endpoint(), Some(first));
    let offers: Vec<_> = args.of(Kind::Port).map(|port| port.offload.receive).collect();
    assert_eq!(offers, [Offloads::CSUM, Offloads::NONE, Offloads::ALL]);
    let first = ports[0];
    assert_eq!((first.mac.len(), first.mtu), (2, Some(9000)));
    assert_eq!((ports[3].offload.receive, ports[3].mtu), (Offloads::NONE, Some(1400)));
    assert_eq!(ports[1].endpoint(), Some(Endpoint::Client { path: "c.sock".into() }));
    let third = Endpoint::Server { path: "/d".into(), mode: 0o660, group: Some(65534) };
    assert_eq!(ports[2].endpoint(), Some(third));
    assert_eq!((args.workers, args.poll, args.age_seconds), (4, true, 1));
    let control = Control {
        path: "/run/control".into(),
        group: Some(0),
        admins: Some(65534),
        capture: Some(65533),
    };
    assert_eq!((&args.cpus, &args.control), (&vec![3, 0], &Some(control)));
    assert!(args.uplink_to_uplink);
    assert_eq!((first.memory, ports[1].memory), (Memory::Prealloc, Memory::Any));
    assert_eq!(args.metrics, Some(MetricsSocket::Ip("[::1]:9434".parse().unwrap())));
    assert_eq!(args.log_level, log::LevelFilter::Debug);
}

#[test]
fn offloads_are_for_both_directions_or_for_what_is_sent() {
    let [csum, none, all] = [Offloads::CSUM, Offloads::NONE, Offloads::ALL];
    for (word, send, receive) in
        [("on", all, all), ("send", all, none), ("csum", csum, csum), ("off", none, none)]
    {
        let args = config(&["--port", &format!("a,socket=/a,offload={word}")]);
        assert_eq!(settings(&args)[0].offload, Offload { send, receive }, "{word}");
        let file = format!("[[port]]\nname='a'\nsocket='/a'\noffload='{word}'\n");
        assert_eq!(good_file(&file, &[]), args);
    }
}

#[test]
fn the_platform_is_asked_for() {
    for (word, platform) in [("on", true), ("off", false)] {
        let args = config(&["--port", &format!("a,socket=/a,platform={word}")]);
        assert_eq!(settings(&args)[0].platform, platform);
        let file = format!("[[port]]\nname='a'\nsocket='/a'\nplatform='{word}'\n");
        assert_eq!(good_file(&file, &[]), args);
    }
}

#[test]
fn floods_of_unknown_addresses_may_be_kept_from_a_port() {
    for (word, flood_unknown) in [("on", true), ("off", false)] {
        let port = format!("a,socket=/a,flood={word}");
        let args = config(&["--port", &port, "--tap", &format!("up,ifname=t,flood={word}")]);
        let asked: Vec<_> = settings(&args).iter().map(|port| port.policy()).collect();
        let expected = PortPolicy { flood_unknown, ..PortPolicy::PLAIN };
        assert_eq!(asked, [expected.clone(), expected]);
        let port = format!("[[port]]\nname='a'\nsocket='/a'\nflood='{word}'\n");
        let file = format!("{port}[[tap]]\nname='up'\nifname='t'\nflood='{word}'\n");
        assert_eq!(good_file(&file, &[]), args);
    }
}

#[test]
fn a_single_address_needs_no_list() {
    let file = format!("[[port]]\nname='a'\nsocket='/a'\nmac='{MAC}'\nsocket-group='0'\n");
    assert_eq!(settings(&good_file(&file, &[]))[0].mac, [MAC.parse().unwrap()]);
}

#[test]
fn latency_is_a_word_or_a_number() {
    for (word, text, meant) in [
        ("normal", "'normal'", Latency::Normal),
        ("low", "'low'", Latency::Within(0)),
        ("20", "20", Latency::Within(20)),
    ] {
        let file = good_file(&format!("latency={text}\nsocket-path='/s'"), &[]);
        let args = config(&[&format!("--latency={word}"), "--socket-path=/s"]);
        assert_eq!((file.latency, args.latency), (meant, meant));
        assert_eq!(meant.to_string(), word);
    }
}

#[test]
fn scalars_of_the_command_line_win() {
    let file = "workers=2\ncpus=7\npoll=true\nage=5\ncontrol='/c'\n\
                uplink-to-uplink=true\nsocket-path='/s'";
    let untouched = good_file(file, &[]);
    assert_eq!((untouched.workers, untouched.poll, untouched.age_seconds), (2, true, 5));
    assert_eq!(untouched.cpus, [7]);
    let won = good_file(
        file,
        &[
            "--workers=3",
            "--cpus=2-3",
            "--poll=false",
            "--age=6",
            "--control=/d",
            "--uplink-to-uplink=false",
            "--socket-path=/t",
        ],
    );
    assert_eq!((won.workers, won.poll, won.age_seconds), (3, false, 6));
    assert_eq!(won.cpus, [2, 3]);
    assert_eq!(
        won.control,
        Some(Control { path: "/d".into(), group: None, admins: None, capture: None })
    );
    assert!(!won.uplink_to_uplink);
    assert_eq!(won.ports.len(), 1);
    assert_eq!(settings(&won)[0].endpoint(), server("/t"));
}

#[test]
fn an_entry_of_the_command_line_replaces_its_namesake_as_a_whole() {
    let file = format!(
        "[[port]]\nname='a'\nsocket='/a'\nqueues=4\nmac=['{MAC}']\nmtu=576\noffload='off'\n\
         [[port]]\nname='b'\nsocket='/b'\n[[tap]]\nname='up'\nifname='tap0'\nqueues=2\n"
    );
    let args = ["--port=a,socket=/new", "--port=c,socket=/c", "--tap=up,ifname=tap9"];
    let config = good_file(&file, &args);
    let ports = config.of(Kind::Port).map(|port| (port.name.as_str(), port.endpoint()));
    let wanted = [("a", server("/new")), ("b", server("/b")), ("c", server("/c"))];
    assert_eq!(ports.collect::<Vec<_>>(), wanted);
    assert_eq!(*settings(&config)[0], port("a", "/new"));
    assert_eq!(*settings(&config)[3], tap("up", "tap9"));
}

#[test]
fn what_a_replaced_entry_had_is_free_again() {
    let file = format!("[[port]]\nname='a'\nsocket='/a'\nmac='{MAC}'\n");
    let other = format!("--port=b,socket=/a,mac={MAC}");
    assert_eq!(good_file(&file, &["--port=a,socket=/x", &other]).ports.len(), 2);
}

#[test]
fn conflicts_between_arguments_and_file_name_the_argument() {
    let file = "control='/ctl'\n[[port]]\nname='a'\nsocket='/a'\n[[tap]]\nname='up'\nifname='t'\n";
    let cases = [
        ("--port=b,socket=/./a", "--port b,socket=/./a: socket '/./a' is already used in line 4"),
        ("--port=b,socket=/ctl", "--port b,socket=/ctl: socket '/ctl' is already used in line 1"),
        ("--port=up,socket=/b", "--port up,socket=/b: name 'up' is already used in line 6"),
        ("--tap=a,ifname=u", "--tap a,ifname=u: name 'a' is already used in line 3"),
        ("--tap=v,ifname=t", "--tap v,ifname=t: interface 't' is already used in line 7"),
        ("--control=/a", "--control /a: socket '/a' is already used in line 4"),
    ];
    for (arg, expected) in cases {
        let error = with_file(file, &[arg]).unwrap_err();
        let (start, line) = expected.split_once(" in line ").unwrap();
        assert_eq!(error.lines.len(), 1, "{error:?}");
        assert!(error.lines[0].starts_with(&format!("vioswitchd: {start} in /")), "{error:?}");
        assert!(error.lines[0].ends_with(&format!(".toml:{line}")), "{error:?}");
    }
}

/// Two paths with one file name, in a directory and in a link to the directory, are one socket.
#[test]
fn one_socket_by_two_paths_is_a_conflict() {
    let directory = std::env::temp_dir().join(format!("vioswitch-spelled-{}", std::process::id()));
    let link = directory.join("link");
    std::fs::create_dir_all(directory.join("real")).unwrap();
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink("real", &link).unwrap();
    let at = |path: &str| directory.join(path).display().to_string();
    let first = format!("--port=a,socket={}", at("real/s"));
    for other in ["link/s", "real/../real/s", "link/../real//s"] {
        let line = complaint(&[&first, &format!("--port=b,socket={}", at(other))]);
        assert!(line.ends_with(&format!("is already used by --port a,socket={}", at("real/s"))));
    }
    // No other path conflicts with the first path.
    for other in ["real/t", "s", "none/s"] {
        config(&[&first, &format!("--port=b,socket={}", at(other))]);
    }
    // A path relative to the caller's directory.
    let here = std::env::current_dir().unwrap().join("s").display().to_string();
    let line = complaint(&["--port=a,socket=s", &format!("--port=b,socket={here}")]);
    assert!(line.ends_with("is already used by --port a,socket=s"), "{line}");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn the_numbers_of_ports_and_taps_are_words() {
    let one = config(&["--port=a,socket=/a"]);
    assert_eq!(one.summary(), "1 port, 0 taps");
    let more = config(&["--port=a,socket=/a", "--port=b,socket=/b", "--tap=t,ifname=t"]);
    assert_eq!(more.summary(), "2 ports, 1 tap");
    let Ok(Action::Check(found)) = run(&["--port=a,socket=/a", "--check"]) else { panic!("run") };
    assert_eq!(found, one);
}

#[test]
fn shorthands_make_one_port() {
    let made = config(&["--socket-path", "/run/s"]);
    assert_eq!(settings(&made), [&port("port0", "/run/s")]);

    let path = std::env::temp_dir().join(format!("vioswitch-config-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    let fd = listener.as_raw_fd();
    assert_eq!(settings(&config(&["--fd", &fd.to_string()]))[0].endpoint(), Some(Endpoint::Fd(fd)));
    let replaced = good_file("socket-path='/s'\nage=7\n", &[&format!("--fd={fd}")]);
    assert_eq!(settings(&replaced)[0].endpoint(), Some(Endpoint::Fd(fd)));
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn nothing_to_switch_says_what_to_give() {
    for args in [&[][..], &["--workers=1"]] {
        let line = complaint(args);
        assert!(line.starts_with("nothing to switch: give --port, --tap or"), "{line}");
    }
    assert!(config(&["--control=/c"]).ports.is_empty(), "they may come later");
    assert!(with_file("workers = 1\n", &[]).unwrap_err().lines[0].contains("nothing to switch"));
    // An empty command line, without the program's name.
    assert!(from_args(Vec::<OsString>::new(), CPUS).is_err());
}

#[test]
fn the_first_of_several_bad_arguments_is_told() {
    assert!(complaint(&["--age=0", "--workers=0"]).starts_with("--workers 0: "));
    // A bad argument is reported before a bad file.
    let error = with_file("bogus = 1\n", &["--age=0"]).unwrap_err();
    assert!(error.lines[0].starts_with("vioswitchd: --age 0: "), "{error:?}");
    assert_eq!(error.lines.len(), 1);
}
