//! Configuration files: what is read of them, what is left out, and that nothing of them leaks.

use crate::rig::{Out, Rig, ok, skill, until};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

fn scene() -> Value {
    json!({"skills": [skill("s", json!({"a.txt": "a\n"}))]})
}

/// Writes a file below the rig's directory; its path.
fn file(rig: &Rig, name: &str, text: &str) -> PathBuf {
    let path = rig.dir().join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, text).unwrap();
    path
}

fn script(rig: &Rig, name: &str, text: &str, mode: u32) -> PathBuf {
    let path = file(rig, name, text);
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    path
}

/// The daemon with these options, and variables in its environment.
fn mount(rig: &mut Rig, flags: &[&str], vars: &[(&str, &str)]) {
    let mut command = rig.daemon_command(&[], flags);
    command.envs(vars.iter().copied());
    rig.mount_with(command);
}

/// What is refused before anything is mounted.
#[track_caller]
fn refused(out: Out, parts: &[&str]) {
    assert_eq!(out.code, Some(2), "{out:?}");
    for part in parts {
        assert!(out.err.contains(part), "{part}: {out:?}");
    }
}

/// All that is said of a mount where secrets could be.
fn said(rig: &Rig) -> String {
    let files = "cat $M/README.md $M/.mount-skills/catalog.json $M/.mount-skills/*/*";
    [
        rig.words(),
        rig.ask(&["status"]),
        rig.ask(&["status", "--json"]),
        rig.ask(&["list"]),
        rig.sh(files).good(),
    ]
    .concat()
}

/// The reason why a server of the configuration is not used.
#[track_caller]
fn unused(rig: &Rig, label: &str) -> String {
    let status = rig.status();
    let unused = status["unused"].as_array().cloned().unwrap_or_default();
    let one = unused.iter().find(|u| u["label"] == label);
    let one = one.unwrap_or_else(|| panic!("{label} is used: {unused:?}"));
    one["reason"].as_str().unwrap().to_owned()
}

#[test]
fn c_26_env_adds_to_the_environment_and_the_path_that_was_searched_is_named() {
    let mut rig = Rig::new();
    rig.scene("lab", scene());
    let start = format!(
        "#!/bin/sh\n[ -n \"$PATH\" ] && [ -n \"$HOME\" ] && [ \"$X\" = 1 ] || exit 9\n\
         pwd > \"$HOME/where\"\nexec {}\n",
        rig.scripted("lab")
    );
    script(&rig, "tools/my-srv", &start, 0o755);
    script(&rig, "tools/plain", "#!/bin/sh\n", 0o644);
    fs::create_dir(rig.dir().join("work")).unwrap();
    let config = json!({"mcpServers": {
        "lab": {"command": "my-srv", "env": {"X": "1"}, "cwd": "work"},
        "none": {"command": "no-such-cmd"},
        "plain": {"command": "plain"},
        "path": {"command": "my-srv", "env": {"PATH": "/nope"}},
        "there": {"command": "./my-srv", "cwd": "tools", "env": {"X": "2"}},
        "cwd": {"command": "my-srv", "cwd": "${GONE}/x", "env": {"X": "1"}},
    }});
    let config = file(&rig, "c.json", &config.to_string());
    let tools = rig.dir().join("tools").display().to_string();
    let path = format!("{tools}:{}", std::env::var("PATH").unwrap());
    let gone = ("GONE", "/no-such-place");
    let flags = ["--config", config.to_str().unwrap()];
    mount(&mut rig, &flags, &[("PATH", &path), gone]);
    rig.ready("lab");
    assert_eq!(rig.cat("lab/s/a.txt"), ok("a\n"));
    let work = rig.dir().join("work").canonicalize().unwrap();
    let place = fs::read_to_string(rig.dir().join("home/where")).unwrap();
    assert_eq!(place.trim_end(), work.display().to_string());
    let searched = format!("PATH is {tools}:");
    for (label, parts) in [
        ("none", vec!["\"no-such-cmd\" not found", &*searched]),
        ("plain", vec!["\"plain\" is not executable", &searched]),
        (
            "path",
            vec!["\"my-srv\" not found", "PATH is /nope (from env)"],
        ),
        ("there", vec!["exit status: 9"]),
        (
            "cwd",
            vec!["\"${GONE}/x\"", "does not exist", "correct cwd"],
        ),
    ] {
        until("its state", 15.0, || rig.server(label)["state"] == "down");
        let reason = rig.server(label)["reason"].as_str().unwrap().to_owned();
        for part in parts {
            assert!(reason.contains(part), "{label}: {part}: {reason}");
        }
        assert_eq!(rig.ls(label), Err("EHOSTDOWN"));
    }
    assert!(!said(&rig).contains("no-such-place"));
}

