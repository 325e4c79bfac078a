//! Logging in to a server and out again; and where a mount finds what came of it.

use super::Dirs;
use crate::config::ServerSpec;
use crate::source::{Stamp, Target, Vault};
use crate::store::login::LoginFile;
use std::io;
use std::sync::Arc;

/// The login of a server, as `source` sees it.
struct Kept(LoginFile);

impl Vault for Kept {
    fn stamp(&self) -> Option<Stamp> {
        let stat = self.0.stat()?;
        let changed = (stat.st_ctime, stat.st_ctime_nsec.cast_signed());
        Some(Stamp::of(
            stat.st_ino,
            stat.st_size.cast_unsigned(),
            changed,
        ))
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

/// Where the login for a server is kept; none if it can have no login.
pub(super) fn vault(spec: &ServerSpec) -> Option<Arc<dyn Vault>> {
    let Target::Http(_) = &spec.target else {
        return None;
    };
    let file = LoginFile::open(&Dirs::find().state?, &spec.label, &spec.identity);
    let file = file.inspect_err(|e| tracing::warn!("{}: no login is used: {e}", spec.label));
    Some(Arc::new(Kept(file.ok()?)))
}
