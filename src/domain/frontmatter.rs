//! Does the frontmatter of a SKILL.md say what its entry says?
//!
//! A server publishes each skill twice: as the bytes of a SKILL.md, and as an entry whose JSON
//! repeats the YAML frontmatter of that file. A user judges a skill by its entry and an agent acts
//! on the file, so a difference between the two is a verification failure, whatever the digest says.
//!
//! # What is compared
//!
//! The frontmatter starts in the first line, which is `---` (one UTF-8 byte order mark may stand
//! before it), and ends at the next line that is `---`. Blanks may follow the dashes but not precede
//! them, so dashes inside an indented block scalar close nothing; lines end in LF or CRLF. The block
//! must be UTF-8 and one YAML document, a mapping. The body below is not looked at, not even for its
//! encoding.
//!
//! # When a value is equal
//!
//! Honest servers use different YAML libraries, which disagree on what an unquoted word means. So a
//! plain scalar stands for a small set of values, all of them readings of the same visible text:
//!
//! - its text as a string;
//! - what the YAML 1.2 core schema makes of it;
//! - what YAML 1.1 makes of it: `yes` and `off`, octal `017`, `0b11`, base 60, `1_000`, and a
//!   timestamp as the JavaScript form of its instant.
//!
//! A quoted or block scalar, or one tagged `!!str`, is exactly its text. The one exception: a block
//! scalar that ends the frontmatter may lack its last line break, because some servers cut the text
//! at the line break before the closing fence. The fields `name` and `description` are strings
//! whatever they look like. Text is equal code point by code point, nothing is normalised. The order
//! of a list counts, the order of a mapping does not.
//!
//! Numbers are equal by value. An integer that fits 64 bits is compared exactly, so one that a
//! server rounded to a double is refused, and the message says so. A longer integer reaches us from
//! `serde_json` as a double, rounded already; it is accepted if it is the double nearest to the text,
//! since nothing more can be known.
//!
//! # What is never equal
//!
//! Duplicate keys, merge keys, tags other than the plain core ones, collections as keys, directives,
//! a second document, and anything beyond [`MAX_BYTES`], [`MAX_DEPTH`] or [`MAX_NODES`]. Aliases
//! count with all they stand for, and are shared rather than copied, so that a small file cannot
//! become a large amount of work.
//!
//! # Deliberately absent
//!
//! No repair of broken YAML, and no judgement on the values: whether a name is well formed or a
//! description too long is decided elsewhere. Duplicate keys in the JSON are gone before a
//! [`Map`] exists, so the wire layer has to see to those. Messages quote the server's text as it is,
//! control characters included: whoever prints one escapes it.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::rc::Rc;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span, StrInput, Tag};
use serde_json::{Map, Number, Value};

/// Most bytes a frontmatter block may have, and most bytes its scalars may have with all aliases
/// expanded.
pub const MAX_BYTES: usize = 64 * 1024;

/// Most lists and mappings that may lie one within the other, the frontmatter itself included.
pub const MAX_DEPTH: usize = 32;

/// Most keys, scalars, lists and mappings in all, aliases expanded.
pub const MAX_NODES: usize = 2_000;

/// Most characters of a value that a message repeats.
const SHOWN_CHARS: usize = 120;

/// Fields that are strings by definition, however they are written.
const STRING_FIELDS: [&str; 2] = ["name", "description"];

/// Doubles hold every integer up to this one, and not the next.
const EXACT_IN_F64: u128 = 1 << 53;

/// Why a SKILL.md and its entry do not agree.
///
/// Lines and columns count from 1 in the file. Values are cut to a readable length. They are
/// otherwise as the server wrote them and **not escaped**: escape the message before it reaches a
/// terminal or a log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrontmatterError {
    /// The file does not start with a fence.
    #[error("no frontmatter: the first line of the file is not `---`")]
    Missing,
    /// The closing fence is not there.
    #[error("the frontmatter is not closed: no line after the first is `---`")]
    Unclosed,
    /// The block is not UTF-8.
    #[error("the frontmatter is not UTF-8 at line {line}")]
    NotUtf8 {
        /// The line of the first bad byte.
        line: usize,
    },
    /// The block is not YAML, or it is YAML that can never equal an entry.
    #[error("{what}, at line {line} column {column}")]
    Invalid {
        /// Where in the file.
        line: usize,
        /// Where in the line, in characters.
        column: usize,
        /// What is wrong, with the field where one is known.
        what: String,
    },
    /// Both have the field, with different values.
    #[error(
        "field `{field}` differs: the file has {found} (line {line}), the entry has {expected}{difference}"
    )]
    Mismatch {
        /// The path of the field, such as `metadata.tags[2]`.
        field: String,
        /// Where the value stands in the file.
        line: usize,
        /// The value in the file: a plain scalar as written, other text in double quotes.
        found: String,
        /// The value in the entry, as JSON.
        expected: String,
        /// What kind of difference it is.
        difference: Difference,
    },
    /// Only the file has the field, or the list item.
    #[error("field `{field}` is in the file ({found}, line {line}) but not in the entry")]
    NotInEntry {
        /// The path of the field.
        field: String,
        /// Where the value stands in the file.
        line: usize,
        /// The value in the file.
        found: String,
    },
    /// Only the entry has the field, or the list item.
    #[error("field `{field}` is in the entry ({expected}) but not in the file")]
    NotInFile {
        /// The path of the field.
        field: String,
        /// The value in the entry, as JSON.
        expected: String,
    },
}

/// What is known about a difference beyond the two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Difference {
    /// The two values say it all.
    Value,
    /// The entry has the double nearest to an integer that no double can hold.
    Precision,
    /// Two texts part at this character, counted from 1, which is beyond what the message shows.
    Text(usize),
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value => Ok(()),
            Self::Precision => f.write_str(
                ": the server lost precision, it rounded a big integer to a floating-point number",
            ),
            Self::Text(at) => write!(f, ": they part at character {at}"),
        }
    }
}

/// The outcome of a step, any of which may show that the two differ.
type Checked<T = ()> = Result<T, FrontmatterError>;

/// Compares the frontmatter of these SKILL.md bytes with the entry's.
///
/// # Errors
///
/// The first thing found that keeps the two from being equal. Fields are looked at in the order of
/// their names, so the same pair always gives the same error.
pub fn compare(skill_md: &[u8], entry: &Map<String, Value>) -> Result<(), FrontmatterError> {
    let block = decode(find_block(skill_md)?)?;
    let fields = Reader::new(block).document()?;
    compare_fields(&fields, entry, &Path::Root)
}

// ---------------------------------------------------------------------------------------------
// Finding the block

/// The bytes between the two fences.
fn find_block(skill_md: &[u8]) -> Checked<&[u8]> {
    let text = skill_md
        .strip_prefix("\u{feff}".as_bytes())
        .unwrap_or(skill_md);
    let (first, block) = split_line(text);
    if !is_fence(first) {
        return Err(FrontmatterError::Missing);
    }
    let mut rest = block;
    while !rest.is_empty() {
        let (line, next) = split_line(rest);
        if is_fence(line) {
            return Ok(block.strip_suffix(rest).unwrap_or(block));
        }
        rest = next;
    }
    Err(FrontmatterError::Unclosed)
}

/// The first line without its line break, and what follows.
fn split_line(text: &[u8]) -> (&[u8], &[u8]) {
    let mut parts = text.splitn(2, |&byte| byte == b'\n');
    let line = parts.next().unwrap_or_default();
    match parts.next() {
        Some(rest) => (line.strip_suffix(b"\r").unwrap_or(line), rest),
        None => (line, &[]),
    }
}

fn is_fence(line: &[u8]) -> bool {
    line.strip_prefix(b"---")
        .is_some_and(|rest| rest.iter().all(|byte| matches!(byte, b' ' | b'\t')))
}

/// The block as text that is small enough and made of characters that YAML allows.
fn decode(block: &[u8]) -> Checked<&str> {
    if block.len() > MAX_BYTES {
        let what = format!(
            "the frontmatter is too large to compare: {} bytes, the limit is {MAX_BYTES}",
            block.len()
        );
        return Err(invalid(block_place(1, 0), &Path::Root, &what));
    }
    let text = str::from_utf8(block).map_err(|error| {
        let good = block.get(..error.valid_up_to()).unwrap_or_default();
        FrontmatterError::NotUtf8 {
            line: 2 + good.iter().filter(|&&byte| byte == b'\n').count(),
        }
    })?;
    // The parser lets most of these pass. A mark at the start is one too many: the one that the
    // file may have stands before the fence.
    let bad = |&(at, c): &(usize, char)| !is_printable(c) || (at == 0 && c == '\u{feff}');
    if let Some((at, c)) = text.char_indices().find(bad) {
        let before = text.get(..at).unwrap_or_default();
        let column = before.chars().rev().take_while(|&c| c != '\n').count();
        let line = 1 + before.matches('\n').count();
        let what = format!(
            "the frontmatter is not valid YAML: the character U+{:04X} is not allowed here",
            u32::from(c)
        );
        return Err(invalid(block_place(line, column), &Path::Root, &what));
    }
    Ok(text)
}

