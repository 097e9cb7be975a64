//! Offloads between Linux guests: checksums and segmentation, also between them and the host: with
//! all offloads TCP crosses in packets over 10,000 bytes on average on each queue pair, UDP of
//! 65,000 bytes in fragments, and no second is without progress. Files arrive whole while both
//! guests switch their offloads, without a stall of 5 s. Behind a bridge and a wire without
//! offloads every checksum is right and no frame exceeds the MTU. A guest with all of them reaches
//! guests with fewer, both ways, in a VLAN of their own too; what the switch cuts and checksums is
//! counted at the port that needs it and at no other.
//!
//! Every device has `ctrl_guest_offloads=off`: QEMU does not tell a vhost-user back-end.
//!
//! `VIOSWITCH_LONG=1` transfers for two minutes instead of 12 seconds.

use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::lab::{HOST_IP4, HOST_IP6, Lab, port, tap};
use crate::talk::{Iperf, iperf, pings};
use crate::vm::{Attach, Qemu, Vm, VmSpec, datagrams};
use crate::wire::{FAR_IP4, FAR_IP6, Wire};
use crate::{beside_another, can_make_network, is_set, need_program, or_skip, progress, wait_for};

/// A TCP connection whose large packets all get lost depends on retransmissions: a segment each
/// 200 ms or more, 60 kbit/s. An emulated guest that works reaches 100,000 kbit/s and more.
const TCP_FLOOR: f64 = 3_000.0;

/// Bytes per frame of a sender whose kernel leaves segmentation to others: 1514 without that, up
/// to 65,549 with, less when the window is small.
const LARGE: u64 = 10_000;

/// No device may change its mind behind the daemon's back.
const STEADY: &str = ",ctrl_guest_offloads=off";

/// QEMU's own way to take every offload, and receive buffers that merge, from a guest.
const PLAIN: &str = ",ctrl_guest_offloads=off,mrg_rxbuf=off,csum=off,guest_csum=off,gso=off,\
    host_tso4=off,host_tso6=off,host_ecn=off,host_ufo=off,\
    guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off";

/// One guest to be: queue pairs, options of its device and of its port.
struct Shape {
    pairs: u16,
    device: &'static str,
    port: &'static str,
}

/// A daemon with an uplink, and its guests.
struct Lan {
    vms: Vec<Vm>,
    lab: Lab,
}

impl Lan {
    /// Starts daemon and guests, `vm1` and so on, and an iperf3 server in each; `None` (said
    /// loudly) if the machine lacks a part.
    fn start(name: &str, qemu: Result<Qemu, String>, shapes: &[Shape]) -> Option<Lan> {
        let tools = ["iperf3", "ethtool", "tcpdump"].map(need_program);
        let tools = tools.into_iter().collect::<Result<Vec<()>, _>>();
        let qemu = or_skip(can_make_network().and(tools).and(qemu))?;
        let mut lab = Lab::new(name);
        let names = ["vm1", "vm2", "vm3", "vm4"];
        let mut args = tap().to_vec();
        let mut specs = Vec::new();
        for ((number, name), shape) in (1..).zip(names).zip(shapes) {
            let socket = lab.path(&format!("{name}.sock"));
            let options = format!(",queues={}{}", shape.pairs, shape.port);
            args.extend(port(name, &socket, &options));
            let (pairs, device) = (shape.pairs, shape.device);
            specs.push(VmSpec { name, number, socket, attach: Attach::Connects, pairs, device });
        }
        lab.start_daemon(&args);
        lab.configure_tap();
        let start = Instant::now();
        let mut vms: Vec<Vm> = specs.iter().map(|spec| Vm::start(&lab, &qemu, spec)).collect();
        for vm in &mut vms {
            vm.wait_ready();
            vm.serve();
        }
        let seconds = start.elapsed().as_secs_f32();
        progress(&format!("{} guests up after {seconds:.1} s", vms.len()));
        Some(Lan { vms, lab })
    }

    /// The guests go, the books must balance, and the daemon leaves in good order.
    fn finish(mut self) {
        self.vms.clear();
        assert!(self.lab.daemon_runs(), "the daemon is gone");
        self.lab.counters_at_rest().assert_balanced();
        self.lab.stop_daemon();
    }

