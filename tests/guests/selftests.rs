//! Linux's own tests of its bridge, unchanged, find this switch in its place, and tests of ours
//! have a kernel with AppArmor, and with bridges that filter VLANs: `scripts/linux-selftests` runs
//! them in a guest of Debian's kernel, with hosts behind ports of the switch.

use std::path::Path;
use std::process::Command;

use testkit::proc::program;

use crate::{progress, skip};

/// Of `scripts/linux-selftests`: it lacks something.
const MISSING: i32 = 4;

fn passes(script: &str, tests: usize) {
    let run = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/linux-selftests");
    let programs = program();
    let mut command = Command::new(run);
    command.arg("--bin").arg(programs.parent().expect("a directory")).arg(script);
    let output = command.output().expect("run it");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    progress(&said);
    match output.status.code() {
        Some(MISSING) => skip(said.lines().last().unwrap_or("something is missing")),
        code => {
            let passed = said.matches("[ OK ]").count();
            let error = String::from_utf8_lossy(&output.stderr);
            assert_eq!((code, passed), (Some(0), tests), "{said}{error}");
        }
    }
}

#[test]
#[ignore = "full"]
fn isolated_ports_do_not_reach_each_other() {
    passes("bridge_port_isolation.sh", 3);
}

#[test]
#[ignore = "full"]
fn a_static_address_stays_where_it_is() {
    passes("bridge_sticky_fdb.sh", 1);
}

#[test]
#[ignore = "full"]
fn networks_of_two_hosts_share_a_vxlan_interface() {
    passes("vnifilter.sh", 5);
}

#[test]
#[ignore = "full"]
fn vduse_devices_give_the_host_and_a_container_interfaces() {
    passes("vduse.sh", 35);
}

#[test]
#[ignore = "full"]
fn a_restart_costs_a_stream_between_vduse_devices_one_time_out_at_most() {
    passes("vduse-restart.sh", 5);
}

#[test]
#[ignore = "full"]
fn apparmor_rules_of_the_package_open_the_sockets_of_ports_alone() {
    passes("apparmor.sh", 8);
}
