//! Draws what the model holds. Everything is a line of text that is cut to its width with a mark,
//! but for a skill that is looked at: its lines are wrapped, so that nothing of them is off the screen.

use super::model::{Focus, Model, Page, Row, ServerRow};
use crate::cli::review::Tone;
use crate::run::page::{columns, wrap};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line as Drawn, Span};
use ratatui::widgets::{Clear, Paragraph};
use std::time::Instant;

/// Servers and refusals take so much of the height together with their headings, at most.
const SHARE: u16 = 4;
const KEYS: &str = "↑↓ select  Enter/d look  a approve  r refresh  R release  ? help  q quit";
const PAGE_KEYS: &str = "↑↓ Space scroll  a approve  q/Esc back";
const HELP: [&str; 14] = [
    "↑ ↓ j k     select a skill; PgUp PgDn Home End g G",
    "Enter, d    look at it: its files, what it asks for, and what changed",
    "a           approve reading of its exact set, after a look and a question",
    "r           refresh: ask the server anew and move on to what it publishes",
    "R           release: end its window",
    "q, Esc      quit, or back to the list",
    "",
    "Skills that want a look come first: changed ones, and those that need an approval.",
    "held: read, and it stays as it was. changed: the server has something else by now.",
    "reads: what the kernel asked this mount for. requests: what servers were asked for.",
    "",
    "Execution is approved with: mount-skills approve --exec SKILL",
    "",
    "any key: back",
];

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
    let width = usize::from(area.width);
    let below = area.height.saturating_sub(2);
    let body = Rect {
        height: below,
        ..area
    };
    match (model.focus, &mut model.page) {
        (Focus::Help, _) => {
            let lines = HELP.map(|text| Drawn::raw(fit(text, width)));
            frame.render_widget(Paragraph::new(lines.to_vec()), body);
        }
        (Focus::Page | Focus::Question, Some(page)) => {
            page.drawn.get_or_insert(now);
            frame.render_widget(Paragraph::new(scrolled(page, body, looks)), body);
        }
        _ => {
            let lines = list(model, body, looks);
            frame.render_widget(Paragraph::new(lines), body);
        }
    }
    let foot = Rect {
        y: area.y + below,
        height: area.height - below,
        ..area
    };
    let keys = match (model.focus, &model.page) {
        (Focus::Page | Focus::Question, Some(page)) => {
            let (rows, fits) = page.extent;
            let last = (page.top + fits).min(rows);
            let below = rows - last;
            format!("{PAGE_KEYS}   {below} more below, {} above", page.top)
        }
        _ => KEYS.to_owned(),
    };
    let line = model.line(now);
    let foot_lines = vec![
        Drawn::styled(fit(&line.text, width), looks.of(line.tone)),
        Drawn::styled(fit(&keys, width), looks.of(Tone::Aside)),
    ];
    frame.render_widget(Clear, foot);
    frame.render_widget(Paragraph::new(foot_lines), foot);
}

/// The rows of a page that fit.
fn scrolled(page: &mut Page, area: Rect, looks: Looks) -> Vec<Drawn<'static>> {
    if page.wrapped.as_ref().is_none_or(|(w, _)| *w != area.width) {
        let width = usize::from(area.width);
        let rows = page.lines.iter().flat_map(|line| wrap(line, width));
        page.wrapped = Some((area.width, rows.collect()));
    }
    let rows = page.wrapped.as_ref().map_or(&[][..], |(_, rows)| rows);
    let fits = usize::from(area.height);
    page.extent = (rows.len(), fits);
    page.top = page.top.min(rows.len().saturating_sub(fits));
    let shown = rows.iter().skip(page.top).take(fits);
    shown
        .map(|line| Drawn::styled(line.text.clone(), looks.of(line.tone)))
        .collect()
}

