//! Limits of ports by plug: the cost of a user who may make sockets in the directory of `plug`.

// --- Ports by plug ------------------------------------------------------------------------

/// Ports by plug at a time: the largest hosts run a few hundred VMs, and other ports have most of
/// [`super::MAX_PORTS`] to themselves.
pub const MAX_PLUG_PORTS: usize = 256;

/// Ports by plug of one user, so that another user finds room: all QEMUs of libvirt are one user.
pub const MAX_PLUG_PORTS_A_USER: usize = 128;

/// Ports by plug that come or go at once: all ports, when the switch starts while VMs run.
pub const PLUG_BURST: u32 = 256;

/// Pause between ports by plug after a burst; further ports wait. Each port makes another table of
/// ports for all workers, and a thread.
pub const PLUG_EVERY: std::time::Duration = std::time::Duration::from_millis(50);

/// Files that are examined in the directory, in 4 ms. Files of existing ports come first.
pub const MAX_PLUG_FILES: usize = 2048;

/// Tuning: least time between looks at the directory: 4 % of a CPU with [`MAX_PLUG_FILES`].
pub const PLUG_PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// Tuning: time between looks at the directory, and for a listener, without an event: a killed QEMU
/// leaves its socket's file unchanged.
pub const PLUG_LOOK: std::time::Duration = std::time::Duration::from_secs(2);

/// Time that a port outlives its listener: bind(2) makes the file before listen(2).
pub const PLUG_GRACE: std::time::Duration = std::time::Duration::from_secs(5);

/// Tuning: time that the end of the daemon waits for the thread `plug`, which may be removing a
/// port.
pub const PLUG_STOP_TIMEOUT: std::time::Duration = std::time::Duration::from_millis(100);

/// Refused files reported at once; the next event has the number of further files.
pub const PLUG_TOLD_BURST: u32 = 16;

/// Pause after which another refused file is reported.
pub const PLUG_TOLD_EVERY: std::time::Duration = std::time::Duration::from_secs(10);
