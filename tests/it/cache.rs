//! What is kept on disk: never trusted, ours alone, and never needed.

use crate::rig::{self, Content, Rig, is_root, ok, sha256, skill, until};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Seek, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

fn files(names: &[&str]) -> BTreeMap<String, String> {
    names
        .iter()
        .map(|n| ((*n).to_owned(), format!("content of {n}\n")))
        .collect()
}

fn scene(files: &BTreeMap<String, String>) -> Value {
    json!({"skills": [skill("s", json!(files))], "ttlMs": 3_600_000})
}

fn down(mut scene: Value) -> Value {
    scene["start"] = json!({"exit": 1});
    scene
}

#[test]
fn hr80_hr82_a_second_run_reads_nothing_from_the_wire() {
    let mut rig = Rig::new();
    let files = files(&["a", "b", "c"]);
    rig.scene("lab", scene(&files));
    rig.up(&["lab"], &[]);
    let sums = rig
        .sh("cd $M && find lab -type f -exec sha256sum {} + | sort")
        .good();
    files
        .values()
        .for_each(|content| drop(rig.blob(content.as_bytes())));
    rig.blob(rig::skill_md("s").as_bytes());
    let target = rig.scripted("lab");
    rig.remount(&[("lab", &target)], &[]);
    rig.ready("lab");
    assert_eq!(
        rig.sh("cd $M && find lab -type f -exec sha256sum {} + | sort")
            .good(),
        sums
    );
    let reads: usize = rig.reads("lab").values().sum();
    assert_eq!(reads, files.len() + 1, "all of the first run");
    assert_eq!(
        rig.status()["cache"]["hits"],
        files.len() + 1,
        "each hashed again"
    );
}

/// What somebody does to a cached copy.
type Harm = (&'static str, fn(&Path, &Path));

const HARMS: [Harm; 10] = [
    ("flipped", |copy, _| {
        let mut bytes = fs::read(copy).unwrap();
        bytes[3] ^= 1;
        fs::write(copy, bytes).unwrap();
    }),
    ("shortened", |copy, _| {
        File::options()
            .write(true)
            .open(copy)
            .unwrap()
            .set_len(5)
            .unwrap()
    }),
    ("emptied", |copy, _| {
        File::options()
            .write(true)
            .open(copy)
            .unwrap()
            .set_len(0)
            .unwrap()
    }),
    ("longer", |copy, _| {
        File::options()
            .append(true)
            .open(copy)
            .unwrap()
            .write_all(b"x")
            .unwrap()
    }),
    ("secret", |copy, secret| {
        fs::remove_file(copy).unwrap();
        std::os::unix::fs::symlink(secret, copy).unwrap();
    }),
    ("dangling", |copy, _| {
        fs::remove_file(copy).unwrap();
        std::os::unix::fs::symlink("nowhere", copy).unwrap();
    }),
    ("fifo", |copy, _| {
        fs::remove_file(copy).unwrap();
        let mode = rustix::fs::Mode::from(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, copy, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    }),
    ("directory", |copy, _| {
        fs::remove_file(copy).unwrap();
        fs::create_dir(copy).unwrap();
    }),
    ("closed", |copy, _| {
        fs::set_permissions(copy, fs::Permissions::from_mode(0o000)).unwrap()
    }),
    ("removed", |copy, _| fs::remove_file(copy).unwrap()),
];

/// Harms every cached copy; they are of mode 0400, which stops everybody but root.
fn harm(rig: &Rig, files: &BTreeMap<String, String>, secret: &Path) {
    for (name, harm) in HARMS {
        let copy = rig.blob(files[name].as_bytes());
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o600)).unwrap();
        harm(&copy, secret);
    }
}

