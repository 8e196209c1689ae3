//! The current state of executable graphs: the description that they were built from, with the last change of each step
//! merged into it.
//!
//! So a graph no longer needs objects that only changed steps used, and a replay only has to repeat the changes that disable
//! steps.

use std::collections::BTreeMap;
use std::mem::{discriminant, take};
use std::sync::Arc;

use katydid_session_core::JournalFrame;
use katydid_wire::facts::{GraphFacts, StepFacts, StepWork};
use katydid_wire::message::kdGraphChange;

use super::entry::{ObjectEntry, ObjectKind, PropertySet, RareFields, Steps};

/// A graph to replay.
pub(super) struct CurrentGraph<'a> {
    /// The frame from which on all its needs exist.
    pub(super) order: u64,
    /// The merged description.
    pub(super) bytes: Arc<Vec<u8>>,
    /// Objects that it needs, each with the frame before which it was made.
    pub(super) needs: Vec<(ObjectKind, u32, u64)>,
    /// Changes that a description cannot express.
    pub(super) changes: Vec<&'a JournalFrame>,
}

/// Returns the graph of an entry; none for an entry without a description.
pub(super) fn current(entry: &ObjectEntry) -> Option<CurrentGraph<'_>> {
    let (more, creation_order) = (entry.more()?, entry.creation.order);
    let Steps { bytes, needs } = more.steps.as_ref()?;
    let with_order = |needs: &[(ObjectKind, u32)], order| {
        needs.iter().map(move |(kind, id)| (*kind, *id, order)).collect::<Vec<_>>()
    };
    if more.sets.is_empty() {
        let needs = with_order(needs, creation_order);
        return Some(CurrentGraph { order: creation_order, bytes: Arc::clone(bytes), needs, changes: Vec::new() });
    }
    let mut facts = GraphFacts::decode(bytes).ok()?;
    let mut unchanged = facts.clone();
    let (mut order, mut needs, mut changes) = (creation_order, Vec::new(), Vec::new());
    for set in last_of_each(more)? {
        let message = kdGraphChange::decode(set.frame.payload()).ok()?;
        let StepFacts { work, is_enabled, .. } = StepFacts::decode(message.step).ok()?;
        let old = step_work(&mut facts, &mut { message.number }).filter(|old| fits(old, &work));
        if old.is_none() || !is_enabled {
            changes.push(&set.frame);
        }
        let Some(old) = old else { continue };
        order = order.max(set.frame.order);
        needs.extend(need(&work).map(|(kind, id)| (kind, id, set.frame.order)));
        replace(old, work);
        if let Some(old) = step_work(&mut unchanged, &mut { message.number }) {
            *old = StepWork::Empty;
        }
    }
    needs.extend(with_order(&self::needs(&unchanged), creation_order));
    Some(CurrentGraph { order, bytes: Arc::new(facts.encode()), needs, changes })
}

/// Returns the last change of each step: messages of two kinds, with the same fields, make them.
fn last_of_each(more: &RareFields) -> Option<Vec<&PropertySet>> {
    let mut last: BTreeMap<u32, &PropertySet> = BTreeMap::new();
    for set in more.sets.values() {
        let latest = last.entry(kdGraphChange::decode(set.frame.payload()).ok()?.number).or_insert(set);
        if latest.frame.order < set.frame.order {
            *latest = set;
        }
    }
    Some(last.into_values().collect())
}

/// Returns the step with a number, in the order of building: a step, then those of the graphs inside it.
fn step_work<'a>(facts: &'a mut GraphFacts, number: &mut u32) -> Option<&'a mut StepWork> {
    for step in &mut facts.steps {
        if *number == 0 {
            return Some(&mut step.work);
        }
        *number -= 1;
        let inner = match step.work {
            StepWork::Child => 1,
            StepWork::Conditional { .. } => step.inner.len(),
            _ => 0,
        };
        for graph in step.inner.iter_mut().take(inner) {
            if let Some(work) = step_work(graph, number) {
                return Some(work);
            }
        }
    }
    None
}

/// Returns whether the step can take a change.
fn fits(old: &StepWork, new: &StepWork) -> bool {
    discriminant(old) == discriminant(new)
        && !matches!(old, StepWork::Empty | StepWork::Child | StepWork::Conditional { .. })
}

/// Replaces a step's work. A change keeps the attributes of a launch.
fn replace(work: &mut StepWork, new: StepWork) {
    let latest = if let StepWork::Kernel { attributes, .. } = work { take(attributes) } else { Vec::new() };
    *work = new;
    if let StepWork::Kernel { attributes, .. } = work {
        *attributes = latest;
    }
}

/// Returns the object that a step needs.
fn need(work: &StepWork) -> Option<(ObjectKind, u32)> {
    match work {
        StepWork::Kernel { function: 0, kernel, .. } => Some((ObjectKind::Kernel, *kernel)),
        StepWork::Kernel { function, .. } => Some((ObjectKind::Function, *function)),
        StepWork::Wait(event) | StepWork::Record(event) => Some((ObjectKind::Event, *event)),
        _ => None,
    }
}

