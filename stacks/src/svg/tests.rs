//! Pictures of small and of hostile stacks.

use proptest::prelude::*;

use super::*;

fn trie(world_size: u32, stacks: &[(&str, u32)]) -> Trie {
    let mut trie = Trie::new(world_size);
    for (stack, rank) in stacks {
        trie.insert(stack.split(';').map(str::to_owned), *rank);
    }
    trie
}

fn golden() -> Trie {
    let mut trie = Trie::new(8);
    for rank in 0..8 {
        let stack = match rank {
            6 => "<module>@train.py:10;step@train.py:6;sleep@train.py:9",
            _ => "<module>@train.py:10;step@train.py:5;barrier@/site-packages/torch/dist.py:3",
        };
        trie.insert(["State@S (sleeping)".to_owned()], rank);
        trie.insert(stack.split(';').map(str::to_owned), rank);
    }
    trie
}

/// The elements of a document, each with its attributes; panics where it is not well-formed. It knows what our
/// generator writes: no namespaces, no entities but the five, no comments.
fn elements(svg: &str) -> Vec<(String, Vec<(String, String)>)> {
    let mut rest = svg
        .strip_prefix("<?xml version=\"1.0\" encoding=\"UTF-8\" standalone=\"no\"?>\n")
        .expect("a declaration");
    let (mut open, mut found) = (Vec::new(), Vec::new());
    while let Some(at) = rest.find('<') {
        check_text(&rest[..at], !open.is_empty());
        rest = &rest[at + 1..];
        if let Some(data) = rest.strip_prefix("![CDATA[") {
            rest = data.split_once("]]>").expect("the end of the character data").1;
        } else if let Some(end) = rest.strip_prefix('/') {
            let (name, behind) = end.split_once('>').expect("the end of a tag");
            assert_eq!(open.pop().as_deref(), Some(name), "an element ends in another");
            rest = behind;
        } else {
            let (tag, behind) = rest.split_once('>').expect("the end of a tag");
            let is_empty = tag.ends_with('/');
            let tag = tag.trim_end_matches('/');
            let (name, mut attributes) = tag.split_once(' ').unwrap_or((tag, ""));
            let mut read = Vec::new();
            while !attributes.trim().is_empty() {
                let (key, value) = attributes.trim_start().split_once("=\"").expect("an attribute");
                let (value, behind) = value.split_once('"').expect("the end of a value");
                check_text(value, true);
                assert!(read.iter().all(|(other, _)| other != key), "{key} twice");
                read.push((key.to_owned(), value.to_owned()));
                attributes = behind;
            }
            if !is_empty {
                open.push(name.to_owned());
            }
            found.push((name.to_owned(), read));
            rest = behind;
        }
    }
    assert!(open.is_empty() && rest.trim().is_empty(), "open at the end: {open:?}");
    found
}

fn check_text(text: &str, is_inside: bool) {
    assert!(is_inside || text.trim().is_empty(), "text outside of the document: {text:?}");
    for (at, _) in text.match_indices('&') {
        let entities = ["&amp;", "&lt;", "&gt;", "&quot;", "&apos;"];
        assert!(entities.iter().any(|entity| text[at..].starts_with(entity)), "{text:?}");
    }
    let is_allowed = |character: char| {
        character == '\n' || character >= ' ' && !('\u{fffe}'..='\u{ffff}').contains(&character)
    };
    assert!(text.chars().all(is_allowed), "{text:?}");
}

fn attribute<'a>(attributes: &'a [(String, String)], name: &str) -> Option<&'a str> {
    attributes.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

#[test]
fn the_picture_has_every_word_and_the_root_at_the_bottom() {
    let svg = flame_graph(&golden(), "merge stack in py");
    let all = elements(&svg);
    let of_root = &all.iter().find(|(name, _)| name == "svg").unwrap().1;
    assert_eq!(attribute(of_root, "width"), Some("1600"));
    for word in [
        "State@S (sleeping)@0-7|",
        "&lt;module&gt;@train.py:10@0-7|",
        "barrier@/site-packages/torch/dist.py:3@0-5/7|6",
        "sleep@train.py:9@6|0-5/7",
    ] {
        assert!(svg.contains(&format!("<title>{word}</title>")), "{word}");
    }
    let bottom = |word: &str| {
        let at = svg.split_once(&format!("<title>{word}</title>")).unwrap().1;
        at.split_once("y=\"").unwrap().1.split_once('"').unwrap().0.parse::<f64>().unwrap()
    };
    assert!(bottom("all") > bottom("&lt;module&gt;@train.py:10@0-7|"));
    assert!(bottom("&lt;module&gt;@train.py:10@0-7|") > bottom("step@train.py:6@6|0-5/7"));
}

/// The width counts distinct stacks, not ranks: three stacks end in the golden trie.
#[test]
fn a_box_is_as_wide_as_its_stacks() {
    let boxes = laid_out(&golden());
    let third = (WIDTH - 2.0 * PAD) / 3.0;
    let widths: Vec<f64> = boxes.iter().map(|one| (one.width / third).round()).collect();
    assert_eq!(
        widths,
        [3.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0].map(|width: f64| width).to_vec()[..widths.len()].to_vec()
    );
}

#[test]
fn the_same_stacks_in_another_order_give_the_same_bytes() {
    let stacks = [("a@x.py:1;b@x.py:2", 0), ("a@x.py:1;c@x.py:3", 1), ("State@R (running)", 1)];
    let mut reversed = stacks;
    reversed.reverse();
    assert_eq!(flame_graph(&trie(2, &stacks), "t"), flame_graph(&trie(2, &reversed), "t"));
}

#[test]
fn no_stacks_give_a_picture_with_one_box() {
    let svg = flame_graph(&Trie::new(4), "merge stack in cpp");
    assert_eq!(elements(&svg).iter().filter(|(name, _)| name == "g").count(), 2);
}

#[test]
fn a_name_cannot_break_out_of_the_picture() {
    let name = "</title><script>alert(1)</script>\"' ]]> &lt;\u{1}@a\u{202e}.py:1";
    let svg = flame_graph(&trie(1, &[(name, 0)]), "<title> & \"co\"");
    let all = elements(&svg);
    assert_eq!(all.iter().filter(|(name, _)| name == "script").count(), 1);
    assert!(!svg.contains("<script>alert"));
    assert!(!svg.contains('\u{202e}'));
}

#[test]
fn boxes_that_cannot_be_seen_are_left_out() {
    let mut trie = Trie::new(1);
    for number in 0..20_000 {
        trie.insert([format!("f{number}@a.py:1"), "g@a.py:2".to_owned()], 0);
    }
    assert_eq!(laid_out(&trie).len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_picture_is_well_formed_and_boxes_lie_on_their_parents(
        stacks in prop::collection::vec((prop::collection::vec("\\PC{0,6}|[<>&\"'\u{0}-\u{1f}]{0,6}", 0..5), 0_u32..6), 0..12)
    ) {
        let mut trie = Trie::new(6);
        for (stack, rank) in stacks {
            trie.insert(stack, rank);
        }
        elements(&flame_graph(&trie, "t"));
        let boxes = laid_out(&trie);
        let mut below: Vec<&Laid> = Vec::new();
        for one in &boxes {
            below.truncate(one.depth);
            if let Some(parent) = below.last() {
                prop_assert!(one.x >= parent.x - 0.001 && one.x + one.width <= parent.x + parent.width + 0.001);
            }
            below.push(one);
        }
    }
}
