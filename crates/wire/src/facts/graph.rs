//! An executable graph on its way to the worker: its steps, flat, with wire ids for handles.
//!
//! ```text
//! graph     steps u32 (<= 2^20), then each step
//! step      before u32, then each: step u32, from port u8, type u8; enabled u8; work;
//!           inner graphs u32 (<= 2^16), then each graph
//! work      kind u8, then by kind as in [`StepWork`]; addresses and sizes are bytes
//! ```

use super::FactsError;
use super::bytes::{Reader, Writer, repeat};

/// Most steps of one graph, and most edges to one step.
const MAX_GRAPH_STEPS: u32 = 1 << 20;
/// Most body graphs of one step.
const MAX_BODY_GRAPHS: u32 = 1 << 16;
/// Most levels of nested graphs.
const MAX_GRAPH_DEPTH: u32 = 64;
/// Most bytes of a kernel's parameters, or of a descriptor.
const MAX_STEP_PARAMETER_BYTES: u32 = 64 * 1024;
/// Most attributes of a kernel, and most words of a batch.
const MAX_LIST_ENTRIES: u32 = 4096;

/// An edge to a step: the position of the step where it begins, and its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EdgeFacts {
    /// Position in the same graph.
    pub from: u32,
    /// `from_port` of the edge's data.
    pub port: u8,
    /// `type` of the edge's data.
    pub kind: u8,
}

/// The operation of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepWork {
    /// Nothing in the worker, such as a node that only the program's side handles.
    Empty,
    /// A launch; either the function or the kernel is 0.
    Kernel {
        /// Wire id of the `CUfunction`; 0 if the node names a `CUkernel`.
        function: u32,
        /// Wire id of the `CUkernel`; 0 if the node names a `CUfunction`.
        kernel: u32,
        /// Wire id of the context that the kernel runs in.
        context: u32,
        /// Blocks of the grid, then threads of a block.
        shape: [u32; 6],
        /// Dynamic shared memory of a block, in bytes.
        shared: u32,
        /// Parameters at the offsets given by [`ParameterFacts`](super::ParameterFacts).
        params: Vec<u8>,
        /// Launch attributes: `CUlaunchAttributeID` and the 64 bytes of its value.
        attributes: Vec<(u32, [u64; 8])>,
    },
    /// A copy between memory that the worker reaches: a `CUDA_MEMCPY3D`.
    Copy {
        /// Wire id of the context that copies.
        context: u32,
        /// Encoded `CUDA_MEMCPY3D` of the copy.
        copy: Vec<u8>,
    },
    /// A copy whose source or target is on the program's side: its rows are contiguous in the worker's memory.
    Staged {
        /// Wire id of the context that copies.
        context: u32,
        /// Token by which the program's side knows it.
        token: u64,
        /// Whether the program's side is the source.
        is_source: bool,
        /// The descriptor; its other side is ignored.
        copy: Vec<u8>,
    },
    /// A memset of rows of elements.
    Fill {
        /// Wire id of the context that writes.
        context: u32,
        /// Address of the first element.
        address: u64,
        /// Bytes from the start of a row to that of the next.
        pitch: u64,
        /// Value of each element, in its low bytes.
        value: u32,
        /// Size of an element: 1, 2 or 4 bytes.
        element: u32,
        /// Elements of a row.
        width: u64,
        /// Number of rows.
        height: u64,
    },
    /// A function of the program.
    Host {
        /// Token by which the program's side knows it.
        token: u64,
    },
    /// The inner graph, as a whole (a child graph node).
    Child,
    /// Waits for an event, by its wire id.
    Wait(u32),
    /// Records an event, by its wire id.
    Record(u32),
    /// Operations on words: operation, address, value, flags.
    Batch {
        /// Wire id of the context that operates.
        context: u32,
        /// Operations of `cuStreamBatchMemOp` in their order: operation, address, value, flags.
        words: Vec<(u32, u64, u64, u32)>,
    },
    /// Runs its inner graphs, as the handle's value says.
    Conditional {
        /// Wire id of the context that the bodies run in.
        context: u32,
        /// The driver's `CUgraphConditionalHandle`.
        handle: u64,
        /// `CUgraphConditionalNodeType`: if, while or switch.
        kind: u32,
    },
}

/// One node of a graph: its operation, and its dependencies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepFacts {
    /// Edges from the nodes that this one waits for.
    pub dependencies: Vec<EdgeFacts>,
    /// Whether the node is enabled.
    pub is_enabled: bool,
    /// Operation of the node, and its parameters.
    pub work: StepWork,
    /// The child graph, or the bodies of a conditional node, in order.
    pub inner: Vec<GraphFacts>,
}

/// An executable graph, or one inside another.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GraphFacts {
    /// Nodes in the order in which they were added.
    pub steps: Vec<StepFacts>,
}

fn bytes(out: &mut Writer, bytes: &[u8]) {
    out.count(bytes.len());
    out.bytes.extend_from_slice(bytes);
}

