//! Preparation of a snapshot while the program runs. It has a thread of its own, since the thread that listens to the companion
//! delivers the answers that an image over the connection needs.

use std::io;
use std::result;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::{Builder, JoinHandle};

use katydid_image::Result;
use katydid_session_core::{Failure, Precopy};
use katydid_wire::companion::FromWorker;

use crate::companion::store::RemoteOutput;
use crate::companion::writer::{CompanionWriter, failed};

/// An image that is being opened.
pub(crate) struct Preparation {
    thread: JoinHandle<Option<RemoteOutput>>,
    /// The companion was told, or is being told: the thread waits for no process any more.
    is_done: Arc<AtomicBool>,
}

impl Preparation {
    /// Opens an image once the precopy is done. The companion receives `Prepared` or `Failed`.
    pub(crate) fn begin(
        writer: &Arc<CompanionWriter>,
        job: Option<Box<dyn Precopy>>,
        output: Result<RemoteOutput>,
    ) -> io::Result<Self> {
        let (writer, is_done) = (Arc::clone(writer), Arc::new(AtomicBool::new(false)));
        let done = Arc::clone(&is_done);
        let thread = Builder::new().name("prepare".into()).spawn(move || {
            let prepared = output.map_err(Failure::from).and_then(|output| prepare(job, output));
            let (output, message) = match prepared {
                Ok(output) => (Some(output), FromWorker::Prepared {}),
                Err(error) => (None, failed(error)),
            };
            done.store(true, SeqCst);
            // The listening thread notices a companion that is gone.
            let _ = writer.send(&message);
            output
        });
        thread.map(|thread| Self { thread, is_done })
    }

    /// Returns whether it can be ended without waiting for answers.
    pub(crate) fn is_done(&self) -> bool {
        self.is_done.load(SeqCst)
    }

    /// Waits for the end. Returns the image if it is open.
    pub(crate) fn end(self) -> Option<RemoteOutput> {
        self.thread.join().ok().flatten()
    }
}

fn prepare(job: Option<Box<dyn Precopy>>, output: RemoteOutput) -> result::Result<RemoteOutput, Failure> {
    if let Some(mut job) = job {
        output.preallocate(job.run(output.sink())?)?;
    }
    Ok(output)
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::thread;

    use katydid_image::{ChunkId, Sink};
    use katydid_tests::deadline::hang::hang_limit;
    use katydid_transport::ControlChannel;
    use katydid_wire::companion::{MAX_COMPANION_MESSAGE_BYTES, Store, ToWorker};

    use super::*;
    use crate::companion::store::ImageClient;

    /// A precopy that asks for the contents of the image.
    struct ReadingPrecopy;

    impl Precopy for ReadingPrecopy {
        fn run(&mut self, sink: &dyn Sink) -> result::Result<u64, Failure> {
            sink.put(b"chunk")?;
            Ok(0)
        }
    }

    /// A preparation with an image over the connection, the client of that image, and the supervisor's end.
    fn start() -> (Preparation, Arc<ImageClient>, ControlChannel) {
        let (worker_end, supervisor_end) = UnixStream::pair().unwrap();
        let writer = Arc::new(CompanionWriter::new(OwnedFd::from(worker_end).into()).unwrap());
        let asker = Arc::new(ImageClient::new(Arc::clone(&writer)));
        let output = RemoteOutput::open(Store::STREAM, None, 1, 0, &asker);
        let preparation = Preparation::begin(&writer, Some(Box::new(ReadingPrecopy)), output).unwrap();
        let listener = Arc::clone(&asker);
        thread::spawn(move || {
            while let Ok((message, _)) = writer.receive() {
                assert!(listener.take(message).is_none());
            }
            listener.end();
        });
        (
            preparation,
            asker,
            ControlChannel::over(OwnedFd::from(supervisor_end).into(), MAX_COMPANION_MESSAGE_BYTES).unwrap(),
        )
    }

    fn receive(channel: &ControlChannel) -> FromWorker {
        FromWorker::decode(&channel.receive(hang_limit()).unwrap().bytes).unwrap()
    }

    #[test]
    fn answers_reach_a_preparation_that_asks() {
        let (preparation, asker, channel) = start();
        let hashes = ChunkId::of(b"chunk").as_bytes().to_vec();
        assert_eq!(receive(&channel), FromWorker::Has { hashes });
        assert!(!preparation.is_done());
        channel.send(&ToWorker::HeldChunks { held: vec![1] }.encode().unwrap(), &[]).unwrap();
        assert_eq!(receive(&channel), FromWorker::Prepared {});
        assert!(preparation.is_done());
        assert!(preparation.end().is_some());
        drop(asker);
    }

    #[test]
    fn a_preparation_ends_with_the_connection() {
        let (preparation, asker, channel) = start();
        assert!(matches!(receive(&channel), FromWorker::Has { .. }));
        asker.end();
        assert!(preparation.end().is_none());
        assert!(matches!(receive(&channel), FromWorker::Failed { .. }));
    }
}
