//! The state of a session as bytes: what a checkpoint saves of it besides contents of memory.
//!
//! ```text
//! magic       8 bytes "kdclstat"         version  u32
//! platforms   count u32, then name; devices: count u32, then name, driver's version, type u64, address bits u32,
//!             whether it is used u8
//! pending     deferred i32, calls u64, frames u64, printed: two texts of bytes
//!             uploads: count u32, then thread u32, total u64, bytes      blobs: count u32, then thread u32, bytes
//!             the waiting upcall thread: u8, then thread u32, sequence u64
//!             callbacks that are due: count u32, then token u64, status i32, text
//! names       count u32, then name and layout u64 of each message
//! records     count u32, then those of `katydid_session_core`
//! events      count u32, then id u32, context u32, status i32, times: count u32, then parameter u32, value u64
//! callbacks   count u32, then event u32, state i32, token u64
//! mapped      count u32, then address u64, size u64, flags u64: shared virtual memory that is the host's
//! reads       count u32, then number u64, state i32, bytes u64, address of shared virtual memory u64 or 0
//! answers     count u32, then object u32, parameter u32, value: what the program knows of platforms and devices
//! groups      count u32, then kernel u32, queue u32, most items of a group and in each dimension 4 u64
//! ```
//!
//! Numbers are little-endian; bytes and texts have a `u32` length in front. A reader trusts nothing: each item of a count must
//! have its input, and replayed frames pass the usual checks.

use std::collections::BTreeMap;

use katydid_session_core::{
    Api as _, JournalRecord, MessageTable, SavedProgress, StateError, StateFormat, UnfinishedUploads, put_all,
    put_uploads, read_unread_answers, take_all, take_uploads, upcall_head, write_unread_answers,
};
use katydid_wire::codec::{Field as _, Message as _, Reader};
use katydid_wire::frame::FrameHead;
use katydid_wire::opencl::message::kdclUpcallNext;

use crate::calls::callbacks::Callback;
use crate::calls::session_shared::OpenCl;
use crate::calls::upcalls::PendingCallback;

/// The magic number of the format, and the version that this build writes.
const OPENCL_STATE_FORMAT: StateFormat = StateFormat { magic: *b"kdclstat", version: 1 };

/// A platform as the program found it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Platform {
    pub(crate) name: String,
    pub(crate) devices: Vec<Device>,
}

/// A device as the program found it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) driver: String,
    /// The type of the device, as `CL_DEVICE_TYPE` has its bits.
    pub(crate) kind: u64,
    /// `CL_DEVICE_ADDRESS_BITS` of the device: 32 or 64.
    pub(crate) bits: u32,
    /// Whether a context has it, or a part of it.
    pub(crate) is_used: bool,
}

/// An event: of a command that has ended, or a user event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) id: u32,
    pub(crate) context: u32,
    /// Above 0: a user event that is not set yet.
    pub(crate) status: i32,
    /// Times in nanoseconds, by `CL_PROFILING_COMMAND_…`.
    pub(crate) times: BTreeMap<u32, u64>,
}

/// Shared virtual memory that is mapped for the host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SvmMapping {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) flags: u64,
}

/// A read whose data the program has not fetched. The data is saved as contents, or lies in shared virtual memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PendingRead {
    pub(crate) number: u64,
    pub(crate) status: i32,
    pub(crate) bytes: u64,
    /// 0: the read has its own memory.
    pub(crate) address: u64,
}

/// Everything that the saved state of a session holds.
#[derive(Debug, Default)]
pub(crate) struct JournalState {
    pub(crate) platforms: Vec<Platform>,
    pub(crate) progress: SavedProgress,
    pub(crate) uploads: UnfinishedUploads,
    pub(crate) blobs: Vec<(u32, Vec<u8>)>,
    /// The frame in which the program's upcall thread waits.
    pub(crate) upcall: Option<FrameHead>,
    pub(crate) pending: Vec<PendingCallback>,
    pub(crate) records: Vec<JournalRecord>,
    pub(crate) events: Vec<Event>,
    pub(crate) callbacks: Vec<Callback>,
    pub(crate) mapped: Vec<SvmMapping>,
    pub(crate) pending_reads: Vec<PendingRead>,
    pub(crate) device_answers: BTreeMap<(u32, u32), Vec<u8>>,
    pub(crate) groups: Vec<(u32, u32, [u64; 4])>,
}

