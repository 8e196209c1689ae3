//! The journal's entries, and how messages change them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use katydid_opencl_sys::Code;
use katydid_session_core::JournalFrame;
use katydid_wire::codec::{Field as _, Message as _};
use katydid_wire::frame::FrameHead;
use katydid_wire::opencl::message::{
    kdclBuffer, kdclBuild, kdclCloneKernel, kdclImage, kdclLink, kdclSubDevices, kdclSvmAlloc,
};
use katydid_wire::opencl::{KIND_SHIFT, kind, list};

/// The outcome of a build that has not ended.
pub(super) const BUILD_PENDING: i32 = i32::MAX;
/// Number of builds of a program beyond which each new one drops those without effect.
const MAX_IDLE_BUILDS: usize = 16;

/// Data that came with a message, or that becomes known only later.
#[derive(Debug, Clone, Default)]
pub(crate) struct FrameContext {
    /// Data that was uploaded in parts.
    pub(super) bytes: Option<Arc<Vec<u8>>>,
    /// The outcome of a build.
    pub(super) outcome: Option<Arc<AtomicI32>>,
    /// Programs that were inputs, as they were then.
    pub(super) needs: Vec<(u32, Arc<ObjectEntry>)>,
    /// Specialization constants of its own program.
    pub(super) constants: Vec<RecordedFrame>,
}

/// A frame, with its context.
#[derive(Debug, Clone)]
pub(crate) struct RecordedFrame {
    pub(crate) frame: JournalFrame,
    pub(super) with: FrameContext,
}

impl RecordedFrame {
    /// Returns the outcome of a build: success or another code; `None` for other frames and while it runs.
    pub(super) fn outcome(&self) -> Option<Code> {
        let outcome = self.with.outcome.as_ref()?.load(Ordering::Acquire);
        (outcome != BUILD_PENDING).then_some(Code(outcome))
    }

    /// Returns whether a build changed its program. Builds that the driver refused did not.
    pub(super) fn had_effect(&self) -> bool {
        let codes =
            [Code::SUCCESS, Code::BUILD_PROGRAM_FAILURE, Code::COMPILE_PROGRAM_FAILURE, Code::LINK_PROGRAM_FAILURE];
        self.outcome().is_none_or(|code| codes.contains(&code))
    }
}

/// The record of one live object: how it was made, and what was set.
#[derive(Debug, Clone)]
pub(crate) struct ObjectEntry {
    pub(crate) creation: RecordedFrame,
    /// The last frame for each message and property.
    pub(crate) sets: BTreeMap<(u16, u64), RecordedFrame>,
    /// Builds of a program, in their order.
    pub(super) builds: Vec<RecordedFrame>,
    /// Limits of a kernel, by queue: the most items of a group, and the most in each dimension.
    pub(crate) groups: BTreeMap<u32, [u64; 4]>,
}

impl ObjectEntry {
    /// Returns the entry of an object that was not changed since it was made.
    fn of(creation: RecordedFrame) -> Self {
        Self { creation, sets: BTreeMap::new(), builds: Vec::new(), groups: BTreeMap::new() }
    }

    /// Returns whether this message made the object.
    pub(crate) fn is_made_by<M: katydid_wire::codec::Message>(&self) -> bool {
        self.creation.frame.opcode == M::OPCODE
    }
}

/// Every entry of a session's journal.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    /// Objects by id; all parts of a device have the frame that divided it.
    objects: HashMap<u32, ObjectEntry>,
    /// Shared virtual memory by address.
    svm: BTreeMap<u64, JournalFrame>,
    /// Context for the current message.
    attachment: FrameContext,
}

/// Returns the kind of an id.
pub(crate) fn kind_of(id: u32) -> u32 {
    id >> KIND_SHIFT
}

impl Journal {
    /// Keeps uploaded data for the current message.
    pub(crate) fn attach(&mut self, bytes: &[u8]) {
        self.attachment.bytes = Some(Arc::new(bytes.to_vec()));
    }

    /// Keeps the programs that go into the current link, as they are now, and returns the cell for its outcome.
    pub(crate) fn attach_link(&mut self, inputs: &[u32]) -> Arc<AtomicI32> {
        let entry = |id: &u32| Some((*id, Arc::new(self.objects.get(id)?.clone())));
        self.attach_outcome(inputs.iter().filter_map(entry).collect())
    }

