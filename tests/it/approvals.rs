//! Approvals: bound to one exact set, lost when it moves, never gained by damage or by accident.

use crate::rig::{BIN, Content, Rig, mounts_at, ok, run, skill, skill_md, until, wait};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;

const EACH: &[&str] = &["--approval", "each"];
const HOUR_MS: u64 = 3_600_000;

/// A listing that is stale at once.
fn scene(skills: Vec<Value>) -> Value {
    json!({"skills": skills, "ttlMs": 0})
}

fn verdict_files(rig: &Rig) -> Vec<PathBuf> {
    let files = rig.stored("state").into_iter().map(|(p, _)| p);
    files.filter(|p| p.ends_with("verdicts.json")).collect()
}

/// Kills the daemon, starts it again, and waits for its listings.
fn crash(rig: &mut Rig, labels: &[&str], flags: &[&str]) {
    rig.kill_daemon();
    rig.nothing_left();
    rig.up(labels, flags);
}

const LAPSED: &str = "changed, needs-approval";

#[test]
fn hr75_hr78_hr107_hr108_hr110_approved_is_one_exact_set_and_another_ends_it_for_good() {
    let mut rig = Rig::new();
    let put = |rig: &Rig, run: &str| {
        let files = json!({"run.sh": run, "data/a.txt": "aaa\n", "unread.txt": "u\n"});
        rig.scene("lab", scene(vec![skill("s", files)]));
    };
    let (a, b) = ("echo a\n", "echo b, longer\n");
    put(&rig, a);
    rig.up(&["lab"], EACH);
    // Not approved: everything is seen, nothing is read.
    let all = ["SKILL.md", "run.sh", "data/a.txt", "unread.txt"];
    let cats = |rig: &Rig| all.map(|f| rig.cat(&format!("lab/s/{f}")));
    let refused = |errno| all.map(|_| -> Content { Err(errno) });
    let long = rig
        .sh("ls -lR $M/lab && cd $M/lab/s && find . -type f -printf '%P %s\n' | sort")
        .good();
    assert!(
        long.contains(&format!("SKILL.md {}", skill_md("s").len())),
        "{long}"
    );
    assert!(
        long.contains("run.sh 7") && long.contains("data/a.txt 4"),
        "{long}"
    );
    assert_eq!(cats(&rig), refused("EACCES"));
    assert_eq!(rig.skill_status("lab/s")["state"], "needs-approval");
    let why = rig.refusal("lab", "lab/s/SKILL.md");
    assert!(
        why["next"]
            .to_string()
            .contains("mount-skills approve lab/s"),
        "{why}"
    );

    // Approving wants a terminal or the set, and says what it is about.
    let asked = rig.tell(&["approve", "lab/s"]);
    assert_eq!(asked.code, Some(2), "{asked:?}");
    let set = rig.set("lab/s");
    let shown = asked.text();
    for word in [
        &set,
        "run.sh",
        "7 B",
        "data/a.txt",
        "unread.txt",
        "skill://s/SKILL.md",
    ] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    assert!(asked.err.contains(&format!("--set {set}")), "{asked:?}");
    let other = format!("sha256:{}", "0".repeat(64));
    assert_eq!(
        rig.tell(&["approve", "--set", &other, "lab/s"]).code,
        Some(3),
        "another set"
    );
    assert_eq!(
        rig.tell(&["approve", "--set", "sha256:12", "lab/s"]).code,
        Some(2)
    );
    assert_eq!(
        rig.tell(&["approve", "--set", &set, "lab"]).code,
        Some(1),
        "a label is no skill"
    );
    assert_eq!(cats(&rig), refused("EACCES"));
    let by_path = rig.path("lab/s/SKILL.md").display().to_string();
    assert!(
        rig.ask(&["approve", "--set", &set, &by_path])
            .contains("approved")
    );
    assert_eq!(
        rig.reads("lab").len(),
        0,
        "HR-78: nothing is fetched to approve it"
    );

    assert_eq!(rig.server("lab")["refused"], json!([]), "that is settled");

    // Approved: read, held open and mapped; all but one file.
    for (file, text) in [
        ("SKILL.md", &*skill_md("s")),
        ("run.sh", a),
        ("data/a.txt", "aaa\n"),
    ] {
        assert_eq!(rig.cat(&format!("lab/s/{file}")), ok(text));
        rig.blob(text.as_bytes());
    }
    rig.in_state("lab/s", "held");
    let (mut script, mut same) = (rig.keep("lab/s/run.sh"), rig.keep("lab/s/data/a.txt"));
    let reads = rig.reads("lab");

    // One script moves: seen, and not another byte is served, of any file, by any way.
    put(&rig, b);
    let status = rig.in_state("lab/s", LAPSED);
    assert_eq!(status["changes"]["rotated"], json!(["run.sh"]));
    let closed = |script: &mut crate::rig::Keeper, same: &mut crate::rig::Keeper, what: &str| {
        for keeper in [script, same] {
            assert_eq!(
                (keeper.fd(), keeper.map()),
                (Err("ESTALE"), Err("SIGBUS")),
                "{what}"
            );
        }
    };
    assert_eq!(cats(&rig), refused("ESTALE"));
    closed(&mut script, &mut same, "lapsed");
    assert_eq!(
        rig.tell(&["approve", "--set", &set, "lab/s"]).code,
        Some(3),
        "HR-110: it moved"
    );
    assert_eq!(cats(&rig), refused("ESTALE"));
    // Back to the old set: it does not revive.
    put(&rig, a);
    rig.seen_as("lab/s", "the old set", |s| s["changes"].is_null());
    assert_eq!(rig.skill_status("lab/s")["state"], LAPSED);
    assert_eq!(cats(&rig), refused("ESTALE"));
    closed(&mut script, &mut same, "A, B, A");
    crash(&mut rig, &["lab"], EACH);
    assert_eq!(cats(&rig), refused("ESTALE"), "nor by a restart");
    assert_eq!(rig.reads("lab"), reads, "nothing was fetched meanwhile");

    // Approved anew, the new set reads at once; also after restarts of both kinds.
    put(&rig, b);
    rig.seen_as("lab/s", "the new set", |s| !s["changes"].is_null());
    rig.approve("lab/s");
    assert_eq!(rig.cat("lab/s/run.sh"), ok(b));
    assert_eq!(rig.cat("lab/s/unread.txt"), ok("u\n"));
    crash(&mut rig, &["lab"], EACH);
    assert_eq!(rig.cat("lab/s/run.sh"), ok(b), "after a crash");
    let target = rig.scripted("lab");
    rig.remount(&[("lab", &target)], EACH);
    rig.ready("lab");
    assert_eq!(rig.cat("lab/s/run.sh"), ok(b), "after a regular end");
    for (path, mode) in rig.stored("state").iter().filter(|(p, _)| p.is_file()) {
        assert_eq!(*mode, 0o600, "{path:?}");
    }

    // A damaged file approves nothing, whatever is wrong with it.
    rig.stop();
    let file = verdict_files(&rig).remove(0);
    let good = fs::read(&file).unwrap();
    let flip = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        bytes
    };
    for (what, bytes) in [
        ("a digit of the set", flip(good.len() - 20)),
        ("the digest line", flip(10)),
        ("cut", good[..good.len() / 2].to_vec()),
        ("empty", Vec::new()),
    ] {
        fs::write(&file, bytes).unwrap();
        rig.up(&["lab"], EACH);
        assert_eq!(cats(&rig), refused("EACCES"), "{what}");
        assert!(
            rig.words()
                .contains("lab: verdicts.json in the state is damaged"),
            "{what}"
        );
        rig.kill_daemon();
        rig.nothing_left();
    }
    fs::write(&file, &good).unwrap();
    rig.up(&["lab"], EACH);
    assert_eq!(
        rig.cat("lab/s/run.sh"),
        ok(b),
        "the whole file counts again"
    );
}

