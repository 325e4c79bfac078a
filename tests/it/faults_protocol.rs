//! The rows of the fault matrix about what a server says: replies that make no sense, are too
//! large, do not fit or change, and names. The invariants of [`standing`](crate::standing) hold
//! throughout.

use crate::faults::{A, B, looping, reads_of_a, two_files, up_by};
use crate::rig::{Rig, ok, sha256, skill, skill_md, until};
use crate::standing::{CONTROL, Standing};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A skill of files `f0`, `f1`, … that hold their own names, with a rule for the read of each.
fn ruled(rules: &[Value]) -> Value {
    let name = |n: usize| format!("f{n}");
    let files = (0..rules.len()).map(|n| (name(n), json!(name(n))));
    let rules = rules.iter().enumerate().map(|(n, rule)| {
        let mut rule = rule.clone();
        rule["method"] = "resources/read".into();
        rule["uri"] = format!("skill://s/f{n}").into();
        rule
    });
    let files = Value::Object(files.collect());
    json!({"skills": [skill("s", files)], "rules": rules.collect::<Vec<_>>()})
}

/// The files of such a skill and what they hold.
fn named(count: usize) -> Vec<(String, String)> {
    let file = |n| (format!("lab/s/f{n}"), format!("f{n}"));
    (0..count).map(file).collect()
}

fn pairs(files: &[(String, String)]) -> Vec<(&str, &str)> {
    files.iter().map(|(p, c)| (&**p, &**c)).collect()
}

/// Each of these rules makes the read of its file fail with EIO, and nothing else; when they are
/// gone, the files are right. How often the server was asked `skills/get` for it.
fn each_is_eio(http: bool, rules: &[Value]) -> usize {
    let mut rig = Rig::new();
    let mut scene = ruled(rules);
    rig.scene("lab", scene.clone());
    up_by(&mut rig, http, &["--timeout", "3"]);
    let files = named(rules.len());
    let standing = Standing::begin(&rig, 3.0, &pairs(&files));
    for ((path, _), rule) in files.iter().zip(rules) {
        let size = || fs::metadata(rig.path(path)).unwrap().len();
        let before = size();
        let got = standing.read(&rig, path);
        assert_eq!(got, Err("EIO"), "http: {http}, {:.200}", rule.to_string());
        assert_eq!(size(), before, "F07: stat is unchanged");
        let reason = rig.refusal("lab", path)["reason"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(!reason.is_empty() && reason.len() < 3000, "{reason}");
    }
    assert_eq!(rig.log("lab", "start").len(), 1, "the connection stays");
    let reads: Vec<usize> = rig.reads("lab").into_values().collect();
    assert_eq!(reads, vec![1; rules.len()], "one read of each");
    let gets = rig.seen("lab", "skills/get");
    scene["rules"] = json!([]);
    rig.scene("lab", scene);
    standing.end(&rig);
    gets
}

/// A reply to the read of a file, with this in place of its result.
fn replied(result: &str) -> Value {
    json!({"raw": format!("{{\"jsonrpc\":\"2.0\",\"id\":@ID@,{result}}}")})
}

fn contents(uri: &str, text: &str) -> String {
    format!("\"result\":{{\"contents\":[{{\"uri\":\"{uri}\",\"text\":{text}}}]}}")
}

#[test]
fn f04_a_reply_that_makes_no_sense_is_eio_and_its_connection_stays() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let mut bad = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":@ID@,{}}}",
        contents("skill://s/f4", "\"f4\"")
    );
    bad.insert(bad.find("f4\"}").unwrap(), '\u{1}');
    let bytes: Vec<u8> = bad.bytes().map(|b| if b == 1 { 0xff } else { b }).collect();
    let rules = [
        replied(&contents("skill://s/f0", "\"\\ud800\"")),
        replied(&contents("skill://s/f1", "NaN")),
        replied(&contents("skill://s/f2", &deep)),
        replied(&format!("\"result\":{{\"x\":{deep}}}")),
        json!({"raw": {"b64": base64(&bytes)}}),
        replied("\"result\":null"),
        replied("\"result\":[]"),
        replied("\"result\":{\"contents\":{}}"),
    ];
    each_is_eio(false, &rules);
    each_is_eio(true, &rules);
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

#[test]
fn f04_a_line_that_is_cut_in_the_middle_of_a_stream_costs_its_own_read_only() {
    let mut rig = Rig::new();
    // Half a reply and a line end: what it answers cannot be told.
    let cut = json!({"raw": "{\"jsonrpc\":\"2.0\",\"id\":@ID@,\"result\":{\"contents\":[{\"uri\":", "times": 1});
    rig.scene("lab", two_files());
    rig.up_beside_control(&["lab"], "2", &[]);
    let standing = Standing::begin(&rig, 2.0, &[A, B]);
    rig.scene("lab", reads_of_a(&[cut]));
    assert_eq!(standing.read(&rig, A.0), Err("EIO"), "at once");
    assert_eq!(standing.read(&rig, B.0), ok(B.1));
    // Half a reply without its beginning: whom it answers cannot be told.
    rig.scene(
        "lab",
        ruled(&[json!({"raw": "\"id\":@ID@,\"result\":{}}"})]),
    );
    rig.ask(&["refresh", "lab"]);
    let status = rig.server("lab");
    assert_eq!(status["connection"]["noise"], 0, "{status:#}");
    assert_eq!(rig.cat("lab/s/f0"), Err("ETIMEDOUT"));
    assert_eq!(rig.server("lab")["connection"]["noise"], 1);
    rig.scene("lab", two_files());
    standing.end(&rig);
}

