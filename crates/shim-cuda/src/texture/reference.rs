//! Texture references: named in a module; the program binds them to an array or memory, and sets one property per call.
//!
//! The shim keeps all settings of a reference and sends them with every change, so that the worker and a journal need only
//! the last message. The driver's resulting state comes back, and answers queries. If the driver refuses a change, the
//! reference stays unchanged.
#![expect(unsafe_code, reason = "reads and writes memory of C callers")]

use std::any::Any;
use std::ffi::c_char;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use katydid_client::ffi::write_optional;
use katydid_client::slab::SlabSlot;
use katydid_cuda_sys::{
    CUDA_ARRAY_DESCRIPTOR, CUaddress_mode, CUarray, CUarray_format, CUdeviceptr, CUfilter_mode, CUmipmappedArray,
    CUmodule, CUresult, CUtexref,
};
use katydid_driver_rules::caller::read;
use katydid_driver_rules::texture::resource_kind::{ARRAY, LINEAR, MIPMAP, PITCHED};
use katydid_driver_rules::texture::{check_reference_flags, reference_dimension};
use katydid_wire::message::{kdReferenceDestroy, kdTextureReference, kdTextureReferenceSet};
use katydid_wire::reference::{ReferenceArguments, ReferenceFacts, property, sampler_word};
use katydid_wire::texture::TextureArguments;

use crate::context::record::Context;
use crate::context::{device, stack};
use crate::ffi::arguments::{Out, handle, out, text};
use crate::ffi::handle::{Handle, HandleTable, object};
use crate::process::session::shim;
use crate::texture::array::{Array, Mipmap};

const INVALID_VALUE: CUresult = CUresult::ERROR_INVALID_VALUE;

/// A texture reference of a module, or of the program.
pub(crate) struct TextureReference {
    pub(crate) slot: SlabSlot,
    pub(crate) context: Arc<Context>,
    /// Handle of its module; 0 for one that the program created.
    module: usize,
    name: Vec<u8>,
    state: Mutex<TextureReferenceState>,
}

/// The settings of a reference.
#[derive(Clone, Default)]
struct TextureReferenceState {
    arguments: ReferenceArguments,
    /// The array or mipmap, with the program's handle.
    bound: Option<BoundArray>,
}

/// An array or mipmap that a reference does not keep alive.
#[derive(Clone)]
struct BoundArray {
    handle: usize,
    object: Weak<dyn Any + Send + Sync>,
}

/// Texture references of all modules, and those that the program created.
pub(crate) static TEXTURE_REFERENCES: HandleTable<TextureReference> = HandleTable::new();

impl Handle for CUtexref {
    type Object = TextureReference;

    fn table() -> &'static HandleTable<TextureReference> {
        &TEXTURE_REFERENCES
    }

    fn value(self) -> usize {
        self.0.addr()
    }
}

impl TextureReference {
    /// The number that messages carry: odd, as those of surfaces are even.
    pub(crate) fn wire(&self) -> u32 {
        self.slot.index * 2 + 1
    }

    fn handle(&self) -> CUtexref {
        CUtexref(handle(self.slot.handle))
    }

    fn state(&self) -> MutexGuard<'_, TextureReferenceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TextureReferenceState {
    /// Takes over the driver's state.
    fn learn(&mut self, facts: &[u8]) -> Result<(), CUresult> {
        let Some(facts) = ReferenceFacts::decode(facts) else {
            return Err(shim()?.session.broken("a texture reference"));
        };
        let texture = &mut self.arguments.texture;
        (texture.sampler, texture.format, texture.channels) = (facts.sampler, facts.format, facts.channels);
        Ok(())
    }

    /// Binds it to another resource.
    fn bind(&mut self, resource: TextureArguments) {
        let old_texture = self.arguments.texture;
        self.arguments.texture = TextureArguments { sampler: old_texture.sampler, ..resource };
        self.arguments.set |= property::RESOURCE;
        self.bound = None;
    }

    /// Binds the reference to an array or mipmap, which brings its own format.
    fn bind_array(&mut self, resource: TextureArguments, bound: BoundArray) {
        self.bind(resource);
        self.arguments.set &= !property::FORMAT;
        self.bound = Some(bound);
    }