    /// Bytes and frames that a port has sent, now.
    fn sent(&mut self, port: &str) -> (u64, u64) {
        let now = self.lab.counters();
        (now.get(port, "in bytes"), now.get(port, "in frames"))
    }
}

/// A process on the host that goes with the value.
struct Background(Child);

impl Background {
    fn start(command: &mut Command) -> Background {
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null());
        Background(quiet.spawn().expect("start a process on the host"))
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A TCP connection that must move in each of its seconds.
fn tcp(client: &mut Vm, address: &str, options: &str) -> Iperf {
    let options = format!("-t 2 -i 1 --get-server-output {options}");
    let result = iperf(client, address, &options);
    let name = client.spec.name;
    assert!(result.seconds.len() >= 2, "{name}, {address}: no report of each second: {result:?}");
    let moves = result.seconds.iter().all(|&rate| rate > 0.0);
    assert!(moves, "{name}, {address}, {options}: a second without a byte: {result:?}");
    assert!(result.rate > TCP_FLOOR, "{name}, {address}, {options}: TCP crawls: {result:?}");
    result
}

/// TCP from and to `client`, over both versions of IP; rates in Mbit/s for the record.
fn tcp_all_ways(client: &mut Vm, ip4: &str, ip6: &str) -> String {
    let mut said = Vec::new();
    for (address, options) in [(ip4, ""), (ip4, "-R"), (ip6, ""), (ip6, "-R")] {
        let rate = tcp(client, address, options).rate / 1000.0;
        said.push(format!("{rate:.0}"));
    }
    format!("{} Mbit/s", said.join(", "))
}

/// What `ethtool -k` says of a feature: `on`, `off [fixed]`, …
fn feature(vm: &mut Vm, name: &str) -> String {
    let all = vm.ok("ethtool -k eth0");
    let found = all.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(": "));
    found.unwrap_or_else(|| panic!("no {name} in {all}")).to_string()
}

/// What a guest is offered with everything on. Segmentation of UDP is not among it: QEMU 10.0 keeps
/// it from guests on vhost-user, whatever the back-end offers.
const ALL_FEATURES: [&str; 5] = [
    "tx-checksumming",
    "tcp-segmentation-offload",
    "tx-tcp-segmentation",
    "tx-tcp6-segmentation",
    // GUEST_TSO in the driver's words.
    "rx-gro-hw",
];

fn has_all_features(vm: &mut Vm) {
    for name in ALL_FEATURES {
        let said = feature(vm, name);
        assert!(said.starts_with("on"), "{}: {name} is {said}", vm.spec.name);
    }
}

/// Two guests with everything: TCP over both versions of IP in packets that stay large from
/// guest to guest, over each of the first guest's queue pairs.
fn large_packets(lan: &mut Lan) {
    let addresses = [lan.vms[1].spec.ip4(), lan.vms[1].spec.ip6()];
    // The kernel gives each CPU a TX queue of its own.
    for (cpu, address) in (0..).zip(&addresses) {
        let before = lan.lab.counters();
        let address = format!("{address} --affinity {cpu}");
        let result = tcp(&mut lan.vms[0], &address, "");
        let after = lan.lab.counters();
        let [bytes, frames, through] = ["in bytes", "in frames", &format!("in {cpu} bytes")]
            .map(|key| after.get("vm1", key) - before.get("vm1", key));
        let Iperf { rate, seconds, .. } = result;
        progress(&format!(
            "TCP to {address}: {rate:.0} kbit/s, by seconds {seconds:?}; {bytes} bytes in {frames} \
             frames, {through} bytes by its own queue"
        ));
        assert!(bytes / frames > LARGE, "{bytes} bytes in {frames} frames to {address}");
        // Not all: what an acknowledgement releases goes out on the CPU that took it.
        assert!(through > bytes / 20, "{through} of {bytes} bytes went through queue {cpu}");
    }
}

/// Datagrams of 65,000 bytes, in 44 IP fragments each: at most a fifth gets lost, none stalls.
fn large_datagrams(lan: &mut Lan) {
    let (ip4, ip6) = (lan.vms[0].spec.ip4(), lan.vms[0].spec.ip6());
    for address in [ip4, ip6] {
        let options = "-t 3 -i 1 -u -b 10M -l 65000 --get-server-output";
        let result = iperf(&mut lan.vms[1], &address, options);
        let Iperf { rate, lost, seconds } = &result;
        progress(&format!("UDP to {address}: {rate:.0} kbit/s, lost {lost:?} %, {seconds:?}"));
        assert!(seconds.len() >= 2, "no report of each second: {result:?}");
        assert!(seconds.iter().all(|&rate| rate > 0.0), "a second without a datagram: {result:?}");
        assert!(*rate > 8000.0 && lost.is_some_and(|l| l < 20.0), "datagrams: {result:?}");
    }
}

