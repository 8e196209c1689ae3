//! Fills of device memory.

#![expect(unsafe_code, reason = "calls the driver")]

use katydid_cuda_sys::{CUresult, CUstream};
use katydid_driver::Driver;
use katydid_wire::frame::FrameHead;
use katydid_wire::message::kdFill;

use crate::handlers::EnqueueResult;
use crate::state::Session;

/// Fills `width` elements in each of `height` rows that are `pitch` bytes apart.
pub(crate) fn kdFill(session: &mut Session, head: &FrameHead, message: kdFill) -> EnqueueResult {
    session.address_check.check(message.destination, span(&message).ok_or(CUresult::ERROR_INVALID_VALUE)?)?;
    let stream: CUstream = session.handle(head, message.stream)?;
    Ok(if message.height == 1 {
        row(session.driver(), &message, stream)
    } else {
        rows(session.driver(), &message, stream)
    })
}

/// Returns the bytes from the first element to the end of the last; none on overflow.
fn span(message: &kdFill) -> Option<u64> {
    let row = message.width.checked_mul(u64::from(message.elementSize))?;
    let before = message.pitch.checked_mul(message.height.saturating_sub(1))?;
    before.checked_add(row)
}

fn row(driver: &Driver, message: &kdFill, stream: CUstream) -> CUresult {
    let (to, value, width) = (message.destination, message.value, message.width as usize);
    match message.elementSize {
        // SAFETY: the range belongs to the session, by the check above; what is not mapped the driver refuses.
        1 => unsafe { driver.cuMemsetD8Async(to, value as u8, width, stream) },
        // SAFETY: as above.
        2 => unsafe { driver.cuMemsetD16Async(to, value as u16, width, stream) },
        // SAFETY: as above.
        4 => unsafe { driver.cuMemsetD32Async(to, value, width, stream) },
        _ => CUresult::ERROR_INVALID_VALUE,
    }
}

fn rows(driver: &Driver, message: &kdFill, stream: CUstream) -> CUresult {
    let (to, pitch, value) = (message.destination, message.pitch as usize, message.value);
    let (width, height) = (message.width as usize, message.height as usize);
    match message.elementSize {
        // SAFETY: as in `row`.
        1 => unsafe { driver.cuMemsetD2D8Async(to, pitch, value as u8, width, height, stream) },
        // SAFETY: as in `row`.
        2 => unsafe { driver.cuMemsetD2D16Async(to, pitch, value as u16, width, height, stream) },
        // SAFETY: as in `row`.
        4 => unsafe { driver.cuMemsetD2D32Async(to, pitch, value, width, height, stream) },
        _ => CUresult::ERROR_INVALID_VALUE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(pitch: u64, element: u32, width: u64, height: u64) -> kdFill {
        kdFill { destination: 0, pitch, value: 0, elementSize: element, width, height, stream: 0 }
    }

    #[test]
    fn the_span_ends_with_the_last_element() {
        assert_eq!(span(&fill(0, 4, 10, 1)), Some(40));
        assert_eq!(span(&fill(512, 4, 10, 3)), Some(1064));
        assert_eq!(span(&fill(512, 4, 10, 0)), Some(40));
    }

    #[test]
    fn overflowing_span_is_refused() {
        for fill in [fill(0, 4, u64::MAX, 1), fill(u64::MAX, 1, 1, 3), fill(u64::MAX, 1, 1, 2)] {
            assert_eq!(span(&fill), None);
        }
    }
}
