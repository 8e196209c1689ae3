//! Pulls the worker's own pages of host memory back to the program.
//!
//! A request names as many ranges as a reply has room for. Several requests run at a time, each by a thread of its own, as
//! for large copies.

use std::sync::{Mutex, PoisonError};

use katydid_client::threads::Helpers;
use katydid_cuda_sys::CUresult;
use katydid_transport::{holds_lock, with_lock_held};
use katydid_wire::codec::Message;
use katydid_wire::message::kdHostPull;
use katydid_wire::ranges;

use crate::context::stack;
use crate::copy::transfer::{BULK_FRAME_BYTES, askers};
use crate::process::session::Shim;

/// A range, and the program's bytes for it.
pub(crate) struct PulledRange<'a> {
    pub(crate) address: u64,
    pub(crate) bytes: &'a mut [u8],
}

impl<'a> PulledRange<'a> {
    /// Splits a range into pieces, none larger than a reply.
    pub(crate) fn all(start: u64, bytes: &'a mut [u8]) -> impl Iterator<Item = Self> {
        let step = move |(index, bytes)| Self { address: start + index as u64 * BULK_FRAME_BYTES, bytes };
        bytes.chunks_mut(BULK_FRAME_BYTES as usize).enumerate().map(step)
    }
}

/// Whether other threads may help.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum HelperUse {
    Welcome,
    /// The GPU waits for the calling thread: a helper would wait at the gate, which the calling thread may pass.
    Forbidden,
}

/// Runs `step` with each range and the worker's current bytes of it, of the same length, in any order.
pub(crate) fn each(
    shim: &Shim,
    parts: Vec<PulledRange<'_>>,
    help: HelperUse,
    step: &(dyn Fn(&mut PulledRange<'_>, &[u8]) + Sync),
) -> Result<(), CUresult> {
    let size = parts.iter().map(|part| part.bytes.len() as u64).sum();
    let helpers = if help == HelperUse::Welcome { Helpers::worth(size, askers(shim, size)) } else { 0 };
    let (context, groups, holds_lock) = (stack::wire().unwrap_or(0), grouped(parts), holds_lock());
    let take = |index: u64| {
        let Some(group) = groups.get(index as usize) else { return Ok(()) };
        // Each group belongs to one thread.
        let mut group = group.lock().unwrap_or_else(PoisonError::into_inner);
        with_lock_held(holds_lock, || fetch(shim, context, &mut group, step))
    };
    Helpers::take(helpers).run(groups.len() as u64, CUresult::ERROR_UNKNOWN, &take)
}

/// Returns the worker's bytes of a range.
pub(crate) fn contents(shim: &Shim, start: u64, size: u64) -> Result<Vec<u8>, CUresult> {
    let mut bytes = vec![0; size as usize];
    let parts = PulledRange::all(start, &mut bytes).collect();
    each(shim, parts, HelperUse::Welcome, &|part, data| part.bytes.copy_from_slice(data))?;
    Ok(bytes)
}

/// Ranges of one request.
type PullGroup<'a> = Vec<PulledRange<'a>>;

/// Groups ranges, each group of at most as many bytes as a reply has room for.
fn grouped(parts: Vec<PulledRange<'_>>) -> Vec<Mutex<PullGroup<'_>>> {
    let mut groups: Vec<PullGroup<'_>> = Vec::new();
    let mut budget = 0;
    for part in parts {
        let size = part.bytes.len();
        match groups.last_mut() {
            Some(last) if size <= budget => last.push(part),
            _ => {
                budget = BULK_FRAME_BYTES as usize;
                groups.push(vec![part]);
            }
        }
        budget = budget.saturating_sub(size);
    }
    groups.into_iter().map(Mutex::new).collect()
}

fn fetch(
    shim: &Shim,
    context: u32,
    group: &mut [PulledRange<'_>],
    step: &(dyn Fn(&mut PulledRange<'_>, &[u8]) + Sync),
) -> Result<(), CUresult> {
    let host_ranges: Vec<_> = group.iter().map(|part| (part.address, part.bytes.len() as u32)).collect();
    let data = shim.session.ask(context, &kdHostPull { ranges: &ranges::encode(&host_ranges) })?.data;
    let mut remaining = &data[..];
    for part in group {
        let (own, tail) =
            remaining.split_at_checked(part.bytes.len()).ok_or_else(|| shim.session.broken(kdHostPull::NAME))?;
        step(part, own);
        remaining = tail;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the addresses of the ranges of each group.
    fn addresses(parts: Vec<PulledRange<'_>>) -> Vec<Vec<u64>> {
        let of = |group: Mutex<PullGroup<'_>>| group.into_inner().unwrap().iter().map(|part| part.address).collect();
        grouped(parts).into_iter().map(of).collect()
    }

    #[test]
    fn small_blocks_travel_together_and_large_ones_in_several() {
        let most = BULK_FRAME_BYTES as usize;
        let blocks = [(1, 4096), (2, most - 4096), (3, 1), (4, 2 * most + 9), (1 << 40, most)];
        let mut memory = blocks.map(|(_, size)| vec![0; size]);
        let parts = blocks.iter().zip(&mut memory).flat_map(|((at, _), bytes)| PulledRange::all(*at, bytes)).collect();
        let last = 4 + 2 * BULK_FRAME_BYTES;
        assert_eq!(
            addresses(parts),
            [vec![1, 2], vec![3], vec![4], vec![4 + BULK_FRAME_BYTES], vec![last], vec![1 << 40]]
        );
        assert!(addresses(Vec::new()).is_empty());
    }
}
