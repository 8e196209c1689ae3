//! Libraries: loading, variables, their module, the names of their kernels.

#![expect(unsafe_code, reason = "calls the driver")]

use std::ptr;
use std::sync::Arc;

use katydid_cuda_sys::{CUkernel, CUlibrary, CUlibraryOption, CUresult};
use katydid_driver::Driver;
use katydid_wire::facts::encode_names;
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{
    kdLibraryGlobal, kdLibraryGlobalReply, kdLibraryKernelNames, kdLibraryKernelNamesReply, kdLibraryLoad,
    kdLibraryLoadReply, kdLibraryModule, kdLibraryModuleReply,
};

use crate::code::jit_options::JitAnswers;
use crate::device::ask::ask;
use crate::handlers::code::module::{MAX_MODULE_NAMES, name, note_variable, owned};
use crate::handlers::code::{module_image, options};
use crate::handlers::{CallResult, success};
use crate::journal::TakenUpload;
use crate::memory::holdings::CodeOrigin;
use crate::memory::host_memory::VariableOwner;
use crate::state::Session;

/// `CU_LIBRARY_BINARY_IS_PRESERVED`: the image stays where it is as long as the library.
const BINARY_IS_PRESERVED: CUlibraryOption = 1;

/// Loads the collected image, and keeps it as long as the library, with the options and their log buffers: drivers load
/// lazily, and may compile later. Logs are answered whether that succeeds or not.
pub(crate) fn kdLibraryLoad(
    session: &mut Session,
    head: &FrameHead,
    message: kdLibraryLoad<'_>,
) -> CallResult<kdLibraryLoadReply> {
    session.tables.libraries.check_new(message.library)?;
    let image = module_image::finish(session, head)?;
    let image = session.images.share(image);
    let mut options = options::decode("kdLibraryLoad", message.options, message.infoLogSize, message.errorLogSize)?;
    session.hold_library(message.library, session.needs_of(&image))?;
    let mut library = CUlibrary::NULL;
    let (count, ids, values) = (options.count(), options.ids(), options.values());
    let code = image.as_ptr().cast();
    let (mut preserved, mut yes) = (BINARY_IS_PRESERVED, ptr::without_provenance_mut(1));
    // SAFETY: the image is whole, its lengths stay inside it, and it is kept below; both arrays have `count` entries, the
    // log buffers the sizes given beside them; those of the library's options have one.
    let status = unsafe {
        session.driver().cuLibraryLoadData(
            &raw mut library,
            code,
            ids,
            values,
            count,
            &raw mut preserved,
            &raw mut yes,
            1,
        )
    };
    let JitAnswers { info: infoLog, error: errorLog, info_length, error_length, threads } = options.answers();
    if status == CUresult::SUCCESS {
        session.tables.libraries.set(message.library, library, 0)?;
        session.images.keep(message.library, Arc::clone(&image), options);
        session.journal.attach(TakenUpload::Image(image));
    } else {
        session.forget_code(CodeOrigin::Library(message.library));
    }
    let (infoLength, errorLength) = (info_length, error_length);
    Ok((status, kdLibraryLoadReply { infoLength, errorLength, threads, infoLog, errorLog }))
}

/// Returns address and size of a variable in the current context.
pub(crate) fn kdLibraryGlobal(
    session: &mut Session,
    head: &FrameHead,
    message: kdLibraryGlobal<'_>,
) -> CallResult<kdLibraryGlobalReply> {
    let library: CUlibrary = session.handle(head, message.library)?;
    let name = name(message.name)?;
    let (mut address, mut size) = (0, 0_usize);
    let driver = session.driver();
    // SAFETY: the outputs are locals, the name ends with a NUL.
    let status = unsafe {
        match message.managed {
            0 => driver.cuLibraryGetGlobal(&raw mut address, &raw mut size, library, name.as_ptr()),
            _ => driver.cuLibraryGetManaged(&raw mut address, &raw mut size, library, name.as_ptr()),
        }
    };
    status.ok()?;
    let owner = VariableOwner::Library { library: message.library, context: session.current };
    let isManaged = u32::from(note_variable(session, address, size as u64, owner));
    success(kdLibraryGlobalReply { address, size: size as u64, isManaged })
}

/// Returns the library's module in the current context.
pub(crate) fn kdLibraryModule(
    session: &mut Session,
    head: &FrameHead,
    message: kdLibraryModule,
) -> CallResult<kdLibraryModuleReply> {
    session.tables.modules.check_new(message.module)?;
    let library: CUlibrary = session.handle(head, message.library)?;
    // SAFETY: the output is a local.
    let module = ask(|out| unsafe { session.driver().cuLibraryGetModule(out, library) })?;
    session.bind(message.module, module)?;
    session.tables.library_modules.insert(message.module, message.library);
    success(kdLibraryModuleReply {})
}

/// Returns the names of a library's kernels, in the driver's order.
pub(crate) fn kdLibraryKernelNames(
    session: &mut Session,
    head: &FrameHead,
    message: kdLibraryKernelNames,
) -> CallResult<kdLibraryKernelNamesReply> {
    let library: CUlibrary = session.handle(head, message.library)?;
    let driver = session.driver();
    // SAFETY: the output is a local.
    let count = ask::<u32>(|out| unsafe { driver.cuLibraryGetKernelCount(out, library) })?.min(MAX_MODULE_NAMES);
    let mut kernels = vec![CUkernel::NULL; count as usize];
    // SAFETY: the array has `count` entries.
    unsafe { driver.cuLibraryEnumerateKernels(kernels.as_mut_ptr(), count, library) }.ok()?;
    let names = kernels.iter().map(|kernel| kernel_name(driver, *kernel)).collect::<Result<Vec<_>, _>>()?;
    success(kdLibraryKernelNamesReply { names: encode_names(&names) })
}

fn kernel_name(driver: &Driver, kernel: CUkernel) -> Result<String, CUresult> {
    let mut text = ptr::null();
    // SAFETY: the output is a local; the handle came from the driver.
    unsafe { driver.cuKernelGetName(&raw mut text, kernel) }.ok()?;
    owned(text)
}
