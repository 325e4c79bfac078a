//! `lock` and `--locked`: the sets of all skills, in a file that is made to be reviewed and kept
//! under version control.
//!
//! A line a skill: label, set and URI, separated by blanks; `#` starts a comment. The URI comes
//! last and may hold blanks.

use super::{Ask, Failure, pretty, say, unexpected};
use crate::control::{Reply, Verb};
use crate::domain::manifest::SetId;
use crate::domain::skill::{Scope, Verdict};
use crate::domain::text::{spelt, spelt_whole};
use crate::host::command::Lock;
use crate::store::state::Verdicts;
use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::Arc;

/// The set of each skill, by label and URI.
pub(super) type Locked = BTreeMap<(String, String), SetId>;

/// Reads the text of a lock file.
fn parse(text: &str) -> Result<Locked, String> {
    let mut locked = Locked::new();
    for (line, number) in text.lines().zip(1..) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let bad = |why: &str| format!("line {number}: {why}; a line is: LABEL sha256:… URI");
        let (label, rest) = line
            .split_once(char::is_whitespace)
            .ok_or_else(|| bad("too short"))?;
        let (set, uri) = rest
            .trim_start()
            .split_once(char::is_whitespace)
            .ok_or_else(|| bad("too short"))?;
        let set: SetId = set.parse().map_err(|e| bad(&format!("{e}")))?;
        let key = (label.to_owned(), uri.trim().to_owned());
        if locked.insert(key, set).is_some() {
            return Err(bad("the skill is there twice"));
        }
    }
    Ok(locked)
}

/// Reads a lock file.
pub(super) fn load(path: &Path) -> Result<Locked, Failure> {
    let failed = |why: String| Failure::Usage(format!("{}: {why}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|e| failed(e.to_string()))?;
    parse(&text).map_err(failed)
}

/// The verdicts of one server that a lock file stands for.
pub(super) fn verdicts(locked: &Locked, label: &str) -> Verdicts {
    let of = locked.iter().filter(|((l, _), _)| l == label);
    of.map(|((_, uri), set)| {
        (
            Arc::from(uri.as_str()),
            Verdict::Approved(*set, Scope::Read),
        )
    })
    .collect()
}

/// Prints the lock of a mount, or compares it with a file.
pub(super) fn lock(ask: &Ask, check: Option<&Path>, json: bool) -> Result<(), Failure> {
    let Reply::Lock(rows) = ask.reply(&Verb::Lock)? else {
        return Err(unexpected());
    };
    let line = |row: &Lock| format!("{} {} {}", row.label, row.set, row.uri);
    let joined =
        |lines: &mut dyn Iterator<Item = String>| lines.map(|l| l + "\n").collect::<String>();
    let Some(path) = check else {
        if json {
            return say(pretty(&rows)?);
        }
        let rows = rows.iter().filter(|r| r.readable);
        // A file holds a URI as it is.
        let rows = rows.map(|row| match io::stdout().is_terminal() {
            true => spelt_whole(&line(row)),
            false => line(row),
        });
        let head = "# mount-skills lock: label, set and URI of every skill in force\n";
        return say(format!("{head}{}", joined(&mut rows.into_iter())));
    };
    // What may not be read is compared as well: that it is new or changed is why it may not.
    let known = load(path)?;
    let text = joined(&mut rows.iter().map(line));
    let now = parse(&text).map_err(Failure::Failed)?;
    let differences = compare(&known, &now);
    if json {
        say(pretty(&differences)?)?;
    } else {
        say(differences.join("\n"))?;
    }
    if differences.is_empty() {
        return Ok(());
    }
    Err(Failure::Moved(format!(
        "{} no longer fits what is mounted",
        path.display()
    )))
}

/// A line for each skill that differs.
fn compare(locked: &Locked, now: &Locked) -> Vec<String> {
    let mut out = Vec::new();
    for ((label, uri), set) in locked {
        match now.get(&(label.clone(), uri.clone())) {
            None => out.push(format!("removed  {label} {}", spelt(uri))),
            Some(found) if found != set => {
                let uri = spelt(uri);
                out.push(format!("changed  {label} {uri}: locked {set}, now {found}"))
            }
            Some(_) => {}
        }
    }
    let added = now.keys().filter(|key| !locked.contains_key(*key));
    out.extend(added.map(|(label, uri)| format!("added    {label} {}", spelt(uri))));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::digest::Digest;

    #[test]
    fn a_lock_is_read_back_and_compared() {
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        let text = format!("# comment\n\nx {a} skill://s/SKILL.md\ny  {b}  skill://a b/SKILL.md\n");
        let locked = parse(&text).unwrap();
        assert_eq!(locked.len(), 2);
        assert!(locked.contains_key(&("y".into(), "skill://a b/SKILL.md".into())));
        assert_eq!(verdicts(&locked, "x").len(), 1);
        assert_eq!(compare(&locked, &locked), Vec::<String>::new());
        let moved = parse(&format!(
            "x {b} skill://s/SKILL.md\nz {b} skill://n/SKILL.md"
        ))
        .unwrap();
        let lines = compare(&locked, &moved).join("\n");
        assert!(
            lines.contains("changed  x")
                && lines.contains("removed  y")
                && lines.contains("added    z")
        );
        for bad in [
            "x",
            "x sha256:1 u",
            &format!("x {a}"),
            &format!("x {a} u\nx {b} u"),
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
