//! Places where a test ends the process, to see what a kill leaves on the disk.
//!
//! Each write is a row of steps, and [`step`] stands between any two of them. In a program that is
//! built with debug assertions it looks at two variables of the environment:
//!
//! - `MOUNT_SKILLS_STEPS`: a file to which it appends a line for each step, `STEP NAME`;
//! - `MOUNT_SKILLS_KILL_AT`: `N STEP NAME` ends the process with SIGKILL when this step of a file
//!   whose name begins so has been reached for the N-th time. Names rather than one count of all
//!   steps: files that are written at the same time come in no order.
//!
//! *Absent:* all of it, in a program that is built for use.

#[cfg(debug_assertions)]
pub(super) use debug::{step, write_all};

/// Nothing.
#[cfg(not(debug_assertions))]
pub(super) fn step(_: &str, _: &str) {}

/// Writes all bytes.
#[cfg(not(debug_assertions))]
pub(super) fn write_all(file: &mut std::fs::File, _: &str, bytes: &[u8]) -> std::io::Result<()> {
    std::io::Write::write_all(file, bytes)
}

#[cfg(debug_assertions)]
mod debug {
    use std::env::var;
    use std::fs::File;
    use std::io::{self, Write};
    use std::sync::atomic::{AtomicU64, Ordering};

    static REACHED: AtomicU64 = AtomicU64::new(0);

    /// A step in the life of the file of this name is done; the next one has not begun.
    pub(in super::super) fn step(step: &str, name: &str) {
        if let Ok(log) = var("MOUNT_SKILLS_STEPS")
            && let Ok(mut log) = File::options().create(true).append(true).open(log)
        {
            let _ = log.write_all(format!("{step} {name}\n").as_bytes());
        }
        let at = var("MOUNT_SKILLS_KILL_AT").unwrap_or_default();
        if let Some((n, what)) = at.split_once(' ')
            && let Some(begin) = what.strip_prefix(step).and_then(|w| w.strip_prefix(' '))
            && name.starts_with(begin)
            && n.parse() == Ok(REACHED.fetch_add(1, Ordering::SeqCst) + 1)
        {
            let me = rustix::process::getpid();
            let _ = rustix::process::kill_process(me, rustix::process::Signal::KILL);
        }
    }

    /// Writes all bytes, with a step where half of them are written.
    pub(in super::super) fn write_all(file: &mut File, name: &str, bytes: &[u8]) -> io::Result<()> {
        let (half, rest) = bytes.split_at(bytes.len() / 2);
        file.write_all(half)?;
        step("half-written", name);
        file.write_all(rest)
    }
}