/// What one write of UDP datagrams holds: 40 of 1400 bytes.
const DATAGRAM: usize = 1400;
const AT_ONCE: usize = 40;
const WRITES: usize = 50;
/// Datagrams have no second chance, and a guest that gets no CPU for 0.1 s loses some.
const TRIES: u32 = 3;

/// The script that sends them, a second long; `program` is the sender.
fn send_datagrams(program: &str, file: &str, address: &str) -> String {
    format!(
        "dd if=/dev/urandom of={file} bs={} count={WRITES} 2>/dev/null && \
         {program} send {address} 5005 {DATAGRAM} {AT_ONCE} <{file}",
        DATAGRAM * AT_ONCE
    )
}

/// The host hands 40 datagrams at once to the TAP, which takes them as one packet; the guest gets
/// datagrams, all of them and the same. No guest takes such a packet: the switch has to cut each.
fn datagrams_from_host(lan: &mut Lan, to: usize) {
    let (name, file) = (lan.vms[to].spec.name, lan.lab.path("datagrams"));
    let (program, file) = (datagrams(), file.to_str().expect("a path"));
    let program = program.to_str().expect("a path");
    let all = AT_ONCE * WRITES;
    for address in [lan.vms[to].spec.ip4(), lan.vms[to].spec.ip6()] {
        let whole = (1..=TRIES).any(|_| {
            lan.vms[to].ok("datagrams receive 5005 >/tmp/got 2>/tmp/sizes & \
                 until netstat -lun | grep -q :5005; do sleep 0.1; done");
            let before = lan.lab.counters();
            lan.lab.sh(&send_datagrams(program, file, &address));
            let sent = lan.lab.sh(&format!("md5sum <{file}"));
            let got = lan.vms[to].ok("while netstat -lun | grep -q :5005; do sleep 0.1; done; \
                 md5sum </tmp/got; cat /tmp/sizes");
            let after = lan.lab.counters();
            let count = |port, key| after.get(port, key) - before.get(port, key);
            let (frames, cut) = (count("uplink", "in frames"), count(name, "out segmented"));
            progress(&format!(
                "{all} datagrams from the host to {address}: {frames} frames, {cut} cut; {}",
                got.trim().replace('\n', ", ")
            ));
            // A few more may be neighbours' questions.
            assert!(frames < 2 * WRITES as u64, "{WRITES} writes took {frames} frames");
            assert!(cut == WRITES as u64, "{cut} packets of {WRITES} were cut: {after:#?}");
            got == format!("{sent}{DATAGRAM} {all}\n")
        });
        assert!(whole, "datagrams to {address} never arrived whole in {TRIES} tries");
    }
}

/// Guest and host through the TAP; large packets in both directions.
fn host(lan: &mut Lan) {
    let _server = Background::start(lan.lab.in_netns("iperf3").args(["-s", "-f", "k"]));
    wait_for_port(lan.lab.in_netns("ss"), "-t", 5201);
    let before = (lan.sent("vm1"), lan.sent("uplink"));
    let rates = tcp_all_ways(&mut lan.vms[0], HOST_IP4, HOST_IP6);
    let after = (lan.sent("vm1"), lan.sent("uplink"));
    // Each sends data half of the time, else acknowledgements of 66 bytes, far fewer than there
    // would be segments.
    let ratio = |a: (u64, u64), b: (u64, u64)| (b.0 - a.0) / (b.1 - a.1).max(1);
    let (guest, host) = (ratio(before.0, after.0), ratio(before.1, after.1));
    progress(&format!("TCP with the host: {rates}; bytes a frame: guest {guest}, host {host}"));
    assert!(guest > 2000 && host > 2000, "bytes a frame: guest {guest}, host {host}");
}

