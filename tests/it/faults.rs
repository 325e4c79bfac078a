//! The fault matrix, one test a row: servers that break off or hang, the disk and the clock. What
//! readers see, and the invariants of [`standing`](crate::standing) throughout. What servers say
//! wrong is in [`faults_protocol`](crate::faults_protocol).

use crate::rig::{Content, Rig, alive, is_root, kill, ok, run, skill, until};
use crate::standing::{CONTROL, Standing, control};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

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

/// The disk had no room for what was read: that is said once, and what has room is kept.
pub(crate) fn one_warning_of_the_cache(rig: &Rig, standing: Standing) {
    let warnings = || rig.words().matches("cache is not used").count();
    until("a warning", 5.0, || warnings() == 1);
    assert_eq!(standing.read(rig, A.0), ok(A.1));
    rig.blob(A.1.as_bytes());
    standing.end(rig);
    assert_eq!(warnings(), 1, "{}", rig.words());
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

/// The kernel asks twice: a page that it could not read ahead is asked for once more, within the
/// same system call.
#[test]
fn f02_a_read_that_timed_out_is_not_waited_for_again_because_another_skill_changed() {
    let mut rig = Rig::new();
    rig.scene("lab", reads_of_a(&[json!({"hang": true})]));
    rig.up_beside_control(&["lab"], "1", &[]);
    let standing = Standing::begin(&rig, 1.0, &[A, B]);
    let mut changed = reads_of_a(&[json!({"hang": true})]);
    let mut proved = false;
    for n in 0..10 {
        let asked = rig.seen("lab", "resources/read");
        assert_eq!(standing.read(&rig, A.0), Err("ETIMEDOUT"));
        let failed = Instant::now();
        let another = skill(&format!("another-{n}"), json!({}));
        changed["skills"].as_array_mut().unwrap().push(another);
        rig.scene("lab", changed.clone());
        rig.ask(&["refresh", "lab"]);
        assert!(rig.ls("lab").unwrap().contains(&format!("another-{n}")));
        assert_eq!(standing.read(&rig, A.0), Err("ETIMEDOUT"));
        // On a busy machine that may have come too late to be the same question.
        if failed.elapsed() < Duration::from_secs(3) {
            assert_eq!(rig.seen("lab", "resources/read"), asked + 1, "asked once");
            proved = true;
            break;
        }
    }
    assert!(proved);
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
    if is_root() {
        Rig::drop_kernel_caches();
    }
    assert_eq!(keeper.fd(), ok(A.1), "nor without the kernel's pages");
    drop(keeper);
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
    let blob = rig.blob(A.1.as_bytes());
    harm(&rig, &blob);
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
    if offline.is_err() {
        let left = blob.symlink_metadata();
        assert!(left.is_err(), "the bad object is removed: {left:?}");
    }
    let secret = fs::read_to_string(rig.dir().join("secret"));
    assert!(
        secret.is_err() || secret.is_ok_and(|s| s == A.1),
        "what it led to"
    );
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
    harmed(
        &|rig, blob| {
            fs::remove_file(blob).unwrap();
            std::os::unix::fs::symlink(secret(rig), blob).unwrap();
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
        },
        ok(A.1),
    );
}

/// Ends the daemon by force and what it leaves.
fn crash(rig: &mut Rig) {
    rig.kill_daemon();
    rig.nothing_left();
}

/// The directory of a label below the cache or the state.
fn of_label(rig: &Rig, dir: &str, label: &str) -> PathBuf {
    let all = fs::read_dir(rig.dir().join(dir).join("mount-skills/v1")).unwrap();
    let prefix = format!("{label}-");
    let is = |p: &PathBuf| {
        p.file_name()
            .unwrap()
            .to_string_lossy()
            .starts_with(&prefix)
    };
    all.flatten().map(|e| e.path()).find(is).unwrap()
}

#[test]
fn f18_a_directory_that_leads_elsewhere_is_not_entered() {
    let places: [fn(&Path) -> &Path; 3] = [
        |blob| blob.parent().unwrap(),
        |blob| blob.parent().unwrap().parent().unwrap(),
        |blob| blob.ancestors().nth(3).unwrap(),
    ];
    for (n, place) in places.into_iter().enumerate() {
        let mut rig = Rig::new();
        rig.scene("lab", two_files());
        rig.up_beside_control(&["lab"], "5", &[]);
        let [blob, _] = cached(&rig);
        rig.stop();
        // Elsewhere is all that was here, right to the last byte: it would be of use.
        let (here, elsewhere) = (place(&blob).to_owned(), rig.dir().join("elsewhere"));
        fs::rename(&here, &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &here).unwrap();
        let print = "cd elsewhere && find . -printf '%p %i %m %T@ %s\\n' | sort";
        let before = rig.sh(print).good();
        rig.up_beside_control(&["lab"], "5", &[]);
        let standing = Standing::begin(&rig, 5.0, &[A, B]);
        let reads = rig.seen("lab", "resources/read");
        assert_eq!(standing.read(&rig, A.0), ok(A.1), "place {n}");
        assert_eq!(
            rig.seen("lab", "resources/read"),
            reads + 1,
            "not from there"
        );
        until("a warning", 5.0, || rig.words().contains("WARN"));
        standing.end(&rig);
        rig.stop();
        assert_eq!(rig.sh(print).good(), before, "place {n}: nor written there");
        let mut down = two_files();
        down["start"] = json!({"exit": 1});
        rig.scene("lab", down);
        let targets = [rig.scripted("lab"), rig.scripted(CONTROL)];
        rig.mount(&[("lab", &targets[0]), (CONTROL, &targets[1])], &[]);
        until("the stored listing", 5.0, || {
            rig.ls("lab") == Ok(vec!["s".to_owned()])
        });
        assert_eq!(rig.cat(A.0), Err("EHOSTDOWN"), "place {n}");
        assert_eq!(rig.sh(print).good(), before, "place {n}");
    }
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
    one_warning_of_the_cache(&rig, standing);
    rig.stop();
    rig.sh("umount cache").good();
}

#[test]
fn f16_tampered_state_holds_lists_and_approves_nothing() {
    // What is done to a file, and to it with that of another label at hand.
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
    let new = json!({"skills": [skill("s", json!({"a.txt": "new\n", "b.txt": "b\n"}))]});
    let mut down = two_files();
    down["start"] = json!({"exit": 1});
    let mut rig = Rig::with_limit(240);
    let labels = ["lab", "twin"];
    labels.iter().for_each(|l| rig.scene(l, two_files()));
    rig.up_beside_control(&labels, "5", &[]);
    rig.approve(&format!("{CONTROL}/c"));
    for label in labels {
        rig.approve(&format!("{label}/s"));
        assert_eq!(rig.cat(&format!("{label}/s/a.txt")), ok(A.1));
    }
    rig.blob(A.1.as_bytes());
    until("both journals", 5.0, || {
        let of = |l: &&str| {
            let path = |p: &PathBuf| p.starts_with(of_label(&rig, "state", l));
            let text = |p| fs::read_to_string(p).unwrap();
            rig.journals()
                .into_iter()
                .filter(path)
                .any(|p| text(p).contains("skill://s/"))
        };
        labels.iter().all(of)
    });
    crash(&mut rig);
    rig.sh("cp -a state state.good").good();
    let journal = rig.journals()[0]
        .file_name()
        .unwrap()
        .to_string_lossy()
        .into_owned();
    let targets = ["lab", "twin", CONTROL].map(|l| (l, rig.scripted(l)));
    let servers: Vec<(&str, &str)> = targets.iter().map(|(l, t)| (*l, &**t)).collect();

    for (what, tamper) in tampers {
        for (file, scene, flags) in [
            ("verdicts.json", &two_files(), &["--approval", "each"][..]),
            (&*journal, &new, &[]),
            ("listing.json", &down, &[]),
        ] {
            let case = format!("{file} {what}");
            rig.sh("rm -rf state && cp -a state.good state").good();
            if file == "listing.json" {
                // A window would keep its skill without a listing.
                rig.journals()
                    .into_iter()
                    .for_each(|p| fs::remove_file(p).unwrap());
            }
            let [ours, theirs] = labels.map(|l| of_label(&rig, "state", l).join(file));
            tamper(&ours, &theirs);
            labels.iter().for_each(|l| rig.scene(l, scene.clone()));
            let words = rig.words().len();
            rig.mount(&servers, &[&["--timeout", "5"], flags].concat());
            rig.ready(CONTROL);
            let right = [
                A,
                ("twin/s/a.txt", A.1),
                (A.0, "new\n"),
                ("twin/s/a.txt", "new\n"),
            ];
            let count = if scene == &new { 4 } else { 2 };
            let standing = Standing::begin(&rig, 5.0, &right[..count]);
            if scene != &down {
                labels.iter().for_each(|l| rig.ready(l));
            } else {
                until("both to be down", 20.0, || {
                    labels.iter().all(|l| rig.server(l)["state"] == "down")
                });
            }
            let [lab, twin] = labels.map(|l| format!("{l}/s/a.txt"));
            let without = match file {
                "verdicts.json" => Err("EACCES"),
                "listing.json" => Err("EHOSTDOWN"),
                _ => ok("new\n"),
            };
            let got = standing.read(&rig, &lab);
            assert!(got == without, "{case}: {got:?}");
            assert_eq!(standing.read(&rig, &twin), ok(A.1), "{case}: the other one");
            let held = rig.skill_status("twin/s")["state"] == "changed";
            assert_eq!(held, scene == &new, "{case}");
            let approved = |l: &str| !rig.skill_status(&format!("{l}/s"))["approved"].is_null();
            if scene == &two_files() {
                assert_eq!(labels.map(approved), [false, true], "{case}");
            }
            let said = rig.words()[words..].to_owned();
            let loud =
                |l: &&str| l.contains("WARN lab: ") && l.contains(file) && l.contains("damaged");
            assert!(said.lines().any(|l| loud(&l)), "{case}: {said}");
            assert!(!said.contains("WARN twin: "), "{case}: {said}");
            match file {
                "verdicts.json" => rig.approve("lab/s"),
                "listing.json" => labels.iter().for_each(|l| {
                    rig.scene(l, two_files());
                    rig.ready(l);
                }),
                _ => drop(rig.ask(&["refresh", "twin/s"])),
            }
            if scene == &down {
                // The servers that are back have descriptors: what there must be counts from here.
                drop(standing);
                Standing::begin(&rig, 5.0, &right[..2]).end(&rig);
            } else {
                standing.end(&rig);
            }
            crash(&mut rig);
        }
    }
}

#[test]
fn f17_a_cache_that_others_may_change_is_left_unused_and_reading_goes_on() {
    type Loosen = (&'static str, fn(&Path), fn(&Path));
    let open: Loosen = (
        "chmod 0700",
        |dir| fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap(),
        |dir| fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).unwrap(),
    );
    let foreign: Loosen = (
        "belongs to uid 65534",
        |dir| std::os::unix::fs::chown(dir, Some(65534), None).unwrap(),
        |dir| std::os::unix::fs::chown(dir, Some(0), None).unwrap(),
    );
    // Only root can give a directory away.
    let ways = if is_root() {
        vec![open, foreign]
    } else {
        vec![open]
    };
    let name = |n: usize| format!("f{n}");
    let files: serde_json::Map<String, Value> =
        (0..20).map(|n| (name(n), json!(name(n)))).collect();
    let right: Vec<(String, String)> = (0..20).map(|n| (format!("lab/s/f{n}"), name(n))).collect();
    let right: Vec<(&str, &str)> = right.iter().map(|(p, c)| (&**p, &**c)).collect();
    let mut rig = Rig::new();
    rig.scene("lab", json!({"skills": [skill("s", Value::Object(files))]}));
    rig.up_beside_control(&["lab"], "5", &[]);
    let mut fresh = right.iter();
    let mut next = |rig: &Rig, standing: &Standing| {
        let (path, content) = fresh.next().unwrap();
        assert_eq!(standing.read(rig, path), ok(content));
        content.as_bytes()
    };
    let shelf = of_label(&rig, "cache", "lab");
    let kept = |rig: &Rig| {
        let all = rig.stored("cache").into_iter();
        all.filter(|(p, _)| p.starts_with(&shelf) && p.is_file())
            .count()
    };
    let standing = Standing::begin(&rig, 5.0, &right);
    for (warning, loosen, mend) in &ways {
        rig.blob(next(&rig, &standing));
        let before = kept(&rig);
        loosen(&shelf);
        // The second one finds out as well, and says nothing more.
        let said = rig.words().matches(warning).count();
        next(&rig, &standing);
        until(warning, 5.0, || rig.words().matches(warning).count() > said);
        next(&rig, &standing);
        assert_eq!(kept(&rig), before, "{warning}");
        assert_eq!(rig.words().matches(warning).count(), said + 1, "no flood");
        mend(&shelf);
    }
    // In order again, it is used again.
    rig.blob(next(&rig, &standing));
    standing.end(&rig);
    for place in [shelf.clone(), shelf.parent().unwrap().to_owned()] {
        for (warning, loosen, mend) in &ways {
            rig.stop();
            loosen(&place);
            let (before, words) = (kept(&rig), rig.words().len());
            rig.up_beside_control(&["lab"], "5", &[]);
            let standing = Standing::begin(&rig, 5.0, &right[..2]);
            let reads = rig.seen("lab", "resources/read");
            assert_eq!(standing.read(&rig, right[0].0), ok(right[0].1));
            assert_eq!(
                rig.seen("lab", "resources/read"),
                reads + 1,
                "not from there"
            );
            assert!(rig.words()[words..].contains(warning), "{}", rig.words());
            standing.end(&rig);
            assert_eq!(kept(&rig), before, "{}: {warning}", place.display());
            mend(&place);
        }
    }
}

#[test]
fn f24_a_clock_that_jumps_moves_no_window_and_no_listing() {
    for jump in ["+10y", "-10y"] {
        let mut rig = Rig::new();
        let mut scene = two_files();
        scene["ttlMs"] = 600_000.into();
        rig.scene("lab", scene);
        let mut short = two_files();
        short["ttlMs"] = 1500.into();
        rig.scene("short", short);
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
        let targets =
            ["lab", CONTROL, "short"].map(|l| format!("env -u LD_PRELOAD {}", rig.scripted(l)));
        rig.daemon_args(
            &mut command,
            &[
                ("lab", &targets[0]),
                (CONTROL, &targets[1]),
                ("short", &targets[2]),
            ],
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
        assert_eq!(standing.read(&rig, B.0), ok(B.1));
        rig.ls("lab").unwrap();
        rig.ls("lab/s").unwrap();
        assert_eq!(rig.skill_status("lab/s")["state"], "held", "{jump}");
        assert_eq!(
            rig.seen("lab", "skills/list"),
            lists,
            "{jump}: the listing is as fresh as before"
        );
        let short = rig.seen("short", "skills/list");
        until("the short listing to be stale in its time", 15.0, || {
            rig.ls("short").unwrap();
            rig.seen("short", "skills/list") > short
        });
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
