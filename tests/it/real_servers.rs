//! Servers that are used in earnest, over stdio and HTTP, with everything that is awkward about
//! names, content and frontmatter: what they publish is what the mount shows.

use crate::rig::{self, Rig, installed, run, server_file, sha256, wait};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A server: its label, and what mktree.py calls it.
#[derive(Clone, Copy)]
struct Server {
    label: &'static str,
    expect: &'static str,
    program: &'static str,
    script: &'static str,
}

const OURS: Server = Server {
    label: "serve",
    expect: "rmcp",
    program: "",
    script: "",
};
const TS: Server = Server {
    label: "ts",
    expect: "ts",
    program: "bin/node",
    script: "ts_server.mjs",
};
const SERVERS: [Server; 4] = [
    OURS,
    Server {
        label: "fastmcp",
        expect: "fastmcp",
        program: "venv/bin/python",
        script: "fastmcp_server.py",
    },
    Server {
        label: "agentskills",
        expect: "agentskills",
        program: "venv/bin/python",
        script: "agentskills_server.py",
    },
    TS,
];

impl Server {
    fn stdio(self, dir: &Path) -> String {
        let dir = dir.display().to_string();
        if self.script.is_empty() {
            return dir;
        }
        let words = [
            installed(self.program),
            server_file(self.script),
            dir,
            "stdio".into(),
        ];
        shlex::try_join(words.iter().map(String::as_str)).unwrap()
    }

    /// Starts it over HTTP; its URL once it listens.
    fn http(self, rig: &mut Rig, dir: &Path) -> String {
        let said = rig.dir().join(format!("{}.url", self.label));
        if self.script.is_empty() {
            let mut command = rig.command(rig::BIN);
            command
                .arg("serve")
                .arg(dir)
                .args(["--http", "127.0.0.1:0"]);
            command.stdout(File::create(&said).unwrap());
            rig.keep_server(&mut command);
        } else {
            let mut command = rig.command(installed(self.program));
            command
                .arg(server_file(self.script))
                .arg(dir)
                .arg("http")
                .arg(&said);
            rig.keep_server(command.stdout(Stdio::null()));
        }
        wait("a server to listen", 60.0, || {
            let text = fs::read_to_string(&said).ok()?;
            text.split_whitespace()
                .find(|w| w.starts_with("http://"))
                .map(str::to_owned)
        })
    }
}

fn mktree(args: &[&str]) -> String {
    run(Command::new("python3")
        .arg(server_file("mktree.py"))
        .args(args))
    .good()
}

