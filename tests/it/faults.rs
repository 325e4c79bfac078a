//! The fault matrix, one test a row: servers that break off or hang, the disk and the clock. What
//! readers see, and the invariants of [`standing`](crate::standing) throughout. What servers say
//! wrong is in [`faults_protocol`](crate::faults_protocol).

use crate::rig::{Content, Rig, alive, is_root, kill, ok, run, skill, skill_md, until};
use crate::standing::{CONTROL, Standing, control};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) const A: (&str, &str) = ("lab/s/a.txt", "a\n");
pub(crate) const B: (&str, &str) = ("lab/s/b.txt", "b\n");

pub(crate) fn two_files() -> Value {
    json!({"skills": [skill("s", json!({"a.txt": "a\n", "b.txt": "b\n"}))]})
}

/// The same with rules for reads of `a.txt`.
pub(crate) fn reads_of_a(rules: &[Value]) -> Value {
    let mut scene = two_files();
    let rules = rules.iter().cloned().map(|mut rule| {
        rule["method"] = "resources/read".into();
        rule["uri"] = "skill://s/a.txt".into();
        rule
    });
    scene["rules"] = rules.collect();
    scene
}

#[test]
fn f01_a_server_that_dies_in_the_middle_of_a_reply_costs_one_more_try() {
    let mut rig = Rig::new();
    rig.scene("lab", two_files());
    rig.up_beside_control(&["lab"], "8", &[]);
    let standing = Standing::begin(&rig, 8.0, &[A, B]);
    rig.scene("lab", reads_of_a(&[json!({"cut": 0.5, "times": 1})]));
    // Whether the next process comes within the reader's patience is the machine's business.
    let got = standing.read(&rig, A.0);
    assert!([ok(A.1), Err("EHOSTDOWN")].contains(&got), "{got:?}");
    let asked = rig.seen("lab", "resources/read");
    assert_eq!(asked, if got.is_ok() { 2 } else { 1 });
    let read_b = json!({"method": "resources/read", "uri": "skill://s/b.txt", "cut": 0.5});
    let mut scene = two_files();
    scene["rules"] = json!([read_b]);
    rig.scene("lab", scene);
    rig.ready("lab");
    assert_eq!(
        standing.read(&rig, B.0),
        Err("EHOSTDOWN"),
        "not again and again"
    );
    let more = rig.seen("lab", "resources/read") - asked;
    assert!([1, 2].contains(&more), "{more}");
    rig.scene("lab", two_files());
    standing.end(&rig);
}

#[test]
fn f01_a_reply_over_http_that_breaks_off_is_asked_for_once_more() {
    let mut rig = Rig::new();
    let once = json!({"cut": 0.5, "times": 1});
    let mut scene = reads_of_a(&[once]);
    let always = json!({"method": "resources/read", "uri": "skill://s/b.txt", "cut": 0.5});
    scene["rules"].as_array_mut().unwrap().push(always);
    rig.scene("lab", scene);
    up_by(&mut rig, true, &["--timeout", "8"]);
    let standing = Standing::begin(&rig, 8.0, &[A, B]);
    assert_eq!(standing.read(&rig, A.0), ok(A.1));
    assert_eq!(standing.read(&rig, B.0), Err("EHOSTDOWN"));
    let reads: Vec<usize> = rig.reads("lab").into_values().collect();
    assert_eq!(reads, [2, 2], "once more, and not again and again");
    rig.scene("lab", two_files());
    standing.end(&rig);
}

#[test]
fn f02_a_server_that_never_answers_ends_in_etimedout_and_in_eintr_at_once() {
    let mut rig = Rig::new();
    rig.scene("lab", reads_of_a(&[json!({"hang": true})]));
    rig.up_beside_control(&["lab"], "3", &[]);
    let standing = Standing::begin(&rig, 3.0, &[A, B]);
    let interrupted = rig.cat_later(A.0);
    until("the read to be asked", 5.0, || {
        rig.seen("lab", "resources/read") == 1
    });
    kill(interrupted.pid(), Signal::INT);
    assert_eq!(interrupted.finish(2.0).code, None, "ended by the signal");
    assert_eq!(standing.read(&rig, A.0), Err("ETIMEDOUT"));
    assert_eq!(standing.read(&rig, B.0), ok(B.1), "another file of it");
    assert_eq!(rig.ls("lab/s").unwrap(), ["SKILL.md", "a.txt", "b.txt"]);
    rig.scene("lab", two_files());
    standing.end(&rig);
}

