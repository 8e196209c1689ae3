//! Pinned host memory: an arena at the same address on both sides.
//!
//! With shared memory both sides see the same pages; they are only registered once for the GPU. On a stream link the worker
//! has its own pages at the same address. They are made equal where the GPU could tell: a block that a launch names is
//! pushed before it. After a synchronization, only those bytes that the GPU changed are written back. A block that no launch
//! named does not exist in the worker: a stray access is a fault. The program's own registered memory is treated so on every
//! link (see [`crate::memory::registered`]).
//!
//! A function of the program that a stream calls reads earlier writes of the GPU, and later work reads the function's
//! writes. So the upcall thread pulls and pushes too. The GPU waits for this thread, so it must not wait for a thread that
//! may wait for the GPU. Pages are made and released with the table of copies unlocked ([`PageState`]), and the worker
//! answers for their contents at once. If a checkpoint holds frames, the thread with the table unlocks it until frames flow
//! again ([`with_copies`]).
#![expect(unsafe_code, reason = "reads and writes memory that the program uses meanwhile")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use katydid_arena::{NegotiatedArenas, ReserveError};
use katydid_client::memory::Arena;
use katydid_client::memory::shared_pages;
use katydid_client::regions::{Region, RegionKind};
use katydid_client::session::api_code::ApiCode;
use katydid_cuda_sys::CUresult;
use katydid_transport::with_lock_held;
use katydid_wire::message::{kdHostPush, kdHostPushWords, kdHostRegister, kdHostUnregister};

use crate::context::stack;
use crate::graph::host_work;
use crate::launch::registry;
use crate::memory::counts::{MANAGED_BLOCKS, MANAGED_VARIABLES, REGISTERED_BLOCKS};
use crate::memory::pinned_sync::{self, HelperUse, PulledRange};
use crate::memory::registration::{self, PAGE_BYTES};
use crate::process::session::{Shim, shim};
use crate::sync::stream;

/// Bytes of one push message.
const PUSH_MESSAGE_BYTES: usize = 512 << 10;
/// Unit of comparing and pushing, in bytes. Flags that kernels and programs wait for have 4 bytes, or two such words, which
/// are pushed together. GPU and program do not write memory that lies closer at the same time.
const WORD_BYTES: usize = 4;
/// Most runs of changed words of a page that are pushed separately.
const MAX_SINGLE_RUNS: usize = 16;

/// The pinned arena, and the worker's copies of it.
pub(crate) struct PinnedArena {
    pub(crate) arena: Arena,
    /// Whether both sides see the same pages.
    pub(crate) is_shared: bool,
    pub(super) start: u64,
    /// Whole pages of which the worker has its own, by address: blocks on a stream link, registered memory on any.
    copies: Mutex<PageCopies>,
    /// Signals that pages were made or released.
    moved: Condvar,
    /// Blocks that kernels reach though no launch names them, by address; locked before `copies`.
    flags: Mutex<BTreeMap<u64, Region>>,
    /// Number of entries in `flags`: most programs have none, and their launches need not lock.
    flag_count: AtomicUsize,
}

static PINNED_MEMORY: OnceLock<PinnedArena> = OnceLock::new();

/// Sets the pinned arena, unless it is set.
pub(crate) fn fill(pinned: PinnedArena) {
    let _ = PINNED_MEMORY.set(pinned);
}

/// Returns the pinned arena; none if the two sides found no common range for it.
#[inline]
pub(crate) fn get() -> Option<&'static PinnedArena> {
    PINNED_MEMORY.get()
}

type PageCopies = BTreeMap<u64, PageCopy>;

/// Whether the worker has pages.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PageState {
    There,
    /// A thread is having them made, or released.
    Moving,
}

/// The worker's pages, as far as the shim knows them.
struct PageCopy {
    state: PageState,
    /// Wire id of the context in which they were made, and with which they end.
    context: u32,
    /// Contents of the worker's pages when last seen, of the same length.
    contents: Vec<u8>,
    /// Count of messages after which no launch has named them.
    used_at: u64,
    /// Whether a launch has named them since the GPU was last known to be done with them.
    is_used: bool,
    /// The only context and stream whose launches named them; none if there are several.
    user: Option<(u32, u32)>,
    /// Launches that have named them and are not sent yet.
    pending: u32,
}