fn block_place(line: usize, column: usize) -> Span {
    Span::empty(Marker::new(0, line, column))
}

/// The characters that a YAML stream may consist of.
fn is_printable(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r' | ' '..='~' | '\u{85}' | '\u{a0}'..='\u{fffd}' | '\u{10000}'..)
}

/// An error at a place of the block, which starts in the second line of the file.
fn invalid(at: Span, path: &Path, what: &str) -> FrontmatterError {
    let within = match path {
        Path::Root => String::new(),
        _ => format!(" in field `{path}`"),
    };
    FrontmatterError::Invalid {
        line: line_of(at),
        column: at.start.col() + 1,
        what: format!("{what}{within}"),
    }
}

fn line_of(at: Span) -> usize {
    at.start.line() + 1
}

// ---------------------------------------------------------------------------------------------
// Reading YAML

type Fields = BTreeMap<String, Rc<Node>>;

/// A value of the file. Aliases share one node.
struct Node {
    line: usize,
    cost: Cost,
    body: Body,
}

enum Body {
    Scalar(Scalar),
    List(Vec<Rc<Node>>),
    Mapping(Fields),
}

struct Scalar {
    text: String,
    form: Form,
}

/// How a scalar is written, as far as it matters to what it may mean.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Unquoted: any of its readings.
    Plain,
    /// Quoted, block or `!!str`: the text.
    Exact,
    /// A block scalar with nothing behind it: the text, with or without its last line break.
    LastBlock,
}

/// What a value amounts to with its aliases expanded.
#[derive(Clone, Copy, Default)]
struct Cost {
    nodes: usize,
    bytes: usize,
    /// Lists and mappings one within the other, from this value down.
    height: usize,
}

/// Where a value stands in the frontmatter. Written out only when a message needs it.
#[derive(Clone, Copy)]
enum Path<'a> {
    Root,
    Key(&'a Path<'a>, &'a str),
    Item(&'a Path<'a>, usize),
}

