//! A session that a worker prepares from an outline while the program runs, and how it becomes the session of an image.
//!
//! ```text
//! outline   frames up to some moment ─▶ made                                        the program runs
//! image     these, but for what has ended or was set anew, and then others          the program is paused
//!           what has ended is released, the others are replayed
//! ```
//!
//! An object may have ended if nothing else is made of it, together with its settings and the settings that name it. Anything
//! else that only the outline has requires another worker.

use std::collections::HashSet;

use katydid_session_core::JournalRecord;
use katydid_wire::codec::Message as _;
use katydid_wire::opencl::message::{
    kdclBuffer, kdclCloneKernel, kdclDefaultQueue, kdclImage, kdclKernel, kdclPipe, kdclQueue, kdclSampler,
    kdclSetArgument, kdclSetExecInfo, kdclSpecialize, kdclSubBuffer,
};
use katydid_wire::opencl::value::OBJECT;

use super::state::Platform;
use crate::drivers::devices::Assignment;

/// Frames that set something, identified by their first two numbers.
const SETTING_OPCODES: [u16; 4] =
    [kdclSetArgument::OPCODE, kdclSetExecInfo::OPCODE, kdclDefaultQueue::OPCODE, kdclSpecialize::OPCODE];
/// Frames that make an object whose end changes nothing else. If the program learns of the end, another frame makes the object.
const CREATING_OPCODES: [u16; 8] = [
    kdclQueue::OPCODE,
    kdclSampler::OPCODE,
    kdclBuffer::OPCODE,
    kdclSubBuffer::OPCODE,
    kdclImage::OPCODE,
    kdclPipe::OPCODE,
    kdclKernel::OPCODE,
    kdclCloneKernel::OPCODE,
];

/// The devices on which objects were made.
#[derive(Debug)]
pub(super) struct DeviceBasis {
    pub(super) assignment: Assignment,
    /// The platforms of this machine.
    pub(super) platforms: Vec<Platform>,
}

impl DeviceBasis {
    /// Returns the first device that replaces a different one.
    pub(super) fn another(&self) -> Option<&str> {
        let mut devices = self.assignment.devices.iter().flatten();
        let ((platform, device), _) = devices.find(|(_, has_moved)| *has_moved)?;
        Some(&self.platforms[*platform].devices[*device].name)
    }
}

/// A session that was made, without contents.
#[derive(Debug)]
pub(crate) struct Rehearsal {
    pub(super) basis: DeviceBasis,
    /// The platforms as the program knows them.
    pub(super) platforms: Vec<Platform>,
    /// The frames that were replayed, in their order.
    pub(super) records: Vec<JournalRecord>,
}

/// The work that turns a rehearsal into the session of an image.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RemainingWork<'a> {
    /// Ids of objects that have ended, the latest first.
    pub(super) ended: Vec<u32>,
    /// Frames that were added since.
    pub(super) records: &'a [JournalRecord],
}

impl Rehearsal {
    /// Returns the remaining work for the frames of an image; `None` if they do not match.
    pub(super) fn remaining_work<'a>(
        &self,
        platforms: &[Platform],
        records: &'a [JournalRecord],
    ) -> Option<RemainingWork<'a>> {
        let is_old = |record: &JournalRecord| self.records.last().is_some_and(|last| record.order <= last.order);
        let (again, remaining) = records.split_at(records.partition_point(is_old));
        let mut again = again.iter().peekable();
        let (mut ended, mut unset) = (Vec::new(), Vec::new());
        for record in &self.records {
            match again.next_if_eq(&record) {
                Some(_) => {}
                None if SETTING_OPCODES.contains(&record.opcode) => unset.push(record),
                None => ended.push(object(record)?),
            }
        }
        ended.reverse();
        let set: HashSet<_> = records.iter().filter_map(setting).collect();
        let is_over = |record: &JournalRecord| {
            let is_of_ended = [first(record), value(record)].into_iter().flatten().any(|id| ended.contains(&id));
            is_of_ended || setting(record).is_some_and(|what| set.contains(&what))
        };
        let is_same = platforms == self.platforms && again.next().is_none() && unset.into_iter().all(is_over);
        is_same.then_some(RemainingWork { ended, records: remaining })
    }
}

/// Returns the object that a frame made, if nothing else is made of it.
fn object(record: &JournalRecord) -> Option<u32> {
    first(record).filter(|_| CREATING_OPCODES.contains(&record.opcode))
}

fn first(record: &JournalRecord) -> Option<u32> {
    record.payload.first_chunk().map(|id| u32::from_le_bytes(*id))
}

/// Returns what a frame sets, if it sets something.
fn setting(record: &JournalRecord) -> Option<(u16, [u8; 8])> {
    let what = record.payload.first_chunk().copied();
    what.map(|what| (record.opcode, what)).filter(|_| SETTING_OPCODES.contains(&record.opcode))
}

