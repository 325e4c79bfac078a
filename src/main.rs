//! The program: parse, run, turn an error into an exit code.

use clap::Parser;
use mount_skills::{cli::Cli, run};
use std::io::Write;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    run::complete();
    let asked = std::env::var("MOUNT_SKILLS_LOG").unwrap_or_else(|_| "warn".into());
    // A bare level is about this program and rmcp's catalog of skills, not about every crate.
    let filter = match asked.contains(['=', ',']) {
        // Its word on a login at lower levels holds what the login is made of.
        true => format!("{asked},rmcp::transport::auth=warn"),
        false => format!("off,mount_skills={asked},rmcp::handler::server::skill_catalog={asked}"),
    };
    let filter = EnvFilter::try_new(&filter).unwrap_or_else(|e| {
        let _ = writeln!(
            std::io::stderr(),
            "mount-skills: MOUNT_SKILLS_LOG is not used: {e}"
        );
        EnvFilter::new("off,mount_skills=warn")
    });
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .init();
    match run::run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.is_silent() {
                let _ = writeln!(std::io::stderr(), "mount-skills: {failure}");
            }
            ExitCode::from(failure.code())
        }
    }
}
