//! What the program does, without FUSE and without MCP: which tree is shown, and whether a read
//! may go on, under which entry, with which bytes.
//!
//! One task, [`Host::run`], is the only writer of the tree: it takes what the servers publish
//! and what reads found out, builds the next tree and swaps it in whole. Everybody else takes
//! the current `Arc<Tree>` and works on that.
//!
//! **Invariants**
//! - [`Host::read`] answers with [`Verified`] bytes of the inode asked for, or with an error; an
//!   inode that is no longer in the tree is stale, never another file.
//! - Nothing is fetched but the file that somebody reads (HR-78, HR-79).
//! - At most one lock is held at a time, and none across I/O or a message to the kernel; but for
//!   those that put what is written to the disk in order, which are taken first.

mod admission;
pub mod audit;
pub mod command;
mod flight;
#[cfg(all(test, shuttle))]
mod interleavings;
mod memory;
mod metrics;
mod note;
mod refusal;
pub mod report;
pub mod review;
mod walk;

pub use note::{Answer, Question, Served, Way};
pub use refusal::{ReadError, Refusal};
pub use walk::{Look, NO_SUCH_NAME};

use crate::domain::digest::Digest;
use crate::domain::manifest::{Content, Declined, Entry, MAX_BYTES, Reason, SetId};
use crate::domain::name::{Label, RelPath};
use crate::domain::skill::{
    Claim, Decision, From, Hold, Known, Moved, Origin, Policy, Scope, Shown, Skill, Standing,
    Verdict, decide,
};
use crate::domain::text::{printable, spelt};
use crate::domain::tree::{
    self, Absent, Beyond, Branch, Change, Seen, Source as NodeSource, Tree, View,
};
use crate::domain::verify::{self, Expected, Mismatch, Unverified, Verified, unverified, verify};
use crate::source::{ChildKind, DirChild, Event, Link, Listing, Source, SourceError};
use crate::store::cache::{Cache, Shelf};
use crate::store::state::{State, StoredListing, Verdicts};
use crate::sync::{Mutex, RwLock, sleep, spawn, spawn_blocking, timeout};
use admission::{Admission, Admitted, Share};
use audit::Audit;
use flight::Flights;
use memory::{Key, Memory};
use metrics::Metrics;
use note::Opened;
use refusal::{News, Refusals};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, mpsc as std_mpsc};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{Notify, mpsc, oneshot, watch};
/// The clock by which listings and failures age: one that a test can let pass.
use tokio::time::Instant as Tick;

/// A label's listing counts as fresh for at least this long, whatever its server says.
const MIN_TTL: Duration = Duration::from_secs(1);
/// …and for at most this long.
const MAX_TTL: Duration = Duration::from_secs(3600);
/// Names that a server may show in its directories and no entry has.
const MAX_BEYOND: usize = 10_000;
/// A read that failed is answered with the same error for this long: the kernel asks twice.
const MEMO: Duration = Duration::from_secs(1);
/// …and one that timed out for this long, since whoever asks twice would wait twice.
const MEMO_OF_TIMEOUT: Duration = Duration::from_secs(3);
/// Files larger than this are hashed off the async threads.
const INLINE_HASH: u64 = 256 * 1024;
/// Files up to this size are loaded and hashed by the thread that answers the kernel, if the disk
/// need not be waited for: 0.1 ms at most.
const AT_ONCE: u64 = 128 * 1024;
/// Files to be kept are collected for this long: writing them wakes a thread.
const SAVE_GAP: Duration = Duration::from_millis(20);
/// Status files are rewritten at most this often, and for a tenth of the time at most.
const REPORT_GAP: Duration = Duration::from_millis(100);
/// A window that opened changes nothing that is shown; the tree learns of it this much later,
/// once for all that opened meanwhile.
const OPENED_GAP: Duration = Duration::from_millis(200);
/// How long a failed read waits for the kernel to hear of the change it found.
const FLUSH_WAIT: Duration = Duration::from_secs(1);

/// A server as the host is told of it.
#[derive(Debug)]
pub struct Server {
    /// The user's name for it.
    pub label: Label,
    /// How it is reached, for people; no secrets.
    pub shown: String,
    /// Who it is, with its label (HR-14).
    pub identity: String,
    /// Its blobs on disk, if the cache can be used.
    pub shelf: Option<Shelf>,
    /// Its state on disk, if it can be used.
    pub state: Option<State>,
    /// The verdicts to go by instead of the stored ones; they are not stored.
    pub locked: Option<Verdicts>,
    /// What becomes of its dynamic skills.
    pub dynamic: Dynamic,
}

impl Server {
    /// Whether the skill is one that the user did not allow to be read.
    fn refuses(&self, entry: &Entry) -> bool {
        entry.content == Content::Dynamic && self.dynamic == Dynamic::Declined
    }
}

/// What becomes of dynamic skills, which have nothing to verify against (HR-35).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Dynamic {
    /// They are shown as declined.
    #[default]
    Declined,
    /// They can be read, unverified: the user's word.
    Allowed,
}

/// What becomes of open windows when the mount ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Windows {
    /// They end.
    End,
    /// The next mount at this place finds them open, as after a kill.
    Keep,
}

/// What the kernel must be told, in order.
#[derive(Debug)]
pub struct Batch {
    /// What changed.
    pub changes: Vec<Change>,
    /// Told when the kernel knows.
    pub done: Option<oneshot::Sender<()>>,
}

/// All servers, their tree and what is read of it.
pub struct Host {
    /// The servers by their numbers, from 1 on. One that left leaves its place empty: a number is
    /// part of inode numbers and never used again.
    slots: RwLock<Vec<Option<Arc<Slot>>>>,
    /// Whether the kernel tells of files that are opened, which is settled by the first one.
    dynamic: Dynamic,
    policy: Policy,
    tree: RwLock<Arc<Tree>>,
    memory: Memory,
    admission: Admission,
    flights: Flights<(Asked, From), Result<(Verified, Way), ReadError>>,
    /// Reads that failed a moment ago. What one URI gave says nothing of another that promises
    /// the same bytes.
    memo: Mutex<HashMap<Asked, (Tick, ReadError)>>,
    refusals: Mutex<Refusals>,
    /// What the configuration has beyond the servers: for the status alone.
    unused: Mutex<Vec<report::UnusedStatus>>,
    metrics: Metrics,
    /// None if there is no trail: then nobody is looked up.
    audit: OnceLock<Audit>,
    inbox: mpsc::UnboundedSender<Message>,
    report_due: Notify,
    settled: watch::Sender<Vec<Option<String>>>,
    cache: Option<Arc<Cache>>,
    /// Checked files that are not on the disk yet.
    unsaved: Mutex<Vec<Unsaved>>,
    /// Held while they are written, so that the end waits for that.
    saving: Mutex<()>,
    save_due: Notify,
    timeout: Duration,
    mountpoint: PathBuf,
    started: SystemTime,
}

/// A checked file on its way to the disk.
struct Unsaved {
    /// Whose shelf it is for, also when the server has left meanwhile.
    slot: Arc<Slot>,
    digest: Digest,
    file: Verified,
    _admitted: Admitted,
}

/// What a read asks for: at which server and URI, with which digest, size and frontmatter;
/// without these while entries disagree on them.
type Asked = (u16, Arc<str>, Option<verify::Key>);

/// One server, and what is known of it.
struct Slot {
    server: Server,
    source: OnceLock<Arc<dyn Source>>,
    share: Share,
    now: Mutex<Now>,
    /// Told when the journal of the windows is no longer what is on disk.
    windows_due: Notify,
    /// Told when the stored listing is no longer the one that is known.
    listing_due: Notify,
    /// Puts what is written of verdicts and windows in order, so that the newest stays; whether
    /// the windows are over.
    storing: Mutex<bool>,
    /// Puts what is written of listings in order, so that the newest stays.
    listing: Mutex<()>,
}

/// What is known of a server at this moment.
struct Now {
    link: Link,
    since: Instant,
    skills: BTreeMap<Arc<str>, Skill>,
    /// Entries that are declined and have no URI to be known by.
    nameless: Vec<Arc<Declined>>,
    listing: Option<ListingNow>,
    list_error: Option<String>,
    /// What the tree does not know of yet.
    unshown: Unshown,
    /// What the server showed in its directories and no entry mentions.
    beyond: Beyond,
    /// What is retrieved of each file of a dynamic skill, in bytes.
    retrieved: HashMap<Arc<str>, u64>,
    walked: walk::Walked,
    /// Verdicts that changed and are not on disk yet.
    unsaved: Verdicts,
    /// Whether the stored listing is another one.
    unlisted: bool,
}

