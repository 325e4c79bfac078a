//! How one server is reached, and who it is: of `--server LABEL=TARGET`, or of a file.
//!
//! **Invariant:** the same command line, directory or URL is the same server, wherever it is
//! declared.

use super::credentials::is_reserved;
use super::entry::{Fault, Raw, Reach, Start, is_url};
use super::expand::{BadPlaceholder, has_placeholder};
use super::file::Declared;
use super::{Machine, Origin, Place};
use crate::domain::digest::Digest;
use crate::domain::name::Label;
use crate::source::{Endpoint, Launch, Target, Token, Written};
use http::{HeaderMap, HeaderName, HeaderValue};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// One server to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerSpec {
    /// The user's name for it.
    pub label: Label,
    /// How to reach it.
    pub target: Target,
    /// The target for people: no user info of a URL, and no word of a command line that looks
    /// like a secret.
    pub shown: String,
    /// Who the server is, with its label: 16 hex digits over how it is reached (HR-14). The
    /// environment, headers and the directory it starts in are not part of it, so that a rotated
    /// token changes nothing.
    pub identity: String,
    /// Where it is declared.
    pub origin: Origin,
    /// How long it may take to start, if its file says so.
    pub start_timeout: Option<Duration>,
}

/// Why a `--server` cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadServer {
    /// No `=`.
    #[error(
        "--server {0:?}: write LABEL=TARGET, such as docs='npx -y some-server' or docs=https://example.org/mcp"
    )]
    NoLabel(String),
    /// The label is none.
    #[error("--server {text:?}: {source}")]
    Label {
        /// What was given in its place.
        text: String,
        /// Why.
        source: crate::domain::name::BadLabel,
    },
    /// The target is empty or its quotes do not match.
    #[error("--server {label}: the command is empty or its quotes do not match")]
    Command {
        /// The label.
        label: Label,
    },
    /// The URL is none.
    #[error("--server {label}: {url:?} is not a URL: {why}")]
    Url {
        /// The label.
        label: Label,
        /// What was given, without user info.
        url: String,
        /// Why.
        why: String,
    },
}

/// What a target that may be a directory is on this machine: its real path, if it is one.
pub(super) type FindDir<'a> = &'a dyn Fn(&Path) -> Option<PathBuf>;

impl ServerSpec {
    /// Reads `LABEL=TARGET`. The target is a URL, a directory, or a command line that is split
    /// as a shell would and run without one. A directory is served by `program` itself.
    pub fn parse(text: &str, program: &str, find_dir: FindDir) -> Result<Self, BadServer> {
        let (label, target) = text
            .split_once('=')
            .ok_or_else(|| BadServer::NoLabel(as_far_as_safe(text)))?;
        // No label has `://`, so it stays none.
        let label = as_far_as_safe(label);
        let label: Label = label.parse().map_err(|source| BadServer::Label {
            text: label.clone(),
            source,
        })?;
        if is_url(target) {
            let Url {
                url,
                shown,
                identity,
            } = Url::parse(target).map_err(|bad| BadServer::Url {
                label: label.clone(),
                url: bad.shown,
                why: bad.why,
            })?;
            let endpoint = Endpoint {
                url,
                ..Endpoint::default()
            };
            return Ok(Self {
                label,
                target: Target::Http(endpoint),
                shown,
                identity,
                origin: Origin::CommandLine,
                start_timeout: None,
            });
        }
        let (argv, shown, identity) = match find_dir(Path::new(target)) {
            Some(dir) => of_dir(&dir, program),
            None => {
                let argv = shlex::split(target).filter(|argv| !argv.is_empty());
                let Some(argv) = argv else {
                    return Err(BadServer::Command { label });
                };
                let shown = without_secrets(&argv).unwrap_or_else(|| target.into());
                let identity = of_argv(&argv);
                (argv, shown, identity)
            }
        };
        Ok(Self {
            label,
            target: Target::Command(Launch {
                argv,
                ..Launch::default()
            }),
            shown,
            identity,
            origin: Origin::CommandLine,
            start_timeout: None,
        })
    }

