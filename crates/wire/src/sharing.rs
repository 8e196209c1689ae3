//! What a session shares with other sessions of its server at one moment. With it a supervisor checks that a checkpoint has both
//! sides of everything.

use crate::codec::{CodecError, Field as _, Reader};

/// Bytes of an exporter's id.
pub const EXPORTER_ID_BYTES: usize = 8;
/// Bytes of the secret that names an export.
pub const SECRET_BYTES: usize = 16;
/// Note in an image of a session that has exported something.
pub const EXPORTS_NOTE: &str = "exports";

/// What a session exports to other sessions, and what it imports from them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sharing {
    /// The session's own id; none if it has exported nothing.
    pub exporter_id: Option<[u8; EXPORTER_ID_BYTES]>,
    /// Exports of this session that others hold.
    pub held: Vec<SharedHolding>,
    /// Memory and events of other sessions that this one holds.
    pub imported: Vec<Import>,
}

/// Memory or an event of a session that others hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedHolding {
    /// Random bytes that name the exported memory or event.
    pub secret: [u8; SECRET_BYTES],
    /// How many hold it. A session that holds it twice counts twice.
    pub holders: u32,
    /// Whether the session still has it, and exports it.
    pub is_exported: bool,
}

/// Memory or an event of another session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Import {
    /// Id of the session that exports, [`Sharing::exporter_id`] there.
    pub exporter_id: [u8; EXPORTER_ID_BYTES],
    /// Random bytes that name the exported memory or event.
    pub secret: [u8; SECRET_BYTES],
}

impl Sharing {
    /// Returns whether anything of either side is in use.
    pub fn is_some(&self) -> bool {
        !self.held.is_empty() || !self.imported.is_empty()
    }

    /// Encodes the record in the form that [`Sharing::decode`] reads.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.exporter_id.map_or_else(Vec::new, Vec::from).put(&mut out);
        (self.held.len() as u32).put(&mut out);
        for held in &self.held {
            held.secret.to_vec().put(&mut out);
            held.holders.put(&mut out);
            u8::from(held.is_exported).put(&mut out);
        }
        (self.imported.len() as u32).put(&mut out);
        for it in &self.imported {
            it.exporter_id.to_vec().put(&mut out);
            it.secret.to_vec().put(&mut out);
        }
        out
    }

    /// Decodes a record.
    ///
    /// # Errors
    ///
    /// The bytes are too few or too many.
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new("what a session shares", bytes);
        let mut it = Self { exporter_id: exactly(reader.take()?), ..Self::default() };
        for _ in 0..reader.take::<u32>()? {
            let secret = exactly(reader.take()?).unwrap_or_default();
            it.held.push(SharedHolding { secret, holders: reader.take()?, is_exported: reader.take::<u8>()? != 0 });
        }
        for _ in 0..reader.take::<u32>()? {
            let exporter_id = exactly(reader.take()?).unwrap_or_default();
            it.imported.push(Import { exporter_id, secret: exactly(reader.take()?).unwrap_or_default() });
        }
        reader.finish(it)
    }
}

/// Returns none for another length: there is no such exporter.
fn exactly<const N: usize>(bytes: Vec<u8>) -> Option<[u8; N]> {
    bytes.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_directions_survive_encoding_and_damage_is_noticed() {
        let held = vec![SharedHolding { secret: [1; SECRET_BYTES], holders: 3, is_exported: true }];
        let all = Sharing {
            exporter_id: Some([7; EXPORTER_ID_BYTES]),
            held,
            imported: vec![Import { exporter_id: [2; EXPORTER_ID_BYTES], secret: [3; SECRET_BYTES] }],
        };
        for sharing in [all, Sharing::default()] {
            let bytes = sharing.encode();
            assert_eq!(Sharing::decode(&bytes), Ok(sharing));
            assert!(Sharing::decode(&bytes[1..]).is_err() && Sharing::decode(&[&bytes[..], &[0]].concat()).is_err());
        }
    }
}
