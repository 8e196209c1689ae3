//! Replays a journal into a fresh session.
//!
//! Saved state is trusted no more than a program: every frame passes the dispatch and its checks, and only messages that a
//! journal can hold are accepted. A different outcome refuses the restore and names the message. If a device has moved, programs
//! are built for the new one. A kernel that cannot be launched there as before refuses the restore.

#![expect(unsafe_code, reason = "calls the driver")]

use std::ptr;

use katydid_opencl_sys::{Code, cl_device_id, cl_kernel, cl_program};
use katydid_session_core::{
    Api as _, JournalRecord, ReplayError, ReplayTarget, StateError, execute_quietly, replay, replaying,
};
use katydid_wire::codec::Message as _;
use katydid_wire::frame::FrameHead;
use katydid_wire::opencl::message::{
    kdclEventCallback, kdclKernel, kdclProgram, kdclRelease, kdclSetUserEvent, kdclSvmAlloc, kdclSvmFree, kdclUserEvent,
};
use katydid_wire::opencl::{id, kind, program as form};

use super::notes::encoded;
use super::rehearsal::{DeviceBasis, Rehearsal, RemainingWork};
use super::state::{Event, JournalState};
use crate::calls::callbacks::Callback;
use crate::calls::dispatch::{is_end, is_kept};
use crate::calls::fault::SessionError;
use crate::calls::session_shared::OpenCl;
use crate::drivers::call::driver;
use crate::drivers::devices::{self, Assignment, NoMatchingDevice};
use crate::drivers::driver::{self, value};
use crate::drivers::query::ask;
use crate::handlers::driver_bytes;
use crate::memory::svm::PAGE_BYTES;
use crate::memory::svm_placement;
use crate::objects::object::Object;
use crate::state::Session;

/// `CL_PROGRAM_BUILD_LOG`, asked of a program for a device.
const PROGRAM_BUILD_LOG: u32 = 0x1183;
/// `CL_KERNEL_WORK_GROUP_SIZE`: the most items of a group of the kernel.
const KERNEL_WORK_GROUP_SIZE: u32 = 0x11b0;
/// `CL_KERNEL_LOCAL_MEM_SIZE`: bytes of local memory that the kernel uses.
const KERNEL_LOCAL_MEM_SIZE: u32 = 0x11b2;
/// `CL_DEVICE_MAX_WORK_ITEM_SIZES`: the most items of a group in each dimension.
const DEVICE_MAX_WORK_ITEM_SIZES: u32 = 0x1005;
/// `CL_DEVICE_LOCAL_MEM_SIZE`: bytes of local memory of the device.
const DEVICE_LOCAL_MEM_SIZE: u32 = 0x1023;

/// Most allocations at wrong addresses that are held while the driver is asked again.
const MAX_MISPLACED_ALLOCATIONS: usize = 32;

