//! What is changed while the switch runs: written into the files of its configuration: the next
//! start has the same, and what an administrator wrote there stays. TAPs, streams and tied
//! addresses are among it. A reload has what ran, and so has a start without a state directory.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use testkit::host;

use super::findings::found_of_all;
use super::reload::Filed;
use super::*;

/// A file as somebody wrote it; SOCKETS and the names of TAPs are put in.
const FILE: &str = "\
# The machines of the shop.
age = 600

# Till.
[[port]]
name = \"till\"
socket = \"SOCKETS/till\"
mtu = 1500 # as the network
mac = \"02:00:00:00:00:01\"

# Not needed any more?
[[port]]
name = \"old\"
socket = \"SOCKETS/old\"

[[port]]
name = \"office\"        # upstairs
socket = \"SOCKETS/office\"
queues = 2             # of each
# No more.
";

const DROP_IN: &str = "\
[[stream]] # by a program
name = \"s1\"
socket = \"SOCKETS/s1\"
flood = \"off\"
";

/// Directories of a switch, with these files.
struct Etc(Dir);

impl Etc {
    fn new() -> Etc {
        let etc = Etc(Dir::new());
        fs::create_dir(etc.at("conf.d")).expect("mkdir");
        etc.write("vioswitch.toml", FILE);
        etc.write("conf.d/s1.toml", DROP_IN);
        etc
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, text: &str) -> String {
        text.replace("SOCKETS", &self.0.path().display().to_string())
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.at(name), self.text(text)).expect("write");
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.at(name)).expect(name)
    }

    fn option(&self) -> String {
        format!("--config={}", self.at("vioswitch.toml").display())
    }

    /// All that is there, with what it holds.
    fn all(&self) -> Vec<(PathBuf, String)> {
        let mut all = Vec::new();
        for directory in [self.0.path().to_owned(), self.at("conf.d")] {
            let entries = fs::read_dir(directory).into_iter().flatten();
            for path in entries.map(|entry| entry.expect("entry").path()) {
                let kind = fs::symlink_metadata(&path).expect("metadata").file_type();
                if kind.is_file() {
                    all.push((path.clone(), fs::read_to_string(path).expect("UTF-8")));
                }
            }
        }
        all.sort();
        all
    }
}

/// What is in force, without who gave it.
fn in_force(lab: &Lab) -> Vec<Value> {
    let config = lab.json(&["config", "show"]);
    let mut all = config["entries"].as_array().expect("entries").clone();
    for entry in &mut all {
        entry["origin"] = Value::Null;
        // Whether an address is tied to a port or among its settings.
        let tied = entry["addresses"].take();
        let keys = entry["keys"].as_array_mut().expect("keys");
        let mut macs = tied.as_array().expect("addresses").clone();
        if let Some(at) = keys.iter().position(|key| key["key"] == "mac") {
            macs.extend(keys.remove(at)["values"].as_array().expect("values").clone());
        }
        macs.sort_by_key(ToString::to_string);
        entry["mac"] = macs.into();
    }
    all
}

fn origins(lab: &Lab) -> Vec<String> {
    let config = lab.json(&["config", "show"]);
    let entries = config["entries"].as_array().expect("entries").iter();
    entries
        .map(|entry| {
            let word = |key: &str| entry[key].as_str().expect(key).to_owned();
            format!("{} {}", word("name"), word("origin"))
        })
        .collect()
}

/// Changes of every kind.
fn change_all(lab: &Lab, etc: &Etc) {
    let socket = |name: &str| format!("socket={}", etc.at(name).display());
    lab.done(&["port", "add", "vm9", &socket("vm9"), "queues=4", "mac=02:00:00:00:00:09"]);
    lab.done(&["fdb", "add", "02:00:00:00:00:19", "vm9"]);
    lab.done(&["port", "add", "vm8", &socket("vm8"), "mode=client"]);
    lab.done(&["tap", "add", "up", "ifname=vsave0", "queues=2"]);
    lab.done(&["stream", "add", "s2", &socket("s2"), "mtu=1400"]);
    lab.done(&["stream", "set", "s1", "flood=", "mtu=1300"]);
    lab.done(&["port", "set", "till", "mtu=9000"]);
    lab.done(&["fdb", "add", "02:00:00:00:00:11", "till"]);
    lab.done(&["port", "set", "office", "queues=", "mac=02:00:00:00:00:12"]);
    lab.done(&["port", "del", "old"]);
}

