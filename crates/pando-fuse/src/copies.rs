//! Copies between files that the kernel asks for (copy_file_range), and their callers.
//!
//! Guarantees: a copy has what was written to the source before, in a mapping or not; set-id bits of the destination
//! are dropped as by a write; it is durable where the destination was opened so. A whole file onto a new one, as `cp`
//! copies, is made by the thread that reads requests: it waits for nothing as a rule, and the kernel need not be told
//! of anything, so that to wake another thread would cost more than the clone.

use std::sync::Arc;

use pando_fs::FileHandle;

use crate::{
    coherence::MountState,
    transport::{Answer, Context, Copy, Errno},
};

/// The answer to a request for a copy: how many bytes were copied.
pub(crate) fn answer(shared: &Arc<MountState>, c: &Context, copy: Copy) -> Answer<u64> {
    let shared = shared.clone();
    let c = *c;
    let quiet = !shared.caches.is_perhaps_dirty(copy.ino_in)
        && shared.set_id_bits(copy.ino_out) == 0
        && !shared.refused.any()
        && !shared.fs.opened_to_sync(FileHandle(copy.handle_out));
    if quiet && copy.offset_in == 0 && copy.offset_out == 0 {
        let caller = shared.content_changer(&c, copy.ino_out);
        let clone = || shared.fs.copy_whole(&caller, copy.ino_in, copy.ino_out, copy.len);
        match shared.noting_time(copy.ino_out, !caller.reports_times, clone) {
            Ok(None) => {}
            Ok(Some(copied)) => return Answer::Now(Ok(copied)),
            Err(e) => return Answer::Now(Err(e.into())),
        }
    }
    // After a copy the kernel drops the pages of the destination, with what a mapping has changed in them meanwhile;
    // refused, it copies through them.
    let write_only = shared.fs.opened_write_only(FileHandle(copy.handle_out));
    if shared.caches.others_may_dirty(copy.ino_out, copy.handle_out, write_only) {
        return Answer::Now(Err(Errno(libc::EOPNOTSUPP)));
    }
    Answer::later(move || {
        // The kernel writes back the destination's dirty pages, not the source's.
        if shared.caches.is_perhaps_dirty(copy.ino_in) {
            shared.write_out(vec![copy.ino_in]);
        }
        // Pages of the source that are stored nowhere are the kernel's alone: refused, it copies through them.
        if shared.refused.why_it_waits(copy.ino_in).is_some() {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let Copy { ino_in, offset_in, ino_out, handle_out, offset_out, len } = copy;
        let before = shared.set_id_bits(ino_out);
        let caller = shared.content_changer(&c, ino_out);
        if !caller.keeps_set_id() {
            shared.drop_privileges(&c, ino_out)?;
        }
        let copy = || shared.fs.copy_file_range(&caller, ino_in, offset_in, ino_out, offset_out, len);
        // The kernel drops the pages of what was copied, which may be a part.
        let copy = || shared.refused.around_part(ino_out, offset_out, false, copy);
        let copied = shared.noting_time(ino_out, !caller.reports_times, copy);
        if shared.set_id_bits(ino_out) != before {
            shared.bits_dropped(ino_out);
        }
        let copied = copied?;
        if shared.fs.opened_to_sync(FileHandle(handle_out)) {
            shared.fs.fsync(ino_out, true)?;
        }
        Ok(copied)
    })
}
