//! Progress on stderr: a bar with an estimate of the time left on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Time between two plain lines.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// Progress of one piece of work; threads share it by reference.
pub struct Progress {
    label: String,
    unit: &'static str,
    total: u64,
    done: AtomicU64,
    started: Instant,
    view: View,
}

enum View {
    Bar(ProgressBar),
    Lines { next: Mutex<Instant> },
}

impl Progress {
    /// Starts the clock of `total` pieces of work; `unit` is their plural.
    pub fn start(label: impl Into<String>, total: u64, unit: &'static str) -> Progress {
        let label = label.into();
        let started = Instant::now();
        let view = if std::io::stderr().is_terminal() {
            View::Bar(bar(&label, total, unit))
        } else {
            View::Lines { next: Mutex::new(started + LINE_INTERVAL) }
        };
        Progress { label, unit, total, done: AtomicU64::new(0), started, view }
    }

    /// Counts `count` more pieces as done.
    pub fn add(&self, count: u64) {
        let done = self.done.fetch_add(count, Ordering::Relaxed) + count;
        match &self.view {
            View::Bar(bar) => bar.set_position(done),
            View::Lines { next } => self.print_line_when_due(next, done, None),
        }
    }

    /// Sets how much is done and what to say about it, for work whose pieces are seconds.
    pub fn set(&self, done: u64, message: String) {
        self.done.store(done, Ordering::Relaxed);
        match &self.view {
            View::Bar(bar) => {
                bar.set_position(done);
                bar.set_message(message);
            }
            View::Lines { next } => self.print_line_when_due(next, done, Some(message)),
        }
    }

    /// Ends the display with one last line.
    pub fn finish(self, summary: impl AsRef<str>) {
        if let View::Bar(bar) = &self.view {
            bar.finish_and_clear();
        }
        eprintln!("{}: {}", self.label, summary.as_ref());
    }

    /// Seconds since the start.
    pub fn elapsed_s(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    fn print_line_when_due(&self, next: &Mutex<Instant>, done: u64, message: Option<String>) {
        // Whoever finds the lock taken leaves the line to its holder.
        let Ok(mut next) = next.try_lock() else {
            return;
        };
        let now = Instant::now();
        if now < *next {
            return;
        }
        *next = now + LINE_INTERVAL;
        eprintln!("{}", self.line(done, message));
    }

    fn line(&self, done: u64, message: Option<String>) -> String {
        let rate = done as f64 / self.elapsed_s().max(1e-9);
        let left = self.total.saturating_sub(done);
        let percent = 100.0 * done as f64 / self.total.max(1) as f64;
        let (label, unit, total) = (&self.label, self.unit, self.total);
        match message {
            Some(message) => format!("{label}: {done}/{total} {unit}, {message}, ETA {left} s"),
            None => {
                let left_s = left as f64 / rate.max(1e-9);
                format!("{label}: {done}/{total} {unit} ({percent:.0} %), {rate:.0}/s, ETA {left_s:.0} s")
            }
        }
    }
}

fn bar(label: &str, total: u64, unit: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    let template = format!("{{prefix}}: [{{bar:40}}] {{pos}}/{{len}} {unit} {{msg}} ETA {{eta}}");
    // A template that does not parse costs the looks of the bar, not the trial.
    if let Ok(style) = ProgressStyle::with_template(&template) {
        bar.set_style(style);
    }
    bar.set_prefix(label.to_owned());
    bar
}