    /// Keeps the headers of the current build, reduced to their text, and returns the cell for its outcome. Reduced, since two
    /// programs may be headers of each other, again and again.
    pub(crate) fn attach_build(&mut self, headers: &[u32]) -> Arc<AtomicI32> {
        let entry = |id: &u32| Some((*id, Arc::new(ObjectEntry::of(self.objects.get(id)?.creation.clone()))));
        self.attach_outcome(headers.iter().filter_map(entry).collect())
    }

    fn attach_outcome(&mut self, needs: Vec<(u32, Arc<ObjectEntry>)>) -> Arc<AtomicI32> {
        self.attachment.needs = needs;
        let outcome = Arc::new(AtomicI32::new(BUILD_PENDING));
        self.attachment.outcome = Some(Arc::clone(&outcome));
        outcome
    }

    /// Drops the context: the current message has failed.
    pub(crate) fn forget_attachment(&mut self) {
        self.attachment = FrameContext::default();
    }

    /// Records an object that a message made.
    pub(crate) fn made(&mut self, head: &FrameHead, id: u64, payload: &[u8]) {
        let frame = JournalFrame::new(head, 0, &without_contents(head.opcode, payload));
        if head.opcode == kdclSvmAlloc::OPCODE {
            self.svm.insert(id, frame);
            return;
        }
        let entry = ObjectEntry::of(RecordedFrame { frame, with: std::mem::take(&mut self.attachment) });
        match head.opcode {
            kdclSubDevices::OPCODE => {
                for part in parts(payload) {
                    self.objects.insert(part, entry.clone());
                }
            }
            kdclCloneKernel::OPCODE => {
                let cloned = self.cloned(head, payload).unwrap_or(entry);
                self.objects.insert(id as u32, cloned);
            }
            _ => drop(self.objects.insert(id as u32, entry)),
        }
    }

    /// Returns a clone as if it had been made the way its source was.
    fn cloned(&self, head: &FrameHead, payload: &[u8]) -> Option<ObjectEntry> {
        let message = kdclCloneKernel::decode(payload).ok()?;
        let source = self.objects.get(&message.source)?;
        // The kernel is the first field of all these messages.
        let again = |recorded: &RecordedFrame| {
            let mut payload = recorded.frame.payload().to_vec();
            payload.splice(..4, message.kernel.to_le_bytes());
            let head = FrameHead { opcode: recorded.frame.opcode, ..*head };
            RecordedFrame { frame: JournalFrame::new(&head, 0, &payload), with: recorded.with.clone() }
        };
        let sets = source.sets.iter().map(|(key, recorded)| (*key, again(recorded))).collect();
        Some(ObjectEntry { sets, ..ObjectEntry::of(again(&source.creation)) })
    }

    /// Records a property that a message set.
    pub(crate) fn changed(&mut self, head: &FrameHead, id: u64, property: u64, payload: &[u8]) {
        let mut recorded =
            RecordedFrame { frame: JournalFrame::new(head, 0, payload), with: std::mem::take(&mut self.attachment) };
        let id = id as u32;
        let Some(entry) = self.objects.get_mut(&id) else { return };
        if head.opcode != kdclBuild::OPCODE {
            entry.sets.insert((head.opcode, property), recorded);
            return;
        }
        recorded.with.constants = entry.sets.values().cloned().collect();
        entry.builds.retain(RecordedFrame::had_effect);
        if entry.builds.len() >= MAX_IDLE_BUILDS {
            self.forget_builds(id);
        }
        if let Some(entry) = self.objects.get_mut(&id) {
            entry.builds.push(recorded);
        }
    }

    /// Forgets builds of a program that later ones replace. Running builds replace none, since their outcome is not known.
    fn forget_builds(&mut self, program: u32) {
        let kernels = self.kernels_of(program);
        let Some(entry) = self.objects.get_mut(&program) else { return };
        let (ended, mut recorded): (Vec<RecordedFrame>, Vec<RecordedFrame>) =
            std::mem::take(&mut entry.builds).into_iter().partition(|build| build.outcome().is_some());
        recorded.extend(effective(&ended, &kernels).into_iter().cloned());
        recorded.sort_by_key(|build| build.frame.order);
        entry.builds = recorded;
    }

