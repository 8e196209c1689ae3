//! The integrity digest: HMAC-MD2 under one fixed key, over a 48-byte header and 28 bytes a device.
//!
//! | offset  | bytes | field                                            |
//! |--------:|------:|--------------------------------------------------|
//! |       0 |     4 | driver version                                   |
//! |       4 |     4 | version asked about                              |
//! |       8 |     4 | process id                                       |
//! |      12 |     4 | low half of `pthread_self()`                     |
//! |      16 |     8 | address of the CUDART table                      |
//! |      24 |     8 | address of the INTEGRITY table                   |
//! |      32 |     8 | INTEGRITY slot 1                                 |
//! |      40 |     8 | time, as the caller gave it                      |
//! | 48+28·i |    16 | UUID of device i                                 |
//! | 64+28·i |  3×4  | its PCI domain, bus and device                   |
//!
//! All little-endian, packed. Versions that end in 0 or 1 have fixed answers instead.

mod md2;
use crate::digest::md2::hmac;
use crate::facts::DeviceIdentity;

const DIGEST_KEY: [u8; 16] =
    [0x14, 0x6a, 0xdd, 0xae, 0x53, 0xa9, 0xa7, 0x52, 0xaa, 0x08, 0x41, 0x36, 0x0b, 0xf5, 0x5a, 0x9f];

/// Second half of both fixed answers.
const FIXED_ANSWER_TAIL: u64 = 0x8ED3_83AA_1F4C_D1E8;

/// The header's fields: the caller, the time, and the addresses of the tables.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// The answer of `cuDriverGetVersion` of this library.
    pub driver_version: u32,
    /// The version in the caller's query; its last digit picks the kind of answer.
    pub version: u32,
    /// `getpid()`, read each time: it changes in a forked child.
    pub process: u32,
    /// Low 32 bits of the calling thread's `pthread_self()`.
    pub thread: u32,
    /// Address of the CUDART table.
    pub cudart_table: u64,
    /// Address of the INTEGRITY table.
    pub integrity_table: u64,
    /// Value of the INTEGRITY table's slot 1.
    pub integrity_slot: u64,
    /// Seconds since 1970, as the caller gave them.
    pub unix_seconds: u64,
}

/// Returns the two words that the runtime compares with its own.
pub fn digest(header: &Header, devices: &[DeviceIdentity]) -> [u64; 2] {
    match header.version % 10 {
        0 => [0x3341_181C_03CB_675C, FIXED_ANSWER_TAIL],
        1 => [0x1841_181C_03CB_675C, FIXED_ANSWER_TAIL],
        _ => to_words(hmac(&DIGEST_KEY, &message(header, devices))),
    }
}

/// Returns the digest's bytes as two little-endian words.
fn to_words(bytes: [u8; 16]) -> [u64; 2] {
    let both = u128::from_le_bytes(bytes);
    [both as u64, (both >> 64) as u64]
}

/// Returns the bytes that are hashed.
fn message(header: &Header, devices: &[DeviceIdentity]) -> Vec<u8> {
    let mut message = Vec::with_capacity(48 + 28 * devices.len());
    for word in [header.driver_version, header.version, header.process, header.thread] {
        message.extend(word.to_le_bytes());
    }
    for word in [header.cudart_table, header.integrity_table, header.integrity_slot, header.unix_seconds] {
        message.extend(word.to_le_bytes());
    }
    for device in devices {
        message.extend(device.uuid);
        for word in [device.pci_domain, device.pci_bus, device.pci_device] {
            message.extend(word.to_le_bytes());
        }
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header and a device whose digests are known from real runtimes.
    const HEADER: Header = Header {
        driver_version: 0x2f30,
        version: 12082,
        process: 0x2f_a423,
        thread: 0xf79c_1000,
        cudart_table: 0x7fff_f695_8240,
        integrity_table: 0x7fff_f695_8220,
        integrity_slot: 0x7fff_f2aa_f4a0,
        unix_seconds: 0x682b_9cee,
    };

    fn device() -> DeviceIdentity {
        let words = [0x8a2b_fe9a_u32, 0x382d_25ac, 0xc5ae_37ea, 0x5f32_716d].map(u32::to_le_bytes);
        let mut uuid = [0; 16];
        uuid.copy_from_slice(words.as_flattened());
        DeviceIdentity { uuid, pci_domain: 0, pci_bus: 2, pci_device: 0 }
    }

    #[test]
    fn the_digest_equals_the_known_answers() {
        assert_eq!(digest(&HEADER, &[device()]), [0xf7ce_26b0_71a1_4844, 0xdd02_1b05_393e_8c6c]);
        let bare = [0x07, 0x79, 0xef, 0x5e, 0x4f, 0xfa, 0x2d, 0xd2, 0x07, 0x52, 0x75, 0x03, 0xd1, 0x90, 0x7b, 0xfa];
        assert_eq!(digest(&HEADER, &[]), to_words(bare));
    }

    #[test]
    fn versions_ending_in_zero_or_one_have_fixed_answers() {
        let digest_of = |version| digest(&Header { version, ..HEADER }, &[device()]);
        assert_eq!(digest_of(13000), [0x3341_181C_03CB_675C, 0x8ED3_83AA_1F4C_D1E8]);
        assert_eq!(digest_of(12081), [0x1841_181C_03CB_675C, 0x8ED3_83AA_1F4C_D1E8]);
    }

    #[test]
    fn every_field_changes_the_digest() {
        let base = digest(&HEADER, &[device()]);
        let changed = [
            Header { process: 1, ..HEADER },
            Header { thread: 1, ..HEADER },
            Header { integrity_slot: 1, ..HEADER },
            Header { unix_seconds: 1, ..HEADER },
        ];
        assert!(changed.iter().all(|header| digest(header, &[device()]) != base));
        assert_ne!(digest(&HEADER, &[device(), device()]), base);
    }
}
