//! Katydid over vsock, which few machines have, on a Debian kernel that can loop it back.
//!
//! `tests/vsock/init` starts a server and runs each program without Katydid and through vsock, one of them with checkpoints and
//! restores. It compares their outputs.

use anyhow::Result;

use super::Guest;
use crate::tree::Tree;

/// Kernel modules in loading order: those for vsock, and those that CRIU needs.
const KERNEL_MODULES: [&str; 12] = [
    "drivers/net/tun.ko",
    "drivers/net/veth.ko",
    "net/vmw_vsock/vsock.ko",
    "net/vmw_vsock/vmw_vsock_virtio_transport_common.ko",
    "net/vmw_vsock/vsock_loopback.ko",
    "net/ipv4/inet_diag.ko",
    "net/ipv4/tcp_diag.ko",
    "net/ipv4/udp_diag.ko",
    "net/netlink/netlink_diag.ko",
    "net/packet/af_packet_diag.ko",
    "net/netfilter/nfnetlink.ko",
    "net/unix/unix_diag.ko",
];
/// Programs that together use everything a link has: bulk over several connections, calls back, prints, memory of the host. The
/// last one is checkpointed and restored.
const GUEST_PROGRAMS: [(&str, &str); 7] = [
    ("programs", "vector_add"),
    ("programs", "big_copy"),
    ("programs", "async_pipeline"),
    ("programs", "host_callbacks"),
    ("programs", "device_printf"),
    ("programs", "pinned_memory"),
    ("kept", "long_loop"),
];

/// Runs the whole test; `measures` also runs `katydid bench` there.
pub(crate) fn run(tree: &Tree, measures: bool) -> Result<()> {
    let guest = Guest {
        name: "vsock",
        tries: "programs on a machine that has vsock",
        modules: &KERNEL_MODULES,
        programs: &GUEST_PROGRAMS,
        has_criu: true,
        requests: if measures { vec!["measure"] } else { Vec::new() },
    };
    guest.run(tree)
}
