//! The arrows between the folders of src are the ones that src/lib.rs draws, and some names have
//! one home each.
//!
//! What the drawing names may use what can be reached from it along the arrows. What it does not
//! name (the wiring and the command line) is used by the wiring alone, and may use everything.
//! Tests inside the files are left out.

use crate::rig::project;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Who may use whom, as far as it is drawn.
type Arrows = BTreeMap<String, BTreeSet<String>>;

/// Those that put everything together.
const WIRING: [&str; 5] = ["main", "run", "cli", "config", "serve"];

/// Reads the arrows of a module doc: in `a → b → c, d (why)` each may use all that follow.
fn arrows(doc: &str) -> Arrows {
    let drawn = doc
        .split("```text")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    let mut arrows = Arrows::new();
    for line in drawn
        .lines()
        .filter(|l| l.contains('→') && !l.contains("everything"))
    {
        let steps = line.trim_start_matches("//!").split('→');
        let names = |step: &str| -> Vec<String> {
            let name = |part: &str| {
                part.split_whitespace()
                    .next()
                    .unwrap_or_default()
                    .to_owned()
            };
            step.split(',')
                .map(name)
                .filter(|n| !n.is_empty() && n != "nothing:")
                .collect()
        };
        let steps: Vec<Vec<String>> = steps.map(names).collect();
        for (from, to) in steps.iter().zip(&steps[1..]) {
            for name in from {
                arrows
                    .entry(name.clone())
                    .or_default()
                    .extend(to.iter().cloned());
            }
        }
    }
    // All that can be reached.
    for _ in 0..arrows.len() {
        let before = arrows.clone();
        for to in arrows.values_mut() {
            let further: Vec<String> = to
                .iter()
                .filter_map(|n| before.get(n))
                .flatten()
                .cloned()
                .collect();
            to.extend(further);
        }
    }
    arrows
}

/// The code of a file: without its tests, comments and the insides of strings.
fn code(text: &str) -> String {
    let text = text
        .split("#[cfg(test)]\nmod tests")
        .next()
        .unwrap_or_default();
    let mut out = String::new();
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '/' if rest.peek() == Some(&'/') => {
                rest.by_ref().find(|c| *c == '\n');
                out.push('\n');
            }
            '\'' if rest.peek() == Some(&'"') => {
                rest.nth(1);
            }
            '"' => {
                while let Some(c) = rest.next() {
                    match c {
                        '\\' => drop(rest.next()),
                        '"' => break,
                        _ => {}
                    }
                }
                out.push_str("\"\"");
            }
            c => out.push(c),
        }
    }
    out
}

/// The modules of the crate that code names, each with what follows it.
fn used(code: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for start in ["crate::", "mount_skills::"] {
        for (at, _) in code.match_indices(start) {
            let after = &code[at + start.len()..];
            let Some(group) = after.strip_prefix('{') else {
                found.push(split(after));
                continue;
            };
            let (mut depth, mut item) = (0, String::new());
            for c in group.chars() {
                match c {
                    '}' | ',' if depth == 0 => {
                        found.push(split(item.trim()));
                        item.clear();
                        match c {
                            '}' => break,
                            _ => continue,
                        }
                    }
                    '{' => depth += 1,
                    '}' => depth -= 1,
                    _ => {}
                }
                item.push(c);
            }
        }
    }
    found.retain(|(name, _)| !name.is_empty());
    found
}

fn split(path: &str) -> (String, String) {
    let name: String = path
        .chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect();
    let rest = path[name.len()..].trim_start_matches("::");
    (
        name,
        rest.split(['\n', ';'])
            .next()
            .unwrap_or_default()
            .to_owned(),
    )
}

/// Whether code holds a word that is not the end of a longer one.
fn holds(code: &str, word: &str) -> bool {
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

/// Whether code holds a constant such as `libc::EIO`.
fn holds_constant(code: &str, prefix: &str) -> bool {
    code.match_indices(prefix).any(|(at, _)| {
        let mut rest = code[at + prefix.len()..].chars();
        rest.next().is_some_and(|c| c.is_ascii_uppercase())
            && rest.next().is_some_and(|c| c.is_ascii_uppercase())
    })
}

/// What is wrong with one file of src, by its path below it.
fn violations(arrows: &Arrows, path: &str, text: &str) -> Vec<String> {
    let code = code(text);
    let layer = path
        .split('/')
        .next()
        .unwrap_or_default()
        .trim_end_matches(".rs");
    let wiring = WIRING.contains(&layer) || path == "lib.rs";
    let mut bad = Vec::new();
    for (name, rest) in used(&code) {
        let drawn = arrows.get(layer).is_some_and(|to| to.contains(&name));
        if !wiring && name != layer && !drawn {
            bad.push(format!("{layer} → {name}"));
        }
        let inner = [
            "auth",
            "listing",
            "pace",
            "session",
            "sign_in",
            "transport",
            "wire",
        ]
        .iter()
        .any(|m| rest.starts_with(m));
        if !wiring && layer != "source" && name == "source" && inner {
            bad.push(format!("{layer} → the inside of source: {rest}"));
        }
    }
    if code.contains("super::super::") {
        bad.push("super::super:: hides an arrow".into());
    }
    // Each of these words has its homes.
    let homes: [(&str, &[&str]); 6] = [
        ("fuser::", &["fuse/"]),
        ("rmcp::", &["source/", "serve.rs"]),
        ("fuser::Errno", &["fuse/errno.rs"]),
        // What a system call of our own answered is no answer to a reader.
        ("rustix::io::Errno", &["store/", "source/", "fuse/mount.rs"]),
        ("from_raw_os_error", &["fuse/errno.rs"]),
        ("Errno::from_i32", &["fuse/errno.rs"]),
    ];
    for (word, homes) in homes {
        let home = homes.iter().any(|h| path.starts_with(h));
        if !home && holds(&code, word) {
            bad.push(format!("{word} outside {homes:?}"));
        }
    }
    let grouped = code
        .split("use fuser::{")
        .nth(1)
        .and_then(|g| g.split('}').next())
        .unwrap_or_default();
    let grouped = grouped.split(',').any(|n| n.trim() == "Errno");
    if path != "fuse/errno.rs" && (grouped || holds_constant(&code, "libc::E")) {
        bad.push("an errno constant outside fuse/errno.rs".into());
    }
    if layer == "domain" {
        for word in [
            "tokio",
            "std::fs",
            "std::env",
            "std::net",
            "std::process",
            "std::thread",
            "Instant::now",
            "SystemTime::now",
            "rustix",
            "libc",
        ] {
            if holds(&code, word) {
                bad.push(format!("{word} in domain, which is pure"));
            }
        }
    }
    bad
}

fn sources(dir: &Path, into: &mut Vec<String>) {
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push(
                path.strip_prefix(project().join("src"))
                    .unwrap()
                    .display()
                    .to_string(),
            );
        }
    }
}

