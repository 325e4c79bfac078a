//! The host under schedules that shuttle chooses: see [`crate::sync`].
//!
//! Threads read as those of the kernel do, while the writer, its commands and the server go on.
//! Each step may come between any two locks or waits of another. *Absent:* the kernel's pages
//! (`fuse::parked` has its own checks), the connection, and several servers.

use super::*;
use crate::domain::digest::Digest;
use crate::domain::skill::Approval;
use crate::domain::tree::{Lookup, ROOT};
use crate::domain::verify::Untrusted;
use crate::source::{Answer, Figures};
use crate::sync::check;
use serde_json::json;
use shuttle::future::{block_on, yield_now};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use shuttle::thread;

const RELEASE: Policy = policy(Hold::Release, Approval::Server);
const NONE: Policy = policy(Hold::None, Approval::Server);

const fn policy(hold: Hold, approval: Approval) -> Policy {
    Policy { hold, approval }
}

fn content(file: &str, version: usize) -> String {
    match file {
        "SKILL.md" => "---\nname: s\ndescription: d\n---\n".into(),
        _ => format!("{file} {version}\n"),
    }
}

/// What the server publishes of a skill in a version.
fn entry(name: &str, version: usize) -> Arc<Entry> {
    let rows = ["SKILL.md", "x", "y"].map(|file| {
        let content = content(file, version);
        let digest = Digest::of(content.as_bytes()).to_string();
        json!({"uri": format!("skill://{name}/{file}"), "digest": digest, "size": content.len()})
    });
    let value = json!({"uri": format!("skill://{name}/SKILL.md"), "resources": rows,
        "frontmatter": {"name": name, "description": "d"}});
    Arc::new(Entry::parse(&value).unwrap())
}

fn listing(entries: Vec<Arc<Entry>>) -> Event {
    Event::Listed(Listing {
        entries,
        declined: Vec::new(),
        truncated: None,
        ttl: MAX_TTL,
    })
}

/// Often nothing and sometimes long, so that much can happen meanwhile.
async fn a_while() {
    const TURNS: [u32; 6] = [0, 0, 1, 3, 30, 100];
    let turns = TURNS[thread_rng().gen_range(0..TURNS.len())];
    for _ in 0..turns {
        yield_now().await;
    }
}

/// A server of one skill, in the version that it is told.
#[derive(Debug)]
struct Fake {
    version: AtomicUsize,
    /// Reads of a file at the same time, and what they may be at most.
    under_way: [AtomicUsize; 2],
    most: usize,
}

impl Source for Fake {
    fn get<'a>(&'a self, _: &'a str, _: Instant) -> Answer<'a, Result<Entry, Declined>> {
        Box::pin(async move {
            a_while().await;
            let entry = entry("s", self.version.load(Ordering::SeqCst));
            a_while().await;
            Ok(Ok(Arc::unwrap_or_clone(entry)))
        })
    }

    fn read<'a>(&'a self, uri: &'a str, _: u64, _: Instant) -> Answer<'a, Untrusted> {
        Box::pin(async move {
            let file = uri.rsplit('/').next().unwrap();
            let under_way = &self.under_way[usize::from(file == "x")];
            let others = under_way.fetch_add(1, Ordering::SeqCst);
            assert!(others < self.most, "a fetch for each reader");
            a_while().await;
            let content = content(file, self.version.load(Ordering::SeqCst));
            a_while().await;
            under_way.fetch_sub(1, Ordering::SeqCst);
            Ok(Untrusted::new(content.into_bytes()))
        })
    }

    fn list(&self, _: Instant) -> Answer<'_, Listing> {
        unreachable!()
    }

    fn read_directory<'a>(&'a self, _: &'a str, _: Instant) -> Answer<'a, Vec<DirChild>> {
        unreachable!()
    }

    fn refresh(&self) {}

    fn figures(&self) -> Figures {
        Figures::default()
    }
}

#[derive(Clone)]
struct World {
    host: Arc<Host>,
    fake: Arc<Fake>,
    uri: Arc<str>,
    over: Arc<AtomicBool>,
}

