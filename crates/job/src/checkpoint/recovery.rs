//! The checkpoint from which a session that loses its worker may be rebuilt.

use std::path::PathBuf;

use crate::checkpoint::error::CheckpointError;
use crate::checkpoint::quiesce::QuiescedJob;
use katydid_image::{CheckpointChoice, CheckpointNumber, CheckpointReader, Image, ImageId};

/// The last checkpoint after which the job went on, or from which it was restored.
#[derive(Debug, Clone)]
pub(crate) struct Recovery {
    pub(crate) image: PathBuf,
    /// Id of the image, since a user may have put another image at that path.
    pub(crate) id: ImageId,
    pub(crate) number: CheckpointNumber,
    /// Members, and the number of frames that each had sent before the checkpoint.
    pub(crate) frames: Vec<(u64, u64)>,
}

impl Recovery {
    /// A recovery from this checkpoint, with the number of frames that each member had sent.
    pub(crate) fn new(image: PathBuf, id: ImageId, number: CheckpointNumber, frames: Vec<(u64, u64)>) -> Self {
        Self { image, id, number, frames }
    }

    /// A recovery from a checkpoint that was completed just now.
    pub(crate) fn of_stop(image: PathBuf, id: ImageId, number: CheckpointNumber, stop: &QuiescedJob<'_>) -> Self {
        let frames =
            stop.participants.iter().map(|participant| (participant.member.id, participant.member.frames)).collect();
        Self::new(image, id, number, frames)
    }

    /// Opens the checkpoint, if its image is still where it was.
    pub(crate) fn reader(&self) -> Result<CheckpointReader, CheckpointError> {
        let image = Image::open(&self.image)?;
        if image.id() != self.id {
            return Err(CheckpointError::Replaced { path: self.image.clone(), number: self.number });
        }
        Ok(image.checkpoint(CheckpointChoice::Number(self.number))?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use katydid_image::{Manifest, Options};

    use super::*;

    #[test]
    fn a_checkpoint_is_not_looked_for_in_another_image() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        let new_checkpoint = || {
            let image = Image::create_or_open(&path).unwrap();
            (image.id(), image.begin(Options::default()).unwrap().commit(Manifest::default()).unwrap().number)
        };
        let (id, number) = new_checkpoint();
        let recovery = Recovery::new(path.clone(), id, number, Vec::new());
        assert_eq!(recovery.reader().unwrap().number(), number);
        fs::remove_dir_all(&path).unwrap();
        assert_eq!(new_checkpoint().1, number);
        let refused = recovery.reader().unwrap_err();
        assert!(refused.to_string().contains("another image lies there"), "{refused}");
    }
}
