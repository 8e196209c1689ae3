//! A server with as much of S3's protocol as an image needs, on a local port, with its objects in memory.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Seconds since noon by the clock of all servers; tests advance it.
static CLOCK: AtomicU64 = AtomicU64::new(0);

/// Advances the clock of the servers.
#[allow(dead_code, reason = "not every test needs it")]
pub(crate) fn pass(seconds: u64) {
    CLOCK.fetch_add(seconds, Ordering::SeqCst);
}

#[derive(Default)]
struct Object {
    bytes: Vec<u8>,
    /// Changes with each put.
    tag: u64,
    since_noon: u64,
}

/// Objects by key, and incomplete uploads by number.
#[derive(Default)]
struct Bucket {
    objects: BTreeMap<String, Object>,
    puts: u64,
    uploads: BTreeMap<String, BTreeMap<u32, Vec<u8>>>,
    begun: u32,
}

struct Request {
    method: String,
    key: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

/// Serves the bucket `bucket` for the life of the process; returns the endpoint.
pub(crate) fn serve() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let bucket = Arc::new(Mutex::new(Bucket::default()));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let bucket = Arc::clone(&bucket);
            std::thread::spawn(move || converse(stream.unwrap(), &bucket));
        }
    });
    endpoint
}

fn converse(stream: TcpStream, bucket: &Mutex<Bucket>) {
    let mut input = BufReader::new(stream.try_clone().unwrap());
    let mut output = stream;
    while let Some(request) = Request::read(&mut input) {
        let is_head = request.method == "HEAD";
        let (status, headers, body) = bucket.lock().unwrap().answer(request);
        let length = if headers.contains("Content-Length") {
            String::new()
        } else {
            format!("Content-Length: {}\r\n", body.len())
        };
        let mut answer = format!("HTTP/1.1 {status} .\r\n{headers}{length}\r\n").into_bytes();
        answer.extend(if is_head { Vec::new() } else { body });
        if output.write_all(&answer).is_err() {
            return;
        }
    }
}

/// Decodes `%2F` and the like.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let code = (byte == b'%').then(|| tail.get(..2)).flatten();
        let code = code.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        bytes.push(code.unwrap_or(byte));
        rest = if code.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8(bytes).unwrap()
}

impl Request {
    fn read(input: &mut impl BufRead) -> Option<Self> {
        let mut line = String::new();
        input.read_line(&mut line).ok().filter(|length| *length > 0)?;
        let mut words = line.split(' ');
        let (method, target) = (words.next()?.to_owned(), words.next()?);
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let pair =
            |pair: &str| pair.split_once('=').map_or((decoded(pair), String::new()), |(k, v)| (decoded(k), decoded(v)));
        let query = query.split('&').map(pair).collect();
        let key = decoded(path.strip_prefix("/bucket")?).trim_start_matches('/').to_owned();
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            input.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let mut body = vec![0; headers.get("content-length").map_or(0, |length| length.parse().unwrap())];
        input.read_exact(&mut body).ok()?;
        Some(Self { method, key, query, headers, body })
    }
}

type Answer = (u16, String, Vec<u8>);

fn ok(body: impl Into<Vec<u8>>) -> Answer {
    (200, "ETag: \"0\"\r\n".into(), body.into())
}

/// Formats the time this many seconds after noon.
fn time(since_noon: u64) -> String {
    format!("{:02}:{:02}:{:02}", 12 + since_noon / 3600, since_noon / 60 % 60, since_noon % 60)
}

