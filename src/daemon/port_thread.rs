//! The means of a port's thread, and the end of each session that the thread serves.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use vmm_sys_util::eventfd::EventFd;

use super::running_port::RunningPort;
use base::limits::DROPPED_PAUSE;
use datapath::events::{What, reason};
use datapath::port::{GuestPort, Port};
use datapath::vhost_user::session::{Account, Context, End};

/// The means of a port's thread, which serves front-ends.
pub(crate) struct PortThread {
    /// The port.
    pub(crate) running: Arc<RunningPort>,
    /// Account that the guests' memory is charged to.
    pub(crate) account: Arc<Account>,
    /// Context of every session.
    pub(crate) context: Context,
    /// Written when the thread is to end.
    pub(crate) stop: Arc<EventFd>,
}

/// Reports the pause after a front-end that was dropped for the harm that it did to others, and
/// returns its length; none after any other front-end.
pub(super) fn pause_after_harm(port: &Port) -> Option<Duration> {
    let harmful = port.as_guest().is_some_and(GuestPort::was_harmful);
    harmful.then(|| {
        port.tell(What::Closed { seconds: DROPPED_PAUSE.as_secs() });
        DROPPED_PAUSE
    })
}

/// Serves one session by `talk`, contains an error or panic that ends the session, and reports the
/// end: `over`, or what `failed` returns for the reason.
pub(super) fn contained<E: std::fmt::Display>(
    port: &Port,
    talk: impl FnOnce() -> Result<End, E>,
    over: What,
    failed: impl FnOnce(String) -> What,
) -> Option<End> {
    let (end, detached) = match catch_unwind(AssertUnwindSafe(talk)) {
        Ok(Ok(end)) => (Some(end), over),
        Ok(Err(error)) => {
            port.stats.session_errors.add_shared(1);
            (None, failed(reason(error)))
        }
        Err(_) => {
            port.stats.panics.add_shared(1);
            (None, What::DetachedByPanic { why: "its session panicked and was contained" })
        }
    };
    port.tell(detached);
    end
}
