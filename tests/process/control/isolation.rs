//! `isolated`, `learn` and `max-addresses` at run time, in a file and on the command line: what
//! changes for frames that pass meanwhile, what is shown, and what `trace` and `why` say.

use testkit::SOON;
use testkit::vm::mac_of;

use super::*;

/// How long nothing may come where nothing must.
const QUIET: Duration = Duration::from_millis(50);
const BROADCAST: [u8; 6] = [0xff; 6];

/// Sends a frame from one guest; whether another one gets it.
fn passes(vms: &mut [Vm], from: usize, to: usize, dst: [u8; 6], src: [u8; 6]) -> bool {
    let mut frame = [&dst[..], &src, &[0x88, 0xb5]].concat();
    frame.resize(60, 0);
    vms[from].tx[0].send_waiting(&frame, SOON);
    vms[from].tx[0].drain(SOON);
    std::thread::sleep(QUIET);
    // Bystanders send to all, too.
    let mut count = 0;
    vms[to].rx[0].recv(8, |_, got| {
        if got[6..12] == src {
            assert_eq!(got, frame);
            count += 1;
        }
    });
    count == 1
}

/// Guests 2 and 3 beside the bystanders 0 and 1.
fn guests(lab: &Lab) -> Vec<Vm> {
    [2, 3].map(|id: u8| Vm::connect(&lab.d.socket(id.into()), VmConfig::new(id))).into()
}

