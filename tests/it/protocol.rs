//! Servers that bend the protocol: what can be understood is used, the rest is bounded and named.

use crate::rig::{Rig, ok, sha256, skill, skill_md, until};
use serde_json::{Value, json};
use std::fs;
use std::time::{Duration, Instant};

fn two_files() -> Value {
    json!({"skills": [skill("s", json!({"a.txt": "a\n", "b.txt": "b\n"}))]})
}

fn ruled(rules: Value) -> Value {
    let mut scene = two_files();
    scene["rules"] = rules;
    scene
}

/// The entry of a skill that is just the SKILL.md a scripted server makes up.
fn entry(name: &str) -> Value {
    let (uri, text) = (format!("skill://{name}/SKILL.md"), skill_md(name));
    let digest = format!("sha256:{}", sha256(text.as_bytes()));
    json!({"uri": uri, "frontmatter": {"name": name, "description": "A scripted skill"},
        "resources": [{"uri": uri, "digest": digest, "size": text.len()}]})
}

/// Skills that are served and in no listing: the rules list them.
fn unlisted(names: &[&str], rules: Value) -> Value {
    let skills: Vec<Value> = names
        .iter()
        .map(|n| json!({"path": n, "listed": false}))
        .collect();
    json!({"skills": skills, "rules": rules})
}

fn page(cursor: Value, skills: &[&str], next: Value) -> Value {
    let skills: Vec<Value> = skills.iter().map(|n| entry(n)).collect();
    json!({"method": "skills/list", "cursor": cursor, "result": {"skills": skills, "nextCursor": next}})
}

#[test]
fn c19_lines_that_are_no_message_are_counted_and_do_no_harm() {
    let mut rig = Rig::new();
    let noise = json!(["Server v1.2 started", "", "\u{1b}[32m✅ ready\u{1b}[0m", "[INFO] {not json",
        "{\"jsonrpc\":\"2.0\",\"text\":\"\\q\"}", {"b64": "/v8AgA=="}, "[1,2]", "\"text\"", "17", "null"]);
    let mut scene = ruled(json!([{"before": noise}]));
    let mut banner = noise.clone();
    banner.as_array_mut().unwrap()[1] = json!({"fill": "log ", "size": 100_000});
    scene["start"] = json!({"banner": banner});
    rig.scene("lab", scene);
    let target = rig.scripted("lab");
    let mut command = rig.daemon_command(&[("lab", &target)], &["--timeout", "5"]);
    command.env("MOUNT_SKILLS_LOG", "info");
    rig.mount_with(command);
    rig.ready("lab");
    assert_eq!(rig.cat("lab/s/a.txt"), ok("a\n"));
    assert_eq!(rig.cat("lab/s/b.txt"), ok("b\n"));
    let connection = &rig.server("lab")["connection"];
    assert!(connection["noise"].as_u64().unwrap() >= 30, "{connection}");
    assert_eq!(
        (
            connection["connects"].as_u64(),
            rig.log("lab", "start").len()
        ),
        (Some(1), 1)
    );
    let words = rig.words();
    assert!(!words.contains('\u{1b}'));
    let said = "lab: a line on the server's stdout is no message: ";
    let shown: Vec<&str> = words
        .lines()
        .filter_map(|l| l.split_once(said))
        .map(|l| l.1)
        .collect();
    assert!((3..=5).contains(&shown.len()), "the first few: {words}");
    assert_eq!(shown[0], "Server v1.2 started");
    assert!(
        shown[1].starts_with("log log") && shown[1].len() < 250,
        "{shown:?}"
    );
    assert!(shown[2].contains("\\u{1b}[32m"), "escaped: {shown:?}");
}

#[test]
fn answers_given_twice_to_nobody_and_questions_in_between_do_no_harm() {
    let mut rig = Rig::new();
    let asked = json!([
        "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/resources/list_changed\"}",
        "{\"jsonrpc\":\"2.0\",\"id\":\"q1\",\"method\":\"ping\"}",
        "{\"jsonrpc\":\"2.0\",\"id\":\"q2\",\"method\":\"sampling/createMessage\",\"params\":{}}",
        "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/unheard-of\",\"params\":{\"x\":1}}",
    ]);
    let mut answered = asked.clone();
    answered.as_array_mut().unwrap().extend([
        json!("{\"jsonrpc\":\"2.0\",\"id\":4711,\"result\":{\"contents\":[]}}"),
        json!("{\"jsonrpc\":\"2.0\",\"id\":\"odd\",\"error\":{\"code\":-1,\"message\":\"x\"}}"),
    ]);
    let rules = json!([
        {"method": "skills/list", "twice": true, "before": answered},
        {"method": "resources/read", "twice": true, "before": answered},
        {"twice": true, "before": asked},
    ]);
    rig.scene("lab", ruled(rules));
    rig.up(&["lab"], &["--timeout", "5"]);
    for (file, content) in [("a.txt", "a\n"), ("b.txt", "b\n")] {
        assert_eq!(rig.cat(&format!("lab/s/{file}")), ok(content));
    }
    assert_eq!(
        rig.log("lab", "start").len(),
        1,
        "one connection all the time"
    );
}