#[test]
fn c_27_variables_are_expanded_once_and_what_is_missing_is_sent_to_nobody() {
    let mut rig = Rig::new();
    rig.scene("web", scene());
    rig.scene("lab", scene());
    let url = rig.scripted_http("web");
    let port = url.split(':').nth(2).unwrap().split('/').next().unwrap();
    let home = script(
        &rig,
        "say",
        &format!(
            "#!/bin/sh\nprintf %s \"$1\" > \"$HOME/said\"\nexec {}\n",
            rig.scripted("lab")
        ),
        0o755,
    );
    let config = json!({"mcpServers": {
        "web": {
            "url": format!("http://127.0.0.1:${{PORT:-{port}}}/mcp?k=${{S_KEY}}"),
            "headers": {"Authorization": "Bearer ${S_TOKEN}", "X-Plain": "litera1", "X-Env": "${env:S_KEY}"},
        },
        "lab": {"command": home, "args": ["$HOME", "${S_KEY}"], "env": {"OTHER": "envva1"}},
        "missing": {"url": url, "headers": {"X-Missing": "${MISSING}"}},
        "env": {"command": home, "env": {"A": "${MISSING}"}},
        "bad": {"command": "${BAD"},
        "input": {"command": home, "args": ["${input:key}"]},
        "folder": {"command": home, "args": ["${workspaceFolder}"]},
    }});
    let config = file(&rig, "c.json", &config.to_string());
    let vars = [("S_TOKEN", "a${HOME}b"), ("S_KEY", "hunter2")];
    let flags = ["--config", config.to_str().unwrap(), "--timeout", "2"];
    mount(&mut rig, &flags, &vars);
    rig.ready("web");
    rig.ready("lab");
    assert_eq!(rig.cat("web/s/a.txt"), ok("a\n"));
    assert_eq!(rig.cat("lab/s/a.txt"), ok("a\n"));
    let told = fs::read_to_string(rig.dir().join("home/said")).unwrap();
    assert_eq!(told, "$HOME");
    let requests = rig.log("web", "request");
    assert!(requests.len() >= 3);
    for request in &requests {
        let header = |name: &str| {
            let headers = request["headers"].as_object().unwrap();
            let found = headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
            found.map(|(_, v)| v.as_str().unwrap().to_owned())
        };
        assert_eq!(header("authorization").as_deref(), Some("Bearer a${HOME}b"));
        assert_eq!(header("x-plain").as_deref(), Some("litera1"));
        assert_eq!(header("x-env").as_deref(), Some("hunter2"));
        assert_eq!(header("x-missing"), None);
        assert!(!request.to_string().contains("MISSING"), "{request}");
    }
    for (label, field, found) in [
        (
            "missing",
            "headers.X-Missing",
            "${MISSING}, which is not set",
        ),
        ("env", "env.A", "${MISSING}, which is not set"),
        ("bad", "command", "not supported"),
        ("input", "args.0", "${input:key}, which is not supported"),
        (
            "folder",
            "args.0",
            "${workspaceFolder}, which is not supported",
        ),
    ] {
        let reason = unused(&rig, label);
        assert!(reason.starts_with(&format!("{field}: found ")), "{reason}");
        assert!(reason.contains(found), "{reason}");
        let warning = format!("server {label} is not used: {field}");
        assert!(rig.words().contains(&warning), "{}", rig.words());
    }
    let line = rig.ask(&["status", "missing"]);
    assert!(
        line.starts_with("missing  not used: headers.X-Missing"),
        "{line}"
    );
    let mut show = rig.command(&rig.bin);
    show.args(["config", "show", "--config", config.to_str().unwrap()]);
    let shown = crate::rig::run(show.envs(vars)).good();
    assert!(
        shown.contains("headers authorization=…") && shown.contains("env OTHER=…"),
        "{shown}"
    );
    for secret in ["a${HOME}b", "hunter2", "litera1", "envva1"] {
        let said = said(&rig);
        assert!(!said.contains(secret), "{secret}: {said}");
        assert!(!shown.contains(secret), "{secret}: {shown}");
    }
}

