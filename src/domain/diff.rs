//! What differs between two manifests of one skill: what a person is shown before approving, and
//! an agent when a held skill has changed (HR-74).

use super::manifest::Entry;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The files that differ, by their path below the skill.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diff {
    /// Files that are new.
    pub added: Vec<String>,
    /// Files that are gone.
    pub removed: Vec<String>,
    /// Files with other content.
    pub rotated: Vec<String>,
    /// Frontmatter fields that the two entries give differently.
    pub frontmatter: Vec<String>,
}

impl Diff {
    /// What it takes to get from the old entry to the new one.
    pub fn between(old: &Entry, new: &Entry) -> Self {
        let files = |entry: &Entry| -> BTreeMap<String, _> {
            let below = |path: &str| {
                let rest = path.strip_prefix(entry.dir.as_str());
                rest.and_then(|r| r.strip_prefix('/'))
                    .unwrap_or(path)
                    .to_owned()
            };
            entry
                .files()
                .iter()
                .map(|f| (below(f.path.as_str()), (f.uri.clone(), f.digest)))
                .collect()
        };
        let (before, after) = (files(old), files(new));
        let absent = |from: &BTreeMap<String, _>, other: &BTreeMap<String, _>| {
            from.keys()
                .filter(|p| !other.contains_key(*p))
                .cloned()
                .collect()
        };
        let (a, b) = (old.frontmatter.map(), new.frontmatter.map());
        let mut fields: Vec<String> = a
            .keys()
            .chain(b.keys())
            .filter(|k| a.get(*k) != b.get(*k))
            .cloned()
            .collect();
        fields.sort();
        fields.dedup();
        Self {
            added: absent(&after, &before),
            removed: absent(&before, &after),
            rotated: before
                .iter()
                .filter(|(path, file)| after.get(*path).is_some_and(|f| f != *file))
                .map(|(path, _)| path.clone())
                .collect(),
            frontmatter: fields,
        }
    }

    /// The same with every text made safe to show.
    pub fn map(&self, safe: impl Fn(&str) -> String) -> Self {
        let all = |texts: &[String]| texts.iter().map(|t| safe(t)).collect();
        Self {
            added: all(&self.added),
            removed: all(&self.removed),
            rotated: all(&self.rotated),
            frontmatter: all(&self.frontmatter),
        }
    }

    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// "1 rotated, 2 added".
    pub fn summary(&self) -> String {
        let counts = [
            (self.rotated.len(), "rotated"),
            (self.added.len(), "added"),
            (self.removed.len(), "removed"),
            match self.frontmatter.len() {
                1 => (1, "frontmatter field changed"),
                n => (n, "frontmatter fields changed"),
            },
        ];
        let parts = counts
            .iter()
            .filter(|(n, _)| *n > 0)
            .map(|(n, what)| format!("{n} {what}"));
        let text = parts.collect::<Vec<_>>().join(", ");
        if text.is_empty() {
            "nothing differs".into()
        } else {
            text
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::digest::Digest;
    use serde_json::json;

    #[test]
    fn hr_74_added_removed_and_rotated() {
        let entry = |rows: &[(&str, &str)], extra: i32| {
            let rows: Vec<_> = rows
                .iter()
                .map(|(f, body)| json!({"uri": format!("skill://p/s/{f}"), "size": 1, "digest": Digest::of(body.as_bytes()).to_string()}))
                .collect();
            Entry::parse(&json!({"uri": "skill://p/s/SKILL.md", "resources": rows,
                "frontmatter": {"name": "s", "description": "d", "x": extra}}))
            .unwrap()
        };
        let old = entry(&[("SKILL.md", "m"), ("a", "1"), ("b/c", "1")], 1);
        let new = entry(&[("SKILL.md", "m"), ("a", "2"), ("d", "1")], 2);
        let diff = Diff::between(&old, &new);
        assert_eq!(
            diff,
            Diff {
                added: vec!["d".into()],
                removed: vec!["b/c".into()],
                rotated: vec!["a".into()],
                frontmatter: vec!["x".into()],
            }
        );
        assert_eq!(
            diff.summary(),
            "1 rotated, 1 added, 1 removed, 1 frontmatter field changed"
        );
        assert!(Diff::between(&old, &old).is_empty());
    }
}
