//! The configuration is read again while the mount is read: what changes, and what notices nothing.

use crate::nonroot;
use crate::rig::{Content, Rig, kill, ok, skill, until};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

fn scene(text: &str) -> Value {
    let big = json!({"fill": text, "size": 300_000});
    json!({"skills": [skill("s", json!({"a.txt": text, "big": big}))], "ttlMs": 3_600_000})
}

fn config(rig: &Rig) -> PathBuf {
    rig.dir().join("servers.toml")
}

/// A server of a configuration: its label, and lines beside its target.
fn write(rig: &Rig, servers: &[(&str, &str)]) {
    let one = |(label, more): &(&str, &str)| {
        format!(
            "[servers.{label}]\ntarget = {:?}\n{more}\n",
            rig.scripted(label)
        )
    };
    let text: String = servers.iter().map(one).collect();
    fs::write(config(rig), text).unwrap();
}

#[track_caller]
fn mount(rig: &mut Rig, servers: &[(&str, &str)], flags: &[&str]) {
    write(rig, servers);
    let file = config(rig).display().to_string();
    rig.mount(&[], &[&["--config", &file], flags].concat());
    servers.iter().for_each(|(label, _)| rig.ready(label));
}

/// What of a server must not change while others do: its session, and what the kernel knows.
fn standing(rig: &Rig, label: &str) -> Value {
    let status = rig.server(label);
    let names = ["", "/s", "/s/a.txt", "/s/big"];
    let inodes = names.map(|n| {
        let meta = fs::metadata(rig.path(&format!("{label}{n}"))).unwrap();
        (meta.ino(), meta.mtime())
    });
    json!({
        "connects": status["connection"]["connects"],
        "requests": status["connection"]["requests"],
        "state": status["state"],
        "skills": status["skills"],
        "pid": rig.server_pid(label),
        "inodes": inodes,
    })
}

#[test]
fn servers_come_go_and_change_and_the_readers_of_the_others_notice_nothing() {
    let mut rig = Rig::new();
    for label in ["stay", "a", "b", "c"] {
        rig.scene(label, scene(label));
    }
    mount(
        &mut rig,
        &[("stay", ""), ("a", "")],
        &["--allow-dynamic", "stay"],
    );
    assert_eq!(rig.cat("stay/s/a.txt"), ok("stay"));
    let big = fs::read(rig.path("stay/s/big")).unwrap();
    until("a held skill", 5.0, || {
        rig.skill_status("stay/s")["state"] == "held"
    });
    let before = standing(&rig, "stay");
    let upcalls = |rig: &Rig| rig.status()["upcalls"]["read"].as_u64().unwrap();
    let (reads_before, mut failed) = (upcalls(&rig), Vec::new());
    let over = AtomicBool::new(false);
    let (read, inode) = (
        AtomicUsize::new(0),
        fs::metadata(rig.path("stay/s/big")).unwrap().ino(),
    );
    let held = fs::File::open(rig.path("stay/s/big")).unwrap();
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|n| {
                let (rig, over, read, big, held) = (&rig, &over, &read, &big, &held);
                scope.spawn(move || {
                    let mut errors = Vec::new();
                    while !over.load(Ordering::Relaxed) {
                        let got = match n {
                            0 => fs::read(rig.path("stay/s/big")).map(|b| b == *big),
                            1 => fs::metadata(rig.path("stay/s/big")).map(|m| m.ino() == inode),
                            _ => {
                                use std::os::unix::fs::FileExt;
                                let mut piece = vec![0; 4096];
                                held.read_exact_at(&mut piece, 8192)
                                    .map(|()| piece == big[8192..8192 + 4096])
                            }
                        };
                        read.fetch_add(1, Ordering::Relaxed);
                        if !matches!(got, Ok(true)) {
                            errors.push(format!("{n}: {got:?}"));
                        }
                    }
                    errors
                })
            })
            .collect();
        let end = || over.store(true, Ordering::Relaxed);
        let work = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 0..6 {
                let (servers, said) = match round % 3 {
                    0 => (
                        &[("stay", ""), ("b", ""), ("c", "")][..],
                        "added: b, c; removed: a; 1 unchanged\n",
                    ),
                    1 => (
                        &[("b", "env = { X = \"1\" }"), ("stay", "")][..],
                        "removed: c; connected anew: b; 1 unchanged\n",
                    ),
                    _ => (
                        &[("stay", ""), ("a", "")][..],
                        "added: a; removed: b; 1 unchanged\n",
                    ),
                };
                write(&rig, servers);
                assert_eq!(rig.ask(&["reload"]), said);
                servers.iter().for_each(|(label, _)| rig.ready(label));
                let mut names: Vec<&str> = servers.iter().map(|s| s.0).collect();
                names.extend([".mount-skills", "README.md"]);
                names.sort_unstable();
                assert_eq!(rig.ls("").unwrap(), names);
                for (label, _) in servers {
                    assert_eq!(rig.cat(&format!("{label}/s/a.txt")), ok(label));
                }
            }
        }));
        let so_far = read.load(Ordering::Relaxed);
        until("more reads", 5.0, || read.load(Ordering::Relaxed) > so_far);
        end();
        for reader in readers {
            failed.extend(reader.join().unwrap());
        }
        if let Err(e) = work {
            std::panic::resume_unwind(e);
        }
    });
    assert_eq!(failed, Vec::<String>::new());
    assert!(read.load(Ordering::Relaxed) > 50);
    assert_eq!(standing(&rig, "stay"), before);
    // The files of the others were read, those of this one came from the kernel.
    assert!(
        upcalls(&rig) - reads_before < 50,
        "the kernel kept its pages"
    );
    assert_eq!(rig.log("stay", "start").len(), 1);
}