    /// Unbinds an array that is gone.
    fn leave_gone(&mut self) {
        if self.bound.as_ref().is_some_and(|bound| bound.object.strong_count() == 0) {
            self.arguments.set &= !property::RESOURCE;
            self.bound = None;
        }
    }
}

/// Makes a new reference, in a module or in none.
fn make(module: Option<(CUmodule, &[u8])>) -> Result<Arc<TextureReference>, CUresult> {
    let shim = shim()?;
    let (context, wire, owner, name) = match module {
        Some((module, name)) => {
            let module = object(module)?;
            (Arc::clone(&module.context), module.wire(), module.slot.handle, name)
        }
        None => (stack::active()?.owner(), 0, 0, &[][..]),
    };
    TEXTURE_REFERENCES.get()?.try_insert(CUresult::ERROR_OUT_OF_MEMORY, |slot| {
        let message = kdTextureReference { reference: slot.index * 2 + 1, module: wire, name };
        let facts = shim.session.call(context.wire(), &message)?.facts;
        let mut state = TextureReferenceState::default();
        state.learn(&facts)?;
        Ok(TextureReference { slot, context, module: owner, name: name.to_vec(), state: Mutex::new(state) })
    })
}

/// Returns a module's reference of a name: the same handle every time.
///
/// # Safety
///
/// Pointers are null or valid; this holds for every function below.
pub(crate) unsafe fn of_module(target: *mut CUtexref, module: CUmodule, name: *const c_char) -> Result<(), CUresult> {
    // SAFETY: by the contract.
    let (target, name) = unsafe { (out(target)?, text(name)?) };
    stack::active()?;
    let owner = object(module)?.slot.handle;
    let existing = TEXTURE_REFERENCES.get()?.live().into_iter().find(|it| it.module == owner && it.name == name);
    let reference = existing.map_or_else(|| make(Some((module, name))), Ok)?;
    target.write(reference.handle());
    Ok(())
}

/// Creates a reference that no code reads.
///
/// # Safety
///
/// As [`of_module`].
pub(crate) unsafe fn create(target: *mut CUtexref) -> Result<(), CUresult> {
    // SAFETY: by the contract.
    let target = unsafe { out(target) }?;
    target.write(make(None)?.handle());
    Ok(())
}

/// Destroys a reference that the program created; others are refused.
pub(crate) fn destroy(reference: CUtexref) -> Result<(), CUresult> {
    let (shim, reference) = (shim()?, object(reference)?);
    if reference.module != 0 {
        return Err(INVALID_VALUE);
    }
    TEXTURE_REFERENCES.get()?.remove(reference.slot.handle);
    shim.session.enqueue(reference.context.wire(), &kdReferenceDestroy { reference: reference.wire() })
}

/// Forgets the references of a module that ended.
pub(crate) fn forget_module(module: usize) -> Result<(), CUresult> {
    let references = TEXTURE_REFERENCES.get()?;
    for reference in references.live().iter().filter(|it| it.module == module) {
        references.remove(reference.slot.handle);
    }
    Ok(())
}

/// Sends a changed state, and keeps it if the driver accepts it. Returns the driver's offset, in bytes.
fn change(reference: CUtexref, with: impl FnOnce(&mut TextureReferenceState)) -> Result<u64, CUresult> {
    let reference = object(reference)?;
    let mut current = reference.state();
    let mut state = current.clone();
    state.leave_gone();
    with(&mut state);
    let arguments = state.arguments.encode();
    let message = kdTextureReferenceSet { reference: reference.wire(), arguments: &arguments };
    let reply = shim()?.session.call(reference.context.wire(), &message)?;
    state.learn(&reply.facts)?;
    *current = state;
    Ok(reply.offset)
}

/// Sets one number of the sampler.
fn set(reference: CUtexref, bit: u32, word: usize, value: u32) -> Result<(), CUresult> {
    set_some(reference, bit, word, &[value])
}

