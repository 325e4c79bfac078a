//! Logging in to a server and out again; and where a mount finds what came of it.

use super::{Ask, Dirs, Failure, done, mount, progress};
use crate::cli::LoginArgs;
use crate::config::ServerSpec;
use crate::control::{ControlError, Reply, Verb};
use crate::domain::name::Label;
use crate::domain::text::word;
use crate::source::sign_in::{self, SignIn, TakenBack, Wish};
use crate::source::{Secret, Stamp, Target, Vault};
use crate::store::login::LoginFile;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

/// The login of a server, as `source` sees it.
struct Kept(LoginFile);

impl Vault for Kept {
    fn stamp(&self) -> Option<Stamp> {
        let stat = self.0.stat()?;
        let nanos = i64::try_from(stat.st_ctime_nsec).unwrap_or_default();
        let size = u64::try_from(stat.st_size).unwrap_or_default();
        Some(Stamp::of(stat.st_ino, size, (stat.st_ctime, nanos)))
    }

    fn load(&self) -> io::Result<Option<String>> {
        self.0.load()
    }

    fn save(&self, login: &str) -> io::Result<()> {
        self.0.save(login)
    }

    fn turn(&self) -> io::Result<Box<dyn Send>> {
        Ok(Box::new(self.0.turn()?))
    }
}

/// The login of a server that never had one, and of which nothing is to be made.
struct Absent;

impl Vault for Absent {
    fn stamp(&self) -> Option<Stamp> {
        None
    }

    fn load(&self) -> io::Result<Option<String>> {
        Ok(None)
    }

