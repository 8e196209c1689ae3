//! The texts that a device accepts: not newer than the driver, made for it or an older one, within the limits of kernels.
//!
//! The declarations of a text about itself are checked before the rest is read, because a newer text may contain anything.

use crate::api::{LoadError, TargetDevice};
use crate::code::Param;
use katydid_ptx::ast::{Function, Linkage, Module};

/// The newest supported PTX, that of CUDA 13.0, and its spelling.
const NEWEST_PTX_VERSION: (u32, u32) = (9, 0);
const NEWEST_TEXT: &str = "9.0";

/// Most bytes of parameters of a kernel; before PTX 8.1 there were fewer.
const MAX_PARAM_BYTES: u32 = 32_764;
const MAX_PARAM_BYTES_BEFORE: u32 = 4352;
const LARGE_PARAMS_SINCE: (u32, u32) = (8, 1);

/// Most bytes of `.const` variables of a program.
const MAX_CONST_BYTES: u64 = 65_536;

/// Parses one text and checks that the device can run it.
pub(crate) fn parse(source: &str, target: TargetDevice) -> Result<Module<'_>, LoadError> {
    if let Some((line, (major, minor))) = katydid_ptx::version_of(source)
        && (major, minor) > NEWEST_PTX_VERSION
    {
        return Err(LoadError::NewerPtx { line, major, minor, newest: NEWEST_TEXT });
    }
    let module = katydid_ptx::parse(source).map_err(|error| LoadError::InvalidPtx {
        line: error.line,
        message: format!("{} near '{}'", error.message, error.token),
    })?;
    let device = target.major * 10 + target.minor;
    let module_arch = architecture(&module);
    if module_arch > device {
        return Err(LoadError::NoKernelImage { wanted: module_arch, device });
    }
    if module_arch == 0 {
        let arch = module.target.first().copied().unwrap_or_default();
        return Err(LoadError::InvalidPtx { line: 1, message: format!("no architecture in .target '{arch}'") });
    }
    if module.address_size != 64 {
        return Err(LoadError::Unsupported { line: 1, name: format!(".address_size {}", module.address_size) });
    }
    Ok(module)
}

/// Returns the number in `.target sm_90a`; 0 for a target without one.
pub(crate) fn architecture(module: &Module<'_>) -> u32 {
    let name = module.target.iter().find_map(|name| name.strip_prefix("sm_")).unwrap_or_default();
    name.trim_end_matches(|letter: char| !letter.is_ascii_digit()).parse().unwrap_or(0)
}

/// Returns whether the target is a single architecture, as `sm_90a` is.
pub(crate) fn is_specific(module: &Module<'_>) -> bool {
    module.target.iter().any(|name| name.starts_with("sm_") && name.ends_with('a'))
}

/// Refuses a kernel with more parameters than a launch can carry.
pub(crate) fn check_params(
    function: &Function<'_>,
    module: Option<&Module<'_>>,
    params: &[Param],
) -> Result<(), LoadError> {
    let version = module.map_or((0, 0), |module| module.version);
    let most = if version >= LARGE_PARAMS_SINCE { MAX_PARAM_BYTES } else { MAX_PARAM_BYTES_BEFORE };
    let used = params.last().map_or(0, |param| param.offset + param.size);
    if used <= most {
        return Ok(());
    }
    let message = format!("'{}' has {used} bytes of parameters, {most} are allowed", function.name);
    Err(LoadError::InvalidPtx { line: function.line, message })
}

/// Refuses a `.reqntid` of no threads.
pub(crate) fn check_block(function: &Function<'_>, block: Option<[u32; 3]>) -> Result<(), LoadError> {
    if block.is_none_or(|block| !block.contains(&0)) {
        return Ok(());
    }
    let message = format!("'{}' asks for blocks of 0 threads near 'reqntid'", function.name);
    Err(LoadError::InvalidPtx { line: function.line, message })
}

/// Refuses a program with more constants than the device supports.
pub(crate) fn check_const(bytes: u64) -> Result<(), LoadError> {
    if bytes <= MAX_CONST_BYTES {
        return Ok(());
    }
    Err(LoadError::InvalidPtx {
        line: 1,
        message: format!("{bytes} bytes of .const variables, {MAX_CONST_BYTES} are allowed"),
    })
}

/// Returns the names that a text defines for other texts, and that no other text may define: functions with a body, and
/// variables.
pub fn strong_names(source: &str, target: TargetDevice) -> Result<Vec<String>, LoadError> {
    use katydid_ptx::ast::Item;
    let module = parse(source, target)?;
    let strong = module.items.iter().filter_map(|item| match item {
        Item::Function(function) if function.linkage == Linkage::Visible && function.body.is_some() => {
            Some(function.name)
        }
        Item::Variable(variable) if variable.linkage == Linkage::Visible => Some(variable.name),
        _ => None,
    });
    Ok(strong.map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: TargetDevice = TargetDevice { major: 9, minor: 0 };

    fn refusal(text: &str) -> Option<LoadError> {
        parse(text, TARGET).err()
    }

    #[test]
    fn newer_texts_are_refused_before_anything_in_them_is_read() {
        let text = "// comment .version 1.0\n.version 9.1\n.target sm_90\n.future nonsense";
        let newest = "9.0";
        assert_eq!(refusal(text), Some(LoadError::NewerPtx { line: 2, major: 9, minor: 1, newest }));
        assert_eq!(refusal(".version 9.0\n.target sm_90\n.address_size 64"), None);
    }

    #[test]
    fn addresses_have_64_bits_unless_the_text_says_otherwise() {
        assert_eq!(
            (refusal(".version 1.4\n.target sm_10, map_f64_to_f32"), refusal(".version 9.0\n.target sm_90")),
            (None, None)
        );
        assert!(matches!(
            refusal(".version 7.0\n.target sm_75\n.address_size 32"),
            Some(LoadError::Unsupported { .. })
        ));
        let too_early = refusal(".version 2.2\n.target sm_20\n.address_size 64");
        assert!(matches!(too_early, Some(LoadError::InvalidPtx { line: 3, .. })), "{too_early:?}");
    }

    #[test]
    fn targets_must_name_an_architecture_that_the_device_is() {
        let of = |target: &str| refusal(&format!(".version 8.0\n.target {target}\n.address_size 64"));
        assert_eq!((of("sm_90a"), of("sm_50, debug")), (None, None));
        assert_eq!(of("sm_100"), Some(LoadError::NoKernelImage { wanted: 100, device: 90 }));
        assert!(matches!(of("bogus"), Some(LoadError::InvalidPtx { .. })));
        assert!(matches!(refusal(".version 8.0"), Some(LoadError::InvalidPtx { .. })));
    }

    #[test]
    fn strong_names_are_the_definitions_that_others_see() {
        let text =
            ".version 8.0 .target sm_70 .address_size 64 .extern .func e; .visible .func f { ret; } .func g { ret; }
            .weak .func w { ret; } .visible .global .u32 x; .visible .func d;";
        assert_eq!(strong_names(text, TARGET), Ok(vec!["f".to_owned(), "x".to_owned()]));
    }
}
