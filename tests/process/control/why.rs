//! `vioswitchctl why` names the fault: each of a table of faults, and each two that can be made
//! together, on a switch whose third port is well and is never blamed.

use std::any::Any;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use testkit::frontend::{Frontend, feat};
use testkit::host::{in_namespace, ip};
use testkit::mem::RegionSpec;
use testkit::ring::Seg;
use testkit::stream::Peer;
use testkit::vm::{Guest, mac_of};
use testkit::{hostile, rounds, sys};

use super::*;

const BROADCAST: [u8; 6] = [0xff; 6];
/// The station behind the stream.
const FAR: u8 = 9;
/// Scenarios run at a time.
const THREADS: usize = 4;

/// A switch with ports p0 and p2 for guests that are well, and another port that is asked about
/// beside p0.
struct Stage {
    lab: Lab,
    /// That other port.
    to: &'static str,
    /// Guests of p0, p1 and p2; of p1 none where a fault is that there is none.
    vms: [Option<Vm>; 3],
    /// What lives as long as the switch.
    kept: Vec<Box<dyn Any>>,
}

impl Stage {
    fn set(&self, name: &str, keys: &[&str]) {
        let kind = match name {
            "up" => "tap",
            "net" => "stream",
            _ => "port",
        };
        self.lab.done(&[&[kind, "set", name], keys].concat());
    }

    fn vm(&mut self, at: usize) -> &mut Vm {
        self.vms[at].as_mut().expect("a guest")
    }

    /// Port p`at` sends a frame.
    fn send(&mut self, at: usize, to: [u8; 6], from: [u8; 6], rest: &[u8]) {
        let mut frame = [&to[..], &from, rest].concat();
        frame.resize(frame.len().max(60), 0);
        let vm = self.vm(at);
        vm.tx[0].send_waiting(&frame, LOST);
        vm.tx[0].drain(LOST);
    }

    fn announce(&mut self, at: usize, from: [u8; 6]) {
        self.send(at, BROADCAST, from, &[0x88, 0xb5]);
    }
}

/// A fault.
struct Fault {
    name: &'static str,
    /// The port beside p0 that it needs; any if it is empty.
    to: &'static str,
    /// What it takes for itself, and what it must find as it is in a switch that is well.
    uses: &'static [&'static str],
    needs: &'static [&'static str],
    /// Words of `why`: the finding's code, or the deciding key.
    told: &'static [&'static str],
    make: fn(&mut Stage),
}

/// What lies between a sender's ring and the receiver's.
const WAY: &[&str] = &["vlan", "bridge", "isolated", "admin", "guard", "mirror", "mtu", "guest-b"];

