//! The acting window: a skill that was read does not change under its reader, whatever happens,
//! until somebody says so.

use crate::rig::{Rig, is_root, ok, sha256, skill, skill_md, until};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const S: &str = "skill://s/SKILL.md";

/// A listing that is stale at once.
fn scene(skills: &[(&str, &Value)]) -> Value {
    let skills: Vec<Value> = skills
        .iter()
        .map(|(path, files)| skill(path, (*files).clone()))
        .collect();
    json!({"skills": skills, "ttlMs": 0})
}

fn body(text: &str) -> String {
    skill_md("s").replace("Body of s", text)
}

/// Every name and size below a skill.
fn names(rig: &Rig, skill: &str) -> String {
    rig.sh(&format!(
        "cd $M/{skill} && find . -printf '%P %s\\n' | sort"
    ))
    .good()
}

fn changes(status: &Value) -> [Vec<String>; 3] {
    ["rotated", "added", "removed"]
        .map(|kind| serde_json::from_value(status["changes"][kind].clone()).unwrap_or_default())
}

#[test]
fn hr71_to_hr77_a_held_skill_stays_as_it_was_until_it_is_refreshed() {
    let mut rig = Rig::new();
    let v1 = json!({"run.sh": "echo 1\n", "gone.txt": "gone\n", "d/late.txt": "late 1\n"});
    let mut next = v1.clone();
    rig.scene("lab", scene(&[("s", &next)]));
    rig.up(&["lab"], &[]);
    let held = [
        ("SKILL.md", skill_md("s")),
        ("run.sh", "echo 1\n".into()),
        ("gone.txt", "gone\n".into()),
    ];
    assert_eq!(
        rig.cat("lab/s/run.sh"),
        ok("echo 1\n"),
        "any file loads the skill"
    );
    until("a window", 5.0, || {
        rig.skill_status("lab/s")["state"] == "held"
    });
    let shape = names(&rig, "lab/s");
    let as_held = |rig: &Rig, what: &str| {
        assert_eq!(names(rig, "lab/s"), shape, "{what}");
        for (file, text) in &held {
            assert_eq!(
                rig.cat(&format!("lab/s/{file}")),
                ok(text),
                "{file}: {what}"
            );
        }
    };
    as_held(&rig, "loaded");
    held.iter()
        .for_each(|(_, text)| drop(rig.blob(text.as_bytes())));
    rig.journalled(&[S]);
    let stale = |rig: &Rig| {
        assert_eq!(rig.cat("lab/s/d/late.txt"), Err("ESTALE"), "not cached");
        let why = rig.refusal("lab", "lab/s/d/late.txt");
        assert!(
            why["next"]
                .as_str()
                .unwrap()
                .contains("mount-skills refresh lab/s"),
            "{why}"
        );
    };

    // The server changes, one thing after the other; each is seen, and nothing of it is shown.
    let reads = rig.reads("lab");
    for (what, key, file, want) in [
        ("rotated", "run.sh", json!("echo two\n"), [1, 0, 0]),
        (
            "rotated, uncached",
            "d/late.txt",
            json!("late 2\n"),
            [2, 0, 0],
        ),
        ("SKILL.md too", "SKILL.md", json!(body("Second")), [3, 0, 0]),
        ("added", "new.txt", json!("new\n"), [3, 1, 0]),
        ("removed", "gone.txt", Value::Null, [3, 1, 1]),
    ] {
        next[key] = file;
        next.as_object_mut().unwrap().retain(|_, v| !v.is_null());
        rig.scene("lab", scene(&[("s", &next)]));
        let status = rig.seen_as("lab/s", what, |s| changes(s).map(|c| c.len()) == want);
        assert_eq!(status["state"], "changed");
        as_held(&rig, what);
    }
    stale(&rig);
    assert!(
        matches!(rig.cat("lab/s/new.txt"), Err("ENOENT" | "ESTALE")),
        "HR-73"
    );
    assert_eq!(rig.reads("lab"), reads, "HR-68: no content is asked for");
    let diff = rig.ask(&["diff", "lab/s"]);
    for line in [
        "rotated      d/late.txt",
        "rotated      run.sh",
        "rotated      SKILL.md",
        "added        new.txt",
        "removed      gone.txt",
    ] {
        assert!(diff.contains(line), "{line}: {diff}");
    }
    let status = rig.ask(&["status"]);
    assert!(
        status.contains("lab/s: changed") && status.contains("3 rotated, 1 added, 1 removed"),
        "HR-74: {status}"
    );
    assert!(status.contains("mount-skills refresh lab/s"), "{status}");

    // The process of the server goes and comes.
    rig.kill_server_for_a_new_listing("lab");
    rig.in_state("lab/s", "changed");
    as_held(&rig, "server restarted");
    // The server drops the skill: HR-77.
    rig.scene("lab", scene(&[]));
    let status = rig.in_state("lab/s", "changed (withdrawn)");
    as_held(&rig, "withdrawn");
    stale(&rig);
    assert!(status["next"].is_string(), "{status}");
    // The kernel forgets everything; the daemon is killed and started again.
    if is_root() {
        Rig::drop_kernel_caches();
        as_held(&rig, "caches dropped");
    }
    rig.kill_daemon();
    rig.nothing_left();
    rig.up(&["lab"], &[]);
    rig.in_state("lab/s", "changed (withdrawn)");
    as_held(&rig, "killed and started again, withdrawn");
    stale(&rig);
    rig.scene("lab", scene(&[("s", &next)]));
    rig.in_state("lab/s", "changed");
    as_held(&rig, "changed, after a restart");
    rig.kill_daemon();
    rig.nothing_left();
    rig.up(&["lab"], &[]);
    rig.in_state("lab/s", "changed");
    as_held(&rig, "killed again");
    stale(&rig);

    // One step, and it is all new.
    let said = rig.ask(&["refresh", "lab/s"]);
    assert!(said.contains("3 rotated, 1 added, 1 removed"), "{said}");
    for (file, text) in next.as_object().unwrap() {
        assert_eq!(
            rig.cat(&format!("lab/s/{file}")),
            ok(text.as_str().unwrap()),
            "{file}"
        );
    }
    assert_eq!(rig.cat("lab/s/gone.txt"), Err("ENOENT"));
    rig.in_state("lab/s", "held");
    assert!(
        rig.ask(&["diff", "lab/s"])
            .contains("what is in force is what the server publishes")
    );
    // A file and its directory are both new to who held them open by name.
    assert_eq!(names(&rig, "lab/s").lines().count(), 6);
}

