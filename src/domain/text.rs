//! Making a server's text safe to show.
//!
//! Names, descriptions, errors and stderr of a server are hostile: they may carry terminal
//! escapes, bidirectional overrides, zero-width or tag characters. Everything that leaves for a
//! terminal, a log or a status file goes through [`printable`], or [`spelt`] if it is a name; file
//! names inside the mount do not, they are byte-exact.

use super::digest::Digest;
use std::fmt;
use unicode_normalization::char::is_combining_mark;
use unicode_width::UnicodeWidthChar as _;

/// How alike two names are, of 1, so that one may be a slip for the other.
const ALIKE: f64 = 0.6;
/// At most this many characters of a text are quoted, its escapes written out.
const QUOTED: usize = 100;

/// At most this long is a name written out…
const NAME: usize = 500;
/// …and so much of a longer one.
const NAME_START: usize = 200;

/// So many marks that take no room may follow each other as they are, as many as a language needs;
/// more pile up over the lines around.
const MARKS: usize = 4;

/// Whether a character may be shown as it is. What Unicode calls default-ignorable may not, nor
/// what looks like nothing at all.
fn is_plain(c: char) -> bool {
    let hidden = matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}'
        | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{13430}'..='\u{1343f}' | '\u{16fe4}'
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}');
    !c.is_control() && !hidden
}

/// Whether a character is drawn onto the one before it.
fn is_mark(c: char) -> bool {
    is_combining_mark(c) && c.width() == Some(0)
}

/// Whether a character looks like a space and is none.
fn is_odd_blank(c: char) -> bool {
    c.is_whitespace() && c != ' '
}

/// Text on its way to where it is shown, character by character.
struct Shower {
    /// How many marks came last. None may come first: it would change what stands before the text.
    marks: usize,
    /// Whether the character before may be drawn in two ways.
    has_styles: bool,
}

impl Shower {
    fn new() -> Self {
        Self {
            marks: MARKS,
            has_styles: false,
        }
    }

    /// What stands for the next character of a name.
    fn show(&mut self, c: char, out: &mut String) {
        match is_odd_blank(c) {
            true => self.write(c, false, out),
            false => self.write(c, is_plain(c), out),
        }
    }

    /// The same of a text, which is not compared: words of many languages stand between other
    /// blanks, and a symbol may say which of its two styles is meant.
    fn show_text(&mut self, c: char, out: &mut String) {
        let style = matches!(c, '\u{fe0e}' | '\u{fe0f}') && self.has_styles;
        self.write(c, is_plain(c) || style, out);
    }

    fn write(&mut self, c: char, plain: bool, out: &mut String) {
        self.marks = match is_mark(c) {
            true => self.marks + 1,
            false => 0,
        };
        let plain = plain && self.marks <= MARKS;
        self.has_styles = plain && self.marks == 0 && !c.is_ascii();
        match c {
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if plain => out.push(c),
            c => out.push_str(&format!("\\u{{{:x}}}", c as u32)),
        }
    }

    /// What stands for the next character of a name whose shown form can be read back.
    fn spell(&mut self, c: char, out: &mut String) {
        if c == '\\' {
            out.push(c);
        }
        self.show(c, out);
    }
}

/// The text with every control, zero-width, bidirectional and tag character, and every combining
/// mark that is one too many, as a visible `\u{…}` escape (`\n`, `\t` and `\r` by their short
/// names), cut to `max` characters with a mark that says how long it was (HR-114).
pub fn printable(text: &str, max: usize) -> String {
    cut(text, max, Shower::show_text)
}

/// A name, a path or a URI as [`printable`] shows it, with every blank but the space as an escape
/// and `\` as `\\`, so that no two of them are shown by the same characters. Not to be done twice.
///
/// Of one that is very long so only the start is shown, then `\…`, which no other has, and a digest
/// of the name: a server has any number of them.
pub fn spelt(name: &str) -> String {
    let (mut out, mut shower) = (String::new(), Shower::new());
    let (mut length, mut start) = (0, 0);
    for c in name.chars() {
        let before = out.len();
        shower.spell(c, &mut out);
        length += out.get(before..).unwrap_or_default().chars().count();
        if length <= NAME_START {
            start = out.len();
        }
        if length > NAME {
            out.truncate(start);
            let digest = Digest::of(name.as_bytes()).hex();
            out.push_str("\\…");
            out.extend(digest.chars().take(16));
            break;
        }
    }
    out
}

