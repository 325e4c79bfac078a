//! Hostile and merely odd servers, as data: each directory of tests/hostile holds one `vector.json`,
//! a scene of the scripted server and what the mount must make of it.
//!
//! - `why`: one line that says what is odd and which requirement it is about.
//! - `scene`: for tests/servers/scripted.py. Its listing holds for an hour unless it says otherwise.
//! - `beside`: perhaps a scene and what is expected of it, for another server in the same mount.
//! - `expect`, all of it exact:
//!   - `tree`: all files below the label; or `{"files": how many}`; or `{"errno": ""}` of listing it.
//!   - `reads`: pairs of a path and what reading it gives, in this order: a text, `{"b64": ""}`,
//!     `{"sha256", "size"}`, or `{"errno", "because"}` with a part of the reason in the status.
//!   - `declined`: URI → a part of the reason; "" for an entry without one.
//!   - `listing` (default `current`) and `because`, a part of the reason why it is not.
//!   - `warns`: parts of warnings. `skills`: path → fields of its status.
//!   - `wire`: how many requests of which method the server saw in all.
//!
//! A name that ends in `_ok` is of a vector that must do no harm to the skill: nothing is declined or
//! refused. One that ends in `_fail` has something that is, with a reason. What comes before the
//! first hyphen is the test that runs it.

use crate::rig::{Rig, project, run, sha256, wait};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// How many servers one mount has.
const LABELS: usize = 32;
/// The label of the server that does everything right.
const ORDINARY: &str = "ordinary";

struct Vector {
    name: String,
    why: String,
    /// The servers: label, scene, what to expect.
    servers: Vec<(String, Value, Value)>,
}

impl Vector {
    fn is_ok(&self) -> bool {
        self.name.ends_with("_ok")
    }
}

/// The vectors of a group, by name; of all groups if it is empty.
fn vectors(group: &str) -> Vec<Vector> {
    let dirs = fs::read_dir(project().join("tests/hostile")).unwrap();
    let mut names: Vec<String> = dirs
        .map(|d| d.unwrap().file_name().into_string().unwrap())
        .collect();
    names.retain(|n| group.is_empty() || n.split('-').next() == Some(group));
    names.sort();
    names.into_iter().map(vector).collect()
}

