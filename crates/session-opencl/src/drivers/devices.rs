//! Maps the devices of a session to those of the machine where it continues.
//!
//! A device maps to the one of the same name, unless the user names another. A device has moved if it or its driver differs:
//! `journal/rebuild.rs` then checks what depends on it.

use katydid_opencl_sys::constant::DEVICE_NAME;

use crate::drivers::driver::{self, Platform};
use crate::journal;

/// `CL_DRIVER_VERSION`, asked of a device.
const DEVICE_DRIVER_VERSION: u32 = 0x102d;
/// `CL_DEVICE_ADDRESS_BITS`, asked of a device.
const DEVICE_ADDRESS_BITS: u32 = 0x100d;
/// Words for device types, with the bit of each.
const DEVICE_TYPE_WORDS: [(&str, u64); 3] = [("cpu", 2), ("gpu", 4), ("accelerator", 8)];

/// Why no device of this machine can replace one of the session's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoMatchingDevice {
    /// The requested device is not on this machine.
    #[error("there is no device {requested:?}; this server has: {have}")]
    Unknown {
        /// Device that the user requested.
        requested: String,
        /// Numbers and names of the server's devices.
        have: String,
    },
    /// The session does not have the requested device.
    #[error("the program has no device {requested:?}; it has: {had}")]
    NotHad {
        /// Device that the user requested.
        requested: String,
        /// Numbers and names of the program's devices.
        had: String,
    },
    /// The device of that name is not on this machine.
    #[error("the program uses the device {name}, which is not here; there are: {have}; name one with --device")]
    Gone {
        /// The name of the device.
        name: String,
        /// Numbers and names of the server's devices.
        have: String,
    },
    /// Devices of one platform would map to several.
    #[error(
        "{first} and {second} are devices of one platform for the program; those that take their places must be too"
    )]
    Split {
        /// The name of the first device.
        first: String,
        /// The name of the second device.
        second: String,
    },
    /// Sizes and pointers have another length on the new device.
    #[error("the device {name} has addresses of {is} bits, and the program's kernels were given values for {saved}")]
    Bits {
        /// Name of the device here.
        name: String,
        /// The answer that the program received.
        saved: u32,
        /// The length that the device here has.
        is: u32,
    },
}

/// Returns the platforms of this machine as a saved state describes them.
pub(crate) fn describe(platforms: &[Platform]) -> Vec<journal::Platform> {
    let of = |platform: &Platform| {
        let device = |(handle, kind): &(_, u64)| {
            let bytes = |parameter| driver::device_value(*handle, platform.api, parameter).unwrap_or_default();
            let text = |parameter| String::from_utf8_lossy(&bytes(parameter)).trim_matches(['\0', ' ']).to_owned();
            let bits = bytes(DEVICE_ADDRESS_BITS).first_chunk().map_or(0, |bits| u32::from_le_bytes(*bits));
            journal::Device {
                name: text(DEVICE_NAME),
                driver: text(DEVICE_DRIVER_VERSION),
                kind: *kind,
                bits,
                is_used: false,
            }
        };
        journal::Platform { name: platform.name.clone(), devices: platform.devices.iter().map(device).collect() }
    };
    platforms.iter().map(of).collect()
}

/// Index of a device: of its platform, and within the platform.
pub(crate) type DeviceIndex = (usize, usize);

/// The devices of this machine that the session uses.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Assignment {
    /// One for each platform that the program knows.
    pub(crate) platforms: Vec<Option<usize>>,
    /// One for each device, and whether it differs from the saved one.
    pub(crate) devices: Vec<Option<(DeviceIndex, bool)>>,
}

/// A device in a list of the saved or the present devices.
struct ListedDevice<'a> {
    index: DeviceIndex,
    platform: &'a str,
    device: &'a journal::Device,
}

