//! What people see before anything is mounted, and around it: help, colours, completion, the
//! manual, the version, and the session that the README shows.

use crate::rig::{BIN, Out, Rig, project, run, skill};
use serde_json::json;
use std::fs;
use std::path::Path;
use std::process::Command;

/// All commands, as the help names them.
const COMMANDS: [&str; 23] = [
    "add",
    "approve",
    "cache",
    "completions",
    "config",
    "diff",
    "doctor",
    "forget",
    "gate",
    "list",
    "lock",
    "login",
    "logout",
    "man",
    "refresh",
    "release",
    "reload",
    "revoke",
    "run",
    "serve",
    "show",
    "status",
    "unmount",
];

/// A line of shell that finds the program by its name.
#[track_caller]
fn shell(rig: &Rig, name: &str, line: &str) -> Out {
    let bin = Path::new(BIN).parent().unwrap().display().to_string();
    let path = format!("{bin}:{}", std::env::var("PATH").unwrap());
    let mut command = rig.command(name);
    run(command
        .args(["-c", line])
        .env("PATH", path)
        .env("TERM", "xterm")
        .env("M", rig.mount_point()))
}

fn is_there(program: &str) -> bool {
    let mut command = Command::new("sh");
    let line = format!("command -v {program} >/dev/null");
    command.args(["-c", &line]).status().unwrap().success()
}

fn two_skills(rig: &mut Rig) {
    let skills =
        ["pdf-processing", "acme/refunds"].map(|path| skill(path, json!({"a.txt": "a\n"})));
    rig.scene("docs", json!({"skills": skills}));
    rig.up(&["docs"], &[]);
}

#[test]
fn help_is_short_with_h_and_long_with_examples_and_groups_both() {
    let rig = Rig::new();
    let short = rig.cli(&["-h"]).good();
    assert!(short.lines().count() <= 40, "{short}");
    let long = rig.cli(&["--help"]).good();
    for group in [
        "Mounting",
        "Looking",
        "Approving",
        "Changing",
        "Keeping",
        "Serving",
    ] {
        assert!(short.contains(&format!("\n  {group} ")), "{short}");
        assert!(long.contains(&format!("\n{group}:\n")), "{long}");
    }
    for heading in [
        "Servers",
        "Approvals and windows",
        "Limits",
        "Running",
        "Examples",
    ] {
        assert!(long.contains(&format!("\n{heading}:\n")), "{long}");
    }
    for command in COMMANDS {
        assert!(short.contains(command), "{command}: {short}");
        assert!(
            long.contains(&format!("\n  {command} ")),
            "{command}: {long}"
        );
        let short = rig.cli(&[command, "-h"]).good();
        assert!(short.lines().count() <= 40, "{short}");
        let long = rig.cli(&[command, "--help"]).good();
        let example = format!("Examples:\n  mount-skills {command}");
        assert!(long.contains(&example), "{long}");
        assert_eq!(rig.cli(&["help", command]).good(), long);
    }
}

#[test]
fn a_slip_in_a_command_a_label_or_a_skill_is_answered_with_what_was_meant() {
    let mut rig = Rig::new();
    for (words, meant) in [
        (&["stauts"][..], "(did you mean status?)"),
        (&["stauts", "docs"], "a similar subcommand exists: 'status'"),
        (&["cache", "verfy"], "a similar subcommand exists: 'verify'"),
    ] {
        let out = rig.cli(words);
        assert!(out.code == Some(2) && out.err.contains(meant), "{out:?}");
    }
    two_skills(&mut rig);
    for (words, meant) in [
        (["list", "dosc"], "(did you mean docs?)"),
        (["status", "doc"], "(did you mean docs?)"),
        (["refresh", "dcos"], "(did you mean docs?)"),
        (
            ["show", "docs/pdf-procesing"],
            "(did you mean docs/pdf-processing?)",
        ),
        (
            ["diff", "docs/refunds"],
            "(did you mean docs/acme/refunds?)",
        ),
    ] {
        let out = rig.cli(&words);
        assert!(out.code == Some(1) && out.err.contains(meant), "{out:?}");
    }
    let out = rig.cli(&["show", "docs/zebra"]);
    assert!(
        out.code == Some(1) && !out.err.contains("did you mean"),
        "{out:?}"
    );
}

