//! Checks that modules of a crate use each other in one direction.
//!
//! A module is a file; an inline `mod x { .. }` belongs to its file. Code that is compiled for tests only is left out, and so are
//! generated files that are included.
//!
//! A module uses another where a path names it or one of its items. The path may begin with `crate::`, `self::`, `super::`, an
//! imported module or a child's name. The use of a re-exported item counts as a use of the module that defines it. Between parent
//! and child:
//!
//! - a declaration (`mod x;`) and a re-export (`pub use x::Y`, also `pub(crate)`) are no use;
//! - every other use of a child by its parent is one, and so is every use of an item of the parent by its child.
//!
//! Parents therefore either coordinate their children or offer what the children share, but not both.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use proc_macro2::{Span, TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Item, UseTree};

use crate::checks::attributes::is_test;
use crate::output::line;

/// Largest number of re-exports that are followed for one name.
const MAX_REEXPORT_DEPTH: usize = 8;

/// Modules on the path from a crate's root, such as `["memory", "pool"]`.
type ModulePath = Vec<String>;

/// A place where one module uses another.
#[derive(Debug, Clone, PartialEq, Eq)]
struct UseSite {
    file: PathBuf,
    line: usize,
}

/// One module: its file, and the names that other modules find in it.
struct Module {
    file: PathBuf,
    syntax: syn::File,
    /// Names of the modules that it declares.
    children: BTreeSet<String>,
    /// Names that it defines itself.
    items: BTreeSet<String>,
    /// Names that it re-exports, with the paths behind them as written.
    reexports: BTreeMap<String, Vec<String>>,
    /// Paths from which it re-exports every name.
    globs: Vec<Vec<String>>,
}

/// All modules of one crate.
#[derive(Default)]
struct Crate {
    modules: BTreeMap<ModulePath, Module>,
}

/// First place where each module uses each other one.
type Uses = BTreeMap<(ModulePath, ModulePath), UseSite>;

/// Returns every cycle of modules in the checkout.
///
/// With `shows_edges`, prints each use inside a cycle.
pub(crate) fn faults(root: &Path, shows_edges: bool) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for (name, folder) in crates(root)? {
        for file in roots(&folder.join("src"))? {
            let uses = Crate::read(&file)?.uses();
            for members in components(&uses) {
                faults.push(describe(root, &name, &members, &uses));
                if shows_edges {
                    show_edges(root, &members, &uses);
                }
            }
        }
    }
    Ok(faults)
}

/// Returns the crates of the checkout by name, with their folders.
fn crates(root: &Path) -> Result<Vec<(String, PathBuf)>> {
    let folder = root.join("crates");
    let mut crates = vec![("tests".to_owned(), root.join("tests")), ("xtask".to_owned(), root.join("xtask"))];
    for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        if path.join("Cargo.toml").is_file() {
            crates.push((path.file_name().unwrap_or_default().to_string_lossy().into_owned(), path));
        }
    }
    crates.sort();
    Ok(crates)
}

/// Returns the root files of a crate's library and programs.
fn roots(source: &Path) -> Result<Vec<PathBuf>> {
    let mut roots: Vec<PathBuf> =
        ["lib.rs", "main.rs"].iter().map(|name| source.join(name)).filter(|path| path.is_file()).collect();
    let programs = source.join("bin");
    if programs.is_dir() {
        for entry in fs::read_dir(&programs)? {
            roots.extend(Some(entry?.path()).filter(|path| path.extension().is_some_and(|end| end == "rs")));
        }
    }
    Ok(roots)
}

/// Describes a cycle of modules: all its members, and a shortest cycle among them.
fn describe(root: &Path, name: &str, members: &BTreeSet<ModulePath>, uses: &Uses) -> String {
    let names: Vec<String> = members.iter().map(show).collect();
    let mut text = format!("{name}: {} modules use each other in a cycle: {}", members.len(), names.join(", "));
    for edge in shortest_cycle(members, uses) {
        text.push_str(&format!("\n    {}", edge_line(root, &edge.0, &edge.1, &uses[&edge])));
    }
    text
}

fn show_edges(root: &Path, members: &BTreeSet<ModulePath>, uses: &Uses) {
    for ((from, to), site) in uses.iter().filter(|((from, to), _)| members.contains(from) && members.contains(to)) {
        line(&edge_line(root, from, to, site));
    }
}

