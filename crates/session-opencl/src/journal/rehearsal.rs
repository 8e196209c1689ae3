//! What a worker has made of a session's outline while the program ran on, and how it becomes the session of an image.
//!
//! ```text
//! outline   frames up to some moment ─▶ made                                        the program runs
//! image     these, but for what has ended or was set anew, and then others          the program stands still
//!           what has ended is released, the others are replayed
//! ```
//!
//! The rule: an object that nothing else is made of may have ended; whatever else is in one of them alone takes another worker. What
//! was set and is not in the image has been set anew since, by a frame that is: to anything else belongs an object that has ended.

use katydid_keep::Record;
use katydid_wire::codec::Message as _;
use katydid_wire::opencl::message::{
    kdclBuffer, kdclCloneKernel, kdclDefaultQueue, kdclImage, kdclKernel, kdclPipe, kdclQueue, kdclSampler,
    kdclSetArgument, kdclSetExecInfo, kdclSubBuffer,
};

use super::Platform;
use crate::devices::Assignment;

/// Frames that set what later ones set anew.
const SETTINGS: [u16; 3] = [kdclSetArgument::OPCODE, kdclSetExecInfo::OPCODE, kdclDefaultQueue::OPCODE];
/// Frames that make an object whose end changes nothing else. One of which the program is told the end has another frame for that.
const MAKINGS: [u16; 8] = [
    kdclQueue::OPCODE,
    kdclSampler::OPCODE,
    kdclBuffer::OPCODE,
    kdclSubBuffer::OPCODE,
    kdclImage::OPCODE,
    kdclPipe::OPCODE,
    kdclKernel::OPCODE,
    kdclCloneKernel::OPCODE,
];

/// The devices that objects were made on.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) assignment: Assignment,
    /// The machine's.
    pub(super) here: Vec<Platform>,
}

impl Ground {
    /// The first device that takes the place of another one.
    pub(super) fn another(&self) -> Option<&str> {
        let mut devices = self.assignment.devices.iter().flatten();
        let ((platform, device), _) = devices.find(|(_, has_moved)| *has_moved)?;
        Some(&self.here[*platform].devices[*device].name)
    }
}

/// A session that was made and has no contents.
#[derive(Debug)]
pub(crate) struct Rehearsal {
    pub(super) ground: Ground,
    /// As the program knows them.
    pub(super) platforms: Vec<Platform>,
    /// The frames that were replayed, in their order.
    pub(super) records: Vec<Record>,
}

/// What makes it the session of an image.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rest<'a> {
    /// Objects that have ended, by id, the last one first.
    pub(super) ended: Vec<u32>,
    /// Frames that have come since.
    pub(super) records: &'a [Record],
}

impl Rehearsal {
    /// What is left to do for the frames of an image; none if these are of something else.
    pub(super) fn rest<'a>(&self, platforms: &[Platform], records: &'a [Record]) -> Option<Rest<'a>> {
        let is_old = |record: &Record| self.records.last().is_some_and(|last| record.order <= last.order);
        let (again, records) = records.split_at(records.partition_point(is_old));
        let (mut again, mut ended) = (again.iter().peekable(), Vec::new());
        for made in &self.records {
            if again.next_if_eq(&made).is_none() && !SETTINGS.contains(&made.opcode) {
                ended.push(object(made)?);
            }
        }
        ended.reverse();
        (again.next().is_none() && platforms == self.platforms).then_some(Rest { ended, records })
    }
}

/// The object that a frame has made, if nothing else is made of it.
fn object(record: &Record) -> Option<u32> {
    let id = record.payload.first_chunk().map(|id| u32::from_le_bytes(*id));
    id.filter(|_| MAKINGS.contains(&record.opcode))
}

#[cfg(test)]
mod tests {
    use katydid_keep::Step;
    use katydid_wire::opencl::message::{kdclMemoryCallback, kdclProgram};

    use super::*;

    const SET: u16 = kdclSetArgument::OPCODE;
    const MADE: u16 = kdclBuffer::OPCODE;

    /// Frames by their numbers, which are those of their objects too.
    fn records(all: &[(u64, u16)]) -> Vec<Record> {
        let record = |&(order, opcode): &(u64, u16)| Record {
            step: Step::Frame,
            order,
            thread: 1,
            context: 0,
            opcode,
            image: None,
            steps: None,
            payload: (order as u32).to_le_bytes().to_vec(),
            told: None,
        };
        all.iter().map(record).collect()
    }

    fn rehearsal(made: &[(u64, u16)], platforms: Vec<Platform>) -> Rehearsal {
        let ground = Ground { assignment: Assignment::default(), here: Vec::new() };
        Rehearsal { ground, platforms, records: records(made) }
    }

    /// Objects that have ended, and frames that have come.
    fn rest(made: &[(u64, u16)], image: &[(u64, u16)]) -> Option<(Vec<u32>, Vec<u64>)> {
        let (rehearsal, image) = (rehearsal(made, Vec::new()), records(image));
        let rest = rehearsal.rest(&[], &image)?;
        Some((rest.ended, rest.records.iter().map(|record| record.order).collect()))
    }

    #[test]
    fn what_has_come_since_is_left_to_do() {
        assert_eq!(rest(&[], &[]), Some((vec![], vec![])));
        assert_eq!(rest(&[], &[(0, MADE), (3, MADE)]), Some((vec![], vec![0, 3])));
        assert_eq!(rest(&[(1, MADE), (2, MADE)], &[(1, MADE), (2, MADE)]), Some((vec![], vec![])));
        assert_eq!(rest(&[(1, MADE)], &[(1, MADE), (2, SET), (3, MADE)]), Some((vec![], vec![2, 3])));
    }

    #[test]
    fn what_is_set_anew_was_set() {
        let made = [(1, MADE), (2, SET), (3, SET), (4, MADE), (5, SET)];
        let image = [(1, MADE), (3, SET), (4, MADE), (6, SET), (7, SET)];
        assert_eq!(rest(&made, &image), Some((vec![], vec![6, 7])));
        assert_eq!(rest(&made, &[(1, MADE), (4, MADE), (6, SET)]), Some((vec![], vec![6])));
    }

    #[test]
    fn what_has_ended_is_released() {
        let made = [(1, MADE), (2, SET), (3, kdclKernel::OPCODE), (4, MADE)];
        assert_eq!(rest(&made, &[(1, MADE)]), Some((vec![4, 3], vec![])));
        assert_eq!(rest(&made, &[(4, MADE), (5, MADE)]), Some((vec![3, 1], vec![5])));
    }

    #[test]
    fn what_is_another_takes_another_worker() {
        let made = [(1, kdclProgram::OPCODE), (2, SET), (3, MADE)];
        assert_eq!(rest(&made, &[(3, MADE)]), None, "others may be made of what has ended");
        assert_eq!(rest(&made, &[(1, kdclProgram::OPCODE), (3, kdclImage::OPCODE)]), None, "another one");
        assert_eq!(rest(&made, &[(1, kdclProgram::OPCODE), (2, MADE), (3, MADE)]), None, "one between them");
        let told = [(1, MADE), (2, kdclMemoryCallback::OPCODE)];
        assert_eq!(rest(&told, &[]), None, "the program has been told");
        assert_eq!(rehearsal(&[], vec![Platform::default()]).rest(&[], &[]), None, "other platforms");
    }
}
