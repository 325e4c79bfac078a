//! The daemon is killed, and what it left on the disk is met by the next one.
//!
//! At each step of each write: [`every_step_of_every_write`] plays a fixed story once to learn
//! the steps (`src/store/crash.rs`), and then once for each step, at which the daemon dies. At
//! random moments under load: [`f19_readers_of_a_killed_daemon_end_and_the_next_one_goes_on`].

use crate::rig::{
    Out, Proc, Rig, kill, ok, processes_with, run, sha256, skill, skill_md, still_there, until,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

const EACH: [&str; 2] = ["--approval", "each"];
const A: &str = "skill://a/SKILL.md";
const N: &str = "skill://n/SKILL.md";
/// How many stories are played at a time; each of them mostly waits.
const AT_A_TIME: usize = 6;

/// What is in the skill `a`.
fn contents() -> BTreeMap<&'static str, String> {
    let big = "0123456789".repeat(30_000);
    let files = [("SKILL.md", skill_md("a")), ("x", "x of a\n".to_owned())];
    files.into_iter().chain([("big", big)]).collect()
}

fn scene(more: &[&str]) -> Value {
    let files = json!({"x": "x of a\n", "big": {"fill": "0123456789", "size": 300_000}});
    let others = more.iter().map(|s| skill(s, json!({})));
    let skills: Vec<Value> = std::iter::once(skill("a", files)).chain(others).collect();
    json!({"skills": skills, "ttlMs": 3_600_000})
}

/// The daemon has died.
#[derive(Debug)]
struct Killed;

/// What the user may take for granted at some point of the story.
#[derive(Debug, Default)]
struct Known {
    /// What may be the verdict on `a`: as it was, and as a command that has not answered makes it.
    verdict: BTreeSet<&'static str>,
    /// Whether the journal holds `a`; none while that changes.
    journalled: Option<bool>,
    /// Skills that the stored listing mentions.
    listed: Vec<&'static str>,
    /// Files of `a` that are in the cache.
    cached: Vec<&'static str>,
}

struct Story<'a> {
    rig: &'a Rig,
    daemon: Proc,
    known: Known,
}

