//! The command line of mount(8): `mount -t mount-skills`, and lines of /etc/fstab.
//!
//! mount(8) calls `/sbin/mount.TYPE SOURCE DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`. A
//! link of that name to this program translates that to what a user would have typed. A pure
//! function: what comes of it is parsed like any other command line.
//!
//! *Absent:* changing a mount (`remount`), which `mount-skills reload` does.

use super::Cli;
use clap::{ArgAction, CommandFactory};
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// What mount(8) puts before the type of a file system in the name of its helper.
const PREFIX: &str = "mount.";
/// Options that are about the mount's being made, or that it has in any case.
const SILENT: [&str; 28] = [
    "_netdev",
    "diratime",
    "lazytime",
    "norelatime",
    "nosymfollow",
    "async",
    "auto",
    "atime",
    "defaults",
    "group",
    "loud",
    "noatime",
    "noauto",
    "nodev",
    "nodiratime",
    "noexec",
    "nofail",
    "nosuid",
    "nouser",
    "owner",
    "relatime",
    "ro",
    "rw",
    "silent",
    "strictatime",
    "sync",
    "user",
    "users",
];
/// Options that would give up what a mount promises.
const REFUSED: [&str; 3] = ["dev", "exec", "suid"];

/// Why a line of mount(8) cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadLine {
    /// Source or mount point is missing.
    #[error("mount(8) gives a source and a mount point; see \"From mount(8)\" in docs/CLI.md")]
    Short,
    /// The source is none.
    #[error("source {0:?}: give LABEL=TARGET, the path of a configuration file, or none")]
    Source(String),
    /// An option that cannot be followed.
    #[error("option {name:?}: {why}")]
    Option {
        /// The option, without its value.
        name: String,
        /// Why.
        why: &'static str,
    },
    /// An option that is none of ours.
    #[error("option {0:?}: not known; an option of mount-skills is written with _ for -")]
    Unknown(String),
    /// A word that mount(8) does not give.
    #[error("argument {0:?} is not known; mount(8) gives SOURCE DIR -o OPTIONS")]
    Argument(String),
    /// A text that is no UTF-8 where one is needed.
    #[error("the options are no UTF-8")]
    Text,
}

/// What a line of mount(8) comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// These arguments.
    Do(Vec<OsString>),
    /// Nothing is to be done: `mount --fake`.
    Fake,
}

/// Whether a program of this name was called by mount(8).
pub fn is_called(name: &OsStr) -> bool {
    let name = Path::new(name).file_name().and_then(OsStr::to_str);
    name.is_some_and(|name| name.starts_with(PREFIX))
}

/// Translates the words after the program's name.
pub fn translate(words: impl IntoIterator<Item = OsString>) -> Result<Line, BadLine> {
    let mut words = words.into_iter();
    let (mut places, mut options) = (Vec::new(), Vec::new());
    let (mut fake, mut sloppy) = (false, false);
    while let Some(word) = words.next() {
        let flags = word.to_str().and_then(|w| w.strip_prefix('-'));
        let Some(flags) = flags.filter(|f| !f.is_empty()) else {
            places.push(word);
            continue;
        };
        for flag in flags.chars() {
            match flag {
                'f' => fake = true,
                's' => sloppy = true,
                'n' | 'v' => {}
                'o' => {
                    let text = words.next().unwrap_or_default();
                    let text = text.into_string().map_err(|_| BadLine::Text)?;
                    options.extend(split(&text));
                }
                // mount(8) has entered the namespace, and the type is in our name.
                'N' | 't' => drop(words.next()),
                _ => return Err(BadLine::Argument(format!("-{flags}"))),
            }
        }
    }
    let Ok([source, dir]) = <[OsString; 2]>::try_from(places) else {
        return Err(BadLine::Short);
    };
    let mut out = vec!["--daemon".into()];
    out.extend(of_source(&source)?);
    for option in options {
        match of_option(&option) {
            Err(BadLine::Unknown(_)) if sloppy => {}
            words => out.extend(words?),
        }
    }
    out.extend(["--".into(), dir]);
    Ok(match fake {
        true => Line::Fake,
        false => Line::Do(out),
    })
}

/// The options between commas; a value in double quotes may hold commas.
fn split(text: &str) -> Vec<String> {
    let mut quoted = false;
    let options = text.split(|c| {
        quoted ^= c == '"';
        c == ',' && !quoted
    });
    let bare = |option: &str| match option.split_once('=') {
        Some((name, value)) => {
            let inner = value.strip_prefix('"').and_then(|v| v.strip_suffix('"'));
            format!("{name}={}", inner.unwrap_or(value))
        }
        None => option.to_owned(),
    };
    options.filter(|o| !o.is_empty()).map(bare).collect()
}

fn of_source(source: &OsStr) -> Result<Vec<OsString>, BadLine> {
    let text = source.to_string_lossy();
    match (text.split_once('='), text.contains('/')) {
        (Some((label, _)), _) if !label.contains('/') => Ok(vec!["--server".into(), source.into()]),
        (_, true) if !text.contains("://") => Ok(vec!["--config".into(), source.into()]),
        (None, false) if matches!(&*text, "none" | "mount-skills") => Ok(Vec::new()),
        _ => Err(BadLine::Source(text.into_owned())),
    }
}

