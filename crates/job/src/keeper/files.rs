//! Moves CRIU's files of a worker into an image and out of it, through the supervisor.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;

use katydid_image::{ChunkId, Region};
use katydid_scratch::private;
use katydid_wire::companion::{FromWorker, ToWorker};

use crate::keeper::supervisor::{OrderError, SupervisorConnection, system};

/// Kind of the regions.
const REGION_KIND: &str = "criu";
/// Bytes of a chunk.
const KEEPER_FILE_CHUNK_BYTES: usize = 2 << 20;
/// Files of CRIU's that no restore reads.
const NOT_KEPT: [&str; 2] = ["dump.log", "stats-dump"];

/// Puts all files of a folder into the image.
pub(super) fn put(supervisor: &SupervisorConnection, folder: &Path) -> Result<Vec<Region>, OrderError> {
    let failed = system("read CRIU's files");
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(&failed)? {
        let entry = entry.map_err(&failed)?;
        let name = entry.file_name().into_string().map_err(|name| OrderError(format!("CRIU wrote {name:?}")))?;
        if NOT_KEPT.contains(&name.as_str()) || !entry.file_type().map_err(&failed)?.is_file() {
            continue;
        }
        files.push(put_file(supervisor, &entry.path(), name)?);
    }
    files.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(files)
}

fn put_file(supervisor: &SupervisorConnection, path: &Path, name: String) -> Result<Region, OrderError> {
    let mut file = File::open(path).map_err(system("read CRIU's files"))?;
    let (mut chunks, mut bytes) = (Vec::new(), 0);
    loop {
        let mut data = Vec::with_capacity(KEEPER_FILE_CHUNK_BYTES);
        Read::by_ref(&mut file)
            .take(KEEPER_FILE_CHUNK_BYTES as u64)
            .read_to_end(&mut data)
            .map_err(system("read CRIU's files"))?;
        if data.is_empty() {
            break;
        }
        bytes += data.len() as u64;
        let id = ChunkId::of(&data);
        let answer = supervisor.ask(&FromWorker::Has { hashes: id.as_bytes().to_vec() })?;
        if !matches!(answer, ToWorker::HeldChunks { held } if held == [1]) {
            supervisor.ask(&FromWorker::Put { data })?;
        }
        chunks.push(id);
    }
    let chunk_bytes = KEEPER_FILE_CHUNK_BYTES as u32;
    Ok(Region { kind: REGION_KIND.to_owned(), name, bytes, chunk_bytes, chunks, ..Region::default() })
}

/// Writes the files of an image into a folder.
pub(super) fn get(supervisor: &SupervisorConnection, files: &[Region], folder: &Path) -> Result<(), OrderError> {
    let failed = system("write CRIU's files");
    for region in files {
        // Names in a manifest that was read are file names without a folder.
        let name = Path::new(&region.name).file_name().ok_or_else(|| OrderError::new("a file has no name"))?;
        let mut file = private::create(&folder.join(name)).map_err(&failed)?;
        for (index, id) in region.chunks.iter().enumerate() {
            let length = region.chunk_len(index).unwrap_or(0);
            let ToWorker::Chunk { data } = supervisor.ask(&FromWorker::Get { hash: id.as_bytes().to_vec() })? else {
                return Err(OrderError::new("the supervisor answered another question"));
            };
            if data.len() != length || ChunkId::of(&data) != *id {
                return Err(OrderError(format!("chunk {id} came damaged")));
            }
            file.write_all(&data).map_err(&failed)?;
        }
    }
    Ok(())
}
