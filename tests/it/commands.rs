//! The commands that steer a mount and look at it, and `run`.

use crate::rig::{BIN, Out, Proc, Rig, ok, project, run, skill, skill_md, until};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;
use std::process::Command;

fn scene(skills: Vec<Value>) -> Value {
    json!({"skills": skills, "ttlMs": 0})
}

// ---- run ----

/// A `run` of this rig's server `lab`.
fn run_with(rig: &Rig, args: &[&str]) -> Command {
    let mut command = rig.command(BIN);
    let server = format!("lab={}", rig.scripted("lab"));
    command.args(["run", "--server", &server]).args(args);
    command.current_dir(rig.dir());
    command
}

/// Neither processes nor mounts nor private directories of a `run`.
fn nothing_of_a_run(rig: &Rig, what: &str) {
    rig.nothing_left();
    let at = rig.dir().display().to_string();
    until(&format!("no mount after {what}"), 5.0, || {
        !fs::read_to_string("/proc/self/mountinfo")
            .unwrap()
            .contains(&at)
    });
    until(&format!("no directory after {what}"), 5.0, || {
        let names = fs::read_dir(rig.dir().join("run")).unwrap().flatten();
        names
            .into_iter()
            .all(|n| !n.file_name().to_string_lossy().starts_with("mount-skills-"))
    });
    assert_eq!(rig.journals(), Vec::<std::path::PathBuf>::new(), "{what}");
}

#[test]
fn run_gives_a_command_a_mount_of_its_own_and_takes_all_of_it_away_again() {
    let rig = Rig::new();
    rig.scene("lab", scene(vec![skill("s", json!({"x": "x\n"}))]));
    let look = "cat $MOUNT_SKILLS/lab/s/SKILL.md; stat -f -c %T $MOUNT_SKILLS >&2; echo $MOUNT_SKILLS > at; exit 7";
    let out = run(&mut run_with(&rig, &["--", "sh", "-c", look]));
    assert_eq!((out.code, out.text()), (Some(7), skill_md("s")), "{out:?}");
    let at = fs::read_to_string(rig.dir().join("at")).unwrap();
    assert!(
        at.starts_with(
            &rig.dir()
                .join("run")
                .canonicalize()
                .unwrap()
                .display()
                .to_string()
        ),
        "{at}"
    );
    nothing_of_a_run(&rig, "an exit code");
    for (line, code) in [
        ("true", 0),
        ("kill -9 $$", 137),
        ("kill -TERM $$", 143),
        ("exit 255", 255),
    ] {
        let line = format!("cat $MOUNT_SKILLS/lab/s/x; {line}");
        let out = run(&mut run_with(&rig, &["--", "sh", "-c", &line]));
        assert_eq!(
            (out.code, out.text()),
            (Some(code), "x\n".into()),
            "{line}: {out:?}"
        );
        nothing_of_a_run(&rig, &line);
    }
    let none = run(&mut run_with(&rig, &["--", "/no/such/command"]));
    assert!(
        none.code == Some(1) && none.err.contains("/no/such/command"),
        "{none:?}"
    );
    nothing_of_a_run(&rig, "a command that is not there");
    let usage = run(rig.command(BIN).args(["run", "--", "true"]));
    assert_eq!(usage.code, Some(2), "{usage:?}");

    // Somewhere else; the window's end there is the command's end.
    let place = rig.dir().join("place");
    let place = place.display().to_string();
    for content in ["first\n", "second\n"] {
        rig.scene("lab", scene(vec![skill("s", json!({"x": content}))]));
        let out = run(&mut run_with(
            &rig,
            &["--at", &place, "--", "sh", "-c", "cat place/lab/s/x"],
        ));
        assert_eq!(out.good(), content);
        nothing_of_a_run(&rig, "--at");
    }
    // A directory of skills, as in the README.
    let examples = format!("demo={}", project().join("examples/skills").display());
    let line = "cat $MOUNT_SKILLS/demo/*/SKILL.md";
    let out = run(rig
        .command(BIN)
        .args(["run", "--server", &examples, "--", "sh", "-c", line]));
    assert!(out.good().contains("name:"));
    nothing_of_a_run(&rig, "examples");
}

#[test]
fn run_passes_signals_on_and_leaves_nothing_when_it_is_ended_or_killed() {
    let rig = Rig::new();
    rig.scene("lab", scene(vec![skill("s", json!({"x": "x\n"}))]));
    let answers = "import os, signal, sys, pathlib\n\
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n\
        signal.signal(signal.SIGINT, lambda *_: sys.exit(6))\n\
        pathlib.Path(os.environ['MOUNT_SKILLS'] + '/lab/s/x').read_text()\n\
        pathlib.Path('up').write_text(os.environ['MOUNT_SKILLS'] + ' ' + str(os.getpid()))\n\
        while True: signal.pause()";
    let start = || {
        let _ = fs::remove_file(rig.dir().join("up"));
        let run = Proc::spawn(&mut run_with(&rig, &["--", "python3", "-S", "-c", answers]));
        until("the command", 20.0, || {
            rig.dir().join("up").metadata().is_ok_and(|m| m.len() > 0)
        });
        run
    };
    for (signal, code) in [(Signal::TERM, 5), (Signal::INT, 6), (Signal::HUP, 129)] {
        let run = start();
        run.signal(signal);
        assert_eq!(run.finish(15.0).code, Some(code), "{signal:?}");
        nothing_of_a_run(&rig, "a signal");
    }
    // The command is killed from outside.
    let run = start();
    let up = fs::read_to_string(rig.dir().join("up")).unwrap();
    let (place, pid) = up.split_once(' ').unwrap();
    crate::rig::kill(pid.parse().unwrap(), Signal::KILL);
    assert_eq!(run.finish(15.0).code, Some(137));
    nothing_of_a_run(&rig, "a killed command");
    assert!(!std::path::Path::new(place).exists());
    // `run` itself is killed: nobody can pass anything on, but the mount goes.
    let run = start();
    run.signal(Signal::KILL);
    let _ = run.finish(15.0);
    let up = fs::read_to_string(rig.dir().join("up")).unwrap();
    let (place, pid) = up.split_once(' ').unwrap();
    until("the mount to go", 10.0, || {
        crate::rig::mounts_at(place.as_ref()).is_empty()
    });
    crate::rig::kill(pid.parse().unwrap(), Signal::KILL);
    rig.nothing_left();
    until("its directory to go", 5.0, || {
        !std::path::Path::new(place).exists()
    });
}