#[test]
fn f03_a_reply_that_drips_ends_at_the_deadline_of_the_whole() {
    for http in [false, true] {
        let mut rig = Rig::new();
        rig.scene("lab", reads_of_a(&[json!({"drip": [1, 0.5]})]));
        up_by(&mut rig, http, &["--timeout", "2", "--start-timeout", "5"]);
        let standing = Standing::begin(&rig, 2.0, &[A, B]);
        assert_eq!(standing.read(&rig, A.0), Err("ETIMEDOUT"), "http: {http}");
        // Over stdio the reply still drips, in everybody's way: the process is given up.
        rig.scene("lab", two_files());
        standing.end(&rig);
        assert_eq!(rig.log("lab", "start").len(), if http { 1 } else { 2 });
    }
}

#[test]
fn f02_a_process_that_hangs_for_good_is_started_anew() {
    let mut rig = Rig::new();
    rig.scene("lab", two_files());
    rig.up_beside_control(&["lab"], "1", &["--start-timeout", "3"]);
    let standing = Standing::begin(&rig, 1.0, &[A, B]);
    let hung = rig.server_pid("lab");
    kill(hung, Signal::STOP);
    assert_eq!(standing.read(&rig, A.0), Err("ETIMEDOUT"));
    assert!(alive(hung), "one question without an answer is not enough");
    standing.end(&rig);
    assert!(!alive(hung));
    assert_eq!(rig.log("lab", "start").len(), 2);
}

#[test]
fn f02_a_process_that_is_slow_is_left_alone() {
    let mut rig = Rig::new();
    rig.scene("lab", reads_of_a(&[json!({"delay": 2})]));
    rig.up_beside_control(&["lab"], "1", &["--start-timeout", "3"]);
    let standing = Standing::begin(&rig, 1.0, &[A, B]);
    for _ in 0..5 {
        assert_eq!(standing.read(&rig, A.0), Err("ETIMEDOUT"));
    }
    assert_eq!(rig.log("lab", "start").len(), 1);
    rig.scene("lab", two_files());
    standing.end(&rig);
}

/// How long a test that repeats something goes on: seconds in a run, minutes by hand.
pub(crate) fn looping() -> Duration {
    let given = std::env::var("MOUNT_SKILLS_FAULT_SECONDS").ok();
    Duration::from_secs(given.map_or(4, |s| s.parse().expect("a number of seconds")))
}

/// Mounts the label over stdio or HTTP, beside the one that no fault is done to.
pub(crate) fn up_by(rig: &mut Rig, http: bool, flags: &[&str]) {
    rig.scene(CONTROL, control());
    let lab = match http {
        true => rig.scripted_http("lab"),
        false => rig.scripted("lab"),
    };
    let control = rig.scripted(CONTROL);
    rig.mount(&[("lab", &lab), (CONTROL, &control)], flags);
    rig.ready("lab");
    rig.ready(CONTROL);
}

// ---- the disk ----

/// Waits until both files are in the cache; where.
fn cached(rig: &Rig) -> [PathBuf; 2] {
    assert_eq!((rig.cat(A.0), rig.cat(B.0)), (ok(A.1), ok(B.1)));
    [A, B].map(|(_, content)| rig.blob(content.as_bytes()))
}

