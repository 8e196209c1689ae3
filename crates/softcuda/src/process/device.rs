//! Devices: their identity, their memory, and the handles of their primary contexts.

use std::sync::OnceLock;

use katydid_cuda_sys::{CUdevice, CUresult};

use crate::ffi::Outcome;
use crate::memory::device_memory::DeviceMemory;
use crate::process::attributes::{self, Variable};
use crate::process::handles::new_handle;
use crate::process::settings;

/// A device that the program sees.
pub(crate) struct Device {
    /// Position in the program's order.
    pub(crate) ordinal: i32,
    /// Position among all devices. Identity and address range depend on it, so visibility does not change them.
    index: usize,
    /// Attributes in which devices differ.
    variable: Variable,
    /// Arena and budget of its memory.
    pub(crate) memory: DeviceMemory,
    /// Handle of its primary context, the same before the first retain and after the last release.
    pub(crate) primary_handle: usize,
}

impl Device {
    /// Reserves nothing yet: the first allocation does.
    fn new(ordinal: usize, index: usize, bytes: u64) -> Self {
        Self {
            ordinal: ordinal as i32,
            index,
            variable: Variable { multiprocessors: settings::cores() as u32, bus: index as u32 + 1 },
            memory: DeviceMemory::new(ordinal, index, bytes),
            primary_handle: new_handle(),
        }
    }

    /// Name that `cuDeviceGetName` returns.
    pub(crate) fn name(&self) -> &'static str {
        "Katydid softcuda"
    }

    /// UUID of the device, the same in every process.
    pub(crate) fn uuid(&self) -> [u8; 16] {
        attributes::uuid(self.index)
    }

    /// PCI bus; domain and device are 0.
    pub(crate) fn pci_bus(&self) -> u32 {
        self.variable.bus
    }

    /// Domain, bus, device and function, as in `0000:01:00.0`.
    pub(crate) fn pci_bus_id(&self) -> String {
        format!("0000:{:02X}:00.0", self.pci_bus())
    }

    /// Multiprocessors, one per core.
    pub(crate) fn multiprocessors(&self) -> u32 {
        self.variable.multiprocessors
    }

    /// Returns the value of an attribute. An unknown id fails with `INVALID_VALUE`.
    pub(crate) fn attribute(&self, id: u32) -> Outcome<i32> {
        attributes::value(id, &self.variable).ok_or(CUresult::ERROR_INVALID_VALUE)
    }
}

/// Returns all visible devices, made at the first call.
pub(crate) fn all() -> &'static [Device] {
    static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        let visible = settings::visible_devices();
        let bytes = settings::device_memory();
        visible.into_iter().enumerate().map(|(ordinal, index)| Device::new(ordinal, index, bytes)).collect()
    })
}

/// Returns the device with this ordinal, or `INVALID_DEVICE`.
pub(crate) fn get(ordinal: CUdevice) -> Outcome<&'static Device> {
    usize::try_from(ordinal).ok().and_then(|at| all().get(at)).ok_or(CUresult::ERROR_INVALID_DEVICE)
}

/// Returns the device whose primary context has this handle.
pub(crate) fn by_primary(handle: usize) -> Option<&'static Device> {
    all().iter().find(|device| device.primary_handle == handle)
}

/// Returns the device with this PCI bus id. As in the driver, domain and function are optional.
pub(crate) fn by_pci_bus_id(text: &str) -> Outcome<&'static Device> {
    let text = text.trim_end_matches(".0");
    let mut parts = text.rsplit(':').map(|part| u32::from_str_radix(part, 16).ok());
    let (device, bus, domain) = (parts.next().flatten(), parts.next().flatten(), parts.next().unwrap_or(Some(0)));
    let device_at = all().iter().find(|it| Some(it.pci_bus()) == bus && device == Some(0) && domain == Some(0));
    device_at.ok_or(CUresult::ERROR_INVALID_VALUE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_found_by_its_own_bus_id() {
        let device = get(0).unwrap();
        assert_eq!(by_pci_bus_id(&device.pci_bus_id()).unwrap().ordinal, 0);
        assert_eq!(by_pci_bus_id("01:00").unwrap().ordinal, 0);
        assert!(by_pci_bus_id("0000:77:00.0").is_err());
        assert!(by_pci_bus_id("nonsense").is_err());
        assert_eq!(get(-1).err(), Some(CUresult::ERROR_INVALID_DEVICE));
    }
}
