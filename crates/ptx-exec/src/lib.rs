//! Runs decoded PTX 32 lanes at a time.