#[test]
fn c59_hr35_hr36_hr59_hr107_every_kind_of_change_ends_an_approval_and_no_other() {
    let mut rig = Rig::new();
    let a = |name: &str| format!("a of {name}\n");
    let files =
        |name: &str| json!({"run.sh": "run\n", "a.txt": a(name), "in/SKILL.md": skill_md("in")});
    let base = |name: &str| skill(name, files(name));
    let change = |name: &str, key: &str, file: Value| {
        let mut of = base(name);
        of["files"][key] = file;
        of["files"]
            .as_object_mut()
            .unwrap()
            .retain(|_, v| !v.is_null());
        of
    };
    let mut renamed = change("renamed", "a.txt", Value::Null);
    renamed["files"]["b.txt"] = json!(a("renamed"));
    let mut dynamic = base("dynamic");
    dynamic["entry"] = json!({"resources": "dynamic"});
    let changed = vec![
        change("script", "run.sh", json!("RUN\n")),
        change("added", "new.txt", json!("new\n")),
        change("removed", "a.txt", Value::Null),
        renamed,
        change("inner", "in/SKILL.md", json!(skill_md("in") + "more\n")),
        change("md", "SKILL.md", json!(skill_md("md") + "more\n")),
    ];
    let names = ["script", "added", "removed", "renamed", "inner", "md"];
    let mut at_first: Vec<Value> = names.iter().map(|n| base(n)).collect();
    let rest = ["kept", "dynamic", "invalid", "withdrawn", "byget"];
    at_first.extend(rest.iter().map(|n| base(n)));
    rig.scene("lab", scene(at_first.clone()));
    rig.up(&["lab"], EACH);
    for name in names.iter().chain(&rest) {
        rig.approve(&format!("lab/{name}"));
        assert_eq!(rig.cat(&format!("lab/{name}/run.sh")), ok("run\n"));
    }
    let (mut kept, mut invalid) = (base("kept"), base("invalid"));
    // The order of the rows and of the frontmatter is no change; a word on the side is none.
    kept["files"] = json!({"a.txt": a("kept"), "in/SKILL.md": skill_md("in"), "run.sh": "run\n"});
    kept["entry"] = json!({"_meta": {"x": 1}});
    invalid["entry"] = json!({"resources": null});
    let mut next = changed;
    next.extend([kept, dynamic, invalid, base("byget")]);
    rig.scene("lab", scene(next.clone()));
    for name in names {
        rig.in_state(&format!("lab/{name}"), LAPSED);
        for file in ["run.sh", "SKILL.md", "in/SKILL.md"] {
            assert_eq!(
                rig.cat(&format!("lab/{name}/{file}")),
                Err("ESTALE"),
                "{name}/{file}"
            );
        }
    }
    // What can no longer be loaded at all is as stale; what is only withdrawn keeps its verdict.
    for name in ["dynamic", "invalid"] {
        assert_eq!(
            rig.cat(&format!("lab/{name}/run.sh")),
            Err("ESTALE"),
            "{name}"
        );
    }
    assert_eq!(rig.cat("lab/kept/in/SKILL.md"), ok(&skill_md("in")));
    assert_eq!(rig.cat("lab/withdrawn/run.sh"), ok("run\n"), "held");
    assert_eq!(rig.cat("lab/withdrawn/a.txt"), Err("ESTALE"), "HR-77");
    // All as it was: none of them comes back; withdrawn and kept were never another set.
    rig.scene("lab", scene(at_first.clone()));
    rig.in_state("lab/withdrawn", "held");
    for name in names.iter().chain(&["dynamic", "invalid"]) {
        rig.seen_as(&format!("lab/{name}"), "as it was", |s| {
            s["changes"].is_null() && !s.is_null()
        });
        assert_eq!(
            rig.cat(&format!("lab/{name}/run.sh")),
            Err("ESTALE"),
            "{name}"
        );
    }
    for name in ["kept", "withdrawn"] {
        assert_eq!(rig.cat(&format!("lab/{name}/a.txt")), ok(&a(name)));
    }

    // A change that only a read and the get after it find out (HR-59): the listing is fresh, and
    // no other is on its way.
    let mut still = scene(at_first);
    still["ttlMs"] = json!(HOUR_MS);
    rig.scene("lab", still);
    rig.ask(&["refresh", "lab"]);
    let (mut lists, mut since) = (0, std::time::Instant::now());
    until("no more listings", 20.0, || {
        let now = rig.seen("lab", "skills/list");
        if now != lists {
            (lists, since) = (now, std::time::Instant::now());
        }
        since.elapsed() > std::time::Duration::from_secs(3)
    });
    let mut quiet = scene(vec![change("byget", "a.txt", json!("A, other\n"))]);
    quiet["ttlMs"] = json!(HOUR_MS);
    rig.scene("lab", quiet);
    let gets = rig.seen("lab", "skills/get");
    assert_eq!(rig.cat("lab/byget/a.txt"), Err("ESTALE"));
    assert!(rig.seen("lab", "skills/get") > gets);
    assert_eq!(
        rig.cat("lab/byget/run.sh"),
        Err("ESTALE"),
        "the files that did not change as well"
    );
    assert_eq!(rig.skill_status("lab/byget")["state"], LAPSED);
    rig.approve("lab/byget");
    assert_eq!(rig.cat("lab/byget/a.txt"), ok("A, other\n"));

    // After a restart and an unchanged listing the verdict is what it was. What has no set is
    // covered by none, and a file that the set does not name is not there.
    let mut secret = base("kept");
    secret["files"]["secret.txt"] = json!({"text": "secret\n", "listed": false});
    let mut dynamic = base("byget");
    dynamic["entry"] = json!({"resources": "dynamic"});
    rig.scene("lab", scene(vec![secret, dynamic]));
    let target = rig.scripted("lab");
    let flags = &["--approval", "each", "--allow-dynamic", "lab"];
    rig.remount(&[("lab", &target)], flags);
    rig.ready("lab");
    for _ in 0..2 {
        assert_eq!(rig.cat("lab/kept/run.sh"), ok("run\n"));
        assert_eq!(rig.cat("lab/kept/secret.txt"), Err("ENOENT"));
        let denied = rig.cat("lab/byget/SKILL.md");
        assert!(matches!(denied, Err("EACCES" | "ESTALE")), "{denied:?}");
        rig.ask(&["refresh", "lab"]);
    }
    assert!(!rig.reads("lab").contains_key("skill://kept/secret.txt"));
}