/// In the order in which they are made: the last ones leave p0's ring unusable.
const FAULTS: [Fault; 34] = [
    Fault {
        name: "a VLAN of one port",
        to: "p1",
        uses: &["vlan"],
        needs: &[],
        told: &["vlan=20", "no vlan"],
        make: |stage| stage.set("p1", &["vlan=20"]),
    },
    Fault {
        name: "two VLANs",
        to: "p1",
        uses: &["vlan"],
        needs: &[],
        told: &["vlan=10", "vlan=20"],
        make: |stage| {
            stage.set("p0", &["vlan=10"]);
            stage.set("p1", &["vlan=20"]);
        },
    },
    Fault {
        name: "a trunk without the VLAN",
        to: "p1",
        uses: &["vlan"],
        needs: &[],
        told: &["vlan=30", "trunk=10-20"],
        make: |stage| {
            stage.set("p0", &["vlan=30"]);
            stage.set("p1", &["trunk=10-20"]);
        },
    },
    Fault {
        name: "a trunk without native",
        to: "",
        uses: &["vlan", "guard"],
        needs: &[],
        told: &["trunk=10", "native"],
        make: |stage| stage.set("p0", &["trunk=10"]),
    },
    Fault {
        name: "a VLAN that the uplink does not have",
        to: "up",
        uses: &["vlan"],
        needs: &[],
        told: &["vlan=20"],
        make: |stage| stage.set("p0", &["vlan=20"]),
    },
    Fault {
        name: "two bridges",
        to: "",
        uses: &["bridge"],
        needs: &[],
        told: &["bridge=blue", "bridge=default"],
        make: |stage| stage.set("p0", &["bridge=blue"]),
    },
    Fault {
        name: "isolated ports",
        to: "p1",
        uses: &["isolated"],
        needs: &[],
        told: &["isolated"],
        make: |stage| ["p0", "p1"].iter().for_each(|port| stage.set(port, &["isolated=on"])),
    },
    Fault {
        name: "a port set down",
        to: "",
        uses: &["admin"],
        needs: &[],
        told: &["port-disabled"],
        make: |stage| stage.set(stage.to, &["admin=down"]),
    },
    Fault {
        name: "a short MTU",
        to: "p1",
        uses: &["mtu"],
        needs: &[],
        told: &["MTU of 1000"],
        make: |stage| stage.set("p1", &["mtu=1000"]),
    },
    Fault {
        name: "a frame too long",
        to: "p1",
        uses: &["mtu"],
        needs: WAY,
        told: &["frames-too-long"],
        make: |stage| {
            stage.set("p1", &["mtu=1000"]);
            stage.send(0, mac_of(1), mac_of(0), &[8; 1200]);
        },
    },
    Fault {
        name: "another MAC address than the guard allows",
        to: "",
        uses: &["guard", "refused"],
        needs: &[],
        told: &["frames-refused", "guard", "02:56:53:00:00:00"],
        make: |stage| {
            stage.set("p0", &["mac=02:00:00:00:00:aa", "guard=on"]);
            stage.announce(0, mac_of(0));
        },
    },
    Fault {
        name: "another IP address than the guard allows",
        to: "",
        uses: &["guard", "refused"],
        needs: &["admin"],
        told: &["frames-refused", "guard", "10.0.0.9"],
        make: |stage| {
            let mac = "mac=02:56:53:00:00:00";
            stage.set("p0", &[mac, "guard=on", "allowed-ips=10.0.0.1"]);
            let ip = [0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 9, 10, 0, 0, 1];
            stage.send(0, BROADCAST, mac_of(0), &[&[8, 0][..], &ip].concat());
        },
    },
    Fault {
        name: "a group's address as a source",
        to: "",
        uses: &["refused"],
        needs: &["vlan", "guard", "admin"],
        told: &["frames-refused", "bad_source"],
        make: |stage| stage.announce(0, [3, 0, 0, 0, 0, 1]),
    },
    Fault {
        name: "an offload that was not negotiated",
        to: "",
        uses: &["refused"],
        needs: &["guard", "admin"],
        told: &["frames-refused", "bad_offload"],
        make: |stage| {
            let header = &mut stage.vm(0).tx[0].header;
            let before = header.clone();
            header[0] = 1;
            stage.announce(0, mac_of(0));
            stage.vm(0).tx[0].header = before;
        },
    },
    Fault {
        name: "too many broadcasts",
        to: "",
        uses: &["refused"],
        needs: &["vlan", "bridge", "guard", "admin"],
        told: &["frames-refused", "storm"],
        make: |stage| {
            stage.set("p0", &["storm=bcast:1pps"]);
            (0..100).for_each(|_| stage.announce(0, mac_of(0)));
        },
    },
    Fault {
        name: "more addresses than max-addresses",
        to: "",
        uses: &["addresses"],
        needs: &["vlan", "bridge", "guard", "admin"],
        told: &["fdb-full"],
        make: |stage| {
            stage.set("p0", &["max-addresses=1"]);
            stage.announce(0, [2, 0, 0, 0, 0, 0x55]);
        },
    },
    Fault {
        name: "an address that is tied to another port",
        to: "",
        uses: &["addresses"],
        needs: &["vlan", "bridge", "guard", "admin"],
        told: &["address-of-another"],
        make: |stage| {
            stage.lab.done(&["fdb", "add", "02:00:00:00:00:99", "p2"]);
            stage.announce(0, [2, 0, 0, 0, 0, 0x99]);
        },
    },
    Fault {
        name: "an address at two ports",
        to: "",
        uses: &["addresses"],
        needs: &["vlan", "bridge", "guard", "admin"],
        told: &["address-moving"],
        make: |stage| {
            for at in [0, 2].repeat(10) {
                stage.announce(at, [2, 0, 0, 0, 0, 0x77]);
            }
        },
    },
    Fault {
        name: "flood=off for a guest that never sent",
        to: "p1",
        uses: &["guest-b"],
        needs: &["vlan", "bridge", "isolated", "admin", "mirror"],
        told: &["flood=off", "has sent no frame"],
        make: |stage| {
            stage.set("p1", &["flood=off"]);
            stage.vms[1] = Some(connect(&stage.lab, 1));
        },
    },
    Fault {
        name: "a port that gets a mirror's copies",
        to: "p1",
        uses: &["mirror"],
        needs: &[],
        told: &["mirror 'watch'"],
        make: |stage| drop(stage.lab.done(&["mirror", "add", "watch", "from=p2", "to=p1"])),
    },
    Fault {
        name: "a low rate in",
        to: "",
        uses: &["rate"],
        needs: &["vlan", "guard", "admin"],
        told: &["rate-in is 1mbit"],
        make: |stage| stage.set("p0", &["rate-in=1mbit"]),
    },
    Fault {
        name: "a low rate out",
        to: "p1",
        uses: &["rate-out"],
        needs: WAY,
        told: &["rate-out of 1mbit"],
        make: |stage| stage.set("p1", &["rate-out=1mbit"]),
    },
    Fault {
        name: "no front-end",
        to: "p1",
        uses: &["guest-b"],
        needs: &["admin"],
        told: &["no front-end is connected"],
        make: |_| (),
    },
    Fault {
        name: "a driver that has not started",
        to: "p1",
        uses: &["guest-b"],
        needs: &["admin"],
        told: &["the guest's driver takes no frames"],
        make: |stage| {
            let guest = Guest::new(VmConfig::new(1));
            let mut fe = Frontend::connect(&stage.lab.d.socket(1), LOST).expect("connect");
            guest.negotiate(&mut fe).expect("negotiate");
            stage.kept.push(Box::new((guest, fe)));
        },
    },
    Fault {
        name: "memory that is not shared",
        to: "p1",
        uses: &["guest-b"],
        needs: &[],
        told: &["memory-not-shared"],
        make: |stage| stage.kept.push(Box::new(without_memory(&stage.lab, None))),
    },
    Fault {
        name: "memory in a file on a disk alone",
        to: "p1",
        uses: &["guest-b"],
        needs: &[],
        told: &["memory-not-shared", "files on a disk"],
        make: |stage| {
            let disk = on_disk(&stage.lab);
            stage.kept.push(Box::new(without_memory(&stage.lab, Some(&disk))));
        },
    },
    Fault {
        name: "a part of memory in a file on a disk",
        to: "p1",
        uses: &["memory-b"],
        needs: &["guest-b"],
        told: &["memory-on-disk"],
        make: |stage| {
            let disk = on_disk(&stage.lab);
            let vm = stage.vm(1);
            let hole = RegionSpec { gpa: 8 << 30, len: 1 << 20, uva: 1 << 45, offset: 0 };
            vm.fe.add_mem_reg(&hole, disk.as_raw_fd()).expect("a region that is left out");
            vm.settle();
        },
    },
    Fault {
        name: "a guest that never sent",
        to: "p1",
        uses: &["guest-b"],
        needs: &["admin"],
        told: &["has sent no frame"],
        make: |stage| stage.vms[1] = Some(connect(&stage.lab, 1)),
    },
    Fault {
        name: "an interface set down",
        to: "up",
        uses: &["link"],
        needs: &["admin"],
        told: &["tap-down"],
        make: |_| drop(ip("link set t0 down")),
    },
    Fault {
        name: "an interface that is gone",
        to: "up",
        uses: &["link"],
        needs: &[],
        told: &["tap-gone"],
        make: |_| drop(ip("link delete t0")),
    },
    Fault {
        name: "a stream without a process",
        to: "net",
        uses: &["peer"],
        needs: &["admin"],
        told: &["no process is connected"],
        make: |stage| stage.kept.clear(),
    },
    Fault {
        name: "a receiver that is too slow",
        to: "p1",
        uses: &["room"],
        needs: &[WAY[0], WAY[1], WAY[2], WAY[3], WAY[4], WAY[5], WAY[7], "rate", "rate-out"],
        told: &["receiver-overloaded"],
        make: |stage| {
            let frame = [&mac_of(1)[..], &mac_of(0), &[0x88, 0xb5], &[0; 46]].concat();
            let vm = stage.vm(0);
            (0..1_000).for_each(|_| vm.tx[0].send_waiting(&frame, LOST));
            vm.tx[0].drain(LOST);
        },
    },
    Fault {
        name: "a DIMM that is not shared",
        to: "",
        uses: &["ring"],
        needs: &["admin"],
        told: &["memory-partly-shared"],
        make: |stage| {
            let ring = &stage.vm(0).tx[0].ring;
            hostile::raw_desc(ring, 0, Seg { gpa: 9 << 30, len: 100 }, 0, 0);
            hostile::offer(ring, 0);
        },
    },
    Fault {
        name: "a ring that the driver broke",
        to: "",
        uses: &["ring"],
        needs: &["admin"],
        told: &["ring-broken"],
        make: |stage| {
            let ring = &stage.vm(0).tx[0].ring;
            hostile::raw_avail_idx(ring, ring.avail_idx().wrapping_add(ring.size + 1));
            ring.kick.write(1);
        },
    },
];

