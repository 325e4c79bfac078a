//! Mount points: the one that is wanted, and those of mounts that run or are dead.

use super::{PATIENCE, advice, within};
use crate::control;
use crate::domain::finding::{Finding, Fix};
use crate::domain::text::word;
use crate::fuse::mount::{self, MountError, Site};
use crate::host::report::ServerStatus;
use crate::run::Ask;
use std::path::{Path, PathBuf};

/// How a mount of this user is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    /// It answers.
    Alive,
    /// Nobody stands for it.
    Dead,
    /// It does not answer in time.
    Silent,
}

/// A mount of this user.
pub(super) struct Mount {
    path: PathBuf,
    life: Life,
    /// The process that stands for it, if it was found.
    pid: Option<i32>,
}

/// All mounts of this user. `control` is where their sockets are.
pub(super) fn mounts(control: &Path) -> Vec<Mount> {
    let look = |path: PathBuf| {
        let asked = path.clone();
        let life = match within(PATIENCE, move || mount::is_dead(&asked)) {
            Some(true) => Life::Dead,
            Some(false) => Life::Alive,
            None => Life::Silent,
        };
        let pid = control::daemon_of(control, &path);
        Mount { path, life, pid }
    };
    mount::ours().into_iter().map(look).collect()
}

/// The servers of a mount that are not ready, as its daemon tells.
pub(super) fn served(mount: &Mount) -> Vec<Finding> {
    if (mount.life, mount.pid.is_some()) != (Life::Alive, true) {
        return Vec::new();
    }
    let at = Some(mount.path.clone());
    let status = within(PATIENCE, move || Ask { mountpoint: at }.status(None));
    let Some(Ok(status)) = status else {
        return Vec::new();
    };
    let troubled = status.servers.iter().filter(|s| s.reason.is_some());
    troubled
        .map(|server| of_mount(&mount.path, server))
        .collect()
}

/// A server of a running mount that has trouble.
fn of_mount(mount: &Path, server: &ServerStatus) -> Finding {
    let (label, state) = (&server.label, &server.state);
    let reason = server.reason.as_deref().unwrap_or_default();
    let path = word(&mount.display().to_string());
    let text = format!("{state}, in the mount at {}: {reason}", mount.display());
    let fix = Fix::Run(format!("mount-skills status {label} --mount {path}"));
    match state.as_str() {
        "no-skills" => Finding::warning("mounted-server", label, text, fix),
        _ => Finding::error("mounted-server", label, text, fix),
    }
}

impl Mount {
    pub(super) fn finding(&self) -> Finding {
        judge(&self.path, self.life, self.pid)
    }
}

fn judge(path: &Path, life: Life, pid: Option<i32>) -> Finding {
    let subject = path.display().to_string();
    let path = word(&subject);
    match (life, pid) {
        (Life::Dead, _) => Finding::error(
            "mount-dead",
            subject,
            "a dead mount: its daemon was killed, and whoever looks there gets an error",
            Fix::Run(format!("mount-skills unmount {path}")),
        ),
        (Life::Alive, Some(pid)) => {
            Finding::ok("mount", subject, format!("mounted, by process {pid}"))
        }
        (Life::Alive, None) => Finding {
            fix: Some(Fix::Do(
                "to reach it, give commands the XDG_RUNTIME_DIR that it was started with".into(),
            )),
            ..Finding::note(
                "mount-unknown",
                subject,
                "mounted, by a daemon that status and unmount do not find",
            )
        },
        (Life::Silent, pid) => Finding::error(
            "mount-silent",
            subject,
            match pid {
                Some(pid) => format!(
                    "mounted, but process {pid} does not answer, and whoever looks there waits"
                ),
                None => "mounted, but nothing answers, and whoever looks there waits".into(),
            },
            Fix::Run(match pid {
                // The guard takes the mount away.
                Some(pid) => format!("kill -9 {pid}"),
                None => format!("fusermount3 -uz {path}"),
            }),
        ),
    }
}

/// The place where somebody wants to mount.
pub(super) fn mountpoint(path: &Path, control: &Path) -> Finding {
    let asked = path.to_owned();
    judge_site(
        path,
        within(PATIENCE, move || mount::survey(&asked)),
        |path| control::daemon_of(control, path),
    )
}

fn judge_site(
    path: &Path,
    site: Option<Result<(PathBuf, Site), MountError>>,
    daemon: impl Fn(&Path) -> Option<i32>,
) -> Finding {
    let subject = "mount point";
    let shown = path.display();
    match site {
        None => Finding::error(
            "place-silent",
            subject,
            format!("{shown}: what is mounted there does not answer"),
            Fix::Do("end it, as is said above, or choose another place".into()),
        ),
        Some(Ok((path, site))) => {
            let shown = path.display();
            match site {
                Site::Missing => Finding::ok(
                    "place",
                    subject,
                    format!("{shown}: missing, it will be made"),
                ),
                Site::Empty => {
                    Finding::ok("place", subject, format!("{shown}: an empty directory"))
                }
                Site::Dead => Finding::note(
                    "place-dead",
                    subject,
                    format!("{shown}: a new mount takes the dead one away"),
                ),
                Site::Taken => match daemon(&path) {
                    Some(pid) => Finding::ok(
                        "place-taken",
                        subject,
                        format!("{shown}: mounted already, by process {pid}"),
                    ),
                    None => {
                        Finding::note("place-taken", subject, format!("{shown}: mounted already"))
                    }
                },
            }
        }
        Some(Err(e)) => {
            let (text, fix) = advice(&e.to_string());
            let fix = fix.unwrap_or_else(|| "choose another place".into());
            Finding::error("place-refused", subject, text, Fix::Do(fix))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::finding::Severity;

    #[test]
    fn c_38_a_dead_mount_is_an_error_with_the_command_that_takes_it_away() {
        let found = judge(Path::new("/m y"), Life::Dead, None);
        assert_eq!(found.severity, Severity::Error);
        assert_eq!(
            found.fix,
            Some(Fix::Run("mount-skills unmount '/m y'".into()))
        );
        let found = judge(Path::new("/m"), Life::Alive, Some(7));
        assert_eq!((found.severity, found.fix), (Severity::Ok, None));
        assert!(found.text.contains("process 7"));
        let found = judge(Path::new("/m"), Life::Alive, None);
        assert_eq!(found.severity, Severity::Note);
        let found = judge(Path::new("/m"), Life::Silent, Some(7));
        assert_eq!(found.fix, Some(Fix::Run("kill -9 7".into())));
        let found = judge(Path::new("/m"), Life::Silent, None);
        assert_eq!(found.fix, Some(Fix::Run("fusermount3 -uz /m".into())));
    }

    #[test]
    fn c_40_a_place_that_a_mount_refuses_is_refused_here_in_its_words() {
        let path = Path::new("/home/u/.claude/skills");
        let found = judge_site(path, Some(mount::survey(path)), |_| None);
        assert_eq!(found.severity, Severity::Error);
        assert!(
            found.text.contains("agents look for local skills there"),
            "{found}"
        );
        assert_eq!(found.fix, Some(Fix::Do("choose another place".into())));
        let at = |site| judge_site(path, Some(Ok((path.to_owned(), site))), |_| Some(9));
        for (site, severity) in [
            (Site::Missing, Severity::Ok),
            (Site::Empty, Severity::Ok),
            (Site::Dead, Severity::Note),
            (Site::Taken, Severity::Ok),
        ] {
            assert_eq!(at(site).severity, severity, "{site:?}");
        }
        assert!(judge_site(path, None, |_| None).is_error());
    }
}
