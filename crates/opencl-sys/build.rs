//! Generates `opencl_function.rs` and `opencl_table.rs` from `spec/opencl.api`.

fn main() {
    katydid_api_codegen::build_script(&["opencl_function.rs", "opencl_table.rs"]);
}