#[test]
fn a_server_that_was_removed_is_gone_for_its_readers_and_what_is_kept_of_it_stays() {
    let mut rig = Rig::new();
    rig.scene("a", scene("a"));
    rig.scene("b", scene("b"));
    mount(&mut rig, &[("a", ""), ("b", "")], &["--approval", "each"]);
    rig.approve("a/s");
    let mut keeper = rig.keep("a/s/big");
    assert_eq!(rig.cat("a/s/a.txt"), ok("a"));
    rig.blob(b"a");
    let (old, pid) = (
        fs::metadata(rig.path("a")).unwrap().ino(),
        rig.server_pid("a"),
    );
    write(&rig, &[("b", "")]);
    assert_eq!(rig.ask(&["reload"]), "removed: a; 1 unchanged\n");
    let gone: [Content; 3] = [keeper.fd(), keeper.map(), rig.cat("a/s/a.txt")];
    assert_eq!(gone, [Err("ESTALE"), Err("SIGBUS"), Err("ENOENT")]);
    assert_eq!(rig.ls("").unwrap(), [".mount-skills", "README.md", "b"]);
    until("the reports to follow", 5.0, || {
        rig.ls(".mount-skills").unwrap() == ["b", "catalog.json"]
    });
    assert!(!crate::rig::alive(pid), "its process has ended");
    let status = rig.status();
    assert_eq!(status["servers"].as_array().unwrap().len(), 1);
    let out = rig.tell(&["refresh", "a"]);
    assert!(
        out.code == Some(1) && out.err.contains("the labels are: b"),
        "{out:?}"
    );
    // Back again: approved as it was, from the disk, under numbers of its own.
    let reads = rig.reads("a").len();
    write(&rig, &[("b", ""), ("a", "")]);
    assert_eq!(rig.ask(&["reload"]), "added: a; 1 unchanged\n");
    rig.ready("a");
    assert_eq!(rig.cat("a/s/a.txt"), ok("a"));
    assert_eq!(rig.reads("a").len(), reads, "read from the disk");
    assert_ne!(fs::metadata(rig.path("a")).unwrap().ino(), old);
    assert_eq!(keeper.fd(), Err("ESTALE"));
}

