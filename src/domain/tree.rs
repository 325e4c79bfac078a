//! The immutable directory tree of all servers.
//!
//! A [`Branch`] is the tree of one server, made from its entries and never changed; a refresh
//! makes the next one from it, so that what did not change keeps its numbers. Skills meet only
//! where one lies inside another, so a branch consists of parts, one for each skill that lies in
//! no other, and a part that nothing happened to is taken over as it is: a change costs in
//! proportion to the skills that changed. The [`Tree`] puts the branches beside each other under
//! the mount's root.
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

use super::digest::Digest;
use super::manifest::{Content, Declined, FileEntry, Reason, skill_dir};
use super::name::{Label, RelPath, SKILL_MD, prefixes};
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
#[derive(Debug, Clone, Default, PartialEq, Eq)]
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

#[derive(Debug, Clone)]
struct Node {
    ino: u64,
    cookie: u64,
    mtime: u64,
    /// The directory it lies in, by its index in the part.
    parent: u32,
    body: Body,
}

/// Many files make this the size that matters: what few nodes have is boxed, and a file of a skill
/// takes its name from its row.
#[derive(Debug, Clone)]
enum Body {
    Dir(Box<Dir>),
    Text(Box<(Box<str>, Verified)>),
    Declined(Arc<Declined>),
    /// Every claim, and the size to show.
    Skill(Claims, u64),
    /// The index of a dynamic skill, and the name and the URI of one of its files.
    Dynamic(u32, Box<(Box<str>, Arc<str>)>),
    /// In the top of a branch, the root of the part of this index.
    Part(u32),
}

#[derive(Debug, Clone)]
struct Dir {
    name: Box<str>,
    kind: Kind,
    subdirs: u32,
    /// Shared by two tops whose names are the same.
    by_name: Arc<[u32]>,
    by_cookie: Box<[u32]>,
}

/// (skill, file) indices in the part.
#[derive(Debug, Clone)]
enum Claims {
    One((u32, u32)),
    Many(Box<[(u32, u32)]>),
}

impl Claims {
    fn as_slice(&self) -> &[(u32, u32)] {
        match self {
            Self::One(claim) => std::slice::from_ref(claim),
            Self::Many(claims) => claims,
        }
    }
}

/// When a digest was first seen at a URI, in seconds since the epoch; kept across restarts.
pub type Seen = HashMap<Arc<str>, (Digest, u64)>;

/// The tree of one server, or of our own files.
#[derive(Debug)]
pub struct Branch {
    slot: u16,
    /// The directories above all parts.
    top: Arc<Part>,
    /// Sorted by their directories, of which none lies in another.
    parts: Vec<Arc<Part>>,
    /// Sorted: the first inode number of each row of numbers, and the index of their part.
    rows: Vec<(u64, u32)>,
    /// Declined entries that have no place.
    placeless: Vec<Arc<Declined>>,
    ghosts: Vec<Ghost>,
    next_ino: u64,
    next_cookie: u64,
}

/// The index of the top among the parts.
const TOP: u32 = u32::MAX;

/// A skill that lies in no other, with all that lies in it; or the top of a branch.
#[derive(Debug, Clone)]
struct Part {
    /// Its root, by the path below the label; empty for the top.
    dir: Box<str>,
    nodes: Vec<Node>,
    /// The nodes in the order of their inode numbers.
    by_ino: Vec<u32>,
    /// The first of each row of inode numbers that follow each other.
    rows: Box<[u64]>,
    skills: Skills,
    declined: Vec<Arc<Declined>>,
    twins: Vec<(String, String)>,
    made_of: Input,
}

/// All that a part is made from.
#[derive(Debug, Clone, Default, PartialEq)]
struct Input {
    shown: Vec<Arc<Shown>>,
    declined: Vec<Arc<Declined>>,
    beyond: Beyond,
}

