//! What `top` shows and what keys do to it: no terminal, no socket, no clock of its own.
//!
//! All texts are escaped by the daemon already; they are escaped again here, which changes nothing
//! of what is escaped and lets nothing else through.

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
const TEXT: usize = 1000;

/// What the threads of `top` tell the screen.
pub(super) enum News {
    /// A status, and when it came.
    Status(Box<Status>, Instant),
    /// There is no status, and why.
    Gone(String),
    /// A skill that was asked for, and what there is to see of it.
    Review(Box<Detail>, Vec<Line>, Then),
    /// What was approved is not what is published.
    Moved { skill: String, why: String },
    /// A key was pressed, and when.
    Key(KeyEvent, Instant),
    /// The screen is another.
    Redraw,
    /// It is over.
    End,
    /// An order was carried out, or not.
    Done(Result<String, String>),
}

/// What is to be asked of the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Order {
    Quit,
    Look(String, Then),
    Approve { skill: String, set: String },
    Refresh(String),
    Release(String),
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
    Help,
}

/// A skill, or a declined one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) path: String,
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

/// One server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerRow {
    pub(super) label: String,
    pub(super) state: String,
    pub(super) era: String,
    pub(super) skills: usize,
    pub(super) rate: String,
    pub(super) requests: u64,
    /// Why it is in its state, or how it is reached.
    pub(super) about: String,
    pub(super) tone: Tone,
}

/// A skill that is looked at, line by line as wide as the screen.
pub(super) struct Page {
    detail: Detail,
    /// As they are to be wrapped.
    pub(super) lines: Vec<Line>,
    /// The first row on the screen.
    pub(super) top: usize,
    /// When it was first on the screen.
    pub(super) drawn: Option<Instant>,
    /// How many rows there are, and how many fit; known once it was drawn.
    pub(super) extent: (usize, usize),
    /// The rows for a width.
    pub(super) wrapped: Option<(u16, Vec<Line>)>,
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
    pub(super) rows: Vec<Row>,
    pub(super) selected: usize,
    /// The first row of the list on the screen.
    pub(super) first: usize,
    /// How many rows of the list fit.
    pub(super) fits: usize,
    /// The last thing to say.
    pub(super) word: Option<Line>,
    /// The skill whose approval was asked for last.
    approved: Option<String>,
    /// Why there is no newer status.
    gone: Option<String>,
    /// What is being asked for.
    busy: Option<String>,
    seen: Instant,
    samples: VecDeque<Sample>,
}

impl Model {
    pub(super) fn new(status: Status, now: Instant) -> Self {
        let mut model = Self {
            rows: rows(&status),
            status,
            focus: Focus::List,
            page: None,
            selected: 0,
            first: 0,
            fits: 1,
            word: None,
            approved: None,
            gone: None,
            busy: None,
            seen: now,
            samples: VecDeque::new(),
        };
        model.sample(now);
        model
    }

    /// Takes in what a thread has to tell; what is to be done next, if anything.
    pub(super) fn hear(&mut self, news: News) -> Option<Order> {
        match news {
            News::Status(status, now) => {
                if self.gone.take().is_some() {
                    self.say(Tone::New, "the daemon is back");
                }
                let selected = self.rows.get(self.selected).map(|row| row.path.clone());
                self.status = *status;
                self.seen = now;
                self.sample(now);
                self.rows = rows(&self.status);
                let same = |row: &Row| Some(&row.path) == selected.as_ref();
                let found = self.rows.iter().position(same);
                let row = found.and_then(|at| self.rows.get(at));
                let settled = row.is_some_and(|row| row.tone != Tone::Warning);
                if settled && self.approved.is_some() && self.approved == selected {
                    // It went down the list, and the next that wants a look is in its place.
                    self.approved = None;
                } else {
                    self.selected = found.unwrap_or(self.selected);
                }
                self.clamp();
            }
            News::Key(key, at) => return self.press(key, at),
            News::Redraw => {}
            News::End => return Some(Order::Quit),
            News::Gone(why) => self.gone = Some(printable(&why, TEXT)),
            News::Review(detail, lines, then) => {
                self.busy = None;
                self.focus = match then {
                    Then::Ask if detail.set.is_empty() => {
                        self.say(Tone::Warning, Detail::NO_SET);
                        Focus::Page
                    }
                    Then::Ask => Focus::Question,
                    Then::Look => Focus::Page,
                };
                self.page = Some(Page {
                    detail: *detail,
                    lines,
                    top: 0,
                    drawn: None,
                    extent: (0, 1),
                    wrapped: None,
                });
            }
            News::Moved { skill, why } => {
                self.busy = None;
                self.say(Tone::Warning, &why);
                return self.start(&skill, "looking at it again", |s| {
                    Order::Look(s, Then::Look)
                });
            }
            News::Done(outcome) => {
                self.busy = None;
                match outcome {
                    Ok(text) => {
                        self.say(Tone::New, &text);
                        // What was approved is no longer to be looked at.
                        self.close();
                    }
                    Err(text) => self.say(Tone::Warning, &text),
                }
            }
        }
        None
    }

