//! The state of one skill, and the answer to the one question: may this read go on, and under
//! which entry?
//!
//! A [`Skill`] holds the server's newest word on it, the entry of the acting window if one is
//! open, and the user's verdict. [`Skill::shown`] says what the tree shows of it; the tree
//! carries that to each file as a [`Claim`], and [`decide`] answers for a file from all claims
//! on it. Pure: nothing here waits, writes or knows the time.
//!
//! **Invariants**
//! - While a window is open, the held entry is what is shown, whatever the server publishes
//!   (HR-71, HR-72); only [`Skill::release`] and what implies it ends the window.
//! - An approval is bound to one set. Another set, once seen, ends it for good: the first set
//!   coming back does not revive it (HR-107, HR-108).
//! - Bytes must satisfy every held entry that lists the file, or, if none is held, every entry
//!   that may be read; where they disagree only that file fails (HR-37).
//! - A nested skill is supporting content of the outer one. Its frontmatter is not even compared
//!   until the user has consented to it as a skill of its own (HR-101, HR-102).

use super::manifest::{Content, Declined, Entry, FileEntry, SetId};
use super::verify::Expected;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// When acting windows open and what they do to a changed skill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Hold {
    /// A window stays until it is released.
    #[default]
    Release,
    /// …or until the SKILL.md of the changed skill is read again: a new load.
    Reload,
    /// No windows: for people who browse.
    None,
}

/// What it takes to read a skill's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Approval {
    /// Naming the server is the user's word to read its skills.
    #[default]
    Server,
    /// Each skill needs a stored approval of its exact set.
    Each,
}

/// The rules of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Policy {
    /// Windows.
    pub hold: Hold,
    /// Approvals.
    pub approval: Approval,
}

/// What an approval covers beyond reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// Reading.
    Read,
    /// Reading, and the execution that an agent's runtime asks `gate` about (HR-98).
    ReadAndExecute,
}

/// The user's word on a skill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// This set may be used.
    Approved(SetId, Scope),
    /// There was an approval, of this set, and another set was seen since.
    Lapsed(SetId),
    /// The user took the skill away.
    Revoked,
}

/// The server's newest word on a skill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Known {
    /// Its entry.
    Entry(Arc<Entry>),
    /// Its entry cannot be loaded.
    Declined(Arc<Declined>),
    /// The server no longer serves it.
    Withdrawn,
}

/// How we came to know a skill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// From a listing: a whole listing without it withdraws it.
    Listed,
    /// By its URI: listings say nothing about it (HR-46).
    Named,
}

/// One skill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skill {
    known: Known,
    held: Option<Arc<Entry>>,
    verdict: Option<Verdict>,
    /// The entry that was approved in this run, to compare with what came after it.
    approved: Option<Arc<Entry>>,
    origin: Origin,
}

/// Whether a skill's content may be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It may.
    Open,
    /// It waits for the user's approval.
    NotApproved,
    /// It was approved, and its set changed.
    Lapsed,
    /// The user revoked it.
    Revoked,
}

/// Whether the user approved a skill as a skill of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consent {
    /// Yes, its shown set.
    Given,
    /// No.
    Missing,
}

/// Whether an acting window is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// No.
    Closed,
    /// Yes, and the server still publishes the held entry.
    Open,
    /// Yes, and the server publishes something else: what is not cached cannot be had.
    Changed,
}

/// What the tree shows of a skill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// The entry in force.
    pub entry: Arc<Entry>,
    /// What the server publishes now, if that is another entry than the held one.
    pub pending: Option<Arc<Entry>>,
    /// The entry whose SKILL.md is shown in place of the held one: reading it loads that entry.
    pub reload: Option<Arc<Entry>>,
    /// Whether its content may be read.
    pub standing: Standing,
    /// Whether it is consented to as a skill of its own.
    pub consent: Consent,
    /// Its acting window.
    pub window: Window,
}

/// A set moved between what the user was shown and what the user approved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the skill changed meanwhile")]
pub struct Moved;

impl Skill {
    /// A skill as the server describes it now.
    pub fn new(known: Known, origin: Origin) -> Self {
        Self {
            known,
            held: None,
            verdict: None,
            approved: None,
            origin,
        }
    }

