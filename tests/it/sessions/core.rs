//! A session through the daemon's core: the code that reads replies, the host, its cache and its
//! state on disk; no server and no mount.

use super::mutation::{Ask, Fate, Session};
use super::oracle::{self, Given};
use crate::rig::sha256;
use mount_skills::domain::manifest::{Declined, Entry};
use mount_skills::domain::skill::{Approval, Policy, Scope};
use mount_skills::domain::tree::{Kind, Lookup, ROOT};
use mount_skills::domain::verify::Untrusted;
use mount_skills::host::{Dynamic, Host, Server};
use mount_skills::source::listing::{Gather, Question};
use mount_skills::source::wire::{self, DirChild};
use mount_skills::source::{Answer, Era, Event, Figures, Link, Listing, Peer, Source, SourceError};
use mount_skills::store::cache::{Cache, DEFAULT_CAP};
use mount_skills::store::state::State;
use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

/// After this long nothing is under way and no failure is remembered.
const SETTLED: Duration = Duration::from_millis(1500);
/// No question to the host takes longer, by the clock that stands still while it works.
const BOUND: Duration = Duration::from_secs(120);
const LABEL: &str = "lab";

/// A server that answers as the session says.
struct Replay {
    session: Session,
    now: Mutex<Now>,
}

struct Now {
    version: usize,
    requests: usize,
    up: bool,
}

impl Replay {
    fn ask(&self, ask: &Ask) -> Result<String, SourceError> {
        let mut now = self.now.lock().unwrap();
        if !now.up {
            return Err(SourceError::Down("gone".into()));
        }
        now.requests += 1;
        if self.session.switch.is_some_and(|n| now.requests > n) {
            now.version = 1;
        }
        let unknown = SourceError::Rejected {
            code: -32602,
            message: "unknown\u{1b}[2J".into(),
        };
        match self.session.reply(now.version, ask) {
            Some(r) if r.fate == Fate::Answer => Ok(r.text.clone()),
            Some(r) if r.fate == Fate::Silent => Err(SourceError::TimedOut(Duration::from_secs(1))),
            _ => Err(unknown),
        }
    }

    fn gather(&self) -> Result<Listing, SourceError> {
        let mut gather = Gather::default();
        while let Some(question) = gather.next().cloned() {
            let reply = match question {
                Question::Page(cursor) => self.ask(&Ask::Page(cursor)),
                Question::Entry(uri) => self.ask(&Ask::Get(uri.to_string())),
            };
            gather.answer(reply)?;
        }
        Ok(gather.listing())
    }
}

/// The same server, as the host has it.
struct Fake(Arc<Replay>);

impl Source for Fake {
    fn get<'a>(&'a self, uri: &'a str, _: Instant) -> Answer<'a, Result<Entry, Declined>> {
        Box::pin(async move { wire::get_result(&self.0.ask(&Ask::Get(uri.into()))?, uri) })
    }

    fn read<'a>(&'a self, uri: &'a str, size: u64, _: Instant) -> Answer<'a, Untrusted> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            wire::read_result(&self.0.ask(&Ask::Read(uri.into()))?, uri, size)
        })
    }

    fn read_directory<'a>(&'a self, _: &'a str, _: Instant) -> Answer<'a, Vec<DirChild>> {
        unreachable!("it declares no directories")
    }

    fn list(&self, _: Instant) -> Answer<'_, Listing> {
        Box::pin(async move { self.0.gather() })
    }

    fn refresh(&self) {}

    fn figures(&self) -> Figures {
        Figures::default()
    }
}

/// One run of the daemon's core over a server.
struct Core {
    runtime: tokio::runtime::Runtime,
    host: Arc<Host>,
    replay: Arc<Replay>,
    work: tokio::task::JoinHandle<()>,
}

/// The threads of a core; a panic on one of them is a fault.
pub(super) const THREADS: &str = "session-core";