/// A name as [`spelt`] shows it, but never cut.
pub fn spelt_whole(name: &str) -> String {
    cut(name, usize::MAX, Shower::spell)
}

/// The name that [`spelt`] shows so, unless that cannot be told.
pub fn unspelt(shown: &str) -> Option<String> {
    let mut out = String::new();
    let mut rest = shown.chars();
    while let Some(c) = rest.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        out.push(match rest.next()? {
            '\\' => '\\',
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'u' => {
                let (hex, after) = rest.as_str().strip_prefix('{')?.split_once('}')?;
                rest = after.chars();
                char::from_u32(u32::from_str_radix(hex, 16).ok()?)?
            }
            _ => return None,
        });
    }
    (spelt_whole(&out) == shown).then_some(out)
}

/// A path that may be opened as it is shown, since it holds nothing hidden.
pub fn openable(path: &str) -> Option<&str> {
    let mut shower = Shower::new();
    let mut shown = String::new();
    path.chars().for_each(|c| shower.show(c, &mut shown));
    (shown == path).then_some(path)
}

/// A text of a server's inside a reason of ours: as [`printable`] shows it, and without the `;` that
/// sets apart what helps, so that no server words our advice.
pub fn clause(text: &str, max: usize) -> String {
    printable(&text.replace(';', ","), max)
}

/// JSON with each character that may not be shown as JSON's own escape: the same JSON.
pub fn in_ascii_where_hidden(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if c == '\n' || is_plain(c) {
            out.push(c);
            continue;
        }
        let units = c
            .encode_utf16(&mut [0; 2])
            .iter()
            .map(|u| format!("\\u{u:04x}"))
            .collect::<String>();
        out.push_str(&units);
    }
    out
}

/// A line of a file as [`printable`] shows it, but for its tabs, which stay.
pub fn line(text: &str, max: usize) -> String {
    cut(text, max, |shower, c, out| match c {
        '\t' => out.push(c),
        c => shower.show_text(c, out),
    })
}

fn cut(text: &str, max: usize, show: impl Fn(&mut Shower, char, &mut String)) -> String {
    let mut out = String::with_capacity(text.len().min(max.saturating_mul(2)));
    let mut shower = Shower::new();
    for (n, c) in text.chars().enumerate() {
        if n == max {
            let total = n + text.chars().skip(n).count();
            out.push_str(&format!("… ({total} characters)"));
            break;
        }
        show(&mut shower, c, &mut out);
    }
    out
}

/// The name that was probably meant by one that nobody has: the most similar one, or the only one
/// that ends in it.
pub fn nearest<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let names: Vec<&str> = names.into_iter().collect();
    let last = |path: &'a str| path.rsplit('/').next() == name.rsplit('/').next();
    let mut ending = names.iter().filter(|n| last(n));
    if let (Some(only), None) = (ending.next(), ending.next()) {
        return Some(only);
    }
    let likeness = names
        .iter()
        .map(|n| (strsim::normalized_damerau_levenshtein(name, n), *n));
    let best = likeness.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    (best.0 >= ALIKE).then_some(best.1)
}

/// A question in a sentence: whether this name was meant. Nothing, if there is none.
pub fn did_you_mean(name: Option<&str>) -> String {
    let name = name.map(spelt);
    name.map_or_else(String::new, |n| format!(" (did you mean {n}?)"))
}

/// A server's text inside a sentence of ours: in quotes, as [`printable`] shows it, and cut short,
/// so that no text is long enough to push what the sentence says about it out of sight.
#[derive(Debug, Clone, Copy)]
pub struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut out, mut length, mut shower) = (String::new(), 0, Shower::new());
        for c in self.0.chars() {
            let start = out.len();
            match c {
                '"' | '\\' => out.extend(['\\', c]),
                c => shower.show(c, &mut out),
            }
            length += out.get(start..).unwrap_or_default().chars().count();
            if length > QUOTED {
                out.truncate(start);
                out.push('…');
                break;
            }
        }
        write!(f, "\"{out}\"")
    }
}

