//! How a text reaches a person: colours where they are wanted, and a pager for what is longer than
//! the screen.
//!
//! The pager is the user's own command, split as a shell would and run without one. If it cannot
//! be started, the text is printed.

use super::{Failure, say};
use crate::cli::Look;
use crate::cli::review::{Line, paint};
use ratatui::crossterm::terminal;
use std::io::{self, IsTerminal, Write};
use std::process::{Command, Stdio};

/// Whether to use colours on stdout, by `--color`, NO_COLOR and what stdout is.
pub(super) fn colours() -> bool {
    anstream::AutoStream::choice(&io::stdout()) != anstream::ColorChoice::Never
}

/// Whether the terminal can do more than print line after line.
fn can_more_than_print() -> bool {
    std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb")
}

/// What became of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    /// It stays on the screen.
    Printed,
    /// It was paged, and may have left the screen.
    Paged,
}

/// Shows lines on stdout, through a pager if they do not fit the screen.
pub(super) fn show(lines: &[Line], look: Look) -> Result<Shown, Failure> {
    let text = paint(lines, colours());
    let person = io::stdout().is_terminal() && io::stdin().is_terminal();
    if !look.no_pager && person && can_more_than_print() && is_long(lines) && page(&text) {
        return Ok(Shown::Paged);
    }
    say(text).map(|()| Shown::Printed)
}

fn is_long(lines: &[Line]) -> bool {
    // A terminal that does not know its size is taken for a usual one.
    let known = |n: u16, usual| if n == 0 { usual } else { usize::from(n) };
    let (columns, rows) = terminal::size().unwrap_or_default();
    let (columns, rows) = (known(columns, 80), known(rows, 24));
    let height = |line: &Line| line.text.chars().count().div_ceil(columns).max(1);
    lines.iter().map(height).sum::<usize>() >= rows
}

/// Whether a pager took the text.
fn page(text: &str) -> bool {
    let given = std::env::var("PAGER").ok();
    let line = given.as_deref().filter(|line| !line.trim().is_empty());
    let words = shlex::split(line.unwrap_or("less -R")).unwrap_or_default();
    let [program, arguments @ ..] = words.as_slice() else {
        return false;
    };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped());
    let Ok(mut pager) = command.spawn() else {
        return false;
    };
    // One that ends before the end of the text was told to.
    if let Some(mut stdin) = pager.stdin.take() {
        let _ = stdin.write_all(text.as_bytes());
    }
    pager.wait().is_ok()
}