impl PageCopy {
    /// Makes pages that no launch has named.
    fn new(context: u32, contents: Vec<u8>) -> Self {
        Self { state: PageState::There, context, contents, used_at: 0, is_used: false, user: None, pending: 0 }
    }

    /// Returns whether the GPU may be using the pages.
    fn is_at_work(&self) -> bool {
        self.is_used && self.state == PageState::There
    }

    /// Notes that a launch in a stream is about to be sent that names them.
    fn name(&mut self, user: Option<(u32, u32)>) {
        self.user = user.filter(|_| !self.is_used || self.user == user);
        self.is_used = true;
        self.pending += 1;
    }
}

/// Blocks that a launch has named. The caller reports that the launch was sent, or could not be.
pub(crate) struct NamedBlocks(Vec<u64>);

impl NamedBlocks {
    /// Notes that the launch was sent.
    pub(crate) fn sent(self) {
        let Self(starts) = self;
        let Ok(Some((shim, pinned))) = unshared() else { return };
        if starts.is_empty() {
            return;
        }
        let (enqueued, mut copies) = (shim.session.enqueued(), pinned.copies());
        for start in starts {
            if let Some(copy) = copies.get_mut(&start) {
                copy.pending = copy.pending.saturating_sub(1);
                copy.used_at = copy.used_at.max(enqueued);
            }
        }
    }
}

impl PinnedArena {
    /// Makes the arena if both sides agreed on one, over `memory` if that is shared.
    pub(crate) fn new(arenas: &NegotiatedArenas, memory: Option<OwnedFd>) -> Result<Option<Self>, ReserveError> {
        let Some(reservation) = &arenas.pinned else { return Ok(None) };
        let range = reservation.range();
        if let Some(memory) = &memory {
            shared_pages::map_all(reservation, memory)?;
        }
        let start = range.start;
        let (copies, moved, flags, flag_count) = <(Mutex<_>, Condvar, Mutex<_>, AtomicUsize)>::default();
        let is_shared = memory.is_some();
        // A driver registers each piece separately.
        Ok(Some(Self { arena: Arena::of_parts(range), is_shared, start, copies, moved, flags, flag_count }))
    }

    /// Notes a block that the program wants mapped for kernels, in a context by wire id. If the worker has its own pages,
    /// those of a small block exist from now on; those of a large one when a launch names it, as for any other.
    pub(crate) fn follow(&self, region: &Region, context: u32) {
        if self.is_shared || region.size > PAGE_BYTES {
            return;
        }
        let mut flags = self.flags();
        flags.insert(region.start, *region);
        self.flag_count.store(flags.len(), Ordering::Release);
        drop(flags);
        // A failure here is repeated before the next launch, which reports it.
        let _ = push_flags(context);
    }

    fn flags(&self) -> MutexGuard<'_, BTreeMap<u64, Region>> {
        self.flags.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unfollow(&self, region: &Region) {
        if self.flag_count.load(Ordering::Acquire) > 0 {
            let mut flags = self.flags();
            flags.remove(&region.start);
            self.flag_count.store(flags.len(), Ordering::Release);
        }
    }

    /// Locks the table of copies, which no thread locks while it waits for the GPU.
    fn copies(&self) -> MutexGuard<'_, PageCopies> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the table of copies, once no thread moves any of these pages. Not for the upcall thread.
    fn copies_at(&self, pages: &Range<u64>) -> MutexGuard<'_, PageCopies> {
        let is_moving = |copies: &mut PageCopies| {
            overlapping(copies, pages)
                .iter()
                .any(|start| copies.get(start).is_some_and(|it| it.state == PageState::Moving))
        };
        self.moved.wait_while(self.copies(), is_moving).unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a move of pages and wakes waiting threads.
    fn tell_moved(&self, change: impl FnOnce(&mut PageCopies)) {
        change(&mut self.copies());
        self.moved.notify_all();
    }

    /// Forgets a block that ended with its context, by wire id.
    pub(crate) fn ended(&self, region: &Region, context: u32) {
        self.copies().retain(|_, copy| copy.context != context);
        // Pages made in another context stay until that one ends, when the worker can no longer be asked.
        let _ = self.forget(region);
        // Its addresses are free at once: the worker ends the context before it sees any later message.
        if region.is_pinned() || region.is_managed_block() {
            let _ = self.arena.free(region.start, 0);
        }
    }