// ---- looking ----

const HOSTILE: &str =
    "\u{1b}[31mred\u{7}\u{202e}txt\u{200b}\u{e0041}\r\n# `x` <b>&\"'</b> ready: /mnt/fake";

/// What no output may hold.
fn dangerous(text: &str) -> Option<char> {
    let bad = |c: &char| (c.is_control() && *c != '\n') || "\u{202e}\u{200b}\u{e0041}".contains(*c);
    text.chars().find(bad)
}

#[test]
fn f33_hr114_hostile_text_is_escaped_by_every_command() {
    let mut rig = Rig::new();
    let front = json!({"name": "evil", "description": HOSTILE, "allowed-tools": HOSTILE, "hooks": {HOSTILE: HOSTILE}});
    // Control characters are refused in names; what only looks wrong is not.
    let name = "a\u{202e}b\u{200b}.txt";
    let evil = |text: &str| json!({"path": "evil", "files": {"x": text, name: format!("other {text}")}, "entry": {"frontmatter": front}});
    let scene_of = |text: &str| {
        let rules = json!([{"method": "skills/get", "uri": "skill://lies/SKILL.md",
            "error": {"code": -32603, "message": HOSTILE}}]);
        json!({"skills": [evil(text), skill("s", json!({"x": "x\n"}))], "ttlMs": 0, "rules": rules})
    };
    rig.scene("lab", scene_of("1\n"));
    rig.up(&["lab"], &[]);
    assert_eq!(rig.cat("lab/evil/x"), ok("1\n"));
    rig.scene("lab", scene_of("2\n"));
    rig.in_state("lab/evil", "changed");
    assert_eq!(rig.cat(&format!("lab/evil/{name}")), Err("ESTALE"));
    let file = rig.path(&format!("lab/evil/{name}")).display().to_string();
    let mount = rig.mount_point().display().to_string();
    let commands: [&[&str]; 16] = [
        &["list"],
        &["list", "--format", "json"],
        &["list", "--json"],
        &["list", "--format", "markdown"],
        &["list", "--format", "xml"],
        &["list", "lab"],
        &["status"],
        &["status", "--json"],
        &["status", &file],
        &["status", "lab/evil"],
        &["diff", "lab/evil"],
        &["diff", "--json", "lab/evil"],
        &["approve", "lab/evil"],
        &["add", "lab", "skill://lies/SKILL.md"],
        &["lock"],
        &["release", "lab/evil"],
    ];
    for args in commands {
        let out = rig.tell(args);
        let text = out.text();
        assert!(out.code != Some(101), "{args:?}: {out:?}");
        // The path that was asked for is the user's own word.
        let own = if args.contains(&&*file) {
            text.replace(name, "")
        } else {
            text.clone()
        };
        assert_eq!(dangerous(&own), None, "{args:?}: {own}");
        assert_eq!(dangerous(&out.err), None, "{args:?}: {}", out.err);
        assert!(
            !text.lines().any(|l| l.trim_start().starts_with("# `x`")),
            "{args:?}: {text}"
        );
    }
    let xml = rig.ask(&["list", "--format", "xml"]);
    assert!(
        xml.contains("&lt;b&gt;&amp;&quot;") && !xml.contains("<b>"),
        "{xml}"
    );
    let parse = "import sys, xml.dom.minidom as m; d = m.parse(sys.stdin); print(len(d.getElementsByTagName('skill')))";
    let count = rig.sh(&format!(
        "{BIN} list --format xml --mount {mount} | python3 -c \"{parse}\""
    ));
    assert_eq!(count.good(), "2\n");
    let lines = rig.ask(&["list", "--format", "markdown"]);
    assert_eq!(
        lines.lines().filter(|l| l.starts_with("- **")).count(),
        2,
        "one line a skill: {lines}"
    );
}

#[test]
fn a_command_that_is_suggested_does_what_it_says_when_it_is_pasted_into_a_shell() {
    let mut rig = Rig::new();
    let name = "x;touch pwned $(id)";
    rig.scene(
        "lab",
        scene(vec![skill(name, json!({"SKILL.md": skill_md(name)}))]),
    );
    rig.up(&["lab"], &["--approval", "each"]);
    let path = format!("lab/{name}");
    assert_eq!(rig.cat(&format!("{path}/SKILL.md")), Err("EACCES"));
    let of_skill = rig.skill_status(&path)["next"].clone();
    let of_file = rig.refusal("lab", &format!("{path}/SKILL.md"))["next"].clone();
    for next in [of_skill, of_file] {
        let (_, command) = next.as_str().unwrap().split_once("run: ").unwrap();
        assert_eq!(
            shlex::split(command).unwrap(),
            ["mount-skills", "approve", &path],
            "{command}"
        );
    }
}

#[test]
fn list_formats_hold_every_skill_with_its_server_and_the_cap_counts_what_it_leaves_out() {
    let mut rig = Rig::new();
    let names: Vec<String> = (0..20).map(|n| format!("team/skill-{n:02}")).collect();
    rig.scene(
        "lab",
        scene(names.iter().map(|n| skill(n, json!({}))).collect()),
    );
    rig.scene("more", scene(vec![skill("m", json!({}))]));
    rig.up(&["lab", "more"], &[]);
    let rows: Value = serde_json::from_str(&rig.ask(&["list", "--format", "json"])).unwrap();
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 21);
    for key in [
        "server",
        "path",
        "uri",
        "name",
        "description",
        "state",
        "set",
    ] {
        assert!(rows.iter().all(|r| r[key].is_string()), "{key}: {rows:?}");
    }
    let root = rig.mount_point().display().to_string();
    for (format, item) in [("markdown", "- **"), ("xml", "  <skill ")] {
        let print = |args: &[&str]| rig.ask(&[&["list", "--format", format], args].concat());
        let items = |text: &str| text.lines().filter(|l| l.starts_with(item)).count();
        let whole = print(&[]);
        assert_eq!(items(&whole), 21, "{whole}");
        assert!(
            whole.contains("untrusted") && whole.contains("server"),
            "{whole}"
        );
        for name in &names {
            assert!(
                whole.contains(&format!("{root}/lab/{name}/SKILL.md")),
                "HR-27: {name}: {whole}"
            );
        }
        assert_eq!(items(&print(&["lab"])), 20, "one server");
        for max in [0, 1, 700, 1500, 100_000] {
            let text = print(&["--max-chars", &max.to_string()]);
            let left = 21 - items(&text);
            let counted = match format {
                "xml" => text.contains(&format!("<left-out count=\"{left}\"/>")),
                _ => text.contains(&format!("({left} skill")),
            };
            assert!(counted || left == 0, "{max}: {text}");
            let of_items: usize = text
                .lines()
                .filter(|l| l.starts_with(item))
                .map(|l| l.chars().count() + 1)
                .sum();
            assert!(of_items <= max, "{max}: {text}");
            assert_eq!(left == 0, max == 100_000, "{max}: {text}");
        }
    }
    for (args, word) in [
        (&["list", "none"][..], "the labels are: lab, more"),
        (&["list", "--format", "no"], "no"),
    ] {
        let out = rig.tell(args);
        assert!(out.code != Some(0) && out.err.contains(word), "{out:?}");
    }
}