/// What changed since the tree was made.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Unshown {
    /// These skills, by the URI of their SKILL.md; perhaps none.
    Skills(BTreeSet<Arc<str>>),
    /// More than some skills.
    All,
}

impl Default for Unshown {
    fn default() -> Self {
        Self::Skills(BTreeSet::new())
    }
}

impl Unshown {
    fn add(&mut self, uri: &Arc<str>) {
        if let Self::Skills(uris) = self {
            uris.insert(Arc::clone(uri));
        }
    }
}

struct ListingNow {
    /// None for a listing of an earlier run.
    at: Option<Tick>,
    ttl: Duration,
    truncated: Option<String>,
}

/// What the writer is told.
enum Message {
    Event(u16, Event),
    /// Something is done to a skill.
    Act(
        u16,
        Arc<str>,
        Act,
        Until,
        oneshot::Sender<Result<(), Moved>>,
    ),
    /// A window was opened.
    Opened(u16),
    /// The tree shall learn of the windows that were opened; answered when it has.
    Settle(u16, Option<oneshot::Sender<()>>),
    /// What the server showed in a directory; answered when the tree has it.
    Shown(u16, RelPath, Vec<DirChild>, oneshot::Sender<()>),
    /// A server came, with what an earlier run saw of it; answered with its number.
    Joined(Arc<Slot>, Seen, oneshot::Sender<u16>),
    /// A server goes; answered when the kernel knows and its state is stored.
    Left(u16, oneshot::Sender<()>),
    /// A directory is due to be looked into again.
    Due(u64),
    Report,
}

/// When something that was done to a skill counts as done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    /// When the tree shows it. For lookups: telling the kernel waits for the lookup's own reply.
    Shown,
    /// When the kernel knows as well.
    Told,
}

/// What can be done to a skill.
#[derive(Debug, Clone)]
pub enum Act {
    /// The server's newest word is taken in.
    Publish(Known),
    /// The server's newest word is taken in, and the window ends.
    Refresh(Known),
    /// The skill was named by its URI, and the server confirmed it.
    Name(Known),
    /// The window ends.
    Release,
    /// The window moves to this entry, which is about to be read.
    Load(Arc<Entry>),
    /// The set is approved.
    Approve(SetId, Scope),
    /// The skill is taken away.
    Revoke,
}

/// The writer's end of a host's inbox.
pub struct Inbox(mpsc::UnboundedReceiver<Message>);

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Inbox")
    }
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host")
            .field("mountpoint", &self.mountpoint)
            .finish_non_exhaustive()
    }
}

impl Host {
    /// A host of these servers, showing what an earlier run stored of them. `timeout` bounds a
    /// content read in all.
    pub fn new(
        servers: Vec<Server>,
        policy: Policy,
        cache: Option<Arc<Cache>>,
        mountpoint: PathBuf,
        timeout: Duration,
    ) -> (Arc<Self>, Inbox) {
        let (inbox, messages) = mpsc::unbounded_channel();
        let now = unix_now();
        let mut labels = Vec::new();
        let mut slots = Vec::new();
        let dynamic = servers.iter().map(|server| server.dynamic);
        let dynamic = dynamic.max().unwrap_or_default();
        for (number, server) in (1u16..).zip(servers) {
            let (slot, seen) = Slot::new(server);
            labels.push((
                slot.server.label.clone(),
                slot.first_view(number, policy, &seen),
            ));
            slots.push(Some(Arc::new(slot)));
        }
        let ours = Arc::new(Branch::of_texts(&Default::default(), None, now));
        let settled = watch::Sender::new(vec![None; slots.len()]);
        let host = Arc::new(Self {
            slots: RwLock::new(slots),
            dynamic,
            policy,
            tree: RwLock::new(Arc::new(Tree::new(ours, labels, now))),
            memory: Memory::new(),
            admission: Admission::new(),
            flights: Flights::new(),
            memo: Mutex::default(),
            refusals: Mutex::default(),
            unused: Mutex::default(),
            metrics: Metrics::new(),
            audit: OnceLock::new(),
            inbox,
            report_due: Notify::new(),
            settled,
            cache,
            unsaved: Mutex::default(),
            saving: Mutex::default(),
            save_due: Notify::new(),
            timeout,
            mountpoint,
            started: SystemTime::now(),
        });
        host.write_reports(None);
        (host, Inbox(messages))
    }

    /// Gives a server the source that its readers ask.
    pub fn attach(&self, slot: u16, source: Arc<dyn Source>) {
        if let Some(s) = self.slot(slot) {
            let _ = s.source.set(source);
        }
    }

    /// Takes in one server more, while the others are read. What an earlier run stored of it is
    /// shown by the time this returns its number.
    ///
    /// # Errors
    /// There is no number left, or the mount is ending.
    pub async fn join(&self, server: Server) -> Option<u16> {
        let (slot, seen) = blocking(move || Slot::new(server)).await?;
        let (done, number) = oneshot::channel();
        let _ = self.inbox.send(Message::Joined(Arc::new(slot), seen, done));
        number.await.ok()
    }

    /// Lets a server go. Its files are stale to whoever has one open; its windows end as at an
    /// unmount, and all else that is kept of it stays.
    pub async fn leave(&self, slot: u16) {
        let (done, gone) = oneshot::channel();
        let _ = self.inbox.send(Message::Left(slot, done));
        let _ = gone.await;
    }

    /// Takes what a server's session publishes.
    pub fn event(&self, slot: u16, event: Event) {
        let _ = self.inbox.send(Message::Event(slot, event));
    }

    /// For each label one line as soon as its first connection has come to something.
    pub fn settled(&self) -> watch::Receiver<Vec<Option<String>>> {
        self.settled.subscribe()
    }

    /// The number of the server that has this label now.
    pub fn number(&self, label: &Label) -> Option<u16> {
        let slots = self.slots();
        let there = slots.iter().find(|(_, s)| s.server.label == *label);
        there.map(|(number, _)| *number)
    }

    /// Whether a server has not yet come to anything, so that asking it later makes sense.
    pub fn is_waiting(&self, label: &Label) -> bool {
        let slots = self.slots();
        let s = slots.iter().find(|(_, s)| s.server.label == *label);
        s.is_some_and(|(_, s)| !matches!(s.now.lock().link, Link::Ready(_)))
    }

    /// The tree at this moment.
    pub fn tree(&self) -> Arc<Tree> {
        Arc::clone(&self.tree.read())
    }

    fn slot(&self, slot: u16) -> Option<Arc<Slot>> {
        let index = usize::from(slot).checked_sub(1)?;
        self.slots.read().get(index)?.clone()
    }

    /// The servers that are there, in the order in which they came.
    fn slots(&self) -> Vec<(u16, Arc<Slot>)> {
        let slots = self.slots.read();
        let there = (1u16..).zip(slots.iter());
        let there = there.filter_map(|(number, s)| Some((number, Arc::clone(s.as_ref()?))));
        there.collect()
    }

    /// For how long the kernel may go on without asking about names of this label (HR-51).
    pub fn fresh_for(&self, slot: u16) -> Duration {
        let Some(slot) = self.slot(slot) else {
            return MAX_TTL;
        };
        let now = slot.now.lock();
        let Some(ListingNow {
            at: Some(at), ttl, ..
        }) = &now.listing
        else {
            return MIN_TTL;
        };
        ttl.saturating_sub(at.elapsed()).clamp(MIN_TTL, MAX_TTL)
    }

    /// Somebody looks at this label: refreshes its listing in the background if it is stale.
    pub fn needed(&self, slot: u16) {
        let Some(slot) = self.slot(slot) else { return };
        let stale = match &slot.now.lock().listing {
            Some(ListingNow {
                at: Some(at), ttl, ..
            }) => at.elapsed() >= (*ttl).max(MIN_TTL),
            _ => false,
        };
        if let Some(source) = slot.source.get().filter(|_| stale) {
            source.refresh();
        }
    }

    /// The content of a file, if it can be had without waiting for anything.
    pub fn read_now(&self, ino: u64) -> Option<Result<Verified, ReadError>> {
        Some(self.serve_now(ino)?.map(|served| served.file))
    }

