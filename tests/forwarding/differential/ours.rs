//! This switch, with guests at its ports.

use std::collections::BTreeMap;
use std::process::Command;

use testkit::SOON;
use testkit::proc::{Daemon, Dir, program, wait_for};
use testkit::vm::{Vm, VmConfig};

use super::{Copies, Frame, Keys, Switch};

pub struct Ours {
    guests: BTreeMap<u8, Vm>,
    d: Daemon,
    dir: Dir,
}

impl Ours {
    pub fn start() -> Ours {
        let dir = Dir::new();
        let control = format!("--control={}", dir.path().join("control").display());
        let d = Daemon::with_ports(&[], &[&control]);
        assert!(wait_for(SOON, || d.log().contains("ready: ")), "{}", d.log());
        Ours { guests: BTreeMap::new(), d, dir }
    }

    pub fn stop(self) {
        drop(self.guests);
        self.d.stop();
    }

    fn ctl(&self, words: &[&str]) {
        let mut command = Command::new(program().with_file_name("vioswitchctl"));
        let output = command.arg("--control").arg(self.dir.path().join("control")).args(words);
        let output = output.output().expect("run vioswitchctl");
        assert!(output.status.success(), "{words:?}: {output:?}");
    }
}

/// The settings of a port; those that it does not have are unset.
fn words(keys: &Keys) -> Vec<String> {
    let on = |is_on: bool| if is_on { "on" } else { "off" };
    let list = keys.tagged.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
    let untagged = keys.untagged.map(|vlan| vlan.to_string()).unwrap_or_default();
    let members = match keys.is_access() || keys.untagged.is_none() && keys.tagged.is_empty() {
        true => [format!("vlan={untagged}"), "trunk=".to_owned(), "native=".to_owned()],
        false => ["vlan=".to_owned(), format!("trunk={list}"), format!("native={untagged}")],
    };
    let others = [
        format!("isolated={}", on(keys.isolated)),
        format!("learn={}", on(keys.learn)),
        format!("flood={}", on(keys.flood)),
    ];
    members.into_iter().chain(others).collect()
}

impl Switch for Ours {
    fn add(&mut self, port: u8, keys: &Keys) {
        let (name, words) = (format!("q{port}"), words(keys));
        let set = words.iter().filter(|word| !word.ends_with('=')).map(String::as_str);
        self.ctl(&["port", "add", &name].into_iter().chain(set).collect::<Vec<_>>());
        let vm = Vm::connect(&self.dir.path().join(name + ".sock"), VmConfig::new(port));
        self.guests.insert(port, vm);
    }

    fn delete(&mut self, port: u8) {
        self.ctl(&["port", "del", &format!("q{port}")]);
        self.guests.remove(&port);
    }

    fn change(&mut self, port: u8, _: &Keys, keys: &Keys) {
        let (name, words) = (format!("q{port}"), words(keys));
        let set = words.iter().map(String::as_str);
        self.ctl(&["port", "set", &name].into_iter().chain(set).collect::<Vec<_>>());
        self.ctl(&["fdb", "flush", &name]);
    }

    fn flush(&mut self) {
        self.ctl(&["fdb", "flush"]);
    }

    fn send(&mut self, port: u8, frame: &Frame) -> Copies {
        let vm = self.guests.get_mut(&port).expect("a guest");
        vm.tx[0].send_waiting(&frame.bytes(), SOON);
        // What is given back is delivered.
        vm.tx[0].drain(SOON);
        let mut copies = Copies::new();
        for (port, vm) in &mut self.guests {
            vm.rx[0].recv(8, |_, copy| {
                assert!(copies.insert(*port, frame.tag_of(copy)).is_none(), "twice: {frame:?}");
            });
        }
        copies
    }
}
