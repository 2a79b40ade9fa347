//! fn main
