//! Names that no entry mentions: walking to a skill that its server does not list, and prefix
//! directories.
//!
//! A listing may be partial, so an unknown name in a label or prefix directory may still be a
//! skill (HR-46, HR-47): the server is asked once, and its answer is waited for, but not for
//! long, and never for the kernel, which holds the directory until the lookup is answered. To
//! keep walking tools from becoming a load on the server, names that no skill can have
//! are not asked for, an answer is remembered, and questions are rationed.

use super::{Act, Dynamic, Host, Message, ReadError, Until, ask_known};
use crate::domain::manifest::Content;
use crate::domain::name::{RelPath, SKILL_MD, may_be_unlisted};
use crate::domain::skill::{Known, Shown};
use crate::domain::tree::{Beyond, Tree};
use crate::source::{DirChild, Link, Source, SourceError};
use crate::sync::{sleep, spawn};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How long a lookup waits for the server (HR-117).
const PATIENCE: Duration = Duration::from_secs(2);
/// How long "no such name" is remembered.
pub const NO_SUCH_NAME: Duration = Duration::from_secs(30);
/// At most this many names are remembered for each server.
const MAX_REMEMBERED: usize = 10_000;
/// At most this many questions a second go to each server.
const PER_SECOND: f64 = 5.0;
/// A directory is looked into at most this often.
const LOOK_GAP: Duration = Duration::from_secs(30);
/// After a look that failed, the next one may come this much later.
const FAILED_GAP: Duration = Duration::from_secs(1);

/// Whether a listing may be answered before the server was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// No: nothing is known of what is in it, neither from entries nor from the server.
    First,
    /// Yes: what is known is shown, and what is new appears.
    Again,
}

/// What was asked of a server on the way.
#[derive(Debug)]
pub(super) struct Walked {
    absent: HashMap<String, Instant>,
    looked: HashMap<String, Instant>,
    tokens: f64,
    filled: Option<Instant>,
}

impl Default for Walked {
    fn default() -> Self {
        Self {
            absent: HashMap::new(),
            looked: HashMap::new(),
            tokens: PER_SECOND,
            filled: None,
        }
    }
}

impl Walked {
    /// Takes the right to ask one question, if there is one left.
    fn take(&mut self, now: Instant) -> bool {
        let since = self.filled.map_or(0.0, |at| (now - at).as_secs_f64());
        self.tokens = (self.tokens + since * PER_SECOND).min(PER_SECOND);
        self.filled = Some(now);
        let may = self.tokens >= 1.0;
        self.tokens -= if may { 1.0 } else { 0.0 };
        may
    }

    fn is_absent(&self, path: &str, now: Instant) -> bool {
        self.absent
            .get(path)
            .is_some_and(|at| now - *at < NO_SUCH_NAME)
    }

    /// Whether a directory may be a skill: one that the server showed, of which nothing else is
    /// known.
    fn may_be_skill(&self, dir: &str, beyond: &Beyond, now: Instant) -> bool {
        let shown = beyond.dirs.iter().any(|d| d.as_str() == dir);
        shown && !holds_any(beyond, dir) && !self.is_absent(dir, now)
    }

    fn remember_absent(&mut self, path: &str, now: Instant) {
        self.absent.retain(|_, at| now - *at < NO_SUCH_NAME);
        if self.absent.len() < MAX_REMEMBERED {
            self.absent.insert(path.to_owned(), now);
        }
    }

    /// Whether a directory is due to be looked into; notes that it is now.
    fn look(&mut self, path: &str, now: Instant) -> bool {
        self.looked.retain(|_, at| now - *at < LOOK_GAP);
        let due = !self.looked.contains_key(path) && self.looked.len() < MAX_REMEMBERED;
        if due {
            self.looked.insert(path.to_owned(), now);
        }
        due
    }
}

