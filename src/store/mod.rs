//! What is kept on disk: checked blobs, the state of each server and its login. The only folder that
//! writes files.
//!
//! Layout, all below two XDG directories:
//!
//! ```text
//! $XDG_CACHE_HOME/mount-skills/v1/<label>-<identity>/<aa>/<digest>   blobs, 0400 in 0700
//! $XDG_STATE_HOME/mount-skills/v1/<label>-<identity>/listing.json    state, 0600 in 0700
//! $XDG_STATE_HOME/mount-skills/v1/<label>-<identity>/login.json      the login, likewise
//! $XDG_STATE_HOME/mount-skills/v1/<label>-<identity>/stderr          its stderr, likewise; older: stderr.1
//! ```
//!
//! **Invariants:** nothing on disk is named by a server's text; directories are ours alone
//! (owner and mode are checked) and are held open, so that no symlink is followed; files are
//! written beside and renamed. What comes from disk is as untrusted as what comes from a server.
//!
//! Absent on purpose: sharing of blobs between labels (HR-87).

pub mod append;
pub mod cache;
mod crash;
pub mod login;
mod private;
pub mod state;

pub use private::{PrivateDir, Unsafe};
