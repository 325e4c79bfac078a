//! The fault matrix, second half: ends and starts, other users, scarce things, odd readers.
//!
//! F19 is in `crash`, F22, F23 and F30 are in `load`.

use crate::faults::{A, B, looping, one_warning_of_the_cache, two_files};
use crate::nonroot;
use crate::rig::{
    Out, Proc, Rig, is_root, kill, mounts_at, ok, processes_with, run, sha256, skill, skill_md,
    until, wait,
};
use crate::standing::{CONTROL, Standing, control};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{IoSliceMut, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

fn with_rules(rules: Value) -> Value {
    let mut scene = two_files();
    scene["rules"] = rules;
    scene
}

#[test]
fn f20_a_dead_mount_of_ours_is_taken_away_and_a_foreign_one_is_refused() {
    let mut rig = Rig::new();
    rig.scene("lab", two_files());
    rig.up_beside_control(&["lab"], "5", &[]);
    let mount = rig.mount_point().display().to_string();
    for (pid, _) in processes_with(&mount)
        .iter()
        .filter(|(_, line)| line.contains("__guard"))
    {
        kill(*pid, Signal::KILL);
    }
    rig.kill_daemon();
    assert_eq!(rig.ls(""), Err("ENOTCONN"), "a dead mount");
    rig.up_beside_control(&["lab"], "5", &[]);
    assert_eq!(mounts_at(rig.mount_point()).len(), 1);
    let standing = Standing::begin(&rig, 5.0, &[A, B]);
    standing.end(&rig);
    rig.stop();
    if is_root() {
        run(Command::new("mount")
            .args(["-t", "tmpfs", "none"])
            .arg(&mount))
        .good();
        fs::write(rig.path("theirs"), "x").unwrap();
        let target = format!("lab={}", rig.scripted("lab"));
        let out = rig.cli(&["--server", &target, &mount]);
        assert_eq!(out.code, Some(1));
        let lines: Vec<&str> = out.err.lines().collect();
        assert!(
            lines.len() == 1 && lines[0].contains(&mount) && lines[0].contains("mounted"),
            "{lines:?}"
        );
        assert_eq!(mounts_at(rig.mount_point()), ["tmpfs"]);
        assert_eq!(fs::read_to_string(rig.path("theirs")).unwrap(), "x");
        run(Command::new("umount").arg(&mount)).good();
        // Dead as well, but not ours to take away.
        run(Command::new("python3").args(["-c", DEAD, &mount])).good();
        assert_eq!(rig.ls(""), Err("ENOTCONN"), "a dead mount of another");
        let out = rig.cli(&["--server", &target, &mount]);
        assert_eq!(out.code, Some(1), "{out:?}");
        assert!(
            out.err.lines().count() == 1 && out.err.contains("fuse.other"),
            "{out:?}"
        );
        assert_eq!(mounts_at(rig.mount_point()), ["fuse.other"]);
        run(Command::new("umount").arg("-l").arg(&mount)).good();
    }
}

/// Mounts a FUSE file system of another kind and leaves it without a daemon.
const DEAD: &str = r#"
import ctypes, os, sys
fd = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={fd},rootmode=40000,user_id=0,group_id=0"
mount = ctypes.CDLL(None, use_errno=True).mount
failed = mount(b"other", sys.argv[1].encode(), b"fuse.other", 0, options.encode())
assert not failed, os.strerror(ctypes.get_errno())
"#;

/// Skills of which each daemon approves its own.
const PAIRS: usize = 10;

#[test]
fn f25_a_second_daemon_shares_what_is_kept_and_is_refused_at_the_same_place() {
    let mut rig = Rig::with_limit(150 + 2 * looping().as_secs());
    let names: Vec<String> = (0..2 * PAIRS).map(|n| format!("n{n}")).collect();
    let more = names
        .iter()
        .map(|n| skill(n, json!({"x.txt": format!("{n}\n")})));
    let mut scene = two_files();
    scene["skills"].as_array_mut().unwrap().extend(more);
    rig.scene("lab", scene);
    let flags = ["--approval", "each"];
    rig.up_beside_control(&["lab"], "5", &flags);
    rig.approve("lab/s");
    rig.approve("control/c");
    let sets: Vec<String> = names.iter().map(|n| rig.set(&format!("lab/{n}"))).collect();
    let standing = Standing::begin(&rig, 5.0, &[A, B]);
    let mount = rig.mount_point().display().to_string();
    let lab = rig.scripted("lab");
    let other = Rig::beside(&rig, "second");
    let start_other = || Proc::spawn(&mut other.daemon_command(&[("lab", &*lab)], &flags));
    let taken = |out: &Out, at: &str| {
        let advice = format!(
            "already mounted by a running mount-skills; to end it: mount-skills unmount {at}"
        );
        assert_eq!(out.code, Some(1), "{out:?}");
        assert!(
            out.err.lines().count() == 1 && out.err.contains(&advice),
            "{out:?}"
        );
    };
    let there = other.mount_point().display().to_string();
    let change = |rig: &Rig, n: usize, approve: bool| {
        let skill = format!("lab/{}", names[n]);
        let args = match approve {
            true => vec!["approve", "--set", &sets[n], &*skill],
            false => vec!["revoke", &*skill],
        };
        let mut command = rig.command(&rig.bin);
        Proc::spawn(command.args(args).arg("--mount").arg(rig.mount_point()))
    };
    let (start, mut rounds, mut races) = (Instant::now(), 0, 0);
    let mut approved = [false; 2 * PAIRS];
    let mut old: Option<Proc> = None;
    while start.elapsed() < looping() || rounds < 4 {
        taken(
            &rig.cli(&["--server", &format!("lab={lab}"), &mount]),
            &mount,
        );
        // Two at once in the other place, while the one before them is still on its way out: one
        // of them has it in the end, and whoever does not says who has.
        let winner = wait("one of two to mount", 30.0, || {
            races += 1;
            let mut both = vec![start_other(), start_other()];
            let end = Instant::now() + Duration::from_secs(15);
            let mut left = Vec::new();
            while left.is_empty() && Instant::now() < end {
                for n in (0..both.len()).rev() {
                    if !both[n].runs() {
                        left.push(both.remove(n));
                    }
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            assert!(!left.is_empty(), "two daemons in one place");
            // The other may be on its way to the same answer.
            while both.len() == 1 && mounts_at(other.mount_point()).is_empty() {
                assert!(Instant::now() < end, "neither mounted nor ended");
                if !both[0].runs() {
                    left.push(both.remove(0));
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            left.into_iter()
                .for_each(|loser| taken(&loser.finish(5.0), &there));
            let mut winner = both.pop()?;
            if let Some(old) = old.take() {
                drop(old.finish(15.0));
            }
            // What is mounted may be the old one's: then this one has ended, or is about to.
            let ready = wait("the new one to answer or to end", 20.0, || {
                if !winner.runs() {
                    return Some(false);
                }
                (other.try_status()?["servers"][0]["state"] == "ready").then_some(true)
            });
            if !ready {
                taken(&winner.finish(5.0), &there);
                return None;
            }
            Some(winner)
        });
        other.ready("lab");
        assert_eq!(
            mounts_at(other.mount_point()),
            ["fuse.mount-skills"],
            "round {rounds}"
        );
        assert_eq!(other.cat(A.0), ok(A.1), "approved for both");
        let n = rounds % PAIRS;
        let approve = (rounds / PAIRS).is_multiple_of(2);
        let commands = [change(&rig, n, approve), change(&other, PAIRS + n, approve)];
        commands
            .into_iter()
            .for_each(|command| drop(command.finish(20.0).good()));
        (approved[n], approved[PAIRS + n]) = (approve, approve);
        winner.signal([Signal::TERM, Signal::KILL][rounds % 2]);
        old = Some(winner);
        rounds += 1;
        assert_eq!(standing.read(&rig, B.0), ok(B.1));
    }
    drop(old.unwrap().finish(15.0));
    until("the last one's mount to go", 10.0, || {
        mounts_at(other.mount_point()).is_empty()
    });
    drop(other);
    eprintln!("{rounds} rounds of {races} races");
    standing.end(&rig);
    rig.stop();
    // A new one knows what both were told.
    rig.up_beside_control(&["lab"], "5", &flags);
    for (name, approved) in names.iter().zip(approved) {
        let status = rig.skill_status(&format!("lab/{name}"));
        assert_eq!(
            status["approved"] == "read",
            approved,
            "after {rounds} rounds and {races} races: {status}"
        );
    }
    let standing = Standing::begin(&rig, 5.0, &[A, B]);
    standing.end(&rig);
}

#[test]
fn f26_a_users_mount_stands_the_same_faults() {
    let (mut rig, _open) = nonroot::rig();
    let lie = json!([{"method": "resources/read", "uri": "skill://s/a.txt", "serve": "x\n"}]);
    rig.scene("lab", with_rules(lie));
    rig.up_beside_control(&["lab"], "5", &[]);
    let standing = Standing::begin(&rig, 5.0, &[A, B]);
    let rows = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let row = rows
        .lines()
        .find(|r| r.contains(&rig.mount_point().display().to_string()))
        .unwrap();
    let options: BTreeSet<&str> = row.split(' ').nth(5).unwrap().split(',').collect();
    for option in ["ro", "nosuid", "nodev", "noexec"] {
        assert!(options.contains(option), "{option} in {row}");
    }
    assert_eq!(standing.read(&rig, A.0), Err("EIO"), "F06");
    let hang = json!([{"method": "resources/read", "uri": "skill://s/b.txt", "hang": true}]);
    rig.scene("lab", with_rules(hang.clone()));
    let reads = rig.seen("lab", "resources/read");
    let parked = rig.cat_later(B.0);
    until("a parked read", 10.0, || {
        rig.seen("lab", "resources/read") > reads
    });
    assert_eq!(rig.ls("lab/s").unwrap().len(), 3, "F02: the label answers");
    parked.signal(Signal::INT);
    assert_eq!(parked.finish(3.0).code, None, "F02: Ctrl-C");
    assert_eq!(standing.read(&rig, B.0), Err("ETIMEDOUT"), "F02");
    rig.scene("lab", two_files());
    kill(rig.server_pid("lab"), Signal::KILL);
    until("F01 to be over", 20.0, || {
        standing.read(&rig, B.0) == ok(B.1)
    });
    standing.end(&rig);

    // A kill with a reader waiting, as in F19; then the cache is not what it was.
    let slow = json!([{"method": "resources/read", "uri": "skill://s/SKILL.md", "hang": true}]);
    rig.scene("lab", with_rules(slow));
    let parked = rig.cat_later("lab/s/SKILL.md");
    until("a parked read", 10.0, || {
        rig.reads("lab").contains_key("skill://s/SKILL.md")
    });
    let (a, b) = (rig.blob(A.1.as_bytes()), rig.blob(B.1.as_bytes()));
    rig.kill_daemon();
    let parked = parked.finish(5.0);
    assert!(
        parked.code != Some(0) && parked.out.is_empty(),
        "{parked:?}"
    );
    rig.nothing_left();
    for (blob, bytes) in [(&a, "b\n"), (&b, "b\n")] {
        fs::set_permissions(blob, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(blob, bytes).unwrap();
        File::open(blob)
            .unwrap()
            .set_modified(SystemTime::UNIX_EPOCH)
            .unwrap();
    }
    let down = json!({"exit": 1});
    let mut scene = two_files();
    scene["start"] = down;
    rig.scene("lab", scene);
    rig.scene(CONTROL, control());
    let targets = ["lab", CONTROL].map(|l| rig.scripted(l));
    rig.mount(
        &[("lab", &targets[0]), (CONTROL, &targets[1])],
        &["--timeout", "5"],
    );
    rig.ready(CONTROL);
    let standing = Standing::begin(&rig, 5.0, &[A, B]);
    assert_eq!(standing.read(&rig, A.0), Err("EHOSTDOWN"), "F14");
    assert_eq!(standing.read(&rig, B.0), ok(B.1), "F15: another time");
    drop(standing);
    rig.scene("lab", two_files());
    rig.ready("lab");
    Standing::begin(&rig, 5.0, &[A, B]).end(&rig);
}

#[test]
fn f26_a_users_mount_on_a_full_disk_costs_one_warning() {
    assert!(is_root(), "only root can mount the small disk of this test");
    let (mut rig, _open) = nonroot::rig();
    let big = "x".repeat(3 << 20);
    let files = json!({"a.txt": A.1, "x": {"fill": "x", "size": big.len()}});
    rig.scene("lab", json!({"skills": [skill("s", files)]}));
    let cache = rig.dir().join("cache");
    run(Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m,mode=0700,uid=65534", "none"])
        .arg(&cache))
    .good();
    rig.up_beside_control(&["lab"], "20", &[]);
    let standing = Standing::begin(&rig, 20.0, &[("lab/s/x", &big), A]);
    for _ in 0..2 {
        Rig::drop_kernel_caches();
        assert!(standing.read(&rig, "lab/s/x") == ok(&big));
    }
    one_warning_of_the_cache(&rig, standing);
    rig.stop();
    run(Command::new("umount").arg(&cache)).good();
}

#[test]
fn f26_a_users_mount_in_use_ends_by_any_signal() {
    let (mut rig, _open) = nonroot::rig();
    let hang = json!([{"method": "resources/read", "uri": "skill://s/b.txt", "hang": true}]);
    rig.scene("lab", with_rules(hang));
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        rig.up_beside_control(&["lab"], "60", &[]);
        assert_eq!(rig.cat(A.0), ok(A.1));
        let reads = rig.seen("lab", "resources/read");
        let parked = rig.cat_later(B.0);
        until("a parked read", 10.0, || {
            rig.seen("lab", "resources/read") > reads
        });
        let line = "exec 3<$M/lab/s/a.txt; cd $M/lab/s && exec sleep 300";
        let mut inside = rig.command("sh");
        let inside = Proc::spawn(inside.args(["-c", line]).env("M", rig.mount_point()));
        until("somebody inside", 5.0, || {
            fs::read_to_string(format!("/proc/{}/comm", inside.pid())).is_ok_and(|c| c == "sleep\n")
        });
        kill(rig.daemon_pid(), signal);
        assert_eq!(rig.ended(10.0), Some(0), "{signal:?}: {}", rig.words());
        let parked = parked.finish(5.0);
        assert!(
            parked.code != Some(0) && parked.out.is_empty(),
            "{parked:?}"
        );
        rig.nothing_left();
        drop(inside);
        assert!(!rig.words().contains("panicked"), "{}", rig.words());
    }
}

#[test]
fn f27_other_users_see_nothing_of_mount_cache_and_state() {
    assert!(is_root(), "only root can be somebody else");
    let mut rig = Rig::new();
    rig.scene("lab", two_files());
    rig.up_beside_control(&["lab"], "5", &[]);
    let standing = Standing::begin(&rig, 5.0, &[A, B]);
    assert_eq!(rig.cat(A.0), ok(A.1));
    rig.blob(A.1.as_bytes());
    // Nothing but the rules of the mount and of the directories keeps them out.
    for dir in [
        rig.dir(),
        &rig.dir().join("cache"),
        &rig.dir().join("state"),
        &rig.dir().join("run"),
    ] {
        run(Command::new("chmod").arg("0755").arg(dir)).good();
    }
    let nobody = |line: &str| {
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "sh",
            "-c",
            line,
        ]);
        run(command.env("M", rig.mount_point()).current_dir(rig.dir()))
    };
    for line in [
        "ls $M",
        "cat $M/lab/s/a.txt",
        "stat $M/lab",
        "ls cache/mount-skills",
        "ls state/mount-skills",
        "cat cache/mount-skills/v1/*/*/*",
        "cat state/mount-skills/v1/*/*",
        "ls run/mount-skills/run",
        "exec 3<$M/lab/s/a.txt",
        "env -C $M true",
    ] {
        let out = nobody(line);
        assert_ne!(out.code, Some(0), "{line}: {out:?}");
        assert!(
            out.out.is_empty() && out.err.contains("Permission denied"),
            "{line}: {out:?}"
        );
    }
    let socket = socket(&rig).display().to_string();
    let out = nobody(&format!(
        "/usr/bin/python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect(\"{socket}\")'"
    ));
    assert!(
        out.code != Some(0) && out.err.contains("Permission denied"),
        "{out:?}"
    );
    standing.end(&rig);
}

#[test]
fn f27_root_sees_nothing_of_a_users_mount() {
    assert!(is_root(), "only root can be root and somebody else");
    let (mut rig, _open) = nonroot::rig();
    rig.scene("lab", two_files());
    rig.up_beside_control(&["lab"], "5", &[]);
    let standing = Standing::begin(&rig, 5.0, &[A, B]);
    assert_eq!(standing.read(&rig, A.0), ok(A.1));
    for path in ["", "lab", "lab/s", A.0, B.0] {
        let denied = Some(std::io::ErrorKind::PermissionDenied);
        // The mount point itself is the kernel's to show; what is in it is not.
        let stat = fs::metadata(rig.path(path).join("."));
        assert_eq!(stat.err().map(|e| e.kind()), denied, "{path:?}");
        let open = File::open(rig.path(path).join("."));
        assert_eq!(open.err().map(|e| e.kind()), denied, "{path:?}");
    }
    assert_eq!(
        rig.seen("lab", "resources/read"),
        1,
        "what is refused is not fetched"
    );
    standing.end(&rig);
}

/// The socket of the only daemon of a rig.
fn socket(rig: &Rig) -> PathBuf {
    let sockets = fs::read_dir(rig.dir().join("run/mount-skills/run")).unwrap();
    let mut paths = sockets.flatten().map(|e| e.path());
    let socket = paths.find(|p| p.extension().is_some_and(|e| e == "sock"));
    socket.unwrap()
}

#[test]
fn f29_a_daemon_out_of_descriptors_gives_errors_and_recovers() {
    const FILES: usize = 30;
    let mut rig = Rig::new();
    let contents: Vec<String> = (0..FILES).map(|n| format!("file {n}\n")).collect();
    let files = contents
        .iter()
        .enumerate()
        .map(|(n, c)| (format!("f{n}"), json!(c)));
    rig.scene(
        "lab",
        json!({"skills": [skill("s", Value::Object(files.collect()))]}),
    );
    rig.scene(
        "web",
        json!({"skills": [skill("s", json!({"a.txt": "over http\n"}))]}),
    );
    rig.scene(CONTROL, control());
    let mut command = rig.command("prlimit");
    command.arg("--nofile=64").arg(&rig.bin);
    let web = rig.scripted_http("web");
    let targets = ["lab", CONTROL].map(|l| rig.scripted(l));
    let servers = [
        ("lab", &*targets[0]),
        ("web", &*web),
        (CONTROL, &*targets[1]),
    ];
    rig.daemon_args(&mut command, &servers, &["--timeout", "3"]);
    rig.mount_with(command);
    for label in ["lab", "web", CONTROL] {
        rig.ready(label);
    }
    let paths: Vec<String> = (0..FILES).map(|n| format!("lab/s/f{n}")).collect();
    let mut right: Vec<(&str, &str)> = paths
        .iter()
        .zip(&contents)
        .map(|(p, c)| (&**p, &**c))
        .collect();
    right.push(("web/s/a.txt", "over http\n"));
    let standing = Standing::begin(&rig, 3.0, &right);
    let socket = socket(&rig);
    let held: Vec<_> = (0..100)
        .filter_map(|_| UnixStream::connect(&socket).ok())
        .collect();
    assert!(held.len() > 60, "{}", held.len());
    let fds = || fs::read_dir(format!("/proc/{}/fd", rig.daemon_pid())).map_or(64, Iterator::count);
    until("its descriptors to be used up", 10.0, || fds() >= 64);

    // A server that runs needs none, and what cannot be cached is read all the same.
    let cats: Vec<Proc> = paths[..FILES - 1]
        .iter()
        .map(|p| rig.cat_later(p))
        .collect();
    for ((path, content), cat) in right.iter().zip(cats) {
        assert_eq!(standing.outcome(&rig, path, cat), ok(content), "{path}");
    }
    // What needs one is an error and no wrong byte: a new connection, a new process.
    let got = standing.read(&rig, "web/s/a.txt");
    assert!(
        matches!(got, Ok(_) | Err("EHOSTDOWN" | "EIO" | "ETIMEDOUT")),
        "{got:?}"
    );
    let lists = rig.seen("lab", "skills/list");
    kill(rig.server_pid("lab"), Signal::KILL);
    let last = &paths[FILES - 1];
    let got = standing.read(&rig, last);
    assert!(matches!(got, Err("EHOSTDOWN" | "ETIMEDOUT")), "{got:?}");
    assert_eq!(
        standing.read(&rig, &paths[0]),
        ok(&contents[0]),
        "as before"
    );
    assert_eq!(rig.ls("lab/s").unwrap().len(), FILES + 1);
    assert_eq!(
        rig.seen("lab", "skills/list"),
        lists,
        "nothing could be started"
    );
    drop(held);
    until("the server to be back", 40.0, || {
        standing.read(&rig, last) == ok(&contents[FILES - 1])
    });
    rig.ready("lab");
    rig.blob(contents[FILES - 1].as_bytes());
    let words = rig.words();
    assert!(
        words.lines().count() < 40,
        "not one line a failure: {words}"
    );
    standing.end(&rig);
}

#[test]
fn f31_a_server_that_looks_into_our_mount_while_it_answers_comes_to_an_end() {
    let mut rig = Rig::new();
    let own = rig.path("lab/s/b.txt");
    let three = |rules: Value| {
        let files = json!({"a.txt": "a\n", "b.txt": "b\n", "c.txt": "c\n"});
        json!({"skills": [skill("s", files)], "rules": rules})
    };
    // It waits for itself: one request at a time, each of which needs the next.
    let look = json!({"method": "resources/read", "look": own});
    let list = json!({"method": "skills/list", "look": rig.path("lab/s/a.txt")});
    rig.scene("lab", three(json!([look, list])));
    rig.up_beside_control(&["lab"], "2", &[]);
    let standing = Standing::begin(&rig, 2.0, &[A, B]);
    let got = standing.read(&rig, A.0);
    assert!(matches!(got, Ok(_) | Err("ETIMEDOUT")), "{got:?}");
    rig.scene("lab", three(json!([])));
    standing.end(&rig);
    let looked = rig.log("lab", "looked");
    assert!(!looked.is_empty());
    // And the mount can be ended while it looks: it waits for a file that it must give itself.
    let own = rig.path("lab/s/c.txt");
    let look = json!({"method": "resources/read", "uri": "skill://s/c.txt", "look": own});
    rig.scene("lab", three(json!([look])));
    let reads = rig.seen("lab", "resources/read");
    let reader = rig.cat_later("lab/s/c.txt");
    until("it to look", 10.0, || {
        rig.seen("lab", "resources/read") > reads
    });
    rig.stop();
    let out = reader.finish(5.0);
    assert!(out.code != Some(0) && out.out.is_empty(), "{out:?}");
}

#[test]
fn f32_a_flood_on_stderr_and_of_notices_changes_nothing() {
    const STDERR: usize = 100_000_000;
    const NOTICES: usize = 100_000;
    let note = "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/resources/list_changed\"}";
    let log = "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"level\":\"info\",\"data\":\"x\"}}";
    let flood: Vec<&str> = [note, log, "no message at all"]
        .into_iter()
        .cycle()
        .take(NOTICES / 2 * 3)
        .collect();
    let stderr = json!({"fill": "a line of the server\n", "size": STDERR});
    let wordy =
        json!({"method": "resources/read", "uri": "skill://s/b.txt", "stderr": stderr, "times": 1});
    let noisy =
        json!({"method": "resources/read", "uri": "skill://s/c.txt", "before": flood, "times": 1});
    let files = json!({"a.txt": "a\n", "b.txt": "b\n", "c.txt": "c\n", "d.txt": "d\n"});
    let mut scene = json!({"skills": [skill("s", files)], "rules": [wordy, noisy]});
    scene["ttlMs"] = 600_000.into();
    let mut rig = Rig::with_limit(200);
    rig.scene("lab", scene);
    rig.up_beside_control(&["lab"], "60", &[]);
    let (c, d) = (("lab/s/c.txt", "c\n"), ("lab/s/d.txt", "d\n"));
    let standing = Standing::begin(&rig, 60.0, &[A, B, c, d]);
    assert_eq!(standing.read(&rig, A.0), ok(A.1));
    let before = rig.daemon_peak_mib();
    let mut readers = vec![rig.cat_later(B.0), rig.cat_later(c.0)];
    // Meanwhile: what is known, what must be asked for, and commands.
    let mut rounds = 0;
    while readers.iter_mut().any(Proc::runs) {
        assert_eq!(standing.read(&rig, A.0), ok(A.1));
        assert_eq!(rig.ls("lab/s").unwrap().len(), 5);
        assert_eq!(rig.server("lab")["state"], "ready");
        rounds += 1;
    }
    assert!(rounds > 1, "nothing was looked at under the flood");
    let noisy = readers.pop().unwrap();
    assert_eq!(standing.outcome(&rig, c.0, noisy), ok(c.1));
    let wordy = readers.pop().unwrap();
    assert_eq!(standing.outcome(&rig, B.0, wordy), ok(B.1));
    assert_eq!(standing.read(&rig, d.0), ok(d.1));
    let lists = rig.seen("lab", "skills/list");
    assert!(lists <= 6, "{lists} listings for {NOTICES} notices");
    let grown = rig.daemon_peak_mib() - before;
    assert!(grown <= 32, "{grown} MiB more");
    assert!(
        rig.words().len() < 10_000,
        "{} bytes of log",
        rig.words().len()
    );
    let kept = rig.server("lab")["connection"]["stderr"]
        .as_str()
        .unwrap()
        .len();
    assert!((1..64 << 10).contains(&kept), "{kept}");
    standing.end(&rig);
}

/// A small generator of numbers, so that a run can be repeated.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n.max(1)
    }
}

#[test]
fn f34_any_way_to_read_gives_what_a_local_copy_gives() {
    let sizes = [
        0usize,
        1,
        4095,
        4096,
        4097,
        131_072,
        131_073,
        700_001,
        5 << 20,
    ];
    let fill = |n: usize| format!("{n}-the quick brown fox\n");
    let content =
        |n: usize, size: usize| fill(n).repeat(size / 8 + 1).into_bytes()[..size].to_vec();
    let files: serde_json::Map<_, _> = sizes
        .iter()
        .enumerate()
        .map(|(n, size)| (format!("f{n}"), json!({"fill": fill(n), "size": size})))
        .collect();
    let mut rig = Rig::with_limit(600);
    rig.scene("lab", json!({"skills": [skill("s", Value::Object(files))]}));
    rig.up_beside_control(&["lab"], "20", &[]);
    let standing = Standing::begin(&rig, 20.0, &[("lab/s/SKILL.md", &skill_md("s"))]);
    let rounds =
        std::env::var("MOUNT_SKILLS_READS").map_or(20_000, |n| n.parse().expect("a number"));
    let local = rig.dir().join("copy");
    let mut numbers = Numbers(0x5eed);
    for (n, size) in sizes.iter().enumerate() {
        let path = rig.path(&format!("lab/s/f{n}"));
        let want = content(n, *size);
        fs::write(&local, &want).unwrap();
        let mut here = File::open(&path).unwrap();
        let mut there = File::open(&local).unwrap();
        let direct = File::options()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(&path)
            .unwrap();
        for round in 0..rounds / sizes.len() {
            let (at, len) = (
                numbers.below(*size as u64 + 5000),
                numbers.below(9000) as usize,
            );
            let what = format!("f{n}, round {round}: {len} bytes at {at}");
            let (mut a, mut b) = (vec![0; len], vec![0; len]);
            match numbers.below(5) {
                0 => assert_eq!(
                    here.read_at(&mut a, at).unwrap(),
                    there.read_at(&mut b, at).unwrap(),
                    "{what}"
                ),
                1 => assert_eq!(
                    direct.read_at(&mut a, at).unwrap(),
                    there.read_at(&mut b, at).unwrap(),
                    "{what}, direct"
                ),
                2 => {
                    for file in [&mut here, &mut there] {
                        file.seek(SeekFrom::Start(at)).unwrap();
                    }
                    let (x, y) = (a.split_at_mut(len / 3), b.split_at_mut(len / 3));
                    let got = here
                        .read_vectored(&mut [IoSliceMut::new(x.0), IoSliceMut::new(x.1)])
                        .unwrap();
                    let wanted = there
                        .read_vectored(&mut [IoSliceMut::new(y.0), IoSliceMut::new(y.1)])
                        .unwrap();
                    assert_eq!(got, wanted, "{what}, readv");
                }
                3 => {
                    let end = -(numbers.below(*size as u64 + 1) as i64);
                    assert_eq!(
                        here.seek(SeekFrom::End(end)).unwrap(),
                        there.seek(SeekFrom::End(end)).unwrap()
                    );
                    assert_eq!(
                        here.read(&mut a).unwrap(),
                        there.read(&mut b).unwrap(),
                        "{what}, from the end"
                    );
                }
                _ => {
                    // A copy without holes has none here either.
                    let seek =
                        |f: &File, from| rustix::fs::seek(f, from).map_err(|e| e.raw_os_error());
                    for from in [
                        rustix::fs::SeekFrom::Data(at),
                        rustix::fs::SeekFrom::Hole(at),
                    ] {
                        assert_eq!(seek(&here, from), seek(&there, from), "{what}, {from:?}");
                    }
                }
            }
            assert!(a == b, "{what}");
        }
    }
    for (n, size) in sizes.iter().enumerate() {
        fs::write(&local, content(n, *size)).unwrap();
        let mut other_ways = rig.command("python3");
        other_ways
            .args(["-S", "-c", OTHER_WAYS])
            .arg(rig.path(&format!("lab/s/f{n}")))
            .arg(&local)
            .arg((rounds / sizes.len()).to_string());
        let out = Proc::spawn(&mut other_ways).finish(300.0);
        assert_eq!(out.good().trim(), sha256(&content(n, *size)), "f{n}");
    }
    standing.end(&rig);
}

/// Maps, splices, scatters and copies parts of a file and of a local copy, and compares them.
const OTHER_WAYS: &str = r#"
import hashlib, mmap, os, random, sys
numbers, rounds = random.Random(0x5eed), int(sys.argv[3])
files = [os.open(path, os.O_RDONLY) for path in sys.argv[1:3]]
size = os.fstat(files[1]).st_size
assert os.fstat(files[0]).st_size == size
r, w = os.pipe()
sink = os.open("/tmp", os.O_TMPFILE | os.O_RDWR, 0o600)

def mapped(view, at, n):
    return view[at : at + n]

def spliced(fd, at, n):
    n = os.splice(fd, w, min(n, 65536), offset_src=at)
    return os.read(r, n) if n else b""

def sent(fd, at, n):
    n = os.sendfile(w, fd, at, min(n, 65536))
    return os.read(r, n) if n else b""

def scattered(fd, at, n):
    parts = [bytearray(n // 3), bytearray(n - n // 3)]
    n = os.preadv(fd, parts, at)
    return b"".join(parts)[:n]

def copied(fd, at, n):
    os.lseek(sink, 0, os.SEEK_SET)
    return os.pread(sink, os.sendfile(sink, fd, at, n), 0)

views = [mmap.mmap(fd, 0, access=mmap.ACCESS_READ) for fd in files] if size else None
if views is None:
    for fd in files:
        try:
            mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
            sys.exit("an empty file is mapped")
        except ValueError:
            pass
for n in range(rounds):
    at, length = numbers.randrange(size + 5000), numbers.randrange(9000)
    way = numbers.choice([mapped, mapped, spliced, sent, scattered, copied])
    if way is mapped and views is None:
        continue
    here, there = [way(source, at, length) for source in (views if way is mapped else files)]
    # A pipe may take less at once, of one or of the other.
    if way in (spliced, sent) and here and there:
        here, there = here[: len(there)], there[: len(here)]
    assert here == there, (way.__name__, n, at, length, len(here), len(there))
whole = b"".join(iter(lambda: os.read(files[0], 65536), b""))
assert views is None or views[0][:] == whole
print(hashlib.sha256(whole).hexdigest())
"#;

#[test]
fn f35_a_reader_that_leaves_costs_nothing_and_what_it_asked_for_is_kept() {
    const LARGE: usize = 4 << 20;
    let mut rig = Rig::new();
    let large = "large\n".repeat(LARGE / 6);
    let files = json!({"a.txt": "a\n", "b.txt": "b\n", "c.txt": "c\n",
        "large": {"fill": "large\n", "size": large.len()}});
    let read = |file: &str, more: (&str, Value)| json!({"method": "resources/read", "uri": format!("skill://s/{file}"), more.0: more.1});
    let rules = |hang: bool| {
        let mut rules = vec![
            read("a.txt", ("delay", json!(3))),
            read("large", ("drip", json!([1 << 20, 0.2]))),
        ];
        if hang {
            rules.push(read("c.txt", ("hang", json!(true))));
        }
        json!({"skills": [skill("s", files.clone())], "rules": rules})
    };
    rig.scene("lab", rules(true));
    rig.up_beside_control(&["lab"], "10", &[]);
    let (c, whole) = (("lab/s/c.txt", "c\n"), ("lab/s/large", &*large));
    let standing = Standing::begin(&rig, 10.0, &[A, B, c, whole]);
    let asked = |uri: &str| rig.reads("lab").get(uri).copied().unwrap_or_default();

    // Killed, all of them, while it is fetched.
    let readers: Vec<Proc> = (0..20).map(|_| rig.cat_later(A.0)).collect();
    until("the read to be asked for", 10.0, || {
        asked("skill://s/a.txt") == 1
    });
    readers.iter().for_each(|r| r.signal(Signal::KILL));
    for reader in readers {
        assert_eq!(reader.finish(5.0).code, None);
    }
    rig.blob(A.1.as_bytes());
    assert_eq!(standing.read(&rig, A.0), ok(A.1));
    assert_eq!(asked("skill://s/a.txt"), 1, "not asked for again");

    // Closed: without a read, and after the first bytes of many.
    for _ in 0..50 {
        drop(File::open(rig.path(B.0)).unwrap());
    }
    assert_eq!(asked("skill://s/b.txt"), 0, "opening is free");
    assert_eq!(rig.sh("head -c 5 $M/lab/s/large").good(), "large");
    assert_eq!(rig.sh("tail -c 6 $M/lab/s/large").good(), "large\n");
    assert_eq!(asked("skill://s/large"), 1);

    // Killed while nothing comes, again and again: neither threads nor requests pile up.
    let threads = || {
        let dir = format!("/proc/{}/task", rig.daemon_pid());
        fs::read_dir(dir).unwrap().count()
    };
    let before = threads();
    for _ in 0..5 {
        let readers: Vec<Proc> = (0..10).map(|_| rig.cat_later(c.0)).collect();
        until("a reader to wait", 10.0, || asked("skill://s/c.txt") > 0);
        readers.iter().for_each(|r| r.signal(Signal::KILL));
        for reader in readers {
            assert_eq!(reader.finish(5.0).code, None);
        }
    }
    let reads = asked("skill://s/c.txt");
    assert!(reads <= 5, "{reads} for 50 readers");
    rig.scene("lab", rules(false));
    until("the threads to end", 30.0, || threads() <= before + 2);
    standing.end(&rig);
}

#[test]
fn f36_tools_that_walk_ten_thousand_files_read_each_at_most_once() {
    const SKILLS: usize = 40;
    const FILES: usize = 250;
    let mut rig = Rig::with_limit(300);
    let each = |s: usize| {
        let files = (0..FILES - 1).map(|f| {
            (
                format!("d{}/f{f}.md", f % 7),
                json!(format!("needle {s} {f}\n")),
            )
        });
        skill(&format!("s{s}"), Value::Object(files.collect()))
    };
    let skills: Vec<Value> = (0..SKILLS).map(each).collect();
    rig.scene("lab", json!({"skills": skills, "ttlMs": 3_600_000}));
    rig.up_beside_control(&["lab"], "60", &[]);
    let standing = Standing::begin(&rig, 60.0, &[("lab/s0/d0/f0.md", "needle 0 0\n")]);
    let count = |line: &str| rig.sh(line).good().trim().parse::<usize>().unwrap();
    let all = SKILLS * FILES;
    assert_eq!(count("find $M/lab -type f | wc -l"), all);
    assert_eq!(
        count("find $M/lab -type f -size -100c -name '*.md' -newermt 2000-01-01 | wc -l"),
        all
    );
    assert_eq!(count("du -ab $M/lab | wc -l"), all + SKILLS * 8 + 1);
    assert_eq!(count("ls -lR $M/lab | grep -c '^-r--r--r--'"), all);
    assert_eq!(rig.seen("lab", "resources/read"), 0, "looking is free");
    let grep = |line: &str| {
        let mut command = rig.command("sh");
        let proc = Proc::spawn(command.args(["-c", line]).env("M", rig.mount_point()));
        proc.finish(200.0).good().trim().parse::<usize>().unwrap()
    };
    assert_eq!(grep("grep -rl needle $M/lab | wc -l"), all - SKILLS);
    let reads = rig.reads("lab");
    assert_eq!((reads.len(), reads.values().max()), (all, Some(&1)));
    assert_eq!(
        grep("rg -l --no-ignore needle $M/lab | wc -l"),
        all - SKILLS
    );
    assert_eq!(rig.seen("lab", "resources/read"), all, "none again");
    // Each line is the right one, of the right file.
    let out = rig.sh("cd $M/lab && grep -rH needle . | LC_ALL=C sort");
    let mut want: Vec<String> = (0..SKILLS)
        .flat_map(|s| {
            (0..FILES - 1).map(move |f| format!("./s{s}/d{}/f{f}.md:needle {s} {f}", f % 7))
        })
        .collect();
    want.sort();
    let got = out.good();
    let differs = want.iter().map(|w| &**w).ne(got.lines());
    assert!(
        !differs,
        "{} lines, {} expected",
        got.lines().count(),
        want.len()
    );
    standing.end(&rig);
}

#[test]
fn f39_what_a_server_no_longer_declares_is_no_longer_asked_and_what_is_kept_is_served() {
    let declares = |skills: Value| {
        let mut scene = two_files();
        scene["directoryRead"] = true.into();
        scene["ttlMs"] = 600_000.into();
        let mut extensions = json!({});
        if !skills.is_null() {
            extensions["io.modelcontextprotocol/skills"] = skills;
        }
        scene["capabilities"] = json!({"resources": {}, "extensions": extensions});
        scene
    };
    let mut rig = Rig::new();
    rig.scene("lab", declares(json!({"directoryRead": true})));
    rig.up_beside_control(&["lab"], "5", &[]);
    let standing = Standing::begin(&rig, 5.0, &[A, B]);
    assert_eq!(standing.read(&rig, A.0), ok(A.1));
    rig.ask(&["list", "--live", "lab/s"]);
    let looks = rig.seen("lab", "resources/directory/read");
    assert!(looks > 0);

    rig.scene("lab", declares(json!({})));
    rig.kill_server_for_a_new_listing("lab");
    rig.ready("lab");
    assert_ne!(rig.tell(&["list", "--live", "lab/s"]).code, Some(0));
    // Nor by looking for what is not listed.
    assert!(rig.ls("lab/nobody-knows").is_err());
    assert_eq!(rig.ls("lab").unwrap(), ["s"]);
    assert_eq!(standing.read(&rig, A.0), ok(A.1));
    assert_eq!(
        rig.seen("lab", "resources/directory/read"),
        looks,
        "not asked"
    );

    rig.scene("lab", declares(Value::Null));
    kill(rig.server_pid("lab"), Signal::KILL);
    until("the change", 20.0, || {
        rig.server("lab")["state"] == "no-skills"
    });
    let asked = rig.seen("lab", "resources/read");
    assert_eq!(standing.read(&rig, A.0), ok(A.1), "what was read before");
    assert_eq!(standing.read(&rig, B.0), Err("EHOSTDOWN"));
    assert_eq!(
        rig.ls("lab/s").unwrap(),
        ["SKILL.md", "a.txt", "b.txt"],
        "what is known stays"
    );
    assert_eq!(rig.seen("lab", "resources/read"), asked);
    assert_eq!(rig.seen("lab", "resources/directory/read"), looks);

    rig.scene("lab", declares(json!({"directoryRead": true})));
    kill(rig.server_pid("lab"), Signal::KILL);
    until("it to be back", 30.0, || {
        rig.server("lab")["state"] == "ready"
    });
    standing.end(&rig);
}
