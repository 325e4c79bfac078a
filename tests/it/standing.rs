//! The six invariants that hold whatever goes wrong, looked after while a fault is under way.
//!
//! - **I1** a reader gets bytes that its entry describes, or none: [`Standing::read`].
//! - **I2** no reader waits past its bound: [`Standing::read`], and each probe of I3.
//! - **I3** other labels go on answering: a thread reads from the daemon, past the kernel's
//!   cache, until the fault is over.
//! - **I4** the daemon neither panics nor grows, gives back its descriptors, and leaves none of its
//!   children dead and unburied.
//! - **I5** nothing wrong is in the cache, and nothing half-written.
//! - **I6** service is back afterwards, in the same mount.
//!
//! A fault starts after [`Standing::begin`] and is over before [`Standing::end`], which checks the
//! last three. Both belong to one daemon: a test that ends it on purpose has one pair for each.

use crate::rig::{Content, Proc, Rig, is_root, ok, sha256, skill, until};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The label that no fault is done to.
pub(crate) const CONTROL: &str = "control";
/// What its one file holds.
const STEADY: &str = "steady\n";
/// A machine that does other things as well may hold anything up for so long.
const SLACK: Duration = Duration::from_secs(4);
/// But not every second answer from memory.
const USUAL: Duration = Duration::from_millis(250);
/// Memory of the daemon at most, in MiB: 256, and what it keeps of checked bytes.
const MEMORY: u64 = 256 + 64;
/// Descriptors that may come and go by themselves, as of a socket that is asked just now.
const SPARE: usize = 2;

/// The invariants of one daemon under a fault.
pub(crate) struct Standing {
    timeout: Duration,
    right: BTreeMap<String, Vec<String>>,
    descriptors: Option<usize>,
    over: Arc<AtomicBool>,
    control: Option<JoinHandle<Result<usize, String>>>,
}

impl Rig {
    /// Mounts the scripted servers of these labels and the one that no fault is done to, with a
    /// deadline for reads in seconds.
    #[track_caller]
    pub(crate) fn up_beside_control(&mut self, labels: &[&str], timeout: &str, flags: &[&str]) {
        self.scene(CONTROL, control());
        let labels = [labels, &[CONTROL]].concat();
        self.up(&labels, &[&["--timeout", timeout], flags].concat());
    }
}

/// What the server does that no fault is done to.
pub(crate) fn control() -> Value {
    json!({"skills": [skill("c", json!({"steady.txt": STEADY}))]})
}

impl Standing {
    /// Starts to look. `right` says what each file that the test reads holds; a file that changes
    /// may be there more than once.
    #[track_caller]
    pub(crate) fn begin(rig: &Rig, timeout: f64, right: &[(&str, &str)]) -> Self {
        let file = "control/c/steady.txt";
        assert_eq!(rig.cat(file), ok(STEADY));
        let steady = rig.path(file);
        let user = rig.is_of_another().then(|| rig.command("/usr/bin/python3"));
        let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (path, content) in right {
            all.entry((*path).to_owned())
                .or_default()
                .push((*content).to_owned());
        }
        let over = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&over);
        Self {
            timeout: Duration::from_secs_f64(timeout),
            right: all,
            descriptors: descriptors(rig),
            control: Some(std::thread::spawn(move || match user {
                None => probe(&steady, &flag),
                Some(python) => probe_as(python, &steady, &flag),
            })),
            over,
        }
    }

    /// `cat` of a file. Checks I1 and I2.
    #[track_caller]
    pub(crate) fn read(&self, rig: &Rig, path: &str) -> Content {
        self.outcome(rig, path, rig.cat_later(path))
    }

    /// What a `cat` came to that was started a moment ago. Checks I1 and I2.
    #[track_caller]
    pub(crate) fn outcome(&self, rig: &Rig, path: &str, cat: Proc) -> Content {
        let bound = self.timeout + SLACK;
        let content = rig.outcome(path, cat.finish(bound.as_secs_f64()));
        if let Ok(text) = &content {
            let right = self.right.get(path);
            assert!(
                right.is_some_and(|r| r.contains(text)),
                "I1: {path} gave {} bytes that it never held: {:.200?}",
                text.len(),
                text
            );
        }
        content
    }

    /// The fault is over: checks I3 to I6. Of a file that changed, the last content is expected.
    #[track_caller]
    pub(crate) fn end(mut self, rig: &Rig) {
        for (path, contents) in &self.right {
            let want = ok(contents.last().unwrap());
            until(&format!("I6: {path} to be right again"), 40.0, || {
                self.read(rig, path) == want
            });
        }
        self.over.store(true, Ordering::Relaxed);
        let control = self.control.take().unwrap().join().unwrap();
        let probes = control.unwrap_or_else(|e| panic!("I3: the other label: {e}"));
        assert!(probes > 0, "I3: nothing was asked");
        assert!(!rig.words().contains("panicked"), "I4: {}", rig.words());
        needed_threads_live(rig);
        let peak = rig.daemon_peak_mib();
        assert!(peak <= MEMORY, "I4: the daemon took {peak} MiB");
        until("I4: no zombie of the daemon's", 10.0, || {
            zombies(rig.daemon_pid()).is_empty()
        });
        until("I4: the descriptors to be given back", 15.0, || {
            descriptors(rig) <= self.descriptors.map(|n| n + SPARE)
        });
        clean_cache(rig);
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(control) = self.control.take() {
            let _ = control.join();
        }
    }
}

