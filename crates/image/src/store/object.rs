//! An object store (S3 and stores with its protocol): files are objects below a prefix.
//!
//! An object appears whole or not at all, so nothing needs to be synced or renamed. Other parts differ from a folder of the
//! file system. A lock is an object that can be created only once ([`super::lease`]). An object with `.part` behind its
//! name reserves that name. Files of other programs pass through a folder of this machine. An upload takes the memory of at
//! most [`PARALLEL_PIECES`] + 1 pieces. Clean-up does not wait for readers: a reader of a removed object gets an error.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use katydid_scratch::{Scratch, private};
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutPayload, WriteMultipart};

use super::bucket::{Bucket, S3_SCHEME, failed};
use super::lease::LOCK_OBJECT;
use super::lease_terms::{LeaseHold, LeaseTerms};
use super::local::PARTIAL_FILE_SUFFIX;
use super::{Guard, Input, Lock, Output, Store};
use crate::error::{ImageError, Result};
use crate::id::ImageId;

/// Bytes of a piece of an upload; S3 allows 10,000 of them, each of at least 5 MiB.
const UPLOAD_PIECE_BYTES: usize = 8 << 20;
/// Pieces in flight, in each of [`PARALLEL_UPLOADS`] uploads.
const PARALLEL_PIECES: usize = 3;
const PARALLEL_UPLOADS: usize = 4;

/// A location in an object store.
#[derive(Clone)]
pub(crate) struct Objects(Arc<Bucket>);

impl fmt::Debug for Objects {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Objects({})", self.0.address)
    }
}

impl Objects {
    /// Opens the location at `s3://bucket/prefix`. Credentials and endpoint come from the variables of AWS's tools
    /// (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`, `AWS_ENDPOINT`, ...).
    pub(crate) fn at(address: &str) -> Result<Self> {
        let (bucket, prefix) = parts_of(address)?;
        // An earlier choice of the process remains.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let built = AmazonS3Builder::from_env().with_bucket_name(bucket).build();
        let objects = built.map_err(|error| failed(address, "reach this object store", error))?;
        Self::new(Arc::new(objects), prefix, address.to_owned(), LeaseTerms::default())
    }

    /// Opens the location in a store that the caller has made.
    pub(crate) fn new(objects: Arc<dyn ObjectStore>, prefix: &str, address: String, terms: LeaseTerms) -> Result<Self> {
        let io = |error| ImageError::io(&address, "prepare this machine for the object store", error);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(PARALLEL_UPLOADS).enable_all().build();
        let (runtime, scratch) = (runtime.map_err(io)?, Scratch::new("image").map_err(io)?);
        let prefix = parse_prefix(&address, prefix)?;
        let hold = LeaseHold::default();
        Ok(Self(Arc::new(Bucket { objects, prefix, address, runtime, scratch, terms, hold })))
    }
}

fn parse_prefix(address: &str, prefix: &str) -> Result<Path> {
    let parsed = Path::parse(prefix.trim_matches('/'));
    parsed
        .map_err(|_| ImageError::unfit(address, "a part of its prefix is empty, '.' or '..'; write s3://BUCKET/PREFIX"))
}

/// Splits an address into bucket and prefix.
pub(crate) fn parts_of(address: &str) -> Result<(&str, &str)> {
    match address.strip_prefix(S3_SCHEME).map(|rest| rest.split_once('/').unwrap_or((rest, ""))) {
        Some((bucket, prefix)) if !bucket.is_empty() => {
            parse_prefix(address, prefix)?;
            Ok((bucket, prefix))
        }
        _ => Err(ImageError::unfit(
            address,
            "no address of an object store: write s3://BUCKET/PREFIX, with s3 in small letters; a folder of that name is ./NAME",
        )),
    }
}

/// Begins an object that does not exist before it is finished.
fn writing(bucket: &Arc<Bucket>, name: &str, reserved: bool) -> Box<dyn Output> {
    let upload = Upload::Small(Vec::new());
    Box::new(ObjectWriter { bucket: Arc::clone(bucket), name: name.to_owned(), upload, reserved })
}

impl Store for Objects {
    fn location(&self, name: &str) -> String {
        self.0.location(name)
    }

    fn create(&self, name: &str) -> Result<Box<dyn Output>> {
        Ok(writing(&self.0, name, false))
    }

