//! Writes that the program has waited for, and that are not done: its bytes were taken, and so it was let go on.
//!
//! What it enqueues after such a write comes after it, as if that had been done: in its own queue by the order of that; in another
//! one of the context, or in one without order, by waiting for the write's event.

use katydid_opencl_sys::Code;
use katydid_opencl_sys::constant::{QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, QUEUE_PROPERTIES};
use katydid_wire::opencl::list;
use katydid_wire::opencl::message::kdclQueue;

use crate::data::HeldEvent;
use crate::session::Session;

/// Where commands go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Queue {
    /// 0: it is gone.
    id: u32,
    context: u32,
    is_in_order: bool,
}

impl Queue {
    /// As its message says.
    fn of(message: &kdclQueue<'_>) -> Self {
        let properties: Vec<u64> = list::take(&mut &*message.properties).unwrap_or_default();
        let flags = match message.form {
            0 => properties.first().copied(),
            _ => properties.chunks_exact(2).find(|pair| pair[0] == u64::from(QUEUE_PROPERTIES)).map(|pair| pair[1]),
        };
        let is_in_order = flags.unwrap_or(0) & QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE == 0;
        Self { id: message.queue, context: message.context, is_in_order }
    }

    /// Whether its commands come after those of another one that were enqueued before, by themselves.
    fn follows(&self, other: &Self) -> bool {
        self.id == other.id && self.is_in_order
    }
}

/// A write, and the event of its command.
#[derive(Debug)]
struct Write {
    queue: Queue,
    event: HeldEvent,
}

/// All that may not be done.
#[derive(Debug, Default)]
pub(crate) struct Writes(Vec<Write>);

impl Writes {
    fn add(&mut self, write: Write) {
        self.0.retain(|old| !write.queue.follows(&old.queue) && is_under_way(&old.event));
        self.0.push(write);
    }

    /// Those that a command of a queue has to wait for.
    fn before(&mut self, queue: Queue) -> Result<Vec<HeldEvent>, Code> {
        self.0.retain(|write| queue.follows(&write.queue) || is_under_way(&write.event));
        let others = self.0.iter().filter(|write| write.queue.context == queue.context && !queue.follows(&write.queue));
        others.map(|write| HeldEvent::retain(write.event.handle(), write.event.api())).collect()
    }

    /// A queue is released: its number may be another one's.
    pub(crate) fn end_queue(&mut self, id: u32) {
        self.0.retain(|write| write.queue.id != id || is_under_way(&write.event));
        self.0.iter_mut().filter(|write| write.queue.id == id).for_each(|write| write.queue.id = 0);
    }

    /// A context is released, and with it all that has to do with it.
    pub(crate) fn end_context(&mut self, id: u32) {
        self.0.retain(|write| write.queue.context != id);
    }
}

fn is_under_way(event: &HeldEvent) -> bool {
    event.status().is_ok_and(|status| status > 0)
}

impl Session {
    /// The program takes the write of this event for done.
    pub(crate) fn taken_for_done(&mut self, queue: u32, event: &HeldEvent) -> Result<(), Code> {
        let Some(queue) = self.queue(queue) else { return Ok(()) };
        self.writes.add(Write { queue, event: HeldEvent::retain(event.handle(), event.api())? });
        Ok(())
    }

    /// The events of such writes that a command of a queue has to wait for.
    pub(crate) fn writes_before(&mut self, queue: u32) -> Result<Vec<HeldEvent>, Code> {
        // Most programs have one queue, and need not be asked which.
        if self.writes.0.iter().all(|write| write.queue.id == queue && write.queue.is_in_order) {
            return Ok(Vec::new());
        }
        self.queue(queue).map_or(Ok(Vec::new()), |queue| self.writes.before(queue))
    }

    fn queue(&self, id: u32) -> Option<Queue> {
        let entry = self.journal.get(id).filter(|entry| entry.is_made_by::<kdclQueue<'_>>())?;
        Some(Queue::of(&kdclQueue::decode(entry.made.frame.payload()).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use katydid_opencl_sys::{Dispatch, cl_event, void};
    use katydid_wire::opencl::{id, kind};

    use super::*;

    /// Events below 100 have ended.
    #[expect(unsafe_code, reason = "a driver's function")]
    unsafe extern "C" fn state(event: cl_event, _: u32, _: usize, value: *mut void, _: *mut usize) -> i32 {
        // SAFETY: the place of a state.
        unsafe { value.cast::<i32>().write(i32::from(event.0.addr() >= 100)) };
        0
    }

    #[expect(unsafe_code, reason = "a driver's function")]
    unsafe extern "C" fn retain(_: cl_event) -> i32 {
        0
    }

    fn queue(id: u32, context: u32, is_in_order: bool) -> Queue {
        Queue { id, context, is_in_order }
    }

    #[test]
    fn commands_wait_for_writes_that_are_not_before_them_anyway() {
        // SAFETY: every entry of a table of zeros is `None`.
        #[expect(unsafe_code, reason = "an empty table")]
        let mut api: Dispatch = unsafe { std::mem::zeroed() };
        api.clGetEventInfo = Some(state);
        api.clRetainEvent = Some(retain);
        let api: &'static Dispatch = Box::leak(Box::new(api));
        let mut writes = Writes::default();
        let event = |number| HeldEvent::own(cl_event(ptr::without_provenance_mut(number)), api);
        let (first, second, loose, other) =
            (queue(1, 9, true), queue(2, 9, true), queue(3, 9, false), queue(4, 8, true));
        for (queue, number) in [(first, 100), (first, 101), (second, 50), (loose, 102), (loose, 103), (other, 104)] {
            writes.add(Write { queue, event: event(number) });
        }
        let mut before = |queue| -> Vec<usize> {
            writes.before(queue).unwrap().iter().map(|event| event.handle().0.addr()).collect()
        };
        assert_eq!(before(first), [102, 103]);
        assert_eq!(before(second), [101, 102, 103], "the last of a queue ends after the others");
        assert_eq!((before(loose), before(other)), (vec![101, 102, 103], vec![]));
        writes.end_queue(1);
        assert_eq!(writes.before(first).unwrap().len(), 3, "a queue that has the number of one that is gone");
        writes.end_context(9);
        assert_eq!(writes.0.len(), 1);
    }

    #[test]
    fn queues_keep_their_order_unless_they_were_made_otherwise() {
        let of = |form, numbers: &[u64]| {
            let mut properties = Vec::new();
            list::put(&mut properties, numbers);
            let (queue, context, device) = (id(kind::QUEUE, 1), id(kind::CONTEXT, 1), id(kind::DEVICE, 0));
            Queue::of(&kdclQueue { queue, context, device, form, properties: &properties }).is_in_order
        };
        assert!(of(0, &[2]) && of(1, &[0x1093, 2]) && of(2, &[]));
        assert!(!of(0, &[1]) && !of(1, &[0x1096, 1, 0x1093, 3]));
    }
}
