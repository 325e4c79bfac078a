//! The command line as typed. No behaviour: `run` does what is asked.

pub mod help;
pub mod helper;
pub mod print;
pub mod review;

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The version, with the commit that a release build was made from.
pub const VERSION: &str = env!("MOUNT_SKILLS_VERSION");
/// Groups of options in the help.
const SERVERS: &str = "Servers";
const APPROVALS: &str = "Approvals and windows";
const LIMITS: &str = "Limits";
const RUNNING: &str = "Running";

/// Mounts the Agent Skills of MCP servers as read-only, verified files
///
/// Every byte is checked against the server's manifest before it is read.
#[derive(Debug, Parser)]
#[command(name = "mount-skills", version = VERSION)]
pub struct Cli {
    /// What to mount.
    #[command(flatten)]
    pub mount: MountArgs,
    /// The mount that a command is about
    ///
    /// Its mount point or a path below it. Not needed if only one is running.
    #[arg(long = "mount", value_name = "PATH", global = true)]
    pub at: Option<PathBuf>,
    /// Print the answer of a command as JSON.
    #[arg(long, global = true, hide_short_help = true)]
    pub json: bool,
    /// When to use colours
    ///
    /// auto: on a terminal, unless NO_COLOR is set.
    #[arg(
        long,
        global = true,
        value_enum,
        value_name = "WHEN",
        default_value_t,
        hide_short_help = true
    )]
    pub color: ColorArg,
    /// What else to do.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// The arguments of a mount.
#[derive(Debug, Args)]
pub struct MountArgs {
    /// The servers and the rules.
    #[command(flatten)]
    pub servers: ServerArgs,
    /// Where to mount; made if it is missing [default: /mnt/skills]
    ///
    /// Only root can make /mnt/skills; others choose a place of their own, such as ~/skills.
    pub mountpoint: Option<PathBuf>,
    /// Return when the mount is ready, and serve it in the background
    #[arg(long, help_heading = RUNNING)]
    pub daemon: bool,
    /// Append the log to this file instead of stderr
    ///
    /// With --daemon the default is $XDG_STATE_HOME/mount-skills/log.
    #[arg(long, value_name = "FILE", help_heading = RUNNING, hide_short_help = true)]
    pub log_file: Option<PathBuf>,
    /// The daemon itself; started by the command that waits for it.
    #[arg(long, hide = true)]
    pub daemon_child: bool,
}

