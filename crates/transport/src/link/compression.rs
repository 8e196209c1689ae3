//! Compression of bulk with LZ4, over links slower than the compressor.
//!
//! Whether a piece is compressed depends on the measured time that link and compressor take for a byte, never on an estimate.
//!
//! Sends measure the link: they wait for room once the socket's own memory is full. So do calls that bring bulk, less the time
//! that the other side reports it waited. The measure is the time in which any thread sent or fetched bulk, over the bytes of all
//! threads. So threads that only wait for each other's processors do not make a link look slow.
//!
//! The compressor's time is that of one thread, over its earlier pieces. A sample of each piece predicts how much shorter the
//! piece would become. No samples are taken on a link so fast that even an empty result would not arrive sooner. Contents that do
//! not become shorter are sampled ever less often. Only uncompressed pieces measure the link, so after many compressed bytes it
//! is measured again.
//!
//! A compressed piece is one block of LZ4, and always shorter than its contents. The message gives the decompressed size, which
//! is checked like any size in a message. Decompression never exceeds it.

use std::cell::RefCell;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};

/// Fewest bytes that compression considers.
pub const MIN_COMPRESSED_BYTES: usize = 64 << 10;
/// Bytes of a piece that the sample compresses, in parts that are not adjacent.
const SAMPLE_BYTES: usize = 24 << 10;
const SAMPLE_PARTS: usize = 3;
/// Bytes that must have gone over a link before its pace counts: a socket buffers the first ones.
const MIN_MEASURED_BYTES: u64 = 4 << 20;
/// A measurement counts half after this many further bytes.
const MEASUREMENT_HALF_LIFE_BYTES: u64 = 32 << 20;
/// Compression has to save this share of the time, since measurements do not predict exactly.
const MIN_TIME_SAVED_SHARE: f64 = 0.35;
/// After this many compressed bytes, the link is measured again.
const REMEASURE_AFTER_BYTES: u64 = 512 << 20;
/// A compressed piece is shorter by at least this share.
const MIN_SIZE_SAVED_SHARE: f64 = 0.2;
/// Most pieces that are sent uncompressed before the next sample.
const MAX_SKIPPED_PIECES: u32 = 64;

/// Pieces between two measurements of a link that was fast.
const PIECES_BETWEEN_MEASUREMENTS: u32 = 64;

/// Whether a program compresses bulk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CompressionMode {
    /// Bulk is never compressed.
    #[default]
    Off,
    /// Compresses where, by measurement, that brings bulk to the other side sooner.
    Auto,
    /// Compresses wherever bulk becomes shorter.
    Always,
}

impl CompressionMode {
    /// Returns the mode that users call `name`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "off" => Some(Self::Off),
            "auto" => Some(Self::Auto),
            "always" => Some(Self::Always),
            _ => None,
        }
    }
}

/// Picoseconds per byte, as messages carry them. More than four milliseconds per byte count as four.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pace(pub u32);

impl Pace {
    /// The pace of a link over which bulk is always compressed.
    pub const ENDLESS: Self = Self(u32::MAX);
    /// The pace of a link over which nothing is compressed: it is only to be measured.
    pub const UNKNOWN: Self = Self(0);

    fn of(bytes: u64, took: Duration) -> Self {
        let picoseconds = took.as_nanos().saturating_mul(1000) / u128::from(bytes.max(1));
        Self(u32::try_from(picoseconds).unwrap_or(u32::MAX))
    }
}

/// Why compressed bytes were refused. The peer is at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{packed} packed bytes do not become the {announced} that were announced")]
pub struct DecompressError {
    /// Decompressed bytes that the message announced.
    pub announced: usize,
    /// Compressed bytes that came.
    pub packed: usize,
}

/// Decompresses into `bytes`, whose length is the announced size.
///
/// # Errors
///
/// [`DecompressError`]: the block is damaged, yields more or fewer bytes, or is not shorter than the data, as a sender's is.
pub fn unpack(packed: &[u8], bytes: &mut [u8]) -> Result<(), DecompressError> {
    let error = DecompressError { announced: bytes.len(), packed: packed.len() };
    let becomes_all = |bytes: &mut [u8]| decompress_into(packed, bytes).is_ok_and(|written| written == bytes.len());
    if packed.len() < bytes.len() && becomes_all(bytes) { Ok(()) } else { Err(error) }
}

thread_local! {
    /// The compressor's memory, one for each thread.
    static COMPRESSOR: RefCell<Compressor> = RefCell::default();
}

/// Compresses pieces, one after the other.
#[derive(Default)]
struct Compressor {
    table: CompressTable,
    packed: Vec<u8>,
}

