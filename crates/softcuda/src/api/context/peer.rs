//! Access between devices. All software devices share the host's memory, so each can reach every other.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use katydid_cuda_sys::{CUcontext, CUresult};

use super::current::number;
use crate::context::stack;
use crate::ffi::{Out, api};
use crate::process::{device, state};

/// `CU_DEVICE_P2P_ATTRIBUTE`: rank of the link, access, native atomics, array access, and the newer ones.
const P2P_ATTRIBUTES: [i32; 5] = [0, 1, 1, 0, 0];

api! {
    /// Returns whether the devices differ: a device is not its own peer.
    fn cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) {
        state::ready()?;
        can.set(i32::from(device::get(device)?.ordinal != device::get(peer)?.ordinal));
    }

    /// Returns an attribute of a link. All links are alike: atomics work, access to arrays does not.
    fn cuDeviceGetP2PAttribute(value: Out<i32>, attribute: u32, source: i32, target: i32) {
        state::ready()?;
        let at = (attribute as usize).checked_sub(1).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let attribute_value = P2P_ATTRIBUTES.get(at).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        if device::get(source)?.ordinal == device::get(target)?.ordinal {
            return Err(CUresult::ERROR_INVALID_DEVICE);
        }
        value.set(*attribute_value);
    }

    /// Enables access to a peer. Fails with 704 if it is enabled already.
    fn cuCtxEnablePeerAccess(peer: CUcontext, flags: u32) {
        let context = stack::usable()?;
        if flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        context.enable_peer(&*stack::named(number(peer))?)?;
    }

    /// Disables access to a peer. Fails with 705 if it is not enabled.
    fn cuCtxDisablePeerAccess(peer: CUcontext) {
        let context = stack::usable()?;
        context.disable_peer(&*stack::named(number(peer))?)?;
    }
}
