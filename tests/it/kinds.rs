//! The kinds of things a listing does not settle: dynamic skills, skills that are walked to, and
//! prefix directories.

use crate::rig::{Out, Rig, is_root, ok, run, skill, skill_md, until};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};

const HOUR_MS: u64 = 3_600_000;
const DYNAMIC: &[&str] = &["--allow-dynamic", "lab"];
/// What there is to say of a dynamic skill that somebody wants to approve, run or show.
const NO_SET: &str = "a dynamic skill: its server publishes no digests";

/// A scene whose listing stays fresh: what is asked is asked for another reason.
fn fresh(skills: Vec<Value>) -> Value {
    json!({"skills": skills, "ttlMs": HOUR_MS, "directoryRead": true})
}

fn without_directories(skills: Vec<Value>) -> Value {
    json!({"skills": skills, "ttlMs": HOUR_MS})
}

fn unlisted(path: &str) -> Value {
    json!({"path": path, "files": {"x": format!("{path}\n")}, "listed": false})
}

/// The URIs that the server was asked for by this method, in order.
fn asked(rig: &Rig, method: &str) -> Vec<String> {
    let rows = rig.log("lab", "request").into_iter();
    let rows = rows.filter(|r| r["method"] == method);
    rows.map(|r| r["params"]["uri"].as_str().unwrap().to_owned())
        .collect()
}

fn gets(rig: &Rig) -> Vec<String> {
    asked(rig, "skills/get")
}

fn looks(rig: &Rig) -> Vec<String> {
    asked(rig, "resources/directory/read")
}

fn md_of(path: &str) -> String {
    format!("skill://{path}/SKILL.md")
}

/// Asks for an attribute of each of these names in a label, one after the other, in one process.
fn stat_all(rig: &Rig, names: &[String]) -> BTreeMap<String, String> {
    let program = "import errno, json, os, sys\n\
        found = {}\n\
        for name in sys.argv[2:]:\n\
        \x20   try:\n\
        \x20       os.stat(os.path.join(sys.argv[1], name))\n\
        \x20       found[name] = 'found'\n\
        \x20   except OSError as e:\n\
        \x20       found[name] = errno.errorcode[e.errno]\n\
        print(json.dumps(found))";
    let mut command = rig.command("python3");
    command
        .args(["-S", "-c", program])
        .arg(rig.path("lab"))
        .args(names);
    serde_json::from_str(&run(&mut command).good()).unwrap()
}

/// The first bytes of this many of a text of lines, which no other fill has.
fn text(fill: &str, size: usize) -> String {
    fill.repeat(size / fill.len() + 1)[..size].to_owned()
}

fn dynamic(out: Value) -> Value {
    json!({"path": "dyn", "files": {"out.txt": out}, "entry": {"resources": "dynamic"}})
}

// ---- dynamic skills ----

