//! What servers over HTTP are shown to let us in, and what becomes of it.

use crate::rig::{Out, Proc, Rig, installed, ok, run, server_file, skill, skill_md, until, wait};
use serde_json::{Value, json};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Stdio;
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
fn c31_credentials_that_cannot_change_are_not_shown_on_and_on() {
    let mut rig = Rig::new();
    let labels = ["variable", "header", "user", "none"];
    let mut urls = Vec::new();
    for label in labels {
        rig.scene(label, files("SECRET-right"));
        urls.push(rig.scripted_http(label));
    }
    urls[2] = urls[2].replace("http://", "http://user:SECRET-wrong@");
    let servers: Vec<_> = labels
        .into_iter()
        .zip(urls.iter().map(String::as_str))
        .collect();
    let header = "header=Authorization: Bearer SECRET-wrong";
    let flags = ["--bearer-env", "variable=TOKEN", "--header", header];
    let mut command = rig.daemon_command(&servers, &flags);
    command.env("TOKEN", "SECRET-wrong");
    rig.mount_with(command);
    pass(8);
    for (label, word) in labels
        .into_iter()
        .zip(["TOKEN", "given", "given", "login none"])
    {
        let reason = locked(&rig, label);
        assert!(reason.contains(word), "{reason}");
        let refused = rig.log(label, "refused").len();
        assert!((1..=8).contains(&refused), "{label}: {refused} in 8 s");
    }
    // It may have been wrong of the server.
    for label in labels {
        rig.scene(
            label,
            files(if label == "none" { "" } else { "SECRET-wrong" }),
        );
    }
    rig.ready("variable");
    rig.ready("header");
    rig.ready("none");
    assert!(!rig.words().contains("SECRET"));
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
        let out = run(&mut rig.daemon_command(&[("lab", server)], &flags));
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

/// A server that one logs in to, and that issues its tokens itself.
pub(crate) struct OAuth {
    pub(crate) url: String,
    log: PathBuf,
}

impl OAuth {
    /// Starts it, with access tokens that are good for so many seconds.
    pub(crate) fn start(rig: &mut Rig, life: u32, flags: &[&str]) -> Self {
        let skills = rig.dir().join("skills");
        let dir = skills.join("s");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("SKILL.md"), skill_md("s")).unwrap();
        for n in 0..40 {
            fs::write(dir.join(format!("{n}.txt")), format!("{n}\n")).unwrap();
        }
        let said = rig.dir().join("oauth.url");
        let mut command = rig.command(installed("venv/bin/python"));
        command
            .arg(server_file("oauth_server.py"))
            .arg(&skills)
            .arg(&said)
            .arg(life.to_string());
        rig.keep_server(command.args(flags).stdout(Stdio::null()));
        let url = wait("a server to listen", 60.0, || {
            fs::read_to_string(&said).ok()
        });
        let log = rig.dir().join("oauth.url.log");
        Self { url, log }
    }

    /// The requests for a path so far.
    fn seen(&self, path: &str) -> Vec<Value> {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let rows = text.lines().filter(|l| l.ends_with('}'));
        let rows = rows.map(|l| serde_json::from_str::<Value>(l).unwrap());
        rows.filter(|r| r["path"] == path).collect()
    }

    /// How many requests for skills were turned away so far.
    fn refused(&self) -> usize {
        let rows = self.seen("/mcp").into_iter();
        rows.filter(|r| r["status"] == 401).count()
    }

    /// How often a refresh token was used so far.
    fn renewals(&self) -> usize {
        let rows = self.seen("/token").into_iter();
        rows.filter(|r| r["refresh"] == true).count()
    }

    /// Makes the server do something, as its description says.
    fn act(&self, what: &str) {
        get(&self.url, &format!("/test/{what}"));
    }
}