#[test]
fn max_chars_is_a_cap_on_all_that_is_printed() {
    let mut rig = Rig::new();
    rig.scene(
        "lab",
        scene(
            (0..20)
                .map(|n| skill(&format!("s{n}"), json!({})))
                .collect(),
        ),
    );
    rig.up(&["lab"], &[]);
    for (format, max) in [("markdown", 700), ("xml", 700)] {
        let text = rig.ask(&["list", "--format", format, "--max-chars", &max.to_string()]);
        assert!(
            text.chars().count() <= max,
            "{}: {text}",
            text.chars().count()
        );
    }
}

#[test]
fn status_show_and_diff_answer_for_every_way_to_name_a_thing() {
    let mut rig = Rig::new();
    let bytes: Vec<u8> = (0..=255).collect();
    let b64 = {
        use base64::Engine as _;
        base64::engine::general_purpose::STANDARD.encode(&bytes)
    };
    let with = |x: &str| {
        let files =
            json!({"x": x, "d/bin": {"b64": b64}, "wrong": {"text": "w\n", "serve": "W\n"}});
        scene(vec![
            skill("team/s", files),
            json!({"path": "dyn", "entry": {"resources": "dynamic"}}),
        ])
    };
    rig.scene("lab", with("1\n"));
    rig.scene("more", scene(vec![skill("m", json!({}))]));
    rig.up(&["lab", "more"], &[]);
    assert_eq!(
        (rig.cat("lab/team/s/x"), rig.cat("lab/team/s/wrong")),
        (ok("1\n"), Err("EIO"))
    );
    assert_eq!(rig.cat("lab/dyn/SKILL.md"), Err("EACCES"));
    let path = |below: &str| rig.path(below).display().to_string();
    // Which part of the status is about it, by name and by path, below the mount or from inside.
    for (what, has, not) in [
        (
            "lab/team/s/x",
            vec!["skill lab/team/s,", "skill://team/s/SKILL.md"],
            vec!["refused", "more"],
        ),
        (
            "lab/team/s/wrong",
            vec!["refused lab/team/s/wrong (EIO)", "digest"],
            vec!["more"],
        ),
        (
            "lab/team/s",
            vec!["skill lab/team/s,", "server lab (ready)"],
            vec!["more"],
        ),
        (
            "lab/dyn/SKILL.md",
            vec!["declined: ", "dynamic"],
            vec!["more"],
        ),
        ("lab/dyn", vec!["declined: "], vec!["skill lab"]),
        (
            "lab/team/none",
            vec!["no skill of this server holds it"],
            vec!["refused"],
        ),
        (
            "lab",
            vec![
                "lab  ready",
                "refused lab/team/s/wrong",
                "declined skill://dyn",
            ],
            vec!["more  ready"],
        ),
        ("", vec!["lab  ready", "more  ready"], vec![]),
    ] {
        for name in [what.to_owned(), path(what)] {
            if name.is_empty() {
                continue;
            }
            let text = rig.ask(&["status", &name]);
            assert!(
                has.iter().all(|w| text.contains(w)),
                "{name}: {has:?} in {text}"
            );
            assert!(
                not.iter().all(|w| !text.contains(w)),
                "{name}: {not:?} in {text}"
            );
            let value: Value =
                serde_json::from_str(&rig.ask(&["status", "--json", &name])).unwrap();
            let servers = value["servers"].as_array().unwrap().len();
            assert_eq!(servers, if what.is_empty() { 2 } else { 1 }, "{name}");
        }
    }
    let inside = rig
        .sh(&format!("cd $M/lab/team/s && {BIN} status wrong"))
        .good();
    assert!(
        inside.contains("refused lab/team/s/wrong (EIO)"),
        "{inside}"
    );

    // The exact bytes to a pipe; the frame beside them.
    for name in ["lab/team/s", &path("lab/team/s"), &path("lab/team/s/x")] {
        let shown = rig.tell(&["show", name, "d/bin"]);
        assert_eq!((shown.code, &shown.out), (Some(0), &bytes), "{name}");
        let frame = ["lab/team/s/d/bin", "server lab", "not loaded", "untrusted"];
        assert!(frame.iter().all(|w| shown.err.contains(w)), "{shown:?}");
    }
    let shown: Value =
        serde_json::from_str(&rig.ask(&["show", "--json", "lab/team/s", "d/bin"])).unwrap();
    assert_eq!(
        (&shown["base64"], &shown["loaded"]),
        (&json!(b64), &json!(false))
    );
    for (args, word) in [
        (["show", "lab/team/s", "none"], "lists no file"),
        (["show", "lab/team/s", "../s/x"], "lists no file"),
        (["show", "lab/team/s", "wrong"], "cannot be shown"),
        (["show", "lab/dyn", "SKILL.md"], ""),
    ] {
        let out = rig.tell(&args);
        assert!(
            out.code == Some(1) && out.out.is_empty() && out.err.contains(word),
            "{args:?}: {out:?}"
        );
    }
    // What differs.
    assert!(
        rig.ask(&["diff", "lab/team/s"])
            .contains("what is in force is what the server publishes")
    );
    rig.scene("lab", with("2\n"));
    rig.in_state("lab/team/s", "changed");
    for name in ["lab/team/s", &path("lab/team/s"), &path("lab/team/s/d/bin")] {
        let diff = rig.ask(&["diff", name]);
        assert!(
            diff.contains("1 rotated") && diff.contains("rotated      x"),
            "{name}: {diff}"
        );
        let diff: Value = serde_json::from_str(&rig.ask(&["diff", "--json", name])).unwrap();
        assert_eq!(diff["changes"]["rotated"], json!(["x"]));
    }
    assert!(
        rig.ask(&["refresh", &path("lab/team/s/x")])
            .contains("1 rotated")
    );
    assert_eq!(rig.cat("lab/team/s/x"), ok("2\n"));

    // Names that are nothing.
    let commands: [&[&str]; 9] = [
        &["show"],
        &["diff"],
        &["approve"],
        &["approve", "--set", "SET"],
        &["revoke"],
        &["refresh"],
        &["release"],
        &["gate"],
        &["status"],
    ];
    let set = rig.set("lab/team/s");
    for command in commands {
        let command: Vec<&str> = command
            .iter()
            .map(|w| if *w == "SET" { &*set } else { w })
            .collect();
        for (name, word) in [
            ("none/s", "none"),
            ("lab/none", "mount-skills list"),
            ("lab/team", "mount-skills list"),
            ("/etc", ""),
        ] {
            if command == ["status"] && name.starts_with("lab") {
                continue;
            }
            let out = rig.tell(&[&command[..], &[name]].concat());
            assert_eq!(out.code, Some(1), "{command:?} {name}: {out:?}");
            assert!(
                out.out.is_empty() && out.err.contains(word),
                "{command:?} {name}: {out:?}"
            );
        }
    }
    for command in [
        &["show"][..],
        &["diff"],
        &["approve"],
        &["revoke"],
        &["gate"],
    ] {
        let out = rig.tell(&[command, &["lab"]].concat());
        assert!(
            out.code == Some(1) && out.err.contains("LABEL/SKILL"),
            "{command:?}: {out:?}"
        );
    }
}