#[test]
fn c20_a_flood_on_stderr_blocks_nothing_and_only_its_tail_is_kept() {
    let mut rig = Rig::new();
    // With each read as well, partly in one line without an end.
    let flood = json!({"fill": "a line of the log\n", "size": 128 << 10});
    let long = json!({"fill": "y", "size": 256 << 10});
    let mut scene = ruled(json!([
        {"method": "resources/read", "uri": "skill://s/a.txt", "stderr": flood},
        {"method": "resources/read", "stderr": long},
    ]));
    scene["start"] = json!({"stderr": {"fill": "x", "size": 1 << 20}});
    rig.scene("lab", scene);
    // Behind it a helper that floods all the time, by bytes without a line end.
    let target = format!(
        "sh -c 'exec 3<&0; head -c 60000000 /dev/zero >&2 & exec {} <&3'",
        rig.scripted("lab")
    );
    rig.mount(&[("lab", &target)], &["--timeout", "5"]);
    rig.ready("lab");
    assert_eq!(rig.cat("lab/s/a.txt"), ok("a\n"));
    assert_eq!(rig.cat("lab/s/b.txt"), ok("b\n"));
    let kept = rig.server("lab")["connection"]["stderr"]
        .as_str()
        .unwrap()
        .len();
    assert!(kept > 0 && kept < 64 * 1024, "{kept} bytes");
    assert!(rig.words().len() < 64 * 1024 && rig.daemon_peak_mib() < 100);
}

#[test]
fn c21_long_messages_are_read_and_endless_ones_end_the_connection() {
    let mut rig = Rig::new();
    let skills: Vec<Value> = (0..300)
        .map(|n| {
            let front = json!({"name": format!("s{n}"), "description": "d".repeat(10_000)});
            json!({"path": format!("s{n}"), "entry": {"frontmatter": front}})
        })
        .collect();
    let mut wide = json!({"skills": skills});
    // Two bytes each, and six in the reply: one line of 48 MB.
    let accents = json!({"fill": "é", "size": 16_000_000});
    let blob = json!({"fill": "\u{1}\u{2}\u{3}", "size": 5 << 20, "as": "blob"});
    wide["skills"].as_array_mut().unwrap().extend([
        skill("text", json!({"long.txt": accents})),
        skill("blob", json!({"blob.bin": blob})),
    ]);
    rig.scene("wide", wide);
    let endless = json!({"raw": {"fill": "x", "size": 130 << 20}, "method": "resources/read", "uri": "skill://s/a.txt"});
    rig.scene("endless", ruled(json!([endless])));
    rig.scene("web", ruled(json!([endless])));
    let web = rig.scripted_http("web");
    let [a, b] = ["wide", "endless"].map(|l| rig.scripted(l));
    rig.mount(
        &[("wide", &a), ("endless", &b), ("web", &web)],
        &["--timeout", "30"],
    );
    ["wide", "endless", "web"].iter().for_each(|l| rig.ready(l));
    assert_eq!(rig.ls("wide").unwrap().len(), 302);
    let long = fs::read_to_string(rig.path("wide/text/long.txt")).unwrap();
    assert!(long.len() == 16_000_000 && long.chars().all(|c| c == 'é'));

    let blob = fs::read(rig.path("wide/blob/blob.bin")).unwrap();
    assert!(blob == [1, 2, 3].repeat(2 << 20)[..5 << 20]);

    let reader = rig.cat_later("endless/s/a.txt");
    let out = reader.finish(40.0);
    until("the reason", 5.0, || {
        let status = rig.server("endless");
        format!("{status}").contains("longer than 128 MiB")
    });
    assert_eq!(rig.outcome("endless", out), Err("EHOSTDOWN"));
    let over_http = rig.cat("web/s/a.txt");
    assert!(
        matches!(over_http, Err("EIO" | "EHOSTDOWN")),
        "{over_http:?}"
    );
    assert_eq!(
        rig.cat("wide/s0/SKILL.md"),
        Err("EIO"),
        "other labels go on (its description is a lie)"
    );
    let peak = rig.daemon_peak_mib();
    assert!(peak < 400, "the daemon took {peak} MiB");
    rig.scene("endless", two_files());
    until("the server to be used again", 40.0, || {
        rig.cat("endless/s/a.txt") == ok("a\n")
    });
}

#[test]
fn c21_a_gibibyte_without_a_line_end_is_cut_off_and_not_held() {
    let mut rig = Rig::new();
    rig.scene("lab", two_files());
    let lab = rig.scripted("lab");
    let flood = "head -c 1073741824 /dev/zero";
    rig.mount(&[("flood", flood), ("lab", &lab)], &[]);
    rig.ready("lab");
    until("the reason", 30.0, || {
        let status = rig.server("flood");
        status["state"] == "down" && status["reason"].to_string().contains("longer than 128 MiB")
    });
    assert_eq!(rig.cat("lab/s/a.txt"), ok("a\n"));
    assert_eq!(rig.ls("flood"), Err("EHOSTDOWN"));
    let peak = rig.daemon_peak_mib();
    assert!(peak < 300, "the daemon took {peak} MiB");
}

