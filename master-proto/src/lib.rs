//! master-proto
