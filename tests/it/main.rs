//! The tests through a real mount with real servers: one binary, so that it links once.
//!
//! Every test has a [`rig::Rig`] of its own: private directories, a mount point, the daemon and
//! scripted servers. When a rig goes, it ends the daemon and fails the test if anything is left.
//! Names say what a test proves; C-nn and HR-nn are the ids of field cases and requirements.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used
)]

mod agents;
mod approvals;
mod availability;
mod bounds;
mod cache;
mod cli;
mod commands;
mod config;
mod conformance;
mod crash;
mod credentials;
mod docs;
mod doctor;
mod face;
mod faults;
mod faults_life;
mod faults_protocol;
mod frontmatter;
mod fuzz_corpus;
mod hostile;
mod hygiene;
mod identity;
mod kernel;
mod kinds;
mod layering;
mod lazy;
mod life;
mod load;
mod looking;
mod model;
mod nonroot;
mod observability;
mod others;
mod protocol;
mod real_servers;
mod reload;
mod rig;
mod semantics;
mod sessions;
mod spec_example;
mod standing;
mod top;
mod troubleshooting;
mod uris;
mod verification;
mod windows;
