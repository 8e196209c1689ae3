//! Memory for bulk replies that each thread keeps: fresh memory costs a page fault for every 4 KiB each time.

use std::cell::Cell;

thread_local! {
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Returns `size` bytes, with contents of this thread's earlier replies.
pub(crate) fn take(size: usize) -> Vec<u8> {
    let mut bytes = BUFFER.take();
    bytes.resize(size, 0);
    bytes
}

/// Keeps the memory of a sent reply, unless the kept memory is larger.
pub(crate) fn keep(bytes: Vec<u8>) {
    let buffer = BUFFER.take();
    BUFFER.set(if buffer.capacity() > bytes.capacity() { buffer } else { bytes });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_uses_the_memory_of_the_one_before() {
        let first = take(1000);
        let address = first.as_ptr();
        keep(first);
        keep(Vec::new());
        let second = take(900);
        assert_eq!((second.as_ptr(), second.len()), (address, 900));
    }
}