fn edge_line(root: &Path, from: &ModulePath, to: &ModulePath, site: &UseSite) -> String {
    let file = site.file.strip_prefix(root).unwrap_or(&site.file);
    format!("{} uses {} at {}:{}", show(from), show(to), file.display(), site.line)
}

fn show(path: &ModulePath) -> String {
    if path.is_empty() { "the crate's root".to_owned() } else { path.join("::") }
}

impl Crate {
    /// Reads a crate from its first file.
    fn read(root: &Path) -> Result<Self> {
        let mut result = Self::default();
        let folder = root.parent().unwrap_or(Path::new(""));
        result.add(ModulePath::new(), root.to_owned(), folder)?;
        Ok(result)
    }

    /// Reads a module and its children, which lie in `folder`.
    fn add(&mut self, path: ModulePath, file: PathBuf, folder: &Path) -> Result<()> {
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let module = Module::parse(&text, file)?;
        let children = module.children.clone();
        self.modules.insert(path.clone(), module);
        for child in children {
            let flat = folder.join(format!("{child}.rs"));
            let file = if flat.is_file() { flat } else { folder.join(&child).join("mod.rs") };
            let path = path.iter().cloned().chain([child.clone()]).collect();
            self.add(path, file, &folder.join(child))?;
        }
        Ok(())
    }

    /// Returns every use of one module by another.
    fn uses(&self) -> Uses {
        let mut uses = Uses::new();
        for (path, module) in &self.modules {
            let mut reader =
                Reader { modules: self, path, module, depth: 0, aliases: BTreeMap::new(), uses: &mut uses };
            reader.aliases = module.children.iter().map(|child| (child.clone(), joined(path, child))).collect();
            // Imports come first: a module may be named above the `use` in a block.
            Imports(&mut reader).visit_file(&module.syntax);
            reader.visit_file(&module.syntax);
        }
        uses
    }

    /// Returns the module that defines the item at `names` from `start`, and whether the names lead to that module itself.
    fn resolve(&self, start: &ModulePath, names: &[String], depth: usize) -> Option<(ModulePath, bool)> {
        let mut at = start.clone();
        for (index, name) in names.iter().enumerate() {
            let module = self.modules.get(&at)?;
            if module.children.contains(name) {
                at.push(name.clone());
                continue;
            }
            if depth < MAX_REEXPORT_DEPTH
                && let Some(found) = self.follow(&at, module, name, &names[index + 1..], depth)
            {
                return Some(found);
            }
            return Some((at, false));
        }
        Some((at, true))
    }

    /// Follows a re-export of `name` by the module `at`.
    fn follow(
        &self,
        at: &ModulePath,
        module: &Module,
        name: &str,
        segments: &[String],
        depth: usize,
    ) -> Option<(ModulePath, bool)> {
        if let Some(target) = module.reexports.get(name) {
            let target: Vec<String> = target.iter().chain(segments).cloned().collect();
            return self.resolve_written(at, &target, depth + 1);
        }
        if module.items.contains(name) {
            return None;
        }
        module.globs.iter().find_map(|glob| {
            let (target, is_module) = self.resolve_written(at, glob, depth + 1)?;
            let holder = self.modules.get(&target).filter(|_| is_module)?;
            let has = holder.items.contains(name) || holder.reexports.contains_key(name);
            let names: Vec<String> = [name.to_owned()].into_iter().chain(segments.iter().cloned()).collect();
            has.then(|| self.resolve(&target, &names, depth + 1)).flatten()
        })
    }

    /// Resolves a path as module `at` writes it; `None` for other crates.
    fn resolve_written(&self, at: &ModulePath, names: &[String], depth: usize) -> Option<(ModulePath, bool)> {
        let (start, rest) = self.start(at, names, 0)?;
        self.resolve(&start, rest, depth)
    }

    /// Returns the start of a written path and the names behind it; the file has `inline` modules around the path.
    fn start<'a>(&self, at: &ModulePath, names: &'a [String], inline: usize) -> Option<(ModulePath, &'a [String])> {
        let first = names.first()?;
        let mut start = at.clone();
        match first.as_str() {
            "crate" => return Some((ModulePath::new(), &names[1..])),
            "self" => return Some((start, &names[1..])),
            "super" => {}
            name if self.modules.get(at)?.children.contains(name) => return Some((start, names)),
            _ => return None,
        }
        let up = names.iter().take_while(|name| *name == "super").count();
        for _ in inline..up {
            start.pop()?;
        }
        Some((start, &names[up..]))
    }
}

