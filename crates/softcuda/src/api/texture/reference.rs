//! Texture and surface references.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::sync::Arc;

use katydid_cuda_sys::{CUDA_ARRAY_DESCRIPTOR, CUarray, CUmipmappedArray, CUmodule, CUresult, CUsurfref, CUtexref};
use katydid_driver_rules::caller::read;
use katydid_driver_rules::texture::{check_reference_flags, reference_dimension as dimension, resource_kind as kind};

use crate::code::module;
use crate::context::stack;
use crate::ffi::{In, MaybeOut, Out, Outcome, Text, api};
use crate::texture::reference::{self, Reference, ReferenceState};

const INVALID_VALUE: CUresult = CUresult::ERROR_INVALID_VALUE;

fn change(handle: CUtexref, with: impl FnOnce(&mut ReferenceState) -> Outcome) -> Outcome {
    reference::resolve(handle.address(), false)?.change(with)
}

fn state(handle: CUtexref) -> Outcome<ReferenceState> {
    Ok(reference::resolve(handle.address(), false)?.state())
}

/// Returns the reference called `name`. Any other variable fails with `NOT_FOUND`.
fn of_module(module: CUmodule, name: &str, is_surface: bool) -> Outcome<Arc<Reference>> {
    let module = module::resolve(module)?;
    let address = module.reference(name, is_surface)?;
    Ok(reference::of_module(module.handle, address, module.context_id, is_surface))
}