#[test]
fn the_next_start_has_what_runs_and_comments_stay() {
    host::in_namespace(|| {
        let etc = Etc::new();
        let mut lab = Lab::new(0, &[&etc.option()]);
        let save = |lab: &Lab, more: &[&str]| {
            lab.done(&[&["config", "save", &etc.option()], more].concat())
        };
        assert_eq!(save(&lab, &["--diff"]), "");
        change_all(&lab, &etc);
        let before = (etc.all(), in_force(&lab));
        let diff = save(&lab, &["--diff"]);
        assert_eq!(etc.all(), before.0, "the difference is told, and nothing done");
        let told = save(&lab, &[]);
        for line in ["  ~ port till\n", "  - port old\n", "  + tap up\n", "  ~ stream s1\n"] {
            assert!(told.contains(line), "{line}: {told}");
        }
        let wanted = FILE
            .replace("mtu = 1500 #", "mtu = 9000 #")
            .replace("\"02:00:00:00:00:01\"", "[\"02:00:00:00:00:01\", \"02:00:00:00:00:11\"]")
            .replace("[[port]]\nname = \"old\"\nsocket = \"SOCKETS/old\"\n", "")
            .replace(
                "queues = 2             # of each\n",
                "queues = 1             # of each\nmac = \"02:00:00:00:00:12\"\n",
            );
        assert_eq!(etc.read("vioswitch.toml"), etc.text(&wanted));
        assert_eq!(etc.read("vioswitch.toml~"), etc.text(FILE));
        let stream = DROP_IN.replace("\"off\"\n", "\"on\"\nmtu = 1300\n");
        assert_eq!(etc.read("conf.d/s1.toml"), etc.text(&stream));
        let added = "\n[[stream]]\nname = \"s2\"\nsocket = \"SOCKETS/s2\"\nmtu = 1400\n\n\
                     [[tap]]\nname = \"up\"\nifname = \"vsave0\"\nqueues = 2\n\n\
                     [[port]]\nname = \"vm8\"\nsocket = \"SOCKETS/vm8\"\nmode = \"client\"\n\n\
                     [[port]]\nname = \"vm9\"\nsocket = \"SOCKETS/vm9\"\nqueues = 4\n\
                     mac = [\"02:00:00:00:00:09\", \"02:00:00:00:00:19\"]\n";
        let saved = etc.read("conf.d/saved.toml");
        assert!(saved.starts_with("# ") && saved.ends_with(&etc.text(added)), "{saved}");
        // The difference was that, as patch takes it.
        for line in diff.lines().filter(|line| line.starts_with('+') && !line.starts_with("+++")) {
            let written = etc.all();
            assert!(written.iter().any(|(_, text)| text.contains(&line[1..])), "{line}");
        }
        assert_eq!(save(&lab, &[]), "nothing to save: the files have what runs\n");
        // A reload, and then a start without a state directory: nothing changes but the origin.
        let mut guest = Vm::connect(&etc.at("vm9"), VmConfig::new(9));
        lab.done(&["config", "reload"]);
        assert!(!guest.fe.closed_within(Duration::from_millis(50)));
        assert!(
            origins(&lab).iter().all(|origin| origin.ends_with(" file")),
            "{:?}",
            origins(&lab)
        );
        assert_eq!(in_force(&lab), before.1);
        assert_eq!(save(&lab, &["--diff"]), "");
        drop(guest);
        lab.d.kill();
        lab.d.restart();
        let up = wait_for(LOST, || lab.ctl(&["status"]).status.success());
        assert!(up, "{}", lab.d.log());
        assert_eq!(in_force(&lab), before.1);
        assert_eq!((lab.done(&["config", "diff"]), save(&lab, &["--diff"])), Default::default());
        lab.d.stop();
    });
}

