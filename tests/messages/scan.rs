//! Finds messages: each string literal outside of tests that reads like a sentence.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use proc_macro2::{TokenStream, TokenTree};
use syn::{
    Arm, Attribute, Expr, ExprMethodCall, ExprStruct, Fields, File, ImplItemFn, Item, ItemEnum, ItemFn,
    ItemImpl, ItemMod, Lit, LitStr, Macro, Meta, Pat, Type, Variant,
    visit::{self, Visit},
};

use crate::constants::Constants;

/// The crates whose messages people read.
const CRATES: [&str; 13] = [
    "rules",
    "diagnosis",
    "stacks",
    "checkpoint",
    "saver",
    "processes",
    "store",
    "master-proto",
    "probes",
    "agent",
    "master",
    "launcher",
    "dlrover-diag",
];

/// Macros whose text is for developers.
const NOT_FOR_USERS: [&str; 10] = [
    "assert",
    "assert_eq",
    "assert_ne",
    "debug_assert",
    "debug_assert_eq",
    "panic",
    "unreachable",
    "debug",
    "trace",
    "concat",
];

/// Methods whose text is for developers, or in `--help`, which has snapshots of its own.
const NOT_A_MESSAGE: [&str; 10] = [
    "expect",
    "expect_err",
    "contains",
    "starts_with",
    "strip_prefix",
    "about",
    "long_about",
    "help",
    "long_help",
    "after_help",
];

/// Fields whose text is in `--help`.
const HELP_FIELDS: [&str; 4] = ["help", "about", "metavar", "description"];

/// Text with fewer words is a part of another message.
const WORDS: usize = 3;

/// A message as the source has it, with its placeholders.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Message {
    pub(crate) text: String,
    /// The first sentence of the documentation nearest to it.
    pub(crate) when: String,
}

/// Each file with messages, and its messages in the order of the source.
pub(crate) fn crates(tree: &Path) -> BTreeMap<String, Vec<Message>> {
    let mut files = BTreeMap::new();
    for name in CRATES {
        parse(&tree.join(name).join("src"), tree, &mut files);
    }
    let tests: Vec<String> = files.iter().flat_map(|(path, file)| test_modules(path, file)).collect();
    files.retain(|path, _| !tests.contains(path));
    let mut variants = Variants::default();
    files.values().for_each(|file| variants.visit_file(file));
    let constants = Constants::of(&files);
    let mut found = BTreeMap::new();
    for (path, file) in files {
        let mut scan =
            Scan { variants: &variants.docs, own: None, docs: vec![doc(&file.attrs)], found: Vec::new() };
        scan.visit_file(&file);
        for message in &mut scan.found {
            message.text = constants.filled(&message.text, &path);
        }
        let mut seen = BTreeSet::new();
        scan.found.retain(|message| seen.insert(message.text.clone()));
        if !scan.found.is_empty() {
            found.insert(path, scan.found);
        }
    }
    found
}

fn parse(folder: &Path, tree: &Path, files: &mut BTreeMap<String, File>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            if !matches!(name, "tests" | "snapshots") {
                parse(&path, tree, files);
            }
        } else if name.ends_with(".rs") && !matches!(name, "tests.rs" | "testing.rs") {
            let file = syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap();
            files.insert(path.strip_prefix(tree).unwrap().to_str().unwrap().to_owned(), file);
        }
    }
}

/// The files of the modules that a file declares for tests only.
fn test_modules(path: &str, file: &File) -> Vec<String> {
    let folder = path.trim_end_matches("/mod.rs").trim_end_matches("/lib.rs").trim_end_matches(".rs");
    let modules = file.items.iter().filter_map(|item| match item {
        Item::Mod(module) if module.content.is_none() && is_test(&module.attrs) => Some(&module.ident),
        _ => None,
    });
    modules.map(|name| format!("{folder}/{name}.rs")).collect()
}