#[test]
fn c55_hr82_a_harmed_copy_is_never_served_and_is_replaced_or_gone() {
    let mut rig = Rig::new();
    let names: Vec<&str> = HARMS.iter().map(|(name, _)| *name).collect();
    let files = files(&names);
    let secret = rig.dir().join("secret");
    fs::write(&secret, "SECRET of somebody else\n").unwrap();
    let read = |rig: &Rig, name: &str| -> Content { rig.cat(&format!("lab/s/{name}")) };
    rig.scene("lab", scene(&files));
    rig.up(&["lab"], &[]);
    files
        .iter()
        .for_each(|(name, content)| assert_eq!(read(&rig, name), ok(content)));
    harm(&rig, &files, &secret);
    if is_root() {
        Rig::drop_kernel_caches();
    }
    files
        .iter()
        .for_each(|(name, content)| assert_eq!(read(&rig, name), ok(content), "{name}"));

    // A new daemon knows nothing but the disk.
    let target = rig.scripted("lab");
    rig.remount(&[("lab", &target)], &[]);
    rig.ready("lab");
    for (name, content) in &files {
        assert_eq!(read(&rig, name), ok(content), "{name}, with the server up");
        let copy = rig.blob(content.as_bytes());
        let whole = || {
            let meta = copy.symlink_metadata();
            meta.is_ok_and(|m| m.is_file())
                && fs::read(&copy).is_ok_and(|b| b == content.as_bytes())
        };
        until(
            &format!("a new copy in place of the {name} one"),
            5.0,
            whole,
        );
    }
    let rejected = rig.status()["cache"]["rejected"].as_u64().unwrap();
    assert_eq!(
        rejected,
        8,
        "all but the closed and the removed one: {}",
        rig.words()
    );

    harm(&rig, &files, &secret);
    rig.scene("lab", down(scene(&files)));
    rig.remount(&[("lab", &target)], &[]);
    for (name, content) in &files {
        let want = if name == "closed" && is_root() {
            ok(content)
        } else {
            Err("EHOSTDOWN")
        };
        assert_eq!(read(&rig, name), want, "{name}, with the server down");
    }
    let left = rig.stored("cache").into_iter().filter(|(p, _)| {
        let name = p.file_name().unwrap().to_string_lossy().into_owned();
        name.len() == 64 && p.symlink_metadata().unwrap().permissions().mode() & 0o777 != 0
    });
    let left: Vec<_> = left
        .filter(|(p, _)| !p.ends_with(sha256(files["closed"].as_bytes())))
        .collect();
    assert_eq!(left, [], "the bad copies are gone");
    assert_eq!(
        fs::read_to_string(&secret).unwrap(),
        "SECRET of somebody else\n"
    );
    assert!(!rig.words().contains("SECRET"));
}

#[test]
fn c55_a_copy_that_somebody_changes_while_it_is_read_is_never_served() {
    let mut rig = Rig::new();
    let names: Vec<String> = (0..8).map(|n| n.to_string()).collect();
    let contents: BTreeMap<String, String> = names
        .iter()
        .map(|n| (n.clone(), n.repeat(300_000)))
        .collect();
    rig.scene("lab", scene(&contents));
    rig.up(&["lab"], &[]);
    let target = rig.scripted("lab");
    for round in 0..3 {
        for (name, content) in &contents {
            assert!(
                rig.cat(&format!("lab/s/{name}")) == ok(content),
                "{round}: {name}"
            );
            let copy = rig.blob(content.as_bytes());
            // The same file by another name, which is open to writing.
            let other = rig.dir().join(format!("other-{name}"));
            let _ = fs::remove_file(&other);
            fs::write(&other, content).unwrap();
            fs::remove_file(&copy).unwrap();
            fs::hard_link(&other, &copy).unwrap();
        }
        rig.remount(&[("lab", &target)], &[]);
        rig.ready("lab");
        let end = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !end.load(Ordering::Relaxed) {
                    for (name, content) in &contents {
                        let other = File::options()
                            .write(true)
                            .open(rig.dir().join(format!("other-{name}")));
                        let mut other = other.unwrap();
                        other.write_all(b"planted").unwrap();
                        other.rewind().unwrap();
                        other.write_all(&content.as_bytes()[..7]).unwrap();
                    }
                }
            });
            let got: Vec<_> = names
                .iter()
                .map(|n| (n, rig.cat(&format!("lab/s/{n}"))))
                .collect();
            end.store(true, Ordering::Relaxed);
            for (name, got) in got {
                assert!(got == ok(&contents[name]), "{round}: {name}: {:.20?}", got);
            }
        });
    }
}

