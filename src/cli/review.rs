//! What a person is shown of a skill that changed or is to be approved: lines, each with a tone.
//!
//! Every line is safe to show as it is. A line of a file starts with a blank, `+` or `-`; lines of
//! ours between them start with something else, so that no content can pass for one. Whoever shows
//! lines in rows marks the rows in which one goes on. What is left out is said where it would be. A
//! terminal, a pager and `top` give tones their looks.

use super::print::size;
use crate::domain::text::{line, printable, word};
use crate::host::command::Detail;
use crate::host::report::count;
use crate::host::review::{Changed, Content, Review, Side};
use similar::{ChangeTag, TextDiff};
use std::ops::Range;
use std::time::{Duration, Instant};

/// A line of a file is cut to this many characters.
const MAX_LINE: usize = 4000;
/// So many lines are shown of one file that changed.
const MAX_LINES: usize = 2000;
/// So many lines are shown of all files together.
const MAX_ALL: usize = 10_000;
/// Unchanged lines around a change.
const AROUND: usize = 3;
/// How long the shortest differences of all files together are looked for. After that a longer one
/// will do for the file at hand, and those after it are not compared.
const PATIENCE: Duration = Duration::from_secs(3);

/// What kind of line it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// Nothing particular.
    Plain,
    /// The start of a part.
    Heading,
    /// Where in a file.
    Place,
    /// A line or a file that is new.
    New,
    /// A line or a file that is gone.
    Gone,
    /// Something to look at twice.
    Warning,
    /// An aside.
    Aside,
}

/// A line that is safe to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// What kind it is.
    pub tone: Tone,
    /// Its text, without a line break.
    pub text: String,
}

impl Line {
    fn new(tone: Tone, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { tone, text }
    }
}

/// Lines as text, with or without colours.
pub fn paint(lines: &[Line], colours: bool) -> String {
    let mut out = String::new();
    for Line { tone, text } in lines {
        let code = match tone {
            Tone::Plain => "",
            Tone::Heading => "1",
            Tone::Place => "36",
            Tone::New => "32",
            Tone::Gone => "31",
            Tone::Warning => "1;33",
            Tone::Aside => "2",
        };
        match colours && !code.is_empty() {
            true => out.push_str(&format!("\x1b[{code}m{text}\x1b[m\n")),
            false => out.extend([text.as_str(), "\n"]),
        }
    }
    out
}

/// What there is to know of a skill before approving it, with what changed.
pub fn approval(review: &Review) -> Vec<Line> {
    let detail = &review.detail;
    let mut out = about(detail);
    out.extend(changes(review));
    out.push(set(detail));
    out
}

/// The same without content: what an approval is about, as far as the manifest says it.
pub fn approval_names(detail: &Detail) -> Vec<Line> {
    let mut out = about(detail);
    out.push(set(detail));
    out
}

/// What to have in sight while answering, once all that was shown has left the screen.
pub fn reminder(detail: &Detail, shown: &[Line]) -> Vec<Line> {
    let mut out = vec![name(detail)];
    let warnings = shown.iter().filter(|line| line.tone == Tone::Warning);
    out.extend(warnings.cloned());
    out.push(set(detail));
    out
}

fn name(detail: &Detail) -> Line {
    let text = format!("skill   {} ({})", detail.skill, detail.state);
    Line::new(Tone::Heading, text)
}

fn about(detail: &Detail) -> Vec<Line> {
    let mut out = vec![
        name(detail),
        Line::new(
            Tone::Plain,
            format!("server  {}: {}", detail.label, detail.server),
        ),
        Line::new(Tone::Plain, format!("URI     {}", detail.uri)),
        Line::new(Tone::Plain, format!("        {}", detail.description)),
    ];
    out.extend(requests(detail));
    let longest = detail.files.iter().map(|f| f.path.chars().count()).max();
    let longest = longest.unwrap_or_default().min(30);
    let files = detail.files.iter().map(|file| {
        let size = size(file.size);
        let text = format!("  {size:>9}  {:longest$}  {}", file.path, file.digest);
        Line::new(Tone::Plain, text)
    });
    out.extend(files);
    if let Some(changes) = &detail.changes {
        let text = format!("against what is in force: {}", changes.summary());
        out.push(Line::new(Tone::Heading, text));
    }
    out
}

fn set(detail: &Detail) -> Line {
    Line::new(Tone::Plain, format!("set     {}", detail.set))
}

/// What is asked for and what is not part of an approval.
fn requests(detail: &Detail) -> Vec<Line> {
    let changed = |field: &String| {
        let changes = detail.changes.as_ref();
        match changes.is_some_and(|c| c.frontmatter.contains(field)) {
            true => "changed; ",
            false => "",
        }
    };
    let requests = detail.requests.iter().map(|(field, value)| {
        let changed = changed(field);
        format!("requests {field}: {value} ({changed}nothing is granted by that)")
    });
    let nested = detail.nested.iter();
    let nested = nested.map(|n| format!("nested skill, not approved with it: {n}"));
    requests
        .chain(nested)
        .map(|text| Line::new(Tone::Warning, text))
        .collect()
}

