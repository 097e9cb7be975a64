//! Unusual guests: with an XDP program at their card, with memory on a disk, with a card that asks
//! for the platform's own ways to memory. With XDP a guest's TCP is dead with all offloads (the
//! control), and alive with `offload=send`. Persistent memory and a DIMM on a disk come and go
//! beside a guest's own memory; where all of it is on a disk the log says what to do. With
//! `iommu_platform=on` at a port with `platform=on` a guest talks, also after a reset; behind a
//! virtual IOMMU it is refused, and the log says so.

use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::lab::{Lab, port, tap};
use crate::talk::pings;
use crate::vm::{Attach, MEMORY_KIB, Qemu, Vm, VmSpec};
use crate::{beside_another, can_make_network, or_skip, progress, wait_for};

/// One guest to be: options of its port, of its network card, of QEMU.
#[derive(Default)]
struct Kind<'a> {
    port: &'a str,
    device: &'static str,
    qemu: &'a [&'a str],
}

/// A daemon with an uplink, and these guests; `None` (said loudly) if the machine lacks a part.
fn start(name: &str, qemu: Result<Qemu, String>, kinds: &[Kind]) -> Option<(Lab, Vec<Vm>)> {
    let qemu = or_skip(can_make_network().and(qemu))?;
    let mut lab = Lab::new(name);
    let mut args = tap().to_vec();
    let mut specs = Vec::new();
    for ((number, name), kind) in (1..).zip(["vm1", "vm2", "vm3"]).zip(kinds) {
        let socket = lab.path(&format!("{name}.sock"));
        args.extend(port(name, &socket, kind.port));
        specs.push(VmSpec {
            name,
            number,
            socket,
            attach: Attach::Connects,
            pairs: 1,
            device: kind.device,
        });
    }
    lab.start_daemon(&args);
    lab.configure_tap();
    let start =
        |(spec, kind): (&VmSpec, &Kind)| Vm::start_with_options(&lab, &qemu, spec, kind.qemu);
    let mut vms: Vec<Vm> = specs.iter().zip(kinds).map(start).collect();
    vms.iter_mut().for_each(Vm::wait_ready);
    Some((lab, vms))
}

/// The guests go, the books must balance, and the daemon leaves in good order.
fn finish(mut lab: Lab, vms: Vec<Vm>) {
    drop(vms);
    assert!(lab.daemon_runs(), "the daemon is gone");
    lab.counters_at_rest().assert_balanced();
    lab.stop_daemon();
}

/// What [`transfer`] sends.
const BYTES: u64 = 1 << 20;

/// How many of so many bytes arrive over TCP within `limit`.
fn transfer(vms: &mut [Vm], from: usize, to: usize, limit: Duration) -> u64 {
    let address = vms[to].spec.ip4();
    vms[to].ok("nc -l -p 5001 -e sh -c 'cat >/tmp/got' >/dev/null 2>&1 &");
    vms[to].ok("until netstat -ltn | grep -q :5001; do sleep 0.1; done; rm -f /tmp/got");
    vms[from].ok(&format!("head -c {BYTES} /dev/zero >/tmp/data"));
    vms[from].ok(&format!("nc {address} 5001 -e cat /tmp/data >/dev/null 2>&1 & echo $! >/tmp/nc"));
    let arrived = |vm: &mut Vm| {
        let (_, got) = vm.run("cat /tmp/got 2>/dev/null | wc -c", limit);
        got.trim().parse().expect("a number of bytes")
    };
    let end = Instant::now() + limit;
    while arrived(&mut vms[to]) < BYTES && Instant::now() < end {
        sleep(Duration::from_millis(100));
    }
    vms[from].run("kill $(cat /tmp/nc)", limit);
    vms[to].run("killall cat nc; until ! netstat -ltn | grep -q :5001; do sleep 0.1; done", limit);
    arrived(&mut vms[to])
}