/// I5: each file in the cache is what its name says, and none is half-written.
#[track_caller]
pub(crate) fn clean_cache(rig: &Rig) {
    until("I5: nothing wrong in the cache", 10.0, || {
        let files = rig.stored("cache").into_iter().map(|(path, _)| path);
        files.filter(|p| p.is_file()).all(|p| {
            let name = p.file_name().unwrap().to_string_lossy().into_owned();
            fs::read(&p).is_ok_and(|bytes| sha256(&bytes) == name)
        })
    });
}

/// How many descriptors the daemon has; only root may look.
fn descriptors(rig: &Rig) -> Option<usize> {
    let dir = format!("/proc/{}/fd", rig.daemon_pid());
    is_root().then(|| fs::read_dir(dir).unwrap().count())
}

/// The names of a process's threads.
pub(crate) fn threads(pid: i32) -> BTreeSet<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.map(|name| name.trim_end().to_owned()).collect()
}

/// I4: the threads live without which a mount is none.
#[track_caller]
pub(crate) fn needed_threads_live(rig: &Rig) {
    let audit = (!rig.status()["audit"].is_null()).then_some("audit");
    let there = threads(rig.daemon_pid());
    for thread in ["writer", "notify", "spawner", "log"]
        .into_iter()
        .chain(audit)
    {
        assert!(there.contains(thread), "I4: no {thread} among {there:?}");
    }
}

/// The children of a process that are dead and that it has not waited for.
pub(crate) fn zombies(parent: i32) -> Vec<i32> {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|e| e.file_name().to_string_lossy().parse::<i32>().ok());
    pids.filter(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let mut fields = stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split(' ')
            .skip(1);
        (fields.next(), fields.next()) == (Some("Z"), Some(&*parent.to_string()))
    })
    .collect()
}

/// The same as [`probe`] in a process of the user whose mount it is: nobody else may look.
fn probe_as(mut python: Command, path: &Path, over: &AtomicBool) -> Result<usize, String> {
    // The path is no argument: leftovers are found by their command lines.
    python.args(["-S", "-c", PROBE]).env("STEADY", path);
    python
        .env("CONTENT", STEADY)
        .env("SLACK", SLACK.as_secs().to_string());
    python
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = python.spawn().map_err(|e| e.to_string())?;
    while !over.load(Ordering::Relaxed) && child.try_wait().is_ok_and(|s| s.is_none()) {
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(child.stdin.take());
    let out = child.wait_with_output().map_err(|e| e.to_string())?;
    let said = String::from_utf8_lossy(&out.stdout);
    said.trim()
        .parse()
        .map_err(|_| format!("{said}{}", String::from_utf8_lossy(&out.stderr)))
}

const PROBE: &str = r#"
import os, select, time
want, slack = os.environb[b"CONTENT"], float(os.environ["SLACK"])
fd = os.open(os.environ["STEADY"], os.O_RDONLY | os.O_DIRECT)
probes = 0
over = False
while not over:
    start = time.monotonic()
    got = os.pread(fd, 64, 0)
    took = time.monotonic() - start
    assert got == want and took < slack, (probes, got, took)
    probes += 1
    over = select.select([0], [], [], 0.02)[0]
print(probes)
"#;

/// Reads a file from the daemon's memory again and again; how often, or what was wrong.
fn probe(path: &Path, over: &AtomicBool) -> Result<usize, String> {
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .map_err(|e| format!("{}: {e}", path.display()))?;
    let mut took = Vec::new();
    // Once at least: a fault may be over at once.
    loop {
        let start = Instant::now();
        let mut bytes = [0; 64];
        let read = file.read_at(&mut bytes, 0);
        if read.as_ref().ok() != Some(&STEADY.len()) || !bytes.starts_with(STEADY.as_bytes()) {
            return Err(format!("probe {}: {read:?}", took.len()));
        }
        took.push(start.elapsed());
        if start.elapsed() > SLACK {
            return Err(format!("probe {} took {:?}", took.len(), start.elapsed()));
        }
        if over.load(Ordering::Relaxed) {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    took.sort_unstable();
    match took.get(took.len() / 2) {
        Some(median) if *median > USUAL => Err(format!("half of them took {median:?} and more")),
        _ => Ok(took.len()),
    }
}