impl Story<'_> {
    /// Waits for something that comes unless the daemon dies.
    fn comes(&mut self, what: &str, probe: impl Fn(&Rig) -> bool) -> Result<(), Killed> {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            // Looked at first: what is there when it has died is not waited for.
            let runs = self.daemon.runs();
            match (probe(self.rig), runs) {
                (true, _) => return Ok(()),
                (false, false) => return Err(Killed),
                (false, true) if Instant::now() < end => {}
                (false, true) => panic!(
                    "it does not come: {what}\n{}its steps:\n{}",
                    threads(self.daemon.pid()),
                    fs::read_to_string(steps_of(self.rig)).unwrap_or_default()
                ),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// What something prints that fails only if the daemon dies.
    fn works(&mut self, out: Out) -> Result<String, Killed> {
        if out.code == Some(0) {
            return Ok(out.text());
        }
        until(&format!("the end that explains {out:?}"), 5.0, || {
            !self.daemon.runs()
        });
        Err(Killed)
    }

    fn ask(&mut self, args: &[&str]) -> Result<String, Killed> {
        let out = self.rig.tell(args);
        self.works(out)
    }

    /// A command after which the verdict on `a` is this one.
    fn judge(&mut self, verdict: &'static str, args: &[&str]) -> Result<(), Killed> {
        self.known.verdict.insert(verdict);
        self.ask(args)?;
        self.known.verdict = [verdict].into();
        Ok(())
    }

    fn read(&mut self, file: &'static str) -> Result<(), Killed> {
        let path = self.rig.path("lab/a").join(file);
        let out = run(self.rig.command("cat").arg(path));
        let got = self.works(out)?;
        let want = &contents()[file];
        assert!(got == *want, "{file}: {} bytes that are not its", got.len());
        self.comes(file, |rig| {
            blobs(rig).contains_key(&sha256(want.as_bytes()))
        })?;
        self.known.cached.push(file);
        Ok(())
    }

    fn journal_holds(&mut self, it: bool) -> Result<(), Killed> {
        let what = format!("a journal in which a is: {it}");
        self.comes(&what, |rig| journalled(rig).contains(A) == it)?;
        self.known.journalled = Some(it);
        Ok(())
    }

    fn listing_holds(&mut self, uri: &'static str) -> Result<(), Killed> {
        self.comes("a stored listing", |rig| listed(rig).contains(uri))?;
        self.known.listed.push(uri);
        Ok(())
    }

    /// Mount, list, approve, read, list again, read again, revoke, end.
    fn play(&mut self) -> Result<(), Killed> {
        self.comes("a listing", |rig| {
            let out = rig.try_status();
            out.is_some_and(|s| s["servers"][0]["listing"] == "current")
        })?;
        self.known.journalled = Some(false);
        self.listing_holds(A)?;
        let detail = self.ask(&["diff", "--json", "lab/a"])?;
        let detail: Value = serde_json::from_str(&detail).unwrap();
        let set = detail["set"].as_str().unwrap();
        self.judge("approved", &["approve", "--set", set, "lab/a"])?;
        self.known.journalled = None;
        for file in ["SKILL.md", "x", "big"] {
            self.read(file)?;
        }
        self.journal_holds(true)?;
        self.rig.scene("lab", scene(&["b", "n"]));
        self.known.journalled = None;
        self.ask(&["refresh", "lab"])?;
        self.journal_holds(false)?;
        self.listing_holds(N)?;
        self.known.journalled = None;
        self.read("x")?;
        self.journal_holds(true)?;
        self.known.journalled = None;
        self.judge("revoked", &["revoke", "lab/a"])?;
        self.daemon.signal(Signal::TERM);
        self.comes("the end", |rig| rig.try_status().is_none())?;
        Ok(())
    }
}

/// Where a daemon notes the steps it takes.
fn steps_of(rig: &Rig) -> PathBuf {
    rig.dir().join("steps")
}

/// What each thread of a process does: its name, its state, and where it waits in the kernel.
fn threads(pid: i32) -> String {
    let mut lines = String::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
    {
        let Ok(task) = task else { continue };
        let read = |file: &str| fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let (stat, at) = (read("stat"), read("wchan"));
        let begin: Vec<&str> = stat.split_inclusive(' ').take(3).collect();
        lines += &format!("{} {at}\n", begin.concat());
    }
    lines
}

/// What the cache holds: each file's name, and whether it is what the name says.
fn blobs(rig: &Rig) -> BTreeMap<String, bool> {
    let files = rig.stored("cache").into_iter().map(|(p, _)| p);
    let files = files.filter(|p| p.is_file() && !is_temporary(p));
    files
        .map(|p| {
            let name = p.file_name().unwrap().to_string_lossy().into_owned();
            let right = fs::read(&p).is_ok_and(|bytes| sha256(&bytes) == name);
            (name, right)
        })
        .collect()
}

fn is_temporary(path: &Path) -> bool {
    path.file_name()
        .unwrap()
        .to_string_lossy()
        .starts_with(".tmp-")
}

fn temporary(rig: &Rig) -> Vec<PathBuf> {
    let files = [rig.stored("cache"), rig.stored("state")].concat();
    let files = files.into_iter().map(|(p, _)| p);
    files.filter(|p| is_temporary(p)).collect()
}

/// The contents of the state's files whose names begin so. Each is whole: its first line is the
/// digest of the rest.
fn records(rig: &Rig, name: &str) -> Vec<Value> {
    let files = rig.stored("state").into_iter().map(|(p, _)| p);
    let files = files.filter(|p| p.file_name().unwrap().to_string_lossy().starts_with(name));
    let texts = files.filter_map(|p| still_there(fs::read_to_string(p)));
    texts
        .map(|text| {
            let (digest, body) = text.split_once('\n').expect("two parts");
            assert_eq!(digest, format!("sha256:{}", sha256(body.as_bytes())));
            serde_json::from_str::<Value>(body).unwrap()["content"].clone()
        })
        .collect()
}

fn uris<'a>(entries: impl IntoIterator<Item = &'a Value>) -> BTreeSet<String> {
    let entries = entries.into_iter();
    entries
        .map(|e| e["uri"].as_str().unwrap().to_owned())
        .collect()
}

