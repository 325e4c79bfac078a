//! The servers of a running mount: started together, changed while it is read, stopped together.
//!
//! A server that stays as it is notices nothing of a change: its session, windows and numbers are
//! left alone. One that is reached at another place is another server, with state of its own: the
//! old one goes and the new one comes. One that is the same server, reached with another
//! environment or other headers, is connected anew and keeps all else.

use super::service::{self, Stage};
use super::{Failure, log, stderr};
use crate::config::ServerSpec;
use crate::control::Reload;
use crate::domain::name::Label;
use crate::domain::text::printable;
use crate::host::report::UnusedStatus;
use crate::host::{Dynamic, Host, Server};
use crate::source::session::Session;
use crate::source::{Exchange, Listeners, Spawner, Stderr, Target, Vault};
use crate::store::append::Ring;
use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// How long the servers may take to end before the daemon goes on without them.
const STOP_PATIENCE: Duration = Duration::from_secs(4);

/// How long a skill that was named waits between tries, while its server starts.
const ADD_GAP: Duration = Duration::from_secs(1);

/// A server that shall be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    /// The server.
    pub(super) spec: ServerSpec,
    /// What becomes of its dynamic skills.
    pub(super) dynamic: Dynamic,
}

/// All that a configuration asks of the servers.
#[derive(Debug, Default)]
pub(super) struct Wish {
    pub(super) servers: Vec<Wanted>,
    /// Skills that are not listed: the server, and the URI of SKILL.md.
    pub(super) skills: Vec<(Label, String)>,
    /// Servers that are declared and cannot be used.
    pub(super) unused: Vec<UnusedStatus>,
    /// Settings that have changed and count from the next start on.
    pub(super) later: Vec<String>,
}

/// Says what is wished by now; the reason, if nobody can say.
pub(super) type Look = Arc<dyn Fn() -> Result<Wish, String> + Send + Sync>;
/// Makes what the host is told of a server: it opens what is kept of it.
pub(super) type Open = Arc<dyn Fn(&Wanted) -> Server + Send + Sync>;

/// What the servers need of the mount that they belong to.
pub(super) struct Ground {
    pub(super) host: Arc<Host>,
    pub(super) spawner: Spawner,
    pub(super) start_timeout: Duration,
    pub(super) open: Open,
    /// Where the state is in which what servers write to stderr is kept.
    pub(super) state: Option<PathBuf>,
    /// Where the login for a server is kept.
    pub(super) vault: fn(&ServerSpec) -> Option<Arc<dyn Vault>>,
}

/// A server that is there.
struct Member {
    slot: u16,
    wanted: Wanted,
    session: Session,
}

/// All servers of the mount.
pub(super) struct Servers {
    ground: Ground,
    members: Vec<Member>,
    /// The skills that were asked for by name.
    skills: Vec<(Label, String)>,
}

/// What a change comes to.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Changes {
    added: Vec<String>,
    removed: Vec<String>,
    replaced: Vec<String>,
    reconnected: Vec<String>,
    unchanged: usize,
    /// Settings that count from the next start on.
    later: Vec<String>,
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("added", &self.added),
            ("removed", &self.removed),
            ("replaced", &self.replaced),
            ("connected anew", &self.reconnected),
        ];
        for (what, labels) in parts.into_iter().filter(|(_, labels)| !labels.is_empty()) {
            write!(f, "{what}: {}; ", labels.join(", "))?;
        }
        write!(f, "{} unchanged", self.unchanged)?;
        match self.later.is_empty() {
            true => Ok(()),
            false => write!(f, "; from the next start on: {}", self.later.join(", ")),
        }
    }
}

impl Changes {
    /// What leads from the servers that are there to those that shall be.
    fn between<'a>(there: impl Iterator<Item = &'a Wanted>, wanted: &[Wanted]) -> Self {
        let mut changes = Self::default();
        let mut known = BTreeSet::new();
        for old in there {
            let label = &old.spec.label;
            known.insert(label.as_str());
            let new = wanted.iter().find(|w| w.spec.label == *label);
            let row = match new {
                None => &mut changes.removed,
                Some(new) if new.spec.identity != old.spec.identity => &mut changes.replaced,
                // What is shown of it is another thing.
                Some(new) if new.dynamic != old.dynamic => &mut changes.replaced,
                Some(new) if new.spec.target != old.spec.target => &mut changes.reconnected,
                Some(_) => {
                    changes.unchanged += 1;
                    continue;
                }
            };
            row.push(label.to_string());
        }
        let labels = wanted.iter().map(|w| w.spec.label.as_str());
        let added = labels.filter(|label| !known.contains(label));
        changes.added = added.map(str::to_owned).collect();
        changes
    }
}

