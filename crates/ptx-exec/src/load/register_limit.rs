//! The number of registers of a kernel's thread: the needs of its code, limited as in ptxas (13.0 for `sm_90`).
//!
//! | limit | where it comes from |
//! |---|---|
//! | `.maxnreg` | the kernel; no other limit counts then |
//! | `.maxntid` or `.reqntid`, times `.minnctapersm` | the kernel: that many threads must fit a multiprocessor |
//! | `-maxrregcount`, `CU_JIT_MAX_REGISTERS` | an option; counts for kernels with neither |
//!
//! ptxas spills registers beyond a limit, so a limit changes the launches that are possible, never the results.

use katydid_ptx::WARP_THREADS;
use katydid_ptx::ast::Function;

use crate::load::directives::directive;

/// 32-bit registers of a multiprocessor.
const MULTIPROCESSOR_REGISTERS: u32 = 65_536;
/// Most threads of a multiprocessor at a time.
pub const MULTIPROCESSOR_THREADS: u32 = 2048;
/// Schedulers among which the warps of a multiprocessor are distributed.
const MULTIPROCESSOR_SCHEDULERS: u32 = 4;
/// Granule of register allocation, per thread.
const REGISTER_GRANULE: u32 = 8;
/// Smallest effective limit of registers; smaller ones count as this one.
const MIN_REGISTERS: u32 = 24;
/// Most registers of a thread. A larger limit counts as none.
const MAX_THREAD_REGISTERS: u32 = 255;
/// Smallest reported number of registers.
const MIN_REPORTED_REGISTERS: u32 = 16;

/// Returns the registers of `function`, whose code needs `needed`, compiled with the option `limit`.
pub(crate) fn apply(function: &Function<'_>, needed: u32, limit: Option<u32>) -> u32 {
    let number = |name: &str| directive(function, name).map(|[first, ..]| first);
    let own = number("maxnreg").and_then(usable);
    let of_threads = || by_threads(threads_of(function)?, number("minnctapersm").unwrap_or(1));
    let most = own.or_else(of_threads).or_else(|| limit.and_then(usable)).unwrap_or(MAX_THREAD_REGISTERS);
    needed.clamp(MIN_REPORTED_REGISTERS, most)
}

/// Returns the limit that a number means.
fn usable(number: u32) -> Option<u32> {
    (number <= MAX_THREAD_REGISTERS).then_some(number.max(MIN_REGISTERS))
}

/// Returns the largest number of threads in a block that the kernel declares.
fn threads_of(function: &Function<'_>) -> Option<u32> {
    let sizes = directive(function, "reqntid").or_else(|| directive(function, "maxntid"))?;
    Some(sizes.iter().fold(1_u32, |threads, size| threads.saturating_mul(*size)).max(1))
}

/// Returns the most registers with which `blocks` blocks of `threads` threads fit a multiprocessor. If there are not enough
/// threads for the blocks, they count as one.
fn by_threads(threads: u32, blocks: u32) -> Option<u32> {
    let fits = threads.checked_mul(blocks).is_some_and(|all| (1..=MULTIPROCESSOR_THREADS).contains(&all));
    let warps = threads.min(MULTIPROCESSOR_THREADS).div_ceil(WARP_THREADS) * if fits { blocks } else { 1 };
    let dealt = warps.next_multiple_of(MULTIPROCESSOR_SCHEDULERS);
    usable(
        (MULTIPROCESSOR_REGISTERS / (dealt * WARP_THREADS) / REGISTER_GRANULE * REGISTER_GRANULE)
            .min(MAX_THREAD_REGISTERS),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use katydid_ptx::ast::Linkage;

    /// Returns the registers of a kernel that needs 96, with `directives` and an option.
    fn registers(directives: &[(&'static str, &[u64])], limit: Option<u32>) -> u32 {
        let directives = directives.iter().map(|(name, numbers)| (*name, numbers.to_vec())).collect();
        let (linkage, returns, params) = (Linkage::Visible, Vec::new(), Vec::new());
        let kernel = Function { linkage, entry: true, name: "k", returns, params, directives, body: None, line: 1 };
        apply(&kernel, 96, limit)
    }

    #[test]
    fn limits_are_those_of_ptxas() {
        let bounds =
            |threads: u64, blocks: u64| registers(&[("maxntid", &[threads]), ("minnctapersm", &[blocks])], None);
        let of = [(256, 8), (128, 7), (100, 7), (64, 32), (32, 32), (96, 9), (512, 4), (128, 6), (160, 5), (1024, 3)];
        assert_eq!(of.map(|(threads, blocks)| bounds(threads, blocks)), [32, 72, 72, 32, 64, 72, 32, 80, 72, 64]);
        assert_eq!(registers(&[("minnctapersm", &[8])], None), 96, "without the size of a block");
        assert_eq!(registers(&[("reqntid", &[16, 16]), ("minnctapersm", &[8])], None), 32);
        assert_eq!([640, 768, 1024].map(|threads| registers(&[("maxntid", &[threads])], None)), [96, 80, 64]);
    }

    #[test]
    fn a_kernel_that_says_it_itself_goes_before_an_option() {
        assert_eq!([Some(32), Some(38), Some(10), Some(300), None].map(|it| registers(&[], it)), [32, 38, 24, 96, 96]);
        assert_eq!(registers(&[("maxntid", &[1024])], Some(40)), 64);
        assert_eq!(registers(&[("maxnreg", &[40]), ("maxntid", &[1024])], Some(32)), 40);
        assert_eq!(registers(&[("maxnreg", &[100]), ("maxntid", &[1024])], None), 96);
        assert_eq!((registers(&[("maxnreg", &[10])], None), registers(&[("maxnreg", &[300])], Some(64))), (24, 64));
    }
}
