//! Many readers, large files, and servers that die under them: each file is asked for once, memory
//! is bounded, and all waits end.

use crate::rig::{Rig, is_root, kill, ok, skill, until};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// The largest file there can be beside a SKILL.md.
const LARGE: usize = (16 << 20) - 4096;
const PIECE: usize = 128 << 10;

/// Content that need not be held to be compared: a text again and again.
struct Fill {
    text: String,
    size: usize,
    /// As much of it as a piece can show, wherever the piece begins.
    block: Vec<u8>,
}

impl Fill {
    fn new(text: &str, size: usize) -> Self {
        let block = text.bytes().cycle().take(size.min(PIECE) + text.len());
        Self {
            text: text.to_owned(),
            size,
            block: block.collect(),
        }
    }

    fn scene(&self) -> Value {
        json!({"fill": self.text, "size": self.size})
    }

    fn has(&self, at: usize, bytes: &[u8]) -> bool {
        let start = at % self.text.len();
        at + bytes.len() <= self.size && self.block[start..].starts_with(bytes)
    }
}

/// A file in the mount and what it holds.
type Known = (PathBuf, Fill);

/// Reads a file to its end. Bytes that are wrong fail the test, also where an error follows.
fn read((path, want): &Known) -> io::Result<()> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; want.size.min(PIECE)];
    let mut at = 0;
    loop {
        let n = file.read(&mut buffer)?;
        assert!(want.has(at, &buffer[..n]), "{}: at {at}", path.display());
        at += n;
        if n == 0 {
            assert_eq!(at, want.size, "{}", path.display());
            return Ok(());
        }
    }
}

/// Does this with all of the files at once, each in a thread of its own; the results.
fn at_once<T: Send>(files: &[Known], work: impl Fn(&Known) -> T + Sync) -> Vec<T> {
    let start = Barrier::new(files.len());
    let (start, work) = (&start, &work);
    std::thread::scope(|s| {
        let reader = |file| {
            let thread = std::thread::Builder::new().stack_size(256 << 10);
            let run = move || {
                start.wait();
                work(file)
            };
            thread.spawn_scoped(s, run).unwrap()
        };
        let readers: Vec<_> = files.iter().map(reader).collect();
        let join = |reader: std::thread::ScopedJoinHandle<'_, T>| reader.join().unwrap();
        readers.into_iter().map(join).collect()
    })
}

/// Reads all of them at once; how many came to what.
fn read_at_once(files: &[Known]) -> BTreeMap<String, usize> {
    let mut outcomes = BTreeMap::new();
    for result in at_once(files, read) {
        let outcome = result.map_or_else(|e| e.to_string(), |()| "read".to_owned());
        *outcomes.entry(outcome).or_default() += 1;
    }
    outcomes
}

fn all_read(n: usize) -> BTreeMap<String, usize> {
    BTreeMap::from([("read".to_owned(), n)])
}

/// Skills of a label with these many files of this size each.
fn skills(rig: &Rig, label: &str, skills: usize, each: usize, size: usize) -> (Value, Vec<Known>) {
    let mut files = Vec::new();
    let mut made = Vec::new();
    for s in 0..skills {
        let mut map = serde_json::Map::new();
        for n in 0..each {
            let fill = Fill::new(&format!("{label} {s} {n} \"file\"\n"), size);
            map.insert(format!("{n}"), fill.scene());
            files.push((rig.path(&format!("{label}/s{s}/{n}")), fill));
        }
        made.push(skill(&format!("s{s}"), map.into()));
    }
    (json!({"skills": made}), files)
}

/// Asserts that each of so many files was asked for exactly once.
#[track_caller]
fn each_once(rig: &Rig, label: &str, files: usize) {
    let reads = rig.reads(label);
    let again: Vec<_> = reads.iter().filter(|(_, n)| **n != 1).collect();
    assert!(again.is_empty(), "read more than once: {again:?}");
    assert_eq!(reads.len(), files);
}

