//! Accepts programs, starts and reaps workers.
