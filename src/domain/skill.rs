//! May a read of a file go on, and what must its bytes match?
//!
//! A file belongs to every entry that lists it: a nested skill's files are listed by the
//! enclosing skill too (HR-36). The newest entry of each skill is in force; bytes must satisfy
//! every entry that lists the file, and where two disagree only that file fails (HR-37).

use super::manifest::{Entry, FileEntry};
use super::verify::Expected;
use std::sync::Arc;

/// One entry's word on a file.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The skill that lists the file.
    pub entry: Arc<Entry>,
    /// Its row.
    pub file: FileEntry,
}

/// The answer to a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Serve bytes that match this.
    Serve(Expected),
    /// Two entries that list the file disagree about it: these skills, by URI.
    Disagree(Arc<str>, Arc<str>),
}

/// Decides from all claims on one file; none if there is no claim.
pub fn decide(claims: &[Claim]) -> Option<Decision> {
    let (first, rest) = claims.split_first()?;
    if let Some(other) = rest
        .iter()
        .find(|c| c.file.digest != first.file.digest || c.file.size != first.file.size)
    {
        return Some(Decision::Disagree(
            first.entry.uri.clone(),
            other.entry.uri.clone(),
        ));
    }
    let own = claims.iter().find(|c| c.entry.uri == c.file.uri);
    Some(Decision::Serve(Expected {
        uri: first.file.uri.clone(),
        digest: first.file.digest,
        size: first.file.size,
        frontmatter: own.map(|c| c.entry.frontmatter.clone()),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::digest::Digest;
    use serde_json::json;

    fn entry(uri: &str, name: &str, rows: &[(&str, &str)]) -> Arc<Entry> {
        let rows: Vec<_> = rows
            .iter()
            .map(|(uri, body)| {
                json!({"uri": uri, "digest": Digest::of(body.as_bytes()).to_string(), "size": body.len()})
            })
            .collect();
        let value = json!({"uri": uri, "frontmatter": {"name": name, "description": "d"}, "resources": rows});
        Arc::new(Entry::parse(&value).unwrap())
    }

    fn claims(entries: &[&Arc<Entry>], uri: &str) -> Vec<Claim> {
        entries
            .iter()
            .flat_map(|e| {
                e.files().iter().map(|f| Claim {
                    entry: Arc::clone(e),
                    file: f.clone(),
                })
            })
            .filter(|c| &*c.file.uri == uri)
            .collect()
    }

    #[test]
    fn hr_37_a_disagreement_names_both_skills_and_stays_with_its_file() {
        let (o, i) = ("skill://o/SKILL.md", "skill://o/i/SKILL.md");
        let outer = entry(o, "o", &[(o, "x"), (i, "old"), ("skill://o/n", "n")]);
        let inner = entry(i, "i", &[(i, "new")]);
        let both = [&outer, &inner];
        assert_eq!(
            decide(&claims(&both, i)),
            Some(Decision::Disagree(o.into(), i.into()))
        );
        assert!(matches!(
            decide(&claims(&both, "skill://o/n")),
            Some(Decision::Serve(_))
        ));
        assert_eq!(decide(&[]), None);
    }

    #[test]
    fn only_a_skills_own_skill_md_has_its_frontmatter_compared() {
        let (o, i) = ("skill://o/SKILL.md", "skill://o/i/SKILL.md");
        let outer = entry(o, "o", &[(o, "x"), (i, "i")]);
        let inner = entry(i, "i", &[(i, "i")]);
        let front = |entries: &[&Arc<Entry>], uri| match decide(&claims(entries, uri)) {
            Some(Decision::Serve(e)) => e.frontmatter,
            other => panic!("{other:?}"),
        };
        assert_eq!(front(&[&outer], o).unwrap().id, outer.frontmatter.id);
        assert_eq!(
            front(&[&outer], i),
            None,
            "a supporting file, whatever its name (HR-101)"
        );
        assert_eq!(
            front(&[&outer, &inner], i).unwrap().id,
            inner.frontmatter.id
        );
    }
}
