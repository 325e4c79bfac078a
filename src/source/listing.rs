//! A listing, put together: which question comes next, and what the answers come to.
//!
//! Pages follow each other until the last one, an odd or repeated cursor, or a limit (HR-45,
//! HR-54). An error on a later page ends the listing with what came. Then `skills/get` decides
//! between entries that one URI was listed with (HR-43). Pure: whoever has a connection asks.

use super::wire::{self, Next};
use super::{Listing, SourceError};
use crate::domain::manifest::{Declined, Entry, Reason};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// What a listing may cost (HR-54).
const MAX_PAGES: usize = 10_000;
const MAX_EMPTY_PAGES: usize = 16;
const MAX_ENTRIES: usize = 100_000;
const MAX_LIST_BYTES: usize = 96 << 20;
/// Files of all skills of one listing.
const MAX_LISTED_FILES: usize = 500_000;
/// Entries of one listing that `skills/get` is asked to decide between.
const MAX_DISPUTES: usize = 32;

/// What to ask the server next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// The page of `skills/list` at this cursor; the first one has none.
    Page(Option<String>),
    /// `skills/get` of this URI.
    Entry(Arc<str>),
}

/// A listing on its way.
#[derive(Debug)]
pub struct Gather {
    next: Option<Question>,
    cursors: HashSet<String>,
    pages: usize,
    empty: usize,
    bytes: usize,
    files: usize,
    ttl: Duration,
    found: Found,
    /// What is still to be decided by `skills/get`.
    disputed: std::vec::IntoIter<Arc<str>>,
    listing: Listing,
}

impl Default for Gather {
    fn default() -> Self {
        Self {
            next: Some(Question::Page(None)),
            cursors: HashSet::new(),
            pages: 0,
            empty: 0,
            bytes: 0,
            files: 0,
            ttl: Duration::MAX,
            found: Found::default(),
            disputed: Vec::new().into_iter(),
            listing: Listing {
                entries: Vec::new(),
                declined: Vec::new(),
                truncated: None,
                ttl: Duration::ZERO,
            },
        }
    }
}

impl Gather {
    /// The next question; none when the listing is there.
    pub fn next(&self) -> Option<&Question> {
        self.next.as_ref()
    }

