//! `${VAR}` in the values of a configuration.
//!
//! `${VAR}`, `${VAR:-default}` and VS Code's `${env:VAR}` stand for a variable of the daemon's
//! environment; the default is for one that is unset or empty, as in a shell. Everything else
//! that starts with `${` is refused, a `$` without a brace is itself.
//!
//! **Invariants:** one pass; what a value or a default holds is never expanded again. A text that
//! cannot be expanded gives an error, never itself: a placeholder is not sent to anybody. An error
//! names a variable and no value.

use std::ffi::OsString;

/// Why a text cannot be expanded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadPlaceholder {
    /// The variable has no value.
    #[error("${{{0}}}, which is not set")]
    Unset(String),
    /// The value of the variable is no text.
    #[error("${{{0}}}, whose value is not UTF-8")]
    NotText(String),
    /// Nothing that is known here.
    #[error("{0}, which is not supported")]
    Unsupported(String),
    /// No brace closes it.
    #[error("{0} without a closing brace, which is not supported")]
    Unclosed(String),
}

/// What VS Code and Cursor have in the place of a variable, beside what has a colon.
const THEIRS: [&str; 6] = [
    "cwd",
    "pathSeparator",
    "userHome",
    "workspaceFolder",
    "workspaceFolderBasename",
    "workspaceRoot",
];

/// Whether a name may be that of a variable.
pub(super) fn is_variable(name: &str) -> bool {
    let mut bytes = name.bytes();
    let first = bytes.next();
    first.is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Whether anything in a text is to be expanded.
pub(super) fn has_placeholder(text: &str) -> bool {
    text.contains("${")
}

/// The text with its variables replaced by their values.
pub(super) fn expand(
    text: &str,
    lookup: &dyn Fn(&str) -> Option<OsString>,
) -> Result<String, BadPlaceholder> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        out.push_str(before);
        let Some((inner, behind)) = after.split_once('}') else {
            return Err(BadPlaceholder::Unclosed(shown(after, "")));
        };
        rest = behind;
        let (name, default) = match inner.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (inner.strip_prefix("env:").unwrap_or(inner), None),
        };
        // `${A:-${B}}` would end at the first brace, with half of B as the default.
        let nested = default.is_some_and(has_placeholder);
        if !is_variable(name) || THEIRS.contains(&name) || nested {
            return Err(BadPlaceholder::Unsupported(shown(inner, "}")));
        }
        match (lookup(name), default) {
            (None, Some(default)) => out.push_str(default),
            (Some(value), Some(default)) if value.is_empty() => out.push_str(default),
            (Some(value), _) => match value.into_string() {
                Ok(value) => out.push_str(&value),
                Err(_) => return Err(BadPlaceholder::NotText(name.into())),
            },
            (None, None) => return Err(BadPlaceholder::Unset(name.into())),
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// A placeholder for a message: its name and, of VS Code's kinds, what follows the colon. What
/// comes after that may be a secret.
fn shown(inner: &str, end: &str) -> String {
    let plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let head: String = inner.chars().take_while(plain).take(40).collect();
    let kind = ["input", "command", "config", "env"].contains(&head.as_str());
    let tail = match inner.get(head.len()..).and_then(|t| t.strip_prefix(':')) {
        Some(tail) if kind => {
            let tail: String = tail.chars().take_while(plain).take(40).collect();
            format!(":{tail}")
        }
        _ => String::new(),
    };
    let cut = match head.len() + tail.len() < inner.len() {
        true => "…",
        false => "",
    };
    format!("${{{head}{tail}{cut}{end}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::ffi::OsStringExt;

    fn value(name: &str) -> Option<OsString> {
        match name {
            "S_TOKEN" => Some("a${HOME}b".into()),
            "HOME" => Some("/home/ada".into()),
            "EMPTY" => Some("".into()),
            "ODD" => Some(OsString::from_vec(vec![0xff])),
            _ => None,
        }
    }

    #[test]
    fn c_27_variables_are_expanded_once() {
        for (text, expected) in [
            ("", ""),
            ("plain $HOME $ {HOME} }", "plain $HOME $ {HOME} }"),
            ("Bearer ${S_TOKEN}", "Bearer a${HOME}b"),
            ("${env:HOME}/x", "/home/ada/x"),
            ("http://h:${PORT:-8123}/mcp", "http://h:8123/mcp"),
            ("${EMPTY:-x}${EMPTY}", "x"),
            ("${PORT:-}", ""),
            ("${HOME}${HOME:-y}", "/home/ada/home/ada"),
            ("$${HOME}", "$/home/ada"),
        ] {
            assert_eq!(expand(text, &value).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn c_27_what_cannot_be_expanded_is_an_error_that_names_it() {
        for (text, expected) in [
            ("${MISSING}", "${MISSING}, which is not set"),
            ("${env:MISSING}", "${MISSING}, which is not set"),
            ("${ODD}", "${ODD}, whose value is not UTF-8"),
            (
                "${BAD",
                "${BAD without a closing brace, which is not supported",
            ),
            (
                "x${BAD secret",
                "${BAD… without a closing brace, which is not supported",
            ),
            (
                "${input:api-key}",
                "${input:api-key}, which is not supported",
            ),
            (
                "${workspaceFolder}/x",
                "${workspaceFolder}, which is not supported",
            ),
            ("${}", "${}, which is not supported"),
            ("${A:-${B}}", "${A…}, which is not supported"),
            ("${A:?secret}", "${A…}, which is not supported"),
            ("${1A}", "${1A}, which is not supported"),
        ] {
            let error = expand(text, &value).unwrap_err().to_string();
            assert_eq!(error, expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn c_27_no_value_is_expanded_again(
            before in "[a-z$}]{0,5}",
            held in "[a-z$]{0,4}(\\$\\{[A-Z]{1,3}(:-x)?\\}){0,3}[{$]{0,3}",
            after in "[a-z}]{0,5}",
        ) {
            prop_assume!(!before.ends_with('$'));
            let lookup = |name: &str| match name {
                "V" => Some(OsString::from(&held)),
                _ => None,
            };
            let text = format!("{before}${{V}}{after}");
            prop_assert_eq!(expand(&text, &lookup), Ok(format!("{before}{held}{after}")));
            if !held.is_empty() {
                let text = format!("{before}${{V:-d}}{after}");
                prop_assert_eq!(expand(&text, &lookup), Ok(format!("{before}{held}{after}")));
            }
        }

        #[test]
        fn c_27_no_text_makes_it_panic(text in "[${}:\\-aAé ]{0,30}") {
            let _ = expand(&text, &|name| (name == "A").then(|| "v".into()));
        }
    }
}