impl Host {
    /// The name to ask the server for when a lookup finds nothing: none if it can be no skill's,
    /// or the answer is known.
    pub fn unlisted(&self, dir: u64, name: &str) -> Option<String> {
        let tree = self.tree();
        let above = tree.open_dir(dir)?;
        let dynamic = self.dynamic_at(Tree::slot_of(dir), &above).is_some();
        // The SKILL.md of a prefix directory makes it a skill, if the server says so.
        let prefix = name == SKILL_MD && !above.is_empty() && !dynamic;
        let s = self.slot(Tree::slot_of(dir))?;
        let now = s.now.lock();
        // What only its directory is known of may be a skill with any file in it.
        let unknown = now.walked.may_be_skill(&above, &now.beyond, Instant::now());
        let may = may_be_unlisted(name) || (dynamic || unknown) && !name.starts_with('.');
        if !(prefix || may) {
            return None;
        }
        let path = if prefix {
            above
        } else if above.is_empty() {
            name.to_owned()
        } else {
            format!("{above}/{name}")
        };
        // A server without the extension is not asked (HR-02).
        let mute = matches!(&now.link, Link::Ready(peer) if !peer.skills);
        (!mute && !now.walked.is_absent(&path, Instant::now())).then_some(path)
    }

    /// The dynamic skill that a path of a label belongs to, if the user allowed them.
    fn dynamic_at(&self, slot: u16, path: &str) -> Option<Arc<Shown>> {
        let s = self
            .slot(slot)
            .filter(|s| s.server.dynamic == Dynamic::Allowed)?;
        let now = s.now.lock();
        let shown = now.skills.values().filter_map(|s| s.shown(self.policy));
        let holds = |dir: &str| {
            path.strip_prefix(dir)
                .is_some_and(|r| r.is_empty() || r.starts_with('/'))
        };
        let mut found =
            shown.filter(|s| s.entry.content == Content::Dynamic && holds(s.entry.dir.as_str()));
        found.next().map(Arc::new)
    }

    /// Asks the server for a path that no entry mentions; whether the tree has it now.
    ///
    /// # Errors
    /// The question has no answer: the name may be there or not. [`ReadError::Denied`] says that
    /// too many were asked.
    pub async fn walk(&self, slot: u16, path: &str) -> Result<bool, ReadError> {
        let s = self.slot(slot).ok_or(ReadError::Stale)?;
        let source = s.source.get().ok_or(ReadError::Down)?;
        let rel = RelPath::of_names(path).ok_or(ReadError::Internal)?;
        let directories = {
            let mut now = s.now.lock();
            let directories = match &now.link {
                Link::Down { .. } | Link::NeedsCredentials { .. } => return Err(ReadError::Down),
                Link::Starting => return Err(ReadError::Denied),
                Link::Ready(peer) => peer.directory_read,
            };
            if !now.walked.take(Instant::now()) {
                return Err(ReadError::Denied);
            }
            directories
        };
        let deadline = Instant::now() + PATIENCE;
        // In a dynamic skill only the directory itself can tell (HR-94).
        if let Some(dir) = rel
            .parent()
            .filter(|d| self.dynamic_at(slot, d.as_str()).is_some())
        {
            let children = match source.read_directory(&dir.to_uri(), deadline).await {
                Ok(children) => children,
                Err(e) if e.is_unknown() || !directories => Vec::new(),
                Err(e) => return Err(error(&e)),
            };
            let found = children.iter().any(|c| c.path == rel);
            self.show_children(slot, dir, children).await;
            if !found {
                s.now.lock().walked.remember_absent(path, Instant::now());
            }
            return Ok(found);
        }
        let above = rel.parent().filter(|dir| {
            let now = s.now.lock();
            now.walked
                .may_be_skill(dir.as_str(), &now.beyond, Instant::now())
        });
        if let Some(dir) = above {
            if self.name_skill(slot, &**source, &dir, deadline).await? {
                return Ok(true);
            }
            s.now
                .lock()
                .walked
                .remember_absent(dir.as_str(), Instant::now());
            if !may_be_unlisted(rel.last()) {
                return Ok(false);
            }
        }
        if self.name_skill(slot, &**source, &rel, deadline).await? {
            return Ok(true);
        }
        if directories {
            match source.read_directory(&rel.to_uri(), deadline).await {
                Ok(children) => {
                    self.show_children(slot, rel, children).await;
                    return Ok(true);
                }
                Err(e) if e.is_unknown() => {}
                Err(e) => return Err(error(&e)),
            }
        }
        s.now.lock().walked.remember_absent(path, Instant::now());
        Ok(false)
    }

    /// Asks for the skill of a directory and shows it; whether there is one.
    async fn name_skill(
        &self,
        slot: u16,
        source: &dyn Source,
        dir: &RelPath,
        deadline: Instant,
    ) -> Result<bool, ReadError> {
        let uri: Arc<str> = format!("{}/SKILL.md", dir.to_uri()).into();
        match ask_known(source, &uri, deadline).await {
            Ok(Known::Withdrawn) => Ok(false),
            Ok(known) => {
                let act = self.act_until(slot, &uri, Act::Name(known), Until::Shown);
                let _ = act.await;
                Ok(true)
            }
            Err(e) => Err(error(&e)),
        }
    }

