//! The address map that program and worker share.