#[test]
fn c29_hr43_hr45_hr54_pages_are_followed_within_bounds() {
    let mut rig = Rig::new();
    let many = |more: Value| {
        let skills: Vec<Value> = (0..4).map(|n| skill(&format!("s{n}"), json!({}))).collect();
        let mut scene = json!({"skills": skills, "page": 1});
        scene
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        scene
    };
    rig.scene(
        "empty-cursor",
        unlisted(
            &["a", "b"],
            json!([
                page(json!(null), &["a"], json!("")),
                page(json!(""), &["b"], json!(null))
            ]),
        ),
    );
    rig.scene("repeat", many(json!({"cursors": "repeat"})));
    rig.scene(
        "circle",
        unlisted(
            &["a", "b"],
            json!([
                page(json!(null), &["a"], json!("B")),
                page(json!("B"), &["b"], json!("A")),
                page(json!("A"), &["a"], json!("B"))
            ]),
        ),
    );
    rig.scene("broken", many(json!({"rules": [{"method": "skills/list", "cursor": "2", "error": {"code": -32603, "message": "Oops"}}]})));
    let raw = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":@ID@,\"result\":{{\"skills\":[{}],\"nextCursor\":null}}}}",
        entry("a")
    );
    rig.scene(
        "null",
        unlisted(&["a"], json!([{"method": "skills/list", "raw": raw}])),
    );
    rig.scene("endless", many(json!({"cursors": "endless"})));
    let mut other = entry("x");
    other["resources"][0]["digest"] = format!("sha256:{}", "0".repeat(64)).into();
    let twice = json!([{"method": "skills/list", "result": {"skills": [other, entry("x"), entry("a"), entry("a")]}}]);
    rig.scene("twice", unlisted(&["x", "a"], twice));
    rig.scene(
        "hopeless",
        unlisted(
            &["a"],
            json!([{"method": "skills/list",
        "result": {"skills": [other, entry("x"), entry("a")]}}]),
        ),
    );

    // label, the skills that can be read, and whether the listing is whole
    let cases: [(&str, &[&str], bool); 8] = [
        ("empty-cursor", &["a", "b"], true),
        ("repeat", &["s0"], false),
        ("circle", &["a", "b"], false),
        ("broken", &["s0", "s1"], false),
        ("null", &["a"], true),
        ("endless", &["s0", "s1", "s2", "s3"], false),
        ("twice", &["a", "x"], true),
        ("hopeless", &["a"], true),
    ];
    let labels: Vec<&str> = cases.iter().map(|(label, ..)| *label).collect();
    rig.up(&labels, &[]);
    for (label, skills, whole) in cases {
        let status = rig.server(label);
        assert_eq!(
            status["listing"],
            if whole { "current" } else { "truncated" },
            "{status:#}"
        );
        assert_eq!(status["listing_reason"].is_null(), whole);
        for skill in skills {
            assert_eq!(
                rig.cat(&format!("{label}/{skill}/SKILL.md")),
                ok(&skill_md(skill)),
                "{label}"
            );
        }
        assert_eq!(
            status["skills"].as_array().unwrap().len(),
            skills.len(),
            "{label}"
        );
    }
    let first = &rig
        .log("empty-cursor", "request")
        .into_iter()
        .find(|r| r["method"] == "skills/list")
        .unwrap();
    assert!(first["params"].get("cursor").is_none(), "{first}");
    let (lists, gets) = (
        rig.seen("twice", "skills/list"),
        rig.seen("twice", "skills/get"),
    );
    assert!(
        (1..=lists).contains(&gets),
        "two words on one skill: the server decides, once a listing"
    );
    assert!(
        rig.declined("hopeless", "skill://x/SKILL.md")
            .contains("twice")
    );
    let asked = rig.log("endless", "request").into_iter();
    let asked: Vec<Value> = asked.filter(|r| r["method"] == "skills/list").collect();
    let listings = asked.iter().filter(|r| r["params"]["cursor"].is_null());
    assert!(asked.len() <= (4 + 17) * listings.count());
    rig.scene("broken", many(json!({})));
    until("a listing that broke to be asked for again", 20.0, || {
        rig.server("broken")["listing"] == "current"
    });
    assert_eq!(rig.ls("broken").unwrap().len(), 4);
}

