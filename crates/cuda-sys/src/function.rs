//! The functions of the driver API, generated from `spec/cuda.api`, and the look-up behind `cuGetProcAddress`.

include!(concat!(env!("OUT_DIR"), "/function.rs"));

/// How a call travels from program to worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FunctionClass {
    /// Answered in the program's process.
    Local,
    /// Queued; the caller does not wait.
    Enqueue,
    /// Waits for the reply.
    Call,
    /// Waits for the reply, which may have to wait for the GPU.
    Blocking,
    /// Registers a function of the program.
    Upcall,
    /// Returns an error in the program's process: Katydid does not support the function.
    Refused,
}

/// Result of a look-up by name and version, as `cuGetProcAddress` makes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// The symbol that answers for the name at this version.
    Found(Function),
    /// The name is known, but only from a later version on.
    TooOld,
    /// The name is unknown.
    Unknown,
}

/// The symbol that answers for `name` at `version` (12080 for 12.8); `per_thread` asks for the variant whose
/// default stream is the thread's own. Newest symbol wins whose first version is not above `version`.
pub fn proc_address(name: &str, version: u32, per_thread: bool) -> Lookup {
    let start = LOOKUPS.partition_point(|entry| entry.0 < name);
    let entries = LOOKUPS[start..].iter().take_while(|entry| entry.0 == name);
    let mut candidates: Vec<_> = entries.filter(|entry| entry.2 == per_thread).collect();
    if candidates.is_empty() {
        // A function without a variant answers for both, and most functions have none.
        candidates = LOOKUPS[start..].iter().take_while(|entry| entry.0 == name && !entry.2).collect();
    }
    if candidates.is_empty() {
        return Lookup::Unknown;
    }
    match candidates.iter().rfind(|entry| entry.1 <= version) {
        Some(entry) => Lookup::Found(entry.3),
        None => Lookup::TooOld,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_chooses_between_abis() {
        assert_eq!(proc_address("cuMemAlloc", 2000, false), Lookup::Found(Function::cuMemAlloc));
        assert_eq!(proc_address("cuMemAlloc", 13000, false), Lookup::Found(Function::cuMemAlloc_v2));
        assert_eq!(
            proc_address("cuStreamGetCaptureInfo", 11030, false),
            Lookup::Found(Function::cuStreamGetCaptureInfo_v2)
        );
        assert_eq!(proc_address("cuGraphInstantiate", 13000, false), Lookup::Found(Function::cuGraphInstantiate_v2));
    }

    #[test]
    fn per_thread_variants_answer_where_they_exist() {
        assert_eq!(proc_address("cuLaunchKernel", 7000, true), Lookup::Found(Function::cuLaunchKernel_ptsz));
        assert_eq!(proc_address("cuLaunchKernel", 4000, true), Lookup::TooOld);
        assert_eq!(proc_address("cuInit", 2000, true), Lookup::Found(Function::cuInit));
    }

    #[test]
    fn suffixed_and_unknown_names_are_unknown() {
        for name in ["cuMemAlloc_v2", "cuLaunchKernel_ptsz", "cudaMalloc", ""] {
            assert_eq!(proc_address(name, 13000, false), Lookup::Unknown, "{name}");
        }
    }

    #[test]
    fn numbers_name_functions_both_ways() {
        let f = Function::cuLaunchKernel;
        assert_eq!(Function::from_number(f.number()), Some(f));
        assert_eq!(f.name(), "cuLaunchKernel");
        assert_eq!(f.class(), FunctionClass::Enqueue);
        assert_eq!(Function::from_number(u16::MAX), None);
    }
}
