//! Text in boxes: how much of it fits, and how it is written in XML.

/// Width of a character of the monospace font at 12 pixels, with some room; the script in the picture has the same.
const CHARACTER: f64 = 7.25;

/// A width for people: characters outside of the Latin scripts are taken for wide ones.
fn cells(character: char) -> usize {
    if character < '\u{1100}' { 1 } else { 2 }
}

/// The width of a text in pixels.
pub(super) fn width(text: &str) -> f64 {
    text.chars().map(cells).sum::<usize>() as f64 * CHARACTER
}

/// The text of a box of this width: the whole word when it fits, else its short form; else the end of the function's name
/// is left out before its ranks are, since they are what differs from box to box; else nothing.
pub(super) fn fitting(token: &str, ranks: &str, box_width: f64) -> String {
    let room = box_width - 6.0;
    let short = short(token);
    for token in [token, &short] {
        if width(token) + width(ranks) <= room {
            return format!("{token}{ranks}");
        }
    }
    let ranks = if width(ranks) <= room / 2.0 { ranks } else { "" };
    let mut left = room - width(ranks) - 2.0 * CHARACTER;
    let kept = short.chars().take_while(|character| {
        left -= cells(*character) as f64 * CHARACTER;
        left >= 0.0
    });
    let kept: String = kept.collect();
    if kept.is_empty() { String::new() } else { format!("{kept}..{ranks}") }
}

/// `func@train.py:5` of `func@/work/train.py:5`.
pub(super) fn short(token: &str) -> String {
    let Some((function, source)) = token.rsplit_once('@') else { return token.to_owned() };
    let name = source.rsplit('/').next().unwrap_or_default();
    if name.is_empty() { token.to_owned() } else { format!("{function}@{name}") }
}

/// The text as XML has it, in an element or in an attribute. Characters that XML cannot have become U+FFFD, and so do
/// those that reorder what is around them.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&apos;"),
            '\u{fffe}' | '\u{ffff}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                escaped.push('\u{fffd}')
            }
            character if character.is_control() => escaped.push('\u{fffd}'),
            character => escaped.push(character),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_to_its_box() {
        let fitted = |width| fitting("step@/work/train.py:5", "@0-5/7|6", width);
        assert_eq!(fitted(400.0), "step@/work/train.py:5@0-5/7|6");
        assert_eq!(fitted(200.0), "step@train.py:5@0-5/7|6");
        assert_eq!(fitted(140.0), "step@tra..@0-5/7|6");
        assert_eq!(fitted(100.0), "step@train..");
        assert_eq!(fitted(20.0), "");
        assert_eq!(fitted(0.5), "");
    }

    #[test]
    fn the_short_form_has_the_name_of_the_file() {
        assert_eq!(short("step@/work/train.py:5"), "step@train.py:5");
        assert_eq!(short("operator@v1::f@/lib/libx.so"), "operator@v1::f@libx.so");
        assert_eq!(short("State@S (sleeping)"), "State@S (sleeping)");
        assert_eq!(short("f@dir/"), "f@dir/");
    }

    #[test]
    fn xml_is_escaped() {
        assert_eq!(
            escaped("<a href=\"x\">&'\u{1}\u{202e}"),
            "&lt;a href=&quot;x&quot;&gt;&amp;&apos;\u{fffd}\u{fffd}"
        );
    }
}