    /// Takes up the window and the verdict of an earlier run. What the server is known to
    /// publish may have moved since: an approval of another set has lapsed.
    pub fn restore(&mut self, held: Option<Arc<Entry>>, verdict: Option<Verdict>) {
        self.held = held;
        self.verdict = verdict;
        self.lapse();
    }

    /// The server's newest word.
    pub fn known(&self) -> &Known {
        &self.known
    }

    /// The newest entry that can be loaded.
    pub fn newest(&self) -> Option<&Arc<Entry>> {
        match &self.known {
            Known::Entry(entry) => Some(entry),
            Known::Declined(_) | Known::Withdrawn => None,
        }
    }

    /// The entry of the acting window.
    pub fn held(&self) -> Option<&Arc<Entry>> {
        self.held.as_ref()
    }

    /// What a change is measured against: the held entry, or the one that was approved.
    pub fn reference(&self) -> Option<&Arc<Entry>> {
        self.held.as_ref().or(self.approved.as_ref())
    }

    /// The user's verdict.
    pub fn verdict(&self) -> Option<Verdict> {
        self.verdict
    }

    /// How it came to be known.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Notes that the user named it by its URI.
    pub fn name(&mut self) {
        self.origin = Origin::Named;
    }

    /// The server publishes something, the same or another.
    pub fn publish(&mut self, known: Known) {
        // The same again need not take up memory twice: tree and windows have what was there.
        if self.known != known {
            self.known = known;
        }
        self.lapse();
    }

    /// Ends an approval whose set is no longer the published one. A withdrawn skill has no other
    /// set, so its approval stays.
    fn lapse(&mut self) {
        let Some(Verdict::Approved(set, _)) = self.verdict else {
            return;
        };
        let gone = match &self.known {
            Known::Entry(entry) => entry.set() != Some(set),
            Known::Declined(_) => true,
            Known::Withdrawn => false,
        };
        if gone {
            self.verdict = Some(Verdict::Lapsed(set));
        }
    }

    /// Whether nothing is left of it: not published, not held.
    pub fn is_gone(&self) -> bool {
        self.known == Known::Withdrawn && self.held.is_none()
    }

    /// Whether nothing is left of it and nobody judged it.
    pub fn is_forgotten(&self) -> bool {
        self.is_gone() && self.verdict.is_none()
    }

    /// Whether the window's entry is not what the server publishes.
    pub fn is_changed(&self) -> bool {
        self.held
            .as_ref()
            .is_some_and(|held| self.newest() != Some(held))
    }

    /// What the tree shows of it; nothing if it is declined or gone and not held.
    pub fn shown(&self, policy: Policy) -> Option<Shown> {
        let entry = self.held.as_ref().or(self.newest())?;
        let window = match (&self.held, self.is_changed()) {
            (None, _) => Window::Closed,
            (Some(_), false) => Window::Open,
            (Some(_), true) => Window::Changed,
        };
        let pending = self.newest().filter(|_| window == Window::Changed);
        let approved =
            matches!(self.verdict, Some(Verdict::Approved(set, _)) if entry.set() == Some(set));
        let standing = match (self.verdict, policy.approval) {
            (Some(Verdict::Revoked), _) => Standing::Revoked,
            (_, Approval::Server) => Standing::Open,
            _ if approved => Standing::Open,
            (Some(Verdict::Lapsed(_) | Verdict::Approved(..)), Approval::Each) => Standing::Lapsed,
            (None, Approval::Each) => Standing::NotApproved,
        };
        Some(Shown {
            entry: Arc::clone(entry),
            pending: pending.cloned(),
            reload: pending.filter(|_| policy.hold == Hold::Reload).cloned(),
            standing,
            consent: if approved {
                Consent::Given
            } else {
                Consent::Missing
            },
            window,
        })
    }

    /// Content of the skill was read under an entry: opens the window, or, under
    /// [`Hold::Reload`], moves it. False if that entry is not one it can be read under any more.
    pub fn load(&mut self, entry: &Arc<Entry>, hold: Hold) -> bool {
        let current = self.held.as_ref() == Some(entry);
        let newest = self.newest() == Some(entry);
        match hold {
            Hold::None => newest || current,
            _ if current => true,
            Hold::Release if self.held.is_none() && newest => {
                self.held = Some(Arc::clone(entry));
                true
            }
            Hold::Reload if newest => {
                self.held = Some(Arc::clone(entry));
                true
            }
            Hold::Release | Hold::Reload => false,
        }
    }

