//! Runs other programs and returns their output, within a limited time and up to a limited length.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Longest time that the caller waits for a program.
const LIMIT: Duration = Duration::from_secs(5);
/// Interval of the checks whether a program has ended that has closed its output.
const STEP: Duration = Duration::from_millis(1);
/// Longest output that is read, in bytes.
const MAX_ANSWER: u64 = 8 << 20;

/// Returns the output of a program, if the program exists and succeeds in time.
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
        // Nobody waits any more for an answer that came too late.
        let _ = send.send(read.map(|_| answer));
    });
    let end = Instant::now() + limit;
    let answer = received.recv_timeout(limit);
    // The program may have closed its output and run on.
    while answer.is_ok() && Instant::now() < end && matches!(child.try_wait(), Ok(None)) {
        std::thread::sleep(STEP);
    }
    // A kill does not matter to a program that has ended.
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

    /// Neither a silent program nor a program that closes its output and runs on holds the caller
    /// up.
    #[test]
    fn what_does_not_end_is_given_up() {
        for script in ["exec sleep 60", "exec >&- sleep 60"] {
            let began = Instant::now();
            assert_eq!(output_within(&["sh", "-c", script], STEP * 100), None);
            assert!(began.elapsed() < Duration::from_secs(30), "{script}");
        }
    }
}