/// Why a session could not be rebuilt. The worker is unusable afterwards; the image is unchanged.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RebuildError {
    /// The state is damaged or from another build.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// No device here can replace one of the session's.
    #[error(transparent)]
    Device(#[from] NoMatchingDevice),
    /// The driver fails to make an object again.
    #[error(
        "the driver here answers {code} to {message}, which succeeded before: restore with the driver and device that the image was made with"
    )]
    Refused {
        /// The name of the message that was replayed.
        message: &'static str,
        /// The code that the driver answered.
        code: Code,
    },
    /// A program does not build here.
    #[error("a program of the session does not build here ({code}); the driver says:\n{log}")]
    Build {
        /// Code that the driver answered.
        code: Code,
        /// The build log of the driver.
        log: String,
    },
    /// The worker was prepared from the outline of another session, or from an outline of this one that no longer matches.
    #[error("the objects made before the move do not match the image")]
    Another,
    /// A program was made from machine code, which belongs to one device.
    #[error(
        "a program of the session was made of a binary for another device or driver than {device}, and cannot go on there"
    )]
    Binary {
        /// Name of the device here.
        device: String,
    },
    /// The allocation is memory of the program.
    #[error(
        "{size} bytes of fine-grained shared virtual memory are the program's own memory, which only processors of its machine can use: the context cannot have other devices here"
    )]
    FineGrained {
        /// The length of the allocation in bytes.
        size: u64,
    },
    /// The driver gives other addresses.
    #[error(
        "shared virtual memory of {size} bytes was at {saved_address:#x}, and the driver here does not give that address: the program's memory may point there, so the session cannot be restored here"
    )]
    Moved {
        /// The length of the allocation in bytes.
        size: u64,
        /// The address that the program knows.
        saved_address: u64,
    },
    /// The device's groups are too small for the program's launches.
    #[error("the kernel {kernel} was launched with groups of {had}, and {device} has at most {most}")]
    Groups {
        /// The name of the kernel.
        kernel: String,
        /// Size of the work-groups that it was launched with.
        had: String,
        /// Name of the device here.
        device: String,
        /// Largest size of a work-group on that device.
        most: String,
    },
    /// The kernel's local memory does not fit.
    #[error("the kernel {kernel} uses {had} bytes of local memory, and {device} has {most}")]
    Local {
        /// The name of the kernel.
        kernel: String,
        /// Bytes of local memory that the kernel uses.
        had: u64,
        /// Name of the device here.
        device: String,
        /// Bytes of local memory that the device has.
        most: u64,
    },
}

impl From<StateError> for RebuildError {
    fn from(error: StateError) -> Self {
        Self::Replay(error.into())
    }
}

impl From<SessionError> for RebuildError {
    fn from(error: SessionError) -> Self {
        Self::Replay(error.into())
    }
}

impl ReplayTarget for Session {
    fn set_replaying(&mut self, is_on: bool) {
        self.replay.is_on = is_on;
    }

    fn outcome(&mut self) -> &mut Code {
        &mut self.replay.outcome
    }

    fn may_replay(opcode: u16) -> bool {
        is_kept(opcode) || is_end(opcode)
    }
}

impl Session {
    /// Rebuilds the saved state in this new session, without contents.
    ///
    /// # Errors
    ///
    /// [`RebuildError`].
    pub(crate) fn rebuild(&mut self, state: &mut JournalState, requested: &str) -> Result<(), RebuildError> {
        let basis = self.take_device_basis(state, requested)?;
        let records = std::mem::take(&mut state.records);
        self.complete(state, &basis, &RemainingWork { ended: Vec::new(), records: &records })
    }

    /// Rebuilds the outline of a session; [`Session::rebuild_on`] completes it.
    ///
    /// # Errors
    ///
    /// [`RebuildError`].
    pub(crate) fn rehearse(&mut self, mut state: JournalState, requested: &str) -> Result<Rehearsal, RebuildError> {
        let basis = self.take_device_basis(&state, requested)?;
        let (platforms, records) = (state.platforms.clone(), std::mem::take(&mut state.records));
        self.complete(&mut state, &basis, &RemainingWork { ended: Vec::new(), records: &records })?;
        Ok(Rehearsal { basis, platforms, records })
    }

    /// Rebuilds the rest of the state on top of its outline.
    ///
    /// # Errors
    ///
    /// [`RebuildError`].
    pub(crate) fn rebuild_on(&mut self, rehearsal: &Rehearsal, state: &mut JournalState) -> Result<(), RebuildError> {
        let records = std::mem::take(&mut state.records);
        let remaining = rehearsal.remaining_work(&state.platforms, &records).ok_or(RebuildError::Another)?;
        // A buffer with contents in the image must not lie in the program's memory.
        let lies_there = |buffer: &u32| self.is_in_host.contains(buffer) && !remaining.ended.contains(buffer);
        if self.replay.filled.iter().any(lies_there) {
            return Err(RebuildError::Another);
        }
        self.complete(state, &rehearsal.basis, &remaining)
    }

    /// Assigns devices of this machine to a new session.
    fn take_device_basis(&mut self, state: &JournalState, requested: &str) -> Result<DeviceBasis, RebuildError> {
        let platforms = std::mem::take(&mut self.reported_platforms);
        let assignment = devices::assign(&state.platforms, &platforms, requested)?;
        self.bind_devices(&assignment)?;
        Ok(DeviceBasis { assignment, platforms })
    }

