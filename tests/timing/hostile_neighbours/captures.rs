//! Four clients that capture at all ports with filters as long as a filter may be.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::alone;
use base::limits::{CAPTURE_FILTER_INSTRUCTIONS, MAX_CAPTURES};
use testkit::neighbours::{While, nobody};
use testkit::proc::Dir;
use testkit::shares::Shares;

/// Part of a worker's frames that may be lost. It is a tenth of the time, and what counting takes
/// that is lost to the captures, for frames that cost very little: 0.06 to 0.3 is seen.
const ALLOWED: f64 = 0.5;

/// A call of Capture. Its filter loads and adds as often as it may, and `accepts` a frame then.
fn call(accepts: u32) -> String {
    let one = |code: u16, k: u32| format!(r#"{{"code":{code},"jt":0,"jf":0,"k":{k}}}"#);
    let mut filter: Vec<String> = (0..CAPTURE_FILTER_INSTRUCTIONS - 1)
        .map(|n| if n % 2 == 0 { one(0x20, 14) } else { one(0x0c, 0) })
        .collect();
    filter.push(one(6, accepts));
    let (method, filter) = ("io.vioswitch.Switch.Capture", filter.join(","));
    format!(r#"{{"method":"{method}","more":true,"parameters":{{"filter":[{filter}]}}}}"#) + "\0"
}

/// Begins as many captures as there may be and reads what they come to; `parts` of answers came.
fn capture<'a>(
    path: &'a Path,
    call: &'a str,
    parts: &'a AtomicU64,
) -> impl FnMut(&While<'_>) + Send + 'a {
    move |phase: &While<'_>| {
        let mut clients: Vec<UnixStream> = (0..MAX_CAPTURES)
            .map(|_| {
                let mut client = UnixStream::connect(path).expect("connect");
                client.write_all(call.as_bytes()).expect("call");
                client.set_nonblocking(true).expect("non-blocking");
                client
            })
            .collect();
        let mut answer = vec![0; 1 << 20];
        phase.every(Duration::from_millis(1), || {
            for client in &mut clients {
                while let Ok(count @ 1..) = client.read(&mut answer) {
                    assert!(!answer[..count].windows(9).any(|word| word == b"\"error\":\""));
                    parts.fetch_add(
                        answer[..count].iter().filter(|b| **b == 0).count() as u64,
                        Ordering::Relaxed,
                    );
                }
            }
        });
    }
}

/// A pair of guests keeps what is left of its frames per second of the worker's time.
#[test]
#[ignore = "full"]
fn four_captures_with_the_longest_filters() {
    let _alone = alone();
    for (what, accepts) in [("nothing", 0), ("all", u32::MAX)] {
        let dir = Dir::new();
        let path = dir.path().join("control");
        let mut shares = Shares::with(1, &[&format!("--control={}", path.display())], |_| ());
        let (call, parts) = (call(accepts), AtomicU64::new(0));
        let what = format!("captures whose filters accept {what}");
        shares.slowed_no_more(&what, ALLOWED, nobody, capture(&path, &call, &parts));
        let parts = parts.into_inner();
        println!("{what}: {parts} parts of answers");
        assert!(parts > MAX_CAPTURES as u64, "{parts}");
        shares.d.stop();
    }
}
