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
    /// Destructor callbacks of memory objects, by id, in the order of registration.
    pub(crate) destructors: HashMap<u32, Vec<u64>>,
    /// Receivers of context errors, by id.
    pub(crate) listeners: HashMap<u32, Listener>,
    /// How live objects were made.
    pub(crate) journal: Journal,
    pub(crate) replay: Replay,
    /// The session prepared from an outline, if there was one.
    pub(crate) rehearsal: Option<Rehearsal>,
    /// Answers about platforms and devices that the program received, by object and parameter.
    pub(crate) device_answers: BTreeMap<(u32, u32), Vec<u8>>,
    /// Times of events that ended before a restore: when each command reached its states.
    pub(crate) event_times: HashMap<u32, BTreeMap<u32, u64>>,
    pub(crate) main_loop: MainLoop,
    /// Markers after everything in the queues, while the session comes to rest.
    pub(crate) markers: Option<Vec<Marker>>,
    /// Markers after everything in queues that the program has released.
    pub(crate) ending: Vec<Marker>,
    /// Events of the worker's own commands that had not ended when the last wait for them ended ([`Session::outlast`]).
    pub(crate) outlasting: Vec<HeldEvent>,
    /// The last write of each context that the program took for done when it was enqueued.
    pub(crate) taken_for_done: HashMap<u32, HeldEvent>,
    /// Devices to use in place of the saved ones if the session is rebuilt.
    pub(crate) requested: String,
    /// The staging area; `None` on a stream.
    pub(crate) staging: Option<StagingArea>,
    /// State of the staging area in each context.
    pub(crate) staging_states: HashMap<u32, StagingState>,
    /// Memory that the program may read; `None` on a stream, and before the program is connected.
    pub(crate) zero_copy: Option<Arc<ZeroCopyArea>>,
    /// Whether buffers of a context may lie in the zero-copy area.
    pub(crate) zero_copy_known: HashMap<u32, bool>,
    /// Offsets of the buffers in the zero-copy area.
    pub(crate) in_zero_copy: HashMap<u32, u64>,
    /// Memory shared with the program; `None` on a stream.
    pub(crate) host: Option<HostMemory>,
    /// Whether images may lie in shared memory, by their layout.
    pub(crate) images_in_place: HashMap<ImageLayout, bool>,
    /// Memory objects that lie in shared memory.
    pub(crate) is_in_host: HashSet<u32>,
    /// Memory objects that the driver maps in shared memory, whether or not they lie there.
    pub(crate) mapped_in_host: HashSet<u32>,
    /// Memory objects that lay there before this worker started; it is not known which of their parts the program has mapped.
    pub(crate) was_in_host: HashSet<u32>,
    /// Number of maps of their regions in the driver, by object and address.
    pub(crate) host_maps: HashMap<(u32, u64), u32>,
    /// Prepared pages for buffers that a snapshot will unshare.
    pub(crate) ready: Arc<ReadyPages>,
    /// Pipes that were kernel arguments, and so may hold packets.
    pub(crate) given_pipes: HashSet<u32>,
    pub(crate) event_poller: EventPoller,
}
