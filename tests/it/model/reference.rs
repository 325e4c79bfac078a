//! The model of one server: what the design promises, in plain maps.

use super::*;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Approved(Rows, Scope),
    Lapsed(Rows),
    Revoked,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    Open,
    NotApproved,
    Lapsed,
    Revoked,
}

/// What a read gives.
type Got = Result<Body, ReadError>;
/// What the bytes of a file must be: which body, under which description.
type Expected = (Body, Option<&'static str>);

/// One shown entry's word on a file.
#[derive(Debug, Clone)]
pub(super) struct Claim {
    pub(super) entry: Entry,
    pub(super) row: Body,
    pub(super) standing: Standing,
    pub(super) held: bool,
    /// Held and changed: from the cache alone.
    pub(super) frozen: bool,
    /// The file is its SKILL.md, and it counts as a skill of its own.
    pub(super) own: bool,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Model {
    /// The newest word on each skill; none if it is not served.
    pub(super) known: BTreeMap<Sk, Word>,
    /// Named by its URI: a listing says nothing of its absence.
    pub(super) named: BTreeSet<Sk>,
    pub(super) held: BTreeMap<Sk, Entry>,
    pub(super) verdicts: BTreeMap<Sk, Verdict>,
    /// Checked in this run.
    pub(super) memory: BTreeSet<(Digest, Option<&'static str>)>,
    /// On disk, and whether it is as it was written.
    pub(super) disk: BTreeMap<Digest, bool>,
    /// Failures that are answered again for a moment.
    pub(super) memo: Vec<(F, Option<Expected>, ReadError)>,
    /// The last listing: its word in the status, and when it came.
    pub(super) listing: Option<(&'static str, Option<Instant>)>,
    pub(super) link: &'static str,
}

impl Model {
    pub(super) fn shown(&self, skill: Sk) -> Option<&Entry> {
        match (self.held.get(&skill), self.known.get(&skill)) {
            (Some(entry), _) | (None, Some(Word::Entry(entry))) => Some(entry),
            _ => None,
        }
    }

    pub(super) fn changed(&self, skill: Sk) -> bool {
        let held = self.held.get(&skill);
        held.is_some_and(|held| self.known.get(&skill) != Some(&Word::Entry(held.clone())))
    }

    pub(super) fn consented(&self, skill: Sk) -> bool {
        let rows = self.shown(skill).map(|e| &e.rows);
        matches!(self.verdicts.get(&skill), Some(Verdict::Approved(set, _)) if Some(set) == rows)
    }

    pub(super) fn standing(&self, skill: Sk, policy: Policy) -> Standing {
        match self.verdicts.get(&skill) {
            Some(Verdict::Revoked) => Standing::Revoked,
            _ if policy.approval == Approval::Server || self.consented(skill) => Standing::Open,
            None => Standing::NotApproved,
            Some(_) => Standing::Lapsed,
        }
    }

    pub(super) fn claims(&self, file: F, policy: Policy) -> Vec<Claim> {
        let claim = |skill: &Sk| {
            let mut entry = self.shown(*skill)?;
            entry.rows.get(&file)?;
            let (held, changed) = (self.held.contains_key(skill), self.changed(*skill));
            let mut frozen = changed;
            if changed
                && policy.hold == Hold::Reload
                && file == skill.md()
                && let Some(Word::Entry(new)) = self.known.get(skill)
            {
                (entry, frozen) = (new, false);
            }
            let nested = *skill == In && self.shown(Out).is_some();
            Some(Claim {
                row: entry.rows[&file],
                entry: entry.clone(),
                standing: self.standing(*skill, policy),
                held,
                frozen,
                own: file == skill.md() && (!nested || self.consented(*skill)),
            })
        };
        file.skills().iter().filter_map(claim).collect()
    }

    /// The sizes that may be shown of a file: one, or those in dispute.
    pub(super) fn sizes(&self, file: F, policy: Policy) -> BTreeSet<u64> {
        let claims = self.claims(file, policy);
        let open = readable(&claims);
        let judged = match open.is_empty() {
            true => claims.iter().collect(),
            false => open,
        };
        binding(&judged)
            .iter()
            .map(|c| file.bytes(c.row).len() as u64)
            .collect()
    }

    /// Reads a file that is shown.
    pub(super) fn read(
        &mut self,
        file: F,
        policy: Policy,
        server: &Server,
        wire: &mut Wire,
    ) -> Got {
        let claims = self.claims(file, policy);
        let open = readable(&claims);
        let bound = binding(&open);
        let Some(first) = bound.first() else {
            let lapsed = claims.iter().any(|c| c.standing == Standing::Lapsed);
            let e = [ReadError::Denied, ReadError::Stale][usize::from(lapsed)];
            return Err(e);
        };
        let front = open.iter().find(|c| c.own).map(|c| c.entry.description());
        let agreed = bound.iter().all(|c| c.row == first.row);
        let want = agreed.then_some((first.row, front));
        let checked = (file.digest(first.row), front);
        if !agreed || !self.memory.contains(&checked) {
            let same = |(f, w, _): &&(F, Option<Expected>, _)| (*f, *w) == (file, want);
            if let Some((.., e)) = self.memo.iter().find(same) {
                return Err(*e);
            }
            let frozen = bound.iter().any(|c| c.frozen);
            let fetched = match want {
                None => Err(self.recheck(&claims, server, wire)),
                Some(want) => self.fetch(file, want, frozen, &claims, server, wire),
            };
            if let Err(e) = fetched {
                self.memo.push((file, want, e));
                return Err(e);
            }
            self.memory.insert(checked);
        }
        for claim in open.iter().filter(|c| c.row == first.row) {
            if policy.hold != Hold::None {
                self.held.insert(claim.entry.skill, claim.entry.clone());
            }
        }
        Ok(first.row)
    }

    /// Has the bytes from the disk or, unless frozen, from the server.
    pub(super) fn fetch(
        &mut self,
        file: F,
        (body, front): Expected,
        frozen: bool,
        claims: &[Claim],
        server: &Server,
        wire: &mut Wire,
    ) -> Result<(), ReadError> {
        let digest = file.digest(body);
        let fits = front.is_none_or(|d| d == describe(body));
        match self.disk.get(&digest) {
            Some(true) if fits => return Ok(()),
            Some(false) => drop(self.disk.remove(&digest)),
            _ => {}
        }
        if frozen {
            return Err(ReadError::Stale);
        }
        if !server.up {
            return Err(ReadError::Down);
        }
        wire.reads.push(file);
        match server.serve(file) {
            Ok(bytes) if bytes == file.bytes(body) && fits => {
                self.disk.insert(digest, true);
                Ok(())
            }
            Err(SourceError::TimedOut(_)) => Err(ReadError::TimedOut),
            _ => Err(self.recheck(claims, server, wire)),
        }
    }

    /// Asks for the entries that list a file that failed, and takes them in.
    pub(super) fn recheck(
        &mut self,
        claims: &[Claim],
        server: &Server,
        wire: &mut Wire,
    ) -> ReadError {
        let mut changed = false;
        for claim in claims.iter().filter(|_| server.up) {
            let skill = claim.entry.skill;
            wire.gets.push(skill);
            let word = server.published.get(&skill).cloned();
            changed |= word != Some(Word::Entry(claim.entry.clone()));
            self.publish(skill, word);
        }
        if changed {
            self.answers_may_differ();
            ReadError::Stale
        } else {
            ReadError::Contradiction
        }
    }

    /// Another set, once seen, ends an approval; absence is no set.
    pub(super) fn publish(&mut self, skill: Sk, word: Option<Word>) {
        if let (Some(word), Some(Verdict::Approved(set, _))) = (&word, self.verdicts.get(&skill))
            && !matches!(word, Word::Entry(e) if e.rows == *set)
        {
            let ended = Verdict::Lapsed(set.clone());
            self.verdicts.insert(skill, ended);
        }
        match word {
            Some(word) => drop(self.known.insert(skill, word)),
            None => drop(self.known.remove(&skill)),
        }
        self.forget_gone();
    }

    /// What was answered may be answered otherwise now; what was not is not.
    fn answers_may_differ(&mut self) {
        self.memo.retain(|(.., e)| *e == ReadError::TimedOut);
    }

    /// Of what is neither published nor held nor judged nothing is remembered.
    fn forget_gone(&mut self) {
        let (known, held, verdicts) = (&self.known, &self.held, &self.verdicts);
        self.named
            .retain(|s| known.contains_key(s) || held.contains_key(s) || verdicts.contains_key(s));
    }

    pub(super) fn list(&mut self, server: &Server, without: Option<Sk>, now: Instant) {
        self.answers_may_differ();
        for skill in SKILLS.into_iter().filter(|s| Some(*s) != without) {
            let word = server.published.get(&skill).cloned();
            let silent = word.is_none() && (without.is_some() || self.named.contains(&skill));
            if !silent {
                self.publish(skill, word);
            }
        }
        let word = if without.is_some() {
            "truncated"
        } else {
            "current"
        };
        self.listing = Some((word, Some(now)));
    }

    /// The skill that a name means: the innermost one there is that holds the place.
    pub(super) fn find(&self, skill: Sk) -> Option<Sk> {
        let there = |s: &Sk| self.held.contains_key(s) || self.known.contains_key(s);
        let outer = Some(Out).filter(|_| skill == In);
        [Some(skill), outer].into_iter().flatten().find(there)
    }

    pub(super) fn refresh(
        &mut self,
        skill: Option<Sk>,
        server: &Server,
        now: Instant,
        wire: &mut Wire,
    ) -> Said {
        let Some(skill) = skill else {
            if server.up {
                wire.lists += 1;
                self.list(server, None, now);
                // The listing says nothing of these.
                let silent = self.named.iter().copied();
                let silent: Vec<Sk> = silent
                    .filter(|s| !matches!(server.published.get(s), Some(Word::Entry(_))))
                    .collect();
                for skill in silent {
                    wire.gets.push(skill);
                    self.publish(skill, server.published.get(&skill).cloned());
                }
                self.held.clear();
                self.forget_gone();
            }
            return done(server.up);
        };
        let Some(skill) = self.find(skill).filter(|_| server.up) else {
            return Said::Failed;
        };
        wire.gets.push(skill);
        self.publish(skill, server.published.get(&skill).cloned());
        self.held.remove(&skill);
        self.forget_gone();
        self.answers_may_differ();
        Said::Done
    }

    pub(super) fn release(&mut self, skill: Option<Sk>) -> Said {
        let found = skill.map(|s| self.find(s));
        let before = self.held.len();
        self.held
            .retain(|s, _| found.is_some_and(|f| f != Some(*s)));
        self.forget_gone();
        if self.held.len() != before {
            self.answers_may_differ();
        }
        done(found != Some(None))
    }

    pub(super) fn name(&mut self, skill: Sk, server: &Server, wire: &mut Wire) -> Said {
        if !server.up {
            return Said::Failed;
        }
        wire.gets.push(skill);
        let Some(word @ Word::Entry(_)) = server.published.get(&skill) else {
            return Said::Failed;
        };
        self.publish(skill, Some(word.clone()));
        self.named.insert(skill);
        self.listing = self.listing.or(Some(("truncated", None)));
        self.answers_may_differ();
        Said::Done
    }

    pub(super) fn revoke(&mut self, skill: Sk) -> Said {
        let found = self.find(skill);
        if let Some(skill) = found {
            self.verdicts.insert(skill, Verdict::Revoked);
            self.answers_may_differ();
        }
        done(found.is_some())
    }

    pub(super) fn approve(&mut self, skill: Sk, set: &Rows, scope: Scope) -> Said {
        let Some(skill) = self.find(skill) else {
            return Said::Failed;
        };
        match self.known.get(&skill) {
            Some(Word::Entry(new)) if new.rows == *set => {}
            Some(Word::Bad) if !self.held.contains_key(&skill) => return Said::Failed,
            _ => {
                self.answers_may_differ();
                return Said::Moved;
            }
        }
        self.answers_may_differ();
        if self.changed(skill) {
            self.held.remove(&skill);
        }
        self.verdicts
            .insert(skill, Verdict::Approved(set.clone(), scope));
        Said::Done
    }

    /// The daemon ends and starts again; it forgets what is not on disk.
    pub(super) fn restart(&mut self, crash: bool) {
        if !crash {
            self.held.clear();
        }
        self.known.retain(|_, word| matches!(word, Word::Entry(_)));
        self.named.retain(|s| self.known.contains_key(s));
        self.memory.clear();
        self.memo.clear();
        self.listing = self.listing.map(|_| ("stored", None));
        self.link = "starting";
    }

    pub(super) fn state(&self, skill: Sk, policy: Policy) -> &'static str {
        match self.standing(skill, policy) {
            Standing::Revoked => "revoked",
            Standing::NotApproved => "needs-approval",
            Standing::Lapsed => "changed, needs-approval",
            Standing::Open if !self.held.contains_key(&skill) => "listed",
            Standing::Open if !self.changed(skill) => "held",
            Standing::Open if !self.known.contains_key(&skill) => "changed (withdrawn)",
            Standing::Open => "changed",
        }
    }
}

/// The claims of skills that may be read.
pub(super) fn readable(claims: &[Claim]) -> Vec<&Claim> {
    let open = |c: &&Claim| c.standing == Standing::Open;
    claims.iter().filter(open).collect()
}

/// The claims that bytes must satisfy: every held one, or all if none is held.
pub(super) fn binding<'a>(claims: &[&'a Claim]) -> Vec<&'a Claim> {
    let held: Vec<_> = claims.iter().copied().filter(|c| c.held).collect();
    if held.is_empty() {
        claims.to_vec()
    } else {
        held
    }
}

fn done(done: bool) -> Said {
    if done { Said::Done } else { Said::Failed }
}
