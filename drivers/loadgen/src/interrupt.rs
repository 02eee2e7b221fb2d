//! SIGINT and SIGTERM, as a flag that long work looks at.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};

/// Exit code after SIGINT or SIGTERM.
pub const EXIT_INTERRUPTED: u8 = 130;

/// Whether this process was asked to stop. Clones share the answer.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Catches SIGINT and SIGTERM from now on. The first asks the work to stop in order; a second one
    /// ends the process at once, in case that the work hangs.
    ///
    /// # Errors
    /// The operating system's refusal to install the handlers.
    pub fn install() -> std::io::Result<Interrupt> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order: the shutdown sees the flag that an earlier signal has set.
            signal_hook::flag::register_conditional_shutdown(signal, i32::from(EXIT_INTERRUPTED), Arc::clone(&flag))?;
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
        }
        Ok(Interrupt(flag))
    }

    pub fn requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
