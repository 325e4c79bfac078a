//! One server of a file: its fields → the one way in which it is reached.
//!
//! What the keys of a server mean is one table for all dialects, so that each meaning is read in one
//! place; Codex' variables for headers become the placeholders that say the same.
//!
//! **Invariant:** a fault names the field, and shows no value but the words that a field can be
//! chosen from.

use super::document::{Entry, Node, Value};
use super::expand::is_variable;
use super::file::Dialect;
use crate::domain::text::Quoted;
use std::fmt;
use std::time::Duration;

/// Whether the file says that a server is to be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Switch {
    #[default]
    On,
    Off,
}

/// How a server is to be reached, as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reach {
    /// A program with its arguments.
    Command {
        command: Raw,
        args: Vec<Raw>,
        start: Start,
    },
    /// A URL.
    Http {
        url: Raw,
        headers: Vec<(String, Raw)>,
        /// The file with a bearer token.
        bearer_file: Option<Raw>,
    },
    /// A command line or a directory, as in `--server`.
    Target { target: Raw, start: Start },
}

/// In which surroundings a program starts, as it is written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Start {
    pub(super) env: Vec<(String, Raw)>,
    pub(super) cwd: Option<Raw>,
}

/// A value as it is written, and the field that it is of. It may be a secret.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Raw {
    pub(super) field: String,
    pub(super) text: String,
}

impl fmt::Debug for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Raw({})", self.field)
    }
}

/// What is wrong with a server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: found {found}, expected {expected}; {next}")]
pub struct Fault {
    /// The field.
    pub field: String,
    /// What is there, without values.
    pub found: String,
    /// What should be.
    pub expected: String,
    /// What to do.
    pub next: String,
}

impl Fault {
    pub(super) fn new(
        field: impl Into<String>,
        found: impl Into<String>,
        expected: &str,
        next: &str,
    ) -> Self {
        Self {
            field: field.into(),
            found: found.into(),
            expected: expected.into(),
            next: next.into(),
        }
    }
}

/// What a key of a server means.
#[derive(Clone, Copy)]
enum Key {
    Type,
    Command,
    Args,
    Env,
    Cwd,
    Url,
    Headers,
    /// Names of headers to names of variables.
    EnvHeaders,
    /// The variable with a bearer token.
    Bearer,
    /// The file with a bearer token.
    BearerFile,
    Disabled,
    Enabled,
    StartTimeout,
    Target,
    Dynamic,
    Skills,
    EnvFile,
    /// Of use to an agent, not to a mount.
    Inert,
}

impl Dialect {
    fn key(self, name: &str) -> Option<Key> {
        let common = match name {
            "command" => Some(Key::Command),
            "args" => Some(Key::Args),
            "env" => Some(Key::Env),
            "cwd" => Some(Key::Cwd),
            "url" => Some(Key::Url),
            "enabled" => Some(Key::Enabled),
            _ => None,
        };
        common.or(match (self, name) {
            (Self::Json, "type" | "transport" | "transportType") => Some(Key::Type),
            (Self::Json, "serverUrl" | "httpUrl") => Some(Key::Url),
            (Self::Json | Self::Ours, "headers") => Some(Key::Headers),
            (Self::Json, "disabled") => Some(Key::Disabled),
            (Self::Json, "envFile") => Some(Key::EnvFile),
            (
                Self::Json,
                "alwaysAllow" | "autoApprove" | "description" | "dev" | "disabledTools"
                | "excludeTools" | "gallery" | "includeTools" | "timeout" | "tools" | "trust"
                | "version",
            ) => Some(Key::Inert),
            (Self::Codex, "http_headers") => Some(Key::Headers),
            (Self::Codex, "env_http_headers") => Some(Key::EnvHeaders),
            (Self::Codex, "bearer_token_env_var") => Some(Key::Bearer),
            (Self::Codex, "startup_timeout_sec") => Some(Key::StartTimeout),
            (
                Self::Codex,
                "default_tools_approval_mode"
                | "disabled_tools"
                | "enabled_tools"
                | "env_vars"
                | "required"
                | "tool_timeout_sec"
                | "tools",
            ) => Some(Key::Inert),
            (Self::Ours, "start-timeout") => Some(Key::StartTimeout),
            (Self::Ours, "bearer-file") => Some(Key::BearerFile),
            (Self::Ours, "target") => Some(Key::Target),
            (Self::Ours, "allow-dynamic") => Some(Key::Dynamic),
            (Self::Ours, "skills") => Some(Key::Skills),
            _ => None,
        })
    }
}

/// How a server says that it is reached.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Stdio,
    Http,
}

