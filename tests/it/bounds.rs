//! What one server may send or cost: each limit of the table in docs/SECURITY.md is reached.

use crate::rig::{Rig, ok, skill, skill_md, until};
use crate::standing::Standing;
use serde_json::{Value, json};

const A: (&str, &str) = ("lab/s/a.txt", "a\n");

fn one_file() -> Value {
    json!({"skills": [skill("s", json!({"a.txt": "a\n"}))]})
}

fn ruled(rule: Value) -> Value {
    let mut scene = one_file();
    scene["rules"] = json!([rule]);
    scene
}

/// So many bytes of items in a list, without its brackets.
fn items(of: &str, size: usize) -> Value {
    json!([{"fill": format!("{of},"), "size": size / (of.len() + 1) * (of.len() + 1)}, of])
}

/// A reply whose result is this text around a part that is made up.
fn reply(before: &str, inside: Value, after: &str) -> Value {
    let start = format!("{{\"jsonrpc\":\"2.0\",\"id\":@ID@,\"result\":{before}");
    json!([start, inside, format!("{after}}}")])
}

/// Memory of the daemon, in MiB, that no server may drive it over.
const MEMORY: u64 = 300;

#[track_caller]
fn small(rig: &Rig) {
    let peak = rig.daemon_peak_mib();
    assert!(peak < MEMORY, "the daemon took {peak} MiB");
}

#[test]
fn a_handshake_of_a_hundred_mib_is_no_handshake() {
    for http in [false, true] {
        let mut rig = Rig::new();
        let raw = reply(
            "{\"supportedVersions\":[\"2026-07-28\"],\"capabilities\":{\"experimental\":{\"x\":[",
            items("[]", 100 << 20),
            "]}}}",
        );
        rig.scene(
            "lab",
            ruled(json!({"method": "server/discover", "raw": raw})),
        );
        rig.scene("control", crate::standing::control());
        let lab = if http {
            rig.scripted_http("lab")
        } else {
            rig.scripted("lab")
        };
        let control = rig.scripted("control");
        rig.mount(
            &[("lab", &lab), ("control", &control)],
            &["--timeout", "20", "--start-timeout", "6"],
        );
        rig.ready("control");
        let standing = Standing::begin(&rig, 20.0, &[A]);
        until("its end", 60.0, || rig.server("lab")["state"] == "down");
        small(&rig);
        rig.scene("lab", one_file());
        until("it to be back", 60.0, || rig.cat(A.0) == ok(A.1));
        drop(standing);
    }
}

#[test]
fn a_page_of_millions_of_items_is_no_page() {
    for (what, of, size) in [
        ("too many", "1", 60 << 20),
        ("too long", "[1,2,3]", 100 << 20),
    ] {
        let mut rig = Rig::new();
        let raw = reply("{\"skills\":[", items(of, size), "]}");
        let scene = ruled(json!({"method": "skills/list", "raw": raw}));
        rig.scene("lab", one_file());
        rig.up_beside_control(&["lab"], "20", &[]);
        let standing = Standing::begin(&rig, 20.0, &[A]);
        rig.scene("lab", scene);
        let out = rig.tell(&["refresh", "lab"]);
        assert_ne!(out.code, Some(0), "{what}: {out:?}");
        assert!(out.err.contains("more than"), "{what}: {out:?}");
        small(&rig);
        assert_eq!(
            standing.read(&rig, A.0),
            ok(A.1),
            "{what}: what was listed stays"
        );
        rig.scene("lab", one_file());
        standing.end(&rig);
    }
}