#[test]
fn c_28_a_file_with_comments_is_read_and_one_that_is_none_is_refused_with_its_place() {
    let mut rig = Rig::new();
    rig.scene("one", scene());
    rig.scene("two", scene());
    let url = rig.scripted_http("two");
    let words = shlex::split(&rig.scripted("one")).unwrap();
    let (command, args) = words.split_first().unwrap();
    let text = format!(
        "\u{feff}{{\n  // note\n  \"inputs\": [{{\"id\": \"key\", \"type\": \"promptString\"}},],\n  \
         \"servers\": {{ /* x */\n    \"one\": {{\"type\": \"stdio\", \"command\": {}, \"args\": {},\n      \
         \"env\": {{\"NOTE\": \"// no , ] }}\",}},}},\n    \"Two\": {{\"type\": \"http\", \"url\": \"{url}\"}},\n    \
         \"off\": {{\"command\": \"no-such-cmd\", \"disabled\": true}},\n  }},\n}}\n",
        json!(command),
        json!(args),
    );
    let good = file(&rig, "c.json", &text);
    let flags = ["--config", good.to_str().unwrap()];
    mount(&mut rig, &flags, &[]);
    rig.ready("one");
    rig.ready("two");
    assert_eq!(rig.cat("one/s/a.txt"), ok("a\n"));
    assert_eq!(rig.cat("two/s/a.txt"), ok("a\n"));
    assert_eq!(rig.ls("off"), Err("ENOENT"));
    assert_eq!(unused(&rig, "off"), "it is switched off there");
    assert!(rig.words().contains("\"Two\" is mounted as two"));
    rig.stop();

    let mount = rig.mount_point().display().to_string();
    let with = |text: &str, more: &[&str]| {
        let path = file(&rig, "bad.json", text).display().to_string();
        let mut args = vec!["--config", &path];
        args.extend(more);
        args.push(&mount);
        rig.cli(&args)
    };
    let one = "{\"mcpServers\": {\"a\": {\"command\": \"x\"}}}";
    for (text, more, parts) in [
        (
            "{\"mcpServers\": []}",
            vec![],
            vec!["bad.json:1:16", "found a list"],
        ),
        ("{\n\"a\" 1}", vec![], vec!["bad.json:2:"]),
        (
            "{\"mcpServers\": {\"a\": {},\n \"a\": {}}}",
            vec![],
            vec!["bad.json:2:2", "\"a\" is given twice"],
        ),
        (
            "{\"mcpServers\": {\"a\": {\"command\": \"x\"}}, \"servers\": {\"a\": {\"command\": \"x\"}}}",
            vec![],
            vec!["label a is given twice", "bad.json:1:17", "bad.json:1:5"],
        ),
        (
            one,
            vec!["--server", "a=x"],
            vec!["label a is given twice", "--server", "bad.json:1:17"],
        ),
        (
            one,
            vec!["--config", "/no/such.json"],
            vec!["/no/such.json"],
        ),
        (
            one,
            vec!["--allow-dynamic", "b"],
            vec!["--allow-dynamic \"b\"", "no server"],
        ),
        ("\u{1b}[31m", vec![], vec!["bad.json:1:1"]),
    ] {
        let out = with(text, &more);
        assert!(!out.err.contains('\u{1b}'), "{out:?}");
        refused(out, &parts);
    }
}

#[test]
fn c_28_an_empty_file_is_an_empty_mount_and_says_so() {
    let mut rig = Rig::new();
    let config = file(&rig, "c.json", "{}");
    let flags = ["--config", config.to_str().unwrap()];
    mount(&mut rig, &flags, &[]);
    until("ready", 10.0, || rig.words().contains("ready: "));
    assert!(
        rig.words().contains("c.json: there is no server in it"),
        "{}",
        rig.words()
    );
    let names: Vec<String> = rig.ls("").unwrap();
    assert_eq!(names, [".mount-skills", "README.md"]);
    assert_eq!(rig.status()["servers"], json!([]));
}

