//! Reads the API spec files into a checked model.
