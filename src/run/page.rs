//! How a text reaches a person: colours where they are wanted, rows as wide as the terminal, and a
//! pager for what is longer than the screen.
//!
//! **Invariant:** on a terminal, what goes on in the next row is marked there, so that no text can be
//! padded until a part of it looks like a line of its own.
//!
//! The pager is the user's own command, split as a shell would and run without one. If it cannot
//! be started, or fails, the text is printed. Meanwhile Ctrl-C and Ctrl-\ are for the pager alone.

use super::{Failure, say};
use crate::cli::Look;
use crate::cli::review::{Line, Tone, paint};
use ratatui::crossterm::terminal;
use ratatui::text::Span;
use std::io::{self, IsTerminal, Write};
use std::process::{Command, Stdio};

/// A tab goes to the next multiple of this.
const TAB: usize = 8;

/// Whether to use colours on stdout, by `--color`, NO_COLOR and what stdout is.
pub(super) fn colours() -> bool {
    anstream::AutoStream::choice(&io::stdout()) != anstream::ColorChoice::Never
}

/// Whether the terminal can do more than print line after line.
pub(super) fn can_more_than_print() -> bool {
    std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb")
}

/// Columns and rows of the terminal; one that does not know its size is taken for a usual one.
fn extent() -> (usize, usize) {
    let known = |n: u16, usual| if n == 0 { usual } else { usize::from(n) };
    let (columns, rows) = terminal::size().unwrap_or_default();
    (known(columns, 80), known(rows, 24))
}

fn rows(lines: &[Line], columns: usize) -> Vec<Line> {
    lines.iter().flat_map(|line| wrap(line, columns)).collect()
}

/// Whether lines take more than the screen, so that not all of them are in sight at the end.
pub(super) fn is_long(lines: &[Line]) -> bool {
    let (columns, height) = extent();
    rows(lines, columns).len() >= height
}

/// Shows lines on stdout, through a pager if they do not fit the screen.
pub(super) fn show(lines: &[Line], look: Look) -> Result<(), Failure> {
    if !io::stdout().is_terminal() {
        return say(paint(lines, colours()));
    }
    let (columns, height) = extent();
    let rows = rows(lines, columns);
    let text = paint(&rows, colours());
    let wanted = !look.no_pager && io::stdin().is_terminal() && can_more_than_print();
    if wanted && rows.len() >= height && page(&text) {
        return Ok(());
    }
    say(text)
}

/// Shows lines on stderr.
pub(super) fn tell(lines: &[Line]) {
    let text = match io::stderr().is_terminal() {
        true => paint(&rows(lines, extent().0), false),
        false => paint(lines, false),
    };
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Cuts lines to what fits the screen with a question below it. The first and the last one stay, and
/// what is left out between them is said.
pub(super) fn in_sight(lines: &[Line]) -> Vec<Line> {
    let (columns, height) = extent();
    let ([first, middle @ .., last], true) = (lines, height > 1) else {
        return lines.to_vec();
    };
    let (first, middle, last) = (
        wrap(first, columns),
        rows(middle, columns),
        wrap(last, columns),
    );
    // The question, and what says that there is more.
    let room = height.saturating_sub(first.len() + last.len() + 2);
    let left_out = middle.len().saturating_sub(room);
    let more = (left_out > 0).then(|| Line {
        tone: Tone::Warning,
        text: format!("NOT ALL OF IT FITS HERE: {left_out} more rows were shown before"),
    });
    let middle = middle.into_iter().take(room);
    first
        .into_iter()
        .chain(middle)
        .chain(more)
        .chain(last)
        .collect()
}

/// Text of ours for stdout: on a terminal, its lines broken between words, and marked where they go on.
pub(super) fn flow(text: &str) -> String {
    match io::stdout().is_terminal() {
        true => flowing(text, extent().0),
        false => text.to_owned(),
    }
}

/// Words that are longer than a row are broken where it ends. Colours take no room.
fn flowing(text: &str, width: usize) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let indent = line.len() - line.trim_start_matches(' ').len();
        let go_on = format!("{}  ↳ ", " ".repeat(indent));
        let first = go_on.chars().count();
        let width = width.max(first + 1);
        let (mut used, mut fresh) = (0, true);
        for word in line.split_inclusive(' ') {
            let plain = anstream::adapter::strip_str(word).to_string();
            let wide: usize = plain.trim_end().chars().map(columns).sum();
            if used + wide > width && !fresh && first + wide <= width {
                out.truncate(out.trim_end_matches(' ').len());
                out.extend(["\n", &go_on]);
                used = first;
            }
            if used + wide <= width {
                out.push_str(word);
                used += plain.chars().map(columns).sum::<usize>();
            } else {
                // No word of ours is so long, so it has no colour.
                for c in plain.chars() {
                    if used + columns(c) > width {
                        out.extend(["\n", &go_on]);
                        used = first;
                    }
                    out.push(c);
                    used += columns(c);
                }
            }
            fresh = fresh && plain.trim().is_empty();
        }
        out.truncate(out.trim_end_matches(' ').len());
        out.push('\n');
    }
    out
}

/// Whether a pager took the text.
fn page(text: &str) -> bool {
    let given = std::env::var("PAGER").ok();
    let line = given.as_deref().filter(|line| !line.trim().is_empty());
    let words = shlex::split(line.unwrap_or("less -R")).unwrap_or_default();
    let [program, arguments @ ..] = words.as_slice() else {
        return false;
    };
    let _deaf = Deaf::new();
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped());
    let Ok(mut pager) = command.spawn() else {
        return false;
    };
    // One that ends before the end of the text was told to.
    if let Some(mut stdin) = pager.stdin.take() {
        let _ = stdin.write_all(text.as_bytes());
    }
    pager.wait().is_ok_and(|status| status.success())
}

