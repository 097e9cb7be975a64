//! Linux guests behind ports with a rate: TCP gets 95 % of it, sent and received.
//!
//! What TCP carries of a rate is its payload: 1,448 of 1,514 bytes. Guests without KVM reach some
//! 150 Mbit/s, so that no more is asked of them.

use std::process::Command;

use crate::cases::Case;
use crate::lab::{Lab, port, tap};
use crate::pair::{Pair, all_ping, boot, finish, tidy};
use crate::talk::iperf;
use crate::vm::Qemu;
use crate::{alone, can_make_network, cases, need_program, progress, skip};

/// The part of a rate that is TCP's payload.
const PAYLOAD: f64 = 1448.0 / 1514.0;
/// What an emulated guest has to manage without a rate, kbit/s, for a rate to be judged by it.
const FASTER: f64 = 1.3;

fn set(p: &Pair, name: &str, keys: &[&str]) {
    let mut ctl = Command::new(env!("CARGO_BIN_EXE_vioswitchctl"));
    ctl.arg("--control").arg(p.lab.path("control.sock")).args(["port", "set", name]).args(keys);
    let output = ctl.output().expect("vioswitchctl");
    assert!(output.status.success(), "{output:?}");
}

/// TCP from the first guest to the second one, with these keys.
fn tcp(p: &mut Pair, names: [&str; 2], keys: [&str; 2]) -> f64 {
    for (name, keys) in names.iter().zip(keys) {
        set(p, name, &[keys]);
    }
    let address = p.vm2.spec.ip4();
    iperf(&mut p.vm1, &address, "-t 8 -O 2").rate
}

fn rates(p: &mut Pair) {
    all_ping(p);
    p.vm2.serve();
    let names = ["vm1", "vm2"];
    let free = tcp(p, names, ["rate-in=", "rate-out="]);
    progress(&format!("without a rate {free:.0} kbit/s"));
    for rate in [10_000.0, 100_000.0] {
        if free < FASTER * rate {
            progress(&format!("{rate:.0} kbit/s are not judged: the guests reach {free:.0}"));
            continue;
        }
        let limit = format!("{rate:.0}kbit");
        for (what, keys) in [
            ("rate-in", [format!("rate-in={limit}"), "rate-out=".to_owned()]),
            ("rate-out", ["rate-in=".to_owned(), format!("rate-out={limit}")]),
        ] {
            let got = (0..3)
                .map(|_| tcp(p, names, [&keys[0], &keys[1]]))
                .inspect(|got| progress(&format!("{what}={limit}: {got:.0} kbit/s")))
                .find(|got| *got >= 0.95 * PAYLOAD * rate);
            let got = got.unwrap_or_else(|| panic!("{what}={limit}: less than 95 %"));
            assert!(got <= 1.02 * rate, "{what}={limit}: {got:.0} kbit/s");
        }
    }
    tidy(p);
}

const CASES: [Case<Pair>; 1] = [("rates", rates)];

#[test]
#[ignore = "full"]
fn tcp_gets_95_percent_of_a_rate() {
    let _alone = alone();
    cases::run(
        || {
            let qemu = match can_make_network().and(need_program("iperf3")).and(Qemu::system()) {
                Ok(qemu) => qemu,
                Err(missing) => {
                    skip(&missing);
                    return None;
                }
            };
            let mut lab = Lab::new("rates");
            let sockets = [lab.path("vm1.sock"), lab.path("vm2.sock")];
            let control = format!("--control={}", lab.path("control.sock").display());
            let ports = [port("vm1", &sockets[0], ""), port("vm2", &sockets[1], "")].concat();
            let args = [&ports[..], &tap(), &[control]].concat();
            lab.start_daemon(&args);
            lab.configure_tap();
            Some(boot(lab, qemu, args, sockets, 1, false))
        },
        &CASES,
        finish,
    );
}
