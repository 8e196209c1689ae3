//! Writes the journal as a state: the frames of live objects in their order, and what the driver reports now.
//!
//! No work may run: every queue is empty. Programs that were inputs of others may be gone or different by now. Their original
//! state is recreated before the others, under numbers that programs never use, and released afterwards.

#![expect(unsafe_code, reason = "calls the driver")]

use std::collections::{BTreeMap, HashMap};
use std::ptr;

use katydid_opencl_sys::constant::{
    EVENT_COMMAND_EXECUTION_STATUS, EVENT_CONTEXT, KERNEL_EXEC_INFO_SVM_PTRS, QUEUE_PROPERTIES,
};
use katydid_opencl_sys::{Code, cl_context, cl_event};
use katydid_session_core::{JournalRecord, ReplayStep};
use katydid_wire::codec::{Field as _, Message as _};
use katydid_wire::opencl::message::{
    kdclBuild, kdclContext, kdclDefaultQueue, kdclLink, kdclQueue, kdclQueueProperty, kdclRelease, kdclSetArgument,
    kdclSetExecInfo, kdclSubDevices,
};
use katydid_wire::opencl::{id, kind, list, properties_form, value};

use super::notes::{
    FrameContext, ObjectEntry, RecordedFrame, effective, encoded, kind_of, parts, with_other_headers, with_other_inputs,
};
use super::state::{Event, JournalState, PendingRead, Platform, SvmMapping};
use crate::calls::pending_reads::ReadLocation;
use crate::drivers::call::driver;
use crate::drivers::query::ask;
use crate::objects::object::Object;
use crate::state::Session;

/// The smallest number of an object that the program does not know; the shim never uses numbers this large.
const FIRST_HIDDEN_NUMBER: u32 = 1 << 23;
/// Parameters of `clGetEventProfilingInfo`: `CL_PROFILING_COMMAND_QUEUED` to `CL_PROFILING_COMMAND_COMPLETE`.
pub(crate) const PROFILING_PARAMS: std::ops::RangeInclusive<u32> = 0x1280..=0x1284;

/// Why the state of a session cannot be saved. The session is unchanged.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SaveError {
    /// Only a kernel can read the contents of a pipe.
    #[error("kernels of the program have a pipe, and nothing but a kernel can read what is in it: it cannot be saved")]
    Pipe,
    /// The driver fails to report what must be saved.
    #[error("the driver answers {code} when asked about {what}")]
    Driver {
        /// What the driver was asked about.
        what: &'static str,
        /// The code that the driver answered.
        code: Code,
    },
}

/// Collects the records of a state.
#[derive(Default)]
struct RecordSet {
    records: Vec<JournalRecord>,
    /// The number of hidden objects that each frame makes, and that end with it.
    hidden_objects: HashMap<u64, u32>,
}

impl RecordSet {
    fn add(&mut self, order: u64, recorded: &RecordedFrame, payload: Vec<u8>) -> &mut JournalRecord {
        let answer = recorded.outcome().map(|code| code.0.to_le_bytes().to_vec());
        let record = JournalRecord {
            step: ReplayStep::Frame,
            order,
            thread: recorded.frame.thread,
            context: 0,
            opcode: recorded.frame.opcode,
            image: None,
            steps: recorded.with.bytes.clone(),
            payload,
            answer,
        };
        self.records.push(record);
        let last = self.records.len() - 1;
        &mut self.records[last]
    }

    fn release(&mut self, order: u64, object: u32) {
        self.records.push(JournalRecord {
            step: ReplayStep::Frame,
            order,
            thread: 1,
            context: 0,
            opcode: kdclRelease::OPCODE,
            image: None,
            steps: None,
            payload: encoded(&kdclRelease { object }),
            answer: None,
        });
    }

    fn hidden_object(&mut self, kind: u32, order: u64) -> u32 {
        let count = self.hidden_objects.entry(order).or_default();
        *count += 1;
        id(kind, FIRST_HIDDEN_NUMBER + *count)
    }