/// While it lives, the keys that end a program do not end this one: it would leave its pager behind,
/// at odds with the shell about who reads the keyboard.
struct Deaf([(libc::c_int, libc::sighandler_t); 2]);

/// Does nothing. Unlike a signal that is ignored, one that is handled is as usual in a child.
extern "C" fn nothing(_: libc::c_int) {}

impl Deaf {
    #[allow(unsafe_code)]
    fn new() -> Self {
        Self([libc::SIGINT, libc::SIGQUIT].map(|signal| {
            let handler: extern "C" fn(libc::c_int) = nothing;
            // SAFETY: no safe form exists; the handler does nothing, which it may do at any time.
            let before = unsafe { libc::signal(signal, handler as libc::sighandler_t) };
            if before == libc::SIG_IGN {
                // Whoever started us wants it ignored, by the pager too.
                // SAFETY: as above; nothing of ours runs when the signal comes.
                unsafe { libc::signal(signal, libc::SIG_IGN) };
            }
            (signal, before)
        }))
    }
}

impl Drop for Deaf {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        for (signal, before) in self.0 {
            // SAFETY: it is what was there before.
            unsafe { libc::signal(signal, before) };
        }
    }
}

/// How many columns a character takes.
pub(super) fn columns(c: char) -> usize {
    match c.is_ascii() {
        true => 1,
        false => Span::raw(&*c.encode_utf8(&mut [0; 4])).width(),
    }
}

/// Takes off what follows the last blank of a row, unless little would be left.
fn last_word(row: &mut String, width: usize) -> String {
    let at = row.rfind(' ').map_or(0, |at| at + 1);
    let word = row.split_off(at);
    let left = row.trim_end().chars().count();
    if row.trim().is_empty() || left < width / 4 {
        row.push_str(&word);
        return String::new();
    }
    word
}

/// A line as rows of a width, its tabs as blanks, broken after a blank where there is one. What goes
/// on is marked.
pub(super) fn wrap(line: &Line, width: usize) -> Vec<Line> {
    let width = width.max(2);
    let mut rows = Vec::new();
    let (mut row, mut used) = (String::new(), 0);
    for c in line.text.chars() {
        let wide = match c {
            '\t' => TAB - used % TAB,
            c => columns(c),
        };
        while used + wide > width && !matches!(&*row, "" | "↳") {
            let word = match c {
                ' ' | '\t' => String::new(),
                _ => last_word(&mut row, width),
            };
            // It must not pass for a line of its own.
            let next = format!("↳{word}");
            used = 1 + word.chars().map(columns).sum::<usize>();
            rows.push(std::mem::replace(&mut row, next));
        }
        if c == '\t' && &*row == "↳" {
            continue;
        }
        match c {
            '\t' => row.extend(std::iter::repeat_n(' ', wide)),
            c => row.push(c),
        }
        used += wide;
    }
    rows.push(row);
    let tone = line.tone;
    rows.into_iter().map(|text| Line { tone, text }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hr_114_what_goes_on_in_the_next_row_is_marked_by_what_it_takes_on_a_screen() {
        let wrapped = |text: &str| -> Vec<String> {
            let line = Line {
                tone: Tone::Plain,
                text: text.into(),
            };
            wrap(&line, 8).into_iter().map(|l| l.text).collect()
        };
        assert_eq!(wrapped(""), [""]);
        assert_eq!(wrapped("12345678"), ["12345678"]);
        assert_eq!(wrapped("12345678set  x"), ["12345678", "↳set  x"]);
        assert_eq!(wrapped("one two three"), ["one two ", "↳three"]);
        assert_eq!(wrapped("abc 123456789"), ["abc ", "↳1234567", "↳89"]);
        assert_eq!(wrapped("   1234567"), ["   12345", "↳67"]);
        assert_eq!(wrapped("abc 12345漢"), ["abc ", "↳12345漢"]);
        assert_eq!(wrapped("abc 123456漢"), ["abc ", "↳123456", "↳漢"]);
        assert_eq!(wrapped("one two\tx"), ["one two ", "↳x"]);
        for width in 1..6 {
            for text in ["123456", "ab cd ef", "漢漢 漢", "\ta\tb", "↳↳↳ ↳"] {
                let line = Line {
                    tone: Tone::Plain,
                    text: text.into(),
                };
                let rows: String = wrap(&line, width).into_iter().map(|l| l.text).collect();
                let kept = |t: &str| t.replace(['↳', ' ', '\t'], "");
                assert_eq!(kept(&rows), kept(text), "at {width}");
            }
        }
        // Two columns each, and none.
        assert_eq!(wrapped("+漢漢漢漢x"), ["+漢漢漢", "↳漢x"]);
        assert_eq!(wrapped("1234567e\u{301}x"), ["1234567e\u{301}", "↳x"]);
        assert_eq!(wrapped("123456\tset"), ["123456  ", "↳set"]);
    }

    #[test]
    fn text_is_broken_between_words_and_marked_where_it_goes_on() {
        assert_eq!(flowing("one two three\n", 80), "one two three\n");
        assert_eq!(
            flowing("one two three\n\n x", 9),
            "one two\n  ↳ three\n\n x\n"
        );
        assert_eq!(
            flowing("  ab abcdefghij cd", 10),
            "  ab abcde\n    ↳ fghi\n    ↳ j cd\n"
        );
        assert_eq!(
            flowing("\u{1b}[32mready\u{1b}[0m 12", 8),
            "\u{1b}[32mready\u{1b}[0m 12\n"
        );
        assert_eq!(flowing("漢漢漢 漢漢漢", 10), "漢漢漢\n  ↳ 漢漢漢\n");
        assert_eq!(flowing("abc", 1), "abc\n");
    }
}
