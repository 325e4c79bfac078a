//! What a shell may complete: commands, options, and the names of the skills that are mounted.
//!
//! A shell asks by setting `COMPLETE`, as clap_complete defines it. Names come from live mounts: the
//! one that the words name, else all. A daemon that does not answer at once offers none, and the shell
//! goes on.
//!
//! **Invariant:** bash is offered nothing that it would read otherwise than as text. It puts what it
//! completes into the line as it is, and servers choose names: `$(…)` in one would be run. zsh and fish
//! quote what they insert.

use super::{Ask, Dirs, Failure, Verb, say};
use crate::cli::{Cli, Shell};
use crate::control::{ControlError, Reply};
use crate::host::report::Status;
use clap::CommandFactory;
use clap_complete::engine::{self, ArgValueCandidates, CompletionCandidate};
use clap_complete::env::{CompleteEnv, EnvCompleter, Fish, Shells, Zsh};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// The program, as shells know it.
const NAME: &str = "mount-skills";
/// How long a shell waits for names.
const PATIENCE: Duration = Duration::from_millis(500);
/// The shells that can be told to ask.
const SHELLS: Shells<'static> = Shells(&[&Bash, &Fish, &Zsh]);
/// What bash runs to ask. It takes lines as they are: nothing is split or matched with file names.
const BASH: &str = r#"_mount_skills() {
    local words=("${COMP_WORDS[@]}")
    [[ "${words[COMP_CWORD]}" == "=" ]] || words[COMP_CWORD]="$2"
    compopt +o nospace 2>/dev/null
    mapfile -t COMPREPLY < <(
        _CLAP_COMPLETE_INDEX="$COMP_CWORD" COMPLETE=bash mount-skills -- "${words[@]}" 2>/dev/null
    )
    if [[ "${COMPREPLY-}" =~ [=/:]$ ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
complete -o nospace -o bashdefault -o nosort -F _mount_skills mount-skills
"#;

/// What an argument may be completed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// The labels of a mount.
    Labels,
    /// Labels, and the names of skills.
    Names,
    /// Labels of which something is kept.
    Kept,
}

/// The arguments of commands that name a label or a skill.
const NAMED: [(&str, &str, What); 16] = [
    ("list", "label", What::Labels),
    ("list", "live", What::Names),
    ("status", "what", What::Names),
    ("show", "skill", What::Names),
    ("diff", "skill", What::Names),
    ("approve", "skill", What::Names),
    ("revoke", "skill", What::Names),
    ("refresh", "target", What::Names),
    ("release", "target", What::Names),
    ("add", "label", What::Labels),
    ("gate", "path", What::Names),
    ("login", "label", What::Labels),
    ("logout", "label", What::Labels),
    ("forget", "label", What::Kept),
    ("logs", "label", What::Labels),
    ("audit", "what", What::Names),
];

/// What the words of an unfinished command line say of where names are to be found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Place {
    /// The mount that they name.
    mount: Option<PathBuf>,
    /// The labels of the servers that they name.
    labels: Vec<String>,
}

/// Answers a shell that asks for completions, and ends the program; returns if none does.
pub fn complete() {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let place = Place::of(&words);
    CompleteEnv::with_factory(move || command(&place))
        .shells(SHELLS)
        .complete();
}