impl World {
    /// A host that shows the first version of the skill.
    fn new(policy: Policy, most: usize, cache: Option<&Arc<Cache>>) -> Self {
        let label: Label = "a".parse().unwrap();
        let server = Server {
            shelf: cache.map(|c| c.shelf(&label, "id").unwrap()),
            label,
            shown: "fake".into(),
            identity: "id".into(),
            state: None,
            locked: None,
            dynamic: Dynamic::Declined,
        };
        let fake = Arc::new(Fake {
            version: AtomicUsize::new(1),
            under_way: Default::default(),
            most,
        });
        let cache = cache.map(Arc::clone);
        let (host, inbox) = Host::new(vec![server], policy, cache, "/m".into(), MAX_TTL);
        host.attach(1, Arc::clone(&fake) as Arc<dyn Source>);
        let (changes, batches) = std_mpsc::channel::<Batch>();
        drop(spawn(Arc::clone(&host).run(inbox, changes)));
        // The kernel, which takes its time. Nothing wakes it, so it must be told of the end.
        let over = Arc::<AtomicBool>::default();
        let end = Arc::clone(&over);
        drop(spawn(async move {
            while !end.load(Ordering::SeqCst) {
                match batches.try_recv() {
                    Ok(batch) => {
                        a_while().await;
                        let _ = batch.done.map(|done| done.send(()));
                    }
                    Err(std_mpsc::TryRecvError::Empty) => {}
                    Err(std_mpsc::TryRecvError::Disconnected) => return,
                }
                yield_now().await;
            }
        }));
        let uri = Arc::clone(&entry("s", 1).uri);
        let world = Self {
            host,
            fake,
            uri,
            over,
        };
        world.act(Act::Publish(Known::Entry(entry("s", 1))));
        world
    }

    /// Does something and waits until it is done.
    fn act(&self, act: Act) {
        block_on(self.host.act(1, &self.uri, act)).unwrap();
    }

    /// The server changes, then the host hears of it.
    fn publish(&self, version: usize) {
        self.fake.version.store(version, Ordering::SeqCst);
        block_on(a_while());
        self.act(Act::Publish(Known::Entry(entry("s", version))));
    }

    /// Reads a file by its path, as the kernel does; which version it was.
    fn read(&self, file: &str) -> Result<usize, ReadError> {
        self.read_of("a", file).expect("a file of the skill")
    }

    /// As [`World::read`], of any server; none if there is no such file.
    fn read_of(&self, label: &str, file: &str) -> Option<Result<usize, ReadError>> {
        let tree = self.host.tree();
        let ino =
            [label, "s", file]
                .iter()
                .try_fold(ROOT, |dir, name| match tree.lookup(dir, name) {
                    Lookup::Found(attr) => Some(attr.ino),
                    _ => None,
                });
        let ino = ino?;
        drop(tree);
        block_on(a_while());
        let now = self.host.read_now(ino);
        let got = now.unwrap_or_else(|| block_on(self.host.read(ino)));
        Some(got.map(|bytes| {
            let text = String::from_utf8(bytes.bytes().to_vec()).unwrap();
            let versions = [1, 2];
            let version = versions.into_iter().find(|v| content(file, *v) == text);
            version.unwrap_or_else(|| panic!("{file}: never published: {text:?}"))
        }))
    }

    /// One server more, with the first version of the skill; its number.
    async fn join(&self, label: &str) -> u16 {
        let server = Server {
            label: label.parse().unwrap(),
            shown: "fake".into(),
            identity: "id".into(),
            shelf: None,
            state: None,
            locked: None,
            dynamic: Dynamic::Declined,
        };
        let slot = self.host.join(server).await.unwrap();
        let fake = Fake {
            version: AtomicUsize::new(1),
            under_way: Default::default(),
            most: 2,
        };
        self.host.attach(slot, Arc::new(fake) as Arc<dyn Source>);
        self.host.event(slot, listing(vec![entry("s", 1)]));
        // What is done next is done after that.
        let (done, shown) = oneshot::channel();
        let _ = self.host.inbox.send(Message::Settle(slot, Some(done)));
        let _ = shown.await;
        slot
    }

    /// Runs something in threads of its own.
    fn threads(&self, count: usize, work: impl Fn(&World) + Send + Sync + 'static) -> Threads {
        let work = Arc::new(work);
        let one = |_| {
            let (world, work) = (self.clone(), Arc::clone(&work));
            thread::spawn(move || {
                block_on(a_while());
                work(&world);
            })
        };
        Threads((0..count).map(one).collect())
    }

