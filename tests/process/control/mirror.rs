//! Mirrors as objects: added, listed, refused, deleted; in a file and a reload; saved for the next
//! process; and while their ports go and come.

use std::fs;

use serde_json::Value;
use testkit::vm::{Vm, VmConfig};

use super::kept::Kept;
use super::reload::Filed;
use super::{LOST, Lab};

fn listed(lab: &Lab) -> Vec<(String, String, bool)> {
    let all = lab.json(&["mirror", "list"])["mirrors"].as_array().expect("mirrors").clone();
    let word = |one: &Value, key: &str| one[key].as_str().expect(key).to_owned();
    all.iter().map(|one| (word(one, "name"), word(one, "origin"), one["active"] == true)).collect()
}

/// Whether a frame of port p0 reaches the observer at p2.
fn copies(vms: &mut [Vm]) -> bool {
    let frame = [&[0xff; 6][..], &vms[0].mac(), &[0x88, 0xb5], &[7; 46]].concat();
    vms[0].tx[0].send_waiting(&frame, LOST);
    vms[0].tx[0].drain(LOST);
    assert!(vms[1].rx[0].wait(LOST), "the other one gets it anyway");
    vms[1].rx[0].recv(9, |_, got| assert_eq!(got, frame));
    std::thread::sleep(std::time::Duration::from_millis(50));
    vms[2].rx[0].recv(9, |_, got| assert_eq!(got, frame)) == 1
}

/// A mirror begins and ends while frames flow; every command that shows a port says so.
#[test]
fn a_mirror_is_added_shown_and_deleted() {
    let lab = Lab::new(3, &[]);
    let mut vms: Vec<Vm> =
        (0..3).map(|id| Vm::connect(&lab.d.socket(id.into()), VmConfig::new(id))).collect();
    // Without a mirror p2 is a port like others.
    assert!(copies(&mut vms));
    lab.done(&["mirror", "add", "m", "from=p1,vlan=7", "dir=out", "to=p2", "snaplen=128"]);
    assert!(!copies(&mut vms), "p2 gets nothing else any more");
    lab.done(&["mirror", "del", "m"]);
    lab.done(&["mirror", "add", "m", "from=p0", "to=p2"]);
    assert!(copies(&mut vms));
    let table = lab.done(&["mirror", "list"]);
    let row: Vec<&str> = table.lines().nth(1).expect("a row").split_whitespace().collect();
    assert_eq!(row, ["m", "p0", "both", "-", "p2", "-", "1", "0", "active", "transient"]);
    for (port, words) in [("p0", "watched by: "), ("p2", "observes: ")] {
        let told = lab.done(&["port", "show", port]);
        let line = told.lines().find(|line| line.starts_with(words)).expect(words);
        assert!(line.ends_with("mirror m"), "{line}");
    }
    let trace = |port: &str| {
        let frame = ["src=02:00:00:00:00:09", "dst=ff:ff:ff:ff:ff:ff"];
        lab.done(&["trace", port, frame[0], frame[1]])
    };
    assert!(trace("p0").contains("mirror 'm' copies the frame to 'p2'"), "{}", trace("p0"));
    assert!(trace("p2").contains("dropped: observer"), "{}", trace("p2"));
    let words = "mirror 'm' copies frames that leave by 'p0' to 'p2'";
    assert!(trace("p1").contains(words), "{}", trace("p1"));
    let file = lab.done(&["config", "show"]);
    assert!(file.contains("[[mirror]]") && file.contains("from = \"p0\""), "{file}");
    lab.done(&["mirror", "del", "m"]);
    assert!(copies(&mut vms), "p2 is a port like others again");
    assert_eq!(lab.json(&["port", "show", "p0"])["watched_by"], Value::Array(vec![]));
    lab.d.counters().balance();
    lab.d.stop();
}

