//! Generates the dispatch of messages from `spec/cuda.api` and `spec/session.api`.

fn main() {
    katydid_api_codegen::build_script(&["dispatch.rs"]);
}