#[test]
fn f06_a_bit_that_differs_is_eio_after_one_read_and_one_get() {
    for http in [false, true] {
        let gets = each_is_eio(http, &[json!({"serve": "f1"})]);
        assert_eq!(gets, 1, "http: {http}");
    }
}

#[test]
fn f07_another_size_is_eio_and_stat_stays() {
    let huge = json!({"serve": {"fill": "f3", "size": 1 << 20}});
    let rules = [
        json!({"serve": "f"}),
        json!({"serve": "f1 "}),
        json!({"serve": ""}),
        huge,
    ];
    each_is_eio(false, &rules);
    each_is_eio(true, &rules);
}

#[test]
fn f08_what_changes_between_list_and_read_is_new_content_or_estale_by_what_was_loaded() {
    let skills = |text: &str| {
        let each = ["free", "held", "approved"].map(|name| {
            skill(
                name,
                json!({"a": format!("{text} {name}\n"), "b": format!("{text} b of {name}\n")}),
            )
        });
        // A listing that is fresh for long: only a read can find out.
        json!({"skills": each, "ttlMs": 600_000})
    };
    let mut rig = Rig::new();
    rig.scene("lab", skills("old"));
    rig.up_beside_control(&["lab"], "5", &[]);
    let files = ["free", "held", "approved"].map(|name| {
        let file = |text: &str| (format!("lab/{name}/b"), format!("{text} b of {name}\n"));
        [file("old"), file("new")]
    });
    let files: Vec<_> = files.into_iter().flatten().collect();
    let standing = Standing::begin(&rig, 5.0, &pairs(&files));
    assert_eq!(rig.cat("lab/held/a"), ok("old held\n"));
    rig.approve("lab/approved");
    rig.scene("lab", skills("new"));
    // An inode is one digest: who finds out hears of it, and the next one reads what is new.
    assert_eq!(standing.read(&rig, "lab/free/b"), Err("ESTALE"));
    assert_eq!(standing.read(&rig, "lab/free/b"), ok("new b of free\n"));
    assert_eq!(standing.read(&rig, "lab/held/b"), Err("ESTALE"));
    assert_eq!(
        standing.read(&rig, "lab/held/b"),
        Err("ESTALE"),
        "until it is refreshed"
    );
    assert_eq!(rig.skill_status("lab/held")["state"], "changed");
    assert_eq!(rig.cat("lab/held/a"), ok("old held\n"));
    assert_eq!(standing.read(&rig, "lab/approved/b"), Err("ESTALE"));
    assert_eq!(rig.skill_status("lab/approved")["approved"], Value::Null);
    let gets = rig.log("lab", "request");
    let gets = gets.iter().filter(|r| r["method"] == "skills/get").count();
    assert_eq!(gets, 3, "one for each that found out");
    rig.ask(&["refresh", "lab/held"]);
    standing.end(&rig);
}

#[test]
fn f08_where_approval_is_asked_for_a_change_that_a_read_finds_ends_it() {
    let scene = |text: &str| json!({"skills": [skill("s", json!({"a": text, "b": format!("b {text}")}))], "ttlMs": 600_000});
    let mut rig = Rig::new();
    rig.scene("lab", scene("old\n"));
    rig.scene(CONTROL, crate::standing::control());
    rig.up(&["lab", CONTROL], &["--timeout", "5", "--approval", "each"]);
    rig.approve("lab/s");
    rig.approve(&format!("{CONTROL}/c"));
    let right = [
        ("lab/s/a", "old\n"),
        ("lab/s/b", "b old\n"),
        ("lab/s/a", "new\n"),
        ("lab/s/b", "b new\n"),
    ];
    let standing = Standing::begin(&rig, 5.0, &right);
    assert_eq!(standing.read(&rig, "lab/s/a"), ok("old\n"));
    rig.scene("lab", scene("new\n"));
    let lists = rig.seen("lab", "skills/list");
    assert_eq!(standing.read(&rig, "lab/s/b"), Err("ESTALE"));
    for file in ["lab/s/a", "lab/s/b"] {
        assert_eq!(
            standing.read(&rig, file),
            Err("ESTALE"),
            "{file}: the approval has ended"
        );
    }
    assert_eq!(
        rig.seen("lab", "skills/list"),
        lists,
        "by a read, not by a listing"
    );
    assert_eq!(rig.seen("lab", "skills/get"), 1);
    assert_eq!(
        rig.skill_status("lab/s")["state"],
        "changed, needs-approval"
    );
    rig.approve("lab/s");
    standing.end(&rig);
}

