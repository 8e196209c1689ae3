//! `vprintf` and `__assertfail`, the functions that the driver provides.
//!
//! Text is made lane by lane and handed to the host in one piece, so that two prints never mix.

mod format;

use crate::control::call_args::{parameter, set_result};
use crate::engine::fault::FaultKind;
use crate::engine::machine::{Flow, Inst, Machine};
use crate::engine::registers::lanes_of;
use crate::memory::word::Word;
use crate::types::Space;

/// Largest length of a string that is read from device memory.
const MAX_STRING_BYTES: u64 = 64 * 1024;

/// Arguments in device memory, as seen by one lane.
struct Buffer<'m, 'a> {
    machine: &'m mut Machine<'a>,
    lane: usize,
    at: u64,
    /// Number of arguments taken so far.
    consumed: u32,
    /// The first bad address that was met.
    fault: Option<FaultKind>,
}

impl Buffer<'_, '_> {
    /// Reads one value. The first bad address is kept, and the rest of the text is made of zeroes.
    fn read<T: Word>(&mut self, address: u64) -> T {
        self.machine.read(Space::Generic, self.lane, address).unwrap_or_else(|kind| {
            self.fault.get_or_insert(kind);
            T::cut(0)
        })
    }

    /// Reads the next argument, which lies at a multiple of its size.
    fn next<T: Word>(&mut self) -> T {
        let address = self.at.wrapping_add(T::BYTES - 1) & !(T::BYTES - 1);
        self.at = address.wrapping_add(T::BYTES);
        self.consumed += 1;
        self.read(address)
    }
}

impl format::Arguments for Buffer<'_, '_> {
    fn word(&mut self) -> u32 {
        self.next()
    }

    fn double_word(&mut self) -> u64 {
        self.next()
    }

    fn string(&mut self, address: u64) -> Vec<u8> {
        let bytes = (0..MAX_STRING_BYTES).map(|index| self.read::<u8>(address.wrapping_add(index)));
        bytes.take_while(|byte| *byte != 0).collect()
    }
}

/// Runs `call (result), vprintf, (format, arguments)`. The result is how many arguments the format took, widths included.
pub(crate) fn vprintf(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    for lane in lanes_of(machine.mask) {
        let text: u64 = parameter(machine, inst, 0, lane);
        let at: u64 = parameter(machine, inst, 1, lane);
        let mut buffer = Buffer { machine, lane, at, consumed: 0, fault: None };
        let text = format::Arguments::string(&mut buffer, text);
        let line = format::format(&text, &mut buffer);
        let (consumed, fault) = (buffer.consumed, buffer.fault);
        if let Some(kind) = fault.or_else(|| set_result(machine, inst, lane, consumed).err()) {
            return machine.fail(kind, lane);
        }
        machine.env.host.print(&line);
    }
    Flow::Next
}

/// Runs `call __assertfail, (message, file, line, function, character size)`.
pub(crate) fn assert_fail(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    for lane in lanes_of(machine.mask) {
        let addresses: [u64; 3] = [0, 1, 3].map(|index| parameter(machine, inst, index, lane));
        let line: u32 = parameter(machine, inst, 2, lane);
        let [tx, ty, tz] = thread_of(machine, lane);
        let [bx, by, bz] = machine.block.index;
        let mut buffer = Buffer { machine, lane, at: 0, consumed: 0, fault: None };
        let [message, file, function] =
            addresses.map(|at| String::from_utf8_lossy(&format::Arguments::string(&mut buffer, at)).into_owned());
        let text = format!(
            "{file}:{line}: {function}: block: [{bx},{by},{bz}], thread: [{tx},{ty},{tz}] Assertion `{message}` failed.\n"
        );
        machine.env.host.assert_failed(&text);
    }
    let lane = lanes_of(machine.mask).next().unwrap_or(0);
    machine.fail(FaultKind::Assert, lane)
}

/// Returns `%tid` of a lane.
fn thread_of(machine: &Machine<'_>, lane: usize) -> [u32; 3] {
    let [x, y, _] = machine.env.block;
    let linear = machine.warp.index * 32 + lane as u32;
    [linear % x, linear / x % y, linear / x / y]
}