#[test]
fn another_target_is_another_server_and_another_environment_is_not() {
    let mut rig = Rig::new();
    rig.scene("a", scene("a"));
    rig.scene("other", scene("other"));
    mount(&mut rig, &[("a", "env = { TOKEN = \"one\" }")], &[]);
    let mut keeper = rig.keep("a/s/big");
    assert_eq!(rig.cat("a/s/a.txt"), ok("a"));
    let environ = |pid: i32| {
        let text = fs::read(format!("/proc/{pid}/environ")).unwrap();
        String::from_utf8_lossy(&text).into_owned()
    };
    assert!(environ(rig.server_pid("a")).contains("TOKEN=one"));
    let known = rig.server("a");
    // The server publishes something else by now: the window must hold all the same.
    rig.scene("a", scene("A"));
    write(&rig, &[("a", "env = { TOKEN = \"two\" }")]);
    let said = rig.ask(&["reload"]);
    assert_eq!(said, "connected anew: a; 0 unchanged\n");
    until("the next process", 10.0, || {
        rig.log("a", "start").len() == 2
    });
    until("the new listing", 10.0, || {
        rig.skill_status("a/s")["state"] == "changed"
    });
    assert!(environ(rig.server_pid("a")).contains("TOKEN=two"));
    assert_eq!(rig.server("a")["identity"], known["identity"]);
    assert_eq!(rig.server("a")["connection"]["connects"], 2);
    assert_eq!(rig.cat("a/s/a.txt"), ok("a"), "held");
    assert_eq!(keeper.fd().map(|t| t.len()), Ok(300_000));
    let all = format!("{}{}", rig.status(), rig.words());
    assert!(
        !all.contains("one\"") && !all.contains("TOKEN=two"),
        "{all}"
    );
    // The same label at another place: nothing of the first is shown.
    let entry = format!("[servers.a]\ntarget = {:?}\n", rig.scripted("other"));
    fs::write(config(&rig), entry).unwrap();
    assert_eq!(rig.ask(&["reload"]), "replaced: a; 0 unchanged\n");
    rig.ready("a");
    assert_eq!(rig.cat("a/s/a.txt"), ok("other"));
    assert_eq!(keeper.fd(), Err("ESTALE"));
    assert_ne!(rig.server("a")["identity"], known["identity"]);
}

#[test]
fn readers_that_wait_when_the_connection_is_made_anew_get_their_bytes() {
    let mut rig = Rig::new();
    let mut slow = scene("a");
    slow["rules"] = json!([{"method": "resources/read", "process": 1, "hang": true}]);
    rig.scene("a", slow);
    mount(&mut rig, &[("a", "")], &["--timeout", "30"]);
    let reader = rig.cat_later("a/s/a.txt");
    until("the request", 10.0, || rig.seen("a", "resources/read") == 1);
    write(&rig, &[("a", "env = { X = \"1\" }")]);
    assert_eq!(rig.ask(&["reload"]), "connected anew: a; 0 unchanged\n");
    assert_eq!(rig.outcome("a/s/a.txt", reader.finish(20.0)), ok("a"));
    assert_eq!(rig.seen("a", "resources/read"), 2);
}

/// What cannot be read leaves all as it is, and is told by whoever asked.
fn broken(mut rig: Rig) {
    rig.scene("a", scene("a"));
    mount(&mut rig, &[("a", "")], &[]);
    for (text, why) in [
        ("[servers.a", "servers.toml:1"),
        ("[servers.a]\ntarget = 1\n", "target"),
        ("nothing = 1\n", "nothing"),
    ] {
        fs::write(config(&rig), text).unwrap();
        let out = rig.tell(&["reload"]);
        if out.code == Some(0) {
            // One server that cannot be used is left out; it is not the file that is broken.
            assert!(text.contains("target"), "{text}: {out:?}");
            assert!(rig.words().contains(why), "{}", rig.words());
            write(&rig, &[("a", "")]);
            rig.ask(&["reload"]);
            rig.ready("a");
            continue;
        }
        assert_eq!(out.code, Some(1), "{text}: {out:?}");
        let said = [why, "all stays as it is"]
            .iter()
            .all(|w| out.err.contains(w));
        assert!(said && out.err.lines().count() == 1, "{out:?}");
        assert_eq!(rig.cat("a/s/a.txt"), ok("a"));
    }
    fs::remove_file(config(&rig)).unwrap();
    kill(rig.daemon_pid(), Signal::HUP);
    until("a warning", 10.0, || rig.words().contains("not reloaded"));
    assert_eq!(rig.cat("a/s/a.txt"), ok("a"));
    // An empty one is no mistake.
    fs::write(config(&rig), "[servers]\n").unwrap();
    kill(rig.daemon_pid(), Signal::HUP);
    until("an empty mount", 10.0, || {
        rig.ls("")
            .is_ok_and(|names| names == [".mount-skills", "README.md"])
    });
    write(&rig, &[("a", "")]);
    kill(rig.daemon_pid(), Signal::HUP);
    until("the server", 10.0, || {
        rig.ls("")
            .is_ok_and(|names| names.contains(&"a".to_owned()))
    });
    rig.ready("a");
    assert_eq!(rig.cat("a/s/a.txt"), ok("a"));
}

#[test]
fn a_file_that_cannot_be_read_leaves_all_as_it_is() {
    broken(Rig::new());
}

#[test]
fn a_users_mount_is_reloaded_as_well() {
    let (rig, _open) = nonroot::rig();
    broken(rig);
}