fn journalled(rig: &Rig) -> BTreeSet<String> {
    let journals = records(rig, "windows-");
    uris(journals.iter().flat_map(|j| j.as_array().unwrap()))
}

fn listed(rig: &Rig) -> BTreeSet<String> {
    let listings = records(rig, "listing.json");
    uris(
        listings
            .iter()
            .flat_map(|l| l["entries"].as_array().unwrap()),
    )
}

/// Plays the story with these variables set: what is known where it ends, how the daemon ended,
/// and the steps it took.
fn play(rig: &Rig, kill_at: &str) -> (Known, Out, Vec<String>) {
    rig.scene("lab", scene(&["b"]));
    let steps = steps_of(rig);
    let mut command = rig.daemon_command(&[("lab", &rig.scripted("lab"))], &EACH);
    command.env("MOUNT_SKILLS_STEPS", &steps);
    command.env("MOUNT_SKILLS_KILL_AT", kill_at);
    let known = Known {
        verdict: ["needs-approval"].into(),
        ..Known::default()
    };
    let daemon = Proc::spawn(&mut command);
    let mut story = Story { rig, daemon, known };
    let end = story.play();
    let out = story.daemon.finish(15.0);
    assert_eq!(
        end.is_ok() && out.code == Some(0),
        out.code.is_some(),
        "{out:?}"
    );
    let steps = fs::read_to_string(&steps).unwrap_or_default();
    (story.known, out, steps.lines().map(str::to_owned).collect())
}

/// What a killed daemon left must be whole, and all that the user may count on.
fn left_whole(rig: &Rig, known: &Known) {
    let (blobs, journalled) = (blobs(rig), journalled(rig));
    assert!(blobs.values().all(|right| *right), "half a file: {blobs:?}");
    let digest = |file: &str| sha256(contents()[file].as_bytes());
    for file in &known.cached {
        assert!(blobs.contains_key(&digest(file)), "{file} is lost");
    }
    if let Some(it) = known.journalled {
        assert_eq!(journalled.contains(A), it, "a in the journal");
    }
    let listed = listed(rig);
    for uri in &known.listed {
        assert!(listed.contains(*uri), "{uri} in the stored listing");
    }
}

/// The next daemon in the same place goes on from there.
fn goes_on(rig: &mut Rig, known: &Known) {
    let (blobs, journalled, reads) = (blobs(rig), journalled(rig), rig.reads("lab"));
    let left = temporary(rig);
    rig.up(&["lab"], &EACH);
    let words = rig.words();
    assert!(
        !words.contains("WARN") && !words.contains("ERROR"),
        "{words}"
    );
    // It may be writing files of its own.
    assert!(
        !left.iter().any(|p| p.exists()),
        "swept at the start: {left:?}"
    );
    let state = rig.skill_status("lab/a")["state"]
        .as_str()
        .unwrap()
        .to_owned();
    let verdict = match &*state {
        "held" | "listed" => "approved",
        other => other,
    };
    assert!(known.verdict.contains(verdict), "{verdict}: {known:?}");
    if verdict == "approved" {
        let held = journalled.contains(A);
        assert_eq!(state == "held", held, "what was journalled is held");
    }
    for (file, content) in contents() {
        let want = match verdict {
            "approved" => ok(&content),
            _ => Err("EACCES"),
        };
        assert!(
            rig.cat(&format!("lab/a/{file}")) == want,
            "{verdict}: {file}"
        );
        let uri = format!("skill://a/{file}");
        let again = rig.reads("lab").get(&uri) > reads.get(&uri);
        let cached = blobs.contains_key(&sha256(content.as_bytes()));
        assert_eq!(
            again,
            verdict == "approved" && !cached,
            "{file} is read again"
        );
    }
    assert_eq!(rig.cat("lab/b/SKILL.md"), Err("EACCES"), "never approved");
    assert_eq!(rig.status()["cache"]["rejected"], 0);
    rig.stop();
}