/// Returns the object that a frame sets as a value.
fn value(record: &JournalRecord) -> Option<u32> {
    match record.opcode {
        kdclSetArgument::OPCODE => {
            let message = kdclSetArgument::decode(&record.payload).ok().filter(|message| message.form == OBJECT)?;
            message.value.first_chunk().map(|id| u32::from_le_bytes(*id))
        }
        kdclDefaultQueue::OPCODE => kdclDefaultQueue::decode(&record.payload).ok().map(|message| message.queue),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use katydid_session_core::ReplayStep;
    use katydid_wire::opencl::message::{kdclMemoryCallback, kdclProgram};

    use super::*;
    use crate::journal::notes::encoded;

    const BUFFER: u16 = kdclBuffer::OPCODE;
    const KERNEL: u16 = kdclKernel::OPCODE;

    fn record(order: u64, opcode: u16, payload: Vec<u8>) -> JournalRecord {
        JournalRecord {
            step: ReplayStep::Frame,
            order,
            thread: 1,
            context: 0,
            opcode,
            image: None,
            steps: None,
            payload,
            answer: None,
        }
    }

    /// Returns a frame that makes the object of its number.
    fn creation_record(order: u64, opcode: u16) -> JournalRecord {
        record(order, opcode, (order as u32).to_le_bytes().to_vec())
    }

    /// Returns a frame that sets an argument of a kernel to an object.
    fn set(order: u64, kernel: u32, index: u32, object: u32) -> JournalRecord {
        let value = &object.to_le_bytes();
        record(
            order,
            kdclSetArgument::OPCODE,
            encoded(&kdclSetArgument { kernel, index, form: OBJECT, size: 8, value }),
        )
    }

    fn rehearsal(records: &[JournalRecord], platforms: Vec<Platform>) -> Rehearsal {
        let basis = DeviceBasis { assignment: Assignment::default(), platforms: Vec::new() };
        Rehearsal { basis, platforms, records: records.to_vec() }
    }

    /// Returns the ended objects and the added frames.
    fn remaining_work(records: &[JournalRecord], image: &[JournalRecord]) -> Option<(Vec<u32>, Vec<u64>)> {
        let rehearsal = rehearsal(records, Vec::new());
        let remaining = rehearsal.remaining_work(&[], image)?;
        Some((remaining.ended, remaining.records.iter().map(|record| record.order).collect()))
    }

    #[test]
    fn new_creation_records_remain_to_replay() {
        let first = [creation_record(0, BUFFER), creation_record(3, BUFFER)];
        assert_eq!(remaining_work(&[], &[]), Some((vec![], vec![])));
        assert_eq!(remaining_work(&[], &first), Some((vec![], vec![0, 3])));
        assert_eq!(remaining_work(&first, &first), Some((vec![], vec![])));
        let image = [first.to_vec(), vec![creation_record(4, KERNEL), set(5, 4, 0, 3)]].concat();
        assert_eq!(remaining_work(&first, &image), Some((vec![], vec![4, 5])));
    }

    #[test]
    fn changed_kernel_arguments_are_set_again() {
        let outline = [
            creation_record(1, BUFFER),
            creation_record(2, KERNEL),
            set(3, 2, 0, 1),
            set(4, 2, 1, 1),
            creation_record(5, BUFFER),
        ];
        let image = [
            creation_record(1, BUFFER),
            creation_record(2, KERNEL),
            set(4, 2, 1, 1),
            creation_record(5, BUFFER),
            set(6, 2, 0, 5),
        ];
        assert_eq!(remaining_work(&outline, &image), Some((vec![], vec![6])));
        let unset = [
            creation_record(1, BUFFER),
            creation_record(2, KERNEL),
            set(4, 2, 1, 1),
            creation_record(5, BUFFER),
            set(6, 2, 2, 5),
        ];
        assert_eq!(remaining_work(&outline, &unset), None, "it was set to something that has ended");
    }

    #[test]
    fn ended_objects_are_released_with_their_settings() {
        let outline = [
            creation_record(1, BUFFER),
            creation_record(2, KERNEL),
            set(3, 2, 0, 1),
            creation_record(4, BUFFER),
            set(5, 2, 1, 4),
        ];
        assert_eq!(remaining_work(&outline, &[creation_record(1, BUFFER)]), Some((vec![4, 2], vec![])));
        let image =
            [creation_record(1, BUFFER), creation_record(2, KERNEL), set(3, 2, 0, 1), creation_record(6, BUFFER)];
        assert_eq!(remaining_work(&outline, &image), Some((vec![4], vec![6])));
    }

    #[test]
    fn diverged_outline_needs_a_new_worker() {
        let program = creation_record(1, kdclProgram::OPCODE);
        let outline = [program.clone(), creation_record(2, BUFFER)];
        assert_eq!(
            remaining_work(&outline, &[creation_record(2, BUFFER)]),
            None,
            "others may be made of what has ended"
        );
        assert_eq!(
            remaining_work(&outline, &[program.clone(), creation_record(2, kdclImage::OPCODE)]),
            None,
            "another one"
        );
        assert_eq!(
            remaining_work(&outline, &[creation_record(0, BUFFER), program, creation_record(2, BUFFER)]),
            None,
            "one before it"
        );
        let outline_with_callback =
            [creation_record(1, BUFFER), record(2, kdclMemoryCallback::OPCODE, vec![1, 0, 0, 0])];
        assert_eq!(remaining_work(&outline_with_callback, &[]), None, "the program has been told");
        assert_eq!(rehearsal(&[], vec![Platform::default()]).remaining_work(&[], &[]), None, "other platforms");
    }
}