    /// Adds a program under an id, with everything done to it that it or its `kernels` (the frames that made them) still show. In
    /// its frames the id is the first field. All its frames go before frame `order` if that is given, else each in its own place.
    fn program(&mut self, id: u32, program: &ObjectEntry, kernels: &[u64], order: Option<u64>) {
        let as_this = |payload: &[u8]| {
            let mut payload = payload.to_vec();
            payload.splice(..4, id.to_le_bytes());
            payload
        };
        let order_of = |recorded: &RecordedFrame| order.unwrap_or(recorded.frame.order);
        let creation = &program.creation;
        let (hidden_programs, at) = (self.hidden_programs(creation, order_of(creation)), order_of(creation));
        let payload = as_this(creation.frame.payload());
        let payload = with_hidden_programs(creation, payload, &hidden_programs);
        self.add(at, creation, payload);
        self.release_all(at, &hidden_programs);
        for recorded in program.sets.values() {
            self.add(order_of(recorded), recorded, as_this(recorded.frame.payload()));
        }
        for recorded in effective(&program.builds, kernels) {
            let at = order_of(recorded);
            let hidden_programs = self.hidden_programs(recorded, at);
            // Later constants may have replaced these.
            for constant in &recorded.with.constants {
                self.add(at, constant, as_this(constant.frame.payload()));
            }
            let payload = with_hidden_programs(recorded, as_this(recorded.frame.payload()), &hidden_programs);
            let record = self.add(at, recorded, payload);
            if let Some(bytes) = record.steps.take() {
                let other = |id: u32| hidden_programs.get(&id).copied().unwrap_or(id);
                record.steps = Some(with_other_headers(&bytes, &other).map_or(bytes, std::sync::Arc::new));
            }
            self.release_all(at, &hidden_programs);
        }
    }

    /// Recreates the inputs of a build, and returns the new ids by the old ones.
    fn hidden_programs(&mut self, recorded: &RecordedFrame, order: u64) -> HashMap<u32, u32> {
        let mut hidden_programs = HashMap::new();
        for (id, program) in &recorded.with.needs {
            let hidden_object = self.hidden_object(kind::PROGRAM, order);
            self.program(hidden_object, program, &[], Some(order));
            hidden_programs.insert(*id, hidden_object);
        }
        hidden_programs
    }

    fn release_all(&mut self, order: u64, hidden_programs: &HashMap<u32, u32>) {
        let mut hidden_programs: Vec<u32> = hidden_programs.values().copied().collect();
        hidden_programs.sort_unstable();
        hidden_programs.into_iter().for_each(|other| self.release(order, other));
    }
}

/// Returns the payload of a build or link with other programs as inputs, and without a callback: the program has received that.
fn with_hidden_programs(recorded: &RecordedFrame, payload: Vec<u8>, hidden_programs: &HashMap<u32, u32>) -> Vec<u8> {
    let other = |id: u32| hidden_programs.get(&id).copied().unwrap_or(id);
    match recorded.frame.opcode {
        kdclLink::OPCODE => with_other_inputs(&payload, &other).unwrap_or(payload),
        kdclBuild::OPCODE => {
            let Ok(message) = kdclBuild::decode(&payload) else { return payload };
            let arguments = with_other_headers(message.arguments, &other);
            let arguments = arguments.as_deref().unwrap_or(message.arguments);
            encoded(&kdclBuild { token: 0, arguments, ..message })
        }
        _ => payload,
    }
}

