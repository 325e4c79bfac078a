//! Servers that hang, die or come late, and ends of the daemon of every kind.

use crate::rig::{Proc, Rig, alive, is_root, kill, mounts_at, ok, processes_with, skill, until};
use crate::standing::{Standing, clean_cache, zombies};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::net::TcpListener;
use std::time::{Duration, Instant};

fn two_files() -> Value {
    json!({"skills": [skill("s", json!({"a.txt": "a\n", "b.txt": "b\n"}))]})
}

/// A scene that also has a file whose read is never answered.
fn stuck() -> Value {
    let files = json!({"stuck.txt": "late\n", "a.txt": "a\n"});
    let rule = json!({"method": "resources/read", "uri": "skill://s/stuck.txt", "hang": true});
    json!({"skills": [skill("s", files)], "rules": [rule]})
}

fn with(mut scene: Value, key: &str, value: Value) -> Value {
    scene[key] = value;
    scene
}

#[track_caller]
fn quickly<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    let took = start.elapsed();
    assert!(took < Duration::from_secs(2), "{what} took {took:?}");
    result
}

#[test]
fn c22_servers_that_hang_die_or_come_late_do_not_hold_up_a_good_one() {
    let mut rig = Rig::new();
    rig.scene("good", two_files());
    rig.scene("mute", json!({"rules": [{"hang": true}]}));
    rig.scene(
        "dead",
        json!({"start": {"exit": 3, "stderr": "no licence\n"}}),
    );
    rig.scene("slow", with(two_files(), "start", json!({"delay": 4})));
    let hole = TcpListener::bind("127.0.0.1:0").unwrap();
    let hole = format!("http://{}/mcp", hole.local_addr().unwrap());
    let [good, mute, dead, slow] = ["good", "mute", "dead", "slow"].map(|l| rig.scripted(l));
    let servers = [
        ("good", &*good),
        ("mute", &mute),
        ("dead", &dead),
        ("slow", &slow),
        ("hole", &hole),
    ];
    rig.mount(&servers, &["--start-timeout", "7"]);
    until("the good one", 5.0, || rig.cat("good/s/a.txt") == ok("a\n"));
    assert_eq!(
        rig.server("mute")["state"],
        "starting",
        "and the good one did not wait for it"
    );

    assert_eq!(rig.server("slow")["state"], "starting");
    for label in ["mute", "slow", "hole"] {
        assert_eq!(quickly(label, || rig.ls(label)), Err("EAGAIN"), "{label}");
        assert_eq!(
            quickly(label, || rig.cat(&format!("{label}/s/a.txt"))),
            Err("EAGAIN")
        );
    }
    until("the dead one to count as down", 5.0, || {
        quickly("dead", || rig.ls("dead")) == Err("EHOSTDOWN")
    });
    until("its last words", 15.0, || {
        let reason = rig.server("dead")["reason"].to_string();
        reason.contains("no licence")
    });
    let names = [
        ".mount-skills",
        "README.md",
        "dead",
        "good",
        "hole",
        "mute",
        "slow",
    ];
    assert_eq!(rig.ls("").unwrap(), names);
    until("the slow one, by itself", 20.0, || {
        rig.cat("slow/s/a.txt") == ok("a\n")
    });
    assert_eq!(rig.server("slow")["state"], "ready");
    assert_eq!(
        rig.log("slow", "start").len(),
        1,
        "and was not started anew"
    );
    for label in ["mute", "hole"] {
        until("silence to count as down", 30.0, || {
            rig.ls(label) == Err("EHOSTDOWN")
        });
        let reason = rig.server(label)["reason"].to_string();
        assert!(reason.contains("no answer within 7 s"), "{label}: {reason}");
    }
}