#[test]
fn settings_of_the_mount_count_from_the_next_start_on_and_the_answer_says_so() {
    let mut rig = Rig::new();
    rig.scene("a", scene("a"));
    mount(&mut rig, &[("a", "")], &[]);
    let entry = fs::read_to_string(config(&rig)).unwrap();
    fs::write(
        config(&rig),
        format!("hold = \"none\"\ntimeout = 3\n{entry}"),
    )
    .unwrap();
    let said = rig.ask(&["reload"]);
    assert_eq!(said, "1 unchanged; from the next start on: hold, timeout\n");
    let json: Value = serde_json::from_str(&rig.ask(&["reload", "--json"])).unwrap();
    assert_eq!(json["done"], true);
    assert_eq!(rig.status()["hold"], "release");
}

#[test]
fn without_a_file_a_reload_says_so_and_a_hang_up_ends_the_mount() {
    let mut rig = Rig::new();
    rig.scene("a", scene("a"));
    rig.up(&["a"], &[]);
    let out = rig.tell(&["reload"]);
    assert!(
        out.code == Some(1) && out.err.contains("command line"),
        "{out:?}"
    );
    assert_eq!(rig.cat("a/s/a.txt"), ok("a"));
    kill(rig.daemon_pid(), Signal::HUP);
    assert_eq!(rig.ended(10.0), Some(0));
    rig.nothing_left();
    let none = rig.tell(&["reload"]);
    assert!(
        none.code == Some(1) && none.err.contains("no mount-skills is running"),
        "{none:?}"
    );
}

#[test]
fn dynamic_skills_are_not_allowed_in_the_middle_and_new_named_skills_are_asked_for() {
    let mut rig = Rig::new();
    let mut hidden = scene("a");
    hidden["skills"][0]["listed"] = json!(false);
    let dynamic = json!({"path": "dyn", "files": {}, "entry": {"resources": "dynamic"}});
    hidden["skills"].as_array_mut().unwrap().push(dynamic);
    rig.scene("a", hidden);
    mount(&mut rig, &[("a", "")], &[]);
    assert_eq!(rig.server("a")["skills"], json!([]));
    write(
        &rig,
        &[(
            "a",
            "skills = [\"skill://s/SKILL.md\"]\nallow-dynamic = true",
        )],
    );
    assert_eq!(rig.ask(&["reload"]), "1 unchanged\n");
    until("the skill", 10.0, || {
        rig.skill_status("a/s")["state"] == "listed"
    });
    assert_eq!(rig.cat("a/s/a.txt"), ok("a"));
    assert!(
        rig.words().contains("only when the mount starts"),
        "{}",
        rig.words()
    );
    assert!(
        rig.declined("a", "skill://dyn/SKILL.md")
            .contains("dynamic")
    );
}

#[test]
fn many_reloads_at_once_and_an_end_in_the_middle_leave_nothing() {
    let mut rig = Rig::new();
    let labels = ["a", "b", "c", "d"];
    labels.iter().for_each(|l| rig.scene(l, scene(l)));
    mount(&mut rig, &[("a", "")], &[]);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mine = &rig;
        let asking: Vec<_> = (0..3)
            .map(|_| {
                let over = &over;
                scope.spawn(move || {
                    let mut answers: BTreeMap<Option<i32>, usize> = BTreeMap::new();
                    while !over.load(Ordering::Relaxed) {
                        *answers.entry(mine.tell(&["reload"]).code).or_default() += 1;
                    }
                    answers
                })
            })
            .collect();
        for n in 0..8 {
            let some: Vec<(&str, &str)> = labels.iter().skip(n % 3).map(|l| (*l, "")).collect();
            let new = config(&rig).with_extension("new");
            let text: String = some
                .iter()
                .map(|(l, _)| format!("[servers.{l}]\ntarget = {:?}\n", rig.scripted(l)))
                .collect();
            fs::write(&new, text).unwrap();
            fs::rename(&new, config(&rig)).unwrap();
            let last = some[0].0;
            until("the servers", 20.0, || {
                let names = rig.ls("").unwrap();
                names.len() == some.len() + 2 && names.contains(&last.to_owned())
            });
        }
        kill(rig.daemon_pid(), Signal::TERM);
        until("the end", 15.0, || rig.try_status().is_none());
        over.store(true, Ordering::Relaxed);
        for answers in asking {
            let answers = answers.join().unwrap();
            assert!(answers[&Some(0)] > 0, "{answers:?}");
            assert!(
                answers.keys().all(|code| matches!(code, Some(0 | 1))),
                "{answers:?}"
            );
        }
    });
    assert_eq!(rig.ended(15.0), Some(0));
    rig.nothing_left();
}
