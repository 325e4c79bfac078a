//! The program: parse, run, turn an error into an exit code.

use clap::Parser;
use mount_skills::{cli::Cli, run};
use std::io::Write;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_env("MOUNT_SKILLS_LOG");
    tracing_subscriber::fmt()
        .with_env_filter(filter.unwrap_or_else(|_| EnvFilter::new("mount_skills=warn")))
        .with_writer(std::io::stderr)
        .with_target(false)
        .init();
    match run::run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let _ = writeln!(std::io::stderr(), "mount-skills: {failure}");
            ExitCode::from(failure.code())
        }
    }
}