#[test]
fn f10_one_uri_listed_twice_is_one_skill_or_none_and_never_a_mix() {
    let mut rig = Rig::new();
    let again = |text: &str| {
        let (uri, md) = ("skill://s/SKILL.md", skill_md("s"));
        let row = |uri: &str, text: &str| json!({"uri": uri, "digest": format!("sha256:{}", sha256(text.as_bytes())), "size": text.len()});
        json!({"uri": uri, "frontmatter": {"name": "s", "description": "A scripted skill"},
            "resources": [row(uri, &md), row("skill://s/a.txt", text), row("skill://s/b.txt", "b\n")]})
    };
    let mut scene = two_files();
    scene["entries"] = json!([again("a\n"), again("other\n")]);
    rig.scene("lab", scene);
    rig.up_beside_control(&["lab"], "5", &[]);
    let standing = Standing::begin(&rig, 5.0, &[A, B]);
    assert_eq!(standing.read(&rig, A.0), ok(A.1), "skills/get decides");
    assert_eq!(rig.seen("lab", "skills/get"), 1);
    standing.end(&rig);
}

#[test]
fn f11_endless_pages_end_and_what_came_is_served() {
    for cursors in ["repeat", "endless"] {
        let mut rig = Rig::new();
        let mut scene = two_files();
        scene["cursors"] = cursors.into();
        rig.scene("lab", scene);
        rig.up_beside_control(&["lab"], "5", &[]);
        let standing = Standing::begin(&rig, 5.0, &[A, B]);
        assert_eq!(rig.server("lab")["listing"], "truncated", "{cursors}");
        assert_eq!(standing.read(&rig, A.0), ok(A.1), "{cursors}");
        let asked = rig.seen("lab", "skills/list");
        assert!(asked <= 40, "{cursors}: {asked} pages");
        rig.scene("lab", two_files());
        standing.end(&rig);
    }
}

/// A label with `a.txt` and `b.txt` whose scene is changed, and what it comes to.
struct Faulty {
    rig: Rig,
    standing: Standing,
}

impl Faulty {
    fn up(http: bool, timeout: &str) -> Self {
        let mut rig = Rig::new();
        rig.scene("lab", two_files());
        up_by(&mut rig, http, &["--timeout", timeout]);
        let standing = Standing::begin(&rig, timeout.parse().unwrap(), &[A, B]);
        Self { rig, standing }
    }

    /// The server lists this from now on; looks at the label until its status is as wanted.
    #[track_caller]
    fn relist(&self, scene: Value, what: &str, seconds: f64, is: impl Fn(&Value) -> bool) {
        self.rig.scene("lab", scene);
        until(what, seconds, || {
            let _ = self.rig.ls("lab");
            is(&self.rig.server("lab"))
        });
    }

    fn end(self) {
        self.rig.scene("lab", two_files());
        self.standing.end(&self.rig);
    }
}

/// A listing that holds the skill of `a.txt` and `b.txt`, and then this JSON text many times over.
fn crowd(item: &str, count: usize) -> Value {
    let good = entry_of("s", &[("a.txt", "a\n"), ("b.txt", "b\n")]);
    let start = format!("{{\"jsonrpc\":\"2.0\",\"id\":@ID@,\"result\":{{\"skills\":[{good}");
    let item = format!(",{item}");
    let fill = json!({"fill": item, "size": item.len() * count});
    let mut scene = two_files();
    scene["rules"] = json!([{"method": "skills/list", "raw": [start, fill, "]}}"]}]);
    scene
}

/// The entry of a skill with the SKILL.md that a scripted server makes up, and these files.
fn entry_of(name: &str, files: &[(&str, &str)]) -> Value {
    let md = ("SKILL.md", &*skill_md(name));
    let rows = std::iter::once(&md).chain(files).map(|(file, text)| {
        let digest = format!("sha256:{}", sha256(text.as_bytes()));
        json!({"uri": format!("skill://{name}/{file}"), "digest": digest, "size": text.len()})
    });
    json!({"uri": format!("skill://{name}/SKILL.md"), "resources": rows.collect::<Vec<_>>(),
        "frontmatter": {"name": name, "description": "A scripted skill"}})
}

#[test]
fn f05_a_reply_of_a_gibibyte_is_cut_off_and_takes_no_neighbour_with_it() {
    for http in [false, true] {
        let faulty = Faulty::up(http, "30");
        let (rig, standing) = (&faulty.rig, &faulty.standing);
        rig.scene("lab", reads_of_a(&[json!({"flood": 1 << 30})]));
        let got = standing.read(rig, A.0);
        // Over stdio whatever follows is part of the same line: the process is given up.
        let want: &[&str] = if http {
            &["EIO"]
        } else {
            &["EIO", "EHOSTDOWN"]
        };
        assert!(got.as_ref().is_err_and(|e| want.contains(e)), "{got:?}");
        until("the reason", 10.0, || {
            let status = rig.server("lab").to_string();
            ["128 MiB", "134217728 bytes"]
                .iter()
                .any(|w| status.contains(w))
        });
        faulty.end();
    }
}