#[test]
fn hr77_diff_of_a_withdrawn_skill_says_that_it_is_gone() {
    let mut rig = Rig::new();
    rig.scene("lab", scene(vec![skill("s", json!({"x": "x\n"}))]));
    rig.up(&["lab"], &[]);
    assert_eq!(rig.cat("lab/s/x"), ok("x\n"));
    rig.scene("lab", scene(vec![]));
    rig.in_state("lab/s", "changed (withdrawn)");
    let diff = rig.ask(&["diff", "lab/s"]);
    assert!(
        !diff.contains("what is in force is what the server publishes"),
        "{diff}"
    );
}

#[test]
fn hr74_diff_of_a_lapsed_skill_that_was_never_read_says_what_changed() {
    let mut rig = Rig::new();
    rig.scene("lab", scene(vec![skill("s", json!({"x": "x\n"}))]));
    rig.up(&["lab"], &["--approval", "each"]);
    rig.approve("lab/s");
    rig.scene("lab", scene(vec![skill("s", json!({"x": "X\n"}))]));
    rig.in_state("lab/s", "changed, needs-approval");
    let diff = rig.ask(&["diff", "lab/s"]);
    assert!(diff.contains("rotated      x"), "{diff}");
}

#[test]
fn cache_commands_count_find_damage_and_free() {
    let mut rig = Rig::new();
    let files = json!({"a": {"fill": "a", "size": 300_000}, "b": {"fill": "b", "size": 2_000_000}});
    rig.scene("lab", scene(vec![skill("s", files)]));
    assert_eq!(rig.cli(&["cache", "list"]).good(), "");
    assert_eq!(rig.cli(&["cache", "list", "--json"]).good(), "[]\n");
    rig.up(&["lab"], &[]);
    for file in ["a", "b", "SKILL.md"] {
        rig.sh(&format!("cat $M/lab/s/{file} > /dev/null")).good();
    }
    let [a, b] = [("a", 300_000), ("b", 2_000_000)].map(|(c, n)| rig.blob(c.repeat(n).as_bytes()));
    rig.blob(skill_md("s").as_bytes());
    let list = || -> Value {
        serde_json::from_str(&rig.cli(&["cache", "list", "--json"]).good()).unwrap()
    };
    let row = &list()[0];
    assert!(
        row["server"].as_str().unwrap().starts_with("lab-") && row["files"] == 3,
        "{row}"
    );
    assert!(
        rig.cli(&["cache", "list"])
            .good()
            .contains("3 files, 2.2 MiB")
    );
    assert!(
        rig.cli(&["cache", "verify"])
            .good()
            .contains("3 files checked, 0 damaged")
    );
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(&a, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&a, "x".repeat(300_000)).unwrap();
    assert!(
        rig.cli(&["cache", "verify"])
            .good()
            .contains("3 files checked, 1 damaged and removed")
    );
    assert!(!a.exists() && b.exists());
    assert!(
        rig.cli(&["cache", "prune", "--to", "10"])
            .good()
            .contains("freed 0 B")
    );
    assert!(
        rig.cli(&["cache", "prune", "--to", "1"])
            .good()
            .contains("freed 1.9 MiB")
    );
    assert!(!b.exists());
    rig.cli(&["cache", "prune"]).good();
    assert_eq!(list(), json!([]));
    // The mount goes on, from memory, from the server, and keeps copies again.
    let again = rig.sh("cat $M/lab/s/a | wc -c").good();
    assert_eq!(again.trim(), "300000");
}

#[test]
fn commands_about_one_of_two_mounts_say_which_and_leave_the_other_alone() {
    let mut rig = Rig::new();
    let put = |rig: &Rig, x: &str| rig.scene("lab", scene(vec![skill("s", json!({"x": x}))]));
    put(&rig, "1\n");
    let target = rig.scripted("lab");
    rig.up(&["lab"], &[]);
    let mut other = Rig::beside(&rig, "second");
    other.mount(&[("lab", &target)], &["--approval", "each"]);
    other.ready("lab");
    let said = |out: Out| {
        assert_eq!(out.code, Some(1), "{out:?}");
        assert!(out.err.contains("--mount") && out.out.is_empty(), "{out:?}");
    };
    let set = rig.set("lab/s");
    for args in [
        &["show", "lab/s"][..],
        &["diff", "lab/s"],
        &["approve", "--set", &set, "lab/s"],
        &["revoke", "lab/s"],
        &["refresh", "lab"],
        &["release", "lab"],
        &["add", "lab", "skill://s/SKILL.md"],
        &["gate", "lab/s"],
        &["lock"],
    ] {
        said(rig.cli(args));
    }
    assert_eq!(rig.cat("lab/s/x"), ok("1\n"));
    assert_eq!(other.cat("lab/s/x"), Err("EACCES"));
    other.approve("lab/s");
    assert_eq!(other.cat("lab/s/x"), ok("1\n"));
    rig.in_state("lab/s", "held");
    other.in_state("lab/s", "held");
    put(&rig, "2\n");
    rig.in_state("lab/s", "changed");
    rig.ask(&["refresh", "lab/s"]);
    assert_eq!(rig.cat("lab/s/x"), ok("2\n"));
    other.in_state("lab/s", "changed, needs-approval");
    assert_eq!(other.cat("lab/s/x"), Err("ESTALE"));
    // A path that is there says which mount it is about.
    let path = other.path("lab/s/x").display().to_string();
    let text = rig.cli(&["status", &path]).good();
    assert!(text.contains("changed, needs-approval"), "{text}");
    let nowhere = rig.cli(&["status", "--mount", "/etc"]);
    assert!(
        nowhere.code == Some(1) && nowhere.err.contains("/etc"),
        "{nowhere:?}"
    );
}

