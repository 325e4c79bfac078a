//! What the user does to skills from the command line, by name.

use super::report;
use super::{Act, File, Host, Now, Slot, ask_known};
use crate::domain::diff::Diff;
use crate::domain::frontmatter;
use crate::domain::manifest::{Entry, FileEntry, Reason, SetId};
use crate::domain::name::{Label, MAX_PATH, RelPath};
use crate::domain::skill::{From, Known, Moved, Origin, Scope, Shown, Skill, Standing};
use crate::domain::text::{
    Quoted, did_you_mean, exact_word, nearest, openable, printable, spelt, unspelt, word,
};
use crate::domain::tree::View;
use crate::domain::verify::{Expected, Verified};
use crate::source::{ChildKind, Event, Link, Listing, Source};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a whole listing may take when the user asks for one.
const LIST_PATIENCE: Duration = Duration::from_secs(60);
const TEXT: usize = 500;

/// Why a command could not be done, by the exit code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum Trouble {
    /// It could not be done.
    #[error("{0}")]
    Failed(String),
    /// The skill is not what the user was shown.
    #[error("{0}")]
    Moved(String),
}

/// What a person needs to know of a skill before approving it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Detail {
    /// The server's label.
    pub label: String,
    /// How the server is reached.
    pub server: String,
    /// The skill on the command line and below the mount point.
    pub skill: String,
    /// The URI of its SKILL.md.
    pub uri: String,
    /// Its state.
    pub state: String,
    /// What it says of itself.
    pub description: String,
    /// The set the server publishes now: what an approval would be for.
    pub set: String,
    /// Its files.
    pub files: Vec<FileDetail>,
    /// Fields of the frontmatter that ask for permissions or name things to run. Nothing is
    /// granted or run by them.
    pub requests: Vec<(String, String)>,
    /// Skills that lie in it; approving it does not approve them.
    pub nested: Vec<String>,
    /// What differs from the entry in force, if that is another.
    pub changes: Option<Diff>,
}

/// What a name on the command line means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The server.
    pub slot: u16,
    /// The skill; none if the server is meant.
    pub uri: Option<Arc<str>>,
    /// Its name as it is shown: `LABEL` or `LABEL/SKILL-PATH`.
    pub shown: String,
    /// What is named below the skill; none if it may mean either of two things.
    rest: Option<String>,
}

/// A name that no skill has.
struct Unknown {
    /// The server.
    slot: u16,
    /// The path below it; none if it may mean either of two.
    path: Option<String>,
    why: Trouble,
}

/// One skill as `lock` sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    /// The server.
    pub label: String,
    /// The set in force.
    pub set: String,
    /// The URI of its SKILL.md, as the server spells it.
    pub uri: String,
    /// Whether it may be read: only then it is written to a lock file.
    pub readable: bool,
}

/// One file of a skill.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FileDetail {
    /// Its path below the skill.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// SHA-256.
    pub digest: String,
}

impl Detail {
    /// Why there is nothing of a dynamic skill to show or approve.
    pub const NO_SET: &str = "a dynamic skill: its server publishes no digests, so there is no \
                              content to look at beforehand or to approve";
}

/// Frontmatter fields that ask for something; the rest is description.
const REQUESTS: [&str; 5] = ["allowed-tools", "hooks", "scripts", "tools", "permissions"];

impl Host {
    /// Finds what a name on the command line means: `LABEL`, `LABEL/SKILL-PATH`, `LABEL/URI` of a
    /// skill, or a path below the mount point. The skill is the innermost one that holds the path.
    ///
    /// A path is taken as it is or as it is shown; one below the mount point is exact. Where both
    /// ways lead somewhere, and not to the same skill, it is neither.
    pub fn find(&self, name: &str) -> Result<Named, Trouble> {
        self.seek(name)?.map_err(|unknown| unknown.why)
    }

