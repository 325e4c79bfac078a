//! Nothing is asked of a server before somebody reads content, and nothing twice.

use crate::rig::{Rig, is_root, ok, skill, skill_md, until};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

const HOUR_MS: u64 = 3_600_000;

/// Skills below a prefix and beside it, with files at several depths, hidden ones among them,
/// and a skill inside another.
fn tree(ttl_ms: u64) -> Value {
    // What has the same bytes is one file to a server's readers: each file has its own.
    let files = |skill: &str| {
        let with = |text: &str| format!("{text} of {skill}\n");
        json!({"guide/a.md": with("needle a"), "guide/deep/b.md": with("needle b"),
            "c.txt": with("hay"), ".env.example": with("needle"), "empty.txt": "",
            "big.txt": {"fill": with("needle"), "size": 400_000}})
    };
    let paths = (0..12).map(|n| format!("team/t{}/s{n}", n % 3));
    let paths = paths.chain(["plain".into()]);
    let mut skills: Vec<Value> = paths.map(|p| skill(&p, files(&p))).collect();
    let inner = json!({"x.txt": "needle within\n"});
    let outer = json!({"inner/SKILL.md": skill_md("inner"), "inner/x.txt": "needle within\n"});
    skills.extend([skill("outer", outer), skill("outer/inner", inner)]);
    json!({"skills": skills, "ttlMs": ttl_ms})
}

const LOOK: &str = "ls -laR $M && find $M -type f && find $M -size +1 && du -a $M && \
    find $M/lab -exec stat {} + && find $M -type l -o -type f -perm /111 && \
    head -c 0 $M/lab/plain/SKILL.md && test -r $M/lab/plain/c.txt";

/// A server that says nothing of how long its listing holds is asked again after a second. Ours says
/// an hour, since it does not follow the directory.
#[test]
fn a_directory_that_is_served_is_listed_once_however_long_it_is_looked_at() {
    let mut rig = Rig::new();
    let dir = rig.dir().join("skills");
    fs::create_dir_all(dir.join("s")).unwrap();
    fs::write(dir.join("s/SKILL.md"), skill_md("s")).unwrap();
    fs::write(dir.join("s/x"), "x\n").unwrap();
    let target = dir.display().to_string();
    rig.mount(&[("lab", &target)], &[]);
    rig.ready("lab");
    let began = Instant::now();
    until("two seconds and a half", 20.0, || {
        assert_eq!(rig.ls("lab").unwrap(), ["s"]);
        assert_eq!(rig.cat("lab/s/x"), ok("x\n"));
        began.elapsed() > Duration::from_millis(2_500)
    });
    let asked = &rig.server("lab")["connection"]["requests"];
    assert_eq!(asked["skills/list"], 1, "{asked}");
    assert_eq!(asked["resources/read"], 1, "{asked}");
}

#[test]
fn c42_hr78_looking_at_everything_and_probing_for_names_asks_the_server_nothing() {
    let mut rig = Rig::new();
    rig.scene("lab", tree(HOUR_MS));
    rig.up(&["lab"], &[]);
    let before = rig.log("lab", "request").len();

    // By path first, so that the kernel has to ask for each name before it has seen a listing.
    for skill in tree(HOUR_MS)["skills"].as_array().unwrap() {
        let path = skill["path"].as_str().unwrap();
        for name in skill["files"].as_object().unwrap().keys() {
            let path = rig.path(&format!("lab/{path}/{name}"));
            assert!(fs::metadata(&path).unwrap().is_file());
            drop(fs::File::open(&path).unwrap());
        }
    }
    let listing = rig.sh(LOOK).good();
    assert!(
        listing.contains(".env.example") && listing.contains("inner/x.txt"),
        "{listing}"
    );
    let dirs = rig.sh("find $M/lab -type d").good();
    for dir in dirs.lines() {
        for name in [
            ".git",
            ".hg",
            ".vscode",
            ".DS_Store",
            "._SKILL.md",
            ".hidden",
            "autorun.inf",
            "node_modules",
            "desktop.ini",
            "__pycache__",
            "SKILL.md~",
            "skill.md",
            "None",
        ] {
            let path = format!("{dir}/{name}");
            assert_eq!(
                fs::metadata(&path).unwrap_err().kind(),
                std::io::ErrorKind::NotFound,
                "{path}"
            );
        }
    }
    let git = rig.sh("git -C $M/lab status");
    assert!(git.err.contains("not a git repository"), "{git:?}");
    let requests = rig.log("lab", "request");
    assert_eq!(requests.len(), before, "{:?}", &requests[before..]);
}

