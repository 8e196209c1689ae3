//! An image: a location with packs and numbered checkpoints.
//!
//! ```text
//! katydid-image                    what this is: magic, version, id
//! lock                             held by the writer
//! latest                           the newest number, for people and scripts
//! packs/00000001.pack              chunks, shared by all checkpoints
//! checkpoints/000001/manifest.json written last: it completes the checkpoint
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

/// The file that marks a folder as an image.
const IMAGE_FILE: &str = "katydid-image";
/// The folder of the checkpoints.
pub(crate) const CHECKPOINTS_FOLDER: &str = "checkpoints";
/// The file with the newest number.
pub(crate) const LATEST_FILE: &str = "latest";
/// Largest number that `latest` counts for; a larger one is damage, and would leave no numbers for later checkpoints.
const MAX_LATEST: u32 = 1 << 30;
/// The file that marks a folder as a complete checkpoint.
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

/// Returns the folder of a checkpoint.
pub(crate) fn folder_of(number: CheckpointNumber) -> String {
    format!("{CHECKPOINTS_FOLDER}/{number:06}", number = number.0)
}

impl Image {
    /// Opens the image in this folder, or makes one if the folder is empty or missing. `s3://bucket/prefix` names a location in
    /// an object store.
    pub fn create_or_open(folder: impl AsRef<Path>) -> Result<Self> {
        Self::made_in(store_at(folder.as_ref(), true)?)
    }

    /// Opens the image in this folder, or at this address of an object store.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        Self::found_in(store_at(folder.as_ref(), false)?)
    }

    /// Opens the image in an object store, or makes one if there is none. `prefix` may be empty, and selects whole path parts.
    #[cfg(feature = "objects")]
    pub fn in_object_store(objects: Arc<dyn object_store::ObjectStore>, prefix: &str) -> Result<Self> {
        Self::in_object_store_for(objects, prefix, LeaseTerms::default())
    }

    /// Opens or makes the image in an object store, with locks that last as long as `terms` say.
    #[cfg(feature = "objects")]
    pub fn in_object_store_for(
        objects: Arc<dyn object_store::ObjectStore>,
        prefix: &str,
        terms: LeaseTerms,
    ) -> Result<Self> {
        Self::made_in(Arc::new(Objects::new(objects, prefix, format!("objects:{prefix}"), terms)?))
    }

    /// Opens the image in a folder that another process has opened.
    pub fn open_at(folder: OwnedFd) -> Result<Self> {
        Self::found_in(Arc::new(Local::from_descriptor(folder)))
    }

    /// As [`Image::create_or_open`], with injected faults.
    pub fn create_with_faults(folder: impl AsRef<Path>, faults: Arc<Faults>) -> Result<Self> {
        Self::made_in(Arc::new(Local::at(folder.as_ref(), true, Some(faults))?))
    }

    /// Opens the image, or makes one under a lock.
    pub(crate) fn made_in(store: Arc<dyn Store>) -> Result<Self> {
        check_private(&*store)?;
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

    /// Opens the image file, and reads its id.
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

    /// Returns the random id of the image.
    pub fn id(&self) -> ImageId {
        self.id
    }

    /// Returns the holder of the writer's lock, if a killed process may leave that behind: in an object store.
    pub fn writer(&self) -> Result<Option<String>> {
        self.store.writer()
    }

    /// Returns the path or address of the image, for messages.
    pub fn location(&self) -> String {
        self.store.location("")
    }

    /// Returns all complete checkpoints, oldest first.
    pub fn checkpoints(&self) -> Result<Vec<CheckpointNumber>> {
        let mut complete = Vec::new();
        for number in self.folders()? {
            if self.store.open(&format!("{}/{MANIFEST_FILE}", folder_of(number)))?.is_some() {
                complete.push(number);
            }
        }
        Ok(complete)
    }

    /// Returns the newest checkpoint after `number` that is not complete: its manifest is lost, it was removed, it is being
    /// written, or its writer was killed.
    pub fn newer_than(&self, number: CheckpointNumber) -> Result<Option<CheckpointNumber>> {
        let named = latest(&*self.store).flatten().map(CheckpointNumber);
        let newest = self.folders()?.into_iter().chain(named).max();
        Ok(newest.filter(|newest| *newest > number))
    }

    /// Returns the numbers of all folders, complete or not, in order.
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

    /// Returns the bytes of all packs.
    pub fn stored(&self) -> Result<u64> {
        let mut bytes = 0;
        for number in pack_numbers(&*self.store)? {
            bytes += self.store.open(&pack_name(number))?.map_or(0, |pack| pack.size());
        }
        Ok(bytes)
    }

    /// Returns the number of the chosen checkpoint, if it exists.
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
                [one] => format!("is {one}; name that one"),
                several => format!("are {}; name one of these", several.join(", ")),
            };
            ImageError::NoCheckpoint { location: self.location(), requested, present }
        })
    }
}

