//! What a merge should make of three plain trees, by going through all paths.
//!
//! Works on a graph: each thing of this side, and each that is taken, knows what it lies in, so a rename is one change,
//! and two things at one place, or directories in each other, are seen when all is done.

use std::collections::{BTreeMap, BTreeSet};

use pando_fs::*;

use super::trees::{Node, Picture, Tree, below, kind, mode_of, parent};

type Map = BTreeMap<String, String>;

fn name(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(_, name)| name)
}

fn id_of(side: &Picture, path: &str) -> Option<(u64, u8)> {
    Some((*side.ids.get(path)?, kind(side.tree.get(path)?)))
}

/// Where what is in the origin is on a side.
struct Where {
    /// By path in the origin.
    to: Map,
    /// The other way.
    from: Map,
    /// Paths in the origin of what is not where what it was in has come to.
    moved: BTreeSet<String>,
}

impl Where {
    /// By numbers, but for those of `not`, else by the path.
    fn new(base: &Picture, side: &Picture, not: &BTreeSet<(u64, u8)>) -> Self {
        let mut roots = BTreeSet::new();
        loop {
            let found = Self::beside(base, side, not, &roots);
            let known = roots.len();
            let was_dir = |root: &&String| {
                found.from.get(*root).and_then(|a| base.tree.get(a)).is_some_and(|node| kind(node) == 0)
            };
            roots.extend(side.roots.iter().filter(was_dir).cloned());
            if roots.len() == known {
                return found;
            }
        }
    }

    /// The same. What lies in a clone has not come there for having the number of something in the origin, but in
    /// clones of `roots`, which something in the origin has become.
    fn beside(base: &Picture, side: &Picture, not: &BTreeSet<(u64, u8)>, roots: &BTreeSet<String>) -> Self {
        let known = |id: &(u64, u8)| !not.contains(id);
        let old: BTreeSet<(u64, u8)> = base.ids.keys().filter_map(|p| id_of(base, p)).filter(known).collect();
        // What has come along with a directory whose rename is not followed counts as removed and added like that.
        let along = |path: &str, found: &str| {
            let ends = path.match_indices('/').map(|(end, _)| path.split_at(end));
            ends.filter(|(dir, _)| !dir.is_empty()).any(|(dir, rest)| {
                let id = id_of(base, dir).filter(|id| not.contains(id));
                let came_along = |there: &str| there != dir && id_of(side, there) == id;
                id.is_some() && found.strip_suffix(rest).is_some_and(came_along)
            })
        };
        // A clone of a directory whose rename is not followed is none of something new.
        let ever: BTreeSet<(u64, u8)> = base.ids.keys().filter_map(|p| id_of(base, p)).collect();
        let is_new =
            |root: &&String| !roots.contains(*root) && id_of(side, root).is_none_or(|id| !ever.contains(&id));
        let in_new =
            |path: &str| side.roots.iter().filter(is_new).any(|root| path.starts_with(&format!("{root}/")));
        let by_id: BTreeMap<(u64, u8), &String> =
            side.ids.keys().filter(|p| !in_new(p)).filter_map(|p| Some((id_of(side, p)?, p))).collect();
        let mut to = Map::from([(String::new(), String::new())]);
        let mut moved = BTreeSet::new();
        for path in base.ids.keys() {
            let place = to.get(parent(path)).map(|dir| format!("{dir}/{}", name(path)));
            let found = id_of(base, path).filter(known).and_then(|id| by_id.get(&id));
            // What is at one path on both sides, in other directories, has not come from another one.
            let stays = |found: &String| found == path && place.as_ref() != Some(path);
            match found.filter(|found| !along(path, found) && !stays(found)) {
                Some(found) => {
                    if Some(*found) != place.as_ref() {
                        moved.insert(path.clone());
                    }
                    to.insert(path.clone(), (*found).clone());
                }
                None => {
                    let Some(place) = place else { continue };
                    if id_of(side, &place).is_some_and(|id| !old.contains(&id)) {
                        to.insert(path.clone(), place);
                    }
                }
            }
        }
        let from = to.iter().map(|(a, b)| (b.clone(), a.clone())).collect();
        Self { to, from, moved }
    }

