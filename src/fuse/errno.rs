//! The only errno table of the program.

use super::parked::Told;
use crate::domain::tree::{Absent, Lookup};
use crate::host::ReadError;
use fuser::Errno;

/// What a reader is told.
pub(super) fn of_read(e: ReadError) -> Errno {
    match e {
        ReadError::Stale => Errno::ESTALE,
        ReadError::Denied => Errno::EACCES,
        // Not EBADMSG or the like: tools and people know EIO as "the content is not to be had".
        ReadError::Contradiction | ReadError::Internal => Errno::EIO,
        ReadError::TimedOut => Errno::ETIMEDOUT,
        ReadError::Down => Errno::EHOSTDOWN,
    }
}

/// What somebody is told who asks for a name or a listing.
pub(super) fn of_lookup(l: Lookup) -> Errno {
    match l {
        Lookup::NoEntry => Errno::ENOENT,
        Lookup::Unknown(absent) => of_absent(absent),
        // Not ENOENT: the server is known to have it; a refresh brings it.
        Lookup::Pending => Errno::ESTALE,
        // Found is no error; whoever asks for its errno has mixed something up.
        Lookup::Stale | Lookup::Found(_) => Errno::ESTALE,
    }
}

fn of_absent(a: Absent) -> Errno {
    match a {
        // Not ENOENT: a failed question is never answered "does not exist".
        Absent::Starting => Errno::EAGAIN,
        Absent::Down => Errno::EHOSTDOWN,
        Absent::Locked => Errno::EACCES,
    }
}

/// What somebody is told who walked to a name that nobody has listed.
pub(super) fn of_walk(e: ReadError) -> Errno {
    match e {
        // Asked too often: not ENOENT, nobody knows.
        ReadError::Denied => Errno::EAGAIN,
        e => of_read(e),
    }
}

/// A name that cannot be asked for just now.
pub(super) const BUSY: Errno = Errno::EAGAIN;
/// Any change.
pub(super) const READ_ONLY: Errno = Errno::EROFS;
/// What the kernel shall not ask again.
pub(super) const NOT_OFFERED: Errno = Errno::ENOSYS;
/// `isatty` and the like on a file of ours.
pub(super) const NO_IOCTL: Errno = Errno::ENOTTY;
/// What a reader is told that must not wait longer.
pub(super) fn of_told(told: Told) -> Errno {
    match told {
        Told::Signal => Errno::EINTR,
        Told::Dropped => GONE,
    }
}

/// An inode that is gone.
pub(super) const GONE: Errno = Errno::ESTALE;
/// A name of a form that no server can publish.
pub(super) const NO_SUCH_NAME: Errno = Errno::ENOENT;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_its_errno() {
        let table = [
            (ReadError::Stale, libc::ESTALE, "ESTALE"),
            (ReadError::Denied, libc::EACCES, "EACCES"),
            (ReadError::Contradiction, libc::EIO, "EIO"),
            (ReadError::Internal, libc::EIO, "EIO"),
            (ReadError::TimedOut, libc::ETIMEDOUT, "ETIMEDOUT"),
            (ReadError::Down, libc::EHOSTDOWN, "EHOSTDOWN"),
        ];
        for (e, want, name) in table {
            assert_eq!((of_read(e).code(), e.errno_name()), (want, name), "{e:?}");
        }
        assert_eq!(of_lookup(Lookup::NoEntry).code(), libc::ENOENT);
        assert_eq!(
            of_lookup(Lookup::Unknown(Absent::Starting)).code(),
            libc::EAGAIN
        );
        assert_eq!(
            of_lookup(Lookup::Unknown(Absent::Down)).code(),
            libc::EHOSTDOWN
        );
        assert_eq!(
            of_lookup(Lookup::Unknown(Absent::Locked)).code(),
            libc::EACCES
        );
        assert_eq!(of_lookup(Lookup::Stale).code(), libc::ESTALE);
    }
}