#[test]
fn a_team_file_with_a_broken_and_a_disabled_server_mounts_with_one_command() {
    let mut rig = Rig::new();
    rig.scene("files", scene());
    rig.scene("web", scene());
    let url = rig.scripted_http("web");
    let words = shlex::split(&rig.scripted("files")).unwrap();
    let (command, args) = words.split_first().unwrap();
    let config = json!({"mcpServers": {
        "files": {"command": command, "args": args},
        "web": {"type": "http", "url": url, "headers": {"Authorization": "Bearer ${TOKEN}"}},
        "broken": {"comand": "x"},
        "off": {"command": "x", "disabled": true},
    }});
    file(&rig, "proj/.mcp.json", &config.to_string());
    let mut command = rig.daemon_command(&[], &["--config", ".mcp.json"]);
    command
        .current_dir(rig.dir().join("proj"))
        .env("TOKEN", "t0ken");
    rig.mount_with(command);
    rig.ready("files");
    rig.ready("web");
    assert_eq!(rig.cat("files/s/a.txt"), ok("a\n"));
    assert_eq!(rig.cat("web/s/a.txt"), ok("a\n"));
    let sent = rig.log("web", "request")[0]["headers"].to_string();
    assert!(sent.contains("Bearer t0ken"), "{sent}");
    assert!(!said(&rig).contains("t0ken"));
    let status = rig.ask(&["status"]);
    assert!(
        status.contains("broken  not used: command: found nothing"),
        "{status}"
    );
    assert!(
        status.contains("off  not used: it is switched off there"),
        "{status}"
    );
    assert_eq!(rig.status()["unused"].as_array().unwrap().len(), 2);
    // The same servers, typed, are the same servers.
    let before = ["files", "web"].map(|l| rig.server(l)["identity"].clone());
    let target = rig.scripted("files");
    rig.remount(&[("files", &target), ("web", &url)], &["--timeout", "2"]);
    let now = ["files", "web"].map(|l| rig.server(l)["identity"].clone());
    assert_eq!(before, now);
}

#[test]
fn codex_headers_come_from_variables() {
    let mut rig = Rig::new();
    rig.scene("web", scene());
    let url = rig.scripted_http("web");
    let config = format!(
        "model = \"m\"\n[mcp_servers.web]\nurl = \"{url}\"\nbearer_token_env_var = \"TOKEN\"\n\
         env_http_headers = {{ X-Key = \"KEY\" }}\nhttp_headers = {{ X-Plain = \"p1\" }}\n\
         startup_timeout_sec = 20\nunheard_of = true\n\
         [mcp_servers.unset]\nurl = \"{url}\"\nbearer_token_env_var = \"UNSET\"\n"
    );
    let config = file(&rig, "config.toml", &config);
    let flags = ["--config", config.to_str().unwrap()];
    mount(&mut rig, &flags, &[("TOKEN", "t0ken"), ("KEY", "k3y")]);
    rig.ready("web");
    let sent = rig.log("web", "request")[0]["headers"].to_string();
    for part in ["Bearer t0ken", "k3y", "p1"] {
        assert!(sent.contains(part), "{sent}");
    }
    let reason = unused(&rig, "unset");
    assert!(
        reason.starts_with("bearer_token_env_var: found ${UNSET}"),
        "{reason}"
    );
    assert!(
        rig.words().contains("ignored: \"unheard_of\""),
        "{}",
        rig.words()
    );
    assert!(!said(&rig).contains("t0ken"));
}

#[test]
fn our_own_file_mounts_without_an_option_and_options_win_over_it() {
    let mut rig = Rig::new();
    rig.scene("lab", scene());
    let target = rig.scripted("lab");
    let mount_point = rig.mount_point().display().to_string();
    let text = format!(
        "mountpoint = {mount_point:?}\napproval = \"each\"\nhold = \"none\"\ncache-dir = \"{}\"\n\
         [servers.lab]\ntarget = {target:?}\n[servers.dir]\ntarget = \"{}\"\n",
        rig.dir().join("kept").display(),
        crate::rig::project().join("examples/skills").display(),
    );
    file(&rig, "home/.config/mount-skills/config.toml", &text);
    let plain = rig.command(&rig.bin);
    rig.mount_with(plain);
    rig.ready("lab");
    rig.ready("dir");
    let status = rig.status();
    assert_eq!(
        (&status["approval"], &status["hold"]),
        (&json!("each"), &json!("none"))
    );
    assert_eq!(rig.cat("lab/s/a.txt"), Err("EACCES"));
    assert!(rig.dir().join("kept/mount-skills/v1").is_dir());
    rig.stop();

    let mut command = rig.command(&rig.bin);
    command.args(["--approval", "server"]);
    rig.mount_with(command);
    rig.ready("lab");
    assert_eq!(rig.cat("lab/s/a.txt"), ok("a\n"));
    rig.stop();

    // With a server on the command line the file is not read.
    rig.mount(&[("lab", &target)], &[]);
    rig.ready("lab");
    assert_eq!(rig.status()["servers"].as_array().unwrap().len(), 1);
    assert_eq!(rig.cat("lab/s/a.txt"), ok("a\n"));
    rig.stop();

    refused(rig.cli(&["statsu"]), &["no command \"statsu\"", "./statsu"]);
    let out = rig
        .cli(&["run", "--", "sh", "-c", "ls $MOUNT_SKILLS"])
        .good();
    assert_eq!(
        out.split_whitespace().collect::<Vec<_>>(),
        ["README.md", "dir", "lab"]
    );
}

