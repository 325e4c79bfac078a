//! A configuration file → the servers that it declares, as they are written: nothing is expanded
//! and nothing is looked up here.
//!
//! ```text
//! JSON   mcpServers   Claude Code, Claude Desktop, Cursor, Windsurf, Gemini
//!        servers      VS Code; both keys in one file are both read
//! TOML   mcp_servers  Codex
//!        servers      ours, with the settings of a mount
//! ```
//!
//! **Invariants:** a file is read as a whole or not at all. What is wrong with one server leaves
//! out that server, with its field, what was found and what was expected. No message holds the
//! value of a field, but the words that a field can be chosen from.

use super::document::{self, Document, Entry, Syntax, Value};
use super::entry::{Draft, Fault, Reach, Switch};
use super::settings::FileSettings;
use super::{BadConfig, Place};
use crate::domain::name::Label;
use crate::domain::text::Quoted;
use std::fmt;
use std::time::Duration;

/// Whose file it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// JSON with `mcpServers` or `servers`.
    Json,
    /// Codex' TOML.
    Codex,
    /// Our own TOML.
    Ours,
}

/// What a file says.
#[derive(Debug)]
pub(super) struct Contents {
    pub(super) declared: Vec<Declared>,
    pub(super) unused: Vec<Unused>,
    pub(super) settings: FileSettings,
    /// What people should know and what changes nothing.
    pub(super) notices: Vec<String>,
}

/// One server as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Declared {
    pub(super) label: Label,
    pub(super) place: Place,
    pub(super) reach: Reach,
    pub(super) switch: Switch,
    pub(super) start_timeout: Option<Duration>,
    pub(super) dynamic: bool,
    pub(super) skills: Vec<String>,
}

/// A server of a file that is not connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unused {
    /// Its name: the label where it has one, else as it is written.
    pub name: String,
    /// Where it stands.
    pub place: Place,
    /// Why.
    pub why: Why,
}

/// Why a server is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// The file says so.
    SwitchedOff,
    /// Something in it cannot be used.
    Fault(Fault),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SwitchedOff => f.write_str("it is switched off there"),
            Self::Fault(fault) => fault.fmt(f),
        }
    }
}

/// Whether a text looks like JSON, for files whose names do not tell.
fn syntax(file: &str, text: &str) -> Syntax {
    let ending = |e: &str| file.to_ascii_lowercase().ends_with(e);
    match text.trim_start().chars().next() {
        _ if ending(".toml") => Syntax::Toml,
        _ if ending(".json") || ending(".jsonc") => Syntax::Json,
        Some('{' | '/') => Syntax::Json,
        _ => Syntax::Toml,
    }
}

/// Reads the text of a file. Whose it is goes by its name and its text, unless that is known.
pub(super) fn read(
    file: &str,
    text: &str,
    dialect: Option<Dialect>,
) -> Result<Contents, BadConfig> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let syntax = match dialect {
        Some(Dialect::Json) => Syntax::Json,
        Some(Dialect::Codex | Dialect::Ours) => Syntax::Toml,
        None => syntax(file, text),
    };
    let document = document::parse(text, syntax).map_err(|fault| BadConfig::Syntax {
        place: Place::new(file, fault.at),
        why: fault.why,
    })?;
    let Document { root, lines } = document;
    let place = |at| Place::new(file, lines.at(at));
    let found = root.kind();
    let Value::Table(entries) = root.value else {
        return Err(shape(place(root.at), "the file", found));
    };
    let has = |key: &str| entries.iter().any(|e| e.key == key);
    let dialect = match (dialect, syntax) {
        (Some(dialect), _) => dialect,
        (None, Syntax::Json) => Dialect::Json,
        (None, Syntax::Toml) if has("mcp_servers") => Dialect::Codex,
        (None, Syntax::Toml) => Dialect::Ours,
    };
    let mut reader = Reader {
        place: &place,
        dialect,
        out: Contents {
            declared: Vec::new(),
            unused: Vec::new(),
            settings: FileSettings::default(),
            notices: Vec::new(),
        },
    };
    for entry in entries {
        let servers = match dialect {
            Dialect::Json => matches!(entry.key.as_str(), "mcpServers" | "servers"),
            Dialect::Codex => entry.key == "mcp_servers",
            Dialect::Ours => entry.key == "servers",
        };
        if servers {
            reader.servers(entry)?;
        } else if dialect == Dialect::Ours {
            reader.setting(entry)?;
        } else if dialect == Dialect::Codex && entry.key == "servers" {
            return Err(BadConfig::Syntax {
                place: place(entry.at),
                why: "servers: found beside mcp_servers, which are Codex'; put ours into a file of their own"
                    .into(),
            });
        }
    }
    if reader.out.declared.is_empty() && reader.out.unused.is_empty() {
        let keys = match dialect {
            Dialect::Json => "mcpServers or servers",
            Dialect::Codex => "[mcp_servers.NAME]",
            Dialect::Ours => "[servers.LABEL]",
        };
        let notice = format!("{file}: there is no server in it; they stand under {keys}");
        reader.out.notices.push(notice);
    }
    Ok(reader.out)
}

