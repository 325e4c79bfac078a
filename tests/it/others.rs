//! Other users, namespaces and containers: who reaches a mount, where it is seen, and whether what
//! contrib and the documents say of it is so.

use crate::rig::{
    FuseForAll, Out, Proc, Rig, installed, is_root, kill, ok, processes_with, project, run, skill,
    until,
};
use crate::{life, nonroot};
use clap::Parser;
use mount_skills::cli::{Cli, ServerArgs};
use mount_skills::config::{self, Machine};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A user who has nothing to do with a mount.
const OTHER: u32 = 65533;

/// A mount namespace of its own, which lives as long as this.
struct Space {
    holder: Proc,
    /// The options of nsenter that lead into it.
    into: &'static [&'static str],
}

impl Space {
    /// Makes one with this propagation, and runs a line of shell in it. `$D` is the rig's directory.
    #[track_caller]
    fn new(rig: &Rig, propagation: &str, line: &str) -> Self {
        let mut command = rig.command("unshare");
        command.args(["--mount", "--propagation", propagation]);
        Self::hold(rig, command, line, &["--mount"])
    }

    /// Makes one from within this one.
    #[track_caller]
    fn another(&self, rig: &Rig, propagation: &str) -> Self {
        let mut command = rig.command("unshare");
        command.args(["--mount", "--propagation", propagation]);
        Self::hold(rig, self.inside(&command), "true", &["--mount"])
    }

    #[track_caller]
    fn hold(rig: &Rig, mut command: Command, line: &str, into: &'static [&'static str]) -> Self {
        let line = format!("{line} && exec sleep 300");
        command.args(["sh", "-c", &line]).env("D", rig.dir());
        let mut holder = Proc::spawn(&mut command);
        let comm = format!("/proc/{}/comm", holder.pid());
        until("a namespace", 10.0, || {
            assert!(holder.runs(), "{command:?}");
            fs::read_to_string(&comm).is_ok_and(|c| c == "sleep\n")
        });
        Self { holder, into }
    }

    /// The same command in this namespace.
    fn inside(&self, command: &Command) -> Command {
        let mut all = Command::new("nsenter");
        all.args(["--target", &self.holder.pid().to_string()]);
        all.args(self.into).arg("--");
        all.arg(command.get_program()).args(command.get_args());
        all.env_clear().stdin(Stdio::null());
        all.envs(command.get_envs().filter_map(|(k, v)| Some((k, v?))));
        all
    }

    /// What a line of shell comes to in it; `$M` is the mount point.
    #[track_caller]
    fn sh(&self, rig: &Rig, line: &str) -> Out {
        let mut command = rig.command("sh");
        command.args(["-c", line]).env("M", rig.mount_point());
        run(&mut self.inside(&command))
    }

    /// The content of a file in the mount, as it is seen there.
    #[track_caller]
    fn cat(&self, rig: &Rig, below: &str) -> Result<String, &'static str> {
        rig.outcome(below, self.sh(rig, &format!("cat $M/{below}")))
    }

    /// What the kernel says of the rig's mount there.
    fn rows(&self, rig: &Rig) -> Vec<String> {
        let file = format!("/proc/{}/mountinfo", self.holder.pid());
        rows(&file, rig)
    }

    /// Starts a daemon in it and waits until it serves.
    #[track_caller]
    fn start(&self, rig: &Rig, daemon: &Command) -> Proc {
        // A dead mount still gives what the kernel has kept of it. Servers start after the mount.
        let before = rig.log("lab", "start").len();
        let mounted = || rig.log("lab", "start").len() > before;
        let mut daemon = Proc::spawn(&mut self.inside(daemon));
        until("a mount, or the daemon's end", 15.0, || {
            !daemon.runs() || mounted() && self.cat(rig, "lab/s/a.txt") == ok("a\n")
        });
        if daemon.runs() {
            return daemon;
        }
        panic!("the daemon ended: {:?}", daemon.finish(1.0));
    }
}