/// Saved is saved, whatever is changed after it: the next time only that is written.
#[test]
fn what_is_saved_twice_is_there_once() {
    let filed = Filed::new(1, &[("f1", "")], &[]);
    let lab = &filed.lab;
    let config = format!("--config={}", filed.etc.path().join("vioswitch.toml").display());
    let save = || lab.done(&["config", "save", &config]);
    let socket = |name: &str| format!("socket={}", filed.etc.path().join(name).display());
    lab.done(&["port", "add", "r1", &socket("r1")]);
    lab.done(&["port", "set", "f1", "mtu=1400"]);
    save();
    lab.done(&["port", "add", "r2", &socket("r2"), "mtu=1300"]);
    lab.done(&["fdb", "add", "02:00:00:00:00:01", "f1"]);
    let told = save();
    assert!(told.contains("+ port r2") && !told.contains("r1") && told.contains("~ port f1"));
    // One of those is another kind of port by now.
    lab.done(&["config", "reload"]);
    lab.done(&["port", "del", "r1"]);
    lab.done(&["stream", "add", "r1", &socket("r1")]);
    let told = save();
    assert!(told.contains("- port r1") && told.contains("+ stream r1"), "{told}");
    lab.done(&["config", "reload"]);
    assert_eq!(origins(lab), ["f1 file", "p0 cli", "r1 file", "r2 file"]);
    let text = fs::read_to_string(filed.etc.path().join("conf.d/saved.toml")).expect("read");
    let names: Vec<&str> = text.lines().filter(|line| line.starts_with("name")).collect();
    assert_eq!(names, ["name = \"r2\"", "name = \"r1\""]);
    assert_eq!(save(), "nothing to save: the files have what runs\n");
    drop(filed.lab.d);
}

