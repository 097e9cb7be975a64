//! Other programs that are asked something: for a limited time, and for a limited answer.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Longest one of them is waited for.
const LIMIT: Duration = Duration::from_secs(5);
/// How often it is looked whether one has ended that says no more.
const STEP: Duration = Duration::from_millis(1);
/// Longest answer that is read.
const MAX_ANSWER: u64 = 8 << 20;

/// Returns what a program prints, if there is such a program and it succeeds in time.
pub fn output(words: &[&str]) -> Option<String> {
    output_within(words, LIMIT)
}

fn output_within(words: &[&str], limit: Duration) -> Option<String> {
    let (program, arguments) = words.split_first()?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut pipe = child.stdout.take()?.take(MAX_ANSWER);
    let (send, received) = mpsc::channel();
    std::thread::spawn(move || {
        let mut answer = Vec::new();
        let read = pipe.read_to_end(&mut answer);
        // Nobody waits for it any more if it came too late.
        let _ = send.send(read.map(|_| answer));
    });
    let end = Instant::now() + limit;
    let answer = received.recv_timeout(limit);
    // It may have closed its output and run on.
    while answer.is_ok() && Instant::now() < end && matches!(child.try_wait(), Ok(None)) {
        std::thread::sleep(STEP);
    }
    // One that has ended does not mind.
    let _ = child.kill();
    let done = child.wait().is_ok_and(|status| status.success());
    let answer = answer.ok()?.ok()?;
    done.then(|| String::from_utf8_lossy(&answer).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_comes_of_what_succeeds() {
        assert_eq!(output(&["echo", "a b"]).as_deref(), Some("a b\n"));
        assert_eq!(output(&["false"]), None);
        assert_eq!(output(&["no-such-program"]), None);
    }

    /// Neither holds the caller up: one that is silent, and one that runs on without a word.
    #[test]
    fn what_does_not_end_is_given_up() {
        for script in ["exec sleep 60", "exec >&- sleep 60"] {
            let began = Instant::now();
            assert_eq!(output_within(&["sh", "-c", script], STEP * 100), None);
            assert!(began.elapsed() < Duration::from_secs(30), "{script}");
        }
    }
}