/// What differs between what is in force and what the server publishes.
pub fn diff(review: &Review) -> Vec<Line> {
    let mut out = vec![heading(&review.detail)];
    if review.detail.changes.is_some() {
        out.extend(requests(&review.detail));
    }
    out.extend(changes(review));
    out
}

/// What changed by name, then inside of files, and how much of that cannot be seen here. Takes
/// its time with files that are hard to compare.
fn changes(review: &Review) -> Vec<Line> {
    changes_until(review, Instant::now() + PATIENCE)
}

fn changes_until(review: &Review, until: Instant) -> Vec<Line> {
    if review.detail.changes.is_none() {
        return Vec::new();
    }
    let mut out = rows(review);
    let mut left = MAX_ALL;
    let mut unseen = 0;
    for file in &review.files {
        match (&file.before, &file.after) {
            (Some(before), Some(after)) => {
                out.push(Line::new(Tone::Plain, ""));
                let heading = format!("=== {}{}", file.path, sizes(file));
                out.push(Line::new(Tone::Heading, heading));
                let (lines, seen) = inside(before, after, left.min(MAX_LINES), until);
                left = left.saturating_sub(lines.len());
                unseen += usize::from(seen == Seen::Partly);
                out.extend(lines);
            }
            (None, Some(_)) => unseen += 1,
            (_, None) => {}
        }
    }
    if unseen > 0 {
        let files = count(unseen, "file");
        let text = format!("not all was shown: there is more in {files}, new or changed");
        out.extend([Line::new(Tone::Plain, ""), Line::new(Tone::Warning, text)]);
    }
    out
}

/// The same by names alone.
pub fn diff_names(detail: &Detail) -> Vec<Line> {
    let mut out = vec![heading(detail)];
    if let Some(changes) = &detail.changes {
        let lines = [
            (Tone::Plain, "rotated", &changes.rotated),
            (Tone::New, "added", &changes.added),
            (Tone::Gone, "removed", &changes.removed),
            (Tone::Plain, "frontmatter", &changes.frontmatter),
        ];
        for (tone, what, names) in lines {
            out.extend(names.iter().map(|name| row(tone, what, name, "")));
        }
    }
    out
}

fn heading(detail: &Detail) -> Line {
    let what = match &detail.changes {
        Some(changes) => changes.summary(),
        None if detail.state.contains("withdrawn") => {
            "the server no longer serves it; what is in force is what was held".into()
        }
        None if detail.state.contains("needs-approval") && detail.state.contains("changed") => {
            "what was approved is not known here any more; this is what an approval would be for"
                .into()
        }
        None => "what is in force is what the server publishes".into(),
    };
    let text = format!("{} ({}): {what}", detail.skill, detail.state);
    Line::new(Tone::Heading, text)
}

/// A row for something that differs.
fn row(tone: Tone, what: &str, name: &str, size: &str) -> Line {
    Line::new(tone, format!("  {what:11}  {name}{size}"))
}

/// A row for each file and each field that differs.
fn rows(review: &Review) -> Vec<Line> {
    let files = review.files.iter().filter_map(|file| {
        let path = &file.path;
        Some(match (&file.before, &file.after) {
            (Some(_), Some(_)) => row(Tone::Plain, "rotated", path, &sizes(file)),
            (None, Some(_)) => row(Tone::New, "added", path, &sizes(file)),
            (Some(_), None) => row(Tone::Gone, "removed", path, &sizes(file)),
            (None, None) => return None,
        })
    });
    let mut out: Vec<Line> = files.collect();
    let fields = review.detail.changes.iter().flat_map(|c| &c.frontmatter);
    out.extend(fields.map(|field| row(Tone::Plain, "frontmatter", field, "")));
    let added = |f: &&Changed| f.before.is_none();
    if let Some(file) = review.files.iter().find(added) {
        let (skill, file) = (word(&review.detail.skill), word(&file.path));
        let text = format!("to read what was added: mount-skills show {skill} {file}");
        out.push(Line::new(Tone::Aside, text));
    }
    out
}

fn sizes(file: &Changed) -> String {
    match (&file.before, &file.after) {
        (Some(a), Some(b)) => format!("  {} → {}", size(a.size), size(b.size)),
        (Some(one), None) | (None, Some(one)) => format!("  {}", size(one.size)),
        (None, None) => String::new(),
    }
}

/// Whether a person has seen all of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    All,
    Partly,
}

