//! Texture and surface references: variables of a module to which the program binds textures and surfaces.
//!
//! Device code names a reference by its address. A reference stands for an object without a number, remade at each change. A
//! launch keeps the table of all bindings at its submission, so a later change does not affect it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use katydid_cuda_sys::{
    CUDA_ARRAY_DESCRIPTOR, CUDA_RESOURCE_DESC, CUDA_TEXTURE_DESC, CUarray, CUmipmappedArray, CUresult,
};
use katydid_driver_rules::texture::resource_kind as kind;

use crate::ffi::Outcome;
use crate::process::handles::{Registry, new_handle};
use crate::process::state;
use crate::texture::array;
use crate::texture::format::{Format, channel, check_channels};
use crate::texture::object::{Bindings, Object, TEXTURE_ALIGN_BYTES};

const INVALID_VALUE: CUresult = CUresult::ERROR_INVALID_VALUE;

/// Replaced as a whole: launches hold earlier tables.
static REFERENCE_BINDINGS: RwLock<Option<Bindings>> = RwLock::new(None);

/// Returns the present bindings.
pub(crate) fn bindings() -> Bindings {
    REFERENCE_BINDINGS.read().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default()
}

fn change_bindings(change: impl FnOnce(&mut HashMap<u64, Arc<Object>>)) {
    let mut bindings = REFERENCE_BINDINGS.write().unwrap_or_else(PoisonError::into_inner);
    change(Arc::make_mut(bindings.get_or_insert_default()));
}

/// Settings of a reference.
#[derive(Clone, Default)]
pub(crate) struct ReferenceState {
    /// Description of how code reads it.
    pub(crate) description: CUDA_TEXTURE_DESC,
    /// Format code and number of channels.
    pub(crate) format: (u32, u32),
    /// Resource of the reference; `None` if unbound.
    pub(crate) resource: Option<CUDA_RESOURCE_DESC>,
}

/// A texture or surface reference of a module.
pub(crate) struct Reference {
    /// Handle that programs know the reference by.
    pub(crate) handle: usize,
    is_surface: bool,
    /// Handle of its module, 0 for none, and its address.
    module: (usize, u64),
    /// Id of its context.
    context: u64,
    state: Mutex<ReferenceState>,
}

/// References that were looked up.
static TEXTURE_REFERENCES: Registry<Reference> = Registry::new();

/// Returns the reference at an address in a module (handle) of a context (id), always with the same handle.
pub(crate) fn of_module(module: usize, address: u64, context: u64, is_surface: bool) -> Arc<Reference> {
    let is_same = |it: &Arc<Reference>| it.module == (module, address) && it.is_surface == is_surface;
    let reference = TEXTURE_REFERENCES.all().into_iter().find(is_same);
    reference.unwrap_or_else(|| register((module, address), context, is_surface))
}

/// Creates a texture reference that no code reads.
pub(crate) fn create(context: u64) -> Arc<Reference> {
    register((0, 0), context, false)
}

fn register(module: (usize, u64), context: u64, is_surface: bool) -> Arc<Reference> {
    let (handle, state) = (new_handle(), Mutex::default());
    let reference = Arc::new(Reference { handle, is_surface, module, context, state });
    TEXTURE_REFERENCES.insert(handle, Arc::clone(&reference));
    reference
}

/// The reference behind a handle.
pub(crate) fn resolve(handle: u64, is_surface: bool) -> Outcome<Arc<Reference>> {
    state::ready()?;
    let found = TEXTURE_REFERENCES.get(handle as usize).filter(|reference| reference.is_surface == is_surface);
    found.ok_or(CUresult::ERROR_INVALID_HANDLE)
}

/// `cuTexRefDestroy`: refuses a reference of a module.
pub(crate) fn destroy(handle: u64) -> Outcome {
    if resolve(handle, false)?.module.0 != 0 {
        return Err(INVALID_VALUE);
    }
    TEXTURE_REFERENCES.remove(handle as usize).map(drop).ok_or(CUresult::ERROR_INVALID_HANDLE)
}

/// Ends the references of a module.
pub(crate) fn forget_module(module: usize) {
    end(|reference| reference.module.0 == module);
}

/// Ends the references of a context.
pub(crate) fn forget(context: u64) {
    end(|reference| reference.context == context);
}

fn end(which: impl Fn(&Reference) -> bool) {
    let gone = TEXTURE_REFERENCES.remove_if(which);
    if !gone.is_empty() {
        change_bindings(|all| gone.iter().for_each(|reference| drop(all.remove(&reference.module.1))));
    }
}

