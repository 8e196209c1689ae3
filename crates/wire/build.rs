//! Generates `message.rs` and `opencl_message.rs` from the spec files.

fn main() {
    katydid_api_codegen::build_script(&["message.rs", "opencl_message.rs"]);
}