#[test]
fn the_arrows_are_the_ones_that_are_drawn() {
    let src = project().join("src");
    let arrows = arrows(&fs::read_to_string(src.join("lib.rs")).unwrap());
    let mut files = Vec::new();
    sources(&src, &mut files);
    assert!(files.len() > 20, "{files:?}");
    let mut bad = Vec::new();
    for file in files {
        let text = fs::read_to_string(src.join(&file)).unwrap();
        bad.extend(
            violations(&arrows, &file, &text)
                .into_iter()
                .map(|v| format!("src/{file}: {v}")),
        );
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn the_check_sees_what_it_is_for() {
    let doc = "//! ```text\n//! main → run → everything\n//!        fuse → host → domain, source (the trait), store\n\
        //!        control → host, store\n//!        source → domain\n//!        store → domain\n//!        domain → nothing: pure\n//! ```\n";
    let arrows = arrows(doc);
    let to = |name: &str| arrows[name].iter().map(String::as_str).collect::<Vec<_>>();
    assert_eq!(to("host"), ["domain", "source", "store"]);
    assert_eq!(to("fuse"), ["domain", "host", "source", "store"]);
    assert_eq!(to("source"), ["domain"]);

    for (path, text) in [
        ("domain/name.rs", "use crate::store::cache::Cache;"),
        ("domain/name.rs", "fn f() { crate::host::read() }"),
        (
            "source/wire.rs",
            "use crate::{domain::name::Label, store::state::{State, Seen}};",
        ),
        ("store/cache.rs", "use crate::source::Source;"),
        ("host/mod.rs", "use crate::fuse::errno;"),
        ("host/mod.rs", "use crate::source::session::Session;"),
        (
            "host/mod.rs",
            "use crate::source::{wire, Source};\nuse crate::cli::Cli;",
        ),
        ("control/mod.rs", "use crate::fuse::Upcalls;"),
        ("host/report.rs", "use super::super::fuse::mount;"),
        ("host/mod.rs", "fn f(e: fuser::Errno) {}"),
        ("control/mod.rs", "use rmcp::model::Skill;"),
        (
            "fuse/adapter.rs",
            "use fuser::{\n    Errno, Filesystem,\n};",
        ),
        ("fuse/adapter.rs", "reply.error(libc::EIO)"),
        (
            "fuse/adapter.rs",
            "let e = std::io::Error::from_raw_os_error(5);",
        ),
        ("host/mod.rs", "use rustix::io::Errno;"),
        ("domain/text.rs", "let now = std::time::Instant::now();"),
        ("domain/text.rs", "let a = \"a // b\"; std::fs::read(a)"),
        ("domain/text.rs", "let quote = '\"'; std::env::var(quote)"),
        ("domain/text.rs", "use tokio::sync::Mutex;"),
    ] {
        assert!(
            !violations(&arrows, path, text).is_empty(),
            "not seen: {path}: {text}"
        );
    }
    for (path, text) in [
        (
            "fuse/adapter.rs",
            "use crate::{domain::tree, host::Host};\nuse fuser::{Filesystem};",
        ),
        (
            "fuse/errno.rs",
            "use fuser::Errno; const E: Errno = Errno::EIO;",
        ),
        (
            "host/mod.rs",
            "// crate::fuse is not for us\nlet text = \"crate::fuse\";",
        ),
        ("host/mod.rs", "use crate::source::{Source, SourceError};"),
        (
            "store/private.rs",
            "use rustix::io::Errno; match e { Errno::EXIST => {} }",
        ),
        (
            "run.rs",
            "use crate::fuse::mount;\nuse crate::source::session::Session;",
        ),
        ("domain/name.rs", "#[cfg(test)]\nmod tests { use std::fs; }"),
    ] {
        assert_eq!(
            violations(&arrows, path, text),
            Vec::<String>::new(),
            "{path}: {text}"
        );
    }
}

#[test]
fn every_file_of_these_tests_is_part_of_them() {
    let dir = project().join("tests/it");
    let main = fs::read_to_string(dir.join("main.rs")).unwrap();
    for entry in fs::read_dir(&dir).unwrap().flatten() {
        let name = entry
            .path()
            .file_stem()
            .unwrap()
            .to_string_lossy()
            .into_owned();
        assert!(
            name == "main" || main.contains(&format!("mod {name};")),
            "{name}.rs is forgotten"
        );
    }
}
