//! The three descriptors of `cuTexObjectCreate`, in `kdTextureCreate`.
//!
//! Layout: every number below in this order as 64 little-endian bits; floats by their bits; an omitted view is zeros. The reader
//! takes exactly that many bytes.

/// Number of 64-bit words in the layout.
const TEXTURE_WORDS: usize = 8 + 14 + 9;
/// Bytes of the layout.
pub const TEXTURE_BYTES: usize = 8 * TEXTURE_WORDS;

/// The descriptors. Fields have the header's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TextureArguments {
    /// `resType`, a `CUresourcetype`: array, mipmapped array, linear or pitched memory.
    pub kind: u32,
    /// Id of the array or mipmap; 0 for memory.
    pub array: u32,
    /// Address of linear or pitched memory.
    pub address: u64,
    /// `format` of that memory.
    pub format: u32,
    /// `numChannels` of that memory.
    pub channels: u32,
    /// `sizeInBytes` of linear memory, `width` of pitched memory.
    pub size: u64,
    /// `height` of pitched memory.
    pub height: u64,
    /// `pitchInBytes` of pitched memory.
    pub pitch: u64,
    /// `CUDA_TEXTURE_DESC` up to its border color, field by field.
    pub sampler: [u32; 14],
    /// `CUDA_RESOURCE_VIEW_DESC` up to its last layer, field by field, if one was given.
    pub view: Option<[u64; 8]>,
}

impl TextureArguments {
    /// Encodes the descriptors in [`TEXTURE_BYTES`] bytes.
    pub fn encode(&self) -> Vec<u8> {
        let Self { kind, array, address, format, channels, size, height, pitch, sampler, view } = *self;
        let mut fields = vec![kind.into(), array.into(), address, format.into(), channels.into(), size, height, pitch];
        fields.extend(sampler.map(u64::from));
        fields.push(view.is_some().into());
        fields.extend(view.unwrap_or_default());
        fields.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    /// Decodes the descriptors; `None` for bytes that `encode` does not produce.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != TEXTURE_BYTES {
            return None;
        }
        let (chunks, _) = bytes.as_chunks::<8>();
        let mut fields = chunks.iter().map(|chunk| u64::from_le_bytes(*chunk));
        let mut wide = || fields.next();
        let small = |word: Option<u64>| u32::try_from(word?).ok();
        let (kind, array, address) = (small(wide())?, small(wide())?, wide()?);
        let (format, channels) = (small(wide())?, small(wide())?);
        let (size, height, pitch) = (wide()?, wide()?, wide()?);
        let mut sampler = [0; 14];
        for out in &mut sampler {
            *out = small(wide())?;
        }
        let view_mark = wide()?;
        let mut numbers = [0; 8];
        for out in &mut numbers {
            *out = wide()?;
        }
        let view = match view_mark {
            0 if numbers == [0; 8] => None,
            1 => Some(numbers),
            _ => return None,
        };
        Some(Self { kind, array, address, format, channels, size, height, pitch, sampler, view })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texture_arguments_round_trip() {
        let whole = TextureArguments {
            kind: 3,
            address: 1 << 45,
            format: 0x20,
            channels: 4,
            size: 9,
            height: 8,
            pitch: 512,
            sampler: std::array::from_fn(|at| u32::MAX - at as u32),
            view: Some([1, 2, 3, 4, 5, 6, 7, 8]),
            ..TextureArguments::default()
        };
        for arguments in [whole, TextureArguments { view: None, array: 7, ..whole }] {
            assert_eq!(TextureArguments::decode(&arguments.encode()), Some(arguments));
        }
    }

    #[test]
    fn other_bytes_are_refused() {
        let bytes = TextureArguments::default().encode();
        assert_eq!(TextureArguments::decode(&bytes[1..]), None);
        for (at, value) in [(4, 1), (8 * 22, 2), (8 * 30, 1)] {
            let mut damaged = bytes.clone();
            damaged[at] = value;
            assert_eq!(TextureArguments::decode(&damaged), None, "{at}");
        }
    }
}