/// Waits for somebody to listen where `ss` runs; `kind` is its option for TCP or UDP.
fn wait_for_port(mut ss: Command, kind: &str, port: u16) {
    ss.args(["-H", "-l", "-n", kind, &format!("sport = :{port}")]);
    wait_for("a listener", Duration::from_secs(20), || {
        let out = ss.output().expect("run ss");
        (!out.stdout.is_empty()).then_some(())
    });
}

/// Guests and a host behind a wire without offloads: what the daemon writes into the TAP must be
/// enough for the kernel to finish checksums and to segment. Takes the TAP from the lab's host.
fn wire(lan: &mut Lan, clients: &[usize]) {
    let wire = Wire::new(&lan.lab);
    let _server = Background::start(wire.command("iperf3").args(["-s", "-f", "k"]));
    wait_for_port(wire.command("ss"), "-t", 5201);
    for &client in clients {
        let vm = &mut lan.vms[client];
        // A bridge learns and forwards at once, but the guest has still to find its neighbour.
        pings(vm, FAR_IP4);
        pings(vm, FAR_IP6);
        for (address, options) in [(FAR_IP4, ""), (FAR_IP6, ""), (FAR_IP4, "-R"), (FAR_IP6, "-R")] {
            let recording = wire.record(4000);
            let rate = tcp(vm, address, options).rate;
            let frames = recording.check();
            progress(&format!(
                "{}: TCP with {address} {options}: {rate:.0} kbit/s, {frames} frames checked",
                vm.spec.name
            ));
            assert!(frames > 500, "only {frames} frames of TCP were seen on the wire");
        }
        for address in [FAR_IP4, FAR_IP6] {
            let recording = wire.record(4000);
            let receiver = datagrams();
            let mut receiver = wire.command(receiver.to_str().expect("a path"));
            let receiver = Background::start(receiver.args(["receive", "5005"]));
            wait_for_port(wire.command("ss"), "-u", 5005);
            let before = lan.lab.counters();
            vm.ok(&send_datagrams("datagrams", "/tmp/sent", address));
            let frames = recording.check();
            drop(receiver);
            let after = lan.lab.counters();
            let [sent, given] = [(vm.spec.name, "in frames"), ("uplink", "out frames")]
                .map(|(port, key)| after.get(port, key) - before.get(port, key));
            progress(&format!(
                "datagrams to {address}: {sent} sent, {given} given to the TAP, {frames} seen"
            ));
            assert!(frames >= AT_ONCE * WRITES, "only {frames} frames of UDP on the wire");
        }
    }
}

/// A file transfer in the background, in one direction.
struct Transfer {
    to: usize,
    from: usize,
    address: String,
    received: u64,
    moved: Instant,
    done: bool,
}

/// Bytes of the file that is sent again and again.
const FILE_MIB: u32 = 8;

/// What the two guests switch off and on, one after the other, in an order of each one's own.
const SWITCHED: [&str; 2] = ["tso gso tx gro", "gro tx sg tso gso"];

/// For how long a connection may stand still: retransmission timeouts of 0.2 to 1.6 s add up to
/// three seconds.
const STALL: Duration = Duration::from_secs(5);

impl Transfer {
    fn start(lan: &mut Lan, from: usize, to: usize, address: String, seconds: u32) -> Transfer {
        // Both programs have the socket as their input and output: busybox's nc itself copies by
        // the kilobyte.
        lan.vms[to].ok(
            "rm -f /tmp/sum; nc -l -p 5001 -e sh -c 'echo $$ >/tmp/nc; exec md5sum >/tmp/sum' \
             >/dev/null 2>&1 &",
        );
        lan.vms[to].ok("until netstat -ltn | grep -q :5001; do sleep 0.1; done");
        lan.vms[from].ok(&format!(
            "dd if=/dev/urandom of=/tmp/data bs=1M count={FILE_MIB} && echo ' \
             end=$(($(cut -d. -f1 /proc/uptime) + {seconds})); n=0; \
             while [ $(cut -d. -f1 /proc/uptime) -lt $end ]; do cat /tmp/data || exit; \
             n=$((n + 1)); echo $n >/tmp/sent; done' >/tmp/send && \
             nc {address} 5001 -e sh /tmp/send >/dev/null 2>&1 &"
        ));
        Transfer { to, from, address, received: 0, moved: Instant::now(), done: false }
    }

