//! Suspends a session whose worker is saved as a process: releases what the image of a process cannot have, and restores it.
//!
//! | released | restored |
//! |---|---|
//! | memory in device arenas, of which the addresses stay reserved | mapped, and filled from the image of the session |
//! | registrations of host memory | made again, at the same addresses |
//! | the program's pinned memory, which both have mapped | mapped when the program comes, which has a copy of it |
//! | memory of snapshots | with the next snapshot |
//!
//! The driver's own checkpoint saves all other device state, which only the driver knows: contexts, code, variables, arrays.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use katydid_image::{ImageSource, Session as SessionPart};
use katydid_session_core::Progress;

use super::super::areas::{ARENA_KIND, arena_areas};
use super::super::contexts::{Contexts, SwitchableContext};
use super::super::error::{SnapshotError, refused};
use super::super::transfer::Transfer;
use super::{Share, clear, matched, split};
use crate::state::Session;

impl Session {
    /// Releases what an image of the process cannot have. The GPU is at rest, and the contents of arenas are in an image.
    ///
    /// # Errors
    ///
    /// What cannot be released: the session cannot be used then, until [`Session::refill`].
    pub(crate) fn suspend(&mut self) -> Result<(), SnapshotError> {
        let suspended = self.suspend_now();
        self.reenter();
        suspended
    }

    fn suspend_now(&mut self) -> Result<(), SnapshotError> {
        self.snapshots.release_waiting();
        let driver = Arc::clone(&self.shared.driver);
        self.enter_any()?;
        self.snapshots.precopy.clear();
        for area in [&mut self.staging, &mut self.buffered].into_iter().flatten() {
            area.unregister(&driver);
        }
        if let Some(host) = &mut self.host {
            host.suspend(&driver).map_err(refused("end the registration of host memory"))?;
        }
        self.device.unmap_all(&driver).map_err(refused("unmap memory of an arena"))
    }

    /// Restores what was released, except what needs the program. `part` is the session in the image.
    ///
    /// # Errors
    ///
    /// Too little memory, or an error of the image.
    pub(crate) fn refill(
        &mut self,
        part: &SessionPart,
        source: &dyn ImageSource,
        progress: &Progress,
    ) -> Result<(), SnapshotError> {
        let refilled = self.refill_now(part, source, progress);
        self.reenter();
        refilled
    }

    fn refill_now(
        &mut self,
        part: &SessionPart,
        source: &dyn ImageSource,
        progress: &Progress,
    ) -> Result<(), SnapshotError> {
        let driver = Arc::clone(&self.shared.driver);
        self.enter_any()?;
        self.device.map_again(&driver).map_err(refused("map memory of an arena again"))?;
        let contexts = Contexts::of(self)?;
        let areas = arena_areas(self, &contexts)?;
        let regions = part.regions.iter().filter(|region| region.kind == ARENA_KIND);
        let loads = matched(Share::Device, regions, &areas.all)?;
        let (blank, written) = split(&loads);
        progress.expect(written.iter().map(|(load, _)| load.length).sum());
        let (copy_contexts, streams) = (self.snapshots.copy_contexts(), &self.snapshots.streams[..]);
        Transfer { driver: &driver, copy_contexts, streams, progress, precopy: None }.back(&written, source)?;
        clear(&driver, &blank)?;
        self.enter_any()?;
        match &mut self.host {
            Some(host) if !host.awaits_program() => {
                host.register_again(&driver).map_err(refused("register host memory again"))
            }
            _ => Ok(()),
        }
    }

    /// Restores the rest when the program has come, with its pinned memory if the sides share some.
    ///
    /// # Errors
    ///
    /// The error of the system or the driver.
    pub(crate) fn rejoin(&mut self, pinned: Option<BorrowedFd<'_>>) -> Result<(), SnapshotError> {
        let driver = Arc::clone(&self.shared.driver);
        let Some(host) = self.host.as_mut().filter(|host| host.awaits_program()) else { return Ok(()) };
        let failed = |error: katydid_arena::ReserveError| SnapshotError::System {
            what: "map the program's pinned memory again",
            source: std::io::Error::other(error.to_string()),
        };
        host.join(pinned).map_err(failed)?;
        self.enter_any()?;
        let registered = self.host.as_mut().map_or(Ok(()), |host| host.register_again(&driver));
        self.reenter();
        registered.map_err(refused("register host memory again"))
    }

    /// Makes a context of the session current, for calls that need any.
    fn enter_any(&self) -> Result<(), SnapshotError> {
        let contexts = Contexts::of(self)?;
        let context = contexts.of_device(0)?;
        SwitchableContext(context).enter(&self.shared.driver)
    }
}
