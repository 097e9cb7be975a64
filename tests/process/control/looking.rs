//! Commands that derive more from what the switch reports.

use std::time::Instant;

use super::top::printed;
use super::*;

#[test]
fn a_port_is_added_and_waited_for() {
    let lab = Lab::new(1, &[]);
    let began = Instant::now();
    lab.done(&["port", "add", "vm3", "--wait=listening"]);
    println!("port add --wait=listening took {:?}", began.elapsed());
    assert!(lab.socket("vm3.sock").exists());
    let (status, line) = lab.fails(&["port", "wait", "vm3", "--for=up", "--timeout=100ms"]);
    assert_eq!(status, 1, "{line}");
    assert!(line.starts_with("timed out: the port is still listening; see "), "{line}");
    let waiting = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| lab.done(&["port", "wait", "p0"]));
        let vm = Vm::connect(&lab.d.socket(0), VmConfig::new(0));
        (waiting.join().expect("it came"), vm)
    });
    assert_eq!(waiting.0, "");
    assert_eq!(lab.done(&["port", "list", "--names"]), "p0\nvm3\n");
    assert_eq!(lab.done(&["tap", "list"]).lines().count(), 1, "a title");
    for (args, words) in [
        (&["port", "wait", "p0", "--for=gone"][..], "invalid value 'gone'"),
        (&["port", "wait", "p0", "--timeout=x"], "a time such as 500ms"),
        (&["port", "wait", "p0", "--timeout=2d"], "a time such as 500ms"),
        (&["port", "add", "y", "queue=1"], "write queues=1"),
        (&["port", "add", "y", "offlod=on"], "unknown key 'offlod', did you mean offload=on?"),
        (&["drop"], " drops'?"),
    ] {
        let (status, line) = lab.fails(args);
        assert!(status == 2 && line.contains(words), "{args:?}: {status} {line}");
    }
    lab.d.stop();
}

