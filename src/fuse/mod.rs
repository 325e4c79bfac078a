//! The kernel side: the only folder that names fuser.
//!
//! The contract with the kernel, and why: entries and attributes are kept for long and changes
//! are pushed, so that a warm mount asks nothing; `open`, `opendir`, `flush` and the extended
//! attributes answer ENOSYS, which the kernel remembers; directories are listed with their
//! attributes in one go; only READ may wait for a server, and it can be interrupted.

mod adapter;
pub mod errno;
mod handles;
pub mod machine;
pub mod mount;
mod notify;
mod parked;

pub use adapter::Upcalls;
