//! Product `message.rs`: one structure a message and one a reply, with their codecs.

use std::collections::BTreeMap;
use std::fmt::Write;

use katydid_api_spec::{Class, Function, JournalRule, ParameterKind};

use crate::source::SpecFiles;
use crate::text::{reply_field, request_field};

/// Generates the messages of the session protocol, with their encoding.
pub fn generate(source: &SpecFiles) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "/// Hash of the spec files that these messages were generated from.");
    let _ = writeln!(out, "pub const SPEC_HASH: [u8; 32] = {:?};\n", source.hash);
    out.push_str(&generate_messages(source.messages()));
    out
}

/// The messages of one kind of session.
pub(crate) fn generate_messages<'a>(messages: impl Iterator<Item = (u16, &'a Function)>) -> String {
    let mut out = String::new();
    let mut numbered = Vec::new();
    for (opcode, function) in messages {
        request(&mut out, opcode, function);
        if function.class != Class::Enqueue {
            reply(&mut out, function);
        }
        numbered.push((opcode, function));
    }
    names(&mut out, &numbered);
    streams(&mut out, &numbered);
    out
}

fn request(out: &mut String, opcode: u16, function: &Function) {
    let name = &function.name;
    let fields: Vec<_> = function.params.iter().filter_map(request_field).collect();
    let tail = function.params.iter().find(|param| param.kind == ParameterKind::InBytes);
    let life = if tail.is_some() { "<'a>" } else { "" };
    let _ = writeln!(out, "/// Message of `{name}`: {}, journal {}.", function.class, function.journal);
    let _ = writeln!(out, "#[derive(Debug, Clone, Copy, PartialEq)]\npub struct {name}{life} {{");
    for (field, ty) in &fields {
        let _ = writeln!(out, "    /// `{field}` of the spec line.\n    pub {field}: {ty},");
    }
    let elided = if tail.is_some() { "<'_>" } else { "" };
    let _ = writeln!(out, "}}\n\nimpl Message for {name}{elided} {{");
    let _ = writeln!(out, "    const OPCODE: u16 = {opcode};\n    const NAME: &'static str = \"{name}\";");
    if matches!(function.journal, JournalRule::Create(_) | JournalRule::Destroy(_) | JournalRule::Set(_)) {
        out.push_str("    const CHANGES_OBJECTS: bool = true;\n");
    }
    let reply = if function.class == Class::Enqueue { "()".to_owned() } else { format!("{name}Reply") };
    let _ =
        writeln!(out, "    type Reply = {reply};\n\n    fn encode(&self, out: &mut Vec<u8>) {{\n        let _ = &out;");
    for (field, _) in fields.iter().filter(|field| !field.1.starts_with('&')) {
        let _ = writeln!(out, "        self.{field}.put(out);");
    }
    out.push_str("    }\n");
    if let Some(param) = tail {
        let _ = writeln!(out, "\n    fn tail(&self) -> &[u8] {{\n        self.{}\n    }}", param.name);
    }
    out.push_str("}\n\n");
    decode_request(out, function, &fields, life);
}

fn decode_request(out: &mut String, function: &Function, fields: &[(&str, &str)], life: &str) {
    let name = &function.name;
    let payload = if life.is_empty() { "&[u8]" } else { "&'a [u8]" };
    let _ =
        writeln!(out, "impl{life} {name}{life} {{\n    /// Reads the payload of a frame.\n    ///\n    /// # Errors");
    let _ = writeln!(out, "    ///\n    /// A payload that is too short or too long.");
    let _ = writeln!(out, "    pub fn decode(payload: {payload}) -> Result<Self, CodecError> {{");
    let takes_remaining = fields.iter().any(|field| field.1.starts_with('&'));
    let mutable = if fields.is_empty() { "" } else { "mut " };
    let _ =
        writeln!(out, "        let {mutable}reader = Reader::new(Self::NAME, payload);\n        let message = Self {{");
    for (field, ty) in fields {
        let method = if ty.starts_with('&') { "take_remaining()".to_owned() } else { "take()?".to_owned() };
        let _ = writeln!(out, "            {field}: reader.{method},");
    }
    out.push_str("        };\n");
    out.push_str(if takes_remaining { "        Ok(message)\n" } else { "        reader.finish(message)\n" });
    out.push_str("    }\n}\n\n");
}

