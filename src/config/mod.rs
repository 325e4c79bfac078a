//! What the user says of servers and of a mount, on the command line and in files.
//!
//! ```text
//! document   text → a tree with places; JSON with comments, TOML
//! file       tree → the servers it declares, as they are written; entry: one of them
//! expand     ${VAR} in their values
//! server     --server or a declared server → ServerSpec
//! settings   command line, file, default → Settings
//! import     the files of other programs → a file of ours
//! ```
//!
//! [`load`] puts it together, and can be asked again later: all that it looks at is its
//! arguments and the files.
//!
//! **Invariants:** a label has one home; two are an error that names both. What cannot be used of
//! one server leaves out that server, with a reason; what cannot be read of a file is an error.
//! No message and no `Debug` holds the value of a variable, of `env` or of a header.
//!
//! Absent on purpose: includes, profiles, and a search for files of other programs; `config
//! import` looks for those when it is asked.

pub mod credentials;
mod document;
mod entry;
mod expand;
mod file;
mod import;
mod server;
mod settings;

pub use entry::Fault;
pub use file::{Dialect, Unused, Why};
pub use import::{Candidate, Import, Known, import, places};
pub use server::{BadServer, ServerSpec};
pub use settings::{Settings, Shown};

use crate::cli::ServerArgs;
use crate::domain::name::Label;
use credentials::{BadCredentials, Given};
use entry::Switch;
use etcetera::BaseStrategy;
use file::Contents;
use settings::FileSettings;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// At most this many bytes of a file are read.
const MAX_FILE: u64 = 16 << 20;

/// What a configuration may ask of this machine, as it was when the program started.
#[derive(Clone)]
pub struct Machine {
    vars: HashMap<OsString, OsString>,
    program: String,
    dir: PathBuf,
    home: Option<PathBuf>,
    config_home: Option<PathBuf>,
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine")
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}

impl Machine {
    /// This one.
    pub fn here() -> io::Result<Self> {
        let xdg = etcetera::base_strategy::Xdg::new().ok();
        Ok(Self {
            vars: std::env::vars_os().collect(),
            program: std::env::current_exe()?.display().to_string(),
            dir: std::env::current_dir()?,
            home: xdg.as_ref().map(|x| x.home_dir().to_owned()),
            config_home: xdg.map(|x| x.config_dir()),
        })
    }

    /// The working directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The user's home.
    pub fn home(&self) -> Option<&Path> {
        self.home.as_deref()
    }

    /// Where programs keep their configuration.
    pub fn config_home(&self) -> Option<&Path> {
        self.config_home.as_deref()
    }

    /// The value of a variable.
    pub fn var(&self, name: &str) -> Option<OsString> {
        self.vars.get(std::ffi::OsStr::new(name)).cloned()
    }

    /// Our own file.
    pub fn own_file(&self) -> Option<PathBuf> {
        let dir = self.config_home.as_ref()?;
        Some(dir.join("mount-skills").join("config.toml"))
    }

    fn expand(&self, text: &str) -> Result<String, expand::BadPlaceholder> {
        expand::expand(text, &|name| self.var(name))
    }

    /// A path of our own file: with variables, from the user's home if it starts with `~/`, and
    /// else from a directory.
    fn path(&self, text: &str, from: &Path) -> Result<PathBuf, String> {
        let text = self.expand(text).map_err(|bad| bad.to_string())?;
        Ok(from.join(self.below_home(text)))
    }

    /// A path with the user's home for `~`.
    fn below_home(&self, text: String) -> PathBuf {
        match (text.strip_prefix("~/"), &self.home) {
            (Some(below), Some(home)) => home.join(below),
            _ => text.into(),
        }
    }

    /// The real path of a directory, if there is one. Nothing is no name of the working directory.
    fn find_dir(&self, path: &Path) -> Option<PathBuf> {
        let path = match path.as_os_str().is_empty() {
            true => return None,
            false => self.dir.join(path),
        };
        path.is_dir().then(|| path.canonicalize().ok()).flatten()
    }
}

/// A place in a file, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    file: String,
    at: document::At,
}