/// A node, and where it lies.
#[derive(Clone, Copy)]
struct At<'a> {
    parts: &'a [Arc<Part>],
    part: &'a Part,
    node: &'a Node,
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
    Part(u32),
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
        let (placed, placeless): (Vec<_>, Vec<_>) =
            declined.into_iter().partition(|d| d.dir.is_some());
        let (inputs, above) = apart(shown, placed, beyond);
        let mut numbers = Numbers::after(previous, slot, seen, now);
        let mut parts = Vec::with_capacity(inputs.len());
        for (dir, input) in inputs {
            let same = previous.and_then(|p| p.part(parts.len(), &dir));
            parts.push(match same.filter(|part| part.made_of == input) {
                Some(part) => Arc::clone(part),
                None => Arc::new(Part::of_skills(&dir, input, &mut numbers)),
            });
        }
        let skill_dirs = HashSet::new();
        let mut builder = Builder::new("", &skill_dirs);
        for (part, index) in parts.iter().zip(0u32..) {
            builder.insert(&part.dir, &Leaf::Part(index));
        }
        for dir in above {
            builder.dir(dir.as_str());
        }
        Self::finish(builder, parts, placeless, numbers)
    }

    /// The tree of our own files, by path.
    pub fn of_texts(
        files: &BTreeMap<String, Verified>,
        previous: Option<&Branch>,
        now: u64,
    ) -> Self {
        let skill_dirs = HashSet::new();
        let mut builder = Builder::new("", &skill_dirs);
        for (path, text) in files {
            builder.insert(path, &Leaf::Text(text));
        }
        let seen = Seen::new();
        let numbers = Numbers::after(previous, 0, &seen, now);
        Self::finish(builder, Vec::new(), Vec::new(), numbers)
    }

    fn finish(
        top: Builder,
        parts: Vec<Arc<Part>>,
        placeless: Vec<Arc<Declined>>,
        mut numbers: Numbers,
    ) -> Self {
        let top = Arc::new(top.finish(&parts, Input::default(), &mut numbers));
        let all = parts.iter().zip(0u32..).chain([(&top, TOP)]);
        let rows = all.flat_map(|(part, index)| part.rows_at(index)).collect();
        Self::of_parts(top, parts, rows, placeless, &numbers)
    }

    fn of_parts(
        top: Arc<Part>,
        parts: Vec<Arc<Part>>,
        mut rows: Vec<(u64, u32)>,
        placeless: Vec<Arc<Declined>>,
        numbers: &Numbers,
    ) -> Self {
        rows.sort_unstable();
        rows.dedup_by_key(|(_, index)| *index);
        let mut branch = Self {
            slot: numbers.slot,
            top,
            parts,
            rows,
            placeless,
            ghosts: Vec::new(),
            next_ino: numbers.next_ino,
            next_cookie: numbers.next_cookie,
        };
        let previous = numbers.previous;
        branch.ghosts = previous.map_or_else(Vec::new, |old| ghosts(old, &branch));
        branch
    }

    /// The tree after some of its skills changed and nothing else did; none if one of them came, went
    /// or moved. Costs in proportion to what changed, but for one look at each part.
    pub fn with_skills(&self, changed: Vec<Arc<Shown>>, now: u64) -> Option<Self> {
        let mut inputs = BTreeMap::<usize, Input>::new();
        for shown in changed {
            let index = self.part_around(&shown.entry.dir)?;
            let made_of = &self.parts.get(index)?.made_of;
            let input = inputs.entry(index).or_insert_with(|| made_of.clone());
            let is_it = |s: &&mut Arc<Shown>| s.entry.uri == shown.entry.uri;
            let place = input.shown.iter_mut().find(is_it)?;
            if place.entry.dir != shown.entry.dir {
                return None;
            }
            *place = shown;
        }
        let seen = Seen::new();
        let mut numbers = Numbers::after(Some(self), self.slot, &seen, now);
        let mut parts = self.parts.clone();
        let mut made = Vec::new();
        for (index, input) in inputs {
            let part = parts.get_mut(index).filter(|p| p.made_of != input);
            if let Some(part) = part {
                *part = Arc::new(Part::of_skills(&part.dir, input, &mut numbers));
                made.push(index as u32);
            }
        }
        let top = newer_top(&self.top, &parts, &made);
        let others = self.rows.iter().copied();
        let others = others.filter(|(_, index)| made.binary_search(index).is_err());
        let own = made
            .iter()
            .filter_map(|index| Some(parts.get(*index as usize)?.rows_at(*index)));
        let rows = others.chain(own.flatten()).collect();
        let placeless = self.placeless.clone();
        Some(Self::of_parts(top, parts, rows, placeless, &numbers))
    }

    /// Whether a skill may be read, if it is shown or declined, by the URI of its SKILL.md.
    fn is_readable(&self, uri: &str) -> Option<bool> {
        let dir = skill_dir(uri).ok()?;
        let part = self.parts.get(self.part_around(&dir)?)?;
        let shown = part.shown().find(|s| &*s.entry.uri == uri);
        let mut declined = part.declined.iter().filter_map(|d| d.uri.as_deref());
        match shown {
            Some(shown) => Some(shown.standing == Standing::Open),
            None => declined.any(|d| d == uri).then_some(false),
        }
    }

    /// The index of the part that a directory is the root of or lies in.
    fn part_around(&self, dir: &RelPath) -> Option<usize> {
        let mut above = prefixes(dir.as_str()).chain([dir.as_str()]);
        above.find_map(|dir| self.part_index(dir))
    }

    fn part_index(&self, dir: &str) -> Option<usize> {
        let at = self.parts.binary_search_by(|part| (*part.dir).cmp(dir));
        at.ok()
    }

    /// The skills, those that lost a conflict left out.
    pub fn skills(&self) -> impl Iterator<Item = &Arc<Shown>> {
        self.parts.iter().flat_map(|part| part.shown())
    }

    /// The skills that count as ones of their own: not those nested in another without consent.
    pub fn own_skills(&self) -> Vec<Arc<Shown>> {
        let all = self.parts.iter().flat_map(|part| &part.skills);
        let own = all.filter(|(_, role)| *role == Role::Skill);
        own.map(|(shown, _)| Arc::clone(shown)).collect()
    }

    /// The declined ones, with those that the conflicts added.
    pub fn declined(&self) -> impl Iterator<Item = &Arc<Declined>> {
        let placed = self.parts.iter().flat_map(|part| &part.declined);
        self.placeless.iter().chain(placed)
    }

    /// When each file's digest was first seen, to keep across a restart.
    pub fn seen(&self) -> impl Iterator<Item = (&str, Digest, u64)> + Clone {
        let all = self.parts.iter().flat_map(|part| part.all(&self.parts));
        all.filter_map(|at| {
            let file = at.file()?;
            Some((&*file.uri, file.digest, at.node.mtime))
        })
    }

    /// Pairs of paths in one directory that differ only by letter case or Unicode form (HR-21).
    pub fn twins(&self) -> impl Iterator<Item = &(String, String)> {
        let parts = self.parts.iter().flat_map(|part| &part.twins);
        self.top.twins.iter().chain(parts)
    }

    /// The part of this root, which is at this index unless parts came or went.
    fn part(&self, index: usize, dir: &str) -> Option<&Arc<Part>> {
        if let Some(part) = self.parts.get(index).filter(|part| &*part.dir == dir) {
            return Some(part);
        }
        self.parts.get(self.part_index(dir)?)
    }

    /// The parts that another branch does not have as they are.
    fn parts_beyond<'a>(&'a self, other: &'a Branch) -> impl Iterator<Item = &'a Arc<Part>> {
        let own = self.parts.iter().enumerate();
        let own = own.filter(|(i, part)| {
            let there = other.part(*i, &part.dir);
            there.is_none_or(|there| !Arc::ptr_eq(there, part))
        });
        own.map(|(_, part)| part)
    }

    fn by_ino(&self, ino: u64) -> Option<At<'_>> {
        let after = self.rows.partition_point(|(first, _)| *first <= ino);
        let (_, index) = *self.rows.get(after.checked_sub(1)?)?;
        let part = match index {
            TOP => &self.top,
            index => self.parts.get(index as usize)?,
        };
        let ino_of = |i: &u32| part.nodes.get(*i as usize).map(|n| n.ino);
        let at = part.by_ino.binary_search_by_key(&Some(ino), ino_of).ok()?;
        part.at(&self.parts, *part.by_ino.get(at)?)
    }

    fn root(&self) -> Option<At<'_>> {
        self.top.at(&self.parts, 0)
    }

    /// The node at a path.
    fn find(&self, path: &str) -> Option<At<'_>> {
        let names = path.split('/').filter(|name| !name.is_empty());
        names.fold(self.root(), |at, name| at?.child(name))
    }

    /// Whether a changed skill's newest entry has a file at or below this name.
    fn is_pending(dir: At, name: &str) -> bool {
        // The entries of one skill have one directory, so the part has all that concern it.
        let pending = || dir.part.shown().filter_map(|s| s.pending.as_ref());
        if pending().next().is_none() {
            return false;
        }
        let path = format!("{}/{name}", dir.path());
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
            match dir.child(name) {
                Some(next) => dir = next,
                None => return Some((dir.node.ino, name)),
            }
        }
        None
    }
}

