//! The grammar of `--box-pairs`: pairs of switchbox sockets, `0:1 2:4`, between spaces or commas.

pub use diagnosis::switchbox::SocketPair as BoxPair;

/// Parses pairs; `None` for anything else.
pub fn parse(text: &str) -> Option<Vec<BoxPair>> {
    let pairs = text
        .split([' ', ','])
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (one, other) = pair.split_once(':')?;
            Some(BoxPair(socket(one)?, socket(other)?))
        })
        .collect::<Option<Vec<_>>>()?;
    (!pairs.is_empty()).then_some(pairs)
}

fn socket(text: &str) -> Option<u32> {
    // u32's own parser would take a `+`.
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_word_may_hold_several_pairs() {
        let two = Some(vec![BoxPair(0, 1), BoxPair(2, 4)]);
        assert_eq!(parse("0:1 2:4"), two);
        assert_eq!(parse("0:1,2:4"), two);
        assert_eq!(parse("0:1, 2:4 "), two);
    }

    #[test]
    fn anything_else_is_no_pair() {
        for text in ["", " ", "train.py", "0:1:2", "0:", ":1", "0-1", "a:b", "+1:2", "0:1 x", "99999999999:1"]
        {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
