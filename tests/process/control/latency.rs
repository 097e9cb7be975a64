//! `--latency`: the host's CPUs are held out of deep idle states while frames come, and only then.

use testkit::SOON;
use testkit::mounts::{cover, uncover, with_own_mounts};

use super::*;
use crate::lab::exchange;

const DEVICE: &str = "/dev/cpu_dma_latency";
/// What is written to end a request.
const NOTHING: i32 = -1;

/// All that was written to a file in the device's place.
fn written(file: &Path) -> Vec<i32> {
    let bytes = std::fs::read(file).expect("read");
    bytes.chunks(4).map(|word| i32::from_ne_bytes(word.try_into().expect("4 bytes"))).collect()
}

/// Nothing is requested, and no thread of the switch wakes up for a while.
fn falls_asleep(lab: &Lab, file: &Path) -> bool {
    wait_for(LOST, || {
        let before = (written(file), lab.d.voluntary_switches());
        std::thread::sleep(Duration::from_millis(300));
        let after = (written(file), lab.d.voluntary_switches());
        before == after && after.0.last().is_none_or(|last| *last == NOTHING)
    })
}

/// Runs `test` with a file in the device's place.
fn with_file(test: impl FnOnce(&Path) + Send) {
    let device = Path::new(DEVICE);
    with_own_mounts(device, || {
        let dir = Dir::new();
        let file = dir.path().join("device");
        std::fs::write(&file, "").expect("write");
        cover(device, &file);
        test(&file);
    });
}

/// A request begins with frames and ends a moment after them, in turn; in silence there is neither
/// a request nor a timer.
#[test]
fn frames_hold_a_request_and_silence_ends_it() {
    with_file(|file| {
        let lab = Lab::new(2, &["--latency=low"]);
        assert_eq!(lab.json(&["status"])["latency"], "low");
        let told = lab.done(&["status"]);
        let is_latency = |line: &str| line.split_whitespace().eq(["latency:", "low"]);
        assert!(told.lines().any(is_latency), "{told}");
        let guests = || [0, 1].map(|id| Vm::connect(&lab.d.socket(id.into()), VmConfig::new(id)));
        for _ in 0..3 {
            assert!(falls_asleep(&lab, file), "{:?}", written(file));
            let before = written(file).len();
            exchange(guests());
            assert!(wait_for(SOON, || written(file).len() > before), "no request");
        }
        assert!(falls_asleep(&lab, file), "{:?}", written(file));
        let all = written(file);
        let in_turn = all.chunks(2).all(|pair| pair == [0, NOTHING]);
        assert!(in_turn && all.len() >= 6, "{all:?}");
        lab.d.stop();
    });
}

/// The request lasts as long as frames come, and is for the time that was configured.
#[test]
fn a_stream_of_frames_is_one_request() {
    with_file(|file| {
        let lab = Lab::new(2, &["--latency=250"]);
        assert_eq!(lab.json(&["status"])["latency"], "250");
        let bystanders = lab.bystanders();
        let lasts = wait_for(LOST, || {
            let before = written(file);
            std::thread::sleep(Duration::from_millis(200));
            before.last() == Some(&250) && written(file) == before
        });
        assert!(lasts, "{:?}", written(file));
        bystanders.finish();
        lab.d.stop();
        assert_eq!(written(file).last(), Some(&NOTHING));
    });
}

/// The switch goes on without the device, names the reason, and tries again.
#[test]
fn without_the_device_the_switch_is_degraded_until_it_is_there() {
    with_file(|file| {
        let dir = Dir::new();
        let socket = dir.path().join("none");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("bind");
        // Opening a socket fails as opening a device without a driver does.
        cover(Path::new(DEVICE), &socket);
        // What comes in the place of a device is another file, which a sandbox keeps closed.
        let lab = Lab::new(2, &["--latency=low", "--sandbox=off"]);
        let status = lab.json(&["status"]);
        let [degradation] = &status["degradations"].as_array().expect("a list")[..] else {
            panic!("{status}")
        };
        let text = degradation["text"].as_str().expect("a text");
        assert_eq!(degradation["code"], "latency");
        assert!(text.contains("cannot open /dev/cpu_dma_latency: No such device"), "{text}");
        let findings = lab.ctl(&["--json", "doctor"]);
        let findings = String::from_utf8(findings.stdout).expect("UTF-8");
        assert!(findings.contains("cannot open /dev/cpu_dma_latency"), "{findings}");
        exchange([0, 1].map(|id| Vm::connect(&lab.d.socket(id.into()), VmConfig::new(id))));
        uncover(Path::new(DEVICE));
        let is_healthy = || lab.json(&["status"])["degradations"] == json!([]);
        assert!(wait_for(LOST, is_healthy), "{}", lab.d.log());
        exchange([0, 1].map(|id| Vm::connect(&lab.d.socket(id.into()), VmConfig::new(id))));
        assert!(wait_for(SOON, || !written(file).is_empty()), "no request");
        lab.d.stop();
    });
}

/// The kernel's own view: the device reads as the shortest time that any process requests.
#[test]
fn the_kernel_knows_of_the_request_while_frames_come() {
    const WANTED: i32 = 7;
    let requested = || {
        let mut word = [0; 4];
        std::fs::File::open(DEVICE)?.read_exact(&mut word)?;
        std::io::Result::Ok(i32::from_ne_bytes(word))
    };
    match requested() {
        Err(error) => return testkit::skip(&format!("needs {DEVICE}: {error}")),
        Ok(other) if other <= WANTED => {
            return testkit::skip("another process requests as much");
        }
        Ok(_) => {}
    }
    let lab = Lab::new(2, &["--latency=7"]);
    let bystanders = lab.bystanders();
    assert!(wait_for(SOON, || requested().is_ok_and(|now| now == WANTED)), "{:?}", requested());
    bystanders.finish();
    assert!(wait_for(SOON, || requested().is_ok_and(|now| now > WANTED)), "{:?}", requested());
    lab.d.stop();
}
