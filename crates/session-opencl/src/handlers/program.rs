//! Programs: creates, builds, compiles and links them. A build may take long, so it runs on the executor of the thread that
//! asked. With a callback the driver decides, as it does natively, whether the build has ended when the call returns.

#![expect(unsafe_code, reason = "calls the driver")]
#![allow(non_snake_case, reason = "handlers carry the names of their messages")]

use std::ffi::{CString, c_char};
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use katydid_opencl_sys::constant::{PROGRAM_BUILD_STATUS, PROGRAM_DEVICES};
use katydid_opencl_sys::{Code, Dispatch, cl_context, cl_device_id, cl_program, cl_program_notify, void};
use katydid_session_core::run_apart;
use katydid_wire::frame::FrameHead;
use katydid_wire::opencl::{message, program as form};

use crate::calls::arguments::Arguments;
use crate::calls::executor::{ExecutorCall, ExecutorTask};
use crate::calls::fault::Fault;
use crate::calls::notify::{self, BuildEnd};
use crate::calls::session_shared::{OpenCl, OpenclSessionShared};
use crate::calls::upcalls::PendingCallback;
use crate::drivers::call::{driver, make};
use crate::drivers::driver::value;
use crate::drivers::query::ask;
use crate::handlers::pointer;
use crate::objects::object::Object;
use crate::state::Session;

/// Stands for no code yet; no driver returns it.
const NO_BUILD_CODE: i32 = i32::MAX;
/// `CL_BUILD_ERROR`: the last build of the program failed.
const BUILD_ERROR: i32 = -2;

/// Makes a C string from bytes of a message.
fn c_string(bytes: Vec<u8>) -> Result<CString, Code> {
    CString::new(bytes).map_err(|_| Code::INVALID_VALUE)
}

/// Makes a program from source, binaries, intermediate language, or built-in kernel names. The driver's status of binaries that
/// it refuses becomes the thread's long answer.
pub(crate) fn kdclProgram(
    session: &mut Session,
    head: &FrameHead,
    message: message::kdclProgram<'_>,
) -> Result<message::kdclProgramReply, Fault> {
    let context: Object<cl_context> = session.shared.objects.get(message.context)?;
    let bytes = session.bytes(head, message.staged, message.arguments)?;
    if message.staged != 0 {
        session.journal.attach(&bytes);
    }
    let mut arguments = Arguments::new("kdclProgram", &bytes);
    let mut status = Vec::new();
    let handle = match message.form {
        form::SOURCE => {
            // A driver reads a text of length 0 as one that ends with a zero byte.
            let text = if bytes.is_empty() { c"".as_ptr() } else { bytes.as_ptr().cast::<c_char>() };
            let length = bytes.len();
            make!(context.api, clCreateProgramWithSource(context.handle, 1, &raw const text, &raw const length))?
        }
        form::BINARY => {
            let (program, codes) = binary(session, &context, arguments)?;
            status = codes;
            program.inspect_err(|_| drop(session.blobs.insert(head.thread, status.clone())))?
        }
        form::IL => make!(context.api, clCreateProgramWithIL(context.handle, bytes.as_ptr().cast(), bytes.len()))?,
        _ => {
            let ids = arguments.list::<u32>("devices")?;
            let devices: Vec<cl_device_id> = session.shared.objects.all_of(context.api, &ids)?;
            let names = c_string(arguments.remaining().to_vec())?;
            let count = devices.len() as u32;
            make!(
                context.api,
                clCreateProgramWithBuiltInKernels(context.handle, count, pointer(&devices), names.as_ptr())
            )?
        }
    };
    let made_of = session.shared.objects.hold::<cl_context>(message.context)?;
    session.shared.objects.set(message.program, Object { handle, api: context.api, size: 0 }, vec![made_of])?;
    Ok(message::kdclProgramReply { status })
}