    /// The server that a file declares, with all its variables expanded.
    pub(super) fn of_declared(declared: &Declared, machine: &Machine) -> Result<Self, Fault> {
        let shown = declared.shown();
        let (target, shown, identity) = match &declared.reach {
            Reach::Http {
                url,
                headers,
                bearer_file,
            } => {
                let (mut endpoint, identity) = endpoint(url, headers, machine)?;
                if let Some(raw) = bearer_file {
                    let file = machine.below_home(machine.fill(raw)?);
                    endpoint.token = Some(Token::File(declared.place.dir().join(file)));
                    if endpoint.keys() > 1 {
                        let found = "other credentials beside it";
                        return Err(Fault::new(&*raw.field, found, "one of them", "remove one"));
                    }
                }
                (Target::Http(endpoint), shown, identity)
            }
            Reach::Command {
                command,
                args,
                start,
            } => {
                let argv = std::iter::once(command).chain(args);
                let argv = argv.map(|raw| machine.fill(raw));
                let argv = argv.collect::<Result<Vec<_>, _>>()?;
                let identity = of_argv(&argv);
                let program = Some(command.text.clone());
                let launch = launch(argv, program, start, &declared.place, machine)?;
                (Target::Command(launch), shown, identity)
            }
            Reach::Target { target, start } => {
                let dir = machine.path(&target.text, &declared.place.dir()).ok();
                let dir = dir.and_then(|dir| machine.find_dir(&dir));
                let (argv, program, shown, identity) = match dir {
                    Some(dir) => {
                        let (argv, real, identity) = of_dir(&dir, &machine.program);
                        match has_placeholder(&target.text) {
                            true => (argv, None, shown, identity),
                            false => (argv, None, real, identity),
                        }
                    }
                    None => {
                        let words = words(target)?;
                        let argv = words.iter().map(|raw| machine.fill(raw));
                        let argv = argv.collect::<Result<Vec<_>, _>>()?;
                        let program = words.into_iter().next().map(|raw| raw.text);
                        let identity = of_argv(&argv);
                        (argv, program, shown, identity)
                    }
                };
                let launch = launch(argv, program, start, &declared.place, machine)?;
                (Target::Command(launch), shown, identity)
            }
        };
        Ok(Self {
            label: declared.label.clone(),
            target,
            shown,
            identity,
            origin: Origin::File(declared.place.clone()),
            start_timeout: declared.start_timeout,
        })
    }
}

/// The words of a command line. They are split before variables are expanded: a value is one word
/// whatever is in it.
fn words(target: &Raw) -> Result<Vec<Raw>, Fault> {
    let words = shlex::split(&target.text).filter(|argv| !argv.is_empty());
    let words = words.ok_or_else(|| {
        Fault::new(
            &*target.field,
            "a command that is empty or whose quotes do not match",
            "a command line, a directory or a URL",
            "correct it",
        )
    })?;
    let raw = |text| Raw {
        field: target.field.clone(),
        text,
    };
    Ok(words.into_iter().map(raw).collect())
}

impl Declared {
    /// How the server is reached, for people: as it is written, without what looks like a secret.
    pub(super) fn shown(&self) -> String {
        match &self.reach {
            Reach::Http { url, .. } if has_placeholder(&url.text) => url_as_written(&url.text),
            Reach::Http { url, .. } => match Url::parse(&url.text) {
                Ok(url) => url.shown,
                Err(bad) => bad.shown,
            },
            Reach::Command { command, args, .. } => {
                let words = std::iter::once(command).chain(args);
                let words: Vec<String> = words.map(|raw| raw.text.clone()).collect();
                without_secrets(&words).unwrap_or_else(|| joined(&words))
            }
            Reach::Target { target, .. } => {
                let words = shlex::split(&target.text).unwrap_or_default();
                without_secrets(&words).unwrap_or_else(|| target.text.clone())
            }
        }
    }

