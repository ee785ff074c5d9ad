//! The tests of the engine that can run beside each other, in one program: linking one for each file took longer than
//! most of them run. A new file becomes a line here.

mod backup;
mod bulk;
mod codec;
mod concurrent;
mod diff;
mod discard;
mod edges;
mod expect;
mod fail_nth;
mod height;
mod host_space;
mod hot_values;
mod image;
mod into_itself;
mod key_length;
mod large_of_small;
mod latency;
mod memory;
mod model;
mod old_images;
mod opening;
mod pages;
mod paths;
mod pile_over_damage;
mod queue;
mod reads_in_order;
mod regressions;
mod rot;
mod row_cache;
mod second_crash;
mod space_back;
mod unreadable;
mod updates;
mod usage;
mod usage_space;
