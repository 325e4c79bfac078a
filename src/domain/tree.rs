//! The immutable directory tree of all servers.
//!
//! A [`Branch`] is the tree of one server, built whole from its entries and never changed; a
//! refresh builds the next one from it, so that what did not change keeps its numbers. The
//! [`Tree`] puts the branches beside each other under the mount's root.
//!
//! **Invariants**
//! - An inode number stands for one (server, URI, digest, claimed frontmatter) or one directory
//!   path, and is never used again for anything else (HR-58).
//! - A cookie names a child, never a position, and stays with the name while the name is there:
//!   a listing that goes on after a change repeats nothing and loses nothing that stayed (HR-55).
//! - Two URIs that need one path, or a path that would be a file and a directory, decline every
//!   skill concerned; none is preferred (HR-20).
//! - A declined skill is visible: its directory and a SKILL.md of mode 0000 that cannot be read.
//!   Its size is [`UNKNOWN_SIZE`], never 0, since the kernel answers a read of an empty file
//!   itself, and empty content is never an answer to an error.
//!
//! Inode numbers are `slot << 40 | n`: slot 0 is our own files, the others the servers.

use super::manifest::{Content, Declined, Entry, Reason};
use super::name::{Label, RelPath, SKILL_MD};
use super::skill::Claim;
use super::verify::Verified;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use unicode_normalization::UnicodeNormalization;

/// The inode of the mount's root.
pub const ROOT: u64 = 1;
/// The size shown for a file that cannot be read and whose size nobody knows.
pub const UNKNOWN_SIZE: u64 = 1;
const SLOT_SHIFT: u32 = 40;
/// Cookies 1 and 2 are `.` and `..`.
const FIRST_COOKIE: u64 = 3;
/// Cookies of the labels in the root come after those of our own files.
const LABEL_COOKIES: u64 = 1 << SLOT_SHIFT;

/// What `stat` shows of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// The inode number.
    pub ino: u64,
    /// What it is.
    pub kind: Kind,
    /// The size in bytes; 0 for a directory.
    pub size: u64,
    /// Links: 1 for a file, 2 and one per subdirectory for a directory.
    pub nlink: u32,
    /// Seconds since the epoch at which this content was first seen here.
    pub mtime: u64,
}

/// What a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A directory that the manifests of skills describe fully.
    SkillDir,
    /// A label or a prefix directory: a refresh may change it.
    OpenDir,
    /// A file that can be read.
    File,
    /// The SKILL.md of a declined skill.
    Declined,
}

/// What is behind a file.
#[derive(Debug, Clone)]
pub enum Source {
    /// Text of our own.
    Text(Verified),
    /// A declined skill's SKILL.md.
    Declined(Arc<Declined>),
    /// A skill's file: every entry that lists it.
    Skill(Vec<Claim>),
}

#[derive(Debug)]
struct Node {
    ino: u64,
    cookie: u64,
    parent: u32,
    mtime: u64,
    name: Box<str>,
    body: Body,
}

#[derive(Debug)]
enum Body {
    Dir {
        kind: Kind,
        by_name: Vec<u32>,
        by_cookie: Vec<u32>,
        subdirs: u32,
    },
    Text(Verified),
    Declined(Arc<Declined>),
    /// (entry, file) indices of every claim.
    Skill(Box<[(u32, u32)]>),
}

/// When a digest was first seen at a URI, in seconds since the epoch; kept across restarts.
pub type Seen = HashMap<Arc<str>, (super::digest::Digest, u64)>;

/// The tree of one server, or of our own files.
#[derive(Debug)]
pub struct Branch {
    slot: u16,
    nodes: Vec<Node>,
    /// Sorted by inode number.
    index: Vec<(u64, u32)>,
    entries: Vec<Arc<Entry>>,
    declined: Vec<Arc<Declined>>,
    next_ino: u64,
    next_cookie: u64,
}