#[test]
fn c55_a_daemon_that_is_killed_in_its_first_fetch_leaves_nothing_that_is_served() {
    let mut rig = Rig::new();
    let mut slow =
        json!({"skills": [skill("s", json!({"big": {"fill": "0123456789", "size": 3 << 20}}))]});
    let want = "0123456789".repeat((3 << 20) / 10 + 1)[..3 << 20].to_owned();
    for delay in [0, 10, 30, 60, 120] {
        slow["rules"] = json!([{"method": "resources/read", "drip": [1 << 20, 0.02]}]);
        rig.scene("lab", slow.clone());
        rig.up(&["lab"], &[]);
        let reads = rig.seen("lab", "resources/read");
        let reader = rig.cat_later("lab/s/big");
        until("the fetch", 10.0, || {
            rig.seen("lab", "resources/read") > reads
        });
        std::thread::sleep(std::time::Duration::from_millis(delay));
        rig.kill_daemon();
        drop(reader);
        rig.nothing_left();
        rig.up(&["lab"], &[]);
        assert!(rig.cat("lab/s/big") == ok(&want), "killed after {delay} ms");
        rig.blob(want.as_bytes());
        rig.stop();
        fs::remove_dir_all(rig.dir().join("cache/mount-skills")).unwrap();
    }
}

#[test]
fn c56_hr83_hr87_all_that_is_kept_is_ours_alone_whatever_the_umask() {
    for umask in ["000", "022", "077"] {
        let mut rig = Rig::new();
        let files = files(&["a"]);
        rig.scene("one", scene(&files));
        rig.scene("two", scene(&files));
        let targets = ["one", "two"].map(|l| rig.scripted(l));
        let mut command = rig.command("sh");
        command
            .args(["-c", &format!("umask {umask}; exec \"$0\" \"$@\"")])
            .arg(rig::BIN);
        rig.daemon_args(
            &mut command,
            &[("one", &targets[0]), ("two", &targets[1])],
            &[],
        );
        rig.mount_with(command);
        for label in ["one", "two"] {
            until(label, 10.0, || {
                rig.cat(&format!("{label}/s/a")) == ok("content of a\n")
            });
        }
        let copies = || {
            let name = sha256(b"content of a\n");
            rig.stored("cache")
                .iter()
                .filter(|(p, _)| p.ends_with(&name))
                .count()
        };
        until("a copy for each label", 5.0, || copies() == 2);
        until("two listings", 5.0, || {
            rig.stored("state")
                .iter()
                .filter(|(p, _)| p.ends_with("listing.json"))
                .count()
                == 2
        });
        for (dir, file_mode) in [("cache", 0o400), ("state", 0o600), ("run", 0o600)] {
            let kept = rig.stored(dir);
            assert!(kept.len() > 1, "umask {umask}: nothing in {dir}");
            for (path, mode) in kept {
                let want = if path.is_dir() { 0o700 } else { file_mode };
                assert_eq!(mode, want, "umask {umask}: {path:?} has {mode:o}");
            }
        }
    }
}

