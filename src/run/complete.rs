//! What a shell may complete: commands, options, and the names of the skills that are mounted.
//!
//! A shell asks by setting `COMPLETE`, as clap_complete defines it. Names come from the live
//! mount, so a daemon that does not answer at once offers none, and the shell goes on.

use super::{Ask, Failure, Verb, say};
use crate::cli::{Cli, Shell};
use crate::control::Reply;
use clap::CommandFactory;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use clap_complete::env::{CompleteEnv, Shells};
use std::sync::mpsc;
use std::time::Duration;

/// The program, as shells know it.
const NAME: &str = "mount-skills";
/// How long a shell waits for names.
const PATIENCE: Duration = Duration::from_millis(500);
/// The arguments that name a label or a skill.
const NAMED: [(&str, &str); 14] = [
    ("list", "label"),
    ("status", "what"),
    ("show", "skill"),
    ("diff", "skill"),
    ("approve", "skill"),
    ("revoke", "skill"),
    ("refresh", "target"),
    ("release", "target"),
    ("add", "label"),
    ("gate", "path"),
    ("login", "label"),
    ("logout", "label"),
    ("logs", "label"),
    ("audit", "what"),
];

/// Answers a shell that asks for completions, and ends the program; returns if none does.
pub fn complete() {
    CompleteEnv::with_factory(command).complete();
}

/// Prints what a shell is to run once, so that it asks us from then on.
pub(super) fn registration(shell: Shell) -> Result<(), Failure> {
    let shells = Shells::builtins();
    let Some(completer) = shells.completer(shell.as_str()) else {
        return Err(Failure::Failed(format!("{} is not known", shell.as_str())));
    };
    let mut text = Vec::new();
    completer.write_registration("COMPLETE", NAME, NAME, NAME, &mut text)?;
    let mut text = String::from_utf8_lossy(&text).into_owned();
    if shell == Shell::Zsh {
        // zsh runs a file of its search path when it completes a command for the first time, and
        // takes it for the function that does so.
        let function = format!("_clap_dynamic_completer_{}", NAME.replace('-', "_"));
        text.push_str(&format!(
            "if [ \"${{funcstack[1]}}\" = _{NAME} ]; then {function} \"$@\"; fi\n"
        ));
    }
    say(text)
}

fn command() -> clap::Command {
    NAMED.iter().fold(Cli::command(), |cli, (name, arg)| {
        let labels_only = *arg == "label";
        let complete = |a: clap::Arg| match a.get_id() == *arg {
            true => a.add(ArgValueCandidates::new(move || names(labels_only))),
            false => a,
        };
        cli.mut_subcommand(name, |sub| sub.mut_args(complete))
    })
}

/// The labels of the mount, and the names of its skills unless only labels are asked for.
fn names(labels_only: bool) -> Vec<CompletionCandidate> {
    let (answer, status) = mpsc::channel();
    std::thread::spawn(move || {
        let ask = Ask { mountpoint: None };
        let _ = answer.send(ask.send(&Verb::Status { label: None }));
    });
    let Ok(Ok(Reply::Status(status))) = status.recv_timeout(PATIENCE) else {
        return Vec::new();
    };
    let of_server = |server: crate::host::report::ServerStatus| {
        let skills = server.skills.into_iter().filter(|_| !labels_only);
        std::iter::once(server.label).chain(skills.map(|s| s.path).collect::<Vec<_>>())
    };
    let names = status.servers.into_iter().flat_map(of_server);
    names.map(CompletionCandidate::new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_argument_that_is_completed_is_there() {
        let command = command();
        command.clone().debug_assert();
        for (name, arg) in NAMED {
            let sub = command.find_subcommand(name).unwrap();
            let arg = sub.get_arguments().find(|a| a.get_id() == arg).unwrap();
            assert!(arg.get::<ArgValueCandidates>().is_some(), "{name}");
        }
    }
}
