//! What is at the other end of a device: how its frames go, and by which names they are dropped.

use base::stats::DropReason;
use sys::tap_ring::Io;
use sys::xdp::Mode;

/// What is at the other end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Behind {
    /// The host, by this interface.
    Tap(String),
    /// What the host's interface of this name leads to, past the host's network stack.
    Xdp(String, Mode),
    /// Another process, by a connection.
    Stream,
}

/// By which names frames are dropped that do not pass a device.
pub(super) struct Reasons {
    /// There is no room, or no memory.
    pub(super) full: DropReason,
    /// The administrator has shut it.
    pub(super) down: DropReason,
    /// There is none now.
    pub(super) gone: DropReason,
    /// It refused the frame.
    pub(super) rejected: DropReason,
}

/// How frames go to an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Writes {
    /// To a TAP: several by one call, `uring`, or each by one, `write`. To and from one that is
    /// reached by XDP: where the program runs, `native` or `generic`.
    pub io: &'static str,
    /// Why not in the better way, if that is not what the administrator wants.
    pub why: Option<String>,
    /// What the administrator wants, and what came of it.
    pub wish: &'static str,
}

impl Behind {
    /// The interface's name, if there is one.
    pub(super) fn ifname(&self) -> Option<&str> {
        match self {
            Behind::Tap(ifname) | Behind::Xdp(ifname, _) => Some(ifname),
            Behind::Stream => None,
        }
    }

    pub(super) fn reasons(&self) -> Reasons {
        match self {
            Behind::Tap(_) => Reasons {
                full: DropReason::TapFull,
                down: DropReason::TapDown,
                gone: DropReason::TapGone,
                rejected: DropReason::TapRejected,
            },
            Behind::Xdp(..) => Reasons {
                full: DropReason::XdpFull,
                down: DropReason::XdpDown,
                gone: DropReason::XdpGone,
                rejected: DropReason::XdpRejected,
            },
            Behind::Stream => Reasons {
                full: DropReason::StreamFull,
                down: DropReason::StreamGone,
                gone: DropReason::StreamGone,
                rejected: DropReason::TooLong,
            },
        }
    }

    /// How frames go, if the interface is attached or not, and `refused` why not in the better way.
    pub(super) fn writes(
        &self,
        io: Io,
        is_up: bool,
        refused: impl FnOnce() -> Option<String>,
    ) -> Option<Writes> {
        let gone = "its interface is not attached";
        Some(match self {
            Behind::Stream => return None,
            Behind::Tap(_) if io == Io::Write => {
                Writes { io: "write", why: None, wish: "io=write" }
            }
            Behind::Tap(_) => {
                let why = refused();
                let uring = why.is_none() && is_up;
                let wish = match io {
                    _ if !uring => gone,
                    Io::Uring => "io=uring",
                    _ => "io=auto, and the kernel permits it",
                };
                Writes { io: if uring { "uring" } else { "write" }, why, wish }
            }
            Behind::Xdp(_, Mode::Generic) => {
                Writes { io: "generic", why: None, wish: if is_up { "mode=generic" } else { gone } }
            }
            Behind::Xdp(_, mode) => {
                let why = refused();
                let native = why.is_none();
                let wish = match mode {
                    _ if !is_up => gone,
                    Mode::Native => "mode=native",
                    _ => "mode=auto, and its driver can",
                };
                Writes { io: if native { "native" } else { "generic" }, why, wish }
            }
        })
    }
}