    /// Forgets the worker's pages that were made in a context that ends.
    pub(crate) fn context_ended(&self, context: u32) {
        self.copies().retain(|_, copy| copy.context != context);
    }

    /// Releases the worker's pages of a freed block, except those that other blocks need.
    pub(crate) fn forget(&self, region: &Region) -> Result<(), CUresult> {
        self.unfollow(region);
        let (shim, pages) = (shim()?, pages(region));
        let mut copies = self.copies_at(&pages);
        let mut leaving = Vec::new();
        for start in overlapping(&copies, &pages) {
            let Some(copy) = copies.get_mut(&start) else { continue };
            let size = copy.contents.len() as u64;
            if region.is_registered() && registration::touches(shim, &(start..start + size)) {
                continue;
            }
            if is_of_worker(region) {
                copies.remove(&start);
                continue;
            }
            copy.state = PageState::Moving;
            leaving.push((start, size));
        }
        drop(copies);
        // The worker waits until the GPU is done with them.
        let unregister =
            |&(address, size)| shim.session.call(any_context(), &kdHostUnregister { address, size }).map(drop);
        let left = leaving.iter().map(unregister).fold(Ok(()), Result::and);
        self.tell_moved(|copies| leaving.iter().for_each(|(start, _)| drop(copies.remove(start))));
        left
    }

    /// Adds a managed variable or host mapping, with the worker's `contents`.
    pub(crate) fn adopt(&self, start: u64, context: u32, contents: Vec<u8>) {
        self.copies().insert(start, PageCopy::new(context, contents));
    }

    /// Returns whether a launch has named the block since the GPU was last known to be done with it.
    pub(crate) fn is_in_use(&self, region: &Region) -> bool {
        let copies = self.copies();
        overlapping(&copies, &pages(region)).iter().any(|start| copies.get(start).is_some_and(|copy| copy.is_used))
    }
}

pub(super) fn any_context() -> u32 {
    stack::wire().unwrap_or(0)
}

/// Returns whether the worker's driver allocated the memory, which no message releases.
fn is_of_worker(region: &Region) -> bool {
    matches!(region.kind, RegionKind::Shared { .. } | RegionKind::HostMapped)
}

/// Returns the range that the worker has its own copy of: the whole pages of a block; of a variable, the variable alone.
fn pages(region: &Region) -> Range<u64> {
    if is_of_worker(region) {
        return region.start..region.start + region.size;
    }
    region.start / PAGE_BYTES * PAGE_BYTES..(region.start + region.size).next_multiple_of(PAGE_BYTES)
}

/// Returns the first addresses of the copies that share a page with `pages`.
fn overlapping(copies: &BTreeMap<u64, PageCopy>, pages: &Range<u64>) -> Vec<u64> {
    let below = copies.range(..pages.end).rev();
    let touching = below.take_while(|(start, copy)| **start + copy.contents.len() as u64 > pages.start);
    touching.map(|(start, _)| *start).collect()
}

/// Returns those parts of `pages` without a copy, from the last to the first.
fn gaps(copies: &BTreeMap<u64, PageCopy>, pages: &Range<u64>) -> Vec<Range<u64>> {
    let (mut gaps, mut end) = (Vec::new(), pages.end);
    // From the last to the first.
    for start in overlapping(copies, pages) {
        let after = start + copies.get(&start).map_or(0, |copy| copy.contents.len() as u64);
        if after < end {
            gaps.push(after..end);
        }
        end = start;
    }
    if pages.start < end {
        gaps.push(pages.start..end);
    }
    gaps
}

/// Returns the arena if memory has to be made equal: on a stream link, or if there is memory outside of it.
pub(crate) fn unshared() -> Result<Option<(&'static Shim, &'static PinnedArena)>, CUresult> {
    let shim = shim()?;
    let differs = |pinned: &&PinnedArena| !pinned.is_shared || REGISTERED_BLOCKS.is_any() || MANAGED_VARIABLES.is_any();
    let pinned = get().filter(differs);
    Ok(pinned.map(|pinned| (shim, pinned)))
}