/// Copies that reached the observer, and those that it lost, wherever mirrors are looked at.
#[test]
fn copies_and_lost_ones_are_counted() {
    let lab = Lab::new(3, &[]);
    let mut vms: Vec<Vm> =
        (0..3).map(|id| Vm::connect(&lab.d.socket(id.into()), VmConfig::new(id))).collect();
    lab.done(&["mirror", "add", "m", "from=p0", "to=p2"]);
    lab.done(&["mirror", "add", "n", "from=p1", "to=p2", "snaplen=64", "dir=out"]);
    let counts = |name: &str| {
        let all = lab.json(&["mirror", "list"])["mirrors"].clone();
        let one = all.as_array().expect("mirrors").iter().find(|one| one["name"] == name).cloned();
        let one = one.expect("a mirror");
        (one["copies"].as_u64().expect("copies"), one["lost"].as_u64().expect("lost"))
    };
    let send = |vms: &mut [Vm]| {
        for _ in 0..5 {
            let frame = [&[0xff; 6][..], &vms[0].mac(), &[0x88, 0xb5], &[7; 46]].concat();
            vms[0].tx[0].send_waiting(&frame, LOST);
            vms[0].tx[0].drain(LOST);
            assert!(vms[1].rx[0].wait(LOST));
            vms[1].rx[0].recv(9, |_, _| {});
        }
    };
    send(&mut vms);
    assert_eq!([counts("m"), counts("n")], [(5, 0), (5, 0)]);
    vms[2].disconnect();
    std::thread::sleep(std::time::Duration::from_millis(100));
    send(&mut vms);
    assert_eq!([counts("m"), counts("n")], [(5, 5), (5, 5)]);
    let text = lab.done(&["metrics"]);
    for (series, count) in [("copies", 5), ("lost", 5)] {
        let line = format!("\nvioswitch_mirror_{series}_total{{mirror=\"m\"}} {count}\n");
        assert!(text.contains(&line), "{line}{text}");
    }
    // Those of another mirror of this name begin anew; the other one's stay.
    lab.done(&["mirror", "del", "m"]);
    lab.done(&["mirror", "add", "m", "from=p0", "to=p2"]);
    assert_eq!([counts("m"), counts("n")], [(0, 0), (5, 5)]);
    lab.d.counters().balance();
    lab.d.stop();
}

/// What is refused, in one line.
#[test]
fn a_mirror_of_a_mirror_is_refused() {
    let lab = Lab::new(4, &[]);
    lab.done(&["mirror", "add", "m", "from=p0", "to=p2"]);
    for (args, words) in [
        (&["n", "from=p2", "to=p3"][..], "port 'p2' gets the copies of mirror 'm'"),
        (&["n", "from=p1", "to=p0"], "port 'p0' is watched by mirror 'm'"),
        (&["n", "from=p1", "to=p1"], "cannot get copies of its own frames"),
        (&["n", "from=p9", "to=p1"], "there is no port 'p9'"),
        (&["m", "from=p1", "to=p2"], "exists"),
        (&["p1", "from=p1", "to=p2"], "exists"),
        (&["n", "from=p1", "to=p2", "snaplen=63"], "snaplen must be a number from 64"),
        (&["n", "from=p1", "to=p2", "vlan=4095"], "vlan must be a number from 1 to 4094"),
        (&["n", "from=p1", "to=p2", "dir=up"], "dir must be in, out or both"),
    ] {
        let (status, line) = lab.fails(&[&["mirror", "add"], args].concat());
        let wanted = if words.contains("must") || words.contains("its own") { 2 } else { 1 };
        assert!(status == wanted && line.contains(words), "{args:?}: {status} {line}");
    }
    assert_eq!(lab.fails(&["mirror", "add", "n", "from=p1"]).0, 2);
    assert_eq!(lab.fails(&["mirror", "del", "n"]).0, 1);
    let (_, line) = lab.fails(&["port", "del", "m"]);
    assert!(line.contains("mirror del m"), "{line}");
    // A second one may watch another port for the same observer.
    lab.done(&["mirror", "add", "n", "from=p1", "to=p2", "dir=in"]);
    assert_eq!(listed(&lab).len(), 2);
    lab.d.stop();
}