/// The servers, and the rules under which their skills are read.
///
/// What is not given here may stand in a configuration file.
#[derive(Debug, Clone, Default, Args)]
pub struct ServerArgs {
    /// A server and your name for it: a command line, URL or directory
    ///
    /// TARGET is a command line (run without a shell), an http(s) URL, or a directory of skills.
    /// May be given more than once.
    #[arg(long = "server", short = 's', value_name = "LABEL=TARGET", help_heading = SERVERS)]
    pub servers: Vec<String>,
    /// A file with servers, of your MCP client or of our own
    ///
    /// The mcpServers of Claude or Cursor, the servers of VS Code, Codex' config.toml, or one of
    /// our own. May be given more than once [default, without --server:
    /// ~/.config/mount-skills/config.toml].
    #[arg(long = "config", short = 'c', value_name = "FILE", help_heading = SERVERS)]
    pub configs: Vec<PathBuf>,
    /// A header that each request to a server at a URL carries
    ///
    /// May be given more than once. The process list shows it: for a secret take --bearer-env or
    /// --bearer-file.
    #[arg(
        long = "header",
        value_name = "LABEL=NAME: VALUE",
        help_heading = SERVERS,
        hide_short_help = true
    )]
    pub headers: Vec<String>,
    /// The environment variable with the bearer token for a server at a URL
    ///
    /// May be given more than once.
    #[arg(
        long,
        value_name = "LABEL=VARIABLE",
        help_heading = SERVERS,
        hide_short_help = true
    )]
    pub bearer_env: Vec<String>,
    /// The file with the bearer token for a server at a URL
    ///
    /// Read again when it changes. May be given more than once.
    #[arg(
        long,
        value_name = "LABEL=FILE",
        help_heading = SERVERS,
        hide_short_help = true
    )]
    pub bearer_file: Vec<String>,
    /// A skill that its server does not list, by the URI of its SKILL.md
    ///
    /// May be given more than once.
    #[arg(
        long = "skill",
        value_name = "LABEL=URI",
        help_heading = SERVERS,
        hide_short_help = true
    )]
    pub skills: Vec<String>,
    /// What it takes to read a skill
    ///
    /// [default: server]
    #[arg(long, value_enum, value_name = "WHAT", help_heading = APPROVALS)]
    pub approval: Option<ApprovalArg>,
    /// Let the dynamic skills of this server be read
    ///
    /// Nothing of them can be verified. May be given more than once.
    #[arg(
        long,
        value_name = "LABEL",
        help_heading = APPROVALS,
        hide_short_help = true
    )]
    pub allow_dynamic: Vec<String>,
    /// What ends a window
    ///
    /// One opens when a skill is read: it does not change until then [default: release].
    #[arg(long, value_enum, value_name = "UNTIL", help_heading = APPROVALS)]
    pub hold: Option<HoldArg>,
    /// Read exactly the sets of this file, and nothing else
    ///
    /// The file is what `mount-skills lock` prints.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "approval",
        help_heading = APPROVALS
    )]
    pub locked: Option<PathBuf>,
    /// Let other users of the machine read too
    ///
    /// As a user other than root, this needs a line user_allow_other in /etc/fuse.conf.
    #[arg(long, help_heading = RUNNING, hide_short_help = true)]
    pub allow_other: bool,
    /// Forget the windows that a killed daemon left open
    #[arg(long, help_heading = APPROVALS, hide_short_help = true)]
    pub new_session: bool,
    /// How long a read may wait for a server, in seconds [default: 10]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, help_heading = LIMITS)]
    pub timeout: Option<f64>,
    /// How long a server may take to start, in seconds [default: 60]
    #[arg(
        long,
        value_name = "SECONDS",
        value_parser = seconds,
        help_heading = LIMITS,
        hide_short_help = true
    )]
    pub start_timeout: Option<f64>,
    /// Where to keep checked files
    ///
    /// In mount-skills/v1 below it [default: $XDG_CACHE_HOME or ~/.cache].
    #[arg(long, value_name = "DIR", help_heading = LIMITS, hide_short_help = true)]
    pub cache_dir: Option<PathBuf>,
    /// The size at which the least recently used kept files are removed [default: 1024 MiB]
    #[arg(long, value_name = "MIB", help_heading = LIMITS, hide_short_help = true)]
    pub cache_size: Option<u64>,
    /// How the lines of the log look [default: text]
    #[arg(long, value_enum, help_heading = RUNNING, hide_short_help = true)]
    pub log_format: Option<LogFormat>,
    /// Append to this file who reads what first
    ///
    /// A line of JSON for each file that a process reads first, and for each read that is refused; see:
    /// mount-skills audit.
    #[arg(long, value_name = "FILE", help_heading = RUNNING, hide_short_help = true)]
    pub audit: Option<PathBuf>,
    /// Serve figures for Prometheus at this loopback address, such as 127.0.0.1:9464
    #[arg(
        long,
        value_name = "ADDRESS",
        value_parser = loopback,
        help_heading = RUNNING,
        hide_short_help = true
    )]
    pub metrics: Option<SocketAddr>,
}

/// How the lines of the log look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// Objects, one a line.
    Json,
}

/// When to use colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum ColorArg {
    /// On a terminal.
    #[default]
    Auto,
    /// Also where there is none.
    Always,
    /// Never.
    Never,
}

/// What it takes to read a skill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum ApprovalArg {
    /// Naming the server.
    #[default]
    Server,
    /// An approval of each skill.
    Each,
}

/// What ends a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum HoldArg {
    /// `refresh` or `release`.
    #[default]
    Release,
    /// Also reading the SKILL.md of the changed skill again: for a mount that serves one agent.
    Reload,
    /// There are no windows: for people who browse.
    None,
}