#[test]
fn config_show_says_what_a_mount_would_use() {
    let rig = Rig::new();
    let text = "{\"mcpServers\": {\"a\": {\"command\": \"x\", \"args\": [\"--token\", \"s3cret\"]},\n\
                \"b\": {\"url\": \"https://u:s3cret@h/mcp?k=s3cret\"},\n\
                \"c\": {\"type\": \"sse\", \"url\": \"http://h\"}}}";
    let config = file(&rig, "c.json", text).display().to_string();
    let args = ["config", "show", "--config", &config, "--timeout", "3"];
    let shown = rig.cli(&args).good();
    for part in [
        "a  x --token '…'",
        "b  https://h/mcp\n",
        "c.json:1:17",
        "c  not used: type: found \"sse\"",
        "timeout = 3 s  (command line)",
        "hold = release  (default)",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let json = rig.cli(&[&args[..], &["--json"]].concat()).good();
    assert!(
        !shown.contains("s3cret") && !json.contains("s3cret"),
        "{shown} {json}"
    );
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["servers"].as_array().unwrap().len(), 2);
    assert_eq!(json["unused"][0]["label"], "c");
    assert_eq!(json["servers"][1]["target"], "https://h/mcp");
    let none = rig.cli(&["config", "show"]).good();
    assert!(none.contains("there is no configuration"), "{none}");
    let out = rig.cli(&["config", "show", "--config", "/no/such"]);
    refused(out, &["/no/such"]);
}

#[test]
fn config_import_takes_over_what_is_there_and_keeps_placeholders() {
    let mut rig = Rig::new();
    rig.scene("lab", scene());
    let words = shlex::split(&rig.scripted("lab")).unwrap();
    let (command, args) = words.split_first().unwrap();
    let home = json!({"numStartups": 3, "mcpServers": {
        "lab": {"command": command, "args": args, "env": {"A_TOKEN": "${TOKEN}", "B_KEY": "s3cret"}},
        "old": {"type": "sse", "url": "https://h/sse"},
    }});
    file(&rig, "home/.claude.json", &home.to_string());
    file(
        &rig,
        "home/.cursor/mcp.json",
        "{\"mcpServers\": {\"lab\": {\"command\": \"other\"}}}",
    );
    file(&rig, "home/.config/Code/User/mcp.json", "{\"servers\": [");
    let import = |args: &[&str]| {
        let mut all = vec!["config", "import"];
        all.extend(args);
        let mut command = rig.command(&rig.bin);
        crate::rig::run(command.args(all).env("TOKEN", "fr0menv"))
    };
    let shown = import(&[]).good();
    for part in [
        "lab  taken  ",
        "home/.claude.json:1:",
        "copied as it stands, may be a secret: env.B_KEY",
        "lab  left out  other",
        "because another server of this label is in ",
        "old  left out",
        "note: VS Code: ",
        "nothing is written",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let own = rig.dir().join("home/.config/mount-skills/config.toml");
    assert!(!own.exists());
    let json: Value = serde_json::from_str(&import(&["--json"]).good()).unwrap();
    assert_eq!(json["servers"].as_array().unwrap().len(), 3);
    assert_eq!(json["written"], Value::Null);

    let written = import(&["--write"]).good();
    assert!(written.contains("wrote 1 server to "), "{written}");
    let text = fs::read_to_string(&own).unwrap();
    assert!(
        text.contains("${TOKEN}") && !text.contains("fr0menv"),
        "{text}"
    );
    assert_eq!(
        fs::metadata(&own).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let again = import(&["--write"]);
    assert_eq!(again.code, Some(1), "{again:?}");
    assert!(again.err.contains("--force"), "{again:?}");
    assert_eq!(import(&["--write", "--force"]).code, Some(0));
    let left = fs::read_dir(own.parent().unwrap()).unwrap().count();
    assert_eq!(left, 1);
    for text in [shown, written] {
        assert!(
            !text.contains("s3cret") && !text.contains("fr0menv"),
            "{text}"
        );
    }
    let mut command = rig.command(&rig.bin);
    command.arg(rig.mount_point()).env("TOKEN", "fr0menv");
    rig.mount_with(command);
    rig.ready("lab");
    assert_eq!(rig.cat("lab/s/a.txt"), ok("a\n"));
    assert!(!said(&rig).contains("s3cret"));
}
