//! The terminal of `berth top`: entered at the start, and restored on every way out.

use std::io::{self, Stdout};
use std::sync::atomic::{AtomicBool, Ordering};

use crossterm::cursor::Show;
use crossterm::execute;
use crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;

/// True while the terminal is in raw mode and shows the alternate screen.
static IS_ENTERED: AtomicBool = AtomicBool::new(false);

/// The terminal. Dropping it restores the terminal's state.
pub struct Screen {
    /// The terminal to draw on.
    pub terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    /// Enters raw mode and the alternate screen. A panic of any thread restores the terminal before
    /// its message is printed.
    ///
    /// # Errors
    /// Standard input or output is no terminal.
    pub fn enter() -> io::Result<Self> {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            print(panic);
        }));
        enable_raw_mode()?;
        IS_ENTERED.store(true, Ordering::SeqCst);
        let entered = execute!(io::stdout(), EnterAlternateScreen);
        let terminal = entered.and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        match terminal {
            Ok(terminal) => Ok(Self { terminal }),
            Err(error) => {
                restore();
                Err(error)
            }
        }
    }

    /// True until the terminal was restored, also by a panic of another thread.
    pub fn is_entered() -> bool {
        IS_ENTERED.load(Ordering::SeqCst)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal, once. Errors are ignored: the terminal may be gone.
fn restore() {
    if IS_ENTERED.swap(false, Ordering::SeqCst) {
        let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
    }
}

#[cfg(test)]
mod tests;