#[test]
fn hr35_hr110_dynamic_and_declined_skills_cannot_be_approved() {
    let mut rig = Rig::new();
    let dynamic = json!({"path": "dyn", "files": {"x": "x\n"}, "entry": {"resources": "dynamic"}});
    let bad = json!({"path": "bad", "entry": {"resources": null}});
    rig.scene(
        "lab",
        scene(vec![dynamic, bad, skill("s", json!({"x": "x\n"}))]),
    );
    rig.up(&["lab"], EACH);
    let some = rig.set("lab/s");
    for name in ["lab/dyn", "lab/bad"] {
        let asked = rig.tell(&["approve", name]);
        assert!(matches!(asked.code, Some(1..)), "{asked:?}");
        for args in [
            &["approve", "--set", &some, name][..],
            &["approve", "--exec", "--set", &some, name],
        ] {
            let out = rig.tell(args);
            assert!(
                matches!(out.code, Some(1 | 3)) && !out.err.is_empty(),
                "{out:?}"
            );
        }
        assert_eq!(rig.tell(&["gate", name]).code, Some(1));
        assert_eq!(rig.cat(&format!("{name}/SKILL.md")), Err("EACCES"));
    }
    assert_eq!(
        verdict_files(&rig),
        Vec::<PathBuf>::new(),
        "nothing is stored"
    );
    assert_eq!(rig.reads("lab").len(), 0);
}

#[test]
fn c57_two_daemons_that_store_verdicts_at_once_lose_none() {
    let mut rig = Rig::new();
    let names: Vec<String> = (0..12).map(|n| format!("s{n}")).collect();
    let skills = names
        .iter()
        .map(|n| skill(n, json!({"x": "x\n"})))
        .collect();
    rig.scene("lab", scene(skills));
    let target = rig.scripted("lab");
    rig.up(&["lab"], EACH);
    let mut other = Rig::beside(&rig, "second");
    other.mount(&[("lab", &target)], EACH);
    other.ready("lab");
    std::thread::scope(|scope| {
        for (i, on) in [&rig, &other].into_iter().enumerate() {
            let mine = names.iter().skip(i).step_by(2);
            scope.spawn(move || {
                for name in mine {
                    on.approve(&format!("lab/{name}"));
                }
                on.ask(&["revoke", &format!("lab/s{}", 10 + i)]);
            });
        }
    });
    assert_eq!(rig.cat("lab/s0/x"), ok("x\n"));
    assert_eq!(
        rig.cat("lab/s1/x"),
        Err("EACCES"),
        "a running daemon goes by what it was told"
    );
    other.stop();
    drop(other);
    let target = rig.scripted("lab");
    rig.remount(&[("lab", &target)], EACH);
    rig.ready("lab");
    for (n, name) in names.iter().enumerate() {
        let want = if n < 10 { ok("x\n") } else { Err("EACCES") };
        assert_eq!(rig.cat(&format!("lab/{name}/x")), want, "{name}");
    }
    assert_eq!(rig.skill_status("lab/s10")["state"], "revoked");
    assert_eq!(verdict_files(&rig).len(), 1);
}

