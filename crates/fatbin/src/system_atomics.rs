//! Finds whether code has atomic operations of system scope, with which host and device can change the same address.
//!
//! In PTX the scope is a word of the instruction. In machine code it is four of its bits, taken from `nvdisasm`'s listing of
//! `ptxas` output for sm_75 to sm_120.

use crate::elf::sections;
use crate::error::ModuleImageError;
use crate::image::ModuleImage;
use crate::variables::MachineCode;

/// Bytes of an instruction on sm_70 and later.
const INSTRUCTION_BYTES: usize = 16;
/// Low bits of the first word: `ATOM`, `ATOMG` and `RED` with their variants for sums, comparisons and floats.
const SCOPED_OPCODES: [u64; 9] = [0x38a, 0x38b, 0x3a8, 0x3a9, 0x98a, 0x98e, 0x9a3, 0x9a6, 0x9a8];
/// Position of the scope in the second word.
const SCOPE_SHIFT: u32 = 13;
/// System scope, up to sm_79 and from sm_80 on.
const OF_SYSTEM: [u64; 2] = [0xb, 0xa];

impl ModuleImage<'_> {
    /// Returns whether the code that a device of architecture `sm` (such as 90) runs has such operations; false if it cannot be
    /// read.
    ///
    /// # Errors
    /// The image is damaged.
    pub fn has_system_atomics(&self, sm: u32) -> Result<bool, ModuleImageError> {
        let in_code = match self.machine_code(sm)? {
            Some((file, MachineCode::For(sm))) => of_code(&file, sm)?,
            Some((file, _)) => of_code(&file, sm)?,
            None => false,
        };
        // A linked program for a software device is a file of texts.
        Ok(in_code || self.ptx(Some(sm)).is_ok_and(|texts| texts.iter().any(|ptx| of_text(&ptx.text))))
    }
}

fn of_text(text: &str) -> bool {
    text.split_ascii_whitespace()
        .any(|word| ["atom.", "red."].iter().any(|start| word.starts_with(start)) && word.contains(".sys"))
}

fn of_code(file: &[u8], sm: u32) -> Result<bool, ModuleImageError> {
    let system = OF_SYSTEM[usize::from(sm >= 80)];
    let is_one = |bytes: &[u8; INSTRUCTION_BYTES]| {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        SCOPED_OPCODES.contains(&(word(0) & 0xfff)) && word(8) >> SCOPE_SHIFT & 0xf == system
    };
    let sections = sections(file)?;
    let mut code = sections.iter().filter(|section| section.name.starts_with(".text."));
    Ok(code.any(|section| section.bytes.as_chunks::<INSTRUCTION_BYTES>().0.iter().any(is_one)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Compilation, linked_image};

    /// Output of `nvcc -cubin` 13.0 for `tests/system_atomics/system_atomics.cu`: its operations of system scope, and of smaller
    /// scopes.
    const CODE: [(u32, &[u8], &[u8]); 2] = [
        (
            75,
            include_bytes!("../tests/system_atomics/system_75.cubin"),
            include_bytes!("../tests/system_atomics/device_75.cubin"),
        ),
        (
            90,
            include_bytes!("../tests/system_atomics/system_90.cubin"),
            include_bytes!("../tests/system_atomics/device_90.cubin"),
        ),
    ];

    #[test]
    fn machine_code_tells_its_scopes() {
        for (sm, system, device) in CODE {
            let has = |bytes: &[u8]| ModuleImage::from_bytes(bytes).unwrap().has_system_atomics(sm).unwrap();
            assert!(has(system) && !has(device), "sm_{sm}");
        }
    }

    #[test]
    fn text_tells_its_scopes() {
        let has = |text: &str| {
            let text = format!(".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry k() {{ {text} ret; }}");
            ModuleImage::from_bytes(&linked_image(&[(&text, Compilation::default())]))
                .unwrap()
                .has_system_atomics(90)
                .unwrap()
        };
        assert!(has("atom.global.sys.add.u32 %r1, [%rd1], 1;") && has("red.relaxed.sys.global.add.s32 [%rd1], 1;"));
        assert!(!has("atom.global.add.u32 %r1, [%rd1], 1;") && !has("fence.sc.sys; st.release.sys.b32 [%rd1], 1;"));
    }
}