#[test]
fn f05_a_million_entries_are_not_held() {
    // The smallest entries there are take many times their text once they are held.
    let empty = ("{}", 1_000_000);
    let numbers = ("5", 30_000_000);
    for (http, (item, count)) in [(false, empty), (true, empty), (false, numbers)] {
        let faulty = Faulty::up(http, "20");
        let (rig, standing) = (&faulty.rig, &faulty.standing);
        faulty.relist(crowd(item, count), "a word on it", 60.0, |s| {
            let reason = s["reason"].as_str().unwrap_or_default();
            reason.contains("more than 100000 items")
        });
        assert_eq!(standing.read(rig, A.0), ok(A.1), "what is held: {item}");
        assert_eq!(rig.ls("lab").unwrap(), ["s"], "{item}");
        faulty.end();
    }
}

#[test]
fn f05_a_skill_whose_frontmatter_is_of_64_mib_is_declined_or_left_out() {
    let big = |value: &str, close: &str, size: usize| {
        let good = entry_of("s", &[("a.txt", "a\n"), ("b.txt", "b\n")]);
        let start = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":@ID@,\"result\":{{\"skills\":[{good},{{\"uri\":\"skill://t/SKILL.md\",\"frontmatter\":{{\"name\":\"t\",\"description\":"
        );
        let fill = json!({"fill": value, "size": size});
        let rows = "\"resources\":[]}]}}";
        let (open, close) = close.split_at(1);
        let mut scene = two_files();
        scene["rules"] =
            json!([{"method": "skills/list", "raw": [start, open, fill, close, "},", rows]}]);
        scene
    };
    let cases = [
        big("x", "\"\"", 64 << 20),
        big("x", "\"\"", 40 << 20),
        big("1,", "[1]", 40 << 20),
        big("[],", "[1]", 30 << 20),
    ];
    for (n, scene) in cases.into_iter().enumerate() {
        let faulty = Faulty::up(n == 0, "20");
        let (rig, standing) = (&faulty.rig, &faulty.standing);
        faulty.relist(scene, "a word on it", 60.0, |s| {
            let reason = s["reason"].as_str().unwrap_or_default();
            let of_t = s["declined"].to_string().contains("more than 4 MiB");
            of_t || reason.contains("more than 64 MiB")
        });
        assert!(
            rig.server("lab").to_string().len() < 1 << 16,
            "the status is short"
        );
        assert_eq!(standing.read(rig, A.0), ok(A.1), "case {n}");
        faulty.end();
    }
}

#[test]
fn f04_nesting_without_end_costs_one_entry_or_one_reply_wherever_it_is() {
    for http in [false, true] {
        let faulty = Faulty::up(http, "3");
        let (rig, standing) = (&faulty.rig, &faulty.standing);
        let half = |fill: &str| json!({"fill": fill, "size": 100_000});
        let nested = json!([half("["), half("]")]);
        let good = entry_of("s", &[("a.txt", "a\n"), ("b.txt", "b\n")]);
        let listed = |entry: Vec<Value>| {
            let start = "{\"jsonrpc\":\"2.0\",\"id\":@ID@,\"result\":{\"skills\":[";
            let parts = [
                vec![json!(start), json!(good.to_string()), json!(",")],
                entry,
            ];
            let mut scene = two_files();
            let raw = [parts.concat(), vec![json!("]}}")]].concat();
            scene["rules"] = json!([{"method": "skills/list", "raw": raw}]);
            scene
        };
        let uri = "{\"uri\":\"skill://deep/SKILL.md\",\"frontmatter\":{\"name\":\"deep\",\"description\":\"d\",\"x\":";
        let rest = json!("},\"resources\":[]}");
        // In a frontmatter, as a whole entry, and as the rows of one.
        let places = [
            vec![json!(uri), nested.clone(), rest],
            vec![nested.clone()],
            vec![
                json!("{\"uri\":\"skill://deep/SKILL.md\",\"resources\":"),
                nested.clone(),
                json!("}"),
            ],
        ];
        for (n, place) in places.into_iter().enumerate() {
            faulty.relist(listed(place), "one that is declined", 20.0, |s| {
                s["declined"].as_array().unwrap().len() == 1
            });
            assert_eq!(standing.read(rig, A.0), ok(A.1), "place {n}");
            // So that the next one is seen anew.
            faulty.relist(two_files(), "none", 20.0, |s| s["declined"] == json!([]));
        }
        // In the answer to `skills/get`, in an error, and in what nobody asked for.
        let raw = |start: &str| json!([start, nested, "}"]);
        let wrong = json!({"method": "resources/read", "serve": "x\n"});
        let bad = "{\"jsonrpc\":\"2.0\",\"id\":@ID@,\"result\":";
        let error = "{\"jsonrpc\":\"2.0\",\"id\":@ID@,\"error\":";
        for start in [bad, error] {
            let mut scene = two_files();
            scene["rules"] = json!([{"method": "skills/get", "raw": raw(start)}, wrong]);
            rig.scene("lab", scene);
            let before = rig.seen("lab", "skills/get");
            // A failure is repeated for a second before the server is asked again.
            until("a get that is answered so", 10.0, || {
                assert_eq!(standing.read(rig, B.0), Err("EIO"), "{start}");
                rig.seen("lab", "skills/get") > before
            });
        }
        let notices = ["params", "result", "error", "id"].map(|field| {
            let start =
                format!("{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"{field}\":");
            raw(&start)
        });
        let mut scene = two_files();
        scene["sse"] = http.into();
        scene["rules"] = json!([{"method": "resources/read", "before": notices}]);
        rig.scene("lab", scene);
        until("a read behind notices", 5.0, || {
            standing.read(rig, B.0) == ok(B.1)
        });
        assert_eq!(rig.log("lab", "start").len(), 1, "the connection stays");
        faulty.end();
    }
}

