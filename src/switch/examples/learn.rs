//! Three ports learn two addresses and decide where a frame goes: `cargo run -p vioswitch-switch
//! --example learn`.

use vioswitch_switch::{
    Decision, Fdb, FdbConfig, Flood, Ingress, MacAddr, Policy, PortKind, Rules,
};

fn main() {
    let ports = [Some(PortKind::Guest), Some(PortKind::Guest), Some(PortKind::Uplink)];
    let fdb = Fdb::new(FdbConfig::limited(ports.len(), 300, [1, 2]));
    let policy = Policy { fdb: &fdb, ports: &ports[..], rules: Rules::default() };
    let [one, two] = [0, 1].map(|port| Ingress { port, kind: PortKind::Guest });
    let [a, b] = [0xa, 0xb].map(|last| MacAddr([2, 0, 0, 0, 0, last]));

    policy.admit_source(one, a.into(), 0).expect("an address of a station");
    assert_eq!(policy.decide(one, b.into()), Decision::Flood(Flood::Unknown));
    policy.admit_source(two, b.into(), 1).expect("an address of a station");
    assert_eq!(policy.decide(one, b.into()), Decision::Unicast(1));
    println!("{:?}", fdb.entries(2));
}