fn joined(path: &ModulePath, child: &str) -> ModulePath {
    path.iter().cloned().chain([child.to_owned()]).collect()
}

impl Module {
    fn parse(text: &str, file: PathBuf) -> Result<Self> {
        let syntax = syn::parse_file(text).with_context(|| format!("{} is not Rust", file.display()))?;
        let mut module = Self {
            file,
            syntax,
            children: BTreeSet::new(),
            items: BTreeSet::new(),
            reexports: BTreeMap::new(),
            globs: Vec::new(),
        };
        let items = std::mem::take(&mut module.syntax.items);
        items.iter().for_each(|item| module.note(item));
        module.syntax.items = items;
        Ok(module)
    }

    fn note(&mut self, item: &Item) {
        match item {
            Item::Mod(child) if child.content.is_none() && !is_test(&child.attrs) => {
                self.children.insert(child.ident.to_string());
            }
            Item::Use(import) if is_reexport(import) => {
                for leaf in leaves(&import.tree) {
                    match leaf.name {
                        Some(name) => drop(self.reexports.insert(name, leaf.path)),
                        None => self.globs.push(leaf.path),
                    }
                }
            }
            other => self.items.extend(name_of(other)),
        }
    }
}

fn name_of(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Mod(item) => &item.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        _ => return None,
    };
    Some(name.to_string())
}

fn is_reexport(import: &syn::ItemUse) -> bool {
    !matches!(import.vis, syn::Visibility::Inherited)
}

/// One name that a `use` imports.
struct Leaf {
    path: Vec<String>,
    /// Name in the importing module; `None` for `*`, and `_` for an unnamed trait.
    name: Option<String>,
    span: Span,
}

fn leaves(tree: &UseTree) -> Vec<Leaf> {
    let mut found = Vec::new();
    spread(tree, &mut Vec::new(), &mut found);
    found
}

fn spread(tree: &UseTree, prefix: &mut Vec<String>, leaves: &mut Vec<Leaf>) {
    let mut add = |ident: &syn::Ident, name: String, prefix: &[String]| {
        // `a::{self}` is `a`.
        let own = Some(ident.to_string()).filter(|text| text != "self" || prefix.is_empty());
        let path: Vec<String> = prefix.iter().cloned().chain(own).collect();
        let name = if name == "self" { path.last().cloned().unwrap_or_default() } else { name };
        leaves.push(Leaf { path, name: Some(name), span: ident.span() });
    };
    match tree {
        UseTree::Name(leaf) => add(&leaf.ident, leaf.ident.to_string(), prefix),
        UseTree::Rename(leaf) => add(&leaf.ident, leaf.rename.to_string(), prefix),
        UseTree::Glob(leaf) => {
            leaves.push(Leaf { path: prefix.clone(), name: None, span: leaf.star_token.spans[0] });
        }
        UseTree::Group(group) => group.items.iter().for_each(|item| spread(item, prefix, leaves)),
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            spread(&path.tree, prefix, leaves);
            prefix.pop();
        }
    }
}

/// Finds the modules that one module uses.
struct Reader<'a> {
    modules: &'a Crate,
    path: &'a ModulePath,
    module: &'a Module,
    /// Number of inline modules around the item that is read.
    depth: usize,
    /// Modules that the file names without a path.
    aliases: BTreeMap<String, ModulePath>,
    uses: &'a mut Uses,
}

impl Reader<'_> {
    /// Records the use of the item that a path names.
    fn note(&mut self, names: &[String], span: Span) {
        let found = self.find(names);
        if let Some((target, _)) = found.filter(|(target, _)| target != self.path) {
            let site = || UseSite { file: self.module.file.clone(), line: span.start().line };
            self.uses.entry((self.path.clone(), target)).or_insert_with(site);
        }
    }

    fn find(&self, names: &[String]) -> Option<(ModulePath, bool)> {
        let first = names.first()?;
        if let Some(module) = self.aliases.get(first) {
            return self.modules.resolve(module, &names[1..], 0);
        }
        let (start, rest) = self.modules.start(self.path, names, self.depth)?;
        self.modules.resolve(&start, rest, 0)
    }

    /// Records paths among the tokens of a macro.
    fn scan(&mut self, tokens: TokenStream) {
        let mut names: Vec<String> = Vec::new();
        let mut begin: Option<Span> = None;
        let mut colons = 0;
        for token in tokens {
            match &token {
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.flush(&mut names, begin);
                    }
                    if names.is_empty() {
                        begin = Some(ident.span());
                    }
                    names.push(ident.to_string());
                    colons = 0;
                }
                other => {
                    self.flush(&mut names, begin);
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.scan(group.stream());
                    }
                }
            }
        }
        self.flush(&mut names, begin);
    }

    fn flush(&mut self, names: &mut Vec<String>, span: Option<Span>) {
        if let (true, Some(span)) = (names.len() > 1, span) {
            self.note(names, span);
        }
        names.clear();
    }
}

