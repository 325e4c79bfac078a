//! The text of a file → a tree that knows where everything stands: JSON with comments and trailing
//! commas, or TOML.
//!
//! **Invariants:** an object holds each key once; a key that is given twice is a fault, where
//! parsers that fill a map keep the last one without a word. Nesting is bounded by the parsers.
//! A fault never quotes a value.

use jsonc_parser::ast;
use jsonc_parser::{CollectOptions, ParseOptions};
use std::collections::HashSet;
use toml::de::{DeTable, DeValue};

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Syntax {
    /// JSON, as VS Code reads it.
    Json,
    /// TOML.
    Toml,
}

/// A place in a file, both counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct At {
    pub(super) line: usize,
    pub(super) column: usize,
}

/// Why a text is no tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) at: At,
    pub(super) why: String,
}

/// What a file holds.
pub(super) struct Document<'a> {
    pub(super) root: Node,
    pub(super) lines: Lines<'a>,
}

/// A value and the byte where it starts. Its text may be a secret: it has no `Debug`.
pub(super) struct Node {
    pub(super) at: usize,
    pub(super) value: Value,
}

/// What JSON and TOML have in common.
pub(super) enum Value {
    Null,
    Bool(bool),
    /// As it is written.
    Number(String),
    Text(String),
    List(Vec<Node>),
    Table(Vec<Entry>),
    /// A date or a time, which only TOML has.
    Time,
}

/// A key with its value.
pub(super) struct Entry {
    pub(super) at: usize,
    pub(super) key: String,
    pub(super) node: Node,
}

impl Node {
    /// What it is, for people.
    pub(super) fn kind(&self) -> &'static str {
        match &self.value {
            Value::Null => "null",
            Value::Bool(true) => "true",
            Value::Bool(false) => "false",
            Value::Number(_) => "a number",
            Value::Text(_) => "a text",
            Value::List(_) => "a list",
            Value::Table(_) => "an object",
            Value::Time => "a date",
        }
    }
}

/// Reads a text without a byte order mark.
pub(super) fn parse(text: &str, syntax: Syntax) -> Result<Document<'_>, Fault> {
    let lines = Lines::of(text);
    let root = match syntax {
        Syntax::Json => json(text, &lines)?,
        Syntax::Toml => toml(text, &lines)?,
    };
    Ok(Document { root, lines })
}

/// Where the lines of a text start. A place is worked out when somebody asks for it: a file may be
/// one long line.
pub(super) struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn of(text: &'a str) -> Self {
        let starts = text.match_indices('\n').map(|(at, _)| at + 1);
        let starts = std::iter::once(0).chain(starts).collect();
        Self { text, starts }
    }

    /// The line and column of a byte.
    pub(super) fn at(&self, offset: usize) -> At {
        let line = self.starts.partition_point(|start| *start <= offset);
        let start = self.starts.get(line.saturating_sub(1)).copied();
        let before = self.text.get(start.unwrap_or(0)..offset);
        At {
            line: line.max(1),
            column: before.map_or(1, |text| text.chars().count() + 1),
        }
    }
}

fn json(text: &str, lines: &Lines) -> Result<Node, Fault> {
    let options = ParseOptions {
        allow_comments: true,
        allow_trailing_commas: true,
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    };
    let parsed = jsonc_parser::parse_to_ast(text, &CollectOptions::default(), &options);
    let parsed = parsed.map_err(|e| Fault {
        at: At {
            line: e.line_display(),
            column: e.column_display(),
        },
        why: e.kind().to_string().to_lowercase(),
    })?;
    match parsed.value {
        Some(value) => of_json(value, lines),
        None => Err(Fault {
            at: At { line: 1, column: 1 },
            why: "the file is empty; an object {…} is expected".into(),
        }),
    }
}

fn of_json(value: ast::Value, lines: &Lines) -> Result<Node, Fault> {
    use jsonc_parser::common::Ranged;
    let at = value.range().start;
    let value = match value {
        ast::Value::NullKeyword(_) => Value::Null,
        ast::Value::BooleanLit(b) => Value::Bool(b.value),
        ast::Value::NumberLit(n) => Value::Number(n.value.to_owned()),
        ast::Value::StringLit(s) => Value::Text(s.value.into_owned()),
        ast::Value::Array(list) => {
            let nodes = list.elements.into_iter().map(|e| of_json(e, lines));
            Value::List(nodes.collect::<Result<_, _>>()?)
        }
        ast::Value::Object(object) => {
            let entries = object.properties.into_iter().map(|property| {
                Ok(Entry {
                    at: property.range.start,
                    key: property.name.into_string(),
                    node: of_json(property.value, lines)?,
                })
            });
            let entries = entries.collect::<Result<Vec<_>, _>>()?;
            let mut seen = HashSet::new();
            if let Some(twice) = entries.iter().find(|e| !seen.insert(e.key.as_str())) {
                return Err(Fault {
                    at: lines.at(twice.at),
                    why: format!("the key {:?} is given twice; keep one of them", twice.key),
                });
            }
            Value::Table(entries)
        }
    };
    Ok(Node { at, value })
}