    /// As [`Host::read_now`], with how it came.
    pub fn serve_now(&self, ino: u64) -> Option<Result<Served, ReadError>> {
        let asked = match self.resolve(ino) {
            Err(e) => return Some(Err(e)),
            Ok(Resolved::Text(text)) => return Some(Ok(Served::ours(text))),
            Ok(Resolved::Disputed(claims)) => in_dispute(ino, &claims),
            Ok(Resolved::File(file)) => {
                if let Some((bytes, way)) = self.at_once(&file) {
                    let moves = self.moves(&file).next().is_some();
                    return (!moves).then(|| self.admit(&file, bytes, way));
                }
                file.asked()
            }
        };
        let memo = self.memo.lock();
        memo.get(&asked)
            .filter(|(at, e)| at.elapsed() < remembered(*e))
            .map(|(_, e)| Err(*e))
    }

    /// The content of a file that is in our memory or, on the disk, in the kernel's.
    fn at_once(&self, file: &File) -> Option<(Verified, Way)> {
        let key = file.key();
        if let Some(bytes) = self.memory.get(&key) {
            return Some((bytes, Way::Memory));
        }
        let size = file.expected.size;
        let s = self.slot(file.slot)?;
        let shelf = s.server.shelf.as_ref();
        let shelf = shelf.filter(|s| size <= AT_ONCE && !s.lacks(&file.expected))?;
        let bytes = shelf.load_at_once(&file.expected)?;
        // What can be had again as easily drives nothing out: else reading more than there is room
        // for, in the same order again and again, would find nothing at all.
        if let Some(room) = self.memory.room_left(size) {
            self.memory.put(key, bytes.clone(), room);
        }
        Some((bytes, Way::Disk))
    }

    /// The content of a file: from memory, from the disk or from its server, checked. Reading it
    /// loads the skills that list it (HR-71).
    ///
    /// # Errors
    /// By what the reader is told; the reason is in the status of the label.
    pub async fn read(self: &Arc<Self>, ino: u64) -> Result<Verified, ReadError> {
        self.serve(ino).await.map(|served| served.file)
    }

    /// As [`Host::read`], with how it came.
    ///
    /// # Errors
    /// As [`Host::read`].
    pub async fn serve(self: &Arc<Self>, ino: u64) -> Result<Served, ReadError> {
        if let Some(result) = self.serve_now(ino) {
            return result;
        }
        let _waiting = self.metrics.waiting();
        let mut resolved = self.resolve(ino)?;
        if matches!(resolved, Resolved::Disputed(_)) {
            // A window that was opened just now may decide it.
            let (done, learned) = oneshot::channel();
            let slot = Tree::slot_of(ino);
            let _ = self.inbox.send(Message::Settle(slot, Some(done)));
            let _ = timeout(FLUSH_WAIT, learned).await;
            resolved = self.resolve(ino)?;
        }
        let file = match resolved {
            Resolved::Text(text) => return Ok(Served::ours(text)),
            Resolved::File(file) => file,
            Resolved::Disputed(claims) => {
                let host = Arc::clone(self);
                let asked = in_dispute(ino, &claims);
                let settle = move || async move { Err(host.settle_dispute(ino, &claims).await) };
                let result = self.flights.join((asked, From::Anywhere), settle).await;
                let error = result.map(|r| r.err()).unwrap_or_default();
                return Err(error.unwrap_or(ReadError::Internal));
            }
        };
        let path = self.tree().path(ino).unwrap_or_default();
        let key = file.key();
        let flight = (file.asked(), file.from);
        let host = Arc::clone(self);
        let fetch = move || async move { host.fetch(path, file).await };
        let result = self
            .flights
            .join(flight, fetch)
            .await
            .unwrap_or(Err(ReadError::Internal));
        let (bytes, way) = result?;
        // Decide again: the entry may have changed while the bytes were on their way.
        let mut file = self.still(ino, key)?;
        // A window that moves changes what is shown: the reader must find the rest of it moved.
        let moves: Vec<Arc<Entry>> = self.moves(&file).collect();
        for entry in &moves {
            let act = self.act(key.0, &entry.uri, Act::Load(Arc::clone(entry)));
            let _ = timeout(FLUSH_WAIT, act).await;
        }
        if !moves.is_empty() {
            file = self.still(ino, key)?;
        }
        self.admit(&file, bytes, way)
    }

    /// The file of an inode, if it may be read and is what it was.
    fn still(&self, ino: u64, key: Key) -> Result<File, ReadError> {
        match self.resolve(ino)? {
            Resolved::File(file) if file.key() == key => Ok(file),
            _ => Err(ReadError::Stale),
        }
    }

    /// The entries to which reading a file moves windows that hold others ([`Hold::Reload`]).
    fn moves<'a>(&'a self, file: &'a File) -> impl Iterator<Item = Arc<Entry>> + 'a {
        let slot = self.slot(file.slot);
        let other = move |entry: &&Arc<Entry>| {
            let now = slot.as_ref().map(|s| s.now.lock());
            let held = now.as_ref().and_then(|n| n.skills.get(&entry.uri)?.held());
            held.is_some_and(|held| held != *entry)
        };
        file.loads.iter().filter(other).cloned()
    }

    /// Opens the windows of what is about to be served; stale if one of the skills moved on.
    fn admit(&self, file: &File, bytes: Verified, way: Way) -> Result<Served, ReadError> {
        let slot = file.slot;
        let Some(s) = self.slot(slot) else {
            return Err(ReadError::Stale);
        };
        let mut opened = false;
        {
            let mut now = s.now.lock();
            for entry in &file.loads {
                let Some(skill) = now.skills.get_mut(&entry.uri) else {
                    return Err(ReadError::Stale);
                };
                let before = skill.held() == Some(entry);
                if !skill.load(entry, self.policy.hold) {
                    return Err(ReadError::Stale);
                }
                if self.policy.hold != Hold::None && !before {
                    opened = true;
                    now.unshown.add(&entry.uri);
                }
            }
        }
        if opened {
            s.windows_due.notify_one();
            let _ = self.inbox.send(Message::Opened(slot));
        }
        Ok(Served {
            file: bytes,
            way,
            opened: match opened {
                true => Opened::Window,
                false => Opened::Nothing,
            },
            digest: Some(file.expected.digest),
        })
    }

    fn resolve(&self, ino: u64) -> Result<Resolved, ReadError> {
        let tree = self.tree();
        let slot = Tree::slot_of(ino);
        let refuse = |refusal: fn(&str, &str, &str) -> Refusal, uri: &str, why: &str| {
            let refusal = refusal(&tree.path(ino).unwrap_or_default(), uri, why);
            let error = refusal.error;
            self.refuse(slot, refusal);
            Err(error)
        };
        let claims = match tree.source(ino) {
            None => return Err(ReadError::Stale),
            Some(NodeSource::Text(text)) => return Ok(Resolved::Text(text)),
            Some(NodeSource::Declined(d)) => {
                let uri = d.uri.as_deref().unwrap_or_default();
                return refuse(Refusal::declined, uri, &d.reason.to_string());
            }
            Some(NodeSource::Skill(claims)) => claims,
            // Only an open file of a dynamic skill can be read.
            Some(NodeSource::Dynamic(..)) => return Err(ReadError::Internal),
        };
        match decide(&claims) {
            None => Err(ReadError::Stale),
            Some(Decision::Disagree(..)) => Ok(Resolved::Disputed(claims)),
            Some(Decision::Refuse(standing)) => {
                let uri = claims.first().map_or("", |c| &c.file.uri);
                match standing {
                    Standing::NotApproved | Standing::Open => {
                        refuse(Refusal::not_approved, uri, "")
                    }
                    Standing::Lapsed => refuse(Refusal::lapsed, uri, ""),
                    Standing::Revoked => refuse(Refusal::revoked, uri, ""),
                }
            }
            Some(Decision::Serve(expected, from, loads)) => Ok(Resolved::File(File {
                slot,
                expected,
                from,
                loads,
                claims,
            })),
        }
    }

    async fn fetch(
        self: Arc<Self>,
        path: String,
        file: File,
    ) -> Result<(Verified, Way), ReadError> {
        let result = self.fetch_once(&path, &file).await;
        if let Err(e) = &result {
            self.remember(file.asked(), *e);
        }
        result
    }

    fn remember(&self, asked: Asked, e: ReadError) {
        let mut memo = self.memo.lock();
        memo.retain(|_, (at, e)| at.elapsed() < remembered(*e));
        memo.insert(asked, (Tick::now(), e));
    }

