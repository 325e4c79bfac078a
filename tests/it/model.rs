//! The host against a model of what it should do, step by step.
//!
//! [`Model`] says in plain maps what the design promises of one server: what it is known to
//! publish, what is held, what the user said, what is cached. The host runs over [`Fake`]
//! sources with its real cache and state in a directory of its own, without FUSE and without
//! MCP, and every random step is done to both. After each step they must agree on names and
//! sizes, states, what is on disk, what went over the wire, and what a read gives.
//!
//! Time is the runtime's own clock: it stands still while anything is under way, also on disk,
//! and jumps when all waits. So "settled" is exact, and an hour passes at once.

use mount_skills::domain::digest::Digest;
use mount_skills::domain::manifest::{Declined, Entry as Parsed};
use mount_skills::domain::skill::{self, Approval, Hold, Policy, Scope};
use mount_skills::domain::tree::{Absent, Change, Kind, Lookup, ROOT, Tree, View};
use mount_skills::domain::verify::Untrusted;
use mount_skills::host::command::Trouble;
use mount_skills::host::report::{ServerStatus, Status};
use mount_skills::host::{Host, ReadError, Server as HostServer};
use mount_skills::source::{Answer, Era, Event, Figures, Link, Listing, Peer, Source, SourceError};
use mount_skills::store::cache::{Cache, DEFAULT_CAP};
use mount_skills::store::state::State;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use tokio::time::{Instant, advance, sleep};

/// The sequences of one run; the environment variable says otherwise.
const CASES: u32 = 256;
const CASES_VAR: &str = "MOUNT_SKILLS_MODEL_CASES";
const TTL: Duration = Duration::from_secs(600);
/// After this long no window is unknown to the tree and no failure is remembered.
const SETTLED: Duration = Duration::from_millis(1300);
/// A kernel that hears of a change within this time.
const KERNEL: Duration = Duration::from_millis(20);

// What there is in this small world: two servers, three skills, six files, three bodies.

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum L {
    A,
    B,
}
use L::{A, B};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Sk {
    Out,
    In,
    Own,
}
use Sk::{In, Out, Own};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum F {
    OutMd,
    OutX,
    InMd,
    InX,
    OwnMd,
    OwnX,
}
use F::{InMd, InX, OutMd, OutX, OwnMd, OwnX};

type Body = u8;
type Rows = BTreeMap<F, Body>;

const LABELS: [L; 2] = [A, B];
const SKILLS: [Sk; 3] = [Out, In, Own];
const FILES: [F; 6] = [OutMd, OutX, InMd, InX, OwnMd, OwnX];

impl L {
    fn name(self) -> &'static str {
        ["a", "b"][self as usize]
    }

    fn slot(self) -> u16 {
        self as u16 + 1
    }
}

impl Sk {
    fn dir(self) -> &'static str {
        ["out", "out/in", "own"][self as usize]
    }

    fn md(self) -> F {
        [OutMd, InMd, OwnMd][self as usize]
    }

    fn of_uri(uri: &str) -> Option<Self> {
        SKILLS.into_iter().find(|s| s.md().uri() == uri)
    }
}

impl F {
    fn path(self) -> &'static str {
        let names = [
            "out/SKILL.md",
            "out/x",
            "out/in/SKILL.md",
            "out/in/x",
            "own/SKILL.md",
            "own/x",
        ];
        names[self as usize]
    }

    fn uri(self) -> String {
        format!("skill://{}", self.path())
    }

    /// The skills that may list it, the inner one first.
    fn skills(self) -> &'static [Sk] {
        match self {
            OutMd | OutX => &[Out],
            InMd | InX => &[In, Out],
            OwnMd | OwnX => &[Own],
        }
    }

    /// Plain files share their bodies, so that one digest is at several URIs.
    fn bytes(self, body: Body) -> Vec<u8> {
        let Some(skill) = SKILLS.into_iter().find(|s| s.md() == self) else {
            return [&b"one\n"[..], b"two\n", b"three\n"][usize::from(body)].into();
        };
        let name = skill.dir().rsplit('/').next().unwrap();
        let rest = ["", "\n", "\n\n"][usize::from(body)];
        format!(
            "---\nname: {name}\ndescription: {}\n---\n{rest}",
            describe(body)
        )
        .into()
    }

    fn digest(self, body: Body) -> Digest {
        Digest::of(&self.bytes(body))
    }
}

/// The description in the SKILL.md of this body; two bodies have the same.
fn describe(body: Body) -> &'static str {
    ["d", "e", "d"][usize::from(body)]
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    skill: Sk,
    rows: Rows,
    /// Its frontmatter is not the one of its SKILL.md.
    lie: bool,
}

impl Entry {
    fn description(&self) -> &'static str {
        if self.lie {
            "lie"
        } else {
            describe(self.rows[&self.skill.md()])
        }
    }

    fn json(&self) -> serde_json::Value {
        let row = |(f, b): (&F, &Body)| json!({"uri": f.uri(), "digest": f.digest(*b).to_string(), "size": f.bytes(*b).len()});
        let name = self.skill.dir().rsplit('/').next();
        json!({"uri": self.skill.md().uri(),
            "frontmatter": {"name": name, "description": self.description()},
            "resources": self.rows.iter().map(row).collect::<Vec<_>>()})
    }

    fn parsed(&self) -> Arc<Parsed> {
        Arc::new(Parsed::parse(&self.json()).unwrap())
    }

    fn set(&self) -> String {
        self.parsed().set().unwrap().to_string()
    }
}

// The servers, which the model and the fake sources share.

/// What a server says of a skill.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Word {
    Entry(Entry),
    /// An entry that cannot be loaded.
    Bad,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Corrupt {
    Flip,
    Short,
    OtherFile,
    Unknown,
    Malformed,
    Silent,
}

/// What went over the wire.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Wire {
    reads: Vec<F>,
    gets: Vec<Sk>,
    lists: u32,
    /// How often a new listing was asked for in the background.
    asked: u32,
}

#[derive(Debug)]
struct Server {
    up: bool,
    published: BTreeMap<Sk, Word>,
    content: Rows,
    corrupt: BTreeMap<F, Corrupt>,
    /// Every row it ever published, and every entry.
    ever: BTreeSet<(F, Body)>,
    entries: Vec<Entry>,
    wire: Wire,
}

impl Server {
    fn new() -> Self {
        let content = FILES.into_iter().map(|f| (f, 0)).collect();
        let mut server = Self {
            up: true,
            published: BTreeMap::new(),
            content,
            corrupt: BTreeMap::new(),
            ever: BTreeSet::new(),
            entries: Vec::new(),
            wire: Wire::default(),
        };
        for skill in SKILLS {
            server.publish(skill);
        }
        server
    }

    /// Publishes a skill with all its files as they are.
    fn publish(&mut self, skill: Sk) {
        let files = self
            .content
            .iter()
            .filter(|(f, _)| f.skills().contains(&skill));
        let rows = files.map(|(f, b)| (*f, *b)).collect();
        self.say(Entry {
            skill,
            rows,
            lie: false,
        });
    }