api! {
    /// Returns a texture reference, always with the same handle.
    fn cuModuleGetTexRef(target: Out<CUtexref>, module: CUmodule, name: Text<'_>) {
        let reference = of_module(module, name.name()?, false)?;
        target.set(CUtexref(std::ptr::without_provenance_mut(reference.handle)));
    }

    /// Returns a surface reference, always with the same handle.
    fn cuModuleGetSurfRef(target: Out<CUsurfref>, module: CUmodule, name: Text<'_>) {
        let reference = of_module(module, name.name()?, true)?;
        target.set(CUsurfref(std::ptr::without_provenance_mut(reference.handle)));
    }

    /// Creates a reference that no code reads.
    fn cuTexRefCreate(made: Out<CUtexref>) {
        let reference = reference::create(stack::usable()?.id);
        made.set(CUtexref(std::ptr::without_provenance_mut(reference.handle)));
    }

    /// Destroys a reference that the program created.
    fn cuTexRefDestroy(handle: CUtexref) {
        reference::destroy(handle.address())?;
    }

    /// Binds an array, in the array's format.
    fn cuTexRefSetArray(handle: CUtexref, array: CUarray, flags: u32) {
        check_reference_flags(flags)?;
        change(handle, |state| state.bind_array(array))?;
    }

    /// Binds a mipmap, in the mipmap's format.
    fn cuTexRefSetMipmappedArray(handle: CUtexref, mipmap: CUmipmappedArray, flags: u32) {
        check_reference_flags(flags)?;
        change(handle, |state| state.bind_mipmap(mipmap))?;
    }

    /// Binds memory. Returns the bytes between the address and the first texel; without an output for them there must be none.
    fn cuTexRefSetAddress_v2(offset: MaybeOut<usize>, handle: CUtexref, address: u64, bytes: usize) {
        let mut offset_bytes = 0;
        change(handle, |state| {
            offset_bytes = state.bind_memory(address, bytes as u64)?;
            if offset_bytes == 0 || offset.is_wanted() { Ok(()) } else { Err(INVALID_VALUE) }
        })?;
        offset.set(offset_bytes as usize);
    }

    /// Binds rows of memory, `pitch` bytes apart.
    fn cuTexRefSetAddress2D_v2(handle: CUtexref, it: In<CUDA_ARRAY_DESCRIPTOR>, address: u64, pitch: usize) {
        change(handle, |state| {
            state.bind_rows(&it.0, address, pitch as u64);
            Ok(())
        })?;
    }

    /// Does the same as the second version.
    fn cuTexRefSetAddress2D_v3(handle: CUtexref, it: In<CUDA_ARRAY_DESCRIPTOR>, address: u64, pitch: usize) {
        change(handle, |state| {
            state.bind_rows(&it.0, address, pitch as u64);
            Ok(())
        })?;
    }

    /// Sets the format of memory, or how the code reads an array.
    fn cuTexRefSetFormat(handle: CUtexref, format: u32, channels: i32) {
        change(handle, |state| state.set_format(format, channels))?;
    }

    /// Sets the address mode of one dimension.
    fn cuTexRefSetAddressMode(handle: CUtexref, number: i32, mode: u32) {
        let number = dimension(number)?;
        if mode > 3 {
            return Err(INVALID_VALUE);
        }
        change(handle, |state| {
            state.description.addressMode[number] = mode;
            Ok(())
        })?;
    }

    /// Sets the filter between texels, 0 (point) or 1 (linear).
    fn cuTexRefSetFilterMode(handle: CUtexref, mode: u32) {
        if mode > 1 {
            return Err(INVALID_VALUE);
        }
        change(handle, |state| {
            state.description.filterMode = mode;
            Ok(())
        })?;
    }

    /// Sets the filter between mipmap levels, 0 (point) or 1 (linear).
    fn cuTexRefSetMipmapFilterMode(handle: CUtexref, mode: u32) {
        if mode > 1 {
            return Err(INVALID_VALUE);
        }
        change(handle, |state| {
            state.description.mipmapFilterMode = mode;
            Ok(())
        })?;
    }

    /// Sets the number that is added to mipmap levels.
    fn cuTexRefSetMipmapLevelBias(handle: CUtexref, bias: f32) {
        change(handle, |state| {
            state.description.mipmapLevelBias = bias;
            Ok(())
        })?;
    }

    /// Sets the first and the last level.
    fn cuTexRefSetMipmapLevelClamp(handle: CUtexref, first: f32, last: f32) {
        change(handle, |state| {
            (state.description.minMipmapLevelClamp, state.description.maxMipmapLevelClamp) = (first, last);
            Ok(())
        })?;
    }

    /// Stores the anisotropy for queries.
    fn cuTexRefSetMaxAnisotropy(handle: CUtexref, most: u32) {
        change(handle, |state| {
            state.description.maxAnisotropy = most;
            Ok(())
        })?;
    }

    /// Sets the color outside of a texture, four channels.
    fn cuTexRefSetBorderColor(handle: CUtexref, color: *mut f32) {
        // SAFETY: null, or the caller's four floats.
        let color = unsafe { read(color.cast::<[f32; 4]>()) }?;
        change(handle, |state| {
            state.description.borderColor = color;
            Ok(())
        })?;
    }

    /// Sets the flags, which are those of texture objects.
    fn cuTexRefSetFlags(handle: CUtexref, flags: u32) {
        change(handle, |state| {
            state.description.flags = flags;
            Ok(())
        })?;
    }

    /// Returns the bound array.
    fn cuTexRefGetArray(array: Out<CUarray>, handle: CUtexref) {
        let bound = state(handle)?.bound(&[kind::ARRAY])?;
        array.set(CUarray(std::ptr::with_exposed_provenance_mut(bound as usize)));
    }

    /// Returns the bound mipmap.
    fn cuTexRefGetMipmappedArray(mipmap: Out<CUmipmappedArray>, handle: CUtexref) {
        let bound = state(handle)?.bound(&[kind::MIPMAP])?;
        mipmap.set(CUmipmappedArray(std::ptr::with_exposed_provenance_mut(bound as usize)));
    }

    /// Returns the address of the first texel.
    fn cuTexRefGetAddress_v2(address: Out<u64>, handle: CUtexref) {
        address.set(state(handle)?.bound(&[kind::LINEAR, kind::PITCHED])?);
    }

    /// Returns the address mode of one dimension.
    fn cuTexRefGetAddressMode(mode: Out<u32>, handle: CUtexref, number: i32) {
        mode.set(state(handle)?.description.addressMode[dimension(number)?]);
    }

    /// Returns the filter between texels, 0 (point) or 1 (linear).
    fn cuTexRefGetFilterMode(mode: Out<u32>, handle: CUtexref) {
        mode.set(state(handle)?.description.filterMode);
    }

    /// Returns the format code and the number of channels.
    fn cuTexRefGetFormat(format: Out<u32>, channels: Out<i32>, handle: CUtexref) {
        let (code, count) = state(handle)?.format;
        format.set(code);
        channels.set(count.cast_signed());
    }

    /// Returns the filter between mipmap levels, 0 (point) or 1 (linear).
    fn cuTexRefGetMipmapFilterMode(mode: Out<u32>, handle: CUtexref) {
        mode.set(state(handle)?.description.mipmapFilterMode);
    }

    /// Returns the number that is added to mipmap levels.
    fn cuTexRefGetMipmapLevelBias(bias: Out<f32>, handle: CUtexref) {
        bias.set(state(handle)?.description.mipmapLevelBias);
    }

    /// Returns the first and the last level.
    fn cuTexRefGetMipmapLevelClamp(first: Out<f32>, last: Out<f32>, handle: CUtexref) {
        let description = state(handle)?.description;
        first.set(description.minMipmapLevelClamp);
        last.set(description.maxMipmapLevelClamp);
    }

    /// Returns the anisotropy that was set.
    fn cuTexRefGetMaxAnisotropy(most: Out<i32>, handle: CUtexref) {
        most.set(state(handle)?.description.maxAnisotropy.cast_signed());
    }

    /// Returns the color outside of a texture, four channels.
    fn cuTexRefGetBorderColor(color: *mut f32, handle: CUtexref) {
        if color.is_null() {
            return Err(INVALID_VALUE);
        }
        let border = state(handle)?.description.borderColor;
        // SAFETY: not null, so room for four floats of the caller's.
        unsafe { color.cast::<[f32; 4]>().write_unaligned(border) };
    }

    /// Returns the flags that were set.
    fn cuTexRefGetFlags(flags: Out<u32>, handle: CUtexref) {
        flags.set(state(handle)?.description.flags);
    }

    /// Binds an array; there are no flags yet.
    fn cuSurfRefSetArray(handle: CUsurfref, array: CUarray, flags: u32) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        reference::resolve(handle.address(), true)?.change(|state| state.bind_array(array))?;
    }

    /// Returns the bound array.
    fn cuSurfRefGetArray(array: Out<CUarray>, handle: CUsurfref) {
        let bound = reference::resolve(handle.address(), true)?.state().bound(&[kind::ARRAY])?;
        array.set(CUarray(std::ptr::with_exposed_provenance_mut(bound as usize)));
    }
}
