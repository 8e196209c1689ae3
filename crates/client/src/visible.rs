//! `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER`: which of the worker's devices this program sees, and in which order.
//!
//! The driver reads the variables in its own process, which here is the worker's. So they are applied on this side: first the
//! order, then the selection. Entries are ordinals or the beginning of a UUID (`GPU-8a2bfe9a…`). As in the driver, the first
//! entry that names no device hides itself and all that follow.

use katydid_cuda_sys::CUuuid;

/// Returns the positions of the worker's devices in the order that the program requested. `PCI_BUS_ID` sorts by `addresses`, such
/// as `0000:19:00.0`. `FASTEST_FIRST`, any other value, and no setting leave the driver's own order.
pub fn ordered(setting: Option<&str>, addresses: &[&str]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..addresses.len()).collect();
    if setting.is_some_and(|setting| setting.trim() == "PCI_BUS_ID") {
        order.sort_by_key(|position| address(addresses[*position]));
    }
    order
}

/// Parses the numbers of an address. Addresses that cannot be parsed sort last, in their order.
fn address(text: &str) -> (bool, Vec<u32>) {
    let numbers: Result<Vec<u32>, _> = text.split([':', '.']).map(|part| u32::from_str_radix(part, 16)).collect();
    (numbers.is_err(), numbers.unwrap_or_default())
}

/// Returns the positions, among the worker's devices, of those that the program sees. `uuids` are the devices' in ordinal order.
pub fn visible(setting: Option<&str>, uuids: &[[u8; 16]]) -> Vec<usize> {
    let Some(setting) = setting else { return (0..uuids.len()).collect() };
    let mut listed = Vec::new();
    for entry in setting.split(',').map(str::trim) {
        match position(entry, uuids) {
            // A device named twice makes the whole list invalid.
            Some(index) if listed.contains(&index) => return Vec::new(),
            Some(index) => listed.push(index),
            None => break,
        }
    }
    listed
}

fn spelled(bytes: [u8; 16]) -> String {
    CUuuid { bytes }.to_string()
}

fn position(entry: &str, uuids: &[[u8; 16]]) -> Option<usize> {
    if let Some(prefix) = entry.strip_prefix("GPU-") {
        let lowercase_prefix = prefix.to_ascii_lowercase();
        let mut matching = uuids.iter().enumerate().filter(|(_, uuid)| spelled(**uuid).starts_with(&lowercase_prefix));
        let first = matching.next()?.0;
        // A prefix that fits several devices selects none.
        return (!lowercase_prefix.is_empty() && matching.next().is_none()).then_some(first);
    }
    let ordinal: usize = entry.parse().ok()?;
    (ordinal < uuids.len()).then_some(ordinal)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uuids() -> [[u8; 16]; 3] {
        [[0x11; 16], [0x12; 16], [0xab; 16]]
    }

    #[test]
    fn without_the_variable_all_devices_are_seen() {
        assert_eq!(visible(None, &uuids()), [0, 1, 2]);
        assert_eq!(visible(Some(""), &uuids()), []);
    }

    #[test]
    fn ordinals_choose_and_order() {
        assert_eq!(visible(Some("2, 0"), &uuids()), [2, 0]);
        assert_eq!(visible(Some("1,7,0"), &uuids()), [1]);
        assert_eq!(visible(Some("-1"), &uuids()), []);
        assert_eq!(visible(Some("0,0"), &uuids()), []);
    }

    #[test]
    fn the_order_of_addresses_counts_only_where_it_is_wished() {
        let addresses = ["0000:c1:00.0", "0000:19:00.0", "0001:01:00.0"];
        assert_eq!(ordered(Some("PCI_BUS_ID"), &addresses), [1, 0, 2]);
        assert_eq!(ordered(Some("FASTEST_FIRST"), &addresses), [0, 1, 2]);
        assert_eq!(ordered(None, &addresses), [0, 1, 2]);
        assert_eq!(ordered(Some("PCI_BUS_ID"), &["nonsense", "0000:01:00.0"]), [1, 0]);
    }

    #[test]
    fn uuids_choose_by_an_unambiguous_prefix() {
        assert_eq!(visible(Some("GPU-ab,GPU-11111111-1111"), &uuids()), [2, 0]);
        assert_eq!(visible(Some("GPU-1"), &uuids()), []);
        assert_eq!(visible(Some("GPU-AB"), &uuids()), [2]);
        assert_eq!(visible(Some("GPU-"), &uuids()), []);
    }
}