    fn say(&mut self, entry: Entry) {
        self.ever.extend(entry.rows.iter().map(|(f, b)| (*f, *b)));
        self.entries.push(entry.clone());
        self.published.insert(entry.skill, Word::Entry(entry));
    }

    fn entry(&self, skill: Sk) -> Option<Entry> {
        match self.published.get(&skill) {
            Some(Word::Entry(entry)) => Some(entry.clone()),
            _ => None,
        }
    }

    fn serve(&self, file: F) -> Result<Vec<u8>, SourceError> {
        let unknown = SourceError::Rejected {
            code: -32602,
            message: "unknown".into(),
        };
        if !self.up {
            return Err(SourceError::Down("down".into()));
        }
        let lists = |s: &Sk| self.entry(*s).is_some_and(|e| e.rows.contains_key(&file));
        if !file.skills().iter().any(lists) {
            return Err(unknown);
        }
        let mut bytes = file.bytes(self.content[&file]);
        match self.corrupt.get(&file) {
            None => {}
            Some(Corrupt::Flip) => bytes[1] ^= 1,
            Some(Corrupt::Short) => drop(bytes.pop()),
            Some(Corrupt::OtherFile) => {
                let other = FILES[(file as usize + 2) % FILES.len()];
                bytes = other.bytes(self.content[&other]);
            }
            Some(Corrupt::Unknown) => return Err(unknown),
            Some(Corrupt::Malformed) => return Err(SourceError::Malformed("odd".into())),
            Some(Corrupt::Silent) => return Err(SourceError::TimedOut(Duration::from_secs(1))),
        }
        Ok(bytes)
    }

    fn listing(&self, without: Option<Sk>) -> Listing {
        let (mut entries, mut declined) = (Vec::new(), Vec::new());
        for (skill, word) in self.published.iter().filter(|(s, _)| Some(**s) != without) {
            match word {
                Word::Entry(entry) => entries.push(entry.parsed()),
                Word::Bad => declined.push(bad(*skill)),
            }
        }
        let truncated = without.map(|_| "cut".into());
        Listing {
            entries,
            declined,
            truncated,
            ttl: TTL,
        }
    }
}

fn bad(skill: Sk) -> Declined {
    let value = json!({"uri": skill.md().uri(), "frontmatter": {"name": "other", "description": "d"}, "resources": []});
    Parsed::parse(&value).unwrap_err()
}

struct Fake(Arc<Mutex<Server>>);

impl Source for Fake {
    fn get<'a>(
        &'a self,
        uri: &'a str,
        _: std::time::Instant,
    ) -> Answer<'a, Result<Parsed, Declined>> {
        Box::pin(async move {
            let mut server = self.0.lock().unwrap();
            if !server.up {
                return Err(SourceError::Down("down".into()));
            }
            let skill = Sk::of_uri(uri).unwrap();
            server.wire.gets.push(skill);
            match server.published.get(&skill) {
                Some(Word::Entry(entry)) => Ok(Ok(Arc::unwrap_or_clone(entry.parsed()))),
                Some(Word::Bad) => Ok(Err(bad(skill))),
                None => Err(SourceError::Rejected {
                    code: -32602,
                    message: "gone".into(),
                }),
            }
        })
    }

    fn read<'a>(&'a self, uri: &'a str, _: u64, _: std::time::Instant) -> Answer<'a, Untrusted> {
        Box::pin(async move {
            // Others may come while the answer is on its way.
            tokio::task::yield_now().await;
            let mut server = self.0.lock().unwrap();
            let file = FILES.into_iter().find(|f| f.uri() == uri).unwrap();
            if server.up {
                server.wire.reads.push(file);
            }
            server.serve(file).map(Untrusted::new)
        })
    }

    fn list(&self, _: std::time::Instant) -> Answer<'_, Listing> {
        Box::pin(async move {
            let mut server = self.0.lock().unwrap();
            if !server.up {
                return Err(SourceError::Down("down".into()));
            }
            server.wire.lists += 1;
            Ok(server.listing(None))
        })
    }

    fn refresh(&self) {
        self.0.lock().unwrap().wire.asked += 1;
    }

    fn figures(&self) -> Figures {
        Figures::default()
    }
}

// The model of one server, from the design.

#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    Approved(Rows, Scope),
    Lapsed,
    Revoked,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Open,
    NotApproved,
    Lapsed,
    Revoked,
}