impl Place {
    fn new(file: &str, at: document::At) -> Self {
        Self {
            file: file.to_owned(),
            at,
        }
    }

    /// The file.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The directory of the file.
    fn dir(&self) -> PathBuf {
        let dir = Path::new(&self.file).parent();
        dir.map_or_else(PathBuf::new, Path::to_owned)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.at.line, self.at.column)
    }
}

/// Where a server is declared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// On the command line.
    CommandLine,
    /// In a file.
    File(Place),
}

impl Origin {
    /// The file, if it is one.
    pub fn file(&self) -> Option<&str> {
        match self {
            Self::CommandLine => None,
            Self::File(place) => Some(place.file()),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CommandLine => f.write_str("--server"),
            Self::File(place) => place.fmt(f),
        }
    }
}

/// Why nothing is mounted with what was given.
#[derive(Debug, thiserror::Error)]
pub enum BadConfig {
    /// A `--server` cannot be used.
    #[error(transparent)]
    Server(#[from] BadServer),
    /// Credentials on the command line cannot be used.
    #[error(transparent)]
    Credentials(#[from] BadCredentials),
    /// A file cannot be read.
    #[error("{file}: {source}; give a file with servers, see: mount-skills config --help")]
    Read {
        /// The file.
        file: String,
        /// Why.
        source: io::Error,
    },
    /// A file is not written as it must be.
    #[error("{place}: {why}")]
    Syntax {
        /// Where.
        place: Place,
        /// What is wrong.
        why: String,
    },
    /// Two servers with one label.
    #[error("the label {label} is given twice, by {first} and by {second}; rename or remove one")]
    Twice {
        /// The label.
        label: String,
        /// Where first.
        first: String,
        /// Where again.
        second: String,
    },
    /// A setting in two files.
    #[error("{name} is set twice, in {first} and in {second}; remove one")]
    SetTwice {
        /// The setting.
        name: &'static str,
        /// Where first.
        first: Place,
        /// Where again.
        second: Place,
    },
    /// An option names a server that nobody declares.
    #[error("{option} {text:?}: {why}")]
    Option {
        /// The option.
        option: &'static str,
        /// Its value.
        text: String,
        /// What is wrong.
        why: &'static str,
    },
}

/// What is to be mounted, and how.
#[derive(Debug)]
pub struct Config {
    /// The servers, in the order in which they were given.
    pub servers: Vec<ServerSpec>,
    /// Those that stand in a file and are not used.
    pub unused: Vec<Unused>,
    /// The settings.
    pub settings: Settings,
    /// The labels whose dynamic skills may be read.
    pub allow_dynamic: Vec<Label>,
    /// Skills that are not listed: the server, and the URI of SKILL.md.
    pub skills: Vec<(Label, String)>,
    /// The files that were read.
    pub files: Vec<PathBuf>,
    /// What people should know and what changes nothing.
    pub notices: Vec<String>,
}

impl Config {
    /// Whether anything was declared, or a file read.
    pub fn is_anything(&self) -> bool {
        !self.servers.is_empty() || !self.files.is_empty()
    }

    /// What people should know at the start: what is ignored, and each server that cannot be used.
    pub fn warnings(&self) -> Vec<String> {
        let unused = self.unused.iter().filter_map(|unused| match &unused.why {
            Why::SwitchedOff => None,
            Why::Fault(fault) => Some(format!(
                "{}: server {} is not used: {fault}",
                unused.place, unused.name
            )),
        });
        self.notices.iter().cloned().chain(unused).collect()
    }
}

/// Puts together what the command line and the files say. `--server` and `--config` go together;
/// without both, our own file is read if it is there.
pub fn load(
    args: &ServerArgs,
    mountpoint: Option<&Path>,
    machine: &Machine,
) -> Result<Config, BadConfig> {
    let find_dir = |path: &Path| machine.find_dir(path);
    let mut servers = Vec::new();
    let mut homes = Homes::default();
    for text in &args.servers {
        let spec = ServerSpec::parse(text, &machine.program, &find_dir)?;
        homes.claim(&spec.label, Origin::CommandLine)?;
        servers.push(spec);
    }
    let (mut unused, mut notices) = (Vec::new(), Vec::new());
    let (mut settings, mut files) = (FileSettings::default(), Vec::new());
    let mut skills = Vec::new();
    let mut allow_dynamic = Vec::new();
    for path in sources(args, machine) {
        let contents = contents(&path, None)?;
        settings.join(contents.settings)?;
        notices.extend(contents.notices);
        for broken in contents.unused {
            if let (Why::Fault(_), Ok(label)) = (&broken.why, broken.name.parse()) {
                homes.claim(&label, Origin::File(broken.place.clone()))?;
            }
            unused.push(broken);
        }
        for declared in contents.declared {
            let off = |why| Unused {
                name: declared.label.to_string(),
                place: declared.place.clone(),
                why,
            };
            if declared.switch == Switch::Off {
                unused.push(off(Why::SwitchedOff));
                continue;
            }
            homes.claim(&declared.label, Origin::File(declared.place.clone()))?;
            match ServerSpec::of_declared(&declared, machine) {
                Ok(spec) => {
                    let uris = declared.skills.iter().cloned();
                    skills.extend(uris.map(|uri| (spec.label.clone(), uri)));
                    if declared.dynamic {
                        allow_dynamic.push(spec.label.clone());
                    }
                    servers.push(spec);
                }
                Err(fault) => unused.push(off(Why::Fault(fault))),
            }
        }
        files.push(path);
    }
    // What is said of a server that is not used goes with it, unless another has its label.
    let used = |texts: &[String]| -> Vec<String> {
        let goes = |text: &&String| {
            let label = text.split('=').next().unwrap_or_default();
            unused.iter().any(|u| u.name == label)
                && !servers.iter().any(|s| s.label.as_str() == label)
        };
        texts.iter().filter(|t| !goes(t)).cloned().collect()
    };
    let (headers, bearer_env) = (used(&args.headers), used(&args.bearer_env));
    let bearer_file = used(&args.bearer_file);
    let given = Given {
        headers: &headers,
        bearer_env: &bearer_env,
        bearer_file: &bearer_file,
        dir: &machine.dir,
    };
    let var = |name: &str| machine.var(name)?.into_string().ok();
    credentials::give(&mut servers, given, &var)?;
    for text in &args.allow_dynamic {
        if let Some(label) = named("--allow-dynamic", text, text, &servers, &unused)? {
            allow_dynamic.push(label);
        }
    }
    for text in &args.skills {
        let (name, uri) = text.split_once('=').ok_or_else(|| BadConfig::Option {
            option: "--skill",
            text: text.clone(),
            why: "write LABEL=URI",
        })?;
        if let Some(label) = named("--skill", text, name, &servers, &unused)? {
            skills.push((label, uri.to_owned()));
        }
    }
    if args.start_timeout.is_some() {
        servers.iter_mut().for_each(|s| s.start_timeout = None);
    }
    Ok(Config {
        servers,
        unused,
        settings: settings.settle(args, mountpoint, machine)?,
        allow_dynamic,
        skills,
        files,
        notices,
    })
}

/// The files to read.
fn sources(args: &ServerArgs, machine: &Machine) -> Vec<PathBuf> {
    let given = args.configs.iter().map(|path| machine.dir.join(path));
    let given: Vec<PathBuf> = given.collect();
    match machine.own_file() {
        Some(own) if given.is_empty() && args.servers.is_empty() && own.exists() => vec![own],
        _ => given,
    }
}

/// The label that an option names; none if its server is there but not used.
fn named(
    option: &'static str,
    text: &str,
    name: &str,
    servers: &[ServerSpec],
    unused: &[Unused],
) -> Result<Option<Label>, BadConfig> {
    let spec = servers.iter().find(|s| s.label.as_str() == name);
    match spec {
        Some(spec) => Ok(Some(spec.label.clone())),
        None if unused.iter().any(|u| u.name == name) => Ok(None),
        None => Err(BadConfig::Option {
            option,
            text: text.to_owned(),
            why: "no server has this label",
        }),
    }
}

/// Reads a file.
fn contents(path: &Path, dialect: Option<Dialect>) -> Result<Contents, BadConfig> {
    let file = path.display().to_string();
    let text = read(path).map_err(|source| BadConfig::Read {
        file: file.clone(),
        source,
    })?;
    file::read(&file, &text, dialect)
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let file = std::fs::File::open(path)?;
    let n = file.take(MAX_FILE + 1).read_to_string(&mut text)?;
    match n as u64 > MAX_FILE {
        true => Err(io::Error::other("it is larger than 16 MiB")),
        false => Ok(text),
    }
}

/// Which label is declared where.
#[derive(Default)]
struct Homes(HashMap<Label, Origin>);

impl Homes {
    fn claim(&mut self, label: &Label, origin: Origin) -> Result<(), BadConfig> {
        match self.0.get(label) {
            Some(first) => Err(BadConfig::Twice {
                label: label.to_string(),
                first: first.to_string(),
                second: origin.to_string(),
            }),
            None => {
                self.0.insert(label.clone(), origin);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Target;
    use std::fs;

    fn machine(dir: &Path) -> Machine {
        let vars = [
            ("S_TOKEN", "a${HOME}b"),
            ("HOME", "/home/ada"),
            ("WORDS", "x y"),
        ];
        let vars = vars.map(|(name, value)| (name.into(), value.into()));
        Machine {
            vars: vars.into_iter().collect(),
            program: "/bin/mount-skills".into(),
            dir: dir.to_owned(),
            home: Some(dir.join("home")),
            config_home: Some(dir.join("config")),
        }
    }

    fn args(servers: &[&str], configs: &[&str]) -> ServerArgs {
        ServerArgs {
            servers: servers.iter().map(|s| (*s).to_owned()).collect(),
            configs: configs.iter().map(PathBuf::from).collect(),
            ..ServerArgs::default()
        }
    }

    /// A directory with these files.
    fn dir(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    fn loaded(dir: &tempfile::TempDir, args: &ServerArgs) -> Result<Config, BadConfig> {
        load(args, None, &machine(dir.path()))
    }

    fn labels(config: &Config) -> Vec<&str> {
        config.servers.iter().map(|s| s.label.as_str()).collect()
    }

    #[test]
    fn c_27_what_is_missing_or_not_supported_leaves_out_one_server_and_names_it() {
        let dir = dir(&[(
            "c.json",
            r#"{"mcpServers": {
                "good": {"url": "http://127.0.0.1:${PORT:-8123}/mcp",
                         "headers": {"Authorization": "Bearer ${S_TOKEN}"}},
                "env": {"command": "x", "env": {"A": "${MISSING}"}},
                "plain": {"command": "x", "args": ["$HOME"], "env": {"B": "${S_TOKEN}"}},
                "bad": {"command": "${BAD"},
                "input": {"command": "x", "args": ["${input:key}"]},
                "folder": {"command": "x", "args": ["-v", "${workspaceFolder}"]},
                "head": {"url": "http://h/", "headers": {"a": "${MISSING}"}},
                "line": {"url": "http://h/", "headers": {"a": "x\ny"}},
                "twice": {"url": "http://h/", "headers": {"a": "x", "A": "y"}},
                "ours": {"url": "http://h/", "headers": {"Content-Length": "1"}},
                "nul": {"command": "x\u0000"},
                "odd": {"command": "x", "env": {"A=B": "x"}},
                "ftp": {"url": "ftp://h/"}
            }}"#,
        )]);
        let config = loaded(&dir, &args(&[], &["c.json"])).unwrap();
        assert_eq!(labels(&config), ["good", "plain"]);
        let Target::Http(endpoint) = &config.servers[0].target else {
            panic!("no URL");
        };
        assert_eq!(endpoint.url, "http://127.0.0.1:8123/mcp");
        assert_eq!(endpoint.headers["authorization"], "Bearer a${HOME}b");
        assert!(endpoint.headers["authorization"].is_sensitive());
        let Target::Command(launch) = &config.servers[1].target else {
            panic!("no command");
        };
        assert_eq!(launch.argv, ["x", "$HOME"]);
        let why = |name: &str| {
            let unused = config.unused.iter().find(|u| u.name == name).unwrap();
            unused.why.to_string()
        };
        for (name, expected) in [
            ("env", "env.A: found ${MISSING}, which is not set"),
            (
                "bad",
                "command: found ${BAD without a closing brace, which is not supported",
            ),
            (
                "input",
                "args.0: found ${input:key}, which is not supported",
            ),
            (
                "folder",
                "args.1: found ${workspaceFolder}, which is not supported",
            ),
            ("head", "headers.a: found ${MISSING}, which is not set"),
            ("line", "headers.a: found a value that no header can have"),
            ("twice", "headers.A: found a second value for this header"),
            (
                "ours",
                "headers.Content-Length: found a header that belongs to the protocol",
            ),
            ("nul", "command: found a NUL character"),
            ("odd", "env.A=B: found a name that no variable can have"),
            ("ftp", "url: found a URL of another scheme"),
        ] {
            assert!(why(name).starts_with(expected), "{name}: {}", why(name));
        }
        let warnings = config.warnings();
        assert_eq!(warnings.len(), 11, "{warnings:?}");
        assert!(warnings[0].contains("/c.json:4:17: server env is not used: env.A: found"));
        let said = format!("{config:?} {warnings:?} {:?}", machine(dir.path()));
        assert!(
            !said.contains("a${HOME}b") && !said.contains("Bearer"),
            "{said}"
        );
    }

    #[test]
    fn c_28_a_label_has_one_home() {
        let one = r#"{"mcpServers": {"My Docs": {"command": "x"}}}"#;
        let broken = r#"{"mcpServers": {"docs": {"command": "${NO}"}}}"#;
        let off = r#"{"mcpServers": {"docs": {"command": "x", "disabled": true}}}"#;
        let same = r#"{"mcpServers": {"a b": {"command": "x"}, "A-b": {"command": "x"}}}"#;
        let both = r#"{"servers": {"x": {"command": "x"}}, "mcpServers": {"x": {"command": "x"}}}"#;
        let dir = dir(&[
            ("one.json", one),
            ("two.toml", "[servers.my-docs]\ntarget = 'x'"),
            ("broken.json", broken),
            ("off.json", off),
            ("same.json", same),
            ("both.json", both),
        ]);
        let twice = |servers: &[&str], configs: &[&str]| {
            loaded(&dir, &args(servers, configs))
                .unwrap_err()
                .to_string()
        };
        for (servers, configs, parts) in [
            (
                vec![],
                vec!["one.json", "two.toml"],
                vec!["/one.json:1:17", "/two.toml:1:"],
            ),
            (
                vec!["my-docs=x"],
                vec!["one.json"],
                vec!["--server", "/one.json:1:17"],
            ),
            (
                vec!["docs=x"],
                vec!["broken.json"],
                vec!["--server", "/broken.json:1:17"],
            ),
            (
                vec![],
                vec!["same.json"],
                vec!["/same.json:1:17", "/same.json:1:42"],
            ),
            (
                vec![],
                vec!["both.json"],
                vec!["/both.json:1:14", "/both.json:1:"],
            ),
            (
                vec!["a=x", "a=y"],
                vec![],
                vec!["by --server and by --server"],
            ),
        ] {
            let error = twice(&servers, &configs);
            assert!(error.contains("is given twice"), "{error}");
            for part in parts {
                assert!(error.contains(part), "{part}: {error}");
            }
        }
        // One that is switched off has no label to defend.
        let config = loaded(&dir, &args(&["docs=x"], &["off.json"])).unwrap();
        assert_eq!(labels(&config), ["docs"]);
        assert_eq!(config.warnings(), Vec::<String>::new());
        assert_eq!(config.unused.len(), 1);
    }

    #[test]
    fn c_31_credentials_are_for_the_server_that_is_used_whatever_else_has_its_label() {
        let off = r#"{"mcpServers": {"docs": {"url": "https://old/", "disabled": true}}}"#;
        let dir = dir(&[("off.json", off), ("tok", "secret")]);
        let mut given = args(&["docs=https://h/mcp"], &["off.json"]);
        given.bearer_file = vec!["docs=tok".into()];
        given.headers = vec!["docs=X-Key: k".into()];
        let config = loaded(&dir, &given).unwrap();
        let Target::Http(endpoint) = &config.servers[0].target else {
            panic!("no URL");
        };
        let file = crate::source::Token::File(dir.path().join("tok"));
        assert_eq!(endpoint.token, Some(file));
        assert_eq!(endpoint.headers["x-key"], "k");
        // Without that server they go with the one that is off.
        given.servers.clear();
        assert!(loaded(&dir, &given).is_ok());
    }

    #[test]
    fn our_own_file_is_read_when_nothing_else_is_given_and_the_command_line_wins() {
        let own = "mountpoint = \"~/skills\"\napproval = \"each\"\ntimeout = 3\ncache-dir = \"kept\"\n\
                   [servers.docs]\ntarget = \"x\"\nskills = [\"skill://y/SKILL.md\"]\nstart-timeout = 9\n";
        let dir = dir(&[
            ("config/mount-skills/config.toml", own),
            ("other.toml", "timeout = 4\n[servers.b]\ntarget = 'y'"),
        ]);
        let config = loaded(&dir, &args(&[], &[])).unwrap();
        let own = dir.path().join("config/mount-skills");
        assert_eq!(labels(&config), ["docs"]);
        assert_eq!(config.files, [own.join("config.toml")]);
        assert_eq!(config.settings.mountpoint, dir.path().join("home/skills"));
        assert_eq!(config.settings.cache_dir, Some(own.join("kept")));
        assert_eq!(config.settings.approval, crate::cli::ApprovalArg::Each);
        assert_eq!(config.settings.timeout.as_secs(), 3);
        assert_eq!(config.skills.len(), 1);
        assert_eq!(
            config.servers[0].start_timeout.map(|t| t.as_secs()),
            Some(9)
        );
        let from = |name: &str| {
            let shown = config.settings.shown.iter().find(|s| s.name == name);
            shown.unwrap().from.clone()
        };
        assert!(
            from("timeout").ends_with("config.toml:3:1"),
            "{}",
            from("timeout")
        );
        assert_eq!(from("hold"), "default");

        let mut given = args(&[], &[]);
        given.timeout = Some(5.0);
        given.start_timeout = Some(6.0);
        let config = load(&given, Some(Path::new("/m")), &machine(dir.path())).unwrap();
        assert_eq!(config.settings.timeout.as_secs(), 5);
        assert_eq!(config.settings.mountpoint, Path::new("/m"));
        assert_eq!(config.servers[0].start_timeout, None);

        // Not read beside a server or a file that is given.
        let config = loaded(&dir, &args(&["a=x"], &[])).unwrap();
        assert!(config.files.is_empty() && labels(&config) == ["a"]);
        let config = loaded(&dir, &args(&["a=x"], &["other.toml"])).unwrap();
        assert_eq!(labels(&config), ["a", "b"]);
        assert_eq!(config.settings.approval, crate::cli::ApprovalArg::Server);
        let both = ["other.toml", "config/mount-skills/config.toml"];
        let error = loaded(&dir, &args(&[], &both)).unwrap_err().to_string();
        assert!(error.contains("timeout is set twice"), "{error}");

        let error = loaded(&dir, &args(&[], &["no.json"]))
            .unwrap_err()
            .to_string();
        assert!(error.contains("/no.json: "), "{error}");
    }

    #[test]
    fn options_name_a_server_that_is_declared() {
        let file = r#"{"mcpServers": {"a": {"command": "x"}, "b": {"command": "${NO}"}}}"#;
        let dir = dir(&[("c.json", file)]);
        let with = |dynamic: &str, skill: &str| {
            let mut args = args(&[], &["c.json"]);
            args.allow_dynamic = vec![dynamic.to_owned()];
            args.skills = vec![skill.to_owned()];
            loaded(&dir, &args)
        };
        let config = with("a", "a=skill://s/SKILL.md").unwrap();
        assert_eq!((config.allow_dynamic.len(), config.skills.len()), (1, 1));
        // A server that is left out leaves out what is said of it.
        let config = with("b", "b=skill://s/SKILL.md").unwrap();
        assert_eq!((config.allow_dynamic.len(), config.skills.len()), (0, 0));
        assert!(with("c", "a=skill://s/SKILL.md").is_err());
        assert!(with("a", "c=skill://s/SKILL.md").is_err());
        assert!(with("a", "a").is_err());
        assert!(loaded(&dir, &args(&["a="], &[])).is_err());
    }

    #[test]
    fn hr_14_a_server_is_the_same_wherever_it_is_declared() {
        let file = "[servers.cmd]\ncommand = 'npx'\nargs = ['-y', 'x y']\nenv = { A = 'b' }\ncwd = '/'\n\
                    [servers.target]\ntarget = \"npx -y 'x y'\"\n\
                    [servers.var]\ntarget = 'npx -y ${WORDS}'\n\
                    [servers.url]\nurl = 'https://u:p@h/mcp'\nheaders = { X = 'y' }\n\
                    [servers.dir]\ntarget = 'skills'\n";
        let dir = dir(&[("c.toml", file), ("skills/x", "")]);
        let config = loaded(&dir, &args(&[], &["c.toml"])).unwrap();
        let given = ["cmd=npx -y 'x y'", "url=https://h/mcp", "dir=skills"];
        let typed = loaded(&dir, &args(&given, &[])).unwrap();
        let id = |config: &Config, label: &str| {
            let spec = config.servers.iter().find(|s| s.label.as_str() == label);
            spec.unwrap().identity.clone()
        };
        for label in ["cmd", "target", "var"] {
            assert_eq!(id(&config, label), id(&typed, "cmd"), "{label}");
        }
        for label in ["url", "dir"] {
            assert_eq!(id(&config, label), id(&typed, label), "{label}");
        }
        let var = config.servers.iter().find(|s| s.label.as_str() == "var");
        assert_eq!(var.unwrap().shown, "npx -y ${WORDS}");
        let Target::Command(launch) = &var.unwrap().target else {
            panic!("no command");
        };
        assert_eq!(launch.argv, ["npx", "-y", "x y"], "a value is one word");
    }

    #[test]
    fn a_file_of_the_working_directory_is_taken_over_only_if_it_is_named() {
        let server = |command: &str| {
            format!("{{\"mcpServers\": {{\"docs\": {{\"command\": \"{command}\"}}}}}}")
        };
        let dir = dir(&[
            (".mcp.json", &server("evil")),
            (
                ".vscode/mcp.json",
                "{\"servers\": {\"x\": {\"command\": \"evil\"}}}",
            ),
            ("home/.cursor/mcp.json", &server("mine")),
        ]);
        let machine = machine(dir.path());
        let found = import(&[], &machine).unwrap();
        let rows = found.servers.iter().map(|c| (c.label.as_str(), c.becomes));
        assert_eq!(
            rows.collect::<Vec<_>>(),
            [("docs", "taken"), ("docs", "left out"), ("x", "left out")]
        );
        let why = found.servers[2].reason.as_deref().unwrap();
        assert!(why.contains("only if it is named: "), "{why}");
        let text = found.to_toml();
        assert!(text.contains("mine") && !text.contains("evil"), "{text}");
        assert!(!text.contains(".vscode"), "{text}");
        let named = import(&[".mcp.json".into()], &machine).unwrap();
        assert!(named.to_toml().contains("evil"));
    }

    #[test]
    fn what_is_relative_to_a_file_that_is_taken_over_means_the_same_in_ours() {
        let theirs = "[servers.plain]\ncommand = 'npx'\nargs = ['-y', 'a/b']\n\
                      [servers.program]\ncommand = 'bin/x'\nargs = ['../y']\n\
                      [servers.within]\ncommand = 'bin/x'\ncwd = 'sub'\n\
                      [servers.var]\ncommand = '${HOME}/x'\n\
                      [servers.token]\nurl = 'https://h/'\nbearer-file = 'tok'\n\
                      [servers.skills]\ntarget = 'skills'\n\
                      [servers.line]\ntarget = 'bin/x y'\n";
        let dir = dir(&[("far/c.toml", theirs), ("far/skills/x", "")]);
        let far = dir.path().join("far");
        let found = import(&[far.join("c.toml")], &machine(dir.path())).unwrap();
        let ours: toml::Table = found.to_toml().parse().unwrap();
        let get = |label: &str, key: &str| ours["servers"][label].get(key).cloned();
        let text = |path: PathBuf| Some(toml::Value::String(path.display().to_string()));
        for (label, key, want) in [
            ("plain", "command", text("npx".into())),
            ("plain", "cwd", None),
            ("program", "command", text(far.join("bin/x"))),
            ("program", "cwd", text(far.clone())),
            ("within", "command", text("bin/x".into())),
            ("within", "cwd", text(far.join("sub"))),
            ("var", "command", text("${HOME}/x".into())),
            ("var", "cwd", None),
            ("token", "bearer-file", text(far.join("tok"))),
            ("skills", "target", text(far.join("skills"))),
            ("line", "target", text("bin/x y".into())),
            ("line", "cwd", text(far.clone())),
        ] {
            assert_eq!(get(label, key), want, "{label} {key}");
        }
    }

    #[test]
    fn what_is_taken_over_reads_as_it_stood() {
        let cursor = r#"{"mcpServers": {
            "My Docs": {"command": "npx", "args": ["-y", "d"], "env": {"TOKEN": "${S_TOKEN}", "KEY": "lit"}, "cwd": "sub"},
            "off": {"url": "https://h/mcp", "disabled": true},
            "unset": {"url": "https://h/${NOT_SET}"},
            "old": {"type": "sse", "url": "https://h/sse"}
        }}"#;
        let codex = "[mcp_servers.off]\nurl = \"https://other/mcp\"\n\
                     [mcp_servers.\"a.b\"]\nurl = \"https://h/\"\nbearer_token_env_var = \"T\"\n";
        let dir = dir(&[
            ("home/.cursor/mcp.json", cursor),
            ("home/.codex/config.toml", codex),
            (".mcp.json", "{"),
        ]);
        let machine = machine(dir.path());
        let found = import(&[], &machine).unwrap();
        assert_eq!(found.files.len(), 2);
        let rows = found.servers.iter().map(|c| (c.label.as_str(), c.becomes));
        let mut rows: Vec<_> = rows.collect();
        rows.sort();
        assert_eq!(
            rows,
            [
                ("a.b", "taken"),
                ("my-docs", "taken"),
                ("off", "left out"),
                ("off", "taken, switched off"),
                ("old", "left out"),
                ("unset", "taken"),
            ]
        );
        assert!(
            found.notices.iter().any(|n| n.contains("/.mcp.json:1:")),
            "{:?}",
            found.notices
        );
        let docs = found.servers.iter().find(|c| c.label == "my-docs").unwrap();
        assert_eq!(docs.literal_secrets, ["env.KEY"]);

        let text = found.to_toml();
        assert!(
            text.contains("${S_TOKEN}") && !text.contains("a${HOME}b"),
            "{text}"
        );
        fs::write(dir.path().join("ours.toml"), &text).unwrap();
        let mut args = args(&[], &["ours.toml"]);
        args.configs = vec![dir.path().join("ours.toml")];
        let mut ours = machine.clone();
        ours.vars.insert("T".into(), "t".into());
        let config = load(&args, None, &ours).unwrap();
        let mut labels = labels(&config);
        labels.sort();
        assert_eq!(labels, ["a.b", "my-docs"]);
        let docs = config
            .servers
            .iter()
            .find(|s| s.label.as_str() == "my-docs");
        let Target::Command(launch) = &docs.unwrap().target else {
            panic!("no command");
        };
        assert_eq!(launch.argv, ["npx", "-y", "d"]);
        assert_eq!(launch.cwd, Some(dir.path().join("home/.cursor/sub")));
        assert!(launch.env.contains(&("TOKEN".into(), "a${HOME}b".into())));
        let ab = config.servers.iter().find(|s| s.label.as_str() == "a.b");
        let Target::Http(endpoint) = &ab.unwrap().target else {
            panic!("no URL");
        };
        assert_eq!(endpoint.headers["authorization"], "Bearer t");
        assert_eq!(config.unused.len(), 2, "{:?}", config.unused);
    }
}
