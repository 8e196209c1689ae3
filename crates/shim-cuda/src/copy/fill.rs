//! Fills of device memory: checked here, queued as one message.
#![expect(unsafe_code, reason = "fills memory of the program where the worker cannot")]

use katydid_cuda_sys::{CUDA_MEMSET_NODE_PARAMS, CUdeviceptr, CUresult, CUstream};
use katydid_wire::message::kdFill;

use crate::copy::pattern::CheckedMemset;
use crate::copy::side::{self, CopySide};
use crate::graph::{capture, operation};
use crate::launch::backpressure;
use crate::process::session::shim;
use crate::sync::{stream, wait};

fn run(fill: CheckedMemset, stream: CUstream) -> Result<(), CUresult> {
    let context = stream::asked_in(stream)?;
    let is_given =
        || -> Result<bool, CUresult> { Ok(capture::fill(stream, &fill.0)? || operation::fill(stream, &fill.0)?) };
    if fill.0.width == 0 || fill.0.height == 0 || is_given()? {
        return Ok(());
    }
    backpressure::take_slot(stream)?;
    let stream = stream::wire(stream)?;
    match side::of_fill(&fill)? {
        CopySide::Gpu(destination) | CopySide::Shared(destination) => {
            let CUDA_MEMSET_NODE_PARAMS { value, elementSize, .. } = fill.0;
            let [pitch, width, height] = [fill.0.pitch, fill.0.width, fill.0.height].map(|number| number as u64);
            let message = kdFill { destination, pitch, value, elementSize, width, height, stream };
            shim()?.session.enqueue(context, &message)
        }
        CopySide::Own(_) => {
            wait::synchronize_all_before(context, stream)?;
            // SAFETY: `locate` found all of it in one block of the pinned arena, which is mapped.
            unsafe { fill.write() };
            Ok(())
        }
    }
}

macro_rules! fills {
    ($($sync:ident $asynchronous:ident $sync_2d:ident $asynchronous_2d:ident $value:ident $element:literal)*) => {$(
        #[doc = concat!("Elements of ", $element, " bytes, in the default stream.")]
        pub(crate) fn $sync(target: CUdeviceptr, value: $value, count: usize) -> Result<(), CUresult> {
            wait_if_host(target, CheckedMemset::row(target, u32::from(value), $element, count))
        }

        #[doc = concat!("Elements of ", $element, " bytes.")]
        pub(crate) fn $asynchronous(
            target: CUdeviceptr,
            value: $value,
            count: usize,
            stream: CUstream,
        ) -> Result<(), CUresult> {
            run(CheckedMemset::row(target, u32::from(value), $element, count), stream)
        }

        #[doc = concat!("Rows of elements of ", $element, " bytes, in the default stream.")]
        pub(crate) fn $sync_2d(
            target: CUdeviceptr,
            pitch: usize,
            value: $value,
            width: usize,
            height: usize,
        ) -> Result<(), CUresult> {
            wait_if_host(target, CheckedMemset::row(target, u32::from(value), $element, width).rows(pitch, height))
        }

        #[doc = concat!("Rows of elements of ", $element, " bytes.")]
        pub(crate) fn $asynchronous_2d(
            target: CUdeviceptr,
            pitch: usize,
            value: $value,
            width: usize,
            height: usize,
            stream: CUstream,
        ) -> Result<(), CUresult> {
            run(CheckedMemset::row(target, u32::from(value), $element, width).rows(pitch, height), stream)
        }
    )*};
}

fills! {
    bytes bytes_async bytes_2d bytes_2d_async u8 1
    shorts shorts_async shorts_2d shorts_2d_async u16 2
    words words_async words_2d words_2d_async u32 4
}

/// Runs a fill, and waits for it on pinned memory, which the program can read at once; device memory needs no wait.
fn wait_if_host(target: u64, fill: CheckedMemset) -> Result<(), CUresult> {
    run(fill, CUstream::NULL)?;
    let shared = shim()?.regions.find(target).is_some_and(|region| region.is_host());
    if shared { wait::synchronize_wire(stream::default_wire()) } else { Ok(()) }
}