/// Returns whether this names an object store rather than a folder. A location that begins with the scheme is an address, even
/// without the slashes.
pub fn is_address(location: &Path) -> bool {
    let has_scheme = |text: &str| text.get(..3).is_some_and(|scheme| scheme.eq_ignore_ascii_case("s3:"));
    // A folder with `://` later in its path is not an address, such as `./http://x`.
    let is_first = |text: &str| text.split_once("://").is_some_and(|(scheme, _)| !scheme.contains('/'));
    location.to_str().is_some_and(|text| is_first(text) || has_scheme(text))
}

/// Checks that the location is an image or can become one. It changes nothing, and sends no request to an object store.
///
/// # Errors
///
/// The reason why a checkpoint cannot go there.
pub fn check_location(location: &Path) -> Result<()> {
    let store = match store_at(location, false) {
        Err(ImageError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if is_address(location) {
        return Ok(());
    }
    check_private(&*store)?;
    if store.open(IMAGE_FILE)?.is_some() { Image::found_in(store).map(drop) } else { check_free(store.as_ref()) }
}

/// Checks that no other user can change what is written to the image.
pub(crate) fn check_private(store: &dyn Store) -> Result<()> {
    [".", PACKS_FOLDER, CHECKPOINTS_FOLDER].iter().try_for_each(|folder| store.check_private(folder))
}

/// Checks that a folder has nothing but the leftovers of a process that was making an image.
fn check_free(store: &dyn Store) -> Result<()> {
    const ALLOWED_NAMES: [&str; 6] =
        [IMAGE_FILE, "katydid-image.part", "lock", "lock-clock", PACKS_FOLDER, CHECKPOINTS_FOLDER];
    let has_known_names = store.list(".")?.iter().all(|name| ALLOWED_NAMES.contains(&name.as_str()));
    // The image file comes before the first checkpoint and the first pack.
    let is_free = has_known_names && store.list(PACKS_FOLDER)?.is_empty() && store.list(CHECKPOINTS_FOLDER)?.is_empty();
    if is_free { Ok(()) } else { Err(ImageError::Occupied { location: store.location("") }) }
}

/// Makes a path absolute, so that a process in another folder can use it.
pub fn absolute(location: &Path) -> io::Result<PathBuf> {
    if is_address(location) { Ok(location.to_owned()) } else { std::path::absolute(location) }
}

/// Returns the store at a path or an address.
fn store_at(location: &Path, create: bool) -> Result<Arc<dyn Store>> {
    match location.to_str().filter(|_| is_address(location)) {
        Some(address) => store_at_address(address),
        None => Ok(Arc::new(Local::at(location, create, None)?)),
    }
}

/// Checks the syntax of a location: a path, or an address of an object store. Sends no request.
///
/// # Errors
///
/// The syntax of such an address.
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

/// Reads a whole file of bounded length.
pub(crate) fn read_whole(input: &dyn Input, location: &str, most: u64) -> Result<Vec<u8>> {
    let size = input.size();
    if size > most {
        return Err(ImageError::damaged(location, format!("{size} bytes where at most {most} are possible")));
    }
    let mut bytes = vec![0; size as usize];
    input.read(0, &mut bytes).map(|()| bytes)
}

/// Returns the number in `latest`: `None` without such a file, `Some(None)` if it holds no number.
pub(crate) fn latest(store: &dyn Store) -> Option<Option<u32>> {
    let file = store.open(LATEST_FILE).ok().flatten()?;
    let text = read_whole(&*file, LATEST_FILE, 16).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    Some(text.and_then(|text| text.trim().parse().ok()).filter(|number| *number <= MAX_LATEST))
}
