//! The variables that code declares in device memory: all of them, not only those that a program requests.
//!
//! Machine code lists them in its symbol table, text in its declarations. The driver is then asked for each by its name. So a
//! name too many does no harm (a compiler may have removed the variable). One too few would be a variable with unknown contents.
//! The lists are trusted no further than that.

use std::borrow::Cow;

use crate::declarations::declarations;
use crate::elf::{Section, sections};
use crate::entry::until_nul;
use crate::error::ModuleImageError;
use crate::image::{ModuleImage, ModuleImageKind};
use crate::{Container, EntryKind};

/// Section type of a symbol table.
const SHT_SYMTAB: u32 = 2;
/// Types of relocation tables: with addends, without, and those that NVIDIA's linker has already applied.
const SHT_RELA: u32 = 4;
const SHT_REL: u32 = 9;
const SHT_CUDA_RESOLVED_RELA: u32 = 0x7000_0003;
/// Bytes of one symbol.
const SYMBOL_BYTES: usize = 24;
/// Bytes of one relocation, with its addend and without.
const RELA_BYTES: usize = 24;
const REL_BYTES: usize = 16;
/// Kinds of symbols: a variable, a function, a section.
const STT_OBJECT: u8 = 1;
const STT_FUNC: u8 = 2;
const STT_SECTION: u8 = 3;
/// Longest name that is read; mangled names have at most some thousand letters.
const MAX_SYMBOL_NAME_BYTES: usize = 1 << 16;
/// Driver functions with which device code allocates memory.
const HEAP_FUNCTIONS: [&str; 2] = ["malloc", "free"];

/// Directives of calls through registers, one of which accompanies each such call.
const INDIRECT_CALL_DIRECTIVES: [&str; 2] = [".callprototype", ".calltargets"];

/// A variable in global or constant memory that code declares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable<'a> {
    /// Name of the variable, as the driver knows it.
    pub name: Cow<'a, str>,
    /// Length in bytes.
    pub size: u64,
    /// Location in machine code; `None` for text, which a driver has yet to compile.
    pub location: Option<CodeLocation>,
}

/// A location in machine code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodeLocation {
    /// Number of its section: variables of one section are contiguous in memory.
    pub section: u16,
    /// Offset of the first byte in the section.
    pub offset: u64,
    /// Length in bytes.
    pub size: u64,
}

/// Variables and other facts that an image declares.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Variables<'a> {
    /// Variables in the order of the image.
    pub all: Vec<Variable<'a>>,
    /// Whether the code allocates memory on the device.
    pub uses_heap: bool,
    /// Whether addresses of its functions depend on where it is loaded, and may be in memory.
    pub relocates_functions: bool,
    /// The machine code that the device runs.
    pub code: MachineCode,
    /// Bytes of the machine code; 0 for text, which a driver has yet to compile.
    pub code_bytes: u64,
}

/// The machine code that a device runs: each has its functions at other addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MachineCode {
    /// The driver's compilation of the text.
    #[default]
    OfText,
    /// The image, which is machine code itself.
    Image,
    /// The machine code for this architecture, such as 90.
    For(u32),
}

/// Machine code, and which one it is.
pub(crate) type Code<'a> = (Cow<'a, [u8]>, MachineCode);

impl Variable<'_> {
    /// Returns whether a compiler made it from a literal: no code ever writes such a variable.
    #[must_use]
    pub fn is_literal(&self) -> bool {
        ["$str", "__unnamed_"].iter().any(|start| self.name.starts_with(start))
    }
}

impl Variables<'_> {
    /// Returns the bytes of all variables.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.all.iter().fold(0, |all, variable| all.saturating_add(variable.size))
    }

    fn into_owned(self) -> Variables<'static> {
        let own = |it: Variable<'_>| Variable {
            name: Cow::Owned(it.name.into_owned()),
            size: it.size,
            location: it.location,
        };
        let Self { all, uses_heap, relocates_functions, code, code_bytes } = self;
        Variables { all: all.into_iter().map(own).collect(), uses_heap, relocates_functions, code, code_bytes }
    }

    fn extend(&mut self, other: Variables<'static>) {
        self.all.extend(other.all);
        self.uses_heap |= other.uses_heap;
        self.relocates_functions |= other.relocates_functions;
    }
}