impl Session {
    /// Returns the present state of the session.
    ///
    /// # Errors
    ///
    /// [`SaveError`]; the session can go on.
    pub(crate) fn state(&mut self) -> Result<JournalState, SaveError> {
        let mut blobs: Vec<_> = self.blobs.iter().map(|(thread, bytes)| (*thread, bytes.clone())).collect();
        blobs.sort();
        Ok(JournalState {
            progress: self.main_loop.progress(&self.shared),
            uploads: self.uploads.unfinished(),
            blobs,
            upcall: self.shared.upcalls.waiting(),
            pending: self.shared.upcalls.pending(),
            events: self.saved_events()?,
            callbacks: self.shared.callbacks.waiting(),
            mapped: self.svm.mapped().map(|(address, size, flags)| SvmMapping { address, size, flags }).collect(),
            pending_reads: self.saved_pending_reads()?,
            device_answers: self.device_answers.clone(),
            ..self.save_state()?
        })
    }

    /// Returns how live objects were made and launched, which is known at any moment.
    ///
    /// # Errors
    ///
    /// [`SaveError`].
    pub(crate) fn save_state(&self) -> Result<JournalState, SaveError> {
        let groups = self.journal.of(kind::KERNEL).into_iter().flat_map(|(kernel, entry)| {
            entry.groups.iter().map(move |(queue, sizes)| (kernel, *queue, *sizes)).collect::<Vec<_>>()
        });
        let (platforms, groups, records) = (self.saved_platforms(), groups.collect(), self.records()?);
        Ok(JournalState { platforms, groups, records, ..JournalState::default() })
    }

    fn saved_pending_reads(&self) -> Result<Vec<PendingRead>, SaveError> {
        let of = |(number, pending_read): (u64, std::sync::Arc<crate::calls::pending_reads::PendingRead>)| {
            let status = pending_read.status().map_err(|code| SaveError::Driver { what: "a read", code })?;
            let address = if let ReadLocation::Svm(address, ..) = pending_read.location { address } else { 0 };
            Ok(PendingRead { number, status, bytes: pending_read.len(), address })
        };
        self.shared.pending_reads.all().into_iter().map(of).collect()
    }

    /// Returns the platforms as the program found them, and marks the devices that contexts use.
    fn saved_platforms(&self) -> Vec<Platform> {
        let used: Vec<u32> = self.journal.of(kind::CONTEXT).iter().flat_map(|(_, entry)| devices_of(entry)).collect();
        let used: Vec<u32> = used.into_iter().map(|device| self.whole(device)).collect();
        let mut records = self.reported_platforms.clone();
        for (number, device) in (0..).zip(records.iter_mut().flat_map(|platform| &mut platform.devices)) {
            device.is_used = used.contains(&id(kind::DEVICE, number));
        }
        records
    }

    /// Returns the machine's device that a device is, or is a part of.
    pub(crate) fn whole(&self, device: u32) -> u32 {
        let parent = |device| Some(self.journal.get(device)?.creation.frame.word(0));
        std::iter::successors(Some(device), |device| parent(*device)).last().unwrap_or(device)
    }

    /// Returns all frames, in their order.
    fn records(&self) -> Result<Vec<JournalRecord>, SaveError> {
        let mut records = RecordSet::default();
        for kind in [kind::DEVICE, kind::CONTEXT, kind::QUEUE, kind::MEMORY, kind::SAMPLER, kind::PROGRAM, kind::KERNEL]
        {
            for (id, entry) in self.journal.of(kind) {
                match kind {
                    kind::DEVICE => self.add_part(&mut records, id, entry),
                    // A failed link left no program.
                    kind::PROGRAM if !self.shared.objects.has(id) => {}
                    kind::PROGRAM => records.program(id, entry, &self.journal.kernels_of(id), None),
                    kind::QUEUE => drop(records.add(entry.creation.frame.order, &entry.creation, queue_as_set(entry))),
                    kind::MEMORY if self.given_pipes.contains(&id) => return Err(SaveError::Pipe),
                    _ => self.add(&mut records, entry),
                }
            }
        }
        for (address, frame) in self.journal.svm() {
            let recorded = RecordedFrame { frame: frame.clone(), with: FrameContext::default() };
            let record = records.add(frame.order, &recorded, frame.payload().to_vec());
            record.answer = Some(address.to_le_bytes().to_vec());
        }
        // Stable: an input that is recreated for another program stays before it.
        records.records.sort_by_key(|record| record.order);
        Ok(records.records)
    }