#[test]
fn c56_hr83_a_cache_that_others_may_change_is_not_used_and_reading_goes_on() {
    let mut rig = Rig::new();
    rig.scene("lab", scene(&files(&["a"])));
    let open = rig.dir().join("cache/mount-skills/v1");
    fs::create_dir_all(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    rig.up(&["lab"], &[]);
    assert_eq!(rig.cat("lab/s/a"), ok("content of a\n"));
    assert!(rig.words().contains("chmod 0700"), "{}", rig.words());
    assert_eq!(rig.status()["cache"], Value::Null);
    rig.stop();
    assert_eq!(fs::read_dir(&open).unwrap().count(), 0);
    fs::set_permissions(&open, fs::Permissions::from_mode(0o700)).unwrap();

    // Places where a cache must not be; a relative XDG variable counts as unset.
    let target = format!("lab={}", rig.scripted("lab"));
    let mount = rig.mount_point().display().to_string();
    let home = rig.dir().join("home");
    let skills = [".claude/skills", ".agents/skills", ".claude/skills/x/cache"];
    let skills = skills.map(|d| home.join(d).display().to_string());
    for place in [vec![format!("{mount}/cache")], skills.to_vec()].concat() {
        let out = rig.cli(&["--server", &target, "--cache-dir", &place, &mount]);
        assert!(matches!(out.code, Some(1 | 2)), "{place}: {out:?}");
        assert!(
            out.err.contains("must not") || out.err.contains("local"),
            "{out:?}"
        );
    }
    let usual = rig.dir().join("home/.cache/mount-skills");
    for value in [Some("relative"), Some(""), None] {
        let mut command = rig.daemon_command(&[("lab", &rig.scripted("lab"))], &[]);
        match value {
            Some(value) => command.env("XDG_CACHE_HOME", value),
            None => command.env_remove("XDG_CACHE_HOME"),
        };
        command.current_dir(rig.dir());
        rig.mount_with(command);
        rig.ready("lab");
        assert_eq!(rig.cat("lab/s/a"), ok("content of a\n"));
        let kept = sha256(b"content of a\n");
        until("a copy in the usual place", 5.0, || {
            rig.stored("home").iter().any(|(p, _)| p.ends_with(&kept))
        });
        rig.stop();
        assert!(!rig.dir().join("relative").exists(), "{value:?}");
        assert!(!rig.dir().join("mount-skills").exists(), "{value:?}");
        fs::remove_dir_all(&usual).unwrap();
    }
}

#[test]
fn c56_a_cache_behind_a_link_or_of_somebody_else_is_not_used_and_reading_goes_on() {
    let mut rig = Rig::new();
    rig.scene("lab", scene(&files(&["a"])));
    let place = rig.dir().join("cache/mount-skills/v1");
    let aside = rig.dir().join("aside");
    fs::create_dir_all(place.parent().unwrap()).unwrap();
    let private = |dir: &Path| {
        fs::create_dir(dir).unwrap();
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).unwrap();
    };
    private(&aside);
    std::os::unix::fs::symlink(&aside, &place).unwrap();
    let unused = |rig: &mut Rig, word: &str| {
        let before = rig.words().len();
        rig.up(&["lab"], &[]);
        assert_eq!(rig.cat("lab/s/a"), ok("content of a\n"), "{word}");
        assert_eq!(rig.status()["cache"], Value::Null, "{word}");
        let words = rig.words()[before..].to_owned();
        assert!(
            words.contains(word) && words.contains("mount-skills/v1"),
            "{words}"
        );
        rig.stop();
    };
    unused(&mut rig, "cache");
    assert_eq!(
        fs::read_dir(&aside).unwrap().count(),
        0,
        "nothing is kept behind the link"
    );
    fs::remove_file(&place).unwrap();
    private(&place);
    if is_root() {
        // As with `sudo`: the home of a user, whose cache is not ours.
        std::os::unix::fs::chown(&place, Some(65534), Some(65534)).unwrap();
        unused(&mut rig, "belongs to uid 65534");
        assert_eq!(fs::read_dir(&place).unwrap().count(), 0);
        std::os::unix::fs::chown(&place, Some(0), Some(0)).unwrap();
    }
    rig.up(&["lab"], &[]);
    assert_eq!(rig.cat("lab/s/a"), ok("content of a\n"));
    rig.blob(b"content of a\n");
}

/// How often two daemons fetch the same file and one of them is killed.
fn rounds() -> usize {
    let asked = std::env::var("MOUNT_SKILLS_ROUNDS").ok();
    asked.map_or(3, |n| n.parse().unwrap())
}