#[test]
fn f04_a_skill_md_whose_yaml_is_nested_without_end_is_eio() {
    // As deep as fits, in flow and in block style, and too large to be looked at.
    let flow = format!("x: {}{}", "[".repeat(30_000), "]".repeat(30_000));
    let block = (0..350)
        .map(|n| format!("{}k:\n", " ".repeat(n)))
        .collect::<String>();
    let huge = format!("x: {}{}", "{a: ".repeat(100_000), "}".repeat(100_000));
    let anchors = (1..60)
        .map(|n| format!("a{n}: &a{n} [*a{0}, *a{0}]\n", n - 1))
        .collect::<String>();
    let anchors = format!("a0: &a0 x\n{anchors}");
    let mut rig = Rig::new();
    let mut scene = two_files();
    for (n, yaml) in [&flow, &block, &huge, &anchors].iter().enumerate() {
        let name = format!("deep{n}");
        let text = format!("---\nname: {name}\ndescription: D\n{yaml}\n---\n");
        let front = json!({"name": name, "description": "D", "x": []});
        let skill =
            json!({"path": name, "files": {"SKILL.md": text}, "entry": {"frontmatter": front}});
        scene["skills"].as_array_mut().unwrap().push(skill);
    }
    rig.scene("lab", scene);
    rig.up_beside_control(&["lab"], "5", &[]);
    let standing = Standing::begin(&rig, 5.0, &[A, B]);
    for n in 0..4 {
        let path = format!("lab/deep{n}/SKILL.md");
        assert_eq!(standing.read(&rig, &path), Err("EIO"), "{path}");
    }
    standing.end(&rig);
}

#[test]
fn f11_pages_of_ever_new_skills_end_and_what_is_held_is_served_meanwhile() {
    for cursors in ["new", "endless", "repeat"] {
        let faulty = Faulty::up(false, "5");
        let (rig, standing) = (&faulty.rig, &faulty.standing);
        assert_eq!(standing.read(rig, A.0), ok(A.1), "before");
        let before = rig.seen("lab", "skills/list");
        let mut scene = two_files();
        scene["cursors"] = cursors.into();
        rig.scene("lab", scene);
        until("pages", 20.0, || {
            let _ = rig.ls("lab");
            rig.seen("lab", "skills/list") > before + 1
        });
        assert_eq!(
            standing.read(rig, B.0),
            ok(B.1),
            "while they come: {cursors}"
        );
        until("their end", 75.0, || {
            rig.server("lab")["listing"] == "truncated"
        });
        let pages = rig.seen("lab", "skills/list") - before;
        assert!(pages <= 10_000 + 40, "{cursors}: {pages} pages");
        assert!(!rig.server("lab")["listing_reason"].is_null());
        faulty.end();
    }
}

/// Who may read a flapping skill.
#[derive(Clone, Copy, PartialEq)]
enum Rules {
    /// Everybody what is newest.
    Newest,
    /// Everybody what was first loaded.
    Held,
    /// Whoever it was approved for, once.
    Approved,
}

#[test]
fn f09_a_flapping_skill_is_whole_old_or_whole_new_or_an_error_and_revives_no_approval() {
    for rules in [Rules::Newest, Rules::Held, Rules::Approved] {
        flapping(rules);
    }
}