impl Servers {
    /// Starts the servers that the host has from the beginning.
    pub(super) fn start(ground: Ground, wish: Wish) -> Self {
        let numbered = (1u16..).zip(wish.servers);
        let members = numbered.map(|(slot, wanted)| ground.connect(slot, wanted));
        let members = members.collect();
        ground.host.leave_out(wish.unused);
        wish.skills.iter().for_each(|named| ground.ask_for(named));
        Self {
            ground,
            members,
            skills: wish.skills,
        }
    }

    /// Makes the servers those that are wished: first some go, then others come.
    async fn change(&mut self, wish: Wish) -> Changes {
        let mut wanted = wish.servers;
        wanted.iter_mut().for_each(|new| self.ground.settle(new));
        let mut changes = Changes::between(self.members.iter().map(|m| &m.wanted), &wanted);
        let goes = |member: &Member| {
            let label = member.wanted.spec.label.as_str();
            let mut gone = changes.removed.iter().chain(&changes.replaced);
            gone.any(|gone| gone == label)
        };
        let members = std::mem::take(&mut self.members).into_iter();
        let (gone, stay): (Vec<_>, Vec<_>) = members.partition(goes);
        self.members = stay;
        let mut ends = Vec::new();
        for Member { slot, session, .. } in gone {
            self.ground.host.leave(slot).await;
            ends.push(session);
        }
        stop(ends).await;
        for new in wanted {
            self.take_in(new).await;
        }
        let came = |label: &Label| {
            let mut came = changes.added.iter().chain(&changes.replaced);
            came.any(|c| c == label.as_str())
        };
        for named in &wish.skills {
            if came(&named.0) || !self.skills.contains(named) {
                self.ground.ask_for(named);
            }
        }
        self.skills = wish.skills;
        self.ground.host.leave_out(wish.unused);
        changes.later = wish.later;
        changes
    }

    /// Starts a server that is not there, and tells one that is how it is reached now.
    async fn take_in(&mut self, new: Wanted) {
        let label = &new.spec.label;
        let mut there = self.members.iter_mut();
        if let Some(member) = there.find(|m| m.wanted.spec.label == *label) {
            if member.wanted.spec.target != new.spec.target {
                member.session.retarget(new.spec.target.clone());
            }
            member.wanted = new;
            return;
        }
        let (open, wanted) = (Arc::clone(&self.ground.open), new.clone());
        let server = tokio::task::spawn_blocking(move || open(&wanted)).await;
        let joined = async { self.ground.host.join(server.ok()?).await };
        match joined.await {
            Some(slot) => self.members.push(self.ground.connect(slot, new)),
            None => tracing::warn!("{label}: it cannot be taken in; restart the mount"),
        }
    }

    /// Takes requests to look again until it is told to stop, and then stops the servers.
    pub(super) fn run(self, look: Option<Look>, reloads: mpsc::Receiver<Reload>) -> Running {
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(self.serve(look, reloads, stopped));
        Running { stop, task }
    }

    async fn serve(
        mut self,
        look: Option<Look>,
        mut reloads: mpsc::Receiver<Reload>,
        mut stopped: oneshot::Receiver<()>,
    ) {
        loop {
            let reload = tokio::select! {
                biased;
                _ = &mut stopped => break,
                reload = reloads.recv() => reload,
            };
            let Some(reload) = reload else {
                let _ = stopped.await;
                break;
            };
            log::reopen();
            service::tell(Stage::Reloading);
            let answer = self.reload(look.clone()).await;
            let (Ok(status) | Err(status)) = &answer;
            service::tell(Stage::Ready(&printable(status, 1024)));
            let _ = reload.answer.send(answer);
        }
        stop(self.members.into_iter().map(|m| m.session).collect()).await;
    }

    async fn reload(&mut self, look: Option<Look>) -> Result<String, String> {
        let look = look.ok_or_else(|| {
            "the servers were named on the command line, so there is no file to read again; \
             to change them, unmount and mount anew"
                .to_owned()
        })?;
        let wish = tokio::task::spawn_blocking(move || look()).await;
        let wish = wish.map_err(|e| e.to_string()).and_then(|wish| wish);
        let wish = wish.map_err(|why| format!("all stays as it is: {why}"))?;
        Ok(self.change(wish).await.to_string())
    }
}

impl Ground {
    /// Whether the kernel tells of opened files was settled when the first one was opened.
    fn settle(&self, wanted: &mut Wanted) {
        if wanted.dynamic == Dynamic::Allowed && !self.host.has_dynamic() {
            wanted.dynamic = Dynamic::Declined;
            tracing::warn!(
                "{}: dynamic skills can be allowed only when the mount starts; until then they are declined",
                wanted.spec.label
            );
        }
    }

