//! The servers, which the sources and the model share.

use super::*;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) skill: Sk,
    pub(super) rows: Rows,
    /// Its frontmatter is not the one of its SKILL.md.
    pub(super) lie: bool,
}

impl Entry {
    pub(super) fn description(&self) -> &'static str {
        if self.lie {
            "lie"
        } else {
            describe(self.rows[&self.skill.md()])
        }
    }

    pub(super) fn json(&self) -> serde_json::Value {
        let row = |(f, b): (&F, &Body)| json!({"uri": f.uri(), "digest": f.digest(*b).to_string(), "size": f.bytes(*b).len()});
        let name = self.skill.dir().rsplit('/').next();
        json!({"uri": self.skill.md().uri(),
            "frontmatter": {"name": name, "description": self.description()},
            "resources": self.rows.iter().map(row).collect::<Vec<_>>()})
    }

    pub(super) fn parsed(&self) -> Arc<Parsed> {
        Arc::new(Parsed::parse(&self.json()).unwrap())
    }

    pub(super) fn set(&self) -> String {
        self.parsed().set().unwrap().to_string()
    }
}

/// What a server says of a skill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Word {
    Entry(Entry),
    /// An entry that cannot be loaded.
    Bad,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Corrupt {
    Flip,
    Short,
    OtherFile,
    Unknown,
    Malformed,
    Silent,
}

/// What went over the wire.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Wire {
    pub(super) reads: Vec<F>,
    pub(super) gets: Vec<Sk>,
    pub(super) lists: u32,
    /// How often a new listing was asked for in the background.
    pub(super) asked: u32,
}

#[derive(Debug)]
pub(super) struct Server {
    pub(super) up: bool,
    pub(super) published: BTreeMap<Sk, Word>,
    pub(super) content: Rows,
    pub(super) corrupt: BTreeMap<F, Corrupt>,
    /// Every row it ever published, and every entry.
    pub(super) ever: BTreeSet<(F, Body)>,
    pub(super) entries: Vec<Entry>,
    pub(super) wire: Wire,
}

impl Server {
    pub(super) fn new() -> Self {
        let content = FILES.into_iter().map(|f| (f, 0)).collect();
        let mut server = Self {
            up: true,
            published: BTreeMap::new(),
            content,
            corrupt: BTreeMap::new(),
            ever: BTreeSet::new(),
            entries: Vec::new(),
            wire: Wire::default(),
        };
        for skill in SKILLS {
            server.publish(skill);
        }
        server
    }

    /// Does what a server may do at any time.
    pub(super) fn change(&mut self, tweak: Tweak) {
        match tweak {
            Tweak::Publish(skill) => self.publish(skill),
            Tweak::Rotate(file, body, who) => {
                self.content.insert(file, body);
                for (at, skill) in file.skills().iter().enumerate() {
                    let spoken = who == Who::All || (who == Who::Inner) == (at == 0);
                    if let Some(mut entry) = self.entry(*skill).filter(|_| spoken)
                        && let Some(row) = entry.rows.get_mut(&file)
                    {
                        *row = body;
                        self.say(entry);
                    }
                }
            }
            Tweak::Toggle(skill, file) => {
                let fits = file.skills().contains(&skill) && file != skill.md();
                if let Some(mut entry) = self.entry(skill).filter(|_| fits) {
                    if entry.rows.remove(&file).is_none() {
                        entry.rows.insert(file, self.content[&file]);
                    }
                    self.say(entry);
                }
            }
            Tweak::Lie(skill) => {
                if let Some(mut entry) = self.entry(skill) {
                    entry.lie = !entry.lie;
                    self.say(entry);
                }
            }
            Tweak::Withdraw(skill) => drop(self.published.remove(&skill)),
            Tweak::Bad(skill) => drop(self.published.insert(skill, Word::Bad)),
            Tweak::Corrupt(file, Some(how)) => drop(self.corrupt.insert(file, how)),
            Tweak::Corrupt(file, None) => drop(self.corrupt.remove(&file)),
        }
    }

    /// Publishes a skill with all its files as they are.
    pub(super) fn publish(&mut self, skill: Sk) {
        let files = self
            .content
            .iter()
            .filter(|(f, _)| f.skills().contains(&skill));
        let rows = files.map(|(f, b)| (*f, *b)).collect();
        self.say(Entry {
            skill,
            rows,
            lie: false,
        });
    }