/// Says which case failed.
struct Case<'a>(&'a str);

impl Drop for Case<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the daemon was killed at: {}", self.0);
        }
    }
}

/// A step with as much of the name as is the same in every rig.
fn everywhere(step: &str) -> String {
    let (step, name) = step.split_once(' ').unwrap();
    let begins = ["windows-", "lab-"];
    let begin = begins.into_iter().find(|b| name.starts_with(b));
    format!("{step} {}", begin.unwrap_or(name))
}

/// The kind of a step: what is written, for a blob not which.
fn kind(step: &str) -> String {
    let (step, name) = step.split_once(' ').unwrap();
    let name = match name.len() {
        2 => "a directory of blobs",
        64 => "a blob",
        _ => name,
    };
    format!("{step} {name}")
}

#[test]
fn every_step_of_every_write() {
    let rig = Rig::new();
    let (known, out, steps) = play(&rig, "");
    assert_eq!(out.code, Some(0), "{out:?}");
    assert_eq!(known.verdict, ["revoked"].into());
    drop(rig);
    let steps: Vec<String> = steps.iter().map(|s| everywhere(s)).collect();
    let kinds: BTreeSet<String> = steps.iter().map(|s| kind(s)).collect();
    assert_eq!(kinds.len(), 25, "{kinds:#?}");
    let count = |step: &str| steps.iter().filter(|s| *s == step).count();
    let judged = count("renamed verdicts.json");
    assert_eq!(count("synced directory"), judged, "also after a power cut");
    let mut counts = BTreeMap::<&str, usize>::new();
    let mut cases = Vec::new();
    for step in &steps {
        let n = counts.entry(step).or_default();
        *n += 1;
        cases.push(format!("{n} {step}"));
    }
    let todo = Mutex::new(cases.iter());
    let killed = Mutex::new(BTreeSet::new());
    let work = || {
        loop {
            let Some(case) = todo.lock().unwrap().next() else {
                return;
            };
            let _case = Case(case);
            let mut rig = Rig::new();
            let (known, out, _) = play(&rig, case);
            rig.nothing_left();
            left_whole(&rig, &known);
            goes_on(&mut rig, &known);
            if out.code.is_none() {
                let (_, step) = case.split_once(' ').unwrap();
                killed.lock().unwrap().insert(kind(step));
            }
        }
    };
    std::thread::scope(|scope| {
        (0..AT_A_TIME).for_each(|_| drop(scope.spawn(work)));
    });
    // How often one file is written may differ from one run to the next.
    assert_eq!(killed.into_inner().unwrap(), kinds);
}

// ---- at random moments ----

/// How often the daemon is killed; the environment variable says otherwise.
const KILLS: usize = 6;
const KILLS_VAR: &str = "MOUNT_SKILLS_KILLS";
/// The readers: processes, and threads in each of them.
const READERS: (usize, usize) = (4, 25);
const FILES: usize = 40;
/// Readers must have ended this long after the daemon. They need a moment; this is for a machine
/// that is busy with other things.
const BOUND: f64 = 5.0;

/// Threads that read files and compare them with what they know, until there is an error or a
/// file tells them to stop. Not with arguments: a process that names the rig counts as left over.
const READER: &str = r#"
import errno, hashlib, json, os, random, threading, time
root, stop, known = os.environ["ROOT"], os.environ["STOP"], json.loads(os.environ["KNOWN"])
names, lock, said = sorted(known), threading.Lock(), {"reads": 0, "wrong": [], "errors": {}, "first": None, "last": 0}

