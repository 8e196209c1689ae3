//! Names that say nothing of what they name.
//!
//! A row of a table has a name, and what to write instead. It is refused as the whole name of a type, of a function or a field, of a
//! variable or of a constant; as a part of a longer name, and in prose, it is an ordinary word. Underscores before a name do not
//! count. Tests are checked as well. Names of messages and their fields come from `spec`, and are no part of this.

use std::fs;

use anyhow::{Context, Result};
use syn::visit::{self, Visit};

use crate::shell;
use crate::tree::Tree;

/// Names of types, and what to write instead.
const VAGUE_TYPES: &[(&str, &str)] = &[
    ("AtHand", "what is there: a listed worker, an opened image"),
    ("Bell", "a notify fd, a wake-up"),
    ("Home", "a home folder, or where the connection leads"),
    ("Judge", "a policy"),
    ("Kept", "what is kept: an entry, a cached image, returned pages"),
    ("Part", "what it is a part of: a session part, a report part"),
    ("Parts", "what they are parts of"),
    ("Place", "an address, a slot, an offset, a position, a path"),
    ("Places", "addresses, slots, offsets, positions, paths"),
    ("Shared", "what is shared, and by whom: a session's shared state"),
    ("Turn", "a lock, a permit, a time slice, a round"),
    ("Turns", "locks, permits, time slices, rounds"),
];

/// Names of functions and fields, and what to write instead.
const VAGUE_MEMBERS: &[(&str, &str)] = &[
    ("ahead", "what lies ahead: a read-ahead, a lookahead, a precopy"),
    ("apart", "what is apart from what: own namespaces, distinct slots"),
    ("aside", "what was put aside: a saved copy, a backup, a precopy"),
    ("behind", "what comes after what: a pending write, a parent"),
    ("kept", "what is kept: a hash, an entry, the expected text"),
    ("place", "what it is: address, slot, offset, position, path; of a function, a verb such as allocate"),
    ("places", "what they are: addresses, slots, offsets, positions, paths"),
    ("turn", "lock, permit, time slice, round"),
    ("turns", "locks, permits, time slices, rounds"),
];

/// Names of functions that stand for many acts, and of acts that have a plainer name. What to write is the act itself.
const VAGUE_ACTS: &[(&str, &str)] = &[
    ("calm", "disable_spin"),
    ("has_company", "is_multithreaded"),
    ("hear", "receive, or what is done with the message"),
    ("look", "measure, poll, query, read"),
    ("look_again", "wake_waiters"),
    ("plainly", "plaintext, without compression"),
    ("strike", "inject, of a fault"),
    ("talk", "send, receive, exchange"),
    ("tell", "report, notify, send, write"),
    ("tell_all", "wake_all, report_all"),
    ("telling", "with what, or reporting to whom"),
];

/// Names of fields, variables and constants whose things have other names in the field.
const OLD_THINGS: &[(&str, &str)] = &[
    ("bell", "notify_fd"),
    ("favourite", "bias_owner"),
    ("hear", "a receiver, a callback"),
    ("judge", "policy"),
    ("lent", "the block, or how many bytes are lent"),
    ("lift", "transfer"),
    ("look", "a poll, a query, a wait"),
    ("memo", "hash_cache"),
    ("parked", "what is locked or waits"),
    ("seats", "thread_ids"),
    ("shelf", "zero_copy"),
    ("standing", "state"),
    ("strike", "an injected fault"),
    ("talk", "channel"),
    ("tell", "a sender, a callback: notify, report"),
    ("turn", "lock, guard, permit, round"),
    ("wish", "request"),
];

/// Names of modules that were given up for the field's terms.
const OLD_MODULES: &[(&str, &str)] = &[
    ("bell", "notify_fd"),
    ("briefs", "compact"),
    ("ghosts", "tombstones"),
    ("home", "reconnect"),
    ("ledger", "process_state"),
    ("memo", "hash_cache"),
    ("parked", "process_checkpoint"),
    ("seats", "thread_ids"),
    ("shelf", "zero_copy"),
    ("talk", "control_channel"),
    ("train", "batch"),
];

