//! Generates functions and handles from `spec/cuda.api`.

fn main() {
    katydid_api_codegen::build_script(&["function.rs", "handles.rs"]);
}