    fn create_new(&self, name: &str) -> Result<Option<Box<dyn Output>>> {
        let reservation = format!("{name}{PARTIAL_FILE_SUFFIX}");
        if !self.0.make(&reservation, String::new())? {
            return Ok(None);
        }
        // Dropped if the name is taken, which removes the reservation.
        let writing = writing(&self.0, name, true);
        Ok(if self.0.exists(name)?.is_some() { None } else { Some(writing) })
    }

    fn open(&self, name: &str) -> Result<Option<Arc<dyn Input>>> {
        let reading = |size| -> Arc<dyn Input> {
            Arc::new(ObjectReader { bucket: Arc::clone(&self.0), name: name.to_owned(), size })
        };
        Ok(self.0.exists(name)?.map(reading))
    }

    fn list(&self, folder: &str) -> Result<Vec<String>> {
        let (mut names, folders) = self.0.entries(folder)?;
        names.extend(folders);
        Ok(names)
    }

    fn make_folder(&self, folder: &str) -> Result<()> {
        let path = self.path(folder);
        let result = private::folders(&path);
        result.map_err(|error| ImageError::io(&path.display().to_string(), "make this folder", error))
    }

    fn sync_folder(&self, _folder: &str) -> Result<()> {
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.0.remove(name)
    }

    fn remove_folder(&self, folder: &str) -> Result<()> {
        let (names, folders) = self.0.entries(folder)?;
        folders.iter().try_for_each(|name| self.remove_folder(&format!("{folder}/{name}")))?;
        names.iter().try_for_each(|name| self.0.remove(&format!("{folder}/{name}")))
    }

    fn lock(&self, lock: Lock) -> Result<Guard> {
        if lock != Lock::Writer {
            return Ok(Box::new(()));
        }
        let host = rustix::system::uname();
        let holder = format!("process {} on {}", std::process::id(), host.nodename().to_string_lossy());
        let id = ImageId::random().map_err(|error| ImageError::io(&self.location(""), "draw a random id", error))?;
        Ok(Box::new(self.0.lock(holder, id.to_string())?))
    }

    fn writer(&self) -> Result<Option<String>> {
        let found = self.0.current().map_err(|error| failed(&self.location(LOCK_OBJECT), "read this object", error))?;
        Ok(found.map(|found| found.holder(&self.0)))
    }

    fn descriptor(&self) -> Result<Option<OwnedFd>> {
        Ok(None)
    }

    fn path(&self, folder: &str) -> PathBuf {
        self.0.scratch.path().join(folder)
    }

    // CRIU needs a folder: it writes to a local one, from which the files are uploaded.
    fn commit_folder(&self, folder: &str) -> Result<Vec<String>> {
        let path = self.path(folder);
        let io = |error| ImageError::io(&path.display().to_string(), "read this folder", error);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&path).map_err(io)? {
            let entry = entry.map_err(io)?;
            if let Ok(name) = entry.file_name().into_string() {
                let mut output = self.create(&format!("{folder}/{name}"))?;
                copy(&mut std::fs::File::open(entry.path()).map_err(io)?, |piece| output.write(&[piece]), io)?;
                output.finish()?;
                names.push(name);
            }
        }
        Ok(names)
    }

    // The reverse; the caller checks the hash.
    fn export_file(&self, folder: &str, name: &str, input: &dyn Input) -> Result<()> {
        self.make_folder(folder)?;
        let path = self.path(folder).join(name);
        let io = |error| ImageError::io(&path.display().to_string(), "write", error);
        let mut file = private::create(&path).map_err(io)?;
        let mut buffer = vec![0; UPLOAD_PIECE_BYTES];
        let mut at = 0;
        while at < input.size() {
            let piece = (input.size() - at).min(UPLOAD_PIECE_BYTES as u64) as usize;
            input.read(at, &mut buffer[..piece])?;
            io::Write::write_all(&mut file, &buffer[..piece]).map_err(io)?;
            at += piece as u64;
        }
        Ok(())
    }

    fn max_parallel_writes(&self) -> usize {
        PARALLEL_UPLOADS
    }
}

/// Copies a file in pieces.
fn copy(
    from: &mut impl io::Read,
    mut to: impl FnMut(&[u8]) -> Result<()>,
    failed: impl Fn(io::Error) -> ImageError,
) -> Result<()> {
    let mut buffer = vec![0; UPLOAD_PIECE_BYTES];
    loop {
        match from.read(&mut buffer).map_err(&failed)? {
            0 => return Ok(()),
            length => to(&buffer[..length])?,
        }
    }
}

