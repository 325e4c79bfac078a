//! Reads that were refused, and why: what a reader gets as an errno, an agent and a person find
//! here with what was expected, what was found and what to do.

use crate::domain::skill::Claim;
use crate::domain::text::{printable, spelt, word};
use crate::domain::verify::Mismatch;
use crate::source::SourceError;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// At most this many refusals are remembered for each server.
const KEEP: usize = 100;
/// Lines in the log for each server…
const LINES: u32 = 100;
/// …in this time.
const MINUTE: Duration = Duration::from_secs(60);
/// Texts of a server are cut to this many characters.
const TEXT: usize = 500;

/// Why a read gives no bytes, by what the reader is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReadError {
    /// The skill changed: look the file up again.
    Stale,
    /// Policy: the skill is declined.
    Denied,
    /// The server contradicts itself.
    Contradiction,
    /// The deadline passed.
    TimedOut,
    /// The server cannot be reached and the file is not cached.
    Down,
    /// A fault of this program.
    Internal,
}

impl ReadError {
    /// Its name in figures, as in a status.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stale => "stale",
            Self::Denied => "denied",
            Self::Contradiction => "contradiction",
            Self::TimedOut => "timed-out",
            Self::Down => "down",
            Self::Internal => "internal",
        }
    }

    /// The name of the errno that the reader gets.
    pub fn errno_name(self) -> &'static str {
        match self {
            Self::Stale => "ESTALE",
            Self::Denied => "EACCES",
            Self::Contradiction | Self::Internal => "EIO",
            Self::TimedOut => "ETIMEDOUT",
            Self::Down => "EHOSTDOWN",
        }
    }
}

/// One refused read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The file, below the mount point. Escaped.
    pub path: String,
    /// Its URI. Escaped.
    pub uri: String,
    /// What kind of refusal it is.
    pub error: ReadError,
    /// The errno that the reader got.
    pub errno: String,
    /// Why, in a sentence. Escaped.
    pub reason: String,
    /// What the entry promised, where it is about content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<String>,
    /// What came instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
    /// What to do. Escaped.
    pub next: String,
    /// Seconds since the epoch.
    pub at: u64,
    /// How often it happened.
    pub times: u64,
}

impl Refusal {
    fn new(path: &str, uri: &str, error: ReadError, reason: &str, next: &str) -> Self {
        let at = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_secs());
        Self {
            path: spelt(path),
            uri: spelt(uri),
            error,
            errno: error.errno_name().into(),
            reason: printable(reason, TEXT),
            expected: None,
            found: None,
            next: printable(next, TEXT),
            at,
            times: 1,
        }
    }

    /// A file of a declined skill.
    pub(super) fn declined(path: &str, uri: &str, reason: &str) -> Self {
        let label = path.split('/').next().unwrap_or_default();
        let next = match reason.starts_with("dynamic") {
            true => {
                format!("the user may allow it, unverified: mount with --allow-dynamic {label}")
            }
            false => "the server's author must mend the entry".to_owned(),
        };
        Self::new(path, uri, ReadError::Denied, reason, &next)
    }

    /// A file that waits for the user's approval.
    pub(super) fn not_approved(path: &str, uri: &str, _: &str) -> Self {
        let next = format!(
            "the user may run: mount-skills approve {}",
            skill_of(path, uri)
        );
        Self::new(
            path,
            uri,
            ReadError::Denied,
            "not approved: this mount asks for an approval of each skill",
            &next,
        )
    }

    /// A file whose skill changed after it was approved.
    pub(super) fn lapsed(path: &str, uri: &str, _: &str) -> Self {
        let skill = skill_of(path, uri);
        let next = format!(
            "the user may look at it with: mount-skills diff {skill}, and then run: mount-skills approve {skill}"
        );
        Self::new(
            path,
            uri,
            ReadError::Stale,
            "the skill changed after it was approved; the approval has ended",
            &next,
        )
    }

    /// A file whose skill the user took away.
    pub(super) fn revoked(path: &str, uri: &str, _: &str) -> Self {
        let next = format!(
            "the user may allow it again: mount-skills approve {}",
            skill_of(path, uri)
        );
        Self::new(path, uri, ReadError::Denied, "revoked by the user", &next)
    }

    /// A name that the server has by now and the held entry of a skill, as it is shown, has not
    /// (HR-68).
    pub(super) fn pending(path: &str, skill: &str) -> Self {
        let next = format!(
            "run: mount-skills refresh {}, then read SKILL.md again",
            word(skill)
        );
        let reason = "the skill changed on its server after it was loaded, and this name is new";
        Self::new(path, "", ReadError::Stale, reason, &next)
    }

    /// A file that is not cached, of a held skill that changed.
    pub(super) fn held(path: &str, uri: &str) -> Self {
        let next = format!(
            "run: mount-skills refresh {}, then read SKILL.md again",
            skill_of(path, uri)
        );
        let reason = "the skill changed on its server after it was loaded, and this file was not read before that";
        Self::new(path, uri, ReadError::Stale, reason, &next)
    }

    /// The server did not answer.
    pub(super) fn unanswered(path: &str, uri: &str, e: &SourceError) -> Self {
        let (error, next) = match e {
            SourceError::TimedOut(_) => (ReadError::TimedOut, "try again, or give --timeout more"),
            SourceError::NeedsCredentials(_) => (
                ReadError::Denied,
                "it is tried again by itself when the credentials change",
            ),
            SourceError::NeedsInput => (
                ReadError::Denied,
                "use this file with a client that can answer",
            ),
            SourceError::Down(_) | SourceError::Rejected { .. } | SourceError::Malformed(_) => (
                ReadError::Down,
                "it is tried again by itself; see the server's state",
            ),
        };
        Self::new(path, uri, error, &e.to_string(), next)
    }

    /// Bytes came that are not what the entry describes; `changed` says whether the server's
    /// entry changed meanwhile.
    pub(super) fn mismatch(path: &str, uri: &str, m: &Mismatch, changed: bool) -> Self {
        let (expected, found) = m.sides();
        Self {
            expected: Some(printable(&expected, TEXT)),
            found: Some(printable(&found, TEXT)),
            ..Self::outcome(path, uri, &m.to_string(), changed)
        }
    }

    /// A dynamic skill gave more than it may.
    pub(super) fn budget(path: &str, uri: &str, m: &Mismatch) -> Self {
        let next = "a dynamic skill may give 16 MiB in all";
        Self::new(path, uri, ReadError::Denied, &m.to_string(), next)
    }

    /// The server answered a listed file with an error or a malformed reply.
    pub(super) fn rejected(path: &str, uri: &str, e: &SourceError, changed: bool) -> Self {
        Self {
            expected: Some("the content of a listed file".into()),
            found: Some(printable(&e.to_string(), TEXT)),
            ..Self::outcome(path, uri, &e.to_string(), changed)
        }
    }

    /// Two skills list the file with different digests.
    pub(super) fn disputed(path: &str, claims: &[Claim], changed: bool) -> Self {
        let uri = claims.first().map_or("", |c| &c.file.uri);
        let sides: Vec<String> = claims
            .iter()
            .map(|c| format!("{} lists {}", c.entry.uri, c.file.digest))
            .collect();
        let reason = format!(
            "the entries that list this file disagree: {}",
            sides.join("; ")
        );
        Self::outcome(path, uri, &reason, changed)
    }

    fn outcome(path: &str, uri: &str, reason: &str, changed: bool) -> Self {
        if changed {
            let reason = format!("the skill changed on its server: {reason}");
            return Self::new(
                path,
                uri,
                ReadError::Stale,
                &reason,
                "read SKILL.md again, then the file",
            );
        }
        let next = "the server's author must mend it: entry and content do not fit";
        Self::new(path, uri, ReadError::Contradiction, reason, next)
    }
}

