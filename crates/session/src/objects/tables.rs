//! All handle tables of a session.

use std::collections::HashMap;

use katydid_cuda_sys::{CUcontext, CUevent, CUfunction, CUkernel, CUlibrary, CUmodule, CUstream};

use crate::objects::arrays::Arrays;
use crate::objects::handles::{Handles, ObjectTables};
use crate::objects::references::References;

/// One table a kind.
#[derive(Default)]
pub(crate) struct Tables {
    pub(crate) contexts: Handles<CUcontext>,
    pub(crate) streams: Handles<CUstream>,
    pub(crate) events: Handles<CUevent>,
    pub(crate) modules: Handles<CUmodule>,
    pub(crate) libraries: Handles<CUlibrary>,
    /// The library of each module that is a library's.
    pub(crate) library_modules: HashMap<u32, u32>,
    pub(crate) functions: Handles<CUfunction>,
    pub(crate) kernels: Handles<CUkernel>,
    pub(crate) arrays: Arrays,
    pub(crate) references: References,
    pub(crate) objects: ObjectTables,
}

impl Tables {
    /// Returns the ids seen so far, by kind.
    pub(crate) fn id_counts(&self) -> [u32; 7] {
        let Self { contexts, streams, events, modules, libraries, functions, kernels, .. } = self;
        let code = [modules.id_count(), libraries.id_count(), functions.id_count(), kernels.id_count()];
        let [modules, libraries, functions, kernels] = code;
        [contexts.id_count(), streams.id_count(), events.id_count(), modules, libraries, functions, kernels]
    }

    /// Continues after other tables that have seen so many ids.
    pub(crate) fn resume(&mut self, [contexts, streams, events, modules, libraries, functions, kernels]: [u32; 7]) {
        self.contexts.resume(contexts);
        self.streams.resume(streams);
        self.events.resume(events);
        self.modules.resume(modules);
        self.libraries.resume(libraries);
        self.functions.resume(functions);
        self.kernels.resume(kernels);
    }

    /// Forgets the objects of a context that ended. Libraries and kernels belong to none.
    pub(crate) fn forget_context(&mut self, context: u32) {
        self.streams.forget_context(context);
        self.events.forget_context(context);
        self.modules.forget_context(context);
        self.library_modules.retain(|module, _| self.modules.get(*module).is_ok());
        self.functions.forget_context(context);
        self.references.forget_context(context);
        self.objects.forget_context(context);
    }
}
