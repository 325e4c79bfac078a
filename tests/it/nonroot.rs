//! A session of a user without rights, by way of fusermount3.

use crate::rig::{FuseForAll, Out, Rig, is_root, mounts_at, ok, run, skill, until};
use rustix::process::Signal;
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// A rig whose programs all run as `nobody`, unless the tests have no rights themselves.
pub(crate) fn rig() -> (Rig, Option<FuseForAll>) {
    let mut rig = Rig::new();
    let open = is_root().then(|| {
        rig.become_user(65534);
        FuseForAll::open()
    });
    (rig, open)
}

#[test]
fn c41_a_user_mounts_reads_asks_and_unmounts_and_others_are_kept_out() {
    let (mut rig, _open) = rig();
    rig.scene("lab", json!({"skills": [skill("s", json!({"a.txt": "a\n", "bad": {"text": "x", "serve": "y"}}))]}));
    rig.up(&["lab"], &[]);
    assert_eq!(mounts_at(rig.mount_point()), ["fuse.mount-skills"]);
    let look = rig.sh("cat $M/lab/s/a.txt && stat -c '%u %a' $M/lab/s/a.txt && find $M -type f | wc -l && df $M >/dev/null && id -u");
    let text = look.good();
    let lines: Vec<&str> = text.lines().collect();
    let [content, stat, _, uid] = lines[..] else {
        panic!("{text}")
    };
    assert_eq!((content, stat), ("a", format!("{uid} 444").as_str()));
    assert_eq!(rig.cat("lab/s/bad"), Err("EIO"));
    assert_eq!(rig.server("lab")["state"], "ready");
    let rows = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let row = rows
        .lines()
        .find(|r| r.contains(&*rig.mount_point().display().to_string()))
        .unwrap();
    for option in [
        "ro,",
        "nosuid",
        "nodev",
        "noexec",
        &format!("user_id={uid}"),
    ] {
        assert!(row.contains(option), "{option}: {row}");
    }
    assert!(!row.contains("allow_other"), "{row}");
    if is_root() {
        for path in ["", "lab", "lab/s/a.txt"] {
            let error = fs::metadata(rig.path(path).join(".")).unwrap_err();
            assert_eq!(
                error.kind(),
                std::io::ErrorKind::PermissionDenied,
                "root itself: {path:?}"
            );
        }
        let mut other = Command::new("setpriv");
        other
            .args(["--reuid=65533", "--regid=65533", "--clear-groups", "cat"])
            .arg(rig.path("lab/s/a.txt"));
        let out = run(other.env("LC_ALL", "C"));
        assert_eq!((out.errno(), out.out.len()), (Some("EACCES"), 0));
        let stored = rig.dir().join("cache");
        assert_eq!(
            fs::metadata(stored).unwrap().permissions().mode() & 0o777,
            0o700
        );
    }
    let mount = rig.mount_point().display().to_string();
    rig.cli(&["unmount", &mount]).good();
    assert_eq!(rig.ended(10.0), Some(0), "{}", rig.words());
    rig.nothing_left();
}

#[test]
fn c38_c47_a_users_mount_ends_while_in_use_and_is_taken_away_after_a_kill() {
    let (mut rig, _open) = rig();
    rig.scene(
        "lab",
        json!({"skills": [skill("s", json!({"a.txt": "a\n"}))]}),
    );
    rig.up(&["lab"], &[]);
    let inside = crate::rig::Proc::spawn(
        rig.command("sh")
            .args(["-c", "cd $0/lab/s && exec sleep 300"])
            .arg(rig.mount_point()),
    );
    until("somebody inside", 5.0, || {
        fs::read_to_string(format!("/proc/{}/comm", inside.pid())).is_ok_and(|c| c == "sleep\n")
    });
    crate::rig::kill(rig.daemon_pid(), Signal::TERM);
    assert_eq!(rig.ended(10.0), Some(0), "{}", rig.words());
    until("the mount to go", 5.0, || {
        mounts_at(rig.mount_point()).is_empty()
    });
    drop(inside);
    rig.up(&["lab"], &[]);
    rig.kill_daemon();
    rig.nothing_left();
    rig.up(&["lab"], &[]);
    assert_eq!(rig.cat("lab/s/a.txt"), crate::rig::ok("a\n"));
}

#[test]
fn f28_c40_without_the_device_or_fusermount_a_user_is_told_what_to_do() {
    let mut rig = Rig::new();
    rig.scene("lab", json!({}));
    if is_root() {
        rig.become_user(65534);
        let _closed = FuseForAll::closed();
        let out = start(&rig, "");
        assert_eq!(out.code, Some(1), "{out:?}");
        assert!(
            out.err.contains("/dev/fuse") && out.err.contains("chmod"),
            "{out:?}"
        );
        assert_eq!(out.err.lines().count(), 1, "{out:?}");
        assert!(mounts_at(rig.mount_point()).is_empty());
    }
    let _open = is_root().then(FuseForAll::open);
    let out = start(&rig, "PATH=/nowhere");
    assert_eq!(out.code, Some(1), "{out:?}");
    assert!(
        out.err.contains("fusermount3") && out.err.contains("fuse3"),
        "{out:?}"
    );
    assert_eq!(out.err.lines().count(), 1, "{out:?}");
    assert!(rig.log("lab", "start").is_empty());
    assert!(mounts_at(rig.mount_point()).is_empty());
}

#[test]
fn a_program_of_the_same_user_cannot_look_into_the_daemon() {
    let (mut rig, _open) = rig();
    rig.scene(
        "lab",
        json!({"skills": [skill("s", json!({"a.txt": "a\n"}))]}),
    );
    rig.up(&["lab"], &[]);
    assert_eq!(rig.cat("lab/s/a.txt"), ok("a\n"));
    for (pid, open) in [(rig.server_pid("lab"), true), (rig.daemon_pid(), false)] {
        for file in ["environ", "maps", "mem"] {
            let path = format!("/proc/{pid}/{file}");
            let line = format!("exec 3<{path} && echo open");
            let out = run(rig.command("bash").args(["-c", &line]));
            assert_eq!(out.code == Some(0), open, "{path}: {out:?}");
            assert!(open || out.err.contains("Permission denied"), "{out:?}");
        }
    }
}

/// Tries to mount with another environment.
fn start(rig: &Rig, environment: &str) -> Out {
    let line = format!("{environment} exec \"$0\" --server \"$1\" \"$2\"");
    let server = format!("lab={}", rig.scripted("lab"));
    let mut command = rig.command("sh");
    command
        .args(["-c", &line])
        .arg(&rig.bin)
        .arg(server)
        .arg(rig.mount_point());
    run(&mut command)
}