/// What the bytes of a file must be: which body, under which description.
type Got = Result<Body, ReadError>;
type Expected = (Body, Option<&'static str>);

/// One shown entry's word on a file.
#[derive(Debug, Clone)]
struct Claim {
    entry: Entry,
    row: Body,
    standing: Standing,
    held: bool,
    /// Held and changed: from the cache alone.
    frozen: bool,
    /// The file is its SKILL.md, and it counts as a skill of its own.
    own: bool,
}

#[derive(Debug, Clone, Default)]
struct Model {
    /// The newest word on each skill; none if it is not served.
    known: BTreeMap<Sk, Word>,
    /// Named by its URI: a listing says nothing of its absence.
    named: BTreeSet<Sk>,
    held: BTreeMap<Sk, Entry>,
    verdicts: BTreeMap<Sk, Verdict>,
    /// Checked in this run.
    memory: BTreeSet<(Digest, Option<&'static str>)>,
    /// On disk, and whether it is as it was written.
    disk: BTreeMap<Digest, bool>,
    /// Failures that are answered again for a moment.
    memo: Vec<(F, Option<Expected>, ReadError)>,
    /// The last listing: its word in the status, and when it came.
    listing: Option<(&'static str, Option<Instant>)>,
    link: &'static str,
}

impl Model {
    fn shown(&self, skill: Sk) -> Option<&Entry> {
        match (self.held.get(&skill), self.known.get(&skill)) {
            (Some(entry), _) | (None, Some(Word::Entry(entry))) => Some(entry),
            _ => None,
        }
    }

    fn changed(&self, skill: Sk) -> bool {
        let held = self.held.get(&skill);
        held.is_some_and(|held| self.known.get(&skill) != Some(&Word::Entry(held.clone())))
    }

    fn consented(&self, skill: Sk) -> bool {
        let rows = self.shown(skill).map(|e| &e.rows);
        matches!(self.verdicts.get(&skill), Some(Verdict::Approved(set, _)) if Some(set) == rows)
    }

    fn standing(&self, skill: Sk, policy: Policy) -> Standing {
        match self.verdicts.get(&skill) {
            Some(Verdict::Revoked) => Standing::Revoked,
            _ if policy.approval == Approval::Server || self.consented(skill) => Standing::Open,
            None => Standing::NotApproved,
            Some(_) => Standing::Lapsed,
        }
    }

    fn claims(&self, file: F, policy: Policy) -> Vec<Claim> {
        let claim = |skill: &Sk| {
            let mut entry = self.shown(*skill)?;
            entry.rows.get(&file)?;
            let (held, changed) = (self.held.contains_key(skill), self.changed(*skill));
            let mut frozen = changed;
            if changed
                && policy.hold == Hold::Reload
                && file == skill.md()
                && let Some(Word::Entry(new)) = self.known.get(skill)
            {
                (entry, frozen) = (new, false);
            }
            let nested = *skill == In && self.shown(Out).is_some();
            Some(Claim {
                row: entry.rows[&file],
                entry: entry.clone(),
                standing: self.standing(*skill, policy),
                held,
                frozen,
                own: file == skill.md() && (!nested || self.consented(*skill)),
            })
        };
        file.skills().iter().filter_map(claim).collect()
    }

    /// The sizes that may be shown of a file: one, or those in dispute.
    fn sizes(&self, file: F, policy: Policy) -> BTreeSet<u64> {
        let claims = self.claims(file, policy);
        let open = readable(&claims);
        let judged = match open.is_empty() {
            true => claims.iter().collect(),
            false => open,
        };
        binding(&judged)
            .iter()
            .map(|c| file.bytes(c.row).len() as u64)
            .collect()
    }

    /// Reads a file that is shown.
    fn read(&mut self, file: F, policy: Policy, server: &Server, wire: &mut Wire) -> Got {
        let claims = self.claims(file, policy);
        let open = readable(&claims);
        let bound = binding(&open);
        let Some(first) = bound.first() else {
            let lapsed = claims.iter().any(|c| c.standing == Standing::Lapsed);
            let e = [ReadError::Denied, ReadError::Stale][usize::from(lapsed)];
            return Err(e);
        };
        let front = open.iter().find(|c| c.own).map(|c| c.entry.description());
        let agreed = bound.iter().all(|c| c.row == first.row);
        let want = agreed.then_some((first.row, front));
        let checked = (file.digest(first.row), front);
        if !agreed || !self.memory.contains(&checked) {
            let same = |(f, w, _): &&(F, Option<Expected>, _)| (*f, *w) == (file, want);
            if let Some((.., e)) = self.memo.iter().find(same) {
                return Err(*e);
            }
            let frozen = bound.iter().any(|c| c.frozen);
            let fetched = match want {
                None => Err(self.recheck(&claims, server, wire)),
                Some(want) => self.fetch(file, want, frozen, &claims, server, wire),
            };
            if let Err(e) = fetched {
                self.memo.push((file, want, e));
                return Err(e);
            }
            self.memory.insert(checked);
        }
        for claim in open.iter().filter(|c| c.row == first.row) {
            if policy.hold != Hold::None {
                self.held.insert(claim.entry.skill, claim.entry.clone());
            }
        }
        Ok(first.row)
    }

    /// Has the bytes from the disk or, unless frozen, from the server.
    fn fetch(
        &mut self,
        file: F,
        (body, front): Expected,
        frozen: bool,
        claims: &[Claim],
        server: &Server,
        wire: &mut Wire,
    ) -> Result<(), ReadError> {
        let digest = file.digest(body);
        let fits = front.is_none_or(|d| d == describe(body));
        match self.disk.get(&digest) {
            Some(true) if fits => return Ok(()),
            Some(false) => drop(self.disk.remove(&digest)),
            _ => {}
        }
        if frozen {
            return Err(ReadError::Stale);
        }
        if !server.up {
            return Err(ReadError::Down);
        }
        wire.reads.push(file);
        match server.serve(file) {
            Ok(bytes) if bytes == file.bytes(body) && fits => {
                self.disk.insert(digest, true);
                Ok(())
            }
            Err(SourceError::TimedOut(_)) => Err(ReadError::TimedOut),
            _ => Err(self.recheck(claims, server, wire)),
        }
    }

    /// Asks for the entries that list a file that failed, and takes them in.
    fn recheck(&mut self, claims: &[Claim], server: &Server, wire: &mut Wire) -> ReadError {
        let mut changed = false;
        for claim in claims.iter().filter(|_| server.up) {
            let skill = claim.entry.skill;
            wire.gets.push(skill);
            let word = server.published.get(&skill).cloned();
            changed |= word != Some(Word::Entry(claim.entry.clone()));
            self.publish(skill, word);
        }
        if changed {
            self.memo.clear();
            ReadError::Stale
        } else {
            ReadError::Contradiction
        }
    }

    /// Another set, once seen, ends an approval; absence is no set.
    fn publish(&mut self, skill: Sk, word: Option<Word>) {
        if let (Some(word), Some(Verdict::Approved(set, _))) = (&word, self.verdicts.get(&skill))
            && !matches!(word, Word::Entry(e) if e.rows == *set)
        {
            self.verdicts.insert(skill, Verdict::Lapsed);
        }
        match word {
            Some(word) => drop(self.known.insert(skill, word)),
            None => drop(self.known.remove(&skill)),
        }
    }

    fn list(&mut self, server: &Server, without: Option<Sk>) {
        self.memo.clear();
        for skill in SKILLS.into_iter().filter(|s| Some(*s) != without) {
            let word = server.published.get(&skill).cloned();
            let silent = word.is_none() && (without.is_some() || self.named.contains(&skill));
            if !silent {
                self.publish(skill, word);
            }
        }
        let word = if without.is_some() {
            "truncated"
        } else {
            "current"
        };
        self.listing = Some((word, Some(Instant::now())));
    }

    /// The skill that a name means: the innermost one there is that holds the place.
    fn find(&self, skill: Sk) -> Option<Sk> {
        let there = |s: &Sk| self.held.contains_key(s) || self.known.contains_key(s);
        let outer = Some(Out).filter(|_| skill == In);
        [Some(skill), outer].into_iter().flatten().find(there)
    }

    fn approve(&mut self, skill: Sk, set: &Rows, scope: Scope) -> Said {
        let Some(skill) = self.find(skill) else {
            return Said::Failed;
        };
        match self.known.get(&skill) {
            Some(Word::Entry(new)) if new.rows == *set => {}
            Some(Word::Bad) if !self.held.contains_key(&skill) => return Said::Failed,
            _ => return Said::Moved,
        }
        if self.changed(skill) {
            self.held.remove(&skill);
        }
        self.verdicts
            .insert(skill, Verdict::Approved(set.clone(), scope));
        Said::Done
    }

    /// The daemon ends and starts again; it forgets what is not on disk.
    fn restart(&mut self, crash: bool) {
        if !crash {
            self.held.clear();
        }
        self.known.retain(|_, word| matches!(word, Word::Entry(_)));
        self.named.retain(|s| self.known.contains_key(s));
        self.memory.clear();
        self.memo.clear();
        self.listing = self.listing.map(|_| ("stored", None));
        self.link = "starting";
    }

    fn state(&self, skill: Sk, policy: Policy) -> &'static str {
        match self.standing(skill, policy) {
            Standing::Revoked => "revoked",
            Standing::NotApproved => "needs-approval",
            Standing::Lapsed => "changed, needs-approval",
            Standing::Open if !self.held.contains_key(&skill) => "listed",
            Standing::Open if !self.changed(skill) => "held",
            Standing::Open if !self.known.contains_key(&skill) => "changed (withdrawn)",
            Standing::Open => "changed",
        }
    }
}

/// The claims of skills that may be read.
fn readable(claims: &[Claim]) -> Vec<&Claim> {
    let open = |c: &&Claim| c.standing == Standing::Open;
    claims.iter().filter(open).collect()
}

/// The claims that bytes must satisfy: every held one, or all if none is held.
fn binding<'a>(claims: &[&'a Claim]) -> Vec<&'a Claim> {
    let held: Vec<_> = claims.iter().copied().filter(|c| c.held).collect();
    if held.is_empty() {
        claims.to_vec()
    } else {
        held
    }
}

