//! What is shown while one waits: a line for each server as it connects, then `ready`; and a spinner
//! for whatever a command waits for longer than a moment.

use crate::config::ServerSpec;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How long `ready` waits for the servers' first word, so that a slow one does not hold it up.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a spinner turns.
const TICK: Duration = Duration::from_millis(100);

/// How long one waits without a word.
const A_MOMENT: Duration = Duration::from_secs(1);

/// Does something, and shows on a terminal what is waited for if that takes longer than a moment.
/// Nothing of it stays, and stdout is not touched.
pub(super) fn while_waiting<T>(what: &'static str, work: impl FnOnce() -> T) -> T {
    if !io::stderr().is_terminal() {
        return work();
    }
    std::thread::scope(|scope| {
        let (done, is_done) = mpsc::channel::<()>();
        scope.spawn(move || {
            if is_done.recv_timeout(A_MOMENT) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let bar = ProgressBar::new_spinner().with_message(what);
            bar.enable_steady_tick(TICK);
            // Ends when the sender goes.
            let _ = is_done.recv();
            bar.finish_and_clear();
        });
        let result = work();
        drop(done);
        result
    })
}

/// Where the lines go.
#[derive(Clone, Copy)]
pub(super) enum Where {
    /// To stdout, every line.
    Stdout,
    /// To stdout as lines that stay, also on a terminal: it is left at any moment.
    Lines,
    /// To stderr, only what went wrong: stdout belongs to a command.
    Stderr,
}

/// The servers' first words, as they come.
pub(super) struct Progress<'a> {
    specs: &'a [ServerSpec],
    settled: watch::Receiver<Vec<Option<String>>>,
    started: Instant,
    lines: Lines,
    /// Which servers have spoken.
    shown: Vec<bool>,
}

impl<'a> Progress<'a> {
    /// Nothing has been said yet.
    pub(super) fn new(
        specs: &'a [ServerSpec],
        settled: watch::Receiver<Vec<Option<String>>>,
        to: Where,
    ) -> Self {
        let lines = Lines::start(specs, width(specs), to);
        Self {
            specs,
            settled,
            started: Instant::now(),
            lines,
            shown: vec![false; specs.len()],
        }
    }

    /// Shows what is said until all have spoken, or that takes too long.
    pub(super) async fn ready(&mut self) {
        let left = PATIENCE.saturating_sub(self.started.elapsed());
        let _ = tokio::time::timeout(left, self.all()).await;
    }

    /// Says that the mount can be used; what is said later is still shown by [`Self::all`].
    pub(super) fn say_ready(&self, mountpoint: &Path) {
        self.lines.say(&format!("ready: {}", mountpoint.display()));
    }

    /// Shows what is said until all have spoken.
    pub(super) async fn all(&mut self) {
        loop {
            self.look();
            if self.shown.iter().all(|s| *s) || self.settled.changed().await.is_err() {
                return;
            }
        }
    }

    fn look(&mut self) {
        let now = self.settled.borrow_and_update().clone();
        for (index, (spec, line)) in self.specs.iter().zip(&now).enumerate() {
            if let (Some(line), Some(shown @ false)) = (line, self.shown.get_mut(index)) {
                *shown = true;
                let seconds = self.started.elapsed().as_secs_f64();
                let (label, width) = (spec.label.as_str(), width(self.specs));
                let text = format!("{label:width$}  {line}, {seconds:.1} s");
                self.lines.done(index, line, &text);
            }
        }
    }
}

fn width(specs: &[ServerSpec]) -> usize {
    let widths = specs.iter().map(|s| s.label.as_str().len());
    widths.max().unwrap_or(0)
}

enum Lines {
    Plain,
    Errors,
    Spinners(MultiProgress, Vec<ProgressBar>),
}

impl Lines {
    fn start(specs: &[ServerSpec], width: usize, to: Where) -> Self {
        match to {
            Where::Stderr => return Self::Errors,
            Where::Lines => return Self::Plain,
            Where::Stdout if !io::stdout().is_terminal() => return Self::Plain,
            Where::Stdout => {}
        }
        let multi = MultiProgress::new();
        let style = ProgressStyle::with_template("{spinner} {msg}");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner());
        let bars = specs.iter().map(|spec| {
            let bar = multi.add(ProgressBar::new_spinner().with_style(style.clone()));
            bar.set_message(format!("{:width$}  connecting", spec.label.as_str()));
            bar.enable_steady_tick(TICK);
            bar
        });
        let bars = bars.collect();
        Self::Spinners(multi, bars)
    }

    /// A server has spoken.
    fn done(&self, index: usize, word: &str, line: &str) {
        match self {
            Self::Errors if !word.starts_with("down") && !word.starts_with("needs") => return,
            Self::Spinners(_, bars) => {
                if let Some(bar) = bars.get(index) {
                    bar.finish_and_clear();
                }
            }
            Self::Errors | Self::Plain => {}
        }
        self.say(line);
    }

    fn say(&self, line: &str) {
        // A reader that went away is no reason to stop serving.
        match self {
            Self::Plain => drop(writeln!(io::stdout(), "{line}")),
            Self::Errors => drop(writeln!(io::stderr(), "mount-skills: {line}")),
            Self::Spinners(multi, _) => multi.suspend(|| drop(writeln!(io::stdout(), "{line}"))),
        }
    }
}
