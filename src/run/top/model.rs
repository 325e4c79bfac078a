//! What `top` shows and what keys do to it: no terminal, no socket, no clock of its own.
//!
//! A skill is asked about by its server's label and its URI, and never by what is shown of its
//! path: two paths may look the same.
//!
//! All texts are escaped by the daemon already; they are escaped again here, which changes nothing
//! of what is escaped and lets nothing else through.

use super::about;
use crate::cli::print::size;
use crate::cli::review::{Line, Tone};
use crate::domain::text::printable;
use crate::host::command::Detail;
use crate::host::report::{ServerStatus, SkillStatus, Status};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Rates are over so many statuses.
const SAMPLES: usize = 5;
/// A status that is older says that the daemon does not answer.
const STALE: Duration = Duration::from_secs(3);
/// Pauses between two statuses that are longer are said.
const SELDOM: Duration = Duration::from_secs(1);
const TEXT: usize = 1000;
/// How long it takes to see that another row is selected than the one that was.
const SIGHT: Duration = Duration::from_millis(500);

/// What there is to tell the model.
pub(super) enum News {
    /// A status, when it came, and how long it will be until the next one is asked for.
    Status(Box<Status>, Instant, Duration),
    /// There is no status, and why.
    Gone(String),
    /// A skill that was asked for, and what there is to see of it.
    Review(Box<Detail>, Vec<Line>, Then),
    /// What was approved is not what is published.
    Moved { skill: Name, why: String },
    /// A key was pressed, and when.
    Key(KeyEvent, Instant),
    /// An order was carried out, or not.
    Done(Result<String, String>),
    /// The program was stopped until now.
    Continued(Instant),
}

/// What is to be done because of some news.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    Quit,
    Ask(Order),
}

/// What is to be asked of the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Order {
    Look(Name, Then),
    Approve { skill: Name, set: String },
    Refresh(Name),
    Release(Name),
}

/// A skill: what the daemon is asked about, and what is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
    /// `LABEL/URI`: names may look the same once they are escaped.
    pub(super) exact: String,
    /// `LABEL/SKILL-PATH`, escaped.
    pub(super) shown: String,
}

/// What happens once a skill is on the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    /// The user looks at it.
    Look,
    /// The user is asked whether to approve it.
    Ask,
}

/// Where the keys go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Focus {
    List,
    Page,
    /// A yes or a no to approving the set of the page.
    Question,
}

/// The parts of the list, from top to bottom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Servers,
    Skills,
    Refused,
}

/// Which row of a part is selected, and which are on the screen.
#[derive(Debug)]
pub(super) struct Cursor {
    pub(super) selected: usize,
    /// The first row on the screen.
    pub(super) first: usize,
    /// How many rows fit.
    pub(super) fits: usize,
}

impl Cursor {
    const START: Self = Self {
        selected: 0,
        first: 0,
        fits: 1,
    };

    /// Stays on the row that was selected, wherever it is by now.
    fn follow<T>(&mut self, old: &[T], new: &[T], same: impl Fn(&T, &T) -> bool) {
        let was = old.get(self.selected);
        let found = was.and_then(|was| new.iter().position(|row| same(row, was)));
        self.selected = found.unwrap_or(self.selected);
        self.selected = self.selected.min(new.len().saturating_sub(1));
    }
}

/// A skill, or a declined one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) name: Name,
    pub(super) state: String,
    pub(super) size: String,
    pub(super) about: String,
    pub(super) tone: Tone,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Skill,
    Declined,
}

/// One server, or one of the configuration that is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerRow {
    pub(super) label: String,
    pub(super) state: String,
    pub(super) era: String,
    pub(super) skills: usize,
    pub(super) rate: String,
    pub(super) requests: u64,
    /// How it is reached, or where it is declared.
    pub(super) target: String,
    /// Why it is in its state.
    pub(super) reason: Option<String>,
    pub(super) tone: Tone,
    /// All there is to say of it.
    whole: Vec<Line>,
}

