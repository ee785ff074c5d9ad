//! What a file uses of the other files of its crate: by paths, and by methods.
//!
//! A method needs no import. Where a type has `impl` blocks in several files, a call of one of its methods may lead to
//! any of them. Such calls are resolved by the type of the block that `self` stands in, or by the type with which the
//! receiver's name is declared, in this file or else anywhere in the crate. A call is not seen if its receiver is
//! neither, or if its name is declared with several types.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use crate::{
    source::Source,
    tokens::{is_word, pair, tokens},
};

/// A path from the root of a crate on: modules, and what is in the last of them.
pub type CratePath = Vec<String>;

/// Types that a name has in the places where it is declared.
type Declared<'s> = BTreeMap<&'s str, BTreeSet<&'s str>>;

/// What types are looked for in.
const WRAPPERS: &[&str] = &[
    "Arc",
    "Box",
    "Mutex",
    "MutexGuard",
    "Option",
    "Rc",
    "RwLock",
    "RwLockReadGuard",
    "RwLockWriteGuard",
    "Weak",
];

/// What types begin with that no crate defines.
const PRIMITIVES: &[&str] = &[
    "bool", "char", "f64", "i32", "i64", "str", "u8", "u16", "u32", "u64", "usize", "Bytes", "String", "Vec",
];

struct File<'s> {
    /// Empty for the root of the crate.
    module: CratePath,
    tokens: Vec<&'s str>,
    /// Modules in the file itself: their names, and where their tokens are.
    inline: Vec<(&'s str, Range<usize>)>,
    impls: Vec<Impl<'s>>,
    declared: Declared<'s>,
}

impl<'s> File<'s> {
    /// The type of the `impl` block that a token is in.
    fn block(&self, token: usize) -> Option<&'s str> {
        self.impls.iter().rfind(|block| block.body.contains(&token)).map(|block| block.of)
    }
}

/// An `impl` block: its type, and where its tokens are.
struct Impl<'s> {
    of: &'s str,
    is_inherent: bool,
    body: Range<usize>,
}

/// The files of a crate, and what their code names.
pub struct Uses<'s> {
    files: Vec<File<'s>>,
    /// What a module re-exports, by the path of the module and the name there.
    reexports: BTreeMap<(CratePath, String), CratePath>,
    /// The file of each method of the types that have inherent `impl` blocks in several files.
    methods: BTreeMap<(&'s str, &'s str), usize>,
    /// By name, anywhere in the crate.
    declared: Declared<'s>,
}