impl Reference {
    /// Returns its settings.
    pub(crate) fn state(&self) -> ReferenceState {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes its settings, also for later launches. A refused change has no effect.
    pub(crate) fn change(&self, with: impl FnOnce(&mut ReferenceState) -> Outcome) -> Outcome {
        let mut current = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = current.clone();
        with(&mut state)?;
        let object = match (&state.resource, self.is_surface) {
            (None, _) => None,
            (Some(resource), true) => Some(Object::surface(*resource)?),
            (Some(resource), false) => Some(Object::texture(*resource, state.description, None, Some(state.format))?),
        };
        if let Some(object) = object {
            change_bindings(|all| drop(all.insert(self.module.1, Arc::new(object))));
        }
        *current = state;
        Ok(())
    }
}

/// Returns a resource of a kind, with these words.
fn resource(kind: u32, fields: &[u64]) -> CUDA_RESOURCE_DESC {
    let mut it = CUDA_RESOURCE_DESC { resType: kind, ..CUDA_RESOURCE_DESC::default() };
    it.res.iter_mut().zip(fields).for_each(|(out, word)| *out = *word);
    it
}

impl ReferenceState {
    /// Binds an array, in its format.
    pub(crate) fn bind_array(&mut self, array: CUarray) -> Outcome {
        let format = array::resolve(array)?.format;
        self.take_format(&format);
        self.resource = Some(resource(kind::ARRAY, &[array.address()]));
        Ok(())
    }

    /// Binds a mipmap, in its format.
    pub(crate) fn bind_mipmap(&mut self, mipmap: CUmipmappedArray) -> Outcome {
        let format = array::resolve_mipmap(mipmap)?.levels.first().ok_or(INVALID_VALUE)?.format;
        self.take_format(&format);
        self.resource = Some(resource(kind::MIPMAP, &[mipmap.address()]));
        Ok(())
    }

    fn take_format(&mut self, format: &Format) {
        let descriptor = format.descriptor();
        self.format = (descriptor.Format, descriptor.NumChannels);
    }

    /// Binds linear memory from the aligned address at or below `address`. Returns the bytes between the two.
    pub(crate) fn bind_memory(&mut self, address: u64, bytes: u64) -> Outcome<u64> {
        let offset = address % TEXTURE_ALIGN_BYTES;
        let format = u64::from(self.format.0) | u64::from(self.format.1) << 32;
        self.resource = Some(resource(kind::LINEAR, &[address - offset, format, bytes.saturating_add(offset)]));
        Ok(offset)
    }

    /// Binds pitched memory (`cuTexRefSetAddress2D`).
    pub(crate) fn bind_rows(&mut self, it: &CUDA_ARRAY_DESCRIPTOR, address: u64, pitch: u64) {
        self.format = (it.Format, it.NumChannels);
        let format = u64::from(it.Format) | u64::from(it.NumChannels) << 32;
        let fields = [address, format, it.Width as u64, it.Height as u64, pitch];
        self.resource = Some(resource(kind::PITCHED, &fields));
    }

    /// Sets the format of texels, also of bound linear memory.
    pub(crate) fn set_format(&mut self, code: u32, channels: i32) -> Outcome {
        let channels = u32::try_from(channels).map_err(|_| INVALID_VALUE)?;
        channel(code)?;
        check_channels(channels)?;
        self.format = (code, channels);
        if let Some(it) = self.resource.as_mut().filter(|it| it.resType == kind::LINEAR) {
            it.res[1] = u64::from(code) | u64::from(channels) << 32;
        }
        Ok(())
    }

    /// Returns the word of the resource that names the bound object or memory, if it is of one of these kinds.
    pub(crate) fn bound(&self, kinds: &[u32]) -> Outcome<u64> {
        let it = self.resource.as_ref().filter(|it| kinds.contains(&it.resType));
        it.map(|it| it.res[0]).ok_or(INVALID_VALUE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unaligned_address_begins_below_and_says_by_how_much() {
        let mut state = ReferenceState { format: (0x20, 1), ..ReferenceState::default() };
        assert_eq!(state.bind_memory(0x1010, 64), Ok(16));
        assert_eq!(state.bound(&[kind::LINEAR]), Ok(0x1000));
        assert_eq!(state.bound(&[kind::ARRAY]), Err(INVALID_VALUE));
        assert_eq!(state.set_format(0x20, 2).and_then(|()| state.set_format(0x20, 3)), Err(INVALID_VALUE));
    }

    #[test]
    fn references_of_no_module_can_be_ended_once() {
        crate::process::init::initialize(0).unwrap();
        let handle = create(u64::MAX).handle as u64;
        assert!(resolve(handle, false).is_ok() && resolve(handle, true).is_err());
        assert_eq!((destroy(handle), destroy(handle)), (Ok(()), Err(CUresult::ERROR_INVALID_HANDLE)));
    }
}