    /// The fields with values that look like secrets and stand in the file itself.
    pub(super) fn literal_secrets(&self) -> Vec<String> {
        let named = |(name, raw): &(String, Raw)| {
            let bare = !has_placeholder(&raw.text) && !raw.text.is_empty();
            (bare && is_secret(name)).then(|| raw.field.clone())
        };
        match &self.reach {
            Reach::Http { url, headers, .. } => {
                let hidden = Url::parse(&url.text).is_ok_and(|u| u.shown != u.url);
                let url = hidden.then(|| url.field.clone());
                url.into_iter()
                    .chain(headers.iter().filter_map(named))
                    .collect()
            }
            Reach::Command {
                command,
                args,
                start,
            } => {
                let words = std::iter::once(command).chain(args);
                let words: Vec<String> = words.map(|raw| raw.text.clone()).collect();
                let args = without_secrets(&words).map(|_| "args".to_owned());
                args.into_iter()
                    .chain(start.env.iter().filter_map(named))
                    .collect()
            }
            Reach::Target { target, start } => {
                let words = shlex::split(&target.text).unwrap_or_default();
                let target = without_secrets(&words).map(|_| target.field.clone());
                target
                    .into_iter()
                    .chain(start.env.iter().filter_map(named))
                    .collect()
            }
        }
    }
}

impl Machine {
    /// The value of a field, with its variables expanded.
    fn fill(&self, raw: &Raw) -> Result<String, Fault> {
        let text = self.expand(&raw.text).map_err(|bad| {
            let next = match bad {
                BadPlaceholder::Unset(_) | BadPlaceholder::NotText(_) => {
                    "set the variable where mount-skills is started, or give a default"
                }
                BadPlaceholder::Unsupported(_) | BadPlaceholder::Unclosed(_) => {
                    "write the value in its place, or a variable of the environment"
                }
            };
            let expected = "text, ${VAR}, ${VAR:-default} or ${env:VAR}";
            Fault::new(&*raw.field, bad.to_string(), expected, next)
        })?;
        match text.contains('\0') {
            true => Err(Fault::new(
                &*raw.field,
                "a NUL character",
                "a text without one",
                "remove it",
            )),
            false => Ok(text),
        }
    }
}

/// How a program is started that a file declares.
fn launch(
    argv: Vec<String>,
    program: Option<String>,
    start: &Start,
    place: &Place,
    machine: &Machine,
) -> Result<Launch, Fault> {
    let one = |(name, raw): &(String, Raw)| {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(Fault::new(
                &*raw.field,
                "a name that no variable can have",
                "a name without =",
                "correct it",
            ));
        }
        Ok((name.clone(), machine.fill(raw)?))
    };
    let env = start.env.iter().map(one).collect::<Result<_, _>>()?;
    let cwd = match &start.cwd {
        Some(raw) => {
            let dir = machine.below_home(machine.fill(raw)?);
            Some(machine.dir.join(place.dir()).join(dir))
        }
        None => None,
    };
    Ok(Launch {
        argv,
        env,
        cwd,
        written: Written {
            program,
            cwd: start.cwd.as_ref().map(|raw| raw.text.clone()),
        },
    })
}

fn endpoint(
    raw: &Raw,
    headers: &[(String, Raw)],
    machine: &Machine,
) -> Result<(Endpoint, String), Fault> {
    let text = machine.fill(raw)?;
    let Url { url, identity, .. } = Url::parse(&text).map_err(|bad| {
        Fault::new(
            &*raw.field,
            format!("no URL ({})", bad.why),
            "a URL such as https://example.org/mcp",
            "correct it",
        )
    })?;
    if !is_url(&url) {
        return Err(Fault::new(
            &*raw.field,
            "a URL of another scheme",
            "http:// or https://",
            "correct it",
        ));
    }
    let mut map = HeaderMap::new();
    for (name, raw) in headers {
        let bad = |found: &str, expected: &str, next: &str| {
            Fault::new(&*raw.field, found, expected, next)
        };
        let name: HeaderName = name.parse().map_err(|_| {
            bad(
                "a name that no header can have",
                "letters, digits and -",
                "correct it",
            )
        })?;
        if is_reserved(&name) {
            let found = "a header that belongs to the protocol";
            return Err(bad(found, "other headers", "remove it"));
        }
        let mut value = HeaderValue::try_from(machine.fill(raw)?).map_err(|_| {
            bad(
                "a value that no header can have",
                "one line",
                "look for line breaks and control characters in it",
            )
        })?;
        value.set_sensitive(true);
        if map.insert(name, value).is_some() {
            let found = "a second value for this header";
            return Err(bad(found, "each header once", "remove one"));
        }
    }
    let endpoint = Endpoint {
        url,
        headers: map,
        token: None,
    };
    Ok((endpoint, identity))
}

