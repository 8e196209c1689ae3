//! Conversion of grids' requests to the device runtime to bytes and back.
//!
//! A launch that is read must name a kernel of the program, with parameters of the right size. Everything else is checked when
//! the launch begins, as for a launch that device code has just made.

use super::bytes::{Reader, Writer};
use crate::device_runtime::jobs::{Child, DeferredWork, Level, RowArea, Runtime};
use crate::engine::machine::Code;
use crate::state::bytes::sound;
use crate::state::error::StateError;
use std::collections::VecDeque;

/// Smallest number of bytes of a job, of a parameter buffer, and of a level.
const MIN_JOB_BYTES: usize = 1 + 24;
const MIN_PRINT_RECORD_BYTES: usize = 8 + 36;
const MIN_LEVEL_BYTES: usize = 8;

/// Codes of the kinds of jobs.
mod kind {
    pub(super) const LAUNCH: u8 = 0;
    pub(super) const COPY: u8 = 1;
    pub(super) const FILL: u8 = 2;
}

/// Writes the requests of the running grid.
pub(super) fn write_runtime(writer: &mut Writer, runtime: &Runtime) {
    writer.count(runtime.buffers.len());
    for (address, child) in &runtime.buffers {
        writer.u64(*address);
        write_child(writer, child);
    }
    write_jobs(writer, &runtime.jobs);
    write_jobs(writer, &runtime.tails);
    writer.count(runtime.handles.len());
    runtime.handles.iter().for_each(|handle| writer.u64(*handle));
    writer.u64(runtime.last_handle);
    writer.count(runtime.texts.len());
    for (key, address) in &runtime.texts {
        writer.u32(*key);
        writer.u64(*address);
    }
}

/// Reads the output of `write_runtime`.
pub(super) fn read_runtime(reader: &mut Reader<'_>, code: &Code) -> Result<Runtime, StateError> {
    let mut runtime = Runtime::default();
    for _ in 0..reader.count(MIN_PRINT_RECORD_BYTES)? {
        let address = reader.u64()?;
        // The purpose of a buffer may still be unknown; it holds parameters only once it is launched.
        let child = read_child(reader)?;
        runtime.buffers.insert(address, child);
    }
    runtime.jobs = read_jobs(reader, code)?;
    runtime.tails = read_jobs(reader, code)?;
    for _ in 0..reader.count(8)? {
        runtime.handles.insert(reader.u64()?);
    }
    runtime.last_handle = reader.u64()?;
    for _ in 0..reader.count(12)? {
        let (key, address) = (reader.u32()?, reader.u64()?);
        runtime.texts.insert(key, address);
    }
    Ok(runtime)
}

/// Writes the jobs that earlier grids have left.
pub(super) fn write_levels(writer: &mut Writer, levels: &[Level]) {
    writer.count(levels.len());
    for level in levels {
        write_jobs(writer, &level.jobs);
        write_jobs(writer, &level.tails);
    }
}

/// Reads the output of `write_levels`.
pub(super) fn read_levels(reader: &mut Reader<'_>, code: &Code) -> Result<Vec<Level>, StateError> {
    let count = reader.count(MIN_LEVEL_BYTES)?;
    (0..count).map(|_| Ok(Level { jobs: read_jobs(reader, code)?, tails: read_jobs(reader, code)? })).collect()
}

fn write_jobs(writer: &mut Writer, jobs: &VecDeque<DeferredWork>) {
    writer.count(jobs.len());
    for job in jobs {
        match job {
            DeferredWork::Launch(child) => {
                writer.u8(kind::LAUNCH);
                write_child(writer, child);
            }
            DeferredWork::Copy { to, from, extent } => {
                writer.u8(kind::COPY);
                [to, from].into_iter().for_each(|area| write_area(writer, area));
                extent.iter().for_each(|size| writer.u64(*size));
            }
            DeferredWork::Fill { to, byte, extent } => {
                writer.u8(kind::FILL);
                write_area(writer, to);
                writer.u8(*byte);
                extent.iter().for_each(|size| writer.u64(*size));
            }
        }
    }
}

fn read_jobs(reader: &mut Reader<'_>, code: &Code) -> Result<VecDeque<DeferredWork>, StateError> {
    let count = reader.count(MIN_JOB_BYTES)?;
    (0..count).map(|_| read_job(reader, code)).collect()
}

fn read_job(reader: &mut Reader<'_>, code: &Code) -> Result<DeferredWork, StateError> {
    let triple =
        |reader: &mut Reader<'_>| -> Result<_, StateError> { Ok([reader.u64()?, reader.u64()?, reader.u64()?]) };
    Ok(match reader.u8()? {
        kind::LAUNCH => {
            let child = read_child(reader)?;
            let kernel = code.kernels.iter().find(|info| info.function == child.function);
            let complete = kernel.is_some_and(|info| child.params.len() == info.param_bytes as usize);
            sound(complete, "a launch by a kernel")?;
            DeferredWork::Launch(child)
        }
        kind::COPY => {
            let (to, from) = (read_area(reader)?, read_area(reader)?);
            DeferredWork::Copy { to, from, extent: triple(reader)? }
        }
        kind::FILL => {
            let (to, byte) = (read_area(reader)?, reader.u8()?);
            DeferredWork::Fill { to, byte, extent: triple(reader)? }
        }
        _ => return Err(StateError::Unsound { what: "a job of the device runtime" }),
    })
}

fn write_child(writer: &mut Writer, child: &Child) {
    writer.u32(child.function);
    writer.triple(child.grid);
    writer.triple(child.block);
    writer.u32(child.dynamic_shared);
    writer.bytes(&child.params);
}

fn read_child(reader: &mut Reader<'_>) -> Result<Child, StateError> {
    let (function, grid, block) = (reader.u32()?, reader.triple()?, reader.triple()?);
    Ok(Child { function, grid, block, dynamic_shared: reader.u32()?, params: reader.bytes()?.to_vec() })
}

fn write_area(writer: &mut Writer, area: &RowArea) {
    [area.address, area.pitch, area.slice].into_iter().for_each(|value| writer.u64(value));
}

fn read_area(reader: &mut Reader<'_>) -> Result<RowArea, StateError> {
    Ok(RowArea { address: reader.u64()?, pitch: reader.u64()?, slice: reader.u64()? })
}