impl Platform {
    fn put(&self, out: &mut Vec<u8>) {
        self.name.put(out);
        put_all(out, self.devices.iter(), |device, out| {
            device.name.put(out);
            device.driver.put(out);
            device.kind.put(out);
            device.bits.put(out);
            u8::from(device.is_used).put(out);
        });
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, StateError> {
        let name = reader.take()?;
        let devices = take_all(reader, |reader| {
            let (name, driver, kind, bits) = (reader.take()?, reader.take()?, reader.take()?, reader.take()?);
            Ok(Device { name, driver, kind, bits, is_used: reader.take::<u8>()? != 0 })
        })?;
        Ok(Self { name, devices })
    }
}

impl JournalState {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (mut names, mut records) = (MessageTable::new(OpenCl::MESSAGES), Vec::new());
        put_all(&mut records, self.records.iter(), |record, out| record.put(&mut names, out));
        let mut out = OPENCL_STATE_FORMAT.begin();
        put_all(&mut out, self.platforms.iter(), Platform::put);
        self.put_pending(&mut out);
        names.put(&mut out);
        out.append(&mut records);
        put_all(&mut out, self.events.iter(), |event, out| {
            event.id.put(out);
            event.context.put(out);
            event.status.put(out);
            put_all(out, event.times.iter(), |(parameter, value), out| {
                parameter.put(out);
                value.put(out);
            });
        });
        put_all(&mut out, self.callbacks.iter(), |callback, out| {
            callback.event.put(out);
            callback.state.put(out);
            callback.token.put(out);
        });
        put_all(&mut out, self.mapped.iter(), |mapped, out| {
            [mapped.address, mapped.size, mapped.flags].iter().for_each(|number| number.put(out));
        });
        put_all(&mut out, self.pending_reads.iter(), |pending_read, out| {
            pending_read.number.put(out);
            pending_read.status.put(out);
            pending_read.bytes.put(out);
            pending_read.address.put(out);
        });
        put_all(&mut out, self.device_answers.iter(), |((object, parameter), value), out| {
            object.put(out);
            parameter.put(out);
            value.put(out);
        });
        put_all(&mut out, self.groups.iter(), |(kernel, queue, sizes), out| {
            kernel.put(out);
            queue.put(out);
            sizes.iter().for_each(|size| size.put(out));
        });
        out
    }

    fn put_pending(&self, out: &mut Vec<u8>) {
        self.progress.put(out);
        put_uploads(&self.uploads, out);
        write_unread_answers(&self.blobs, out);
        u8::from(self.upcall.is_some()).put(out);
        if let Some(head) = &self.upcall {
            head.thread.put(out);
            head.sequence.put(out);
        }
        put_all(out, self.pending.iter(), |callback, out| {
            callback.token.put(out);
            callback.status.put(out);
            callback.text.put(out);
        });
    }

    /// # Errors
    ///
    /// [`StateError`].
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, StateError> {
        let (mut reader, _) = OPENCL_STATE_FORMAT.open(bytes)?;
        let mut state = Self { platforms: take_all(&mut reader, Platform::take)?, ..Self::default() };
        state.take_pending(&mut reader)?;
        let names = MessageTable::take(OpenCl::MESSAGES, &mut reader)?;
        state.records = take_all(&mut reader, |reader| JournalRecord::take(&names, reader))?;
        state.events = take_all(&mut reader, |reader| {
            let (id, context, status) = (reader.take()?, reader.take()?, reader.take()?);
            let times = take_all(reader, |reader| Ok((reader.take()?, reader.take()?)))?.into_iter().collect();
            Ok(Event { id, context, status, times })
        })?;
        state.callbacks = take_all(&mut reader, |reader| {
            Ok(Callback { event: reader.take()?, state: reader.take()?, token: reader.take()? })
        })?;
        state.mapped = take_all(&mut reader, |reader| {
            Ok(SvmMapping { address: reader.take()?, size: reader.take()?, flags: reader.take()? })
        })?;
        state.pending_reads = take_all(&mut reader, |reader| {
            let (number, status) = (reader.take()?, reader.take()?);
            Ok(PendingRead { number, status, bytes: reader.take()?, address: reader.take()? })
        })?;
        let answers = take_all(&mut reader, |reader| Ok(((reader.take()?, reader.take()?), reader.take()?)))?;
        state.device_answers = answers.into_iter().collect();
        state.groups = take_all(&mut reader, |reader| {
            let (kernel, queue) = (reader.take()?, reader.take()?);
            Ok((kernel, queue, [reader.take()?, reader.take()?, reader.take()?, reader.take()?]))
        })?;
        Ok(reader.finish(state)?)
    }