    fn save(&self, _: &str) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn turn(&self) -> io::Result<Box<dyn Send>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// As [`vault`], for who only looks: no place is made for a login that is not there.
pub(super) fn as_it_is(spec: &ServerSpec) -> Option<Arc<dyn Vault>> {
    let Target::Http(_) = &spec.target else {
        return None;
    };
    match LoginFile::is_kept(&Dirs::find().state?, &spec.label, &spec.identity) {
        true => vault(spec),
        false => Some(Arc::new(Absent)),
    }
}

/// Where the login for a server is kept; none if it can have no login.
pub(super) fn vault(spec: &ServerSpec) -> Option<Arc<dyn Vault>> {
    let Target::Http(_) = &spec.target else {
        return None;
    };
    let file = LoginFile::open(&Dirs::find().state?, &spec.label, &spec.identity);
    let file = file.inspect_err(|e| tracing::warn!("{}: no login is used: {e}", spec.label));
    Some(Arc::new(Kept(file.ok()?)))
}

/// Logs in to a server, with a browser.
pub(super) fn login(ask: &Ask, args: &LoginArgs, json: bool) -> Result<(), Failure> {
    guard_memory()?;
    let label = label(&args.label)?;
    let state = state_dir()?;
    let spec = server(ask, &label, args.url.as_deref(), &state)?;
    let Target::Http(endpoint) = &spec.target else {
        return Err(no_url(&label));
    };
    if endpoint.keys() > 0 {
        let text = format!("{label}: a URL with a user in it has no login; give it without one");
        return Err(Failure::Usage(text));
    }
    let variable = args.client_secret_env.as_deref();
    let client_secret = variable.map(|name| {
        let value = std::env::var(name).ok();
        let secret = value.and_then(|value| Secret::token(&value));
        secret.ok_or_else(|| {
            Failure::Usage(format!(
                "--client-secret-env: the environment has no usable variable {name:?}"
            ))
        })
    });
    let wish = Wish {
        url: endpoint.url.clone(),
        client_id: args.client_id.clone(),
        client_secret: client_secret.transpose()?,
        scopes: args.scopes.clone(),
        port: args.port,
    };
    let file = LoginFile::open(&state, &label, &spec.identity);
    let file = file.map_err(|e| Failure::Failed(e.to_string()))?;
    let failed = |e: sign_in::BadSignIn| Failure::Failed(format!("{label}: {e}"));
    let runtime = mount::runtime(1)?;
    let found = progress::while_waiting("asking the server how to log in", || {
        runtime.block_on(SignIn::start(wish))
    });
    let sign_in = found.map_err(failed)?;
    runtime.block_on(async {
        let _ = writeln!(
            io::stderr(),
            "to log in to {label} ({}), open this page:\n\n{}\n\n\
             If the browser is on another machine, paste the address that it ends at here.",
            spec.shown,
            sign_in.page()
        );
        if !args.no_browser {
            open_browser(sign_in.page());
        }
        let patience = Duration::from_secs_f64(args.timeout);
        let kept = Arc::new(Kept(file));
        let finished = sign_in.finish(kept, patience, pasted());
        finished.await.map_err(failed)
    })?;
    done(format!("logged in to {label} ({})", spec.shown), json)
}

/// Ends the logins of a label, whatever server it stood for.
pub(super) fn logout(label: &str, json: bool) -> Result<(), Failure> {
    guard_memory()?;
    let label = self::label(label)?;
    let files = LoginFile::of_label(&state_dir()?, &label);
    let files = files.map_err(|e| Failure::Failed(e.to_string()))?;
    let runtime = mount::runtime(1)?;
    let (mut ended, mut left, mut kept_by_server) = (0, 0, Vec::new());
    for file in files {
        // No mount may renew it meanwhile.
        let _turn = file.turn()?;
        let kept = Kept(file);
        let taken_back = progress::while_waiting("having the tokens taken back", || {
            runtime.block_on(sign_in::take_back(&kept))
        });
        match taken_back {
            Ok(TakenBack::Yes) => {}
            Ok(TakenBack::NotOffered) => left += 1,
            Err(e) => kept_by_server.push(e.to_string()),
        }
        ended += u64::from(kept.0.remove()?);
    }
    if let Some(why) = kept_by_server.first() {
        return Err(Failure::Failed(format!(
            "{label}: the login is gone from here, but its tokens were not taken back: {why}"
        )));
    }
    done(
        match (ended, left) {
            (0, _) => format!("there was no login for {label}"),
            (_, 0) => format!("logged out of {label}"),
            _ => format!(
                "logged out of {label}; its tokens cannot be taken back and are good until they expire"
            ),
        },
        json,
    )
}

/// Memory holds tokens: programs of this user must not read it, nor must a core file.
fn guard_memory() -> Result<(), Failure> {
    let mode = rustix::process::DumpableBehavior::NotDumpable;
    rustix::process::set_dumpable_behavior(mode).map_err(io::Error::from)?;
    // Fails only if one was installed before, which serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Ok(())
}

fn label(text: &str) -> Result<Label, Failure> {
    text.parse().map_err(|e| Failure::Usage(format!("{e}")))
}

fn state_dir() -> Result<PathBuf, Failure> {
    let dir = Dirs::find().state;
    dir.ok_or_else(|| Failure::Failed("there is no state directory to keep a login in".into()))
}

/// The server that a label stands for: by what was said, else in a running mount, else when one
/// last logged in.
fn server(
    ask: &Ask,
    label: &Label,
    url: Option<&str>,
    state: &Path,
) -> Result<ServerSpec, Failure> {
    let spec = |url: &str| {
        let spec = ServerSpec::parse(&format!("{label}={url}"), "", &|_| None);
        spec.map_err(|e| Failure::Usage(e.to_string()))
    };
    if let Some(url) = url {
        return spec(url);
    }
    let verb = Verb::Status {
        label: Some(label.to_string()),
    };
    match ask.send(&verb) {
        Ok(Reply::Status(status)) => {
            if let Some(server) = status.servers.first() {
                let spec = spec(&server.target).map_err(|_| no_url(label))?;
                return match &spec.target {
                    Target::Http(_) if spec.identity == server.identity => Ok(spec),
                    Target::Http(_) => Err(Failure::Failed(format!(
                        "the URL of {label} holds more than is shown; say it all: mount-skills login {} --url URL",
                        word(label.as_str())
                    ))),
                    Target::Command(_) => Err(no_url(label)),
                };
            }
        }
        Err(e @ ControlError::Several(_)) => return Err(e.into()),
        _ => {}
    }
    let kept = LoginFile::of_label(state, label).unwrap_or_default();
    let mut urls = kept.into_iter().filter_map(|file| {
        let identity = file.identity().to_owned();
        let spec = spec(&sign_in::server_of(&Kept(file)).ok()??).ok()?;
        (spec.identity == identity).then_some(spec)
    });
    match (urls.next(), urls.next()) {
        (Some(one), None) => Ok(one),
        _ => Err(Failure::Failed(format!(
            "no running mount has a server {label}; say where it is: mount-skills login {} --url URL",
            word(label.as_str())
        ))),
    }
}

fn no_url(label: &Label) -> Failure {
    Failure::Failed(format!(
        "{label} is a command and no URL; it has no login here"
    ))
}

/// Opens a page if there is somebody to see it. Whoever has no browser opens it by hand.
fn open_browser(page: &str) {
    let display = ["DISPLAY", "WAYLAND_DISPLAY", "BROWSER"];
    let display = display.iter().any(|name| std::env::var_os(name).is_some());
    if display && io::stderr().is_terminal() {
        let _ = std::process::Command::new("xdg-open")
            .arg(page)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
    }
}

/// The lines of stdin, read by a thread that nobody waits for.
fn pasted() -> tokio::sync::mpsc::Receiver<String> {
    let (send, lines) = tokio::sync::mpsc::channel(1);
    std::thread::spawn(move || {
        for line in io::stdin().lines().map_while(Result::ok) {
            if send.blocking_send(line).is_err() {
                return;
            }
        }
    });
    lines
}