#[test]
fn colours_are_for_terminals_unless_they_are_asked_for() {
    let mut rig = Rig::new();
    two_skills(&mut rig);
    let colours = |line: &str| {
        let on_a_terminal = format!("script -qec 'mount-skills {line}' /dev/null");
        let seen = shell(&rig, "bash", &on_a_terminal).text();
        assert!(
            seen.contains("docs  ") || seen.contains("Usage"),
            "{line}: {seen}"
        );
        seen.contains("\u{1b}[")
    };
    assert!(colours("status") && colours("--help"));
    for plain in ["status --color never", "--color=never --help"] {
        assert!(!colours(plain), "{plain}");
    }
    let no_color = "NO_COLOR=1 script -qec 'mount-skills status' /dev/null";
    assert!(!shell(&rig, "bash", no_color).text().contains('\u{1b}'));
    let plain = rig.cli(&["status"]).good();
    assert!(
        !plain.contains('\u{1b}') && plain.contains("docs  ready"),
        "{plain}"
    );
    let painted = rig.cli(&["status", "--color", "always"]).good();
    assert!(
        painted.contains("docs  \u{1b}[32mready\u{1b}[0m"),
        "{painted}"
    );
    let json = rig.cli(&["status", "--json", "--color", "always"]).good();
    assert!(!json.contains('\u{1b}'), "{json}");
    let bad = rig.cli(&["status", "--color", "sometimes"]);
    assert!(bad.code == Some(2) && bad.err.contains("never"), "{bad:?}");
}

#[test]
fn what_takes_more_than_a_moment_is_told_on_a_terminal_and_nowhere_else() {
    let mut rig = Rig::new();
    let slow = json!([{"method": "skills/get", "delay": 2}]);
    rig.scene(
        "docs",
        json!({"skills": [skill("pdf", json!({}))], "rules": slow}),
    );
    rig.up(&["docs"], &[]);
    let line = "script -qec 'mount-skills refresh docs/pdf' /dev/null";
    let seen = shell(&rig, "bash", line).text();
    assert!(seen.contains("waiting for the mount"), "{seen:?}");
    let out = rig.cli(&["refresh", "docs/pdf"]);
    assert_eq!(out.err, "");
    // What is done at once says nothing.
    let seen = shell(&rig, "bash", "script -qec 'mount-skills list' /dev/null").text();
    assert!(!seen.contains("waiting"), "{seen:?}");
}

#[test]
fn shells_complete_what_is_mounted_once_they_were_told_to() {
    let mut rig = Rig::new();
    two_skills(&mut rig);
    let bash = "source <(mount-skills completions bash)
        complete -p mount-skills
        COMP_WORDS=(mount-skills show docs/p) COMP_CWORD=2 COMP_TYPE=9
        _clap_complete_mount_skills mount-skills docs/p show
        printf '%s\\n' \"${COMPREPLY[@]}\"";
    let seen = shell(&rig, "bash", bash).good();
    let seen: Vec<&str> = seen.lines().collect();
    assert!(seen[0].contains("_clap_complete_mount_skills"), "{seen:?}");
    assert_eq!(seen[1..], ["docs/pdf-processing"]);
    for (name, word) in [("zsh", "#compdef mount-skills"), ("fish", "complete ")] {
        let text = rig.cli(&["completions", name]).good();
        assert!(text.starts_with(word), "{text}");
        assert!(text.contains("COMPLETE="), "{text}");
    }
    if is_there("fish") {
        let fish = "mount-skills completions fish | source; complete -C 'mount-skills show docs/p'";
        assert_eq!(shell(&rig, "fish", fish).good(), "docs/pdf-processing\n");
    }
    if is_there("zsh") {
        // As from a package: a file in the search path, which zsh finds by its first line.
        let zsh = "d=$(mktemp -d); mount-skills completions zsh > $d/_mount-skills
            fpath=($d $fpath); autoload -U compinit; compinit -u -d $d/dump
            print -r -- $_comps[mount-skills]; autoload +X _mount-skills && print loaded
            rm -r $d";
        assert_eq!(shell(&rig, "zsh", zsh).good(), "_mount-skills\nloaded\n");
    }
    let bad = rig.cli(&["completions", "tcsh"]);
    assert!(bad.code == Some(2) && bad.err.contains("fish"), "{bad:?}");
}