    /// Looks whether bytes have come since the last time.
    fn watch(&mut self, lan: &mut Lan) {
        let look = "[ -s /tmp/sum ] && echo done || cat /proc/$(cat /tmp/nc)/io";
        let (_, said) = lan.vms[self.to].run(look, Duration::from_secs(20));
        // It may have ended between the two looks; then there is nothing to read.
        let received = said.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse().ok());
        self.done = said.trim() == "done";
        if self.done || received.is_some_and(|bytes| bytes > self.received) {
            self.received = received.unwrap_or(self.received);
            self.moved = Instant::now();
        }
        let (still, got) = (self.moved.elapsed(), self.received);
        assert!(still < STALL, "to {}: nothing for {still:?} after {got} bytes", self.address);
    }

    /// What came must be what was sent.
    fn compare(&self, lan: &mut Lan) -> String {
        let sent = lan.vms[self.from].ok_within(
            "for i in $(seq $(cat /tmp/sent)); do cat /tmp/data; done | md5sum; cat /tmp/sent",
            Duration::from_secs(60),
        );
        let got = lan.vms[self.to].ok("cat /tmp/sum");
        let (sum, times) = sent.trim().split_once('\n').expect("a checksum and a number");
        assert_eq!(got.trim(), sum, "the file of {times} parts changed on its way");
        let size = FILE_MIB * times.trim().parse::<u32>().expect("a number");
        format!("{size} MiB to {}", self.address)
    }
}

/// Files go both ways at once while both guests switch their offloads off and on.
fn transfer_while_switching(lan: &mut Lan) {
    let seconds = if is_set("VIOSWITCH_LONG") { 120 } else { 12 };
    for (vm, features) in lan.vms.iter_mut().zip(SWITCHED) {
        vm.ok(&format!(
            "rm -f /tmp/stop /tmp/refused; (n=0; while [ ! -e /tmp/stop ]; do \
             for f in {features}; do for s in off on; do \
             ethtool -K eth0 $f $s || echo $f $s >>/tmp/refused; \
             n=$((n + 1)); echo $n >/tmp/switched; sleep 0.5; done; done; done; \
             touch /tmp/stopped) >/dev/null 2>&1 &"
        ));
    }
    let (ip4, ip6) = (lan.vms[1].spec.ip4(), lan.vms[0].spec.ip6());
    let mut both =
        [Transfer::start(lan, 0, 1, ip4, seconds), Transfer::start(lan, 1, 0, ip6, seconds)];
    while both.iter().any(|transfer| !transfer.done) {
        sleep(Duration::from_millis(250));
        for transfer in both.iter_mut().filter(|transfer| !transfer.done) {
            transfer.watch(lan);
        }
    }
    for (vm, features) in lan.vms.iter_mut().zip(SWITCHED) {
        vm.ok("touch /tmp/stop; until [ -e /tmp/stopped ]; do sleep 0.1; done; rm /tmp/stopped");
        let switched: usize = vm.ok("cat /tmp/switched").trim().parse().expect("a number");
        let refused = vm.ok("cat /tmp/refused 2>/dev/null; true");
        assert_eq!(refused, "", "ethtool refused");
        let once = 2 * features.split(' ').count();
        assert!(switched >= once, "{switched} changes are not each of `{features}` once");
        has_all_features(vm);
    }
    let said = both.each_ref().map(|transfer| transfer.compare(lan));
    progress(&format!("while offloads changed: {}", said.join(", ")));
}

/// All guests have all offloads.
fn alike(name: &str, qemu: Result<Qemu, String>) {
    let _beside = beside_another();
    let shapes = [2, 1].map(|pairs| Shape { pairs, device: STEADY, port: "" });
    let Some(mut lan) = Lan::start(name, qemu, &shapes) else {
        return;
    };
    for vm in &mut lan.vms {
        has_all_features(vm);
    }
    large_packets(&mut lan);
    large_datagrams(&mut lan);
    transfer_while_switching(&mut lan);
    host(&mut lan);
    let counters = lan.lab.counters();
    for port in ["vm1", "vm2"] {
        let segmented = counters.get(port, "out segmented");
        assert_eq!(segmented, 0, "{port} takes large packets and got {segmented} in pieces");
    }
    datagrams_from_host(&mut lan, 0);
    wire(&mut lan, &[0]);
    lan.finish();
}