    /// All have gone: no fetch is left.
    fn end(self) {
        while self.host.flights.under_way() > 0 {
            thread::yield_now();
        }
        self.over.store(true, Ordering::SeqCst);
    }
}

#[must_use]
struct Threads(Vec<thread::JoinHandle<()>>);

impl Threads {
    fn join(self) {
        self.0.into_iter().for_each(|t| t.join().unwrap());
    }
}

#[test]
fn whoever_reads_after_a_revocation_is_refused() {
    check(|| {
        let world = World::new(RELEASE, 1, None);
        let revoked = Arc::new(AtomicBool::new(false));
        let known = Arc::clone(&revoked);
        let readers = world.threads(2, move |world| {
            for _ in 0..2 {
                let before = known.load(Ordering::SeqCst);
                match world.read("x") {
                    Ok(1) => assert!(!before, "bytes after the revocation"),
                    Err(ReadError::Denied) => {}
                    Err(ReadError::Stale) => assert!(!before),
                    other => panic!("{other:?}"),
                }
            }
        });
        let user = world.threads(1, move |world| {
            world.act(Act::Revoke);
            revoked.store(true, Ordering::SeqCst);
        });
        user.join();
        readers.join();
        assert_eq!(world.read("y"), Err(ReadError::Denied));
        world.end();
    });
}

#[test]
fn a_server_leaves_readers_of_its_own_without_bytes_and_those_of_another_alone() {
    check(|| {
        let world = World::new(RELEASE, 2, None);
        let left = Arc::new(AtomicBool::new(false));
        let other = block_on(world.join("b"));
        let staying = world.threads(1, |world| {
            for file in ["x", "y", "x"] {
                assert_eq!(world.read(file), Ok(1));
            }
        });
        let known = Arc::clone(&left);
        let leaving = world.threads(2, move |world| {
            let before = known.load(Ordering::SeqCst);
            match world.read_of("b", "x") {
                Some(Ok(1)) => assert!(!before, "bytes of a server that is gone"),
                None | Some(Err(ReadError::Stale)) => {}
                other => panic!("{other:?}"),
            }
        });
        let user = world.threads(1, move |world| {
            block_on(world.host.leave(other));
            left.store(true, Ordering::SeqCst);
        });
        user.join();
        staying.join();
        leaving.join();
        assert_eq!(world.read_of("b", "y"), None);
        // Under the same name it is another one.
        assert_eq!(block_on(world.join("b")), other + 1);
        assert_eq!(world.read_of("b", "y"), Some(Ok(1)));
        world.end();
    });
}

#[test]
fn a_lapsed_approval_lets_nobody_read() {
    check(|| {
        let world = World::new(policy(Hold::Release, Approval::Each), 2, None);
        let set = entry("s", 1).set().unwrap();
        world.act(Act::Approve(set, Scope::Read));
        let lapsed = Arc::new(AtomicBool::new(false));
        let known = Arc::clone(&lapsed);
        let readers = world.threads(2, move |world| {
            for file in ["x", "y"] {
                let before = known.load(Ordering::SeqCst);
                match world.read(file) {
                    Ok(1) => assert!(!before, "bytes after the approval"),
                    Ok(2) => panic!("bytes that nobody approved"),
                    // Its server contradicts what the host knows so far.
                    Err(_) => {}
                    other => panic!("{other:?}"),
                }
            }
        });
        let server = world.threads(1, move |world| {
            world.publish(2);
            lapsed.store(true, Ordering::SeqCst);
        });
        server.join();
        readers.join();
        assert!(world.read("x").is_err());
        world.end();
    });
}

#[test]
fn hr_71_all_who_read_a_held_skill_see_one_version_of_it() {
    check(|| {
        let world = World::new(RELEASE, 2, None);
        let seen = Arc::new(Mutex::new(BTreeSet::new()));
        let all = Arc::clone(&seen);
        let readers = world.threads(2, move |world| {
            for file in ["x", "y"] {
                if let Ok(version) = world.read(file) {
                    all.lock().insert(version);
                }
            }
        });
        let server = world.threads(1, |world| world.publish(2));
        readers.join();
        server.join();
        assert!(seen.lock().len() <= 1, "a window shows two versions");
        world.end();
    });
}

