//! Reclaim requests that have no answer yet: the sessions that each waits for and until when, and which sessions are silent.
//!
//! The rule: no session waits for another one longer than that one's credit when it was asked, whatever all others do. The wait
//! of others for a session is charged as soon as the session answers or ends, and counts as running time before.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::reclaim_credit::{RECLAIM_TIMEOUT, RateLimitKey, ReclaimCredit, UNCHARGED_ANSWER_TIME};
use crate::workers::handle::SessionId;

/// A session that finds no memory on a device, and the number of its request.
pub(crate) type ReclaimRequest = (SessionId, u64);

/// Most reclaim requests kept for a session: those to programs that never answer stay.
const MAX_RECLAIM_REQUESTS: usize = 64;

/// All reclaim requests of a server.
#[derive(Debug, Default)]
pub(crate) struct ReclaimRequests {
    /// The sessions that have yet to give back idle memory, by request.
    pending: BTreeMap<ReclaimRequest, AskedSessions>,
    /// Sessions that are about to end, or owe an answer to a request.
    silent: BTreeMap<SessionId, SilentSession>,
    /// How long others have waited for answers.
    credit: ReclaimCredit,
}

/// A session that is about to end, or owes an answer to a request.
#[derive(Debug)]
struct SilentSession {
    payer: RateLimitKey,
    /// When the session was asked, or began to end.
    since: Instant,
    /// When others began to wait for it; none if no session has.
    waited_since: Option<Instant>,
    /// The oldest request that it owes an answer to; none if it is about to end.
    owed: Option<ReclaimRequest>,
}

impl SilentSession {
    fn on_request(payer: RateLimitKey, request: ReclaimRequest, sent: Instant) -> Self {
        Self { payer, since: sent, waited_since: Some(sent), owed: Some(request) }
    }
}

/// The sessions that a reclaim request waits for.
#[derive(Debug)]
struct AskedSessions {
    /// When the sessions were asked.
    sent: Instant,
    /// Workers that have not answered yet, and those that are about to end, each with its deadline. None of them waits for its
    /// program.
    workers: BTreeMap<SessionId, Instant>,
    /// Sessions whose programs live and were asked, each with its deadline.
    programs: BTreeMap<SessionId, Instant>,
    /// Whether a session has answered or ended since the requesting one was last told.
    is_changed: bool,
    /// How long the requesting session waits for workers, from `sent` on: the last limit that the server sent it.
    limit: Duration,
    /// Whether the requesting session knows that only programs are still waited for.
    is_told: bool,
}

impl AskedSessions {
    fn new(sent: Instant) -> Self {
        let (workers, programs) = (BTreeMap::new(), BTreeMap::new());
        Self { sent, workers, programs, is_changed: true, limit: RECLAIM_TIMEOUT, is_told: false }
    }

    fn forget(&mut self, id: SessionId) {
        self.is_changed |= self.workers.remove(&id).is_some();
        self.is_changed |= self.programs.remove(&id).is_some();
    }

    /// Notes that a session has asked its program, or has done what it could.
    fn on_reply(&mut self, id: SessionId, is_given: bool, now: Instant) {
        if is_given {
            self.forget(id);
        } else if self.workers.remove(&id).is_some() {
            self.programs.insert(id, now + UNCHARGED_ANSWER_TIME);
            self.is_changed = true;
        }
    }

    fn is_over(&self) -> bool {
        self.workers.is_empty() && self.programs.is_empty()
    }

    /// Returns the next line for the requesting session, if it must learn something; `number` is its request's.
    fn next_line(&mut self, number: u64) -> Option<String> {
        if !std::mem::take(&mut self.is_changed) {
            return None;
        }
        if self.is_over() {
            return Some(format!("answered {number}"));
        }
        if self.workers.is_empty() {
            return (!std::mem::replace(&mut self.is_told, true)).then(|| format!("asked {number}"));
        }
        // The session keeps the time itself. The last deadline may have been that of a session that has answered since.
        let deadline = self.workers.values().chain(self.programs.values()).max()?;
        let limit = deadline.saturating_duration_since(self.sent);
        let is_shorter = limit < self.limit && limit <= RECLAIM_TIMEOUT.saturating_sub(UNCHARGED_ANSWER_TIME);
        is_shorter.then(|| {
            self.limit = limit;
            format!("wait {number} {}", limit.as_millis())
        })
    }
}

impl ReclaimRequests {
    /// Adds a request: notes the sessions that were asked, and those that are about to end and so were not. Each of `peers` comes
    /// with the owner of its credit.
    pub(crate) fn add(&mut self, request: ReclaimRequest, peers: &[(SessionId, RateLimitKey)]) {
        let (now, silences) = (Instant::now(), self.oldest_silences());
        let mut sessions = AskedSessions::new(now);
        for &(other, payer) in peers {
            // Requesting sessions wait for a hanging worker once in all, not once each.
            let silence = self.silent.entry(other).or_insert_with(|| SilentSession::on_request(payer, request, now));
            let wait = self.credit.wait_for(payer, silence.since, silences.get(&payer).copied(), now);
            if !wait.is_zero() {
                silence.waited_since.get_or_insert(now);
                sessions.workers.insert(other, now + wait);
            }
        }
        self.pending.insert(request, sessions);
        let own = self.pending.range((request.0, 0)..=(request.0, u64::MAX));
        if own.clone().count() > MAX_RECLAIM_REQUESTS
            && let Some((&oldest, _)) = own.clone().next()
        {
            // The oldest request's worker has long given up waiting.
            self.pending.remove(&oldest);
        }
    }

