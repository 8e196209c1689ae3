//! Checks that doc comments of public items are informative: two words or fewer name no unit, no range and no source.
//!
//! Public items are those under `pub`, fields under `pub`, and variants of public enums with their fields. Items from macros are
//! not checked, and neither are items that are compiled for tests only.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, Field, Lit, Meta, Visibility};

use crate::checks::attributes::is_test;

/// Smallest number of words in a doc comment.
const MIN_WORDS: usize = 3;

/// Returns the doc comments of public items that are too short, each with its line.
pub(crate) fn faults(file: &syn::File) -> Vec<String> {
    let mut visitor = Visitor { faults: Vec::new() };
    visitor.visit_file(file);
    visitor.faults
}

struct Visitor {
    faults: Vec<String>,
}

impl Visitor {
    fn check(&mut self, attributes: &[Attribute]) {
        if is_test(attributes) {
            return;
        }
        let lines: Vec<_> =
            attributes.iter().filter_map(|it| text(it).map(|text| (it.span().start().line, text))).collect();
        let Some((number, first)) = lines.first() else { return };
        let words: usize = lines.iter().map(|(_, text)| count(text)).sum();
        if words < MIN_WORDS {
            self.faults.push(format!(
                "{number}: \"{}\" says too little of a public item: its unit, its range or where it comes from",
                first.trim()
            ));
        }
    }

    fn check_item(&mut self, visibility: &Visibility, attributes: &[Attribute]) {
        if matches!(visibility, Visibility::Public(_)) {
            self.check(attributes);
        }
    }

    /// Checks an item, and its public fields if it is public.
    fn check_fields<'a>(&mut self, item: (&Visibility, &[Attribute]), fields: impl Iterator<Item = &'a Field>) {
        if is_looked_at(item.0, item.1) {
            self.check(item.1);
            fields.for_each(|field| self.check_item(&field.vis, &field.attrs));
        }
    }
}

/// Returns whether an item is public, and not for tests only.
fn is_looked_at(visibility: &Visibility, attributes: &[Attribute]) -> bool {
    matches!(visibility, Visibility::Public(_)) && !is_test(attributes)
}

impl<'ast> Visit<'ast> for Visitor {
    fn visit_file(&mut self, file: &'ast syn::File) {
        if !is_test(&file.attrs) {
            visit::visit_file(self, file);
        }
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_test(&module.attrs) {
            self.check_item(&module.vis, &module.attrs);
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.check_fields((&item.vis, &item.attrs), item.fields.iter());
    }

    fn visit_item_union(&mut self, item: &'ast syn::ItemUnion) {
        self.check_fields((&item.vis, &item.attrs), item.fields.named.iter());
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        if !is_looked_at(&item.vis, &item.attrs) {
            return;
        }
        self.check(&item.attrs);
        for variant in item.variants.iter().filter(|variant| !is_test(&variant.attrs)) {
            self.check(&variant.attrs);
            variant.fields.iter().for_each(|field| self.check(&field.attrs));
        }
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        if !is_looked_at(&item.vis, &item.attrs) {
            return;
        }
        self.check(&item.attrs);
        for it in &item.items {
            match it {
                syn::TraitItem::Const(it) => self.check(&it.attrs),
                syn::TraitItem::Fn(it) => self.check(&it.attrs),
                syn::TraitItem::Type(it) => self.check(&it.attrs),
                _ => {}
            }
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if !is_test(&item.attrs) {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.check_item(&item.vis, &item.attrs);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.check_item(&item.vis, &item.attrs);
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.check_item(&item.vis, &item.attrs);
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.check_item(&item.vis, &item.attrs);
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.check_item(&item.vis, &item.attrs);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.check_item(&item.vis, &item.attrs);
    }
}

/// Returns the text of a line of a doc comment.
fn text(attribute: &Attribute) -> Option<String> {
    let Meta::NameValue(pair) = &attribute.meta else { return None };
    let Expr::Lit(value) = &pair.value else { return None };
    match &value.lit {
        Lit::Str(text) if pair.path.is_ident("doc") => Some(text.value()),
        _ => None,
    }
}

fn count(text: &str) -> usize {
    text.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_with_faults(text: &str) -> Vec<usize> {
        let number = |fault: &String| fault.split(':').next().and_then(|number| number.parse().ok());
        faults(&syn::parse_file(text).unwrap()).iter().filter_map(number).collect()
    }

    #[test]
    fn short_comments_of_public_items_are_refused() {
        assert_eq!(lines_with_faults("/// Its name.\npub struct A {\n    /// Bytes.\n    pub size: u64,\n}\n"), [1, 3]);
        assert_eq!(
            lines_with_faults(
                "/// One of several.\npub enum B {\n    /// Why.\n    C {\n        /// Which.\n        d: u8,\n    },\n}\n"
            ),
            [3, 5]
        );
        assert_eq!(
            lines_with_faults("/// Either of two.\npub union U {\n    /// Bytes.\n    pub size: u64,\n}\n"),
            [3]
        );
        assert_eq!(lines_with_faults("impl A {\n    /// The end.\n    pub fn end(&self) {}\n}\n"), [2]);
        assert_eq!(
            lines_with_faults("/// What can be ended.\npub trait E {\n    /// Ends it.\n    fn end(&self);\n}\n"),
            [3]
        );
    }

    #[test]
    fn longer_ones_and_private_items_are_not() {
        assert!(lines_with_faults("/// Length\n/// in bytes.\npub const A: u64 = 1;\n").is_empty());
        assert!(
            lines_with_faults(
                "/// Bytes.\nconst A: u64 = 1;\npub(crate) struct B {\n    /// Bytes.\n    size: u64,\n}\n"
            )
            .is_empty()
        );
        assert!(lines_with_faults("pub struct A {\n    /// Bytes.\n    size: u64,\n}\n").is_empty());
    }

    #[test]
    fn tests_are_left_out() {
        let short = [
            "mod tests {\n    /// Bytes.\n    pub const A: u64 = 1;\n}\n",
            "impl A {\n    /// Ends it.\n    pub fn end(&self) {}\n}\n",
            "/// Ends it.\npub fn end() {}\n",
            "/// Bytes.\npub const A: u64 = 1;\n",
            "/// Bytes.\npub type A = u64;\n",
            "/// One.\npub struct A {\n    /// Bytes.\n    pub size: u64,\n}\n",
            "/// One.\npub union A {\n    /// Bytes.\n    pub size: u64,\n}\n",
            "/// One.\npub enum A {\n    /// Bytes.\n    B,\n}\n",
            "/// One.\npub trait A {\n    /// Ends it.\n    fn end(&self);\n}\n",
        ];
        for item in short {
            assert!(!lines_with_faults(item).is_empty(), "{item}");
            assert!(lines_with_faults(&format!("#[cfg(test)]\n{item}")).is_empty(), "{item}");
        }
        let inner = [
            "pub struct A {\n    #[cfg(test)]\n    /// Bytes.\n    pub size: u64,\n}\n",
            "pub enum A {\n    #[cfg(test)]\n    /// Any.\n    B {\n        /// Bytes.\n        size: u64,\n    },\n}\n",
            "pub trait A {\n    #[cfg(test)]\n    /// Ends it.\n    fn end(&self);\n}\n",
            "impl A {\n    #[cfg(test)]\n    /// Ends it.\n    pub fn end(&self) {}\n}\n",
        ];
        inner.iter().for_each(|item| assert!(lines_with_faults(item).is_empty(), "{item}"));
        assert!(lines_with_faults("#![cfg(test)]\n/// Bytes.\npub const A: u64 = 1;\n").is_empty());
    }
}