    /// Returns the order numbers of the frames that made a program's kernels.
    pub(super) fn kernels_of(&self, program: u32) -> Vec<u64> {
        let of_it = self
            .objects
            .iter()
            .filter(|(id, entry)| kind_of(**id) == kind::KERNEL && entry.creation.frame.word(4) == program);
        of_it.map(|(_, entry)| entry.creation.frame.order).collect()
    }

    /// Removes an object that a message ended.
    pub(crate) fn ended(&mut self, id: u64) {
        match u32::try_from(id) {
            Ok(id) => {
                self.objects.remove(&id);
                if kind_of(id) == kind::QUEUE {
                    self.objects.values_mut().for_each(|entry| {
                        entry.groups.remove(&id);
                    });
                }
            }
            Err(_) => drop(self.svm.remove(&id)),
        }
    }

    /// Records that a kernel is launched in a queue with groups of these sizes.
    pub(crate) fn launched(&mut self, kernel: u32, queue: u32, [x, y, z]: [u64; 3]) {
        let Some(entry) = self.objects.get_mut(&kernel) else { return };
        let largest = entry.groups.entry(queue).or_default();
        let all = x.saturating_mul(y).saturating_mul(z);
        for (largest, now) in largest.iter_mut().zip([all, x, y, z]) {
            *largest = now.max(*largest);
        }
    }

    /// Restores what [`Journal::launched`] recorded in another worker.
    pub(crate) fn set_groups(&mut self, kernel: u32, queue: u32, sizes: [u64; 4]) {
        if let Some(entry) = self.objects.get_mut(&kernel) {
            entry.groups.insert(queue, sizes);
        }
    }

    pub(crate) fn get(&self, id: u32) -> Option<&ObjectEntry> {
        self.objects.get(&id)
    }

    /// Returns the entries of a kind, ordered by id.
    pub(crate) fn of(&self, kind: u32) -> Vec<(u32, &ObjectEntry)> {
        let mut all: Vec<_> =
            self.objects.iter().filter(|(id, _)| kind_of(**id) == kind).map(|(id, entry)| (*id, entry)).collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        all
    }

    /// Returns shared virtual memory: addresses, and the frames that allocated it.
    pub(crate) fn svm(&self) -> impl Iterator<Item = (u64, &JournalFrame)> {
        self.svm.iter().map(|(address, frame)| (*address, frame))
    }

    /// Returns whether an object that was made before frame `before` still exists.
    pub(super) fn lives(&self, id: u32, before: u64) -> bool {
        // Devices and platforms exist from the start, and have no entry.
        let is_of_start = matches!(kind_of(id), kind::PLATFORM | kind::DEVICE);
        self.objects.get(&id).map_or(is_of_start, |entry| entry.creation.frame.order < before)
    }
}

/// Returns the builds that count, of those that have ended and had an effect: the last one of each kind and list of devices. An
/// earlier one counts too if a live kernel was made from it. Drivers may rebuild a program while it has kernels.
pub(super) fn effective<'a>(builds: &'a [RecordedFrame], kernels: &[u64]) -> Vec<&'a RecordedFrame> {
    let about = |recorded: &RecordedFrame| {
        let own = kdclBuild::decode(recorded.frame.payload()).map_or(&[][..], |message| message.arguments).to_vec();
        let bytes = recorded.with.bytes.as_ref().map_or(own, |bytes| bytes.to_vec());
        let mut left = &bytes[..];
        (u32::take(&mut left), list::take::<u32>(&mut left))
    };
    // From the last to the first: the frame up to which a build was the current one of its kind.
    let mut until = HashMap::new();
    let with_effect = builds.iter().rev().filter(|recorded| recorded.outcome().is_some() && recorded.had_effect());
    let mut found: Vec<&RecordedFrame> = with_effect
        .filter(|recorded| {
            let order = recorded.frame.order;
            let next = until.insert(about(recorded), order);
            next.is_none_or(|next| kernels.iter().any(|kernel| (order..next).contains(kernel)))
        })
        .collect();
    found.reverse();
    found
}

