//! Fuzzing entry point for everything that a client sends.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use crate::answer::{Answer, Request};
use crate::connection::serve_connection;
use crate::context::{ConnectionContext, Limits, StreamThreads};
use crate::server::runtime;
use crate::timeout::ConnectionTimeout;

/// Returns what the client reads back: nothing, or one answer, which `handler` makes.
///
/// # Panics
///
/// The connection does not end with the client's input, or the answer is not valid HTTP.
pub fn answer_to(bytes: &[u8], handler: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Vec<u8> {
    let limits = Limits::default();
    let Ok(runtime) = runtime(&limits) else { return Vec::new() };
    let stream_threads = Arc::new(StreamThreads::new(limits.streamed_answers));
    let timeout = ConnectionTimeout::new(limits.request_timeout, limits.answer_timeout);
    let most = limits.request_timeout;
    let shared = Arc::new(ConnectionContext::new(limits, Box::new(handler), stream_threads));
    let answer = runtime.block_on(async {
        let (mut client_end, server_end) = duplex(4096);
        let connection = tokio::spawn(serve_connection(server_end, shared, timeout));
        let client = async {
            let mut answer = Vec::new();
            let (mut input, mut output) = tokio::io::split(&mut client_end);
            let send = async {
                // A connection that has ended already accepts no more.
                let _ = output.write_all(bytes).await;
                let _ = output.shutdown().await;
            };
            let _ = tokio::join!(send, input.read_to_end(&mut answer));
            answer
        };
        let answer = tokio::time::timeout(most / 2, client).await;
        connection.abort();
        answer
    });
    let answer = answer.unwrap_or_else(|_| b"the connection stays open".to_vec());
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."), "{}", String::from_utf8_lossy(&answer));
    answer
}
