//! Notes that the supervisor adds to an image, beside CRIU's files, for the restore.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::process::attributes::ProcessAttributes;
use crate::process::descriptors::datagrams::DatagramQueue;
use crate::process::descriptors::watches::InotifyWatch;
use crate::process::shared_memory::Segment;
use crate::process::stdio::StandardStream;
use crate::process::written_files::WrittenFile;
use crate::supervisor::generations::Generations;

/// Key of the supervisor's notes in the manifest.
const NOTES_KEY: &str = "supervisor";

/// What the supervisor records in the manifest, beyond the image's own fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImageNotes {
    /// The job's folder, by the path that its programs know.
    pub(crate) folder: PathBuf,
    /// Servers that the job's programs may have been told of, newest first.
    pub(crate) servers: Vec<String>,
    /// Generations of the job so far, newest first.
    #[serde(default)]
    pub(crate) generations: Generations,
    /// The program's standard streams at the checkpoint.
    pub(crate) stdio: [StandardStream; 3],
    /// Files that were open for writing.
    pub(crate) written: Vec<WrittenFile>,
    /// Shared memory that has a name.
    #[serde(default)]
    pub(crate) shared: Vec<Segment>,
    /// Numbers of pseudo-terminals that the job has opened.
    #[serde(default)]
    pub(crate) terminals: Vec<u32>,
    /// Ends of TCP connections: the local address and the peer's.
    #[serde(default)]
    pub(crate) connections: Vec<(String, String)>,
    /// Unread datagrams, with their senders.
    #[serde(default)]
    pub(crate) datagrams: Vec<DatagramQueue>,
    /// Watches of files of which CRIU forgets a part.
    #[serde(default)]
    pub(crate) watches: Vec<InotifyWatch>,
    /// Inodes of unix sockets whose process creates the other end too.
    #[serde(default)]
    pub(crate) makers: Vec<u64>,
    /// Ids of all processes and threads, as they see themselves: all must be free where they are restored.
    pub(crate) ids: Vec<u32>,
    /// Ids of processes that a signal had stopped: they stay so.
    #[serde(default)]
    pub(crate) stopped: Vec<u32>,
    /// Attributes of processes and threads that CRIU does not restore.
    #[serde(default)]
    pub(crate) attributes: Vec<ProcessAttributes>,
}

impl ImageNotes {
    /// Encodes the notes for the manifest.
    pub(crate) fn encode(&self) -> serde_json::Result<BTreeMap<String, serde_json::Value>> {
        Ok([(NOTES_KEY.to_owned(), serde_json::to_value(self)?)].into())
    }

    /// Decodes the notes of a manifest. Returns `None` if they are missing or malformed.
    pub(crate) fn decode(notes: &BTreeMap<String, serde_json::Value>) -> Option<Self> {
        serde_json::from_value(notes.get(NOTES_KEY)?.clone()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::attributes;
    use crate::process::tree::Process;

    #[test]
    fn notes_survive_the_manifest() {
        let notes = ImageNotes {
            folder: "/run/user/0/katydid/jobs/a".into(),
            servers: vec!["unix:/s".into()],
            generations: Generations::default().and_next(),
            stdio: [
                StandardStream::Other,
                StandardStream::Pipe { inode: 5 },
                StandardStream::File { path: "/e".into() },
            ],
            written: vec![WrittenFile { path: "/o".into(), inode: 3, birth: Some(4), length: 9 }],
            shared: Vec::new(),
            terminals: vec![2],
            connections: vec![("0100007F:A3E1".to_owned(), "0100007F:0050".to_owned())],
            datagrams: Vec::new(),
            watches: Vec::new(),
            makers: vec![7],
            ids: vec![7, 8],
            stopped: vec![8],
            attributes: attributes::read(&[Process { pid: std::process::id(), parent: 1, state: 'R' }]),
        };
        assert_eq!(ImageNotes::decode(&notes.encode().unwrap()), Some(notes));
        assert_eq!(ImageNotes::decode(&BTreeMap::new()), None);
    }
}
