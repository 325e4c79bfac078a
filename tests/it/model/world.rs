//! The daemon's host and the model side by side.

use super::*;

/// What a command is given.
pub(super) fn name(l: L, skill: Option<Sk>) -> String {
    match skill {
        Some(skill) => format!("{}/{}", l.name(), skill.dir()),
        None => l.name().to_owned(),
    }
}

/// One run of the daemon.
pub(super) struct Process {
    pub(super) runtime: tokio::runtime::Runtime,
    pub(super) host: Arc<Host>,
    pub(super) told: Arc<Mutex<Vec<Change>>>,
    /// What every inode was when it was read.
    pub(super) inodes: BTreeMap<u64, (L, F, Body)>,
    /// What a kernel would have in its pages: the inode, and the skills that were read.
    pub(super) pages: BTreeMap<u64, (L, Vec<Sk>)>,
}

pub(super) struct World {
    pub(super) dir: tempfile::TempDir,
    pub(super) policy: Policy,
    pub(super) servers: [Arc<Mutex<Server>>; 2],
    pub(super) models: [Model; 2],
    pub(super) process: Option<Process>,
}

pub(super) fn peer() -> Link {
    Link::Ready(Peer {
        version: "2026-07-28".into(),
        era: Era::Discover,
        name: "fake".into(),
        skills: true,
        directory_read: false,
        resources: true,
        instructions: None,
    })
}

impl World {
    pub(super) fn new(policy: Policy) -> Self {
        // On a memory file system if there is one: what is proved here is no fsync.
        let shm = Path::new("/dev/shm");
        let dir = if shm.is_dir() {
            tempfile::tempdir_in(shm)
        } else {
            tempfile::tempdir()
        };
        let server = || Arc::new(Mutex::new(Server::new()));
        let mut world = Self {
            dir: dir.unwrap(),
            policy,
            servers: [server(), server()],
            models: Default::default(),
            process: None,
        };
        for model in &mut world.models {
            model.link = "starting";
        }
        world.start();
        world
    }