#[test]
fn a_path_below_one_of_two_mounts_says_which_it_is_about_to_every_command() {
    let mut rig = Rig::new();
    rig.scene("lab", scene(vec![skill("s", json!({"x": "x\n"}))]));
    let target = rig.scripted("lab");
    rig.up(&["lab"], &[]);
    let mut other = Rig::beside(&rig, "second");
    other.mount(&[("lab", &target)], &[]);
    other.ready("lab");
    let path = other.path("lab/s").display().to_string();
    let gate = rig.cli(&["gate", &path]);
    assert!(
        gate.code == Some(1) && gate.err.contains("approve --exec"),
        "{gate:?}"
    );
    for args in [
        &["show"][..],
        &["diff"],
        &["refresh"],
        &["release"],
        &["revoke"],
    ] {
        rig.cli(&[args, &[&path]].concat()).good();
    }
}

#[test]
fn the_mount_may_be_said_before_the_command() {
    let mut rig = Rig::new();
    rig.scene("lab", scene(vec![skill("s", json!({}))]));
    rig.up(&["lab"], &[]);
    let mount = rig.mount_point().display().to_string();
    rig.cli(&["--mount", &mount, "list"]).good();
}

#[test]
fn a_refresh_that_fails_says_why_and_changes_nothing() {
    let mut rig = Rig::new();
    let put = |rig: &Rig, x: &str, rules: Value| {
        rig.scene(
            "lab",
            json!({"skills": [skill("s", json!({"x": x}))], "ttlMs": 3_600_000, "rules": rules}),
        );
    };
    put(&rig, "1\n", json!([]));
    rig.up(&["lab"], &["--timeout", "1"]);
    assert_eq!(rig.cat("lab/s/x"), ok("1\n"));
    let error = json!({"code": -32603, "message": "not today"});
    for (rules, target, word) in [
        (
            json!([{"method": "skills/get", "error": error}]),
            "lab/s",
            "not today",
        ),
        (
            json!([{"method": "skills/list", "error": error}]),
            "lab",
            "not today",
        ),
        (json!([{"method": "skills/get", "hang": true}]), "lab/s", ""),
    ] {
        put(&rig, "2\n", rules);
        let out = rig.tell(&["refresh", target]);
        assert!(
            out.code == Some(1) && out.err.contains(word) && !out.err.is_empty(),
            "{target}: {out:?}"
        );
        assert_eq!(rig.cat("lab/s/x"), ok("1\n"), "{target}");
        assert_eq!(rig.skill_status("lab/s")["state"], "held", "{target}");
    }
    put(&rig, "2\n", json!([]));
    assert!(rig.ask(&["refresh", "lab/s"]).contains("1 rotated"));
    assert_eq!(rig.cat("lab/s/x"), ok("2\n"));
    // It may turn out to be something else altogether.
    rig.scene(
        "lab",
        json!({"skills": [{"path": "s", "entry": {"resources": "dynamic"}}]}),
    );
    let said = rig.ask(&["refresh", "lab/s"]);
    assert_eq!(rig.cat("lab/s/SKILL.md"), Err("EACCES"), "{said}");
    rig.scene("lab", json!({}));
    assert!(rig.ask(&["refresh", "lab/s"]).contains("no longer serves"));
    assert_eq!(rig.ls("lab"), Ok(vec![]));
}

#[test]
fn skills_are_named_by_relative_paths_and_through_links_too() {
    let mut rig = Rig::new();
    rig.scene("lab", scene(vec![skill("s", json!({"x": "x\n"}))]));
    rig.up(&["lab"], &[]);
    std::os::unix::fs::symlink(rig.mount_point(), rig.dir().join("link")).unwrap();
    for line in [
        "cd $M/lab/s && B show .",
        "cd $M/lab && B diff s",
        "B show link/lab/s",
        "B release $PWD/link/lab/s",
        "B status link/lab/s/x",
        "B status link/lab/s/none",
    ] {
        rig.sh(&line.replace("B ", &format!("{BIN} "))).good();
    }
}

