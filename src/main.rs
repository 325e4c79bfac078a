//! The program: parse, run, turn an error into an exit code.

use mount_skills::cli::helper::{self, Line};
use mount_skills::cli::{help, print};
use mount_skills::domain::text::printable;
use mount_skills::{run, run::Failure};
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    run::complete();
    run::start_log();
    let mut words = std::env::args_os();
    let name = words.next().unwrap_or_default();
    let called = helper::is_called(&name);
    let arguments: Vec<OsString> = match called {
        false => words.collect(),
        true => match helper::translate(words) {
            Ok(Line::Do(arguments)) => arguments,
            Ok(Line::Fake) => return ExitCode::SUCCESS,
            Err(e) => return fail(&Failure::Usage(e.to_string()), called),
        },
    };
    print::choose_colors(&arguments);
    let words: Vec<OsString> = std::iter::once(&name).chain(&arguments).cloned().collect();
    let cli = help::parse(&words);
    match run::run(cli, &arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => fail(&failure, called),
    }
}

/// Says why, unless that was said, and ends as whoever called expects it.
fn fail(failure: &Failure, by_mount: bool) -> ExitCode {
    if !failure.is_silent() {
        // Whatever is in it, it is for a terminal.
        let text = failure.to_string();
        let lines: Vec<String> = text.lines().map(|l| printable(l, usize::MAX)).collect();
        let _ = writeln!(
            anstream::stderr(),
            "{} {}",
            print::trouble("mount-skills:"),
            lines.join("\n")
        );
    }
    ExitCode::from(match by_mount {
        true => failure.mount_code(),
        false => failure.code(),
    })
}
