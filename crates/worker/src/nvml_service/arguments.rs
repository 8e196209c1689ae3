//! Decodes and checks the arguments of a call, and encodes answers as the program expects them.

use katydid_wire::nvml::{ArgumentKind, ByteReader, Function, MAX_NVML_TEXT_BYTES, code};

/// Largest structure that gives its own size, in bytes.
const MAX_STRUCTURE_BYTES: usize = 1 << 16;
/// The bits of a structure's first word that give its size; the others are its version.
const SIZE_MASK: u32 = 0x00ff_ffff;

/// Value of one argument of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Argument {
    /// A device, in the server's order.
    Device(u32),
    /// An integer of up to 64 bits.
    Value(u64),
    /// A string, with its NUL.
    Text(Vec<u8>),
    /// An output of this many bytes, and whether it is wanted.
    Out(usize, bool),
    /// The caller's text buffer, with its size in bytes.
    TextBuffer(usize),
    /// A structure to fill, whose first word has its size.
    Versioned(Vec<u8>),
    /// Bytes of an element, the number that fit, and whether they are wanted.
    List(usize, u32, bool),
    /// Like `List`, with the count behind the elements.
    ListThenCount(usize, u32, bool),
    /// The number of devices that fit, and whether they are wanted.
    Devices(u32, bool),
    /// The number of elements, and their bytes.
    SizedList(u32, Vec<u8>),
    /// An output that is a device.
    DeviceOut,
}

/// Decodes the arguments of a call. Returns none where bytes are missing, left over, or too many.
pub(super) fn read(function: &Function, payload: &[u8]) -> Option<Vec<Argument>> {
    let mut parts = ByteReader(payload);
    let arguments =
        function.arguments.iter().map(|kind| read_argument(*kind, &mut parts)).collect::<Option<Vec<_>>>()?;
    parts.is_empty().then_some(arguments)
}

fn read_argument(kind: ArgumentKind, parts: &mut ByteReader<'_>) -> Option<Argument> {
    Some(match kind {
        ArgumentKind::Device => Argument::Device(parts.word()?),
        ArgumentKind::Value | ArgumentKind::Wide => Argument::Value(parts.wide()?),
        ArgumentKind::Text => {
            let length = parts.length()?;
            let mut text = parts.bytes(length)?.to_vec();
            text.push(0);
            Argument::Text(text)
        }
        ArgumentKind::Out(size) => Argument::Out(size, parts.flag()?),
        ArgumentKind::TextBuffer => Argument::TextBuffer(parts.length()?),
        ArgumentKind::Versioned => {
            let length = parts.length().filter(|length| (4..=MAX_STRUCTURE_BYTES).contains(length))?;
            let bytes = parts.bytes(length)?;
            // The library fills as many bytes as the structure's size, so that must be its actual length.
            let declared_size = bytes.first_chunk().map(|word| u32::from_le_bytes(*word) & SIZE_MASK)?;
            (declared_size as usize == length).then(|| Argument::Versioned(bytes.to_vec()))?
        }
        ArgumentKind::List(size) => {
            let (count, wants_elements) = requested_elements(parts, size)?;
            Argument::List(size, count, wants_elements)
        }
        ArgumentKind::ListThenCount(size) => {
            let (count, wants_elements) = requested_elements(parts, size)?;
            Argument::ListThenCount(size, count, wants_elements)
        }
        ArgumentKind::Devices => {
            let (count, wants_devices) = requested_elements(parts, size_of::<u64>())?;
            Argument::Devices(count, wants_devices)
        }
        ArgumentKind::SizedList(size) => {
            let count = parts.word()?;
            let length = (count as usize).checked_mul(size).filter(|length| *length <= MAX_NVML_TEXT_BYTES)?;
            Argument::SizedList(count, parts.bytes(length)?.to_vec())
        }
        ArgumentKind::DeviceOut => Argument::DeviceOut,
    })
}

