//! The directives of a function, such as `.maxntid`.

use katydid_ptx::ast::Function;

/// Returns whether a function has a directive.
pub(super) fn has_directive(function: &Function<'_>, name: &str) -> bool {
    function.directives.iter().any(|(known, _)| *known == name)
}

/// Returns the three numbers of a directive such as `.maxntid`. Missing ones are 1.
pub(super) fn directive(function: &Function<'_>, name: &str) -> Option<[u32; 3]> {
    let (_, numbers) = function.directives.iter().find(|(known, _)| *known == name)?;
    let number = |index: usize| numbers.get(index).map_or(1, |number| u32::try_from(*number).unwrap_or(u32::MAX));
    Some([number(0), number(1), number(2)])
}