    fn seek(&self, name: &str) -> Result<Result<Named, Unknown>, Trouble> {
        let below = Path::new(name)
            .strip_prefix(&self.mountpoint)
            .ok()
            .and_then(Path::to_str);
        let given = below.unwrap_or(name).trim_start_matches('/');
        let (label, path) = given.split_once('/').unwrap_or((given, ""));
        let label = label.parse::<Label>().ok();
        let slots = self.slots();
        let slot = slots
            .iter()
            .find(|(_, s)| Some(&s.server.label) == label.as_ref());
        let Some((slot, s)) = slot else {
            let labels = slots.iter().map(|(_, s)| s.server.label.as_str());
            let labels: Vec<&str> = labels.collect();
            let wanted = given.split('/').next().unwrap_or(given);
            let meant = did_you_mean(nearest(wanted, labels.iter().copied()));
            let text = format!(
                "no server {} here{meant}; the labels are: {}",
                Quoted(wanted),
                labels.join(", ")
            );
            return Err(Trouble::Failed(text));
        };
        let (slot, label) = (*slot, s.server.label.as_str());
        let now = s.now.lock();
        let dir = |skill: &Skill| match (skill.held(), skill.known()) {
            (Some(entry), _) | (None, Known::Entry(entry)) => Some(entry.dir.as_str().to_owned()),
            (None, Known::Declined(d)) => d.dir.as_ref().map(|d| d.as_str().to_owned()),
            (None, Known::Withdrawn) => None,
        };
        let found = |uri: &Arc<str>, dir: Option<&str>, rest: Option<String>| {
            let shown = match dir {
                Some(dir) => format!("{label}/{dir}"),
                None => format!("{label}/{uri}"),
            };
            Named {
                slot,
                uri: Some(Arc::clone(uri)),
                shown: spelt(&shown),
                rest,
            }
        };
        // What names one skill and no other.
        let exactly = |uri: &str, dir: Option<&str>| match dir {
            Some(dir) if uri.contains('\\') || openable(uri).is_none() => {
                let path = self.mountpoint.join(label).join(dir);
                exact_word(&path.display().to_string())
            }
            _ => word(&spelt(&format!("{label}/{uri}"))),
        };
        let either = |exact: Vec<String>| {
            Trouble::Failed(format!(
                "{} may be either of several skills; name one as here: {}",
                Quoted(given),
                exact.join(", ")
            ))
        };
        let may_be_shown = below.is_none() && path.contains('\\');
        // No path has an empty name in it.
        if path.contains("://") && below.is_none() {
            let shown = |uri: &str| spelt(uri) == path || spelt(&format!("{label}/{uri}")) == given;
            let meant = now
                .skills
                .iter()
                .filter(|(uri, _)| &***uri == path || may_be_shown && shown(uri));
            let meant: Vec<_> = meant.map(|(uri, skill)| (uri, dir(skill))).collect();
            return match meant.as_slice() {
                [(uri, dir)] => Ok(Ok(found(uri, dir.as_deref(), Some(String::new())))),
                [] => Err(unknown(label, path, &now, String::new())),
                several => {
                    let exact = several
                        .iter()
                        .map(|(uri, dir)| exactly(uri, dir.as_deref()));
                    Err(either(exact.collect()))
                }
            };
        }
        let path = path.trim_matches('/');
        if path.is_empty() {
            return Ok(Ok(Named {
                slot,
                uri: None,
                shown: label.to_owned(),
                rest: Some(String::new()),
            }));
        }
        // Names are not resolved: `approved/../other` would be taken for something of `approved`.
        if path.split('/').any(|part| matches!(part, "." | "..")) {
            let text = format!(
                "{} holds . or ..; name the skill or the file itself",
                Quoted(given)
            );
            return Err(Trouble::Failed(text));
        }
        let skills = now.skills.iter();
        let skills: Vec<(&Arc<str>, String)> = skills
            .filter_map(|(uri, skill)| Some((uri, dir(skill)?)))
            .collect();
        let full = format!("{label}/{path}");
        let as_shown = |dir: &str| match may_be_shown {
            true => rest_below(&full, &spelt(&format!("{label}/{dir}"))),
            false => None,
        };
        let held = skills.iter().filter_map(|(uri, dir)| {
            let rest = match (rest_below(path, dir), as_shown(dir)) {
                (None, None) => return None,
                (Some(rest), None) => Some(rest.to_owned()),
                (None, Some(shown)) => unspelt(shown),
                (Some(rest), Some(_)) => in_one_way(rest),
            };
            Some((uri, dir, rest))
        });
        let mut held: Vec<_> = held.collect();
        let levels = |dir: &str| dir.split('/').count();
        let innermost = held.iter().map(|(_, dir, _)| levels(dir)).max();
        held.retain(|(_, dir, _)| Some(levels(dir)) == innermost);
        match held.as_slice() {
            [(uri, dir, rest)] => Ok(Ok(found(uri, Some(dir), rest.clone()))),
            [] => {
                let dirs = skills.iter().map(|(_, dir)| dir.as_str());
                let meant = nearest(path, dirs).map(|dir| format!("{label}/{dir}"));
                let meant = did_you_mean(meant.as_deref());
                let path_meant = match may_be_shown {
                    true => in_one_way(path),
                    false => Some(path.to_owned()),
                };
                Ok(Err(Unknown {
                    slot,
                    path: path_meant,
                    why: unknown(label, path, &now, meant),
                }))
            }
            several => {
                let exact = several.iter().map(|(uri, dir, _)| exactly(uri, Some(dir)));
                Err(either(exact.collect()))
            }
        }
    }

