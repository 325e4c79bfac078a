//! What a person looks at before approving: a skill as its server publishes it now, and what its
//! changed files held before and hold now.
//!
//! It is all about one entry, so that the set that gets approved is the one that was shown. The
//! user wishes to see it, which loads nothing: no window opens and nothing is approved (HR-60,
//! HR-105). What was in force comes from memory or the disk cache alone, since its server has
//! something else by now. New files are not fetched: their names and sizes are shown, and `show`
//! gives their content.

use super::command::{Detail, Trouble, below, newest_or_held};
use super::{Host, Shelf};
use crate::domain::manifest::{Entry, FileEntry};
use crate::domain::text::spelt;
use crate::domain::verify::Expected;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A file is compared up to this size.
const MAX_FILE: u64 = 1 << 20;
/// All that is compared of one skill, both sides together.
const MAX_ALL: u64 = 8 << 20;
/// No further file is asked for after this time: the command line waits for the answer.
const PATIENCE: Duration = Duration::from_secs(45);

/// A skill, with all that differs from what is in force.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Review {
    /// The skill.
    pub detail: Detail,
    /// Its files that differ, by path; empty if there is nothing to compare with.
    pub files: Vec<Changed>,
}

/// One file that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// Its path below the skill. Escaped.
    pub path: String,
    /// What is in force; none for a new file.
    pub before: Option<Side>,
    /// What the server publishes; none for a file that is gone.
    pub after: Option<Side>,
}

/// One side of a file that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Side {
    /// Bytes.
    pub size: u64,
    /// What is known of its content.
    pub content: Content,
}

/// The content of a file, or why there is none to compare.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    /// Checked text. Not escaped.
    Text(String),
    /// No text.
    Binary,
    /// More than is compared.
    TooLarge,
    /// It was never read, or is no longer in the cache.
    NotKept,
    /// Nobody asked for it: there is nothing to compare it with.
    NotAsked,
    /// It cannot be had. Escaped.
    Failed(String),
}

impl Content {
    fn of(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) if !text.contains('\0') => Self::Text(text.to_owned()),
            _ => Self::Binary,
        }
    }
}

impl Host {
    /// A skill as it is published now, and the content of what changed on either side.
    pub async fn review(self: &Arc<Self>, name: &str) -> Result<Review, Trouble> {
        let (slot, uri, name) = self.find_skill(name)?;
        let skill = self.skill(slot, &uri)?;
        let entry = newest_or_held(&skill)?;
        let detail = self.detail(slot, &skill, &entry)?;
        let mut files = Vec::new();
        let Some(held) = skill.reference().filter(|held| **held != entry) else {
            return Ok(Review { detail, files });
        };
        let (old, new) = (rows(held), rows(&entry));
        let until = Instant::now() + PATIENCE;
        let mut room = MAX_ALL;
        let mut failed = None;
        for (path, after) in &new {
            let (before, after) = (old.get(path), *after);
            if before.is_some_and(|b| (&b.uri, b.digest) == (&after.uri, after.digest)) {
                continue;
            }
            let (mut was, mut is) = (Content::NotAsked, Content::NotAsked);
            if let Some(before) = before {
                let both = before.size.saturating_add(after.size);
                if before.size.max(after.size) > MAX_FILE || both > room {
                    (was, is) = (Content::TooLarge, Content::TooLarge);
                } else {
                    room -= both;
                    was = self.kept(slot, held, before).await;
                    is = match (&was, &failed) {
                        (Content::NotKept, _) => Content::NotAsked,
                        // A server that does not answer is not asked file by file.
                        (_, Some(why)) => Content::Failed(String::clone(why)),
                        _ if Instant::now() > until => {
                            Content::Failed("the files before it took too long".into())
                        }
                        _ => match self.peek(&name, slot, &entry, after).await {
                            Ok(bytes) => Content::of(bytes.bytes()),
                            Err(Trouble::Failed(why)) => {
                                Content::Failed(failed.insert(why).clone())
                            }
                            Err(moved @ Trouble::Moved(_)) => return Err(moved),
                        },
                    };
                }
            }
            files.push(Changed {
                path: spelt(path),
                before: before.map(|row| side(row, was)),
                after: Some(side(after, is)),
            });
        }
        let gone = old.iter().filter(|(path, _)| !new.contains_key(*path));
        files.extend(gone.map(|(path, row)| Changed {
            path: spelt(path),
            before: Some(side(row, Content::NotAsked)),
            after: None,
        }));
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Review { detail, files })
    }

    /// The content of a file that is in force, if it is still here.
    async fn kept(self: &Arc<Self>, slot: u16, held: &Entry, row: &FileEntry) -> Content {
        // Nobody has to read an empty file to know what is in it.
        if row.size == 0 {
            return Content::of(b"");
        }
        // The bytes of the digest are what is wanted, whatever else they were compared with.
        let expected = |frontmatter| Expected {
            uri: Arc::clone(&row.uri),
            digest: row.digest,
            size: row.size,
            frontmatter,
        };
        let as_skill = expected(Some(held.frontmatter.clone()));
        let expected = expected(None);
        let ready = [as_skill, expected.clone()];
        let mut ready = ready.iter().map(|e| self.memory.get(&(slot, e.key())));
        if let Some(bytes) = ready.find_map(|bytes| bytes) {
            return Content::of(bytes.bytes());
        }
        let deadline = Instant::now() + self.timeout;
        let Some(_room) = self.memory.room(row.size, deadline).await else {
            return Content::NotKept;
        };
        match self.shelved(slot, &expected, Shelf::load).await.flatten() {
            Some(bytes) => Content::of(bytes.bytes()),
            None => Content::NotKept,
        }
    }
}

/// The files of an entry by their path below the skill.
fn rows(entry: &Entry) -> BTreeMap<&str, &FileEntry> {
    let files = entry.files().iter();
    files
        .map(|f| (below(entry.dir.as_str(), f.path.as_str()), f))
        .collect()
}

fn side(row: &FileEntry, content: Content) -> Side {
    Side {
        size: row.size,
        content,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_what_can_be_compared_by_lines() {
        assert_eq!(Content::of("é\n".as_bytes()), Content::Text("é\n".into()));
        assert_eq!(Content::of(b"a\0b"), Content::Binary);
        assert_eq!(Content::of(&[0xff, 0xfe]), Content::Binary);
    }
}