/// Reads the imports of a file: a module becomes an alias, an item is a use of its module.
struct Imports<'a, 'b>(&'a mut Reader<'b>);

impl<'ast> Visit<'ast> for Imports<'_, '_> {
    fn visit_item_use(&mut self, import: &'ast syn::ItemUse) {
        if is_test(&import.attrs) {
            return;
        }
        for leaf in leaves(&import.tree) {
            match (self.0.find(&leaf.path), leaf.name) {
                (Some((module, true)), Some(name)) => drop(self.0.aliases.insert(name, module)),
                (Some(_), _) if !is_reexport(import) => self.0.note(&leaf.path, leaf.span),
                // This may be a module of another crate with the name of a child.
                (None, Some(name)) => drop(self.0.aliases.remove(&name)),
                _ => {}
            }
        }
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_test(&module.attrs) {
            self.0.depth += 1;
            visit::visit_item_mod(self, module);
            self.0.depth -= 1;
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Static(item) => &item.attrs,
            Item::Const(item) => &item.attrs,
            Item::Struct(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !is_test(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_test(&module.attrs) {
            self.depth += 1;
            visit::visit_item_mod(self, module);
            self.depth -= 1;
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_test(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_use(&mut self, _: &'ast syn::ItemUse) {}

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if names.len() > 1
            && path.leading_colon.is_none()
            && let Some(first) = path.segments.first()
        {
            self.note(&names, first.ident.span());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, invocation: &'ast syn::Macro) {
        self.visit_path(&invocation.path);
        self.scan(invocation.tokens.clone());
    }
}

/// Returns the sets of modules that use each other in a cycle.
fn components(uses: &Uses) -> Vec<BTreeSet<ModulePath>> {
    let mut components: Vec<BTreeSet<ModulePath>> = Vec::new();
    let modules: BTreeSet<&ModulePath> = uses.keys().flat_map(|(from, to)| [from, to]).collect();
    let reached: BTreeMap<&ModulePath, BTreeSet<&ModulePath>> =
        modules.iter().map(|module| (*module, reached(module, uses))).collect();
    for module in modules {
        if components.iter().any(|members| members.contains(module)) {
            continue;
        }
        let members: BTreeSet<ModulePath> = reached[module]
            .iter()
            .filter(|other| reached[**other].contains(module))
            .map(|other| (*other).clone())
            .collect();
        if members.len() > 1 {
            components.push(members);
        }
    }
    components
}

/// Returns all modules that `start` uses, directly or through others.
fn reached<'a>(start: &ModulePath, uses: &'a Uses) -> BTreeSet<&'a ModulePath> {
    let mut modules = BTreeSet::new();
    let mut left: Vec<&ModulePath> = users(start, uses).collect();
    while let Some(module) = left.pop() {
        if modules.insert(module) {
            left.extend(users(module, uses));
        }
    }
    modules
}

/// Returns the modules that `module` uses directly.
fn users<'a>(module: &ModulePath, uses: &'a Uses) -> impl Iterator<Item = &'a ModulePath> {
    let first = (module.clone(), ModulePath::new());
    let module = module.clone();
    uses.range(first..).take_while(move |((from, _), _)| *from == module).map(|((_, to), _)| to)
}

/// Returns the edges of a shortest cycle among `members`.
fn shortest_cycle(members: &BTreeSet<ModulePath>, uses: &Uses) -> Vec<(ModulePath, ModulePath)> {
    let cycles = members.iter().filter_map(|start| cycle_from(start, members, uses));
    let shortest = cycles.min_by_key(Vec::len).unwrap_or_default();
    let next = shortest.iter().skip(1).chain(shortest.first());
    shortest.iter().cloned().zip(next.cloned()).collect()
}

/// Returns the modules of a shortest cycle through `start`.
fn cycle_from(start: &ModulePath, members: &BTreeSet<ModulePath>, uses: &Uses) -> Option<Vec<ModulePath>> {
    let mut predecessors: BTreeMap<&ModulePath, &ModulePath> = BTreeMap::new();
    let mut queue: VecDeque<&ModulePath> = [start].into();
    while let Some(module) = queue.pop_front() {
        for next in users(module, uses).filter(|next| members.contains(*next)) {
            if next == start {
                let mut way = vec![module.clone()];
                let mut at = module;
                while at != start {
                    at = predecessors[at];
                    way.insert(0, at.clone());
                }
                return Some(way);
            }
            if !predecessors.contains_key(next) {
                predecessors.insert(next, module);
                queue.push_back(next);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the uses in a made-up crate, whose first file is its root.
    fn uses(files: &[(&str, &str)]) -> Vec<String> {
        let mut test_crate = Crate::default();
        for (name, text) in files {
            let path = name.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect();
            test_crate.modules.insert(path, Module::parse(text, PathBuf::from("x.rs")).unwrap());
        }
        test_crate.uses().keys().map(|(from, to)| format!("{} -> {}", from.join("::"), to.join("::"))).collect()
    }

    #[test]
    fn paths_and_imports_are_uses() {
        let root = ("", "mod a; mod b; mod c;");
        let a = ("a", "use crate::{b, c::Thing};\nfn f() { b::g(); self::h(); }");
        assert_eq!(uses(&[root, a, ("b", ""), ("c", "")]), ["a -> b", "a -> c"]);
        let a = ("a", "fn f() { super::b::g(); println!(\"{}\", crate::c::X); }");
        assert_eq!(uses(&[root, a, ("b", ""), ("c", "")]), ["a -> b", "a -> c"]);
    }

    #[test]
    fn an_imported_module_is_used_only_where_a_path_says_so() {
        let root = ("", "mod a; mod b;");
        let files = [root, ("a", "use crate::b;\nfn f() { b::c::g(); }"), ("b", "mod c;"), ("b::c", "")];
        assert_eq!(uses(&files), ["a -> b::c"]);
    }

    #[test]
    fn tests_do_not_count_as_uses() {
        let root = ("", "mod a; mod b;");
        let a = ("a", "#[cfg(test)]\nmod tests { use crate::b::X; }\n#[cfg(test)]\nfn f() { crate::b::g(); }");
        assert!(uses(&[root, a, ("b", "")]).is_empty());
    }

    #[test]
    fn a_reexport_leads_to_the_module_that_defines() {
        let root = ("", "mod a; mod b;");
        let b = ("b", "mod c; pub(crate) use c::X; pub(crate) use self::c::*;");
        let files = [root, ("a", "use crate::b::{X, Y};"), b, ("b::c", "pub struct X; pub struct Y;")];
        assert_eq!(uses(&files), ["a -> b::c"]);
    }

    #[test]
    fn parent_and_child_count_both_ways() {
        let files = [("", "mod a;"), ("a", "mod b;\nfn f() { b::g(); }"), ("a::b", "use super::f;")];
        assert_eq!(uses(&files), ["a -> a::b", "a::b -> a"]);
        let files = [("", "mod a;"), ("a", "mod b;"), ("a::b", "mod inner { use super::X; use super::super::f; }")];
        assert_eq!(uses(&files), ["a::b -> a"]);
    }

    fn uses_of(edges: &[(&str, &str)]) -> Uses {
        let site = |line| UseSite { file: PathBuf::from("crates/x/src/a.rs"), line };
        let path = |name: &str| vec![name.to_owned()];
        edges.iter().enumerate().map(|(line, (from, to))| ((path(from), path(to)), site(line + 1))).collect()
    }

    #[test]
    fn a_cycle_names_its_modules_and_the_shortest_way_round() {
        let uses = uses_of(&[("a", "b"), ("b", "c"), ("c", "a"), ("b", "a"), ("c", "d")]);
        let found = components(&uses);
        assert_eq!(found.len(), 1);
        let text = describe(Path::new(""), "x", &found[0], &uses);
        assert_eq!(
            text,
            "x: 3 modules use each other in a cycle: a, b, c\n    a uses b at crates/x/src/a.rs:1\n    b uses a at crates/x/src/a.rs:4"
        );
    }

    #[test]
    fn one_way_dependencies_are_not_a_cycle() {
        assert!(components(&uses_of(&[("a", "b"), ("b", "c"), ("a", "c")])).is_empty());
    }
}
