//! worker_env