/// A node on its way into a branch.
enum Leaf<'a> {
    Text(&'a Verified),
    Declined(&'a Arc<Declined>),
    Skill(Vec<(u32, u32)>),
}

impl Branch {
    /// The tree of one server's entries. What `previous` already holds keeps its numbers and
    /// times; `seen` gives the times of what an earlier run saw; all else is of `now`.
    pub fn of_entries(
        slot: u16,
        entries: Vec<Arc<Entry>>,
        declined: Vec<Declined>,
        previous: Option<&Branch>,
        seen: &Seen,
        now: u64,
    ) -> Self {
        let (entries, declined) = settle(entries, declined);
        let mut leaves: BTreeMap<&str, Leaf> = BTreeMap::new();
        let mut by_path: HashMap<&str, Vec<(u32, u32)>> = HashMap::new();
        for (e, entry) in entries.iter().enumerate() {
            for (f, file) in entry.files().iter().enumerate() {
                by_path
                    .entry(file.path.as_str())
                    .or_default()
                    .push((e as u32, f as u32));
            }
        }
        let skill_dirs: HashSet<&str> = entries.iter().map(|e| e.dir.as_str()).collect();
        leaves.extend(
            by_path
                .into_iter()
                .map(|(path, claims)| (path, Leaf::Skill(claims))),
        );
        let marks: Vec<(RelPath, &Arc<Declined>)> = declined
            .iter()
            .filter_map(|d| Some((d.dir.as_ref()?.join(SKILL_MD), d)))
            .collect();
        for (path, d) in &marks {
            let blocked = prefixes(path.as_str()).any(|p| leaves.contains_key(p));
            if !blocked {
                leaves.entry(path.as_str()).or_insert(Leaf::Declined(d));
            }
        }
        // A mark must not make a file of what another mark needs as a directory.
        let dirs: HashSet<&str> = leaves.keys().flat_map(|p| prefixes(p)).collect();
        leaves.retain(|path, leaf| !(matches!(leaf, Leaf::Declined(_)) && dirs.contains(path)));
        let mut builder = Builder::new(slot, previous);
        for (path, leaf) in &leaves {
            builder.insert(path, leaf, &skill_dirs);
        }
        builder.finish(previous, &entries, declined.clone(), seen, now)
    }

    /// The tree of our own files, by path.
    pub fn of_texts(
        files: &BTreeMap<String, Verified>,
        previous: Option<&Branch>,
        now: u64,
    ) -> Self {
        let mut builder = Builder::new(0, previous);
        for (path, text) in files {
            builder.insert(path, &Leaf::Text(text), &HashSet::new());
        }
        builder.finish(previous, &[], Vec::new(), &Seen::new(), now)
    }

    /// The valid entries, those that lost a conflict left out.
    pub fn entries(&self) -> &[Arc<Entry>] {
        &self.entries
    }

    /// The declined ones, with those that the conflicts added.
    pub fn declined(&self) -> &[Arc<Declined>] {
        &self.declined
    }

    /// When each file's digest was first seen, to keep across a restart.
    pub fn seen(&self) -> Seen {
        let mut seen = Seen::new();
        for node in &self.nodes {
            if let Some(claim) = self.claims(node).into_iter().next() {
                seen.insert(claim.file.uri, (claim.file.digest, node.mtime));
            }
        }
        seen
    }

    /// Pairs of paths in one directory that differ only by letter case or Unicode form (HR-21).
    pub fn twins(&self) -> Vec<(String, String)> {
        let mut out = Vec::new();
        for node in &self.nodes {
            let Body::Dir { by_name, .. } = &node.body else {
                continue;
            };
            let children = || by_name.iter().filter_map(|i| self.node(*i));
            // Two plain lower-case ASCII names are never twins: most directories end here.
            let plain = |n: &Node| {
                n.name
                    .bytes()
                    .all(|b| b.is_ascii() && !b.is_ascii_uppercase())
            };
            if children().all(plain) {
                continue;
            }
            let mut folded: HashMap<String, &Node> = HashMap::new();
            for child in children() {
                let key = child.name.to_lowercase().nfc().collect();
                if let Some(other) = folded.insert(key, child) {
                    out.push((self.path(other), self.path(child)));
                }
            }
        }
        out
    }

    fn node(&self, index: u32) -> Option<&Node> {
        self.nodes.get(index as usize)
    }

    fn by_ino(&self, ino: u64) -> Option<&Node> {
        let at = self
            .index
            .binary_search_by_key(&ino, |(ino, _)| *ino)
            .ok()?;
        self.node(self.index.get(at)?.1)
    }

    fn root(&self) -> Option<&Node> {
        self.node(0)
    }

    fn child(&self, dir: &Node, name: &str) -> Option<&Node> {
        let Body::Dir { by_name, .. } = &dir.body else {
            return None;
        };
        let name_of = |i: &u32| self.node(*i).map_or("", |n| &n.name);
        let at = by_name.binary_search_by(|i| name_of(i).cmp(name)).ok()?;
        self.node(*by_name.get(at)?)
    }

    fn claims(&self, node: &Node) -> Vec<Claim> {
        let Body::Skill(claims) = &node.body else {
            return Vec::new();
        };
        let claim = |(e, f): &(u32, u32)| {
            let entry = self.entries.get(*e as usize)?;
            let file = entry.files().get(*f as usize)?.clone();
            Some(Claim {
                entry: Arc::clone(entry),
                file,
            })
        };
        claims.iter().filter_map(claim).collect()
    }

    fn attr(&self, node: &Node) -> Attr {
        let (kind, size, nlink) = match &node.body {
            Body::Dir { kind, subdirs, .. } => (*kind, 0, 2 + subdirs),
            Body::Text(text) => (Kind::File, text.bytes().len() as u64, 1),
            Body::Declined(_) => (Kind::Declined, UNKNOWN_SIZE, 1),
            Body::Skill(claims) => {
                let file = claims
                    .first()
                    .and_then(|(e, f)| self.entries.get(*e as usize)?.files().get(*f as usize));
                (Kind::File, file.map_or(UNKNOWN_SIZE, |f| f.size), 1)
            }
        };
        Attr {
            ino: node.ino,
            kind,
            size,
            nlink,
            mtime: node.mtime,
        }
    }

    fn source(&self, node: &Node) -> Option<Source> {
        match &node.body {
            Body::Dir { .. } => None,
            Body::Text(text) => Some(Source::Text(text.clone())),
            Body::Declined(d) => Some(Source::Declined(Arc::clone(d))),
            Body::Skill(_) => Some(Source::Skill(self.claims(node))),
        }
    }

    /// The path of a node below its branch; empty for the root.
    fn path(&self, node: &Node) -> String {
        let mut names = vec![&*node.name];
        let mut at = node;
        while let Some(parent) = self.node(at.parent).filter(|p| p.ino != at.ino) {
            names.push(&parent.name);
            at = parent;
        }
        names.pop();
        names.reverse();
        names.join("/")
    }
}

/// The paths of the directories above a path.
fn prefixes(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').filter_map(|(at, _)| path.get(..at))
}

/// Takes out what cannot stand beside the rest: dynamic skills, and every skill that shares a
/// path with another under a different URI or needs as a directory what another has as a file.
fn settle(
    entries: Vec<Arc<Entry>>,
    declined: Vec<Declined>,
) -> (Vec<Arc<Entry>>, Vec<Arc<Declined>>) {
    let mut reasons: BTreeMap<usize, Reason> = BTreeMap::new();
    let conflict = |a: &str, b: &str, path: &str| Reason::Conflict {
        uri: a.into(),
        other: b.into(),
        path: path.into(),
    };
    let mut first: HashMap<&str, (usize, &str)> = HashMap::new();
    for (e, entry) in entries.iter().enumerate() {
        if entry.content == Content::Dynamic {
            reasons.insert(e, Reason::Dynamic);
        }
        for file in entry.files() {
            let (other, uri) = *first.entry(file.path.as_str()).or_insert((e, &*file.uri));
            if uri != &*file.uri {
                reasons
                    .entry(e)
                    .or_insert_with(|| conflict(&file.uri, uri, file.path.as_str()));
                reasons
                    .entry(other)
                    .or_insert_with(|| conflict(uri, &file.uri, file.path.as_str()));
            }
        }
    }
    for (e, entry) in entries.iter().enumerate() {
        for file in entry.files() {
            for dir in prefixes(file.path.as_str()) {
                if let Some((other, uri)) = first.get(dir) {
                    reasons
                        .entry(e)
                        .or_insert_with(|| conflict(&file.uri, uri, dir));
                    reasons
                        .entry(*other)
                        .or_insert_with(|| conflict(uri, &file.uri, dir));
                }
            }
        }
    }
    // A path with three claimants is found pairwise above only against the first; the ones in
    // between are caught here.
    let clashing: HashSet<String> = reasons
        .values()
        .filter_map(|r| match r {
            Reason::Conflict { path, .. } => Some(path.clone()),
            _ => None,
        })
        .collect();
    for (e, entry) in entries.iter().enumerate() {
        if let Some(file) = entry
            .files()
            .iter()
            .find(|f| clashing.contains(f.path.as_str()))
        {
            let other = first.get(file.path.as_str()).map_or("", |(_, uri)| uri);
            reasons
                .entry(e)
                .or_insert_with(|| conflict(&file.uri, other, file.path.as_str()));
        }
    }
    let mut kept = Vec::with_capacity(entries.len());
    let mut out: Vec<Arc<Declined>> = declined.into_iter().map(Arc::new).collect();
    for (e, entry) in entries.iter().enumerate() {
        match reasons.remove(&e) {
            None => kept.push(Arc::clone(entry)),
            Some(reason) => out.push(Arc::new(Declined {
                uri: Some(entry.uri.clone()),
                dir: Some(entry.dir.clone()),
                reason,
            })),
        }
    }
    (kept, out)
}

/// Puts nodes together, then numbers them.
struct Builder {
    slot: u16,
    nodes: Vec<Node>,
    dirs: HashMap<String, u32>,
    next_ino: u64,
    next_cookie: u64,
}

impl Builder {
    fn new(slot: u16, previous: Option<&Branch>) -> Self {
        let base = u64::from(slot) << SLOT_SHIFT;
        let mut builder = Self {
            slot,
            nodes: Vec::new(),
            dirs: HashMap::new(),
            next_ino: previous.map_or(base | 1, |p| p.next_ino),
            next_cookie: previous.map_or(FIRST_COOKIE, |p| p.next_cookie),
        };
        builder.push(
            0,
            "",
            Body::Dir {
                kind: Kind::OpenDir,
                by_name: Vec::new(),
                by_cookie: Vec::new(),
                subdirs: 0,
            },
        );
        builder.dirs.insert(String::new(), 0);
        builder
    }

    fn push(&mut self, parent: u32, name: &str, body: Body) -> u32 {
        let index = self.nodes.len() as u32;
        let is_dir = matches!(body, Body::Dir { .. });
        self.nodes.push(Node {
            ino: 0,
            cookie: 0,
            parent,
            mtime: 0,
            name: name.into(),
            body,
        });
        if index != 0
            && let Some(Node {
                body: Body::Dir {
                    by_name, subdirs, ..
                },
                ..
            }) = self.nodes.get_mut(parent as usize)
        {
            by_name.push(index);
            *subdirs += u32::from(is_dir);
        }
        index
    }

    /// The directory at a path, made with all above it. One inside a skill is a skill's.
    fn dir(&mut self, path: &str, skill_dirs: &HashSet<&str>) -> u32 {
        if let Some(index) = self.dirs.get(path) {
            return *index;
        }
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        let parent = self.dir(above, skill_dirs);
        let in_skill = matches!(
            self.nodes.get(parent as usize),
            Some(Node {
                body: Body::Dir {
                    kind: Kind::SkillDir,
                    ..
                },
                ..
            })
        );
        let kind = if in_skill || skill_dirs.contains(path) {
            Kind::SkillDir
        } else {
            Kind::OpenDir
        };
        let body = Body::Dir {
            kind,
            by_name: Vec::new(),
            by_cookie: Vec::new(),
            subdirs: 0,
        };
        let index = self.push(parent, name, body);
        self.dirs.insert(path.to_owned(), index);
        index
    }

    fn insert(&mut self, path: &str, leaf: &Leaf, skill_dirs: &HashSet<&str>) {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let parent = self.dir(dir, skill_dirs);
        let body = match leaf {
            Leaf::Text(text) => Body::Text((*text).clone()),
            Leaf::Declined(d) => Body::Declined(Arc::clone(d)),
            Leaf::Skill(claims) => Body::Skill(claims.as_slice().into()),
        };
        self.push(parent, name, body);
    }

    /// Gives every node its numbers and time, from the previous branch where it is the same.
    fn finish(
        mut self,
        previous: Option<&Branch>,
        entries: &[Arc<Entry>],
        declined: Vec<Arc<Declined>>,
        seen: &Seen,
        now: u64,
    ) -> Branch {
        let mut branch = Branch {
            slot: self.slot,
            nodes: std::mem::take(&mut self.nodes),
            index: Vec::new(),
            entries: entries.to_vec(),
            declined,
            next_ino: 0,
            next_cookie: 0,
        };
        self.number(
            &mut branch,
            0,
            previous.and_then(|p| Some((p, p.root()?))),
            seen,
            now,
        );
        branch.next_ino = self.next_ino;
        branch.next_cookie = self.next_cookie;
        let mut index: Vec<(u64, u32)> = branch
            .nodes
            .iter()
            .zip(0u32..)
            .map(|(n, i)| (n.ino, i))
            .collect();
        index.sort_unstable();
        branch.index = index;
        branch
    }

    /// Numbers one node and all below it; returns its time. Depth is bounded by `MAX_LEVELS`.
    fn number(
        &mut self,
        branch: &mut Branch,
        at: u32,
        old: Option<(&Branch, &Node)>,
        seen: &Seen,
        now: u64,
    ) -> u64 {
        let same = old.filter(|(p, n)| {
            branch
                .node(at)
                .is_some_and(|new| same_content(branch, new, p, n))
        });
        let ino = same.map_or_else(|| take(&mut self.next_ino), |(_, n)| n.ino);
        let cookie = old.map_or_else(|| take(&mut self.next_cookie), |(_, n)| n.cookie);
        let mut children = match branch.nodes.get_mut(at as usize).map(|n| &mut n.body) {
            Some(Body::Dir { by_name, .. }) => std::mem::take(by_name),
            _ => Vec::new(),
        };
        let is_dir = branch
            .node(at)
            .is_some_and(|n| matches!(n.body, Body::Dir { .. }));
        children.sort_by(|a, b| {
            let name = |i: &u32| branch.node(*i).map(|n| &n.name);
            name(a).cmp(&name(b))
        });
        let mut newest = 0;
        for child in &children {
            let before = match (same, branch.node(*child)) {
                (Some((p, dir)), Some(new)) => p.child(dir, &new.name).map(|n| (p, n)),
                _ => None,
            };
            newest = newest.max(self.number(branch, *child, before, seen, now));
        }
        let mtime = if is_dir {
            // A name that went leaves no newer child behind, but the directory has changed.
            let gone = same.is_some_and(|(_, n)| match &n.body {
                Body::Dir { by_name, .. } => by_name.len() > children.len(),
                _ => false,
            });
            let kept = same.map_or(0, |(_, n)| n.mtime);
            if gone || (newest == 0 && kept == 0) {
                now
            } else {
                newest.max(kept)
            }
        } else if let Some((_, n)) = same {
            n.mtime
        } else {
            let claim = branch
                .node(at)
                .and_then(|n| branch.claims(n).into_iter().next());
            claim
                .and_then(|c| {
                    seen.get(&c.file.uri)
                        .filter(|(d, _)| *d == c.file.digest)
                        .map(|s| s.1)
                })
                .unwrap_or(now)
        };
        let mut by_cookie = children.clone();
        by_cookie.sort_by_key(|i| branch.node(*i).map(|n| n.cookie));
        if let Some(node) = branch.nodes.get_mut(at as usize) {
            node.ino = ino;
            node.cookie = cookie;
            node.mtime = mtime;
            if let Body::Dir {
                by_name,
                by_cookie: order,
                ..
            } = &mut node.body
            {
                *by_name = children;
                *order = by_cookie;
            }
        }
        mtime
    }
}

fn take(next: &mut u64) -> u64 {
    *next += 1;
    *next - 1
}

/// Whether a node of the new branch is what the old one was, so that it keeps its inode.
fn same_content(new_branch: &Branch, new: &Node, old_branch: &Branch, old: &Node) -> bool {
    match (&new.body, &old.body) {
        (Body::Dir { .. }, Body::Dir { .. }) => true,
        (Body::Text(a), Body::Text(b)) => a.bytes() == b.bytes(),
        (Body::Declined(a), Body::Declined(b)) => a == b,
        (Body::Skill(_), Body::Skill(_)) => {
            let identity = |branch: &Branch, node| {
                super::skill::decide(&branch.claims(node)).map(|d| match d {
                    super::skill::Decision::Serve(e) => Some((e.key(), e.uri, e.size)),
                    super::skill::Decision::Disagree(..) => None,
                })
            };
            // A file in dispute gets a new number each time: nothing was ever served from it.
            let id = identity(new_branch, new);
            id != Some(None) && id == identity(old_branch, old)
        }
        _ => false,
    }
}

/// Why a label shows nothing yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absent {
    /// Its server is starting.
    Starting,
    /// Its server cannot be reached.
    Down,
}