def content(name):
    fd = os.open(os.path.join(root, name), os.O_RDONLY)
    try:
        parts = []
        while part := os.read(fd, 1 << 17):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)

def read():
    reads, wrong, error = 0, [], None
    while error is None and not os.path.exists(stop):
        name = random.choice(names)
        try:
            data = content(name)
        except OSError as e:
            error = (errno.errorcode[e.errno], time.time())
            break
        reads += 1
        if hashlib.sha256(data).hexdigest() != known[name]:
            wrong.append([name, len(data)])
    with lock:
        said["reads"] += reads
        said["wrong"] += wrong
        if error:
            said["errors"][error[0]] = said["errors"].get(error[0], 0) + 1
            said["first"] = min(said["first"] or error[1], error[1])
            said["last"] = max(said["last"], error[1])

threads = [threading.Thread(target=read) for _ in range(int(os.environ["THREADS"]))]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps(said))
"#;

/// What the files of a skill hold in a version, by name. Some are larger than what the kernel
/// asks for at once.
fn version(skill: &str, n: usize) -> BTreeMap<String, String> {
    let file = |i: usize| {
        let line = format!("{skill} {n} {i}\n");
        let size = if i.is_multiple_of(10) { 300_000 } else { 3_000 };
        (format!("f{i}"), line.repeat(size / line.len()))
    };
    (0..FILES).map(file).collect()
}

fn versions(n: usize) -> Value {
    let skills = ["w", "h"].map(|s| skill(s, json!(version(s, n))));
    let slow = json!([{"method": "resources/read", "delay": 0.01}]);
    json!({"skills": skills, "rules": slow, "ttlMs": 3_600_000})
}

/// How a killed daemon is followed by the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// When the guard has cleaned up.
    Later,
    /// At once, while the guard does.
    AtOnce,
    /// The guard was killed as well, so the dead mount is still there.
    NoGuard,
}

/// What came of a row of kills.
#[derive(Debug, Default)]
struct Tally {
    reads: u64,
    errors: BTreeMap<String, u64>,
    /// The last error of a reader after a kill, in seconds.
    slowest: f64,
    /// Kills that left a temporary file, and those that came before the journal was written.
    temporary: usize,
    unjournalled: usize,
}