#[test]
fn hr114_a_listing_of_very_long_names_takes_no_status_away() {
    let mut rig = Rig::new();
    // 3.9 KB each, of characters that are written out when they are shown.
    let marks = vec!["\u{301}".repeat(127); 15].join("/");
    let skills = (0..6500).map(|n| {
        let uri = format!("skill://n{n}/{marks}/s/SKILL.md");
        let digest = format!("sha256:{}", "0".repeat(64));
        json!({"uri": uri, "frontmatter": {"name": "s", "description": "d"},
            "resources": [{"uri": uri, "digest": digest, "size": 1}]})
    });
    let mut scene = one_file();
    scene["entries"] = Value::Array(skills.collect());
    let text = scene["entries"].to_string();
    assert!(text.len() > 40 << 20, "{}", text.len());
    let raw = reply("{\"skills\":", json!(text), ",\"ttlMs\":600000}");
    let list = json!({"method": "skills/list", "raw": raw});
    rig.scene("lab", json!({"rules": [list]}));
    rig.scene("good", one_file());
    let (lab, good) = (rig.scripted("lab"), rig.scripted("good"));
    rig.mount(
        &[("lab", &lab), ("good", &good)],
        &["--timeout", "30", "--start-timeout", "30"],
    );
    rig.ready("good");
    until("the listing", 60.0, || {
        rig.ls("lab").is_ok_and(|names| names.len() == 6500)
    });
    let listed = rig.daemon_peak_mib();
    let status = rig.ask(&["status", "--json"]);
    assert!(status.len() < 40 << 20, "{} bytes", status.len());
    let skills = rig.server("lab")["skills"].clone();
    let paths: std::collections::BTreeSet<&str> = skills
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s["path"].as_str().unwrap())
        .collect();
    assert_eq!(paths.len(), 6500);
    assert!(paths.iter().all(|p| p.chars().count() <= 220));
    let one = rig.ask(&["status", "good", "--json"]);
    assert!(one.len() < 10_000, "{one}");
    // The short form names the skill, and so do the exact path and URI.
    let path = *paths.first().unwrap();
    let detail: Value = serde_json::from_str(&rig.ask(&["diff", "--json", path])).unwrap();
    assert_eq!(detail["skill"], path);
    let uri = detail["uri"].as_str().unwrap();
    let again = rig.ask(&["diff", "--json", &format!("lab/{uri}")]);
    assert_eq!(serde_json::from_str::<Value>(&again).unwrap(), detail);
    for name in [
        path.to_owned(),
        format!("lab/n0/{marks}/s"),
        format!("lab/n0/{marks}/s/x"),
        format!("lab/skill://n0/{marks}/s/SKILL.md"),
    ] {
        let told = rig.ask(&["status", &name]);
        assert!(told.contains(&format!("skill {path}, URI {uri}")), "{told}");
    }
    let rise = rig.daemon_peak_mib() - listed;
    assert!(rise < 100, "looking took {rise} MiB more than listing");
}

#[test]
fn an_entry_that_would_fill_memory_is_declined() {
    let entry = |name: &str, of: &str, size: usize| {
        let uri = format!("skill://{name}/SKILL.md");
        let start = format!(
            "{{\"uri\":\"{uri}\",\"frontmatter\":{{\"name\":\"{name}\",\"description\":\"d\",\"x\":["
        );
        json!([start, items(of, size), "]},\"resources\":\"dynamic\"}"])
    };
    // One that is over the limit, and a dozen that are under it.
    let mut parts = vec![entry("over", "[]", 30 << 20)];
    for n in 0..8 {
        parts.push(json!(","));
        parts.push(entry(&format!("under{n}"), "[]", (4 << 20) - 4096));
    }
    let raw = reply("{\"skills\":[", json!(parts), "],\"ttlMs\":600000}");
    let mut rig = Rig::new();
    rig.scene("lab", ruled(json!({"method": "skills/list", "raw": raw})));
    rig.up(&["lab"], &[]);
    small(&rig);
    let reason = rig.declined("lab", "skill://over/SKILL.md");
    assert!(reason.contains("more than 4 MiB"), "{reason}");
    let reason = rig.declined("lab", "skill://under0/SKILL.md");
    assert!(reason.contains("dynamic"), "{reason}");
}