#[test]
fn hr108_an_approval_that_was_found_lapsed_stays_so_whoever_saw_it_first() {
    let mut rig = Rig::new();
    let put = |rig: &Rig, x: &str| rig.scene("lab", scene(vec![skill("s", json!({"x": x}))]));
    put(&rig, "a\n");
    rig.up(&["lab"], EACH);
    let set = rig.set("lab/s");
    rig.approve("lab/s");
    assert_eq!(rig.cat("lab/s/x"), ok("a\n"));
    rig.stop();
    // A mount with verdicts of its own sees the other set.
    put(&rig, "b\n");
    let lock = rig.dir().join("lock").display().to_string();
    fs::write(&lock, "# nothing\n").unwrap();
    rig.up(&["lab"], &["--locked", &lock]);
    rig.in_state("lab/s", "needs-approval");
    rig.stop();
    rig.up(&["lab"], EACH);
    rig.in_state("lab/s", LAPSED);
    put(&rig, "a\n");
    rig.seen_as("lab/s", "the old set", |s| s["set"] == set.as_str());
    assert_eq!(rig.cat("lab/s/x"), Err("ESTALE"));
    let target = rig.scripted("lab");
    rig.remount(&[("lab", &target)], EACH);
    rig.ready("lab");
    assert_eq!(rig.cat("lab/s/x"), Err("ESTALE"), "A, B, A");
}

#[test]
fn hr112_what_one_daemon_revoked_is_not_given_back_by_another_that_did_not_hear_of_it() {
    let mut rig = Rig::new();
    let put = |rig: &Rig, x: &str| rig.scene("lab", scene(vec![skill("s", json!({"x": x}))]));
    put(&rig, "a\n");
    let target = rig.scripted("lab");
    rig.up(&["lab"], &[]);
    rig.approve("lab/s");
    let mut other = Rig::beside(&rig, "second");
    other.mount(&[("lab", &target)], &[]);
    other.ready("lab");
    assert_eq!(other.skill_status("lab/s")["approved"], "read");
    rig.ask(&["revoke", "lab/s"]);
    // To the other one it is still approved, and then lapses.
    put(&rig, "b\n");
    other.seen_as("lab/s", "lapsed", |s| s["approved"].is_null());
    other.stop();
    drop(other);
    rig.remount(&[("lab", &target)], &[]);
    rig.ready("lab");
    assert_eq!(rig.skill_status("lab/s")["state"], "revoked");
    assert_eq!(rig.cat("lab/s/x"), Err("EACCES"));
}

#[test]
fn an_approval_anew_is_not_lost_to_a_daemon_that_sees_the_change_later() {
    let mut rig = Rig::new();
    let put = |rig: &Rig, x: &str, ttl: u64| {
        rig.scene(
            "lab",
            json!({"skills": [skill("s", json!({"x": x}))], "ttlMs": ttl}),
        );
    };
    put(&rig, "a\n", 0);
    let target = rig.scripted("lab");
    rig.up(&["lab"], EACH);
    rig.approve("lab/s");
    let mut other = Rig::beside(&rig, "second");
    other.mount(&[("lab", &target)], EACH);
    other.ready("lab");
    assert_eq!(other.cat("lab/s/x"), ok("a\n"));
    put(&rig, "b\n", 0);
    rig.in_state("lab/s", LAPSED);
    rig.approve("lab/s");
    assert_eq!(rig.cat("lab/s/x"), ok("b\n"));
    other.in_state("lab/s", LAPSED);
    other.stop();
    drop(other);
    rig.remount(&[("lab", &target)], EACH);
    rig.ready("lab");
    assert_eq!(rig.cat("lab/s/x"), ok("b\n"));
}

#[test]
fn hr58_hr112_bytes_on_their_way_are_not_served_when_the_rules_change_meanwhile() {
    let mut rig = Rig::new();
    let put = |rig: &Rig, more: &str, delay: f64| {
        let files = json!({"x": "x\n", "y": format!("y{more}\n")});
        let mut scene = scene(["a", "b", "c"].map(|n| skill(n, files.clone())).to_vec());
        // Each file has its own bytes, so that each is fetched.
        for (n, skill) in scene["skills"]
            .as_array_mut()
            .unwrap()
            .iter_mut()
            .enumerate()
        {
            skill["files"]["x"] = json!(format!("x{n}\n"));
        }
        scene["rules"] = json!([{"method": "resources/read", "delay": delay}]);
        rig.scene("lab", scene);
    };
    put(&rig, "", 2.5);
    rig.up(&["lab"], EACH);
    ["lab/a", "lab/b", "lab/c"]
        .iter()
        .for_each(|s| rig.approve(s));
    let readers = ["a", "b", "c"].map(|s| rig.cat_later(&format!("lab/{s}/x")));
    until("three reads", 5.0, || rig.reads("lab").len() == 3);
    rig.ask(&["revoke", "lab/a"]);
    put(&rig, ", other", 0.0);
    rig.ask(&["refresh", "lab/b"]);
    let [a, b, c] = readers.map(|r| rig.outcome("a reader", r.finish(15.0)));
    assert_eq!((a, b), (Err("EACCES"), Err("ESTALE")));
    // Whether the change was seen by then is the server's business; there is no third way.
    assert!(c == ok("x2\n") || c == Err("ESTALE"), "{c:?}");
}