#[test]
fn hr119_f22_a_thousand_readers_of_one_cold_file_are_one_read() {
    let mut rig = Rig::new();
    let (mut scene, files) = skills(&rig, "lab", 1, 1, 1_000_000);
    // Long enough for all of them to be waiting.
    scene["rules"] = json!([{"method": "resources/read", "delay": 2}]);
    rig.scene("lab", scene);
    rig.up(&["lab"], &["--timeout", "60"]);
    let (path, fill) = &files[0];
    let readers = (0..1000).map(|_| (path.clone(), Fill::new(&fill.text, fill.size)));
    let readers: Vec<Known> = readers.collect();
    assert_eq!(read_at_once(&readers), all_read(1000));
    each_once(&rig, "lab", 1);
}

#[test]
fn hr119_f22_a_thousand_files_read_at_once_are_each_read_once() {
    let mut rig = Rig::new();
    let (scene, files) = skills(&rig, "lab", 4, 250, 16 << 10);
    rig.scene("lab", scene);
    rig.up(&["lab"], &["--timeout", "60"]);
    for pass in ["cold", "from the kernel", "from our memory"] {
        if pass == "from our memory" && is_root() {
            Rig::drop_kernel_caches();
        }
        assert_eq!(read_at_once(&files), all_read(1000), "{pass}");
        each_once(&rig, "lab", 1000);
    }
}

/// A memory cgroup with a limit, where we may make one.
struct Limited {
    dir: PathBuf,
    /// Where a process goes that is not to count.
    outside: PathBuf,
    kills: &'static str,
}

impl Limited {
    fn new(bytes: u64) -> Option<Self> {
        let name = format!("mount-skills-it-{}", std::process::id());
        let versions = [
            (
                "/sys/fs/cgroup/memory",
                "memory.limit_in_bytes",
                "memory.oom_control",
            ),
            ("/sys/fs/cgroup", "memory.max", "memory.events"),
        ];
        versions.into_iter().find_map(|(root, limit, kills)| {
            let dir = Path::new(root).join(&name);
            fs::create_dir(&dir).ok()?;
            let outside = Path::new(root).join("cgroup.procs");
            let group = Self {
                dir,
                outside,
                kills,
            };
            let mut limit = File::options()
                .write(true)
                .open(group.dir.join(limit))
                .ok()?;
            limit.write_all(bytes.to_string().as_bytes()).ok()?;
            Some(group)
        })
    }

    fn kills(&self) -> String {
        let text = fs::read_to_string(self.dir.join(self.kills)).unwrap();
        let count = text.lines().find_map(|l| l.strip_prefix("oom_kill "));
        count.unwrap().to_owned()
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let end = Instant::now() + Duration::from_secs(5);
        // Its processes end with the rig.
        while fs::remove_dir(&self.dir).is_err() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(15));
        }
    }
}

/// Goes to a cgroup, and on as another program.
const MOVE: &str = "echo $$ > \"$0\" && exec \"$@\"";

/// Mounts scripted servers, the daemon alone in a cgroup if there is one.
fn up_in(rig: &mut Rig, group: Option<&Limited>, labels: &[&str]) {
    let Some(group) = group else {
        return rig.up(labels, &["--timeout", "80"]);
    };
    let target = |label: &&str| {
        let words = shlex::split(&rig.scripted(label)).unwrap();
        let outside = group.outside.display().to_string();
        let words = ["sh", "-c", MOVE, &outside]
            .into_iter()
            .chain(words.iter().map(|w| &**w));
        shlex::try_join(words).unwrap()
    };
    let targets: Vec<String> = labels.iter().map(target).collect();
    let servers = labels.iter().copied().zip(targets.iter().map(|t| &**t));
    let servers: Vec<(&str, &str)> = servers.collect();
    let mut command = rig.command("sh");
    command
        .args(["-c", MOVE])
        .arg(group.dir.join("cgroup.procs"))
        .arg(&rig.bin);
    rig.daemon_args(&mut command, &servers, &["--timeout", "80"]);
    rig.mount_with(command);
    labels.iter().for_each(|l| rig.ready(l));
}

