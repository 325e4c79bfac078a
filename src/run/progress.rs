//! What is shown while the servers connect: a line for each as it comes, then `ready`.

use crate::config::ServerSpec;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How long `ready` waits for the servers' first word, so that a slow one does not hold it up.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where the lines go.
#[derive(Clone, Copy)]
pub(super) enum Where<'a> {
    /// To stdout, every line, and `ready` with the mount point.
    Stdout(&'a Path),
    /// To stderr, only what went wrong: stdout belongs to a command, which waits for this to
    /// end.
    Stderr,
}

/// Shows the servers' first words. Ends when all have spoken; towards stderr also when that takes
/// too long.
pub(super) async fn show(
    specs: &[ServerSpec],
    mut settled: watch::Receiver<Vec<Option<String>>>,
    to: Where<'_>,
) {
    let started = Instant::now();
    let width = specs
        .iter()
        .map(|s| s.label.as_str().len())
        .max()
        .unwrap_or(0);
    let lines = Lines::start(specs, width, to);
    let mut shown = vec![false; specs.len()];
    let mut ready = false;
    loop {
        let now = settled.borrow_and_update().clone();
        for (index, (spec, line)) in specs.iter().zip(&now).enumerate() {
            if let (Some(line), Some(shown @ false)) = (line, shown.get_mut(index)) {
                *shown = true;
                let seconds = started.elapsed().as_secs_f64();
                let text = format!("{:width$}  {line}, {seconds:.1} s", spec.label.as_str());
                lines.done(index, line, &text);
            }
        }
        let all = shown.iter().all(|s| *s);
        if !ready && (all || started.elapsed() >= PATIENCE) {
            ready = true;
            match to {
                Where::Stdout(path) => lines.say(&format!("ready: {}", path.display())),
                Where::Stderr => return,
            }
        }
        if all {
            return;
        }
        let left = PATIENCE.saturating_sub(started.elapsed());
        let wait = if ready { Duration::MAX } else { left };
        if let Ok(Err(_)) = tokio::time::timeout(wait, settled.changed()).await {
            return;
        }
    }
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
            Where::Stdout(_) if !io::stdout().is_terminal() => return Self::Plain,
            Where::Stdout(_) => {}
        }
        let multi = MultiProgress::new();
        let style = ProgressStyle::with_template("{spinner} {msg}");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner());
        let bars = specs.iter().map(|spec| {
            let bar = multi.add(ProgressBar::new_spinner().with_style(style.clone()));
            bar.set_message(format!("{:width$}  connecting", spec.label.as_str()));
            bar.enable_steady_tick(Duration::from_millis(100));
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