/// The input of each part, by its root, and the directories that the server showed outside all of
/// them. Skills and declined entries have nothing to do with each other unless the directory of
/// one lies in that of the other.
fn apart(
    shown: Vec<Arc<Shown>>,
    declined: Vec<Arc<Declined>>,
    beyond: &Beyond,
) -> (BTreeMap<Box<str>, Input>, Vec<&RelPath>) {
    let declined_dirs = declined.iter().filter_map(|d| d.dir.clone());
    let dirs = shown.iter().map(|s| s.entry.dir.clone());
    let dirs: HashSet<RelPath> = dirs.chain(declined_dirs).collect();
    let root = |path: &RelPath| {
        let mut above = prefixes(path.as_str()).chain([path.as_str()]);
        above.find(|p| dirs.contains(*p)).map(Box::<str>::from)
    };
    let mut inputs = BTreeMap::<Box<str>, Input>::new();
    for skill in shown {
        if let Some(root) = root(&skill.entry.dir) {
            inputs.entry(root).or_default().shown.push(skill);
        }
    }
    for d in declined {
        if let Some(root) = d.dir.as_ref().and_then(root) {
            inputs.entry(root).or_default().declined.push(d);
        }
    }
    let mut above = Vec::new();
    for dir in &beyond.dirs {
        match root(dir) {
            Some(root) => drop(
                inputs
                    .entry(root)
                    .or_default()
                    .beyond
                    .dirs
                    .insert(dir.clone()),
            ),
            None => above.push(dir),
        }
    }
    for (path, uri) in &beyond.files {
        // One outside all parts is of no dynamic skill.
        if let Some(root) = root(path) {
            let files = &mut inputs.entry(root).or_default().beyond.files;
            files.insert(path.clone(), Arc::clone(uri));
        }
    }
    (inputs, above)
}

impl Part {
    fn of_skills(dir: &str, made_of: Input, numbers: &mut Numbers) -> Self {
        let (skills, declined) = settle(&made_of.shown, &made_of.declined);
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
        // Only what is not listed can be in the way of something.
        let asked = !dynamic.is_empty();
        let paths = leaves.keys().copied().filter(|_| asked);
        let taken: HashSet<&str> = paths.flat_map(|p| prefixes(p).chain([p])).collect();
        let in_the_way = |leaves: &BTreeMap<&str, Leaf>, path: &str| {
            taken.contains(path)
                || prefixes(path).any(|p| skill_dirs.contains(p) || leaves.contains_key(p))
        };
        for (path, i, skill) in &dynamic {
            if !in_the_way(&leaves, path.as_str()) {
                leaves.insert(path.as_str(), Leaf::Dynamic(*i, &skill.entry.uri));
            }
        }
        for (path, uri) in &made_of.beyond.files {
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
        if !marks.is_empty() {
            let dirs: HashSet<&str> = leaves.keys().flat_map(|p| prefixes(p)).collect();
            leaves.retain(|path, leaf| !(matches!(leaf, Leaf::Declined(_)) && dirs.contains(path)));
        }
        let mut builder = Builder::new(dir, &skill_dirs);
        for (path, leaf) in &leaves {
            builder.insert(path, leaf);
        }
        // Directories that the server showed: never inside a skill that lists its files, and
        // never where a file is.
        for dir in &made_of.beyond.dirs {
            let blocked = |p: &str| skill_dirs.contains(p) || leaves.contains_key(p);
            if !prefixes(dir.as_str()).chain([dir.as_str()]).any(blocked) {
                builder.dir(dir.as_str());
            }
        }
        builder.skills = skills.clone();
        builder.declined = declined.clone();
        builder.finish(&[], made_of, numbers)
    }

    fn shown(&self) -> impl Iterator<Item = &Arc<Shown>> {
        self.skills.iter().map(|(shown, _)| shown)
    }

    /// A node by its index. Where another part begins, that is its root.
    fn at<'a>(&'a self, parts: &'a [Arc<Part>], index: u32) -> Option<At<'a>> {
        let node = self.nodes.get(index as usize)?;
        match node.body {
            Body::Part(other) => parts.get(other as usize)?.at(parts, 0),
            _ => Some(At {
                parts,
                part: self,
                node,
            }),
        }
    }

    /// Its rows of numbers, if this is its index.
    fn rows_at(&self, index: u32) -> impl Iterator<Item = (u64, u32)> {
        self.rows.iter().map(move |first| (*first, index))
    }

    /// The nodes of this part.
    fn all<'a>(&'a self, parts: &'a [Arc<Part>]) -> impl Iterator<Item = At<'a>> + Clone {
        let own = self
            .nodes
            .iter()
            .filter(|n| !matches!(n.body, Body::Part(_)));
        own.map(move |node| At {
            parts,
            part: self,
            node,
        })
    }
}

/// A top over parts of which these were made anew: the directories above them are as new as they.
fn newer_top(top: &Arc<Part>, parts: &[Arc<Part>], made: &[u32]) -> Arc<Part> {
    let mut newer = Vec::new();
    for node in &top.nodes {
        let Body::Part(index) = node.body else {
            continue;
        };
        if made.binary_search(&index).is_err() {
            continue;
        }
        let root = parts.get(index as usize).and_then(|p| p.nodes.first());
        let time = root.map_or(0, |root| root.mtime);
        let mut above = node.parent;
        while let Some(dir) = top.nodes.get(above as usize).filter(|d| d.mtime < time) {
            newer.push((above, time));
            if above == 0 {
                break;
            }
            above = dir.parent;
        }
    }
    if newer.is_empty() {
        return Arc::clone(top);
    }
    let mut top = Part::clone(top);
    for (index, time) in newer {
        if let Some(dir) = top.nodes.get_mut(index as usize) {
            dir.mtime = dir.mtime.max(time);
        }
    }
    Arc::new(top)
}

impl<'a> At<'a> {
    fn name(self) -> &'a str {
        match &self.node.body {
            Body::Dir(dir) => &dir.name,
            Body::Text(text) => &text.0,
            Body::Declined(_) => SKILL_MD,
            Body::Skill(..) => self.file().map_or("", |file| file.path.last()),
            Body::Dynamic(_, file) => &file.0,
            Body::Part(_) => "",
        }
    }