impl Path<'_> {
    /// How many lists and mappings are around the value.
    fn depth(&self) -> usize {
        match self {
            Self::Root => 0,
            Self::Key(parent, _) | Self::Item(parent, _) => parent.depth() + 1,
        }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Root => Ok(()),
            Self::Key(Self::Root, key) => f.write_str(&cut(key)),
            Self::Key(parent, key) => write!(f, "{parent}.{}", cut(key)),
            Self::Item(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// Builds nodes from the events of the YAML parser, within the budget.
///
/// The parser itself does not recurse, and it is asked for one event at a time, so hostile input is
/// dropped as soon as it goes over a limit.
struct Reader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    /// Complete anchored nodes. One that is still being read is not here, which is how an alias
    /// inside its own anchor is found.
    anchors: BTreeMap<usize, Rc<Node>>,
    nodes: usize,
    bytes: usize,
    /// The last top-level key: as near to a syntax error as can be told, because the parser stops
    /// at what should have been the next key.
    last_field: Option<String>,
    /// Where the last thing that is not white space ends, in characters, as the parser counts.
    content_end: usize,
}

impl<'a> Reader<'a> {
    fn new(block: &'a str) -> Self {
        Self {
            parser: Parser::new_from_str(block),
            anchors: BTreeMap::new(),
            nodes: 0,
            bytes: 0,
            last_field: None,
            content_end: block.trim_ascii_end().chars().count(),
        }
    }

    /// The fields of the only document in the block.
    fn document(mut self) -> Checked<Fields> {
        const SECOND: &str = "a directive or another YAML document inside the frontmatter";
        const OTHER: &str = "the frontmatter is not a mapping of fields";
        let top = &Path::Root;
        let mut next = self.next()?;
        if next.0 == Event::StreamStart {
            next = self.next()?;
        }
        match next {
            (Event::DocumentStart(false), _) => {}
            (Event::DocumentStart(true), at) => return Err(invalid(at, top, SECOND)),
            (_, at) => return Err(invalid(at, top, OTHER)),
        }
        let fields = match self.next()? {
            (Event::MappingStart(_, tag), at) => {
                self.enter(1, tag.as_deref(), "map", at, top)?;
                self.mapping(top)?.0
            }
            (_, at) => return Err(invalid(at, top, OTHER)),
        };
        loop {
            match self.next()? {
                (Event::DocumentEnd, _) => {}
                (Event::StreamEnd, _) => return Ok(fields),
                (_, at) => return Err(invalid(at, top, SECOND)),
            }
        }
    }

    fn next(&mut self) -> Checked<(Event<'a>, Span)> {
        match self.parser.next_event() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => {
                let near = match &self.last_field {
                    Some(key) => format!(" near field `{}`", cut(key)),
                    None => String::new(),
                };
                let what = format!("the frontmatter is not valid YAML{near}: {}", error.info());
                Err(invalid(Span::empty(*error.marker()), &Path::Root, &what))
            }
            // The stream ends with an event at which every loop stops, so this is out of reach.
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    /// The value that starts with this event.
    fn node(&mut self, event: Event<'a>, at: Span, path: &Path) -> Checked<Rc<Node>> {
        let (nodes, bytes) = (self.nodes, self.bytes);
        let (anchor, height, body) = match event {
            Event::Alias(anchor) => return self.alias(anchor, at, path),
            Event::Scalar(text, style, anchor, tag) => {
                self.bytes += text.len();
                self.enter(0, tag.as_deref(), "str", at, path)?;
                let form = self.form(style, tag.is_some(), at);
                let text = text.into_owned();
                (anchor, 0, Body::Scalar(Scalar { text, form }))
            }
            Event::SequenceStart(anchor, tag) => {
                self.enter(1, tag.as_deref(), "seq", at, path)?;
                let (items, height) = self.list(path)?;
                (anchor, height, Body::List(items))
            }
            Event::MappingStart(anchor, tag) => {
                self.enter(1, tag.as_deref(), "map", at, path)?;
                let (fields, height) = self.mapping(path)?;
                (anchor, height, Body::Mapping(fields))
            }
            _ => {
                let what = "the frontmatter is not valid YAML: a value is missing";
                return Err(invalid(at, path, what));
            }
        };
        let cost = Cost {
            nodes: self.nodes - nodes,
            bytes: self.bytes - bytes,
            height,
        };
        let line = line_of(at);
        let node = Rc::new(Node { line, cost, body });
        if anchor != 0 {
            self.anchors.insert(anchor, Rc::clone(&node));
        }
        Ok(node)
    }

    fn form(&self, style: ScalarStyle, tagged: bool, at: Span) -> Form {
        match style {
            ScalarStyle::Plain if !tagged => Form::Plain,
            ScalarStyle::Literal | ScalarStyle::Folded if at.end.index() >= self.content_end => {
                Form::LastBlock
            }
            _ => Form::Exact,
        }
    }

    fn alias(&mut self, anchor: usize, at: Span, path: &Path) -> Checked<Rc<Node>> {
        let Some(node) = self.anchors.get(&anchor).map(Rc::clone) else {
            return Err(invalid(at, path, "an alias inside its own anchor"));
        };
        self.nodes += node.cost.nodes;
        self.bytes += node.cost.bytes;
        self.check_budget(node.cost.height, at, path)?;
        Ok(node)
    }

    /// The items of a list whose start has been read, and its height.
    fn list(&mut self, path: &Path) -> Checked<(Vec<Rc<Node>>, usize)> {
        let mut items = Vec::new();
        let mut height = 0;
        loop {
            let item = Path::Item(path, items.len());
            let (event, at) = self.next()?;
            if event == Event::SequenceEnd {
                return Ok((items, height + 1));
            }
            let node = self.node(event, at, &item)?;
            height = height.max(node.cost.height);
            items.push(node);
        }
    }

    /// The fields of a mapping whose start has been read, and its height.
    fn mapping(&mut self, path: &Path) -> Checked<(Fields, usize)> {
        let mut fields = Fields::new();
        let mut height = 0;
        loop {
            let (event, key_at) = self.next()?;
            if event == Event::MappingEnd {
                return Ok((fields, height + 1));
            }
            let key = self.key(event, key_at, path)?;
            if matches!(path, Path::Root) {
                self.last_field = Some(key.clone());
            }
            let place = Path::Key(path, &key);
            let (event, at) = self.next()?;
            let node = self.node(event, at, &place)?;
            height = height.max(node.cost.height);
            if fields.contains_key(&key) {
                let what = format!("duplicate key `{}`", cut(&key));
                return Err(invalid(key_at, path, &what));
            }
            fields.insert(key, node);
        }
    }

    /// A key: the text of a scalar, whatever type a loader would give it.
    fn key(&mut self, event: Event<'a>, at: Span, path: &Path) -> Checked<String> {
        // A collection is not read first: keys have no path, so nothing would bound the recursion.
        if !matches!(event, Event::SequenceStart(..) | Event::MappingStart(..)) {
            match &self.node(event, at, path)?.body {
                Body::Scalar(key) if key.form == Form::Plain && key.text == "<<" => {
                    return Err(invalid(at, path, "a merge key `<<`"));
                }
                Body::Scalar(key) => return Ok(key.text.clone()),
                Body::List(_) | Body::Mapping(_) => {} // by an alias
            }
        }
        Err(invalid(at, path, "a key that is not a scalar"))
    }

    /// Counts a value of this height (1 for the start of a collection), and lets it pass if it has
    /// no tag or the core tag of its own kind.
    fn enter(
        &mut self,
        height: usize,
        tag: Option<&Tag>,
        kind: &str,
        at: Span,
        path: &Path,
    ) -> Checked {
        self.nodes += 1;
        self.check_budget(height, at, path)?;
        let Some(tag) = tag else { return Ok(()) };
        let name = format!("{}{}", tag.handle, tag.suffix);
        if name.strip_prefix("tag:yaml.org,2002:") == Some(kind) {
            return Ok(());
        }
        Err(invalid(at, path, &format!("the tag `{}`", cut(&name))))
    }

    fn check_budget(&self, height: usize, at: Span, path: &Path) -> Checked {
        let (limit, unit) = if path.depth() + height > MAX_DEPTH {
            (MAX_DEPTH, "levels")
        } else if self.nodes > MAX_NODES {
            (MAX_NODES, "values")
        } else if self.bytes > MAX_BYTES {
            (MAX_BYTES, "bytes")
        } else {
            return Ok(());
        };
        let what = format!("too large to compare: more than {limit} {unit}, aliases expanded");
        Err(invalid(at, path, &what))
    }
}

// ---------------------------------------------------------------------------------------------
// Comparing

fn compare_fields(fields: &Fields, entry: &Map<String, Value>, path: &Path) -> Checked {
    for (key, node) in fields {
        let place = Path::Key(path, key);
        match entry.get(key) {
            Some(value) => compare_value(node, value, &place)?,
            None => return Err(not_in_entry(node, &place)),
        }
    }
    match entry.iter().find(|(key, _)| !fields.contains_key(*key)) {
        Some((key, value)) => Err(not_in_file(value, &Path::Key(path, key))),
        None => Ok(()),
    }
}

fn compare_value(node: &Node, value: &Value, path: &Path) -> Checked {
    match (&node.body, value) {
        (Body::Scalar(scalar), _) if scalar.may_be(value, is_string_field(path)) => Ok(()),
        (Body::List(items), Value::Array(values)) => compare_items(items, values, path),
        (Body::Mapping(fields), Value::Object(entry)) => compare_fields(fields, entry, path),
        _ => Err(FrontmatterError::Mismatch {
            field: path.to_string(),
            line: node.line,
            found: show_node(node),
            expected: show_value(value),
            difference: difference(node, value),
        }),
    }
}

fn compare_items(items: &[Rc<Node>], values: &[Value], path: &Path) -> Checked {
    let mut values = values.iter();
    for (index, node) in items.iter().enumerate() {
        let place = Path::Item(path, index);
        match values.next() {
            Some(value) => compare_value(node, value, &place)?,
            None => return Err(not_in_entry(node, &place)),
        }
    }
    match values.next() {
        Some(value) => Err(not_in_file(value, &Path::Item(path, items.len()))),
        None => Ok(()),
    }
}

fn is_string_field(path: &Path) -> bool {
    matches!(path, Path::Key(Path::Root, key) if STRING_FIELDS.contains(key))
}

fn not_in_entry(node: &Node, path: &Path) -> FrontmatterError {
    FrontmatterError::NotInEntry {
        field: path.to_string(),
        line: node.line,
        found: show_node(node),
    }
}

fn not_in_file(value: &Value, path: &Path) -> FrontmatterError {
    FrontmatterError::NotInFile {
        field: path.to_string(),
        expected: show_value(value),
    }
}

/// What can be said about two values that are known to differ.
fn difference(node: &Node, value: &Value) -> Difference {
    match (&node.body, value) {
        (Body::Scalar(scalar), Value::String(text)) => {
            let pairs = scalar.text.chars().zip(text.chars());
            match pairs.take_while(|(a, b)| a == b).count() {
                same if same < SHOWN_CHARS => Difference::Value,
                same => Difference::Text(same + 1),
            }
        }
        (Body::Scalar(scalar), Value::Number(json))
            if scalar.form == Form::Plain
                && numbers(&scalar.text).iter().any(|n| n.is_rounded_to(json)) =>
        {
            Difference::Precision
        }
        _ => Difference::Value,
    }
}

fn show_node(node: &Node) -> String {
    match &node.body {
        Body::Scalar(scalar) if scalar.form == Form::Plain && scalar.text.is_empty() => {
            "nothing".to_owned()
        }
        Body::Scalar(scalar) if scalar.form == Form::Plain => cut(&scalar.text),
        Body::Scalar(scalar) => quoted(&scalar.text),
        Body::List(items) => format!("a list of {}", items.len()),
        Body::Mapping(fields) => format!("a mapping of {}", fields.len()),
    }
}

fn show_value(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(fields) => format!("a mapping of {}", fields.len()),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", cut(text))
}

/// The start of a long text.
fn cut(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

// ---------------------------------------------------------------------------------------------
// What a scalar may stand for

impl Scalar {
    fn may_be(&self, value: &Value, string_only: bool) -> bool {
        match value {
            Value::String(text) if *text == self.text => true,
            Value::String(text) => match self.form {
                Form::Plain => {
                    !string_only && js_date(&self.text).is_some_and(|date| date == *text)
                }
                Form::LastBlock => self.text.strip_suffix('\n') == Some(text.as_str()),
                Form::Exact => false,
            },
            _ if string_only || self.form != Form::Plain => false,
            Value::Null => is_null(&self.text),
            Value::Bool(flag) => boolean(&self.text) == Some(*flag),
            Value::Number(json) => numbers(&self.text).iter().any(|n| n.equals(json)),
            Value::Array(_) | Value::Object(_) => false,
        }
    }
}

fn is_null(text: &str) -> bool {
    matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

/// The words of YAML 1.1, which include those of 1.2.
fn boolean(text: &str) -> Option<bool> {
    match text {
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "y" | "Y" | "on" | "On" | "ON" => {
            Some(true)
        }
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "n" | "N" | "off" | "Off" | "OFF" => {
            Some(false)
        }
        _ => None,
    }
}

/// A number as a plain scalar writes it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Reading {
    /// An integer that JSON can carry to us exactly.
    Integer(i128),
    /// The double nearest to an integer that does not fit 64 bits.
    LongInteger(f64),
    Float(f64),
}

impl Reading {
    fn integer(value: i128) -> Self {
        if (i128::from(i64::MIN)..=i128::from(u64::MAX)).contains(&value) {
            Self::Integer(value)
        } else {
            Self::LongInteger(value as f64)
        }
    }

    fn equals(self, json: &Number) -> bool {
        match (self, json_integer(json), json.as_f64()) {
            (Self::Integer(ours), Some(theirs), _) => ours == theirs,
            // A double beyond this bound may have lost digits on its way to us.
            (Self::Integer(ours), None, Some(theirs)) => {
                ours.unsigned_abs() <= EXACT_IN_F64 && ours as f64 == theirs
            }
            // The cast is exact or saturates at a value that no JSON integer has.
            (Self::Float(ours), Some(theirs), _) => ours.fract() == 0.0 && ours as i128 == theirs,
            (Self::LongInteger(ours) | Self::Float(ours), None, Some(theirs)) => ours == theirs,
            (Self::LongInteger(_), Some(_), _) | (_, None, None) => false,
        }
    }

    /// Whether this number, once it went through a double, could have become the other.
    fn is_rounded_to(self, json: &Number) -> bool {
        match self {
            Self::Integer(ours) => {
                ours.unsigned_abs() > EXACT_IN_F64 && json.as_f64() == Some(ours as f64)
            }
            Self::LongInteger(_) | Self::Float(_) => false,
        }
    }
}

impl std::ops::Neg for Reading {
    type Output = Self;

    fn neg(self) -> Self {
        match self {
            Self::Integer(value) => Self::integer(-value),
            Self::LongInteger(value) => Self::LongInteger(-value),
            Self::Float(value) => Self::Float(-value),
        }
    }
}

/// The JSON number if it was written as an integer and fits 64 bits.
fn json_integer(json: &Number) -> Option<i128> {
    json.as_i64()
        .map(i128::from)
        .or_else(|| json.as_u64().map(i128::from))
}

/// All numbers that a plain scalar may stand for: none, one, or two where YAML 1.1 and 1.2 differ.
fn numbers(text: &str) -> Vec<Reading> {
    let (negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    // Checked before underscores go: `_1` is a word.
    let head = unsigned.strip_prefix('.').unwrap_or(unsigned);
    if !head.starts_with(|c: char| c.is_ascii_digit()) {
        return Vec::new();
    }
    let body = unsigned.replace('_', "");
    let found = if is_digits(&body) {
        let octal = if body.starts_with('0') {
            radix(&body, 8)
        } else {
            None
        };
        vec![decimal(&body), octal]
    } else if let Some(digits) = body.strip_prefix("0x") {
        vec![radix(digits, 16)]
    } else if let Some(digits) = body.strip_prefix("0o") {
        vec![radix(digits, 8)]
    } else if let Some(digits) = body.strip_prefix("0b") {
        vec![radix(digits, 2)]
    } else if body.contains(':') {
        vec![base_60(&body)]
    } else {
        vec![float(&body)]
    };
    let signed = |reading: Reading| if negative { -reading } else { reading };
    found.into_iter().flatten().map(signed).collect()
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn decimal(digits: &str) -> Option<Reading> {
    match digits.parse() {
        Ok(value) => Some(Reading::integer(value)),
        Err(_) => digits.parse().ok().map(Reading::LongInteger),
    }
}

fn radix(digits: &str, radix: u32) -> Option<Reading> {
    // The standard library would take a sign here.
    let all = digits.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let value = i128::from_str_radix(digits, radix).ok()?;
    all.then(|| Reading::integer(value))
}

/// `1:30` is 90 and `1:30.5` is 90.5.
fn base_60(text: &str) -> Option<Reading> {
    let (whole, fraction) = match text.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (text, None),
    };
    let (first, rest) = whole.split_once(':')?;
    let good = is_digits(first)
        && rest
            .split(':')
            .all(|part| field(part, 1..=2, 0..=59).is_some());
    match fraction {
        None if good => whole
            .split(':')
            .try_fold(0_i128, |value, part| {
                value.checked_mul(60)?.checked_add(part.parse().ok()?)
            })
            .map(Reading::integer),
        Some(fraction) if good && (fraction.is_empty() || is_digits(fraction)) => {
            // Summed from the right, as the loaders do it: the rounding has to be theirs.
            let mut value = 0.0;
            let mut base = 1.0;
            for part in text.rsplit(':') {
                value += part.parse::<f64>().ok()? * base;
                base *= 60.0;
            }
            Some(Reading::Float(value))
        }
        _ => None,
    }
}

/// A number with a fraction or an exponent, whose first character is a digit or a dot.
fn float(text: &str) -> Option<Reading> {
    // The words that the standard library also takes begin otherwise.
    text.parse().ok().map(Reading::Float)
}

// ---------------------------------------------------------------------------------------------
// Timestamps

/// What `Date.prototype.toISOString` gives for a YAML timestamp. Without a zone it is in UTC.
fn js_date(text: &str) -> Option<String> {
    let (date, time) = match text.find(['T', 't', ' ', '\t']) {
        Some(at) => (text.get(..at)?, Some(text.get(at..)?)),
        None => (text, None),
    };
    let (year, month_day) = date.split_once('-')?;
    let (month, day) = month_day.split_once('-')?;
    let year = field(year, 4..=4, 0..=9999)?;
    let month = field(month, 1..=2, 1..=12)?;
    let day = field(day, 1..=2, 1..=days_in_month(year, month))?;
    let (minutes, seconds) = match time {
        Some(time) => time_of_day(time)?,
        None => (0, "00.000".to_owned()),
    };
    let (year, month, day) = shift_day((year, month, day), minutes.div_euclid(24 * 60))?;
    let minutes = minutes.rem_euclid(24 * 60);
    let (hour, minute) = (minutes / 60, minutes % 60);
    Some(format!(
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{seconds}Z"
    ))
}

/// Digits within a length and a range.
fn field(text: &str, length: RangeInclusive<usize>, range: RangeInclusive<i64>) -> Option<i64> {
    let value = text.parse().ok()?;
    (is_digits(text) && length.contains(&text.len()) && range.contains(&value)).then_some(value)
}

/// Minutes from the start of the day in UTC, which the zone may move to the day before or after,
/// and the seconds with three decimals.
fn time_of_day(text: &str) -> Option<(i64, String)> {
    let text = text
        .strip_prefix(['T', 't'])
        .unwrap_or_else(|| text.trim_start_matches([' ', '\t']));
    let (clock, zone) = match text.find(['Z', '+', '-', ' ', '\t']) {
        Some(at) => (text.get(..at)?, text.get(at..)?),
        None => (text, "Z"),
    };
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    let (hour, rest) = clock.split_once(':')?;
    let (minute, second) = rest.split_once(':')?;
    let minutes = field(hour, 1..=2, 0..=23)? * 60 + field(minute, 2..=2, 0..=59)?;
    let second = field(second, 2..=2, 0..=59)?;
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let millis: String = fraction.chars().chain("000".chars()).take(3).collect();
    let offset = zone_offset(zone.trim_start_matches([' ', '\t']))?;
    Some((minutes - offset, format!("{second:02}.{millis}")))
}

/// `Z`, or hours with a sign and perhaps minutes, as minutes.
fn zone_offset(zone: &str) -> Option<i64> {
    if zone == "Z" {
        return Some(0);
    }
    let (sign, rest) = match zone.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, zone.strip_prefix('+')?),
    };
    let (hours, minutes) = rest.split_once(':').unwrap_or((rest, "00"));
    Some(sign * (field(hours, 1..=2, 0..=23)? * 60 + field(minutes, 2..=2, 0..=59)?))
}

fn days_in_month(year: i64, month: i64) -> i64 {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// The date `by` days later, where `by` is -1, 0 or 1, if its year has four digits.
fn shift_day((year, month, day): (i64, i64, i64), by: i64) -> Option<(i64, i64, i64)> {
    let day = day + by;
    let (year, month, day) = match (month, day) {
        (1, 0) => (year - 1, 12, 31),
        (_, 0) => (year, month - 1, days_in_month(year, month - 1)),
        (12, 32) => (year + 1, 1, 1),
        _ if day > days_in_month(year, month) => (year, month + 1, 1),
        _ => (year, month, day),
    };
    (0..=9999).contains(&year).then_some((year, month, day))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    type Outcome = Result<(), FrontmatterError>;

    fn object(value: Value) -> Map<String, Value> {
        match value {
            Value::Object(map) => map,
            other => panic!("not an object: {other}"),
        }
    }

    fn check(file: impl AsRef<[u8]>, entry: Value) -> Outcome {
        compare(file.as_ref(), &object(entry))
    }

    /// Compares a block of YAML, put between fences, with JSON text.
    fn check_block(yaml: &str, json: &str) -> Outcome {
        let entry = serde_json::from_str(json).unwrap_or_else(|e| panic!("{json}: {e}"));
        check(format!("---\n{yaml}\n---\nBody\n"), entry)
    }

    /// The field that the error names, in the variant and in the message.
    fn field_of(outcome: &Outcome) -> String {
        let error = outcome.as_ref().expect_err("must be refused");
        match error {
            FrontmatterError::Mismatch { field, .. }
            | FrontmatterError::NotInEntry { field, .. }
            | FrontmatterError::NotInFile { field, .. } => {
                assert!(error.to_string().contains(&format!("`{field}`")), "{error}");
                field.clone()
            }
            other => panic!("no field: {other}"),
        }
    }

    fn message(outcome: Outcome) -> String {
        outcome.expect_err("must be refused").to_string()
    }

    /// A scalar => what it may be => what it must not be. `¶` is a line break.
    const READINGS: &str = r##"
        # numbers
        1.0 => 1.0 | 1 | "1.0" => "1" | 1.1 | true
        1.10 => 1.1 | 1.10 | "1.10" => "1.1" | 1.2 | "v1.10"
        1 => 1 | 1.0 | "1" => 2 | -1 | true | null | [1] | "1.0"
        -7 => -7 | -7.0 | "-7" => 7 | "7"
        +7 => 7 | "+7" => -7 | "7"
        012 => 12 | 10 | "012" => 11 | "12" | "10"
        -012 => -12 | -10 => 12 | 10
        089 => 89 => 73
        0o17 => 15 | "0o17" => 17
        0x1F => 31 | "0x1F" => 1
        0x+1 => "0x+1" => 1
        0b101 => 5 | "0b101" => 101
        1_000 => 1000 | "1_000" => 1 | "1000"
        _1 => "_1" => 1
        1:30 => 90 | "1:30" => 130 | 1
        190:20:30 => 685230 | "190:20:30" => 190
        190:20:30.15 => 685230.15 => 685230
        1:60 => "1:60" => 120
        1:030 => "1:030" => 90
        1:60.5 => "1:60.5" => 120.5
        1:30.5e1 => "1:30.5e1" => 365
        09:30 => 570 | "09:30" => 930
        1e3 => 1000 | 1e3 | "1e3" => 1 | 3
        6.02e-2 => 0.0602 => 6.02
        .5 => 0.5 | ".5" => 5
        -.5 => -0.5 => 0.5
        1. => 1 => 0
        1.2.3 => "1.2.3" => 1.2 | 1
        1e => "1e" => 1
        0 => 0 | -0.0 | "0" => false | null | ""
        .nan => ".nan" => null | 0 | "NaN"
        .inf => ".inf" => null | 1e308 | "inf"
        -.inf => "-.inf" => null | -1e308
        -18446744073709551615 => -18446744073709551615 => 18446744073709551615 | -1
        inf => "inf" => null | 1e308
        1e999 => "1e999" => 1e308 | null
        # integers that doubles do not hold
        9007199254740992 => 9007199254740992 | 9007199254740992.0 => 9007199254740993
        9007199254740993 => 9007199254740993 | "9007199254740993" => 9007199254740992 | 9007199254740993.0 | 9007199254740994
        12345678901234567890 => 12345678901234567890 | "12345678901234567890" => 12345678901234567000 | 1.2345678901234567e19 | 12345678901234567891
        18446744073709551615 => 18446744073709551615 => 18446744073709551616
        -9223372036854775808 => -9223372036854775808 => -9223372036854775807
        123456789012345678901234567890 => 123456789012345678901234567890 | 1.2345678901234568e29 => 1.2345678901234567e28 | 1234567890 | 1.2345678901234561e29
        -1234567890123456789012345678901234567890123 => -1234567890123456789012345678901234567890123 => 1234567890123456789012345678901234567890123
        # words
        yes => true | "yes" => false | "true" | 1
        no => false | "no" => true | null | 0
        on => true | "on" => false
        OFF => false | "OFF" => true | "off"
        y => true | "y" => false | "yes"
        N => false | "N" => true
        True => true | "True" => false | "true"
        yEs => "yEs" => true
         => null | "" => 0 | false | "null" | {} | []
        ~ => null | "~" => "" | false
        Null => null | "Null" => "null"
        # timestamps
        2026-01-02 => "2026-01-02" | "2026-01-02T00:00:00.000Z" => "2026-01-03T00:00:00.000Z" | "2026-01-02T01:00:00.000Z" | "2026-01-02T00:00:00.000+01:00" | "2026-01-02T00:00:00Z" | null | 1767312000000
        2026-12-31 23:30:15.1234 -01:30 => "2027-01-01T01:00:15.123Z" | "2026-12-31 23:30:15.1234 -01:30" => "2026-12-31T23:30:15.123Z"
        2001-1-1T00:30:00+1 => "2000-12-31T23:30:00.000Z" =>
        2024-03-01t00:00:00.5+00:30 => "2024-02-29T23:30:00.500Z" =>
        2023-03-01 00:00:00 +12 => "2023-02-28T12:00:00.000Z" =>
        2024-02-29 23:59:59 -23:59 => "2024-03-01T23:58:59.000Z" =>
        2026-04-30 20:00:00 -8 => "2026-05-01T04:00:00.000Z" =>
        2026-01-01T12:00:00Z => "2026-01-01T12:00:00.000Z" =>
        2026-02-30 => "2026-02-30" => "2026-03-02T00:00:00.000Z"
        1900-02-29 => "1900-02-29" => "1900-02-29T00:00:00.000Z"
        2000-02-29 => "2000-02-29T00:00:00.000Z" =>
        2026-1-2 => "2026-1-2" | "2026-01-02T00:00:00.000Z" => "2026-01-02"
        9999-12-31 23:00:00 -2 =>  => "10000-01-01T01:00:00.000Z"
        # quoted, tagged and folded text
        "yes" => "yes" => true | "\"yes\""
        '1' => "1" => 1
        '' => "" => null
        '2026-01-02' => "2026-01-02" => "2026-01-02T00:00:00.000Z"
        !!str 12 => "12" => 12 | "!!str 12"
        !!str => "" => null
        !!seq [1] => [1] => [2]
        !!map {a: b} => {"a":"b"} => {}
        one¶  two¶¶  three # note => "one two\nthree" => "one two three"
        "a\tb\u00e9" => "a\tbé" => "a\tbe\u0301"
        café => "café" => "cafe\u0301" | "cafÉ"
    "##;

    /// For each plain scalar, what it may and may not be in the entry.
    #[test]
    fn plain_scalars_stand_for_their_readings_only() {
        let mut cases = 0;
        for line in READINGS.lines().map(str::trim) {
            let mut parts = line.split("=>").map(str::trim);
            let (Some(yaml), Some(accepted), Some(refused)) =
                (parts.next(), parts.next(), parts.next())
            else {
                continue; // a heading
            };
            let yaml = format!("x: {}\nz: end", yaml.replace('¶', "\n"));
            for json in accepted.split(" | ").filter(|json| !json.is_empty()) {
                let outcome = check_block(&yaml, &with_end(json));
                assert_eq!(outcome, Ok(()), "{yaml} must be able to be {json}");
                cases += 1;
            }
            for json in refused.split(" | ").filter(|json| !json.is_empty()) {
                let outcome = check_block(&yaml, &with_end(json));
                assert!(outcome.is_err(), "{yaml} must not be {json}");
                let field = field_of(&outcome);
                assert!(matches!(&*field, "x" | "x[0]" | "x.a"), "{field}");
                cases += 1;
            }
        }
        assert!(cases > 200, "{cases}");
    }

    fn with_end(json: &str) -> String {
        format!(r#"{{"x":{json},"z":"end"}}"#)
    }

    /// A block => an entry => the field that differs, or nothing if they are equal.
    const COLLECTIONS: &str = r##"
        b: x¶a: w => {"a":"w","b":"x"} =>
        a: {}¶b: [] => {"a":{},"b":[]} =>
        a: {} => {"a":[]} => a
        a: => {} => a
        a: w => {"a":"w","b":null} => b
        t: [q, r] => {"t":["q","r"]} =>
        t: [q, r] => {"t":["r","q"]} => t[0]
        t: [q, r] => {"t":["q"]} => t[1]
        t: [q, r] => {"t":["q","r","s"]} => t[2]
        t:¶- q¶-¶- {u: [1]} => {"t":["q",null,{"u":[1]}]} =>
        t:¶- q¶-¶- {u: [1]} => {"t":["q",null,{"u":[2]}]} => t[2].u[0]
        m: {d: {e: 1}} => {"m":{"d":{"e":2}}} => m.d.e
        m: {d: 1} => {"m":{"d":1,"é":2}} => m.é
        m: {d: 1, e: 2} => {"m":{"d":1}} => m.e
        m: {d: 1} => {"m":"{d: 1}"} => m
        a: w¶B: x => {"a":"w","b":"x"} => B
        # keys that are not strings to yaml
        1: w => {"1":"w"} =>
        0x1: w => {"1":"w"} => 0x1
        on: w => {"on":"w"} =>
        on: w => {"true":"w"} => on
        "<<": w => {"<<":"w"} =>
        ? a¶: w => {"a":"w"} =>
        # anchors
        a: &k [1, yes]¶b: *k => {"a":[1,true],"b":[1,"yes"]} =>
        a: &k [1, yes]¶b: *k => {"a":[1,true],"b":[1,false]} => b[1]
        a: &k w¶*k : v => {"a":"w","w":"v"} =>
        a: &k w¶b: &k x¶c: *k => {"a":"w","b":"x","c":"x"} =>
        # fields that are strings
        name: 123 => {"name":"123"} =>
        name: 123 => {"name":123} => name
        name: yes => {"name":true} => name
        name: !!str 1 => {"name":"1"} =>
        name: => {"name":null} => name
        name: => {"name":""} =>
        name: [q] => {"name":["r"]} => name[0]
        description: 2026-01-02 => {"description":"2026-01-02"} =>
        description: 2026-01-02 => {"description":"2026-01-02T00:00:00.000Z"} => description
        m: {name: 123} => {"m":{"name":123}} =>
        # the last line break of a block scalar, which only the end of the block may take
        a: |¶  q¶  r => {"a":"q\nr\n"} =>
        a: |¶  q¶  r => {"a":"q\nr"} =>
        a: |¶  q¶  r => {"a":"q"} => a
        a: |¶  q¶¶ => {"a":"q"} =>
        a: |+¶  q¶¶ => {"a":"q\n\n\n"} =>
        a: |+¶  q¶¶ => {"a":"q"} => a
        a: |-¶  q => {"a":"q"} =>
        a: |-¶  q => {"a":"q\n"} => a
        a: |¶  q¶b: r => {"a":"q","b":"r"} => a
        a: |¶  q¶# note => {"a":"q"} => a
        é: [é]¶a: |¶  é => {"é":["é"],"a":"é"} =>
        a: |¶  1 => {"a":1} => a
        a: "q\n" => {"a":"q"} => a
        t:¶- |¶  q¶- >¶  r => {"t":["q\n","r"]} =>
        t:¶- |¶  q¶- >¶  r => {"t":["q","r"]} => t[0]
        # dashes that are no fence
        a: |¶  ---¶  q¶b: '--- ' => {"a":"---\nq\n","b":"--- "} =>
        a: w¶... => {"a":"w"} =>
    "##;

    #[test]
    fn collections_are_compared_field_by_field() {
        let mut cases = 0;
        for line in COLLECTIONS.lines() {
            let mut parts = line.split("=>").map(str::trim);
            let (Some(yaml), Some(json), Some(field)) = (parts.next(), parts.next(), parts.next())
            else {
                continue; // a heading
            };
            let outcome = check_block(&yaml.replace('¶', "\n"), json);
            if field.is_empty() {
                assert_eq!(outcome, Ok(()), "{yaml} and {json}");
            } else {
                assert!(outcome.is_err(), "{yaml} and {json}");
                assert_eq!(field_of(&outcome), *field, "{yaml} and {json}");
            }
            cases += 1;
        }
        assert!(cases > 50, "{cases}");
    }

    #[test]
    fn what_is_never_equal_says_why_and_where() {
        let many: String = (0..MAX_NODES).map(|i| format!("k{i}: v\n")).collect();
        let deep = format!("a: {}{}", "[".repeat(32), "]".repeat(32));
        let alias_deep = format!(
            "a: &k {}{}\nb: {}*k{}",
            "[".repeat(20),
            "]".repeat(20),
            "[".repeat(12),
            "]".repeat(12)
        );
        let large = format!("a: {}", "x".repeat(MAX_BYTES));
        let comment = format!("a: 1 # {}", "x".repeat(MAX_BYTES));
        let fifteen = |name: &str| vec![format!("*{name}"); 15].join(",");
        let laughs = format!(
            "a: &a x\nb: &b [{}]\nc: &c [{}]\nd: [{}]",
            fifteen("a"),
            fifteen("b"),
            fifteen("c")
        );
        let echo = format!("a: &a {}\nb: [*a, *a, *a]", "x".repeat(20_000));
        let maps_deep = format!(
            "a: &k {}{}\nb: {}*k{}",
            "{m: ".repeat(20),
            "}".repeat(20),
            "[".repeat(12),
            "]".repeat(12)
        );
        let table: &[(&str, &str, usize)] = &[
            ("a: b: c", "not valid YAML", 2),
            ("a: 1\nb: [1", "not valid YAML", 4),
            ("a: 'é", "not valid YAML", 2),
            ("a: *k", "not valid YAML", 2),
            ("a: q\u{7}", "U+0007", 2),
            (
                "a: 1\nb: q\0",
                "U+0000 is not allowed here, at line 3 column 5",
                3,
            ),
            ("a: \"\\uD800\"", "not valid YAML", 2),
            ("\u{feff}a: 1", "U+FEFF", 2),
            ("a: 1\n\u{feff}b: 1", "byte order mark", 3),
            (
                "a: 1\nb: 2\na: 1",
                "duplicate key `a`, at line 4 column 1",
                4,
            ),
            ("a: 1\n'a': 1", "duplicate key `a`", 3),
            ("m: {d: 1, d: 1}", "duplicate key `d` in field `m`", 2),
            (
                "a: &k d\nm: {d: 1, *k : 1}",
                "duplicate key `d` in field `m`",
                3,
            ),
            (
                "b: &k {d: 1}\na:\n  <<: *k",
                "merge key `<<` in field `a`",
                4,
            ),
            ("a: &k <<\n*k : {}", "merge key", 3),
            ("a: !x 1", "the tag `!x` in field `a`", 2),
            ("a: !!binary aGk=", "the tag `tag:yaml.org,2002:binary`", 2),
            ("a: !!int 1", "the tag", 2),
            ("a: ! 1", "the tag", 2),
            ("a: !!str [1]", "the tag", 2),
            ("!x a: 1", "the tag", 2),
            ("? [a]\n: 1", "a key that is not a scalar", 2),
            ("? {a: b}\n: 1", "a key that is not a scalar", 2),
            ("a: &k [1]\n? *k\n: 1", "a key that is not a scalar", 3),
            ("b: &j 1\na: &k [*k]", "inside its own anchor", 3),
            ("&k a: *z", "unknown anchor", 2),
            ("&k\na: *k", "inside its own anchor", 3),
            ("- a", "not a mapping", 2),
            ("text", "not a mapping", 2),
            ("", "not a mapping", 3),
            ("# note", "not a mapping", 3),
            ("--- # note\na: 1", "another YAML document", 2),
            ("%YAML 1.1\n--- # note\na: 1", "directive", 3),
            ("a: 1\n--- # note\nb: 1", "another YAML document", 3),
            ("a: 1\n...\nb: 1", "another YAML document", 4),
            ("a: 1\n...\n{}", "another YAML document", 4),
            (&many, "more than 2000 values", 1001),
            (&deep, "more than 32 levels", 2),
            (&alias_deep, "more than 32 levels", 3),
            (&maps_deep, "more than 32 levels", 3),
            (&large, "too large", 2),
            (&comment, "the limit is 65536", 2),
            (&laughs, "more than 2000 values", 5),
            (&echo, "more than 65536 bytes", 3),
        ];
        for (yaml, part, at) in table {
            // The entry is what a lenient loader could make of the file.
            let outcome = check_block(yaml, r#"{"a":1,"b":1,"m":{"d":1}}"#);
            let Err(FrontmatterError::Invalid { line, .. }) = &outcome else {
                panic!("{yaml:?}: {outcome:?}");
            };
            assert_eq!(line, at, "{yaml:?}: {outcome:?}");
            let text = message(outcome);
            assert!(text.contains(part), "{yaml:?}: {text}");
        }
    }

    #[test]
    fn limits_are_reached_but_not_passed() {
        let nested = |n: usize| (1..n).fold(json!([]), |inner, _| json!([inner]));
        let deep = format!("a: {}{}", "[".repeat(31), "]".repeat(31));
        assert_eq!(
            check(format!("---\n{deep}\n---"), json!({"a": nested(31)})),
            Ok(())
        );

        let fields = (MAX_NODES - 1) / 2;
        let many: String = (0..fields).map(|i| format!("k{i}: v\n")).collect();
        let entry: Map<_, _> = (0..fields).map(|i| (format!("k{i}"), json!("v"))).collect();
        assert_eq!(
            check(format!("---\n{many}---"), entry.clone().into()),
            Ok(())
        );

        // One value more, and then one more than that.
        let many = |list: &str| many.replacen("k0: v", &format!("k0: {list}"), 1);
        let entry = |list: Value| {
            let mut entry = entry.clone();
            entry.insert("k0".into(), list);
            Value::from(entry)
        };
        let file = format!("---\n{}---", many("[v]"));
        assert_eq!(check(file, entry(json!(["v"]))), Ok(()));
        let file = format!("---\n{}---", many("[v, v]"));
        let text = message(check(file, entry(json!(["v", "v"]))));
        assert!(text.contains("more than 2000 values"), "{text}");

        let long = "x".repeat(MAX_BYTES - "a: \n".len());
        let file = format!("---\na: {long}\n---\n{}", "body\n".repeat(100_000));
        assert_eq!(check(file, json!({"a": long})), Ok(()));

        // The keys `a` and `b`, and twice the text.
        for (half, passes) in [(MAX_BYTES / 2 - 1, true), (MAX_BYTES / 2, false)] {
            let text = "x".repeat(half);
            let file = format!("---\na: &k {text}\nb: *k\n---");
            let outcome = check(file, json!({"a": text, "b": text}));
            assert_eq!(outcome.is_ok(), passes, "{half} bytes twice");
        }

        // An alias costs what it stands for, whatever came before.
        let (many, long) = ("v, ".repeat(1_500), "x".repeat(60_000));
        for (yaml, value) in [
            (format!("[{many}]"), json!(vec!["v"; 1_500])),
            (long.clone(), json!(long)),
        ] {
            let file = format!("---\na: {yaml}\nb: &k [q]\nc: *k\n---");
            let entry = json!({"a": value, "b": ["q"], "c": ["q"]});
            assert_eq!(check(file, entry), Ok(()));
        }
    }

    #[test]
    fn a_difference_says_what_can_be_said() {
        let difference = |yaml: &str, json: &str| {
            let outcome = check_block(&format!("a: {yaml}"), &format!("{{\"a\": {json}}}"));
            match outcome {
                Err(FrontmatterError::Mismatch { difference, .. }) => difference,
                other => panic!("{yaml} and {json}: {other:?}"),
            }
        };
        // Text is shown up to a length; a difference beyond it is said by its place.
        for (same, says) in [
            (SHOWN_CHARS - 1, Difference::Value),
            (SHOWN_CHARS, Difference::Text(SHOWN_CHARS + 1)),
        ] {
            let text = "x".repeat(same);
            let (ours, theirs) = (format!("{text}y"), format!("\"{text}z\""));
            assert_eq!(difference(&ours, &theirs), says, "{same} alike");
        }
        // A double holds 2^53, and loses 2^53 + 1 only to its neighbour.
        for (ours, theirs, says) in [
            (
                "9007199254740993",
                "9007199254740992",
                Difference::Precision,
            ),
            ("9007199254740993", "5", Difference::Value),
            ("9007199254740992", "9007199254740993", Difference::Value),
            ("7", "8", Difference::Value),
        ] {
            assert_eq!(difference(ours, theirs), says, "{ours} and {theirs}");
        }
    }

    #[test]
    fn hostile_blocks_fail_fast() {
        let laughs: String = (1..30)
            .map(|i| {
                format!(
                    "k{i}: &k{i} [{}]\n",
                    vec![format!("*k{}", i - 1); 9].join(",")
                )
            })
            .collect();
        let long = format!("a: &k {}\nb: [{}]", "x".repeat(30_000), "*k,".repeat(1_900));
        let hostile = [
            format!("k0: &k0 x\n{laughs}"),
            long,
            "[".repeat(60_000),
            format!("a: {}", "{".repeat(60_000)),
            "- ".repeat(30_000),
            "? ".repeat(30_000),
            format!("a: [{}", "q,".repeat(30_000)),
            format!("a: [{}", "\n".repeat(60_000)),
            format!("a: \"{}", "\\\n".repeat(30_000)),
            "&a ".repeat(20_000),
            "!a ".repeat(20_000),
            "a:\n ".repeat(15_000),
            format!("a: {}", "-".repeat(60_000)),
            format!("a: {}", "9".repeat(60_000)),
            format!("a: {}", "1:".repeat(30_000)),
            "#".repeat(60_000),
            " \n".repeat(30_000),
            ("k: |\n  ".to_owned() + &" ".repeat(200) + "\n").repeat(300),
        ];
        for yaml in &hostile {
            let start = Instant::now();
            assert!(check_block(yaml, r#"{"a":1,"b":[]}"#).is_err());
            let head = cut(yaml);
            assert!(start.elapsed() < Duration::from_secs(2), "slow: {head}");
        }
    }

    #[test]
    fn fences() {
        let entry = json!({"a": "w"});
        let accepted: &[&[u8]] = &[
            b"---\na: w\n---",
            b"---\na: w\n---\n",
            b"---\r\na: w\r\n---\r\nBody\r\n",
            b"---  \na: w\n---\t \nBody\n\n---\n\nmore\n",
            b"\xef\xbb\xbf---\na: w\n---\n",
            b"---\na: w\n---\nnot UTF-8: \xff\xfe\n",
        ];
        for file in accepted {
            assert_eq!(check(file, entry.clone()), Ok(()), "{file:?}");
        }
        let missing: &[&[u8]] = &[
            b"",
            b"\n---\na: w\n---\n",
            b" ---\na: w\n---\n",
            b"----\na: w\n---\n",
            b"--- a: w\n---\n",
            b"---\ra: w\r---\r",
            b"# Title\n",
            b"\xef\xbb\xbf\xef\xbb\xbf---\na: w\n---\n",
            b"\xff\xfe-\0-\0-\0\n\0a\0:\0 \0w\0\n\0-\0-\0-\0",
        ];
        for file in missing {
            assert_eq!(
                check(file, entry.clone()),
                Err(FrontmatterError::Missing),
                "{file:?}"
            );
        }
        let unclosed: &[&[u8]] = &[
            b"---",
            b"---\n",
            b"---\na: w\n",
            b"---\na: w\n ---\n",
            b"---\na: w\n...\n",
            b"---\na: w\n----\n",
        ];
        for file in unclosed {
            assert_eq!(
                check(file, entry.clone()),
                Err(FrontmatterError::Unclosed),
                "{file:?}"
            );
        }
        assert_eq!(
            check(b"---\nb: x\na: \xff\n---\n", entry),
            Err(FrontmatterError::NotUtf8 { line: 3 })
        );
    }

    #[test]
    fn files_as_people_write_them() {
        let colon = "---\nname: colon-desc\ndescription: Plan releases. Triggers on: tag, ship\n---\n\nBody.\n";
        let entry =
            json!({"name": "colon-desc", "description": "Plan releases. Triggers on: tag, ship"});
        let text = message(check(colon, entry));
        assert!(text.contains("frontmatter is not valid YAML"), "{text}");
        assert!(text.contains("near field `description`"), "{text}");
        assert!(text.ends_with("at line 3 column 40"), "{text}");

        let windows = "\u{feff}---\r\nname: win-file\r\ndescription: Saved on Windows\r\nmetadata:\r\n  note: |\r\n    line one\r\n    line two\r\n---\r\n\r\nBody\r\n";
        let entry = |note: &str| json!({"name": "win-file", "description": "Saved on Windows", "metadata": {"note": note}});
        assert_eq!(check(windows, entry("line one\nline two\n")), Ok(()));
        assert_eq!(check(windows, entry("line one\nline two")), Ok(()));
        assert_eq!(
            field_of(&check(windows, entry("line one\r\nline two\r\n"))),
            "metadata.note"
        );

        let end = "---\nname: eof-fence\ndescription: No newline at the end\n---";
        assert_eq!(
            check(
                end,
                json!({"name": "eof-fence", "description": "No newline at the end"})
            ),
            Ok(())
        );
        let padded =
            "---  \nname: pad-fence\ndescription: Padded fences\n---\t \nBody\n\n---\n\nmore\n";
        assert_eq!(
            check(
                padded,
                json!({"name": "pad-fence", "description": "Padded fences"})
            ),
            Ok(())
        );

        let dated = "---\nname: dated\ndescription: Has dates\nmetadata:\n  released: 2026-03-05\n---\nBody\n";
        let entry = |date: Value| json!({"name": "dated", "description": "Has dates", "metadata": {"released": date}});
        assert_eq!(check(dated, entry(json!("2026-03-05"))), Ok(()));
        assert_eq!(
            check(dated, entry(json!("2026-03-05T00:00:00.000Z"))),
            Ok(())
        );
        for lie in [json!(null), json!("2026-03-06T00:00:00.000Z")] {
            let outcome = check(dated, entry(lie.clone()));
            assert_eq!(field_of(&outcome), "metadata.released");
            let text = message(outcome);
            assert!(
                text.contains("2026-03-05 (line 5)") && text.contains(&lie.to_string()),
                "{text}"
            );
        }

        let flags = "---\nname: flags\ndescription: d\nuser-invocable: yes\n---\nBody\n";
        let entry =
            |flag: Value| json!({"name": "flags", "description": "d", "user-invocable": flag});
        assert_eq!(check(flags, entry(json!("yes"))), Ok(()));
        assert_eq!(check(flags, entry(json!(true))), Ok(()));
        for lie in [json!(false), json!("true"), json!(1)] {
            assert_eq!(field_of(&check(flags, entry(lie))), "user-invocable");
        }

        let twice =
            "---\nname: twice\ndescription: Safe summary\ndescription: Other text\n---\nBody\n";
        for text in ["Safe summary", "Other text"] {
            let error = message(check(twice, json!({"name": "twice", "description": text})));
            assert!(error.contains("duplicate key `description`"), "{error}");
        }

        let folded = |more: &str| {
            format!("---\nname: folded\ndescription: >\n  one\n  two\n\n  three\n{more}---\nBody\n")
        };
        let entry = |text: &str| json!({"name": "folded", "description": text});
        assert_eq!(check(folded(""), entry("one two\nthree\n")), Ok(()));
        assert_eq!(check(folded(""), entry("one two\nthree")), Ok(()));
        assert_eq!(
            field_of(&check(folded(""), entry("one two three\n"))),
            "description"
        );
        let with_more = |text: &str| json!({"name": "folded", "description": text, "z": 1});
        assert_eq!(
            check(folded("z: 1\n"), with_more("one two\nthree\n")),
            Ok(())
        );
        assert_eq!(
            field_of(&check(folded("z: 1\n"), with_more("one two\nthree"))),
            "description"
        );
    }

    #[test]
    fn messages_name_field_values_and_place() {
        let text = message(check_block("m:\n  v: 1.10", r#"{"m":{"v":"1.1"}}"#));
        assert_eq!(
            text,
            "field `m.v` differs: the file has 1.10 (line 3), the entry has \"1.1\""
        );
        let text = message(check_block("a: w\nb:", r#"{"a":"w"}"#));
        assert_eq!(
            text,
            "field `b` is in the file (nothing, line 3) but not in the entry"
        );
        let text = message(check_block("a: w", r#"{"a":"w","b":[1,2]}"#));
        assert_eq!(
            text,
            "field `b` is in the entry (a list of 2) but not in the file"
        );
        let text = message(check_block(
            "i: 12345678901234567890",
            r#"{"i":12345678901234567000}"#,
        ));
        assert!(text.contains("lost precision"), "{text}");
        let text = message(check_block(
            "i: 12345678901234567890",
            r#"{"i":1.2345678901234567e19}"#,
        ));
        assert!(text.contains("lost precision"), "{text}");
        let text = message(check_block(
            "i: 12345678901234567890",
            r#"{"i":12345678901234567891}"#,
        ));
        assert!(text.contains("lost precision"), "{text}");
        let text = message(check_block("i: 7", r#"{"i":8}"#));
        assert!(!text.contains("precision"), "{text}");
        let text = message(check_block(
            "i: '9007199254740993'",
            r#"{"i":9007199254740992}"#,
        ));
        assert!(
            text.contains("\"9007199254740993\"") && !text.contains("precision"),
            "{text}"
        );

        // Long values are cut, and the message says where they part.
        let long = "é".repeat(1_500);
        assert_eq!(
            check(format!("---\na: \"{long}\"\n---"), json!({"a": long})),
            Ok(())
        );
        let text = message(check(
            format!("---\na: \"{long}\"\n---"),
            json!({"a": format!("{long}!")}),
        ));
        assert!(text.ends_with("they part at character 1501"), "{text}");
        assert!(text.chars().count() < 400, "{text}");
    }

    // -----------------------------------------------------------------------------------------
    // Generated pairs

    fn word() -> impl Strategy<Value = String> {
        prop_oneof![
            "[a-zA-Z][a-zA-Z0-9_ -]{0,12}",
            "[ -~\n\té\u{2028}漢😀]{0,20}",
            prop::sample::select(vec![
                "yes",
                "null",
                "1.0",
                "2026-01-02",
                "---",
                "<<",
                "~",
                ""
            ])
            .prop_map(str::to_owned),
        ]
    }

    fn leaf() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            (-1000_i64..1000).prop_map(Value::from),
            prop::num::f64::NORMAL.prop_map(Value::from),
            word().prop_map(Value::from),
        ]
    }

    fn tree() -> impl Strategy<Value = Value> {
        leaf().prop_recursive(4, 40, 5, |inner| {
            prop_oneof![
                vec(inner.clone(), 0..5).prop_map(Value::from),
                btree_map(word(), inner, 0..5)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    fn entry() -> impl Strategy<Value = Map<String, Value>> {
        (btree_map("[a-z]{1,8}", tree(), 0..6), word(), word()).prop_map(|(fields, name, text)| {
            let mut map: Map<String, Value> = fields.into_iter().collect();
            map.insert("name".to_owned(), name.into());
            map.insert("description".to_owned(), text.into());
            map
        })
    }

    /// How a generated file is written. Each dialect is one that loaders agree on.
    #[derive(Debug, Clone, Copy)]
    struct Dialect {
        crlf: bool,
        bom: bool,
        flow: bool,
        literal: bool,
    }

    fn dialect() -> impl Strategy<Value = Dialect> {
        any::<[bool; 4]>().prop_map(|[crlf, bom, flow, literal]| Dialect {
            crlf,
            bom,
            flow,
            literal,
        })
    }

    fn write_file(entry: &Map<String, Value>, dialect: Dialect) -> String {
        let mut out = String::from("---\n");
        // The end first: mapping order does not count.
        for (key, value) in entry.iter().rev() {
            write_field(&mut out, &text_of(key), value, 0, dialect);
        }
        out.push_str("---\n\nBody\n");
        if dialect.crlf {
            out = out.replace('\n', "\r\n");
        }
        if dialect.bom {
            format!("\u{feff}{out}")
        } else {
            out
        }
    }

    fn write_field(out: &mut String, head: &str, value: &Value, indent: usize, dialect: Dialect) {
        let pad = " ".repeat(indent);
        match value {
            Value::Object(map) if !map.is_empty() && !dialect.flow => {
                out.push_str(&format!("{pad}{head}:\n"));
                for (key, value) in map {
                    write_field(out, &text_of(key), value, indent + 2, dialect);
                }
            }
            Value::Array(items) if !items.is_empty() && !dialect.flow => {
                out.push_str(&format!("{pad}{head}:\n"));
                for item in items {
                    out.push_str(&format!("{pad}- {item}\n"));
                }
            }
            Value::String(text)
                if dialect.literal && text.starts_with(|c: char| c.is_ascii_alphanumeric()) =>
            {
                let body = text.replace('\n', &format!("\n{pad}   "));
                let chomp = if text.ends_with('\n') { "+" } else { "-" };
                // Keeping keeps the line break that is written below, so one is taken first.
                let body = body.strip_suffix(&format!("\n{pad}   ")).unwrap_or(&body);
                out.push_str(&format!("{pad}{head}: |{chomp}\n{pad}   {body}\n"));
            }
            Value::String(text) => out.push_str(&format!("{pad}{head}: {}\n", text_of(text))),
            Value::Null if dialect.literal => out.push_str(&format!("{pad}{head}:\n")),
            other => out.push_str(&format!("{pad}{head}: {other}\n")),
        }
    }

    /// A string as a plain scalar if it is a plain word, else in quotes.
    fn text_of(text: &str) -> String {
        let plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        let single = !text.contains(['\n', '\t']) && text.len().is_multiple_of(2);
        if plain {
            text.to_owned()
        } else if single {
            format!("'{}'", text.replace('\'', "''"))
        } else {
            Value::from(text).to_string()
        }
    }

    /// Every place in the entry, as a JSON pointer and as the path that messages use.
    fn places(value: &Value, pointer: &str, path: &str, out: &mut Vec<(String, String)>) {
        if !path.is_empty() {
            out.push((pointer.to_owned(), path.to_owned()));
        }
        match value {
            Value::Array(items) => {
                for (i, item) in items.iter().enumerate() {
                    places(
                        item,
                        &format!("{pointer}/{i}"),
                        &format!("{path}[{i}]"),
                        out,
                    );
                }
            }
            Value::Object(map) => {
                for (key, item) in map {
                    let step = key.replace('~', "~0").replace('/', "~1");
                    let dot = if path.is_empty() { "" } else { "." };
                    places(
                        item,
                        &format!("{pointer}/{step}"),
                        &format!("{path}{dot}{key}"),
                        out,
                    );
                }
            }
            _ => {}
        }
    }

    /// A value that no reading of the honest one gives, and the path that has to be named.
    fn lie(value: &Value, path: &str, choice: usize) -> (Value, String) {
        let here = path.to_owned();
        match value {
            Value::Null => (json!(choice.is_multiple_of(2)), here),
            Value::Bool(flag) => (json!(!flag), here),
            Value::Number(n) => match (n.as_i64(), n.as_u64()) {
                (Some(n), _) => (json!(n ^ 1), here),
                (_, Some(n)) => (json!(n ^ 1), here),
                _ => (json!(-n.as_f64().unwrap()), here),
            },
            Value::String(text) if choice.is_multiple_of(2) => (json!(format!("{text}x")), here),
            Value::String(text) => (json!([text]), here),
            Value::Array(items) => {
                let mut items = items.clone();
                let at = items.len();
                if at > 0 && choice.is_multiple_of(2) {
                    items.pop();
                    return (items.into(), format!("{path}[{}]", at - 1));
                }
                items.push(Value::Null);
                (items.into(), format!("{path}[{at}]"))
            }
            Value::Object(map) => {
                let mut map = map.clone();
                let key = map.keys().next().cloned();
                if let Some(key) = key.filter(|_| choice.is_multiple_of(2)) {
                    map.remove(&key);
                    return (map.into(), format!("{path}.{key}"));
                }
                map.insert("added".to_owned(), Value::Null);
                (map.into(), format!("{path}.added"))
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..300)) {
            let entry = object(json!({"name": "x"}));
            prop_assert!(compare(&bytes, &entry).is_err());
            let fenced = [b"---\n".as_slice(), &bytes, b"\n---\n"].concat();
            prop_assert!(compare(&fenced, &entry).is_err());
        }

        #[test]
        fn random_yaml_never_panics(parts in vec(prop::sample::select(vec![
            "a", "b", ":", " ", "  ", "\n", "\r\n", "\r", "\t", "- ", "? ", ": ", "[", "]", "{", "}", ",",
            "&a", "*a", "!", "!!str ", "<<", "|", ">", "|2-", "'", "\"", "\\", "#", " #", "%", "%TAG ! a\n",
            "...", "---", "é", "\u{feff}", "\u{85}", "0", "1", "~", "@", "`", "=", "\0", "\\u00",
        ]), 0..60)) {
            let yaml = parts.concat();
            // No block made of these is equal to an entry with this key.
            let outcome = check_block(&yaml, r#"{"missing": 1}"#);
            prop_assert!(outcome.is_err());
        }

        #[test]
        fn honest_pairs_are_accepted(entry in entry(), dialect in dialect()) {
            let file = write_file(&entry, dialect);
            prop_assert_eq!(compare(file.as_bytes(), &entry), Ok(()), "{}", file);
        }

        #[test]
        fn servers_that_send_text_are_accepted(key in "[a-z]{1,8}", text in "[a-zA-Z0-9.:_+]{0,8}-?[a-zA-Z0-9._+]") {
            let entry = json!({&key: &text});
            prop_assert_eq!(check(format!("---\n{key}: {text}\n---\n"), entry), Ok(()));
        }

        #[test]
        fn one_lie_is_refused(
            entry in entry(),
            dialect in dialect(),
            place in any::<prop::sample::Index>(),
            choice in any::<usize>(),
        ) {
            let file = write_file(&entry, dialect);
            let mut all = Vec::new();
            let mut lied = Value::Object(entry);
            places(&lied, "", "", &mut all);
            let (pointer, path) = place.get(&all);
            let slot = lied.pointer_mut(pointer).unwrap();
            let (value, path) = lie(slot, path, choice);
            *slot = value;
            prop_assert_eq!(field_of(&check(&file, lied)), path, "{}", file);
        }
    }
}
