//! A program: PTX texts that are checked, linked and decoded, with their variables in memory.

use crate::api::{GlobalMemory, Kernel, LoadError, TargetDevice};
use crate::code::{KernelInfo, Param};
use crate::decode::{self, FunctionNeeds, TextOptions};
use crate::engine::grid::MAX_BLOCK_THREADS;
use crate::engine::machine::Code;
use crate::load::accept::{architecture, check_block, check_const, check_params, is_specific, parse};
use crate::load::directives::{directive, has_directive};
use crate::load::globals::{self, Globals};
use crate::load::layout::layout_of;
use crate::load::link::{LinkedFunction, LinkedProgram};
use crate::load::register_limit;
use crate::state::bytes::Hash;
use katydid_ptx::ast::{Function, Module};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The version of PTX from which on shuffles and votes must be `.sync`, for `sm_70` and later.
const MEMBERS_SINCE: (u32, u32) = (6, 4);
/// The implementation of [`GRID_CALLS`], if no text defines them.
const GRID_SYNC: &str = include_str!("../device_runtime/grid_sync.ptx");
/// Functions of [`GRID_SYNC`].
const GRID_CALLS: [&str; 2] = ["cudaCGGetIntrinsicHandle", "cudaCGSynchronize"];

/// A linked and decoded program.
#[derive(Debug)]
pub struct Program {
    kernels: Vec<Arc<Kernel>>,
    /// Index into `kernels`.
    by_name: HashMap<String, usize>,
    /// Name, address, size, in the order of the texts.
    globals: Vec<(String, u64, u64)>,
    /// Names of managed variables.
    managed: HashSet<String>,
    /// Names of variables to which the host binds textures and surfaces.
    references: HashMap<String, ReferenceKind>,
}

/// Kind of a variable that is a reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReferenceKind {
    /// A texture reference, `.texref`.
    Texture,
    /// A surface reference, `.surfref`.
    Surface,
}

/// A PTX text, and the options of its compilation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PtxSource<'a> {
    /// The text of the program.
    pub text: &'a str,
    /// Most 32-bit registers of a thread, for kernels without their own limit; `None` without such an option.
    pub max_registers: Option<u32>,
    /// Whether a product and the sum that uses it become one fused multiply-add.
    pub contracts: bool,
}

impl PtxSource<'_> {
    /// Adds a text to a hash, which distinguishes other texts, and the same one compiled to other code.
    fn add_to(hash: Hash, source: &Self) -> Hash {
        let hash = hash.bytes(source.text.as_bytes());
        if source.contracts { hash } else { hash.bytes(b"uncontracted") }
    }
}

impl<'a> From<&'a str> for PtxSource<'a> {
    fn from(text: &'a str) -> Self {
        Self { text, max_registers: None, contracts: true }
    }
}