    /// Finds a skill, not a whole server: its server, its URI, and how it is shown.
    pub(super) fn find_skill(&self, name: &str) -> Result<(u16, Arc<str>, String), Trouble> {
        match self.find(name)? {
            Named {
                slot,
                uri: Some(uri),
                shown,
                ..
            } => Ok((slot, uri, shown)),
            Named { shown, .. } => Err(Trouble::Failed(format!(
                "{shown} is a server; name a skill: LABEL/SKILL"
            ))),
        }
    }

    pub(super) fn skill(&self, slot: u16, uri: &Arc<str>) -> Result<Skill, Trouble> {
        let skill = self
            .slot(slot)
            .and_then(|s| s.now.lock().skills.get(uri).cloned());
        skill.ok_or_else(|| Trouble::Failed("the skill is gone".into()))
    }

    /// What there is to know of a skill, as the server publishes it now. Fetches no file.
    pub fn describe(&self, name: &str) -> Result<Detail, Trouble> {
        let (slot, uri, _) = self.find_skill(name)?;
        let skill = self.skill(slot, &uri)?;
        self.detail(slot, &skill, &newest_or_held(&skill)?)
    }

    /// What there is to know of one entry of a skill.
    pub(super) fn detail(
        &self,
        slot: u16,
        skill: &Skill,
        entry: &Arc<Entry>,
    ) -> Result<Detail, Trouble> {
        let s = self
            .slot(slot)
            .ok_or_else(|| Trouble::Failed("the server is gone".into()))?;
        let label = s.server.label.as_str();
        let nested = match self.tree().view(slot) {
            Some(View::Listed(branch)) => branch
                .skills()
                .filter(|s| s.entry.dir.is_below(&entry.dir))
                .map(|s| spelt(&format!("{label}/{}", s.entry.dir)))
                .collect(),
            _ => Vec::new(),
        };
        let file = |f: &FileEntry| FileDetail {
            path: spelt(below(entry.dir.as_str(), f.path.as_str())),
            size: f.size,
            digest: f.digest.to_string(),
        };
        let fields = entry.frontmatter.map();
        let requests = REQUESTS.iter().filter_map(|field| {
            let value = fields.get(*field)?;
            let text = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            Some((
                (*field).to_owned(),
                printable(&text, frontmatter::MAX_BYTES),
            ))
        });
        let held = skill.reference().filter(|held| *held != entry);
        Ok(Detail {
            label: label.into(),
            server: printable(&s.server.shown, TEXT),
            skill: spelt(&format!("{label}/{}", entry.dir)),
            uri: spelt(&entry.uri),
            state: skill.state(self.policy).into(),
            description: printable(&entry.description(), 1024),
            set: entry.set().map(|s| s.to_string()).unwrap_or_default(),
            files: entry.files().iter().map(file).collect(),
            requests: requests.collect(),
            nested,
            changes: held.map(|held| Diff::between(held, entry).map(spelt)),
        })
    }