#[test]
fn c23_hr05_older_servers_are_found_out_and_used() {
    let mut rig = Rig::new();
    let legacy = |rule: Value| {
        let mut scene = two_files();
        scene["era"] = "legacy".into();
        if !rule.is_null() {
            scene["rules"] = json!([rule]);
            scene["rules"][0]["method"] = "server/discover".into();
        }
        scene
    };
    let nobody = "{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32600,\"message\":\"Invalid Request\"}}";
    rig.scene("unknown", legacy(Value::Null));
    rig.scene(
        "first",
        legacy(json!({"error": {"code": -32602, "message": "initialize first"}})),
    );
    rig.scene("nobody", legacy(json!({"raw": nobody})));
    rig.scene("silent", legacy(json!({"hang": true})));
    rig.scene("dies", legacy(json!({"exit": 1})));
    let mut both = two_files();
    both["era"] = "both".into();
    rig.scene("both", both);
    let mut plain = legacy(Value::Null);
    plain["capabilities"] = json!({"resources": {}, "tools": {}});
    rig.scene("plain", plain);

    let labels = [
        "unknown", "first", "nobody", "silent", "dies", "both", "plain",
    ];
    let targets = labels.map(|l| rig.scripted(l));
    let servers: Vec<(&str, &str)> = labels
        .iter()
        .copied()
        .zip(targets.iter().map(String::as_str))
        .collect();
    rig.mount(&servers, &["--start-timeout", "8"]);
    for (label, era) in [
        ("unknown", "initialize"),
        ("first", "initialize"),
        ("nobody", "initialize"),
        ("silent", "initialize"),
        ("dies", "initialize"),
        ("both", "discover"),
    ] {
        rig.ready(label);
        assert_eq!(rig.cat(&format!("{label}/s/a.txt")), ok("a\n"), "{label}");
        assert_eq!(rig.server(label)["era"], era, "{label}");
    }
    until("its state", 5.0, || {
        rig.server("plain")["state"] == "no-skills"
    });
    assert_eq!(rig.ls("plain"), Ok(vec![]));
    assert_eq!(
        rig.seen("plain", "skills/list"),
        0,
        "nothing is asked that was not offered"
    );
    assert!(rig.log("plain", "start").len() <= 2);
}

#[test]
fn hr03_directories_are_asked_for_only_if_they_were_declared_with_true() {
    let mut rig = Rig::new();
    let values = [
        json!(true),
        json!(false),
        json!("true"),
        json!(1),
        json!(null),
        json!({}),
    ];
    let labels: Vec<String> = (0..values.len()).map(|n| format!("l{n}")).collect();
    for (label, value) in labels.iter().zip(&values) {
        let mut scene = two_files();
        scene["directoryRead"] = true.into();
        let skills = json!({"io.modelcontextprotocol/skills": {"directoryRead": value}});
        scene["capabilities"] = json!({"resources": {}, "extensions": skills});
        rig.scene(label, scene);
    }
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    rig.up(&labels, &[]);
    for (label, value) in labels.iter().zip(&values) {
        let live = rig.tell(&["list", "--live", &format!("{label}/s")]);
        let asked = rig.seen(label, "resources/directory/read");
        let declared = *value == json!(true);
        assert_eq!(
            (live.code == Some(0), asked > 0),
            (declared, declared),
            "{value}: {live:?}"
        );
        assert_eq!(rig.cat(&format!("{label}/s/a.txt")), ok("a\n"), "{value}");
    }
}

#[test]
fn hr04_a_server_that_declares_no_resources_is_warned_about_and_used() {
    let mut rig = Rig::new();
    let mut scene = two_files();
    scene["capabilities"] = json!({"extensions": {"io.modelcontextprotocol/skills": {}}});
    rig.scene("lab", scene);
    rig.up(&["lab"], &[]);
    assert_eq!(rig.cat("lab/s/a.txt"), ok("a\n"));
    let warning = "it declares the Skills extension but not `resources`, as it must";
    assert_eq!(rig.server("lab")["warnings"], json!([warning]));
    assert!(rig.ask(&["status", "lab"]).contains(warning));
}

#[test]
fn hr01_each_request_carries_revision_client_and_capabilities() {
    let mut rig = Rig::new();
    rig.scene("lab", two_files());
    let url = rig.scripted_http("lab");
    rig.scene("pipe", two_files());
    let pipe = rig.scripted("pipe");
    rig.mount(&[("lab", &url), ("pipe", &pipe)], &[]);
    for label in ["lab", "pipe"] {
        rig.ready(label);
        assert_eq!(rig.cat(&format!("{label}/s/a.txt")), ok("a\n"));
        let requests = rig.log(label, "request");
        assert!(requests.len() >= 3, "{requests:?}");
        for request in requests {
            let meta = &request["params"]["_meta"];
            let field = |name: &str| &meta[format!("io.modelcontextprotocol/{name}")];
            assert_eq!(field("protocolVersion"), "2026-07-28", "{request}");
            assert_eq!(field("clientInfo")["name"], "mount-skills", "{request}");
            let extensions = &field("clientCapabilities")["extensions"];
            assert!(
                extensions["io.modelcontextprotocol/skills"].is_object(),
                "{request}"
            );
        }
    }
}

#[test]
fn replies_that_drip_or_break_off_end_in_time_and_the_next_read_is_right() {
    let mut rig = Rig::new();
    let read = |file: &str, mut rule: Value| {
        rule["method"] = "resources/read".into();
        rule["uri"] = format!("skill://s/{file}").into();
        rule
    };
    let slow = read("a.txt", json!({"drip": [10, 0.4]}));
    let cut = read("b.txt", json!({"cut": 0.5, "times": 1}));
    for label in ["child", "web"] {
        rig.scene(label, ruled(json!([slow, cut])));
    }
    let (child, web) = (rig.scripted("child"), rig.scripted_http("web"));
    rig.mount(&[("child", &child), ("web", &web)], &["--timeout", "2"]);
    for label in ["child", "web"] {
        rig.ready(label);
        let (a, b) = (format!("{label}/s/a.txt"), format!("{label}/s/b.txt"));
        let start = Instant::now();
        assert_eq!(
            rig.cat(&a),
            Err("ETIMEDOUT"),
            "HR-117: the deadline is of the whole"
        );
        assert!(start.elapsed() < Duration::from_secs(6));
        rig.scene(label, ruled(json!([cut])));
        until("the mended file", 20.0, || rig.cat(&a) == ok("a\n"));
        until("the reply that broke off", 20.0, || match rig.cat(&b) {
            Ok(text) => text == "b\n",
            Err(e) => {
                assert!(["EHOSTDOWN", "EIO"].contains(&e), "{e}");
                false
            }
        });
    }
}