#[test]
fn c57_two_daemons_share_a_cache_and_one_may_be_killed_in_the_middle() {
    let mut rig = Rig::with_limit(90 + 10 * rounds() as u64);
    let mut other = Rig::beside(&rig, "other");
    let sizes: serde_json::Map<String, Value> = (0..rounds())
        .map(|n| {
            let fill = json!({"fill": format!("{n}-abcdefgh"), "size": 3 << 20});
            (format!("{n}.bin"), fill)
        })
        .collect();
    let rules = json!([{"method": "resources/read", "delay": 0.4, "drip": [1 << 20, 0.05]}]);
    // A skill holds 16 MiB at most.
    let files: Vec<(String, Value)> = sizes.into_iter().collect();
    let skills: Vec<Value> = (files.chunks(4).enumerate())
        .map(|(n, files)| {
            skill(
                &format!("s{n}"),
                Value::Object(files.iter().cloned().collect()),
            )
        })
        .collect();
    rig.scene("lab", json!({"skills": skills, "rules": rules}));
    rig.up(&["lab"], &[]);
    for (n, (name, _)) in files.iter().enumerate() {
        other.up(&["lab"], &[]);
        let file = format!("lab/s{}/{name}", n / 4);
        let fill = format!("{}-abcdefgh", name.trim_end_matches(".bin"));
        let want = fill.repeat((3 << 20) / fill.len() + 1)[..3 << 20].to_owned();
        let reads = rig.seen("lab", "resources/read");
        let ours: Vec<_> = (0..40).map(|_| rig.cat_later(&file)).collect();
        let theirs: Vec<_> = (0..40).map(|_| other.cat_later(&file)).collect();
        until("a fetch", 20.0, || {
            rig.seen("lab", "resources/read") > reads
        });
        // At another moment each time.
        std::thread::sleep(std::time::Duration::from_millis(97 * n as u64 % 700));
        other.kill_daemon();
        // Who cleans the cache up meanwhile costs a fetch at most.
        if n + 1 < files.len() {
            rig.cli(&["cache", "prune"]).good();
        }
        for reader in ours {
            assert!(
                rig.outcome(&file, reader.finish(30.0)) == ok(&want),
                "{file}"
            );
        }
        drop(theirs);
        other.nothing_left();
        if n + 1 == files.len() {
            rig.blob(want.as_bytes());
        }
    }
    rig.stop();
    other.up(&["lab"], &[]);
    let temps: Vec<_> = rig
        .stored("cache")
        .into_iter()
        .filter(|(p, _)| p.file_name().unwrap().to_string_lossy().starts_with(".tmp"))
        .collect();
    assert_eq!(
        temps,
        [],
        "left by the killed ones and swept at the next start"
    );
    // The last one was fetched after the last clean-up.
    let before = rig.seen("lab", "resources/read");
    let last = files.len() - 1;
    other
        .cat(&format!("lab/s{}/{}", last / 4, files[last].0))
        .unwrap();
    assert_eq!(
        rig.seen("lab", "resources/read"),
        before,
        "from the shared cache"
    );
}

/// Big and small files for a cache that has no room for the big ones.
fn roomy() -> Value {
    let sized = |fill: &str| json!({"fill": fill, "size": 3 << 20});
    let files = json!({"big": sized("0123456789"), "two": sized("98"), "small": "small\n"});
    json!({"skills": [skill("s", files)]})
}