/// Pushes, before a launch in a stream of a context, every pinned block that a parameter of one of its kernels points into,
/// and all managed ones. If nothing has to be made equal, parameters are not read: a graph may have very many.
pub(crate) fn push_named<'a>(
    kernels: impl IntoIterator<Item = &'a [u8]>,
    context: u32,
    stream: u32,
) -> Result<NamedBlocks, CUresult> {
    let mut named = NamedBlocks(Vec::new());
    let Some((shim, pinned)) = unshared()? else { return Ok(named) };
    push_flags(context)?;
    // The id of a thread's own stream means a different stream in each thread.
    let user = (!stream::is_of_thread(stream)).then_some((context, stream));
    let follows_blocks = MANAGED_BLOCKS.is_any() && !pinned.is_shared;
    if follows_blocks || MANAGED_VARIABLES.is_any() {
        let is_followed = |region: &Region| region.is_managed() && (follows_blocks || !region.is_managed_block());
        for region in shim.regions.matching(is_followed) {
            push(shim, pinned, &region, (context, user), &mut named)?;
        }
    }
    // Pointers are aligned within parameters, which are aligned within the block.
    for word in kernels.into_iter().flat_map(|params| params.as_chunks::<8>().0) {
        let region = shim.regions.find(u64::from_le_bytes(*word)).filter(|it| it.is_host() && !it.is_managed());
        if let Some(region) = region.filter(|region| !pinned.is_shared || region.is_registered()) {
            push(shim, pinned, &region, (context, user), &mut named)?;
        }
    }
    Ok(named)
}

fn push(
    shim: &Shim,
    pinned: &PinnedArena,
    region: &Region,
    (context, user): (u32, Option<(u32, u32)>),
    named: &mut NamedBlocks,
) -> Result<(), CUresult> {
    with_copies(shim, || {
        let mut copies = with_worker_pages(shim, pinned, region, context)?;
        for start in overlapping(&copies, &pages(region)) {
            let Some(copy) = copies.get_mut(&start) else { continue };
            push_changes(shim, context, start, copy)?;
            copy.name(user);
            named.0.push(start);
        }
        Ok(())
    })
}

/// Runs `work`, which locks the table of copies and sends. It must not wait for held frames, because the upcall thread needs
/// the table meanwhile: it unlocks the table, and repeats the rest once frames flow.
fn with_copies(shim: &Shim, mut work: impl FnMut() -> Result<(), CUresult>) -> Result<(), CUresult> {
    loop {
        match with_lock_held(true, &mut work) {
            Err(CUresult::LOCK_HELD) => shim.session.wait_until_open()?,
            done => return done,
        }
    }
}

/// Pushes, before a launch in a context, what the program wrote into blocks that kernels reach unnamed.
fn push_flags(context: u32) -> Result<(), CUresult> {
    let Some((shim, pinned)) = unshared()? else { return Ok(()) };
    if pinned.flag_count.load(Ordering::Acquire) == 0 {
        return Ok(());
    }
    with_copies(shim, || {
        // Locked throughout: a block in the table is not freed.
        let flags = pinned.flags();
        flags.values().try_for_each(|region| {
            let mut copies = with_worker_pages(shim, pinned, region, context)?;
            let starts = overlapping(&copies, &pages(region));
            starts.iter().try_for_each(|start| match copies.get_mut(start) {
                Some(copy) => push_changes(shim, context, *start, copy),
                None => Ok(()),
            })
        })
    })
}

/// Pushes a function's writes into blocks that launches on their way have named, before the worker goes on after the
/// function.
pub(crate) fn push_used() -> Result<(), CUresult> {
    let Some((shim, pinned)) = unshared()? else { return Ok(()) };
    let mut copies = pinned.copies();
    copies
        .iter_mut()
        .filter(|(_, copy)| copy.is_at_work())
        .try_for_each(|(start, copy)| push_changes(shim, 0, *start, copy))
}

/// Locks the table of copies with the worker's pages of a block in it, and makes missing pages. It makes none for a block
/// that another thread has freed since it was found: that thread removes it from the address map, and then its pages from
/// the table, before its memory goes.
fn with_worker_pages<'a>(
    shim: &Shim,
    pinned: &'a PinnedArena,
    region: &Region,
    context: u32,
) -> Result<MutexGuard<'a, PageCopies>, CUresult> {
    let pages = pages(region);
    if region.is_registered() {
        registration::check(&pages)?;
    }
    loop {
        let mut copies = pinned.copies_at(&pages);
        let is_there = || shim.regions.find(region.start).is_some_and(|found| found.id == region.id);
        let Some(gap) = gaps(&copies, &pages).pop().filter(|_| is_there()) else { return Ok(copies) };
        let (address, size) = (gap.start, gap.end - gap.start);
        // The worker's pages are new: zeros.
        let coming = PageCopy { state: PageState::Moving, ..PageCopy::new(context, vec![0; size as usize]) };
        copies.insert(address, coming);
        drop(copies);
        let answer = shim.session.call(context, &kdHostRegister { address, size, flags: 0 });
        pinned.tell_moved(|copies| match copies.get_mut(&address) {
            Some(copy) if answer.is_ok() => copy.state = PageState::There,
            _ => drop(copies.remove(&address)),
        });
        answer.map_err(|code| if region.is_registered() { registration::address_error(code) } else { code })?;
    }
}

