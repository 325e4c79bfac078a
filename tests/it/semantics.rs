//! The documents that say what the program does, against the tests that prove it.
//!
//! SEMANTICS.md: every numbered sentence names tests that are there and run, or says why there is
//! none. REQUIREMENTS.md: every requirement is in it once, with such tests or a reason.

use crate::rig::project;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The ids of the requirements.
const IDS: std::ops::RangeInclusive<u32> = 1..=120;

/// The tests of a file, by name, and whether they are left out of an ordinary run.
fn tests_of(text: &str) -> BTreeMap<&str, bool> {
    let (mut found, mut test, mut ignored) = (BTreeMap::new(), false, false);
    for line in text.lines().map(str::trim) {
        let function = line.strip_prefix("async ").unwrap_or(line);
        if line == "#[test]" || line.starts_with("#[tokio::test") {
            test = true;
        } else if line.starts_with("#[ignore") {
            ignored = true;
        } else if let Some(rest) = function.strip_prefix("fn ") {
            let name = rest.split(['(', '<']).next().unwrap_or_default();
            if test {
                found.insert(name, ignored);
            }
            (test, ignored) = (false, false);
        } else if !line.starts_with("#[") && !line.starts_with("//") {
            (test, ignored) = (false, false);
        }
    }
    found
}

/// What stands in brackets that are no link, and the text without that.
fn brackets(text: &str) -> (Vec<String>, String) {
    let (mut found, mut rest) = (Vec::new(), String::new());
    let mut left = text;
    while let Some((before, tail)) = left.split_once('[') {
        rest.push_str(before);
        let Some((inside, after)) = tail.split_once(']') else {
            rest.push_str(tail);
            return (found, rest);
        };
        if after.starts_with('(') {
            rest.push_str(inside);
        } else {
            found.push(inside.split_whitespace().collect::<Vec<_>>().join(" "));
        }
        left = after;
    }
    rest.push_str(left);
    (found, rest)
}

/// The numbered sentences of a document, each on one line.
fn sentences(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        let number = line.split_once(". ").map_or("", |(number, _)| number);
        if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) {
            found.push(line.to_owned());
            inside = true;
        } else if inside && line.starts_with(' ') {
            let last = found.last_mut().unwrap();
            last.push(' ');
            last.push_str(line.trim());
        } else {
            inside = false;
        }
    }
    found
}

/// The limits of SECURITY.md that name no test, or one that is not there.
fn limits(security: &str, sources: &[(String, String)]) -> Vec<String> {
    let names = |(module, text): &(String, String)| {
        let of = tests_of(text).into_keys();
        of.map(|name| format!("{module}::{name}"))
            .collect::<Vec<_>>()
    };
    let tests: BTreeSet<String> = sources.iter().flat_map(names).collect();
    let rows = security.lines().filter(|l| l.starts_with("| ")).skip(2);
    let (mut found, mut count) = (Vec::new(), 0);
    for row in rows {
        let (named, _) = brackets(row);
        count += 1;
        if named.is_empty() || named.iter().any(|n| !tests.contains(n)) {
            found.push(row.to_owned());
        }
    }
    if count < 20 {
        found.push(format!("only {count} limits"));
    }
    found
}

/// All that is wrong with the two documents, given the tests' sources by module.
fn problems(semantics: &str, requirements: &str, sources: &[(String, String)]) -> Vec<String> {
    let mut tests = BTreeMap::new();
    for (module, text) in sources {
        let of = tests_of(text).into_iter();
        tests.extend(of.map(|(name, ignored)| (format!("{module}::{name}"), ignored)));
    }
    let check = |name: &str| match tests.get(name) {
        Some(false) => None,
        Some(true) => Some(format!("the test {name} is ignored")),
        None => Some(format!("there is no test {name}")),
    };
    let mut found = Vec::new();

    let sentences = sentences(semantics);
    if sentences.is_empty() {
        found.push("there is no numbered sentence".into());
    }
    for sentence in &sentences {
        let (names, _) = brackets(sentence);
        let wrong = |why: &str| format!("{why}: {sentence}");
        if names.is_empty() || !sentence.ends_with(']') {
            found.push(wrong("no test behind it"));
        }
        for name in names {
            match name.strip_prefix("not tested:") {
                Some(reason) if reason.trim().is_empty() => found.push(wrong("an empty reason")),
                Some(_) => {}
                None => found.extend(check(&name).map(|why| wrong(&why))),
            }
        }
    }

    let mut missing: BTreeSet<String> = IDS.map(|n| format!("HR-{n:02}")).collect();
    for row in requirements.lines().filter(|l| l.starts_with("| HR-")) {
        let wrong = |why: &str| format!("{why}: {row}");
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [id, asked, shown] = cells[..] else {
            found.push(wrong("not three cells"));
            continue;
        };
        if !missing.remove(id) {
            found.push(wrong("an id that is there twice or that nobody knows"));
        }
        if asked.is_empty() {
            found.push(wrong("nothing is asked"));
        }
        let (names, reason) = brackets(shown);
        found.extend(names.iter().filter_map(|n| check(n)).map(|why| wrong(&why)));
        let reason = reason.trim();
        let marks = ["not yet:", "not ours:"];
        let mark = marks.into_iter().find(|m| reason.starts_with(m));
        let words = reason
            .strip_prefix(mark.unwrap_or_default())
            .unwrap_or_default();
        if words.trim().is_empty() && (names.is_empty() || mark.is_some()) {
            found.push(wrong("an empty reason"));
        }
    }
    found.extend(missing.into_iter().map(|id| format!("{id} is missing")));
    found
}