    fn take_pending(&mut self, reader: &mut Reader<'_>) -> Result<(), StateError> {
        self.progress = SavedProgress::take(reader)?;
        (self.uploads, self.blobs) = (take_uploads(reader)?, read_unread_answers(reader)?);
        if reader.take::<u8>()? != 0 {
            self.upcall = Some(upcall_head(kdclUpcallNext::OPCODE, reader.take()?, 0, reader.take()?)?);
        }
        self.pending = take_all(reader, |reader| {
            Ok(PendingCallback { token: reader.take()?, status: reader.take()?, text: reader.take()? })
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use katydid_session_core::{PrintedText, ReplayStep};
    use katydid_wire::opencl::message::kdclProgram;

    use super::*;

    fn full() -> JournalState {
        let device = Device { name: "cpu".into(), driver: "3.1".into(), kind: 2, bits: 64, is_used: true };
        let record = JournalRecord {
            step: ReplayStep::Frame,
            order: 7,
            thread: 1,
            context: 0,
            opcode: kdclProgram::OPCODE,
            image: None,
            steps: Some(Arc::new(b"kernel".to_vec())),
            payload: vec![1, 2, 3],
            answer: Some(vec![0; 4]),
        };
        JournalState {
            platforms: vec![Platform { name: "PoCL".into(), devices: vec![device] }],
            progress: SavedProgress {
                deferred: (-5_i32).cast_unsigned(),
                calls: 9,
                frames: 12,
                printed: PrintedText { stdout: b"out".to_vec(), stderr: Vec::new() },
            },
            uploads: vec![(1, 10, vec![4])],
            blobs: vec![(2, vec![5, 6])],
            upcall: Some(upcall_head(kdclUpcallNext::OPCODE, 3, 0, 11).unwrap()),
            pending: vec![PendingCallback { token: 4, status: -1, text: b"x".to_vec() }],
            records: vec![record],
            events: vec![Event { id: 1, context: 2, status: 0, times: BTreeMap::from([(0x1280, 77)]) }],
            callbacks: vec![Callback { event: 1, state: 0, token: 8 }],
            mapped: vec![SvmMapping { address: 4096, size: 10, flags: 1 }],
            pending_reads: vec![PendingRead { number: 3, status: 0, bytes: 9, address: 0 }],
            device_answers: BTreeMap::from([((5, 0x1004), vec![0, 1])]),
            groups: vec![(1, 2, [64, 8, 8, 1])],
        }
    }

    #[test]
    fn a_state_comes_back_as_it_was() {
        let bytes = full().encode();
        let back = JournalState::decode(&bytes).unwrap();
        assert_eq!(back.encode(), bytes);
        assert_eq!((back.records, back.events, back.callbacks), (full().records, full().events, full().callbacks));
    }

    #[test]
    fn cut_and_changed_states_are_refused_or_read_but_never_a_panic() {
        let bytes = full().encode();
        for length in 0..bytes.len() {
            assert!(JournalState::decode(&bytes[..length]).is_err(), "{length}");
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0xff;
            let _ = JournalState::decode(&changed);
        }
        assert_eq!(JournalState::decode(b"something else").unwrap_err(), StateError::Magic);
    }
}
