//! `CUDA_VISIBLE_DEVICES`: which of the worker's devices this program sees, and in which order.
//!
//! The driver reads the variable in its own process, which here is the worker's; so the filter is applied on this
//! side. Entries are ordinals or the beginning of a UUID (`GPU-8a2bfe9a…`); the first entry that names no device
//! hides itself and all that follow, as the driver does.

/// Positions, among the worker's devices, of those the program sees. `uuids` are the devices' in ordinal order.
pub fn visible(setting: Option<&str>, uuids: &[[u8; 16]]) -> Vec<usize> {
    let Some(setting) = setting else { return (0..uuids.len()).collect() };
    let mut seen = Vec::new();
    for entry in setting.split(',').map(str::trim) {
        match position(entry, uuids) {
            // A device named twice makes the whole list invalid.
            Some(index) if seen.contains(&index) => return Vec::new(),
            Some(index) => seen.push(index),
            None => break,
        }
    }
    seen
}

fn position(entry: &str, uuids: &[[u8; 16]]) -> Option<usize> {
    if let Some(prefix) = entry.strip_prefix("GPU-") {
        let wanted = prefix.to_ascii_lowercase();
        let mut matching = uuids.iter().enumerate().filter(|(_, uuid)| spelled(uuid).starts_with(&wanted));
        let first = matching.next()?.0;
        // A prefix that fits several devices names none.
        return (!wanted.is_empty() && matching.next().is_none()).then_some(first);
    }
    let ordinal: usize = entry.parse().ok()?;
    (ordinal < uuids.len()).then_some(ordinal)
}

/// A UUID in groups of 8-4-4-4-12 digits.
fn spelled(uuid: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (at, byte) in uuid.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
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
    fn uuids_choose_by_an_unambiguous_prefix() {
        assert_eq!(visible(Some("GPU-ab,GPU-11111111-1111"), &uuids()), [2, 0]);
        assert_eq!(visible(Some("GPU-1"), &uuids()), []);
        assert_eq!(visible(Some("GPU-AB"), &uuids()), [2]);
        assert_eq!(visible(Some("GPU-"), &uuids()), []);
    }
}