#[test]
fn c43_hr35_hr40_each_open_of_a_dynamic_file_gives_all_of_what_the_server_serves_then() {
    let mut rig = Rig::new();
    rig.scene("lab", fresh(vec![dynamic(json!("first\n"))]));
    rig.up(&["lab"], DYNAMIC);
    assert_eq!(
        rig.ls("lab/dyn"),
        Ok(vec!["SKILL.md".into(), "out.txt".into()])
    );
    assert_eq!(fs::metadata(rig.path("lab/dyn/out.txt")).unwrap().len(), 0);
    assert_eq!(rig.reads("lab").len(), 0, "looking reads nothing");

    type Part = fn(&str) -> String;
    let whole: Part = |text| text.to_owned();
    let first: Part = |text| text[..text.len().min(1000)].to_owned();
    let last: Part = |text| text[text.len().saturating_sub(1000)..].to_owned();
    let lines: Part = |text| format!("{}\n", text.lines().count());
    let tools = [
        ("cat F", whole),
        ("head -c 100000 F", whole),
        ("head -c 1000 F", first),
        ("rm -f copy && cp F copy && cat copy", whole),
        ("tail -c 100000 F", whole),
        ("tail -c 1000 F", last),
        ("python3 -S -c 'print(open(\"F\").read(), end=\"\")'", whole),
        ("grep -c '' F", lines),
        ("grep -c '' <F", lines),
    ];
    let file = rig.path("lab/dyn/out.txt").display().to_string();
    let mut opens = 0;
    for (tool, want) in tools {
        for (size, n) in [(10_000, 1), (3, 2), (16_001, 3), (0, 4), (10_000, 5)] {
            let served = text(&format!("{n} {tool}\n"), size);
            rig.scene("lab", fresh(vec![dynamic(json!(served))]));
            let out = rig.sh(&tool.replace('F', &file));
            // `grep -c` of nothing counts 0, and that is exit code 1.
            if out.code != Some(0) {
                assert!(tool.starts_with("grep") && size == 0, "{tool}: {out:?}");
            }
            let got = out.text();
            assert!(
                got == want(&served),
                "{tool} of {size} bytes: {} bytes: {:.60?}",
                got.len(),
                got
            );
            opens += 1;
            let reads = rig.reads("lab");
            assert_eq!(reads.get("skill://dyn/out.txt"), Some(&opens), "{tool}");
        }
    }
    let third = format!("{}\n", "value=3 ".repeat(2000));
    let served = [text("value=1\n", 10_000), "v=2".into(), third];
    let values = |text: &str| text.lines().filter(|l| l.contains("value")).count();
    for content in &served {
        rig.scene("lab", fresh(vec![dynamic(json!(content))]));
        let (size, sum) = (content.len(), crate::rig::sha256(content.as_bytes()));
        for (tool, want) in [
            ("cat F | wc -c", size.to_string()),
            ("head -c 5 F", content[..size.min(5)].to_owned()),
            (
                "tail -c 4 F",
                content[size.saturating_sub(4)..].trim().to_owned(),
            ),
            ("cp F copy && wc -c <copy && rm -f copy", size.to_string()),
            (
                "python3 -c 'print(len(open(\"F\",\"rb\").read()))'",
                size.to_string(),
            ),
            ("grep -c value F", values(content).to_string()),
            ("sha256sum <F", format!("{sum}  -")),
            ("stat -c %s F", "0".to_owned()),
        ] {
            let out = rig.sh(&tool.replace('F', &file));
            assert_eq!(out.text().trim(), want, "{tool} of {size} bytes: {out:?}");
        }
    }
    assert_eq!(rig.reads("lab").len(), 1, "and of no other file");
    assert_eq!(rig.skill_status("lab/dyn")["state"], "dynamic");
}

#[test]
fn f37_c43_hr35_an_open_dynamic_file_is_one_snapshot_and_nothing_of_it_is_kept() {
    let mut rig = Rig::new();
    let put = |rig: &Rig, served: &str| rig.scene("lab", fresh(vec![dynamic(json!(served))]));
    let (one, two) = (text("one\n", 300_000), text("two\n", 200_001));
    put(&rig, &one);
    rig.up(&["lab"], DYNAMIC);
    // By its path, before anybody has looked into the directory.
    let mut old = File::open(rig.path("lab/dyn/out.txt")).unwrap();
    assert_eq!(rig.reads("lab").len(), 0, "opening reads nothing");
    let mut got = vec![0; 10];
    old.read_exact(&mut got).unwrap();
    put(&rig, &two);
    let mut new = File::open(rig.path("lab/dyn/out.txt")).unwrap();
    let mut all = String::new();
    new.read_to_string(&mut all).unwrap();
    assert!(all == two, "{} bytes", all.len());
    let mut rest = Vec::new();
    old.read_to_end(&mut rest).unwrap();
    got.extend(rest);
    assert!(got == one.as_bytes(), "{} bytes", got.len());
    let mut again = String::new();
    old.seek(SeekFrom::Start(0)).unwrap();
    old.read_to_string(&mut again).unwrap();
    assert!(again == one, "{} bytes", again.len());
    assert_eq!(
        rig.reads("lab")["skill://dyn/out.txt"],
        2,
        "one an open file"
    );
    drop((old, new));
    let cached = rig.stored("cache").into_iter().map(|(path, _)| path);
    let names = [&one, &two].map(|text| crate::rig::sha256(text.as_bytes()));
    let kept: Vec<_> = cached
        .filter(|p| names.iter().any(|name| p.ends_with(name)))
        .collect();
    assert!(kept.is_empty(), "{kept:?}");
    // It grows: each open gets all of what there is then, by tools that go by sizes too.
    for n in 1..4 {
        let grown = text("three\n", n * 400_000);
        put(&rig, &grown);
        let got = rig.cat("lab/dyn/out.txt");
        assert!(got == ok(&grown), "{n}: {:?}", got.map(|t| t.len()));
        let copied = rig
            .sh("cp $M/lab/dyn/out.txt copy && sha256sum <copy")
            .good();
        assert!(
            copied.starts_with(&crate::rig::sha256(grown.as_bytes())),
            "{n}"
        );
    }
    assert_eq!(rig.reads("lab")["skill://dyn/out.txt"], 2 + 2 * 3);
}

