//! What the user says of servers and of a mount, on the command line and in files.
//!
//! ```text
//! document   text → a tree with places; JSON with comments, TOML
//! file       tree → the servers it declares, as they are written
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

mod document;
mod expand;
mod file;
mod import;
mod server;
mod settings;

pub use file::{Dialect, Fault, Unused, Why};
pub use import::{Candidate, Import, Known, import, places};
pub use server::{BadServer, ServerSpec};
pub use settings::{Settings, Shown};

use crate::cli::ServerArgs;
use crate::domain::name::Label;
use etcetera::BaseStrategy;
use file::{Contents, Switch};
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
        Ok(from.join(self.from_home(text)))
    }

    /// A path with the user's home for `~`.
    fn from_home(&self, text: String) -> PathBuf {
        match (text.strip_prefix("~/"), &self.home) {
            (Some(below), Some(home)) => home.join(below),
            _ => text.into(),
        }
    }

    /// The real path of a directory, if there is one.
    fn find_dir(&self, path: &Path) -> Option<PathBuf> {
        let path = self.dir.join(path);
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
