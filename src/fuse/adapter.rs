//! Translates requests of the kernel into questions to the host, and answers.

use super::errno;
use super::handles::{Handles, Snapshot};
use super::parked::Parked;
use crate::domain::tree::{self, Attr, Child, Kind, Lookup, Tree};
use crate::host::{Answer, Host, Look, NO_SUCH_NAME, Question, ReadError, Served, Way};
use fuser::{
    AccessFlags, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyOpen, ReplyStatfs,
    ReplyXattr, Request,
};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};
use tokio::runtime::Handle;

/// What cannot change without our telling is kept by the kernel for this long.
const LONG: Duration = Duration::from_secs(24 * 3600);
/// Reads in flight before the kernel turns to reads that cannot be killed.
const MAX_BACKGROUND: u16 = 16_384;

/// The kinds of requests, as `status` counts them.
const KINDS: [&str; 11] = [
    "lookup",
    "getattr",
    "open",
    "read",
    "opendir",
    "readdir",
    "readdirplus",
    "statfs",
    "xattr",
    "ioctl",
    "other",
];

/// A kind of request.
#[derive(Clone, Copy)]
enum Upcall {
    Lookup,
    Getattr,
    Open,
    Read,
    Opendir,
    Readdir,
    Readdirplus,
    Statfs,
    Xattr,
    Ioctl,
    Other,
}

/// Requests of the kernel, counted by kind.
#[derive(Debug, Default)]
pub struct Upcalls([AtomicU64; KINDS.len()]);

