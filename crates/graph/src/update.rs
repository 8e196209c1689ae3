//! Changes to an executable graph, and how another graph is matched with it.
//!
//! Two graphs match if their nodes without successors match in the order of their creation, and for each pair of nodes their
//! dependencies, in the order in which they were added.

use std::collections::HashMap;

use katydid_cuda_sys::{CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, update_result as result};

use crate::handles::NodeId;
use crate::outcome::Outcome;
use crate::params::Params;
use crate::plan::{Plan, PlanStep};

/// Why an update is refused: the number for the program, and the position of the node in the new graph.
pub(crate) type Refusal = (u32, Option<u32>);

/// Kinds of memory on both sides of a copy.
pub(crate) type Kinds<'a> = &'a dyn Fn(&CUDA_MEMCPY3D, usize) -> Option<(u32, u32)>;

/// Returns, for each step of the new plan, the position of the old one that it replaces.
pub(crate) fn pair(old: &Plan, new: &Plan) -> Result<Vec<usize>, Refusal> {
    if old.steps.len() != new.steps.len() {
        return Err((result::TOPOLOGY_CHANGED, None));
    }
    let (sinks, fresh) = (sinks(old), sinks(new));
    if sinks.len() != fresh.len() {
        let first = fresh.first().or(sinks.first()).and_then(|at| new.steps.get(*at)).map(|step| step.node);
        return Err((result::TOPOLOGY_CHANGED, first));
    }
    let mut pairs: HashMap<usize, usize> = HashMap::new();
    let mut open: Vec<(usize, usize)> = sinks.into_iter().zip(fresh).collect();
    while let Some((old_step, new_step)) = open.pop() {
        let (was, is) = (&old.steps[old_step], &new.steps[new_step]);
        match pairs.insert(new_step, old_step) {
            Some(paired) if paired == old_step => continue,
            Some(_) => return Err((result::TOPOLOGY_CHANGED, Some(is.node))),
            None => {}
        }
        if was.params.type_number() != is.params.type_number() {
            return Err((result::NODE_TYPE_CHANGED, Some(is.node)));
        }
        if was.dependencies.len() != is.dependencies.len() {
            return Err((result::TOPOLOGY_CHANGED, Some(is.node)));
        }
        open.extend(was.dependencies.iter().zip(&is.dependencies).map(|(was, is)| (was.0, is.0)));
    }
    (0..new.steps.len()).map(|at| pairs.get(&at).copied().ok_or((result::TOPOLOGY_CHANGED, None))).collect()
}

/// Returns the steps without successors.
fn sinks(plan: &Plan) -> Vec<usize> {
    let mut is_sink = vec![true; plan.steps.len()];
    for (dependency, _) in plan.steps.iter().flat_map(|step| &step.dependencies) {
        is_sink[*dependency] = false;
    }
    (0..plan.steps.len()).filter(|at| is_sink[*at]).collect()
}

/// Changes `old` into `new`; returns the nodes of the changed steps.
pub(crate) fn apply(old: &mut Plan, new: &Plan, kinds: Kinds<'_>) -> Result<Vec<u32>, Refusal> {
    let pairs = pair(old, new)?;
    let mut changed = Vec::new();
    for (step, at) in new.steps.iter().zip(pairs) {
        let target = &mut old.steps[at];
        if target.inner.len() != step.inner.len() {
            return Err((result::PARAMETERS_CHANGED, Some(step.node)));
        }
        for (inner, fresh) in target.inner.iter_mut().zip(&step.inner) {
            changed.extend(apply(inner, fresh, kinds)?);
        }
        let is_same = target.params.is_same(&step.params);
        replace(target, &step.params, kinds).map_err(|code| (code, Some(step.node)))?;
        if !is_same {
            changed.push(target.node);
        }
    }
    Ok(changed)
}

/// Sends every changed step: its number, the old and the new one. If one is refused, those sent before are sent back as far
/// as possible: no later update would send them again, since the stored plan has not changed.
pub(crate) fn send_changes(
    changed: &[NodeId],
    was: &Plan,
    is: &Plan,
    change: impl Fn(u32, &PlanStep, &PlanStep) -> Outcome,
) -> Outcome {
    let change_of = |node: NodeId, from: &Plan, to: &Plan| change(to.number(node)?, from.find(node)?, to.find(node)?);
    for (sent, node) in changed.iter().enumerate() {
        change_of(*node, was, is).inspect_err(|_| {
            for node in changed[..sent].iter().rev() {
                let _ = change_of(*node, is, was);
            }
        })?;
    }
    Ok(())
}

/// Gives a step new parameters, if these can replace the old ones; the error is the result of the update.
pub(crate) fn replace(step: &mut PlanStep, params: &Params, kinds: Kinds<'_>) -> Result<(), u32> {
    let allowed = match (&step.params, params) {
        (Params::Memcpy(was), Params::Memcpy(is)) => {
            let same_kinds = kinds(&was.copy, was.context) == kinds(&is.copy, is.context);
            same_kinds && (is_row(&was.copy) && is_row(&is.copy) || same_extent(&was.copy, &is.copy))
        }
        (Params::Memset(was), Params::Memset(is)) => {
            was.fill.height <= 1 && is.fill.height <= 1 || same_rows(&was.fill, &is.fill)
        }
        (Params::MemAlloc(was), Params::MemAlloc(is)) => was.params.dptr == is.params.dptr,
        (Params::MemFree(was), Params::MemFree(is)) => was == is,
        // The inner graphs were matched before, and stay with the step.
        (Params::Child(_), Params::Child(_)) | (Params::Conditional(_), Params::Conditional(_)) => return Ok(()),
        (was, is) => was.type_number() == is.type_number(),
    };
    if !allowed {
        return Err(result::PARAMETERS_CHANGED);
    }
    step.params = params.clone();
    Ok(())
}