    fn add(&self, records: &mut RecordSet, entry: &ObjectEntry) {
        let creation = &entry.creation;
        records.add(creation.frame.order, creation, creation.frame.payload().to_vec());
        for recorded in entry.sets.values() {
            let order = recorded.frame.order;
            if let Some(payload) = self.still(recorded) {
                records.add(order, recorded, payload);
            }
        }
    }

    /// Returns the payload that sets a property, without what has ended since; `None` if nothing remains.
    fn still(&self, recorded: &RecordedFrame) -> Option<Vec<u8>> {
        let (payload, order) = (recorded.frame.payload(), recorded.frame.order);
        let svm_lives = |address: u64| {
            let found = self.svm.start_of(address)?;
            self.journal.svm().find(|(start, frame)| *start == found && frame.order < order)
        };
        match recorded.frame.opcode {
            kdclSetArgument::OPCODE => {
                let message = kdclSetArgument::decode(payload).ok()?;
                let mut left = message.value;
                let is_there = match message.form {
                    value::OBJECT => u32::take(&mut left).is_some_and(|id| id == 0 || self.journal.lives(id, order)),
                    value::SVM => {
                        u64::take(&mut left).is_some_and(|address| address == 0 || svm_lives(address).is_some())
                    }
                    _ => true,
                };
                is_there.then(|| payload.to_vec())
            }
            kdclSetExecInfo::OPCODE => {
                let message = kdclSetExecInfo::decode(payload).ok()?;
                if message.parameter != KERNEL_EXEC_INFO_SVM_PTRS {
                    return Some(payload.to_vec());
                }
                let numbers = message.value.chunks_exact(8).filter_map(|bytes| u64::take(&mut &bytes[..]));
                let alive: Vec<u8> =
                    numbers.filter(|address| svm_lives(*address).is_some()).flat_map(u64::to_le_bytes).collect();
                (!alive.is_empty()).then(|| encoded(&kdclSetExecInfo { value: &alive, ..message }))
            }
            kdclDefaultQueue::OPCODE => {
                let message = kdclDefaultQueue::decode(payload).ok()?;
                self.journal.lives(message.queue, order).then(|| payload.to_vec())
            }
            _ => Some(payload.to_vec()),
        }
    }

    /// Adds the division of a device, once for all its parts. Parts that are gone are made under other ids, and released.
    fn add_part(&self, records: &mut RecordSet, part: u32, entry: &ObjectEntry) {
        let (payload, order) = (entry.creation.frame.payload(), entry.creation.frame.order);
        let ids = parts(payload);
        let lives = |id: &u32| self.journal.get(*id).is_some_and(|other| other.creation.frame.order == order);
        if ids.iter().find(|id| lives(id)) != Some(&part) {
            return;
        }
        let new: Vec<u32> =
            ids.iter().map(|id| if lives(id) { *id } else { records.hidden_object(kind_of(part), order) }).collect();
        let Ok(message) = kdclSubDevices::decode(payload) else { return };
        let mut left = message.arguments;
        let properties: Vec<i64> = list::take(&mut left).unwrap_or_default();
        let mut arguments = Vec::new();
        list::put(&mut arguments, &properties);
        list::put(&mut arguments, &new);
        records.add(order, &entry.creation, encoded(&kdclSubDevices { arguments: &arguments, ..message }));
        // In the journal of a restored worker, parts that are gone have hidden ids already.
        let gone = new.into_iter().zip(&ids).filter(|(_, had)| !lives(had));
        gone.for_each(|(new, _)| records.release(order, new));
    }