/// Pushes the program's changes to pages.
fn push_changes(shim: &Shim, context: u32, start: u64, copy: &mut PageCopy) -> Result<(), CUresult> {
    let current = snapshot(start, copy.contents.len());
    for change in changes(&copy.contents, &current) {
        let address = start + change.start() as u64;
        let pushed = match change {
            PageChange::Whole(range) => {
                shim.session.enqueue(context, &kdHostPush { address, data: &current[range.clone()] })?;
                range
            }
            PageChange::Words(at, words) => {
                shim.session.enqueue(context, &kdHostPushWords { address, words: &words })?;
                at..at + PAGE_BYTES as usize
            }
        };
        // At once: pushed bytes must not be pushed again if the next part is held.
        copy.contents[pushed.clone()].copy_from_slice(&current[pushed]);
    }
    Ok(())
}

/// Copies the program's bytes at this moment. The program may be writing some of them; that race is its own, as natively.
fn snapshot(address: u64, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    let source = std::ptr::with_exposed_provenance::<u8>(address as usize);
    // SAFETY: whole pages of a block of the arena, mapped as long as the block, or of registered memory, which was
    // found mapped just now, or a variable that was mapped when it was noted; the vector has `size` bytes.
    unsafe { source.copy_to_nonoverlapping(bytes.as_mut_ptr(), size) };
    bytes
}

/// A difference between two blocks that is pushed, by offsets in them.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PageChange {
    /// All bytes of a range.
    Whole(Range<usize>),
    /// Words of the page at that offset, encoded as in `kdHostPushWords`.
    Words(usize, Vec<u8>),
}

impl PageChange {
    fn start(&self) -> usize {
        match self {
            Self::Whole(range) => range.start,
            Self::Words(start, _) => *start,
        }
    }
}

/// Returns the differences between two blocks. Only changed words count: a running kernel, or another program with the
/// memory, may be writing their neighbors, which a push would set back. Adjacent runs are joined to pieces of at most
/// [`PUSH_MESSAGE_BYTES`] bytes.
fn changes(old: &[u8], new: &[u8]) -> Vec<PageChange> {
    let mut changes: Vec<PageChange> = Vec::new();
    let mut add = |piece: Range<usize>| match changes.last_mut() {
        Some(PageChange::Whole(last)) if last.end == piece.start && last.len() + piece.len() <= PUSH_MESSAGE_BYTES => {
            last.end = piece.end
        }
        _ => changes.push(PageChange::Whole(piece)),
    };
    let pages = old.chunks(PAGE_BYTES as usize).zip(new.chunks(PAGE_BYTES as usize));
    let mut torn = Vec::new();
    for (index, (old, new)) in pages.enumerate().filter(|(_, (old, new))| old != new) {
        let start = index * PAGE_BYTES as usize;
        let runs = changed_words(old, new);
        if runs.len() <= MAX_SINGLE_RUNS || new.len() < PAGE_BYTES as usize {
            runs.iter().for_each(|run| add(start + run.start..start + run.end));
        } else {
            torn.push(PageChange::Words(start, encode_runs(&runs, new)));
        }
    }
    changes.extend(torn);
    changes
}

/// Encodes runs of a page's words for the message: a bit for each word of the page, then the words whose bit is set.
fn encode_runs(runs: &[Range<usize>], page: &[u8]) -> Vec<u8> {
    let mut encoded = vec![0; PAGE_BYTES as usize / WORD_BYTES / 8];
    for word in runs.iter().flat_map(|run| run.start / WORD_BYTES..run.end / WORD_BYTES) {
        encoded[word / 8] |= 1 << (word % 8);
    }
    runs.iter().for_each(|run| encoded.extend_from_slice(&page[run.clone()]));
    encoded
}

