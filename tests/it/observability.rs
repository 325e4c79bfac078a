//! What can be seen of a mount from outside: log, audit trail, the servers' stderr and figures.

use crate::rig::{Out, Proc, Rig, is_root, kill, ok, run, sha256, skill, until, wait};
use crate::standing::needed_threads_live;
use rustix::fs::{CWD, OFlags, RenameFlags, fcntl_getfl, fcntl_setfl, renameat_with};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Text that does something to a terminal, and its lines to a log.
const EVIL: &str = "\u{1b}[31m\u{202e}evil\r\nforged: line";

fn scene() -> Value {
    json!({"skills": [skill("s", json!({"a.txt": "a\n", "b.txt": "b\n"}))]})
}

/// A server that refuses a file with a text of its choice.
fn evil_scene() -> Value {
    let mut scene = scene();
    let error = json!({"code": -32000, "message": EVIL});
    scene["rules"] = json!([
        {"method": "resources/read", "uri": "skill://s/b.txt", "error": error},
    ]);
    scene["start"] = json!({"stderr": format!("first\n{EVIL}\n")});
    scene
}

/// A command that goes on, with what it prints in a file; it ends with this.
struct Follower {
    child: Child,
    out: PathBuf,
}

impl Follower {
    fn start(rig: &Rig, args: &[&str]) -> Self {
        Self::start_in(rig, "followed", args)
    }

    fn start_in(rig: &Rig, file: &str, args: &[&str]) -> Self {
        let out = rig.dir().join(file);
        let mut command = rig.command(&rig.bin);
        command.args(args).stdout(File::create(&out).unwrap());
        let child = command.spawn().unwrap();
        Self { child, out }
    }

