//! Limits of ports that come by themselves: what a user can cost who may make sockets in the
//! directory for them.

// --- Ports by plug ------------------------------------------------------------------------

/// Ports by plug at a time: the largest hosts run a few hundred VMs, and other ports have most of
/// [`super::MAX_PORTS`] to themselves.
pub const MAX_PLUG_PORTS: usize = 256;

/// Those of one user, so that another finds room: all QEMUs of libvirt are one user.
pub const MAX_PLUG_PORTS_A_USER: usize = 128;

/// Ports that come or go at once: all, when the switch starts while VMs run.
pub const PLUG_BURST: u32 = 256;

/// Pause between them after that; the rest waits. Each makes another table of ports for all
/// workers, and a thread.
pub const PLUG_EVERY: std::time::Duration = std::time::Duration::from_millis(50);

/// Files that are examined, in 4 ms. Those of existing ports come first.
pub const MAX_PLUG_FILES: usize = 2048;

/// Tuning: least time between looks at the directory: 4 % of a CPU with [`MAX_PLUG_FILES`].
pub const PLUG_PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// Tuning: time between looks without an event, at the directory and for a listener: a killed QEMU
/// leaves its socket's file as it was.
pub const PLUG_LOOK: std::time::Duration = std::time::Duration::from_secs(2);

/// Time that a port outlives its listener: bind(2) makes the file, listen(2) comes after it.
pub const PLUG_GRACE: std::time::Duration = std::time::Duration::from_secs(5);

/// Tuning: time that the end waits for the thread, which may be removing a port.
pub const PLUG_STOP_TIMEOUT: std::time::Duration = std::time::Duration::from_millis(100);

/// Refused files reported at once; the rest is a number in the next event.
pub const PLUG_TOLD_BURST: u32 = 16;

/// Pause after which one more is.
pub const PLUG_TOLD_EVERY: std::time::Duration = std::time::Duration::from_secs(10);
