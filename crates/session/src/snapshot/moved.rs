//! Variables that a driver has placed elsewhere: searches for their old addresses.
//!
//! Code of the same module reaches its variables at the addresses that the driver has linked, so it follows them. If the
//! program has received an address, the replay has refused already. What remains are pointers that kernels wrote, and
//! initial values of other variables. The search covers words at multiples of 8 in all contents, and words at any byte in
//! what the journal replays. The supervisor searches the program's own memory.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use katydid_image::{ChunkId, ImageSource, Region};
use katydid_session_core::{JournalRecord, ReplayStep};
use katydid_wire::codec::Message as _;
use katydid_wire::companion::MovedVariable;
use katydid_wire::message::{kdImportedMap, kdMemoryImport, message_name};

use super::areas::CodeRecord;
use super::code::{CODE_KIND, FoundVariable};
use super::error::SnapshotError;
use super::zeros::Zeros;
use crate::journal::records_of;

/// Kind of the regions with variables.
const VARIABLES_KIND: &str = "variables";
/// Most threads that search contents.
const MAX_SCAN_THREADS: usize = 8;
/// Bytes of an address.
const ADDRESS_BYTES: usize = size_of::<u64>();

/// A variable that has another address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DisplacedVariable {
    pub(super) code: String,
    /// The code's number in the image ([`CodeRecord::object`]).
    pub(super) object: u64,
    pub(super) variable: String,
    pub(super) saved_address: u64,
    pub(super) current_address: u64,
    pub(super) size: u64,
}

impl DisplacedVariable {
    /// Returns the first address after the variable. It saturates, since an image is not trusted.
    fn end(&self) -> u64 {
        self.saved_address.saturating_add(self.size)
    }

    /// Returns the error for a case in which nothing may move.
    pub(super) fn refused(&self) -> SnapshotError {
        let (code, variable) = (self.code.clone(), self.variable.clone());
        SnapshotError::Moved {
            code,
            variable,
            saved_address: self.saved_address,
            current_address: self.current_address,
        }
    }

    /// Describes the variable for the supervisor.
    pub(super) fn describe(&self) -> MovedVariable {
        let name = format!("{}: variable {}", self.code, self.variable);
        MovedVariable { name, address: self.saved_address, bytes: self.size }
    }
}

/// Returns the variables of a piece of code that have moved; each is paired with the one of its name.
///
/// # Errors
///
/// [`SnapshotError::Moved`]: one is missing, has another size, or shares its name with another.
pub(super) fn displaced(
    record: &CodeRecord,
    current: &[FoundVariable],
) -> Result<Vec<DisplacedVariable>, SnapshotError> {
    let mut variables_by_name: HashMap<&str, Vec<&FoundVariable>> = HashMap::new();
    current.iter().for_each(|found| variables_by_name.entry(&found.name).or_default().push(found));
    let mut moved = Vec::new();
    for old in &record.variables {
        let current_variables = variables_by_name.get(old.name.as_str()).map_or(&[][..], Vec::as_slice);
        if current_variables.contains(&old) {
            continue;
        }
        let current_address = current_variables.first().map_or(0, |current_variables| current_variables.address);
        let (code, variable) = (record.code.clone(), old.name.clone());
        let displaced = DisplacedVariable {
            code,
            object: record.object,
            variable,
            saved_address: old.address,
            current_address,
            size: old.size,
        };
        let is_duplicate = record.variables.iter().filter(|other| other.name == old.name).count() > 1;
        if is_duplicate || current_variables.len() != 1 || current_variables[0].size != old.size {
            return Err(displaced.refused());
        }
        moved.push(displaced);
    }
    Ok(moved)
}

/// Returns the current places of a code's variables, in the order in which the image has packed them.
pub(super) fn packed(record: &CodeRecord, displaced: &[DisplacedVariable]) -> Vec<(u64, u64)> {
    let moved: HashMap<u64, u64> = displaced
        .iter()
        .filter(|variable| variable.object == record.object)
        .map(|variable| (variable.saved_address, variable.current_address))
        .collect();
    let label = |found: &FoundVariable| (moved.get(&found.address).copied().unwrap_or(found.address), found.size);
    record.variables.iter().map(label).collect()
}