/// What a file of /proc says of the rig's mount.
fn rows(file: &str, rig: &Rig) -> Vec<String> {
    let at = rig.mount_point().display().to_string();
    let rows = fs::read_to_string(file).unwrap();
    let ours = rows.lines().filter(|r| r.split(' ').nth(4) == Some(&at));
    ours.map(str::to_owned).collect()
}

/// The command that starts a daemon.
fn daemon(rig: &Rig, flags: &[&str]) -> Command {
    rig.daemon_command(&[("lab", &rig.scripted("lab"))], flags)
}

/// Ends a daemon as a user would.
#[track_caller]
fn end(daemon: Proc) {
    daemon.signal(Signal::TERM);
    let out = daemon.finish(15.0);
    assert_eq!(out.code, Some(0), "{out:?}");
}

/// A line of shell as somebody else.
fn as_other(rig: &Rig, line: &str) -> Command {
    let mut command = rig.command("setpriv");
    command.arg(format!("--reuid={OTHER}"));
    command.arg(format!("--regid={OTHER}"));
    command.args(["--clear-groups", "sh", "-c", line]);
    command.env("M", rig.mount_point());
    command
}

fn scene() -> Value {
    json!({"skills": [
        skill("s", json!({"a.txt": "a\n", "b.txt": "b\n", "bad": {"text": "x", "serve": "y"}})),
        {"path": "gone", "entry": {"resources": "dynamic"}},
    ]})
}

/// Lets others come as far as the mount point.
fn open_way(rig: &Rig) {
    fs::set_permissions(rig.dir(), fs::Permissions::from_mode(0o711)).unwrap();
}

#[test]
fn c_41_other_users_read_only_if_the_mount_says_so_and_modes_are_the_kernels_as_root() {
    crate::rig::needs_root();
    let mut rig = Rig::new();
    open_way(&rig);
    rig.scene("lab", scene());
    rig.up(&["lab"], &[]);
    let row = rows("/proc/self/mountinfo", &rig).concat();
    assert!(!row.contains("allow_other"), "{row}");
    for look in ["cat $M/lab/s/a.txt", "ls $M/", "stat $M/lab"] {
        let out = run(&mut as_other(&rig, look));
        assert_eq!((out.errno(), out.out.len()), (Some("EACCES"), 0), "{look}");
    }
    rig.stop();

    let config = rig.dir().join("config.toml");
    let target = serde_json::to_string(&rig.scripted("lab")).unwrap();
    let text = format!("allow-other = true\n[servers.lab]\ntarget = {target}\n");
    fs::write(&config, text).unwrap();
    rig.mount(&[], &["--config", &config.display().to_string()]);
    rig.ready("lab");
    let row = rows("/proc/self/mountinfo", &rig).concat();
    for option in ["allow_other", "default_permissions", "noexec", "nosuid"] {
        assert!(row.contains(option), "{option}: {row}");
    }
    let other = |line: &str| run(&mut as_other(&rig, line));
    assert_eq!(other("cat $M/lab/s/a.txt").good(), "a\n");
    let line = "cd $M && stat -c '%n %u %g %a' . lab lab/s lab/s/a.txt lab/gone/SKILL.md";
    let modes = [
        ". 0 0 555",
        "lab 0 0 555",
        "lab/s 0 0 555",
        "lab/s/a.txt 0 0 444",
        "lab/gone/SKILL.md 0 0 0",
    ];
    assert_eq!(other(line).good().trim_end(), modes.join("\n"));
    assert_eq!(rig.skill_status("lab/s")["state"], "held", "by the other");
    assert_eq!(other("cat $M/lab/s/bad").errno(), Some("EIO"));
    for write in ["touch $M/lab/s/new", "rm -f $M/lab/s/a.txt", "mkdir $M/x"] {
        let out = other(write);
        assert!(
            out.err.contains("Read-only") || out.err.contains("denied"),
            "{out:?}"
        );
    }

    // What may not be read: others are stopped by the modes, root by the daemon.
    let reads = || rig.status()["upcalls"]["read"].as_u64().unwrap();
    let before = reads();
    assert_eq!(other("cat $M/lab/gone/SKILL.md").errno(), Some("EACCES"));
    assert_eq!(reads(), before, "the kernel did not ask");
    assert_eq!(rig.cat("lab/gone/SKILL.md"), Err("EACCES"));
    assert!(reads() > before);

    // Reading is all: no command of theirs reaches the daemon.
    let at = rig.mount_point().display().to_string();
    for runtime in ["$XDG_RUNTIME_DIR", "/nowhere"] {
        for verb in ["status", "unmount", "revoke lab/s", "approve lab/s"] {
            let program = rig.bin.display();
            let line = format!("XDG_RUNTIME_DIR={runtime} {program} {verb} --mount {at}");
            let out = other(&line);
            assert_eq!(out.code, Some(1), "{line}: {out:?}");
        }
    }
    assert_eq!(other("cat $M/lab/s/a.txt").good(), "a\n");
}

