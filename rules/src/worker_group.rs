//! worker_group