/// Reads of a file that were refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RefusedRow {
    /// What readers got, and how often.
    pub(super) outcome: String,
    pub(super) path: String,
    pub(super) reason: String,
    /// What to do about it.
    next: String,
    uri: String,
    /// All there is to say of it.
    whole: Vec<Line>,
}

/// What is looked at, line by line as wide as the screen.
pub(super) struct Page {
    /// The skill, if it shows one.
    pub(super) skill: Option<Box<Detail>>,
    /// As they are to be wrapped.
    pub(super) lines: Vec<Line>,
    /// The first row on the screen.
    pub(super) top: usize,
    /// How many rows there are, and how many fit; known once it was drawn.
    pub(super) extent: (usize, usize),
    /// Without a gap, so many of the first rows have been on the screen.
    pub(super) seen: usize,
    /// When all of the question came on the screen.
    pub(super) asked: Option<Instant>,
    /// The rows for a width.
    pub(super) wrapped: Option<(usize, Vec<Line>)>,
}

/// Counts at one time.
struct Sample {
    at: Instant,
    pid: u32,
    reads: u64,
    requests: BTreeMap<String, u64>,
}

pub(super) struct Model {
    pub(super) status: Status,
    pub(super) focus: Focus,
    pub(super) page: Option<Page>,
    /// The part in which a row is selected.
    pub(super) part: Part,
    pub(super) servers: (Vec<ServerRow>, Cursor),
    pub(super) skills: (Vec<Row>, Cursor),
    pub(super) refused: (Vec<RefusedRow>, Cursor),
    /// The last thing to say.
    word: Option<Line>,
    /// The skill whose approval was asked for last.
    approved: Option<Name>,
    /// When another row came to be selected than by a key.
    turned: Option<Instant>,
    /// Why there is no newer status.
    gone: Option<String>,
    /// What is being asked for.
    busy: Option<String>,
    /// When the status came, and how long it is until the next one.
    seen: (Instant, Duration),
    samples: VecDeque<Sample>,
}

impl Model {
    pub(super) fn new(status: Status, now: Instant) -> Self {
        let mut model = Self {
            status,
            focus: Focus::List,
            page: None,
            part: Part::Skills,
            servers: (Vec::new(), Cursor::START),
            skills: (Vec::new(), Cursor::START),
            refused: (Vec::new(), Cursor::START),
            word: None,
            approved: None,
            turned: None,
            gone: None,
            busy: None,
            seen: (now, Duration::ZERO),
            samples: VecDeque::new(),
        };
        model.renew(now);
        model
    }

    /// Takes in what a thread has to tell; what is to be done next, if anything.
    pub(super) fn hear(&mut self, news: News) -> Option<Next> {
        match news {
            News::Status(status, now, pause) => {
                if self.gone.take().is_some() {
                    self.say(Tone::New, "the daemon is back");
                }
                self.status = *status;
                self.seen = (now, pause);
                self.renew(now);
            }
            News::Key(key, at) => return self.press(key, at),
            News::Continued(now) => self.seen.0 = now,
            News::Gone(why) => self.gone = Some(printable(&why, TEXT)),
            News::Review(detail, lines, then) => {
                self.busy = None;
                let focus = match then {
                    Then::Ask if detail.set.is_empty() => {
                        self.say(Tone::Warning, Detail::NO_SET);
                        Focus::Page
                    }
                    Then::Ask => Focus::Question,
                    Then::Look => Focus::Page,
                };
                self.open(Some(detail), lines);
                self.focus = focus;
            }
            News::Moved { skill, why } => {
                self.busy = None;
                self.say(Tone::Warning, &why);
                return self.start(skill, "looking at it again:", |s| {
                    Order::Look(s, Then::Look)
                });
            }
            News::Done(outcome) => {
                self.busy = None;
                match outcome {
                    Ok(text) => {
                        self.say(Tone::New, &text);
                        // What was approved is no longer to be looked at.
                        if self.page.as_ref().is_some_and(|page| page.skill.is_some()) {
                            self.close();
                        }
                    }
                    Err(text) => self.say(Tone::Warning, &text),
                }
            }
        }
        None
    }

