//! What servers over HTTP are shown to let us in, and what becomes of it.

use crate::rig::{Rig, ok, skill, skill_md, until, wait};
use serde_json::{Value, json};
use std::fs;
use std::time::{Duration, Instant};

/// Files to read one after the other, each at most once.
fn files(token: &str) -> Value {
    let files: serde_json::Map<String, Value> = (0..30)
        .map(|n| (n.to_string(), json!(format!("{n}\n"))))
        .collect();
    json!({"token": token, "ttlMs": 3_600_000, "skills": [skill("s", Value::Object(files))]})
}

fn write_token(rig: &Rig, token: &str) -> String {
    let file = rig.dir().join("token");
    fs::write(file.with_extension("new"), format!("{token}\n")).unwrap();
    fs::rename(file.with_extension("new"), &file).unwrap();
    file.display().to_string()
}

/// All that the program said or can be asked to say.
fn said(rig: &Rig) -> String {
    let asked = [
        rig.words(),
        rig.ask(&["status"]),
        rig.ask(&["status", "--json"]),
        rig.ask(&["status", "lab/s/9"]),
    ];
    let file = |name: &str| fs::read_to_string(rig.path(name)).unwrap();
    asked.concat() + &file("README.md") + &file(".mount-skills/lab/status.json")
}

#[test]
fn c31_a_token_file_is_read_again_when_it_changes_and_the_old_token_is_not_shown_on_and_on() {
    let mut rig = Rig::new();
    rig.scene("lab", files("SECRET-1"));
    let url = rig.scripted_http("lab");
    let token = write_token(&rig, "SECRET-1");
    let flag = format!("lab={token}");
    let mut command = rig.daemon_command(&[("lab", &url)], &["--bearer-file", &flag]);
    command.env("MOUNT_SKILLS_LOG", "trace");
    rig.mount_with(command);
    rig.ready("lab");
    assert_eq!(rig.cat("lab/s/0"), ok("0\n"));
    // The file is ahead of the server: not one request is refused.
    write_token(&rig, "SECRET-2");
    rig.scene("lab", files("SECRET-2"));
    assert_eq!(rig.cat("lab/s/1"), ok("1\n"));
    assert_eq!(rig.log("lab", "refused").len(), 0);
    // The server is ahead of the file.
    rig.scene("lab", files("SECRET-3"));
    let end = Instant::now() + Duration::from_secs(5);
    let mut n = 2;
    until("5 s to pass", 20.0, || {
        let started = Instant::now();
        let got = rig.cat(&format!("lab/s/{n}"));
        assert!(
            matches!(got, Err("EIO" | "EACCES" | "EHOSTDOWN")),
            "{got:?}"
        );
        assert!(
            started.elapsed() < Duration::from_secs(4),
            "the bound is 1 s"
        );
        assert_eq!(rig.cat("lab/s/0"), ok("0\n"), "what was read reads on");
        n = (n + 1).min(9);
        Instant::now() > end
    });
    let refused = rig.log("lab", "refused").len();
    assert!((1..=10).contains(&refused), "{refused} in 5 s");
    let status = rig.server("lab");
    assert_eq!(status["state"], "needs-credentials");
    let reason = status["reason"].as_str().unwrap();
    assert!(reason.contains(&token), "it says where: {reason}");
    assert_eq!(rig.cat("lab/s/9"), Err("EACCES"));
    let all = said(&rig);
    // The next one helps without a mount, and soon.
    write_token(&rig, "SECRET-3");
    let started = Instant::now();
    rig.ready("lab");
    assert!(
        started.elapsed() < Duration::from_secs(10),
        "the bound is 1 s"
    );
    assert_eq!(rig.cat("lab/s/10"), ok("10\n"));
    let all = all + &said(&rig);
    assert!(!all.contains("SECRET"), "{all}");
}

#[test]
fn c31_a_token_file_that_comes_later_is_found_and_a_bad_one_is_named() {
    let mut rig = Rig::new();
    rig.scene("lab", files("SECRET"));
    let url = rig.scripted_http("lab");
    let file = rig.dir().join("token").display().to_string();
    let flag = format!("lab={file}");
    rig.mount(&[("lab", &url)], &["--bearer-file", &flag]);
    let reason = |word: &str| {
        wait(word, 40.0, || {
            let status = rig.server("lab");
            let reason = status["reason"].as_str()?.to_owned();
            (status["state"] == "needs-credentials" && reason.contains(word)).then_some(reason)
        })
    };
    assert!(reason("No such file").contains(&file));
    write_token(&rig, "  \n");
    reason("it holds no token");
    write_token(&rig, "SECRET");
    rig.ready("lab");
    assert_eq!(rig.cat("lab/s/SKILL.md"), ok(&skill_md("s")));
}

#[test]
fn c31_headers_and_a_token_of_the_environment_are_sent_where_they_belong_and_shown_nowhere() {
    let mut rig = Rig::new();
    rig.scene("elsewhere", files(""));
    let elsewhere = rig.scripted_http("elsewhere");
    rig.scene("lab", files("SECRET-1"));
    let away = json!({"status": 307, "headers": {"Location": elsewhere}, "raw": ""});
    let mut moved = files("SECRET-1");
    moved["rules"] = json!([{"method": "resources/read", "uri": "skill://s/9", "status": 307,
        "headers": away["headers"], "raw": ""}]);
    rig.scene("lab", moved);
    let url = rig.scripted_http("lab");
    let flags = [
        "--bearer-env",
        "lab=TOKEN",
        "--header",
        "lab=X-Key: SECRET-2",
    ];
    let mut command = rig.daemon_command(&[("lab", &url)], &flags);
    command
        .env("TOKEN", "SECRET-1")
        .env("MOUNT_SKILLS_LOG", "trace");
    rig.mount_with(command);
    rig.ready("lab");
    assert_eq!(rig.cat("lab/s/0"), ok("0\n"));
    assert!(rig.cat("lab/s/9").is_err(), "sent elsewhere");
    for row in rig.log("lab", "request") {
        assert_eq!(row["headers"]["authorization"], "Bearer SECRET-1", "{row}");
        assert_eq!(row["headers"]["x-key"], "SECRET-2", "{row}");
    }
    for event in ["request", "note", "refused"] {
        assert!(rig.log("elsewhere", event).is_empty(), "{event}");
    }
    let all = said(&rig);
    assert!(!all.contains("SECRET"), "{all}");
}

#[test]
fn c31_credentials_for_no_server_or_for_a_process_are_exit_code_2_and_name_no_secret() {
    let rig = Rig::new();
    let url = "http://127.0.0.1:9/mcp";
    for (server, flags) in [
        (url, ["--header", "other=X: SECRET"]),
        (url, ["--header", "lab=SECRET"]),
        (url, ["--header", "lab=Host: SECRET"]),
        (url, ["--bearer-env", "lab=NO_SUCH_VARIABLE"]),
        (url, ["--bearer-file", "other=/dev/null"]),
        ("cat", ["--header", "lab=X: SECRET"]),
        ("cat", ["--bearer-file", "lab=/dev/null"]),
        (
            "http://u:p@127.0.0.1:9/mcp",
            ["--bearer-file", "lab=/dev/null"],
        ),
    ] {
        let out = crate::rig::run(&mut rig.daemon_command(&[("lab", server)], &flags));
        assert_eq!(out.code, Some(2), "{out:?}");
        assert!(
            ["lab", "other", "LABEL"]
                .iter()
                .any(|w| out.err.contains(w)),
            "{out:?}"
        );
        assert!(!out.err.contains("SECRET"), "{out:?}");
    }
}
