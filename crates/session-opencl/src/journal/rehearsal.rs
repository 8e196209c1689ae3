//! What a worker has made of a session's outline while the program ran on, and whether it can become the session of an image.
//!
//! ```text
//! outline   frames up to some moment ─▶ made                              the program runs
//! image     the same frames, but for what was set anew, and then others   the program stands still
//!                                       └─▶ only the others are replayed
//! ```
//!
//! The rule: whatever was made and has ended since, or came out otherwise, takes another worker. What was set and is not in the
//! image has been set anew since, by a frame that is: to anything else belongs an object that has ended.

use katydid_keep::Record;
use katydid_wire::codec::Message as _;
use katydid_wire::opencl::message::{kdclDefaultQueue, kdclSetArgument, kdclSetExecInfo};

use super::Platform;
use crate::devices::Assignment;

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

impl Rehearsal {
    /// Of the frames of an image, those that are still to be replayed; none if it is of something else.
    pub(super) fn rest<'a>(&self, platforms: &[Platform], records: &'a [Record]) -> Option<&'a [Record]> {
        let is_old = |record: &Record| self.records.last().is_some_and(|last| record.order <= last.order);
        let (again, rest) = records.split_at(records.partition_point(is_old));
        let mut made = self.records.iter();
        let was_made = |record: &Record| made.find(|made| *made == record || !is_setting(made)) == Some(record);
        let is_same = platforms == self.platforms && again.iter().all(was_made) && made.all(is_setting);
        is_same.then_some(rest)
    }
}

fn is_setting(record: &Record) -> bool {
    [kdclSetArgument::OPCODE, kdclSetExecInfo::OPCODE, kdclDefaultQueue::OPCODE].contains(&record.opcode)
}

#[cfg(test)]
mod tests {
    use katydid_keep::Step;
    use katydid_wire::opencl::message::{kdclBuffer, kdclKernel};

    use super::*;

    const SET: u16 = kdclSetArgument::OPCODE;
    const MADE: u16 = kdclBuffer::OPCODE;

    fn records(all: &[(u64, u16)]) -> Vec<Record> {
        let record = |&(order, opcode): &(u64, u16)| Record {
            step: Step::Frame,
            order,
            thread: 1,
            context: 0,
            opcode,
            image: None,
            steps: None,
            payload: vec![order as u8],
            told: None,
        };
        all.iter().map(record).collect()
    }

    fn rest(made: &[(u64, u16)], image: &[(u64, u16)]) -> Option<Vec<u64>> {
        let ground = Ground { assignment: Assignment::default(), here: Vec::new() };
        let rehearsal = Rehearsal { ground, platforms: Vec::new(), records: records(made) };
        let image = records(image);
        Some(rehearsal.rest(&[], &image)?.iter().map(|record| record.order).collect())
    }

    #[test]
    fn what_has_come_since_is_left_to_do() {
        assert_eq!(rest(&[], &[]), Some(vec![]));
        assert_eq!(rest(&[], &[(0, MADE), (3, MADE)]), Some(vec![0, 3]));
        assert_eq!(rest(&[(1, MADE), (2, MADE)], &[(1, MADE), (2, MADE)]), Some(vec![]));
        assert_eq!(rest(&[(1, MADE)], &[(1, MADE), (2, SET), (3, MADE)]), Some(vec![2, 3]));
    }

    #[test]
    fn what_is_set_anew_was_set() {
        let made = [(1, MADE), (2, SET), (3, SET), (4, MADE), (5, SET)];
        assert_eq!(rest(&made, &[(1, MADE), (3, SET), (4, MADE), (6, SET), (7, SET)]), Some(vec![6, 7]));
        assert_eq!(rest(&made, &[(1, MADE), (4, MADE), (6, SET), (7, SET), (8, SET)]), Some(vec![6, 7, 8]));
    }

    #[test]
    fn what_has_ended_or_is_another_takes_another_worker() {
        let made = [(1, MADE), (2, SET), (3, MADE)];
        assert_eq!(rest(&made, &[(1, MADE)]), None, "the last has ended");
        assert_eq!(rest(&made, &[(2, SET), (3, MADE)]), None, "the first has ended");
        assert_eq!(rest(&made, &[(1, MADE), (3, kdclKernel::OPCODE)]), None, "another one");
        assert_eq!(rest(&made, &[(1, MADE), (2, MADE), (3, MADE)]), None, "one between them");
        let rehearsal = Rehearsal {
            ground: Ground { assignment: Assignment::default(), here: Vec::new() },
            platforms: vec![Platform::default()],
            records: Vec::new(),
        };
        assert!(rehearsal.rest(&[], &[]).is_none(), "other platforms");
    }
}