impl Compressor {
    /// Returns the compressed form of `bytes`; none if it is not shorter.
    fn pack(&mut self, bytes: &[u8]) -> Option<&[u8]> {
        self.packed.resize(get_maximum_output_size(bytes.len()), 0);
        let written = compress_into_with_table(bytes, &mut self.packed, &mut self.table).ok()?;
        (written < bytes.len()).then(|| &self.packed[..written])
    }
}

/// Runs `work` with this thread's compressor. Returns the result and the time taken.
fn timed<T>(work: impl FnOnce(&mut Compressor) -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = COMPRESSOR.with_borrow_mut(work);
    (result, start.elapsed())
}

/// What is known of one direction of a link, and of the compressor on its sending side.
#[derive(Debug)]
pub struct CompressionPolicy {
    measured: Mutex<Measurements>,
}

#[derive(Debug)]
struct Measurements {
    link: RunningRate,
    packer: RunningRate,
    /// Pieces still to send without a sample, and the last such number.
    to_skip: u32,
    skipped: u32,
    /// Pieces still to request without a measurement.
    unmeasured: u32,
    /// Threads that are moving a piece, and the start of the time that counts.
    moving: u32,
    since: Option<Instant>,
    /// Compressed bytes since the link was last measured.
    packed: u64,
}

/// Bytes and the time that they took. Later ones count more.
#[derive(Debug, Clone, Copy)]
struct RunningRate {
    bytes: u64,
    time: Duration,
}

impl RunningRate {
    const NOTHING: Self = Self { bytes: 0, time: Duration::ZERO };

    fn note(&mut self, bytes: usize, took: Duration) {
        (self.bytes, self.time) = (self.bytes + bytes as u64, self.time + took);
        if self.bytes > MEASUREMENT_HALF_LIFE_BYTES {
            (self.bytes, self.time) = (self.bytes / 2, self.time / 2);
        }
    }

    /// Returns none with fewer than `enough` bytes.
    fn pace(self, enough: u64) -> Option<Pace> {
        (self.bytes >= enough).then(|| Pace::of(self.bytes, self.time))
    }
}

/// Whether compressing bytes to `share` of their length brings them to the other side sooner.
fn pays(link: Pace, packer: Pace, share: f64) -> bool {
    f64::from(packer.0) + share * f64::from(link.0) < (1.0 - MIN_TIME_SAVED_SHARE) * f64::from(link.0)
}

impl Default for CompressionPolicy {
    fn default() -> Self {
        Self::new()
    }
}

impl CompressionPolicy {
    /// Starts without measurements.
    #[must_use]
    pub const fn new() -> Self {
        let (link, packer) = (RunningRate::NOTHING, RunningRate::NOTHING);
        let measured =
            Measurements { link, packer, to_skip: 0, skipped: 0, unmeasured: 0, moving: 0, since: None, packed: 0 };
        Self { measured: Mutex::new(measured) }
    }

    fn measured(&self) -> MutexGuard<'_, Measurements> {
        // No code under this lock panics.
        self.measured.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the calling thread begins to move a piece over the link.
    pub fn begin(&self) {
        let mut measured = self.measured();
        measured.moving += 1;
        measured.since.get_or_insert_with(Instant::now);
    }

    /// Notes a piece of which `sent` bytes went over the link, less the time that the other side waited for something else.
    /// `sent` is 0 for a piece that was not moved.
    pub fn end(&self, bytes: usize, sent: usize, waited: Duration) {
        let mut measured = self.measured();
        let now = Instant::now();
        let took = measured.since.map_or(Duration::ZERO, |since| now.duration_since(since));
        measured.moving = measured.moving.saturating_sub(1);
        measured.since = (measured.moving > 0).then_some(now);
        if sent == bytes {
            measured.link.note(bytes, took.saturating_sub(waited));
        } else if sent > 0 {
            measured.note_packed(bytes);
        }
    }

    /// Notes the measured pace of the other side's compressor.
    pub fn packs(&self, pace: Pace) {
        self.measured().packer =
            RunningRate { bytes: 1 << 20, time: Duration::from_nanos((u64::from(pace.0) << 20) / 1000) };
    }

    /// Returns the link's pace, if compression could make up for it at all.
    fn slow_link(&self) -> Option<Pace> {
        let measured = self.measured();
        let link = measured.link.pace(MIN_MEASURED_BYTES)?;
        measured.could_pay(link).then_some(link)
    }