#[test]
fn hr72_release_refresh_of_a_label_a_clean_unmount_and_a_new_session_end_windows() {
    let mut rig = Rig::new();
    let version = |n: &str| json!({"x": format!("x {n}\n")});
    let put = |rig: &Rig, n: &str| {
        let files = version(n);
        rig.scene("lab", scene(&[("a", &files), ("b", &files), ("c", &files)]));
    };
    let reads = |rig: &Rig, want: [&str; 3]| {
        for (s, n) in ["a", "b", "c"].iter().zip(want) {
            assert_eq!(
                rig.cat(&format!("lab/{s}/x")),
                ok(&format!("x {n}\n")),
                "{s}"
            );
        }
    };
    put(&rig, "1");
    rig.up(&["lab"], &[]);
    reads(&rig, ["1", "1", "1"]);
    put(&rig, "2");
    ["a", "b", "c"]
        .iter()
        .for_each(|s| drop(rig.in_state(&format!("lab/{s}"), "changed")));
    assert!(rig.ask(&["release", "lab/a"]).contains("released 1 skill"));
    reads(&rig, ["2", "1", "1"]);
    let by_path = rig.path("lab/b/x").display().to_string();
    assert!(
        rig.ask(&["release", &by_path]).contains("released 1 skill"),
        "a path below the mount"
    );
    reads(&rig, ["2", "2", "1"]);
    assert!(rig.ask(&["refresh", "lab"]).contains("3 skills published"));
    reads(&rig, ["2", "2", "2"]);
    // All of a label at once.
    put(&rig, "3");
    ["a", "b", "c"]
        .iter()
        .for_each(|s| drop(rig.in_state(&format!("lab/{s}"), "changed")));
    reads(&rig, ["2", "2", "2"]);
    assert!(rig.ask(&["release", "lab"]).contains("released 3 skills"));
    assert!(rig.ask(&["release", "lab"]).contains("released 0 skills"));
    reads(&rig, ["3", "3", "3"]);
    // A refresh that brings nothing new opens no other view, and the next read holds again.
    rig.ask(&["refresh", "lab/a"]);
    reads(&rig, ["3", "3", "3"]);
    rig.in_state("lab/a", "held");

    // A clean unmount is the end of all windows; a kill is not.
    put(&rig, "4");
    rig.in_state("lab/a", "changed");
    let target = rig.scripted("lab");
    rig.remount(&[("lab", &target)], &[]);
    rig.ready("lab");
    assert_eq!(rig.journals(), Vec::<std::path::PathBuf>::new());
    reads(&rig, ["4", "4", "4"]);
    rig.journalled(&[
        "skill://a/SKILL.md",
        "skill://b/SKILL.md",
        "skill://c/SKILL.md",
    ]);
    put(&rig, "5");
    rig.kill_daemon();
    rig.nothing_left();
    rig.up(&["lab"], &["--new-session"]);
    rig.seen_as("lab/a", "listed", |s| {
        s["state"] == "listed" && s["changes"].is_null()
    });
    reads(&rig, ["5", "5", "5"]);
}