    /// Replays the remaining work, and adopts the rest of the state.
    fn complete(
        &mut self,
        state: &mut JournalState,
        basis: &DeviceBasis,
        remaining: &RemainingWork<'_>,
    ) -> Result<(), RebuildError> {
        if let Some(device) = basis.another() {
            refuse_binaries(remaining.records, device)?;
        }
        replaying(self, |session| {
            remaining.ended.iter().try_for_each(|object| session.release(*object))?;
            remaining.records.iter().try_for_each(|record| session.replay_one(record))?;
            session.make_events(&state.events, &state.callbacks)
        })?;
        self.check_groups(&state.groups, basis)?;
        self.reported_platforms = std::mem::take(&mut state.platforms);
        self.adopt_devices(basis);
        self.device_answers = std::mem::take(&mut state.device_answers);
        self.blobs = std::mem::take(&mut state.blobs).into_iter().collect();
        self.uploads.resume(std::mem::take(&mut state.uploads)).map_err(SessionError::from)?;
        state.pending.drain(..).for_each(|callback| self.shared.upcalls.push(callback));
        self.main_loop.resume(&self.shared, std::mem::take(&mut state.progress), state.upcall);
        Ok(())
    }

    /// Binds platforms and devices to the ids that the program knows.
    fn bind_devices(&mut self, assignment: &Assignment) -> Result<(), RebuildError> {
        for (number, found) in (0..).zip(&assignment.platforms) {
            let Some(platform) = found.map(|found| &self.platforms[found]) else { continue };
            let object = Object { handle: platform.handle, api: platform.api, size: 0 };
            self.shared.objects.set(id(kind::PLATFORM, number), object, Vec::new())?;
        }
        for (number, found) in (0..).zip(&assignment.devices) {
            let Some(((platform, device), _)) = found else { continue };
            let platform = &self.platforms[*platform];
            let object = Object { handle: platform.devices[*device].0, api: platform.api, size: 0 };
            self.shared.objects.set(id(kind::DEVICE, number), object, Vec::new())?;
        }
        Ok(())
    }

    /// Records the present devices behind those that the program knows, for the next checkpoint.
    fn adopt_devices(&mut self, DeviceBasis { assignment, platforms }: &DeviceBasis) {
        let had = self.reported_platforms.iter_mut().flat_map(|platform| &mut platform.devices);
        for (device, found) in had.zip(&assignment.devices) {
            if let Some(((platform, at), _)) = found {
                *device = platforms[*platform].devices[*at].clone();
            }
        }
    }

    fn release(&mut self, object: u32) -> Result<(), RebuildError> {
        execute_quietly(self, &our_head(kdclRelease::OPCODE), &encoded(&kdclRelease { object }))?;
        Ok(())
    }

    fn replay_one(&mut self, record: &JournalRecord) -> Result<(), RebuildError> {
        if record.opcode == kdclSvmAlloc::OPCODE {
            return self.allocate_again(record);
        }
        if let Some(bytes) = &record.steps {
            self.uploads.give(record.thread, bytes.to_vec());
        }
        let saved_code =
            record.answer.as_deref().and_then(<[u8]>::first_chunk).map(|code| Code(i32::from_le_bytes(*code)));
        let code = replay(self, &record.head(), record)?;
        match saved_code {
            // A build that failed before may succeed now: nothing uses it.
            Some(saved_code) if saved_code != Code::SUCCESS => Ok(()),
            Some(_) if code != Code::SUCCESS => {
                Err(RebuildError::Build { code, log: self.log_of(record.first_word().unwrap_or(0)) })
            }
            _ if code == Code::SUCCESS || is_end(record.opcode) => Ok(()),
            _ => Err(RebuildError::Refused { message: OpenCl::MESSAGES.name_of(record.opcode), code }),
        }
    }

