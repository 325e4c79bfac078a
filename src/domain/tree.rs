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

use super::manifest::{Content, Declined, Reason};
use super::name::{Label, RelPath, SKILL_MD};
use super::skill::{Claim, Consent, Decision, Role, Shown, Standing, Window, decide, identity};
use super::verify::Verified;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use unicode_normalization::UnicodeNormalization;

/// The inode of the mount's root.
pub const ROOT: u64 = 1;
/// The size shown for a file that cannot be read and whose size nobody knows.
pub const UNKNOWN_SIZE: u64 = 1;
const SLOT_SHIFT: u32 = 40;
/// Cookies 1 and 2 are `.` and `..`.
const FIRST_COOKIE: u64 = 3;
/// Files that left one server's tree, of which this many are remembered; the pages of others go.
const MAX_GHOSTS: usize = 10_000;
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
    /// A file of a dynamic skill that the user allowed: its size is not known and shown as 0, and
    /// the kernel must keep nothing of it.
    Dynamic,
    /// The SKILL.md of a declined skill.
    Declined,
}

/// What a server showed in its directories and no entry mentions.
#[derive(Debug, Clone, Default)]
pub struct Beyond {
    /// Directories: prefixes, and those of dynamic skills.
    pub dirs: BTreeSet<RelPath>,
    /// Files of dynamic skills, with the URIs to read them by.
    pub files: BTreeMap<RelPath, Arc<str>>,
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
    /// A file of a dynamic skill, and the URI to read it by.
    Dynamic(Arc<Shown>, Arc<str>),
}

/// The skills of a branch, and what each is in it.
type Skills = Vec<(Arc<Shown>, Role)>;

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
    /// (skill, file) indices of every claim, and the size to show.
    Skill(Box<[(u32, u32)]>, u64),
    /// The index of a dynamic skill, and the URI of one of its files.
    Dynamic(u32, Arc<str>),
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
    skills: Skills,
    declined: Vec<Arc<Declined>>,
    ghosts: Vec<Ghost>,
    next_ino: u64,
    next_cookie: u64,
}

/// A file that left the tree while it could be read: whoever has it open may read on from the
/// kernel's pages, until none of the skills that vouched for it may be read.
#[derive(Debug, Clone)]
struct Ghost {
    ino: u64,
    skills: Vec<Arc<str>>,
}