    /// Ends the window.
    pub fn release(&mut self) {
        self.held = None;
    }

    /// Approves the set that the user was shown, and moves on to it.
    ///
    /// # Errors
    /// The newest entry has another set, or none (HR-110).
    pub fn approve(&mut self, set: SetId, scope: Scope) -> Result<(), Moved> {
        if self.newest().and_then(|e| e.set()) != Some(set) {
            return Err(Moved);
        }
        if self.is_changed() {
            self.release();
        }
        self.approved = self.newest().cloned();
        self.verdict = Some(Verdict::Approved(set, scope));
        Ok(())
    }

    /// Takes the skill away from readers.
    pub fn revoke(&mut self) {
        self.verdict = Some(Verdict::Revoked);
    }

    /// Whether running what the skill says was approved, for the set in force (HR-98).
    pub fn may_execute(&self, policy: Policy) -> bool {
        let shown = self.shown(policy);
        let ready =
            shown.is_some_and(|s| s.standing == Standing::Open && s.consent == Consent::Given);
        ready
            && matches!(
                self.verdict,
                Some(Verdict::Approved(_, Scope::ReadAndExecute))
            )
    }

    /// Its state, in a word for status and catalog.
    pub fn state(&self, policy: Policy) -> &'static str {
        let Some(shown) = self.shown(policy) else {
            return match &self.known {
                Known::Declined(_) => "declined",
                Known::Withdrawn | Known::Entry(_) => "withdrawn",
            };
        };
        match (shown.standing, shown.window) {
            _ if shown.entry.content == Content::Dynamic => "dynamic",
            (Standing::Revoked, _) => "revoked",
            (Standing::NotApproved, _) => "needs-approval",
            (Standing::Lapsed, _) => "changed, needs-approval",
            (Standing::Open, Window::Changed) if self.known == Known::Withdrawn => {
                "changed (withdrawn)"
            }
            (Standing::Open, Window::Changed) => "changed",
            (Standing::Open, Window::Open) => "held",
            (Standing::Open, Window::Closed) => "listed",
        }
    }
}

/// One entry's word on a file.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The skill that lists the file, as it is shown.
    pub shown: Arc<Shown>,
    /// The entry whose row this is: the shown one, or the one that reading it would load.
    pub entry: Arc<Entry>,
    /// The row.
    pub file: FileEntry,
    /// Whether the skill counts as one of its own here, so that its frontmatter is compared.
    pub role: Role,
}

/// What a skill is in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A skill.
    Skill,
    /// A nested skill nobody consented to: supporting content of the outer one.
    Supporting,
}

/// Where the bytes of a file may come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum From {
    /// The cache or the server.
    Anywhere,
    /// The cache: the skill is held and changed (HR-75).
    CacheOnly,
}

/// The answer to a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Serve bytes that match this; reading them loads these entries.
    Serve(Expected, From, Vec<Arc<Entry>>),
    /// Two entries that list the file disagree about it: these skills, by URI.
    Disagree(Arc<str>, Arc<str>),
    /// No skill that lists it may be read.
    Refuse(Standing),
}

/// The claims that bytes must satisfy: those of held entries, or all if none is held.
fn binding<'a>(claims: impl Iterator<Item = &'a Claim> + Clone) -> Vec<&'a Claim> {
    let held: Vec<&Claim> = claims
        .clone()
        .filter(|c| c.shown.window != Window::Closed)
        .collect();
    if held.is_empty() {
        claims.collect()
    } else {
        held
    }
}

/// Whether two rows describe the same bytes.
fn same_bytes(a: &FileEntry, b: &FileEntry) -> bool {
    a.digest == b.digest && a.size == b.size
}

/// Two skills that disagree about a file, by URI.
type Dispute = (Arc<str>, Arc<str>);

/// What these claims say the file is, whoever may read it.
fn expected(claims: &[&Claim], binding: &[&Claim]) -> Option<Result<Expected, Dispute>> {
    let (first, rest) = binding.split_first()?;
    if let Some(other) = rest.iter().find(|c| !same_bytes(&c.file, &first.file)) {
        return Some(Err((first.entry.uri.clone(), other.entry.uri.clone())));
    }
    let own = claims
        .iter()
        .find(|c| c.entry.uri == c.file.uri && c.role == Role::Skill);
    Some(Ok(Expected {
        uri: first.file.uri.clone(),
        digest: first.file.digest,
        size: first.file.size,
        frontmatter: own.map(|c| c.entry.frontmatter.clone()),
    }))
}

