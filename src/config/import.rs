//! The files of other programs on this machine → one file of ours.
//!
//! **Invariants:** placeholders stay placeholders: no secret is taken out of the environment. What
//! is relative to a file is made absolute, or starts where the file is. A value that stands in a
//! file itself is taken over as it stands, since the server needs it; its field is named. Of two
//! servers with one label the first is taken. A file of the working directory, which may have come
//! with a repository, is shown, and taken only if it is named. Nothing is written here.

use super::entry::{Raw, Reach, Start, Switch};
use super::file::{Contents, Declared};
use super::{BadConfig, Dialect, Machine, ServerSpec, contents};
use crate::domain::name::Label;
use crate::domain::text::word;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// A place where another program keeps its servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// The program.
    pub program: &'static str,
    /// The file.
    pub path: PathBuf,
    dialect: Dialect,
    whose: Whose,
}

/// Whose word a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// The user's, who keeps it at home or named it.
    User,
    /// Perhaps somebody else's: it was found in the working directory.
    Anybody,
}

/// The places to look at, the ones of the working directory last.
pub fn places(machine: &Machine) -> Vec<Known> {
    let in_dir = |whose, program, dialect, dir: Option<&Path>, below: &str| {
        let path = dir?.join(below);
        Some(Known {
            program,
            path,
            dialect,
            whose,
        })
    };
    let known = |program, dialect, dir, below| in_dir(Whose::User, program, dialect, dir, below);
    let found = |program, below| {
        in_dir(
            Whose::Anybody,
            program,
            Dialect::Json,
            Some(machine.dir()),
            below,
        )
    };
    let home = machine.home();
    let config = machine.config_home();
    let codex = machine.var("CODEX_HOME").map(PathBuf::from);
    let codex = codex.or_else(|| Some(home?.join(".codex")));
    [
        known("Claude Code", Dialect::Json, home, ".claude.json"),
        known(
            "Claude Desktop",
            Dialect::Json,
            config,
            "Claude/claude_desktop_config.json",
        ),
        known("Cursor", Dialect::Json, home, ".cursor/mcp.json"),
        known("VS Code", Dialect::Json, config, "Code/User/mcp.json"),
        known("Codex", Dialect::Codex, codex.as_deref(), "config.toml"),
        found("Claude Code", ".mcp.json"),
        found("Cursor", ".cursor/mcp.json"),
        found("VS Code", ".vscode/mcp.json"),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// What would be taken over.
#[derive(Debug, Default)]
pub struct Import {
    /// The files that were read.
    pub files: Vec<PathBuf>,
    /// Each server that stands in one of them.
    pub servers: Vec<Candidate>,
    /// Files that cannot be read, and what is ignored.
    pub notices: Vec<String>,
    taken: Vec<Declared>,
}

/// A server of another program's file.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Candidate {
    /// Its label, or its name if that makes none.
    pub label: String,
    /// How it is reached, without secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Where it stands.
    pub from: String,
    /// `taken`, `taken, switched off` or `left out`.
    pub becomes: &'static str,
    /// Why it is left out, or does not work now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The fields whose values are taken over though they look like secrets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub literal_secrets: Vec<String>,
}

/// Looks at these files, or at those that are found on this machine.
pub fn import(files: &[PathBuf], machine: &Machine) -> Result<Import, BadConfig> {
    let mut import = Import::default();
    for path in files {
        let path = machine.dir().join(path);
        let contents = contents(&path, None)?;
        import.take(path, Whose::User, contents, machine);
    }
    if files.is_empty() {
        let mut seen = Vec::new();
        for place in places(machine) {
            // In the home directory, the file here and the one there are one.
            if !place.path.is_file() || seen.contains(&place.path) {
                continue;
            }
            seen.push(place.path.clone());
            match contents(&place.path, Some(place.dialect)) {
                Ok(contents) => import.take(place.path, place.whose, contents, machine),
                Err(e) => import.notices.push(format!("{}: {e}", place.program)),
            }
        }
    }
    Ok(import)
}

impl Import {
    fn take(&mut self, path: PathBuf, whose: Whose, contents: Contents, machine: &Machine) {
        let unasked = (whose == Whose::Anybody).then(|| {
            format!(
                "a file of the working directory is taken only if it is named: mount-skills config import --write {}",
                word(&path.display().to_string())
            )
        });
        self.files.push(path);
        self.notices.extend(contents.notices);
        let mut homes: HashMap<Label, usize> = self
            .taken
            .iter()
            .enumerate()
            .map(|(n, taken)| (taken.label.clone(), n))
            .collect();
        for unused in contents.unused {
            self.servers.push(Candidate {
                label: unused.name,
                target: None,
                from: unused.place.to_string(),
                becomes: "left out",
                reason: Some(unused.why.to_string()),
                literal_secrets: Vec::new(),
            });
        }
        for mut declared in contents.declared {
            anchor(&mut declared, machine);
            let before = homes.get(&declared.label).and_then(|n| self.taken.get(*n));
            let twice = before.map(|before| {
                let same = match before.reach == declared.reach {
                    true => "the same",
                    false => "another",
                };
                format!("{same} server of this label is in {}", before.place)
            });
            let fault = ServerSpec::of_declared(&declared, machine).err();
            // What is not set now may be set where the mount is started.
            let hopeless = fault.as_ref().filter(|f| !f.found.ends_with("is not set"));
            let left_out = twice.or_else(|| hopeless.map(|f| f.to_string()));
            let left_out = left_out.or_else(|| unasked.clone());
            self.servers.push(Candidate {
                label: declared.label.to_string(),
                target: Some(declared.shown()),
                from: declared.place.to_string(),
                becomes: match (&left_out, declared.switch) {
                    (Some(_), _) => "left out",
                    (None, Switch::Off) => "taken, switched off",
                    (None, Switch::On) => "taken",
                },
                literal_secrets: match left_out {
                    Some(_) => Vec::new(),
                    None => declared.literal_secrets(),
                },
                reason: left_out.clone().or_else(|| fault.map(|f| f.to_string())),
            });
            if left_out.is_none() {
                homes.insert(declared.label.clone(), self.taken.len());
                self.taken.push(declared);
            }
        }
    }

    /// Whether there is a server to take over.
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    /// The text of a file of ours.
    pub fn to_toml(&self) -> String {
        let mut out = "# Servers for mount-skills, taken over from:\n".to_owned();
        let mut files: Vec<&str> = self.taken.iter().map(|d| d.place.file()).collect();
        files.dedup();
        for file in files {
            out.push_str(&format!("#   {}\n", file.escape_debug()));
        }
        out.push('\n');
        let servers = self.taken.iter().map(|declared| {
            let value = Value::Table(table(declared));
            (declared.label.to_string(), value)
        });
        let mut root = Table::new();
        root.insert("servers".into(), Value::Table(servers.collect()));
        out.push_str(&root.to_string());
        out
    }
}

/// Makes what is relative to the file of a server mean the same in another file.
fn anchor(declared: &mut Declared, machine: &Machine) {
    let dir = declared.place.dir();
    let place = |raw: &mut Raw| {
        if !raw.text.starts_with(['$', '~']) {
            raw.text = dir.join(&raw.text).display().to_string();
        }
    };
    let here = || Raw {
        field: "cwd".into(),
        text: dir.display().to_string(),
    };
    let climbs = |word: &str| word.starts_with("./") || word.starts_with("../");
    match &mut declared.reach {
        Reach::Http { bearer_file, .. } => bearer_file.iter_mut().for_each(place),
        Reach::Command {
            command,
            args,
            start,
        } => match &mut start.cwd {
            // What is relative is so to that directory.
            Some(cwd) => place(cwd),
            None => {
                if command.text.contains('/') {
                    place(command);
                }
                if args.iter().any(|raw| climbs(&raw.text)) {
                    start.cwd = Some(here());
                }
            }
        },
        Reach::Target { target, start } => {
            start.cwd.iter_mut().for_each(place);
            let path = machine.path(&target.text, &dir).ok();
            if path.is_some_and(|path| machine.find_dir(&path).is_some()) {
                place(target);
            } else if start.cwd.is_none() {
                let words = shlex::split(&target.text).unwrap_or_default();
                let program = words
                    .first()
                    .is_some_and(|word| word.contains('/') && !word.starts_with(['/', '$', '~']));
                if program || words.iter().any(|word| climbs(word)) {
                    start.cwd = Some(here());
                }
            }
        }
    }
}

fn pairs(pairs: &[(String, Raw)]) -> Value {
    let pairs = pairs.iter();
    Value::Table(
        pairs
            .map(|(name, raw)| (name.clone(), Value::String(raw.text.clone())))
            .collect(),
    )
}

/// A server as our file declares it.
fn table(declared: &Declared) -> Table {
    let mut table = Table::new();
    let mut put = |key: &str, value: Value| {
        table.insert(key.to_owned(), value);
    };
    let text = |raw: &Raw| Value::String(raw.text.clone());
    let start = match &declared.reach {
        Reach::Http {
            url,
            headers,
            bearer_file,
        } => {
            put("url", text(url));
            if let Some(file) = bearer_file {
                put("bearer-file", text(file));
            }
            if !headers.is_empty() {
                put("headers", pairs(headers));
            }
            &Start::default()
        }
        Reach::Command {
            command,
            args,
            start,
        } => {
            put("command", text(command));
            if !args.is_empty() {
                put("args", Value::Array(args.iter().map(text).collect()));
            }
            start
        }
        Reach::Target { target, start } => {
            put("target", text(target));
            start
        }
    };
    if !start.env.is_empty() {
        put("env", pairs(&start.env));
    }
    if let Some(cwd) = &start.cwd {
        put("cwd", text(cwd));
    }
    if declared.switch == Switch::Off {
        put("enabled", Value::Boolean(false));
    }
    if let Some(timeout) = declared.start_timeout {
        put("start-timeout", Value::Float(timeout.as_secs_f64()));
    }
    if declared.dynamic {
        put("allow-dynamic", Value::Boolean(true));
    }
    if !declared.skills.is_empty() {
        let skills = declared.skills.iter().cloned().map(Value::String);
        put("skills", Value::Array(skills.collect()));
    }
    table
}
