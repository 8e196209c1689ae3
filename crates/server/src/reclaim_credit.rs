//! How long sessions that are asked for idle memory may make others wait.
//!
//! The rule: one peer may make others wait 20 s in all, and a thirtieth of the time that passes from then on. Answers within the
//! time that programs have for theirs cost nothing. So a worker that answers late costs the others time once, and a busy
//! machine's workers still get the time they need.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::slots::PeerOrigin;
use crate::workers::handle::SessionId;

/// Longest wait of others for a peer that has not been late, or for a session that is about to end: as long as a worker may take
/// to end. On a busy machine workers need seconds; one that takes longer hangs.
pub(crate) const RECLAIM_TIMEOUT: Duration = Duration::from_secs(20);
/// How long an answer may take without a charge to the credit. Answers of programs get the same time.
pub(crate) const UNCHARGED_ANSWER_TIME: Duration = Duration::from_millis(500);
/// Seconds that must pass until one second of charged wait is forgotten.
const RECOVERY_SECONDS_PER_CHARGED_SECOND: u32 = 30;

/// The owner of a credit: a peer over a network, whatever sessions it begins, or one session of the server's own user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RateLimitKey {
    Peer(PeerOrigin),
    Session(SessionId),
}

impl RateLimitKey {
    pub(crate) fn of(id: SessionId, origin: Option<PeerOrigin>) -> Self {
        origin.filter(|origin| origin.is_limited()).map_or(Self::Session(id), Self::Peer)
    }
}

/// How long others have waited for one owner.
#[derive(Debug, Clone, Copy)]
struct WaitRecord {
    time: Duration,
    /// All time until then is counted.
    until: Instant,
}

impl WaitRecord {
    /// Returns the charge that is not forgotten yet.
    fn left_at(self, now: Instant) -> Duration {
        self.time.saturating_sub(now.saturating_duration_since(self.until) / RECOVERY_SECONDS_PER_CHARGED_SECOND)
    }
}

/// The charges of all owners.
#[derive(Debug, Default)]
pub(crate) struct ReclaimCredit(BTreeMap<RateLimitKey, WaitRecord>);

impl ReclaimCredit {
    /// Returns how long others may wait, from `now` on, for a session that is silent since `since`. Zero: not at all.
    /// `waited_since` is when others began to wait for one of the payer's sessions that is still silent.
    pub(crate) fn wait_for(
        &self,
        payer: RateLimitKey,
        since: Instant,
        waited_since: Option<Instant>,
        now: Instant,
    ) -> Duration {
        let known = self.0.get(&payer);
        let charged = known.map_or(Duration::ZERO, |waited| waited.left_at(now));
        let uncharged = waited_since.map_or(Duration::ZERO, |began| {
            now.saturating_duration_since(known.map_or(began, |waited| began.max(waited.until)))
        });
        let silent = now.saturating_duration_since(since);
        let left =
            RECLAIM_TIMEOUT.saturating_sub(charged + uncharged).max(UNCHARGED_ANSWER_TIME.saturating_sub(silent));
        left.min(RECLAIM_TIMEOUT.saturating_sub(silent))
    }

    /// Charges the wait of others since `since` for a session that has answered or ended. Time in which several sessions of a
    /// peer were silent counts once. No more counts than others wait in all, however long the session was stopped.
    pub(crate) fn charge(&mut self, payer: RateLimitKey, since: Instant, now: Instant) {
        let late = since + UNCHARGED_ANSWER_TIME;
        if now <= late {
            return;
        }
        let known = self.0.get(&payer).copied().unwrap_or(WaitRecord { time: Duration::ZERO, until: late });
        let time = known.left_at(now) + now.saturating_duration_since(late.max(known.until));
        self.0.insert(payer, WaitRecord { time: time.min(RECLAIM_TIMEOUT), until: now });
    }

    /// Lets `time` pass.
    #[cfg(test)]
    pub(crate) fn pass(&mut self, time: Duration) {
        self.0.values_mut().for_each(|waited| waited.until -= time);
    }

