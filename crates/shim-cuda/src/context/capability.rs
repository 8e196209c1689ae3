//! Restricts the device attributes that announce unsupported features.
//!
//! A careful program asks for an attribute before it uses a feature. For features whose functions are refused the answer is
//! "no", whatever the device can do, so that the program takes its other way and works. The list shrinks as functions are
//! built.

use katydid_wire::facts::{DeviceFacts, DriverAnswer};

/// Ids of attributes that announce what is refused, in the order of the header.
const REFUSED_ATTRIBUTES: [usize; 24] = [
    88,  // pageable memory from the device
    92,  // operations on memory in streams, first form
    93,  //   with 64 bits
    94,  //   waiting for NOR
    98,  // flushes of remote writes
    100, // pageable memory through the host's page tables
    101, // managed memory from the host without migration
    104, // virtual memory exported to Windows
    105, //   exported to Windows, older
    107, // compressible memory
    110, // RDMA to managed addresses
    114, // timeline semaphores
    116, // RDMA
    117, //   its flushes
    118, //   its order of writes
    124, // buffers shared as dma-buf
    128, // fabric handles
    129, // unified function pointers
    132, // multicast
    135, // sharing with Direct3D
    136, // decompression
    137, //   its largest piece
    138, // sharing with Vulkan
    146, // host memory shared as dma-buf
];

/// File descriptors as handles of memory pools, and of virtual memory: the device has both or neither.
const POOL_HANDLES_ATTRIBUTE: usize = 119;
const DESCRIPTORS_ATTRIBUTE: usize = 103;

/// Atomic operations of host and device on one address of host memory. They need pages that both sides of the link and the
/// device see.
const HOST_ATOMICS_ATTRIBUTE: usize = 86;
/// Concurrent access to managed memory. Managed memory is host memory here. Where atomic operations of host and device on it
/// are not atomic with each other, a program must not use it so. Natively it may: pages move to the processor that needs
/// them.
const CONCURRENT_MANAGED_ATTRIBUTE: usize = 89;

/// Answers no for refused features. Errors stay: an older driver does not know the newer ids.
pub(crate) fn restrict(facts: &mut DeviceFacts, shares_memory: bool) {
    let has_atomics =
        shares_memory && facts.attribute(HOST_ATOMICS_ATTRIBUTE as i32).is_some_and(|answer| answer.value != 0);
    let of_host_memory = [HOST_ATOMICS_ATTRIBUTE, CONCURRENT_MANAGED_ATTRIBUTE].into_iter().filter(|_| !has_atomics);
    for id in REFUSED_ATTRIBUTES.into_iter().chain(of_host_memory) {
        // Ids count from 1.
        if let Some(answer @ DriverAnswer { code: 0, .. }) = facts.attributes.get_mut(id - 1) {
            answer.value = 0;
        }
    }
    let has_descriptors = facts.attributes.get(DESCRIPTORS_ATTRIBUTE - 1).is_some_and(|answer| answer.value != 0);
    if let Some(answer @ DriverAnswer { code: 0, .. }) = facts.attributes.get_mut(POOL_HANDLES_ATTRIBUTE - 1) {
        answer.value = i32::from(has_descriptors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_of_refused_features_are_zero_and_others_stay() {
        let mut attributes = vec![DriverAnswer { code: 0, value: 1 }; 120];
        attributes[101] = DriverAnswer { code: 1, value: 0 };
        let mut facts = DeviceFacts { attributes, ..DeviceFacts::default() };
        let mut shared = facts.clone();
        restrict(&mut shared, true);
        assert_eq!([86, 89].map(|id| shared.attribute(id).unwrap().value), [1, 1]);
        restrict(&mut facts, false);
        let value = |id| facts.attribute(id).unwrap();
        assert_eq!((value(86).value, value(88).value, value(89).value), (0, 0, 0));
        assert_eq!((value(83).value, value(95).value, value(115).value), (1, 1, 1));
        assert_eq!(value(102), DriverAnswer { code: 1, value: 0 });
    }

    #[test]
    fn managed_memory_is_not_for_both_at_once_where_atomics_do_not_reach_it() {
        let mut facts =
            DeviceFacts { attributes: vec![DriverAnswer { code: 0, value: 1 }; 120], ..DeviceFacts::default() };
        facts.attributes[HOST_ATOMICS_ATTRIBUTE - 1].value = 0;
        restrict(&mut facts, true);
        assert_eq!([83, 86, 89].map(|id| facts.attribute(id).unwrap().value), [1, 0, 0]);
    }

    #[test]
    fn the_list_is_in_order_and_names_nothing_twice() {
        assert!(REFUSED_ATTRIBUTES.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