// The steps.

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    Done,
    Failed,
    Moved,
}

impl<T> From<Result<T, Trouble>> for Said {
    fn from(result: Result<T, Trouble>) -> Self {
        match result {
            Ok(_) => Self::Done,
            Err(Trouble::Failed(_)) => Self::Failed,
            Err(Trouble::Moved(_)) => Self::Moved,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    All,
    Inner,
    Outer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    Flip,
    Truncate,
    Remove,
}

#[derive(Debug, Clone, Copy)]
enum Op {
    // What servers do.
    Publish(L, Sk),
    /// The content of a file and what these entries say of it.
    Rotate(L, F, Body, Who),
    /// A file enters a skill's entry, or leaves it.
    Toggle(L, Sk, F),
    Lie(L, Sk),
    Withdraw(L, Sk),
    Bad(L, Sk),
    Corrupt(L, F, Option<Corrupt>),
    Up(L, bool),
    // What the host learns and is told.
    /// A listing arrives, whole or without one skill.
    List(L, Option<Sk>),
    /// Somebody looks, perhaps after the listing's time.
    Look(L, bool),
    Read(L, F, usize),
    Refresh(L, Option<Sk>),
    Release(L, Option<Sk>),
    Name(L, Sk),
    /// The newest set, or one of the sets that were published.
    Approve(L, Sk, Option<usize>, Scope),
    Revoke(L, Sk),
    Tamper(L, F, Body, Damage),
    Restart {
        crash: bool,
    },
}

#[derive(Debug, Clone)]
struct Case {
    policy: Policy,
    /// Whether the servers have listed before the first step.
    listed: bool,
    /// Steps, and whether the next one comes before the tree knows of new windows.
    ops: Vec<(Op, bool)>,
}

/// One run of the daemon.
struct Process {
    runtime: tokio::runtime::Runtime,
    host: Arc<Host>,
    told: Arc<Mutex<Vec<Change>>>,
    /// What every inode was when it was read.
    inodes: BTreeMap<u64, (L, F, Body)>,
    /// What a kernel would have in its pages: the inode, and the skills that were read.
    pages: BTreeMap<u64, (L, Vec<Sk>)>,
}

struct World {
    dir: tempfile::TempDir,
    policy: Policy,
    servers: [Arc<Mutex<Server>>; 2],
    models: [Model; 2],
    process: Option<Process>,
}

fn peer() -> Link {
    Link::Ready(Peer {
        version: "2026-07-28".into(),
        era: Era::Discover,
        name: "fake".into(),
        skills: true,
        directory_read: false,
        resources: true,
        instructions: None,
    })
}

impl World {
    fn new(policy: Policy) -> Self {
        // On a memory file system if there is one: what is proved here is no fsync.
        let shm = Path::new("/dev/shm");
        let dir = if shm.is_dir() {
            tempfile::tempdir_in(shm)
        } else {
            tempfile::tempdir()
        };
        let server = || Arc::new(Mutex::new(Server::new()));
        let mut world = Self {
            dir: dir.unwrap(),
            policy,
            servers: [server(), server()],
            models: Default::default(),
            process: None,
        };
        for model in &mut world.models {
            model.link = "starting";
        }
        world.start();
        world
    }

    fn start(&mut self) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let cache = Cache::open(&self.dir.path().join("cache"), DEFAULT_CAP).unwrap();
        let servers = LABELS.map(|l| HostServer {
            label: l.name().parse().unwrap(),
            shown: "fake".into(),
            identity: "id".into(),
            shelf: Some(cache.shelf(&l.name().parse().unwrap(), "id").unwrap()),
            state: Some(self.state(l)),
            locked: None,
        });
        let timeout = Duration::from_secs(10);
        let _inside = runtime.enter();
        let (host, inbox) = Host::new(
            servers.into(),
            self.policy,
            Some(cache),
            "/m".into(),
            timeout,
        );
        let (changes, batches) = mpsc::channel();
        let told = Arc::<Mutex<Vec<Change>>>::default();
        runtime.spawn(Arc::clone(&host).run(inbox, changes));
        let kernel = Arc::clone(&told);
        runtime.spawn(async move {
            loop {
                while let Ok(batch) = batches.try_recv() {
                    kernel.lock().unwrap().extend(batch.changes);
                    let _ = batch.done.map(|done| done.send(()));
                }
                sleep(KERNEL).await;
            }
        });
        for l in LABELS {
            host.attach(
                l.slot(),
                Arc::new(Fake(Arc::clone(&self.servers[l as usize]))),
            );
        }
        drop(_inside);
        let (inodes, pages) = Default::default();
        self.process = Some(Process {
            runtime,
            host,
            told,
            inodes,
            pages,
        });
    }

    fn state(&self, l: L) -> State {
        let dir = self.dir.path().join("state");
        State::open(&dir, &l.name().parse().unwrap(), "id", Path::new("/m")).unwrap()
    }

    fn host(&self) -> Arc<Host> {
        Arc::clone(&self.process.as_ref().unwrap().host)
    }

    /// Runs something in the daemon's runtime.
    fn run<T>(&self, work: impl Future<Output = T>) -> T {
        self.process.as_ref().unwrap().runtime.block_on(work)
    }

    fn up(&mut self, l: L, up: bool) {
        self.servers[l as usize].lock().unwrap().up = up;
        let link = if up {
            peer()
        } else {
            Link::Down {
                reason: "ended".into(),
            }
        };
        self.models[l as usize].link = if up { "ready" } else { "down" };
        self.host().event(l.slot(), Event::Link(link));
    }

    /// A listing that the server's session asked for comes, or does not.
    fn list(&mut self, l: L, without: Option<Sk>) {
        let server = Arc::clone(&self.servers[l as usize]);
        let server = server.lock().unwrap();
        let event = if server.up {
            self.run(async { self.models[l as usize].clone() });
            Event::Listed(server.listing(without))
        } else {
            Event::ListFailed(SourceError::Down("down".into()))
        };
        self.host().event(l.slot(), event);
        if server.up {
            let mut model = self.models[l as usize].clone();
            self.run(async { model.list(&server, without) });
            self.models[l as usize] = model;
        }
    }

    fn ino(&self, l: L, path: &str) -> Option<u64> {
        let tree = self.host().tree();
        let full = format!("{}/{path}", l.name());
        full.split('/')
            .try_fold(ROOT, |dir, name| match tree.lookup(dir, name) {
                Lookup::Found(attr) => Some(attr.ino),
                _ => None,
            })
    }

    /// Reads a file in both, by this many readers at once, and compares.
    fn read(&mut self, l: L, file: F, readers: usize) -> Wire {
        let (policy, host) = (self.policy, self.host());
        let server = Arc::clone(&self.servers[l as usize]);
        let model = &mut self.models[l as usize];
        let claims = model.claims(file, policy);
        let ino = self.ino(l, file.path());
        let model = &mut self.models[l as usize];
        if claims.is_empty() {
            let mark = model
                .known
                .iter()
                .any(|(s, w)| s.md() == file && *w == Word::Bad && !model.held.contains_key(s));
            assert_eq!(ino.is_some(), mark, "{l:?} {file:?}: the name");
            if let Some(ino) = ino {
                let got = self.run(host.read(ino));
                assert_eq!(
                    got.map(drop),
                    Err(ReadError::Denied),
                    "{l:?} {file:?}: declined"
                );
            }
            return Wire::default();
        }
        let mut wire = Wire::default();
        let want = model.read(file, policy, &server.lock().unwrap(), &mut wire);
        let ino = ino.unwrap_or_else(|| panic!("{l:?} {file:?}: it has no name"));
        let size = host.tree().attr(ino).unwrap().size;
        let reads = (0..readers).map(|_| host.read(ino));
        for got in self.run(futures_util::future::join_all(reads)) {
            let shown = got
                .as_ref()
                .map(|b| String::from_utf8_lossy(b.bytes()).into_owned());
            let bytes = want.map(|body| String::from_utf8(file.bytes(body)).unwrap());
            assert_eq!(
                shown.map_err(|e| *e),
                bytes,
                "{l:?} {file:?}: what a read gives"
            );
            if let Ok(body) = want {
                let server = server.lock().unwrap();
                assert!(
                    server.ever.contains(&(file, body)),
                    "{l:?} never published that"
                );
                assert_eq!(
                    size,
                    file.bytes(body).len() as u64,
                    "{l:?} {file:?}: the size shown"
                );
                let process = self.process.as_mut().unwrap();
                let was = process.inodes.insert(ino, (l, file, body));
                assert!(
                    was.is_none_or(|w| w == (l, file, body)),
                    "the inode was {was:?}"
                );
                let open = claims.iter().filter(|c| c.standing == Standing::Open);
                let skills = open
                    .filter(|c| c.row == body)
                    .map(|c| c.entry.skill)
                    .collect();
                process.pages.insert(ino, (l, skills));
            }
        }
        wire
    }

    /// Does one step to both; what each server should have been asked.
    fn step(&mut self, op: Op) -> [Wire; 2] {
        let mut wires = <[Wire; 2]>::default();
        let host = self.host();
        let name = |l: L, skill: Option<Sk>| match skill {
            Some(skill) => format!("{}/{}", l.name(), skill.dir()),
            None => l.name().to_owned(),
        };
        match op {
            Op::Publish(l, skill) => self.servers[l as usize].lock().unwrap().publish(skill),
            Op::Rotate(l, file, body, who) => {
                let mut server = self.servers[l as usize].lock().unwrap();
                server.content.insert(file, body);
                for skill in file.skills() {
                    let inner = *skill == file.skills()[0];
                    let spoken = who == Who::All || (who == Who::Inner) == inner;
                    if let Some(mut entry) = server.entry(*skill).filter(|_| spoken)
                        && let Some(row) = entry.rows.get_mut(&file)
                    {
                        *row = body;
                        server.say(entry);
                    }
                }
            }
            Op::Toggle(l, skill, file) => {
                let mut server = self.servers[l as usize].lock().unwrap();
                let fits = file.skills().contains(&skill) && file != skill.md();
                if let Some(mut entry) = server.entry(skill).filter(|_| fits) {
                    if entry.rows.remove(&file).is_none() {
                        entry.rows.insert(file, server.content[&file]);
                    }
                    server.say(entry);
                }
            }
            Op::Lie(l, skill) => {
                let mut server = self.servers[l as usize].lock().unwrap();
                if let Some(entry) = server.entry(skill) {
                    server.say(Entry {
                        lie: !entry.lie,
                        ..entry
                    });
                }
            }
            Op::Withdraw(l, skill) => {
                self.servers[l as usize]
                    .lock()
                    .unwrap()
                    .published
                    .remove(&skill);
            }
            Op::Bad(l, skill) => {
                self.servers[l as usize]
                    .lock()
                    .unwrap()
                    .published
                    .insert(skill, Word::Bad);
            }
            Op::Corrupt(l, file, how) => {
                let corrupt = &mut self.servers[l as usize].lock().unwrap().corrupt;
                match how {
                    Some(how) => corrupt.insert(file, how),
                    None => corrupt.remove(&file),
                };
            }
            Op::Up(l, up) => self.up(l, up),
            Op::List(l, without) => self.list(l, without),
            Op::Look(l, pass) => {
                let asked = self.run(async {
                    if pass {
                        advance(TTL).await;
                    }
                    host.needed(l.slot());
                    let at = self.models[l as usize].listing.and_then(|(_, at)| at);
                    at.is_some_and(|at| at.elapsed() >= TTL)
                });
                if pass {
                    self.models.iter_mut().for_each(|m| m.memo.clear());
                }
                if asked {
                    wires[l as usize].asked = 1;
                    self.list(l, None);
                }
            }
            Op::Read(l, file, readers) => wires[l as usize] = self.read(l, file, readers),
            Op::Refresh(l, skill) => {
                let got = Said::from(self.run(host.refresh(&name(l, skill))));
                let server = Arc::clone(&self.servers[l as usize]);
                let server = server.lock().unwrap();
                let mut model = self.models[l as usize].clone();
                let wire = &mut wires[l as usize];
                let found = skill.map(|s| model.find(s));
                let want = match found {
                    Some(None) => Said::Failed,
                    _ if !server.up => Said::Failed,
                    Some(Some(skill)) => {
                        wire.gets.push(skill);
                        model.publish(skill, server.published.get(&skill).cloned());
                        model.held.remove(&skill);
                        Said::Done
                    }
                    None => {
                        wire.lists = 1;
                        self.run(async { model.list(&server, None) });
                        model.held.clear();
                        Said::Done
                    }
                };
                model.memo.clear();
                self.models[l as usize] = model;
                assert_eq!(got, want);
            }
            Op::Release(l, skill) => {
                let got = Said::from(self.run(host.release(&name(l, skill))));
                let model = &mut self.models[l as usize];
                let want = match skill.map(|s| model.find(s)) {
                    Some(None) => Said::Failed,
                    Some(Some(skill)) => {
                        model.held.remove(&skill);
                        Said::Done
                    }
                    None => {
                        model.held.clear();
                        Said::Done
                    }
                };
                model.memo.clear();
                assert_eq!(got, want);
            }
            Op::Name(l, skill) => {
                let got = Said::from(self.run(host.add(l.name(), &skill.md().uri())));
                let server = self.servers[l as usize].lock().unwrap();
                let model = &mut self.models[l as usize];
                let want = match server.published.get(&skill) {
                    _ if !server.up => Said::Failed,
                    Some(word @ Word::Entry(_)) => {
                        model.publish(skill, Some(word.clone()));
                        model.named.insert(skill);
                        model.listing = model.listing.or(Some(("truncated", None)));
                        Said::Done
                    }
                    _ => Said::Failed,
                };
                if server.up {
                    wires[l as usize].gets.push(skill);
                }
                model.memo.clear();
                assert_eq!(got, want);
            }
            Op::Approve(l, skill, old, scope) => {
                let model = &mut self.models[l as usize];
                let newest = match model.find(skill).and_then(|s| model.known.get(&s)) {
                    Some(Word::Entry(entry)) => Some(entry.clone()),
                    _ => None,
                };
                let entries = self.servers[l as usize].lock().unwrap().entries.clone();
                let past = entries[old.unwrap_or(0) % entries.len()].clone();
                let chosen = newest.filter(|_| old.is_none()).unwrap_or(past);
                let want = model.approve(skill, &chosen.rows, scope);
                model.memo.clear();
                let got = self.run(host.approve(&name(l, Some(skill)), &chosen.set(), scope));
                assert_eq!(Said::from(got), want);
            }
            Op::Revoke(l, skill) => {
                let got = Said::from(self.run(host.revoke(&name(l, Some(skill)))));
                let model = &mut self.models[l as usize];
                let found = model.find(skill);
                if let Some(skill) = found {
                    model.verdicts.insert(skill, Verdict::Revoked);
                }
                model.memo.clear();
                assert_eq!(
                    got,
                    if found.is_some() {
                        Said::Done
                    } else {
                        Said::Failed
                    }
                );
            }
            Op::Tamper(l, file, body, how) => {
                let hex = file.digest(body).hex();
                let shelf = self.shelf(l);
                let path = shelf.join(&hex[..2]).join(&hex);
                if let Some(sound) = self.models[l as usize].disk.get_mut(&file.digest(body)) {
                    let mut bytes = std::fs::read(&path).unwrap();
                    std::fs::remove_file(&path).unwrap();
                    *sound = false;
                    match how {
                        Damage::Flip => bytes[0] ^= 1,
                        Damage::Truncate => drop(bytes.pop()),
                        Damage::Remove => {
                            self.models[l as usize].disk.remove(&file.digest(body));
                            return wires;
                        }
                    }
                    std::fs::write(&path, &bytes).unwrap();
                    // Flipped back, it is right again.
                    let right = Digest::of(&bytes).hex() == hex;
                    self.models[l as usize]
                        .disk
                        .insert(file.digest(body), right);
                }
            }
            Op::Restart { crash } => {
                if !crash {
                    host.end_windows();
                }
                drop(host);
                self.process = None;
                self.start();
                self.models.iter_mut().for_each(|m| m.restart(crash));
            }
        }
        wires
    }

    fn shelf(&self, l: L) -> PathBuf {
        self.dir
            .path()
            .join(format!("cache/mount-skills/v1/{}-id", l.name()))
    }

    /// What the servers were asked since the last time, against what they should have been.
    fn check_wire(&self, wires: [Wire; 2], after: &str) {
        for (l, mut want) in LABELS.into_iter().zip(wires) {
            let mut got = std::mem::take(&mut self.servers[l as usize].lock().unwrap().wire);
            for wire in [&mut got, &mut want] {
                wire.reads.sort();
                wire.gets.sort();
            }
            assert_eq!(got, want, "{l:?}: what went over the wire {after}");
        }
    }

    /// Lets all that is under way come to an end.
    fn settle(&mut self) {
        self.run(async { sleep(SETTLED).await });
        self.models.iter_mut().for_each(|m| m.memo.clear());
    }

    /// Compares all that can be compared without changing anything.
    fn check(&mut self) {
        let status = self.host().status();
        let tree = self.host().tree();
        for (l, server) in LABELS.into_iter().zip(&status.servers) {
            self.check_tree(l, &tree);
            self.check_status(l, server);
            self.check_disk(l);
            let model = &self.models[l as usize];
            for skill in SKILLS {
                let path = format!("{}/{}", l.name(), skill.dir());
                let found = model.find(skill);
                let may = found.is_some_and(|s| {
                    let scope = match model.verdicts.get(&s) {
                        Some(Verdict::Approved(_, scope)) => Some(*scope),
                        _ => None,
                    };
                    model.consented(s) && scope == Some(Scope::ReadAndExecute)
                });
                assert_eq!(
                    self.host().gate(&path).is_ok(),
                    may,
                    "{path}: may it be executed"
                );
            }
        }
        self.check_files(&status);
        self.check_inodes();
        self.probe();
        self.check_wire(
            Default::default(),
            "while looking and reading what is at hand",
        );
        self.settle();
    }

    fn check_tree(&self, l: L, tree: &Tree) {
        let model = &self.models[l as usize];
        let root = match tree.lookup(ROOT, l.name()) {
            Lookup::Found(attr) => attr.ino,
            other => panic!("{l:?}: {other:?}"),
        };
        if model.listing.is_none() {
            let absent = if model.link == "down" {
                Absent::Down
            } else {
                Absent::Starting
            };
            assert!(matches!(tree.view(l.slot()), Some(View::Unlisted(a)) if *a == absent));
            assert_eq!(tree.lookup(root, "out"), Lookup::Unknown(absent));
            return;
        }
        let (mut got, mut todo) = (BTreeMap::new(), vec![(String::new(), root)]);
        while let Some((path, dir)) = todo.pop() {
            for child in tree.children(dir, 0).unwrap() {
                let path = format!("{path}/{}", child.name);
                match child.attr.kind {
                    Kind::File => drop(got.insert(path, Some(child.attr.size))),
                    Kind::Declined => drop(got.insert(path, None)),
                    Kind::SkillDir | Kind::OpenDir => todo.push((path, child.attr.ino)),
                }
            }
        }
        let mut want = BTreeMap::new();
        for file in FILES {
            let sizes = model.sizes(file, self.policy);
            let path = format!("/{}", file.path());
            let shown = got.get(&path).copied().flatten();
            match shown
                .filter(|s| sizes.contains(s))
                .or(sizes.first().copied())
            {
                Some(size) => drop(want.insert(path, Some(size))),
                None => {
                    let skill = SKILLS.into_iter().find(|s| s.md() == file);
                    let bad = skill.is_some_and(|s| model.known.get(&s) == Some(&Word::Bad));
                    if bad {
                        want.insert(path, None);
                    }
                }
            }
        }
        assert_eq!(got, want, "{l:?}: names and sizes");
    }

    fn check_status(&self, l: L, status: &ServerStatus) {
        let model = &self.models[l as usize];
        assert_eq!(status.state, model.link, "{l:?}");
        assert_eq!(
            status.listing,
            model.listing.map_or("none", |(word, _)| word),
            "{l:?}"
        );
        let got: BTreeMap<&str, (&str, &str, bool)> = status
            .skills
            .iter()
            .map(|s| (&*s.path, (&*s.state, &*s.set, s.changes.is_some())))
            .collect();
        let shown = SKILLS
            .into_iter()
            .filter_map(|s| Some((s, model.shown(s)?)));
        let want: Vec<_> = shown
            .map(|(s, e)| {
                let pending = matches!(model.known.get(&s), Some(Word::Entry(new)) if new != e);
                let path = format!("{}/{}", l.name(), s.dir());
                (path, (model.state(s, self.policy), e.set(), pending))
            })
            .collect();
        let want = want
            .iter()
            .map(|(p, (state, set, c))| (&**p, (*state, &**set, *c)));
        assert_eq!(got, want.collect(), "{l:?}: states");
        let got: BTreeSet<_> = status
            .declined
            .iter()
            .filter_map(|d| d.uri.clone())
            .collect();
        let bad = |s: &Sk| model.known.get(s) == Some(&Word::Bad) && !model.held.contains_key(s);
        let want = SKILLS
            .into_iter()
            .filter(bad)
            .map(|s| s.md().uri())
            .collect();
        assert_eq!(got, want, "{l:?}: declined");
    }

    /// Cache and state on disk: nothing is there that should not be, and all that should.
    fn check_disk(&self, l: L) {
        let model = &self.models[l as usize];
        let mut got = BTreeMap::new();
        for aa in std::fs::read_dir(self.shelf(l)).unwrap() {
            for blob in std::fs::read_dir(aa.unwrap().path()).unwrap() {
                let path = blob.unwrap().path();
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                let right = Digest::of(&std::fs::read(&path).unwrap()).hex() == name;
                got.insert(name, right);
            }
        }
        let want = model
            .disk
            .iter()
            .map(|(d, sound)| (d.hex(), *sound))
            .collect();
        assert_eq!(got, want, "{l:?}: the cache, and what of it is sound");
        let stored = self.state(l).load();
        let held: Vec<_> = model
            .held
            .iter()
            .map(|(s, e)| (s.md().uri(), e.parsed()))
            .collect();
        let held: BTreeMap<_, _> = held.iter().map(|(u, e)| (&**u, e)).collect();
        let journal = stored.held.iter().map(|e| (&*e.uri, e)).collect();
        assert_eq!(held, journal, "{l:?}: the journal of windows");
        let want = model.verdicts.iter().map(|(s, v)| {
            let verdict = match v {
                Verdict::Approved(rows, scope) => {
                    let entry = Entry {
                        skill: *s,
                        rows: rows.clone(),
                        lie: false,
                    };
                    skill::Verdict::Approved(entry.parsed().set().unwrap(), *scope)
                }
                Verdict::Lapsed => skill::Verdict::Lapsed,
                Verdict::Revoked => skill::Verdict::Revoked,
            };
            (Arc::from(s.md().uri()), verdict)
        });
        assert_eq!(stored.verdicts, want.collect(), "{l:?}: the verdicts");
        if let Some(listing) = stored.listing {
            let got: BTreeMap<_, _> = listing.entries.iter().map(|e| (&*e.uri, &**e)).collect();
            let known: Vec<_> = model
                .known
                .values()
                .filter_map(|w| match w {
                    Word::Entry(e) => Some(e.parsed()),
                    Word::Bad => None,
                })
                .collect();
            let want = known.iter().map(|e| (&*e.uri, &**e)).collect();
            assert_eq!(got, want, "{l:?}: the stored listing");
        } else {
            assert!(model.listing.is_none(), "{l:?}: the listing is not stored");
        }
    }

    /// The files in the mount are in step with the status.
    fn check_files(&self, status: &Status) {
        let tree = self.host().tree();
        for server in &status.servers {
            let path = [".mount-skills", &*server.label, "status.json"];
            let ino = path
                .into_iter()
                .fold(ROOT, |dir, name| match tree.lookup(dir, name) {
                    Lookup::Found(attr) => attr.ino,
                    other => panic!("{name}: {other:?}"),
                });
            let text = self.run(self.host().read(ino)).unwrap();
            let file: ServerStatus = serde_json::from_slice(text.bytes()).unwrap();
            let states = |s: &ServerStatus| {
                let states = s.skills.iter().map(|s| (s.path.clone(), s.state.clone()));
                (
                    s.state.clone(),
                    s.listing.clone(),
                    states.collect::<Vec<_>>(),
                )
            };
            assert_eq!(states(&file), states(server), "status.json");
        }
    }

    /// What was read through an inode that is gone is stale; and no page stays in the kernel of
    /// a skill that may not be read any more.
    fn check_inodes(&mut self) {
        let (policy, host) = (self.policy, self.host());
        let process = self.process.as_mut().unwrap();
        for change in process.told.lock().unwrap().drain(..) {
            if let Change::Pages(ino) = change {
                process.pages.remove(&ino);
            }
        }
        for (ino, what) in &process.inodes {
            if host.tree().attr(*ino).is_none() {
                let got = process.runtime.block_on(host.read(*ino)).map(drop);
                assert_eq!(got, Err(ReadError::Stale), "a gone inode that was {what:?}");
            }
        }
        for (ino, (l, skills)) in &process.pages {
            let model = &self.models[*l as usize];
            let open = |s: &Sk| model.standing(*s, policy) == Standing::Open;
            let (what, there) = (process.inodes[ino], host.tree().attr(*ino).is_some());
            let withdrawn = |s: &Sk| !model.known.contains_key(s) && !model.held.contains_key(s);
            assert!(
                skills.iter().any(|s| open(s) || withdrawn(s)),
                "pages of {what:?} stay in the kernel, in the tree: {there}"
            );
        }
        // What left the tree while it could be read is not followed any further.
        process
            .pages
            .retain(|ino, _| host.tree().attr(*ino).is_some());
    }

    /// Reads every file whose read opens no window, asks no server and takes nothing from disk.
    fn probe(&mut self) {
        for (l, file) in LABELS.into_iter().flat_map(|l| FILES.map(|f| (l, f))) {
            let mut then = self.models[l as usize].clone();
            let (memory, disk, held) = (then.memory.clone(), then.disk.clone(), then.held.clone());
            let mut wire = Wire::default();
            if !then.claims(file, self.policy).is_empty() {
                let server = self.servers[l as usize].lock().unwrap();
                let _ = then.read(file, self.policy, &server, &mut wire);
            }
            if wire == Wire::default()
                && (memory, disk, held) == (then.memory, then.disk, then.held)
            {
                self.read(l, file, 1);
            }
        }
    }
}

/// Does all steps to the host and to the model.
fn agree(case: &Case) {
    let mut world = World::new(case.policy);
    world.settle();
    world.check();
    for l in LABELS {
        world.up(l, true);
        if case.listed {
            world.list(l, None);
        }
    }
    world.settle();
    world.check();
    let mut late = false;
    for (op, hurry) in &case.ops {
        if late && must_settle(*op, &world) {
            world.settle();
        }
        let wires = world.step(*op);
        world.run(yield_a_little());
        late = *hurry;
        if !late {
            world.settle();
        }
        world.check_wire(wires, &format!("by {op:?}"));
        if !late {
            world.check();
        }
    }
    world.settle();
    world.check();
    for (l, file) in LABELS.into_iter().flat_map(|l| FILES.map(|f| (l, f))) {
        let mut wires = <[Wire; 2]>::default();
        wires[l as usize] = world.read(l, file, 1);
        world.settle();
        world.check_wire(wires, &format!("by the last read of {l:?} {file:?}"));
    }
    world.check();
}

/// Lets the writer take what it was sent, in no time.
async fn yield_a_little() {
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
}

/// What is not done in a hurry: the disk must be still, and new windows known where they decide.
fn must_settle(op: Op, world: &World) -> bool {
    match op {
        Op::Tamper(..) | Op::Restart { .. } => true,
        Op::Read(l, file, _) => {
            let claims = world.models[l as usize].claims(file, world.policy);
            let first = claims.first().map(|c| c.row);
            world.policy.hold == Hold::Reload || claims.iter().any(|c| Some(c.row) != first)
        }
        _ => false,
    }
}

fn op() -> impl Strategy<Value = Op> {
    let l = || prop_oneof![3 => Just(A), 1 => Just(B)];
    let sk = || prop_oneof![Just(Out), Just(In), Just(Own)];
    let file = || prop::sample::select(&FILES[..]);
    let body = || 0..3u8;
    let some_sk = || prop::option::of(sk());
    let who = prop_oneof![3 => Just(Who::All), 1 => Just(Who::Inner), 1 => Just(Who::Outer)];
    let scope = prop_oneof![Just(Scope::Read), Just(Scope::ReadAndExecute)];
    use Corrupt::{Flip, Malformed, OtherFile, Short, Silent, Unknown};
    let corrupt = prop::sample::select(&[Flip, Short, OtherFile, Unknown, Malformed, Silent][..]);
    let damage = prop::sample::select(&[Damage::Flip, Damage::Truncate, Damage::Remove][..]);
    let readers = prop_oneof![3 => Just(1), 1 => Just(3)];
    prop_oneof![
        2 => (l(), sk()).prop_map(|(l, s)| Op::Publish(l, s)),
        8 => (l(), file(), body(), who).prop_map(|(l, f, b, w)| Op::Rotate(l, f, b, w)),
        3 => (l(), sk(), file()).prop_map(|(l, s, f)| Op::Toggle(l, s, f)),
        2 => (l(), sk()).prop_map(|(l, s)| Op::Lie(l, s)),
        2 => (l(), sk()).prop_map(|(l, s)| Op::Withdraw(l, s)),
        1 => (l(), sk()).prop_map(|(l, s)| Op::Bad(l, s)),
        4 => (l(), file(), prop::option::weighted(0.7, corrupt))
            .prop_map(|(l, f, c)| Op::Corrupt(l, f, c)),
        2 => (l(), any::<bool>()).prop_map(|(l, up)| Op::Up(l, up)),
        8 => (l(), prop::option::weighted(0.2, sk())).prop_map(|(l, s)| Op::List(l, s)),
        2 => (l(), any::<bool>()).prop_map(|(l, pass)| Op::Look(l, pass)),
        16 => (l(), file(), readers).prop_map(|(l, f, n)| Op::Read(l, f, n)),
        3 => (l(), some_sk()).prop_map(|(l, s)| Op::Refresh(l, s)),
        3 => (l(), some_sk()).prop_map(|(l, s)| Op::Release(l, s)),
        1 => (l(), sk()).prop_map(|(l, s)| Op::Name(l, s)),
        6 => (l(), sk(), prop::option::weighted(0.2, 0..20usize), scope)
            .prop_map(|(l, s, old, scope)| Op::Approve(l, s, old, scope)),
        2 => (l(), sk()).prop_map(|(l, s)| Op::Revoke(l, s)),
        3 => (l(), file(), body(), damage).prop_map(|(l, f, b, d)| Op::Tamper(l, f, b, d)),
        3 => any::<bool>().prop_map(|crash| Op::Restart { crash }),
    ]
}

fn case() -> impl Strategy<Value = Case> {
    let hold =
        prop_oneof![2 => Just(Hold::Release), 1 => Just(Hold::Reload), 1 => Just(Hold::None)];
    let approval = prop_oneof![Just(Approval::Server), Just(Approval::Each)];
    let ops = prop::collection::vec((op(), prop::bool::weighted(0.2)), 1..=20);
    (hold, approval, prop::bool::weighted(0.9), ops).prop_map(|(hold, approval, listed, ops)| {
        Case {
            policy: Policy { hold, approval },
            listed,
            ops,
        }
    })
}

#[test]
fn model_and_host_agree() {
    let cases = std::env::var(CASES_VAR).map_or(CASES, |n| n.parse().unwrap());
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    let agreed = TestRunner::new(config).run(&case(), |case| {
        agree(&case);
        Ok(())
    });
    if let Err(e) = agreed {
        panic!("{e}");
    }
}

/// Steps with time between them.
fn steps(hold: Hold, approval: Approval, ops: &[Op]) {
    agree(&Case {
        policy: Policy { hold, approval },
        listed: true,
        ops: ops.iter().map(|op| (*op, false)).collect(),
    });
}

#[test]
fn model_regression_the_size_beside_a_skill_that_may_not_be_read() {
    let ops = [
        Op::Rotate(A, InMd, 1, Who::Inner),
        Op::Revoke(A, Out),
        Op::List(A, None),
    ];
    steps(Hold::Release, Approval::Server, &ops);
}

#[test]
fn model_regression_pages_of_a_file_that_left_the_tree_with_the_approval() {
    let ops = [
        Op::Approve(A, Out, None, Scope::Read),
        Op::Read(A, OutX, 1),
        Op::Rotate(A, OutX, 1, Who::All),
        Op::List(A, None),
    ];
    steps(Hold::None, Approval::Each, &ops);
}

#[test]
fn model_regression_pages_of_a_file_that_left_the_approved_skill() {
    let ops = [
        Op::Approve(A, Out, None, Scope::Read),
        Op::Read(A, InMd, 1),
        Op::Toggle(A, Out, InMd),
        Op::List(A, None),
    ];
    steps(Hold::None, Approval::Each, &ops);
}

#[test]
fn model_regression_many_readers_of_a_disputed_file() {
    let ops = [
        Op::Rotate(A, InX, 1, Who::Inner),
        Op::List(A, None),
        Op::Read(A, InX, 3),
    ];
    steps(Hold::Release, Approval::Server, &ops);
}

#[test]
fn model_regression_a_dispute_hears_that_the_server_went_back() {
    let ops = [
        Op::Rotate(A, InX, 1, Who::Inner),
        Op::List(A, None),
        Op::Read(A, InMd, 1),
        Op::Rotate(A, InX, 2, Who::Inner),
        Op::List(A, None),
        Op::Rotate(A, InX, 1, Who::Inner),
        Op::Read(A, InX, 1),
    ];
    steps(Hold::Release, Approval::Server, &ops);
}