/// What a file is, by the claims that may be read, or by all if none may: the same answer, the
/// same inode. None while they disagree. The size is there in any case, for `stat`: it is that of
/// the bytes that [`decide`] would serve, since the kernel cuts a read at it.
pub fn identity(claims: &[Claim]) -> (Option<Expected>, u64) {
    let open = open(claims);
    let judged = if open.is_empty() {
        claims.iter().collect()
    } else {
        open
    };
    let binding = binding(judged.iter().copied());
    let size = binding.first().map_or(0, |c| c.file.size);
    (expected(&judged, &binding).and_then(Result::ok), size)
}

/// The claims of skills that may be read.
fn open(claims: &[Claim]) -> Vec<&Claim> {
    claims
        .iter()
        .filter(|c| c.shown.standing == Standing::Open)
        .collect()
}

/// Decides from all claims on one file; none if there is no claim.
pub fn decide(claims: &[Claim]) -> Option<Decision> {
    let open = open(claims);
    if open.is_empty() {
        let standings = || claims.iter().map(|c| c.shown.standing);
        let lapsed = standings().find(|s| *s == Standing::Lapsed);
        return lapsed.or_else(|| standings().next()).map(Decision::Refuse);
    }
    let binding = binding(open.iter().copied());
    let expected = match expected(&open, &binding)? {
        Ok(expected) => expected,
        Err((a, b)) => return Some(Decision::Disagree(a, b)),
    };
    let first = binding.first()?;
    let loads = open.iter().filter(|c| same_bytes(&c.file, &first.file));
    let loads = loads.map(|c| Arc::clone(&c.entry)).collect();
    // A row of the entry that a read would load is not under the changed window.
    let frozen = |c: &&Claim| c.shown.window == Window::Changed && c.entry == c.shown.entry;
    let from = if binding.iter().any(frozen) {
        From::CacheOnly
    } else {
        From::Anywhere
    };
    Some(Decision::Serve(expected, from, loads))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::digest::Digest;
    use serde_json::json;

    const EACH: Policy = Policy {
        hold: Hold::Release,
        approval: Approval::Each,
    };
    const OPEN: Policy = Policy {
        hold: Hold::Release,
        approval: Approval::Server,
    };
    const RELOAD: Policy = Policy {
        hold: Hold::Reload,
        approval: Approval::Server,
    };

    fn entry(uri: &str, rows: &[(&str, &str)]) -> Arc<Entry> {
        let name = uri.rsplit('/').nth(1).unwrap();
        let rows: Vec<_> = rows
            .iter()
            .map(|(uri, body)| {
                json!({"uri": uri, "digest": Digest::of(body.as_bytes()).to_string(), "size": body.len()})
            })
            .collect();
        let value = json!({"uri": uri, "frontmatter": {"name": name, "description": "d"}, "resources": rows});
        Arc::new(Entry::parse(&value).unwrap())
    }

    const S: &str = "skill://s/SKILL.md";
    const X: &str = "skill://s/x";

    fn version(n: &str) -> Arc<Entry> {
        entry(S, &[(S, "md"), (X, n)])
    }

    fn skill(e: &Arc<Entry>) -> Skill {
        Skill::new(Known::Entry(Arc::clone(e)), Origin::Listed)
    }

    fn claims(shown: &Arc<Shown>, uri: &str) -> Vec<Claim> {
        let row = |e: &Arc<Entry>| e.files().iter().find(|f| &*f.uri == uri).cloned();
        let entry = match &shown.reload {
            Some(entry) if *uri == *shown.entry.uri => entry,
            _ => &shown.entry,
        };
        row(entry)
            .map(|file| Claim {
                shown: Arc::clone(shown),
                entry: Arc::clone(entry),
                file,
                role: Role::Skill,
            })
            .into_iter()
            .collect()
    }

    fn ask(s: &Skill, policy: Policy, uri: &str) -> Option<Decision> {
        decide(&claims(&Arc::new(s.shown(policy)?), uri))
    }

    #[test]
    fn hr_71_72_a_window_holds_its_entry_until_it_is_released() {
        let (v1, v2) = (version("1"), version("2"));
        let mut s = skill(&v1);
        assert_eq!(s.state(OPEN), "listed");
        assert!(s.load(&v1, Hold::Release));
        assert_eq!(s.state(OPEN), "held");
        for word in [Known::Entry(v2.clone()), Known::Withdrawn] {
            s.publish(word);
            assert_eq!(s.shown(OPEN).unwrap().entry, v1);
            assert!(matches!(
                ask(&s, OPEN, X),
                Some(Decision::Serve(_, From::CacheOnly, _))
            ));
            assert!(!s.is_gone());
        }
        assert_eq!(s.state(OPEN), "changed (withdrawn)");
        s.publish(Known::Entry(v2.clone()));
        assert!(!s.load(&v2, Hold::Release), "not while the other is held");
        s.publish(Known::Entry(v1.clone()));
        assert_eq!(s.state(OPEN), "held", "and back again");
        s.publish(Known::Entry(v2.clone()));
        s.release();
        assert_eq!(s.shown(OPEN).unwrap().entry, v2);
        assert!(matches!(
            ask(&s, OPEN, X),
            Some(Decision::Serve(_, From::Anywhere, _))
        ));
        assert!(
            !s.load(&v1, Hold::Release),
            "the old entry cannot be loaded any more"
        );
    }

    #[test]
    fn hold_none_opens_no_window_and_follows_the_server() {
        let (v1, v2) = (version("1"), version("2"));
        let mut s = skill(&v1);
        assert!(s.load(&v1, Hold::None) && s.held().is_none());
        s.publish(Known::Entry(v2.clone()));
        assert_eq!(s.shown(OPEN).unwrap().entry, v2);
        assert!(!s.load(&v1, Hold::None));
    }

    #[test]
    fn hold_reload_takes_a_read_of_the_new_skill_md_as_a_new_load() {
        let v1 = version("1");
        let v2 = entry(S, &[(S, "md2"), (X, "2")]);
        let mut s = skill(&v1);
        assert!(s.load(&v1, Hold::Reload));
        s.publish(Known::Entry(v2.clone()));
        let Some(Decision::Serve(expected, From::Anywhere, loads)) = ask(&s, RELOAD, S) else {
            panic!()
        };
        assert_eq!((expected.size, &loads[0]), (3, &v2));
        let Some(Decision::Serve(old, From::CacheOnly, _)) = ask(&s, RELOAD, X) else {
            panic!()
        };
        assert_eq!(
            old.digest,
            Digest::of(b"1"),
            "the rest stays as held until then"
        );
        assert!(s.load(&v2, Hold::Reload));
        assert_eq!((s.state(RELOAD), s.held()), ("held", Some(&v2)));
    }

    #[test]
    fn hr_107_108_an_approval_is_for_one_set_and_does_not_come_back() {
        let (v1, v2) = (version("1"), version("2"));
        let set = v1.set().unwrap();
        let mut s = skill(&v1);
        assert_eq!(
            ask(&s, EACH, X),
            Some(Decision::Refuse(Standing::NotApproved))
        );
        assert_eq!(
            s.approve(v2.set().unwrap(), Scope::Read),
            Err(Moved),
            "HR-110"
        );
        s.approve(set, Scope::Read).unwrap();
        assert!(matches!(ask(&s, EACH, X), Some(Decision::Serve(..))));
        assert!(s.load(&v1, Hold::Release));
        s.publish(Known::Entry(v2.clone()));
        assert_eq!(
            ask(&s, EACH, X),
            Some(Decision::Refuse(Standing::Lapsed)),
            "also what is cached"
        );
        s.publish(Known::Entry(v1.clone()));
        assert_eq!(
            ask(&s, EACH, X),
            Some(Decision::Refuse(Standing::Lapsed)),
            "A, B, A"
        );
        s.publish(Known::Entry(v2.clone()));
        s.approve(v2.set().unwrap(), Scope::Read).unwrap();
        assert_eq!(s.shown(EACH).unwrap().entry, v2, "approving moves on");
        assert!(matches!(ask(&s, EACH, X), Some(Decision::Serve(..))));
        s.publish(Known::Withdrawn);
        s.publish(Known::Entry(v2.clone()));
        assert!(
            matches!(ask(&s, EACH, X), Some(Decision::Serve(..))),
            "absence is no other set"
        );
        s.publish(Known::Declined(Arc::new(Declined {
            uri: None,
            dir: None,
            reason: crate::domain::manifest::Reason::NoSkillMd,
        })));
        assert_eq!(s.verdict(), Some(Verdict::Lapsed(v2.set().unwrap())));
    }

    #[test]
    fn hr_98_112_execution_and_revocation() {
        let v1 = version("1");
        let set = v1.set().unwrap();
        let mut s = skill(&v1);
        assert!(!s.may_execute(OPEN));
        s.approve(set, Scope::Read).unwrap();
        assert!(!s.may_execute(OPEN));
        s.approve(set, Scope::ReadAndExecute).unwrap();
        assert!(s.may_execute(OPEN) && s.may_execute(EACH));
        s.publish(Known::Entry(version("2")));
        assert!(!s.may_execute(OPEN), "rotated");
        let mut s = skill(&v1);
        s.approve(set, Scope::ReadAndExecute).unwrap();
        s.revoke();
        for policy in [OPEN, EACH] {
            assert_eq!(
                ask(&s, policy, X),
                Some(Decision::Refuse(Standing::Revoked))
            );
            assert!(!s.may_execute(policy));
        }
    }

    #[test]
    fn a_restored_approval_of_another_set_has_lapsed() {
        let (v1, v2) = (version("1"), version("2"));
        let mut s = skill(&v2);
        s.restore(
            Some(v1.clone()),
            Some(Verdict::Approved(v1.set().unwrap(), Scope::Read)),
        );
        assert_eq!(
            (s.verdict(), s.state(OPEN)),
            (Some(Verdict::Lapsed(v1.set().unwrap())), "changed")
        );
        let mut gone = Skill::new(Known::Withdrawn, Origin::Listed);
        gone.restore(Some(v1), None);
        assert!(!gone.is_gone());
    }

    const O: &str = "skill://o/SKILL.md";
    const I: &str = "skill://o/i/SKILL.md";

    fn nested(outer_says: &str, inner_says: &str) -> (Skill, Skill) {
        let outer = entry(O, &[(O, "x"), (I, outer_says), ("skill://o/n", "n")]);
        (skill(&outer), skill(&entry(I, &[(I, inner_says)])))
    }

    fn both(outer: &Skill, inner: &Skill, policy: Policy, uri: &str) -> Option<Decision> {
        let [o, i] = [outer, inner].map(|s| Arc::new(s.shown(policy).unwrap()));
        let consent = i.consent;
        let mut all = claims(&o, uri);
        all.extend(claims(&i, uri).into_iter().map(|c| Claim {
            role: if consent == Consent::Given {
                Role::Skill
            } else {
                Role::Supporting
            },
            ..c
        }));
        decide(&all)
    }

    #[test]
    fn hr_37_a_disagreement_names_both_skills_and_stays_with_its_file() {
        let (mut outer, inner) = nested("old", "new");
        let want = Decision::Disagree(O.into(), I.into());
        assert_eq!(both(&outer, &inner, OPEN, I), Some(want));
        assert!(matches!(
            both(&outer, &inner, OPEN, "skill://o/n"),
            Some(Decision::Serve(..))
        ));
        let held = Arc::clone(outer.newest().unwrap());
        outer.load(&held, Hold::Release);
        let Some(Decision::Serve(e, ..)) = both(&outer, &inner, OPEN, I) else {
            panic!()
        };
        assert_eq!(
            e.digest,
            Digest::of(b"old"),
            "the held entry binds, the other only informs"
        );
        assert_eq!(decide(&[]), None);
    }

    #[test]
    fn hr_101_102_a_nested_skill_needs_its_own_consent() {
        let (mut outer, mut inner) = nested("i", "i");
        let front = |o: &Skill, i: &Skill, policy| match both(o, i, policy, I) {
            Some(Decision::Serve(e, ..)) => e.frontmatter.is_some(),
            other => panic!("{other:?}"),
        };
        assert!(
            !front(&outer, &inner, OPEN),
            "supporting content: its frontmatter is not looked at"
        );
        assert_eq!(
            both(&outer, &inner, EACH, I),
            Some(Decision::Refuse(Standing::NotApproved))
        );
        outer
            .approve(outer.newest().unwrap().set().unwrap(), Scope::Read)
            .unwrap();
        assert!(!front(&outer, &inner, EACH));
        assert_eq!(inner.shown(EACH).unwrap().consent, Consent::Missing);
        inner
            .approve(inner.newest().unwrap().set().unwrap(), Scope::Read)
            .unwrap();
        assert!(front(&outer, &inner, EACH) && front(&outer, &inner, OPEN));
        outer.revoke();
        assert!(front(&outer, &inner, EACH), "the inner one opens by itself");
        assert_eq!(
            both(&outer, &inner, EACH, O),
            Some(Decision::Refuse(Standing::Revoked))
        );
    }

    #[test]
    fn what_a_change_is_measured_against_and_when_nothing_is_left() {
        let (v1, v2) = (version("1"), version("2"));
        let mut s = skill(&v1);
        assert_eq!(s.reference(), None);
        s.approve(v1.set().unwrap(), Scope::Read).unwrap();
        s.publish(Known::Entry(v2.clone()));
        assert_eq!(s.reference(), Some(&v1), "what was approved");
        assert!(s.load(&v2, Hold::Release));
        assert_eq!(s.reference(), Some(&v2), "what is held comes first");
        assert!(!s.is_gone());
        s.publish(Known::Withdrawn);
        assert!(!s.is_gone(), "it is held");
        s.release();
        assert!(s.is_gone());
        assert_eq!(s.origin(), Origin::Listed);
        s.name();
        assert_eq!(s.origin(), Origin::Named);
    }

    #[test]
    fn a_window_is_opened_once_and_moved_only_to_what_is_published() {
        let (v1, v2, v3) = (version("1"), version("2"), version("3"));
        for hold in [Hold::Release, Hold::Reload] {
            let mut s = skill(&v1);
            assert!(s.load(&v1, hold) && s.load(&v1, hold), "again is fine");
            s.publish(Known::Entry(v2.clone()));
            assert!(s.load(&v1, hold), "what is held is read on");
            assert!(!s.load(&v3, hold), "an entry of no moment");
            assert_eq!(s.load(&v2, hold), hold == Hold::Reload);
            assert_eq!(s.load(&v1, hold), hold == Hold::Release, "moved or not");
        }
        let mut s = skill(&v1);
        assert!(s.load(&v1, Hold::None) && s.held().is_none());
        assert!(!s.load(&v2, Hold::None));
    }

    #[test]
    fn execution_needs_that_the_skill_may_be_read_and_was_approved_itself() {
        let v1 = version("1");
        let mut s = skill(&v1);
        s.approve(v1.set().unwrap(), Scope::ReadAndExecute).unwrap();
        s.load(&v1, Hold::Release);
        s.publish(Known::Withdrawn);
        assert!(s.may_execute(OPEN), "held and approved");
        // The window shows the old set; the approval is for the new one.
        let mut s = skill(&v1);
        s.load(&v1, Hold::Release);
        let v2 = version("2");
        s.publish(Known::Entry(v2.clone()));
        s.restore(
            Some(v1),
            Some(Verdict::Approved(v2.set().unwrap(), Scope::ReadAndExecute)),
        );
        let shown = s.shown(OPEN).unwrap();
        assert_eq!(
            (shown.standing, shown.consent),
            (Standing::Open, Consent::Missing)
        );
        assert!(!s.may_execute(OPEN));
    }

    #[test]
    fn a_dynamic_skill_is_called_so() {
        let value = json!({"uri": S, "frontmatter": {"name": "s", "description": "d"}, "resources": "dynamic"});
        let s = skill(&Arc::new(Entry::parse(&value).unwrap()));
        assert_eq!((s.state(OPEN), s.state(EACH)), ("dynamic", "dynamic"));
    }

    #[test]
    fn of_refusals_a_lapse_is_the_one_that_is_told() {
        let (mut a, mut b) = (skill(&version("1")), skill(&version("1")));
        a.revoke();
        b.approve(version("1").set().unwrap(), Scope::Read).unwrap();
        b.publish(Known::Entry(version("2")));
        let claims = |s: &Skill| claims(&Arc::new(s.shown(EACH).unwrap()), X);
        let both = [claims(&a), claims(&b)].concat();
        assert_eq!(decide(&both), Some(Decision::Refuse(Standing::Lapsed)));
        assert_eq!(
            decide(&claims(&a)),
            Some(Decision::Refuse(Standing::Revoked))
        );
    }
}