impl ModuleImage<'_> {
    /// Returns the variables of the code that a device of architecture `sm` (such as 90) runs; a software device runs only text.
    ///
    /// # Errors
    /// The image is damaged, or has no code for the device.
    pub fn variables(&self, sm: u32, is_soft: bool) -> Result<Variables<'static>, ModuleImageError> {
        if !is_soft && let Some((file, code)) = self.machine_code(sm)? {
            return Ok(Variables { code, ..of_code(&file)?.into_owned() });
        }
        let mut variables = Variables::default();
        for ptx in self.ptx(Some(sm))? {
            variables.extend(of_text(&ptx.text).into_owned());
        }
        // A driver that compiles one text fixes its function pointers, as ptxas does; a linker leaves them to the load.
        variables.relocates_functions &= is_soft || self.kind() == ModuleImageKind::LinkedWrapper;
        Ok(variables)
    }

    /// Returns whether its functions can be called by pointers, which may be in memory. Without a text to check, it is assumed.
    ///
    /// # Errors
    /// The image is damaged.
    pub fn calls_by_pointer(&self) -> Result<bool, ModuleImageError> {
        match self.ptx(None) {
            Ok(texts) => Ok(texts.iter().any(|ptx| has_indirect_call(&ptx.text))),
            Err(ModuleImageError::NoPtx { .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Returns the machine code that a driver prefers for a device: of the nearest architecture of its family.
    pub(crate) fn machine_code(&self, sm: u32) -> Result<Option<Code<'_>>, ModuleImageError> {
        if let (ModuleImageKind::Elf, [file, ..]) = (self.kind(), self.parts()) {
            return Ok(Some((Cow::Borrowed(*file), MachineCode::Image)));
        }
        // The first container of a linked program is the whole linked program.
        let Some(container) = self.containers()?.into_iter().next() else { return Ok(None) };
        best_code(&container, sm)
    }
}

fn best_code<'a>(container: &Container<'a>, sm: u32) -> Result<Option<Code<'a>>, ModuleImageError> {
    let entries = container.entries().collect::<Result<Vec<_>, _>>()?;
    let usable = entries.into_iter().filter(|entry| entry.kind == EntryKind::CUBIN && entry.suits(sm));
    let best = usable.max_by_key(|entry| entry.sm);
    best.map(|entry| Ok((entry.contents()?, MachineCode::For(entry.sm)))).transpose()
}

/// Returns the variables of a text.
fn of_text(text: &str) -> Variables<'_> {
    let declared = declarations(text);
    let relocates_functions = has_indirect_call(text);
    let all = declared.variables.into_iter();
    let all = all.map(|it| Variable { name: Cow::Borrowed(it.name), size: it.size, location: None }).collect();
    let uses_heap = declared.functions.iter().any(|name| HEAP_FUNCTIONS.contains(name));
    Variables { all, uses_heap, relocates_functions, ..Variables::default() }
}

/// Returns whether a text calls through registers.
fn has_indirect_call(text: &str) -> bool {
    INDIRECT_CALL_DIRECTIVES.iter().any(|word| text.contains(word))
}

/// Returns the variables of machine code.
fn of_code(file: &[u8]) -> Result<Variables<'_>, ModuleImageError> {
    let sections = sections(file)?;
    let code_bytes = sections.iter().filter(|section| is_code(section)).map(|section| section.bytes.len() as u64).sum();
    let relocates_functions = relocates_functions(&sections);
    let mut variables = Variables { relocates_functions, code_bytes, ..Variables::default() };
    for table in sections.iter().filter(|section| section.kind == SHT_SYMTAB) {
        let names = sections.get(table.link as usize).map_or(&[][..], |section| section.bytes);
        for symbol in table.bytes.as_chunks::<SYMBOL_BYTES>().0 {
            let symbol = Symbol::read(symbol);
            let name = name_at(names, symbol.name);
            variables.uses_heap |= symbol.section == 0 && HEAP_FUNCTIONS.contains(&name);
            if symbol.kind == STT_OBJECT && sections.get(symbol.section as usize).is_some_and(is_memory) {
                let location = CodeLocation { section: symbol.section, offset: symbol.value, size: symbol.size };
                variables.all.push(Variable { name: Cow::Borrowed(name), size: symbol.size, location: Some(location) });
            }
        }
    }
    Ok(variables)
}