/// A name as one word of a shell command that a person may paste: safe to show, and quoted where
/// a shell would read it otherwise. A server's name is [`spelt`] before.
pub fn word(name: &str) -> String {
    let shown = printable(name, usize::MAX);
    shlex::try_quote(&shown).map_or_else(|_| "''".to_owned(), |quoted| quoted.into_owned())
}

/// A path as one word of a shell command that means exactly this path: where it cannot be shown as it
/// is, by its bytes in `$'…'`, as bash, ksh and zsh read it.
pub fn exact_word(path: &str) -> String {
    if openable(path).is_some() {
        return word(path);
    }
    let bytes = path.bytes().map(|b| match b {
        b'\'' | b'\\' => format!("\\{b:03o}"),
        b if b == b' ' || b.is_ascii_graphic() => char::from(b).into(),
        b => format!("\\{b:03o}"),
    });
    format!("$'{}'", bytes.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hr_114_hidden_characters_become_visible() {
        let text = "a\x1b[31m\u{202e}b\u{e0041}\u{200b}é\n";
        assert_eq!(
            printable(text, 100),
            "a\\u{1b}[31m\\u{202e}b\\u{e0041}\\u{200b}é\\n"
        );
    }

    #[test]
    fn hr_114_a_quoted_text_is_escaped_once_and_never_longer_than_its_limit() {
        assert_eq!(
            Quoted("a\"\\\u{202e}é\n").to_string(),
            r#""a\"\\\u{202e}é\n""#
        );
        for c in ['x', '"', '\u{202e}', '\u{3164}', '\u{e0041}', 'é'] {
            for length in [99, 100, 101, 5000] {
                let quoted = Quoted(&String::from(c).repeat(length)).to_string();
                assert!(quoted.chars().count() <= QUOTED + 3, "{quoted}");
                assert_eq!(printable(&quoted, 500), quoted, "nothing is left to escape");
            }
        }
        assert!(!Quoted(&"x".repeat(100)).to_string().contains('…'));
        assert!(Quoted(&"x".repeat(101)).to_string().ends_with("…\""));
    }

    #[test]
    fn hr_114_what_changes_nothing_that_is_seen_and_piles_of_marks_are_shown() {
        assert_eq!(
            printable("a\u{fe0f}b\u{fe00}c\u{e0100}d\u{e01ef}e\u{2800}", 100),
            "a\\u{fe0f}b\\u{fe00}c\\u{e0100}d\\u{e01ef}e\\u{2800}"
        );
        let pile = format!("e{}x\u{301}", "\u{301}".repeat(6));
        let shown = "e\u{301}\u{301}\u{301}\u{301}\\u{301}\\u{301}x\u{301}";
        assert_eq!(printable(&pile, 100), shown);
        assert_eq!(printable(shown, 100), shown, "nothing is left to escape");
        assert_eq!(
            line("\u{338}x", 100),
            "\\u{338}x",
            "it has nothing to stand on"
        );
        assert_eq!(
            Quoted("a\u{301}\u{301}\u{301}\u{301}\u{301}").to_string(),
            "\"a\u{301}\u{301}\u{301}\u{301}\\u{301}\""
        );
    }

    #[test]
    fn hr_114_text_of_any_language_is_shown_as_it_is() {
        for text in [
            "e\u{302}\u{301} \u{928}\u{93f}",
            "⚠\u{fe0f} ✔\u{fe0e}",
            "မြန်မာဘာသာစကား ကျွန်ုပ်တို့သည်",
            "בְּרֵאשִׁ֖ית בָּרָ֣א אֱלֹהִ֑ים",
            "ภาษาไทย ที่นี่ हिन्दी தமிழ்",
            "日本語\u{3000}説明 oui\u{a0}!",
        ] {
            assert_eq!(printable(text, 100), text);
        }
        let text = "a\u{fe0f}\u{fe0f} ⚠\u{fe0f}\u{fe0f} e\u{301}\u{fe0f} \u{202e}\u{fe0f}";
        assert_eq!(
            printable(text, 100),
            "a\\u{fe0f}\\u{fe0f} ⚠\u{fe0f}\\u{fe0f} e\u{301}\\u{fe0f} \\u{202e}\\u{fe0f}"
        );
        assert_eq!(spelt("⚠\u{fe0f}"), "⚠\\u{fe0f}");
    }

    #[test]
    fn hr_114_json_says_the_same_in_characters_that_can_be_seen() {
        let value = serde_json::json!({"a\u{202e}": "\u{e0041}\u{7f}\u{85}é\n\u{1b}\\"});
        let text = in_ascii_where_hidden(&serde_json::to_string_pretty(&value).unwrap());
        assert!(
            text.contains(r"\u202e") && text.contains(r"\udb40\udc41\u007f\u0085é\n"),
            "{text}"
        );
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&text).unwrap(),
            value
        );
    }

    #[test]
    fn hr_114_no_two_names_are_spelt_alike() {
        let long = "x".repeat(5000);
        let marked = spelt(&long);
        let names = [
            "a",
            "\u{202e}",
            r"\u{202e}",
            r"\\u{202e}",
            r"\n",
            "\n",
            "\\",
            r"\\",
            "\u{301}",
            "a b",
            "a\u{a0}b",
            "a\u{1680}b",
            "a\u{2003}b",
            "a\u{202f}b",
            "a\u{205f}b",
            "a\u{3000}b",
            &long,
            &long[1..],
            &marked,
        ];
        let shown: std::collections::BTreeSet<String> = names.iter().map(|n| spelt(n)).collect();
        assert_eq!(shown.len(), names.len(), "{shown:?}");
        assert!(shown.contains(r"\u{202e}") && shown.contains(r"\\u{202e}"));
        for name in &shown {
            let odd = |c: char| c.is_whitespace() && c != ' ';
            assert!(!name.contains(odd), "{name:?}");
            assert_eq!(printable(name, 500), *name, "nothing is left to escape");
        }
        for name in names {
            let whole = spelt_whole(name);
            assert_eq!(unspelt(&whole).as_deref(), Some(name));
            let cut = spelt(name) != whole;
            assert_eq!(unspelt(&spelt(name)).is_none(), cut, "{name}");
        }
        for no in ["\\", r"\x", r"\u{", r"\u{41}", r"\u{d800}", "\u{202e}"] {
            assert_eq!(unspelt(no), None, "{no:?}");
        }
    }

    #[test]
    fn hr_114_a_long_name_is_shown_by_its_start_and_a_digest() {
        let whole = "\u{202e}".repeat(62) + "1234";
        assert_eq!(spelt(&whole).chars().count(), 500);
        assert_eq!(spelt(&whole), spelt_whole(&whole));
        for name in [
            format!("{whole}5"),
            "\u{301}".repeat(2000),
            "\\".repeat(251),
        ] {
            let shown = spelt(&name);
            let (start, digest) = shown.rsplit_once("\\…").unwrap();
            assert!((190..=200).contains(&start.chars().count()), "{shown}");
            assert!(name.starts_with(&unspelt(start).unwrap()), "{shown}");
            assert_eq!(digest, &Digest::of(name.as_bytes()).hex()[..16]);
        }
    }

    #[test]
    fn hr_114_a_line_keeps_its_tabs_and_nothing_else() {
        assert_eq!(
            line("a\tb\r\u{202e}\x1b[2J", 100),
            "a\tb\\r\\u{202e}\\u{1b}[2J"
        );
        assert_eq!(line("a\tbcd", 3), "a\tb… (5 characters)");
    }

    #[test]
    fn hr_114_long_text_is_cut_with_a_mark() {
        assert_eq!(printable("abcdef", 3), "abc… (6 characters)");
        assert_eq!(printable("abc", 3), "abc");
        assert_eq!(printable("abc", usize::MAX), "abc");
    }

    #[test]
    fn a_slip_is_known_and_a_stranger_is_not() {
        let names = ["docs", "docs/pdf-processing", "docs/acme/refunds", "team"];
        let near = |name| nearest(name, names);
        assert_eq!(near("dosc"), Some("docs"));
        assert_eq!(near("docs/pdf-procesing"), Some("docs/pdf-processing"));
        assert_eq!(near("docs/refunds"), Some("docs/acme/refunds"));
        assert_eq!((near("zebra"), near("")), (None, None));
        assert_eq!(did_you_mean(Some("a\u{1b}")), " (did you mean a\\u{1b}?)");
    }
}