/// Reads how many elements of a size fit, and whether the caller wants them. Returns none if they are too many.
fn requested_elements(parts: &mut ByteReader<'_>, size: usize) -> Option<(u32, bool)> {
    let (count, wants_elements) = (parts.word()?, parts.flag()?);
    let fits = !wants_elements || (count as usize).checked_mul(size)? <= MAX_NVML_TEXT_BYTES;
    fits.then_some((count, wants_elements))
}

/// Returns a text with its NUL, if that fits in `capacity` bytes.
pub(super) fn text(capacity: usize, text: &str) -> Result<Vec<u8>, u32> {
    if text.len() >= capacity {
        return Err(code::INSUFFICIENT_SIZE);
    }
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(capacity, 0);
    Ok(bytes)
}

/// Returns a count, and the elements if they fit.
pub(super) fn list(capacity: u32, wants_elements: bool, elements: &[Vec<u8>]) -> (u32, Vec<Vec<u8>>) {
    let count = (elements.len() as u32).to_le_bytes().to_vec();
    let fits = elements.len() <= capacity as usize;
    match (fits, wants_elements) {
        (true, true) => (code::SUCCESS, vec![[count, elements.concat()].concat()]),
        (true, false) if elements.is_empty() => (code::SUCCESS, vec![count]),
        _ => (code::INSUFFICIENT_SIZE, vec![count]),
    }
}

#[cfg(test)]
mod tests {
    use katydid_wire::nvml::{function, opcode};

    use super::*;

    fn parse_for(name: &str, payload: &[u8]) -> Option<Vec<Argument>> {
        read(function(opcode(name).unwrap()).unwrap(), payload)
    }

    #[test]
    fn arguments_are_whole_or_none() {
        let arguments = parse_for("nvmlDeviceGetEccMode", &[1, 0, 0, 0, 1, 0]);
        assert_eq!(arguments, Some(vec![Argument::Device(1), Argument::Out(4, true), Argument::Out(4, false)]));
        assert_eq!(parse_for("nvmlDeviceGetEccMode", &[1, 0, 0, 0, 1]), None);
        assert_eq!(parse_for("nvmlDeviceGetEccMode", &[1, 0, 0, 0, 1, 0, 0]), None);
        assert_eq!(parse_for("nvmlDeviceGetFieldValues", &[0, 0, 0, 0, 255, 255, 255, 255]), None);
        assert_eq!(parse_for("nvmlDeviceGetMemoryInfo_v2", &[0, 0, 0, 0, 2, 0, 0, 0, 1, 1]), None);
    }

    #[test]
    fn a_structure_has_as_many_bytes_as_the_library_will_write() {
        let parse_structure = |declared_size: u8, there: u8| {
            let head =
                [&[0, 0, 0, 0, there, 0, 0, 0, declared_size, 0, 0, 2][..], &vec![0; usize::from(there) - 4]].concat();
            parse_for("nvmlDeviceGetMemoryInfo_v2", &head)
        };
        assert!(
            matches!(parse_structure(40, 40).as_deref(), Some([_, Argument::Versioned(bytes)]) if bytes.len() == 40)
        );
        assert_eq!([parse_structure(40, 4), parse_structure(40, 39), parse_structure(4, 40)], [None, None, None]);
    }

    #[test]
    fn answers_fit_their_room_or_say_that_they_do_not() {
        assert_eq!(text(3, "ab"), Ok(vec![b'a', b'b', 0]));
        assert_eq!(text(2, "ab"), Err(code::INSUFFICIENT_SIZE));
        let elements = [vec![1, 2], vec![3, 4]];
        assert_eq!(list(2, true, &elements), (code::SUCCESS, vec![vec![2, 0, 0, 0, 1, 2, 3, 4]]));
        assert_eq!(list(1, true, &elements), (code::INSUFFICIENT_SIZE, vec![vec![2, 0, 0, 0]]));
        assert_eq!(list(0, false, &[]), (code::SUCCESS, vec![vec![0; 4]]));
    }
}