impl Bucket {
    fn answer(&mut self, request: Request) -> Answer {
        let upload = request.query.get("uploadId").cloned();
        match (request.method.as_str(), upload) {
            ("GET", _) if request.key.is_empty() => ok(self.list(&request.query)),
            ("GET" | "HEAD", _) => self.get(&request),
            ("POST", None) if request.query.contains_key("delete") => ok(self.delete_listed(&request.body)),
            ("POST", None) => {
                self.begun += 1;
                self.uploads.insert(self.begun.to_string(), BTreeMap::new());
                let id = self.begun;
                ok(format!("<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"))
            }
            ("POST", Some(upload)) => {
                let parts = self.uploads.remove(&upload).unwrap();
                assert!(parts.values().rev().skip(1).all(|part| part.len() >= 5 << 20), "S3 refuses smaller parts");
                self.put(request.key, parts.into_values().flatten().collect());
                ok("<CompleteMultipartUploadResult><ETag>1</ETag></CompleteMultipartUploadResult>")
            }
            ("PUT", Some(upload)) => {
                let number = request.query["partNumber"].parse().unwrap();
                self.uploads.get_mut(&upload).unwrap().insert(number, request.body);
                ok("")
            }
            ("PUT", None) if !self.is_condition_met(&request) => (412, String::new(), Vec::new()),
            ("PUT", None) => {
                let tag = self.put(request.key, request.body);
                (200, format!("ETag: \"{tag}\"\r\n"), Vec::new())
            }
            ("DELETE", Some(upload)) => {
                self.uploads.remove(&upload);
                (204, String::new(), Vec::new())
            }
            ("DELETE", None) => {
                self.objects.remove(&request.key);
                (204, String::new(), Vec::new())
            }
            (method, _) => panic!("{method} is not known here"),
        }
    }

    /// Returns whether the conditions of a put request hold.
    fn is_condition_met(&self, request: &Request) -> bool {
        let there = self.objects.get(&request.key);
        let is_free = !request.headers.contains_key("if-none-match") || there.is_none();
        let expected_tag = request.headers.get("if-match");
        is_free && expected_tag.is_none_or(|tag| there.is_some_and(|object| format!("\"{}\"", object.tag) == *tag))
    }

    fn put(&mut self, key: String, bytes: Vec<u8>) -> u64 {
        self.puts += 1;
        let object = Object { bytes, tag: self.puts, since_noon: CLOCK.load(Ordering::SeqCst) };
        self.objects.insert(key, object);
        self.puts
    }

    fn get(&self, request: &Request) -> Answer {
        let Some(found) = self.objects.get(&request.key) else { return (404, String::new(), Vec::new()) };
        let (tag, object) = (found.tag, &found.bytes);
        let common = format!("ETag: \"{tag}\"\r\nLast-Modified: Sat, 21 Nov 2026 {} GMT\r\n", time(found.since_noon));
        let Some(range) = request.headers.get("range").and_then(|range| range.strip_prefix("bytes=")) else {
            return (200, format!("{common}Content-Length: {}\r\n", object.len()), object.clone());
        };
        let (first, last) = range.split_once('-').unwrap();
        let (first, last): (usize, usize) = (first.parse().unwrap(), last.parse().unwrap());
        let headers = format!("{common}Content-Range: bytes {first}-{last}/{}\r\n", object.len());
        (206, headers, object[first..=last].to_vec())
    }

    /// `<Delete><Object><Key>…</Key></Object>…</Delete>`
    fn delete_listed(&mut self, body: &[u8]) -> String {
        let text = String::from_utf8_lossy(body);
        let keys = text.split("<Key>").skip(1).map(|rest| rest.split("</Key>").next().unwrap());
        let mut answer = "<DeleteResult>".to_owned();
        for key in keys {
            self.objects.remove(key);
            write!(answer, "<Deleted><Key>{key}</Key></Deleted>").unwrap();
        }
        answer + "</DeleteResult>"
    }

    fn list(&self, query: &BTreeMap<String, String>) -> String {
        let prefix = query.get("prefix").cloned().unwrap_or_default();
        let mut folders = std::collections::BTreeSet::new();
        let mut text = "<ListBucketResult><IsTruncated>false</IsTruncated>".to_owned();
        for (key, object) in self.objects.range(prefix.clone()..).take_while(|(key, _)| key.starts_with(&prefix)) {
            match key[prefix.len()..].split_once('/') {
                Some((folder, _)) => drop(folders.insert(folder)),
                None => {
                    let (size, tag, time) = (object.bytes.len(), object.tag, time(object.since_noon));
                    write!(text, "<Contents><Key>{key}</Key><Size>{size}</Size><ETag>{tag}</ETag>").unwrap();
                    write!(text, "<LastModified>2026-11-21T{time}.000Z</LastModified></Contents>").unwrap();
                }
            }
        }
        for folder in folders {
            write!(text, "<CommonPrefixes><Prefix>{prefix}{folder}/</Prefix></CommonPrefixes>").unwrap();
        }
        text + "</ListBucketResult>"
    }
}