#[test]
fn f19_readers_of_a_killed_daemon_end_and_the_next_one_goes_on() {
    let kills = std::env::var(KILLS_VAR).map_or(KILLS, |n| n.parse().unwrap());
    let mut rig = Rig::with_limit(60 + 10 * kills as u64);
    let (stop, mut tally) = (rig.dir().join("stop"), Tally::default());
    rig.scene("lab", versions(0));
    rig.up(&["lab"], &[]);
    // Held for ever, and all of it in the cache.
    for (name, content) in version("h", 0) {
        assert!(rig.cat(&format!("lab/h/{name}")) == ok(&content), "{name}");
        rig.blob(content.as_bytes());
    }
    rig.journalled(&["skill://h/SKILL.md"]);
    let mut random = rig.daemon_pid() as u64;
    for n in 1..=kills {
        let next = [Next::Later, Next::AtOnce, Next::NoGuard][n % 3];
        let _case = Case(&format!("kill {n}, the next one: {next:?}"));
        // All of `w` is new, so that reading it goes over the wire and is written to the cache.
        rig.scene("lab", versions(n));
        rig.ask(&["refresh", "lab/w"]);
        let known = version("w", n);
        let mut digests = BTreeMap::new();
        for (name, content) in &known {
            digests.insert(format!("w/{name}"), sha256(content.as_bytes()));
        }
        for (name, content) in version("h", 0) {
            digests.insert(format!("h/{name}"), sha256(content.as_bytes()));
        }
        let before = rig.seen("lab", "resources/read");
        let reader = || {
            let mut command = rig.command("python3");
            command.args(["-S", "-E", "-c", READER]);
            command.env("ROOT", rig.path("lab")).env("STOP", &stop);
            command.env("THREADS", READERS.1.to_string());
            Proc::spawn(command.env("KNOWN", json!(digests).to_string()))
        };
        let mut readers: Vec<Proc> = (0..READERS.0).map(|_| reader()).collect();
        until("a read of a new file", 20.0, || {
            rig.seen("lab", "resources/read") > before
        });
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(n as u64);
        std::thread::sleep(Duration::from_micros((random >> 33) % 400_000));
        assert!(
            readers.iter_mut().all(Proc::runs),
            "no reader fails before the kill"
        );

        if next == Next::NoGuard {
            let mount = rig.mount_point().display().to_string();
            let guards = processes_with(&mount).into_iter();
            let guards: Vec<_> = guards
                .filter(|(_, line)| line.contains("__guard"))
                .collect();
            assert_eq!(guards.len(), 1, "{guards:?}");
            kill(guards[0].0, Signal::KILL);
        }
        let killed_at = SystemTime::now();
        rig.kill_daemon();
        let said = rig.words().len();
        if next == Next::AtOnce {
            rig.up(&["lab"], &[]);
        }
        // Without the guard the kernel goes on giving the pages that it has.
        if next != Next::Later {
            fs::write(&stop, "").unwrap();
        }
        for reader in readers {
            let out: Value = serde_json::from_str(&reader.finish(BOUND).good()).unwrap();
            assert_eq!(out["wrong"], json!([]), "bytes that are not the file's");
            tally.reads += out["reads"].as_u64().unwrap();
            for (error, count) in out["errors"].as_object().unwrap() {
                *tally.errors.entry(error.clone()).or_default() += count.as_u64().unwrap();
            }
            let since = killed_at.duration_since(SystemTime::UNIX_EPOCH).unwrap();
            let after = |what: &str| out[what].as_f64().map(|at| at - since.as_secs_f64());
            let first = after("first").unwrap_or(0.0);
            assert!(first >= 0.0, "an error before the kill: {out}");
            tally.slowest = tally.slowest.max(after("last").unwrap());
        }

        if next == Next::Later {
            rig.nothing_left();
        }
        let left = temporary(&rig);
        let (blobs, journal) = (blobs(&rig), journalled(&rig));
        assert!(blobs.values().all(|right| *right), "half a file: {blobs:?}");
        assert!(journal.contains("skill://h/SKILL.md"), "{journal:?}");
        let held = journal.contains("skill://w/SKILL.md");
        let _ = fs::remove_file(&stop);
        if next != Next::AtOnce {
            tally.temporary += usize::from(!left.is_empty());
            tally.unjournalled += usize::from(!held);
            rig.scene("lab", versions(n + 1));
            rig.up(&["lab"], &[]);
            assert!(!left.iter().any(|p| p.exists()), "swept: {left:?}");
        }
        let words = &rig.words()[said..];
        assert!(
            !words.contains("WARN") && !words.contains("ERROR"),
            "{words}"
        );
        assert_eq!(rig.skill_status("lab/h")["state"], "changed");
        for (name, content) in version("h", 0) {
            let got = fs::read_to_string(rig.path(&format!("lab/h/{name}")));
            assert!(got.is_ok_and(|got| got == content), "h is held: {name}");
        }
        if next == Next::AtOnce || !held {
            continue;
        }
        assert_eq!(rig.skill_status("lab/w")["state"], "changed");
        for (name, content) in known {
            let want = match blobs.contains_key(&sha256(content.as_bytes())) {
                true => Ok(content),
                false => Err(rustix::io::Errno::STALE.raw_os_error()),
            };
            let got = fs::read_to_string(rig.path(&format!("lab/w/{name}")));
            let got = got.map_err(|e| e.raw_os_error().unwrap());
            assert!(
                got == want,
                "{name} as it is held: {:?}",
                got.map(|t| t.len())
            );
        }
    }
    eprintln!("{kills} kills: {tally:?}");
    assert!(tally.reads > 0 && !tally.errors.is_empty(), "{tally:?}");
}
