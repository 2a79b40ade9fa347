//! stop_ladder
