//! Writes that are sent at once: with their data in a block, or inside their messages.
#![expect(unsafe_code, reason = "reads the memory that programs name")]

use katydid_opencl_sys::Code;
use katydid_wire::opencl::message::kdclWrite;

use crate::host::bulk;
use crate::objects::pending_command::PendingCommand;
use crate::process::session;
use crate::transfers::blocks;
use crate::transfers::transfer::Transfer;

/// Sends a write at once; the flags say whether it is the first and the last of its command.
///
/// # Safety
///
/// The rows are readable.
pub(crate) unsafe fn send(
    transfer: &Transfer,
    command: &PendingCommand,
    (is_first, is_last): (bool, bool),
) -> Result<(), Code> {
    let (event, blocking) = if is_last { (command.event(), command.blocks()) } else { (0, false) };
    let mut waits = if is_first { transfer.arguments(command) } else { transfer.alone() };
    // SAFETY: by the contract.
    if unsafe { blocks::write(transfer, command, (event, blocking), &mut waits)? } {
        return Ok(());
    }
    // SAFETY: by the contract.
    let data = unsafe { transfer.rows.gather() };
    let sent = bulk::send(&data)?;
    waits.extend_from_slice(sent.inline);
    let (queue, memory) = (command.queue(), transfer.memory.base.id);
    let (form, staged, blocking) = (transfer.form, sent.staged, blocking.into());
    let message = kdclWrite { queue, event, memory, form, staged, blocking, waits: &waits };
    if staged == 0 && transfer.cannot_be_refused(command) {
        return session::enqueue(&message);
    }
    session::call(&message)?;
    transfer.accepted(command);
    Ok(())
}