/// Harms what is kept, with the daemon running and then at rest, with the server up and down.
fn harmed(harm: &dyn Fn(&Rig, &Path), offline: Content) {
    let mut rig = Rig::new();
    rig.scene("lab", two_files());
    rig.up_beside_control(&["lab"], "5", &[]);
    let standing = Standing::begin(&rig, 5.0, &[A, B]);
    let [a, _] = cached(&rig);
    let mut keeper = rig.keep(A.0);
    harm(&rig, &a);
    assert_eq!(
        (keeper.fd(), keeper.map()),
        (ok(A.1), ok(A.1)),
        "an open file is unaffected"
    );
    drop(keeper);
    if is_root() {
        Rig::drop_kernel_caches();
    }
    assert_eq!(standing.read(&rig, A.0), ok(A.1));
    // The one in memory was right; the one on the disk is looked at by the next daemon.
    let servers = [
        ("lab", rig.scripted("lab")),
        (CONTROL, rig.scripted(CONTROL)),
    ];
    let servers = [
        (servers[0].0, &*servers[0].1),
        (servers[1].0, &*servers[1].1),
    ];
    drop(standing);
    rig.remount(&servers, &["--timeout", "5"]);
    rig.ready("lab");
    rig.ready(CONTROL);
    let standing = Standing::begin(&rig, 5.0, &[A, B]);
    assert_eq!(standing.read(&rig, A.0), ok(A.1), "with the server up");
    standing.end(&rig);
    harm(&rig, &rig.blob(A.1.as_bytes()));
    rig.scene("lab", {
        let mut down = two_files();
        down["start"] = json!({"exit": 1});
        down
    });
    rig.remount(&servers, &["--timeout", "5"]);
    rig.ready(CONTROL);
    let standing = Standing::begin(&rig, 5.0, &[A, B]);
    assert_eq!(standing.read(&rig, A.0), offline, "with the server down");
    assert_eq!(standing.read(&rig, B.0), ok(B.1), "what is not harmed");
    // Its process has descriptors as well, so what there must be counts from here.
    drop(standing);
    rig.scene("lab", two_files());
    rig.ready("lab");
    Standing::begin(&rig, 5.0, &[A, B]).end(&rig);
}

