//! References to textures and surfaces: found in modules, and set as a whole with each change.

#![expect(unsafe_code, reason = "calls the driver")]

use katydid_cuda_sys::{CUDA_ARRAY_DESCRIPTOR, CUmodule, CUresult, CUtexref};
use katydid_driver::Driver;
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{
    kdReferenceDestroy, kdSurfaceReference, kdSurfaceReferenceReply, kdSurfaceReferenceSet, kdSurfaceReferenceSetReply,
    kdTextureReference, kdTextureReferenceReply, kdTextureReferenceSet, kdTextureReferenceSetReply,
};
use katydid_wire::reference::{ReferenceArguments, ReferenceFacts, property, sampler_word};

use crate::calls::fault::{Fault, SessionError};
use crate::device::ask::ask;
use crate::handlers::code::module;
use crate::handlers::{CallResult, EnqueueResult, success};
use crate::objects::arrays::ArrayObject;
use crate::objects::references::Reference;
use crate::state::Session;

/// `CU_TRSA_OVERRIDE_FORMAT`: the format is the array's.
const OVERRIDE_FORMAT: u32 = 1;

/// Finds a texture reference in a module, or makes one without a module.
pub(crate) fn kdTextureReference(
    session: &mut Session,
    head: &FrameHead,
    message: kdTextureReference<'_>,
) -> CallResult<kdTextureReferenceReply> {
    session.tables.references.check_new(message.reference)?;
    let owner: CUmodule = session.handle(head, message.module)?;
    let name = module::name(message.name)?;
    let driver = session.driver();
    let reference = match message.module {
        // SAFETY: the output is a local.
        0 => ask(|out| unsafe { driver.cuTexRefCreate(out) })?,
        // SAFETY: the output is a local, the name ends with a NUL.
        _ => ask(|out| unsafe { driver.cuModuleGetTexRef(out, owner, name.as_ptr()) })?,
    };
    let facts = facts(driver, reference).encode();
    let context = session.current;
    session.tables.references.add(message.reference, Reference::Texture(reference), message.module, context);
    success(kdTextureReferenceReply { facts })
}

/// Returns the driver's state of a reference; values that it refuses to return before they were set stay zero.
fn facts(driver: &Driver, reference: CUtexref) -> ReferenceFacts {
    let mut it = ReferenceFacts::default();
    let sampler = &mut it.sampler;
    for (dimension, mode) in (0..).zip(&mut sampler[sampler_word::ADDRESS_MODE..sampler_word::ADDRESS_MODE + 3]) {
        // SAFETY: the output is a local; this holds for every question below.
        *mode = ask(|out| unsafe { driver.cuTexRefGetAddressMode(out, reference, dimension) }).unwrap_or_default();
    }
    // SAFETY: as above.
    unsafe {
        let filter = ask(|out| driver.cuTexRefGetFilterMode(out, reference));
        let flags = ask(|out| driver.cuTexRefGetFlags(out, reference));
        let anisotropy = ask::<i32>(|out| driver.cuTexRefGetMaxAnisotropy(out, reference));
        let levels = ask(|out| driver.cuTexRefGetMipmapFilterMode(out, reference));
        let bias = ask::<f32>(|out| driver.cuTexRefGetMipmapLevelBias(out, reference));
        sampler[sampler_word::FILTER] = filter.unwrap_or_default();
        sampler[sampler_word::FLAGS] = flags.unwrap_or_default();
        sampler[sampler_word::ANISOTROPY] = anisotropy.unwrap_or_default().cast_unsigned();
        sampler[sampler_word::LEVEL_FILTER] = levels.unwrap_or_default();
        sampler[sampler_word::LEVEL_BIAS] = bias.unwrap_or_default().to_bits();
    }
    let (mut first, mut last, mut border) = (0_f32, 0_f32, [0_f32; 4]);
    let (mut format, mut channels) = (0_u32, 0_i32);
    // SAFETY: outputs are locals; the border has the four floats that are written.
    unsafe {
        let _ = driver.cuTexRefGetMipmapLevelClamp(&raw mut first, &raw mut last, reference);
        let _ = driver.cuTexRefGetBorderColor(border.as_mut_ptr(), reference);
        let _ = driver.cuTexRefGetFormat(&raw mut format, &raw mut channels, reference);
    }
    let tail = [first, last].into_iter().chain(border).map(f32::to_bits);
    sampler[sampler_word::LEVEL_CLAMP..].iter_mut().zip(tail).for_each(|(slot, word)| *slot = word);
    (it.format, it.channels) = (format, channels.cast_unsigned());
    it
}

