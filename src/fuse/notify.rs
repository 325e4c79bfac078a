//! The one thread that tells the kernel what changed.
//!
//! A notification takes kernel locks that a handler's reply may be needed for, so it never runs
//! on a thread that answers requests, holds no lock of ours, and never meets a caller that waits
//! on what it tells about: see [`Parked::alone`]. The pages of a directory have no such lock.

use super::parked::{Leave, Parked};
use crate::domain::tree::Change;
use crate::host::Batch;
use fuser::{INodeNo, Notifier};
use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

/// Starts the thread; it ends when the host does.
pub(super) fn start(
    notifier: Notifier,
    parked: Arc<Parked>,
    batches: Receiver<Batch>,
) -> io::Result<()> {
    let work = move || {
        for batch in batches {
            for change in &batch.changes {
                // Fails once the mount is gone; then nobody needs to know.
                if let Err(e) = tell(&notifier, &parked, change) {
                    tracing::debug!("the kernel did not take {change:?}: {e}");
                }
            }
            if let Some(done) = batch.done {
                let _ = done.send(());
            }
        }
    };
    std::thread::Builder::new()
        .name("notify".into())
        .spawn(work)?;
    Ok(())
}

fn tell(notifier: &Notifier, parked: &Parked, change: &Change) -> io::Result<()> {
    match change {
        Change::Entry { dir, name } => parked.alone(*dir, Leave::ByThemselves, || {
            notifier.inval_entry(INodeNo(*dir), OsStr::new(&**name))
        }),
        Change::Dir(dir) => notifier.inval_inode(INodeNo(*dir), 0, 0),
        Change::Pages(ino) => parked.alone(*ino, Leave::AtOnce, || {
            notifier.inval_inode(INodeNo(*ino), 0, 0)
        }),
    }
}