#[test]
fn hr112_revoking_reaches_open_files_and_mappings_and_outlives_a_restart() {
    for flags in [EACH, &["--approval", "server"]] {
        let mut rig = Rig::new();
        let files = json!({"x": "x\n", "y": "y\n"});
        rig.scene(
            "lab",
            scene(vec![skill("s", files.clone()), skill("t", files)]),
        );
        rig.up(&["lab"], flags);
        if flags == EACH {
            ["lab/s", "lab/t"].iter().for_each(|s| rig.approve(s));
        }
        let mut keepers = ["s/x", "s/SKILL.md", "t/x"].map(|f| rig.keep(&format!("lab/{f}")));
        let gone = |rig: &Rig| {
            for file in ["SKILL.md", "x", "y"] {
                assert_eq!(
                    rig.cat(&format!("lab/s/{file}")),
                    Err("EACCES"),
                    "{flags:?}"
                );
            }
            assert_eq!(rig.cat("lab/t/y"), ok("y\n"), "{flags:?}: another skill");
        };
        assert!(rig.ask(&["revoke", "lab/s"]).contains("revoked lab/s"));
        for keeper in &mut keepers[..2] {
            assert_eq!(
                (keeper.fd(), keeper.map()),
                (Err("EACCES"), Err("SIGBUS")),
                "{flags:?}"
            );
        }
        assert_eq!((keepers[2].fd(), keepers[2].map()), (ok("x\n"), ok("x\n")));
        gone(&rig);
        assert_eq!(rig.skill_status("lab/s")["state"], "revoked");
        let why = rig.refusal("lab", "lab/s/x");
        assert_eq!(why["reason"], "revoked by the user");
        rig.ask(&["refresh", "lab/s"]);
        gone(&rig);
        crash(&mut rig, &["lab"], flags);
        gone(&rig);
        let target = rig.scripted("lab");
        rig.remount(&[("lab", &target)], flags);
        rig.ready("lab");
        gone(&rig);
        rig.approve("lab/s");
        assert_eq!(
            rig.cat("lab/s/x"),
            ok("x\n"),
            "{flags:?}: approving lifts it"
        );
    }
}

#[test]
fn hr96_to_hr100_execution_is_approved_apart_and_frontmatter_grants_nothing() {
    let mut rig = Rig::new();
    let md = "---\nname: s\ndescription: d\nallowed-tools: Bash(*)\n---\n";
    let front = json!({"name": "s", "description": "d", "allowed-tools": "Bash(*)",
        "hooks": {"PreToolUse": [{"command": "touch ran"}]}, "permissions": ["all"]});
    let with = |run: &str| {
        let s = json!({"path": "s", "files": {"SKILL.md": md, "run.sh": run}, "entry": {"frontmatter": front}});
        scene(vec![s, skill("t", json!({"run.sh": "echo t\n"}))])
    };
    rig.scene("lab", with("#!/bin/sh\necho hi\n"));
    rig.up(&["lab"], &[]);
    let gate = |rig: &Rig, path: &str| rig.tell(&["gate", path]).code;
    let file = rig.path("lab/s/run.sh").display().to_string();
    let shown = rig.tell(&["approve", "lab/s"]).text();
    for word in [
        "requests allowed-tools: Bash(*)",
        "requests hooks: ",
        "touch ran",
        "requests permissions: ",
        "nothing is granted",
    ] {
        assert!(shown.contains(word), "HR-97, HR-100: {word}: {shown}");
    }
    let closed = rig.tell(&["gate", &file]);
    assert!(
        closed.code == Some(1) && closed.err.contains("approve --exec"),
        "{closed:?}"
    );
    let set = rig.set("lab/s");
    rig.ask(&["approve", "--set", &set, "lab/s"]);
    assert_eq!(gate(&rig, &file), Some(1), "reading is not running");
    rig.ask(&["approve", "--exec", "--set", &set, "lab/s"]);
    assert_eq!(rig.skill_status("lab/s")["approved"], "read and execute");
    for path in [&*file, "lab/s", "lab/s/run.sh"] {
        assert_eq!(gate(&rig, path), Some(0), "{path}");
    }
    let relative = format!("cd $M/lab/s && {BIN} gate ./run.sh && {BIN} gate .");
    assert_eq!(rig.sh(&relative).code, Some(0));
    let other = rig.path("lab/t/run.sh").display().to_string();
    let around = rig.path("lab/s/../t/run.sh").display().to_string();
    let dotted = format!("{file}/../../t/run.sh");
    for path in [
        &*other,
        "lab/t",
        "lab",
        "lab/none",
        "none/s",
        "/etc/passwd",
        "",
        &around,
        "lab/s/../t/run.sh",
        "lab/s/./../t",
        &dotted,
    ] {
        assert_eq!(gate(&rig, path), Some(1), "{path}");
    }
    assert_eq!(
        rig.sh(&format!("cd $M/lab/s && {BIN} gate ../t/run.sh"))
            .code,
        Some(1)
    );
    // Whatever is approved, nothing changes in the tree.
    let modes = rig
        .sh("cd $M/lab && find . -printf '%y %m\n' | sort -u")
        .good();
    assert_eq!(modes, "d 555\nf 444\n", "HR-96, HR-99");
    let direct = rig.sh("$M/lab/s/run.sh");
    assert!(
        direct.code != Some(0) && direct.err.contains("Permission denied"),
        "{direct:?}"
    );
    let options = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let at = rig.mount_point().display().to_string();
    let row = options.lines().find(|r| r.contains(&at)).unwrap();
    assert!(
        ["ro", "noexec", "nosuid", "nodev"]
            .iter()
            .all(|o| row.contains(o)),
        "{row}"
    );
    assert!(
        mounts_at(rig.mount_point())
            .iter()
            .all(|t| t == "fuse.mount-skills")
    );
    let catalog: Value =
        serde_json::from_str(&rig.cat(".mount-skills/catalog.json").unwrap()).unwrap();
    let skills = catalog["skills"].as_array().unwrap();
    assert!(
        skills.iter().all(|s| s["granted_tools"] == json!([])),
        "{catalog}"
    );

    rig.scene("lab", with("#!/bin/sh\necho other\n"));
    rig.seen_as("lab/s", "another set", |s| s["set"] != set.as_str());
    assert_eq!(gate(&rig, &file), Some(1), "rotated");
    rig.scene("lab", with("#!/bin/sh\necho hi\n"));
    rig.seen_as("lab/s", "the old set", |s| s["set"] == set.as_str());
    assert_eq!(gate(&rig, &file), Some(1), "and back");
    rig.ask(&["approve", "--exec", "--set", &set, "lab/s"]);
    assert_eq!(gate(&rig, &file), Some(0));
    rig.ask(&["revoke", "lab/s"]);
    assert_eq!(gate(&rig, &file), Some(1), "revoked");
    rig.ask(&["approve", "--exec", "--set", &set, "lab/s"]);
    rig.stop();
    assert_eq!(rig.cli(&["gate", &file]).code, Some(1), "no daemon");
    assert_eq!(rig.cli(&["gate", "lab/s"]).code, Some(1), "no daemon");
}