/// Constants without a subject or a unit, and what to write instead.
const VAGUE_CONSTANTS: &[(&str, &str)] = &[
    ("ASKED", "QUERY_COUNT"),
    ("DEVICE_STRIDE", "DEVICE_SPAN_BYTES"),
    ("FORKED", "FORKED_CHILD"),
    ("FOUND", "what was found"),
    ("FREED", "FREED_ADDRESSES"),
    ("GIVEN", "what is given"),
    ("HELD", "LOCK_HELD"),
    ("KEPT", "what is kept"),
    ("LAST", "LAST_KEY, LAST_FRAME"),
    ("LATENCY", "with what it bounds and its unit"),
    ("LEAST_WORK", "MIN_PROGRESS_TIME"),
    ("LENT", "what is lent"),
    ("LOST", "WORKER_LOST"),
    ("MADE", "CREATED_FOLDERS"),
    ("MAX_BYTES", "with the subject: MAX_NAME_BYTES"),
    ("MAX_CUTS", "MAX_CUT_CONNECTIONS"),
    ("MAX_FILES", "MAX_COUNTED_FILES"),
    ("MAX_HASHES", "MAX_REQUEST_HASHES"),
    ("MAX_IMAGES", "MAX_CACHED_MODULES"),
    ("MAX_IMAGE_BYTES", "MAX_MODULE_IMAGE_BYTES"),
    ("MAX_LIMITS", "MAX_CONTEXT_LIMITS"),
    ("MAX_LINES", "MAX_LOG_LINES"),
    ("MAX_PARAMS", "MAX_PARAMETER_BYTES"),
    ("MAX_PIECES", "MAX_NAME_PIECES"),
    ("MAX_QUERY_STREAMS", "MAX_EVENT_QUERY_STREAMS"),
    ("MAX_RANK", "MAX_TENSOR_RANK"),
    ("MAX_SOURCES", "MAX_LOG_SOURCES"),
    ("MAX_STEPS", "MAX_GRAPH_STEPS"),
    ("MAX_WORKERS", "MAX_REBUILD_WORKERS"),
    ("MINE", "OWN_ID"),
    ("MIN_BYTES", "with the subject: MIN_GATHERED_BYTES"),
    ("MIN_PAUSE", "MIN_EVENT_POLL_PAUSE"),
    ("NEXT", "NEXT_STREAM_ID"),
    ("OURS", "what is allowed or own"),
    ("OWN", "CONFIG_FILE, DEFAULT_STREAMS"),
    ("PLACE", "an address, an offset, a displacement"),
    ("PLACES", "ADDRESSES, OFFSETS"),
    ("QUIET_LIMIT", "PEER_IDLE_TIMEOUT"),
    ("RAN", "what ran, or how often"),
    ("SAID", "IS_REPORTED, REPORTED_LOGS"),
    ("SEEN", "REPORTED_CALLS"),
    ("SHELF", "ZERO_COPY"),
    ("SIZE", "with the subject and the unit: BLOCK_BYTES"),
    ("STRIDE", "RECORD_BYTES"),
    ("THEIRS", "OTHER_ID"),
    ("TIME_LIMIT", "BENCH_TIME_LIMIT"),
    ("TOLD", "RECEIVED_ARGUMENTS"),
    ("TURN", "a lock, a rotation"),
    ("WANTED", "WANTED_VARIABLE"),
];

/// Participles that name no function by themselves, since they say neither what it does nor what it returns.
const PARTICIPLES: &[&str] = &[
    "asked", "attended", "begun", "came", "given", "heard", "held", "lent", "noted", "said", "seen", "shown", "taken",
    "told", "untold", "wanted",
];

/// Participles that name no field by themselves, since they do not say of what.
const FIELD_PARTICIPLES: &[&str] = &["asked", "given", "heard", "said", "seen", "taken", "told", "untold"];

/// Words that name no variable by themselves, parameters included: they say that something happened to it, or whose it is, and not what
/// it is.
const VAGUE_VARIABLES: &[&str] = &[
    "asked", "begun", "behind", "given", "heard", "kept", "made", "noted", "ours", "place", "places", "said", "taken",
    "theirs", "told", "untold", "wanted",
];

/// Each name of the tables that is declared in a Rust file of the tree.
pub(crate) fn faults(tree: &Tree) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    let files = shell::git(&tree.root, &["ls-files", "*.rs"])?;
    for path in files.lines() {
        // A file may be gone from the checkout before it is gone from the index.
        let Ok(text) = fs::read_to_string(tree.root.join(path)) else { continue };
        let found = vague(&text).with_context(|| format!("{path} is not Rust"))?;
        faults.extend(found.into_iter().map(|fault| format!("{path}:{fault}")));
    }
    if !faults.is_empty() {
        faults.push("The tables of names are in xtask/src/checks/words/names.rs".to_owned());
    }
    Ok(faults)
}

/// The vague names of a text, each with its line and what to write instead.
fn vague(text: &str) -> syn::Result<Vec<String>> {
    let mut visitor = Declarations::default();
    visitor.visit_file(&syn::parse_file(text)?);
    Ok(visitor.faults)
}

/// Walks the declarations of one file.
#[derive(Default)]
struct Declarations {
    faults: Vec<String>,
}

/// Returns a name without the underscores before it, which only say that it may be unused.
fn without_underscores(name: &syn::Ident) -> String {
    name.to_string().trim_start_matches('_').to_owned()
}

impl Declarations {
    fn check(&mut self, kind: &str, name: &syn::Ident, table: &[(&str, &str)]) {
        let plain = without_underscores(name);
        if let Some((_, instead)) = table.iter().find(|(known, _)| plain == *known) {
            self.refuse(kind, name, instead);
        }
    }

    fn check_function(&mut self, name: &syn::Ident) {
        self.check("function", name, VAGUE_MEMBERS);
        self.check("function", name, VAGUE_ACTS);
        let plain = without_underscores(name);
        if PARTICIPLES.iter().any(|known| plain == *known) {
            self.refuse("function", name, "a verb for what it does, or a noun for what it returns");
        }
    }

