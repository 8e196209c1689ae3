//! The linker of device code (`cuLink*`): makes one image of PTX texts from files, containers, objects and libraries.
//!
//! Each text is checked when it is added, and all of them together at the end. `cuModuleLoadData` takes the resulting image. As
//! in the real linker, a refused text is left out and linking can go on. But a name that is defined twice, machine code and LTO
//! code fail all later calls. The options of an input, of the link, or of the compiler that made a container limit the registers
//! of a thread. The first of them that has a limit counts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use katydid_cuda_sys::{CUlinkState, CUresult, jit_input};
use katydid_driver_rules::code::LinkProgress;
use katydid_fatbin::{Compilation, ModuleImage, containers_of_object, linked_image, members_of_library};
use katydid_ptx_exec::{LoadError, Program, TargetDevice, strong_names};

use crate::code::module_image::{AddressOnlyMemory, CodeRefusal};
use crate::ffi::Outcome;
use crate::process::attributes::COMPUTE_CAPABILITY;
use crate::process::handles::{Registry, new_handle};

/// A link in progress.
pub(crate) struct Linker {
    /// Handle that `cuLinkCreate` gave.
    pub(crate) handle: usize,
    state: Mutex<LinkerState>,
}

/// The inputs and options of a link.
#[derive(Default)]
struct LinkerState {
    /// Texts, each with its compiler options.
    texts: Vec<(String, Compilation)>,
    /// Compiler options of the link.
    compilation: Compilation,
    /// The first input that defines each name.
    names: HashMap<String, String>,
    progress: LinkProgress,
    /// The image, which lives as long as the state, for the program to read.
    image: Option<Vec<u8>>,
    /// Lines of the error log so far.
    errors: String,
}

/// Links whose handle is alive.
static LINKERS: Registry<Linker> = Registry::new();

/// Returns the refusal of bytes that are no code of the form that their kind requires.
fn unrecognized(name: &str) -> CodeRefusal {
    CodeRefusal {
        code: CUresult::ERROR_INVALID_IMAGE,
        log: format!("error: '{name}' has a form that is not recognised"),
    }
}

/// Code that a program adds to a link.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a> {
    /// Bytes of the image or text.
    pub(crate) data: &'a [u8],
    /// Its name for messages.
    pub(crate) name: &'a str,
    /// Compiler options of this input.
    pub(crate) compilation: Compilation,
}

impl Linker {
    fn state(&self) -> MutexGuard<'_, LinkerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds one input to the link.
    pub(crate) fn add(&self, kind: u32, input: &Input<'_>) -> Outcome {
        self.state().add(kind, input)
    }

    /// Completes the image, and returns its first byte and its length.
    pub(crate) fn complete(&self) -> Outcome<(*const u8, usize)> {
        self.state().complete()
    }

    /// Returns the error log so far.
    pub(crate) fn errors(&self) -> String {
        self.state().errors.clone()
    }
}

impl LinkerState {
    fn add(&mut self, kind: u32, input: &Input<'_>) -> Outcome {
        self.progress.check_open()?;
        let added = match kind {
            jit_input::PTX => self.add_image(input),
            jit_input::FATBINARY => self.add_image(input),
            jit_input::OBJECT => self.add_object(input),
            jit_input::LIBRARY => self.add_library(input),
            jit_input::CUBIN => self.add_cubin(input),
            jit_input::NVVM => Err(CodeRefusal {
                code: CUresult::ERROR_JIT_COMPILER_NOT_FOUND,
                log: format!("error: '{}' is LTO code, which the software device does not compile", input.name),
            }),
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        };
        added.map_err(|refusal| {
            self.progress.refuse(kind, refusal.code);
            self.log_refusal(&refusal)
        })
    }

    /// Adds a refusal to the log.
    fn log_refusal(&mut self, refusal: &CodeRefusal) -> CUresult {
        if !self.errors.is_empty() {
            self.errors.push('\n');
        }
        self.errors.push_str(&refusal.log);
        refusal.code
    }

    /// Adds PTX text or a container with some. Both kinds of input accept both forms.
    fn add_image(&mut self, input: &Input<'_>) -> Result<(), CodeRefusal> {
        let Input { data, name, .. } = *input;
        let image = ModuleImage::from_bytes(data).map_err(|_| unrecognized(name))?;
        self.add_texts(&image, input)
    }

    /// Adds an image that this linker made before. Other machine code cannot run.
    fn add_cubin(&mut self, input: &Input<'_>) -> Result<(), CodeRefusal> {
        let Input { data, name, .. } = *input;
        let image = ModuleImage::from_bytes(data).map_err(|_| unrecognized(name))?;
        self.add_texts(&image, input).map_err(|refusal| match refusal.code {
            CUresult::ERROR_INVALID_SOURCE | CUresult::ERROR_INVALID_PTX | CUresult::ERROR_NO_BINARY_FOR_GPU => refusal,
            _ => CodeRefusal { code: CUresult::ERROR_INVALID_IMAGE, ..refusal },
        })
    }

