//! Restores contents into a rebuilt session.
//!
//! The search that found the areas for the image finds them again. Each must be there with the same length, and each area of
//! the rebuilt session must be in the image. Addresses of variables are compared before any byte is written. A variable that
//! has moved is filled at its new place if nothing holds its old address (`moved.rs`).

#![expect(unsafe_code, reason = "calls the driver")]

mod suspend;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use katydid_cuda_sys::CUstream;
use katydid_driver::Driver;
use katydid_image::{ChunkId, FileEntry, ImageSource, Region, Session as SessionPart};
use katydid_session_core::{Progress, RestoreOptions};

use super::area::{Area, AreaLocation};
use super::areas::{AreaFilter, Areas, PINNED_KIND, Records, areas, code_areas, code_of};
use super::capture::{RECORDS_KEY, hash_chunks};
use super::code::{CODE_KIND, same_functions};
use super::contexts::{Contexts, SwitchableContext};
use super::error::{SnapshotError, refused};
use super::moved::{DisplacedVariable, displaced, packed, search};
use super::soft;
use super::transfer::{ChunkLoad, Transfer};
use super::zeros::Zeros;
use crate::state::Session;

/// The part of the contents to restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Share {
    /// Contents on devices; before the program has come back.
    Device,
    /// Host pages that are only the worker's; once they are registered.
    Host,
}

impl Share {
    fn has(self, region: &Region) -> bool {
        region.kind != CODE_KIND && (region.kind == PINNED_KIND) == (self == Self::Host)
    }
}

/// The input of a restore.
#[derive(Clone, Copy)]
pub(super) struct RestoreSource<'a> {
    pub(super) part: &'a SessionPart,
    /// The journal of the same session.
    pub(super) journal: &'a [u8],
    pub(super) source: &'a dyn ImageSource,
}

impl Session {
    /// Checks whether the variables of all code are at valid places, in a session without contents.
    ///
    /// # Errors
    ///
    /// As [`Session::put_back`].
    pub(super) fn check_variables(
        &mut self,
        image: RestoreSource<'_>,
        options: RestoreOptions,
    ) -> Result<(), SnapshotError> {
        let checked = self.check_variables_now(image, options);
        self.reenter();
        checked
    }

    fn check_variables_now(&mut self, image: RestoreSource<'_>, options: RestoreOptions) -> Result<(), SnapshotError> {
        let contexts = Contexts::of(self)?;
        let records = records(&image.part.states, image.source)?;
        let mut areas = code_areas(self, &contexts)?;
        self.load_code(&records, &mut areas, image, options)
    }

    /// Compares the places of variables with those in the image, and sets the areas to their current places.
    fn load_code(
        &mut self,
        records: &Records,
        areas: &mut Areas,
        image: RestoreSource<'_>,
        options: RestoreOptions,
    ) -> Result<(), SnapshotError> {
        let displaced = compare_code(self, records, areas)?;
        let Some(first) = displaced.first() else { return Ok(()) };
        if options.exact {
            return Err(first.refused());
        }
        search(&displaced, image.journal, &image.part.regions, &records.code, image.source)?;
        let moved: HashSet<u64> = displaced.iter().map(|one| one.object).collect();
        for record in records.code.iter().filter(|record| moved.contains(&record.object)) {
            let is_its = |area: &&mut Area| {
                matches!(area.location, AreaLocation::Variables(_)) && area.region.object == Some(record.object)
            };
            if let Some(area) = areas.all.iter_mut().find(is_its) {
                area.location = AreaLocation::Variables(packed(record, &displaced));
            }
        }
        self.snapshots.moved = displaced.iter().map(DisplacedVariable::describe).collect();
        Ok(())
    }

    /// Fills memory from an image.
    ///
    /// # Errors
    ///
    /// The first mismatch, or an unreadable image. Contents written until then are invalid.
    pub(super) fn put_back(
        &mut self,
        share: Share,
        image: RestoreSource<'_>,
        progress: &Progress,
        options: RestoreOptions,
    ) -> Result<(), SnapshotError> {
        let done = self.put_back_now(share, image, progress, options);
        self.reenter();
        done
    }

    fn put_back_now(
        &mut self,
        share: Share,
        image: RestoreSource<'_>,
        progress: &Progress,
        options: RestoreOptions,
    ) -> Result<(), SnapshotError> {
        let RestoreSource { part: SessionPart { regions, states, .. }, source, .. } = image;
        let contexts = Contexts::of(self)?;
        let records = records(states, source)?;
        if share == Share::Device {
            make_heaps(self, &contexts, &records)?;
        }
        let mut areas = areas(self, &contexts, AreaFilter { shared_pages: false })?;
        if share == Share::Device {
            self.load_code(&records, &mut areas, image, options)?;
        }
        let host = self.host.as_ref();
        let is_ours = |region: &&Region| {
            share.has(region) && (share == Share::Device || host.is_some_and(|host| host.is_private(region.address)))
        };
        let own_regions = regions.iter().filter(is_ours);
        let loads = matched(share, own_regions, &areas.all)?;
        let (blank, written) = split(&loads);
        progress.expect(written.iter().map(|(load, _)| load.length).sum());
        let (driver, copy_contexts, streams) =
            (&self.shared.driver, self.snapshots.copy_contexts(), &self.snapshots.streams[..]);
        Transfer { driver, copy_contexts, streams, progress, precopy: None }.back(&written, source)?;
        clear(driver, &blank)?;
        for copy_context in copy_contexts {
            let address_check = |load: &ChunkLoad<'_>| {
                load.area.address(load.offset).filter(|_| load.area.context == copy_context.context)
            };
            let chunks: Vec<_> = loads.iter().map(|(load, _)| Some((address_check(load)?, load.length))).collect();
            let found = hash_chunks(driver, copy_context, &chunks, None).map_err(refused("hash device memory"))?;
            let named = loads.iter().zip(found).filter_map(|((load, name), hash)| Some(((hash?, load.length), *name)));
            self.snapshots.known_contents.lock().extend(named);
        }
        Ok(())
    }
}

