//! docs/TROUBLESHOOTING.md, section by section: what it shows is what is seen and said, and what
//! it advises helps.
//!
//! A section has blocks of text. A line that starts with `$ ` is run in a shell, with the mount at
//! `~/skills`; a line below one is what it says, and one with nothing below it succeeds. Lines above
//! all commands are in the daemon's log. `…` stands for anything.
//! The test of a section brings the trouble about, runs its first block, then all others, and
//! looks whether it is over.

use crate::credentials::{OAuth, authorities};
use crate::rig::{
    FuseForAll, Out, Rig, is_root, kill, mounts_at, ok, processes_with, project, skill, skill_md,
    until,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;

const FORM: &str = "docs/pdf/form.md";

fn document() -> String {
    fs::read_to_string(project().join("docs/TROUBLESHOOTING.md")).unwrap()
}

/// The sections: titles and the blocks below them.
fn sections() -> Vec<(String, Vec<Vec<String>>)> {
    let mut sections: Vec<(String, Vec<Vec<String>>)> = Vec::new();
    let mut open = false;
    for line in document().lines() {
        if let Some(title) = line.strip_prefix("## ") {
            sections.push((title.to_owned(), Vec::new()));
        } else if line.starts_with("```") {
            open = !open;
            if open && let Some((_, blocks)) = sections.last_mut() {
                blocks.push(Vec::new());
            }
        } else if open && let Some((_, blocks)) = sections.last_mut() {
            blocks.last_mut().unwrap().push(line.to_owned());
        }
    }
    assert!(!open);
    sections
}

/// Whether a text holds the parts between the `…` of a line, in this order, in one line.
fn holds(text: &str, line: &str) -> bool {
    text.lines().any(|have| {
        let mut rest = have;
        line.split('…').all(|part| match rest.find(part) {
            Some(at) => {
                rest = &rest[at + part.len()..];
                true
            }
            None => false,
        })
    })
}

/// One section with the rig its trouble is in.
struct Case {
    title: &'static str,
    blocks: std::vec::IntoIter<Vec<String>>,
    rig: Rig,
}

impl Case {
    #[track_caller]
    fn new(title: &'static str) -> Self {
        let found = sections().into_iter().find(|(t, _)| t == title);
        let blocks = found.unwrap_or_else(|| panic!("no section {title:?}")).1;
        assert!(!blocks.is_empty(), "{title}");
        let rig = Rig::new();
        std::os::unix::fs::symlink(rig.mount_point(), rig.dir().join("home/skills")).unwrap();
        Self {
            title,
            blocks: blocks.into_iter(),
            rig,
        }
    }

    /// Starts with this scene and these flags.
    #[track_caller]
    fn up(&mut self, scene: Value, flags: &[&str]) {
        self.rig.scene("docs", scene);
        self.rig.up(&["docs"], flags);
    }

    /// Runs the next block and looks for what it shows.
    #[track_caller]
    fn block(&mut self) {
        let block = self.blocks.next();
        let block = block.unwrap_or_else(|| panic!("{}: one block more", self.title));
        let mut said = self.rig.words();
        for (n, line) in block.iter().enumerate() {
            match line.strip_prefix("$ ") {
                Some(line) => {
                    let Out { out, err, code } = self.shell(line);
                    let shown = block.get(n + 1).is_some_and(|next| !next.starts_with("$ "));
                    assert!(shown || code == Some(0), "{}: {line}: {err}", self.title);
                    said = format!("{}\n{err}", String::from_utf8_lossy(&out));
                }
                None => assert!(
                    holds(&said, line),
                    "{}: not {line:?} but:\n{said}",
                    self.title
                ),
            }
        }
    }

    fn shell(&self, line: &str) -> Out {
        let bin = self.rig.bin.display();
        self.rig.sh(&format!(
            "PATH=$PWD/bin:$PATH; mount-skills() {{ {bin} \"$@\"; }}; {line}"
        ))
    }

    /// The trouble is over when a file reads as it should, soon.
    #[track_caller]
    fn reads(mut self, path: &str, content: &str) {
        assert!(
            self.blocks.next().is_none(),
            "{}: a block is left",
            self.title
        );
        until(self.title, 20.0, || self.rig.cat(path) == ok(content));
    }

    #[track_caller]
    fn done(mut self) {
        assert!(
            self.blocks.next().is_none(),
            "{}: a block is left",
            self.title
        );
    }
}

fn pdf(form: &str) -> Value {
    json!({"skills": [skill("pdf", json!({"form.md": form, "more.md": "more\n", "fill.sh": "#!/bin/sh\necho filled\n"}))]})
}

fn ruled(rule: Value) -> Value {
    let mut scene = pdf("form\n");
    scene["rules"] = json!([rule]);
    scene
}

fn read_of_form(mut rule: Value) -> Value {
    rule["method"] = "resources/read".into();
    rule["uri"] = "skill://pdf/form.md".into();
    ruled(rule)
}

#[test]
fn nothing_is_mounted_or_a_server_is_missing() {
    let mut case = Case::new("Nothing is mounted, or a server is missing");
    case.block();
    case.done();
}

#[test]
fn host_is_down() {
    let mut case = Case::new("Host is down");
    case.rig.scene(
        "docs",
        json!({"start": {"exit": 1, "stderr": "no licence\n"}}),
    );
    let target = case.rig.scripted("docs");
    case.rig.mount(&[("docs", &target)], &[]);
    until("its end", 10.0, || {
        case.rig.server("docs")["state"] == "down"
    });
    case.block();
    case.rig.scene("docs", pdf("form\n"));
    case.reads(FORM, "form\n");
}

#[test]
fn the_command_is_not_found() {
    let mut case = Case::new("The command is not found");
    case.rig.mount(&[("docs", "npxx -y server")], &[]);
    until("its end", 10.0, || {
        case.rig.server("docs")["state"] == "down"
    });
    case.block();
    case.done();
}

/// Writes the configuration file with a server that needs a variable.
fn mcp_json(case: &Case) -> String {
    let config = r#"{"mcpServers": {"docs": {"url": "http://127.0.0.1:9/mcp", "headers": {"Authorization": "Bearer ${DOCS_TOKEN}"}}}}"#;
    let path = case.rig.dir().join("mcp.json");
    fs::write(&path, config).unwrap();
    path.display().to_string()
}

#[test]
fn a_server_of_the_configuration_file_is_not_there() {
    let mut case = Case::new("A server of the configuration file is not there");
    let config = mcp_json(&case);
    case.rig.mount(&[], &["--config", &config]);
    case.block();
    let said = "server docs is not used: headers.Authorization";
    assert!(case.rig.words().contains(said), "{}", case.rig.words());
    case.done();
}

#[test]
fn a_reload_changes_nothing() {
    let mut case = Case::new("A reload changes nothing");
    case.rig.scene("docs", pdf("form\n"));
    let file = case.rig.dir().join("servers.toml");
    let entry = format!("[servers.docs]\ntarget = {:?}\n", case.rig.scripted("docs"));
    fs::write(&file, &entry).unwrap();
    case.rig
        .mount(&[], &["--config", &file.display().to_string()]);
    case.rig.ready("docs");
    fs::write(&file, "[servers.docs").unwrap();
    case.block();
    assert_eq!(case.rig.cat(FORM), ok("form\n"));
    case.block();
    case.done();
}

#[test]
fn the_label_is_given_twice() {
    let mut case = Case::new("The label is given twice");
    mcp_json(&case);
    case.block();
    case.done();
}

#[test]
fn http_401() {
    let mut case = Case::new("HTTP 401");
    let asks = json!({"status": 401, "headers": {"WWW-Authenticate": "Bearer"}});
    case.rig.scene("docs", ruled(asks));
    let url = case.rig.scripted_http("docs");
    case.rig.mount(&[("docs", &url)], &[]);
    until("its end", 10.0, || {
        case.rig.server("docs")["state"] == "needs-credentials"
    });
    case.block();
    case.done();
}

#[test]
fn the_certificate_is_not_accepted() {
    let mut case = Case::new("The certificate is not accepted");
    let dir = authorities(&case.rig);
    let pem = dir.join("here.pem").display().to_string();
    let server = OAuth::start(&mut case.rig, 60, &[&format!("--tls={pem}")]);
    case.rig.mount(&[("docs", &server.url)], &[]);
    until("its end", 20.0, || {
        case.rig.server("docs")["state"] == "down"
    });
    case.block();
    case.done();
}

#[test]
fn resource_temporarily_unavailable() {
    let mut case = Case::new("Resource temporarily unavailable");
    let mut scene = pdf("form\n");
    scene["start"] = json!({"delay": 3});
    case.rig.scene("docs", scene);
    let target = case.rig.scripted("docs");
    case.rig.mount(&[("docs", &target)], &[]);
    case.block();
    case.reads(FORM, "form\n");
}

#[test]
fn connection_timed_out() {
    let mut case = Case::new("Connection timed out");
    case.up(
        read_of_form(json!({"hang": true, "times": 1})),
        &["--timeout", "1"],
    );
    case.block();
    case.reads(FORM, "form\n");
}

#[test]
fn input_output_error() {
    let mut case = Case::new("Input/output error");
    case.up(read_of_form(json!({"serve": "other\n"})), &[]);
    case.block();
    case.rig.scene("docs", pdf("other\n"));
    case.block();
    case.reads(FORM, "other\n");
}

#[test]
fn permission_denied_not_approved() {
    let mut case = Case::new("Permission denied: not approved");
    case.up(pdf("form\n"), &["--approval", "each"]);
    case.block();
    case.block();
    case.reads(FORM, "form\n");
}

#[test]
fn permission_denied_revoked() {
    let mut case = Case::new("Permission denied: revoked");
    case.up(pdf("form\n"), &[]);
    case.rig.ask(&["revoke", "docs/pdf"]);
    case.block();
    case.rig.approve("docs/pdf");
    case.reads(FORM, "form\n");
}

#[test]
fn permission_denied_declined() {
    let mut case = Case::new("Permission denied: declined");
    let bad = json!({"frontmatter": {"name": "x", "description": "y"}});
    let scene = json!({"skills": [
        {"path": "live", "files": {}, "entry": {"resources": "dynamic"}},
        {"path": "bad", "files": {}, "entry": bad},
    ]});
    case.up(scene, &[]);
    case.block();
    let target = case.rig.scripted("docs");
    case.rig
        .remount(&[("docs", &target)], &["--allow-dynamic", "docs"]);
    case.rig.ready("docs");
    case.reads("docs/live/SKILL.md", &skill_md("live"));
}

#[test]
fn permission_denied_a_script() {
    let mut case = Case::new("Permission denied: a script");
    case.up(pdf("form\n"), &[]);
    case.block();
    case.block();
    case.done();
}

#[test]
fn an_agent_is_told_that_something_was_not_run() {
    let mut case = Case::new("An agent is told that something was not run");
    case.up(pdf("form\n"), &[]);
    let bin = case.rig.dir().join("bin");
    fs::create_dir(&bin).unwrap();
    let hook = project().join("examples/hooks/gate.py");
    std::os::unix::fs::symlink(hook, bin.join("gate.py")).unwrap();
    std::os::unix::fs::symlink(&case.rig.bin, bin.join("mount-skills")).unwrap();
    case.block();
    case.block();
    case.done();
}

#[test]
fn permission_denied_the_whole_mount() {
    let mut case = Case::new("Permission denied: the whole mount");
    let _open = is_root().then(|| {
        case.rig.become_user(65534);
        FuseForAll::open()
    });
    case.up(pdf("form\n"), &[]);
    if is_root() {
        case.rig.become_root();
    }
    case.block();
    case.done();
}

#[test]
fn stale_file_handle_the_skill_changed() {
    let mut case = Case::new("Stale file handle: the skill changed");
    case.up(pdf("form\n"), &[]);
    assert_eq!(case.rig.cat("docs/pdf/more.md"), ok("more\n"));
    case.rig.scene("docs", pdf("new\n"));
    case.rig.in_state("docs/pdf", "changed");
    case.block();
    case.block();
    case.reads(FORM, "new\n");
}

#[test]
fn stale_file_handle_the_approval_has_ended() {
    let mut case = Case::new("Stale file handle: the approval has ended");
    case.up(pdf("form\n"), &["--approval", "each"]);
    case.rig.approve("docs/pdf");
    assert_eq!(case.rig.cat(FORM), ok("form\n"));
    case.rig.scene("docs", pdf("new\n"));
    case.rig.in_state("docs/pdf", "changed, needs-approval");
    case.block();
    case.rig.approve("docs/pdf");
    case.reads(FORM, "new\n");
}

#[test]
fn read_only_file_system() {
    let mut case = Case::new("Read-only file system");
    case.up(pdf("form\n"), &[]);
    case.block();
    case.done();
}

#[test]
fn no_such_file_a_skill_that_the_server_has() {
    let mut case = Case::new("No such file or directory: a skill that the server has");
    let hidden = |path: &str| json!({"path": path, "files": {"x": "x\n"}, "listed": false});
    case.up(
        json!({"skills": [hidden("secret"), hidden("more/Secret")]}),
        &[],
    );
    case.block();
    assert_eq!(
        case.rig.cat("docs/secret/SKILL.md"),
        ok(&skill_md("secret"))
    );
    case.block();
    case.reads("docs/more/Secret/x", "x\n");
}

#[test]
fn a_directory_is_empty() {
    let mut case = Case::new("A directory is empty");
    case.rig.scene("docs", json!({"capabilities": {}}));
    let target = case.rig.scripted("docs");
    case.rig.mount(&[("docs", &target)], &[]);
    until("its state", 10.0, || {
        case.rig.server("docs")["state"] == "no-skills"
    });
    case.block();
    assert_eq!(case.rig.ls("docs"), Ok(vec![]));
    case.done();
}

#[test]
fn transport_endpoint_is_not_connected() {
    let mut case = Case::new("Transport endpoint is not connected");
    case.up(pdf("form\n"), &[]);
    let mount = case.rig.mount_point().display().to_string();
    let guards = processes_with(&mount);
    let guards = guards.iter().filter(|(_, line)| line.contains("__guard"));
    guards.for_each(|(pid, _)| kill(*pid, Signal::KILL));
    case.rig.kill_daemon();
    case.block();
    case.block();
    assert_eq!(mounts_at(case.rig.mount_point()).len(), 0);
    case.up(pdf("form\n"), &[]);
    case.reads(FORM, "form\n");
}

#[test]
fn target_is_busy() {
    let mut case = Case::new("Target is busy");
    case.up(pdf("form\n"), &[]);
    case.block();
    case.block();
    assert_eq!(case.rig.ended(10.0), Some(0));
    assert_eq!(mounts_at(case.rig.mount_point()).len(), 0);
    case.done();
}

#[test]
fn no_mount_skills_is_running() {
    let mut case = Case::new("No mount-skills is running");
    case.up(pdf("form\n"), &[]);
    case.block();
    case.block();
    case.done();
}

#[test]
fn the_mount_point_is_refused() {
    let mut case = Case::new("The mount point is refused");
    case.up(pdf("form\n"), &[]);
    case.block();
    case.done();
}

#[test]
fn the_cache_is_not_used() {
    let mut case = Case::new("The cache is not used");
    case.up(pdf("form\n"), &[]);
    let shelf = fs::read_dir(case.rig.dir().join("cache/mount-skills/v1")).unwrap();
    let shelf = shelf.flatten().next().unwrap().path();
    fs::set_permissions(&shelf, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(case.rig.cat(FORM), ok("form\n"));
    until("the warning", 5.0, || case.rig.words().contains("WARN"));
    case.block();
    let words = case.rig.words();
    let remedy = words.split("run: ").nth(1).unwrap().lines().next().unwrap();
    assert_eq!(case.shell(remedy).code, Some(0));
    assert_eq!(case.rig.cat("docs/pdf/more.md"), ok("more\n"));
    case.rig.blob(b"more\n");
    case.done();
}

#[test]
fn each_section_has_its_test() {
    let source = fs::read_to_string(project().join("tests/it/troubleshooting.rs")).unwrap();
    let tested = source.split("Case::new(\"").skip(1);
    let tested: BTreeSet<_> = tested
        .filter_map(|t| t.split_once("\")").map(|(t, _)| t))
        .collect();
    let titles: Vec<String> = sections().into_iter().map(|(title, _)| title).collect();
    let titles: BTreeSet<&str> = titles.iter().map(String::as_str).collect();
    assert_eq!(tested, titles);
}