/// What is below a label.
#[derive(Debug, Clone)]
pub enum View {
    /// No listing was ever seen; not a single name is known.
    Unlisted(Absent),
    /// The listing.
    Listed(Arc<Branch>),
}

/// All that the mount shows at one moment.
#[derive(Debug, Clone)]
pub struct Tree {
    ours: Arc<Branch>,
    labels: Vec<(Label, View)>,
    since: u64,
}

/// The answer to the lookup of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// The node, and whether a refresh may give the name to another.
    Found(Attr),
    /// No such name, by the entries in force.
    NoEntry,
    /// Nobody can say yet.
    Unknown(Absent),
    /// The directory is no longer in the tree.
    Stale,
}

/// One name of a listing.
#[derive(Debug, Clone, Copy)]
pub struct Child<'a> {
    /// Its name.
    pub name: &'a str,
    /// Where a later listing goes on after it.
    pub cookie: u64,
    /// What it is.
    pub attr: Attr,
}

/// Where a node of the tree lies.
enum Place<'a> {
    /// A node of a branch.
    Node(&'a Branch, &'a Node),
    /// The directory of a label without a listing.
    Bare(Absent),
}

impl Tree {
    /// A tree with our own files and these labels, in slots 1, 2, …, made at `since`.
    pub fn new(ours: Arc<Branch>, labels: Vec<(Label, View)>, since: u64) -> Self {
        Self {
            ours,
            labels,
            since,
        }
    }

