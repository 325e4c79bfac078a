//! What the user gives a server over HTTP to be let in: `--header`, `--bearer-env`, `--bearer-file`.
//!
//! **Invariant:** no error says more of a value than where it was given.

use super::ServerSpec;
use crate::source::{Endpoint, Secret, Target, Token};
use http::{HeaderName, HeaderValue, header};
use std::path::Path;

/// The values of the options, as typed.
#[derive(Clone, Copy)]
pub struct Given<'a> {
    /// `LABEL=NAME: VALUE`.
    pub headers: &'a [String],
    /// `LABEL=VARIABLE`.
    pub bearer_env: &'a [String],
    /// `LABEL=FILE`.
    pub bearer_file: &'a [String],
    /// Where relative names of files are looked for.
    pub dir: &'a Path,
}

impl std::fmt::Debug for Given<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Given").finish_non_exhaustive()
    }
}

/// Why credentials cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadCredentials {
    /// No label, or nothing after it.
    #[error("{option}: write {form}")]
    Form {
        /// The option.
        option: &'static str,
        /// How it is written.
        form: &'static str,
    },
    /// No server has the label.
    #[error("{option} {label:?}: no --server has this label")]
    NoServer {
        /// The option.
        option: &'static str,
        /// What was given as a label.
        label: String,
    },
    /// The server is a process.
    #[error(
        "{option} {label}: this server is no URL; a command is given a secret by its environment"
    )]
    NoUrl {
        /// The option.
        option: &'static str,
        /// The label.
        label: String,
    },
    /// The header is none.
    #[error("--header {label}: the name or the value is none that HTTP allows")]
    Header {
        /// The label.
        label: String,
    },
    /// The header is not the user's.
    #[error("--header {label}: {name} is set by the protocol itself")]
    Reserved {
        /// The label.
        label: String,
        /// The header.
        name: String,
    },
    /// The variable is not there.
    #[error("--bearer-env {label}: the environment has no usable variable {name:?}")]
    NoVariable {
        /// The label.
        label: String,
        /// The variable.
        name: String,
    },
    /// There is more than one thing to show at the door.
    #[error(
        "{label}: credentials are given twice; one of user and password in the URL, a header Authorization, --bearer-env and --bearer-file"
    )]
    Twice {
        /// The label.
        label: String,
    },
}

/// Gives the servers what was given for them. `env` looks up a variable.
///
/// # Errors
/// What cannot be used, or not for this server. Some servers may have theirs by then.
pub fn give(
    specs: &mut [ServerSpec],
    given: Given<'_>,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<(), BadCredentials> {
    for text in given.headers {
        let option = "--header";
        let form = "LABEL='NAME: VALUE'";
        let (label, text) = split(text, option, form)?;
        let endpoint = endpoint(specs, option, label)?;
        let (name, value) = text
            .split_once(':')
            .ok_or(BadCredentials::Form { option, form })?;
        let (name, value) = header(label, name.trim(), value.trim())?;
        endpoint.headers.append(name, value);
    }
    for text in given.bearer_env {
        let option = "--bearer-env";
        let (label, name) = split(text, option, "LABEL=VARIABLE")?;
        let endpoint = endpoint(specs, option, label)?;
        let secret = env(name).and_then(|value| Secret::token(&value));
        let secret = secret.ok_or_else(|| BadCredentials::NoVariable {
            label: label.into(),
            name: name.into(),
        })?;
        let variable = name.to_owned();
        set(endpoint, label, Token::Variable { variable, secret })?;
    }
    for text in given.bearer_file {
        let option = "--bearer-file";
        let (label, file) = split(text, option, "LABEL=FILE")?;
        let endpoint = endpoint(specs, option, label)?;
        set(endpoint, label, Token::File(given.dir.join(file)))?;
    }
    // What a file says of itself was looked at there.
    let all = [given.headers, given.bearer_env, given.bearer_file].concat();
    let touched = |spec: &ServerSpec| {
        let label = Some(spec.label.as_str());
        all.iter().any(|text| text.split('=').next() == label)
    };
    for spec in specs.iter().filter(|spec| touched(spec)) {
        if let Target::Http(endpoint) = &spec.target
            && endpoint.keys() > 1
        {
            return Err(BadCredentials::Twice {
                label: spec.label.to_string(),
            });
        }
    }
    Ok(())
}

/// Reads a header that a user gives; the value will not be shown.
///
/// # Errors
/// It is no header, or one that is not the user's.
pub fn header(
    label: &str,
    name: &str,
    value: &str,
) -> Result<(HeaderName, HeaderValue), BadCredentials> {
    let bad = || BadCredentials::Header {
        label: label.into(),
    };
    let name: HeaderName = name.parse().map_err(|_| bad())?;
    let mut value: HeaderValue = value.parse().map_err(|_| bad())?;
    if is_reserved(&name) {
        return Err(BadCredentials::Reserved {
            label: label.into(),
            name: name.to_string(),
        });
    }
    value.set_sensitive(true);
    Ok((name, value))
}