/// Returns whether a load patches a function's address into code or data. Without such a relocation, every function pointer is an
/// offset that the compiler has fixed, independent of the load address. The driver's own functions (`vprintf`, `malloc`) do not
/// count: ptxas allows no code to take their addresses.
fn relocates_functions(sections: &[Section<'_>]) -> bool {
    sections.iter().filter(|section| !section.name.contains(".debug_")).any(|section| match section.kind {
        SHT_RELA | SHT_CUDA_RESOLVED_RELA => names_function(sections, section, RELA_BYTES),
        SHT_REL => names_function(sections, section, REL_BYTES),
        _ => false,
    })
}

/// Returns whether one of a table's relocations, of `size` bytes each, names a function of this file. One without a symbol
/// counts, since it could.
fn names_function(sections: &[Section<'_>], table: &Section<'_>, size: usize) -> bool {
    let symbols = sections.get(table.link as usize).filter(|section| section.kind == SHT_SYMTAB);
    let symbols = symbols.map_or(&[][..], |section| section.bytes.as_chunks::<SYMBOL_BYTES>().0);
    let is_code = |section: u16| sections.get(usize::from(section)).is_some_and(is_code);
    table.bytes.chunks_exact(size).any(|relocation| {
        // Bytes 12 to 16 are the upper half of `r_info`: the symbol's number.
        let number = relocation.get(12..).and_then(<[u8]>::first_chunk).map_or(0, |it| u32::from_le_bytes(*it));
        let Some(symbol) = symbols.get(number as usize).map(Symbol::read) else { return true };
        match symbol.kind {
            STT_FUNC => symbol.section != 0,
            STT_SECTION => is_code(symbol.section),
            _ => false,
        }
    })
}

/// Returns whether a section contains instructions.
fn is_code(section: &Section<'_>) -> bool {
    section.name.starts_with(".text")
}

/// Returns whether a section becomes device memory; constants of a single kernel are its parameters and literals.
fn is_memory(section: &Section<'_>) -> bool {
    section.name == ".nv.constant3" || section.name.starts_with(".nv.global")
}

/// An entry of an ELF symbol table.
struct Symbol {
    name: u32,
    kind: u8,
    section: u16,
    value: u64,
    size: u64,
}

impl Symbol {
    fn read(bytes: &[u8; SYMBOL_BYTES]) -> Self {
        let [n0, n1, n2, n3, info, _, s0, s1, rest @ ..] = *bytes;
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| rest[at + byte]));
        let (name, section) = (u32::from_le_bytes([n0, n1, n2, n3]), u16::from_le_bytes([s0, s1]));
        Self { name, kind: info & 15, section, value: word(0), size: word(8) }
    }
}

