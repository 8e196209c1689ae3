//! Messages and frames between program and worker.