    /// Approves a skill's set (HR-107, HR-110). Says what was approved.
    pub async fn approve(&self, name: &str, set: &str, scope: Scope) -> Result<String, Trouble> {
        let set: SetId = set.parse().map_err(|e| Trouble::Failed(format!("{e}")))?;
        let (slot, uri, name) = self.find_skill(name)?;
        if self.slot(slot).is_some_and(|s| s.server.locked.is_some()) {
            let text = "this mount is locked; approve in one that is not, and write the lock anew";
            return Err(Trouble::Failed(text.into()));
        }
        let entry = newest_or_held(&self.skill(slot, &uri)?)?;
        if entry.set().is_none() {
            return Err(Trouble::Failed(format!("{name}: {}", Detail::NO_SET)));
        }
        self.act(slot, &uri, Act::Approve(set, scope))
            .await
            .map_err(|moved| {
                Trouble::Moved(format!(
                    "{name}: {moved}; look at it again with: mount-skills approve {}",
                    word(&name)
                ))
            })?;
        // What readers were told before is settled by this.
        let uris = entry.files().iter().map(|file| spelt(&file.uri)).collect();
        self.refusals.lock().settle(slot, &uris);
        self.stored(
            slot,
            "the approval holds for this mount, but cannot be stored",
        )?;
        Ok(format!("approved {name} ({set})"))
    }

    /// Takes a skill away from readers, open files included (HR-112). Says what was revoked, and what
    /// is still readable through a skill that it is nested in.
    pub async fn revoke(&self, name: &str) -> Result<String, Trouble> {
        let (slot, uri, name) = self.find_skill(name)?;
        let done = format!("revoked {name}");
        self.do_to(slot, &uri, Act::Revoke).await?;
        self.stored(
            slot,
            "it is revoked for this mount, but that cannot be stored",
        )?;
        let skill = self.skill(slot, &uri)?;
        let Some(dir) = skill.held().or(skill.newest()).map(|e| e.dir.clone()) else {
            return Ok(done);
        };
        let tree = self.tree();
        let outer = match tree.view(slot) {
            Some(View::Listed(branch)) => branch
                .skills()
                .find(|s| dir.is_below(&s.entry.dir) && s.standing == Standing::Open)
                .map(|s| s.entry.dir.to_string()),
            _ => None,
        };
        let s = self.slot(slot);
        let label = s.as_ref().map_or("", |s| s.server.label.as_str());
        Ok(outer.map_or_else(|| done.clone(), |outer| {
            let outer = spelt(&format!("{label}/{outer}"));
            format!("{done}; its files are still part of {outer}, which may be read: revoke that as well to take them away")
        }))
    }

    /// Does what is no question of a set to a skill.
    async fn do_to(&self, slot: u16, uri: &Arc<str>, act: Act) -> Result<(), Trouble> {
        let text = "it is not done: the server was removed meanwhile, or the mount is ending";
        let done = self.act(slot, uri, act).await;
        done.map_err(|Moved| Trouble::Failed(text.into()))
    }

    fn stored(&self, slot: u16, but: &str) -> Result<(), Trouble> {
        if self.slot(slot).is_some_and(|s| s.server.locked.is_some()) {
            return Ok(());
        }
        match self.keep_verdicts(slot) {
            Some(Ok(())) => Ok(()),
            Some(Err(e)) => Err(Trouble::Failed(format!("{but}: {e}"))),
            None => Err(Trouble::Failed(format!(
                "{but}: there is no state directory"
            ))),
        }
    }

