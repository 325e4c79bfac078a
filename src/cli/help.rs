//! What the definition of the command line does not say by itself: commands in groups, an example
//! or two for each, and what was meant by a word that is none.
//!
//! **Invariants:** every command that is shown is in exactly one group and has examples, and every
//! example can be parsed.
//!
//! clap knows groups of options and none of commands. So the groups are written as text, and the
//! commands are hidden from the list that clap would make; completion and the manual have them all.

use super::Cli;
use crate::domain::text::nearest;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches};
use std::ffi::OsString;

/// The commands by what they are for.
const GROUPS: [(&str, &[&str]); 8] = [
    ("Mounting", &["run", "reload", "unmount"]),
    (
        "Looking",
        &["list", "status", "show", "diff", "doctor", "config"],
    ),
    ("Watching", &["top", "logs", "audit", "log-level"]),
    ("Approving", &["approve", "revoke", "gate", "lock"]),
    ("Changing", &["refresh", "release", "add"]),
    ("Keeping", &["login", "logout", "forget", "cache"]),
    ("Serving", &["serve"]),
    ("Setting up", &["completions", "man"]),
];

/// Commands that give no answer, so that their help has no `--json`: it is refused.
const ANSWERLESS: [&str; 5] = ["run", "top", "serve", "completions", "man"];

/// Examples of mounting.
const MOUNTING: [&str; 4] = [
    "mount-skills --server docs='npx -y some-skills-server' ~/skills",
    "mount-skills --server team=https://skills.example.org/mcp --server mine=./my-skills ~/skills",
    "mount-skills --config .mcp.json --approval each ~/skills",
    "mount-skills --daemon ~/skills",
];

/// Examples of each command.
const EXAMPLES: [(&str, &[&str]); 27] = [
    (
        "run",
        &["mount-skills run --server mine=./my-skills -- my-agent --skills-from-env"],
    ),
    ("reload", &["mount-skills reload"]),
    (
        "unmount",
        &[
            "mount-skills unmount",
            "mount-skills unmount --keep-windows ~/skills",
        ],
    ),
    (
        "list",
        &[
            "mount-skills list docs",
            "mount-skills list --format markdown --max-chars 4000",
            "mount-skills list --live docs/tools",
        ],
    ),
    (
        "status",
        &[
            "mount-skills status",
            "mount-skills status ~/skills/docs/pdf/SKILL.md",
            "mount-skills status --prometheus",
        ],
    ),
    (
        "show",
        &[
            "mount-skills show docs/pdf",
            "mount-skills show docs/pdf scripts/fill.py",
        ],
    ),
    (
        "diff",
        &[
            "mount-skills diff docs/pdf",
            "mount-skills diff --json docs/pdf",
        ],
    ),
    (
        "doctor",
        &["mount-skills doctor --config .mcp.json ~/skills"],
    ),
    (
        "config",
        &[
            "mount-skills config show --config .mcp.json",
            "mount-skills config import --write",
        ],
    ),
    ("top", &["mount-skills top"]),
    (
        "logs",
        &["mount-skills logs docs", "mount-skills logs -f docs"],
    ),
    (
        "audit",
        &[
            "mount-skills audit docs/pdf",
            "mount-skills audit -f --file ~/skills-audit.jsonl",
        ],
    ),
    (
        "log-level",
        &["mount-skills log-level debug", "mount-skills log-level"],
    ),
    (
        "approve",
        &[
            "mount-skills approve docs/pdf",
            "mount-skills approve --exec docs/pdf",
        ],
    ),
    ("revoke", &["mount-skills revoke docs/pdf"]),
    (
        "gate",
        &["mount-skills gate ~/skills/docs/pdf/scripts/fill.py"],
    ),
    (
        "lock",
        &["mount-skills lock", "mount-skills lock --check skills.lock"],
    ),
    (
        "refresh",
        &["mount-skills refresh docs/pdf", "mount-skills refresh docs"],
    ),
    ("release", &["mount-skills release docs/pdf"]),
    ("add", &["mount-skills add docs skill://hidden/SKILL.md"]),
    (
        "login",
        &[
            "mount-skills login team",
            "mount-skills login --url https://skills.example.org/mcp --no-browser team",
        ],
    ),
    ("logout", &["mount-skills logout team"]),
    ("forget", &["mount-skills forget docs"]),
    (
        "cache",
        &[
            "mount-skills cache list",
            "mount-skills cache verify",
            "mount-skills cache prune --to 100",
        ],
    ),
    (
        "serve",
        &[
            "mount-skills serve --watch ./my-skills",
            "mount-skills serve --http 127.0.0.1:8080 ./my-skills",
        ],
    ),
    (
        "completions",
        &[
            "mount-skills completions bash > ~/.local/share/bash-completion/completions/mount-skills",
            "mount-skills completions zsh > ~/.zfunc/_mount-skills",
            "mount-skills completions fish > ~/.config/fish/completions/mount-skills.fish",
        ],
    ),
    (
        "man",
        &[
            "mount-skills man | man -l -",
            "mount-skills man --dir ./man",
        ],
    ),
];