#[test]
fn f37_hr40_hr64_dynamic_files_have_a_budget_in_all_and_a_skill_md_that_fits_the_entry() {
    let mut rig = Rig::new();
    let big = |fill: &str| json!({"fill": fill, "size": 9 << 20});
    let big = json!({"path": "big", "files": {"a": big("a\n"), "b": big("b\n")}, "entry": {"resources": "dynamic"}});
    let liar = json!({"path": "liar", "entry": {"resources": "dynamic", "frontmatter": {"name": "liar", "description": "another"}}});
    rig.scene("lab", fresh(vec![big, liar, dynamic(json!("x\n"))]));
    rig.up(&["lab"], DYNAMIC);
    assert_eq!(rig.cat("lab/dyn/SKILL.md"), ok(&skill_md("dyn")));
    assert_eq!(rig.cat("lab/liar/SKILL.md"), Err("EIO"));
    let row = rig.refusal("lab", "lab/liar/SKILL.md");
    assert!(
        row["reason"].as_str().unwrap().contains("description"),
        "{row}"
    );
    for again in [false, true] {
        let a = rig.cat("lab/big/a");
        assert!(
            a == ok(&text("a\n", 9 << 20)),
            "{again}: {:?}",
            a.map(|t| t.len())
        );
    }
    assert_eq!(
        rig.cat("lab/big/b"),
        Err("EACCES"),
        "the other would be over it"
    );
    let row = rig.refusal("lab", "lab/big/b");
    assert!(row["next"].as_str().unwrap().contains("16 MiB"), "{row}");
}

#[test]
fn hr35_without_the_flag_a_dynamic_skill_is_listed_not_read_and_says_why() {
    let mut rig = Rig::new();
    rig.scene(
        "lab",
        fresh(vec![dynamic(json!("x\n")), skill("s", json!({"x": "x\n"}))]),
    );
    // The flag is of another server.
    rig.scene("other", fresh(vec![]));
    rig.up(&["lab", "other"], &["--allow-dynamic", "other"]);
    assert_eq!(rig.ls("lab"), Ok(vec!["dyn".into(), "s".into()]));
    assert_eq!(rig.ls("lab/dyn"), Ok(vec!["SKILL.md".into()]));
    assert_eq!(rig.cat("lab/dyn/SKILL.md"), Err("EACCES"));
    assert_eq!(rig.cat("lab/dyn/out.txt"), Err("ENOENT"));
    let reason = rig.declined("lab", "skill://dyn/SKILL.md");
    assert!(reason.contains("dynamic"), "{reason}");
    until("the reason in status.json", 5.0, || {
        let text = rig.cat(".mount-skills/lab/status.json").unwrap();
        let status: Value = serde_json::from_str(&text).unwrap();
        let mut declined = status["declined"].as_array().unwrap().iter();
        declined.any(|d| d["uri"] == "skill://dyn/SKILL.md" && d["reason"] == *reason)
    });
    dynamic_is_said(&rig);
    assert_eq!(rig.reads("lab"), BTreeMap::new());
}

/// Nothing about a dynamic skill can be approved, run or shown, and that is said.
fn dynamic_is_said(rig: &Rig) {
    let commands: [&[&str]; 6] = [
        &["gate", "lab/dyn"],
        &["gate", "lab/dyn/SKILL.md"],
        &["approve", "lab/dyn"],
        &["approve", "--exec", "lab/dyn"],
        &["show", "lab/dyn"],
        &["show", "lab/dyn", "out.txt"],
    ];
    for args in commands {
        let Out { code, err, .. } = rig.tell(args);
        assert!(
            code == Some(1) && err.contains(NO_SET),
            "{args:?}: {code:?}: {err}"
        );
    }
}

#[test]
fn hr35_gate_approve_and_show_say_that_a_dynamic_skill_is_one() {
    for approval in ["server", "each"] {
        let mut rig = Rig::new();
        rig.scene("lab", fresh(vec![dynamic(json!("x\n"))]));
        rig.up(&["lab"], &[DYNAMIC, &["--approval", approval]].concat());
        dynamic_is_said(&rig);
        assert_eq!(rig.reads("lab"), BTreeMap::new());
        assert_eq!(
            rig.ask(&["lock"])
                .lines()
                .filter(|l| !l.starts_with('#'))
                .count(),
            0
        );
        let read = if approval == "each" {
            Err("EACCES")
        } else {
            ok("x\n")
        };
        assert_eq!(rig.cat("lab/dyn/out.txt"), read, "{approval}");
        let reads = usize::from(approval == "server");
        assert_eq!(rig.reads("lab").len(), reads, "{approval}");
    }
}

// ---- walking ----