    /// The file from the disk, if it is there and right; none if there was no room in time.
    async fn from_disk(self: &Arc<Self>, file: &File, by: Instant) -> Option<Option<Verified>> {
        let (slot, expected) = (file.slot, &file.expected);
        // A small one is looked for and loaded at once; a large one waits for room only if it is there.
        let small = expected.size <= INLINE_HASH;
        let mut room = small.then(|| self.memory.room_now(expected.size)).flatten();
        if room.is_none() && self.shelved(slot, expected, Shelf::has).await == Some(true) {
            room = Some(self.memory.room(expected.size, by).await?);
        }
        let Some(room) = room else { return Some(None) };
        let loaded = self.shelved(slot, expected, Shelf::load).await.flatten();
        if let Some(bytes) = &loaded {
            self.memory.put(file.key(), bytes.clone(), room);
        }
        Some(loaded)
    }

    async fn fetch_once(
        self: &Arc<Self>,
        path: &str,
        file: &File,
    ) -> Result<(Verified, Way), ReadError> {
        if let Some(bytes) = self.memory.get(&file.key()) {
            return Ok((bytes, Way::Memory));
        }
        let File {
            slot,
            expected,
            claims,
            ..
        } = file;
        let slot = *slot;
        let deadline = Instant::now() + self.timeout;
        let late = || {
            let e = SourceError::TimedOut(self.timeout);
            let refusal = Refusal::unanswered(path, &expected.uri, &e);
            let error = refusal.error;
            self.refuse(slot, refusal);
            error
        };
        let s = self.slot(slot).ok_or(ReadError::Stale)?;
        let shelf = s.server.shelf.as_ref();
        // Another daemon may have stored it a moment ago, so this is no last word.
        let lacking = shelf.is_some_and(|shelf| shelf.lacks(expected));
        let on_disk = || async { self.from_disk(file, deadline).await.ok_or_else(late) };
        if !lacking && let Some(bytes) = on_disk().await? {
            return Ok((bytes, Way::Disk));
        }
        if shelf.is_some() {
            self.metrics.missed();
        }
        if file.from == From::CacheOnly {
            if lacking && let Some(bytes) = on_disk().await? {
                return Ok((bytes, Way::Disk));
            }
            let refusal = Refusal::held(path, &expected.uri);
            let error = refusal.error;
            self.refuse(slot, refusal);
            return Err(error);
        }
        let source = s.source.get().ok_or(ReadError::Down)?;
        let admitted = self.admission.admit(&s.share, expected.size, deadline);
        let admitted = admitted.await.ok_or_else(late)?;
        let problem = match source.read(&expected.uri, expected.size, deadline).await {
            Ok(bytes) => {
                let room = self.memory.room(expected.size, deadline).await;
                let room = room.ok_or_else(late)?;
                let wanted = expected.clone();
                let verdict = if expected.size > INLINE_HASH {
                    blocking(move || verify(bytes, &wanted))
                        .await
                        .ok_or(ReadError::Internal)?
                } else {
                    verify(bytes, &wanted)
                };
                match verdict {
                    Ok(bytes) => {
                        self.memory.put(file.key(), bytes.clone(), room);
                        self.save(slot, expected, &bytes, admitted);
                        return Ok((bytes, Way::Server));
                    }
                    Err(mismatch) => Problem::Mismatch(mismatch),
                }
            }
            Err(e @ (SourceError::Rejected { .. } | SourceError::Malformed(_))) => {
                Problem::Source(e)
            }
            Err(e) => {
                if lacking && let Some(bytes) = on_disk().await? {
                    return Ok((bytes, Way::Disk));
                }
                let refusal = Refusal::unanswered(path, &expected.uri, &e);
                let error = refusal.error;
                self.refuse(slot, refusal);
                return Err(error);
            }
        };
        drop(admitted);
        let changed = self.recheck(slot, claims, deadline).await;
        let refusal = match problem {
            Problem::Mismatch(m) => Refusal::mismatch(path, &expected.uri, &m, changed),
            Problem::Source(e) => Refusal::rejected(path, &expected.uri, &e, changed),
        };
        let error = refusal.error;
        self.refuse(slot, refusal);
        Err(error)
    }

    /// Somebody asked for a name that the server has by now and the held entry has not.
    pub fn refuse_pending(&self, dir: u64, name: &str) {
        let Some(path) = self.tree().path(dir) else {
            return;
        };
        let exact = self.mountpoint.join(&path).display().to_string();
        let skill = match self.find(&exact) {
            Ok(found) if found.uri.is_some() => found.shown,
            _ => spelt(&path.split('/').take(2).collect::<Vec<_>>().join("/")),
        };
        self.refuse(
            Tree::slot_of(dir),
            Refusal::pending(&format!("{path}/{name}"), &skill),
        );
    }

    /// Whether files of dynamic skills may be read in this mount, so that opening matters.
    pub fn has_dynamic(&self) -> bool {
        self.dynamic == Dynamic::Allowed
    }

    /// The content of a file of a dynamic skill, as its server gives it now. Nothing of it is
    /// kept or verified but its frontmatter and the skill's size in all (HR-35, HR-40).
    ///
    /// # Errors
    /// As [`Host::read`].
    pub async fn read_dynamic(&self, ino: u64) -> Result<Unverified, ReadError> {
        let tree = self.tree();
        let Some(NodeSource::Dynamic(shown, uri)) = tree.source(ino) else {
            return Err(ReadError::Stale);
        };
        let slot = Tree::slot_of(ino);
        let path = tree.path(ino).unwrap_or_default();
        let s = self.slot(slot).ok_or(ReadError::Stale)?;
        let refuse = |refusal: Refusal| {
            let error = refusal.error;
            self.refuse(slot, refusal);
            error
        };
        match shown.standing {
            Standing::Open => {}
            Standing::Revoked => return Err(refuse(Refusal::revoked(&path, &uri, ""))),
            Standing::NotApproved | Standing::Lapsed => {
                return Err(refuse(Refusal::not_approved(&path, &uri, "")));
            }
        }
        let below = format!("{}/", shown.entry.uri.trim_end_matches("/SKILL.md"));
        let left = {
            let now = s.now.lock();
            let others = now
                .retrieved
                .iter()
                .filter(|(u, _)| u.starts_with(&below) && **u != uri);
            MAX_BYTES.saturating_sub(others.map(|(_, n)| n).sum())
        };
        let source = s.source.get().ok_or(ReadError::Down)?;
        let deadline = Instant::now() + self.timeout;
        let admitted = self.admission.admit(&s.share, MAX_BYTES, deadline).await;
        let Some(_admitted) = admitted else {
            let e = SourceError::TimedOut(self.timeout);
            return Err(refuse(Refusal::unanswered(&path, &uri, &e)));
        };
        let bytes = match source.read(&uri, MAX_BYTES, deadline).await {
            Ok(bytes) => bytes,
            Err(e @ (SourceError::Rejected { .. } | SourceError::Malformed(_))) => {
                return Err(refuse(Refusal::rejected(&path, &uri, &e, false)));
            }
            Err(e) => return Err(refuse(Refusal::unanswered(&path, &uri, &e))),
        };
        let front = (uri == shown.entry.uri).then_some(&shown.entry.frontmatter);
        match unverified(bytes, front, left) {
            Ok((bytes, size)) => {
                s.now.lock().retrieved.insert(uri, size);
                self.still_dynamic(ino)?;
                Ok(bytes)
            }
            Err(m @ Mismatch::Budget { .. }) => Err(refuse(Refusal::budget(&path, &uri, &m))),
            Err(m) => Err(refuse(Refusal::mismatch(&path, &uri, &m, false))),
        }
    }

    /// Whether a file of a dynamic skill may still be read: its server may have left, or somebody
    /// revoked the skill, since it was fetched.
    ///
    /// # Errors
    /// It may not.
    pub fn still_dynamic(&self, ino: u64) -> Result<(), ReadError> {
        match self.tree().source(ino) {
            Some(NodeSource::Dynamic(shown, _)) if shown.standing == Standing::Open => Ok(()),
            Some(NodeSource::Dynamic(..)) => Err(ReadError::Denied),
            _ => Err(ReadError::Stale),
        }
    }