/// Seconds that make a sensible deadline.
pub fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(s) if (0.1..=3600.0).contains(&s) => Ok(s),
        _ => Err("give a number of seconds from 0.1 to 3600".into()),
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| "give an address and a port, such as 127.0.0.1:8080".into())
}

/// An address that only this machine reaches.
pub fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address = text.parse().ok();
    address
        .filter(|a: &SocketAddr| a.ip().is_loopback())
        .ok_or_else(|| "give a loopback address and a port, such as 127.0.0.1:9464".into())
}

/// The other things to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Mount in a private place for one command
    ///
    /// The command finds the place in MOUNT_SKILLS. Unmounts when it ends, and exits with its exit
    /// code.
    Run {
        /// The servers and the rules.
        #[command(flatten)]
        servers: ServerArgs,
        /// Where to mount instead.
        #[arg(long, value_name = "DIR")]
        at: Option<PathBuf>,
        /// The command and its arguments.
        #[arg(last = true, required = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
    /// List the skills of a running mount
    List {
        /// Only this server.
        label: Option<String>,
        /// How to print them; markdown, xml and hint are for a prompt.
        #[arg(long, value_enum, default_value_t)]
        format: Format,
        /// Show instead what the server has in this directory now, and what of it no entry has.
        #[arg(long, value_name = "LABEL/PATH", conflicts_with_all = ["label", "format"])]
        live: Option<String>,
        /// Print at most this many characters of markdown, xml or hint; what is left out is counted.
        #[arg(long, value_name = "N")]
        max_chars: Option<usize>,
    },
    /// Show what a running mount is doing, or why a path reads or does not
    Status {
        /// A label, a skill, or a path below the mount point.
        what: Option<String>,
        /// Print the figures of the mount for Prometheus instead.
        #[arg(long, conflicts_with_all = ["what", "json"])]
        prometheus: bool,
    },
    /// Print a skill's file without loading the skill
    ///
    /// As JSON, its content is base64.
    Show {
        /// The skill.
        skill: String,
        /// The file below it.
        #[arg(default_value = "SKILL.md")]
        file: String,
    },
    /// Show what the server publishes now against what is in force
    Diff {
        /// The skill.
        skill: String,
        /// How to show it.
        #[command(flatten)]
        look: Look,
    },
    /// Show a skill's set, and what changed in it, and approve it after asking
    Approve {
        /// The skill.
        skill: String,
        /// How to show it.
        #[command(flatten)]
        look: Look,
        /// Approve this set without asking; it must be the one that is published.
        #[arg(long, value_name = "sha256:…")]
        set: Option<String>,
        /// Approve also the execution of what the skill says, for `gate`.
        #[arg(long)]
        exec: bool,
    },
    /// Watch a running mount, and approve what changed
    ///
    /// Servers, skills, reads and refusals; what changed can be looked at.
    Top,
    /// Take a skill away from readers, open files included
    Revoke {
        /// The skill.
        skill: String,
    },
    /// Ask the server anew and move on to what it publishes
    ///
    /// A skill, or all of a server.
    Refresh {
        /// A skill or a label.
        target: String,
    },
    /// End the window of a skill, or of all skills of a server
    Release {
        /// A skill or a label.
        target: String,
    },
    /// Add a skill that its server does not list
    Add {
        /// The server.
        label: String,
        /// The URI of its SKILL.md.
        uri: String,
    },
    /// Succeed only if what the skill at a path says may be executed
    ///
    /// That is, if its execution was approved, for its set in force. For agent runtimes.
    Gate {
        /// A path of the skill.
        path: String,
    },
    /// Print every skill with the set in force, for --locked
    Lock {
        /// Compare with this file instead; exits with 3 if anything differs.
        #[arg(long, value_name = "FILE")]
        check: Option<PathBuf>,
    },
    /// Log in to a server at a URL, with a browser
    ///
    /// Running mounts use the login by themselves.
    Login(LoginArgs),
    /// Forget the logins of a server, and have its tokens taken back
    Logout {
        /// The server.
        label: String,
    },
    /// Remove all that is kept of a server
    ///
    /// Cached files, approvals, windows, logins and its listing.
    Forget {
        /// The label.
        label: String,
        /// Where files were kept, if the mount was told so.
        #[arg(long, value_name = "DIR")]
        cache_dir: Option<PathBuf>,
    },
    /// Look after the cached files
    Cache {
        /// Where files were kept, if the mount was told so.
        #[arg(long, value_name = "DIR", global = true)]
        cache_dir: Option<PathBuf>,
        /// What to do.
        #[command(subcommand)]
        what: CacheCommand,
    },
    /// Look at the configuration: what a mount would use, and what other programs have
    Config {
        /// What to do.
        #[command(subcommand)]
        what: ConfigCommand,
    },
    /// Examine machine, configuration and servers, and say what mends what is wrong
    ///
    /// Exits with 1 if something does not work, with 4 if there are warnings only.
    Doctor {
        /// The servers and the rules, as for a mount; each server is waited for as long as
        /// --timeout says.
        #[command(flatten)]
        servers: ServerArgs,
        /// Where the mount is, or is to be.
        mountpoint: Option<PathBuf>,
    },
    /// End a running mount
    ///
    /// Ending one that is not there is no error.
    Unmount {
        /// Its mount point, or a path below it; not needed if only one is running.
        mountpoint: Option<PathBuf>,
        /// Leave the windows open for the next mount at this place, as for an upgrade.
        #[arg(long)]
        keep_windows: bool,
    },
    /// Read the configuration of a running mount again
    ///
    /// Servers come, go and change; the others notice nothing.
    Reload,
    /// Print or change what a running mount logs
    ///
    /// A change holds until the mount ends; what it was before is printed.
    LogLevel {
        /// A level such as debug, or a filter such as mount_skills=debug,rmcp=info.
        filter: Option<String>,
    },
    /// Print the end of what a server wrote to stderr
    ///
    /// In this run and earlier ones.
    Logs {
        /// The server.
        label: String,
        /// Go on with what it writes from now on, until interrupted.
        #[arg(short, long, conflicts_with = "json")]
        follow: bool,
        /// At most this many lines of what is kept.
        #[arg(long, value_name = "N", default_value_t = 100)]
        lines: usize,
        /// Print its bytes as they are, which may do anything to a terminal.
        #[arg(long, conflicts_with = "json")]
        raw: bool,
    },
    /// Print who first read what, from the trail of --audit
    Audit {
        /// Only this server or skill, or what lies below this path.
        what: Option<String>,
        /// Go on with what is written from now on, until interrupted.
        #[arg(short, long)]
        follow: bool,
        /// The trail, if not that of the running mount.
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Serve a directory of skills as an MCP server
    ///
    /// Over stdio, unless --http is given.
    Serve {
        /// The directory; each folder in it with a SKILL.md is a skill.
        dir: PathBuf,
        /// Serve streamable HTTP at this address, such as 127.0.0.1:8080.
        #[arg(long, value_name = "ADDRESS", value_parser = address)]
        http: Option<SocketAddr>,
        /// Follow changes on disk.
        #[arg(long)]
        watch: bool,
    },
    /// Print what makes a shell complete commands, options and the names of what is mounted
    Completions {
        /// The shell.
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Print the manual page, or write all of them
    Man {
        /// Write mount-skills.1, a page for each command, and mount.mount-skills.8 to this
        /// directory.
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
    /// Watches over a daemon; started by it.
    #[command(name = "__guard", hide = true)]
    Guard {
        /// The mount point.
        mountpoint: PathBuf,
        /// The mount's device number.
        device: String,
        /// What becomes of the mount point.
        then: Option<String>,
    },
}

/// How the changes of a skill are shown.
#[derive(Debug, Clone, Copy, Args)]
pub struct Look {
    /// Only the names of what changed; fetches nothing.
    #[arg(long)]
    pub stat: bool,
    /// Print a long text as well, instead of starting $PAGER [default: less -R].
    #[arg(long)]
    pub no_pager: bool,
}

/// What to do with the configuration.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Show what a mount with these options would use, without secrets
    ///
    /// Servers, those that are not used and why, and settings with where they come from.
    Show {
        /// The options of the mount.
        #[command(flatten)]
        servers: Box<ServerArgs>,
    },
    /// Show which servers could be taken over from Claude, Cursor, VS Code and Codex
    Import {
        /// Write them to ~/.config/mount-skills/config.toml.
        #[arg(long)]
        write: bool,
        /// Replace that file.
        #[arg(long, requires = "write")]
        force: bool,
        /// Look at these files instead.
        #[arg(value_name = "FILE")]
        files: Vec<PathBuf>,
    },
}

/// The arguments of `login`.
#[derive(Debug, Args)]
pub struct LoginArgs {
    /// The server.
    pub label: String,
    /// Its URL, as given to --server; not needed if a mount with it is running, or to log in anew.
    #[arg(long)]
    pub url: Option<String>,
    /// Who we are to whoever issues its tokens, if that was arranged before.
    #[arg(long, value_name = "ID")]
    pub client_id: Option<String>,
    /// The environment variable with the secret that goes with --client-id.
    #[arg(long, value_name = "VARIABLE", requires = "client_id")]
    pub client_secret_env: Option<String>,
    /// What the login is to be good for, in place of what the server asks for; may be given more
    /// than once.
    #[arg(long = "scope", value_name = "SCOPE", value_delimiter = ' ')]
    pub scopes: Vec<String>,
    /// The port of 127.0.0.1 that the browser comes back to, in place of any free one.
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    pub port: u16,
    /// Do not open a browser, also on a terminal.
    #[arg(long)]
    pub no_browser: bool,
    /// How long to wait for the browser, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 300.0, value_parser = seconds)]
    pub timeout: f64,
}

/// What to do with the cached files.
#[derive(Debug, Subcommand)]
pub enum CacheCommand {
    /// List what is kept, by server
    List,
    /// Hash every kept file again and remove what is damaged
    Verify,
    /// Remove the least recently used files down to a size
    Prune {
        /// The size to come down to, in MiB.
        #[arg(long, value_name = "MIB", default_value_t = 0)]
        to: u64,
    },
}

/// The shells that can be told what to complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// bash.
    Bash,
    /// zsh.
    Zsh,
    /// fish.
    Fish,
}

impl Shell {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Bash => "bash",
            Self::Zsh => "zsh",
            Self::Fish => "fish",
        }
    }
}

