//! Parsers of numbers for the command lines of `dlrover-diag` and `dlrover-master`. Errors name the range.

use std::ops::RangeInclusive;

/// Parses a whole number of this range, which must be within the type's.
pub fn whole<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.trim().parse().ok().filter(|number| range.contains(number));
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| format!("expected a whole number from {} to {}", range.start(), range.end()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_range() {
        let port = whole::<u16>(0..=u16::MAX.into());
        assert_eq!((port("0"), port(" 65535 ")), (Ok(0), Ok(65535)));
        for text in ["65536", "-1", "", "x", "1.5", "18446744073709551616"] {
            assert_eq!(port(text), Err("expected a whole number from 0 to 65535".to_owned()), "{text}");
        }
    }
}
