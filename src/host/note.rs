//! How content came to its reader, and what is noted of it: in the figures, and in the audit trail if
//! there is one.

use super::audit::{Audit, Outcome, Process, Sink};
use super::{Host, NodeSource, ReadError, Tree, Verified, report, unix_now};
use crate::domain::digest::Digest;
use crate::domain::name::Label;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where content was when it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// In our memory.
    Memory,
    /// On the disk.
    Disk,
    /// At its server.
    Server,
}

impl Way {
    /// Its name in figures and in the audit trail.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::Server => "server",
        }
    }
}

/// Whether a read opened a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opened {
    /// It did.
    Window,
    /// It was open, or there are none.
    Nothing,
}

/// Content for a reader, and how it came.
#[derive(Debug, Clone)]
pub struct Served {
    /// The content.
    pub file: Verified,
    pub(super) way: Way,
    pub(super) opened: Opened,
    /// What it was checked against; none for texts of ours.
    pub(super) digest: Option<Digest>,
}

impl Served {
    /// A text of ours.
    pub(super) fn ours(text: Verified) -> Self {
        Self {
            file: text,
            way: Way::Memory,
            opened: Opened::Nothing,
            digest: None,
        }
    }

    /// What the read comes to, for which so many bytes are sent.
    pub fn answer(&self, sent: usize) -> Answer {
        Answer {
            way: self.way,
            opened: self.opened,
            digest: self.digest,
            size: self.file.bytes().len() as u64,
            sent,
        }
    }
}

/// What a read came to, for the figures and the audit trail.
#[derive(Debug, Clone, Copy)]
pub struct Answer {
    way: Way,
    opened: Opened,
    digest: Option<Digest>,
    size: u64,
    sent: usize,
}

impl Answer {
    /// That of a file of a dynamic skill.
    pub fn dynamic(way: Way, size: u64, sent: usize) -> Self {
        Self {
            way,
            opened: Opened::Nothing,
            digest: None,
            size,
            sent,
        }
    }
}

/// A read, and who waits for it since when.
#[derive(Debug)]
pub struct Question {
    ino: u64,
    began: Instant,
    process: Option<Process>,
}

impl Host {
    /// Has an audit trail written, from now on.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn audit(&self, sink: Sink) -> std::io::Result<()> {
        let _ = self.audit.set(Audit::start(sink)?);
        Ok(())
    }

    /// A thread of this number asks for the content of a file.
    pub fn question(&self, ino: u64, uid: u32, gid: u32, thread: u32) -> Question {
        let audited = self.audit.get();
        Question {
            ino,
            began: Instant::now(),
            process: audited.map(|_| Process::of(uid, gid, thread)),
        }
    }

    /// Takes note of what a reader is told.
    pub fn note(&self, question: Question, told: Result<Answer, ReadError>) {
        let Question {
            ino,
            began,
            process,
        } = question;
        // Texts of ours are nobody's.
        let Some(s) = self.slot(Tree::slot_of(ino)) else {
            return;
        };
        let label = s.server.label.as_str();
        match told {
            Ok(a) => self.metrics.served(label, a.way, a.sent, began.elapsed()),
            Err(e) => self.metrics.failed(label, e),
        }
        let (Some(audit), Some(process)) = (self.audit.get(), process) else {
            return;
        };
        let is_new = audit.is_new(&process, ino, told.err());
        let opened = told.is_ok_and(|a| a.opened == Opened::Window);
        if !is_new && !opened {
            return;
        }
        let tree = self.tree();
        let uri = match tree.source(ino) {
            Some(NodeSource::Skill(claims)) => claims.first().map(|c| Arc::clone(&c.file.uri)),
            Some(NodeSource::Dynamic(_, uri)) => Some(uri),
            Some(NodeSource::Declined(d)) => d.uri.as_deref().map(Arc::from),
            Some(NodeSource::Text(_)) | None => None,
        };
        let uri = uri.as_deref().unwrap_or_default();
        let path = tree.path(ino).unwrap_or_default();
        let outcome = match told {
            Ok(a) => Outcome::Served {
                digest: a.digest.map(|d| d.to_string()),
                size: a.size,
                source: a.way.as_str().into(),
                opened_window: a.opened == Opened::Window,
            },
            Err(error) => Outcome::Refused {
                errno: error.errno_name().into(),
                error,
            },
        };
        audit.put(process, unix_now(), (label, uri, &path), outcome);
    }

    /// A request to a server came to something, in our own words.
    pub fn asked(
        &self,
        label: &Label,
        method: &'static str,
        outcome: &'static str,
        took: Duration,
    ) {
        // One that has left may still be busy.
        if self.number(label).is_some() {
            self.metrics.asked(label.as_str(), method, outcome, took);
        }
    }

    /// All figures, as text for Prometheus; the upcalls are the kernel side's.
    pub fn metrics(&self, upcalls: BTreeMap<String, u64>) -> String {
        let status = report::Status {
            upcalls,
            ..self.status()
        };
        self.metrics.text(&status, self.memory.bytes())
    }
}
