//! What the user says of a server: `LABEL=TARGET`.

pub mod credentials;

use crate::domain::digest::Digest;
use crate::domain::name::Label;
use crate::source::{Endpoint, Launch, Target};
use std::path::{Path, PathBuf};

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
    /// environment and headers are not part of it, so that a rotated token changes nothing.
    pub identity: String,
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
    /// Two servers with one label.
    #[error("the label {0} is given twice; each server needs its own")]
    Twice(Label),
}

/// What a target that may be a directory is on this machine: its real path, if it is one.
pub type FindDir<'a> = &'a dyn Fn(&Path) -> Option<PathBuf>;

impl ServerSpec {
    /// Reads `LABEL=TARGET`. The target is a URL, a directory, or a command line that is split
    /// as a shell would and run without one. A directory is served by `program` itself.
    pub fn parse(text: &str, program: &str, find_dir: FindDir) -> Result<Self, BadServer> {
        let (label, target) = text
            .split_once('=')
            .ok_or_else(|| BadServer::NoLabel(text.into()))?;
        let label: Label = label.parse().map_err(|source| BadServer::Label {
            text: label.into(),
            source,
        })?;
        if target.starts_with("http://") || target.starts_with("https://") {
            return Self::of_url(label, target);
        }
        if let Some(dir) = find_dir(Path::new(target)) {
            let dir = dir.display().to_string();
            let argv = vec![program.to_owned(), "serve".into(), "--".into(), dir.clone()];
            let identity = identity(&["directory", &dir]);
            return Ok(Self {
                label,
                target: command(argv),
                shown: dir,
                identity,
            });
        }
        let argv = shlex::split(target).filter(|argv| !argv.is_empty());
        let Some(argv) = argv else {
            return Err(BadServer::Command { label });
        };
        let mut key = vec!["command"];
        key.extend(argv.iter().map(String::as_str));
        let identity = identity(&key);
        let shown = without_secrets(&argv).unwrap_or_else(|| target.into());
        Ok(Self {
            label,
            target: command(argv),
            shown,
            identity,
        })
    }

    fn of_url(label: Label, url: &str) -> Result<Self, BadServer> {
        let mut parsed = match reqwest::Url::parse(url) {
            Ok(parsed) => parsed,
            Err(e) => {
                // The text may hold a password: show no more than the scheme.
                let url = url.split("://").next().unwrap_or_default();
                return Err(BadServer::Url {
                    label,
                    url: format!("{url}://…"),
                    why: e.to_string(),
                });
            }
        };
        let target = Target::Http(Endpoint {
            url: parsed.to_string(),
            ..Endpoint::default()
        });
        without_user_info(&mut parsed);
        let identity = identity(&["http", parsed.as_str()]);
        // A query may hold a token.
        parsed.set_query(None);
        Ok(Self {
            label,
            target,
            shown: parsed.to_string(),
            identity,
        })
    }
}

fn command(argv: Vec<String>) -> Target {
    Target::Command(Launch {
        argv,
        ..Launch::default()
    })
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

/// A command line for people, if something in it must not be seen: the variables that `env` sets,
/// and the values of options and headers whose names say that they are secret. A secret that
/// nothing announces is not hidden.
fn without_secrets(argv: &[String]) -> Option<String> {
    let secret = |name: &str| {
        let name = name.to_ascii_lowercase();
        SECRETS.iter().any(|s| name.contains(s))
    };
    let env = argv
        .first()
        .is_some_and(|a| a.rsplit('/').next() == Some("env"));
    let mut before: Option<&str> = None;
    let words = argv.iter().map(|word| {
        let option = before.replace(word);
        let option = option.filter(|o| o.starts_with('-') && !o.contains(['=', ':']));
        let named = word.split_once(['=', ':']);
        match named {
            Some((name, _)) if secret(name) || env && word.contains('=') => {
                let sign = word.get(name.len()..=name.len()).unwrap_or_default();
                format!("{name}{sign}{HIDDEN}")
            }
            None if !word.starts_with('-') && option.is_some_and(secret) => HIDDEN.to_owned(),
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

/// Reads all `--server` values; labels are unique.
pub fn parse_servers(
    texts: &[String],
    program: &str,
    find_dir: FindDir,
) -> Result<Vec<ServerSpec>, BadServer> {
    let mut specs: Vec<ServerSpec> = Vec::new();
    for text in texts {
        let spec = ServerSpec::parse(text, program, find_dir)?;
        if specs.iter().any(|s| s.label == spec.label) {
            return Err(BadServer::Twice(spec.label));
        }
        specs.push(spec);
    }
    Ok(specs)
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
    fn hr_13_a_label_is_given_once() {
        let twice = ["a=x".to_owned(), "a=y".to_owned()];
        assert!(matches!(
            parse_servers(&twice, "p", &|_| None),
            Err(BadServer::Twice(_))
        ));
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