/// What differs inside of a file, in so many lines at most.
fn inside(before: &Side, after: &Side, max: usize, until: Instant) -> (Vec<Line>, Seen) {
    let why = match (&before.content, &after.content) {
        (Content::Text(_), Content::Text(_)) if max == 0 => {
            "not compared: as much as is shown of all files stands above".into()
        }
        (Content::Text(_), Content::Text(_)) if Instant::now() >= until => {
            "not compared: the files above took too long".into()
        }
        (Content::Text(old), Content::Text(new)) => return text(old, new, max, until),
        (Content::TooLarge, _) | (_, Content::TooLarge) => {
            "not shown: too large, or too much together".into()
        }
        (Content::NotKept, _) => {
            "not shown: what is in force is not kept here; it was never read, or has left the cache"
                .into()
        }
        (_, Content::Failed(why)) => format!("not shown: {}", printable(why, 1000)),
        (Content::Binary, _) | (_, Content::Binary) => {
            format!("binary, {} → {} bytes", before.size, after.size)
        }
        _ => "not shown".into(),
    };
    let line = Line::new(Tone::Aside, format!("=== {why}"));
    (vec![line], Seen::Partly)
}

/// The difference of two texts, in so many lines at most.
fn text(old: &str, new: &str, max: usize, until: Instant) -> (Vec<Line>, Seen) {
    if old == new {
        let text = "=== the same content under another URI";
        return (vec![Line::new(Tone::Aside, text)], Seen::All);
    }
    let diff = TextDiff::configure().deadline(until).diff_lines(old, new);
    let (mut out, mut left_out, mut seen) = (Vec::new(), 0_usize, Seen::All);
    let mut push = |line: Line| match out.len() < max {
        true => out.push(line),
        false => left_out += 1,
    };
    for group in diff.grouped_ops(AROUND) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else {
            continue;
        };
        let old = span(first.old_range(), last.old_range());
        let new = span(first.new_range(), last.new_range());
        push(Line::new(Tone::Place, format!("@@ -{old} +{new} @@")));
        for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
            let (sign, tone) = match change.tag() {
                ChangeTag::Equal => (' ', Tone::Plain),
                ChangeTag::Delete => ('-', Tone::Gone),
                ChangeTag::Insert => ('+', Tone::New),
            };
            let value = change.value();
            let value = value.strip_suffix('\n').unwrap_or(value);
            push(Line::new(tone, format!("{sign}{}", line(value, MAX_LINE))));
            if value.chars().nth(MAX_LINE).is_some() {
                push(Line::new(
                    Tone::Aside,
                    "=== the end of this line is left out",
                ));
                seen = Seen::Partly;
            }
            if change.missing_newline() {
                push(Line::new(Tone::Aside, "\\ no line break at the end"));
            }
        }
    }
    if left_out > 0 {
        let text = format!("=== {left_out} more lines of the difference are left out");
        out.push(Line::new(Tone::Aside, text));
        seen = Seen::Partly;
    }
    (out, seen)
}