fn connect(lab: &Lab, id: u8) -> Vm {
    Vm::connect(&lab.d.socket(id.into()), VmConfig::new(id))
}

/// A front-end that acknowledges a driver's features and shares no memory, or a file on a disk.
fn without_memory(lab: &Lab, file: Option<&std::fs::File>) -> (Guest, Frontend) {
    let guest = Guest::new(VmConfig::new(1));
    let mut fe = Frontend::connect(&lab.d.socket(1), LOST).expect("connect");
    guest.negotiate(&mut fe).expect("negotiate");
    fe.set_features(guest.cfg.features | feat::PROTOCOL_FEATURES).expect("features");
    if let Some(file) = file {
        let region = RegionSpec { gpa: 0, len: 1 << 20, uva: 1 << 45, offset: 0 };
        // Refused; only a front-end that asks hears so.
        let _ = fe.add_mem_reg(&region, file.as_raw_fd());
    }
    fe.get_features().expect("an answer");
    (guest, fe)
}

/// A file that the switch does not map. Where all files of tests are in memory, one of a file
/// system that is not: the test's own program.
fn on_disk(lab: &Lab) -> std::fs::File {
    let disk = std::fs::File::create(lab.socket("disk")).expect("a file");
    disk.set_len(1 << 20).expect("a length");
    if !sys::on_tmpfs(&disk) {
        return disk;
    }
    std::fs::File::open(std::env::current_exe().expect("this program")).expect("open")
}