    /// Ends the windows of a skill, or of all skills of a server.
    pub async fn release(&self, name: &str) -> Result<String, Trouble> {
        let Named {
            slot, uri, shown, ..
        } = self.find(name)?;
        let uris = self.held(slot, uri);
        for uri in &uris {
            self.do_to(slot, uri, Act::Release).await?;
        }
        let skills = report::count(uris.len(), "skill");
        Ok(format!("{shown}: released {skills}"))
    }

    /// A server that a command asks.
    fn server(&self, slot: u16) -> Result<(Arc<Slot>, Arc<dyn Source>), Trouble> {
        let s = self.slot(slot);
        let s = s.ok_or_else(|| Trouble::Failed("the server is gone".into()))?;
        let source = s.source.get().cloned();
        let source = source.ok_or_else(|| Trouble::Failed("not started".into()))?;
        Ok((s, source))
    }

    /// The skills with a window: the one asked for, or all.
    fn held(&self, slot: u16, uri: Option<Arc<str>>) -> Vec<Arc<str>> {
        let Some(s) = self.slot(slot) else {
            return Vec::new();
        };
        let now = s.now.lock();
        let held = now
            .skills
            .iter()
            .filter(|(u, s)| s.held().is_some() && uri.as_ref().is_none_or(|only| only == *u));
        held.map(|(uri, _)| Arc::clone(uri)).collect()
    }

    /// Asks the server anew and moves on to what it publishes now: one skill, or all of a server.
    pub async fn refresh(&self, name: &str) -> Result<String, Trouble> {
        let Named {
            slot, uri, shown, ..
        } = self.find(name)?;
        let (s, source) = self.server(slot)?;
        let failed = |e: crate::source::SourceError| {
            Trouble::Failed(format!("{shown}: {}", printable(&e.to_string(), TEXT)))
        };
        if let Some(uri) = uri {
            let skill = self.skill(slot, &uri)?;
            let before = skill.held().or(skill.newest()).cloned();
            let known = ask_known(&*source, &uri, Instant::now() + self.timeout)
                .await
                .map_err(failed)?;
            let text = match (&known, before) {
                (Known::Entry(new), Some(old)) => Diff::between(&old, new).summary(),
                (Known::Entry(_), None) => "it can be loaded now".into(),
                (Known::Declined(d), _) => {
                    format!("declined: {}", printable(&d.reason.to_string(), TEXT))
                }
                (Known::Withdrawn, _) => "the server no longer serves it".into(),
            };
            self.do_to(slot, &uri, Act::Refresh(known)).await?;
            return Ok(format!("{shown}: {text}"));
        }
        let listing = source
            .list(Instant::now() + LIST_PATIENCE)
            .await
            .map_err(failed)?;
        let Listing { entries, .. } = &listing;
        let text = format!("{} published", report::count(entries.len(), "skill"));
        let silent: Vec<Arc<str>> = {
            let listed: HashSet<&str> = entries.iter().map(|e| &*e.uri).collect();
            let now = s.now.lock();
            let silent = now.skills.iter().filter(|(uri, skill)| {
                skill.origin() == Origin::Named && !listed.contains(&***uri)
            });
            silent.map(|(uri, _)| Arc::clone(uri)).collect()
        };
        self.event(slot, Event::Listed(listing));
        for uri in silent {
            // One that cannot be asked for now stays as it is known.
            if let Ok(known) = ask_known(&*source, &uri, Instant::now() + self.timeout).await {
                self.do_to(slot, &uri, Act::Refresh(known)).await?;
            }
        }
        for uri in self.held(slot, None) {
            self.do_to(slot, &uri, Act::Release).await?;
        }
        Ok(format!("{shown}: {text}"))
    }