    /// Asks a server's shelf for the file that an entry describes.
    async fn shelved<T: Send + 'static>(
        self: &Arc<Self>,
        slot: u16,
        wanted: &Expected,
        ask: fn(&Shelf, &Expected) -> T,
    ) -> Option<T> {
        let (host, wanted) = (Arc::clone(self), wanted.clone());
        let asked = move || {
            let s = host.slot(slot)?;
            Some(ask(s.server.shelf.as_ref()?, &wanted))
        };
        blocking(asked).await.flatten()
    }

    /// Keeps a checked file on disk, without its readers waiting for it. The next large file does,
    /// for a moment: what waits for a slow disk is bounded.
    fn save(self: &Arc<Self>, slot: u16, expected: &Expected, file: &Verified, before: Admitted) {
        let (digest, size, file) = (expected.digest, expected.size, file.clone());
        let Some(slot) = self.slot(slot).filter(|s| s.server.shelf.is_some()) else {
            return;
        };
        // Large ones are not collected: what waits for the disk is memory.
        let small = size <= INLINE_HASH;
        if small && let Some(admitted) = self.admission.admit_save_now(size) {
            let unsaved = Unsaved {
                slot,
                digest,
                file,
                _admitted: admitted,
            };
            self.unsaved.lock().push(unsaved);
            return self.save_due.notify_one();
        }
        let host = Arc::clone(self);
        spawn(async move {
            let admitted = host.admission.admit_save(size).await;
            drop(before);
            if admitted.is_none() {
                tracing::debug!("{digest}: the disk is too slow; not stored");
                return;
            }
            let save = move || {
                if let Some(shelf) = &slot.server.shelf {
                    shelf.save(digest, &file);
                }
            };
            blocking(save).await;
        });
    }

    /// Keeps checked files on disk, for ever.
    async fn keep_files(self: Arc<Self>) {
        loop {
            self.save_due.notified().await;
            sleep(SAVE_GAP).await;
            let host = Arc::clone(&self);
            blocking(move || host.save_files()).await;
        }
    }

    /// Writes the files that wait to be kept. Blocks on the disk.
    fn save_files(&self) {
        let _turn = self.saving.lock();
        let unsaved = std::mem::take(&mut *self.unsaved.lock());
        for one in unsaved {
            if let Some(shelf) = &one.slot.server.shelf {
                shelf.save(one.digest, &one.file);
            }
        }
    }

    /// Asks for the current entries of a file that failed (HR-59): whether they differ from the
    /// ones the read went by. When they do, the new tree is in place and the kernel knows.
    async fn recheck(&self, slot: u16, claims: &[Claim], deadline: Instant) -> bool {
        let s = self.slot(slot);
        let Some(source) = s.as_ref().and_then(|s| s.source.get()) else {
            return false;
        };
        let mut changed = false;
        // The inner skill before the outer one, which lists the same file (HR-37).
        let mut entries: Vec<&Arc<Entry>> = claims.iter().map(|c| &c.entry).collect();
        entries.sort_by_key(|e| std::cmp::Reverse(e.dir.as_str().len()));
        for entry in entries {
            let Ok(known) = ask_known(&**source, &entry.uri, deadline).await else {
                continue;
            };
            let differs = known != Known::Entry(Arc::clone(entry));
            // The server may also have gone back to this entry from one that was seen since.
            if !differs && self.newest(slot, &entry.uri).as_ref() == Some(entry) {
                continue;
            }
            changed |= differs;
            let act = self.act(slot, &entry.uri, Act::Publish(known));
            let _ = timeout(FLUSH_WAIT, act).await;
        }
        changed
    }

    fn newest(&self, slot: u16, uri: &str) -> Option<Arc<Entry>> {
        let s = self.slot(slot)?;
        let now = s.now.lock();
        now.skills.get(uri)?.newest().cloned()
    }

    /// Does something to a skill; returns when the tree shows it and the kernel knows.
    ///
    /// # Errors
    /// The set to approve is not the newest.
    pub async fn act(&self, slot: u16, uri: &Arc<str>, act: Act) -> Result<(), Moved> {
        self.act_until(slot, uri, act, Until::Told).await
    }

    async fn act_until(
        &self,
        slot: u16,
        uri: &Arc<str>,
        act: Act,
        until: Until,
    ) -> Result<(), Moved> {
        let (done, flushed) = oneshot::channel();
        let _ = self
            .inbox
            .send(Message::Act(slot, Arc::clone(uri), act, until, done));
        // Nobody answers for a server that has left.
        flushed.await.unwrap_or(Err(Moved))
    }

    /// Two entries disagree on a file: asks for both, once; only if they still disagree the
    /// file fails (HR-37).
    async fn settle_dispute(&self, ino: u64, claims: &[Claim]) -> ReadError {
        let slot = Tree::slot_of(ino);
        let path = self.tree().path(ino).unwrap_or_default();
        let changed = self
            .recheck(slot, claims, Instant::now() + self.timeout)
            .await;
        let refusal = Refusal::disputed(&path, claims, changed);
        let error = refusal.error;
        self.refuse(slot, refusal);
        self.remember(in_dispute(ino, claims), error);
        error
    }

    fn refuse(&self, slot: u16, refusal: Refusal) {
        if let Some(s) = self.slot(slot) {
            let label = &s.server.label;
            self.metrics.refused(label.as_str(), refusal.error);
            let news = self.refusals.lock().add(slot, refusal.clone());
            if news != News::Known {
                let more = match news {
                    News::TooMuch => "; more of this server is not logged for a minute",
                    _ => "",
                };
                tracing::warn!(
                    "{label}: {} refused ({}): {}{more}",
                    refusal.uri,
                    refusal.path,
                    refusal.reason
                );
            }
            let _ = self.inbox.send(Message::Report);
        }
    }

    /// Runs the writer until the host is gone. `changes` takes what the kernel must be told.
    pub async fn run(self: Arc<Self>, inbox: Inbox, changes: std_mpsc::Sender<Batch>) {
        let Inbox(mut messages) = inbox;
        let reporter = spawn(Arc::clone(&self).report_when_due(changes.clone())).abort_handle();
        spawn(Arc::clone(&self).keep_files());
        for (slot, s) in self.slots() {
            spawn(Arc::clone(&self).journal(slot, Arc::clone(&s)));
            spawn(Arc::clone(&self).keep_listing(slot, s));
        }
        while let Some(message) = messages.recv().await {
            match message {
                Message::Event(slot, event) => self.take(slot, event, &changes),
                Message::Act(slot, uri, act, until, done) => {
                    self.do_act(slot, uri, act, (until, done), &changes);
                }
                Message::Opened(slot) => {
                    let host = Arc::clone(&self);
                    spawn(async move {
                        sleep(OPENED_GAP).await;
                        let _ = host.inbox.send(Message::Settle(slot, None));
                    });
                }
                Message::Settle(slot, done) => {
                    self.show_opened(slot, &changes);
                    drop(done);
                }
                Message::Shown(slot, dir, children, done) => {
                    if let Some(s) = self.slot(slot) {
                        s.now.lock().take_children(dir, children);
                        self.rebuild(slot, None, &changes);
                    }
                    let _ = done.send(());
                }
                Message::Joined(slot, seen, done) => {
                    if let Some(number) = self.take_in(slot, &seen, &changes) {
                        let _ = done.send(number);
                    }
                }
                Message::Left(slot, done) => self.let_go(slot, done, &changes),
                Message::Due(dir) => {
                    let due = vec![Change::Dir(dir)];
                    let _ = changes.send(Batch {
                        changes: due,
                        done: None,
                    });
                }
                Message::Report => {}
            }
            self.report_due.notify_one();
        }
        reporter.abort();
    }

    /// Gives a server its number and shows it.
    fn take_in(
        self: &Arc<Self>,
        slot: Arc<Slot>,
        seen: &Seen,
        changes: &std_mpsc::Sender<Batch>,
    ) -> Option<u16> {
        let number = {
            let mut slots = self.slots.write();
            let number = u16::try_from(slots.len() + 1).ok()?;
            slots.push(Some(Arc::clone(&slot)));
            number
        };
        self.settled.send_modify(|lines| lines.push(None));
        let (label, view) = (
            slot.server.label.clone(),
            slot.first_view(number, self.policy, seen),
        );
        self.swap(|t| t.with_label(number, label, view), None, changes);
        spawn(Arc::clone(self).journal(number, Arc::clone(&slot)));
        spawn(Arc::clone(self).keep_listing(number, slot));
        Some(number)
    }

    /// Takes a server out of the tree and stores what is left to store of it.
    fn let_go(
        self: &Arc<Self>,
        slot: u16,
        done: oneshot::Sender<()>,
        changes: &std_mpsc::Sender<Batch>,
    ) {
        let Some(s) = self.slot(slot) else { return };
        let tree = self.tree();
        if let Some(place) = self.slots.write().get_mut(usize::from(slot) - 1) {
            *place = None;
        }
        let (told, flushed) = oneshot::channel();
        self.swap(|t| t.without_label(slot), Some(told), changes);
        self.memo.lock().retain(|(of, ..), _| *of != slot);
        self.refusals.lock().forget(slot);
        self.metrics.forget(s.server.label.as_str());
        self.settle_as(slot, "removed".into());
        // They end when they find it gone.
        s.windows_due.notify_one();
        s.listing_due.notify_one();
        spawn(async move {
            let _ = flushed.await;
            blocking(move || s.end(slot, &tree, Windows::End)).await;
            let _ = done.send(());
        });
    }

    /// Lets the tree know of windows that were opened, if there are any: what comes next may
    /// depend on them.
    fn show_opened(&self, slot: u16, changes: &std_mpsc::Sender<Batch>) {
        let none = Unshown::default();
        if self
            .slot(slot)
            .is_some_and(|s| s.now.lock().unshown != none)
        {
            self.rebuild(slot, None, changes);
        }
    }

    fn do_act(
        self: &Arc<Self>,
        slot: u16,
        uri: Arc<str>,
        act: Act,
        (until, done): (Until, oneshot::Sender<Result<(), Moved>>),
        changes: &std_mpsc::Sender<Batch>,
    ) {
        self.show_opened(slot, changes);
        let Some(s) = self.slot(slot) else { return };
        let result = {
            let mut now = s.now.lock();
            let skill = now
                .skills
                .entry(Arc::clone(&uri))
                .or_insert_with(|| Skill::new(Known::Withdrawn, Origin::Listed));
            let before = skill.verdict();
            let listed = (skill.known().clone(), skill.origin());
            let result = match act {
                Act::Publish(known) => {
                    skill.publish(known);
                    Ok(())
                }
                Act::Refresh(known) => {
                    skill.publish(known);
                    skill.release();
                    Ok(())
                }
                Act::Name(known) => {
                    skill.publish(known);
                    skill.name();
                    Ok(())
                }
                Act::Release => {
                    skill.release();
                    Ok(())
                }
                Act::Load(entry) => match skill.load(&entry, self.policy.hold) {
                    true => Ok(()),
                    false => Err(Moved),
                },
                Act::Approve(set, scope) => skill.approve(set, scope),
                Act::Revoke => {
                    skill.revoke();
                    Ok(())
                }
            };
            let after = skill.verdict();
            now.unlisted |= listed != (skill.known().clone(), skill.origin());
            now.judged(&uri, before, after);
            now.unshown.add(&uri);
            if now.skills.get(&uri).is_some_and(Skill::is_forgotten) {
                now.skills.remove(&uri);
            }
            if now.listing.is_none() && !now.skills.is_empty() {
                // A skill that is known by name is something to show before any listing.
                let (at, ttl) = (None, Duration::ZERO);
                now.listing = Some(ListingNow {
                    at,
                    ttl,
                    truncated: Some("not listed yet".into()),
                });
            }
            result
        };
        s.windows_due.notify_one();
        let (told, flushed) = oneshot::channel();
        self.rebuild(slot, Some(told), changes);
        self.keep(slot);
        spawn(async move {
            if until == Until::Told {
                let _ = flushed.await;
            }
            let _ = done.send(result);
        });
    }

    fn take(self: &Arc<Self>, slot: u16, event: Event, changes: &std_mpsc::Sender<Batch>) {
        let Some(s) = self.slot(slot) else { return };
        self.show_opened(slot, changes);
        match event {
            Event::Link(link) => {
                let absent = match &link {
                    Link::Down { .. } => Absent::Down,
                    Link::NeedsCredentials { .. } => Absent::Locked,
                    Link::Starting | Link::Ready(_) => Absent::Starting,
                };
                let no_skills = matches!(&link, Link::Ready(peer) if !peer.skills);
                let listed = {
                    let mut now = s.now.lock();
                    now.link = link;
                    now.since = Instant::now();
                    if no_skills && now.listing.is_none() {
                        // It answered, and it serves no skills: that is an empty listing.
                        let (at, ttl) = (Some(Tick::now()), MAX_TTL);
                        now.listing = Some(ListingNow {
                            at,
                            ttl,
                            truncated: None,
                        });
                    }
                    now.listing.is_some()
                };
                match self.tree().view(slot) {
                    Some(View::Unlisted(_)) if listed => self.rebuild(slot, None, changes),
                    Some(View::Unlisted(_)) => {
                        self.swap(|t| t.with_view(slot, View::Unlisted(absent)), None, changes);
                    }
                    _ => {}
                }
                self.settle(slot, no_skills);
            }
            Event::Listed(listing) => {
                s.now.lock().list(listing);
                self.rebuild(slot, None, changes);
                self.keep(slot);
                self.settle(slot, true);
            }
            Event::ListFailed(e) => {
                let text = printable(&e.to_string(), 300);
                tracing::warn!("{}: the listing failed: {text}", s.server.label);
                s.now.lock().list_error = Some(text);
                self.settle(slot, true);
            }
        }
    }

    fn rebuild(
        &self,
        slot: u16,
        done: Option<oneshot::Sender<()>>,
        changes: &std_mpsc::Sender<Batch>,
    ) {
        let Some(s) = self.slot(slot) else { return };
        let tree = self.tree();
        let previous = match tree.view(slot) {
            Some(View::Listed(branch)) => Some(&**branch),
            _ => None,
        };
        let (policy, dynamic, at) = (self.policy, s.server.dynamic, unix_now());
        let some = {
            let mut now = s.now.lock();
            match std::mem::take(&mut now.unshown) {
                Unshown::Skills(uris) => now.show_these(&uris, policy, dynamic),
                Unshown::All => None,
            }
        };
        let next = previous.and_then(|branch| branch.with_skills(some?, at));
        let branch = next.unwrap_or_else(|| {
            let ((shown, declined), beyond) = {
                let now = s.now.lock();
                (now.show(policy, dynamic), now.beyond.clone())
            };
            // What an earlier run saw is in the first branch.
            let seen = Seen::new();
            Branch::of_skills(slot, shown, declined, &beyond, previous, &seen, at)
        });
        let view = View::Listed(Arc::new(branch));
        self.swap(|t| t.with_view(slot, view), done, changes);
        // What was answered may be answered otherwise now; what was not is not.
        let keep = |of, e| of != slot || e == ReadError::TimedOut;
        self.memo.lock().retain(|(of, ..), (_, e)| keep(*of, *e));
    }

    /// Puts the next tree in place and tells the kernel what differs. Only the writer and its
    /// reporter call it; the swap itself is one assignment.
    fn swap(
        &self,
        next: impl FnOnce(&Tree) -> Tree,
        done: Option<oneshot::Sender<()>>,
        changes: &std_mpsc::Sender<Batch>,
    ) {
        let (old, new) = {
            let mut tree = self.tree.write();
            let new = Arc::new(next(&tree));
            (std::mem::replace(&mut *tree, Arc::clone(&new)), new)
        };
        let differs = tree::changes(&old, &new);
        if !differs.is_empty() || done.is_some() {
            let _ = changes.send(Batch {
                changes: differs,
                done,
            });
        }
    }

    /// Stores what changed for the next run, without anybody waiting for it.
    fn keep(&self, slot: u16) {
        let Some(s) = self.slot(slot) else { return };
        s.listing_due.notify_one();
        if s.now.lock().unsaved.is_empty() {
            return;
        }
        spawn_blocking(move || s.warn_unkept(s.keep_verdicts()));
    }

    /// Stores the verdicts that changed; none if there is no state to store them in. Blocks on the
    /// disk.
    pub fn keep_verdicts(&self, slot: u16) -> Option<std::io::Result<()>> {
        self.slot(slot)?.keep_verdicts()
    }

    /// Keeps the stored listing of a server, until that is gone. Writing a large one takes a while,
    /// so that is done for a tenth of the time at most.
    async fn keep_listing(self: Arc<Self>, slot: u16, s: Arc<Slot>) {
        loop {
            s.listing_due.notified().await;
            if self.slot(slot).is_none() {
                return;
            }
            let (s, tree, began) = (Arc::clone(&s), self.tree(), Instant::now());
            blocking(move || s.warn_unkept(s.save_listing(slot, &tree))).await;
            sleep(rest(began)).await;
        }
    }

    /// Keeps the journal of a server's windows, until that is gone; while many open one after the
    /// other, for a tenth of the time.
    async fn journal(self: Arc<Self>, slot: u16, s: Arc<Slot>) {
        let mut warned = false;
        loop {
            s.windows_due.notified().await;
            if self.slot(slot).is_none() {
                return;
            }
            let (stored, began) = (Arc::clone(&s), Instant::now());
            let saved = blocking(move || {
                let over = stored.storing.lock();
                if *over {
                    return None;
                }
                stored.save_windows()
            });
            let saved = saved.await.flatten();
            if let Some(Err(e)) = &saved
                && !warned
            {
                let label = &s.server.label;
                tracing::warn!("{label}: open windows will not outlive a crash: {e}");
            }
            warned = matches!(saved, Some(Err(_)));
            sleep(rest(began)).await;
        }
    }

    /// Stores what is left to store: the mount is over (HR-72). Blocks on the disk.
    pub fn end(&self, windows: Windows) {
        self.save_files();
        let tree = self.tree();
        for (slot, s) in self.slots() {
            s.end(slot, &tree, windows);
        }
        if let Some(audit) = self.audit.get() {
            audit.end();
        }
    }

    /// Notes once what became of the first connection of a label.
    fn settle(&self, slot: u16, listed: bool) {
        let Some(s) = self.slot(slot) else { return };
        let tree = self.tree();
        let line = {
            let now = s.now.lock();
            match &now.link {
                Link::Down { reason } => Some(format!("down: {reason}")),
                Link::NeedsCredentials { reason } => Some(format!("needs-credentials: {reason}")),
                Link::Ready(peer) if !peer.skills => Some("connected; it serves no skills".into()),
                Link::Ready(_) if listed => Some(match &now.list_error {
                    Some(e) => format!("connected; the listing failed: {e}"),
                    None => match tree.view(slot) {
                        Some(View::Listed(b)) => {
                            report::count_line(b.skills().count(), b.declined().count())
                        }
                        _ => "connected".into(),
                    },
                }),
                Link::Ready(_) | Link::Starting => None,
            }
        };
        if let Some(line) = line {
            self.settle_as(slot, line);
        }
    }

    fn settle_as(&self, slot: u16, line: String) {
        let Some(index) = usize::from(slot).checked_sub(1) else {
            return;
        };
        self.settled
            .send_if_modified(|lines| match lines.get_mut(index) {
                Some(entry @ None) => {
                    *entry = Some(line);
                    true
                }
                _ => false,
            });
    }

    async fn report_when_due(self: Arc<Self>, changes: std_mpsc::Sender<Batch>) {
        loop {
            self.report_due.notified().await;
            let (host, changes, began) = (Arc::clone(&self), changes.clone(), Instant::now());
            blocking(move || host.write_reports(Some(&changes))).await;
            sleep(REPORT_GAP.max(rest(began))).await;
        }
    }

    /// Rewrites README.md and `.mount-skills/` where they differ from what is shown.
    fn write_reports(&self, changes: Option<&std_mpsc::Sender<Batch>>) {
        let files = report::files(&self.status());
        let tree = self.tree();
        let ours = Branch::of_texts(&files, Some(tree.ours()), unix_now());
        let sink = std_mpsc::channel().0;
        self.swap(
            |t| t.with_ours(Arc::new(ours)),
            None,
            changes.unwrap_or(&sink),
        );
    }
}

