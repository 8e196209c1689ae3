//! Generates the table of driver functions from `spec/cuda.api`.

fn main() {
    katydid_api_codegen::build_script(&["functions.rs"]);
}