/// TCP between the first guest and another, with what the switch did for the other's sake.
fn with_another(lan: &mut Lan, other: usize, plain: bool) {
    let (name, ip4, ip6) = {
        let spec = &lan.vms[other].spec;
        (spec.name, spec.ip4(), spec.ip6())
    };
    let keys = ["out segmented", "out checksummed"];
    let before = lan.lab.counters();
    let rates = tcp_all_ways(&mut lan.vms[0], &ip4, &ip6);
    let after = lan.lab.counters();
    let done = keys.map(|key| after.get(name, key) - before.get(name, key));
    let [segmented, checksummed] = done;
    progress(&format!("TCP with {name}: {rates}; {segmented} cut, {checksummed} checksummed"));
    if plain {
        assert!(segmented > 100 && checksummed > 100, "{name}: {after:#?}");
    } else {
        assert_eq!(done, [0, 0], "{name} takes everything: {after:#?}");
    }
    for key in keys {
        assert_eq!(after.get("vm1", key), 0, "vm1 takes everything: {after:#?}");
    }
}

/// TCP inside a VLAN of the guests' own, from the first guest to one without offloads and back.
fn vlan(lan: &mut Lan, other: usize) {
    for vm in [0, other] {
        let vm = &mut lan.vms[vm];
        let number = vm.spec.number;
        vm.ok(&format!(
            "while read m; do insmod /mod/$m.ko || exit; done </mod/vlan; vconfig add eth0 7 && \
             ip link set eth0.7 up && ip addr add 10.99.7.{number}/24 dev eth0.7 && \
             ip -6 addr add fd00:7::{number}/64 dev eth0.7"
        ));
    }
    let (name, number) = (lan.vms[other].spec.name, lan.vms[other].spec.number);
    let (ip4, ip6) = (format!("10.99.7.{number}"), format!("fd00:7::{number}"));
    let before = lan.lab.counters().get(name, "out segmented");
    let rates = tcp_all_ways(&mut lan.vms[0], &ip4, &ip6);
    let segmented = lan.lab.counters().get(name, "out segmented") - before;
    progress(&format!("TCP with {name} in a VLAN: {rates}; {segmented} cut"));
    assert!(segmented > 100, "{name} got {segmented} cut packets");
}

/// One guest has all offloads and two queue pairs; the second has none by QEMU's doing, the third
/// none by the daemon's, the fourth all but no buffers that merge.
fn unlike(name: &str, qemu: Result<Qemu, String>) {
    let _beside = beside_another();
    let shapes = [
        Shape { pairs: 2, device: STEADY, port: "" },
        Shape { pairs: 1, device: PLAIN, port: "" },
        Shape { pairs: 2, device: STEADY, port: ",offload=off" },
        Shape { pairs: 1, device: ",ctrl_guest_offloads=off,mrg_rxbuf=off", port: "" },
    ];
    let Some(mut lan) = Lan::start(name, qemu, &shapes) else {
        return;
    };
    for (vm, all) in lan.vms.iter_mut().zip([true, false, false, true]) {
        if all {
            has_all_features(vm);
        } else {
            // Not rx-checksumming: Linux says "on" with or without GUEST_CSUM.
            for name in ["rx-gro-hw", "tx-checksumming", "tcp-segmentation-offload"] {
                let said = feature(vm, name);
                assert!(said.starts_with("off"), "{}: {name} is {said}", vm.spec.name);
            }
        }
    }
    for (other, plain) in [(1, true), (2, true), (3, false)] {
        with_another(&mut lan, other, plain);
    }
    datagrams_from_host(&mut lan, 1);
    datagrams_from_host(&mut lan, 3);
    vlan(&mut lan, 1);
    wire(&mut lan, &[1]);
    lan.finish();
}

#[test]
#[ignore = "full"]
fn alike_with_all_offloads_qemu_7() {
    alike("alike7", Qemu::system());
}

#[test]
#[ignore = "full"]
fn alike_with_all_offloads_qemu_10() {
    alike("alike10", Qemu::backported());
}

#[test]
#[ignore = "full"]
fn unlike_each_other_qemu_7() {
    unlike("unlike7", Qemu::system());
}

#[test]
#[ignore = "full"]
fn unlike_each_other_qemu_10() {
    unlike("unlike10", Qemu::backported());
}