#[test]
fn hr36_hr37_hr101_hr102_a_nested_skill_is_content_of_the_outer_one_until_it_is_approved_itself() {
    let mut rig = Rig::new();
    let inner = skill_md("inner");
    let broken = "---\nname: [broken\n\tdescription: {\n---\nNot YAML.\n";
    let bad_entry = json!({"path": "bad/inner", "files": {"SKILL.md": broken},
        "entry": {"frontmatter": {"name": "inner", "description": "d"}}});
    let files = json!({"inner/SKILL.md": inner, "inner/x": "x\n", "a": "a\n"});
    let mine = json!({"x": "x\n"});
    let disputed = json!({"inner/SKILL.md": inner, "inner/x": "x of the outer\n", "a": "a\n"});
    let mut scene = scene(vec![
        skill("out", files.clone()),
        skill("out/inner", mine.clone()),
        skill("only", files),
        skill("only/inner", mine.clone()),
        skill("bad", json!({"inner/SKILL.md": broken, "a": "a\n"})),
        bad_entry,
        skill("dispute", disputed),
        skill("dispute/inner", mine),
    ]);
    scene["ttlMs"] = json!(HOUR_MS);
    rig.scene("lab", scene);
    rig.up(&["lab"], EACH);
    let activation = |rig: &Rig, path: &str| rig.skill_status(path)["activation"].clone();

    let shown = rig.tell(&["approve", "lab/out"]).text();
    assert!(
        shown.contains("nested skill, not approved with it: lab/out/inner"),
        "{shown}"
    );
    assert!(
        shown.contains("inner/SKILL.md"),
        "HR-36: part of the set: {shown}"
    );
    rig.approve("lab/out");
    assert_eq!(rig.cat("lab/out/a"), ok("a\n"));
    assert_eq!(
        rig.cat("lab/out/inner/SKILL.md"),
        ok(&inner),
        "supporting content"
    );
    assert_eq!(activation(&rig, "lab/out/inner"), "needs-consent");
    assert_eq!(rig.skill_status("lab/out/inner")["nested_in"], "lab/out");
    assert_eq!(
        rig.skill_status("lab/out/inner")["state"],
        "needs-approval",
        "no window for it"
    );
    let in_catalog = |path: &str| {
        let catalog: Value =
            serde_json::from_str(&rig.cat(".mount-skills/catalog.json").unwrap()).unwrap();
        let skills = catalog["skills"].as_array().unwrap().clone();
        skills.into_iter().find(|s| s["path"] == path).unwrap()
    };
    assert_eq!(in_catalog("lab/out/inner")["activation"], "needs-consent");
    assert_eq!(rig.tell(&["gate", "lab/out/inner/x"]).code, Some(1));

    rig.approve("lab/only/inner");
    assert_eq!(rig.cat("lab/only/inner/SKILL.md"), ok(&inner));
    assert_eq!(rig.cat("lab/only/inner/x"), ok("x\n"));
    assert_eq!(
        rig.cat("lab/only/a"),
        Err("EACCES"),
        "the outer one was not approved"
    );
    assert_eq!(rig.cat("lab/only/SKILL.md"), Err("EACCES"));
    until("the catalog", 5.0, || {
        in_catalog("lab/only/inner")["activation"].is_null()
    });

    rig.approve("lab/bad");
    assert_eq!(
        rig.cat("lab/bad/inner/SKILL.md"),
        ok(broken),
        "HR-101: its frontmatter is nobody's"
    );
    rig.approve("lab/bad/inner");
    assert_eq!(
        rig.cat("lab/bad/inner/SKILL.md"),
        Err("EIO"),
        "as a skill it must fit"
    );
    assert_eq!(rig.cat("lab/bad/a"), ok("a\n"));

    rig.approve("lab/dispute");
    assert_eq!(
        rig.cat("lab/dispute/inner/x"),
        Err("EIO"),
        "what the server sends is the inner one's"
    );
    rig.approve("lab/dispute/inner");
    assert_eq!(rig.cat("lab/dispute/inner/x"), Err("EIO"));
    let why = rig.refusal("lab", "lab/dispute/inner/x")["reason"].to_string();
    for uri in ["skill://dispute/SKILL.md", "skill://dispute/inner/SKILL.md"] {
        assert!(why.contains(uri), "HR-37: {uri}: {why}");
    }
    assert_eq!(rig.cat("lab/dispute/a"), ok("a\n"));
    assert_eq!(rig.cat("lab/dispute/inner/SKILL.md"), ok(&inner));
}