#[test]
fn hr46_hr47_a_skill_that_is_not_listed_is_walked_to_with_one_get_and_stays() {
    let mut rig = Rig::new();
    let skills = vec![
        skill("team/seen", json!({"x": "x\n"})),
        unlisted("quiet"),
        unlisted("team/still"),
    ];
    rig.scene("lab", without_directories(skills));
    rig.up(&["lab"], &[]);
    assert_eq!(rig.ls("lab"), Ok(vec!["team".into()]));
    assert_eq!(gets(&rig), Vec::<String>::new());
    for (path, names) in [
        ("quiet", &["quiet", "team"][..]),
        ("team/still", &["seen", "still"]),
    ] {
        let name = path.rsplit('/').next().unwrap();
        assert_eq!(
            rig.cat(&format!("lab/{path}/SKILL.md")),
            ok(&skill_md(name))
        );
        assert_eq!(rig.cat(&format!("lab/{path}/x")), ok(&format!("{path}\n")));
        let above = format!("lab/{path}").replace(&format!("/{name}"), "");
        assert_eq!(rig.ls(&above).unwrap(), names);
    }
    let want = ["quiet", "team/still"].map(md_of);
    assert_eq!(gets(&rig), want);
    assert_eq!(rig.reads("lab").len(), 4);
    assert_eq!(looks(&rig), Vec::<String>::new(), "not offered");
    // A listing without them says nothing about them.
    let lists = rig.seen("lab", "skills/list");
    rig.ask(&["refresh", "lab"]);
    assert!(rig.seen("lab", "skills/list") > lists);
    for path in ["quiet", "team/still"] {
        assert_eq!(rig.cat(&format!("lab/{path}/x")), ok(&format!("{path}\n")));
    }
}

#[test]
fn hr47_hr48_a_name_that_the_server_does_not_know_is_asked_for_once_and_is_enoent() {
    let mut rig = Rig::new();
    rig.scene(
        "lab",
        without_directories(vec![skill("team/seen", json!({}))]),
    );
    rig.up(&["lab"], &[]);
    for again in [false, true] {
        if again && is_root() {
            // From our memory and not from the kernel's.
            Rig::drop_kernel_caches();
        }
        for path in ["none", "team/none"] {
            assert_eq!(rig.cat(&format!("lab/{path}/SKILL.md")), Err("ENOENT"));
            assert_eq!(rig.cat(&format!("lab/{path}")), Err("ENOENT"));
        }
        assert_eq!(gets(&rig), ["none", "team/none"].map(md_of), "{again}");
    }
    assert_eq!(rig.reads("lab"), BTreeMap::new());
}

#[test]
fn hr47_a_question_without_an_answer_is_no_enoent_and_is_asked_again() {
    let mut rig = Rig::new();
    let mut scene = without_directories(vec![unlisted("quiet")]);
    let rule = json!({"method": "skills/get", "error": {"code": -32603, "message": "not now"}});
    scene["rules"] = json!([rule]);
    rig.scene("lab", scene.clone());
    rig.up(&["lab"], &[]);
    for n in 1..=2 {
        assert_eq!(rig.cat("lab/quiet/SKILL.md"), Err("EIO"));
        assert_eq!(gets(&rig), vec![md_of("quiet"); n]);
    }
    scene["rules"] = json!([]);
    rig.scene("lab", scene);
    assert_eq!(rig.cat("lab/quiet/SKILL.md"), ok(&skill_md("quiet")));
    assert_eq!(gets(&rig), vec![md_of("quiet"); 3]);
}

#[test]
fn hr47_names_that_no_skill_has_are_never_asked_for() {
    let mut rig = Rig::new();
    rig.scene(
        "lab",
        fresh(vec![skill("team/seen", json!({"d/x": "x\n"}))]),
    );
    rig.up(&["lab"], &[]);
    let before = rig.log("lab", "request").len();
    let mut names: Vec<String> = [
        "Upper",
        "under_score",
        ".git",
        "a.b",
        "README.md",
        "two words",
        "caf\u{e9}",
        "a:b",
        "a+b",
        "skill.md",
        "SKILL.md",
        "*",
    ]
    .map(String::from)
    .to_vec();
    names.extend(["build", "dist", "env", "target", "vendor", "venv"].map(String::from));
    names.push("a".repeat(65));
    // Inside a skill its entry knows all names.
    let inside = [
        "team/seen/none",
        "team/seen/d/none",
        "team/seen/SKILL.md/none",
    ]
    .map(String::from);
    let below = names
        .iter()
        .filter(|n| *n != "SKILL.md")
        .map(|n| format!("team/{n}"));
    let all: Vec<String> = below.chain(names.clone()).chain(inside).collect();
    let found = stat_all(&rig, &all);
    assert_eq!(found.len(), all.len());
    for (name, errno) in found {
        let want = if name.ends_with("SKILL.md/none") {
            "ENOTDIR"
        } else {
            "ENOENT"
        };
        assert_eq!(errno, want, "{name}");
    }
    let requests = rig.log("lab", "request");
    assert_eq!(requests.len(), before, "{:?}", &requests[before..]);
    // Just not one of those.
    assert_eq!(
        stat_all(&rig, &["a".repeat(64)])
            .into_values()
            .next()
            .unwrap(),
        "ENOENT"
    );
    assert_eq!(gets(&rig), [md_of(&"a".repeat(64))]);
}