    /// Adds a skill that its server does not list, by its URI (HR-47).
    pub async fn add(&self, label: &str, uri: &str) -> Result<String, Trouble> {
        let Named { slot, .. } = self.find(label)?;
        let (s, source) = self.server(slot)?;
        let label = s.server.label.as_str();
        let shown = spelt(uri);
        match ask_known(&*source, uri, Instant::now() + self.timeout).await {
            Ok(Known::Entry(entry)) if s.server.refuses(&entry) => Err(Trouble::Failed(format!(
                "{label}: {shown} is declined: {}; to allow it, mount with --allow-dynamic {label}",
                Reason::Dynamic
            ))),
            Ok(Known::Entry(entry)) => {
                let path = self.mountpoint.join(label).join(entry.dir.as_str());
                let path = path.display().to_string();
                let shown = spelt(&format!("{label}/{}", entry.dir));
                self.do_to(slot, &uri.into(), Act::Name(Known::Entry(entry)))
                    .await?;
                // What is printed is opened, or nothing is there to be opened.
                let path = openable(&path).map(str::to_owned);
                Ok(path.unwrap_or_else(|| {
                    format!("added {shown}; its path holds what cannot be shown as it is")
                }))
            }
            Ok(Known::Declined(d)) => {
                let reason = printable(&d.reason.to_string(), TEXT);
                Err(Trouble::Failed(format!(
                    "{label}: {shown} is declined: {reason}"
                )))
            }
            Ok(Known::Withdrawn) => Err(Trouble::Failed(format!(
                "{label}: the server serves no skill at {shown}"
            ))),
            Err(e) => {
                let reason = printable(&e.to_string(), TEXT);
                Err(Trouble::Failed(format!(
                    "{label}: {shown} could not be asked for: {reason}"
                )))
            }
        }
    }

    /// What the server has in a directory now, against what is in force (HR-90 to HR-95): a live
    /// look that changes nothing. Each child's path, and whether an entry has it.
    pub async fn live(&self, name: &str) -> Result<Vec<(String, bool)>, Trouble> {
        // A prefix is no skill, but it may be a directory.
        let (slot, uri, path) = match self.seek(name)? {
            Ok(found) => (found.slot, found.uri, found.rest),
            Err(unknown) => (unknown.slot, None, unknown.path),
        };
        let (s, source) = self.server(slot)?;
        let label = s.server.label.as_str();
        let Some(path) = path else {
            return Err(Trouble::Failed(format!(
                "{} may be either of two directories, as it is or as it is shown; name it by its path below the mount point",
                Quoted(name)
            )));
        };
        let rel = RelPath::of_names(&path);
        // A skill's own directory is spelt as its server spells it.
        let asked = match (&uri, rel) {
            (Some(uri), rel) if rel.is_some() || path.is_empty() => {
                let own = uri.trim_end_matches("/SKILL.md");
                rel.map_or_else(
                    || own.to_owned(),
                    |rest| format!("{own}/{}", rest.to_uri().trim_start_matches("skill://")),
                )
            }
            (None, Some(rel)) => rel.to_uri(),
            _ => {
                return Err(Trouble::Failed(format!(
                    "name a directory of {label}: {label}/PATH"
                )));
            }
        };
        let children = source
            .read_directory(&asked, Instant::now() + self.timeout)
            .await;
        let children = children.map_err(|e| {
            let (name, e) = (printable(name, MAX_PATH), printable(&e.to_string(), TEXT));
            Trouble::Failed(format!("{name}: {e}"))
        })?;
        let tree = self.tree();
        let known: Vec<Arc<Entry>> = match tree.view(slot) {
            Some(View::Listed(branch)) => branch.skills().map(|s| Arc::clone(&s.entry)).collect(),
            _ => Vec::new(),
        };
        let has = |path: &RelPath| {
            let mut files = known.iter().flat_map(|e| e.files());
            files.any(|f| f.path == *path || f.path.is_below(path))
        };
        let rows = children.iter().map(|child| {
            let slash = match child.kind {
                ChildKind::Directory => "/",
                ChildKind::File => "",
            };
            (
                spelt(&format!("{label}/{}{slash}", child.path)),
                has(&child.path),
            )
        });
        Ok(rows.collect())
    }

