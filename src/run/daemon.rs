//! Going into the background: `--daemon`.
//!
//! The command starts the program once more as its child, before there is any thread, and waits
//! until that says that the mount is ready or ends. Until then the child belongs to the terminal,
//! writes to it and ends with the command; then it lets go of it.
//!
//! **Invariant:** a daemon that nobody was told of does not stay: it ends if the command that
//! waits for it is gone.

use super::{Failure, log};
use crate::source::confine;
use rustix::process::Signal;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;

/// The flag by which the child knows what it is. Its stdin is where it says that it is ready.
pub(super) const CHILD: &str = "--daemon-child";
/// Where programs are looked for, if nobody has said.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// What it says there.
const READY: &[u8] = b"r";

/// Starts the child with our arguments, and waits for its word or its end.
pub(super) fn start(arguments: &[OsString]) -> Result<(), Failure> {
    let (mut word, says) = io::pipe()?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("mount-skills").arg(CHILD).args(arguments);
    command.stdin(says);
    // mount(8) takes them away, and servers are looked for in the one and live in the other.
    if std::env::var_os("PATH").is_none() {
        command.env("PATH", PATH);
    }
    if let (None, Ok(home)) = (std::env::var_os("HOME"), etcetera::home_dir()) {
        command.env("HOME", home);
    }
    confine(&mut command, Signal::TERM);
    let failed = |e| Failure::Failed(format!("the daemon cannot be started: {e}"));
    let mut child = command.spawn().map_err(failed)?;
    // Its end of the pipe must be open nowhere else.
    drop(command);
    let mut said = [0];
    if word.read(&mut said)? > 0 {
        return Ok(());
    }
    let status = child.wait()?;
    match (status.code(), status.signal()) {
        (Some(0), _) => {
            let text = "the mount was ended before it was ready";
            Err(Failure::Failed(text.into()))
        }
        // It has said why itself.
        (Some(code), _) => Err(Failure::Command(u8::try_from(code).unwrap_or(1))),
        (None, signal) => Err(Failure::Failed(format!(
            "the daemon was ended by signal {} before the mount was ready",
            signal.unwrap_or_default()
        ))),
    }
}

/// In the child, once the mount is ready: lets go of the terminal, the directory and all streams,
/// and says so.
///
/// # Errors
/// Nobody waits for the word any more.
pub(super) fn detach() -> io::Result<()> {
    let says = io::stdin().as_fd().try_clone_to_owned()?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    // Fails for the leader of a session, which has one of its own already.
    let _ = rustix::process::setsid();
    rustix::process::chdir("/")?;
    rustix::process::set_parent_process_death_signal(None)?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    log::take_stderr(&null)?;
    rustix::io::write(says, READY)?;
    Ok(())
}