/// Gets a path of the server of a URL.
fn get(url: &str, path: &str) -> String {
    let address = url.strip_prefix("http://").unwrap();
    let address = address.split('/').next().unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// A user who opens a page and agrees to what it asks; what the browser shows in the end, and where.
const BROWSER: &str = r#"
import http.cookiejar, re, ssl, sys, urllib.parse, urllib.request as r
cookies = r.HTTPCookieProcessor(http.cookiejar.CookieJar())
browser = r.build_opener(cookies, r.HTTPSHandler(context=ssl._create_unverified_context()))
def go(*to):
    try:
        answer = browser.open(*to, timeout=20)
    except r.HTTPError as e:
        answer = e
    return answer.url, answer.read().decode()
url, page = go(sys.argv[1])
while form := re.search(r'action="([^"]+)"', page):
    fields = {"prompt": re.search(r'name="prompt" value="(\w+)"', page)[1]}
    if fields["prompt"] == "login":
        fields.update(login="ada", password="any")
    url, page = go(urllib.parse.urljoin(url, form[1]), urllib.parse.urlencode(fields).encode())
print(url, page)
"#;

fn browse(rig: &Rig, page: &str) -> String {
    run(rig.command("python3").args(["-c", BROWSER, page])).good()
}

/// Starts a `login` that waits for the browser; and the page it wants opened.
#[track_caller]
fn login(rig: &Rig, args: &[&str]) -> (Proc, String) {
    page_of(rig.command(&rig.bin).arg("login").args(args))
}

#[track_caller]
fn page_of(command: &mut std::process::Command) -> (Proc, String) {
    let mut proc = Proc::spawn(command);
    let page = wait("a page to open", 20.0, || {
        let said = proc.err_so_far();
        assert!(proc.runs(), "it ended: {said}");
        let page = said.lines().find(|l| l.starts_with("http"));
        let whole = said.contains("paste the address");
        page.filter(|_| whole).map(str::to_owned)
    });
    (proc, page)
}

/// Logs in.
#[track_caller]
fn log_in(rig: &Rig, args: &[&str]) -> String {
    let (proc, page) = login(rig, args);
    let shown = browse(rig, &page);
    assert!(shown.contains("go back to the terminal"), "{shown}");
    let out = proc.finish(30.0).good();
    assert!(out.starts_with("logged in to"), "{out}");
    out
}

/// Waits until a label has no use for its credentials; why.
#[track_caller]
fn locked(rig: &Rig, label: &str) -> String {
    wait("a server that needs credentials", 20.0, || {
        let status = rig.server(label);
        let locked = status["state"] == "needs-credentials";
        locked.then(|| status["reason"].as_str().unwrap().to_owned())
    })
}

#[track_caller]
fn pass(seconds: u64) {
    let end = Instant::now() + Duration::from_secs(seconds);
    until("some time to pass", 60.0, || Instant::now() > end);
}

#[test]
fn c31_a_login_serves_a_running_mount_is_renewed_once_ends_and_is_made_anew() {
    let mut rig = Rig::new();
    let server = OAuth::start(&mut rig, 4, &[]);
    let mut command = rig.daemon_command(&[("lab", &server.url)], &[]);
    command.env("MOUNT_SKILLS_LOG", "mount_skills=trace,rmcp=debug");
    rig.mount_with(command);
    let reason = locked(&rig, "lab");
    assert_eq!(reason, "HTTP 401; run: mount-skills login lab");
    assert_eq!(rig.ls("lab"), Err("EACCES"));
    // Where it is, the mount knows.
    log_in(&rig, &["lab"]);
    rig.ready("lab");
    assert_eq!(rig.cat("lab/s/0.txt"), ok("0\n"));
    let stored = rig.stored("state");
    let login = |p: &PathBuf| p.file_name().is_some_and(|n| n == "login.json");
    let file = stored.iter().find(|(p, _)| login(p)).unwrap();
    assert_eq!(file.1, 0o600);

    // It expires, and eight readers find that out at once.
    pass(6);
    let (refused, renewed) = (server.refused(), server.renewals());
    let readers: Vec<_> = (1..9)
        .map(|n| (n, rig.cat_later(&format!("lab/s/{n}.txt"))))
        .collect();
    for (n, reader) in readers {
        let got = rig.outcome("a reader", reader.finish(20.0));
        assert_eq!(got, ok(&format!("{n}\n")));
    }
    assert_eq!(server.refused(), refused, "not one is turned away");
    assert_eq!(server.renewals(), renewed + 1, "one renewal for all");

    // The server ends it: what was read reads on, and it is left alone.
    server.act("revoke");
    let (refused, renewed) = (server.refused(), server.renewals());
    let got = rig.cat("lab/s/10.txt");
    assert!(
        matches!(got, Err("EIO" | "EACCES" | "EHOSTDOWN")),
        "{got:?}"
    );
    let mut n = 11;
    let end = Instant::now() + Duration::from_secs(6);
    until("6 s to pass", 20.0, || {
        assert!(rig.cat(&format!("lab/s/{n}.txt")).is_err());
        assert_eq!(rig.cat("lab/s/1.txt"), ok("1\n"));
        n = (n + 1).min(19);
        Instant::now() > end
    });
    let reason = locked(&rig, "lab");
    assert_eq!(
        reason,
        "HTTP 401: the last login has ended; run: mount-skills login lab"
    );
    assert_eq!(rig.cat("lab/s/19.txt"), Err("EACCES"));
    assert_eq!(
        server.renewals(),
        renewed + 1,
        "a spent token is shown once"
    );
    let refused = server.refused() - refused;
    assert!(refused <= 12, "{refused} requests in 6 s");

    log_in(&rig, &["lab"]);
    rig.ready("lab");
    assert_eq!(rig.cat("lab/s/20.txt"), ok("20\n"));

    let out = rig.cli(&["logout", "lab"]).good();
    assert_eq!(out, "logged out of lab\n");
    let revoked = server.seen("/revoke");
    let revoked = revoked.iter().filter(|r| r["status"] == 200).count();
    assert_eq!(revoked, 2, "both tokens");
    assert!(!rig.stored("state").iter().any(|(p, _)| login(p)));
    assert!(rig.cat("lab/s/21.txt").is_err());
    assert_eq!(rig.cat("lab/s/20.txt"), ok("20\n"));
    until("a read that knows better", 20.0, || {
        rig.cat("lab/s/22.txt") == Err("EACCES")
    });
    assert_eq!(locked(&rig, "lab"), "HTTP 401; run: mount-skills login lab");
    let out = rig.cli(&["logout", "lab"]).good();
    assert_eq!(out, "there was no login for lab\n");
    let all = said(&rig);
    for secret in ["test_access_token", "test_refresh_token", "test_auth_code"] {
        assert!(!all.contains(secret), "{secret}: {all}");
    }
}

#[test]
fn c31_two_mounts_share_a_login_and_renew_it_once() {
    let mut rig = Rig::new();
    let server = OAuth::start(&mut rig, 4, &[]);
    log_in(&rig, &["lab", "--url", &server.url]);
    let mut other = Rig::beside(&rig, "other");
    for mount in [&mut rig, &mut other] {
        mount.mount(
            &[("lab", &server.url)],
            &["--cache-dir", "/nonexistent/cache"],
        );
    }
    let both = [&rig, &other];
    both.iter().for_each(|m| m.ready("lab"));
    for round in 0..2 {
        pass(6);
        let (refused, renewed) = (server.refused(), server.renewals());
        let readers: Vec<_> = both
            .iter()
            .flat_map(|m| (0..4).map(move |n| (*m, round * 4 + n)))
            .map(|(m, n)| (n, m.cat_later(&format!("lab/s/{n}.txt"))))
            .collect();
        for (n, reader) in readers {
            let got = rig.outcome("a reader", reader.finish(20.0));
            assert_eq!(got, ok(&format!("{n}\n")));
        }
        assert_eq!(server.refused(), refused);
        assert_eq!(server.renewals(), renewed + 1, "for both mounts");
    }
}

#[test]
fn c31_a_renewal_that_fails_for_now_is_tried_again_and_needs_nobody() {
    let mut rig = Rig::new();
    let server = OAuth::start(&mut rig, 4, &[]);
    log_in(&rig, &["lab", "--url", &server.url]);
    rig.mount(&[("lab", &server.url)], &[]);
    rig.ready("lab");
    pass(6);
    server.act("break");
    let renewed = server.renewals();
    let got = rig.cat("lab/s/0.txt");
    assert!(
        matches!(got, Err("EIO" | "EACCES" | "EHOSTDOWN")),
        "{got:?}"
    );
    assert!(rig.cat("lab/s/1.txt").is_err());
    assert_eq!(server.renewals(), renewed + 1, "not by each reader");
    let words = rig.words();
    assert!(words.contains("renewing it failed"), "{words}");
    until("another try", 40.0, || rig.cat("lab/s/2.txt") == ok("2\n"));
    assert_eq!(server.renewals(), renewed + 2);
}

#[test]
fn c31_a_login_that_comes_to_nothing_says_why_and_changes_nothing() {
    let mut rig = Rig::new();
    let server = OAuth::start(&mut rig, 60, &[]);
    let failed = |out: Out, word: &str| {
        assert_eq!(out.code, Some(1), "{out:?}");
        assert!(out.err.contains(word), "{word}: {out:?}");
    };
    failed(
        rig.cli(&["login", "lab"]),
        "mount-skills login lab --url URL",
    );
    log_in(&rig, &["lab", "--url", &server.url]);
    let login = |rig: &Rig| {
        let files = rig.stored("state").into_iter().map(|(p, _)| p);
        let mut files = files.filter(|p| p.file_name().is_some_and(|n| n == "login.json"));
        fs::read_to_string(files.next().unwrap()).unwrap()
    };
    let before = login(&rig);

    // Refused by the user.
    server.act("deny");
    let (proc, page) = self::login(&rig, &["lab"]);
    let shown = browse(&rig, &page);
    assert!(shown.contains("the terminal says more"), "{shown}");
    failed(proc.finish(20.0), "access_denied");
    // Nobody comes.
    let (proc, page) = self::login(&rig, &["lab", "--timeout", "2"]);
    failed(proc.finish(20.0), "nobody logged in within 2 s");
    let port = page
        .split("127.0.0.1%3A")
        .nth(1)
        .unwrap()
        .split("%2F")
        .next();
    assert!(TcpStream::connect(format!("127.0.0.1:{}", port.unwrap())).is_err());
    assert_eq!(login(&rig), before, "what was there is still there");

    // Somebody else comes first: with another state, with none, to other places.
    let (proc, page) = self::login(&rig, &["lab"]);
    let port = page
        .split("127.0.0.1%3A")
        .nth(1)
        .unwrap()
        .split("%2F")
        .next();
    let here = format!("http://127.0.0.1:{}/", port.unwrap());
    for (path, status) in [
        ("/callback?code=x&state=y", "400"),
        ("/callback?error=x", "400"),
        ("/callback", "400"),
        ("/", "404"),
        ("/favicon.ico", "404"),
        ("//evil.example/callback", "404"),
    ] {
        let answer = get(&here, path);
        let first = answer.lines().next().unwrap();
        assert!(first.contains(status), "{path}: {answer}");
    }
    browse(&rig, &page);
    proc.finish(30.0).good();
    assert_ne!(login(&rig), before);

    // A server that has nothing to log in to, one that lets everybody in, and none at all.
    rig.scene("plain", files("SECRET"));
    let plain = rig.scripted_http("plain");
    failed(
        rig.cli(&["login", "lab", "--url", &plain]),
        "it offers no way to log in",
    );
    rig.scene("open", files(""));
    let open = rig.scripted_http("open");
    failed(
        rig.cli(&["login", "lab", "--url", &open]),
        "it asks for no credentials",
    );
    failed(
        rig.cli(&["login", "lab", "--url", "http://127.0.0.1:9/mcp"]),
        "refused",
    );
    failed(
        rig.cli(&["login", "lab", "--url", "http://example.org/mcp"]),
        "is not https",
    );
    let out = rig.cli(&["login", "lab", "--url", "http://u:SECRET@127.0.0.1:9/mcp"]);
    assert_eq!(out.code, Some(2), "{out:?}");
    assert!(!out.err.contains("SECRET"), "{out:?}");
    rig.mount(&[("mine", "cat")], &[]);
    failed(rig.cli(&["login", "mine"]), "it has no login");
}

#[test]
fn c31_a_client_that_is_known_logs_in_by_an_address_that_is_pasted() {
    let mut rig = Rig::new();
    let server = OAuth::start(&mut rig, 4, &["--secret"]);
    let out = rig.cli(&["login", "lab", "--url", &server.url]);
    assert_eq!(out.code, Some(1), "{out:?}");
    assert!(out.err.contains("--client-id"), "{out:?}");
    let fifo = rig.dir().join("fifo");
    run(rig.command("mkfifo").arg(&fifo)).good();
    let words = ["login", "lab", "--url", &server.url];
    let mut command = rig.command("bash");
    let script = "exec \"$0\" \"$@\" <\"$FIFO\"";
    command.args(["-c", script]).arg(&rig.bin).args(words);
    command.args(["--client-id", "known", "--client-secret-env", "CLIENT"]);
    command.env("CLIENT", "SECRET-known").env("FIFO", &fifo);
    let proc = Proc::spawn(&mut command);
    let mut stdin = fs::File::options().write(true).open(&fifo).unwrap();
    let page = wait("a page to open", 20.0, || {
        let said = proc.err_so_far();
        let page = said.lines().find(|l| l.starts_with("http"))?.to_owned();
        said.contains("paste").then_some(page)
    });
    // The browser of another machine finds nobody where it is sent.
    let path = page.split_once("/authorize").unwrap().1;
    let answer = get(&page, &format!("/authorize{path}"));
    let to = answer.lines().find_map(|l| l.strip_prefix("location: "));
    let to = to.unwrap_or_else(|| panic!("{answer}"));
    write!(stdin, "what?\n{}\n{to}\n", page).unwrap();
    let out = proc.finish(30.0);
    assert!(!out.err.contains("SECRET"), "{out:?}");
    out.good();
    rig.mount(&[("lab", &server.url)], &[]);
    rig.ready("lab");
    pass(6);
    let renewed = server.renewals();
    assert_eq!(rig.cat("lab/s/0.txt"), ok("0\n"), "renewed with the secret");
    assert_eq!(server.renewals(), renewed + 1);
    assert_eq!(rig.cli(&["logout", "lab"]).good(), "logged out of lab\n");
    assert!(!said(&rig).contains("SECRET"));
}

#[test]
fn c31_a_server_that_takes_no_token_for_a_while_costs_few_requests_and_no_login() {
    let mut rig = Rig::new();
    let server = OAuth::start(&mut rig, 3600, &[]);
    log_in(&rig, &["lab", "--url", &server.url]);
    rig.mount(&[("lab", &server.url)], &[]);
    rig.ready("lab");
    assert_eq!(rig.cat("lab/s/0.txt"), ok("0\n"));
    let discovered = server.seen("/.well-known/oauth-authorization-server").len();
    server.act("lock");
    let (refused, renewed) = (server.refused(), server.renewals());
    let mut n = 1;
    let end = Instant::now() + Duration::from_secs(15);
    until("15 s to pass", 30.0, || {
        let started = Instant::now();
        assert!(rig.cat(&format!("lab/s/{n}.txt")).is_err());
        let took = started.elapsed();
        assert!(took < Duration::from_secs(4), "the bound is 1 s: {took:?}");
        assert_eq!(rig.cat("lab/s/0.txt"), ok("0\n"));
        n = (n + 1).min(19);
        Instant::now() > end
    });
    assert_eq!(locked(&rig, "lab"), "HTTP 401; run: mount-skills login lab");
    let (refused, renewed) = (server.refused() - refused, server.renewals() - renewed);
    assert!(refused <= 16, "{refused} requests in 15 s");
    assert!((1..=3).contains(&renewed), "{renewed} renewals in 15 s");
    server.act("unlock");
    until("the server to let us in", 45.0, || {
        rig.cat("lab/s/20.txt") == ok("20\n")
    });
    // Nobody asked it again where tokens come from: it could say something else.
    let again = server.seen("/.well-known/oauth-authorization-server").len();
    assert_eq!(again, discovered);
}

#[test]
fn c31_a_login_is_for_the_server_that_it_was_made_for() {
    let mut rig = Rig::new();
    let server = OAuth::start(&mut rig, 3600, &[]);
    log_in(&rig, &["lab", "--url", &server.url]);
    log_in(&rig, &["web", "--url", &server.url]);
    rig.scene("lab", files(""));
    rig.scene("web", files("SECRET"));
    let [lab, web] = ["lab", "web"].map(|l| rig.scripted_http(l));
    let other = format!("{}/", server.url);
    rig.mount(&[("lab", &lab), ("web", &web), ("third", &other)], &[]);
    rig.ready("lab");
    assert_eq!(rig.cat("lab/s/0"), ok("0\n"));
    locked(&rig, "web");
    locked(&rig, "third");
    for (label, event) in [("lab", "request"), ("web", "refused")] {
        let rows = rig.log(label, event);
        assert!(!rows.is_empty(), "{label}");
        let sent = rows
            .iter()
            .filter(|r| !r["headers"]["authorization"].is_null());
        assert_eq!(
            sent.count(),
            0,
            "{label}: under its label, and not to its place"
        );
    }
}

#[test]
fn c31_rights_that_are_missing_are_named() {
    let mut rig = Rig::new();
    let mut scene = files("");
    let challenge = "Bearer error=\"insufficient_scope\", scope=\"skills:read skills:list\"";
    scene["rules"] = json!([{"method": "skills/list", "status": 403, "raw": "",
        "headers": {"WWW-Authenticate": challenge}}]);
    rig.scene("lab", scene);
    let url = rig.scripted_http("lab");
    rig.mount(&[("lab", &url)], &[]);
    let reason = locked(&rig, "lab");
    assert_eq!(
        reason,
        "HTTP 403: the credentials do not suffice; run: mount-skills login --scope 'skills:read skills:list' lab"
    );
    assert_eq!(rig.ls("lab"), Err("EACCES"));
}

#[test]
fn c31_tokens_of_an_issuer_of_its_own_are_for_the_server_that_named_it() {
    let mut rig = Rig::new();
    let said = rig.dir().join("issuer.url");
    let mut command = rig.command(installed("bin/node"));
    command.arg(server_file("issuer.mjs")).arg(&said).arg("5");
    rig.keep_server(command.stdout(Stdio::null()));
    let issuer = wait("an issuer", 60.0, || fs::read_to_string(&said).ok());
    let log = rig.dir().join("issuer.url.log");
    let asked = |line: &str| {
        let text = fs::read_to_string(&log).unwrap_or_default();
        assert!(!text.contains("error"), "{text}");
        text.lines().filter(|l| *l == line).count()
    };
    let server = OAuth::start(&mut rig, 4, &[&format!("--issuer={issuer}")]);
    rig.mount(&[("lab", &server.url)], &[]);
    locked(&rig, "lab");
    let (proc, page) = login(&rig, &["lab"]);
    assert!(page.starts_with(&issuer), "{page}");
    assert!(
        page.contains("scope=skills%3Aread+offline_access"),
        "{page}"
    );
    let shown = browse(&rig, &page);
    assert!(shown.contains("go back to the terminal"), "{shown}");
    assert!(shown.contains("iss="), "it says who it is: {shown}");
    proc.finish(30.0).good();
    rig.ready("lab");
    assert_eq!(rig.cat("lab/s/0.txt"), ok("0\n"));
    let grant = |kind: &str| format!("grant {kind} for {}", server.url);
    assert_eq!(asked(&grant("authorization_code")), 1);
    for n in 1..3 {
        pass(6);
        let (refused, renewed) = (server.refused(), asked(&grant("refresh_token")));
        assert_eq!(rig.cat(&format!("lab/s/{n}.txt")), ok(&format!("{n}\n")));
        assert_eq!(server.refused(), refused);
        assert_eq!(asked(&grant("refresh_token")), renewed + 1);
    }
    assert_eq!(rig.cli(&["logout", "lab"]).good(), "logged out of lab\n");
    until("an end of the login there", 5.0, || asked("revoked") >= 1);
    until("a read that knows", 10.0, || {
        rig.cat("lab/s/9.txt") == Err("EACCES")
    });
}

/// Two authorities, and what they vouch for: `ours` has signed that we are `127.0.0.1`, and that we
/// are another; `theirs` nothing.
pub(crate) fn authorities(rig: &Rig) -> PathBuf {
    let dir = rig.dir().join("tls");
    fs::create_dir(&dir).unwrap();
    let script = r#"set -e; cd "$1"
key() { openssl genpkey -quiet -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1.key" 2>/dev/null || openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"; }
for ca in ours theirs; do
  key $ca
  openssl req -x509 -new -key $ca.key -subj "/CN=$ca" -days 2 -addext basicConstraints=critical,CA:TRUE -out $ca.pem
done
sign() { key $1; openssl req -new -key $1.key -subj "/CN=$1" -out $1.csr
  printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth\nbasicConstraints=CA:FALSE\n' "$2" >$1.ext
  openssl x509 -req -in $1.csr -CA ours.pem -CAkey ours.key -CAcreateserial -days 2 -extfile $1.ext -out $1.crt
  cat $1.crt $1.key >$1.pem; }
sign here IP:127.0.0.1; sign elsewhere DNS:elsewhere.example"#;
    let mut command = rig.command("bash");
    command.args(["-c", script, "bash"]).arg(&dir);
    let out = run(&mut command);
    assert_eq!(out.code, Some(0), "{out:?}");
    dir
}

#[test]
fn c31_c32_https_is_for_servers_that_an_authority_of_ours_vouches_for_also_by_a_proxy_and_to_log_in()
 {
    let mut rig = Rig::with_limit(150);
    let dir = authorities(&rig);
    let pem = |name: &str| dir.join(format!("{name}.pem")).display().to_string();
    let server = OAuth::start(&mut rig, 5, &[&format!("--tls={}", pem("here"))]);
    assert!(server.url.starts_with("https://"), "{}", server.url);
    // Nobody we know, and nobody else that we were told of, vouches for it.
    for authority in [None, Some("theirs")] {
        let mut command = rig.daemon_command(&[("lab", &server.url)], &[]);
        if let Some(name) = authority {
            command.env("SSL_CERT_FILE", pem(name));
        }
        rig.mount_with(command);
        until("its state", 20.0, || rig.server("lab")["state"] == "down");
        let reason = rig.server("lab")["reason"].to_string();
        assert!(reason.contains("certificate"), "{reason}");
        rig.stop();
    }
    assert!(server.seen("/mcp").is_empty(), "nothing was sent");

    // By a proxy that wants to know who asks.
    let (conf, proxy_log) = (rig.dir().join("proxy.conf"), rig.dir().join("proxy.txt"));
    // Free again once the listener has gone.
    let port = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    let text = format!(
        "Port {port}\nListen 127.0.0.1\nLogFile \"{}\"\nLogLevel Info\nBasicAuth ada SECRET-proxy\n",
        proxy_log.display()
    );
    fs::write(&conf, text).unwrap();
    rig.keep_server(
        std::process::Command::new("tinyproxy")
            .arg("-d")
            .arg("-c")
            .arg(&conf)
            .stdout(Stdio::null()),
    );
    // Not by connecting: as long as nobody listens, a port may be connected to itself.
    until("a proxy", 10.0, || {
        let said = fs::read_to_string(&proxy_log).unwrap_or_default();
        said.contains("Accepting connections")
    });
    let by_proxy = |command: &mut std::process::Command| {
        command.env("SSL_CERT_FILE", pem("ours")).env(
            "HTTPS_PROXY",
            format!("http://ada:SECRET-proxy@127.0.0.1:{port}"),
        );
    };
    let mut command = rig.command(&rig.bin);
    command.args(["login", "lab", "--url", &server.url]);
    by_proxy(&mut command);
    let (proc, page) = page_of(&mut command);
    let shown = browse(&rig, &page);
    assert!(shown.contains("go back to the terminal"), "{shown}");
    proc.finish(30.0).good();
    let mut command = rig.daemon_command(&[("lab", &server.url)], &[]);
    by_proxy(&mut command);
    command.env("MOUNT_SKILLS_LOG", "trace");
    rig.mount_with(command);
    rig.ready("lab");
    assert_eq!(rig.cat("lab/s/0.txt"), ok("0\n"));
    pass(6);
    let renewed = server.renewals();
    assert_eq!(rig.cat("lab/s/1.txt"), ok("1\n"));
    assert_eq!(
        server.renewals(),
        renewed + 1,
        "renewed by the proxy as well"
    );
    let seen = fs::read_to_string(&proxy_log).unwrap();
    let host = server
        .url
        .strip_prefix("https://")
        .unwrap()
        .strip_suffix("/mcp");
    let asked = format!("CONNECT {}", host.unwrap());
    assert!(seen.matches(&asked).count() >= 3, "{seen}");
    assert!(!said(&rig).contains("SECRET"));
    rig.stop();

    // Without the proxy's word for us nothing comes through, and NO_PROXY goes past it.
    let wrong = format!("http://ada:SECRET-wrong@127.0.0.1:{port}");
    for (no_proxy, state) in [("", "down"), ("127.0.0.1", "ready")] {
        let before = fs::read_to_string(&proxy_log)
            .unwrap()
            .matches(&asked)
            .count();
        let mut command = rig.daemon_command(&[("lab", &server.url)], &[]);
        command
            .env("SSL_CERT_FILE", pem("ours"))
            .env("HTTPS_PROXY", &wrong);
        command.env("NO_PROXY", no_proxy);
        rig.mount_with(command);
        until(state, 20.0, || rig.server("lab")["state"] == state);
        let after = fs::read_to_string(&proxy_log)
            .unwrap()
            .matches(&asked)
            .count();
        assert_eq!(after > before, state == "down", "{no_proxy}");
        assert!(!said(&rig).contains("SECRET"));
        rig.stop();
    }
    rig.end_servers();

    // One that is vouched for under another name.
    fs::remove_file(rig.dir().join("oauth.url")).unwrap();
    let server = OAuth::start(&mut rig, 5, &[&format!("--tls={}", pem("elsewhere"))]);
    let mut command = rig.daemon_command(&[("lab", &server.url)], &[]);
    command.env("SSL_CERT_FILE", pem("ours"));
    rig.mount_with(command);
    until("its state", 20.0, || rig.server("lab")["state"] == "down");
    let reason = rig.server("lab")["reason"].to_string();
    assert!(reason.contains("certificate"), "{reason}");
}