/// The sources with tests in them, by what their tests are called in the documents.
fn sources() -> Vec<(String, String)> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path);
            }
        }
    }
    let mut sources = Vec::new();
    for (root, tail) in [("tests/it", ""), ("src", "::tests")] {
        let root = project().join(root);
        let mut files = Vec::new();
        walk(&root, &mut files);
        for file in files {
            let path = file.strip_prefix(&root).unwrap().with_extension("");
            let path = path.display().to_string().replace('/', "::");
            let module = path.trim_end_matches("::mod");
            sources.push((
                format!("{module}{tail}"),
                fs::read_to_string(&file).unwrap(),
            ));
        }
    }
    sources
}

#[test]
fn the_documents_name_tests_that_are_there() {
    let read = |name: &str| fs::read_to_string(project().join("docs").join(name)).unwrap();
    let found = problems(&read("SEMANTICS.md"), &read("REQUIREMENTS.md"), &sources());
    assert!(found.is_empty(), "{}", found.join("\n"));
    let found = limits(&read("SECURITY.md"), &sources());
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn the_check_of_the_documents_sees_what_it_is_for() {
    let text = "#[test]\nfn good() {}\n#[test]\n#[ignore = \"x\"]\nfn asleep() {}\n\
        fn helper() {}\n#[tokio::test]\nasync fn later() {}\n";
    let sources = [("m".to_owned(), text.to_owned())];
    let row = |id: u32, shown: &str| format!("| HR-{id:02} | x | {shown} |\n");
    let rows: Vec<String> = IDS.map(|n| row(n, "[m::good]")).collect();
    let all = rows.concat();
    let without = |id: u32| rows.concat().replace(&row(id, "[m::good]"), "");
    let with = |shown: &str| without(7) + &row(7, shown);
    let fine = "# Title\n\n1. One [link](x.md) that\n   wraps. [m::good]\n   [m::later]\n2. Two. [not tested: why]\n";
    assert_eq!(problems(fine, &all, &sources), Vec::<String>::new());
    for shown in [
        "not ours: why",
        "[m::later] not yet: why",
        "[m::good] and why",
    ] {
        assert_eq!(problems(fine, &with(shown), &sources), Vec::<String>::new());
    }

    let sees = |semantics: &str, requirements: &str, word: &str| {
        let found = problems(semantics, requirements, &sources);
        assert!(
            found.len() == 1 && found[0].contains(word),
            "{word}: {found:?}"
        );
    };
    for (semantics, word) in [
        ("Nothing is numbered.", "no numbered sentence"),
        ("1. One.\n", "no test behind it"),
        ("1. One. [m::good] And more.\n", "no test behind it"),
        ("1. One. [m::gone]\n", "no test m::gone"),
        ("1. One. [m::helper]\n", "no test m::helper"),
        ("1. One. [good]\n", "no test good"),
        ("1. One. [m::asleep]\n", "m::asleep is ignored"),
        ("1. One. [not tested: ]\n", "an empty reason"),
        ("1. One. [not tested]\n", "no test not tested"),
    ] {
        sees(semantics, &all, word);
    }
    for (requirements, word) in [
        (without(120), "HR-120 is missing"),
        (all.clone() + &row(3, "[m::good]"), "twice"),
        (all.clone() + &row(121, "[m::good]"), "nobody knows"),
        (with("[m::gone]"), "no test m::gone"),
        (with("[m::asleep] not yet: why"), "is ignored"),
        (with(""), "an empty reason"),
        (with("not yet: "), "an empty reason"),
        (with("[m::good] not yet:"), "an empty reason"),
        (
            without(7) + "| HR-07 | x |\n| HR-07 | x | [m::good] |\n",
            "not three cells",
        ),
        (
            without(7) + "| HR-07 |  | [m::good] |\n",
            "nothing is asked",
        ),
    ] {
        sees(fine, &requirements, word);
    }
}