    /// Returns every event with its state.
    fn saved_events(&self) -> Result<Vec<Event>, SaveError> {
        let contexts: HashMap<usize, u32> = self
            .shared
            .objects
            .of::<cl_context>()
            .into_iter()
            .map(|(id, context)| (context.handle.0.addr(), id))
            .collect();
        let mut events = Vec::new();
        for (id, event) in self.shared.objects.of::<cl_event>() {
            let failed = |code| SaveError::Driver { what: "an event", code };
            let status = ask::<i32>(|size, out| info(&event, EVENT_COMMAND_EXECUTION_STATUS, size, out));
            let context = ask::<u64>(|size, out| info(&event, EVENT_CONTEXT, size, out)).map_err(failed)?;
            let context = contexts.get(&(context as usize)).copied();
            let context = context.ok_or(SaveError::Driver { what: "an event", code: Code::INVALID_CONTEXT })?;
            let times = self.event_times.get(&id).cloned().unwrap_or_else(|| times(&event));
            events.push(Event { id, context, status: status.map_err(failed)?, times });
        }
        Ok(events)
    }
}

/// Returns the frame that makes a queue with its present properties: not every driver can set them later.
fn queue_as_set(queue: &ObjectEntry) -> Vec<u8> {
    let payload = queue.creation.frame.payload();
    let mut sets: Vec<&RecordedFrame> = queue.sets.values().collect();
    sets.sort_by_key(|recorded| recorded.frame.order);
    let Ok(message) = kdclQueue::decode(payload) else { return payload.to_vec() };
    let words: Vec<u64> = list::take(&mut &message.properties[..]).unwrap_or_default();
    if sets.is_empty() {
        return payload.to_vec();
    }
    let (pairs, _) = words.as_chunks::<2>();
    let is_list = message.form == properties_form::LIST;
    let of_pairs = pairs.iter().find(|[name, _]| is_list && *name == u64::from(QUEUE_PROPERTIES));
    let initial_flags =
        if message.form == properties_form::VALUES { words.first() } else { of_pairs.map(|[_, flags]| flags) };
    let mut flags = initial_flags.copied().unwrap_or(0);
    for set in sets.iter().filter_map(|recorded| kdclQueueProperty::decode(recorded.frame.payload()).ok()) {
        flags = if set.enable == 0 { flags & !set.properties } else { flags | set.properties };
    }
    let hidden_programs = pairs.iter().filter(|[name, _]| *name != u64::from(QUEUE_PROPERTIES)).flatten().copied();
    let mut properties = Vec::new();
    if is_list {
        list::put(&mut properties, &hidden_programs.chain([u64::from(QUEUE_PROPERTIES), flags]).collect::<Vec<_>>());
    } else {
        list::put(&mut properties, &[flags]);
    }
    let form = if is_list { properties_form::LIST } else { properties_form::VALUES };
    encoded(&kdclQueue { form, properties: &properties, ..message })
}

fn info(event: &Object<cl_event>, parameter: u32, size: usize, out: *mut katydid_opencl_sys::void) -> Code {
    driver!(event.api, clGetEventInfo(event.handle, parameter, size, out, ptr::null_mut()))
}

/// Returns when an event's command reached its states; empty if its queue keeps no times.
pub(crate) fn times(event: &Object<cl_event>) -> BTreeMap<u32, u64> {
    let time = |parameter| {
        let answer = ask::<u64>(|size, out| {
            driver!(event.api, clGetEventProfilingInfo(event.handle, parameter, size, out, ptr::null_mut()))
        });
        answer.ok().map(|time| (parameter, time))
    };
    PROFILING_PARAMS.filter_map(time).collect()
}