/// Returns the text of the device's library, if these texts use it.
fn provided(sources: &[PtxSource<'_>]) -> Option<PtxSource<'static>> {
    let is_called = |source: &PtxSource<'_>| GRID_CALLS.iter().any(|name| source.text.contains(name));
    sources.iter().any(is_called).then(|| GRID_SYNC.into())
}

impl Program {
    /// Links and decodes PTX texts, and places variables in `memory`. On failure, the caller must free the allocations.
    pub fn load(texts: &[&str], memory: &mut dyn GlobalMemory, target: TargetDevice) -> Result<Self, LoadError> {
        let sources: Vec<PtxSource<'_>> = texts.iter().map(|text| PtxSource::from(*text)).collect();
        Self::load_sources(&sources, memory, target)
    }

    /// As [`Self::load`], of texts with options.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_sources(
        sources: &[PtxSource<'_>],
        memory: &mut dyn GlobalMemory,
        target: TargetDevice,
    ) -> Result<Self, LoadError> {
        let texts: Vec<PtxSource<'_>> = sources.iter().copied().chain(provided(sources)).collect();
        let modules = texts.iter().map(|source| parse(source.text, target)).collect::<Result<Vec<_>, _>>()?;
        let linked = LinkedProgram::new(&modules)?;
        let globals = globals::allocate(&linked, memory)?;
        check_const(globals.const_bytes)?;
        let options: Vec<TextOptions> = modules
            .iter()
            .zip(&texts)
            .map(|(module, source)| TextOptions {
                contracts: source.contracts,
                is_specific: is_specific(module),
                version: module.version.0,
                needs_members: module.version >= MEMBERS_SINCE && architecture(module) >= 70,
            })
            .collect();
        let decoded = decode::decode(&linked, &globals, &options)?;
        let mut code = decoded.code;
        code.source = sources.iter().fold(Hash::NONE, PtxSource::add_to).value();
        let entries = linked.functions.iter().zip(&decoded.needs).enumerate();
        for (index, (linked_function, needs)) in
            entries.filter(|(_, (linked_function, _))| linked_function.function.entry)
        {
            let limit = texts.get(linked_function.module).and_then(|source| source.max_registers);
            let mut info = kernel(linked_function, &modules, needs, &globals, index as u32, &code)?;
            info.registers = register_limit::apply(linked_function.function, info.registers, limit);
            code.kernels.push(Arc::new(info));
        }
        let code = Arc::new(code);
        let kernel = |info: &Arc<KernelInfo>| Arc::new(Kernel { info: Arc::clone(info), code: Arc::clone(&code) });
        let kernels: Vec<_> = code.kernels.iter().map(kernel).collect();
        let by_name = kernels.iter().enumerate().map(|(index, kernel)| (kernel.name.clone(), index)).collect();
        let managed = linked.variables.iter().filter(|linked_variable| linked_variable.variable.managed);
        let managed = managed.map(|linked_variable| linked_variable.variable.name.to_owned()).collect();
        let references = linked.variables.iter().filter_map(|linked_variable| {
            let kind = match linked_variable.variable.ty {
                "texref" => ReferenceKind::Texture,
                "surfref" => ReferenceKind::Surface,
                _ => return None,
            };
            Some((linked_variable.variable.name.to_owned(), kind))
        });
        let references = references.collect();
        Ok(Self { kernels, by_name, globals: visible_globals(&linked, &globals), managed, references })
    }

    /// Returns all kernels, in the order of the texts.
    pub fn kernels(&self) -> &[Arc<Kernel>] {
        &self.kernels
    }

    /// Returns the kernel called `name`.
    pub fn kernel(&self, name: &str) -> Option<Arc<Kernel>> {
        self.by_name.get(name).and_then(|index| self.kernels.get(*index)).cloned()
    }

    /// Returns address and size of the `.global` or `.const` variable `name`.
    pub fn global(&self, name: &str) -> Option<(u64, u64)> {
        let global = self.globals.iter().find(|(known, ..)| known == name);
        global.map(|(_, address, size)| (*address, *size))
    }

    /// Returns whether the host uses the variable `name` too.
    pub fn is_managed(&self, name: &str) -> bool {
        self.managed.contains(name)
    }

    /// Returns the kind of the reference `name`, if the variable is one.
    pub fn reference(&self, name: &str) -> Option<ReferenceKind> {
        self.references.get(name).copied()
    }

    /// Returns the names of all variables that `global` finds, in the order of the texts.
    pub fn global_names(&self) -> Vec<&str> {
        self.globals.iter().map(|(name, ..)| name.as_str()).collect()
    }
}

/// Returns the variables that the host can look up, including static ones, which programs name by their symbol.
fn visible_globals(linked: &LinkedProgram<'_, '_>, globals: &Globals) -> Vec<(String, u64, u64)> {
    let placed = linked.variables.iter().zip(&globals.addresses);
    let placed = placed.filter_map(|(known, location)| location.map(|(address, size)| (known, address, size)));
    placed.map(|(known, address, size)| (known.variable.name.to_owned(), address, size)).collect()
}

/// Returns the properties of a kernel for launches and function attributes.
fn kernel(
    linked_function: &LinkedFunction<'_, '_>,
    modules: &[Module<'_>],
    needs: &FunctionNeeds,
    globals: &Globals,
    function: u32,
    code: &Code,
) -> Result<KernelInfo, LoadError> {
    let (params, param_bytes) = params(linked_function.function)?;
    let module = modules.get(linked_function.module);
    let required_block = directive(linked_function.function, "reqntid");
    check_params(linked_function.function, module, &params)?;
    check_block(linked_function.function, required_block)?;
    let local = code.functions.get(function as usize).map_or(0, |function| function.local_bytes);
    let threads =
        |name: &str| directive(linked_function.function, name).map(|[x, y, z]| x.saturating_mul(y).saturating_mul(z));
    let promised = threads("reqntid").or_else(|| threads("maxntid")).map(|threads| threads.clamp(1, MAX_BLOCK_THREADS));
    Ok(KernelInfo {
        name: linked_function.function.name.to_owned(),
        params,
        param_bytes,
        static_shared: needs.shared_bytes,
        local_bytes: local,
        const_bytes: u32::try_from(globals.const_bytes).unwrap_or(u32::MAX),
        registers: needs.registers,
        max_threads: promised.unwrap_or(MAX_BLOCK_THREADS),
        required_block,
        required_cluster: directive(linked_function.function, "reqnctapercluster"),
        max_cluster: directive(linked_function.function, "maxclusterrank").map(|[rank, ..]| rank),
        needs_cluster: has_directive(linked_function.function, "explicitcluster"),
        ptx_version: module.map_or(0, |module| module.version.0 * 10 + module.version.1),
        target: module.map_or(0, architecture),
        function,
        dynamic_align: needs.dynamic_align,
    })
}

/// Lays out the parameter buffer: each parameter at a multiple of its alignment.
fn params(function: &Function<'_>) -> Result<(Vec<Param>, u32), LoadError> {
    let mut end = 0_u32;
    let mut params = Vec::new();
    for variable in &function.params {
        let (offset, stop) = layout_of(variable)?.after(end, variable.line)?;
        params.push(Param { offset, size: stop - offset });
        end = stop;
    }
    Ok((params, end))
}