/// Sets adjacent numbers of the sampler.
fn set_some(reference: CUtexref, bit: u32, word: usize, values: &[u32]) -> Result<(), CUresult> {
    let store = |state: &mut TextureReferenceState| {
        state.arguments.set |= bit;
        let fields = state.arguments.texture.sampler.iter_mut().skip(word);
        fields.zip(values).for_each(|(word, value)| *word = *value);
    };
    change(reference, store).map(drop)
}

/// Binds the reference to an array, with its format.
pub(crate) fn set_array(reference: CUtexref, array: CUarray, flags: u32) -> Result<(), CUresult> {
    let bound = object(array)?;
    check_reference_flags(flags)?;
    let resource = TextureArguments { kind: ARRAY, array: bound.wire(), ..TextureArguments::default() };
    let handle = bound.slot.handle;
    let object: Weak<dyn Any + Send + Sync> = Arc::<Array>::downgrade(&bound);
    change(reference, |state| state.bind_array(resource, BoundArray { handle, object })).map(drop)
}

/// Binds the reference to a mipmap, with its format.
pub(crate) fn set_mipmap(reference: CUtexref, mipmap: CUmipmappedArray, flags: u32) -> Result<(), CUresult> {
    let bound = object(mipmap)?;
    check_reference_flags(flags)?;
    let resource = TextureArguments { kind: MIPMAP, array: bound.wire(), ..TextureArguments::default() };
    let handle = bound.slot.handle;
    let object: Weak<dyn Any + Send + Sync> = Arc::<Mipmap>::downgrade(&bound);
    change(reference, |state| state.bind_array(resource, BoundArray { handle, object })).map(drop)
}

/// Binds the reference to linear memory, in the reference's format. If the address is not aligned, texels begin at the
/// aligned address below, and the call returns the bytes between. Without an output for them, the address must be aligned.
///
/// # Safety
///
/// As [`of_module`].
pub(crate) unsafe fn set_address(
    offset: *mut usize,
    reference: CUtexref,
    address: CUdeviceptr,
    size: usize,
) -> Result<(), CUresult> {
    let aligned = address.is_multiple_of(alignment(reference)?);
    if offset.is_null() && !aligned {
        return Err(INVALID_VALUE);
    }
    let outcome = change(reference, |state| {
        let TextureArguments { format, channels, .. } = state.arguments.texture;
        let memory =
            TextureArguments { kind: LINEAR, address, size: size as u64, format, channels, ..Default::default() };
        state.bind(memory);
    })?;
    // SAFETY: null or writable, by the contract.
    unsafe { write_optional(offset, outcome as usize) };
    Ok(())
}

/// Returns the alignment of texture addresses on the device of a reference, in bytes.
fn alignment(reference: CUtexref) -> Result<u64, CUresult> {
    let reference = object(reference)?;
    let device = device::all()?.get(reference.context.device as usize).ok_or(CUresult::ERROR_INVALID_DEVICE)?;
    let alignment = device.value(katydid_cuda_sys::device_attribute::TEXTURE_ALIGNMENT);
    Ok(u64::from(alignment.unsigned_abs()).max(1))
}

/// Binds the reference to memory in rows, `pitch` bytes apart.
///
/// # Safety
///
/// As [`of_module`].
pub(crate) unsafe fn set_rows(
    reference: CUtexref,
    descriptor: *const CUDA_ARRAY_DESCRIPTOR,
    address: CUdeviceptr,
    pitch: usize,
) -> Result<(), CUresult> {
    // SAFETY: null or readable, by the contract.
    let CUDA_ARRAY_DESCRIPTOR { Width, Height, Format, NumChannels } = unsafe { read(descriptor) }?;
    let memory = TextureArguments {
        kind: PITCHED,
        address,
        format: Format,
        channels: NumChannels,
        size: Width as u64,
        height: Height as u64,
        pitch: pitch as u64,
        ..TextureArguments::default()
    };
    change(reference, |state| state.bind(memory)).map(drop)
}

/// Sets the format of texels in memory; for an array, how its texels are read.
pub(crate) fn set_format(reference: CUtexref, format: CUarray_format, channels: i32) -> Result<(), CUresult> {
    let channels = u32::try_from(channels).map_err(|_| INVALID_VALUE)?;
    let store = |state: &mut TextureReferenceState| {
        state.arguments.set |= property::FORMAT;
        (state.arguments.texture.format, state.arguments.texture.channels) = (format, channels);
    };
    change(reference, store).map(drop)
}