#[test]
fn c_41_mount_8_takes_allow_other_as_root() {
    crate::rig::needs_root();
    let rig = Rig::new();
    open_way(&rig);
    rig.scene("lab", scene());
    let script = r#"
        other() { setpriv --reuid=65533 --regid=65533 --clear-groups "$@"; }
        mount -t mount-skills "lab=$TARGET" "$M" > "$D/said"
        other cat "$M/lab/s/a.txt" 2>&1 | grep -o 'Permission denied'
        umount "$M"
        mount -t mount-skills -o allow_other "lab=$TARGET" "$M" > "$D/said"
        other cat "$M/lab/s/a.txt"
        umount "$M"
    "#;
    let out = life::beside_mount(&rig, script);
    let seen = (out.code, &*out.text());
    assert_eq!(seen, (Some(0), "Permission denied\na\n"), "{out:?}");
}

#[test]
fn c_41_a_user_is_told_of_the_line_in_fuse_conf_before_anything_starts_as_root() {
    crate::rig::needs_root();
    let (mut rig, _open) = nonroot::rig();
    open_way(&rig);
    rig.scene("lab", scene());
    let (closed, opened) = (daemon(&rig, &[]), daemon(&rig, &["--allow-other"]));
    rig.become_root();
    let conf = rig.dir().join("fuse.conf");
    fs::write(&conf, "mount_max = 1000\n#user_allow_other\n").unwrap();
    let space = Space::new(&rig, "private", "mount --bind $D/fuse.conf /etc/fuse.conf");

    let out = run(&mut space.inside(&opened));
    assert_eq!(out.code, Some(1), "{out:?}");
    for part in [
        "/etc/fuse.conf has the line user_allow_other",
        "echo user_allow_other | sudo tee -a /etc/fuse.conf",
    ] {
        assert!(out.err.contains(part), "{out:?}");
    }
    assert_eq!(out.err.lines().count(), 1, "{out:?}");
    assert!(rig.log("lab", "start").is_empty(), "a server was started");
    assert_eq!(space.rows(&rig).len(), 0);

    let other = |line: &str| run(&mut space.inside(&as_other(&rig, line)));
    let root = |line: &str| space.sh(&rig, line);
    let closed = Proc::spawn(&mut space.inside(&closed));
    until("a mount", 15.0, || !space.rows(&rig).is_empty());
    let row = space.rows(&rig).concat();
    assert!(
        !row.contains("allow_other"),
        "not asked for by itself: {row}"
    );
    for out in [other("cat $M/lab/s/a.txt"), root("cat $M/lab/s/a.txt")] {
        assert_eq!((out.errno(), out.out.len()), (Some("EACCES"), 0));
    }
    end(closed);

    fs::write(&conf, "mount_max = 1000\n  user_allow_other # for skills\n").unwrap();
    let opened = space.start(&rig, &opened);
    let look = "cat $M/lab/s/a.txt && stat -c '%u %g %a' $M/lab/s/a.txt";
    for out in [other(look), root(look)] {
        assert_eq!(out.good(), "a\n65534 65534 444\n");
    }
    for out in [
        other("cat $M/lab/gone/SKILL.md"),
        root("cat $M/lab/gone/SKILL.md"),
    ] {
        assert_eq!((out.errno(), out.out.len()), (Some("EACCES"), 0));
    }
    end(opened);
}