/// Returns the objects that a graph needs: code and events of its steps, each once.
pub(crate) fn needs(facts: &GraphFacts) -> Vec<(ObjectKind, u32)> {
    let mut all = Vec::new();
    for step in &facts.steps {
        all.extend(need(&step.work));
        step.inner.iter().for_each(|inner| all.append(&mut needs(inner)));
    }
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use katydid_wire::codec::Message as _;
    use katydid_wire::frame::FrameHead;

    use katydid_wire::message::kdGraphArguments;

    use super::super::entry::Selector;
    use super::*;

    fn step(work: StepWork, inner: Vec<GraphFacts>) -> StepFacts {
        StepFacts { dependencies: Vec::new(), is_enabled: true, work, inner }
    }

    fn kernel(function: u32, params: &[u8], attributes: Vec<(u32, [u64; 8])>) -> StepWork {
        let params = params.to_vec();
        StepWork::Kernel { function, kernel: 0, context: 1, shape: [1; 6], shared: 0, params, attributes }
    }

    fn frame(opcode: u16, sequence: u64, payload: &[u8]) -> JournalFrame {
        JournalFrame::new(&FrameHead { opcode, wants_reply: true, thread: 1, context: 1, sequence }, 1, payload)
    }

    /// Makes a graph of an event record and a launch in a child, with these changes.
    fn entry(changes: &[(u32, StepFacts)]) -> ObjectEntry {
        let changes: Vec<_> = changes.iter().map(|(number, step)| (kdGraphChange::OPCODE, *number, step)).collect();
        entry_by(&changes)
    }

    /// Makes a graph of an event record and a launch in a child, with changes by these messages.
    fn entry_by(changes: &[(u16, u32, &StepFacts)]) -> ObjectEntry {
        let inner = vec![step(StepWork::Record(7), vec![]), step(kernel(1, b"old", vec![(2, [3; 8])]), vec![])];
        let facts = GraphFacts {
            steps: vec![step(StepWork::Empty, vec![]), step(StepWork::Child, vec![GraphFacts { steps: inner }])],
        };
        let steps = Some(Steps { bytes: Arc::new(facts.encode()), needs: needs(&facts) });
        let mut more = RareFields { steps, ..RareFields::default() };
        for (order, (opcode, number, step)) in (20..).zip(changes) {
            let mut payload = Vec::new();
            let encoded = step.encode();
            let message = kdGraphChange { exec: 1, number: *number, step: &encoded };
            message.encode(&mut payload);
            payload.extend_from_slice(message.tail());
            let frame = frame(*opcode, order, &payload);
            let key = (*opcode, Selector::Number(u64::from(*number)));
            more.sets.insert(key, PropertySet { frame, answer: None });
        }
        ObjectEntry { creation: frame(1, 10, &[]), more: Some(Box::new(more)) }
    }

    #[test]
    fn a_change_reaches_its_step_inside_of_others_and_keeps_attributes() {
        let entry = entry(&[(3, step(kernel(5, b"new", vec![]), vec![]))]);
        let graph = current(&entry).unwrap();
        let facts = GraphFacts::decode(&graph.bytes).unwrap();
        assert_eq!(facts.steps[1].inner[0].steps[1].work, kernel(5, b"new", vec![(2, [3; 8])]));
        assert_eq!(graph.needs, [(ObjectKind::Function, 5, 20), (ObjectKind::Event, 7, 10)]);
        assert_eq!((graph.order, graph.changes.len()), (20, 0));
    }

    #[test]
    fn of_changes_by_both_messages_the_last_one_counts() {
        let (code, arguments) = (kdGraphChange::OPCODE, kdGraphArguments::OPCODE);
        let (one, other) = (step(kernel(5, b"one", vec![]), vec![]), step(kernel(6, b"other", vec![]), vec![]));
        for first in [code, arguments] {
            let entry = entry_by(&[(first, 3, &one), (code + arguments - first, 3, &other)]);
            let graph = current(&entry).unwrap();
            let facts = GraphFacts::decode(&graph.bytes).unwrap();
            assert_eq!(facts.steps[1].inner[0].steps[1].work, kernel(6, b"other", vec![(2, [3; 8])]));
            // What the first change needed may be gone.
            assert_eq!(graph.needs, [(ObjectKind::Function, 6, 21), (ObjectKind::Event, 7, 10)]);
        }
    }

    #[test]
    fn a_step_that_is_off_and_a_change_that_fits_none_are_left_to_the_driver() {
        let off = StepFacts { is_enabled: false, ..step(kernel(1, b"old", vec![]), vec![]) };
        let unfit = step(kernel(9, b"new", vec![]), vec![]);
        let entry = entry(&[(3, off), (2, unfit.clone()), (40, unfit)]);
        let graph = current(&entry).unwrap();
        assert_eq!(graph.changes.len(), 3);
        assert_eq!(graph.needs, [(ObjectKind::Function, 1, 20), (ObjectKind::Event, 7, 10)]);
    }
}
