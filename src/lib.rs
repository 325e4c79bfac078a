//! mount-skills: the Agent Skills of MCP servers as read-only, verified files.
//!
//! The rule above all others: **no byte leaves the mount that this process did not hash against
//! the entry in force; otherwise an errno and no bytes, and the reason one command away.**
//!
//! ```text
//! main → run → everything
//!        fuse    → host → domain, source (the trait), store, sync
//!        control → host, store
//!        source  → domain
//!        store   → domain
//!        domain  → nothing: pure
//! ```
//!
//! `source` and `store` do not know each other. Only `source` and `serve` name rmcp, only `fuse`
//! names fuser, only `fuse::errno` holds an errno. A test fails on any other arrow.

pub mod cli;
pub mod config;
pub mod control;
pub mod domain;
pub mod fuse;
pub mod host;
pub mod run;
pub mod serve;
pub mod source;
pub mod store;
mod sync;
