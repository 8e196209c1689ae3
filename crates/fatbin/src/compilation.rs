//! Options that a compiler gives its assembler, as far as they change what kernels do.

/// Options of a compilation of PTX; `None`: the option was not given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Compilation {
    /// Most registers of a thread (`-maxrregcount`).
    pub max_registers: Option<u32>,
    /// Whether a product and the sum that uses it become one fused multiply-add, unless the text forbids it. They do not without
    /// optimization (`-O0`, `-g`), nor with `--fmad false`.
    pub contracts: Option<bool>,
}

impl Compilation {
    /// Parses the options of ptxas in a fatbin, such as `-O0  --maxrregcount 32`.
    #[must_use]
    pub fn parse(options: &str) -> Self {
        let mut words = options.split([' ', '=']).filter(|word| !word.is_empty());
        let mut compilation = Self::default();
        let mut forbid =
            |forbids: bool| compilation.contracts = Some(!forbids && compilation.contracts.unwrap_or(true));
        while let Some(word) = words.next() {
            match word.trim_start_matches('-') {
                "maxrregcount" => compilation.max_registers = words.next().and_then(|number| number.parse().ok()),
                "g" | "device-debug" | "O0" => forbid(true),
                "O" | "opt-level" => forbid(words.next() == Some("0")),
                "fmad" => forbid(words.next() == Some("false")),
                _ => {}
            }
        }
        compilation
    }

    /// Returns these options; those that are not given come from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            max_registers: self.max_registers.or(other.max_registers),
            contracts: self.contracts.or(other.contracts),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_as_ptxas_writes_and_reads_them() {
        let contracts = |options: &str| Compilation::parse(options).contracts;
        assert_eq!(
            ["-O0  ", " -g --dont-merge-basicblocks", " --fmad false ", "-opt-level=0"].map(contracts),
            [Some(false); 4]
        );
        assert_eq!(["", "-O1  --generate-line-info ", "--maxrregcount=32"].map(contracts), [None; 3]);
        assert_eq!(["--fmad true", "--opt-level 3"].map(contracts), [Some(true); 2]);
        assert_eq!(contracts("--fmad false --opt-level 3"), Some(false));
        assert_eq!(Compilation::parse("-O0 -maxrregcount 40").max_registers, Some(40));
    }

    #[test]
    fn given_options_take_precedence() {
        let options = Compilation { max_registers: None, contracts: Some(true) };
        let other = Compilation { max_registers: Some(32), contracts: Some(false) };
        assert_eq!(options.or(other), Compilation { max_registers: Some(32), contracts: Some(true) });
    }
}