/// Returns the runs of words in which two pages differ.
fn changed_words(old: &[u8], new: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (index, (old, new)) in old.chunks(WORD_BYTES).zip(new.chunks(WORD_BYTES)).enumerate() {
        let start = index * WORD_BYTES;
        match runs.last_mut() {
            _ if old == new => {}
            Some(last) if last.end == start => last.end += new.len(),
            _ => runs.push(start..start + new.len()),
        }
    }
    runs
}

/// Pulls the GPU's writes into blocks that launches named, after a synchronization.
pub(crate) fn pull_all() -> Result<(), CUresult> {
    pull_after(None, 0, HelperUse::Welcome)
}

/// Pulls the GPU's writes into blocks that launches named, before a function of the program, which the GPU waits for.
pub(crate) fn pull_for_function() -> Result<(), CUresult> {
    pull_after(None, 0, HelperUse::Forbidden)
}

/// Pulls after a synchronization with a stream of the current context, which has done everything sent up to `epoch`. Blocks
/// that only its launches have named then need no more pulls.
pub(crate) fn pull_of(stream: u32, epoch: u64) -> Result<(), CUresult> {
    let user = (!stream::is_of_thread(stream)).then(stack::wire).and_then(Result::ok).map(|context| (context, stream));
    pull_after(user, epoch, HelperUse::Welcome)
}

fn pull_after(done: Option<(u32, u32)>, epoch: u64, help: HelperUse) -> Result<(), CUresult> {
    let Some((shim, pinned)) = unshared()? else { return Ok(()) };
    if let Some(stream) = done {
        registry::upcalls().passed(stream, epoch);
    }
    with_copies(shim, || {
        let mut copies = pinned.copies();
        let at_work = copies.iter_mut().filter(|(_, copy)| copy.is_at_work());
        let parts: Vec<_> = at_work.flat_map(|(start, copy)| PulledRange::all(*start, &mut copy.contents)).collect();
        if parts.is_empty() {
            return Ok(());
        }
        pinned_sync::each(shim, parts, help, &merge)?;
        for copy in copies.values_mut().filter(|copy| copy.is_at_work()) {
            let is_done = done.is_some() && copy.user == done && copy.pending == 0 && copy.used_at <= epoch;
            copy.is_used = !is_done;
        }
        Ok(())
    })
}

/// Notes that the GPU is done with everything sent up to `epoch`: blocks that no later launch named need no more pulls.
pub(crate) fn completed(epoch: u64) -> Result<(), CUresult> {
    host_work::operations().completed(epoch);
    registry::upcalls().completed(epoch);
    let Some((_, pinned)) = unshared()? else { return Ok(()) };
    let is_done = |copy: &&mut PageCopy| copy.pending == 0 && copy.used_at <= epoch;
    pinned.copies().values_mut().filter(is_done).for_each(|copy| copy.is_used = false);
    Ok(())
}

/// Writes the GPU's changes to pages since their contents were last known.
fn merge(range: &mut PulledRange<'_>, data: &[u8]) {
    for run in changed_runs(range.bytes, data) {
        // SAFETY: inside the block, which is mapped, or memory that the program registered for the GPU to write and must
        // keep until then; only bytes that the GPU has written are touched.
        unsafe {
            let target = std::ptr::with_exposed_provenance_mut::<u8>(range.address as usize + run.start);
            target.copy_from_nonoverlapping(data[run.clone()].as_ptr(), run.len());
        }
        range.bytes[run.clone()].copy_from_slice(&data[run]);
    }
}

/// Returns the runs of bytes in which `new` differs from `old`. Most pages are unchanged, and are compared quickly.
fn changed_runs(old: &[u8], new: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let pages = old.chunks(PAGE_BYTES as usize).zip(new.chunks(PAGE_BYTES as usize)).enumerate();
    for (page, (old, new)) in pages.filter(|(_, (old, new))| old != new) {
        let changed = old.iter().zip(new).enumerate().filter(|(_, (old, new))| old != new);
        for at in changed.map(|(at, _)| page * PAGE_BYTES as usize + at) {
            match runs.last_mut() {
                Some(last) if last.end == at => last.end += 1,
                _ => runs.push(at..at + 1),
            }
        }
    }
    runs
}