    /// Forgets a session that has ended, and peers without a remaining charge.
    pub(crate) fn forget(&mut self, id: SessionId, now: Instant) {
        self.0.retain(|payer, waited| *payer != RateLimitKey::Session(id) && !waited.left_at(now).is_zero());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn peer(last: u8) -> RateLimitKey {
        RateLimitKey::of(9, Some(PeerOrigin::of(std::net::IpAddr::from([10, 0, 0, last]))))
    }

    fn session(id: SessionId) -> RateLimitKey {
        RateLimitKey::of(id, None)
    }

    /// How long others wait for a session that was asked just now, while no other session of its payer is silent.
    fn wait_for(credit: &ReclaimCredit, payer: RateLimitKey, now: Instant) -> Duration {
        credit.wait_for(payer, now, None, now)
    }

    #[test]
    fn late_peer_is_waited_for_less_next_time() {
        let (mut credit, began) = (ReclaimCredit::default(), Instant::now());
        assert_eq!(wait_for(&credit, session(1), began), RECLAIM_TIMEOUT);
        let mut now = began + 19 * S;
        assert_eq!(credit.wait_for(session(1), began, Some(began), now), S);
        credit.charge(session(1), began, now);
        assert_eq!(wait_for(&credit, session(1), now), S + UNCHARGED_ANSWER_TIME);
        // However often it does that, the total wait of others is bounded.
        let mut waited = Duration::ZERO;
        for _ in 0..100 {
            let wait = wait_for(&credit, session(1), now);
            waited += wait.saturating_sub(UNCHARGED_ANSWER_TIME);
            credit.charge(session(1), now, now + 19 * S);
            now += 19 * S;
        }
        assert!(waited <= RECLAIM_TIMEOUT + (now - began) / RECOVERY_SECONDS_PER_CHARGED_SECOND, "{waited:?}");
        assert_eq!(wait_for(&credit, session(2), now), RECLAIM_TIMEOUT, "another one");
    }

    #[test]
    fn prompt_answers_are_free_and_charges_decay() {
        let (mut credit, began) = (ReclaimCredit::default(), Instant::now());
        credit.charge(session(1), began, began + UNCHARGED_ANSWER_TIME);
        assert_eq!(wait_for(&credit, session(1), began), RECLAIM_TIMEOUT);
        let now = began + UNCHARGED_ANSWER_TIME + 10 * S;
        credit.charge(session(1), began, now);
        assert_eq!(wait_for(&credit, session(1), now), RECLAIM_TIMEOUT - 10 * S);
        let later = now + 10 * RECOVERY_SECONDS_PER_CHARGED_SECOND * S;
        assert_eq!(wait_for(&credit, session(1), later), RECLAIM_TIMEOUT);
        credit.forget(2, now);
        assert_eq!(credit.0.len(), 1);
        credit.forget(1, now);
        assert!(credit.0.is_empty());
    }

    #[test]
    fn a_worker_that_was_stopped_for_long_has_cost_no_more_than_others_waited() {
        let (mut credit, began) = (ReclaimCredit::default(), Instant::now());
        let now = began + 1000 * S;
        credit.charge(session(1), began, now);
        assert_eq!(wait_for(&credit, session(1), now), UNCHARGED_ANSWER_TIME);
        let later = now + RECOVERY_SECONDS_PER_CHARGED_SECOND * S * 20;
        assert_eq!(wait_for(&credit, session(1), later), RECLAIM_TIMEOUT);
    }

    #[test]
    fn sessions_of_a_peer_have_one_history() {
        let (mut credit, began) = (ReclaimCredit::default(), Instant::now());
        let now = began + UNCHARGED_ANSWER_TIME + 10 * S;
        for _ in 1..=4 {
            credit.charge(peer(1), began, now);
        }
        assert_eq!(wait_for(&credit, peer(1), now), RECLAIM_TIMEOUT - 10 * S, "a new session of it");
        assert_eq!(wait_for(&credit, peer(2), now), RECLAIM_TIMEOUT);
        credit.forget(1, now);
        assert_eq!(wait_for(&credit, peer(1), now), RECLAIM_TIMEOUT - 10 * S);
        credit.forget(1, now + 10 * RECOVERY_SECONDS_PER_CHARGED_SECOND * S);
        assert!(credit.0.is_empty());
    }

    #[test]
    fn a_silence_that_lasts_counts_for_all_sessions_of_its_peer_and_once() {
        let (mut credit, began) = (ReclaimCredit::default(), Instant::now());
        let now = began + UNCHARGED_ANSWER_TIME + 4 * S;
        assert_eq!(credit.wait_for(peer(1), now, Some(began), now), RECLAIM_TIMEOUT - UNCHARGED_ANSWER_TIME - 4 * S);
        // One of two that were asked at once has answered.
        credit.charge(peer(1), began, now);
        let left = RECLAIM_TIMEOUT - 4 * S;
        assert_eq!(credit.wait_for(peer(1), now, Some(began), now), left);
        assert_eq!(credit.wait_for(peer(1), began, Some(began), now), left.min(RECLAIM_TIMEOUT - (now - began)));
        // A session that was about to end before others asked.
        assert_eq!(credit.wait_for(peer(2), began, None, now), RECLAIM_TIMEOUT - (now - began));
    }
}
