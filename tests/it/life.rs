//! The life of a daemon: in the background, under a service manager, by mount(8), over its own end.

use crate::nonroot;
use crate::rig::{
    Proc, Rig, alive, is_root, kill, mounts_at, ok, processes_with, project, run, skill, skill_md,
    until,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

fn scene() -> Value {
    json!({"skills": [skill("s", json!({"a.txt": "a\n", "bad": {"text": "x", "serve": "y"},
        "bad2": {"text": "x", "serve": "y"}}))]})
}

/// Starts a daemon with `--daemon`; what the command said.
#[track_caller]
fn background(rig: &Rig, flags: &[&str]) -> String {
    let mut command = background_command(rig, flags);
    run(&mut command).good()
}

fn background_command(rig: &Rig, flags: &[&str]) -> Command {
    let target = rig.scripted("lab");
    let flags = [&["--daemon"], flags].concat();
    rig.daemon_command(&[("lab", &target)], &flags)
}

fn pid_of(rig: &Rig) -> i32 {
    i32::try_from(rig.status()["pid"].as_i64().unwrap()).unwrap()
}

fn log(rig: &Rig) -> PathBuf {
    rig.dir().join("state/mount-skills/log")
}

#[track_caller]
fn unmount(rig: &Rig) {
    let pid = pid_of(rig);
    let mount = rig.mount_point().display().to_string();
    assert_eq!(rig.cli(&["unmount", &mount]).good(), "");
    until("the daemon's end", 5.0, || !alive(pid));
    let again = rig.cli(&["unmount", &mount]);
    assert_eq!(
        (again.code, again.text().contains("nothing")),
        (Some(0), true)
    );
    rig.nothing_left();
}

/// A field of /proc/PID/stat, counted as in proc(5).
fn stat(pid: i32, field: usize) -> i64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let rest = stat.rsplit(')').next().unwrap();
    let fields = rest.split_whitespace();
    fields.skip(1).nth(field - 4).unwrap().parse().unwrap()
}

fn link(pid: i32, name: &str) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/{name}")).unwrap()
}

fn returns_ready_and_lets_go(rig: Rig) {
    rig.scene("lab", scene());
    // A server that is found only from where the command was given, and again after its end.
    let server = rig.dir().join("serve-it");
    let text = format!("#!/bin/sh\nexec {}\n", rig.scripted("lab"));
    fs::write(&server, text).unwrap();
    fs::set_permissions(&server, fs::Permissions::from_mode(0o755)).unwrap();
    let held = rig.dir().join("held");
    fs::write(&held, "").unwrap();
    fs::set_permissions(&held, fs::Permissions::from_mode(0o666)).unwrap();
    let mount = rig.mount_point().file_name().unwrap().to_str().unwrap();
    let line = format!(
        "exec 9<held; {} --daemon --server lab=./serve-it --cache-dir ./cache ./{mount}",
        rig.bin.display()
    );
    // Its stdout ends here: nobody holds it open any longer.
    let said = rig.sh(&line).good();
    let ready = format!("ready: {}\n", rig.mount_point().display());
    assert!(
        said.starts_with("lab  1 skill") && said.ends_with(&ready),
        "{said}"
    );
    assert_eq!(rig.cat("lab/s/a.txt"), ok("a\n"));
    let pid = pid_of(&rig);
    assert_eq!(
        (stat(pid, 6), stat(pid, 7)),
        (pid.into(), 0),
        "its session, no terminal"
    );
    if rig.is_of_another() || is_root() {
        assert_eq!(link(pid, "cwd"), Path::new("/"));
        let streams = ["fd/0", "fd/1", "fd/2"].map(|fd| link(pid, fd));
        let null = PathBuf::from("/dev/null");
        assert_eq!(
            streams,
            [null.clone(), null, log(&rig).canonicalize().unwrap()]
        );
        let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        let held = open.filter(|fd| {
            let to = fs::read_link(fd.as_ref().unwrap().path());
            to.is_ok_and(|to| to == held.canonicalize().unwrap())
        });
        assert_eq!(held.count(), 0, "what the shell had open");
    }
    assert_eq!(rig.cat("lab/s/bad"), Err("EIO"));
    let told = || fs::read_to_string(log(&rig)).unwrap().contains("refused");
    until("the refusal in the log", 5.0, told);
    let words = fs::read_to_string(log(&rig)).unwrap();
    let signed = format!("Z [{pid}]  WARN ");
    assert!(words.lines().all(|l| l.contains(&signed)), "{words}");
    let mode = fs::metadata(log(&rig)).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    rig.kill_server_for_a_new_listing("lab");
    assert_eq!(rig.log("lab", "start").len(), 2, "found again");
    let second = run(&mut background_command(&rig, &[]));
    assert_eq!(second.code, Some(1));
    assert!(second.err.contains("already mounted"), "{second:?}");
    assert_eq!(pid_of(&rig), pid);
    unmount(&rig);
}

