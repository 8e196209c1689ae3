//! How long sessions that are asked for idle memory may let others wait.
//!
//! The rule: one peer has others wait 20 s in all, and a thirtieth of the time that passes from then on. Answers that come as fast as
//! programs have to give theirs cost nothing. So a worker that answers late was late at the others' cost once, and a busy machine's
//! workers are waited for.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::slots::Origin;
use crate::workers::handle::SessionId;

/// How long others wait at most for a peer that has not been late, or for a session that is about to end: what a worker that ends may
/// take. A busy machine lets workers wait for seconds; one that takes longer stands still.
pub(crate) const RECLAIM_TIMEOUT: Duration = Duration::from_secs(20);
/// How long an answer may take without a charge to the credit. Answers of programs are waited for as long.
pub(crate) const UNCHARGED_ANSWER_TIME: Duration = Duration::from_millis(500);
/// The time in which a second of waiting is forgotten.
const FORGOTTEN_IN: u32 = 30;

/// Whose history counts: that of a peer over a network, whatever sessions it begins, or of one session of the server's own user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Payer {
    Peer(Origin),
    Session(SessionId),
}

impl Payer {
    fn of(id: SessionId, origin: Option<Origin>) -> Self {
        origin.filter(|origin| origin.is_limited()).map_or(Self::Session(id), Self::Peer)
    }
}

/// How long others have waited for one.
#[derive(Debug, Clone, Copy)]
struct Waited {
    time: Duration,
    /// All time until then is counted.
    until: Instant,
}

impl Waited {
    /// What is not forgotten yet.
    fn left_at(self, now: Instant) -> Duration {
        self.time.saturating_sub(now.saturating_duration_since(self.until) / FORGOTTEN_IN)
    }
}

/// The history of all.
#[derive(Debug, Default)]
pub(crate) struct ReclaimCredit(BTreeMap<Payer, Waited>);

impl ReclaimCredit {
    /// How long others wait for a session that was asked at `since`, if it has not answered by `now`. Nothing: not at all.
    pub(crate) fn wait_for(&self, id: SessionId, origin: Option<Origin>, since: Instant, now: Instant) -> Duration {
        let waited = self.0.get(&Payer::of(id, origin)).map_or(Duration::ZERO, |waited| waited.left_at(now));
        let silent = now.saturating_duration_since(since);
        RECLAIM_TIMEOUT.saturating_sub(waited).max(UNCHARGED_ANSWER_TIME).saturating_sub(silent)
    }

    /// Notes that a session has answered what it was asked at `since`. Time in which several of a peer were silent counts once.
    pub(crate) fn answered(&mut self, id: SessionId, origin: Option<Origin>, since: Instant, now: Instant) {
        let late = since + UNCHARGED_ANSWER_TIME;
        if now <= late {
            return;
        }
        let payer = Payer::of(id, origin);
        let known = self.0.get(&payer).copied().unwrap_or(Waited { time: Duration::ZERO, until: late });
        let time = known.left_at(now) + now.saturating_duration_since(late.max(known.until));
        self.0.insert(payer, Waited { time, until: now });
    }

    /// Forgets a session that has ended, and peers of which nothing is left.
    pub(crate) fn forget(&mut self, id: SessionId, now: Instant) {
        self.0.retain(|payer, waited| *payer != Payer::Session(id) && !waited.left_at(now).is_zero());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn peer(last: u8) -> Option<Origin> {
        Some(Origin::of(std::net::IpAddr::from([10, 0, 0, last])))
    }

    #[test]
    fn who_is_late_once_is_not_waited_for_as_long_again() {
        let (mut credit, began) = (ReclaimCredit::default(), Instant::now());
        assert_eq!(credit.wait_for(1, None, began, began), RECLAIM_TIMEOUT);
        let mut now = began + 19 * S;
        assert_eq!(credit.wait_for(1, None, began, now), S);
        credit.answered(1, None, began, now);
        assert_eq!(credit.wait_for(1, None, now, now), S + UNCHARGED_ANSWER_TIME);
        // However often it does that: what others wait in all is bounded.
        let mut waited = Duration::ZERO;
        for _ in 0..100 {
            let wait = credit.wait_for(1, None, now, now);
            waited += wait.saturating_sub(UNCHARGED_ANSWER_TIME);
            credit.answered(1, None, now, now + 19 * S);
            now += 19 * S;
        }
        assert!(waited <= RECLAIM_TIMEOUT + (now - began) / FORGOTTEN_IN, "{waited:?}");
        assert_eq!(credit.wait_for(2, None, now, now), RECLAIM_TIMEOUT, "another one");
    }

    #[test]
    fn what_comes_in_time_costs_nothing_and_the_rest_is_forgotten() {
        let (mut credit, began) = (ReclaimCredit::default(), Instant::now());
        credit.answered(1, None, began, began + UNCHARGED_ANSWER_TIME);
        assert_eq!(credit.wait_for(1, None, began, began), RECLAIM_TIMEOUT);
        let now = began + UNCHARGED_ANSWER_TIME + 10 * S;
        credit.answered(1, None, began, now);
        assert_eq!(credit.wait_for(1, None, now, now), RECLAIM_TIMEOUT - 10 * S);
        let later = now + 10 * FORGOTTEN_IN * S;
        assert_eq!(credit.wait_for(1, None, later, later), RECLAIM_TIMEOUT);
        credit.forget(2, now);
        assert_eq!(credit.0.len(), 1);
        credit.forget(1, now);
        assert!(credit.0.is_empty());
    }

    #[test]
    fn a_peer_s_sessions_have_one_history() {
        let (mut credit, began) = (ReclaimCredit::default(), Instant::now());
        let now = began + UNCHARGED_ANSWER_TIME + 10 * S;
        for id in 1..=4 {
            credit.answered(id, peer(1), began, now);
        }
        assert_eq!(credit.wait_for(9, peer(1), now, now), RECLAIM_TIMEOUT - 10 * S, "a new session of it");
        assert_eq!(credit.wait_for(9, peer(2), now, now), RECLAIM_TIMEOUT);
        credit.forget(1, now);
        assert_eq!(credit.wait_for(9, peer(1), now, now), RECLAIM_TIMEOUT - 10 * S);
        credit.forget(1, now + 10 * FORGOTTEN_IN * S);
        assert!(credit.0.is_empty());
    }
}