/// What was read of a server so far.
#[derive(Default)]
pub(super) struct Draft {
    kind: Option<Kind>,
    command: Option<Raw>,
    args: Vec<Raw>,
    start: Start,
    url: Option<Raw>,
    headers: Vec<(String, Raw)>,
    bearer_file: Option<Raw>,
    target: Option<Raw>,
    pub(super) switch: Switch,
    pub(super) start_timeout: Option<Duration>,
    pub(super) dynamic: bool,
    pub(super) skills: Vec<String>,
    pub(super) unknown: Vec<String>,
}

impl Draft {
    /// Reads all fields; the first fault is given back, and whether the server is switched off is
    /// known all the same.
    pub(super) fn read(&mut self, dialect: Dialect, node: Node) -> Result<(), Fault> {
        let found = node.kind();
        let Value::Table(entries) = node.value else {
            return Err(Fault::new("the entry", found, "an object", "correct it"));
        };
        let mut result = Ok(());
        for entry in entries {
            result = result.and(self.field(dialect, entry));
        }
        result
    }

    fn field(&mut self, dialect: Dialect, entry: Entry) -> Result<(), Fault> {
        let Entry { key, node, .. } = entry;
        let Some(meaning) = dialect.key(&key) else {
            if dialect == Dialect::Ours {
                return Err(Fault::new(
                    Quoted(&key).to_string(),
                    "a key that is not known",
                    "one of target, command, args, env, cwd, url, headers, \
                     bearer-file, enabled, \
                     start-timeout, allow-dynamic, skills",
                    "correct or remove it",
                ));
            }
            self.unknown.push(Quoted(&key).to_string());
            return Ok(());
        };
        match meaning {
            Key::Inert => {}
            Key::Type => self.kind = Some(kind(&key, &node)?),
            Key::Command => self.command = Some(text(key, node)?),
            Key::Args => self.args = texts(&key, node)?,
            Key::Env => self.start.env = pairs(&key, node)?,
            Key::Cwd => self.start.cwd = Some(text(key, node)?),
            Key::Target => self.target = Some(text(key, node)?),
            Key::Url => match &self.url {
                None => self.url = Some(text(key, node)?),
                Some(first) => {
                    let found = format!("a second URL beside {}", first.field);
                    return Err(Fault::new(key, found, "one of them", "remove the other"));
                }
            },
            Key::Headers => self.headers.extend(pairs(&key, node)?),
            Key::EnvHeaders => {
                for (name, raw) in pairs(&key, node)? {
                    self.headers.push((name, of_variable(raw, "")?));
                }
            }
            Key::Bearer => {
                let raw = of_variable(text(key, node)?, "Bearer ")?;
                self.headers.push(("Authorization".into(), raw));
            }
            Key::BearerFile => self.bearer_file = Some(text(key, node)?),
            Key::Disabled if truth(&key, &node)? => self.switch = Switch::Off,
            Key::Enabled if !truth(&key, &node)? => self.switch = Switch::Off,
            Key::Disabled | Key::Enabled => {}
            Key::Dynamic => self.dynamic = truth(&key, &node)?,
            Key::StartTimeout => self.start_timeout = Some(seconds(&key, &node)?),
            Key::Skills => {
                self.skills = texts(&key, node)?.into_iter().map(|raw| raw.text).collect();
            }
            Key::EnvFile => {
                return Err(Fault::new(
                    key,
                    "a file of variables",
                    "none: such files are not read",
                    "put the variables into env, or start mount-skills with them in its environment",
                ));
            }
        }
        Ok(())
    }

    /// The one way in which the server is reached.
    pub(super) fn reach(&mut self) -> Result<Reach, Fault> {
        let set = [
            (self.command.is_some(), "command"),
            (self.url.is_some(), "url"),
            (self.target.is_some(), "target"),
        ];
        let set: Vec<&str> = set.iter().filter(|(is, _)| *is).map(|(_, n)| *n).collect();
        if let [_, second, ..] = set.as_slice() {
            let found = format!("{} together", set.join(" and "));
            return Err(Fault::new(
                *second,
                found,
                "one of them",
                "remove the other",
            ));
        }
        let lone = |field: &Raw, with: &str| {
            let field = field.field.split('.').next().unwrap_or_default();
            Fault::new(
                field,
                format!("it beside {with}, where it means nothing"),
                "none",
                "remove it, or write what it belongs to",
            )
        };
        let start = std::mem::take(&mut self.start);
        let (args, headers) = (
            std::mem::take(&mut self.args),
            std::mem::take(&mut self.headers),
        );
        let bearer_file = self.bearer_file.take();
        // What only a URL has.
        let of_url = headers.first().map(|(_, raw)| raw);
        let of_url = of_url.or(bearer_file.as_ref());
        if let Some(target) = self.target.take() {
            if let Some(arg) = args.first() {
                return Err(lone(arg, "target"));
            }
            if is_url(&target.text) {
                self.url = Some(target);
            } else if let Some(raw) = of_url {
                return Err(lone(raw, "a command"));
            } else {
                return Ok(Reach::Target { target, start });
            }
        }
        if let Some(url) = self.url.take() {
            if self.kind == Some(Kind::Stdio) {
                return Err(Fault::new(
                    "type",
                    "stdio beside a URL",
                    "http",
                    "correct it",
                ));
            }
            let env = start.env.first().map(|(_, raw)| raw);
            if let Some(raw) = env.or(start.cwd.as_ref()).or(args.first()) {
                return Err(lone(raw, "a URL"));
            }
            return Ok(Reach::Http {
                url,
                headers,
                bearer_file,
            });
        }
        let Some(command) = self.command.take() else {
            let field = match self.kind {
                Some(Kind::Http) => "url",
                _ => "command",
            };
            return Err(Fault::new(
                field,
                "nothing",
                "a command or a URL",
                "add one",
            ));
        };
        if self.kind == Some(Kind::Http) {
            return Err(Fault::new(
                "type",
                "http beside a command",
                "stdio",
                "correct it",
            ));
        }
        if let Some((_, header)) = headers.first() {
            return Err(lone(header, "a command"));
        }
        Ok(Reach::Command {
            command,
            args,
            start,
        })
    }
}