#[test]
fn a_daemon_returns_when_it_is_ready_and_lets_go_of_all_it_was_started_with() {
    returns_ready_and_lets_go(Rig::new());
}

#[test]
fn a_users_daemon_returns_when_it_is_ready_and_lets_go_of_all_it_was_started_with() {
    let (rig, _open) = nonroot::rig();
    returns_ready_and_lets_go(rig);
}

#[test]
fn a_daemon_that_cannot_mount_says_why_and_ends_with_the_code_of_the_reason() {
    let rig = Rig::new();
    rig.scene("lab", scene());
    fs::write(rig.path("taken"), "").unwrap();
    for (flags, code, why) in [
        (&[][..], 1, "not empty"),
        (&["--locked", "/nowhere"], 2, "/nowhere"),
        (&["--log-file", "/nowhere/log"], 1, "--log-file"),
    ] {
        let out = run(&mut background_command(&rig, flags));
        assert_eq!(out.code, Some(code), "{out:?}");
        assert!(
            out.err.contains(why) && out.err.lines().count() == 1,
            "{out:?}"
        );
        assert!(out.out.is_empty(), "{out:?}");
    }
    fs::remove_file(rig.path("taken")).unwrap();
    rig.nothing_left();
}

#[test]
fn a_daemon_that_nobody_waits_for_any_more_ends() {
    let rig = Rig::new();
    let mut slow = scene();
    slow["start"] = json!({"delay": 30});
    rig.scene("lab", slow);
    // Ctrl-C reaches the whole group; a kill only the command that waits.
    for whole_group in [true, false] {
        let mut command = background_command(&rig, &[]);
        let command = Proc::spawn(command.process_group(0));
        until("a mount", 10.0, || !mounts_at(rig.mount_point()).is_empty());
        if whole_group {
            let group = rustix::process::Pid::from_raw(command.pid()).unwrap();
            rustix::process::kill_process_group(group, Signal::INT).unwrap();
        } else {
            command.signal(Signal::KILL);
        }
        // None: ended by the signal itself; on a slow machine it may hear of the child's end first.
        assert_ne!(command.finish(10.0).code, Some(0));
        until("the end of the child", 10.0, || {
            processes_with(&rig.dir().display().to_string()).is_empty()
        });
        rig.nothing_left();
    }
}

#[test]
fn the_log_is_opened_anew_on_a_hang_up_which_ends_no_daemon() {
    let rig = Rig::new();
    rig.scene("lab", scene());
    let (file, moved) = (rig.dir().join("own.log"), rig.dir().join("own.log.1"));
    let name = file.display().to_string();
    background(&rig, &["--log-file", &name]);
    assert_eq!(rig.cat("lab/s/bad"), Err("EIO"));
    let lines = |file: &Path, what: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        text.lines().filter(|l| l.contains(what)).count()
    };
    until("the refusal in the log", 5.0, || {
        lines(&file, "bad refused") + lines(&file, "(lab/s/bad)") > 0
    });
    fs::rename(&file, &moved).unwrap();
    kill(pid_of(&rig), Signal::HUP);
    until("a new log", 5.0, || file.exists());
    assert_eq!(rig.cat("lab/s/bad2"), Err("EIO"));
    until("the next refusal in it", 5.0, || lines(&file, "bad2") > 0);
    assert_eq!(lines(&moved, "bad2"), 0);
    assert!(!log(&rig).exists());
    unmount(&rig);
}