    fn source(&self, path: &str) -> Option<&String> {
        self.from.get(path).filter(|from| self.moved.contains(*from))
    }
}

/// What lies where: this side's by `O` and the path that it has, what is taken by `T`, a number and that.
type Place = (String, String);

struct Reference<'a> {
    base: &'a Picture,
    theirs: &'a Picture,
    ours: &'a Picture,
    prefer: Option<MergeSide>,
    /// Renames that count as removed and added.
    undone: BTreeSet<(u64, u8)>,
    there: Where,
    here: Where,
    /// Renames of the fork that are not followed: paths in the origin by those in the fork.
    aside_there: Map,
    /// Paths in the origin of what was moved here, followed or not.
    ever_moved_here: BTreeSet<String>,
    /// What things have become, by key, and what they are in, if they have moved.
    nodes: Tree,
    places: BTreeMap<String, Place>,
    removed: BTreeSet<String>,
    conflicts: Vec<String>,
    /// No preference settles these.
    hard: Vec<String>,
    missed: BTreeSet<String>,
}

enum Occupant {
    Nothing,
    Its,
    Other,
}

impl<'a> Reference<'a> {
    fn new(all: [&'a Picture; 3], prefer: Option<MergeSide>, undone: BTreeSet<(u64, u8)>) -> Self {
        let [base, theirs, ours] = all;
        // What went into a directory that is new there has gone, and is new; here it may have moved all the same.
        let mut not = undone.clone();
        let ever = Where::new(base, theirs, &BTreeSet::new());
        let is_undone = |p: &&String| id_of(base, p).is_some_and(|id| undone.contains(&id));
        let mut aside_there: Map =
            ever.moved.iter().filter(is_undone).map(|p| (ever.to[p].clone(), p.clone())).collect();
        let there = loop {
            let there = Where::new(base, theirs, &not);
            let into_new = |p: &&String| {
                let dir = parent(&there.to[*p]);
                !dir.is_empty() && there.from.get(dir).is_none_or(|from| !Self::is_dir(base, from))
            };
            let into_new: Vec<&String> = there.moved.iter().filter(into_new).collect();
            aside_there.extend(into_new.iter().map(|p| (there.to[*p].clone(), (*p).clone())));
            let lost: Vec<_> = into_new.iter().filter_map(|p| id_of(base, p)).collect();
            if lost.is_empty() {
                break there;
            }
            not.extend(lost);
        };
        let here = Where::new(base, ours, &undone);
        let nodes = ours.tree.iter().map(|(p, n)| (format!("O{p}"), n.clone())).collect();
        Self {
            base,
            theirs,
            ours,
            prefer,
            undone,
            there,
            here,
            aside_there,
            ever_moved_here: Where::new(base, ours, &BTreeSet::new()).moved,
            nodes,
            places: BTreeMap::new(),
            removed: BTreeSet::new(),
            conflicts: Vec::new(),
            hard: Vec::new(),
            missed: BTreeSet::new(),
        }
    }

    fn conflict(&mut self, path: &str) -> bool {
        self.conflicts.push(path.into());
        self.prefer == Some(MergeSide::Theirs)
    }

    fn is_dir(side: &Picture, path: &str) -> bool {
        side.tree.get(path).is_some_and(|node| kind(node) == 0)
    }

    /// The directory of the origin here.
    fn dir_here(&self, dir: &str) -> Option<String> {
        self.here.to.get(dir).filter(|to| Self::is_dir(self.ours, to)).cloned()
    }

    /// Where something of the origin is here or would be, whether it is there, and whether it was moved.
    fn here(&self, a: &str) -> (Option<String>, bool, bool) {
        if self.here.moved.contains(a) {
            return (self.here.to.get(a).cloned(), true, true);
        }
        let Some(dir) = self.dir_here(parent(a)) else { return (None, false, false) };
        let place = format!("{dir}/{}", name(a));
        let is = self.ours.tree.contains_key(&place) && self.here.source(&place).is_none();
        (Some(place), is, false)
    }

    fn deleted_here(&self, a: &str) -> bool {
        !self.here(a).1 && !self.ever_moved_here.contains(a)
    }

    fn occupant(&self, o: &str, own: &str) -> Occupant {
        if !self.ours.tree.contains_key(o) {
            return Occupant::Nothing;
        }
        match self.here.from.get(o) {
            None => Occupant::Its,
            Some(a) if a == own => Occupant::Its,
            Some(a) if self.there.moved.contains(a) || !self.there.to.contains_key(a) => Occupant::Nothing,
            Some(_) => Occupant::Other,
        }
    }

    fn remove(&mut self, o: &str) {
        self.removed.insert(o.into());
    }

    /// Takes a tree of the fork, that of `own` in the origin, into a directory here: without what this side has moved
    /// out of it, which is merged where it is, also if the fork has renamed it.
    fn take(&mut self, own: &str, b: &str, o: &str) {
        let mut without = Vec::new();
        let (was, taken) = (format!("{own}/"), format!("{b}/"));
        let moved: Vec<_> = self.here.moved.iter().filter(|p| p.starts_with(&was)).cloned().collect();
        for p in moved {
            let Some(t) = self.there.to.get(&p).cloned() else { continue };
            if !t.starts_with(&taken) || id_of(self.theirs, &t) != id_of(self.base, &p) {
                continue;
            }
            without.push(t.clone());
            if self.there.moved.contains(&p)
                && let (Some(here), true, _) = self.here(&p)
            {
                self.conflict(&here);
                let (x, y) = (&self.base.tree[&p], &self.theirs.tree[&t]);
                self.node(&here, Some(x), y, &self.ours.tree[&here]);
                if kind(x) == 0 {
                    self.dirs(&p, &t, None);
                }
            }
        }
        let mut told: Vec<String> = Vec::new();
        let aside: Vec<_> = self.aside_there.iter().map(|(t, p)| (t.clone(), p.clone())).collect();
        for (t, p) in aside.into_iter().filter(|(t, _)| t.starts_with(&taken)) {
            if told.iter().any(|around| t.starts_with(around)) || !self.deleted_here(&p) {
                continue;
            }
            told.push(format!("{t}/"));
            if !self.conflict(&format!("{o}{}", &t[b.len()..])) {
                without.push(t);
            }
        }
        let left = |path: &str| without.iter().any(|w| path == w || path.starts_with(&format!("{w}/")));
        let tag = format!("T{}", self.nodes.len());
        self.nodes.insert(format!("{tag}{b}"), self.theirs.tree[b].clone());
        self.places.insert(format!("{tag}{b}"), (format!("O{}", parent(o)), name(o).into()));
        for inside in below(&self.theirs.tree, b).into_iter().filter(|inside| !left(inside)) {
            self.nodes.insert(format!("{tag}{inside}"), self.theirs.tree[&inside].clone());
        }
    }

    fn replace(&mut self, own: &str, b: &str, o: &str) {
        match self.occupant(o, own) {
            Occupant::Nothing => {}
            Occupant::Its => self.remove(o),
            Occupant::Other => return self.hard.push(o.into()),
        }
        self.take(own, b, o);
    }

    /// Merges what is in a directory of the origin, or of none if both sides have made that of `new`.
    fn dirs(&mut self, base: &str, theirs: &str, new: Option<&str>) {
        let children = |side: &Picture, dir: &str| -> Vec<String> {
            let inside = side.tree.keys().filter(|p| !p.is_empty() && parent(p) == dir);
            inside.map(|p| name(p).to_owned()).collect()
        };
        let mut names = children(self.theirs, theirs);
        if new.is_none() {
            names.extend(children(self.base, base));
        }
        names.sort();
        names.dedup();
        for name in names {
            self.at(&format!("{base}/{name}"), &format!("{theirs}/{name}"), new);
        }
    }

    fn at(&mut self, a: &str, b: &str, new: Option<&str>) {
        let x = if new.is_some() { None } else { id_of(self.base, a) };
        let y = id_of(self.theirs, b);
        let leaves = x.is_some() && x != y && self.there.moved.contains(a);
        let comes = y.is_some() && x != y && self.there.source(b).is_some();
        match (x, y) {
            (Some((_, k)), Some((_, l))) if !leaves && !comes => match k == l {
                true => self.on_both(a, b),
                false => self.turned(a, b),
            },
            _ => {
                if x.is_some() && !leaves {
                    self.gone(a, b);
                }
                if y.is_some() {
                    self.came(a, b, new);
                }
            }
        }
    }

    /// The topmost directory of the origin around something that is not here.
    fn lost(&mut self, a: &str) {
        let mut around: Vec<String> = Vec::new();
        let mut at = parent(a);
        while !at.is_empty() {
            around.push(at.into());
            at = parent(at);
        }
        if around.iter().any(|dir| self.missed.contains(dir)) {
            return;
        }
        let Some(dir) = around.into_iter().rev().find(|dir| self.dir_here(dir).is_none()) else { return };
        if !self.missed.insert(dir.clone()) {
            return;
        }
        let o = format!("{}/{}", self.dir_here(parent(&dir)).unwrap(), name(&dir));
        if self.conflict(&o)
            && let Some(b) = self.there.to.get(&dir).cloned()
        {
            self.replace(&dir, &b, &o);
        }
    }

    fn came(&mut self, a: &str, b: &str, new: Option<&str>) {
        let dir = match new {
            Some(new) => Some(new.to_owned()),
            None => self.dir_here(parent(a)),
        };
        let Some(dir) = dir else { return self.lost(a) };
        let o = format!("{dir}/{}", name(b));
        match self.there.source(b).cloned() {
            Some(from) => self.moved(&from, b, &o),
            None => match self.occupant(&o, "?") {
                Occupant::Nothing if self.is_deleted_here(b) => {
                    let a = self.aside_there[b].clone();
                    if self.conflict(&o) {
                        self.replace(&a, b, &o);
                    }
                }
                Occupant::Nothing => self.take(a, b, &o),
                Occupant::Its => self.both_new(a, b, &o),
                Occupant::Other => self.hard.push(o),
            },
        }
    }

    fn both_new(&mut self, a: &str, b: &str, o: &str) {
        let (t, n) = (&self.theirs.tree[b], &self.ours.tree[o]);
        if kind(t) != kind(n) {
            if self.conflict(o) {
                self.replace(a, b, o);
            }
            return;
        }
        self.node(o, None, t, n);
        if kind(t) == 0 {
            self.dirs("?", b, Some(o));
        }
    }

    /// Whether this side has deleted what the fork has moved there by a rename that is not followed.
    fn is_deleted_here(&self, b: &str) -> bool {
        self.aside_there.get(b).is_some_and(|a| self.deleted_here(a))
    }

    /// Where something of the origin is in the fork, or would be, by all renames.
    fn ever_there(&self, a: &str) -> String {
        if a.is_empty() {
            return String::new();
        }
        if self.there.moved.contains(a) {
            return self.there.to[a].clone();
        }
        match self.aside_there.iter().find(|(_, from)| *from == a) {
            Some((to, _)) => to.clone(),
            None => format!("{}/{}", self.ever_there(parent(a)), name(a)),
        }
    }

    /// Whether the fork has it, or something in it, at another place than `but`, and it does not come from there.
    fn is_left_there(&self, a: &str, but: &str) -> bool {
        let place = self.ever_there(a);
        let is_there = place != but && id_of(self.theirs, &place) == id_of(self.base, a);
        let out_of = |from: &str| Self::is_dir(self.base, a) && from.starts_with(&format!("{a}/"));
        !self.aside_there.is_empty()
            && (is_there && !self.arrives(&place)
                || self.aside_there.iter().any(|(t, p)| out_of(p) && self.here(p).1 && !self.arrives(t)))
    }

    /// Whether what the fork has moved to `to`, by a rename that is not followed, comes here if this side is preferred.
    fn arrives(&self, to: &str) -> bool {
        let (mut ours, mut base) = (Some(String::new()), Some(String::new()));
        for (end, _) in to.match_indices('/').skip(1) {
            let dir = &to[..end];
            let above = std::mem::replace(
                &mut base,
                self.there.from.get(dir).filter(|from| Self::is_dir(self.base, from)).cloned(),
            );
            if let Some(base) = &base {
                match self.dir_here(base) {
                    Some(here) => ours = Some(here),
                    None => return false,
                }
                continue;
            }
            if let Some(around) = ours.take() {
                let place = format!("{around}/{}", name(dir));
                let there_is = Self::is_dir(self.ours, &place);
                match self.occupant(&place, "?") {
                    Occupant::Nothing => {}
                    _ if there_is => {
                        ours = Some(place);
                        continue;
                    }
                    Occupant::Its => return false,
                    Occupant::Other => {
                        // A file of the origin, in the place of which the fork has a directory.
                        let Some(was) = above.map(|above| format!("{above}/{}", name(dir))) else {
                            return false;
                        };
                        let at = (Some(place.clone()), true, false);
                        if !self.base.tree.contains_key(&was)
                            || self.here(&was) != at
                            || !self.as_it_was(&was, &place)
                        {
                            return false;
                        }
                    }
                }
            }
            if self.is_deleted_here(dir) {
                return false;
            }
        }
        let Some(place) = ours.map(|around| format!("{around}/{}", name(to))) else { return true };
        match self.occupant(&place, "?") {
            Occupant::Its => {
                let (t, o) = (&self.theirs.tree[to], &self.ours.tree[&place]);
                kind(t) == kind(o) && (kind(t) == 0 || t == o)
            }
            _ => true,
        }
    }

    fn gone(&mut self, a: &str, b: &str) {
        let (Some(o), true, moved) = self.here(a) else { return };
        if !moved && self.as_it_was(a, &o) && !self.is_left_there(a, b) || self.conflict(&o) {
            self.remove(&o);
        }
    }

    /// Whether what is here is what was in the origin, or less, apart from what the fork has moved out. Not less than
    /// what comes back with another directory.
    fn as_it_was(&self, a: &str, o: &str) -> bool {
        let (b, n) = (&self.base.tree[a], &self.ours.tree[o]);
        if b != n {
            return false;
        }
        let mut inside: BTreeSet<String> = BTreeSet::new();
        for (tree, top) in [(&self.base.tree, a), (&self.ours.tree, o)] {
            inside.extend(below(tree, top).iter().map(|p| p[top.len()..].to_owned()));
        }
        let mut skipped: Vec<String> = Vec::new();
        for rest in inside {
            let (x, y) = (format!("{a}{rest}"), format!("{o}{rest}"));
            if skipped.iter().any(|s| x.starts_with(s)) {
                continue;
            }
            if self.base.tree.contains_key(&x) {
                let goes = self.there.moved.contains(&x);
                if !goes && self.here.moved.contains(&x) {
                    return false;
                }
                if goes && Self::is_dir(self.base, &x) {
                    skipped.push(format!("{x}/"));
                }
                if goes && id_of(self.ours, &y).is_none_or(|y| Some(y) == id_of(self.base, &x)) {
                    continue;
                }
            }
            match (self.base.tree.get(&x), self.ours.tree.get(&y)) {
                (_, None) => {
                    let there = format!("{}/{}", self.ever_there(parent(&x)), name(&x));
                    let is = |side: &Picture, at: &str| side.tree.get(at).map(kind);
                    if !self.aside_there.is_empty() && is(self.theirs, &there) == is(self.base, &x) {
                        return false;
                    }
                }
                (x, y) if x == y => {}
                _ => return false,
            }
        }
        true
    }

    fn turned(&mut self, a: &str, b: &str) {
        let (entry, is, moved) = self.here(a);
        let Some(o) = entry else { return self.lost(a) };
        if moved {
            self.gone(a, b);
            return self.came(a, b, None);
        }
        if !is {
            if self.conflict(&o) {
                self.replace(a, b, &o);
            }
        } else if self.as_it_was(a, &o) && !self.is_left_there(a, b) {
            self.replace(a, b, &o);
        } else {
            self.both_new(a, b, &o);
        }
    }

    fn on_both(&mut self, a: &str, b: &str) {
        let (x, t) = (&self.base.tree[a], &self.theirs.tree[b]);
        let (entry, is, _) = self.here(a);
        if let Some(o) = &entry
            && is
            && kind(&self.ours.tree[o]) == kind(x)
        {
            if kind(x) != 0 && self.is_left_there(a, b) && x != t {
                if self.conflict(o) {
                    self.replace(a, b, o);
                }
            } else {
                self.node(o, Some(x), t, &self.ours.tree[o]);
            }
        } else if x != t {
            if let Some(o) = entry {
                if kind(x) == 0 {
                    self.missed.insert(a.into());
                }
                if self.conflict(&o) {
                    self.replace(a, b, &o);
                }
            } else {
                self.lost(a);
            }
        }
        if kind(t) == 0 {
            self.dirs(a, b, None);
        }
    }

    fn moved(&mut self, a: &str, b: &str, want: &str) {
        let (Some(o), true, moved) = self.here(a) else {
            if self.conflict(want) {
                self.replace(a, b, want);
            }
            return self.rest_of(a, b);
        };
        let (x, t) = (&self.base.tree[a], &self.theirs.tree[b]);
        if kind(&self.ours.tree[&o]) != kind(x) {
            if self.conflict(&o) {
                self.remove(&o);
                self.replace(a, b, want);
            }
            return self.rest_of(a, b);
        }
        if o != want && (!moved || self.conflict(&o)) {
            let root = |dir: &str| {
                let mut dir = dir;
                while !dir.is_empty() && !self.ours.roots.contains(dir) {
                    dir = parent(dir);
                }
                dir.to_owned()
            };
            if root(parent(&o)) != root(parent(want)) {
                self.undone.extend(id_of(self.base, a));
                return;
            }
            self.places.insert(format!("O{o}"), (format!("O{}", parent(want)), name(want).into()));
        }
        self.node(&o, Some(x), t, &self.ours.tree[&o]);
        if kind(x) == 0 {
            self.dirs(a, b, None);
        }
    }

    /// What was moved out of a directory that is not here.
    fn rest_of(&mut self, a: &str, b: &str) {
        if Self::is_dir(self.base, a) {
            self.missed.insert(a.into());
            self.dirs(a, b, None);
        }
    }

    /// What a thing lies in, and its name.
    fn place(&self, key: &str) -> Place {
        let own = || (key[..key.rfind('/').unwrap()].to_owned(), name(key).to_owned());
        self.places.get(key).cloned().unwrap_or_else(own)
    }

    /// The path of a thing; none if it is removed, or lies in itself.
    fn path(&self, key: &str) -> Option<String> {
        let (mut at, mut parts) = (key.to_owned(), Vec::new());
        while at != "O" {
            if at.strip_prefix('O').is_some_and(|o| self.removed.contains(o))
                || parts.len() > self.nodes.len()
            {
                return None;
            }
            let (dir, name) = self.place(&at);
            parts.push(name);
            at = dir;
        }
        Some(parts.iter().rev().map(|part| format!("/{part}")).collect())
    }

    fn is_in_itself(&self, key: &str) -> bool {
        let mut at = self.place(key).0;
        for _ in 0..=self.nodes.len() {
            if at == key {
                return true;
            }
            if at == "O" {
                return false;
            }
            at = self.place(&at).0;
        }
        false
    }

    /// The merged tree.
    fn out(&mut self) -> Tree {
        let mut taken: BTreeMap<Place, Vec<String>> = BTreeMap::new();
        for key in self.nodes.keys().filter(|key| *key != "O") {
            let gone = key.strip_prefix('O').is_some_and(|o| self.removed.contains(o));
            if !gone {
                taken.entry(self.place(key)).or_default().push(key.clone());
            }
        }
        for (key, place) in &self.places {
            let told = match key.strip_prefix('O') {
                Some(o) => o.to_owned(),
                None => format!("{}/{}", &place.0[1..], place.1),
            };
            // The nearest directory around that moves or goes.
            let mut dir = place.0.as_str();
            while dir != "O" && !self.places.contains_key(dir) && !self.removed.contains(&dir[1..]) {
                dir = &dir[..dir.rfind('/').unwrap()];
            }
            let into_gone = dir != "O" && self.removed.contains(&dir[1..]);
            let second = taken[place].iter().any(|other| other != key && !self.places.contains_key(other));
            if into_gone || second || self.is_in_itself(key) {
                self.hard.push(told);
            }
        }
        // What this side has moved into a directory that goes, and the fork still has.
        for a in self
            .here
            .moved
            .iter()
            .filter(|a| !self.there.moved.contains(*a) && self.there.to.contains_key(*a))
        {
            let o = &self.here.to[a];
            let goes = |o: &str| self.places.contains_key(&format!("O{o}")) || self.removed.contains(o);
            let mut dir = parent(o);
            while !dir.is_empty() && !goes(dir) {
                dir = parent(dir);
            }
            if !goes(o) && self.removed.contains(dir) {
                self.hard.push(o.clone());
            }
        }
        let found = self.nodes.iter().filter_map(|(key, node)| Some((self.path(key)?, node.clone())));
        found.collect()
    }

    /// Aspect by aspect.
    fn node(&mut self, path: &str, base: Option<&Node>, theirs: &Node, ours: &Node) {
        let mut clash = false;
        let theirs_first = self.prefer == Some(MergeSide::Theirs);
        fn pick<T: PartialEq + Clone>(b: Option<T>, t: T, o: T, theirs: bool, clash: &mut bool) -> T {
            if t == o || b.as_ref() == Some(&t) {
                return o;
            }
            if b.as_ref() == Some(&o) {
                return t;
            }
            *clash = true;
            if theirs { t } else { o }
        }
        let mode = pick(base.map(mode_of), mode_of(theirs), mode_of(ours), theirs_first, &mut clash);
        let merged = match (theirs, ours) {
            (Node::File { data: t, attr: ta, .. }, Node::File { data: o, attr: oa, .. }) => {
                let (b, ba) = match base {
                    Some(Node::File { data, attr, .. }) => (Some(data.clone()), Some(attr.clone())),
                    _ => (None, None),
                };
                let data = pick(b, t.clone(), o.clone(), theirs_first, &mut clash);
                let attr = pick(ba, ta.clone(), oa.clone(), theirs_first, &mut clash);
                Node::File { data, mode, attr }
            }
            (Node::Link { target: t }, Node::Link { target: o }) => {
                let b = match base {
                    Some(Node::Link { target }) => Some(target.clone()),
                    _ => None,
                };
                Node::Link { target: pick(b, t.clone(), o.clone(), theirs_first, &mut clash) }
            }
            _ => Node::Dir { mode },
        };
        if clash {
            self.conflicts.push(path.into());
        }
        self.nodes.insert(format!("O{path}"), merged);
    }
}

pub fn conflicts(report: &MergeReport) -> Vec<String> {
    let is = |c: &&MergeChange| matches!(c.kind, MergeKind::Conflict(_));
    let path = |c: &MergeChange| match c.path.to_str().unwrap() {
        "" => String::new(),
        path => format!("/{path}"),
    };
    let mut out: Vec<String> = report.changes.iter().filter(is).map(path).collect();
    out.sort();
    out.dedup();
    out
}

/// The tree, if there is one, and the conflicts.
pub fn expect(
    base: &Picture,
    theirs: &Picture,
    ours: &Picture,
    prefer: Option<MergeSide>,
) -> (Option<Tree>, Vec<String>) {
    let mut undone = BTreeSet::new();
    loop {
        let mut merge = Reference::new([base, theirs, ours], prefer, undone.clone());
        let known = merge.undone.len();
        merge.node("", Some(&base.tree[""]), &theirs.tree[""], &ours.tree[""]);
        merge.dirs("", "", None);
        if merge.undone.len() > known {
            undone = merge.undone;
            continue;
        }
        let out = merge.out();
        let mut conflicts = merge.conflicts;
        let settled = merge.hard.is_empty() && (conflicts.is_empty() || prefer.is_some());
        conflicts.extend(merge.hard);
        conflicts.sort();
        conflicts.dedup();
        return (settled.then_some(out), conflicts);
    }
}