/// A switch as it is before faults are made. `absent`: a fault is that p1's guest is not as others.
fn stage(to: &'static str, absent: bool) -> Stage {
    ip("tuntap add t0 mode tap multi_queue vnet_hdr");
    ip("link set t0 up");
    let dir = Dir::new();
    let socket = dir.path().join("net.sock");
    let stream = format!("--stream=net,socket={}", socket.display());
    let lab = Lab::new(3, &["--tap=up,ifname=t0", &stream]);
    let vms = [0u8, 1, 2].map(|id| (id != 1 || !absent).then(|| connect(&lab, id)));
    let mut stage = Stage { lab, to, vms, kept: Vec::new() };
    for at in 0..3 {
        if stage.vms[at].is_some() {
            stage.announce(at, mac_of(at as u8));
        }
    }
    let mut peer = Peer::connect(&socket);
    peer.send(&[&BROADCAST[..], &mac_of(FAR), &[0x88, 0xb5], &[0; 46]].concat());
    stage.lab.done(&["port", "wait", "net", "--timeout=20s"]);
    stage.kept.push(Box::new((peer, dir)));
    stage
}

/// What `why` says of p0 and the other port, and whether its status is 0.
fn why(stage: &Stage) -> (String, bool) {
    let output = stage.lab.ctl(&["why", "p0", stage.to]);
    assert!(output.stderr.is_empty(), "{output:?}");
    (String::from_utf8(output.stdout).expect("UTF-8"), output.status.success())
}