/// A node on its way into a branch.
enum Leaf<'a> {
    Text(&'a Verified),
    Declined(&'a Arc<Declined>),
    Skill(Vec<(u32, u32)>, u64),
    Dynamic(u32, &'a Arc<str>),
}

impl Branch {
    /// The tree of one server's skills. What `previous` already holds keeps its numbers and
    /// times; `seen` gives the times of what an earlier run saw; all else is of `now`.
    /// `beyond` is what the server showed beside them.
    pub fn of_skills(
        slot: u16,
        shown: Vec<Arc<Shown>>,
        declined: Vec<Arc<Declined>>,
        beyond: &Beyond,
        previous: Option<&Branch>,
        seen: &Seen,
        now: u64,
    ) -> Self {
        let (skills, declined) = settle(shown, declined);
        let mut leaves: BTreeMap<&str, Leaf> = BTreeMap::new();
        let mut by_path: HashMap<&str, Vec<(u32, u32)>> = HashMap::new();
        for (s, (skill, _)) in skills.iter().enumerate() {
            for (f, file) in skill.entry.files().iter().enumerate() {
                by_path
                    .entry(file.path.as_str())
                    .or_default()
                    .push((s as u32, f as u32));
            }
        }
        let is_dynamic = |s: &Shown| s.entry.content == Content::Dynamic;
        let skill_dirs: HashSet<&str> = skills
            .iter()
            .filter(|(s, _)| !is_dynamic(s))
            .map(|(s, _)| s.entry.dir.as_str())
            .collect();
        leaves.extend(by_path.into_iter().map(|(path, claims)| {
            let all: Vec<Claim> = claims.iter().filter_map(|c| claim(&skills, *c)).collect();
            (path, Leaf::Skill(claims, identity(&all).1))
        }));
        let dynamic: Vec<(RelPath, u32, &Arc<Shown>)> = skills
            .iter()
            .zip(0u32..)
            .filter(|((s, _), _)| is_dynamic(s))
            .map(|((s, _), i)| (s.entry.dir.join(SKILL_MD), i, s))
            .collect();
        let taken: HashSet<String> = leaves
            .keys()
            .flat_map(|p| prefixes(p).chain([*p]))
            .map(str::to_owned)
            .collect();
        let in_the_way = |leaves: &BTreeMap<&str, Leaf>, path: &str| {
            taken.contains(path)
                || prefixes(path).any(|p| skill_dirs.contains(p) || leaves.contains_key(p))
        };
        for (path, i, skill) in &dynamic {
            if !in_the_way(&leaves, path.as_str()) {
                leaves.insert(path.as_str(), Leaf::Dynamic(*i, &skill.entry.uri));
            }
        }
        for (path, uri) in &beyond.files {
            let owner = dynamic
                .iter()
                .filter(|(_, _, s)| path.is_below(&s.entry.dir));
            let owner = owner.max_by_key(|(_, _, s)| s.entry.dir.as_str().len());
            if let Some((_, i, _)) = owner.filter(|_| !in_the_way(&leaves, path.as_str())) {
                leaves
                    .entry(path.as_str())
                    .or_insert(Leaf::Dynamic(*i, uri));
            }
        }
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
        // Directories that the server showed: never inside a skill that lists its files, and
        // never where a file is.
        for dir in &beyond.dirs {
            let blocked = |p: &str| skill_dirs.contains(p) || leaves.contains_key(p);
            if !prefixes(dir.as_str()).chain([dir.as_str()]).any(blocked) {
                builder.dir(dir.as_str(), &skill_dirs);
            }
        }
        builder.finish(previous, skills.clone(), declined.clone(), seen, now)
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
        builder.finish(previous, Vec::new(), Vec::new(), &Seen::new(), now)
    }

    /// The skills, those that lost a conflict left out.
    pub fn skills(&self) -> impl Iterator<Item = &Arc<Shown>> {
        self.skills.iter().map(|(shown, _)| shown)
    }

    /// The skills that count as ones of their own: not those nested in another without consent.
    pub fn own_skills(&self) -> Vec<Arc<Shown>> {
        let own = self.skills.iter().filter(|(_, role)| *role == Role::Skill);
        own.map(|(shown, _)| Arc::clone(shown)).collect()
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
        let Body::Skill(claims, _) = &node.body else {
            return Vec::new();
        };
        claims
            .iter()
            .filter_map(|c| claim(&self.skills, *c))
            .collect()
    }

    fn attr(&self, node: &Node) -> Attr {
        let (kind, size, nlink) = match &node.body {
            Body::Dir { kind, subdirs, .. } => (*kind, 0, 2 + subdirs),
            Body::Text(text) => (Kind::File, text.bytes().len() as u64, 1),
            Body::Declined(_) => (Kind::Declined, UNKNOWN_SIZE, 1),
            Body::Skill(_, size) => (Kind::File, *size, 1),
            Body::Dynamic(..) => (Kind::Dynamic, 0, 1),
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
            Body::Skill(..) => Some(Source::Skill(self.claims(node))),
            Body::Dynamic(skill, uri) => {
                let (shown, _) = self.skills.get(*skill as usize)?;
                Some(Source::Dynamic(Arc::clone(shown), Arc::clone(uri)))
            }
        }
    }

    /// Whether a changed skill's newest entry has a file at or below this name.
    fn is_pending(&self, dir: &Node, name: &str) -> bool {
        let pending = || self.skills().filter_map(|s| s.pending.as_ref());
        if pending().next().is_none() {
            return false;
        }
        let path = format!("{}/{name}", self.path(dir));
        let at = |p: &str| {
            p.strip_prefix(&path)
                .is_some_and(|r| r.is_empty() || r.starts_with('/'))
        };
        pending().any(|entry| entry.files().iter().any(|f| at(f.path.as_str())))
    }

    /// The deepest directory that there is of a path's, and the name below it that there is not.
    fn missing<'a>(&self, path: &'a str) -> Option<(u64, &'a str)> {
        let mut dir = self.root()?;
        for name in path.split('/') {
            match self.child(dir, name) {
                Some(next) => dir = next,
                None => return Some((dir.ino, name)),
            }
        }
        None
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

/// The claim of a skill on a file. The SKILL.md of a skill that reading it would load anew is
/// the new entry's.
fn claim(skills: &[(Arc<Shown>, Role)], (s, f): (u32, u32)) -> Option<Claim> {
    let (shown, role) = skills.get(s as usize)?;
    let file = shown.entry.files().get(f as usize)?;
    let new = shown
        .reload
        .as_ref()
        .filter(|_| file.uri == shown.entry.uri);
    let new =
        new.and_then(|entry| Some((entry, entry.files().iter().find(|n| n.uri == file.uri)?)));
    let (entry, file) = new.unwrap_or((&shown.entry, file));
    Some(Claim {
        shown: Arc::clone(shown),
        entry: Arc::clone(entry),
        file: file.clone(),
        role: *role,
    })
}

/// Takes out what cannot stand beside the rest: every skill that shares a path with another under a different URI or needs as a directory what another has as a file.
/// A held skill stays: what newly clashes with it is declined alone.
fn settle(
    shown: Vec<Arc<Shown>>,
    mut declined: Vec<Arc<Declined>>,
) -> (Skills, Vec<Arc<Declined>>) {
    let mut reasons: BTreeMap<usize, Reason> = BTreeMap::new();
    let held = |s: usize| shown.get(s).is_some_and(|s| s.window != Window::Closed);
    let mut clash = |s: usize, uri: &str, other: &str, path: &str| {
        if !held(s) {
            let (uri, other, path) = (uri.into(), other.into(), path.into());
            reasons
                .entry(s)
                .or_insert(Reason::Conflict { uri, other, path });
        }
    };
    let mut first: HashMap<&str, (usize, &str)> = HashMap::new();
    let mut clashing: HashSet<&str> = HashSet::new();
    for (s, skill) in shown.iter().enumerate() {
        for file in skill.entry.files() {
            let path = file.path.as_str();
            let (other, uri) = *first.entry(path).or_insert((s, &*file.uri));
            if uri != &*file.uri {
                clash(s, &file.uri, uri, path);
                clash(other, uri, &file.uri, path);
                clashing.insert(path);
            }
        }
    }
    for (s, skill) in shown.iter().enumerate() {
        for file in skill.entry.files() {
            for dir in prefixes(file.path.as_str()) {
                if let Some((other, uri)) = first.get(dir) {
                    clash(s, &file.uri, uri, dir);
                    clash(*other, uri, &file.uri, dir);
                    clashing.insert(dir);
                }
            }
        }
    }
    // With three claimants of a path, only the first was compared with each of the others.
    for (s, skill) in shown.iter().enumerate() {
        let mut files = skill.entry.files().iter();
        if let Some(file) = files.find(|f| clashing.contains(f.path.as_str())) {
            let other = first.get(file.path.as_str()).map_or("", |(_, uri)| uri);
            clash(s, &file.uri, other, file.path.as_str());
        }
    }
    let mut kept = Vec::with_capacity(shown.len());
    for (s, skill) in shown.iter().enumerate() {
        match reasons.remove(&s) {
            None => kept.push(Arc::clone(skill)),
            Some(reason) => declined.push(Arc::new(Declined {
                uri: Some(skill.entry.uri.clone()),
                dir: Some(skill.entry.dir.clone()),
                reason,
            })),
        }
    }
    let dirs: HashSet<&str> = kept.iter().map(|s| s.entry.dir.as_str()).collect();
    let nested = |s: &Shown| prefixes(s.entry.dir.as_str()).any(|d| dirs.contains(d));
    let role = |s: &Shown| match s.consent {
        Consent::Missing if nested(s) => Role::Supporting,
        Consent::Missing | Consent::Given => Role::Skill,
    };
    let roles: Vec<Role> = kept.iter().map(|s| role(s)).collect();
    (kept.into_iter().zip(roles).collect(), declined)
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
            Leaf::Skill(claims, size) => Body::Skill(claims.as_slice().into(), *size),
            Leaf::Dynamic(skill, uri) => Body::Dynamic(*skill, Arc::clone(uri)),
        };
        self.push(parent, name, body);
    }

    /// Gives every node its numbers and time, from the previous branch where it is the same.
    fn finish(
        mut self,
        previous: Option<&Branch>,
        skills: Skills,
        declined: Vec<Arc<Declined>>,
        seen: &Seen,
        now: u64,
    ) -> Branch {
        let mut branch = Branch {
            slot: self.slot,
            nodes: std::mem::take(&mut self.nodes),
            index: Vec::new(),
            skills,
            declined,
            ghosts: Vec::new(),
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
        branch.ghosts = previous.map_or_else(Vec::new, |old| ghosts(old, &branch));
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
        (Body::Dynamic(_, a), Body::Dynamic(_, b)) => a == b,
        (Body::Skill(..), Body::Skill(..)) => {
            let id = |branch: &Branch, node| {
                identity(&branch.claims(node))
                    .0
                    .map(|e| (e.key(), e.uri, e.size))
            };
            // A file in dispute gets a new number each time: nothing was ever served from it.
            let new = id(new_branch, new);
            new.is_some() && new == id(old_branch, old)
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
    /// The server has such a name now, but the held entry does not (HR-68).
    Pending,
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
                None if branch.is_pending(node, name) => Lookup::Pending,
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

    /// The path of a directory of a label below that label, if a skill may be found below it that
    /// no entry mentions: the label's own directory is the empty path.
    pub fn open_dir(&self, dir: u64) -> Option<String> {
        match self.place(dir)? {
            Place::Node(branch, node) if branch.slot != 0 => match &node.body {
                Body::Dir {
                    kind: Kind::OpenDir,
                    ..
                } => Some(branch.path(node)),
                _ => None,
            },
            _ => None,
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
    /// What the kernel holds of this file's content must go: it may not be read any more, or the
    /// next read must be seen.
    Pages(u64),
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
    // A name that was absent before may be one that the server has by now.
    for pending in new.skills().filter_map(|s| s.pending.as_ref()) {
        for file in pending.files() {
            if let Some((dir, name)) = new.missing(file.path.as_str()) {
                out.push(Change::Entry {
                    dir,
                    name: name.into(),
                });
            }
        }
    }
    lost_pages(old, new, out);
    // Only the files of a skill whose standing or window moved, or that is gone, can need their
    // pages dropped.
    let after: HashMap<&str, &Shown> = new.skills().map(|s| (&*s.entry.uri, &**s)).collect();
    let state = |s: &Shown| (s.standing, s.window);
    let moved: HashSet<&str> = old
        .skills()
        .filter(|s| after.get(&*s.entry.uri).map(|a| state(a)) != Some(state(s)))
        .map(|s| &*s.entry.uri)
        .collect();
    if moved.is_empty() {
        return;
    }
    for node in &old.nodes {
        let then = old.claims(node);
        // A skill that went its way may list the file no longer.
        if then.iter().any(|c| moved.contains(&*c.shown.entry.uri))
            && let Some(now) = new.by_ino(node.ino)
            && must_drop(&then, &new.claims(now))
        {
            out.push(Change::Pages(node.ino));
        }
    }
}

/// The files that left the tree now or earlier.
fn left<'a>(old: &'a Branch, new: &'a Branch) -> impl Iterator<Item = Ghost> + 'a {
    let skill_files = old
        .nodes
        .iter()
        .filter(|n| matches!(n.body, Body::Skill(..)));
    let gone = skill_files.filter(|n| new.by_ino(n.ino).is_none());
    let now = gone.filter_map(|node| match decide(&old.claims(node)) {
        Some(Decision::Serve(.., loads)) => Some(Ghost {
            ino: node.ino,
            skills: loads.iter().map(|e| Arc::clone(&e.uri)).collect(),
        }),
        _ => None,
    });
    now.chain(old.ghosts.iter().cloned())
}

/// Those that left the tree and may still be read: a skill that vouched for them may be, or all
/// of those were withdrawn, which takes no right away.
fn ghosts(old: &Branch, new: &Branch) -> Vec<Ghost> {
    let declined = new.declined.iter().filter_map(|d| d.uri.as_deref());
    let mut rights: HashMap<&str, bool> = declined.map(|uri| (uri, false)).collect();
    let readable = |s: &Arc<Shown>| s.standing == Standing::Open;
    rights.extend(new.skills().map(|s| (&*s.entry.uri, readable(s))));
    let may_stay = |ghost: &Ghost| {
        let mut now = ghost.skills.iter().filter_map(|uri| rights.get(&**uri));
        now.clone().any(|readable| *readable) || now.next().is_none()
    };
    let kept = left(old, new).filter(may_stay);
    kept.take(MAX_GHOSTS).collect()
}

/// Drops the pages of files that left the tree and may be read no longer.
fn lost_pages(old: &Branch, new: &Branch, out: &mut Vec<Change>) {
    let kept: HashSet<u64> = new.ghosts.iter().map(|ghost| ghost.ino).collect();
    let lost = left(old, new).filter(|ghost| !kept.contains(&ghost.ino));
    out.extend(lost.map(|ghost| Change::Pages(ghost.ino)));
}

/// Whether what was read before must not be read from the kernel's pages now.
fn must_drop(before: &[Claim], now: &[Claim]) -> bool {
    let serves = |claims| matches!(decide(claims), Some(Decision::Serve(..)));
    let open = |claims: &[Claim]| claims.iter().any(|c| c.shown.window != Window::Closed);
    // A read that would load another entry must be seen, also where the bytes are the same.
    let reloads = |claims: &[Claim]| claims.iter().any(|c| c.entry != c.shown.entry);
    let unseen = (open(before) && !open(now)) || (reloads(now) && !reloads(before));
    serves(before) && (!serves(now) || unseen)
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

#[cfg(test)]
mod tests {
    use super::super::manifest::Entry;
    use super::*;
    use crate::domain::digest::Digest;
    use crate::domain::skill::{Known, Origin, Policy, Skill};
    use crate::domain::verify::{Expected, Untrusted, verify};
    use proptest::prelude::*;
    use serde_json::json;

    /// A skill at a directory URI, with these files and their bodies beside its SKILL.md.
    fn entry(dir: &str, files: &[(&str, &str)]) -> Arc<Entry> {
        try_entry(dir, files).unwrap()
    }

    fn try_entry(dir: &str, files: &[(&str, &str)]) -> Option<Arc<Entry>> {
        let row = |uri: String, body: &str| json!({"uri": uri, "digest": Digest::of(body.as_bytes()).to_string(), "size": body.len()});
        let uri = format!("{dir}/SKILL.md");
        let name = RelPath::of_uri(dir).ok()?.last().to_owned();
        let mut rows = vec![row(uri.clone(), dir)];
        rows.extend(
            files
                .iter()
                .map(|(f, body)| row(format!("{dir}/{f}"), body)),
        );
        let value = json!({"uri": uri, "resources": rows,
            "frontmatter": {"name": name, "description": "d"}});
        Entry::parse(&value).ok().map(Arc::new)
    }

    fn shown(entry: &Arc<Entry>) -> Arc<Shown> {
        let skill = Skill::new(Known::Entry(Arc::clone(entry)), Origin::Listed);
        Arc::new(skill.shown(Policy::default()).unwrap())
    }

    fn branch(entries: &[Arc<Entry>], previous: Option<&Branch>, now: u64) -> Branch {
        let skills = entries.iter().map(shown).collect();
        Branch::of_skills(
            1,
            skills,
            Vec::new(),
            &Beyond::default(),
            previous,
            &Seen::new(),
            now,
        )
    }

    fn tree(branch: Branch) -> Tree {
        let ours = Arc::new(Branch::of_texts(&BTreeMap::new(), None, 0));
        let label = "lab".parse().unwrap();
        Tree::new(ours, vec![(label, View::Listed(Arc::new(branch)))], 0)
    }

    fn find(tree: &Tree, path: &str) -> Option<Attr> {
        path.split('/').try_fold(tree.attr(ROOT)?, |dir, name| {
            match tree.lookup(dir.ino, name) {
                Lookup::Found(attr) => Some(attr),
                _ => None,
            }
        })
    }

    /// All paths below a directory, with `/` behind directories.
    fn walk(tree: &Tree, dir: u64, prefix: &str, out: &mut Vec<String>) {
        for child in tree.children(dir, 0).unwrap() {
            let path = format!("{prefix}{}", child.name);
            match child.attr.kind {
                Kind::SkillDir | Kind::OpenDir => {
                    out.push(format!("{path}/"));
                    walk(tree, child.attr.ino, &format!("{path}/"), out);
                }
                Kind::File | Kind::Dynamic | Kind::Declined => out.push(path),
            }
        }
    }

    fn paths(tree: &Tree) -> Vec<String> {
        let mut out = Vec::new();
        walk(tree, ROOT, "", &mut out);
        out
    }

    #[test]
    fn one_tree_of_nested_and_prefixed_skills() {
        let outer = entry("skill://o", &[("i/SKILL.md", "skill://o/i"), ("a.md", "a")]);
        let inner = entry("skill://o/i", &[]);
        let deep = entry("skill://p/q/r", &[]);
        let foreign = entry("github://x/y", &[]);
        let t = tree(branch(&[outer, inner, deep, foreign], None, 7));
        let want = [
            "lab/",
            "lab/github:/",
            "lab/github:/x/",
            "lab/github:/x/y/",
            "lab/github:/x/y/SKILL.md",
            "lab/o/",
            "lab/o/SKILL.md",
            "lab/o/a.md",
            "lab/o/i/",
            "lab/o/i/SKILL.md",
            "lab/p/",
            "lab/p/q/",
            "lab/p/q/r/",
            "lab/p/q/r/SKILL.md",
        ];
        assert_eq!(paths(&t), want);
        let kind = |p| find(&t, p).unwrap().kind;
        assert_eq!(
            (kind("lab"), kind("lab/p/q"), kind("lab/p/q/r")),
            (Kind::OpenDir, Kind::OpenDir, Kind::SkillDir)
        );
        assert_eq!(
            (kind("lab/o"), kind("lab/o/i")),
            (Kind::SkillDir, Kind::SkillDir)
        );
        let attr = |p| find(&t, p).unwrap();
        assert_eq!(
            (
                attr("lab").nlink,
                attr("lab/o").nlink,
                attr("lab/o/a.md").nlink
            ),
            (5, 3, 1)
        );
        assert_eq!((attr("lab/o/a.md").size, attr("lab/o/a.md").mtime), (1, 7));
        assert_eq!(t.attr(ROOT).unwrap().nlink, 3);
        let Some(Source::Skill(claims)) = t.source(attr("lab/o/i/SKILL.md").ino) else {
            panic!()
        };
        assert_eq!(claims.len(), 2, "listed by the outer and the inner skill");
        assert_eq!(
            t.path(attr("lab/o/i/SKILL.md").ino).as_deref(),
            Some("lab/o/i/SKILL.md")
        );
        assert_eq!(t.parent(attr("lab/o/i").ino), attr("lab/o").ino);
        assert_eq!(t.parent(attr("lab").ino), ROOT);
        assert_eq!(t.lookup(attr("lab").ino, "none"), Lookup::NoEntry);
        assert_eq!(t.lookup(99 << SLOT_SHIFT, "x"), Lookup::Stale);
    }

    #[test]
    fn hr_20_what_cannot_stand_together_is_declined_on_both_sides() {
        let ok = entry("skill://ok", &[]);
        let reasons = |others: &[Arc<Entry>]| {
            let all = [&[Arc::clone(&ok)], others].concat();
            let b = branch(&all, None, 0);
            assert!(b.skills().any(|s| s.entry == ok));
            let declined: Vec<_> = b
                .declined()
                .iter()
                .map(|d| d.uri.clone().unwrap())
                .collect();
            let t = tree(b);
            assert!(find(&t, "lab/ok/SKILL.md").is_some_and(|a| a.kind == Kind::File));
            for p in paths(&t)
                .iter()
                .filter(|p| !p.ends_with('/') && !p.starts_with("lab/ok"))
            {
                assert_eq!(find(&t, p).unwrap().kind, Kind::Declined, "{p}");
            }
            declined.len()
        };
        let twins = [entry("skill://a", &[]), entry("skill://%61", &[])];
        assert_eq!(reasons(&twins), 2);
        let three = [
            entry("skill://a", &[]),
            entry("skill://%61", &[]),
            entry("skill://a", &[("x", "x")]),
        ];
        assert_eq!(reasons(&three), 3);
        let file_and_dir = [
            entry("skill://a", &[("b", "file")]),
            entry("skill://a/b/c", &[]),
        ];
        assert_eq!(reasons(&file_and_dir), 2);
        let nested_spelling = [
            entry("skill://a", &[("%62/SKILL.md", "x")]),
            entry("skill://a/b", &[]),
        ];
        assert_eq!(reasons(&nested_spelling), 2);
    }

    #[test]
    fn a_declined_skill_is_seen_and_never_in_the_way() {
        let declined = |dir: &str| {
            let uri = Some(format!("{dir}/SKILL.md").into());
            Arc::new(Declined {
                uri,
                dir: RelPath::of_uri(dir).ok(),
                reason: Reason::NoSkillMd,
            })
        };
        let good = entry("skill://a", &[("b", "file"), ("c/d", "x")]);
        let bad = [
            "skill://bad",
            "skill://a/b/x",
            "skill://a/c",
            "skill://a",
            "skill://bad/SKILL.md",
        ];
        let bad = bad.map(declined).to_vec();
        let b = Branch::of_skills(
            1,
            vec![shown(&good)],
            bad,
            &Beyond::default(),
            None,
            &Seen::new(),
            0,
        );
        let t = tree(b);
        let kind = |p| find(&t, p).map(|a| a.kind);
        assert_eq!(kind("lab/a/b"), Some(Kind::File));
        assert_eq!(
            kind("lab/a/SKILL.md"),
            Some(Kind::File),
            "the valid skill's own file stays"
        );
        assert_eq!(kind("lab/a/c/SKILL.md"), Some(Kind::Declined));
        assert_eq!(kind("lab/a/b/x"), None);
        assert!(
            kind("lab/bad/SKILL.md").is_some(),
            "two that need one path: one is shown"
        );
    }

    #[test]
    fn hr_35_43_an_allowed_dynamic_skill_has_files_of_unknown_size() {
        let dynamic = json!({"uri": "skill://dyn/SKILL.md", "resources": "dynamic",
            "frontmatter": {"name": "dyn", "description": "d"}});
        let dynamic = Arc::new(Entry::parse(&dynamic).unwrap());
        let listed = entry("skill://dyn/in", &[("x", "1")]);
        let path = |p: &str| RelPath::of_names(p).unwrap();
        let uri = |p: &str| (path(p), Arc::from(format!("skill://{p}")));
        let beyond = Beyond {
            dirs: [path("dyn/d"), path("dyn/in/no")].into(),
            files: [
                uri("dyn/f"),
                uri("dyn/d/g"),
                uri("dyn/in/x"),
                uri("dyn/in/y"),
                uri("other/z"),
            ]
            .into(),
        };
        let skills = vec![shown(&dynamic), shown(&listed)];
        let t = tree(Branch::of_skills(
            1,
            skills,
            Vec::new(),
            &beyond,
            None,
            &Seen::new(),
            0,
        ));
        let kind = |p| find(&t, p).map(|a| (a.kind, a.size));
        assert_eq!(kind("lab/dyn/SKILL.md"), Some((Kind::Dynamic, 0)));
        assert_eq!(kind("lab/dyn/f"), Some((Kind::Dynamic, 0)));
        assert_eq!(kind("lab/dyn/d/g"), Some((Kind::Dynamic, 0)));
        assert_eq!(
            kind("lab/dyn/in/x"),
            Some((Kind::File, 1)),
            "a listed skill inside stays as listed"
        );
        assert_eq!(
            (
                kind("lab/dyn/in/y"),
                kind("lab/dyn/in/no"),
                kind("lab/other")
            ),
            (None, None, None)
        );
        let ino = find(&t, "lab/dyn/d/g").unwrap().ino;
        assert!(
            matches!(t.source(ino), Some(Source::Dynamic(s, u)) if s.entry == dynamic && &*u == "skill://dyn/d/g")
        );
    }

    #[test]
    fn hr_58_numbers_stay_with_the_same_content_and_go_with_another() {
        let v1 = branch(&[entry("skill://a", &[("x", "1"), ("y", "1")])], None, 10);
        let v2 = branch(
            &[entry("skill://a", &[("x", "2"), ("y", "1"), ("z", "1")])],
            Some(&v1),
            20,
        );
        let v3 = branch(&[entry("skill://a", &[("x", "1")])], Some(&v2), 30);
        let (t1, t2, t3) = (tree(v1), tree(v2), tree(v3));
        let at = |t: &Tree, p: &str| find(t, p).unwrap();
        assert_eq!(at(&t1, "lab/a/y"), at(&t2, "lab/a/y"));
        assert_eq!(at(&t1, "lab/a").ino, at(&t3, "lab/a").ino);
        let x = [&t1, &t2, &t3].map(|t| at(t, "lab/a/x").ino);
        assert!(
            x[0] != x[1] && x[1] != x[2] && x[0] != x[2],
            "never used again"
        );
        assert_eq!(
            (at(&t2, "lab/a/x").mtime, at(&t2, "lab/a/y").mtime),
            (20, 10)
        );
        assert_eq!(
            (at(&t2, "lab/a").mtime, at(&t3, "lab/a").mtime),
            (20, 30),
            "also when names go"
        );
        assert!(
            t2.attr(x[0]).is_none() && t2.source(x[0]).is_none(),
            "the old file is stale"
        );

        let change = |name: &str| Change::Entry {
            dir: at(&t1, "lab/a").ino,
            name: name.into(),
        };
        let dir = Change::Dir(at(&t1, "lab/a").ino);
        let found = changes(&t1, &t2);
        assert!(
            found.contains(&change("x")) && found.contains(&change("z")) && found.contains(&dir)
        );
        assert!(!found.contains(&change("y")));
        let found = changes(&t2, &t3);
        assert!(
            found.contains(&change("y")) && found.contains(&change("z")),
            "{found:?}"
        );
        assert_eq!(changes(&t3, &t3.clone()), []);
    }

    #[test]
    fn hr_112_pages_go_when_reading_ends_or_must_be_seen_again() {
        let (a, b) = (entry("skill://a", &[("x", "1")]), entry("skill://b", &[]));
        let with = |standing, window, previous: Option<&Branch>| {
            let a = Arc::new(Shown {
                standing,
                window,
                ..(*shown(&a)).clone()
            });
            Branch::of_skills(
                1,
                vec![a, shown(&b)],
                Vec::new(),
                &Beyond::default(),
                previous,
                &Seen::new(),
                0,
            )
        };
        let start = with(Standing::Open, Window::Open, None);
        let cases = [
            (Standing::Open, Window::Open, 0),
            (Standing::Open, Window::Changed, 0),
            (Standing::Open, Window::Closed, 2),
            (Standing::Revoked, Window::Open, 2),
            (Standing::Lapsed, Window::Changed, 2),
        ];
        for (standing, window, want) in cases {
            let next = with(standing, window, Some(&start));
            let same = with(Standing::Open, Window::Open, Some(&start));
            let found = changes(&tree(same), &tree(next));
            let pages = found
                .iter()
                .filter(|c| matches!(c, Change::Pages(_)))
                .count();
            assert_eq!(
                (pages, found.len()),
                (want, want),
                "{standing:?} {window:?}: {found:?}"
            );
        }
    }

    #[test]
    fn hr_112_pages_of_what_left_the_tree_go_when_its_skill_may_be_read_no_longer() {
        let entry = |body: &str| entry("skill://a", &[("x", body)]);
        let next = |shown: Shown, previous: Option<&Branch>| {
            let (beyond, seen) = (Beyond::default(), Seen::new());
            let shown = vec![Arc::new(shown)];
            Arc::new(Branch::of_skills(
                1,
                shown,
                Vec::new(),
                &beyond,
                previous,
                &seen,
                0,
            ))
        };
        let pages = |old: &Arc<Branch>, new: &Arc<Branch>| {
            let mut found = Vec::new();
            branch_changes(old, new, &mut found);
            found.retain(|c| matches!(c, Change::Pages(_)));
            found
        };
        let (a, b) = (shown(&entry("1")), shown(&entry("2")));
        let first = next((*a).clone(), None);
        let rotated = next((*b).clone(), Some(&first));
        let again = next((*b).clone(), Some(&rotated));
        assert_eq!(pages(&first, &rotated), []);
        assert_eq!(pages(&rotated, &again), []);
        let revoked = Shown {
            standing: Standing::Revoked,
            ..(*b).clone()
        };
        let gone = again.ghosts[0].ino;
        let last = next(revoked, Some(&again));
        assert!(pages(&again, &last).contains(&Change::Pages(gone)));
        assert!(last.ghosts.is_empty());
    }

    #[test]
    fn hr_68_a_name_that_only_the_pending_entry_has_is_told_apart() {
        let (old, new) = (entry("skill://a", &[]), entry("skill://a", &[("t/x", "1")]));
        let changed = Shown {
            window: Window::Changed,
            pending: Some(new),
            ..(*shown(&old)).clone()
        };
        let before = branch(&[Arc::clone(&old)], None, 0);
        let skills = vec![Arc::new(changed)];
        let after = Branch::of_skills(
            1,
            skills,
            Vec::new(),
            &Beyond::default(),
            Some(&before),
            &Seen::new(),
            0,
        );
        let (t1, t2) = (tree(before), tree(after));
        let a = find(&t2, "lab/a").unwrap().ino;
        assert_eq!(
            (t1.lookup(a, "t"), t2.lookup(a, "t")),
            (Lookup::NoEntry, Lookup::Pending)
        );
        assert_eq!(t2.lookup(a, "u"), Lookup::NoEntry);
        assert!(changes(&t1, &t2).contains(&Change::Entry {
            dir: a,
            name: "t".into()
        }));
    }

    #[test]
    fn hr_95_prefixes_that_the_server_showed_are_directories_and_nothing_else() {
        let dirs = ["acme", "acme/billing", "a/inside", "a/f/below"]
            .map(|p| RelPath::of_names(p).unwrap());
        let a = entry("skill://a", &[("f", "1")]);
        let beyond = Beyond {
            dirs: BTreeSet::from(dirs),
            ..Beyond::default()
        };
        let b = Branch::of_skills(
            1,
            vec![shown(&a)],
            Vec::new(),
            &beyond,
            None,
            &Seen::new(),
            0,
        );
        let t = tree(b);
        assert_eq!(find(&t, "lab/acme/billing").unwrap().kind, Kind::OpenDir);
        assert!(find(&t, "lab/a/inside").is_none() && find(&t, "lab/a/f/below").is_none());
        let open = |p| t.open_dir(find(&t, p).unwrap().ino);
        assert_eq!(
            (
                open("lab").as_deref(),
                open("lab/acme").as_deref(),
                open("lab/a")
            ),
            (Some(""), Some("acme"), None)
        );
    }

    #[test]
    fn a_held_skill_stays_when_another_newly_clashes_with_it() {
        let (a, twin) = (entry("skill://a", &[]), entry("skill://%61", &[]));
        let held = Arc::new(Shown {
            window: Window::Open,
            ..(*shown(&a)).clone()
        });
        let both = vec![held, shown(&twin)];
        let b = Branch::of_skills(
            1,
            both,
            Vec::new(),
            &Beyond::default(),
            None,
            &Seen::new(),
            0,
        );
        assert_eq!(b.skills().count(), 1);
        assert_eq!(b.declined()[0].uri.as_deref(), Some("skill://%61/SKILL.md"));
    }

    #[test]
    fn a_changed_frontmatter_is_another_file() {
        let v1 = entry("skill://a", &[]);
        let mut value = serde_json::to_value(&*v1).unwrap();
        value["frontmatter"]["x"] = json!(1);
        let v2 = Arc::new(Entry::parse(&value).unwrap());
        let b1 = branch(&[v1], None, 0);
        let b2 = branch(&[v2], Some(&b1), 0);
        let ino = |b| find(&tree(b), "lab/a/SKILL.md").unwrap().ino;
        assert_ne!(
            ino(b1),
            ino(b2),
            "same digest, but what it is checked against changed"
        );
    }

    #[test]
    fn times_of_an_earlier_run_are_kept_for_the_same_digest_only() {
        let e = entry("skill://a", &[("x", "1"), ("y", "1")]);
        let digest = |b: &str| Digest::of(b.as_bytes());
        let seen = Seen::from([
            ("skill://a/x".into(), (digest("1"), 5)),
            ("skill://a/y".into(), (digest("2"), 5)),
        ]);
        let b = Branch::of_skills(
            1,
            vec![shown(&e)],
            Vec::new(),
            &Beyond::default(),
            None,
            &seen,
            9,
        );
        assert_eq!(b.seen()["skill://a/x"], (digest("1"), 5));
        assert_eq!(b.seen()["skill://a/y"], (digest("1"), 9));
    }

    #[test]
    fn hr_21_twins_are_kept_apart_and_named() {
        let names = [
            ("Docs/a", "1"),
            ("docs/a", "2"),
            ("skill.md", "3"),
            ("caf%C3%A9", "4"),
            ("cafe%CC%81", "5"),
        ];
        let b = branch(&[entry("skill://a", &names)], None, 0);
        assert_eq!(b.twins().len(), 3, "{:?}", b.twins());
        let t = tree(b);
        for p in [
            "lab/a/Docs/a",
            "lab/a/docs/a",
            "lab/a/skill.md",
            "lab/a/caf\u{e9}",
            "lab/a/cafe\u{301}",
        ] {
            assert!(find(&t, p).is_some(), "{p}");
        }
        assert!(find(&t, "lab/a/Skill.md").is_none());
    }

    #[test]
    fn a_label_without_a_listing_says_so() {
        let ours = Arc::new(Branch::of_texts(&BTreeMap::new(), None, 0));
        let views =
            [Absent::Starting, Absent::Down].map(|a| ("x".parse().unwrap(), View::Unlisted(a)));
        let t = Tree::new(ours, views.to_vec(), 3);
        for (slot, absent) in [(1, Absent::Starting), (2, Absent::Down)] {
            let dir = label_root(slot);
            assert_eq!(t.attr(dir).unwrap().kind, Kind::OpenDir);
            assert_eq!(t.lookup(dir, "a"), Lookup::Unknown(absent));
            assert_eq!(t.children(dir, 0).unwrap_err(), Lookup::Unknown(absent));
        }
        let listed = t.with_view(1, View::Listed(Arc::new(branch(&[], None, 0))));
        assert_eq!(listed.children(label_root(1), 0).unwrap().len(), 0);
        assert_eq!(changes(&t, &listed), [Change::Dir(label_root(1))]);
    }

    #[test]
    fn our_own_files_lie_beside_the_labels() {
        let text = |s: &str| {
            let e = Expected {
                uri: "".into(),
                digest: Digest::of(s.as_bytes()),
                size: s.len() as u64,
                frontmatter: None,
            };
            verify(Untrusted::new(s.into()), &e).unwrap()
        };
        let files = |s| {
            BTreeMap::from([
                ("README.md".to_owned(), text(s)),
                (".m/x.json".to_owned(), text("x")),
            ])
        };
        let ours = Arc::new(Branch::of_texts(&files("1"), None, 0));
        let t = Tree::new(
            ours,
            vec![("lab".parse().unwrap(), View::Unlisted(Absent::Starting))],
            0,
        );
        assert_eq!(
            t.children(ROOT, 0)
                .unwrap()
                .iter()
                .map(|c| c.name)
                .collect::<Vec<_>>(),
            [".m", "README.md", "lab"]
        );
        let next = t.with_ours(Arc::new(Branch::of_texts(&files("2"), Some(t.ours()), 0)));
        let found = changes(&t, &next);
        assert!(
            found.contains(&Change::Entry {
                dir: ROOT,
                name: "README.md".into()
            }),
            "{found:?}"
        );
        assert_eq!(find(&t, ".m/x.json"), find(&next, ".m/x.json"));
    }

    /// Skills from a small alphabet, so that they clash often.
    fn skills() -> impl Strategy<Value = Vec<Arc<Entry>>> {
        let name = prop_oneof![Just("a"), Just("b"), Just("%61"), Just("A")];
        let dir = proptest::collection::vec(name.clone(), 1..4)
            .prop_map(|d| format!("skill://{}", d.join("/")));
        let files =
            proptest::collection::vec((proptest::collection::vec(name, 1..3), 0..3u8), 0..4);
        let skill = (dir, files).prop_filter_map("valid alone", |(dir, files)| {
            let files: Vec<(String, String)> = files
                .into_iter()
                .map(|(f, body)| (f.join("/"), body.to_string()))
                .collect();
            let rows: Vec<(&str, &str)> = files
                .iter()
                .map(|(f, b)| (f.as_str(), b.as_str()))
                .collect();
            try_entry(&dir, &rows)
        });
        proptest::collection::vec(skill, 0..6)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn hr_11_55_every_skill_is_shown_right_or_declined(before in skills(), after in skills()) {
            let first = branch(&before, None, 1);
            let second = branch(&after, Some(&first), 2);
            let kept: Vec<Arc<Entry>> = second.skills().map(|s| Arc::clone(&s.entry)).collect();
            prop_assert_eq!(kept.len() + second.declined().len(), after.len());
            let (t1, t2) = (tree(first), tree(second));
            // Each file of a kept skill is at its own path, claimed under its own URI and digest.
            for e in &kept {
                for f in e.files() {
                    let attr = find(&t2, &format!("lab/{}", f.path)).unwrap();
                    let Some(Source::Skill(claims)) = t2.source(attr.ino) else { panic!("no file") };
                    prop_assert!(claims.iter().all(|c| c.file.uri == f.uri));
                    prop_assert!(claims.iter().any(|c| c.file.digest == f.digest));
                }
            }
            // Names are unique, numbers are unique, and a resumed listing continues the first.
            let all = paths(&t2);
            let unique: HashSet<&String> = all.iter().collect();
            prop_assert_eq!(unique.len(), all.len());
            let mut inos = HashSet::new();
            for p in &all {
                let attr = find(&t2, p.trim_end_matches('/')).unwrap();
                prop_assert!(inos.insert(attr.ino));
                if matches!(attr.kind, Kind::SkillDir | Kind::OpenDir) {
                    let children = t2.children(attr.ino, 0).unwrap();
                    for (i, c) in children.iter().enumerate() {
                        let rest = t2.children(attr.ino, c.cookie).unwrap();
                        prop_assert_eq!(rest.len(), children.len() - i - 1);
                    }
                    let dirs = children.iter().filter(|c| c.attr.nlink > 1).count();
                    prop_assert_eq!(attr.nlink as usize, 2 + dirs);
                }
            }
            // Whatever differs between the trees, the kernel is told of.
            let told = changes(&t1, &t2);
            for p in paths(&t1).iter().chain(&all) {
                let p = p.trim_end_matches('/');
                let (old, new) = (find(&t1, p), find(&t2, p));
                if old.map(|a| a.ino) != new.map(|a| a.ino) {
                    let parts: Vec<&str> = p.split('/').collect();
                    let covered = (1..parts.len()).any(|n| {
                        let dir = find(&t1, &parts[..n].join("/"));
                        dir.is_some_and(|d| told.contains(&Change::Entry { dir: d.ino, name: parts[n].into() }))
                    });
                    prop_assert!(covered, "{} changed untold: {:?}", p, told);
                }
            }
        }
    }
}