    /// What a key does; what is to be done, if anything.
    fn press(&mut self, key: KeyEvent, at: Instant) -> Option<Order> {
        let code = key.code;
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control {
            return (code == KeyCode::Char('c')).then_some(Order::Quit);
        }
        match self.focus {
            Focus::Help => {
                self.focus = Focus::List;
                None
            }
            Focus::Question => self.answer(code, at),
            Focus::Page => self.in_page(code),
            Focus::List => self.in_list(code),
        }
    }

    fn in_list(&mut self, code: KeyCode) -> Option<Order> {
        self.word = None;
        let fits = self.fits.max(1);
        match code {
            KeyCode::Char('q') | KeyCode::Esc => return Some(Order::Quit),
            KeyCode::Char('?') => self.focus = Focus::Help,
            KeyCode::Up | KeyCode::Char('k') => self.selected = self.selected.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.selected = self.selected.saturating_add(1),
            KeyCode::PageUp => self.selected = self.selected.saturating_sub(fits),
            KeyCode::PageDown | KeyCode::Char(' ') => {
                self.selected = self.selected.saturating_add(fits);
            }
            KeyCode::Home | KeyCode::Char('g') => self.selected = 0,
            KeyCode::End | KeyCode::Char('G') => self.selected = usize::MAX,
            KeyCode::Enter | KeyCode::Char('d') => {
                return self.on_selected("looking at", |s| Order::Look(s, Then::Look));
            }
            KeyCode::Char('a') => {
                return self.on_selected("looking at", |s| Order::Look(s, Then::Ask));
            }
            KeyCode::Char('r') => return self.on_selected("refreshing", Order::Refresh),
            KeyCode::Char('R') => return self.on_selected("releasing", Order::Release),
            _ => {}
        }
        self.clamp();
        None
    }

