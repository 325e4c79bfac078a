//! README.md and docs/*.md: each command that they show is run and says what they show, each block
//! that is not run says why, and each link leads somewhere. docs/TROUBLESHOOTING.md has tests of its
//! own, in `troubleshooting`.
//!
//! The session in README.md, between its marks, is made by a run of its own and is left out here.
//!
//! A block with the tag `console` holds commands after `$ ` and below each what it says; a command
//! without output shown must succeed. `…` stands for anything in a line, and alone for any lines;
//! the user is ada, and times are left out. A page's blocks are run in their order.

use crate::rig::{Proc, Rig, project, run, skill, until};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// How many blocks of commands are not run, by page: a number that is to go down.
const NOT_RUN: [(&str, usize); 3] = [
    ("README.md", 1),
    ("docs/CLI.md", 1),
    ("docs/DEPLOYING.md", 6),
];
const MARK: &str = "<!-- not run: ";

/// The pages, by their paths.
fn pages() -> Vec<String> {
    let docs = fs::read_dir(project().join("docs")).unwrap();
    let names = docs.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let docs = names.filter(|n| n.ends_with(".md"));
    let mut pages: Vec<String> = docs.map(|n| format!("docs/{n}")).collect();
    pages.extend(["README.md".to_owned(), "CHANGELOG.md".to_owned()]);
    pages.sort();
    pages
}

/// A page, without the session in it.
fn text(page: &str) -> String {
    let text = fs::read_to_string(project().join(page)).unwrap();
    match (
        text.split_once("<!-- session -->\n"),
        text.split_once("<!-- /session -->\n"),
    ) {
        (Some((before, _)), Some((_, after))) => before.to_owned() + after,
        _ => text,
    }
}

/// A block between fences.
#[derive(Debug)]
struct Block {
    line: usize,
    tag: String,
    not_run: Option<String>,
    lines: Vec<String>,
}

fn blocks(page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let (mut open, mut before) = (false, "");
    let text = text(page);
    for (n, line) in text.lines().enumerate() {
        if let Some(tag) = line.strip_prefix("```") {
            open = !open;
            if open {
                let why = before
                    .strip_prefix(MARK)
                    .and_then(|w| w.strip_suffix(" -->"));
                blocks.push(Block {
                    line: n + 1,
                    tag: tag.to_owned(),
                    not_run: why.map(str::to_owned),
                    lines: Vec::new(),
                });
            }
        } else if open {
            blocks.last_mut().unwrap().lines.push(line.to_owned());
        }
        before = line;
    }
    assert!(!open, "{page}: a fence is not closed");
    blocks
}

/// The blocks of commands that are to be run.
fn to_run(page: &str) -> Vec<Block> {
    let blocks = blocks(page).into_iter();
    let commands = blocks.filter(|b| b.tag == "console" && b.not_run.is_none());
    commands.collect()
}

/// Whether a line is as a pattern says: `…` is anything, and so are the number of seconds and the
/// width of columns.
fn fits_line(pattern: &str, line: &str) -> bool {
    let narrow = |text: &str| {
        let indent = text.len() - text.trim_start().len();
        let words: Vec<&str> = text.split_whitespace().collect();
        " ".repeat(indent) + &words.join(" ")
    };
    let (pattern, line) = (narrow(pattern), narrow(line));
    let words: Vec<&str> = pattern.split(' ').collect();
    let seconds = |n: usize| {
        let unit = words
            .get(n + 1)
            .is_some_and(|w| w.trim_end_matches(',') == "s");
        unit && words[n].contains('.') && words[n].parse::<f64>().is_ok()
    };
    let words = (0..words.len()).map(|n| if seconds(n) { "…" } else { words[n] });
    let pattern = words.collect::<Vec<_>>().join(" ");
    let parts: Vec<&str> = pattern.split('…').collect();
    let Some(mut rest) = line.strip_prefix(parts[0]) else {
        return false;
    };
    if parts.len() == 1 {
        return rest.is_empty();
    }
    for part in &parts[1..parts.len() - 1] {
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(parts[parts.len() - 1])
}

/// Whether lines are as the patterns say: a `…` alone is any number of them.
fn fits(patterns: &[String], lines: &[&str]) -> bool {
    match patterns.split_first() {
        None => lines.is_empty(),
        Some((p, rest)) if p == "…" => (0..=lines.len()).any(|n| fits(rest, &lines[n..])),
        Some((p, rest)) => lines
            .split_first()
            .is_some_and(|(l, more)| fits_line(p, l) && fits(rest, more)),
    }
}

/// A command of a block and what is shown of its output.
type Step = (String, Vec<String>);

fn steps(block: &Block) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in &block.lines {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (Some(command), _) => steps.push((command.to_owned(), Vec::new())),
            (None, Some((_, shown))) => shown.push(line.clone()),
            (None, None) => panic!("line {}: output without a command", block.line),
        }
    }
    steps
}