fn read_bytes(reader: &mut Reader<'_>) -> Result<Vec<u8>, FactsError> {
    let length = reader.count("bytes of parameters", MAX_STEP_PARAMETER_BYTES)?;
    repeat(length, || Ok(reader.array::<1>()?[0]))
}

fn read_array<const N: usize>(reader: &mut Reader<'_>) -> Result<[u32; N], FactsError> {
    let mut values = [0; N];
    for value in &mut values {
        *value = reader.u32()?;
    }
    Ok(values)
}

fn read_byte(reader: &mut Reader<'_>) -> Result<u8, FactsError> {
    Ok(reader.array::<1>()?[0])
}

impl StepWork {
    fn write(&self, out: &mut Writer) {
        match self {
            Self::Empty => out.bytes.push(0),
            Self::Kernel { function, kernel, context, shape, shared, params, attributes } => {
                out.bytes.push(1);
                [*function, *kernel, *context].iter().chain(shape).chain([shared]).for_each(|value| out.u32(*value));
                bytes(out, params);
                out.count(attributes.len());
                for (id, value) in attributes {
                    out.u32(*id);
                    value.iter().for_each(|word| out.u64(*word));
                }
            }
            Self::Copy { context, copy } => {
                out.bytes.push(2);
                out.u32(*context);
                bytes(out, copy);
            }
            Self::Staged { context, token, is_source, copy } => {
                out.bytes.push(3);
                out.u32(*context);
                out.u64(*token);
                out.bytes.push(u8::from(*is_source));
                bytes(out, copy);
            }
            Self::Fill { context, address, pitch, value, element, width, height } => {
                out.bytes.push(4);
                [*context, *value, *element].iter().for_each(|value| out.u32(*value));
                [*address, *pitch, *width, *height].iter().for_each(|value| out.u64(*value));
            }
            Self::Host { token } => {
                out.bytes.push(5);
                out.u64(*token);
            }
            Self::Child => out.bytes.push(6),
            Self::Wait(event) => {
                out.bytes.push(7);
                out.u32(*event);
            }
            Self::Record(event) => {
                out.bytes.push(8);
                out.u32(*event);
            }
            Self::Batch { context, words } => {
                out.bytes.push(9);
                out.u32(*context);
                out.count(words.len());
                for (operation, address, value, flags) in words {
                    out.u32(*operation);
                    out.u64(*address);
                    out.u64(*value);
                    out.u32(*flags);
                }
            }
            Self::Conditional { context, handle, kind } => {
                out.bytes.push(10);
                out.u32(*context);
                out.u64(*handle);
                out.u32(*kind);
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, FactsError> {
        let kind = read_byte(reader)?;
        Ok(match kind {
            0 => Self::Empty,
            1 => Self::read_kernel(reader)?,
            2 => Self::Copy { context: reader.u32()?, copy: read_bytes(reader)? },
            3 => {
                let (context, token, is_source) = (reader.u32()?, reader.u64()?, read_byte(reader)? != 0);
                Self::Staged { context, token, is_source, copy: read_bytes(reader)? }
            }
            4 => {
                let [context, value, element] = read_array(reader)?;
                let (address, pitch) = (reader.u64()?, reader.u64()?);
                Self::Fill { context, address, pitch, value, element, width: reader.u64()?, height: reader.u64()? }
            }
            5 => Self::Host { token: reader.u64()? },
            6 => Self::Child,
            7 => Self::Wait(reader.u32()?),
            8 => Self::Record(reader.u32()?),
            9 => {
                let context = reader.u32()?;
                let count = reader.count("words of a batch", MAX_LIST_ENTRIES)?;
                let words = repeat(count, || Ok((reader.u32()?, reader.u64()?, reader.u64()?, reader.u32()?)))?;
                Self::Batch { context, words }
            }
            10 => Self::Conditional { context: reader.u32()?, handle: reader.u64()?, kind: reader.u32()? },
            found => return Err(FactsError::TooMany { what: "kinds of work", count: found.into(), limit: 10 }),
        })
    }

    fn read_kernel(reader: &mut Reader<'_>) -> Result<Self, FactsError> {
        let [function, kernel, context] = read_array(reader)?;
        let (shape, shared, params) = (read_array(reader)?, reader.u32()?, read_bytes(reader)?);
        let count = reader.count("attributes", MAX_LIST_ENTRIES)?;
        let attributes = repeat(count, || {
            let id = reader.u32()?;
            let mut value = [0; 8];
            for word in &mut value {
                *word = reader.u64()?;
            }
            Ok((id, value))
        })?;
        Ok(Self::Kernel { function, kernel, context, shape, shared, params, attributes })
    }
}

impl StepFacts {
    fn write(&self, out: &mut Writer) {
        out.count(self.dependencies.len());
        for edge in &self.dependencies {
            out.u32(edge.from);
            out.bytes.extend_from_slice(&[edge.port, edge.kind]);
        }
        out.bytes.push(u8::from(self.is_enabled));
        self.work.write(out);
        out.count(self.inner.len());
        self.inner.iter().for_each(|graph| graph.write(out));
    }

    fn read(reader: &mut Reader<'_>, depth: u32) -> Result<Self, FactsError> {
        let edges = reader.count("edges", MAX_GRAPH_STEPS)?;
        let dependencies = repeat(edges, || {
            Ok(EdgeFacts { from: reader.u32()?, port: read_byte(reader)?, kind: read_byte(reader)? })
        })?;
        let is_enabled = read_byte(reader)? != 0;
        let work = StepWork::read(reader)?;
        let count = reader.count("inner graphs", MAX_BODY_GRAPHS)?;
        let inner = repeat(count, || GraphFacts::read(reader, depth + 1))?;
        Ok(Self { dependencies, is_enabled, work, inner })
    }

    /// Encodes one step without a graph around it: its new parameters.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        self.write(&mut out);
        out.bytes
    }

    /// Decodes the result of [`StepFacts::encode`].
    ///
    /// # Errors
    ///
    /// [`FactsError`] for anything else.
    pub fn decode(bytes: &[u8]) -> Result<Self, FactsError> {
        let mut reader = Reader::new(bytes);
        let step = Self::read(&mut reader, 0)?;
        reader.end().map(|()| step)
    }
}

impl GraphFacts {
    fn write(&self, out: &mut Writer) {
        out.count(self.steps.len());
        self.steps.iter().for_each(|step| step.write(out));
    }

    fn read(reader: &mut Reader<'_>, depth: u32) -> Result<Self, FactsError> {
        if depth > MAX_GRAPH_DEPTH {
            return Err(FactsError::TooMany { what: "graphs inside graphs", count: depth, limit: MAX_GRAPH_DEPTH });
        }
        let count = reader.count("steps", MAX_GRAPH_STEPS)?;
        Ok(Self { steps: repeat(count, || StepFacts::read(reader, depth))? })
    }

    /// Encodes the layout at the top of this file.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        self.write(&mut out);
        out.bytes
    }

    /// Decodes the result of [`GraphFacts::encode`].
    ///
    /// # Errors
    ///
    /// [`FactsError`] for anything else.
    pub fn decode(bytes: &[u8]) -> Result<Self, FactsError> {
        let mut reader = Reader::new(bytes);
        let graph = Self::read(&mut reader, 0)?;
        reader.end().map(|()| graph)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph() -> GraphFacts {
        let works = [
            StepWork::Empty,
            StepWork::Kernel {
                function: 1,
                kernel: 0,
                context: 2,
                shape: [1, 2, 3, 4, 5, 6],
                shared: 7,
                params: vec![8, 9],
                attributes: vec![(2, [1, 0, 0, 0, 0, 0, 0, 3])],
            },
            StepWork::Copy { context: 1, copy: vec![1; 200] },
            StepWork::Staged { context: 1, token: 77, is_source: true, copy: vec![2; 200] },
            StepWork::Fill { context: 1, address: 2, pitch: 3, value: 4, element: 1, width: 5, height: 6 },
            StepWork::Host { token: 5 },
            StepWork::Wait(6),
            StepWork::Record(7),
            StepWork::Batch { context: 1, words: vec![(2, 0x1000, 5, 0)] },
            StepWork::Conditional { context: 1, handle: 9, kind: 2 },
        ];
        let step = |work| StepFacts { dependencies: Vec::new(), is_enabled: true, work, inner: Vec::new() };
        let mut steps: Vec<_> = works.into_iter().map(step).collect();
        steps[3].dependencies.push(EdgeFacts { from: 1, port: 1, kind: 1 });
        let inner = GraphFacts { steps: steps.clone() };
        steps.push(StepFacts { is_enabled: false, inner: vec![inner], ..step(StepWork::Child) });
        GraphFacts { steps }
    }

    #[test]
    fn a_graph_comes_back_as_it_was_written() {
        let graph = graph();
        assert_eq!(GraphFacts::decode(&graph.encode()), Ok(graph.clone()));
        let step = &graph.steps[10];
        assert_eq!(StepFacts::decode(&step.encode()).as_ref(), Ok(step));
    }

    #[test]
    fn damaged_bytes_are_refused() {
        let bytes = graph().encode();
        for length in 0..bytes.len() {
            assert!(GraphFacts::decode(&bytes[..length]).is_err(), "{length}");
        }
        assert!(GraphFacts::decode(&[&bytes[..], &[0]].concat()).is_err());
        let mut deep = Vec::new();
        for _ in 0..200 {
            // One step: no edges, enabled, a child, one inner graph.
            deep.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0, 1, 6, 1, 0, 0, 0]);
        }
        assert!(matches!(GraphFacts::decode(&deep), Err(FactsError::TooMany { .. })));
    }
}