/// Returns the ids of the parts that a division of a device made.
pub(super) fn parts(payload: &[u8]) -> Vec<u32> {
    let Ok(message) = kdclSubDevices::decode(payload) else { return Vec::new() };
    let mut left = message.arguments;
    let properties: Option<Vec<i64>> = list::take(&mut left);
    properties.and_then(|_| list::take(&mut left)).unwrap_or_default()
}

/// Returns the message that makes a memory object, without initial contents.
fn without_contents(opcode: u16, payload: &[u8]) -> Vec<u8> {
    let short = match opcode {
        kdclBuffer::OPCODE => kdclBuffer::decode(payload).ok().map(|message| {
            let mut rest = message.data;
            let properties: Vec<u64> =
                if message.properties == 0 { Vec::new() } else { list::take(&mut rest).unwrap_or_default() };
            let mut data = Vec::new();
            if message.properties != 0 {
                list::put(&mut data, &properties);
            }
            encoded(&kdclBuffer { staged: 0, data: &data, ..message })
        }),
        kdclImage::OPCODE => kdclImage::decode(payload).ok().map(|message| {
            let shape = message.arguments.get(..IMAGE_SHAPE_BYTES).unwrap_or(message.arguments);
            encoded(&kdclImage { staged: 0, arguments: shape, ..message })
        }),
        _ => None,
    };
    short.unwrap_or_else(|| payload.to_vec())
}

/// Bytes of an image description before its data: format, kind, six sizes, levels and samples.
const IMAGE_SHAPE_BYTES: usize = 2 * 4 + 4 + 6 * 8 + 2 * 4;

/// Encodes a message as its frame holds it.
pub(super) fn encoded<M: katydid_wire::codec::Message>(message: &M) -> Vec<u8> {
    let mut out = Vec::new();
    message.encode(&mut out);
    out.extend_from_slice(message.tail());
    out
}

/// Returns a link's list of devices, options and list of programs, with other programs.
pub(super) fn with_other_inputs(payload: &[u8], other: &dyn Fn(u32) -> u32) -> Option<Vec<u8>> {
    let message = kdclLink::decode(payload).ok()?;
    let mut left = message.arguments;
    let devices: Vec<u32> = list::take(&mut left)?;
    let options = Vec::<u8>::take(&mut left)?;
    let inputs: Vec<u32> = list::take(&mut left)?;
    let mut arguments = Vec::new();
    list::put(&mut arguments, &devices);
    options.put(&mut arguments);
    list::put(&mut arguments, &inputs.into_iter().map(other).collect::<Vec<u32>>());
    Some(encoded(&kdclLink { arguments: &arguments, ..message }))
}

/// Returns the arguments of a build (kind, devices, options, headers and their names) with other headers.
pub(super) fn with_other_headers(arguments: &[u8], other: &dyn Fn(u32) -> u32) -> Option<Vec<u8>> {
    let mut remaining = arguments;
    let kind = u32::take(&mut remaining)?;
    let devices: Vec<u32> = list::take(&mut remaining)?;
    let options = Vec::<u8>::take(&mut remaining)?;
    let headers: Vec<u32> = list::take(&mut remaining)?;
    let mut out = Vec::new();
    kind.put(&mut out);
    list::put(&mut out, &devices);
    options.put(&mut out);
    list::put(&mut out, &headers.into_iter().map(other).collect::<Vec<u32>>());
    out.extend_from_slice(remaining);
    Some(out)
}

#[cfg(test)]
mod tests {
    use katydid_wire::opencl::id;
    use katydid_wire::opencl::message::{kdclKernel, kdclProgram, kdclRelease, kdclSetArgument};

    use super::*;

    fn head(opcode: u16, sequence: u64) -> FrameHead {
        FrameHead { opcode, wants_reply: true, thread: 1, context: 0, sequence }
    }

    fn make<M: katydid_wire::codec::Message>(journal: &mut Journal, order: u64, object: u32, message: &M) {
        journal.made(&head(M::OPCODE, order), object.into(), &encoded(message));
    }