    fn refuse(&mut self, kind: &str, name: &syn::Ident, instead: &str) {
        let line = name.span().start().line;
        self.faults.push(format!("{line}: a {kind} \"{name}\" says nothing: {instead}"));
    }
}

impl<'ast> Visit<'ast> for Declarations {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.check("type", &item.ident, VAGUE_TYPES);
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.check("type", &item.ident, VAGUE_TYPES);
        visit::visit_item_enum(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.check("type", &item.ident, VAGUE_TYPES);
        visit::visit_item_trait(self, item);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.check("type", &item.ident, VAGUE_TYPES);
        visit::visit_item_type(self, item);
    }

    fn visit_item_union(&mut self, item: &'ast syn::ItemUnion) {
        self.check("type", &item.ident, VAGUE_TYPES);
        visit::visit_item_union(self, item);
    }

    fn visit_trait_item_type(&mut self, item: &'ast syn::TraitItemType) {
        self.check("type", &item.ident, VAGUE_TYPES);
        visit::visit_trait_item_type(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.check("module", &item.ident, OLD_MODULES);
        visit::visit_item_mod(self, item);
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.check("constant", &item.ident, VAGUE_CONSTANTS);
        visit::visit_item_const(self, item);
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.check("constant", &item.ident, VAGUE_CONSTANTS);
        visit::visit_item_static(self, item);
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.check("constant", &item.ident, VAGUE_CONSTANTS);
        visit::visit_impl_item_const(self, item);
    }

    fn visit_trait_item_const(&mut self, item: &'ast syn::TraitItemConst) {
        self.check("constant", &item.ident, VAGUE_CONSTANTS);
        visit::visit_trait_item_const(self, item);
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        self.check_function(&signature.ident);
        visit::visit_signature(self, signature);
    }

    fn visit_pat_ident(&mut self, pattern: &'ast syn::PatIdent) {
        self.check("variable", &pattern.ident, OLD_THINGS);
        let plain = without_underscores(&pattern.ident);
        if VAGUE_VARIABLES.iter().any(|known| plain == *known) {
            self.refuse(
                "variable",
                &pattern.ident,
                "what it is: an answer, an output, a request, an address, an instant",
            );
        }
        visit::visit_pat_ident(self, pattern);
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if let Some(name) = &field.ident {
            self.check("field", name, VAGUE_MEMBERS);
            self.check("field", name, OLD_THINGS);
            let plain = without_underscores(name);
            if FIELD_PARTICIPLES.iter().any(|known| plain == *known) {
                self.refuse("field", name, "what it is: an answer, an output, the names, the bytes in use");
            }
        }
        visit::visit_field(self, field);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_alone_is_refused_where_it_is_declared() {
        let found = vague(
            "struct Place;\nenum Kind { A { kept: u32, place: u32 } }\ntrait Api {\n    type Shared;\n    fn turn();\n}\n",
        );
        let lines: Vec<String> =
            found.unwrap().iter().map(|fault| fault.split(" says").next().unwrap().into()).collect();
        let expected = [
            "1: a type \"Place\"",
            "2: a field \"kept\"",
            "2: a field \"place\"",
            "4: a type \"Shared\"",
            "5: a function \"turn\"",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn participles_alone_are_refused_as_names() {
        assert_eq!(vague("impl A {\n    fn heard() {}\n    fn place() {}\n}\n").unwrap().len(), 2);
        assert!(vague("fn heard_at() {}\nfn receive() {}\nstruct A { is_heard: bool }\n").unwrap().is_empty());
        assert_eq!(vague("struct A { heard: bool }\n").unwrap().len(), 1);
    }

    #[test]
    fn variables_and_parameters_have_names_that_say_what_they_are() {
        let text = "fn f(told: u32) {\n    let (mut made, b) = (told, 1);\n    g(|asked| asked + b);\n}\n";
        assert_eq!(vague(text).unwrap().len(), 3);
    }

    #[test]
    fn acts_and_constants_are_named_by_themselves() {
        assert_eq!(vague("impl A {\n    fn tell() {}\n    fn look_again() {}\n}\n").unwrap().len(), 2);
        let constants =
            "static SAID: u32 = 1;\nimpl A {\n    const NEXT: u32 = 1;\n}\ntrait B {\n    const LOST: u32;\n}\n";
        assert_eq!(vague(constants).unwrap().len(), 3);
        assert!(vague("fn tell_the_time() {}\nstatic NEXT_ID: u32 = 1;\n").unwrap().is_empty());
    }

    #[test]
    fn underscores_before_a_name_hide_nothing() {
        assert_eq!(vague("struct A { _behind: u32 }\nfn f(_turn: u32) {\n    let __made = 1;\n}\n").unwrap().len(), 3);
    }

    #[test]
    fn parts_of_names_uses_and_prose_are_ordinary() {
        let text = "/// The place that is kept.\nstruct JobPlace { place_of: u32 }\nfn f(offset: u32) { g(place) }\n";
        assert!(vague(text).unwrap().is_empty());
    }
}