impl<'s> Uses<'s> {
    pub fn new(sources: &'s [Source]) -> Self {
        let read = |source: &'s Source| {
            let module = match &source.module()[..] {
                ["lib" | "main"] => Vec::new(),
                parts => parts.iter().map(|part| part.to_string()).collect(),
            };
            let tokens = tokens(source.text_of_code());
            File { module, inline: inline(&tokens), impls: impls(&tokens), declared: Declared::new(), tokens }
        };
        let mut files: Vec<File> = sources.iter().map(read).collect();
        let mut types: BTreeSet<&str> = PRIMITIVES.iter().copied().collect();
        for file in &files {
            let items = file.tokens.windows(2).filter(|two| ["struct", "enum", "trait"].contains(&two[0]));
            types.extend(items.map(|two| two[1]));
        }
        let (mut declared, mut blocks) = (Declared::new(), BTreeMap::<_, BTreeSet<usize>>::new());
        for (i, file) in files.iter_mut().enumerate() {
            file.declared = declarations(file, &types);
            for (name, types) in &file.declared {
                declared.entry(*name).or_default().extend(types);
            }
            for block in file.impls.iter().filter(|block| block.is_inherent) {
                blocks.entry(block.of).or_default().insert(i);
            }
        }
        let mut methods = BTreeMap::new();
        for (i, file) in files.iter().enumerate() {
            for block in file.impls.iter().filter(|block| block.is_inherent && blocks[block.of].len() > 1) {
                let names = file.tokens[block.body.clone()].windows(2).filter(|two| two[0] == "fn");
                methods.extend(names.map(|two| ((block.of, two[1]), i)));
            }
        }
        let mut uses = Self { files, reexports: BTreeMap::new(), methods, declared };
        uses.reexports = uses.files.iter().flat_map(|file| uses.reexports_of(file)).collect();
        uses
    }

    fn reexports_of(&self, file: &File) -> Vec<((CratePath, String), CratePath)> {
        let mut found = Vec::new();
        for (i, two) in file.tokens.windows(2).enumerate() {
            if two[1] == "use" && matches!(two[0], "pub" | ")") {
                let paths = self.paths_at(file, i + 2).map_or(Vec::new(), |(paths, _)| paths);
                let named = |path: CratePath| Some(((file.module.clone(), path.last()?.clone()), path));
                found.extend(paths.into_iter().filter_map(named));
            }
        }
        found
    }

    /// What a file uses of its crate, as paths to where that is defined.
    pub fn of(&self, file: usize) -> BTreeSet<CratePath> {
        let mut found = self.paths_of(file);
        found.extend(self.called(file));
        found
    }

    /// The file that a path leads to.
    pub fn file_of(&self, path: &[String]) -> Option<usize> {
        (0..=path.len()).rev().find_map(|n| self.files.iter().position(|file| file.module == path[..n]))
    }

    /// What its code names by paths.
    pub fn paths_of(&self, file: usize) -> BTreeSet<CratePath> {
        let file = &self.files[file];
        let (mut found, mut i) = (BTreeSet::new(), 0);
        while i < file.tokens.len() {
            let before = if i == 0 { "" } else { file.tokens[i - 1] };
            match self.paths_at(file, i).filter(|_| before != "::") {
                Some((paths, end)) => {
                    found.extend(paths.into_iter().map(|path| self.resolved(path)));
                    i = end;
                }
                // Names in a tree of another crate are none of this one's.
                None if before == "use" => {
                    i += file.tokens[i..].iter().take_while(|token| **token != ";").count()
                }
                None => i += 1,
            }
        }
        found
    }

    /// The paths of this crate that begin at a token: several if it is a tree of them; and what follows.
    fn paths_at(&self, file: &File, at: usize) -> Option<(Vec<CratePath>, usize)> {
        if file.tokens.get(at + 1) != Some(&"::") {
            return None;
        }
        let (mut i, mut prefix) = (at, file.module.clone());
        let inline = file.inline.iter().filter(|(_, body)| body.contains(&at));
        prefix.extend(inline.map(|(name, _)| name.to_string()));
        match file.tokens[i] {
            "crate" => (prefix, i) = (Vec::new(), i + 2),
            "self" => i += 2,
            "super" => {
                while file.tokens[i] == "super" {
                    prefix.pop();
                    i += 2;
                }
            }
            child => {
                let mut path = prefix.clone();
                path.push(child.to_string());
                self.files.iter().find(|file| file.module == path)?;
            }
        }
        let mut found = Vec::new();
        let end = tree(&file.tokens, i, &mut prefix, &mut found);
        Some((found, end))
    }

    /// Where that is defined which a path names, perhaps as the re-export of a module.
    fn resolved(&self, mut path: CratePath) -> CratePath {
        for _ in 0..8 {
            let Some(file) = self.file_of(&path) else { break };
            let module = &self.files[file].module;
            let Some(name) = path.get(module.len()) else { break };
            let Some(to) = self.reexports.get(&(module.clone(), name.clone())) else { break };
            path = to.iter().chain(&path[module.len() + 1..]).cloned().collect();
        }
        path
    }

    /// Methods that a file calls or names, of types with `impl` blocks in several files.
    fn called(&self, of: usize) -> BTreeSet<CratePath> {
        let file = &self.files[of];
        let mut found = BTreeSet::new();
        for (i, three) in file.tokens.windows(3).enumerate() {
            let is_field = i > 0 && file.tokens[i - 1] == ".";
            let by_type = match *three {
                ["Self", "::", _] => file.block(i),
                [name, "::", _] => Some(name),
                ["self", ".", _] if !is_field => file.block(i),
                // What a method without arguments gives.
                [")", ".", _] if i > 1 && file.tokens[i - 1] == "(" => self.type_of(file, file.tokens[i - 2]),
                [name, ".", _] => self.type_of(file, name),
                _ => None,
            };
            let method = by_type.and_then(|of| Some((of, *self.methods.get(&(of, three[2]))?)));
            // A field may have the name of a method.
            let is_call = three[1] == "::" || matches!(file.tokens.get(i + 3), Some(&"(" | &"::"));
            if let Some((of, home)) = method.filter(|_| is_call) {
                let mut path = self.files[home].module.clone();
                path.extend([of.to_string(), three[2].to_string()]);
                found.insert(path);
            }
        }
        found
    }

    /// The type of what has a name in a file. What is declared elsewhere is taken for the same if the file names the
    /// type, or the name is that of the type, as `engine`.
    fn type_of(&self, file: &File<'s>, name: &str) -> Option<&'s str> {
        let named_after = |of: &&str| of.to_lowercase().ends_with(&name.replace('_', ""));
        let only = |types: &BTreeSet<&'s str>| types.first().filter(|_| types.len() == 1).copied();
        match file.declared.get(name) {
            Some(types) => only(types),
            None => only(self.declared.get(name)?).filter(|of| named_after(of) || file.tokens.contains(of)),
        }
    }
}