    fn in_page(&mut self, code: KeyCode) -> Option<Order> {
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
            KeyCode::Char('a') if page.detail.set.is_empty() => {
                self.say(Tone::Warning, Detail::NO_SET);
            }
            KeyCode::Char('a') => self.focus = Focus::Question,
            _ => {}
        }
        None
    }

    /// Only `y` is a yes. Moving about is no answer, nor is what was typed before there was
    /// something to see.
    fn answer(&mut self, code: KeyCode, at: Instant) -> Option<Order> {
        let page = self.page.as_ref();
        if page.is_none_or(|page| page.drawn.is_none_or(|drawn| at < drawn)) {
            return None;
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
                self.focus = Focus::Page;
                let detail = &self.page.as_ref()?.detail;
                let (skill, set) = (detail.skill.clone(), detail.set.clone());
                self.approved = Some(skill.clone());
                self.start(&skill, "approving", |skill| Order::Approve { skill, set })
            }
            _ => {
                self.focus = Focus::Page;
                self.say(Tone::Plain, "not approved");
                None
            }
        }
    }

    fn close(&mut self) {
        self.page = None;
        self.focus = Focus::List;
    }

    fn on_selected(&mut self, doing: &str, order: impl FnOnce(String) -> Order) -> Option<Order> {
        let row = self.rows.get(self.selected)?;
        if row.kind == Kind::Declined {
            let text = format!("{} is declined: {}", row.path, row.about);
            self.say(Tone::Warning, &text);
            return None;
        }
        let path = row.path.clone();
        self.start(&path, doing, order)
    }

    /// One order at a time.
    fn start(
        &mut self,
        skill: &str,
        doing: &str,
        order: impl FnOnce(String) -> Order,
    ) -> Option<Order> {
        if let Some(busy) = &self.busy {
            let text = format!("wait: {busy}");
            self.say(Tone::Warning, &text);
            return None;
        }
        self.busy = Some(printable(&format!("{doing} {skill} …"), TEXT));
        Some(order(skill.to_owned()))
    }

    fn say(&mut self, tone: Tone, text: &str) {
        let text = printable(text, TEXT);
        self.word = (!text.is_empty()).then_some(Line { tone, text });
    }

    fn clamp(&mut self) {
        self.selected = self.selected.min(self.rows.len().saturating_sub(1));
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
        [
            format!(
                "mount-skills {}  {place}  approval {}, hold {}",
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

    pub(super) fn servers(&self) -> Vec<ServerRow> {
        let row = |server: &ServerStatus| {
            let of = |s: &Sample| s.requests.get(&server.label).copied().unwrap_or_default();
            let about = server.reason.as_ref().unwrap_or(&server.target);
            ServerRow {
                label: printable(&server.label, TEXT),
                state: printable(&server.state, TEXT),
                era: printable(server.era.as_deref().unwrap_or("-"), TEXT),
                skills: server.skills.len(),
                rate: per_second(self.rate(of)),
                requests: requests_of(server),
                about: printable(about, TEXT),
                tone: match (&*server.state, &server.reason) {
                    ("ready", None) => Tone::New,
                    ("starting", _) => Tone::Plain,
                    _ => Tone::Warning,
                },
            }
        };
        self.status.servers.iter().map(row).collect()
    }

    /// The last refused reads, the newest first.
    pub(super) fn refused(&self, most: usize) -> Vec<String> {
        let all = self.status.servers.iter().flat_map(|s| &s.refused);
        let mut all: Vec<_> = all.collect();
        all.sort_by_key(|r| std::cmp::Reverse(r.at));
        let lines = all.iter().take(most).map(|r| {
            let times = match r.times {
                1 => String::new(),
                n => format!(", {n} times"),
            };
            let text = format!("{}{times}  {}: {}", r.errno, r.path, r.reason);
            printable(&text, TEXT)
        });
        lines.collect()
    }

    /// How many skills want to be looked at.
    pub(super) fn wanting(&self) -> usize {
        self.rows.iter().filter(|r| r.tone == Tone::Warning).count()
    }

    /// The line above the keys: a question, what went wrong, what is going on, what was done.
    pub(super) fn line(&self, now: Instant) -> Line {
        let line = |tone, text| Line { tone, text };
        if self.focus == Focus::Question
            && let Some(page) = &self.page
        {
            let set = &page.detail.set;
            let text = format!("approve reading of exactly this set? y/n   {set}");
            return line(Tone::Warning, text);
        }
        let age = now.saturating_duration_since(self.seen);
        match (&self.gone, &self.word, &self.busy) {
            (Some(why), _, _) => {
                let text =
                    format!("the daemon is gone; this is how it was, and it is waited for: {why}");
                line(Tone::Warning, text)
            }
            (_, _, _) if age > STALE => {
                let text = format!("the daemon has not answered for {} s", age.as_secs());
                line(Tone::Warning, text)
            }
            (_, _, Some(busy)) => line(Tone::Aside, busy.clone()),
            (_, Some(word), _) => word.clone(),
            _ => line(Tone::Plain, String::new()),
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
fn rows(status: &Status) -> Vec<Row> {
    let skill = |skill: &SkillStatus| {
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
            path: printable(&skill.path, TEXT),
            state: printable(&skill.state, TEXT),
            size: size(skill.bytes),
            about: printable(&about, TEXT),
            tone,
            kind: Kind::Skill,
        }
    };
    let skills = status.servers.iter().flat_map(|s| &s.skills).map(skill);
    let (mut rows, others): (Vec<Row>, Vec<Row>) = skills.partition(|r| r.tone == Tone::Warning);
    rows.extend(others);
    let declined = status.servers.iter().flat_map(|s| &s.declined);
    rows.extend(declined.map(|d| {
        let path = d.path.as_ref().or(d.uri.as_ref());
        Row {
            path: printable(path.map_or("(no URI)", |p| p), TEXT),
            state: "declined".into(),
            size: String::new(),
            about: printable(&d.reason, TEXT),
            tone: Tone::Gone,
            kind: Kind::Declined,
        }
    }));
    rows
}
