//! Draws what the model holds. Rows of a list are cut to their width with a mark, and Enter shows
//! all of one; what is looked at, a question and a message are wrapped.

use super::model::{Cursor, Focus, Model, Page, Part, RefusedRow, Row, ServerRow};
use crate::cli::review::{Line, Tone, reminder};
use crate::host::report::count;
use crate::run::page::{columns, wrap};
use ratatui::Frame;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line as Drawn, Span};
use ratatui::widgets::Paragraph;
use std::time::Instant;

/// Servers and refusals take so much of the height, at most.
const SHARE: usize = 4;
/// A screen that is lower holds nothing but the part in which a row is selected.
const LOW: usize = 10;
/// A screen that is lower than this leaves out what is not needed.
const SHORT: usize = 16;
/// A narrower screen has no room for the columns of a wide one.
const NARROW: usize = 60;
const WIDE: usize = 120;
/// A reason takes so many rows below what it is about.
const REASON: usize = 2;
/// A message takes so many rows.
const MESSAGE: usize = 3;
/// The keys, by how much room there is.
const KEYS: [&str; 4] = [
    "↑↓ Tab select  Enter look  a approve  r refresh  R release  ? help  q quit",
    "↑↓ select  Enter look  a approve  ? help  q quit",
    "Enter look  a approve  ? help  q quit",
    "? help  q quit",
];
const OTHER_KEYS: [&str; 3] = [
    "↑↓ Tab select  Enter all of it  ? help  q quit",
    "Enter all of it  ? help  q quit",
    "? help  q quit",
];
const PAGE_KEYS: [&str; 3] = ["↑↓ Space scroll  q back", "q back", ""];
const SKILL_KEYS: [&str; 3] = [
    "↑↓ Space scroll  a approve  q back",
    "a approve  q back",
    "q back",
];

const QUESTION: &str = "approve reading of exactly this set? y/n";

/// What tones look like.
#[derive(Debug, Clone, Copy)]
pub(super) struct Looks {
    colours: bool,
}

impl Looks {
    pub(super) fn new(colours: bool) -> Self {
        Self { colours }
    }

    fn of(self, tone: Tone) -> Style {
        let plain = Style::new();
        let colour = |c: Color| match self.colours {
            true => plain.fg(c),
            false => plain,
        };
        match tone {
            Tone::Plain => plain,
            Tone::Heading => plain.add_modifier(Modifier::BOLD),
            Tone::Place => colour(Color::Cyan),
            Tone::New => colour(Color::Green),
            Tone::Gone => colour(Color::Red),
            Tone::Warning => colour(Color::Yellow).add_modifier(Modifier::BOLD),
            Tone::Aside => plain.add_modifier(Modifier::DIM),
        }
    }
}

pub(super) fn draw(frame: &mut Frame<'_>, model: &mut Model, looks: Looks, now: Instant) {
    let area = frame.area();
    let screen = Screen {
        width: usize::from(area.width),
        height: usize::from(area.height),
        looks,
    };
    let message = model.message(now);
    let rows = match (model.focus, &mut model.page) {
        (Focus::Question, Some(page)) => screen.question(page, now),
        (Focus::Page, Some(page)) => screen.page(page, message.as_ref()),
        _ => screen.list(model, message),
    };
    frame.render_widget(Paragraph::new(rows), area);
}

struct Screen {
    width: usize,
    height: usize,
    looks: Looks,
}

/// A row of a list, in one line or more.
#[derive(Clone)]
struct Item {
    tone: Tone,
    lines: Vec<String>,
}