impl Slot {
    /// A server with what an earlier run left of it, and when that was first seen. Blocks on the
    /// disk.
    fn new(server: Server) -> (Self, Seen) {
        let (now, seen) = Now::restored(&server);
        let slot = Self {
            server,
            source: OnceLock::new(),
            share: Share::new(),
            now: Mutex::new(now),
            windows_due: Notify::new(),
            listing_due: Notify::new(),
            storing: Mutex::new(false),
            listing: Mutex::new(()),
        };
        (slot, seen)
    }

    /// What is shown of it before it has said a word.
    fn first_view(&self, number: u16, policy: Policy, seen: &Seen) -> View {
        let now = self.now.lock();
        if now.listing.is_none() {
            return View::Unlisted(Absent::Starting);
        }
        let (shown, declined) = now.show(policy, self.server.dynamic);
        let (beyond, at) = (Beyond::default(), unix_now());
        let branch = Branch::of_skills(number, shown, declined, &beyond, None, seen, at);
        View::Listed(Arc::new(branch))
    }

    fn warn_unkept(&self, kept: Option<std::io::Result<()>>) {
        if let Some(Err(e)) = kept {
            tracing::warn!("{}: the state cannot be stored: {e}", self.server.label);
        }
    }

    /// Stores the verdicts that changed; none if there is no state to store them in. Blocks on the
    /// disk.
    fn keep_verdicts(&self) -> Option<std::io::Result<()>> {
        let state = self.server.state.as_ref()?;
        let _turn = self.storing.lock();
        let mut verdicts = std::mem::take(&mut self.now.lock().unsaved);
        if self.server.locked.is_some() {
            verdicts.clear();
        }
        if verdicts.is_empty() {
            return Some(Ok(()));
        }
        let judged = state.save_verdicts(&verdicts);
        if judged.is_err() {
            // Tried again with the next change, unless that is about the same skill.
            let mut now = self.now.lock();
            for (uri, verdict) in verdicts {
                now.unsaved.entry(uri).or_insert(verdict);
            }
        }
        Some(judged)
    }