/// Returns whether a copy has only one row.
fn is_row(copy: &CUDA_MEMCPY3D) -> bool {
    copy.Height <= 1 && copy.Depth <= 1
}

fn same_extent(one: &CUDA_MEMCPY3D, other: &CUDA_MEMCPY3D) -> bool {
    (one.WidthInBytes, one.Height, one.Depth) == (other.WidthInBytes, other.Height, other.Depth)
}

fn same_rows(one: &CUDA_MEMSET_NODE_PARAMS, other: &CUDA_MEMSET_NODE_PARAMS) -> bool {
    (one.elementSize, one.width, one.height) == (other.elementSize, other.width, other.height)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::{Host, Memcpy, Memset};
    use katydid_cuda_sys::{CUgraphEdgeData, CUresult};

    fn step(node: u32, params: Params, dependencies: &[usize]) -> PlanStep {
        let dependencies = dependencies.iter().map(|at| (*at, CUgraphEdgeData::default())).collect();
        PlanStep { node, params, dependencies, is_enabled: true, inner: Vec::new() }
    }

    fn plan(steps: Vec<PlanStep>) -> Plan {
        Plan::new(steps).unwrap()
    }

    const fn host(data: usize) -> Params {
        Params::Host(Host { function: 1, data })
    }

    fn fill(height: usize) -> Params {
        let fill = CUDA_MEMSET_NODE_PARAMS { width: 10, height, elementSize: 4, ..CUDA_MEMSET_NODE_PARAMS::default() };
        Params::Memset(Memset { fill, context: 0 })
    }

    const NO_COPIES: Kinds<'static> = &|_, _| None;

    #[test]
    fn nodes_are_paired_by_shape_not_by_the_order_of_creation() {
        let old = plan(vec![step(1, host(1), &[]), step(2, Params::Empty, &[0])]);
        let new = plan(vec![step(8, Params::Empty, &[1]), step(9, host(2), &[])]);
        assert_eq!(pair(&old, &new), Ok(vec![1, 0]));
        let mut changed = old;
        assert_eq!(apply(&mut changed, &new, NO_COPIES), Ok(vec![2, 1]));
        assert!(matches!(changed.steps[0].params, Params::Host(Host { data: 2, .. })));
    }

    #[test]
    fn unchanged_nodes_are_not_sent() {
        let copy = |width| CUDA_MEMCPY3D { WidthInBytes: width, Height: 2, Depth: 1, ..CUDA_MEMCPY3D::default() };
        let copies = |width| Params::Memcpy(Memcpy { copy: copy(width), context: 1 });
        let both = |first, second| plan(vec![step(1, first, &[]), step(2, second, &[0])]);
        let known: Kinds<'_> = &|_, _| Some((0, 1));
        let mut old = both(copies(8), fill(1));
        assert_eq!(apply(&mut old, &both(copies(8), fill(1)), known), Ok(vec![]));
        assert_eq!(apply(&mut old, &both(copies(9), fill(1)), known), Err((result::PARAMETERS_CHANGED, Some(1))));
        let other = Memcpy { copy: CUDA_MEMCPY3D { dstDevice: 7, ..copy(8) }, context: 1 };
        assert_eq!(apply(&mut old, &both(Params::Memcpy(other), fill(1)), known), Ok(vec![1]));
    }

    #[test]
    fn updates_sent_before_a_refusal_are_undone() {
        let both = |data| plan(vec![step(1, host(data), &[]), step(2, host(data), &[]), step(3, host(data), &[])]);
        let (was, is) = (both(5), both(6));
        let run = |refused: u32| {
            let data_of = std::cell::RefCell::new([5; 3]);
            let outcome = send_changes(&[1, 2, 3], &was, &is, |number, from, to| {
                let data = |step: &PlanStep| if let Params::Host(host) = &step.params { host.data } else { 0 };
                assert_eq!(data_of.borrow()[number as usize], data(from));
                if number == refused {
                    return Err(CUresult::ERROR_INVALID_VALUE);
                }
                data_of.borrow_mut()[number as usize] = data(to);
                Ok(())
            });
            (outcome, data_of.into_inner())
        };
        assert_eq!(run(2), (Err(CUresult::ERROR_INVALID_VALUE), [5; 3]));
        assert_eq!(run(9), (Ok(()), [6; 3]));
    }

    #[test]
    fn a_difference_between_graphs_is_named() {
        let old = plan(vec![step(1, host(1), &[]), step(2, Params::Empty, &[0])]);
        let more = plan(vec![step(1, host(1), &[])]);
        assert_eq!(pair(&old, &more), Err((result::TOPOLOGY_CHANGED, None)));
        let loose = plan(vec![step(8, host(1), &[]), step(9, Params::Empty, &[])]);
        assert_eq!(pair(&old, &loose), Err((result::TOPOLOGY_CHANGED, Some(8))));
        let swapped = plan(vec![step(8, Params::Empty, &[]), step(9, host(1), &[0])]);
        assert_eq!(pair(&old, &swapped), Err((result::NODE_TYPE_CHANGED, Some(9))));
    }

    #[test]
    fn a_fill_of_rows_keeps_its_extent() {
        let mut row = step(1, fill(1), &[]);
        assert_eq!(replace(&mut row, &fill(1), NO_COPIES), Ok(()));
        assert_eq!(replace(&mut row, &fill(3), NO_COPIES), Err(result::PARAMETERS_CHANGED));
        let mut rows = step(1, fill(3), &[]);
        assert_eq!(replace(&mut rows, &fill(3), NO_COPIES), Ok(()));
    }
}
