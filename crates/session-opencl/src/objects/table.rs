//! The objects of a session by their ids, which the shim assigns: a kind, and a number within that kind.
//!
//! An id that names nothing, or an object of another kind, returns a code to the program. An id that is assigned twice, or
//! exceeds every id of an honest program, ends the session.

use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use katydid_opencl_sys::{Code, Dispatch, void};
use katydid_wire::opencl::{KIND_SHIFT, id};

use crate::calls::fault::SessionError;
use crate::objects::lifetimes::{LeakedRef, ObjectRef, OwnedObject};
use crate::objects::object::{Handle, Object};

/// Numbers are below this; the shim has room for as many objects of a kind.
const MAX_SESSION_OBJECTS: usize = 1 << 24;
/// Kinds of objects are numbered below this.
const OBJECT_KINDS: usize = 10;

/// Objects by kind and number.
type Entries = [Vec<Option<LeakedRef>>; OBJECT_KINDS];

/// Every object of a session, by its id.
#[derive(Default)]
pub(crate) struct Objects {
    entries: Mutex<Entries>,
}

/// Splits an id into kind and number.
fn parts(id: u32) -> (usize, usize) {
    ((id >> KIND_SHIFT) as usize, (id & ((1 << KIND_SHIFT) - 1)) as usize)
}

/// Returns the vacant entry for an id.
fn vacant<H: Handle>(entries: &mut Entries, id: u32) -> Result<&mut Option<LeakedRef>, SessionError> {
    let (kind, number) = parts(id);
    if kind != H::KIND as usize || number >= MAX_SESSION_OBJECTS {
        return Err(SessionError::BadNewId { id, why: "no honest program gives" });
    }
    let Some(list) = entries.get_mut(kind) else { return Err(SessionError::BadNewId { id, why: "is of no kind" }) };
    if list.len() <= number {
        list.resize_with(number + 1, || None);
    }
    list.get_mut(number).filter(|entry| entry.is_none()).ok_or(SessionError::BadNewId { id, why: "another object has" })
}

impl Objects {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, id: u32) -> Option<Object<*mut void>> {
        let (kind, number) = parts(id);
        Some(self.lock().get(kind)?.get(number)?.as_ref()?.object())
    }

    /// Returns a reference to the object of an id.
    pub(crate) fn hold<H: Handle>(&self, id: u32) -> Result<ObjectRef, Code> {
        let (kind, number) = parts(id);
        let entries = self.lock();
        let found = entries.get(kind).and_then(|list| list.get(number)?.as_ref());
        found.filter(|_| id >> KIND_SHIFT == H::KIND).map(|hold| ObjectRef::clone(hold)).ok_or(H::WRONG)
    }

    /// Returns references to the objects of several ids.
    pub(crate) fn hold_all<H: Handle>(&self, ids: &[u32]) -> Result<Vec<ObjectRef>, Code> {
        ids.iter().map(|id| self.hold::<H>(*id)).collect()
    }

    /// Returns the object of an id.
    pub(crate) fn get<H: Handle>(&self, id: u32) -> Result<Object<H>, Code> {
        let found = self.find(id).filter(|_| id >> KIND_SHIFT == H::KIND).ok_or(H::WRONG)?;
        Ok(Object { handle: H::new(found.handle), api: found.api, size: found.size })
    }

    /// Returns the object of an id if it belongs to this driver: drivers cannot use each other's objects.
    pub(crate) fn get_of<H: Handle>(&self, api: &Dispatch, id: u32) -> Result<Object<H>, Code> {
        self.get(id).and_then(|object| if ptr::eq(object.api, api) { Ok(object) } else { Err(H::WRONG) })
    }

    /// Returns all objects of a kind, by id.
    pub(crate) fn of<H: Handle>(&self) -> Vec<(u32, Object<H>)> {
        let entries = self.lock();
        let list = entries.get(H::KIND as usize).into_iter().flatten();
        let some = (0..).zip(list).filter_map(|(number, entry)| Some((number, entry.as_ref()?.object())));
        some.map(|(number, object)| {
            (id(H::KIND, number), Object { handle: H::new(object.handle), api: object.api, size: object.size })
        })
        .collect()
    }

    /// Returns the handles of several ids, whose objects belong to one driver.
    pub(crate) fn all_of<H: Handle>(&self, api: &Dispatch, ids: &[u32]) -> Result<Vec<H>, Code> {
        ids.iter().map(|id| self.get_of::<H>(api, *id).map(|object| object.handle)).collect()
    }

    /// Returns whether an id names an object.
    pub(crate) fn has(&self, id: u32) -> bool {
        self.find(id).is_some()
    }

    /// Returns the raw handle of an id of any kind, if its object belongs to this driver; null for 0.
    pub(crate) fn any_of(&self, api: &Dispatch, id: u32) -> Option<*mut void> {
        if id == 0 {
            return Some(ptr::null_mut());
        }
        self.find(id).filter(|object| ptr::eq(object.api, api)).map(|object| object.handle)
    }

    /// Checks that an id can be assigned to an object.
    pub(crate) fn check_vacant<H: Handle>(&self, id: u32) -> Result<(), SessionError> {
        vacant::<H>(&mut self.lock(), id).map(drop)
    }

    /// Assigns an id to an object that is made of others.
    pub(crate) fn set<H: Handle>(
        &self,
        id: u32,
        object: Object<H>,
        made_of: Vec<ObjectRef>,
    ) -> Result<(), SessionError> {
        self.set_held::<H>(id, OwnedObject::new(object, made_of))
    }

    /// Assigns an id to an object that the session holds.
    pub(crate) fn set_held<H: Handle>(&self, id: u32, hold: ObjectRef) -> Result<(), SessionError> {
        *vacant::<H>(&mut self.lock(), id)? = Some(ManuallyDrop::new(hold));
        Ok(())
    }

    /// Removes an object from the table; `None` if the id names none.
    pub(crate) fn take(&self, id: u32) -> Option<ObjectRef> {
        let (kind, number) = parts(id);
        let entry = self.lock().get_mut(kind)?.get_mut(number)?.take()?;
        Some(ManuallyDrop::into_inner(entry))
    }
}