#[test]
fn hr47_names_over_the_ration_are_eagain_and_are_asked_for_later() {
    let mut rig = Rig::new();
    rig.scene("lab", without_directories(vec![unlisted("n150")]));
    rig.up(&["lab"], &[]);
    let names: Vec<String> = (0..200).map(|n| format!("n{n}")).collect();
    let found = stat_all(&rig, &names);
    let with = |errno: &str| {
        let mut with: Vec<String> = found
            .iter()
            .filter(|(_, e)| *e == errno)
            .map(|(n, _)| md_of(n))
            .collect();
        with.sort();
        with
    };
    let mut got = gets(&rig);
    assert_eq!(
        got[..5],
        names[..5].iter().map(|n| md_of(n)).collect::<Vec<_>>()
    );
    got.retain(|uri| *uri != md_of("n150"));
    got.sort();
    assert_eq!(
        with("ENOENT"),
        got,
        "who was told that it is not there: that was asked for"
    );
    assert!(!with("EAGAIN").is_empty(), "{found:?}");
    let rest = ["EAGAIN", "found"]
        .map(|e| with(e).len())
        .iter()
        .sum::<usize>();
    assert_eq!(rest + got.len(), names.len(), "{found:?}");
    assert_ne!(found["n150"], "ENOENT");
    until("a walk within the ration", 20.0, || {
        match rig.cat("lab/n150/x") {
            Ok(text) => text == "n150\n",
            Err(e) => {
                assert_eq!(e, "EAGAIN");
                false
            }
        }
    });
    let times = gets(&rig).into_iter().filter(|uri| *uri == md_of("n150"));
    assert_eq!(times.count(), 1);
}

#[test]
fn hr47_hr117_a_walk_that_gets_no_answer_ends_and_holds_up_nobody() {
    let mut rig = Rig::new();
    let mut scene = without_directories(vec![unlisted("quiet"), skill("s", json!({"x": "x\n"}))]);
    let rule = json!({"method": "skills/get", "uri": md_of("never"), "hang": true});
    scene["rules"] = json!([rule]);
    rig.scene("lab", scene);
    rig.up(&["lab"], &[]);
    let waiting = rig.cat_later("lab/never/SKILL.md");
    until("its question", 10.0, || gets(&rig) == [md_of("never")]);
    assert_eq!(rig.cat("lab/s/x"), ok("x\n"));
    assert_eq!(rig.cat("lab/quiet/x"), ok("quiet\n"));
    let got = rig.outcome("never", waiting.finish(20.0));
    assert_eq!(got, Err("ETIMEDOUT"));
}

#[test]
fn hr35_hr47_a_dynamic_skill_that_is_walked_to_is_declined_as_well() {
    let mut rig = Rig::new();
    let mut skill = dynamic(json!("x\n"));
    skill["listed"] = json!(false);
    rig.scene("lab", without_directories(vec![skill]));
    rig.up(&["lab"], &[]);
    assert_eq!(rig.cat("lab/dyn/SKILL.md"), Err("EACCES"));
    assert_eq!(gets(&rig), [md_of("dyn")]);
    assert_eq!(rig.reads("lab"), BTreeMap::new());
    assert!(rig.declined("lab", &md_of("dyn")).contains("dynamic"));
}

#[test]
fn hr46_hr47_a_prefix_that_no_entry_has_is_walked_through_by_its_directory() {
    let mut rig = Rig::new();
    rig.scene("lab", fresh(vec![unlisted("other/deep")]));
    rig.up(&["lab"], &[]);
    assert_eq!(rig.ls("lab"), Ok(vec![]));
    assert_eq!(rig.cat("lab/other/deep/SKILL.md"), ok(&skill_md("deep")));
    assert_eq!(rig.cat("lab/other/deep/x"), ok("other/deep\n"));
    assert_eq!(gets(&rig), ["other", "other/deep"].map(md_of));
    assert_eq!(looks(&rig), ["skill://other"]);
    assert_eq!(rig.ls("lab"), Ok(vec!["other".into()]));
}