    /// Whether running what the skill at this path says was approved for its set in force
    /// (HR-98); a reason, if not.
    pub fn gate(&self, name: &str) -> Result<(), Trouble> {
        let (slot, uri, name) = self.find_skill(name)?;
        let skill = self.skill(slot, &uri)?;
        if skill.may_execute(self.policy) {
            return Ok(());
        }
        if newest_or_held(&skill)?.set().is_none() {
            return Err(Trouble::Failed(format!("{name}: {}", Detail::NO_SET)));
        }
        Err(Trouble::Failed(format!(
            "execution is not approved for {name} (state: {}); the user may run: mount-skills approve --exec {}",
            skill.state(self.policy),
            word(&name)
        )))
    }

    /// The content of one file of a skill as the server publishes it now, checked, without
    /// loading the skill: no window, no approval (HR-60, HR-105). With the file's path as it is shown.
    pub async fn inspect(
        self: &Arc<Self>,
        name: &str,
        file: Option<&str>,
    ) -> Result<(Detail, String, Verified), Trouble> {
        let (slot, uri, name) = self.find_skill(name)?;
        let skill = self.skill(slot, &uri)?;
        let entry = newest_or_held(&skill)?;
        let detail = self.detail(slot, &skill, &entry)?;
        if entry.set().is_none() {
            return Err(Trouble::Failed(format!("{name}: {}", Detail::NO_SET)));
        }
        let wanted = file.unwrap_or("SKILL.md");
        let files = entry.files().iter();
        let files = files.map(|f| (below(entry.dir.as_str(), f.path.as_str()), f));
        let files: Vec<(&str, &FileEntry)> = files.collect();
        let may_be_shown = wanted.contains('\\');
        let mut meant = files
            .iter()
            .filter(|(path, _)| *path == wanted || may_be_shown && spelt(path) == wanted);
        let (found, other) = (meant.next(), meant.next());
        let Some((path, row)) = found else {
            let meant = did_you_mean(nearest(wanted, files.iter().map(|(path, _)| *path)));
            let text = format!("{name} lists no file {}{meant}", Quoted(wanted));
            return Err(Trouble::Failed(text));
        };
        if let Some((other, _)) = other {
            let exact = [path, other].map(|path| match path.contains('\\') {
                true => word(&spelt(path)),
                false => exact_word(path),
            });
            return Err(Trouble::Failed(format!(
                "{} may be either of two files of {name}; name one as here: {}",
                Quoted(wanted),
                exact.join(", ")
            )));
        }
        let bytes = self.peek(&name, slot, &entry, row).await?;
        Ok((detail, spelt(path), bytes))
    }

    /// The content of one file of an entry, checked, without loading the skill. The name is shown.
    pub(super) async fn peek(
        self: &Arc<Self>,
        name: &str,
        slot: u16,
        entry: &Arc<Entry>,
        row: &FileEntry,
    ) -> Result<Verified, Trouble> {
        let own = row.uri == entry.uri;
        let expected = Expected {
            uri: Arc::clone(&row.uri),
            digest: row.digest,
            size: row.size,
            frontmatter: own.then(|| entry.frontmatter.clone()),
        };
        let (from, loads, claims) = (From::Anywhere, Vec::new(), Vec::new());
        let file = File {
            slot,
            expected,
            from,
            loads,
            claims,
        };
        let s = self.slot(slot);
        let label = s.as_ref().map_or("", |s| s.server.label.as_str());
        let path = format!("{label}/{}", row.path);
        if let Ok((bytes, _)) = self.fetch_once(&path, &file).await {
            return Ok(bytes);
        }
        // What was looked at may have moved: then the next look is at what it is now.
        let deadline = Instant::now() + self.timeout;
        if let Some(source) = s.as_ref().and_then(|s| s.source.get().cloned())
            && let Ok(known) = ask_known(&*source, &entry.uri, deadline).await
            && known != Known::Entry(Arc::clone(entry))
        {
            let _ = self.act(slot, &entry.uri, Act::Publish(known)).await;
            return Err(Trouble::Moved(format!(
                "{name} changed meanwhile; look again"
            )));
        }
        let wanted = spelt(below(entry.dir.as_str(), row.path.as_str()));
        Err(Trouble::Failed(format!(
            "{name}: {wanted} cannot be shown; the reason is in: mount-skills status"
        )))
    }