/// Reads devices, lengths and bytes; returns the program, and a code for each binary.
fn binary(
    session: &Session,
    context: &Object<cl_context>,
    mut arguments: Arguments<'_>,
) -> Result<(Result<cl_program, Code>, Vec<u8>), Fault> {
    let ids = arguments.list::<u32>("devices")?;
    let devices: Vec<cl_device_id> = session.shared.objects.all_of(context.api, &ids)?;
    let lengths: Vec<usize> = arguments.list::<u64>("lengths")?.into_iter().map(|length| length as usize).collect();
    let mut left = arguments.remaining();
    let mut pointers = Vec::new();
    for length in &lengths {
        let (binary, rest) = left.split_at_checked(*length).ok_or(Code::INVALID_VALUE)?;
        pointers.push(binary.as_ptr());
        left = rest;
    }
    if pointers.len() != devices.len() {
        return Err(Code::INVALID_VALUE.into());
    }
    let mut codes = vec![NO_BUILD_CODE; devices.len()];
    let program = make!(
        context.api,
        clCreateProgramWithBinary(
            context.handle,
            devices.len() as u32,
            pointer(&devices),
            lengths.as_ptr(),
            pointers.as_ptr(),
            codes.as_mut_ptr(),
        )
    );
    let of_all = program.err().unwrap_or(Code::SUCCESS).0;
    let statuses = codes.into_iter().map(|code| if code == NO_BUILD_CODE { of_all } else { code });
    Ok((program, statuses.flat_map(i32::to_le_bytes).collect()))
}

/// The inputs of a build, as the driver takes them.
struct Build {
    compile: bool,
    devices: Vec<cl_device_id>,
    options: CString,
    headers: Vec<cl_program>,
    /// Ids of the headers.
    header_ids: Vec<u32>,
    names: Vec<CString>,
}

impl Build {
    /// Reads the kind (0 build, 1 compile), devices, options, headers and their names.
    fn read(session: &Session, api: &Dispatch, mut arguments: Arguments<'_>) -> Result<Self, Fault> {
        let objects = &session.shared.objects;
        let compile = arguments.take::<u32>("kind")? != 0;
        let devices = objects.all_of(api, &arguments.list::<u32>("devices")?)?;
        let options = c_string(arguments.take("options")?)?;
        let header_ids = arguments.list::<u32>("headers")?;
        let headers = objects.all_of(api, &header_ids)?;
        let names: Vec<Vec<u8>> = arguments.list("names")?;
        let names = names.into_iter().map(c_string).collect::<Result<Vec<_>, _>>()?;
        if names.len() != headers.len() {
            return Err(Code::INVALID_VALUE.into());
        }
        Ok(Self { compile, devices, options, headers, header_ids, names })
    }

    /// Runs the build and returns the driver's code. With `end`, the driver reports the end of the build there, before or after
    /// it returns.
    fn run(&self, program: &Object<cl_program>, end: Option<&BuildEnd>) -> Code {
        let (count, devices, options) = (self.devices.len() as u32, pointer(&self.devices), self.options.as_ptr());
        let (callback, data) = build_notify(end);
        if !self.compile {
            return driver!(program.api, clBuildProgram(program.handle, count, devices, options, callback, data));
        }
        let names: Vec<*const c_char> = self.names.iter().map(|name| name.as_ptr()).collect();
        driver!(
            program.api,
            clCompileProgram(
                program.handle,
                count,
                devices,
                options,
                self.headers.len() as u32,
                pointer(&self.headers),
                pointer(&names),
                callback,
                data,
            )
        )
    }

    /// Returns the code of a build whose end the driver has reported: what a build without a callback would have returned.
    fn outcome(&self, program: &Object<cl_program>) -> Code {
        let get = |parameter, size, out, needed| {
            driver!(program.api, clGetProgramInfo(program.handle, parameter, size, out, needed))
        };
        let all = || value(|size, out, needed| get(PROGRAM_DEVICES, size, out, needed)).unwrap_or_default();
        let devices = match self.devices.is_empty() {
            false => self.devices.clone(),
            true => all().chunks_exact(8).filter_map(handle).collect(),
        };
        let failed = |device: &cl_device_id| {
            let (handle, null) = (program.handle, ptr::null_mut());
            let status = ask::<i32>(|size, out| {
                driver!(program.api, clGetProgramBuildInfo(handle, *device, PROGRAM_BUILD_STATUS, size, out, null))
            });
            status.is_ok_and(|status| status == BUILD_ERROR)
        };
        match (devices.iter().any(failed), self.compile) {
            (false, _) => Code::SUCCESS,
            (true, false) => Code::BUILD_PROGRAM_FAILURE,
            (true, true) => Code::COMPILE_PROGRAM_FAILURE,
        }
    }
}

/// Reads a device from a list that a driver returned.
fn handle(bytes: &[u8]) -> Option<cl_device_id> {
    let value = u64::from_le_bytes(*bytes.first_chunk()?) as usize;
    Some(cl_device_id(ptr::with_exposed_provenance_mut(value)))
}