fn shape(place: Place, field: &str, found: &str) -> BadConfig {
    let why = format!("{field}: found {found}, expected an object with a server under each name");
    BadConfig::Syntax { place, why }
}

struct Reader<'a> {
    place: &'a dyn Fn(usize) -> Place,
    dialect: Dialect,
    out: Contents,
}

impl Reader<'_> {
    fn setting(&mut self, entry: Entry) -> Result<(), BadConfig> {
        let place = (self.place)(entry.at);
        self.out.settings.read(&entry, &place)
    }

    fn servers(&mut self, servers: Entry) -> Result<(), BadConfig> {
        let (at, found) = (servers.node.at, servers.node.kind());
        let Value::Table(entries) = servers.node.value else {
            return Err(shape((self.place)(at), &servers.key, found));
        };
        for entry in entries {
            self.server(entry);
        }
        Ok(())
    }

    fn server(&mut self, entry: Entry) {
        let place = (self.place)(entry.at);
        let label = match label(&entry.key) {
            Ok(label) => label,
            Err(fault) => {
                let name = Quoted(&entry.key).to_string();
                return self.unused(name, place, Why::Fault(fault));
            }
        };
        if label.as_str() != entry.key {
            let name = Quoted(&entry.key);
            let notice = format!("{place}: server {name} is mounted as {label}");
            self.out.notices.push(notice);
        }
        let name = label.to_string();
        let mut draft = Draft::default();
        let read = draft.read(self.dialect, entry.node);
        if !draft.unknown.is_empty() {
            let keys = draft.unknown.join(", ");
            let notice = format!("{place}: server {label}: not known here and ignored: {keys}");
            self.out.notices.push(notice);
        }
        match read.and_then(|()| draft.reach()) {
            // What is wrong with it is of no interest then.
            Err(_) if draft.switch == Switch::Off => self.unused(name, place, Why::SwitchedOff),
            Ok(reach) => self.out.declared.push(Declared {
                label,
                place,
                reach,
                switch: draft.switch,
                start_timeout: draft.start_timeout,
                dynamic: draft.dynamic,
                skills: draft.skills,
            }),
            Err(fault) => self.unused(name, place, Why::Fault(fault)),
        }
    }

    fn unused(&mut self, name: String, place: Place, why: Why) {
        self.out.unused.push(Unused { name, place, why });
    }
}