impl Screen {
    /// A text as a row that is cut to the width.
    fn row(&self, tone: Tone, text: &str) -> Drawn<'static> {
        Drawn::styled(fit(text, self.width), self.looks.of(tone))
    }

    fn rows(&self, lines: &[Line]) -> Vec<Drawn<'static>> {
        lines.iter().map(|l| self.row(l.tone, &l.text)).collect()
    }

    /// The rows of a page that fit into so many, filled up.
    fn part_of(&self, page: &mut Page, fits: usize) -> Vec<Drawn<'static>> {
        if page.wrapped.as_ref().is_none_or(|(w, _)| *w != self.width) {
            let rows = page.lines.iter().flat_map(|line| wrap(line, self.width));
            let rows: Vec<Line> = rows.collect();
            // Rows of another width are others; who has seen all has seen all.
            let all = page.wrapped.is_some() && page.seen >= page.extent.0;
            (page.seen, page.top) = match all {
                true => (rows.len(), page.top),
                false => (0, 0),
            };
            page.wrapped = Some((self.width, rows));
        }
        let rows = page.wrapped.as_ref().map_or(&[][..], |(_, rows)| rows);
        page.extent = (rows.len(), fits);
        page.top = page.top.min(rows.len().saturating_sub(fits));
        if page.top <= page.seen {
            page.seen = page.seen.max((page.top + fits).min(rows.len()));
        }
        let shown: Vec<Line> = rows.iter().skip(page.top).take(fits).cloned().collect();
        let mut out = self.rows(&shown);
        out.resize(fits, Drawn::default());
        out
    }

    fn page(&self, page: &mut Page, message: Option<&Line>) -> Vec<Drawn<'static>> {
        let foot = match message {
            Some(line) => self.message(line),
            None => vec![Drawn::default()],
        };
        let mut out = self.part_of(page, self.height.saturating_sub(foot.len() + 1));
        out.extend(foot);
        let (rows, fits) = page.extent;
        let below = rows - (page.top + fits).min(rows);
        let place = format!("   {below} more below, {} above", page.top);
        let keys = match page.skill {
            Some(_) => SKILL_KEYS,
            None => PAGE_KEYS,
        };
        let keys = keys.map(|keys| format!("{keys}{place}"));
        out.push(self.row(Tone::Aside, self.longest(&keys)));
        out
    }

    /// A page, and below it what a yes would be for: all of the set, or there is no question.
    fn question(&self, page: &mut Page, now: Instant) -> Vec<Drawn<'static>> {
        let warning = |text: &str| Line {
            tone: Tone::Warning,
            text: text.into(),
        };
        let mut lines = match &page.skill {
            Some(detail) => reminder(detail, &page.lines),
            None => Vec::new(),
        };
        let set = lines.pop();
        if let Some(name) = lines.first_mut() {
            // No name is so long that it pushes out what is asked for.
            name.text = fit(&name.text, self.width.saturating_mul(2).saturating_sub(2));
        }
        let wrapped = |lines: &[Line]| -> Vec<Line> {
            lines.iter().flat_map(|l| wrap(l, self.width)).collect()
        };
        let question = wrapped(&[warning(QUESTION)]);
        let set = wrapped(set.as_slice());
        // A rule, how much was seen, and a row of the page.
        let least = set.len() + question.len() + 3;
        if least > self.height {
            page.asked = None;
            let text = "this screen is too small to show what would be approved. n: back";
            let rows = fold(text, self.width, self.height);
            let rows = rows.iter().map(|text| self.row(Tone::Warning, text));
            return rows.collect();
        }
        let mut lines = wrapped(&lines);
        let room = (self.height - least) * 2 / 3;
        if lines.len() > room {
            lines.truncate(room.saturating_sub(1));
            lines.push(warning("… more of this stands above"));
            lines.truncate(room);
        }
        let fits = self.height - least - lines.len() + 1;
        let mut out = self.part_of(page, fits);
        out.push(self.row(Tone::Aside, &"─".repeat(self.width)));
        out.extend(self.rows(&lines));
        out.push(match page.extent.0.saturating_sub(page.seen) {
            0 => self.row(Tone::Plain, "all of it has been on the screen"),
            n => {
                let text = format!("{n} rows of it not on the screen yet: ↑↓");
                self.row(Tone::Warning, &text)
            }
        });
        out.extend(self.rows(&set));
        out.extend(self.rows(&question));
        page.asked.get_or_insert(now);
        out
    }

    fn list(&self, model: &mut Model, message: Option<Line>) -> Vec<Drawn<'static>> {
        if self.height < LOW {
            return self.low_list(model, message);
        }
        let short = self.height < SHORT;
        let mut foot = match (&message, short) {
            (Some(line), _) => self.message(line),
            (None, true) => vec![self.row(Tone::Plain, &model.hint())],
            (None, false) => self.message(&Line {
                tone: Tone::Plain,
                text: model.hint(),
            }),
        };
        if !short && foot.len() < 2 {
            // It does not push the list about.
            foot.push(Drawn::default());
        }
        foot.push(self.keys(model.part));
        let body = self.height - foot.len();
        let share = (body / SHARE).max(2);

        let [what, figures] = model.head();
        let mut out = vec![self.row(Tone::Heading, &what)];
        if !short {
            out.push(self.row(Tone::Plain, &figures));
        }
        out.push(self.row(Tone::Heading, &server_heading(self.width)));
        let part = model.part;
        let (rows, cursor) = &mut model.refused;
        let mut below = Vec::new();
        if !rows.is_empty() && (!short || part == Part::Refused) {
            let items: Vec<Item> = rows.iter().map(|r| self.refused(r)).collect();
            below.push(self.row(Tone::Heading, "  REFUSED READS"));
            below.extend(self.some(&items, cursor, share, part == Part::Refused, "file"));
        }

        // Servers get what skills leave.
        let skills = model.skills.0.len().max(1) + 1;
        let left = body.saturating_sub(out.len() + below.len() + skills);
        let room = share.max(left);
        let (rows, cursor) = &mut model.servers;
        let items = |reason| -> Vec<Item> { rows.iter().map(|s| self.server(s, reason)).collect() };
        let mut all = items(REASON);
        if all.iter().map(|item| item.lines.len()).sum::<usize>() > room {
            all = items(1);
        }
        out.extend(self.some(&all, cursor, room, part == Part::Servers, "server"));

        let wanting = match model.wanting() {
            0 => String::new(),
            n => format!(", {n} to look at"),
        };
        let (rows, cursor) = &mut model.skills;
        let place = match rows.len() {
            0 => String::new(),
            all => format!("   {} of {all}", cursor.selected + 1),
        };
        out.push(self.row(Tone::Heading, &format!("  SKILLS{wanting}{place}")));
        let room = body.saturating_sub(out.len() + below.len()).max(1);
        match rows.is_empty() {
            true => out.push(self.row(Tone::Aside, &format!("  {}", model.no_skills()))),
            false => out.extend(self.skills(rows, cursor, room, part == Part::Skills)),
        }
        // At the lower edge, so that the list above keeps its place.
        out.resize(body.saturating_sub(below.len()), Drawn::default());
        out.extend(below);
        out.extend(foot);
        out
    }

    /// Only the part in which a row is selected, and what there is to say, or else the keys.
    fn low_list(&self, model: &mut Model, message: Option<Line>) -> Vec<Drawn<'static>> {
        let room = self.height.saturating_sub(1).max(1);
        let mut out = match model.part {
            Part::Servers => {
                let (rows, cursor) = &mut model.servers;
                let items: Vec<Item> = rows.iter().map(|s| self.server(s, REASON)).collect();
                self.window(&items, cursor, room, true)
            }
            Part::Refused => {
                let (rows, cursor) = &mut model.refused;
                let items: Vec<Item> = rows.iter().map(|r| self.refused(r)).collect();
                self.window(&items, cursor, room, true)
            }
            Part::Skills if model.skills.0.is_empty() => {
                vec![self.row(Tone::Aside, model.no_skills())]
            }
            Part::Skills => {
                let (rows, cursor) = &mut model.skills;
                self.skills(rows, cursor, room, true)
            }
        };
        out.resize(room, Drawn::default());
        out.push(match message {
            Some(line) => self.row(line.tone, &line.text),
            None => self.keys(model.part),
        });
        out
    }

    /// As many rows as fit, the selected one among them, and how many there are besides.
    fn some(
        &self,
        items: &[Item],
        cursor: &mut Cursor,
        room: usize,
        chosen: bool,
        noun: &str,
    ) -> Vec<Drawn<'static>> {
        let all: usize = items.iter().map(|item| item.lines.len()).sum();
        if all <= room {
            return self.window(items, cursor, room, chosen);
        }
        let mut out = self.window(items, cursor, room.saturating_sub(1), chosen);
        let left_out = items.len() - cursor.fits.min(items.len());
        if left_out > 0 {
            let text = format!("  … {}", count(left_out, &format!("more {noun}")));
            out.push(self.row(Tone::Aside, &text));
        }
        out
    }

    fn skills(
        &self,
        rows: &[Row],
        cursor: &mut Cursor,
        room: usize,
        chosen: bool,
    ) -> Vec<Drawn<'static>> {
        // One line each, of which only those on the screen are made.
        cursor.show(rows.iter().map(|_| 1), room);
        let items = rows.iter().skip(cursor.first).take(cursor.fits);
        let items = items.map(|row| Item {
            tone: row.tone,
            lines: vec![skill_line(row, self.width)],
        });
        self.marked(items, cursor, chosen)
    }

    fn window(
        &self,
        items: &[Item],
        cursor: &mut Cursor,
        room: usize,
        chosen: bool,
    ) -> Vec<Drawn<'static>> {
        cursor.show(items.iter().map(|item| item.lines.len()), room);
        let shown = items.iter().skip(cursor.first).take(cursor.fits);
        let mut out = self.marked(shown.cloned(), cursor, chosen);
        out.truncate(room.max(1));
        out
    }

    /// Rows with a mark on the selected one, if that is in this part.
    fn marked(
        &self,
        items: impl Iterator<Item = Item>,
        cursor: &Cursor,
        chosen: bool,
    ) -> Vec<Drawn<'static>> {
        let mut out = Vec::new();
        for (index, item) in items.enumerate() {
            let here = chosen && cursor.first + index == cursor.selected;
            for (n, text) in item.lines.iter().enumerate() {
                let mark = if here && n == 0 { "> " } else { "  " };
                let row = self.row(item.tone, &format!("{mark}{text}"));
                out.push(match here && n == 0 {
                    true => row.patch_style(Style::new().add_modifier(Modifier::REVERSED)),
                    false => row,
                });
            }
        }
        out
    }

    /// With its reason in so many rows at most.
    fn server(&self, row: &ServerRow, reason: usize) -> Item {
        let mut lines = vec![server_line(row, self.width)];
        if let Some(text) = &row.reason {
            let rows = fold(text, self.width.saturating_sub(6), reason);
            lines.extend(rows.iter().map(|text| format!("    {text}")));
        }
        Item {
            tone: row.tone,
            lines,
        }
    }

    /// In one line, or its reason in a second one.
    fn refused(&self, row: &RefusedRow) -> Item {
        let line = format!("{}  {}: {}", row.outcome, row.path, row.reason);
        let width = self.width.saturating_sub(2);
        let lines = match Span::raw(&*line).width() <= width {
            true => vec![line],
            false => {
                let used = Span::raw(&*row.outcome).width() + 2;
                let path = end_of(&row.path, width.saturating_sub(used));
                let reason = fit(&row.reason, width.saturating_sub(4));
                vec![format!("{}  {path}", row.outcome), format!("    {reason}")]
            }
        };
        Item {
            tone: Tone::Gone,
            lines,
        }
    }

    /// A message, in a few rows.
    fn message(&self, line: &Line) -> Vec<Drawn<'static>> {
        let rows = fold(&line.text, self.width, MESSAGE);
        let rows = rows.iter().map(|text| self.row(line.tone, text));
        rows.collect()
    }

    fn keys(&self, part: Part) -> Drawn<'static> {
        let keys: &[&str] = match part {
            Part::Skills => &KEYS,
            Part::Servers | Part::Refused => &OTHER_KEYS,
        };
        self.row(Tone::Aside, self.longest(keys))
    }

    /// The first text that fits, or else the last one.
    fn longest<'a, T: AsRef<str>>(&self, texts: &'a [T]) -> &'a str {
        let mut texts = texts.iter().map(AsRef::as_ref);
        let last = texts.clone().next_back().unwrap_or_default();
        let fits = |text: &&str| Span::raw(*text).width() <= self.width;
        texts.find(fits).unwrap_or(last)
    }
}