    fn add_object(&mut self, input: &Input<'_>) -> Result<(), CodeRefusal> {
        let Input { data, name, .. } = *input;
        let none =
            || CodeRefusal { code: CUresult::ERROR_UNKNOWN, log: format!("error: no device code found in '{name}'") };
        let containers = containers_of_object(data).map_err(|_| none())?;
        if containers.is_empty() {
            return Err(none());
        }
        containers.into_iter().try_for_each(|data| self.add_image(&Input { data, ..*input }))
    }

    /// Adds the members that have PTX. Members without device code, or with machine code alone, are ignored. If code calls a
    /// function of such a member, the final step reports its name. The device runtime's library is such a member, and the linker
    /// knows its functions.
    fn add_library(&mut self, input: &Input<'_>) -> Result<(), CodeRefusal> {
        let Input { data, name, .. } = *input;
        let members = members_of_library(data).map_err(|_| CodeRefusal {
            code: CUresult::ERROR_UNKNOWN,
            log: format!("error: '{name}' is not a library of object files"),
        })?;
        let containers = members.into_iter().filter_map(|member| containers_of_object(member).ok()).flatten();
        containers.into_iter().try_for_each(|data| match self.add_image(&Input { data, ..*input }) {
            Err(refusal) if refusal.code == CUresult::ERROR_NO_BINARY_FOR_GPU => Ok(()),
            added => added,
        })
    }

    /// Adds the texts of an image that suit the device, each checked by itself.
    fn add_texts(&mut self, image: &ModuleImage<'_>, input: &Input<'_>) -> Result<(), CodeRefusal> {
        let (major, minor) = COMPUTE_CAPABILITY;
        for ptx in image.ptx(Some(major * 10 + minor))? {
            if !ptx.text.contains(".version") {
                return Err(unrecognized(input.name));
            }
            let compilation = input.compilation.or(self.compilation).or(ptx.compilation);
            self.add_text(&ptx.text, compilation, input.name)?;
        }
        Ok(())
    }

    fn add_text(&mut self, text: &str, compilation: Compilation, name: &str) -> Result<(), CodeRefusal> {
        let target = target();
        match Program::load(&[text], &mut AddressOnlyMemory::default(), target) {
            // The final step looks for names of other texts.
            Ok(_) | Err(LoadError::UnresolvedSymbol { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        for defined in strong_names(text, target)? {
            if let Some(first) = self.names.insert(defined.clone(), name.to_owned()) {
                let log = format!("error: '{defined}' in '{name}' is defined already, in '{first}'");
                return Err(CodeRefusal { code: CUresult::ERROR_INVALID_SOURCE, log });
            }
        }
        self.texts.push((text.to_owned(), compilation));
        Ok(())
    }

    fn complete(&mut self) -> Outcome<(*const u8, usize)> {
        self.progress.check_incomplete()?;
        let inputs: Vec<(&str, Compilation)> =
            self.texts.iter().map(|(text, compilation)| (text.as_str(), *compilation)).collect();
        let linked = match inputs.is_empty() {
            true => linked_image(&[(EMPTY_PTX, Compilation::default())]),
            false => linked_image(&inputs),
        };
        let texts: Vec<&str> = inputs.iter().map(|(text, _)| *text).collect();
        if let Err(error) = Program::load(&texts, &mut AddressOnlyMemory::default(), target()) {
            let code = CUresult::ERROR_INVALID_SOURCE;
            self.progress.fail(code);
            return Err(self.log_refusal(&CodeRefusal { code, log: error.to_string() }));
        }
        self.progress.complete();
        let image = self.image.insert(linked);
        Ok((image.as_ptr(), image.len()))
    }
}

/// The text that stands for a link without inputs.
const EMPTY_PTX: &str = ".version 9.0\n.target sm_90\n.address_size 64\n";

fn target() -> TargetDevice {
    let (major, minor) = COMPUTE_CAPABILITY;
    TargetDevice { major, minor }
}

/// `cuLinkCreate`, with its options.
pub(crate) fn create(compilation: Compilation) -> Arc<Linker> {
    let state = LinkerState { compilation, ..LinkerState::default() };
    let linker = Arc::new(Linker { handle: new_handle(), state: Mutex::new(state) });
    LINKERS.insert(linker.handle, Arc::clone(&linker));
    linker
}

/// Returns the link behind a handle.
pub(crate) fn resolve(handle: CUlinkState) -> Outcome<Arc<Linker>> {
    crate::process::state::ready()?;
    LINKERS.get(handle.address() as usize).ok_or(CUresult::ERROR_INVALID_HANDLE)
}

/// `cuLinkDestroy`: frees the image too.
pub(crate) fn destroy(handle: CUlinkState) -> Outcome {
    LINKERS.remove(handle.address() as usize).map(drop).ok_or(CUresult::ERROR_INVALID_HANDLE)
}