fn words(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn has(told: &Value, sentence: &str) -> bool {
    let steps = told["steps"].as_array().expect("steps");
    steps.iter().any(|step| step.as_str().is_some_and(|step| step.contains(sentence)))
}

#[test]
fn ports_are_isolated_and_joined_while_they_serve() {
    let lab = Lab::with_ports(&["", "", ",isolated=on", ""], &[]);
    let bystanders = lab.bystanders();
    let mut vms = guests(&lab);
    let [two, three] = [2, 3].map(mac_of);
    let pass = |vms: &mut Vec<Vm>, wanted: bool| {
        for (from, to, src, dst) in [(0, 1, two, three), (1, 0, three, two)] {
            for dst in [dst, BROADCAST] {
                assert_eq!(passes(vms, from, to, dst, src), wanted, "{from} to {to} {dst:02x?}");
            }
        }
    };
    pass(&mut vms, true);
    let src = format!("src={}", words(two));
    let trace = |dst: &str| lab.json(&["trace", "p2", &src, &format!("dst={dst}")]);
    for round in 0..3 {
        assert_eq!(lab.done(&["port", "set", "p3", "isolated=on"]), "isolated off -> on  now\n");
        pass(&mut vms, false);
        let told = trace(&words(three));
        assert_eq!((&told["reason"], &told["ports"]), (&json!("isolated"), &json!([])), "{told}");
        assert!(has(&told, "'p3' and 'p2' have isolated=on"), "{told}");
        let told = trace("ff:ff:ff:ff:ff:ff");
        assert!(has(&told, "not to 'p3': it and 'p2' have isolated=on"), "{told}");
        assert_eq!(told["ports"], json!(["p0", "p1"]), "{told}");
        let found = lab.ctl(&["why", "p2", "p3"]);
        let text = String::from_utf8(found.stdout).expect("UTF-8");
        assert!(found.status.code() == Some(1), "{text}");
        assert!(text.contains("not to 'p3': it and 'p2' have isolated=on"), "{text}");
        let port = lab.json(&["port", "show", "p3"])["port"].clone();
        // One of each round is for an address that is known.
        assert_eq!(port["isolated"], json!("on"));
        assert_eq!(port["in"]["drops"]["isolated"], json!(round + 1), "{port}");
        lab.done(&["port", "set", "p3", "isolated="]);
        pass(&mut vms, true);
    }
    assert!(lab.done(&["why", "p2", "p3"]).contains("nothing in the switch is in the way"));
    bystanders.finish();
    lab.d.stop();
}

#[test]
fn learning_ends_and_is_limited_while_a_port_serves() {
    let lab = Lab::with_ports(&["", "", ",max-addresses=3", ""], &[]);
    let bystanders = lab.bystanders();
    let mut vms = guests(&lab);
    let addresses = |lab: &Lab| {
        let all = lab.json(&["fdb", "show", "--port=p2"])["addresses"].clone();
        all.as_array().expect("a list").len()
    };
    let teach = |vms: &mut Vec<Vm>, all: std::ops::Range<u8>| {
        all.for_each(|n| assert!(passes(vms, 0, 1, BROADCAST, mac_of(n)), "{n}"));
    };
    teach(&mut vms, 20..25);
    assert_eq!(addresses(&lab), 3);
    let port = lab.json(&["port", "show", "p2"])["port"].clone();
    assert_eq!((&port["max_addresses"], &port["learn_refused"]), (&json!(3), &json!(2)), "{port}");
    let of = |n: u8| format!("src={}", words(mac_of(n)));
    let trace = |n: u8| lab.json(&["trace", "p2", &of(n), "dst=ff:ff:ff:ff:ff:ff"]);
    assert!(has(&trace(24), "has as many as it may (max-addresses)"), "{}", trace(24));
    assert!(has(&trace(20), "is known here"), "{}", trace(20));
    // What is counted is looked at each second.
    let full = ("p2".to_owned(), "fdb-full".to_owned());
    assert!(wait_for(SOON, || super::findings::found(&lab).contains(&full)), "{}", lab.d.log());
    // A smaller number takes nothing away by itself.
    assert_eq!(lab.done(&["port", "set", "p2", "max-addresses=1"]), "max-addresses 3 -> 1  now\n");
    assert_eq!(addresses(&lab), 3);
    lab.done(&["fdb", "flush", "--port=p2"]);
    teach(&mut vms, 20..25);
    assert_eq!(addresses(&lab), 1);
    lab.done(&["port", "set", "p2", "max-addresses="]);
    teach(&mut vms, 20..25);
    assert_eq!(addresses(&lab), 5);
    // Static ones stay, and come.
    lab.done(&["fdb", "add", "02:00:00:00:00:08", "p2"]);
    assert_eq!(lab.done(&["port", "set", "p2", "learn=off"]), "learn on -> off  now\n");
    assert_eq!(addresses(&lab), 1);
    teach(&mut vms, 20..25);
    assert!(has(&trace(24), "is not learned here (learn=off)"), "{}", trace(24));
    lab.done(&["port", "set", "p2", "mac=02:00:00:00:00:08", "mac=02:00:00:00:00:09"]);
    assert_eq!(addresses(&lab), 2);
    lab.done(&["port", "set", "p2", "learn=on"]);
    teach(&mut vms, 20..22);
    assert_eq!(addresses(&lab), 4);
    bystanders.finish();
    lab.d.stop();
}

/// The same keys in a file, which is read again, of every kind of port; and in a template.
#[test]
fn a_file_has_the_keys_of_every_kind_of_port() {
    testkit::host::in_namespace(|| {
        let dir = Dir::new();
        let path = dir.path().join("vioswitch.toml");
        let at = |name: &str| dir.path().join(name).display().to_string();
        let file = |keys: &str| {
            let text = format!(
                "plug = '{}'\n[[port]]\nname = 'a'\nsocket = '{}'\n{keys}\n[[tap]]\nname = 'b'\n\
                 ifname = 'tb'\n{keys}\n[[stream]]\nname = 'c'\nsocket = '{}'\n{keys}\n\
                 [template.plug]\n{keys}\n",
                at("plug"),
                at("a"),
                at("c")
            );
            std::fs::write(&path, text).expect("a file");
        };
        std::fs::create_dir(dir.path().join("plug")).expect("a directory");
        file("isolated = 'on'\nlearn = 'off'\nmax-addresses = 7");
        let lab = Lab::with_ports(&[], &["--config", &path.display().to_string()]);
        let all = |lab: &Lab, values: [Value; 3]| {
            ["a", "b", "c"].iter().all(|name| {
                let port = lab.json(&["port", "show", name])["port"].clone();
                [&port["isolated"], &port["learn"], &port["max_addresses"]] == values.each_ref()
            })
        };
        assert!(all(&lab, [json!("on"), json!("off"), json!(7)]), "{}", lab.d.log());
        file("");
        lab.done(&["config", "reload"]);
        assert!(all(&lab, [json!("off"), json!("on"), Value::Null]), "{}", lab.d.log());
        lab.d.stop();
    });
}

#[test]
fn bad_values_name_their_keys() {
    let lab = Lab::with_ports(&[""], &[]);
    for (given, wanted) in [
        ("isolated=yes", "isolated must be on or off, not 'yes'"),
        ("learn=no", "learn must be on or off, not 'no'"),
        ("max-addresses=0", "max-addresses must be a number from 1 to 65536, not 0"),
        ("max-addresses=65537", "max-addresses must be a number from 1 to 65536, not 65537"),
        ("max-addresses=all", "max-addresses must be a number from 1 to 65536, not 'all'"),
    ] {
        let (status, line) = lab.fails(&["port", "set", "p0", given]);
        assert!(status > 0 && line.contains(wanted), "{given}: {line}");
        let port = format!("a,socket=/tmp/never,{given}");
        let output = Command::new(testkit::proc::program()).args(["--port", &port]).output();
        let output = output.expect("vioswitchd");
        let (line, key) = (String::from_utf8_lossy(&output.stderr), &given[..5]);
        assert!(output.status.code() == Some(2) && line.contains(key), "{given}: {line}");
    }
    lab.d.stop();
}