/// Returns the callback and user data for the driver to report the end of a build.
fn build_notify(end: Option<&BuildEnd>) -> (cl_program_notify, *mut void) {
    (end.is_some().then_some(notify::build as _), end.map_or(ptr::null_mut(), BuildEnd::data))
}

/// Builds or compiles. With a token the driver gets a callback too, so that it behaves as it does natively. The reply holds its
/// code, and whether it has called already. An upcall reports an end that comes later.
pub(crate) fn kdclBuild(
    session: &mut Session,
    head: &FrameHead,
    message: message::kdclBuild<'_>,
) -> Result<ExecutorCall<message::kdclBuildReply>, Fault> {
    let program: Object<cl_program> = session.shared.objects.get(message.program)?;
    let bytes = session.bytes(head, message.staged, message.arguments)?;
    let build = Build::read(session, program.api, Arguments::new("kdclBuild", &bytes))?;
    if message.staged != 0 {
        session.journal.attach(&bytes);
    }
    let outcome = session.journal.attach_build(&build.header_ids);
    let (token, id) = (message.token, message.program);
    let mut held = session.shared.objects.hold_all::<cl_program>(&build.header_ids)?;
    held.push(session.shared.objects.hold::<cl_program>(message.program)?);
    Ok(Box::new(move |shared| {
        let end = (token != 0).then(BuildEnd::new);
        let code = build.run(&program, end.as_ref());
        let called_back = end.as_ref().is_none_or(BuildEnd::has_come);
        if token == 0 || called_back || code != Code::SUCCESS {
            outcome.store(code.0, Ordering::Release);
            let counted = if code == Code::SUCCESS { shared.count_program(id, &program) } else { Ok(()) };
            drop(held);
            if token == 0 {
                code.ok()?;
            }
            counted?;
            return Ok(message::kdclBuildReply { code: code.0, called_back: called_back.into() });
        }
        let task: ExecutorTask = ManuallyDrop::new(Box::new(move |shared: &Arc<OpenclSessionShared>| {
            end.into_iter().for_each(BuildEnd::wait);
            outcome.store(build.outcome(&program).0, Ordering::Release);
            // The program has its answer already. Beyond the limit it can allocate no more.
            let _ = shared.count_program(id, &program);
            drop(held);
            shared.upcalls.push(PendingCallback { token, status: 0, text: Vec::new() });
        }));
        run_apart::<OpenCl>("build", shared, task).map_err(|_| Code::OUT_OF_RESOURCES)?;
        Ok(message::kdclBuildReply { code: code.0, called_back: 0 })
    }))
}

/// Links a program from devices, options and programs. A driver may fail and still make a program, for its log. With `notified`,
/// the driver gets a callback, and the reply waits for it if the link returned a program.
pub(crate) fn kdclLink(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclLink<'_>,
) -> Result<ExecutorCall<message::kdclLinkReply>, Fault> {
    let context: Object<cl_context> = session.shared.objects.get(message.context)?;
    let made_of = session.shared.objects.hold::<cl_context>(message.context)?;
    let mut arguments = Arguments::new("kdclLink", message.arguments);
    let ids = arguments.list::<u32>("devices")?;
    let devices: Vec<cl_device_id> = session.shared.objects.all_of(context.api, &ids)?;
    let options = c_string(arguments.take("options")?)?;
    let header_ids = arguments.list::<u32>("programs")?;
    let headers: Vec<cl_program> = session.shared.objects.all_of(context.api, &header_ids)?;
    let (id, notified) = (message.program, message.notified != 0);
    let outcome = session.journal.attach_link(&header_ids);
    let held = session.shared.objects.hold_all::<cl_program>(&header_ids)?;
    let build = Build { compile: false, devices, options, headers, header_ids, names: Vec::new() };
    Ok(Box::new(move |shared| {
        let end = notified.then(|| BuildEnd::keeping(context.api));
        let (mut handle, code) = link(&context, &build, end.as_ref());
        let (returned, mut called_back) = (handle != cl_program::NULL, 0);
        if let Some(end) = end {
            if returned && !end.has_come() {
                end.wait_for();
            }
            called_back = end.has_come().into();
            // A failed link may have a program, for its log.
            let program = end.take_program();
            match returned {
                false => handle = program,
                true if program != cl_program::NULL => drop(driver!(context.api, clReleaseProgram(program))),
                true => {}
            }
        }
        outcome.store(code.0, Ordering::Release);
        drop(held);
        if handle != cl_program::NULL {
            let program = Object { handle, api: context.api, size: 0 };
            shared.objects.set(id, program, vec![made_of]).map_err(|_| Code::OUT_OF_RESOURCES)?;
            // A program that was released meanwhile is not charged.
            if let (Code::SUCCESS, Ok(_held)) = (code, shared.objects.hold::<cl_program>(id)) {
                shared.count_program(id, &program).inspect_err(|code| {
                    outcome.store(code.0, Ordering::Release);
                    drop(shared.objects.take(id));
                })?;
            }
        } else if called_back == 0 {
            code.ok()?;
        }
        Ok(message::kdclLinkReply { made: code.0.cast_unsigned(), called_back, returned: returned.into() })
    }))
}