    pub(super) fn say(&mut self, entry: Entry) {
        self.ever.extend(entry.rows.iter().map(|(f, b)| (*f, *b)));
        self.entries.push(entry.clone());
        self.published.insert(entry.skill, Word::Entry(entry));
    }

    pub(super) fn entry(&self, skill: Sk) -> Option<Entry> {
        match self.published.get(&skill) {
            Some(Word::Entry(entry)) => Some(entry.clone()),
            _ => None,
        }
    }

    pub(super) fn serve(&self, file: F) -> Result<Vec<u8>, SourceError> {
        let unknown = SourceError::Rejected {
            code: -32602,
            message: "unknown".into(),
        };
        if !self.up {
            return Err(SourceError::Down("down".into()));
        }
        let lists = |s: &Sk| self.entry(*s).is_some_and(|e| e.rows.contains_key(&file));
        if !file.skills().iter().any(lists) {
            return Err(unknown);
        }
        let mut bytes = file.bytes(self.content[&file]);
        match self.corrupt.get(&file) {
            None => {}
            Some(Corrupt::Flip) => bytes[1] ^= 1,
            Some(Corrupt::Short) => drop(bytes.pop()),
            Some(Corrupt::OtherFile) => {
                let other = FILES[(file as usize + 2) % FILES.len()];
                bytes = other.bytes(self.content[&other]);
            }
            Some(Corrupt::Unknown) => return Err(unknown),
            Some(Corrupt::Malformed) => return Err(SourceError::Malformed("odd".into())),
            Some(Corrupt::Silent) => return Err(SourceError::TimedOut(Duration::from_secs(1))),
        }
        Ok(bytes)
    }

    pub(super) fn listing(&self, without: Option<Sk>) -> Listing {
        let (mut entries, mut declined) = (Vec::new(), Vec::new());
        for (skill, word) in self.published.iter().filter(|(s, _)| Some(**s) != without) {
            match word {
                Word::Entry(entry) => entries.push(entry.parsed()),
                Word::Bad => declined.push(bad(*skill)),
            }
        }
        let truncated = without.map(|_| "cut".into());
        Listing {
            entries,
            declined,
            truncated,
            ttl: TTL,
        }
    }
}

pub(super) fn bad(skill: Sk) -> Declined {
    let value = json!({"uri": skill.md().uri(), "frontmatter": {"name": "other", "description": "d"}, "resources": []});
    Parsed::parse(&value).unwrap_err()
}

pub(super) struct Fake(pub(super) Arc<Mutex<Server>>);

impl Source for Fake {
    fn get<'a>(
        &'a self,
        uri: &'a str,
        _: std::time::Instant,
    ) -> Answer<'a, Result<Parsed, Declined>> {
        Box::pin(async move {
            let mut server = self.0.lock().unwrap();
            if !server.up {
                return Err(SourceError::Down("down".into()));
            }
            let skill = Sk::of_uri(uri).unwrap();
            server.wire.gets.push(skill);
            match server.published.get(&skill) {
                Some(Word::Entry(entry)) => Ok(Ok(Arc::unwrap_or_clone(entry.parsed()))),
                Some(Word::Bad) => Ok(Err(bad(skill))),
                None => Err(SourceError::Rejected {
                    code: -32602,
                    message: "gone".into(),
                }),
            }
        })
    }

    fn read<'a>(&'a self, uri: &'a str, _: u64, _: std::time::Instant) -> Answer<'a, Untrusted> {
        Box::pin(async move {
            // Others may come while the answer is on its way.
            tokio::task::yield_now().await;
            let mut server = self.0.lock().unwrap();
            let file = FILES.into_iter().find(|f| f.uri() == uri).unwrap();
            if server.up {
                server.wire.reads.push(file);
            }
            server.serve(file).map(Untrusted::new)
        })
    }

    fn read_directory<'a>(
        &'a self,
        _: &'a str,
        _: std::time::Instant,
    ) -> Answer<'a, Vec<mount_skills::source::DirChild>> {
        // Declares no directories: nothing may ask.
        unreachable!("a server that does not declare directoryRead was asked for one")
    }

    fn list(&self, _: std::time::Instant) -> Answer<'_, Listing> {
        Box::pin(async move {
            let mut server = self.0.lock().unwrap();
            if !server.up {
                return Err(SourceError::Down("down".into()));
            }
            server.wire.lists += 1;
            Ok(server.listing(None))
        })
    }

    fn refresh(&self) {
        self.0.lock().unwrap().wire.asked += 1;
    }

    fn figures(&self) -> Figures {
        Figures::default()
    }
}