#[test]
fn a_shell_completes_the_names_of_the_live_mount() {
    let mut rig = Rig::new();
    rig.scene("lab", scene(vec![skill("team/s", json!({}))]));
    let names = |rig: &Rig, command: &str| {
        let mut shell = rig.command(BIN);
        let asks = [
            ("COMPLETE", "bash"),
            ("_CLAP_COMPLETE_INDEX", "2"),
            ("_CLAP_COMPLETE_COMP_TYPE", "9"),
            ("_CLAP_COMPLETE_SPACE", "false"),
        ];
        shell.envs(asks).args(["--", "mount-skills", command, ""]);
        let text = run(&mut shell).good();
        let lines = text.lines().filter(|l| !l.starts_with('-'));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(names(&rig, "show"), Vec::<String>::new());
    rig.up(&["lab"], &[]);
    for command in [
        "show", "status", "diff", "approve", "revoke", "refresh", "release", "gate",
    ] {
        assert_eq!(names(&rig, command), ["lab", "lab/team/s"], "{command}");
    }
    assert_eq!(names(&rig, "list"), ["lab"]);
    assert_eq!(names(&rig, "add"), ["lab"]);
}

#[test]
fn every_command_that_answers_takes_json() {
    let mut rig = Rig::new();
    rig.scene("lab", scene(vec![skill("s", json!({"x": "x\n"}))]));
    rig.up(&["lab"], &[]);
    let json = |line: &str| -> Value {
        let args: Vec<&str> = line.split(' ').chain(["--json"]).collect();
        let text = rig.ask(&args);
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{line}: {e}: {text}"))
    };
    let lock = json("lock");
    let set = lock[0]["set"].as_str().unwrap().to_owned();
    assert_eq!(lock[0]["uri"], "skill://s/SKILL.md");
    assert_eq!(json("list")[0]["path"], "lab/s");
    assert_eq!(json("status lab")["servers"][0]["label"], "lab");
    assert_eq!(json("show lab/s x")["base64"], "eAo=");
    assert_eq!(json("diff lab/s")["set"], json!(set));
    fs::write(rig.dir().join("lock"), rig.ask(&["lock"])).unwrap();
    let check = format!("lock --check {}", rig.dir().join("lock").display());
    assert_eq!(json(&check), json!([]));
    let approve = format!("approve --exec --set {set} lab/s");
    for line in [
        &*approve,
        "gate lab/s",
        "refresh lab/s",
        "refresh lab",
        "release lab",
        "revoke lab/s",
    ] {
        assert_eq!(json(line)["done"], true, "{line}");
    }
    assert!(json("cache list").is_array());
    assert_eq!(json("cache verify")["removed"], 0);
    assert!(json("cache prune")["freed_bytes"].is_u64());
    assert_eq!(json("unmount")["done"], true);
    assert_eq!(json("forget lab")["done"], true);
    let server = format!("lab={}", rig.scripted("lab"));
    let out = rig.tell(&["--json", "--server", &server]);
    assert_eq!(out.code, Some(2), "{out:?}");
}

// ---- names ----

#[test]
fn hr114_a_skill_is_named_as_it_is_shown_or_by_its_uri_and_two_that_look_alike_are_told_apart() {
    let mut rig = Rig::new();
    let hidden = "skill://rtl%E2%80%AEevil/SKILL.md";
    let literal = "skill://rtl%5Cu%7B202e%7Devil/SKILL.md";
    let of = |uri: &str, name: &str, x: &str| {
        let md = format!("---\nname: {}\ndescription: d\n---\n", json!(name));
        let entry = json!({"frontmatter": {"name": name, "description": "d"}});
        json!({"uri": uri, "files": {"x": x, "SKILL.md": md}, "entry": entry})
    };
    let first = of(hidden, "rtl\u{202e}evil", "1\n");
    let second = of(literal, r"rtl\u{202e}evil", "2\n");
    rig.scene("lab", scene(vec![first.clone(), second]));
    rig.up(&["lab"], &["--approval", "each"]);
    // What they are, how they are shown, and how they would be if a backslash were left alone.
    let (raw_hidden, raw_literal) = ("lab/rtl\u{202e}evil", r"lab/rtl\u{202e}evil");
    let (shown_hidden, shown_literal) = (r"lab/rtl\u{202e}evil", r"lab/rtl\\u{202e}evil");
    assert_eq!(rig.skill_status(shown_hidden)["uri"], hidden);
    assert_eq!(rig.skill_status(shown_literal)["uri"], literal);
    let uri = |name: &str| -> String {
        let text = rig.ask(&["diff", "--json", name]);
        let detail: Value = serde_json::from_str(&text).unwrap();
        detail["uri"].as_str().unwrap().to_owned()
    };
    let of_lab = |uri: &str| format!("lab/{uri}");
    for (name, meant) in [
        (raw_hidden, hidden),
        (shown_literal, literal),
        (&*of_lab(hidden), hidden),
        (&*of_lab(literal), literal),
        (&*rig.path(raw_hidden).display().to_string(), hidden),
        (
            &*rig.path(raw_literal).join("x").display().to_string(),
            literal,
        ),
    ] {
        assert_eq!(uri(name), meant, "{name}");
    }
    // It is the one as it is and the other as it is shown.
    for command in ["diff", "approve", "revoke", "refresh", "show", "release"] {
        let out = rig.tell(&[command, shown_hidden]);
        assert_eq!(out.code, Some(1), "{out:?}");
        for uri in [hidden, literal] {
            assert!(out.err.contains(uri), "{command}: {out:?}");
        }
        assert!(!out.text().contains('\u{202e}'), "{out:?}");
    }
    let both = rig.ask(&["status", shown_hidden]);
    assert!(both.contains(hidden) && both.contains(literal), "{both}");
    let one = rig.ask(&["status", &of_lab(literal)]);
    assert!(!one.contains(hidden) && one.contains(literal), "{one}");

    // By its URI, all of it.
    let set = rig.set(&of_lab(hidden));
    let done = rig.ask(&["approve", "--set", &set, &of_lab(hidden)]);
    assert_eq!(done, format!("approved {shown_hidden} ({set})\n"));
    assert_eq!(rig.cat(&format!("{raw_hidden}/x")), ok("1\n"));
    assert_eq!(rig.cat(&format!("{raw_literal}/x")), Err("EACCES"));
    assert_eq!(rig.ask(&["show", &of_lab(literal), "x"]), "2\n");
    assert!(
        rig.ask(&["refresh", &of_lab(hidden)])
            .starts_with(shown_hidden)
    );
    assert_eq!(
        rig.ask(&["revoke", &of_lab(hidden)]),
        format!("revoked {shown_hidden}\n")
    );
    assert_eq!(rig.cat(&format!("{raw_hidden}/x")), Err("EACCES"));
    let none = rig.tell(&["diff", "lab/skill://no/SKILL.md"]);
    assert!(
        none.code == Some(1) && none.err.contains("no skill"),
        "{none:?}"
    );

    // Alone it is known as it is shown, and what is said of it can be pasted.
    rig.scene("lab", scene(vec![first]));
    rig.ask(&["refresh", "lab"]);
    assert_eq!(uri(shown_hidden), hidden);
    let status = rig.ask(&["status", shown_hidden]);
    assert!(
        status.contains(&format!("skill {shown_hidden}, URI {hidden}")),
        "{status}"
    );
    let path = rig.path(raw_hidden).join("x").display().to_string();
    let status = rig.ask(&["status", &path]);
    assert!(
        status.contains("refused ") && !status.contains('\u{202e}'),
        "{status}"
    );
    let hint = status
        .lines()
        .find_map(|l| l.split_once("mount-skills approve "));
    let line = format!("{BIN} approve --set {set} {} --mount $M", hint.unwrap().1);
    rig.sh(&line).good();
    assert_eq!(rig.cat(&format!("{raw_hidden}/x")), ok("1\n"));
}

/// Two skills whose raw URIs and paths are such that one is shown as the other is.
fn twins() -> Value {
    let of = |name: &str, x: &str| {
        let md = format!("---\nname: {}\ndescription: d\n---\n", json!(name));
        json!({"uri": format!("skill://{name}/SKILL.md"), "files": {"x": x, "SKILL.md": md},
            "entry": {"frontmatter": {"name": name, "description": "d"}}})
    };
    scene(vec![
        of("hid\u{202e}x", "hidden\n"),
        of(r"hid\u{202e}x", "literal\n"),
    ])
}

/// The two names that a refusal offers, as a shell takes them, are of the hidden and the literal one.
#[track_caller]
fn each_offered_is_one(rig: &Rig, refused: &Out, show: impl Fn(&str) -> String) {
    let (_, offered) = refused.err.split_once("name one as here: ").unwrap();
    let read: std::collections::BTreeSet<String> = offered
        .trim_end()
        .split(", ")
        .map(|word| rig.sh(&format!("{BIN} {} --mount $M", show(word))).good())
        .collect();
    let both = ["hidden\n".to_owned(), "literal\n".to_owned()];
    assert_eq!(read, both.into(), "{offered}");
}

#[test]
fn hr114_a_uri_that_may_mean_two_skills_is_refused_with_what_is_exact() {
    let mut rig = Rig::new();
    rig.scene("lab", twins());
    rig.up(&["lab"], &[]);
    let rows: Value = serde_json::from_str(&rig.ask(&["list", "--json"])).unwrap();
    let uris: Vec<&str> = rows
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|r| r["uri"].as_str())
        .collect();
    let shown = r"skill://hid\u{202e}x/SKILL.md";
    assert!(uris.contains(&shown), "{rows}");
    for name in [format!("lab/{shown}"), r"lab/hid\u{202e}x".to_owned()] {
        for command in ["diff", "show", "revoke", "refresh", "release"] {
            let out = rig.tell(&[command, &name]);
            assert_eq!(out.code, Some(1), "{out:?}");
            assert!(!out.err.contains('\u{202e}'), "{out:?}");
            // Each of the two that are offered is taken by a shell and means one skill.
            each_offered_is_one(&rig, &out, |word| format!("show {word} x"));
        }
    }
    let states: Vec<&Value> = rows
        .as_array()
        .unwrap()
        .iter()
        .map(|r| &r["state"])
        .collect();
    assert!(states.iter().all(|s| **s == "listed"), "{states:?}");
}