/// What an administrator wrote there since is not overwritten, and what the command line says no
/// file can say.
#[test]
fn what_cannot_be_saved_is_said_and_the_rest_is() {
    let etc = Etc::new();
    let lab = Lab::new(2, &[&etc.option()]);
    let option = etc.option();
    let save = |more: &[&'static str]| [&["config", "save", option.as_str()], more].concat();
    // Another file than the switch's, and one who may not ask.
    let (status, line) = lab.fails(&["config", "save", "--config=/no/such"]);
    let file = etc.at("vioswitch.toml");
    let file = file.display();
    let wanted =
        format!("the switch does not read /no/such: vioswitchctl config save --config {file}");
    assert_eq!((status, line), (1, wanted));
    lab.done(&["port", "set", "till", "mtu=9000"]);
    lab.done(&["port", "set", "p0", "mtu=9000"]);
    lab.done(&["port", "del", "p1"]);
    lab.done(&["port", "del", "old"]);
    // The file was changed since, and not read again.
    etc.write("vioswitch.toml", &FILE.replace("mtu = 1500", "mtu = 1400"));
    let before = etc.all();
    let (status, line) = lab.fails(&save(&[]));
    assert!(status == 1 && line.starts_with("port till stands otherwise in the files"), "{line}");
    assert_eq!(etc.all(), before);
    etc.write("vioswitch.toml", &FILE.replace("mtu = 1500", "mtu = \"x\""));
    let (status, line) = lab.fails(&save(&["--diff"]));
    assert!(status == 1 && line.contains("vioswitch.toml:8: mtu must be a number"), "{line}");
    // A reload that waits says nothing for good.
    etc.write("vioswitch.toml", FILE);
    lab.done(&["config", "reload", "--confirm=600"]);
    let (_, line) = lab.fails(&save(&[]));
    assert_eq!(line, "a reload is under way, or waits for config confirm");
    lab.done(&["config", "confirm"]);
    lab.done(&["port", "set", "till", "mtu=9000"]);
    let output = lab.ctl(&save(&[]));
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    let (told, left) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(told.contains("  ~ port till\n"), "{told}");
    assert_eq!(
        left,
        "vioswitchctl: not saved: port p0 is the command line's, and is changed there; \
         port p1 is the command line's, and is changed there\n"
    );
    assert!(etc.read("vioswitch.toml").contains("mtu = 9000 # as the network"));
    let told = lab.ctl(&[&["--json"], save(&["--diff"]).as_slice()].concat()).stdout;
    let told: Value = serde_json::from_slice(&told).expect("JSON");
    assert_eq!(told["files"], json!([]));
    assert_eq!(told["left"].as_array().expect("left").len(), 2);
    lab.d.stop();
    let lab = Lab::new(1, &[]);
    let (status, line) = lab.fails(&["config", "save"]);
    assert!(status == 1 && line.starts_with("there is no file to save to: "), "{line}");
    lab.d.stop();
}

/// What runs is what the files say, at once, and a doctor has no complaint. Where an administrator
/// wrote something else there too, that is not taken over.
#[test]
fn what_is_saved_differs_from_nothing() {
    let filed = Filed::new(0, &[("f1", ""), ("f2", ""), ("f3", "")], &[]);
    let (lab, etc) = (&filed.lab, filed.etc.path());
    let config = format!("--config={}", etc.join("vioswitch.toml").display());
    let save = || lab.done(&["config", "save", &config]);
    let r1 = format!("socket={}", etc.join("r1").display());
    let changes: [&[&str]; 8] = [
        &["fdb", "add", "02:00:00:00:00:01", "f1"],
        &["port", "set", "f1", "label=tenant 7"],
        &["port", "add", "r1", &r1],
        &["fdb", "add", "02:00:00:00:00:02", "r1"],
        &["mirror", "add", "m1", "from=f1", "to=r1"],
        &["port", "set", "f2", "vlan=10", "mac=02:00:00:00:00:03"],
        &["mirror", "del", "m1"],
        &["port", "del", "f3"],
    ];
    let codes = || -> Vec<String> { found_of_all(lab).into_iter().map(|(_, code)| code).collect() };
    for change in changes {
        lab.done(change);
        assert!(codes().contains(&"not-kept".to_owned()), "{change:?}: {:?}", codes());
        assert!(save().ends_with("\nsaved\n"), "{change:?}");
        assert_eq!(lab.done(&["config", "diff"]), "", "{change:?}");
        let left = codes();
        let about = ["not-kept", "config-differs"];
        assert!(!left.iter().any(|code| about.contains(&code.as_str())), "{change:?}: {left:?}");
    }
    assert!(origins(lab).iter().all(|origin| origin.ends_with(" file")), "{:?}", origins(lab));
    let file = etc.join("vioswitch.toml");
    let text = fs::read_to_string(&file).expect("read");
    fs::write(
        &file,
        text.replace("[[port]]\nname = \"f1\"", "[[port]]\nmtu = 1400\nname = \"f1\""),
    )
    .expect("write");
    lab.done(&["fdb", "add", "02:00:00:00:00:05", "f2"]);
    let told = save();
    let end = "saved; config diff shows how the files differ from what runs\n";
    assert!(told.ends_with(end), "{told}");
    let diff = lab.done(&["config", "diff"]);
    assert!(diff.contains("port f1") && diff.contains("1400"), "{diff}");
    assert_eq!(lab.json(&["port", "show", "f1"])["port"]["mtu"], Value::Null);
    drop(filed.lab.d);
}

/// Mode, owner and links stay as they were; a file of its own has those of the one beside.
#[test]
fn files_keep_their_mode_and_their_links() {
    let filed = Filed::new(0, &[("f1", "")], &[]);
    let (lab, etc) = (&filed.lab, filed.etc.path());
    // Below the directory that the sandbox keeps readable: the link comes after the start.
    fs::create_dir(etc.join("real")).expect("mkdir");
    let (link, target) = (etc.join("vioswitch.toml"), etc.join("real/real.toml"));
    fs::copy(&link, &target).expect("copy");
    fs::remove_file(&link).expect("remove");
    std::os::unix::fs::symlink(&target, &link).expect("link");
    fs::set_permissions(&target, fs::Permissions::from_mode(0o640)).expect("chmod");
    if is_root() {
        std::os::unix::fs::chown(&target, Some(65_533), Some(65_532)).expect("chown");
    }
    let there = fs::metadata(&target).expect("metadata");
    lab.done(&["port", "set", "f1", "mtu=1400"]);
    lab.done(&["port", "add", "r1", &format!("socket={}", etc.join("r1").display())]);
    lab.done(&["config", "save", &format!("--config={}", link.display())]);
    assert!(fs::symlink_metadata(&link).expect("metadata").is_symlink());
    assert!(fs::read_to_string(&target).expect("read").contains("mtu = 1400"));
    for path in [target, etc.join("conf.d/saved.toml")] {
        let now = fs::metadata(&path).expect("metadata");
        let of = |file: &fs::Metadata| (file.mode(), file.uid(), file.gid());
        assert_eq!(of(&now), of(&there), "{}", path.display());
    }
    assert_eq!(fs::metadata(etc.join("conf.d")).expect("metadata").mode() & 0o777, 0o755);
    drop(filed.lab.d);
}

/// Who may not write there is told so, and one whose files the switch does not see gets them back.
#[test]
fn nothing_is_written_where_the_switch_would_not_find_it() {
    if testkit::skips_without_mounts() {
        return;
    }
    let filed =
        Filed::new(0, &[("f1", "")], &["--control-group=65533", "--control-admin-group=65532"]);
    let (lab, etc) = (&filed.lab, filed.etc.path());
    lab.done(&["port", "set", "f1", "mtu=1400"]);
    lab.done(&["port", "add", "r1", &format!("socket={}", etc.join("r1").display())]);
    let config = format!("--config={}", etc.join("vioswitch.toml").display());
    let list = || {
        let entries = fs::read_dir(etc).expect("list");
        let mut names: Vec<_> = entries.map(|entry| entry.expect("entry").file_name()).collect();
        names.sort();
        names
    };
    let before = (list(), fs::read_to_string(etc.join("vioswitch.toml")).expect("read"));
    for (groups, words) in [
        ("65533", "this is for root, user 0 or a member of group 65532"),
        ("65533,65532", "permission denied at "),
    ] {
        let (status, line) = failure(lab.as_nobody(groups, &["config", "save", &config]));
        assert!(status == 4 && line.contains(words), "{line}");
    }
    // As in a container: files of the same names, which are others.
    let script = format!(
        "d={0} && mkdir $d.copy && cp $d/vioswitch.toml $d.copy && mount --bind $d.copy $d && \
         ! {1} --control {2} config save {config} 2>&1 && cat $d/vioswitch.toml && ls -A $d",
        etc.display(),
        env!("CARGO_BIN_EXE_vioswitchctl"),
        lab.path.display()
    );
    let output = Command::new("unshare").args(["--mount", "sh", "-c", &script]).output();
    let output = output.expect("unshare");
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let _ = fs::remove_dir_all(etc.with_extension("copy"));
    assert!(output.status.success(), "{output:?}");
    let wanted = format!(
        "vioswitchctl: nothing is saved, the files are as they were: the files do not have port \
         f1, as the switch reads them\n{}conf.d\nvioswitch.toml\n",
        before.1
    );
    assert_eq!(told, wanted);
    assert_eq!((list(), fs::read_to_string(etc.join("vioswitch.toml")).expect("read")), before);
    drop(filed.lab.d);
}