/// Sets the address mode in one of three dimensions.
pub(crate) fn set_address_mode(reference: CUtexref, dimension: i32, mode: CUaddress_mode) -> Result<(), CUresult> {
    let dimension = reference_dimension(dimension)?;
    set(reference, property::ADDRESS_MODE << dimension, sampler_word::ADDRESS_MODE + dimension, mode)
}

/// Sets how texels are filtered.
pub(crate) fn set_filter(reference: CUtexref, mode: CUfilter_mode) -> Result<(), CUresult> {
    set(reference, property::FILTER, sampler_word::FILTER, mode)
}

/// Sets how levels of a mipmap are filtered.
pub(crate) fn set_level_filter(reference: CUtexref, mode: CUfilter_mode) -> Result<(), CUresult> {
    set(reference, property::LEVEL_FILTER, sampler_word::LEVEL_FILTER, mode)
}

/// Sets the value that is added to the chosen level.
pub(crate) fn set_level_bias(reference: CUtexref, bias: f32) -> Result<(), CUresult> {
    set(reference, property::LEVEL_BIAS, sampler_word::LEVEL_BIAS, bias.to_bits())
}

/// Sets the first and the last level that may be chosen.
pub(crate) fn set_level_clamp(reference: CUtexref, first: f32, last: f32) -> Result<(), CUresult> {
    set_some(reference, property::LEVEL_CLAMP, sampler_word::LEVEL_CLAMP, &[first.to_bits(), last.to_bits()])
}

/// Sets the most samples along the longer side of a footprint.
pub(crate) fn set_anisotropy(reference: CUtexref, most: u32) -> Result<(), CUresult> {
    set(reference, property::ANISOTROPY, sampler_word::ANISOTROPY, most)
}

/// Sets the border color outside of the image, four channels from red to alpha.
///
/// # Safety
///
/// As [`of_module`].
pub(crate) unsafe fn set_border(reference: CUtexref, color: *const f32) -> Result<(), CUresult> {
    // SAFETY: null or four floats, by the contract.
    let color = unsafe { read(color.cast::<[f32; 4]>()) }?;
    set_some(reference, property::BORDER, sampler_word::BORDER, &color.map(f32::to_bits))
}

/// Sets how texels and coordinates are read.
pub(crate) fn set_flags(reference: CUtexref, flags: u32) -> Result<(), CUresult> {
    set(reference, property::FLAGS, sampler_word::FLAGS, flags)
}

/// Returns the state of a reference that is bound to a resource of one of these kinds.
fn resource(reference: CUtexref, kinds: &[u32]) -> Result<TextureReferenceState, CUresult> {
    let state = object(reference)?.state().clone();
    let is_bound = state.arguments.set & property::RESOURCE != 0 && kinds.contains(&state.arguments.texture.kind);
    if is_bound { Ok(state) } else { Err(INVALID_VALUE) }
}

/// Returns the program's handle of the array or mipmap that a reference is bound to.
fn array_of(reference: CUtexref, kind: u32) -> Result<usize, CUresult> {
    resource(reference, &[kind])?.bound.map(|bound| bound.handle).ok_or(INVALID_VALUE)
}

/// # Safety
///
/// As [`of_module`].
pub(crate) unsafe fn array(target: *mut CUarray, reference: CUtexref) -> Result<(), CUresult> {
    // SAFETY: by the contract.
    let target = unsafe { out(target) }?;
    target.write(CUarray(handle(array_of(reference, ARRAY)?)));
    Ok(())
}

/// # Safety
///
/// As [`of_module`].
pub(crate) unsafe fn mipmap(target: *mut CUmipmappedArray, reference: CUtexref) -> Result<(), CUresult> {
    // SAFETY: by the contract.
    let target = unsafe { out(target) }?;
    target.write(CUmipmappedArray(handle(array_of(reference, MIPMAP)?)));
    Ok(())
}