#[test]
fn a_listing_of_too_many_files_is_truncated() {
    let digest = format!("sha256:{}", "0".repeat(64));
    let entry = |n: usize| {
        let uri = |f: &str| format!("skill://s{n}/{f}");
        let row = |f: String| json!({"uri": uri(&f), "digest": digest, "size": 1});
        let rows = (0..511)
            .map(|f| row(format!("f{f}")))
            .chain([row("SKILL.md".into())]);
        json!({"uri": uri("SKILL.md"), "frontmatter": {"name": format!("s{n}"), "description": "d"},
            "resources": rows.collect::<Vec<_>>()})
    };
    let mut rig = Rig::with_limit(200);
    let entries: Vec<Value> = (0..1_060).map(entry).collect();
    rig.scene(
        "lab",
        json!({"skills": [], "entries": entries, "page": 40, "ttlMs": 600_000}),
    );
    let target = rig.scripted("lab");
    rig.mount(&[("lab", &target)], &[]);
    until("the listing", 120.0, || {
        rig.server("lab")["listing"] == "truncated"
    });
    let status = rig.server("lab");
    assert!(
        status["listing_reason"]
            .to_string()
            .contains("500000 files"),
        "it says why"
    );
    let dirs = rig.ls("lab").unwrap().len();
    assert!((970..1_060).contains(&dirs), "{dirs} skills came");
    until("the listing to be stored", 30.0, || {
        rig.stored("state")
            .iter()
            .any(|(p, _)| p.ends_with("listing.json"))
    });
    small(&rig);
}

#[test]
fn a_reply_of_many_items_is_no_content() {
    let size = (16 << 20) - 4096;
    let mut rig = Rig::new();
    let big = json!({"fill": "x", "size": size});
    let raw = reply("{\"contents\":[", items("{\"uri\":\"\"}", 90 << 20), "]}");
    let rule = json!({"method": "resources/read", "uri": "skill://s/big", "raw": raw});
    let scene =
        json!({"skills": [skill("s", json!({"a.txt": "a\n", "big": big}))], "rules": [rule]});
    rig.scene("lab", scene);
    rig.up_beside_control(&["lab"], "30", &[]);
    let standing = Standing::begin(&rig, 30.0, &[A]);
    assert_eq!(standing.read(&rig, "lab/s/big"), Err("EIO"));
    let reason = rig.refusal("lab", "lab/s/big")["reason"].to_string();
    assert!(reason.contains("more than 16 items"), "{reason}");
    small(&rig);
    standing.end(&rig);
}

#[test]
fn a_directory_without_end_is_shown_in_part() {
    let children: Vec<Value> = (0..12_000)
        .map(|n| json!({"uri": format!("skill://team/d{n}"), "name": format!("d{n}"), "mimeType": "inode/directory"}))
        .collect();
    let rule = json!({"method": "resources/directory/read", "result": {"resources": children}});
    let mut scene =
        json!({"skills": [skill("team/one", json!({}))], "directoryRead": true, "rules": [rule]});
    scene["ttlMs"] = 600_000.into();
    let mut rig = Rig::new();
    rig.scene("lab", scene);
    rig.up(&["lab"], &[]);
    until("what it shows", 20.0, || {
        rig.ls("lab/team").unwrap().len() > 1000
    });
    assert_eq!(rig.ls("lab/team").unwrap().len(), 10_000 + 1);
    assert!(
        rig.words().contains("more than 10000 names"),
        "{}",
        rig.words()
    );
    assert_eq!(rig.cat("lab/team/one/SKILL.md"), ok(&skill_md("one")));
    small(&rig);
}

#[test]
fn a_server_that_lies_about_everything_fills_neither_log_nor_status() {
    let files: serde_json::Map<String, Value> = (0..400)
        .map(|n| {
            (
                format!("f{n}"),
                json!({"text": "right", "serve": format!("wrong {n}")}),
            )
        })
        .collect();
    let mut rig = Rig::new();
    let mut scene = json!({"skills": [skill("s", Value::Object(files))]});
    scene["rules"] = json!([{"method": "skills/get", "error": {"code": -32603, "message": "\u{1b}[2J".repeat(5000)}}]);
    rig.scene("lab", scene);
    rig.up_beside_control(&["lab"], "20", &[]);
    let standing = Standing::begin(&rig, 20.0, &[("lab/s/SKILL.md", &skill_md("s"))]);
    assert_ne!(rig.sh("cat $M/lab/s/f*").code, Some(0));
    let lines = || {
        rig.words()
            .lines()
            .filter(|l| l.contains("refused"))
            .count()
    };
    assert_eq!(lines(), 100, "{}", rig.words().len());
    assert!(rig.words().contains("more of this server is not logged"));
    assert!(rig.words().len() < 100_000 && !rig.words().contains('\u{1b}'));
    let refused = rig.server("lab")["refused"].as_array().unwrap().len();
    assert_eq!(refused, 100);
    standing.end(&rig);
}