    #[track_caller]
    fn sees(&self, what: &str) {
        let seen = || fs::read_to_string(&self.out).unwrap();
        until(what, 10.0, || seen().contains(what));
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn rows(text: &str) -> Vec<Value> {
    let rows = text.lines().map(serde_json::from_str);
    rows.collect::<Result<_, _>>().unwrap()
}

/// Whether a terminal would only print it.
fn is_plain(text: &str) -> bool {
    text.chars()
        .all(|c| c == '\n' || (!c.is_control() && c != '\u{202e}'))
}

// ---- the log ----

#[test]
fn a_log_of_json_holds_one_escaped_object_a_line_and_its_level_changes_at_run_time() {
    let mut rig = Rig::new();
    rig.scene("lab", evil_scene());
    rig.up(&["lab"], &["--log-format", "json"]);
    assert_eq!(rig.cat("lab/s/b.txt"), Err("EIO"));
    let log = || fs::read_to_string(rig.dir().join("daemon.err")).unwrap();
    until("the refusal", 5.0, || log().contains("refused"));
    assert!(is_plain(&log()), "{:?}", log());
    for row in rows(&log()) {
        assert!(row["time"].as_str().unwrap().ends_with('Z'), "{row}");
        assert_eq!(row["level"], "WARN");
        assert!(row["target"].as_str().unwrap().starts_with("mount_skills"));
        assert!(!row["message"].as_str().unwrap().is_empty());
    }
    let refused = rows(&log()).into_iter();
    let refused = refused.filter(|r| r["message"].as_str().unwrap().contains("refused"));
    let refused: Vec<Value> = refused.collect();
    assert_eq!(refused.len(), 1);
    let message = refused[0]["message"].as_str().unwrap();
    assert!(
        message.contains(r"\u{1b}[31m\u{202e}evil\r\nforged"),
        "{message}"
    );

    assert_eq!(rig.ask(&["log-level"]), "warn\n");
    assert_eq!(rig.ask(&["log-level", "debug"]), "warn\n");
    let told: Value = serde_json::from_str(&rig.ask(&["log-level", "--json"])).unwrap();
    assert_eq!(told, json!({"before": "debug", "now": "debug"}));
    let told = rig.ask(&["log-level", "--json", "mount_skills=info"]);
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told, json!({"before": "debug", "now": "mount_skills=info"}));
    kill(rig.server_pid("lab"), Signal::KILL);
    let bad = rig.tell(&["log-level", "loud"]);
    assert_eq!(bad.code, Some(1));
    assert!(bad.err.contains("\"loud\" is no filter"), "{}", bad.err);
    assert_eq!(rig.ask(&["log-level"]), "mount_skills=info\n");
}

#[test]
fn a_log_of_text_has_one_escaped_line_for_each_event() {
    let mut rig = Rig::new();
    rig.scene("lab", evil_scene());
    rig.up(&["lab"], &[]);
    assert_eq!(rig.cat("lab/s/b.txt"), Err("EIO"));
    let log = || fs::read_to_string(rig.dir().join("daemon.err")).unwrap();
    until("the refusal", 5.0, || log().contains("refused"));
    assert!(is_plain(&log()), "{:?}", log());
    assert!(!log().lines().any(|l| l.starts_with("forged")), "{}", log());
}

/// Has the daemon started with another stderr: Python that leaves it as descriptor 2.
fn mount_with_stderr(rig: &mut Rig, stderr: &str, flags: &[&str]) {
    let target = rig.scripted("lab");
    let code = format!("import os, sys\n{stderr}\nos.execv(sys.argv[1], sys.argv[1:])");
    let mut command = rig.command("python3");
    command.args(["-S", "-c", &code]).arg(&rig.bin);
    rig.daemon_args(&mut command, &[("lab", &target)], flags);
    rig.mount_with(command);
    rig.ready("lab");
}

/// A pipe whose reader is gone.
const NOBODY: &str = "r, w = os.pipe(); os.dup2(w, 2); os.close(r)";
/// A pipe whose reader, the daemon itself, never reads.
const NEVER: &str = "r, w = os.pipe(); os.set_inheritable(r, True); os.dup2(w, 2)";

/// Has a listing fail, of which the writer makes a line of the log.
fn fail_a_listing(rig: &Rig, scene: &Value) {
    let mut fails = scene.clone();
    let rule = json!({"method": "skills/list", "error": {"code": -32000, "message": "not now"}});
    fails["rules"].as_array_mut().unwrap().push(rule);
    rig.scene("lab", fails);
    kill(rig.server_pid("lab"), Signal::KILL);
    until("a failed listing", 30.0, || {
        rig.server("lab")["reason"]
            .as_str()
            .is_some_and(|r| r.contains("not now"))
    });
}

#[test]
fn a_log_that_nobody_takes_or_reads_changes_nothing_of_a_mount() {
    let mut scene = scene();
    let files: Vec<String> = (0..40).map(|n| format!("f{n}")).collect();
    let all = files.iter().map(|name| (name.clone(), json!("x")));
    let bad = skill("bad", Value::Object(all.collect()));
    scene["skills"].as_array_mut().unwrap().push(bad);
    // A line of several KiB each: more than a pipe holds.
    let error = json!({"code": -32000, "message": "\u{202e}".repeat(5000)});
    let fails = |name: &String| {
        let uri = format!("skill://bad/{name}");
        json!({"method": "resources/read", "uri": uri, "error": error})
    };
    scene["rules"] = files.iter().map(fails).collect();
    for stderr in [NOBODY, NEVER] {
        let mut rig = Rig::new();
        rig.scene("lab", scene.clone());
        mount_with_stderr(&mut rig, stderr, &[]);
        for name in &files {
            assert_eq!(rig.cat(&format!("lab/bad/{name}")), Err("EIO"));
        }
        assert_eq!(rig.cat("lab/s/a.txt"), ok("a\n"));
        fail_a_listing(&rig, &scene);
        needed_threads_live(&rig);
        let said = rig.ask(&["revoke", "lab/s"]);
        assert!(said.contains("revoked"), "{said}");
        assert_eq!(rig.cat("lab/s/a.txt"), Err("EACCES"));
        rig.ask(&["unmount"]);
        assert_eq!(rig.ended(20.0), Some(0), "{stderr}");
        rig.nothing_left();
    }
}

/// A terminal that nobody reads, with room for a part of a line, until stdin ends; prints its name.
const HUNG: &str = "
import os, select, sys
ours, name = os.openpty()
os.set_blocking(name, False)
try:
    while os.write(name, b'x'):
        pass
except BlockingIOError:
    room = select.poll()
    room.register(name, select.POLLOUT)
    while not room.poll(100):
        os.read(ours, 100)
print(os.ttyname(name), flush=True)
sys.stdin.read()
";

/// Has a daemon start with a stderr that takes nothing.
fn its_file_is_written_without(stderr: impl Into<Stdio>) {
    let rig = Rig::new();
    rig.scene("lab", scene());
    let (file, target) = (rig.dir().join("own.log"), rig.scripted("lab"));
    let flags = ["--daemon", "--log-file", &file.display().to_string()];
    let mut command = rig.daemon_command(&[("lab", &target)], &flags);
    command.env("MOUNT_SKILLS_LOG", "rmcp=trace");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(stderr);
    let mut child = command.spawn().unwrap();
    let ended = wait("a mount", 30.0, || child.try_wait().unwrap());
    assert!(ended.success(), "{ended}");
    let text = || fs::read_to_string(&file).unwrap();
    until("what came until it was ready", 5.0, || {
        text().contains("TRACE")
    });
    let before = text().len();
    kill(rig.server_pid("lab"), Signal::KILL);
    until("what comes after that", 15.0, || text().len() > before);
    assert!(!text().contains("missing here"), "{}", text());
    rig.ask(&["unmount"]);
    rig.nothing_left();
}

#[test]
fn a_daemon_whose_stderr_is_a_full_pipe_writes_its_file() {
    let (_nobody_reads, mut full) = std::io::pipe().unwrap();
    let blocks = fcntl_getfl(&full).unwrap();
    fcntl_setfl(&full, blocks | OFlags::NONBLOCK).unwrap();
    while full.write(b"x").is_ok() {}
    fcntl_setfl(&full, blocks).unwrap();
    its_file_is_written_without(full);
}

#[test]
fn a_daemon_whose_stderr_is_a_terminal_that_hangs_writes_its_file() {
    let mut hung = Command::new("python3");
    hung.args(["-S", "-c", HUNG]);
    // It ends with its stdin.
    let mut hung = hung
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut name = String::new();
    let mut out = std::io::BufReader::new(hung.stdout.take().unwrap());
    out.read_line(&mut name).unwrap();
    let mut options = File::options();
    options
        .write(true)
        .custom_flags(OFlags::NOCTTY.bits().cast_signed());
    its_file_is_written_without(options.open(name.trim_end()).unwrap());
    drop(hung.stdin.take());
    hung.wait().unwrap();
}

#[test]
fn a_log_and_a_trail_may_go_to_devices() {
    let mut rig = Rig::new();
    rig.scene("lab", evil_scene());
    let target = rig.scripted("lab");
    let flags = ["--log-file", "/dev/full", "--audit", "/dev/null"];
    let mut command =
        rig.daemon_command(&[("lab", &target)], &[&flags[..], &["--daemon"]].concat());
    assert_eq!(run(&mut command).code, Some(0));
    rig.ask(&["unmount"]);
    rig.nothing_left();

    let flags = ["--log-file", "/dev/stderr", "--audit", "/dev/full"];
    rig.mount(&[("lab", &target)], &flags);
    rig.ready("lab");
    assert_eq!(rig.cat("lab/s/b.txt"), Err("EIO"));
    until("the refusal", 5.0, || rig.words().contains("refused"));
    until("a gap", 5.0, || rig.status()["audit_gap"].is_object());
    let out = rig.tell(&["audit"]);
    assert_eq!(out.code, Some(1), "{out:?}");
    assert!(
        out.err.contains("/dev/full: a device keeps no lines"),
        "{}",
        out.err
    );
}

/// A small disk in the rig's directory, where `fill` takes what is left.
fn small_disk(rig: &Rig) -> PathBuf {
    assert!(is_root(), "only root can mount the small disk of this test");
    rig.sh("mkdir small && mount -t tmpfs -o size=64k none small")
        .good();
    rig.dir().join("small")
}

/// Fills it; one write is cut off, so that not a byte is left.
fn fill(rig: &Rig) {
    rig.sh("head -c 1M /dev/zero >small/fill");
}

#[test]
fn a_log_on_a_full_disk_says_what_is_missing_and_harms_nothing() {
    let mut rig = Rig::new();
    let mut scene = evil_scene();
    scene["skills"] = json!([
        skill("s", json!({"a.txt": "a\n", "b.txt": "b\n"})),
        skill("t", json!({"bad": {"text": "x", "serve": "yy"}})),
    ]);
    rig.scene("lab", scene.clone());
    let small = small_disk(&rig);
    let log = small.join("log");
    fill(&rig);
    let flags = ["--log-file", &log.display().to_string()];
    // Who waits at a terminal sees it all the same.
    let target = rig.scripted("lab");
    let mut command =
        rig.daemon_command(&[("lab", &target)], &[&flags[..], &["--daemon"]].concat());
    let out = run(command.env("MOUNT_SKILLS_LOG", "rmcp=trace"));
    assert!(out.code == Some(0) && out.err.contains("TRACE"), "{out:?}");
    rig.ask(&["unmount"]);
    rig.nothing_left();
    rig.up(&["lab"], &flags);
    assert_eq!(rig.cat("lab/s/b.txt"), Err("EIO"));
    fail_a_listing(&rig, &scene);
    needed_threads_live(&rig);
    assert_eq!(fs::read_to_string(&log).unwrap(), "", "it is full");
    fs::remove_file(small.join("fill")).unwrap();
    assert_eq!(rig.cat("lab/t/bad"), Err("EIO"));
    let lines = || fs::read_to_string(&log).unwrap();
    until("the next line", 5.0, || lines().contains("lab/t/bad"));
    let first = lines().lines().next().unwrap().to_owned();
    assert!(
        first.contains("lines of the log are missing here"),
        "{}",
        lines()
    );
    assert!(!lines().contains("lab/s/b.txt"), "{}", lines());
    rig.ask(&["revoke", "lab/s"]);
    assert_eq!(rig.cat("lab/s/a.txt"), Err("EACCES"));
    rig.stop();
    rig.sh("umount small").good();
}

#[test]
fn a_log_in_no_file_or_inside_the_mount_is_refused_and_one_that_becomes_none_stays_where_it_is() {
    let rig = Rig::new();
    rig.scene("lab", evil_scene());
    let target = rig.scripted("lab");
    let link = rig.dir().join("link");
    std::os::unix::fs::symlink(rig.mount_point(), &link).unwrap();
    let fifo = rig.dir().join("fifo");
    rig.sh("mkfifo fifo").good();
    let inside = "the log must not lie inside the mount";
    for (file, code, said) in [
        (rig.path("log"), 2, inside),
        (link.join("log"), 2, inside),
        (fifo.clone(), 1, "it is no regular file or character device"),
    ] {
        for life in [&[][..], &["--daemon"]] {
            let name = file.display().to_string();
            let flags = [life, &["--log-file", &name]].concat();
            let out = run(&mut rig.daemon_command(&[("lab", &target)], &flags));
            assert_eq!(out.code, Some(code), "{out:?}");
            assert!(out.err.contains(said), "{}", out.err);
            assert_eq!(fs::read_dir(rig.mount_point()).unwrap().count(), 0);
        }
    }
    for make in ["mkfifo other", "mkdir other"] {
        a_log_stays_where_it_is_while_its_name_is_no_file(make);
    }
}

/// `make` makes what takes the name, `other`.
fn a_log_stays_where_it_is_while_its_name_is_no_file(make: &str) {
    let mut rig = Rig::new();
    rig.scene("lab", evil_scene());
    let (file, other) = (rig.dir().join("own.log"), rig.dir().join("other"));
    let name = file.display().to_string();
    rig.up(&["lab"], &["--log-format", "json", "--log-file", &name]);
    rig.sh(make).good();
    // At once: a log that is not there is made anew.
    let exchange = || renameat_with(CWD, &file, CWD, &other, RenameFlags::EXCHANGE).unwrap();
    exchange();
    // Said to have nothing to reload; the log is looked at all the same.
    assert_eq!(rig.tell(&["reload"]).code, Some(1));
    until("what became of it", 5.0, || {
        let told = fs::read_to_string(&other).unwrap();
        told.contains("cannot be opened anew")
    });
    assert_eq!(rig.status()["servers"][0]["state"], "ready");
    exchange();
    assert_eq!(rig.cat("lab/s/b.txt"), Err("EIO"));
    let told = || fs::read_to_string(&file).unwrap();
    until("the refusal", 5.0, || told().contains("refused"));
    let lines = rows(&told());
    let of = |what: &str| {
        let of = lines
            .iter()
            .filter(|l| l["message"].as_str().unwrap().contains(what));
        of.count()
    };
    assert_eq!(
        (of("cannot be opened anew"), of("refused")),
        (1, 1),
        "{lines:#?}"
    );
    assert!(
        lines.iter().all(|l| l["pid"] == rig.daemon_pid()),
        "{lines:#?}"
    );
}

#[test]
fn the_settings_of_a_file_count_and_wrong_ones_are_refused() {
    let mut rig = Rig::new();
    rig.scene("lab", evil_scene());
    let dir = rig.dir().join("home/.config/mount-skills");
    fs::create_dir_all(&dir).unwrap();
    let words = shlex::split(&rig.scripted("lab")).unwrap();
    let write = |settings: &str| {
        let (program, arguments) = words.split_first().unwrap();
        let server = format!(
            "[servers.lab]\ncommand = {}\nargs = {}\n",
            json!(program),
            json!(arguments)
        );
        fs::write(dir.join("config.toml"), format!("{settings}\n{server}")).unwrap();
    };
    for (bad, said) in [
        ("log-format = \"xml\"", "expected \"text\" or \"json\""),
        ("metrics = \"0.0.0.0:1\"", "expected a loopback address"),
        ("audit = 7", "expected a path"),
    ] {
        write(bad);
        let out = rig.cli(&["config", "show"]);
        assert_eq!(out.code, Some(2), "{bad}: {out:?}");
        assert!(out.err.contains(said), "{}", out.err);
    }
    write("log-format = \"json\"\naudit = \"~/trail\"\nmetrics = \"127.0.0.1:0\"");
    rig.mount(&[], &[]);
    rig.ready("lab");
    assert_eq!(rig.cat("lab/s/b.txt"), Err("EIO"));
    let log = rig.dir().join("daemon.err");
    until("a line", 5.0, || fs::metadata(&log).unwrap().len() > 0);
    assert!(!rows(&fs::read_to_string(&log).unwrap()).is_empty());
    let status = rig.status();
    let trail = rig.dir().join("home/trail");
    assert_eq!(status["audit"], trail.display().to_string());
    let url = status["metrics"].as_str().unwrap();
    assert!(url.starts_with("http://127.0.0.1:"), "{url}");
}

// ---- the audit trail ----

fn trail(rig: &Rig) -> PathBuf {
    rig.dir().join("trail")
}

fn lines(rig: &Rig) -> Vec<Value> {
    rows(&fs::read_to_string(trail(rig)).unwrap())
}

/// The lines of the trail, once there are so many.
#[track_caller]
fn audited(rig: &Rig, n: usize) -> Vec<Value> {
    wait("the lines of the trail", 5.0, || {
        Some(lines(rig)).filter(|rows| rows.len() >= n)
    })
}

#[test]
fn the_audit_trail_says_who_first_read_what_and_what_was_refused() {
    let mut rig = Rig::new();
    rig.scene("lab", evil_scene());
    let file = trail(&rig).display().to_string();
    let _caches = Rig::keep_kernel_caches();
    rig.up(&["lab"], &["--audit", &file]);
    let reader = rig.cat_later("lab/s/a.txt");
    let pid = reader.pid();
    assert_eq!(rig.outcome("lab/s/a.txt", reader.finish(30.0)), ok("a\n"));
    let first = audited(&rig, 1).remove(0);
    let digest = format!("sha256:{}", sha256(b"a\n"));
    let expected = json!({
        "time": first["time"], "uid": 0, "gid": 0, "pid": pid, "command": "cat",
        "program": program("cat"), "label": "lab", "uri": "skill://s/a.txt", "path": "lab/s/a.txt",
        "digest": digest, "size": 2, "source": "server", "opened_window": true,
    });
    if crate::rig::is_root() {
        assert_eq!(first, expected);
    }
    let age = now() - first["time"].as_u64().unwrap();
    assert!(age < 60, "{first}");
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    // The kernel answers this one by itself, with a trail as without one.
    let reads = || rig.status()["upcalls"]["read"].as_u64().unwrap();
    let before = reads();
    assert_eq!(rig.cat("lab/s/a.txt"), ok("a\n"));
    assert_eq!(reads(), before);
    // One process that tries again and again.
    let again = "import sys\nfor _ in range(5):\n    try: open(sys.argv[1]).read()\n    except OSError: pass\n";
    let path = rig.path("lab/s/b.txt");
    let mut child = Proc::spawn(
        rig.command("/usr/bin/python3")
            .args(["-S", "-c", again])
            .arg(&path),
    );
    let pid = child.pid();
    until("its end", 30.0, || !child.runs());
    assert_eq!(rig.cat("lab/s/b.txt"), Err("EIO"));
    let rows = audited(&rig, 3);
    let refused: Vec<&Value> = rows.iter().filter(|r| r["errno"] == "EIO").collect();
    assert_eq!(rows.len(), 3, "{rows:#?}");
    assert_eq!(refused.len(), 2, "{rows:#?}");
    assert_eq!(refused[0]["error"], "contradiction");
    assert_eq!(refused[0]["uri"], "skill://s/b.txt");
    assert_eq!(refused[0]["pid"], pid);
    assert_ne!(refused[1]["pid"], pid);
    if is_root() {
        let programs = [&refused[0]["program"], &refused[1]["program"]];
        assert_eq!(programs, [&program("python3"), &program("cat")]);
    }

    let all = rig.ask(&["audit"]);
    assert_eq!(all.lines().count(), 3);
    assert!(
        all.contains("lab/s/a.txt: 2 B from server, window opened"),
        "{all}"
    );
    assert!(
        all.contains("lab/s/b.txt: refused: EIO (contradiction)"),
        "{all}"
    );
    let read = rows_of(&rig, &["audit", "--json", "lab/s"]);
    assert_eq!(read, rows);
    let by_uri = rig.tell(&["audit", "lab/skill://s/SKILL.md"]);
    assert_eq!(by_uri.code, Some(2), "nothing is no answer: {by_uri:?}");
    assert!(
        by_uri
            .err
            .contains("mount-skills status lab/skill://s/SKILL.md"),
        "{by_uri:?}"
    );
    assert_eq!(rows_of(&rig, &["audit", "--json", "lab/s/a.txt"]).len(), 1);
    assert_eq!(rows_of(&rig, &["audit", "--json", "la"]).len(), 0);

    // Moved away, and followed to the file that takes its place.
    let follower = Follower::start(&rig, &["audit", "-f", "--file", &file, "--json"]);
    follower.sees("lab/s/a.txt");
    fs::rename(&file, rig.dir().join("trail.1")).unwrap();
    assert_eq!(rig.cat("lab/s/SKILL.md").map(|_| ()), Ok(()));
    let rows = audited(&rig, 1);
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["path"], "lab/s/SKILL.md");
    follower.sees("lab/s/SKILL.md");
}