/// # Safety
///
/// As [`of_module`].
pub(crate) unsafe fn address(target: *mut CUdeviceptr, reference: CUtexref) -> Result<(), CUresult> {
    // SAFETY: by the contract.
    let target = unsafe { out(target) }?;
    let state = resource(reference, &[LINEAR, PITCHED])?;
    target.write(state.arguments.texture.address);
    Ok(())
}

/// Writes a number of the sampler, decoded by `read`.
fn answer<T>(target: Out<T>, reference: CUtexref, word: usize, read: fn(u32) -> T) -> Result<(), CUresult> {
    let value = object(reference)?.state().arguments.texture.sampler.get(word).copied();
    target.write(read(value.ok_or(INVALID_VALUE)?));
    Ok(())
}

/// # Safety
///
/// As [`of_module`].
pub(crate) unsafe fn address_mode(
    target: *mut CUaddress_mode,
    reference: CUtexref,
    dimension: i32,
) -> Result<(), CUresult> {
    // SAFETY: by the contract.
    let target = unsafe { out(target) }?;
    let dimension = reference_dimension(dimension)?;
    answer(target, reference, sampler_word::ADDRESS_MODE + dimension, |mode| mode)
}

/// # Safety
///
/// As [`of_module`].
pub(crate) unsafe fn filter(target: *mut CUfilter_mode, reference: CUtexref) -> Result<(), CUresult> {
    // SAFETY: by the contract.
    answer(unsafe { out(target) }?, reference, sampler_word::FILTER, |mode| mode)
}

/// # Safety
///
/// As [`of_module`].
pub(crate) unsafe fn level_filter(target: *mut CUfilter_mode, reference: CUtexref) -> Result<(), CUresult> {
    // SAFETY: by the contract.
    answer(unsafe { out(target) }?, reference, sampler_word::LEVEL_FILTER, |mode| mode)
}

/// # Safety
///
/// As [`of_module`].
pub(crate) unsafe fn level_bias(target: *mut f32, reference: CUtexref) -> Result<(), CUresult> {
    // SAFETY: by the contract.
    answer(unsafe { out(target) }?, reference, sampler_word::LEVEL_BIAS, f32::from_bits)
}

/// # Safety
///
/// As [`of_module`].
pub(crate) unsafe fn level_clamp(first: *mut f32, last: *mut f32, reference: CUtexref) -> Result<(), CUresult> {
    // SAFETY: by the contract.
    let (first, last) = unsafe { (out(first)?, out(last)?) };
    answer(first, reference, sampler_word::LEVEL_CLAMP, f32::from_bits)?;
    answer(last, reference, sampler_word::LEVEL_CLAMP + 1, f32::from_bits)
}

/// # Safety
///
/// As [`of_module`].
pub(crate) unsafe fn anisotropy(target: *mut i32, reference: CUtexref) -> Result<(), CUresult> {
    // SAFETY: by the contract.
    answer(unsafe { out(target) }?, reference, sampler_word::ANISOTROPY, u32::cast_signed)
}

/// # Safety
///
/// As [`of_module`].
pub(crate) unsafe fn border(target: *mut f32, reference: CUtexref) -> Result<(), CUresult> {
    // SAFETY: by the contract.
    let target = unsafe { out(target.cast::<[f32; 4]>()) }?;
    let sampler = object(reference)?.state().arguments.texture.sampler;
    let [.., red, green, blue, alpha] = sampler;
    target.write([red, green, blue, alpha].map(f32::from_bits));
    Ok(())
}

/// # Safety
///
/// As [`of_module`].
pub(crate) unsafe fn flags(target: *mut u32, reference: CUtexref) -> Result<(), CUresult> {
    // SAFETY: by the contract.
    answer(unsafe { out(target) }?, reference, sampler_word::FLAGS, |flags| flags)
}

/// # Safety
///
/// As [`of_module`].
pub(crate) unsafe fn format(
    target: *mut CUarray_format,
    channels: *mut i32,
    reference: CUtexref,
) -> Result<(), CUresult> {
    // SAFETY: by the contract.
    let (target, channels) = unsafe { (out(target)?, out(channels)?) };
    let texture = object(reference)?.state().arguments.texture;
    target.write(texture.format);
    channels.write(texture.channels.cast_signed());
    Ok(())
}