/// What makes a namespace like a machine whose directory above the mount point is a shared mount, as
/// under systemd.
const SHARED: &str = "mount --bind $D $D && mount --make-shared $D";

#[test]
fn c_48_a_slave_namespace_sees_each_mount_and_a_private_one_none_as_root() {
    crate::rig::needs_root();
    let rig = Rig::new();
    rig.scene("lab", scene());
    let command = daemon(&rig, &[]);
    let host = Space::new(&rig, "private", SHARED);
    let private = host.another(&rig, "private");
    let slave = host.another(&rig, "slave");
    let a = ok("a\n");
    let empty = |space: &Space| space.sh(&rig, "ls -A $M").good().is_empty();

    let daemon = host.start(&rig, &command);
    assert!(empty(&private));
    assert_eq!(slave.cat(&rig, "lab/s/a.txt"), a);
    // One that was made with the mount in it, and is not told of what comes later.
    let late = host.another(&rig, "private");
    assert_eq!(late.cat(&rig, "lab/s/a.txt"), a);

    end(daemon);
    assert!([&host, &private, &slave].into_iter().all(empty));
    let daemon = host.start(&rig, &command);
    assert!(empty(&private));
    assert_eq!(slave.cat(&rig, "lab/s/a.txt"), a);
    assert_eq!(
        late.cat(&rig, "lab/s/b.txt"),
        Err("ENOTCONN"),
        "a dead mount"
    );

    // After a kill the guard takes the mount away, here and there.
    daemon.signal(Signal::KILL);
    assert_eq!(daemon.finish(10.0).code, None);
    let gone = |space: &Space| space.rows(&rig).is_empty();
    until("the mount to go", 5.0, || gone(&host) && gone(&slave));
    let daemon = host.start(&rig, &command);
    assert_eq!(slave.cat(&rig, "lab/s/a.txt"), a);
    end(daemon);
}

#[test]
fn c_48_a_mount_made_in_a_container_is_seen_by_its_neighbours_and_renewed_by_the_next_one_as_root()
{
    crate::rig::needs_root();
    let rig = Rig::new();
    rig.scene("lab", scene());
    let command = daemon(&rig, &["--allow-other"]);
    let host = Space::new(&rig, "private", SHARED);
    let agent = host.another(&rig, "slave");
    let sidecar = host.another(&rig, "unchanged");
    let daemon = sidecar.start(&rig, &command);
    assert_eq!(host.cat(&rig, "lab/s/a.txt"), ok("a\n"));
    assert_eq!(agent.cat(&rig, "lab/s/a.txt"), ok("a\n"));

    // A container is killed with all in it, its guard too: a dead mount stays.
    let all = processes_with(&rig.dir().display().to_string());
    let guard = all.iter().find(|(_, line)| line.contains("__guard"));
    kill(guard.unwrap().0, Signal::KILL);
    daemon.signal(Signal::KILL);
    assert_eq!(daemon.finish(10.0).code, None);
    drop(sidecar);
    assert_eq!(agent.cat(&rig, "lab/s/b.txt"), Err("ENOTCONN"));
    let sidecar = host.another(&rig, "unchanged");
    let daemon = sidecar.start(&rig, &command);
    assert_eq!(agent.cat(&rig, "lab/s/b.txt"), ok("b\n"));
    for space in [&host, &agent, &sidecar] {
        assert_eq!(space.rows(&rig).len(), 1, "the dead one is gone");
    }
    end(daemon);
    assert_eq!(agent.rows(&rig).len(), 0);
}

/// Why a user may not make a namespace here, if that is so.
fn forbidden() -> Option<String> {
    let rules = [
        ("/proc/sys/user/max_user_namespaces", "0"),
        ("/proc/sys/kernel/unprivileged_userns_clone", "0"),
        (
            "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            "1",
        ),
    ];
    let says = |(file, value): &(&str, &str)| {
        fs::read_to_string(file).is_ok_and(|text| text.trim() == *value)
    };
    let rule = rules.into_iter().find(says);
    rule.map(|(file, value)| format!("{file} is {value}"))
}