    /// Notes that a session that is not about to end has asked its program for a request, or has done what it could.
    pub(crate) fn on_reply(&mut self, id: SessionId, request: ReclaimRequest, is_given: bool) {
        let now = Instant::now();
        if let Some(sessions) = self.pending.get_mut(&request) {
            sessions.on_reply(id, is_given, now);
        }
        // A worker answers in order. An answer to another request is none that it owes.
        let Some(&SilentSession { payer, .. }) = self.silent.get(&id).filter(|silence| silence.owed == Some(request))
        else {
            return;
        };
        self.end_silence(id, now);
        let owed = self.pending.iter().filter(|(_, sessions)| sessions.workers.contains_key(&id));
        if let Some((next, sessions)) = owed.min_by_key(|(_, sessions)| sessions.sent) {
            self.silent.insert(id, SilentSession::on_request(payer, *next, sessions.sent));
        }
    }

    /// Notes that a session is about to end. Its later answers do not count.
    pub(crate) fn is_ending(&mut self, id: SessionId, payer: RateLimitKey) {
        let now = Instant::now();
        self.end_silence(id, now);
        let is_awaited = self.pending.values().any(|sessions| sessions.workers.contains_key(&id));
        let silence = SilentSession { payer, since: now, waited_since: is_awaited.then_some(now), owed: None };
        self.silent.insert(id, silence);
    }

    /// Notes that a session has ended.
    pub(crate) fn forget(&mut self, id: SessionId) {
        let now = Instant::now();
        self.end_silence(id, now);
        self.credit.forget(id, now);
        self.pending.retain(|(session, _), _| *session != id);
        self.pending.values_mut().for_each(|sessions| sessions.forget(id));
    }

    /// Returns the lines that requesting sessions must get: their remaining limit, that they wait only for programs, or that they
    /// wait for no session any more.
    pub(crate) fn next_lines(&mut self) -> Vec<(SessionId, String)> {
        let mut lines = Vec::new();
        self.pending.retain(|(id, number), sessions| {
            lines.extend(sessions.next_line(*number).map(|line| (*id, line)));
            !sessions.is_over()
        });
        lines
    }

    /// Charges the wait of others for a session that is silent no more.
    fn end_silence(&mut self, id: SessionId, now: Instant) {
        if let Some(SilentSession { payer, waited_since: Some(since), .. }) = self.silent.remove(&id) {
            self.credit.charge(payer, since, now);
        }
    }

    /// Returns, for each payer, since when others wait for its sessions that are still silent.
    fn oldest_silences(&self) -> BTreeMap<RateLimitKey, Instant> {
        let mut oldest = BTreeMap::<RateLimitKey, Instant>::new();
        for silence in self.silent.values() {
            if let Some(since) = silence.waited_since {
                oldest.entry(silence.payer).and_modify(|known| *known = since.min(*known)).or_insert(since);
            }
        }
        oldest
    }

    /// Lets `time` pass for all that wait and are waited for.
    #[cfg(test)]
    pub(crate) fn pass(&mut self, time: Duration) {
        self.credit.pass(time);
        for silence in self.silent.values_mut() {
            silence.since -= time;
            silence.waited_since = silence.waited_since.map(|since| since - time);
        }
        for sessions in self.pending.values_mut() {
            sessions.sent -= time;
            sessions.workers.values_mut().chain(sessions.programs.values_mut()).for_each(|deadline| *deadline -= time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_without_an_answer_are_bounded() {
        let mut requests = ReclaimRequests::default();
        let other = (2, RateLimitKey::of(2, None));
        (1..=3 * MAX_RECLAIM_REQUESTS as u64).for_each(|number| requests.add((1, number), &[other]));
        assert_eq!(
            (requests.pending.len(), requests.pending.keys().next()),
            (MAX_RECLAIM_REQUESTS, Some(&(1, 2 * MAX_RECLAIM_REQUESTS as u64 + 1)))
        );
    }

    #[test]
    fn session_is_notified_once_of_its_wait() {
        let mut requests = ReclaimRequests::default();
        let others = [2, 3].map(|id| (id, RateLimitKey::of(id, None)));
        requests.add((1, 1), &others);
        assert!(requests.next_lines().is_empty() && requests.next_lines().is_empty());
        for (id, _) in others {
            requests.on_reply(id, (1, 1), false);
        }
        assert_eq!(requests.next_lines(), [(1, "asked 1".to_owned())]);
        requests.on_reply(2, (1, 1), true);
        assert!(requests.next_lines().is_empty());
        requests.forget(3);
        assert_eq!(requests.next_lines(), [(1, "answered 1".to_owned())]);
        assert!(requests.next_lines().is_empty() && requests.pending.is_empty());
    }
}