/// The first sentence of a documentation, without the brackets of links; empty where it is a heading or only a link.
fn doc(attributes: &[Attribute]) -> String {
    let mut text = String::new();
    for attribute in attributes {
        let Meta::NameValue(pair) = &attribute.meta else { continue };
        let Expr::Lit(value) = &pair.value else { continue };
        let (true, Lit::Str(line)) = (pair.path.is_ident("doc"), &value.lit) else { continue };
        if line.value().trim().is_empty() || line.value().trim_start().starts_with('#') {
            break;
        }
        text += line.value().trim_end();
    }
    let text = text.trim();
    let is_link = |text: &str| text.starts_with("[`") && text.trim_end_matches('.').ends_with("`]");
    if is_link(text) && text.matches('[').count() == 1 {
        return String::new();
    }
    let text = without_links(text);
    let end = text.find(". ").map_or(text.len(), |end| end + 1);
    text[..end].to_owned()
}

/// ``[`Name`]`` and ``[mod@name]`` as ``Name`` and `name`, in code as they were; `[text](place)` as its text.
fn without_links(text: &str) -> String {
    let (mut plain, mut rest) = (String::new(), text);
    while let Some((before, link)) = rest.split_once('[') {
        let Some((name, after)) = link.split_once(']') else { break };
        let is_link = name.starts_with('`') && name.ends_with('`') || name.starts_with("mod@");
        let place = after.strip_prefix('(').and_then(|place| place.split_once(')'));
        plain.push_str(before);
        match (is_link, place) {
            (_, Some((_, after))) => {
                plain.push_str(name);
                rest = after;
            }
            (true, None) => {
                plain.push_str(&name.replace("mod@", "").replace("Self::", "").replace("super::", ""));
                rest = after;
            }
            (false, None) => {
                plain.push_str(&format!("[{name}]"));
                rest = after;
            }
        }
    }
    plain + rest
}

#[test]
fn the_documentation_of_a_message_has_no_headings_and_no_links() {
    let first = |text: &str| {
        let item: syn::ItemStruct = syn::parse_str(&format!("{text}\nstruct It;")).unwrap();
        doc(&item.attrs)
    };
    assert_eq!(first("/// # Errors\n///\n/// When it fails."), "");
    assert_eq!(first("/// It ends. # Errors"), "It ends.");
    assert_eq!(
        first("/// What [`Self::end`] ends; [a page](x.md).\n/// # Errors"),
        "What `end` ends; a page."
    );
    assert_eq!(first("/// [`Taints`]."), "");
    assert_eq!(first("/// The list [1] of `x[0]`."), "The list [1] of `x[0]`.");
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string().contains("test"),
        Meta::Path(path) => path.is_ident("test"),
        Meta::NameValue(_) => false,
    })
}

/// The documentation of all variants, by the name of their enum and their own.
#[derive(Default)]
struct Variants {
    docs: BTreeMap<(String, String), String>,
}

impl<'ast> Visit<'ast> for Variants {
    fn visit_item_enum(&mut self, item: &'ast ItemEnum) {
        for variant in &item.variants {
            self.docs.insert((item.ident.to_string(), variant.ident.to_string()), doc(&variant.attrs));
        }
    }
}

struct Scan<'a> {
    variants: &'a BTreeMap<(String, String), String>,
    /// The type of the `impl` that is being read.
    own: Option<String>,
    /// Documentation of what encloses this place, the nearest last.
    docs: Vec<String>,
    found: Vec<Message>,
}