/// What goes for all commands.
const NOTES: &str = "\
Skills are named LABEL/SKILL-PATH, as in the mount; a path below the mount works too.
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the skill moved meanwhile or the lock does not fit, \
4 the doctor warns; `run` ends with its command's own code.
MOUNT_SKILLS_LOG sets the log level of stderr: error, warn (default), info, debug.
NO_COLOR, if it is set, does what --color never does.
If something does not work: mount-skills doctor";

/// The examples of a command, or of mounting.
pub fn examples(command: Option<&str>) -> &'static [&'static str] {
    let Some(command) = command else {
        return &MOUNTING;
    };
    let found = EXAMPLES.iter().find(|(name, _)| *name == command);
    found.map_or(&[], |(_, examples)| examples)
}

/// What goes for all commands, for the manual.
pub fn notes() -> &'static str {
    NOTES
}

/// The command line with all that its help shows.
pub fn command() -> clap::Command {
    let styles = Cli::command().get_styles().clone();
    let heading = |text: &str| {
        let header = styles.get_header();
        format!("{header}{text}:{header:#}")
    };
    let listed = |examples: &[&str]| {
        let lines = examples.iter().map(|e| format!("\n  {e}"));
        format!("{}{}", heading("Examples"), lines.collect::<String>())
    };
    let cli = Cli::command()
        .override_usage("mount-skills [OPTIONS] [MOUNTPOINT]\n       mount-skills [OPTIONS] COMMAND")
        .help_template(
            "{about-with-newline}\n{usage-heading} {usage}\n\n{before-help}{all-args}{after-help}",
        )
        .before_help(format!("{}\n{}", heading("Commands"), short_groups()))
        .before_long_help(long_groups(&Cli::command(), heading))
        .after_help("All options, with examples: mount-skills --help\nOf a command: mount-skills COMMAND --help")
        .after_long_help(format!("{}\n\n{NOTES}", listed(&MOUNTING)));
    EXAMPLES.iter().fold(cli, |cli, (name, examples)| {
        cli.mut_subcommand(name, |sub| {
            let sub = match ANSWERLESS.contains(name) {
                true => sub.arg(
                    clap::Arg::new("json")
                        .long("json")
                        .action(clap::ArgAction::SetTrue)
                        .hide(true),
                ),
                false => sub,
            };
            sub.hide(true)
                .after_help(format!("Examples and more: mount-skills {name} --help"))
                .after_long_help(listed(examples))
        })
    })
}

/// A line for each group.
fn short_groups() -> String {
    let lines = GROUPS.map(|(group, names)| format!("  {group:10}  {}", names.join(", ")));
    lines.join("\n")
}

/// A line for each command.
fn long_groups(cli: &clap::Command, heading: impl Fn(&str) -> String) -> String {
    let line = |name: &&str| {
        let about = cli.find_subcommand(name).and_then(clap::Command::get_about);
        format!("\n  {name:11}  {}", about.cloned().unwrap_or_default())
    };
    let group = |(group, names): (&str, &[&str])| {
        let lines: String = names.iter().map(line).collect();
        format!("{}{lines}", heading(group))
    };
    GROUPS.map(group).join("\n\n")
}

/// The command that a word was probably meant to be, if it is none.
pub fn meant(word: &str) -> Option<&'static str> {
    let like = nearest(word, EXAMPLES.iter().map(|(name, _)| *name));
    like.filter(|like| !word.contains('/') && *like != word)
}