    /// Allocates shared virtual memory at its saved address. Frees an allocation at another address, and asks the driver again.
    fn allocate_again(&mut self, record: &JournalRecord) -> Result<(), RebuildError> {
        let damaged = || StateError::Damaged { what: "shared virtual memory" };
        let saved_address = record
            .answer
            .as_deref()
            .and_then(<[u8]>::first_chunk)
            .map(|saved_address| u64::from_le_bytes(*saved_address));
        let saved_address = saved_address
            .filter(|saved_address| saved_address.is_multiple_of(PAGE_BYTES) && *saved_address > PAGE_BYTES)
            .ok_or_else(damaged)?;
        let message = kdclSvmAlloc::decode(&record.payload).map_err(|_| damaged())?;
        let size = message.size;
        if message.host_address != 0 && !self.is_of_processors(message.context) {
            return Err(RebuildError::FineGrained { size });
        }
        let driver_bytes = driver_bytes(size).ok_or_else(damaged)?;
        // The program's part began at the first whole page of the driver's allocation.
        for extra in svm_placement::EXTRA_HEAP_PAGES {
            let end = saved_address.saturating_add(driver_bytes - PAGE_BYTES).saturating_add(extra * PAGE_BYTES);
            self.replay.svm_end = Some(end);
            let address = self.allocate(record);
            self.replay.svm_end = None;
            let address = address?;
            if address == saved_address {
                return Ok(());
            }
            self.free(record, address)?;
        }
        self.allocate_around(record, (size, saved_address))
    }

    /// Allocates from a driver that chooses addresses itself: holds each wrong allocation until the driver gives the wanted
    /// address.
    fn allocate_around(
        &mut self,
        record: &JournalRecord,
        (size, saved_address): (u64, u64),
    ) -> Result<(), RebuildError> {
        let (mut misplaced, mut is_there) = (Vec::new(), false);
        while !is_there && misplaced.len() < MAX_MISPLACED_ALLOCATIONS {
            // A driver that is out of memory has not given the address either.
            let Ok(address) = self.allocate(record) else { break };
            is_there = address == saved_address;
            misplaced.extend((!is_there).then_some(address));
        }
        misplaced.into_iter().try_for_each(|address| self.free(record, address))?;
        if is_there { Ok(()) } else { Err(RebuildError::Moved { size, saved_address }) }
    }

    /// Allocates shared virtual memory at any address.
    fn allocate(&mut self, record: &JournalRecord) -> Result<u64, RebuildError> {
        let before: Vec<u64> = self.svm.addresses().collect();
        let code = replay(self, &record.head(), record)?;
        let new = self.svm.addresses().find(|address| !before.contains(address));
        new.ok_or(RebuildError::Refused { message: kdclSvmAlloc::NAME, code })
    }

    fn free(&mut self, record: &JournalRecord, address: u64) -> Result<(), RebuildError> {
        let head = FrameHead { opcode: kdclSvmFree::OPCODE, ..record.head() };
        execute_quietly(self, &head, &encoded(&kdclSvmFree { address }))?;
        Ok(())
    }

    /// Recreates events as user events: waits and queries get the saved state.
    fn make_events(&mut self, events: &[Event], callbacks: &[Callback]) -> Result<(), RebuildError> {
        let mut run = |opcode, message, payload: Vec<u8>| match execute_quietly(self, &our_head(opcode), &payload)? {
            Code::SUCCESS => Ok(()),
            code => Err(RebuildError::Refused { message, code }),
        };
        for Event { id: event, context, status, .. } in events {
            let user_event = kdclUserEvent { event: *event, context: *context };
            run(kdclUserEvent::OPCODE, kdclUserEvent::NAME, encoded(&user_event))?;
            if *status <= 0 {
                let set = kdclSetUserEvent { event: *event, status: *status };
                run(kdclSetUserEvent::OPCODE, kdclSetUserEvent::NAME, encoded(&set))?;
            }
        }
        for Callback { event, state, token } in callbacks {
            let callback = kdclEventCallback { event: *event, type_of: *state, token: *token };
            run(kdclEventCallback::OPCODE, kdclEventCallback::NAME, encoded(&callback))?;
        }
        let times = events.iter().filter(|event| !event.times.is_empty());
        self.event_times = times.map(|event| (event.id, event.times.clone())).collect();
        Ok(())
    }

