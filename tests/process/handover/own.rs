//! What the next process takes for its own.

use std::fs;

use testkit::proc::wait_for;

use super::{SOON, Service};

/// A kept socket was opened by the process before: the one after knows it for its own all the same,
/// and does not connect to it.
#[test]
fn s10_a_kept_socket_is_the_daemons_own() {
    let mut service = Service::new();
    let mut args = service.ports(1);
    let name = service.path("p0").file_name().expect("a name").to_owned();
    let around = service.path("around");
    args.push(format!("--port=c,socket={},mode=client", around.join(name).display()));
    let told = |log: &str| log.matches("it is a socket of this daemon").count();
    for process in 1..=2 {
        // A directory at the start, or the configuration is refused.
        fs::create_dir(&around).expect("create");
        service.start(&args);
        fs::remove_dir(&around).expect("remove");
        std::os::unix::fs::symlink(".", &around).expect("link");
        assert!(wait_for(SOON, || told(&service.log()) == process), "{}", service.log());
        assert!(!service.log().contains("front-end connected"), "{}", service.log());
        service.stop();
        fs::remove_file(&around).expect("remove");
    }
}
