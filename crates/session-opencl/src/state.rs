//! `Session`: the tables, drivers and replies of one OpenCL program in its worker.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use katydid_session_core::Uploads;

use crate::calls::busy_poll::MainLoop;
use crate::calls::event_poller::EventPoller;
use crate::calls::marker::Marker;
use crate::calls::notify::Listener;
use crate::calls::session_shared::OpenclSessionShared;
use crate::drivers::driver::Platform;
use crate::journal::{self, Journal, Rehearsal, Replay};
use crate::memory::host::{HostMemory, ImageLayout};
use crate::memory::pinned::StagingState;
use crate::memory::staged::StagingArea;
use crate::memory::svm::Svm;
use crate::memory::unshared_pages::ReadyPages;
use crate::memory::zero_copy_area::ZeroCopyArea;
use crate::objects::held_events::HeldEvent;

/// State of one program's session: its objects, memory and journal.
pub struct Session {
    pub(crate) shared: Arc<OpenclSessionShared>,
    /// The platforms of this machine, with their devices.
    pub(crate) platforms: Vec<Platform>,
    /// The platforms as the program found them, perhaps on another machine.
    pub(crate) reported_platforms: Vec<journal::Platform>,
    pub(crate) uploads: Uploads,
    /// Long answers, by program thread, until the next one.
    pub(crate) blobs: HashMap<u32, Vec<u8>>,
    pub(crate) svm: Svm,
    /// Callbacks of the ends of memory objects, by id, in the order in which they were registered.
    pub(crate) destructors: HashMap<u32, Vec<u64>>,
    /// Receivers of errors of contexts, by id.
    pub(crate) listeners: HashMap<u32, Listener>,
    /// How what is alive was made.
    pub(crate) journal: Journal,
    pub(crate) replay: Replay,
    /// What was made of the outline, if it was made of one.
    pub(crate) rehearsal: Option<Rehearsal>,
    /// Answers about platforms and devices that the program received, by object and parameter.
    pub(crate) device_answers: BTreeMap<(u32, u32), Vec<u8>>,
    /// When commands came to their states, by event, for those that ended before a restore.
    pub(crate) event_times: HashMap<u32, BTreeMap<u32, u64>>,
    pub(crate) main_loop: MainLoop,
    /// Markers behind everything that queues have, while the session comes to rest.
    pub(crate) markers: Option<Vec<Marker>>,
    /// Markers behind everything in queues that the program has released.
    pub(crate) ending: Vec<Marker>,
    /// Events of commands of our own that had not ended when no thread waited for them any more ([`Session::outlast`]).
    pub(crate) outlasting: Vec<HeldEvent>,
    /// The last write of each context that the program took for done when it was enqueued.
    pub(crate) taken_for_done: HashMap<u32, HeldEvent>,
    /// Devices to use in place of those that the session had, if it is rebuilt.
    pub(crate) requested: String,
    /// None on a stream.
    pub(crate) staging: Option<StagingArea>,
    /// What contexts know of it.
    pub(crate) staging_states: HashMap<u32, StagingState>,
    /// Memory that the program may read; none on a stream, and before the program is there.
    pub(crate) zero_copy: Option<Arc<ZeroCopyArea>>,
    /// Whether buffers of contexts may lie there.
    pub(crate) zero_copy_known: HashMap<u32, bool>,
    /// Where buffers are that do.
    pub(crate) in_zero_copy: HashMap<u32, u64>,
    /// Memory that the program has too; none on a stream.
    pub(crate) host: Option<HostMemory>,
    /// Whether images may lie in it, by their layout.
    pub(crate) images_in_place: HashMap<ImageLayout, bool>,
    /// Memory objects that lie in it.
    pub(crate) is_in_host: HashSet<u32>,
    /// Those that the driver maps there, whether or not they lie there.
    pub(crate) mapped_in_host: HashSet<u32>,
    /// Those that lay there before this worker came: which of their parts the program has mapped is not known.
    pub(crate) was_in_host: HashSet<u32>,
    /// Their regions that are mapped in the driver, by object and address: how often.
    pub(crate) host_maps: HashMap<(u32, u64), u32>,
    /// Pages for those that a snapshot is to part from the program.
    pub(crate) ready: Arc<ReadyPages>,
    /// Pipes that were arguments of kernels, and so may have something in them.
    pub(crate) given_pipes: HashSet<u32>,
    pub(crate) event_poller: EventPoller,
}