    /// Checks that kernels can be launched in groups as before: a device of the same name may have other limits here.
    fn check_groups(
        &mut self,
        groups: &[(u32, u32, [u64; 4])],
        DeviceBasis { assignment, platforms }: &DeviceBasis,
    ) -> Result<(), RebuildError> {
        for (kernel, queue, sizes) in groups {
            let device = self.journal.get(*queue).map_or(0, |entry| entry.creation.frame.word(8));
            let number = (self.whole(device) & ((1 << katydid_wire::opencl::KIND_SHIFT) - 1)) as usize;
            if let Some(Some(((platform, at), _))) = assignment.devices.get(number) {
                self.check_kernel(*kernel, device, *sizes, &platforms[*platform].devices[*at].name)?;
            }
            self.journal.set_groups(*kernel, *queue, *sizes);
        }
        Ok(())
    }

    fn check_kernel(&self, kernel: u32, device: u32, sizes: [u64; 4], name: &str) -> Result<(), RebuildError> {
        let objects = &self.shared.objects;
        let (Ok(object), Ok(device)) = (objects.get::<cl_kernel>(kernel), objects.get::<cl_device_id>(device)) else {
            return Ok(());
        };
        let of_kernel = |parameter| {
            ask::<u64>(|size, out| {
                let (kernel, device) = (object.handle, device.handle);
                driver!(object.api, clGetKernelWorkGroupInfo(kernel, device, parameter, size, out, ptr::null_mut()))
            })
        };
        let of_device = |parameter| driver::device_value(device.handle, device.api, parameter).unwrap_or_default();
        let numbers = |bytes: Vec<u8>| -> Vec<u64> {
            bytes.chunks_exact(8).filter_map(|number| Some(u64::from_le_bytes(*number.first_chunk()?))).collect()
        };
        let called = || {
            let entry = self.journal.get(kernel);
            let name =
                entry.and_then(|entry| Some(kdclKernel::decode(entry.creation.frame.payload()).ok()?.name.to_vec()));
            String::from_utf8_lossy(&name.unwrap_or_default()).into_owned()
        };
        let items = numbers(of_device(DEVICE_MAX_WORK_ITEM_SIZES));
        let too_wide = items.iter().zip(&sizes[1..]).any(|(most, had)| had > most);
        let most = of_kernel(KERNEL_WORK_GROUP_SIZE).unwrap_or(u64::MAX);
        if sizes[0] > most || too_wide {
            let had = format!("{} items ({} × {} × {} at most)", sizes[0], sizes[1], sizes[2], sizes[3]);
            let most = format!("{most}, {items:?} in each dimension");
            return Err(RebuildError::Groups { kernel: called(), had, device: name.to_owned(), most });
        }
        let room = numbers(of_device(DEVICE_LOCAL_MEM_SIZE)).first().copied().unwrap_or(u64::MAX);
        match of_kernel(KERNEL_LOCAL_MEM_SIZE) {
            Ok(had) if had > room => {
                Err(RebuildError::Local { kernel: called(), had, device: name.to_owned(), most: room })
            }
            _ => Ok(()),
        }
    }

    /// Returns the driver's build log of a program, for each device that has one.
    fn log_of(&self, program: u32) -> String {
        let Ok(object) = self.shared.objects.get::<cl_program>(program) else { return String::new() };
        let log = |(_, device): (u32, Object<cl_device_id>)| {
            let log = value(|size, out, needed| {
                let (program, device) = (object.handle, device.handle);
                driver!(object.api, clGetProgramBuildInfo(program, device, PROGRAM_BUILD_LOG, size, out, needed))
            });
            String::from_utf8_lossy(&log.unwrap_or_default()).trim_matches(['\0', '\n', ' ']).to_owned()
        };
        let logs: Vec<String> = self.shared.objects.of::<cl_device_id>().into_iter().map(log).collect();
        logs.into_iter().filter(|log| !log.is_empty()).collect::<Vec<_>>().join("\n")
    }
}