    pub(super) fn start(&mut self) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let cache = Cache::open(&self.dir.path().join("cache"), DEFAULT_CAP).unwrap();
        let servers = LABELS.map(|l| HostServer {
            label: l.name().parse().unwrap(),
            shown: "fake".into(),
            identity: "id".into(),
            shelf: Some(cache.shelf(&l.name().parse().unwrap(), "id").unwrap()),
            state: Some(self.state(l)),
            locked: None,
            dynamic: mount_skills::host::Dynamic::Declined,
        });
        let timeout = Duration::from_secs(10);
        let _inside = runtime.enter();
        let (host, inbox) = Host::new(
            servers.into(),
            self.policy,
            Some(cache),
            "/m".into(),
            timeout,
        );
        let (changes, batches) = mpsc::channel();
        let told = Arc::<Mutex<Vec<Change>>>::default();
        runtime.spawn(Arc::clone(&host).run(inbox, changes));
        let kernel = Arc::clone(&told);
        runtime.spawn(async move {
            loop {
                while let Ok(batch) = batches.try_recv() {
                    kernel.lock().unwrap().extend(batch.changes);
                    let _ = batch.done.map(|done| done.send(()));
                }
                sleep(KERNEL).await;
            }
        });
        for l in LABELS {
            host.attach(
                l.slot(),
                Arc::new(Fake(Arc::clone(&self.servers[l as usize]))),
            );
        }
        drop(_inside);
        let (inodes, pages) = Default::default();
        self.process = Some(Process {
            runtime,
            host,
            told,
            inodes,
            pages,
        });
    }

    pub(super) fn state(&self, l: L) -> State {
        let dir = self.dir.path().join("state");
        State::open(&dir, &l.name().parse().unwrap(), "id", Path::new("/m")).unwrap()
    }

    pub(super) fn host(&self) -> Arc<Host> {
        Arc::clone(&self.process.as_ref().unwrap().host)
    }

    /// Runs something in the daemon's runtime.
    pub(super) fn run<T>(&self, work: impl Future<Output = T>) -> T {
        self.process.as_ref().unwrap().runtime.block_on(work)
    }

    pub(super) fn up(&mut self, l: L, up: bool) {
        self.servers[l as usize].lock().unwrap().up = up;
        let link = if up {
            peer()
        } else {
            Link::Down {
                reason: "ended".into(),
            }
        };
        self.models[l as usize].link = if up { "ready" } else { "down" };
        self.host().event(l.slot(), Event::Link(link));
    }

    /// A listing that the server's session asked for comes, or does not.
    pub(super) fn list(&mut self, l: L, without: Option<Sk>) {
        let (server, now) = (Arc::clone(&self.servers[l as usize]), self.now());
        let server = server.lock().unwrap();
        let event = if server.up {
            self.model(l).list(&server, without, now);
            Event::Listed(server.listing(without))
        } else {
            Event::ListFailed(SourceError::Down("down".into()))
        };
        self.host().event(l.slot(), event);
    }

    pub(super) fn server(&self, l: L) -> MutexGuard<'_, Server> {
        self.servers[l as usize].lock().unwrap()
    }

    pub(super) fn model(&mut self, l: L) -> &mut Model {
        &mut self.models[l as usize]
    }

    /// By the daemon's clock.
    pub(super) fn now(&self) -> Instant {
        self.run(async { Instant::now() })
    }

    pub(super) fn ino(&self, l: L, path: &str) -> Option<u64> {
        let tree = self.host().tree();
        let full = format!("{}/{path}", l.name());
        full.split('/')
            .try_fold(ROOT, |dir, name| match tree.lookup(dir, name) {
                Lookup::Found(attr) => Some(attr.ino),
                _ => None,
            })
    }

    /// Reads a file in both, by this many readers at once, and compares; what is asked on the
    /// wire, and whether it fails.
    pub(super) fn read(&mut self, l: L, file: F, readers: usize) -> (Wire, bool) {
        let (policy, host) = (self.policy, self.host());
        let server = Arc::clone(&self.servers[l as usize]);
        let model = &mut self.models[l as usize];
        let claims = model.claims(file, policy);
        let ino = self.ino(l, file.path());
        let model = &mut self.models[l as usize];
        if claims.is_empty() {
            let mark = model
                .known
                .iter()
                .any(|(s, w)| s.md() == file && *w == Word::Bad && !model.held.contains_key(s));
            assert_eq!(ino.is_some(), mark, "{l:?} {file:?}: the name");
            if let Some(ino) = ino {
                let got = self.run(host.read(ino));
                assert_eq!(
                    got.map(drop),
                    Err(ReadError::Denied),
                    "{l:?} {file:?}: declined"
                );
            }
            return (Wire::default(), false);
        }
        let mut wire = Wire::default();
        let want = model.read(file, policy, &server.lock().unwrap(), &mut wire);
        let ino = ino.unwrap_or_else(|| panic!("{l:?} {file:?}: it has no name"));
        let size = host.tree().attr(ino).unwrap().size;
        let reads = (0..readers).map(|_| host.read(ino));
        for got in self.run(futures_util::future::join_all(reads)) {
            let shown = got
                .as_ref()
                .map(|b| String::from_utf8_lossy(b.bytes()).into_owned());
            let bytes = want.map(|body| String::from_utf8(file.bytes(body)).unwrap());
            assert_eq!(
                shown.map_err(|e| *e),
                bytes,
                "{l:?} {file:?}: what a read gives"
            );
            if let Ok(body) = want {
                let server = server.lock().unwrap();
                assert!(
                    server.ever.contains(&(file, body)),
                    "{l:?} never published that"
                );
                assert_eq!(
                    size,
                    file.bytes(body).len() as u64,
                    "{l:?} {file:?}: the size shown"
                );
                let process = self.process.as_mut().unwrap();
                let was = process.inodes.insert(ino, (l, file, body));
                assert!(
                    was.is_none_or(|w| w == (l, file, body)),
                    "the inode was {was:?}"
                );
                let open = claims.iter().filter(|c| c.standing == Standing::Open);
                let skills = open
                    .filter(|c| c.row == body)
                    .map(|c| c.entry.skill)
                    .collect();
                process.pages.insert(ino, (l, skills));
            }
        }
        (wire, want.is_err())
    }

    /// Does one step to both; what each server should have been asked.
    pub(super) fn step(&mut self, op: Op) -> [Wire; 2] {
        let mut wires = <[Wire; 2]>::default();
        let host = self.host();
        match op {
            Op::Server(l, tweak) => self.server(l).change(tweak),
            Op::Up(l, up) => self.up(l, up),
            Op::List(l, without) => self.list(l, without),
            Op::Look(l, pass) => {
                if pass {
                    self.run(async { advance(TTL).await });
                    self.models.iter_mut().for_each(|m| m.memo.clear());
                }
                self.run(async { host.needed(l.slot()) });
                let (now, at) = (self.now(), self.model(l).listing.and_then(|(_, at)| at));
                if at.is_some_and(|at| now - at >= TTL) {
                    wires[l as usize].asked = 1;
                    self.list(l, None);
                }
            }
            Op::Read(l, file, readers) => {
                let (wire, failed) = self.read(l, file, readers);
                wires[l as usize] = wire;
                if failed {
                    // The kernel asks twice.
                    let (again, _) = self.read(l, file, 1);
                    wires[l as usize].reads.extend(again.reads);
                    wires[l as usize].gets.extend(again.gets);
                }
            }
            Op::Refresh(l, skill) => {
                let got = self.run(host.refresh(&name(l, skill)));
                let (server, now) = (Arc::clone(&self.servers[l as usize]), self.now());
                let server = server.lock().unwrap();
                let wire = &mut wires[l as usize];
                assert_eq!(
                    Said::from(got),
                    self.model(l).refresh(skill, &server, now, wire)
                );
            }
            Op::Release(l, skill) => {
                let got = self.run(host.release(&name(l, skill)));
                assert_eq!(Said::from(got), self.model(l).release(skill));
            }
            Op::Name(l, skill) => {
                let got = self.run(host.add(l.name(), &skill.md().uri()));
                let server = Arc::clone(&self.servers[l as usize]);
                let server = server.lock().unwrap();
                let wire = &mut wires[l as usize];
                assert_eq!(Said::from(got), self.model(l).name(skill, &server, wire));
            }
            Op::Approve(l, skill, old, scope) => {
                let entries = self.server(l).entries.clone();
                let past = entries[old.unwrap_or(0) % entries.len()].clone();
                let model = self.model(l);
                let newest = match model.find(skill).and_then(|s| model.known.get(&s)) {
                    Some(Word::Entry(entry)) => Some(entry.clone()),
                    _ => None,
                };
                let chosen = newest.filter(|_| old.is_none()).unwrap_or(past);
                let want = model.approve(skill, &chosen.rows, scope);
                let got = self.run(host.approve(&name(l, Some(skill)), &chosen.set(), scope));
                assert_eq!(Said::from(got), want);
            }
            Op::Revoke(l, skill) => {
                let got = self.run(host.revoke(&name(l, Some(skill))));
                assert_eq!(Said::from(got), self.model(l).revoke(skill));
            }
            Op::Tamper(l, which, how) => self.tamper(l, which, how),
            Op::Restart { crash } => {
                if !crash {
                    host.end(mount_skills::host::Windows::End);
                }
                drop(host);
                self.process = None;
                self.start();
                self.models.iter_mut().for_each(|m| m.restart(crash));
            }
        }
        wires
    }

    /// Damages one of the blobs on disk.
    pub(super) fn tamper(&mut self, l: L, which: usize, how: Damage) {
        let shelf = self.shelf(l);
        let disk = &mut self.model(l).disk;
        let blobs: Vec<Digest> = disk.keys().copied().collect();
        let Some(digest) = blobs.get(which % blobs.len().max(1)) else {
            return;
        };
        let hex = digest.hex();
        let path = shelf.join(&hex[..2]).join(&hex);
        let mut bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        disk.remove(digest);
        match how {
            Damage::Flip => bytes[0] ^= 1,
            Damage::Truncate => drop(bytes.pop()),
            Damage::Remove => return,
        }
        std::fs::write(&path, &bytes).unwrap();
        // Flipped once more, it is right again.
        disk.insert(*digest, Digest::of(&bytes) == *digest);
    }

    pub(super) fn shelf(&self, l: L) -> PathBuf {
        self.dir
            .path()
            .join(format!("cache/mount-skills/v1/{}-id", l.name()))
    }

    /// What the servers were asked since the last time, against what they should have been.
    pub(super) fn check_wire(&self, wires: [Wire; 2], after: &str) {
        for (l, mut want) in LABELS.into_iter().zip(wires) {
            let mut got = std::mem::take(&mut self.servers[l as usize].lock().unwrap().wire);
            for wire in [&mut got, &mut want] {
                wire.reads.sort();
                wire.gets.sort();
            }
            assert_eq!(got, want, "{l:?}: what went over the wire {after}");
        }
    }

    /// Lets all that is under way come to an end.
    pub(super) fn settle(&mut self) {
        self.run(async { sleep(SETTLED).await });
        self.models.iter_mut().for_each(|m| m.memo.clear());
    }

    /// Compares all that can be compared without changing anything.
    pub(super) fn check(&mut self) {
        let status = self.host().status();
        let tree = self.host().tree();
        for (l, server) in LABELS.into_iter().zip(&status.servers) {
            self.check_tree(l, &tree);
            self.check_status(l, server);
            self.check_disk(l);
            let model = &self.models[l as usize];
            for skill in SKILLS {
                let path = format!("{}/{}", l.name(), skill.dir());
                let found = model.find(skill);
                let may = found.is_some_and(|s| {
                    let scope = match model.verdicts.get(&s) {
                        Some(Verdict::Approved(_, scope)) => Some(*scope),
                        _ => None,
                    };
                    model.consented(s) && scope == Some(Scope::ReadAndExecute)
                });
                assert_eq!(
                    self.host().gate(&path).is_ok(),
                    may,
                    "{path}: may it be executed"
                );
            }
        }
        self.check_files(&status);
        self.check_inodes();
        self.check_pages();
        self.probe();
        self.check_wire(
            Default::default(),
            "while looking and reading what is at hand",
        );
        self.settle();
    }

    pub(super) fn check_tree(&self, l: L, tree: &Tree) {
        let model = &self.models[l as usize];
        let root = match tree.lookup(ROOT, l.name()) {
            Lookup::Found(attr) => attr.ino,
            other => panic!("{l:?}: {other:?}"),
        };
        if model.listing.is_none() {
            let absent = if model.link == "down" {
                Absent::Down
            } else {
                Absent::Starting
            };
            assert!(matches!(tree.view(l.slot()), Some(View::Unlisted(a)) if *a == absent));
            assert_eq!(tree.lookup(root, "out"), Lookup::Unknown(absent));
            return;
        }
        let (mut got, mut todo) = (BTreeMap::new(), vec![(String::new(), root)]);
        while let Some((path, dir)) = todo.pop() {
            for child in tree.children(dir, 0).unwrap() {
                let path = format!("{path}/{}", child.name);
                match child.attr.kind {
                    Kind::File | Kind::Dynamic => drop(got.insert(path, Some(child.attr.size))),
                    Kind::Declined => drop(got.insert(path, None)),
                    Kind::SkillDir | Kind::OpenDir => todo.push((path, child.attr.ino)),
                }
            }
        }
        let mut want = BTreeMap::new();
        for file in FILES {
            let sizes = model.sizes(file, self.policy);
            let path = format!("/{}", file.path());
            let shown = got.get(&path).copied().flatten();
            match shown
                .filter(|s| sizes.contains(s))
                .or(sizes.first().copied())
            {
                Some(size) => drop(want.insert(path, Some(size))),
                None => {
                    let skill = SKILLS.into_iter().find(|s| s.md() == file);
                    let bad = skill.is_some_and(|s| model.known.get(&s) == Some(&Word::Bad));
                    if bad {
                        want.insert(path, None);
                    }
                }
            }
        }
        assert_eq!(got, want, "{l:?}: names and sizes");
    }

    pub(super) fn check_status(&self, l: L, status: &ServerStatus) {
        let model = &self.models[l as usize];
        assert_eq!(status.state, model.link, "{l:?}");
        assert_eq!(
            status.listing,
            model.listing.map_or("none", |(word, _)| word),
            "{l:?}"
        );
        let got: BTreeMap<&str, (&str, &str, bool)> = status
            .skills
            .iter()
            .map(|s| (&*s.path, (&*s.state, &*s.set, s.changes.is_some())))
            .collect();
        let shown = SKILLS
            .into_iter()
            .filter_map(|s| Some((s, model.shown(s)?)));
        let want: Vec<_> = shown
            .map(|(s, e)| {
                let pending = matches!(model.known.get(&s), Some(Word::Entry(new)) if new != e);
                let path = format!("{}/{}", l.name(), s.dir());
                (path, (model.state(s, self.policy), e.set(), pending))
            })
            .collect();
        let want = want
            .iter()
            .map(|(p, (state, set, c))| (&**p, (*state, &**set, *c)));
        assert_eq!(got, want.collect(), "{l:?}: states");
        let got: BTreeSet<_> = status
            .declined
            .iter()
            .filter_map(|d| d.uri.clone())
            .collect();
        let bad = |s: &Sk| model.known.get(s) == Some(&Word::Bad) && !model.held.contains_key(s);
        let want = SKILLS
            .into_iter()
            .filter(bad)
            .map(|s| s.md().uri())
            .collect();
        assert_eq!(got, want, "{l:?}: declined");
    }

    /// Cache and state on disk: nothing is there that should not be, and all that should.
    pub(super) fn check_disk(&self, l: L) {
        let model = &self.models[l as usize];
        let mut got = BTreeMap::new();
        for aa in std::fs::read_dir(self.shelf(l)).unwrap() {
            for blob in std::fs::read_dir(aa.unwrap().path()).unwrap() {
                let path = blob.unwrap().path();
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                let right = Digest::of(&std::fs::read(&path).unwrap()).hex() == name;
                got.insert(name, right);
            }
        }
        let want = model
            .disk
            .iter()
            .map(|(d, sound)| (d.hex(), *sound))
            .collect();
        assert_eq!(got, want, "{l:?}: the cache, and what of it is sound");
        let stored = self.state(l).load();
        let held: Vec<_> = model
            .held
            .iter()
            .map(|(s, e)| (s.md().uri(), e.parsed()))
            .collect();
        let held: BTreeMap<_, _> = held.iter().map(|(u, e)| (&**u, e)).collect();
        let journal = stored.held.iter().map(|e| (&*e.uri, e)).collect();
        assert_eq!(held, journal, "{l:?}: the journal of windows");
        let want = model.verdicts.iter().map(|(s, v)| {
            let set = |rows: &Rows| {
                let entry = Entry {
                    skill: *s,
                    rows: rows.clone(),
                    lie: false,
                };
                entry.parsed().set().unwrap()
            };
            let verdict = match v {
                Verdict::Approved(rows, scope) => skill::Verdict::Approved(set(rows), *scope),
                Verdict::Lapsed(rows) => skill::Verdict::Lapsed(set(rows)),
                Verdict::Revoked => skill::Verdict::Revoked,
            };
            (Arc::from(s.md().uri()), verdict)
        });
        assert_eq!(stored.verdicts, want.collect(), "{l:?}: the verdicts");
        if let Some(listing) = stored.listing {
            let got: BTreeMap<_, _> = listing.entries.iter().map(|e| (&*e.uri, &**e)).collect();
            let known: Vec<_> = model
                .known
                .values()
                .filter_map(|w| match w {
                    Word::Entry(e) => Some(e.parsed()),
                    Word::Bad => None,
                })
                .collect();
            let want = known.iter().map(|e| (&*e.uri, &**e)).collect();
            assert_eq!(got, want, "{l:?}: the stored listing");
        } else {
            assert!(model.listing.is_none(), "{l:?}: the listing is not stored");
        }
    }

    /// The files in the mount are in step with the status.
    pub(super) fn check_files(&self, status: &Status) {
        let tree = self.host().tree();
        for server in &status.servers {
            let path = [".mount-skills", &*server.label, "status.json"];
            let ino = path
                .into_iter()
                .fold(ROOT, |dir, name| match tree.lookup(dir, name) {
                    Lookup::Found(attr) => attr.ino,
                    other => panic!("{name}: {other:?}"),
                });
            let text = self.run(self.host().read(ino)).unwrap();
            let file: ServerStatus = serde_json::from_slice(text.bytes()).unwrap();
            let states = |s: &ServerStatus| {
                let states = s.skills.iter().map(|s| (s.path.clone(), s.state.clone()));
                (
                    s.state.clone(),
                    s.listing.clone(),
                    states.collect::<Vec<_>>(),
                )
            };
            assert_eq!(states(&file), states(server), "status.json");
        }
    }

    /// What was read through an inode that is gone is stale.
    fn check_inodes(&self) {
        let process = self.process.as_ref().unwrap();
        for (ino, what) in &process.inodes {
            if process.host.tree().attr(*ino).is_none() {
                let got = self.run(process.host.read(*ino)).map(drop);
                assert_eq!(got, Err(ReadError::Stale), "a gone inode that was {what:?}");
            }
        }
    }

    /// No page stays in the kernel of a skill that may not be read any more.
    pub(super) fn check_pages(&mut self) {
        let process = self.process.as_mut().unwrap();
        for change in process.told.lock().unwrap().drain(..) {
            if let Change::Pages(ino) = change {
                process.pages.remove(&ino);
            }
        }
        let tree = process.host.tree();
        let there = |ino: &u64| tree.attr(*ino).is_some();
        for (ino, (l, skills)) in &mut process.pages {
            let model = &self.models[*l as usize];
            let withdrawn = |s: &Sk| !model.known.contains_key(s) && !model.held.contains_key(s);
            let may = |s: &Sk| !withdrawn(s) && model.standing(*s, self.policy) == Standing::Open;
            let what @ (_, file, body) = process.inodes[ino];
            let claims = model.claims(file, self.policy);
            let claims = readable(&claims);
            let vouch: Vec<Sk> = claims
                .iter()
                .filter(|c| c.row == body)
                .map(|c| c.entry.skill)
                .collect();
            if there(ino) && !vouch.is_empty() {
                *skills = vouch;
            }
            assert!(
                skills.iter().any(may) || skills.iter().all(withdrawn),
                "pages of {what:?} stay in the kernel, in the tree: {}",
                there(ino)
            );
        }
    }

    /// Reads every file whose read opens no window, asks no server and takes nothing from disk.
    pub(super) fn probe(&mut self) {
        for (l, file) in LABELS.into_iter().flat_map(|l| FILES.map(|f| (l, f))) {
            let mut then = self.models[l as usize].clone();
            let (memory, disk, held) = (then.memory.clone(), then.disk.clone(), then.held.clone());
            let mut wire = Wire::default();
            if !then.claims(file, self.policy).is_empty() {
                let server = self.servers[l as usize].lock().unwrap();
                let _ = then.read(file, self.policy, &server, &mut wire);
            }
            if wire == Wire::default()
                && (memory, disk, held) == (then.memory, then.disk, then.held)
            {
                self.read(l, file, 1);
            }
        }
    }
}
