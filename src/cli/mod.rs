//! The command line as typed. No behaviour: `run` does what is asked.

pub mod print;

use clap::{Args, Parser, Subcommand};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Mounts the Agent Skills of MCP servers as read-only files, every byte checked against the
/// server's manifest.
#[derive(Debug, Parser)]
#[command(
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Examples:\n  \
        mount-skills --server docs='npx -y some-skills-server' ~/skills\n  \
        mount-skills --server team=https://skills.example.org/mcp --server mine=./my-skills\n  \
        cat ~/skills/docs/pdf-processing/SKILL.md\n  \
        mount-skills status\n  \
        mount-skills unmount"
)]
pub struct Cli {
    /// What to mount.
    #[command(flatten)]
    pub mount: MountArgs,
    /// What else to do.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// The arguments of a mount.
#[derive(Debug, Args)]
pub struct MountArgs {
    /// A server and your name for it. TARGET is a command line (run without a shell), an http(s)
    /// URL, or a directory of skills. May be given more than once.
    #[arg(
        long = "server",
        short = 's',
        value_name = "LABEL=TARGET",
        required = true
    )]
    pub servers: Vec<String>,
    /// Where to mount; made if it is missing.
    #[arg(default_value = "/mnt/skills")]
    pub mountpoint: PathBuf,
    /// How long a read may wait for a server, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = seconds)]
    pub timeout: f64,
    /// How long a server may take to start, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = seconds)]
    pub start_timeout: f64,
    /// Where to keep checked files [default: $XDG_CACHE_HOME or ~/.cache].
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// The size at which the oldest kept files are removed, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = crate::store::cache::DEFAULT_CAP >> 20)]
    pub cache_size: u64,
}

/// Seconds that make a sensible deadline.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(s) if (0.1..=3600.0).contains(&s) => Ok(s),
        _ => Err("give a number of seconds from 0.1 to 3600".into()),
    }
}

/// The other things to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the skills of a running mount.
    List(AskArgs),
    /// Show what a running mount is doing: servers, declined skills, refused reads and why.
    Status(AskArgs),
    /// End a running mount. Ending one that is not there is no error.
    Unmount {
        /// Its mount point; not needed if only one is running.
        mountpoint: Option<PathBuf>,
    },
    /// Serve a directory of skills as an MCP server, over stdio unless --http is given.
    Serve {
        /// The directory; each folder in it with a SKILL.md is a skill.
        dir: PathBuf,
        /// Serve streamable HTTP at this address, such as 127.0.0.1:8080.
        #[arg(long, value_name = "ADDRESS")]
        http: Option<SocketAddr>,
        /// Follow changes on disk.
        #[arg(long)]
        watch: bool,
    },
    /// Watches over a daemon; started by it.
    #[command(name = crate::fuse::mount::GUARD, hide = true)]
    Guard {
        /// The mount point.
        mountpoint: PathBuf,
        /// The mount's device number.
        device: String,
    },
}

/// The arguments of a question to a running mount.
#[derive(Debug, Args)]
pub struct AskArgs {
    /// Its mount point or a path below it; not needed if only one is running.
    pub mountpoint: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn servers_are_needed_only_to_mount() {
        assert!(Cli::try_parse_from(["m"]).is_err());
        assert!(Cli::try_parse_from(["m", "--server", "a=x", "/m"]).is_ok());
        assert!(Cli::try_parse_from(["m", "status", "--json"]).is_ok());
        assert!(Cli::try_parse_from(["m", "--server", "a=x", "--timeout", "0"]).is_err());
    }
}