    fn dir(self) -> Option<&'a Dir> {
        match &self.node.body {
            Body::Dir(dir) => Some(dir),
            _ => None,
        }
    }

    fn is(self, other: At) -> bool {
        std::ptr::eq(self.node, other.node)
    }

    fn sibling(self, index: u32) -> Option<At<'a>> {
        self.part.at(self.parts, index)
    }

    fn children(self, order: &'a [u32]) -> impl Iterator<Item = At<'a>> + Clone {
        order.iter().filter_map(move |i| self.sibling(*i))
    }

    fn by_name(self) -> impl Iterator<Item = At<'a>> + Clone {
        self.children(self.dir().map_or(&[], |dir| &dir.by_name))
    }

    fn child(self, name: &str) -> Option<At<'a>> {
        let order = &self.dir()?.by_name;
        let name_of = |i: &u32| self.sibling(*i).map_or("", At::name);
        let at = order.binary_search_by(|i| name_of(i).cmp(name)).ok()?;
        self.sibling(*order.get(at)?)
    }

    /// The row of a skill's file, in the entry that is shown.
    fn file(self) -> Option<&'a FileEntry> {
        let Body::Skill(claims, _) = &self.node.body else {
            return None;
        };
        let (s, f) = claims.as_slice().first()?;
        let (shown, _) = self.part.skills.get(*s as usize)?;
        shown.entry.files().get(*f as usize)
    }

    fn claims(self) -> Vec<Claim> {
        let Body::Skill(claims, _) = &self.node.body else {
            return Vec::new();
        };
        let claims = claims.as_slice().iter();
        claims
            .filter_map(|c| claim(&self.part.skills, *c))
            .collect()
    }

    fn attr(self) -> Attr {
        let (kind, size, nlink) = match &self.node.body {
            Body::Dir(dir) => (dir.kind, 0, 2 + dir.subdirs),
            Body::Text(text) => (Kind::File, text.1.bytes().len() as u64, 1),
            Body::Declined(_) | Body::Part(_) => (Kind::Declined, UNKNOWN_SIZE, 1),
            Body::Skill(_, size) => (Kind::File, *size, 1),
            Body::Dynamic(..) => (Kind::Dynamic, 0, 1),
        };
        Attr {
            ino: self.node.ino,
            kind,
            size,
            nlink,
            mtime: self.node.mtime,
        }
    }

    fn source(self) -> Option<Source> {
        match &self.node.body {
            Body::Dir(_) | Body::Part(_) => None,
            Body::Text(text) => Some(Source::Text(text.1.clone())),
            Body::Declined(d) => Some(Source::Declined(Arc::clone(d))),
            Body::Skill(..) => Some(Source::Skill(self.claims())),
            Body::Dynamic(skill, file) => {
                let (shown, _) = self.part.skills.get(*skill as usize)?;
                Some(Source::Dynamic(Arc::clone(shown), Arc::clone(&file.1)))
            }
        }
    }

    /// The path below the label; empty for the label's own directory.
    fn path(self) -> String {
        let mut names = Vec::new();
        let mut at = self;
        while let Some(parent) = at.sibling(at.node.parent).filter(|p| !p.is(at)) {
            names.push(at.name());
            at = parent;
        }
        if !self.part.dir.is_empty() {
            names.push(&self.part.dir);
        }
        names.reverse();
        names.join("/")
    }
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

/// Takes out what cannot stand beside the rest: every skill that shares a path with another under
/// a different URI or needs as a directory what another has as a file. A held skill stays: what
/// newly clashes with it is declined alone.
fn settle(shown: &[Arc<Shown>], declined: &[Arc<Declined>]) -> (Skills, Vec<Arc<Declined>>) {
    let mut declined = declined.to_vec();
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

/// Puts the nodes of a part together.
struct Builder<'a> {
    root: &'a str,
    skill_dirs: &'a HashSet<&'a str>,
    nodes: Vec<Node>,
    dirs: HashMap<String, u32>,
    /// The children of each node.
    children: Vec<Vec<u32>>,
    skills: Skills,
    declined: Vec<Arc<Declined>>,
}

impl<'a> Builder<'a> {
    fn new(root: &'a str, skill_dirs: &'a HashSet<&'a str>) -> Self {
        let mut builder = Self {
            root,
            skill_dirs,
            nodes: Vec::new(),
            dirs: HashMap::new(),
            children: Vec::new(),
            skills: Vec::new(),
            declined: Vec::new(),
        };
        builder.push_dir(0, root);
        builder
    }

    fn push(&mut self, parent: u32, body: Body) -> u32 {
        let index = self.nodes.len() as u32;
        self.nodes.push(Node {
            ino: 0,
            cookie: 0,
            mtime: 0,
            parent,
            body,
        });
        self.children.push(Vec::new());
        if index != 0
            && let Some(children) = self.children.get_mut(parent as usize)
        {
            children.push(index);
        }
        index
    }

    /// The directory at a path, inside a skill or not.
    fn push_dir(&mut self, parent: u32, path: &str) -> u32 {
        let in_skill = self
            .nodes
            .get(parent as usize)
            .is_some_and(|n| matches!(&n.body, Body::Dir(dir) if dir.kind == Kind::SkillDir));
        let kind = if in_skill || self.skill_dirs.contains(path) {
            Kind::SkillDir
        } else {
            Kind::OpenDir
        };
        let dir = Dir {
            name: path.rsplit('/').next().unwrap_or(path).into(),
            kind,
            subdirs: 0,
            by_name: Arc::default(),
            by_cookie: Box::default(),
        };
        let index = self.push(parent, Body::Dir(Box::new(dir)));
        self.dirs.insert(path.to_owned(), index);
        index
    }

    /// The directory at a path below the root, made with all above it.
    fn dir(&mut self, path: &str) -> u32 {
        if let Some(index) = self.dirs.get(path) {
            return *index;
        }
        let (above, _) = path.rsplit_once('/').unwrap_or(("", path));
        let parent = self.dir(above);
        self.push_dir(parent, path)
    }

    fn insert(&mut self, path: &str, leaf: &Leaf) {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let parent = self.dir(dir);
        let body = match leaf {
            Leaf::Text(text) => Body::Text(Box::new((name.into(), (*text).clone()))),
            Leaf::Declined(d) => Body::Declined(Arc::clone(d)),
            Leaf::Skill(claims, size) => match claims.as_slice() {
                [claim] => Body::Skill(Claims::One(*claim), *size),
                claims => Body::Skill(Claims::Many(claims.into()), *size),
            },
            Leaf::Dynamic(skill, uri) => {
                Body::Dynamic(*skill, Box::new((name.into(), Arc::clone(uri))))
            }
            Leaf::Part(index) => Body::Part(*index),
        };
        self.push(parent, body);
    }

    /// The part, with a number and a time for every node.
    fn finish(self, parts: &[Arc<Part>], made_of: Input, numbers: &mut Numbers) -> Part {
        let mut nodes = self.nodes;
        nodes.shrink_to_fit();
        let mut part = Part {
            dir: self.root.into(),
            nodes,
            by_ino: Vec::new(),
            rows: Box::default(),
            skills: self.skills,
            declined: self.declined,
            twins: Vec::new(),
            made_of,
        };
        let old = numbers.previous.and_then(|p| p.find(self.root));
        let mut children = self.children;
        numbers.number(&mut part, parts, &mut children, 0, old);
        let own = part.nodes.iter().zip(0u32..);
        let own = own.filter(|(node, _)| !matches!(node.body, Body::Part(_)));
        let mut numbered: Vec<(u64, u32)> = own.map(|(node, i)| (node.ino, i)).collect();
        numbered.sort_unstable();
        let mut next = 0;
        let firsts = numbered.iter().map(|(ino, _)| *ino).filter(|ino| {
            let goes_on = *ino == next;
            next = ino + 1;
            !goes_on
        });
        part.rows = firsts.collect();
        part.by_ino = numbered.into_iter().map(|(_, i)| i).collect();
        part.twins = twins(&part, parts);
        part
    }
}

