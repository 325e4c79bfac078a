//! The MCP project's own client scenarios for skills.

use crate::rig::{BIN, Proc, Rig, project};
use std::process::{Command, Stdio};

#[test]
fn the_client_scenarios_of_the_conformance_suite_pass() {
    let _place = Rig::with_limit(160);
    let mut command = Command::new(project().join("scripts/conformance"));
    let out = Proc::spawn(command.arg(BIN).stdin(Stdio::null())).finish(150.0);
    let text = out.text();
    assert_eq!(out.code, Some(0), "{text}{}", out.err);
    assert_eq!(
        text.lines().filter(|l| l.starts_with("ok ")).count(),
        4,
        "{text}"
    );
}