fn vector(name: String) -> Vector {
    let file = project().join(format!("tests/hostile/{name}/vector.json"));
    let text = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{file:?}: {e}"));
    let v: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{file:?}: {e}"));
    let mut servers = vec![(name.clone(), v["scene"].clone(), v["expect"].clone())];
    if let Some(beside) = v.get("beside") {
        let label = format!("{name}.beside");
        servers.push((label, beside["scene"].clone(), beside["expect"].clone()));
    }
    Vector {
        why: v["why"].as_str().unwrap_or_default().to_owned(),
        name,
        servers,
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Serves the vectors of a group, many in each mount, and checks all of them.
fn all(group: &str) {
    let vectors = vectors(group);
    let mut wrong = Vec::new();
    let mut seen = 0;
    for some in vectors.chunks(LABELS) {
        wrong.extend(together(some));
        seen += some.len();
    }
    assert_eq!(seen, vectors.len());
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// Serves vectors from one mount. What is wrong with which.
fn together(vectors: &[Vector]) -> Vec<String> {
    let mut rig = Rig::with_limit(150);
    let files = json!({"SKILL.md": "---\nname: s\ndescription: d\n---\n", "a.txt": "as ever\n"});
    rig.scene(
        ORDINARY,
        json!({"skills": [{"path": "s", "files": files}], "ttlMs": 3_600_000}),
    );
    let mut labels = vec![ORDINARY.to_owned()];
    for (label, scene, _) in vectors.iter().flat_map(|v| &v.servers) {
        let mut scene = scene.clone();
        scene
            .as_object_mut()
            .unwrap()
            .entry("ttlMs")
            .or_insert(json!(3_600_000));
        rig.scene(label, scene);
        labels.push(label.clone());
    }
    let before = names_in(&rig);
    let targets: Vec<String> = labels.iter().map(|l| rig.scripted(l)).collect();
    let servers: Vec<(&str, &str)> = labels
        .iter()
        .map(String::as_str)
        .zip(targets.iter().map(String::as_str))
        .collect();
    rig.mount(&servers, &["--timeout", "8"]);
    let none: Vec<&str> = vectors
        .iter()
        .flat_map(|v| &v.servers)
        .filter(|(_, _, expect)| expect["listing"] == "none")
        .map(|(label, _, _)| label.as_str())
        .collect();
    wait("all listings, or their failures", 60.0, || {
        let status = rig.status();
        let settled = |s: &Value| match none.contains(&text(&s["label"])) {
            true => s["reason"].is_string(),
            false => s["state"] == "ready" && s["listing"] != "none",
        };
        list(&status["servers"]).iter().all(settled).then_some(())
    });

    let tree = tree(&rig);
    let looked = labels.iter().filter(|l| rig.seen(l, "resources/read") > 0);
    let mut wrong: Vec<String> = looked
        .map(|l| format!("{l}: looking at names asked the server for content"))
        .collect();
    for vector in vectors {
        for (label, _, expect) in &vector.servers {
            wrong.extend(reads(&rig, label, expect));
        }
    }
    let status = rig.status();
    for vector in vectors {
        for (label, _, expect) in &vector.servers {
            let server = list(&status["servers"])
                .iter()
                .find(|s| s["label"] == label.as_str());
            let server = server.unwrap();
            let mine = tree.get(label.as_str()).cloned().unwrap_or_default();
            let found = [
                names(&rig, label, expect, &mine),
                said(label, expect, server),
                wire(&rig, label, expect),
            ];
            wrong.extend(
                found
                    .concat()
                    .into_iter()
                    .map(|w| format!("{w}\n    ({})", vector.why)),
            );
        }
        let servers = list(&status["servers"]).iter();
        let mine: Vec<&Value> = servers
            .filter(|s| vector.servers.iter().any(|v| s["label"] == v.0.as_str()))
            .collect();
        let objected: usize = mine
            .iter()
            .map(|s| {
                list(&s["declined"]).len()
                    + list(&s["refused"]).len()
                    + usize::from(s["listing"] != "current")
            })
            .sum();
        if (objected > 0) == vector.is_ok() {
            wrong.push(format!("{}: {objected} objections: {mine:#?}", vector.name));
        }
    }
    // Nothing of a vector is anywhere else, and its neighbour is as it should be.
    let outside: Vec<&str> = tree
        .keys()
        .map(String::as_str)
        .filter(|l| !labels.iter().any(|x| x == l))
        .collect();
    assert_eq!(outside, [".mount-skills", "README.md"]);
    assert_eq!(
        tree[ORDINARY],
        BTreeSet::from(["s/SKILL.md".to_owned(), "s/a.txt".to_owned()])
    );
    assert_eq!(
        rig.cat(&format!("{ORDINARY}/s/a.txt")),
        Ok("as ever\n".into())
    );
    assert_eq!(rig.seen(ORDINARY, "resources/read"), 1);
    let made = ["daemon.err", "daemon.out"].map(str::to_owned);
    let logs = labels
        .iter()
        .flat_map(|l| ["log", "counts"].map(|e| format!("{l}.scene.{e}")));
    let expected: BTreeSet<String> = before.into_iter().chain(made).chain(logs).collect();
    assert_eq!(
        names_in(&rig),
        expected,
        "nothing else was written beside the mount"
    );
    assert!(rig.daemon_runs());
    wrong
}

fn names_in(rig: &Rig) -> BTreeSet<String> {
    let entries = fs::read_dir(rig.dir()).unwrap();
    entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// All files below the mount point: by the first name the paths below it.
fn tree(rig: &Rig) -> BTreeMap<String, BTreeSet<String>> {
    let out = run(rig.command("find").arg(rig.mount_point()).args([
        "-mindepth",
        "1",
        "-printf",
        "%y %P\\0",
    ]));
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let all = String::from_utf8(out.out).unwrap();
    for line in all.split_terminator('\0') {
        let (kind, path) = line.split_once(' ').unwrap();
        assert!(kind == "d" || kind == "f", "{line:?}");
        let (top, below) = path.split_once('/').unwrap_or((path, ""));
        let files = found.entry(top.to_owned()).or_default();
        if kind == "f" && !below.is_empty() {
            assert!(files.insert(below.to_owned()), "{line:?} is there twice");
        }
    }
    found
}

fn names(rig: &Rig, label: &str, expect: &Value, found: &BTreeSet<String>) -> Vec<String> {
    let right = match &expect["tree"] {
        Value::Array(paths) => *found == paths.iter().map(|p| text(p).to_owned()).collect(),
        Value::Object(o) if o.contains_key("files") => o["files"] == found.len(),
        other => rig.ls(label) == Err(text(&other["errno"])) && found.is_empty(),
    };
    match right {
        true => vec![],
        false => vec![format!(
            "{label}: tree {found:?}, ls {:?}, expected {}",
            rig.ls(label),
            expect["tree"]
        )],
    }
}

fn reads(rig: &Rig, label: &str, expect: &Value) -> Vec<String> {
    use base64::Engine as _;
    let mut wrong = Vec::new();
    for read in list(&expect["reads"]) {
        let (path, want) = (text(&read[0]), &read[1]);
        let out = run(rig.command("cat").arg(rig.path(&format!("{label}/{path}"))));
        let errno = out.errno();
        let right = match want {
            Value::String(text) => out.code == Some(0) && out.out == text.as_bytes(),
            _ if want["errno"].is_string() => errno == want["errno"].as_str() && out.out.is_empty(),
            _ if want["b64"].is_string() => {
                let bytes = base64::engine::general_purpose::STANDARD.decode(text(&want["b64"]));
                out.code == Some(0) && out.out == bytes.unwrap()
            }
            _ => {
                out.code == Some(0)
                    && want["size"] == out.out.len()
                    && want["sha256"] == sha256(&out.out)
            }
        };
        if !right {
            let got = String::from_utf8_lossy(&out.out[..out.out.len().min(200)]).into_owned();
            wrong.push(format!(
                "{label}/{path}: {errno:?} {got:?} {}, expected {want}",
                out.err
            ));
        }
    }
    wrong
}

/// Checks what the status says of a server.
fn said(label: &str, expect: &Value, server: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut check = |right: bool, what: String| {
        if !right {
            wrong.push(format!("{label}: {what}"));
        }
    };
    let listing = expect["listing"].as_str().unwrap_or("current");
    check(
        server["listing"] == listing,
        format!("listing {}, expected {listing}", server["listing"]),
    );
    if let Some(because) = expect["because"].as_str() {
        let reason = format!("{} {}", server["reason"], server["listing_reason"]);
        check(
            reason.contains(because),
            format!("{reason:?} does not say {because:?}"),
        );
    }
    let declined = list(&server["declined"]);
    let expected = expect["declined"].as_object().cloned().unwrap_or_default();
    check(
        declined.len() == expected.len(),
        format!("declined {declined:#?}, expected {expected:?}"),
    );
    for (uri, because) in &expected {
        let row = declined
            .iter()
            .find(|d| d["uri"].as_str().unwrap_or("") == uri);
        let reason = row.map_or("", |r| text(&r["reason"]));
        check(
            !reason.is_empty() && reason.contains(text(because)),
            format!("{uri} is declined for {reason:?}, expected {because}"),
        );
    }
    let mut refusals = BTreeSet::new();
    for read in list(&expect["reads"]) {
        let (path, want) = (format!("{label}/{}", text(&read[0])), &read[1]);
        let Some(because) = want["because"].as_str() else {
            continue;
        };
        refusals.insert(path.clone());
        let row = list(&server["refused"]).iter().rfind(|r| r["path"] == path);
        let Some(row) = row else {
            check(
                false,
                format!("no refusal of {path}: {:#}", server["refused"]),
            );
            continue;
        };
        let words = format!(
            "{} {} {}",
            text(&row["reason"]),
            row["expected"].as_str().unwrap_or(""),
            row["found"].as_str().unwrap_or("")
        );
        check(
            row["errno"] == want["errno"] && words.contains(because),
            format!("{path}: {} {words:?}, expected {want}", row["errno"]),
        );
    }
    let rows: BTreeSet<String> = list(&server["refused"])
        .iter()
        .map(|r| text(&r["path"]).to_owned())
        .collect();
    check(
        rows == refusals,
        format!("refused {rows:?}, expected {refusals:?}"),
    );
    let skills = list(&server["skills"]);
    let warnings: Vec<&Value> = skills
        .iter()
        .flat_map(|s| list(&s["warnings"]))
        .chain(list(&server["warnings"]))
        .collect();
    for warning in list(&expect["warns"]) {
        check(
            warnings.iter().any(|w| text(w).contains(text(warning))),
            format!("no warning {warning}: {warnings:?}"),
        );
    }
    for (path, fields) in expect["skills"].as_object().into_iter().flatten() {
        let skill = skills
            .iter()
            .find(|s| s["path"] == format!("{label}/{path}"));
        for (field, want) in fields.as_object().unwrap() {
            let got = skill.map_or(&Value::Null, |s| &s[field]);
            let same = got == want
                || got
                    .as_str()
                    .is_some_and(|g| g == format!("{label}/{}", text(want)));
            check(same, format!("{path}: {field} is {got}, expected {want}"));
        }
    }
    wrong
}

fn wire(rig: &Rig, label: &str, expect: &Value) -> Vec<String> {
    let counts = expect["wire"].as_object().unwrap().iter();
    counts
        .filter(|(method, want)| **want != rig.seen(label, method))
        .map(|(method, want)| {
            format!(
                "{label}: {} {method}, expected {want}",
                rig.seen(label, method)
            )
        })
        .collect()
}

#[test]
fn hr18_hr30_to_hr44_entries() {
    all("entry");
}

#[test]
fn hr11_hr20_to_hr22_names() {
    all("name");
}

#[test]
fn hr64_to_hr66_frontmatter() {
    all("front");
}

#[test]
fn hr56_hr62_hr63_replies() {
    all("reply");
}

#[test]
fn hr43_hr45_hr54_pages() {
    all("page");
}

#[test]
fn threats() {
    all("threat");
}

#[test]
fn the_vectors_say_why_and_are_of_both_kinds() {
    let all = vectors("");
    assert!(all.len() >= 120, "{}", all.len());
    let ok = all.iter().filter(|v| v.is_ok()).count();
    assert!(
        (25..=45).contains(&(100 * ok / all.len())),
        "{ok} of {} are ok",
        all.len()
    );
    let mut whys = BTreeSet::new();
    for v in &all {
        let group = v.name.split('-').next().unwrap();
        assert!(
            ["entry", "name", "front", "reply", "page", "threat"].contains(&group),
            "{}",
            v.name
        );
        assert!(v.is_ok() || v.name.ends_with("_fail"), "{}", v.name);
        assert!(
            v.why.len() > 20 && !v.why.contains('\n'),
            "{}: {}",
            v.name,
            v.why
        );
        assert!(whys.insert(&v.why), "{}: {} is said twice", v.name, v.why);
        let (mut good, mut bad) = (0, 0);
        for (label, _, expect) in &v.servers {
            assert!(
                expect["wire"].is_object() && !expect["tree"].is_null(),
                "{label}"
            );
            for read in list(&expect["reads"]) {
                match read[1]["because"].as_str() {
                    Some(because) => {
                        assert!(because.len() > 1, "{label}: {read}");
                        bad += 1;
                    }
                    None => good += usize::from(read[1]["errno"].is_null()),
                }
            }
            bad += expect["declined"].as_object().map_or(0, |d| d.len());
            bad += usize::from(expect["because"].is_string());
        }
        assert!(
            if v.is_ok() {
                good > 0 && bad == 0
            } else {
                bad > 0
            },
            "{}",
            v.name
        );
    }
}
