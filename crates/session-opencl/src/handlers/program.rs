//! Programs: made, built, compiled, linked. A build may take long, so it runs on the thread of the program that asked,
//! or in a thread of its own when its end is told by a callback.

#![expect(unsafe_code, reason = "calls the driver")]
#![allow(non_snake_case, reason = "handlers carry the names of their messages")]

use std::ffi::{CString, c_char};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use katydid_opencl_sys::{Code, Dispatch, cl_context, cl_device_id, cl_program};
use katydid_wire::frame::FrameHead;
use katydid_wire::opencl::{message, program as form};

use crate::arguments::Arguments;
use crate::executor::apart;
use crate::fault::Fault;
use crate::handlers::{driver, make, pointer};
use crate::objects::Object;
use crate::session::{Job, Session};
use crate::shared::Shared;
use crate::upcalls::Due;

/// No code of a driver's.
const UNSAID: i32 = i32::MAX;

/// A C string out of bytes of a message.
fn c_string(bytes: Vec<u8>) -> Result<CString, Code> {
    CString::new(bytes).map_err(|_| Code::INVALID_VALUE)
}

/// A program out of text, binaries, intermediate language, or names. What a driver says of binaries that it refuses is the thread's
/// long answer.
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
            let (text, length) = (bytes.as_ptr().cast::<c_char>(), bytes.len());
            // An empty text has an address too, which no driver reads.
            make!(context.api, clCreateProgramWithSource(context.handle, 1, &raw const text, &raw const length))?
        }
        form::BINARY => {
            let (made, told) = binary(session, &context, arguments)?;
            status = told;
            made.inspect_err(|_| drop(session.blobs.insert(head.thread, status.clone())))?
        }
        form::IL => make!(context.api, clCreateProgramWithIL(context.handle, bytes.as_ptr().cast(), bytes.len()))?,
        _ => {
            let devices: Vec<cl_device_id> = session.shared.objects.all(&arguments.list::<u32>("devices")?)?;
            let names = c_string(arguments.rest().to_vec())?;
            let count = devices.len() as u32;
            make!(
                context.api,
                clCreateProgramWithBuiltInKernels(context.handle, count, pointer(&devices), names.as_ptr())
            )?
        }
    };
    session.shared.objects.set(message.program, Object { handle, api: context.api, size: 0 })?;
    Ok(message::kdclProgramReply { status })
}

/// Devices, lengths, bytes. With the program, what the driver says of each binary.
fn binary(
    session: &Session,
    context: &Object<cl_context>,
    mut arguments: Arguments<'_>,
) -> Result<(Result<cl_program, Code>, Vec<u8>), Fault> {
    let devices: Vec<cl_device_id> = session.shared.objects.all(&arguments.list::<u32>("devices")?)?;
    let lengths: Vec<usize> = arguments.list::<u64>("lengths")?.into_iter().map(|length| length as usize).collect();
    let mut left = arguments.rest();
    let mut places = Vec::new();
    for length in &lengths {
        let (binary, rest) = left.split_at_checked(*length).ok_or(Code::INVALID_VALUE)?;
        places.push(binary.as_ptr());
        left = rest;
    }
    if places.len() != devices.len() {
        return Err(Code::INVALID_VALUE.into());
    }
    let mut codes = vec![UNSAID; devices.len()];
    let made = make!(
        context.api,
        clCreateProgramWithBinary(
            context.handle,
            devices.len() as u32,
            pointer(&devices),
            lengths.as_ptr(),
            places.as_ptr(),
            codes.as_mut_ptr(),
        )
    );
    let of_all = made.err().unwrap_or(Code::SUCCESS).0;
    let told = codes.into_iter().map(|code| if code == UNSAID { of_all } else { code });
    Ok((made, told.flat_map(i32::to_le_bytes).collect()))
}

/// What a build is made of, as the driver takes it.
struct Build {
    compile: bool,
    devices: Vec<cl_device_id>,
    options: CString,
    headers: Vec<cl_program>,
    /// The headers by their ids.
    header_ids: Vec<u32>,
    names: Vec<CString>,
}

impl Build {
    /// What to do (0 build, 1 compile), devices, options, headers and their names.
    fn read(session: &Session, mut arguments: Arguments<'_>) -> Result<Self, Fault> {
        let objects = &session.shared.objects;
        let compile = arguments.take::<u32>("kind")? != 0;
        let devices = objects.all(&arguments.list::<u32>("devices")?)?;
        let options = c_string(arguments.take("options")?)?;
        let header_ids = arguments.list::<u32>("headers")?;
        let headers = objects.all(&header_ids)?;
        let names: Vec<Vec<u8>> = arguments.list("names")?;
        let names = names.into_iter().map(c_string).collect::<Result<Vec<_>, _>>()?;
        if names.len() != headers.len() {
            return Err(Code::INVALID_VALUE.into());
        }
        Ok(Self { compile, devices, options, headers, header_ids, names })
    }