// ---- over HTTP ----

#[test]
fn hr63_http_replies_as_json_and_as_event_streams() {
    for sse in [false, true] {
        let mut rig = Rig::new();
        let mut scene = two_files();
        scene["sse"] = sse.into();
        if sse {
            let note = "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"level\":\"info\",\"data\":\"x\"}}";
            scene["rules"] = json!([{"before": [note]}]);
        }
        let big = json!({"fill": "0123456789", "size": 5 << 20});
        scene["skills"][0]["files"]["big.txt"] = big;
        rig.scene("lab", scene);
        let url = rig.scripted_http("lab");
        rig.mount(&[("lab", &url)], &[]);
        rig.ready("lab");
        assert_eq!(rig.cat("lab/s/a.txt"), ok("a\n"), "sse: {sse}");
        assert_eq!(fs::read(rig.path("lab/s/big.txt")).unwrap().len(), 5 << 20);
        assert_eq!(rig.reads("lab").values().sum::<usize>(), 2);
    }
}

/// What `user:SECRET` becomes in a header.
const BASIC: &str = "Basic dXNlcjpTRUNSRVQ=";

/// Replies to a read that are none, by the name of the file.
fn http_faults(elsewhere: &str) -> Vec<(&'static str, Value)> {
    vec![
        (
            "401",
            json!({"status": 401, "headers": {"WWW-Authenticate": "Bearer"}}),
        ),
        ("403", json!({"status": 403, "raw": ""})),
        (
            "500",
            json!({"status": 500, "raw": "Internal Server Error"}),
        ),
        ("cut", json!({"cut": 0.5})),
        (
            "html",
            json!({"headers": {"Content-Type": "text/html"}, "raw": "<html></html>"}),
        ),
        (
            "307",
            json!({"status": 307, "headers": {"Location": elsewhere}, "raw": ""}),
        ),
        (
            "429",
            json!({"status": 429, "headers": {"Retry-After": "1"}, "raw": ""}),
        ),
    ]
}

fn faulty(elsewhere: &str) -> Value {
    let mut files = json!({});
    let mut rules = Vec::new();
    for (name, mut rule) in http_faults(elsewhere) {
        files[name] = format!("content of {name}\n").into();
        for place in ["before", "beside"] {
            files[format!("{place}-{name}")] = format!("{place} {name}\n").into();
        }
        rule["method"] = "resources/read".into();
        rule["uri"] = format!("skill://s/{name}").into();
        rules.push(rule);
    }
    json!({"skills": [skill("s", files)], "rules": rules})
}

#[test]
fn c31_http_errors_fail_the_read_are_not_repeated_without_end_and_pass() {
    let mut rig = Rig::new();
    rig.scene("elsewhere", two_files());
    let elsewhere = rig.scripted_http("elsewhere");
    let scene = faulty(&elsewhere);
    rig.scene("lab", scene.clone());
    let url = rig.scripted_http("lab");
    let url = url.replace("http://", "http://user:SECRET@");
    // One that sends us elsewhere with the first request.
    let away = json!([{"status": 307, "headers": {"Location": elsewhere}, "raw": ""}]);
    rig.scene("moved", ruled(away));
    let moved = rig.scripted_http("moved");
    let moved = moved.replace("http://", "http://user:SECRET@");
    rig.mount(&[("lab", &url), ("moved", &moved)], &["--timeout", "5"]);
    rig.ready("lab");
    until("its state", 10.0, || rig.server("moved")["state"] == "down");
    for label in ["lab", "moved"] {
        let first = &rig.log(label, "request")[0]["headers"]["authorization"];
        assert_eq!(*first, BASIC, "{label}: it is sent where it belongs");
    }
    for (name, _) in http_faults("") {
        let start = Instant::now();
        let outcome = rig.cat(&format!("lab/s/{name}"));
        assert!(
            start.elapsed() < Duration::from_secs(4),
            "{name}: the bound is 1 s"
        );
        assert!(
            matches!(outcome, Err("EIO" | "EACCES" | "EHOSTDOWN")),
            "{name}: {outcome:?}"
        );
        let reads = rig.reads("lab").get(&format!("skill://s/{name}")).copied();
        assert!(reads.unwrap_or(0) <= 2, "{name}: {reads:?}");
    }
    for event in ["request", "note"] {
        assert!(
            rig.log("elsewhere", event).is_empty(),
            "a redirect takes nothing elsewhere"
        );
    }
    rig.scene("lab", json!({"skills": scene["skills"]}));
    for (name, _) in http_faults("") {
        let want = format!("content of {name}\n");
        until(name, 40.0, || {
            rig.cat(&format!("lab/s/{name}")) == ok(&want)
        });
    }
    let said = rig.words() + &rig.status().to_string();
    for secret in ["SECRET", &BASIC[6..]] {
        assert!(!said.contains(secret), "HR-14: no secret is shown: {said}");
    }
}

