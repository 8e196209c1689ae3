//! User objects: objects of the program that graphs keep alive, by counted references.

use std::collections::{BTreeMap, HashMap};

use katydid_cuda_sys::{CUresult, CUuserObject};

use crate::handles::{handle, number};
use crate::outcome::Outcome;

/// The first handle of user objects.
const FIRST_OBJECT_HANDLE: usize = 0x0055_0000_0000_0000;

/// A user object (`CUuserObject`): its destructor and count.
#[derive(Debug)]
struct Object {
    function: usize,
    data: usize,
    /// References of the program and of all graphs.
    count: u64,
}

/// All objects, and those whose last reference is gone.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    objects: HashMap<u32, Object>,
    /// Destructors to run once the lock is free: function and data.
    pending_destructors: Vec<(usize, usize)>,
}

impl Objects {
    /// Makes an object with `count` references of the program.
    pub(crate) fn create(&mut self, id: u32, function: usize, data: usize, count: u32) -> CUuserObject {
        self.objects.insert(id, Object { function, data, count: u64::from(count) });
        CUuserObject(handle(id, FIRST_OBJECT_HANDLE))
    }

    /// Returns the number of a live object.
    pub(crate) fn id(&self, object: CUuserObject) -> Outcome<u32> {
        let id = number(object.0.addr(), FIRST_OBJECT_HANDLE).filter(|id| self.objects.contains_key(id));
        id.ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    pub(crate) fn retain(&mut self, id: u32, count: u32) {
        if let Some(object) = self.objects.get_mut(&id) {
            object.count += u64::from(count);
        }
    }

    pub(crate) fn release(&mut self, id: u32, count: u32) {
        let Some(object) = self.objects.get_mut(&id) else { return };
        object.count = object.count.saturating_sub(u64::from(count));
        if object.count == 0 {
            self.pending_destructors.push((object.function, object.data));
            self.objects.remove(&id);
        }
    }

    /// Adds a graph's references again for its copy.
    pub(crate) fn retain_all(&mut self, references: &BTreeMap<u32, u32>) {
        references.iter().for_each(|(id, count)| self.retain(*id, *count));
    }

    pub(crate) fn drop_all(&mut self, references: &BTreeMap<u32, u32>) {
        references.iter().for_each(|(id, count)| self.release(*id, *count));
    }

    /// Takes the destructors to run now.
    pub(crate) fn take_pending_destructors(&mut self) -> Vec<(usize, usize)> {
        std::mem::take(&mut self.pending_destructors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropping_the_last_reference_queues_the_destructor() {
        let mut objects = Objects::default();
        let object = objects.create(3, 0x10, 0x20, 2);
        assert_eq!(objects.id(object), Ok(3));
        objects.release(3, 1);
        objects.retain_all(&BTreeMap::from([(3, 2)]));
        objects.release(3, 1);
        assert!(objects.take_pending_destructors().is_empty());
        objects.drop_all(&BTreeMap::from([(3, 2)]));
        assert_eq!(objects.take_pending_destructors(), [(0x10, 0x20)]);
        assert!(objects.take_pending_destructors().is_empty() && objects.id(object).is_err());
    }
}