/// Applies all settings of the program, and returns the resulting state.
pub(crate) fn kdTextureReferenceSet(
    session: &mut Session,
    _head: &FrameHead,
    message: kdTextureReferenceSet<'_>,
) -> CallResult<kdTextureReferenceSetReply> {
    let it = ReferenceArguments::decode(message.arguments).ok_or_else(|| SessionError::DamagedPart {
        message: "kdTextureReferenceSet",
        part: "arguments",
        reason: format!("{} bytes are not a reference", message.arguments.len()),
    })?;
    let reference = session.tables.references.texture(message.reference)?;
    let driver = session.driver();
    let has_array = it.set & property::RESOURCE != 0 && it.texture.kind < 2;
    // An array has its own format, which the program may have changed since; memory has the reference's format.
    if !has_array {
        set_format(driver, reference, &it)?;
    }
    set_sampler(driver, reference, &it)?;
    let offset = if it.set & property::RESOURCE == 0 { 0 } else { bind(session, reference, &it)? };
    let driver = session.driver();
    if has_array {
        set_format(driver, reference, &it)?;
    }
    success(kdTextureReferenceSetReply { offset, facts: facts(driver, reference).encode() })
}

fn set_format(driver: &Driver, reference: CUtexref, it: &ReferenceArguments) -> Result<(), CUresult> {
    if it.set & property::FORMAT == 0 {
        return Ok(());
    }
    // SAFETY: takes numbers, and a reference that is alive.
    unsafe { driver.cuTexRefSetFormat(reference, it.texture.format, it.texture.channels.cast_signed()) }.ok()
}

fn set_sampler(driver: &Driver, reference: CUtexref, it: &ReferenceArguments) -> Result<(), CUresult> {
    let sampler = it.texture.sampler;
    let float = |index: usize| f32::from_bits(sampler.get(index).copied().unwrap_or_default());
    let is_given = |bit: u32| it.set & bit != 0;
    for (dimension, mode) in (0..3_i32).zip(sampler) {
        if is_given(property::ADDRESS_MODE << dimension) {
            // SAFETY: takes numbers, and a reference that is alive; this holds for every call below.
            unsafe { driver.cuTexRefSetAddressMode(reference, dimension, mode) }.ok()?;
        }
    }
    let mut border: [f32; 4] = std::array::from_fn(|at| float(sampler_word::BORDER + at));
    let (first, last) = (float(sampler_word::LEVEL_CLAMP), float(sampler_word::LEVEL_CLAMP + 1));
    // SAFETY: as above; the border has the four floats that are read.
    unsafe {
        let calls: [(u32, &mut dyn FnMut() -> CUresult); 7] = [
            (property::FILTER, &mut || driver.cuTexRefSetFilterMode(reference, sampler[sampler_word::FILTER])),
            (property::LEVEL_FILTER, &mut || {
                driver.cuTexRefSetMipmapFilterMode(reference, sampler[sampler_word::LEVEL_FILTER])
            }),
            (property::LEVEL_BIAS, &mut || {
                driver.cuTexRefSetMipmapLevelBias(reference, float(sampler_word::LEVEL_BIAS))
            }),
            (property::LEVEL_CLAMP, &mut || driver.cuTexRefSetMipmapLevelClamp(reference, first, last)),
            (property::ANISOTROPY, &mut || {
                driver.cuTexRefSetMaxAnisotropy(reference, sampler[sampler_word::ANISOTROPY])
            }),
            (property::BORDER, &mut || driver.cuTexRefSetBorderColor(reference, border.as_mut_ptr())),
            (property::FLAGS, &mut || driver.cuTexRefSetFlags(reference, sampler[sampler_word::FLAGS])),
        ];
        calls.into_iter().filter(|(bit, _)| is_given(*bit)).try_for_each(|(_, call)| call().ok())
    }
}