#[test]
fn a_failed_http_reply_is_of_one_read_and_not_of_the_whole_server() {
    let mut rig = Rig::new();
    rig.scene("lab", faulty("http://127.0.0.1:9/"));
    let url = rig.scripted_http("lab");
    rig.mount(&[("lab", &url)], &["--timeout", "5"]);
    rig.ready("lab");
    let mut hurt = Vec::new();
    for (name, _) in http_faults("") {
        let before = ok(&format!("before {name}\n"));
        until(name, 40.0, || {
            rig.cat(&format!("lab/s/before-{name}")) == before
        });
        assert!(rig.cat(&format!("lab/s/{name}")).is_err(), "{name}");
        let beside = rig.cat(&format!("lab/s/beside-{name}"));
        if beside != ok(&format!("beside {name}\n")) {
            hurt.push((name, beside));
        }
    }
    assert!(
        hurt.is_empty(),
        "the neighbours of failed replies: {hurt:?}"
    );
}

#[test]
fn c31_a_server_that_wants_credentials_is_not_hammered() {
    let mut rig = Rig::new();
    rig.scene(
        "lab",
        ruled(json!([{"status": 401, "headers": {"WWW-Authenticate": "Bearer"}}])),
    );
    let url = rig.scripted_http("lab");
    rig.mount(&[("lab", &url)], &[]);
    until("its state", 10.0, || {
        rig.server("lab")["state"] == "needs-credentials"
    });
    let reason = rig.server("lab")["reason"].to_string();
    assert!(
        reason.contains("HTTP 401; run: mount-skills login lab"),
        "{reason}"
    );
    assert_eq!(rig.ls("lab"), Err("EACCES"));
    let end = Instant::now() + Duration::from_secs(8);
    until("8 s to pass", 10.0, || Instant::now() > end);
    let asked = rig.log("lab", "request").len();
    assert!(asked <= 12, "{asked} requests in 8 s");
    rig.scene("lab", two_files());
    until("the server to let us in", 40.0, || {
        rig.cat("lab/s/a.txt") == ok("a\n")
    });
}

#[test]
fn c31_credentials_that_expire_cost_few_requests_and_what_was_read_reads_on() {
    let mut rig = Rig::new();
    let refused = [
        (
            "l401",
            json!({"status": 401, "headers": {"WWW-Authenticate": "Bearer"}, "raw": ""}),
        ),
        ("l403", json!({"status": 403, "raw": ""})),
    ];
    let mut servers = Vec::new();
    for (label, _) in &refused {
        rig.scene(label, two_files());
        servers.push((*label, rig.scripted_http(label)));
    }
    let servers: Vec<(&str, &str)> = servers.iter().map(|(l, u)| (*l, u.as_str())).collect();
    rig.mount(&servers, &["--timeout", "5"]);
    for (label, rule) in &refused {
        rig.ready(label);
        assert_eq!(rig.cat(&format!("{label}/s/a.txt")), ok("a\n"));
        rig.scene(label, ruled(json!([rule])));
    }
    let before = refused.each_ref().map(|(l, _)| rig.log(l, "request").len());
    let end = Instant::now() + Duration::from_secs(20);
    // Somebody who reads again and again.
    until("20 s to pass", 40.0, || {
        for (label, _) in &refused {
            let start = Instant::now();
            let got = rig.cat(&format!("{label}/s/b.txt"));
            assert!(
                matches!(got, Err("EIO" | "EACCES" | "EHOSTDOWN")),
                "{label}: {got:?}"
            );
            let took = start.elapsed();
            assert!(took < Duration::from_secs(4), "the bound is 1 s: {took:?}");
            assert_eq!(rig.cat(&format!("{label}/s/a.txt")), ok("a\n"));
        }
        Instant::now() > end
    });
    for ((label, _), before) in refused.iter().zip(before) {
        let asked = rig.log(label, "request").len() - before;
        assert!(asked <= 12, "{label}: {asked} requests in 20 s");
        let status = rig.server(label);
        assert_eq!(status["state"], "needs-credentials", "{status:#}");
        let reason = status["reason"].as_str().unwrap();
        assert!(reason.contains(&label[1..]), "{label}: {reason}");
        rig.scene(label, two_files());
    }
    for (label, _) in &refused {
        until("the server to let us in again", 60.0, || {
            rig.cat(&format!("{label}/s/b.txt")) == ok("b\n")
        });
    }
}

/// The times at which a label was asked by this method.
fn asked_at(rig: &Rig, label: &str, method: &str) -> Vec<f64> {
    let rows = rig.log(label, "request").into_iter();
    let rows = rows.filter(|r| r["method"] == method);
    rows.map(|r| r["time"].as_f64().unwrap()).collect()
}

