//! An image: a place with packs and numbered checkpoints.
//!
//! ```text
//! katydid-image                    what this is: magic, version, id
//! lock                             held by who writes
//! latest                           the newest number, for people and scripts
//! packs/00000001.pack              chunks, shared by all checkpoints
//! checkpoints/000001/manifest.json written last: with it the checkpoint is there
//! checkpoints/000001/state-*.bin   journals
//! checkpoints/000001/criu/         the processes
//! ```

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{ImageError, Result};
use crate::format;
use crate::format::BLOCK_BYTES;
use crate::id::{CheckpointNumber, ImageId};
use crate::index::{PACKS_FOLDER, located, pack_name, pack_numbers};
use crate::store::faults::Faults;
#[cfg(feature = "objects")]
use crate::store::lease_terms::LeaseTerms;
use crate::store::local::Local;
#[cfg(feature = "objects")]
use crate::store::object::{Objects, parts_of};
use crate::store::{Input, Lock, Store};

/// The file that makes a folder an image.
const IMAGE_FILE: &str = "katydid-image";
/// The folder of the checkpoints.
pub(crate) const CHECKPOINTS_FOLDER: &str = "checkpoints";
/// The file with the newest number.
pub(crate) const LATEST_FILE: &str = "latest";
/// The file that makes a folder a checkpoint.
pub(crate) const MANIFEST_FILE: &str = "manifest.json";

/// A checkpoint of an image: the newest, or one by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CheckpointChoice {
    /// The one with the highest number.
    #[default]
    Latest,
    /// The checkpoint of this number.
    Number(CheckpointNumber),
}

/// The checkpoints of one job.
#[derive(Debug, Clone)]
pub struct Image {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) id: ImageId,
}

/// The folder of a checkpoint.
pub(crate) fn folder_of(number: CheckpointNumber) -> String {
    format!("{CHECKPOINTS_FOLDER}/{number:06}", number = number.0)
}

impl Image {
    /// The image in this folder; a new one where the folder is empty or not there. `s3://bucket/prefix` is a place in an
    /// object store.
    pub fn create_or_open(folder: impl AsRef<Path>) -> Result<Self> {
        Self::made_in(store_at(folder.as_ref(), true)?)
    }