/// The pairs of names of one directory of a part that differ only by letter case or Unicode form.
fn twins(part: &Part, parts: &[Arc<Part>]) -> Vec<(String, String)> {
    let mut out = Vec::new();
    // Two plain lower-case ASCII names are never twins: most directories end here.
    let plain = |at: At| {
        let mut bytes = at.name().bytes();
        bytes.all(|b| b.is_ascii() && !b.is_ascii_uppercase())
    };
    for dir in part.all(parts).filter(|at| at.dir().is_some()) {
        if dir.by_name().all(plain) {
            continue;
        }
        let mut folded: HashMap<String, At> = HashMap::new();
        for child in dir.by_name() {
            let key = child.name().to_lowercase().nfc().collect();
            if let Some(other) = folded.insert(key, child) {
                out.push((other.path(), child.path()));
            }
        }
    }
    out
}

/// Gives nodes their numbers and times, from the previous branch where they are the same.
struct Numbers<'a> {
    slot: u16,
    previous: Option<&'a Branch>,
    seen: &'a Seen,
    now: u64,
    next_ino: u64,
    next_cookie: u64,
}

impl<'a> Numbers<'a> {
    fn after(previous: Option<&'a Branch>, slot: u16, seen: &'a Seen, now: u64) -> Self {
        Self {
            slot,
            previous,
            seen,
            now,
            next_ino: previous.map_or(label_root(slot) + 1, |p| p.next_ino),
            next_cookie: previous.map_or(FIRST_COOKIE, |p| p.next_cookie),
        }
    }

    /// Numbers one node and all below it; returns its time. Depth is bounded by `MAX_LEVELS`.
    fn number(
        &mut self,
        part: &mut Part,
        parts: &[Arc<Part>],
        children: &mut [Vec<u32>],
        index: u32,
        old: Option<At>,
    ) -> u64 {
        let Some(new) = part.at(parts, index) else {
            return 0;
        };
        let same = old.filter(|old| same_content(new, *old));
        let is_dir = new.dir().is_some();
        let first_seen = new.file().and_then(|file| {
            let (digest, at) = self.seen.get(&file.uri)?;
            (*digest == file.digest).then_some(*at)
        });
        let ino = match same {
            Some(old) => old.node.ino,
            None if index == 0 && part.dir.is_empty() => label_root(self.slot),
            None => take(&mut self.next_ino),
        };
        let cookie = match old {
            Some(old) => old.node.cookie,
            None => take(&mut self.next_cookie),
        };
        let own = children.get_mut(index as usize);
        let mut own = own.map(std::mem::take).unwrap_or_default();
        own.sort_unstable_by(|a, b| {
            let name = |i: &u32| part.at(parts, *i).map_or("", At::name);
            name(a).cmp(name(b))
        });
        let mut newest = 0;
        for child in &own {
            let new = part.at(parts, *child);
            if let Some(at) = new.filter(|at| !std::ptr::eq(at.part, part)) {
                // The root of a part, which has its numbers.
                newest = newest.max(at.node.mtime);
                continue;
            }
            let before = same.zip(new);
            let before = before.and_then(|(old, new)| old.child(new.name()));
            newest = newest.max(self.number(part, parts, children, *child, before));
        }
        let mtime = if is_dir {
            // A name that went leaves no newer child behind, but the directory has changed.
            let before = same.and_then(At::dir).map_or(0, |dir| dir.by_name.len());
            let kept = same.map_or(0, |old| old.node.mtime);
            if before > own.len() || (newest == 0 && kept == 0) {
                self.now
            } else {
                newest.max(kept)
            }
        } else {
            same.map_or(first_seen.unwrap_or(self.now), |old| old.node.mtime)
        };
        let ends = || own.iter().filter_map(|i| part.at(parts, *i));
        let subdirs = ends().filter(|at| at.dir().is_some()).count() as u32;
        let mut by_cookie = own.clone();
        by_cookie.sort_by_key(|i| part.at(parts, *i).map(|at| at.node.cookie));
        if let Some(node) = part.nodes.get_mut(index as usize) {
            node.ino = ino;
            node.cookie = cookie;
            node.mtime = mtime;
            if let Body::Dir(dir) = &mut node.body {
                dir.subdirs = subdirs;
                dir.by_name = own.into();
                dir.by_cookie = by_cookie.into();
            }
        }
        mtime
    }
}

fn take(next: &mut u64) -> u64 {
    *next += 1;
    *next - 1
}