// ---- prefix directories ----

/// A prefix with one skill that is listed and things that are not: two skills, and a file that is
/// no skill's.
fn team() -> Vec<Value> {
    let loose = json!({"text": "loose\n", "uri": "skill://team/loose.txt", "listed": false});
    vec![
        skill("team/seen", json!({"x": "x\n", "loose": loose})),
        unlisted("team/quiet"),
        unlisted("team/sub/deep"),
    ]
}

#[test]
fn hr94_hr95_what_a_directory_has_beyond_the_listing_appears_as_directories() {
    let mut rig = Rig::new();
    rig.scene("lab", fresh(team()));
    rig.up(&["lab"], &[]);
    assert_eq!(looks(&rig), Vec::<String>::new());
    until("the rest of the prefix", 10.0, || {
        rig.ls("lab/team").unwrap() == ["quiet", "seen", "sub"]
    });
    assert_eq!(
        looks(&rig),
        ["skill://team"],
        "once, however often it is listed"
    );
    until("the rest of what is below", 10.0, || {
        rig.ls("lab/team/sub").unwrap() == ["deep"]
    });
    assert_eq!(looks(&rig), ["skill://team", "skill://team/sub"]);
    for path in ["lab/team/quiet", "lab/team/sub/deep"] {
        assert!(fs::metadata(rig.path(path)).unwrap().is_dir(), "{path}");
    }
    assert_eq!(
        rig.cat("lab/team/loose.txt"),
        Err("ENOENT"),
        "a file is no skill"
    );
    // A directory is no skill yet, and looking has asked for none.
    assert_eq!(gets(&rig), Vec::<String>::new());
    assert_eq!(rig.skill_status("lab/team/quiet"), Value::Null);
    assert_eq!(rig.reads("lab"), BTreeMap::new());
    // The directories of a listed skill are the entry's (HR-90).
    assert_eq!(rig.ls("lab/team/seen").unwrap(), ["SKILL.md", "x"]);
    assert_eq!(looks(&rig).len(), 2);
}

#[test]
fn hr47_hr95_the_skill_md_of_a_directory_that_the_server_showed_is_walked_to() {
    let mut rig = Rig::new();
    rig.scene("lab", fresh(team()));
    rig.up(&["lab"], &[]);
    until("the rest of the prefix", 10.0, || {
        rig.ls("lab/team").unwrap() == ["quiet", "seen", "sub"]
    });
    assert_eq!(rig.cat("lab/team/quiet/SKILL.md"), ok(&skill_md("quiet")));
    assert_eq!(rig.cat("lab/team/quiet/x"), ok("team/quiet\n"));
    assert_eq!(gets(&rig), [md_of("team/quiet")]);
    assert_eq!(rig.skill_status("lab/team/quiet")["state"], "held");
}

#[test]
fn hr90_hr91_hr92_hr95_list_live_prints_what_is_there_and_marks_what_no_entry_has() {
    let mut rig = Rig::new();
    rig.scene("lab", fresh(team()));
    rig.up(&["lab"], &[]);
    let live = |rig: &Rig, what: &str| {
        let text = rig.ask(&["list", "--live", what]);
        let mut lines: Vec<String> = text.lines().map(String::from).collect();
        lines.sort();
        lines
    };
    assert_eq!(
        live(&rig, "lab/team"),
        [
            "lab/team/loose.txt  (not in any entry)",
            "lab/team/quiet/  (not in any entry)",
            "lab/team/seen/",
            "lab/team/sub/  (not in any entry)",
        ]
    );
    assert_eq!(
        live(&rig, "lab/team/sub"),
        ["lab/team/sub/deep/  (not in any entry)"]
    );
    assert_eq!(
        live(&rig, "lab/team/seen"),
        ["lab/team/seen/SKILL.md", "lab/team/seen/x"]
    );
    assert_eq!(
        looks(&rig),
        ["skill://team", "skill://team/sub", "skill://team/seen"]
    );
    // It opened and changed nothing.
    assert_eq!((gets(&rig), rig.reads("lab")), (vec![], BTreeMap::new()));
    assert_eq!(rig.skill_status("lab/team/seen")["state"], "listed");

    // A file that comes while the skill is held is marked, and is none of the skill.
    assert_eq!(rig.cat("lab/team/seen/x"), ok("x\n"));
    let mut next = team();
    next[0]["files"]["new.txt"] = json!("new\n");
    rig.scene("lab", fresh(next));
    let path = rig.path("lab/team/seen").display().to_string();
    for name in ["lab/team/seen", &path] {
        assert_eq!(
            live(&rig, name),
            [
                "lab/team/seen/SKILL.md",
                "lab/team/seen/new.txt  (not in any entry)",
                "lab/team/seen/x",
            ]
        );
    }
    let rows: Value =
        serde_json::from_str(&rig.ask(&["list", "--live", "lab/team/seen", "--json"])).unwrap();
    let new = rows
        .as_array()
        .unwrap()
        .iter()
        .find(|r| r["path"] == "lab/team/seen/new.txt");
    assert_eq!(new.unwrap()["in_entry"], false, "{rows}");
    assert_eq!(rig.ls("lab/team/seen").unwrap(), ["SKILL.md", "x"]);
    assert_eq!(rig.cat("lab/team/seen/new.txt"), Err("ENOENT"));
    assert_eq!(rig.skill_status("lab/team/seen")["state"], "held");
    assert_eq!(gets(&rig), Vec::<String>::new());

    for (what, word) in [
        ("lab/none", "Not a directory"),
        ("lab", "name a directory of lab"),
        ("none/x", "the labels are: lab"),
    ] {
        let out = rig.tell(&["list", "--live", what]);
        assert!(
            out.code == Some(1) && out.out.is_empty() && out.err.contains(word),
            "{what}: {out:?}"
        );
    }
}