/// Runs readers of a file through its versions: none may see anything but them, or go back.
fn readers_see_one_version_after_the_other(rig: &mut Rig, flags: &[&str], versions: &[String]) {
    let each = !flags.is_empty();
    let put = |rig: &Rig, text: &str| {
        rig.scene(
            "lab",
            scene(&[("s", &json!({"f": text, "same": "same\n"}))]),
        );
    };
    let (first, last) = (&versions[0], versions.len() - 1);
    put(rig, first);
    rig.up(&["lab"], flags);
    if each {
        rig.approve("lab/s");
    }
    assert_eq!(
        (rig.cat("lab/s/f"), rig.cat("lab/s/same")),
        (ok(first), ok("same\n"))
    );
    let hashes: Vec<String> = versions.iter().map(|v| sha256(v.as_bytes())).collect();
    let (path, end) = (rig.path("lab/s/f"), AtomicBool::new(false));
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let read = || {
        let (mut seen, mut errors) = (Vec::new(), BTreeSet::new());
        while !end.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
            match fs::read(&path) {
                Err(e) => drop(errors.insert(e.raw_os_error())),
                Ok(bytes) => {
                    let hash = sha256(&bytes);
                    match hashes.iter().position(|h| *h == hash) {
                        None => return Err(format!("{} bytes of no version", bytes.len())),
                        Some(n) if seen.last() == Some(&n) => {}
                        Some(n) => seen.push(n),
                    }
                }
            }
        }
        Ok((seen, errors))
    };
    std::thread::scope(|scope| {
        let ends = Ends(&end);
        let readers: Vec<_> = (0..8).map(|_| scope.spawn(read)).collect();
        for (old, new) in versions.iter().zip(&versions[1..]) {
            let mut keeper = rig.keep("lab/s/f");
            put(rig, new);
            if each {
                rig.in_state("lab/s", "changed, needs-approval");
                // The status knows it a moment before the kernel has dropped its pages.
                until("the open file to be closed to readers", 2.0, || {
                    keeper.fd() == Err("ESTALE")
                });
                assert_eq!(rig.cat("lab/s/f"), Err("ESTALE"));
                std::thread::sleep(Duration::from_millis(50));
                assert_eq!(keeper.fd(), Err("ESTALE"), "and it stays so");
                rig.approve("lab/s");
            } else {
                rig.in_state("lab/s", "changed");
                assert_eq!(keeper.fd(), ok(old), "held");
                rig.ask(&["refresh", "lab/s"]);
            }
            let size = fs::metadata(&path).unwrap().len();
            assert_eq!(size, new.len() as u64, "size new at once");
            assert_eq!(rig.cat("lab/s/f"), ok(new), "content new at once");
            for (how, got) in [("fd", keeper.fd()), ("mapping", keeper.map())] {
                let fine = got == ok(old) || matches!(got, Err("ESTALE" | "SIGBUS"));
                assert!(fine, "{how}: {:?}", got.map(|t| t.len()));
            }
            rig.in_state("lab/s", "held");
        }
        // For each of them to see the last one.
        std::thread::sleep(Duration::from_millis(300));
        drop(ends);
        for reader in readers {
            let (seen, errors) = reader.join().unwrap().unwrap();
            let sorted = seen.windows(2).all(|w| w[0] < w[1]);
            assert!(
                sorted && seen.last() == Some(&last),
                "never back to an older one: {seen:?}"
            );
            let stale = Some(rustix::io::Errno::STALE.raw_os_error());
            assert!(errors.iter().all(|e| *e == stale), "{errors:?}");
        }
    });
}