/// Reads a name; one that is too long or not text is empty, which no driver finds.
fn name_at(names: &[u8], at: u32) -> &str {
    let rest = names.get(at as usize..).unwrap_or_default();
    let name = until_nul(&rest[..rest.len().min(MAX_SYMBOL_NAME_BYTES)]);
    if name.len() == MAX_SYMBOL_NAME_BYTES { "" } else { std::str::from_utf8(name).unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Compilation, linked_image};

    /// Output of `nvcc -cubin` 13.0 for `tests/variables/variables.cu` on sm_90.
    const CUBIN: &[u8] = include_bytes!("../tests/variables/variables.cubin");
    const TEXT: &str = include_str!("../tests/variables/variables.ptx");
    /// Output of `nvcc -rdc=true -cubin -dlink` 13.0 for `tests/variables/functions.cu` on sm_90.
    const LINKED: &[u8] = include_bytes!("../tests/variables/functions_linked.cubin");

    fn names(variables: &Variables<'_>) -> Vec<String> {
        let mut names: Vec<_> = variables.all.iter().map(|variable| variable.name.to_string()).collect();
        names.sort();
        names
    }

    #[test]
    fn machine_code_and_its_text_declare_the_same() {
        let code = ModuleImage::from_bytes(CUBIN).unwrap().variables(90, false).unwrap();
        let text = ModuleImage::from_bytes(TEXT.as_bytes()).unwrap().variables(90, false).unwrap();
        let expected = [
            "$str",
            "$str$1",
            "$str$2",
            "$str$3",
            "_ZTV1S",
            "_ZZ1kPiiE5calls",
            "__unnamed_1",
            "counter",
            "fns",
            "hidden",
            "limits",
            "man",
            "obj",
            "table",
        ];
        assert_eq!(names(&code), expected);
        assert_eq!(names(&text), expected);
        assert!(code.uses_heap && text.uses_heap);
        let sizes = |variables: &Variables<'_>| {
            let mut sizes: Vec<_> = variables.all.iter().map(|it| (it.name.to_string(), it.size)).collect();
            sizes.sort();
            sizes
        };
        assert_eq!(sizes(&code), sizes(&text));
        let location = |name: &str| code.all.iter().find(|variable| variable.name == name).unwrap().location.unwrap();
        let (table, calls, counter) = (location("table"), location("_ZZ1kPiiE5calls"), location("counter"));
        assert_eq!((table.offset, table.size, calls.offset, counter.size), (12, 400, 8, 4));
        assert!(table.section == calls.section && table.section != counter.section);
        assert_eq!(code.all.iter().filter(|variable| variable.is_literal()).count(), 5);
    }

    #[test]
    fn pointers_to_functions_are_told_by_the_text_or_supposed() {
        let of = |bytes: &[u8]| ModuleImage::from_bytes(bytes).unwrap().calls_by_pointer().unwrap();
        let (direct, indirect) = ("call f;", "P: .callprototype _ (.param .b32 _); call %rd1, (a), P;");
        assert!(of(CUBIN) && of(TEXT.as_bytes()));
        let linked = |texts: [&str; 2]| linked_image(&texts.map(|text| (text, Compilation::default())));
        assert!(!of(&linked([direct, direct])) && of(&linked([direct, indirect])));
    }

    #[test]
    fn functions_whose_addresses_are_patched_at_loading_are_told() {
        let of =
            |bytes: &[u8]| ModuleImage::from_bytes(bytes).unwrap().variables(90, false).unwrap().relocates_functions;
        assert!(!of(CUBIN), "its pointers are offsets, fixed by the compiler");
        assert!(of(LINKED));
        assert!(!of(TEXT.as_bytes()), "a driver compiles it as one");
        let soft = ModuleImage::from_bytes(TEXT.as_bytes()).unwrap().variables(90, true).unwrap();
        assert!(soft.relocates_functions, "a software device may place them anew");
        let mut stripped = LINKED.to_vec();
        let symbols = u32::to_le_bytes(SHT_SYMTAB);
        let table = u64::from_le_bytes(*LINKED[40..].first_chunk().unwrap()) as usize;
        let header = LINKED[table..].chunks(64).position(|header| header[4..8] == symbols).unwrap();
        stripped[table + header * 64 + 4] = 1;
        assert!(of(&stripped), "relocations without symbols may be of functions");
    }

    #[test]
    fn the_bytes_of_machine_code_are_told() {
        let of =
            |bytes: &[u8], is_soft| ModuleImage::from_bytes(bytes).unwrap().variables(90, is_soft).unwrap().code_bytes;
        // Its section `.text._Z1kPii`.
        assert_eq!(of(CUBIN, false), 2304);
        assert_eq!([false, true].map(|is_soft| of(TEXT.as_bytes(), is_soft)), [0; 2]);
    }

    #[test]
    fn the_code_of_a_device_is_told() {
        let code = |bytes: &[u8], is_soft| ModuleImage::from_bytes(bytes).unwrap().variables(90, is_soft).unwrap().code;
        assert_eq!(code(CUBIN, false), MachineCode::Image);
        assert_eq!(
            (code(TEXT.as_bytes(), false), code(TEXT.as_bytes(), true)),
            (MachineCode::OfText, MachineCode::OfText)
        );
    }

    #[test]
    fn a_software_device_runs_the_text_alone() {
        assert!(ModuleImage::from_bytes(CUBIN).unwrap().variables(90, true).is_err());
        let linked = linked_image(&[
            (".global .u32 a;", Compilation::default()),
            (".visible .global .u32 b; .extern .global .u32 a;", Compilation::default()),
        ]);
        let variables = ModuleImage::from_bytes(&linked).unwrap().variables(90, true).unwrap();
        assert_eq!(names(&variables), ["a", "b"]);
    }

    #[test]
    fn damage_is_an_error_or_fewer_variables_and_never_a_panic() {
        let mut state = 1_u64;
        for _ in 0..2000 {
            let mut damaged = CUBIN.to_vec();
            for _ in 0..4 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let at = (state >> 33) as usize % damaged.len();
                damaged[at] = (state >> 24) as u8;
            }
            let _ = of_code(&damaged);
            let _ = of_code(&damaged[..(state >> 40) as usize % damaged.len()]);
        }
    }
}