impl Cursor {
    /// Moves as little as needed for the selected row to be among those that fit, by their heights.
    fn show(&mut self, heights: impl Iterator<Item = usize>, room: usize) {
        let heights: Vec<usize> = heights.collect();
        let of = |range: std::ops::Range<usize>| -> usize {
            heights.get(range).unwrap_or_default().iter().sum()
        };
        let at = |n: usize| heights.get(n).copied().unwrap_or(1);
        let mut first = self.first.min(self.selected);
        let mut used = of(first..self.selected + 1);
        while used > room && first < self.selected {
            used -= at(first);
            first += 1;
        }
        let mut end = self.selected + 1;
        while end < heights.len() && used + at(end) <= room {
            used += at(end);
            end += 1;
        }
        while first > 0 && used + at(first - 1) <= room {
            first -= 1;
            used += at(first);
        }
        (self.first, self.fits) = (first, end - first);
    }
}

fn server_heading(width: usize) -> String {
    match width {
        ..NARROW => "  SERVERS".into(),
        NARROW..WIDE => {
            "  SERVER          STATE              SKILLS   REQ/S  IN ALL  REACHED BY".into()
        }
        _ => "  SERVER          STATE              ERA         SKILLS   REQ/S  IN ALL  REACHED BY"
            .into(),
    }
}