#[test]
fn every_command_has_a_page_of_the_manual_that_can_be_read() {
    let rig = Rig::new();
    let dir = rig.dir().join("man");
    let at = dir.display().to_string();
    rig.cli(&["man", "--dir", &at]).good();
    let page = |name: &str| fs::read_to_string(dir.join(name)).unwrap();
    for command in COMMANDS {
        let text = page(&format!("mount-skills-{command}.1"));
        let words = [
            ".SH NAME",
            ".SH SYNOPSIS",
            ".SH OPTIONS",
            ".SH EXAMPLES",
            ".SH \"SEE ALSO\"",
        ];
        for word in words {
            assert!(text.contains(word), "{command}: {word}: {text}");
        }
    }
    assert_eq!(page("mount-skills.1"), rig.cli(&["man"]).good());
    for word in ["SERVERS", "LIMITS", "list(1)", ".SH NOTES"] {
        assert!(page("mount-skills.1").contains(word), "{word}");
    }
    let mount = page("mount.mount-skills.8");
    assert!(
        mount.contains(env!("CARGO_PKG_VERSION")) && !mount.contains('@'),
        "{mount}"
    );
    for entry in fs::read_dir(&dir).unwrap() {
        let file = entry.unwrap().path().display().to_string();
        if is_there("groff") {
            let line = format!("groff -ww -man -Tutf8 {file} >/dev/null");
            assert_eq!(shell(&rig, "sh", &line).err, "", "{file}");
        }
        if is_there("mandoc") {
            let line = format!("mandoc -T lint -W error {file}");
            assert_eq!(shell(&rig, "sh", &line).text(), "", "{file}");
        }
    }
}

#[test]
fn the_version_names_the_commit_of_a_release_and_needs_no_git() {
    let rig = Rig::new();
    let script = rig.dir().join("build-script");
    let compile = run(Command::new("rustc")
        .args(["--edition", "2024", "-o"])
        .arg(&script)
        .arg(project().join("build.rs")));
    compile.good();
    let version = |profile: &str, line: &str| {
        let line = format!("{line} && PROFILE={profile} CARGO_PKG_VERSION=9.9.9 ../build-script");
        let out = rig.sh(&line).good();
        let found = out
            .lines()
            .find_map(|l| l.strip_prefix("cargo:rustc-env=MOUNT_SKILLS_VERSION="));
        found.unwrap().to_owned()
    };
    let bare = "mkdir -p bare && cd bare";
    assert_eq!(version("release", bare), "9.9.9");
    assert_eq!(
        version(
            "release",
            &format!("{bare} && export MOUNT_SKILLS_COMMIT=abc")
        ),
        "9.9.9 (abc)"
    );
    let commit = "mkdir -p repo && cd repo && git init -q && touch Cargo.toml && git add . && \
                  git -c user.name=n -c user.email=e commit -qm x";
    let first = version("release", commit);
    let hex = first
        .strip_prefix("9.9.9 (")
        .unwrap()
        .strip_suffix(')')
        .unwrap();
    assert!(
        hex.len() == 12 && hex.bytes().all(|b| b.is_ascii_hexdigit()),
        "{first}"
    );
    assert_eq!(version("release", "cd repo"), first);
    assert_eq!(version("debug", "cd repo"), "9.9.9");
    assert_eq!(
        version("release", "cd repo && echo x > Cargo.toml"),
        format!("9.9.9 ({hex}+)")
    );
    // Sources that lie in somebody else's repository are not of that one's commit.
    assert_eq!(
        version(
            "release",
            "mkdir repo/sub && cd repo/sub && ln -s ../build-script .. && true"
        ),
        "9.9.9"
    );
    let shown = rig.cli(&["--version"]).good();
    assert!(
        shown.starts_with(concat!("mount-skills ", env!("CARGO_PKG_VERSION"))),
        "{shown}"
    );
}

#[test]
fn the_session_of_the_readme_is_what_one_sees() {
    let rig = Rig::new();
    let mut command = rig.command("python3");
    command.arg(project().join("scripts/readme-session"));
    run(command.args(["--check", "--bin", BIN])).good();
}