#[test]
fn c42_hr51_a_stale_listing_is_asked_for_again_and_still_no_content() {
    let mut rig = Rig::new();
    rig.scene("lab", tree(0));
    rig.up(&["lab"], &[]);
    let lists = rig.seen("lab", "skills/list");
    crate::rig::until("a refresh by looking", 10.0, || {
        rig.sh(LOOK).good();
        rig.seen("lab", "skills/list") > lists
    });
    let methods: Vec<Value> = rig
        .log("lab", "request")
        .iter()
        .map(|r| r["method"].clone())
        .collect();
    assert!(
        methods
            .iter()
            .all(|m| m == "server/discover" || m == "skills/list"),
        "{methods:?}"
    );
}

#[test]
fn hr51_a_server_that_says_it_changed_is_listed_anew_before_its_listing_is_stale() {
    let mut rig = Rig::new();
    let meta = json!({"io.modelcontextprotocol/subscriptionId": "@ID@"});
    let line = |method: &str, params: Value| {
        let line = json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string();
        line.replace("\"@ID@\"", "@ID@")
    };
    let ack = line(
        "notifications/subscriptions/acknowledged",
        json!({"notifications": {"resourcesListChanged": true}, "_meta": meta}),
    );
    let hint = line(
        "notifications/resources/list_changed",
        json!({"_meta": meta}),
    );
    let says = json!([{"method": "subscriptions/listen", "before": [ack, hint], "hang": true}]);
    let capabilities = json!({"resources": {"listChanged": true},
        "extensions": {"io.modelcontextprotocol/skills": {}}});
    for (label, rules) in [("says", says), ("mute", json!([]))] {
        let mut scene = tree(HOUR_MS);
        scene["capabilities"] = capabilities.clone();
        scene["rules"] = rules;
        rig.scene(label, scene);
    }
    rig.up(&["says", "mute"], &[]);
    crate::rig::until("a listing by hint", 10.0, || {
        rig.seen("says", "skills/list") == 2
    });
    // One that refuses to say so is asked once and served as any other.
    crate::rig::until("the question to the mute one", 10.0, || {
        rig.seen("mute", "subscriptions/listen") == 1
    });
    assert_eq!(rig.seen("mute", "skills/list"), 1);
}

#[test]
fn c42_hr79_grep_reads_each_file_once_and_the_second_time_none() {
    let mut rig = Rig::new();
    rig.scene("lab", tree(HOUR_MS));
    rig.up(&["lab"], &[]);
    let files = rig
        .sh("find $M/lab -type f -size +0")
        .good()
        .lines()
        .count();
    for pass in ["first", "from the kernel", "from our memory"] {
        if pass == "from our memory" && is_root() {
            Rig::drop_kernel_caches();
        }
        let hits = rig.sh("grep -rl needle $M/lab | wc -l").good();
        assert_eq!(hits.trim(), (13 * 4 + 1).to_string());
        let reads = rig.reads("lab");
        assert_eq!(
            reads.len(),
            files,
            "every file that is not empty: {reads:?}"
        );
        let again: BTreeMap<_, _> = reads.iter().filter(|(_, n)| **n != 1).collect();
        assert!(again.is_empty(), "{pass}: read more than once: {again:?}");
    }
    assert_eq!(
        rig.seen("lab", "skills/get"),
        0,
        "a fresh listing needs no get (HR-50)"
    );
}

#[test]
fn a_warm_mount_asks_the_daemon_next_to_nothing() {
    let mut rig = Rig::new();
    rig.scene("lab", tree(HOUR_MS));
    rig.up(&["lab"], &[]);
    let pass = "cd $M/lab && find . >/dev/null && ls -lR . >/dev/null && grep -r needle . >/dev/null && \
        tar cf - . | wc -c && rm -rf $M/../copy && cp -r --no-preserve=mode . $M/../copy";
    rig.sh(pass).good();
    // Somebody else on the machine may make the kernel forget: the best of three counts. What is
    // left is the lookup of a label whose time is up and the like.
    let best = (0..3).map(|_| {
        let _kept = Rig::keep_kernel_caches();
        let before = rig.upcalls();
        rig.sh(pass).good();
        rig.upcalls() - before
    });
    let best = best.min().unwrap();
    assert!(
        best <= 20,
        "{best} requests of the kernel in a warm pass; {:#}",
        rig.status()["upcalls"]
    );
    assert_eq!(rig.sh("diff -r $M/lab copy").good(), "");
}