/// A page that is being run: in a directory with what the repository has, the mount at `~/skills`.
struct Page {
    name: &'static str,
    blocks: std::vec::IntoIter<Block>,
    rig: Rig,
}

impl Page {
    fn open(name: &'static str) -> Self {
        let rig = Rig::with_limit(240);
        let dir = rig.dir();
        for new in ["work", "bin"] {
            fs::create_dir(dir.join(new)).unwrap();
        }
        for ours in ["examples", "tests"] {
            symlink(project().join(ours), dir.join("work").join(ours)).unwrap();
        }
        symlink(&rig.bin, dir.join("bin/mount-skills")).unwrap();
        symlink(rig.mount_point(), dir.join("home/skills")).unwrap();
        Self {
            name,
            blocks: to_run(name).into_iter(),
            rig,
        }
    }

    fn work(&self, file: &str) -> PathBuf {
        self.rig.dir().join("work").join(file)
    }

    /// A program of this name for the commands to find.
    fn program(&self, name: &str, script: &str) {
        let file = self.rig.dir().join("bin").join(name);
        fs::write(&file, script).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// A server with this scene, as a command line.
    fn server(&self, label: &str, scene: Value) -> String {
        self.rig.scene(label, scene);
        self.rig.scripted(label)
    }

    /// A shell in the page's directory.
    fn command(&self, line: &str) -> std::process::Command {
        let mut command = self.rig.command("bash");
        let bin = self.rig.dir().join("bin").display().to_string();
        let path = std::env::var("PATH").unwrap();
        command
            .args(["-c", line])
            .env("PATH", format!("{bin}:{path}"));
        command.current_dir(self.work(""));
        command
    }

    #[track_caller]
    fn sh(&self, line: &str) -> String {
        run(&mut self.command(line)).good()
    }

    /// A text with ada's paths in place of those of this test.
    fn adas(&self, text: &str) -> String {
        let home = self.rig.dir().join("home").display().to_string();
        let text = text.replace(
            &self.rig.mount_point().display().to_string(),
            "/home/ada/skills",
        );
        let text = text.replace(&project().display().to_string(), "/home/ada/mount-skills");
        text.replace(&home, "/home/ada").replace('\r', "")
    }

    #[track_caller]
    fn next(&mut self, first: &str) -> Vec<Step> {
        let block = self.blocks.next();
        let block = block.unwrap_or_else(|| panic!("{}: no block {first:?}", self.name));
        let steps = steps(&block);
        let found = &steps[0].0;
        let (page, line) = (self.name, block.line);
        assert!(
            found.starts_with(first),
            "{page}:{line}: {found:?}, not {first:?}"
        );
        steps
    }

    /// Runs steps; what is shown may take its time to become true.
    #[track_caller]
    fn run(&self, steps: Vec<Step>) {
        let mut variables = String::new();
        for (line, shown) in steps {
            let end = Instant::now() + Duration::from_secs(15);
            loop {
                let mut command = self.command(&format!("{variables}{line}"));
                let out = Proc::spawn(command.stdin(Stdio::null())).finish(30.0);
                let said = self.adas(&format!("{}{}", out.text(), out.err));
                let lines: Vec<&str> = said.lines().collect();
                let good = match shown.is_empty() {
                    true => out.code == Some(0),
                    false => fits(&shown, &lines),
                };
                if good {
                    break;
                }
                let late = Instant::now() > end;
                assert!(!late, "{}: {line}\nshown: {shown:#?}\n{said}", self.name);
                std::thread::sleep(Duration::from_millis(200));
                // Looking makes a mount ask.
                let _ = run(&mut self.command("ls ~/skills/*/*"));
            }
            if line
                .split_once('=')
                .is_some_and(|(name, _)| name.bytes().all(|b| b.is_ascii_lowercase()))
            {
                variables += &format!("{line}\n");
            }
        }
    }

    /// Runs the next block, which starts with this command.
    #[track_caller]
    fn block(&mut self, first: &str) {
        let steps = self.next(first);
        self.run(steps);
    }

    /// Runs the next block, whose last command mounts and stays.
    #[track_caller]
    fn block_that_mounts(&mut self, first: &str) {
        let mut steps = self.next(first);
        let (line, mut shown) = steps.pop().unwrap();
        self.run(steps);
        let said = self.rig.dir().join("daemon.out");
        let _ = fs::remove_file(&said);
        let command = self.command(&format!("exec {line}"));
        self.rig.mount_with(command);
        until("ready", 30.0, || {
            fs::read_to_string(&said).unwrap().contains("ready: ")
        });
        if shown.is_empty() {
            return;
        }
        // Servers come in any order.
        let said = self.adas(&fs::read_to_string(&said).unwrap());
        let mut said: Vec<&str> = said.lines().collect();
        said.sort_unstable();
        shown.sort_unstable();
        assert!(fits(&shown, &said), "{shown:#?}\n{said:#?}");
    }

    /// Ends the mount of a daemon in the background.
    #[track_caller]
    fn unmount(&self) {
        self.sh("mount-skills unmount ~/skills");
    }

    #[track_caller]
    fn close(mut self) {
        let left = self.blocks.next();
        assert!(left.is_none(), "{}: not run: {left:?}", self.name);
    }
}

fn pdf() -> Value {
    json!({"skills": [skill("pdf", json!({"form.md": "form\n"}))]})
}

#[test]
fn each_block_is_run_or_says_why_not() {
    let run: BTreeSet<&str> = ["docs/AGENTS.md", "docs/CLI.md"].into();
    let mut marked: BTreeMap<String, usize> = BTreeMap::new();
    for page in pages().iter().filter(|p| *p != "docs/TROUBLESHOOTING.md") {
        for block in blocks(page) {
            let at = format!("{page}:{}", block.line);
            let tags = ["console", "text", "toml", "json"];
            assert!(tags.contains(&&*block.tag), "{at}: the tag {:?}", block.tag);
            let commands = block.lines.iter().filter(|l| l.starts_with("$ ")).count();
            // The listing of files in CLI.md starts with variables, not with commands.
            assert!(block.tag == "console" || commands == 0, "{at}: commands");
            match &block.not_run {
                Some(why) => {
                    assert!(block.tag == "console" && why.len() > 10, "{at}: {why}");
                    *marked.entry(page.clone()).or_default() += 1;
                }
                None => assert!(
                    block.tag != "console" || run.contains(&**page),
                    "{at}: no test"
                ),
            }
        }
        let marks = text(page).matches(MARK).count();
        assert_eq!(
            marks,
            marked.get(page).copied().unwrap_or(0),
            "{page}: a mark without a block"
        );
    }
    let expected = NOT_RUN.map(|(page, n)| (page.to_owned(), n));
    assert_eq!(marked, expected.into(), "blocks that are not run");
}

#[test]
fn the_command_line_is_as_its_page_says() {
    let mut page = Page::open("docs/CLI.md");
    let share = "~/.local/share/bash-completion/completions";
    page.sh(&format!(
        "mkdir -p {share} ~/.zfunc ~/.config/fish/completions"
    ));
    page.block("mount-skills completions bash");
    let names = (0..12).map(|n| skill(&format!("s{n}"), json!({})));
    let twelve = page.server("docs", json!({"skills": names.collect::<Vec<_>>()}));
    page.program("npx", &format!("#!/bin/sh\nexec {twelve}\n"));
    page.block("mount-skills --daemon --server docs=");
    page.unmount();

    let other = page.server("other", pdf());
    let config = page.rig.dir().join("home/.config/mount-skills");
    fs::create_dir_all(&config).unwrap();
    let servers = |labels: &[&str], env: &str| {
        let one = |label: &&str| {
            let env = if *label == "docs" { env } else { "" };
            format!("[servers.{label}]\ntarget = {other:?}\nenv = {{ {env} }}\n")
        };
        let text: String = labels.iter().map(one).collect();
        fs::write(config.join("config.toml"), text).unwrap();
    };
    servers(&["docs", "a", "b", "c"], "");
    page.sh("mount-skills --daemon ~/skills");
    servers(&["docs", "a", "b", "c", "team"], "NEW = 'yes'");
    page.block("mount-skills reload");
    page.block("mount-skills unmount --keep-windows");
    page.unmount();

    let one = json!({"command": "npx", "args": ["-y", "some-server"]});
    let file = |servers: Value| {
        let text = json!({"mcpServers": servers}).to_string();
        fs::write(page.work(".mcp.json"), text).unwrap();
    };
    file(json!({"docs": one}));
    let with_team = json!({"docs": one, "team": {"command": "npxx"}});
    page.block_that_mounts("mount-skills --config .mcp.json");
    page.rig.stop();

    page.rig.scene("docs", pdf());
    let trail = page.work("trail").display().to_string();
    page.rig.up(&["docs"], &["--audit", &trail]);
    assert!(page.rig.cat("docs/pdf/SKILL.md").is_ok());
    page.block("mount-skills audit docs");
    page.rig.stop();

    page.rig.up(&["docs"], &["--approval", "each"]);
    page.block("set=$(mount-skills diff");
    assert_eq!(page.rig.cat("docs/pdf/form.md"), Ok("form\n".into()));
    page.rig.stop();

    page.server(
        "docs",
        json!({"skills": (0..12).map(|n| skill(&format!("s{n}"), json!({}))).collect::<Vec<_>>()}),
    );
    let text = json!({"mcpServers": with_team}).to_string();
    fs::write(page.work(".mcp.json"), text).unwrap();
    fs::remove_file(page.rig.dir().join("home/skills")).unwrap();
    let mut steps = page.next("mount-skills doctor --config");
    // It counts what other tests have mounted, too.
    *steps[0].1.last_mut().unwrap() = "…".into();
    page.run(steps);
    page.close();
}

#[test]
fn the_settings_of_our_own_file_are_ones() {
    let page = Page::open("docs/CLI.md");
    let toml: Vec<Block> = blocks("docs/CLI.md")
        .into_iter()
        .filter(|b| b.tag == "toml")
        .collect();
    assert_eq!(toml.len(), 1);
    fs::write(page.work("own.toml"), toml[0].lines.join("\n")).unwrap();
    let shown = page.sh("mount-skills config show --config own.toml --json");
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["unused"], json!([]), "{shown}");
    assert_eq!(shown["notices"], json!([]), "{shown}");
    assert_eq!(shown["servers"].as_array().unwrap().len(), 2, "{shown}");
}