/// Returns the devices of a context.
pub(crate) fn devices_of(context: &ObjectEntry) -> Vec<u32> {
    let Ok(message) = kdclContext::decode(context.creation.frame.payload()) else { return Vec::new() };
    let mut left = message.arguments;
    let _platform = u32::take(&mut left);
    let _properties: Option<Vec<i64>> = list::take(&mut left);
    list::take(&mut left).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI32, Ordering};

    use katydid_session_core::JournalFrame;
    use katydid_wire::frame::FrameHead;
    use katydid_wire::opencl::message::{kdclProgram, kdclSpecialize};

    use super::*;
    use crate::journal::notes::{BUILD_PENDING, Journal};

    /// Returns a build for `devices`, recorded at a frame.
    fn build(order: u64, devices: &[u32], code: Code) -> RecordedFrame {
        let mut arguments = Vec::new();
        0u32.put(&mut arguments);
        list::put(&mut arguments, devices);
        let payload = encoded(&kdclBuild { program: 1, token: 0, staged: 0, arguments: &arguments });
        let head = FrameHead { opcode: kdclBuild::OPCODE, wants_reply: true, thread: 1, context: 0, sequence: order };
        let outcome = Some(std::sync::Arc::new(AtomicI32::new(code.0)));
        RecordedFrame {
            frame: JournalFrame::new(&head, 0, &payload),
            with: FrameContext { outcome, ..FrameContext::default() },
        }
    }

    #[test]
    fn a_build_counts_if_it_is_the_last_or_has_a_kernel() {
        let builds = [
            build(2, &[7], Code::SUCCESS),
            build(4, &[8], Code::SUCCESS),
            build(6, &[7], Code::SUCCESS),
            build(8, &[7], Code::INVALID_OPERATION),
            build(10, &[7], Code::SUCCESS),
        ];
        let of = |kernels: &[u64]| -> Vec<u64> {
            effective(&builds, kernels).into_iter().map(|recorded| recorded.frame.order).collect()
        };
        assert_eq!(of(&[]), [4, 10]);
        assert_eq!(of(&[3]), [2, 4, 10]);
        assert_eq!(of(&[9, 11]), [4, 6, 10]);
        assert_eq!(of(&[1, 12]), [4, 10]);
    }

    #[test]
    fn unfinished_builds_have_no_effect() {
        let pending = Code(BUILD_PENDING);
        let builds = [build(2, &[7], Code::SUCCESS), build(4, &[7], pending), build(6, &[8], pending)];
        assert_eq!(effective(&builds, &[]).into_iter().map(|recorded| recorded.frame.order).collect::<Vec<_>>(), [2]);
    }

    /// Makes a queue with a form of properties, and settings: enabled or not, flags.
    fn queue(form: u32, words: &[u64], sets: &[(u32, u64)]) -> (u32, Vec<u64>) {
        let head = |opcode, sequence| FrameHead { opcode, wants_reply: true, thread: 1, context: 0, sequence };
        let (mut journal, queue) = (Journal::default(), id(kind::QUEUE, 1));
        let mut properties = Vec::new();
        list::put(&mut properties, words);
        let creation = kdclQueue { queue, context: 2, device: 3, form, properties: &properties };
        journal.made(&head(kdclQueue::OPCODE, 1), queue.into(), &encoded(&creation));
        for (order, (enable, properties)) in (2..).zip(sets.iter().copied()) {
            let set = kdclQueueProperty { queue, properties, enable };
            journal.changed(&head(kdclQueueProperty::OPCODE, order), queue.into(), properties, &encoded(&set));
        }
        let payload = queue_as_set(journal.get(queue).unwrap());
        let again = kdclQueue::decode(&payload).unwrap();
        assert_eq!((again.queue, again.context, again.device), (queue, 2, 3));
        (again.form, list::take(&mut &again.properties[..]).unwrap())
    }

    #[test]
    fn a_queue_is_made_with_the_properties_that_were_set_last() {
        const FLAGS: u64 = QUEUE_PROPERTIES as u64;
        let (plain, listed, none) = (properties_form::VALUES, properties_form::LIST, properties_form::NONE);
        assert_eq!(queue(plain, &[2], &[]), (plain, vec![2]));
        assert_eq!(queue(listed, &[FLAGS, 1, 7, 8], &[]), (listed, vec![FLAGS, 1, 7, 8]));
        assert_eq!(queue(none, &[], &[]), (none, vec![]));
        assert_eq!(queue(plain, &[2], &[(1, 1), (0, 3), (1, 1)]), (plain, vec![1]));
        assert_eq!(queue(plain, &[], &[(1, 3), (0, 1)]), (plain, vec![2]));
        assert_eq!(queue(listed, &[FLAGS, 1, 7, 8], &[(1, 2)]), (listed, vec![7, 8, FLAGS, 3]));
        assert_eq!(queue(none, &[], &[(1, 2)]), (plain, vec![2]));
    }

    /// The next worker has the program's parts of a division, and ids for parts that had gone before.
    #[test]
    fn parts_that_are_gone_are_released_in_every_worker() {
        let (part, parent) = (id(kind::DEVICE, 5), id(kind::DEVICE, 0));
        let mut gone = id(kind::DEVICE, 6);
        for _ in 0..3 {
            let (mut session, _) = crate::tests::session();
            let mut arguments = Vec::new();
            list::put(&mut arguments, &[0i64; 1]);
            list::put(&mut arguments, &[gone, part]);
            let head =
                FrameHead { opcode: kdclSubDevices::OPCODE, wants_reply: true, thread: 1, context: 0, sequence: 9 };
            let payload = encoded(&kdclSubDevices { parent, arguments: &arguments });
            session.journal.made(&head, parent.into(), &payload);
            session.journal.ended(gone.into());
            let records = session.records().unwrap();
            let [division, release] = &records[..] else { panic!("{records:?}") };
            let hidden_object = parts(&division.payload)[0];
            assert!(hidden_object >= id(kind::DEVICE, FIRST_HIDDEN_NUMBER));
            assert_eq!(release.payload, encoded(&kdclRelease { object: hidden_object }));
            gone = hidden_object;
        }
    }

    #[test]
    fn a_program_is_built_with_the_constants_that_it_had_then() {
        let program = id(kind::PROGRAM, 1);
        let head = |opcode, sequence| FrameHead { opcode, wants_reply: true, thread: 1, context: 0, sequence };
        let mut journal = Journal::default();
        let creation = kdclProgram { program, context: 2, form: 2, staged: 0, arguments: b"" };
        journal.made(&head(kdclProgram::OPCODE, 1), program.into(), &encoded(&creation));
        for (order, value) in [(2, b"a"), (5, b"b")] {
            let constant = kdclSpecialize { program, number: 7, value };
            journal.changed(&head(kdclSpecialize::OPCODE, order), program.into(), 7, &encoded(&constant));
            let outcome = journal.attach_build(&[]);
            let build = kdclBuild { program, token: 0, staged: 0, arguments: b"" };
            journal.changed(&head(kdclBuild::OPCODE, order + 1), program.into(), 0, &encoded(&build));
            outcome.store(Code::SUCCESS.0, Ordering::Release);
        }
        let mut records = RecordSet::default();
        let entry = journal.get(program).unwrap();
        // A kernel of the first build still lives.
        records.program(program, entry, &[4], None);
        records.records.sort_by_key(|record| record.order);
        let constants: Vec<Option<u8>> = records
            .records
            .iter()
            .filter(|record| record.opcode != kdclProgram::OPCODE)
            .map(|record| {
                let constant = kdclSpecialize::decode(&record.payload).ok();
                constant.filter(|_| record.opcode == kdclSpecialize::OPCODE)?.value.first().copied()
            })
            .collect();
        assert_eq!(constants, [Some(b'a'), None, Some(b'b'), Some(b'b'), None], "constants, and none for builds");
    }
}