fn server_line(s: &ServerRow, width: usize) -> String {
    let (label, state) = (cell(&s.label, 15), cell(&s.state, 18));
    let figures = format!(
        "{:>6} {:>7} {:>7}  {}",
        s.skills, s.rate, s.requests, s.target
    );
    match width {
        ..NARROW => format!("{label} {state}"),
        NARROW..WIDE => format!("{label} {state} {figures}"),
        _ => format!("{label} {state} {} {figures}", cell(&s.era, 11)),
    }
}

fn skill_line(row: &Row, width: usize) -> String {
    if width < NARROW {
        let path = width.saturating_sub(26).max(12);
        return format!("{} {}", cell(&row.name.shown, path), row.state);
    }
    let path = width.saturating_sub(49).clamp(16, 60);
    format!(
        "{} {} {:>9}  {}",
        cell(&row.state, 23),
        cell(&row.name.shown, path),
        row.size,
        row.about
    )
}

/// A text that is cut to a width, with a mark.
fn fit(text: &str, width: usize) -> String {
    if Span::raw(text).width() <= width {
        return text.to_owned();
    }
    let mut out = String::new();
    let mut used = 1;
    for c in text.chars() {
        used += columns(c);
        if used > width {
            break;
        }
        out.push(c);
    }
    if width > 0 {
        out.push('…');
    }
    out
}

/// The end of a text, with a mark where it was cut.
fn end_of(text: &str, width: usize) -> String {
    if Span::raw(text).width() <= width {
        return text.to_owned();
    }
    let mut used = 1;
    let end = text.char_indices().rev().take_while(|(_, c)| {
        used += columns(*c);
        used <= width
    });
    let start = end.last().map_or(text.len(), |(at, _)| at);
    format!("…{}", text.get(start..).unwrap_or_default())
}

/// A text in rows of a width, broken between words where that is possible; so many rows at most,
/// the last one with a mark if there is more.
fn fold(text: &str, width: usize, most: usize) -> Vec<String> {
    let width = width.max(2);
    let mut rows = vec![String::new()];
    let mut used = 0;
    for word in text.split_inclusive(' ') {
        let wide = Span::raw(word.trim_end()).width();
        if used > 0 && used + wide > width {
            rows.push(String::new());
            used = 0;
        }
        for c in word.chars() {
            if used + columns(c) > width {
                if c == ' ' {
                    continue;
                }
                rows.push(String::new());
                used = 0;
            }
            if let Some(row) = rows.last_mut() {
                row.push(c);
            }
            used += columns(c);
        }
    }
    if rows.len() > most {
        rows.truncate(most);
        if let Some(row) = rows.last_mut() {
            *row = fit(&format!("{} …", row.trim_end()), width);
        }
    }
    rows
}

/// A text that is exactly so wide.
fn cell(text: &str, width: usize) -> String {
    let mut out = fit(text, width);
    let used = Span::raw(&*out).width();
    out.extend(std::iter::repeat_n(' ', width.saturating_sub(used)));
    out
}