    /// The image in this folder, or at this address of an object store.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        Self::found_in(store_at(folder.as_ref(), false)?)
    }

    /// The image in an object store, a new one where there is none; `prefix` ends no name and may be empty.
    #[cfg(feature = "objects")]
    pub fn in_object_store(objects: Arc<dyn object_store::ObjectStore>, prefix: &str) -> Result<Self> {
        Self::in_object_store_for(objects, prefix, LeaseTerms::default())
    }

    /// The image in an object store, with locks that last as long as `terms` say.
    #[cfg(feature = "objects")]
    pub fn in_object_store_for(
        objects: Arc<dyn object_store::ObjectStore>,
        prefix: &str,
        terms: LeaseTerms,
    ) -> Result<Self> {
        Self::made_in(Arc::new(Objects::new(objects, prefix, format!("objects:{prefix}"), terms)?))
    }

    /// The image in a folder that another process has opened.
    pub fn open_at(folder: OwnedFd) -> Result<Self> {
        Self::found_in(Arc::new(Local::from_descriptor(folder)))
    }

    /// As [`Image::create_or_open`], with failures on purpose.
    pub fn create_with_faults(folder: impl AsRef<Path>, faults: Arc<Faults>) -> Result<Self> {
        Self::made_in(Arc::new(Local::at(folder.as_ref(), true, Some(faults))?))
    }

    /// Opens, or makes the image while no other process does.
    pub(crate) fn made_in(store: Arc<dyn Store>) -> Result<Self> {
        if store.open(IMAGE_FILE)?.is_some() {
            return Self::found_in(store);
        }
        check_free(store.as_ref())?;
        let _guard = store.lock(Lock::Writer)?;
        if store.open(IMAGE_FILE)?.is_none() {
            store.make_folder(PACKS_FOLDER)?;
            store.make_folder(CHECKPOINTS_FOLDER)?;
            let mut file = store.create(IMAGE_FILE)?;
            let id =
                ImageId::random().map_err(|error| ImageError::io(&store.location(""), "draw a random id", error))?;
            file.write(&[&format::image_file(id)])?;
            file.finish()?;
            store.sync_folder(".")?;
        }
        Self::found_in(store)
    }

    /// Reads what makes a place an image.
    pub(crate) fn found_in(store: Arc<dyn Store>) -> Result<Self> {
        let location = store.location(IMAGE_FILE);
        let file = store.open(IMAGE_FILE)?.ok_or_else(|| ImageError::NotAnImage { location: store.location("") })?;
        let mut bytes = [0; BLOCK_BYTES];
        if file.size() != BLOCK_BYTES as u64 {
            return Err(ImageError::damaged(&location, "it has another length"));
        }
        file.read(0, &mut bytes)?;
        let id = format::read_image_file(&bytes).map_err(|fault| located(&location, fault))?;
        Ok(Self { store, id })
    }

    /// The random id of the image.
    pub fn id(&self) -> ImageId {
        self.id
    }

    /// Who writes to it or clears it up, where a lock may be left behind by a process that was killed: in an object store.
    pub fn writer(&self) -> Result<Option<String>> {
        self.store.writer()
    }

    /// Path or address of the image, for messages.
    pub fn location(&self) -> String {
        self.store.location("")
    }

    /// All complete checkpoints, oldest first.
    pub fn checkpoints(&self) -> Result<Vec<CheckpointNumber>> {
        let mut complete = Vec::new();
        for number in self.folders()? {
            if self.store.open(&format!("{}/{MANIFEST_FILE}", folder_of(number)))?.is_some() {
                complete.push(number);
            }
        }
        Ok(complete)
    }

    /// The newest checkpoint after `number` that is not there as a whole: it lost its manifest or was removed, or it is
    /// being written, or its writer was killed.
    pub fn newer_than(&self, number: CheckpointNumber) -> Result<Option<CheckpointNumber>> {
        let named = latest(&*self.store).flatten().map(CheckpointNumber);
        let newest = self.folders()?.into_iter().chain(named).max();
        Ok(newest.filter(|newest| *newest > number))
    }

    /// Numbers of all folders, complete or not, in order.
    pub(crate) fn folders(&self) -> Result<Vec<CheckpointNumber>> {
        let names = self.store.list(CHECKPOINTS_FOLDER)?;
        let number = |name: &String| {
            let number = CheckpointNumber(name.parse().ok()?);
            (folder_of(number).strip_prefix(CHECKPOINTS_FOLDER)?.strip_prefix('/')? == name).then_some(number)
        };
        let mut numbers: Vec<CheckpointNumber> = names.iter().filter_map(number).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Bytes of all packs.
    pub fn stored(&self) -> Result<u64> {
        let mut bytes = 0;
        for number in pack_numbers(&*self.store)? {
            bytes += self.store.open(&pack_name(number))?.map_or(0, |pack| pack.size());
        }
        Ok(bytes)
    }

    /// The number that is meant, if it is there.
    pub(crate) fn resolve(&self, which: CheckpointChoice) -> Result<CheckpointNumber> {
        let present = self.checkpoints()?;
        let (found, requested) = match which {
            CheckpointChoice::Latest => (present.last().copied(), "at all".to_owned()),
            CheckpointChoice::Number(number) => {
                (present.iter().copied().find(|found| *found == number), number.to_string())
            }
        };
        found.ok_or_else(|| {
            let listed: Vec<String> = present.iter().map(ToString::to_string).collect();
            let present = match &listed[..] {
                [] => "is no checkpoint yet; take one with `katydid checkpoint`".to_owned(),
                [one] => format!("is {one}; choose it with --at"),
                several => format!("are {}; choose one with --at", several.join(", ")),
            };
            ImageError::NoCheckpoint { location: self.location(), requested, present }
        })
    }
}