    /// The same tree with other files of our own.
    pub fn with_ours(&self, ours: Arc<Branch>) -> Self {
        Self {
            ours,
            ..self.clone()
        }
    }

    /// The same tree with another view of one label.
    pub fn with_view(&self, slot: u16, view: View) -> Self {
        let mut next = self.clone();
        if let Some(entry) = usize::from(slot)
            .checked_sub(1)
            .and_then(|i| next.labels.get_mut(i))
        {
            entry.1 = view;
        }
        next
    }

    /// Our own files.
    pub fn ours(&self) -> &Branch {
        &self.ours
    }

    /// The view of a label by its slot.
    pub fn view(&self, slot: u16) -> Option<&View> {
        let index = usize::from(slot).checked_sub(1)?;
        self.labels.get(index).map(|(_, view)| view)
    }

    /// The slot of the label that an inode belongs to; 0 for the root and our own files.
    pub fn slot_of(ino: u64) -> u16 {
        (ino >> SLOT_SHIFT) as u16
    }

    fn place(&self, ino: u64) -> Option<Place<'_>> {
        let slot = Self::slot_of(ino);
        if slot == 0 {
            return self.ours.by_ino(ino).map(|n| Place::Node(&self.ours, n));
        }
        match self.view(slot)? {
            View::Listed(branch) => branch.by_ino(ino).map(|n| Place::Node(branch, n)),
            View::Unlisted(absent) => (ino == label_root(slot)).then_some(Place::Bare(*absent)),
        }
    }

    fn label_attr(&self, slot: u16, view: &View) -> Attr {
        match view {
            View::Listed(branch) => branch.root().map(|n| branch.attr(n)),
            View::Unlisted(_) => None,
        }
        .unwrap_or(Attr {
            ino: label_root(slot),
            kind: Kind::OpenDir,
            size: 0,
            nlink: 2,
            mtime: self.since,
        })
    }

    fn root_attr(&self, mut attr: Attr) -> Attr {
        if attr.ino == ROOT {
            attr.nlink += self.labels.len() as u32;
        }
        attr
    }

    /// The attributes of a node; none if it is no longer in the tree.
    pub fn attr(&self, ino: u64) -> Option<Attr> {
        match self.place(ino)? {
            Place::Node(branch, node) => Some(self.root_attr(branch.attr(node))),
            Place::Bare(_) => {
                let slot = Self::slot_of(ino);
                Some(self.label_attr(slot, self.view(slot)?))
            }
        }
    }

    /// Looks a name up in a directory. From memory, always.
    pub fn lookup(&self, dir: u64, name: &str) -> Lookup {
        if dir == ROOT
            && let Some((slot, (_, view))) = (1u16..)
                .zip(&self.labels)
                .find(|(_, (label, _))| label.as_str() == name)
        {
            return Lookup::Found(self.label_attr(slot, view));
        }
        match self.place(dir) {
            None => Lookup::Stale,
            Some(Place::Bare(absent)) => Lookup::Unknown(absent),
            Some(Place::Node(branch, node)) => match branch.child(node, name) {
                Some(child) => Lookup::Found(branch.attr(child)),
                None => Lookup::NoEntry,
            },
        }
    }

    /// The children of a directory that come after a cookie, in the order of their cookies.
    ///
    /// # Errors
    /// [`Lookup::Unknown`] for a label without a listing, [`Lookup::Stale`] for an inode that is
    /// no directory of the tree.
    pub fn children(&self, dir: u64, after: u64) -> Result<Vec<Child<'_>>, Lookup> {
        let (branch, node) = match self.place(dir) {
            Some(Place::Node(branch, node)) => (branch, node),
            Some(Place::Bare(absent)) => return Err(Lookup::Unknown(absent)),
            None => return Err(Lookup::Stale),
        };
        let Body::Dir { by_cookie, .. } = &node.body else {
            return Err(Lookup::Stale);
        };
        let start =
            by_cookie.partition_point(|i| branch.node(*i).is_some_and(|n| n.cookie <= after));
        let mut out: Vec<Child> = by_cookie
            .iter()
            .skip(start)
            .filter_map(|i| branch.node(*i))
            .map(|n| Child {
                name: &n.name,
                cookie: n.cookie,
                attr: branch.attr(n),
            })
            .collect();
        if dir == ROOT {
            out.extend(
                (1u16..)
                    .zip(&self.labels)
                    .filter_map(|(slot, (label, view))| {
                        let cookie = LABEL_COOKIES + u64::from(slot);
                        (cookie > after).then(|| Child {
                            name: label.as_str(),
                            cookie,
                            attr: self.label_attr(slot, view),
                        })
                    }),
            );
        }
        Ok(out)
    }

    /// The parent of a directory, for its `..`.
    pub fn parent(&self, dir: u64) -> u64 {
        match self.place(dir) {
            Some(Place::Node(branch, node)) if node.ino != label_root(branch.slot) => {
                branch.node(node.parent).map_or(ROOT, |n| n.ino)
            }
            _ => ROOT,
        }
    }

    /// What is behind a file; none if the inode is no file of the tree.
    pub fn source(&self, ino: u64) -> Option<Source> {
        match self.place(ino)? {
            Place::Node(branch, node) => branch.source(node),
            Place::Bare(_) => None,
        }
    }

    /// The path of a node below the mount point.
    pub fn path(&self, ino: u64) -> Option<String> {
        let slot = Self::slot_of(ino);
        let below = match self.place(ino)? {
            Place::Node(branch, node) => branch.path(node),
            Place::Bare(_) => String::new(),
        };
        let label = usize::from(slot)
            .checked_sub(1)
            .and_then(|i| self.labels.get(i));
        Some(match label {
            None => below,
            Some((label, _)) if below.is_empty() => label.to_string(),
            Some((label, _)) => format!("{label}/{below}"),
        })
    }
}