#[test]
fn hr114_a_file_that_may_be_either_of_two_is_not_shown_and_the_frame_names_the_one_that_is() {
    let mut rig = Rig::new();
    let files = json!({
        "a\u{202e}b": {"text": "hidden\n"},
        "a\\u{202e}b": {"text": "literal\n"},
        "only\u{202e}c": {"text": "only\n"},
    });
    rig.scene("lab", scene(vec![skill("s", files)]));
    rig.up(&["lab"], &[]);
    let out = rig.tell(&["show", "lab/s", r"a\u{202e}b"]);
    assert_eq!((out.code, out.text().as_str()), (Some(1), ""), "{out:?}");
    each_offered_is_one(&rig, &out, |word| format!("show lab/s {word}"));
    for (typed, content, shown) in [
        ("a\u{202e}b", "hidden\n", r"a\u{202e}b"),
        (r"a\\u{202e}b", "literal\n", r"a\\u{202e}b"),
        (r"only\u{202e}c", "only\n", r"only\u{202e}c"),
    ] {
        let out = rig.tell(&["show", "lab/s", typed]);
        let frame = format!("--- lab/s/{shown}: from server lab");
        assert!(out.err.starts_with(&frame), "{out:?}");
        assert!(!out.err.contains('\u{202e}'), "{out:?}");
        assert_eq!(out.good(), content);
        let json: Value =
            serde_json::from_str(&rig.ask(&["show", "lab/s", typed, "--json"])).unwrap();
        assert_eq!(json["file"], shown);
    }
}

#[test]
fn hr114_a_path_that_is_printed_to_be_opened_leads_to_a_file_or_is_not_printed() {
    let mut rig = Rig::new();
    let of = |name: &str| {
        let md = format!(
            "---\nname: {}\ndescription: d ⚠\u{fe0f}\n---\n",
            json!(name)
        );
        json!({"uri": format!("skill://{name}/SKILL.md"), "listed": false, "files": {"SKILL.md": md},
            "entry": {"frontmatter": {"name": name, "description": "d ⚠\u{fe0f}"}}})
    };
    let (dir, hidden, mixed) = (r"bs\dir", "b\u{202e}c", "b\\\u{a0}c");
    rig.scene("lab", scene(vec![of(dir), of(hidden), of(mixed)]));
    rig.up(&["lab"], &[]);
    let mount = rig.path("lab").display().to_string();
    let add = |name: &str| rig.ask(&["add", "lab", &format!("skill://{name}/SKILL.md")]);
    let added = add(dir);
    assert_eq!(added, format!("{mount}/{dir}\n"));
    assert!(fs::exists(added.trim_end()).unwrap());
    for (name, shown) in [(hidden, r"b\u{202e}c"), (mixed, r"b\\\u{a0}c")] {
        let said = format!("added lab/{shown}; its path holds what cannot be shown as it is\n");
        assert_eq!(add(name), said);
    }
    let paths = |text: &str, before: &str, after: char| -> Vec<String> {
        let parts = text.split(before).skip(1);
        parts
            .map(|p| p.split(after).next().unwrap().to_owned())
            .collect()
    };
    let expected = [format!("{mount}/{dir}/SKILL.md")];
    let text = rig.ask(&["list", "--format", "markdown"]);
    assert_eq!(paths(&text, "— `", '`'), expected, "{text}");
    assert!(text.contains("d ⚠\u{fe0f} — "), "{text}");
    assert_eq!(text.matches("no path: it holds what").count(), 2, "{text}");
    let text = rig.ask(&["list", "--format", "xml"]);
    assert_eq!(paths(&text, " path=\"", '"'), expected, "{text}");
    assert_eq!(text.matches("<skill ").count(), 3, "{text}");
    let text = rig.ask(&["list", "--format", "hint"]);
    assert!(text.contains(&format!("\n- lab/{dir}: ")), "{text}");
    assert_eq!(
        text.matches(" (no path: it holds what").count(),
        2,
        "{text}"
    );
    let catalog = || -> Value {
        serde_json::from_str(&rig.cat(".mount-skills/catalog.json").unwrap()).unwrap()
    };
    until("the catalog", 10.0, || {
        catalog()["skills"].as_array().unwrap().len() == 3
    });
    let catalog = catalog();
    let skills = catalog["skills"].as_array().unwrap();
    let files: Vec<&Value> = skills.iter().filter_map(|s| s.get("skill_md")).collect();
    assert_eq!(files, [&json!(format!("lab/{dir}/SKILL.md"))]);
}

