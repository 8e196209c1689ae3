//! A transfer: a part of a memory object, and the program's memory for it.

use std::sync::Arc;

use katydid_opencl_sys::Code;
use katydid_wire::codec::Field as _;
use katydid_wire::opencl::list as lists;
use katydid_wire::opencl::transfer_extent::{BUFFER_BOX, BUFFER_RUN, TransferExtent};

use crate::host::rows::{Direction, Rows};
use crate::objects::memory::Memory;
use crate::objects::pending_command::PendingCommand;
use crate::objects::queue::ImageCommand;
use crate::objects::svm::SVM_RANGES;

/// A part of an object, and the program's memory for it.
#[derive(Clone)]
pub(crate) struct Transfer {
    pub(crate) memory: Arc<Memory>,
    pub(crate) form: u32,
    pub(crate) extent: TransferExtent,
    pub(crate) rows: Rows,
}

impl Transfer {
    /// Returns the transfer, if the object allows the program this direction.
    pub(crate) fn allowed(self, direction: Direction) -> Result<Self, Code> {
        if SVM_RANGES.leaves_pages(self.rows.start, self.rows.reach()) {
            return Err(Code::INVALID_VALUE);
        }
        self.memory.allows(direction).map(|()| self)
    }

    /// Returns the arguments of the command's message so far: the waits, the extent.
    pub(crate) fn arguments(&self, command: &PendingCommand) -> Vec<u8> {
        let mut bytes = command.arguments();
        self.extent.put(&mut bytes);
        bytes
    }

    /// Returns whether a write need not wait for the driver's reply.
    pub(crate) fn cannot_be_refused(&self, command: &PendingCommand) -> bool {
        let memory = &self.memory;
        match self.form {
            BUFFER_RUN => memory.cannot_be_refused(command, self.extent.origin[0], self.extent.region[0]),
            // Its end and its pitches were checked when it was made.
            BUFFER_BOX => memory.cannot_be_refused(command, 0, 1),
            _ => {
                let images = [memory.image_kind(), None];
                command.queue.has_accepted_images(command.worker, ImageCommand::Write, images)
                    && memory.box_cannot_be_refused(command, &self.extent)
            }
        }
    }

    /// Records that the driver has accepted a write.
    pub(crate) fn accepted(&self, command: &PendingCommand) {
        self.memory.accepted(command);
        if let Some(image) = self.memory.image_kind() {
            command.queue.accepted_images(command.worker, ImageCommand::Write, [Some(image), None]);
        }
    }

    /// Returns the arguments of a message that waits for no events.
    pub(crate) fn alone(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(128);
        lists::put::<u32>(&mut bytes, &[]);
        self.extent.put(&mut bytes);
        bytes
    }
}
