//! The private tables behind cuGetExportTable.