#[cfg(test)]
mod tests {
    use katydid_opencl_sys::{cl_event, cl_mem};
    use katydid_wire::opencl::kind;

    use super::*;
    use crate::tests::empty_table;

    fn api() -> &'static Dispatch {
        Box::leak(Box::new(empty_table()))
    }

    #[test]
    fn ids_name_objects_of_their_kind_until_they_are_taken() {
        let objects = Objects::default();
        let handle = cl_mem(std::ptr::without_provenance_mut(64));
        let third = id(kind::MEMORY, 3);
        objects.set(third, Object { handle, api: api(), size: 8 }, Vec::new()).unwrap();
        assert_eq!(objects.get::<cl_mem>(third).unwrap().handle, handle);
        assert_eq!(objects.get::<cl_event>(third).unwrap_err(), Code::INVALID_EVENT);
        assert_eq!(objects.get::<cl_event>(id(kind::EVENT, 3)).unwrap_err(), Code::INVALID_EVENT);
        assert_eq!(objects.get::<cl_mem>(third - 1).unwrap_err(), Code::INVALID_MEM_OBJECT);
        assert!(objects.set(third, Object { handle, api: api(), size: 8 }, Vec::new()).is_err());
        assert!(objects.check_vacant::<cl_mem>(third).is_err() && objects.check_vacant::<cl_mem>(third + 1).is_ok());
        assert_eq!(objects.take(third).unwrap().kind(), kind::MEMORY);
        assert!(objects.take(third).is_none() && objects.get::<cl_mem>(third).is_err());
    }

    #[test]
    fn ids_out_of_bounds_are_refused() {
        let objects = Objects::default();
        for id in [0, id(kind::MEMORY, 0), id(kind::EVENT, 1 << 24), u32::MAX] {
            assert!(objects.set(id, Object { handle: cl_event::NULL, api: api(), size: 0 }, Vec::new()).is_err());
            assert!(objects.check_vacant::<cl_event>(id).is_err());
        }
        let any = |id| objects.any_of(api(), id);
        assert!(any(0).unwrap().is_null() && any(5).is_none() && any(u32::MAX).is_none());
    }

    #[test]
    fn no_driver_is_given_what_another_one_made() {
        let (objects, one, other) = (Objects::default(), api(), api());
        let (id, handle) = (id(kind::MEMORY, 1), cl_mem(std::ptr::without_provenance_mut(64)));
        objects.set(id, Object { handle, api: one, size: 8 }, Vec::new()).unwrap();
        assert!(objects.get_of::<cl_mem>(one, id).is_ok() && objects.any_of(one, id) == Some(handle.0));
        assert_eq!(objects.all_of::<cl_mem>(one, &[id, id]), Ok(vec![handle; 2]));
        assert_eq!(objects.get_of::<cl_mem>(other, id).unwrap_err(), Code::INVALID_MEM_OBJECT);
        assert_eq!(objects.all_of::<cl_mem>(other, &[id]), Err(Code::INVALID_MEM_OBJECT));
        assert!(objects.any_of(other, id).is_none());
    }
}