#[test]
fn c_48_a_user_mounts_in_a_user_namespace_and_only_that_reads() {
    let (mut rig, _open): (Rig, Option<FuseForAll>) = nonroot::rig();
    open_way(&rig);
    rig.scene("lab", scene());
    let target = rig.scripted("lab");
    let mut command = rig.command("unshare");
    command.args(["--user", "--map-root-user", "--mount"]);
    if let Some(why) = forbidden() {
        eprintln!("no user may make a user namespace: {why}");
        let out = run(command.arg("true"));
        assert!(
            out.code != Some(0) && out.err.contains("unshare"),
            "{out:?}"
        );
        return;
    }
    // As docs/DEPLOYING.md shows it: one line, and its agent reads.
    let mut line = rig.command("unshare");
    line.args(["--user", "--map-root-user", "--mount"]);
    line.arg(&rig.bin).args(["run", "--server"]);
    line.arg(format!("lab={target}"));
    let agent = "cat $MOUNT_SKILLS/lab/s/a.txt";
    assert_eq!(run(line.args(["--", "sh", "-c", agent])).good(), "a\n");
    // Whoever enters the namespace is its root, and outside the user who made it: who is that already
    // may not change it.
    let into: &[&str] = match is_root() {
        true => &["--user", "--mount"],
        false => &["--user", "--preserve-credentials", "--mount"],
    };
    let space = Space::hold(&rig, command, "true", into);
    rig.become_root();
    let status = |space: &Space| {
        let at = rig.mount_point().display().to_string();
        let mut command = rig.command(&rig.bin);
        run(&mut space.inside(command.args(["status", "--mount", &at])))
    };
    for flags in [&[][..], &["--allow-other"]] {
        let daemon = space.start(&rig, &rig.daemon_command(&[("lab", &target)], flags));
        assert_eq!(
            space.sh(&rig, "stat -c '%u %a' $M/lab/s/a.txt").good(),
            "0 444\n"
        );
        assert_eq!(space.cat(&rig, "lab/s/bad"), Err("EIO"));
        assert!(status(&space).good().contains("lab"), "its socket is found");
        // From outside, by way of a process in it: not even root.
        let path = rig.path("lab/s/a.txt");
        let line = format!("cat /proc/{}/root{}", space.holder.pid(), path.display());
        let out = rig.sh(&line);
        if is_root() {
            assert!(out.code != Some(0) && out.out.is_empty(), "{out:?}");
        }
        end(daemon);
        assert!(space.sh(&rig, "ls -A $M").good().is_empty());
    }
}

// ---- contrib and the documents ----

/// What contrib holds, once its own checks have passed.
#[track_caller]
fn contrib() -> Value {
    let mut check = Command::new(installed("venv/bin/python"));
    let out = run(check.arg(project().join("tests/contrib/check.py")));
    serde_json::from_str(&out.good()).unwrap()
}

fn strings(value: &Value) -> Vec<&str> {
    let items = value.as_array().unwrap().iter();
    items.map(|item| item.as_str().unwrap()).collect()
}

#[test]
fn the_files_of_contrib_fit_their_schemas_and_each_other() {
    let all = contrib();
    let image = all["image"]["user"].as_str().unwrap();
    for (file, propagation) in [
        ("sidecar", ["Bidirectional", "HostToContainer"]),
        ("daemonset", ["Bidirectional", "HostToContainer"]),
    ] {
        let containers = all[file].as_array().unwrap();
        let named = |name: &str| containers.iter().find(|c| c["name"] == name).unwrap();
        let (daemon, agent) = (named("mount-skills"), named("agent"));
        assert_eq!(strings(&daemon["propagation"]), propagation[..1], "{file}");
        assert_eq!(strings(&agent["propagation"]), propagation[1..], "{file}");
        assert_eq!(daemon["user"], image, "{file}");
        assert_ne!(agent["user"], image, "{file}: another user");
        // Kubernetes takes Bidirectional from nobody else, and nobody else needs it.
        let privileged = containers.iter().filter(|c| c["privileged"] == true);
        assert_eq!(privileged.collect::<Vec<_>>(), [daemon], "{file}");
    }
    assert_eq!(all["sidecar"][0]["restart"], "Always", "a native sidecar");
    assert_eq!(
        strings(&all["compose"]["propagation"]["skills"]),
        ["rshared"]
    );
    assert_eq!(strings(&all["compose"]["propagation"]["agent"]), ["rslave"]);
}