/// Reads all of it, twice; one warning, and nothing partial is kept.
fn reads_without_a_cache(rig: &Rig) {
    for _ in 0..2 {
        if is_root() {
            Rig::drop_kernel_caches();
        }
        for (file, fill) in [("big", "0123456789"), ("two", "98")] {
            let got = fs::read(rig.path(&format!("lab/s/{file}"))).unwrap();
            let want = fill.repeat((3 << 20) / fill.len() + 1);
            assert!(got == want.as_bytes()[..3 << 20], "{file}");
        }
    }
    let warned = || rig.words().matches("cache is not used").count();
    until("a warning", 5.0, || warned() > 0);
    assert_eq!(warned(), 1, "{}", rig.words());
    assert_eq!(rig.cat("lab/s/small"), ok("small\n"));
    rig.blob(b"small\n");
    let stored = rig.stored("cache");
    let files = stored.iter().filter(|(p, _)| p.is_file());
    let partial = files.filter(|(p, _)| fs::metadata(p).unwrap().len() != 6);
    assert_eq!(partial.count(), 0, "{stored:?}");
}

#[test]
fn c58_hr89_a_full_disk_costs_a_warning_and_no_read() {
    if !is_root() {
        return reads_under_a_limit();
    }
    let mut rig = Rig::new();
    rig.scene("lab", roomy());
    rig.sh("mount -t tmpfs -o size=1m,mode=0700 none cache")
        .good();
    rig.up(&["lab"], &[]);
    reads_without_a_cache(&rig);
    rig.stop();
    rig.sh("umount cache").good();
}

#[test]
fn c58_a_disk_with_room_again_is_used_again() {
    let mut rig = Rig::new();
    rig.scene("lab", roomy());
    if !is_root() {
        return reads_under_a_limit();
    }
    rig.sh("mount -t tmpfs -o size=5m,mode=0700 none cache")
        .good();
    rig.sh("head -c 4000000 /dev/zero >cache/filler").good();
    rig.up(&["lab"], &[]);
    let whole = |rig: &Rig, file: &str, fill: &str| {
        let got = fs::read(rig.path(&format!("lab/s/{file}"))).unwrap();
        let want = fill.repeat((3 << 20) / fill.len() + 1);
        assert!(got == want.as_bytes()[..3 << 20], "{file}");
        got
    };
    whole(&rig, "big", "0123456789");
    until("a warning", 5.0, || {
        rig.words().contains("cache is not used")
    });
    fs::remove_file(rig.dir().join("cache/filler")).unwrap();
    let two = whole(&rig, "two", "98");
    let copy = rig.blob(&two);
    assert!(fs::read(copy).unwrap() == two);
    rig.stop();
    rig.sh("umount cache").good();
}

#[test]
fn c58_a_cache_on_a_read_only_disk_costs_a_warning_and_no_read() {
    let mut rig = Rig::new();
    rig.scene("lab", roomy());
    if !is_root() {
        return reads_under_a_limit();
    }
    // With what was kept before it became read-only, and without.
    for before in [false, true] {
        rig.sh("mount -t tmpfs -o size=20m,mode=0700 none cache")
            .good();
        if before {
            rig.up(&["lab"], &[]);
            assert_eq!(rig.cat("lab/s/small"), ok("small\n"));
            rig.blob(b"small\n");
            rig.stop();
        }
        rig.sh("mount -o remount,ro cache").good();
        let (words, reads) = (rig.words().len(), rig.seen("lab", "resources/read"));
        rig.up(&["lab"], &[]);
        for file in ["small", "big", "two", "SKILL.md"] {
            assert!(rig.cat(&format!("lab/s/{file}")).is_ok(), "{file}");
        }
        let asked = rig.seen("lab", "resources/read") - reads;
        assert_eq!(asked, if before { 3 } else { 4 }, "what is kept is used");
        let warned = || rig.words()[words..].to_lowercase().matches("cache").count();
        until("a warning", 5.0, || warned() > 0);
        let said = rig.words()[words..].to_owned();
        let lines = said
            .lines()
            .filter(|l| l.contains("cache") && l.contains("WARN"));
        assert!(lines.count() <= 1, "one, not one a read: {said}");
        rig.stop();
        let partial = rig
            .stored("cache")
            .into_iter()
            .filter(|(p, _)| p.file_name().unwrap().to_string_lossy().starts_with(".tmp"));
        assert_eq!(partial.count(), 0);
        rig.sh("umount cache").good();
    }
}