#[test]
fn a_log_file_takes_the_place_of_stderr_in_the_foreground() {
    let mut rig = Rig::new();
    rig.scene("lab", scene());
    let file = rig.dir().join("own.log");
    rig.up(&["lab"], &["--log-file", &file.display().to_string()]);
    assert_eq!(rig.cat("lab/s/bad"), Err("EIO"));
    let log = || fs::read_to_string(&file).unwrap();
    until("the refusal in the log", 5.0, || log().contains("refused"));
    assert!(!rig.words().contains("refused"), "{}", rig.words());
}

/// Takes away a daemon's mount in these ways; daemon, servers and guard end, and no mount stays.
fn ends_with_its_mount(rig: Rig) {
    rig.scene("lab", scene());
    let mount = rig.mount_point().display().to_string();
    let guard = || {
        let all = processes_with(&mount).into_iter();
        all.filter(|(_, line)| line.contains("__guard"))
            .map(|(pid, _)| pid)
            .next()
    };
    // As the user would.
    background(&rig, &[]);
    let line = match rig.is_of_another() || !is_root() {
        true => "fusermount3 -u $M",
        false => "umount $M",
    };
    let pid = pid_of(&rig);
    rig.sh(line).good();
    until("the daemon's end", 10.0, || !alive(pid));
    rig.nothing_left();
    // A service manager ends all processes at once: the guard stays until it is not needed.
    background(&rig, &[]);
    let (pid, watching) = (pid_of(&rig), guard().unwrap());
    kill(watching, Signal::TERM);
    kill(pid, Signal::KILL);
    rig.nothing_left();
    assert!(!alive(watching));
    // A kill of all of them: then the next command takes the dead mount away.
    background(&rig, &[]);
    let (pid, watching) = (pid_of(&rig), guard().unwrap());
    kill(watching, Signal::KILL);
    until("the guard's end", 5.0, || !alive(watching));
    kill(pid, Signal::KILL);
    until("a dead mount", 5.0, || {
        let out = run(rig.command("ls").arg(rig.mount_point()));
        out.errno() == Some("ENOTCONN")
    });
    let out = rig.cli(&["unmount", &mount]);
    assert_eq!((out.code, &*out.text()), (Some(0), ""), "{out:?}");
    rig.nothing_left();
}

#[test]
fn a_daemon_ends_with_its_mount_and_the_mount_with_its_daemon() {
    ends_with_its_mount(Rig::new());
}

#[test]
fn a_users_daemon_ends_with_its_mount_and_the_mount_with_its_daemon() {
    let (rig, _open) = nonroot::rig();
    ends_with_its_mount(rig);
}

#[test]
fn windows_outlive_an_unmount_that_keeps_them_and_no_other() {
    let mut rig = Rig::new();
    let with = |text: &str| json!({"skills": [skill("s", json!({"a.txt": text}))]});
    for (flags, kept) in [(&["--keep-windows"][..], true), (&[], false)] {
        rig.scene("lab", with("old\n"));
        rig.up(&["lab"], &["--new-session"]);
        assert_eq!(rig.cat("lab/s/a.txt"), ok("old\n"));
        let mount = rig.mount_point().display().to_string();
        rig.cli(&[&["unmount"], flags, &[&mount]].concat()).good();
        assert_eq!(rig.ended(10.0), Some(0));
        rig.nothing_left();
        rig.scene("lab", with("new\n"));
        rig.up(&["lab"], &[]);
        let (content, state) = match kept {
            true => ("old\n", "changed"),
            false => ("new\n", "held"),
        };
        assert_eq!(rig.cat("lab/s/a.txt"), ok(content));
        rig.in_state("lab/s", state);
        rig.stop();
    }
}

// ---- under a service manager ----