impl Core {
    fn start(dir: &Path, replay: &Arc<Replay>, policy: Policy) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .thread_name(THREADS)
            .build()
            .unwrap();
        let label = LABEL.parse().unwrap();
        let cache = Cache::open(&dir.join("cache"), DEFAULT_CAP).unwrap();
        let server = Server {
            shown: "replay".into(),
            identity: "id".into(),
            shelf: Some(cache.shelf(&label, "id").unwrap()),
            state: Some(State::open(&dir.join("state"), &label, "id", Path::new("/m")).unwrap()),
            locked: None,
            dynamic: Dynamic::Declined,
            label,
        };
        let inside = runtime.enter();
        let (host, inbox) = Host::new(
            vec![server],
            policy,
            Some(cache),
            "/m".into(),
            Duration::from_secs(10),
        );
        let (changes, batches) = mpsc::channel();
        let work = runtime.spawn(Arc::clone(&host).run(inbox, changes));
        // The kernel, which is told and has no wishes.
        runtime.spawn(async move {
            loop {
                while let Ok(batch) = batches.try_recv() {
                    let _ = batch
                        .done
                        .map(|done: tokio::sync::oneshot::Sender<()>| done.send(()));
                }
                sleep(Duration::from_millis(50)).await;
            }
        });
        host.attach(1, Arc::new(Fake(Arc::clone(replay))));
        drop(inside);
        Self {
            runtime,
            host,
            replay: Arc::clone(replay),
            work,
        }
    }

    /// Runs something to its end, within its bound.
    fn run<T>(&self, what: &str, work: impl Future<Output = T>) -> T {
        let bounded = async { timeout(BOUND, work).await };
        self.runtime
            .block_on(bounded)
            .unwrap_or_else(|_| panic!("I2: {what} did not end"))
    }

    fn settle(&self) {
        self.runtime.block_on(async { sleep(SETTLED).await });
        assert!(
            !self.work.is_finished(),
            "I4: the writer of the tree has ended"
        );
    }

    /// A listing that the session asked for.
    fn list(&self) {
        self.host.event(
            1,
            match self.replay.gather() {
                Ok(listing) => Event::Listed(listing),
                Err(e) => Event::ListFailed(e),
            },
        );
        self.settle();
    }

    /// The inodes of the files below the label, by path; checks their names.
    fn files(&self, given: &Given) -> BTreeMap<String, u64> {
        let tree = self.host.tree();
        let mut files = BTreeMap::new();
        let mut todo = vec![(String::new(), tree_root(&self.host))];
        while let Some((above, dir)) = todo.pop() {
            let children = match tree.children(dir, 0) {
                Ok(children) => children,
                Err(Lookup::Unknown(_)) => continue,
                Err(e) => panic!("{above:?}: {e:?}"),
            };
            for child in children {
                let name = child.name;
                let odd = matches!(name, "" | "." | "..")
                    || name.len() > 255
                    || name.contains('/')
                    || name.chars().any(char::is_control);
                assert!(!odd, "an unsafe name: {name:?} in {above:?}");
                let at = if above.is_empty() {
                    name.to_owned()
                } else {
                    format!("{above}/{name}")
                };
                let known = matches!(tree.lookup(dir, name), Lookup::Found(attr) if attr.ino == child.attr.ino);
                assert!(known, "{at:?} is listed and not found");
                if matches!(child.attr.kind, Kind::SkillDir | Kind::OpenDir) {
                    todo.push((at, child.attr.ino));
                } else {
                    assert!(given.may_be(&at), "nobody named {at:?}");
                    assert!(
                        files.insert(at, child.attr.ino).is_none(),
                        "a name twice in {above:?}"
                    );
                }
            }
        }
        files
    }

    /// Reads all files in some order; I1 of each.
    fn read(&self, given: &Given, order: u64) -> BTreeMap<String, Vec<u8>> {
        let mut files: Vec<_> = self.files(given).into_iter().collect();
        // Any order will do, as long as it differs from case to case.
        files.sort_by_key(|(path, _)| sha256(format!("{order}{path}").as_bytes()));
        let mut got = BTreeMap::new();
        for (path, ino) in files {
            // An earlier read may have found another entry.
            let Some(attr) = self.host.tree().attr(ino) else {
                continue;
            };
            // Of an empty file the kernel asks nothing.
            if attr.size == 0 && attr.kind == Kind::File {
                let wrong = given.wrong(&path, b"");
                assert!(wrong.is_none(), "I1: {}", wrong.unwrap());
            }
            if let Ok(bytes) = self.run("a read", self.host.read(ino)) {
                let bytes = bytes.bytes().to_vec();
                let wrong = given.wrong(&path, &bytes);
                assert!(wrong.is_none(), "I1: {}", wrong.unwrap());
                let size = bytes.len() as u64;
                assert_eq!(attr.size, size, "the size shown of {path:?}");
                got.insert(path, bytes);
            }
        }
        self.settle();
        got
    }

    /// The commands that tell about skills, and those that move them.
    fn command(&self, policy: Policy) {
        let status = self.host.status();
        serde_json::to_string(&status).unwrap();
        let skills: Vec<String> = status.servers[0]
            .skills
            .iter()
            .map(|s| s.path.clone())
            .collect();
        for skill in skills {
            if let Ok(detail) = self.host.describe(&skill)
                && policy.approval == Approval::Each
            {
                let _ = self.run(
                    "an approval",
                    self.host.approve(&skill, &detail.set, Scope::Read),
                );
            }
        }
        let _ = self.run("a refresh", self.host.refresh(LABEL));
        self.settle();
    }
}