/// The names and sizes of all files below a directory, and then their digests.
fn contents(dir: &Path) -> BTreeSet<(PathBuf, u64, String)> {
    let mut found = BTreeSet::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(at) = todo.pop() {
        for entry in fs::read_dir(&at).unwrap_or_else(|e| panic!("{at:?}: {e}")) {
            let path = entry.unwrap().path();
            let meta = path.symlink_metadata().unwrap();
            if meta.is_dir() {
                todo.push(path);
                continue;
            }
            let bytes = fs::read(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
            assert_eq!(bytes.len() as u64, meta.len(), "{path:?}");
            found.insert((
                path.strip_prefix(dir).unwrap().to_owned(),
                meta.len(),
                sha256(&bytes),
            ));
        }
    }
    found
}

/// What a server publishes of the common tree: a copy of it, and the skills it has entries for.
fn expected(rig: &Rig, server: Server, tree: &Path) -> (PathBuf, BTreeSet<String>) {
    let expect: Value = serde_json::from_str(&mktree(&["--expect", server.expect])).unwrap();
    let texts = |field: &str| -> Vec<String> {
        let all = expect[field].as_array().unwrap().iter();
        all.map(|v| v.as_str().unwrap().to_owned()).collect()
    };
    let copy = rig.dir().join(format!("expected-{}", server.label));
    run(Command::new("cp").arg("-r").arg(tree).arg(&copy)).good();
    for file in texts("absent") {
        fs::remove_file(copy.join(&file)).unwrap();
        let above = Path::new(&file)
            .ancestors()
            .skip(1)
            .filter(|p| !p.as_os_str().is_empty());
        above.for_each(|dir| drop(fs::remove_dir(copy.join(dir))));
    }
    let skill_mds = run(Command::new("find")
        .arg(tree)
        .args(["-name", "SKILL.md", "-printf", "%P\n"]))
    .good();
    let mut skills: BTreeSet<String> = skill_mds
        .lines()
        .map(|path| format!("{}/{}", server.label, path.trim_end_matches("/SKILL.md")))
        .collect();
    for skill in texts("no_entry") {
        assert!(
            skills.remove(&format!("{}/{skill}", server.label)),
            "{skill}"
        );
    }
    (copy, skills)
}

/// Mounts all servers, each by its target.
fn mount(rig: &mut Rig, targets: &[String]) {
    let labels = SERVERS.iter().map(|s| s.label);
    let servers: Vec<(&str, &str)> = labels.zip(targets.iter().map(String::as_str)).collect();
    rig.mount(&servers, &["--timeout", "60"]);
}

fn all_servers(transport: fn(Server, &mut Rig, &Path) -> String) {
    let mut rig = Rig::with_limit(150);
    let tree = rig.dir().join("tree");
    mktree(&[&tree.display().to_string()]);
    let targets: Vec<String> = SERVERS
        .iter()
        .map(|s| transport(*s, &mut rig, &tree))
        .collect();
    mount(&mut rig, &targets);
    for server in SERVERS {
        let label = server.label;
        rig.ready(label);
        let (copy, skills) = expected(&rig, server, &tree);
        assert_eq!(contents(&rig.path(label)), contents(&copy), "{label}");
        let diff = run(rig
            .command("diff")
            .arg("-r")
            .arg(&copy)
            .arg(rig.path(label)));
        assert_eq!(
            (diff.code, diff.text(), diff.err),
            (Some(0), String::new(), String::new()),
            "{label}"
        );
        let status = rig.server(label);
        let shown = status["skills"].as_array().unwrap().iter();
        let shown: BTreeSet<String> = shown.map(|s| s["path"].as_str().unwrap().into()).collect();
        assert_eq!(shown, skills, "{label}");
        assert_eq!(status["declined"], Value::Array(vec![]), "{label}");
        assert_eq!(status["refused"], Value::Array(vec![]), "{label}");
        assert_eq!(status["era"], "discover", "{label}");
    }
}

#[test]
fn four_servers_over_stdio_are_mounted_byte_for_byte() {
    all_servers(|server, _, dir| server.stdio(dir));
}

#[test]
fn four_servers_over_http_are_mounted_byte_for_byte() {
    all_servers(Server::http);
}

/// Each server, with all odd skills before it or, where one bad skill keeps a server from starting, with
/// those that it publishes: they are shown byte for byte but for the few that are never equal.
#[test]
fn c01_to_c10_hr64_odd_frontmatter_that_real_servers_publish_is_read_byte_for_byte() {
    const NEVER_EQUAL: [(&str, &str); 3] = [
        ("deep", "more than 32 levels"),
        ("merge-key", "a merge key"),
        ("nan", "`metadata.a` differs: the file has .nan"),
    ];
    let mut rig = Rig::with_limit(150);
    let odd = rig.dir().join("odd");
    mktree(&["--odd", &odd.display().to_string()]);
    let published = SERVERS.map(|s| rig.dir().join(format!("published-{}", s.label)));
    for (server, out) in SERVERS.iter().zip(&published) {
        mktree(&["--published", server.expect, &out.display().to_string()]);
    }
    let dirs = SERVERS.iter().zip(&published);
    let targets: Vec<String> = dirs
        .map(|(s, out)| s.stdio(if s.label == "fastmcp" { out } else { &odd }))
        .collect();
    mount(&mut rig, &targets);
    let mut seen = BTreeSet::new();
    for (server, out) in SERVERS.iter().zip(&published) {
        let label = server.label;
        rig.ready(label);
        let mut refused = 0;
        let there = |dir: &Path| -> BTreeSet<PathBuf> {
            let all = run(Command::new("find")
                .arg(dir)
                .args(["-type", "f", "-printf", "%P\n"]));
            all.good().lines().map(PathBuf::from).collect()
        };
        let files = there(out);
        assert_eq!(there(&rig.path(label)), files, "{label}");
        for file in files {
            let skill = file.parent().unwrap().to_str().unwrap().to_owned();
            let path = format!("{label}/{}", file.display());
            let never = NEVER_EQUAL.iter().find(|(name, _)| *name == skill);
            match never.filter(|_| file.ends_with("SKILL.md")) {
                Some((_, why)) => {
                    assert_eq!(rig.cat(&path), Err("EIO"), "{path}");
                    let refusal = rig.refusal(label, &path);
                    assert!(
                        refusal["reason"].as_str().unwrap().contains(why),
                        "{refusal}"
                    );
                    refused += 1;
                }
                None => assert_eq!(
                    fs::read(rig.path(&path)).unwrap_or_else(|e| panic!("{path}: {e}")),
                    fs::read(out.join(&file)).unwrap(),
                    "{path}"
                ),
            }
            seen.insert(skill);
        }
        let status = rig.server(label);
        assert_eq!(status["declined"], Value::Array(vec![]), "{label}");
        assert_eq!(
            status["refused"].as_array().unwrap().len(),
            refused,
            "{label}"
        );
    }
    assert!(seen.len() >= 30, "{seen:?}");
    let never = NEVER_EQUAL.iter().filter(|(name, _)| seen.contains(*name));
    assert_eq!(never.count(), 3);
}

#[test]
fn c12_c21_hr38_hr39_skills_at_the_limits_read_and_those_over_them_are_declined() {
    let mut rig = Rig::with_limit(150);
    let cases = rig.dir().join("cases");
    fs::create_dir(&cases).unwrap();
    for case in mktree(&["--cases"]).lines() {
        let out = rig.dir().join("one").display().to_string();
        mktree(&["--case", case, &out]);
        fs::rename(Path::new(&out).join(case), cases.join(case)).unwrap();
    }
    let [serve, ts] = [OURS, TS].map(|s| s.stdio(&cases));
    let http = OURS.http(&mut rig, &cases);
    rig.mount(
        &[("serve", &serve), ("http", &http), ("ts", &ts)],
        &["--timeout", "60"],
    );
    for label in ["serve", "http", "ts"] {
        rig.ready(label);
        for case in ["at-512", "at-16m-blob", "at-16m-text"] {
            let shown = contents(&rig.path(&format!("{label}/{case}")));
            assert!(shown == contents(&cases.join(case)), "{label}/{case}");
        }
    }
    // The TypeScript SDK publishes what is over the limits.
    for (case, word) in [("over-513", "513"), ("over-16m", "16777217")] {
        let reason = rig.declined("ts", &format!("skill://{case}/SKILL.md"));
        assert!(reason.contains(word), "{reason}");
        assert_eq!(rig.cat(&format!("ts/{case}/SKILL.md")), Err("EACCES"));
    }
    let read = &rig.server("ts")["connection"]["requests"]["resources/read"];
    assert_eq!(read, 512 + 2 + 2, "nothing of what is declined");
}

#[test]
fn the_examples_of_the_project_are_served_from_their_directory() {
    let mut rig = Rig::new();
    let copy = rig.dir().join("skills");
    run(Command::new("cp")
        .arg("-r")
        .arg(rig::project().join("examples/skills"))
        .arg(&copy))
    .good();
    rig.mount(&[("demo", &copy.display().to_string())], &[]);
    rig.ready("demo");
    assert_eq!(contents(&rig.path("demo")), contents(&copy));
    let list = rig.cli(&["list"]).good();
    for skill in [
        "demo/release-notes",
        "demo/commit-messages",
        "demo/team/reviews/code-review",
    ] {
        assert!(list.contains(skill), "{list}");
    }
}
