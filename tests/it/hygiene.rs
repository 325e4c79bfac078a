//! What the daemon's processes keep from each other, from other programs and from the log.

use crate::rig::{Rig, alive, kill, ok, run, skill, still_there, until};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::MetadataExt;

fn scene() -> Value {
    json!({"skills": [skill("s", json!({"a.txt": "a\n"}))]})
}

/// The children of a process with their states, as `ps` names them.
fn children(parent: i32) -> Vec<(i32, String)> {
    let out = run(std::process::Command::new("ps").args(["-e", "-o", "ppid=,pid=,stat="]));
    let rows = out.good();
    let rows = rows
        .lines()
        .map(|l| l.split_whitespace().collect::<Vec<_>>());
    rows.filter(|r| r[0] == parent.to_string())
        .map(|r| (r[1].parse().unwrap(), r[2].to_owned()))
        .collect()
}

#[test]
fn a_server_gets_its_pipes_the_environment_and_nothing_else() {
    let mut rig = Rig::new();
    rig.scene("lab", scene());
    let target = rig.scripted("lab");
    // A shell that leaves a descriptor open for the daemon, as for a lock.
    let mut command = rig.command("bash");
    let line = r#"exec 9>"$HOME/lock"; exec "$@""#;
    command.args(["-c", line, "bash"]).arg(&rig.bin);
    command.env("SAID", "so");
    rig.daemon_args(&mut command, &[("lab", &target)], &[]);
    rig.mount_with(command);
    rig.ready("lab");
    assert_eq!(rig.cat("lab/s/a.txt"), ok("a\n"));
    let (daemon, server) = (rig.daemon_pid(), rig.server_pid("lab"));
    let lock = fs::metadata(rig.dir().join("home/lock")).unwrap();
    let kept = fs::metadata(format!("/proc/{daemon}/fd/9")).unwrap();
    assert_eq!(kept.ino(), lock.ino(), "the daemon does have it");
    // The log of the scripted server is a descriptor that it opened itself.
    let mut open = Vec::new();
    for entry in fs::read_dir(format!("/proc/{server}/fd")).unwrap() {
        let entry = entry.unwrap();
        let to = fs::read_link(entry.path()).unwrap_or_default();
        let own = to.to_string_lossy().contains("lab.scene");
        if !own {
            open.push((entry.file_name().into_string().unwrap(), to));
        }
    }
    open.sort();
    let pipes = open
        .iter()
        .filter(|(_, to)| to.to_string_lossy().starts_with("pipe:"));
    assert_eq!(pipes.count(), 3, "{open:?}");
    assert_eq!(open.len(), 3, "{open:?}");

    let environ = |pid: i32| {
        let bytes = fs::read(format!("/proc/{pid}/environ")).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let mut all: Vec<String> = text.split('\0').map(str::to_owned).collect();
        all.sort();
        all
    };
    let (ours, theirs) = (environ(daemon), environ(server));
    assert!(theirs.contains(&"SAID=so".to_owned()));
    // A launcher of Python versions may add to it and to PATH.
    let missing = ours
        .iter()
        .filter(|v| !v.starts_with("PATH=") && !theirs.contains(v));
    assert_eq!(missing.count(), 0, "docs/CLI.md: {ours:?}, {theirs:?}");
}

#[test]
fn c25_a_server_that_left_its_pipes_to_a_helper_is_seen_to_be_gone_and_reaped() {
    let mut rig = Rig::new();
    let mut with_helper = scene();
    with_helper["start"] = json!({"child": "inherit"});
    rig.scene("lab", with_helper);
    rig.up(&["lab"], &["--timeout", "2"]);
    let daemon = rig.daemon_pid();
    for round in 1..=2 {
        let server = rig.server_pid("lab");
        kill(server, Signal::KILL);
        until("the next process", 30.0, || {
            rig.log("lab", "start").len() > round
        });
        until("its reading", 30.0, || rig.cat("lab/s/a.txt") == ok("a\n"));
        until("no zombie", 10.0, || {
            children(daemon)
                .iter()
                .all(|(_, state)| !state.starts_with('Z'))
        });
        assert_ne!(rig.server_pid("lab"), server);
    }
    let helpers = rig.log("lab", "child");
    let helpers: Vec<i32> = helpers
        .iter()
        .map(|r| r["child"].as_i64().unwrap() as i32)
        .collect();
    until("the helpers of those that are gone to go", 10.0, || {
        helpers.iter().filter(|p| alive(**p)).count() == 1
    });
}

#[test]
fn no_secret_of_a_command_line_is_in_a_status_a_log_or_a_file() {
    let mut rig = Rig::new();
    let (secret, word) = ("hunter2", "hunter");
    rig.scene("lab", scene());
    rig.scene("web", json!({"rules": [{"status": 401}]}));
    let web = rig.scripted_http("web");
    let web = web.replace("http://", &format!("http://user:{secret}@"));
    let lab = format!("env TOKEN={secret} {}", rig.scripted("lab"));
    let dead = format!("no-such-command --api-key {secret}");
    let gone = format!("http://u:{secret}@127.0.0.1:9/mcp?token={secret}");
    let servers = [
        ("lab", &*lab),
        ("web", &format!("{web}?key={secret}")),
        ("dead", &dead),
        ("gone", &gone),
    ];
    rig.mount(&servers, &["--timeout", "1", "--start-timeout", "3"]);
    rig.ready("lab");
    for label in ["web", "dead", "gone"] {
        let state = match label {
            "web" => "needs-credentials",
            _ => "down",
        };
        until("its failure", 15.0, || rig.server(label)["state"] == state);
        assert!(rig.ls(label).is_err());
    }
    assert_eq!(rig.cat("lab/s/a.txt"), ok("a\n"));
    let asked = rig.log("web", "request");
    let sent = asked[0]["headers"].to_string();
    assert!(sent.contains("Basic "), "it was used: {sent}");
    let said = [
        rig.words(),
        rig.ask(&["status"]),
        rig.ask(&["status", "--json"]),
        rig.ask(&["status", "lab"]),
        rig.ask(&["list"]),
        rig.sh("cat $M/README.md $M/.mount-skills/catalog.json $M/.mount-skills/*/*")
            .good(),
    ];
    for text in said {
        assert!(!text.contains(word), "{text}");
        assert!(!text.is_empty());
    }
    let kept = ["state", "cache", "run"]
        .map(|dir| rig.stored(dir))
        .concat();
    let files: Vec<_> = kept.iter().filter(|(p, _)| p.is_file()).collect();
    assert!(files.len() >= 3, "{kept:?}");
    for (path, _) in files {
        let Some(bytes) = still_there(fs::read(path)) else {
            continue;
        };
        let text = String::from_utf8_lossy(&bytes);
        assert!(
            !text.contains(word) && !path.display().to_string().contains(word),
            "{path:?}"
        );
    }
    let status = rig.ask(&["status", "lab"]);
    assert!(status.contains("TOKEN=…"), "{status}");
}
