//! Limits of ports that come by themselves: what a user can cost who may make sockets in the
//! directory for them.

// --- Ports by plug ------------------------------------------------------------------------

/// Ports that there are at a time because their sockets turned up: the largest hosts run a few
/// hundred VMs, and the other ports have most of [`super::MAX_PORTS`] to themselves.
pub const MAX_PLUG_PORTS: usize = 256;

/// Those of them whose sockets one user owns, so that another one finds room: all QEMUs of libvirt
/// are one user.
pub const MAX_PLUG_PORTS_A_USER: usize = 128;

/// Ports that come or go at once, all of them when the switch starts while VMs run.
pub const PLUG_BURST: u32 = 256;

/// How often one more may come or go after that, 20 a second; what exceeds it waits. Each makes
/// another table of ports for all workers, and a thread.
pub const PLUG_EVERY: std::time::Duration = std::time::Duration::from_millis(50);

/// Files of the directory that are looked at: a look at so many took 4 ms. Those of the ports
/// that there are come first.
pub const MAX_PLUG_FILES: usize = 2048;

/// How long after a look at the directory the next one is, if something happens there at once: the
/// thread then took 4 % of a CPU with [`MAX_PLUG_FILES`] there.
pub const PLUG_PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// How often the directory is looked at where the kernel does not say that something happened, and
/// who listens there: a QEMU that was killed leaves its socket's file as it was.
pub const PLUG_LOOK: std::time::Duration = std::time::Duration::from_secs(2);

/// How long nobody may listen at the socket of a port before the port goes: bind(2) makes the file,
/// and listen(2) comes after it.
pub const PLUG_GRACE: std::time::Duration = std::time::Duration::from_secs(5);

/// How long the end of the process waits for the thread, which may be taking a port away.
pub const PLUG_STOP_TIMEOUT: std::time::Duration = std::time::Duration::from_millis(100);

/// Files told of at once that become no port, and how often one more is; the rest is a number in
/// the next event.
pub const PLUG_TOLD_BURST: u32 = 16;

/// See [`PLUG_TOLD_BURST`].
pub const PLUG_TOLD_EVERY: std::time::Duration = std::time::Duration::from_secs(10);