/// Whether a new node is what the old one was, so that it keeps its inode.
fn same_content(new: At, old: At) -> bool {
    match (&new.node.body, &old.node.body) {
        (Body::Dir(_), Body::Dir(_)) => true,
        (Body::Text(a), Body::Text(b)) => a.1.bytes() == b.1.bytes(),
        (Body::Declined(a), Body::Declined(b)) => a == b,
        (Body::Dynamic(_, a), Body::Dynamic(_, b)) => a.1 == b.1,
        (Body::Skill(..), Body::Skill(..)) => {
            let id = |at: At| identity(&at.claims()).0.map(|e| (e.key(), e.uri, e.size));
            // A file in dispute gets a new number each time: nothing was ever served from it.
            let new = id(new);
            new.is_some() && new == id(old)
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
    /// Its server lets us not in.
    Locked,
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
    labels: BTreeMap<u16, (Label, View)>,
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
    Node(&'a Branch, At<'a>),
    /// The directory of a label without a listing.
    Bare(Absent),
}

impl Tree {
    /// A tree with our own files and these labels, in slots 1, 2, …, made at `since`.
    pub fn new(ours: Arc<Branch>, labels: Vec<(Label, View)>, since: u64) -> Self {
        Self {
            ours,
            labels: (1u16..).zip(labels).collect(),
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
        if let Some(entry) = next.labels.get_mut(&slot) {
            entry.1 = view;
        }
        next
    }

    /// The same tree with one label more, in a slot that was never in use.
    pub fn with_label(&self, slot: u16, label: Label, view: View) -> Self {
        let mut next = self.clone();
        next.labels.insert(slot, (label, view));
        next
    }

    /// The same tree without a label.
    pub fn without_label(&self, slot: u16) -> Self {
        let mut next = self.clone();
        next.labels.remove(&slot);
        next
    }

    /// Our own files.
    pub fn ours(&self) -> &Branch {
        &self.ours
    }

    /// The view of a label by its slot.
    pub fn view(&self, slot: u16) -> Option<&View> {
        self.labels.get(&slot).map(|(_, view)| view)
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
            View::Listed(branch) => branch.root().map(At::attr),
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
            Place::Node(_, at) => Some(self.root_attr(at.attr())),
            Place::Bare(_) => {
                let slot = Self::slot_of(ino);
                Some(self.label_attr(slot, self.view(slot)?))
            }
        }
    }

    /// Looks a name up in a directory. From memory, always.
    pub fn lookup(&self, dir: u64, name: &str) -> Lookup {
        if dir == ROOT
            && let Some((slot, (_, view))) = self
                .labels
                .iter()
                .find(|(_, (label, _))| label.as_str() == name)
        {
            return Lookup::Found(self.label_attr(*slot, view));
        }
        match self.place(dir) {
            None => Lookup::Stale,
            Some(Place::Bare(absent)) => Lookup::Unknown(absent),
            Some(Place::Node(_, at)) => match at.child(name) {
                Some(child) => Lookup::Found(child.attr()),
                None if Branch::is_pending(at, name) => Lookup::Pending,
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
        let at = match self.place(dir) {
            Some(Place::Node(_, at)) => at,
            Some(Place::Bare(absent)) => return Err(Lookup::Unknown(absent)),
            None => return Err(Lookup::Stale),
        };
        let order = &at.dir().ok_or(Lookup::Stale)?.by_cookie;
        let cookie = |i: &u32| at.sibling(*i).map(|child| child.node.cookie);
        let start = order.partition_point(|i| cookie(i).is_some_and(|c| c <= after));
        let rest = at.children(order.get(start..).unwrap_or_default());
        let mut out: Vec<Child> = rest
            .map(|child| Child {
                name: child.name(),
                cookie: child.node.cookie,
                attr: child.attr(),
            })
            .collect();
        if dir == ROOT {
            out.extend(self.labels.iter().filter_map(|(slot, (label, view))| {
                let cookie = LABEL_COOKIES + u64::from(*slot);
                (cookie > after).then(|| Child {
                    name: label.as_str(),
                    cookie,
                    attr: self.label_attr(*slot, view),
                })
            }));
        }
        Ok(out)
    }

    /// The parent of a directory, for its `..`.
    pub fn parent(&self, dir: u64) -> u64 {
        match self.place(dir) {
            Some(Place::Node(branch, at)) if at.node.ino != label_root(branch.slot) => {
                let path = at.path();
                let (above, _) = path.rsplit_once('/').unwrap_or_default();
                branch.find(above).map_or(ROOT, |above| above.node.ino)
            }
            _ => ROOT,
        }
    }

    /// What is behind a file; none if the inode is no file of the tree.
    pub fn source(&self, ino: u64) -> Option<Source> {
        match self.place(ino)? {
            Place::Node(_, at) => at.source(),
            Place::Bare(_) => None,
        }
    }

    /// The path of a directory of a label below that label, if a skill may be found below it that
    /// no entry mentions: the label's own directory is the empty path.
    pub fn open_dir(&self, dir: u64) -> Option<String> {
        match self.place(dir)? {
            Place::Node(branch, at) if branch.slot != 0 => {
                let open = at.dir().is_some_and(|dir| dir.kind == Kind::OpenDir);
                open.then(|| at.path())
            }
            _ => None,
        }
    }

    /// The path of a node below the mount point.
    pub fn path(&self, ino: u64) -> Option<String> {
        let slot = Self::slot_of(ino);
        let below = match self.place(ino)? {
            Place::Node(_, at) => at.path(),
            Place::Bare(_) => String::new(),
        };
        Some(match self.labels.get(&slot) {
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
    for (slot, (label, before)) in &old.labels {
        match (before, new.view(*slot)) {
            (View::Listed(a), Some(View::Listed(b))) => branch_changes(a, b, &mut out),
            (View::Unlisted(_), Some(View::Unlisted(_))) => {}
            (_, Some(_)) => out.push(Change::Dir(label_root(*slot))),
            (_, None) => label_moved(label, &mut out),
        }
        if let (View::Listed(gone), None) = (before, new.view(*slot)) {
            // Open files and mappings must not go on with what nobody stands for.
            let files = gone.parts.iter().flat_map(|part| part.all(&gone.parts));
            let files = files.filter(|at| at.dir().is_none());
            out.extend(files.map(|at| Change::Pages(at.node.ino)));
            out.extend(gone.ghosts.iter().map(|ghost| Change::Pages(ghost.ino)));
        }
    }
    let added = new.labels.iter().filter(|(s, _)| old.view(**s).is_none());
    added.for_each(|(_, (label, _))| label_moved(label, &mut out));
    out
}

/// A label came or went.
fn label_moved(label: &Label, out: &mut Vec<Change>) {
    let (dir, name) = (ROOT, label.as_str().into());
    out.extend([Change::Entry { dir, name }, Change::Dir(ROOT)]);
}

fn branch_changes(old: &Arc<Branch>, new: &Arc<Branch>, out: &mut Vec<Change>) {
    if Arc::ptr_eq(old, new) {
        return;
    }
    if let (Some(a), Some(b)) = (old.root(), new.root()) {
        dir_changes(a, b, out);
    }
    // A name that was absent before may be one that the server has by now.
    let after: Vec<&Arc<Part>> = new.parts_beyond(old).collect();
    let shown = || after.iter().flat_map(|part| part.shown());
    for pending in shown().filter_map(|s| s.pending.as_ref()) {
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
    let now: HashMap<&str, &Shown> = shown().map(|s| (&*s.entry.uri, &**s)).collect();
    let state = |s: &Shown| (s.standing, s.window);
    for part in old.parts_beyond(new) {
        let moved = |s: &&Arc<Shown>| now.get(&*s.entry.uri).map(|a| state(a)) != Some(state(s));
        let moved: HashSet<&str> = part.shown().filter(moved).map(|s| &*s.entry.uri).collect();
        if moved.is_empty() {
            continue;
        }
        for at in part.all(&old.parts) {
            let then = at.claims();
            // A skill that went its way may list the file no longer.
            if then.iter().any(|c| moved.contains(&*c.shown.entry.uri))
                && let Some(now) = new.by_ino(at.node.ino)
                && must_drop(&then, &now.claims())
            {
                out.push(Change::Pages(at.node.ino));
            }
        }
    }
}

/// The files that left the tree now or earlier.
fn left<'a>(old: &'a Branch, new: &'a Branch) -> impl Iterator<Item = Ghost> + 'a {
    let files = old
        .parts_beyond(new)
        .flat_map(|part| part.all(&old.parts))
        .filter(|at| matches!(at.node.body, Body::Skill(..)));
    let gone = files.filter(|at| new.by_ino(at.node.ino).is_none());
    let now = gone.filter_map(|at| match decide(&at.claims()) {
        Some(Decision::Serve(.., loads)) => Some(Ghost {
            ino: at.node.ino,
            skills: loads.iter().map(|e| Arc::clone(&e.uri)).collect(),
        }),
        _ => None,
    });
    now.chain(old.ghosts.iter().cloned())
}

/// Those that left the tree and may still be read: a skill that vouched for them may be, or all
/// of those were withdrawn, which takes no right away.
fn ghosts(old: &Branch, new: &Branch) -> Vec<Ghost> {
    let left: Vec<Ghost> = left(old, new).collect();
    if left.is_empty() {
        return left;
    }
    let may_stay = |ghost: &Ghost| {
        let mut now = ghost.skills.iter().filter_map(|uri| new.is_readable(uri));
        now.clone().any(|readable| readable) || now.next().is_none()
    };
    left.into_iter().filter(may_stay).take(MAX_GHOSTS).collect()
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

fn dir_changes(old: At, new: At, out: &mut Vec<Change>) {
    // Two branches may share a top and differ in the parts below it.
    let same = old.is(new) && !new.part.dir.is_empty();
    if same || old.dir().is_none() || new.dir().is_none() {
        return;
    }
    let mut touched = old.attr() != new.attr();
    let dir = new.node.ino;
    if let (Some(a), Some(b)) = (old.dir(), new.dir())
        && Arc::ptr_eq(&a.by_name, &b.by_name)
    {
        // Two tops with the same names and numbers.
        if touched {
            out.push(Change::Dir(dir));
        }
        for (x, y) in old.by_name().zip(new.by_name()) {
            dir_changes(x, y, out);
        }
        return;
    }
    let mut changed = |name: &str| {
        let name = name.into();
        out.push(Change::Entry { dir, name });
    };
    let mut deeper = Vec::new();
    let (mut a, mut b) = (old.by_name().peekable(), new.by_name().peekable());
    loop {
        let (x, y) = (a.peek().copied(), b.peek().copied());
        let order = match (x, y) {
            (None, None) => break,
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some(x), Some(y)) => x.name().cmp(y.name()),
        };
        if order.is_le() {
            a.next();
        }
        if order.is_ge() {
            b.next();
        }
        match (x, y) {
            (Some(x), Some(y)) if order.is_eq() => {
                if x.node.ino != y.node.ino {
                    changed(y.name());
                    touched = true;
                } else {
                    deeper.push((x, y));
                }
            }
            (Some(x), _) if order.is_lt() => {
                changed(x.name());
                touched = true;
            }
            (_, Some(y)) => {
                changed(y.name());
                touched = true;
            }
            _ => {}
        }
    }
    if touched {
        out.push(Change::Dir(dir));
    }
    for (x, y) in deeper {
        dir_changes(x, y, out);
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

    /// Sorted: the order of a listing is nobody's business.
    fn paths(tree: &Tree) -> Vec<String> {
        let mut out = Vec::new();
        walk(tree, ROOT, "", &mut out);
        out.sort();
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
            let declined: Vec<_> = b.declined().map(|d| d.uri.clone().unwrap()).collect();
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
    fn hr_58_a_part_that_nothing_happened_to_is_taken_over_as_it_is() {
        let other = |v| entry("skill://p/b", &[("x", v)]);
        let declined = |dir: &str| {
            Arc::new(Declined {
                uri: Some(format!("skill://{dir}/SKILL.md").into()),
                dir: RelPath::of_names(dir),
                reason: Reason::NoSkillMd,
            })
        };
        let make = |b: &Arc<Entry>, previous: Option<&Branch>, now| {
            // Entries anew each time, as a server lists them.
            let all = [entry("skill://a", &[("x", "1")]), Arc::clone(b)];
            let shown = all.iter().map(shown).collect();
            let beyond = Beyond {
                dirs: ["p/q", "e/f"].map(|d| RelPath::of_names(d).unwrap()).into(),
                ..Default::default()
            };
            let seen = Seen::new();
            Branch::of_skills(1, shown, vec![declined("d")], &beyond, previous, &seen, now)
        };
        let v1 = make(&other("1"), None, 10);
        let same = make(&other("1"), Some(&v1), 20);
        let v2 = make(&other("2"), Some(&same), 30);
        let beyond = |a: &Branch, b: &Branch| -> Vec<String> {
            a.parts_beyond(b).map(|part| part.dir.to_string()).collect()
        };
        assert_eq!(v1.parts.len(), 3);
        assert_eq!(beyond(&same, &v1), [""; 0]);
        assert_eq!(beyond(&v2, &v1), ["p/b"]);
        let dirs = [
            "lab", "lab/a", "lab/d", "lab/e", "lab/e/f", "lab/p", "lab/p/b", "lab/p/q",
        ];
        let (t1, t2, t3) = (tree(v1), tree(same), tree(v2));
        assert_eq!(changes(&t1, &t2), []);
        for (a, b) in [(&t1, &t2), (&t2, &t3)] {
            for dir in dirs {
                let ino = |t: &Tree| find(t, dir).unwrap().ino;
                assert_eq!(ino(a), ino(b), "{dir}");
                assert_eq!(b.path(ino(b)).as_deref(), Some(dir));
            }
        }
        let ino = |t: &Tree, path: &str| find(t, path).unwrap().ino;
        assert_eq!(t3.parent(ino(&t3, "lab/p/b")), ino(&t3, "lab/p"));
        assert_eq!(t3.parent(ino(&t3, "lab/p")), ino(&t3, "lab"));
        assert_eq!(t3.parent(ino(&t3, "lab")), ROOT);
        // Above what changed, the time is new; beside it, it is not.
        let time = |path: &str| find(&t3, path).unwrap().mtime;
        let times = [
            "lab",
            "lab/p",
            "lab/p/b",
            "lab/p/b/x",
            "lab/p/b/SKILL.md",
            "lab/a",
        ];
        assert_eq!(times.map(time), [30, 30, 30, 30, 10, 10]);
    }

    #[test]
    fn hr_58_numbers_stay_when_a_skill_comes_to_lie_in_another_and_when_that_goes() {
        let inner = || entry("skill://o/i", &[("x", "1")]);
        let next = entry("skill://n", &[]);
        let alone = branch(&[inner(), Arc::clone(&next)], None, 1);
        let outer = entry("skill://o", &[("y", "1")]);
        let nested = branch(&[outer, inner(), Arc::clone(&next)], Some(&alone), 2);
        let again = branch(&[inner(), next], Some(&nested), 3);
        let parts = [&alone, &nested, &again].map(|b| b.parts.len());
        assert_eq!(parts, [2, 2, 2]);
        let trees = [tree(alone), tree(nested), tree(again)];
        // Not its SKILL.md: nested, its frontmatter is nobody's claim.
        for path in ["lab/o", "lab/o/i", "lab/o/i/x", "lab/n/SKILL.md"] {
            let [a, b, c] = trees.each_ref().map(|t| find(t, path).unwrap().ino);
            assert_eq!((a, a), (b, c), "{path}");
            for t in &trees {
                assert_eq!(t.path(a).as_deref(), Some(path));
            }
        }
        let y = find(&trees[1], "lab/o/y").unwrap().ino;
        assert!(trees[0].attr(y).is_none() && trees[2].attr(y).is_none());
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
        let declined = b.declined().next().unwrap();
        assert_eq!(declined.uri.as_deref(), Some("skill://%61/SKILL.md"));
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
        let seen: Vec<_> = b.seen().collect();
        assert!(seen.contains(&("skill://a/x", digest("1"), 5)));
        assert!(seen.contains(&("skill://a/y", digest("1"), 9)));
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
        let twins: Vec<_> = b.twins().collect();
        assert_eq!(twins.len(), 3, "{twins:?}");
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
    fn a_label_comes_and_goes_without_the_others() {
        let t = tree(branch(&[entry("skill://a", &[("x", "1")])], None, 0));
        let view = || View::Unlisted(Absent::Starting);
        let root = |name: &str| {
            let (dir, name) = (ROOT, name.into());
            [Change::Entry { dir, name }, Change::Dir(ROOT)]
        };
        let two = t.with_label(2, "two".parse().unwrap(), view());
        assert_eq!(changes(&t, &two), root("two"));
        let (file, other) = (find(&two, "lab/a/x").unwrap(), find(&two, "two").unwrap());
        assert_eq!(find(&t, "lab/a/x"), Some(file));
        assert_eq!(
            two.attr(ROOT).unwrap().nlink,
            t.attr(ROOT).unwrap().nlink + 1
        );
        let without = two.without_label(1);
        let told = changes(&two, &without);
        let pages = |ino| told.contains(&Change::Pages(ino));
        assert!(
            told.starts_with(&root("lab")) && pages(file.ino),
            "{told:?}"
        );
        assert_eq!(told.len(), 2 + 2, "its two files, no directory: {told:?}");
        assert_eq!(find(&without, "two"), Some(other));
        assert_eq!(without.attr(file.ino), None);
        assert_eq!(without.source(file.ino).map(|_| ()), None);
        assert_eq!(without.lookup(ROOT, "lab"), Lookup::NoEntry);
        // Back under a number of its own.
        let back = without.with_label(3, "lab".parse().unwrap(), view());
        assert_eq!(Tree::slot_of(find(&back, "lab").unwrap().ino), 3);
        let names = |t: &Tree| {
            let children = t.children(ROOT, 0).unwrap();
            children
                .iter()
                .map(|c| c.name.to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&back), ["two", "lab"]);
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

    /// All that can be told of a branch.
    fn described(branch: &Branch) -> Vec<String> {
        let parts = || branch.parts.iter().chain([&branch.top]);
        let nodes = parts().flat_map(|part| part.all(&branch.parts));
        let nodes = nodes.map(|at| format!("{} {:?} {}", at.path(), at.attr(), at.node.cookie));
        let twins = branch.twins().map(|twins| format!("{twins:?}"));
        let declined = branch.declined().map(|d| format!("{d:?}"));
        let rest = format!(
            "{:?} {:?} {}",
            branch.rows, branch.ghosts, branch.next_cookie
        );
        nodes.chain(twins).chain(declined).chain([rest]).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn hr_11_55_every_skill_is_shown_right_or_declined(before in skills(), after in skills()) {
            let first = branch(&before, None, 1);
            let second = branch(&after, Some(&first), 2);
            let kept: Vec<Arc<Entry>> = second.skills().map(|s| Arc::clone(&s.entry)).collect();
            prop_assert_eq!(kept.len() + second.declined().count(), after.len());
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

        #[test]
        fn a_tree_after_some_skills_changed_is_the_one_made_of_all(
            before in skills(), after in skills(), later in skills(),
            held in any::<u8>(), times in proptest::array::uniform3(1..3u64),
        ) {
            let unique = |entries: Vec<Arc<Entry>>| -> BTreeMap<Arc<str>, Arc<Entry>> {
                entries.into_iter().map(|e| (Arc::clone(&e.uri), e)).collect()
            };
            let show = |entry: &Arc<Entry>, held: u8| {
                let mut skill = Skill::new(Known::Entry(Arc::clone(entry)), Origin::Listed);
                if held & (1 << (entry.uri.len() % 8)) != 0 {
                    skill.load(entry, Policy::default().hold);
                }
                Arc::new(skill.shown(Policy::default()).unwrap())
            };
            let full = |entries: &BTreeMap<Arc<str>, Arc<Entry>>, previous: Option<&Branch>, held, now| {
                let shown = entries.values().map(|e| show(e, held)).collect();
                let (beyond, seen) = (Beyond::default(), Seen::new());
                Branch::of_skills(1, shown, Vec::new(), &beyond, previous, &seen, now)
            };
            let mut all = unique(before);
            let mut last = full(&all, None, held, 1);
            // The last step changes no entry, and all windows.
            let steps = [(after, held), (later, held), (Vec::new(), !held)];
            for ((step, bits), now) in steps.into_iter().zip(times) {
                let step = unique(step);
                let known = step.values().filter(|e| all.contains_key(&e.uri));
                let mut changed: Vec<Arc<Entry>> = known.cloned().collect();
                for e in &changed {
                    all.insert(Arc::clone(&e.uri), Arc::clone(e));
                }
                if bits != held {
                    changed = all.values().cloned().collect();
                }
                let shown = changed.iter().map(|e| show(e, bits)).collect();
                let next = last.with_skills(shown, now).unwrap();
                let wanted = full(&all, Some(&last), bits, now);
                prop_assert_eq!(described(&next), described(&wanted));
                let (old, next, wanted) = (tree(last), tree(next), tree(wanted));
                let sorted = |mut told: Vec<Change>| {
                    told.sort_by_key(|c| format!("{c:?}"));
                    told
                };
                prop_assert_eq!(sorted(changes(&old, &next)), sorted(changes(&old, &wanted)));
                last = Arc::into_inner(match next.labels.into_iter().next() {
                    Some((_, (_, View::Listed(branch)))) => { drop((old, wanted)); branch }
                    _ => panic!("no listing"),
                }).unwrap();
            }
            let stranger = unique(vec![entry("skill://stranger", &[])]);
            let stranger = stranger.values().map(|e| show(e, 0)).collect();
            prop_assert!(last.with_skills(stranger, 9).is_none());
        }
    }
}