#[test]
fn c31_a_server_that_says_later_is_left_alone_for_as_long_as_it_says() {
    let mut rig = Rig::new();
    let later = |seconds: &str, mut rule: Value| {
        rule["status"] = 429.into();
        rule["headers"] = json!({"Retry-After": seconds});
        rule["raw"] = "".into();
        rule
    };
    let read = |file: &str| json!({"method": "resources/read", "uri": format!("skill://s/{file}")});
    let mut first = read("a.txt");
    first["times"] = 1.into();
    let mut start = json!({"method": "server/discover", "times": 1});
    start = later("4", start);
    rig.scene(
        "lab",
        ruled(json!([later("3", first), later("60", read("b.txt"))])),
    );
    rig.scene("start", ruled(json!([start])));
    let (lab, at_start) = (rig.scripted_http("lab"), rig.scripted_http("start"));
    rig.mount(&[("lab", &lab), ("start", &at_start)], &["--timeout", "20"]);
    rig.ready("lab");
    // A pause that a reader can wait for is a delay, to it and to others.
    let a = rig.cat_later("lab/s/a.txt");
    until("the first read", 10.0, || {
        rig.seen("lab", "resources/read") == 1
    });
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(rig.cat("lab/s/SKILL.md"), ok(&skill_md("s")));
    assert_eq!(rig.outcome("a.txt", a.finish(20.0)), ok("a\n"));
    let asked = asked_at(&rig, "lab", "resources/read");
    assert_eq!(asked.len(), 3);
    assert!(asked[1] - asked[0] >= 2.9, "{asked:?}");
    // One that is longer than a reader may wait is an error at once, and nothing is sent.
    let started = Instant::now();
    assert_eq!(rig.cat("lab/s/b.txt"), Err("EHOSTDOWN"));
    let requests = rig.log("lab", "request").len();
    for _ in 0..3 {
        assert_eq!(rig.cat("lab/s/b.txt"), Err("EHOSTDOWN"));
        assert_eq!(rig.cat("lab/s/a.txt"), ok("a\n"), "what was read reads on");
        std::thread::sleep(Duration::from_millis(1100));
    }
    assert!(started.elapsed() < Duration::from_secs(15), "nobody waited");
    assert_eq!(rig.log("lab", "request").len(), requests);
    let reason = rig.refusal("lab", "lab/s/b.txt")["reason"].to_string();
    assert!(reason.contains("left alone"), "{reason}");
    assert_eq!(rig.server("lab")["state"], "ready");

    rig.ready("start");
    assert_eq!(rig.cat("start/s/a.txt"), ok("a\n"));
    let hellos = asked_at(&rig, "start", "server/discover");
    assert!(
        hellos.len() == 2 && hellos[1] - hellos[0] >= 3.9,
        "{hellos:?}"
    );
}

/// A server of the older revision with sessions, and what it answers to one it does not know.
fn with_sessions(lost: Value) -> Value {
    let files: serde_json::Map<String, Value> = (0..20)
        .map(|n| (n.to_string(), json!(format!("{n}\n"))))
        .collect();
    json!({"era": "legacy", "session": true, "lost": lost, "ttlMs": 3_600_000,
        "skills": [skill("s", Value::Object(files))]})
}

/// Restarts a server while nobody is asking it, so that it knows no session any more; reads
/// eight files at once.
fn readers_after_a_restart(rig: &mut Rig) -> Vec<(usize, crate::rig::Content)> {
    rig.end_servers();
    rig.scripted_http("lab");
    let readers: Vec<_> = (2..10)
        .map(|n| (n, rig.cat_later(&format!("lab/s/{n}"))))
        .collect();
    let outcome =
        |(n, reader): (usize, crate::rig::Proc)| (n, rig.outcome("a reader", reader.finish(20.0)));
    readers.into_iter().map(outcome).collect()
}

#[test]
fn c30_an_http_server_comes_back_at_its_place_also_one_with_sessions() {
    for era in ["modern", "legacy"] {
        let mut rig = Rig::new();
        let mut scene = with_sessions(json!(404));
        scene["era"] = era.into();
        scene["session"] = (era == "legacy").into();
        rig.scene("lab", scene);
        let url = rig.scripted_http("lab");
        rig.mount(&[("lab", &url)], &["--timeout", "5"]);
        rig.ready("lab");
        assert_eq!(rig.cat("lab/s/0"), ok("0\n"));
        rig.end_servers();
        assert_eq!(rig.cat("lab/s/1"), Err("EHOSTDOWN"), "{era}");
        assert_eq!(rig.cat("lab/s/0"), ok("0\n"), "{era}: what was read");
        assert_eq!(rig.scripted_http("lab"), url);
        until("the server", 40.0, || rig.cat("lab/s/1") == ok("1\n"));

        // The next one is up before anybody notices that the first is gone.
        let hellos = rig.seen("lab", "initialize");
        for (n, got) in readers_after_a_restart(&mut rig) {
            assert_eq!(got, ok(&format!("{n}\n")), "{era}: a delay, and no more");
        }
        let hellos = rig.seen("lab", "initialize") - hellos;
        let sessions = usize::from(era == "legacy");
        assert_eq!(hellos, sessions, "{era}: new sessions for eight readers");
        let reads = rig.reads("lab");
        let again = (2..10).filter(|n| reads[&format!("skill://s/{n}")] > 2);
        assert_eq!(again.count(), 0, "{era}: one retry: {reads:?}");
    }
}