    /// Returns the pace to send with a request for a piece that the other side may compress. None requests the piece
    /// uncompressed, which is quicker on a fast link.
    pub fn requested_pace(&self, packing: CompressionMode) -> Option<Pace> {
        match packing {
            CompressionMode::Off => return None,
            CompressionMode::Always => return Some(Pace::ENDLESS),
            CompressionMode::Auto => {}
        }
        let mut measured = self.measured();
        let Some(link) = measured.link.pace(MIN_MEASURED_BYTES) else { return Some(Pace::UNKNOWN) };
        if measured.could_pay(link) {
            return Some(link);
        }
        measured.unmeasured = (measured.unmeasured + 1) % PIECES_BETWEEN_MEASUREMENTS;
        (measured.unmeasured == 0).then_some(Pace::UNKNOWN)
    }

    /// Returns the pace of this side's compressor, if it was measured.
    pub fn packer(&self) -> Option<Pace> {
        self.measured().packer.pace(1)
    }

    /// Returns the compressed form of `bytes`, if that is to be sent instead.
    pub fn pack(&self, packing: CompressionMode, bytes: &[u8]) -> Option<Vec<u8>> {
        let link = match packing {
            CompressionMode::Off => None,
            CompressionMode::Auto => self.slow_link(),
            CompressionMode::Always => Some(Pace::ENDLESS),
        };
        self.pack_over(link?, bytes)
    }

    /// Returns the compressed form of `bytes`, if that is to be sent instead. The other side gives the link's pace.
    pub fn pack_over(&self, link: Pace, bytes: &[u8]) -> Option<Vec<u8>> {
        if bytes.len() < MIN_COMPRESSED_BYTES
            || link == Pace::UNKNOWN
            || (link != Pace::ENDLESS && !self.is_worth_it(link, bytes))
        {
            return None;
        }
        let (packed, took) = timed(|packer| packer.pack(bytes).map(<[u8]>::to_vec));
        let mut measured = self.measured();
        measured.packer.note(bytes.len(), took);
        let most = (1.0 - MIN_SIZE_SAVED_SHARE) * bytes.len() as f64;
        let is_shorter = packed.as_ref().is_some_and(|packed| (packed.len() as f64) < most);
        measured.learn(is_shorter);
        packed.filter(|_| is_shorter || link == Pace::ENDLESS)
    }

    /// Returns whether compression brings `bytes` to the other side sooner, by the measurements and a sample.
    fn is_worth_it(&self, link: Pace, bytes: &[u8]) -> bool {
        {
            let mut measured = self.measured();
            if !measured.could_pay(link) {
                return false;
            }
            if measured.to_skip > 0 {
                measured.to_skip -= 1;
                return false;
            }
        }
        let sample = sample(bytes);
        let (packed, took) = timed(|packer| packer.pack(&sample).map_or(sample.len(), <[u8]>::len));
        let mut measured = self.measured();
        measured.packer.note(sample.len(), took);
        let share = packed as f64 / sample.len().max(1) as f64;
        let is_worth_it = measured.packer.pace(1).is_some_and(|packer| pays(link, packer, share));
        if !is_worth_it {
            measured.learn(false);
        }
        is_worth_it
    }
}

impl Measurements {
    /// Returns whether compression could ever bring anything over the link sooner.
    fn could_pay(&self, link: Pace) -> bool {
        self.packer.pace(1).is_none_or(|packer| pays(link, packer, 0.0))
    }

    /// Notes compressed bytes: many of them make the link's measurement stale.
    fn note_packed(&mut self, bytes: usize) {
        self.packed += bytes as u64;
        if self.packed >= REMEASURE_AFTER_BYTES {
            (self.packed, self.link) = (0, RunningRate::NOTHING);
        }
    }

    /// Notes whether the contents become shorter.
    fn learn(&mut self, is_shorter: bool) {
        self.skipped = if is_shorter { 0 } else { (2 * self.skipped + 1).min(MAX_SKIPPED_PIECES) };
        self.to_skip = self.skipped;
    }
}