    /// Somebody lists a prefix directory or one of a dynamic skill: if it is due to be looked
    /// into, the work that makes what the server has in it beyond the entries appear (HR-95), and
    /// whether the listing would be empty for no reason without it.
    pub fn look_into(
        self: &Arc<Self>,
        dir: u64,
    ) -> Option<(Look, impl Future<Output = Result<(), ReadError>> + use<>)> {
        let slot = Tree::slot_of(dir);
        let path = self.tree().open_dir(dir).filter(|p| !p.is_empty())?;
        let dynamic = self.dynamic_at(slot, &path).is_some();
        let look = {
            let s = self.slot(slot)?;
            let mut now = s.now.lock();
            let declared = matches!(&now.link, Link::Ready(peer) if peer.directory_read);
            if !declared || !now.walked.look(&path, Instant::now()) {
                return None;
            }
            let shown = now.beyond.dirs.iter().any(|d| d.as_str() == path);
            if (dynamic || shown) && !holds_any(&now.beyond, &path) {
                Look::First
            } else {
                Look::Again
            }
        };
        let (host, rel) = (Arc::clone(self), RelPath::of_names(&path)?);
        let work = async move {
            let result = host.look(slot, rel, dynamic).await;
            let gap = match &result {
                Ok(()) => LOOK_GAP,
                // Nothing was learnt: the next one who looks asks again.
                Err(_) => {
                    if let Some(s) = host.slot(slot) {
                        s.now.lock().walked.looked.remove(&path);
                    }
                    FAILED_GAP
                }
            };
            // The kernel keeps a listing until it hears of a change.
            spawn(async move {
                sleep(gap).await;
                let _ = host.inbox.send(Message::Due(dir));
            });
            result
        };
        Some((look, work))
    }

    /// Shows what the server has in a directory, and the skill that the directory turns out to be.
    async fn look(&self, slot: u16, dir: RelPath, dynamic: bool) -> Result<(), ReadError> {
        let s = self.slot(slot).ok_or(ReadError::Stale)?;
        let source = s.source.get().ok_or(ReadError::Down)?;
        let deadline = Instant::now() + PATIENCE;
        let children = source.read_directory(&dir.to_uri(), deadline).await;
        let children = children.map_err(|e| error(&e))?;
        let own = dir.join(SKILL_MD);
        let skill = !dynamic && children.iter().any(|c| c.path == own);
        self.show_children(slot, dir.clone(), children).await;
        if skill {
            self.name_skill(slot, &**source, &dir, deadline).await?;
        }
        Ok(())
    }

    async fn show_children(&self, slot: u16, dir: RelPath, children: Vec<DirChild>) {
        let (done, shown) = oneshot::channel();
        let _ = self.inbox.send(Message::Shown(slot, dir, children, done));
        let _ = shown.await;
    }
}

/// Whether the server showed anything in a directory.
fn holds_any(beyond: &Beyond, dir: &str) -> bool {
    let above = |p: &RelPath| p.parent().is_some_and(|p| p.as_str() == dir);
    beyond.dirs.iter().any(above) || beyond.files.keys().any(above)
}

/// What a lookup is told when its question failed.
fn error(e: &SourceError) -> ReadError {
    match e {
        SourceError::TimedOut(_) => ReadError::TimedOut,
        SourceError::Down(_) | SourceError::NeedsCredentials(_) => ReadError::Down,
        SourceError::Rejected { .. } | SourceError::Malformed(_) | SourceError::NeedsInput => {
            ReadError::Contradiction
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hr_47_questions_are_rationed_and_answers_remembered() {
        let mut walked = Walked::default();
        let start = Instant::now();
        let asked = (0..100).filter(|_| walked.take(start)).count();
        assert_eq!(asked, 5);
        let later = start + Duration::from_secs(1);
        assert_eq!((0..100).filter(|_| walked.take(later)).count(), 5);
        walked.remember_absent("a", start);
        assert!(walked.is_absent("a", later) && !walked.is_absent("b", later));
        assert!(!walked.is_absent("a", start + NO_SUCH_NAME));
        assert!(walked.look("d", start) && !walked.look("d", later));
        assert!(walked.look("d", start + LOOK_GAP));
    }
}
