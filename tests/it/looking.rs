//! Approving by eye: what `diff` and `approve` show of a skill that changed.

use crate::rig::{BIN, Rig, ok, run, skill, until};
use crate::top::Terminal;
use serde_json::{Value, json};
use std::fs;

const EACH: &[&str] = &["--approval", "each"];

fn scene(files: Value) -> Value {
    json!({"skills": [skill("s", files)]})
}

/// A held skill with a change of every kind; its big file and `never` were not read before.
fn changed(rig: &mut Rig, flags: &[&str]) {
    let old = json!({"x": "one\ntwo\nthree\n", "empty": "", "bin": {"b64": "AP8="}, "gone": "bye\n", "never": "1\n",
        "big": {"fill": "a", "size": 1_200_000}});
    rig.scene("lab", scene(old));
    rig.up(&["lab"], flags);
    if flags == EACH {
        rig.approve("lab/s");
    }
    assert_eq!(rig.cat("lab/s/x"), ok("one\ntwo\nthree\n"));
    rig.sh("cat $M/lab/s/bin $M/lab/s/gone $M/lab/s/SKILL.md > /dev/null")
        .good();
    let hostile = "one\n\u{1b}[2J\u{202e}2\u{200b}\t=== y\r\nthree\n";
    let new = json!({"x": hostile, "empty": "full\n", "bin": {"b64": "AP8AAQ=="}, "new": "hi\n", "never": "2\n",
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
        // Nobody read it before: there is nothing to read in it.
        "\n=== empty  0 B → 5 B\n@@ -0,0 +1,1 @@\n+full\n",
        "\nnot all was shown: there is more in 4 files, new or changed\n",
        "\n=== big  1.1 MiB → 1.1 MiB\n=== not shown: too large",
        "\n=== never  2 B → 2 B\n=== not shown: what is in force is not kept here",
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
}

/// A skill `s` that was held and has changed in more lines than a screen has, with a request for
/// tools at the head of its SKILL.md.
fn long_change(rig: &mut Rig, tools: &str) {
    let lines = |word: &str| format!("{word}\n").repeat(40);
    rig.scene("lab", scene(json!({"x": lines("old")})));
    rig.up(&["lab"], &[]);
    assert_eq!(rig.cat("lab/s/x"), ok(&lines("old")));
    let md = format!("---\nname: s\ndescription: d\nallowed-tools: {tools}\n---\nRun it.\n");
    let files = json!({"x": lines("new"), "SKILL.md": md});
    rig.scene("lab", scene(files));
    rig.in_state("lab/s", "changed");
}

/// A terminal of 80 columns in which skill `s` is asked about; what it ends with is shown.
fn approving(rig: &Rig, before: &str, rows: usize) -> Terminal {
    let mount = rig.mount_point().display();
    // The shell of a script would end with what ends by a key.
    let line = format!(
        "trap : INT; {before} {BIN} approve --color never lab/s --mount {mount}; \
         echo code=$?; exec cat"
    );
    Terminal::with(rig, 80, rows, &line)
}

#[test]
fn the_keys_that_end_a_program_are_for_the_pager_while_there_is_one() {
    let mut rig = Rig::new();
    long_change(&mut rig, "Bash(rm *)");
    let terminal = approving(&rig, "PAGER='less -R'", 24);
    terminal.shows(&["skill   lab/s (changed)", "server  lab"]);
    terminal.keys(&["C-c"]);
    // It is still there to be told where to go, and ends at the question.
    terminal.keys(&["G"]);
    terminal.shows(&["+new", "set     sha256:"]);
    terminal.keys(&["q"]);
    // What was paged has left the screen: what is asked about is said again.
    terminal.shows(&[
        "skill   lab/s (changed)",
        "requests allowed-tools: Bash(rm *)",
        "set     sha256:",
        "[y/N]",
    ]);
    terminal.keys(&["y", "Enter"]);
    terminal.shows(&["approved lab/s (sha256:", "code=0"]);

    // At the question they are as usual.
    let terminal = approving(&rig, "PAGER=true", 24);
    terminal.shows(&["[y/N]"]);
    terminal.keys(&["C-c"]);
    terminal.shows(&["code=130"]);
}

#[test]
fn hr110_what_was_typed_before_the_question_is_no_answer_to_it() {
    let mut rig = Rig::new();
    long_change(&mut rig, "Bash(rm *)");
    let (there, go) = (rig.dir().join("there"), rig.dir().join("go"));
    let pager = rig.dir().join("pager");
    let wait = format!(
        "touch '{}'; while [ ! -e '{}' ]; do sleep 0.05; done; cat >/dev/null",
        there.display(),
        go.display()
    );
    fs::write(&pager, wait).unwrap();
    let terminal = approving(&rig, &format!("PAGER='sh {}'", pager.display()), 24);
    until("a pager", 10.0, || there.exists());
    terminal.keys(&["y", "Enter"]);
    // It is in the terminal: it was echoed.
    terminal.shows(&["y"]);
    fs::write(&go, "").unwrap();
    terminal.shows(&["[y/N]"]);
    terminal.keys(&["n", "Enter"]);
    terminal.shows(&["not approved", "code=1"]);
    assert_eq!(rig.skill_status("lab/s")["approved"], Value::Null);
}

#[test]
fn hr100_what_is_asked_for_is_on_the_screen_with_the_question() {
    let mut rig = Rig::new();
    // What matters is far behind what does not.
    let tools = format!("{}Bash(*)", "Read ".repeat(100));
    long_change(&mut rig, &tools);
    // A terminal that cannot page, one that need not, and a pager that does not work.
    for before in ["TERM=dumb", "PAGER=false", "PAGER=/no/such/pager"] {
        let terminal = approving(&rig, before, 24);
        let screen = terminal.shows(&[
            "skill   lab/s (changed)",
            "requests allowed-tools: Read",
            "[y/N]",
        ]);
        assert!(screen.contains("Bash(*) (changed;"), "{before}: {screen}");
        assert!(
            screen.contains("+new"),
            "{before}: all of it was printed: {screen}"
        );
    }
    // If even that does not fit, it is said.
    let terminal = approving(&rig, "TERM=dumb", 10);
    let screen = terminal.shows(&[
        "skill   lab/s (changed)",
        "NOT ALL OF IT FITS HERE: ",
        "set     sha256:",
        "[y/N]",
    ]);
    assert!(!screen.contains("Bash(*)"), "{screen}");
    // Without a terminal nothing is cut.
    let text = rig.tell(&["approve", "lab/s"]).text();
    assert!(text.contains(&tools), "{text}");
}

#[test]
fn hr114_no_content_is_padded_until_a_part_of_it_looks_like_a_line_of_ours() {
    let mut rig = Rig::new();
    rig.scene("lab", scene(json!({"x": "one\n"})));
    rig.up(&["lab"], &[]);
    assert_eq!(rig.cat("lab/s/x"), ok("one\n"));
    let digest = format!("sha256:{}", "ab".repeat(32));
    let padded = |lead: &str, rows: &[String]| -> String {
        let mut text = lead.to_owned();
        rows.iter().for_each(|row| {
            text.push_str(&" ".repeat(80 - row.chars().count()));
            text.insert_str(text.len() - (80 - row.chars().count()), row);
        });
        text
    };
    let fakes = ["requests nothing".to_owned(), format!("set     {digest}")];
    // One column is the sign's; wide characters take two.
    let plain = padded(&"x".repeat(79), &fakes);
    let wide = padded(&format!("{}x", "漢".repeat(39)), &fakes);
    rig.scene("lab", scene(json!({"x": format!("{plain}\n{wide}\n")})));
    rig.in_state("lab/s", "changed");
    let mount = rig.mount_point().display().to_string();
    for command in ["diff", "approve"] {
        let line = format!("{BIN} {command} --no-pager lab/s --mount {mount}; exec cat");
        let terminal = Terminal::with(&rig, 80, 60, &line);
        let end = if command == "diff" { "↳" } else { "[y/N]" };
        let screen = terminal.shows(&["=== x", end]);
        let begins = |start: &str| screen.lines().filter(|l| l.starts_with(start)).count();
        assert_eq!(begins("requests"), 0, "{screen}");
        assert_eq!(begins("set     sha256:abab"), 0, "{screen}");
        assert_eq!(begins("↳requests nothing"), 2, "{screen}");
        assert!(begins("↳") >= 6, "{screen}");
    }
    // Where it is not a terminal, lines are as long as they are.
    assert!(rig.ask(&["diff", "lab/s"]).contains(&plain));
}
