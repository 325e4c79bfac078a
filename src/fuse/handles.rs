//! Open files of dynamic skills. Each sees one snapshot, fetched at its first read (HR-35); files
//! that have a digest need no handle and have none.

use crate::domain::verify::Unverified;
use crate::host::ReadError;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::OnceCell;

/// What an open file sees, once it was read from.
pub(super) type Snapshot = OnceCell<Result<Unverified, ReadError>>;

/// The open files of dynamic skills; 0 is no handle.
#[derive(Debug, Default)]
pub(super) struct Handles {
    last: AtomicU64,
    open: Mutex<HashMap<u64, Arc<Snapshot>>>,
}

impl Handles {
    pub(super) fn open(&self) -> u64 {
        let handle = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.open.lock().insert(handle, Arc::default());
        handle
    }

    pub(super) fn get(&self, handle: u64) -> Option<Arc<Snapshot>> {
        if handle == 0 {
            return None;
        }
        self.open.lock().get(&handle).cloned()
    }

    pub(super) fn close(&self, handle: u64) {
        self.open.lock().remove(&handle);
    }
}
