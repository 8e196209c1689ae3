//! Parameters of nodes, as the program passed them, checked and stored.
//!
//! Handles of functions, events and contexts are stored as numbers, and resolved when the graph is instantiated: a graph may
//! outlive them, as with NVIDIA's driver.

#![expect(unsafe_code, reason = "descriptors hold addresses, which may go to other threads")]

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use katydid_cuda_sys::{
    CUDA_MEM_ALLOC_NODE_PARAMS, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUevent, CUstreamBatchMemOpParams, Pod as _,
    launch_param, node_type,
};

use crate::handles::GraphId;

/// Parameters of a node, by its type.
#[derive(Clone, Debug)]
pub enum Params {
    /// Launches a kernel.
    Kernel(Kernel),
    /// Copies memory or arrays.
    Memcpy(Memcpy),
    /// Fills memory with a value.
    Memset(Memset),
    /// Calls a function of the program.
    Host(Host),
    /// Runs a graph that belongs to the node.
    Child(GraphId),
    /// Does nothing, and keeps the order.
    Empty,
    /// Waits for an event: the branch goes on when it has completed.
    WaitEvent(CUevent),
    /// Records an event.
    RecordEvent(CUevent),
    /// Allocates memory, which is live from here on.
    MemAlloc(Alloc),
    /// Frees the memory at this address.
    MemFree(u64),
    /// Writes words and waits for words.
    Batch(Batch),
    /// Runs graphs depending on a value.
    Conditional(Conditional),
}

impl Params {
    /// Returns the type as the driver API numbers it.
    pub fn type_number(&self) -> u32 {
        match self {
            Self::Kernel(_) => node_type::KERNEL,
            Self::Memcpy(_) => node_type::MEMCPY,
            Self::Memset(_) => node_type::MEMSET,
            Self::Host(_) => node_type::HOST,
            Self::Child(_) => node_type::GRAPH,
            Self::Empty => node_type::EMPTY,
            Self::WaitEvent(_) => node_type::WAIT_EVENT,
            Self::RecordEvent(_) => node_type::EVENT_RECORD,
            Self::MemAlloc(_) => node_type::MEM_ALLOC,
            Self::MemFree(_) => node_type::MEM_FREE,
            Self::Batch(_) => node_type::BATCH_MEM_OP,
            Self::Conditional(_) => node_type::CONDITIONAL,
        }
    }

    /// Returns the word for the type in a drawing.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Kernel(_) => "KERNEL",
            Self::Memcpy(_) => "MEMCPY",
            Self::Memset(_) => "MEMSET",
            Self::Host(_) => "HOST",
            Self::Child(_) => "GRAPH",
            Self::Empty => "EMPTY",
            Self::WaitEvent(_) => "EVENT_WAIT",
            Self::RecordEvent(_) => "EVENT_RECORD",
            Self::MemAlloc(_) => "MEM_ALLOC",
            Self::MemFree(_) => "MEM_FREE",
            Self::Batch(_) => "MEM_OP",
            Self::Conditional(_) => "CONDITIONAL",
        }
    }

    /// Returns whether both are the same copy, fill or call. A driver then needs no update, and refuses one for copies of
    /// several rows, which it never changes. It is false for other types, since equal handles may mean other objects.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Memcpy(one), Self::Memcpy(other)) => {
                one.context == other.context && one.copy.to_bytes() == other.copy.to_bytes()
            }
            (Self::Memset(one), Self::Memset(other)) => {
                let shape = |fill: &CUDA_MEMSET_NODE_PARAMS| (fill.pitch, fill.elementSize, fill.width, fill.height);
                let target_of = |it: &Memset| (it.context, it.fill.dst, it.fill.value, shape(&it.fill));
                target_of(one) == target_of(other)
            }
            (Self::Host(one), Self::Host(other)) => one == other,
            _ => false,
        }
    }

    /// Returns the graphs that belong to the node.
    pub fn graphs(&self) -> &[GraphId] {
        match self {
            Self::Child(graph) => std::slice::from_ref(graph),
            Self::Conditional(conditional) => &conditional.bodies,
            _ => &[],
        }
    }
}

/// Packed arguments, with pointers to each of them and the list for the packed form.
pub struct Arguments {
    bytes: Box<[u8]>,
    /// Addresses in `bytes`, which never moves.
    pointers: Box<[usize]>,
    /// Address and size of `bytes` as in a launch's `extra`; the size itself is in the last entry.
    extra: Box<[usize; 6]>,
}

impl Arguments {
    /// Makes arguments at `offsets` of `bytes`.
    pub fn new(bytes: Vec<u8>, offsets: impl IntoIterator<Item = usize>) -> Arc<Self> {
        let bytes = bytes.into_boxed_slice();
        let start = bytes.as_ptr().expose_provenance();
        let pointers = offsets.into_iter().map(|offset| start + offset).collect();
        let (buffer, size) = (launch_param::BUFFER_POINTER as usize, launch_param::BUFFER_SIZE as usize);
        let mut extra = Box::new([buffer, start, size, 0, launch_param::END as usize, bytes.len()]);
        extra[3] = extra.as_ptr().expose_provenance() + 5 * size_of::<usize>();
        Arc::new(Self { bytes, pointers, extra })
    }

    /// Returns the address of the list for the packed form, which lives as long as these arguments.
    pub fn extra(&self) -> usize {
        self.extra.as_ptr().expose_provenance()
    }

    /// Returns the bytes of all arguments, as the kernel reads them.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the address of the array of pointers, which lives as long as these arguments.
    pub fn array(&self) -> usize {
        if self.pointers.is_empty() { 0 } else { self.pointers.as_ptr().expose_provenance() }
    }
}

