//! What attributes say of an item.

/// Whether an item is compiled for tests only.
pub(crate) fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let mut found = attribute.path().is_ident("test");
        if attribute.path().is_ident("cfg") {
            // What cannot be parsed here is no plain `cfg(test)`.
            let _ = attribute.parse_nested_meta(|meta| {
                found |= meta.path.is_ident("test");
                Ok(())
            });
        }
        found
    })
}
