//! `mount-skills doctor`: what is wrong is named with what mends it, and that does mend it.
//!
//! Each run is in a mount namespace of its own, from which the mounts of other tests are taken
//! away: the doctor tells of all that this user has.

use crate::rig::{
    BIN, FuseForAll, Out, Rig, is_root, kill, mounts_at, processes_with, run, skill, until,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// What was found, by id.
struct Report {
    code: Option<i32>,
    all: Value,
    err: String,
}

impl Report {
    fn of(out: Out) -> Self {
        let all = serde_json::from_slice(&out.out);
        Self {
            code: out.code,
            all: all.unwrap_or_else(|e| panic!("{e}: {out:?}")),
            err: out.err,
        }
    }

    fn rows(&self) -> &Vec<Value> {
        self.all["findings"].as_array().unwrap()
    }

    /// The only finding of this id.
    #[track_caller]
    fn one(&self, id: &str) -> &Value {
        let found: Vec<&Value> = self.rows().iter().filter(|f| f["id"] == id).collect();
        let [one] = found[..] else {
            panic!("{id}: {:#}", self.all)
        };
        one
    }

    fn has(&self, id: &str) -> bool {
        self.rows().iter().any(|f| f["id"] == id)
    }

    /// What the finding of this id says to do.
    #[track_caller]
    fn fix(&self, id: &str) -> &str {
        self.one(id)["fix"].as_str().unwrap()
    }

    fn errors(&self) -> Vec<&str> {
        let errors = self.rows().iter().filter(|f| f["severity"] == "error");
        errors.map(|f| f["id"].as_str().unwrap()).collect()
    }

    /// What was found of a server.
    #[track_caller]
    fn of_server(&self, label: &str) -> &Value {
        let servers = self.all["servers"].as_array().unwrap();
        servers.iter().find(|s| s["label"] == label).unwrap()
    }
}

/// Runs the doctor of a rig with these arguments, after these lines of shell in its namespace.
fn examine(rig: &Rig, before: &str, args: &[&str]) -> Out {
    let line = format!(
        "for m in $(awk '$5 !~ D && / - fuse.mount-skills /{{print $5}}' D=\"^$D\" /proc/self/mountinfo); \
         do umount -l \"$m\"; done; {before} exec \"$@\""
    );
    let mut command = std::process::Command::new("unshare");
    command.args(if is_root() { &["-m"][..] } else { &["-rm"] });
    command.args(["bash", "-c", &line, "bash"]);
    let inner = rig.command(&rig.bin);
    command.arg(inner.get_program()).args(inner.get_args());
    command
        .arg("doctor")
        .args(args)
        .current_dir("/")
        .env_clear();
    for (name, value) in inner.get_envs() {
        command.env(name, value.unwrap());
    }
    run(command.env("D", rig.dir()))
}

fn report(rig: &Rig, before: &str, args: &[&str]) -> Report {
    Report::of(examine(rig, before, &[&["--json"], args].concat()))
}

fn scene() -> Value {
    json!({"skills": [skill("s", json!({"a.txt": "a\n"}))], "directoryRead": true})
}

/// The processes of a label's scripted server.
fn running(rig: &Rig, label: &str) -> Vec<(i32, String)> {
    let scene = rig.dir().join(format!("{label}.scene"));
    processes_with(&scene.display().to_string())
}

fn mount_point(rig: &Rig) -> String {
    rig.mount_point().display().to_string()
}

#[test]
fn c_40_all_is_well_where_a_mount_works_and_no_content_is_read() {
    let mut rig = Rig::new();
    for label in ["lab", "web"] {
        rig.scene(label, scene());
    }
    let (lab, web) = (rig.scripted("lab"), rig.scripted_http("web"));
    let (lab, web) = (format!("lab={lab}"), format!("web={web}"));
    let mount = mount_point(&rig);
    let args = ["--server", &lab, "--server", &web, &mount];
    let out = examine(&rig, "", &args);
    let text = out.text();
    assert_eq!((out.code, out.err.as_str()), (Some(0), ""), "{text}");
    assert!(text.ends_with("all is well\n"), "{text}");
    let found = report(&rig, "", &args);
    assert_eq!(
        (found.code, found.errors()),
        (Some(0), vec![]),
        "{:#}",
        found.all
    );
    assert!(["ok", "note"].contains(&found.all["worst"].as_str().unwrap()));
    for label in ["lab", "web"] {
        let server = found.of_server(label);
        assert_eq!(server["state"], "ready");
        assert_eq!(
            (&server["era"], &server["protocol"]),
            (&json!("discover"), &json!("2026-07-28"))
        );
        assert_eq!(
            server["declares"],
            json!(["skills", "resources", "directoryRead"])
        );
        assert_eq!(
            (&server["skills"], &server["declined"]),
            (&json!(1), &json!([]))
        );
        assert_eq!(server["requests"]["skills/list"], 1, "{server:#}");
        assert!(server["took_s"].as_f64().is_some_and(|took| took > 0.0));
        let methods = ["resources/read", "skills/get", "resources/directory/read"];
        let asked: usize = methods.iter().map(|m| rig.seen(label, m)).sum();
        assert_eq!((asked, rig.seen(label, "skills/list")), (0, 2), "{label}");
    }
    assert_eq!(rig.log("lab", "start").len(), 2);
    assert!(running(&rig, "lab").is_empty());
    // Nothing is made: neither directories nor files, nor a mount.
    for dir in ["cache", "state", "run"] {
        assert!(rig.stored(dir).is_empty(), "{dir}");
    }
    assert!(mounts_at(rig.mount_point()).is_empty());
}

#[test]
fn c_40_a_machine_that_cannot_mount_is_told_what_it_lacks_as_root() {
    let rig = Rig::new();
    let mount = mount_point(&rig);
    let found = report(&rig, "mount --bind /dev/null /dev/fuse;", &[&mount]);
    assert_eq!(
        (found.code, found.errors()),
        (Some(1), vec!["device-other"])
    );
    assert!(
        found
            .fix("device-other")
            .contains("--device /dev/fuse --cap-add SYS_ADMIN")
    );
    crate::rig::needs_root();
    let gone = "mount -t tmpfs none /dev;";
    let found = report(&rig, gone, &[&mount]);
    assert_eq!(
        (found.code, found.errors()),
        (Some(1), vec!["device-missing"])
    );
    let fix = found.fix("device-missing");
    assert!(fix.contains("--device /dev/fuse"), "{fix}");
    let bare = "set -- setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin \"$@\";";
    let found = report(&rig, bare, &[&mount]);
    assert_eq!((found.code, found.errors()), (Some(1), vec!["no-right"]));
    assert!(found.fix("no-right").contains("--cap-add SYS_ADMIN"));
    // The same words as those of a mount that is refused.
    let out = examine(
        &rig,
        &format!("{gone} set -- {BIN} --server a=x {mount};"),
        &[],
    );
    assert_eq!(out.code, Some(1), "{out:?}");
    let said = report(&rig, gone, &[&mount]);
    let text = said.one("device-missing")["text"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        out.err.contains(&format!(
            "/dev/fuse: {text}; {}",
            said.fix("device-missing")
        )),
        "{out:?}"
    );
}

#[test]
fn c_40_a_user_is_told_of_the_device_fusermount3_and_its_rights_as_root() {
    crate::rig::needs_root();
    let mut rig = Rig::new();
    rig.become_user(65534);
    rig.scene("lab", scene());
    let mount = mount_point(&rig);
    let lab = format!("lab={}", rig.scripted("lab"));
    {
        let _closed = FuseForAll::closed();
        let found = report(&rig, "", &[&mount]);
        assert_eq!(
            (found.code, found.errors()),
            (Some(1), vec!["device-forbidden"])
        );
        assert_eq!(
            found.fix("device-forbidden"),
            "run: sudo chmod 0666 /dev/fuse"
        );
    }
    let _open = FuseForAll::open();
    let found = report(&rig, "", &["--server", &lab, &mount]);
    assert_eq!(
        (found.code, found.errors()),
        (Some(0), vec![]),
        "{:#}",
        found.all
    );
    assert_eq!(found.of_server("lab")["skills"], 1);
    let hidden = "export PATH=/usr/bin; for f in fusermount3 fusermount; \
                  do mount --bind /dev/null /usr/bin/$f; done;";
    let found = report(&rig, hidden, &[&mount]);
    assert_eq!(
        (found.code, found.errors()),
        (Some(1), vec!["helper-missing"]),
        "{:#}",
        found.all
    );
    assert_eq!(
        found.fix("helper-missing"),
        "run: sudo apt-get install fuse3"
    );
    let plain = "mount -t tmpfs none /mnt && cp /usr/bin/fusermount3 /mnt/f && chmod 755 /mnt/f && mount --bind /mnt/f /usr/bin/fusermount3;";
    let found = report(&rig, plain, &[&mount]);
    assert_eq!(
        (found.code, found.errors()),
        (Some(1), vec!["helper-not-setuid"])
    );
    let frozen = "set -- setpriv --no-new-privs \"$@\";";
    let found = report(&rig, frozen, &[&mount]);
    assert_eq!(
        (found.code, found.errors()),
        (Some(1), vec!["no-new-rights"])
    );
    // A place that is somebody else's.
    for place in ["/srv", "/srv/new"] {
        let found = report(&rig, "", &[place]);
        assert_eq!(found.errors(), ["place-refused"], "{:#}", found.all);
    }
}

#[test]
fn c_40_places_that_a_mount_refuses_are_refused() {
    let rig = Rig::new();
    let file = rig.dir().join("file");
    fs::write(&file, "").unwrap();
    let full = rig.dir().join("home").display().to_string();
    fs::write(rig.dir().join("home/file"), "").unwrap();
    let local = rig.dir().join("home/.claude/skills");
    for (place, says) in [
        (file.display().to_string(), "it is a file"),
        (full.clone(), "not empty"),
        ("/mnt/new".to_owned(), "cannot make the mount point"),
        ("/sys".to_owned(), "another file system (sysfs)"),
        (local.display().to_string(), "agents look for local skills"),
    ] {
        let found = report(&rig, "mount -t tmpfs -o ro none /mnt;", &[&place]);
        assert_eq!(
            (found.code, found.errors()),
            (Some(1), vec!["place-refused"]),
            "{place}"
        );
        let one = found.one("place-refused");
        assert!(
            one["text"].as_str().is_some_and(|t| t.contains(says)),
            "{one}"
        );
        assert!(one["fix"].is_string(), "{one}");
    }
    let inside = [
        "--cache-dir",
        &rig.path("c").display().to_string(),
        &mount_point(&rig),
    ];
    let found = report(&rig, "", &inside);
    assert_eq!(found.errors(), ["storage-misplaced"], "{:#}", found.all);
}

#[test]
fn a_file_with_servers_of_every_fate_is_told_server_by_server() {
    let mut rig = Rig::new();
    for label in ["good", "web", "hang", "empty"] {
        rig.scene(label, scene());
    }
    rig.scene("hang", json!({"rules": [{"hang": true}]}));
    rig.scene(
        "locked",
        json!({"rules": [{"status": 401, "headers": {"WWW-Authenticate": "Bearer"}}]}),
    );
    rig.scene(
        "dead",
        json!({"start": {"exit": 1, "stderr": "no \u{1b}[2Jlicence\n"}}),
    );
    rig.scene("odd", json!({
        "skills": [skill("s", json!({})), {"path": "bad", "files": {}, "entry": {"frontmatter": {"name": "x", "description": "d"}}}],
    }));
    rig.scene("none", json!({"capabilities": {"resources": {}}}));
    rig.scene(
        "older",
        json!({"era": "legacy", "skills": [skill("s", json!({}))]}),
    );
    let (web, locked) = (rig.scripted_http("web"), rig.scripted_http("locked"));
    let command = |label: &str| {
        let words = shlex::split(&rig.scripted(label)).unwrap();
        json!({"command": words[0], "args": words[1..]})
    };
    let secret = "hunter2";
    let config = json!({"mcpServers": {
        "good": command("good"),
        "web": {"type": "http", "url": web},
        "off": {"command": "x", "disabled": true},
        "broken": {"command": "x", "env": {"TOKEN": "${NO_SUCH_VARIABLE}"}},
        "hang": command("hang"),
        "locked": {"url": locked},
        "dead": command("dead"),
        "gone": {"command": "no-such-command", "args": ["--api-key", secret]},
        "refused": {"url": format!("http://user:{secret}@127.0.0.1:9/mcp?token={secret}")},
        "odd": command("odd"),
        "none": command("none"),
        "older": command("older"),
    }});
    let file = rig.dir().join(".mcp.json");
    fs::write(&file, config.to_string()).unwrap();
    let (file, mount) = (file.display().to_string(), mount_point(&rig));
    let args = ["--config", &file, "--timeout", "6", &mount];
    let found = report(&rig, "", &args);
    assert_eq!(found.code, Some(1));
    let of = |label: &str| {
        let rows = found.rows().iter().filter(|f| f["subject"] == label);
        rows.map(|f| f["id"].as_str().unwrap()).collect::<Vec<_>>()
    };
    let fix = |id| found.fix(id).to_owned();
    for (label, ids) in [
        ("good", &["server"][..]),
        ("web", &["server"]),
        ("older", &["server"]),
        ("off", &["server-off"]),
        ("broken", &["server-broken"]),
        ("hang", &["server-silent"]),
        ("locked", &["server-credentials"]),
        ("gone", &["server-not-started"]),
        ("odd", &["server", "skill-declined"]),
        ("none", &["server-no-skills"]),
    ] {
        assert_eq!(of(label), ids, "{label}: {:#}", found.all);
    }
    for label in ["dead", "refused"] {
        assert_eq!(of(label), ["server-down"], "{label}");
    }
    let broken = found.one("server-broken");
    assert!(
        broken["text"]
            .as_str()
            .is_some_and(|t| t.contains("NO_SUCH_VARIABLE") && t.contains("env.TOKEN")),
        "{broken}"
    );
    assert!(fix("server-broken").contains(&file), "{broken}");
    assert!(
        fix("server-broken").contains("set the variable"),
        "{broken}"
    );
    let gone = found.one("server-not-started");
    assert!(
        gone["text"]
            .as_str()
            .is_some_and(|t| t.contains("not found; PATH is /")),
        "{gone}"
    );
    assert!(fix("server-not-started").contains("full path"));
    assert!(fix("server-credentials") == "run: mount-skills login locked");
    assert!(fix("server-silent").contains("--timeout 36"));
    assert_eq!(found.of_server("older")["era"], "initialize");
    let odd = found.of_server("odd");
    assert_eq!(
        (&odd["skills"], odd["declined"].as_array().map(Vec::len)),
        (&json!(1), Some(1))
    );
    // As text: two lines for each that is not fine, nothing unescaped, no secret.
    let out = examine(&rig, "", &args);
    let text = out.text();
    assert_eq!(out.code, Some(1));
    for text in [&text, &out.err, &found.all.to_string(), &found.err] {
        assert!(
            !text.contains("hunter") && !text.contains('\u{1b}'),
            "{text}"
        );
    }
    let at = text
        .lines()
        .position(|l| l.starts_with("error") && l.contains(" broken "));
    let below = text.lines().nth(at.unwrap() + 1).unwrap();
    assert!(below.starts_with("           at "), "{text}");
    assert!(
        text.contains("its last words: no \\u{1b}[2Jlicence"),
        "{text}"
    );
    for label in [
        "good", "web", "hang", "locked", "dead", "odd", "none", "older",
    ] {
        assert_eq!(rig.seen(label, "resources/read"), 0, "{label}");
        let ours = ["web", "locked"].contains(&label);
        assert!(ours || running(&rig, label).is_empty(), "{label}");
    }
    assert!(rig.seen("locked", "server/discover") <= 10);
    // Warnings only are another exit code.
    let one = format!("odd={}", rig.scripted("odd"));
    let found = report(&rig, "", &["--server", &one, &mount]);
    assert_eq!(
        (found.code, &found.all["worst"]),
        (Some(4), &json!("warning"))
    );
    assert!(found.err.is_empty(), "{}", found.err);
}

#[test]
fn c_38_a_dead_mount_is_named_with_a_command_that_takes_it_away() {
    let mut rig = Rig::new();
    rig.scene("lab", scene());
    rig.up(&["lab"], &[]);
    let mount = mount_point(&rig);
    let pid = rig.daemon_pid();
    let found = report(&rig, "", &[&mount]);
    assert_eq!(
        (found.code, found.errors()),
        (Some(0), vec![]),
        "{:#}",
        found.all
    );
    let said = found.one("mount")["text"].as_str().unwrap().to_owned();
    assert!(said.contains(&format!("process {pid}")), "{said}");
    assert!(found.has("place-taken") && !found.has("mounted-server"));
    for (guard, _) in processes_with(&mount)
        .iter()
        .filter(|(_, l)| l.contains("__guard"))
    {
        kill(*guard, Signal::KILL);
    }
    rig.kill_daemon();
    until("its death", 5.0, || rig.ls("") == Err("ENOTCONN"));
    let found = report(&rig, "", &[&mount]);
    assert_eq!(
        (found.code, found.errors()),
        (Some(1), vec!["mount-dead"]),
        "{:#}",
        found.all
    );
    let fix = found
        .fix("mount-dead")
        .strip_prefix("run: ")
        .unwrap()
        .to_owned();
    assert_eq!(fix, format!("mount-skills unmount {mount}"));
    let bin = rig.bin.display();
    rig.sh(&format!("mount-skills() {{ {bin} \"$@\"; }}; {fix}"))
        .good();
    let found = report(&rig, "", &[&mount]);
    assert_eq!(
        (found.code, found.errors()),
        (Some(0), vec![]),
        "{:#}",
        found.all
    );
    assert!(!found.has("mount-dead"));
}

#[test]
fn a_mount_whose_daemon_hangs_is_named_with_its_process() {
    let mut rig = Rig::new();
    rig.scene("lab", scene());
    rig.up(&["lab"], &[]);
    let (mount, pid) = (mount_point(&rig), rig.daemon_pid());
    kill(pid, Signal::STOP);
    let found = report(&rig, "", &[&mount]);
    kill(pid, Signal::CONT);
    assert_eq!(found.code, Some(1));
    assert_eq!(found.fix("mount-silent"), format!("run: kill -9 {pid}"));
    assert!(found.has("place-silent"), "{:#}", found.all);
    let found = report(&rig, "", &[&mount]);
    assert_eq!(found.code, Some(0), "{:#}", found.all);
}

#[test]
fn c_56_loose_modes_are_warned_of_and_the_command_mends_them() {
    let mut rig = Rig::new();
    rig.scene("lab", scene());
    rig.up(&["lab"], &[]);
    assert!(rig.cat("lab/s/a.txt").is_ok());
    rig.blob(b"a\n");
    let mount = mount_point(&rig);
    let shelf = fs::read_dir(rig.dir().join("cache/mount-skills/v1")).unwrap();
    let shelf = shelf.flatten().next().unwrap().path();
    fs::set_permissions(&shelf, fs::Permissions::from_mode(0o755)).unwrap();
    let found = report(&rig, "", &[&mount]);
    assert_eq!(
        (found.code, found.errors()),
        (Some(4), vec![]),
        "{:#}",
        found.all
    );
    let fix = found
        .fix("storage-mode")
        .strip_prefix("run: ")
        .unwrap()
        .to_owned();
    rig.sh(&fix).good();
    let found = report(&rig, "", &[&mount]);
    assert_eq!(found.code, Some(0), "{:#}", found.all);
}

#[test]
fn beside_a_running_mount_its_servers_are_told_of_without_being_asked() {
    let mut rig = Rig::new();
    rig.scene("lab", scene());
    let lab = rig.scripted("lab");
    rig.mount(&[("lab", &lab), ("gone", "no-such-command")], &[]);
    rig.ready("lab");
    until("its end", 10.0, || rig.server("gone")["state"] == "down");
    let found = report(&rig, "", &[&mount_point(&rig)]);
    assert_eq!(
        (found.code, found.errors()),
        (Some(1), vec!["mounted-server"])
    );
    let one = found.one("mounted-server");
    assert_eq!(one["subject"], "gone");
    let fix = found
        .fix("mounted-server")
        .strip_prefix("run: mount-skills ");
    let words = shlex::split(fix.unwrap()).unwrap();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    assert!(rig.cli(&words).good().contains("no-such-command"));
    assert_eq!(found.all["servers"], json!([]));
    assert_eq!(rig.log("lab", "start").len(), 1);
}

#[test]
fn servers_end_with_a_doctor_that_is_told_to_end() {
    let rig = Rig::new();
    rig.scene("hang", json!({"rules": [{"hang": true}]}));
    let hang = format!("hang={}", rig.scripted("hang"));
    let mut command = rig.command(&rig.bin);
    command.args(["doctor", "--server", &hang, "--timeout", "60"]);
    let doctor = crate::rig::Proc::spawn(&mut command);
    until("the server", 10.0, || {
        rig.seen("hang", "server/discover") > 0
    });
    doctor.signal(Signal::INT);
    let out = doctor.finish(10.0);
    assert_eq!(out.code, Some(130), "{out:?}");
    until("its end", 5.0, || running(&rig, "hang").is_empty());
}

#[test]
fn a_configuration_that_is_refused_is_told_and_the_machine_is_looked_at() {
    let rig = Rig::new();
    let mount = mount_point(&rig);
    let file = rig.dir().join("mcp.json");
    let shown = file.display().to_string();
    fs::write(&file, "{\"mcpServers\": {\n  \"a\": }}").unwrap();
    let found = report(&rig, "", &["--config", &shown, &mount]);
    assert_eq!((found.code, found.errors()), (Some(1), vec!["config"]));
    let text = found.one("config")["text"].as_str().unwrap().to_owned();
    assert!(text.contains(&format!("{shown}:2:")), "{text}");
    assert!(found.has("device") && found.has("place"));
    // Without any configuration it says where there is one.
    fs::write(rig.dir().join("home/.claude.json"), "{\"mcpServers\": {}}").unwrap();
    let found = report(&rig, "", &[]);
    assert_eq!(found.code, Some(0), "{:#}", found.all);
    assert!(
        found
            .fix("config-none")
            .contains("mount-skills config import")
    );
}