    /// Takes the answer to the next question: the result as raw text.
    ///
    /// # Errors
    /// Not even the first page came.
    pub fn answer(&mut self, reply: Result<String, SourceError>) -> Result<(), SourceError> {
        match self.next.take() {
            Some(Question::Page(_)) => self.page(reply),
            Some(Question::Entry(uri)) => {
                self.decide(&uri, reply);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// The listing as far as it came.
    pub fn listing(self) -> Listing {
        self.listing
    }

    fn page(&mut self, reply: Result<String, SourceError>) -> Result<(), SourceError> {
        let page = reply.and_then(|raw| {
            self.bytes += raw.len();
            wire::list_page(&raw)
        });
        let page = match page {
            Ok(page) => page,
            Err(e) if self.pages == 0 => return Err(e),
            Err(e) => {
                self.settle(Some(format!("page {}: {e}", self.pages + 1)));
                return Ok(());
            }
        };
        self.pages += 1;
        self.ttl = self.ttl.min(page.ttl);
        self.empty = if page.entries.is_empty() {
            self.empty + 1
        } else {
            0
        };
        let listed = |e: &Result<Entry, Declined>| e.as_ref().map_or(1, |e| e.files().len());
        self.files += page.entries.iter().map(listed).sum::<usize>();
        page.entries.into_iter().for_each(|e| self.found.add(e));
        match page.next {
            Next::End => self.settle(None),
            Next::Odd => {
                let why = format!("nextCursor of page {} is no text", self.pages);
                self.settle(Some(why));
            }
            Next::Cursor(next) => match self.end_before(&next) {
                Some(why) => self.settle(Some(why)),
                None => self.next = Some(Question::Page(Some(next))),
            },
        }
        Ok(())
    }

    /// Why the page at this cursor is not asked for, if it is not.
    fn end_before(&mut self, next: &str) -> Option<String> {
        let pages = self.pages;
        if !self.cursors.insert(next.to_owned()) {
            return Some(format!("the server repeated a cursor after {pages} pages"));
        }
        let over = [
            (pages >= MAX_PAGES, format!("{MAX_PAGES} pages")),
            (
                self.empty >= MAX_EMPTY_PAGES,
                format!("{MAX_EMPTY_PAGES} empty pages running"),
            ),
            (
                self.found.len() >= MAX_ENTRIES,
                format!("{MAX_ENTRIES} entries"),
            ),
            (
                self.files >= MAX_LISTED_FILES,
                format!("{MAX_LISTED_FILES} files"),
            ),
            (
                self.bytes >= MAX_LIST_BYTES,
                format!("{} MiB", MAX_LIST_BYTES >> 20),
            ),
        ];
        let (_, limit) = over.into_iter().find(|(over, _)| *over)?;
        Some(format!("stopped at the limit of {limit}"))
    }

    /// No page follows.
    fn settle(&mut self, truncated: Option<String>) {
        let (mut listing, mut twice) = std::mem::take(&mut self.found).settle();
        listing.truncated = truncated;
        listing.ttl = self.ttl;
        self.listing = listing;
        twice.truncate(MAX_DISPUTES);
        self.disputed = twice.into_iter();
        self.next = self.disputed.next().map(Question::Entry);
    }

    /// Takes the word of `skills/get` on an entry in dispute, if it says one.
    fn decide(&mut self, uri: &Arc<str>, reply: Result<String, SourceError>) {
        if let Ok(entry) = reply.and_then(|raw| wire::get_result(&raw, uri)) {
            self.listing
                .declined
                .retain(|d| d.uri.as_ref() != Some(uri));
            match entry {
                Ok(entry) => self.listing.entries.push(Arc::new(entry)),
                Err(declined) => self.listing.declined.push(declined),
            }
        }
        self.next = self.disputed.next().map(Question::Entry);
    }
}

/// Entries of a listing on their way, one a URI.
#[derive(Debug, Default)]
struct Found {
    by_uri: HashMap<Arc<str>, Result<Arc<Entry>, Declined>>,
    order: Vec<Arc<str>>,
    nameless: Vec<Declined>,
    /// Those with two words on one skill.
    disputed: HashSet<Arc<str>>,
}

impl Found {
    fn len(&self) -> usize {
        self.order.len() + self.nameless.len()
    }

    fn add(&mut self, entry: Result<Entry, Declined>) {
        let entry = entry.map(Arc::new);
        let uri = match &entry {
            Ok(e) => e.uri.clone(),
            Err(Declined { uri: Some(uri), .. }) => uri.clone(),
            Err(d) => return self.nameless.push(d.clone()),
        };
        match self.by_uri.get(&uri) {
            None => {
                self.order.push(uri.clone());
                self.by_uri.insert(uri, entry);
            }
            Some(known) if *known == entry => {}
            Some(_) => drop(self.disputed.insert(uri)),
        }
    }

    /// The listing so far, and the URIs listed twice with different contents, which are declined
    /// (HR-43).
    fn settle(mut self) -> (Listing, Vec<Arc<str>>) {
        let mut listing = Listing {
            entries: Vec::with_capacity(self.order.len()),
            declined: self.nameless,
            truncated: None,
            ttl: Duration::ZERO,
        };
        let mut twice = Vec::new();
        for uri in self.order {
            let disputed = self.disputed.contains(&uri);
            if disputed {
                twice.push(uri.clone());
            }
            match self.by_uri.remove(&uri) {
                Some(Ok(e)) if disputed => listing.declined.push(Declined {
                    uri: Some(uri),
                    dir: Some(e.dir.clone()),
                    reason: Reason::ListedTwice,
                }),
                Some(Ok(entry)) => listing.entries.push(entry),
                Some(Err(declined)) => listing.declined.push(declined),
                None => {}
            }
        }
        (listing, twice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn f10_disputes_without_number_are_settled_in_time() {
        let declined = |n: usize, why: &str| Declined {
            uri: Some(format!("skill://n{n}/SKILL.md").into()),
            dir: None,
            reason: Reason::Malformed(why.to_owned()),
        };
        let start = Instant::now();
        let mut found = Found::default();
        for n in 0..MAX_ENTRIES {
            found.add(Err(declined(n, "one")));
            found.add(Err(declined(n, "other")));
        }
        let (listing, twice) = found.settle();
        assert_eq!(
            (listing.declined.len(), twice.len()),
            (MAX_ENTRIES, MAX_ENTRIES)
        );
        // Looking at each for each takes minutes.
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "{:?}",
            start.elapsed()
        );
    }
}
