//! The host behind the uplink: it sends frames to guests and to everybody, and its interface goes
//! down, changes its MTU and is deleted now and then.

use std::time::{Duration, Instant};

use testkit::Rng;
use testkit::host::{Host, index_of, ip};
use testkit::proc::wait_for;
use testkit::vm::mac_of;

use super::shared::{PORTS, Shared};

pub const TAP: &str = "soak0";
/// A station on the host's side.
const STATION: u8 = 0xd0;
/// The switch makes its interface again within a second; the machine may be busy.
const BACK: Duration = Duration::from_secs(20);

pub fn run(shared: &Shared, seed: u64) {
    let mut rng = Rng::new(seed ^ 0x7a70);
    let mut host = open();
    let mut next = Instant::now() + Duration::from_secs(2);
    while !shared.stopping() {
        shared.others_rest();
        for _ in 0..1 + rng.below(8) {
            let dst =
                if rng.below(8) == 0 { [0xff; 6] } else { mac_of(rng.below(PORTS as u64) as u8) };
            let mut frame = [&dst[..], &mac_of(STATION), &[0x88, 0xb5]].concat();
            frame.resize(60 + rng.below(1400) as usize, 0xd0);
            // Refused while the interface is down, and when it was just shrunk.
            let _ = host.try_send(&frame);
        }
        host.drain();
        std::thread::sleep(Duration::from_millis(1 + rng.below(5)));
        if Instant::now() > next {
            host = disturb(&mut rng, host, shared);
            next = Instant::now() + Duration::from_millis(1000 + rng.below(5000));
        }
    }
}

fn open() -> Host {
    assert!(wait_for(BACK, || index_of(TAP).is_some()), "{TAP} does not come back");
    ip(&format!("link set {TAP} up"));
    Host::open(TAP)
}

fn disturb(rng: &mut Rng, host: Host, shared: &Shared) -> Host {
    match rng.below(4) {
        0 => {
            shared.count("tap down");
            ip(&format!("link set {TAP} down"));
            std::thread::sleep(Duration::from_millis(rng.below(300)));
            ip(&format!("link set {TAP} up"));
            host
        }
        1 => {
            shared.count("tap deleted");
            drop(host);
            ip(&format!("link del {TAP}"));
            open()
        }
        _ => {
            shared.count("tap mtu");
            ip(&format!("link set {TAP} mtu {}", [576, 1500, 9000][rng.below(3) as usize]));
            host
        }
    }
}