fn writable(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn f14_a_flipped_byte_in_the_cache_is_never_served() {
    harmed(
        &|_, blob| {
            writable(blob);
            fs::write(blob, "b\n").unwrap();
        },
        Err("EHOSTDOWN"),
    );
}

#[test]
fn f15_what_a_name_or_a_time_says_decides_nothing() {
    // The right bytes under the wrong name, with another time; and a copy under its right name.
    harmed(
        &|rig, blob| {
            let other = rig.blob(B.1.as_bytes());
            fs::remove_file(blob).unwrap();
            fs::copy(&other, blob).unwrap();
            run(rig
                .command("touch")
                .args(["-d", "2001-01-01"])
                .arg(blob)
                .arg(&other))
            .good();
        },
        Err("EHOSTDOWN"),
    );
}

#[test]
fn f18_what_is_planted_in_the_cache_is_neither_followed_nor_waited_for() {
    let secret = |rig: &Rig| {
        let path = rig.dir().join("secret");
        fs::write(&path, "a\n").unwrap();
        path
    };
    let untouched =
        |rig: &Rig| assert_eq!(fs::read_to_string(rig.dir().join("secret")).unwrap(), "a\n");
    harmed(
        &|rig, blob| {
            fs::remove_file(blob).unwrap();
            std::os::unix::fs::symlink(secret(rig), blob).unwrap();
            untouched(rig);
        },
        Err("EHOSTDOWN"),
    );
    harmed(
        &|rig, blob| {
            fs::remove_file(blob).unwrap();
            run(rig.command("mkfifo").arg(blob)).good();
        },
        Err("EHOSTDOWN"),
    );
    harmed(
        &|_, blob| {
            fs::remove_file(blob).unwrap();
            fs::create_dir(blob).unwrap();
        },
        Err("EHOSTDOWN"),
    );
    if is_root() {
        harmed(
            &|rig, blob| {
                fs::remove_file(blob).unwrap();
                run(rig.command("mknod").arg(blob).args(["c", "1", "5"])).good();
            },
            Err("EHOSTDOWN"),
        );
    }
    // Another name for somebody's file: its bytes are checked like all others.
    harmed(
        &|rig, blob| {
            fs::remove_file(blob).unwrap();
            fs::hard_link(secret(rig), blob).unwrap();
            untouched(rig);
        },
        ok(A.1),
    );
}

#[test]
fn f13_a_full_disk_costs_one_warning_and_no_read() {
    assert!(is_root(), "only root can mount the small disk of this test");
    let mut rig = Rig::new();
    let big = |fill: &str| json!({"fill": fill, "size": 3 << 20});
    let scene =
        json!({"skills": [skill("s", json!({"a.txt": "a\n", "x": big("x"), "y": big("y")}))]});
    rig.scene("lab", scene);
    rig.sh("mount -t tmpfs -o size=1m,mode=0700 none cache")
        .good();
    rig.up_beside_control(&["lab"], "20", &[]);
    let (x, y) = ("x".repeat(3 << 20), "y".repeat(3 << 20));
    let standing = Standing::begin(&rig, 20.0, &[("lab/s/x", &x), ("lab/s/y", &y), A]);
    for _ in 0..2 {
        Rig::drop_kernel_caches();
        assert!(
            standing.read(&rig, "lab/s/x") == ok(&x) && standing.read(&rig, "lab/s/y") == ok(&y)
        );
    }
    let warnings = || rig.words().matches("cache is not used").count();
    until("a warning", 5.0, || warnings() == 1);
    assert_eq!(standing.read(&rig, A.0), ok(A.1));
    rig.blob(A.1.as_bytes());
    standing.end(&rig);
    assert_eq!(warnings(), 1, "{}", rig.words());
    rig.stop();
    rig.sh("umount cache").good();
}

#[test]
fn f16_tampered_state_holds_and_approves_nothing() {
    // What is done to a file, and a copy of it from another label.
    type Tamper = (&'static str, fn(&Path, &Path));
    let tampers: [Tamper; 4] = [
        ("flipped", |file, _| {
            let mut bytes = fs::read(file).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(file, bytes).unwrap();
        }),
        ("cut", |file, _| {
            let bytes = fs::read(file).unwrap();
            fs::write(file, &bytes[..bytes.len() - 3]).unwrap();
        }),
        ("emptied", |file, _| fs::write(file, "").unwrap()),
        ("swapped", |file, other| {
            assert!(fs::copy(other, file).unwrap() > 0)
        }),
    ];
    for (what, tamper) in tampers {
        let mut rig = Rig::new();
        rig.scene("lab", two_files());
        rig.scene("twin", two_files());
        let flags = ["--approval", "each"];
        rig.up_beside_control(&["lab", "twin"], "5", &["--approval", "server"]);
        for label in ["lab", "twin"] {
            rig.approve(&format!("{label}/s"));
            assert_eq!(rig.cat(&format!("{label}/s/a.txt")), ok(A.1));
        }
        rig.journalled(&["skill://s/SKILL.md"]);
        until("both journals", 5.0, || {
            rig.journals().len() == 2 || rig.journals().len() == 3
        });
        rig.kill_daemon();
        rig.nothing_left();
        let state = rig.dir().join("state/mount-skills/v1");
        let of = |label: &str| {
            let dirs = fs::read_dir(&state).unwrap().flatten().map(|e| e.path());
            let prefix = format!("{label}-");
            dirs.into_iter()
                .find(|d| {
                    d.file_name()
                        .unwrap()
                        .to_string_lossy()
                        .starts_with(&prefix)
                })
                .unwrap()
        };
        for name in ["listing.json", "verdicts.json"] {
            tamper(&of("lab").join(name), &of("twin").join(name));
        }
        let journal = fs::read_dir(of("lab")).unwrap().flatten().map(|e| e.path());
        let journal = journal
            .into_iter()
            .find(|p| p.display().to_string().contains("windows-"))
            .unwrap();
        tamper(&journal, &of("twin").join(journal.file_name().unwrap()));
        rig.up_beside_control(&["lab", "twin"], "5", &flags);
        assert_eq!(rig.skill_status("lab/s")["approved"], Value::Null, "{what}");
        assert_eq!(
            rig.cat(A.0),
            Err("EACCES"),
            "{what}: never approved by damage"
        );
        assert_eq!(rig.cat("twin/s/a.txt"), ok(A.1), "{what}: the other one is");
        let loud = rig.words();
        for name in ["listing.json", "verdicts.json", "windows-"] {
            let line = loud
                .lines()
                .find(|l| l.contains("WARN") && l.contains("lab: ") && l.contains(name));
            assert!(
                line.is_some_and(|l| l.contains("damaged")),
                "{what}, {name}: {loud}"
            );
        }
        rig.approve("lab/s");
        let cat = |path: &str| rig.cat(path);
        until("it to be readable", 5.0, || cat(A.0) == ok(A.1));
    }
}

#[test]
fn f17_a_cache_that_others_may_change_is_left_unused_and_reading_goes_on() {
    let mut rig = Rig::new();
    rig.scene("lab", two_files());
    rig.up_beside_control(&["lab"], "5", &[]);
    let standing = Standing::begin(&rig, 5.0, &[A, B]);
    let shelves = rig.dir().join("cache/mount-skills/v1");
    let shelf = fs::read_dir(&shelves).unwrap().flatten().map(|e| e.path());
    let shelf = shelf
        .into_iter()
        .find(|p| p.display().to_string().contains("/lab-"))
        .unwrap();
    let kept = || {
        let all = rig.stored("cache").into_iter();
        all.filter(|(p, _)| p.starts_with(&shelf) && p.is_file())
            .count()
    };
    fs::set_permissions(&shelf, fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(standing.read(&rig, A.0), ok(A.1));
    until("a warning", 5.0, || rig.words().contains("chmod 0700"));
    assert_eq!(kept(), 0, "while it is open to others");
    if is_root() {
        fs::set_permissions(&shelf, fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::chown(&shelf, Some(65534), None).unwrap();
        assert_eq!(standing.read(&rig, B.0), ok(B.1));
        std::os::unix::fs::chown(&shelf, Some(0), None).unwrap();
        assert_eq!(kept(), 0, "while it was somebody else's");
    }
    fs::set_permissions(&shelf, fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(rig.cat("lab/s/SKILL.md"), ok(&skill_md("s")));
    rig.blob(skill_md("s").as_bytes());
    standing.end(&rig);
}

#[test]
fn f24_a_clock_that_jumps_moves_no_window_and_no_listing() {
    for jump in ["+10y", "-10y"] {
        let mut rig = Rig::new();
        let mut scene = two_files();
        scene["ttlMs"] = 600_000.into();
        rig.scene("lab", scene);
        rig.scene(CONTROL, control());
        // A file that says what time it is.
        let clock = rig.dir().join("clock");
        fs::write(&clock, "+0\n").unwrap();
        let mut command = rig.command("bash");
        let line = "export LD_PRELOAD=$(ls /usr/lib/*/faketime/libfaketime.so.1) FAKETIME_NO_CACHE=1 DONT_FAKE_MONOTONIC=1; exec \"$@\"";
        command
            .args(["-c", line, "bash"])
            .arg(&rig.bin)
            .env("FAKETIME_TIMESTAMP_FILE", &clock);
        let targets = ["lab", CONTROL].map(|l| format!("env -u LD_PRELOAD {}", rig.scripted(l)));
        rig.daemon_args(
            &mut command,
            &[("lab", &targets[0]), (CONTROL, &targets[1])],
            &["--timeout", "5"],
        );
        rig.mount_with(command);
        rig.ready("lab");
        rig.ready(CONTROL);
        let standing = Standing::begin(&rig, 5.0, &[A, B]);
        assert_eq!(standing.read(&rig, A.0), ok(A.1));
        assert_eq!(rig.skill_status("lab/s")["state"], "held");
        fs::write(&clock, format!("{jump}\n")).unwrap();
        let lists = rig.seen("lab", "skills/list");
        let seen = || fs::metadata(rig.path("README.md")).unwrap();
        let _ = seen();
        assert_eq!(standing.read(&rig, B.0), ok(B.1));
        rig.ls("lab").unwrap();
        rig.ls("lab/s").unwrap();
        assert_eq!(rig.skill_status("lab/s")["state"], "held", "{jump}");
        assert_eq!(
            rig.seen("lab", "skills/list"),
            lists,
            "{jump}: the listing is as fresh as before"
        );
        // The jump has reached the daemon: its log tells the new time.
        rig.ask(&["revoke", "lab/s"]);
        assert_eq!(rig.cat(A.0), Err("EACCES"));
        let year = |line: &str| line.get(..4).and_then(|y| y.parse::<i32>().ok());
        let years: Vec<i32> = rig.words().lines().filter_map(year).collect();
        assert!(
            years.iter().any(|y| *y > 2034 || *y < 2022),
            "{jump}: {}",
            rig.words()
        );
        rig.approve("lab/s");
        standing.end(&rig);
    }
}
