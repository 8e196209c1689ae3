//! `Session`: the tables, driver and replies of one CUDA program in its worker.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use katydid_cuda_sys::{CUcontext, CUlaunchAttribute, CUstream};
use katydid_session_core::Uploads;
use katydid_transport::Buffers;
use katydid_transport::compression::CompressionPolicy;
use katydid_wire::facts::Facts;

use crate::calls::busy_poll::MainLoop;
use crate::calls::session_shared::CudaSessionShared;
use crate::code::module_cache::ModuleCache;
use crate::code::module_images::ModuleImages;
use crate::graphs::Graphs;
use crate::journal::{EventTimes, Journal, Replay};
use crate::memory::address_check::AddressCheck;
use crate::memory::device_memory::DeviceMemory;
use crate::memory::holdings::Holdings;
use crate::memory::host_memory::HostMemory;
use crate::memory::shares::Shares;
use crate::memory::virtual_memory::VirtualMemory;
use crate::objects::green_ctx::GreenContext;
use crate::objects::tables::Tables;
use crate::snapshot::Snapshots;
use crate::transfer::staged::StagingArea;

/// A primary context retained in advance; the first `kdContextRetain` of its device takes it over.
#[derive(Debug, Clone, Copy)]
pub struct WarmContext {
    /// The device's ordinal, from 0.
    pub device: i32,
    /// Handle that `cuDevicePrimaryCtxRetain` returned.
    pub handle: CUcontext,
}

/// State of one program's session: its objects, memory and journal.
pub struct Session {
    pub(crate) shared: Arc<CudaSessionShared>,
    pub(crate) tables: Tables,
    pub(crate) facts: Facts,
    pub(crate) address_check: AddressCheck,
    pub(crate) device: DeviceMemory,
    pub(crate) virtual_memory: VirtualMemory,
    pub(crate) holdings: Holdings,
    pub(crate) shares: Shares,
    pub(crate) host: Option<HostMemory>,
    pub(crate) staging: Option<StagingArea>,
    /// Buffers for bulk of a link without shared memory, and their registration with the driver.
    pub(crate) buffers: Option<Arc<Buffers>>,
    pub(crate) buffered: Option<StagingArea>,
    /// Number of the buffer with the payload of the current frame.
    pub(crate) payload_buffer: Option<usize>,
    /// The policy for compressing bulk for the program.
    pub(crate) packer: Arc<CompressionPolicy>,
    pub(crate) uploads: Uploads,
    pub(crate) images: ModuleImages,
    /// Images that programs have sent to servers like this one, if it keeps them.
    pub(crate) module_cache: Option<ModuleCache>,
    /// Threads whose next image is to be stored.
    pub(crate) unstored: HashSet<u32>,
    pub(crate) graphs: Graphs,
    /// Images that program threads have linked and not fetched yet.
    pub(crate) linked: HashMap<u32, Vec<u8>>,
    pub(crate) warm: Vec<WarmContext>,
    /// Wire id of the current context of the main loop; 0: none.
    pub(crate) current: u32,
    /// Wire id of the entered context. If that is green, it differs from `current`, which is then the primary context, the
    /// owner of everything except streams.
    pub(crate) entered: u32,
    /// Green contexts by wire id.
    pub(crate) green_contexts: BTreeMap<u32, GreenContext>,
    /// Counts changes of contexts, see [`TaskContext`](crate::calls::session_shared::TaskContext).
    pub(crate) epoch: u64,
    /// Default streams of program threads, by thread and context.
    pub(crate) thread_streams: HashMap<(u32, u32), CUstream>,
    /// Whether the reply to the current call carries the driver's output.
    pub(crate) synchronized: bool,
    /// How live objects were made.
    pub(crate) journal: Journal,
    /// Times of events that were recorded before a restore.
    pub(crate) event_times: EventTimes,
    pub(crate) replay: Replay,
    pub(crate) snapshots: Snapshots,
    /// Whether a separate thread reads the link.
    pub(crate) is_relayed: bool,
    pub(crate) main_loop: MainLoop,
    /// Attributes of the current launch.
    pub(crate) attributes: Vec<CUlaunchAttribute>,
    /// The payload of the main loop's last reply.
    pub(crate) reply_payload: Vec<u8>,
}
