//! `vioswitchctl show`: all ports on one screen, by bridge and VLAN.

use super::top::printed;
use super::*;

#[test]
fn ports_are_shown_by_bridge_and_vlan() {
    let mac = "02:00:00:00:00:07";
    let blue = format!(",bridge=blue,vlan=10,mac={mac}");
    let lab = Lab::with_ports(&["", "", ",vlan=10", ",trunk=10,20", &blue], &[]);
    let bystanders = lab.bystanders();
    let mut vm = Vm::connect(&lab.d.socket(2), VmConfig::new(2));
    // To an address that a bridge does not forward to.
    let mut frame = vec![0; 60];
    frame[..6].copy_from_slice(&[1, 0x80, 0xc2, 0, 0, 0]);
    frame[6..12].copy_from_slice(&vm.mac());
    vm.tx[0].send_waiting(&frame, LOST);
    let of = |all: &Value, bridge: usize, segment: usize| {
        all["bridges"][bridge]["segments"][segment].clone()
    };
    let counted = || of(&lab.json(&["show"]), 0, 1)["ports"][0]["drops"] == 1;
    assert!(wait_for(LOST, counted), "{}", lab.json(&["show"]));

    let all = lab.json(&["show"]);
    assert_eq!(
        (&all["bridges"][0]["name"], &all["bridges"][1]["name"]),
        (&json!("default"), &json!("blue"))
    );
    let names = |segment: &Value| {
        let ports = segment["ports"].as_array().expect("ports");
        ports.iter().map(|port| port["name"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&of(&all, 0, 0)), ["p0", "p1"]);
    for (bridge, segment, key, value, name) in [
        (0, 1, "vlan", json!(10), "p2"),
        (0, 2, "trunk", json!("10,20"), "p3"),
        (1, 0, "vlan", json!(10), "p4"),
    ] {
        let segment = of(&all, bridge, segment);
        assert_eq!((&segment[key], names(&segment)), (&value, vec![json!(name)]), "{all}");
    }
    // One of the two sends.
    for (port, way) in [(0, "in"), (1, "out")] {
        let busy = &of(&all, 0, 0)["ports"][port];
        assert!(busy["rates"][way]["bytes"].as_f64() > Some(0.0), "{busy}");
    }
    let dropped = &of(&all, 0, 1)["ports"][0];
    assert_eq!(dropped["rates"]["out"]["bytes"], 0.0, "{dropped}");
    assert!(dropped["drop_age"].as_u64().is_some_and(|age| age < 60), "{dropped}");
    assert_eq!(of(&all, 1, 0)["ports"][0]["address"], mac);

    let told = lab.done(&["show"]);
    let line = |start: &str| {
        let line = told.lines().find(|line| line.trim_start().starts_with(start));
        line.unwrap_or_else(|| panic!("{start}: {told}"))
    };
    assert!(line("vioswitch ").ends_with(": healthy"), "{told}");
    for group in [
        "bridge default, no VLAN: 2 ports",
        "bridge default, VLAN 10: 1 port",
        "bridge default, trunk 10,20: 1 port",
        "bridge blue, VLAN 10: 1 port",
    ] {
        assert_eq!(line(group), group);
    }
    assert!(line("p2").contains("  1, "), "{told}");
    assert!(line("p4").contains("listening") && line("p4").contains(mac), "{told}");
    for columns in [100, 80, 50] {
        let fitted = printed(&lab, &["show"], columns);
        assert!(fitted.lines().all(|line| line.chars().count() <= columns.into()), "{fitted}");
        assert_eq!(fitted.lines().count(), told.lines().count(), "{fitted}");
    }
    assert!(lab.done(&["tap", "show"]).contains(" 0 ports, "), "{}", lab.done(&["tap", "show"]));
    assert_eq!(lab.json(&["show", "p4"])["port"]["name"], "p4");
    bystanders.finish();
    lab.d.stop();
}