#[test]
fn c22_hr117_without_a_listing_a_directory_says_so_and_never_looks_empty() {
    let mut rig = Rig::new();
    let hang = json!([{"method": "skills/list", "hang": true}]);
    let fail = json!([{"method": "skills/list", "error": {"code": -32603, "message": "Oops"}}]);
    rig.scene("hangs", with(two_files(), "rules", hang));
    rig.scene("fails", with(two_files(), "rules", fail));
    let [hangs, fails] = ["hangs", "fails"].map(|l| rig.scripted(l));
    rig.mount(&[("hangs", &hangs), ("fails", &fails)], &[]);
    for label in ["hangs", "fails"] {
        until("its listing to be asked for", 10.0, || {
            rig.seen(label, "skills/list") > 0
        });
        assert_eq!(quickly(label, || rig.ls(label)), Err("EAGAIN"));
        assert_eq!(
            quickly(label, || rig.cat(&format!("{label}/s/a.txt"))),
            Err("EAGAIN")
        );
    }
    until("the reason", 5.0, || {
        rig.server("fails")["reason"].to_string().contains("Oops")
    });
    rig.scene("fails", two_files());
    until("the listing", 20.0, || {
        rig.cat("fails/s/a.txt") == ok("a\n")
    });
}

#[test]
fn c39_hr117_a_hung_read_ends_by_its_deadline_and_holds_up_nobody() {
    let mut rig = Rig::new();
    rig.scene("lab", stuck());
    rig.scene("other", two_files());
    rig.up(&["lab", "other"], &["--timeout", "2"]);
    let start = Instant::now();
    let readers: Vec<Proc> = (0..20).map(|_| rig.cat_later("lab/s/stuck.txt")).collect();
    until("the read", 5.0, || rig.seen("lab", "resources/read") == 1);
    for line in [
        "ls -l $M $M/lab/s",
        "df $M",
        "stat -f $M",
        "cat $M/lab/s/a.txt",
        "cat $M/other/s/a.txt",
    ] {
        quickly(line, || rig.sh(line).good());
    }
    for reader in readers {
        assert_eq!(rig.outcome("stuck", reader.finish(10.0)), Err("ETIMEDOUT"));
    }
    let took = start.elapsed();
    assert!(
        took < Duration::from_secs(5),
        "2 s are given, not twice 2 s: {took:?}"
    );
    assert_eq!(
        rig.reads("lab")["skill://s/stuck.txt"],
        1,
        "{:#?}",
        rig.log("lab", "request")
    );
    let refusal = rig.refusal("lab", "lab/s/stuck.txt");
    assert!(
        refusal["reason"].as_str().unwrap().contains("deadline"),
        "{refusal:#}"
    );
    let cancelled = || {
        rig.log("lab", "note")
            .iter()
            .any(|n| n["method"] == "notifications/cancelled")
    };
    until("the server to be told", 5.0, cancelled);

    rig.scene("lab", with(stuck(), "rules", json!([])));
    until("the mended file", 5.0, || {
        rig.cat("lab/s/stuck.txt") == ok("late\n")
    });
}

