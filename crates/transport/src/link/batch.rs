//! Trains: frames that belong together, such as the parts of one copy. Until the last of them is sent, other threads do not send
//! what a GPU must not see between two of them; everything else passes.
//!
//! Nobody pays for that but who waits: a train moves the limit with which each frame is compared anyway ([`crate::link::gate`]). Who is
//! aboard never waits for a train, since none begins that meets another. So a train comes to its end, whatever those hold who
//! wait for it; but for staging pieces, of which it has some to itself ([`crate::shm::staging`]).

use std::cell::Cell;

use katydid_wire::frame::FrameHead;

/// Wire ids of a context and a stream.
pub type Place = (u32, u32);

/// How a kind of session tells what meets.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// The stream to whose work a frame, given by opcode and payload, adds something.
    pub stream: fn(u16, &[u8]) -> Option<u32>,
    /// Whether the work of one place is in order with that of the other.
    pub meet: fn(Place, Place) -> bool,
}

/// What of a frame counts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wagon<'a> {
    pub(crate) opcode: u16,
    pub(crate) context: u32,
    pub(crate) payload: &'a [u8],
}

impl<'a> Wagon<'a> {
    /// A frame with this head, and a payload whose first part has all fields.
    pub(crate) fn of(head: &FrameHead, parts: &[&'a [u8]]) -> Self {
        Self { opcode: head.opcode, context: head.context, payload: parts.first().copied().unwrap_or_default() }
    }
}

thread_local! {
    /// The train that the calling thread's frames belong to; 0: none.
    static MINE: Cell<u64> = const { Cell::new(0) };
}

/// Gets off, however that comes.
struct Aboard(u64);

impl Drop for Aboard {
    fn drop(&mut self) {
        MINE.set(self.0);
    }
}

/// Runs `body`, whose frames belong to the train of this number.
pub fn aboard<T>(number: u64, body: impl FnOnce() -> T) -> T {
    let _off = Aboard(MINE.replace(number));
    body()
}

/// Whether the calling thread's frames belong to a train.
pub(crate) fn is_aboard() -> bool {
    MINE.get() != 0
}

#[derive(Debug)]
struct Train {
    number: u64,
    place: Place,
    rules: Rules,
}

/// Those that are under way on a link, kept under the lock of its frames.
#[derive(Debug, Default)]
pub(crate) struct Trains {
    all: Vec<Train>,
    /// Number of the last one.
    last: u64,
    /// Somebody waits for the end of one.
    is_awaited: bool,
}

impl Trains {
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether the calling thread may send a frame now.
    pub(crate) fn admit(&mut self, frame: Wagon<'_>) -> bool {
        let mine = MINE.get();
        let meets = |train: &Train| {
            let stream = (train.rules.stream)(frame.opcode, frame.payload);
            stream.is_some_and(|stream| (train.rules.meet)(train.place, (frame.context, stream)))
        };
        self.wait_if(|train| train.number != mine && meets(train))
    }

    /// Begins one; none while there is one that it would meet.
    pub(crate) fn begin(&mut self, place: Place, rules: Rules) -> Option<u64> {
        self.wait_if(|train| (rules.meet)(train.place, place)).then(|| {
            self.last += 1;
            self.all.push(Train { number: self.last, place, rules });
            self.last
        })
    }

    /// False if the caller has to wait for such a train.
    fn wait_if(&mut self, is_in_the_way: impl Fn(&Train) -> bool) -> bool {
        let is_free = !self.all.iter().any(is_in_the_way);
        self.is_awaited |= !is_free;
        is_free
    }

    /// Ends one. Whether somebody may have waited for that.
    pub(crate) fn end(&mut self, number: u64) -> bool {
        self.all.retain(|train| train.number != number);
        std::mem::take(&mut self.is_awaited)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A frame of an odd opcode names the stream that is its payload; streams meet within a context, stream 0 all of them.
    pub(crate) const RULES: Rules = Rules {
        stream: |opcode, payload| payload.first().filter(|_| opcode % 2 == 1).map(|stream| u32::from(*stream)),
        meet: |one, other| one.0 == other.0 && (one.1 == other.1 || one.1 == 0 || other.1 == 0),
    };

    fn frame(opcode: u16, context: u32, stream: &[u8]) -> Wagon<'_> {
        Wagon { opcode, context, payload: stream }
    }

    #[test]
    fn only_what_meets_a_train_waits_for_it() {
        let mut trains = Trains::default();
        let number = trains.begin((1, 5), RULES).unwrap();
        assert!(trains.admit(frame(1, 1, &[6])) && trains.admit(frame(1, 2, &[5])) && trains.admit(frame(2, 1, &[5])));
        assert!(!trains.is_awaited && !trains.admit(frame(1, 1, &[5])) && !trains.admit(frame(3, 1, &[0])));
        assert!(trains.end(number) && trains.is_empty());
        assert!(trains.admit(frame(1, 1, &[5])));
    }

    #[test]
    fn who_is_aboard_passes_and_two_that_meet_follow_each_other() {
        let mut trains = Trains::default();
        let first = trains.begin((1, 5), RULES).unwrap();
        assert!(trains.begin((1, 0), RULES).is_none() && trains.begin((1, 5), RULES).is_none());
        let other = trains.begin((1, 6), RULES).unwrap();
        assert!(aboard(first, || is_aboard() && trains.admit(frame(1, 1, &[5]))) && !is_aboard());
        assert!(!aboard(other, || trains.admit(frame(1, 1, &[5]))));
        assert!(trains.end(first) && trains.begin((1, 5), RULES).is_some());
        assert!(!trains.end(other), "nobody has waited since");
    }
}
