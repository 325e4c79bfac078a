//! A session through a mount: the scripted server gives the replies as they are written.

use super::mutation::{Ask, Fate, Session};
use super::oracle::Given;
use super::{Case, case};
use crate::rig::{Rig, until};
use crate::standing::clean_cache;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The sessions of one mount, and how many mounts.
const LABELS: usize = 25;
const MOUNTS: usize = 2;

/// What the scripted server does for one version of a session.
fn scene(session: &Session, version: usize) -> Value {
    let mut rules = Vec::new();
    for reply in &session.versions[version] {
        let mut rule = match &reply.ask {
            Ask::Page(None) => json!({"method": "skills/list"}),
            Ask::Page(cursor) => json!({"method": "skills/list", "cursor": cursor}),
            Ask::Get(uri) => json!({"method": "skills/get", "uri": uri}),
            Ask::Read(uri) => json!({"method": "resources/read", "uri": uri}),
        };
        // A listing that does not come is waited for up to a minute, which is not done here. A
        // line that is no JSON would be no answer either.
        let patient = matches!(reply.ask, Ask::Read(_));
        let text = reply.text.replace(['\n', '\r'], " ");
        let is_json = serde_json::from_str::<&RawValue>(&text).is_ok();
        match reply.fate {
            Fate::Answer if patient || is_json => {
                let line = format!(r#"{{"jsonrpc":"2.0","id":@ID@,"result":{text}}}"#);
                rule["raw"] = json!(line);
            }
            Fate::Silent if patient => rule["hang"] = json!(true),
            Fate::Answer | Fate::Silent => rule["result"] = json!({"skills": null, "skill": null}),
            Fate::Unknown => rule["error"] = json!({"code": -32602, "message": "unknown"}),
        }
        rules.push(rule);
    }
    // The rule of the first page would take all others as well.
    rules.sort_by_key(|r| r["method"] == "skills/list" && r.get("cursor").is_none());
    json!({"skills": [], "rules": rules})
}

/// Reads all that can be read below a directory; what can be listed and no more is left out.
fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(at) = todo.pop() {
        for entry in fs::read_dir(&at).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_type().unwrap().is_dir() {
                todo.push(path);
            } else if let Ok(bytes) = fs::read(&path) {
                let below = path.strip_prefix(dir).unwrap();
                found.insert(below.to_str().unwrap().to_owned(), bytes);
            }
        }
    }
    found
}

#[test]
fn mutated_sessions_through_a_mount_give_no_wrong_byte() {
    let mut runner = TestRunner::default();
    let mut read = 0;
    for _ in 0..MOUNTS {
        let mut rig = Rig::with_limit(180);
        let cases: Vec<Case> = (0..LABELS)
            .map(|_| case().new_tree(&mut runner).unwrap().current())
            .collect();
        let sessions: Vec<Session> = cases.iter().map(Case::mutated).collect();
        let labels: Vec<String> = (0..LABELS).map(|i| format!("s{i}")).collect();
        for (label, session) in labels.iter().zip(&sessions) {
            rig.scene(label, scene(session, 0));
        }
        let targets: Vec<String> = labels.iter().map(|l| rig.scripted(l)).collect();
        let servers: Vec<(&str, &str)> = labels
            .iter()
            .zip(&targets)
            .map(|(l, t)| (&**l, &**t))
            .collect();
        rig.mount(&servers, &["--timeout", "1"]);
        for version in 0..2 {
            for ((label, session), case) in labels.iter().zip(&sessions).zip(&cases) {
                if version == 0 {
                    until("a first listing", 60.0, || {
                        rig.seen(label, "skills/list") > 0 && rig.server(label)["state"] == "ready"
                    });
                } else {
                    rig.scene(label, scene(session, 1));
                    rig.tell(&["refresh", label]);
                }
                let given = Given::of(session);
                // Twice: a read may have found another entry.
                for _ in 0..2 {
                    for (path, bytes) in contents(&rig.path(label)) {
                        let wrong = given.wrong(&path, &bytes);
                        assert!(wrong.is_none(), "I1: {}: {case:#?}", wrong.unwrap());
                        read += 1;
                    }
                }
            }
        }
        assert!(rig.daemon_runs(), "I4: {}", rig.words());
        assert!(!rig.words().contains("panicked"), "I4: {}", rig.words());
        clean_cache(&rig);
    }
    let sessions = MOUNTS * LABELS;
    assert!(read > 10 * sessions, "worth little: {read} files were read");
}
