//! Checks that a checkpoint has both sides of everything that programs share: memory and events that one exports and others hold.
//!
//! A checkpoint takes a session together with all sessions that it shares with, or not at all. A session that was left out would
//! go on with memory that is not the other one's any more.

use katydid_wire::sharing::{Import, Sharing};

use crate::checkpoint::error::CheckpointError;
use crate::supervisor::members::Member;

/// The checkpoint leaves out the exporter of an import, or a holder of an export.
const HOLDS_TEXT: &str = "has memory or an event of a program open that this checkpoint has no part in: close it first";
const EXPORTS_TEXT: &str =
    "has exported memory or an event to a program that this checkpoint has no part in: have it closed there first";
/// No session would make the freed object again.
const FREED_TEXT: &str = "has freed memory or an event that another program still has open: close it there first";
/// A program that moves gets another worker, while the old one still has its exporter id.
const MOVES_TEXT: &str =
    "shares memory or events with another program, which cannot be moved: close them on both participants first";

/// Accepts sessions that share only among each other.
pub(crate) fn check<'a>(
    participants: impl Iterator<Item = (&'a Member, &'a Sharing)> + Clone,
) -> Result<(), CheckpointError> {
    for (member, sharing) in participants.clone() {
        let holders = |of: Import| {
            let all = participants.clone().flat_map(|(_, sharing)| &sharing.imported);
            all.filter(|it| **it == of).count() as u64
        };
        let own = sharing.exporter_id.unwrap_or_default();
        for held in &sharing.held {
            match held.is_exported {
                _ if holders(Import { exporter_id: own, secret: held.secret }) != u64::from(held.holders) => {
                    return Err(refused(member, EXPORTS_TEXT));
                }
                true => {}
                false => return Err(refused(member, FREED_TEXT)),
            }
        }
        let is_here =
            |it: &Import| participants.clone().any(|(_, exporter)| exporter.exporter_id == Some(it.exporter_id));
        if !sharing.imported.iter().all(is_here) {
            return Err(refused(member, HOLDS_TEXT));
        }
    }
    Ok(())
}

/// Refuses sessions that share anything.
pub(crate) fn check_alone<'a>(
    mut participants: impl Iterator<Item = (&'a Member, &'a Sharing)>,
) -> Result<(), CheckpointError> {
    participants.find(|(_, sharing)| sharing.is_some()).map_or(Ok(()), |(member, _)| Err(refused(member, MOVES_TEXT)))
}

fn refused(member: &Member, what: &'static str) -> CheckpointError {
    CheckpointError::Shared { program: member.program.clone(), pid: member.pid, what }
}

#[cfg(test)]
mod tests {
    use katydid_wire::handshake::SessionKind;
    use katydid_wire::key::SessionKey;
    use katydid_wire::sharing::{EXPORTER_ID_BYTES, SECRET_BYTES, SharedHolding};

    use super::*;
    use crate::supervisor::members::MemberState;

    const OWN_EXPORTER_ID: [u8; EXPORTER_ID_BYTES] = [1; EXPORTER_ID_BYTES];
    const OTHER_EXPORTER_ID: [u8; EXPORTER_ID_BYTES] = [2; EXPORTER_ID_BYTES];

    fn member(pid: u32) -> Member {
        Member {
            id: pid.into(),
            pid,
            session: SessionKind::CUDA,
            key: SessionKey::NONE,
            address: String::new(),
            link: 1,
            program: "rank".to_owned(),
            state: MemberState::Present,
            frames: 0,
            reached: None,
        }
    }

    fn holding(secret: u8, holders: u32) -> SharedHolding {
        SharedHolding { secret: [secret; SECRET_BYTES], holders, is_exported: true }
    }

    fn of(exporter_id: [u8; EXPORTER_ID_BYTES], secret: u8) -> Import {
        Import { exporter_id, secret: [secret; SECRET_BYTES] }
    }

    fn outcome(sharing: &[Sharing]) -> Result<(), String> {
        let members: Vec<Member> = (1..).take(sharing.len()).map(member).collect();
        check(members.iter().zip(sharing)).map_err(|error| error.to_string())
    }

    /// Two sessions that import from each other, one of them twice.
    fn family() -> [Sharing; 2] {
        let one = Sharing {
            exporter_id: Some(OWN_EXPORTER_ID),
            held: vec![holding(7, 1)],
            imported: vec![of(OTHER_EXPORTER_ID, 8), of(OTHER_EXPORTER_ID, 8)],
        };
        let other = Sharing {
            exporter_id: Some(OTHER_EXPORTER_ID),
            held: vec![holding(8, 2)],
            imported: vec![of(OWN_EXPORTER_ID, 7)],
        };
        [one, other]
    }

    #[test]
    fn closed_set_of_sharing_processes_is_accepted() {
        assert_eq!(outcome(&family()), Ok(()));
        assert_eq!(
            outcome(&[Sharing::default(), Sharing { exporter_id: Some(OWN_EXPORTER_ID), ..Sharing::default() }]),
            Ok(())
        );
    }

    #[test]
    fn a_session_that_is_left_out_is_missed_on_either_side() {
        let [one, other] = family();
        assert_eq!(outcome(std::slice::from_ref(&one)), Err(format!("rank (process 1) {EXPORTS_TEXT}")));
        assert_eq!(
            outcome(&[Sharing { held: Vec::new(), ..one.clone() }]),
            Err(format!("rank (process 1) {HOLDS_TEXT}"))
        );
        let more = Sharing { held: vec![holding(7, 2)], ..one };
        assert_eq!(outcome(&[more, other]), Err(format!("rank (process 1) {EXPORTS_TEXT}")));
    }

    #[test]
    fn allocation_freed_by_its_exporter_is_refused() {
        let [one, mut other] = family();
        other.held[0].is_exported = false;
        assert_eq!(outcome(&[one, other]), Err(format!("rank (process 2) {FREED_TEXT}")));
    }

    #[test]
    fn a_session_that_shares_does_not_move() {
        let (member, [one, _]) = (member(5), family());
        assert!(check_alone([(&member, &Sharing::default())].into_iter()).is_ok());
        assert!(check_alone([(&member, &one)].into_iter()).is_err());
    }
}