/// Reads one tree of a `use`, or one path, from a token on; gives the first token behind it.
fn tree(tokens: &[&str], at: usize, prefix: &mut CratePath, found: &mut Vec<CratePath>) -> usize {
    let (depth, mut i) = (prefix.len(), at);
    while let Some(token) = tokens.get(i) {
        if *token == "{" {
            i += 1;
            while tokens.get(i).is_some_and(|token| *token != "}") {
                i = tree(tokens, i, prefix, found);
                i += usize::from(tokens.get(i) == Some(&","));
            }
            prefix.truncate(depth);
            return i + 1;
        }
        i += 1;
        if !is_word(token) {
            break;
        }
        if *token != "self" {
            prefix.push(token.to_string());
        }
        match tokens.get(i) {
            Some(&"::") => i += 1,
            _ => break,
        }
    }
    found.push(prefix.clone());
    prefix.truncate(depth);
    if tokens.get(i) == Some(&"as") { i + 2 } else { i }
}

/// All `impl` blocks of a file.
fn impls<'s>(tokens: &[&'s str]) -> Vec<Impl<'s>> {
    let mut found = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        let before = if i == 0 { ";" } else { tokens[i - 1] };
        if *token != "impl" || !matches!(before, ";" | "}" | "{" | "]" | "unsafe") {
            continue;
        }
        let mut head = i + 1;
        if tokens[head] == "<" {
            head = pair(tokens, head) + 1;
        }
        let open = head + tokens[head..].iter().take_while(|token| **token != "{").count();
        let end = head + tokens[head..open].iter().take_while(|token| **token != "where").count();
        let of_trait = (head..end).find(|i| tokens[*i] == "for");
        let path = &tokens[of_trait.map_or(head, |at| at + 1)..end];
        let is_path = |token: &&&str| is_word(token) || matches!(**token, "&" | "'" | "::");
        if let Some(of) = path.iter().take_while(is_path).last() {
            found.push(Impl { of, is_inherent: of_trait.is_none(), body: open + 1..pair(tokens, open) });
        }
    }
    found
}

/// All modules that are written out in a file.
fn inline<'s>(tokens: &[&'s str]) -> Vec<(&'s str, Range<usize>)> {
    let heads = tokens.windows(3).enumerate().filter(|(_, three)| three[0] == "mod" && three[2] == "{");
    heads.map(|(i, three)| (three[1], i + 3..pair(tokens, i + 2))).collect()
}

/// The types with which names are declared in a file, those of functions too, which stand for what these give.
fn declarations<'s>(file: &File<'s>, types: &BTreeSet<&'s str>) -> Declared<'s> {
    let (tokens, mut found) = (&file.tokens, Declared::new());
    for (i, five) in tokens.windows(5).enumerate() {
        if let ["let", name, "=", "self", "." | ";"] = *five
            && (five[4] == ";" || tokens.get(i + 5) == Some(&"clone"))
            && let Some(of) = file.block(i)
        {
            found.entry(name).or_default().insert(of);
        }
    }
    for (i, two) in tokens.windows(2).enumerate() {
        let (name, of) = match *two {
            [name, ":"] if is_word(name) => (name, i + 2),
            ["fn", name] => {
                let open = i + 2 + tokens[i + 2..].iter().take_while(|token| **token != "(").count();
                let end = pair(tokens, open) + 1;
                if tokens.get(end) != Some(&"->") {
                    continue;
                }
                (name, end + 1)
            }
            _ => continue,
        };
        if let Some(of) = head_type(tokens, of).filter(|of| types.contains(of)) {
            found.entry(name).or_default().insert(of);
        }
    }
    found
}

/// The name of the type that begins at a token, without references and what it is wrapped in.
fn head_type<'s>(tokens: &[&'s str], mut i: usize) -> Option<&'s str> {
    loop {
        match *tokens.get(i)? {
            "&" | "mut" | "dyn" | "," => i += 1,
            "'" => i += 2,
            word if is_word(word) => match *tokens.get(i + 1)? {
                "::" => i += 2,
                "<" if WRAPPERS.contains(&word) => i += 2,
                _ => return Some(word),
            },
            _ => return None,
        }
    }
}