#[test]
fn hr118_a_signal_ends_a_waiting_reader_also_one_with_a_handler() {
    let mut rig = Rig::new();
    // A page that somebody else's read has locked can only be left by dying: the kernel's own rule.
    // So the one with a handler has a file of its own.
    let files: serde_json::Map<String, Value> = (0..201)
        .map(|n| (format!("{n}.txt"), json!(format!("{n}\n"))))
        .collect();
    let rules = json!([{"method": "resources/read", "hang": true}]);
    rig.scene(
        "lab",
        json!({"skills": [skill("s", Value::Object(files))], "rules": rules}),
    );
    rig.up(&["lab"], &["--timeout", "60"]);
    let mut readers: Vec<Proc> = (0..200)
        .map(|n| rig.cat_later(&format!("lab/s/{n}.txt")))
        .collect();
    until("200 reads", 30.0, || {
        rig.seen("lab", "resources/read") == 200
    });

    let python = "import sys\ntry:\n    open(sys.argv[1], 'rb').read()\nexcept KeyboardInterrupt:\n    print('interrupted')";
    let mut command = rig.command("env");
    command
        .args(["--default-signal=INT", "python3", "-c", python])
        .arg(rig.path("lab/s/200.txt"));
    let handler = Proc::spawn(&mut command);
    let in_read = |p: &Proc| {
        let call = fs::read_to_string(format!("/proc/{}/wchan", p.pid())).unwrap_or_default();
        call.contains("folio") || call.contains("fuse") || call.contains("request_wait")
    };
    until("python to wait for content", 10.0, || {
        rig.seen("lab", "resources/read") == 201 && in_read(&handler)
    });
    handler.signal(Signal::INT);
    let out = quickly("SIGINT with a handler", || handler.finish(10.0));
    assert_eq!(
        (out.code, out.text().trim()),
        (Some(0), "interrupted"),
        "{out:?}"
    );

    for signal in [Signal::INT, Signal::KILL, Signal::TERM] {
        let reader = readers.pop().unwrap();
        reader.signal(signal);
        let out = quickly("a signal", || reader.finish(10.0));
        assert_eq!((out.code, out.out.len()), (None, 0), "{signal:?}");
    }
    assert!(readers.iter_mut().all(Proc::runs), "the others wait on");
}

#[test]
fn c24_hr88_a_killed_server_leaves_what_was_read_and_comes_back_by_itself() {
    let mut rig = Rig::new();
    rig.scene("lab", two_files());
    rig.up(&["lab"], &["--timeout", "30"]);
    assert_eq!(rig.cat("lab/s/a.txt"), ok("a\n"));
    rig.scene("lab", with(two_files(), "start", json!({"exit": 1})));
    kill(rig.server_pid("lab"), Signal::KILL);
    let start = Instant::now();
    assert_eq!(rig.cat("lab/s/b.txt"), Err("EHOSTDOWN"));
    assert!(
        start.elapsed() < Duration::from_secs(3),
        "the bound is 1 s: {:?}",
        start.elapsed()
    );
    assert_eq!(rig.cat("lab/s/a.txt"), ok("a\n"));
    if is_root() {
        Rig::drop_kernel_caches();
        assert_eq!(rig.cat("lab/s/a.txt"), ok("a\n"));
    }
    assert_eq!(rig.ls("lab/s").unwrap(), ["SKILL.md", "a.txt", "b.txt"]);
    until("its state", 5.0, || rig.server("lab")["state"] == "down");
    rig.scene("lab", two_files());
    until("the server to be back", 40.0, || {
        rig.cat("lab/s/b.txt") == ok("b\n")
    });
    assert_eq!(rig.server("lab")["state"], "ready");
}

/// How long the counting of starts takes; `MOUNT_SKILLS_LONG=1` makes it two minutes.
fn counting() -> (u64, usize) {
    match std::env::var_os("MOUNT_SKILLS_LONG") {
        None => (20, 5),
        Some(_) => (120, 10),
    }
}