/// A URL with variables for people: no user info and no query. Where it is not clear what is user
/// info, no more than the scheme.
fn url_as_written(text: &str) -> String {
    let text = text.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = text.split_once("://") else {
        return "…".into();
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit('@').next().unwrap_or_default();
    match path.contains('@') {
        true => format!("{scheme}://…"),
        false => format!("{scheme}://{host}{path}"),
    }
}

/// A text that is not what it should be, up to the scheme of a URL: what follows may be a secret.
fn as_far_as_safe(text: &str) -> String {
    match text.split_once("://") {
        Some((before, _)) => format!("{before}://…"),
        None => text.to_owned(),
    }
}

/// A URL and what goes with it.
struct Url {
    url: String,
    shown: String,
    identity: String,
}

/// Why a text is no URL, and as much of it as may be seen.
struct BadUrl {
    shown: String,
    why: String,
}

impl Url {
    fn parse(text: &str) -> Result<Self, BadUrl> {
        let mut parsed = reqwest::Url::parse(text).map_err(|e| {
            // The text may hold a password: show no more than the scheme.
            let scheme = text.split("://").next().unwrap_or_default();
            BadUrl {
                shown: format!("{scheme}://…"),
                why: e.to_string(),
            }
        })?;
        let url = parsed.to_string();
        without_user_info(&mut parsed);
        let identity = identity(&["http", parsed.as_str()]);
        // A query may hold a token.
        parsed.set_query(None);
        Ok(Self {
            url,
            shown: parsed.to_string(),
            identity,
        })
    }
}

/// The command that serves a directory, how it is shown, and its identity.
fn of_dir(dir: &Path, program: &str) -> (Vec<String>, String, String) {
    let dir = dir.display().to_string();
    let identity = identity(&["directory", &dir]);
    let argv = vec![program.to_owned(), "serve".into(), "--".into(), dir.clone()];
    (argv, dir, identity)
}

/// The identity of a command.
fn of_argv(argv: &[String]) -> String {
    let mut key = vec!["command"];
    key.extend(argv.iter().map(String::as_str));
    identity(&key)
}

fn joined(words: &[String]) -> String {
    shlex::try_join(words.iter().map(String::as_str)).unwrap_or_else(|_| HIDDEN.into())
}

fn without_user_info(url: &mut reqwest::Url) {
    // Neither fails for a URL with a host, and others have none.
    let _ = url.set_username("");
    let _ = url.set_password(None);
}

/// What stands for a secret.
const HIDDEN: &str = "…";
/// What is in the name of a value that is a secret.
const SECRETS: [&str; 9] = [
    "auth",
    "bearer",
    "cookie",
    "credential",
    "key",
    "passw",
    "pwd",
    "secret",
    "token",
];

/// Whether the name of a value says that it is a secret.
fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRETS.iter().any(|s| name.contains(s))
}

