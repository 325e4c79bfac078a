//! Whose a skill is: a server under the label the user gave it, and a URI; never a name.

use crate::rig::{Rig, mounts_at, ok, skill, skill_md};
use serde_json::{Value, json};
use std::path::PathBuf;

const EACH: &[&str] = &["--approval", "each"];

fn scene(skills: Vec<Value>) -> Value {
    json!({"skills": skills, "ttlMs": 0})
}

/// The directories of servers below one of the rig's, `cache` or `state`.
fn kept(rig: &Rig, dir: &str) -> Vec<String> {
    let of = |p: &PathBuf| p.parent().is_some_and(|p| p.ends_with("mount-skills/v1"));
    let dirs = rig.stored(dir).into_iter().map(|(p, _)| p).filter(of);
    let mut names: Vec<String> = dirs
        .map(|p| p.file_name().unwrap().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn hr09_hr10_hr23_hr24_hr26_the_same_uri_or_name_elsewhere_is_another_skill() {
    let mut rig = Rig::new();
    let of = |who: &str| {
        skill(
            "acme/refunds",
            json!({"x": format!("of {who}\n"), "same": "same\n"}),
        )
    };
    rig.scene(
        "one",
        scene(vec![
            of("one"),
            skill("beta/refunds", json!({"x": "beta\n"})),
        ]),
    );
    rig.scene("two", scene(vec![of("two")]));
    rig.up(&["one", "two"], EACH);
    rig.approve("one/acme/refunds");
    assert_eq!(rig.cat("one/acme/refunds/x"), ok("of one\n"));
    assert_eq!(rig.cat("one/acme/refunds/same"), ok("same\n"));
    assert_eq!(
        rig.cat("two/acme/refunds/x"),
        Err("EACCES"),
        "approved at the other server"
    );
    assert_eq!(
        rig.cat("two/acme/refunds/same"),
        Err("EACCES"),
        "also the same bytes"
    );
    assert_eq!(
        rig.cat("one/beta/refunds/x"),
        Err("EACCES"),
        "approved by another name"
    );
    rig.approve("two/acme/refunds");
    rig.approve("one/beta/refunds");
    let race = "for i in $(seq 40); do for s in one two; do \
        [ \"$(cat $M/$s/acme/refunds/x)\" = \"of $s\" ] || echo crossed; done; done";
    let ends: Vec<_> = (0..4)
        .map(|_| {
            let mut command = rig.command("bash");
            crate::rig::Proc::spawn(command.args(["-c", race]).env("M", rig.mount_point()))
        })
        .collect();
    ends.into_iter()
        .for_each(|p| assert_eq!(p.finish(30.0).good(), ""));
    assert_eq!(rig.cat("two/acme/refunds/same"), ok("same\n"));
    assert_eq!(
        rig.reads("two").values().sum::<usize>(),
        2,
        "HR-87: nothing comes from the other's cache"
    );
    // Names: nothing is preferred, and who looks is told.
    let catalog: Value =
        serde_json::from_str(&rig.cat(".mount-skills/catalog.json").unwrap()).unwrap();
    assert_eq!(
        catalog["same_name"],
        json!({"refunds": ["one/acme/refunds", "one/beta/refunds", "two/acme/refunds"]})
    );
    assert_eq!(rig.sh("find $M -type l").good(), "");
    for name in ["refunds", "acme/refunds", "skill://acme/refunds/SKILL.md"] {
        assert_eq!(
            rig.tell(&["show", name]).code,
            Some(1),
            "HR-104: {name} without its server"
        );
    }
    // Revoked at one, it stays at the other.
    rig.ask(&["revoke", "one/acme/refunds"]);
    assert_eq!(rig.cat("one/acme/refunds/x"), Err("EACCES"));
    assert_eq!(rig.cat("two/acme/refunds/x"), ok("of two\n"));
}

#[test]
fn hr14_a_label_that_means_another_server_inherits_nothing() {
    let mut rig = Rig::new();
    rig.scene(
        "lab",
        scene(vec![skill("s", json!({"x": "x\n", "y": "y\n"}))]),
    );
    rig.scene(
        "elsewhere",
        scene(vec![skill("s", json!({"x": "x\n", "y": "y\n"}))]),
    );
    let (old, new) = (rig.scripted("lab"), rig.scripted("elsewhere"));
    rig.up(&["lab"], EACH);
    rig.approve("lab/s");
    assert_eq!(rig.cat("lab/s/x"), ok("x\n"));
    rig.blob(b"x\n");
    rig.journalled(&["skill://s/SKILL.md"]);
    rig.kill_daemon();
    rig.nothing_left();
    // The very same skill, of another command.
    rig.mount(&[("lab", &new)], EACH);
    rig.ready("lab");
    assert_eq!(
        rig.skill_status("lab/s")["state"],
        "needs-approval",
        "no window, no approval"
    );
    assert_eq!(rig.cat("lab/s/x"), Err("EACCES"));
    rig.approve("lab/s");
    assert_eq!(rig.cat("lab/s/x"), ok("x\n"));
    assert_eq!(
        rig.reads("elsewhere").len(),
        1,
        "and not from the other's cache"
    );
    rig.ask(&["revoke", "lab/s"]);
    rig.stop();
    rig.mount(&[("lab", &old)], EACH);
    rig.ready("lab");
    assert_eq!(
        rig.cat("lab/s/x"),
        ok("x\n"),
        "the old one has kept its own"
    );
    rig.in_state("lab/s", "held");
    for dir in ["cache", "state"] {
        assert_eq!(kept(&rig, dir).len(), 2, "{dir}");
    }
}

#[test]
fn hr86_hr87_forget_removes_all_of_one_label_and_of_no_other() {
    let mut rig = Rig::new();
    let labels = ["a", "a-b", "ab"];
    for label in labels {
        rig.scene(label, scene(vec![skill("s", json!({"x": "x\n"}))]));
    }
    rig.up(&labels, EACH);
    for label in labels {
        rig.approve(&format!("{label}/s"));
        assert_eq!(rig.cat(&format!("{label}/s/x")), ok("x\n"));
    }
    crate::rig::until("a copy for each", 5.0, || {
        kept(&rig, "cache").len() == 3
            && rig
                .stored("cache")
                .iter()
                .filter(|(p, _)| p.is_file() && p.file_name().unwrap().len() == 64)
                .count()
                == 3
    });
    let before = [kept(&rig, "cache"), kept(&rig, "state")];
    let busy = rig.cli(&["forget", "a"]);
    assert!(
        busy.code == Some(1) && busy.err.contains("unmount"),
        "{busy:?}"
    );
    assert_eq!([kept(&rig, "cache"), kept(&rig, "state")], before);
    assert!(
        rig.cli(&["forget", "nobody"])
            .good()
            .contains("nothing was kept of nobody")
    );
    assert_eq!(rig.cli(&["forget", "../x"]).code, Some(2));
    rig.stop();
    assert!(rig.cli(&["forget", "a"]).good().contains("forgot a:"));
    for (dir, before) in ["cache", "state"].iter().zip(before) {
        let rest: Vec<String> = before
            .into_iter()
            .filter(|n| n.starts_with("a-b-") || n.starts_with("ab-"))
            .collect();
        assert_eq!(rest.len(), 2);
        assert_eq!(kept(&rig, dir), rest, "{dir}");
    }
    rig.up(&labels, EACH);
    let reads = |l: &str| rig.reads(l).values().sum::<usize>();
    assert_eq!(rig.cat("a/s/x"), Err("EACCES"), "the approval went with it");
    assert_eq!(
        (rig.cat("a-b/s/x"), rig.cat("ab/s/x")),
        (ok("x\n"), ok("x\n"))
    );
    rig.approve("a/s");
    assert_eq!(rig.cat("a/s/x"), ok("x\n"));
    assert_eq!(
        [reads("a"), reads("a-b"), reads("ab")],
        [2, 1, 1],
        "only its cache went"
    );
}

#[test]
fn hr17_hr46_hr47_hr48_a_skill_that_is_not_listed_is_added_by_its_uri_and_stays() {
    let mut rig = Rig::new();
    let hidden =
        |path: &str| json!({"path": path, "files": {"x": format!("{path}\n")}, "listed": false});
    let github =
        json!({"uri": "github://owner/repo/tools/fmt/SKILL.md", "files": {"a.txt": "gh\n"}});
    let quiet = json!({"uri": "github://owner/repo/tools/lint/SKILL.md", "files": {"a.txt": "lint\n"}, "listed": false});
    let dynamic = json!({"path": "dyn", "listed": false, "entry": {"resources": "dynamic"}});
    let skills = vec![
        skill("seen", json!({"in/SKILL.md": skill_md("in")})),
        hidden("seen/in"),
        hidden("deep/down/one"),
        hidden("deep/two"),
        github,
        quiet,
        dynamic,
    ];
    rig.scene("lab", scene(skills.clone()));
    let named = [
        "--skill",
        "lab=skill://deep/two/SKILL.md",
        "--skill",
        "lab=skill://none/SKILL.md",
    ];
    rig.up(&["lab"], &named);
    rig.in_state("lab/deep/two", "listed");
    assert_eq!(rig.cat("lab/deep/two/x"), ok("deep/two\n"));
    crate::rig::until("a word on the other", 5.0, || {
        rig.words().contains("no skill at skill://none/SKILL.md")
    });
    assert_eq!(
        rig.cat("lab/github:/owner/repo/tools/fmt/a.txt"),
        ok("gh\n"),
        "HR-17"
    );
    assert_eq!(rig.cat("lab/deep/down/one/x"), Err("ENOENT"));
    // Added: its path is printed, and it can be read.
    for (uri, below, file, text) in [
        (
            "skill://deep/down/one/SKILL.md",
            "lab/deep/down/one",
            "x",
            "deep/down/one\n",
        ),
        (
            "github://owner/repo/tools/lint/SKILL.md",
            "lab/github:/owner/repo/tools/lint",
            "a.txt",
            "lint\n",
        ),
    ] {
        let printed = rig.ask(&["add", "lab", uri]);
        assert_eq!(printed.trim_end(), rig.path(below).display().to_string());
        assert_eq!(rig.cat(&format!("{below}/{file}")), ok(text));
    }
    let inner = rig.ask(&["add", "lab", "skill://seen/in/SKILL.md"]);
    assert_eq!(
        inner.trim_end(),
        rig.path("lab/seen/in").display().to_string()
    );
    assert_eq!(
        rig.skill_status("lab/seen/in")["activation"],
        "needs-consent",
        "nested"
    );
    // What is not there, cannot be loaded or makes no sense.
    for (label, uri, word) in [
        ("lab", "skill://none/SKILL.md", "serves no skill"),
        ("lab", "skill://seen/x", "serves no skill"),
        ("lab", "", "serves no skill"),
        ("none", "skill://seen/SKILL.md", "the labels are: lab"),
    ] {
        let out = rig.tell(&["add", label, uri]);
        assert!(
            out.code == Some(1) && out.err.contains(word) && out.out.is_empty(),
            "{uri}: {out:?}"
        );
    }
    rig.tell(&["add", "lab", "skill://dyn/SKILL.md"]);
    assert_eq!(rig.cat("lab/dyn/SKILL.md"), Err("EACCES"));
    // A whole listing without them is no word against them; nor is a restart of any kind.
    let lists = rig.seen("lab", "skills/list");
    crate::rig::until("another listing", 10.0, || {
        let _ = rig.ls("lab");
        rig.seen("lab", "skills/list") > lists + 1
    });
    let all = |rig: &Rig, what: &str| {
        for (file, text) in [
            ("deep/down/one/x", "deep/down/one\n"),
            ("deep/two/x", "deep/two\n"),
            ("github:/owner/repo/tools/lint/a.txt", "lint\n"),
        ] {
            assert_eq!(rig.cat(&format!("lab/{file}")), ok(text), "{what}: {file}");
        }
    };
    all(&rig, "listed without them");
    let target = rig.scripted("lab");
    rig.remount(&[("lab", &target)], &[]);
    rig.ready("lab");
    all(&rig, "restarted");
    rig.kill_daemon();
    rig.nothing_left();
    rig.up(&["lab"], &[]);
    all(&rig, "killed");
    // HR-16: a scheme makes no skill, and looking for one asks for no content.
    assert_eq!(rig.cat("lab/github:/owner/repo/SKILL.md"), Err("ENOENT"));
}

#[test]
fn skill_flags_that_make_no_sense_are_refused_before_anything_is_mounted() {
    let rig = Rig::new();
    rig.scene("lab", scene(vec![]));
    let target = format!("lab={}", rig.scripted("lab"));
    let mount = rig.mount_point().display().to_string();
    for bad in [
        "skill://s/SKILL.md",
        "other=skill://s/SKILL.md",
        "=skill://s/SKILL.md",
    ] {
        let out = rig.cli(&["--server", &target, "--skill", bad, &mount]);
        assert!(
            out.code == Some(2) && out.err.contains("--skill"),
            "{bad}: {out:?}"
        );
    }
    assert!(mounts_at(rig.mount_point()).is_empty() && rig.log("lab", "start").is_empty());
}

#[test]
fn hr35_adding_a_dynamic_skill_fails_with_the_reason() {
    let mut rig = Rig::new();
    let dynamic = json!({"path": "dyn", "listed": false, "entry": {"resources": "dynamic"}});
    rig.scene("lab", scene(vec![dynamic]));
    rig.up(&["lab"], &[]);
    let out = rig.tell(&["add", "lab", "skill://dyn/SKILL.md"]);
    assert!(
        out.code == Some(1) && out.out.is_empty() && out.err.contains("dynamic"),
        "{out:?}"
    );
}

#[test]
fn c09_c10_c12_names_are_taken_to_the_byte_and_hidden_files_are_files() {
    let mut rig = Rig::new();
    let named = |path: &str, name: &str| json!({"path": path, "files": {"SKILL.md": skill_md(name), "x": format!("{path}\n")}});
    let both = skill(
        "both",
        json!({"skill.md": "lower\n", "Docs/a.md": "upper\n", "docs/a.md": "low\n"}),
    );
    let low = json!({"uri": "skill://low/skill.md", "frontmatter": {"name": "low", "description": "d"}, "resources": []});
    let dots =
        json!({".env.example": "e\n", ".git/config": "g\n", ".DS_Store": "d\n", "a/.keep": ""});
    let mut scene = scene(vec![
        named("react-rules", "acme-react-rules"),
        named("omar", "Omar"),
        named("a_b", "a_b"),
        named("x--y", "x--y"),
        both,
        skill("dots", dots),
        skill("good", json!({"x": "good\n"})),
    ]);
    scene["entries"] = json!([low]);
    rig.scene("lab", scene);
    rig.up(&["lab"], &[]);
    for (path, name) in [("react-rules", "acme-react-rules"), ("omar", "Omar")] {
        assert_eq!(
            rig.cat(&format!("lab/{path}/SKILL.md")),
            Err("EACCES"),
            "C-09"
        );
        let why = rig.declined("lab", &format!("skill://{path}/SKILL.md"));
        assert!(why.contains(path) && why.contains(name), "C-09: {why}");
    }
    // They break the rules for names, not the identity: they load, and a warning says so.
    for path in ["a_b", "x--y"] {
        assert_eq!(
            rig.cat(&format!("lab/{path}/x")),
            ok(&format!("{path}\n")),
            "C-09"
        );
        let status = rig.skill_status(&format!("lab/{path}"));
        assert!(status["warnings"][0].is_string(), "C-09: {status}");
    }
    assert!(
        rig.declined("lab", "skill://low/skill.md")
            .contains("SKILL.md"),
        "C-10"
    );
    for (file, text) in [
        ("SKILL.md", &*skill_md("both")),
        ("skill.md", "lower\n"),
        ("Docs/a.md", "upper\n"),
        ("docs/a.md", "low\n"),
    ] {
        assert_eq!(
            rig.cat(&format!("lab/both/{file}")),
            ok(text),
            "C-10: {file}"
        );
    }
    assert_eq!(rig.cat("lab/both/Skill.md"), Err("ENOENT"), "C-10");
    let hidden = rig
        .sh("cd $M/lab/dots && find . -type f | sort | tr '\n' ' '")
        .good();
    assert_eq!(
        hidden, "./.DS_Store ./.env.example ./.git/config ./SKILL.md ./a/.keep ",
        "C-12"
    );
    assert_eq!(
        (rig.cat("lab/dots/a/.keep"), rig.cat("lab/dots/.git/config")),
        (ok(""), ok("g\n")),
        "C-12"
    );
    assert_eq!(rig.cat("lab/good/x"), ok("good\n"));
}

#[test]
fn hr47_refresh_of_a_label_moves_its_unlisted_skills_too() {
    let mut rig = Rig::new();
    let put = |rig: &Rig, x: &str| {
        rig.scene(
            "lab",
            scene(vec![
                json!({"path": "s", "files": {"x": x}, "listed": false}),
            ]),
        );
    };
    put(&rig, "1\n");
    rig.up(&["lab"], &[]);
    rig.ask(&["add", "lab", "skill://s/SKILL.md"]);
    assert_eq!(rig.cat("lab/s/x"), ok("1\n"));
    put(&rig, "2\n");
    rig.ask(&["refresh", "lab"]);
    assert_eq!(rig.cat("lab/s/x"), ok("2\n"));
}

#[test]
fn hr86_forget_reaches_a_cache_that_was_kept_elsewhere() {
    let mut rig = Rig::new();
    rig.scene("lab", scene(vec![skill("s", json!({"x": "x\n"}))]));
    let elsewhere = rig.dir().join("elsewhere");
    let flags = ["--cache-dir", &*elsewhere.display().to_string()];
    rig.up(&["lab"], &flags);
    assert_eq!(rig.cat("lab/s/x"), ok("x\n"));
    let find = "find elsewhere -type f";
    crate::rig::until("a copy", 5.0, || !rig.sh(find).good().is_empty());
    rig.stop();
    rig.cli(&[&["forget", "lab"], &flags[..]].concat()).good();
    assert_eq!(rig.sh(find).good(), "");
}

#[test]
fn c11_names_are_decoded_once_and_asked_for_as_the_server_spells_them() {
    let mut rig = Rig::new();
    let spelled = [
        ("setup%20guide.md", "setup guide.md"),
        ("setup%2520guide.md", "setup%20guide.md"),
        ("100%25.md", "100%.md"),
        ("caf%C3%A9.md", "caf\u{e9}.md"),
        ("cafe%CC%81.md", "cafe\u{301}.md"),
        ("bug%2342%3F.md", "bug#42?.md"),
    ];
    let uri = |spelled: &str| format!("skill://names/references/{spelled}");
    let files: serde_json::Map<String, Value> = spelled
        .iter()
        .map(|(raw, name)| {
            let file = json!({"text": format!("{raw}\n"), "uri": uri(raw)});
            (format!("references/{name}"), file)
        })
        .collect();
    rig.scene("lab", scene(vec![skill("names", files.into())]));
    rig.up(&["lab"], &[]);
    let mut names: Vec<String> = spelled.iter().map(|(_, name)| name.to_string()).collect();
    names.sort();
    assert_eq!(rig.ls("lab/names/references").unwrap(), names);
    for (raw, name) in spelled {
        let path = format!("lab/names/references/{name}");
        assert_eq!(rig.cat(&path), ok(&format!("{raw}\n")), "{raw}");
        assert_eq!(rig.reads("lab").get(&uri(raw)), Some(&1), "{raw}");
    }
}

#[test]
fn c13_scripts_are_files_that_an_interpreter_reads_and_nothing_runs_of_itself() {
    let mut rig = Rig::new();
    let script = json!({"scripts/hello.sh": "#!/bin/sh\necho hi\n"});
    rig.scene("lab", scene(vec![skill("run", script)]));
    rig.up(&["lab"], &[]);
    let modes = rig.sh("stat -c %a $M/lab/run $M/lab/run/scripts $M/lab/run/scripts/hello.sh");
    assert_eq!(modes.good(), "555\n555\n444\n");
    let direct = rig.sh("$M/lab/run/scripts/hello.sh");
    assert_eq!(direct.code, Some(126), "{direct:?}");
    assert_eq!(rig.sh("sh $M/lab/run/scripts/hello.sh").good(), "hi\n");
    let chmod = rig.sh("chmod +x $M/lab/run/scripts/hello.sh");
    assert!(chmod.err.contains("Read-only file system"), "{chmod:?}");
}