fn link(context: &Object<cl_context>, build: &Build, end: Option<&BuildEnd>) -> (cl_program, Code) {
    let Some(link) = context.api.clLinkProgram else { return (cl_program::NULL, Code::INVALID_OPERATION) };
    let (mut code, (callback, data)) = (0, build_notify(end));
    // SAFETY: handles come from the driver, lists have the stated lengths, the code is a local.
    let handle = unsafe {
        link(
            context.handle,
            build.devices.len() as u32,
            pointer(&build.devices),
            build.options.as_ptr(),
            build.headers.len() as u32,
            pointer(&build.headers),
            callback,
            data,
            &raw mut code,
        )
    };
    (handle, Code(code))
}

/// Sets the value of a specialization constant.
pub(crate) fn kdclSpecialize(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclSpecialize<'_>,
) -> Result<message::kdclSpecializeReply, Fault> {
    let program: Object<cl_program> = session.shared.objects.get(message.program)?;
    let (size, value) = (message.value.len(), pointer(message.value).cast());
    driver!(program.api, clSetProgramSpecializationConstant(program.handle, message.number, size, value)).ok()?;
    Ok(message::kdclSpecializeReply {})
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use katydid_session_core::{Capture, Usage};
    use katydid_transport::{LinkError, OutgoingReply, Replier};
    use katydid_wire::codec::{Message, Reply};
    use katydid_wire::opencl::{id, kind, list};

    use super::*;
    use crate::tests::empty_table;

    /// The callback and user data that a driver received for the end of a build.
    static NOTIFY: Mutex<Option<(unsafe extern "C" fn(cl_program, *mut void), usize)>> = Mutex::new(None);

    unsafe extern "C" fn build_later(
        _: cl_program,
        _: u32,
        _: *const cl_device_id,
        _: *const c_char,
        notify: cl_program_notify,
        data: *mut void,
    ) -> i32 {
        *NOTIFY.lock().unwrap() = notify.map(|notify| (notify, data.addr()));
        0
    }

    unsafe extern "C" fn refuse(
        program: cl_program,
        _: u32,
        _: *const cl_device_id,
        _: *const c_char,
        notify: cl_program_notify,
        data: *mut void,
    ) -> i32 {
        // SAFETY: the session's function, with its data.
        unsafe { notify.unwrap()(program, data) };
        Code::INVALID_BUILD_OPTIONS.0
    }

    /// Records the payloads of replies.
    #[derive(Default)]
    struct Payloads(Mutex<Vec<Vec<u8>>>);

    impl Replier for Payloads {
        fn reply(&self, answer: &OutgoingReply<'_>) -> Result<(), LinkError> {
            self.0.lock().unwrap().push([answer.payload, answer.tail].concat());
            Ok(())
        }
    }

    /// Returns a session with a program whose driver builds with this function, and the answer to a build with a callback.
    fn build_with(
        build: unsafe extern "C" fn(
            cl_program,
            u32,
            *const cl_device_id,
            *const c_char,
            cl_program_notify,
            *mut void,
        ) -> i32,
    ) -> (Session, message::kdclBuildReply) {
        let mut api = empty_table();
        api.clBuildProgram = Some(build);
        let (mut session, payloads) = session_with_payloads();
        let program = id(kind::PROGRAM, 1);
        let object = Object { handle: cl_program::NULL, api: Box::leak(Box::new(api)), size: 0 };
        session.shared.objects.set(program, object, Vec::new()).unwrap();
        let mut arguments = 0u32.to_le_bytes().to_vec();
        list::put::<u32>(&mut arguments, &[]);
        list::put::<u8>(&mut arguments, &[]);
        list::put::<u32>(&mut arguments, &[]);
        list::put::<Vec<u8>>(&mut arguments, &[]);
        let message = message::kdclBuild { program, token: 9, staged: 0, arguments: &arguments };
        let reply = reply_to(&mut session, &payloads, &message);
        (session, message::kdclBuildReply::decode(&reply).unwrap())
    }

    /// Returns a session, and the store of its replies.
    fn session_with_payloads() -> (Session, Arc<Payloads>) {
        let payloads = Arc::new(Payloads::default());
        let replier = Arc::clone(&payloads) as Arc<dyn Replier>;
        (Session::new(Vec::new(), replier, Arc::new(Usage::new(None)), Capture::default()).unwrap(), payloads)
    }

    /// Returns the payload of the reply to a message.
    fn reply_to<M: Message>(session: &mut Session, payloads: &Payloads, message: &M) -> Vec<u8> {
        let mut payload = Vec::new();
        message.encode(&mut payload);
        payload.extend_from_slice(message.tail());
        let head = FrameHead { opcode: M::OPCODE, wants_reply: true, thread: 1, context: 0, sequence: 1 };
        session.execute(&head, &payload).unwrap();
        loop {
            if let Some(payload) = payloads.0.lock().unwrap().pop() {
                return payload;
            }
            std::thread::yield_now();
        }
    }

    unsafe extern "C" fn retain(_: cl_program) -> i32 {
        0
    }

    /// Fails to link, passes a program to the callback, and returns it if the options are not empty.
    unsafe extern "C" fn fail_to_link(
        _: cl_context,
        _: u32,
        _: *const cl_device_id,
        options: *const c_char,
        _: u32,
        _: *const cl_program,
        notify: cl_program_notify,
        data: *mut void,
        code: *mut i32,
    ) -> cl_program {
        let program = cl_program(ptr::without_provenance_mut(64));
        // SAFETY: the session's function, with its data; a C string and a place for a code.
        unsafe {
            notify.unwrap()(program, data);
            *code = Code::LINK_PROGRAM_FAILURE.0;
            if *options == 0 { cl_program::NULL } else { program }
        }
    }

    #[test]
    fn a_failed_link_says_whether_the_driver_returned_the_program_or_named_it_to_the_callback() {
        let mut api = empty_table();
        api.clLinkProgram = Some(fail_to_link);
        api.clRetainProgram = Some(retain);
        api.clReleaseProgram = Some(retain);
        let api = Box::leak(Box::new(api));
        for (number, options, returned) in [(1, &b""[..], 0), (2, b"-x", 1)] {
            let (mut session, payloads) = session_with_payloads();
            let (context, program) = (id(kind::CONTEXT, number), id(kind::PROGRAM, number));
            session.shared.objects.set(context, Object { handle: cl_context::NULL, api, size: 0 }, Vec::new()).unwrap();
            let mut arguments = Vec::new();
            list::put::<u32>(&mut arguments, &[]);
            list::put::<u8>(&mut arguments, options);
            list::put::<u32>(&mut arguments, &[]);
            let message = message::kdclLink { program, context, notified: 1, arguments: &arguments };
            let reply = reply_to(&mut session, &payloads, &message);
            let reply = message::kdclLinkReply::decode(&reply).unwrap();
            let expected = (Code::LINK_PROGRAM_FAILURE.0.cast_unsigned(), 1, returned);
            assert_eq!((reply.made, reply.called_back, reply.returned), expected);
            assert!(session.shared.objects.get::<cl_program>(program).is_ok(), "its log can be asked for");
        }
    }

    #[test]
    fn end_of_a_build_is_reported_when_the_driver_reports_it() {
        let (session, reply) = build_with(build_later);
        assert_eq!((reply.code, reply.called_back), (0, 0));
        assert!(session.shared.upcalls.pending().is_empty() && session.shared.calls.in_flight() > 0, "it is under way");
        let (notify, data) = NOTIFY.lock().unwrap().take().unwrap();
        // SAFETY: as the driver does.
        unsafe { notify(cl_program::NULL, ptr::without_provenance_mut(data)) };
        while session.shared.calls.in_flight() > 0 {
            std::thread::yield_now();
        }
        let due: Vec<u64> = session.shared.upcalls.pending().iter().map(|due| due.token).collect();
        assert_eq!(due, [9]);
        // SAFETY: a second call finds no entry, and does nothing.
        unsafe { notify(cl_program::NULL, ptr::without_provenance_mut(data)) };
    }

    #[test]
    fn build_code_is_the_drivers_and_a_reported_end_is_delivered_at_once() {
        let (session, reply) = build_with(refuse);
        assert_eq!((reply.code, reply.called_back), (Code::INVALID_BUILD_OPTIONS.0, 1));
        assert!(session.shared.upcalls.pending().is_empty());
    }
}