    #[test]
    fn contents_are_left_out_and_properties_stay() {
        let mut data = Vec::new();
        list::put(&mut data, &[1u64, 2]);
        let short = data.len();
        data.extend([9; 1000]);
        let buffer = kdclBuffer {
            memory: 1,
            context: 2,
            flags: 3,
            size: 1000,
            host_address: 0,
            staged: 0,
            properties: 1,
            data: &data,
        };
        let recorded = without_contents(kdclBuffer::OPCODE, &encoded(&buffer));
        assert_eq!(kdclBuffer::decode(&recorded).unwrap(), kdclBuffer { data: &data[..short], ..buffer });
        let arguments = vec![7; IMAGE_SHAPE_BYTES + 64];
        let image = kdclImage {
            memory: 1,
            context: 2,
            parent: 0,
            flags: 1,
            host_address: 0,
            host_bytes: 0,
            staged: 1,
            arguments: &arguments,
        };
        let recorded = without_contents(kdclImage::OPCODE, &encoded(&image));
        assert_eq!(
            kdclImage::decode(&recorded).unwrap(),
            kdclImage { staged: 0, arguments: &arguments[..IMAGE_SHAPE_BYTES], ..image }
        );
    }

    #[test]
    fn a_clone_has_what_its_source_had_then() {
        let (program, kernel, clone) = (id(kind::PROGRAM, 1), id(kind::KERNEL, 1), id(kind::KERNEL, 2));
        let mut journal = Journal::default();
        make(&mut journal, 1, kernel, &kdclKernel { kernel, program, name: b"f" });
        let set = |value: &'static [u8]| kdclSetArgument { kernel, index: 0, form: 0, size: 1, value };
        let argument = kdclSetArgument::OPCODE;
        journal.changed(&head(argument, 2), kernel.into(), 0, &encoded(&set(b"a")));
        make(&mut journal, 3, clone, &kdclCloneKernel { kernel: clone, source: kernel });
        journal.changed(&head(argument, 4), kernel.into(), 0, &encoded(&set(b"b")));
        journal.ended(kernel.into());
        let entry = journal.get(clone).unwrap();
        assert_eq!(
            kdclKernel::decode(entry.creation.frame.payload()).unwrap(),
            kdclKernel { kernel: clone, program, name: b"f" }
        );
        let recorded = entry.sets.get(&(argument, 0)).unwrap();
        assert_eq!(kdclSetArgument::decode(recorded.frame.payload()).unwrap().value, b"a");
        assert_eq!((entry.creation.frame.order, recorded.frame.order), (3, 3));
        assert!(journal.get(kernel).is_none());
    }

    #[test]
    fn builds_that_the_driver_refused_are_forgotten() {
        let program = id(kind::PROGRAM, 1);
        let mut journal = Journal::default();
        make(&mut journal, 1, program, &kdclProgram { program, context: 2, form: 0, staged: 0, arguments: b"" });
        for (order, code) in [(2, Code::SUCCESS), (3, Code::INVALID_OPERATION), (4, Code::BUILD_PROGRAM_FAILURE)] {
            let outcome = journal.attach_build(&[]);
            let build = kdclBuild { program, token: 0, staged: 0, arguments: b"" };
            journal.changed(&head(kdclBuild::OPCODE, order), program.into(), 0, &encoded(&build));
            outcome.store(code.0, Ordering::Release);
        }
        let effective: Vec<u64> =
            journal.get(program).unwrap().builds.iter().map(|recorded| recorded.frame.order).collect();
        assert_eq!(effective, [2, 4]);
        let outcome = journal.attach_build(&[]);
        let build = kdclBuild { program, token: 0, staged: 0, arguments: b"" };
        journal.changed(&head(kdclBuild::OPCODE, 5), program.into(), 0, &encoded(&build));
        outcome.store(Code::SUCCESS.0, Ordering::Release);
        let effective: Vec<u64> =
            journal.get(program).unwrap().builds.iter().map(|recorded| recorded.frame.order).collect();
        assert_eq!(effective, [2, 4, 5]);
    }