    /// Makes the rows of the status, and stays on those that are selected.
    fn renew(&mut self, now: Instant) {
        self.sample(now);
        let before = self.selected();
        let servers = self.server_rows();
        let (old, cursor) = &mut self.servers;
        cursor.follow(old, &servers, |a, b| a.label == b.label);
        *old = servers;

        let skills = skill_rows(&self.status);
        let (old, cursor) = &mut self.skills;
        let was = old.get(cursor.selected).map(|row| row.name.clone());
        let is = skills.iter().find(|row| Some(&row.name) == was.as_ref());
        let settled = is.is_some_and(|row| row.tone != Tone::Warning);
        if settled && self.approved.is_some() && self.approved == was {
            // It went down the list, and the next that wants a look is in its place.
            self.approved = None;
        } else {
            cursor.follow(old, &skills, |a, b| a.name == b.name);
        }
        cursor.selected = cursor.selected.min(skills.len().saturating_sub(1));
        *old = skills;

        let refused = refused_rows(&self.status);
        let (old, cursor) = &mut self.refused;
        cursor.follow(old, &refused, |a, b| (&a.path, &a.uri) == (&b.path, &b.uri));
        *old = refused;
        if self.extent().1 == 0 {
            self.part = Part::Skills;
        }
        if before.is_some() && before != self.selected() {
            self.turned = Some(now);
        }
    }

    /// What tells the selected row from all others.
    fn selected(&self) -> Option<(Part, String)> {
        let name = match self.part {
            Part::Servers => {
                let (rows, cursor) = &self.servers;
                rows.get(cursor.selected)?.label.clone()
            }
            Part::Skills => {
                let (rows, cursor) = &self.skills;
                rows.get(cursor.selected)?.name.exact.clone()
            }
            Part::Refused => {
                let (rows, cursor) = &self.refused;
                let row = rows.get(cursor.selected)?;
                format!("{} {}", row.path, row.uri)
            }
        };
        Some((self.part, name))
    }

    /// The cursor in the part where a row is selected, and how many rows that has.
    fn extent(&mut self) -> (&mut Cursor, usize) {
        match self.part {
            Part::Servers => (&mut self.servers.1, self.servers.0.len()),
            Part::Skills => (&mut self.skills.1, self.skills.0.len()),
            Part::Refused => (&mut self.refused.1, self.refused.0.len()),
        }
    }