#[test]
fn c24_hr120_servers_that_die_again_and_again_are_started_ever_more_seldom() {
    let (seconds, most) = counting();
    let mut rig = Rig::with_limit(seconds + 90);
    rig.scene("start", json!({"start": {"exit": 1}}));
    rig.scene("listed", two_files());
    let targets = ["start", "listed"].map(|l| rig.scripted(l));
    rig.mount(
        &[
            ("start", &targets[0]),
            ("listed", &targets[1]),
            ("none", "no-such-command"),
        ],
        &[],
    );
    rig.ready("listed");
    assert_eq!(rig.cat("listed/s/a.txt"), ok("a\n"));
    let after_list = json!([{"method": "skills/list", "exit": 0, "cut": 1}]);
    rig.scene("listed", with(two_files(), "rules", after_list));
    kill(rig.server_pid("listed"), Signal::KILL);
    let end = Instant::now() + Duration::from_secs(seconds);
    until("the time to pass", seconds as f64 + 10.0, || {
        Instant::now() > end
    });
    for (label, good) in [("start", 0), ("listed", 1)] {
        let times: Vec<f64> = rig
            .log(label, "start")
            .iter()
            .map(|r| r["time"].as_f64().unwrap())
            .collect();
        let died = &times[good..];
        assert!(
            (3..=most).contains(&died.len()),
            "{label} was started {} times in {seconds} s",
            died.len()
        );
        let gaps: Vec<f64> = died.windows(2).map(|w| w[1] - w[0]).collect();
        assert!(
            gaps.last() > gaps.first(),
            "{label}: the gaps grow: {gaps:?}"
        );
    }
    assert_eq!(
        rig.ls("listed/s").unwrap(),
        ["SKILL.md", "a.txt", "b.txt"],
        "its listing is shown"
    );
    if is_root() {
        Rig::drop_kernel_caches();
    }
    assert_eq!(rig.cat("listed/s/a.txt"), ok("a\n"), "what was read before");
    assert_eq!(
        quickly("an uncached read", || rig.cat("listed/s/b.txt")),
        Err("EHOSTDOWN")
    );
    rig.scene("listed", two_files());
    until("the server that behaves again", 45.0, || {
        rig.cat("listed/s/b.txt") == ok("b\n")
    });
}

#[test]
fn hr85_hr88_a_restart_without_the_server_serves_the_stored_listing_and_what_is_cached() {
    let mut rig = Rig::new();
    rig.scene("lab", two_files());
    rig.up(&["lab"], &[]);
    assert_eq!(rig.cat("lab/s/a.txt"), ok("a\n"));
    rig.blob(b"a\n");
    rig.scene("lab", with(two_files(), "start", json!({"exit": 1})));
    let target = rig.scripted("lab");
    rig.remount(&[("lab", &target)], &[]);
    assert_eq!(rig.ls("lab/s").unwrap(), ["SKILL.md", "a.txt", "b.txt"]);
    assert_eq!(rig.cat("lab/s/a.txt"), ok("a\n"));
    until("the server to count as down", 5.0, || {
        rig.server("lab")["state"] == "down"
    });
    assert_eq!(rig.cat("lab/s/b.txt"), Err("EHOSTDOWN"));
    assert_eq!(rig.server("lab")["listing"], "stored");
    rig.scene("lab", two_files());
    until("the server", 40.0, || rig.cat("lab/s/b.txt") == ok("b\n"));
}

// ---- ends of the daemon ----

#[test]
fn c25_c38_a_killed_daemon_leaves_nothing_and_starts_again_in_the_same_place() {
    let mut rig = Rig::new();
    let deaf = json!({"child": true, "ignoreEof": true, "ignoreTerm": true});
    rig.scene("lab", with(two_files(), "start", deaf));
    rig.up(&["lab"], &[]);
    assert_eq!(rig.cat("lab/s/a.txt"), ok("a\n"));
    let mut inside = rig.command("sleep");
    let mut inside = Proc::spawn(inside.arg("300").current_dir(rig.path("lab/s")));
    rig.kill_daemon();
    rig.nothing_left();
    assert!(
        inside.runs(),
        "who had its working directory in the mount lives on"
    );

    // Without a guard only the server itself dies, by its parent-death signal.
    rig.scene("lab", two_files());
    rig.up(&["lab"], &[]);
    assert_eq!(rig.cat("lab/s/b.txt"), ok("b\n"));
    let guards = processes_with(&format!("__guard {}", rig.mount_point().display()));
    assert_eq!(guards.len(), 1, "{guards:?}");
    kill(guards[0].0, Signal::KILL);
    let server = rig.server_pid("lab");
    rig.kill_daemon();
    assert_eq!(
        mounts_at(rig.mount_point()).len(),
        1,
        "nobody is left to take the mount away"
    );
    until("the server to die with its parent", 5.0, || !alive(server));
    rig.up(&["lab"], &[]);
    assert_eq!(mounts_at(rig.mount_point()).len(), 1);
    assert_eq!(rig.cat("lab/s/b.txt"), ok("b\n"));
}