#[test]
fn hr114_list_live_looks_into_the_directory_that_was_named_or_into_none() {
    let mut rig = Rig::new();
    let of = |name: &str, files: Value| {
        let md = format!("---\nname: {}\ndescription: d\n---\n", json!(name));
        let mut files = files;
        files["SKILL.md"] = json!(md);
        json!({"uri": format!("skill://{}/SKILL.md", quoted(name)), "files": files,
            "entry": {"frontmatter": {"name": name, "description": "d"}}})
    };
    let mut lab = scene(vec![
        of("b\u{202e}c", json!({"sub/in": "1\n"})),
        of(
            "plain",
            json!({"s\u{202e}/in": "2\n", "s\\d/in": "3\n", "sub/in": "4\n"}),
        ),
    ]);
    lab["directoryRead"] = json!(true);
    rig.scene("lab", lab);
    rig.up(&["lab"], &[]);
    let live = |what: &str| {
        let text = rig.ask(&["list", "--live", what]);
        let mut lines: Vec<String> = text.lines().map(String::from).collect();
        lines.sort();
        lines
    };
    let hidden = [r"lab/b\u{202e}c/SKILL.md", r"lab/b\u{202e}c/sub/"];
    for name in [
        r"lab/b\u{202e}c",
        "lab/b\u{202e}c",
        &format!("lab/skill://{}/SKILL.md", quoted("b\u{202e}c")),
    ] {
        assert_eq!(live(name), hidden, "{name}");
    }
    assert_eq!(live(r"lab/b\u{202e}c/sub"), [r"lab/b\u{202e}c/sub/in"]);
    assert_eq!(live("lab/plain/sub"), ["lab/plain/sub/in"]);
    assert_eq!(live(r"lab/plain/s\d"), [r"lab/plain/s\\d/in"]);
    let exact = rig.path("lab/plain/s\u{202e}").display().to_string();
    for name in ["lab/plain/s\u{202e}", &exact] {
        assert_eq!(live(name), [r"lab/plain/s\u{202e}/in"], "{name}");
    }
    for name in [r"lab/plain/s\u{202e}", r"lab/none\u{202e}"] {
        let out = rig.tell(&["list", "--live", name]);
        assert_eq!((out.code, out.text().as_str()), (Some(1), ""), "{out:?}");
        assert!(out.err.contains("either of two directories"), "{out:?}");
    }
}

/// A name as a part of a URI.
fn quoted(name: &str) -> String {
    name.bytes().map(|b| format!("%{b:02X}")).collect()
}

#[test]
fn hr114_no_name_reaches_a_terminal_as_it_is_and_every_proposed_command_can_be_pasted() {
    let mut rig = Rig::new();
    // The server spells this one with the character itself.
    let raw = json!({"uri": "skill://b\u{202e}c/SKILL.md", "files":
        {"SKILL.md": "---\nname: \"b\\u202ec\"\ndescription: d\n---\n"},
        "entry": {"frontmatter": {"name": "b\u{202e}c", "description": "d"}}});
    rig.scene("lab", scene(vec![skill("ok", json!({})), raw]));
    rig.up(&["lab"], &["--approval", "each"]);
    let seen = |out: &Out| {
        let text = out.text();
        assert!(!text.contains(['\u{1b}', '\u{202e}', '\u{9b}']), "{text:?}");
    };
    // A file of ours holds the URI as it is; a person and a program see what is in it.
    let lock = rig.tell(&["lock", "--json"]);
    seen(&lock);
    assert!(!rig.ask(&["lock"]).contains("skill://b"), "not approved");
    let rows: Value = serde_json::from_slice(&lock.out).unwrap();
    let uris: Vec<&str> = rows
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|r| r["uri"].as_str())
        .collect();
    assert!(uris.contains(&"skill://b\u{202e}c/SKILL.md"), "{uris:?}");

    let evil = "lab/\u{1b}[2J\u{9b}x\u{202e} 'a b'";
    for command in [
        "diff", "approve", "revoke", "refresh", "release", "show", "gate", "status", "list", "logs",
    ] {
        for name in [evil, evil.trim_start_matches("lab/"), "lab/b\u{202e}c"] {
            seen(&rig.tell(&[command, name]));
        }
        seen(&rig.tell(&[command, "--json", "lab/b\u{202e}c"]));
    }
    for args in [
        &["show", "lab/ok", evil][..],
        &["list", "--live", evil],
        &["add", "lab", evil],
    ] {
        seen(&rig.tell(args));
    }
    let asked = rig.tell(&["approve", "lab/b\u{202e}c"]);
    let line = asked
        .err
        .lines()
        .find_map(|l| l.split_once("or the set: mount-skills "));
    rig.sh(&format!("{BIN} {} --mount $M", line.unwrap().1))
        .good();
    assert!(rig.cat("lab/b\u{202e}c/SKILL.md").is_ok());
}

#[test]
fn what_a_server_has_is_not_known_while_it_is_down_and_nobody_says_it_has_no_such_skill() {
    let mut rig = Rig::new();
    rig.mount(&[("lab", "sh -c 'exit 3'")], &[]);
    until("a server that is down", 10.0, || {
        rig.server("lab")["state"] == "down"
    });
    for command in ["diff", "approve", "show", "refresh", "revoke"] {
        let out = rig.tell(&[command, "lab/pdf"]);
        assert_eq!(out.code, Some(1), "{out:?}");
        assert!(
            out.err.contains("\"lab/pdf\" is not known: lab is down: "),
            "{out:?}"
        );
        assert!(out.err.contains("see: mount-skills status lab"), "{out:?}");
        assert!(!out.err.contains("has no skill"), "{out:?}");
    }
    let status = rig.ask(&["status", "lab/pdf"]);
    assert!(
        status.contains("not known: there is no current listing"),
        "{status}"
    );
}