fn list(model: &mut Model, area: Rect, looks: Looks) -> Vec<Drawn<'static>> {
    let width = usize::from(area.width);
    let share = usize::from(area.height / SHARE).max(2);
    let mut out = Vec::new();
    let mut push = |tone, text: &str| out.push(Drawn::styled(fit(text, width), looks.of(tone)));
    let [what, figures] = model.head();
    push(Tone::Heading, &what);
    push(Tone::Plain, &figures);

    let servers = model.servers();
    push(
        Tone::Heading,
        "  SERVER          STATE              ERA         SKILLS   REQ/S  IN ALL  ABOUT",
    );
    let (shown, left_out) = at_most(servers.len(), share);
    for server in servers.iter().take(shown) {
        push(server.tone, &server_line(server));
    }
    if left_out > 0 {
        push(Tone::Aside, &format!("  … {left_out} more servers"));
    }

    let refused = model.refused(share);
    let below = match refused.len() {
        0 => 0,
        n => n + 1,
    };
    let wanting = match model.wanting() {
        0 => String::new(),
        n => format!(", {n} to look at"),
    };
    let (all, at) = (model.rows.len(), model.selected + 1);
    let place = match all {
        0 => String::new(),
        _ => format!("   {at} of {all}"),
    };
    push(Tone::Heading, &format!("  SKILLS{wanting}{place}"));
    let height = usize::from(area.height);
    let fits = height.saturating_sub(out.len() + below).max(1);
    model.fits = fits;
    // The selected row is always among those on the screen.
    let lowest = (model.selected + 1).saturating_sub(fits);
    let last = model.rows.len().saturating_sub(fits);
    model.first = model.first.clamp(lowest, model.selected).min(last);
    for (index, row) in model.rows.iter().enumerate().skip(model.first).take(fits) {
        let chosen = index == model.selected;
        let mark = if chosen { "> " } else { "  " };
        let style = match chosen {
            true => looks.of(row.tone).add_modifier(Modifier::REVERSED),
            false => looks.of(row.tone),
        };
        let text = fit(&format!("{mark}{}", skill_line(row, width)), width);
        out.push(Drawn::styled(text, style));
    }
    if !refused.is_empty() {
        // At the lower edge, so that the list above keeps its place.
        out.resize(height.saturating_sub(below), Drawn::default());
        out.push(Drawn::styled("  REFUSED READS", looks.of(Tone::Heading)));
        let lines = refused.iter().map(|text| {
            let text = fit(&format!("  {text}"), width);
            Drawn::styled(text, looks.of(Tone::Gone))
        });
        out.extend(lines);
    }
    out
}

/// How many of so many lines are shown, and how many are not, where one tells the latter.
fn at_most(all: usize, most: usize) -> (usize, usize) {
    match all <= most {
        true => (all, 0),
        false => (most - 1, all - (most - 1)),
    }
}

fn server_line(s: &ServerRow) -> String {
    format!(
        "  {} {} {} {:>6} {:>7} {:>7}  {}",
        cell(&s.label, 15),
        cell(&s.state, 18),
        cell(&s.era, 11),
        s.skills,
        s.rate,
        s.requests,
        s.about
    )
}