fn reply(out: &mut String, function: &Function) {
    let name = format!("{}Reply", function.name);
    let fields: Vec<_> = function.params.iter().filter_map(reply_field).collect();
    let _ = writeln!(out, "/// Reply to `{}`.\n#[derive(Debug, Clone, PartialEq, Default)]", function.name);
    let _ = writeln!(out, "pub struct {name} {{");
    for (field, ty) in &fields {
        let _ = writeln!(out, "    /// `{field}` of the spec line.\n    pub {field}: {ty},");
    }
    let _ = writeln!(
        out,
        "}}\n\nimpl Reply for {name} {{\n    fn encode(&self, out: &mut Vec<u8>) {{\n        let _ = &out;"
    );
    let tail = fields.last().filter(|(_, ty)| *ty == "Vec<u8>").map(|(field, _)| *field);
    for (field, _) in &fields {
        let put = if tail == Some(*field) { format!("(self.{field}.len() as u32)") } else { format!("self.{field}") };
        let _ = writeln!(out, "        {put}.put(out);");
    }
    out.push_str("    }\n\n");
    if let Some(field) = tail {
        let _ = writeln!(out, "    fn tail(&self) -> &[u8] {{\n        &self.{field}\n    }}\n");
        let _ = writeln!(out, "    fn into_tail(self) -> Vec<u8> {{\n        self.{field}\n    }}\n");
    }
    let mutable = if fields.is_empty() { "" } else { "mut " };
    let _ = writeln!(out, "    fn decode(payload: &[u8]) -> Result<Self, CodecError> {{");
    let _ =
        writeln!(out, "        let {mutable}reader = Reader::new(\"{name}\", payload);\n        let reply = Self {{");
    for (field, _) in &fields {
        let _ = writeln!(out, "            {field}: reader.take()?,");
    }
    out.push_str("        };\n        reader.finish(reply)\n    }\n}\n\n");
}

fn names(out: &mut String, messages: &[(u16, &Function)]) {
    out.push_str("/// The name of a message, for logs.\npub fn message_name(opcode: u16) -> Option<&'static str> {\n");
    out.push_str("    usize::from(opcode).checked_sub(1).and_then(|at| NAMES.get(at)).copied()\n}\n\n");
    out.push_str("static NAMES: &[&str] = &[\n");
    for (_, function) in messages {
        let _ = writeln!(out, "    \"{}\",", function.name);
    }
    out.push_str("];\n\n");
    out.push_str(
        "/// A number of the name, fields and types of a message: what was kept by a build where it is another one\n",
    );
    out.push_str("/// cannot be read by this build.\npub fn message_layout(opcode: u16) -> Option<u64> {\n");
    out.push_str("    usize::from(opcode).checked_sub(1).and_then(|at| LAYOUTS.get(at)).copied()\n}\n\n");
    out.push_str("static LAYOUTS: &[u64] = &[\n");
    for (_, function) in messages {
        let _ = writeln!(out, "    {:#018x},", layout(function));
    }
    out.push_str("];\n");
}

/// Where in the payload of a message the stream is whose work it adds to; none if it adds none, or is sent by those who wait for
/// work that was added before.
fn stream_at(function: &Function) -> Option<usize> {
    let adds = match function.class {
        Class::Enqueue => !matches!(function.journal, JournalRule::Destroy(_)),
        Class::Blocking => function.name.starts_with("kd"),
        _ => false,
    };
    let is_stream = |kind: &ParameterKind| matches!(kind, ParameterKind::Value(ty) if ty.0 == "CUstream");
    let at = function.params.iter().position(|param| is_stream(&param.kind)).filter(|_| adds)?;
    Some(function.params[..at].iter().filter_map(request_field).map(|(_, ty)| size(ty)).sum())
}

/// Bytes of a field.
fn size(ty: &str) -> usize {
    match ty {
        "u8" => 1,
        "u16" => 2,
        "u64" | "i64" | "f64" => 8,
        _ => 4,
    }
}

/// `message_stream`, by the bytes in front of the stream.
fn streams(out: &mut String, messages: &[(u16, &Function)]) {
    let mut fields_at: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for (opcode, function) in messages {
        if let Some(at) = stream_at(function) {
            fields_at.entry(at).or_default().push(opcode.to_string());
        }
    }
    if fields_at.is_empty() {
        return;
    }
    out.push_str("\n/// The stream to whose work a message adds, by its wire id.\n");
    out.push_str("pub fn message_stream(opcode: u16, payload: &[u8]) -> Option<u32> {\n    let at = match opcode {\n");
    for (at, opcodes) in fields_at {
        let _ = writeln!(out, "        {} => {at},", opcodes.join(" | "));
    }
    out.push_str("        _ => return None,\n    };\n");
    out.push_str("    payload.get(at..)?.first_chunk().copied().map(u32::from_le_bytes)\n}\n");
}

/// Hash of a message's layout: FNV-1a over `name(field:type,…)`.
fn layout(function: &Function) -> u64 {
    let fields = function.params.iter().filter_map(request_field).map(|(name, ty)| format!("{name}:{ty},"));
    let text = format!("{}({})", function.name, fields.collect::<String>());
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
