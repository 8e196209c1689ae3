//! An in-memory object store whose n-th request fails. The request is not carried out, is carried out without a reply, or is the
//! first of all later failures, as when store or process go away.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use futures_util::stream::{BoxStream, StreamExt, once};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// How a request fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureMode {
    /// Nothing was done, and later requests succeed.
    Once,
    /// The request was carried out, but the reply is lost; later requests succeed.
    Unanswered,
    /// No request is carried out from then on.
    ForEver,
}

/// The failing store; see the module.
#[derive(Debug)]
pub(crate) struct Failing {
    inner: Arc<InMemory>,
    requests: AtomicU64,
    first: u64,
    how: FailureMode,
    is_cut_off: AtomicBool,
}

impl fmt::Display for Failing {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, out)
    }
}

fn failure<T>() -> Result<T> {
    Err(Error::Generic { store: "failing", source: "on purpose".into() })
}

impl Failing {
    /// Makes request number `first`, counted from 0, fail in this way.
    pub(crate) fn at(inner: &Arc<InMemory>, first: u64, how: FailureMode) -> Self {
        Self { inner: Arc::clone(inner), requests: AtomicU64::new(0), first, how, is_cut_off: AtomicBool::new(false) }
    }

    /// Sets whether all requests fail from now on.
    pub(crate) fn cut_off(&self, is_cut_off: bool) {
        self.is_cut_off.store(is_cut_off, Ordering::SeqCst);
    }

    /// Returns the number of requests so far.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }

    /// Returns whether the next request is carried out, and whether it gets a reply.
    fn next(&self) -> (bool, bool) {
        let number = self.requests.fetch_add(1, Ordering::SeqCst);
        match self.how {
            _ if self.is_cut_off.load(Ordering::SeqCst) => (false, false),
            FailureMode::ForEver if number >= self.first => (false, false),
            FailureMode::Once if number == self.first => (false, false),
            FailureMode::Unanswered if number == self.first => (true, false),
            _ => (true, true),
        }
    }

    async fn request<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        let (is_done, is_answered) = self.next();
        if !is_done {
            return failure();
        }
        let answer = request.await;
        if is_answered { answer } else { failure() }
    }
}

#[async_trait]
impl ObjectStore for Failing {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.request(self.inner.put_opts(location, payload, options)).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.request(self.inner.put_multipart_opts(location, options)).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.request(self.inner.get_opts(location, options)).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let (is_done, is_answered) = self.next();
        if !is_done {
            return once(async { failure() }).boxed();
        }
        let deleted = self.inner.delete_stream(locations);
        if is_answered { deleted } else { deleted.map(|_| failure()).boxed() }
    }

    // Images never send this request.
    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.request(self.inner.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.request(self.inner.copy_opts(from, to, options)).await
    }
}
