//! What a check has found, for people and for programs: how bad it is, what it is about, what is
//! the case and why that matters, and the one thing that mends it.
//!
//! Absent on purpose: how it is printed.

use serde::{Serialize, Serializer};
use std::fmt;

/// How bad something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// As it should be.
    Ok,
    /// Worth knowing, and nothing to mend.
    Note,
    /// It works, and not as well as it could.
    Warning,
    /// Something does not work.
    Error,
}

impl Severity {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// What mends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fix {
    /// A command.
    Run(String),
    /// What no command of ours can do.
    Do(String),
}

impl fmt::Display for Fix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run(command) => write!(f, "run: {command}"),
            Self::Do(text) => f.write_str(text),
        }
    }
}

impl Serialize for Fix {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What one check has found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Which case it is, for programs.
    pub id: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What it is about: a file, a directory, a server.
    pub subject: String,
    /// What is the case, and why that matters.
    pub text: String,
    /// What mends it.
    pub fix: Option<Fix>,
}

impl Finding {
    /// Something that is as it should be.
    pub fn ok(id: &'static str, subject: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            id,
            severity: Severity::Ok,
            subject: subject.into(),
            text: text.into(),
            fix: None,
        }
    }

    /// Something worth knowing.
    pub fn note(id: &'static str, subject: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            severity: Severity::Note,
            ..Self::ok(id, subject, text)
        }
    }

    /// Something that could be better.
    pub fn warning(
        id: &'static str,
        subject: impl Into<String>,
        text: impl Into<String>,
        fix: Fix,
    ) -> Self {
        Self {
            severity: Severity::Warning,
            fix: Some(fix),
            ..Self::ok(id, subject, text)
        }
    }

    /// Something that does not work.
    pub fn error(
        id: &'static str,
        subject: impl Into<String>,
        text: impl Into<String>,
        fix: Fix,
    ) -> Self {
        Self {
            severity: Severity::Error,
            ..Self::warning(id, subject, text, fix)
        }
    }

    /// Whether something does not work.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

/// In one line, for an error message.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.subject, self.text)?;
        match &self.fix {
            Some(fix) => write!(f, "; {fix}"),
            None => Ok(()),
        }
    }
}