/// How skills are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Format {
    /// Lines for people.
    #[default]
    Text,
    /// Objects.
    Json,
    /// A list for a prompt.
    Markdown,
    /// Elements for a prompt.
    Xml,
    /// A paragraph on the use of the mount and a line a skill, for an agent's instructions.
    Hint,
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
    fn mounting_and_commands_do_not_mix() {
        let parse = |args: &[&str]| Cli::try_parse_from(args);
        assert!(parse(&["m", "--server", "a=x", "/m"]).is_ok());
        assert!(parse(&["m", "status", "--json", "--mount", "/m"]).is_ok());
        // A value that has the name of a command is a value.
        let held = parse(&["m", "--server", "a=x", "--hold", "reload", "/m"]).unwrap();
        assert_eq!(held.mount.servers.hold, Some(HoldArg::Reload));
        assert!(held.command.is_none());
        assert!(matches!(
            parse(&["m", "--mount", "cache", "reload"]).unwrap().command,
            Some(Command::Reload)
        ));
        assert!(parse(&["m", "--server", "a=x", "--timeout", "0"]).is_err());
        assert!(parse(&["m", "run", "--server", "a=x", "--", "sh", "-c", "x"]).is_ok());
        assert!(parse(&["m", "run", "--server", "a=x"]).is_err());
        assert!(
            parse(&[
                "m",
                "--server",
                "a=x",
                "--locked",
                "f",
                "--approval",
                "each"
            ])
            .is_err()
        );
        assert_eq!(crate::fuse::mount::GUARD, "__guard");
    }
}