/// The inode of a label's directory.
fn label_root(slot: u16) -> u64 {
    u64::from(slot) << SLOT_SHIFT | 1
}

/// What the kernel must be told after a change of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A name of this directory means something else than before, or nothing.
    Entry {
        /// The directory's inode.
        dir: u64,
        /// The name.
        name: Box<str>,
    },
    /// The listing or the attributes of this directory changed.
    Dir(u64),
}

/// All that differs between two trees of one mount.
pub fn changes(old: &Tree, new: &Tree) -> Vec<Change> {
    let mut out = Vec::new();
    branch_changes(&old.ours, &new.ours, &mut out);
    for (slot, ((_, before), (_, after))) in (1u16..).zip(old.labels.iter().zip(&new.labels)) {
        match (before, after) {
            (View::Listed(a), View::Listed(b)) => branch_changes(a, b, &mut out),
            (View::Unlisted(_), View::Unlisted(_)) => {}
            _ => out.push(Change::Dir(label_root(slot))),
        }
    }
    out
}

fn branch_changes(old: &Arc<Branch>, new: &Arc<Branch>, out: &mut Vec<Change>) {
    if Arc::ptr_eq(old, new) {
        return;
    }
    if let (Some(a), Some(b)) = (old.root(), new.root()) {
        dir_changes((old, a), (new, b), out);
    }
}