#[test]
fn c54_hr58_readers_of_a_changing_skill_see_one_version_after_the_other_and_no_mix() {
    let big = |c: &str| c.repeat(300_000);
    let versions = [
        "value=1\n".to_owned(),
        "value=2\n".to_owned(),
        format!("{}\n", "value=3 ".repeat(2000)),
        big("4"),
        big("5"),
        "value=6\n".to_owned(),
    ];
    readers_see_one_version_after_the_other(&mut Rig::new(), &[], &versions);
    let each = &["--approval", "each"];
    readers_see_one_version_after_the_other(&mut Rig::new(), each, &versions[..3]);
}

#[test]
fn hold_reload_moves_when_the_skill_md_is_read_again_and_not_before() {
    let mut rig = Rig::new();
    let version = |n: &str| json!({"x": format!("x {n}\n"), "y": format!("y {n}\n")});
    // In `same`, SKILL.md stays and another file changes.
    let mut moved = version("2");
    moved["SKILL.md"] = json!(body("Second").replace("name: s", "name: a"));
    rig.scene(
        "lab",
        scene(&[("a", &version("1")), ("same", &version("1"))]),
    );
    rig.up(&["lab"], &["--hold", "reload"]);
    for s in ["a", "same"] {
        assert_eq!(rig.cat(&format!("lab/{s}/SKILL.md")), ok(&skill_md(s)));
        assert_eq!(rig.cat(&format!("lab/{s}/x")), ok("x 1\n"));
    }
    rig.blob(b"x 1\n");
    rig.scene("lab", scene(&[("a", &moved), ("same", &version("2"))]));
    for s in ["a", "same"] {
        rig.in_state(&format!("lab/{s}"), "changed");
        assert_eq!(rig.cat(&format!("lab/{s}/x")), ok("x 1\n"), "{s}: as held");
        assert_eq!(
            rig.cat(&format!("lab/{s}/y")),
            Err("ESTALE"),
            "{s}: not cached"
        );
    }
    let new_md = moved["SKILL.md"].as_str().unwrap();
    assert_eq!(
        fs::metadata(rig.path("lab/a/SKILL.md")).unwrap().len(),
        new_md.len() as u64
    );
    assert_eq!(rig.cat("lab/a/x"), ok("x 1\n"), "a stat is no load");
    assert_eq!(
        rig.cat("lab/a/SKILL.md"),
        ok(new_md),
        "the new one is loaded"
    );
    let moved = |rig: &Rig, s: &str| {
        until("all files to move", 2.0, || {
            let both = (
                rig.cat(&format!("lab/{s}/x")),
                rig.cat(&format!("lab/{s}/y")),
            );
            both == (ok("x 2\n"), ok("y 2\n"))
        });
        rig.in_state(&format!("lab/{s}"), "held");
    };
    moved(&rig, "a");
    assert_eq!(
        rig.cat("lab/same/x"),
        ok("x 1\n"),
        "another skill is not concerned"
    );
    assert_eq!(rig.cat("lab/same/SKILL.md"), ok(&skill_md("same")));
    moved(&rig, "same");
}