/// The word of a command line that stands where a command does: the first that is no option and no
/// value of one, or, after `help`, the next. None behind an option that is not known.
fn command_word<'a>(command: &clap::Command, words: &'a [OsString]) -> Option<&'a str> {
    let known = |option: &str| {
        command.get_arguments().find(|arg| {
            let short = option.strip_prefix('-').and_then(|o| o.chars().next());
            match option.strip_prefix("--") {
                Some(long) => arg.get_long() == Some(long),
                None => short.is_some() && arg.get_short() == short,
            }
        })
    };
    let mut words = words.iter().skip(1).map(|word| word.to_str());
    loop {
        let word = words.next()??;
        let (option, value) = match word.split_once('=') {
            Some((option, _)) => (option, true),
            // The value of a short option may stand right behind it.
            None => (word, !word.starts_with("--") && word.chars().count() > 2),
        };
        match word.strip_prefix('-') {
            None if word == "help" => return words.next()?,
            None => return Some(word),
            Some("" | "-") => return None,
            Some(_) if known(option)?.get_action().takes_values() && !value => {
                words.next()?;
            }
            Some(_) => {}
        }
    }
}

/// Parses a whole command line; on an error, or when help is asked for, prints and ends the program.
pub fn parse(words: &[OsString]) -> Cli {
    let mut command = command();
    let parsed = command.try_get_matches_from_mut(words);
    let parsed = parsed.and_then(|matches| Cli::from_arg_matches(&matches));
    parsed.unwrap_or_else(|e| {
        // A misspelt command is taken for a mount point, and then what follows it is too much.
        let kinds = [ErrorKind::UnknownArgument, ErrorKind::InvalidSubcommand];
        match command_word(&command, words).and_then(|first| Some((first, meant(first)?))) {
            Some((first, like)) if kinds.contains(&e.kind()) => {
                let mut e = clap::Error::new(ErrorKind::InvalidSubcommand).with_cmd(&command);
                let [first, like] = [first, like].map(str::to_owned);
                e.insert(ContextKind::InvalidSubcommand, ContextValue::String(first));
                let like = ContextValue::Strings(vec![like]);
                e.insert(ContextKind::SuggestedSubcommand, like);
                e.exit()
            }
            _ => e.exit(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn every_command_has_a_group_and_examples_that_parse() {
        let cli = Cli::command();
        let shown = cli.get_subcommands().filter(|c| !c.is_hide_set());
        let mut shown: Vec<&str> = shown.map(clap::Command::get_name).collect();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, g)| g.iter().copied()).collect();
        let mut explained: Vec<&str> = EXAMPLES.iter().map(|(name, _)| *name).collect();
        for names in [&mut shown, &mut grouped, &mut explained] {
            names.sort_unstable();
        }
        assert_eq!(shown, grouped);
        assert_eq!(shown, explained);
        let all = EXAMPLES.iter().flat_map(|(name, examples)| {
            assert!(!examples.is_empty());
            examples.iter().map(move |e| (Some(*name), *e))
        });
        for (name, example) in all.chain(MOUNTING.map(|e| (None, e))) {
            let words = shlex::split(example).unwrap();
            let words = words.into_iter().take_while(|w| w != ">" && w != "|");
            let words: Vec<String> = words.collect();
            assert_eq!(
                name.is_some(),
                words.get(1) == name.map(str::to_owned).as_ref()
            );
            if let Err(e) = Cli::try_parse_from(&words) {
                panic!("{example}: {e}");
            }
        }
    }

    #[test]
    fn short_help_fits_a_screen() {
        let help = command().render_help().to_string();
        assert!((24..=40).contains(&help.lines().count()), "{help}");
        assert!(help.lines().all(|l| l.chars().count() <= 100), "{help}");
        command().debug_assert();
    }

    #[test]
    fn the_word_that_stands_for_a_command_is_no_option_and_no_value_of_one() {
        let of = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            command_word(&command(), &words).map(str::to_owned)
        };
        for line in [
            "m stauts lab",
            "m --mount /m stauts lab",
            "m --mount=/m --json stauts lab",
            "m -s a=x -sb=y --color never stauts",
            "m help stauts",
        ] {
            assert_eq!(of(line).as_deref(), Some("stauts"), "{line}");
        }
        for line in ["m", "m --mount", "m --jsn stauts", "m -- stauts", "m help"] {
            assert_eq!(of(line), None, "{line}");
        }
    }

    #[test]
    fn a_misspelt_command_is_known() {
        assert_eq!(meant("stauts"), Some("status"));
        assert_eq!(meant("umount"), Some("unmount"));
        assert_eq!(meant("skills"), None);
    }
}
