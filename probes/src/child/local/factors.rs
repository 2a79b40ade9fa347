//! Two square matrices of known numbers, and the check of their product.
//!
//! The numbers are small and whole, so every sum is exact in any order, in `f32` as well as from half-precision
//! factors into `f32`.

/// The largest absolute value in a factor.
#[cfg(any(test, feature = "cuda"))]
pub(super) const LARGEST: i16 = 6;

/// Of the left factor.
pub(super) fn left(row: usize, column: usize) -> i16 {
    i16::try_from((row * 3 + column * 5) % 13).unwrap_or_default() - 6
}

/// Of the right factor.
pub(super) fn right(row: usize, column: usize) -> i16 {
    i16::try_from((row * 7 + column * 2) % 11).unwrap_or_default() - 5
}

/// A factor with this many rows and columns, row by row.
pub(super) fn matrix<T>(size: usize, number: fn(usize, usize) -> i16, convert: fn(i16) -> T) -> Vec<T> {
    (0..size * size).map(|at| convert(number(at / size, at % size))).collect()
}

/// Checks a product: the sum of each row is compared with left * (right * ones), in whole numbers. That is as
/// good as to compare the whole product, for a fraction of the work.
///
/// # Errors
/// A description of the first wrong row.
pub(super) fn check(size: usize, product: &[f32]) -> Result<(), String> {
    let sums_of_right: Vec<i64> =
        (0..size).map(|row| (0..size).map(|column| i64::from(right(row, column))).sum()).collect();
    for (row, numbers) in product.chunks_exact(size).enumerate() {
        let expected: i64 = (0..size).map(|k| i64::from(left(row, k)) * sums_of_right[k]).sum();
        let got: f64 = numbers.iter().map(|number| f64::from(*number)).sum();
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let expected = expected as f64;
        if got.to_bits() != expected.to_bits() && got != expected {
            return Err(format!(
                "wrong arithmetic: row {row} of a product sums to {got} instead of {expected}"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_exceeds_the_largest() {
        for number in [left, right] {
            let numbers = matrix(64, number, |it| it);
            assert!(numbers.iter().all(|it| it.abs() <= LARGEST), "{numbers:?}");
        }
    }
}