fn toml(text: &str, lines: &Lines) -> Result<Node, Fault> {
    let table = DeTable::parse(text).map_err(|e| Fault {
        at: lines.at(e.span().map_or(0, |span| span.start)),
        why: e.message().to_owned(),
    })?;
    Ok(Node {
        at: 0,
        value: of_table(table.into_inner()),
    })
}

fn of_table(table: DeTable) -> Value {
    let mut entries: Vec<Entry> = table
        .into_iter()
        .map(|(key, value)| {
            let at = key.span().start;
            Entry {
                at,
                key: key.into_inner().into_owned(),
                node: Node {
                    at,
                    value: of_toml(value.into_inner()),
                },
            }
        })
        .collect();
    // The parser sorts by name; people go by the order in the file.
    entries.sort_by_key(|e| e.at);
    Value::Table(entries)
}

fn of_toml(value: DeValue) -> Value {
    match value {
        DeValue::String(text) => Value::Text(text.into_owned()),
        DeValue::Integer(number) => Value::Number(number.to_string()),
        DeValue::Float(number) => Value::Number(number.as_str().to_owned()),
        DeValue::Boolean(b) => Value::Bool(b),
        DeValue::Datetime(_) => Value::Time,
        DeValue::Array(list) => Value::List(
            list.into_iter()
                .map(|item| Node {
                    at: item.span().start,
                    value: of_toml(item.into_inner()),
                })
                .collect(),
        ),
        DeValue::Table(table) => of_table(table),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fault(text: &str, syntax: Syntax) -> (usize, usize, String) {
        let fault = parse(text, syntax).err().unwrap();
        (fault.at.line, fault.at.column, fault.why)
    }

    #[test]
    fn c_28_comments_and_trailing_commas_are_read_and_nothing_else_is_lenient() {
        let text = "{ // note\n /* x */ \"a\": \"// no , ] }\", \"b\": [1, 2,],\n}\n";
        let Document { root, lines } = parse(text, Syntax::Json).ok().unwrap();
        let Value::Table(entries) = root.value else {
            panic!("no object");
        };
        assert_eq!(entries.len(), 2);
        assert!(matches!(&entries[0].node.value, Value::Text(t) if t == "// no , ] }"));
        assert_eq!(
            lines.at(entries[1].at),
            At {
                line: 2,
                column: 30
            }
        );
        for bad in [
            "{a: 1}",
            "{'a': 1}",
            "{\"a\" 1}",
            "{\"a\": 1 \"b\": 2}",
            "{} {}",
            "",
            "{\"a\": +1}",
        ] {
            assert!(parse(bad, Syntax::Json).is_err(), "{bad}");
        }
    }

    #[test]
    fn c_28_a_key_that_is_given_twice_is_a_fault() {
        let (line, column, why) = fault("{\"x\": {\n  \"a\": 1,\n  \"\\u0061\": 2}}", Syntax::Json);
        assert_eq!((line, column), (3, 3));
        assert!(why.contains("\"a\" is given twice"), "{why}");
        let (line, _, why) = fault("a = 1\nb = 2\na = 3\n", Syntax::Toml);
        assert_eq!(line, 3, "{why}");
    }

    #[test]
    fn toml_keeps_its_order() {
        let text = "[z]\nb = 1\na = \"x\"\n[y.w]\n";
        let Value::Table(entries) = parse(text, Syntax::Toml).ok().unwrap().root.value else {
            panic!("no table");
        };
        let keys: Vec<&str> = entries.iter().map(|e| e.key.as_str()).collect();
        assert_eq!(keys, ["z", "y"]);
    }

    #[test]
    fn deep_nesting_is_a_fault() {
        for syntax in [Syntax::Json, Syntax::Toml] {
            assert!(parse(&"[".repeat(100_000), syntax).is_err());
            let deep = format!("a = {}", "{a=".repeat(100_000));
            assert!(parse(&deep, syntax).is_err());
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(text in "[\\[\\]{}\",:=#/*a\\\\\n 1é\u{feff}-]{0,60}") {
            for syntax in [Syntax::Json, Syntax::Toml] {
                let _ = parse(&text, syntax);
            }
        }
    }
}
