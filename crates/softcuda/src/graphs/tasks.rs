//! The tasks of one launch: a plan with all its objects looked up.

use std::collections::HashMap;
use std::sync::Arc;

use katydid_cuda_sys::{CUDA_MEMSET_NODE_PARAMS, CUevent, CUresult};
use katydid_graph::{Batch, Host, Kernel, Params, Plan, PlanStep};
use katydid_ptx_exec::Launch;

use super::condition::{self, Condition};
use super::prepared::{PreparedKernel, context_of, fill_span, of_launch};
use super::volume::Volume;
use crate::code::launch::{LaunchGeometry, is_cooperative};
use crate::ffi::Outcome;
use crate::sync::event::{self, EventMark};
use crate::sync::memory_word::Operation;
use crate::sync::stream::LiveContext;

/// The work of a task.
pub(super) enum Action {
    Kernel(Arc<LiveContext>, Box<Launch>),
    Copy(Arc<LiveContext>, Volume),
    Fill(Arc<LiveContext>, CUDA_MEMSET_NODE_PARAMS),
    Host(Host),
    Child,
    Record(Arc<EventMark>),
    Wait(Option<Arc<EventMark>>),
    Batch(Arc<LiveContext>, Vec<Operation>),
    Conditional(Arc<Condition>, u32),
    /// Order only: empty and disabled nodes, and memory, which lives as long as the graph.
    Nothing,
}

/// One node of a launch, ready to run.
pub(super) struct NodeTask {
    pub(super) action: Action,
    /// Number of tasks that it comes after.
    pub(super) dependency_count: usize,
    /// Tasks that come after it.
    pub(super) dependents: Vec<usize>,
    pub(super) inner: Vec<Tasks>,
}

/// The tasks of a plan, at the positions of its steps.
pub(super) struct Tasks {
    pub(super) nodes: Vec<NodeTask>,
    /// An order that keeps all dependencies.
    pub(super) order: Vec<usize>,
    /// No two tasks may run at a time.
    pub(super) is_chain: bool,
    /// Keeps memory and parameters until the launch is done.
    _plan: Option<Arc<Plan>>,
}

/// Marks that events have after the records so far.
type Marks = HashMap<CUevent, Option<Arc<EventMark>>>;

impl Tasks {
    /// Checks that all objects of a plan exist.
    pub(super) fn check(plan: &Plan) -> Outcome {
        let names = |step: &&PlanStep| match &step.params {
            Params::RecordEvent(event) | Params::WaitEvent(event) => event::resolve(*event).map(drop),
            Params::Kernel(kernel) => context_of(kernel.context).map(drop),
            _ => Ok(()),
        };
        plan.flat().iter().try_for_each(names)
    }

    /// Makes the tasks of a launch. Events that it records stand for it from now on.
    pub(super) fn new(plan: &Arc<Plan>) -> Outcome<Self> {
        let mut tasks = Self::build(plan, &mut Marks::new())?;
        tasks.begin();
        tasks._plan = Some(Arc::clone(plan));
        Ok(tasks)
    }

    fn build(plan: &Plan, marks: &mut Marks) -> Outcome<Self> {
        let mut tasks: Vec<Option<NodeTask>> = plan.steps.iter().map(|_| None).collect();
        // The order keeps dependencies, so that a wait finds the record before it.
        for at in &plan.order {
            let step = &plan.steps[*at];
            let inner = step.inner.iter().map(|plan| Self::build(plan, marks)).collect::<Outcome<_>>()?;
            let (action, dependency_count) = (action(step, marks)?, step.dependencies.len());
            tasks[*at] = Some(NodeTask { action, dependency_count, dependents: Vec::new(), inner });
        }
        let mut tasks: Vec<NodeTask> = tasks.into_iter().flatten().collect();
        for (at, step) in plan.steps.iter().enumerate() {
            step.dependencies.iter().for_each(|(dependency, _)| tasks[*dependency].dependents.push(at));
        }
        let is_chain = plan.order.windows(2).all(|pair| tasks[pair[0]].dependents.contains(&pair[1]));
        Ok(Self { nodes: tasks, order: plan.order.clone(), is_chain, _plan: None })
    }

    /// Sets conditions to their default values.
    fn begin(&self) {
        for task in &self.nodes {
            if let Action::Conditional(condition, _) = &task.action {
                condition.begin();
            }
            task.inner.iter().for_each(Self::begin);
        }
    }

    /// Skips a launch whose context has failed, and releases waiters for its events.
    pub(super) fn give_up(&self) -> Outcome {
        for task in &self.nodes {
            if let Action::Record(mark) = &task.action {
                mark.reach();
            }
            task.inner.iter().try_for_each(Self::give_up)?;
        }
        Ok(())
    }
}

fn action(step: &PlanStep, marks: &mut Marks) -> Outcome<Action> {
    if !step.is_enabled {
        return Ok(Action::Nothing);
    }
    Ok(match &step.params {
        Params::Kernel(kernel) => Action::Kernel(context_of(kernel.context)?, Box::new(launch(kernel)?)),
        Params::Memcpy(it) => {
            let context = context_of(it.context)?;
            let volume = Volume::new(&context, &it.copy)?;
            Action::Copy(context, volume)
        }
        Params::Memset(it) => {
            let context = context_of(it.context)?;
            fill_span(&context, &it.fill)?;
            Action::Fill(context, it.fill)
        }
        Params::Host(host) => Action::Host(*host),
        Params::Child(_) => Action::Child,
        Params::RecordEvent(event) => {
            let mark = event::resolve(*event)?.renew();
            marks.insert(*event, Some(Arc::clone(&mark)));
            Action::Record(mark)
        }
        Params::WaitEvent(event) => match marks.get(event) {
            Some(mark) => Action::Wait(mark.clone()),
            None => Action::Wait(event::resolve(*event)?.mark()),
        },
        Params::Batch(batch) => batch_action(batch)?,
        Params::Conditional(it) => {
            let condition = condition::find(it.handle).ok_or(CUresult::ERROR_INVALID_VALUE)?;
            Action::Conditional(condition, it.kind)
        }
        Params::Empty | Params::MemAlloc(_) | Params::MemFree(_) => Action::Nothing,
    })
}

fn batch_action(batch: &Batch) -> Outcome<Action> {
    let context = context_of(batch.context)?;
    let operations = batch.operations.iter().map(|it| Operation::of_batch(&context, it)).collect::<Outcome<_>>()?;
    Ok(Action::Batch(context, operations))
}

fn launch(kernel: &Kernel) -> Outcome<Launch> {
    let prepared = kernel.code.0.downcast_ref::<PreparedKernel>().ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    let params = kernel.arguments.bytes().to_vec();
    // A program can set attributes on the node later.
    let shape = LaunchGeometry { cooperative: is_cooperative(&of_launch(&kernel.attributes)), ..prepared.shape };
    Ok(shape.launch(Arc::clone(&prepared.kernel), params))
}