#[test]
fn c30_a_lost_session_that_is_told_in_another_way_fails_reads_with_a_reason_and_no_loop() {
    let told = "event: error\ndata: {\"jsonrpc\":\"2.0\",\"id\":@ID@,\"error\":{\"code\":-32001,\"message\":\"Session not found\"}}\n\n";
    let untold = "event: error\ndata: Session not found\n\n";
    for (lost, word, comes_back) in [
        (json!(400), "400", true),
        (json!(told), "Session not found", false),
        (json!(untold), "no answer to the request", false),
    ] {
        let mut rig = Rig::new();
        rig.scene("lab", with_sessions(lost));
        let url = rig.scripted_http("lab");
        rig.mount(&[("lab", &url)], &["--timeout", "5"]);
        rig.ready("lab");
        assert_eq!(rig.cat("lab/s/0"), ok("0\n"));
        let before = rig.log("lab", "request").len();
        for (n, got) in readers_after_a_restart(&mut rig) {
            let fine = match &got {
                Ok(text) => *text == format!("{n}\n"),
                Err(e) => ["EIO", "EHOSTDOWN"].contains(e),
            };
            assert!(fine, "{word}: {got:?}");
        }
        let refused = rig.server("lab")["refused"].to_string();
        assert!(refused.contains(word), "{word}: {refused}");
        let asked = rig.log("lab", "request").len() - before;
        assert!(asked <= 8 * 4, "{word}: {asked} requests for eight readers");
        if comes_back {
            until("another session", 40.0, || {
                rig.cat("lab/s/11") == ok("11\n")
            });
        } else {
            rig.cli(&[
                "refresh",
                "lab",
                "--mount",
                &rig.mount_point().display().to_string(),
            ]);
            assert_eq!(rig.cat("lab/s/12"), Err("EIO"), "{word}");
        }
        assert_eq!(rig.cat("lab/s/0"), ok("0\n"), "{word}: what was read");
    }
}

#[test]
fn c32_proxy_variables_are_heard_and_their_exceptions_too() {
    let mut rig = Rig::new();
    rig.scene("lab", two_files());
    let url = rig.scripted_http("lab");
    let dead = "http://127.0.0.1:9";
    let mut command = rig.daemon_command(&[("lab", &url)], &[]);
    command
        .env("HTTP_PROXY", dead)
        .env("http_proxy", dead)
        .env("HTTPS_PROXY", dead)
        .env("NO_PROXY", "localhost,127.0.0.1,::1");
    rig.mount_with(command);
    rig.ready("lab");
    assert_eq!(rig.cat("lab/s/a.txt"), ok("a\n"));
    rig.stop();
    let asked = rig.log("lab", "request").len();
    let mut command = rig.daemon_command(&[("lab", &url)], &[]);
    command.env("HTTP_PROXY", dead).env("http_proxy", dead);
    rig.mount_with(command);
    until("a proxy that is not there", 10.0, || {
        rig.server("lab")["state"] == "down"
    });
    assert_eq!(
        rig.log("lab", "request").len(),
        asked,
        "nothing goes past the proxy"
    );
    rig.stop();

    // One that is there, and answers itself what it should pass on.
    rig.scene("proxy", two_files());
    let proxy = rig.scripted_http("proxy");
    let mut command = rig.daemon_command(&[("lab", &url)], &[]);
    command.env("HTTP_PROXY", &proxy).env("http_proxy", &proxy);
    rig.mount_with(command);
    rig.ready("lab");
    assert_eq!(rig.cat("lab/s/b.txt"), ok("b\n"));
    let host = url.strip_prefix("http://").unwrap().strip_suffix("/mcp");
    for row in rig.log("proxy", "request") {
        assert_eq!(row["headers"]["host"].as_str(), host, "{row}");
    }
    assert_eq!(rig.log("lab", "request").len(), asked, "all by the proxy");
}

#[test]
fn c21_large_replies_at_once_are_bounded_in_memory() {
    let mut rig = Rig::new();
    // Each is a reply of 96 MiB.
    let skills: Vec<Value> = (0..6)
        .map(|n| {
            let size = (16 << 20) - 4096;
            let big =
                json!({"fill": format!("{n}\u{1}\u{1}\u{1}\u{1}\u{1}\u{1}\u{1}"), "size": size});
            skill(&format!("s{n}"), json!({"big": big}))
        })
        .collect();
    rig.scene("lab", json!({"skills": skills}));
    rig.up(&["lab"], &["--timeout", "80"]);
    let readers: Vec<_> = (0..6)
        .map(|n| rig.cat_later(&format!("lab/s{n}/big")))
        .collect();
    for reader in readers {
        assert_eq!(reader.finish(80.0).out.len(), (16 << 20) - 4096);
    }
    let peak = rig.daemon_peak_mib();
    assert!(peak < 450, "the daemon took {peak} MiB");
}