    /// Every skill that counts as one of its own and is not revoked, with the set in force. A
    /// nested skill that nobody consented to is not among them: a lock would approve it.
    pub fn locked(&self) -> Vec<Lock> {
        let tree = self.tree();
        let slots = self.slots().into_iter();
        slots
            .flat_map(|(slot, s)| {
                let label = s.server.label.to_string();
                let skills = match tree.view(slot) {
                    Some(View::Listed(branch)) => branch.own_skills(),
                    _ => Vec::new(),
                };
                let kept = |s: &Arc<Shown>| s.standing != Standing::Revoked;
                skills.into_iter().filter(kept).filter_map(move |s| {
                    Some(Lock {
                        label: label.clone(),
                        set: s.entry.set()?.to_string(),
                        uri: s.entry.uri.to_string(),
                        readable: s.standing == Standing::Open,
                    })
                })
            })
            .collect()
    }
}

/// The entry that a command is about: the newest, or the held one of a withdrawn skill.
pub(super) fn newest_or_held(skill: &Skill) -> Result<Arc<Entry>, Trouble> {
    if let Some(entry) = skill.newest().or(skill.held()) {
        return Ok(Arc::clone(entry));
    }
    Err(Trouble::Failed(match skill.known() {
        Known::Declined(d) => format!(
            "the skill is declined: {}",
            printable(&d.reason.to_string(), TEXT)
        ),
        Known::Entry(_) | Known::Withdrawn => "the server no longer serves the skill".into(),
    }))
}

/// That a server has no such skill; or, where it is not known what it has, that and why.
fn unknown(label: &str, path: &str, now: &Now, meant: String) -> Trouble {
    let again = format!("ask for another: mount-skills refresh {label}");
    let why = match (&now.link, &now.listing) {
        (Link::Starting, _) => "is still starting; ask again in a moment".to_owned(),
        (Link::Down { reason }, _) => {
            format!("is down: {reason}; see: mount-skills status {label}")
        }
        (Link::NeedsCredentials { reason }, _) => format!("needs credentials: {reason}"),
        (Link::Ready(peer), _) if !peer.skills => "does not declare the Skills extension".into(),
        (Link::Ready(_), Some(listing)) if listing.at.is_some() => match &listing.truncated {
            Some(why) => {
                let why = printable(why, TEXT);
                format!("gave a listing that is not whole: {why}; {again}")
            }
            None => {
                let path = Quoted(path);
                return Trouble::Failed(format!(
                    "{label} has no skill {path}{meant}; see: mount-skills list (a skill that is not listed: mount-skills add {label} URI)"
                ));
            }
        },
        (Link::Ready(_), _) => match &now.list_error {
            Some(e) => format!("gave no listing: {e}; {again}"),
            None => "has not given its listing yet; ask again in a moment".into(),
        },
    };
    let name = format!("{label}/{path}");
    Trouble::Failed(format!(
        "{} is not known{meant}: {label} {why}",
        Quoted(&name)
    ))
}

/// A file's path below its skill.
pub(super) fn below<'a>(dir: &str, path: &'a str) -> &'a str {
    path.strip_prefix(dir)
        .and_then(|rest| rest.strip_prefix('/'))
        .unwrap_or(path)
}

/// What of a path lies below a directory; nothing if it is that directory.
fn rest_below<'a>(path: &'a str, dir: &str) -> Option<&'a str> {
    let rest = path.strip_prefix(dir)?;
    match rest {
        "" => Some(rest),
        _ => rest.strip_prefix('/'),
    }
}

/// A path that may be given as it is or as it is shown, if both mean the same or it is no shown form.
fn in_one_way(path: &str) -> Option<String> {
    let as_shown = unspelt(path);
    let one = as_shown.is_none_or(|meant| meant == path);
    one.then(|| path.to_owned())
}