/// Binds the resource of the arguments; returns the bytes between the address and the first texel.
fn bind(session: &Session, reference: CUtexref, it: &ReferenceArguments) -> Result<u64, Fault> {
    let (driver, texture) = (session.driver(), &it.texture);
    let held = || session.tables.arrays.get(texture.array);
    match texture.kind {
        0 | 1 => {
            let status = match (texture.kind, held()?) {
                // SAFETY: both are alive, by the session's tables.
                (0, ArrayObject::Array(array) | ArrayObject::Level(array, _)) => unsafe {
                    driver.cuTexRefSetArray(reference, array, OVERRIDE_FORMAT)
                },
                // SAFETY: as above.
                (1, ArrayObject::Mipmap(mipmap)) => unsafe {
                    driver.cuTexRefSetMipmappedArray(reference, mipmap, OVERRIDE_FORMAT)
                },
                _ => CUresult::ERROR_INVALID_VALUE,
            };
            status.ok()?;
            Ok(0)
        }
        2 => {
            session.address_check.check(texture.address, texture.size.max(1))?;
            let size = texture.size as usize;
            // SAFETY: the output is a local; the memory is the session's.
            let call = |out| unsafe { driver.cuTexRefSetAddress_v2(out, reference, texture.address, size) };
            Ok(ask::<usize>(call)? as u64)
        }
        3 => {
            session.address_check.check(texture.address, 1)?;
            let descriptor = CUDA_ARRAY_DESCRIPTOR {
                Width: texture.size as usize,
                Height: texture.height as usize,
                Format: texture.format,
                NumChannels: texture.channels,
            };
            let (address, pitch) = (texture.address, texture.pitch as usize);
            // SAFETY: the descriptor is a local; the memory is the session's.
            unsafe { driver.cuTexRefSetAddress2D_v3(reference, &raw const descriptor, address, pitch) }.ok()?;
            Ok(0)
        }
        _ => Err(CUresult::ERROR_INVALID_VALUE.into()),
    }
}

/// Finds a surface reference in a module.
pub(crate) fn kdSurfaceReference(
    session: &mut Session,
    head: &FrameHead,
    message: kdSurfaceReference<'_>,
) -> CallResult<kdSurfaceReferenceReply> {
    session.tables.references.check_new(message.reference)?;
    let owner: CUmodule = session.handle(head, message.module)?;
    let name = module::name(message.name)?;
    let driver = session.driver();
    // SAFETY: the output is a local, the name ends with a NUL.
    let reference = ask(|out| unsafe { driver.cuModuleGetSurfRef(out, owner, name.as_ptr()) })?;
    let context = session.current;
    session.tables.references.add(message.reference, Reference::Surface(reference), message.module, context);
    success(kdSurfaceReferenceReply {})
}

/// Binds a surface reference to an array.
pub(crate) fn kdSurfaceReferenceSet(
    session: &mut Session,
    _head: &FrameHead,
    message: kdSurfaceReferenceSet,
) -> CallResult<kdSurfaceReferenceSetReply> {
    let reference = session.tables.references.surface(message.reference)?;
    let array = session.tables.arrays.array(message.array)?;
    // SAFETY: both are alive, by the session's tables.
    unsafe { session.driver().cuSurfRefSetArray(reference, array, 0) }.ok()?;
    success(kdSurfaceReferenceSetReply {})
}

/// Ends a texture reference without a module.
pub(crate) fn kdReferenceDestroy(
    session: &mut Session,
    _head: &FrameHead,
    message: kdReferenceDestroy,
) -> EnqueueResult {
    let reference = session.tables.references.take(message.reference)?;
    // SAFETY: made by the session, and out of its tables now.
    Ok(unsafe { session.driver().cuTexRefDestroy(reference) })
}