/// Prints what a shell is to run once, so that it asks us from then on.
pub(super) fn registration(shell: Shell) -> Result<(), Failure> {
    let Some(completer) = SHELLS.completer(shell.as_str()) else {
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

/// bash, which quotes nothing.
struct Bash;

impl EnvCompleter for Bash {
    fn name(&self) -> &'static str {
        Shell::Bash.as_str()
    }

    fn is(&self, name: &str) -> bool {
        name == self.name()
    }

    fn write_registration(
        &self,
        _: &str,
        _: &str,
        _: &str,
        _: &str,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        out.write_all(BASH.as_bytes())
    }

    fn write_complete(
        &self,
        command: &mut clap::Command,
        words: Vec<OsString>,
        dir: Option<&Path>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let index = std::env::var("_CLAP_COMPLETE_INDEX").ok();
        let index = index.and_then(|n| n.parse().ok()).unwrap_or_default();
        let (words, index, option) = joined(words, index);
        let found = engine::complete(command, words, index, dir)?;
        let found = found.iter().filter_map(|c| c.get_value().to_str());
        let (plain, other): (Vec<&str>, Vec<&str>) = found.partition(|text| is_a_word(text));
        // Of files bash quotes what it finds itself, and it finds them all if nothing is offered.
        if other.iter().any(|path| Path::new(path).exists()) {
            return Ok(());
        }
        let values = plain
            .iter()
            .map(|text| text.strip_prefix(&option).unwrap_or(text));
        out.write_all(values.collect::<Vec<_>>().join("\n").as_bytes())
    }
}

/// The words that are meant where bash takes `--option=value` for three, which of them is asked about,
/// and what of it stands before the value.
fn joined(words: Vec<OsString>, asked: usize) -> (Vec<OsString>, usize, String) {
    let mut index = asked;
    let mut out: Vec<OsString> = Vec::new();
    let (mut open, mut option) = (false, String::new());
    for (n, word) in words.into_iter().enumerate() {
        let is_option = |word: &OsString| word.to_str().is_some_and(|w| w.starts_with("--"));
        let equals = word == "=" && out.last().is_some_and(is_option);
        match out.last_mut() {
            Some(last) if equals || open => {
                last.push(&word);
                index -= usize::from(n <= asked);
                if equals {
                    option = last.to_string_lossy().into_owned();
                }
            }
            _ => out.push(word),
        }
        open = equals;
    }
    if !out
        .get(index)
        .is_some_and(|w| w.to_string_lossy().starts_with(&option))
    {
        option.clear();
    }
    (out, index, option)
}

/// Whether bash reads this as the text it is, wherever it stands in a command.
fn is_a_word(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._/@%+=:-".contains(&b);
    text.bytes().all(plain)
}

fn command(place: &Place) -> clap::Command {
    let candidates = |what: What| {
        let place = place.clone();
        ArgValueCandidates::new(move || place.candidates(what))
    };
    let cli = NAMED.iter().fold(Cli::command(), |cli, (name, arg, what)| {
        let complete = |a: clap::Arg| match a.get_id() == *arg {
            true => a.add(candidates(*what)),
            false => a,
        };
        cli.mut_subcommand(name, |sub| sub.mut_args(complete))
    });
    let dynamic = |a: clap::Arg| match a.get_id() == "allow_dynamic" {
        true => a.add(candidates(What::Labels)),
        false => a,
    };
    let cli = cli.mut_args(dynamic);
    let cli = ["run", "doctor"].iter().fold(cli, |cli, name| {
        cli.mut_subcommand(name, |sub| sub.mut_args(dynamic))
    });
    cli.mut_subcommand("config", |config| {
        config.mut_subcommand("show", |show| show.mut_args(dynamic))
    })
}

impl Place {
    /// Words are as they were typed.
    fn of(words: &[OsString]) -> Self {
        let words: Vec<&str> = words.iter().filter_map(|w| OsStr::to_str(w)).collect();
        let values = |options: &[&str]| -> Vec<String> {
            let value = |(n, word): (usize, &&str)| match word.split_once('=') {
                Some((option, value)) if options.contains(&option) => Some(value.to_owned()),
                _ if options.contains(word) => {
                    // bash takes the sign for a word of its own.
                    let mut rest = words.iter().skip(n + 1).skip_while(|w| **w == "=");
                    rest.next().map(|w| (*w).to_owned())
                }
                _ => None,
            };
            words.iter().enumerate().filter_map(value).collect()
        };
        let servers = values(&["--server", "-s"]);
        let labels = servers.iter().filter_map(|s| s.split('=').next());
        Self {
            mount: values(&["--mount"]).last().map(|path| expanded(path)),
            labels: labels.map(str::to_owned).collect(),
        }
    }

    fn candidates(&self, what: What) -> Vec<CompletionCandidate> {
        let names = match what {
            What::Kept => kept(),
            What::Labels | What::Names => self.names(what),
        };
        names.into_iter().map(CompletionCandidate::new).collect()
    }

    fn names(&self, what: What) -> BTreeSet<String> {
        let mut names: BTreeSet<String> = match what {
            What::Labels => self.labels.iter().cloned().collect(),
            What::Names | What::Kept => BTreeSet::new(),
        };
        for server in self.mounts().into_iter().flat_map(|status| status.servers) {
            names.insert(server.label);
            if what == What::Names {
                names.extend(server.skills.into_iter().map(|skill| skill.path));
            }
        }
        names
    }

    /// The mounts that names are taken from.
    fn mounts(&self) -> Vec<Status> {
        let (answer, mounts) = mpsc::channel();
        let mount = self.mount.clone();
        std::thread::spawn(move || {
            let status = |mountpoint: Option<PathBuf>| {
                Ask { mountpoint }.send(&Verb::Status { label: None })
            };
            let of_reply = |reply| match reply {
                Ok(Reply::Status(status)) => Some(*status),
                _ => None,
            };
            let all = match status(mount) {
                Err(ControlError::Several(mounts)) => mounts
                    .into_iter()
                    .filter_map(|mount| of_reply(status(Some(mount.into()))))
                    .collect(),
                one => of_reply(one).into_iter().collect(),
            };
            let _ = answer.send(all);
        });
        mounts.recv_timeout(PATIENCE).unwrap_or_default()
    }
}

/// A word as its shell would give it to us, as far as that is clear without one.
fn expanded(word: &str) -> PathBuf {
    let plain = shlex::split(word).unwrap_or_default();
    let plain = plain.first().map_or(word, |w| w);
    match (plain.strip_prefix("~/"), std::env::var_os("HOME")) {
        (Some(rest), Some(home)) => PathBuf::from(home).join(rest),
        _ => plain.into(),
    }
}

/// The labels of which a state is kept.
fn kept() -> BTreeSet<String> {
    let state = Dirs::find().state.map(|dir| dir.join("mount-skills/v1"));
    let found = state.and_then(|dir| std::fs::read_dir(dir).ok());
    let names = found.into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    // What follows a label is the identity of its server, which has no hyphen.
    let labels = names.filter_map(|name| Some(name.rsplit_once('-')?.0.to_owned()));
    labels.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_argument_that_is_completed_is_there() {
        let command = command(&Place::default());
        command.clone().debug_assert();
        for (name, arg, _) in NAMED {
            let sub = command.find_subcommand(name).unwrap();
            let arg = sub.get_arguments().find(|a| a.get_id() == arg).unwrap();
            assert!(arg.get::<ArgValueCandidates>().is_some(), "{name}");
        }
    }

    #[test]
    fn the_words_say_which_mount_and_which_servers() {
        let of = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            Place::of(&words)
        };
        let place = of(&["--", "mount-skills", "show", "--mount", "'/m t'", ""]);
        assert_eq!(place.mount, Some("/m t".into()));
        assert_eq!(of(&["--mount=/m", "show"]).mount, Some("/m".into()));
        assert_eq!(of(&["--mount", "=", "/m"]).mount, Some("/m".into()));
        let place = of(&[
            "-s",
            "a=x",
            "--server",
            "b=y",
            "--server=c=z",
            "--allow-dynamic",
            "",
        ]);
        assert_eq!(
            (place.labels, place.mount),
            (vec!["a".into(), "b".into(), "c".into()], None)
        );
    }

    #[test]
    fn bash_takes_an_option_and_its_value_for_three_words() {
        let of = |words: &[&str], index| {
            let words = words.iter().map(OsString::from).collect();
            let (words, index, option) = joined(words, index);
            (words[index].to_string_lossy().into_owned(), option)
        };
        let words = ["mount-skills", "list", "--format", "=", "h", "x"];
        assert_eq!(of(&words, 4), ("--format=h".into(), "--format=".into()));
        assert_eq!(of(&words, 3), ("--format=h".into(), "--format=".into()));
        assert_eq!(of(&words, 5), ("x".into(), "".into()));
        assert_eq!(of(&words, 1), ("list".into(), "".into()));
        let words = ["mount-skills", "--format", "="];
        assert_eq!(of(&words, 2), ("--format=".into(), "--format=".into()));
        assert_eq!(of(&["x", "a", "=", "b"], 3), ("b".into(), "".into()));
    }

    #[test]
    fn bash_is_offered_what_it_reads_as_it_is() {
        for text in ["lab/a-b_c.d/e", "--mount=", "github:/o/r@1", ""] {
            assert!(is_a_word(text), "{text}");
        }
        for c in " \t\n$`\\'\"(){}[]<>|&;*?!~#,^\u{e9}\u{202e}".chars() {
            assert!(!is_a_word(&format!("lab/a{c}b")), "{c:?}");
        }
    }
}
