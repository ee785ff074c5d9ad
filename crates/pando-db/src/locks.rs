//! The locks of this crate: those of `parking_lot`. In the crate's own tests they count, for each thread, how often it
//! has taken one, so that a test can say what a call takes. May use: nothing.

#[cfg(test)]
pub(crate) use counted::{Mutex, RwLock, taken};
#[cfg(not(test))]
pub(crate) use parking_lot::{Mutex, RwLock};

#[cfg(test)]
mod counted {
    use std::cell::Cell;

    use parking_lot::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

    thread_local! {
        static TAKEN: Cell<u32> = const { Cell::new(0) };
    }

    /// Locks that the calling thread has taken so far.
    pub(crate) fn taken() -> u32 {
        TAKEN.get()
    }

    fn count<G>(guard: G) -> G {
        TAKEN.set(TAKEN.get() + 1);
        guard
    }

    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(parking_lot::Mutex<T>);

    impl<T> Mutex<T> {
        pub const fn new(value: T) -> Self {
            Self(parking_lot::Mutex::new(value))
        }

        pub fn lock(&self) -> MutexGuard<'_, T> {
            count(self.0.lock())
        }

        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().map(count)
        }

        pub fn get_mut(&mut self) -> &mut T {
            self.0.get_mut()
        }
    }

    #[derive(Debug, Default)]
    pub(crate) struct RwLock<T>(parking_lot::RwLock<T>);

    impl<T> RwLock<T> {
        pub const fn new(value: T) -> Self {
            Self(parking_lot::RwLock::new(value))
        }

        pub fn read(&self) -> RwLockReadGuard<'_, T> {
            count(self.0.read())
        }

        pub fn write(&self) -> RwLockWriteGuard<'_, T> {
            count(self.0.write())
        }
    }
}
