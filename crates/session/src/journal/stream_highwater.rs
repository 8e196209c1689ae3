//! The most streams that existed at once in each context.
//!
//! A driver keeps the resources of an ended stream for later ones, whatever their flags and priorities: four streams take a
//! block of 2 MiB from the stock that also provides variables of code (580.159.04, H100, 2026-11-26). So code that is loaded
//! after 32 streams existed lies elsewhere than after one, even when all streams are gone. A replay therefore makes as many
//! at once before it loads code.

/// Most streams of a context that a replay makes at once.
pub(super) const MAX_STREAMS: u32 = 1 << 16;

/// The streams of a context.
#[derive(Debug, Default)]
pub(super) struct ContextHighwater {
    pub(super) alive: u32,
    /// Numbers of the frames at which there were more streams than ever before: one, two, and so on.
    raised: Vec<u64>,
}

/// The streams of all contexts, by the program's ids.
#[derive(Debug, Default)]
pub(crate) struct StreamHighwater {
    contexts: Vec<ContextHighwater>,
}

impl StreamHighwater {
    /// Counts a stream that was created.
    #[inline]
    pub(crate) fn count_stream(&mut self, context: u32, order: u64) {
        let pool = self.of(context);
        pool.alive += 1;
        if pool.alive as usize > pool.raised.len() {
            pool.raised.push(order);
        }
    }

    #[inline]
    pub(super) fn of(&mut self, context: u32) -> &mut ContextHighwater {
        let context = context as usize;
        if context >= self.contexts.len() {
            self.grow(context);
        }
        &mut self.contexts[context]
    }

    #[cold]
    fn grow(&mut self, context: usize) {
        // The table of contexts has checked the bound of the id.
        self.contexts.resize_with(context + 1, ContextHighwater::default);
    }

    /// Counts a stream that was destroyed.
    #[inline]
    pub(super) fn ended(&mut self, context: u32) {
        if let Some(pool) = self.contexts.get_mut(context as usize) {
            pool.alive = pool.alive.saturating_sub(1);
        }
    }

    pub(super) fn end_context(&mut self, context: u32) {
        if let Some(pool) = self.contexts.get_mut(context as usize) {
            *pool = ContextHighwater::default();
        }
    }

    /// Notes that the context had `count` streams at once when the frame number `order` was executed.
    pub(super) fn raise(&mut self, context: u32, count: u32, order: u64) {
        let raised = &mut self.of(context).raised;
        raised.resize(raised.len().max(count as usize), order);
    }

    /// Returns context, number of streams, and number of the frame, where there were more streams at once than the finally
    /// living ones, if the driver placed something before there were more. Both lists are sorted: contexts and frames of
    /// living streams, and frames by which something was placed.
    pub(super) fn beyond(&self, living: &[(u32, u64)], placed: &[u64]) -> Vec<(u32, u32, u64)> {
        let mut beyond = Vec::new();
        for (context, pool) in (0..).zip(&self.contexts) {
            let first = living.partition_point(|(other, _)| *other < context);
            // A replay refuses more.
            let raised = &pool.raised[..pool.raised.len().min(MAX_STREAMS as usize)];
            for (at, order) in raised.iter().enumerate() {
                let alive = living.partition_point(|one| *one <= (context, *order)) - first;
                let next = placed.get(placed.partition_point(|one| one <= order));
                let is_seen = next.is_some_and(|next| raised.get(at + 1).is_none_or(|later| next < later));
                if alive <= at && is_seen {
                    beyond.push((context, at as u32 + 1, *order));
                }
            }
        }
        beyond
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_highwater_is_reported_beyond_the_live_streams() {
        let mut pools = StreamHighwater::default();
        for order in [10, 20, 30, 40] {
            pools.count_stream(2, order);
        }
        pools.ended(2);
        pools.count_stream(2, 60);
        pools.count_stream(1, 70);
        assert_eq!(pools.contexts[2].raised, [10, 20, 30, 40], "the fourth came again");
        let living = [(1, 70), (2, 10), (2, 60)];
        assert_eq!(pools.beyond(&living, &[15, 90]), [(2, 4, 40)]);
        assert_eq!(pools.beyond(&living, &[15, 25, 26, 50]), [(2, 2, 20), (2, 4, 40)]);
        assert_eq!(pools.beyond(&[], &[5, 15, 90]), [(1, 1, 70), (2, 1, 10), (2, 4, 40)]);
        assert_eq!(pools.beyond(&[], &[]), [], "nothing was placed");
        pools.end_context(2);
        assert_eq!(pools.beyond(&[], &[90]), [(1, 1, 70)]);
        // A replay of that, with later streams.
        let mut again = StreamHighwater::default();
        again.raise(2, 4, 4);
        again.count_stream(2, 9);
        assert_eq!(again.beyond(&[(2, 9)], &[12]), [(2, 4, 4)]);
        let mut many = StreamHighwater::default();
        (0..MAX_STREAMS + 2).for_each(|_| many.count_stream(1, 3));
        assert_eq!(many.beyond(&[], &[12]), [(1, MAX_STREAMS, 3)], "a replay would refuse more");
    }
}