fn flat(platforms: &[journal::Platform]) -> Vec<ListedDevice<'_>> {
    let of = |(number, platform): (usize, &'_ journal::Platform)| -> Vec<(DeviceIndex, usize)> {
        (0..platform.devices.len()).map(|at| ((number, at), number)).collect()
    };
    let devices = platforms.iter().enumerate().flat_map(of);
    devices
        .map(|(index, number)| {
            let platform = &platforms[number];
            ListedDevice { index, platform: &platform.name, device: &platform.devices[index.1] }
        })
        .collect()
}

fn names(list: &[ListedDevice<'_>]) -> String {
    let name = |(number, known): (usize, &ListedDevice<'_>)| format!("{number} {}", known.device.name);
    list.iter().enumerate().map(name).collect::<Vec<_>>().join(", ")
}

/// Finds the device that a word names: by its number, its type, or a part of its name.
fn find<'a, 'b>(list: &'b [ListedDevice<'a>], word: &str) -> Option<&'b ListedDevice<'a>> {
    if let Ok(number) = word.parse::<usize>() {
        return list.get(number);
    }
    let word = word.to_lowercase();
    let of_type = DEVICE_TYPE_WORDS.iter().find(|(name, _)| *name == word).map(|(_, bit)| bit);
    list.iter().find(|known| match of_type {
        Some(bit) => known.device.kind & bit != 0,
        None => known.device.name.to_lowercase().contains(&word),
    })
}

/// Finds a device here for each device of the session. `requested` are lines of `NEW` or `OLD=NEW`.
///
/// # Errors
///
/// [`NoMatchingDevice`].
pub(crate) fn assign(
    saved_platforms: &[journal::Platform],
    platforms: &[journal::Platform],
    requested: &str,
) -> Result<Assignment, NoMatchingDevice> {
    let (old, new) = (flat(saved_platforms), flat(platforms));
    let (mut for_all, mut for_each_device) = (None, Vec::new());
    for requested in requested.lines().map(str::trim).filter(|requested| !requested.is_empty()) {
        let (device, new_name) = requested.split_once('=').map_or((None, requested), |(old, new)| (Some(old), new));
        let unknown = || NoMatchingDevice::Unknown { requested: new_name.to_owned(), have: names(&new) };
        let target = find(&new, new_name).ok_or_else(unknown)?;
        match device {
            None => for_all = Some(target),
            Some(device) => {
                let not_had = || NoMatchingDevice::NotHad { requested: device.to_owned(), had: names(&old) };
                for_each_device.push((find(&old, device).ok_or_else(not_had)?.index, target));
            }
        }
    }
    let mut devices = Vec::new();
    for old_device in &old {
        let requested = for_each_device.iter().find(|(index, _)| *index == old_device.index).map(|(_, target)| *target);
        let new_device =
            requested.or(for_all.filter(|_| old_device.device.is_used)).or_else(|| same(old_device, &old, &new));
        if new_device.is_none() && old_device.device.is_used {
            return Err(NoMatchingDevice::Gone { name: old_device.device.name.clone(), have: names(&new) });
        }
        devices.push(new_device);
    }
    check_capabilities(saved_platforms, &old, &devices)
}

/// Returns the matching device here: of the same name and platform, or at least of the same name. Among several it takes the one
/// at the same position.
fn same<'a, 'b>(
    old_device: &ListedDevice<'_>,
    old: &[ListedDevice<'_>],
    new: &'b [ListedDevice<'a>],
) -> Option<&'b ListedDevice<'a>> {
    let is_same_model = |other: &&ListedDevice<'_>| {
        other.device.name == old_device.device.name && other.platform == old_device.platform
    };
    let position = old.iter().filter(is_same_model).position(|listed| listed.index == old_device.index)?;
    let matching = || new.iter().filter(is_same_model);
    matching().nth(position).or_else(|| new.iter().find(|other| other.device.name == old_device.device.name))
}