#[test]
fn c58_a_limit_on_the_size_of_files_costs_a_warning_and_no_read() {
    reads_under_a_limit();
}

fn reads_under_a_limit() {
    let mut rig = Rig::new();
    rig.scene("lab", roomy());
    let mut command = rig.command("sh");
    command
        .args(["-c", "ulimit -f 100; exec \"$0\" \"$@\""])
        .arg(rig::BIN);
    let target = rig.scripted("lab");
    rig.daemon_args(&mut command, &[("lab", &target)], &[]);
    rig.mount_with(command);
    rig.ready("lab");
    reads_without_a_cache(&rig);
}

#[test]
fn hr14_hr76_a_damaged_or_foreign_stored_listing_is_as_good_as_none() {
    let mut rig = Rig::new();
    let up = scene(&files(&["a"]));
    rig.scene("lab", up.clone());
    rig.up(&["lab"], &[]);
    assert_eq!(rig.cat("lab/s/a"), ok("content of a\n"));
    let find = |rig: &Rig| {
        let kept = rig.stored("state").into_iter();
        kept.map(|(p, _)| p).find(|p| p.ends_with("listing.json"))
    };
    let listing = rig::wait("a stored listing", 5.0, || find(&rig));
    let good = fs::read(&listing).unwrap();
    rig.scene("lab", down(up.clone()));
    let target = rig.scripted("lab");

    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 1;
    for (name, bytes) in [
        ("flipped", &flipped[..]),
        ("cut", &good[..good.len() / 2]),
        ("empty", b""),
        ("binary", b"\xff\0"),
    ] {
        rig.stop();
        let words = rig.words().len();
        fs::write(&listing, bytes).unwrap();
        rig.mount(&[("lab", &target)], &[]);
        until(name, 5.0, || rig.words()[words..].contains("damaged"));
        until(name, 5.0, || rig.ls("lab") == Err("EHOSTDOWN"));
    }
    fs::write(&listing, &good).unwrap();
    rig.remount(&[("lab", &target)], &[]);
    assert_eq!(
        rig.cat("lab/s/a"),
        ok("content of a\n"),
        "the right one is used"
    );
    let another = target.replace("-S", "-S -B");
    rig.remount(&[("lab", &another)], &[]);
    until("another server under the label", 5.0, || {
        rig.ls("lab") == Err("EHOSTDOWN")
    });

    rig.stop();
    fs::write(&listing, &flipped).unwrap();
    rig.scene("lab", up);
    rig.up(&["lab"], &[]);
    assert_eq!(rig.cat("lab/s/a"), ok("content of a\n"));
}

#[test]
fn hr89_the_cache_stays_below_its_cap() {
    let mut rig = Rig::new();
    let files: serde_json::Map<String, Value> = (0..12)
        .map(|n| {
            (
                format!("{n}.txt"),
                json!({"fill": format!("{n}-"), "size": 200_000}),
            )
        })
        .collect();
    rig.scene("lab", json!({"skills": [skill("s", Value::Object(files))]}));
    rig.up(&["lab"], &["--cache-size", "1"]);
    let bytes = |rig: &Rig| -> u64 {
        let files = rig.stored("cache").into_iter().filter(|(p, _)| p.is_file());
        files
            .map(|(p, _)| fs::metadata(p).map_or(0, |m| m.len()))
            .sum()
    };
    for n in 0..12 {
        let got = fs::read_to_string(rig.path(&format!("lab/s/{n}.txt"))).unwrap();
        assert_eq!(got.len(), 200_000);
        assert!(got.starts_with(&format!("{n}-{n}-")));
        until("room again", 5.0, || bytes(&rig) <= 1 << 20);
    }
    // They are written a moment after they were read.
    until("the latest to be kept", 5.0, || bytes(&rig) >= 600_000);
    assert!(bytes(&rig) <= 1 << 20);
    until("its own count", 5.0, || {
        rig.status()["cache"]["bytes"].as_u64().unwrap() <= 1 << 20
    });
}