#[test]
fn f28_c38_hr25_places_that_must_not_be_mounted_on_are_refused_and_left_alone() {
    let mut rig = Rig::new();
    rig.scene("lab", two_files());
    rig.scene("never", two_files());
    rig.up(&["lab"], &[]);
    let never = format!("never={}", rig.scripted("never"));
    let mount = |at: &std::path::Path| rig.cli(&["--server", &never, &at.display().to_string()]);

    let full = rig.dir().join("full");
    fs::create_dir_all(full.join("x")).unwrap();
    let file = rig.dir().join("file");
    fs::write(&file, "mine").unwrap();
    let local = rig.dir().join("home/.claude/skills/x");
    let mut places = vec![
        (rig.mount_point().to_owned(), "already mounted"),
        (full, "not empty"),
        (file.clone(), "is a file"),
        (file.join("below"), "Not a directory"),
        (local.clone(), "local skills"),
    ];
    let foreign = rig.dir().join("foreign");
    if is_root() {
        fs::create_dir(&foreign).unwrap();
        rig.sh("mount -t tmpfs none foreign").good();
        places.push((foreign.clone(), "tmpfs"));
    }
    for (place, why) in &places {
        let out = mount(place);
        assert_eq!(out.code, Some(1), "{place:?}: {out:?}");
        assert!(
            out.err.lines().count() == 1 && out.err.contains(why),
            "{place:?}: {out:?}"
        );
    }
    assert_eq!(mounts_at(rig.mount_point()).len(), 1);
    let nowhere = places
        .iter()
        .map(|(p, _)| p)
        .filter(|p| *p != rig.mount_point() && *p != &foreign && !mounts_at(p).is_empty());
    assert_eq!(nowhere.count(), 0, "nothing is half mounted");
    if is_root() {
        assert_eq!(mounts_at(&foreign), ["tmpfs"]);
        rig.sh("umount foreign").good();
    }
    assert!(!local.exists() && fs::read(&file).unwrap() == b"mine");
    assert!(
        rig.log("never", "start").is_empty(),
        "no server is started for nothing"
    );
    assert_eq!(rig.cat("lab/s/a.txt"), ok("a\n"), "the live mount goes on");
}

#[test]
fn c38_of_two_daemons_started_at_once_one_mounts_and_the_other_says_why_not() {
    let rig = Rig::new();
    rig.scene("lab", two_files());
    let target = rig.scripted("lab");
    for _ in 0..3 {
        let servers = [("lab", target.as_str())];
        let mut both = [(); 2].map(|()| Proc::spawn(&mut rig.daemon_command(&servers, &[])));
        until("one of two to give up", 5.0, || {
            both.iter_mut().any(|d| !d.runs())
        });
        until("the other to mount", 5.0, || {
            mounts_at(rig.mount_point()).len() == 1
        });
        both.sort_by_key(|d| !alive(d.pid()));
        let [winner, loser] = both;
        let out = loser.finish(5.0);
        assert_eq!(out.code, Some(1), "{out:?}");
        assert!(out.err.contains("already mounted"), "{out:?}");
        until("the mount to read", 10.0, || {
            rig.cat("lab/s/a.txt") == ok("a\n")
        });
        winner.signal(Signal::TERM);
        assert_eq!(winner.finish(10.0).code, Some(0));
        rig.nothing_left();
    }
}

