//! Tells the program its version: the package's, and in a release build the commit it is made from.
//!
//! The commit is that of `git`, or of the variable `MOUNT_SKILLS_COMMIT` where there is no
//! repository, and is left out where there is neither. No time of the build is in it, so that the
//! same sources make the same program. Builds for development leave it out as well: each commit
//! would have everything compiled again.

#![allow(clippy::print_stdout)] // how a build script speaks to cargo

use std::env;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=MOUNT_SKILLS_COMMIT");
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let release = env::var("PROFILE").is_ok_and(|p| p == "release");
    let commit = env::var("MOUNT_SKILLS_COMMIT").ok();
    let commit = commit.filter(|c| !c.is_empty());
    let commit = commit.or_else(|| release.then(of_git).flatten());
    let version = match commit {
        Some(commit) => format!("{version} ({commit})"),
        None => version,
    };
    println!("cargo:rustc-env=MOUNT_SKILLS_VERSION={version}");
}

/// The commit, with a `+` if the sources are not what it holds. None unless this very directory is
/// the repository's: sources that lie unpacked in somebody else's are not of that one's commit.
fn of_git() -> Option<String> {
    let here = env::current_dir().ok()?.canonicalize().ok()?;
    let top = git(&["rev-parse", "--show-toplevel"])?;
    if std::path::Path::new(&top).canonicalize().ok()? != here {
        return None;
    }
    for name in ["HEAD", "logs/HEAD", "index"] {
        let path = git(&["rev-parse", "--git-path", name])?;
        println!("cargo:rerun-if-changed={path}");
    }
    for path in ["src", "Cargo.toml", "Cargo.lock"] {
        println!("cargo:rerun-if-changed={path}");
    }
    git(&[
        "describe",
        "--always",
        "--exclude=*",
        "--abbrev=12",
        "--dirty=+",
    ])
}

fn git(args: &[&str]) -> Option<String> {
    let out = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8(out.stdout).ok()?;
    let text = text.trim();
    (out.status.success() && !text.is_empty()).then(|| text.to_owned())
}