#[test]
fn agents_are_served_as_their_page_says() {
    let mut page = Page::open("docs/AGENTS.md");
    let examples = project().join("examples/skills").display().to_string();
    page.rig.mount(&[("demo", &examples)], &[]);
    page.rig.ready("demo");
    for first in [
        "install -D",
        "mount-skills list --format hint",
        "~/.local/share/mount-skills/hint.py",
        "~/.local/share/mount-skills/hint.py AGENTS.md",
        "mount-skills run --server demo=",
        "echo '{\"tool_input\"",
        "grep -rl",
    ] {
        page.block(first);
    }
    page.close();
}

/// The anchor that a heading gets.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter_map(|c| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c.to_ascii_lowercase()),
        _ => None,
    });
    kept.collect()
}

/// The links of a page without those in blocks of code.
fn links(page: &str) -> Vec<String> {
    let text = text(page);
    let prose: String = text.split("\n```").step_by(2).collect();
    let parts = prose.split("](").skip(1);
    let links = parts.filter_map(|p| p.split_once(')').map(|(l, _)| l.to_owned()));
    links.collect()
}

#[test]
fn each_link_leads_somewhere_and_each_page_is_linked() {
    let mut linked = BTreeSet::new();
    for page in pages() {
        let folder = project().join(&page).parent().unwrap().to_owned();
        for link in links(&page) {
            if link.starts_with("https://") {
                continue;
            }
            let (file, to) = link.split_once('#').unwrap_or((&link, ""));
            let path = match file.is_empty() {
                true => project().join(&page),
                false => folder.join(file),
            };
            assert!(path.exists(), "{page}: {link}");
            let path = path.canonicalize().unwrap();
            if !to.is_empty() {
                let text = fs::read_to_string(&path).unwrap();
                let headings = text.lines().filter(|l| l.starts_with('#'));
                let mut anchors = headings.map(|h| anchor(h.trim_start_matches('#').trim()));
                assert!(anchors.any(|a| a == to), "{page}: {link}: no such heading");
            }
            if !page.ends_with("CHANGELOG.md") {
                linked.insert(path);
            }
        }
    }
    for page in pages().iter().filter(|p| *p != "README.md") {
        let path = project().join(page).canonicalize().unwrap();
        assert!(linked.contains(&path), "{page} is linked from nowhere");
    }
    let images = fs::read_dir(project().join("docs/images")).unwrap();
    for image in images {
        let path = image.unwrap().path().canonicalize().unwrap();
        assert!(linked.contains(&path), "{path:?} is shown nowhere");
    }
}

#[test]
fn the_readme_is_three_screens() {
    let text = fs::read_to_string(project().join("README.md")).unwrap();
    let lines = text.lines().count();
    assert!(lines <= 120, "{lines} lines");
}

#[test]
fn patterns_fit_what_they_say() {
    for (pattern, line, fit) in [
        ("a…c", "abc", true),
        ("a…c", "abcd", false),
        ("…", "", true),
        ("abc", "abc", true),
        ("abc", "abcd", false),
        ("docs  12 skills, 1.4 s", "docs  12 skills, 0.1 s", true),
        ("docs  12 skills, 1.4 s", "docs  13 skills, 0.1 s", false),
    ] {
        assert_eq!(fits_line(pattern, line), fit, "{pattern:?} {line:?}");
    }
    let patterns = ["a", "…", "z"].map(str::to_owned);
    assert!(fits(&patterns, &["a", "z"]) && fits(&patterns, &["a", "b", "c", "z"]));
    assert!(!fits(&patterns, &["a", "b"]) && !fits(&patterns, &["z"]));
}