/// The place of a chunk, and its name.
type NamedLoad<'a> = (ChunkLoad<'a>, ChunkId);

/// Splits off chunks of zeros in contiguous device memory.
fn split<'a>(loads: &[NamedLoad<'a>]) -> (Vec<NamedLoad<'a>>, Vec<NamedLoad<'a>>) {
    let mut zeros = Zeros::default();
    loads.iter().partition(|(load, name)| load.area.address(load.offset).is_some() && zeros.has(name, load.length))
}

/// Clears chunks. A software device's new memory is zero, and takes no memory as long as no thread writes to it.
fn clear(driver: &Driver, blank: &[NamedLoad<'_>]) -> Result<(), SnapshotError> {
    let filled = refused("clear device memory");
    for (load, _) in blank.iter().filter(|_| !driver.is_soft()) {
        SwitchableContext(load.area.context).enter(driver)?;
        let address = load.area.address(load.offset).unwrap_or(0);
        // SAFETY: memory of the session, which runs nothing.
        unsafe { driver.cuMemsetD8Async(address, 0, load.length as usize, CUstream::NULL) }.ok().map_err(&filled)?;
    }
    let mut last = None;
    for (load, _) in blank.iter().filter(|_| !driver.is_soft()) {
        if last.replace(load.area.context) != Some(load.area.context) {
            SwitchableContext(load.area.context).enter(driver)?;
            // SAFETY: takes nothing.
            unsafe { driver.cuCtxSynchronize() }.ok().map_err(&filled)?;
        }
    }
    Ok(())
}

fn records(states: &BTreeMap<String, FileEntry>, source: &dyn ImageSource) -> Result<Records, SnapshotError> {
    let damaged = |reason: String| SnapshotError::Damaged { what: "contents", reason };
    let entry = states.get(RECORDS_KEY).ok_or_else(|| damaged("it is not there".to_owned()))?;
    serde_json::from_slice(&source.state(entry)?).map_err(|error| damaged(error.to_string()))
}

fn make_heaps(session: &Session, contexts: &Contexts, records: &Records) -> Result<(), SnapshotError> {
    let driver = Arc::clone(&session.shared.driver);
    for heap in &records.heaps {
        let (_, context) = contexts.of_id(heap.context)?;
        soft::make_heap(&driver, context.0, &heap.allocator_state)
            .map_err(refused("make a heap of device code again"))?;
    }
    Ok(())
}

/// Returns variables that have moved since the image.
fn compare_code(session: &Session, records: &Records, areas: &Areas) -> Result<Vec<DisplacedVariable>, SnapshotError> {
    let current_records: HashMap<u64, _> = areas.records.code.iter().map(|record| (record.object, record)).collect();
    let images: HashMap<u64, _> = code_of(session).into_iter().map(|it| (it.object, it.named.image)).collect();
    let mut all = Vec::new();
    for saved in &records.code {
        let record = current_records.get(&saved.object);
        let displaced_variables = displaced(saved, record.map_or(&[][..], |record| &record.variables))?;
        // An unreadable image counts as using pointers.
        let by_pointer = || images.get(&saved.object).is_none_or(|it| it.image().calls_by_pointer().unwrap_or(true));
        let runs = (saved.runs.as_deref(), record.and_then(|record| record.runs.as_deref()));
        same_functions(&saved.code, runs, by_pointer)?;
        if let Some(DisplacedVariable { code, variable, saved_address, current_address, .. }) =
            displaced_variables.first()
            && record.is_none_or(|record| record.relocates_functions)
        {
            let (saved_address, current_address) = (*saved_address, *current_address);
            let (code, variable) = (code.clone(), variable.clone());
            return Err(SnapshotError::MovedFunctions { code, variable, saved_address, current_address });
        }
        all.extend(displaced_variables);
    }
    Ok(all)
}

/// Returns each chunk of each region with its area.
fn matched<'a>(
    share: Share,
    regions: impl Iterator<Item = &'a Region>,
    areas: &'a [Area],
) -> Result<Vec<NamedLoad<'a>>, SnapshotError> {
    type Key<'a> = (&'a str, Option<u64>, u64);
    let key = |region: &'a Region| -> Key<'a> { (&region.kind, region.object, region.address) };
    let own_areas = areas.iter().filter(|area| share.has(&area.region));
    let mut open: HashMap<Key<'a>, &'a Area> = own_areas.map(|area| (key(&area.region), area)).collect();
    let mut loads = Vec::new();
    for region in regions {
        let same = |area: &&Area| {
            let own = &area.region;
            (own.bytes, own.chunk_bytes, area.chunks()) == (region.bytes, region.chunk_bytes, region.chunks.len())
        };
        let area = open.remove(&key(region)).filter(same).ok_or_else(|| SnapshotError::Absent {
            kind: region.kind.clone(),
            name: region.name.clone(),
            bytes: region.bytes,
            address: region.address,
        })?;
        for (index, name) in region.chunks.iter().enumerate() {
            let (offset, length) = area.chunk(index);
            loads.push((ChunkLoad { area, offset, length }, *name));
        }
    }
    match open.into_values().next() {
        Some(Area { region, .. }) => {
            Err(SnapshotError::Unknown { kind: region.kind.clone(), name: region.name.clone() })
        }
        None => Ok(loads),
    }
}
