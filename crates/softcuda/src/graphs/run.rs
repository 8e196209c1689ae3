//! Runs the tasks of a launch: a chain on the thread of its stream, branches on their own threads.
//!
//! After a task, the same thread goes on with the first task that is ready, and each further one gets a thread. So tasks that
//! wait for each other outside of the graph's order never block each other.

#![expect(unsafe_code, reason = "calls functions of the program")]

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, Scope, scope};

use katydid_cuda_sys::{CUDA_MEMSET_NODE_PARAMS, CUresult, conditional_type};
use katydid_graph::Host;

use super::prepared::fill_size;
use super::tasks::{Action, NodeTask, Tasks};
use crate::code::launch;
use crate::context::state::Context;
use crate::copy::transfer::{self, AccessRange};
use crate::ffi::Outcome;
use crate::memory::space::Access;

/// Runs a launch to its end. A failure skips the rest, but events are still reached.
pub(super) fn tasks(tasks: &Tasks, context: &Context) -> Outcome {
    if tasks.is_chain {
        return chain(tasks, context);
    }
    let missing = tasks.nodes.iter().map(|task| AtomicUsize::new(task.dependency_count)).collect();
    let walk = ParallelRun { tasks, context, missing, failure: Mutex::new(None) };
    let roots: Vec<usize> = tasks.order.iter().copied().filter(|at| tasks.nodes[*at].dependency_count == 0).collect();
    scope(|scope| walk.go_on(scope, roots));
    let failure = *walk.failure.lock().unwrap_or_else(PoisonError::into_inner);
    failure.map_or(Ok(()), Err)
}

fn chain(tasks: &Tasks, context: &Context) -> Outcome {
    for (done, at) in tasks.order.iter().enumerate() {
        if let Err(code) = perform(&tasks.nodes[*at], context) {
            context.fail(code);
            for skipped in &tasks.order[done..] {
                let _ = skip(&tasks.nodes[*skipped]);
            }
            return Err(code);
        }
    }
    Ok(())
}

/// A launch whose tasks run in parallel.
struct ParallelRun<'run> {
    tasks: &'run Tasks,
    context: &'run Context,
    /// For each task, how many others it still waits for.
    missing: Vec<AtomicUsize>,
    failure: Mutex<Option<CUresult>>,
}

impl<'run> ParallelRun<'run> {
    /// Runs tasks that are ready, the first here, the others on new threads; then those that become ready.
    fn go_on<'scope>(&'scope self, scope: &'scope Scope<'scope, 'run>, mut ready: Vec<usize>) {
        while !ready.is_empty() {
            let at = ready.remove(0);
            let mut chain = vec![at];
            for other in ready.drain(..) {
                let started = Builder::new().spawn_scoped(scope, move || self.go_on(scope, vec![other]));
                // Without another thread, this one runs all of them in turn.
                if started.is_err() {
                    chain.push(other);
                }
            }
            for at in chain {
                self.run_task(at);
                ready.extend(self.freed(at));
            }
        }
    }

    fn run_task(&self, at: usize) {
        let task = &self.tasks.nodes[at];
        let outcome = if self.has_failed() { skip(task) } else { perform(task, self.context) };
        if let Err(code) = outcome {
            self.context.fail(code);
            self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(code);
            let _ = skip(task);
        }
    }

    fn has_failed(&self) -> bool {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Returns the tasks that waited only for this one.
    fn freed(&self, at: usize) -> impl Iterator<Item = usize> {
        let dependents = self.tasks.nodes[at].dependents.iter().copied();
        dependents.filter(|next| self.missing[*next].fetch_sub(1, Ordering::AcqRel) == 1)
    }
}

/// Does what must happen even if the launch has failed.
fn skip(task: &NodeTask) -> Outcome {
    if let Action::Record(mark) = &task.action {
        mark.reach();
    }
    task.inner.iter().try_for_each(Tasks::give_up)
}

/// Runs one task, and returns when it is done.
fn perform(task: &NodeTask, context: &Context) -> Outcome {
    context.healthy()?;
    match &task.action {
        Action::Kernel(context, launch) => launch::run(context, launch.as_ref().clone())?,
        Action::Copy(context, volume) => volume.run(context)?,
        Action::Fill(context, fill) => fill_rows(context, fill)?,
        Action::Host(host) => call(context, *host),
        Action::Child => task.inner.iter().try_for_each(|inner| tasks(inner, context))?,
        Action::Record(mark) => mark.reach(),
        Action::Wait(mark) => mark.iter().for_each(|mark| mark.wait()),
        Action::Batch(context, operations) => operations.iter().try_for_each(|one| one.perform(context))?,
        Action::Conditional(condition, kind) => conditional(&task.inner, || condition.get(), *kind, context)?,
        Action::Nothing => {}
    }
    Ok(())
}

/// Runs the body that the value selects, or the body of a loop while the value is not 0.
fn conditional(bodies: &[Tasks], value: impl Fn() -> u32, kind: u32, context: &Context) -> Outcome {
    let body = |at: usize| bodies.get(at).map_or(Ok(()), |body| tasks(body, context));
    match kind {
        conditional_type::WHILE => {
            while value() != 0 {
                context.healthy()?;
                body(0)?;
            }
            Ok(())
        }
        conditional_type::SWITCH => body(value() as usize),
        _ => body(usize::from(value() == 0)),
    }
}

fn fill_rows(context: &Context, fill: &CUDA_MEMSET_NODE_PARAMS) -> Outcome {
    let span = AccessRange::at_execution(context, fill.dst, fill_size(fill)?, Access::ReadWrite, false);
    let pattern = fill.value.to_le_bytes();
    let element = fill.elementSize as usize;
    let width = fill.width as u64 * element as u64;
    transfer::fill(&span, &pattern[..element.min(4)], width, fill.height as u64, fill.pitch as u64)
}

fn call(context: &Context, host: Host) {
    context.output.flush();
    // SAFETY: the address of a function of the program with this signature, registered for this data.
    unsafe {
        let function = std::mem::transmute::<usize, unsafe extern "C" fn(*mut c_void)>(host.function);
        function(std::ptr::with_exposed_provenance_mut(host.data));
    }
}
