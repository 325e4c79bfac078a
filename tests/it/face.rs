//! What people see before anything is mounted, and around it: help, colours, completion, the
//! manual, the version, and the session that the README shows.

use crate::rig::{BIN, Out, Rig, project, run, skill, until};
use crate::top::Terminal;
use clap::CommandFactory;
use serde_json::json;
use std::fs;
use std::path::Path;
use std::process::Command;

/// All commands that people give.
fn commands() -> Vec<String> {
    let all = mount_skills::cli::Cli::command();
    let given = all.get_subcommands().filter(|c| !c.is_hide_set());
    let given: Vec<String> = given.map(|c| c.get_name().to_owned()).collect();
    assert!(given.len() > 20, "{given:?}");
    given
}

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
    for command in &commands() {
        assert!(short.contains(&**command), "{command}: {short}");
        assert!(
            long.contains(&format!("\n  {command} ")),
            "{command}: {long}"
        );
        let short = rig.cli(&[command, "-h"]).good();
        assert!(short.lines().count() <= 40, "{short}");
        let long = rig.cli(&[command, "--help"]).good();
        let example = format!("Examples:\n  mount-skills {command}");
        assert!(long.contains(&example), "{long}");
        // It is named where it does something.
        let refused = ["run", "top", "serve", "completions", "man"].contains(&&**command);
        assert_eq!(long.contains("--json"), !refused, "{long}");
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
        (&["--mount", "/m", "stauts", "docs"], "exists: 'status'"),
        (&["--json", "stauts", "docs"], "exists: 'status'"),
        (&["help", "stauts"], "exists: 'status'"),
    ] {
        let out = rig.cli(words);
        assert!(out.code == Some(2) && out.err.contains(meant), "{out:?}");
        assert!(!out.err.contains("unmount'"), "{out:?}");
    }
    // An option is no command that was misspelt.
    let out = rig.cli(&["--mont", "/m", "docs"]);
    assert!(
        out.code == Some(2) && !out.err.contains("subcommand"),
        "{out:?}"
    );
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
    let out = rig.cli(&["show", "docs/pdf-processing", "a.tx"]);
    assert!(out.err.contains("(did you mean a.txt?)"), "{out:?}");
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
        _mount_skills mount-skills docs/p show
        printf '%s\\n' \"${COMPREPLY[@]}\"";
    let seen = shell(&rig, "bash", bash).good();
    let seen: Vec<&str> = seen.lines().collect();
    assert!(seen[0].contains("_mount_skills"), "{seen:?}");
    assert_eq!(seen[1..], ["docs/pdf-processing"]);
    for (name, word) in [("zsh", "#compdef mount-skills"), ("fish", "complete ")] {
        let text = rig.cli(&["completions", name]).good();
        assert!(text.starts_with(word), "{text}");
        assert!(text.contains("COMPLETE="), "{text}");
    }
    let fish = "mount-skills completions fish | source; complete -C 'mount-skills show docs/p'";
    assert_eq!(shell(&rig, "fish", fish).good(), "docs/pdf-processing\n");
    // As from a package: a file in the search path, which zsh finds by its first line.
    let zsh = "d=$(mktemp -d -p $HOME); mount-skills completions zsh > $d/_mount-skills
        fpath=($d $fpath); autoload -U compinit; compinit -u -d $d/dump
        print -r -- $_comps[mount-skills]; autoload +X _mount-skills && print loaded";
    assert_eq!(shell(&rig, "zsh", zsh).good(), "_mount-skills\nloaded\n");
    let bad = rig.cli(&["completions", "tcsh"]);
    assert!(bad.code == Some(2) && bad.err.contains("fish"), "{bad:?}");
}

/// A terminal with a shell that has been told to ask the program, in a directory of the rig's.
fn at_a_shell(rig: &Rig, shell: &str) -> Terminal {
    let bin = Path::new(BIN).parent().unwrap().display();
    let here = rig.dir().join("here");
    fs::create_dir_all(&here).unwrap();
    let line = format!(
        "cd '{}'; export PATH='{bin}':$PATH; export PS1='ready> '; exec {shell}",
        here.display()
    );
    let terminal = Terminal::with(rig, 160, 50, &line);
    let told = match shell.split(' ').next() {
        Some("fish") => {
            "function fish_prompt; echo 'ready> '; end; mount-skills completions fish | source"
        }
        Some("zsh") => {
            "autoload -U compinit; compinit -u -D; source <(mount-skills completions zsh)"
        }
        _ => "source <(mount-skills completions bash)",
    };
    terminal.keys(&["-l", &format!("{told}; clear; echo to''ld")]);
    terminal.keys(&["Enter"]);
    terminal.shows(&["told\nready>"]);
    terminal
}

