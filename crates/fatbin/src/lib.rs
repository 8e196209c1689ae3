//! Reads module images: fatbin containers, cubins and PTX.