    /// Stores the listing if it changed; none if there is no state to store it in. Blocks on the
    /// disk.
    fn save_listing(&self, slot: u16, tree: &Tree) -> Option<std::io::Result<()>> {
        let state = self.server.state.as_ref()?;
        let _turn = self.listing.lock();
        let branch = match tree.view(slot) {
            Some(View::Listed(branch)) => Some(branch),
            _ => None,
        };
        let (entries, named): (Vec<Arc<Entry>>, Vec<Arc<str>>) = {
            let mut now = self.now.lock();
            if now.listing.is_none() || !std::mem::take(&mut now.unlisted) {
                return Some(Ok(()));
            }
            let named = now.skills.iter();
            let named = named.filter(|(_, s)| s.origin() == Origin::Named);
            let newest = now.skills.values().filter_map(Skill::newest);
            (
                newest.cloned().collect(),
                named.map(|(uri, _)| Arc::clone(uri)).collect(),
            )
        };
        let named: Vec<&str> = named.iter().map(|uri| &**uri).collect();
        let seen = branch.into_iter().flat_map(|branch| branch.seen());
        let saved = state.save_listing(&entries, &named, seen);
        if saved.is_err() {
            self.now.lock().unlisted = true;
        }
        Some(saved)
    }

    /// Stores the windows that are open; the caller has the turn. Blocks on the disk.
    fn save_windows(&self) -> Option<std::io::Result<()>> {
        let state = self.server.state.as_ref()?;
        let now = self.now.lock();
        let held = now.skills.values().filter_map(|s| s.held().cloned());
        let held: Vec<Arc<Entry>> = held.collect();
        drop(now);
        Some(state.save_windows(&held))
    }

    /// Stores what is left to store, and what becomes of the windows. Blocks on the disk.
    fn end(&self, slot: u16, tree: &Tree, windows: Windows) {
        self.warn_unkept(self.keep_verdicts());
        self.warn_unkept(self.save_listing(slot, tree));
        let mut over = self.storing.lock();
        *over = true;
        let stored = match windows {
            Windows::End => self.server.state.as_ref().map(|s| s.save_windows(&[])),
            Windows::Keep => self.save_windows(),
        };
        if let Some(Err(e)) = stored {
            let label = &self.server.label;
            tracing::warn!("{label}: the windows cannot be stored as they are: {e}");
        }
    }
}