#[test]
fn a_mount_point_that_is_missing_is_made_and_removed_again() {
    let mut rig = Rig::new();
    rig.scene("lab", two_files());
    fs::remove_dir(rig.mount_point()).unwrap();
    rig.up(&["lab"], &[]);
    assert_eq!(rig.cat("lab/s/a.txt"), ok("a\n"));
    rig.stop();
    assert!(!rig.mount_point().exists());
    fs::create_dir(rig.mount_point()).unwrap();
    rig.up(&["lab"], &[]);
    rig.stop();
    assert!(rig.mount_point().exists(), "one that was there stays");
}

/// Ends the mount in some way.
type End = (&'static str, fn(&Rig));

const ENDS: [End; 6] = [
    ("SIGTERM", |rig| kill(rig.daemon_pid(), Signal::TERM)),
    ("SIGINT", |rig| kill(rig.daemon_pid(), Signal::INT)),
    ("SIGHUP", |rig| kill(rig.daemon_pid(), Signal::HUP)),
    ("mount-skills unmount", |rig| {
        rig.cli(&["unmount", &rig.mount_point().display().to_string()])
            .good();
    }),
    ("fusermount3 -uz", |rig| {
        drop(rig.sh("fusermount3 -uz $M").good())
    }),
    ("umount", |rig| {
        drop(rig.sh("umount $M || fusermount3 -u $M").good())
    }),
];

#[test]
fn c25_every_regular_end_leaves_nothing_and_exits_with_0() {
    let mut rig = Rig::new();
    let deaf = json!({"child": true, "ignoreEof": true, "ignoreTerm": true});
    rig.scene("deaf", with(two_files(), "start", deaf));
    rig.scene(
        "lab",
        with(two_files(), "start", json!({"child": "inherit"})),
    );
    for (name, end) in ENDS {
        // As npx does it: a shell that does not pass signals on, with the server behind it.
        let wrapped = format!("sh -c 'exec 3<&0; {} <&3 & wait'", rig.scripted("lab"));
        let deaf = rig.scripted("deaf");
        rig.mount(&[("lab", &wrapped), ("deaf", &deaf)], &[]);
        rig.ready("lab");
        rig.ready("deaf");
        assert_eq!(rig.cat("lab/s/a.txt"), ok("a\n"), "before {name}");
        end(&rig);
        assert_eq!(rig.ended(10.0), Some(0), "{name}: {}", rig.words());
        rig.nothing_left();
    }
    let socket = fs::read_dir(rig.dir().join("run/mount-skills/run"))
        .unwrap()
        .count();
    assert_eq!(socket, 0, "its socket is gone too");
}

#[test]
fn f21_f40_c47_the_end_comes_also_while_the_mount_is_in_use() {
    let mut rig = Rig::new();
    rig.scene("lab", stuck());
    let more: [End; 2] = [
        ("umount -l", |rig| {
            drop(rig.sh("umount -l $M || fusermount3 -uz $M").good())
        }),
        ("SIGTERM twice", |rig| {
            kill(rig.daemon_pid(), Signal::TERM);
            kill(rig.daemon_pid(), Signal::TERM);
        }),
    ];
    // `umount` alone says busy, as it should: see below.
    for (name, end) in ENDS[..5].iter().chain(&more) {
        rig.up_beside_control(&["lab"], "60", &[]);
        let standing = Standing::begin(&rig, 60.0, &[("lab/s/a.txt", "a\n")]);
        let reads = rig.seen("lab", "resources/read");
        let parked = rig.cat_later("lab/s/stuck.txt");
        until("a parked read", 10.0, || {
            rig.seen("lab", "resources/read") > reads
        });
        let open = File::open(rig.path("lab/s/a.txt")).unwrap();
        let mut inside = rig.command("sleep");
        let inside = Proc::spawn(inside.arg("300").current_dir(rig.path("lab/s")));
        // `umount` alone says busy, and nothing has changed.
        for plain in ["umount $M", "fusermount3 -u $M"] {
            let out = rig.sh(plain);
            assert!(
                out.code != Some(0) && out.err.contains("busy"),
                "{plain}: {out:?}"
            );
        }
        standing.end(&rig);
        end(&rig);
        until("the mount to go", 5.0, || {
            mounts_at(rig.mount_point()).is_empty()
        });
        let mut in_use = Some((parked, open));
        if ["fusermount3 -uz", "umount -l"].contains(name) {
            // Whoever detaches the mount without asking us lets those in it go on to their end.
            assert!(rig.daemon_runs(), "{}", rig.words());
            let look = format!("cat /proc/{}/cwd/a.txt", inside.pid());
            assert_eq!(rig.sh(&look).good(), "a\n");
            drop(in_use.take());
        }
        let look = format!("cd /proc/{}/cwd && ls", inside.pid());
        match in_use {
            Some((parked, _open)) => {
                assert_eq!(rig.ended(5.0), Some(0), "{name}: {}", rig.words());
                assert_ne!(parked.finish(5.0).code, Some(0), "{name}");
                let looked = rig.sh(&look);
                assert!(
                    matches!(looked.errno(), Some("ENOTCONN" | "ENOENT")),
                    "{name}: an error, not a hang: {looked:?}"
                );
                drop(inside);
            }
            None => {
                let daemon = rig.daemon_pid();
                until("no zombie", 5.0, || zombies(daemon).is_empty());
                drop(inside);
                assert_eq!(rig.ended(5.0), Some(0), "{name}: {}", rig.words());
            }
        }
        assert!(!rig.words().contains("panicked"), "{}", rig.words());
        rig.nothing_left();
        clean_cache(&rig);
    }
}

#[test]
fn c47_an_unmount_that_is_told_busy_changes_nothing() {
    let mut rig = Rig::new();
    rig.scene("lab", two_files());
    rig.up(&["lab"], &[]);
    let open = File::open(rig.path("lab/s/a.txt")).unwrap();
    for line in ["fusermount3 -u $M", "umount $M"] {
        let out = rig.sh(line);
        assert_ne!(out.code, Some(0), "{line}");
        assert!(out.err.contains("busy") || !is_root(), "{line}: {out:?}");
        assert!(
            rig.daemon_runs() && mounts_at(rig.mount_point()).len() == 1,
            "{line}"
        );
        assert_eq!(rig.cat("lab/s/a.txt"), ok("a\n"), "{line}");
    }
    drop(open);
    rig.sh("fusermount3 -u $M").good();
    assert_eq!(rig.ended(5.0), Some(0), "{}", rig.words());
    rig.nothing_left();
}

#[test]
fn c47_a_signal_during_the_start_and_two_at_once_are_an_end_as_well() {
    let mut rig = Rig::new();
    rig.scene("lab", with(two_files(), "start", json!({"delay": 30})));
    let target = rig.scripted("lab");
    rig.mount(&[("lab", &target)], &[]);
    until("the server to start", 10.0, || {
        !rig.log("lab", "start").is_empty()
    });
    kill(rig.daemon_pid(), Signal::TERM);
    kill(rig.daemon_pid(), Signal::TERM);
    assert_eq!(rig.ended(5.0), Some(0), "{}", rig.words());
    rig.nothing_left();

    // At any moment before that: the signal's own death is one only while there is nothing yet.
    for delay in [0, 2, 5, 10, 20, 40, 80, 160, 320] {
        let daemon = Proc::spawn(&mut rig.daemon_command(&[("lab", &target)], &[]));
        std::thread::sleep(Duration::from_millis(delay));
        daemon.signal(Signal::TERM);
        let out = daemon.finish(5.0);
        assert!(
            matches!(out.code, Some(0) | None),
            "after {delay} ms: {out:?}"
        );
        rig.nothing_left();
    }
    rig.scene("lab", two_files());
    rig.up(&["lab"], &[]);
    assert_eq!(
        rig.cat("lab/s/a.txt"),
        ok("a\n"),
        "a new start works at once"
    );
}
