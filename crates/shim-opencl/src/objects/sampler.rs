//! Samplers and their queries.
#![expect(unsafe_code, reason = "reads and writes through the pointers of C callers")]

use std::sync::Arc;

use katydid_opencl_sys::constant::{SAMPLER_CONTEXT, SAMPLER_PROPERTIES, SAMPLER_REFERENCE_COUNT};
use katydid_opencl_sys::{Code, cl_context, cl_sampler, void};
use katydid_wire::opencl::message::kdclSampler;
use katydid_wire::opencl::{list, properties_form, query};

use crate::ffi::arguments::pairs;
use crate::objects::context::Context;
use crate::objects::handle::{self, Base, HeldObject, Object, kind_of_object, make, object};
use crate::objects::info::{CachedValues, QueryBuffer};
use crate::process::session;

/// A sampler for images.
#[derive(Debug)]
pub(crate) struct Sampler {
    pub(crate) base: Base,
    context: HeldObject<Context>,
    /// The properties as given, with the final 0.
    properties: Vec<u64>,
    cached: CachedValues,
}

kind_of_object! { Sampler cl_sampler SAMPLER INVALID_SAMPLER MAX_PROGRAM_OBJECTS, fn ends_lazily(&self) -> bool { true } }

fn create(context: cl_context, form: u32, values: &[u64], properties: Vec<u64>) -> Result<cl_sampler, Code> {
    let context = object::<Context>(context)?;
    let mut bytes = Vec::new();
    list::put(&mut bytes, values);
    let sampler = make(|base| {
        let message = kdclSampler { sampler: base.id, context: context.base.id, form, properties: &bytes };
        let worker = session::worker()?;
        let cached = CachedValues::from_worker(worker, &session::call(&message)?.facts);
        Ok(Sampler { base, context: HeldObject::new(Arc::clone(&context)), properties, cached })
    })?;
    Ok(sampler.handle())
}

pub(crate) fn create_sampler(
    context: cl_context,
    normalized: u32,
    addressing: u32,
    filter: u32,
) -> Result<cl_sampler, Code> {
    create(context, properties_form::VALUES, &[normalized, addressing, filter].map(u64::from), Vec::new())
}

/// # Safety
///
/// The list is null or ends with 0.
pub(crate) unsafe fn create_sampler_with_properties(
    context: cl_context,
    properties: *const u64,
) -> Result<cl_sampler, Code> {
    // SAFETY: guaranteed by the caller.
    match unsafe { pairs(properties) } {
        Some(list) => create(context, properties_form::LIST, &list[..list.len() - 1], list.clone()),
        None => create(context, properties_form::NONE, &[], Vec::new()),
    }
}

pub(crate) fn retain_sampler(sampler: cl_sampler) -> Result<(), Code> {
    handle::retain::<Sampler>(sampler)
}

pub(crate) fn release_sampler(sampler: cl_sampler) -> Result<(), Code> {
    handle::release::<Sampler>(sampler)
}

/// # Safety
///
/// As a query's pointers are ([`QueryBuffer::answer`]).
pub(crate) unsafe fn get_sampler_info(
    sampler: cl_sampler,
    param_name: u32,
    size: usize,
    value: *mut void,
    needed: *mut usize,
) -> Result<(), Code> {
    let sampler = object::<Sampler>(sampler)?;
    let bytes = match param_name {
        SAMPLER_CONTEXT => handle::bytes(&*sampler.context),
        SAMPLER_REFERENCE_COUNT => sampler.base.count().to_le_bytes().to_vec(),
        SAMPLER_PROPERTIES => sampler.properties.iter().flat_map(|value| value.to_le_bytes()).collect(),
        _ => sampler.cached.ask(query::SAMPLER, sampler.base.id, param_name)?,
    };
    // SAFETY: guaranteed by the caller.
    unsafe { QueryBuffer { size, value, needed }.answer(&bytes) }
}
