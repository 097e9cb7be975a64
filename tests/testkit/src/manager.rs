//! A service manager with a descriptor store, as far as a service sees one (sd_notify(3),
//! sd_listen_fds(3)): it keeps what it is sent and passes it to the next process it starts.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// The first number of a passed descriptor.
const FIRST: RawFd = 3;

/// A descriptor and its name.
pub struct Kept {
    pub name: String,
    pub fd: OwnedFd,
}

#[derive(Default)]
struct Store {
    kept: Vec<Kept>,
    said: Vec<String>,
}

pub struct Manager {
    path: PathBuf,
    store: Arc<Mutex<Store>>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Manager {
    /// Listens at `notify` in this directory.
    pub fn new(dir: &Path) -> Manager {
        let path = dir.join("notify");
        let socket = UnixDatagram::bind(&path).expect("the manager's socket");
        socket.set_nonblocking(true).expect("nonblocking");
        let store = Arc::new(Mutex::new(Store::default()));
        let over = Arc::new(AtomicBool::new(false));
        let (theirs, ended) = (Arc::clone(&store), Arc::clone(&over));
        let thread = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                if !receive(&socket, &theirs) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
        Manager { path, store, over, thread: Some(thread) }
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().expect("store")
    }

    /// Makes `command` start `program` as its service, whatever else the command does before.
    /// Everything kept is passed on, and stays kept.
    pub fn start(&self, command: &mut Command, program: &str, args: &[String]) {
        let store = self.store();
        let names: Vec<&str> = store.kept.iter().map(|kept| kept.name.as_str()).collect();
        let fds: Vec<OwnedFd> =
            store.kept.iter().map(|kept| kept.fd.try_clone().expect("dup")).collect();
        command
            .args(["-c", "export LISTEN_PID=$$; exec \"$0\" \"$@\"", program])
            .args(args)
            .env("NOTIFY_SOCKET", &self.path)
            .env("LISTEN_FDS", fds.len().to_string())
            .env("LISTEN_FDNAMES", names.join(":"));
        // SAFETY: fcntl and dup2 are async-signal-safe; what the closure owns was made before.
        unsafe {
            command.pre_exec(move || {
                // Out of the way first: a number may be another one's goal.
                let top = FIRST + fds.len() as RawFd;
                let moved = |fd: &OwnedFd| libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, top);
                for (number, fd) in (FIRST..).zip(fds.iter().map(moved).collect::<Vec<_>>()) {
                    if libc::dup2(fd, number) < 0 {
                        return Err(std::io::Error::last_os_error());
                    }
                }
                Ok(())
            });
        }
    }

    /// Names of what is kept, in order.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.store().kept.iter().map(|kept| kept.name.clone()).collect();
        names.sort();
        names
    }

    /// Keeps something of its own, as for socket activation, or of an earlier release.
    pub fn add(&self, name: &str, fd: OwnedFd) {
        self.store().kept.push(Kept { name: name.to_owned(), fd });
    }

    /// What was kept under a name is no more.
    pub fn remove(&self, name: &str) -> Vec<OwnedFd> {
        let mut store = self.store();
        let (gone, kept) = store.kept.drain(..).partition(|kept| kept.name == name);
        store.kept = kept;
        let gone: Vec<Kept> = gone;
        gone.into_iter().map(|kept| kept.fd).collect()
    }

    /// How often the service has said that it is ready.
    pub fn starts(&self) -> usize {
        self.store().said.iter().filter(|said| said.contains("READY=1")).count()
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().expect("a thread").join();
    }
}

/// Takes one message; false if there is none.
fn receive(socket: &UnixDatagram, store: &Mutex<Store>) -> bool {
    let (mut buffer, mut numbers) = ([0; 4096], [-1; 253]);
    let mut piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let pieces = std::slice::from_mut(&mut piece);
    // SAFETY: the one piece is the live buffer.
    let got = unsafe { socket.recv_with_fds(pieces, &mut numbers) };
    let Ok((len, count)) = got else { return false };
    // SAFETY: they were just received and are owned by nobody else. The crate cannot ask for them
    // to be close-on-exec, and children of other tests must not have them.
    let own = |number: &RawFd| unsafe {
        libc::fcntl(*number, libc::F_SETFD, libc::FD_CLOEXEC);
        OwnedFd::from_raw_fd(*number)
    };
    let mut fds: Vec<OwnedFd> = numbers[..count].iter().map(own).collect();
    let said = String::from_utf8_lossy(&buffer[..len]).into_owned();
    let lines: Vec<&str> = said.lines().collect();
    let name = lines.iter().find_map(|line| line.strip_prefix("FDNAME=")).unwrap_or("stored");
    let mut store = store.lock().expect("store");
    if lines.contains(&"FDSTORE=1") {
        assert!(!fds.is_empty() && !name.contains(':') && name.len() <= 255, "{said}");
        store.kept.extend(fds.drain(..).map(|fd| Kept { name: name.to_owned(), fd }));
    } else if lines.contains(&"FDSTOREREMOVE=1") {
        store.kept.retain(|kept| kept.name != name);
    }
    store.said.push(said.clone());
    // A barrier's descriptor is closed when all before it is done.
    drop(store);
    true
}