#[cfg(test)]
mod tests {
    use super::super::model::{Name, News, Next, Order, Then};
    use super::*;
    use crate::cli::review::approval;
    use crate::host::report::Status;
    use crate::host::review::Review;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent};
    use serde_json::{Value, json};
    use std::time::Duration;

    const EVIL: &str = "lab/e\u{1b}[2J\u{202e}\u{200b}";

    fn status(reads: u64) -> Status {
        let skill = |path: &str, state: &str| {
            json!({"path": path, "uri": format!("skill://{path}/SKILL.md"), "name": "x", "description": "About x",
                "state": state, "files": 2, "bytes": 2048, "set": "sha256:0", "nested_in": null,
                "requested_tools": null})
        };
        let refused = json!({"path": format!("{EVIL}/x"), "uri": "skill://e/x", "error": "contradiction",
            "errno": "EIO", "reason": "digest differs", "next": "mend it", "at": 5, "times": 2});
        let server = |label: &str, state: &str, skills: Vec<Value>, requests: u64| {
            let link = json!({"requests": {"resources/read": requests}, "connects": 1, "noise": 0, "stderr": ""});
            json!({"label": label, "target": "python3 \u{1b}]0;x\u{7}", "identity": "0", "state": state,
                "era": "discover", "warnings": [], "listing": "current", "skills": skills,
                "declined": [], "refused": [], "connection": link})
        };
        let mut lab = server(
            "lab",
            "ready",
            vec![
                skill("lab/a", "listed"),
                skill("lab/b", "held"),
                skill(EVIL, "changed, needs-approval"),
                skill("lab/c", "revoked"),
            ],
            reads / 10,
        );
        lab["refused"] = json!([refused]);
        lab["declined"] = json!([{"path": "lab/no", "reason": "its name is no name"}]);
        let mut down = server("web", "down", vec![], 0);
        down["reason"] = json!("connection refused");
        let status = json!({"version": "0", "pid": 7, "mountpoint": "/m", "started": 0, "hold": "release",
            "approval": "each", "servers": [lab, down], "upcalls": {"read": reads},
            "cache": {"bytes": 1024, "cap": 4096, "hits": 3, "rejected": 0}});
        serde_json::from_value(status).unwrap()
    }

    fn set(digit: char) -> String {
        format!("sha256:{}", digit.to_string().repeat(64))
    }

    fn review(set: &str, then: Then) -> News {
        let detail = json!({"label": "lab", "server": "x", "skill": "lab/a", "uri": "skill://a/SKILL.md",
            "state": "changed", "description": "d", "set": set, "files": [], "nested": [],
            "requests": [["allowed-tools", "Bash"]], "changes":
            {"added": [], "removed": [], "rotated": ["x"], "frontmatter": []}});
        let text = |text: &str| json!({"size": 9, "content": {"text": text}});
        let new = format!("one\n\t{}\n", "word ".repeat(60));
        let file = json!({"path": "x", "before": text("one\ntwo\n"), "after": text(&new)});
        let review = json!({"detail": detail, "files": [file]});
        let review: Review = serde_json::from_value(review).unwrap();
        let lines = approval(&review);
        News::Review(Box::new(review.detail), lines, then)
    }

    fn screen(model: &mut Model, width: u16, height: u16, now: Instant) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let looks = Looks::new(true);
        terminal
            .draw(|frame| draw(frame, model, looks, now))
            .unwrap();
        let rows = terminal.backend().to_string();
        let rows = rows
            .lines()
            .map(|l| l.trim_matches('"').trim_end().to_owned());
        rows.collect()
    }

    fn press(model: &mut Model, code: KeyCode) -> Option<Next> {
        model.hear(News::Key(KeyEvent::from(code), Instant::now()))
    }

    fn key(model: &mut Model, key: char) -> Option<Next> {
        press(model, KeyCode::Char(key))
    }

    fn come(status: Status, at: Instant) -> News {
        News::Status(Box::new(status), at, Duration::ZERO)
    }

    /// What the daemon is asked about lab/a of the status.
    fn lab_a() -> Name {
        Name {
            exact: "lab/skill://lab/a/SKILL.md".into(),
            shown: "lab/a".into(),
        }
    }

    /// The path of the skill that is selected.
    fn chosen(model: &Model) -> &str {
        let (rows, cursor) = &model.skills;
        &rows[cursor.selected].name.shown
    }

    fn has(rows: &[String], start: &str) -> bool {
        rows.iter().any(|r| r.starts_with(start))
    }

    #[test]
    fn hr_114_the_list_at_80_and_200_columns() {
        let start = Instant::now();
        let mut model = Model::new(status(100), start);
        let later = start + Duration::from_secs(2);
        model.hear(come(status(140), later));
        let narrow = [
            "mount-skills 0  /m  approval each, hold release",
            "reads 20/s, 140 in all   requests 2.0/s, 14 in all   cache 1.0 KiB, 3 hits",
            "  SERVER          STATE              SKILLS   REQ/S  IN ALL  REACHED BY",
            r"  web             down                    0     0/s       0  python3 \u{1b}]0;x…",
            "      connection refused",
            r"  lab             ready                   4   2.0/s      14  python3 \u{1b}]0;x…",
            "  SKILLS, 1 to look at   1 of 5",
            r"> changed, needs-approval lab/e\u{1b}[2J\u{202e}\u{200b}    2.0 KiB  About x",
            "  listed                  lab/a                             2.0 KiB  About x",
            "  held                    lab/b                             2.0 KiB  About x",
            "  revoked                 lab/c                             2.0 KiB  About x",
            "  declined                lab/no                                     its name i…",
            "",
            "  REFUSED READS",
            r"  EIO, 2 times  lab/e\u{1b}[2J\u{202e}\u{200b}/x: digest differs",
            "it cannot be read: its server has another version than the approved one. Enter:",
            "what changed; a: approve",
        ];
        let rows = screen(&mut model, 80, 18, later);
        assert_eq!(rows[..17], narrow, "{rows:#?}");
        assert!(rows[17].contains("q quit"), "{rows:#?}");
        let wide = screen(&mut model, 200, 18, later);
        assert!(wide[3].ends_with(r"python3 \u{1b}]0;x\u{7}"), "{wide:#?}");
        assert!(wide[3].contains(" discover "), "{wide:#?}");
        assert!(has(&wide, "> changed, needs-approval "), "{wide:#?}");
        // Without colours all is said by words and signs.
        let mut terminal = Terminal::new(TestBackend::new(80, 16)).unwrap();
        let plain = Looks::new(false);
        let draw = |frame: &mut Frame<'_>| draw(frame, &mut model, plain, later);
        terminal.draw(draw).unwrap();
        let cells = terminal.backend().buffer().content();
        assert!(
            cells
                .iter()
                .all(|c| c.fg == Color::Reset && c.bg == Color::Reset)
        );
    }

    #[test]
    fn the_selected_row_is_on_every_screen() {
        let now = Instant::now();
        let mut model = Model::new(status(0), now);
        let marks = |model: &mut Model, width, height| {
            let rows = screen(model, width, height, now);
            rows.iter().filter(|r| r.starts_with("> ")).count()
        };
        for (width, height) in [(20, 5), (40, 9), (40, 10), (40, 12), (60, 16), (200, 50)] {
            for keys in 0..8 {
                assert_eq!(
                    marks(&mut model, width, height),
                    1,
                    "{width}x{height} after {keys} times Down, in {:?}",
                    model.part
                );
                press(&mut model, KeyCode::Down);
            }
            assert_eq!(model.part, Part::Refused);
            (0..20).for_each(|_| drop(press(&mut model, KeyCode::Up)));
            assert_eq!(model.part, Part::Servers);
            press(&mut model, KeyCode::Tab);
        }
        let rows = screen(&mut model, 20, 5, now);
        assert_eq!(rows[0], r"> lab/e\u{1b}… chan…", "{rows:#?}");
        // Small ones, and none at all, are no reason to stop.
        for (width, height) in [(1, 1), (3, 40), (20, 1), (20, 2)] {
            screen(&mut model, width, height, now);
        }
    }

    #[test]
    fn enter_shows_all_of_what_does_not_fit_a_row() {
        let now = Instant::now();
        let long = |word: &str| format!("{word} ").repeat(60);
        let mut status = status(0);
        status.servers[1].reason = Some(long("refused") + "by web");
        status.servers[0].refused[0].reason = long("differs") + "at last";
        status.servers[0].refused[0].path = format!("lab/{}end.md", "long/".repeat(30));
        let mut model = Model::new(status, now);
        let rows = screen(&mut model, 80, 24, now);
        assert!(has(&rows, "      refused refused"), "{rows:#?}");
        assert!(rows.iter().any(|r| r.ends_with("/end.md")), "{rows:#?}");
        assert!(has(&rows, "      differs differs"), "{rows:#?}");
        for end in ["at last", "by web"] {
            press(&mut model, KeyCode::Tab);
            assert_eq!(key(&mut model, 'a'), None, "it is no skill");
            assert_eq!(press(&mut model, KeyCode::Enter), None);
            let page = screen(&mut model, 80, 24, now);
            assert!(page.iter().any(|r| r.ends_with(end)), "{page:#?}");
            assert_eq!(key(&mut model, 'a'), None);
            assert_eq!(model.focus, Focus::Page, "there is nothing to approve");
            key(&mut model, 'q');
        }
    }

    #[test]
    fn the_selection_stays_on_its_skill_and_on_the_screen() {
        let now = Instant::now();
        let mut model = Model::new(status(0), now);
        press(&mut model, KeyCode::Down);
        assert_eq!(chosen(&model), "lab/a");
        let mut other = status(0);
        other.servers[0].skills[1].state = "changed".into();
        model.hear(come(other, now));
        assert_eq!(chosen(&model), "lab/a", "though it moved");
        key(&mut model, 'G');
        let rows = screen(&mut model, 80, 12, now);
        assert!(has(&rows, "> declined"), "{rows:#?}");
        assert!(has(&rows, "declined: its name is no name"), "{rows:#?}");
        assert_eq!(key(&mut model, 'a'), None, "there is nothing to approve");
        key(&mut model, 'g');
        let rows = screen(&mut model, 80, 12, now);
        assert!(has(&rows, "> changed"), "{rows:#?}");
    }

    #[test]
    fn a_skill_is_asked_about_by_label_and_uri_though_another_looks_the_same() {
        let now = Instant::now();
        let mut status = status(0);
        let mut twin = status.servers[0].skills[0].clone();
        twin.uri = "skill://twin/SKILL.md".into();
        status.servers[0].skills.insert(1, twin);
        let mut model = Model::new(status, now);
        let of = |uri: &str| Name {
            exact: format!("lab/{uri}"),
            shown: "lab/a".into(),
        };
        press(&mut model, KeyCode::Down);
        press(&mut model, KeyCode::Down);
        assert_eq!(chosen(&model), "lab/a");
        let refresh = Order::Refresh(of("skill://twin/SKILL.md"));
        assert_eq!(key(&mut model, 'r'), Some(Next::Ask(refresh)));
        model.hear(News::Done(Ok("done".into())));
        press(&mut model, KeyCode::Up);
        assert_eq!(
            key(&mut model, 'R'),
            Some(Next::Ask(Order::Release(lab_a())))
        );
    }

    #[test]
    fn hr_110_only_the_set_that_was_on_the_screen_is_approved_and_only_by_yes() {
        let now = Instant::now();
        let mut model = Model::new(status(0), now);
        key(&mut model, 'j');
        let ask = Next::Ask(Order::Look(lab_a(), Then::Ask));
        assert_eq!(key(&mut model, 'a'), Some(ask));
        assert_eq!(key(&mut model, 'y'), None, "nothing was shown yet");
        assert_eq!(key(&mut model, 'a'), None, "one at a time");
        model.hear(review(&set('1'), Then::Ask));
        assert_eq!(key(&mut model, 'y'), None, "it is not on the screen");
        assert_eq!(model.focus, Focus::Question);
        let rows = screen(&mut model, 80, 40, now);
        let before = News::Key(
            KeyEvent::from(KeyCode::Char('y')),
            now - Duration::from_millis(1),
        );
        assert_eq!(model.hear(before), None, "it was not on the screen");
        assert_eq!(rows[38], format!("set     {}", set('1')), "{rows:#?}");
        assert!(rows[39].ends_with("y/n"), "{rows:#?}");
        assert!(rows.iter().any(|r| r == "-two"), "{rows:#?}");
        assert!(has(&rows, "↳"), "all of a long line: {rows:#?}");
        for no in [KeyCode::Char('n'), KeyCode::Enter, KeyCode::Esc] {
            assert_eq!(press(&mut model, no), None);
            assert_eq!(model.focus, Focus::Page);
            key(&mut model, 'a');
            assert_eq!(key(&mut model, 'y'), None, "it was not asked yet");
            screen(&mut model, 80, 24, now);
        }
        let approve = Order::Approve {
            skill: Name {
                exact: "lab/skill://a/SKILL.md".into(),
                shown: "lab/a".into(),
            },
            set: set('1'),
        };
        assert_eq!(key(&mut model, 'y'), Some(Next::Ask(approve)));
        // It has moved on: the next look is at what it is now, and nothing is asked.
        let moved = News::Moved {
            skill: lab_a(),
            why: "it moved".into(),
        };
        let look = Next::Ask(Order::Look(lab_a(), Then::Look));
        assert_eq!(model.hear(moved), Some(look));
        model.hear(review(&set('2'), Then::Look));
        assert_eq!(model.focus, Focus::Page);
        key(&mut model, 'q');
        assert_eq!(key(&mut model, 'q'), Some(Next::Quit));
    }

    #[test]
    fn hr_100_hr_110_what_a_yes_is_for_is_on_the_screen_with_the_question_or_there_is_none() {
        let now = Instant::now();
        for (width, height) in [(80, 24), (40, 12), (200, 50), (80, 10)] {
            let mut model = Model::new(status(0), now);
            model.hear(review(&set('1'), Then::Ask));
            let rows = screen(&mut model, width, height, now);
            let text = rows.concat().replace('↳', "");
            assert!(text.contains(&set('1')), "{rows:#?}");
            assert!(text.contains("skill   lab/a (changed)"), "{rows:#?}");
            let end = rows.iter().skip_while(|r| !r.starts_with('─'));
            let end: Vec<&String> = end.collect();
            if height > 20 {
                let asks = |r: &&&String| r.starts_with("requests allowed-tools: Bash");
                assert!(end.iter().any(|r| asks(&r)), "{rows:#?}");
            }
            let unseen = text.contains("rows of it not on the screen yet");
            assert_eq!(unseen, height < 20, "{rows:#?}");
            // To its end and back, row by row.
            for _ in 0..60 {
                press(&mut model, KeyCode::Down);
                screen(&mut model, width, height, now);
            }
            let rows = screen(&mut model, width, height, now);
            assert!(has(&rows, "all of it has been on the screen"), "{rows:#?}");
            assert!(matches!(
                key(&mut model, 'y'),
                Some(Next::Ask(Order::Approve { .. }))
            ));
        }
        // The end alone is not all of it.
        let mut model = Model::new(status(0), now);
        model.hear(review(&set('1'), Then::Look));
        screen(&mut model, 80, 8, now);
        key(&mut model, 'G');
        screen(&mut model, 80, 8, now);
        key(&mut model, 'a');
        let rows = screen(&mut model, 80, 8, now);
        let unseen = |r: &String| r.contains("rows of it not on the screen yet");
        assert!(rows.iter().any(unseen), "{rows:#?}");
        // A name does not push out what is asked for.
        let mut long = review(&set('1'), Then::Ask);
        if let News::Review(detail, ..) = &mut long {
            detail.skill = format!("lab/{}", "x".repeat(4000));
        }
        model.hear(long);
        let rows = screen(&mut model, 80, 24, now);
        let end = rows.iter().skip_while(|r| !r.starts_with('─')).skip(3);
        let end: Vec<&String> = end.collect();
        assert!(
            end[0].starts_with("requests allowed-tools: Bash"),
            "{rows:#?}"
        );
        assert_eq!(*end[2], format!("set     {}", set('1')), "{rows:#?}");
        // No room for the digest: no question.
        let rows = screen(&mut model, 20, 6, now);
        assert!(has(&rows, "this screen is too"), "{rows:#?}");
        assert_eq!(key(&mut model, 'y'), None);
        assert_eq!(model.focus, Focus::Question);
    }

    #[test]
    fn after_an_approval_the_next_skill_that_wants_a_look_is_selected() {
        let now = Instant::now();
        let wanting = |states: [&str; 2]| {
            let mut status = status(0);
            for (skill, state) in status.servers[0].skills.iter_mut().zip(states) {
                skill.state = state.into();
                skill.uri = "skill://a/SKILL.md".replace('a', &skill.path[4..]);
            }
            status
        };
        let mut model = Model::new(wanting(["needs-approval"; 2]), now);
        assert_eq!(chosen(&model), "lab/a");
        key(&mut model, 'a');
        model.hear(review(&set('1'), Then::Ask));
        screen(&mut model, 80, 24, now);
        key(&mut model, 'y');
        model.hear(News::Done(Ok("approved".into())));
        model.hear(come(wanting(["needs-approval"; 2]), now));
        assert_eq!(chosen(&model), "lab/a", "it is not known yet");
        model.hear(come(wanting(["listed", "needs-approval"]), now));
        assert_eq!(chosen(&model), "lab/b");
        model.hear(come(wanting(["needs-approval"; 2]), now));
        assert_eq!(chosen(&model), "lab/b");
    }

    #[test]
    fn a_key_for_a_row_that_is_gone_is_not_for_the_one_in_its_place() {
        let now = Instant::now();
        let mut model = Model::new(status(0), now);
        let first = model.skills.0[0].name.exact.clone();
        let mut without = status(0);
        let of = &mut without.servers[0].skills;
        of.retain(|s| format!("lab/{}", s.uri) != first);
        model.hear(come(without, now));
        let second = chosen(&model).to_owned();
        assert_ne!(model.skills.0[0].name.exact, first);
        let key = |c: char, at| News::Key(KeyEvent::from(KeyCode::Char(c)), at);
        for c in ['R', 'r', 'a', 'd'] {
            assert_eq!(model.hear(key(c, now)), None, "{c}");
            let said = model.message(now).map(|l| l.text).unwrap_or_default();
            assert!(said.contains("another row is selected now"), "{said}");
        }
        // Nor does it take long to see, and moving there is meant.
        let later = now + Duration::from_secs(1);
        let released =
            |next| matches!(next, Some(Next::Ask(Order::Release(name))) if name.shown == second);
        assert!(released(model.hear(key('R', later))));
        model.hear(News::Done(Ok("released".into())));
        model.hear(come(status(0), now));
        assert_eq!(chosen(&model), second, "it stays selected");
        assert!(released(model.hear(key('R', now))));
    }

    #[test]
    fn a_daemon_that_goes_is_told_and_comes_back() {
        let now = Instant::now();
        let mut model = Model::new(status(1000), now);
        let said = |model: &Model, at| model.message(at).map(|l| l.text).unwrap_or_default();
        model.hear(News::Gone("no socket".into()));
        assert!(said(&model, now).contains("the daemon is gone"));
        let mut other = status(10);
        other.pid = 8;
        model.hear(come(other, now));
        assert_eq!(said(&model, now), "the daemon is back");
        assert!(model.head()[1].starts_with("reads 0/s, 10 in all"));
        let late = now + Duration::from_secs(9);
        assert!(said(&model, late).contains("not answered for 9 s"));
        // One that is asked seldom is not late.
        let pause = Duration::from_secs(8);
        model.hear(News::Status(Box::new(status(20)), now, pause));
        assert_eq!(said(&model, late), "the daemon is back");
        assert!(model.head()[0].ends_with("every 8 s"));
        model.hear(News::Status(Box::new(status(20)), now, Duration::ZERO));
        model.hear(News::Continued(late));
        assert_eq!(said(&model, late), "the daemon is back", "we were away");
    }

    #[test]
    fn a_mount_without_skills_says_why() {
        let now = Instant::now();
        let mut all = status(0);
        for server in &mut all.servers {
            server.skills.clear();
            server.declined.clear();
            server.refused.clear();
        }
        for (states, says) in [
            (["ready", "ready"], "none: no server lists any"),
            (
                ["ready", "starting"],
                "none yet: not all servers have answered",
            ),
            (["ready", "down"], "none: see the servers above"),
        ] {
            for (server, state) in all.servers.iter_mut().zip(states) {
                server.state = state.into();
            }
            let mut model = Model::new(all.clone(), now);
            let rows = screen(&mut model, 80, 24, now);
            assert!(has(&rows, &format!("  {says}")), "{rows:#?}");
            for key in "jkadrRgG".chars() {
                press(&mut model, KeyCode::Char(key));
            }
        }
    }

    #[test]
    fn every_state_that_a_skill_can_have_is_explained() {
        let now = Instant::now();
        for state in [
            "listed",
            "held",
            "changed",
            "changed (withdrawn)",
            "needs-approval",
            "changed, needs-approval",
            "revoked",
            "dynamic",
        ] {
            let mut status = status(0);
            status.servers[0].skills.truncate(1);
            status.servers[0].skills[0].state = state.into();
            let mut model = Model::new(status, now);
            assert!(!model.hint().is_empty(), "{state}");
            key(&mut model, '?');
            let help = screen(&mut model, 80, 24, now);
            assert!(!has(&help, "↳"), "{help:#?}");
            assert!(help[23].contains("0 more below"), "{help:#?}");
            assert!(has(&help, &format!("{state} ")), "{state}: {help:#?}");
        }
    }
}