/// Whether the protocol sets a header itself, or would be broken by it.
pub(super) fn is_reserved(name: &HeaderName) -> bool {
    let reserved = [
        header::ACCEPT,
        header::CONNECTION,
        header::CONTENT_LENGTH,
        header::CONTENT_TYPE,
        header::HOST,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
    ];
    let name_text = name.as_str();
    reserved.contains(name) || name_text.starts_with("mcp-") || name_text == "last-event-id"
}

fn split<'a>(
    text: &'a str,
    option: &'static str,
    form: &'static str,
) -> Result<(&'a str, &'a str), BadCredentials> {
    let parts = text.split_once('=').filter(|(_, rest)| !rest.is_empty());
    parts.ok_or(BadCredentials::Form { option, form })
}

fn endpoint<'a>(
    specs: &'a mut [ServerSpec],
    option: &'static str,
    label: &str,
) -> Result<&'a mut Endpoint, BadCredentials> {
    let spec = specs.iter_mut().find(|s| s.label.as_str() == label);
    let spec = spec.ok_or_else(|| BadCredentials::NoServer {
        option,
        label: label.into(),
    })?;
    match &mut spec.target {
        Target::Http(endpoint) => Ok(endpoint),
        Target::Command(_) => Err(BadCredentials::NoUrl {
            option,
            label: label.into(),
        }),
    }
}

fn set(endpoint: &mut Endpoint, label: &str, token: Token) -> Result<(), BadCredentials> {
    match endpoint.token.replace(token) {
        None => Ok(()),
        Some(_) => Err(BadCredentials::Twice {
            label: label.into(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(
        server: &str,
        headers: &[&str],
        vars: &[&str],
        files: &[&str],
    ) -> Result<Endpoint, BadCredentials> {
        let mut specs = vec![ServerSpec::parse(server, "/bin/m", &|_| None).unwrap()];
        let owned = |texts: &[&str]| texts.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>();
        let (headers, bearer_env, bearer_file) = (owned(headers), owned(vars), owned(files));
        let given = Given {
            headers: &headers,
            bearer_env: &bearer_env,
            bearer_file: &bearer_file,
            dir: Path::new("/"),
        };
        let env = |name: &str| match name {
            "TOKEN" => Some("SECRET".to_owned()),
            "BAD" => Some("SEC\nRET".to_owned()),
            _ => None,
        };
        give(&mut specs, given, &env)?;
        match specs.remove(0).target {
            Target::Http(endpoint) => Ok(endpoint),
            Target::Command(_) => panic!("a command"),
        }
    }

    #[test]
    fn c31_credentials_are_of_one_server_and_never_shown() {
        const URL: &str = "a=https://h/mcp";
        let one = given(
            URL,
            &["a=X-Key: SECRET", "a=Authorization: Bearer SECRET"],
            &[],
            &[],
        );
        let one = one.unwrap();
        assert_eq!(one.headers["x-key"], "SECRET");
        let two = given(URL, &["a=X-Key:SECRET"], &["a=TOKEN"], &[]).unwrap();
        let three = given(URL, &[], &[], &["a=/t"]).unwrap();
        assert_eq!(three.token, Some(Token::File("/t".into())));
        for endpoint in [one, two] {
            let shown = format!("{endpoint:?}");
            assert!(!shown.contains("SECRET"), "{shown}");
        }
        let mut refused = 0;
        for (server, headers, vars, files) in [
            (URL, &["b=X: SECRET"][..], &[][..], &[][..]),
            (URL, &["X: SECRET"], &[], &[]),
            (URL, &["a=SECRET"], &[], &[]),
            (URL, &["a=X Y: SECRET"], &[], &[]),
            (URL, &["a=X: SEC\nRET"], &[], &[]),
            (URL, &["a=Accept: SECRET"], &[], &[]),
            (URL, &["a=Mcp-Session-Id: SECRET"], &[], &[]),
            (URL, &[], &["a=NONE"], &[]),
            (URL, &[], &["a=BAD"], &[]),
            (URL, &[], &["a="], &[]),
            (URL, &[], &["b=TOKEN"], &[]),
            (URL, &[], &["a=TOKEN", "a=TOKEN"], &[]),
            (URL, &[], &["a=TOKEN"], &["a=/t"]),
            (URL, &["a=Authorization: SECRET"], &["a=TOKEN"], &[]),
            ("a=https://u:SECRET@h/mcp", &[], &["a=TOKEN"], &[]),
            ("a=cat", &["a=X: SECRET"], &[], &[]),
            ("a=cat", &[], &[], &["a=/t"]),
        ] {
            let error = given(server, headers, vars, files).unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(
                !shown.contains("SECRET") && !shown.contains("RET"),
                "{shown}"
            );
            refused += 1;
        }
        assert_eq!(refused, 17);
    }
}