    #[test]
    fn a_program_that_is_built_again_and_again_keeps_what_counts() {
        let (program, kernel) = (id(kind::PROGRAM, 1), id(kind::KERNEL, 1));
        let mut journal = Journal::default();
        make(&mut journal, 1, program, &kdclProgram { program, context: 2, form: 0, staged: 0, arguments: b"" });
        let build = |journal: &mut Journal, order: u64, device: u32, code: Option<Code>| {
            let outcome = journal.attach_build(&[]);
            let mut arguments = 0u32.to_le_bytes().to_vec();
            list::put(&mut arguments, &[device]);
            let message = kdclBuild { program, token: 0, staged: 0, arguments: &arguments };
            journal.changed(&head(kdclBuild::OPCODE, order), program.into(), 0, &encoded(&message));
            if let Some(code) = code {
                outcome.store(code.0, Ordering::Release);
            }
        };
        build(&mut journal, 2, 7, Some(Code::SUCCESS));
        build(&mut journal, 3, 8, Some(Code::SUCCESS));
        make(&mut journal, 4, kernel, &kdclKernel { kernel, program, name: b"f" });
        build(&mut journal, 5, 8, None);
        for order in 6..10_000 {
            build(&mut journal, order, 8, Some(Code::SUCCESS));
        }
        let recorded: Vec<u64> = journal.get(program).unwrap().builds.iter().map(|build| build.frame.order).collect();
        assert!(recorded.len() <= MAX_IDLE_BUILDS + 1, "{}", recorded.len());
        assert_eq!(
            (&recorded[..3], recorded.last()),
            (&[2, 3, 5][..], Some(&9999)),
            "of another device, of a kernel, under way"
        );
        assert_eq!(effective(&journal.get(program).unwrap().builds, &[4]).len(), 3);
    }

    #[test]
    fn of_a_header_the_text_is_kept_and_of_an_input_what_was_made_of_it() {
        let (program, header) = (id(kind::PROGRAM, 1), id(kind::PROGRAM, 2));
        let mut journal = Journal::default();
        for (order, program) in [(1, program), (2, header)] {
            make(
                &mut journal,
                order,
                program,
                &kdclProgram { program, context: 2, form: 0, staged: 0, arguments: b"" },
            );
        }
        for (order, program, header) in [(3, header, program), (4, program, header)] {
            journal.attach_build(&[header]).store(Code::SUCCESS.0, Ordering::Release);
            let build = kdclBuild { program, token: 0, staged: 0, arguments: b"" };
            journal.changed(&head(kdclBuild::OPCODE, order), program.into(), 0, &encoded(&build));
        }
        let needs = &journal.get(program).unwrap().builds[0].with.needs;
        assert_eq!((needs[0].0, needs[0].1.creation.frame.order, needs[0].1.builds.len()), (header, 2, 0));
        journal.attach_link(&[program]);
        assert_eq!(journal.attachment.needs[0].1.builds.len(), 1);
    }

    #[test]
    fn the_largest_groups_of_each_queue_are_known_until_it_ends() {
        let (kernel, queue) = (id(kind::KERNEL, 1), id(kind::QUEUE, 1));
        let mut journal = Journal::default();
        make(&mut journal, 1, kernel, &kdclKernel { kernel, program: 5, name: b"f" });
        journal.launched(kernel, queue, [64, 1, 1]);
        journal.launched(kernel, queue, [4, 8, 1]);
        assert_eq!(journal.get(kernel).unwrap().groups[&queue], [64, 64, 8, 1]);
        journal.ended(queue.into());
        assert!(journal.get(kernel).unwrap().groups.is_empty());
    }

    #[test]
    fn a_journal_is_as_small_after_many_objects_as_before() {
        let mut journal = Journal::default();
        for order in 0..100_000 {
            let kernel = id(kind::KERNEL, 7);
            make(&mut journal, order, kernel, &kdclKernel { kernel, program: 5, name: b"f" });
            journal.changed(&head(kdclSetArgument::OPCODE, order), kernel.into(), 3, &[0; 24]);
            journal.ended(kernel.into());
            make(&mut journal, order, 0, &kdclRelease { object: 0 });
            journal.ended(0);
        }
        assert!(journal.objects.is_empty() && journal.svm.is_empty());
    }
}
