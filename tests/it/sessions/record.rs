//! Records sessions of servers: what they answered to the daemon, to the byte.
//!
//! `cargo test --test it record_sessions -- --ignored` writes tests/sessions anew. It is for a new
//! version of a server, or of the protocol; the recorded ones are what all runs start from.

use crate::rig::{self, Rig, installed, project, run, server_file, skill};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

/// A line of JSON-RPC, its result as it stands there.
#[derive(Deserialize)]
struct Line<'a> {
    id: Option<Value>,
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    params: Value,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
}

fn md(name: &str, description: &str, more: &str) -> String {
    format!("---\nname: {name}\ndescription: {description}\n{more}---\n\n# {name}\n")
}

/// The skills of a directory, before and after a change.
fn write_tree(dir: &Path, version: usize) {
    let write = |path: &str, content: &[u8]| {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    };
    let picture = b"\x89PNG\r\n\x1a\n\0\xff\xfe\x80 not much of one";
    let more = "license: MIT\nmetadata:\n  author: Zoë\n  tags: a b\n";
    write("greet/assets/dot.png", picture);
    write(
        "greet/references/set up.md",
        "Façade\r\nand more\n".as_bytes(),
    );
    write("team/reviews/code-review/check+list.md", b"- one\n- two\n");
    write(
        "team/reviews/code-review/SKILL.md",
        md("code-review", "Review code; says why", more).as_bytes(),
    );
    write(
        "outer/SKILL.md",
        md("outer", "Holds another", "").as_bytes(),
    );
    write(
        "outer/inner/SKILL.md",
        md("inner", "Is in another", "").as_bytes(),
    );
    write("outer/inner/y.txt", b"why\n");
    if version == 0 {
        write(
            "greet/SKILL.md",
            md("greet", "Greets people", "").as_bytes(),
        );
        write("outer/x.txt", b"first\n");
        write("greet/old.txt", b"old\n");
    } else {
        write(
            "greet/SKILL.md",
            md("greet", "Greets people and dogs", "").as_bytes(),
        );
        write("outer/x.txt", b"second one\n");
        write("greet/new.txt", b"new\n");
    }
}