impl Now {
    /// What an earlier run left of a server, and when that was first seen.
    fn restored(server: &Server) -> (Self, Seen) {
        let mut stored = server.state.as_ref().map(State::load).unwrap_or_default();
        if let Some(locked) = &server.locked {
            stored.verdicts = locked.clone();
        }
        let listing = stored.listing.as_ref().map(|_| ListingNow {
            at: None,
            ttl: Duration::ZERO,
            truncated: None,
        });
        let StoredListing {
            entries,
            named,
            seen,
        } = stored.listing.unwrap_or_default();
        let mut skills: BTreeMap<Arc<str>, Skill> = entries
            .into_iter()
            .map(|e| {
                let origin = if named.contains(&e.uri) {
                    Origin::Named
                } else {
                    Origin::Listed
                };
                (Arc::clone(&e.uri), Skill::new(Known::Entry(e), origin))
            })
            .collect();
        let mut held: HashMap<Arc<str>, Arc<Entry>> = stored
            .held
            .into_iter()
            .map(|e| (Arc::clone(&e.uri), e))
            .collect();
        let uris: BTreeSet<Arc<str>> = held.keys().chain(stored.verdicts.keys()).cloned().collect();
        let mut unsaved = Verdicts::new();
        for uri in uris {
            let skill = skills
                .entry(Arc::clone(&uri))
                .or_insert_with(|| Skill::new(Known::Withdrawn, Origin::Listed));
            let before = stored.verdicts.get(&uri).copied();
            skill.restore(held.remove(&uri), before);
            // An approval that has lapsed meanwhile must not come back with the next run.
            if let Some(verdict) = skill.verdict().filter(|v| Some(*v) != before) {
                unsaved.insert(uri, verdict);
            }
        }
        let now = Self {
            link: Link::Starting,
            since: Instant::now(),
            skills,
            nameless: Vec::new(),
            listing,
            list_error: None,
            unshown: Unshown::default(),
            beyond: Beyond::default(),
            retrieved: HashMap::new(),
            walked: walk::Walked::default(),
            unsaved,
            unlisted: false,
        };
        (now, seen)
    }

    /// What the tree shows of these skills; none if one of them is not shown.
    fn show_these(
        &self,
        uris: &BTreeSet<Arc<str>>,
        policy: Policy,
        dynamic: Dynamic,
    ) -> Option<Vec<Arc<Shown>>> {
        let show = |uri| {
            let shown = self.skills.get(uri)?.shown(policy)?;
            let is_declined =
                shown.entry.content == Content::Dynamic && dynamic == Dynamic::Declined;
            (!is_declined).then(|| Arc::new(shown))
        };
        uris.iter().map(show).collect()
    }

    /// What the tree shows, and what it shows as declined.
    fn show(&self, policy: Policy, dynamic: Dynamic) -> (Vec<Arc<Shown>>, Vec<Arc<Declined>>) {
        let (mut shown, mut declined) = (Vec::new(), self.nameless.clone());
        for skill in self.skills.values() {
            match (skill.shown(policy), skill.known()) {
                (Some(s), _)
                    if s.entry.content == Content::Dynamic && dynamic == Dynamic::Declined =>
                {
                    let (uri, dir) = (Some(s.entry.uri.clone()), Some(s.entry.dir.clone()));
                    declined.push(Arc::new(Declined {
                        uri,
                        dir,
                        reason: Reason::Dynamic,
                    }));
                }
                (Some(s), _) => shown.push(Arc::new(s)),
                (None, Known::Declined(d)) => declined.push(Arc::clone(d)),
                (None, _) => {}
            }
        }
        (shown, declined)
    }

    /// Takes what the server showed in a directory, in place of what it showed there before.
    fn take_children(&mut self, dir: RelPath, children: Vec<DirChild>) {
        self.unshown = Unshown::All;
        let in_dir = |p: &RelPath| p.parent().as_ref() == Some(&dir);
        self.beyond.dirs.retain(|p| !in_dir(p));
        self.beyond.files.retain(|p, _| !in_dir(p));
        let room = MAX_BEYOND.saturating_sub(self.beyond.dirs.len() + self.beyond.files.len());
        if children.len() > room {
            tracing::warn!(
                "{}: it shows more than {MAX_BEYOND} names in its directories that no entry has; \
                 the rest is not shown",
                spelt(dir.as_str())
            );
        }
        for child in children.into_iter().take(room) {
            match child.kind {
                ChildKind::Directory => drop(self.beyond.dirs.insert(child.path)),
                ChildKind::File => drop(self.beyond.files.insert(child.path, child.uri.into())),
            }
        }
        self.beyond.dirs.insert(dir);
    }

    /// Takes a listing. One that is not whole proves no absence: what it does not mention stays,
    /// and so does what was named by its URI (HR-46).
    fn list(&mut self, listing: Listing) {
        let Listing {
            entries,
            declined,
            truncated,
            ttl,
        } = listing;
        let mut named: HashMap<Arc<str>, Known> = entries
            .into_iter()
            .map(|e| (Arc::clone(&e.uri), Known::Entry(e)))
            .collect();
        if self.listing.is_none() || !self.nameless.is_empty() {
            self.unshown = Unshown::All;
        }
        self.nameless.clear();
        for d in declined {
            match &d.uri {
                Some(uri) => drop(named.insert(Arc::clone(uri), Known::Declined(Arc::new(d)))),
                None => {
                    self.unshown = Unshown::All;
                    self.nameless.push(Arc::new(d));
                }
            }
        }
        let mut judged = Vec::new();
        for (uri, skill) in &mut self.skills {
            let (before, known) = (skill.verdict(), skill.known().clone());
            match named.remove(uri) {
                Some(known) => skill.publish(known),
                None if truncated.is_some() || skill.origin() == Origin::Named => {}
                None => skill.publish(Known::Withdrawn),
            }
            if *skill.known() != known {
                self.unlisted = true;
                self.unshown.add(uri);
            }
            judged.push((Arc::clone(uri), before, skill.verdict()));
        }
        for (uri, before, after) in judged {
            self.judged(&uri, before, after);
        }
        self.unlisted |= self.listing.is_none() || !named.is_empty();
        for (uri, known) in named {
            self.unshown.add(&uri);
            self.skills.insert(uri, Skill::new(known, Origin::Listed));
        }
        self.skills.retain(|_, skill| !skill.is_forgotten());
        self.listing = Some(ListingNow {
            at: Some(Tick::now()),
            ttl,
            truncated,
        });
        self.list_error = None;
    }

    /// Notes a verdict that is to be stored, if it changed.
    fn judged(&mut self, uri: &Arc<str>, before: Option<Verdict>, after: Option<Verdict>) {
        if let Some(verdict) = after.filter(|_| before != after) {
            self.unsaved.insert(Arc::clone(uri), verdict);
        }
    }
}

/// The server's newest word on one skill.
///
/// # Errors
/// It could not be had; the server's "no such skill" is an answer.
async fn ask_known(
    source: &dyn Source,
    uri: &str,
    deadline: Instant,
) -> Result<Known, SourceError> {
    match source.get(uri, deadline).await {
        Ok(Ok(entry)) => Ok(Known::Entry(Arc::new(entry))),
        Ok(Err(declined)) => Ok(Known::Declined(Arc::new(declined))),
        Err(e) if e.is_unknown() => Ok(Known::Withdrawn),
        Err(e) => Err(e),
    }
}

/// A file that may be read, as the entries in force describe it.
struct File {
    slot: u16,
    expected: Expected,
    from: From,
    /// The entries that reading it loads.
    loads: Vec<Arc<Entry>>,
    claims: Vec<Claim>,
}

impl File {
    fn asked(&self) -> Asked {
        let uri = Arc::clone(&self.expected.uri);
        (self.slot, uri, Some(self.expected.key()))
    }

    fn key(&self) -> Key {
        (self.slot, self.expected.key())
    }
}

fn in_dispute(ino: u64, claims: &[Claim]) -> Asked {
    let uri = claims.first().map(|c| Arc::clone(&c.file.uri));
    (Tree::slot_of(ino), uri.unwrap_or_else(|| "".into()), None)
}

/// What an inode is, under the entries in force.
enum Resolved {
    Text(Verified),
    File(File),
    Disputed(Vec<Claim>),
}

/// Why bytes were not accepted.
enum Problem {
    Mismatch(Mismatch),
    Source(SourceError),
}

/// Runs work that blocks or takes long off the async threads; none if it panicked.
/// How long to rest from what began then, so that it takes a tenth of the time at most.
fn rest(began: Instant) -> Duration {
    began.elapsed() * 9
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    spawn_blocking(work).await.ok()
}

fn unix_now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs())
}

/// How long a failed read is answered with the same error.
fn remembered(e: ReadError) -> Duration {
    match e {
        ReadError::TimedOut => MEMO_OF_TIMEOUT,
        _ => MEMO,
    }
}
