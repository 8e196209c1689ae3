//! Stretches of memory that one lane moves at once, for asynchronous copies and the driver's own functions.

#![expect(unsafe_code, reason = "copies memory that was checked just before")]

use super::lane_address::LaneAddress;
use super::raw;
use crate::engine::fault::FaultKind;
use crate::engine::machine::Machine;
use crate::host::Host;
use crate::types::Space;
use crate::window;

/// Number of bytes that are looked up at once where a stretch does not lie in one range.
const STRETCH_PIECE_BYTES: u64 = 16;

/// Start of a stretch: its space and address.
pub(crate) type Start = (Space, u64);

/// Returns how many bytes from `address` on, at most `size`, lie in one range that allows the access; zero bytes are a fault.
fn plain(host: &dyn Host, address: u64, size: u64, write: bool) -> Result<u64, FaultKind> {
    let range = host.range_of(address).filter(|range| (range.start..range.end).contains(&address));
    let allowed = range.filter(|range| range.writable || !write);
    allowed.map(|range| size.min(range.end - address)).ok_or(FaultKind::IllegalAddress(address))
}

/// Copies `size` bytes of device memory, outside of any thread of a grid.
pub(crate) fn copy(host: &dyn Host, to: u64, from: u64, size: u64) -> Result<(), FaultKind> {
    let mut done = 0;
    while done < size {
        let (to, from) = (to.wrapping_add(done), from.wrapping_add(done));
        let piece = plain(host, to, size - done, true)?.min(plain(host, from, size - done, false)?);
        // SAFETY: both pieces lie in ranges of the host, which stay for the launch.
        unsafe { raw::copy_bytes(to, from, piece) };
        done += piece;
    }
    Ok(())
}

/// Fills `size` bytes of device memory.
pub(crate) fn fill(host: &dyn Host, to: u64, byte: u8, size: u64) -> Result<(), FaultKind> {
    let mut done = 0;
    while done < size {
        let to = to.wrapping_add(done);
        let piece = plain(host, to, size - done, true)?;
        // SAFETY: the piece lies in a range of the host, which stays for the launch.
        (0..piece).for_each(|at| unsafe { raw::store(to + at, byte) });
        done += piece;
    }
    Ok(())
}

impl Machine<'_> {
    /// Returns the address in this process of the `size` bytes at `start`.
    fn stretch(&mut self, (space, address): Start, size: u64, write: bool) -> Result<u64, FaultKind> {
        let illegal = FaultKind::IllegalAddress(address);
        let shared = match space {
            Space::Shared => Some(address),
            Space::Generic => window::offset_in(window::SHARED_ADDRESS, address),
            Space::Global | Space::Local => None,
        };
        if let Some(offset) = shared {
            return match self.shared_address(offset, size) {
                Some(LaneAddress::Host(at)) => Ok(at),
                _ => Err(illegal),
            };
        }
        let plain = space != Space::Local && address < window::SHARED_ADDRESS;
        let allowed = plain && self.ranges.allow(self.env.host, self.pc, address, size, write);
        if allowed { Ok(address) } else { Err(illegal) }
    }

    /// Copies `size` bytes. The stretches must not overlap, unless the caller accepts any content of the overlap.
    pub(crate) fn copy_stretch(&mut self, to: Start, from: Start, size: u64) -> Result<(), FaultKind> {
        if let (Ok(to), Ok(from)) = (self.stretch(to, size, true), self.stretch(from, size, false)) {
            // SAFETY: both stretches were checked; accesses inside are volatile.
            unsafe { raw::copy_bytes(to, from, size) };
            return Ok(());
        }
        // Two allocations may follow each other, and a fault must name its address.
        let mut done = 0;
        while done < size {
            let piece = STRETCH_PIECE_BYTES.min(size - done);
            let to = self.stretch((to.0, to.1.wrapping_add(done)), piece, true)?;
            let from = self.stretch((from.0, from.1.wrapping_add(done)), piece, false)?;
            // SAFETY: both pieces were checked.
            unsafe { raw::copy_bytes(to, from, piece) };
            done += piece;
        }
        Ok(())
    }

    /// Sets `size` bytes to zero.
    pub(crate) fn clear_stretch(&mut self, to: Start, size: u64) -> Result<(), FaultKind> {
        let to = self.stretch(to, size, true)?;
        for byte in 0..size {
            // SAFETY: the stretch was checked.
            unsafe { raw::store(to + byte, 0_u8) };
        }
        Ok(())
    }
}