/// Types text, and presses keys.
fn types(terminal: &Terminal, text: &str, keys: &[&str]) {
    terminal.keys(&["-l", text]);
    terminal.keys(keys);
}

#[test]
fn hr114_no_shell_runs_what_a_server_put_into_a_name_when_it_completes_it() {
    let mut rig = Rig::new();
    let evil = [
        "a$(touch PWNED1)",
        "b`touch PWNED2`",
        "c;touch PWNED3",
        "sp ace",
        "it's",
        "st*r",
    ];
    let names = evil.iter().copied().chain(["ok-1", "ok-2"]);
    let skills: Vec<_> = names.map(|name| skill(name, json!({}))).collect();
    let of = |s: &serde_json::Value| {
        let name = s["path"].as_str().unwrap();
        let md = format!("---\nname: {}\ndescription: d\n---\n", json!(name));
        let entry = json!({"frontmatter": {"name": name, "description": "d"}});
        json!({"path": name, "files": {"SKILL.md": md}, "entry": entry})
    };
    let skills: Vec<_> = skills.iter().map(of).collect();
    rig.scene("lab", json!({"skills": skills}));
    rig.up(&["lab"], &[]);
    assert_eq!(rig.server("lab")["skills"].as_array().unwrap().len(), 8);
    let here = rig.dir().join("here");
    fs::create_dir_all(here.join("lab")).unwrap();
    fs::write(here.join("lab/stir"), "").unwrap();

    // bash puts into the line what it is given, so it is given what it reads as text.
    let bash = at_a_shell(&rig, "bash --norc --noprofile -i");
    types(&bash, "mount-skills status lab/", &["Tab", "Tab", "Tab"]);
    bash.shows(&["lab/ok-1", "lab/ok-2", "ready> mount-skills status lab/ok-"]);
    types(&bash, "2", &["Enter"]);
    bash.shows(&["skill lab/ok-2, URI skill://ok-2/SKILL.md"]);
    for start in ["a", "b", "c", "s", "i"] {
        types(
            &bash,
            &format!("mount-skills status lab/{start}"),
            &["Tab", "Enter"],
        );
        types(&bash, &format!("echo after {start}''{start}"), &["Enter"]);
        bash.shows(&[&format!("after {start}{start}\n")]);
    }
    // Names of files that lie about do not come into it either.
    let stub = "mount-skills() { printf 'lab/st*\\n-n\\n'; }; COMP_WORDS=(m x) COMP_CWORD=1; \
                _mount_skills m x m; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let line = format!("cd here; source <(mount-skills completions bash); {stub}");
    assert_eq!(shell(&rig, "bash", &line).good(), "lab/st*\n-n\n");

    // Others quote what they insert, and it is what it was.
    for (name, quoted) in [
        ("zsh -f -i", r"lab/a\$\(touch\ PWNED1\)"),
        ("fish --no-config -i", "lab/a"),
    ] {
        let terminal = at_a_shell(&rig, name);
        types(&terminal, "mount-skills status lab/a", &["Tab"]);
        terminal.shows(&[quoted, "PWNED1"]);
        terminal.keys(&["Enter"]);
        terminal.shows(&["skill lab/a$(touch PWNED1), URI skill://a"]);
        types(&terminal, "mount-skills status lab/ok-", &["Tab"]);
        terminal.shows(&["lab/ok-2"]);
    }
    let pwned = fs::read_dir(&here).unwrap().flatten();
    let pwned: Vec<_> = pwned.map(|e| e.file_name()).collect();
    assert_eq!(pwned, ["lab"]);
}