fn skill_line(row: &Row, width: usize) -> String {
    let path = width.saturating_sub(49).clamp(16, 60);
    format!(
        "{} {} {:>9}  {}",
        cell(&row.state, 23),
        cell(&row.path, path),
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

/// A text that is exactly so wide.
fn cell(text: &str, width: usize) -> String {
    let mut out = fit(text, width);
    let used = Span::raw(&*out).width();
    out.extend(std::iter::repeat_n(' ', width.saturating_sub(used)));
    out
}

#[cfg(test)]
mod tests {
    use super::super::model::{News, Order, Then};
    use super::*;
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
            json!({"path": path, "uri": "skill://x/SKILL.md", "name": "x", "description": "About x",
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

    fn review(set: &str) -> Review {
        let detail = json!({"label": "lab", "server": "x", "skill": "lab/a", "uri": "skill://a/SKILL.md",
            "state": "changed", "description": "d", "set": set, "files": [], "nested": [],
            "requests": [["allowed-tools", "Bash"]], "changes":
            {"added": [], "removed": [], "rotated": ["x"], "frontmatter": []}});
        let text = |text: &str| json!({"size": 9, "content": {"text": text}});
        let new = format!("one\n\t{}\n", "word ".repeat(60));
        let file = json!({"path": "x", "before": text("one\ntwo\n"), "after": text(&new)});
        serde_json::from_value(json!({"detail": detail, "files": [file]})).unwrap()
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

    fn press(model: &mut Model, code: KeyCode) -> Option<Order> {
        model.hear(News::Key(KeyEvent::from(code), Instant::now()))
    }

    fn key(model: &mut Model, key: char) -> Option<Order> {
        press(model, KeyCode::Char(key))
    }

    #[test]
    fn hr_114_the_list_at_80_and_200_columns() {
        let start = Instant::now();
        let mut model = Model::new(status(100), start);
        let later = start + Duration::from_secs(2);
        model.hear(News::Status(Box::new(status(140)), later));
        let narrow = [
            "mount-skills 0  /m  approval each, hold release",
            "reads 20/s, 140 in all   requests 2.0/s, 14 in all   cache 1.0 KiB, 3 hits",
            "  SERVER          STATE              ERA         SKILLS   REQ/S  IN ALL  ABOUT",
            "  lab             ready              discover         4   2.0/s      14  python…",
            "  web             down               discover         0     0/s       0  connec…",
            "  SKILLS, 1 to look at   1 of 5",
            r"> changed, needs-approval lab/e\u{1b}[2J\u{202e}\u{200b}    2.0 KiB  About x",
            "  listed                  lab/a                             2.0 KiB  About x",
            "  held                    lab/b                             2.0 KiB  About x",
            "  revoked                 lab/c                             2.0 KiB  About x",
            "  declined                lab/no                                     its name i…",
            "",
            "  REFUSED READS",
            r"  EIO, 2 times  lab/e\u{1b}[2J\u{202e}\u{200b}/x: digest differs",
            "",
        ];
        let rows = screen(&mut model, 80, 16, later);
        assert_eq!(rows[..15], narrow, "{rows:#?}");
        assert!(rows[15].contains("q quit"), "{rows:#?}");
        let wide = screen(&mut model, 200, 16, later);
        assert!(wide[3].ends_with(r"python3 \u{1b}]0;x\u{7}"), "{wide:#?}");
        assert!(
            wide[6].starts_with("> changed, needs-approval "),
            "{wide:#?}"
        );
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
        // Small ones, and none at all, are no reason to stop.
        for (width, height) in [(20, 5), (1, 1), (3, 40)] {
            screen(&mut model, width, height, later);
        }
    }

    #[test]
    fn the_selection_stays_on_its_skill_and_on_the_screen() {
        let now = Instant::now();
        let mut model = Model::new(status(0), now);
        press(&mut model, KeyCode::Down);
        assert_eq!(model.rows[model.selected].path, "lab/a");
        let mut other = status(0);
        other.servers[0].skills[1].state = "changed".into();
        model.hear(News::Status(Box::new(other), now));
        assert_eq!(model.rows[model.selected].path, "lab/a", "though it moved");
        key(&mut model, 'G');
        let rows = screen(&mut model, 80, 12, now);
        assert!(
            rows.iter().any(|r| r.starts_with("> declined")),
            "{rows:#?}"
        );
        assert_eq!(key(&mut model, 'a'), None, "there is nothing to approve");
        assert!(model.line(now).text.contains("its name is no name"));
        key(&mut model, 'g');
        let rows = screen(&mut model, 80, 12, now);
        assert!(rows.iter().any(|r| r.starts_with("> changed")), "{rows:#?}");
    }

    #[test]
    fn hr_110_only_the_set_that_was_on_the_screen_is_approved_and_only_by_yes() {
        let now = Instant::now();
        let mut model = Model::new(status(0), now);
        key(&mut model, 'j');
        let ask = Order::Look("lab/a".into(), Then::Ask);
        assert_eq!(key(&mut model, 'a'), Some(ask));
        assert_eq!(key(&mut model, 'y'), None, "nothing was shown yet");
        assert_eq!(key(&mut model, 'a'), None, "one at a time");
        model.hear(News::Review(Box::new(review("sha256:1")), Then::Ask));
        assert_eq!(key(&mut model, 'y'), None, "it is not on the screen");
        let rows = screen(&mut model, 80, 24, now);
        let before = News::Key(
            KeyEvent::from(KeyCode::Char('y')),
            now - Duration::from_millis(1),
        );
        assert_eq!(model.hear(before), None, "it was not on the screen");
        assert!(rows[22].contains("y/n   sha256:1"), "{rows:#?}");
        assert!(rows[23].ends_with("0 more below, 0 above"), "{rows:#?}");
        let asked = rows
            .iter()
            .any(|r| r.starts_with("requests allowed-tools: Bash"));
        assert!(asked, "{rows:#?}");
        assert!(rows.iter().any(|r| r == "-two"), "{rows:#?}");
        assert!(
            rows.iter().any(|r| r.starts_with('↳')),
            "all of a long line: {rows:#?}"
        );
        for no in [KeyCode::Char('n'), KeyCode::Enter, KeyCode::Esc] {
            assert_eq!(press(&mut model, no), None);
            assert_eq!(model.focus, Focus::Page);
            key(&mut model, 'a');
        }
        let approve = Order::Approve {
            skill: "lab/a".into(),
            set: "sha256:1".into(),
        };
        assert_eq!(key(&mut model, 'y'), Some(approve));
        // It has moved on: the next look is at what it is now, and nothing is asked.
        let moved = News::Moved {
            skill: "lab/a".into(),
            why: "it moved".into(),
        };
        assert_eq!(
            model.hear(moved),
            Some(Order::Look("lab/a".into(), Then::Look))
        );
        model.hear(News::Review(Box::new(review("sha256:2")), Then::Look));
        assert_eq!(model.focus, Focus::Page);
        key(&mut model, 'q');
        assert_eq!(key(&mut model, 'q'), Some(Order::Quit));
    }

    #[test]
    fn after_an_approval_the_next_skill_that_wants_a_look_is_selected() {
        let now = Instant::now();
        let wanting = |states: [&str; 2]| {
            let mut status = status(0);
            for (skill, state) in status.servers[0].skills.iter_mut().zip(states) {
                skill.state = state.into();
            }
            Box::new(status)
        };
        let mut model = Model::new(*wanting(["needs-approval"; 2]), now);
        assert_eq!(model.rows[model.selected].path, "lab/a");
        key(&mut model, 'a');
        model.hear(News::Review(Box::new(review("sha256:1")), Then::Ask));
        screen(&mut model, 80, 24, now);
        key(&mut model, 'y');
        model.hear(News::Done(Ok("approved".into())));
        model.hear(News::Status(wanting(["needs-approval"; 2]), now));
        assert_eq!(
            model.rows[model.selected].path, "lab/a",
            "it is not known yet"
        );
        model.hear(News::Status(wanting(["listed", "needs-approval"]), now));
        assert_eq!(model.rows[model.selected].path, "lab/b");
        model.hear(News::Status(wanting(["needs-approval"; 2]), now));
        assert_eq!(model.rows[model.selected].path, "lab/b");
    }

    #[test]
    fn a_daemon_that_goes_is_told_and_comes_back() {
        let now = Instant::now();
        let mut model = Model::new(status(1000), now);
        model.hear(News::Gone("no socket".into()));
        assert!(model.line(now).text.contains("the daemon is gone"));
        let mut other = status(10);
        other.pid = 8;
        model.hear(News::Status(Box::new(other), now));
        assert_eq!(model.line(now).text, "the daemon is back");
        assert!(model.head()[1].starts_with("reads 0/s, 10 in all"));
        let late = now + Duration::from_secs(9);
        assert!(model.line(late).text.contains("not answered for 9 s"));
    }
}