/// Returns bytes from the beginning, the middle and the end.
fn sample(bytes: &[u8]) -> Vec<u8> {
    let each = (SAMPLE_BYTES / SAMPLE_PARTS).min(bytes.len() / SAMPLE_PARTS);
    let part = |number| &bytes[number * (bytes.len() - each) / (SAMPLE_PARTS - 1)..][..each];
    (0..SAMPLE_PARTS).flat_map(part).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE_BYTES: usize = 1 << 20;
    /// A megabyte a second, and a gigabyte.
    const SLOW: Pace = Pace(1_000_000);
    const FAST: Pace = Pace(1000);

    /// A policy whose compressor has a given pace over very many bytes: no test depends on the machine's speed.
    fn policy_with(packer: Pace) -> CompressionPolicy {
        let policy = CompressionPolicy::new();
        policy.measured().packer =
            RunningRate { bytes: 1 << 30, time: Duration::from_nanos((u64::from(packer.0) << 30) / 1000) };
        policy
    }

    fn repeating() -> Vec<u8> {
        (0..PIECE_BYTES).map(|at| (at / 64 % 200) as u8).collect()
    }

    /// Bytes in which nothing repeats itself.
    fn noise(length: usize) -> Vec<u8> {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        };
        std::iter::repeat_with(next).take(length).collect()
    }

    fn unpacked(packed: &[u8], announced: usize) -> Result<Vec<u8>, DecompressError> {
        let mut bytes = vec![0; announced];
        unpack(packed, &mut bytes).map(|()| bytes)
    }

    #[test]
    fn compressed_bytes_decompress_regardless_of_earlier_payloads() {
        let policy = CompressionPolicy::new();
        for length in [MIN_COMPRESSED_BYTES, PIECE_BYTES, MIN_COMPRESSED_BYTES + 1, 3 * PIECE_BYTES] {
            let bytes: Vec<u8> = (0..length).map(|at| (at / 7 % 251) as u8).collect();
            let packed = policy.pack(CompressionMode::Always, &bytes).unwrap();
            assert!(packed.len() < length && unpacked(&packed, length).unwrap() == bytes, "{length}");
        }
    }

    #[test]
    fn a_block_that_becomes_more_or_less_than_announced_is_refused() {
        let packed = CompressionPolicy::new().pack(CompressionMode::Always, &repeating()).unwrap();
        for announced in [0, 1, packed.len(), PIECE_BYTES - 1, PIECE_BYTES + 1, 2 * PIECE_BYTES] {
            let error = DecompressError { announced, packed: packed.len() };
            assert_eq!(unpacked(&packed, announced).err(), Some(error));
        }
        for cut in (0..packed.len() - 1).step_by(61) {
            assert!(unpacked(&packed[..cut], PIECE_BYTES).is_err(), "{cut}");
        }
    }

    #[test]
    fn damaged_blocks_never_panic_nor_become_more() {
        let text = noise(600).repeat(120);
        let packed = CompressionPolicy::new().pack(CompressionMode::Always, &text).unwrap();
        for (round, byte) in noise(2000).into_iter().enumerate() {
            let mut damaged = packed.clone();
            damaged[round * 31 % packed.len()] ^= byte | 1;
            if let Ok(bytes) = unpacked(&damaged, text.len()) {
                assert_eq!(bytes.len(), text.len());
            }
            // Nor does what was never compressed.
            let _ = unpacked(&noise(round), text.len());
        }
    }

    #[test]
    fn bulk_is_packed_where_the_link_is_slower_than_the_compressor() {
        let bytes = repeating();
        let packed = policy_with(FAST).pack_over(SLOW, &bytes).unwrap();
        assert!(packed.len() < PIECE_BYTES / 4 && unpacked(&packed, PIECE_BYTES).unwrap() == bytes);
        assert_eq!(policy_with(FAST).pack_over(FAST, &bytes), None);
        assert_eq!(policy_with(SLOW).pack_over(FAST, &bytes), None);
    }

    #[test]
    fn nothing_is_packed_before_the_link_was_seen_or_where_it_is_off_or_for_little() {
        let bytes = repeating();
        assert_eq!(CompressionPolicy::new().pack(CompressionMode::Auto, &bytes), None);
        let slow = || {
            let policy = policy_with(FAST);
            policy.measured().link.note(MIN_MEASURED_BYTES as usize, Duration::from_secs(60));
            policy
        };
        assert!(slow().pack(CompressionMode::Auto, &bytes).is_some());
        assert_eq!(slow().pack(CompressionMode::Off, &bytes), None);
        assert_eq!(slow().pack(CompressionMode::Always, &bytes[..MIN_COMPRESSED_BYTES - 1]), None);
        let unsure = policy_with(FAST);
        unsure.measured().link.note(MIN_MEASURED_BYTES as usize - 1, Duration::from_secs(60));
        assert_eq!(unsure.pack(CompressionMode::Auto, &bytes), None);
    }

    #[test]
    fn a_link_that_no_compressor_makes_up_for_is_not_slow() {
        let policy = CompressionPolicy::new();
        assert_eq!(policy.requested_pace(CompressionMode::Auto), Some(Pace::UNKNOWN));
        policy.measured().link.note(1 << 30, Duration::from_secs(1));
        let link = policy.slow_link();
        assert!(link.is_some(), "the compressor is not measured yet");
        policy.packs(FAST);
        assert_eq!((policy.packer(), policy.slow_link()), (Some(FAST), None));
        let measured = (0..2 * PIECES_BETWEEN_MEASUREMENTS)
            .filter_map(|_| policy.requested_pace(CompressionMode::Auto))
            .collect::<Vec<_>>();
        assert_eq!(measured, [Pace::UNKNOWN; 2]);
        policy.packs(Pace(10));
        assert_eq!(
            (policy.requested_pace(CompressionMode::Auto), policy.requested_pace(CompressionMode::Off)),
            (link, None)
        );
        assert_eq!(policy.requested_pace(CompressionMode::Always), Some(Pace::ENDLESS));
        assert_eq!(policy.pack_over(Pace::UNKNOWN, &repeating()), None);
    }

    #[test]
    fn incompressible_payloads_are_sent_plain_and_sampled_ever_more_rarely() {
        let (noise, policy) = (noise(PIECE_BYTES), policy_with(FAST));
        let mut samples = Vec::new();
        for piece in 0..40 {
            let skipped = policy.measured().to_skip;
            assert_eq!(policy.pack_over(SLOW, &noise), None);
            if skipped == 0 {
                samples.push(piece);
            }
        }
        assert_eq!(samples, [0, 2, 6, 14, 30]);
        // Contents that become shorter again are found.
        policy.measured().to_skip = 1;
        let bytes = repeating();
        let sent: Vec<bool> = (0..3).map(|_| policy.pack_over(SLOW, &bytes).is_some()).collect();
        assert_eq!(sent, [false, true, true]);
        assert_eq!(policy.pack(CompressionMode::Always, &noise), None);
    }

    #[test]
    fn a_link_has_the_time_in_which_any_thread_moved_something() {
        let policy = CompressionPolicy::new();
        let start = Instant::now();
        (0..4).for_each(|_| policy.begin());
        (0..4).for_each(|_| policy.end(PIECE_BYTES, PIECE_BYTES, Duration::ZERO));
        let elapsed = start.elapsed();
        let link = policy.measured().link;
        assert!(link.bytes == 4 * PIECE_BYTES as u64 && link.time <= elapsed, "{link:?}");
        // The other side waited longer than everything can have taken; then one piece went compressed, and one not at all.
        for (sent, waited) in [(PIECE_BYTES, Duration::MAX), (9, Duration::ZERO), (0, Duration::ZERO)] {
            policy.begin();
            policy.end(PIECE_BYTES, sent, waited);
        }
        let later = policy.measured().link;
        assert_eq!((later.bytes, later.time), (5 * PIECE_BYTES as u64, link.time));
        assert!(policy.measured().since.is_none() && policy.measured().packed == PIECE_BYTES as u64);
    }

    #[test]
    fn a_link_is_measured_anew_after_much_that_went_packed() {
        let policy = policy_with(FAST);
        policy.measured().link.note(MIN_MEASURED_BYTES as usize, Duration::from_secs(60));
        for went in 0..REMEASURE_AFTER_BYTES / PIECE_BYTES as u64 {
            assert!(policy.slow_link().is_some(), "{went}");
            policy.begin();
            policy.end(PIECE_BYTES, PIECE_BYTES / 9, Duration::ZERO);
        }
        assert_eq!((policy.slow_link(), policy.requested_pace(CompressionMode::Auto)), (None, Some(Pace::UNKNOWN)));
    }

    #[test]
    fn a_sample_is_of_all_of_a_piece() {
        let bytes: Vec<u8> = (0..PIECE_BYTES).map(|at| (at >> 12) as u8).collect();
        let sample = sample(&bytes);
        assert_eq!(
            (sample.len(), sample[0], sample[SAMPLE_BYTES / 2], sample.last()),
            (SAMPLE_BYTES, 0, 128, Some(&255))
        );
    }

    #[test]
    fn old_measurements_count_less_and_paces_are_bounded() {
        let mut sum = RunningRate::NOTHING;
        sum.note(1 << 20, Duration::from_secs(1000));
        (0..400).for_each(|_| sum.note(1 << 20, Duration::from_millis(1)));
        assert!((900..1100).contains(&sum.pace(1).unwrap().0), "{sum:?}");
        assert_eq!(RunningRate::NOTHING.pace(1), None);
        assert_eq!((Pace::of(1, Duration::MAX), Pace::of(0, Duration::ZERO)), (Pace::ENDLESS, Pace(0)));
        assert_eq!(CompressionMode::named("auto").zip(CompressionMode::named("never")), None);
    }
}