/// The next message to a service manager, as its lines.
#[track_caller]
fn told(socket: &UnixDatagram) -> Vec<String> {
    let mut buffer = [0; 4096];
    let size = socket.recv(&mut buffer).unwrap();
    let text = String::from_utf8(buffer[..size].to_vec()).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn a_service_manager_is_told_of_ready_reloading_and_stopping() {
    let mut rig = Rig::new();
    rig.scene("lab", scene());
    let path = rig.dir().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let config = rig.dir().join("c.toml");
    let entry = format!("[servers.lab]\ntarget = {:?}\n", rig.scripted("lab"));
    fs::write(&config, entry).unwrap();
    let mut command = rig.daemon_command(&[], &["--config", &config.display().to_string()]);
    command.env("NOTIFY_SOCKET", &path);
    rig.mount_with(command);
    let at = format!("STATUS=mounted at {}", rig.mount_point().display());
    assert_eq!(told(&socket), ["READY=1", &at]);
    assert_eq!(rig.cat("lab/s/a.txt"), ok("a\n"), "it is ready");
    let environ = fs::read(format!("/proc/{}/environ", rig.server_pid("lab"))).unwrap();
    assert!(!String::from_utf8_lossy(&environ).contains("NOTIFY_SOCKET"));
    assert_eq!(rig.ask(&["reload"]), "1 unchanged\n");
    let reloading = told(&socket);
    assert_eq!(reloading[0], "RELOADING=1");
    let since = reloading[1].strip_prefix("MONOTONIC_USEC=").unwrap();
    assert!(since.parse::<u64>().unwrap() > 0);
    assert_eq!(told(&socket), ["READY=1", "STATUS=1 unchanged"]);
    kill(rig.daemon_pid(), Signal::HUP);
    assert_eq!(told(&socket)[0], "RELOADING=1");
    assert_eq!(told(&socket)[0], "READY=1");
    kill(rig.daemon_pid(), Signal::TERM);
    assert_eq!(told(&socket), ["STOPPING=1"]);
    assert_eq!(rig.ended(10.0), Some(0));
}

#[test]
fn the_unit_file_is_sound_and_its_commands_are_ours() {
    use clap::Parser;
    use mount_skills::cli::{Cli, Command as Sub};
    let unit = project().join("contrib/systemd/user/mount-skills.service");
    let unit = fs::read_to_string(unit).unwrap();
    let commands = unit.lines().filter_map(|l| l.strip_prefix("Exec"));
    let mut seen = Vec::new();
    for line in commands {
        let (kind, line) = line.split_once('=').unwrap();
        let line = line
            .trim_start_matches('-')
            .replace("%h", "/h")
            .replace("%E", "/e");
        let words = shlex::split(&line).unwrap();
        assert_eq!(words[0], "/h/.cargo/bin/mount-skills");
        let cli = Cli::try_parse_from(&words).unwrap();
        let does = match cli.command {
            None => {
                let at = cli.mount.mountpoint;
                assert_eq!(at.as_deref(), Some(Path::new("/h/skills")));
                assert_eq!(
                    cli.mount.servers.configs,
                    [Path::new("/e/mount-skills/config.toml")]
                );
                assert!(!cli.mount.daemon);
                "mount"
            }
            Some(Sub::Reload) => "reload",
            Some(Sub::Unmount {
                keep_windows: true, ..
            }) => "keep",
            Some(Sub::Unmount { .. }) => "unmount",
            other => panic!("{other:?}"),
        };
        seen.push(format!("{kind} {does}"));
    }
    assert_eq!(
        seen,
        [
            "Start mount",
            "Reload reload",
            "Stop keep",
            "StopPost unmount"
        ]
    );
    for line in ["Type=notify", "Restart=on-failure", "KillMode=mixed"] {
        assert!(unit.lines().any(|l| l == line), "{line}");
    }
    let keys = unit.lines().filter(|l| !l.starts_with('#'));
    let keys: Vec<&str> = keys.filter_map(|l| l.split('=').next()).collect();
    for breaks in [
        "NoNewPrivileges",
        "ProtectSystem",
        "PrivateTmp",
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
    fs::write(&file, unit.replace("%h/.cargo/bin/mount-skills", &ours)).unwrap();
    let mut verify = rig.command("systemd-analyze");
    verify.args(["verify", "--user"]).arg(&file);
    match verify.output() {
        Err(_) => eprintln!("no systemd-analyze here"),
        Ok(out) => assert!(out.status.success() && out.stderr.is_empty(), "{out:?}"),
    }
}

// ---- at a terminal ----

/// Runs the daemon at a terminal of its own, which goes with this process: on a line.
const AT_A_TERMINAL: &str = r#"
import os, pty, sys
pid, master = pty.fork()
if not pid:
    os.execv(sys.argv[1], sys.argv[1:])
import threading
def drain():
    try:
        while os.read(master, 4096):
            pass
    except OSError:
        pass
threading.Thread(target=drain, daemon=True).start()
sys.stdin.readline()
"#;

#[test]
fn a_hang_up_of_the_terminal_ends_a_mount_that_a_hang_up_by_signal_reloads() {
    let rig = Rig::new();
    rig.scene("lab", scene());
    let config = rig.dir().join("c.toml");
    let entry = format!("[servers.lab]\ntarget = {:?}\n", rig.scripted("lab"));
    fs::write(&config, &entry).unwrap();
    let mut command = rig.command("python3");
    command.args(["-S", "-c", AT_A_TERMINAL]).arg(&rig.bin);
    command.arg("--config").arg(&config).arg(rig.mount_point());
    let mut terminal = command
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    rig.ready("lab");
    let pid = pid_of(&rig);
    assert_ne!(stat(pid, 7), 0, "it has a terminal");
    fs::write(&config, "[servers]\n").unwrap();
    kill(pid, Signal::HUP);
    until("the reload", 10.0, || {
        rig.try_status().is_some_and(|s| s["servers"] == json!([]))
    });
    let stdin = terminal.stdin.as_mut().unwrap();
    stdin.write_all(b"close\n").unwrap();
    until("its end", 10.0, || !alive(pid));
    terminal.wait().unwrap();
    rig.nothing_left();
}

// ---- by mount(8) ----

/// Runs a shell script in a mount namespace of its own, where mount(8) finds our helper.
pub(crate) fn beside_mount(rig: &Rig, script: &str) -> crate::rig::Out {
    let sbin = rig.dir().join("sbin");
    fs::create_dir_all(&sbin).unwrap();
    let helper = sbin.join("mount.mount-skills");
    if !helper.exists() {
        std::os::unix::fs::symlink(&rig.bin, &helper).unwrap();
    }
    let mut command = rig.command("unshare");
    command.args(["--mount", "--propagation", "private", "--"]);
    command.args(["bash", "-euc"]);
    command.arg(format!("mount --bind {} /sbin\n{script}", sbin.display()));
    command.env("M", rig.mount_point()).env("BIN", &rig.bin);
    command
        .env("TARGET", rig.scripted("lab"))
        .env("D", rig.dir());
    run(&mut command)
}

#[test]
fn mount_8_takes_a_copy_of_the_program_as_well_as_a_link_to_it_as_root() {
    crate::rig::needs_root();
    let rig = Rig::new();
    rig.scene("lab", scene());
    let skill = rig.dir().join("skills/s");
    fs::create_dir_all(&skill).unwrap();
    fs::write(skill.join("SKILL.md"), skill_md("s")).unwrap();
    let sbin = rig.dir().join("sbin");
    fs::create_dir(&sbin).unwrap();
    fs::copy(&rig.bin, sbin.join("mount.mount-skills")).unwrap();
    // The server of a directory is the program itself.
    let script = r#"
        mount -t mount-skills "mine=$D/skills" "$M"
        cat "$M/mine/s/SKILL.md"
        umount "$M"
    "#;
    let said = beside_mount(&rig, script).good();
    assert!(said.ends_with(&skill_md("s")), "{said}");
}

#[test]
fn mount_8_mounts_by_type_reads_and_umount_ends_it_as_root() {
    crate::rig::needs_root();
    let rig = Rig::new();
    rig.scene("lab", scene());
    let script = r#"
        mount -t mount-skills -o "ro,nosuid,hold=none,server.lab=$TARGET" none "$M"
        cat "$M/lab/s/a.txt"
        findmnt -no FSTYPE,OPTIONS "$M"
        "$BIN" status --json "$M" | grep -o '"hold": "none"'
        umount "$M"
        mount -t mount-skills "lab=$TARGET" "$M"
        cat "$M/lab/s/a.txt"
        umount "$M"
        ! mountpoint -q "$M"
        # mount(8) itself says nothing of these, and the mount has none of them.
        mount -t mount-skills -o exec,suid,dev "lab=$TARGET" "$M"
        findmnt -no OPTIONS "$M" | grep -o '^ro,nosuid,nodev,noexec'
        umount "$M"
        /sbin/mount.mount-skills "lab=$TARGET" "$M" -o exec || echo "code $?"
        mount -t mount-skills -o size=5 none "$M" || echo "code $?"
        touch "$M/x"
        mount -t mount-skills "lab=$TARGET" "$M" || echo "code $?"
        rm "$M/x"
    "#;
    let out = beside_mount(&rig, script);
    assert_eq!(out.code, Some(0), "{out:?}");
    let text = out.text();
    let progress = |l: &&str| l.starts_with("lab  ") || l.starts_with("ready: ");
    let lines: Vec<&str> = text.lines().filter(|l| !progress(l)).collect();
    let [first, shown, hold, second, still, codes @ ..] = &lines[..] else {
        panic!("{text}")
    };
    assert_eq!((*first, *hold, *second), ("a", r#""hold": "none""#, "a"));
    assert!(shown.starts_with("fuse.mount-skills ro,nosuid,nodev,noexec"));
    assert_eq!(*still, "ro,nosuid,nodev,noexec");
    assert_eq!(codes, ["code 1", "code 1", "code 32"], "{out:?}");
    assert_eq!(text.matches("ready: ").count(), 3);
    for why in ["\"exec\"", "\"size\"", "not empty"] {
        assert!(out.err.contains(why), "{why}: {out:?}");
    }
    rig.nothing_left();
}

#[test]
fn a_line_of_fstab_mounts_as_root() {
    crate::rig::needs_root();
    let rig = Rig::new();
    rig.scene("lab", scene());
    let config = rig.dir().join("c.toml");
    let entry = format!("[servers.lab]\ntarget = {:?}\n", rig.scripted("lab"));
    fs::write(&config, entry).unwrap();
    let mount = rig.mount_point().display();
    let target = rig.scripted("lab").replace(' ', "\\040");
    let (config, options) = (
        config.display(),
        "noauto,user,_netdev,nofail,x-systemd.automount",
    );
    for line in [
        format!("{config} {mount} mount-skills {options} 0 0\n"),
        format!("lab={target} {mount} mount-skills {options},hold=none 0 0\n"),
        format!("none {mount} mount-skills {options},server.lab={target} 0 0\n"),
    ] {
        fs::write(rig.dir().join("fstab"), &line).unwrap();
        let script = r#"
            mount -T "$D/fstab" "$M" > "$D/said"
            cat "$M/lab/s/a.txt"
            umount "$M"
            mount -T "$D/fstab" -a && ! mountpoint -q "$M"
        "#;
        let out = beside_mount(&rig, script);
        assert_eq!((out.code, &*out.text()), (Some(0), "a\n"), "{line}{out:?}");
        rig.nothing_left();
    }
}

#[test]
fn a_user_mounts_by_a_line_of_fstab_that_lets_users_as_root() {
    crate::rig::needs_root();
    let (rig, _open) = nonroot::rig();
    rig.scene("lab", scene());
    let mount = rig.mount_point().display();
    let target = rig.scripted("lab").replace(' ', "\\040");
    let line = format!("lab={target} {mount} mount-skills noauto,user 0 0\n");
    fs::write(rig.dir().join("fstab"), line).unwrap();
    let sbin = rig.dir().join("sbin");
    fs::create_dir(&sbin).unwrap();
    std::os::unix::fs::symlink(&rig.bin, sbin.join("mount.mount-skills")).unwrap();
    let user = "setpriv --reuid=65534 --regid=65534 --clear-groups --";
    let script = format!(
        r#"
        mount --bind "$D/sbin" /sbin
        mount --bind "$D/fstab" /etc/fstab
        {user} mount "$M" > "$D/said"
        {user} cat "$M/lab/s/a.txt"
        grep -c "user_id=65534" /proc/self/mountinfo
        {user} fusermount3 -u "$M"
        "#
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "--", "bash", "-euc"]);
    command
        .arg(script)
        .env("M", rig.mount_point())
        .env("D", rig.dir());
    for (name, dir) in [
        ("CACHE_HOME", "cache"),
        ("STATE_HOME", "state"),
        ("RUNTIME_DIR", "run"),
    ] {
        command.env(format!("XDG_{name}"), rig.dir().join(dir));
    }
    let out = run(command.stdin(std::process::Stdio::null()));
    assert_eq!((out.code, &*out.text()), (Some(0), "a\n1\n"), "{out:?}");
    rig.nothing_left();
}

/// What systemd does for `x-systemd.automount`: a trap that mounts when somebody looks. The helper is
/// of the trap's own process group; others wait.
const AUTOMOUNT: &str = r#"
import ctypes, fcntl, os, struct, subprocess, sys
helper, target, place = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
read, write = os.pipe()
options = f"fd={write},pgrp={os.getpgrp()},minproto=5,maxproto=5,direct"
if libc.mount(b"trap", place.encode(), b"autofs", 0, options.encode()):
    sys.exit(f"no autofs: {os.strerror(ctypes.get_errno())}")
reader = subprocess.Popen(["cat", place + "/lab/s/a.txt"], stdout=subprocess.PIPE, start_new_session=True)
packet = os.read(read, 4096)
version, kind, token = struct.unpack_from("iiI", packet)
out = subprocess.run([helper, "lab=" + target, place, "-o", "rw,_netdev"], timeout=20)
assert out.returncode == 0, out
trap = os.open(place + "/..", os.O_RDONLY)
READY, OPEN = 0x9360, 0xc0189374
device = os.open("/dev/autofs", os.O_RDWR)
old = open("/proc/self/mountinfo").read()
row = [r for r in old.splitlines() if " - autofs " in r and r.split()[4] == place][0]
major, minor = map(int, row.split()[2].split(":"))
path = place.encode() + b"\0"
size = 24 + len(path)
arg = bytearray(struct.pack("IIIiII", 1, 1, size, -1, os.makedev(major, minor), 0) + path)
fcntl.ioctl(device, OPEN, arg)
fd = struct.unpack_from("IIIi", arg)[3]
fcntl.ioctl(device, 0xc0189376, bytearray(struct.pack("IIIiII", 1, 1, 24, fd, token, 0)))
print(reader.communicate(timeout=20)[0].decode(), end="")
subprocess.run(["umount", place], check=True)
os.close(fd)
subprocess.run(["umount", "-l", place], check=True)
"#;

#[test]
fn an_automount_point_is_mounted_on_as_root() {
    crate::rig::needs_root();
    // A container may lack the device of a kernel that has it.
    if !fs::exists("/dev/autofs").unwrap() {
        let mut make = Command::new("mknod");
        run(make.args(["/dev/autofs", "c", "10", "235"])).good();
    }
    let rig = Rig::new();
    rig.scene("lab", scene());
    fs::write(rig.dir().join("automount.py"), AUTOMOUNT).unwrap();
    let script = r#"python3 "$D/automount.py" /sbin/mount.mount-skills "$TARGET" "$M""#;
    let out = beside_mount(&rig, script);
    assert_eq!(out.code, Some(0), "{out:?}");
    assert!(out.text().ends_with("a\n"), "{out:?}");
    rig.nothing_left();
}
