//! Approving by eye: what `diff` and `approve` show of a skill that changed.

use crate::rig::{BIN, Rig, ok, run, skill, skill_md};
use serde_json::{Value, json};
use std::fs;

const EACH: &[&str] = &["--approval", "each"];

fn scene(files: Value) -> Value {
    json!({"skills": [skill("s", files)]})
}

/// A held skill with a change of every kind; its big file and `never` were not read before.
fn changed(rig: &mut Rig, flags: &[&str]) {
    let old = json!({"x": "one\ntwo\nthree\n", "bin": {"b64": "AP8="}, "gone": "bye\n", "never": "1\n",
        "big": {"fill": "a", "size": 1_200_000}});
    rig.scene("lab", scene(old));
    rig.up(&["lab"], flags);
    if flags == EACH {
        rig.approve("lab/s");
    }
    assert_eq!(rig.cat("lab/s/x"), ok("one\ntwo\nthree\n"));
    rig.sh("cat $M/lab/s/bin $M/lab/s/gone > /dev/null").good();
    let hostile = "one\n\u{1b}[2J\u{202e}2\u{200b}\t=== y\r\nthree\n";
    let new = json!({"x": hostile, "bin": {"b64": "AP8AAQ=="}, "new": "hi\n", "never": "2\n",
        "big": {"fill": "b", "size": 1_200_000}});
    let mut entry = skill("s", new);
    entry["files"]["SKILL.md"] =
        "---\nname: s\ndescription: d\nallowed-tools: Bash(rm *)\n---\nRun it.\n".into();
    rig.scene("lab", json!({"skills": [entry]}));
    rig.seen_as("lab/s", "changed", |s| {
        let state = s["state"].as_str().unwrap_or_default();
        state.starts_with("changed") && s["changes"]["added"] == json!(["new"])
    });
}

#[test]
fn hr74_hr100_hr114_diff_shows_what_changed_and_no_byte_of_it_reaches_the_terminal_as_it_is() {
    let mut rig = Rig::new();
    changed(&mut rig, &[]);
    let before = rig.reads("lab");
    let names = rig.ask(&["diff", "--stat", "lab/s"]);
    assert!(names.contains("rotated      x"), "{names}");
    assert!(!names.contains("two"), "{names}");
    assert_eq!(rig.reads("lab"), before, "names fetch nothing");

    let diff = rig.ask(&["diff", "lab/s"]);
    for part in [
        "requests allowed-tools: Bash(rm *) (changed; nothing is granted by that)\n",
        "  added        new  3 B\n",
        "  removed      gone  4 B\n",
        "mount-skills show lab/s new\n",
        "\n=== x  14 B → ",
        "\n one\n-two\n+\\u{1b}[2J\\u{202e}2\\u{200b}\t=== y\\r\n three\n",
        "\n=== binary, 2 → 4 bytes\n",
        "\n=== big  1.1 MiB → 1.1 MiB\n=== not shown: too large",
        "\n=== never  2 B → 2 B\n=== not shown: the content in force is not kept here",
    ] {
        assert!(diff.contains(part), "{part}: {diff}");
    }
    assert!(!diff.contains(['\u{1b}', '\u{202e}', '\u{200b}', '\r']));
    // What was never here is not compared, and what is new is not fetched.
    let asked = rig.reads("lab");
    for file in ["skill://s/new", "skill://s/never", "skill://s/big"] {
        assert_eq!(asked.get(file), before.get(file), "{file}");
    }
    assert_eq!(
        rig.skill_status("lab/s")["state"],
        "changed",
        "no window moved"
    );
    assert_eq!(rig.cat("lab/s/x"), ok("one\ntwo\nthree\n"));

    // Colours only where they are wanted.
    let coloured = rig.ask(&["diff", "--color", "always", "lab/s"]);
    assert!(coloured.contains("\u{1b}[31m-two\u{1b}[m\n"), "{coloured}");
    assert_eq!(rig.ask(&["diff", "--color", "never", "lab/s"]), diff);
    let json: Value = serde_json::from_str(&rig.ask(&["diff", "--json", "lab/s"])).unwrap();
    assert_eq!(json["changes"]["added"], json!(["new"]), "as it was");
    assert!(json.get("detail").is_none());
}

#[test]
fn hr60_hr105_hr110_the_set_that_is_approved_is_the_one_whose_difference_was_shown() {
    let mut rig = Rig::new();
    changed(&mut rig, EACH);
    let shown = rig.tell(&["approve", "lab/s"]);
    assert_eq!(shown.code, Some(2), "no terminal: {shown:?}");
    let set = rig.set("lab/s");
    for part in ["\n-two\n", "requests allowed-tools", &set] {
        assert!(shown.text().contains(part), "{part}: {shown:?}");
    }
    assert_eq!(rig.cat("lab/s/x"), Err("ESTALE"), "looking is no approval");
    // While the user reads, the server moves on.
    rig.scene("lab", scene(json!({"x": "third\n"})));
    rig.seen_as("lab/s", "another", |s| s["changes"]["added"] == json!([]));
    let late = rig.tell(&["approve", "--set", &set, "lab/s"]);
    assert_eq!(late.code, Some(3), "{late:?}");
    assert_eq!(rig.cat("lab/s/x"), Err("ESTALE"));
}

#[test]
fn a_long_difference_goes_through_the_pager_and_a_short_one_does_not() {
    let mut rig = Rig::new();
    let lines = |word: &str| format!("{word}\n").repeat(40);
    let files = |word: &str| json!({"x": lines(word)});
    rig.scene("lab", scene(files("old")));
    rig.up(&["lab"], &[]);
    assert_eq!(rig.cat("lab/s/x"), ok(&lines("old")));
    rig.scene("lab", scene(files("new")));
    rig.in_state("lab/s", "changed");
    let mount = rig.mount_point().display().to_string();
    let paged = rig.dir().join("paged");
    let pager = format!("tee '{}'", paged.display());
    let at_terminal = |args: &str, no_color: &str| {
        let line = format!("{BIN} {args} lab/s --mount {mount}");
        let mut command = rig.command("script");
        command.args(["-qec", &line, "/dev/null"]);
        command
            .env("TERM", "xterm")
            .env("PAGER", &pager)
            .env("NO_COLOR", no_color);
        run(&mut command).good()
    };
    let text = at_terminal("diff", "");
    let seen = fs::read_to_string(&paged).unwrap();
    assert!(seen.contains("\u{1b}[31m-old\u{1b}[m\n"), "{seen}");
    assert!(text.contains("+new"), "{text}");
    let plain = at_terminal("diff", "1");
    assert!(
        !plain.contains('\u{1b}') && plain.contains("-old"),
        "{plain}"
    );
    fs::remove_file(&paged).unwrap();
    for args in ["diff --stat", "diff --no-pager"] {
        assert!(at_terminal(args, "").contains("x"), "{args}");
        assert!(!paged.exists(), "{args}");
    }
    assert_eq!(skill_md("s"), rig.ask(&["show", "lab/s"]));
}