/// Whether a target is that of an HTTP endpoint.
pub(super) fn is_url(target: &str) -> bool {
    target.starts_with("http://") || target.starts_with("https://")
}

fn kind(key: &str, node: &Node) -> Result<Kind, Fault> {
    let wrong =
        |found: String, next: &str| Err(Fault::new(key, found, "\"stdio\" or \"http\"", next));
    let Value::Text(text) = &node.value else {
        return wrong(node.kind().into(), "correct it");
    };
    match text.as_str() {
        "stdio" => Ok(Kind::Stdio),
        "http" | "streamable-http" | "streamableHttp" | "streamable_http" => Ok(Kind::Http),
        "sse" => wrong(
            "\"sse\", a transport that MCP has given up and that is not spoken here".into(),
            "ask the server's author for its streamable HTTP URL",
        ),
        other => wrong(Quoted(other).to_string(), "correct it"),
    }
}

fn wrong(field: impl Into<String>, node: &Node, expected: &str) -> Fault {
    Fault::new(field, node.kind(), expected, "correct it")
}

fn text(field: String, node: Node) -> Result<Raw, Fault> {
    match node.value {
        Value::Text(text) if !text.is_empty() => Ok(Raw { field, text }),
        Value::Text(_) => Err(Fault::new(field, "nothing", "a text", "fill it in")),
        _ => Err(wrong(field, &node, "a text")),
    }
}

fn texts(field: &str, node: Node) -> Result<Vec<Raw>, Fault> {
    let kind = node.kind();
    let Value::List(nodes) = node.value else {
        return Err(Fault::new(field, kind, "a list of texts", "correct it"));
    };
    let one = |(n, node): (usize, Node)| {
        let field = format!("{field}.{n}");
        match node.value {
            Value::Text(text) => Ok(Raw { field, text }),
            _ => Err(wrong(field, &node, "a text")),
        }
    };
    nodes.into_iter().enumerate().map(one).collect()
}

/// Names with their values; a number counts as its text.
fn pairs(field: &str, node: Node) -> Result<Vec<(String, Raw)>, Fault> {
    let kind = node.kind();
    let Value::Table(entries) = node.value else {
        return Err(Fault::new(
            field,
            kind,
            "an object with a text under each name",
            "correct it",
        ));
    };
    let one = |entry: Entry| {
        let field = format!(
            "{field}.{}",
            Quoted(&entry.key).to_string().trim_matches('"')
        );
        match entry.node.value {
            Value::Text(text) | Value::Number(text) => Ok((entry.key, Raw { field, text })),
            _ => Err(wrong(field, &entry.node, "a text")),
        }
    };
    entries.into_iter().map(one).collect()
}

/// The name of a variable, as the placeholder that stands for its value.
fn of_variable(raw: Raw, before: &str) -> Result<Raw, Fault> {
    if !is_variable(&raw.text) {
        // Often the secret itself stands there: it is not shown.
        let found = "a text that is no name of a variable";
        return Err(Fault::new(
            raw.field,
            found,
            "the name of a variable",
            "correct it",
        ));
    }
    Ok(Raw {
        text: format!("{before}${{{}}}", raw.text),
        ..raw
    })
}

fn truth(field: &str, node: &Node) -> Result<bool, Fault> {
    match node.value {
        Value::Bool(b) => Ok(b),
        _ => Err(wrong(field, node, "true or false")),
    }
}

fn seconds(field: &str, node: &Node) -> Result<Duration, Fault> {
    super::settings::seconds(node)
        .ok_or_else(|| wrong(field, node, "a number of seconds from 0.1 to 3600"))
}
