//! Variables in memory: sizes, addresses, initial values.

use crate::api::{GlobalMemory, LoadError};
use crate::control::flow::FUNCTION_STEP;
use crate::load::layout::{Layout, layout_of};
use crate::load::link::{LinkedProgram, LinkedVariable, Symbol};
use crate::window;
use katydid_ptx::ast::{Initial, Space, SymbolAddress};

/// Largest accepted initial value.
const MAX_INITIAL_BYTES: usize = 1 << 30;

/// Addresses of a program's variables: one entry for each of `LinkedProgram::variables`.
#[derive(Debug, Default)]
pub(crate) struct Globals {
    /// Address and size; `None` for shared variables, which have no address of their own.
    pub(crate) addresses: Vec<Option<(u64, u64)>>,
    /// Bytes of `.const` variables.
    pub(crate) const_bytes: u64,
}

/// Allocates and initialises every `.global` and `.const` variable.
pub(crate) fn allocate(linked: &LinkedProgram<'_, '_>, memory: &mut dyn GlobalMemory) -> Result<Globals, LoadError> {
    let mut globals = Globals::default();
    for linked_variable in &linked.variables {
        let variable = linked_variable.variable;
        let Layout { size, align, .. } = layout_of(variable)?;
        let device = matches!(variable.space, Space::Global | Space::Const);
        globals.const_bytes += if variable.space == Space::Const { size } else { 0 };
        let allocated = device.then(|| match variable.managed {
            true => memory.allocate_managed(size.max(1), align),
            false => memory.allocate(size.max(1), align),
        });
        let allocated = match allocated {
            Some(None) => return Err(LoadError::OutOfMemory { name: variable.name.to_owned(), size }),
            Some(Some(address)) => Some((address, size)),
            None => None,
        };
        globals.addresses.push(allocated);
    }
    for (linked_variable, allocated) in linked.variables.iter().zip(&globals.addresses) {
        let initialized = !linked_variable.variable.initial.is_empty();
        if let (Some((address, size)), true) = (allocated, initialized) {
            let bytes = InitialBytes { linked, globals: &globals, linked_variable }.bytes(*size)?;
            memory.write(*address, &bytes);
        }
    }
    Ok(globals)
}

/// The initial bytes of one variable.
struct InitialBytes<'x, 'm, 'a> {
    linked: &'x LinkedProgram<'m, 'a>,
    globals: &'x Globals,
    linked_variable: &'x LinkedVariable<'m, 'a>,
}

impl InitialBytes<'_, '_, '_> {
    /// Returns all initial bytes; those after them stay zero.
    fn bytes(&self, size: u64) -> Result<Vec<u8>, LoadError> {
        let mut bytes = Vec::new();
        self.row(&self.linked_variable.variable.initial, 0, &mut bytes)?;
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        if bytes.len() > size {
            return Err(self.invalid("more initial values than elements"));
        }
        Ok(bytes)
    }

    /// Returns an error about this variable.
    fn invalid(&self, message: &str) -> LoadError {
        let variable = self.linked_variable.variable;
        LoadError::InvalidPtx { line: variable.line, message: format!("{}: {message}", variable.name) }
    }

    /// Appends one row of dimension `depth`. A short nested row is filled with zeroes.
    fn row(&self, row: &[Initial<'_>], depth: usize, bytes: &mut Vec<u8>) -> Result<(), LoadError> {
        let variable = self.linked_variable.variable;
        let element = layout_of(variable)?.element;
        for value in row {
            let Initial::List(inner) = value else {
                bytes.extend_from_slice(&self.scalar(value, element)?);
                continue;
            };
            let start = bytes.len() as u64;
            self.row(inner, depth + 1, bytes)?;
            let rest = variable.dimensions.get(depth + 1..).unwrap_or_default();
            let unit = element * u64::from(variable.vector);
            let full = rest.iter().fold(unit, |size, dimension| size.saturating_mul(*dimension));
            let end = usize::try_from(start.saturating_add(full)).unwrap_or(usize::MAX);
            if end > MAX_INITIAL_BYTES {
                return Err(self.invalid("initial value too large"));
            }
            bytes.resize(end.max(bytes.len()), 0);
        }
        Ok(())
    }

    /// Returns one element, little-endian. Converts a number to the type of the variable.
    fn scalar(&self, value: &Initial<'_>, element: u64) -> Result<Vec<u8>, LoadError> {
        let is_f32 = self.linked_variable.variable.ty == "f32";
        let number = match value {
            Initial::Int(value) if is_f32 => u64::from((value.cast_signed() as f32).to_bits()),
            Initial::Int(value) if self.linked_variable.variable.ty == "f64" => (value.cast_signed() as f64).to_bits(),
            Initial::Int(value) => *value,
            Initial::F32(bits) => u64::from(*bits),
            Initial::F64(bits) if is_f32 => u64::from((f64::from_bits(*bits) as f32).to_bits()),
            Initial::F64(bits) => *bits,
            Initial::Address(address) => self.address(*address)?,
            Initial::List(_) => return Err(self.invalid("nested too deeply")),
        };
        Ok(number.to_le_bytes().into_iter().take(element as usize).collect())
    }

    /// Returns the value of an address: of a variable, or of a function for tables of pointers.
    fn address(&self, symbol: SymbolAddress<'_>) -> Result<u64, LoadError> {
        let unresolved =
            || LoadError::UnresolvedSymbol { line: self.linked_variable.variable.line, name: symbol.name.to_owned() };
        let base = match self.linked.find(self.linked_variable.module, symbol.name) {
            Some(Symbol::Function(index)) => function_address(index),
            Some(Symbol::Variable(index)) => {
                let target = self.globals.addresses.get(index).copied().flatten();
                target.map(|(address, _)| address).ok_or_else(unresolved)?
            }
            Some(Symbol::Builtin) | None => return Err(unresolved()),
        };
        let address = base.wrapping_add(symbol.offset.cast_unsigned());
        Ok(match symbol.mask {
            Some(0) | None => address,
            Some(mask) => (address & mask) >> mask.trailing_zeros(),
        })
    }
}