#[test]
fn the_image_is_given_all_that_the_build_needs() {
    let text = |file: &str| fs::read_to_string(project().join(file)).unwrap();
    let ignored = text("contrib/docker/Dockerfile.dockerignore");
    let given: Vec<&str> = ignored
        .lines()
        .filter_map(|l| l.strip_prefix('!'))
        .collect();
    let is_given = |file: &Path| given.iter().any(|g| file.starts_with(g));
    // What the compiler read, by its own account, and what cargo reads.
    let built = std::env::current_exe().unwrap();
    let parts = fs::read_dir(built.parent().unwrap()).unwrap();
    let parts = parts.map(|e| e.unwrap().path()).filter(|p| {
        let name = p.file_name().unwrap().to_string_lossy();
        name.starts_with("mount_skills-") && name.ends_with(".d")
    });
    let listed: String = parts.map(|p| fs::read_to_string(p).unwrap()).collect();
    let top = project().canonicalize().unwrap();
    let words = listed.split([' ', ':', '\n']);
    let read = words.filter_map(|f| top.join(f).canonicalize().ok());
    let read: BTreeSet<PathBuf> = read.filter(|f| f.is_file()).collect();
    // clippy reads its own file.
    let others = ["target", ".git", "clippy.toml"];
    let mut files: Vec<&Path> = read
        .iter()
        .filter_map(|f| f.strip_prefix(&top).ok())
        .filter(|f| !others.iter().any(|o| f.starts_with(o)))
        .collect();
    for known in ["src/main.rs", "contrib/man/mount.mount-skills.8"] {
        assert!(files.contains(&Path::new(known)), "{known}: {files:?}");
    }
    files.extend(
        [
            "Cargo.toml",
            "Cargo.lock",
            "build.rs",
            "benches/load.rs",
            "tests/it/main.rs",
        ]
        .map(Path::new),
    );
    let left_out: Vec<_> = files.iter().filter(|f| !is_given(f)).collect();
    assert!(left_out.is_empty(), "{left_out:?}");
}

#[test]
fn the_configurations_of_contrib_are_read_and_leave_out_no_server() {
    let all = contrib();
    let dir = tempfile::tempdir().unwrap();
    let texts = all["configs"].as_array().unwrap();
    assert_eq!(texts.len(), 3);
    for config in texts {
        let file = dir.path().join("config.toml");
        // The variable that the manifests set.
        let text = config["text"].as_str().unwrap();
        fs::write(&file, text.replace("${DOCS_TOKEN}", "${PATH}")).unwrap();
        let args = ServerArgs {
            configs: vec![file],
            ..ServerArgs::default()
        };
        let read = config::load(&args, None, &Machine::here().unwrap()).unwrap();
        assert_eq!(
            (read.servers.len(), read.warnings()),
            (1, vec![]),
            "{config}"
        );
    }
}

/// The commands of ours in lines of shell and of units, but for those that show a form: with a
/// placeholder in them.
fn written(text: &str) -> Vec<Vec<String>> {
    let text = text
        .replace("\\\n", " ")
        .replace("sudo -H -u mount-skills", "sudo");
    let ours = |line: &str| {
        // Comments of units hold commands further in than text.
        let line = line.strip_prefix("#   ").unwrap_or(line);
        let line = line.trim_start_matches([' ', '$']);
        let line = match line.split_once('=') {
            Some((key, line)) if key.starts_with("Exec") => line.trim_start_matches(['-', '+']),
            _ => line,
        };
        let words = shlex::split(line)?;
        let at = words
            .iter()
            .position(|w| w.rsplit('/').next() == Some("mount-skills"))?;
        let runs = |w: &String| {
            matches!(&**w, "sudo" | "env" | "unshare") || w.starts_with('-') || w.contains('=')
        };
        let form = |w: &String| w.contains(['[', '…', '|', '<']) || w == "...";
        let rest = words[at..].iter();
        let ours: Vec<String> = rest
            .take_while(|w| !["&&", "|", ";", ">"].contains(&&***w))
            .cloned()
            .collect();
        (words[..at].iter().all(runs) && !ours.iter().any(form)).then_some(ours)
    };
    text.lines().filter_map(ours).collect()
}