#[test]
fn hold_reload_whoever_has_read_the_new_skill_md_reads_no_old_file_after_it() {
    let mut rig = Rig::new();
    let put = |rig: &Rig, n: &str| {
        rig.scene(
            "lab",
            scene(&[("s", &json!({"SKILL.md": body(n), "x": format!("{n}\n")}))]),
        );
    };
    put(&rig, "1");
    rig.up(&["lab"], &["--hold", "reload"]);
    let both = |rig: &Rig| (rig.cat("lab/s/SKILL.md"), rig.cat("lab/s/x"));
    assert_eq!(both(&rig), (ok(&body("1")), ok("1\n")));
    put(&rig, "2");
    rig.in_state("lab/s", "changed");
    assert_eq!(both(&rig), (ok(&body("2")), ok("2\n")));
}

#[test]
fn hold_none_opens_no_window_and_follows_the_server() {
    let mut rig = Rig::new();
    rig.scene("lab", scene(&[("s", &json!({"x": "1\n", "old": "old\n"}))]));
    rig.up(&["lab"], &["--hold", "none"]);
    assert_eq!(rig.cat("lab/s/x"), ok("1\n"));
    let mut keeper = rig.keep("lab/s/x");
    rig.scene("lab", scene(&[("s", &json!({"x": "2\n", "new": "new\n"}))]));
    until("the new content", 10.0, || {
        let got = rig.cat("lab/s/x");
        assert!(
            got == ok("1\n") || got == ok("2\n") || got == Err("ESTALE"),
            "{got:?}"
        );
        got == ok("2\n")
    });
    assert_eq!(
        (rig.cat("lab/s/new"), rig.cat("lab/s/old")),
        (ok("new\n"), Err("ENOENT"))
    );
    assert!(matches!(keeper.fd().as_deref(), Ok("1\n") | Err(&"ESTALE")));
    assert_eq!(rig.skill_status("lab/s")["state"], "listed");
    rig.scene("lab", scene(&[]));
    rig.seen_as("lab/s", "gone", Value::is_null);
    assert_eq!(rig.cat("lab/s/x"), Err("ENOENT"));
    assert_eq!(rig.journals(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn hr76_a_damaged_journal_of_windows_is_a_warning_and_no_window() {
    let mut rig = Rig::new();
    rig.scene("lab", scene(&[("s", &json!({"x": "1\n"}))]));
    rig.scene("other", scene(&[("t", &json!({"x": "1\n"}))]));
    rig.up(&["lab", "other"], &[]);
    assert_eq!(
        (rig.cat("lab/s/x"), rig.cat("other/t/x")),
        (ok("1\n"), ok("1\n"))
    );
    rig.journalled(&[S, "skill://t/SKILL.md"]);
    let name = sha256(b"1\n");
    until("a copy for each label", 5.0, || {
        let kept = rig.stored("cache");
        kept.iter().filter(|(p, _)| p.ends_with(&name)).count() == 2
    });
    rig.kill_daemon();
    rig.nothing_left();
    let journals = rig.journals();
    let journal = journals
        .iter()
        .find(|p| fs::read_to_string(p).unwrap().contains(S))
        .unwrap();
    let mut bytes = fs::read(journal).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(journal, bytes).unwrap();
    rig.scene("lab", scene(&[("s", &json!({"x": "2\n"}))]));
    rig.scene("other", scene(&[("t", &json!({"x": "2\n"}))]));
    rig.up(&["lab", "other"], &[]);
    let words = rig.words();
    assert!(
        words.contains("lab: windows-") && words.contains("damaged"),
        "{words}"
    );
    let new = |s: &Value| s["state"] == "listed" && s["changes"].is_null();
    rig.seen_as("lab/s", "unheld", new);
    assert_eq!(rig.cat("lab/s/x"), ok("2\n"));
    rig.in_state("other/t", "changed");
    assert_eq!(
        rig.cat("other/t/x"),
        ok("1\n"),
        "the other one is still held"
    );
}
