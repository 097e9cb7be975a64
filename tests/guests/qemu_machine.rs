//! What happens to a guest's machine while frames pass: it is paused, saved to a file and restored
//! from it, reset, grows and shrinks, its driver goes and comes back, its network card is pulled
//! out and plugged in again.
//!
//! Cases of `qemu`, with a stream of pings from the other guest under way. `VIOSWITCH_LONG=1` does
//! each thing 50 times instead of twice.

use std::time::Duration;

use crate::pair::{Pair, all_ping, tidy, what_each_knows};
use crate::talk::{answers, pings, try_pings};
use crate::vm::{MEMORY_KIB, SOON, Vm};
use crate::{progress, wait_for};

/// For what waits for a guest's driver or kernel.
const LIMIT: Duration = Duration::from_secs(30);

/// Frames for the second guest, whatever becomes of it. In IPv6, while the questions that must be
/// answered are in IPv4: the socket of busybox's ping takes all ICMP of its family, in a buffer for
/// six of these frames, and on a busy machine lost its own answer in one run of a hundred.
fn send_always(p: &mut Pair) {
    let ip2 = p.vm2.spec.ip6();
    // The address is known for good: asking for it again would stop the stream.
    p.vm1.ok("echo 864000000 >/proc/sys/net/ipv6/neigh/eth0/base_reachable_time_ms");
    pings(&mut p.vm1, &ip2);
    p.vm1.ok(&format!("ping -s 1400 -i 0.01 {ip2} >/dev/null 2>&1 &"));
}

/// Both ways, in the end.
fn talk_again(p: &mut Pair) {
    let (ip1, ip2) = (p.vm1.spec.ip4(), p.vm2.spec.ip4());
    wait_for("an answer", LIMIT, || answers(&mut p.vm2, &ip1).then_some(()));
    let said = try_pings(&mut p.vm2, &ip1).and(try_pings(&mut p.vm1, &ip2));
    if let Err(said) = said {
        panic!("{said}{}", what_each_knows(p));
    }
}

/// What the guest's own start does with eth0, once more.
fn configure(p: &mut Pair) {
    let (ip4, ip6) = (p.vm2.spec.ip4(), p.vm2.spec.ip6());
    wait_for("eth0", LIMIT, || (p.vm2.run("ip link show eth0", SOON).0 == 0).then_some(()));
    p.vm2.ok("echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad; ip link set eth0 up");
    p.vm2.ok(&format!("ip addr add {ip4}/24 dev eth0; ip -6 addr add {ip6}/64 dev eth0"));
}