/// Mounts one server, reads all, asks for each entry; what it was asked and answered.
fn record(command: &str) -> Vec<String> {
    let mut rig = Rig::new();
    let [asked, said] = ["asked", "said"].map(|name| rig.dir().join(name).display().to_string());
    let script = format!("tee -a {asked} | {command} | tee -a {said}");
    let target = shlex::try_join(["bash", "-c", &script]).unwrap();
    rig.mount(&[("lab", &target)], &["--timeout", "20"]);
    rig.ready("lab");
    rig.sh("find $M/lab -type f -exec cat {} + > /dev/null");
    let status = rig.server("lab");
    for skill in status["skills"].as_array().unwrap() {
        rig.tell(&["refresh", skill["path"].as_str().unwrap()]);
    }
    let (asked, said) = (
        fs::read_to_string(asked).unwrap(),
        fs::read_to_string(said).unwrap(),
    );
    let results: BTreeMap<String, &RawValue> = said
        .lines()
        .filter_map(|l| serde_json::from_str::<Line>(l).ok())
        .filter_map(|l| Some((l.id?.to_string(), l.result?)))
        .collect();
    let mut replies = Vec::new();
    for line in asked.lines() {
        let line: Line = serde_json::from_str(line).unwrap();
        let Some(result) = line.id.and_then(|id| results.get(&id.to_string()).copied()) else {
            continue;
        };
        let method = line.method.unwrap();
        let (field, value) = match &*method {
            "skills/list" => ("cursor", &line.params["cursor"]),
            "skills/get" | "resources/read" => ("uri", &line.params["uri"]),
            _ => continue,
        };
        // The result is kept as it came.
        let (method, value, result) = (json!(method), value, result.get());
        let reply = format!(r#"{{"method":{method},"{field}":{value},"result":{result}}}"#);
        if !replies.contains(&reply) {
            replies.push(reply);
        }
    }
    replies
}

fn write(name: &str, server: &str, versions: &[Vec<String>]) {
    // A reply a line, so that a new recording shows what changed.
    let lines = |replies: &Vec<String>| format!("  [\n   {}\n  ]", replies.join(",\n   "));
    let versions: Vec<String> = versions.iter().map(lines).collect();
    let text = format!(
        "{{\n \"server\": {},\n \"versions\": [\n{}\n ]\n}}\n",
        json!(server),
        versions.join(",\n")
    );
    fs::write(
        project()
            .join("tests/sessions")
            .join(name)
            .with_extension("json"),
        text,
    )
    .unwrap();
}

#[test]
#[ignore = "writes tests/sessions anew, from the servers that scripts/test-env installs"]
fn record_sessions() {
    let rig = Rig::new();
    let tree = |version: usize| {
        let dir = rig.dir().join(format!("v{version}"));
        write_tree(&dir, version);
        dir.display().to_string()
    };
    let (python, node) = (installed("venv/bin/python"), installed("bin/node"));
    let servers = [
        (
            "fastmcp",
            vec![python.clone(), server_file("fastmcp_server.py")],
        ),
        (
            "agentskills",
            vec![python, server_file("agentskills_server.py")],
        ),
        ("typescript", vec![node, server_file("ts_server.mjs")]),
    ];
    for (name, words) in servers {
        let versions = [0, 1].map(|v| {
            let words: Vec<String> = [words.clone(), vec![tree(v), "stdio".into()]].concat();
            record(&shlex::try_join(words.iter().map(String::as_str)).unwrap())
        });
        write(name, name, &versions);
    }
    let versions = [0, 1].map(|v| record(&shlex::try_join([rig::BIN, "serve", &tree(v)]).unwrap()));
    write("serve", "mount-skills serve", &versions);

    // The specification's example, and what none of these servers has: pages, another scheme, a
    // dynamic skill, a file that two skills list.
    let [invoice, order, credit] = [
        ("templates/invoice.md", "# Invoice\n\nCustomer:\nAmount:\n"),
        (
            "templates/purchase-order.md",
            "# Purchase order\n\nSupplier:\nItems:\n",
        ),
        (
            "templates/credit-note.md",
            "# Credit note\n\nInvoice:\nCredit amount:\n",
        ),
    ];
    let pdf = "---\nname: pdf-processing\ndescription: Extract, fill, and assemble PDF documents\n---\n\n\
        # PDF processing\n\nChoose the matching template from `templates/`.\n";
    let example = |files: &[(&str, &str)]| {
        let mut all = json!({"SKILL.md": pdf});
        for (path, text) in files {
            all[*path] = json!(text);
        }
        json!({"skills": [skill("pdf-processing", all)]})
    };
    let paged = |b: &str| {
        json!({"page": 2, "ttlMs": 60000, "cacheScope": "public", "skills": [
            skill("a", json!({"one.txt": "one\n", "[id].tsx": {"b64": "AP/+"}})),
            skill("acme/billing/b", json!({"b.txt": b})),
            {"uri": "github://owner/repo/c/SKILL.md", "files": {"c.txt": "c\n"}},
            {"path": "now", "files": {}, "entry": {"resources": "dynamic"}},
            skill("out", json!({"in/SKILL.md": md("in", "Inner", ""), "in/z": format!("{b}z")})),
            skill("out/in", json!({"SKILL.md": md("in", "Inner", ""), "z": format!("{b}z")})),
        ]})
    };
    let scenes = [
        (
            "specification",
            [
                example(&[invoice, order]),
                example(&[invoice, order, credit]),
            ],
        ),
        ("paged", [paged("b\n"), paged("B, changed\n")]),
    ];
    for (name, versions) in scenes {
        let versions = versions.map(|scene| {
            rig.scene(name, scene);
            record(&rig.scripted(name))
        });
        write(name, "tests/servers/scripted.py", &versions);
    }
    let size = run(Command::new("du")
        .arg("-sb")
        .arg(project().join("tests/sessions")))
    .good();
    let size: u64 = size.split_whitespace().next().unwrap().parse().unwrap();
    assert!(
        size < 200_000,
        "{size} bytes are more than these files should be"
    );
}