/// Where a hunk starts, counted from 1, and how many lines it has.
fn span(first: Range<usize>, last: Range<usize>) -> String {
    let lines = last.end.saturating_sub(first.start);
    format!("{},{lines}", first.start + usize::from(lines > 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::diff::Diff;

    fn side(content: Content) -> Side {
        Side { size: 7, content }
    }

    fn review(files: Vec<Changed>) -> Review {
        let changes = Diff {
            frontmatter: vec!["allowed-tools".into()],
            ..Diff::default()
        };
        Review {
            detail: Detail {
                label: "lab".into(),
                server: "x".into(),
                skill: "lab/s".into(),
                uri: "skill://s/SKILL.md".into(),
                state: "changed".into(),
                description: "d".into(),
                set: "sha256:0".into(),
                files: Vec::new(),
                requests: vec![("allowed-tools".into(), "Bash".into())],
                nested: vec!["lab/s/t".into()],
                changes: Some(changes),
            },
            files,
        }
    }

    fn rotated(old: Content, new: Content) -> Vec<Line> {
        let file = Changed {
            path: "x".into(),
            before: Some(side(old)),
            after: Some(side(new)),
        };
        let mut lines = changes(&review(vec![file]));
        let start = lines.iter().position(|l| l.text.is_empty()).unwrap();
        lines.split_off(start)
    }

    fn plain(lines: &[Line]) -> String {
        paint(lines, false)
    }

    #[test]
    fn a_text_is_shown_by_lines_with_its_surroundings() {
        let old = Content::Text("1\n2\n3\n4\n5\n6\n".into());
        let new = Content::Text("1\n2\n3\n4\nfive\n6".into());
        let lines = rotated(old, new);
        assert_eq!(
            plain(&lines),
            "\n=== x  7 B → 7 B\n@@ -2,5 +2,5 @@\n 2\n 3\n 4\n-5\n-6\n+five\n+6\n\\ no line break at the end\n"
        );
        assert!(paint(&lines, true).contains("\x1b[32m+five\x1b[m\n"));
        let (empty, seen) = text("", "a\n", 10, Instant::now() + PATIENCE);
        assert_eq!(seen, Seen::All);
        assert_eq!(plain(&empty), "@@ -0,0 +1,1 @@\n+a\n");
    }

    #[test]
    fn hr_114_no_content_reaches_a_terminal_as_it_is_or_passes_for_ours() {
        let hostile = "\u{1b}[2J\u{202e}\u{200b}\t=== y\r\n=== y\n@@ -1 +1 @@\n";
        let lines = rotated(
            Content::Text("a\n".into()),
            Content::Text(hostile.to_owned()),
        );
        let text = plain(&lines);
        assert!(
            !text.contains(['\u{1b}', '\u{202e}', '\u{200b}', '\r']),
            "{text:?}"
        );
        assert!(
            text.contains("+\\u{1b}[2J\\u{202e}\\u{200b}\t=== y\\r\n"),
            "{text:?}"
        );
        let ours = text.lines().filter(|l| l.starts_with(['=', '@']));
        assert_eq!(ours.count(), 2, "{text}");
    }

    #[test]
    fn what_is_not_shown_is_said() {
        let a = || Content::Text("a".into());
        for (old, new, said) in [
            (Content::Binary, a(), "binary, 7 → 7 bytes"),
            (a(), Content::Binary, "binary, 7 → 7 bytes"),
            (Content::TooLarge, Content::TooLarge, "too large"),
            (Content::NotKept, Content::NotAsked, "not kept here"),
            (a(), Content::Failed("\u{1b}".into()), "not shown: \\u{1b}"),
        ] {
            let text = plain(&rotated(old, new));
            assert!(text.contains(said), "{text}");
            assert!(
                text.ends_with("\nnot all was shown: there is more in 1 file, new or changed\n")
            );
        }
        let same = plain(&rotated(a(), a()));
        assert!(same.ends_with("under another URI\n"), "{same}");
        let wide = "x".repeat(MAX_LINE);
        let wide = |end: &str| Content::Text(format!("{wide}{end}\n"));
        let text = plain(&rotated(wide("1"), wide("2")));
        assert_eq!(
            text.matches("=== the end of this line is left out").count(),
            2
        );
        assert!(text.contains("not all was shown"), "{text}");
        let long = |c: &str| Content::Text(format!("{c}\n").repeat(MAX_LINES));
        let lines = rotated(long("a"), long("b"));
        assert_eq!(lines.len(), MAX_LINES + 5);
        let last = &lines[lines.len() - 3].text;
        assert_eq!(
            last,
            &format!(
                "=== {} more lines of the difference are left out",
                MAX_LINES + 1
            )
        );
    }

    #[test]
    fn all_files_are_compared_within_one_time_and_one_number_of_lines_and_the_rest_is_named() {
        let of = |c: &str| side(Content::Text(format!("{c}\n").repeat(MAX_LINES)));
        let files = ["1", "2", "3", "4", "5", "6", "7"].map(|path| Changed {
            path: path.into(),
            before: Some(of("a")),
            after: Some(of("b")),
        });
        let review = review(files.into());
        let said = |lines: &[Line], text: &str| lines.iter().filter(|l| l.text == text).count();
        let lines = changes(&review);
        let rest = "=== not compared: as much as is shown of all files stands above";
        assert_eq!(said(&lines, rest), 2, "{}", plain(&lines));
        let late = changes_until(&review, Instant::now());
        let rest = "=== not compared: the files above took too long";
        assert_eq!(said(&late, rest), 7, "{}", plain(&late));
        let unseen = "not all was shown: there is more in 7 files, new or changed";
        assert_eq!(late.last().map(|l| &*l.text), Some(unseen));
    }

    #[test]
    fn hr_100_what_is_asked_for_stands_out() {
        let added = Changed {
            path: "a b".into(),
            before: None,
            after: Some(side(Content::NotAsked)),
        };
        let review = review(vec![added]);
        for lines in [diff(&review), approval(&review)] {
            let warnings = lines.iter().filter(|l| l.tone == Tone::Warning);
            let warnings: Vec<&str> = warnings.map(|l| &*l.text).collect();
            assert_eq!(
                warnings,
                [
                    "requests allowed-tools: Bash (changed; nothing is granted by that)",
                    "nested skill, not approved with it: lab/s/t",
                    "not all was shown: there is more in 1 file, new or changed"
                ]
            );
            let text = plain(&lines);
            assert!(text.contains("  added        a b  7 B\n"), "{text}");
            assert!(text.contains("mount-skills show lab/s 'a b'"), "{text}");
        }
    }
}
