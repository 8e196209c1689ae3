//! Generates `function.rs` from `spec/cuda.api`.

fn main() {
    katydid_api_codegen::build_script(&["function.rs"]);
}