/// The file of a program.
fn program(name: &str) -> Value {
    let dirs = ["/usr/local/bin", "/usr/bin", "/bin"].into_iter();
    let mut files = dirs.filter_map(|dir| fs::canonicalize(format!("{dir}/{name}")).ok());
    files.next().unwrap().display().to_string().into()
}

fn now() -> u64 {
    let now = std::time::UNIX_EPOCH.elapsed();
    now.unwrap().as_secs()
}

#[test]
fn a_process_that_becomes_another_program_and_one_that_opens_a_window_again_are_in_the_trail() {
    let mut rig = Rig::new();
    rig.scene("lab", scene());
    let file = trail(&rig).display().to_string();
    let _caches = Rig::keep_kernel_caches();
    rig.up(&["lab"], &["--audit", &file]);
    let path = rig.path("lab/s/a.txt").display().to_string();
    let code = "import os, sys\nfd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)\n\
                for line in sys.stdin:\n    os.pread(fd, 9, 0)\n    print('read', flush=True)\n\
                os.execvp('dd', ['dd', 'iflag=direct', 'if=' + sys.argv[1]])";
    let mut command = rig.command("/usr/bin/python3");
    command.args(["-S", "-c", code, &path]);
    let mut child = Asked::start(&mut command);
    child.ask();
    child.ask();
    assert_eq!(audited(&rig, 1).len(), 1);
    rig.ask(&["release", "lab/s"]);
    child.ask();
    let rows = audited(&rig, 2);
    child.end();
    let rows = [rows, audited(&rig, 3).split_off(2)].concat();
    let told = |row: &Value| {
        [
            row["pid"].clone(),
            row["program"].clone(),
            row["opened_window"].clone(),
        ]
    };
    let python = [json!(child.pid()), program("python3"), json!(true)];
    let dd = [json!(child.pid()), program("dd"), json!(false)];
    let all: Vec<[Value; 3]> = rows.iter().map(told).collect();
    assert_eq!(all, [python.clone(), python, dd]);
}