impl Scan<'_> {
    fn take(&mut self, literal: &LitStr) {
        let text = literal.value().split_whitespace().collect::<Vec<_>>().join(" ");
        let is_word = |word: &&str| {
            let word = word.trim_matches(|sign: char| sign.is_ascii_punctuation());
            word.len() > 1 && word.chars().all(|letter| letter.is_ascii_alphabetic() || letter == '\'')
        };
        if text.split(' ').filter(is_word).count() >= WORDS {
            let when = self.docs.iter().rev().find(|doc| !doc.is_empty()).cloned().unwrap_or_default();
            self.found.push(Message { text, when });
        }
    }

    fn take_tokens(&mut self, tokens: TokenStream) {
        let mut before = String::new();
        for token in tokens {
            match &token {
                TokenTree::Literal(literal) => {
                    if let Lit::Str(literal) = Lit::new(literal.clone()) {
                        self.take(&literal);
                    }
                }
                // `#` is before an attribute, such as documentation.
                TokenTree::Group(group) if before != "#" && !NOT_A_MESSAGE.contains(&before.as_str()) => {
                    self.take_tokens(group.stream());
                }
                _ => {}
            }
            before = token.to_string();
        }
    }

    fn within(&mut self, attributes: &[Attribute], visit: impl FnOnce(&mut Self)) {
        if !is_test(attributes) {
            self.docs.push(doc(attributes));
            visit(self);
            self.docs.pop();
        }
    }

    /// The documentation of the variant that a pattern names.
    fn of_pattern(&self, pattern: &Pat) -> Option<String> {
        let path = match pattern {
            Pat::Path(path) => &path.path,
            Pat::Struct(of) => &of.path,
            Pat::TupleStruct(of) => &of.path,
            Pat::Or(any) => return any.cases.iter().find_map(|case| self.of_pattern(case)),
            Pat::Reference(of) => return self.of_pattern(&of.pat),
            Pat::Tuple(all) => return all.elems.iter().find_map(|of| self.of_pattern(of)),
            _ => return None,
        };
        let mut names = path.segments.iter().rev().map(|segment| segment.ident.to_string());
        let (variant, of) = (names.next()?, names.next()?);
        let of = if of == "Self" { self.own.clone()? } else { of };
        self.variants.get(&(of, variant)).cloned()
    }
}

impl<'ast> Visit<'ast> for Scan<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes: &[Attribute] = match item {
            Item::Const(item) => &item.attrs,
            Item::Static(item) => &item.attrs,
            Item::Struct(item) => &item.attrs,
            Item::Enum(item) => &item.attrs,
            Item::Trait(item) => &item.attrs,
            _ => &[],
        };
        self.within(attributes, |scan| visit::visit_item(scan, item));
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        let before = self.own.take();
        if let Type::Path(of) = &*item.self_ty {
            self.own = of.path.segments.last().map(|segment| segment.ident.to_string());
        }
        self.within(&item.attrs, |scan| visit::visit_item_impl(scan, item));
        self.own = before;
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.within(&item.attrs, |scan| visit::visit_item_fn(scan, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.within(&item.attrs, |scan| visit::visit_impl_item_fn(scan, item));
    }

    fn visit_variant(&mut self, variant: &'ast Variant) {
        self.within(&variant.attrs, |scan| visit::visit_variant(scan, variant));
    }

    fn visit_fields(&mut self, _: &'ast Fields) {}

    fn visit_arm(&mut self, arm: &'ast Arm) {
        self.docs.push(self.of_pattern(&arm.pat).unwrap_or_default());
        visit::visit_arm(self, arm);
        self.docs.pop();
    }

    /// Of attributes only `#[error("...")]` has a message.
    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let (true, Meta::List(list)) = (attribute.path().is_ident("error"), &attribute.meta) {
            self.take_tokens(list.tokens.clone());
        }
    }

    fn visit_macro(&mut self, called: &'ast Macro) {
        let name = called.path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default();
        if !NOT_FOR_USERS.contains(&name.as_str()) {
            self.take_tokens(called.tokens.clone());
        }
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        if NOT_A_MESSAGE.contains(&call.method.to_string().as_str()) {
            self.visit_expr(&call.receiver);
        } else {
            visit::visit_expr_method_call(self, call);
        }
    }

    fn visit_expr_struct(&mut self, made: &'ast ExprStruct) {
        for field in &made.fields {
            let name = match &field.member {
                syn::Member::Named(name) => name.to_string(),
                syn::Member::Unnamed(_) => String::new(),
            };
            if !HELP_FIELDS.contains(&name.as_str()) {
                self.visit_expr(&field.expr);
            }
        }
    }

    fn visit_lit_str(&mut self, literal: &'ast LitStr) {
        self.take(literal);
    }
}