fn flapping(rules: Rules) {
    // Of two lengths: what is cut or padded shows as well.
    let body = |c: &str, file: &str| {
        format!(
            "{file}{}\n",
            c.repeat(if c == "a" { 20_000 } else { 30_000 })
        )
    };
    let scene =
        |c: &str| json!({"skills": [skill("s", json!({"f": body(c, "f"), "g": body(c, "g")}))]});
    let mut rig = Rig::with_limit(150 + looping().as_secs());
    rig.scene("lab", scene("a"));
    let flags: &[&str] = match rules {
        Rules::Newest => &["--hold", "none"],
        Rules::Held => &[],
        Rules::Approved => &["--approval", "each"],
    };
    rig.scene(CONTROL, crate::standing::control());
    rig.up(&["lab", CONTROL], &[&["--timeout", "5"], flags].concat());
    if rules == Rules::Approved {
        rig.approve("lab/s");
        rig.approve(&format!("{CONTROL}/c"));
    }
    let content = |c: &str| ["f", "g"].map(|file| (format!("lab/s/{file}"), body(c, file)));
    let (new, old) = (content("b"), content("a"));
    let right = match rules {
        Rules::Newest => [new, old.clone()].concat(),
        Rules::Held | Rules::Approved => old.to_vec(),
    };
    let first = rig.set("lab/s");
    let standing = Standing::begin(&rig, 5.0, &pairs(&right));
    assert_eq!(standing.read(&rig, "lab/s/f"), ok(&old[0].1));
    let whole = |file: &str| ["a", "b"].map(|c| sha256(body(c, file).as_bytes()));
    let (lists, gets) = (
        rig.seen("lab", "skills/list"),
        rig.seen("lab", "skills/get"),
    );
    let reads = rig.seen("lab", "resources/read");
    let (over, ended) = (AtomicBool::new(false), AtomicBool::new(false));
    // Which of the two a listing meets is chance.
    let met = AtomicBool::new(false);
    let start = Instant::now();
    let read = |file: &str| {
        let (path, whole) = (rig.path(&format!("lab/s/{file}")), whole(file));
        let mut got: BTreeMap<String, usize> = BTreeMap::new();
        while !over.load(Ordering::Relaxed) {
            let too_late = ended.load(Ordering::SeqCst);
            let what = match fs::read(&path) {
                Ok(bytes) if too_late => {
                    return Err(format!("{} bytes of no approval", bytes.len()));
                }
                Ok(bytes) => match whole.iter().position(|w| *w == sha256(&bytes)) {
                    Some(n) => ["a", "b"][n].to_owned(),
                    None => return Err(format!("{} bytes of neither", bytes.len())),
                },
                Err(e) => e.to_string(),
            };
            if what == "b" || (what != "a" && rules != Rules::Newest) {
                met.store(true, Ordering::Relaxed);
            }
            *got.entry(what).or_default() += 1;
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(got)
    };
    let mut flips = 0;
    let got: Vec<_> = std::thread::scope(|scope| {
        // Also when something below fails: nobody waits for readers that go on.
        let ends = Ends(&over);
        let readers: Vec<_> = ["f", "g", "f", "g"]
            .map(|file| scope.spawn(move || read(file)))
            .into();
        let enough = || met.load(Ordering::Relaxed) || start.elapsed() > Duration::from_secs(60);
        while start.elapsed() < looping() || !enough() {
            rig.scene("lab", scene(["b", "a"][flips % 2]));
            flips += 1;
            let _ = rig.ls("lab");
            if rules == Rules::Approved && rig.skill_status("lab/s")["approved"].is_null() {
                ended.store(true, Ordering::SeqCst);
            }
            // Readers that have both files notice nothing.
            if rules == Rules::Held && rig.skill_status("lab/s")["state"] == "changed" {
                met.store(true, Ordering::Relaxed);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        drop(ends);
        readers
            .into_iter()
            .map(|r| r.join().unwrap().unwrap())
            .collect()
    });
    let took = start.elapsed().as_secs_f64();
    let seen: BTreeSet<&str> = got
        .iter()
        .flat_map(|g| g.keys().map(String::as_str))
        .collect();
    let may = [
        "a",
        "b",
        "Stale file handle (os error 116)",
        "Input/output error (os error 5)",
    ];
    assert!(seen.iter().all(|s| may.contains(s)), "{seen:?}");
    let met = met.load(Ordering::Relaxed);
    assert!(flips > 5 && met, "{flips} changes, {seen:?}");
    assert_eq!(seen.contains("b"), rules == Rules::Newest, "{seen:?}");
    let lists = (rig.seen("lab", "skills/list") - lists) as f64;
    assert!(lists <= took + 2.0, "{lists} listings in {took} s");
    let (gets, reads) = (
        rig.seen("lab", "skills/get") - gets,
        rig.seen("lab", "resources/read") - reads,
    );
    assert!(gets <= reads, "{gets} gets for {reads} reads");
    rig.scene("lab", scene("a"));
    if rules == Rules::Approved {
        until("the approved set to be published again", 15.0, || {
            let _ = rig.ls("lab");
            rig.set("lab/s") == first
        });
        for _ in 0..3 {
            assert_eq!(
                rig.skill_status("lab/s")["approved"],
                Value::Null,
                "A, B, A"
            );
            assert_eq!(standing.read(&rig, "lab/s/f"), Err("ESTALE"));
        }
        rig.approve("lab/s");
    }
    standing.end(&rig);
}

/// Ends a loop when it goes out of scope.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn f10_answers_to_nobody_twice_or_of_an_odd_id_are_dropped_and_none_is_crossed() {
    const EACH: usize = 400;
    // A hundred a second; with MOUNT_SKILLS_FAULT_SECONDS=500 it is 10⁵ over both ways.
    let count = usize::try_from(looping().as_secs()).unwrap() * 100;
    let files: Vec<(String, String)> = (0..count.max(EACH))
        .map(|n| (format!("s{}/f{n}", n / EACH), format!("content of {n}\n")))
        .collect();
    let skills: Vec<Value> = files
        .chunks(EACH)
        .enumerate()
        .map(|(n, part)| {
            let name = |path: &str| path.split_once('/').unwrap().1.to_owned();
            let part = part.iter().map(|(path, text)| (name(path), json!(text)));
            skill(&format!("s{n}"), Value::Object(part.collect()))
        })
        .collect();
    let odd = |id: &str| {
        format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"skills\":[],\"contents\":[{{\"uri\":\"skill://s0/f1\",\"text\":\"wrong\"}}]}}}}"
        )
    };
    let before = [
        "999999", "\"odd\"", "null", "1.5", "[]", "-1", "\"@ID@\"", "@ID@.5", "{}", "true",
    ]
    .map(odd);
    // The same id once more, with something else.
    let after = ["@ID@", "@ID@"].map(odd);
    let rules = json!([
        {"method": "resources/read", "before": before, "after": after},
        {"method": "skills/list", "before": before, "after": after},
        {"method": "skills/get", "before": before, "after": after},
    ]);
    for http in [false, true] {
        let mut rig = Rig::with_limit(90 + looping().as_secs() * 2);
        rig.scene(
            "lab",
            json!({"skills": skills, "rules": rules, "sse": http}),
        );
        up_by(&mut rig, http, &["--timeout", "20"]);
        let right: Vec<_> = files
            .iter()
            .map(|(path, text)| (format!("lab/{path}"), text.clone()))
            .collect();
        let standing = Standing::begin(&rig, 20.0, &pairs(&right[..3]));
        let over = AtomicBool::new(false);
        let asked = std::thread::scope(|scope| {
            let ends = Ends(&over);
            // Listings, and `skills/get` for names that nobody has.
            let others = scope.spawn(|| {
                let mut asked = 0;
                while !over.load(Ordering::Relaxed) {
                    let _ = rig.ls("lab");
                    let _ = fs::metadata(rig.path(&format!("lab/nobody-{asked}")));
                    asked += 1;
                }
                asked
            });
            let readers: Vec<_> = files
                .chunks(files.len().div_ceil(16))
                .map(|part| {
                    let rig = &rig;
                    scope.spawn(move || {
                        for (path, text) in part {
                            let got = fs::read_to_string(rig.path(&format!("lab/{path}")));
                            assert_eq!(got.unwrap(), *text, "{path}");
                        }
                    })
                })
                .collect();
            let failed = readers.into_iter().filter_map(|r| r.join().err()).count();
            drop(ends);
            assert_eq!(failed, 0, "readers that failed; see above");
            others.join().unwrap()
        });
        let gets = rig.seen("lab", "skills/get");
        assert!(asked > 1 && gets > 1, "{gets} gets meanwhile");
        assert_eq!(rig.log("lab", "start").len(), 1);
        assert_eq!(
            rig.reads("lab").values().sum::<usize>(),
            files.len(),
            "one each"
        );
        standing.end(&rig);
    }
}

/// A skill whose SKILL.md has this URI, with the name that a segment stands for.
fn named_by(uri: &str, name: &str) -> Value {
    let text = format!(
        "---\nname: {}\ndescription: d\n---\nOf {uri}\n",
        json!(name)
    );
    json!({"uri": uri, "files": {"SKILL.md": text}, "entry": {"frontmatter": {"name": name, "description": "d"}}})
}

#[test]
fn f12_hostile_names_are_declined_or_mapped_and_never_leave_the_label() {
    let (n255, n256) = ("n".repeat(255), "n".repeat(256));
    let deep = |levels: usize| vec!["d"; levels].join("/");
    let (deep63, deep64) = (deep(63), deep(64));
    let long = format!("{}/x", vec!["n".repeat(250); 17].join("/"));
    // A path in a URI, and the directory that it stands for.
    let mapped = [
        ("con", "con"),
        ("a%5cb", "a\\b"),
        ("%E2%80%AEtxt", "\u{202e}txt"),
        ("%E2%80%8B", "\u{200b}"),
        ("caf%C3%A9", "café"),
        ("cafe%CC%81", "cafe\u{301}"),
        ("Case", "Case"),
        ("case", "case"),
        ("README.md", "README.md"),
        (".mount-skills", ".mount-skills"),
        ("n%20n", "n n"),
        ("%2520", "%20"),
        ("%252e%252e", "%2e%2e"),
        ("...", "..."),
        ("+", "+"),
        ("[x]", "[x]"),
        ("x|y", "x|y"),
        ("-rf", "-rf"),
        ("a%", "a%"),
        ("p/q", "p/q"),
        (&*n255, &*n255),
        (&*deep63, &*deep63),
    ];
    let declined = [
        "..",
        ".",
        "%2e%2e",
        "%2E%2E/x",
        "..%2fx",
        "a%2fb",
        "a%2Fc",
        "a%00b",
        "%00",
        "",
        "a//b",
        "a/../b",
        "a/./b",
        "/etc",
        "%2fetc",
        "a%0ab",
        "a%1bb",
        "a%7fb",
        "a%c2%9bb",
        "%ff",
        "%c0%ae%c0%ae",
        "C%3A",
        ":",
        "q?x",
        "q#x",
        &n256,
        &deep64,
        &long,
        // Two that stand for one path: neither is shown as a skill.
        "dup%61",
        "dupa",
    ];
    let row =
        |uri: &str| json!({"uri": uri, "digest": format!("sha256:{}", sha256(b"x")), "size": 1});
    // Files: out of their skill, of two spellings, in the place of another's directory.
    let rows = [
        vec!["skill://r0/../x"],
        vec!["skill://r1/%2e%2e/x"],
        vec!["skill://other/x"],
        vec!["skill://r3/a%2fb"],
        vec!["skill://r4/a", "skill://r4/%61"],
        vec!["skill://r5/a", "skill://r5/a/b"],
        vec!["skill://r6/a%00"],
        vec!["other://r7/x"],
    ];
    let mut scene = two_files();
    let skills = scene["skills"].as_array_mut().unwrap();
    for (path, dir) in mapped {
        skills.push(named_by(
            &format!("skill://{path}/SKILL.md"),
            dir.rsplit('/').next().unwrap(),
        ));
    }
    for path in declined {
        let last = path.rsplit('/').next().unwrap();
        let last = percent_encoding::percent_decode_str(last)
            .decode_utf8_lossy()
            .into_owned();
        skills.push(named_by(&format!("skill://{path}/SKILL.md"), &last));
    }
    for (n, rows) in rows.iter().enumerate() {
        let rows: Vec<Value> = rows.iter().map(|uri| row(uri)).collect();
        skills.push(json!({"path": format!("r{n}"), "rows": rows}));
    }
    let mut rig = Rig::new();
    rig.scene("lab", scene);
    rig.up_beside_control(&["lab"], "5", &[]);
    let standing = Standing::begin(&rig, 5.0, &[A, B]);
    let status = rig.server("lab");
    let list = |key: &str| -> BTreeSet<String> {
        let rows = status[key].as_array().unwrap();
        rows.iter()
            .map(|r| r["uri"].as_str().unwrap_or_default().to_owned())
            .collect()
    };
    let uri = |path: &str| format!("skill://{path}/SKILL.md");
    let want: BTreeSet<String> = mapped
        .iter()
        .map(|(p, _)| uri(p))
        .chain([uri("s")])
        .collect();
    assert_eq!(list("skills"), want);
    let rows = (0..rows.len()).map(|n| uri(&format!("r{n}")));
    let known: BTreeSet<String> = declined.iter().map(|p| uri(p)).chain(rows).collect();
    // The one over the limit has no name to be shown by.
    let (nameless, rest): (Vec<_>, Vec<_>) =
        list("declined").into_iter().partition(String::is_empty);
    let want: Vec<String> = known.into_iter().filter(|u| *u != uri(&long)).collect();
    assert_eq!((nameless.len(), rest), (1, want));
    for (path, dir) in mapped {
        let text = fs::read_to_string(rig.path(&format!("lab/{dir}/SKILL.md")));
        let text = text.unwrap_or_else(|e| panic!("{path}: {e}"));
        assert!(
            text.ends_with(&format!("Of {}\n", uri(path))),
            "{path}: {text}"
        );
    }
    let asked: BTreeSet<String> = rig.reads("lab").into_keys().collect();
    let want: BTreeSet<String> = mapped.iter().map(|(p, _)| uri(p)).collect();
    assert_eq!(asked, want, "asked for as the server spells it");
    let top = rig.ls("").unwrap();
    assert_eq!(
        top,
        [".mount-skills", "README.md", CONTROL, "lab"],
        "nothing outside the label"
    );
    let find = rig.sh("find $M/lab -mindepth 1 -printf '%y %P\\0'").good();
    let paths: Vec<&str> = find.split_terminator('\0').collect();
    let distinct: BTreeSet<&&str> = paths.iter().collect();
    assert_eq!(distinct.len(), paths.len(), "no name is there twice");
    let bad = |p: &&&str| {
        let (kind, path) = p.split_once(' ').unwrap();
        let control = |n: &str| n.chars().any(char::is_control);
        !["d", "f"].contains(&kind)
            || path
                .split('/')
                .any(|n| matches!(n, "" | "." | "..") || control(n))
    };
    assert_eq!(paths.iter().find(bad), None);
    standing.end(&rig);
}
