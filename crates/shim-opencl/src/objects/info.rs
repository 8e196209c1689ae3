//! Queries: the values, and how they are returned.
//!
//! The shim itself answers queries for reference counts and for values that are objects. Everything else is the driver's; values
//! that cannot change are queried once.
#![expect(unsafe_code, reason = "writes values where C callers want them")]

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use katydid_client::ffi::write_optional;
use katydid_opencl_sys::{Code, void};
use katydid_wire::codec::Field as _;
use katydid_wire::opencl::MAX_REPLY_VALUE_BYTES;
use katydid_wire::opencl::message::{kdclBlob, kdclInfo};

use crate::process::session;

/// The caller's buffer for a query: its capacity, and where to store the needed size.
#[derive(Clone, Copy)]
pub(crate) struct QueryBuffer {
    pub(crate) size: usize,
    pub(crate) value: *mut void,
    pub(crate) needed: *mut usize,
}

impl QueryBuffer {
    /// Returns a value to the caller.
    ///
    /// # Safety
    ///
    /// `value` is null or writable for `size` bytes, `needed` is null or writable.
    pub(crate) unsafe fn answer(self, bytes: &[u8]) -> Result<(), Code> {
        if !self.value.is_null() {
            if self.size < bytes.len() {
                return Err(Code::INVALID_VALUE);
            }
            // SAFETY: writable for at least as many bytes, by the contract and the check.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.value.cast::<u8>(), bytes.len()) };
        }
        // SAFETY: by the contract.
        unsafe { write_optional(self.needed, bytes.len()) };
        Ok(())
    }
}

/// Sends a `kdclInfo` query to the worker and returns the value.
pub(crate) fn ask(query: u32, object: u32, second: u32, parameter: u32, input: &[u8]) -> Result<Vec<u8>, Code> {
    let reply = session::call(&kdclInfo { query, object, second, parameter, input })?;
    let mut value = reply.value;
    while (value.len() as u64) < reply.size {
        let part = session::call(&kdclBlob { offset: value.len() as u64, size: MAX_REPLY_VALUE_BYTES as u32 })?.data;
        if part.is_empty() {
            return Err(session::broken("kdclBlob"));
        }
        value.extend(part);
    }
    Ok(value)
}

/// Values of one object that change only with the worker.
#[derive(Debug, Default)]
pub(crate) struct CachedValues {
    values: Mutex<ValueTable>,
}

#[derive(Debug, Default)]
struct ValueTable {
    /// The number of the worker that sent them ([`crate::process::session::worker`]).
    worker: u32,
    values: HashMap<QueryKey, Vec<u8>>,
}

/// Kind of the query, a second object or index, parameter.
type QueryKey = (u32, u32, u32);

impl ValueTable {
    fn get(&mut self, worker: u32, question: QueryKey) -> Option<Vec<u8>> {
        if worker != self.worker {
            *self = Self { worker, ..Self::default() };
        }
        self.values.get(&question).cloned()
    }

    /// Stores an answer, if the query began while that worker was the session's.
    fn put(&mut self, worker: u32, question: QueryKey, value: Vec<u8>) {
        if worker == self.worker {
            self.values.insert(question, value);
        }
    }
}

impl CachedValues {
    /// Makes a cache of the facts that a worker sent when it made the object; `worker` was its number before the call.
    pub(crate) fn from_worker(worker: u32, facts: &[u8]) -> Self {
        let cached = Self { values: Mutex::new(ValueTable { worker, ..ValueTable::default() }) };
        cached.learn(worker, facts);
        cached
    }

    /// Stores a worker's facts about the object; `worker` was its number before the call.
    pub(crate) fn learn(&self, worker: u32, mut facts: &[u8]) {
        let is_same = session::worker() == Ok(worker);
        while let (true, Some(query), Some(parameter), Some(value)) =
            (is_same, u32::take(&mut facts), u32::take(&mut facts), Vec::<u8>::take(&mut facts))
        {
            self.values().put(worker, (query, 0, parameter), value);
        }
    }

    /// Returns the value; queries it the first time.
    pub(crate) fn ask(&self, query: u32, object: u32, parameter: u32) -> Result<Vec<u8>, Code> {
        self.ask_for(query, object, 0, parameter)
    }

    /// Returns the value for a device or an index.
    pub(crate) fn ask_for(&self, query: u32, object: u32, second: u32, parameter: u32) -> Result<Vec<u8>, Code> {
        let (worker, question) = (session::worker()?, (query, second, parameter));
        if let Some(value) = self.values().get(worker, question) {
            return Ok(value);
        }
        let value = ask(query, object, second, parameter, &[])?;
        // The worker may have changed meanwhile; then it is unknown which one answered.
        if session::worker()? == worker {
            self.values().put(worker, question, value.clone());
        }
        Ok(value)
    }

    fn values(&self) -> MutexGuard<'_, ValueTable> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Encodes a list of handles or sizes as a value.
pub(crate) fn handles(values: impl IntoIterator<Item = usize>) -> Vec<u8> {
    values.into_iter().flat_map(|value| (value as u64).to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use katydid_wire::opencl::query;

    use super::*;

    #[test]
    fn values_need_capacity_and_report_their_size() {
        let (mut value, mut needed) = ([0u8; 4], 0);
        let buffer = QueryBuffer { size: 4, value: value.as_mut_ptr().cast(), needed: &raw mut needed };
        // SAFETY: locals of the stated sizes.
        unsafe {
            assert_eq!(buffer.answer(b"abcde"), Err(Code::INVALID_VALUE));
            assert_eq!(buffer.answer(b"abc"), Ok(()));
            assert_eq!(QueryBuffer { size: 0, value: std::ptr::null_mut(), ..buffer }.answer(b"abcde"), Ok(()));
        }
        assert_eq!((&value, needed), (b"abc\0", 5));
    }

    #[test]
    fn answers_of_another_worker_are_not_cached() {
        let (mut values, question) = (ValueTable::default(), (query::WORK_GROUP, 7, 1));
        assert_eq!(values.get(0, question), None);
        values.put(0, question, vec![1]);
        assert_eq!(values.get(0, question), Some(vec![1]));
        for other in [(query::KERNEL, 7, 1), (query::WORK_GROUP, 8, 1), (query::WORK_GROUP, 7, 2)] {
            assert_eq!(values.get(0, other), None, "{other:?}");
        }
        assert_eq!(values.get(1, question), None);
        values.put(0, question, vec![1]);
        assert_eq!(values.get(1, question), None);
    }
}