#[test]
fn names_are_completed_from_the_mount_that_is_named_and_else_from_all() {
    let mut rig = Rig::new();
    two_skills(&mut rig);
    let mut other = Rig::beside(&rig, "other");
    other.scene("team", json!({"skills": [skill("plan", json!({}))]}));
    other.up(&["team"], &[]);
    let completed = |words: &str| -> Vec<String> {
        let line = format!(
            "source <(mount-skills completions bash); COMP_WORDS=(mount-skills {words})
             COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)) COMP_TYPE=9
             _mount_skills mount-skills \"${{COMP_WORDS[COMP_CWORD]}}\" x; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        let text = shell(&rig, "bash", &line).good();
        text.lines()
            .filter(|l| !l.starts_with('-') && !l.is_empty())
            .map(str::to_owned)
            .collect()
    };
    let all = [
        "docs",
        "docs/acme/refunds",
        "docs/pdf-processing",
        "team",
        "team/plan",
    ];
    assert_eq!(completed("show ''"), all);
    assert_eq!(completed("list --live ''"), all);
    assert_eq!(completed("list ''"), ["docs", "team"]);
    assert_eq!(completed("show --mount $M ''"), all[..3]);
    assert_eq!(
        completed("--mount \"'$M'\" show docs/a"),
        ["docs/acme/refunds"]
    );
    let there = other.mount_point().display().to_string();
    assert_eq!(completed(&format!("show --mount={there} ''")), all[3..]);
    assert_eq!(completed("forget ''"), ["docs", "team"]);
    assert_eq!(
        completed("run -s mine=./x --allow-dynamic ''"),
        ["docs", "mine", "team"]
    );
}

#[test]
fn what_cannot_be_done_is_said_of_what_it_is_about() {
    let mut rig = Rig::new();
    two_skills(&mut rig);
    for (args, said) in [
        (
            &["list", "--max-chars", "9"][..],
            "--max-chars goes with --format",
        ),
        (
            &["list", "--max-chars", "9", "--json"],
            "--max-chars goes with --format",
        ),
        (
            &["approve", "--set", "sha256:12", "docs/pdf-processing"],
            "the set as it is shown",
        ),
    ] {
        let out = rig.tell(args);
        assert!(out.code == Some(2) && out.err.contains(said), "{out:?}");
    }
    for command in ["list", "status --json", "show docs/pdf-processing", "lock"] {
        let out = rig.sh(&format!("{BIN} {command} --mount $M >/dev/full"));
        let said = "stdout cannot be written to: No space left on device";
        assert!(
            out.code == Some(1) && out.err.contains(said),
            "{command}: {out:?}"
        );
    }
}

#[test]
fn a_terminal_shows_text_between_words_and_marks_where_it_goes_on() {
    let mut rig = Rig::new();
    let long = "word ".repeat(15);
    let name = "x".repeat(64);
    let entry = json!({"frontmatter": {"name": name, "description": long.trim()}});
    let md = format!("---\nname: {name}\ndescription: {long}\n---\n");
    let skill = json!({"path": name, "files": {"SKILL.md": md}, "entry": entry});
    rig.scene("docs", json!({"skills": [skill]}));
    rig.mount(
        &[("docs", &rig.scripted("docs")), ("gone", "no-such-program")],
        &[],
    );
    rig.ready("docs");
    until("a server that is down", 10.0, || {
        rig.server("gone")["state"] == "down"
    });
    let mount = rig.mount_point().display().to_string();
    let terminal = Terminal::with(
        &rig,
        80,
        24,
        &format!("{BIN} list --mount {mount}; exec cat"),
    );
    let screen = terminal.shows(&[
        "docs/x",
        "↳",
        "gone/  down: command \"no-such-program\" not found…",
    ]);
    // The PATH is not all over the list, but it can be had.
    assert!(!screen.contains("PATH is"), "{screen}");
    assert!(rig.ask(&["status", "gone"]).contains("PATH is"));
    let rows: Vec<&str> = screen.lines().filter(|l| l.contains("word")).collect();
    assert!(rows.len() > 1, "{screen}");
    assert!(
        rows.iter()
            .all(|l| l.trim_end().ends_with("word") || l.trim_end().ends_with('…')),
        "{screen}"
    );
    assert!(
        rows.iter()
            .all(|l| l.starts_with("docs/") || l.starts_with("  ↳ ")),
        "{screen}"
    );
    // Elsewhere a line is a line.
    assert!(rig.ask(&["list", "docs"]).lines().count() == 1);
}

#[test]
fn every_command_has_a_page_of_the_manual_that_can_be_read() {
    let rig = Rig::new();
    let dir = rig.dir().join("man");
    let at = dir.display().to_string();
    rig.cli(&["man", "--dir", &at]).good();
    let page = |name: &str| fs::read_to_string(dir.join(name)).unwrap();
    for command in &commands() {
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
        let line = format!("groff -ww -man -Tutf8 {file} >/dev/null");
        assert_eq!(shell(&rig, "sh", &line).err, "", "{file}");
        let line = format!("mandoc -T lint -W error {file}");
        assert_eq!(shell(&rig, "sh", &line).text(), "", "{file}");
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