/// A mirror rests while one of its ports is not there.
#[test]
fn a_mirror_outlives_its_ports() {
    let lab = Lab::new(0, &[]);
    let socket = |id: usize| lab.socket(&format!("p{id}.sock"));
    let add = |id: usize| {
        lab.done(&["port", "add", &format!("p{id}")]);
        Vm::connect(&socket(id), VmConfig::new(id as u8))
    };
    let mut vms: Vec<Vm> = (0..3).map(add).collect();
    lab.done(&["mirror", "add", "m", "from=p0", "to=p2", "dir=in"]);
    assert!(copies(&mut vms));
    for id in [2, 0] {
        lab.done(&["port", "del", &format!("p{id}")]);
        assert!(!listed(&lab)[0].2);
        vms[id] = add(id);
        assert!(listed(&lab)[0].2 && copies(&mut vms), "p{id} is back");
    }
    lab.d.stop();
}

/// However the process ends, the next one has the mirrors that were added, and not those deleted.
#[test]
fn mirrors_outlive_the_process_however_it_ends() {
    let mut kept = Kept::new(3, &["--mirror=c,from=p0,to=p2"]);
    assert_eq!(listed(&kept.lab), [("c".to_owned(), "config".to_owned(), true)]);
    kept.lab.done(&["mirror", "add", "r", "from=p1", "to=p2", "snaplen=64"]);
    kept.crash();
    let both = [("c", "config"), ("r", "kept")].map(|(n, o)| (n.to_owned(), o.to_owned(), true));
    assert_eq!(listed(&kept.lab), both);
    kept.lab.done(&["mirror", "del", "c"]);
    kept.stop_and_start();
    assert_eq!(listed(&kept.lab), both[1..]);
    kept.crash();
    assert_eq!(listed(&kept.lab), both[1..]);
    assert_eq!(kept.degraded(), "[]");
    kept.lab.d.stop();
}

/// A reload adds, changes and deletes mirrors of a file, and refuses one of a mirror.
#[test]
fn a_reload_has_mirrors() {
    let filed = Filed::new(0, &[("p0", ""), ("p1", ""), ("p2", "")], &[]);
    let path = filed.etc.path().join("vioswitch.toml");
    let ports = fs::read_to_string(&path).expect("the file");
    let write = |mirrors: &str| fs::write(&path, format!("{ports}{mirrors}")).expect("write");
    let mirror = |name: &str, from: &str, to: &str, more: &str| {
        format!("[[mirror]]\nname = \"{name}\"\nfrom = \"{from}\"\nto = \"{to}\"\n{more}\n")
    };
    write(&mirror("m", "p0", "p2", ""));
    let diff = filed.lab.done(&["config", "diff"]);
    assert!(diff.starts_with("+ mirror m"), "{diff}");
    let done = filed.lab.done(&["config", "reload"]);
    assert!(done.ends_with("1 added, 0 changed, 0 deleted\n"), "{done}");
    assert_eq!(listed(&filed.lab), [("m".to_owned(), "config".to_owned(), true)]);
    write(&mirror("m", "p0", "p2", "dir = \"in\"\nsnaplen = 96\nvlan = 3"));
    let done = filed.lab.done(&["config", "reload"]);
    assert!(done.ends_with("0 added, 1 changed, 0 deleted\n"), "{done}");
    let shown = filed.lab.json(&["mirror", "list"])["mirrors"][0].clone();
    assert_eq!((&shown["dir"], &shown["snaplen"]), (&Value::from("in"), &Value::from(96)));
    write(&[mirror("m", "p0", "p2", ""), mirror("n", "p2", "p1", "")].concat());
    let (_, line) = filed.lab.fails(&["config", "reload"]);
    assert!(line.contains("port 'p2' gets the copies of mirror 'm'"), "{line}");
    assert_eq!(listed(&filed.lab).len(), 1);
    write("");
    let done = filed.lab.done(&["config", "reload"]);
    assert!(done.ends_with("0 added, 0 changed, 1 deleted\n"), "{done}");
    assert_eq!(listed(&filed.lab), []);
    filed.lab.d.stop();
}