/// Whether this names an object store rather than a folder. What begins as the scheme does is meant as one, slashes or not.
pub fn is_address(location: &Path) -> bool {
    let has_scheme = |text: &str| text.get(..3).is_some_and(|scheme| scheme.eq_ignore_ascii_case("s3:"));
    // A folder whose path has `://` in it further on is none: `./http://x` names one.
    let is_first = |text: &str| text.split_once("://").is_some_and(|(scheme, _)| !scheme.contains('/'));
    location.to_str().is_some_and(|text| is_first(text) || has_scheme(text))
}

/// Whether an image lies at this place, or can be made there, as far as this is seen without a change and without asking an object
/// store.
///
/// # Errors
///
/// Why a checkpoint cannot go there.
pub fn check_location(location: &Path) -> Result<()> {
    let store = match store_at(location, false) {
        Err(ImageError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if is_address(location) {
        return Ok(());
    }
    if store.open(IMAGE_FILE)?.is_some() { Image::found_in(store).map(drop) } else { check_free(store.as_ref()) }
}

/// Whether there is nothing but what a process left that was about to make an image.
fn check_free(store: &dyn Store) -> Result<()> {
    const OURS: [&str; 6] = [IMAGE_FILE, "katydid-image.part", "lock", "lock-clock", PACKS_FOLDER, CHECKPOINTS_FOLDER];
    let is_free = store.list(".")?.iter().all(|name| OURS.contains(&name.as_str()));
    if is_free { Ok(()) } else { Err(ImageError::Occupied { location: store.location("") }) }
}

/// Makes a path absolute, so that a process in another folder can use it.
pub fn absolute(location: &Path) -> io::Result<PathBuf> {
    if is_address(location) { Ok(location.to_owned()) } else { std::path::absolute(location) }
}

/// The place that a path or an address names.
fn store_at(location: &Path, create: bool) -> Result<Arc<dyn Store>> {
    match location.to_str().filter(|_| is_address(location)) {
        Some(address) => store_at_address(address),
        None => Ok(Arc::new(Local::at(location, create, None)?)),
    }
}

/// Whether a place is written as one: a path, or an address of an object store. Nothing is asked.
///
/// # Errors
///
/// How such an address is written.
pub fn check_address(location: &Path) -> Result<()> {
    match location.to_str().filter(|_| is_address(location)) {
        Some(address) => address_parts(address),
        None => Ok(()),
    }
}

#[cfg(feature = "objects")]
fn address_parts(address: &str) -> Result<()> {
    parts_of(address).map(drop)
}

#[cfg(not(feature = "objects"))]
fn address_parts(address: &str) -> Result<()> {
    store_at_address(address).map(drop)
}

#[cfg(feature = "objects")]
fn store_at_address(address: &str) -> Result<Arc<dyn Store>> {
    Ok(Arc::new(Objects::at(address)?))
}

#[cfg(not(feature = "objects"))]
fn store_at_address(address: &str) -> Result<Arc<dyn Store>> {
    Err(ImageError::unfit(address, "this program knows no object stores: give a folder"))
}

/// A whole file of bounded length.
pub(crate) fn read_whole(input: &dyn Input, location: &str, most: u64) -> Result<Vec<u8>> {
    let size = input.size();
    if size > most {
        return Err(ImageError::damaged(location, format!("{size} bytes where at most {most} are possible")));
    }
    let mut bytes = vec![0; size as usize];
    input.read(0, &mut bytes).map(|()| bytes)
}

/// The number in `latest`: none if there is no such file, or if it holds no number.
pub(crate) fn latest(store: &dyn Store) -> Option<Option<u32>> {
    let file = store.open(LATEST_FILE).ok().flatten()?;
    let text = read_whole(&*file, LATEST_FILE, 16).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    Some(text.and_then(|text| text.trim().parse().ok()))
}
