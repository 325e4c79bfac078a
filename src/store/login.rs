//! The login for one server, kept between runs.
//!
//! One file of mode 0600 in the server's directory of the state, replaced whole. It names the label
//! and the identity it belongs to; one that names others is an error, so that a token never goes to
//! another server. What is in it is the business of whoever logs in.

use super::private::{PrivateDir, Unsafe};
use crate::domain::name::Label;
use rustix::fs::Mode;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

const LOGIN: &str = "login.json";
const LOCK: &str = "login.lock";
const VERSION: u32 = 1;
/// At most this many bytes are read of it.
const MAX_LOGIN: u64 = 1 << 20;

/// Where the login for one server is kept.
#[derive(Debug)]
pub struct LoginFile {
    dir: PrivateDir,
    label: String,
    identity: String,
}

/// What surrounds a login.
#[derive(Serialize, Deserialize)]
struct Record<'a> {
    version: u32,
    label: String,
    identity: String,
    #[serde(borrow)]
    login: &'a RawValue,
}

impl LoginFile {
    /// The place of a server's login in `<dir>/mount-skills/v1/<label>-<identity>`, which is made.
    pub fn open(dir: &Path, label: &Label, identity: &str) -> Result<Self, Unsafe> {
        let root = PrivateDir::open(&dir.join("mount-skills").join("v1"))?;
        Ok(Self {
            dir: root.child(&format!("{label}-{identity}"))?,
            label: label.to_string(),
            identity: identity.to_owned(),
        })
    }

    /// The places where logins of a label are kept, whatever it stood for.
    ///
    /// # Errors
    /// The state cannot be looked at.
    pub fn of_label(dir: &Path, label: &Label) -> Result<Vec<Self>, Unsafe> {
        let root = PrivateDir::open(&dir.join("mount-skills").join("v1"))?;
        let names = root.names().unwrap_or_default().into_iter();
        let identity = |name: &str| {
            let rest = name.strip_prefix(label.as_str())?.strip_prefix('-')?;
            // Labels may hold hyphens.
            let is = !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_alphanumeric());
            is.then(|| rest.to_owned())
        };
        let mut found = Vec::new();
        for (name, _) in names {
            if let Some(identity) = identity(&name) {
                let file = Self {
                    dir: root.existing(&name)?,
                    label: label.to_string(),
                    identity,
                };
                if file.stat().is_some() {
                    found.push(file);
                }
            }
        }
        Ok(found)
    }

    /// Who the server is.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// The attributes of the file, if it is there.
    pub fn stat(&self) -> Option<rustix::fs::Stat> {
        self.dir.open_file(LOGIN).ok().map(|(_, stat)| stat)
    }

    /// What is kept.
    ///
    /// # Errors
    /// It is damaged, or of another server.
    pub fn load(&self) -> io::Result<Option<String>> {
        let bytes = match self.dir.read(LOGIN, MAX_LOGIN) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        // The message of a parser may quote a secret.
        let damaged = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
        let record: Record =
            serde_json::from_slice(&bytes).map_err(|_| damaged("it is damaged"))?;
        if record.version != VERSION
            || record.label != self.label
            || record.identity != self.identity
        {
            return Err(damaged("it belongs to another server"));
        }
        Ok(Some(record.login.get().to_owned()))
    }

    /// Keeps a login, which is JSON.
    ///
    /// # Errors
    /// What was kept before stays.
    pub fn save(&self, login: &str) -> io::Result<()> {
        self.dir.check().map_err(io::Error::other)?;
        let record = Record {
            version: VERSION,
            label: self.label.clone(),
            identity: self.identity.clone(),
            login: serde_json::from_str(login)?,
        };
        let text = serde_json::to_vec(&record)?;
        self.dir
            .write(LOGIN, Mode::RUSR | Mode::WUSR, |file| file.write_all(&text))?;
        self.dir.sync()
    }

    /// Removes what is kept; whether there was anything.
    ///
    /// # Errors
    /// It is still there.
    pub fn remove(&self) -> io::Result<bool> {
        match self.dir.remove(LOGIN) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// Takes turns with other processes. Blocks.
    ///
    /// # Errors
    /// There is no turn to be had.
    pub fn turn(&self) -> io::Result<OwnedFd> {
        self.dir.lock(LOCK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn c31_a_login_is_private_and_of_one_server() {
        let tmp = tempfile::tempdir().unwrap();
        let label: Label = "a".parse().unwrap();
        let file = LoginFile::open(tmp.path(), &label, "id1").unwrap();
        assert_eq!(file.load().unwrap(), None);
        assert!(LoginFile::of_label(tmp.path(), &label).unwrap().is_empty());
        file.save(r#"{"token":"SECRET"}"#).unwrap();
        let first = file.stat().unwrap();
        file.save(r#"{"token":"SECRET2"}"#).unwrap();
        let second = file.stat().unwrap();
        assert_ne!(
            (first.st_ino, first.st_ctime_nsec),
            (second.st_ino, second.st_ctime_nsec)
        );
        assert_eq!(
            file.load().unwrap().as_deref(),
            Some(r#"{"token":"SECRET2"}"#)
        );
        let dir = tmp.path().join("mount-skills/v1/a-id1");
        let mode = |p: &Path| std::fs::metadata(p).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&dir), mode(&dir.join(LOGIN))), (0o700, 0o600));

        let other = LoginFile::open(tmp.path(), &label, "id2").unwrap();
        std::fs::copy(
            dir.join(LOGIN),
            tmp.path().join("mount-skills/v1/a-id2").join(LOGIN),
        )
        .unwrap();
        let error = other.load().unwrap_err().to_string();
        assert!(error.contains("another server"), "{error}");
        assert!(other.remove().unwrap() && !other.remove().unwrap());
        std::fs::write(dir.join(LOGIN), r#"{"login":"SECRET"#).unwrap();
        let error = file.load().unwrap_err().to_string();
        assert!(!error.contains("SECRET"), "{error}");
        let kept = LoginFile::of_label(tmp.path(), &label).unwrap();
        let kept: Vec<&str> = kept.iter().map(LoginFile::identity).collect();
        assert_eq!(kept, ["id1"]);
    }
}
