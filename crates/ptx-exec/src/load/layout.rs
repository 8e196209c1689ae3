//! Size and alignment of variables.

use crate::api::LoadError;
use crate::types::Ty;
use katydid_ptx::ast::Variable;

/// Size and alignment of a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Bytes of one element, without `.v2`/`.v4`.
    pub(crate) element: u64,
    /// Bytes of all elements.
    pub(crate) size: u64,
    /// Alignment, a power of two.
    pub(crate) align: u64,
}

impl Layout {
    /// Places the variable after `end` bytes of others, and returns its start and end; for small spaces.
    pub(crate) fn after(self, end: u32, line: u32) -> Result<(u32, u32), LoadError> {
        let start = u64::from(end).next_multiple_of(self.align);
        let stop = u32::try_from(start.saturating_add(self.size)).ok().filter(|stop| *stop <= MAX_SMALL_BYTES);
        let stop = stop.ok_or(LoadError::InvalidPtx { line, message: format!("more than {MAX_SMALL_BYTES} bytes") })?;
        Ok((start as u32, stop))
    }
}

/// Returns the layout of a variable. An array without a size takes it from its initialiser.
pub(crate) fn layout_of(variable: &Variable<'_>) -> Result<Layout, LoadError> {
    let invalid =
        |message: &str| LoadError::InvalidPtx { line: variable.line, message: format!("{}: {message}", variable.name) };
    let ty = Ty::parse(variable.ty).ok_or_else(|| invalid("unknown type"))?;
    let element = u64::from(ty.bytes());
    let unit = element * u64::from(variable.vector);
    let mut count = 1_u64;
    for dimension in &variable.dimensions {
        let dimension = if *dimension == 0 { variable.initial.len() as u64 } else { *dimension };
        count = count
            .checked_mul(dimension)
            .filter(|count| *count < MAX_VARIABLE_BYTES)
            .ok_or_else(|| invalid("too large"))?;
    }
    let align = if variable.align == 0 { unit } else { u64::from(variable.align) };
    if !align.is_power_of_two() || align > 1 << 20 {
        return Err(invalid("alignment is not a power of two"));
    }
    Ok(Layout { element, size: count.saturating_mul(unit), align })
}

/// Largest accepted variable: no device has more memory.
const MAX_VARIABLE_BYTES: u64 = 1 << 40;

/// Most bytes of all parameters of a function, and of static shared memory.
const MAX_SMALL_BYTES: u32 = 1 << 20;