/// Returns whether there is memory that only the program reaches, while streams may still call functions of the program.
pub(crate) fn may_be_behind_functions() -> Result<bool, CUresult> {
    Ok(unshared()?.is_some() && registry::may_call_back())
}

/// Returns whether the program has pinned or registered the memory at an address.
pub(crate) fn is_pinned(address: u64) -> Result<bool, CUresult> {
    Ok(shim()?.regions.find(address).is_some_and(|region| region.is_host()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_that_changed_are_pushed() {
        let old = vec![0u8; 5 * 4096];
        let mut new = old.clone();
        for at in [0, 9, 4096 + 7, 4 * 4096 + 4095] {
            new[at] = 1;
        }
        let whole = |ranges: &[Range<usize>]| ranges.iter().cloned().map(PageChange::Whole).collect::<Vec<_>>();
        let last = 5 * 4096 - 4..5 * 4096;
        assert_eq!(changes(&old, &new), whole(&[0..4, 8..12, 4100..4104, last.clone()]));
        new[2 * 4096..3 * 4096].fill(3);
        for at in (4096..2 * 4096).step_by(64) {
            new[at] = 2;
        }
        let mut bytes = [1_u8, 0].repeat(64);
        bytes[0] = 3;
        bytes.extend_from_slice(&new[4096..4104]);
        (1..64).for_each(|word| bytes.extend_from_slice(&new[4096 + word * 64..][..4]));
        let torn = PageChange::Words(4096, bytes);
        assert_eq!(changes(&old, &new), [whole(&[0..4, 8..12, 2 * 4096..3 * 4096, last]), vec![torn]].concat());
        assert!(changes(&old, &old).is_empty());
        assert_eq!(changes(&[0; 13], &[[0; 8].as_slice(), &[1; 5]].concat()), [PageChange::Whole(8..13)]);
    }

    #[test]
    fn blocks_that_share_a_page_share_its_copy() {
        let copy = |pages: usize| PageCopy::new(1, vec![0; pages * PAGE_BYTES as usize]);
        let mut copies = BTreeMap::from([(0x2000, copy(1)), (0x5000, copy(2))]);
        assert_eq!(gaps(&copies, &(0x1000..0x8000)), [0x7000..0x8000, 0x3000..0x5000, 0x1000..0x2000]);
        assert_eq!(gaps(&copies, &(0x5000..0x7000)), []);
        assert_eq!(overlapping(&copies, &(0x2000..0x6000)), [0x5000, 0x2000]);
        copies.clear();
        assert_eq!(gaps(&copies, &(0x1000..0x2000)), vec![0x1000..0x2000; 1]);
    }

    #[test]
    fn a_block_has_one_user_until_another_stream_names_it_too() {
        let mut copy = PageCopy::new(1, Vec::new());
        copy.name(Some((1, 5)));
        copy.name(Some((1, 5)));
        assert_eq!((copy.user, copy.pending), (Some((1, 5)), 2));
        copy.name(Some((1, 6)));
        assert_eq!(copy.user, None);
        copy.name(Some((1, 6)));
        assert_eq!(copy.user, None);
        copy.is_used = false;
        copy.name(Some((1, 6)));
        assert_eq!(copy.user, Some((1, 6)));
    }

    #[test]
    fn a_large_change_is_pushed_in_pieces() {
        let (old, new) = (vec![0u8; 3 * PUSH_MESSAGE_BYTES / 2], vec![1u8; 3 * PUSH_MESSAGE_BYTES / 2]);
        assert_eq!(
            changes(&old, &new),
            [
                PageChange::Whole(0..PUSH_MESSAGE_BYTES),
                PageChange::Whole(PUSH_MESSAGE_BYTES..3 * PUSH_MESSAGE_BYTES / 2)
            ]
        );
    }

    #[test]
    fn only_bytes_that_the_gpu_wrote_come_back() {
        assert_eq!(changed_runs(b"abcdef", b"aXYdeZ"), [1..3, 5..6]);
        let old = vec![0_u8; 3 * 4096 + 5];
        let mut new = old.clone();
        new[4094..4098].fill(1);
        new[3 * 4096 + 4] = 1;
        assert_eq!(changed_runs(&old, &new), [4094..4098, 3 * 4096 + 4..3 * 4096 + 5]);
        assert!(changed_runs(&old, &old).is_empty());
    }
}