    /// Adds a skill that was named, when its server answers.
    fn ask_for(&self, (label, uri): &(Label, String)) {
        tokio::spawn(add(Arc::clone(&self.host), label.clone(), uri.clone()));
    }

    /// Keeps what a server of ours writes to stderr, if there is a place for it.
    fn keep_stderr(&self, spec: &ServerSpec) -> Option<Stderr> {
        let (state, Target::Command(_)) = (self.state.as_ref()?, &spec.target) else {
            return None;
        };
        let label = &spec.label;
        let ring = Ring::open(state, label, &spec.identity);
        let ring = ring.inspect_err(|e| tracing::warn!("{label}: its stderr is not kept: {e}"));
        Some(stderr::keep(ring.ok()?, label.to_string()))
    }

    fn connect(&self, slot: u16, wanted: Wanted) -> Member {
        let (events, metrics) = (Arc::clone(&self.host), Arc::clone(&self.host));
        let label = wanted.spec.label.clone();
        let listeners = Listeners {
            events: Arc::new(move |event| events.event(slot, event)),
            exchanges: Arc::new(move |e: Exchange| {
                metrics.asked(&label, e.method, e.outcome, e.took);
            }),
            stderr: self.keep_stderr(&wanted.spec),
        };
        let session = Session::start(
            &wanted.spec.label,
            wanted.spec.target.clone(),
            (self.vault)(&wanted.spec),
            self.spawner.clone(),
            wanted.spec.start_timeout.unwrap_or(self.start_timeout),
            listeners,
        );
        self.host.attach(slot, session.source());
        Member {
            slot,
            wanted,
            session,
        }
    }
}

/// Adds a skill that was named as soon as its server answers.
async fn add(host: Arc<Host>, label: Label, uri: String) {
    // The server that it was named for: another one may have the label by the time it answers.
    let number = host.number(&label);
    while host.number(&label) == number {
        match host.add(label.as_str(), &uri).await {
            Ok(_) => return,
            Err(e) if host.is_waiting(&label) => {
                tracing::debug!("{e}");
                tokio::time::sleep(ADD_GAP).await;
            }
            Err(e) => {
                tracing::warn!("{e}");
                return;
            }
        }
    }
}

/// Stops servers together, for as long as that may take.
async fn stop(sessions: Vec<Session>) {
    let stops: Vec<_> = sessions
        .into_iter()
        .map(|s| tokio::spawn(s.stop()))
        .collect();
    let stopped = async {
        for stop in stops {
            let _ = stop.await;
        }
    };
    let _ = tokio::time::timeout(STOP_PATIENCE, stopped).await;
}

/// The servers at work.
pub(super) struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Running {
    /// Stops them; a change that is under way is finished first.
    pub(super) async fn stop(self) {
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

/// A request to look again, as its maker waits for it.
pub(super) async fn ask(reloads: &mpsc::Sender<Reload>) -> Result<String, Failure> {
    let (answer, answered) = oneshot::channel();
    let gone = || Failure::Failed("the mount is ending".into());
    let sent = reloads.send(Reload { answer }).await;
    sent.map_err(|_| gone())?;
    let answer = answered.await.map_err(|_| gone())?;
    answer.map_err(Failure::Failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(label: &str, target: &str, env: &[(&str, &str)]) -> Wanted {
        let mut spec = ServerSpec::parse(&format!("{label}={target}"), "p", &|_| None).unwrap();
        if let crate::source::Target::Command(launch) = &mut spec.target {
            let pairs = env.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned()));
            launch.env.extend(pairs);
        }
        let dynamic = Dynamic::Declined;
        Wanted { spec, dynamic }
    }

    #[test]
    fn what_changed_is_told_by_label_identity_and_target() {
        let there = [
            wanted("stays", "a", &[]),
            wanted("goes", "b", &[]),
            wanted("moves", "c", &[]),
            wanted("turns", "d", &[("T", "1")]),
        ];
        let then = [
            wanted("new", "e", &[]),
            wanted("moves", "c2", &[]),
            wanted("turns", "d", &[("T", "2")]),
            wanted("stays", "a", &[]),
        ];
        let changes = Changes::between(there.iter(), &then);
        assert_eq!(
            changes.to_string(),
            "added: new; removed: goes; replaced: moves; connected anew: turns; 1 unchanged"
        );
        let none = Changes::between(then.iter(), &then);
        assert_eq!(none.to_string(), "4 unchanged");
        let allowed = Wanted {
            dynamic: Dynamic::Allowed,
            ..wanted("stays", "a", &[])
        };
        let changes = Changes::between(there[..1].iter(), &[allowed]);
        assert_eq!(changes.replaced, ["stays"]);
    }
}