/// Old address ranges of the variables that moved.
struct Ranges<'a> {
    /// The variables, in the order of their old addresses.
    variables: Vec<&'a DisplacedVariable>,
    first: u64,
    last: u64,
}

impl<'a> Ranges<'a> {
    fn new(displaced: &'a [DisplacedVariable]) -> Self {
        let mut variables: Vec<_> = displaced.iter().collect();
        variables.sort_unstable_by_key(|variable| variable.saved_address);
        let first = variables.first().map_or(u64::MAX, |variable| variable.saved_address);
        let last = variables.iter().map(|variable| variable.end()).max().unwrap_or(0);
        Self { variables, first, last }
    }

    /// Returns the variable that a word points into, or right after: loops end with such a pointer.
    fn find(&self, word: u64) -> Option<&'a DisplacedVariable> {
        if word < self.first || word > self.last {
            return None;
        }
        let until = self.variables.partition_point(|variable| variable.saved_address <= word);
        self.variables[..until].iter().rev().find(|variable| word <= variable.end()).copied()
    }

    /// Returns the first word, at every `step` bytes, that points into a variable: its offset, the word, and the variable.
    fn search(&self, bytes: &[u8], start: usize, step: usize) -> Option<(usize, u64, &'a DisplacedVariable)> {
        let words = (start..bytes.len().saturating_sub(ADDRESS_BYTES - 1)).step_by(step);
        words.into_iter().find_map(|at| {
            let word = u64::from_le_bytes(*bytes[at..].first_chunk()?);
            Some((at, word, self.find(word)?))
        })
    }
}

fn pointed((_, word, variable): (usize, u64, &DisplacedVariable), holder: String) -> SnapshotError {
    let (code, variable, saved_address, current_address) =
        (variable.code.clone(), variable.variable.clone(), variable.saved_address, variable.current_address);
    SnapshotError::Pointed { code, variable, saved_address, current_address, holder, word }
}

/// Messages by which the session reaches memory of other programs.
const IMPORTING_OPCODES: [u16; 2] = [kdImportedMap::OPCODE, kdMemoryImport::OPCODE];

/// Checks that nothing in the session holds an address of these variables. Kernels may have written one to imported memory,
/// which is not in this part of the image: with imports, nothing may move.
///
/// # Errors
///
/// [`SnapshotError::Pointed`], [`SnapshotError::Moved`], or an error of the image.
pub(super) fn search(
    displaced: &[DisplacedVariable],
    journal: &[u8],
    regions: &[Region],
    records: &[CodeRecord],
    source: &dyn ImageSource,
) -> Result<(), SnapshotError> {
    let ranges = Ranges::new(displaced);
    let search = Search { ranges, records: records.iter().map(|record| (record.object, record)).collect(), source };
    let replayed = records_of(journal)
        .map_err(|error| SnapshotError::Damaged { what: "the journal", reason: error.to_string() })?;
    if let Some(first) = displaced.first().filter(|_| replayed.iter().any(imports)) {
        return Err(first.refused());
    }
    replayed.iter().try_for_each(|record| search.record(record))?;
    let (variables, others): (Vec<_>, Vec<_>) =
        regions.iter().filter(|region| region.kind != CODE_KIND).partition(|region| region.kind == VARIABLES_KIND);
    variables.into_iter().try_for_each(|region| search.variables(region))?;
    search.contents(&others)
}

/// Returns whether a record imports memory of another program.
fn imports(record: &JournalRecord) -> bool {
    record.step == ReplayStep::Frame && IMPORTING_OPCODES.contains(&record.opcode)
}

struct Search<'a> {
    ranges: Ranges<'a>,
    records: BTreeMap<u64, &'a CodeRecord>,
    source: &'a dyn ImageSource,
}