/// A program that does something for each line of its stdin, and answers with a line.
struct Asked {
    child: Child,
    said: std::io::BufReader<std::process::ChildStdout>,
}

impl Asked {
    fn start(command: &mut std::process::Command) -> Self {
        let (piped, null) = (std::process::Stdio::piped, std::process::Stdio::null);
        command.stdin(piped()).stdout(piped()).stderr(null());
        let mut child = command.spawn().unwrap();
        let said = std::io::BufReader::new(child.stdout.take().unwrap());
        Self { child, said }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn ask(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        assert_eq!(line, "read\n");
    }

    fn end(&mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_trail_on_a_full_disk_loses_no_line_without_counting_it_and_goes_on_with_a_whole_one() {
    let mut rig = Rig::new();
    let files: serde_json::Map<String, Value> =
        (0..40).map(|n| (format!("f{n}"), json!("x"))).collect();
    rig.scene("lab", json!({"skills": [skill("s", Value::Object(files))]}));
    let small = small_disk(&rig);
    let trail = small.join("trail");
    rig.up(&["lab"], &["--audit", &trail.display().to_string()]);
    let read = |n: usize| assert_eq!(rig.cat(&format!("lab/s/f{n}")), ok("x"));
    let text = || fs::read_to_string(&trail).unwrap();
    read(0);
    until("the first line", 5.0, || text().lines().count() == 1);
    fill(&rig);
    // The page that the file has is filled up, and the line at its end is cut off.
    (1..40).for_each(read);
    until("the gap", 5.0, || !rig.status()["audit_gap"].is_null());
    let gap = rig.status()["audit_gap"].clone();
    let reason = gap["reason"].as_str().unwrap();
    assert!(reason.starts_with(&trail.display().to_string()), "{gap}");
    assert!(now() - gap["since"].as_u64().unwrap() < 60, "{gap}");
    let status = rig.ask(&["status"]);
    assert!(
        status.contains("the audit trail is not written since "),
        "{status}"
    );
    assert!(!text().ends_with('\n'), "a line is cut off: {}", text());
    fs::remove_file(small.join("fill")).unwrap();
    assert_eq!(rig.cat("lab/s/SKILL.md").map(|_| ()), Ok(()));
    until("the next line", 15.0, || text().contains("lab/s/SKILL.md"));
    until("the end of the gap", 5.0, || {
        rig.status()["audit_gap"].is_null()
    });
    rig.stop();
    let words = rig.words();
    let said = format!("the audit trail is not written: {}", trail.display());
    assert_eq!(words.matches(&said).count(), 1, "{words}");
    assert_eq!(
        words.matches("the audit trail is written again").count(),
        1,
        "{words}"
    );
    let lines: Vec<Value> = text()
        .lines()
        .filter_map(|l| serde_json::from_str(l).ok())
        .collect();
    assert_eq!(text().lines().count(), lines.len() + 1, "one was cut off");
    let reads = lines.iter().filter(|l| !l["path"].is_null()).count() as u64;
    let more: u64 = lines.iter().filter_map(|l| l["more"].as_u64()).sum();
    assert_eq!(reads + more, 41, "{}", text());
    assert!(
        more > 0 && lines.iter().any(|l| l["path"] == "lab/s/SKILL.md"),
        "{}",
        text()
    );
    rig.sh("umount small").good();
}

fn rows_of(rig: &Rig, args: &[&str]) -> Vec<Value> {
    rows(&rig.ask(args))
}

#[test]
fn readers_of_other_users_are_told_apart_and_one_that_cannot_be_named_is_unknown_as_root() {
    crate::rig::needs_root();
    let mut rig = Rig::new();
    rig.scene("lab", scene());
    let file = trail(&rig).display().to_string();
    let _caches = Rig::keep_kernel_caches();
    rig.up(&["lab"], &["--audit", &file, "--allow-other"]);
    let mut other = rig.command("setpriv");
    other.args(["--reuid=1234", "--regid=1235", "--clear-groups", "--"]);
    // Not by its path: the directories above are closed to others.
    other.args(["cat", "a.txt"]).current_dir(rig.path("lab/s"));
    assert_eq!(run(&mut other).good(), "a\n");
    let row = audited(&rig, 1).remove(0);
    assert_eq!((&row["uid"], &row["gid"]), (&json!(1234), &json!(1235)));
    rig.stop();
    fs::remove_file(&file).unwrap();

    // A daemon in a namespace of its own knows no process outside by a number.
    let targets = [("lab", &*rig.scripted("lab"))];
    let mut command = rig.command("unshare");
    command
        .args(["--pid", "--fork", "--kill-child"])
        .arg(&rig.bin);
    rig.daemon_args(&mut command, &targets, &["--audit", &file]);
    rig.mount_with(command);
    rig.ready("lab");
    assert_eq!(rig.cat("lab/s/b.txt"), ok("b\n"));
    let row = audited(&rig, 1).remove(0);
    assert_eq!(
        (&row["pid"], &row["program"]),
        (&Value::Null, &json!("unknown"))
    );
    assert_eq!(
        (&row["uid"], &row["path"]),
        (&json!(0), &json!("lab/s/b.txt"))
    );
    assert!(
        rig.ask(&["audit"])
            .contains("unknown (pid unknown, uid 0) lab/s/b.txt")
    );
    rig.ask(&["unmount"]);
    assert_eq!(rig.ended(15.0), Some(0));
}

#[test]
fn an_audit_trail_inside_the_mount_or_in_no_file_is_refused() {
    let mut rig = Rig::new();
    rig.scene("lab", scene());
    let target = rig.scripted("lab");
    let link = rig.dir().join("link");
    std::os::unix::fs::symlink(rig.mount_point(), &link).unwrap();
    let fifo = rig.dir().join("fifo");
    rig.sh("mkfifo fifo").good();
    let inside = "must not lie inside the mount";
    for (file, code, said) in [
        (rig.path("trail"), 2, inside),
        (link.join("trail"), 2, inside),
        (rig.dir().to_owned(), 1, "the audit trail cannot be written"),
        (fifo.clone(), 1, "it is no regular file or character device"),
    ] {
        let flags = ["--audit", &file.display().to_string()];
        let out = run(&mut rig.daemon_command(&[("lab", &target)], &flags));
        assert_eq!(out.code, Some(code), "{out:?}");
        assert!(out.err.contains(said), "{}", out.err);
    }
    rig.up(&["lab"], &[]);
    let out = rig.tell(&["audit"]);
    assert_eq!(out.code, Some(1));
    assert!(out.err.contains("writes no audit trail"), "{}", out.err);
}

// ---- stderr ----

#[test]
fn what_a_server_wrote_to_stderr_outlives_it_and_the_mount_and_is_escaped() {
    let mut rig = Rig::new();
    let mut dies = evil_scene();
    dies["start"]["exit"] = json!(3);
    rig.scene("lab", dies);
    let target = rig.scripted("lab");
    rig.mount(&[("lab", &target)], &[]);
    until("its failure", 15.0, || rig.server("lab")["state"] == "down");
    let status = rig.ask(&["status"]);
    assert!(status.contains("see: mount-skills logs lab"), "{status}");
    let logs = || rig.tell(&["logs", "lab"]);
    until("its words", 5.0, || logs().text().starts_with("first\n"));
    let kept: Vec<(PathBuf, u32)> = rig.stored("state").into_iter().collect();
    let kept = kept.iter().find(|(p, _)| p.ends_with("stderr")).unwrap();
    assert_eq!(kept.1 & 0o777, 0o600);
    rig.stop();

    let shown = rig.ask(&["logs", "lab"]);
    assert!(is_plain(&shown), "{shown:?}");
    assert!(
        shown.starts_with("first\n\\u{1b}[31m\\u{202e}evil"),
        "{shown}"
    );
    assert_eq!(rig.ask(&["logs", "lab", "--lines", "1"]), "forged: line\n");
    let raw = rig.ask(&["logs", "lab", "--raw"]);
    assert!(raw.starts_with(&format!("first\n{EVIL}\n")), "{raw:?}");
    let json: Value = serde_json::from_str(&rig.ask(&["logs", "lab", "--json"])).unwrap();
    assert_eq!(json["lines"][0], "first");
    let out = rig.tell(&["logs", "other"]);
    assert_eq!(out.code, Some(1));
    assert!(out.err.contains("nothing is kept"), "{}", out.err);
    rig.ask(&["forget", "lab"]);
    assert_eq!(
        rig.tell(&["logs", "lab"]).code,
        Some(1),
        "forget takes it away"
    );
}

#[test]
fn what_a_server_writes_to_stderr_is_followed_and_bounded() {
    let mut rig = Rig::new();
    let mut loud = scene();
    let flood = json!({"fill": "x", "size": 3 << 20});
    loud["rules"] = json!([
        {"method": "resources/read", "uri": "skill://s/a.txt", "stderr": "said of a\n"},
        {"method": "resources/read", "uri": "skill://s/b.txt", "stderr": [flood, "\nthe end\n"]},
    ]);
    loud["start"] = json!({"stderr": "begun\n"});
    rig.scene("lab", loud);
    rig.up(&["lab"], &[]);
    until("its words", 5.0, || {
        rig.tell(&["logs", "lab"]).code == Some(0)
    });
    let at = rig.mount_point().display().to_string();
    let follower = Follower::start(&rig, &["logs", "-f", "lab", "--mount", &at]);
    follower.sees("begun\n");
    assert_eq!(rig.cat("lab/s/a.txt"), ok("a\n"));
    follower.sees("said of a\n");
    drop(follower);
    assert_eq!(rig.cat("lab/s/b.txt"), ok("b\n"));
    let files = || {
        let files = rig.stored("state").into_iter().map(|(p, _)| p);
        let name = |p: &PathBuf| p.file_name().unwrap().to_string_lossy().into_owned();
        let files = files.filter(|p| name(p).starts_with("stderr"));
        files
            .map(|p| fs::metadata(p).map_or(0, |m| m.len()))
            .collect::<Vec<u64>>()
    };
    until("its last words", 10.0, || {
        rig.ask(&["logs", "lab", "--lines", "1"]) == "the end\n"
    });
    assert!(files().iter().all(|n| *n <= 1 << 20), "{:?}", files());
}

/// The directories of the state in which a server's words are.
fn words_of(rig: &Rig) -> Vec<PathBuf> {
    let files = rig.stored("state").into_iter().map(|(path, _)| path);
    let files = files.filter(|p| p.ends_with("stderr") || p.ends_with("stderr.1"));
    let dirs: std::collections::BTreeSet<PathBuf> =
        files.map(|p| p.parent().unwrap().to_owned()).collect();
    dirs.into_iter().collect()
}

#[test]
fn logs_tell_what_is_not_there_from_what_cannot_be_read_and_show_the_end_of_a_long_line() {
    let mut rig = Rig::new();
    let mut long = scene();
    // A part at a time, so that it is on the disk whatever the machine does: less may wait.
    let half = json!({"fill": "x", "size": 150 << 10});
    long["start"] = json!({"stderr": ["first\n", half]});
    long["rules"] = json!([
        {"method": "resources/read", "uri": "skill://s/a.txt", "stderr": [half, "the end\n"]},
    ]);
    rig.scene("lab", long);
    rig.up(&["lab"], &[]);
    let logs = || rig.tell(&["logs", "lab", "--lines", "1"]);
    until("half of it", 10.0, || logs().out.len() > 150 << 10);
    assert_eq!(rig.cat("lab/s/a.txt"), ok("a\n"));
    until("its words", 5.0, || logs().text().ends_with("xthe end\n"));
    assert_eq!(logs().text().len(), (300 << 10) + "the end\n".len());
    let dirs = words_of(&rig);
    let [dir] = dirs.as_slice() else {
        panic!("{dirs:?}")
    };
    let (file, before) = (dir.join("stderr"), dir.join("stderr.1"));
    // As in the moment in which it is turned over.
    fs::rename(&file, &before).unwrap();
    let running = |rig: &Rig| rig.tell(&["logs", "lab"]);
    let with_mount = running(&rig);
    rig.stop();
    for out in [with_mount, running(&rig)] {
        assert!(out.text().starts_with("first\n"), "{:?}", out.code);
    }
    fs::create_dir(&file).unwrap();
    let said = |out: Out| {
        assert_eq!((out.code, out.out.len()), (Some(1), 0), "{out:?}");
        out.err
    };
    let unclear = said(running(&rig));
    assert!(unclear.contains(&file.display().to_string()), "{unclear}");
    fs::remove_dir(&file).unwrap();
    fs::rename(&before, &file).unwrap();
    fs::create_dir(&before).unwrap();
    let unclear = said(running(&rig));
    assert!(
        unclear.contains(&format!("{} cannot be read", before.display())),
        "{unclear}"
    );
    fs::remove_dir(&before).unwrap();
    fs::remove_file(&file).unwrap();
    assert!(said(running(&rig)).contains("nothing is kept"));
}

#[test]
fn logs_follow_a_server_from_before_its_first_word_to_the_one_that_takes_its_place() {
    let mut rig = Rig::new();
    let mut quiet = scene();
    quiet["rules"] = json!([
        {"method": "resources/read", "uri": "skill://s/a.txt", "stderr": "begun, "},
        {"method": "resources/read", "uri": "skill://s/b.txt", "stderr": "done\n"},
    ]);
    rig.scene("lab", quiet);
    rig.up(&["lab"], &[]);
    let none = rig.tell(&["logs", "lab"]);
    assert!(
        none.err.contains("it has written nothing to stderr yet"),
        "{}",
        none.err
    );
    let at = rig.mount_point().display().to_string();
    let follower = Follower::start(&rig, &["logs", "-f", "lab", "--mount", &at]);
    assert_eq!(rig.cat("lab/s/a.txt"), ok("a\n"));
    until("the begin of a line", 5.0, || {
        rig.tell(&["logs", "lab"]).text() == "begun, \n"
    });
    let second = Follower::start_in(&rig, "second", &["logs", "-f", "lab", "--mount", &at]);
    assert_eq!(rig.cat("lab/s/b.txt"), ok("b\n"));
    follower.sees("begun, done\n");
    second.sees("begun, done\n");
    // Another command is another server, which is kept elsewhere.
    let mut other = scene();
    other["start"] = json!({"stderr": "of the other\n"});
    rig.scene("lab", other);
    let target = rig.scripted("lab").replacen(" -S -E ", " -E -S ", 1);
    rig.ask(&["unmount"]);
    assert_eq!(rig.ended(15.0), Some(0));
    rig.mount(&[("lab", &target)], &[]);
    rig.ready("lab");
    assert_eq!(words_of(&rig).len(), 2);
    follower.sees("begun, done\nof the other\n");
}

#[test]
fn a_flood_on_stderr_goes_to_the_disk_at_a_pace() {
    const MIB: u64 = 1 << 20;
    let mut rig = Rig::new();
    let mut loud = scene();
    let flood = json!({"fill": "x", "size": 64 * MIB});
    loud["rules"] = json!([
        {"method": "resources/read", "uri": "skill://s/b.txt", "stderr": [flood, "\nthe end\n"]},
    ]);
    rig.scene("lab", loud);
    rig.up(&["lab"], &[]);
    let written = || {
        let io = fs::read_to_string(format!("/proc/{}/io", rig.daemon_pid())).unwrap();
        let row = io.lines().find_map(|l| l.strip_prefix("wchar: "));
        row.unwrap().parse::<u64>().unwrap()
    };
    let (before, start) = (written(), std::time::Instant::now());
    assert_eq!(rig.cat("lab/s/b.txt"), ok("b\n"));
    until("its last words", 20.0, || {
        rig.tell(&["logs", "lab", "--lines", "1"]).text() == "the end\n"
    });
    let written = (written() - before) / MIB;
    // A burst, and a MiB a second; the log and the answers are small.
    let may = 4 + start.elapsed().as_secs();
    assert!(written <= may, "{written} MiB");
}

#[test]
fn a_server_at_a_url_has_its_stderr_elsewhere() {
    let mut rig = Rig::new();
    rig.scene("web", scene());
    let url = rig.scripted_http("web");
    rig.mount(&[("web", &url)], &[]);
    rig.ready("web");
    let out = rig.tell(&["logs", "web"]);
    assert_eq!(out.code, Some(1));
    assert!(out.err.contains("its stderr is elsewhere"), "{}", out.err);
}

// ---- figures ----

/// The samples of a text for Prometheus.
fn samples(text: &str) -> BTreeMap<String, f64> {
    assert!(text.trim_end().ends_with("# EOF"), "{text}");
    let rows = text.lines().filter(|l| !l.starts_with('#'));
    let samples = rows.map(|row| {
        let (name, value) = row.rsplit_once(' ').unwrap();
        (name.to_owned(), value.parse().unwrap())
    });
    samples.collect()
}

/// An HTTP request; the head, and the body.
fn fetch(address: &str, host: &str, what: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    let headers = "Accept: text/plain\r\nConnection: close";
    let request = format!("{what} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.to_ascii_lowercase(), body.to_owned())
}

/// Where the figures are.
fn figures_at(rig: &Rig) -> String {
    let url = rig.status()["metrics"].as_str().unwrap().to_owned();
    let address = url.strip_prefix("http://").unwrap();
    address.strip_suffix("/metrics").unwrap().to_owned()
}

#[test]
fn figures_count_what_happened_and_name_no_skill() {
    let mut rig = Rig::new();
    let mut secret = scene();
    secret["skills"] = json!([skill("zanzibar", json!({"a.txt": "a\n", "b.txt": "b\n"}))]);
    let error = json!({"code": -32000, "message": EVIL});
    let uri = "skill://zanzibar/b.txt";
    secret["rules"] = json!([{"method": "resources/read", "uri": uri, "error": error}]);
    rig.scene("lab", secret);
    let _caches = Rig::keep_kernel_caches();
    rig.up(&["lab"], &["--metrics", "127.0.0.1:0"]);
    let before = samples(&rig.ask(&["status", "--prometheus"]));
    assert_eq!(before["mount_skills_windows{server=\"lab\"}"], 0.0);
    assert_eq!(rig.cat("lab/zanzibar/a.txt"), ok("a\n"));
    assert_eq!(rig.cat("lab/zanzibar/a.txt"), ok("a\n"));
    assert_eq!(rig.cat("lab/zanzibar/b.txt"), Err("EIO"));
    until("the window", 5.0, || {
        let now = samples(&rig.ask(&["status", "--prometheus"]));
        now["mount_skills_windows{server=\"lab\"}"] == 1.0
    });
    let text = rig.ask(&["status", "--prometheus"]);
    let now = samples(&text);
    let is = |name: &str, value: f64| {
        let name = format!("mount_skills_{name}");
        assert_eq!(now.get(&name), Some(&value), "{name} in {text}");
    };
    is("reads_total{server=\"lab\",outcome=\"served\"}", 1.0);
    is("read_bytes_total{server=\"lab\",source=\"server\"}", 2.0);
    is(
        "read_wait_seconds_count{server=\"lab\",source=\"server\"}",
        1.0,
    );
    is(
        "read_wait_seconds_bucket{le=\"+Inf\",server=\"lab\",source=\"server\"}",
        1.0,
    );
    is(
        "refusals_total{server=\"lab\",outcome=\"contradiction\"}",
        1.0,
    );
    let of = |method: &str, outcome: &str| {
        format!("requests_total{{server=\"lab\",method=\"{method}\",outcome=\"{outcome}\"}}")
    };
    is(&of("resources/read", "answered"), 1.0);
    is(&of("resources/read", "rejected"), 1.0);
    is("cache_misses_total", 2.0);
    is("servers{server=\"lab\",state=\"ready\"}", 1.0);
    is("skills{server=\"lab\",state=\"held\"}", 1.0);
    is("connects_total{server=\"lab\"}", 1.0);
    is("memory_bytes", 2.0);
    is("reads_waiting", 0.0);
    assert!(
        !text.contains("zanzibar") && !text.contains("evil"),
        "{text}"
    );

    // Each family has its kind and a text before its samples, and they stand together.
    let mut families = std::collections::BTreeSet::new();
    let mut family = String::new();
    for line in text.lines().filter(|l| *l != "# EOF") {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(families.insert(name.to_owned()), "{name} twice");
            assert!(help.ends_with('.'), "{line}");
            family = name.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(name, family);
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
        } else if !line.starts_with("# UNIT ") {
            assert!(line.starts_with(&family), "{line} in {family}");
        }
    }
    assert!(families.contains("mount_skills_reads"), "{families:?}");

    let address = figures_at(&rig);
    let (head, body) = fetch(&address, &address, "GET /metrics");
    assert!(head.starts_with("http/1.1 200"), "{head}");
    assert!(
        head.contains("content-type: application/openmetrics-text"),
        "{head}"
    );
    assert!(samples(&body).contains_key("mount_skills_reads_waiting"));
    let (head, body) = fetch(&address, &address, "HEAD /metrics");
    assert!(
        head.starts_with("http/1.1 200") && body.is_empty(),
        "{head}"
    );
    let (head, _) = fetch(&address, &address, "POST /metrics");
    assert!(
        head.starts_with("http/1.1 405") && head.contains("allow: get, head"),
        "{head}"
    );
    assert!(fetch(&address, &address, "GET /").0.contains("404"));
    let (head, body) = fetch(&address, "evil.example", "GET /metrics");
    assert!(
        head.contains("403") && body.contains("in Host: localhost"),
        "{head}"
    );
}

#[test]
fn figures_are_had_while_others_hold_connections_and_ask_nothing() {
    let mut rig = Rig::new();
    rig.scene("lab", scene());
    rig.up(&["lab"], &["--metrics", "127.0.0.1:0"]);
    let address = figures_at(&rig);
    let mut idle: Vec<TcpStream> = (0..20)
        .map(|_| TcpStream::connect(&address).unwrap())
        .collect();
    let start = std::time::Instant::now();
    assert!(
        fetch(&address, &address, "GET /metrics")
            .0
            .starts_with("http/1.1 200")
    );
    // Far less than a connection may take.
    assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
    for stream in &mut idle {
        stream
            .set_read_timeout(Some(std::time::Duration::from_secs(8)))
            .unwrap();
        // Closed, or reset.
        let mut rest = Vec::new();
        let end = stream.read_to_end(&mut rest);
        assert!(end.is_ok_and(|n| n == 0) || rest.is_empty(), "{rest:?}");
    }
}

#[test]
fn figures_of_a_server_that_was_removed_are_gone() {
    let mut rig = Rig::new();
    for label in ["lab", "other"] {
        rig.scene(label, scene());
    }
    let file = rig.dir().join("config.json");
    let write = |rig: &Rig, labels: &[&str]| {
        let servers: serde_json::Map<String, Value> = labels
            .iter()
            .map(|label| {
                let words = shlex::split(&rig.scripted(label)).unwrap();
                let (program, arguments) = words.split_first().unwrap();
                (
                    (*label).to_owned(),
                    json!({"command": program, "args": arguments}),
                )
            })
            .collect();
        fs::write(&file, json!({"mcpServers": servers}).to_string()).unwrap();
    };
    write(&rig, &["lab", "other"]);
    let config = file.display().to_string();
    rig.mount(&[], &["--config", &config]);
    let of = |label: &str| {
        let text = rig.ask(&["status", "--prometheus"]);
        let of = format!("server=\"{label}\"");
        samples(&text)
            .keys()
            .filter(|name| name.contains(&of))
            .count()
    };
    for label in ["lab", "other"] {
        rig.ready(label);
        assert_eq!(rig.cat(&format!("{label}/s/a.txt")), ok("a\n"));
        assert!(of(label) > 20, "{label}");
    }
    write(&rig, &["lab"]);
    rig.ask(&["reload"]);
    assert_eq!(of("other"), 0);
    assert!(of("lab") > 20);
}

#[test]
fn figures_are_for_this_machine_alone_and_a_taken_port_says_so() {
    let rig = Rig::new();
    rig.scene("lab", scene());
    let target = rig.scripted("lab");
    let mount =
        |address: &str| run(&mut rig.daemon_command(&[("lab", &target)], &["--metrics", address]));
    for address in [
        "0.0.0.0:9464",
        "10.1.2.3:1",
        "[::]:1",
        "localhost:1",
        "9464",
    ] {
        let out = mount(address);
        assert_eq!(out.code, Some(2), "{out:?}");
        assert!(out.err.contains("give a loopback address"), "{}", out.err);
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let out = mount(&address);
    assert_eq!(out.code, Some(1), "{out:?}");
    assert!(out.err.contains("name another port"), "{}", out.err);
    rig.nothing_left();
}

#[test]
fn a_read_that_waits_is_counted_until_it_is_over() {
    let mut rig = Rig::new();
    let mut slow = scene();
    slow["rules"] = json!([{"method": "resources/read", "hang": true}]);
    rig.scene("lab", slow);
    rig.up(&["lab"], &[]);
    let waiting = || samples(&rig.ask(&["status", "--prometheus"]))["mount_skills_reads_waiting"];
    let reader: Proc = rig.cat_later("lab/s/a.txt");
    until("a reader", 5.0, || waiting() == 1.0);
    reader.signal(Signal::INT);
    until("its end", 5.0, || waiting() == 0.0);
    reader.finish(5.0);
}