#[test]
fn hr93_a_listed_file_that_the_server_no_longer_has_is_an_error_until_the_entry_says_so() {
    let mut rig = Rig::new();
    let files = json!({"x": "x\n", "y": "y\n"});
    let mut scene = fresh(vec![skill("both", files.clone()), skill("moved", files)]);
    rig.scene("lab", scene.clone());
    rig.up(&["lab"], &[]);
    // The entry goes on listing it: its name stays, and nothing else fails.
    let gone = json!({"code": -32602, "message": "no such file"});
    let rule = json!({"method": "resources/read", "uri": "skill://both/x", "error": gone});
    scene["rules"] = json!([rule]);
    // The entry of the other says so, and nobody has asked for that yet.
    scene["skills"][1] = skill("moved", json!({"y": "y\n"}));
    rig.scene("lab", scene);
    assert_eq!(rig.cat("lab/both/x"), Err("EIO"));
    assert_eq!(rig.ls("lab/both").unwrap(), ["SKILL.md", "x", "y"]);
    assert_eq!(rig.cat("lab/both/y"), ok("y\n"));
    assert_eq!(gets(&rig), [md_of("both")]);
    assert_eq!(rig.ls("lab/moved").unwrap(), ["SKILL.md", "x", "y"]);
    assert_eq!(rig.cat("lab/moved/x"), Err("ESTALE"));
    assert_eq!(gets(&rig), ["both", "moved"].map(md_of));
    assert_eq!(rig.ls("lab/moved").unwrap(), ["SKILL.md", "y"]);
    assert_eq!(rig.cat("lab/moved/x"), Err("ENOENT"));
    assert_eq!(rig.cat("lab/moved/y"), ok("y\n"));
    assert_eq!(looks(&rig), Vec::<String>::new());
}

#[test]
fn hr95_list_live_of_a_server_without_directories_says_so_and_asks_nothing() {
    let mut rig = Rig::new();
    rig.scene("lab", without_directories(team()));
    rig.up(&["lab"], &[]);
    let out = rig.tell(&["list", "--live", "lab/team"]);
    assert!(
        out.code == Some(1) && out.err.contains("directoryRead"),
        "{out:?}"
    );
    assert_eq!(rig.ls("lab/team").unwrap(), ["seen"]);
    assert_eq!(looks(&rig), Vec::<String>::new());
}

/// A scene in which directories cannot be read.
fn failing(mut scene: Value) -> Value {
    let error = json!({"code": -32603, "message": "not now"});
    scene["rules"] = json!([{"method": "resources/directory/read", "error": error}]);
    scene
}