#[test]
fn whoever_reads_after_a_change_reads_no_older_version() {
    check(|| {
        let world = World::new(NONE, 2, None);
        let published = Arc::new(AtomicBool::new(false));
        let known = Arc::clone(&published);
        let readers = world.threads(2, move |world| {
            for _ in 0..2 {
                let before = known.load(Ordering::SeqCst);
                match world.read("x") {
                    Ok(1) => assert!(!before, "an old version"),
                    Ok(_) => {}
                    Err(e) => assert!(!before || e == ReadError::Stale, "{e:?}"),
                }
            }
        });
        let server = world.threads(1, move |world| {
            world.publish(2);
            published.store(true, Ordering::SeqCst);
        });
        readers.join();
        server.join();
        world.end();
    });
}

#[test]
fn a_released_window_is_over_for_whoever_reads_after_it() {
    check(|| {
        let world = World::new(RELEASE, 2, None);
        assert_eq!(world.read("x"), Ok(1));
        let released = Arc::new(AtomicBool::new(false));
        let known = Arc::clone(&released);
        let readers = world.threads(2, move |world| {
            let before = known.load(Ordering::SeqCst);
            match world.read("x") {
                Ok(1) => assert!(!before, "as it was held"),
                Ok(_) => {}
                Err(e) => assert_eq!(e, ReadError::Stale),
            }
        });
        let user = world.threads(1, move |world| {
            world.publish(2);
            world.act(Act::Release);
            released.store(true, Ordering::SeqCst);
        });
        readers.join();
        user.join();
        assert_eq!(world.read("x"), Ok(2));
        world.end();
    });
}

#[test]
fn what_is_evicted_while_it_is_read_is_read_all_the_same() {
    let shm = std::path::Path::new("/dev/shm");
    let dir = match shm.is_dir() {
        true => tempfile::tempdir_in(shm),
        false => tempfile::tempdir(),
    };
    let dir = dir.unwrap();
    let cache = Cache::open(dir.path(), 1 << 20).unwrap();
    check(move || {
        cache.prune(0);
        let world = World::new(RELEASE, 1, Some(&cache));
        let readers = world.threads(2, |world| {
            for file in ["x", "y", "x"] {
                assert_eq!(world.read(file), Ok(1));
            }
        });
        let cache = Arc::clone(&cache);
        let evictor = world.threads(1, move |world| {
            for _ in 0..2 {
                world.host.memory.evict();
                thread::yield_now();
                cache.prune(0);
                thread::yield_now();
            }
        });
        readers.join();
        evictor.join();
        world.end();
    });
}

#[test]
fn a_listing_while_the_tree_is_swapped_names_once_what_was_there_all_the_time() {
    check(|| {
        let world = World::new(RELEASE, 1, None);
        let skills = |changing| ["s", "kept", changing].map(|name| entry(name, 1)).into();
        world.host.event(1, listing(skills("old")));
        world.act(Act::Publish(Known::Entry(entry("s", 1))));
        let lists = world.threads(2, |world| {
            let label = match world.host.tree().lookup(ROOT, "a") {
                Lookup::Found(attr) => attr.ino,
                other => panic!("{other:?}"),
            };
            let (mut names, mut after) = (Vec::new(), 0);
            loop {
                // As the kernel does: a new question for each part, to the tree of that moment.
                let tree = world.host.tree();
                let children = tree.children(label, after).unwrap();
                let Some(child) = children.first() else { break };
                let path = format!("a/{}", child.name);
                names.push(child.name.to_owned());
                after = child.cookie;
                let ino = child.attr.ino;
                thread::yield_now();
                let later = world.host.tree().path(ino);
                assert!(later.is_none_or(|p| p == path), "an inode that is another");
            }
            let count = |name: &str| names.iter().filter(|n| *n == name).count();
            assert_eq!((count("s"), count("kept")), (1, 1), "{names:?}");
            // What went and came again is another.
            assert!(count("old") <= 2 && count("new") <= 1, "{names:?}");
        });
        let server = world.threads(1, move |world| {
            for changing in ["new", "old"] {
                world.host.event(1, listing(skills(changing)));
                thread::yield_now();
            }
        });
        lists.join();
        server.join();
        world.end();
    });
}