/// A guest that attaches XDP drops what comes in large packets, and newer kernels what comes
/// without a checksum. QEMU does not tell: with all offloads its TCP is dead, which is the control;
/// with `offload=send` the switch cuts and sums for it, and it still sends large packets itself.
fn xdp(name: &str, qemu: Result<Qemu, String>) {
    let _beside = beside_another();
    let kinds = ["", "", ",offload=send"].map(|port| Kind { port, ..Kind::default() });
    let Some((mut lab, mut vms)) = start(name, qemu, &kinds) else {
        return;
    };
    let (alive, dead) = (Duration::from_secs(30), Duration::from_secs(5));
    assert_eq!(transfer(&mut vms, 0, 1, alive), BYTES, "before XDP was attached");
    for vm in &mut vms[1..] {
        vm.ok("xdp eth0");
    }
    let (one, ip3) = (vms[0].spec.ip4(), vms[2].spec.ip4());
    pings(&mut vms[1], &one);
    pings(&mut vms[0], &ip3);
    let got = transfer(&mut vms, 0, 1, dead);
    progress(&format!("offload=on: {got} of {BYTES} bytes came"));
    assert!(got < BYTES / 4, "TCP does not mind XDP: {got} bytes came");

    let before = lab.counters();
    let got = transfer(&mut vms, 0, 2, alive);
    let between = lab.counters();
    let sent = transfer(&mut vms, 2, 0, alive);
    let after = lab.counters();
    let [cut, summed] = ["out segmented", "out checksummed"]
        .map(|key| between.get("vm3", key) - before.get("vm3", key));
    let [bytes, frames] =
        ["in bytes", "in frames"].map(|key| after.get("vm3", key) - between.get("vm3", key));
    progress(&format!("offload=send: {got} bytes came, {cut} packets cut, {summed} summed"));
    progress(&format!("offload=send: {sent} bytes sent in {frames} frames of {bytes} bytes"));
    assert_eq!((got, sent), (BYTES, BYTES), "TCP with offload=send");
    assert!(cut > 10 && summed > 0, "nothing was done in software: {after:#?}");
    assert!(bytes > 5000 * frames, "what it sends is not large: {bytes} bytes, {frames} frames");
    finish(lab, vms);
}

/// A file where the build goes, which is gone in the end.
struct DiskFile(PathBuf);

impl DiskFile {
    fn new(name: &str, mib: u64) -> DiskFile {
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let file = std::fs::File::create(&path).expect("create a file");
        file.set_len(mib << 20).expect("make it that long");
        DiskFile(path)
    }

    /// The memory back-end of that name in it.
    fn backend(&self, id: &str, kib: u64) -> String {
        let path = self.0.display();
        format!("memory-backend-file,id={id},mem-path={path},size={kib}K,share=on")
    }
}

impl Drop for DiskFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Lines of the daemon's complaints about a port in which this stands.
fn complaints(lab: &Lab, port: &str, text: &str) -> usize {
    let about = format!("port {port}: ");
    lab.complaints().lines().filter(|line| line.contains(&about) && line.contains(text)).count()
}