/// The blocks of code of a document.
fn blocks(text: &str) -> String {
    let odd = text.split("```").skip(1).step_by(2);
    odd.collect()
}

#[test]
fn every_command_line_of_contrib_and_deploying_is_one() {
    // Those of the other documents are run, in `docs` and `troubleshooting`.
    let all = contrib();
    let rows = all["commands"].as_array().unwrap().iter();
    let mut commands: Vec<(String, Vec<String>)> = rows
        .map(|c| {
            let words = strings(&c["words"]).into_iter().map(str::to_owned);
            (c["file"].to_string(), words.collect())
        })
        .collect();
    assert_eq!(commands.len(), 8);
    let mut count = |file: &str, text: &str| {
        let found = written(text);
        commands.extend(found.iter().map(|words| (file.to_owned(), words.clone())));
        found.len()
    };
    let text = |file: &str| fs::read_to_string(project().join(file)).unwrap();
    let file = "docs/DEPLOYING.md";
    assert!(count(file, &blocks(&text(file))) >= 6, "{file}");
    for unit in ["user", "system"] {
        let file = format!("contrib/systemd/{unit}/mount-skills.service");
        assert!(count(&file, &text(&file)) >= 4, "{file}");
    }
    for (file, words) in commands {
        let cli = Cli::try_parse_from(&words);
        assert!(cli.is_ok(), "{file}: {words:?}: {}", cli.unwrap_err());
    }
}

#[test]
fn the_container_of_compose_can_mount_with_what_it_is_given_as_root() {
    crate::rig::needs_root();
    let compose = &contrib()["compose"];
    assert_eq!(strings(&compose["dropped"]), ["ALL"]);
    let given = strings(&compose["capabilities"]).join(",+").to_lowercase();
    let (mut rig, _open) = nonroot::rig();
    rig.scene("lab", scene());
    let plain = daemon(&rig, &[]);
    let mut command = Command::new(plain.get_program());
    command.arg(format!("--bounding-set=-all,+{given}"));
    command.args(plain.get_args()).stdin(Stdio::null());
    command.env_clear().current_dir("/");
    command.envs(plain.get_envs().filter_map(|(k, v)| Some((k, v?))));
    rig.mount_with(command);
    rig.ready("lab");
    assert_eq!(rig.cat("lab/s/a.txt"), ok("a\n"));
    let status = fs::read_to_string(format!("/proc/{}/status", rig.daemon_pid())).unwrap();
    let effective = status.lines().find(|l| l.starts_with("CapEff:")).unwrap();
    assert!(effective.ends_with("0000000000000000"), "{effective}");
    rig.stop();
}

#[test]
fn the_unit_for_all_users_is_sound() {
    let unit = project().join("contrib/systemd/system/mount-skills.service");
    let unit = fs::read_to_string(unit).unwrap();
    let keys = unit.lines().filter_map(|l| Some(l.split_once('=')?.0));
    let keys: Vec<&str> = keys.collect();
    for breaks in [
        "NoNewPrivileges",
        "ProtectSystem",
        "PrivateTmp",
        "ProtectHome",
        "SystemCallFilter",
    ] {
        assert!(
            !keys.contains(&breaks),
            "{breaks} breaks fusermount3 or hides the mount"
        );
    }
    // Where there is systemd, it has the last word.
    let rig = Rig::new();
    let file = rig.dir().join("mount-skills.service");
    let ours = rig.bin.display().to_string();
    fs::write(&file, unit.replace("/usr/local/bin/mount-skills", &ours)).unwrap();
    let mut verify = rig.command("systemd-analyze");
    match verify.arg("verify").arg(&file).output() {
        Err(_) => eprintln!("no systemd-analyze here"),
        Ok(out) => assert!(out.status.success() && out.stderr.is_empty(), "{out:?}"),
    }
}