/// Returns the address of function `index`.
pub(crate) fn function_address(index: usize) -> u64 {
    window::FUNCTION_ADDRESS + FUNCTION_STEP * index as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory at 0x1000, never freed.
    #[derive(Default)]
    struct Bytes(Vec<u8>);

    impl GlobalMemory for Bytes {
        fn allocate(&mut self, size: u64, align: u64) -> Option<u64> {
            let start = (self.0.len() as u64).next_multiple_of(align);
            self.0.resize((start + size) as usize, 0);
            (size < 1 << 20).then_some(0x1000 + start)
        }

        fn write(&mut self, address: u64, bytes: &[u8]) {
            let start = (address - 0x1000) as usize;
            self.0[start..start + bytes.len()].copy_from_slice(bytes);
        }
    }

    fn load(text: &str) -> Result<(Globals, Vec<u8>), LoadError> {
        let text = format!(".version 9.0 .target sm_90 .address_size 64 {text}");
        let modules = [katydid_ptx::parse(&text).unwrap()];
        let mut memory = Bytes::default();
        let globals = allocate(&LinkedProgram::new(&modules)?, &mut memory)?;
        Ok((globals, memory.0))
    }

    #[test]
    fn values_of_every_kind_are_laid_out() {
        let (globals, bytes) =
            load(".global .align 4 .u8 a[] = {1, -2}; .global .f32 b = 1.5; .const .u16 c[2][3] = {{1}, {2, 3}};")
                .unwrap();
        assert_eq!(globals.addresses[0], Some((0x1000, 2)));
        assert_eq!(bytes[..2], [1, 0xfe]);
        assert_eq!(bytes[4..8], 1.5_f32.to_le_bytes());
        assert_eq!(bytes[8..], [1, 0, 0, 0, 0, 0, 2, 0, 3, 0, 0, 0]);
        assert_eq!(globals.const_bytes, 12);
    }

    #[test]
    fn addresses_of_variables_and_functions_are_values() {
        let (_, bytes) = load(".global .u64 x[2] = {y, generic(y) + 4}; .global .u32 y[2]; .func f { ret; } .global .u64 g = f; .global .u8 h[] = {0xff(y), 0xff00(y)};").unwrap();
        assert_eq!(bytes[..8], 0x1010_u64.to_le_bytes());
        assert_eq!(bytes[8..16], 0x1014_u64.to_le_bytes());
        assert_eq!(bytes[24..32], window::FUNCTION_ADDRESS.to_le_bytes());
        assert_eq!(bytes[32..34], [0x10, 0x10]);
    }

    #[test]
    fn globals_with_wrong_sizes_are_refused() {
        assert!(matches!(load(".global .u8 a[2] = {1, 2, 3};"), Err(LoadError::InvalidPtx { .. })));
        assert!(matches!(load(".global .u64 a = missing;"), Err(LoadError::UnresolvedSymbol { .. })));
        assert!(matches!(load(".global .u8 a[2000000];"), Err(LoadError::OutOfMemory { .. })));
        assert!(matches!(load(".global .u8 a[18446744073709551615][3];"), Err(LoadError::InvalidPtx { .. })));
        assert!(matches!(load(".global .align 3 .u8 a;"), Err(LoadError::InvalidPtx { .. })));
    }
}
