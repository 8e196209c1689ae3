//! `cuPointerGetAttribute`: properties of an address.

use katydid_driver_rules::pointer::KnownMemory;

use crate::memory::space::{self, RangeKind, Region};

/// Returns the properties of the memory at an address.
pub(crate) fn find(address: u64) -> Option<KnownMemory> {
    space::find(address).map(|region| to_known(&region))
}

fn to_known(region: &Region) -> KnownMemory {
    KnownMemory {
        start: region.start,
        size: region.size,
        id: region.id,
        context: region.context as u64,
        device: region.device.cast_unsigned(),
        pool: if let RangeKind::Pooled { pool, .. } = region.kind { pool as u64 } else { 0 },
        is_for_host: region.is_for_host(),
        is_managed: region.is_managed(),
        is_device: region.kind == RangeKind::Device,
    }
}
