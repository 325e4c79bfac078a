//! No byte leaves the mount that does not fit the entry, and the reason is one command away.

use crate::rig::{Rig, ok, sha256, skill, skill_md, until};
use crate::standing::Standing;
use serde_json::{Value, json};

/// In everything that must never be seen.
const MARKER: &str = "LEAK-c0ffee";
/// How a server lies about one file, and what the status must hold about it.
struct Lie {
    file: &'static str,
    right: Vec<u8>,
    rule: Value,
    expected: String,
    found: String,
}

impl Lie {
    fn uri(&self) -> String {
        format!("skill://s/{}", self.file)
    }
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// A lie about a text; each text is another, since what has the same bytes is one file.
fn lie(file: &'static str, found: &str, rule: impl Fn(&str, &str) -> Value) -> Lie {
    let right = format!("the right content of {file}\n");
    let rule = rule(&format!("skill://s/{file}"), &right);
    let (expected, found) = ("the content of a listed file".into(), found.into());
    Lie {
        file,
        right: right.into(),
        rule,
        expected,
        found,
    }
}

/// A lie that is found out by the length of what came.
fn sized(file: &'static str, change: fn(&str) -> String) -> Lie {
    let mut lie = lie(file, "", |_, text| json!({"serve": change(text)}));
    lie.expected = format!("{} bytes", lie.right.len());
    lie.found = format!("{} bytes", lie.rule["serve"].as_str().unwrap().len());
    lie
}

/// A lie about base64. The content has all bytes, so its base64 has the whole alphabet.
fn coded(file: &'static str, found: &str, change: fn(&str) -> Value) -> Lie {
    let right: Vec<u8> = (0..=255u8).cycle().skip(file.len()).take(1024).collect();
    let mut item = change(&base64(&right));
    item["uri"] = format!("skill://s/{file}").into();
    let expected = if found.ends_with("bytes") {
        "1024 bytes"
    } else {
        "content"
    };
    Lie {
        file,
        rule: json!({"contents": [item]}),
        right,
        expected: expected.into(),
        found: found.into(),
    }
}

fn lies() -> Vec<Lie> {
    let contents = |items: Value| json!({"contents": items});
    let raw = |uri: &str, text: &str| {
        let item = format!("{{\"uri\":\"{uri}\",\"text\":\"{text}\"}}");
        let result = format!("{{\"contents\":[{item}]}}");
        json!({"raw": format!("{{\"jsonrpc\":\"2.0\",\"id\":@ID@,\"result\":{result}}}")})
    };
    let error = |code: i32| json!({"error": {"code": code, "message": "No"}});
    let evil = |text: &str| format!("{MARKER}{}", &text[MARKER.len()..]);
    let digest = |text: &[u8]| format!("sha256:{}", sha256(text));
    let mut flipped = lie("flipped", "", |_, text| json!({"serve": evil(text)}));
    flipped.expected = digest(&flipped.right);
    flipped.found = digest(flipped.rule["serve"].as_str().unwrap().as_bytes());
    vec![
        flipped,
        sized("short", |text| text[..text.len() - 1].into()),
        sized("long", |text| format!("{text}{MARKER}")),
        sized("empty", |_| String::new()),
        lie("other", "skill://s/flipped", |_, text| {
            contents(json!([{"uri": "skill://s/flipped", "text": text}]))
        }),
        lie("two", "found 2", |uri, text| {
            let item = json!({"uri": uri, "text": text});
            contents(json!([item, item]))
        }),
        lie("none", "found 0", |_, _| contents(json!([]))),
        lie("both", "both text and blob", |uri, text| {
            contents(json!([{"uri": uri, "text": text, "blob": base64(text.as_bytes())}]))
        }),
        lie("neither", "neither text nor blob", |uri, _| {
            contents(json!([{"uri": uri}]))
        }),
        lie("surrogate", "malformed", |uri, text| {
            raw(uri, &format!("\\ud800{}", text.trim()))
        }),
        lie(
            "null",
            "malformed",
            |_, _| json!({"raw": "{\"jsonrpc\":\"2.0\",\"id\":@ID@,\"result\":null}"}),
        ),
        lie(
            "later",
            "later",
            |_, _| json!({"result": {"resultType": "later"}}),
        ),
        lie("unknown", "-32602", |_, _| error(-32602)),
        lie("internal", "-32603", |_, _| error(-32603)),
        coded(
            "b64-url",
            "base64",
            |b| json!({"blob": b.replace('+', "-").replace('/', "_")}),
        ),
        coded("b64-lines", "base64", |b| {
            let lines = b.as_bytes().chunks(76).map(String::from_utf8_lossy);
            json!({"blob": lines.collect::<Vec<_>>().join("\r\n")})
        }),
        coded(
            "b64-unpadded",
            "base64",
            |b| json!({"blob": b.trim_end_matches('=')}),
        ),
        coded(
            "b64-star",
            "base64",
            |b| json!({"blob": format!("{}*{}", &b[..600], &b[601..])}),
        ),
        coded(
            "b64-twice",
            "1368 bytes",
            |b| json!({"blob": base64(b.as_bytes())}),
        ),
        coded("b64-as-text", "1368 bytes", |b| json!({"text": b})),
    ]
}

#[test]
fn c52_c53_hr56_hr57_hr62_every_lie_is_refused_explained_and_mendable() {
    let mut rig = Rig::new();
    let mut files = serde_json::Map::new();
    let mut rules = Vec::new();
    for lie in lies() {
        files.insert(lie.file.into(), json!({"b64": base64(&lie.right)}));
        let mut rule = lie.rule.clone();
        rule["method"] = "resources/read".into();
        rule["uri"] = lie.uri().into();
        rules.push(rule);
    }
    files.insert("neighbour".into(), json!("all is well\n"));
    let skills = json!([skill("s", Value::Object(files)), skill("beside", json!({}))]);
    rig.scene("lab", json!({"skills": skills, "rules": rules}));
    rig.up(&["lab"], &[]);

    for lie in lies() {
        let (file, path) = (lie.file, format!("lab/s/{}", lie.file));
        let gets = rig.seen("lab", "skills/get");
        assert_eq!(rig.cat(&path), Err("EIO"), "{file}");
        let looked = rig.seen("lab", "skills/get") - gets;
        assert_eq!(looked, 1, "{file}: one look whether the entry changed");
        assert_eq!(rig.reads("lab")[&lie.uri()], 1, "{file}: no retry storm");
        let refusal = rig.refusal("lab", &path);
        assert_eq!(refusal["uri"], lie.uri().as_str());
        for (field, word) in [("expected", &lie.expected), ("found", &lie.found)] {
            let text = refusal[field].as_str().unwrap_or_default();
            assert!(text.contains(word), "{file}: {refusal:#}");
        }
        assert_eq!(
            rig.cat("lab/s/neighbour"),
            ok("all is well\n"),
            "beside {file}"
        );
    }
    assert_eq!(rig.cat("lab/beside/SKILL.md"), ok(&skill_md("beside")));

    let seen = rig.words() + &rig.status().to_string();
    assert!(
        !seen.contains(MARKER),
        "refused content in the daemon's words: {seen}"
    );
    let kept = rig.sh(&format!("grep -rl {MARKER} cache state run; true"));
    assert_eq!(kept.good(), "", "refused content is kept");

    rig.scene("lab", json!({"skills": skills}));
    for lie in lies() {
        let path = rig.path(&format!("lab/s/{}", lie.file));
        until(lie.file, 5.0, || {
            std::fs::read(&path).is_ok_and(|b| b == lie.right)
        });
    }
}

#[test]
fn c52_text_that_was_altered_on_the_way_is_refused_with_the_sizes_and_a_hint() {
    let mut rig = Rig::new();
    // What the entry was made from, what is served, and what the reason points to.
    let altered: [(&str, &[u8], &[u8], &str); 3] = [
        (
            "ends",
            b"step one\r\nstep two\r\n",
            b"step one\nstep two\n",
            "line ends differ",
        ),
        (
            "last",
            b"hello world\n",
            b"hello world",
            "last line break is missing",
        ),
        ("coded", b"caf\xe9\n", "caf\u{fffd}\n".as_bytes(), "U+FFFD"),
    ];
    let mut files = json!({"good": "good\n"});
    for (name, right, served, _) in altered {
        files[name] = json!({"b64": base64(right), "serve": String::from_utf8_lossy(served)});
    }
    rig.scene("lab", json!({"skills": [skill("s", files)]}));
    rig.up(&["lab"], &[]);
    for (name, right, served, hint) in altered {
        let path = format!("lab/s/{name}");
        let gets = rig.seen("lab", "skills/get");
        assert_eq!(rig.cat(&path), Err("EIO"), "{name}");
        assert_eq!(rig.seen("lab", "skills/get"), gets + 1, "{name}: one look");
        let refusal = rig.refusal("lab", &path);
        let sizes = [("expected", right), ("found", served)];
        for (side, bytes) in sizes {
            let text = refusal[side].as_str().unwrap();
            assert!(
                text.contains(&format!("{} bytes", bytes.len())),
                "{refusal:#}"
            );
        }
        assert!(refusal.to_string().contains(hint), "{name}: {refusal:#}");
        assert_eq!(rig.cat("lab/s/good"), ok("good\n"));
    }
}

#[test]
fn hr119_a_failure_is_of_one_uri_and_not_of_another_with_the_same_bytes() {
    let mut rig = Rig::new();
    let files = json!({"bad": "same\n", "good": "same\n", "hung": "like\n", "quick": "like\n"});
    let rules = json!([
        {"method": "resources/read", "uri": "skill://s/bad", "serve": "evil\n"},
        {"method": "resources/read", "uri": "skill://s/hung", "hang": true},
    ]);
    rig.scene(
        "lab",
        json!({"skills": [skill("s", files)], "rules": rules}),
    );
    rig.up(&["lab"], &["--timeout", "5"]);
    assert_eq!(rig.cat("lab/s/bad"), Err("EIO"));
    assert_eq!(rig.cat("lab/s/good"), ok("same\n"));
    let hung = rig.cat_later("lab/s/hung");
    until("a read of it", 5.0, || {
        rig.reads("lab").contains_key("skill://s/hung")
    });
    assert_eq!(rig.cat("lab/s/quick"), ok("like\n"));
    drop(hung);
}

#[test]
fn c52_c53_standard_base64_and_text_of_anything_read_back() {
    let mut rig = Rig::new();
    let all: Vec<u8> = (0..=255u8).cycle().take(1024).collect();
    let files = json!({"text-as-blob": {"text": "plain\n", "as": "blob"}, "latin1": {"b64": "Y2Fm6Qo="},
        "crlf": "step one\r\nstep two\r\n", "all": {"b64": base64(&all)}, "bom": "\u{feff}x\n", "nul": "a\0b\n", "empty-blob": {"text": "", "as": "blob"}, "empty": ""});
    rig.scene("lab", json!({"skills": [skill("s", files)]}));
    rig.up(&["lab"], &[]);
    for (name, want) in [
        ("text-as-blob", &b"plain\n"[..]),
        ("latin1", b"caf\xe9\n"),
        ("crlf", b"step one\r\nstep two\r\n"),
        ("all", &all),
        ("bom", "\u{feff}x\n".as_bytes()),
        ("nul", b"a\0b\n"),
        ("empty-blob", b""),
        ("empty", b""),
    ] {
        assert_eq!(
            std::fs::read(rig.path(&format!("lab/s/{name}"))).unwrap(),
            want,
            "{name}"
        );
    }
}

#[test]
fn hr64_hr65_one_field_of_the_frontmatter_that_differs_refuses_the_skill_md() {
    let mut rig = Rig::new();
    let text = format!(
        "---\nname: NAME\ndescription: D\nmetadata:\n  v: 1.10\n  tags: [a, b]\n---\n{MARKER}\n"
    );
    let front = |name: &str, description: &str, metadata: Value| {
        json!({"path": name, "files": {"SKILL.md": text.replace("NAME", name), "a.txt": "a\n"},
            "entry": {"frontmatter": {"name": name, "description": description, "metadata": metadata}}})
    };
    let right = json!({"v": 1.1, "tags": ["a", "b"]});
    let mut extra = front("extra", "D", right.clone());
    extra["entry"]["frontmatter"]["license"] = "MIT".into();
    let mut missing = front("missing", "D", right.clone());
    missing["entry"]["frontmatter"]
        .as_object_mut()
        .unwrap()
        .remove("metadata");
    let bad = [
        ("description", front("description", "E", right.clone())),
        (
            "value",
            front("value", "D", json!({"v": 1.2, "tags": ["a", "b"]})),
        ),
        (
            "order",
            front("order", "D", json!({"v": 1.1, "tags": ["b", "a"]})),
        ),
        ("extra", extra),
        ("missing", missing),
    ];
    let mut skills = vec![front("good", "D", right)];
    skills.extend(bad.iter().map(|(_, s)| s.clone()));
    rig.scene("lab", json!({"skills": skills}));
    rig.up(&["lab"], &[]);
    for ((name, _), field) in bad.iter().zip([
        "description",
        "metadata.v",
        "metadata.tags",
        "license",
        "metadata",
    ]) {
        let path = format!("lab/{name}/SKILL.md");
        assert_eq!(rig.cat(&path), Err("EIO"), "{name}");
        let refusal = rig.refusal("lab", &path);
        assert!(
            refusal["reason"].as_str().unwrap().contains(field),
            "{name}: {refusal:#}"
        );
    }
    assert_eq!(
        rig.sh(&format!(
            "grep -rl {MARKER} cache state run daemon.out daemon.err; true"
        ))
        .good(),
        ""
    );
    assert_eq!(
        rig.cat("lab/good/SKILL.md"),
        ok(&text.replace("NAME", "good"))
    );
    assert_eq!(
        rig.cat("lab/extra/a.txt"),
        ok("a\n"),
        "only the SKILL.md is what differs"
    );
}

#[test]
fn c54_hr58_hr59_a_change_between_list_and_read_is_estale_then_new_content_never_a_mix() {
    let mut rig = Rig::new();
    let version = |n: usize| format!("version={n} ").repeat(1 + n * 2000);
    let scene =
        |n: usize| json!({"skills": [skill("s", json!({"f": version(n)}))], "ttlMs": 3_600_000});
    rig.scene("lab", scene(0));
    rig.up(&["lab"], &["--hold", "none"]);
    assert_eq!(rig.cat("lab/s/SKILL.md"), ok(&skill_md("s")));

    // Nobody has read f yet: the server changes it under the listing that we hold.
    rig.scene("lab", scene(1));
    assert_eq!(rig.cat("lab/s/f"), Err("ESTALE"));
    let refusal = rig.refusal("lab", "lab/s/f");
    assert!(
        refusal["reason"]
            .as_str()
            .unwrap()
            .contains("changed on its server"),
        "{refusal:#}"
    );
    assert_eq!(rig.cat("lab/s/f"), ok(&version(1)));
    assert_eq!(
        std::fs::metadata(rig.path("lab/s/f")).unwrap().len(),
        version(1).len() as u64
    );

    // Readers in a loop while it changes and the listing is asked for again.
    let mount = rig.path("lab/s/f").display().to_string();
    let loops =
        format!("for i in $(seq 60); do sha256sum < {mount} 2>/dev/null || echo failed; done");
    let readers: Vec<_> = (0..4)
        .map(|_| crate::rig::Proc::spawn(rig.command("bash").args(["-c", &loops])))
        .collect();
    for n in 2..5 {
        let mut next = scene(n);
        next["ttlMs"] = 0.into();
        rig.scene("lab", next);
        rig.kill_server_for_a_new_listing("lab");
    }
    let known: Vec<String> = (1..5)
        .map(|n| format!("{}  -", sha256(version(n).as_bytes())))
        .collect();
    for reader in readers {
        for line in reader.finish(60.0).text().lines() {
            assert!(
                line == "failed" || known.iter().any(|k| k == line),
                "a mix: {line}"
            );
        }
    }
    until("the last version", 10.0, || {
        rig.cat("lab/s/f") == ok(&version(4))
    });
}

#[test]
fn hr18_hr22_hr30_to_hr39_declined_entries_are_seen_and_not_read_and_say_why() {
    let mut rig = Rig::new();
    let entry = |path: &str, changes: Value| json!({"path": path, "files": {"a.txt": "a\n"}, "entry": changes});
    let row =
        |uri: &str| json!({"uri": uri, "digest": format!("sha256:{}", "0".repeat(64)), "size": 1});
    let rows = |path: &str, rows: Vec<Value>| json!({"path": path, "rows": rows});
    let sized = |path: &str, size: Value| json!({"path": path, "files": {"a": {"text": "a", "row": {"size": size}}}});
    let digested = |path: &str, digest: &str| json!({"path": path, "files": {"a": {"text": "a", "row": {"digest": digest}}}});
    let many = (0..512)
        .map(|n| row(&format!("skill://many/{n}")))
        .collect();
    let hex = "a".repeat(64);
    let cases: Vec<(&str, Value, &str)> = vec![
        (
            "absent",
            entry("absent", json!({"resources": null})),
            "missing",
        ),
        (
            "dynamic",
            entry("dynamic", json!({"resources": "dynamic"})),
            "dynamic",
        ),
        (
            "word",
            entry("word", json!({"resources": "static"})),
            "resources",
        ),
        (
            "no-self",
            json!({"path": "no-self", "files": {"SKILL.md": {"text": skill_md("no-self"), "listed": false}, "a": "a"}}),
            "SKILL.md",
        ),
        (
            "renamed",
            entry(
                "renamed",
                json!({"frontmatter": {"name": "other", "description": "d"}}),
            ),
            "other",
        ),
        (
            "nameless",
            entry("nameless", json!({"frontmatter": {"description": "d"}})),
            "name",
        ),
        ("many", rows("many", many), "513"),
        ("large", sized("large", json!(16 << 20)), "16777"),
        ("float", sized("float", json!(1.5)), "size"),
        ("negative", sized("negative", json!(-1)), "size"),
        ("unsized", sized("unsized", json!(null)), "size"),
        ("md5", digested("md5", "md5:0123"), "digest"),
        (
            "upper",
            digested("upper", &format!("sha256:{}", hex.to_uppercase())),
            "digest",
        ),
        ("stub", digested("stub", "sha256:a1b2..."), "digest"),
        (
            "twice",
            rows(
                "twice",
                vec![row("skill://twice/a"), row("skill://twice/a")],
            ),
            "twice",
        ),
        (
            "same",
            rows("same", vec![row("skill://same/A"), row("skill://same/%41")]),
            "%41",
        ),
        (
            "filedir",
            rows(
                "filedir",
                vec![row("skill://filedir/a"), row("skill://filedir/a/b")],
            ),
            "directory",
        ),
        (
            "out",
            rows("out", vec![row("skill://elsewhere/a")]),
            "elsewhere",
        ),
        (
            "scheme",
            rows("scheme", vec![row("file:///etc/passwd")]),
            "passwd",
        ),
        (
            "dots",
            rows("dots", vec![row("skill://dots/%2e%2e/x")]),
            "%2e%2e",
        ),
        (
            "slash",
            rows("slash", vec![row("skill://slash/a%2fb")]),
            "%2f",
        ),
    ];
    let mut skills: Vec<Value> = cases.iter().map(|(_, s, _)| s.clone()).collect();
    skills.push(skill("good", json!({"a.txt": "a\n"})));
    let entries = json!([
        {"uri": "skill://low/skill.md", "frontmatter": {"name": "low", "description": "d"}, "resources": []},
        {"uri": "skill://../SKILL.md", "frontmatter": {"name": "..", "description": "d"}, "resources": []},
        {"no": "uri"}, 5, null,
    ]);
    rig.scene("lab", json!({"skills": skills, "entries": entries}));
    rig.up(&["lab"], &[]);

    for (name, _, why) in &cases {
        let reason = rig.declined("lab", &format!("skill://{name}/SKILL.md"));
        assert!(reason.contains(why), "{name}: {reason}");
        assert_eq!(
            rig.ls(&format!("lab/{name}")),
            Ok(vec!["SKILL.md".to_owned()]),
            "{name}"
        );
        assert_eq!(
            rig.cat(&format!("lab/{name}/SKILL.md")),
            Err("EACCES"),
            "{name}"
        );
        let mode = rig.sh(&format!("stat -c %a $M/lab/{name}/SKILL.md")).good();
        assert_eq!(mode.trim(), "0", "{name}");
    }
    rig.declined("lab", "skill://low/skill.md");
    rig.declined("lab", "skill://../SKILL.md");
    assert_eq!(
        rig.server("lab")["declined"].as_array().unwrap().len(),
        cases.len() + 5
    );
    assert!(rig.reads("lab").is_empty(), "{:?}", rig.reads("lab"));
    assert_eq!(rig.cat("lab/good/a.txt"), ok("a\n"), "the neighbour");
}

#[test]
fn f38_hr37_two_skills_that_disagree_on_a_file_fail_that_file_alone() {
    let mut rig = Rig::new();
    let outer = json!({"inner/x.txt": "as the outer skill lists it\n", "y.txt": "y\n"});
    let inner = json!({"x.txt": "as the inner skill lists it\n", "z.txt": "z\n"});
    let skills = json!([skill("outer", outer), skill("outer/inner", inner)]);
    rig.scene("lab", json!({"skills": skills}));
    rig.up_beside_control(&["lab"], "10", &[]);
    let rest = [("lab/outer/y.txt", "y\n"), ("lab/outer/inner/z.txt", "z\n")];
    let standing = Standing::begin(&rig, 10.0, &rest);
    assert_eq!(standing.read(&rig, "lab/outer/inner/x.txt"), Err("EIO"));
    let reason = rig.refusal("lab", "lab/outer/inner/x.txt")["reason"].to_string();
    for skill in ["skill://outer/SKILL.md", "skill://outer/inner/SKILL.md"] {
        assert!(reason.contains(skill), "{reason}");
    }
    assert!(rig.reads("lab").is_empty());
    assert_eq!(
        rig.seen("lab", "skills/get"),
        2,
        "each entry is asked for once (HR-59)"
    );
    for (file, content) in rest {
        assert_eq!(standing.read(&rig, file), ok(content));
    }
    for skill in ["outer", "outer/inner"] {
        let name = skill.rsplit('/').next().unwrap();
        assert_eq!(
            rig.cat(&format!("lab/{skill}/SKILL.md")),
            ok(&skill_md(name))
        );
    }
    standing.end(&rig);
}

#[test]
fn hr09_hr10_one_uri_at_two_servers_is_two_files() {
    let mut rig = Rig::new();
    for label in ["one", "two"] {
        let text = json!({"f": format!("content of {label}\n")});
        let rules = json!([{"method": "resources/read", "delay": 0.3}]);
        rig.scene(label, json!({"skills": [skill("s", text)], "rules": rules}));
    }
    rig.up(&["one", "two"], &[]);
    let readers: Vec<_> = (0..40)
        .map(|n| ["one", "two"][n % 2])
        .map(|label| (label, rig.cat_later(&format!("{label}/s/f"))))
        .collect();
    for (label, reader) in readers {
        let got = rig.outcome(label, reader.finish(20.0));
        assert_eq!(got, ok(&format!("content of {label}\n")));
    }
    for label in ["one", "two"] {
        assert_eq!(rig.reads(label).values().sum::<usize>(), 1, "{label}");
    }
}