/// The name on the command line of the skill a file most likely belongs to, as a word for a
/// shell: its path is the mount's, and a skill's name is where its SKILL.md lies.
fn skill_of(path: &str, uri: &str) -> String {
    let own = uri.ends_with("/SKILL.md");
    let cut = if own {
        path.rsplit_once('/').map(|(dir, _)| dir)
    } else {
        None
    };
    word(&spelt(cut.unwrap_or(path)))
}

/// The latest refusals of each server, one a file and error.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    latest: VecDeque<(u16, Refusal)>,
    /// Since when the lines of a server's log are counted, and how many there were.
    logged: HashMap<u16, (Instant, u32)>,
}

/// Whether a refusal is worth a line in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    /// It is new.
    New,
    /// It is new, and the last one that is logged for a while.
    TooMuch,
    /// It was told before, or too much was.
    Known,
}

impl Refusals {
    /// Adds one.
    pub(super) fn add(&mut self, slot: u16, refusal: Refusal) -> News {
        if !self.take(slot, refusal) {
            return News::Known;
        }
        let now = Instant::now();
        let (since, lines) = self.logged.entry(slot).or_insert((now, 0));
        if since.elapsed() > MINUTE {
            (*since, *lines) = (now, 0);
        }
        *lines += 1;
        match (*lines).cmp(&LINES) {
            Ordering::Less => News::New,
            Ordering::Equal => News::TooMuch,
            Ordering::Greater => News::Known,
        }
    }

    /// Takes one; whether it is another than those that are there.
    fn take(&mut self, slot: u16, refusal: Refusal) -> bool {
        let same = |r: &Refusal| r.path == refusal.path && r.error == refusal.error;
        let known = self.latest.iter_mut().find(|(s, r)| *s == slot && same(r));
        if let Some((_, known)) = known {
            let times = known.times + 1;
            *known = Refusal { times, ..refusal };
            return false;
        }
        if self.latest.iter().filter(|(s, _)| *s == slot).count() >= KEEP
            && let Some(oldest) = self.latest.iter().position(|(s, _)| *s == slot)
        {
            self.latest.remove(oldest);
        }
        self.latest.push_back((slot, refusal));
        true
    }

    /// Drops those of a server that is gone.
    pub(super) fn forget(&mut self, slot: u16) {
        self.latest.retain(|(s, _)| *s != slot);
        self.logged.remove(&slot);
    }

    /// Drops those that policy gave to readers of these files, once it lets them read.
    pub(super) fn settle(&mut self, slot: u16, uris: &HashSet<String>) {
        let policy = |r: &Refusal| matches!(r.error, ReadError::Denied | ReadError::Stale);
        self.latest
            .retain(|(s, r)| *s != slot || !policy(r) || !uris.contains(&r.uri));
    }

    pub(super) fn of(&self, slot: u16) -> Vec<Refusal> {
        self.latest
            .iter()
            .filter(|(s, _)| *s == slot)
            .map(|(_, r)| r.clone())
            .collect()
    }
}