/// A DIMM in a file on a disk comes and goes.
fn plug_and_unplug(vm: &mut Vm, path: &Path, other: &str) {
    let backend = r#""qom-type":"memory-backend-file","id":"more","size":134217728,"share":true"#;
    let file = format!(r#""mem-path":"{}""#, path.display());
    vm.qmp(&format!(r#""execute":"object-add","arguments":{{{backend},{file}}}"#));
    let dimm = r#""driver":"pc-dimm","id":"dimm","memdev":"more""#;
    vm.qmp(&format!(r#""execute":"device_add","arguments":{{{dimm}}}"#));
    pings(vm, other);
    vm.qmp(r#""execute":"device_del","arguments":{"id":"dimm"}"#);
    wait_for("the DIMM to go", Duration::from_secs(30), || {
        let gone = vm.try_qmp(r#""execute":"object-del","arguments":{"id":"more"}"#);
        gone.starts_with("{\"return\"").then_some(())
    });
    pings(vm, other);
}

/// Persistent memory in a file on a disk is left out with a word, and costs a guest nothing, nor
/// does such a DIMM that comes and goes. Whose memory is all on a disk has no network, and the log
/// says what to do.
fn on_disk(name: &str, qemu: Result<Qemu, String>) {
    let _beside = beside_another();
    let pmem = DiskFile::new(&format!("{name}-pmem"), 64);
    let ram = DiskFile::new(&format!("{name}-ram"), 192);
    let dimm = DiskFile::new(&format!("{name}-dimm"), 128);
    let (nvdimm, all) = (pmem.backend("pmem", 64 << 10), ram.backend("ram", MEMORY_KIB.into()));
    let kinds = [
        Kind::default(),
        Kind {
            qemu: &["-machine", "nvdimm=on", "-object", &nvdimm, "-device", "nvdimm,memdev=pmem"],
            ..Kind::default()
        },
        Kind { qemu: &["-object", &all, "-machine", "memory-backend=ram"], ..Kind::default() },
    ];
    let Some((lab, mut vms)) = start(name, qemu, &kinds) else {
        return;
    };
    let [ip1, ip2] = [0, 1].map(|vm: usize| vms[vm].spec.ip4());
    pings(&mut vms[0], &ip2);
    pings(&mut vms[1], &ip1);
    plug_and_unplug(&mut vms[0], &dimm.0, &ip2);
    let said = lab.complaints();
    progress(&format!("the daemon said\n{said}"));
    assert_eq!(complaints(&lab, "vm1", "128 MiB"), 1, "{said}");
    assert_eq!(complaints(&lab, "vm2", "64 MiB"), 1, "{said}");
    assert!(complaints(&lab, "vm3", "memory-backend-memfd") > 0, "{said}");
    finish(lab, vms);
}

/// `iommu_platform=on` without an IOMMU, as confidential guests need it: QEMU refuses to start such
/// a machine at a port without `platform=on`.
fn platform(name: &str, qemu: Result<Qemu, String>) {
    let _beside = beside_another();
    let kinds = [
        Kind::default(),
        Kind {
            port: ",platform=on",
            device: ",disable-legacy=on,iommu_platform=on",
            ..Kind::default()
        },
    ];
    let Some((lab, mut vms)) = start(name, qemu, &kinds) else {
        return;
    };
    let [ip1, ip2] = [0, 1].map(|vm: usize| vms[vm].spec.ip4());
    pings(&mut vms[0], &ip2);
    pings(&mut vms[1], &ip1);
    // Bit 33: the guest's driver has agreed to it.
    let bits = vms[1].ok("cat /sys/class/net/eth0/device/features");
    assert_eq!(bits.as_bytes()[33], b'1', "{bits}");
    vms[1].qmp(r#""execute":"system_reset""#);
    vms[1].wait_ready();
    pings(&mut vms[1], &ip1);
    assert_eq!(lab.complaints(), "");
    finish(lab, vms);
}

#[test]
#[ignore = "full"]
fn xdp_is_attached_qemu_7() {
    xdp("xdp7", Qemu::system());
}

#[test]
#[ignore = "full"]
fn xdp_is_attached_qemu_10() {
    xdp("xdp10", Qemu::backported());
}

#[test]
#[ignore = "full"]
fn memory_is_on_a_disk_qemu_7() {
    on_disk("disk7", Qemu::system());
}

#[test]
#[ignore = "full"]
fn memory_is_on_a_disk_qemu_10() {
    on_disk("disk10", Qemu::backported());
}

#[test]
#[ignore = "full"]
fn platform_is_asked_for_qemu_7() {
    platform("platform7", Qemu::system());
}

#[test]
#[ignore = "full"]
fn platform_is_asked_for_qemu_10() {
    platform("platform10", Qemu::backported());
}

/// Behind a virtual IOMMU QEMU acknowledges ACCESS_PLATFORM, when the guest's driver is ready.
#[test]
#[ignore = "full"]
fn a_virtual_iommu_is_refused_qemu_10() {
    let _beside = beside_another();
    let kind = Kind {
        port: ",platform=on",
        device: ",disable-legacy=on,iommu_platform=on",
        qemu: &["-machine", "q35", "-device", "intel-iommu,intremap=off,device-iotlb=on"],
    };
    let Some((lab, vms)) = start("iommu10", Qemu::backported(), &[kind]) else {
        return;
    };
    let said = lab.complaints();
    assert!(complaints(&lab, "vm1", "behind a virtual IOMMU") > 0, "{said}");
    finish(lab, vms);
}
