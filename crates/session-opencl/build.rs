//! Generates `opencl_dispatch.rs` from `spec/opencl-session.api`.

fn main() {
    katydid_api_codegen::build_script(&["opencl_dispatch.rs"]);
}
