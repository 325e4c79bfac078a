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
//! - At most one lock is held at a time, and none across I/O or a message to the kernel.

mod flight;
mod memory;
mod refusal;
pub mod report;

pub use refusal::{ReadError, Refusal};

use crate::domain::manifest::{Declined, Entry};
use crate::domain::name::Label;
use crate::domain::skill::{Claim, Decision, decide};
use crate::domain::tree::{self, Absent, Branch, Change, Seen, Source as NodeSource, Tree, View};
use crate::domain::verify::{Expected, Mismatch, Verified, verify};
use crate::source::{Event, Link, Listing, Source, SourceError};
use crate::store::cache::{Cache, Shelf};
use crate::store::state::State;
use flight::Flights;
use memory::{Key, Memory};
use parking_lot::{Mutex, RwLock};
use refusal::Refusals;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, mpsc as std_mpsc};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{Notify, mpsc, oneshot, watch};

/// A label's listing counts as fresh for at least this long, whatever its server says.
const MIN_TTL: Duration = Duration::from_secs(1);
/// …and for at most this long.
const MAX_TTL: Duration = Duration::from_secs(3600);
/// A read that failed is answered with the same error for this long: the kernel asks twice.
const MEMO: Duration = Duration::from_secs(1);
/// Files larger than this are hashed off the async threads.
const INLINE_HASH: u64 = 256 * 1024;
/// Status files are rewritten at most this often.
const REPORT_GAP: Duration = Duration::from_millis(100);
/// How long a failed read waits for the kernel to hear of the change it found.
const FLUSH_WAIT: Duration = Duration::from_secs(1);

/// What is asked of a server: what one URI gave says nothing of another that promises the same
/// bytes.
type Question = (Key, Arc<str>);

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
    slots: Vec<Slot>,
    tree: RwLock<Arc<Tree>>,
    memory: Memory,
    flights: Flights<Question, Result<Verified, ReadError>>,
    /// Reads that failed a moment ago.
    memo: Mutex<HashMap<Question, (Instant, ReadError)>>,
    refusals: Mutex<Refusals>,
    inbox: mpsc::UnboundedSender<Message>,
    report_due: Notify,
    settled: watch::Sender<Vec<Option<String>>>,
    cache: Option<Arc<Cache>>,
    timeout: Duration,
    mountpoint: PathBuf,
    started: SystemTime,
}

struct Slot {
    server: Server,
    source: OnceLock<Arc<dyn Source>>,
    now: Mutex<Now>,
}

/// What is known of a server at this moment.
struct Now {
    link: Link,
    since: Instant,
    entries: Vec<Arc<Entry>>,
    declined: Vec<Declined>,
    seen: Seen,
    listing: Option<ListingNow>,
    list_error: Option<String>,
}

struct ListingNow {
    /// None for a listing of an earlier run.
    at: Option<Instant>,
    ttl: Duration,
    truncated: Option<String>,
}