fn pause(p: &mut Pair) {
    p.vm2.qmp(r#""execute":"stop""#);
    std::thread::sleep(Duration::from_millis(200));
    p.vm2.qmp(r#""execute":"cont""#);
    talk_again(p);
}

fn driver(p: &mut Pair) {
    p.vm2.ok("rmmod virtio_net && insmod /mod/virtio_net.ko");
    configure(p);
    talk_again(p);
}

fn network_card(p: &mut Pair) {
    p.vm2.qmp(r#""execute":"device_del","arguments":{"id":"nic"}"#);
    wait_for("eth0 to go", LIMIT, || (p.vm2.run("ip link show eth0", SOON).0 != 0).then_some(()));
    // QEMU lets go of the card a moment after the guest does.
    let device = p.vm2.spec.nic(&p.qemu);
    let (driver, options) = device.split_once(',').expect("a driver and its options");
    let options: Vec<String> = options
        .split(',')
        .filter_map(|option| option.split_once('='))
        .map(|(key, value)| match value.parse::<u32>() {
            Ok(number) => format!(r#""{key}":{number}"#),
            Err(_) if ["on", "off"].contains(&value) => format!(r#""{key}":{}"#, value == "on"),
            Err(_) => format!(r#""{key}":"{value}""#),
        })
        .collect();
    let add = format!(
        r#""execute":"device_add","arguments":{{"driver":"{driver}",{}}}"#,
        options.join(",")
    );
    let mut said = String::new();
    wait_for("the card to be plugged in", LIMIT, || {
        said = p.vm2.try_qmp(&add);
        let transient = said.contains("Duplicate") || said.contains("in use");
        assert!(said.starts_with("{\"return\"") || transient, "{said}");
        (!transient).then_some(())
    });
    configure(p);
    talk_again(p);
}

/// The guest is saved to a file, its QEMU ends, and another one goes on with what is in the file.
fn snapshot(p: &mut Pair) {
    let boot = "cat /proc/sys/kernel/random/boot_id";
    let before = p.vm2.ok(boot);
    let file = p.lab.path("snapshot").display().to_string();
    let wait_moved = |vm: &mut Vm| {
        wait_for("the guest to be in the file, or out of it", LIMIT, || {
            let said = vm.try_qmp(r#""execute":"query-migrate""#);
            assert!(!said.contains("failed"), "{said}");
            said.contains(r#""status": "completed""#).then_some(())
        });
    };
    p.vm2.qmp(r#""execute":"stop""#);
    let to = format!(r#""execute":"migrate","arguments":{{"uri":"exec:cat >{file}"}}"#);
    p.vm2.qmp(&to);
    wait_moved(&mut p.vm2);
    p.vm2.quit();
    p.vm2 = Vm::incoming(MEMORY_KIB, &p.lab, &p.qemu, &p.vm2.spec);
    let from = format!(r#""execute":"migrate-incoming","arguments":{{"uri":"exec:cat {file}"}}"#);
    p.vm2.qmp(&from);
    wait_moved(&mut p.vm2);
    p.vm2.qmp(r#""execute":"cont""#);
    talk_again(p);
    assert_eq!(p.vm2.ok(boot), before, "it has rebooted");
}

/// A DIMM comes and goes, which the guest does not use: the daemon gets one memory region more, and
/// one less, on running rings.
fn dimm(p: &mut Pair) {
    let backend = r#""qom-type":"memory-backend-memfd","id":"more","size":134217728,"share":true"#;
    let before = p.lab.mapped_regions();
    p.vm2.qmp(&format!(r#""execute":"object-add","arguments":{{{backend}}}"#));
    let dimm = r#""driver":"pc-dimm","id":"dimm","memdev":"more""#;
    p.vm2.qmp(&format!(r#""execute":"device_add","arguments":{{{dimm}}}"#));
    talk_again(p);
    assert_eq!(p.lab.mapped_regions(), before + 1);
    p.vm2.qmp(r#""execute":"device_del","arguments":{"id":"dimm"}"#);
    wait_for("the DIMM to go", LIMIT, || {
        let gone = p.vm2.try_qmp(r#""execute":"object-del","arguments":{"id":"more"}"#);
        gone.starts_with("{\"return\"").then_some(())
    });
    assert_eq!(p.lab.mapped_regions(), before);
    talk_again(p);
}

/// The guest takes a part of the memory below 1 MiB out of its address space and puts it back (a
/// PAM register of the 440FX bridge, as firmware does to shadow ROMs). The region around it falls
/// into two and becomes one again: QEMU takes away what was, then gives what is, on running rings.
fn shape(p: &mut Pair) {
    let pam = "/sys/bus/pci/devices/0000:00:00.0/config bs=1 conv=notrunc status=none";
    let dropped = |p: &mut Pair| p.lab.counters().get("vm2", "drops");
    let (whole, before) = (p.lab.mapped_regions(), dropped(p));
    for (octets, regions) in [(r"\000", whole + 1), (r"\063", whole)] {
        for _ in 0..10 {
            // Registers 5b to 5e: C8000 to E7FFF.
            let octets = octets.repeat(4);
            p.vm2.ok(&format!("printf '{octets}' | dd of={pam} seek=91"));
        }
        assert_eq!(p.lab.mapped_regions(), regions, "regions of the guest");
        talk_again(p);
    }
    progress(&format!("{} frames to the guest met the hole", dropped(p) - before));
}

/// As often as it is to be done, with frames for the guest on their way.
fn often(p: &mut Pair, thing: fn(&mut Pair)) {
    send_always(p);
    (0..testkit::rounds(1, 2, 50)).for_each(|_| thing(p));
    tidy(p);
}

pub fn shapes(p: &mut Pair) {
    often(p, shape);
}

pub fn pauses(p: &mut Pair) {
    often(p, pause);
}

pub fn snapshots(p: &mut Pair) {
    often(p, snapshot);
}

pub fn memory(p: &mut Pair) {
    often(p, dimm);
}

pub fn drivers(p: &mut Pair) {
    often(p, driver);
}

pub fn network_cards(p: &mut Pair) {
    often(p, network_card);
}

/// Each guest reboots while the other stays up: the second by the reset button, with frames for it
/// on their way, the first by itself.
pub fn reboots(p: &mut Pair) {
    for _ in 0..testkit::rounds(1, 1, 50) {
        send_always(p);
        p.vm2.qmp(r#""execute":"system_reset""#);
        p.vm2.wait_ready();
        talk_again(p);
        p.vm1.last_words("reboot -f");
        p.vm1.wait_ready();
        pings(&mut p.vm2, &p.vm1.spec.ip4());
    }
    all_ping(p);
    tidy(p);
}