/// The port that is asked about beside p0, if all of these can be made together.
fn together(faults: &[&Fault]) -> Option<&'static str> {
    let mut to = "";
    for (n, one) in faults.iter().enumerate() {
        if !one.to.is_empty() && !to.is_empty() && one.to != to {
            return None;
        }
        to = if one.to.is_empty() { to } else { one.to };
        for other in faults.iter().skip(n + 1) {
            let meets = |all: &[&str], some: &[&str]| some.iter().any(|one| all.contains(one));
            let clash = meets(one.uses, other.uses)
                || meets(one.needs, other.uses)
                || meets(other.needs, one.uses);
            if clash {
                return None;
            }
        }
    }
    Some(if to.is_empty() { "p1" } else { to })
}

/// Makes these faults on a switch that is well, and waits until `why` names each of them.
fn scenario(faults: &[&Fault], to: &'static str) {
    let absent = faults.iter().any(|fault| fault.uses.contains(&"guest-b"));
    let mut stage = stage(to, absent);
    faults.iter().for_each(|fault| (fault.make)(&mut stage));
    let mut last = (String::new(), true);
    let named =
        |text: &str| faults.iter().all(|fault| fault.told.iter().all(|word| text.contains(word)));
    let all = wait_for(LOST, || {
        last = why(&stage);
        named(&last.0)
    });
    let names: Vec<&str> = faults.iter().map(|fault| fault.name).collect();
    let (text, is_well) = last;
    assert!(all, "{names:?}:\n{text}\n{}", stage.lab.d.log());
    // A rate is no fault by itself.
    let fails = faults.iter().any(|fault| !fault.name.starts_with("a low rate"));
    assert_eq!(is_well, !fails, "{names:?}:\n{text}");
    let is_of_third = |fault: &Fault| ["addresses", "mirror"].contains(&fault.uses[0]);
    if !faults.iter().any(|fault| is_of_third(fault)) {
        assert!(!text.contains("p2"), "a port that is well is blamed, {names:?}:\n{text}");
    }
}

#[test]
fn why_names_each_fault_alone_and_of_two() {
    if !is_root() {
        return testkit::skip("network namespaces need root");
    }
    let mut cases: Vec<(Vec<&Fault>, &'static str)> = Vec::new();
    let mut pairs = Vec::new();
    for (n, one) in FAULTS.iter().enumerate() {
        cases.push((vec![one], together(&[one]).expect("a port")));
        for other in &FAULTS[n + 1..] {
            pairs.extend(together(&[one, other]).map(|to| (vec![one, other], to)));
        }
    }
    assert!(pairs.len() > 150, "{} pairs", pairs.len());
    // In each quick run others: all have their turn.
    let seed = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs());
    testkit::Rng::new(seed).shuffle(&mut pairs);
    pairs.truncate(rounds(16, usize::MAX, usize::MAX));
    cases.append(&mut pairs);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some((faults, to)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    in_namespace(|| scenario(faults, to));
                }
            });
        }
    });
}

#[test]
fn why_finds_nothing_where_all_is_well() {
    if !is_root() {
        return testkit::skip("network namespaces need root");
    }
    in_namespace(|| {
        for to in ["p1", "up", "net"] {
            let stage = stage(to, false);
            // A TAP has no address of its own, and nothing came from there.
            let (text, is_well) = why(&stage);
            let first = format!("nothing in the switch is in the way between 'p0' and '{to}'\n");
            assert!(is_well && text.starts_with(&first), "{text}");
            assert!(text.contains(&format!("it reaches '{to}'")) && !text.contains("p2"), "{text}");
            drop(stage);
            ip("link delete t0");
        }
    });
}