impl fmt::Debug for Arguments {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} bytes of arguments", self.bytes.len())
    }
}

/// An object of the driver library that has to live as long as the node.
#[derive(Clone)]
pub struct KeepAlive(pub Arc<dyn Any + Send + Sync>);

impl fmt::Debug for KeepAlive {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("kept")
    }
}

/// Values of launch attributes, by their id.
pub type Attributes = BTreeMap<u32, [u64; 8]>;

/// Parameters of a kernel launch.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The function, or a kernel in place of one, as the program named it.
    pub function: usize,
    /// A kernel in its own field: it runs only without a function, but queries return it.
    pub kernel: usize,
    /// Handle of the context in which it runs.
    pub context: usize,
    /// Blocks of the grid along each axis.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub shared: u32,
    /// The kernel's arguments.
    pub arguments: Arc<Arguments>,
    /// Whether they were packed, and queries return them so.
    pub is_packed: bool,
    /// Attributes of the launch, by their ids.
    pub attributes: Attributes,
    /// The name of the kernel.
    pub name: Arc<str>,
    /// Keeps the code alive as long as the node.
    pub code: KeepAlive,
}

impl Kernel {
    /// Returns whether both run the same code with the same geometry and attributes, so that only arguments may differ.
    pub fn runs_as(&self, other: &Self) -> bool {
        let shape = |it: &Self| (it.function, it.kernel, it.context, it.grid, it.block, it.shared);
        shape(self) == shape(other) && self.attributes == other.attributes
    }
}

/// A copy of up to three dimensions.
#[derive(Clone, Copy, Debug)]
pub struct Memcpy {
    /// Both sides and the extent.
    pub copy: CUDA_MEMCPY3D,
    /// Handle of the context in which it runs.
    pub context: usize,
}

// SAFETY: the pointers in the descriptor are addresses that the driver looks up; Rust relies on none of them.
unsafe impl Send for Memcpy {}
// SAFETY: as above.
unsafe impl Sync for Memcpy {}

/// A fill of one or two dimensions.
#[derive(Clone, Copy, Debug)]
pub struct Memset {
    /// Target, value and extent.
    pub fill: CUDA_MEMSET_NODE_PARAMS,
    /// Handle of the context in which it runs.
    pub context: usize,
}

/// A function of the program and its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// Address of the function.
    pub function: usize,
    /// Value that the function is called with (`userData`).
    pub data: usize,
}

/// Memory that a graph allocates.
#[derive(Clone, Debug)]
pub struct Alloc {
    /// Parameters as the program passed them, with the chosen address.
    pub params: CUDA_MEM_ALLOC_NODE_PARAMS,
    /// The memory itself: freed when nothing refers to the node any more.
    pub memory: KeepAlive,
}

// SAFETY: as for `Memcpy`.
unsafe impl Send for Alloc {}
// SAFETY: as for `Memcpy`.
unsafe impl Sync for Alloc {}

/// Operations on words, in order.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The operations; queries return this array.
    pub operations: Arc<Vec<CUstreamBatchMemOpParams>>,
    /// Flags of the whole batch.
    pub flags: u32,
    /// Handle of the context in which they run.
    pub context: usize,
}

/// Graphs under a condition.
#[derive(Clone, Debug)]
pub struct Conditional {
    /// The value that controls it, as kernels name it.
    pub handle: u64,
    /// If, while or switch.
    pub kind: u32,
    /// The bodies: one graph a case.
    pub bodies: Vec<GraphId>,
    /// Handles of the bodies: the array that the program got.
    pub array: Arc<Vec<usize>>,
    /// Handle of the context.
    pub context: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launch_attributes_are_part_of_how_a_kernel_runs() {
        let one = Kernel {
            function: 1,
            kernel: 0,
            context: 2,
            grid: [3; 3],
            block: [4; 3],
            shared: 5,
            arguments: Arguments::new(vec![6], [0]),
            is_packed: false,
            attributes: Attributes::new(),
            name: "k".into(),
            code: KeepAlive(Arc::new(())),
        };
        assert!(one.runs_as(&Kernel { arguments: Arguments::new(vec![7], [0]), is_packed: true, ..one.clone() }));
        // A driver may refuse clusters of another shape.
        let clusters = [(4, [2, 1, 1, 0, 0, 0, 0, 0])].into();
        assert!(!one.runs_as(&Kernel { attributes: clusters, ..one.clone() }));
        assert!(!one.runs_as(&Kernel { block: [8; 3], ..one.clone() }));
    }

    #[test]
    fn pointers_lead_to_their_arguments_for_as_long_as_these_live() {
        let arguments = Arguments::new(vec![1, 0, 0, 0, 9, 8, 7, 6], [0, 4]);
        let array = std::ptr::with_exposed_provenance::<usize>(arguments.array());
        // SAFETY: two pointers, into the eight bytes above.
        unsafe {
            let second = std::ptr::with_exposed_provenance::<[u8; 4]>(array.add(1).read());
            assert_eq!(second.read(), [9, 8, 7, 6]);
        }
        let extra = std::ptr::with_exposed_provenance::<usize>(arguments.extra());
        // SAFETY: the list has six entries, and its fourth is the address of the size.
        let size = unsafe { std::ptr::with_exposed_provenance::<usize>(extra.add(3).read()).read() };
        assert_eq!(size, 8);
        assert_eq!(Arguments::new(Vec::new(), []).array(), 0);
    }
}