    /// What a key does; what is to be done, if anything.
    fn press(&mut self, key: KeyEvent, at: Instant) -> Option<Next> {
        let code = key.code;
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return (code == KeyCode::Char('c')).then_some(Next::Quit);
        }
        match self.focus {
            Focus::Question => self.answer(code, at),
            Focus::Page => self.in_page(code),
            Focus::List => self.in_list(code, at),
        }
    }

    fn in_list(&mut self, code: KeyCode, typed: Instant) -> Option<Next> {
        self.word = None;
        let acts = matches!(code, KeyCode::Enter | KeyCode::Char('a' | 'd' | 'r' | 'R'));
        if acts && self.turned.is_some_and(|turned| typed < turned + SIGHT) {
            // It was for the row that was there before.
            self.say(
                Tone::Plain,
                "another row is selected now; press the key again if it is meant",
            );
            return None;
        }
        self.turned = None;
        let (cursor, all) = self.extent();
        let (at, last, fits) = (cursor.selected, all.saturating_sub(1), cursor.fits.max(1));
        match code {
            KeyCode::Char('q') | KeyCode::Esc => return Some(Next::Quit),
            KeyCode::Char('?') => self.open(None, about::help()),
            KeyCode::Up | KeyCode::Char('k') if at == 0 => self.turn(Way::Up),
            KeyCode::Up | KeyCode::Char('k') => cursor.selected = at - 1,
            KeyCode::Down | KeyCode::Char('j') if at >= last => self.turn(Way::Down),
            KeyCode::Down | KeyCode::Char('j') => cursor.selected = at + 1,
            KeyCode::PageUp => cursor.selected = at.saturating_sub(fits),
            KeyCode::PageDown | KeyCode::Char(' ') => {
                cursor.selected = at.saturating_add(fits).min(last);
            }
            KeyCode::Home | KeyCode::Char('g') => cursor.selected = 0,
            KeyCode::End | KeyCode::Char('G') => cursor.selected = last,
            KeyCode::Tab => self.turn(Way::Around),
            KeyCode::Enter | KeyCode::Char('d') => return self.look(),
            KeyCode::Char('a') => {
                return self.on_skill("looking at", |s| Order::Look(s, Then::Ask));
            }
            KeyCode::Char('r') => return self.on_skill("refreshing", Order::Refresh),
            KeyCode::Char('R') => return self.on_skill("releasing", Order::Release),
            _ => {}
        }
        None
    }

    /// Goes on to the next part that has rows.
    fn turn(&mut self, way: Way) {
        use Part::{Refused, Servers, Skills};
        let was = self.part;
        let next: &[Part] = match (was, way) {
            (Servers, Way::Up) | (Refused, Way::Down) => &[],
            (Servers, _) => &[Skills, Refused],
            (Skills, Way::Up) => &[Servers],
            (Skills, Way::Down) => &[Refused],
            (Skills, Way::Around) => &[Refused, Servers],
            (Refused, Way::Up) => &[Skills, Servers],
            (Refused, Way::Around) => &[Servers, Skills],
        };
        for part in next {
            self.part = *part;
            let (cursor, all) = self.extent();
            if all > 0 {
                match way {
                    Way::Up => cursor.selected = all - 1,
                    Way::Down => cursor.selected = 0,
                    Way::Around => {}
                }
                return;
            }
        }
        self.part = was;
    }

    fn in_page(&mut self, code: KeyCode) -> Option<Next> {
        self.word = None;
        let Some(page) = &mut self.page else {
            self.focus = Focus::List;
            return None;
        };
        let (rows, fits) = page.extent;
        let most = rows.saturating_sub(fits);
        match code {
            KeyCode::Char('q') | KeyCode::Esc => self.close(),
            KeyCode::Up | KeyCode::Char('k') => page.top = page.top.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') | KeyCode::Enter => {
                page.top = page.top.saturating_add(1).min(most);
            }
            KeyCode::PageUp | KeyCode::Char('b') => page.top = page.top.saturating_sub(fits),
            KeyCode::PageDown | KeyCode::Char(' ') => {
                page.top = page.top.saturating_add(fits).min(most);
            }
            KeyCode::Home | KeyCode::Char('g') => page.top = 0,
            KeyCode::End | KeyCode::Char('G') => page.top = most,
            KeyCode::Char('a') => match &page.skill {
                Some(detail) if detail.set.is_empty() => self.say(Tone::Warning, Detail::NO_SET),
                Some(_) => self.focus = Focus::Question,
                None => {}
            },
            _ => {}
        }
        None
    }

    /// Only `y` is a yes. Moving about is no answer, nor is what was typed before there was
    /// something to see.
    fn answer(&mut self, code: KeyCode, at: Instant) -> Option<Next> {
        let page = self.page.as_ref()?;
        if page.asked.is_none_or(|asked| at < asked) {
            return match code {
                KeyCode::Char('y' | 'Y') => None,
                _ => self.not_approved(),
            };
        }
        match code {
            KeyCode::Up
            | KeyCode::Down
            | KeyCode::PageUp
            | KeyCode::PageDown
            | KeyCode::Home
            | KeyCode::End => {
                self.in_page(code);
                None
            }
            KeyCode::Char('y' | 'Y') => {
                let detail = page.skill.as_ref()?;
                let (skill, set) = (Name::of(detail), detail.set.clone());
                self.ask_no_more();
                self.approved = Some(skill.clone());
                self.start(skill, "approving", |skill| Order::Approve { skill, set })
            }
            _ => self.not_approved(),
        }
    }

    fn not_approved(&mut self) -> Option<Next> {
        self.ask_no_more();
        self.say(Tone::Plain, "not approved");
        None
    }

    fn ask_no_more(&mut self) {
        self.focus = Focus::Page;
        if let Some(page) = &mut self.page {
            page.asked = None;
        }
    }

    fn open(&mut self, skill: Option<Box<Detail>>, lines: Vec<Line>) {
        self.focus = Focus::Page;
        self.page = Some(Page {
            skill,
            lines,
            top: 0,
            extent: (0, 1),
            seen: 0,
            asked: None,
            wrapped: None,
        });
    }

    fn close(&mut self) {
        self.page = None;
        self.focus = Focus::List;
    }

    /// Shows all of what is selected.
    fn look(&mut self) -> Option<Next> {
        let lines = match self.part {
            Part::Servers => self.servers.0.get(self.servers.1.selected)?.whole.clone(),
            Part::Refused => self.refused.0.get(self.refused.1.selected)?.whole.clone(),
            Part::Skills => match self.skills.0.get(self.skills.1.selected)? {
                row if row.kind == Kind::Declined => about::declined(row),
                _ => return self.on_skill("looking at", |s| Order::Look(s, Then::Look)),
            },
        };
        self.open(None, lines);
        None
    }

    fn on_skill(&mut self, doing: &str, order: impl FnOnce(Name) -> Order) -> Option<Next> {
        let row = match self.part {
            Part::Skills => self.skills.0.get(self.skills.1.selected),
            Part::Servers | Part::Refused => None,
        };
        match row {
            Some(row) if row.kind == Kind::Skill => self.start(row.name.clone(), doing, order),
            Some(_) => {
                self.say(
                    Tone::Warning,
                    "it is declined: there is nothing to approve or refresh",
                );
                None
            }
            None => {
                self.say(Tone::Warning, "that is for a skill: select one");
                None
            }
        }
    }

    /// One order at a time.
    fn start(
        &mut self,
        skill: Name,
        doing: &str,
        order: impl FnOnce(Name) -> Order,
    ) -> Option<Next> {
        if let Some(busy) = &self.busy {
            let text = format!("wait: {busy}");
            self.say(Tone::Warning, &text);
            return None;
        }
        self.busy = Some(printable(&format!("{doing} {} …", skill.shown), TEXT));
        Some(Next::Ask(order(skill)))
    }

    fn say(&mut self, tone: Tone, text: &str) {
        let text = printable(text, TEXT);
        self.word = (!text.is_empty()).then_some(Line { tone, text });
    }

    fn sample(&mut self, at: Instant) {
        let pid = self.status.pid;
        // Another daemon counts from the start.
        self.samples.retain(|s| s.pid == pid);
        let requests = self.status.servers.iter();
        self.samples.push_back(Sample {
            at,
            pid,
            reads: reads(&self.status),
            requests: requests
                .map(|s| (s.label.clone(), requests_of(s)))
                .collect(),
        });
        while self.samples.len() > SAMPLES {
            self.samples.pop_front();
        }
    }

    /// How fast a count grows.
    fn rate(&self, count: impl Fn(&Sample) -> u64) -> f64 {
        let (Some(first), Some(last)) = (self.samples.front(), self.samples.back()) else {
            return 0.0;
        };
        let seconds = (last.at - first.at).as_secs_f64();
        match seconds > 0.0 {
            true => count(last).saturating_sub(count(first)) as f64 / seconds,
            false => 0.0,
        }
    }

    /// What it is and where, and what it does.
    pub(super) fn head(&self) -> [String; 2] {
        let status = &self.status;
        let place = printable(&status.mountpoint, TEXT);
        let requests = |s: &Sample| s.requests.values().sum();
        let all: u64 = status.servers.iter().map(requests_of).sum();
        let cache = match &status.cache {
            Some(c) => format!("{}, {} hits", size(c.bytes), c.hits),
            None => "not in use".into(),
        };
        let seldom = match self.seen.1 {
            pause if pause > SELDOM => format!(", every {:.0} s", pause.as_secs_f64()),
            _ => String::new(),
        };
        [
            format!(
                "mount-skills {}  {place}  approval {}, hold {}{seldom}",
                printable(&status.version, 40),
                printable(&status.approval, 40),
                printable(&status.hold, 40)
            ),
            format!(
                "reads {}, {} in all   requests {}, {all} in all   cache {cache}",
                per_second(self.rate(|s| s.reads)),
                reads(status),
                per_second(self.rate(requests)),
            ),
        ]
    }

    /// The servers, first those with something to look at.
    fn server_rows(&self) -> Vec<ServerRow> {
        let used = self.status.servers.iter().map(|server| {
            let of = |s: &Sample| s.requests.get(&server.label).copied().unwrap_or_default();
            let reason = server.reason.as_ref().or(server.listing_reason.as_ref());
            ServerRow {
                label: printable(&server.label, TEXT),
                state: printable(&server.state, TEXT),
                era: printable(server.era.as_deref().unwrap_or("-"), TEXT),
                skills: server.skills.len(),
                rate: per_second(self.rate(of)),
                requests: requests_of(server),
                target: printable(&server.target, TEXT),
                reason: reason.map(|reason| printable(reason, TEXT)),
                tone: match (&*server.state, reason) {
                    ("ready", None) => Tone::New,
                    ("starting", _) => Tone::Plain,
                    _ => Tone::Warning,
                },
                whole: about::server(server),
            }
        });
        let unused = self.status.unused.iter().map(|unused| ServerRow {
            label: printable(&unused.label, TEXT),
            state: "not used".into(),
            era: "-".into(),
            skills: 0,
            rate: per_second(0.0),
            requests: 0,
            target: printable(&unused.from, TEXT),
            reason: Some(printable(&unused.reason, TEXT)),
            tone: Tone::Warning,
            whole: about::unused(unused),
        });
        let all = used.chain(unused);
        let (mut rows, others): (Vec<ServerRow>, _) = all.partition(|r| r.tone == Tone::Warning);
        rows.extend(others);
        rows
    }

    /// What stands above the keys: what went wrong, what is going on, what was done.
    pub(super) fn message(&self, now: Instant) -> Option<Line> {
        let line = |tone, text| Some(Line { tone, text });
        let (seen, pause) = self.seen;
        let age = now.saturating_duration_since(seen);
        match (&self.gone, &self.word, &self.busy) {
            (Some(why), _, _) => {
                let text =
                    format!("the daemon is gone; this is how it was, and it is waited for: {why}");
                line(Tone::Warning, text)
            }
            (_, _, _) if age > pause + STALE => {
                let text = format!("the daemon has not answered for {} s", age.as_secs());
                line(Tone::Warning, text)
            }
            (_, _, Some(busy)) => line(Tone::Aside, busy.clone()),
            (_, word, _) => word.clone(),
        }
    }

    /// What the selected row means.
    pub(super) fn hint(&self) -> String {
        let hint = match self.part {
            Part::Servers => self.servers.0.get(self.servers.1.selected).map(|row| {
                let text = row.reason.as_ref().unwrap_or(&row.target);
                format!("{}: {text}", row.label)
            }),
            Part::Skills => self
                .skills
                .0
                .get(self.skills.1.selected)
                .map(|row| match row.kind {
                    Kind::Skill => about::state(&row.state).to_owned(),
                    Kind::Declined => format!("declined: {}", row.about),
                }),
            Part::Refused => self
                .refused
                .0
                .get(self.refused.1.selected)
                .map(|row| format!("{}; {}", row.reason, row.next)),
        };
        hint.unwrap_or_default()
    }

    /// How many skills want to be looked at.
    pub(super) fn wanting(&self) -> usize {
        let rows = self.skills.0.iter();
        rows.filter(|r| r.tone == Tone::Warning).count()
    }

    /// Why there are no skills to show.
    pub(super) fn no_skills(&self) -> &'static str {
        let is = |state: &str| self.status.servers.iter().any(|s| s.state == state);
        match self.status.servers.iter().all(|s| s.state == "ready") {
            _ if self.status.servers.is_empty() => "none: this mount has no server",
            true => "none: no server lists any",
            false if is("starting") => "none yet: not all servers have answered",
            false => "none: see the servers above; Tab selects one, Enter says more",
        }
    }
}

