//! Merged stacks as a flame graph: a picture that a browser opens from a file, without a network.
//!
//! The generator is our own because inferno, the crate for this, is under the CDDL, which `deny.toml` does not let in. The
//! form is that of flamegraph.pl: the root at the bottom, a box for each node, as wide as the stacks that end above it, so
//! that the width counts distinct stacks and not ranks. Boxes are in the order of their words, and no number depends on
//! anything but the stacks: the same dumps give the same bytes.

mod colour;
mod label;

use std::fmt::Write;

use crate::trie::{NodeId, Trie};

use self::{colour::Colour, label::escaped};

const WIDTH: f64 = 1600.0;
/// Left and right of the boxes.
const PAD: f64 = 10.0;
/// Above the boxes: the title and the legend.
const HEAD: f64 = 64.0;
/// Below the boxes: the text of the box under the pointer.
const FOOT: f64 = 34.0;
const ROW: f64 = 18.0;
/// Boxes that are narrower are left out, with all above them: nobody sees a tenth of a pixel.
const NARROWEST: f64 = 0.1;

/// Returns the picture of a trie, `py_stack.svg` or `cpp_stack.svg`. The title of upstream's is `merge stack in py`.
#[must_use]
pub fn flame_graph(trie: &Trie, title: &str) -> String {
    let boxes = laid_out(trie);
    let rows = boxes.iter().map(|one| one.depth + 1).max().unwrap_or(1);
    let height = HEAD + ROW * rows as f64 + FOOT;
    let mut svg = String::new();
    head(&mut svg, height, title, trie);
    for one in &boxes {
        draw(&mut svg, one, trie, height);
    }
    svg.push_str("</g>\n");
    // Writing to a String does not fail.
    let _ok =
        write!(svg, "<text id=\"info\" x=\"{PAD}\" y=\"{:.0}\"> </text>\n{SCRIPT}</svg>\n", height - 12.0);
    svg
}

/// A box of the picture.
struct Laid {
    node: NodeId,
    depth: usize,
    x: f64,
    width: f64,
}

/// The boxes, each after the one below it; that of all stacks is the first.
fn laid_out(trie: &Trie) -> Vec<Laid> {
    // Children have larger numbers than their parents, so that one pass from the end adds up the stacks.
    let mut stacks: Vec<u32> = (0..trie.size()).map(|id| u32::from(id > 0 && trie.node(id).is_end)).collect();
    for id in (0..trie.size()).rev() {
        stacks[id] += trie.node(id).children.iter().map(|child| stacks[*child]).sum::<u32>();
    }
    let all = f64::from(stacks[0].max(1));
    let scale = (WIDTH - 2.0 * PAD) / all;
    let mut boxes = Vec::new();
    let mut next = vec![Laid { node: 0, depth: 0, x: PAD, width: all * scale }];
    while let Some(one) = next.pop() {
        let mut x = one.x;
        let above = trie.sorted_children(one.node).iter().map(|child| {
            let width = f64::from(stacks[*child]) * scale;
            let laid = Laid { node: *child, depth: one.depth + 1, x, width };
            x += width;
            laid
        });
        let above: Vec<Laid> = above.filter(|laid| laid.width >= NARROWEST).collect();
        next.extend(above.into_iter().rev());
        boxes.push(one);
    }
    boxes
}

/// Everything above the boxes, from the title to the group of the boxes.
fn head(svg: &mut String, height: f64, title: &str, trie: &Trie) {
    let mut legend = String::new();
    let mut x = PAD;
    for colour in Colour::ALL {
        let (plain, meaning, text) = (colour.plain(), colour.meaning(), x + 17.0);
        // Writing to a String does not fail.
        let _ok = write!(
            legend,
            "<rect x=\"{x:.1}\" y=\"38\" width=\"12\" height=\"12\" fill=\"{plain}\"/><text x=\"{text:.1}\" y=\"48\">{meaning}</text>"
        );
        x += 17.0 + label::width(meaning) + 18.0;
    }
    let filled = HEAD_TEMPLATE
        .replace("{height}", &format!("{height:.0}"))
        .replace("{world_size}", &trie.world_size().to_string())
        .replace("{legend}", &legend)
        .replace("{title}", &escaped(title));
    svg.push_str(&filled);
}

fn draw(svg: &mut String, one: &Laid, trie: &Trie, height: f64) {
    let y = height - FOOT - ROW * (one.depth + 1) as f64;
    let (token, word, fill) = if one.node == 0 {
        ("all", "all".to_owned(), "#c8c8c8".to_owned())
    } else {
        let word = trie.word(one.node);
        let token = trie.node(one.node).token.as_str();
        // Colours are by the whole word, as those of upstream.
        let fill = Colour::of(&word).shade(token);
        (token, word, fill)
    };
    let ranks = word.strip_prefix(token).unwrap_or_default();
    // Writing to a String does not fail.
    let _ok = writeln!(
        svg,
        "<g data-d=\"{}\" data-s=\"{}\" data-k=\"{}\"><title>{}</title><rect x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" \
         height=\"{:.1}\" fill=\"{fill}\"/><text x=\"{:.1}\" y=\"{:.1}\">{}</text></g>",
        one.depth,
        escaped(&label::short(token)),
        escaped(ranks),
        escaped(&word),
        one.x,
        one.width,
        ROW - 1.0,
        one.x + 3.0,
        y + 12.5,
        escaped(&label::fitting(token, ranks, one.width))
    );
}

/// It has the width of the picture in it, 1600.
const HEAD_TEMPLATE: &str = include_str!("svg/head.svg");

/// A click on a box makes it as wide as the picture, with what is above it; a click on `all`, on `reset zoom`, or the
/// Escape key shows everything again. The picture is complete without it.
const SCRIPT: &str = concat!("<script><![CDATA[\n", include_str!("svg/zoom.js"), "]]></script>\n");

#[cfg(test)]
mod tests;
