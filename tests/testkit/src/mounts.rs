//! Files of a test's own in the place of the system's, for its threads and children alone.

use std::io;
use std::path::Path;
use std::process::Command;

/// Runs `test` on a thread with mounts of its own, which its children inherit and which end with
/// them. Where that is not permitted the test is skipped, as where `needed` does not exist.
pub fn with_own_mounts(needed: &Path, test: impl FnOnce() + Send) {
    if crate::skips_without_mounts() {
        return;
    }
    if !needed.exists() {
        return crate::skip(&format!("needs {}", needed.display()));
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            own_mounts();
            test();
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// Gives the calling thread mounts of its own.
pub fn own_mounts() {
    // SAFETY: affects only the calling thread.
    let done = unsafe { libc::unshare(libc::CLONE_NEWNS) };
    assert_eq!(done, 0, "mounts of its own: {}", io::Error::last_os_error());
    run("mount", &[Path::new("--make-rprivate"), Path::new("/")]);
}

/// Puts a file in the place of another one, for all that have this thread's mounts.
pub fn cover(place: &Path, file: &Path) {
    run("mount", &[Path::new("--bind"), file, place]);
}

/// Takes it away again.
pub fn uncover(place: &Path) {
    run("umount", &[place]);
}

fn run(program: &str, words: &[&Path]) {
    let output = Command::new(program).args(words).output().expect(program);
    assert!(output.status.success(), "{program} {words:?}: {output:?}");
}