#[test]
fn a_lock_mounts_exactly_its_sets_and_check_says_what_moved() {
    let mut rig = Rig::new();
    let of = |skills: &[(&str, &str)]| {
        let skills = skills
            .iter()
            .map(|(path, text)| skill(path, json!({"x": format!("{text}\n")})));
        scene(skills.collect())
    };
    rig.scene("lab", of(&[("a", "a"), ("b", "b"), ("c", "c"), ("e", "e")]));
    rig.scene("more", of(&[("a", "more")]));
    rig.up(&["lab", "more"], &[]);
    let file = rig.dir().join("skills.lock");
    let path = file.display().to_string();
    let lock = rig.ask(&["lock"]);
    assert_eq!(
        lock.lines().filter(|l| !l.starts_with('#')).count(),
        5,
        "{lock}"
    );
    fs::write(&file, &lock).unwrap();
    let same = rig.tell(&["lock", "--check", &path]);
    assert!(same.code == Some(0) && same.out.is_empty(), "{same:?}");
    rig.stop();

    rig.scene(
        "lab",
        of(&[("a", "a"), ("b", "b"), ("c", "other"), ("d", "d")]),
    );
    let flags = ["--locked", &*path];
    rig.up(&["lab", "more"], &flags);
    assert_eq!(rig.status()["approval"], "each");
    let reads = |rig: &Rig| {
        let cat = |p: &str| rig.cat(&format!("{p}/x"));
        assert_eq!(
            [cat("lab/a"), cat("lab/b"), cat("more/a")],
            [ok("a\n"), ok("b\n"), ok("more\n")]
        );
        assert_eq!(
            [cat("lab/c"), cat("lab/d"), cat("lab/e")],
            [Err("ESTALE"), Err("EACCES"), Err("ENOENT")]
        );
    };
    reads(&rig);
    let check = rig.tell(&["lock", "--check", &path]);
    assert_eq!(check.code, Some(3), "{check:?}");
    let text = check.text();
    for line in [
        "changed  lab skill://c/SKILL.md: locked sha256:",
        "removed  lab skill://e/SKILL.md",
        "added    lab skill://d/SKILL.md",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert_eq!(text.lines().count(), 3, "{text}");
    let set = rig.set("lab/d");
    let no = rig.tell(&["approve", "--set", &set, "lab/d"]);
    assert!(no.code == Some(1) && no.err.contains("locked"), "{no:?}");
    reads(&rig);
    assert_eq!(
        rig.tell(&["gate", "lab/a"]).code,
        Some(1),
        "a lock is about reading"
    );
    crash(&mut rig, &["lab", "more"], &flags);
    reads(&rig);
    // It follows no change: the set moves and comes back within one mount, and stays closed.
    rig.scene(
        "lab",
        of(&[("a", "A"), ("b", "b"), ("c", "other"), ("d", "d")]),
    );
    rig.in_state("lab/a", LAPSED);
    assert_eq!(rig.cat("lab/a/x"), Err("ESTALE"));
    assert_eq!(
        verdict_files(&rig),
        Vec::<PathBuf>::new(),
        "nothing of it is stored"
    );
    rig.stop();
    // Without the lock nothing of it holds.
    rig.up(&["lab", "more"], EACH);
    assert_eq!(rig.cat("lab/b/x"), Err("EACCES"));
    rig.stop();
    for text in ["lab x y\n", "nonsense\n", &format!("{lock}{lock}")] {
        fs::write(&file, text).unwrap();
        let target = format!("lab={}", rig.scripted("lab"));
        let mount = rig.mount_point().display().to_string();
        let out = rig.cli(&["--server", &target, "--locked", &path, &mount]);
        assert!(out.code == Some(2) && out.err.contains("line "), "{out:?}");
    }
}

#[test]
fn a_lock_holds_no_skill_that_may_not_be_read() {
    let mut rig = Rig::new();
    let skills = ["yes", "no", "gone"].map(|n| skill(n, json!({"x": "x\n"})));
    rig.scene("lab", scene(skills.to_vec()));
    rig.up(&["lab"], EACH);
    rig.approve("lab/yes");
    rig.approve("lab/gone");
    rig.ask(&["revoke", "lab/gone"]);
    let lock = rig.ask(&["lock"]);
    assert!(lock.contains("skill://yes/SKILL.md"), "{lock}");
    assert!(
        !lock.contains("skill://no/") && !lock.contains("skill://gone/"),
        "{lock}"
    );
}

#[test]
fn hr60_hr61_hr105_showing_a_file_is_no_load_and_needs_no_approval() {
    for flags in [&[][..], EACH] {
        let mut rig = Rig::new();
        let put = |rig: &Rig, x: &str| rig.scene("lab", scene(vec![skill("s", json!({"x": x}))]));
        put(&rig, "1\n");
        rig.up(&["lab"], flags);
        let shown = rig.tell(&["show", "lab/s"]);
        assert_eq!(
            (shown.code, shown.text()),
            (Some(0), skill_md("s")),
            "raw, to a pipe"
        );
        assert!(
            shown.err.contains("server lab") && shown.err.contains("not loaded"),
            "{shown:?}"
        );
        assert_eq!(rig.ask(&["show", "lab/s", "x"]), "1\n");
        let state = if flags.is_empty() {
            "listed"
        } else {
            "needs-approval"
        };
        assert_eq!(
            rig.skill_status("lab/s")["state"],
            state,
            "no window, no approval"
        );
        assert_eq!(rig.journals(), Vec::<PathBuf>::new());
        if flags == EACH {
            assert_eq!(rig.cat("lab/s/x"), Err("EACCES"));
        }
        let set = rig.set("lab/s");
        put(&rig, "2, new\n");
        rig.seen_as("lab/s", "the new set", |s| s["set"] != set.as_str());
        assert_eq!(rig.ask(&["show", "lab/s", "x"]), "2, new\n");
        if flags == EACH {
            assert_eq!(rig.cat("lab/s/x"), Err("EACCES"));
            rig.approve("lab/s");
        }
        assert_eq!(rig.cat("lab/s/x"), ok("2, new\n"), "no window was open");
        // Also what is held does not keep the user from looking at what is new.
        put(&rig, "3\n");
        rig.seen_as("lab/s", "changed", |s| {
            s["state"]
                .as_str()
                .unwrap_or_default()
                .starts_with("changed")
        });
        assert_eq!(rig.ask(&["show", "lab/s", "x"]), "3\n");
        let old = if flags == EACH {
            Err("ESTALE")
        } else {
            ok("2, new\n")
        };
        assert_eq!(rig.cat("lab/s/x"), old);
    }
}

#[test]
fn hr59_hr60_a_show_of_what_changed_does_not_spoil_the_next_read() {
    let mut rig = Rig::new();
    let put = |rig: &Rig, x: &str| {
        rig.scene(
            "lab",
            json!({"skills": [skill("s", json!({"x": x}))], "ttlMs": HOUR_MS}),
        );
    };
    put(&rig, "1\n");
    rig.up(&["lab"], &[]);
    put(&rig, "2, new\n");
    let shown = rig.tell(&["show", "lab/s", "x"]);
    let next = rig.cat("lab/s/x");
    assert!(
        matches!(next, Err("ESTALE") | Ok(_)),
        "{next:?} after {shown:?}"
    );
    assert_eq!(rig.cat("lab/s/x"), ok("2, new\n"));
}

#[test]
fn hr110_at_a_terminal_approve_shows_the_set_and_takes_yes_for_an_answer_and_nothing_else() {
    let mut rig = Rig::new();
    rig.scene("lab", scene(vec![skill("s", json!({"x": "x\n"}))]));
    rig.up(&["lab"], EACH);
    let ask = r#"
import os, pty, sys
pid, fd = pty.fork()
if not pid:
    os.execv(sys.argv[2], sys.argv[2:])
text = b""
try:
    while True:
        text += os.read(fd, 4096)
        if text.endswith(b"[y/N] "):
            os.write(fd, sys.argv[1].encode() + b"\n")
except OSError:
    pass
print(text.decode())
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;
    let mount = rig.mount_point().display().to_string();
    for (answer, code, then) in [
        ("n", 1, Err("EACCES")),
        ("", 1, Err("EACCES")),
        ("maybe y", 1, Err("EACCES")),
        ("y", 0, ok("x\n")),
    ] {
        let mut command = rig.command("python3");
        command.args([
            "-c", ask, answer, BIN, "approve", "lab/s", "--mount", &mount,
        ]);
        let out = run(&mut command);
        assert_eq!(out.code, Some(code), "{answer:?}: {out:?}");
        assert!(out.text().contains(&rig.set("lab/s")), "{out:?}");
        assert_eq!(rig.cat("lab/s/x"), then, "{answer:?}");
    }
}

#[test]
fn c58_an_approval_that_cannot_be_stored_says_so() {
    let mut rig = Rig::new();
    rig.scene("lab", scene(vec![skill("s", json!({"x": "x\n"}))]));
    rig.up(&["lab"], EACH);
    let listing = wait("a stored listing", 5.0, || {
        let files = rig.stored("state").into_iter().map(|(p, _)| p);
        files.into_iter().find(|p| p.ends_with("listing.json"))
    });
    // A directory where the file should be: nobody can write it, not even root.
    let blocked = listing.with_file_name("verdicts.json");
    fs::create_dir_all(blocked.join("x")).unwrap();
    let set = rig.set("lab/s");
    let out = rig.tell(&["approve", "--set", &set, "lab/s"]);
    assert!(
        out.code == Some(1) && out.err.contains("cannot be stored"),
        "{out:?}"
    );
    fs::remove_dir_all(&blocked).unwrap();
}

#[test]
fn hr112_revoking_a_nested_skill_takes_its_files_away_or_says_that_it_does_not() {
    let mut rig = Rig::new();
    let outer = json!({"inner/SKILL.md": skill_md("inner"), "inner/x": "x\n"});
    rig.scene(
        "lab",
        scene(vec![
            skill("out", outer),
            skill("out/inner", json!({"x": "x\n"})),
        ]),
    );
    rig.up(&["lab"], &[]);
    assert_eq!(rig.cat("lab/out/inner/x"), ok("x\n"));
    let said = rig.ask(&["revoke", "lab/out/inner"]);
    if rig.cat("lab/out/inner/x").is_ok() {
        assert!(said.contains("part of lab/out,"), "{said}");
    }
}