/// The label of a server: its name in lower case, with `-` for what no label has, from the first
/// letter or digit on.
fn label(name: &str) -> Result<Label, Fault> {
    let plain = |c: char| match c.to_ascii_lowercase() {
        c if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') => c,
        _ => '-',
    };
    let folded: String = name.chars().map(plain).collect();
    let folded = folded.trim_start_matches(['.', '_', '-']);
    folded.parse().map_err(|_| {
        Fault::new(
            "its name",
            Quoted(name).to_string(),
            "1 to 63 characters with a letter or digit of ASCII among them",
            "give it another name",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::entry::{Raw, Start};
    use super::*;
    use proptest::prelude::*;

    fn json(text: &str) -> Contents {
        read("f.json", text, None).unwrap()
    }

    fn toml(text: &str) -> Contents {
        read("f.toml", text, None).unwrap()
    }

    fn labels(contents: &Contents) -> Vec<&str> {
        let labels = contents.declared.iter().map(|d| d.label.as_str());
        labels.collect()
    }

    /// The one server of a file, as a line: kind, fields and values.
    fn reach(contents: &Contents) -> String {
        let texts = |raw: &[(String, Raw)]| {
            let one = raw.iter().map(|(name, raw)| format!("{name}={}", raw.text));
            one.collect::<Vec<_>>().join(",")
        };
        let start = |start: &Start| {
            let cwd = start.cwd.as_ref().map(|raw| raw.text.as_str());
            format!("[{}] {}", texts(&start.env), cwd.unwrap_or("-"))
        };
        match &contents.declared[0].reach {
            Reach::Command {
                command,
                args,
                start: s,
            } => {
                let args: Vec<&str> = args.iter().map(|raw| raw.text.as_str()).collect();
                format!("{} {} {}", command.text, args.join(" "), start(s))
            }
            Reach::Http { url, headers, .. } => format!("{} [{}]", url.text, texts(headers)),
            Reach::Target { target, start: s } => format!("({}) {}", target.text, start(s)),
        }
    }

    /// Why the one server of a file is not used.
    fn fault(contents: &Contents) -> String {
        assert_eq!(contents.declared.len(), 0);
        contents.unused[0].why.to_string()
    }

    #[test]
    fn c_28_claude_and_cursor() {
        let one = |entry: &str| json(&format!("{{\"mcpServers\": {{\"a\": {entry}}}}}"));
        for (entry, expected) in [
            (r#"{"command": "x"}"#, "x  [] -"),
            (
                r#"{"command": "x", "args": ["-y", "z"], "env": {"N": 1, "S": "${S}"}, "cwd": "/d", "type": "stdio"}"#,
                "x -y z [N=1,S=${S}] /d",
            ),
            (r#"{"type": "http", "url": "http://h"}"#, "http://h []"),
            (
                r#"{"type": "streamable-http", "url": "http://h", "headers": {"Authorization": "Bearer x"}}"#,
                "http://h [Authorization=Bearer x]",
            ),
            (r#"{"serverUrl": "http://h"}"#, "http://h []"),
            (
                r#"{"httpUrl": "http://h", "disabled": false, "enabled": true}"#,
                "http://h []",
            ),
        ] {
            assert_eq!(reach(&one(entry)), expected, "{entry}");
        }
        for (entry, expected) in [
            (r#""x""#, "the entry: found a text, expected an object"),
            (
                r#"{}"#,
                "command: found nothing, expected a command or a URL",
            ),
            (
                r#"{"command": 1}"#,
                "command: found a number, expected a text",
            ),
            (
                r#"{"command": ""}"#,
                "command: found nothing, expected a text",
            ),
            (
                r#"{"command": "x", "args": "y"}"#,
                "args: found a text, expected a list",
            ),
            (
                r#"{"command": "x", "args": ["y", 1]}"#,
                "args.1: found a number, expected a text",
            ),
            (
                r#"{"command": "x", "env": {"A": true}}"#,
                "env.A: found true, expected a text",
            ),
            (
                r#"{"command": "x", "url": "http://h"}"#,
                "url: found command and url together",
            ),
            (
                r#"{"command": "x", "headers": {"A": "b"}}"#,
                "headers: found it beside a command",
            ),
            (
                r#"{"url": "http://h", "env": {"A": "b"}}"#,
                "env: found it beside a URL",
            ),
            (
                r#"{"url": "http://h", "httpUrl": "http://i"}"#,
                "httpUrl: found a second URL beside url",
            ),
            (
                r#"{"type": "sse", "url": "http://h"}"#,
                "type: found \"sse\", a transport that MCP has given up",
            ),
            (
                r#"{"type": "ws", "url": "http://h"}"#,
                "type: found \"ws\", expected \"stdio\" or \"http\"",
            ),
            (
                r#"{"type": "stdio", "url": "http://h"}"#,
                "type: found stdio beside a URL",
            ),
            (
                r#"{"type": "http", "command": "x"}"#,
                "type: found http beside a command",
            ),
            (r#"{"type": "http"}"#, "url: found nothing"),
            (
                r#"{"command": "x", "envFile": "/e"}"#,
                "envFile: found a file of variables",
            ),
            (
                r#"{"command": "x", "disabled": "yes"}"#,
                "disabled: found a text, expected true or false",
            ),
            (
                r#"{"command": 1, "disabled": true}"#,
                "it is switched off there",
            ),
        ] {
            let found = fault(&one(entry));
            assert!(found.starts_with(expected), "{entry}: {found}");
        }
        for off in [r#""disabled": true"#, r#""enabled": false"#] {
            let contents = one(&format!("{{\"command\": \"x\", {off}}}"));
            assert_eq!(contents.declared[0].switch, Switch::Off);
        }
        let odd = one(r#"{"command": "x", "timeout": 1, "oauth": {}, "note": ""}"#);
        assert_eq!(odd.declared.len(), 1);
        assert_eq!(
            odd.notices,
            ["f.json:1:17: server a: not known here and ignored: \"oauth\", \"note\""]
        );
    }

    #[test]
    fn c_28_vs_code_with_comments_and_both_keys() {
        let text = "\u{feff}{
            // note
            \"inputs\": [{\"id\": \"k\", \"type\": \"promptString\",}],
            \"servers\": { /* x */
                \"one\": {\"type\": \"stdio\", \"command\": \"x\", \"args\": [\"// no\", \",]\",],},
                \"two\": {\"type\": \"http\", \"url\": \"http://h/mcp\"},
                \"off\": {\"command\": \"x\", \"disabled\": true},
            },
            \"mcpServers\": {\"three\": {\"command\": \"y\"}},
        }";
        let contents = json(text);
        assert_eq!(labels(&contents), ["one", "two", "off", "three"]);
        assert_eq!(reach(&contents), "x // no ,] [] -");
        assert_eq!(contents.declared[0].place.to_string(), "f.json:5:17");
        assert_eq!(contents.notices, Vec::<String>::new());
    }

    #[test]
    fn c_28_a_file_that_is_none_is_an_error_with_its_place_and_an_empty_one_a_notice() {
        for (file, text, expected) in [
            (
                "a.json",
                "{\"mcpServers\": []}",
                "a.json:1:16: mcpServers: found a list",
            ),
            (
                "a.json",
                "{\n \"servers\": 1}",
                "a.json:2:13: servers: found a number",
            ),
            ("a.json", "[]", "a.json:1:1: the file: found a list"),
            ("a.json", "", "a.json:1:1: the file is empty"),
            ("a.json", "{\"a\": ", "a.json:1:"),
            (
                "a.json",
                "{\"a\": 1, \"a\": 2}",
                "a.json:1:10: the key \"a\" is given twice",
            ),
            (
                "a.json",
                "{\"servers\": {\"a\": {}, \"a\": {}}}",
                "a.json:1:23: the key \"a\" is given twice",
            ),
            (
                "a.toml",
                "servers = []",
                "a.toml:1:1: servers: found a list",
            ),
            ("a.toml", "[servers.a]\n[servers.a]", "a.toml:2:"),
            (
                "a.toml",
                "aproval = 'each'",
                "a.toml:1:1: \"aproval\": not known",
            ),
            (
                "a.toml",
                "approval = 'Each'",
                "a.toml:1:1: approval: found \"Each\", expected",
            ),
            (
                "a.toml",
                "\ntimeout = 0",
                "a.toml:2:1: timeout: found 0, expected",
            ),
            (
                "a.toml",
                "cache-size = -1",
                "a.toml:1:1: cache-size: found -1, expected",
            ),
            (
                "a.toml",
                "[mcp_servers.a]\ncommand = 'x'\n[servers.b]\ntarget = 'x'",
                "a.toml:3:2: servers: found beside mcp_servers",
            ),
            ("a.toml", "model = 'x'", "a.toml:1:1: \"model\": not known"),
        ] {
            let error = read(file, text, None).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
        for text in ["{}", "{\"mcpServers\": {}}", "{\"other\": 1}"] {
            let contents = json(text);
            assert!(
                contents.declared.is_empty() && contents.notices.len() == 1,
                "{text}"
            );
        }
        assert_eq!(toml("").notices.len(), 1);
        // Without an ending that tells.
        assert_eq!(
            labels(&read("f", " {\"servers\": {\"a\": {\"command\": \"x\"}}}", None).unwrap()),
            ["a"]
        );
        assert_eq!(
            labels(&read("f", "[servers.a]\ntarget = 'x'", None).unwrap()),
            ["a"]
        );
    }

    #[test]
    fn codex() {
        let one = |fields: &str| toml(&format!("model = \"m\"\n[mcp_servers.a]\n{fields}"));
        for (fields, expected) in [
            (
                "command = \"x\"\nargs = [\"y\"]\ncwd = \"/d\"\n[mcp_servers.a.env]\nA = \"b\"",
                "x y [A=b] /d",
            ),
            (
                "url = \"http://h\"\nbearer_token_env_var = \"T\"",
                "http://h [Authorization=Bearer ${T}]",
            ),
            (
                "url = \"http://h\"\nhttp_headers = { X = \"1\" }\nenv_http_headers = { Y = \"V\" }",
                "http://h [X=1,Y=${V}]",
            ),
        ] {
            assert_eq!(reach(&one(fields)), expected);
        }
        let full = one("command = \"x\"\nstartup_timeout_sec = 2.5\ntool_timeout_sec = 3\nnew = 1");
        assert_eq!(
            full.declared[0].start_timeout,
            Some(Duration::from_millis(2500))
        );
        assert_eq!(full.notices.len(), 1, "{:?}", full.notices);
        assert!(full.notices[0].contains("ignored: \"new\""));
        assert_eq!(
            one("command = \"x\"\nenabled = false").declared[0].switch,
            Switch::Off
        );
        let secret = fault(&one(
            "url = \"http://h\"\nbearer_token_env_var = \"s3-cret\"",
        ));
        assert!(secret.starts_with("bearer_token_env_var: found a text that is no name"));
        assert!(!secret.contains("s3"), "{secret}");
    }

    #[test]
    fn ours() {
        let contents = toml(
            "hold = \"none\"\n[servers.a]\ntarget = \"npx -y x\"\nenv = { A = \"b\" }\n\
             skills = [\"skill://x/SKILL.md\"]\nallow-dynamic = true\nstart-timeout = 5\n\
             [servers.b]\ntarget = \"https://h/mcp\"\nheaders = { X = \"y\" }\n",
        );
        assert_eq!(labels(&contents), ["a", "b"]);
        assert_eq!(reach(&contents), "(npx -y x) [A=b] -");
        let a = &contents.declared[0];
        assert!(a.dynamic && a.skills == ["skill://x/SKILL.md"]);
        assert_eq!(a.start_timeout, Some(Duration::from_secs(5)));
        assert!(
            matches!(&contents.declared[1].reach, Reach::Http { headers, .. } if headers.len() == 1)
        );
        for (fields, expected) in [
            (
                "target = 'x'\ncommand = 'y'",
                "target: found command and target together",
            ),
            ("target = 'x'\nargs = ['y']", "args: found it beside target"),
            (
                "target = 'x'\nheaders = { A = 'b' }",
                "headers: found it beside a command",
            ),
            (
                "target = 'http://h'\ncwd = '/'",
                "cwd: found it beside a URL",
            ),
            ("comand = 'x'", "\"comand\": found a key that is not known"),
            (
                "command = 'x'\nstart-timeout = 0",
                "start-timeout: found a number",
            ),
        ] {
            let found = fault(&toml(&format!("[servers.a]\n{fields}")));
            assert!(found.starts_with(expected), "{fields}: {found}");
        }
    }

    #[test]
    fn a_name_that_is_no_label_becomes_one() {
        for (name, expected) in [
            ("docs", Some("docs")),
            ("My Server", Some("my-server")),
            ("@acme/Tools", Some("acme-tools")),
            ("Günther", Some("g-nther")),
            ("_x.Y_z", Some("x.y_z")),
            ("", None),
            ("ü", None),
            ("..", None),
        ] {
            let found = label(name).ok();
            assert_eq!(found.as_ref().map(Label::as_str), expected, "{name}");
        }
        assert!(label(&"a".repeat(64)).is_err());
        let contents =
            json(r#"{"mcpServers": {"My Server": {"command": "x"}, "ü": {"command": "x"}}}"#);
        assert_eq!(labels(&contents), ["my-server"]);
        assert!(contents.notices[0].contains("\"My Server\" is mounted as my-server"));
        assert_eq!(contents.unused.len(), 1);
    }

    proptest! {
        #[test]
        fn no_file_makes_the_reader_panic(
            key in "(mcpServers|servers|mcp_servers|x)",
            names in proptest::collection::vec("[a-zA-Z./é -]{0,4}", 0..3),
            field in "(command|args|env|url|type|headers|disabled|enabled|cwd|envFile|target|skills)",
            value in prop_oneof![
                Just("null".to_owned()), Just("\"x\"".to_owned()), Just("[1, \"a\"]".to_owned()),
                Just("{\"a\": \"b\"}".to_owned()), Just("true".to_owned()), Just("-1.5e9".to_owned()),
                "\"[${}a-zA]{0,8}\"",
            ],
        ) {
            let servers: Vec<String> = names
                .iter()
                .map(|name| format!("\"{name}\": {{\"{field}\": {value}}}"))
                .collect();
            let text = format!("{{\"{key}\": {{{}}}}}", servers.join(","));
            let _ = read("f.json", &text, None);
            let servers = names.iter().map(|name| format!("[{key}.\"{name}\"]\n{field} = {value}\n"));
            let text: String = servers.collect();
            for dialect in [Dialect::Codex, Dialect::Ours] {
                let _ = read("f.toml", &text, Some(dialect));
            }
        }
    }
}
