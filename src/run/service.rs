//! What a service manager such as systemd is told, if one started us: `NOTIFY_SOCKET`.

use sd_notify::NotifyState;

/// What becomes of the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage<'a> {
    /// It can be read.
    Ready(&'a str),
    /// Its servers are about to change. `Ready` follows.
    Reloading,
    /// It is being taken away.
    Stopping,
}

/// Tells it. Whoever started us without such a manager hears nothing.
pub(super) fn tell(stage: Stage) {
    let told = match stage {
        Stage::Ready(status) => {
            sd_notify::notify(&[NotifyState::Ready, NotifyState::Status(status)])
        }
        Stage::Reloading => NotifyState::monotonic_usec_now()
            .and_then(|now| sd_notify::notify(&[NotifyState::Reloading, now])),
        Stage::Stopping => sd_notify::notify(&[NotifyState::Stopping]),
    };
    if let Err(e) = told {
        tracing::debug!("the service manager cannot be told: {e}");
    }
}