/// Checks that the used devices of one platform stay on one platform.
fn check_capabilities(
    saved_platforms: &[journal::Platform],
    old: &[ListedDevice<'_>],
    new_device: &[Option<&ListedDevice<'_>>],
) -> Result<Assignment, NoMatchingDevice> {
    let mut platforms: Vec<Option<usize>> = vec![None; saved_platforms.len()];
    let pairs = || old.iter().zip(new_device).filter_map(|(old_device, new_device)| Some((old_device, (*new_device)?)));
    for (old_device, target) in pairs().filter(|(old_device, _)| old_device.device.is_used) {
        if target.device.bits != old_device.device.bits {
            let (saved, is) = (old_device.device.bits, target.device.bits);
            return Err(NoMatchingDevice::Bits { name: target.device.name.clone(), saved, is });
        }
        match platforms[old_device.index.0] {
            Some(platform) if platform != target.index.0 => {
                let other = old.iter().find(|other| other.index.0 == old_device.index.0 && other.device.is_used);
                let first = other.map_or_else(String::new, |other| other.device.name.clone());
                return Err(NoMatchingDevice::Split { first, second: old_device.device.name.clone() });
            }
            _ => platforms[old_device.index.0] = Some(target.index.0),
        }
    }
    for (old_device, target) in pairs() {
        platforms[old_device.index.0].get_or_insert(target.index.0);
    }
    let device = |(old_device, new_device): (&ListedDevice<'_>, &Option<&ListedDevice<'_>>)| {
        let target = new_device.filter(|target| platforms[old_device.index.0] == Some(target.index.0))?;
        let has_moved =
            (&target.device.name, &target.device.driver) != (&old_device.device.name, &old_device.device.driver);
        Some((target.index, has_moved))
    };
    let devices = old.iter().zip(new_device).map(device).collect();
    Ok(Assignment { platforms, devices })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, kind: u64, is_used: bool) -> journal::Device {
        journal::Device { name: name.into(), driver: "1".into(), kind, bits: 64, is_used }
    }

    fn platform(name: &str, devices: Vec<journal::Device>) -> journal::Platform {
        journal::Platform { name: name.into(), devices }
    }

    #[test]
    fn devices_go_on_as_those_of_their_names() {
        let had = [platform("a", vec![device("x", 2, false), device("y", 2, true), device("y", 2, true)])];
        let here = [platform("b", vec![device("g", 4, false)]), platform("a", vec![device("y", 2, false); 2])];
        let found = assign(&had, &here, "").unwrap();
        assert_eq!(found.platforms, [Some(1)]);
        assert_eq!(found.devices, [None, Some(((1, 0), false)), Some(((1, 1), false))]);
    }

    #[test]
    fn a_device_is_chosen_by_number_type_or_part_of_its_name() {
        let had = [platform("a", vec![device("My CPU", 2, true), device("other", 2, false)])];
        let here = [platform("a", vec![device("other", 2, false)]), platform("n", vec![device("Big GPU", 4, false)])];
        for requested in ["1", "gpu", "big", "cpu=gpu", "0=Big", "my=1"] {
            let found = assign(&had, &here, requested).unwrap();
            assert_eq!(found.devices[0], Some(((1, 0), true)), "{requested}");
            // The platform is not that of the used device.
            assert_eq!((found.devices[1], &found.platforms[..]), (None, &[Some(1)][..]));
        }
    }

    #[test]
    fn impossible_device_assignments_are_named() {
        let had = [platform("a", vec![device("x", 2, true), device("y", 2, true)])];
        let here = [platform("a", vec![device("x", 2, false)]), platform("b", vec![device("z", 4, false)])];
        let text = |requested| assign(&had, &here, requested).unwrap_err().to_string();
        assert_eq!(
            text(""),
            "the program uses the device y, which is not here; there are: 0 x, 1 z; name one with --device"
        );
        assert!(text("7").contains("no device \"7\"; this server has") && text("q=x").contains("no device \"q\""));
        assert!(text("y=z").contains("of one platform"));
        let narrow = [platform("a", vec![journal::Device { bits: 32, ..device("x", 2, false) }])];
        assert!(matches!(assign(&had, &narrow, "x"), Err(NoMatchingDevice::Bits { saved: 64, is: 32, .. })));
    }
}
