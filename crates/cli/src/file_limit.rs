//! The limit of the size of files (`ulimit -f`), which also counts for shared memory.
//!
//! Memory files beyond the limit end a program or a worker by SIGXFSZ. So sessions under a low limit go without shared memory.

use katydid_transport::Address;
use rustix::process::{Resource, getrlimit};

use crate::args::flags::Link;
use katydid_cli_core::args::size::Size;
use katydid_cli_core::output::failure::Failure;

/// Length of a session's memory file, which is mostly a hole.
pub(crate) const SESSION_FILE_BYTES: u64 = 256 << 30;

/// What to do about a limit that is too low for shared memory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LinkUnderLimit {
    /// The link that was chosen works.
    AsChosen,
    /// Only the stream link works, for this reason.
    Stream(String),
}

/// Returns the reason why shared memory does not work here, if the limit of this process is too low.
pub(crate) fn too_low() -> Option<String> {
    reason(getrlimit(Resource::Fsize).current)
}

fn reason(limit: Option<u64>) -> Option<String> {
    let limit = Size(limit.filter(|limit| *limit < SESSION_FILE_BYTES)?);
    let needed = Size(SESSION_FILE_BYTES);
    Some(format!("shared memory needs files of {needed}, and ulimit -f allows {limit}"))
}

/// Decides on the link to a server, or to a private one. `low` is the reason of [`too_low`].
///
/// # Errors
///
/// Shared memory was asked for, and cannot work.
pub(crate) fn link_under(
    low: Option<String>,
    link: Option<Link>,
    server: Option<&Address>,
) -> Result<LinkUnderLimit, Failure> {
    let has_memory = server.is_none_or(|address| matches!(address, Address::Unix(_)));
    match (low.filter(|_| has_memory), link) {
        (None, _) | (_, Some(Link::Stream)) => Ok(LinkUnderLimit::AsChosen),
        (Some(reason), None) => Ok(LinkUnderLimit::Stream(reason)),
        (Some(reason), Some(Link::Shm)) => {
            Err(Failure::usage(format!("--link shm: {reason}: lift `ulimit -f`, or use --link stream")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_low_limit_leaves_only_the_stream_link() {
        let low = || reason(Some(1 << 30));
        let network: Address = "tcp://h:1".parse().unwrap();
        assert!(reason(None).is_none() && reason(Some(SESSION_FILE_BYTES)).is_none());
        assert!(low().unwrap().contains("allows 1 GiB"));
        assert!(matches!(link_under(low(), None, None), Ok(LinkUnderLimit::Stream(_))));
        for (link, server) in [(Some(Link::Stream), None), (None, Some(&network))] {
            assert!(matches!(link_under(low(), link, server), Ok(LinkUnderLimit::AsChosen)));
        }
        let failure = link_under(low(), Some(Link::Shm), None).unwrap_err();
        assert!(failure.status() == 2 && failure.to_string().contains("lift `ulimit -f`"), "{failure:?}");
    }
}