/// A command line for people, if something in it must not be seen: the variables that `env` sets,
/// and the values of options and headers whose names say that they are secret. A secret that
/// nothing announces is not hidden.
fn without_secrets(argv: &[String]) -> Option<String> {
    let env = argv
        .first()
        .is_some_and(|a| a.rsplit('/').next() == Some("env"));
    let mut before: Option<&str> = None;
    let words = argv.iter().map(|word| {
        let option = before.replace(word);
        let option = option.filter(|o| o.starts_with('-') && !o.contains(['=', ':']));
        let named = word.split_once(['=', ':']);
        match named {
            Some((name, _)) if is_secret(name) || env && word.contains('=') => {
                let sign = word.get(name.len()..=name.len()).unwrap_or_default();
                format!("{name}{sign}{HIDDEN}")
            }
            None if !word.starts_with('-') && option.is_some_and(is_secret) => HIDDEN.to_owned(),
            _ if word.contains("://") && word.contains('@') => match word.parse() {
                Ok(mut url) => {
                    without_user_info(&mut url);
                    url.into()
                }
                Err(_) => HIDDEN.to_owned(),
            },
            _ => word.clone(),
        }
    });
    let words: Vec<String> = words.collect();
    if words == argv {
        return None;
    }
    shlex::try_join(words.iter().map(String::as_str)).ok()
}

fn identity(parts: &[&str]) -> String {
    let text = serde_json::to_vec(parts).unwrap_or_default();
    Digest::of(&text).hex().chars().take(16).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ServerSpec, BadServer> {
        let find = |p: &Path| (p == Path::new("my/dir")).then(|| PathBuf::from("/real/my/dir"));
        ServerSpec::parse(text, "/bin/mount-skills", &find)
    }

    fn argv(text: &str) -> Vec<String> {
        match parse(text).unwrap().target {
            Target::Command(launch) => launch.argv,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn targets() {
        assert_eq!(argv("a=npx -y 'x y' --z=1"), ["npx", "-y", "x y", "--z=1"]);
        assert_eq!(
            argv("a=my/dir"),
            ["/bin/mount-skills", "serve", "--", "/real/my/dir"]
        );
        assert!(matches!(
            parse("a=https://h/mcp").unwrap().target,
            Target::Http(_)
        ));
        for bad in [
            "docs",
            "Docs=x",
            "=x",
            "a=",
            "a='x",
            "a=https://",
            "a=http://[::1",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn hr_14_identity_is_how_the_server_is_reached_and_shows_no_secret() {
        let id = |text: &str| parse(text).unwrap().identity;
        assert_eq!(id("a=x y"), id("b=x  y"));
        assert_ne!(id("a=x y"), id("a=x 'y z'"));
        assert_ne!(id("a=my/dir"), id("a=my/dir2"));
        assert_eq!(id("a=https://u:p@h/mcp"), id("a=https://h/mcp"));
        assert_ne!(id("a=https://h/mcp"), id("a=https://h/mcp2"));
        let shown = parse("a=https://u:secret@h/mcp?token=secret")
            .unwrap()
            .shown;
        assert_eq!(shown, "https://h/mcp");
        for bad in [
            "a=https://u:secret@[h/mcp",
            "a='env X=secret",
            "env X=secret y",
            "https://u:secret@h/mcp",
            "https://u:secret@h/mcp?token=x",
            "docs:https://u:secret@h/",
        ] {
            let error = parse(bad).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn secrets_of_a_command_line_are_not_shown() {
        for (given, shown) in [
            ("npx -y  'x y' --z=1", "npx -y  'x y' --z=1"),
            ("env A=s B=s x --c=d", "env 'A=…' 'B=…' x '--c=…'"),
            ("/usr/bin/env A=s x", "/usr/bin/env 'A=…' x"),
            ("x --api-key s y", "x --api-key '…' y"),
            ("x --token=s y", "x '--token=…' y"),
            ("x --token --v s", "x --token --v s"),
            (
                "x --header 'Authorization: Bearer s'",
                "x --header 'Authorization:…'",
            ),
            ("x MY_PASSWORD=s", "x 'MY_PASSWORD=…'"),
            ("x --to https://u:s@h/p", "x --to https://h/p"),
            ("x https://s@[", "x '…'"),
        ] {
            assert_eq!(parse(&format!("a={given}")).unwrap().shown, shown);
        }
    }
}
