//! The rules, pure: names, digests, manifests, frontmatter, verification and the tree.
//!
//! **Invariant:** nothing here does I/O, reads a clock or the environment, or knows of tokio,
//! fuser or rmcp. A rule about names or bytes lives here and nowhere else, so that it can be
//! tested as a function.

pub mod diff;
pub mod digest;
pub mod finding;
pub mod frontmatter;
pub mod manifest;
pub mod name;
pub mod skill;
pub mod text;
pub mod tree;
pub mod verify;