impl Upcalls {
    fn count(&self, kind: Upcall) {
        if let Some(n) = self.0.get(kind as usize) {
            n.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The counts, by name.
    pub fn figures(&self) -> BTreeMap<String, u64> {
        KINDS
            .iter()
            .zip(&self.0)
            .map(|(k, n)| ((*k).into(), n.load(Ordering::Relaxed)))
            .collect()
    }
}

/// Inode 0 is the kernel's negative entry; a name that appears is pushed.
const NONE: Attr = Attr {
    ino: 0,
    kind: Kind::File,
    size: 0,
    nlink: 0,
    mtime: 0,
};

/// The mount.
#[derive(Clone)]
pub(super) struct Adapter {
    host: Arc<Host>,
    runtime: Handle,
    parked: Arc<Parked>,
    upcalls: Arc<Upcalls>,
    owner: (u32, u32),
    handles: Arc<Handles>,
}

impl Adapter {
    pub(super) fn new(
        host: Arc<Host>,
        runtime: Handle,
        upcalls: Arc<Upcalls>,
        parked: Arc<Parked>,
    ) -> Self {
        runtime.spawn(Arc::clone(&parked).watch());
        let owner = (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        );
        Self {
            host,
            runtime,
            parked,
            upcalls,
            owner,
            handles: Arc::default(),
        }
    }

    fn file_attr(&self, attr: Attr) -> FileAttr {
        let time = UNIX_EPOCH + Duration::from_secs(attr.mtime);
        let (kind, perm) = match attr.kind {
            Kind::SkillDir | Kind::OpenDir => (FileType::Directory, 0o555),
            Kind::File | Kind::Dynamic => (FileType::RegularFile, 0o444),
            Kind::Declined => (FileType::RegularFile, 0),
        };
        FileAttr {
            ino: INodeNo(attr.ino),
            size: attr.size,
            blocks: attr.size.div_ceil(512),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm,
            nlink: attr.nlink,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    /// How long the kernel may keep a name. Changes are pushed, so this is not about being
    /// right: the next lookup of a label or prefix directory is how we learn that somebody
    /// needs its listing (HR-51).
    fn ttl(&self, attr: Attr) -> Duration {
        match attr.kind {
            Kind::OpenDir => self.host.fresh_for(Tree::slot_of(attr.ino)),
            Kind::SkillDir | Kind::File | Kind::Dynamic | Kind::Declined => LONG,
        }
    }

    /// What a request to read asks.
    fn question(&self, req: &Request, ino: u64) -> Question {
        self.host.question(ino, req.uid(), req.gid(), req.pid())
    }

    /// Reads from an open file of a dynamic skill: the first read fetches, the others see the same
    /// content, for as long as it is open.
    fn read_dynamic(
        &self,
        req: &Request,
        ino: u64,
        handle: Arc<Snapshot>,
        offset: u64,
        size: u32,
        reply: ReplyData,
    ) {
        let host = Arc::clone(&self.host);
        let question = self.question(req, ino);
        let Some(mut place) = self.parked.enter(req.pid(), ino) else {
            return reply.error(errno::GONE);
        };
        let way = match handle.get() {
            Some(_) => Way::Memory,
            None => Way::Server,
        };
        self.runtime.spawn(async move {
            // The kernel keeps nothing of these files that could be taken away.
            if way == Way::Memory
                && let Err(e) = host.still_dynamic(ino)
            {
                host.note(question, Err(e));
                return reply.error(errno::of_read(e));
            }
            let content = handle.get_or_init(|| host.read_dynamic(ino));
            tokio::select! {
                biased;
                content = content => match content {
                    Ok(content) => {
                        let bytes = content.slice(offset, size);
                        let answer = Answer::dynamic(way, content.size(), bytes.len());
                        host.note(question, Ok(answer));
                        reply.data(bytes);
                    }
                    Err(e) => {
                        host.note(question, Err(*e));
                        reply.error(errno::of_read(*e));
                    }
                },
                told = place.told() => reply.error(errno::of_told(told)),
            }
        });
    }

    /// Answers the lookup of a name that no entry mentions, once the server has been asked.
    fn walk(&self, req: &Request, dir: u64, name: String, path: String, reply: ReplyEntry) {
        let Some(mut place) = self.parked.enter(req.pid(), dir) else {
            return reply.error(errno::BUSY);
        };
        let this = self.clone();
        self.runtime.spawn(async move {
            let found = tokio::select! {
                biased;
                found = this.host.walk(Tree::slot_of(dir), &path) => found.map_err(errno::of_walk),
                told = place.told() => Err(errno::of_told(told)),
            };
            match found.map(|_| this.host.tree().lookup(dir, &name)) {
                Err(e) => reply.error(e),
                Ok(Lookup::Found(attr)) => {
                    let ttl = this.ttl(attr);
                    reply.entry_with_ttls(&LONG, &ttl, &this.file_attr(attr), Generation(0));
                }
                Ok(Lookup::NoEntry) => {
                    reply.entry(&NO_SUCH_NAME, &this.file_attr(NONE), Generation(0));
                }
                Ok(other) => reply.error(errno::of_lookup(other)),
            }
        });
    }

    /// Answers a listing with attributes.
    fn list_plus(&self, dir: u64, offset: u64, mut reply: ReplyDirectoryPlus) {
        let tree = self.host.tree();
        let add = |child: Child| {
            let (attr, ttl) = (self.file_attr(child.attr), self.ttl(child.attr));
            reply.add(
                attr.ino,
                child.cookie,
                child.name,
                &ttl,
                &attr,
                Generation(0),
            )
        };
        match self.list(&tree, dir, offset, add) {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(errno::of_lookup(e)),
        }
    }

    /// Lists a directory into a reply, from a cookie on; `add` says whether the reply is full.
    fn list(
        &self,
        tree: &Tree,
        dir: u64,
        offset: u64,
        mut add: impl FnMut(Child) -> bool,
    ) -> Result<(), Lookup> {
        let children = tree.children(dir, offset)?;
        let attr = |ino| tree.attr(ino).ok_or(Lookup::Stale);
        let dots = [(1, ".", attr(dir)?), (2, "..", attr(tree.parent(dir))?)];
        let dots = dots.into_iter().filter(|(cookie, ..)| *cookie > offset);
        let dots = dots.map(|(cookie, name, attr)| Child { name, cookie, attr });
        for child in dots.chain(children) {
            if add(child) {
                break;
            }
        }
        Ok(())
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_EXPLICIT_INVAL_DATA
            | InitFlags::FUSE_NO_OPENDIR_SUPPORT
            | InitFlags::FUSE_NO_OPEN_SUPPORT;
        // All or nothing: an older kernel names what it lacks, the rest is asked for again.
        if let Err(lacking) = config.add_capabilities(wanted) {
            let _ = config.add_capabilities(wanted & !lacking);
        }
        let _ = config.set_max_background(MAX_BACKGROUND);
        let _ = config.set_congestion_threshold(MAX_BACKGROUND);
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.upcalls.count(Upcall::Lookup);
        let Some(name) = name.to_str() else {
            return reply.error(errno::NO_SUCH_NAME);
        };
        let tree = self.host.tree();
        let parent_attr = tree.attr(parent.0);
        match tree.lookup(parent.0, name) {
            Lookup::Found(attr) => {
                if attr.kind == Kind::OpenDir {
                    self.host.needed(Tree::slot_of(attr.ino));
                }
                let entry_ttl = self.ttl(attr);
                reply.entry_with_ttls(&LONG, &entry_ttl, &self.file_attr(attr), Generation(0));
            }
            Lookup::NoEntry => {
                if let Some(path) = self.host.unlisted(parent.0, name) {
                    return self.walk(req, parent.0, name.to_owned(), path, reply);
                }
                let ttl = match parent_attr {
                    Some(attr) if attr.kind == Kind::OpenDir => {
                        self.host.needed(Tree::slot_of(attr.ino));
                        self.ttl(attr)
                    }
                    _ => LONG,
                };
                reply.entry(&ttl, &self.file_attr(NONE), Generation(0));
            }
            other => {
                if other == Lookup::Pending {
                    self.host.refuse_pending(parent.0, name);
                }
                reply.error(errno::of_lookup(other));
            }
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        self.upcalls.count(Upcall::Getattr);
        match self.host.tree().attr(ino.0) {
            Some(attr) => reply.attr(&LONG, &self.file_attr(attr)),
            None => reply.error(errno::GONE),
        }
    }

    fn open(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.upcalls.count(Upcall::Open);
        if !self.host.has_dynamic() {
            return reply.error(errno::NOT_OFFERED);
        }
        let kind = self.host.tree().attr(ino.0).map(|a| a.kind);
        if kind == Some(Kind::Dynamic) {
            let handle = self.handles.open();
            return reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO);
        }
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.upcalls.count(Upcall::Other);
        self.handles.close(fh.0);
        reply.ok();
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.upcalls.count(Upcall::Opendir);
        reply.error(errno::NOT_OFFERED);
    }

    fn read(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.upcalls.count(Upcall::Read);
        if let Some(handle) = self.handles.get(fh.0) {
            return self.read_dynamic(req, ino.0, handle, offset, size, reply);
        }
        let question = self.question(req, ino.0);
        if let Some(told) = self.host.serve_now(ino.0) {
            return tell(&self.host, question, told, (offset, size), reply);
        }
        let host = Arc::clone(&self.host);
        let Some(mut place) = self.parked.enter(req.pid(), ino.0) else {
            return reply.error(errno::GONE);
        };
        self.runtime.spawn(async move {
            tokio::select! {
                biased;
                told = host.serve(ino.0) => tell(&host, question, told, (offset, size), reply),
                told = place.told() => reply.error(errno::of_told(told)),
            }
        });
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        self.upcalls.count(Upcall::Other);
        reply.error(errno::NOT_OFFERED);
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        self.upcalls.count(Upcall::Readdir);
        let tree = self.host.tree();
        let add = |child: Child| {
            let attr = self.file_attr(child.attr);
            reply.add(attr.ino, child.cookie, attr.kind, child.name)
        };
        match self.list(&tree, ino.0, offset, add) {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(errno::of_lookup(e)),
        }
    }

    fn readdirplus(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        self.upcalls.count(Upcall::Readdirplus);
        match self.host.look_into(ino.0).filter(|_| offset == 0) {
            Some((Look::First, work)) => {
                let Some(mut place) = self.parked.enter(req.pid(), ino.0) else {
                    return reply.error(errno::BUSY);
                };
                let this = self.clone();
                self.runtime.spawn(async move {
                    let looked = tokio::select! {
                        biased;
                        looked = work => looked.map_err(errno::of_read),
                        told = place.told() => Err(errno::of_told(told)),
                    };
                    match looked {
                        Ok(()) => this.list_plus(ino.0, offset, reply),
                        Err(e) => reply.error(e),
                    }
                });
            }
            Some((Look::Again, work)) => {
                self.runtime.spawn(work);
                self.list_plus(ino.0, offset, reply);
            }
            None => self.list_plus(ino.0, offset, reply),
        }
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        self.upcalls.count(Upcall::Statfs);
        reply.statfs(
            0,
            0,
            0,
            0,
            0,
            4096,
            crate::domain::name::MAX_NAME as u32,
            4096,
        );
    }

    fn getxattr(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _name: &OsStr,
        _size: u32,
        reply: ReplyXattr,
    ) {
        self.upcalls.count(Upcall::Xattr);
        reply.error(errno::NOT_OFFERED);
    }

    fn listxattr(&self, _req: &Request, _ino: INodeNo, _size: u32, reply: ReplyXattr) {
        self.upcalls.count(Upcall::Xattr);
        reply.error(errno::NOT_OFFERED);
    }

    fn access(&self, _req: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        self.upcalls.count(Upcall::Other);
        reply.error(errno::NOT_OFFERED);
    }

    fn ioctl(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        _cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        self.upcalls.count(Upcall::Ioctl);
        reply.error(errno::NO_IOCTL);
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _offset: u64,
        _data: &[u8],
        _write_flags: fuser::WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: fuser::ReplyWrite,
    ) {
        // The kernel refuses every change itself: the mount is read-only. Should one get here,
        // the answer is the same.
        self.upcalls.count(Upcall::Other);
        reply.error(errno::READ_ONLY);
    }
}

/// Answers a read of so many bytes from an offset on, and has that noted: before the answer, after
/// which the reader may be gone.
fn tell(
    host: &Host,
    question: Question,
    told: Result<Served, ReadError>,
    (offset, size): (u64, u32),
    reply: ReplyData,
) {
    match told {
        Ok(served) => {
            let bytes = served.file.slice(offset, size);
            host.note(question, Ok(served.answer(bytes.len())));
            reply.data(bytes);
        }
        Err(e) => {
            host.note(question, Err(e));
            reply.error(errno::of_read(e));
        }
    }
}

// The root must be what fuser calls it.
const _: () = assert!(tree::ROOT == INodeNo::ROOT.0);