impl Search<'_> {
    /// Searches the arguments of a replayed call, and the nodes of a graph.
    fn record(&self, record: &JournalRecord) -> Result<(), SnapshotError> {
        let name = || match record.step {
            ReplayStep::Frame => message_name(record.opcode).unwrap_or("a call"),
            _ => "the first use of code",
        };
        if let Some(hit) = self.ranges.search(&record.payload, 0, 1) {
            return Err(pointed(hit, format!("an argument of {}", name())));
        }
        let nodes = record.steps.as_ref().and_then(|steps| self.ranges.search(steps, 0, 1));
        let number = record.payload.first_chunk().map_or(0, |id| u32::from_le_bytes(*id));
        nodes.map_or(Ok(()), |hit| Err(pointed(hit, format!("a parameter of executable graph {number}"))))
    }

    /// Searches variables, each from its own start: packed, they lie at other multiples than in memory.
    fn variables(&self, region: &Region) -> Result<(), SnapshotError> {
        let Some(record) = region.object.and_then(|object| self.records.get(&object)) else { return Ok(()) };
        let (mut bytes, mut at) = (Vec::new(), 0_usize);
        for index in 0..region.chunks.len() {
            let chunk = self.chunk(region, index)?;
            bytes.extend_from_slice(&chunk);
        }
        for found in &record.variables {
            let Some(end) = at.checked_add(found.size as usize) else { break };
            let Some(own) = bytes.get(at..end) else { break };
            let start = found.address.wrapping_neg() as usize % ADDRESS_BYTES;
            if let Some(hit) = self.ranges.search(own, start, ADDRESS_BYTES) {
                let label = format!("variable {} of {}, at byte {}", found.name, record.code, hit.0);
                return Err(pointed(hit, label));
            }
            at = end;
        }
        Ok(())
    }

    fn chunk(&self, region: &Region, index: usize) -> Result<Vec<u8>, SnapshotError> {
        let length = region.chunk_len(index).ok_or_else(|| {
            let reason = format!("{} has other chunks than its length takes", region.name);
            SnapshotError::Damaged { what: "contents", reason }
        })?;
        let mut bytes = vec![0; length];
        self.source.read(&region.chunks[index], &mut bytes)?;
        Ok(bytes)
    }

    /// Searches all other memory; equal chunks once.
    fn contents(&self, regions: &[&Region]) -> Result<(), SnapshotError> {
        let (mut zeros, mut seen) = (Zeros::default(), HashSet::<ChunkId>::new());
        let mut chunks = Vec::new();
        for region in regions {
            for (index, name) in region.chunks.iter().enumerate() {
                let length = region.chunk_len(index).unwrap_or(0) as u64;
                if !zeros.has(name, length) && seen.insert(*name) {
                    chunks.push((*region, index));
                }
            }
        }
        let (next, failure) = (AtomicUsize::new(0), Mutex::new(None));
        let work = || {
            while let Some((region, index)) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
                if let Err(error) = self.one_chunk(region, *index) {
                    next.store(chunks.len(), Ordering::Relaxed);
                    failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
            }
        };
        let threads = thread::available_parallelism().map_or(1, NonZero::get).min(MAX_SCAN_THREADS).min(chunks.len());
        thread::scope(|scope| {
            // If a thread cannot be started, the others do its share.
            let further: Vec<_> =
                (1..threads).map(|_| thread::Builder::new().name("search".into()).spawn_scoped(scope, work)).collect();
            work();
            drop(further);
        });
        failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    fn one_chunk(&self, region: &Region, index: usize) -> Result<(), SnapshotError> {
        let bytes = self.chunk(region, index)?;
        let Some(hit) = self.ranges.search(&bytes, 0, ADDRESS_BYTES) else { return Ok(()) };
        let offset = index as u64 * u64::from(region.chunk_bytes) + hit.0 as u64;
        let label = match region.address {
            0 => format!("{}, at byte {offset}", region.name),
            start => format!("device memory at {:#x} ({})", start + offset, region.name),
        };
        Err(pointed(hit, label))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable_at(name: &str, address: u64, size: u64) -> FoundVariable {
        FoundVariable { name: name.to_owned(), address, size }
    }

    fn record(variables: Vec<FoundVariable>) -> CodeRecord {
        CodeRecord { code: "module 1".to_owned(), object: 1, variables, runs: None, relocates_functions: false }
    }

    #[test]
    fn a_variable_that_lies_elsewhere_is_named_and_one_that_is_missing_refused() {
        let saved = record(vec![variable_at("a", 0x100, 4), variable_at("b", 0x200, 8)]);
        let same = [variable_at("b", 0x200, 8), variable_at("a", 0x100, 4), variable_at("c", 1, 1)];
        assert_eq!(displaced(&saved, &same).unwrap(), []);
        let moved = displaced(&saved, &[variable_at("a", 0x100, 4), variable_at("b", 0x208, 8)]).unwrap();
        assert_eq!(
            moved.iter().map(|one| (&*one.variable, one.saved_address, one.current_address)).collect::<Vec<_>>(),
            [("b", 0x200, 0x208)]
        );
        for current in [vec![variable_at("a", 0x100, 4)], vec![variable_at("a", 0x100, 4), variable_at("b", 0x208, 4)]]
        {
            let refused = displaced(&saved, &current);
            assert!(matches!(&refused, Err(SnapshotError::Moved { variable, .. }) if variable == "b"), "{refused:?}");
        }
        let duplicates = record(vec![variable_at("a", 0x100, 4), variable_at("a", 0x200, 4)]);
        assert_eq!(displaced(&duplicates, &[variable_at("a", 0x200, 4), variable_at("a", 0x100, 4)]).unwrap(), []);
        assert!(
            displaced(&duplicates, &[variable_at("a", 0x300, 4), variable_at("a", 0x400, 4)]).is_err(),
            "which is which?"
        );
    }

    #[test]
    fn contents_keep_the_order_of_the_image() {
        let saved = record(vec![variable_at("a", 0x100, 4), variable_at("b", 0x200, 8), variable_at("c", 0x300, 4)]);
        let moved =
            displaced(&saved, &[variable_at("b", 0x80, 8), variable_at("c", 0x300, 4), variable_at("a", 0x100, 4)])
                .unwrap();
        assert_eq!(packed(&saved, &moved), [(0x100, 4), (0x80, 8), (0x300, 4)]);
    }

    #[test]
    fn words_are_found_where_they_point_into_a_variable_or_right_behind_it() {
        let saved = record(vec![variable_at("a", 0x1000, 16), variable_at("b", 0x9000, 8)]);
        let moved = displaced(&saved, &[variable_at("a", 0x2000, 16), variable_at("b", 0xa000, 8)]).unwrap();
        let ranges = Ranges::new(&moved);
        let name = |word| ranges.find(word).map(|one| one.variable.as_str());
        assert_eq!([0xfff, 0x1000, 0x100f, 0x1010, 0x1011].map(name), [None, Some("a"), Some("a"), Some("a"), None]);
        assert_eq!([0x9000, 0x9008, 0x9009, 0].map(name), [Some("b"), Some("b"), None, None]);
        let mut bytes = vec![0; 40];
        bytes[21..29].copy_from_slice(&0x9004_u64.to_le_bytes());
        assert!(ranges.search(&bytes, 0, ADDRESS_BYTES).is_none(), "at no multiple of 8");
        assert_eq!(ranges.search(&bytes, 0, 1).map(|hit| (hit.0, hit.1)), Some((21, 0x9004)));
        assert_eq!(ranges.search(&bytes, 5, ADDRESS_BYTES).map(|hit| hit.0), Some(21));
        assert!(ranges.search(&bytes[..28], 0, 1).is_none() && ranges.search(&[], 0, 1).is_none());
    }
}