fn dir_changes(old: (&Branch, &Node), new: (&Branch, &Node), out: &mut Vec<Change>) {
    let (
        Body::Dir {
            by_name: before, ..
        },
        Body::Dir { by_name: after, .. },
    ) = (&old.1.body, &new.1.body)
    else {
        return;
    };
    let mut touched = old.0.attr(old.1) != new.0.attr(new.1);
    let mut changed = |name: &str| {
        out.push(Change::Entry {
            dir: new.1.ino,
            name: name.into(),
        })
    };
    let mut deeper = Vec::new();
    let (mut a, mut b) = (before.iter().peekable(), after.iter().peekable());
    loop {
        let x = a.peek().and_then(|i| old.0.node(**i));
        let y = b.peek().and_then(|i| new.0.node(**i));
        let order = match (x, y) {
            (None, None) => break,
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some(x), Some(y)) => x.name.cmp(&y.name),
        };
        if order.is_le() {
            a.next();
        }
        if order.is_ge() {
            b.next();
        }
        match (x, y) {
            (Some(x), Some(y)) if order.is_eq() => {
                if x.ino != y.ino {
                    changed(&y.name);
                    touched = true;
                } else {
                    deeper.push((x, y));
                }
            }
            (Some(x), _) if order.is_lt() => {
                changed(&x.name);
                touched = true;
            }
            (_, Some(y)) => {
                changed(&y.name);
                touched = true;
            }
            _ => {}
        }
    }
    if touched {
        out.push(Change::Dir(new.1.ino));
    }
    for (x, y) in deeper {
        dir_changes((old.0, x), (new.0, y), out);
    }
}