/// An option as the words of a command line.
fn of_option(option: &str) -> Result<Vec<OsString>, BadLine> {
    let (name, value) = match option.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (option, None),
    };
    let bad = |why| {
        let name = name.to_owned();
        Err(BadLine::Option { name, why })
    };
    if SILENT.contains(&name) || name.starts_with("x-") || name == "comment" {
        return Ok(Vec::new());
    }
    if REFUSED.contains(&name) {
        return bad("a mount of skills never has it; leave it out");
    }
    if name == "remount" {
        return bad("run: mount-skills reload");
    }
    for (prefix, flag) in [("server.", "--server"), ("skill.", "--skill")] {
        match (name.strip_prefix(prefix), value) {
            (Some(label), Some(value)) => {
                return Ok(vec![flag.into(), format!("{label}={value}").into()]);
            }
            (Some(_), None) => return bad("it needs a value: NAME=VALUE"),
            (None, _) => {}
        }
    }
    let long = name.replace('_', "-");
    let command = Cli::command();
    let mut known = command.get_arguments();
    let known = known.find(|a| a.get_long() == Some(&long) && !a.is_hide_set());
    let known = known.filter(|_| !["daemon", "mount", "json", "color"].contains(&&*long));
    let flag = OsString::from(format!("--{long}"));
    match (known.map(clap::Arg::get_action), value) {
        (Some(ArgAction::Set | ArgAction::Append), Some(value)) => Ok(vec![flag, value.into()]),
        (Some(ArgAction::SetTrue), None) => Ok(vec![flag]),
        (Some(ArgAction::Set | ArgAction::Append), None) => bad("it needs a value: NAME=VALUE"),
        (Some(_), _) => bad("it has no value"),
        (None, _) => Err(BadLine::Unknown(name.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(words: &[&str]) -> Result<Vec<String>, String> {
        match translate(words.iter().map(OsString::from)) {
            Ok(Line::Do(words)) => Ok(words
                .into_iter()
                .map(|w| w.into_string().unwrap())
                .collect()),
            Ok(Line::Fake) => Ok(vec!["fake".into()]),
            Err(e) => Err(e.to_string()),
        }
    }

    #[test]
    fn a_line_of_mount_becomes_a_command_line_that_parses() {
        use clap::Parser;
        let options = "rw,noauto,user,_netdev,x-systemd.automount,server.docs=\"npx -y a,b\",\
                       server.team=https://h/mcp,skill.docs=skill://x/SKILL.md,approval=each,\
                       allow_dynamic=docs,new_session,allow_other,start_timeout=5,config=/etc/c.toml";
        let words = line(&["none", "/mnt/skills", "-n", "-o", options]).unwrap();
        let expected = [
            "--daemon --server",
            "docs=npx -y a,b",
            "--server team=https://h/mcp --skill docs=skill://x/SKILL.md --approval each",
            "--allow-dynamic docs --new-session --allow-other --start-timeout 5 --config /etc/c.toml",
            "-- /mnt/skills",
        ];
        assert_eq!(words.join(" "), expected.join(" "));
        let cli = Cli::try_parse_from(std::iter::once("m".to_owned()).chain(words)).unwrap();
        assert!(cli.mount.daemon && cli.command.is_none());
        assert_eq!(cli.mount.servers.servers.len(), 2);
    }

    #[test]
    fn the_source_is_a_server_a_file_or_nothing() {
        let source = |source| line(&[source, "/m", "-o", "ro"]).map(|words| words[1..].join(" "));
        assert_eq!(source("none").unwrap(), "-- /m");
        assert_eq!(source("docs=a b").unwrap(), "--server docs=a b -- /m");
        assert_eq!(
            source("t=https://h/m").unwrap(),
            "--server t=https://h/m -- /m"
        );
        assert_eq!(source("/etc/s.toml").unwrap(), "--config /etc/s.toml -- /m");
        assert_eq!(source("/etc/a=b").unwrap(), "--config /etc/a=b -- /m");
        assert!(
            source("https://h/mcp")
                .unwrap_err()
                .contains("LABEL=TARGET")
        );
        assert!(source("docs").unwrap_err().contains("LABEL=TARGET"));
    }

    #[test]
    fn what_cannot_be_followed_is_named() {
        for (options, named) in [
            ("exec", "exec"),
            ("suid", "suid"),
            ("remount,ro", "reload"),
            ("server.docs", "server.docs"),
            ("approval", "value"),
            ("new_session=1", "no value"),
            ("daemon_child", "not known"),
            ("json", "not known"),
            ("color=never", "not known"),
            ("size=5", "not known"),
        ] {
            let error = line(&["none", "/m", "-o", options]).unwrap_err();
            assert!(error.contains(named), "{options}: {error}");
        }
        assert!(line(&["none", "/m", "-s", "-o", "size=5"]).is_ok());
        // Sloppy is not blind: what would be another mount than was asked for is refused.
        for options in [
            "suid",
            "remount",
            "server.docs",
            "approval",
            "new_session=1",
        ] {
            let sloppy = line(&["none", "/m", "-s", "-o", options]);
            assert!(sloppy.is_err(), "{options}: {sloppy:?}");
        }
        assert_eq!(line(&["none", "/m", "-fv"]).unwrap(), ["fake"]);
        assert!(line(&["none"]).is_err() && line(&["none", "/m", "-z"]).is_err());
        assert!(is_called(OsStr::new("/sbin/mount.mount-skills")));
        assert!(!is_called(OsStr::new("/usr/bin/mount-skills")));
    }
}
