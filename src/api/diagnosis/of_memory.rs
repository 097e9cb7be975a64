//! Faults of a guest's memory, as far as the front-end shares the memory.

use super::facts::{Facts, Port};
use super::finding::{Finding, MEMORY_NOT_SHARED, MEMORY_ON_DISK, MEMORY_PARTLY_SHARED};
use base::words::counted;

/// Arguments by which QEMU shares all memory.
const QEMU: &str =
    "-object memory-backend-memfd,id=mem,size=SIZE,share=on -machine memory-backend=mem";

pub fn judge(facts: &Facts, found: &mut Vec<Finding>) {
    for port in &facts.ports {
        found.extend(missing(port).or_else(|| on_disk(port)).or_else(|| outside(port)));
    }
}

fn missing(port: &Port) -> Option<Finding> {
    if !port.guest.memory_faults.missing {
        return None;
    }
    let cause = match port.guest.memory_faults.all_on_disk {
        true => "all of its guest's memory lies in files on a disk, which the switch leaves out",
        false => "its front-end shares no memory, so the switch cannot read the guest's frames",
    };
    let command = format!("QEMU: {QEMU}; others: vioswitchctl attach {} --help", port.name);
    Some(Finding::of(MEMORY_NOT_SHARED, port, cause.to_owned(), command))
}

fn on_disk(port: &Port) -> Option<Finding> {
    let mib = port.guest.memory_faults.on_disk >> 20;
    let cause = format!("{mib} MiB of its memory lie in a file on a disk and are left out");
    let command = format!("QEMU: {QEMU}");
    (port.guest.memory_faults.on_disk > 0)
        .then(|| Finding::of(MEMORY_ON_DISK, port, cause, command))
}

/// Finds memory that is not shared, such as a plugged DIMM, in which the driver has buffers.
fn outside(port: &Port) -> Option<Finding> {
    let count = port.guest.memory_faults.outside + port.counts.lately.bad_buffers;
    let cause = format!(
        "{} of its guest lately lay outside the memory that its front-end shares: a part of the \
         memory, such as a plugged DIMM or a NUMA node, is private, or the driver is broken",
        counted(count, "buffer")
    );
    let command = "QEMU: unplug the DIMM; object_add memory-backend-memfd,id=ID,size=SIZE,share=on \
                   before device_add pc-dimm,memdev=ID; share=on for each node's memory";
    (count > 0).then(|| Finding::of(MEMORY_PARTLY_SHARED, port, cause, command))
}