    fn run(&self, program: &Object<cl_program>) -> Code {
        let (count, devices, options) = (self.devices.len() as u32, pointer(&self.devices), self.options.as_ptr());
        if !self.compile {
            return driver!(
                program.api,
                clBuildProgram(program.handle, count, devices, options, None, ptr::null_mut())
            );
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
                None,
                ptr::null_mut(),
            )
        )
    }
}

/// Programs that a build uses, held until its end: the program may let go of them meanwhile.
struct Held {
    api: &'static Dispatch,
    programs: Vec<cl_program>,
}

impl Held {
    fn new(api: &'static Dispatch, programs: impl Iterator<Item = cl_program>) -> Result<Self, Code> {
        let mut held = Self { api, programs: Vec::new() };
        for program in programs {
            driver!(api, clRetainProgram(program)).ok()?;
            held.programs.push(program);
        }
        Ok(held)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for program in &self.programs {
            driver!(self.api, clReleaseProgram(*program));
        }
    }
}

/// Builds or compiles; with a token, the end is told by an upcall and the call returns at once.
pub(crate) fn kdclBuild(
    session: &mut Session,
    head: &FrameHead,
    message: message::kdclBuild<'_>,
) -> Result<Job<message::kdclBuildReply>, Fault> {
    let program: Object<cl_program> = session.shared.objects.get(message.program)?;
    let bytes = session.bytes(head, message.staged, message.arguments)?;
    let build = Build::read(session, Arguments::new("kdclBuild", &bytes))?;
    if message.staged != 0 {
        session.journal.attach(&bytes);
    }
    let outcome = session.journal.attach_build(&build.header_ids);
    let token = message.token;
    let held = Held::new(program.api, build.headers.iter().copied().chain([program.handle]))?;
    let work = move || {
        let code = build.run(&program);
        outcome.store(code.0, Ordering::Release);
        drop(held);
        code
    };
    Ok(Box::new(move |shared| {
        if token == 0 {
            return work().ok().map(|()| message::kdclBuildReply {});
        }
        let task = Box::new(move |shared: &Arc<Shared>| {
            let status = work().0;
            shared.upcalls.push(Due { token, status, text: Vec::new() });
        });
        apart(shared, task).map_err(|_| Code::OUT_OF_RESOURCES)?;
        Ok(message::kdclBuildReply {})
    }))
}

/// Links: devices, options, programs. A driver may fail and make a program all the same, for its log.
pub(crate) fn kdclLink(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclLink<'_>,
) -> Result<Job<message::kdclLinkReply>, Fault> {
    let context: Object<cl_context> = session.shared.objects.get(message.context)?;
    let mut arguments = Arguments::new("kdclLink", message.arguments);
    let devices: Vec<cl_device_id> = session.shared.objects.all(&arguments.list::<u32>("devices")?)?;
    let options = c_string(arguments.take("options")?)?;
    let header_ids = arguments.list::<u32>("programs")?;
    let headers: Vec<cl_program> = session.shared.objects.all(&header_ids)?;
    let id = message.program;
    let outcome = session.journal.attach_link(&header_ids);
    let build = Build { compile: false, devices, options, headers, header_ids, names: Vec::new() };
    let held = Held::new(context.api, build.headers.iter().copied())?;
    Ok(Box::new(move |shared| {
        let (handle, code) = link(&context, &build);
        outcome.store(code.0, Ordering::Release);
        drop(held);
        if handle != cl_program::NULL {
            shared.objects.set(id, Object { handle, api: context.api, size: 0 }).map_err(|_| Code::OUT_OF_RESOURCES)?;
        } else {
            code.ok()?;
        }
        Ok(message::kdclLinkReply { made: code.0.cast_unsigned() })
    }))
}

fn link(context: &Object<cl_context>, build: &Build) -> (cl_program, Code) {
    let Some(link) = context.api.clLinkProgram else { return (cl_program::NULL, Code::INVALID_OPERATION) };
    let mut code = 0;
    // SAFETY: handles come from the driver, lists are as long as said, the code is a local.
    let handle = unsafe {
        link(
            context.handle,
            build.devices.len() as u32,
            pointer(&build.devices),
            build.options.as_ptr(),
            build.headers.len() as u32,
            pointer(&build.headers),
            None,
            ptr::null_mut(),
            &raw mut code,
        )
    };
    (handle, Code(code))
}

/// The value of a specialisation constant.
pub(crate) fn kdclSpecialize(
    session: &mut Session,
    _: &FrameHead,
    message: message::kdclSpecialize<'_>,
) -> Result<message::kdclSpecializeReply, Fault> {
    let program: Object<cl_program> = session.shared.objects.get(message.program)?;
    let (size, value) = (message.value.len(), message.value.as_ptr().cast());
    driver!(program.api, clSetProgramSpecializationConstant(program.handle, message.number, size, value)).ok()?;
    Ok(message::kdclSpecializeReply {})
}
