//! The compute probe of a processor: products of matrices with known results, on one thread.
//!
//! The work is the same on every node that runs the same build; a debug build does less.

use std::{hint::black_box, time::Duration};

use super::{clock::OwnTime, factors};

/// Rows and columns: three matrices of this size fit into a core's own cache.
const SIZE: usize = if cfg!(debug_assertions) { 64 } else { 192 };

/// Products in one sample: 60 to 100 ms on a current server. A quota has a period of 100 ms and is accounted once in
/// a tick of 4 ms or more, so a much shorter sample may miss the throttling.
const PRODUCTS: u32 = if cfg!(debug_assertions) { 8 } else { 64 };

/// Products before the first sample, which would otherwise see a low clock and cold caches.
const WARM_UP: u32 = if cfg!(debug_assertions) { 1 } else { 8 };

/// Takes `times` samples in this thread's own time.
///
/// # Errors
/// A description, when a product is wrong.
pub(super) fn samples(times: u32) -> Result<Vec<Duration>, String> {
    let work = Work::new();
    (0..WARM_UP).try_for_each(|_| work.product())?;
    (0..times).map(|_| work.sample()).collect()
}

struct Work {
    left: Vec<f32>,
    right: Vec<f32>,
}

impl Work {
    fn new() -> Self {
        Self {
            left: factors::matrix(SIZE, factors::left, f32::from),
            right: factors::matrix(SIZE, factors::right, f32::from),
        }
    }

    fn sample(&self) -> Result<Duration, String> {
        let clock = OwnTime::start();
        for _ in 0..PRODUCTS {
            self.product()?;
        }
        Ok(clock.elapsed())
    }

    fn product(&self) -> Result<(), String> {
        let product = multiply(black_box(&self.left), black_box(&self.right));
        factors::check(SIZE, black_box(&product))
    }
}

fn multiply(left: &[f32], right: &[f32]) -> Vec<f32> {
    let mut product = vec![0.0; SIZE * SIZE];
    for (of_left, of_product) in left.chunks_exact(SIZE).zip(product.chunks_exact_mut(SIZE)) {
        for (factor, of_right) in of_left.iter().zip(right.chunks_exact(SIZE)) {
            for (sum, number) in of_product.iter_mut().zip(of_right) {
                *sum += factor * number;
            }
        }
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_right_product_passes_and_a_wrong_number_fails() {
        let work = Work::new();
        let mut product = multiply(&work.left, &work.right);
        assert_eq!(factors::check(SIZE, &product), Ok(()));
        product[SIZE + 5] += 1.0;
        assert!(factors::check(SIZE, &product).unwrap_err().contains("row 1 "));
        product[SIZE + 5] = f32::NAN;
        assert!(factors::check(SIZE, &product).is_err());
    }

    #[test]
    fn as_many_samples_as_were_asked_for() {
        assert_eq!(samples(2).unwrap().len(), 2);
        assert_eq!(samples(0).unwrap(), []);
    }
}
