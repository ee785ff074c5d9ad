//! Where boxes of a layered picture go: rows from top to bottom, links downward.
//!
//! Every box wants to stand below the middle of what points to it and above the
//! middle of what it points to. Rounds of that alternate; in each, a row keeps
//! its order and its boxes keep apart, and the positions that come closest to all
//! wishes (least squares) are found by pooling neighbours that would collide.
//! Pure functions over numbers.

/// A box in a row.
#[derive(Debug, Clone)]
pub struct Item {
    /// Row, from the top.
    pub row: usize,
    /// Width.
    pub width: f64,
    /// Left border, once arranged.
    pub x: f64,
}

/// A link from a point in one box to a box in a lower row.
#[derive(Debug, Clone)]
pub struct Link {
    /// Index of the upper box.
    pub from: usize,
    /// Where in it the link begins, from its left border.
    pub at: f64,
    /// Index of the lower box.
    pub to: usize,
}

/// Space between neighbours, in units of the picture.
pub const GAP: f64 = 28.0;
const ROUNDS: usize = 12;

/// Gives every item its `x`, the least being 0. Items of a row are ordered by their links, then as given.
/// Returns the width of the whole.
pub fn arrange(items: &mut [Item], links: &[Link]) -> f64 {
    let rows = items.iter().map(|item| item.row + 1).max().unwrap_or(0);
    let mut order: Vec<Vec<usize>> = vec![Vec::new(); rows];
    for (i, item) in items.iter().enumerate() {
        if let Some(row) = order.get_mut(item.row) {
            row.push(i);
        }
    }
    for row in &order {
        spread(items, row, &|_| 0.0);
    }
    for round in 0..ROUNDS {
        // The first passes also sort each row by what points to it.
        for row in &mut order {
            let wishes: Vec<f64> = items.iter().enumerate().map(|(i, _)| above(items, links, i)).collect();
            if round < 2 {
                row.sort_by(|a, b| leftmost(items, links, *a).total_cmp(&leftmost(items, links, *b)));
            }
            spread(items, row, &|i| wishes.get(i).copied().unwrap_or(f64::NAN));
        }
        for row in order.iter().rev() {
            let wishes: Vec<f64> = items.iter().enumerate().map(|(i, _)| below(items, links, i)).collect();
            spread(items, row, &|i| wishes.get(i).copied().unwrap_or(f64::NAN));
        }
    }
    let left = items.iter().map(|item| item.x).fold(f64::INFINITY, f64::min);
    items.iter_mut().for_each(|item| item.x -= left);
    items.iter().map(|item| item.x + item.width).fold(0.0, f64::max)
}

/// Where the leftmost link to box `i` begins: what a row is sorted by, so that keys keep their order.
fn leftmost(items: &[Item], links: &[Link], i: usize) -> f64 {
    let from = links.iter().filter(|link| link.to == i);
    from.filter_map(|link| Some(items.get(link.from)?.x + link.at)).fold(f64::INFINITY, f64::min)
}

/// The mean of some left borders; not a number if there are none.
fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, n) = values.fold((0.0, 0.0), |(sum, n), value| (sum + value, n + 1.0));
    sum / n
}

/// Left border at which box `i` stands below the middle of what points to it.
fn above(items: &[Item], links: &[Link], i: usize) -> f64 {
    let own = items.get(i).map_or(0.0, |item| item.width / 2.0);
    let from = links.iter().filter(|link| link.to == i);
    mean(from.filter_map(|link| Some(items.get(link.from)?.x + link.at - own)))
}

/// Left border at which the links of box `i` go straight down on average.
fn below(items: &[Item], links: &[Link], i: usize) -> f64 {
    let from = links.iter().filter(|link| link.from == i);
    mean(from.filter_map(|link| items.get(link.to).map(|to| to.x + to.width / 2.0 - link.at)))
}

/// Puts the boxes of a row as near as possible to the wished left borders (not a number: to where they
/// are), in order and apart.
fn spread(items: &mut [Item], row: &[usize], wish: &dyn Fn(usize) -> f64) {
    // With the room that the boxes before take up subtracted, "apart" becomes "ascending".
    let mut taken = 0.0;
    let mut pools: Vec<(f64, usize)> = Vec::new();
    let mut offsets = Vec::with_capacity(row.len());
    for &i in row {
        let Some(item) = items.get(i) else { continue };
        let wished = wish(i);
        let target = if wished.is_nan() { item.x } else { wished };
        pools.push((target - taken, 1));
        offsets.push((i, taken));
        taken += item.width + GAP;
        while let [.., (a, n), (b, m)] = pools[..]
            && a > b
        {
            let joined = ((a * n as f64 + b * m as f64) / (n + m) as f64, n + m);
            pools.truncate(pools.len() - 2);
            pools.push(joined);
        }
    }
    let places = pools.iter().flat_map(|&(x, n)| std::iter::repeat_n(x, n));
    for ((i, taken), x) in offsets.into_iter().zip(places) {
        if let Some(item) = items.get_mut(i) {
            item.x = x + taken;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn boxes_of_a_row_never_overlap_and_single_children_stand_below() {
        let item = |row, width| Item { row, width, x: 0.0 };
        let mut items = vec![item(0, 300.0), item(1, 100.0), item(1, 500.0), item(1, 80.0), item(2, 60.0)];
        let link = |from, at, to| Link { from, at, to };
        let links = [link(0, 50.0, 1), link(0, 150.0, 2), link(0, 250.0, 3), link(2, 20.0, 4)];
        let width = arrange(&mut items, &links);
        let row: Vec<&Item> = items.iter().filter(|i| i.row == 1).collect();
        for pair in row.windows(2) {
            assert!(pair[0].x + pair[0].width + GAP <= pair[1].x + 1e-6, "{items:?}");
        }
        assert!((items[2].x + 20.0 - (items[4].x + 30.0)).abs() < 1.0, "{items:?}");
        assert!((100.0 + 500.0 + 80.0 + 2.0 * GAP..1000.0).contains(&width), "{width}");
        assert!(items.iter().all(|i| i.x >= 0.0 && i.x + i.width <= width + 1e-6));
    }

    #[test]
    fn an_empty_picture_and_wrong_links_do_no_harm() {
        assert_eq!(arrange(&mut [], &[]), 0.0);
        let mut one = [Item { row: 3, width: 5.0, x: 9.0 }];
        assert_eq!(arrange(&mut one, &[Link { from: 7, at: 0.0, to: 9 }]), 5.0);
    }
}
