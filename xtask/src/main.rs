//! The checks and chores of the project.

fn main() {}
