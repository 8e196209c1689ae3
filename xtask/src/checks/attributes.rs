//! Interpretation of an item's attributes.

/// Returns whether an item is compiled for tests only.
pub(crate) fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let mut found = attribute.path().is_ident("test");
        if attribute.path().is_ident("cfg") {
            // An attribute that cannot be parsed here is not a plain `cfg(test)`.
            let _ = attribute.parse_nested_meta(|meta| {
                found |= meta.path.is_ident("test");
                Ok(())
            });
        }
        found
    })
}