#[test]
fn f30_sixty_four_large_files_at_once_fit_into_256_mib() {
    let limit = 256;
    let group = Limited::new(limit << 20);
    let mut rig = Rig::new();
    let labels = ["a", "b", "c", "d"];
    let mut files = Vec::new();
    for label in labels {
        let (scene, some) = skills(&rig, label, 16, 1, LARGE);
        rig.scene(label, scene);
        files.extend(some);
    }
    for pass in ["from the servers", "from the disk"] {
        up_in(&mut rig, group.as_ref(), &labels);
        assert_eq!(read_at_once(&files), all_read(64), "{pass}");
        // None twice: a file that is being read is not let go for another one.
        labels.iter().for_each(|l| each_once(&rig, l, 16));
        let peak = rig.daemon_peak_mib();
        assert!(peak < limit, "{pass}: the daemon took {peak} MiB");
        if pass == "from the servers" {
            until("all to be on the disk", 30.0, || {
                let stored = rig.stored("cache");
                stored.iter().filter(|(path, _)| path.is_file()).count() == files.len()
            });
        }
        rig.stop();
    }
    if let Some(group) = &group {
        assert_eq!(group.kills(), "0", "killed for its memory");
    }
}

#[test]
fn f30_a_server_that_hangs_on_large_files_holds_up_no_other() {
    let mut rig = Rig::new();
    let (mut scene, hung) = skills(&rig, "hung", 4, 1, LARGE);
    scene["rules"] = json!([{"method": "resources/read", "hang": true}]);
    rig.scene("hung", scene);
    let (scene, good) = skills(&rig, "good", 2, 1, LARGE);
    rig.scene("good", scene);
    rig.up(&["hung", "good"], &["--timeout", "10"]);
    std::thread::scope(|s| {
        let waiting = s.spawn(|| at_once(&hung, |file| read(file).map_err(|e| e.raw_os_error())));
        until("the hung server to have all it is given", 10.0, || {
            rig.reads("hung").len() >= 2
        });
        assert_eq!(read_at_once(&good), all_read(2));
        assert!(!waiting.is_finished(), "it was not waited for");
        let outcomes = waiting.join().unwrap();
        assert_eq!(outcomes, vec![Err(Some(libc::ETIMEDOUT)); 4]);
    });
}

#[test]
fn f23_a_hundred_reads_wait_for_a_server_that_is_killed_and_it_is_started_once() {
    let mut rig = Rig::new();
    let (mut scene, files) = skills(&rig, "lab", 1, 100, 5000);
    scene["rules"] = json!([{"method": "resources/read", "process": 1, "hang": true}]);
    rig.scene("lab", scene);
    rig.up(&["lab"], &["--timeout", "60"]);
    std::thread::scope(|s| {
        let readers = s.spawn(|| at_once(&files, |f| read(f).map_err(|e| e.raw_os_error())));
        until("all to wait", 20.0, || rig.reads("lab").len() == 100);
        let killed = Instant::now();
        kill(rig.server_pid("lab"), Signal::KILL);
        for outcome in readers.join().unwrap() {
            assert!(
                matches!(outcome, Ok(()) | Err(Some(libc::EHOSTDOWN))),
                "{outcome:?}"
            );
        }
        let took = killed.elapsed();
        assert!(took < Duration::from_secs(15), "they waited {took:?}");
    });
    until("the server to be back", 20.0, || read(&files[0]).is_ok());
    assert_eq!(read_at_once(&files), all_read(100));
    assert_eq!(rig.log("lab", "start").len(), 2, "one start for all");
}

#[test]
fn f23_readers_outlast_a_server_that_dies_again_and_again() {
    let deaths = 3;
    let mut rig = Rig::new();
    let (mut scene, files) = skills(&rig, "lab", 1, 120, 5000);
    let death = |process| json!({"method": "resources/read", "process": process, "skip": 20, "times": 1, "exit": 9});
    scene["rules"] = (1..=deaths).map(death).collect();
    rig.scene("lab", scene);
    rig.up(&["lab"], &["--timeout", "60"]);
    let errors = at_once(&files, |file| {
        let mut seen = Vec::new();
        until("a file to be read", 60.0, || match read(file) {
            Ok(()) => true,
            Err(e) => {
                seen.push(e.raw_os_error());
                false
            }
        });
        seen
    });
    let other = errors
        .iter()
        .flatten()
        .find(|e| **e != Some(libc::EHOSTDOWN));
    assert_eq!(other, None);
    assert_eq!(
        rig.log("lab", "start").len(),
        deaths + 1,
        "one start for each death"
    );
    assert_eq!(rig.cat("lab/s0/SKILL.md"), ok(&crate::rig::skill_md("s0")));
}
