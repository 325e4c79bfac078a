//! The MCP side: the only folder that names rmcp.
//!
//! [`Source`] is what the host sees of a server: questions with a deadline, answers that are
//! either parsed ([`Entry`]) or [`Untrusted`]. What a server publishes on its own account, its
//! state and its listings, arrives as [`Event`]s.
//!
//! **Invariants:** a server's message is bounded before it is held, parsed entry by entry, and
//! never answers for another server. A question that failed is never reported as "no such
//! thing": only the server's own -32602 says that.

mod auth;
pub mod listing;
mod pace;
pub mod session;
pub mod sign_in;
mod transport;
pub mod wire;

use crate::domain::manifest::{Declined, Entry};
use crate::domain::verify::Untrusted;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use auth::{Secret, Stamp, Token, Vault};
pub use transport::{Endpoint, GroupWatch, Launch, Spawner, Target, Written, confine, decode_line};
pub use wire::{ChildKind, DirChild};

/// An answer that is on its way.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, SourceError>> + Send + 'a>>;

/// One MCP server.
pub trait Source: Send + Sync + 'static {
    /// `skills/get`: the current entry of one skill, by the URI of its SKILL.md.
    fn get<'a>(&'a self, uri: &'a str, deadline: Instant) -> Answer<'a, Result<Entry, Declined>>;

    /// `resources/read`: the content of one file, whole, unchecked. `size` is what the entry
    /// says; a reply much longer than that is refused.
    fn read<'a>(&'a self, uri: &'a str, size: u64, deadline: Instant) -> Answer<'a, Untrusted>;

    /// `skills/list`, whole: every entry that the server lists.
    fn list(&self, deadline: Instant) -> Answer<'_, Listing>;

    /// `resources/directory/read`, whole: the children of a directory resource. Nothing is sent to
    /// a server that did not declare it (HR-03).
    fn read_directory<'a>(&'a self, uri: &'a str, deadline: Instant) -> Answer<'a, Vec<DirChild>>;

    /// Asks for a new listing, soon; it arrives as an [`Event`]. Returns at once.
    fn refresh(&self);

    /// What `status` shows of the connection.
    fn figures(&self) -> Figures;
}

/// Counts and texts of a connection, for `status`.
#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
pub struct Figures {
    /// Requests sent, by method.
    pub requests: std::collections::BTreeMap<String, u64>,
    /// How often the server was started or connected to.
    pub connects: u64,
    /// Lines on stdout that were no message.
    pub noise: u64,
    /// The last of what the server wrote to stderr, not escaped.
    pub stderr: String,
}

/// Why a question has no answer, by what the caller does next.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The server cannot be reached: serve what is cached.
    #[error("the server cannot be reached: {0}")]
    Down(String),
    /// The server lets nobody in without other credentials than it was shown: serve what is cached.
    #[error("the server needs credentials: {0}")]
    NeedsCredentials(String),
    /// The deadline passed: give up this time.
    #[error("no answer within the deadline of {:.1} s", .0.as_secs_f64())]
    TimedOut(Duration),
    /// The server answered with an error: ask whether the skill changed.
    #[error("the server answered with error {code}: {message}")]
    Rejected {
        /// The JSON-RPC code.
        code: i64,
        /// The server's text, not escaped.
        message: String,
    },
    /// The reply has not the shape that the protocol gives it: as a mismatch.
    #[error("the server's reply is malformed: {0}")]
    Malformed(String),
    /// The server wants something from a user first; a mount cannot give it.
    #[error("the server asks for input, which a mount cannot give")]
    NeedsInput,
}

impl SourceError {
    /// Its name in figures.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Down(_) => "down",
            Self::NeedsCredentials(_) => "needs-credentials",
            Self::TimedOut(_) => "timed-out",
            Self::Rejected { .. } => "rejected",
            Self::Malformed(_) => "malformed",
            Self::NeedsInput => "needs-input",
        }
    }

    /// Whether it is the server's word that it serves no such thing (HR-48).
    pub fn is_unknown(&self) -> bool {
        matches!(
            self,
            Self::Rejected {
                code: -32602 | -32002,
                ..
            }
        )
    }
}

/// What a server is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Link {
    /// The first connection is being made.
    Starting,
    /// Connected.
    Ready(Peer),
    /// Not reachable; a new try follows.
    Down {
        /// Why, for a person. Texts of the server in it are escaped.
        reason: String,
    },
    /// Reachable, and closed to what it was shown; a new try follows, at once when there is
    /// something else to show.
    NeedsCredentials {
        /// What it is about and what helps, for a person. Texts of the server in it are escaped.
        reason: String,
    },
}

/// What a connected server says of itself. Texts are not escaped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The protocol revision in use.
    pub version: String,
    /// How the connection was made.
    pub era: Era,
    /// Name and version that the server gives itself: text, never a key (HR-12).
    pub name: String,
    /// Whether it declared the Skills extension.
    pub skills: bool,
    /// Whether it declared `directoryRead: true` (HR-03).
    pub directory_read: bool,
    /// Whether it declared `resources`, as it must (HR-04).
    pub resources: bool,
    /// Its instructions.
    pub instructions: Option<String>,
}

/// How a connection was made (HR-05).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Era {
    /// `server/discover`, revision 2026-07-28 and later.
    Discover,
    /// The older `initialize` handshake.
    Initialize,
}

impl Era {
    /// Its name in `status`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Discover => "discover",
            Self::Initialize => "initialize",
        }
    }
}

/// A listing as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// The valid entries, one a URI.
    pub entries: Vec<Arc<Entry>>,
    /// What was declined, with reasons.
    pub declined: Vec<Declined>,
    /// Why it is not whole, if it is not: then absence proves nothing.
    pub truncated: Option<String>,
    /// For how long the server thinks it holds.
    pub ttl: Duration,
}

/// What a server's session tells the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The connection changed.
    Link(Link),
    /// A listing arrived.
    Listed(Listing),
    /// A listing was asked for and did not come.
    ListFailed(SourceError),
}

/// Where a session's events go.
pub type Events = Arc<dyn Fn(Event) + Send + Sync>;

/// A request that came to something, in words of ours: its method, what it came to, and how long it
/// took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange {
    /// The method.
    pub method: &'static str,
    /// What it came to.
    pub outcome: &'static str,
    /// How long it took.
    pub took: Duration,
}

/// Takes what a child writes to stderr, as it comes. It must not wait for anything.
pub type Stderr = Arc<dyn Fn(&[u8]) + Send + Sync>;

/// Who is told what a session does.
#[derive(Clone)]
pub struct Listeners {
    /// Of what it publishes.
    pub events: Events,
    /// Of each request.
    pub exchanges: Arc<dyn Fn(Exchange) + Send + Sync>,
    /// Of what a child writes to stderr.
    pub stderr: Option<Stderr>,
}

impl std::fmt::Debug for Listeners {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Listeners")
    }
}
