//! Two virtual routers that did not hear each other and both had an address: the address follows
//! the one that keeps it. With keepalived, whose frames come from the virtual router's own
//! hardware address.

use std::fs::{self, File};
use std::process::Child;
use std::time::Instant;

use testkit::relay::{INTERFACE, Stack};
use testkit::skip;

use super::*;

/// Many a look at the table passes in it.
const STAYS: Duration = Duration::from_secs(3);
/// Before this was there, an address stayed at the silent router for 5.6 s and more.
const LATER: Duration = Duration::from_secs(4);
/// A try during which the machine had other things to do says nothing.
const TRIES: usize = 3;

/// Addresses of virtual routers, which have as many hardware addresses.
#[derive(Clone, Copy)]
struct Virtual {
    count: usize,
    ipv6: bool,
}

impl Virtual {
    fn macs(self) -> Vec<String> {
        let family = if self.ipv6 { 2 } else { 1 };
        (1..=self.count).map(|n| format!("00:00:5e:00:{family:02x}:{n:02x}")).collect()
    }

    fn config(self, priority: u32) -> String {
        let instance = |n: usize| {
            let address = match self.ipv6 {
                true => format!("fe80::77:{n:x}\n fd77::77:{n:x}/64"),
                false => format!("10.77.0.{}/24", 100 + n),
            };
            format!(
                "vrrp_instance v{n} {{\n state BACKUP\n interface {INTERFACE}\n use_vmac\n \
                 virtual_router_id {n}\n priority {priority}\n advert_int 0.1\n version 3\n \
                 virtual_ipaddress {{\n {address}\n }}\n}}\n"
            )
        };
        (1..=self.count).map(instance).collect()
    }
}

/// keepalived, which ends with the test.
struct Router(Child);

impl Drop for Router {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A switch with two routers behind streams `r0` and `r1`.
struct Site {
    lab: Lab,
    dir: Dir,
    stacks: Vec<Stack>,
}

impl Site {
    fn new(keys: &[&str]) -> Site {
        let dir = Dir::new();
        let streams: Vec<String> = (0..2)
            .map(|n| format!("--stream=r{n},socket={}", dir.path().join(format!("r{n}")).display()))
            .collect();
        let extra: Vec<&str> = streams.iter().map(String::as_str).chain(keys.to_vec()).collect();
        let lab = Lab::new(1, &extra);
        let stacks = (0..2).map(|n| {
            let mac = format!("52:54:00:77:01:0{n}");
            let stack = Stack::attach(&dir.path().join(format!("r{n}")), &mac);
            stack.sh(&format!(
                "ip link set lo up; ip link set {INTERFACE} up; \
                 ip address add 10.77.0.{}/24 dev {INTERFACE}",
                n + 1
            ));
            stack
        });
        let stacks = stacks.collect();
        Site { lab, dir, stacks }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn start(&self, n: usize, config: &str) -> Router {
        let log = File::create(self.path(&format!("keepalived{n}.log"))).expect("a log");
        let mut command = self.stacks[n].keepalived(self.dir.path(), n, config);
        command.stdout(log.try_clone().expect("a log")).stderr(log);
        Router(command.spawn().expect("start keepalived"))
    }

    fn said(&self, n: usize) -> String {
        fs::read_to_string(self.path(&format!("keepalived{n}.log"))).unwrap_or_default()
    }

    fn masters(&self, n: usize) -> usize {
        self.said(n).matches("Entering MASTER STATE").count()
    }

    /// Whether the two hear each other. Everyone else hears both.
    fn isolate(&self, on: bool) {
        let key = if on { "isolated=on" } else { "isolated=off" };
        ["r0", "r1"].iter().for_each(|name| drop(self.lab.done(&["stream", "set", name, key])));
    }

    /// Whether all these are at a port, and held there if that is asked.
    fn all_at(&self, macs: &[String], port: &str, held: bool) -> bool {
        let shown = self.lab.json(&["fdb", "show"]);
        let there = |mac: &String| {
            let mut all = shown["addresses"].as_array().expect("addresses").iter();
            all.any(|one| {
                one["mac"] == **mac && one["port"] == port && (!held || one["held"] == true)
            })
        };
        macs.iter().all(there)
    }

    /// How long after the routers hear each other again the addresses are with the first one for
    /// good; none if the routers themselves do not agree, as on a machine that lacks time.
    fn heal(&self, of: Virtual, damping: bool) -> Option<Duration> {
        let macs = of.macs();
        let _second = self.start(1, &of.config(50));
        let has = |n| wait_for(LOST, || self.masters(n) >= of.count);
        assert!(has(1) && wait_for(LOST, || self.all_at(&macs, "r1", false)), "{}", self.said(1));
        self.isolate(true);
        let _first = self.start(0, &of.config(150));
        assert!(has(0), "{}", self.said(0));
        let are_held = || self.all_at(&macs, "r1", true);
        assert_eq!(wait_for(if damping { LOST } else { STAYS }, are_held), damping);
        self.isolate(false);
        let (begun, mut since) = (Instant::now(), Instant::now());
        while since.elapsed() < STAYS {
            if !self.all_at(&macs, "r0", false) {
                since = Instant::now();
            }
            if begun.elapsed() > 2 * LOST {
                println!("the routers do not agree: {}{}", self.said(0), self.said(1));
                return None;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(since - begun)
    }
}

fn heals(of: Virtual) {
    let found = Command::new("sh").args(["-c", "command -v keepalived"]).output();
    if !found.is_ok_and(|output| output.status.success()) {
        return skip("needs keepalived");
    }
    let mut seen = Vec::new();
    let followed = (0..TRIES).any(|_| {
        let control = Site::new(&["--mac-flap-damping=false"]).heal(of, false);
        let damped = Site::new(&[]).heal(of, true);
        println!("followed after {damped:?}, without damping after {control:?}");
        seen.push((damped, control));
        matches!((damped, control), (Some(damped), Some(control)) if damped < control + LATER)
    });
    if seen.iter().all(|(_, control)| control.is_none()) {
        return skip("the routers do not agree without damping either: the machine lacks time");
    }
    assert!(followed, "{seen:?}");
}

#[test]
#[ignore = "full"]
fn one_address_follows_the_router_that_keeps_it() {
    heals(Virtual { count: 1, ipv6: false });
    heals(Virtual { count: 1, ipv6: true });
}

#[test]
#[ignore = "full"]
fn twenty_addresses_follow_the_router_that_keeps_them() {
    heals(Virtual { count: 20, ipv6: false });
    heals(Virtual { count: 20, ipv6: true });
}