/// An object being written.
struct ObjectWriter {
    bucket: Arc<Bucket>,
    name: String,
    upload: Upload,
    /// Whether an object of this writer reserves the name.
    reserved: bool,
}

/// Small objects are put at once, others in pieces.
enum Upload {
    Small(Vec<u8>),
    Large(Box<WriteMultipart>),
    Finished,
}

impl fmt::Debug for ObjectWriter {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.name)
    }
}

impl ObjectWriter {
    fn failed(&self, error: Error) -> ImageError {
        failed(&self.bucket.location(&self.name), "write this object", error)
    }

    /// Starts a multipart upload once the object is no longer small.
    fn enlarge(&mut self) -> Result<()> {
        if let Upload::Small(buffer) = &mut self.upload
            && buffer.len() >= UPLOAD_PIECE_BYTES
        {
            self.bucket.may_change(&self.name)?;
            let new_upload = self.bucket.wait(self.bucket.objects.put_multipart(&self.bucket.path(&self.name)));
            let mut upload = WriteMultipart::new_with_chunk_size(
                new_upload.map_err(|error| self.failed(error))?,
                UPLOAD_PIECE_BYTES,
            );
            if let Upload::Small(buffer) = std::mem::replace(&mut self.upload, Upload::Finished) {
                // Sending needs the runtime, although nothing waits here.
                let _inside = self.bucket.runtime.enter();
                upload.write(&buffer);
            }
            self.upload = Upload::Large(Box::new(upload));
        }
        Ok(())
    }
}

impl Output for ObjectWriter {
    fn write(&mut self, parts: &[&[u8]]) -> Result<()> {
        for part in parts.iter().flat_map(|part| part.chunks(UPLOAD_PIECE_BYTES)) {
            let sent = match &mut self.upload {
                Upload::Small(buffer) => {
                    buffer.extend_from_slice(part);
                    Ok(())
                }
                // Waits for earlier pieces first, which bounds memory.
                Upload::Large(upload) => self.bucket.wait(async {
                    upload.wait_for_capacity(PARALLEL_PIECES).await?;
                    upload.write(part);
                    Ok(())
                }),
                Upload::Finished => Ok(()),
            };
            sent.map_err(|error| self.failed(error))?;
            self.enlarge()?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.bucket.may_change(&self.name)?;
        let path = self.bucket.path(&self.name);
        let finished = match std::mem::replace(&mut self.upload, Upload::Finished) {
            Upload::Small(buffer) => {
                self.bucket.wait(self.bucket.objects.put(&path, PutPayload::from(buffer))).map(drop)
            }
            Upload::Large(upload) => self.bucket.wait(upload.finish()).map(drop),
            Upload::Finished => Ok(()),
        };
        finished.map_err(|error| self.failed(error))
    }
}

impl Drop for ObjectWriter {
    fn drop(&mut self) {
        // An upload that cannot be aborted is no part of any checkpoint.
        if let Upload::Large(upload) = std::mem::replace(&mut self.upload, Upload::Finished) {
            let _ = self.bucket.wait(upload.abort());
        }
        if self.reserved {
            let _ = self.bucket.remove(&format!("{}{PARTIAL_FILE_SUFFIX}", self.name));
        }
    }
}

/// An object being read.
struct ObjectReader {
    bucket: Arc<Bucket>,
    name: String,
    size: u64,
}

impl fmt::Debug for ObjectReader {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.name)
    }
}

impl Input for ObjectReader {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let location = || self.bucket.location(&self.name);
        let cut_off = || ImageError::damaged(&location(), "it is cut off");
        let end = offset.checked_add(buffer.len() as u64).filter(|end| *end <= self.size).ok_or_else(cut_off)?;
        if buffer.is_empty() {
            return Ok(());
        }
        let path = self.bucket.path(&self.name);
        let bytes = self.bucket.wait(self.bucket.objects.get_range(&path, offset..end));
        let bytes = bytes.map_err(|error| failed(&location(), "read this object", error))?;
        if bytes.len() != buffer.len() {
            return Err(cut_off());
        }
        buffer.copy_from_slice(&bytes);
        Ok(())
    }
}