#[test]
fn drops_come_with_what_to_do() {
    let lab = Lab::new(2, &[]);
    assert_eq!(lab.json(&["drops"]), json!({"drops": [], "senders": []}));
    let mut vm = Vm::connect(&lab.d.socket(0), VmConfig::new(0));
    // To an address that a bridge does not forward to.
    let mut frame = vec![0; 60];
    frame[..6].copy_from_slice(&[1, 0x80, 0xc2, 0, 0, 0]);
    frame[6..12].copy_from_slice(&vm.mac());
    vm.tx[0].send_waiting(&frame, LOST);
    let told = || lab.json(&["drops", "p0"])["drops"].clone();
    assert!(wait_for(LOST, || told()[0]["count"] == 1), "{}", told());
    let drop = &told()[0];
    assert_eq!((&drop["reason"], &drop["direction"]), (&json!("reserved"), &json!("in")));
    let page = include_str!("../../../docs/counters.md");
    let reasons = lab.client().call("GetDropReasons", json!({}))["parameters"]["reasons"].clone();
    let reserved = reasons.as_array().unwrap().iter().find(|one| one["name"] == "reserved");
    assert_eq!(reserved.expect("reserved")["directions"], json!(["in"]), "{reasons}");
    for key in ["meaning", "advice"] {
        let text = drop[key].as_str().unwrap();
        assert!(!text.is_empty() && page.contains(text), "{drop}");
    }
    let table = lab.done(&["drops"]);
    assert!(table.starts_with("PORT  DIR  REASON    COUNT  LAST"), "{table}");
    assert_eq!(lab.done(&["drops", "p1"]).lines().count(), 1, "a title");
    assert!(drop["age"].as_u64().is_some_and(|age| age < 60), "{drop}");
    // In a terminal it fits, and says the same; but the drop is older by now.
    let words = |text: &str| {
        let is_age = |word: &&str| {
            !["just", "now", "s", "ago"].contains(word) && word.parse::<u64>().is_err()
        };
        let mut words: Vec<String> =
            text.split_whitespace().filter(is_age).map(str::to_owned).collect();
        words.sort();
        words
    };
    for columns in [80, 120] {
        let fitted = printed(&lab, &["drops"], columns);
        let fits = |line: &str| line.chars().count() <= columns.into();
        assert!(fitted.lines().all(fits) && fitted.lines().count() > 2, "{fitted}");
        assert_eq!(words(&fitted), words(&table));
    }
    assert_eq!(printed(&lab, &["port", "list"], 80), lab.done(&["port", "list"]));
    let shown = lab.done(&["port", "show", "p0", "--rate"]);
    for words in
        ["VIRTIO_F_VERSION_1", "MEMORY", "anonymous", "running", "rate in:", "bit/s", "KiB"]
    {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    lab.d.stop();
}

#[test]
fn health_versions_and_workers() {
    let lab = Lab::new(1, &["--workers=2"]);
    assert_eq!(lab.done(&["health"]), "healthy\n");
    let version = lab.json(&["version"]);
    assert_eq!(version["client"], version["switch"]);
    let workers = lab.json(&["worker", "--rate"]);
    for worker in workers["workers"].as_array().unwrap() {
        assert!((0.0..=1.0).contains(&worker["busy"].as_f64().unwrap()), "{worker}");
    }
    assert_eq!(lab.done(&["worker"]).lines().count(), 3);
    lab.d.stop();

    let missing = "--port=bad,socket=/no/such/directory/x.sock";
    let lab = Lab::new(1, &[missing]);
    let output = lab.ctl(&["health"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.starts_with("degraded\n  port bad: "), "{text}");
    lab.d.stop();
}

/// Rates come until nobody reads them any more.
#[test]
fn rates_are_watched() {
    let lab = Lab::new(1, &[]);
    let mut client = Command::new(env!("CARGO_BIN_EXE_vioswitchctl"))
        .arg("--control")
        .arg(&lab.path)
        .args(["--json", "stats", "--watch", "50ms"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("vioswitchctl");
    let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
    for _ in 0..3 {
        let line = lines.next().expect("a line").expect("UTF-8");
        let told: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(told["ports"][0]["name"], "p0", "{told}");
        assert_eq!(told["ports"][0]["rates"]["in"]["frames"], 0.0, "{told}");
    }
    drop(lines);
    assert!(client.wait().expect("its end").success());
    lab.d.stop();
}

/// Words of ip(8), ovs-vsctl(8) and virsh(1) do what ours do, and help lists them.
#[test]
fn other_words_for_list_and_delete() {
    let lab = Lab::new(1, &["--multicast-snooping"]);
    let mac = "02:00:00:00:00:09";
    for (own, other) in [
        (&["port", "list"][..], &["port", "ls"][..]),
        (&["port", "list"], &["ls"]),
        (&["tap", "list"], &["tap", "ls"]),
        (&["fdb", "show"], &["fdb", "list"]),
        (&["fdb", "show", "--port=p0"], &["fdb", "ls", "--port=p0"]),
        (&["mdb", "show"], &["mdb", "list"]),
        (&["mirror", "list"], &["mirror", "show"]),
        (&["mirror", "list"], &["mirror", "ls"]),
    ] {
        assert_eq!(lab.done(own), lab.done(other), "{other:?}");
    }
    for word in ["rm", "remove", "delete"] {
        lab.done(&["port", "add", "a"]);
        lab.done(&["port", "add", "b"]);
        lab.done(&["fdb", "add", mac, "a"]);
        lab.done(&["mirror", "add", "m", "from=a", "to=b"]);
        lab.done(&["mirror", word, "m"]);
        lab.done(&["fdb", word, mac]);
        lab.done(&["port", word, "a"]);
        lab.done(&[word, "b", "--if-exists"]);
        assert_eq!(lab.done(&["port", "list", "--names"]), "p0\n", "{word}");
        assert_eq!(lab.json(&["mirror", "list"]), json!({"mirrors": []}), "{word}");
        assert_eq!(lab.json(&["fdb", "show"]), json!({"addresses": []}), "{word}");
    }
    let help = lab.done(&["port", "--help"]);
    assert!(help.contains("[aliases: rm, remove, delete]"), "{help}");
    lab.d.stop();
}