fn tree_root(host: &Host) -> u64 {
    match host.tree().lookup(ROOT, LABEL) {
        Lookup::Found(attr) => attr.ino,
        other => panic!("the label: {other:?}"),
    }
}

/// What a session came to.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Came {
    /// Reads that gave bytes.
    pub(super) read: u64,
    /// Files in the tree that gave none.
    pub(super) refused: u64,
    /// Skills that had to load, and did.
    pub(super) untouched: u64,
}

impl std::ops::Add for Came {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self {
            read: self.read + more.read,
            refused: self.refused + more.refused,
            untouched: self.untouched + more.untouched,
        }
    }
}

/// Plays a session: each version is listed, read, refreshed and read again; then a restart
/// without the server reads what is left.
pub(super) fn play(session: &Session, policy: Policy, order: u64) -> Came {
    // What is proved here is no fsync.
    let shm = Path::new("/dev/shm");
    let dir = if shm.is_dir() {
        tempfile::tempdir_in(shm)
    } else {
        tempfile::tempdir()
    }
    .unwrap();
    let given = Given::of(session);
    let now = Now {
        version: 0,
        requests: 0,
        up: true,
    };
    let replay = Arc::new(Replay {
        session: session.clone(),
        now: Mutex::new(now),
    });
    let core = Core::start(dir.path(), &replay, policy);
    let peer = Peer {
        version: "2026-07-28".into(),
        era: Era::Discover,
        name: "replay".into(),
        skills: true,
        directory_read: false,
        resources: true,
        instructions: None,
    };
    core.host.event(1, Event::Link(Link::Ready(peer)));
    let mut came = Came::default();
    for version in 0..session.versions.len() {
        replay.now.lock().unwrap().version = version;
        core.list();
        core.read(&given, order);
        core.command(policy);
        let got = core.read(&given, order ^ 1);
        let files = core.files(&given);
        came.read += got.len() as u64;
        came.refused += files.keys().filter(|f| !got.contains_key(*f)).count() as u64;
        let other = replay.now.lock().unwrap().version != version;
        if policy.approval == Approval::Server && !other {
            for (entry, contents) in oracle::untouched(session, version) {
                for (row, bytes) in entry.rows.iter().zip(&contents) {
                    let read = got.get(&row.path);
                    assert_eq!(
                        read,
                        Some(bytes),
                        "nothing of {:?} was touched: {:?}; {:?}",
                        entry.uri,
                        row.path,
                        core.host.status().servers[0]
                    );
                }
                came.untouched += 1;
            }
        }
    }
    drop(core);
    replay.now.lock().unwrap().up = false;
    let core = Core::start(dir.path(), &replay, policy);
    core.host.event(
        1,
        Event::Link(Link::Down {
            reason: "gone".into(),
        }),
    );
    core.settle();
    core.read(&given, order);
    drop(core);
    clean(dir.path(), &given);
    came
}

/// I5: each blob is what its name says, and was carried by a reply.
fn clean(dir: &Path, given: &Given) {
    let mut todo = vec![dir.join("cache")];
    while let Some(at) = todo.pop() {
        for entry in std::fs::read_dir(&at).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                todo.push(path);
                continue;
            }
            let (name, bytes) = (
                path.file_name().unwrap().to_string_lossy().into_owned(),
                std::fs::read(&path).unwrap(),
            );
            if name.len() == 64 {
                assert_eq!(sha256(&bytes), name, "I5: a blob that is something else");
                assert!(given.carried(&bytes), "I5: a blob that nobody sent");
            }
        }
    }
}