/// Where a key leads from the edge of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Up,
    Down,
    /// Down, and from the last one to the first.
    Around,
}

impl Name {
    /// The name of a skill that was shown.
    fn of(detail: &Detail) -> Self {
        Self {
            exact: format!("{}/{}", detail.label, detail.uri),
            shown: printable(&detail.skill, TEXT),
        }
    }
}

fn reads(status: &Status) -> u64 {
    status.upcalls.get("read").copied().unwrap_or_default()
}

fn requests_of(server: &ServerStatus) -> u64 {
    let connection = server.connection.as_ref();
    connection.map_or(0, |c| c.requests.values().sum())
}

fn per_second(rate: f64) -> String {
    match rate {
        0.0 => "0/s".into(),
        r if r < 10.0 => format!("{r:.1}/s"),
        r => format!("{r:.0}/s"),
    }
}

/// The skills that want to be looked at, the other ones, the declined ones.
fn skill_rows(status: &Status) -> Vec<Row> {
    let skill = |label: &str, skill: &SkillStatus| {
        let tone = match &*skill.state {
            "listed" => Tone::Plain,
            "held" => Tone::New,
            "revoked" => Tone::Gone,
            "dynamic" => Tone::Aside,
            _ => Tone::Warning,
        };
        let about = match &skill.changes {
            Some(changes) => changes.summary(),
            None => skill.description.clone(),
        };
        Row {
            name: Name {
                exact: format!("{label}/{}", skill.uri),
                shown: printable(&skill.path, TEXT),
            },
            state: printable(&skill.state, TEXT),
            size: size(skill.bytes),
            about: printable(&about, TEXT),
            tone,
            kind: Kind::Skill,
        }
    };
    let servers = status.servers.iter();
    let skills = servers.flat_map(|s| s.skills.iter().map(move |row| skill(&s.label, row)));
    let (mut rows, others): (Vec<Row>, Vec<Row>) = skills.partition(|r| r.tone == Tone::Warning);
    rows.extend(others);
    let servers = status.servers.iter();
    rows.extend(servers.flat_map(|s| {
        s.declined.iter().map(|d| {
            let uri = d.uri.as_deref().unwrap_or("(no URI)");
            Row {
                name: Name {
                    exact: format!("{}/{uri}", s.label),
                    shown: printable(d.path.as_deref().unwrap_or(uri), TEXT),
                },
                state: "declined".into(),
                size: String::new(),
                about: printable(&d.reason, TEXT),
                tone: Tone::Gone,
                kind: Kind::Declined,
            }
        })
    }));
    rows
}

/// The refused reads, the newest first.
fn refused_rows(status: &Status) -> Vec<RefusedRow> {
    let all = status.servers.iter().flat_map(|s| &s.refused);
    let mut all: Vec<_> = all.collect();
    all.sort_by_key(|r| std::cmp::Reverse(r.at));
    let rows = all.into_iter().map(|r| RefusedRow {
        outcome: match r.times {
            1 => printable(&r.errno, TEXT),
            n => format!("{}, {n} times", printable(&r.errno, TEXT)),
        },
        path: printable(&r.path, TEXT),
        reason: printable(&r.reason, TEXT),
        next: printable(&r.next, TEXT),
        uri: printable(&r.uri, TEXT),
        whole: about::refused(r),
    });
    rows.collect()
}