/// What the writer is told.
enum Message {
    Event(u16, Event),
    /// What `skills/get` said of a skill: its entry, why it is declined, or that it is gone.
    Got(
        u16,
        Arc<str>,
        Option<Result<Entry, Declined>>,
        oneshot::Sender<()>,
    ),
    Report,
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
        cache: Option<Arc<Cache>>,
        mountpoint: PathBuf,
        timeout: Duration,
    ) -> (Arc<Self>, Inbox) {
        let (inbox, messages) = mpsc::unbounded_channel();
        let now = unix_now();
        let mut labels = Vec::new();
        let mut slots = Vec::new();
        for (slot, server) in (1u16..).zip(servers) {
            let stored = server.state.as_ref().and_then(State::load);
            let listing = stored.as_ref().map(|_| ListingNow {
                at: None,
                ttl: Duration::ZERO,
                truncated: None,
            });
            let stored = stored.unwrap_or_default();
            let view = match &listing {
                None => View::Unlisted(Absent::Starting),
                Some(_) => View::Listed(Arc::new(Branch::of_entries(
                    slot,
                    stored.entries.clone(),
                    Vec::new(),
                    None,
                    &stored.seen,
                    now,
                ))),
            };
            labels.push((server.label.clone(), view));
            slots.push(Slot {
                server,
                source: OnceLock::new(),
                now: Mutex::new(Now {
                    link: Link::Starting,
                    since: Instant::now(),
                    entries: stored.entries,
                    declined: Vec::new(),
                    seen: stored.seen,
                    listing,
                    list_error: None,
                }),
            });
        }
        let ours = Arc::new(Branch::of_texts(&Default::default(), None, now));
        let settled = watch::Sender::new(vec![None; slots.len()]);
        let host = Arc::new(Self {
            slots,
            tree: RwLock::new(Arc::new(Tree::new(ours, labels, now))),
            memory: Memory::new(),
            flights: Flights::new(),
            memo: Mutex::default(),
            refusals: Mutex::default(),
            inbox,
            report_due: Notify::new(),
            settled,
            cache,
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

    /// Takes what a server's session publishes.
    pub fn event(&self, slot: u16, event: Event) {
        let _ = self.inbox.send(Message::Event(slot, event));
    }

    /// For each label one line as soon as its first connection has come to something.
    pub fn settled(&self) -> watch::Receiver<Vec<Option<String>>> {
        self.settled.subscribe()
    }

    /// The tree at this moment.
    pub fn tree(&self) -> Arc<Tree> {
        Arc::clone(&self.tree.read())
    }

    fn slot(&self, slot: u16) -> Option<&Slot> {
        usize::from(slot)
            .checked_sub(1)
            .and_then(|i| self.slots.get(i))
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
        match self.resolve(ino) {
            Err(e) => Some(Err(e)),
            Ok(Resolved::Text(text)) => Some(Ok(text)),
            Ok(Resolved::File { key, expected, .. }) => {
                if let Some(file) = self.memory.get(&key) {
                    return Some(Ok(file));
                }
                let memo = self.memo.lock();
                memo.get(&(key, expected.uri))
                    .filter(|(at, _)| at.elapsed() < MEMO)
                    .map(|(_, e)| Err(*e))
            }
            Ok(Resolved::Disputed(_)) => None,
        }
    }

    /// The content of a file: from memory, from the disk or from its server, checked.
    ///
    /// # Errors
    /// By what the reader is told; the reason is in the status of the label.
    pub async fn read(self: &Arc<Self>, ino: u64) -> Result<Verified, ReadError> {
        if let Some(result) = self.read_now(ino) {
            return result;
        }
        let slot = Tree::slot_of(ino);
        let (key, expected, claims) = match self.resolve(ino)? {
            Resolved::Text(text) => return Ok(text),
            Resolved::File {
                key,
                expected,
                claims,
            } => (key, expected, claims),
            Resolved::Disputed(claims) => return self.settle_dispute(slot, ino, &claims).await,
        };
        let path = self.tree().path(ino).unwrap_or_default();
        let flight = (key, expected.uri.clone());
        let host = Arc::clone(self);
        let fetch = move || async move { host.fetch(slot, path, key, expected, claims).await };
        let result = self
            .flights
            .join(flight, fetch)
            .await
            .unwrap_or(Err(ReadError::Internal));
        // Decide again: the entry may have changed while the bytes were on their way.
        match (result, self.resolve(ino)) {
            (Ok(file), Ok(Resolved::File { key: k, .. })) if k == key => Ok(file),
            (Ok(_), Ok(_)) => Err(ReadError::Stale),
            (Ok(_), Err(e)) => Err(e),
            (Err(e), _) => Err(e),
        }
    }

    fn resolve(&self, ino: u64) -> Result<Resolved, ReadError> {
        let tree = self.tree();
        let slot = Tree::slot_of(ino);
        match tree.source(ino) {
            None => Err(ReadError::Stale),
            Some(NodeSource::Text(text)) => Ok(Resolved::Text(text)),
            Some(NodeSource::Declined(d)) => {
                let path = tree.path(ino).unwrap_or_default();
                let uri = d.uri.as_deref().unwrap_or_default();
                self.refuse(slot, Refusal::declined(&path, uri, &d.reason));
                Err(ReadError::Denied)
            }
            Some(NodeSource::Skill(claims)) => match decide(&claims) {
                None => Err(ReadError::Stale),
                Some(Decision::Disagree(..)) => Ok(Resolved::Disputed(claims)),
                Some(Decision::Serve(expected)) => {
                    let (digest, front) = expected.key();
                    Ok(Resolved::File {
                        key: (slot, digest, front),
                        expected,
                        claims,
                    })
                }
            },
        }
    }

    async fn fetch(
        self: Arc<Self>,
        slot: u16,
        path: String,
        key: Key,
        expected: Expected,
        claims: Vec<Claim>,
    ) -> Result<Verified, ReadError> {
        let result = self.fetch_once(slot, &path, &expected, &claims).await;
        match &result {
            Ok(file) => self.memory.put(key, file.clone()),
            Err(e) => {
                let mut memo = self.memo.lock();
                memo.retain(|_, (at, _)| at.elapsed() < MEMO);
                memo.insert((key, expected.uri), (Instant::now(), *e));
            }
        }
        result
    }

    async fn fetch_once(
        self: &Arc<Self>,
        slot: u16,
        path: &str,
        expected: &Expected,
        claims: &[Claim],
    ) -> Result<Verified, ReadError> {
        let deadline = Instant::now() + self.timeout;
        let (host, wanted) = (Arc::clone(self), expected.clone());
        let cached = blocking(move || host.slot(slot)?.server.shelf.as_ref()?.load(&wanted)).await;
        if let Some(Some(file)) = cached {
            return Ok(file);
        }
        let source = self
            .slot(slot)
            .and_then(|s| s.source.get())
            .ok_or(ReadError::Down)?;
        let problem = match source.read(&expected.uri, expected.size, deadline).await {
            Ok(bytes) => {
                let wanted = expected.clone();
                let verdict = if expected.size > INLINE_HASH {
                    blocking(move || verify(bytes, &wanted))
                        .await
                        .ok_or(ReadError::Internal)?
                } else {
                    verify(bytes, &wanted)
                };
                match verdict {
                    Ok(file) => {
                        self.save(slot, expected, &file);
                        return Ok(file);
                    }
                    Err(mismatch) => Problem::Mismatch(mismatch),
                }
            }
            Err(e @ (SourceError::Rejected { .. } | SourceError::Malformed(_))) => {
                Problem::Source(e)
            }
            Err(e) => {
                let refusal = Refusal::unanswered(path, &expected.uri, &e);
                let error = refusal.error;
                self.refuse(slot, refusal);
                return Err(error);
            }
        };
        let changed = self.recheck(slot, claims, deadline).await;
        let refusal = match problem {
            Problem::Mismatch(m) => Refusal::mismatch(path, &expected.uri, &m, changed),
            Problem::Source(e) => Refusal::rejected(path, &expected.uri, &e, changed),
        };
        let error = refusal.error;
        self.refuse(slot, refusal);
        Err(error)
    }

    /// Keeps a checked file on disk, without anybody waiting for it.
    fn save(self: &Arc<Self>, slot: u16, expected: &Expected, file: &Verified) {
        let (host, digest, file) = (Arc::clone(self), expected.digest, file.clone());
        tokio::task::spawn_blocking(move || {
            if let Some(shelf) = host.slot(slot).and_then(|s| s.server.shelf.as_ref()) {
                shelf.save(digest, &file);
            }
        });
    }

    /// Asks for the current entries of a file that failed (HR-59): whether they differ from the
    /// ones the read went by. When they do, the new tree is in place and the kernel knows.
    async fn recheck(&self, slot: u16, claims: &[Claim], deadline: Instant) -> bool {
        let Some(source) = self.slot(slot).and_then(|s| s.source.get()) else {
            return false;
        };
        let mut changed = false;
        // The innermost skill last lists fewer files: ask it first (HR-37).
        let mut entries: Vec<&Arc<Entry>> = claims.iter().map(|c| &c.entry).collect();
        entries.sort_by_key(|e| std::cmp::Reverse(e.dir.as_str().len()));
        for entry in entries {
            let got = match source.get(&entry.uri, deadline).await {
                Ok(Ok(new)) if new == **entry => continue,
                Ok(got) => Some(got),
                Err(e) if e.is_unknown() => None,
                Err(_) => continue,
            };
            changed = true;
            let (done, flushed) = oneshot::channel();
            let _ = self
                .inbox
                .send(Message::Got(slot, entry.uri.clone(), got, done));
            let _ = tokio::time::timeout(FLUSH_WAIT, flushed).await;
        }
        changed
    }

    /// Two entries disagree on a file: asks for both, once; only if they still disagree the
    /// file fails (HR-37).
    async fn settle_dispute(
        self: &Arc<Self>,
        slot: u16,
        ino: u64,
        claims: &[Claim],
    ) -> Result<Verified, ReadError> {
        let tree = self.tree();
        let path = tree.path(ino).unwrap_or_default();
        let changed = self
            .recheck(slot, claims, Instant::now() + self.timeout)
            .await;
        let refusal = Refusal::disputed(&path, claims, changed);
        let error = refusal.error;
        self.refuse(slot, refusal);
        Err(error)
    }

    fn refuse(&self, slot: u16, refusal: Refusal) {
        if let Some(s) = self.slot(slot) {
            let label = &s.server.label;
            if self.refusals.lock().add(slot, refusal.clone()) {
                tracing::warn!(
                    "{label}: {} refused ({}): {}",
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
        let reporter = tokio::spawn(Arc::clone(&self).report_when_due(changes.clone()));
        while let Some(message) = messages.recv().await {
            match message {
                Message::Event(slot, event) => self.take(slot, event, &changes),
                Message::Got(slot, uri, got, done) => {
                    if let Some(s) = self.slot(slot) {
                        let mut now = s.now.lock();
                        now.entries.retain(|e| e.uri != uri);
                        now.declined.retain(|d| d.uri.as_ref() != Some(&uri));
                        match got {
                            Some(Ok(entry)) => now.entries.push(Arc::new(entry)),
                            Some(Err(declined)) => now.declined.push(declined),
                            None => {}
                        }
                    }
                    self.rebuild(slot, Some(done), &changes);
                }
                Message::Report => {}
            }
            self.report_due.notify_one();
        }
        reporter.abort();
    }

    fn take(self: &Arc<Self>, slot: u16, event: Event, changes: &std_mpsc::Sender<Batch>) {
        let Some(s) = self.slot(slot) else { return };
        match event {
            Event::Link(link) => {
                let absent = match &link {
                    Link::Down { .. } => Absent::Down,
                    Link::Starting | Link::Ready(_) => Absent::Starting,
                };
                let no_skills = matches!(&link, Link::Ready(peer) if !peer.skills);
                let listed = {
                    let mut now = s.now.lock();
                    now.link = link;
                    now.since = Instant::now();
                    if no_skills && now.listing.is_none() {
                        // It answered, and it serves no skills: that is an empty listing.
                        let ttl = MAX_TTL;
                        now.listing = Some(ListingNow {
                            at: None,
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
                self.list(s, listing);
                self.rebuild(slot, None, changes);
                self.keep(slot);
                self.settle(slot, true);
            }
            Event::ListFailed(e) => {
                let text = crate::domain::text::printable(&e.to_string(), 300);
                tracing::warn!("{}: the listing failed: {text}", s.server.label);
                s.now.lock().list_error = Some(text);
                self.settle(slot, true);
            }
        }
    }

    /// Takes a listing. One that is not whole proves no absence: what it does not mention stays.
    fn list(&self, s: &Slot, listing: Listing) {
        let Listing {
            mut entries,
            declined,
            truncated,
            ttl,
        } = listing;
        let mut now = s.now.lock();
        if truncated.is_some() {
            let known: std::collections::HashSet<Arc<str>> = entries
                .iter()
                .map(|e| e.uri.clone())
                .chain(declined.iter().filter_map(|d| d.uri.clone()))
                .collect();
            let old = now
                .entries
                .iter()
                .filter(|e| !known.contains(&e.uri))
                .cloned();
            entries.extend(old);
        }
        now.entries = entries;
        now.declined = declined;
        now.listing = Some(ListingNow {
            at: Some(Instant::now()),
            ttl,
            truncated,
        });
        now.list_error = None;
    }

    fn rebuild(
        &self,
        slot: u16,
        done: Option<oneshot::Sender<()>>,
        changes: &std_mpsc::Sender<Batch>,
    ) {
        let Some(s) = self.slot(slot) else { return };
        let (entries, declined, seen) = {
            let now = s.now.lock();
            (now.entries.clone(), now.declined.clone(), now.seen.clone())
        };
        let tree = self.tree();
        let previous = match tree.view(slot) {
            Some(View::Listed(branch)) => Some(&**branch),
            _ => None,
        };
        let branch = Branch::of_entries(slot, entries, declined, previous, &seen, unix_now());
        let view = View::Listed(Arc::new(branch));
        self.swap(|t| t.with_view(slot, view), done, changes);
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

    /// Stores a listing for the next run.
    fn keep(self: &Arc<Self>, slot: u16) {
        let host = Arc::clone(self);
        tokio::task::spawn_blocking(move || {
            let Some(s) = host.slot(slot) else { return };
            let Some(state) = &s.server.state else { return };
            let tree = host.tree();
            let Some(View::Listed(branch)) = tree.view(slot) else {
                return;
            };
            let entries = s.now.lock().entries.clone();
            if let Err(e) = state.save(&entries, &branch.seen()) {
                tracing::warn!("{}: the listing cannot be stored: {e}", s.server.label);
            }
        });
    }

    /// Notes once what became of the first connection of a label.
    fn settle(&self, slot: u16, listed: bool) {
        let Some(s) = self.slot(slot) else { return };
        let line = {
            let now = s.now.lock();
            match &now.link {
                Link::Down { reason } => Some(format!("down: {reason}")),
                Link::Ready(peer) if !peer.skills => Some("connected; it serves no skills".into()),
                Link::Ready(_) if listed => Some(match &now.list_error {
                    Some(e) => format!("connected; the listing failed: {e}"),
                    None => report::count_line(now.entries.len(), now.declined.len()),
                }),
                Link::Ready(_) | Link::Starting => None,
            }
        };
        if let (Some(line), Some(index)) = (line, usize::from(slot).checked_sub(1)) {
            self.settled
                .send_if_modified(|lines| match lines.get_mut(index) {
                    Some(entry @ None) => {
                        *entry = Some(line);
                        true
                    }
                    _ => false,
                });
        }
    }

    async fn report_when_due(self: Arc<Self>, changes: std_mpsc::Sender<Batch>) {
        loop {
            self.report_due.notified().await;
            self.write_reports(Some(&changes));
            tokio::time::sleep(REPORT_GAP).await;
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

/// What an inode is, under the entries in force.
enum Resolved {
    Text(Verified),
    File {
        key: Key,
        expected: Expected,
        claims: Vec<Claim>,
    },
    Disputed(Vec<Claim>),
}

/// Why bytes were not accepted.
enum Problem {
    Mismatch(Mismatch),
    Source(SourceError),
}

/// Runs work that blocks or takes long off the async threads; none if it panicked.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

fn unix_now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs())
}