#[test]
fn hr48_hr95_a_directory_that_cannot_be_read_hides_nothing() {
    let mut rig = Rig::new();
    let mut skills = team();
    skills.push(skill("seen", json!({"x": "x\n"})));
    rig.scene("lab", failing(fresh(skills)));
    rig.up(&["lab"], &[]);
    until("a look that fails", 10.0, || {
        assert_eq!(rig.ls("lab/team").unwrap(), ["seen"]);
        !looks(&rig).is_empty()
    });
    assert_eq!(rig.ls("lab").unwrap(), ["seen", "team"]);
    assert_eq!(rig.cat("lab/team/seen/x"), ok("x\n"));
    assert_eq!(rig.cat("lab/team/seen/SKILL.md"), ok(&skill_md("seen")));
    // A name that the get does not know may still be a directory: nobody can tell.
    assert_eq!(rig.cat("lab/team/sub/deep/x"), Err("EIO"));
    assert_eq!(gets(&rig), [md_of("team/sub")]);
    let out = rig.tell(&["list", "--live", "lab/team"]);
    assert!(
        out.code == Some(1) && out.out.is_empty() && out.err.contains("not now"),
        "{out:?}"
    );
    assert_eq!(rig.ls("lab/team").unwrap(), ["seen"]);
    assert_eq!(rig.cat("lab/team/seen/x"), ok("x\n"));
}

#[test]
fn hr95_what_a_directory_showed_stays_when_it_cannot_be_read_any_more() {
    let mut rig = Rig::new();
    rig.scene("lab", fresh(team()));
    rig.up(&["lab"], &[]);
    let all = ["quiet", "seen", "sub"];
    until("the rest of the prefix", 10.0, || {
        rig.ls("lab/team").unwrap() == all
    });
    rig.scene("lab", failing(fresh(team())));
    assert_eq!(rig.tell(&["list", "--live", "lab/team"]).code, Some(1));
    if is_root() {
        Rig::drop_kernel_caches();
    }
    assert_eq!(rig.ls("lab/team").unwrap(), all);
    assert_eq!(rig.cat("lab/team/seen/x"), ok("x\n"));
    assert_eq!(rig.cat("lab/team/quiet/SKILL.md"), ok(&skill_md("quiet")));
}

#[test]
fn hr95_a_directory_that_could_not_be_read_is_looked_into_again() {
    let _kept = Rig::keep_kernel_caches();
    let mut rig = Rig::new();
    rig.scene("lab", failing(fresh(team())));
    rig.up(&["lab"], &[]);
    until("a look that fails", 10.0, || {
        assert_eq!(rig.ls("lab/team").unwrap(), ["seen"]);
        !looks(&rig).is_empty()
    });
    rig.scene("lab", fresh(team()));
    until("the rest of the prefix", 10.0, || {
        rig.ls("lab/team").unwrap() == ["quiet", "seen", "sub"]
    });
}

#[test]
fn hr94_the_directory_of_a_dynamic_skill_that_cannot_be_read_is_an_error_and_not_empty() {
    let mut rig = Rig::new();
    let skills = || vec![dynamic(json!("x\n"))];
    rig.scene("lab", failing(fresh(skills())));
    rig.up(&["lab"], DYNAMIC);
    assert_eq!(rig.ls("lab/dyn"), Err("EIO"));
    assert_eq!(rig.cat("lab/dyn/out.txt"), Err("EIO"));
    assert_eq!(rig.cat("lab/dyn/SKILL.md"), ok(&skill_md("dyn")));
    rig.scene("lab", fresh(skills()));
    assert_eq!(rig.ls("lab/dyn").unwrap(), ["SKILL.md", "out.txt"]);
    assert_eq!(rig.cat("lab/dyn/out.txt"), ok("x\n"));
    assert_eq!(rig.cat("lab/dyn/none.txt"), Err("ENOENT"));
}

#[test]
fn hr95_a_directory_that_only_directories_show_is_never_listed_as_empty() {
    let mut rig = Rig::new();
    let mut scene = fresh(team());
    rig.scene("lab", scene.clone());
    rig.up(&["lab"], &[]);
    until("the rest of the prefix", 10.0, || {
        rig.ls("lab/team").unwrap() == ["quiet", "seen", "sub"]
    });
    scene["rules"] = json!([{"method": "resources/directory/read", "delay": 0.5}]);
    rig.scene("lab", scene);
    assert_eq!(rig.ls("lab/team/sub"), Ok(vec!["deep".into()]));
    rig.scene("lab", failing(fresh(team())));
    assert_eq!(rig.ls("lab/team/quiet"), Err("EIO"));
}

#[test]
fn hr46_hr95_looking_into_a_prefix_does_not_hide_the_files_of_a_skill_in_it() {
    let mut rig = Rig::new();
    rig.scene("lab", fresh(team()));
    rig.up(&["lab"], &[]);
    until("the rest of the prefix", 10.0, || {
        rig.ls("lab/team").unwrap() == ["quiet", "seen", "sub"]
    });
    assert_eq!(rig.cat("lab/team/quiet/x"), ok("team/quiet\n"));
    assert_eq!(rig.ls("lab/team/quiet").unwrap(), ["SKILL.md", "x"]);
}
