//! The command line: what it prints, what it refuses, and that servers cannot write to a terminal.

use crate::rig::{BIN, Proc, Rig, is_root, mounts_at, ok, run, skill, until};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;

fn scene(names: &[&str]) -> Value {
    let skills: Vec<Value> = names
        .iter()
        .map(|n| skill(n, json!({"a.txt": "a\n"})))
        .collect();
    json!({"skills": skills})
}

#[test]
fn help_and_version_are_there_for_each_command() {
    let rig = Rig::new();
    let help = rig.cli(&["--help"]).good();
    for word in [
        "--server",
        "status",
        "unmount",
        "serve",
        "LABEL=TARGET",
        "/mnt/skills",
    ] {
        assert!(help.contains(word), "{word}: {help}");
    }
    for command in ["list", "status", "unmount", "serve"] {
        assert!(
            rig.cli(&[command, "--help"]).good().contains("Usage"),
            "{command}"
        );
    }
    assert!(
        rig.cli(&["--version"])
            .good()
            .contains(env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn hr13_a_command_line_that_makes_no_sense_is_exit_code_2_and_nothing_is_mounted() {
    let rig = Rig::new();
    let mount = rig.mount_point().display().to_string();
    let long = format!("{}=x", "a".repeat(64));
    let bad: [&[&str]; 15] = [
        &[],
        &["--server"],
        &["--server", "docs"],
        &["--server", "Docs=true"],
        &["--server", ".a=true"],
        &["--server", "a/b=true"],
        &["--server", "=true"],
        &["--server", "ü=true"],
        &["--server", &long],
        &["--server", "a="],
        &["--server", "a='unclosed"],
        &["--server", "a=http://"],
        &["--server", "a=true", "--server", "a=false"],
        &["--server", "a=true", "--timeout", "0"],
        &["--server", "a=true", "--no-such-flag"],
    ];
    for args in bad {
        let mut all = args.to_vec();
        if args.len() > 1 {
            all.push(&mount);
        }
        let out = rig.cli(&all);
        assert_eq!(out.code, Some(2), "{args:?}: {out:?}");
        assert!(
            !out.err.is_empty() && out.out.is_empty(),
            "{args:?}: {out:?}"
        );
    }
    let twice = rig.cli(&["--server", "a=true", "--server", "a=false", &mount]);
    assert!(twice.err.contains("label a is given twice"), "{twice:?}");
    assert!(mounts_at(rig.mount_point()).is_empty());
    let missing = rig.cli(&["serve", "/no/such/directory"]);
    assert!(
        missing.code == Some(1) && missing.err.contains("/no/such/directory"),
        "{missing:?}"
    );
}

#[test]
fn c26_a_command_that_cannot_be_started_is_named_with_where_it_was_looked_for() {
    let mut rig = Rig::new();
    rig.scene("good", scene(&["s"]));
    let plain = rig.dir().join("plain");
    fs::write(&plain, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o644)).unwrap();
    let (good, plain) = (rig.scripted("good"), plain.display().to_string());
    let servers = [
        ("good", &*good),
        ("unknown", "no-such-cmd --x"),
        ("plain", &plain),
        ("nowhere", "/no/such/file"),
    ];
    rig.mount(&servers, &[]);
    rig.ready("good");
    for (label, words) in [
        ("unknown", vec!["no-such-cmd", "PATH is /"]),
        ("plain", vec!["not executable", "chmod +x"]),
        ("nowhere", vec!["/no/such/file", "does not exist"]),
    ] {
        until("its state", 5.0, || rig.server(label)["state"] == "down");
        let reason = rig.server(label)["reason"].to_string();
        assert!(
            words.iter().all(|w| reason.contains(w)),
            "{label}: {reason}"
        );
        assert_eq!(rig.ls(label), Err("EHOSTDOWN"));
    }
    assert_eq!(rig.cat("good/s/a.txt"), ok("a\n"));
    until("a line for each", 10.0, || rig.words().contains("ready: "));
    let words = rig.words();
    assert!(
        words.contains("good     1 skill") && words.contains("unknown  down: command"),
        "{words}"
    );
}

#[test]
fn c26_a_command_is_looked_for_on_our_path_and_gets_our_environment_and_what_env_adds() {
    let mut rig = Rig::new();
    rig.scene("lab", scene(&["s"]));
    let bin = rig.dir().join("bin");
    fs::create_dir(&bin).unwrap();
    let checks = r#"[ -n "$PATH" ] && [ -n "$HOME" ] && [ "$X" = 1 ] || exit 9"#;
    let script = format!("#!/bin/sh\n{checks}\nexec {}\n", rig.scripted("lab"));
    fs::write(bin.join("my-srv"), script).unwrap();
    fs::set_permissions(bin.join("my-srv"), fs::Permissions::from_mode(0o755)).unwrap();
    let servers = [
        ("lab", "env X=1 my-srv"),
        ("bare", "my-srv"),
        ("lost", "env PATH=/nope my-srv"),
    ];
    let mut command = rig.daemon_command(&servers, &[]);
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{path}:{}", bin.display()));
    rig.mount_with(command);
    rig.ready("lab");
    assert_eq!(rig.cat("lab/s/a.txt"), ok("a\n"));
    for (label, word) in [("bare", "9"), ("lost", "my-srv")] {
        until("its reason", 10.0, || {
            let status = rig.server(label);
            status["state"] == "down" && status["reason"].to_string().contains(word)
        });
        let tries = rig.server(label)["connection"]["connects"].as_u64();
        assert!(tries < Some(8), "no crash loop: {tries:?}");
    }
}

#[test]
fn hr27_hr28_list_status_and_the_files_in_the_mount_say_what_is_where() {
    let mut rig = Rig::new();
    let mut lab = scene(&[
        "acme/billing/refunds",
        "acme/support/refunds",
        "outer",
        "outer/inner",
    ]);
    let skills = lab["skills"].as_array_mut().unwrap();
    skills.push(json!({"path": "tools", "entry": {"frontmatter":
        {"name": "tools", "description": "d", "allowed-tools": "Bash(*)", "metadata": {"x": 1}}}}));
    skills.push(json!({"path": "dyn", "entry": {"resources": "dynamic"}}));
    skills.push(skill("bad", json!({"x": {"text": "x\n", "serve": "y\n"}})));
    rig.scene("lab", lab);
    rig.scene("other", scene(&["refunds"]));
    rig.up(&["lab", "other"], &[]);
    assert_eq!(rig.cat("lab/bad/x"), Err("EIO"));

    let list = rig.cli(&["list"]).good();
    for path in [
        "lab/acme/billing/refunds",
        "lab/acme/support/refunds",
        "other/refunds",
        "lab/outer/inner",
    ] {
        assert!(list.contains(path), "{list}");
    }
    assert!(list.contains("1 declined"), "{list}");
    let status = rig
        .cli(&["status", &rig.path("").display().to_string()])
        .good();
    for word in [
        "lab  ready",
        "declined skill://dyn/SKILL.md: ",
        "refused lab/bad/x",
        "resources/read 1",
        "upcalls: ",
        "cache: ",
    ] {
        assert!(status.contains(word), "{word}: {status}");
    }
    let from_list: Value = serde_json::from_str(&rig.cli(&["list", "--json"]).good()).unwrap();
    let labels: Vec<&str> = from_list
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s["server"].as_str().unwrap())
        .collect();
    assert!(labels.contains(&"lab"), "{labels:?}");
    assert_eq!(
        rig.status()["mountpoint"],
        &*rig.mount_point().display().to_string()
    );

    // Told by files alone, as an agent sees it.
    let file = |path: &str| rig.cat(path).unwrap();
    let readme = file("README.md");
    assert!(
        readme.contains("`lab/`") && readme.contains("`other/`") && readme.contains("untrusted"),
        "{readme}"
    );
    let catalog =
        || -> Value { serde_json::from_str(&file(".mount-skills/catalog.json")).unwrap() };
    until("the catalog to be whole", 5.0, || {
        catalog()["skills"].as_array().unwrap().len() == 7
    });
    let catalog = catalog();
    assert_eq!(catalog["trust"], "untrusted");
    let same = catalog["same_name"]["refunds"].as_array().unwrap();
    assert_eq!(same.len(), 3, "HR-26: {same:?}");
    let skill = |path: &str| {
        catalog["skills"]
            .as_array()
            .unwrap()
            .iter()
            .find(|s| s["path"] == path)
            .unwrap()
            .clone()
    };
    assert_eq!(
        skill("lab/outer/inner")["activation"],
        "needs-consent",
        "HR-102"
    );
    assert_eq!(
        (
            &skill("lab/tools")["requested_tools"],
            &skill("lab/tools")["granted_tools"]
        ),
        (&json!("Bash(*)"), &json!([]))
    );
    let refused = || -> Value {
        let status: Value = serde_json::from_str(&file(".mount-skills/lab/status.json")).unwrap();
        status["refused"].clone()
    };
    until("the refusal in the mount", 5.0, || {
        refused().to_string().contains("lab/bad/x")
    });
    assert!(
        rig.status()["servers"][0]["declined"]
            .to_string()
            .contains("dyn")
    );
}

#[test]
fn f33_hr114_no_text_of_a_server_reaches_a_terminal_or_a_file_unescaped() {
    let mut rig = Rig::new();
    let hostile = "\u{1b}[31mred\u{7}\u{202e}txt.exe\u{200b}\u{e0041}\r\nready: /mnt/fake";
    let front = json!({"name": "evil", "description": hostile, "allowed-tools": hostile});
    let skills = json!([
        {"path": "evil", "entry": {"frontmatter": front}},
        {"path": "odd", "files": {"a.txt": "a\n"}, "entry": {"frontmatter": {"name": hostile, "description": "d"}}},
        skill("s", json!({"a.txt": "a\n", "wrong.txt": "w\n"})),
        {"path": "named", "rows": [{"uri": "skill://named/%1B%5B31m", "digest": format!("sha256:{}", "0".repeat(64)), "size": 1}]},
    ]);
    let rules = json!([
        {"method": "resources/read", "uri": "skill://s/a.txt", "error": {"code": -32603, "message": hostile}},
        {"method": "resources/read", "uri": "skill://s/wrong.txt", "contents": [{"uri": hostile, "text": "w\n"}]},
        {"method": "server/discover", "result": {"instructions": hostile,
            "_meta": {"io.modelcontextprotocol/serverInfo": {"name": hostile, "version": hostile}}}},
    ]);
    rig.scene("lab", json!({"skills": skills, "rules": rules, "start": {"stderr": hostile, "banner": [hostile]}}));
    rig.scene(
        "dead",
        json!({"start": {"exit": 1, "stderr": format!("{hostile}\n")}}),
    );
    let (lab, dead) = (rig.scripted("lab"), rig.scripted("dead"));
    let mut command = rig.daemon_command(&[("lab", &lab), ("dead", &dead)], &[]);
    command.env("MOUNT_SKILLS_LOG", "mount_skills=debug");
    rig.mount_with(command);
    rig.ready("lab");
    assert_eq!(rig.cat("lab/s/a.txt"), Err("EIO"));
    assert_eq!(rig.cat("lab/s/wrong.txt"), Err("EIO"));
    until("the dead one", 5.0, || {
        rig.server("dead")["state"] == "down"
    });
    until("the refusal in the mount", 5.0, || {
        rig.cat(".mount-skills/lab/status.json")
            .unwrap()
            .contains("wrong.txt")
    });

    let mut texts = vec![("daemon".to_owned(), rig.words())];
    for args in [
        &["list"][..],
        &["status"],
        &["list", "--json"],
        &["status", "--json"],
    ] {
        texts.push((args.join(" "), rig.cli(args).good()));
    }
    for file in [
        "README.md",
        ".mount-skills/catalog.json",
        ".mount-skills/lab/status.json",
        ".mount-skills/dead/status.json",
    ] {
        texts.push((file.to_owned(), rig.cat(file).unwrap()));
    }
    for (name, text) in texts {
        let bad = |c: &char| {
            (c.is_control() && *c != '\n') || ['\u{202e}', '\u{200b}', '\u{e0041}'].contains(c)
        };
        assert_eq!(text.chars().find(bad), None, "{name}: {text}");
        assert!(
            !text.lines().any(|l| l.trim() == "ready: /mnt/fake"),
            "{name}: {text}"
        );
    }
    let described = rig.cli(&["list"]).good();
    assert!(
        described.contains("\\u{1b}[31mred"),
        "shown, but as text: {described}"
    );
}

#[test]
fn without_a_daemon_commands_say_so_and_unmount_is_content() {
    let rig = Rig::new();
    let mount = rig.mount_point().display().to_string();
    for args in [&["status"][..], &["list"], &["status", "--json", &mount]] {
        let out = rig.cli(args);
        assert_eq!(out.code, Some(1), "{out:?}");
        assert!(
            out.err.contains("no mount-skills is running") && out.out.is_empty(),
            "{out:?}"
        );
    }
    for args in [&["unmount"][..], &["unmount", &mount]] {
        assert!(
            rig.cli(args).good().contains("nothing is mounted"),
            "{args:?}"
        );
    }
}

#[test]
fn two_mounts_at_once_are_told_apart() {
    let mut rig = Rig::new();
    rig.scene("one", scene(&["s"]));
    rig.scene("two", scene(&["t"]));
    rig.up(&["one"], &[]);
    let [first, second] =
        [rig.mount_point(), &rig.dir().join("second")].map(|p| p.display().to_string());
    {
        let mut other = Rig::beside(&rig, "second");
        other.up(&["two"], &[]);
        let asked = rig.cli(&["status"]);
        assert_eq!(asked.code, Some(1));
        assert!(
            asked.err.contains(&first) && asked.err.contains(&second),
            "{asked:?}"
        );
        assert!(
            rig.cli(&["list", "--mount", &first])
                .good()
                .contains("one/s")
        );
        assert!(
            rig.cli(&["list", "--mount", &second])
                .good()
                .contains("two/t")
        );
        let ambiguous = rig.cli(&["unmount"]);
        assert_eq!(ambiguous.code, Some(1), "{ambiguous:?}");
        rig.cli(&["unmount", &second]).good();
        assert_eq!(other.ended(10.0), Some(0));
    }
    assert!(
        rig.cli(&["list"]).good().contains("one/s"),
        "the one that is left needs no name"
    );
    rig.cli(&["unmount"]).good();
    assert_eq!(rig.ended(10.0), Some(0));
    rig.cli(&["unmount"]).good();
    // A daemon that was killed leaves its socket; it must not count.
    rig.up(&["one"], &[]);
    rig.kill_daemon();
    let out = rig.cli(&["status"]);
    assert!(
        out.code == Some(1) && out.err.contains("no mount-skills is running"),
        "{out:?}"
    );
}

#[test]
fn a_mount_is_found_by_every_path_that_leads_to_it() {
    let mut rig = Rig::new();
    rig.scene("lab", scene(&["s"]));
    std::os::unix::fs::symlink(rig.mount_point(), rig.dir().join("link")).unwrap();
    rig.up(&["lab"], &[]);
    for path in [
        "mnt",
        "./mnt/",
        "link",
        "link/lab/s",
        "mnt/lab/s/SKILL.md",
        "mnt/../mnt",
        "mnt/lab/none",
    ] {
        let mut list = rig.command(BIN);
        let out = run(list.args(["list", "--mount", path]).current_dir(rig.dir()));
        assert!(out.text().contains("lab/s"), "{path}: {out:?}");
    }
    let mut unmount = rig.command(BIN);
    run(unmount.args(["unmount", "link"]).current_dir(rig.dir())).good();
    assert_eq!(rig.ended(10.0), Some(0));
}

#[test]
fn f28_c40_a_machine_that_cannot_mount_is_told_what_is_missing_before_a_server_starts() {
    let rig = Rig::new();
    rig.scene("lab", scene(&["s"]));
    let server = format!("lab={}", rig.scripted("lab"));
    let line = "mount --bind /dev/null /dev/fuse && exec \"$0\" --server \"$1\" \"$2\"";
    let mut command = rig.command("unshare");
    command.args(if is_root() { &["-m"][..] } else { &["-rm"] });
    command
        .args(["sh", "-c", line, BIN, &server])
        .arg(rig.mount_point());
    let out = run(&mut command);
    assert_eq!(out.code, Some(1), "{out:?}");
    let said = out.err;
    assert!(
        said.contains("/dev/fuse") && said.contains("--device /dev/fuse"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    if is_root() {
        // The device is there, the right to mount is not.
        let mut command = rig.command("setpriv");
        command.args(["--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]);
        command
            .args([BIN, "--server", &server])
            .arg(rig.mount_point());
        let out = run(&mut command);
        assert_eq!(out.code, Some(1), "{out:?}");
        assert!(out.err.contains("--cap-add SYS_ADMIN"), "{out:?}");
    }
    // A mount point that cannot be made.
    let out = rig.cli(&["--server", &server, "/proc/mnt"]);
    assert_eq!(out.code, Some(1), "{out:?}");
    assert!(out.err.contains("/proc/mnt"), "{out:?}");
    assert!(mounts_at(rig.mount_point()).is_empty());
    assert!(rig.log("lab", "start").is_empty());
}

#[test]
fn serve_is_a_server_of_its_own_and_follows_changes_when_asked() {
    let mut rig = Rig::new();
    let skills = rig.dir().join("skills");
    fs::create_dir_all(skills.join("one")).unwrap();
    let write = |text: &str| {
        fs::write(
            skills.join("one/SKILL.md"),
            format!("---\nname: one\ndescription: d\n---\n{text}"),
        )
        .unwrap()
    };
    write("first\n");
    let target = shlex::try_join([BIN, "serve", "--watch", &skills.display().to_string()]).unwrap();
    rig.mount(&[("mine", &target)], &["--hold", "none"]);
    rig.ready("mine");
    assert!(rig.cat("mine/one/SKILL.md").unwrap().ends_with("first\n"));
    write("second\n");
    until("the change", 10.0, || {
        rig.cat("mine/one/SKILL.md")
            .is_ok_and(|t| t.ends_with("second\n"))
    });
    let mut serve = rig.command(BIN);
    serve.arg("serve").arg(&skills);
    let ended = Proc::spawn(serve.stdin(std::process::Stdio::null())).finish(10.0);
    assert!(
        ended.out.is_empty(),
        "nothing but messages on stdout: {ended:?}"
    );
}
