//! The FUSE side: a directory with one file, `disk.img`, whose reads, writes and fsyncs go to the disk.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request,
    WriteFlags,
};

use super::buffer::LARGEST_BYTES;
use super::disk::Disk;

/// Name of the file in the mount.
pub const FILE_NAME: &str = "disk.img";
const DIRECTORY: INodeNo = INodeNo(1);
const FILE: INodeNo = INodeNo(2);
/// The kernel may keep names and attributes: they never change.
const FOREVER: Duration = Duration::from_secs(86_400);
/// Requests that the kernel may have open at once. The loop device has 128 tags.
const OPEN_REQUESTS: u16 = 128;

/// The file system.
pub struct DiskFile {
    disk: Arc<Disk>,
    made: SystemTime,
}

impl DiskFile {
    /// Serves `disk`.
    pub fn new(disk: Arc<Disk>) -> Self {
        Self { disk, made: SystemTime::now() }
    }

    fn attributes(&self, inode: INodeNo) -> Option<FileAttr> {
        let (kind, perm, size, nlink) = match inode {
            DIRECTORY => (FileType::Directory, 0o700, 0, 2),
            FILE => (FileType::RegularFile, 0o600, self.disk.bytes(), 1),
            _ => return None,
        };
        let (blocks, time) = (size / 512, self.made);
        Some(FileAttr {
            ino: inode,
            size,
            blocks,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm,
            nlink,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }
}

fn errno(code: i32) -> Errno {
    Errno::from_i32(code)
}

impl Filesystem for DiskFile {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for wanted in [InitFlags::FUSE_ASYNC_DIO, InitFlags::FUSE_MAX_PAGES, InitFlags::FUSE_PARALLEL_DIROPS] {
            let refused =
                |_| io::Error::other(format!("this kernel's FUSE has no {wanted:?}; Linux 5.10 or later has it"));
            config.add_capabilities(wanted).map_err(refused)?;
        }
        let near = |nearest| io::Error::other(format!("FUSE refuses a connection parameter; nearest: {nearest}"));
        config.set_max_write(LARGEST_BYTES as u32).map_err(near)?;
        config.set_max_background(OPEN_REQUESTS).map_err(|n| near(u32::from(n)))?;
        config.set_congestion_threshold(OPEN_REQUESTS).map_err(|n| near(u32::from(n)))?;
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.attributes(FILE).filter(|_| parent == DIRECTORY && name == FILE_NAME) {
            Some(attributes) => reply.entry(&FOREVER, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(inode) {
            Some(attributes) => reply.attr(&FOREVER, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn readdir(&self, _: &Request, _: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let entries = [
            (DIRECTORY, FileType::Directory, "."),
            (DIRECTORY, FileType::Directory, ".."),
            (FILE, FileType::RegularFile, FILE_NAME),
        ];
        for (next, (inode, kind, name)) in (1..).zip(entries).skip(offset as usize) {
            if reply.add(inode, next, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn open(&self, _: &Request, inode: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if inode != FILE {
            return reply.error(Errno::EISDIR);
        }
        // Past the page cache, writes side by side, and no message at close.
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES | FopenFlags::FOPEN_NOFLUSH;
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let done = move |result: Result<&[u8], i32>| match result {
            Ok(data) => reply.data(data),
            Err(code) => reply.error(errno(code)),
        };
        if offset >= self.disk.bytes() {
            return done(Ok(&[]));
        }
        let size = u64::from(size).min(self.disk.bytes() - offset);
        self.disk.read(offset, size as usize, Box::new(done));
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let written = data.len() as u32;
        let done = move |result: Result<&[u8], i32>| match result {
            Ok(_) => reply.written(written),
            Err(code) => reply.error(errno(code)),
        };
        self.disk.write(offset, data, Box::new(done));
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let done = move |result: Result<&[u8], i32>| match result {
            Ok(_) => reply.ok(),
            Err(code) => reply.error(errno(code)),
        };
        self.disk.flush(Box::new(done));
    }

    fn fallocate(&self, _: &Request, _: INodeNo, _: FileHandle, _: u64, _: u64, _: i32, reply: ReplyEmpty) {
        // A punched hole would be a write that takes no time.
        reply.error(Errno::EOPNOTSUPP);
    }
}