/// Returns the head of a frame that the program has not sent.
fn our_head(opcode: u16) -> FrameHead {
    FrameHead { opcode, wants_reply: true, thread: 1, context: 0, sequence: 0 }
}

fn refuse_binaries(records: &[JournalRecord], device: &str) -> Result<(), RebuildError> {
    let is_binary = |record: &JournalRecord| {
        let program = kdclProgram::decode(&record.payload).ok().filter(|_| record.opcode == kdclProgram::OPCODE);
        program.is_some_and(|program| program.form == form::BINARY)
    };
    if records.iter().any(is_binary) { Err(RebuildError::Binary { device: device.to_owned() }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use katydid_opencl_sys::{Dispatch, void};

    use super::*;
    use crate::tests::empty_table;
    use crate::tests::session;

    /// Returns a driver of one kind of device. The handles of its kernels encode how much local memory they take.
    fn driver() -> &'static Dispatch {
        let mut api = empty_table();
        api.clGetDeviceInfo = Some(of_device);
        api.clGetKernelWorkGroupInfo = Some(of_kernel);
        Box::leak(Box::new(api))
    }

    /// Writes as many bytes of a number as there is room for; it stands for an answer of any size.
    unsafe fn write_answer(number: u64, size: usize, out: *mut void, needed: *mut usize) -> i32 {
        // SAFETY: called as drivers are.
        unsafe {
            if !out.is_null() {
                ptr::copy_nonoverlapping(number.to_le_bytes().as_ptr(), out.cast::<u8>(), size.min(8));
            }
            if !needed.is_null() {
                needed.write(8);
            }
        }
        0
    }

    /// A device with groups of 64 in its only dimension, and 1024 bytes of local memory.
    unsafe extern "C" fn of_device(
        _: cl_device_id,
        parameter: u32,
        size: usize,
        out: *mut void,
        needed: *mut usize,
    ) -> i32 {
        // SAFETY: passed on.
        unsafe { write_answer(if parameter == DEVICE_LOCAL_MEM_SIZE { 1024 } else { 64 }, size, out, needed) }
    }

    /// A kernel in groups of 64 that uses as many bytes of local memory as its handle says.
    unsafe extern "C" fn of_kernel(
        kernel: cl_kernel,
        _: cl_device_id,
        parameter: u32,
        size: usize,
        out: *mut void,
        needed: *mut usize,
    ) -> i32 {
        // SAFETY: passed on.
        unsafe {
            write_answer(
                if parameter == KERNEL_LOCAL_MEM_SIZE { kernel.0.addr() as u64 } else { 64 },
                size,
                out,
                needed,
            )
        }
    }

    #[test]
    fn a_device_with_less_local_memory_or_smaller_groups_than_a_kernel_takes_is_refused_by_name() {
        let (api, (session, _)) = (driver(), session());
        let (device, kernels) = (id(kind::DEVICE, 1), [id(kind::KERNEL, 1), id(kind::KERNEL, 2)]);
        let objects = &session.shared.objects;
        let out = ptr::without_provenance_mut;
        objects.set(device, Object { handle: cl_device_id(out(64)), api, size: 0 }, Vec::new()).unwrap();
        for (kernel, local) in kernels.into_iter().zip([4096, 64]) {
            objects.set(kernel, Object { handle: cl_kernel(out(local)), api, size: 0 }, Vec::new()).unwrap();
        }
        let refusal =
            |kernel: u32, sizes| session.check_kernel(kernel, device, sizes, "dwarf").unwrap_err().to_string();
        let room = refusal(kernels[0], [64, 64, 1, 1]);
        assert!(room.ends_with("uses 4096 bytes of local memory, and dwarf has 1024"), "{room}");
        let groups = refusal(kernels[0], [65, 65, 1, 1]);
        assert!(groups.contains("groups of 65 items (65 × 1 × 1 at most), and dwarf has at most 64"), "{groups}");
        assert!(session.check_kernel(kernels[1], device, [64, 64, 1, 1], "dwarf").is_ok());
    }
}
