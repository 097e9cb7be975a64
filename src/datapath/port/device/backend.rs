//! The kinds of devices: names, drop reasons, and ways of writing frames.

use base::stats::DropReason;
use sys::tap_ring::Io;
use sys::xdp::Mode;

/// The other end of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend {
    /// The host, by the interface of this name.
    Tap(String),
    /// The network behind the host's interface of this name, past the host's network stack.
    Xdp(String, Mode),
    /// Another process, by a connection.
    Stream,
}

/// Drop reasons of a kind of device.
pub struct Reasons {
    /// The device has no room, or the kernel has no memory.
    pub full: DropReason,
    /// The interface is administratively down.
    pub down: DropReason,
    /// No device is attached.
    pub gone: DropReason,
    /// The device refused the frame.
    pub rejected: DropReason,
}

/// The way in which frames go to an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IoMode {
    /// For a TAP: `uring` if one call writes several frames, `write` if each frame is a call. For
    /// XDP, in both directions: where the program runs, `native` or `generic`.
    pub io: &'static str,
    /// Why the better way is not in use, unless the administrator asked for the other way.
    pub why: Option<String>,
    /// The administrator's setting, or that the interface is not attached.
    pub reason: &'static str,
}

impl Backend {
    /// Returns the interface's name, if there is an interface.
    pub(super) fn ifname(&self) -> Option<&str> {
        match self {
            Backend::Tap(ifname) | Backend::Xdp(ifname, _) => Some(ifname),
            Backend::Stream => None,
        }
    }

    /// Returns the reasons for which frames to the device are dropped.
    pub fn reasons(&self) -> Reasons {
        match self {
            Backend::Tap(_) => Reasons {
                full: DropReason::TapFull,
                down: DropReason::TapDown,
                gone: DropReason::TapGone,
                rejected: DropReason::TapRejected,
            },
            Backend::Xdp(..) => Reasons {
                full: DropReason::XdpFull,
                down: DropReason::XdpDown,
                gone: DropReason::XdpGone,
                rejected: DropReason::XdpRejected,
            },
            Backend::Stream => Reasons {
                full: DropReason::StreamFull,
                down: DropReason::StreamGone,
                gone: DropReason::StreamGone,
                rejected: DropReason::TooLong,
            },
        }
    }

    /// Returns the way in which frames go. `is_up`: the interface is attached. `refused` returns
    /// why the better way is not available.
    pub(super) fn writes(
        &self,
        io: Io,
        is_up: bool,
        refused: impl FnOnce() -> Option<String>,
    ) -> Option<IoMode> {
        let gone = "its interface is not attached";
        Some(match self {
            Backend::Stream => return None,
            Backend::Tap(_) if io == Io::Write => {
                IoMode { io: "write", why: None, reason: "io=write" }
            }
            Backend::Tap(_) => {
                let why = refused();
                let uring = why.is_none() && is_up;
                let reason = match io {
                    _ if !uring => gone,
                    Io::Uring => "io=uring",
                    _ => "io=auto, and the kernel permits it",
                };
                IoMode { io: if uring { "uring" } else { "write" }, why, reason }
            }
            Backend::Xdp(_, Mode::Generic) => IoMode {
                io: "generic",
                why: None,
                reason: if is_up { "mode=generic" } else { gone },
            },
            Backend::Xdp(_, mode) => {
                let why = refused();
                let native = why.is_none();
                let reason = match mode {
                    _ if !is_up => gone,
                    Mode::Native => "mode=native",
                    _ => "mode=auto, and its driver can",
                };
                IoMode { io: if native { "native" } else { "generic" }, why, reason }
            }
        })
    }
}
